"""The answers to "aggregate": averaging rules and server optimizers, as values."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

from jcfl import trees
from jcfl.core import averaging, fair, returned, robust
from jcfl.core.averaging import Averaging
from jcfl.core.chain import chain
from jcfl.core.chunks import class_counts
from jcfl.core.context import Context
from jcfl.core.growing import grown_mean, used_neurons
from jcfl.core.local import Local
from jcfl.core.matching import matched_mean
from jcfl.core.method import Aggregate, Mean, Method, Piece, Rule, Weights, reads
from jcfl.core.quality import present_labels
from jcfl.core.terms import number
from jcfl.errors import InputError, named
from jcfl.metrics.cohesion import sizes
from jcfl.registry import register
from jcfl.types import Array, Federation, Key, Models, State

Bound = Callable[..., Averaging]
"""An averaging rule for the clients `who` [s] of a federation, which draws at random from the key.

What a rule's `bind` returns is called with (key, federation, who), and with what the clients keep if the rule `reads`
it. What `bound` returns is called with (key, state, federation, who)."""

Beta = Annotated[float, Field(ge=0, lt=0.5, description="share of clients dropped at either end")]
Buckets = Annotated[int, Field(ge=1, description="buckets of clients in every cluster")]
Drawn = Annotated[
    int | None, Field(ge=1, description="clients drawn with replacement into each bucket; null: each is in one bucket")
]
Hostile = Annotated[float, Field(ge=0, lt=0.5, description="share of a cluster's clients that may be hostile")]
Iterations = Annotated[int, Field(ge=1, description="Weiszfeld steps")]
Bounded = Annotated[float | None, Field(gt=0, description="largest norm of an update; null: the cluster's median norm")]
Fairness = Annotated[
    float,
    Field(ge=0, description="how much more clients with a larger loss count", json_schema_extra={"search": [0.0, 5.0]}),
]
Smoothness = Annotated[
    float | None, Field(gt=0, description="Lipschitz constant L of the clients' gradients; null: 1 / learning rate")
]
Sigma = Annotated[float, Field(gt=0, description="standard deviation of a client's weights around the cluster's")]
Growth = Annotated[
    float | None,
    Field(
        gt=0,
        description="rate γ of new neurons (Indian buffet process), for models with spare ones; null: no new ones",
    ),
]
Spread = Annotated[
    float,
    Field(
        gt=0,
        description="standard deviation σ₀ of a cluster's weights around zero; used with growth",
        json_schema_extra={"only_with": {"growth": None}},
    ),
]
Weighting = Annotated[Weights, Field(description="weights of clients: by their training examples, or equal")]
Rate = Annotated[float, Field(gt=0, le=1, description="step of the server towards the aggregate")]
Optimizer = Annotated[
    Literal["none", "sgd", "momentum", "adam", "yogi", "adagrad"],
    Field(description="the server's optimizer; its gradient is a cluster's old model minus the average"),
]
Absent = Annotated[
    bool, Field(description="the cluster's old model counts for members that did not take part (Ma 2023, eq. 7.6)")
]
ServerRate = Annotated[
    float,
    Field(
        gt=0,
        description="learning rate of the server's optimizer",
        json_schema_extra={"only_with": {"server": ["sgd", "momentum", "adam", "yogi", "adagrad"]}},
    ),
]


class Bounds(NamedTuple):
    """The averaging rules of a run; None where uploads can be summed as they come."""

    clusters: Bound | None
    shared: Bound | None  #: of ω where it is trained, and else None


def bounds(method: Method, context: Context) -> Bounds:
    """The rules of a method's cluster models and of its global model for a run; see `bound`."""
    rules = method.aggregate
    return Bounds(bound(rules.rule, context), bound(rules.rule_of_shared, context) if method.trains_shared else None)


