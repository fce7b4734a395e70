"""Sweeps: points that differ in numbers are one program and give what single runs give; resumed, refused, written."""

import csv
import errno
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax import linen as nn
from flax import nnx
from pydantic import Field

import jcfl
from jcfl import cli, registry, results
from jcfl.core import local
from jcfl.core.context import Context
from jcfl.core.rounds import initial
from jcfl.errors import InputError, TrainingError, Unwritable
from jcfl.results import npz
from jcfl.runs import experiment, loop, sweeping
from jcfl.runs.sweeping import groups
from jcfl.runs.sweeping.points import key_and_values, point_names, points
from jcfl.types import Algorithm
from tests import tiny

TRACES = []


def walk(
    *,
    drift: Annotated[float, Field(ge=0)] = 1.0,
    start: float = 0.0,
    bend: float = 0.0,
    pull: float | None = None,
    copies: int = 2,
) -> Callable[[Context], Algorithm]:
    """A model of one number that drifts and takes a random step; `bend` is branched on, as no array can be."""

    def made(context: Context) -> Algorithm:
        def init(key, federation):
            clusters = {"params": jnp.full((copies, 1), start, jnp.float32)}
            return initial(key, clusters, {"params": jnp.zeros(1)}, context.population.clients)

        def step(state, federation):
            TRACES.append("step")
            noise = jax.random.normal(jax.random.fold_in(state.key, state.round), (1,))
            model = state.clusters["params"] + drift + noise + (0.0 if bend == 0 else 100.0)
            model = model if pull is None else model + pull
            failed = jnp.where((state.round == 3) & (jnp.asarray(drift) > 50), jnp.array([3, 1]), state.failed)
            return state.replace(clusters={"params": model}, failed=failed.astype(jnp.int32), round=state.round + 1)

        def evaluate(state, federation):
            first = state.clusters["params"][0, 0]
            labels = (jnp.arange(context.population.clients) + state.round) % copies
            figures = {"accuracy_micro": first, "loss": -first, "clusters": jnp.int32(copies)}
            return figures | {"labels": labels, "accuracy_clients": labels * first}

        return Algorithm(init, step, lambda *given: given, evaluate, lambda clusters: {"storage": 1})

    return made


@pytest.fixture(autouse=True)
def registered():
    """The walk among the methods, and compilations counted."""
    registry.register("method", "walk")(walk)
    TRACES.clear()


def swept_walk(over, **given):
    given = {"method": "walk", "model": tiny.task(), "rounds": 6, "evaluate_every": 2, "budget": 2**30} | given
    return sweeping.sweep(tiny.federation(), over, **given)


def expected(seed, rounds, drift, start=0.0):
    key = jax.random.key(seed)
    noise = [float(jax.random.normal(jax.random.fold_in(key, round), (1,))[0]) for round in range(rounds)]
    return start + rounds * drift + sum(noise)


def test_a_sweep_that_is_complete_has_the_same_table_when_it_is_given_again(tmp_path):
    """A deviation of one seed is NaN; it was None, and an empty cell, where a point was read from its files."""
    given = {"method": "majority", "model": "linear", "rounds": 0, "out": tmp_path / "out"}
    rows, texts = [], []
    for resume in (False, True):
        rows.append(sweeping.sweep(tiny.federation(), {"train.lr": [0.1, 0.2]}, resume=resume, **given).rows())
        texts.append((tmp_path / "out" / "sweep.csv").read_text())
    np.testing.assert_equal(*rows)
    assert np.isnan(rows[1][0]["accuracy_micro"]["std"])
    assert texts[0] == texts[1]


def test_more_points_than_files_that_may_be_open_are_trained(tmp_path, monkeypatch):
    """Each point that trains holds a lock, and no limit of open files should end a sweep."""
    held, claimed = [0, 0], results.claimed  # now, and at most

    @contextmanager
    def counted(*given, **more):
        with claimed(*given, **more) as folder:
            held[:] = held[0] + 1, max(held[1], held[0] + 1)
            yield folder
            held[0] -= 1

    monkeypatch.setattr(results, "claimed", counted)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (6, 6))
    over = {"train.lr": [0.1 * number for number in range(1, 8)]}
    found = sweeping.sweep(tiny.federation(), over, method="majority", model="linear", rounds=0, out=tmp_path / "out")
    assert len(found.histories) == 7 and held == [0, 3]


