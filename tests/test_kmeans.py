"""K-means and its relatives against scikit-learn, plain loops and a search of all partitions."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from jcfl import models, registry
from jcfl.core import local
from jcfl.core.context import context as make_context
from jcfl.errors import InputError
from jcfl.grouping import kernels, kmeans
from jcfl.grouping.compare import LayerDistance
from jcfl.grouping.describe import TrainedModel
from tests import tiny

M, D, K = 30, 3, 4
SCIPY = {"euclidean": "sqeuclidean", "l1": "cityblock", "cosine": "cosine"}


@functools.cache
def lloyd(metric="euclidean", centre="mean"):
    run = lambda points, weights, centres, steps, trim: kmeans.lloyd(
        points, weights, centres, steps, metric, centre, trim
    )
    return jax.jit(run)


def ran(points, weights, centres, iterations, metric="euclidean", centre="mean", trim=0.0):
    with jax.enable_x64(True):
        run = lloyd(metric, centre)
        return jax.device_get(run(*map(jnp.asarray, (points, weights, centres)), iterations, trim))


def blobs(rng, m=M, d=D, k=K):
    return 3 * rng.normal(size=(k, d))[rng.integers(k, size=m)] + rng.normal(size=(m, d)) * rng.choice([0.3, 1.5])


def start(rng, points, weights):
    return points[rng.choice(np.flatnonzero(weights), K, replace=False)]


def some_weights(rng):
    weights = rng.choice([0.0, 1.0, 2.5, 40.0], M)
    weights[:K] = 1.0
    return weights


def peer(points, weights, centres, iterations):
    """scikit-learn's labels, centres and inertia, from the clients that count."""
    model = KMeans(len(centres), init=centres, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd")
    model.fit(points[weights > 0], sample_weight=weights[weights > 0])
    return model.predict(points), model.cluster_centers_, model.inertia_


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 12))
def test_lloyd_is_scikit_learns(seed, iterations):
    rng = np.random.default_rng(seed)
    points, weights = blobs(rng), some_weights(rng)
    centres = start(rng, points, weights)
    found, expected = ran(points, weights, centres, iterations), peer(points, weights, centres, iterations)
    np.testing.assert_array_equal(found.labels, expected[0])
    np.testing.assert_allclose(found.centres, expected[1], atol=1e-9)
    np.testing.assert_allclose(found.inertia, expected[2], rtol=1e-9)


def test_lloyd_in_single_precision():
    rng = np.random.default_rng(7)
    points, weights = blobs(rng).astype(np.float32), some_weights(rng).astype(np.float32)
    centres = start(rng, points, weights)
    found, expected = lloyd()(points, weights, centres, 10, 0.0), peer(points, weights, centres, 10)
    assert [leaf.dtype for leaf in found] == [jnp.int32, jnp.float32, jnp.float32, jnp.float32]
    np.testing.assert_array_equal(found.labels, expected[0])
    np.testing.assert_allclose(found.own, cdist(points, found.centres, "sqeuclidean").min(1), atol=1e-4)
    np.testing.assert_allclose(found.centres, expected[1], atol=1e-5)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_long_shared_start_does_not_eat_the_digits(metric):
    rng = np.random.default_rng(11)
    shared = 10 * rng.normal(size=400)
    points = (shared + 1e-3 * rng.normal(size=(12, 400))).astype(np.float32)
    centres = (shared + 1e-3 * rng.normal(size=(3, 400))).astype(np.float32)
    expected = cdist(points.astype(float), centres.astype(float), SCIPY[metric])
    np.testing.assert_allclose(kmeans.distances(points, centres, metric), expected, rtol=2e-2)
    np.testing.assert_array_equal(kmeans.distances(points, centres, metric).argmin(1), expected.argmin(1))


