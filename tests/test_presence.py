"""Who is there when: windows of regrouping, clients that come, go, or never train."""

import functools

import jax
import numpy as np
import pytest

from jcfl import methods as methods
from jcfl.runs.plan import config_and_objects, planned
from jcfl.types import NEVER
from tests import plain, tiny

LATE, GONE = 3, 6  # the client that comes in round 2, and the one that leaves in round 2


@pytest.mark.parametrize(("method", "options"), [("wecfl", {"refit": True}), ("fesem", {"lam": 0.1})])
def test_labels_change_in_the_window_only(method, options):
    """The window is rounds [1, 3); models go on being trained after it, inside the clusters it left."""
    setting, turns = tiny.setting(0.75), 6
    states = tiny.run(tiny.built(method, setting, clusters=4, shots=(1, 3), **options), turns)
    labels = states.labels  # after round t they are at t + 1
    np.testing.assert_array_equal(labels[1], labels[0])
    assert len(set(labels[2])) > 1
    for turn in range(4, turns + 1):
        np.testing.assert_array_equal(labels[turn], labels[3])
    kernel = states.clusters["params"]["head"]["kernel"]
    used = sorted(set(labels[-1]))
    assert (np.abs(kernel[-1] - kernel[3]).max((1, 2))[used] > 1e-3).any()


def test_accumulated_updates_are_grouped_once_there_are_as_many_as_clusters():
    """With one client in a round, no two have accumulated anything when the grouping is due."""
    pieces = {"describe": "accumulated", "compare": "l2", "group": {"name": "kmeans", "clusters": 3, "restarts": 3}}
    method = {"name": "clustered", **pieces, "when": {"name": "once", "at": 1}}
    given = {"method": method, "model": tiny.task(), "participation": 1 / 8, "rounds": 14}
    (algorithm,) = planned(*config_and_objects(tiny.federation(), given)).algorithms.values()
    states = tiny.run(algorithm, 14)
    grouped, seen = states.memory.grouped, states.seen.sum(1)
    first = grouped.argmax()
    assert grouped.any() and seen[first - 1] == 3 and (seen[: first - 1] < 3).all()
    assert len({*states.labels[first][states.seen[first - 1]].tolist()}) == 3


def test_a_window_of_all_rounds_is_none():
    setting = tiny.setting(0.75)
    states = [tiny.run(tiny.built("wecfl", setting, clusters=3, **window), 3) for window in ({"shots": (0, 3)}, {})]
    tiny.same(*states, 1e-6)


def present(**when):
    """The tiny federation with the rounds in which clients come and go."""
    data = tiny.federation()
    return data.replace(
        arrive=np.array([when.get("arrive", {}).get(i, 0) for i in range(8)], np.int32),
        depart=np.array([when.get("depart", {}).get(i, NEVER) for i in range(8)], np.int32),
    )


def begun(method, participation=1.0, data=None, **options):
    return tiny.built(method, tiny.setting(participation, data=data), **options)


METHODS = {
    "fedavg": {},
    "ifca": {"clusters": 3},
    "wecfl": {"clusters": 3},
    "cfl": {"eps1": 1.0, "eps2": 0.2, "capacity": 4},
}


