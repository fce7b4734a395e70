"""The measures of a run's last state against NumPy, which visits client after client."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl.core.quality import quality
from jcfl.types import State
from tests import plain, tiny

K = 4
LABELS = np.array([0, 0, 1, 1, 1, 0, 3, 3], np.int32)
SEEN = np.array([1, 1, 1, 1, 1, 0, 1, 1], bool)  # client 5 has never taken part, 7 is held out, 2 has gone
DEPART = np.where(np.arange(8) == 2, 4, 9).astype(np.int32)
HERE = np.array([0, 1, 3, 4, 6])


@pytest.fixture(scope="module")
def federation():
    leaves = {"depart": DEPART}
    return dataclasses.replace(tiny.federation(held_out=1), **leaves)


def state_of(keeps: bool) -> State:
    """A state after round 5 whose models are random; cluster 2 is empty."""
    models = jax.vmap(tiny.task().init)(jax.random.split(jax.random.key(3), K + 9))
    take = lambda rows: jax.tree.map(lambda leaf: np.asarray(leaf[rows]), models)
    return State(
        clusters=take(slice(0, K)),
        shared=take(K),
        labels=LABELS,
        seen=SEEN,
        memory=(),
        round=np.int32(5),
        key=np.zeros(2, np.uint32),
        failed=np.full(2, -1, np.int32),
        began=np.int32(0),
        clients={"model": take(slice(K + 1, None))} if keeps else {},
    )


def clients_of(federation):
    split = federation.train
    rows = [split.rows[start : start + size] for start, size in zip(split.start, split.size, strict=True)]
    return [(np.asarray(federation.x[mine], float).reshape(len(mine), -1), federation.y[mine]) for mine in rows]


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def oracle(federation, state, added):
    clients, centres = clients_of(federation), plain.vectors(state.clusters, 1)
    own = plain.vectors(state.clients["model"], 1) if state.clients else centres[LABELS]
    beside = [plain.logits(plain.vectors(state.shared), x) if added else 0.0 for x, _ in clients]
    share = plain.sizes(clients)[HERE] / plain.sizes(clients)[HERE].sum()
    found = {
        "learning_objective": share @ [plain.loss(centres[LABELS[i]], clients[i], beside[i]) for i in HERE],
        "clustering_objective": share @ [((own[i] - centres[LABELS[i]]) ** 2).sum() for i in HERE],
        "cosine_within": np.mean([cosine(own[i], own[j]) for i, j in ((0, 1), (3, 4))]),
        "cosine_between": np.mean([cosine(*pair) for pair in itertools.combinations(centres[[0, 1, 3]], 2)]),
        "clusterability": np.full(K, np.nan),
    }
    for k in (0, 1, 3):
        members = [i for i in HERE if LABELS[i] == k]
        slopes = np.array([plain.gradient(own[i], clients[i], beside[i]) for i in members])
        mean = np.average(slopes, axis=0, weights=plain.sizes(clients)[members])
        found["clusterability"][k] = np.linalg.norm(mean - slopes, axis=1).max() / np.linalg.norm(mean)
    return found if state.clients else found | {"clustering_objective": np.nan, "cosine_within": np.nan}


@pytest.mark.parametrize(("keeps", "added"), [(True, False), (False, False), (True, True)])
def test_quality_is_that_of_a_loop_over_clients(federation, keeps, added):
    state = state_of(keeps)
    found = quality(tiny.task(), federation, state, added=added, chunk=3)
    expected = oracle(federation, state, added)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=1e-6, err_msg=name)


def test_quality_is_the_same_inside_a_program(federation):
    state = jax.tree.map(jnp.asarray, state_of(True))
    inside = jax.jit(lambda *given: quality(tiny.task(), *given))(jax.device_put(federation), state)
    tiny.same(inside, quality(tiny.task(), federation, state), 1e-5)