@pytest.mark.parametrize(("trim", "refill", "seeding"), [(0.0, True, "plus_plus"), (0.2, False, "random")])
def test_runs_on_inner_products_find_what_runs_on_long_vectors_find(trim, refill, seeding):
    """Also if all vectors share a long start, if some clients do not count, and if one is far away."""
    rng, width = np.random.default_rng(4), 60
    points = blobs(rng, 24, width) + 100 * rng.normal(size=width)
    weights = rng.integers(0, 3, 24).astype(float)
    points[5], weights[5] = 1e6, 0
    options = {"iterations": 20, "restarts": 3, "trim": trim, "refill": refill, "seeding": seeding}
    with jax.enable_x64(True):
        short, whole = (
            jax.jit(functools.partial(kmeans.fit, k=K, metric=metric, **options))(
                jax.random.key(2), jnp.array(points), jnp.array(weights)
            )
            for metric in ("euclidean", kmeans.euclidean)
        )
    np.testing.assert_array_equal(short.labels, whole.labels)
    for one, two in zip(short[1:], whole[1:], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


def test_long_vectors_are_multiplied_once():
    """The runs' loop, over restarts, has no array of the vectors' length in it."""
    points, weights = jnp.ones((6, 50)), jnp.ones(6)
    found = jax.make_jaxpr(functools.partial(kmeans.fit, k=2, iterations=5))(jax.random.key(0), points, weights)
    loops = [equation for equation in found.eqns if equation.primitive.name in ("while", "scan")]
    assert loops
    assert not any(50 in value.aval.shape for loop in loops for value in loop.invars)


@pytest.mark.parametrize(("metric", "width"), [("euclidean", D), ("euclidean", M + 1), ("l1", D)])
def test_a_point_whose_square_overflows_changes_no_other_label(metric, width):
    rng = np.random.default_rng(3)
    points, weights = jnp.array(blobs(rng, d=width), jnp.float32), jnp.ones(M)
    far = points.at[4].set(1e25)
    fit = jax.jit(functools.partial(kmeans.fit, k=K, iterations=5, restarts=3, metric=metric))
    alone, beside = fit(jax.random.key(0), points, weights.at[4].set(0)), fit(jax.random.key(0), far, weights)
    others = np.arange(M) != 4
    assert len(np.unique(beside.labels[others])) == K
    np.testing.assert_array_equal(beside.labels[others], alone.labels[others])
    np.testing.assert_array_equal(beside.centres, alone.centres)
    again = lloyd()(far, weights, alone.centres, 5, 0.0)
    np.testing.assert_array_equal(again.centres, lloyd()(points, weights.at[4].set(0), alone.centres, 5, 0.0).centres)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_a_centre_far_away_does_not_eat_the_digits(k):
    """Such as the model of a hostile client, or of one whose training diverges."""
    rng = np.random.default_rng(12)
    points, centres = (rng.normal(size=(rows, 400)).astype(np.float32) for rows in (12, k))
    centres[k // 2] += 1e6
    expected = cdist(points.astype(float), centres.astype(float), "sqeuclidean")
    np.testing.assert_allclose(kmeans.distances(points, centres), expected, rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(sorted(SCIPY)))
def test_distances(seed, metric):
    rng = np.random.default_rng(seed)
    points, centres = rng.normal(size=(9, D)), rng.normal(size=(K, D))
    with jax.enable_x64(True):
        found = kmeans.distances(jnp.array(points), jnp.array(centres), metric)
        labels = found.argmin(1)
    np.testing.assert_allclose(found, cdist(points, centres, SCIPY[metric]), atol=1e-12)
    np.testing.assert_array_equal(labels, cdist(points, centres, SCIPY[metric]).argmin(1))


def test_edges_of_distances():
    points = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    assert kmeans.distances(points, points[:2], "cosine").tolist() == [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    ties = kmeans.lloyd(
        jnp.array([[0.0, 1.0], [2.0, 0.0]]), jnp.ones(2), jnp.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]), 0
    ).labels
    assert ties.tolist() == [0, 0] and ties.dtype == jnp.int32
    largest = lambda x, c: jnp.abs(x[:, None] - c).max(-1)
    found = kmeans.lloyd(points, jnp.ones(3), jnp.array([[0.9, 0.9], [0.0, 0.0]]), 0, largest).labels
    assert found.tolist() == [1, 0, 0]


def loop(points, weights, centres, iterations, metric, centre, trim=0.0):
    """The textbook's loop, for federations in which no cluster is empty."""
    for last in [False] * iterations + [True]:
        table = cdist(points, centres, SCIPY[metric])
        labels, own = table.argmin(1), table.min(1)
        count = weights.copy()
        for k in range(len(centres)):
            members = np.flatnonzero((labels == k) & (weights > 0))
            dropped = int(np.floor(trim * len(members)))
            count[members[np.argsort(-own[members])[:dropped]]] = 0
        if last:
            return labels, centres, (count * own).sum()
        centres = np.stack([middle(points[m], count[m], metric, centre) for m in members_of(labels, count, centres)])


def members_of(labels, count, centres):
    groups = [np.flatnonzero((labels == k) & (count > 0)) for k in range(len(centres))]
    assert all(map(len, groups))
    return groups


def middle(points, weights, metric, centre):
    if centre == "mean":
        return np.average(points, 0, weights)
    if centre == "median":
        return np.median(np.repeat(points, np.round(weights * 2).astype(int), 0), 0)
    return points[(cdist(points, points, SCIPY[metric]) @ weights).argmin()]


@pytest.mark.parametrize(
    ("metric", "centre", "trim"),
    [
        ("l1", "median", 0.0),
        ("l1", "medoid", 0.0),
        ("cosine", "mean", 0.0),
        ("euclidean", "medoid", 0.2),
        ("euclidean", "mean", 0.25),
        ("l1", "median", 0.4),
    ],
)
def test_lloyd_is_the_textbooks_loop(metric, centre, trim):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        corners = 8 * np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, 0, 1]])
        points = corners[np.arange(M) % K] + rng.normal(size=(M, D))
        weights = rng.choice([0.0, 1.0, 2.5, 4.0], M)
        weights[:K] = 1.0
        found = ran(points, weights, points[:K], 4, metric, centre, trim)
        labels, centres, inertia = loop(points, weights, points[:K], 4, metric, centre, trim)
        np.testing.assert_array_equal(found.labels, labels)
        np.testing.assert_allclose(found.centres, centres, atol=1e-12)
        np.testing.assert_allclose(found.inertia, inertia, rtol=1e-9)


