"""The answers to "group" that cluster all clients at a time: K-means, linkage, spectral, density, greedy merging."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from jcfl import trees
from jcfl.core import onhost
from jcfl.core.context import Context
from jcfl.core.method import Mean, Method
from jcfl.core.neutral import Every
from jcfl.errors import InputError
from jcfl.grouping import density, kmeans, linkage, spectral
from jcfl.grouping.batch import Clustering, Labels, Nearest
from jcfl.grouping.compare import L2, Distances, distances, metric, refuse_no_mean
from jcfl.grouping.describe import TrainedModel
from jcfl.grouping.losses import AUTO, Clusters, refuse_more_clusters_than_clients
from jcfl.grouping.when import Once, Window
from jcfl.registry import register
from jcfl.types import Array, Models

REACH = 100
"""The most updates of the centres in a run of K-means from new seeds."""

Empty = Annotated[
    Literal["refill", "keep"],
    Field(description="an empty cluster takes the farthest client, or keeps its model and stays empty"),
]
Capacity = Annotated[int, Field(ge=1, description="largest number of clusters, if it is not given")]
Count = Annotated[
    int | None, Field(ge=1, description="number of clusters; give this or a threshold", json_schema_extra=AUTO)
]
Threshold = Annotated[
    float | None,
    Field(
        ge=0, description="distance at which merging stops", json_schema_extra={"auto": "cut", "merges_more": "larger"}
    ),
]


@register("group", "kmeans")
@dataclass(frozen=True, kw_only=True)
class KMeans(Clustering):
    """K-means and its relatives: k-medians, k-medoids, trimmed K-means."""

    name: ClassVar[str] = "kmeans"
    clusters: Clusters = 4
    restarts: Annotated[int, Field(ge=1, description="number of seedings; the best is used")] = 20
    seeding: Annotated[kmeans.Seeding, Field(description="the first centres")] = "plus_plus"
    centre: Annotated[kmeans.Centre, Field(description="of a cluster's descriptions")] = "mean"
    trim: Annotated[float, Field(ge=0, lt=0.5, description="fraction of a cluster's clients that do not count")] = 0.0
    iterations: Annotated[
        int | None,
        Field(
            ge=1,
            description="if clients are grouped once: the most updates of the centres (null: until they stay); if in "
            "every round: assignments a round (null: one), and after new seeds always until the centres stay",
        ),
    ] = None
    refit: Annotated[bool, Field(description="start from new seeds in each round, not from the cluster models")] = False
    empty: Empty = "refill"

    def slots(self, context: Context) -> int:
        """K."""
        return self.clusters

    @property
    def refills(self) -> bool:
        """Whether an empty cluster takes a client."""
        return self.empty == "refill"

    def refilled(self, labels: Array, present: Array, own: Array) -> Array:
        """Labels [m] after empty clusters got a client each, unless they stay empty; see `kmeans.refilled`."""
        return kmeans.refilled(labels, present, own, self.clusters) if self.refills else labels

    def continues_from_models(self) -> bool:
        """Whether it goes on, which it does unless `refit` is set."""
        return not self.refit

    def labels(self, method: Method, context: Context, compare: Distances) -> Labels:
        """Labels from new seeds, or from given centres; every cluster has a client, unless empty ones are kept."""
        refuse_more_clusters_than_clients(method, context, self.clusters)
        if self.centre != "medoid":
            refuse_no_mean(self.name, method.describe, compare, method.name)
        between = metric(compare, context, method.describe)
        shared: Any = {"centre": self.centre, "trim": self.trim, "refill": self.refills}
        k, steps = self.clusters, self.iterations if isinstance(method.when, Once) and self.iterations else REACH

        def fitted(key, points: Array, weights: Array, present: Array, centres: Array | None) -> Array:
            of_rows = kmeans.of_rows(between, points.shape[1:])
            points = points.reshape(points.shape[0], -1)
            if centres is None:
                more = {"restarts": self.restarts, "seeding": self.seeding}
                found = kmeans.fit(key, points, weights, k, iterations=steps, metric=of_rows, **more, **shared)
            else:
                found = kmeans.lloyd(points, weights, centres, (self.iterations or 1) - 1, metric=of_rows, **shared)
            return self.refilled(found.labels, weights > 0, found.own)

        return fitted

    def nearest(self, method: Method, context: Context) -> Nearest | None:
        """One assignment a round to the means of the round before; the first clustering is the cohort's alone.

        None where later rounds update centres, or centres are not means, or clients were seen before the first round
        that groups: then all models are needed at once.
        """
        when, rule = method.when, method.aggregate.rule
        plain = (self.iterations or 1) == 1 and not self.refit and self.centre == "mean" and self.trim == 0
        first = isinstance(when, Every) or (isinstance(when, Window) and when.first == 0)
        if not (plain and first and isinstance(rule, Mean) and not method.before):
            return None
        compare, describe = method.compare, method.describe
        if not isinstance(describe, TrainedModel) or type(compare) is not L2:
            return None
        represent, cohort = describe.represent(context), context.population.cohort

        def matrices(models: Models) -> list[Array]:
            """What is compared, a matrix [c, d_i] for each array of a model: no vectors are made of whole models."""
            leaves = jax.tree.leaves(trees.for_sums(jax.vmap(represent)(models)))
            return [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]

        def labels(key, models: Models, weights: Array, present: Array, grouped: Array, clusters: Models) -> Array:
            def fitted() -> list[Array]:
                who = jnp.nonzero(present, size=cohort, fill_value=-1)[0]
                points, shares = matrices(trees.take(models, who)), jnp.where(who < 0, 0, weights[who])
                options: Any = {"restarts": self.restarts, "seeding": self.seeding, "iterations": REACH}
                options |= {"refill": self.refills}
                found = kmeans.fit(key, jnp.concatenate(points, 1), shares, self.clusters, **options)
                return jnp.split(found.centres, np.cumsum([part.shape[1] for part in points])[:-1], 1)

            centres = jax.lax.cond(grouped, lambda: matrices(clusters), fitted)

            def nearest(models: Models) -> tuple[Array, Array]:
                away: Any = sum(map(kmeans.euclidean, matrices(models), centres))
                return away.argmin(1).astype(jnp.int32), away.min(1)

            found, own = onhost.over_rows(nearest, models, trees.take(clusters, 0))
            return self.refilled(found, weights > 0, own)

        return labels


@register("group", "linkage")
@dataclass(frozen=True, kw_only=True)
class Linkage(Clustering):
    """Agglomerative clustering down to a number of clusters, or while clusters are nearer than a distance."""

    name: ClassVar[str] = "linkage"
    clusters: Count = None
    threshold: Threshold = None
    kind: Annotated[linkage.Linkage, Field(description="distance of two clusters from those of their members")] = (
        "average"
    )
    capacity: Annotated[Capacity, Field(json_schema_extra={"only_with": {"threshold": None}})] = 64

    def slots(self, context: Context) -> int:
        """The number of clusters, or the capacity."""
        return self.clusters or min(self.capacity, context.population.clients)

    def labels(self, method: Method, context: Context, compare: Distances) -> Labels:
        """Labels in the order of the clusters' smallest members."""
        if (self.clusters is None) == (self.threshold is None):
            raise InputError(
                f"{method.name}: give either clusters or a distance threshold (got clusters={self.clusters}, "
                f"threshold={self.threshold})"
            )
        if self.clusters is not None:
            refuse_more_clusters_than_clients(method, context, self.clusters)
        between = distances(compare, context, method.describe)

        def fitted(key, points: Array, weights: Array, present: Array, centres: Array | None) -> Array:
            away = between(points, points)
            return linkage.agglomerate(away, present, self.kind, threshold=self.threshold, clusters=self.clusters)

        return fitted


