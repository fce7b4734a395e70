"""Averaging rules against NumPy, cluster by cluster."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jcfl import registry
from jcfl.core import averaging, server
from jcfl.core.aggregates import ServerOptimizer
from jcfl.core.privacy import Privacy
from jcfl.errors import InputError
from jcfl.methods import fedavg
from jcfl.types import Cohort
from tests import tiny

S, K = 11, 4

RULES = {
    "weighted_mean": averaging.weighted_mean,
    "median": averaging.median,
    "trimmed_mean": functools.partial(averaging.trimmed_mean, beta=0.2),
    "median_of_means": functools.partial(averaging.median_of_means, buckets=3),
}
JITTED = {name: jax.jit(rule) for name, rule in RULES.items()}
trimmed = jax.jit(lambda beta, *a: averaging.trimmed_mean(*a, beta=beta))
bucketed = jax.jit(lambda buckets, *a: averaging.median_of_means(*a, buckets=buckets), static_argnums=0)

seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
few = settings(max_examples=25, deadline=None)


def cohort(rng: np.random.Generator):
    """Clients of uneven weight, some absent, in uneven clusters, some empty."""
    labels = rng.integers(0, rng.integers(1, K + 1), S).astype(np.int32)
    weights = np.where(rng.random(S) < 0.8, rng.integers(1, 9, S), 0).astype(np.float32)
    labels = np.where((weights == 0) & (rng.random(S) < 0.5), -1, labels).astype(np.int32)
    model = lambda n: {
        "a": rng.normal(size=(n, 2, 3)).astype(np.float32),
        "b": np.round(rng.normal(size=n), 1).astype(np.float32),
        "steps": rng.integers(0, 100, n).astype(np.int32),
    }
    return labels, weights, model(S), model(K)


def by_cluster(average, labels, weights, uploads, default):
    """`average(rows [n, ...], weights [n])` of every cluster's clients, by a loop."""
    out = {name: leaf.astype(np.float64) for name, leaf in default.items()}
    for c in range(K):
        own = (labels == c) & (weights > 0)
        for name in out if own.any() else ():
            out[name][c] = average(uploads[name][own].astype(np.float64), weights[own])
    return out


def close(got, want):
    """Floats agree; a whole number is the nearest to what is wanted, either of two where that lies halfway."""
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=0.5 + 1e-4 if name == "steps" else 1e-5)
        assert got[name].dtype == (np.int32 if name == "steps" else np.float32)


def cut(beta, rows):
    """The mean without the ⌊βn⌋ at either end."""
    out = int(np.floor(beta * len(rows) + 1e-9))
    return np.sort(rows, 0)[out : len(rows) - out].mean(0)


def dealt(buckets, rows):
    """The median of the means of buckets filled in turn."""
    used = min(buckets, len(rows))
    return np.median([rows[b::used].mean(0) for b in range(used)], 0)


@few
@given(seeds)
def test_weighted_mean_is_numpys(rng):
    args = cohort(rng)
    close(JITTED["weighted_mean"](*args), by_cluster(lambda r, w: np.average(r, 0, w), *args))


@few
@given(seeds)
def test_median_is_numpys(rng):
    args = cohort(rng)
    close(JITTED["median"](*args), by_cluster(lambda r, w: np.median(r, 0), *args))


@few
@given(seeds, st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.49]))
def test_trimmed_mean_drops_both_ends(rng, beta):
    args = cohort(rng)
    close(trimmed(beta, *args), by_cluster(lambda r, w: cut(beta, r), *args))


@few
@given(seeds)
def test_median_of_means_deals_clients_to_buckets(rng):
    args = cohort(rng)
    close(JITTED["median_of_means"](*args), by_cluster(lambda r, w: dealt(3, r), *args))


def test_the_bootstrap_draws_buckets_with_replacement():
    args, key = cohort(np.random.default_rng(7)), jax.random.key(5)
    rule = functools.partial(averaging.bootstrap_median_of_means, buckets=7, size=3)

    def drawn(cluster, rows):
        who = jax.random.randint(jax.random.fold_in(key, cluster), (7, 3), 0, len(rows))
        return np.median(rows[np.asarray(who)].mean(1), 0)

    parts = [by_cluster(lambda r, w, c=c: drawn(c, r), *args) for c in range(K)]
    close(jax.jit(rule)(*args, key=key), {name: np.stack([parts[c][name][c] for c in range(K)]) for name in args[3]})