@pytest.mark.parametrize("method", METHODS)
def test_clients_come_and_go(method):
    """Before they come and after they have gone, whatever their data say changes nothing; in between it does."""
    come_and_go = present(arrive={LATE: 2}, depart={GONE: 2})
    algorithm = begun(method, data=come_and_go, **METHODS[method])

    real = jax.device_put(come_and_go)

    @jax.jit
    def whole(targets):
        """The states of a run whose clients' labels are these in each round. [turns, rows]"""

        def step(state, y):
            new = algorithm.step(state, real.replace(y=y))
            return new, new

        start = algorithm.init(jax.random.key(0), real)
        return start, jax.lax.scan(step, start, targets)[1]

    def went(changes, turns=4):
        """The states of a run in which, from some round on, a client's labels are others."""
        y = np.tile(come_and_go.y, (turns, 1))
        for client, rounds in changes.items():
            start, size = come_and_go.train.start[client], come_and_go.train.size[client]
            rows = come_and_go.train.rows[start : start + size]
            y[np.ix_(rounds, rows)] = (y[np.ix_(rounds, rows)] + 5) % 10
        return jax.tree.map(tiny.joined, *whole(y))

    states = went({})
    seen = states.seen
    np.testing.assert_array_equal(seen[:, LATE], [False, False, False, True, True])
    assert seen[1:, GONE].all()  # it took part in rounds 0 and 1
    tiny.same(states, went({LATE: (0, 1), GONE: (2, 3)}))
    kernel = lambda states: states.shared["params"]["head"]["kernel"][-1]
    assert np.abs(kernel(went({LATE: (2, 3)})) - kernel(states)).max() > 1e-4


@functools.cache
def held_out_run(method):
    """A run with two clients held out, and the same with other examples in their hands: states and answers."""
    data = tiny.federation(held_out=2)
    extras = [{"name": "cks", "form": "pairwise", "lam": 0.5}] if method == "wecfl" else []
    algorithm = tiny.built(method, tiny.setting(held_out=2, extras=extras), **HELD_OUT[method])

    def whole(data):
        start = algorithm.init(jax.random.key(1), data)
        state = jax.lax.fori_loop(0, 3, lambda _, state: algorithm.step(state, data), start)
        return state, algorithm.predict(state, data)

    size, y = data.train.size.copy(), data.y.copy()
    size[-2:] -= 3
    rows = data.train.rows[data.train.start[-2] :]
    y[rows] = (y[rows] + 5) % 10
    program = jax.jit(whole)
    others = data.replace(y=y, train=data.train.replace(size=size))
    return [jax.tree.map(tiny.numpy, program(jax.device_put(one))) for one in (data, others)]


HELD_OUT = {
    "ifca": {"clusters": 3},
    "wecfl": {"clusters": 3},
    "cfl": {"eps1": 1.0, "eps2": 0.2, "capacity": 4},
    "flhc": {"clusters": 3, "at": 1},
    "oneshot_kmeans": {"clusters": 3, "distance": "l2"},
    "fedavg": {},
    "local": {},
}


@pytest.mark.parametrize("method", HELD_OUT)
def test_clients_held_out_change_nothing(method):
    """Neither their examples nor how many they are; nor do clusters count them that pull at each other (CKS)."""
    (state, _), (other, _) = held_out_run(method)
    here = slice(None, -2)
    np.testing.assert_array_equal(state.labels[here], other.labels[here])
    tiny.same((state.clusters, state.shared), (other.clusters, other.shared)) if method != "local" else tiny.same(
        *(jax.tree.map(lambda leaf: leaf[here], one.clusters) for one in (state, other))
    )
    assert not state.seen[-2:].any()


@pytest.mark.parametrize("method", HELD_OUT)
def test_clients_held_out_are_placed(method):
    """By the least loss on their training examples, in IFCA among all models, elsewhere among clusters with members."""
    data = tiny.federation(held_out=2)
    (state, (labels, _)), _ = held_out_run(method)
    x = data.x.reshape(len(data.x), -1).astype(float)
    models, expected = plain.vectors(state.clusters, 1), []
    used = range(len(models)) if method == "ifca" else sorted(set(state.labels[:-2]))
    for client in (6, 7):
        start, size = data.train.start[client], data.train.size[client]
        rows = data.train.rows[start : start + size]
        expected.append(used[np.argmin([plain.loss(models[k], (x[rows], data.y[rows])) for k in used])])
    np.testing.assert_array_equal(labels[-2:], [-1, -1] if method == "local" else expected)
    if method not in ("local", "fedavg"):
        assert len(set(labels)) > 1
