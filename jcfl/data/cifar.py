"""CIFAR-10 and CIFAR-100, from their publishers' binary files or python batches or from tensorflow-datasets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from jcfl.data.dataset import Dataset, Examples, examples
from jcfl.data.files import content, corrupt, fit, located, missing, reading
from jcfl.data.pickled import values
from jcfl.data.tfds import from_tfds, preparation, prepared_in
from jcfl.errors import InputError, as_argument
from jcfl.registry import register

PIXELS = 32 * 32 * 3
URL = "https://www.cs.toronto.edu/~kriz"
TEN = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


@register("data", "cifar10")
def cifar10(data_dir: Path) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 colour photographs, 32x32x3, 10 classes."""
    binary = [f"{file}.bin" for file in TEN]
    if paths := located(_folders(data_dir, "cifar10", "cifar-10-batches-bin"), binary):
        parts = [_binary(path, labels=1, use=0, classes=10) for path in paths]
    elif paths := located(_folders(data_dir, "cifar10", "cifar-10-batches-py"), TEN):
        parts = [_pickled(path, b"labels", classes=10) for path in paths]
    else:
        absent = _missing("cifar10", data_dir, ("cifar-10-batches-bin", "cifar-10-batches-py"), [*binary, *TEN])
        return from_tfds("cifar10", data_dir, absent=absent)
    return Dataset("cifar10", _together(parts[:-1]), parts[-1], 10)


@register("data", "cifar100")
def cifar100(
    data_dir: Path,
    *,
    labels: Annotated[Literal["fine", "coarse"], Field(description="100 classes, or their 20 superclasses")] = "fine",
) -> Dataset:
    """CIFAR-100: 50,000 + 10,000 colour photographs, 32x32x3, 100 classes (or 20 superclasses)."""
    classes = 100 if labels == "fine" else 20
    if paths := located(_folders(data_dir, "cifar100", "cifar-100-binary"), ["train.bin", "test.bin"]):
        train, test = (_binary(path, labels=2, use=int(labels == "fine"), classes=classes) for path in paths)
    elif paths := located(_folders(data_dir, "cifar100", "cifar-100-python"), ["meta", "train", "test"]):
        train, test = (_pickled(path, f"{labels}_labels".encode(), classes=classes) for path in paths[1:])
    else:
        files = ["train.bin", "test.bin", "meta", "train", "test"]
        absent = _missing("cifar100", data_dir, ("cifar-100-binary", "cifar-100-python"), files)
        name = "label" if labels == "fine" else "coarse_label"
        return from_tfds("cifar100", data_dir, label=name, absent=absent)
    return Dataset("cifar100", train, test, classes)


def _folders(data_dir: Path, *names: str) -> list[Path]:
    """The folders to search: the dataset's, the publishers' inside it or beside it, and `data_dir` itself."""
    own, published = names
    return [data_dir / own / published, data_dir / own, data_dir / published, data_dir]


def _missing(name: str, data_dir: Path, published: tuple[str, str], files: Sequence[str]) -> InputError:
    folders = [folder for one in published for folder in _folders(data_dir, name, one)]
    archive = f"{name.replace('cifar', 'cifar-')}-binary.tar.gz"
    curl = f"mkdir -p {as_argument(data_dir)} && curl -L {URL}/{archive} | tar xz -C {as_argument(data_dir)}"
    return missing(name, folders + prepared_in(data_dir, name), files, [curl, preparation(name, data_dir)])


def _binary(path: Path, *, labels: int, use: int, classes: int) -> Examples:
    """The records of a binary file: `labels` bytes, of which byte `use` is the class, then the pixels by channel."""
    data = np.frombuffer(content(path, "a binary CIFAR batch"), np.uint8)
    if len(data) == 0 or len(data) % (labels + PIXELS):
        raise corrupt(path, f"{len(data)} bytes; expected a multiple of {labels + PIXELS}, the size of a record")
    records = data.reshape(-1, labels + PIXELS)
    return examples(_pictures(records[:, labels:]), records[:, use], classes=classes, where=path)


def _pickled(path: Path, key: bytes, *, classes: int) -> Examples:
    """The examples of a pickled batch."""
    data = content(path, "a pickled CIFAR batch")
    fit(path, 4 * len(data))  # its parts are copied when they are read
    with reading(path, "a pickled CIFAR batch"):
        batch = values(data)
    if not isinstance(batch, dict):
        raise corrupt(path, "not a pickled CIFAR batch (it holds no dictionary)")
    for name in (b"data", key):
        if name not in batch:
            raise corrupt(path, f"no entry {name!r}")
    rows, y = batch[b"data"], batch[key]
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise corrupt(path, f"its data is no array of the shape (n, {PIXELS}); expected uint8 pixels")
    if not isinstance(y, list) or not all(type(label) is int for label in y):
        raise corrupt(path, f"its labels are no list of whole numbers; expected labels from 0 to {classes - 1}")
    return examples(_pictures(rows), np.array(y), classes=classes, where=path)


def _pictures(rows: np.ndarray) -> np.ndarray:  # [n, 3072] -> [n, 32, 32, 3]
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _together(parts: Sequence[Examples]) -> Examples:
    return Examples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
