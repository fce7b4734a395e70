"""MNIST and its relatives, from their publishers' IDX files or from tensorflow-datasets."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from jcfl.data.dataset import Dataset, Examples, examples
from jcfl.data.files import corrupt, fit, located, missing, reading, stream, taken
from jcfl.data.tfds import from_tfds, preparation, prepared_in
from jcfl.errors import as_argument
from jcfl.registry import register

FILES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
EMNIST_URL = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"


@register("data", "mnist")
def mnist(data_dir: Path) -> Dataset:
    """MNIST: 60,000 + 10,000 handwritten digits, 28x28x1, 10 classes.

    Files directly in `data_dir` are also used, unless the name of the folder is that of Fashion-MNIST.
    """
    bare = [] if "fashion" in data_dir.name.lower() else [data_dir]
    return _mnist_like("mnist", [data_dir / "mnist", data_dir / "MNIST" / "raw", *bare], data_dir, MNIST_URL)


@register("data", "fashion_mnist")
def fashion_mnist(data_dir: Path) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 pictures of clothes, 28x28x1, 10 classes.

    Its files have the same names as MNIST's, so files directly in `data_dir` are used only if the folder has its name.
    """
    bare = [data_dir] if "fashion" in data_dir.name.lower() else []
    names = [data_dir / name for name in ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw")]
    return _mnist_like("fashion_mnist", [*names, *bare], data_dir, FASHION_URL)


@register("data", "emnist")
def emnist(
    data_dir: Path,
    *,
    split: Annotated[
        Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"],
        Field(description="one of EMNIST's six sets, with 62, 47, 47, 26, 10 and 10 classes"),
    ] = "balanced",
) -> Dataset:
    """EMNIST: handwritten letters and digits, 28x28x1, 10 to 62 classes.

    Images are transposed, because they are transposed in the published files. The labels of `letters`, published as 1
    to 26, start at 0.
    """
    folders = [data_dir / name for name in ("emnist", "emnist/gzip", "EMNIST/raw", "gzip", "")]
    files = [f"emnist-{split}-{file.replace('t10k', 'test')}" for file in FILES]
    first = 1 if split == "letters" else 0
    if paths := located(folders, files):
        dataset = from_idx("emnist", paths, classes=EMNIST_CLASSES[split] + first)
    else:
        name = f"emnist/{split}"
        curl = f"curl -L -o emnist.zip {EMNIST_URL} && unzip emnist.zip -d {as_argument(data_dir / 'emnist')}"
        absent = missing(
            "emnist", folders + prepared_in(data_dir, name), _optional_gz(files), [curl, preparation(name, data_dir)]
        )
        dataset = from_tfds(name, data_dir, absent=absent)
    return Dataset(
        "emnist",
        _upright(dataset.train, first, EMNIST_CLASSES[split]),
        _upright(dataset.test, first, EMNIST_CLASSES[split]),
        EMNIST_CLASSES[split],
    )


def _upright(part: Examples, first: int, classes: int) -> Examples:
    x = np.ascontiguousarray(part.x.transpose(0, 2, 1, 3))
    return examples(x, part.y - first, classes=classes, where=f"emnist (labels from {first})")


def _mnist_like(name: str, folders: list[Path], data_dir: Path, url: str) -> Dataset:
    if paths := located(folders, FILES):
        return from_idx(name, paths, classes=10)
    target, everything = as_argument(data_dir / name), f"{url}/{{{','.join(FILES)}}}.gz"
    curl = f"curl -L --create-dirs --output-dir {target} --remote-name-all '{everything}'"
    searched = folders + prepared_in(data_dir, name)
    return from_tfds(
        name, data_dir, absent=missing(name, searched, _optional_gz(FILES), [curl, preparation(name, data_dir)])
    )


def _optional_gz(files: Sequence[str]) -> list[str]:
    return [f"{file}[.gz]" for file in files]


def from_idx(name: str, paths: Sequence[Path], classes: int) -> Dataset:
    """A dataset from four IDX files: images and labels for training, images and labels for testing.

    Raises:
        InputError: a corrupt file, by its name.
    """
    parts = []
    for pictures, answers in (paths[:2], paths[2:]):
        x, y = idx(pictures, rank=3), idx(answers, rank=1)
        if len(x) != len(y):
            raise corrupt(answers, f"{len(y)} labels for the {len(x)} images of {pictures.name}")
        parts.append(examples(x[..., None], y, classes=classes, where=answers))
    if parts[0].x.shape[1:] != parts[1].x.shape[1:]:
        raise corrupt(paths[2], f"images of {parts[1].x.shape[1:]}, but those for training are {parts[0].x.shape[1:]}")
    return Dataset(name, parts[0], parts[1], classes)


def idx(path: Path, rank: int) -> np.ndarray:
    """The array of bytes in an IDX file of `rank` dimensions.

    Raises:
        InputError: a wrong magic number, a wrong length, or a damaged gzip file.
    """
    start = 4 * (1 + rank)
    with stream(path, "an IDX file") as file:
        header = taken(file, start)
        if len(header) < start:
            raise corrupt(path, f"{len(header)} bytes; an IDX header of {rank} dimensions alone has {start}")
        magic, *shape = (int(number) for number in np.frombuffer(header, ">u4"))
        if magic != 0x0800 + rank:
            raise corrupt(
                path, f"magic number {magic:#010x}; expected {0x0800 + rank:#010x} (bytes, {rank} dimensions)"
            )
        size = math.prod(shape)
        fit(path, size)
        data = taken(file, size + 1)
    if len(data) != size:
        found = f"{'at least ' if len(data) > size else ''}{start + len(data)}"
        raise corrupt(path, f"{found} bytes; its header {'x'.join(map(str, shape))} says {start + size}")
    with reading(path, "an IDX file"):
        return np.frombuffer(data, np.uint8).reshape(shape)