def test_numbers_times_seeds_are_traced_and_compiled_once():
    found = swept_walk({"method.drift": [0.0, 0.5, 2.0], "method.start": [0.0, -3.0]}, seeds=3, seed=4)
    assert TRACES == ["step"]
    assert found.compilations == 1
    assert [point.values for point in found.points][:3] == [
        {"method.drift": 0.0, "method.start": 0.0},
        {"method.drift": 0.0, "method.start": -3.0},
        {"method.drift": 0.5, "method.start": 0.0},
    ]
    for point, history in zip(found.points, found.histories, strict=True):
        assert history.seeds == [4, 5, 6]
        assert history.rounds.tolist() == [2, 4, 6]
        for i, seed in enumerate(history.seeds):
            for j, rounds in enumerate(history.rounds):
                wanted = expected(seed, rounds, point.values["method.drift"], point.values["method.start"])
                assert history["accuracy_micro"][i, j] == pytest.approx(wanted, abs=1e-5)
    assert found.points[found.best()].values == {"method.drift": 2.0, "method.start": 0.0}
    assert [row["best"] for row in found.rows()] == [False] * 4 + [True, False]
    least = sweeping.Sweep(found.points, found.histories, "loss", 1)
    assert least.best() == found.best()
    shares = [history.summary["compile_s"] for history in found.histories]
    assert len(set(shares)) == 1
    assert shares[0] > 0


def test_what_is_branched_on_or_no_real_number_is_compiled_by_value():
    found = swept_walk({"method.drift": [0.0, 1.0], "method.bend": [0.0, 1.0]})
    assert found.compilations == 2
    last = [history["accuracy_micro"][0, -1] for history in found.histories]
    wanted = [expected(0, 6, 0), expected(0, 6, 0) + 600, expected(0, 6, 1), expected(0, 6, 1) + 600]
    np.testing.assert_allclose(last, wanted, atol=1e-3)
    assert swept_walk({"method.drift": [0.0, 1.0], "method.copies": [1, 2]}).compilations == 2
    assert swept_walk({"method.drift": [0.0, 1.0, 2.0]}, seeds_in_one=False, seeds=2).compilations == 1


@pytest.mark.parametrize(
    ("method", "over", "index"),
    [
        ({"name": "stocfl", "tau": 0.2}, {"method.lam": [0.0, 0.4], "train.momentum": [0.0, 0.5]}, 0),
        (
            {"name": "ifca", "clusters": 2, "addons": [{"name": "con_para", "mu": 0.1}]},
            {"method.addons.0.mu": [0.1, 0.8], "method.addons.0.temperature": [0.5, 2.0], "train.momentum": [0.0, 0.5]},
            -1,
        ),
    ],
)
def test_points_together_equal_single_runs(method, over, index):
    """A single run is beside the point of zeros, which alone are constants, or beside the last point."""
    given = {"method": method, "model": tiny.task(), "rounds": 4, "evaluate_every": 2, "seeds": 2, "budget": 2**30}
    given["train"] = {"lr": 0.3, "epochs": 2, "batch_size": 4}
    found = sweeping.sweep(tiny.federation(), over, **given)
    assert found.compilations == 1
    point, together = found.points[index], found.histories[index]
    pieces = {key: getattr(point.config, key).model_dump() for key in ("method", "train")}
    alone = experiment.run(tiny.federation(), **given | pieces)
    np.testing.assert_array_equal(together.labels, alone.labels)
    for score in alone.scores:
        np.testing.assert_allclose(together[score], alone[score], atol=1e-6, rtol=1e-6, err_msg=score)
    ends = [history["loss"][:, -1].tolist() for history in found.histories]
    assert len({tuple(np.round(end, 6)) for end in ends}) == len(ends), "an option had no effect"


@pytest.mark.parametrize("values", [[None, 5.0, 7.0], [5.0, None, 7.0]])
def test_an_option_that_is_a_number_at_some_points_only(values):
    found = swept_walk({"method.pull": values}, rounds=2)
    last = [history["accuracy_micro"][0, -1] for history in found.histories]
    np.testing.assert_allclose(last, [expected(0, 2, 1.0 + (value or 0.0)) for value in values], atol=1e-5)


class Narrow(nn.Module):
    """A user's module, with an option of its own."""

    width: int = 2

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(self.width)(x.reshape(x.shape[0], -1))))


class Modern(nnx.Module):
    """A user's NNX module."""

    def __init__(self, rngs: nnx.Rngs):
        self.last = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x):
        return self.last(x.reshape(x.shape[0], -1))


