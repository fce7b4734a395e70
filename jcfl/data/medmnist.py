"""MedMNIST's datasets, from the `.npz` files their publishers give."""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from jcfl.data.archives import read_arrays
from jcfl.data.dataset import Dataset, counted, examples, features, labels
from jcfl.data.files import corrupt, exists, is_folder, missing
from jcfl.errors import InputError, as_argument
from jcfl.registry import register

URL = "https://zenodo.org/records/10519652/files"
Validation = Annotated[
    Literal["drop", "train", "test"], Field(description="what becomes of the published validation images")
]


@register("data", "pathmnist")
def pathmnist(data_dir: Path, *, validation: Validation = "drop") -> Dataset:
    """PathMNIST: 89,996 + 7,180 pictures of colon tissue, 28x28x3, 9 classes."""
    return _published("pathmnist.npz", data_dir, validation, classes=9)


@register("data", "tissuemnist")
def tissuemnist(data_dir: Path, *, validation: Validation = "drop") -> Dataset:
    """TissueMNIST: 165,466 + 47,280 pictures of kidney cells, 28x28x1, 8 classes."""
    return _published("tissuemnist.npz", data_dir, validation, classes=8)


@register("data", "medmnist")
def medmnist(
    data_dir: Path,
    *,
    file: Annotated[str, Field(min_length=1, description="its file: bloodmnist.npz, or a path")],
    validation: Validation = "drop",
) -> Dataset:
    """Any MedMNIST set with one label per image, from its .npz file."""
    return _published(file, data_dir, validation, classes=None)


def _published(file: str, data_dir: Path, validation: str, classes: int | None) -> Dataset:
    folders = [data_dir / "medmnist", data_dir / Path(file).stem, data_dir]
    path = next(
        (place for place in (folder / file for folder in folders) if exists(place) and not is_folder(place)), None
    )
    if path is None:
        name = Path(file).name
        command = f"curl -L --create-dirs -o {as_argument(data_dir / 'medmnist' / name)} {URL}/{name}"
        raise missing(Path(file).stem, folders, [file], [command])
    return from_medmnist(path, validation, classes)


def from_medmnist(path: Path, validation: str, classes: int | None) -> Dataset:
    """A dataset from a file with train_images, train_labels, val_images, … test_labels.

    Args:
        path: the `.npz` file.
        validation: whether the validation images are dropped, trained on, or tested on.
        classes: the number of classes; None counts them in the training labels.

    Raises:
        InputError: a corrupt file, a missing array, or several labels per image.
    """
    names = ["train_images", "train_labels", "test_images", "test_labels"]
    names += [] if validation == "drop" else ["val_images", "val_labels"]
    given = read_arrays(path, names)
    for name in names:
        if name not in given:
            raise corrupt(path, f"no array {name!r}")
    y = given["train_labels"]
    if y.ndim == 2 and y.shape[1] > 1:
        raise InputError(f"{path}: {y.shape[1]} labels per image; expected one")
    classes = classes or counted([labels(y, path, named="example {} of train_labels".format)], path, is_option=False)
    parts = {}
    for part in ("train", "test"):
        joined = [part, "val"] if validation == part else [part]
        x = [features(given[f"{name}_images"], path, f"example {{}} of {name}_images".format) for name in joined]
        y = [labels(given[f"{name}_labels"], path, classes, f"example {{}} of {name}_labels".format) for name in joined]
        if len({(one.shape[1:], one.dtype) for one in x}) > 1:
            raise corrupt(path, f"images of {x[0].shape[1:]} and {x[1].shape[1:]}, {x[0].dtype} and {x[1].dtype}")
        x, y = np.concatenate(x), np.concatenate(y)
        parts[part] = examples(x[..., None] if x.ndim == 3 else x, y, classes=classes, where=path)
    return Dataset(path.stem, parts["train"], parts["test"], classes)
