"""Datasets by name."""

from pathlib import Path
from typing import Any

from jcfl.data import arrays, cifar, generated, huggingface, idx, leaf, medmnist, tfds  # noqa: F401  (each registers its sources)
from jcfl.data.dataset import Dataset
from jcfl.data.files import data_folder
from jcfl.errors import InputError, shown
from jcfl.registry import made, options


def load(name: str, data_dir: Path | str | None = None, **given: Any) -> Dataset:
    """The dataset registered under a name.

    Args:
        name: one of `jcfl.registry.names("data")`.
        data_dir: the folder that holds datasets; else the environment variable JCFL_DATA, else ./data.
        **given: the dataset's own options.

    Raises:
        InputError: an unknown name or option, a dataset that is not there, a corrupt file, or a user's function that
            returned no dataset.

    >>> load("digits").shape
    (8, 8, 1)
    """
    found = made("data", name, data_folder(data_dir), **options("data", name, given))
    if not isinstance(found, Dataset):
        raise InputError(f"data {name!r}: expected a jcfl.data.Dataset, got {shown(found)}")
    return found
