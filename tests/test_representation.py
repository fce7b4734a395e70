"""federation.npz: what clients hold and how alike they are, against plain loops over the clients' own examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jcfl
from jcfl import results
from jcfl.core.streams import Stream, stream
from jcfl.runs import representation
from jcfl.runs.plan import Objects, config_and_objects, planned
from tests import tiny


def plan(**given):
    config, _ = config_and_objects(
        tiny.federation(), {"method": "fedavg", "model": tiny.task(), "budget": 2**30} | given
    )
    return planned(config, Objects(federation=tiny.federation(), model=tiny.task()))


@pytest.fixture(scope="module")
def whole():
    return representation.representation(plan())


def rows(split, client):
    return split.rows[split.start[client] : split.start[client] + split.size[client]]


def test_cosines_are_those_of_each_clients_own_gradient(whole):
    data, task = tiny.federation(), tiny.task()
    model = jax.jit(task.init)(stream(jax.random.key(0), Stream.MODEL))

    def loss(model, x, y):
        return task.loss(task.apply(model, x)[0], y).mean()

    psi, slope = [], jax.jit(jax.grad(loss))
    for client in range(8):
        own = rows(data.train, client)
        leaves = jax.tree.leaves(slope(model, data.x[own], data.y[own]))
        flat = np.concatenate([np.ravel(leaf) for leaf in leaves])
        psi.append(flat / np.linalg.norm(flat))
    expected = (np.stack(psi) @ np.stack(psi).T)[np.triu_indices(8, 1)]
    np.testing.assert_allclose(whole["cosine"], expected, atol=1e-5)
    assert whole["cosine"].dtype == np.float32
    assert whole["compared"].tolist() == list(range(8))


def test_a_client_without_training_examples_has_no_image():
    """Its rows would begin where the next client's do, and the last client's behind all rows."""
    made = plan()
    size = np.array(made.federation.train.size)
    size[[2, 7]] = 0
    found = representation.representation(
        made._replace(federation=made.federation.replace(train=made.federation.train.replace(size=jnp.asarray(size))))
    )
    assert found["pictured"].tolist() == [0, 1, 3, 4, 5, 6] and len(found["images"]) == 6


def test_the_model_is_stocfls_anchor():
    made = plan(method="stocfl", seed=3)
    state = made.algorithms["stocfl"].init(jax.random.key(3), made.federation)
    first = tiny.task().init(stream(jax.random.key(3), Stream.MODEL))
    jax.tree.map(np.testing.assert_array_equal, state.memory.anchor, first)


def test_counts_and_images_are_the_clients_own(whole):
    data = tiny.federation()
    for client in range(8):
        for split in ("train", "test"):
            labels = data.y[rows(getattr(data, split), client)]
            np.testing.assert_array_equal(whole[split][client], np.bincount(labels, minlength=tiny.CLASSES))
    assert sorted(whole["pictured"]) == list(range(8))
    for client, image in zip(whole["pictured"], whole["images"], strict=True):
        assert (data.x[rows(data.train, client)] == image).all((1, 2, 3)).any()


def test_many_clients_are_sampled_and_large_models_compared_fewer_at_a_time(whole, monkeypatch):
    monkeypatch.setattr(representation, "COMPARED", 5)
    monkeypatch.setattr(representation, "TILES", 4)
    monkeypatch.setattr(representation, "PICTURES", 2 * 16 * 4)
    model = 4 * (16 * 6 + 6 + 6 * 10 + 10)
    found = representation.representation(plan(budget=4 * model * 2))  # two at a time, the last tile not full
    assert (len(found["compared"]), len(found["pictured"]), len(found["images"])) == (5, 2, 2)
    assert set(found["pictured"]) <= set(found["compared"])
    assert (np.diff(found["compared"]) > 0).all()
    full = np.eye(8)
    full[np.triu_indices(8, 1)] = whole["cosine"]
    part = full[np.ix_(found["compared"], found["compared"])][np.triu_indices(5, 1)]
    np.testing.assert_allclose(found["cosine"], part, atol=1e-6)
    monkeypatch.setattr(representation, "TILES", 2)
    assert len(representation.representation(plan(budget=4 * model * 2))["compared"]) == 4


def test_a_run_writes_it_once_for_all_methods_and_keeps_it(tmp_path, monkeypatch):
    given = {"method": "majority", "compare": ["fedavg"], "model": tiny.task(), "rounds": 1, "out": tmp_path / "run"}
    found = jcfl.run(tiny.federation(), **given)
    read = results.load(tmp_path / "run")
    assert (read.name, list(read.others)) == ("majority", ["fedavg"])
    for run in (found, *found.others.values(), read, *read.others.values()):
        np.testing.assert_array_equal(results.federation(run)["train"].sum(1), tiny.federation().train.size)
    np.testing.assert_array_equal(read.others["fedavg"]["loss"], found.others["fedavg"]["loss"])
    monkeypatch.setattr("jcfl.runs.experiment.representation", lambda plan: 1 / 0)
    jcfl.run(tiny.federation(), **given, resume=True)
    (tmp_path / "run" / "runs" / "fedavg" / "federation.npz").unlink()
    with pytest.raises(ZeroDivisionError):
        jcfl.run(tiny.federation(), **given, resume=True)


def test_a_history_without_a_folder_says_what_is_missing():
    found = jcfl.run(tiny.federation(), method="majority", model=tiny.task(), rounds=0)
    with pytest.raises(jcfl.InputError, match="out="):
        results.federation(found)
    assert results.settings(found) == {}
