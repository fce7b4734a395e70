"""Rules by which the uploads of a round become one model for every cluster.

A rule is `rule(labels [s], weights [s], uploads [s, ...], default [k, ...]) -> [k, ...]`: a client of weight 0 is
absent, as is one whose label is no cluster, and a cluster without clients keeps its `default`. Every public function
is a rule once its options are bound by `functools.partial`. Leaves keep their dtype; those that are not floats
(counters) are averaged as floats and rounded.

The robust rules use weights only to tell who is present: a client states its own size, and a rule that believed it
would hand an attacker the weight that the rule is there to take away. What is not a number counts as larger than any.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jcfl import trees
from jcfl.types import Array, Model, Models

Averaging = Callable[[Array, Array, Models, Models], Models]


def weighted_mean(labels: Array, weights: Array, uploads: Models, default: Models) -> Models:
    """The weighted mean of a cluster's clients (McMahan et al. 2017).

    Args:
        labels: every client's cluster. [s] int
        weights: what every client counts, at least 0. [s]
        uploads: the clients' models. [s, ...]
        default: what the clusters without clients keep. [k, ...]

    Returns:
        the clusters' models. [k, ...]
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    return trees.select(sizes(group, k) > 0, mean_by(group, weights, uploads, default), default)


def median(labels: Array, weights: Array, uploads: Models, default: Models) -> Models:
    """The coordinate-wise median of a cluster's clients, unweighted (Yin et al. 2018, Def. 1).

    Of an even number of clients it is the mean of the two in the middle.

    Args, Returns:
        as `weighted_mean`, weights telling only who is present.
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    n, first = sizes(group, k), starts(group, k)
    last = group.size - 1
    lower = jnp.minimum(first + jnp.maximum(n - 1, 0) // 2, last)
    upper = jnp.minimum(first + n // 2, last)

    def middle(leaf: Array, kept: Array) -> Array:
        ranked = sorted_by(group, leaf)
        return rounded(ranked[lower] * 0.5 + ranked[upper] * 0.5, kept)

    return trees.select(n > 0, jax.tree.map(middle, uploads, default), default)


def trimmed_mean(labels: Array, weights: Array, uploads: Models, default: Models, *, beta: float = 0.1) -> Models:
    """The coordinate-wise mean without the smallest and the largest, unweighted (Yin et al. 2018, Def. 2).

    Of n clients the ⌊beta·n⌋ smallest and as many largest values of every coordinate are dropped; beta = 0 is the
    unweighted mean.

    Args, Returns:
        as `weighted_mean`, weights telling only who is present; beta may be a traced scalar.
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    n, first = sizes(group, k), starts(group, k)
    # beta * n may lie a rounding error below the whole number it stands for
    slack = 1 + 4 * jnp.finfo(jnp.result_type(float)).eps
    dropped = jnp.minimum(jnp.floor(beta * n * slack).astype(int), jnp.maximum(n - 1, 0) // 2)  # [k]

    row = jnp.arange(group.size)
    owner = jnp.sort(group)  # [s], the cluster of every row of sorted leaves
    near = jnp.minimum(owner, k - 1)
    rank = row - first[near]
    inside = (owner < k) & (rank >= dropped[near]) & (rank < (n - dropped)[near])
    ranked = jax.tree.map(lambda leaf: sorted_by(group, leaf), uploads)
    return trees.select(n > 0, mean_by(jnp.where(inside, owner, k), inside * 1.0, ranked, default), default)


def median_of_means(labels: Array, weights: Array, uploads: Models, default: Models, *, buckets: int = 5) -> Models:
    """The coordinate-wise median of the means of buckets of clients, unweighted (thesis, §2.4).

    A cluster's clients are dealt to its buckets in turn, in the order they come in; a cluster with fewer clients than
    buckets has one bucket for each. One bucket is the unweighted mean, as many as clients the median.

    Args, Returns:
        as `weighted_mean`, weights telling only who is present.

    Deviations:
        Buckets are dealt, not drawn at random with replacement as by the bootstrap the thesis cites: a rule has no key.
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


def present_labels(labels: Array, weights: Array, k: int) -> Array:
    """Every client's cluster, and k for those that are absent or in none. [s]."""
    return jnp.where((weights > 0) & (labels >= 0) & (labels < k), labels, k)


def sizes(group: Array, k: int) -> Array:
    """The number of clients of every cluster. [s] -> [k]."""
    return jnp.zeros(k, int).at[group].add(1, mode="drop")


def starts(group: Array, k: int) -> Array:
    """The first row of every cluster among rows sorted by cluster. [s] -> [k]."""
    size = sizes(group, k)
    return jnp.cumsum(size) - size


def sorted_by(group: Array, leaf: Array) -> Array:
    """Values sorted by cluster and inside it by value, coordinate by coordinate: a cluster has the same rows in all.

    One sort serves all clusters, however many there are. [s, ...] -> [s, ...]
    """
    keys = jnp.broadcast_to(trees.wide(group, leaf), leaf.shape)
    return lax.sort((keys, as_floats(leaf)), dimension=0, is_stable=False, num_keys=2)[1]


def mean_by(group: Array, weights: Array, rows: Models, like: Models) -> Models:
    """Weighted means of the rows of every cluster, zero where there are none, in the dtypes of `like` [k, ...]."""
    k = trees.count(like)
    weights = jnp.where(group < k, weights, 0.0)
    total = jnp.zeros(k, weights.dtype).at[group].add(weights, mode="drop")
    share = weights / jnp.where(total > 0, total, 1.0)[jnp.minimum(group, k - 1)]  # [s]
    return jax.tree.map(lambda leaf, kept: rounded(sum_by(group, share, leaf, k), kept), rows, like)


def sum_by(group: Array, weights: Array, leaf: Array, k: int) -> Array:
    """Weighted sums of the rows of every cluster. [s, ...] -> [k, ...].

    They are matrix products, in which a number that is not finite would reach the other clusters as 0 · ∞; it is kept
    out of them, and spoils its coordinate in its own cluster alone.
    """
    here = group < k
    near = jnp.minimum(group, k - 1)
    leaf = jnp.where(trees.wide(here, leaf), as_floats(leaf), 0.0)
    good = jnp.isfinite(leaf)
    zero = jnp.zeros((k, *leaf.shape[1:]), jnp.result_type(leaf, weights))
    sums = trees.add_by(zero, near, weights, jnp.where(good, leaf, 0.0))
    spoilt = trees.add_by(zero, near, here * 1.0, (~good).astype(zero.dtype)) > 0
    return jnp.where(spoilt, jnp.nan, sums)


def as_floats(leaf: Array) -> Array:
    """A leaf as floats; one that is floats already as it is."""
    return leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.asarray(leaf, jnp.result_type(float))


def rounded(value: Array, kept: Model) -> Array:
    """A mean in the dtype of the leaf it is for, rounded where that is not a float's."""
    whole = not jnp.issubdtype(kept.dtype, jnp.floating)
    return (jnp.rint(value) if whole else value).astype(kept.dtype)