@functools.partial(jax.jit, static_argnums=(4, 5))
def centres_of(points, labels, weights, old, centre="mean", metric="euclidean"):
    """The centres of labelled clients, empty clusters re-seeded."""
    own = jnp.take_along_axis(kmeans.distances(points, old, metric), labels[:, None], 1)[:, 0]
    labels = kmeans.refilled(labels, weights > 0, own, old.shape[0])
    return kmeans.updated(kmeans.centre_rule(points, weights, metric, centre), labels, weights, old)


@pytest.mark.parametrize("centre", ["mean", "median", "medoid"])
def test_centres_of_given_labels(centre):
    rng = np.random.default_rng(2)
    points, labels = rng.normal(size=(M, D)), np.arange(M) % K
    weights = (rng.random(M) < 0.7).astype(float)
    with jax.enable_x64(True):
        args = map(jnp.array, (points, labels, weights, np.zeros((K, D))))
        found = centres_of(*args, centre, "l1")
    for k in range(K):
        members = (labels == k) & (weights > 0)
        np.testing.assert_allclose(found[k], middle(points[members], weights[members], "l1", centre), atol=1e-12)


def test_medians_of_more_columns_than_one_block():
    points = np.random.default_rng(0).normal(size=(7, kmeans.COLUMNS + 5)).astype(np.float32)
    labels = jnp.array([0, 1, 0, 1, 0, 0, 1])
    found = centres_of(jnp.array(points), labels, jnp.ones(7), jnp.array(points[:2]), "median", "l1")
    np.testing.assert_allclose(found, [np.median(points[labels == k], 0) for k in range(2)], rtol=1e-6)


