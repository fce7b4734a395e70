"""Averaging rules: functions that make one model for every cluster from the uploads of a round.

A rule is `rule(labels [s], weights [s], uploads [s, ...], default [k, ...]) -> [k, ...]`. A client is absent if its
weight is 0 or its label is no cluster. A cluster without clients keeps its `default`. A function with options is a rule
once `functools.partial` has bound them. Leaves keep their dtype; leaves that are not floats (counters) are averaged as
floats and rounded.

The median, the trimmed mean and the median of means use weights only to know which clients are present. A client
reports its own size, so an attacker could give itself any weight. NaN counts as larger than every number.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jcfl import trees
from jcfl.types import Array, Key, Model, Models
from jcfl.types.target import target

Averaging = Callable[[Array, Array, Models, Models], Models]
"""The type of a rule."""


def weighted_mean(labels: Array, weights: Array, uploads: Models, default: Models) -> Models:
    """The weighted mean of a cluster's clients (McMahan et al. 2017, https://arxiv.org/abs/1602.05629).

    Args:
        labels: every client's cluster. [s] int
        weights: every client's weight, at least 0. [s] float
        uploads: the clients' models. [s, ...]
        default: the models that clusters without clients keep. [k, ...]

    Returns:
        the clusters' models. [k, ...]
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    return trees.select(sizes(group, k) > 0, mean_by(group, weights, uploads, default), default)