def bound(rule: Rule, context: Context) -> Bound | None:
    """The rule for a run, its results checked; None where uploads can be summed as they come.

    Raises:
        InputError: when a round is traced, if the rule returns other arrays than the models of the clusters.
    """
    name = f"aggregate {str(rule)!r}"
    made = named(name, rule.bind)(context)
    if made is None:
        return None

    def averaging_of(key: Key, state: State, federation: Federation, who: Array) -> Averaging:
        kept = {read: trees.take(state.clients[read], who) for read in reads(rule)}
        average = named(name, named(name, made)(key, federation, who, *([kept] if kept else [])))

        def averaged(label: Array, weights: Array, models: Models, default: Models) -> Models:
            return returned.models(average(label, weights, models, default), default, name)

        return averaged

    return averaging_of


def measures(method: Method, context: Context, state: State, federation: Federation) -> dict[str, Array]:
    """What the averaging rules of a method measure at an evaluation, besides the scores of predictions."""
    rules = [rule for rule in method.aggregate.other_rules if hasattr(rule, "measures")]
    return {name: value for rule in rules for name, value in rule.measures(method, context, state, federation).items()}


@dataclass(frozen=True, kw_only=True)
class OfUploads(Piece):
    """A rule that looks at nothing but the uploads: a function whose options are the fields of the piece."""

    function: ClassVar[Callable[..., Models]]
    weighs: ClassVar[bool] = False

    def bind(self, context: Context) -> Bound:
        """The function with the piece's options; see `jcfl.core.averaging` and `jcfl.core.robust`."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return lambda key, federation, who: partial(self.function, **options)


@dataclass(frozen=True, kw_only=True)
class Median(OfUploads):
    """The coordinate-wise median (Yin et al. 2018)."""

    name: ClassVar[str] = "median"
    function = staticmethod(averaging.median)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(OfUploads):
    """The coordinate-wise trimmed mean (Yin et al. 2018)."""

    name: ClassVar[str] = "trimmed_mean"
    function = staticmethod(averaging.trimmed_mean)
    beta: Any = 0.1


@dataclass(frozen=True, kw_only=True)
class MedianOfMeans(OfUploads):
    """The coordinate-wise median of the means of buckets of clients (Ma 2023, §2.4)."""

    name: ClassVar[str] = "median_of_means"
    function = staticmethod(averaging.median_of_means)
    buckets: int = 3


@dataclass(frozen=True, kw_only=True)
class BootstrapMedianOfMeans(Piece):
    """The coordinate-wise median of the means of buckets drawn with replacement (Brunet-Saumard et al. 2022)."""

    name: ClassVar[str] = "bootstrap_median_of_means"
    buckets: int = 15
    size: int = 3

    def bind(self, context: Context) -> Bound:
        """See `jcfl.core.averaging.bootstrap_median_of_means`."""
        rule = partial(averaging.bootstrap_median_of_means, buckets=self.buckets, size=self.size)
        return lambda key, federation, who: partial(rule, key=key)


def of_buckets(buckets: int, size: int | None) -> Piece:
    """The median of means by its options: of buckets drawn with replacement, or of dealt ones without a `size`."""
    return MedianOfMeans(buckets=buckets) if size is None else BootstrapMedianOfMeans(buckets=buckets, size=size)


@dataclass(frozen=True, kw_only=True)
class Krum(OfUploads):
    """The upload nearest to its neighbours, or the mean of several (Blanchard et al. 2017)."""

    name: ClassVar[str] = "krum"
    function = staticmethod(robust.krum)
    share: Any = 0.2
    several: bool = False


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(OfUploads):
    """The geometric median (Pillutla et al. 2022)."""

    name: ClassVar[str] = "geometric_median"
    function = staticmethod(robust.geometric_median)
    iterations: int = 8


@dataclass(frozen=True, kw_only=True)
class NormBound(OfUploads):
    """The weighted mean of updates that are scaled down to a norm (Sun et al. 2019)."""

    name: ClassVar[str] = "norm_bound"
    function = staticmethod(robust.norm_bound)
    weighs: ClassVar[bool] = True
    bound: Any = None


@dataclass(frozen=True, kw_only=True)
class Fair(Piece):
    """Clients with a larger loss count more (Li et al. 2020, q-FedAvg)."""

    name: ClassVar[str] = "fair"
    weighs: ClassVar[bool] = True
    q: Any = 1.0
    smoothness: Any = None

    def bind(self, context: Context) -> Bound:
        """See `jcfl.core.fair.fair_mean`.

        Raises:
            InputError: L is not given, and clients do not train by SGD.
        """
        trainer, smoothness = context.trainer, self.smoothness
        if smoothness is None:
            if not isinstance(trainer, Local) or not trainer.is_linear:
                raise InputError(
                    "aggregate 'fair': 1 / learning rate stands for L with train.name=sgd only; set smoothness"
                )
            smoothness = 1 / trainer.lr

        def rule(key: Key, federation: Federation, who: Array) -> Averaging:
            losses = partial(fair.training_losses, context.task, federation, who, context.resources)
            return partial(fair.fair_mean, losses=losses, q=self.q, smoothness=smoothness)

        return rule


@dataclass(frozen=True, kw_only=True)
class Matched(Piece):
    """Neurons are matched to the cluster's before they are averaged (Wang et al. 2020, FedMA)."""

    name: ClassVar[str] = "matched"
    sigma: Any = 1.0
    growth: Any = None
    spread: Any = 1.0

    def bind(self, context: Context) -> Bound:
        """See `jcfl.core.matching.matched_mean`, and `jcfl.core.growing.grown_mean` with `growth`.

        Raises:
            InputError: the network is not a chain of layers.
        """
        layers = chain(context.task, context.population.shape)
        mean = matched_mean if self.growth is None else partial(grown_mean, growth=self.growth, spread=self.spread)

        def rule(key: Key, federation: Federation, who: Array) -> Averaging:
            return partial(mean, layers=layers, class_counts=class_counts(federation)[who], sigma=self.sigma)

        return rule

    def measures(self, method: Method, context: Context, state: State, federation: Federation) -> dict[str, Array]:
        """With `growth`, the number of hidden neurons that a cluster's model uses, in the mean over clusters."""
        if self.growth is None or method.group.alone:
            return {}
        layers, labels = chain(context.task, context.population.shape)[:-1], present_labels(state, federation)
        count = lambda model: sum((used_neurons(model, layer).sum() for layer in layers), jnp.int32(0))
        used = jax.vmap(count)(state.clusters)  # [k]
        return {"neurons": jnp.mean(used, where=sizes(labels, used.size) > 0)}


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(Piece):
    """The server's optimizer (Reddi et al. 2021, Adaptive Federated Optimization, arXiv:2003.00295).

    Deviations:
        Adam's and Yogi's moments start at zero and are corrected for it, as optax does; the paper leaves that out.
    """

    name: ClassVar[str] = "server"
    kind: str = "adam"
    lr: Any = 0.1
    momentum: Any = 0.9
    b2: Any = 0.99
    eps: Any = 1e-3

    def __str__(self) -> str:
        """The optimizer and its learning rate."""
        return f"then {self.kind} on the server, rate {number(self.lr)}"

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation, one state for every cluster."""
        adaptive = {"b1": self.momentum, "b2": self.b2, "eps": self.eps}
        return {
            "sgd": lambda: optax.sgd(self.lr),  # with lr = 2 the server goes twice as far as the average
            "momentum": lambda: optax.sgd(self.lr, self.momentum),
            "adam": lambda: optax.adam(self.lr, **adaptive),
            "yogi": lambda: optax.chain(
                optax.scale_by_yogi(**adaptive, initial_accumulator_value=0.0), optax.scale_by_learning_rate(self.lr)
            ),
            "adagrad": lambda: optax.chain(by_sum_of_squares(self.eps), optax.scale_by_learning_rate(self.lr)),
        }[self.kind]()


def by_sum_of_squares(eps: Any) -> optax.GradientTransformation:
    """Updates by the root of the sum of their squares plus ε, which is also the root of this sum before the first one.

    It is FedAdagrad (Reddi et al. 2021, Alg. 2, v₋₁ = τ²); optax's Adagrad adds ε inside the root.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        sums = jax.tree.map(lambda total, one: total + one**2, state, updates)
        return jax.tree.map(lambda one, total: one / (jnp.sqrt(total) + eps), updates, sums), sums

    return optax.GradientTransformation(
        lambda params: jax.tree.map(lambda one: jnp.full_like(one, eps**2), params), update
    )