@pytest.mark.parametrize(
    ("metric", "centre", "seeding", "trim"),
    [("euclidean", "medoid", "plus_plus", 0.1), ("l1", "median", "random", 0.3), ("cosine", "mean", "plus_plus", 0.0)],
)
def test_clients_of_weight_zero_influence_nothing(metric, centre, seeding, trim):
    rng = np.random.default_rng(4)
    points, weights = blobs(rng), (rng.random(M) < 0.7) * rng.integers(1, 5, M)
    other = np.where(weights[:, None] > 0, points, 1e6 * rng.normal(size=(M, D)))
    points, other, weights = (jnp.array(array, jnp.float32) for array in (points, other, weights))
    options = {"metric": metric, "centre": centre, "seeding": seeding, "trim": trim}
    run = jax.jit(functools.partial(kmeans.fit, k=K, iterations=5, restarts=3, **options))
    one, two = (run(jax.random.key(3), points=array, weights=weights) for array in (points, other))
    np.testing.assert_array_equal(one.labels[weights > 0], two.labels[weights > 0])
    np.testing.assert_array_equal(one.centres, two.centres)
    np.testing.assert_array_equal(one.inertia, two.inertia)
    np.testing.assert_array_equal(two.labels, kmeans.distances(other, two.centres, metric).argmin(1))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5))
def test_an_empty_cluster_is_seeded_as_scikit_learn_does(seed, iterations):
    rng = np.random.default_rng(seed)
    points = blobs(rng)
    centres = np.concatenate([points[: K - 1], [[1e3, 1e3, 1e3]]])
    weights = rng.choice([1.0, 3.0], M)
    found, expected = ran(points, weights, centres, iterations), peer(points, weights, centres, iterations)
    np.testing.assert_array_equal(found.labels, expected[0])
    np.testing.assert_allclose(found.centres, expected[1], atol=1e-6)


@pytest.mark.parametrize("centre", ["mean", "median", "medoid"])
def test_several_empty_clusters_take_different_clients(centre):
    points = jnp.array([[0.0], [1.0], [2.0], [10.0], [20.0], [99.0]])
    weights = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])  # the farthest client is absent
    old = jnp.array([[1.0], [500.0], [600.0]])
    found = centres_of(points, jnp.zeros(6, jnp.int32), weights, old, centre)
    assert found.tolist() == [[1.0], [20.0], [10.0]]


def test_nobody_leaves_a_cluster_empty_or_a_centre_it_coincides_with():
    points, old = jnp.array([[0.0], [0.0], [7.0]]), jnp.array([[0.0], [3.0], [50.0]])
    found = centres_of(points, jnp.array([0, 0, 1]), jnp.ones(3), old)
    assert found.tolist() == [[0.0], [7.0], [50.0]]


def test_trimming_keeps_outliers_out_and_their_labels():
    points = np.array([[0.0], [1.0], [2.0], [3.0], [90.0], [200.0], [201.0], [202.0], [203.0], [204.0]])
    start = np.array([[1.0], [201.0]])
    plain, robust = (ran(points, np.ones(10), start, 8, trim=trim) for trim in (0.0, 0.2))
    assert plain.labels.tolist() == robust.labels.tolist() == [0] * 5 + [1] * 5
    np.testing.assert_allclose(plain.centres, [[19.2], [202.0]])
    np.testing.assert_allclose(robust.centres[0], [1.5])  # 4 of 5 clients, without the one at 90


def test_the_trimmed_fraction_is_rounded_after_the_product():
    """0.39 · 300 = 117, of which single precision makes a little less."""
    own = jnp.arange(300, dtype=jnp.float32)
    kept = kmeans.trimmed(jnp.zeros(300, jnp.int32), jnp.ones(300), own, 0.39, 1)
    np.testing.assert_array_equal(kept, np.arange(300) < 300 - 117)


def drawn(points, weights, k, how="plus_plus", metric="euclidean", count=300):
    draw = jax.jit(jax.vmap(lambda key: kmeans.seeds(key, points, weights, k, how, metric)))
    return np.asarray(draw(jax.random.split(jax.random.key(5), count)))


