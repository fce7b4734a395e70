"""K-means and its relatives on client vectors: k-medians, k-medoids, trimmed K-means, the layer distance."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jcfl.trees import EXACT
from jcfl.types import Array, Key

Metric = Literal["euclidean", "l1", "cosine"]
Centre = Literal["mean", "median", "medoid"]
Seeding = Literal["plus_plus", "random"]
Distance = Callable[[Array, Array], Array]
"""A metric of one's own: points [m, d] and centres [k, d] to distances [m, k]."""
Rule = Callable[[Array], Array]
"""Members' weights, zero for others, [k, m] to centres [k, d]; whatever it likes for a cluster without members."""

COLUMNS = 1024  # coordinates whose medians are taken at a time, so that [k, m, d] is never held


class Clustering(NamedTuple):
    """What K-means found."""

    labels: Array  # [m] int32, the nearest centre of every client
    centres: Array  # [k, d]
    inertia: Array  # [] weighted distance of the clients that count to their centres


def fit(
    key: Key,
    points: Array,
    weights: Array,
    k: int,
    *,
    iterations: Array | int,
    restarts: int = 20,
    metric: Metric | Distance = "euclidean",
    centre: Centre = "mean",
    seeding: Seeding = "plus_plus",
    trim: Array | float = 0.0,
) -> Clustering:
    """The best of several runs of `lloyd` from fresh seeds, by inertia (Xie et al. 2020, §6.1: 20 of them).

    Args:
        key: what the seeds are drawn from.
        points: one finite vector per client. [m, d]
        weights: how much each counts; a client of weight 0 gets a label and influences nothing. [m]
        k: number of clusters.
        iterations: the most updates of the centres in one run.
        restarts: number of runs, one after the other so that only two sets of centres are held.
        metric: see `distances`.
        centre: see `centre_rule`.
        seeding: see `seeds`.
        trim: fraction in [0, 1) of each cluster's clients that is dropped, see `lloyd`.

    Returns:
        labels, centres and inertia; centres are NaN where no run ended in a finite inertia.
    """
    run = runner(points, weights, iterations, metric, centre, trim)

    def attempt(best: Clustering, key: Key) -> tuple[Clustering, None]:
        found = run(points[seeds(key, points, weights, k, seeding, metric)])
        return jax.tree.map(lambda new, old: jnp.where(found.inertia < best.inertia, new, old), found, best), None

    m, d = points.shape
    none = jnp.full((k, d), jnp.nan, points.dtype)
    start = Clustering(jnp.zeros(m, jnp.int32), none, jnp.array(jnp.inf, points.dtype))
    return lax.scan(attempt, start, jax.random.split(key, restarts))[0]


def lloyd(
    points: Array,
    weights: Array,
    centres: Array,
    iterations: Array | int,
    metric: Metric | Distance = "euclidean",
    centre: Centre = "mean",
    trim: Array | float = 0.0,
) -> Clustering:
    """K-means from given centres: assign, update, until the centres stand still or `iterations` are spent.

    With `trim` β it is trimmed K-means (Ghosh et al. 2019): of each cluster's n_k clients the ⌊β·n_k⌋ farthest from
    its centre do not count in its update, nor in the inertia; they keep their labels.

    What it takes is as for `fit`; what it gives are the last centres, the labels of an assignment to them, and the
    inertia of that.
    """
    return runner(points, weights, iterations, metric, centre, trim)(centres)


