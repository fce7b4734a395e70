"""Cohesion of clusters, no true group known: gradients, models and losses inside clusters and between them."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike

from jcfl.metrics.ratios import ratio, valid, weighted_mean
from jcfl.types import Array


def sizes(labels: ArrayLike, k: int, mask: ArrayLike = True) -> Array:  # [m] -> [k]
    """The number of clients in every cluster (Ma 2023, Figures 7.3 and 7.4).

    Args:
        labels: the cluster of every client; a client whose label is not in [0, k), such as -1, is left out. [m] int
        k: the number of cluster slots.
        mask: false for further clients that are left out. [m] bool or a scalar

    Returns:
        The numbers, 0 for an empty cluster. [k] int32
    """
    labels = jnp.asarray(labels, jnp.int32)
    kept = valid(labels, k) & jnp.asarray(mask, bool)
    return jnp.zeros(k, jnp.int32).at[labels].add(kept.astype(jnp.int32), mode="drop")


def clusterability(gradients: ArrayLike, labels: ArrayLike, weights: ArrayLike, k: int) -> Array:
    """The clusterability B of every cluster: the largest distance of a client's gradient from the mean gradient.

    Ma (2023), Definition 3.4.7 and Equation 3.18.

    Args:
        gradients: the gradient of every client at its own model. [m, p]
        labels: the cluster of every client, -1 for none. [m]
        weights: ψ, the number of training examples; clients with none are left out. [m]
        k: the number of cluster slots.

    Returns:
        B, the distance divided by the mean gradient's norm. 0 for equal gradients, infinite where only the mean
        gradient is zero, NaN for an empty cluster. [k] float
    """
    apart = apart_from_mean(gradients, labels, weights, k)
    spread = jnp.full(k, -1.0).at[apart.slot].max(apart.distance, mode="drop")
    bound = jnp.where(spread == 0, 0.0, spread / apart.length)
    return jnp.where(spread < 0, jnp.nan, bound)


def gradient_diversity(gradients: ArrayLike, labels: ArrayLike, weights: ArrayLike, k: int) -> Array:
    """δ² of every cluster: the mean squared distance of a client's gradient from the mean gradient, by ψ.

    Ma (2023), Assumption 7.3.3.

    Deviations:
        The thesis prints the distance between gradients at a client's and at the server's copy of the global model. It
        takes the assumption from Pillutla et al. (2022), where it is the distance from the mean gradient, as here.

    Args:
        gradients: the gradient of every client at its cluster's model. [m, p]
        labels, weights, k: as for `clusterability`.

    Returns:
        δ², at least 0; NaN for an empty cluster. [k] float
    """
    apart = apart_from_mean(gradients, labels, weights, k)
    found = jnp.zeros(k).at[apart.slot].add(apart.share * apart.distance**2, mode="drop")
    return jnp.where(jnp.zeros(k).at[apart.slot].add(1.0, mode="drop") > 0, found, jnp.nan)


class Apart(NamedTuple):
    """How far the clients' gradients are from the mean gradient of their cluster."""

    slot: Array  # [m] the client's cluster; k for a client that is left out
    share: Array  # [m] of the cluster's examples
    distance: Array  # [m]
    length: Array  # [k] the norm of the mean gradient


def apart_from_mean(gradients: ArrayLike, labels: ArrayLike, weights: ArrayLike, k: int) -> Apart:
    """The distances of clients' gradients [m, p] from their cluster's mean; clients without weight are left out."""
    gradients, labels = jnp.asarray(gradients), jnp.asarray(labels, jnp.int32)
    kept = valid(labels, k) & (jnp.asarray(weights) > 0)
    weights = jnp.where(kept, weights, 0)
    slots = jnp.where(kept, labels, k)  # slot k does not exist, so its rows are dropped
    total = jnp.zeros(k).at[slots].add(weights, mode="drop")
    share = ratio(weights, total[labels])
    parts = jnp.where(kept[:, None], share[:, None] * gradients, 0)
    mean = jnp.zeros((k, gradients.shape[1])).at[slots].add(parts, mode="drop")
    return Apart(slots, share, jnp.linalg.norm(mean[labels] - gradients, axis=-1), jnp.linalg.norm(mean, axis=-1))


