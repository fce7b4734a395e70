"""Clients whose data change while they train: who exchanges with whom, and what every program sees of it."""

from typing import Any

import chex
import jax
import numpy as np
import pytest

import jcfl
from jcfl import metrics, registry, results
from jcfl.core import chunks
from jcfl.data import federation
from jcfl.data.dataset import Dataset, Examples
from jcfl.data.drift import with_drift
from jcfl.data.soundness import checked
from jcfl.data.summary import label_counts
from jcfl.errors import InputError
from jcfl.types import Drift
from tests import folders, tiny
from tests.test_contract import build

rng = np.random.default_rng(0)
TABLE = Dataset("table", *(Examples(rng.normal(size=(n, 3)), np.arange(n) % 4) for n in (600, 200)), classes=4)


def made(shares=None, **options):
    return federation(TABLE, "selected_classes", clients=20, groups=4, drift=shares or {}, **options)


def holds(data):
    assert isinstance(data.drift, Drift)
    return np.asarray(data.drift.holds)


def held(split, client):
    return split.rows[split.start[client] : split.start[client] + split.size[client]]


def test_pairs_of_two_groups_exchange_all_that_they_have():
    plain, drifts = made(validation=0.2), made(shares={3: 0.4, 7: 1.0}, validation=0.2)
    jax.tree.map(np.testing.assert_array_equal, plain, drifts.replace(drift=()))  # a stream of its own
    before, after = drifts.at(2), drifts.at(3)
    jax.tree.map(np.testing.assert_array_equal, before.replace(drift=()), plain)
    moved = np.flatnonzero((before.train.start != after.train.start) | (before.groups != after.groups))
    assert len(moved) == 8
    (row,) = holds(drifts)[1:2]
    np.testing.assert_array_equal(row[row], np.arange(20))  # in pairs
    for client in moved:
        assert after.groups[client] == plain.groups[row[client]] != plain.groups[client]
        for name in ("train", "test", "validation"):
            np.testing.assert_array_equal(held(after.splits[name], client), held(plain.splits[name], row[client]))
    assert (after.groups != drifts.at(7).groups).all()
    np.testing.assert_array_equal(np.sort(drifts.at(99).groups), np.sort(plain.groups))
    again, other = made(shares={3: 0.4, 7: 1.0}), made(shares={3: 0.4, 7: 1.0}, seed=1)
    np.testing.assert_array_equal(holds(again), holds(drifts))
    assert (holds(other) != holds(again)).any()
    jax.tree.map(np.testing.assert_array_equal, drifts.at(8).at(2), before)
    jax.tree.map(np.testing.assert_array_equal, drifts.at(8).at(4).drift, drifts.at(4).drift)


def test_each_client_at_a_round_of_its_own():
    drifts, rounds = made(shares={3: 0.4, 7: 1.0}), np.arange(20) % 9
    each = drifts.at(5).at(rounds)
    for client, round in enumerate(rounds):
        np.testing.assert_array_equal(held(each.train, client), held(drifts.at(round).train, client))


def test_rows_know_their_clients_in_any_order():
    drifts = made(shares={3: 0.4}, min_examples=(1, 0))
    for round in (0, 3):
        split = drifts.at(round).test
        found = np.asarray(chunks.owners(split))
        for client in range(20):
            np.testing.assert_array_equal(split.rows[found == client], held(split, client))


def test_who_is_not_there_keeps_its_data():
    drifts = made(shares={3: 0.5}, held_out=0.2, arrivals={5: 0.2}, departures={2: 0.1})
    moved = np.flatnonzero(holds(drifts)[1] != np.arange(20))
    assert len(moved) == 10
    assert drifts.available(3)[moved].all()


def test_groups_that_are_not_known():
    drifts = federation(TABLE, "dirichlet", clients=10, min_examples=(1, 0), drift={1: 1})
    assert (holds(drifts)[1] != np.arange(10)).all()


