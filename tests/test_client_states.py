"""States of clients on the host: the figures that they have on the device, resumed elsewhere, and what is refused."""

import errno
import functools
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jcfl
from jcfl import InputError
from jcfl.core import context, onhost
from jcfl.errors import Notice, TooLarge, Unwritable
from jcfl.methods.ifca import ifca
from jcfl.runs import disk, experiment, plan, reproducing, xla
from jcfl.trees import rows
from jcfl.trees.rows import HostRows, HostTable
from tests import tiny
from tests.test_large import attended

TRAIN = {"lr": 0.3, "epochs": 1, "batch_size": 4}
CASES = {
    "fesem": {"method": {"name": "fesem", "clusters": 2, "lam": 0.1}},
    "ditto": {"method": "ditto"},
    "factored": {"method": "ditto", "engine": "factored", "model": {"name": "mlp", "hidden": 6}},
    "control": {"method": "scaffold"},
    "private": {"method": ifca(clusters=2).with_train(private=("head",))},
}


BASE = {"rounds": 4, "evaluate_every": 1, "participation": 0.5, "train": TRAIN, "engine": "general"}


def run(given, federation=None, **more):
    return jcfl.run(federation or attended(), **{"model": tiny.task(), **BASE} | given | more)


THREE = dict.fromkeys(onhost.AT_A_TIME, 3 * 4 * 172)
"""So many bytes that three models are gone through at a time."""


@functools.cache
def on_device(name):
    """The run of a case with states on the device, of which three are gone through at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onhost, "AT_A_TIME", THREE)
        return run(CASES[name], client_states="device")


def built(**given):
    """The plan of a run."""
    return plan.planned(*plan.config_and_objects(attended(), {"model": tiny.task(), "participation": 0.5, **given}))


def is_rows(leaf):
    return isinstance(leaf, HostRows)


def on_host_at_all(state):
    return any(map(is_rows, jax.tree.leaves(state, is_leaf=is_rows)))


def leaves(state, seed=0):
    """All arrays of a state of one of its seeds, those on the host too. Lanes' axis is left out."""
    whole = lambda leaf: leaf.table.read(0, np.arange(leaf.count)) if is_rows(leaf) else leaf[seed]
    found = jax.tree.map(whole, state, is_leaf=is_rows)
    return jax.tree.leaves(found.replace(key=()))


def same(one, two, tolerance=0.0):
    np.testing.assert_array_equal(one.labels, two.labels)
    tiny.same((leaves(one.state), dict(one.scores)), (leaves(two.state), dict(two.scores)), tolerance)


@pytest.mark.parametrize("name", CASES)
def test_figures_are_those_with_states_on_the_device(name, monkeypatch):
    """Clients arrive late and depart, and the models are gone through three at a time. FeSEM's examples move too.

    With the tests' flags, XLA rounds the last digit differently in programs that differ in a gather; `test_large` has
    the test without them.
    """
    before = on_device(name)
    monkeypatch.setattr(onhost, "AT_A_TIME", THREE)
    on_host = run(CASES[name], client_states="host", examples="host" if name == "fesem" else "device")
    assert on_host_at_all(on_host.state)
    same(before, on_host, 1e-6)


def test_a_run_goes_on_with_states_elsewhere(tmp_path, monkeypatch):
    """The states are in a file first, as for too little memory, then on the device, and then in a file again."""
    monkeypatch.setattr(onhost, "SHARE", 2**60)
    run(CASES["ditto"], client_states="host", rounds=1, out=tmp_path)
    on_it = run(CASES["ditto"], client_states="device", rounds=3, out=tmp_path, resume=True)
    assert not on_host_at_all(on_it.state)
    same(on_device("ditto"), run(CASES["ditto"], client_states="host", out=tmp_path, resume=True), 1e-6)