@register("group", "spectral")
@dataclass(frozen=True, kw_only=True)
class Spectral(Clustering):
    """Normalised spectral clustering (Ng, Jordan and Weiss 2001)."""

    name: ClassVar[str] = "spectral"
    clusters: Clusters = 4
    restarts: Annotated[int, Field(ge=1, description="runs of K-means on the eigenvectors")] = 20

    def slots(self, context: Context) -> int:
        """K."""
        return self.clusters

    def labels(self, method: Method, context: Context, compare: Distances) -> Labels:
        """Labels by K-means on eigenvectors; the affinity is as wide as the median distance of clients that differ."""
        refuse_more_clusters_than_clients(method, context, self.clusters)
        between = distances(compare, context, method.describe)

        def fitted(key, points: Array, weights: Array, present: Array, centres: Array | None) -> Array:
            away = between(points, points)
            pairs = present[:, None] & present & ~jnp.eye(present.size, dtype=bool)
            width = jnp.nanmedian(jnp.where(pairs & (away > 0), away, jnp.nan))
            affinity = spectral.gaussian(away, jnp.where(width > 0, width, 1.0))
            return spectral.spectral(key, affinity, present, self.clusters, self.restarts)

        return fitted


@register("group", "density")
@dataclass(frozen=True, kw_only=True)
class Density(Clustering):
    """Density-based clustering, which finds the number of clusters (Ester et al. 1996, DBSCAN)."""

    name: ClassVar[str] = "density"
    eps: Annotated[
        float | None,
        Field(
            gt=0,
            description="radius of a neighbourhood; null: where distances bend",
            json_schema_extra={"merges_more": "larger"},
        ),
    ] = None
    min_samples: Annotated[int, Field(ge=2, description="clients in the neighbourhood of a core client")] = 3
    capacity: Capacity = 64

    def slots(self, context: Context) -> int:
        """The capacity."""
        return min(self.capacity, context.population.clients)

    def labels(self, method: Method, context: Context, compare: Distances) -> Labels:
        """Labels by `jcfl.grouping.density.dbscan`; a client that is noise is a cluster of its own."""
        between = distances(compare, context, method.describe)

        def fitted(key, points: Array, weights: Array, present: Array, centres: Array | None) -> Array:
            away = between(points, points)
            eps = density.knee(away, present, self.min_samples) if self.eps is None else self.eps
            return density.dbscan(away, present, eps, self.min_samples)

        return fitted
