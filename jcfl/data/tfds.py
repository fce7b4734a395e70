"""Datasets that tensorflow-datasets has prepared on disk, read without TensorFlow and without the network."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from jcfl.data.dataset import CLASSES, Dataset, Examples, examples
from jcfl.data.files import allowed, corrupt, entry, fit, missing, parsed, reading, regular
from jcfl.data.images import decoded
from jcfl.data.overlaps import Span, refuse_repeated_rows, tell_of_common_rows
from jcfl.errors import InputError
from jcfl.registry import register

FORMAT = "array_record"
"""The format of prepared files that can be read without TensorFlow."""

FEATURES = {"Image": "image", "ClassLabel": "classLabel", "Scalar": "tensor", "Tensor": "tensor"}
"""The connectors of tensorflow-datasets that features may have, and the entry that says more about such a feature."""


@register("data", "tfds")
def tfds(
    data_dir: Path,
    *,
    dataset: Annotated[str, Field(min_length=1, description="its name: svhn_cropped, or name/config:version")],
    train: Annotated[str, Field(description="the training split, such as train or train[:80%]")] = "train",
    test: Annotated[str, Field(description="the test split, such as test or train[80%:]")] = "test",
    image: Annotated[str, Field(description="the feature with the inputs")] = "image",
    label: Annotated[str, Field(description="the feature with the labels")] = "label",
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
        image: the feature with the inputs.
        label: the feature with the labels.

    Raises:
        InputError: the dataset is not prepared, not as array_record files, has no such split or feature, or is damaged;
            rows that are given twice for one part.
    """
    with reading(data_dir, "a folder of datasets"):
        folder = next((f for f in prepared_in(data_dir, dataset) if any(f.rglob("dataset_info.json"))), None)
    if folder is None:
        raise absent
    folder = _version(dataset, folder)
    features = _features(folder, image, label)
    classes, sources = _opened(folder, [train, test], features, image, label, preparation(dataset, data_dir))
    parts = [_read(source, image, label, classes, folder) for source in sources]
    return Dataset(dataset, parts[0], parts[1], classes)


def _version(dataset: str, folder: Path) -> Path:
    """The folder of the given version, else of the newest one."""
    from tensorflow_datasets.core.utils import version

    known = version.list_all_versions(folder)
    wanted = dataset.partition(":")[2]
    with reading(folder, f"a folder with a version such as {wanted}"):
        matching = [one for one in known if not wanted or one.match(wanted)]
    if not matching:
        there = ", ".join(map(str, known)) or f"none, but {', '.join(sorted(path.name for path in folder.iterdir()))}"
        raise InputError(f"{folder}: no version {wanted or 'at all'} of {dataset!r}; there is {there}")
    return folder / str(matching[-1])


def _features(folder: Path, image: str, label: str) -> dict[str, Any]:
    """What `features.json` says of the two features that are read.

    tensorflow-datasets imports whatever module a feature names there, so no other name than its own reaches it. The
    other features are left out: they need not be decoded.
    """
    from tensorflow_datasets import features as known

    path = folder / "features.json"
    named = {f"{getattr(known, name).__module__}.{name}": content for name, content in FEATURES.items()}
    table = entry(path, entry(path, parsed(path, "a list of features"), "featuresDict"), "features")
    if not isinstance(table, dict):
        raise corrupt(path, "its features have no names")
    chosen = {}
    for name in (image, label):
        if not isinstance(table, dict) or name not in table:
            raise InputError(
                f"{folder}: no feature {name!r}; it has {', '.join(table) if isinstance(table, dict) else 'none'}"
            )
        kind = entry(path, table[name], "pythonClassName")
        content = named.get(str(kind))
        if content is None:
            raise InputError(f"{folder}: the feature {name!r} is a {kind}; expected one of {', '.join(FEATURES)}")
        chosen[name] = {"pythonClassName": kind, content: entry(path, table[name], content)}
    if "classLabel" not in chosen[label]:
        raise InputError(f"{folder}: the feature {label!r} is {table[label]['pythonClassName']}; expected a ClassLabel")
    if "zlib" in str(chosen[image].get("tensor")):
        raise InputError(f"{folder}: the feature {image!r} is compressed by zlib; expected images, or plain numbers")
    return chosen