def test_seeds_do_not_see_the_rows_of_those_before(tmp_path):
    both = run(CASES["ditto"], client_states="host", seeds=2)
    second = run(CASES["ditto"], client_states="host", seed=1)
    np.testing.assert_array_equal(both.scores["accuracy_macro"][1], second.scores["accuracy_macro"][0])
    tiny.same(leaves(both.state, 1), leaves(second.state))
    tiny.same(leaves(both.state, 0), leaves(on_device("ditto").state), 1e-6)  # whose rows the next seed has replaced


def test_states_are_on_the_host_where_the_device_has_no_room(monkeypatch):
    assert built(method="fesem").config.client_states is None
    monkeypatch.setattr(context, "free_memory", lambda: 2 * 8 * 4 * 171)  # half of it holds no eight models
    assert built(method="fesem").config.client_states == "host"
    assert built(method="scaffold").config.client_states == "host"
    with pytest.raises(InputError, match="fesem keeps the last model of each of 8 clients"):
        built(method="fesem", participation=1.0)  # whose cohort does not fit either


def test_states_are_on_the_host_where_only_then_the_compiled_programs_fit(monkeypatch, tmp_path):
    """They fit the device, but not with what a round takes beside them, even of one client at a time."""
    before, go = on_device("fesem"), functools.partial(run, CASES["fesem"], budget=1, out=tmp_path)
    monkeypatch.setattr(xla, "free_memory", lambda: 0)
    with pytest.raises(TooLarge) as error:
        go(client_states="device")
    monkeypatch.setattr(xla, "free_memory", lambda: error.value.need - 1)
    found = go()
    assert on_host_at_all(found.state) and "client_states: host" in (tmp_path / "config.yaml").read_text()
    same(before, found, 1e-6)
    over = {"method.lam": [0.1, 0.2]}
    points = jcfl.sweep(attended(), over, model=tiny.task(), budget=1, **BASE | CASES["fesem"])
    np.testing.assert_array_equal(points.histories[0].labels, found.labels)


def test_final_states_that_the_host_cannot_join_are_not_kept(monkeypatch):
    monkeypatch.setattr(experiment, "available_memory", lambda: 4 * 8 * 4 * 171)  # of both seeds, joined, more
    with pytest.warns(Notice, match="ditto: history.state will be None, because the final states of 2 seeds take"):
        found = run(CASES["ditto"], seeds=2, rounds=1)
    assert found.state is None and found["accuracy_micro"].shape == (2, 1)
    assert run(CASES["ditto"], rounds=1).state is not None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"method": {"name": "fesem", "iterations": 2}}, "its grouping needs all models at once"),
        ({"method": {"name": "ditto", "addons": [{"name": "robust"}]}}, "models are aggregated by"),
        ({"method": {"name": "fesem", "addons": [{"name": "robust"}]}}, "models are aggregated by"),
        ({"method": {"name": "fesem", "addons": [{"name": "cam"}]}}, "a phase before its own rounds"),
        ({"method": "local"}, "no model is trained by all clients"),
        ({"method": "ditto", "on_divergence": "drop_client"}, "one by one"),
        ({"method": "fesem", "seeds": 2, "seeds_in_one": True}, "seeds_in_one: false"),
    ],
)
def test_what_needs_all_states_at_once_is_refused(given, reason):
    with pytest.raises(InputError, match=reason):
        run(given, client_states="host")


