"""The answers to "describe": what the server knows of a client when it groups clients.

A description of data (`OfData`) implements `for_one_client(context)`, which returns a function of a client's examples,
and, if it has to remember an anchor model, `begin(context, key, state)`. A description of what clients trained
(`OfUpload`) implements `vectors(context, sent, models)`, which makes vectors `[s, d]` of the models that were sent and
trained, `[s, ...]` each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from pydantic import Field

from jcfl import trees
from jcfl.core import chunks, describing, parts, returned
from jcfl.core.context import Context
from jcfl.core.describing import Description
from jcfl.core.method import Describe, Source, When
from jcfl.core.neutral import Once
from jcfl.core.objective import Part as Represent
from jcfl.core.objective import backbone, everything, head
from jcfl.core.streams import Stream, stream
from jcfl.errors import InputError, lacks, named
from jcfl.grouping import moments, subspace
from jcfl.grouping.kernels import convolutions
from jcfl.registry import register
from jcfl.types import Array, Clients, Federation, Key, Model, Models, State, Task

Part = Literal["whole", "head", "backbone", "dense", "kernels", "first_kernel"]
"""What of a trained model is compared."""

DescribeClients = Callable[[Any, Federation, Array], Array]
"""`(memory, federation, who [s]) -> descriptions [s, ...]`"""
Epochs = Annotated[
    int | None, Field(ge=1, description="local epochs for the description; as many as in a round if not given")
]


@dataclass(frozen=True, kw_only=True)
class OfData(Describe):
    """A description of a client's data. It can be computed for any client at any time, and never changes."""

    source: ClassVar[Source] = "data"

    def begin(self, context: Context, key: Key, state: State) -> Any:
        """What the server has to remember so that it describes all clients in the same way: an anchor model, …"""
        return ()

    def for_one_client(self, context: Context) -> Callable[[Any, Array, Clients], Array]:
        """The function `(memory, client [], its data) -> description [...]` for one client."""
        raise lacks(self, "for_one_client")

    def for_clients(self, context: Context) -> DescribeClients:
        """The function for several clients, which describes them a chunk at a time."""
        one = self.for_one_client(context)

        def described(memory: Any, federation: Federation, who: Array) -> Array:
            describe = lambda client, data: one(memory, client, data)
            return chunks.over_clients(describe, federation, who, min(context.resources.chunk, who.size))

        return described


@register("describe", "truth")
@dataclass(frozen=True, kw_only=True)
class Truth(OfData):
    """The true group, for studies only: a real server does not know it."""

    name: ClassVar[str] = "truth"

    def for_clients(self, context: Context) -> DescribeClients:
        """One-hot groups. [s, g]

        Raises:
            InputError: the federation does not know any client's group.
        """
        if not context.population.groups:
            raise InputError("describe 'truth': no client's true group is known; choose another description")
        return lambda memory, federation, who: jax.nn.one_hot(federation.groups[who], context.population.groups)


@register("describe", "gradient")
@dataclass(frozen=True, kw_only=True)
class Gradient(OfData):
    """The normalised gradient of the loss over the client's training data at a fixed anchor (Zeng et al. 2023, Ψ)."""

    name: ClassVar[str] = "gradient"
    anchor: Annotated[dict[str, Any] | None, Field(description="another anchor model: {name, …}")] = None
    sketch: Annotated[int | None, Field(ge=16, description="number of values to which the vector is folded")] = None

    def task(self, context: Context) -> Task:
        """The anchor's task: the run's own, or that of another model.

        Raises:
            InputError: the anchor is not `{name: a model, …}`.
        """
        if self.anchor is None:
            return context.task
        if context.build is None or "name" not in self.anchor:
            raise InputError(f"anchor: expected {{name: a model, …}}, got {self.anchor!r}")
        options = {key: value for key, value in self.anchor.items() if key != "name"}
        return context.build(self.anchor["name"], **options)

    def description(self, context: Context, halves: bool = False) -> Description:
        """How the gradient is taken. With `halves` it is taken from two halves of the data, to measure its noise."""
        task = self.task(context)
        found = describing.halves(task) if halves else describing.gradient(task)
        return self.folded(found)

    def folded(self, found: Description) -> Description:
        """The description, folded to `sketch` numbers if that option is set."""
        return found if self.sketch is None else describing.sketched(found, self.sketch, jax.random.key(self.sketch))

    def model(self, context: Context, key: Key, state: State) -> Model:
        """The anchor model: the present ω, or a new model if the option `anchor` names another model."""
        return state.shared if self.anchor is None else self.task(context).init(key)

    def begin(self, context: Context, key: Key, state: State) -> Any:
        """The anchor model."""
        return self.model(context, key, state)

    def for_one_client(self, context: Context) -> Callable[[Any, Array, Clients], Array]:
        """The gradient as one vector."""
        found = self.description(context)
        nothing = jax.random.key(0)  # a gradient of all examples draws nothing
        return lambda anchor, client, data: ravel_pytree(found(anchor, data, nothing)[0])[0]


