"""Examples that do not fit the device: in host memory or in a mapped file, with the figures that they have on it."""

import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from numpy.lib.format import open_memmap

import jcfl
from jcfl import InputError, cli
from jcfl.data import from_arrays, from_clients, mapped, write_gaussian
from jcfl.runs import ahead, devices, needs, objects, plan
from jcfl.runs.config import read
from jcfl.runs.objects import Objects
from jcfl.runs.provenance import fingerprint
from jcfl.types.host import OnHost, whole_map
from tests import tiny
from tests.processes import CALM

SIZES = (12, 9, 1, 12, 10, 5, 12, 8)


def attended(held_out=0):
    """Clients of uneven sizes, of which one arrives late and one departs."""
    found = tiny.federation(SIZES, held_out=held_out)
    arrive, depart = found.arrive.copy(), found.depart.copy()
    arrive[1], depart[4] = 2, 3
    return found.replace(arrive=arrive, depart=depart)


def run(federation, **given):
    base = {"model": tiny.task(), "rounds": 4, "evaluate_every": 2, "participation": 0.5, "budget": 2**30}
    base["train"] = {"lr": 0.3, "epochs": 1, "batch_size": 4}
    return jcfl.run(federation, **base | given)


def same(one, two, tolerance=0.0):
    """Whether two runs have the same labels, and the same scores and states but for rounding."""
    np.testing.assert_array_equal(one.labels, two.labels)
    assert one.scores.keys() == two.scores.keys()
    tiny.same(
        (one.state, one.accuracy_clients, dict(one.scores)),
        (two.state, two.accuracy_clients, dict(two.scores)),
        tolerance,
    )


PACFL = {"describe": "subspace", "compare": "principal_angles", "group": {"name": "linkage", "clusters": 2}}
PACFL |= {"when": "once"}
FLHC = {"name": "flhc", "clusters": 2, "at": 1, "addons": [{"name": "finetune", "steps": 2}]}
CASES = [
    {"method": {"name": "stocfl", "tau": 0.5}},  # described by data before a round, factored training, merged, placed
    {"method": {"name": "ifca", "clusters": 2}, "seeds": 2, "seeds_in_one": True},  # losses of all; side by side
    {"method": FLHC, "engine": "general"},  # all clients at once, after training; clients train to answer
    {"method": {"name": "clustered"} | PACFL},  # all, before training
    {"method": "feddane"},  # a second cohort
    {"method": {"name": "fedem", "clusters": 2}},  # a mixture answers
]


@pytest.mark.parametrize("given", CASES, ids=lambda given: str(given["method"]))
def test_figures_are_those_with_examples_on_the_device(given):
    """But for the last digit: with the tests' flags, XLA rounds differently in programs that differ in a gather."""
    federation = attended(held_out=given["method"] != "feddane")
    same(run(federation, **given, examples="host"), run(federation, **given, examples="device"), 1e-6)


EXACT = """
import jcfl
jcfl.use_cache()
from tests import test_client_states
from tests.test_large import CASES, attended, run, same

same(*(run(attended(1), **CASES[1], examples=place) for place in ("host", "device")))
for name in ("ditto", "factored"):
    case = test_client_states.CASES[name]
    test_client_states.same(*(test_client_states.run(case, client_states=place) for place in ("host", "device")))
print("the same")
"""


def test_figures_are_the_same_bit_for_bit_as_xla_usually_compiles():
    whole = "--xla_cpu_parallel_codegen_split_count=1"  # takes less time, and leaves the operations as they are
    env = os.environ | {"XLA_FLAGS": whole if whole in os.environ.get("XLA_FLAGS", "") else ""}
    done = subprocess.run([sys.executable, "-c", CALM + EXACT], env=env, capture_output=True, text=True, timeout=300)
    assert "the same" in done.stdout, done.stderr


