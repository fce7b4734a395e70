"""Promises that were broken where two features meet: add-ons, arrivals, unequal sizes, votes."""

import re

import jax
import numpy as np
import pytest

from jcfl.errors import TrainingError
from tests.groups import at, own_models, paths, run, split_as, two_groups, vector, vectors

EVERYBODY = range(8)


def cam(warmup: int) -> dict:
    return {"name": "cam", "warmup": warmup}


def cks(lam: float) -> dict:
    return {"name": "cks", "lam": lam}


@pytest.mark.parametrize("case", ["plain", "cam", "later"])
def test_cfl_splits_whenever_its_training_starts(case):
    """Its thresholds are fractions of the norms in the first round in which it trained anybody, whichever that is."""
    federation = two_groups(arrive=dict.fromkeys(EVERYBODY, 2) if case == "later" else {})
    (path,) = paths([federation], "cfl", *([cam(2)] if case == "cam" else []), rounds=20, train={"lr": 2.0})
    assert split_as(at(path, 1).labels, federation.groups)


@pytest.mark.parametrize("method", ["wecfl", "fesem"])
def test_a_window_of_regrouping_counts_from_the_method_s_own_start(method):
    """After a warm-up longer than the window there are clusters all the same."""
    (path,) = paths([two_groups()], method, cam(4), clusters=2, shots=[0, 2], rounds=8)
    assert len(set(at(path, 1).labels)) == 2


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cfl", {"train": {"lr": 2.0}, "rounds": 10}),
        ("stocfl", {"tau": 0.8, "lam": 0.0, "rounds": 4}),
        ("flhc", {"distance_threshold": 0.5, "at": 2, "rounds": 5}),
    ],
)
def test_room_for_more_clusters_changes_nothing(method, options):
    """Neither the models, though clients are driven away from other clusters, nor what a client-round costs."""
    federation, contrast = two_groups((12,) * 12), {"name": "con_para", "mu": 1.0, "on": "everything"}
    one, two = (run(federation, method, contrast, capacity=capacity, **options) for capacity in (6, 12))
    assert 1 < len(set(one.labels[0, -1])) <= 6
    np.testing.assert_allclose(own_models(one), own_models(two), atol=1e-5)
    assert one["accuracy_micro"] == two["accuracy_micro"]
    assert one.summary["costs"] == two.summary["costs"]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("oneshot_kmeans", {"distance": "l2", "restarts": 5}),
        ("robust_tkm", {"beta": 0.0}),
        ("flhc", {"at": 0}),
    ],
)
def test_clusters_settled_once_are_made_of_those_who_are_there(method, options):
    """Clients yet to come, far from all others, do not take a cluster; they get one when they first take part."""
    late = (6, 7)
    federation = two_groups(scale=dict.fromkeys(late, 50.0), arrive=dict.fromkeys(late, 2))
    found = run(federation, method, clusters=2, rounds=3, evaluate_every=1, **options)
    here = [client for client in EVERYBODY if client not in late]
    assert split_as(found.labels[0, 0, here], found.groups[here])
    assert (found.labels[0, :2, late] == -1).all()
    assert (found.labels[0, 2] >= 0).all()


def test_flhc_groups_without_those_who_left():
    """A client that left before the clustering, far from all others, does not take a cluster."""
    federation = two_groups(scale={0: 50.0}, depart={0: 1})
    (path,) = paths([federation], "flhc", at=2, clusters=2, rounds=3)
    assert split_as(at(path, 1).labels[1:], federation.groups[1:])


def test_shared_layers_outlast_a_round_in_which_nobody_is_there():
    """They stay as they were, as all of every model does."""
    federation = two_groups(arrive=dict.fromkeys(EVERYBODY, 1))
    options = {"clusters": 2, "shared_layers": ["head"], "model": {"name": "mlp", "hidden": 2}}
    (path,) = paths([federation], "ifca", rounds=1, **options)
    before, after = at(path, 0), at(path, 1)
    np.testing.assert_array_equal(vectors(before.clusters), vectors(after.clusters))
    np.testing.assert_array_equal(vector(before.shared), vector(after.shared))


def regressed(federation, labels, starts, lam, rounds, lr):
    """Softmax regression of clusters pulled to the mean of all clients' models, in plain NumPy. [k, 3, 4]

    Args:
        labels: every client's cluster. [m]
        starts: the clusters' models. [k, 3, 4]
        lam: weight of the pull, in one step over all of a client's examples.
    """
    models, size = np.array(starts, float), np.asarray(federation.train.size, float)
    for _ in range(rounds):
        mean = np.tensordot(size / size.sum(), models[labels], 1)
        sums = np.zeros_like(models)
        for client, label in enumerate(labels):
            rows = federation.train.rows[federation.train.start[client] :][: int(size[client])]
            x = np.column_stack([np.ones(len(rows)), federation.x[rows]])
            scores = np.exp(x @ models[label])
            slope = x.T @ (scores / scores.sum(1, keepdims=True) - np.eye(4)[federation.y[rows]]) / len(rows)
            sums[label] += size[client] * (models[label] - lr * (slope + lam * (models[label] - mean)))
        weight = np.bincount(labels, size, len(models))
        models = np.where((weight > 0)[:, None, None], sums / np.maximum(weight, 1)[:, None, None], models)
    return models


