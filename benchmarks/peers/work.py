"""The work that every peer does: FedAvg on images in equal random shares, and the line of JSON it prints."""

import argparse
import functools
import gzip
import json
import os
from pathlib import Path

import numpy as np

MEAN, STD = np.float32(0.2860), np.float32(0.3530)
"""Of Fashion-MNIST's pixels."""

MODELS, COLOUR = ("mlp", "cnn", "cnn_norm"), ("lenet", "cnn_wide")
"""Networks for Fashion-MNIST, and networks for colour images of 32×32 pixels."""

COLOUR_MEAN, COLOUR_STD = np.float32(0.47), np.float32(0.25)
"""Of CIFAR-10's pixels, over all channels."""

Examples = tuple[np.ndarray, np.ndarray]
"""Images and their classes [n]."""


def arguments(about: str, colour: bool = False) -> argparse.ArgumentParser:
    """The options that every peer takes.

    Args:
        colour: whether the peer also trains on colour images, and for several epochs.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--model", choices=MODELS + (COLOUR if colour else ()), default="cnn")
    if colour:
        parser.add_argument("--images", type=Path, help="colour images, as `stored` reads them")
        parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="cores that the process is kept to")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--examples", type=int, default=300, help="per client")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="holds fashion_mnist/")
    return parser


def pin(threads: int) -> None:
    """Keep this process, and those it starts, to so many cores; a framework counts them when it starts."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def stored(file: Path) -> tuple[Examples, Examples]:
    """The colour images [n, 32, 32, 3] in bytes and the classes of an .npz file, to train and to test on."""
    with np.load(file) as parts:
        return (parts["x"], parts["y"]), (parts["test_x"], parts["test_y"])


def colour_images(file: Path) -> tuple[Examples, Examples]:
    """Standardised colour images [n, 3, 32, 32] and their classes, to train and to test on."""
    scaled = lambda x: (x.transpose(0, 3, 1, 2).astype(np.float32) / 255 - COLOUR_MEAN) / COLOUR_STD
    (x, y), (test_x, test_y) = stored(file)
    return (scaled(x), y.astype(np.int64)), (scaled(test_x), test_y.astype(np.int64))


def images(folder: Path, part: str) -> Examples:
    """Standardised images [n, 28, 28] of "train" or "t10k", and their classes [n]."""
    raw = {}
    for kind, skip in (("images-idx3", 16), ("labels-idx1", 8)):
        packed = (folder / "fashion_mnist" / f"{part}-{kind}-ubyte.gz").read_bytes()
        raw[kind] = np.frombuffer(gzip.decompress(packed), np.uint8, offset=skip)
    x = raw["images-idx3"].reshape(-1, 28, 28).astype(np.float32) / 255
    return (x - MEAN) / STD, raw["labels-idx1"].astype(np.int64)


def owned(asked: argparse.Namespace, size: int = 60_000) -> np.ndarray:
    """The rows of the training images, of which there are `size`, that every client owns. [clients, examples]"""
    rows = np.random.default_rng(asked.seed).permutation(size)
    return rows[: asked.clients * asked.examples].reshape(asked.clients, -1)


@functools.cache
def shares(folder: Path, seed: int, clients: int, examples: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every client's training images and classes; read once by every process."""
    x, y = images(folder, "train")
    asked = argparse.Namespace(seed=seed, clients=clients, examples=examples)
    return [(x[rows], y[rows]) for rows in owned(asked)]


def told(asked: argparse.Namespace, peer: str, version: str, seconds: list[float], accuracy: float, **more) -> None:
    """Print what was measured: the first round apart from the others, accuracy on the test images after the last."""
    what = {"peer": peer, "version": version.split("+")[0], "model": asked.model, "threads": asked.threads}
    print(json.dumps(what | {"first": seconds[0], "seconds": seconds[1:], "accuracy": accuracy} | more), flush=True)
