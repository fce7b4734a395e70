"""The work that every peer does: FedAvg on Fashion-MNIST in equal random shares, and the line of JSON it prints."""

import argparse
import functools
import gzip
import json
import os
from pathlib import Path

import numpy as np

MEAN, STD = np.float32(0.2860), np.float32(0.3530)


def arguments(about: str) -> argparse.ArgumentParser:
    """The options that every peer takes."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--model", choices=("mlp", "cnn", "cnn_norm"), default="cnn")
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


def images(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardised images [n, 28, 28] of "train" or "t10k", and their classes [n]."""
    raw = {}
    for kind, skip in (("images-idx3", 16), ("labels-idx1", 8)):
        packed = (folder / "fashion_mnist" / f"{part}-{kind}-ubyte.gz").read_bytes()
        raw[kind] = np.frombuffer(gzip.decompress(packed), np.uint8, offset=skip)
    x = raw["images-idx3"].reshape(-1, 28, 28).astype(np.float32) / 255
    return (x - MEAN) / STD, raw["labels-idx1"].astype(np.int64)


def owned(asked: argparse.Namespace) -> np.ndarray:
    """The rows of the training images that every client owns. [clients, examples]"""
    rows = np.random.default_rng(asked.seed).permutation(60_000)
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
