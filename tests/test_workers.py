"""Sweeps and tables shared out over workers give what they give alone, also when a worker is killed."""

import functools
import json
import operator
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import types

import jax
import pytest

from jcfl import cli, registry
from jcfl.errors import InputError, Interrupted, TrainingError
from jcfl.runs import environment, loop, reproducing, searching, sweeping, workers
from jcfl.runs.reproducing import judging
from jcfl.runs.workers import Workers

pytest.importorskip("submitit", reason="submitit is not installed")

GIVEN = {
    "data": "digits",
    "scenario": {"name": "rotated", "clients": 8, "groups": 2},
    "model": "linear",
    "train": {"lr": 0.1, "epochs": 1},
    "method": "fedavg",
    "rounds": 400,
    "evaluate_every": 20,
    "checkpoint_every": 0,
}


OWN = ("seed", "round", "accuracy_micro", "accuracy_macro", "f1_micro", "loss", "clusters", "ari", "seen")
"""Scores of jcfl itself; those that other tests register in this process are not known to workers."""


def figures(folder):
    """The figures of every point, each number as it was written."""
    files = {file.parent.name: file.read_text().splitlines() for file in sorted(folder.glob("runs/*/metrics.jsonl"))}
    parse = lambda line: json.loads(line, parse_float=str)
    return {name: [{key: parse(line)[key] for key in OWN} for line in lines] for name, lines in files.items()}


def kill_a_worker(folder, killed):
    """Kill the first process that has written a checkpoint."""
    while not killed:
        time.sleep(0.005)
        for file in folder.glob("runs/*/checkpoints/*"):
            held = file.parents[1] / ".lock.json"
            if held.exists():
                killed.append(json.loads(held.read_text())["pid"])
                os.kill(killed[0], signal.SIGKILL)
                return


def test_a_sweep_is_the_same_when_a_worker_is_killed(tmp_path):
    over, killed = {"train.lr": [0.05, 0.1], "train.epochs": [1]}, []
    sweeping.sweep(GIVEN, over, out=tmp_path / "alone")
    threading.Thread(target=kill_a_worker, args=(tmp_path / "shared", killed), daemon=True).start()
    found = sweeping.sweep(GIVEN, over, out=tmp_path / "shared", workers=2)
    assert killed and killed[0] != os.getpid()
    assert figures(tmp_path / "shared") == figures(tmp_path / "alone")
    assert [history.rounds[-1] for history in found.histories] == [400, 400]
    assert found.compilations == 2, "one in each worker that ended; that of the killed one is not counted"
    assert not (tmp_path / "shared" / "workers").exists()
    again = sweeping.sweep(GIVEN, over, out=tmp_path / "shared", workers=2, resume=True)
    assert again.compilations == 0 and again.rows() == found.rows()


def test_logs_of_workers_go_when_the_rest_of_a_sweep_is_trained_without_them(tmp_path, monkeypatch):
    def killed(task, there, number, logs):
        logs.mkdir(parents=True)
        raise TrainingError("3 workers ended before it was done")

    given, over, out = GIVEN | {"rounds": 1}, {"train.lr": [0.05]}, tmp_path / "out"
    monkeypatch.setattr(workers, "started", killed)
    with pytest.raises(TrainingError, match="3 workers ended"):
        sweeping.sweep(given, over, out=out, workers=1)
    assert (out / "workers").exists(), "they say why"
    sweeping.sweep(given, over, out=out, resume=True)
    assert not (out / "workers").exists()


SBATCH = """#!/bin/bash
export SLURM_JOB_ID=$$ script=$(cat "$1")
(bash -c "$script"; echo "$SLURM_JOB_ID|FAILED|here" >> "$ENDED") > /dev/null 2>&1 &
echo "Submitted batch job $SLURM_JOB_ID"
"""
SRUN = """#!/bin/bash
while [[ $1 != *python* ]]; do shift; done
exec "$@"
"""
SACCT = """#!/bin/bash
echo "JobID|State|NodeList"
cat "$ENDED"
"""


