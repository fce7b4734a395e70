"""A run of two hosts is the run of one; killed, it goes on; where they cannot train together, each says so."""

import itertools
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
from jcfl.runs import hosts as meeting
from tests.processes import CALM

CONFIG = {
    "data": "digits",
    "scenario": {"name": "rotated", "clients": 12},
    "model": "linear",
    "method": {"name": "ifca", "clusters": 2},
    "train": {"lr": 0.1, "epochs": 1},
    "rounds": 240,
    "participation": 0.5,
    "evaluate_every": 80,
    "checkpoint_every": 0.1,
}
FORKS = (
    CALM
    + """
import json, os, sys
import sklearn.datasets
from jcfl import cli
from jcfl.runs import experiment, hosts

for line in sys.stdin:
    match json.loads(line):
        case [words, errors, arrival]:
            answer = os.fork()
            if answer == 0:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
                hosts.ARRIVAL = arrival
                cli.main(words)
        case process:
            ended, status = os.waitpid(process, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
    print(json.dumps(answer), flush=True)
"""
)
"""Starts commands as processes that have everything imported, which takes a new Python longer than a short run."""

MEETING = ["--distributed", "--hosts", "2", "--out", "unwritten"]


class Host:
    """A process that runs a command of jcfl."""

    def __init__(self, forks: subprocess.Popen, words: list[str], errors: Path, arrival: int = 300):
        """Start it; its standard error goes to a file, and it waits so many seconds for other hosts to arrive."""
        self.forks, self.errors, self.returncode = forks, errors, None
        self.process = self.ask([words, str(errors), arrival])

    def ask(self, what):
        """The answer of the process that starts hosts and knows how they ended."""
        print(json.dumps(what), file=self.forks.stdin, flush=True)
        return json.loads(self.forks.stdout.readline())

    def has_ended(self) -> bool:
        """Whether it has ended; then its `returncode` is known."""
        if self.returncode is None:
            self.returncode = self.ask(self.process)
        return self.returncode is not None

    def lines(self, seconds: float) -> list[str]:
        """What it has to say until it ends, which takes it at most so many seconds."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
                pytest.fail(f"not over after {seconds} s: {self.errors.read_text()[-2000:]}")
            time.sleep(0.05)
        return self.errors.read_text().splitlines()


@pytest.fixture(scope="module")
def forks():
    """The process that starts hosts."""
    given = {"cwd": Path(__file__).parents[1], "env": os.environ | {"JAX_PLATFORMS": "cpu"}, "text": True}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FORKS], **given, **pipes) as server:
        yield server


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@pytest.fixture
def hosts(forks, tmp_path):
    """`hosts(*arguments, own)`: two hosts of one run, each with arguments of its `own` besides those of both."""
    files = (tmp_path / f"errors-{number}" for number in itertools.count())

    made = []

    def started(*arguments: str, own: tuple[list[str], list[str]] = ([], [])) -> list[Host]:
        meeting = ["--quiet", "--distributed", "--coordinator", f"localhost:{free_port()}", "--hosts", "2", "--host"]
        words = (["run", *arguments, *own[i], *meeting, str(i)] for i in range(2))
        both = [Host(forks, one, next(files)) for one in words]
        made.extend(both)
        return both

    yield started
    for host in made:
        if not host.has_ended():
            os.kill(host.process, signal.SIGKILL)


def saved(folder: Path) -> list[int]:
    """The rounds of the checkpoints of a run."""
    return [int(path.stem) for path in folder.glob("checkpoints/*/*") if path.stem.isdigit()]


def figures(folder: Path):
    """Scores by round, and the last labels."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["round"]: line["accuracy_micro"] for line in lines}, np.load(folder / "clusters.npz")["labels"]


def test_two_hosts_one_killed_then_the_other_and_resumed(hosts, tmp_path):
    config, folder = tmp_path / "config.yaml", tmp_path / "two"
    config.write_text(yaml.safe_dump(CONFIG))
    words = [str(config), "--out", str(folder)]
    for killed in (1, 0):
        before, running = max(saved(folder), default=0), hosts(*words)
        deadline = time.monotonic() + 240
        while max(saved(folder), default=0) <= before:
            assert time.monotonic() < deadline, "no checkpoint"
            assert not running[0].has_ended(), running[0].errors.read_text()[-2000:]
            time.sleep(0.05)
        os.kill(running[killed].process, signal.SIGKILL)
        left = running[1 - killed]
        (line,) = left.lines(60)  # it does not wait for the dead for ever
        assert left.returncode == 1
        assert f"host {killed} was lost" in line and f"--resume {folder}" in line
        words = ["--resume", str(folder)]
        if (folder / "summary.json").exists():
            pytest.fail("the run was over before a host was killed; give it more rounds")
    for host in hosts(*words):
        assert host.lines(300) == [] and host.returncode == 0

    assert cli.status(["run", str(config), "--quiet", "--out", str(tmp_path / "one")]) == 0
    (two, labels), (one, others) = figures(folder), figures(tmp_path / "one")
    assert set(two) == set(one) == {80, 160, 240}
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
def test_hosts_that_differ_and_those_that_fail_end_together(hosts, tmp_path, own, said):
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
        (line,) = host.lines(60)
        assert said in line and host.returncode == 2
    assert time.monotonic() - begin < 60 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("every", "how"),
    [
        ("60.0", "go on, on all hosts"),
        ("never", "begin again (checkpoint_every: never), on all hosts"),
        ("'never'  # the disk is slow", "begin again (checkpoint_every: never), on all hosts"),
    ],
)
def test_a_lost_host_says_how_the_run_continues(tmp_path, every, how):
    assert meeting.loss("3", tmp_path) == "host 3 was lost"
    (tmp_path / "config.yaml").write_text(f"rounds: 5\ncheckpoint_every: {every}\n")
    assert meeting.loss("3", tmp_path) == f"host 3 was lost; {how}, with: jcfl run --distributed --resume {tmp_path}"


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
def test_a_host_that_cannot_meet_the_others_says_why(forks, tmp_path, words, said):
    port = free_port()
    words = ["run", "quickstart", *MEETING, *(word.format(port) for word in words)]
    host = Host(forks, words, tmp_path / "errors", arrival=1)
    (line,) = host.lines(300)
    assert said.format(port) in line and host.returncode == 2