def runner(
    points: Array,
    weights: Array,
    iterations: Array | int,
    metric: Metric | Distance,
    centre: Centre,
    trim: Array | float,
) -> Callable[[Array], Clustering]:
    """`lloyd` as a function of the first centres; what all runs share is computed here, once."""
    weights = weights.astype(points.dtype)
    rule = centre_rule(points, weights, metric, centre)

    def assigned(centres: Array) -> tuple[Array, Array, Array]:
        table = distances(points, centres, metric)
        labels, own = table.argmin(1).astype(jnp.int32), table.min(1)
        return labels, own, trimmed(labels, weights, own, trim, centres.shape[0])

    def update(carry):
        step, old, _ = carry
        labels, own, counted = assigned(old)
        new = updated(rule, labels, counted, own, old)
        # Centres, not labels, are compared: where a cluster is empty the old centres decide who is put into it.
        return step + 1, new, (new != old).any()

    def run(centres: Array) -> Clustering:
        carry = (0, centres.astype(points.dtype), jnp.array(True))
        _, centres, _ = lax.while_loop(lambda carry: (carry[0] < iterations) & carry[2], update, carry)
        labels, own, counted = assigned(centres)
        return Clustering(labels, centres, jnp.where(counted > 0, counted * own, 0).sum())

    return run


def distances(points: Array, centres: Array, metric: Metric | Distance = "euclidean") -> Array:
    """Distance of every point to every centre, without an array of m·k·d.

    Args:
        points: [m, d]
        centres: [k, d]
        metric: `euclidean`, squared as K-means has it; `l1`; `cosine`, one minus the cosine, 1 for a zero
            vector; or a function of points and centres.

    Returns:
        distances. [m, k]
    """
    return metric(points, centres) if callable(metric) else METRICS[metric](points, centres)


def euclidean(points: Array, centres: Array) -> Array:
    """‖x − c‖², [m, k]."""
    # Client models share a start that is far longer than what tells them apart; expanding the square around the
    # centres' mean instead of zero keeps that start from eating the digits.
    origin = centres.mean(0)
    points, centres = points - origin, centres - origin
    square = (points**2).sum(1)[:, None] + (centres**2).sum(1) - 2 * jnp.matmul(points, centres.T, precision=EXACT)
    return jnp.maximum(square, 0)


def l1(points: Array, centres: Array) -> Array:
    """Σ |x − c| (Bhattacharya and Aridi, eq. 8), [m, k]."""
    return lax.map(lambda centre: jnp.abs(points - centre).sum(1), centres).T


def cosine(points: Array, centres: Array) -> Array:
    """1 − cos(x, c) as half the squared distance of unit vectors, exact where directions nearly agree; [m, k]."""
    lengths = [jnp.linalg.norm(rows, axis=1) for rows in (points, centres)]
    units = [rows / jnp.where(n > 0, n, 1)[:, None] for rows, n in zip((points, centres), lengths, strict=True)]
    return jnp.where((lengths[0] > 0)[:, None] & (lengths[1] > 0), euclidean(*units) / 2, 1)


METRICS: dict[str, Distance] = {"euclidean": euclidean, "l1": l1, "cosine": cosine}


def centre_rule(points: Array, weights: Array, metric: Metric | Distance, centre: Centre) -> Rule:
    """How a centre is made of a cluster's members.

    Args:
        centre: `mean`, by weight; `median`, by coordinate; `medoid`, the member from which the others are least far.
            All three are weighted.
        metric: what far means.
    """

    def mean(members: Array) -> Array:
        total = members.sum(1, keepdims=True)
        return jnp.matmul(members, points, precision=EXACT) / jnp.where(total > 0, total, 1)

    def median(members: Array) -> Array:
        return lax.map(lambda column: medians(column, members), points.T, batch_size=COLUMNS).T

    def medoid() -> Rule:
        present = weights > 0
        among = jnp.where(present[:, None], points, points[present.argmax()])  # the absent must not cost digits
        pairs = distances(among, among, metric)  # [m, m]
        cost = lambda members: jnp.matmul(members, pairs.T, precision=EXACT)  # [k, m]
        return lambda members: points[jnp.where(members > 0, cost(members), jnp.inf).argmin(1)]

    return medoid() if centre == "medoid" else {"mean": mean, "median": median}[centre]


def medians(values: Array, members: Array) -> Array:
    """Weighted medians of `values` [m], the middle of the two where half the weight lies on either side: [k]."""
    order = values.argsort()
    reached = members[:, order].cumsum(1)
    half = reached[:, -1:] / 2
    low, high = (reached >= half).argmax(1), (reached > half).argmax(1)
    return (values[order[low]] + values[order[high]]) / 2