GIVEN = {"method": "fedavg", "rounds": 1, "budget": 2**30, "train": {"lr": 0.3, "epochs": 1}}


@functools.cache
def alone(model):
    """The losses of a single run with a module."""
    return experiment.run(tiny.federation(), model=model, **GIVEN)["loss"]


def test_options_are_swept_over_a_module_of_ones_own(tmp_path):
    over, out = {"train.lr": [0.1, 0.3]}, tmp_path / "sweep"
    found = sweeping.sweep(tiny.federation(), over, model=Narrow(3), out=out, **GIVEN)
    assert found.compilations == 1
    np.testing.assert_allclose(found.histories[1]["loss"], alone(Narrow(3)), atol=1e-6)
    assert np.abs(found.histories[0]["loss"] - found.histories[1]["loss"]).min() > 1e-3
    again = sweeping.sweep(tiny.federation(), over, model=Narrow(3), out=out, resume=True, **GIVEN)
    assert again.compilations == 0
    assert cli.status(["sweep", "--resume", str(out)]) == 2  # only Python has the module
    whole = {"scenario": {"name": "iid", "clients": 4}, "model": Narrow(3), **GIVEN}
    own = [[point.objects.model for point in points(whole, over, **more).points] for more in ({}, {"model": Modern})]
    assert own == [[whole["model"]] * 2, [Modern] * 2]


def test_modules_handed_over_are_points_of_their_own(tmp_path):
    models = [Narrow(2), Narrow(3), Modern, tiny.task(), {"name": "mlp", "hidden": 4}]
    found = swept_walk({"model": models}, rounds=1, out=tmp_path / "sweep")
    assert [point.name for point in found.points] == [
        f"model={n}" for n in ["Narrow", "Narrow-2", "Modern", "Task", "mlp_hidden_4"]
    ]
    assert found.compilations == len(models)
    sizes = [16 * 2 + 2 + 2 * 10 + 10, 16 * 3 + 3 + 3 * 10 + 10, 16 * 10 + 10]
    sizes += [16 * 6 + 6 + 6 * 10 + 10, 16 * 4 + 4 + 4 * 10 + 10]
    assert [history.summary["costs"]["model_bytes"] for history in found.histories] == [4 * size for size in sizes]
    assert [row["values"]["model"].get("object") for row in found.rows()][:2] == ["Narrow", "Narrow-2"]
    assert (tmp_path / "sweep" / "runs" / "model=Narrow-2" / "summary.json").is_file()
    trained = sweeping.sweep(tiny.federation(), {"model": models[1:3]}, **GIVEN)
    for model, history in zip(models[1:3], trained.histories, strict=True):  # as each of them trains alone
        np.testing.assert_allclose(history["loss"], alone(model), atol=1e-6)


def test_objects_take_turns_with_names():
    """Of a base's object nothing is left at a point that has another piece; methods and trainers work as models do."""

    def mine(context):
        return walk(drift=0.5)(context)

    trainer = local.sgd(lr=0.2, epochs=1)
    over = [{"model": "linear"}, {"method": mine}, {"train": trainer}, {"method": mine, "model": Narrow()}, {"seed": 2}]
    found = points(tiny.federation(), over, model=Narrow(3), method="ifca").points
    held = [{key for key, value in point.objects._asdict().items() if value is not None} for point in found]
    assert held == [
        {"federation", *more} for more in ((), ("model", "method"), ("model", "train"), ("model", "method"), ("model",))
    ]
    assert found[3].objects.model == Narrow() and found[4].objects.model == Narrow(3)
    assert [point.config.model.is_placeholder for point in found] == [False, True, True, True, True]
    swept_walk([{"method": mine}, {"method.drift": 1.0}])


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"model.width": [2, 3]}, "model.width: .* handed over in Python .* as a list"),
        ({"model": Narrow()}, "expects a list of values"),
        ({"model": tiny.task()}, "expects a list of values"),
        ({"model": [Narrow(), Narrow]}, "got its class"),
    ],
)
def test_what_cannot_be_swept_of_a_module_is_refused(over, said):
    with pytest.raises(InputError, match=said):
        sweeping.sweep(tiny.federation(), over, model=Narrow(), **GIVEN)


