"""K-means and its relatives on client vectors: k-medians, k-medoids, trimmed K-means, the layer distance."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jcfl.trees import EXACT, number_of, steady_mean
from jcfl.types import Array, Key

Metric = Literal["euclidean", "l1", "cosine"]
Centre = Literal["mean", "median", "medoid"]
Seeding = Literal["plus_plus", "random"]
Distance = Callable[[Array, Array], Array]
"""A metric as a function from points [m, d] and centres [k, d] to distances [m, k]."""
Rule = Callable[[Array], Array]
"""From the weights of each cluster's members, 0 for other clients, [k, m] to centres [k, d]. The centre of a cluster
without members may be anything."""

OFTEN = 256
"""For up to so many clients for each restart, all inner products are found before K-means. They take less time than its
passes over long vectors, of which there are some ten for each restart."""
COLUMNS = 1024  # coordinates whose medians are taken at a time, so that [k, m, d] is never held


class Clustering(NamedTuple):
    """What K-means found."""

    labels: Array  # [m] int32, the nearest centre of every client
    own: Array  # [m] every client's distance to that centre
    centres: Array  # [k, d]
    inertia: Array  # [] the weighted sum of clients' distances to their centres


TIE = 1e-5
"""Of runs whose inertia differs by less, relative to it, the first is taken, so that rounding does not choose."""


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
    refill: bool = True,
) -> Clustering:
    """The run of `lloyd` with the least inertia, of several from new seeds (20 in Xie et al. 2020, §6.1).

    Args:
        key: from which the seeds are drawn.
        points: one finite vector per client; one whose square overflows does not count. [m, d] float
        weights: every client's weight; a client of weight 0 gets a label, but influences nothing. [m] float
        k: number of clusters.
        iterations: the most updates of the centres in one run.
        restarts: number of runs; they go one after the other, so that the memory holds only two sets of centres.
        metric: see `distances`.
        centre: see `centre_rule`.
        seeding: see `seeds`.
        trim: the fraction in [0, 1) of each cluster's clients that is dropped; see `lloyd`.
        refill: whether an empty cluster takes a client; see `refilled`.

    Returns:
        what the best run found; centres are NaN, and distances infinite, if no run ended with a finite inertia.
    """
    weights = counted_weights(points, weights)
    options: Any = {"iterations": iterations, "restarts": restarts, "seeding": seeding, "trim": trim, "refill": refill}
    if metric == "euclidean" and centre == "mean" and points.shape[0] < min(points.shape[1], OFTEN * restarts):
        # Means are weighted sums of points, so runs need the points' inner products alone, which are found once. A
        # centre is then the vector of its weights in the sum.
        units = jnp.eye(points.shape[0], dtype=points.dtype)
        found = fit(key, units, weights, k, metric=distance_to_sums(points, weights), **options)
        return found._replace(centres=jnp.matmul(found.centres, points, precision=EXACT))
    run = runner(points, weights, iterations, metric, centre, trim, refill)

    def attempt(turn: Array, best: Clustering) -> Clustering:
        found = run(points[seeds(jax.random.fold_in(key, turn), points, weights, k, seeding, metric)])
        better = found.inertia < best.inertia * (1 - TIE)
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best)

    m, d = points.shape
    none = jnp.full((k, d), jnp.nan, points.dtype)
    far = jnp.full(m, jnp.inf, points.dtype)
    start = Clustering(jnp.zeros(m, jnp.int32), far, none, jnp.array(jnp.inf, points.dtype))
    return lax.fori_loop(0, restarts, attempt, start)


def lloyd(
    points: Array,
    weights: Array,
    centres: Array,
    iterations: Array | int,
    metric: Metric | Distance = "euclidean",
    centre: Centre = "mean",
    trim: Array | float = 0.0,
    refill: bool = True,
) -> Clustering:
    """K-means from given centres, until the centres stay the same or were updated `iterations` times.

    With `trim` β this is trimmed K-means (Ghosh et al. 2019, https://arxiv.org/abs/1906.06629): of each cluster's n_k
    clients, the ⌊β·n_k⌋ that are farthest from its centre count neither in the update of the centre nor in the inertia.
    They keep their labels.

    Args:
        centres: the first centres. [k, d]
        points, weights, iterations, metric, centre, trim, refill: as for `fit`.

    Returns:
        the last centres, and the assignment to them.
    """
    return runner(points, counted_weights(points, weights), iterations, metric, centre, trim, refill)(centres)


def counted_weights(points: Array, weights: Array) -> Array:
    """The weights [m], 0 for a point whose square overflows: it is infinitely far from all centres, as a member too."""
    return jnp.where(have_squares(points), weights, 0)


def have_squares(points: Array) -> Array:
    """Whether the square of each point [m, d] is a finite number. [m] bool"""
    return jnp.isfinite((points**2).sum(1))


def runner(
    points: Array,
    weights: Array,
    iterations: Array | int,
    metric: Metric | Distance,
    centre: Centre,
    trim: Array | float,
    refill: bool,
) -> Callable[[Array], Clustering]:
    """`lloyd` as a function of the first centres. What all runs have in common is computed once, here."""
    weights = weights.astype(points.dtype)
    rule = centre_rule(points, weights, metric, centre)

    def assigned(centres: Array) -> tuple[Array, Array, Array]:
        table = distances(points, centres, metric)
        labels, own = table.argmin(1).astype(jnp.int32), table.min(1)
        return labels, own, trimmed(labels, weights, own, trim, centres.shape[0])

    def iterate(carry):
        """Assign clients to the centres, and update these unless it is the last iteration."""
        step, old, *_ = carry
        labels, own, counted = assigned(old)
        members = refilled(labels, counted > 0, own, old.shape[0]) if refill else labels
        new = jnp.where(step < iterations, updated(rule, members, counted, old), old)
        # Centres are compared and not labels, because the old centres decide which client an empty cluster gets.
        return step + 1, new, (labels, own, counted), (step < iterations) & (new != old).any()

    def run(centres: Array) -> Clustering:
        centres = centres.astype(points.dtype)
        if isinstance(iterations, int) and iterations == 0:  # an update that never happens need not be compiled
            labels, own, counted = assigned(centres)
        else:
            nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(assigned, centres))
            carry = (0, centres, nothing, jnp.array(True))
            _, centres, (labels, own, counted), _ = lax.while_loop(lambda carry: carry[-1], iterate, carry)
        return Clustering(labels, own, centres, jnp.where(counted > 0, counted * own, 0).sum())

    return run


def distances(points: Array, centres: Array, metric: Metric | Distance = "euclidean") -> Array:
    """The distance of every point to every centre, without an array of m·k·d numbers.

    Args:
        points: [m, d]
        centres: [k, d]
        metric: `euclidean`, which is squared, as in K-means; `l1`; `cosine`, which is one minus the cosine, and 1 for a
            zero vector; or a function of points and centres.

    Returns:
        distances. [m, k]
    """
    return metric(points, centres) if callable(metric) else METRICS[metric](points, centres)


def distance_to_sums(points: Array, weights: Array) -> Distance:
    """‖x − c‖² of all `points` [m, d] to weighted sums of them, which are given by their weights. [m, m], [k, m]

    Args:
        weights: as for `fit`. [m]

    Returns:
        a metric; its first argument is the identity, because every point is a sum of itself alone. The weights of a sum
        add up to one.
    """
    points = points - steady_mean(points, weights > 0)  # see `euclidean`
    # A product that overflows, such as that of a point without weight, would make a sum of it with weight 0 NaN.
    points = jnp.where(have_squares(points)[:, None], points, 0)
    products = jnp.matmul(points, points.T, precision=EXACT)  # [m, m]

    def distance(units: Array, sums: Array) -> Array:
        inner = jnp.matmul(sums, products, precision=EXACT)  # [k, m]
        return jnp.maximum(products.diagonal()[:, None] + (sums * inner).sum(1) - 2 * inner.T, 0)

    return distance


def of_rows(metric: Metric | Distance, shape: tuple[int, ...]) -> Metric | Distance:
    """A metric of descriptions of some shape, such as bases [d, p], as one of rows that hold their numbers. [m, d p]"""
    if not callable(metric) or len(shape) == 1:
        return metric
    return lambda points, centres: metric(points.reshape(-1, *shape), centres.reshape(-1, *shape))


def euclidean(points: Array, centres: Array) -> Array:
    """‖x − c‖², [m, k]."""
    # The vectors of client models are long, and their differences are small. A mean of the centres is subtracted before
    # the square is expanded, so that the differences keep their digits; also if one of the centres is far away.
    origin = steady_mean(centres, jnp.isfinite(centres).all(1))
    points, centres = points - origin, centres - origin
    square = (points**2).sum(1)[:, None] + (centres**2).sum(1) - 2 * jnp.matmul(points, centres.T, precision=EXACT)
    return jnp.maximum(square, 0)


def l1(points: Array, centres: Array) -> Array:
    """Σ |x − c| (Bhattacharya and Aridi, eq. 8), [m, k]."""
    return lax.map(lambda centre: jnp.abs(points - centre).sum(1), centres).T


def cosine(points: Array, centres: Array) -> Array:
    """1 − cos(x, c), [m, k]: half the squared distance of unit vectors, which is exact for nearly equal directions."""
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
        # Absent clients may be far away, and distances of all pairs would then lose digits.
        among = jnp.where(present[:, None], points, points[present.argmax()])
        pairs = distances(among, among, metric)  # [m, m]
        cost = lambda members: jnp.matmul(members, pairs.T, precision=EXACT)  # [k, m]
        return lambda members: points[jnp.where(members > 0, cost(members), jnp.inf).argmin(1)]

    return medoid() if centre == "medoid" else {"mean": mean, "median": median}[centre]


def medians(values: Array, members: Array) -> Array:
    """Weighted medians of `values` [m]; the mean of two values if half the weight lies on either side of both. [k]"""
    order = values.argsort()
    reached = members[:, order].cumsum(1)
    half = reached[:, -1:] / 2
    low, high = (reached >= half).argmax(1), (reached > half).argmax(1)
    return (values[order[low]] + values[order[high]]) / 2


def updated(rule: Rule, labels: Array, weights: Array, old: Array) -> Array:
    """The new centres [k, d]; an empty cluster keeps its old one."""
    members = jax.nn.one_hot(labels, old.shape[0], axis=0, dtype=old.dtype) * weights  # [k, m]
    return jnp.where((members > 0).any(1)[:, None], rule(members), old)


def refilled(labels: Array, present: Array, own: Array, k: int) -> Array:
    """Labels [m] after every empty cluster, in turn, was given the client that is farthest from its old centre.

    The client leaves its own cluster. Nobody leaves a cluster that would be empty then, or a centre that it coincides
    with, and nobody whose distance overflows; a cluster for which nobody can be found stays empty, and so keeps its
    centre.
    """

    def fill(cluster: Array, labels: Array) -> Array:
        size = jax.ops.segment_sum(present.astype(jnp.int32), labels, k)
        spare = jnp.where(present & (size[labels] > 1) & jnp.isfinite(own), own, 0)
        farthest = spare.argmax()
        move = (size[cluster] == 0) & (spare[farthest] > 0)
        return labels.at[farthest].set(jnp.where(move, cluster, labels[farthest]).astype(labels.dtype))

    return lax.fori_loop(0, k, fill, labels)


def trimmed(labels: Array, weights: Array, own: Array, trim: Array | float, k: int) -> Array:
    """Weights [m], zero for the fraction `trim` of each cluster's clients that is farthest from its centre."""
    if isinstance(trim, float) and trim == 0:  # known before compilation, so nothing has to be ranked
        return weights
    cluster = jnp.where(weights > 0, labels, k)  # the absent are a cluster of their own
    size = jnp.bincount(cluster, length=k + 1)
    order = jnp.lexsort((-own, cluster))
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))
    rank = place - (size.cumsum() - size)[cluster]  # 0 for the farthest of a cluster
    return jnp.where(rank < number_of(trim, size)[cluster], 0, weights)


