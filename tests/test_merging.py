"""Greedy merging against a search of all pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jcfl.grouping import merging
from jcfl.types.target import Target, compiling_for


def search(vectors, alive, tau):
    """Merge the most similar pair, found among all, until none is similar enough."""
    sums = {i: v.astype(float) for i, (v, a) in enumerate(zip(vectors, alive, strict=True)) if a}
    target = np.arange(len(vectors))
    while len(sums) > 1:
        pairs = [(a, b) for a in sums for b in sums if a < b]
        unit = {i: v / np.linalg.norm(v) for i, v in sums.items()}
        a, b = max(pairs, key=lambda pair: unit[pair[0]] @ unit[pair[1]])
        if unit[a] @ unit[b] < tau:
            break
        sums[a] = sums[a] + sums.pop(b)
        target[target == b] = a
    return target


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(-0.9, 0.95), st.integers(2, 5))
def test_merges_exactly_the_most_similar_pairs(seed, tau, d):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, d))
    vectors = centres[rng.integers(3, size=24)] + rng.normal(size=(24, d)) * rng.choice([0.1, 0.5, 2.0])
    alive = rng.random(24) < 0.8
    with jax.enable_x64(True):
        target, gram = jax.jit(merging.greedy)(jnp.array(vectors @ vectors.T), jnp.array(alive), tau)
        expected = search(vectors, alive, tau)
        np.testing.assert_array_equal(np.asarray(target)[alive], expected[alive])
        sums = np.zeros_like(vectors)
        np.add.at(sums, expected[alive], vectors[alive])
        roots = alive & (expected == np.arange(24))
        np.testing.assert_allclose(np.asarray(gram)[roots][:, roots], (sums @ sums.T)[roots][:, roots], atol=1e-9)


@jax.jit
def plain(gram, alive, tau):
    """Merge the first of the most similar pairs, all cosines computed again before each merge."""
    k = alive.size
    cosines = lambda gram, alive: jnp.where(
        jnp.triu(alive[:, None] & alive, 1),
        gram * (merging.inverse_norm(jnp.diagonal(gram))[:, None] * merging.inverse_norm(jnp.diagonal(gram))),
        -jnp.inf,
    )

    def unite(state):
        gram, alive, target = state
        a, b = jnp.divmod(cosines(gram, alive).argmax(), k)
        row = (gram[a] + gram[b]).at[a].set(gram[a, a] + gram[b, b] + 2 * gram[a, b])
        return gram.at[a].set(row).at[:, a].set(row), alive.at[b].set(False), jnp.where(target == b, a, target)

    ongoing = lambda state: cosines(*state[:2]).max() >= merging.limit(tau)
    gram, _, target = jax.lax.while_loop(ongoing, unite, (gram, alive, jnp.arange(k)))
    return target, gram


greedy = jax.jit(merging.greedy)


@jax.jit
def greedy_of_gpu(gram, alive, tau):
    """Greedy merging as a program for a GPU has it, compiled for the CPU."""
    with compiling_for(Target("a GPU", "gpu")):
        return merging.greedy(gram, alive, tau)


WHOLE = st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=80, max_size=80)
TAUS = st.sampled_from([-1.0, -0.7, -0.5, 0.0, 0.3, 0.5, np.sqrt(0.5), np.sqrt(0.75), 0.99, 1.0, 1.0001])


def agree(gram, alive, tau):
    """The same merges and inner products as by `plain`, to the last bit, on a CPU and on other devices."""
    expected, wanted = plain(gram, alive, tau)
    roots = np.asarray(alive) & (np.asarray(expected) == np.arange(len(alive)))
    for merge in (greedy, greedy_of_gpu):
        target, after = merge(gram, alive, tau)
        np.testing.assert_array_equal(target, expected)
        np.testing.assert_array_equal(np.asarray(after)[roots][:, roots], np.asarray(wanted)[roots][:, roots])
    return expected


@settings(max_examples=100, deadline=None)
@given(WHOLE, st.lists(st.integers(1, 3), min_size=80, max_size=80), st.integers(0, 2**31), TAUS)
def test_equally_similar_pairs_merge_in_the_order_of_their_rows(rows, sizes, seed, tau):
    """Whole numbers make many equal cosines, clusters of several equal clients, and vectors of zeros."""
    vectors = np.array(rows, np.float32) * np.array(sizes)[:, None]
    alive = np.random.default_rng(seed).random(80) < 0.9
    agree(jnp.array(vectors @ vectors.T, jnp.float32), jnp.array(alive), tau)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.1, 2), st.floats(-1, 1), st.integers(2, 40))
def test_the_largest_cluster_takes_in_one_client_after_another(seed, noise, tau, d):
    """More merges than a block has, of clients in groups, whose sums are more similar to others than their parts."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(2, d))[rng.integers(2, size=80)] + noise * rng.normal(size=(80, d))
    gram = jnp.array(vectors @ vectors.T, jnp.float32)
    agree(gram, jnp.ones(80, bool), tau)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_a_pair_at_the_threshold_merges_and_one_below_does_not(seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(80, 5)).astype(np.float32)
    gram, alive = jnp.array(vectors @ vectors.T), jnp.ones(80, bool)
    norm = jax.jit(merging.inverse_norm)(jnp.diagonal(gram))
    largest = np.asarray(gram * (norm[:, None] * norm))[np.triu_indices(80, 1)].max()
    assert (agree(gram, alive, largest) != jnp.arange(80)).any()
    assert (agree(gram, alive, np.nextafter(largest, np.float32(2))) == jnp.arange(80)).all()


