"""`auto`: numbers of clusters and thresholds that are decided from the clients' training data alone."""

from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import jcfl
from jcfl import cli, data, metrics, models, trees
from jcfl.cli import training
from jcfl.core import chunks, describing, pilot
from jcfl.core.objective import mean_loss
from jcfl.errors import InputError, Notice
from jcfl.grouping import merging
from jcfl.runs import automatic, config, plan
from jcfl.types import Clients

MODEL = {"name": "mlp", "hidden": 16}
SMALL = {"model": MODEL, "train": {"lr": 0.1, "epochs": 1}, "rounds": 2, "evaluate_every": 2, "progress": False}


@pytest.fixture(scope="module")
def federation():
    """60 clients in 4 groups that see the digits turned."""
    digits = data.load("digits")
    return data.federation(digits, "rotated", clients=60, scale="standard", seed=0)


@pytest.fixture(scope="module")
def found(federation):
    return automatic.measured(0, federation, models.build("mlp", (8, 8, 1), 10, hidden=16))


def test_groups_are_found_without_being_known(federation, found):
    assert metrics.ari(found.labels, federation.groups) == 1
    assert found.clusters == 4
    assert found.error.argmin() in np.flatnonzero(found.counts == 4)


def test_nothing_but_training_data_is_looked_at(federation, found):
    rng = np.random.default_rng(0)
    x = np.array(federation.x)
    x[federation.test.rows] = rng.random(x[federation.test.rows].shape)
    other = replace(federation, x=x, groups=np.zeros_like(federation.groups))
    again = automatic.measured(0, other, models.build("mlp", (8, 8, 1), 10, hidden=16))
    for one, two in zip(again, found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_clients_of_one_distribution_are_one_cluster():
    iid = data.federation(data.load("digits"), "iid", clients=40, scale="standard", seed=0)
    found = automatic.measured(0, iid, models.build("mlp", (8, 8, 1), 10, hidden=16))
    assert found.clusters == 1
    assert found.settled == 0  # CFL never splits


def vectors(seed: int, clients: int, groups: int, size: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of parts [f, p, d] around one centre a group, and the examples in them [f, p], some of them none."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups, size))
    counts = rng.integers(0, 4, (pilot.PARTS, clients)) + (np.arange(pilot.PARTS) < 2)[:, None]
    noise = rng.normal(size=(pilot.PARTS, clients, size)) / np.sqrt(np.maximum(counts, 1))[..., None]
    rows = centres[np.arange(clients) % groups] + noise
    return np.where(counts[..., None] > 0, rows, 0.0), counts.astype(float)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**16), st.integers(2, 7))
def test_errors_are_those_of_a_plain_loop(seed, clients):
    rows, counts = vectors(seed, clients, 2)
    gram = np.einsum("fpd,gqd->fpgq", rows, rows)
    errors = pilot.held_out(gram, counts, 1)
    rest = [0, 2, 3]
    sizes = counts[rest].sum(0)
    mean = (rows[rest] * counts[rest][..., None]).sum(0) / sizes[:, None]
    whole, weights, trust = pilot.joined(gram[rest][:, :, rest], counts[rest])
    np.testing.assert_allclose(whole, mean @ mean.T, atol=1e-9)
    np.testing.assert_array_equal(weights, sizes)
    merges = pilot.merged(pilot.unit(whole, trust))
    for index in (0, 60, 100, len(pilot.GRID) - 1):
        labels = pilot.labels_at(merges, pilot.clusters_at(merges, pilot.GRID[index]))
        for i in range(clients):
            own = labels == labels[i]
            centre = (mean[own] * sizes[own, None]).sum(0) / sizes[own].sum()
            expected = ((rows[1, i] - centre) ** 2).sum() if counts[1, i] else 0.0
            assert errors[index, i] == pytest.approx(expected, abs=1e-9)


GREEDY = jax.jit(merging.greedy)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**16), st.floats(-0.5, 1.0))
def test_merges_are_those_of_stocfl(seed, tau):
    rows = np.random.default_rng(seed).normal(size=(8, 3))
    unit = pilot.unit(rows @ rows.T)
    merges = pilot.merged(unit)
    labels = pilot.labels_at(merges, pilot.clusters_at(merges, tau))
    target, _ = GREEDY(unit, np.ones(8, bool), tau)
    assert metrics.ari(labels, np.asarray(target)) == 1