def test_a_server_rate_that_is_branched_on_is_compiled_by_value():
    given = {"method": "feddist", "model": tiny.task(), "rounds": 1, "budget": 2**30, "train": {"lr": 0.3}}
    found = sweeping.sweep(tiny.federation(), {"method.epsilon": [0.5, 1.0]}, **given)
    assert found.compilations in (1, 2)
    alone = experiment.run(tiny.federation(), **given | {"method": {"name": "feddist", "epsilon": 0.5}})
    np.testing.assert_allclose(found.histories[0]["loss"], alone["loss"], atol=1e-6)


def test_folders_are_those_of_runs(tmp_path):
    out = tmp_path / "sweep"
    found = swept_walk({"method.drift": [0.0, 2.0]}, seeds=2, out=out)
    read = results.load(out)
    assert [read.name, *read.others] == ["drift=0", "drift=2"]
    np.testing.assert_array_equal(read.others["drift=2"]["accuracy_micro"], found.histories[1]["accuracy_micro"])
    alone = experiment.run(
        tiny.federation(), method={"name": "walk", "drift": 2.0}, model=tiny.task(), rounds=6, evaluate_every=2,
        seeds=2, budget=2**30, out=tmp_path / "alone",
    )  # fmt: skip
    names = {path.name for path in (tmp_path / "alone").iterdir()}
    assert {path.name for path in (out / "runs" / "drift=2").iterdir()} == names
    summary = json.loads((out / "runs" / "drift=2" / "summary.json").read_text())
    assert summary["accuracy_micro"] == pytest.approx(alone.summary["accuracy_micro"], abs=1e-5)
    assert summary["method"] == "walk"
    stored = yaml.safe_load((out / "runs" / "drift=2" / "config.yaml").read_text())
    assert (stored["method"]["drift"], stored["seeds_in_one"]) == (2.0, True)
    assert stored["made_by"]["device"]["count"] == jax.device_count()  # two after a test of the command line
    table = json.loads((out / "sweep.json").read_text())
    assert [row["best"] for row in table["points"]] == [False, True]
    assert table["points"][1]["accuracy_micro"] == summary["accuracy_micro"]
    rows = list(csv.DictReader((out / "sweep.csv").open()))
    assert [float(row["method.drift"]) for row in rows] == [0, 2]
    assert float(rows[1]["accuracy_micro_std"]) == pytest.approx(summary["accuracy_micro"]["std"])
    with pytest.raises(InputError, match="already holds a sweep"):
        swept_walk({"method.drift": [0.0, 2.0]}, out=out)
    longer = experiment.run(
        tiny.federation(), method={"name": "walk", "drift": 2.0}, model=tiny.task(), rounds=8, evaluate_every=2,
        seeds=2, budget=2**30, out=out / "runs" / "drift=2", resume=True,
    )  # fmt: skip
    assert longer["accuracy_micro"][1, -1] == pytest.approx(expected(1, 8, 2.0), abs=1e-5)
    assert longer.rounds.tolist() == [2, 4, 6, 8]


def test_a_stopped_sweep_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """Stopped in the first block, and later in the first and in the second program."""
    monkeypatch.setattr(loop, "BLOCK", 0.0)  # every block is one round
    over, calls = {"method.drift": [0.0, 2.0], "method.copies": [1, 2]}, []
    swept_walk(over, seeds=2, out=tmp_path / "whole")
    for when in (1, 4, 13):

        def stop(progress, when=when):
            calls.append(progress)
            if len(calls) == when:
                signal.raise_signal(signal.SIGTERM)

        calls.clear()
        out = tmp_path / f"cut-{when}"
        with pytest.raises(loop.Interrupted):
            swept_walk(over, seeds=2, out=out, on_progress=stop)
        assert not (out / "sweep.json").exists()
        calls.clear()
        found = swept_walk(over, seeds=2, out=out, resume=True, on_progress=calls.append)
        assert calls[-1].done == calls[-1].total == 4 * 2 * 6
        assert found.compilations == (1 if when >= 7 else 2)
        for name in ("drift=0+copies=1", "drift=0+copies=2", "drift=2+copies=1", "drift=2+copies=2"):
            whole, cut = (place / "runs" / name for place in (tmp_path / "whole", out))
            assert (whole / "metrics.jsonl").read_text() == (cut / "metrics.jsonl").read_text()
        assert swept_walk(over, seeds=2, out=out, resume=True).compilations == 0