def test_rows_that_were_not_replaced_take_no_room():
    table = HostTable(3, room=2**20)
    first = {"a": np.float32([1, 2]), "b": np.int32(3)}
    kept = jax.jit(table.begin)(first)
    kept = jax.jit(lambda kept: kept.put(np.array([1, 3]), {"a": np.ones((2, 2), np.float32), "b": np.arange(2)}))(kept)
    found = jax.jit(HostRows.take)(kept, np.array([[1, 0]]))
    np.testing.assert_array_equal(found["a"], [[[1, 1], [1, 2]]])
    np.testing.assert_array_equal(found["b"], [[0, 3]])
    assert table.written.tolist() == [False, True, False] and int(kept.turn) == 1


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
def test_means_over_parts_of_the_models_keep_dtypes_and_are_summed_as_floats(monkeypatch, wide):
    """Running statistics of Flax stay in single precision if JAX is set to double precision."""
    monkeypatch.setattr(onhost, "AT_A_TIME", dict.fromkeys(onhost.AT_A_TIME, 1))
    with jax.enable_x64(wide):
        models = {"half": jnp.asarray([256, 1, 1, 1, 1, 2], jnp.bfloat16), "n": jnp.arange(6), "x": jnp.arange(6) / 2}
        models["x"] = models["x"].astype(jnp.float32)
        default = jax.tree.map(lambda leaf: leaf[:2], models)
        group, one = jnp.array([0, 0, 0, 0, 0, 1]), jnp.ones(6)
        clusters, mean = jax.jit(onhost.means)(group, one, one, models, default)
    dtypes = lambda tree: jax.tree.map(lambda leaf: leaf.dtype, tree)
    assert dtypes(clusters) == dtypes(mean) == dtypes(models)
    floats = lambda tree: jax.tree.map(lambda leaf: np.asarray(leaf, float), tree)
    tiny.same(floats(clusters), {"half": [52, 2], "n": [2, 5], "x": [1, 2.5]})
    tiny.same(floats(mean), {"half": 43.75, "n": 2, "x": 1.25})  # 262 / 6 is 43.75 in eight bits


@pytest.mark.parametrize("room", [2**20, 0], ids=["in memory", "in a file"])
def test_consecutive_rows_are_a_view_in_memory_and_are_not_written_to_a_file(room):
    table, first = HostTable(4, room), {"a": np.float32([1, 2])}
    table.begin(first)
    table.write(0, np.array([1]), {"a": np.float32([[5, 6]])})
    who = np.array([[0, 1, 2]])
    for _ in range(2):
        found = table.read(0, who)["a"]
        np.testing.assert_array_equal(found, [[[1, 2], [5, 6], [1, 2]]])
    assert np.shares_memory(found, table.arrays[0]) == bool(room)
    assert table.written.tolist() == ([True, True, True, False] if room else [False, True, False, False])


@pytest.mark.parametrize("replaced", [[0, 1, 2, 3], [3, 1]], ids=["all", "some"])
@pytest.mark.parametrize("who", [[0, 1, 2], [3], [2, 0], [1, 1], [[0, 1], [2, 3]], []], ids=str)
def test_rows_are_those_that_were_written(replaced, who):
    table, new = HostTable(4, room=2**20), np.arange(8, dtype=np.float32).reshape(4, 2)
    table.begin({"a": np.float32([-1, -2]), "b": np.float32(-3)})
    table.write(0, np.array(replaced), {"a": new[replaced], "b": new[replaced, 0]})
    kept = np.isin(np.arange(4), replaced)
    who = np.array(who, int)
    for found in (dict(zip("ab", table.rows(who), strict=True)), table.read(0, who)):
        np.testing.assert_array_equal(found["a"], np.where(kept[:, None], new, [-1, -2])[who])
        np.testing.assert_array_equal(found["b"], np.where(kept, new[:, 0], -3)[who])