def updated(rule: Rule, labels: Array, weights: Array, own: Array, old: Array) -> Array:
    """The centres by a rule, empty clusters re-seeded; `own` [m] are the clients' distances to their old centres."""
    k = old.shape[0]
    labels = refilled(labels, weights > 0, own, k)
    members = jax.nn.one_hot(labels, k, axis=0, dtype=old.dtype) * weights  # [k, m]
    return jnp.where((members > 0).any(1)[:, None], rule(members), old)


def refilled(labels: Array, present: Array, own: Array, k: int) -> Array:
    """Labels [m] after every empty cluster, in turn, was given the client that is farthest from its old centre.

    The client leaves its own cluster. Nobody leaves a cluster that would be empty then, or a centre that it coincides
    with; a cluster for which nobody can be found stays empty, and so keeps its centre.
    """

    def fill(cluster: Array, labels: Array) -> Array:
        size = jax.ops.segment_sum(present.astype(jnp.int32), labels, k)
        spare = jnp.where(present & (size[labels] > 1), own, 0)
        farthest = spare.argmax()
        move = (size[cluster] == 0) & (spare[farthest] > 0)
        return labels.at[farthest].set(jnp.where(move, cluster, labels[farthest]).astype(labels.dtype))

    return lax.fori_loop(0, k, fill, labels)


def trimmed(labels: Array, weights: Array, own: Array, trim: Array | float, k: int) -> Array:
    """Weights [m], zero for the fraction `trim` of each cluster's clients that is farthest from its centre."""
    cluster = jnp.where(weights > 0, labels, k)  # the absent are a cluster of their own
    size = jnp.bincount(cluster, length=k + 1)
    order = jnp.lexsort((-own, cluster))
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))
    rank = place - (size.cumsum() - size)[cluster]  # 0 for the farthest of a cluster
    return jnp.where(rank < jnp.floor(trim * size)[cluster], 0, weights)


def seeds(
    key: Key, points: Array, weights: Array, k: int, how: Seeding = "plus_plus", metric: Metric | Distance = "euclidean"
) -> Array:
    """The clients whose vectors are the first centres: [k] int32.

    `plus_plus` (Arthur and Vassilvitskii 2007) draws each with a chance of weight times distance to the nearest seed
    so far; `random` draws present clients all alike, one twice only where there are fewer than k.
    """
    if how == "random":
        present = weights > 0
        order = (-jnp.where(present, jax.random.uniform(key, weights.shape), -1)).argsort()
        return order[jnp.arange(k) % jnp.maximum(present.sum(), 1)].astype(jnp.int32)

    def draw(near: Array, key: Key) -> tuple[Array, Array]:
        mass = jnp.where(weights > 0, weights * jnp.where(jnp.isinf(near), 1, near), 0)
        # No mass is left where every client coincides with a seed: then any of them will do.
        client = jax.random.categorical(key, jnp.log(jnp.where(mass.max() > 0, mass, weights)))
        return jnp.minimum(near, distances(points, points[client][None], metric)[:, 0]), client

    start = jnp.full(points.shape[0], jnp.inf, points.dtype)
    return lax.scan(draw, start, jax.random.split(key, k))[1].astype(jnp.int32)


def kernel_distance(a: Array, b: Array) -> Array:
    """Layer distances [m, k] of Flax convolution weights [m, height, width, in, out] and [k, height, ...]."""
    kernels = lambda conv: jnp.moveaxis(conv, -1, 1).reshape(conv.shape[0], conv.shape[-1], -1)
    return layer_distances(kernels(a), kernels(b))


def layer_distances(a: Array, b: Array) -> Array:
    """Each kernel of `a` [m, kernels, size] to its nearest of `b` [k, kernels, size], L1, summed: [m, k].

    Bhattacharya and Aridi, eq. 9.
    """
    to_kernel = lambda kernel: jnp.abs(a - kernel).sum(-1)  # [m, kernels]
    to_model = lambda kernels: lax.map(to_kernel, kernels).min(0).sum(-1)  # [m]
    return lax.map(to_model, b).T
