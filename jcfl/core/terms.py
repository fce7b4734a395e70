"""Loss terms as values: what a client minimises besides the loss on its examples, as plain data.

`LossTerm.build(task)` makes the function of `jcfl.core.objective` that is differentiated. A user's own term is a frozen
dataclass with the same method.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from jcfl.core.objective import (
    Part,
    Reference,
    Term,
    backbone,
    center,
    contrastive,
    contrastive_features,
    distant,
    distillation,
    everything,
    head,
    linear,
    own,
    proximal,
    shared,
    sharing,
)
from jcfl.errors import lacks
from jcfl.types import Task

To = Literal["start", "shared", "mean"]
"""The model that a term pulls to: the one the client starts from, ω, or the mean of the cluster models."""
On = Literal["everything", "head", "backbone"]
"""The parameters that a term acts on."""

REFERENCES: dict[str, Reference] = {"start": own, "shared": shared, "mean": center}
PARTS: dict[str, Callable[[Task], Part]] = {"everything": lambda task: everything, "head": head, "backbone": backbone}
TARGETS = {"start": "model it starts from", "shared": "global model", "mean": "mean of the cluster models"}
"""The references in words."""


@dataclass(frozen=True)
class LossTerm:
    """One term of a client's loss."""

    sends: ClassVar[Literal["nothing", "shared", "all"]] = "nothing"  # the models it needs besides the client's own
    passes: ClassVar[bool] = False  # whether the client's data pass through these models
    option: ClassVar[str] = "weight"  # the name of the weight among the options of methods and add-ons

    def build(self, task: Task) -> Term:
        """The term as a function `(model, batch, broadcast) -> []`."""
        raise lacks(self, "build")

    def __str__(self) -> str:
        """The term in words, for a table of methods."""
        return type(self).__name__.lower()

    @property
    def is_off(self) -> bool:
        """Whether the term's weight is a plain zero; a traced weight is not."""
        weight = getattr(self, "weight", 1)
        return isinstance(weight, int | float) and weight == 0

    @property
    def to(self) -> str:
        """The model that the term pulls to; nothing where it pulls to none."""
        return ""


class ToReference(LossTerm):
    """A term that compares the client's model with one fixed model, its reference."""

    reference: To
    sent_for_it: bool  # whether the reference is sent for this term alone, and so adds to the costs
    option: ClassVar[str] = "lam"

    @property
    def sends(self) -> Literal["nothing", "shared", "all"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The models that the term needs besides the client's own."""
        return "shared" if self.sent_for_it else "nothing"

    @property
    def to(self) -> str:
        """The model that the term pulls to."""
        return self.reference


@dataclass(frozen=True)
class Proximal(ToReference):
    """(weight / 2) · ‖θ − reference‖²: a pull that keeps the client's model near the reference."""

    weight: Any
    reference: To = "start"
    on: On = "everything"
    sent_for_it: bool = False

    def __str__(self) -> str:
        """What it pulls to."""
        return f"proximal term to the {TARGETS[self.reference]}{on_parameters(self.on)}, weight {number(self.weight)}"

    def build(self, task: Task) -> Term:
        """The term as a function; see `jcfl.core.objective.proximal`."""
        return proximal(REFERENCES[self.reference], self.weight, PARTS[self.on](task))


@dataclass(frozen=True)
class Distant(ToReference):
    """weight · Dist(θ, reference): as `Proximal`, by another distance than the squared Euclidean one."""

    weight: Any
    by: Literal["l1", "cosine"]
    reference: To = "start"
    sent_for_it: bool = False

    def __str__(self) -> str:
        """What it pulls to, and by which distance."""
        by = {"l1": "L1 distance", "cosine": "cosine distance"}[self.by]
        return f"{by} to the {TARGETS[self.reference]}, weight {number(self.weight)}"

    def build(self, task: Task) -> Term:
        """The term as a function; see `jcfl.core.objective.distant`."""
        return distant(REFERENCES[self.reference], self.weight, self.by)


@dataclass(frozen=True)
class Contrastive(LossTerm):
    """Near the own cluster's model, far from the others' (Ma 2023, eq. 4.3)."""

    weight: Any
    temperature: Any
    on: On = "head"
    sends: ClassVar[Literal["nothing", "shared", "all"]] = "all"

    def __str__(self) -> str:
        """What is compared, and how strongly."""
        return f"contrastive term{on_parameters(self.on)}, weight {number(self.weight)}"

    def build(self, task: Task) -> Term:
        """The term as a function; see `jcfl.core.objective.contrastive`."""
        return contrastive(self.weight, self.temperature, PARTS[self.on](task))


@dataclass(frozen=True)
class ContrastiveFeatures(LossTerm):
    """`Contrastive` on representations of the client's examples (Ma 2023, eq. 4.4)."""

    weight: Any
    temperature: Any
    of: Literal["features", "logits"] = "features"
    sends: ClassVar[Literal["nothing", "shared", "all"]] = "all"
    passes: ClassVar[bool] = True

    @property
    def on(self) -> On:
        """The parameters on which it depends."""
        return "backbone" if self.of == "features" else "everything"

    def __str__(self) -> str:
        """What is compared, and how strongly."""
        return f"contrastive term on {self.of}, weight {number(self.weight)}"

    def build(self, task: Task) -> Term:
        """The term as a function; see `jcfl.core.objective.contrastive_features`."""
        return contrastive_features(task, self.weight, self.temperature, self.of == "logits")


@dataclass(frozen=True)
class Sharing(LossTerm):
    """A pull to each of the other clusters' models, by the share of examples they have (Ma 2023, eq. 5.5)."""

    weight: Any
    on: On = "everything"
    sends: ClassVar[Literal["nothing", "shared", "all"]] = "all"

    def __str__(self) -> str:
        """What it pulls to."""
        return f"proximal term to the other clusters' models{on_parameters(self.on)}, weight {number(self.weight)}"

    def build(self, task: Task) -> Term:
        """The term as a function; see `jcfl.core.objective.sharing`."""
        return sharing(self.weight, PARTS[self.on](task))


@dataclass(frozen=True)
class Distillation(ToReference):
    """The class probabilities of a fixed model, the teacher, as targets beside the labels (Hinton et al. 2015)."""

    weight: Any
    temperature: Any
    reference: To = "shared"
    sent_for_it: bool = False
    passes: ClassVar[bool] = True
    option: ClassVar[str] = "mu"

    def __str__(self) -> str:
        """Who teaches, and how strongly."""
        return f"distillation from the {TARGETS[self.reference]}, weight {number(self.weight)}"

    def build(self, task: Task) -> Term:
        """The term as a function; see `jcfl.core.objective.distillation`."""
        return distillation(task, REFERENCES[self.reference], self.weight, self.temperature)


@dataclass(frozen=True)
class Correction(LossTerm):
    """⟨g − g_i, θ⟩: the client's gradient is shifted by g, which the server sends, less its own g_i.

    FedDANE's mean gradient (Li et al. 2019) and SCAFFOLD's control variates (Karimireddy et al. 2020) are such shifts.
    """

    def build(self, task: Task) -> Term:
        """The term as a function; the client puts g − g_i into `Broadcast.extra`."""
        return linear(lambda sent: sent.extra)


def on_parameters(on: str) -> str:
    """The parameters that a term acts on, where it is not all of them."""
    return "" if on == "everything" else f" on the {on}"


def number(value: Any) -> str:
    """A number as short as it can be written; a traced one as it prints itself."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)