@pytest.mark.parametrize("how", ["plus_plus", "random"])
def test_seeds_are_present_and_distinct(how):
    rng = np.random.default_rng(0)
    points, weights = jnp.array(rng.normal(size=(M, D))), jnp.array(rng.random(M) < 0.4, float)
    seeds = drawn(points, weights, K, how)
    assert seeds.dtype == np.int32
    assert (np.asarray(weights)[seeds] > 0).all()
    assert all(len(set(row)) == K for row in seeds)
    assert set(seeds[:, 0]) == set(np.flatnonzero(weights))


@pytest.mark.parametrize("how", ["plus_plus", "random"])
def test_fewer_clients_than_clusters(how):
    points, weights = jnp.arange(6.0)[:, None], jnp.array([0, 1, 0, 0, 1, 0])
    assert all(set(row) == {1, 4} for row in drawn(points, weights, K, how))


@pytest.mark.parametrize(("metric", "power"), [("euclidean", 2), ("l1", 1)])
def test_plus_plus_draws_by_weight_times_distance(metric, power):
    points, weights = jnp.array([[0.0], [1.0], [3.0]]), jnp.array([1.0, 2.0, 1.0])
    first, second = drawn(points, weights, 2, metric=metric, count=4000).T
    np.testing.assert_allclose(np.bincount(first) / 4000, [0.25, 0.5, 0.25], atol=0.03)
    np.testing.assert_allclose((second[first == 0] == 1).mean(), 2 / (2 + 3**power), atol=0.05)


def test_random_seeds_look_at_neither_weight_nor_distance():
    points, weights = jnp.zeros((10, 1)).at[9].set(1.0), jnp.ones(10).at[9].set(99.0)
    np.testing.assert_allclose((drawn(points, weights, 2, "random", count=2000) == 9).any(1).mean(), 0.2, atol=0.04)


def test_restarts_find_the_best_of_all_partitions():
    rng = np.random.default_rng(9)
    for _ in range(3):
        points, weights = rng.normal(size=(8, 2)), rng.integers(1, 4, 8).astype(float)
        parts = [np.array((0, *rest)) for rest in itertools.product(range(3), repeat=7)]
        best = min(scatter(points, weights, part) for part in parts)
        with jax.enable_x64(True):
            found = best_of_20(jax.random.key(0), jnp.array(points), jnp.array(weights))
        np.testing.assert_allclose(found.inertia, best, rtol=1e-9)
        np.testing.assert_allclose(scatter(points, weights, np.asarray(found.labels)), best, rtol=1e-9)


best_of_20 = jax.jit(lambda key, points, weights: kmeans.fit(key, points, weights, 3, iterations=50))


def scatter(points, weights, labels):
    total = 0.0
    for k in set(labels.tolist()):
        own, count = points[labels == k], weights[labels == k]
        total += (count[:, None] * (own - np.average(own, 0, count)) ** 2).sum()
    return total


