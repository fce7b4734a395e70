"""The answers to "compare": how alike two descriptions are.

A comparison of descriptions (`Distances`) implements `metric(context, describe)`, the distance of points to centres for
K-means. The other groups use `distance(context, describe)`, a function `(points [a, ...], others [b, ...]) -> [a, b]`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from pydantic import Field

from jcfl import trees
from jcfl.core import returned
from jcfl.core.aggregates import Sigma
from jcfl.core.chain import chain
from jcfl.core.context import Context
from jcfl.core.matching import matched_distance
from jcfl.core.method import Compare, Describe
from jcfl.errors import InputError, lacks, named
from jcfl.grouping import kmeans, moments, subspace, svd
from jcfl.grouping.describe import LabelCounts, OfData, Subspace, TrainedModel
from jcfl.grouping.kernels import layer_distance
from jcfl.registry import register
from jcfl.types import Array, Models

Metric = kmeans.Metric | kmeans.Distance
Distance = Callable[[Array, Array], Array]


@dataclass(frozen=True, kw_only=True)
class Distances(Compare):
    """A comparison by a distance between vectors."""

    averages: ClassVar[bool] = True  # whether the mean of some descriptions can be compared as they are

    def metric(self, context: Context, describe: Describe) -> Metric:
        """The metric for K-means: a name that it knows, or a function of points [n, d] and centres [k, d]."""
        raise lacks(self, "metric")

    def distance(self, context: Context, describe: Describe) -> Distance:
        """`(points [a, ...], others [b, ...]) -> [a, b]`."""
        metric = self.metric(context, describe)
        return lambda points, others: kmeans.distances(points, others, metric)

    def prepared(self, points: Array, present: Array) -> Array:
        """The descriptions of all clients in the form in which they are compared. [n, ...] -> [n, ...]

        The form may depend on all of them, so it cannot be had of a single description, nor of a cluster model.
        """
        return points

    @property
    def compares_as_they_are(self) -> bool:
        """Whether descriptions are compared in the form in which they are made."""
        return type(self).prepared is Distances.prepared


@register("compare", "cosine")
@dataclass(frozen=True, kw_only=True)
class Cosine(Distances):
    """One minus the cosine of two vectors."""

    name: ClassVar[str] = "cosine"

    def metric(self, context: Context, describe: Describe) -> Metric:
        """See `jcfl.grouping.kmeans.cosine`."""
        return "cosine"


@register("compare", "noise_corrected")
@dataclass(frozen=True, kw_only=True)
class NoiseCorrectedCosine(Cosine):
    """The cosine with lengths corrected for sampling noise, from gradients of two halves of the data (ours).

    A client takes the gradients g₁ and g₂ of two random halves of its examples. Its description is Ψ = (g₁ + g₂) / s
    with s = ‖g₁ + g₂‖. In the length of a cluster's vector, 4⟨g₁, g₂⟩ / s², clipped to [0.05, 1], takes the place of
    ‖Ψ‖² = 1. The gradients of few examples are noisy, and a plain cosine of two clients of one group is then small.
    """

    name: ClassVar[str] = "noise_corrected"
    corrected: ClassVar[bool] = True


@register("compare", "l1")
@dataclass(frozen=True, kw_only=True)
class L1(Distances):
    """The sum of absolute differences (Bhattacharya and Aridi, eq. 8)."""

    name: ClassVar[str] = "l1"

    def metric(self, context: Context, describe: Describe) -> Metric:
        """See `jcfl.grouping.kmeans.l1`."""
        return "l1"


@register("compare", "l2")
@dataclass(frozen=True, kw_only=True)
class L2(Distances):
    """The Euclidean distance; K-means takes its square."""

    name: ClassVar[str] = "l2"

    def metric(self, context: Context, describe: Describe) -> Metric:
        """See `jcfl.grouping.kmeans.euclidean`."""
        return "euclidean"

    def distance(self, context: Context, describe: Describe) -> Distance:
        """The distance itself, not its square."""
        return lambda points, others: jnp.sqrt(kmeans.euclidean(points, others))


def both_directions(distance: Distance) -> Distance:
    """The mean of a distance of points from others and of others from points, which is symmetric."""
    return lambda points, others: (distance(points, others) + distance(others, points).T) / 2


@register("compare", "kl")
@dataclass(frozen=True, kw_only=True)
class KullbackLeibler(Distances):
    """The Kullback-Leibler divergence of two clients' shares of classes; from a cluster's mean shares in K-means.

    Between two clients it is the mean of both directions, so that it is symmetric. K-means with it finds the mean of
    the members as the best centre (Banerjee et al. 2005, https://www.jmlr.org/papers/v6/banerjee05b.html).
    """

    name: ClassVar[str] = "kl"
    smoothing: Annotated[
        float, Field(gt=0, lt=1, description="share of the uniform distribution that is mixed in, so that none is 0")
    ] = 0.01

    def metric(self, context: Context, describe: Describe) -> Metric:
        """The divergence of points from centres.

        Raises:
            InputError: descriptions are not shares of classes.
        """
        if not isinstance(describe, LabelCounts):
            raise InputError(
                f"compare 'kl' compares shares of classes; set method.describe=labels, got {describe.name!r}"
            )

        def divergence(points: Array, centres: Array) -> Array:
            p, q = (
                self.smoothing / rows.shape[1] + (1 - self.smoothing) * moments.as_shares(rows)
                for rows in (points, centres)
            )
            return (p * jnp.log(p)).sum(1)[:, None] - jnp.matmul(p, jnp.log(q).T, precision=trees.EXACT)

        return divergence

    def distance(self, context: Context, describe: Describe) -> Distance:
        """The mean of both directions."""
        return both_directions(super().distance(context, describe))


@register("compare", "svd_cosine")
@dataclass(frozen=True, kw_only=True)
class DecomposedCosine(L2):
    """The Euclidean distance of cosines with the leading singular directions (Duan et al. 2021, FedGroup)."""

    name: ClassVar[str] = "svd_cosine"
    rank: Annotated[int, Field(ge=1, description="singular directions")] = 4

    def prepared(self, points: Array, present: Array) -> Array:
        """Cosines with the leading right singular directions of all descriptions. [n, rank]"""
        return svd.decomposed(points, present, self.rank)


@register("compare", "principal_angles")
@dataclass(frozen=True, kw_only=True)
class PrincipalAngles(Distances):
    """Angles in degrees between the subspaces of two clients' data (Vahidian et al. 2023, PACFL)."""

    name: ClassVar[str] = "principal_angles"
    averages: ClassVar[bool] = False
    kind: Annotated[subspace.Angle, Field(description="which of the angles")] = "smallest"

    def metric(self, context: Context, describe: Describe) -> Metric:
        """The angles of points to centres.

        Raises:
            InputError: descriptions are not subspaces.
        """
        if not isinstance(describe, Subspace):
            raise InputError(
                f"compare 'principal_angles' compares subspaces; set method.describe=subspace, got {describe.name!r}"
            )
        return lambda points, centres: subspace.principal_angles(points, centres, self.kind)


@register("compare", "layer")
@dataclass(frozen=True, kw_only=True)
class LayerDistance(Distances):
    """L1 distances of convolution kernels to the other model's nearest, summed (Bhattacharya and Aridi, eq. 9)."""

    name: ClassVar[str] = "layer"

    def metric(self, context: Context, describe: Describe) -> Metric:
        """The distance on flattened kernels.

        Raises:
            InputError: descriptions are not convolution kernels.
        """
        if not (isinstance(describe, TrainedModel) and describe.part in ("kernels", "first_kernel")):
            raise InputError(
                "compare 'layer' compares convolution kernels; set method.describe={name: model, part: kernels}"
            )
        kernels = jax.eval_shape(lambda: describe.represent(context)(context.task.init(jax.random.key(0))))
        return layer_distance([kernel.shape for kernel in kernels])

    def distance(self, context: Context, describe: Describe) -> Distance:
        """The mean of both directions, which is symmetric."""
        return both_directions(super().distance(context, describe))


@register("compare", "matched")
@dataclass(frozen=True, kw_only=True)
class MatchedDistance(Distances):
    """The squared distance after hidden neurons were matched, whatever their order (Xie et al. 2020, §5.1)."""

    name: ClassVar[str] = "matched"
    sigma: Sigma = 1.0

    def metric(self, context: Context, describe: Describe) -> Metric:
        """The distance on flattened models.

        Raises:
            InputError: descriptions are not whole models, or the network is not a chain of layers.
        """
        if not (isinstance(describe, TrainedModel) and describe.part == "whole"):
            raise InputError(
                "compare 'matched' finds the order of hidden neurons in whole models; set method.describe=model"
            )
        layers = chain(context.task, context.population.shape)
        whole = jax.eval_shape(context.task.init, jax.random.key(0))

        def models(rows: Array) -> Models:
            """Models of vectors; only the shapes of the zeros are looked at, and none are made where this is traced."""
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), whole["params"])
            return {"params": jax.vmap(ravel_pytree(zeros)[1])(rows)}

        return lambda points, centres: matched_distance(models(points), models(centres), layers, sigma=self.sigma)


