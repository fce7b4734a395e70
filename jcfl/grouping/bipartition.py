"""The answer "bipartition": a cluster is split in two if its clients' updates disagree (Sattler et al. 2020, CFL)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
from pydantic import Field

from jcfl import trees
from jcfl.core import engine, server
from jcfl.core.context import Context
from jcfl.core.method import Group, Method
from jcfl.core.neutral import grouping_of
from jcfl.errors import InputError
from jcfl.grouping import linkage
from jcfl.grouping.batch import refuse_epochs
from jcfl.grouping.compare import Cosine
from jcfl.grouping.describe import Update, updates
from jcfl.grouping.labels import first_labels, served
from jcfl.grouping.losses import expect, least_loss, with_newcomers
from jcfl.grouping.merging import inverse_norm
from jcfl.grouping.when import Settled
from jcfl.registry import register
from jcfl.types import Array, Cohort, Federation, Grouping, Key, Models, State


@register("group", "bipartition")
@dataclass(frozen=True, kw_only=True)
class Bipartition(Group):
    """A cluster is split if ‖mean Δ‖ < ε1 and max ‖Δ_i‖ > ε2, it has more than two clients, and the gap is wide.

    Sattler et al. 2020, https://arxiv.org/abs/1910.01991. Linkage on −cos of the updates Δ divides the clients in two
    halves. The gap criterion is γ < √((1 − α) / 2), where α is the largest cosine of a pair with one client in each
    half. The mean is weighted as models are averaged. If a client is sampled for the first time after a split, it
    starts in the cluster whose model has the least loss on its training data.

    Deviations:
        The linkage is complete, as in the authors' code. The bipartition with the least α, which their paper calls
        optimal, is that of single linkage (`kind`). Halves are sets of client ids; a widely copied implementation
        confuses positions in the cluster with ids, which is wrong from the second split on.
    """

    name: ClassVar[str] = "bipartition"
    gamma: Annotated[float, Field(ge=0, le=1, description="gap criterion; 0 is off")] = 0.0
    kind: Annotated[Literal["complete", "single"], Field(description="linkage by which a cluster is halved")] = (
        "complete"
    )
    capacity: Annotated[int, Field(ge=1, description="largest number of clusters")] = 16

    def slots(self, context: Context) -> int:
        """The capacity."""
        return min(self.capacity, context.population.clients)

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Clusters split after a round's training."""
        expect(method, "describe", (Update,), "splits a cluster by its clients' updates", exactly=True)
        expect(method, "compare", (Cosine,), "compares updates by their cosine", exactly=True)
        expect(method, "when", (Settled,), "splits a cluster that has settled while its clients pull apart")
        refuse_epochs(method)
        if method.train.distinct:
            raise InputError(f"{method.name}: a half of a cluster begins with its model; leave train.distinct out")
        if context.population.participation < 1:
            raise InputError(
                f"{method.name} compares all clients' updates in each round: participation must be 1, "
                f"got {context.population.participation:g}"
            )
        place, weigh = least_loss(method, context), server.counting(method)
        when = method.when
        assert isinstance(when, Settled)

        def before(key: Key, state: State, cohort: Cohort, federation: Federation) -> State:
            return with_newcomers(place, state, cohort, federation, state.labels.max() > 0)

        def after(key: Key, state: State, members: Cohort, federation: Federation, models: Models) -> State:
            labels = state.labels[members.who]  # [s]
            delta = updates(models, trees.take(state.clusters, jnp.maximum(labels, 0)))  # [s, ...]
            delta = trees.where_weighted(members.present, delta)  # the uploads of absent clients need not be finite
            inner = trees.inner(delta, delta)
            weights = engine.weights_of(members, federation, weigh)
            here = weights > 0  # a client without examples sends no update, and would be unlike all others
            scale = jnp.where(state.memory[1] > 0, state.memory, jnp.stack(criterion(inner, here, weights)))
            eps1, eps2 = (when.eps1 * scale[0], when.eps2 * scale[1]) if when.relative else (when.eps1, when.eps2)
            due = state.clock >= when.min_round
            labels, parent = self.split(inner, labels, here, weights, eps1, eps2, due, state)
            return state.replace(
                labels=state.labels.at[members.who].set(labels),
                clusters=trees.take(state.clusters, parent),
                server=server.split(state.server, parent),
                memory=scale,
            )

        return grouping_of(
            init=lambda state, federation: state.replace(labels=first_labels(state, federation), memory=jnp.zeros(2)),
            before=before,
            after=after,
            place=place,
            serve=served(method),
        )

    def split(
        self,
        inner: Array,
        labels: Array,
        present: Array,
        weights: Array,
        eps1: Array | float,
        eps2: Array | float,
        due: Array,
        state: State,
    ) -> tuple[Array, Array]:
        """Labels after every cluster that meets the criteria was split in two.

        Args:
            inner: inner products of the clients' updates. [s, s]
            labels, present, weights: the clients' clusters, which of them are present, and their weights. [s] each
            due: whether clusters may be split in this round. [] bool

        Returns:
            the new labels [s] int32, and for every slot the cluster whose model it gets [k] int32.
        """
        norm = inverse_norm(jnp.diagonal(inner))
        cosine, k = inner * norm[:, None] * norm, trees.count(state.clusters)
        gamma = jnp.asarray(self.gamma)

        def one(c: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            labels, parent = carry
            member = (labels == c) & present
            mean, longest = criterion(inner, member, weights)
            half, cross = linkage.bipartition(cosine, member, self.kind)
            wide = (gamma < jnp.sqrt(jnp.maximum(1 - cross, 0.0) / 2)) | (gamma == 0)
            spare = jnp.maximum(labels.max(), state.labels.max()) + 1  # absent clients keep their clusters
            ready = (mean < eps1) & (longest > eps2) & wide & (member.sum() > 2) & (spare < k) & due
            labels = jnp.where(ready & half, spare, labels).astype(jnp.int32)
            return labels, parent.at[jnp.where(ready, spare, k)].set(parent[c], mode="drop")

        return jax.lax.fori_loop(0, labels.max() + 1, one, (labels, jnp.arange(k)))


def criterion(inner: Array, member: Array, weights: Array) -> tuple[Array, Array]:
    """‖mean Δ‖ and max ‖Δ_i‖ over some clients (Sattler et al. 2020, eqs. 4, 5).

    Args:
        inner: inner products of updates. [s, s]
        member: the clients. [s] bool
        weights: their weights in the mean. [s] float
    """
    share = jnp.where(member, weights, 0.0)
    share = share / jnp.maximum(share.sum(), 1e-30)
    mean = jnp.sqrt(jnp.maximum(jnp.einsum("i,ij,j->", share, inner, share, precision=trees.EXACT), 0.0))
    return mean, jnp.sqrt(jnp.where(member, jnp.diagonal(inner), 0.0).max())