def _opened(
    folder: Path, splits: list[str], features: dict[str, Any], image: str, label: str, command: str
) -> tuple[int, Sequence[Any]]:
    """The number of classes of a prepared dataset, and its splits: sequences of examples with these features alone."""
    from google.protobuf import json_format
    from tensorflow_datasets import decode
    from tensorflow_datasets.core import read_only_builder
    from tensorflow_datasets.core.features import FeaturesDict
    from tensorflow_datasets.core.proto import dataset_info_pb2

    said = parsed(folder / "dataset_info.json", "a description of a dataset")
    kind = f"{FeaturesDict.__module__}.{FeaturesDict.__name__}"
    with reading(folder / "dataset_info.json", "a description of a dataset"):
        said = {**said, "features": {"pythonClassName": kind, "featuresDict": {"features": features}}}
        info = json_format.ParseDict(said, dataset_info_pb2.DatasetInfo())  # type: ignore[attr-defined]
    if FORMAT not in (info.file_format, *info.alternative_file_formats):
        raise InputError(f"{folder} is not in {FORMAT} format; remove it and prepare it with: {command}")
    for names in folder.glob("*.txt"):  # of labels
        fit(names, regular(names))
    limit = allowed()

    @decode.make_decoder()
    def pixels(example: Any, feature: Any) -> np.ndarray:
        picture = np.asarray(decoded(folder, example, limit))
        return picture if picture.ndim == 3 else picture[..., None]

    decoders = {image: pixels()} if "image" in features[image] else None  # type: ignore[call-arg]
    with reading(folder, "a prepared dataset"):
        builder: Any = read_only_builder.builder_from_metadata(folder, info)
    spans = [_spans(folder, builder, split) for split in splits]
    for some in spans:
        refuse_repeated_rows(some, folder)
    tell_of_common_rows(spans[0], spans[1], folder)
    with reading(folder, "a prepared dataset"):
        sources = builder.as_data_source(split=splits, decoders=decoders, file_format=FORMAT)
    classes = builder.info.features[label].num_classes or 0
    if not 1 <= classes <= CLASSES:
        raise corrupt(folder / "features.json", f"{classes} classes; expected 1 to {CLASSES}")
    return classes, sources


def _spans(folder: Path, builder: Any, split: str) -> list[Span]:
    """The rows of the files of a prepared dataset that a split such as `train[:80%]+test` means."""
    try:
        parts = builder.info.splits[split].file_instructions
    except Exception as error:  # others' code reads the text
        reason = next(iter(str(error).strip("'\"").splitlines()), "") or type(error).__name__
        raise InputError(f"{folder}: split {split!r}: {reason}; expected one such as train[:80%]") from error
    if not parts:
        raise InputError(f"{folder}: split {split!r} has no examples")
    for file in (Path(part.filename) for part in parts):
        if file.parent != folder:
            raise corrupt(folder, f"its description names the file {file}, outside of it")
        regular(file)
    return [Span(Path(part.filename).name, part.skip, part.skip + part.take) for part in parts]


def _read(source: Any, image: str, label: str, classes: int, folder: Path) -> Examples:
    with reading(folder, "a prepared dataset"):
        number = len(source)
    x, y = np.empty(0), np.empty(0, np.int64)
    for i, (one, answer) in enumerate(_records(source, number, image, label, folder)):
        if i == 0:
            fit(folder, number * (one.nbytes + y.itemsize))
            x, y = np.empty((number, *one.shape), one.dtype), np.empty(number, y.dtype)
        if (one.shape, one.dtype) != (x.shape[1:], x.dtype):
            raise InputError(
                f"{folder}: {image!r} comes in several sizes, {x.shape[1:]} {x.dtype} and {one.shape} {one.dtype}; "
                "expected one"
            )
        x[i], y[i] = one, answer
    return examples(x, y, classes=classes, where=folder)


def _records(source: Any, number: int, image: str, label: str, folder: Path) -> Iterator[tuple[np.ndarray, int]]:
    for i in range(number):
        with reading(folder, f"a prepared dataset of {number} records: record {i} cannot be read"):
            record = source[i]
            pair = np.asarray(record[image]), int(record[label])
        yield pair


def prepared_in(data_dir: Path, dataset: str) -> list[Path]:
    """The folders in which tensorflow-datasets may have prepared a dataset: `data_dir` first, then its own default."""
    own = Path(os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"))  # also without a home
    return [root.joinpath(*_parts(dataset)) for root in (data_dir, own)]


def _parts(dataset: str) -> list[str]:
    """The path of a dataset's configuration, without its version: `emnist/letters:3.1.0` -> emnist, letters."""
    return dataset.split(":")[0].split("/")


def preparation(dataset: str, data_dir: Path) -> str:
    """The command that downloads and prepares a dataset with tensorflow-datasets."""
    call = f"import tensorflow_datasets as tfds; tfds.data_source('{dataset}', data_dir='{data_dir.as_posix()}')"
    return f"pip install 'jcfl[prepare]' && python -c \"{call}\""
