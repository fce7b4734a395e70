"""Agglomeration against scikit-learn and a search of all pairs; CFL's split against all bipartitions."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from jcfl.grouping import linkage

M = 14
KINDS = ("average", "complete", "single")


@functools.cache
def compiled(kind, by):
    return jax.jit(lambda d, present, limit: linkage.agglomerate(d, present, kind, **{by: limit}))


def agglomerated(distance, present, kind, **limit):
    ((by, value),) = limit.items()
    with jax.enable_x64(True):
        return np.asarray(compiled(kind, by)(jnp.asarray(distance), jnp.asarray(present), value))


def numbered(labels, present):
    """Labels of the present renumbered by their smallest members, -1 elsewhere."""
    full, seen = np.full(len(present), -1), {}
    for client, label in zip(np.flatnonzero(present), labels, strict=True):
        full[client] = seen.setdefault(label, len(seen))
    return full


def symmetric(rng, m=M, whole=False):
    upper = np.triu(rng.integers(0, 6, (m, m)).astype(float) if whole else rng.normal(size=(m, m)), 1)
    return upper + upper.T


def search(distance, present, kind, threshold, clusters):
    """Unite the first nearest pair, its distance taken from its members' own, until the limits."""
    groups = [[int(i)] for i in np.flatnonzero(present)]
    joined = {"average": np.mean, "complete": np.max, "single": np.min}[kind]
    while len(groups) > clusters:
        near = {(a, b): joined(distance[np.ix_(a, b)]) for a, b in itertools.combinations(map(tuple, groups), 2)}
        if not near:
            break
        a, b = min(near, key=lambda pair: (round(near[pair], 9), min(pair[0]), min(pair[1])))
        if near[a, b] >= threshold:
            break
        groups = sorted([*(g for g in groups if tuple(g) not in (a, b)), [*a, *b]], key=min)
    full = np.full(len(present), -1)
    for label, group in enumerate(groups):
        full[group] = label
    return full


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(KINDS), st.integers(1, 6))
def test_stops_at_a_number_as_scikit_learn_does(seed, kind, clusters):
    rng = np.random.default_rng(seed)
    distance, present = symmetric(rng), rng.random(M) < 0.8
    present[:6] = True
    peer = AgglomerativeClustering(clusters, metric="precomputed", linkage=kind)
    expected = numbered(peer.fit_predict(distance[np.ix_(present, present)]), present)
    np.testing.assert_array_equal(agglomerated(distance, present, kind, clusters=clusters), expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(KINDS), st.floats(0.0, 3.0))
def test_stops_at_a_distance_as_scikit_learn_does(seed, kind, threshold):
    rng = np.random.default_rng(seed)
    distance, present = np.abs(symmetric(rng)), rng.random(M) < 0.8
    present[:2] = True
    peer = AgglomerativeClustering(None, distance_threshold=threshold, metric="precomputed", linkage=kind)
    expected = numbered(peer.fit_predict(distance[np.ix_(present, present)]), present)
    np.testing.assert_array_equal(agglomerated(distance, present, kind, threshold=threshold), expected)