def test_the_cohort_of_a_round_is_known_before_and_its_file_is_read_ahead(tmp_path, monkeypatch):
    """The clients that are asked beforehand are those that then take part, and their rows are those that are read."""
    federation = mapped(write_gaussian(tmp_path / "made", users=6, examples=20, features=4))
    wanted, seen = [], []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, start, size, how: wanted.append((start, size)))
    given = {"method": "fedavg", "model": "linear", "participation": 0.5, "evaluate_every": 1, "rounds": 3}
    found = run(federation, **given, on_progress=lambda progress: seen.append(len(wanted)))
    head, row = federation.x.ctypes.data % 4096, federation.x.strides[0]
    assert {(start - head) % row for start, _ in wanted} == {0}
    clients = [(start - head) // row // 20 for start, _ in wanted]
    assert set(np.flatnonzero(found.state.seen[0])) >= set(clients)
    assert all(size <= 20 * row for _, size in wanted)
    assert len(set(clients)) >= 3


def test_reading_ahead_stops_where_memory_ends(tmp_path, monkeypatch):
    federation, wanted = mapped(write_gaussian(tmp_path / "made", users=6, examples=20, features=4)), []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: wanted.append(given))
    monkeypatch.setattr(ahead, "available_memory", lambda: 0)
    run(federation, method="fedavg", model="linear", participation=0.5, evaluate_every=1, rounds=3)
    assert not wanted


def test_a_run_goes_on_with_examples_elsewhere(tmp_path):
    """Where examples are is no part of what decides the figures."""
    given = {"method": "fedavg", "checkpoint_every": 0.0}
    run(attended(), **given, rounds=2, out=tmp_path / "run", examples="host")
    assert read(tmp_path / "run" / "config.yaml").examples == "host"
    same(run(attended(), **given, out=tmp_path / "run", resume=True), run(attended(), **given, examples="host"))


def test_a_program_asks_for_rows_one_by_one_or_by_lanes():
    x = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
    host, rows = OnHost(x), np.array([[5, 0], [3, 3]])
    np.testing.assert_array_equal(host[rows], x[rows])
    lanes = jax.jit(jax.vmap(lambda rows: host[rows], 1))(rows)
    np.testing.assert_array_equal(lanes, x[rows].swapaxes(0, 1))
    assert (host.shape, host.ndim, host.dtype) == (x.shape, 3, np.float32)
    assert not jax.tree.leaves(host)
    assert fingerprint(tiny.federation()) == fingerprint(tiny.federation().replace(x=OnHost(tiny.federation().x)))


def planned(federation, **given):
    settings = {**objects.config_of_federation(federation), "method": "fedavg", "model": "linear", "rounds": 1, **given}
    return plan.planned(read(settings), Objects(federation=federation))


def test_examples_stay_on_the_host_where_the_device_has_no_room(monkeypatch):
    federation = tiny.federation()
    assert planned(federation).config.examples == "device"
    whole = planned(federation).needs
    room = whole.states + whole.predictions + whole.federation
    monkeypatch.setattr(needs, "free_memory", lambda: room)
    assert planned(federation).config.examples == "device"
    monkeypatch.setattr(needs, "free_memory", lambda: room - 1)
    found = planned(federation)
    assert found.config.examples == "host"
    assert isinstance(found.federation.x, OnHost)
    assert found.needs.federation + found.needs.outside == whole.federation
    assert re.search(r"examples on the host \d+", found.needs.text())
    monkeypatch.setattr(needs, "free_memory", lambda: whole.states)
    with pytest.raises(InputError, match=r"the federation .* would take .*; take fewer"):
        planned(federation)


def test_examples_are_not_on_several_hosts_or_beside_a_missing_cpu(monkeypatch):
    monkeypatch.setattr(devices.hosts, "several", lambda: True)
    with pytest.raises(InputError, match="examples: 'host' is for one host"):
        devices.with_examples_on_host(tiny.federation())
    monkeypatch.setattr(devices.hosts, "several", lambda: False)
    monkeypatch.setattr(jax, "local_devices", lambda backend: exec("raise RuntimeError"))
    with pytest.raises(InputError, match="JAX_PLATFORMS="):
        devices.with_examples_on_host(tiny.federation())


def test_examples_on_the_host_are_said_by_show(capsys):
    words = ["quickstart", "scenario.clients=8", "method=fedavg", "compare=[]", "examples=host"]
    assert cli.status(["show", *words]) == 0
    assert "examples on the host" in capsys.readouterr().out
    assert cli.status(["show", *words[:-1], "examples=disk"]) == 2