def test_trust_is_right_on_average():
    rng = np.random.default_rng(0)
    truth, size = np.ones(50), 2000
    rows = truth + rng.normal(size=(pilot.PARTS, size, 50)) * 2  # of each part: a signal of 50, a noise of 200
    gram = np.einsum("fpd,gpd->fpg", rows, rows)
    whole = np.zeros((pilot.PARTS, size, pilot.PARTS, size), np.float32)
    whole[:, np.arange(size), :, np.arange(size)] = gram.transpose(1, 0, 2)
    products, _, trust = pilot.joined(whole[:, :200, :, :200], np.ones((pilot.PARTS, 200)))
    assert np.mean(trust * np.diagonal(products)) == pytest.approx(50, rel=0.1)


def test_parts_hold_every_example_once(federation):
    task = models.build("mlp", (8, 8, 1), 10, hidden=4)
    few = jax.tree.map(jnp.asarray, federation)
    anchor, who = task.init(jax.random.key(0)), jnp.arange(5)
    whole = jax.jit(lambda anchor, few, who, key: pilot.gram_of_parts(task, anchor, few, who, key, 2))
    gram, counts = whole(anchor, few, who, jax.random.key(1))
    np.testing.assert_array_equal(counts.sum(0), federation.train.size[:5])
    assert np.ptp(counts, axis=0).max() <= 1
    gradient = lambda few: describing.anchor_gradient(task, anchor, trees.take(chunks.gather(few, few.train, who), 0))
    slope = jax.jit(gradient)(few)
    squared = sum((np.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(slope))
    own = counts[:, 0] / counts[:, 0].sum()
    assert own @ gram[:, 0, :, 0] @ own == pytest.approx(float(squared), rel=1e-4)  # of all examples together


@pytest.mark.parametrize("real", [1, 64, 100, 150])
def test_padding_after_a_client_s_examples_is_not_worked_on(real):
    rng, n = np.random.default_rng(real), 150
    task = models.build("mlp", (8, 8, 1), 10, hidden=4)
    x, y = rng.normal(size=(n, 8, 8, 1)).astype(np.float32), rng.integers(10, size=n)
    mask = (np.arange(n) < real) & ((rng.random(n) < 0.7) | (np.arange(n) == real - 1))  # as of a random half
    anchor = task.init(jax.random.key(0))
    few = Clients(jnp.asarray(x[mask]), jnp.asarray(y[mask]), jnp.ones(mask.sum(), bool))
    loss = lambda params: mean_loss(task, task.apply({"params": params}, few.x)[0], few)
    expected = jax.jit(jax.grad(loss))(anchor["params"])
    x[-(-real // 64) * 64 :] = np.nan  # would be in the gradient, even if masked
    gradient = jax.jit(partial(describing.anchor_gradient, task))
    found = gradient(anchor, Clients(jnp.asarray(x), jnp.asarray(y), jnp.asarray(mask)))
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_last_part_of_a_client_s_examples_is_not_filled_with_zeros():
    """A model may divide an example by its length."""
    rng, n = np.random.default_rng(0), 70
    linear = models.build("linear", (5,), 10)
    unit = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    task = linear._replace(apply=lambda model, x, **more: linear.apply(model, unit(x), **more))
    x, y = jnp.asarray(rng.normal(size=(n, 5)), jnp.float32), jnp.asarray(rng.integers(10, size=n))
    gradient = jax.jit(describing.anchor_gradient, static_argnums=0)
    anchor, every = task.init(jax.random.key(0)), jnp.ones(n, bool)
    found, expected = gradient(task, anchor, Clients(x, y, every)), gradient(linear, anchor, Clients(unit(x), y, every))
    chex.assert_trees_all_close(found, expected, rtol=1e-5)


def test_a_run_keeps_what_was_decided(federation, tmp_path, monkeypatch):
    given = {"method": {"name": "stocfl", "tau": "auto", "clustering_only": True}, **SMALL}
    with pytest.warns(Notice, match=r"stocfl: auto is tau = 0\.\d+ \(4 clusters among 60 clients\)"):
        found = jcfl.run(federation, **given, out=tmp_path / "run")
    kept = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    tau = kept["method"]["tau"]
    assert 0 < tau < 1
    assert kept["decided"]["stocfl"]["sizes"] == [15, 15, 15, 15]
    assert found.summary["decided"]["values"] == {"tau": tau}
    again = jcfl.run(federation, **{**given, "rounds": 4}, out=tmp_path / "run", resume=True)
    assert again.summary["decided"] == found.summary["decided"]
    assert jcfl.plotting.decision(again).axes
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(training, "train", lambda config, *rest: asked.append(config))
    assert cli.status(["run", "run/config.yaml", "--set", "method.tau=0.9"]) == 0
    assert asked[0].decided is None and asked[0].method.options["tau"] == 0.9  # by the user, and by no pilot


def test_flipped_labels_are_those_that_are_looked_at():
    """What is decided for a run with attackers is about the labels that they train on."""
    attack = {"attack": {"name": "label_flip", "share": 0.4}}
    given = {
        "scenario": {"name": "rotated", "clients": 24},
        "model": MODEL,
        "method": {"name": "stocfl", "tau": "auto"},
    }
    with pytest.warns(Notice):
        kept = plan.planned(config.read(given | attack))
    trained = plan.settled(config.read(given | {"method": "fedavg"} | attack)).federation
    with pytest.warns(Notice):
        expected = automatic.decided(config.read(given), trained, kept.context.task)
    assert kept.config.decided == expected.decided
    assert len(kept.config.decided["stocfl"]["sizes"]) > 4


def test_a_sweep_decides_its_points(federation):
    method = {"name": "stocfl", "clustering_only": True}
    with pytest.warns(Notice, match="auto is tau"):
        swept = jcfl.sweep(federation, {"method.tau": ["auto", 0.9]}, method=method, **SMALL)
    assert [point.values["method.tau"] for point in swept.points] == ["auto", 0.9]
    assert 0 < swept.points[0].config.method.options["tau"] < 0.9
    assert swept.compilations == 1


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ({"name": "flhc", "at": 1, "distance_threshold": "auto"}, {"clusters": 4}),
        ({"name": "cfl", "eps1": "auto", "eps2": "auto"}, {"eps1": 0.0, "eps2": 0.0}),
        ({"name": "oneshot_kmeans", "group": {"name": "kmeans", "clusters": "auto"}}, {"group.clusters": 4}),
    ],
    ids=["cut", "settled", "answer"],
)
def test_other_options_are_decided_too(federation, method, expected):
    given = config.read({"scenario": "rotated", "model": MODEL, "method": method})
    with pytest.warns(Notice):
        found = automatic.decided(given, federation, models.build("mlp", (8, 8, 1), 10, hidden=16))
    values = found.decided[method["name"]]["values"]
    assert values.keys() == expected.keys()
    assert all(values[key] == value or (value == 0.0 and 0 < values[key] < 1.5) for key, value in expected.items())
    assert not automatic.is_open(found)
    assert automatic.as_stored(given, found).method == found.method


def test_only_options_with_a_rule_may_be_auto():
    with pytest.raises(InputError, match=r"lam: .*number.*'auto'"):
        config.read({"scenario": "rotated", "method": {"name": "stocfl", "lam": "auto"}})


def test_gradients_without_noise_are_not_private(federation):
    with pytest.raises(InputError, match="auto uses gradients without noise"):
        jcfl.run(federation, method={"name": "ifca", "clusters": "auto"}, privacy={"clip": 1.0, "noise": 1.0}, **SMALL)


def test_fractions_are_chosen_where_fractions_are_meant(federation):
    with pytest.raises(InputError, match="eps2: auto needs relative=True, got False"):
        jcfl.run(federation, method={"name": "cfl", "eps2": "auto", "relative": False}, **SMALL)


def test_two_clients_are_needed(federation):
    alone = replace(federation, held_out=np.arange(60) > 0)
    with pytest.raises(InputError, match="two clients that train from round 0 on, with two examples each, got 1"):
        jcfl.run(alone, method={"name": "stocfl", "tau": "auto"}, **SMALL)