def server_of(server: str, lr: Any, momentum: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3) -> ServerOptimizer | None:
    """The server's optimizer by its name; None for `none`."""
    return None if server == "none" else ServerOptimizer(kind=server, lr=lr, momentum=momentum, b2=b2, eps=eps)


@register("aggregate", "mean")
def mean(
    *,
    weights: Weighting = "by_size",
    rate: Rate = 1.0,
    absent: Absent = False,
    server: Optimizer = "none",
    server_lr: ServerRate = 0.1,
) -> Aggregate:
    """The weighted mean of the clients' models (McMahan et al. 2017)."""
    return Aggregate(weights=weights, rule=Mean(), rate=rate, absent=absent, server=server_of(server, server_lr))


@register("aggregate", "median")
def median(*, rate: Rate = 1.0) -> Aggregate:
    """The coordinate-wise median, clients unweighted (Yin et al. 2018)."""
    return Aggregate(rule=Median(), rate=rate)


@register("aggregate", "trimmed_mean")
def trimmed_mean(*, beta: Beta = 0.1, rate: Rate = 1.0) -> Aggregate:
    """The coordinate-wise mean without the smallest and the largest, clients unweighted (Yin et al. 2018)."""
    return Aggregate(rule=TrimmedMean(beta=beta), rate=rate)