@pytest.mark.parametrize("bad", [1e30, np.inf, np.nan])
def test_the_bootstrap_withstands_what_dealt_buckets_do_not(bad):
    """Four of eleven clients are hostile: every dealt bucket of four has one; most drawn buckets of one have none."""
    rows = np.where(np.arange(S) < 4, bad, 1.0).astype(np.float32)
    args = np.zeros(S, np.int32), np.ones(S, np.float32), rows, np.zeros(1, np.float32)
    bootstrap = jax.jit(lambda *a: averaging.bootstrap_median_of_means(*a, key=jax.random.key(0), buckets=99, size=1))
    assert not np.abs(bucketed(3, *args)[0]) < 2
    assert bootstrap(*args)[0] == 1


def test_trimmed_mean_is_scipys():
    rows = np.random.default_rng(0).normal(size=(S, 5)).astype(np.float32)
    for beta in (0.1, 0.3, 0.45):
        got = trimmed(beta, np.zeros(S, np.int32), np.ones(S), rows, np.zeros((1, 5), np.float32))
        np.testing.assert_allclose(got[0], stats.trim_mean(rows, beta), atol=1e-6)


@pytest.mark.parametrize(("beta", "n"), [(0.3, 10), (0.21, 300), (0.26, 450)])
def test_a_share_that_makes_a_whole_number_drops_that_many(beta, n):
    """Rounded down in single precision, 0.21 of 300 clients would be 62."""
    rows = (np.arange(n, dtype=np.float32) / n) ** 2
    labels, weights = np.zeros(n, np.int32), np.ones(n, np.float32)
    got = trimmed(beta, labels, weights, rows, np.zeros(1, np.float32))
    out = round(beta * n)
    np.testing.assert_allclose(got[0], rows[out : n - out].mean(), rtol=1e-6)


def test_the_limits_of_the_robust_rules_are_mean_and_median():
    args = cohort(np.random.default_rng(3))
    equal = args[0], (args[1] > 0).astype(np.float32), args[2], args[3]
    mean, middle = JITTED["weighted_mean"](*equal), JITTED["median"](*equal)
    close(trimmed(0.0, *args), mean)
    close(bucketed(1, *args), mean)
    close(bucketed(S, *args), middle)
    close(trimmed(0.499, *args), middle)


@pytest.mark.parametrize("bad", [1e30, -1e30, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["median", "trimmed_mean", "median_of_means"])
def test_a_minority_of_outliers_moves_a_robust_rule_no_further_than_honest_clients(name, bad):
    rng = np.random.default_rng(1)
    labels = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1], np.int32)
    rows = rng.normal(size=(S, 3)).astype(np.float32)
    rows[[2, 8]] = bad  # one client in each cluster
    weights = np.where(np.isin(np.arange(S), [2, 8]), 1e6, 1.0).astype(np.float32)
    got = np.asarray(JITTED[name](labels, weights, rows, np.zeros((2, 3), np.float32)))
    for c in range(2):
        honest = np.delete(rows, [2, 8], 0)[np.delete(labels, [2, 8]) == c]
        assert (honest.min(0) <= got[c]).all()
        assert (got[c] <= honest.max(0)).all()


@pytest.mark.parametrize("name", RULES)
def test_what_is_not_finite_stays_in_its_cluster_and_absent_clients_do_nothing(name):
    labels, weights, uploads, default = cohort(np.random.default_rng(2))
    labels, weights = np.arange(S, dtype=np.int32) % 3, np.ones(S, np.float32)
    weights[4], clean = 0, jax.tree.map(np.array, uploads)
    uploads["a"][[0, 3, 6, 9]] = np.nan  # all of cluster 0
    uploads["a"][4] = np.inf
    got, want = JITTED[name](labels, weights, uploads, default), JITTED[name](labels, weights, clean, default)
    assert np.isnan(got["a"][0]).all()
    np.testing.assert_array_equal(got["a"][1:], want["a"][1:])


@pytest.mark.parametrize("name", RULES)
def test_clusters_without_clients_keep_their_default_exactly(name):
    labels, weights, uploads, default = cohort(np.random.default_rng(5))
    labels = np.full(S, 2, np.int32)
    got = JITTED[name](labels, weights, uploads, default)
    for leaf in default:
        np.testing.assert_array_equal(np.delete(got[leaf], 2, 0), np.delete(default[leaf], 2, 0))
    nobody = JITTED[name](labels, np.zeros(S, np.float32), uploads, default)
    jax.tree.map(np.testing.assert_array_equal, nobody, default)


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_clusters_and_more_clusters_change_nothing(name):
    """Every client in a cluster of its own gets its upload back."""
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    order = np.array([3, 0, 4, 1, 2], np.int32)
    got = JITTED[name](order, np.full(5, 2.0), rows, np.zeros((40, 3), np.float32))
    np.testing.assert_allclose(got[order], rows, rtol=1e-6)
    np.testing.assert_array_equal(got[5:], 0)