def test_a_point_that_is_left_alone_goes_on_with_the_program_it_began_with(tmp_path):
    """A learning rate that the others do not have is an array still; as a constant it is rounded in another way."""
    over = {"train.lr": [0.1, 0.9]}
    given = {"method": "fedavg", "model": {"name": "mlp", "hidden": 20}, "rounds": 10, "budget": 2**30}
    sweeping.sweep(tiny.federation(), over, out=tmp_path, **given)
    figures = tmp_path / "runs" / "lr=0.9" / "metrics.jsonl"
    before = figures.read_text()
    shutil.rmtree(figures.parent)
    sweeping.sweep(tiny.federation(), over, out=tmp_path, resume=True, **given)
    assert figures.read_text() == before


def test_points_that_had_not_begun_get_the_memory_of_those_that_had(tmp_path, monkeypatch):
    """However much is free when the sweep goes on; a part of the bits of a model may depend on it."""
    monkeypatch.setattr(groups, "SMALL", 0)  # one point after another
    found = []
    for room in (2**30, 2**20):
        monkeypatch.setattr("jcfl.core.memory.memory_budget", lambda room=room: room)
        stop = lambda progress: found or found.append(signal.raise_signal(signal.SIGTERM))
        with nullcontext() if found else pytest.raises(loop.Interrupted):
            swept_walk({"method.drift": [0.0, 1.0]}, out=tmp_path, resume=bool(found), budget=None, on_progress=stop)
    kept = [yaml.safe_load(file.read_text()) for file in tmp_path.glob("runs/*/config.yaml")]
    assert [(one["budget"], one["fitted"]["keys"]) for one in kept] == [(2**30, kept[0]["fitted"]["keys"])] * 2


def test_a_point_that_diverges_leaves_the_others_alone(tmp_path):
    found = swept_walk({"method.drift": [1.0, 60.0, 2.0]}, out=tmp_path / "sweep")
    assert [one["accuracy_micro"].size for one in found.histories] == [3, 1, 3]
    assert "round 4" in found.histories[1].summary["failed"]
    assert found.histories[2]["accuracy_micro"][0, -1] == pytest.approx(expected(0, 6, 2.0), abs=1e-5)
    assert found.points[found.best()].name == "drift=2"
    table = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [row["failed"] is not None for row in table["points"]] == [False, True, False]
    with pytest.raises(TrainingError, match="every point failed"):
        swept_walk({"method.drift": [60.0, 70.0]})


def test_a_point_that_diverged_stays_so_if_the_sweep_is_killed_before_it_says_it(tmp_path):
    """The checkpoint of the last round is written, and the summary is not."""
    over = {"method.drift": [1.0, 60.0]}
    before = swept_walk(over, out=tmp_path).histories[1].summary
    for place in tmp_path.glob("runs/*"):
        results.Folder(place).settle(["summary.json"])
    found = swept_walk(over, out=tmp_path, resume=True)
    assert [one.summary.get("failed") for one in found.histories] == [None, before["failed"]]
    assert found.best() == 0


def test_points_that_have_begun_stay_in_a_sweep_that_a_full_disk_ends(tmp_path, monkeypatch):
    """Until one of them has begun, the file is again that of the process before."""
    swept_walk({"method.drift": [0.0]}, out=tmp_path)
    save, file = npz.save, tmp_path / "sweep.yaml"
    before = file.read_text()

    def full(*given):
        save(*given)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for module, name, is_new in ((groups, "family_begun", False), (npz, "save", True)):
        with monkeypatch.context() as patch, pytest.raises(Unwritable, match="No space left"):
            patch.setattr(module, name, full if is_new else refuse_to_write)
            swept_walk({"method.drift": [0.0, 2.0]}, out=tmp_path, resume=True)
        assert (file.read_text() != before) == is_new
    assert [values["method.drift"] for values in yaml.safe_load(file.read_text())["over"]] == [0.0, 2.0]


def refuse_to_write(*given):
    raise Unwritable("No space left on device")


