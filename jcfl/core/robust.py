"""Averaging rules against hostile clients that look at whole uploads; see `jcfl.core.averaging` for what a rule is.

Krum, multi-Krum and the geometric median use weights only to know which clients are present. They need whole models:
distances are Euclidean, over all parameters. Running statistics and counters have no part in them, because their scale
is another one; they go with the parameters.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core.averaging import as_floats, mean_by, median, present_labels, sizes, weighted_mean, zeros_for
from jcfl.types import Array, Models


def krum(
    labels: Array, weights: Array, uploads: Models, default: Models, *, share: Any = 0.2, several: bool = False
) -> Models:
    """The upload that is nearest to its neighbours (Blanchard et al. 2017, https://arxiv.org/abs/1703.02757).

    In a cluster of n clients of which f = ⌊share · n⌋ may be hostile, a client's score is the sum of its squared
    distances to the n − f − 2 others that are nearest to it, and at least to one. The client with the lowest score is
    taken; with `several` (multi-Krum), the unweighted mean of the n − f clients with the lowest scores.

    Args, Returns:
        as for `averaging.weighted_mean`.
    """
    k, s = trees.count(default), labels.size
    group = present_labels(labels, weights, k)
    near = jnp.minimum(group, k - 1)
    n = sizes(group, k)
    f = trees.number_of(share, n)  # [k]
    mates = (group[:, None] == group) & (group < k)[:, None] & ~jnp.eye(s, dtype=bool)
    finite = is_sound(uploads)
    far = squared_distances(parameters(uploads), (group < k) & finite)
    nearest = jnp.sort(jnp.where(mates, far, jnp.inf), axis=1)  # [s, s]
    counted = jnp.arange(s) < jnp.clip(n - f - 2, 1, jnp.maximum(n - 1, 1))[near][:, None]
    score = jnp.where(counted & jnp.isfinite(nearest), nearest, 0).sum(1)
    score = jnp.where(finite, score, jnp.inf)
    ahead = mates & ((score < score[:, None]) | ((score == score[:, None]) & (jnp.arange(s) < jnp.arange(s)[:, None])))
    taken = (n - f if several else jnp.ones(k, int))[near]
    chosen = (group < k) & (ahead.sum(1) < taken)
    mean = mean_by(jnp.where(chosen, group, k), chosen * 1.0, uploads, default)
    return trees.select(n > 0, mean, default)


def geometric_median(
    labels: Array, weights: Array, uploads: Models, default: Models, *, iterations: int = 8, smoothing: float = 1e-6
) -> Models:
    """The model with the least sum of distances to a cluster's uploads, by smoothed Weiszfeld steps, unweighted.

    Pillutla et al. 2022 (RFA), Alg. 2, https://arxiv.org/abs/1912.13445. The steps begin at the coordinate-wise median
    of the uploads with finite squares, which a few far ones do not move; the paper begins at the mean of all.

    Args, Returns:
        as for `averaging.weighted_mean`. `smoothing` is the least distance that counts.
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    near = jnp.minimum(group, k - 1)
    real = jax.tree.map(as_floats, uploads)
    like, sane = zeros_for(real, k), is_sound(uploads)

    def step(_, center: Models) -> Models:
        far = norms(parameters(jax.tree.map(jnp.subtract, real, trees.take(center, near))))
        pull = jnp.where(sane & jnp.isfinite(far), 1 / jnp.maximum(far, smoothing), 0.0)
        here = jnp.where(pull > 0, group, k)
        return trees.select(sizes(here, k) > 0, mean_by(here, pull, real, like), center)

    sound = sizes(jnp.where(sane, group, k), k) > 0
    # The median of all uploads may be one of the others, or so far away that no step leads back.
    begin = median(labels, jnp.where(sane, weights, 0.0), real, like)
    center = jax.lax.fori_loop(0, iterations, step, begin)
    center = trees.select(sound, center, jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), center))
    center = jax.tree.map(trees.rounded, center, default)
    return trees.select(sizes(group, k) > 0, center, default)


