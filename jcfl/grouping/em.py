"""The soft groups: "em" of FedEM (Marfoq et al. 2021), and "rc" of FedRC (Guo et al. 2024)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jcfl.core.context import Context
from jcfl.core.method import Method
from jcfl.core.neutral import Every, grouping_of
from jcfl.core.soft import SoftGroup
from jcfl.grouping.losses import Clusters, Itself, Losses, expect, least_loss, refuse_more_clusters_than_clients
from jcfl.registry import register
from jcfl.types import Array, Cohort, Federation, Grouping, Key, State

COUNTS = "label_counts"
"""What is kept of a client with the group "rc": the weights of its examples, summed by cluster and class. [k, c]"""

LEAST = 1e-8
"""The least weight of a class in a cluster, in examples, so that its logarithm is finite; as in the authors' code."""


@register("group", "em")
@dataclass(frozen=True, kw_only=True)
class Responsibilities(SoftGroup):
    """An example belongs to each cluster by a responsibility; a client's label is its largest membership (FedEM)."""

    name: ClassVar[str] = "em"
    clusters: Clusters = 3

    def slots(self, context: Context) -> int:
        """K."""
        return self.clusters

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Labels come from the membership that clients keep; see `jcfl.core.soft`."""
        expect(method, "describe", (Losses,), "weighs examples by the losses of the cluster models")
        expect(method, "compare", (Itself,), "compares losses as they are")
        expect(method, "when", (Every,), "weighs examples anew in every round")
        refuse_more_clusters_than_clients(method, context, self.clusters)
        return grouping_of(place=least_loss(method, context, joined=False))


@register("group", "rc")
@dataclass(frozen=True, kw_only=True)
class ByLabel(Responsibilities):
    """As `em`, but a model's likelihood is divided by how frequent the example's class is in its cluster (FedRC).

    A class that many examples of a cluster have says little about the cluster, so clients are grouped by how they label
    examples, not by which classes they hold. See `jcfl.methods.fedrc`.
    """

    name: ClassVar[str] = "rc"

    def costs(self, losses: Array, y: Array, memory: Any) -> Array:
        """−log of p(y | x; Θ_k) / p(y; k): the loss plus the logarithm of the class's share of cluster k. [n, k]"""
        return losses + jnp.log(memory)[:, y].T

    def report(self, q: Array, y: Array, own: Mapping[str, Any]) -> dict[str, Any]:
        """The weights of the client's examples, summed by cluster and class. [k, c]"""
        return {COUNTS: q.T @ jax.nn.one_hot(y, own[COUNTS].shape[-1], dtype=own[COUNTS].dtype)}

    def keeps(self, method: Method, context: Context) -> dict[str, Callable[[Any], Any]]:
        """What each client reported last; zeros before it first takes part."""
        return {COUNTS: lambda first: jnp.zeros((self.clusters, context.population.classes))}

    def grouping(self, method: Method, context: Context) -> Grouping:
        """The server adds up what all clients reported last, and sends the shares of classes with the models."""

        def told(state: State) -> State:
            return state.replace(memory=class_shares(state.clients[COUNTS].sum(0)))

        def before(key: Key, state: State, cohort: Cohort, federation: Federation) -> State:
            return told(state)

        return super().grouping(method, context)._replace(init=lambda state, federation: told(state), before=before)


def class_shares(counts: Array) -> Array:
    """The share of every class in each cluster; all alike in a cluster without examples. [k, c] -> [k, c]"""
    counts = jnp.maximum(counts, LEAST)
    return counts / counts.sum(-1, keepdims=True)