@register("describe", "displacement")
@dataclass(frozen=True, kw_only=True)
class Displacement(Gradient):
    """The normalised change of the anchor in some full-batch local steps (the code of Zeng et al. 2023)."""

    name: ClassVar[str] = "displacement"
    trains: ClassVar[bool] = True
    steps: Annotated[int, Field(ge=1, description="local steps from the anchor")] = 5

    def description(self, context: Context, halves: bool = False) -> Description:
        """How the displacement is taken.

        Raises:
            InputError: its noise is to be measured, which only gradients allow.
        """
        if halves:
            raise InputError(
                "compare 'noise_corrected' takes gradients; leave anchor_steps out (method.describe=gradient)"
            )
        return self.folded(describing.displacement(self.task(context), context.trainer, self.steps))

    def begin(self, context: Context, key: Key, state: State) -> tuple[Model, Key]:
        """The anchor model, and the key of the stream ANCHOR, from which local steps draw."""
        return self.model(context, key, state), key

    def for_one_client(self, context: Context) -> Callable[[Any, Array, Clients], Array]:
        """The displacement as one vector."""
        found = self.description(context)

        def described(memory: tuple[Model, Key], client: Array, data: Clients) -> Array:
            anchor, key = memory
            return ravel_pytree(found(anchor, data, stream(key, Stream.HALVES, client))[0])[0]

        return described


@register("describe", "subspace")
@dataclass(frozen=True, kw_only=True)
class Subspace(OfData):
    """The leading left singular vectors of the client's examples (Vahidian et al. 2023, PACFL)."""

    name: ClassVar[str] = "subspace"
    takes_noise: ClassVar[bool] = False  # a basis with noise is not orthonormal
    p: Annotated[int, Field(ge=1, description="singular vectors of a client")] = 3

    def for_one_client(self, context: Context) -> Callable[[Any, Array, Clients], Array]:
        """An orthonormal basis. [d, p]"""
        return lambda memory, client, data: subspace.left_singular(
            data.x.reshape(data.x.shape[0], -1), data.mask, self.p
        )


@register("describe", "moments")
@dataclass(frozen=True, kw_only=True)
class Moments(OfData):
    """Means and standard deviations of the features that the initial model computes from the client's examples."""

    name: ClassVar[str] = "moments"

    def begin(self, context: Context, key: Key, state: State) -> Any:
        """The model whose features are taken: the present ω."""
        return state.shared

    def for_one_client(self, context: Context) -> Callable[[Any, Array, Clients], Array]:
        """The moments as one vector. [2 f]"""
        return lambda model, client, data: moments.moments(context.task.features(model, data.x), data.mask)


@register("describe", "labels")
@dataclass(frozen=True, kw_only=True)
class LabelCounts(OfData):
    """The share of every class among the client's training examples."""

    name: ClassVar[str] = "labels"

    def for_one_client(self, context: Context) -> Callable[[Any, Array, Clients], Array]:
        """The shares. [c]"""
        return lambda memory, client, data: moments.label_counts(data.y, data.mask, context.population.classes)