def test_slurm_is_asked_for_jobs(tmp_path, monkeypatch):
    """By stand-ins for Slurm's commands, which run a job at once."""
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scancel", "#!/bin/sh"), ("sacct", SACCT)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ENDED", str(tmp_path / "ended"))
    found, there = {}, workers.workers("slurm:1,partition=gpu,time=60")
    assert there == Workers(1, {"partition": "gpu", "time": 60})
    tasks = {"sum": functools.partial(operator.add, 1, 2)}
    workers.share_out(tasks, there, tmp_path / "out", threading.Event(), found.__setitem__)
    assert found == {"sum": 3}


@pytest.mark.parametrize("search", [False, True])
def test_what_slurm_refuses_leaves_nothing_behind(tmp_path, monkeypatch, search):
    """So that the same folder can be given again with other workers."""
    monkeypatch.setenv("PATH", str(tmp_path))
    given = {"method": "majority", "model": "linear", "rounds": 0}
    given |= {"scenario": {"name": "iid", "clients": 8, "validation": 0.2}}
    train = searching.tune if search else sweeping.sweep
    with pytest.raises(InputError, match="workers: Slurm cannot be used here"):
        train("quickstart", {"train.lr": [0.1, 0.2]}, workers="slurm:2", out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_slurms_time_is_passed_on_as_it_is_written():
    """As a number of YAML 1.1 it was 5400, in minutes."""
    assert workers.workers("slurm:2,time=1:30:00") == Workers(2, {"time": "1:30:00"})


def refused():
    """What a worker does that finds a mistake of the user's."""
    raise InputError("it is wrong")


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (refused, InputError, "one: it is wrong"),
        (
            functools.partial(registry.find, "method", "of_a_notebook"),
            InputError,
            "one: unknown method 'of_a_notebook'.*; workers know your own pieces only if they come from an installed",
        ),
        (functools.partial(operator.truediv, 1, 0), TrainingError, "one: a worker failed: ZeroDivisionError"),
        (
            functools.partial(os._exit, 9),
            TrainingError,
            "one: 1 workers ended before it was done; their logs: .*workers",
        ),
    ],
)
def test_what_a_worker_cannot_do_ends_in_one_line(tmp_path, monkeypatch, call, error, said):
    monkeypatch.setattr(workers, "TRIES", 1)
    with pytest.raises(error, match=said):
        workers.share_out({"one": call}, Workers(2), tmp_path, threading.Event())


def test_workers_have_the_settings_of_jax_of_the_process_that_shares_out(tmp_path):
    found = {}
    with jax.threefry_partitionable(False):
        tasks = {"one": environment.of_jax}
        workers.share_out(tasks, Workers(1), tmp_path, threading.Event(), found.__setitem__)
    assert found["one"]["jax_threefry_partitionable"] is False


def test_there_are_no_more_workers_than_tasks(tmp_path, monkeypatch):
    def started(task, sharing, number, logs):
        raise InputError(f"{sharing.at_once} at once")

    monkeypatch.setattr(workers, "started", started)
    with pytest.raises(InputError, match=r"^1 at once$"):
        workers.share_out({"one": functools.partial(abs, 1)}, Workers(1000), tmp_path, threading.Event())


def test_workers_are_ended_when_the_sweep_is(tmp_path):
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        workers.share_out({"one": functools.partial(time.sleep, 600)}, Workers(1), tmp_path, stop)


def test_a_second_ctrl_c_leaves_no_worker_alive(monkeypatch):
    """It ends the wait for workers that do not answer SIGTERM, as while a program is compiled."""

    def interrupted(processes, seconds):
        raise KeyboardInterrupt

    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-Sc", deaf], stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout.readline() == b"1\n"
            monkeypatch.setattr(workers.psutil, "wait_procs", interrupted)
            with pytest.raises(KeyboardInterrupt):
                workers.end([types.SimpleNamespace(job_id=worker.pid)], Workers(1))
            assert worker.wait(10) == -signal.SIGKILL
        finally:
            worker.kill()