def test_fit_is_the_best_run_of_lloyd_and_goes_under_vmap():
    rng = np.random.default_rng(3)
    points, weights, keys = jnp.array(rng.normal(size=(M, D))), jnp.ones(M), jax.random.split(jax.random.key(8), 3)
    seeds = jax.jit(lambda key: points[kmeans.seeds(key, points, weights, K, "random")])
    run = lambda key: kmeans.fit(key, points, weights, K, iterations=3, restarts=6, seeding="random")
    many = jax.jit(jax.vmap(run))(keys)
    for index, key in enumerate(keys):
        runs = [lloyd()(points, weights, seeds(each), 3, 0.0) for each in jax.random.split(key, 6)]
        best = min(runs, key=lambda run: float(run.inertia))
        assert len({float(run.inertia) for run in runs}) > 2
        np.testing.assert_array_equal(many.labels[index], best.labels)
        np.testing.assert_allclose(many.centres[index], best.centres, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("centre", ["mean", "median", "medoid"])
def test_one_cluster(centre):
    rng = np.random.default_rng(6)
    points, weights = rng.normal(size=(M, D)), np.ones(M)
    found = ran(points, weights, np.zeros((1, D)), 3, "l1", centre)
    assert not found.labels.any()
    np.testing.assert_allclose(found.centres[0], middle(points, weights, "l1", centre), atol=1e-12)


def test_duplicates_share_a_cluster_and_a_spare_one_stays_empty():
    """Two places for eight clients, or two clients that count, and three clusters."""
    points = jnp.repeat(jnp.array([[1.0, 2.0], [5.0, 5.0]]), 4, axis=0)
    for weights in (jnp.ones(8), jnp.zeros(8).at[jnp.array([2, 7])].set(3.0)):
        found = best_of_20(jax.random.key(0), points, weights)
        assert found.inertia == 0 and jnp.isfinite(found.centres).all()
        assert len(set(found.labels[:4].tolist())) == len(set(found.labels[4:].tolist())) == 1
        assert found.labels[0] != found.labels[4]


def test_layer_distances_ignore_the_order_of_kernels():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 5, 4)).astype(np.float32), rng.normal(size=(2, 5, 4)).astype(np.float32)
    nearest = lambda x, y: sum(min(np.abs(p - q).sum() for q in y) for p in x)
    expected = [[nearest(x, y) for y in b] for x in a]
    np.testing.assert_allclose(kmeans.layer_distances(jnp.array(a), jnp.array(b)), expected, rtol=1e-5)
    np.testing.assert_allclose(
        kmeans.layer_distances(jnp.array(a[:, [3, 0, 4, 2, 1]]), jnp.array(b)), expected, rtol=1e-5
    )


def test_a_kernel_is_all_that_makes_one_channel():
    conv = np.random.default_rng(1).normal(size=(2, 3, 3, 2, 6)).astype(np.float32)  # [m, h, w, in, out]
    moved = conv[..., ::-1]
    np.testing.assert_allclose(jnp.diagonal(kmeans.kernel_distance(jnp.array(conv), jnp.array(moved))), 0, atol=1e-6)
    swapped = conv[:, :, :, ::-1]
    assert (jnp.diagonal(kmeans.kernel_distance(jnp.array(conv), jnp.array(swapped))) > 1).all()


CONVOLUTIONAL = {
    "zeta": lambda: models.task(Named(), (6, 6, 1), 3, name="named"),  # called first, last by name
    "conv_0": lambda: models.task(models.Network(3, filters=(4, 2), hidden=(5,), kernel=3), (6, 6, 1), 3),
}