@pytest.mark.parametrize("name", RULES)
def test_a_label_that_is_no_cluster_counts_nowhere(name):
    _, _, uploads, default = cohort(np.random.default_rng(4))
    labels = np.array([-1, 0, 1, 2, 3, 4, 0, 1, 2, 3, 99], np.int32)
    weights = np.ones(S, np.float32)
    want = JITTED[name](labels, np.isin(labels, range(K)).astype(np.float32), uploads, default)
    close(JITTED[name](labels, weights, uploads, default), want)


@pytest.mark.parametrize("name", RULES)
def test_one_program_serves_every_cohort(name):
    traces = []

    def counted(*args):
        traces.append(name)
        return RULES[name](*args)

    program = jax.jit(counted)
    for seed in range(3):
        args = cohort(np.random.default_rng(seed))
        program(*args)
    assert traces == [name]


@pytest.mark.parametrize("name", RULES)
def test_dtypes_are_kept(name):
    rows = {"half": jnp.arange(6, dtype=jnp.bfloat16), "flag": jnp.array([True] * 5 + [False]), "n": jnp.full(6, 7)}
    default = jax.tree.map(lambda leaf: leaf[:2], rows)
    got = JITTED[name](jnp.zeros(6, int), jnp.ones(6), rows, default)
    assert jax.tree.map(lambda leaf: leaf.dtype, got) == jax.tree.map(lambda leaf: leaf.dtype, default)
    assert float(got["half"][0]) == 2.5
    assert bool(got["flag"][0])
    assert int(got["n"][0]) == 7


def test_options_come_from_the_signatures():
    registry.load()
    assert set(RULES) - {"weighted_mean"} | {"mean"} <= set(registry.names("aggregate"))
    assert registry.options("aggregate", "trimmed_mean", {"beta": 0.25}) == {"beta": 0.25, "rate": 1.0}
    for name, given_ in [("trimmed_mean", {"beta": 0.5}), ("median_of_means", {"buckets": 0}), ("median", {"beta": 0})]:
        with pytest.raises(InputError):
            registry.options("aggregate", name, given_)


@pytest.mark.parametrize("privacy", [Privacy(), Privacy(description_clip=1e6)], ids=["open", "private"])
def test_a_client_without_examples_does_not_count(privacy):
    """It sends back what it was sent. Under privacy nobody may know that, so all clients count there."""
    data = tiny.federation()
    data = data.replace(train=data.train.replace(size=np.where(np.arange(8) == 1, 0, data.train.size).astype(np.int32)))
    method = fedavg(averaging="equally")
    method = method.with_aggregate(privacy=privacy) if privacy.is_on else method
    weights = server.weights_of(Cohort(jnp.arange(8), jnp.arange(8) < 7), data, server.counting(method))
    assert weights.tolist() == [1, float(privacy.is_on), 1, 1, 1, 1, 1, 0]


# The server's optimizers


def adagrad(delta, m, v, turn, lr, b1, b2, tau):
    """Algorithm 2 of Reddi et al. 2021, without momentum, which the option of the server's Adagrad does not have."""
    v = (tau**2 if turn == 0 else v) + delta**2
    return lr * delta / (np.sqrt(v) + tau), m, v


def yogi(delta, m, v, turn, lr, b1, b2, tau):
    """Algorithm 2 of Reddi et al. 2021 from zero moments, corrected as Adam's are."""
    m = b1 * m + (1 - b1) * delta
    v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
    return lr * m / (1 - b1 ** (turn + 1)) / (np.sqrt(v / (1 - b2 ** (turn + 1))) + tau), m, v


def sgd(delta, m, v, turn, lr, b1, b2, tau):
    """FedAvg with a learning rate of the server."""
    return lr * delta, m, v


@pytest.mark.parametrize(("kind", "loop"), [("sgd", sgd), ("adagrad", adagrad), ("yogi", yogi)])
def test_server_optimizers_are_those_of_the_paper(kind, loop):
    optimizer = ServerOptimizer(kind=kind, lr=0.1, momentum=0.9, b2=0.99, eps=1e-3).transformation()
    x = y = np.zeros(3, np.float32)
    state, m, v = optimizer.init(jnp.asarray(x)), np.zeros(3), np.zeros(3)
    for turn, delta in enumerate(np.float32([[1e-3, 0.5, 0], [-2e-3, 0.1, 0], [1e-4, -1.0, 0]])):
        step, state = optimizer.update(jnp.asarray(-delta), state, jnp.asarray(x))
        x = x + np.asarray(step)
        step, m, v = loop(delta.astype(float), m, v, turn, 0.1, 0.9, 0.99, 1e-3)
        y = y + step
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-7)
    assert x[2] == 0  # what no client changes does not move