@pytest.fixture
def ignored():
    """A process in which Ctrl-C is ignored: a worker, or one that a script runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    signal.signal(signal.SIGINT, before)


def stopped_by() -> str:
    """The first of two signals that asks a run to stop."""
    stop = threading.Event()
    with loop.interruptible(stop, True):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
            if stop.is_set():
                return number.name
    return ""


@pytest.mark.usefixtures("ignored")
def test_ctrl_c_in_a_terminal_leaves_a_worker_its_last_checkpoint():
    """The terminal sends it to workers too, which ignore it; SIGTERM, which they then get, is the first signal."""
    assert workers.Task(stopped_by)().value == "SIGTERM"
    assert stopped_by() == "SIGINT"  # in the background, a run ends at it as in a terminal


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("none", "expected a number of processes"),
        ("0", "expected a number of processes"),
        ("2,time=3", "expected a number of processes"),
        ("8slurm:8", "expected a number of processes"),
        ("slurm:2,partitoin=gpu", "did you mean 'partition'"),
    ],
)
def test_workers_that_cannot_be_had_are_refused(tmp_path, given, said):
    with pytest.raises(InputError, match=said):
        sweeping.sweep(GIVEN, {"train.lr": [0.1]}, workers=given, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_workers_need_a_folder_and_a_gpu_each(monkeypatch):
    with pytest.raises(InputError, match="need out="):
        sweeping.sweep(GIVEN, {"train.lr": [0.1]}, workers=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,6")
    monkeypatch.setenv("JAX_PLATFORMS", "")
    assert [workers.devices_of(number, 2) for number in range(2)] == [[2, 6], [5]]
    with pytest.raises(InputError, match="at most 3, one for each GPU"):
        workers.workers("4")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not bind processes to cores")
def test_workers_share_the_cores():
    before = os.sched_getaffinity(0)
    shares = []
    for number in range(len(before)):
        with workers.on_cores(number, len(before)):
            shares.append(os.sched_getaffinity(0))
    assert set.union(*shares) == before and sum(map(len, shares)) == len(before)
    assert os.sched_getaffinity(0) == before


def test_a_table_is_the_same_by_workers(tmp_path, monkeypatch, capsys):
    from tests.test_reproduce import MADE

    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.yaml").write_text(MADE)
    (tmp_path / "empty").mkdir()
    words = ["reproduce", str(tmp_path / "made.yaml"), "--data-dir", str(tmp_path / "empty"), "--json"]
    ours, rows = [], []
    for place, more in (("alone", []), ("shared", ["--workers", "2"])):
        assert cli.status([*words, "--out", place, *more]) == 0
        rows.append(json.loads(capsys.readouterr().out)["rows"])
        ours.append(figures(tmp_path / place / "runs" / "made-laptop" / "rotated"))
    assert len(ours[0]) == 2 and ours[0] == ours[1] and rows[0] == rows[1]


def test_the_seeds_of_a_table_are_shared_out_over_workers(tmp_path, monkeypatch, capsys):
    from tests.test_reproduce import MADE

    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.yaml").write_text(MADE)
    asked = []
    monkeypatch.setattr(reproducing, "share_out", lambda tasks, *given: asked.extend(tasks))
    monkeypatch.setattr(reproducing, "attempted", lambda *given: judging.Judgement("not run", "not here"))
    words = ["reproduce", "made.yaml", "--only", "FedAvg", "--only", "rotated", "--workers", "2", "-q"]
    for more in (["--seed", "0", "--seed", "1"], ["--seed", "1"], []):
        assert cli.status([*words, *more]) == 0
    assert asked == ["rotated, FedAvg, seed 0", "rotated, FedAvg, seed 1", "rotated, FedAvg, seed 1", "rotated, FedAvg"]