class Named(nn.Module):
    """Two convolutions whose names are not in the order of the calls."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3), name="zeta")(x))
        return nn.Dense(3)(nn.Conv(2, (2, 2), name="alpha")(x).reshape(x.shape[0], -1))


@pytest.mark.parametrize("first", CONVOLUTIONAL)
def test_layer_distance_of_models_with_convolutions(first):
    """Of their first layers, and of all; K-means takes it."""
    task = CONVOLUTIONAL[first]()
    stack = jax.jit(jax.vmap(task.init))(jax.random.split(jax.random.key(0), 5))
    for only_first in (True, False):
        represent = kernels.convolutions(task, (6, 6, 1), only_first=only_first)
        found = jax.vmap(represent)(stack)
        if only_first:
            np.testing.assert_array_equal(found[0], stack["params"][first]["kernel"])
        assert len(found) == (1 if only_first else 2)
        flat = jnp.concatenate([leaf.reshape(5, -1) for leaf in found], 1)
        metric = kernels.layer_distance([leaf.shape[1:] for leaf in found])
        away = np.asarray(jax.jit(metric)(flat[:3], flat[3:]))
        for i, j in itertools.product(range(3), range(2)):
            columns = [(np.moveaxis(leaf[i], -1, 0), np.moveaxis(leaf[3 + j], -1, 0)) for leaf in map(np.array, found)]
            pairs = [cdist(*(rows.reshape(len(rows), -1) for rows in both), "cityblock") for both in columns]
            np.testing.assert_allclose(away[i, j], sum(table.min(1).sum() for table in pairs), rtol=1e-5)
    fit = functools.partial(kmeans.fit, k=2, iterations=3, restarts=2, metric=metric)
    clusters = jax.jit(lambda key: fit(key, flat, jnp.ones(5)).labels)(jax.random.key(1))
    assert set(np.asarray(clusters)) == {0, 1}


def test_kernels_in_another_order_are_no_distance_away():
    weights = np.random.default_rng(0).normal(size=(1, 3, 3, 2, 6)).astype(np.float32)
    metric = kernels.layer_distance([weights.shape[1:]])
    shuffled = weights[..., np.random.default_rng(1).permutation(6)]
    np.testing.assert_allclose(metric(weights.reshape(1, -1), shuffled.reshape(1, -1)), 0, atol=1e-6)


def test_layer_distances_between_clients_are_symmetric():
    """Linkage and DBSCAN need that. K-means takes distances from clients to centres."""
    task = models.task(models.Network(3, filters=(3,), kernel=2), (4, 4, 1), 3)
    context = make_context(tiny.federation(), task, local.sgd())
    points = jax.random.normal(jax.random.key(0), (5, 12))
    given = context, TrainedModel(part="kernels")
    one_way, both = LayerDistance().metric(*given)(points, points), LayerDistance().distance(*given)(points, points)
    assert np.abs(one_way - one_way.T).max() > 0.1
    np.testing.assert_allclose(both, (one_way + one_way.T) / 2, rtol=1e-6)


def test_a_model_without_convolutions_has_no_layer_distance():
    task = models.task(models.Network(3, hidden=(4,)), (6, 6, 1), 3, name="dense one")
    with pytest.raises(InputError, match="dense one has no convolution"):
        kernels.convolutions(task, (6, 6, 1))


def test_models_are_compared_by_chosen_layers():
    """Ma compares the fully-connected layers (§3.5); `head` is the last of them alone."""
    task = models.task(models.Network(10, filters=(2,), hidden=(5,), kernel=3), (4, 4, 1), 10)
    context = make_context(tiny.federation(), task, local.sgd())
    draw = lambda leaf: jnp.asarray(np.random.default_rng(0).normal(size=(2, *leaf.shape)))
    stack = jax.tree.map(draw, jax.eval_shape(task.init, jax.random.key(0)))
    dense = {name: stack["params"][name] for name in ("dense_0", "head")}
    expected = jax.vmap(lambda part: ravel_pytree(part)[0])(dense)
    for part in ("dense", ("dense_0", "head")):
        np.testing.assert_array_equal(TrainedModel(part=part).vectors(context, (), stack), expected)
    with pytest.raises(InputError, match="unknown layer in part: 'dense_1'; did you mean 'dense_0'"):
        TrainedModel(part=("dense_1",)).vectors(context, (), stack)
    found = registry.find("method", "wecfl")(**registry.options("method", "wecfl", {"represent": "dense"}))
    assert found.describe == TrainedModel(part="dense")


def test_an_empty_cluster_takes_the_farthest_client_or_stays_empty():
    points, far = jnp.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]]), jnp.array([[0.5, 0.0], [90.0, 0.0]])
    kept = kmeans.lloyd(points, jnp.ones(3), far, 5, refill=False)
    assert kept.labels.tolist() == [0, 0, 0] and kept.centres.tolist() == [[2.0, 0.0], [90.0, 0.0]]
    filled = kmeans.lloyd(points, jnp.ones(3), far, 5)
    assert filled.labels.tolist() == [0, 0, 1] and filled.centres.tolist() == [[0.5, 0.0], [5.0, 0.0]]


@pytest.mark.parametrize("name", ["fesem", "wecfl"])
def test_a_cluster_of_fesem_may_stay_empty(name):
    points, far = jnp.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]]), jnp.array([[0.5, 0.0], [90.0, 0.0]])
    for empty, expected in {"refill": [0, 0, 1], "keep": [0, 0, 0]}.items():
        method = registry.find("method", name)(clusters=2, empty=empty)
        labels = method.group.labels(method, tiny.setting().context, method.compare)
        found = labels(jax.random.key(0), points, jnp.ones(3), jnp.ones(3, bool), far)
        assert found.tolist() == expected
