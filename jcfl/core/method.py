"""A method as a value: the answers to seven questions, before anything is compiled.

Every clustered method answers the same questions: by what the server knows a client (describe), how it compares two
descriptions (compare), how it makes groups of them (group) and when (when), what clients train (train), how uploads
become models (aggregate), and how a client predicts (answer). `Method` holds the seven answers as plain data, so that
each can be read, printed and exchanged. `jcfl.core.compile` turns the value into an `Algorithm`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import Field

from jcfl.core.terms import LossTerm, number
from jcfl.errors import lacks
from jcfl.types import Array, Grouping, Models

Source = Literal["nothing", "data", "losses", "upload"]
"""What a description is made of: nothing, a client's data, losses of the cluster models, or what the client trained."""

Weights = Literal["by_size", "equally"]
"""How clients count in an average: by their training examples, or all alike."""

Selection = tuple[str, ...]
"""Parameters, by the names of layers or by the words head, backbone, dense and norm."""


class Piece:
    """One answer. A subclass is a frozen dataclass whose fields are its options."""

    name: ClassVar[str] = ""

    def __str__(self) -> str:
        """The registered name, and the options that are not at their defaults."""
        own = fields(self) if is_dataclass(self) else ()  # a user's rule may be no dataclass
        changed = [(field.name, getattr(self, field.name)) for field in own if _differs(field, self)]
        return self.name + (f"({', '.join(f'{key}={_shown(value)}' for key, value in changed)})" if changed else "")