def comparison(compare: Compare, name: str) -> Distances:
    """The comparison, if it gives distances between descriptions.

    Raises:
        InputError: it compares nothing, or losses.
    """
    if not isinstance(compare, Distances):
        raise InputError(
            f"{name}: compare {compare.name!r} gives no distance between two descriptions; "
            f"set method.compare to cosine, l1, l2, …"
        )
    return compare


def distances(compare: Distances, context: Context, describe: Describe) -> Distance:
    """The distance of a comparison; see `checked`."""
    return checked(compare, named(f"compare {compare.name!r}", compare.distance)(context, describe))


def metric(compare: Distances, context: Context, describe: Describe) -> Metric:
    """The metric of a comparison for K-means; see `checked`."""
    found = named(f"compare {compare.name!r}", compare.metric)(context, describe)
    return checked(compare, found) if callable(found) else found


def checked(compare: Distances, between: Distance) -> Distance:
    """A comparison's function of points and others, its results checked.

    Raises:
        InputError: when it is traced, if it does not return a number for every pair.
    """
    name = f"compare {compare.name!r}"
    between = named(name, between)

    def found(points: Array, others: Array) -> Array:
        return returned.array(between(points, others), (points.shape[0], others.shape[0]), [returned.FLOATS], name)

    return found


def prepared(compare: Distances, points: Array, present: Array) -> Array:
    """The descriptions of all clients in the form in which they are compared, checked. [n, ...] -> [n, ...]

    Raises:
        InputError: when it is traced, if there is no row for each client.
    """
    name = f"compare {compare.name!r}: prepared"
    found = named(name, compare.prepared)(points, present)
    return returned.array(found, (points.shape[0], None, ...), [returned.FLOATS], name)


def refuse_no_mean(group: str, describe: Any, compare: Distances, name: str) -> None:
    """Refuse to average descriptions whose mean cannot be compared as they are.

    Raises:
        InputError: the descriptions have no such mean.
    """
    if isinstance(describe, OfData) and not compare.averages:
        raise InputError(
            f"{name}: group {group!r} averages descriptions, and {describe.name} have no mean under {compare.name}; "
            f"set method.group=linkage, density or spectral"
        )


def representatives(compare: Distances, points: Array, labels: Array, k: int) -> Array:
    """A description for each cluster: the mean of its members', or the first member's if there is no mean. [k, ...]"""
    member = jax.nn.one_hot(labels, k, axis=0)  # [k, n]
    if not compare.averages:
        return points[member.argmax(1)]
    flat = points.reshape(points.shape[0], -1)
    mean = jnp.matmul(member, flat, precision=trees.EXACT) / jnp.maximum(member.sum(1), 1)[:, None]
    return mean.reshape(k, *points.shape[1:])