@register("aggregate", "median_of_means")
def median_of_means(*, buckets: Buckets = 3, size: Drawn = None, rate: Rate = 1.0) -> Aggregate:
    """The coordinate-wise median of the means of buckets of clients (Ma 2023, §2.4)."""
    return Aggregate(rule=of_buckets(buckets, size), rate=rate)


@register("aggregate", "krum")
def krum(*, share: Hostile = 0.2, rate: Rate = 1.0) -> Aggregate:
    """The upload that is nearest to its neighbours (Blanchard et al. 2017)."""
    return Aggregate(rule=Krum(share=share), rate=rate)


@register("aggregate", "multi_krum")
def multi_krum(*, share: Hostile = 0.2, rate: Rate = 1.0) -> Aggregate:
    """The mean of the uploads that are nearest to their neighbours (Blanchard et al. 2017)."""
    return Aggregate(rule=Krum(share=share, several=True), rate=rate)


@register("aggregate", "geometric_median")
def geometric_median(*, iterations: Iterations = 8, rate: Rate = 1.0) -> Aggregate:
    """The model with the least sum of distances to the uploads (Pillutla et al. 2022)."""
    return Aggregate(rule=GeometricMedian(iterations=iterations), rate=rate)


@register("aggregate", "norm_bound")
def norm_bound(*, weights: Weighting = "by_size", bound: Bounded = None, rate: Rate = 1.0) -> Aggregate:
    """The weighted mean of updates that are scaled down to a norm (Sun et al. 2019)."""
    return Aggregate(weights=weights, rule=NormBound(bound=bound), rate=rate)


@register("aggregate", "fair")
def fairly(
    *, q: Fairness = 1.0, smoothness: Smoothness = None, weights: Weighting = "by_size", rate: Rate = 1.0
) -> Aggregate:
    """Clients with a larger loss count more (Li et al. 2020, q-FedAvg)."""
    return Aggregate(weights=weights, rule=Fair(q=q, smoothness=smoothness), rate=rate)


@register("aggregate", "matched")
def matched(
    *, weights: Weighting = "equally", sigma: Sigma = 1.0, growth: Growth = None, spread: Spread = 1.0
) -> Aggregate:
    """Neurons are matched before they are averaged (Wang et al. 2020, FedMA); with `growth`, layers get new ones."""
    return Aggregate(weights=weights, rule=Matched(sigma=sigma, growth=growth, spread=spread))