@dataclass(frozen=True, kw_only=True)
class OfUpload(Describe):
    """A description made of what a client trained."""

    source: ClassVar[Source] = "upload"

    def is_repeated(self, when: When) -> bool:
        """Unless clients are grouped once, they are described by each of their uploads."""
        return not isinstance(when, Once)

    def vectors(self, context: Context, sent: Models, models: Models) -> Array:
        """The descriptions of clients from the models sent to them and trained by them, [s, ...] each. [s, d]"""
        raise lacks(self, "vectors")


@register("describe", "model")
@dataclass(frozen=True, kw_only=True)
class TrainedModel(OfUpload):
    """The model that a client trained, or a part of it."""

    name: ClassVar[str] = "model"
    part: Annotated[
        Part | Annotated[tuple[str, ...], Field(min_length=1)],
        Field(
            description="all parameters, the classifier, all others, dense layers, convolution kernels, the first, or "
            "layers by name"
        ),
    ] = "whole"
    epochs: Epochs = None

    def represent(self, context: Context) -> Represent:
        """The part of a model that is compared.

        Raises:
            InputError: `part` means layers that the model does not have.
        """
        if self.part in ("kernels", "first_kernel"):
            shape = context.population.shape
            return convolutions(context.task, shape, only_first=self.part == "first_kernel")
        known = {"whole": lambda task: everything, "head": head, "backbone": backbone}
        if self.part in known:
            return known[self.part](context.task)
        layers = parts.names(context.task, (self.part,) if isinstance(self.part, str) else self.part, "part")
        return lambda model: parts.part_of(model, layers)["params"]

    def vectors(self, context: Context, sent: Models, models: Models) -> Array:
        """The part of each model as a vector."""
        return vectors_of(self.represent(context), models)


@register("describe", "update")
@dataclass(frozen=True, kw_only=True)
class Update(OfUpload):
    """The update: the model that a client trained minus the model that it received."""

    name: ClassVar[str] = "update"
    epochs: Epochs = None

    def vectors(self, context: Context, sent: Models, models: Models) -> Array:
        """The update of every parameter as a vector."""
        return vectors_of(everything, models) - vectors_of(everything, sent)


@register("describe", "accumulated")
@dataclass(frozen=True, kw_only=True)
class Accumulated(Update):
    """The sum of the client's updates so far (Kim et al. 2024, CFL-GP)."""

    name: ClassVar[str] = "accumulated"

    def is_repeated(self, when: When) -> bool:
        """Every update is added."""
        return True


def of_data(describe: OfData, context: Context) -> DescribeClients:
    """The function that describes several clients, its results checked.

    Raises:
        InputError: when it is traced, if it does not return a description with an axis of its own for each client.
    """
    name = f"describe {describe.name!r}"
    found = named(name, named(name, describe.for_clients)(context))
    return lambda memory, federation, who: sound(describe, found(memory, federation, who), who.size)


def of_uploads(describe: Describe, context: Context, sent: Models, models: Models) -> Array:
    """The descriptions of clients from what they were sent and trained, checked. [s, ...]

    Raises:
        InputError: when it is traced, as for `of_data`.
    """
    vectors = named(f"describe {describe.name!r}", describe.vectors)  # pyright: ignore[reportAttributeAccessIssue]
    found = vectors(context, sent, models)
    return sound(describe, found, trees.count(models))


def sound(describe: Describe, points: Any, count: int) -> Array:
    """Descriptions [count, d, ...] in floats."""
    points = returned.array(points, (count, None, ...), returned.NUMBERS, f"describe {describe.name!r}")
    return points if jnp.issubdtype(points.dtype, jnp.floating) else points.astype(float)


def vectors_of(represent: Represent, models: Models) -> Array:
    """The part of each model that is compared, as vectors. [s, ...] -> [s, d] of single precision or more"""
    return jax.vmap(lambda model: trees.vector(represent(model)))(models)


def updates(models: Models, sent: Models) -> Models:
    """The updates of parameters, as trees. [s, ...]"""
    return optax.tree.sub(models["params"], sent["params"])