def _differs(field: Any, piece: Any) -> bool:
    """Whether a field of a piece is not at its default; a traced value counts as changed."""
    value = getattr(piece, field.name)
    return value is not field.default and not (_is_plain(value) and value == field.default)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | tuple | Piece | LossTerm | None)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return number(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class Describe(Piece):
    """How a client is described to the server."""

    source: ClassVar[Source] = "nothing"
    takes_noise: ClassVar[bool] = True  # whether a description with noise on it is still one
    trains: ClassVar[bool] = False  # whether a description of data takes local steps, which then have to stay the same

    def is_repeated(self, when: "When") -> bool:
        """Whether a client sends a description in every round that it takes part in, and not once."""
        return False


@dataclass(frozen=True, kw_only=True)
class Compare(Piece):
    """How similar two descriptions are."""

    corrected: ClassVar[bool] = False  # whether lengths are corrected for noise, by a number that clients send too


@dataclass(frozen=True, kw_only=True)
class When(Piece):
    """The rounds in which clients are grouped."""

    on_arrival: ClassVar[bool] = False  # whether a client is described when it first takes part


@dataclass(frozen=True, kw_only=True)
class Group(Piece):
    """How descriptions become clusters.

    A subclass implements `slots(context)`, the number of cluster models to hold, and `grouping(method, context)`, which
    builds the functions of `jcfl.types.Grouping` from all four answers and refuses combinations without a meaning.
    """

    clustered: ClassVar[bool] = True  # whether clients are divided into clusters
    alone: ClassVar[bool] = False  # whether every client has a model of its own, which is never sent
    covers_data: ClassVar[bool] = False  # whether its descriptions of data pass through `context.privacy.descriptions`

    def slots(self, context: Any) -> int:
        """The number of cluster models to hold."""
        raise lacks(self, "slots")

    def grouping(self, method: "Method", context: Any) -> Grouping:
        """The functions that group clients."""
        raise lacks(self, "grouping")

    def keeps(self, method: "Method", context: Any) -> dict[str, Callable[[Any], Any]]:
        """What is kept of each client between rounds: by name, functions of the first model that make the first values.

        The functions of `grouping` read and write `state.clients[name]` [m, ...]; a client, and so a loss term, gets
        its own row as `sent.own[name]`. With `model`, the clients' last models, absent clients count in the clusters'
        aggregates too; `model` and `description` stay with the server.
        """
        return {}


@dataclass(frozen=True, kw_only=True)
class Train(Piece):
    """What clients train, and which models.

    Attributes:
        terms: loss terms added to the mean loss of every local step.
        shared: whether the global model ω is the mean of the clients' models, or trained on a copy of its own.
        shared_terms: loss terms added to the mean loss of every local step of ω, where it is trained.
        distinct: whether the cluster models start from different random initialisations.
        tied: parameters that are averaged over all clients of the cohort, whatever their cluster.
        private: parameters that stay with the client and are never averaged.
        models: whether a client trains the model of its cluster, or the models of all clusters (soft membership).
        control: whether clients correct their gradients by control variates (SCAFFOLD).
        correction: whether clients correct their gradients by the mean gradient of a sampled cohort (FedDANE).
        in_turn: whether the cluster models and ω are trained in turn, a round each, and not both in every round.
        chained: whether clients train one after another and hand the global model on.
        by_share: whether the loss on a client's examples, not the terms, is multiplied by its share n_i/n of the
            training examples of all clients, sampled or not, where it trains its cluster's model (Ma 2023, eq. 7.13).
        steps: if given, full-batch steps without momentum, in place of the trainer's schedule.
        active: whether anything is trained; if not, rounds only group.
    """

    name: ClassVar[str] = "local"
    terms: tuple[LossTerm, ...] = ()
    shared: Literal["mean", "trained"] = "mean"
    shared_terms: tuple[LossTerm, ...] = ()
    distinct: bool = False
    tied: Selection = ()
    private: Selection = ()
    models: Literal["own", "all"] = "own"
    control: bool = False
    correction: bool = False
    in_turn: bool = False
    chained: bool = False
    by_share: bool = False
    steps: Annotated[int, Field(ge=1)] | None = None
    active: bool = True

    def __str__(self) -> str:
        """What a client minimises, then which models are trained and from where."""
        if not self.active:
            return "nothing"
        first = [str(term) for term in self.terms if not getattr(term, "is_off", False)]
        if self.steps:
            first = [f"{self.steps} full-batch step{'s' * (self.steps > 1)}", *first]
        if self.models == "all":
            first = ["the models of all clusters, examples weighted by responsibility"]
        parts = ["; ".join(first or ["local"]) + ", from distinct starts" * self.distinct]
        parts += ["gradients corrected by control variates"] * self.control
        parts += ["gradients corrected by the mean gradient of a sample"] * self.correction
        parts += [f"{', '.join(self.tied)} averaged over all clients"] if self.tied else []
        parts += [f"{', '.join(self.private)} kept by the client"] if self.private else []
        parts += ["losses scaled by the client's share of all examples"] * self.by_share
        parts += ["one client after another"] * self.chained
        parts += ["in turn with the global model"] * self.in_turn
        own = [str(term) for term in self.shared_terms if not term.is_off]
        also = ", with a ".join(["the global model is trained too", *own])
        return "; ".join(parts + [also] * (self.shared == "trained"))


class Rule(Protocol):
    """How the uploads of a cluster become one model; `bind` gives None where they can be summed as they come.

    A rule that ignores the clients' weights sets `weighs = False`; `jcfl list` then prints no weights. A rule that
    looks at what clients keep names these states in `reads`. The function that `bind` returns then gets them as its
    last argument, a dict by name, as they are after training. [s, ...]
    """

    def bind(self, context: Any) -> Callable[..., Callable[[Array, Array, Models, Models], Models]] | None:
        """The averaging rule for a key and the clients `who` [s] of a federation; see `jcfl.core.averaging`."""
        ...


def reads(rule: Rule) -> tuple[str, ...]:
    """The names of what clients keep that a rule looks at."""
    return tuple(getattr(rule, "reads", ()))


@dataclass(frozen=True, kw_only=True)
class Mean(Piece):
    """The weighted mean of the clients' models (McMahan et al. 2017)."""

    name: ClassVar[str] = "mean"

    def bind(self, context: Any) -> None:
        """Nothing: a weighted mean is summed as uploads come."""


@dataclass(frozen=True, kw_only=True)
class Aggregate(Piece):
    """How uploads become the models of the next round.

    Attributes:
        weights: how clients count.
        rule: the mean, or another rule in its place.
        shared_rule: the rule of ω where ω is trained; None: `rule`.
        rate: how far the server goes from the old model towards the aggregate, in (0, 1].
        absent: whether a cluster's old model counts for its members that did not take part (Ma 2023, eq. 7.6).
        server: the server's optimizer, which takes the old model less the aggregate as a gradient; None: no optimizer.
        exclude: leaves clients out whose updates are suspect, before anything is averaged or grouped; None: nobody.
        privacy: clips updates and noises their sums (`jcfl.core.privacy.Privacy`); None: sums are as they are.
    """

    name: ClassVar[str] = "aggregate"
    weights: Weights = "by_size"
    rule: Any = Mean()
    shared_rule: Any = None
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    absent: bool = False
    server: Any = None
    exclude: Any = None
    privacy: Any = None

    @property
    def rule_of_shared(self) -> Any:
        """The rule of ω where it is trained."""
        return self.rule if self.shared_rule is None else self.shared_rule

    @property
    def other_rules(self) -> tuple[Any, ...]:
        """The rules that are not the mean."""
        rules = (self.rule,) if self.shared_rule is None else (self.rule, self.shared_rule)
        return tuple(rule for rule in rules if not isinstance(rule, Mean))

    @property
    def goes_all_the_way(self) -> bool:
        """Whether the rate is 1 and no traced value, so that the old model does not count."""
        return isinstance(self.rate, float) and self.rate == 1.0

    def __str__(self) -> str:
        """The rule and how clients count in it, then what the server does with its result."""
        counts = {"by_size": "clients weighted by size", "equally": "clients weighted equally"}[self.weights]
        parts = [str(self.rule)] + [counts] * getattr(self.rule, "weighs", True)
        parts += [f"the global model by {self.shared_rule}"] if self.shared_rule else []
        parts += [f"rate {number(self.rate)}"] * (not _is_plain(self.rate) or self.rate != 1)
        parts += ["the old model for members that are absent"] * self.absent
        parts += [f"clients left out by {self.exclude}"] if self.exclude else []
        parts += [str(self.privacy)] if self.privacy else []
        return ", ".join(parts + ([str(self.server)] if self.server else []))


Ballot = Annotated[
    Literal["probabilities", "logits"], Field(description="what is averaged: class probabilities, or logits")
]


Unsampled = Annotated[
    Literal["shared", "placed"],
    Field(description="model of a client that was never sampled: ω, or that of the cluster it is placed in"),
]


class Vote(NamedTuple):
    """Independent runs that predict together with this one."""

    copies: int  #: how many runs predict with it
    method: Any  #: the `Method` that they run; None for this one
    by: Ballot = "probabilities"  #: what is averaged over the runs, class probabilities or logits


@dataclass(frozen=True, kw_only=True)
class Answer(Piece):
    """How a client predicts.

    Attributes:
        model: the model of its cluster; `sum` adds the logits of ω; `mixture` weighs the probabilities of all cluster
            models by the client's membership; `majority` ignores models: the client's own most frequent class.
        tune: local steps that a client trains its model for before it predicts.
        unsampled: the model of a client that was never sampled: ω's (or that of the cluster which it has without any
            update of its own, as in FeSEM), or that of the cluster in which the grouping places it.
        vote: runs beside this one whose class probabilities, or logits, are averaged with it.
    """

    name: ClassVar[str] = "answer"
    model: Literal["cluster", "sum", "mixture", "majority"] = "cluster"
    tune: Annotated[int, Field(ge=0)] = 0
    unsampled: Unsampled = "shared"
    vote: Vote | None = None

    def __str__(self) -> str:
        """The model that predicts, then fine-tuning and votes."""
        parts = [ANSWERS[self.model]] + [f"after {self.tune} local steps"] * bool(self.tune)
        parts += ["clients never sampled placed in a cluster"] * (self.unsampled == "placed")
        return ", ".join(parts + [f"with {self.vote.copies} more to vote"] if self.vote else parts)


ANSWERS = {
    "cluster": "the cluster's model",
    "sum": "the sum of the logits of the cluster's model and the global model",
    "mixture": "all cluster models, mixed by membership",
    "majority": "the most frequent class",
}
"""The models that can predict, in words."""


class Phase(NamedTuple):
    """Rounds that go before the method's own."""

    rounds: int  #: how many
    train: Literal["shared", "alone"]  #: FedAvg for ω, or every client by itself and one grouping at the end


QUESTIONS = ("describe", "compare", "group", "when", "train", "aggregate", "answer")
"""The seven questions, by the names of `Method`'s fields."""

KINDS = {question: question for question in QUESTIONS} | {"train": "training"}
"""The kind of piece that answers each of a method's questions; `train` is the kind of local trainers."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """The seven answers of a method, and the phases before it.

    >>> from jcfl.methods import stocfl
    >>> print(stocfl().train)
    proximal term to the global model, weight 0.05; the global model is trained too
    """

    describe: Describe
    compare: Compare
    group: Group
    when: When
    train: Train = Train()
    aggregate: Aggregate = Aggregate()
    answer: Answer = Answer()
    before: tuple[Phase, ...] = ()
    name: str = "method"
    addons: tuple[str, ...] = ()

    def answers(self) -> dict[str, str]:
        """The seven answers in words, by question.

        Nothing is aggregated where nothing is trained, or only models that stay with their clients.
        """
        found = {question: str(getattr(self, question)) for question in QUESTIONS}
        idle = not self.train.active or (self.group.alone and not self.trains_shared)
        found |= {"aggregate": "nothing"} if idle else {}
        whose = "the client's own" if self.group.alone else "the cluster's" if self.group.clustered else "the one"
        return found | {"answer": found["answer"].replace("the cluster's", whose)}

    def with_train(self, **changes: Any) -> "Method":
        """The method with fields of its training changed."""
        return replace(self, train=replace(self.train, **changes))

    def with_aggregate(self, **changes: Any) -> "Method":
        """The method with fields of its aggregation changed."""
        return replace(self, aggregate=replace(self.aggregate, **changes))

    def with_answer(self, **changes: Any) -> "Method":
        """The method with fields of its answer changed."""
        return replace(self, answer=replace(self.answer, **changes))

    @property
    def is_summed(self) -> bool:
        """Whether the logits of ω are added to those of the cluster's model."""
        return self.answer.model == "sum"

    @property
    def trains_shared(self) -> bool:
        """Whether ω is trained on a copy of its own."""
        return self.train.shared == "trained" or self.is_summed