def test_a_folder_without_a_sweep_is_not_resumed(tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("run", "none"):
        with pytest.raises(InputError, match="holds no sweep to resume"):
            swept_walk({"method.drift": [0.0]}, rounds=0, out=tmp_path / name, resume=True)
    assert [*tmp_path.rglob("*")] == [tmp_path / "run"]


def test_a_sweep_of_an_own_piece_says_who_can_resume_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = sweeping.points({"scenario": "iid", "method": "fedavg"}, {"train.lr": [0.1, 0.2]})
    results.Folder(Path("own")).put_text("sweep.yaml", found.text().replace("fedavg", "mine"))
    assert cli.status(["sweep", "--resume", "own"]) == 2
    assert capsys.readouterr().err.endswith(
        "(point lr=0.1); a piece of your own is known in the program that registers it, which can resume the sweep: "
        "jcfl.sweep('own/sweep.yaml', out='own', resume=True)\n"
    )


def test_files_with_a_base_and_what_they_go_over(tmp_path):
    (tmp_path / "base.yaml").write_text("data: digits\nscenario: iid\nmethod: ifca\nrounds: 7\ncompare: [fedavg]\n")
    file = tmp_path / "sweep.yaml"
    file.write_text("base: base.yaml\nrounds: 9\nover: [{method.clusters: 3}, {method: {name: stocfl, tau: 0.4}}]\n")
    grid = {"train.lr": [0.1, 0.2]}
    found = points(file, grid).points
    assert [point.name for point in found] == [
        "clusters=3+lr=0.1",
        "clusters=3+lr=0.2",
        "method=stocfl_tau_0.4+lr=0.1",
        "method=stocfl_tau_0.4+lr=0.2",
    ]
    assert [point.config.method.name for point in found] == ["ifca", "ifca", "stocfl", "stocfl"]
    assert {point.config.rounds for point in found} == {9}
    assert not found[0].config.compare
    assert found[3].config.train.options["lr"] == 0.2
    more = points(file, {"train.lr": [0.3], "seed": [1]}, seeds=2).points
    assert [(point.config.seed, point.config.seeds, point.config.train.options["lr"]) for point in more] == [
        (1, 2, 0.3)
    ] * 2
    assert more[0].config.scenario.options["seed"] == 1
    again = tmp_path / "again.yaml"
    again.write_text(points(file, grid).text())
    assert [point.config for point in points(again, None).points] == [point.config for point in found]
    again.write_text("base: base.yaml\nover: {method.clusters: [2, 3]}\n")
    assert [point.name for point in points(again, {"train.lr": [0.1]}).points] == [
        "clusters=2+lr=0.1",
        "clusters=3+lr=0.1",
    ]
    again.write_text("base: base.yaml\ngrid: {method.clusters: [2, 3]}\n")
    with pytest.raises(InputError, match="unknown key 'grid'"):
        points(again, None)
    again.write_text("base: sweep.yaml\nover: {method.clusters: [2, 3]}\n")
    with pytest.raises(InputError, match=r"base: .*, but sweep\.yaml is a sweep itself: it has the key 'base'"):
        points(again, None)


def test_a_path_in_a_sweeps_file_or_in_its_base_is_relative_to_that_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "x.npz").touch()
    (folder / "base.yaml").write_text("data: {name: arrays, path: x.npz}\nscenario: natural\nmethod: fedavg\n")
    (folder / "sweep.yaml").write_text("base: base.yaml\nover: {train.lr: [0.1]}\n")
    for found in (points("there/base.yaml", {"train.lr": [0.1]}), points("there/sweep.yaml", None)):
        assert str(found.points[0].config.data.options["path"]) == "there/x.npz"


@pytest.mark.parametrize("more", [{"addons": ["finetune"]}, {"train": "local"}])
def test_a_method_that_is_functions_already_takes_no_answers_or_add_ons(more):
    with pytest.raises(InputError, match=f"{more.get('addons', ['train'])[0]}' cannot change it"):
        experiment.run(tiny.federation(), method={"name": "walk", **more}, model=tiny.task(), rounds=0)