def on_disk(folder, x):
    """An array in a file, mapped."""
    file = open_memmap(folder / "x.npy", "w+", x.dtype, x.shape)
    file[:] = x
    file.flush()
    return np.load(folder / "x.npy", mmap_mode="r")


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_clients_of_a_mapped_file_have_the_examples_of_the_array(tmp_path, kind):
    rng = np.random.default_rng(0)
    x = (255 * rng.random((80, 4, 4) if kind == np.uint8 else (80, 16))).astype(kind)
    y, who = rng.integers(0, 3, 80), np.r_[rng.integers(0, 5, 77), 5, 6, 6]
    given = {"min_examples": (2, 1), "held_out": 0.2, "scale": "standard" if kind == np.uint8 else "unit", "seed": 3}
    with pytest.raises(InputError, match="clients: 2 of 7 have fewer than 2"):
        from_clients(on_disk(tmp_path, x), y, who, **given)
    given["min_examples"] = (1, 0)
    one, two = from_clients(x, y, who, **given), from_clients(on_disk(tmp_path, x), y, who, **given)
    assert whole_map(two.x) is not None
    assert whole_map(one.x) is None
    np.testing.assert_array_equal(one.held_out, two.held_out)
    for half in ("train", "test"):
        a, b = getattr(one, half), getattr(two, half)
        np.testing.assert_array_equal(one.x[a.rows], two.x[b.rows])
        np.testing.assert_array_equal(one.y[a.rows], two.y[b.rows])
        np.testing.assert_array_equal(a.size, b.size)
    if kind == np.uint8:  # which are scaled
        own = {"method": "fedavg", "model": "linear", "rounds": 1}
        same(run(one, **own), run(two, **own), 1e-6)


def test_a_mapped_file_is_checked_and_not_copied(tmp_path):
    x = np.random.default_rng(0).random((40, 4), np.float32)
    y, who = np.arange(40) % 2, np.arange(40) % 4
    file = on_disk(tmp_path, x)
    given = from_arrays(file, y, who, (file, y, who))
    assert np.shares_memory(given.train.x, file)
    assert np.shares_memory(given.test.x, file)
    with pytest.raises(InputError, match=r"40 examples, 39 labels"):
        from_clients(file, y[:-1], who)
    with pytest.raises(InputError, match="scale 'standard' is for images"):
        from_clients(file, y, who, scale="standard")
    with pytest.raises(InputError, match="scale 'standard' is for images"):
        from_clients(on_disk(tmp_path, x.reshape(40, 2, 2)), y, who, series=True, scale="standard")
    with pytest.raises(InputError, match="got 5 axes"):
        from_clients(on_disk(tmp_path, x.reshape(40, 1, 1, 2, 2)), y, who)
    x[7, 2] = np.nan
    with pytest.raises(InputError, match="example 7 of client 3 has a NaN"):
        from_clients(on_disk(tmp_path, x), y, who)


def test_a_cpu_reads_a_mapped_file_where_it_is(tmp_path):
    """XLA takes an aligned array as it is; the plan counts on that, and names the file."""
    write_gaussian(tmp_path / "made", users=6, examples=20, features=4)
    federation = mapped(tmp_path / "made")
    found = planned(federation)
    assert found.federation.x.unsafe_buffer_pointer() == federation.x.ctypes.data
    assert found.needs.outside == federation.x.nbytes
    assert "examples in a mapped file" in found.needs.text()
    assert federation.groups.tolist() == [0, 0, 1, 2, 2, 3]


def test_a_generated_federation_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    made = write_gaussian(tmp_path / "a", users=4, examples=10, features=3, seed=1)
    again = write_gaussian(tmp_path / "b", users=4, examples=10, features=3, seed=1)
    assert fingerprint(mapped(made, name="x")) == fingerprint(mapped(again, name="x"))
    for there in (made, "."):
        with pytest.raises(InputError, match="is there already"):
            write_gaussian(there)
    with pytest.raises(InputError, match=r"would take .* are free"):
        write_gaussian(tmp_path / "c", users=2**30, examples=2**20)
    with pytest.raises(InputError, match=r"users: .* got 0"):
        write_gaussian(tmp_path / "c", users=0)
    monkeypatch.setattr(np, "save", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_gaussian(tmp_path / "c", users=4, examples=2)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "b"]
    with pytest.raises(InputError, match=r"cannot read .*x\.npy: No such file"):
        mapped(tmp_path / "c")