def test_knowledge_is_shared_through_the_mean_of_all_clients_models():
    """Also in StoCFL, where a shared model is trained beside them: that one is another thing (Ma 2023, eq. 5.6)."""
    federation, lam, rounds = two_groups((32, 8, 24, 8, 8, 32), scale={1: 2.0, 3: 2.0, 5: 2.0}), 0.5, 4
    options = {"tau": 0.6, "lam": 0.0}
    (path,) = paths([federation], "stocfl", cks(lam), rounds=rounds, **options)
    start, last = vector(at(path, 0).shared).reshape(3, 4), at(path, 1)
    assert len(set(last.labels)) == 2
    starts = np.stack([start] * len(vectors(last.clusters)))
    expected = regressed(federation, last.labels, starts, lam, rounds, 1.0)[last.labels].reshape(6, -1)
    np.testing.assert_allclose(vectors(last.clusters)[last.labels], expected, atol=1e-4)


def test_ifca_shares_knowledge_from_its_first_round_on():
    """The mean that the first round pulls to is that of the distinct starts, not one of them."""
    federation, options = two_groups(), {"clusters": 2, "seed": 1}
    (path,) = paths([federation], "ifca", cks(1.0), rounds=1, **options)
    starts, last = vectors(at(path, 0).clusters).reshape(2, 3, 4), at(path, 1)
    labels = last.labels
    assert np.bincount(labels).tolist() == [4, 4], "so that the mean by size is the plain one"
    expected = regressed(federation, labels, starts, 1.0, 1, 1.0)
    np.testing.assert_allclose(vectors(last.clusters), expected.reshape(2, -1), atol=1e-4)


@pytest.mark.parametrize(
    ("method", "addons", "options"), [("stocfl", (), {"tau": -1.0, "lam": 0.1}), ("ifca", (cam(0),), {"clusters": 1})]
)
def test_a_robust_average_guards_the_shared_model_too(method, addons, options):
    """One client with features a thousand times too large moves it no more than it moves the clusters' models."""
    both = [two_groups((12,) * 9, scale=scale) for scale in ({}, {8: 1000.0})]
    median = {"name": "robust", "rule": "median"}
    one, two = (at(path, 1) for path in paths(both, method, *addons, median, rounds=3, **options))
    assert np.abs(vectors(one.clusters)[one.labels] - vectors(two.clusters)[two.labels]).max() < 2
    assert np.abs(vector(one.shared) - vector(two.shared)).max() < 2


def test_no_two_uses_of_chance_share_a_key(monkeypatch):
    """Clients fine-tuned after a round draw from other keys than the next round does, whatever their ids."""
    drawn: dict[bytes, set] = {}

    def watch(key, way, made):
        jax.debug.callback(note, jax.random.key_data(key), jax.random.key_data(made), way=way)
        return made

    def note(key, made, way):
        key, made = np.asarray(key), np.asarray(made)
        for row in np.ndindex(made.shape[:-1]):
            drawn.setdefault(made[row].tobytes(), set()).add((key.tobytes(), way))

    fold, split = jax.random.fold_in, jax.random.split
    monkeypatch.setattr(jax.random, "fold_in", lambda key, data: watch(key, "fold_in", fold(key, data)))
    monkeypatch.setattr(jax.random, "split", lambda key, num=2: watch(key, f"split {num}", split(key, num)))
    tune = {"name": "finetune", "steps": 1}
    run(two_groups(), "fedavg", tune, rounds=2, evaluate_every=1, train={"lr": 1.0, "batch_size": 6})
    jax.effects_barrier()
    assert len(drawn) > 20
    assert [ways for ways in drawn.values() if len(ways) > 1] == []


def test_a_voter_that_fails_is_named():
    """And not the method it votes beside, which is sound."""
    diverging = {"name": "voting", "method": "fedprox", "options": {"mu": 1e30}}
    with pytest.raises(TrainingError) as error:
        run(two_groups(), "ifca", diverging, clusters=2, train={"lr": 1.0, "epochs": 4})
    assert re.search("fedprox|vot", str(error.value))


def test_cfl_splits_clients_of_different_sizes():
    """Its mean update is the one that moves the model: by size."""
    federation = two_groups((8, 40) * 4, common=0.3)
    (path,) = paths([federation], "cfl", rounds=60)
    assert split_as(at(path, 1).labels, federation.groups)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("wecfl", {"clusters": 2}),
        ("wecfl", {"clusters": 2, "shots": [0, 3]}),
        ("fesem", {"clusters": 2}),
        ("cfl", {"train": {"lr": 2.0}}),
    ],
)
def test_a_client_that_comes_late_is_put_where_it_fits(method, options):
    """Half of all clients come after the clusters have formed."""
    federation = two_groups((12,) * 12, arrive=dict.fromkeys(range(6, 12), 10))
    found = run(federation, method, rounds=16, evaluate_every=10, **options)
    assert split_as(found.labels[0, 0, :6], found.groups[:6])
    assert split_as(found.labels[0, -1], found.groups)


@pytest.mark.parametrize(("method", "options"), [("ifca", {"clusters": 2}), ("stocfl", {})])
def test_a_vote_beside_a_method_leaves_it_as_it_is(method, options):
    """Its start, its cohorts, its models and its clusters are those of the run without a vote."""
    beside = {"name": "voting", "method": "fedavg"}
    one, two = (
        at(paths([two_groups()], method, *addons, rounds=3, participation=0.5, **options)[0], 1)
        for addons in ((), (beside,))
    )
    np.testing.assert_array_equal(one.seen, two.seen)
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_allclose(vectors(one.clusters), vectors(two.clusters), atol=1e-6)