def median(labels: Array, weights: Array, uploads: Models, default: Models) -> Models:
    """The coordinate-wise median of a cluster's clients, unweighted.

    Yin et al. 2018, Def. 1, https://arxiv.org/abs/1803.01498. For an even number of clients it is the mean of the two
    values in the middle.

    Args, Returns:
        as for `weighted_mean`; weights only say which clients are present.
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    n, first = sizes(group, k), starts(group, k)
    last = group.size - 1
    lower = jnp.minimum(first + jnp.maximum(n - 1, 0) // 2, last)
    upper = jnp.minimum(first + n // 2, last)

    def middle(leaf: Array, kept: Array) -> Array:
        ranked = sorted_by(group, leaf)
        return trees.rounded(ranked[lower] * 0.5 + ranked[upper] * 0.5, kept)

    return trees.select(n > 0, jax.tree.map(middle, uploads, default), default)


def trimmed_mean(labels: Array, weights: Array, uploads: Models, default: Models, *, beta: float = 0.1) -> Models:
    """The coordinate-wise mean without the smallest and the largest values, unweighted (Yin et al. 2018, Def. 2).

    In a cluster of n clients, the ⌊beta·n⌋ smallest and the ⌊beta·n⌋ largest values of every coordinate are dropped.
    With beta = 0 this is the unweighted mean.

    Args, Returns:
        as for `weighted_mean`; weights only say which clients are present. `beta` lies in [0, 0.5) and may be a traced
        scalar.
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    n, first = sizes(group, k), starts(group, k)
    dropped = jnp.minimum(trees.number_of(beta, n), jnp.maximum(n - 1, 0) // 2)  # [k]

    row = jnp.arange(group.size)
    owner = jnp.sort(group)  # [s], the cluster of every row of sorted leaves
    near = jnp.minimum(owner, k - 1)
    rank = row - first[near]
    inside = (owner < k) & (rank >= dropped[near]) & (rank < (n - dropped)[near])
    ranked = jax.tree.map(lambda leaf: sorted_by(group, leaf), uploads)
    return trees.select(n > 0, mean_by(jnp.where(inside, owner, k), inside * 1.0, ranked, default), default)


def median_of_means(labels: Array, weights: Array, uploads: Models, default: Models, *, buckets: int = 5) -> Models:
    """The coordinate-wise median of the means of buckets of clients, unweighted (Ma 2023, §2.4).

    A cluster's clients are put into its buckets in turn, in the order of the uploads. A cluster with fewer clients than
    buckets has one bucket for each client. With one bucket this is the unweighted mean; with as many buckets as clients
    it is the median.

    Args, Returns:
        as for `weighted_mean`; weights only say which clients are present. `buckets` is at least 1.

    Deviations:
        The thesis cites the bootstrap, which draws buckets at random: `bootstrap_median_of_means`.
    """
    k, s = trees.count(default), labels.size
    group = present_labels(labels, weights, k)
    used = jnp.minimum(sizes(group, k), buckets)  # [k] buckets that hold clients; at most s of them in all
    near = jnp.minimum(group, k - 1)
    rank = jnp.zeros(s, int).at[jnp.argsort(group)].set(jnp.arange(s)) - starts(group, k)[near]
    place = jnp.where(group < k, (jnp.cumsum(used) - used)[near] + rank % jnp.maximum(used[near], 1), s)  # [s]
    filled = sizes(place, s) > 0
    owner = jnp.full(s, k).at[place].set(group, mode="drop")  # [s], the cluster of every bucket
    uploads = jax.tree.map(as_floats, uploads)
    means = mean_by(place, jnp.ones(s), uploads, uploads)
    return median(owner, filled * 1.0, means, default)


def bootstrap_median_of_means(
    labels: Array, weights: Array, uploads: Models, default: Models, *, key: Key, buckets: int = 15, size: int = 3
) -> Models:
    """The coordinate-wise median of the means of buckets of clients drawn with replacement, unweighted.

    Ma 2023, §2.4; Brunet-Saumard et al. 2022 (K-bMOM, Computational Statistics & Data Analysis 167). Every bucket of a
    cluster holds `size` of its clients, drawn uniformly with replacement. A bucket is sound if none of them is hostile.
    Small buckets therefore withstand more hostile clients than dealt ones, as long as most buckets are sound.

    Args, Returns:
        as for `weighted_mean`; weights only say which clients are present. `key` draws the buckets of every cluster.

    Deviations:
        The median is taken coordinate by coordinate. K-bMOM takes the bucket of the median risk.
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)

    def of_cluster(cluster: Array) -> Model:
        n, members = (group == cluster).sum(), jnp.argsort(group != cluster, stable=True)
        drawn = members[jax.random.randint(jax.random.fold_in(key, cluster), (buckets, size), 0, jnp.maximum(n, 1))]
        means = lax.map(lambda who: jax.tree.map(lambda leaf: as_floats(leaf)[who].mean(0), uploads), drawn)
        kept = trees.take(default, cluster[None])
        center = lambda: median(jnp.zeros(buckets, jnp.int32), jnp.ones(buckets), means, kept)
        return trees.take(lax.cond(n > 0, center, lambda: kept), 0)

    return lax.map(of_cluster, jnp.arange(k))


def present_labels(labels: Array, weights: Array, k: int) -> Array:
    """Every client's cluster, and k for clients that are absent or in no cluster. [s] int"""
    return jnp.where((weights > 0) & (labels >= 0) & (labels < k), labels, k)


def sizes(group: Array, k: int) -> Array:
    """The number of clients of every cluster. [s] -> [k] int"""
    return jnp.zeros(k, int).at[group].add(1, mode="drop")


def starts(group: Array, k: int) -> Array:
    """The first row of every cluster among rows that are sorted by cluster. [s] -> [k] int"""
    size = sizes(group, k)
    return jnp.cumsum(size) - size


def sorted_by(group: Array, leaf: Array) -> Array:
    """Each coordinate's values, sorted by cluster and then by value. [s, ...] -> [s, ...]

    A cluster therefore has the same rows in all coordinates, and one sort serves all clusters.
    """
    keys = jnp.broadcast_to(trees.wide(group, leaf), leaf.shape)
    return lax.sort((keys, as_floats(leaf)), dimension=0, is_stable=False, num_keys=2)[1]


def mean_by(group: Array, weights: Array, rows: Models, like: Models) -> Models:
    """The weighted mean of every cluster's rows, in the dtypes of `like` [k, ...]; zero for a cluster without rows."""
    k = trees.count(like)
    share = shares(group, weights, k)
    return jax.tree.map(lambda leaf, kept: trees.rounded(sum_by(group, share, leaf, k), kept), rows, like)


def mean_by_entry(group: Array, weights: Models, rows: Models, kept: Models) -> Models:
    """The mean of every entry of a cluster's rows, by a weight for each entry. [s, ...] -> [k, ...]

    Args:
        group: every row's cluster; k for a row that is absent. [s] int
        weights: every entry's weight, at least 0. An axis of length 1 stands for all its entries. [s, ...]
        rows: an entry of weight 0 may be any number, NaN too. [s, ...]
        kept: what an entry becomes if all its weights are 0; its dtypes are those of the means. [k, ...]
    """

    def mean(weight: Array, leaf: Array, old: Array) -> Array:
        add = lambda part: sum_by(group, jnp.ones(group.shape), part, old.shape[0])
        total = add(weight)
        means = add(jnp.where(weight > 0, leaf * weight, 0.0)) / jnp.where(total > 0, total, 1.0)
        return trees.rounded(jnp.where(total > 0, means, old), old)

    return jax.tree.map(mean, weights, rows, kept)


def shares(group: Array, weights: Array, k: int) -> Array:
    """Weights [s] as shares of their clusters' totals; zero for rows in no cluster (a `group` of k or more). [s]"""
    weights = jnp.where(group < k, weights, 0.0)
    total = jnp.zeros(k, weights.dtype).at[group].add(weights, mode="drop")
    return weights / jnp.where(total > 0, total, 1.0)[jnp.minimum(group, k - 1)]


def sum_by(group: Array, weights: Array, leaf: Array, k: int) -> Array:
    """The weighted sum of every cluster's rows. [s, ...] -> [k, ...]

    The sums are matrix products, in which a number that is not finite would also spoil the other clusters (0 · ∞ is
    NaN). Such numbers are therefore left out of the products, and only their own cluster's sum becomes NaN.
    """
    here, near, leaf = group < k, jnp.minimum(group, k - 1), as_floats(leaf)
    zero = jnp.zeros((k, *leaf.shape[1:]), jnp.result_type(leaf, weights))

    def finite() -> Array:
        return trees.add_by(zero, near, jnp.where(here, weights, 0.0), leaf)

    def apart() -> Array:
        rows = jnp.where(trees.wide(here, leaf), leaf, 0.0)
        good = jnp.isfinite(rows)
        sums = trees.add_by(zero, near, weights, jnp.where(good, rows, 0.0))
        spoilt = trees.add_by(zero, near, here * 1.0, (~good).astype(zero.dtype)) > 0
        return jnp.where(spoilt, jnp.nan, sums)

    # A GPU would have to get the condition from the host, and reads the rows faster than it waits for that.
    return lax.cond(trees.finite(leaf).all(), finite, apart) if target().is_cpu else apart()


def zeros_for(rows: Models, k: int) -> Models:
    """Zeros for k clusters, in the shapes and dtypes of the rows. [s, ...] -> [k, ...]"""
    return jax.tree.map(lambda leaf: jnp.zeros((k, *leaf.shape[1:]), leaf.dtype), rows)


def as_floats(leaf: Array) -> Array:
    """A leaf as floats; a leaf of floats is returned as it is."""
    return leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.asarray(leaf, jnp.result_type(float))
