"""Public setups of other simulators, in which jcfl and PyTorch train beside each other, in turn.

Both have the same images for each client, the same network, and the same number of steps. PyTorch trains one client
after another.
"""

import importlib.util
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))

import compare

from jcfl import data

CLASSES, SIDE = 10, 32
REPEATS = 2
"""How often jcfl and PyTorch train in turn."""

INSTALLING = 0.5
"""The share of the time that is left which the installation of PyTorch may take."""


class Setup(NamedTuple):
    """A federation and how its clients train."""

    about: str
    model: str  # of `work.COLOUR`
    clients: int
    cohort: int
    examples: int  # of each client
    batch: int
    epochs: int
    rounds: int  # the first of which stands apart
    lr: float = 0.1

    def asked(self, images: Path, threads: int) -> list[str]:
        """The arguments of a peer."""
        numbers = ("model", "clients", "cohort", "examples", "batch", "epochs", "rounds", "lr")
        pairs = [(f"--{name}", str(getattr(self, name))) for name in numbers]
        return [*(word for pair in pairs for word in pair), "--images", str(images), "--threads", str(threads)]


SETUPS = {
    "pfl": Setup(
        "The setup of pfl-research's benchmark: CIFAR-10, 1,000 clients of 50 examples, 50 a round, one epoch in "
        "batches of 10. The network has 3×3 convolutions of 32 and 64 without padding, a 2×2 pool, a dense layer of "
        "128 and a classifier (1,626,442 parameters), without dropout.",
        *("cnn_wide", 1000, 50, 50, 10, 1, 11),
    ),
    "blazefl": Setup(
        "The setup of BlazeFL's benchmark: CIFAR-10, 100 clients of 500 examples, all in each of 5 rounds, five epochs "
        "in batches of 50. The network has 5×5 convolutions of 6 and 16 without padding, each with a 2×2 pool, dense "
        "layers of 120 and 84 and a classifier (62,006 parameters).",
        *("lenet", 100, 100, 500, 50, 5, 5),
    ),
}


def sized(setup: Setup, quick: bool) -> Setup:
    """The setup, or a tiny one with its network."""
    return setup._replace(clients=4, cohort=2, examples=4, batch=2, rounds=3) if quick else setup


def stored_images(file: Path, data_dir: Path | None, quick: bool) -> str:
    """Write the images of the setups into an .npz file for both sides; returns what they are.

    Raises:
        InputError: `data_dir` has no CIFAR-10.
    """
    if data_dir is not None and not quick:
        whole = data.load("cifar10", data_dir)
        train, test = ((part.x, part.y) for part in (whole.train, whole.test))
        told = "CIFAR-10"
    else:
        train, test = generated(40 if quick else 50_000, 0), generated(20 if quick else 10_000, 1)
        told = "**generated images** in CIFAR-10's shapes, because time does not depend on what they show"
    np.savez(file, x=train[0], y=train[1], test_x=test[0], test_y=test[1])
    return told


def generated(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Colour images [n, 32, 32, 3] in bytes, a noisy prototype for each class, and their classes [n]."""
    rng = np.random.default_rng(seed)
    prototypes = np.random.default_rng(9).integers(0, 128, (CLASSES, SIDE, SIDE, 3), np.uint8)
    y = (np.arange(count) % CLASSES).astype(np.int32)
    return prototypes[y] + rng.integers(0, 128, (count, SIDE, SIDE, 3), np.uint8), y


def python_of_torch(given: Path | None, quick: bool, cache: Path, seconds: float) -> str:
    """The Python that has PyTorch, or why there is none.

    It is the one given, else this one if it has PyTorch, else that of the peer's own environment, which is created.
    """
    if given is not None:
        return str(given)
    if importlib.util.find_spec("torch"):
        return sys.executable
    if quick:
        return "torch is not installed here, and --quick installs nothing"
    return compare.made("pytorch", cache, INSTALLING * seconds)


def beside(setup: Setup, images: Path, threads: int, torch: str, quick: bool, end: float) -> list[dict[str, Any]]:
    """jcfl's and PyTorch's rounds in turn, until `end` of the monotonic clock; a case for each of the two."""
    pythons = {"jcfl": sys.executable, "PyTorch": torch}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    for name in [*pythons] * (1 if quick else REPEATS):
        if not any("failed" in line for line in found[name]):
            peer, left = compare.PEERS[name], int(end - time.monotonic())
            found[name].append(told(peer, pythons[name], setup.asked(images, threads), left))
    return [*cases(found)]


def told(peer: compare.Peer, python: str, asked: list[str], seconds: int) -> dict[str, Any]:
    """What a peer printed, or why it printed nothing."""
    if not Path(python).is_file():
        return {"failed": python}
    return compare.once(peer, python, asked, seconds) if seconds > 0 else {"failed": "no time was left"}


def cases(found: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """The median of all rounds but the first of each turn, for each side; PyTorch's as a multiple of jcfl's."""
    base = None
    for name, lines in found.items():
        rounds = [seconds for line in lines for seconds in line.get("seconds", [])]
        if not rounds:
            yield {"case": name, "failed": lines[0]["failed"]}
            continue
        median = statistics.median(rounds)
        base = median if name == "jcfl" else base
        most = {
            "device": lines[0]["device"],
            "round_s": median,
            "least_s": min(rounds),
            "most_s": max(rounds),
            "first_s": lines[0]["first"],
            "times_jcfl": median / base if base else None,
            "accuracy": lines[0]["accuracy"],
        }
        kept = {key: lines[0][key] for key in ("estimate_s", "bound", "once", "version") if key in lines[0]}
        yield {"case": name, **most, **kept, "lines": lines}