@pytest.mark.parametrize("where", [(rows.os, "pwrite"), (rows.tempfile, "TemporaryFile")], ids=["writing", "making"])
def test_a_full_disk_is_an_error_and_does_not_kill_the_process(where, monkeypatch, tmp_path):
    """The system kills a process that writes to mapped memory for which the disk has no room."""

    def full(*args, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(onhost, "SHARE", 2**60)
    monkeypatch.setattr(*where, full)
    with pytest.raises(Unwritable, match=r"clients' states cannot be written to /.*: No space left .*; set TMPDIR"):
        run(CASES["ditto"], client_states="host", out=tmp_path / "run")


def test_checkpoints_that_cannot_fit_are_refused_and_those_that_may_not_are_named(monkeypatch, tmp_path):
    """Ditto's checkpoint has the models of all clients. Two are kept, also while another one is written."""
    folder, usage = tmp_path / "run", shutil.disk_usage(tmp_path)
    go = lambda: run(CASES["ditto"], client_states="host", out=folder)
    with_room = lambda free: monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    needs = built(**BASE | CASES["ditto"], client_states="host").needs
    size = needs.checkpoint
    with_room(size - 1)
    with pytest.raises(InputError, match=r"checkpoints would take .* in .*run, and .* are free; give another folder"):
        go()
    assert not folder.exists()
    with_room(2 * size)
    with pytest.warns(Notice, match=r"this run may write up to .* to .*run, and .* are free"):
        go()
    assert (folder / "summary.json").exists()
    with_room(3 * size)
    with warnings.catch_warnings(action="error"):
        disk.check(needs, tmp_path / "another")
    (file,) = folder.glob("checkpoints/*/*.npz")
    assert 8 * 4 * 171 < size < file.stat().st_size


def test_a_checkpoint_is_counted_with_its_evaluations(tmp_path):
    given = {"method": "majority", "rounds": 100, "evaluate_every": 1}
    run(given, out=tmp_path)
    (file,) = tmp_path.glob("checkpoints/*/*.npz")
    assert 0.5 < built(**BASE | given).needs.checkpoint / file.stat().st_size < 1.5


def test_a_run_without_checkpoints_fits_any_disk_and_measures_the_same(monkeypatch, tmp_path):
    """With `checkpoint_every: never` nothing is kept to go on from; the same folder is trained from the beginning."""
    usage = shutil.disk_usage(tmp_path)
    kept = run(CASES["ditto"], out=tmp_path / "kept")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(InputError, match="or set checkpoint_every to never"):
        run(CASES["ditto"], out=tmp_path / "refused")
    for again in (False, True):
        found = run(CASES["ditto"], checkpoint_every="never", out=tmp_path / "run", resume=again)
        assert not (tmp_path / "run" / "checkpoints").exists()
        assert found.rounds.tolist() == kept.rounds.tolist()
        np.testing.assert_array_equal(found.scores["loss"], kept.scores["loss"])
    lines = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("kept", "run")]
    assert lines[0] == lines[1]


def test_a_table_s_run_does_without_checkpoints_that_do_not_fit(monkeypatch, tmp_path):
    usage, made = shutil.disk_usage(tmp_path), built(**CASES["ditto"])
    assert reproducing.with_room(made, tmp_path / "run") is made
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.warns(Notice, match=r"/run is trained without checkpoints, because they would take .*, and 10 bytes"):
        found = reproducing.with_room(made, tmp_path / "run")
    assert found.config.checkpoint_every == "never"
    disk.check(found.needs, tmp_path / "run")


def test_seeds_that_are_trained_one_after_another_have_all_the_memory_each(monkeypatch):
    monkeypatch.setattr(plan.memory, "memory_budget", lambda: 3000)
    budgets = lambda: [built(method="fedavg", seeds=3, seeds_in_one=one).config.budget for one in (None, True, False)]
    assert budgets() == [1000, 1000, 3000]
    monkeypatch.setattr(plan, "SMALL", 0)  # no states are small enough for seeds side by side
    assert budgets() == [3000, 1000, 3000]


def test_states_in_a_file_are_counted_where_temporary_files_are(monkeypatch, tmp_path):
    need = built(**CASES["ditto"], client_states="host").needs
    assert need.rows > 8 * 4 * 171 and need.checkpoint > need.states + need.rows
    monkeypatch.setattr(onhost, "SHARE", 2**60)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=need.rows))
    disk.check(need, None)
    with pytest.warns(Notice, match=r"up to .* to /.* and .* to .*out, and"):
        disk.check(need._replace(checkpoint=0, checkpoints=1), tmp_path / "out")
