"""Datasets that tensorflow-datasets has prepared on disk, read without TensorFlow and without the network."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from jcfl.data.dataset import Dataset, Examples, examples
from jcfl.data.files import corrupt, missing
from jcfl.errors import InputError
from jcfl.registry import register


@register("data", "tfds")
def tfds(
    data_dir: Path,
    *,
    dataset: Annotated[str, Field(min_length=1, description="its name: svhn_cropped, or name/config:version")],
    train: Annotated[str, Field(description="the split to train on, as train or train[:80%]")] = "train",
    test: Annotated[str, Field(description="the split to test on, as test or train[80%:]")] = "test",
    image: Annotated[str, Field(description="the feature to learn from")] = "image",
    label: Annotated[str, Field(description="the feature to predict")] = "label",
) -> Dataset:
    """Any prepared tensorflow-datasets set with images (or numbers) of one size and a class label."""
    absent = missing(dataset, prepared_in(data_dir, dataset), ["dataset_info.json"], [preparation(dataset, data_dir)])
    return from_tfds(dataset, data_dir, train=train, test=test, image=image, label=label, absent=absent)


def from_tfds(
    dataset: str,
    data_dir: Path,
    *,
    absent: InputError,
    train: str = "train",
    test: str = "test",
    image: str = "image",
    label: str = "label",
) -> Dataset:
    """A dataset that `tfds.data_source` reads from `data_dir` or from tensorflow-datasets' own folder.

    Args:
        dataset: `name`, `name/config` or `name/config:version`.
        data_dir: the folder to look in first.
        absent: the error to raise if the dataset has not been prepared. It is raised at once, because a download
            without a network would be tried again for minutes.
        train: the split to train on.
        test: the split to test on.
        image: the feature to learn from.
        label: the feature to predict.

    Raises:
        InputError: the dataset is not prepared, not as array_record files, or has no such split or feature.
    """
    folder = next((f for f in prepared_in(data_dir, dataset) if any(f.rglob("dataset_info.json"))), None)
    if folder is None:
        raise absent
    builder, sources = _opened(dataset, folder, [train, test], preparation(dataset, data_dir))
    known, folder = builder.info.features, Path(builder.data_dir)
    for feature in (image, label):
        if feature not in known:
            raise InputError(f"{folder}: no feature {feature!r}; it has {', '.join(known)}")
    if not (classes := getattr(known[label], "num_classes", None)):
        raise InputError(f"{folder}: the feature {label!r} is {known[label]}; expected a ClassLabel")
    parts = [_read(source, image, label, classes, folder) for source in sources]
    return Dataset(dataset, parts[0], parts[1], classes)


def _opened(dataset: str, folder: Path, splits: list[str], command: str) -> tuple[Any, list[Any]]:
    """The builder of a prepared dataset, and its splits as sequences of examples; never downloads."""
    import tensorflow_datasets  # slow to import, and needed by few

    root = folder.parents[len(_parts(dataset)) - 1]
    try:
        builder: Any = tensorflow_datasets.builder(dataset, data_dir=root)
        return builder, builder.as_data_source(split=splits)
    except NotImplementedError:
        raise InputError(f"{folder} is not in array_record format; remove it and prepare it with: {command}") from None
    except (ValueError, AssertionError, tensorflow_datasets.core.DatasetNotFoundError) as error:
        raise InputError(f"{folder}: {str(error).splitlines()[0]}") from None


def _read(source: Any, image: str, label: str, classes: int, folder: Path) -> Examples:
    x, y = None, np.empty(len(source), np.int64)
    for i, record in enumerate(_records(source, folder)):
        one, y[i] = np.asarray(record[image]), record[label]
        if x is None:
            x = np.empty((len(source), *one.shape), one.dtype)
        if one.shape != x.shape[1:]:
            raise InputError(f"{folder}: {image!r} comes in several sizes, {x.shape[1:]} and {one.shape}; expected one")
        x[i] = one
    return examples(np.empty(0) if x is None else x, y, classes=classes, where=folder)


def _records(source: Any, folder: Path) -> Iterator[Any]:
    for i in range(len(source)):
        try:
            record = source[i]
        except Exception as error:  # a damaged record fails in its reader's or its decoder's own way
            raise corrupt(folder, f"record {i} cannot be read ({str(error).splitlines()[0]})") from None
        yield record


def prepared_in(data_dir: Path, dataset: str) -> list[Path]:
    """The folders in which tensorflow-datasets may have prepared a dataset: `data_dir` first, then its own default."""
    own = Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    return [root.joinpath(*_parts(dataset)) for root in (data_dir, own)]


def _parts(dataset: str) -> list[str]:
    """The path of a dataset's configuration, without its version: `emnist/letters:3.1.0` -> emnist, letters."""
    return dataset.split(":")[0].split("/")


def preparation(dataset: str, data_dir: Path) -> str:
    """The command that downloads and prepares a dataset with tensorflow-datasets."""
    call = f"import tensorflow_datasets as tfds; tfds.data_source('{dataset}', data_dir='{data_dir}')"
    return f"pip install 'jcfl[prepare]' && python -c \"{call}\""