def test_a_sum_can_be_nearer_to_a_third_than_its_parts():
    """So mutually most similar pairs cannot merge at the same time: the sum of 0 and 1 takes 2 away from 3."""
    angles = np.deg2rad([0.0, 60.0, 30.0, 30.0])
    tilt = np.deg2rad([0.0, 0.0, 57.0, 117.7])
    vectors = np.stack([np.cos(angles) * np.cos(tilt), np.sin(angles) * np.cos(tilt), np.sin(tilt)], 1)
    gram = jnp.array(vectors @ vectors.T, jnp.float32)
    cosines = np.asarray(gram) - 2 * np.eye(4)
    np.testing.assert_array_equal(cosines.argmax(1), [1, 0, 3, 2])
    assert agree(gram, jnp.ones(4, bool), 0.4).tolist() == [0, 0, 0, 3]


@pytest.mark.parametrize("vectors", [np.full((4, 2), np.nan), np.zeros((4, 2)), np.ones((1, 2))])
def test_nothing_merges(vectors):
    gram = jnp.array(vectors @ vectors.T, jnp.float32)
    assert agree(gram, jnp.ones(len(vectors), bool), 0.3).tolist() == list(range(len(vectors)))
    assert greedy(gram, jnp.zeros(len(vectors), bool), -1.0)[0].tolist() == list(range(len(vectors)))


@pytest.mark.parametrize("merge", [merging.greedy, merging.single_pass])
def test_limits(merge):
    vectors = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    vectors[3] = vectors[2]
    gram, alive = jnp.array(vectors @ vectors.T), jnp.ones(9, bool)
    np.testing.assert_array_equal(merge(gram, alive, 1.0001)[0], np.arange(9))
    np.testing.assert_array_equal(merge(gram, alive, -1.0)[0], np.zeros(9))


@pytest.mark.parametrize("merge", [merging.greedy, merging.single_pass])
def test_equal_vectors_merge_at_one(merge):
    """Their computed cosine may be below 1 by rounding."""
    for seed in range(20):
        vectors = np.repeat(np.random.default_rng(seed).normal(size=(1, 7)).astype(np.float32), 2, 0)
        gram = jnp.array(vectors @ vectors.T)
        assert merge(gram, jnp.ones(2, bool), 1.0)[0].tolist() == [0, 0]


def test_opposite_vectors_merge_only_at_minus_one():
    gram = jnp.array([[1.0, -1.0], [-1.0, 1.0]])
    np.testing.assert_array_equal(merging.greedy(gram, jnp.ones(2, bool), -0.999)[0], [0, 1])
    np.testing.assert_array_equal(merging.greedy(gram, jnp.ones(2, bool), -1.0)[0], [0, 0])