def seeds(
    key: Key, points: Array, weights: Array, k: int, how: Seeding = "plus_plus", metric: Metric | Distance = "euclidean"
) -> Array:
    """The clients whose vectors become the first centres. [k] int32

    `plus_plus` (Arthur and Vassilvitskii 2007) draws one seed after another; a client's chance is proportional to its
    weight times its distance to the nearest seed so far. `random` draws all present clients with the same chance, and a
    client twice only if there are fewer than k.
    """
    if how == "random":
        present = weights > 0
        order = (-jnp.where(present, jax.random.uniform(key, weights.shape), -1)).argsort()
        return order[jnp.arange(k) % jnp.maximum(present.sum(), 1)].astype(jnp.int32)

    def draw(near: Array, key: Key) -> tuple[Array, Array]:
        away = jnp.maximum(jnp.where(jnp.isinf(near), 1, near), 0)  # rounding may take a distance below 0
        mass = jnp.where(weights > 0, weights * away, 0)
        # If every client coincides with a seed, no mass is left, and any client may be drawn.
        client = jax.random.categorical(key, jnp.log(jnp.where(mass.max() > 0, mass, weights)))
        return jnp.minimum(near, distances(points, points[client][None], metric)[:, 0]), client

    start = jnp.full(points.shape[0], jnp.inf, points.dtype)
    return lax.scan(draw, start, jax.random.split(key, k))[1].astype(jnp.int32)


def kernel_distance(a: Array, b: Array) -> Array:
    """`layer_distances` [m, k] of Flax convolution weights [m, height, width, in, out] and [k, height, ...]."""
    kernels = lambda conv: jnp.moveaxis(conv, -1, 1).reshape(conv.shape[0], conv.shape[-1], -1)
    return layer_distances(kernels(a), kernels(b))


def layer_distances(a: Array, b: Array) -> Array:
    """The sum over a model's kernels of the L1 distance to the other model's nearest kernel. [m, k]

    Bhattacharya and Aridi, eq. 9. `a` is [m, kernels, size], `b` is [k, kernels, size].
    """
    to_kernel = lambda kernel: jnp.abs(a - kernel).sum(-1)  # [m, kernels]
    to_model = lambda kernels: lax.map(to_kernel, kernels).min(0).sum(-1)  # [m]
    return lax.map(to_model, b).T