def test_names_set_points_apart():
    assert point_names([{"a.mu": 0.1, "b.mu": [1, 2], "c": {"name": "x/y", "z": None}}]) == [
        "a.mu=0.1+b.mu=1_2+c=x_y_z_None"
    ]
    assert point_names([{"a": "p q"}, {"a": "p/q"}]) == ["a=p_q", "a=p_q-2"]
    assert point_names([{"lr": 1e-7}, {"lr": 0.123456789}]) == ["lr=1e-07", "lr=0.123456789"]
    assert key_and_values("train.batch_size=full,10") == ("train.batch_size", ["full", 10])


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"method.taw": [1]}, "did you mean 'tau'"),
        ({"method.tau": [0.1, -3]}, r"tau.*\(point tau=-3\)"),
        ({"methd.tau": [1]}, "did you mean 'method'"),
        ({"method.tau": []}, "expects a list of values"),
        ({"method.tau": 0.5}, "expects a list of values"),
        ({"method.tau": [0.5, 0.5]}, "the same run"),
        ({"compare": [[], ["fedavg"]]}, "sweeping over method.name"),
        (None, "nothing to sweep over"),
        ([0.5], "points of keys and values"),
        ({"scenario.clients": [10, 100_000]}, "25000 clients"),
        ({"method.name": ["stocfl", "cfl"]}, "participation must be 1"),
    ],
)
def test_mistakes_are_found_before_anything_trains(tmp_path, over, said):
    given = {"method": {"name": "stocfl", "tau": 0.4}}  # which nothing has to be trained for, as for quickstart's auto
    with pytest.raises(InputError, match=said):
        sweeping.sweep("quickstart", over, out=tmp_path / "sweep", **given)
    with pytest.raises(InputError, match="did you mean 'accuracy_micro'"):
        sweeping.sweep("quickstart", over, by="accuracy_mikro", **given)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("validation_accuracy_micro", "no validation examples; keep a share"),
        ("held_out_accuracy_micro", "no client is held out; set scenario.held_out"),
        ("accuracy_honest", "no client attacks"),
        ("epsilon", "there is no privacy; set privacy.clip"),
    ],
)
def test_a_score_that_no_point_can_have_is_refused_before_anything_trains(tmp_path, by, said):
    given = {"method": "majority", "model": "linear", "rounds": 0}
    with pytest.raises(InputError, match=f"{by}: .*{said}"):
        sweeping.sweep("quickstart", {"scenario.clients": [8, 12]}, by=by, out=tmp_path / "sweep", **given)
    assert not (tmp_path / "sweep").exists()


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "quickstart", "--set", "method.name=majority", "model=linear", "rounds=1"]
    words += ["--over", "scenario.clients=10,20"]
    assert cli.status([*words, "--seeds", "2"]) == 0
    printed, said = capsys.readouterr()
    assert "sweep: round 4/4" in said
    assert len([line for line in printed.splitlines() if line.startswith("*")]) == 1
    assert "Written to runs/quickstart-sweep-1; runs/quickstart-sweep-1/figures/effect.png" in printed
    folder = tmp_path / "runs" / "quickstart-sweep-1"
    assert (folder / "figures" / "effect.pdf").stat().st_size > 1000
    stored = yaml.safe_load((folder / "runs" / "clients=20" / "config.yaml").read_text())
    assert "--over scenario.clients=10,20" in stored["made_by"]["command"]
    assert cli.status(["sweep", "--resume", str(folder), "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["points"]] == ["clients=10", "clients=20"]
    for more, said in (
        (["--over", "method.tau"], "expects key=value"),
        (["--over", "methd.tau=1"], "did you mean 'method'"),
        (["--resume", str(folder)], "leave out quickstart"),
    ):
        assert cli.status([*words, *more]) == 2
        assert said in capsys.readouterr().err
    assert cli.status(["sweep", "--resume", "nowhere"]) == 2
    assert jcfl.sweep is sweeping.sweep


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"seed": [0, 1], "method.name": ["majority", "fedavg"]}, "compare the methods with: jcfl compare s/runs/*"),
        ({"seeds": [1, 2]}, "The points differ in their seeds, so none is marked"),
    ],
)
def test_no_seed_is_the_best(over, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [word for key, values in over.items() for word in ("--over", f"{key}={','.join(map(str, values))}")]
    given = ["--set", "method.name=majority", "model=linear", "rounds=0", "scenario.clients=8", "--out", "s"]
    assert cli.status(["sweep", "quickstart", *given, *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert said in printed
    assert "*" not in printed.replace("/runs/*", "")
    assert "oracle" not in printed
    assert ("compare" in printed) == ("method.name" in over)
    table = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert (table["chosen"], any(row["best"] for row in table["points"])) == (None, False)


ON_TWO_DEVICES = """
import gc
import numpy as np
from jcfl import registry
from jcfl.runs import sweeping
from tests import tiny

gc.set_threshold(50_000, 20, 20)  # as tests/conftest.py
registry.load()
over = {"method.mu": [0.0, 0.4], "train.lr": [0.1, 0.3]}
given = {"method": {"name": "fedprox"}, "model": {"name": "mlp", "hidden": 5}, "rounds": 3, "seeds": 2}
given |= {"evaluate_every": 3, "budget": 2**30, "train": {"lr": 0.3, "epochs": 2, "batch_size": 4}}
swept = lambda devices, engine: sweeping.sweep(tiny.federation(), over, devices=devices, engine=engine, **given)
one = swept(1, "general")
for engine in ("general", "factored"):
    two = swept(2, engine)
    assert one.compilations == two.compilations == 1
    for a, b in zip(one.histories, two.histories, strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)
        for score in a.scores:
            np.testing.assert_allclose(a[score], b[score], atol=1e-5, err_msg=score)
    print(engine, "agrees")
"""


def test_a_sweep_on_two_devices_agrees_with_one():
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {os.environ.get('XLA_FLAGS', '')}"}
    command = [sys.executable, "-c", ON_TWO_DEVICES]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, env=os.environ | flags, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("agrees") == 2


def test_a_point_that_changes_nothing_has_a_name_of_its_own(tmp_path):
    assert point_names([{}, {"train.lr": 0.2}]) == ["unchanged", "lr=0.2"]
    found = swept_walk([{}, {"method.drift": 2.0}], out=tmp_path / "s")
    assert [one.name for one in found.points] == ["unchanged", "drift=2"]
    assert sorted(place.name for place in (tmp_path / "s" / "runs").iterdir()) == ["drift=2", "unchanged"]


def test_a_resumed_sweep_chooses_by_the_same_score(tmp_path):
    over = {"method.drift": [1.0, 2.0]}
    for resume in (False, True, True):
        found = swept_walk(over, by=None if resume else "loss", out=tmp_path / "s", resume=resume)
        assert found.by == json.loads((tmp_path / "s" / "sweep.json").read_text())["by"] == "loss"
    assert points({"base": "quickstart", "over": {"train.lr": [0.1]}, "by": "loss"}, None).by == "loss"
    with pytest.raises(InputError, match="unknown score to choose by 'Accuracy'; did you mean 'accuracy_micro'"):
        sweeping.refuse_score("Accuracy")  # a title
    with pytest.raises(InputError, match="unknown score to choose by 'los'"):
        sweeping.sweep({"base": "quickstart", "over": {"train.lr": [0.1]}, "by": "los"})


@pytest.mark.parametrize("turned", [False, True])
def test_points_have_attackers_of_their_own(turned, tmp_path):
    """As many as each point says, drawn by the point's seed where the federation was handed over."""
    over = {"attack.share": [0.25, 0.5], "seed": [0, 1]}
    over = dict(reversed(over.items())) if turned else over
    found = swept_walk(over, attack="label_flip", rounds=1, out=tmp_path)
    one = {tuple(point.values.values()): history for point, history in zip(found.points, found.histories, strict=True)}
    one = {key[::-1] if turned else key: history for key, history in one.items()}
    kept = {key: results.federation(history, 0) for key, history in one.items()}
    assert [kept[key]["hostile"].sum() for key in ((0.25, 0), (0.25, 1), (0.5, 0), (0.5, 1))] == [2, 2, 4, 4]
    assert not (kept[0.5, 0]["hostile"] == kept[0.5, 1]["hostile"]).all()
    assert not (kept[0.25, 0]["train"] == kept[0.5, 0]["train"]).all()
    assert len({history.summary["federation"] for history in one.values()}) == 4


def test_numbers_that_yaml_reads_as_text_are_numbers_in_files(tmp_path):
    key, values = key_and_values("method.drift=1e-3,0.01")
    assert values == ["1e-3", 0.01]
    out = tmp_path / "s"
    for resume in (False, True):  # whose folders keep their names
        found = swept_walk({key: values}, out=out, resume=resume)
        assert [row["values"][key] for row in found.rows()] == [0.001, 0.01]
        table = json.loads((out / "sweep.json").read_text())
        assert [row["values"][key] for row in table["points"]] == [0.001, 0.01]
        assert [row[key] for row in csv.DictReader((out / "sweep.csv").open())] == ["0.001", "0.01"]
    assert {place.name for place in (out / "runs").iterdir()} == {"drift=1e-3", "drift=0.01"}


def test_a_score_that_a_file_has_as_null_is_never_the_best():
    summaries = [{"loss": {"mean": None}}, {"loss": {"mean": 2.0}}, {}]
    found = sweeping.Sweep([], [SimpleNamespace(summary=one) for one in summaries], "loss", 0)  # pyright: ignore
    assert found.best() == 1


@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_an_option_that_is_swept_twice_is_refused(command, capsys):
    assert cli.status([command, "quickstart", "--over", "train.lr=0.1", "--over", "train.lr=0.2"]) == 2
    assert "--over train.lr is given twice; give all its values at once" in capsys.readouterr().err