def learning_objective(losses: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> Array:  # [m], [m], [m] -> []
    """The learning objective 𝓕: the mean loss of clients under their cluster's model, weighted by ψ.

    Ma (2023), Equation 3.3a.

    Args:
        losses: the loss of every client under its cluster's model; it may be NaN where the client is left out. [m]
        labels: the cluster of every client; one of -1 is left out. [m] int
        weights: ψ, the number of training examples; clients with none are left out. [m]

    Returns:
        The mean, in the loss's unit; NaN if no client is left. [] float
    """
    return weighted_mean(jnp.asarray(losses), jnp.where(jnp.asarray(labels) >= 0, weights, 0))


def clustering_objective(vectors: ArrayLike, centres: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> Array:
    """The clustering objective 𝒞: the mean squared distance of clients to their cluster's centre.

    Ma (2023), Equations 3.3b and 3.4.

    Args:
        vectors: the vector that represents every client, such as its model. [m, p]
        centres: the vector that represents every cluster. [k, p]
        labels: the cluster of every client; one of -1 is left out. [m] int
        weights: ψ, the number of training examples; clients with none are left out. [m]

    Returns:
        The mean, at least 0; NaN if no client is left. [] float
    """
    labels = jnp.asarray(labels, jnp.int32)
    distances = jnp.square(jnp.asarray(vectors) - jnp.asarray(centres)[labels]).sum(-1)
    return learning_objective(distances, labels, weights)


def cluster_gram(gram: ArrayLike, labels: ArrayLike, k: int) -> Array:  # [m, m], [m] -> [k, k]
    """Inner products of the clusters' sums of vectors, from those of the clients.

    The vector of a client is whatever describes it, such as its model or its gradient.

    Args:
        gram: the inner product of every two clients' vectors. [m, m]
        labels: the cluster of every client; a client whose label is not in [0, k), such as -1, is left out. [m] int
        k: the number of cluster slots.

    Returns:
        The inner product of every two clusters' sums, 0 for an empty cluster. [k, k] float
    """
    labels = jnp.asarray(labels, jnp.int32)
    slots = jnp.where(valid(labels, k), labels, k)  # slot k does not exist, so its rows are dropped
    rows = jnp.zeros((k, labels.size)).at[slots].add(gram, mode="drop")
    return jnp.zeros((k, k)).at[:, slots].add(rows, mode="drop")


def objective(inner: ArrayLike, live: ArrayLike) -> Array:  # [k, k], [k] -> []
    """The sum of cosines over pairs of live clusters, from inner products of the clusters' sums or means.

    This is the objective of StoCFL (Zeng et al. 2023, https://arxiv.org/abs/2303.00897, Equation 2).

    Args:
        inner: the inner product of every two clusters' sums or means, such as `cluster_gram` returns. [k, k]
        live: the clusters that count, usually those with clients. [k] bool

    Returns:
        The sum, each pair once, so at most k (k - 1) / 2 in size; 0 with fewer than two live clusters. A cosine with a
        zero vector is 0. [] float
    """
    live = jnp.asarray(live)
    return jnp.where(jnp.triu(live[:, None] & live, 1), cosine(jnp.asarray(inner)), 0).sum()


def within_between(gram: ArrayLike, labels: ArrayLike, k: int) -> tuple[Array, Array]:  # [m, m], [m] -> [], []
    """The mean cosine of two clients of one cluster, and of two clusters' centres (Ma 2023, Figure 3.4).

    A cosine with a zero vector is 0, and every pair counts once.

    Args:
        gram: the inner product of every two clients' vectors, such as models. [m, m]
        labels: the cluster of every client; a client whose label is not in [0, k), such as -1, is left out. [m] int
        k: the number of cluster slots.

    Returns:
        The mean cosine over pairs of clients in one cluster, and that over pairs of clusters that have clients. Both
        are in [-1, 1], and NaN if there is no such pair. [] float, [] float
    """
    gram, labels = jnp.asarray(gram), jnp.asarray(labels, jnp.int32)
    within = weighted_mean(cosine(gram), pairs_within(labels, k))
    live = sizes(labels, k) > 0
    return within, weighted_mean(cosine(cluster_gram(gram, labels, k)), jnp.triu(live[:, None] & live, 1))


def least_within(gram: ArrayLike, labels: ArrayLike, k: int) -> Array:  # [m, m], [m] -> []
    """The least cosine of two clients of one cluster (Ma 2023, Figure 3.4).

    Args:
        gram, labels, k: as for `within_between`.

    Returns:
        A cosine in [-1, 1], over all clusters; NaN if no cluster has two clients. [] float
    """
    gram, labels = jnp.asarray(gram), jnp.asarray(labels, jnp.int32)
    pairs = pairs_within(labels, k)
    return jnp.where(pairs.any(), jnp.min(jnp.where(pairs, cosine(gram), jnp.inf)), jnp.nan)


def pairs_within(labels: Array, k: int) -> Array:  # [m] -> [m, m]
    """Whether two clients are in one cluster; each pair once, above the diagonal."""
    return jnp.triu((labels[:, None] == labels) & valid(labels, k), 1)


def cosine(gram: Array) -> Array:
    """Cosines from inner products; those with a zero vector are 0."""
    length = jnp.sqrt(jnp.maximum(jnp.diagonal(gram), 0))
    return ratio(gram, length[:, None] * length, empty=0.0)
