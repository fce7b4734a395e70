"""The losses of all cluster models on clients' data, and the group that chooses the least loss (IFCA)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from pydantic import Field

from jcfl import metrics, trees
from jcfl.core import chunks, evaluation, parts
from jcfl.core.context import Context, Resources
from jcfl.core.evaluation import LogitsFunction
from jcfl.core.method import Compare, Describe, Group, Method, Source
from jcfl.core.neutral import Every, grouping_of
from jcfl.core.objective import mean_of_rows
from jcfl.errors import InputError
from jcfl.registry import register
from jcfl.types import Array, Clients, Cohort, Federation, Grouping, Key, Model, Models, State, Task

AUTO: Any = {"auto": "clusters"}
"""A number of clusters that may be decided by the clients' gradients."""

Clusters = Annotated[int, Field(ge=1, description="number of clusters K", json_schema_extra=AUTO)]


@register("describe", "losses")
@dataclass(frozen=True, kw_only=True)
class Losses(Describe):
    """The mean losses of all cluster models on the client's training data (Ghosh et al. 2020)."""

    name: ClassVar[str] = "losses"
    source: ClassVar[Source] = "losses"


@register("compare", "itself")
@dataclass(frozen=True, kw_only=True)
class Itself(Compare):
    """The description is a loss per cluster and needs no comparison."""

    name: ClassVar[str] = "itself"


def refuse_more_clusters_than_clients(method: Method, context: Context, clusters: int) -> None:
    """Refuse more clusters than clients that train."""
    if clusters > context.population.eligible:
        raise InputError(
            f"{method.name}: clusters must be at most the number of training clients, {context.population.eligible}, "
            f"got {clusters}"
        )


def expect(method: Method, question: str, kinds: tuple[type, ...], why: str, *, exactly: bool = False) -> None:
    """Refuse an answer that a group cannot use.

    Args:
        question: the answer's field in `Method`.
        kinds: the classes of answers that the group can use.
        why: the reason, as the end of a sentence.
        exactly: whether subclasses of these classes are refused too.

    Raises:
        InputError: the answer is none of these.
    """
    answer = getattr(method, question)
    if not (type(answer) in kinds if exactly else isinstance(answer, kinds)):
        known = " or ".join(kind.name for kind in kinds)  # pyright: ignore[reportAttributeAccessIssue]
        raise InputError(
            f"{method.name}: group {method.group.name!r} {why}; set method.{question}={known}, got {answer.name!r}"
        )


@register("group", "least")
@dataclass(frozen=True, kw_only=True)
class Least(Group):
    """A client joins the cluster whose model has the least loss on its training data (Ghosh et al. 2020, IFCA).

    Deviations:
        At test time clients also choose by this rule on training data; the authors' code uses test labels.
    """

    name: ClassVar[str] = "least"
    clusters: Clusters = 4

    def slots(self, context: Context) -> int:
        """K."""
        return self.clusters

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Labels by the least loss, before each round and at evaluations; of equal losses the first counts."""
        expect(method, "describe", (Losses,), "chooses by the losses of the cluster models")
        expect(method, "compare", (Itself,), "compares losses as they are")
        expect(method, "when", (Every,), "chooses anew in every round")
        refuse_more_clusters_than_clients(method, context, self.clusters)
        if self.clusters > 1 and method.train.active and not method.train.distinct:
            raise InputError(
                f"{method.name}: clients choose the model of least loss, and all models would start alike, so that all "
                "clients would stay in the first cluster; set method.train={name: …, distinct: true}"
            )
        nearest = least_loss(method, context, joined=False)

        def before(key: Key, state: State, cohort: Cohort, federation: Federation) -> State:
            labels = jnp.where(cohort.present, nearest(state, cohort.who, federation), state.labels[cohort.who])
            return state.replace(labels=state.labels.at[cohort.who].set(labels))

        def serve(state: State, federation: Federation) -> Array:
            return nearest(state, jnp.arange(state.labels.size), federation)

        return grouping_of(before=before, place=nearest, serve=serve)


def least_loss(method: Method, context: Context, joined: bool = True) -> Callable[[State, Array, Federation], Array]:
    """`(state, who [s], federation) -> labels [s]`: the cluster whose model does best on a client's training data.

    Args:
        joined: whether only clusters with members are chosen from, because other slots may never have been used.
    """
    answer = evaluation.logits_function(context.task, method.is_summed)
    resources = context.resources

    def own_losses(state: State, who: Array, data: Clients) -> Array:
        """The losses [k] of one client, with its private parameters in every cluster's model."""
        part = trees.take(state.clients["private"], who)

        def of_rows(data: Clients) -> Array:
            own = lambda model: answer(parts.with_part(model, part), state.shared, data.x)
            return jax.lax.map(lambda model: context.task.loss(own(model), data.y), state.clusters).T  # [r, k]

        return jax.vmap(mean_of_rows, (-1, None))(chunks.over_rows(of_rows, data, resources.rows), data.mask)

    def nearest(state: State, who: Array, federation: Federation) -> Array:
        if "private" in state.clients:
            found = chunks.over_clients(partial(own_losses, state), federation, who, resources.chunk)
        else:
            found = losses(context.task, answer, state.clusters, state.shared, federation, who, resources)
        if joined:
            used = metrics.sizes(state.labels, found.shape[1]) > 0
            found = jnp.where(used | ~used.any(), found, jnp.inf)
        return nearest_of(found)

    return nearest


def nearest_of(costs: Array) -> Array:
    """The cluster of the least cost [..., k] for every client, which is never one whose cost is NaN. [...] int32"""
    return jnp.where(jnp.isnan(costs), jnp.inf, costs).argmin(-1).astype(jnp.int32)


def with_newcomers(
    place: Callable[[State, Array, Federation], Array],
    state: State,
    cohort: Cohort,
    federation: Federation,
    grouped: Array | bool = False,
) -> State:
    """The state after a cohort's newcomers joined the clusters that `place(state, who [s], federation)` returns.

    Clients without a label are newcomers.

    Args:
        grouped: whether clients that take part for the first time are newcomers too. [] bool
    """
    first = ~state.seen[cohort.who] & grouped
    new = cohort.present & (first | (state.labels[cohort.who] < 0))  # [s]

    def placed(state: State) -> State:
        labels = jnp.where(new, place(state, cohort.who, federation), state.labels[cohort.who])
        return state.replace(labels=state.labels.at[cohort.who].set(labels))

    return jax.lax.cond(new.any(), placed, lambda state: state, state)


def losses(
    task: Task,
    answer: LogitsFunction,
    clusters: Models,
    shared: Model,
    federation: Federation,
    who: Array,
    resources: Resources,
) -> Array:
    """The mean loss of every cluster's model on the training data of the different clients `who` [s]. [s, k]"""

    def of_rows(fixed: tuple[Models, Model, Federation], row: Array) -> Array:
        clusters, shared, federation = fixed
        x, y = chunks.model_inputs(federation, row), federation.y[row]
        return jax.lax.map(lambda model: task.loss(answer(model, shared, x), y), clusters).T  # [r, k]

    fixed, split = (clusters, shared, federation), federation.train
    each, first = chunks.over_examples(of_rows, fixed, split, who, resources.rows, resources.devices)  # [p, k]

    def mean(args: tuple[Array, Array]) -> Array:
        first, size = args
        position = jnp.arange(split.width)
        return jax.vmap(mean_of_rows, (-1, None))(each[first + position], position < size)  # [k]

    return jax.lax.map(mean, (first, split.size[who]), batch_size=resources.chunk)