def norm_bound(labels: Array, weights: Array, uploads: Models, default: Models, *, bound: Any = None) -> Models:
    """The weighted mean of updates that are scaled down to a norm (Sun et al. 2019, https://arxiv.org/abs/1911.07963).

    An update is an upload less the model that its cluster had before, its `default`. Without a `bound`, the bound of
    each cluster is the median of the norms of its updates.

    Args, Returns:
        as for `averaging.weighted_mean`.
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    start = trees.take(default, jnp.minimum(group, k - 1))
    updates = jax.tree.map(lambda a, b: as_floats(a) - as_floats(b), uploads, start)
    length = jnp.where(is_sound(updates), norms(parameters(updates)), jnp.inf)
    if bound is None:
        limit = median(labels, weights, length, jnp.zeros(k))[jnp.minimum(group, k - 1)]
    else:
        limit = jnp.full(length.shape, bound)
    scale = jnp.where(jnp.isfinite(length), jnp.minimum(1, limit / jnp.maximum(length, 1e-30)), 0.0)
    clipped = jax.tree.map(
        lambda old, update, kept: trees.rounded(
            as_floats(old) + jnp.where(trees.wide(scale > 0, update), trees.wide(scale, update) * update, 0), kept
        ),
        start,
        updates,
        default,
    )
    return weighted_mean(labels, weights, clipped, default)


def local_outlier_factors(labels: Array, present: Array, rows: Models, *, neighbours: Any = 5) -> Array:
    """How much sparser a row's surroundings are than those of its nearest neighbours in its cluster. [s]

    The local outlier factor of Breunig et al. 2000 (Definition 7) is about 1 inside a cluster and larger outside. A
    client has the nearest `neighbours`, and at most half of the others in its cluster: an outlier that is everybody's
    neighbour would have the factor 1. Equal distances are taken in the order of the rows. A client that is absent or
    alone, or whose row is not finite, has the factor 0 and is nobody's neighbour.

    Args:
        labels: every client's cluster. [s] int
        present: whether its row counts. [s] bool
        rows: the clients' rows. [s, ...]
    """
    real = present & jnp.isfinite(norms(rows))
    mates = (labels[:, None] == labels) & real[:, None] & real & ~jnp.eye(labels.size, dtype=bool)
    far = jnp.sqrt(jnp.where(mates, squared_distances(rows, real), jnp.inf))
    order = jnp.argsort(far, axis=1, stable=True)  # [s, s], the nearest first
    others = mates.sum(1)
    number = jnp.minimum(neighbours, (others + 1) // 2)  # [s]
    near = jnp.arange(labels.size) < number[:, None]
    sorted_far = jnp.take_along_axis(far, order, 1)
    reach = jnp.where(near, sorted_far, 0).max(1)  # the distance to the last of the neighbours
    reached = jnp.where(near, jnp.maximum(reach[order], sorted_far), 0).sum(1)
    density = number / jnp.maximum(reached, 1e-10)
    around = jnp.where(near, density[order], 0).sum(1)
    return around / jnp.maximum(number * density, 1e-30)


def parameters(models: Models) -> Models:
    """The parameters of models, without what they keep beside; rows that are no models as they are."""
    return models["params"] if isinstance(models, Mapping) and "params" in models else models


def is_sound(rows: Models) -> Array:
    """Whether every number of a row is finite, also those that are no parameters, and their squares too. [s] bool"""
    return trees.finite(jax.tree.map(as_floats, rows)) & jnp.isfinite(norms(parameters(rows)))


def squared_distances(rows: Models, real: Array) -> Array:
    """The squared Euclidean distances between all rows. [s, ...] -> [s, s]

    They are computed by products, which lose fewer digits if the rows lie near the origin. The origin is therefore
    moved to a mean of the real rows, those that are present and finite. The usual mean would follow a hostile upload
    far away, and all distances between the others would be rounding errors.
    """
    rows = jax.tree.map(as_floats, rows)
    rows = jax.tree.map(jnp.subtract, rows, trees.steady_mean(rows, real))
    squares, inner = trees.row_squares(rows), trees.inner(rows, rows)
    return jnp.maximum(squares[:, None] + squares - 2 * inner, 0)


def norms(rows: Models) -> Array:
    """The Euclidean norm of every row. [s, ...] -> [s]"""
    return jnp.sqrt(trees.row_squares(jax.tree.map(as_floats, rows)))
