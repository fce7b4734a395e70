"""A run of two hosts is the run of one; killed, it goes on."""

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

CONFIG = {
    "data": "digits",
    "scenario": {"name": "rotated", "clients": 12},
    "model": {"name": "mlp", "hidden": 8},
    "method": {"name": "ifca", "clusters": 2},
    "train": {"lr": 0.1, "epochs": 1},
    "rounds": 1500,
    "participation": 0.5,
    "evaluate_every": 500,
    "checkpoint_every": 0.5,
}
COMMAND = [sys.executable, "-c", "from jcfl.cli import main; main()", "run"]
REST = {"cwd": Path(__file__).parents[1], "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
PLATFORM = os.environ | {"JAX_PLATFORMS": "cpu"}


def hosts(*arguments: str) -> list[subprocess.Popen]:
    """Two hosts of one run."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    meeting = ["--quiet", "--distributed", "--coordinator", f"localhost:{port}", "--hosts", "2", "--host"]
    return [subprocess.Popen([*COMMAND, *arguments, *meeting, str(i)], env=PLATFORM, **REST) for i in range(2)]


def figures(folder: Path):
    """Scores by round, and the last labels."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["round"]: line["accuracy_micro"] for line in lines}, np.load(folder / "clusters.npz")["labels"]


def test_two_hosts_one_killed_and_resumed(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    running = hosts(str(config), "--out", str(tmp_path / "two"))
    deadline = time.monotonic() + 240
    saved = tmp_path / "two" / "checkpoints"
    while not any(path.stem.isdigit() for path in saved.glob("*/*")):
        assert time.monotonic() < deadline, "no checkpoint"
        assert running[0].poll() is None, running[0].stderr.read()[-2000:]
        time.sleep(0.05)
    running[1].send_signal(signal.SIGKILL)
    try:
        assert running[0].wait(90) != 0  # it does not wait for the dead for ever
    finally:
        running[0].kill()
    if (tmp_path / "two" / "summary.json").exists():
        pytest.fail("the run was over before a host was killed; give it more rounds")
    for host in hosts("--resume", str(tmp_path / "two")):
        _, said = host.communicate(timeout=300)
        assert host.returncode == 0, said[-2000:]

    alone = [*COMMAND, str(config), "--quiet", "--out", str(tmp_path / "one")]
    subprocess.run(alone, env=PLATFORM, check=True, **REST)
    (two, labels), (one, others) = figures(tmp_path / "two"), figures(tmp_path / "one")
    assert set(two) == set(one) == {500, 1000, 1500}
    np.testing.assert_array_equal(labels, others)
    np.testing.assert_allclose([two[round] for round in one], list(one.values()), atol=0.01)


def test_hosts_need_a_folder_and_the_flag():
    for arguments, message in (
        (["quickstart", "--distributed"], "--out"),
        (["quickstart", "--hosts", "2"], "--distributed"),
    ):
        done = subprocess.run([*COMMAND, *arguments], env=PLATFORM, check=False, **REST)
        assert done.returncode == 2
        assert message in done.stderr