@settings(max_examples=40, deadline=None)
@example(8135, "average", 4)  # thirds that rounding once told apart
@given(st.integers(0, 2**31), st.sampled_from(KINDS), st.integers(1, 8))
def test_ties_go_to_the_smallest_ids(seed, kind, clusters):
    rng = np.random.default_rng(seed)
    distance, present = symmetric(rng, whole=True), rng.random(M) < 0.9
    expected = search(distance, present, kind, np.inf, clusters)
    np.testing.assert_array_equal(agglomerated(distance, present, kind, clusters=clusters), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_both_limits_hold_and_a_distance_at_the_threshold_does_not_unite(kind):
    distance, present = np.abs(symmetric(np.random.default_rng(3))), np.ones(M, bool)
    both = jax.jit(lambda *given: linkage.agglomerate(*given, kind, threshold=0.5, clusters=5))(distance, present)
    np.testing.assert_array_equal(both, search(distance, present, kind, 0.5, 5))
    pair = np.array([[0.0, 2.0], [2.0, 0.0]])
    assert agglomerated(pair, np.ones(2, bool), kind, threshold=2.0).tolist() == [0, 1]
    assert agglomerated(pair, np.ones(2, bool), kind, threshold=2.1).tolist() == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_absent_influence_nothing(kind):
    rng = np.random.default_rng(5)
    distance, present = symmetric(rng), np.arange(M) % 3 > 0
    noisy = np.where(present[:, None] & present, distance, rng.choice([np.nan, -np.inf, -99.0], (M, M)))
    np.fill_diagonal(noisy, -1e9)
    labels = agglomerated(distance, present, kind, clusters=3)
    np.testing.assert_array_equal(agglomerated(noisy, present, kind, clusters=3), labels)
    assert labels.max() == 2 and (labels[~present] == -1).all() and labels[1] == 0


def test_nobody_one_and_everybody():
    distance = jnp.array(symmetric(np.random.default_rng(0)))
    for count, expected in ((0, []), (1, [0]), (M, [0] * M)):
        labels = linkage.agglomerate(distance, jnp.arange(M) < count, "average")
        assert labels.dtype == jnp.int32
        assert labels.tolist() == expected + [-1] * (M - count)


def test_runs_under_vmap():
    rng = np.random.default_rng(1)
    distance = jnp.array(np.stack([symmetric(rng) for _ in range(3)]))
    present = jnp.array(rng.random((3, M)) < 0.7)
    both = jax.vmap(lambda d, p: linkage.agglomerate(d, p, "complete", clusters=3))(distance, present)
    for labels, d, p in zip(both, distance, present, strict=True):
        np.testing.assert_array_equal(labels, linkage.agglomerate(d, p, "complete", clusters=3))


def cosines(rng, m):
    rows = rng.normal(size=(m, 3)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def crossing(similarity, half, rest):
    return similarity[np.ix_(half, rest)].max()


halves = functools.cache(lambda kind: jax.jit(functools.partial(linkage.bipartition, linkage=kind)))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_bipartition_is_complete_linkage_on_minus_the_cosine(seed):
    rng = np.random.default_rng(seed)
    similarity, member = cosines(rng, 9), rng.random(9) < 0.8
    member[[2, 5]] = True
    half, cross = halves("complete")(similarity, member)
    peer = AgglomerativeClustering(2, metric="precomputed", linkage="complete")
    expected = numbered(peer.fit_predict(-similarity[np.ix_(member, member)].astype(float)), member)
    np.testing.assert_array_equal(half, expected == 1)
    assert cross == crossing(similarity, expected == 0, expected == 1)


def least_crossing(similarity, ids):
    """The least greatest similarity across the halves, over all bipartitions."""
    first, *others = ids
    return min(
        crossing(similarity, list(half), [i for i in ids if i not in half])
        for count in range(1, len(ids))
        for half in itertools.combinations(others, count)
        if first not in half
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_single_linkage_is_the_optimal_bipartition(seed):
    rng = np.random.default_rng(seed)
    similarity, member = cosines(rng, 9), rng.random(9) < 0.8
    member[[2, 5]] = True
    half, cross = halves("single")(similarity, member)
    optimum = least_crossing(similarity, np.flatnonzero(member).tolist())
    assert cross == optimum
    assert cross == crossing(similarity, np.asarray(half), member & ~np.asarray(half))
    assert halves("complete")(similarity, member)[1] >= optimum


def test_complete_linkage_need_not_be_the_optimal_bipartition():
    """A chain of clients with an outlier: complete linkage cuts the chain, single linkage cuts off the outlier."""
    angles = np.deg2rad([0.0, 20.0, 41.0, 63.0, 100.0])
    similarity, member = jnp.array(np.cos(angles[:, None] - angles)), jnp.ones(5, bool)
    complete, wide = linkage.bipartition(similarity, member)
    single, narrow = linkage.bipartition(similarity, member, linkage="single")
    assert complete.tolist() == [False, False, True, True, True]
    assert single.tolist() == [False, False, False, False, True]
    np.testing.assert_allclose([wide, narrow], np.cos(np.deg2rad([21.0, 37.0])), rtol=1e-6)


def test_incongruent_clients_are_told_apart_by_their_ids():
    similarity = np.full((7, 7), -0.2, np.float32)
    for group in ([1, 4, 6], [2, 5]):
        similarity[np.ix_(group, group)] = 0.9
    member = np.array([False, True, True, False, True, True, True])
    half, cross = linkage.bipartition(jnp.array(similarity), jnp.array(member))
    assert np.flatnonzero(half).tolist() == [2, 5]
    assert cross == np.float32(-0.2)


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_split(count):
    half, cross = linkage.bipartition(jnp.eye(4), jnp.arange(4) < count)
    assert not half.any() and cross == -jnp.inf


@pytest.mark.parametrize("kind", KINDS)
def test_a_federation_of_one(kind):
    assert linkage.agglomerate(jnp.zeros((1, 1)), jnp.ones(1, bool), kind, threshold=9.0).tolist() == [0]
