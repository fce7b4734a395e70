"""LEAF's datasets, whose examples come with the people who made them, from the JSON files LEAF writes."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from jcfl.data.dataset import Dataset, Examples, counted, examples, labels, plain, random_share
from jcfl.data.files import ELSEWHERE, corrupt, entry, is_folder, missing, parsed, reading
from jcfl.data.images import pictures
from jcfl.errors import Absent, InputError, as_argument
from jcfl.registry import register

Share = Annotated[
    float, Field(gt=0, lt=1, description="share of every user's examples for testing, if LEAF has no split")
]


@dataclass
class Rows:
    """The examples in some LEAF files, as a list with an entry per user."""

    x: list[np.ndarray] = field(default_factory=list)  # per user [n, ...], numbers or the names of image files
    y: list[np.ndarray] = field(default_factory=list)
    user: list[np.ndarray] = field(default_factory=list)


@register("data", "femnist")
def femnist(data_dir: Path, *, test: Share = 0.1) -> Dataset:
    """FEMNIST: letters and digits of 3,597 writers, 28x28x1, 62 classes, split by writer."""
    return from_leaf(
        "femnist", _root(data_dir, "femnist", smallest=0), test=test, classes=62, shape=(28, 28, 1), pixels=True
    )


@register("data", "celeba")
def celeba(
    data_dir: Path,
    *,
    size: Annotated[int, Field(ge=1, description="pixels of a side, to which images are scaled")] = 84,
    test: Share = 0.1,
) -> Dataset:
    """CelebA: smiling or not, photographs of 9,343 people, 84x84x3, 2 classes, split by person."""
    root = _root(data_dir, "celeba", smallest=5)
    return from_leaf("celeba", root, test=test, classes=2, images=_images(root, "raw/img_align_celeba"), size=size)


@register("data", "leaf")
def leaf(
    data_dir: Path,
    *,
    path: Annotated[Path, Field(description="the folder that holds train/ and test/, all_data/ or all_data_*.json")],
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...] | None,
        Field(description="shape of an example, if it differs from the files"),
    ] = None,
    classes: Annotated[
        int | None, Field(ge=2, description="number of classes; by default counted in the labels")
    ] = None,
    pixels: Annotated[bool, Field(description="values from 0 to 1 are pixels, kept as bytes")] = False,
    images: Annotated[str | None, Field(description="x names image files in this folder, inside path")] = None,
    size: Annotated[int, Field(ge=1, description="pixels of a side, to which image files are scaled")] = 84,
    test: Share = 0.1,
) -> Dataset:
    """Any LEAF dataset of numbers or of image files, split by user."""
    places = [data_dir / path, Path.cwd() / path]
    root = next((place for place in places if is_folder(place)), None)
    if root is None or _files(root) is None:
        where = " or ".join(map(str, places if root is None else [root]))
        expected = "expected train/*.json and test/*.json, or all_data*.json"
        raise Absent(f"no LEAF files in {where}; {expected} {ELSEWHERE}")
    folder = None if images is None else _images(root, images)
    return from_leaf(path.name, root, test=test, classes=classes, shape=shape, pixels=pixels, images=folder, size=size)


def from_leaf(
    name: str,
    root: Path,
    *,
    test: float,
    classes: int | None = None,
    shape: tuple[int, ...] | None = None,
    pixels: bool = False,
    images: Path | None = None,
    size: int = 84,
) -> Dataset:
    """A dataset from a folder of LEAF files; users are numbered in the order in which they first appear.

    Args:
        name: what the dataset is called.
        root: the folder of train/*.json and test/*.json, or of all_data*.json.
        test: the share of every user's examples to test on, where the files are not split.
        classes: the number of classes; None counts them in the labels.
        shape: of one example; None leaves it as in the files.
        pixels: whether values from 0 to 1 become uint8 pixels.
        images: the folder of the image files that x names; None where x holds numbers.
        size: pixels of a side, to which image files are scaled.

    Raises:
        InputError: a corrupt file by its name, or examples that are text.
    """
    files, numbers = _files(root), {}
    assert files is not None
    parts = [_joined(_rows(group, numbers, pixels, images is not None), root) for group in files]
    if len(parts) == 1:
        mask = random_share(parts[0][2], test)
        parts = [tuple(values[side] for values in parts[0]) for side in (~mask, mask)]
    classes = classes or counted((y for _, y, _ in parts), root)
    train = _examples(parts[0], classes, shape, images, size, root)
    if len(files) == 1 and not len(parts[1][1]):
        raise InputError(f"{root}: {test:g} of a user's few examples is none to test on; set a larger share, test")
    held = _examples(parts[1], classes, shape, images, size, root)
    return Dataset(name, train, held, classes, id_of_user=plain(np.array([*numbers], object), root))


def _rows(files: Sequence[Path], numbers: dict[str, int], pixels: bool, named: bool) -> Rows:
    """The examples in some files. Users that `numbers` does not have yet are added to it."""
    rows, where = Rows(), dict[str, Path]()
    for path in files:
        for user, count, given in _users(path):
            if where.setdefault(user, path) != path:
                raise corrupt(path, f"user {user!r} is in {where[user].name} too; expected each user in one file")
            x, y = (given.get(key) if isinstance(given, dict) else None for key in ("x", "y"))
            if not isinstance(x, list) or not isinstance(y, list):
                raise corrupt(path, f"user {user!r}: examples of different shapes or no x and y; expected two lists")
            if not len(x) == len(y) == count:
                number = str(count)[:20] if isinstance(count, int | float) else "no number"
                raise corrupt(path, f"user {user!r}: {len(x)} examples, {len(y)} labels, num_samples {number}")
            if count == 0:
                continue
            answers = _array(path, user, y, "labels are text or a mixture; expected whole numbers from 0")
            rows.x.append(_names(path, user, x) if named else _numbers(path, user, x, pixels))
            rows.y.append(labels(answers, f"{path}, user {user!r}"))
            rows.user.append(np.full(count, numbers.setdefault(user, len(numbers))))
    return rows


def _users(path: Path) -> list[tuple[str, Any, Any]]:
    """Every user of a file, with the number of examples that it should have, and its data."""
    content = parsed(path, "a LEAF file")
    users, counts, data = (entry(path, content, key) for key in ("users", "num_samples", "user_data"))
    if not isinstance(users, list) or not isinstance(counts, list) or len(users) != len(counts):
        raise corrupt(path, "not a LEAF file (users and num_samples are not lists of one length)")
    if not all(isinstance(user, str) for user in users):
        raise corrupt(path, "not a LEAF file (a user that is no text)")
    user, times = next(iter(Counter(users).most_common(1)), ("", 0))
    if times > 1:
        raise corrupt(path, f"user {user!r} is listed {times} times, which would repeat all examples; expected once")
    return [(user, count, entry(path, data, user)) for user, count in zip(users, counts, strict=True)]


def _names(path: Path, user: str, x: list[Any]) -> np.ndarray:
    if not all(isinstance(name, str) for name in x):
        raise InputError(f"{path}, user {user!r}: x is not a list of names; expected those of image files")
    return np.array(x, object)


def _numbers(path: Path, user: str, x: list[Any], pixels: bool) -> np.ndarray:
    mixed = "x is text or a mixture; expected numbers (or set `images`, if x names image files)"
    values = _array(path, user, x, mixed)
    if pixels and not ((values >= 0) & (values <= 1)).all():
        wrong = f"pixels from {values.min():.6g} to {values.max():.6g}; expected 0 to 1"
        raise InputError(f"{path}, user {user!r}: {wrong}")
    if not (abs(values) <= np.finfo(np.float32).max).all():
        raise InputError(f"{path}, user {user!r}: x has a NaN or infinite value")
    return np.rint(values * 255).astype(np.uint8) if pixels else values.astype(np.float32)


def _array(path: Path, user: str, values: list[Any], mixed: str) -> np.ndarray:
    """Nested lists of numbers as an array. Text is never converted: NumPy makes all of it as long as the longest."""
    flat = values
    while {*map(type, flat)} == {list}:
        if len({*map(len, flat)}) > 1:
            raise corrupt(path, f"user {user!r}: examples of different shapes")
        flat = list(chain.from_iterable(flat))
    if not {*map(type, flat)} <= {int, float}:
        raise InputError(f"{path}, user {user!r}: {mixed}")
    with reading(path, f"numbers, of user {user!r}"):
        return np.array(values, np.float64)


def _joined(rows: Rows, root: Path) -> tuple[np.ndarray, ...]:
    if not rows.x:
        raise InputError(f"{root}: no examples")
    shapes = {x.shape[1:] for x in rows.x}
    if len(shapes) > 1:
        raise corrupt(root, f"users' examples differ in shape ({' and '.join(map(str, sorted(shapes)[:2]))})")
    return tuple(np.concatenate(values) for values in (rows.x, rows.y, rows.user))


def _examples(
    part: tuple[np.ndarray, ...],
    classes: int,
    shape: tuple[int, ...] | None,
    images: Path | None,
    size: int,
    root: Path,
) -> Examples:
    x, y, user = part
    if images is not None:
        x = pictures(images, x.tolist(), size)
    elif shape is not None:
        if (numbers := math.prod(x.shape[1:])) != math.prod(shape):
            raise InputError(f"{root}: examples of {numbers} numbers cannot take the shape {shape}")
        x = x.reshape(len(x), *shape)
    return examples(x, y, user, classes=classes, where=root)


def _root(data_dir: Path, name: str, smallest: int) -> Path:
    """The folder of a LEAF dataset, in LEAF's own layout or with its files at the top.

    `smallest` is how few examples a person may have, in the command that fetches it.
    """
    bare = [data_dir / "data", data_dir] if data_dir.name.lower() == name else []
    folders = [data_dir / name / "data", data_dir / name, data_dir / "leaf" / "data" / name / "data", *bare]
    root = next((folder for folder in folders if _files(folder) is not None), None)
    if root is None:
        clone = f"git clone https://github.com/TalwalkarLab/leaf {as_argument(data_dir / 'leaf')}"
        prepare = f"./preprocess.sh -s niid --sf 1.0 -k {smallest} -t sample"
        command = f"{clone} && cd {as_argument(data_dir / 'leaf' / 'data' / name)} && {prepare}"
        raise missing(name, folders, ["train/*.json and test/*.json", "or all_data/all_data_*.json"], [command])
    return root


def _files(root: Path) -> list[list[Path]] | None:
    """A folder's files for training and for testing, or its files that are not split; None if it has none."""
    train, test = (sorted((root / part).glob("*.json")) for part in ("train", "test"))
    if train and test:
        return [train, test]
    if train or test:
        raise InputError(
            f"{root}: no .json files in {'test' if train else 'train'}/ beside {'train' if train else 'test'}/"
        )
    everything = sorted(root.glob("all_data*.json")) or sorted((root / "all_data").glob("*.json"))
    return [everything] if everything else None


def _images(root: Path, folder: str) -> Path:
    """The folder of image files: inside the folder of JSON files, or beside it."""
    for place in (root / folder, root.parent / folder):
        if is_folder(place):
            return place
    raise InputError(f"no folder of images {root / folder}; expected the image files that x names there")
