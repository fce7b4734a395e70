"""A run of two hosts is the run of one; killed, it goes on; where they cannot train together, each says so."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from jcfl import cli
from tests.processes import CALM

CONFIG = {
    "data": "digits",
    "scenario": {"name": "rotated", "clients": 12},
    "model": {"name": "mlp", "hidden": 8},
    "method": {"name": "ifca", "clusters": 2},
    "train": {"lr": 0.1, "epochs": 1},
    "rounds": 120,
    "participation": 0.5,
    "evaluate_every": 40,
    "checkpoint_every": 0.1,
}
COMMAND = [sys.executable, "-c", CALM + "from jcfl.cli import main; main()", "run"]
REST = {"cwd": Path(__file__).parents[1], "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
MEETING = ["--distributed", "--hosts", "2", "--out", "unwritten"]
PLATFORM = os.environ | {"JAX_PLATFORMS": "cpu"}


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def hosts(*arguments: str, own: tuple[list[str], list[str]] = ([], [])) -> list[subprocess.Popen]:
    """Two hosts of one run, each with arguments of its `own` besides those of both."""
    meeting = ["--quiet", "--distributed", "--coordinator", f"localhost:{free_port()}", "--hosts", "2", "--host"]
    return [subprocess.Popen([*COMMAND, *arguments, *own[i], *meeting, str(i)], env=PLATFORM, **REST) for i in range(2)]


def lines(host: subprocess.Popen, seconds: float) -> list[str]:
    """What a host has to say until it ends, which takes it at most so many seconds."""
    try:
        return host.communicate(timeout=seconds)[1].splitlines()
    finally:
        host.kill()


def saved(folder: Path) -> list[int]:
    """The rounds of the checkpoints of a run."""
    return [int(path.stem) for path in folder.glob("checkpoints/*/*") if path.stem.isdigit()]


def figures(folder: Path):
    """Scores by round, and the last labels."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["round"]: line["accuracy_micro"] for line in lines}, np.load(folder / "clusters.npz")["labels"]


def test_two_hosts_one_killed_then_the_other_and_resumed(tmp_path):
    config, folder = tmp_path / "config.yaml", tmp_path / "two"
    config.write_text(yaml.safe_dump(CONFIG))
    words = [str(config), "--out", str(folder)]
    for killed in (1, 0):
        before, running = max(saved(folder), default=0), hosts(*words)
        deadline = time.monotonic() + 240
        while max(saved(folder), default=0) <= before:
            assert time.monotonic() < deadline, "no checkpoint"
            assert running[0].poll() is None, running[0].stderr.read()[-2000:]
            time.sleep(0.05)
        running[killed].send_signal(signal.SIGKILL)
        left = running[1 - killed]
        (line,) = lines(left, 60)  # it does not wait for the dead for ever
        assert left.returncode == 1
        assert f"host {killed} was lost" in line and f"--resume {folder}" in line
        words = ["--resume", str(folder)]
        if (folder / "summary.json").exists():
            pytest.fail("the run was over before a host was killed; give it more rounds")
    for host in hosts(*words):
        assert lines(host, 300) == [] and host.returncode == 0

    assert cli.status(["run", str(config), "--quiet", "--out", str(tmp_path / "one")]) == 0
    (two, labels), (one, others) = figures(folder), figures(tmp_path / "one")
    assert set(two) == set(one) == {40, 80, 120}
    np.testing.assert_array_equal(labels, others)
    np.testing.assert_allclose([two[round] for round in one], list(one.values()), atol=0.01)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            (["rounds=5"], ["rounds=6", "train.lr=0.2"]),
            "hosts differ: train.lr is 0.1 on host 0 and 0.2 on host 1; rounds is 5 on host 0 and 6 on host 1",
        ),
        ((["--data-dir", "{0}"], ["--data-dir", "{1}"]), "hosts differ: the fingerprint of the clients' data is "),
        ((["train.lrr=1"], []), "unknown option of train 'sgd': 'lrr'; did you mean 'lr'?"),
        ((["--data-dir", "{0}"], ["--data-dir", "{0}/nowhere"]), "no file own.npz in "),
    ],
    ids=["configuration", "data", "typo on the first", "missing file on the second"],
)
def test_hosts_that_differ_and_those_that_fail_end_together(tmp_path, own, said):
    rng = np.random.default_rng(0)
    for name in "01":
        (tmp_path / name).mkdir()
        x, y = rng.random((600, 4, 4), np.float32), np.arange(600) % 2
        np.savez(tmp_path / name / "own.npz", x=x, y=y)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(CONFIG | {"data": {"name": "arrays", "path": "own.npz"}}))
    own = tuple([word.format(tmp_path / "0", tmp_path / "1") for word in words] for words in own)
    begin = time.monotonic()
    for host in hosts(str(config), "--out", str(tmp_path / "run"), own=own):
        (line,) = lines(host, 60)
        assert said in line and host.returncode == 2
    assert time.monotonic() - begin < 60 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--distributed"], "--out"),
        (["--hosts", "2"], "--distributed"),
        ([*MEETING, "--coordinator", "host0", "--host", "0"], "expected HOST:PORT"),
        ([*MEETING, "--coordinator", "host0:70000", "--host", "0"], "port from 1 to 65535"),
        ([*MEETING, "--coordinator", "host0:1234", "--host", "2"], "the last is --host 1, got 2"),
        ([*MEETING, "--coordinator", "host0:1234", "--hosts", "0"], "greater than or equal to 1"),
    ],
)
def test_hosts_need_a_folder_the_flag_and_a_place_to_meet(capsys, words, said):
    refused(capsys, words, said)


def test_a_port_that_is_taken_is_refused(capsys):
    with socket.create_server(("", 0)) as taken:
        place = f"localhost:{taken.getsockname()[1]}"
        refused(capsys, [*MEETING, "--coordinator", place, "--host", "0"], f"cannot listen at {place}: Address already")


def refused(capsys, words, said):
    """A command that ends at once, with one line."""
    assert cli.status(["run", "quickstart", *words]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Give --coordinator, --hosts and --host"),
        (["--coordinator", "localhost:{}", "--host", "0"], "not all hosts came to localhost:{} within 1 s"),
    ],
)
def test_a_host_that_cannot_meet_the_others_says_why(words, said):
    soon = [sys.executable, "-c", "from jcfl.runs import hosts; hosts.ARRIVAL = 1\n" + COMMAND[2], "run", "quickstart"]
    port = free_port()
    words = [word.format(port) for word in words]
    done = subprocess.run([*soon, *MEETING, *words], env=PLATFORM, check=False, **REST)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert said.format(port) in done.stderr
