import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from jcfl import metrics

M, C, R, K, G = 5, 4, 40, 6, 4

AGREEMENT = ("clusters", "purity", "pair_purity", "ari", "nmi", "seen")

rows = st.integers(0, 2**32 - 1).map(np.random.default_rng)
few = settings(max_examples=30, deadline=None)

# one compilation each: hypothesis varies values, never shapes
counts = jax.jit(lambda *a: metrics.counts(*a[:3], M, C, a[3]))
confusion = jax.jit(lambda *a: metrics.confusion(*a[:3], M, C, a[3]))
clusterability = jax.jit(metrics.clusterability, static_argnums=3)


def predictions_of(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Rows of an uneven federation: client 0 has none, and classes are missing from many clients."""
    clients = rng.choice(M, R, p=[0, 0.6, 0.2, 0.15, 0.05])
    labels = rng.integers(0, rng.integers(1, C + 1), R)
    predictions = np.where(rng.random(R) < rng.random(), labels, rng.integers(0, C, R))
    return clients, labels, predictions, rng.random(R) < 0.8


def scores(counts, losses, mask=True, labels=None) -> dict[str, float]:
    """The scores of predictions, over the clients under the mask."""
    counts = np.asarray(counts)
    m = len(counts)
    arrays = {"counts": counts, "losses": losses, "seen": np.ones(m, bool), "groups": np.full(m, -1)}
    arrays["labels"] = np.full(m, -1) if labels is None else labels
    clients = metrics.Evaluation.of(arrays, np.broadcast_to(mask, m))
    usual = {name: one for name, one in metrics.scores().items() if "attacked" not in one.over}
    table = {name: one.function for name, one in usual.items() if name not in AGREEMENT}
    return {name: function(clients) for name, function in table.items() if function is not None}


def oracle(clients, labels, predictions, losses, kept) -> dict[str, float]:
    """Scores by a loop over clients with scikit-learn."""
    accuracies, f1s, sizes, chosen = [], [], [], np.zeros(len(clients), bool)
    for client in np.flatnonzero(kept):
        own = clients == client
        if own.any():
            chosen |= own
            sizes.append(own.sum())
            accuracies.append(sk.accuracy_score(labels[own], predictions[own]))
            f1s.append(sk.f1_score(labels[own], predictions[own], average="macro", zero_division=0))
    return {
        "accuracy_micro": sk.accuracy_score(labels[chosen], predictions[chosen]),
        "accuracy_macro": np.mean(accuracies),
        "f1_micro": np.average(f1s, weights=sizes),
        "f1_macro": np.mean(f1s),
        "f1_pooled": sk.f1_score(labels[chosen], predictions[chosen], average="macro", zero_division=0),
        "accuracy_p5": np.percentile(accuracies, 5),
        "accuracy_p50": np.percentile(accuracies, 50),
        "accuracy_p95": np.percentile(accuracies, 95),
        "accuracy_worst": np.min(accuracies),
        "loss": losses[chosen].mean(),
    }


@few
@given(rows)
def test_scores_match_scikit_learn(rng):
    clients, labels, predictions, mask = predictions_of(rng)
    losses = rng.random(R)
    kept = rng.random(M) < 0.7
    kept[rng.choice(clients[mask])] = True
    sums = np.bincount(clients, losses * mask, minlength=M)
    got = scores(counts(clients, labels, predictions, mask), sums, kept)
    expected = oracle(clients[mask], labels[mask], predictions[mask], losses[mask], kept)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@few
@given(rows)
def test_confusion_matches_scikit_learn_and_holds_the_counts(rng):
    *table, mask = predictions_of(rng)
    got, short = confusion(*table, mask), counts(*table, mask)
    for client in range(M):
        own = mask & (table[0] == client)
        expected = (
            np.zeros((C, C)) if not own.any() else sk.confusion_matrix(table[1][own], table[2][own], labels=range(C))
        )
        np.testing.assert_array_equal(got[client], expected)
    np.testing.assert_array_equal(short[:, 0], np.diagonal(got, axis1=1, axis2=2))
    np.testing.assert_array_equal(short[:, 1], got.sum(2))
    np.testing.assert_array_equal(short[:, 2], got.sum(1))


def test_counts_by_hand():
    got = metrics.counts([0, 0, 2, 2], [1, 0, 1, 1], [1, 1, 0, 1], 3, 2)
    np.testing.assert_array_equal(got, [[[0, 1], [1, 1], [0, 2]], [[0, 0]] * 3, [[0, 1], [0, 2], [1, 1]]])
    assert got.dtype == jnp.int32
    np.testing.assert_allclose(metrics.accuracy(got), [0.5, np.nan, 0.5])
    np.testing.assert_allclose(metrics.f1(got), [1 / 3, np.nan, 1 / 3], rtol=1e-6)  # class 0 is present, with F1 0


def test_f1_of_more_examples_than_single_integers_hold():
    """A client's counts are int32; labels and predictions together, and true positives twice, are not."""
    many = np.array([[[2**30, 2**29], [2**30, 2**30], [3 * 2**29, 2**29]]], np.int32)
    np.testing.assert_allclose(metrics.f1(many), [(4 / 5 + 2 / 3) / 2])


@pytest.mark.parametrize("bad", [-1, -M, 10**6])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_row_out_of_range_is_left_out_and_never_wraps(column, bad):
    table = [np.full(R, 1), np.full(R, 2), np.full(R, 3)]
    table[column] = table[column].copy()
    table[column][:7] = bad
    expected = np.zeros((M, C, C))
    expected[1, 2, 3] = R - 7
    np.testing.assert_array_equal(confusion(*table, np.ones(R, bool)), expected)
    got = counts(*table, np.ones(R, bool))
    labelled = R if column == 2 else R - 7  # the label of a wrong prediction counts
    assert got[1, 1, 2] == labelled and got[1, 2, 3] == R - 7 and got.sum() == labelled + R - 7


def test_a_prediction_of_no_class_is_wrong():
    """Its label stays in the denominator, so that no prediction raises an accuracy."""
    got = metrics.counts([0, 0, 0, 0], [0, 1, 1, 0], [0, 2, -1, 0], 1, 2)
    np.testing.assert_array_equal(got, [[[2, 0], [2, 2], [2, 0]]])
    assert metrics.accuracy(got)[0] == 0.5


def test_narrow_types_and_chunks_give_the_same_counts():
    rng = np.random.default_rng(0)
    clients, labels = rng.integers(0, 300, 2000), rng.integers(0, 200, 2000)
    whole = metrics.counts(clients, labels, labels[::-1], 300, 300)
    narrow = metrics.counts(clients.astype(np.uint16), labels.astype(np.uint8), labels[::-1].astype(np.uint8), 300, 300)
    parts = [metrics.counts(clients[i], labels[i], labels[::-1][i], 300, 300) for i in (slice(900), slice(900, None))]
    np.testing.assert_array_equal(whole, narrow)
    np.testing.assert_array_equal(whole, parts[0] + parts[1])


def test_counts_pass_the_range_of_a_narrow_mask():
    clients = np.zeros(300, int)
    assert metrics.counts(clients, clients, clients, 1, 1, np.ones(300, np.uint8)).sum() == 900


def test_weights_may_be_fractions():
    got = metrics.counts([0, 0], [0, 1], [0, 0], 1, 2, np.array([0.75, 0.25]))
    assert got.dtype == jnp.float32
    assert metrics.accuracy(got)[0] == 0.75


def test_clients_without_rows_and_outside_the_mask_change_nothing():
    table = metrics.counts([0, 0, 1, 3], [0, 1, 1, 0], [0, 0, 1, 1], 5, 2)
    losses = np.array([2.0, 4.0, 0.0, np.nan, 0.0])
    got = scores(table, losses, np.array([True, True, True, False, True]))
    assert got["accuracy_macro"] == 0.75 and got["accuracy_worst"] == 0.5 and got["loss"] == 2
    np.testing.assert_allclose(got["accuracy_micro"], 2 / 3, rtol=1e-6)


def test_scores_of_nothing_are_undefined():
    empty = scores(np.zeros((M, 3, C), int), np.zeros(M))
    assert all(np.isnan(value) for value in empty.values())


def pairs_in_clusters(labels, groups) -> float:
    """Pair purity by a loop over pairs."""
    shares = []
    for cluster in np.unique(labels):
        members = groups[labels == cluster]
        same = [a == b for i, a in enumerate(members) for b in members[:i]]
        shares.append(np.mean(same) if same else 1.0)
    return float(np.mean(shares))


def pair_ari(labels, groups) -> float:
    """The adjusted Rand index by a loop over pairs."""
    pairs = list(itertools.combinations(range(len(labels)), 2))
    together = np.array([[labels[i] == labels[j], groups[i] == groups[j]] for i, j in pairs], bool).reshape(-1, 2)
    both, (by_label, by_group) = together.all(1).sum(), together.sum(0)
    chance = by_label * by_group / max(len(pairs), 1)
    most = (by_label + by_group) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


@few
@given(rows)
def test_clustering_is_that_of_loops_over_pairs(rng):
    m = 30
    groups = rng.integers(-1, rng.integers(1, G + 1), m)
    labels = np.where(rng.random(m) < rng.random(), groups, rng.integers(-1, rng.integers(1, K + 1), m))
    mask = rng.random(m) < 0.8
    got = metrics.clustering(labels[mask], groups[mask])
    assert got["clusters"] == len(set(labels[mask]) - {-1})
    known = mask & (labels >= 0) & (groups >= 0)
    labels, groups = labels[known], groups[known]
    if not known.any():
        assert all(np.isnan(got[name]) for name in ("purity", "pair_purity", "ari", "nmi"))
        return
    matrix = sk.cluster.contingency_matrix(labels, groups)
    expected = {
        "purity": matrix.max(1).sum() / matrix.sum(),
        "pair_purity": pairs_in_clusters(labels, groups),
        "ari": pair_ari(labels, groups),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("labels", "groups", "expected"),
    [
        ([2, 2, 2, 2], [0, 0, 1, 1], {"clusters": 1, "purity": 0.5, "pair_purity": 1 / 3, "ari": 0, "nmi": 0}),
        ([2, 2, 2, 2], [1, 1, 1, 1], {"clusters": 1, "purity": 1, "pair_purity": 1, "ari": 1, "nmi": 1}),
        ([0, 1, 2, 3], [0, 0, 1, 1], {"clusters": 4, "purity": 1, "pair_purity": 1, "ari": 0, "nmi": 2 / 3}),
        ([0, 1, 2, 3], [3, 2, 1, 0], {"clusters": 4, "purity": 1, "pair_purity": 1, "ari": 1, "nmi": 1}),
        ([0, 1, 0, 1], [0, 0, 1, 1], {"clusters": 2, "purity": 0.5, "pair_purity": 0, "ari": -0.5, "nmi": 0}),
        ([5, -1, -1, -1], [3, 0, 0, 0], {"clusters": 1, "purity": 1, "pair_purity": 1, "ari": 1, "nmi": 1}),
        ([0] * 6 + [1] * 2, [0] * 3 + [1] * 3 + [0] * 2, {"clusters": 2, "purity": 5 / 8, "pair_purity": 0.7}),
        ([1, 1, 4, 4], [3, 3, 0, 0], {"clusters": 2, "purity": 1, "pair_purity": 1, "ari": 1, "nmi": 1}),
    ],
    ids=[
        *["one cluster", "one cluster one group", "singletons", "singletons twice", "crossed", "one client", "uneven"],
        "renamed",
    ],
)
def test_clustering_by_hand(labels, groups, expected):
    got = metrics.clustering(np.array(labels), np.array(groups))
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


def test_unknown_groups_leave_only_the_number_of_clusters():
    got = metrics.clustering(np.array([0, 3, 3, -1]), np.full(4, -1))
    assert got.pop("clusters") == 2
    assert all(np.isnan(value) for value in got.values())
    nobody = metrics.clustering(np.full(4, -1), np.zeros(4, int))
    assert nobody.pop("clusters") == 0
    assert all(np.isnan(value) for value in nobody.values())


def test_a_million_clients_each_alone():
    groups = np.random.default_rng(7).integers(0, 4, 1_000_000)
    got = metrics.clustering(np.arange(1_000_000), groups)
    assert (got["clusters"], got["purity"], got["pair_purity"]) == (1_000_000, 1, 1)
    np.testing.assert_allclose(got["ari"], 0, atol=1e-9)


def test_sizes_and_moves():
    before, after = np.array([0, 0, 2, -1, 1]), np.array([0, 2, -1, 1, 3])
    np.testing.assert_array_equal(metrics.sizes(before, 4), [2, 1, 1, 0])
    np.testing.assert_array_equal(metrics.sizes(before, 4, before != 1), [2, 0, 1, 0])
    assert metrics.moves(before, after) == 2


def vectors_of(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors in clusters 0, 1 and 3 of 5; client 2 is in none, client 4 has no examples."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(1, 1, (10, 3)),
        np.array([0, 0, -1, 1, 1, 1, 3, 3, 3, 0]),
        np.array([1, 2, 3, 4, 0, 5, 6, 7, 8, 9]),
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_clusterability_is_the_largest_relative_distance_from_the_mean_gradient():
    gradients, labels, weights = vectors_of(0)
    got = clusterability(gradients, labels, weights, 5)
    for cluster in range(5):
        own = (labels == cluster) & (weights > 0)
        if not own.any():
            assert np.isnan(got[cluster])
            continue
        mean = np.average(gradients[own], axis=0, weights=weights[own])
        expected = max(np.linalg.norm(mean - one) for one in gradients[own]) / np.linalg.norm(mean)
        np.testing.assert_allclose(got[cluster], expected, rtol=1e-5)


def test_clusterability_at_its_ends():
    same, apart, zero = np.ones((4, 2)), np.array([[1.0, 0], [-1, 0]]), np.zeros((2, 2))
    got = clusterability(np.concatenate([same, apart, zero]), np.array([0, 0, 0, 0, 1, 1, 2, 2]), np.ones(8), 3)
    np.testing.assert_array_equal(got, [0, np.inf, 0])


def test_objectives_are_weighted_means_over_clients_in_clusters():
    vectors, labels, weights = vectors_of(1)
    centres, losses = np.random.default_rng(3).normal(size=(5, 3)), np.arange(10.0)
    losses[2] = np.nan
    seen = labels >= 0
    got = jax.jit(metrics.learning_objective)(losses, labels, weights)
    np.testing.assert_allclose(got, np.average(losses[seen], weights=weights[seen]), rtol=1e-6)
    distances = np.sum((vectors - centres[labels]) ** 2, 1)
    got = jax.jit(metrics.clustering_objective)(vectors, centres, labels, weights)
    np.testing.assert_allclose(got, np.average(distances[seen], weights=weights[seen]), rtol=1e-5)
    assert np.isnan(metrics.learning_objective(losses, np.full(10, -1), weights))


def test_cosines_within_and_between_clusters():
    vectors, labels, _ = vectors_of(2)
    sums = {cluster: vectors[labels == cluster].sum(0) for cluster in (0, 1, 3)}
    within = [cosine(vectors[i], vectors[j]) for i in range(10) for j in range(i) if labels[i] == labels[j] >= 0]
    between = [cosine(sums[a], sums[b]) for a, b in ((0, 1), (0, 3), (1, 3))]
    got = jax.jit(metrics.within_between, static_argnums=2)(vectors @ vectors.T, labels, 5)
    np.testing.assert_allclose(got, [np.mean(within), np.mean(between)], rtol=1e-5)

    inner = metrics.cluster_gram(vectors @ vectors.T, labels, 5)
    for (a, first), (b, second) in ((x, y) for x in sums.items() for y in sums.items()):
        np.testing.assert_allclose(inner[a, b], first @ second, rtol=1e-5)
    assert not inner[2].any() and not inner[4].any()
    live = metrics.sizes(labels, 5) > 0
    np.testing.assert_allclose(jax.jit(metrics.objective)(inner, live), np.sum(between), rtol=1e-5)
    means = inner / np.outer(*[np.maximum(metrics.sizes(labels, 5), 1)] * 2)
    np.testing.assert_allclose(metrics.objective(means, live), np.sum(between), rtol=1e-5)


def test_cosines_without_a_pair():
    within, between = metrics.within_between(np.eye(3), np.array([0, -1, -1]), 2)
    assert np.isnan(within) and np.isnan(between)
    assert metrics.objective(np.eye(3), np.array([True, False, False])) == 0
    # a vector of length zero has no direction, and a dead slot's content is never read
    assert (
        metrics.objective(np.array([[0, 0, 0], [0, 1, np.nan], [0, np.nan, np.nan]]), np.array([True, True, False]))
        == 0
    )