@pytest.mark.parametrize(
    ("scenario", "shares", "line"),
    [
        ("iid", {3: 0.5}, r"drift in round 3: 0\.5 of 20 clients is 5 pairs, and at most 0 of two true groups"),
        (
            "selected_classes",
            {3: 0.01},
            r"0\.01 of 20 clients is 0 pairs, .*expected a pair at least",
        ),
        ("selected_classes", {0: 0.5}, r"drift.*1"),
        ("selected_classes", {2: 1.5}, r"drift.*1"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(scenario, shares, line):
    with pytest.raises(InputError, match=line):
        federation(TABLE, scenario, clients=20, drift=shares)


def test_a_federation_of_ones_own_is_checked():
    drifts = made(shares={3: 0.4})
    twice = holds(drifts).copy()
    twice[1, 0] = twice[1, 1]
    for wrong in (Drift(np.array([3]), twice), Drift(np.array([0]), holds(drifts))):  # pyright: ignore[reportArgumentType]
        with pytest.raises(InputError, match="drift"):
            checked(drifts.replace(drift=wrong))
    with pytest.raises(InputError, match="expected drift"):
        checked(drifts.replace(drift=[1]))


def test_flipped_labels_would_move():
    settings: Any = {"attack": {"name": "label_flip", "share": 0.2}, "rounds": 1}
    with pytest.raises(InputError, match="drift would hand them to honest clients"):
        jcfl.run("quickstart", scenario={"name": "rotated", "clients": 12, "drift": {1: 0.5}}, **settings)


# --- training ---


@pytest.mark.parametrize("name", registry.names("method"))
def test_every_method_keeps_its_shapes(name):
    """Traced, not run."""
    data = with_drift(np.random.default_rng(0), tiny.federation((12, 9, 1, 12, 10, 5, 12, 8)), {2: 0.5})
    _, algorithm = build(name, data=data)
    state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
    step = lambda state, data: algorithm.step(state, data.at(state.round))
    chex.assert_trees_all_equal_shapes_and_dtypes(jax.eval_shape(step, state, data), state)
    jax.eval_shape(lambda state, data: algorithm.evaluate(state, data.at(state.round - 1)), state, data)


DRIFTING = {"name": "rotated", "clients": 12, "drift": {2: 0.5}, "validation": 0.2}


def test_a_run_goes_on_bit_for_bit(tmp_path):
    """Over the round in which data drift; scores are of the groups of the last round trained."""
    method = {"name": "stocfl", "tau": 0.3, "renew": 1}
    given: Any = {"method": method, "scenario": DRIFTING, "seeds": 2, "evaluate_every": 1}
    given |= {"model": {"name": "linear"}, "train": {"epochs": 1}, "compare": []}
    whole = jcfl.run("quickstart", rounds=4, **given)
    jcfl.run("quickstart", rounds=2, out=tmp_path / "run", **given)
    gone_on = jcfl.run("quickstart", rounds=4, out=tmp_path / "run", resume=True, **given)
    for name in whole.scores:
        np.testing.assert_array_equal(whole.scores[name], gone_on.scores[name], name)
    np.testing.assert_array_equal(whole.labels, gone_on.labels)
    np.testing.assert_array_equal(whole.groups, gone_on.groups)
    data = jcfl.federation(tmp_path / "run" / "config.yaml")
    for round in range(5):  # what the folder says of the clients' data follows them
        held, then = results.federation(gone_on, round), data.at(round - 1)
        np.testing.assert_array_equal(held["groups"], then.groups)
        np.testing.assert_array_equal(held["test"], label_counts(then, "test"))
    assert (results.federation(gone_on, 0)["groups"] != held["groups"]).any()
    for run in (whole, gone_on, results.load(tmp_path / "run")):  # a table has the groups of each evaluation
        table = run.to_dataframe(clients=True)
        for round in run.rounds:
            own = table[table["round"] == round]
            np.testing.assert_array_equal(own["group"], np.tile(data.at(round - 1).groups, 2), str(round))
            np.testing.assert_array_equal(own["cluster"], run.labels[:, run.rounds == round].ravel())
    before = jcfl.federation("quickstart", scenario=DRIFTING | {"drift": {}}).groups
    assert (before != whole.groups).sum() == 6
    for evaluation, groups in enumerate([before] * 2 + [whole.groups] * 2):
        assert whole.scores["ari"][0, evaluation] == pytest.approx(metrics.ari(whole.labels[0, evaluation], groups))


def test_a_table_of_clients_has_the_groups_of_each_evaluation(tmp_path):
    """`groups` of clusters.npz are those of the last one; federation.npz says who exchanged with whom."""
    turned = np.roll(folders.GROUPS, 10)
    held = folders.federation() | {
        "drift_rounds": np.array([4]),
        "drift_holds": np.stack([np.arange(folders.CLIENTS), np.roll(np.arange(folders.CLIENTS), 10)]),
    }
    path = folders.run(tmp_path / "run", groups=turned, held=held)
    table = results.load(path).to_dataframe(clients=True)
    for round in folders.ROUNDS:  # the data of round 4 are those of the evaluation after 5 rounds
        expected = folders.GROUPS if round <= 4 else turned
        np.testing.assert_array_equal(table[table["round"] == round]["group"], np.tile(expected, 2), str(round))
    (path / "federation.npz").unlink()
    (path / "checksums.json").unlink()  # as in a folder of an earlier version
    np.testing.assert_array_equal(results.load(path).to_dataframe(clients=True)["group"], np.tile(turned, 8))
