"""Groupings and descriptions of clients against scikit-learn, SciPy and NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.cluster import DBSCAN, SpectralClustering
from sklearn.metrics import adjusted_rand_score

from jcfl.core import soft
from jcfl.grouping import density, kmeans, moments, spectral, subspace, svd
from jcfl.grouping.compare import KullbackLeibler
from jcfl.grouping.describe import LabelCounts
from jcfl.grouping.labels import numbered
from jcfl.grouping.losses import nearest_of
from tests import tiny

SEEDS = given(st.integers(0, 2**31))
FEW = settings(max_examples=15, deadline=None)
N = 14


def double(function):
    """A compiled function that computes in float64 and gives NumPy arrays."""
    compiled = jax.jit(function)

    def call(*args):
        with jax.enable_x64(True):
            return jax.device_get(compiled(*args))

    return call


def orthonormal(rng, d, p):
    return np.linalg.qr(rng.normal(size=(d, p)))[0]


def some_present(rng, n=N):
    present = rng.random(n) < 0.8
    present[:3] = True
    return present


def in_order(labels):
    """Whether clusters are numbered by their smallest members, without gaps."""
    real = labels[labels >= 0]
    _, first = np.unique(real, return_index=True)
    return (np.diff(first) > 0).all() and real.max(initial=-1) == len(first) - 1


# Subspaces


@functools.cache
def left(p):
    return double(functools.partial(subspace.left_singular, p=p))


@pytest.mark.parametrize("n, d", [(5, 9), (9, 5)])
@FEW
@SEEDS
def test_left_singular_vectors_span_what_numpys_do(n, d, seed):
    rng = np.random.default_rng(seed)
    x, mask = rng.normal(size=(n, d)), np.arange(n) != 1
    found = left(3)(x, mask)
    expected = np.linalg.svd(x[mask].T)[0][:, :3]
    assert found.shape == (d, 3)
    np.testing.assert_allclose(np.abs((found * expected).sum(0)), 1, atol=1e-7)
    np.testing.assert_allclose(found.T @ found, np.eye(3), atol=1e-7)
    assert (found.max(0) >= -found.min(0)).all()


@pytest.mark.parametrize("n, d", [(3, 8), (8, 6)])
def test_columns_beyond_the_rank_are_zero(n, d):
    rng = np.random.default_rng(0)
    x = np.zeros((n, d))
    x[:2] = rng.normal(size=(2, d))
    for dtype in (np.float32, np.float64):
        with jax.enable_x64(dtype == np.float64):
            five = jax.jit(functools.partial(subspace.left_singular, p=5))
            found, empty = (
                five(jnp.asarray(x, dtype), jnp.asarray(mask)) for mask in (np.ones(n, bool), np.zeros(n, bool))
            )
            np.testing.assert_allclose(np.linalg.norm(found, axis=0), [1, 1, 0, 0, 0], atol=1e-6)
            np.testing.assert_array_equal(empty, 0)


def test_padding_does_not_lower_the_rank():
    """A client of two examples is padded to the size of the largest one."""
    x = np.zeros((30_000, 3), np.float32)
    x[0, 0], x[1, 1] = 1, 0.05
    found = jax.jit(functools.partial(subspace.left_singular, p=2))(x, np.arange(len(x)) < 2)
    np.testing.assert_allclose(found, np.eye(3)[:, :2], atol=1e-6)


@FEW
@SEEDS
def test_principal_angles_are_scipys(seed):
    rng = np.random.default_rng(seed)
    u, v = (np.stack([orthonormal(rng, 7, 3) for _ in range(count)]) for count in (2, 4))
    expected = np.rad2deg([[subspace_angles(a, b) for b in v] for a in u])
    np.testing.assert_allclose(angles("smallest")(u, v), expected.min(-1), atol=1e-5)
    np.testing.assert_allclose(angles("sum")(u, v), expected.sum(-1), atol=1e-5)
    entries = np.rad2deg(np.arccos(np.abs(np.einsum("adp,bdq->abpq", u, v))))
    np.testing.assert_allclose(angles("trace")(u, v), np.trace(entries, axis1=2, axis2=3), atol=1e-5)
    np.testing.assert_allclose(angles("pair")(u, v), entries.min((2, 3)), atol=1e-5)


@FEW
@SEEDS
def test_divergences_are_scipys(seed):
    rng = np.random.default_rng(seed)
    p, q = (rng.dirichlet(np.full(5, 0.3), count) for count in (3, 4))
    p_, q_ = (0.02 + 0.9 * rows for rows in (p, q))
    there = np.array([[entropy(a, b) for b in q_] for a in p_])
    back = np.array([[entropy(b, a) for b in q_] for a in p_])
    np.testing.assert_allclose(divergence(p, q), there, atol=1e-9)
    np.testing.assert_allclose(both_ways(p, q), (there + back) / 2, atol=1e-9)


compared = KullbackLeibler(smoothing=0.1)
divergence = double(compared.metric(None, LabelCounts()))
both_ways = double(compared.distance(None, LabelCounts()))


@functools.cache
def angles(kind):
    return double(functools.partial(subspace.principal_angles, kind=kind))


def test_angles_at_their_ends():
    basis, angles_of = jnp.eye(6), jax.jit(subspace.principal_angles, static_argnums=2)
    u = jnp.stack([basis[:, :2], basis[:, 2:4], jnp.zeros((6, 2))])
    expected = np.array([[0, 90, 90], [90, 0, 90], [90, 90, 90]])
    for kind, times in (("smallest", 1), ("sum", 2), ("trace", 2), ("pair", 1)):
        np.testing.assert_allclose(angles_of(u, u, kind), times * expected, atol=0.05)
    turned = -u[:1, :, ::-1]  # another basis of the same subspace: only invariant kinds see that it is the same
    np.testing.assert_allclose(subspace.principal_angles(u[:1], turned, "sum"), 0, atol=0.05)
    np.testing.assert_allclose(subspace.principal_angles(u[:1], turned, "trace"), 180, atol=0.05)


def test_pieces_of_a_description_can_be_vmapped():
    rng = np.random.default_rng(0)
    x, mask = rng.normal(size=(4, 6, 9)).astype(np.float32), rng.random((4, 6)) < 0.9
    many = jax.jit(jax.vmap(functools.partial(subspace.left_singular, p=2)))(x, mask)
    one = subspace.left_singular(jnp.asarray(x[2]), jnp.asarray(mask[2]), 2)
    np.testing.assert_allclose(many[2], one, atol=1e-5)


# Numbering, spectral, density


@FEW
@SEEDS
def test_numbers_go_by_smallest_members(seed):
    rng = np.random.default_rng(seed)
    present, labels = some_present(rng), rng.integers(0, 5, N)
    found = np.asarray(jax.jit(numbered)(labels, present))
    assert (found[~present] == -1).all()
    assert in_order(found)
    assert adjusted_rand_score(labels[present], found[present]) == 1


def blocks(rng, sizes):
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    affinity = np.where(group[:, None] == group, rng.uniform(0.7, 1, (len(group),) * 2), rng.uniform(0, 0.05))
    return group, (affinity + affinity.T) / 2


grouped = functools.cache(lambda k: double(functools.partial(spectral.spectral, k=k, restarts=5)))


@FEW
@SEEDS
def test_spectral_finds_the_blocks_that_scikit_learn_does(seed):
    rng = np.random.default_rng(seed)
    group, affinity = blocks(rng, (3, 5, 6))
    present = some_present(rng)
    group[:6], present[:6] = (0, 1, 2) * 2, True  # a block of one is like nobody, so no eigenvector tells it apart
    affinity = np.where(group[:, None] == group, np.maximum(affinity, 0.7), np.minimum(affinity, 0.05))
    found = grouped(3)(jax.random.key(seed), affinity, present)
    here = np.ix_(present, present)
    peer = SpectralClustering(3, affinity="precomputed", random_state=0).fit_predict(affinity[here])
    assert adjusted_rand_score(peer, found[present]) == 1
    assert adjusted_rand_score(group[present], found[present]) == 1
    assert (found[~present] == -1).all()
    assert in_order(found)


def test_spectral_in_single_precision_with_parts_that_do_not_touch():
    group = np.array([0, 0, 0, 1, 1, 2, 0, 1])
    affinity = (group[:, None] == group).astype(np.float32)
    present = np.arange(8) != 6
    run = jax.jit(functools.partial(spectral.spectral, k=3, restarts=5))
    # client 5 is like nobody: a part by itself
    np.testing.assert_array_equal(run(jax.random.key(0), affinity, present), [0, 0, 0, 1, 1, 2, -1, 1])
    # a negative likeness counts as none
    np.testing.assert_array_equal(
        run(jax.random.key(1), np.where(affinity > 0, affinity, -1), present), [0, 0, 0, 1, 1, 2, -1, 1]
    )


def test_gaussian_affinity():
    distance = jnp.array([[0.0, 2.0], [2.0, 0.0]])
    np.testing.assert_allclose(spectral.gaussian(distance, 2.0), np.exp([[0, -0.5], [-0.5, 0]]), rtol=1e-6)


dbscan = double(density.dbscan)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from([0.3, 0.6, 1.2]))
def test_dbscan_is_scikit_learns_but_for_contested_borders(seed, min_samples, eps):
    rng = np.random.default_rng(seed)
    points = rng.integers(3, size=(N, 1)) * 2.0 + rng.normal(size=(N, 2)) * 0.5
    distance = np.linalg.norm(points[:, None] - points, axis=-1)
    present = some_present(rng)
    found = dbscan(distance, present, eps, min_samples)
    ids = np.flatnonzero(present)
    peer = DBSCAN(eps=eps, min_samples=min_samples, metric="precomputed").fit(distance[np.ix_(present, present)])
    assert in_order(found)
    assert (found[~present] == -1).all()
    noise = peer.labels_ == -1
    assert (np.bincount(found[present])[found[present][noise]] == 1).all()
    assert len(set(found[present])) == len(set(peer.labels_[~noise])) + noise.sum()
    core = peer.core_sample_indices_
    assert adjusted_rand_score(peer.labels_[core], found[ids[core]]) == 1
    for border in set(range(len(ids))) - set(core) - set(np.flatnonzero(noise)):
        nearest = ids[core][distance[ids[border], ids[core]].argmin()]
        assert found[ids[border]] == found[nearest]


def test_dbscan_follows_a_chain_and_gives_ties_to_the_smallest_id():
    run = jax.jit(density.dbscan)
    line = jnp.abs(jnp.arange(40.0)[:, None] - jnp.arange(40.0))
    np.testing.assert_array_equal(run(line, jnp.ones(40, bool), 1.0, 2), 0)
    # two dense parts, and client 2 halfway between them: near one core client of each
    places = jnp.array([0.0, 2.0, 1.0, 0.0, 0.0, 2.0, 2.0])
    distance = jnp.abs(places[:, None] - places)
    np.testing.assert_array_equal(run(distance, jnp.ones(7, bool), 1.0, 4)[jnp.array([0, 2])], [0, 0])
    np.testing.assert_array_equal(run(distance[:2, :2], jnp.zeros(2, bool), 1.0, 1), [-1, -1])


def test_dbscan_of_several_radii_at_once():
    distance = jnp.abs(jnp.arange(6.0)[:, None] ** 2 - jnp.arange(6.0) ** 2)
    of_radii = jax.jit(jax.vmap(lambda eps: density.dbscan(distance, jnp.ones(6, bool), eps, 2)))
    many = of_radii(jnp.array([0.5, 1.0, 3.0, 99.0]))
    np.testing.assert_array_equal(many.max(1) + 1, [6, 5, 4, 1])


def test_the_knee_separates_clusters_from_noise():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(12, 2)) * 0.2, 8 + rng.normal(size=(12, 2)) * 0.2, [[30, 0], [0, 60]]])
    distance = np.linalg.norm(points[:, None] - points, axis=-1)
    present = np.arange(26) != 5
    knee = jax.jit(density.knee, static_argnums=2)
    eps = knee(distance, present, 4)
    assert 0.1 < eps < 3
    labels = jax.jit(density.dbscan)(distance, present, eps, 4)
    np.testing.assert_array_equal(np.bincount(labels[present]), [11, 12, 1, 1])
    assert knee(distance, np.zeros(26, bool), 4) == np.inf


@pytest.mark.parametrize("distance", [lambda x: jnp.sqrt(kmeans.euclidean(x, x)), lambda x: kmeans.cosine(x, x)])
def test_clients_described_alike_are_one_cluster_without_a_radius(distance):
    """The distances of most clients to their neighbours are nothing but rounding."""
    for points in (np.eye(3), np.random.default_rng(0).normal(size=(4, 1000))):
        truth = np.arange(40) % len(points)
        away = distance(jnp.asarray(points[truth], jnp.float32))
        present = np.ones(40, bool)
        found = density.dbscan(away, present, density.knee(away, present, 3), 3)
        assert adjusted_rand_score(truth, found) == 1


# A few numbers about a client


@pytest.mark.parametrize("n, d", [(5, 11), (11, 5)])
@FEW
@SEEDS
def test_decomposed_is_a_truncated_svd(n, d, seed):
    rng = np.random.default_rng(seed)
    points, present = rng.normal(size=(n, d)), np.arange(n) != 2
    _, _, right = np.linalg.svd(points[present], full_matrices=False)
    raw = points[present] @ right[:3].T
    expected = raw / np.linalg.norm(points[present], axis=1)[:, None]
    found = decomposed(points, present)
    np.testing.assert_array_equal(found[2], 0)
    sign = np.sign((found[present] * expected).sum(0))
    np.testing.assert_allclose(found[present], sign * expected, atol=1e-6)


decomposed = double(functools.partial(svd.decomposed, rank=3))


def test_decomposed_beyond_the_rank_is_zero():
    points = jnp.array([[3.0, 0, 0], [-2, 0, 0], [0, 1, 0], [0, 0, 0]])
    found = jax.jit(functools.partial(svd.decomposed, rank=6))(points, jnp.ones(4, bool))
    assert found.shape == (4, 6)
    np.testing.assert_allclose(found[:, :2], [[1, 0], [-1, 0], [0, 1], [0, 0]], atol=1e-5)
    np.testing.assert_array_equal(found[:, 2:], 0)


def test_absent_clients_do_not_lower_the_rank():
    points = np.zeros((300, 2), np.float32)
    points[0, 0], points[1, 1] = 1, 0.004
    found = jax.jit(functools.partial(svd.decomposed, rank=2))(points, np.arange(len(points)) < 2)
    np.testing.assert_allclose(found[:2], np.eye(2), atol=1e-5)


@FEW
@SEEDS
def test_responsibilities_are_a_softmax_of_log_prior_less_loss(seed):
    rng = np.random.default_rng(seed)
    losses, mask, weights = rng.exponential(5, (9, 3)), rng.random(9) < 0.7, rng.dirichlet([1, 1, 1])
    mask[0], weights = True, np.append(weights[:2] / weights[:2].sum(), 0)  # the third model has no part in it
    losses[~mask] = np.nan
    found = responsibilities(losses, mask, weights)
    with np.errstate(divide="ignore"):
        expected = softmax(np.log(weights) - losses[mask], axis=1)
    np.testing.assert_allclose(found[mask], expected, atol=1e-12)
    np.testing.assert_array_equal(found[~mask], 0)
    np.testing.assert_allclose(mixture(found, mask), expected.mean(0), atol=1e-12)
    np.testing.assert_array_equal(soft.hard(jnp.asarray(found[mask])), expected.argmax(1))


responsibilities, mixture = double(soft.responsibilities), double(soft.prior)


def test_em_finds_the_shares_of_a_mixture():
    """Unit Gaussians at 0 and 6, a quarter of the examples from the second."""
    x = jnp.concatenate([jax.random.normal(jax.random.key(0), (75,)), 6 + jax.random.normal(jax.random.key(1), (25,))])
    losses, mask = (x[:, None] - jnp.array([0.0, 6.0])) ** 2 / 2, jnp.ones(100, bool)
    turn = lambda weights, _: (soft.prior(soft.responsibilities(losses, mask, weights), mask), None)
    weights = jax.lax.scan(turn, jnp.array([0.5, 0.5]), length=20)[0]
    np.testing.assert_allclose(weights, [0.75, 0.25], atol=0.01)


def test_soft_weights_of_a_client_without_examples():
    none = jnp.zeros(3, bool)
    np.testing.assert_allclose(soft.prior(jnp.ones((3, 4)), none), 0.25)
    np.testing.assert_array_equal(soft.responsibilities(jnp.ones((3, 4)), none, jnp.full(4, 0.25)), 0)
    np.testing.assert_array_equal(soft.hard(jnp.array([[0.2, 0.4, 0.4], [1, 0, 0]])), [1, 0])


@FEW
@SEEDS
def test_moments_and_label_shares(seed):
    rng = np.random.default_rng(seed)
    features, mask, y = rng.normal(3, 2, (8, 3)), rng.random(8) < 0.7, rng.integers(0, 4, 8)
    mask[0] = True
    features[~mask] = np.nan
    expected = np.concatenate([features[mask].mean(0), features[mask].std(0)])
    np.testing.assert_allclose(statistics(features, mask), expected, atol=1e-12)
    np.testing.assert_allclose(shares(y, mask), np.bincount(y[mask], minlength=4) / mask.sum(), atol=1e-6)


statistics = double(moments.moments)
shares = double(functools.partial(moments.label_counts, classes=4))


def test_moments_without_examples():
    none = jnp.zeros(3, bool)
    np.testing.assert_array_equal(moments.moments(jnp.ones((3, 2)), none), 0)
    np.testing.assert_array_equal(moments.label_counts(jnp.ones(3, int), none, 2), 0)


def test_a_model_whose_loss_is_not_a_number_is_nobodys_best():
    """Its parameters may all be finite, while its logits are not."""
    costs = jnp.array([[2.0, 1.0, jnp.nan], [jnp.nan, jnp.nan, jnp.nan], [jnp.inf, 3.0, jnp.nan]])
    assert nearest_of(costs).tolist() == [1, 0, 1]


def test_seeds_of_clients_with_equal_labels_differ():
    """The divergence of a client from itself is slightly below 0 by rounding."""
    shares = np.random.default_rng(0).dirichlet(np.ones(10), 4).astype(np.float32)
    shares = jnp.array(np.repeat(shares, 5, 0))
    between = KullbackLeibler().metric(tiny.setting().context, LabelCounts())
    for turn in range(4):
        found = kmeans.seeds(jax.random.key(turn), shares, jnp.ones(20), 4, metric=between)
        assert len(set((np.asarray(found) // 5).tolist())) == 4
