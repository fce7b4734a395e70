"""Datasets of Hugging Face's `datasets`: Parquet and Arrow files, and names of its hub."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from jcfl.data.arrays import from_arrays
from jcfl.data.arrow import ENDS, Split, lists, local, pictures, scalars, side_by_side
from jcfl.data.dataset import Dataset
from jcfl.data.files import ELSEWHERE, exists, reading
from jcfl.data.overlaps import Span, refuse_repeated_rows, tell_of_common_rows
from jcfl.errors import Absent, InputError, optional_package, unknown
from jcfl.registry import register

Columns = tuple[str, ...] | str
"""The column to learn from, or several columns of numbers."""


@register("data", "huggingface")
def huggingface(
    data_dir: Path,
    *,
    path: Annotated[Path | None, Field(description=".parquet or .arrow file, or folder of them")] = None,
    dataset: Annotated[str | None, Field(min_length=1, description="in place of path, a name of the hub")] = None,
    config: Annotated[str | None, Field(description="which configuration of a dataset of the hub")] = None,
    train: Annotated[str, Field(description="the split to train on, as train or train[:80%]")] = "train",
    test: Annotated[str | None, Field(description="the split to test on; none: test, if there is one")] = None,
    share: Annotated[
        float, Field(gt=0, lt=1, description="of every client (or class) to test on, where there is no split for it")
    ] = 0.2,
    x: Annotated[
        Annotated[tuple[str, ...], Field(min_length=1)] | str | None,
        Field(description="column to learn from, or a list of columns of numbers; none: the only Image, else list"),
    ] = None,
    y: Annotated[str | None, Field(description="column to predict; none: the only ClassLabel")] = None,
    clients: Annotated[str | None, Field(description="column with the client of each example")] = None,
    size: Annotated[int | None, Field(ge=1, description="pixels a side, to which images are scaled")] = None,
    classes: Annotated[int | None, Field(ge=2, description="how many there are; else as the labels say")] = None,
    seed: Annotated[int, Field(ge=0, lt=2**64, description="of the draw of the test set")] = 0,
    series: Annotated[bool, Field(description="x [n, t, c] holds series of t steps, and not grey images")] = False,
) -> Dataset:
    """Parquet or Arrow files, a folder of `save_to_disk`, or a dataset of the Hugging Face hub.

    The files of a folder whose names begin with the same word are a split, as train-00000-of-00002.parquet; those whose
    names begin with a number or with `data` are of the split that their folder is called. Labels that are text are
    numbered in alphabetical order.
    """
    known = library()
    if (path is None) == (dataset is None):
        raise InputError("data 'huggingface': expected path, a file or folder, or else dataset, a name of the hub")
    where = found(data_dir, path) if path is not None else Path(str(dataset))
    splits = local(where, known.Features.from_arrow_schema) if path is not None else of_hub(known, where, config)
    first = parts(known, splits, train, where)
    features = splits[first[0].splitname].features
    x, y = columns(known, features, x, y, clients, where)
    if test is None and "test" in splits and all(part.splitname != "test" for part in first):
        test = "test"
    second = parts(known, splits, test, where) if test is not None else []
    spans = [[Span(part.splitname, part.from_, part.to) for part in some] for some in (first, second)]
    for some in spans:
        refuse_repeated_rows(some, where)
    tell_of_common_rows(spans[0], spans[1], where)
    wanted = (*several(x), y, clients)
    tables = [taken(splits, some, features, wanted, where) for some in (first, second) if some]
    inputs = [examples(known, table, features, x, y, size, where) for table in tables]
    labels = [scalars(table[y], y, where) for table in tables]
    number = getattr(features[y], "num_classes", None)
    whose = [ids_of(table[clients], clients, features[clients], where) for table in tables] if clients else []
    held = [*zip(*(some for some in (inputs, labels, whose) if some), strict=True)]
    more: dict[str, Any] = {"seed": seed, "name": where.stem, "where": where, "series": series}
    return from_arrays(*held[0], test=held[1] if second else share, classes=classes or number, **more)


def library() -> Any:
    """The package `datasets`.

    Raises:
        InputError: it is not installed.
    """
    needed = 'data huggingface needs the package datasets: pip install "jcfl[huggingface]"'
    return optional_package("datasets", needed)


def found(data_dir: Path, path: Path) -> Path:
    """A file or folder, looked for in the folder of datasets and then in the working directory.

    Raises:
        InputError: there is none.
    """
    places = [data_dir / path, Path.cwd() / path]
    place = next((place for place in places if exists(place)), None)
    if place is None:
        expected = f"expected a {' or '.join(ENDS)} file, or a folder of them"
        raise Absent(f"no {' or '.join(map(str, places))}; {expected} {ELSEWHERE}")
    return place


def of_hub(known: Any, name: Path, config: str | None) -> dict[str, Split]:
    """The splits of a dataset of the hub.

    Args:
        known: the package `datasets`, which downloads it, or takes what it has downloaded before.
        name: the dataset's, as ylecun/mnist.
        config: which of its configurations; None where there is one only.

    Raises:
        InputError: there is a folder of this name, which `datasets` would take instead, or the hub gives nothing.
    """
    written = name.as_posix()  # on Windows str(name) has a backslash
    if exists(name):
        raise InputError(f"data 'huggingface': dataset {written!r} is a file or folder here; give it as path")
    try:
        splits = known.load_dataset(written, config)
    except Exception as error:  # of the network, of the hub, or of the files there
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise Absent(f"dataset {written!r} not found: the hub gave nothing ({reason[:300]})") from error
    read = lambda split: lambda names: split.select_columns(list(names)).with_format("arrow")[:]
    return {name: Split(len(one), one.features, read(one)) for name, one in splits.items()}


def parts(known: Any, splits: Mapping[str, Split], wanted: str, where: Path) -> list[Any]:
    """The parts of splits that are meant by a text such as `train[:80%]+test`: `splitname`, `from_` and `to` of each.

    Raises:
        InputError: there is no such split, or the text has no meaning.
    """
    try:
        instruction = known.ReadInstruction.from_spec(wanted)
        return instruction.to_absolute({name: split.rows for name, split in splits.items()})
    except (ValueError, AssertionError) as error:
        absent = [name for name in re.findall(r"(?:^|\+)\s*(\w+)", wanted) if name not in splits]
        if absent:
            raise unknown(f"split of {where}:", absent[0], splits) from None
        raise InputError(f"{where}: split {wanted!r}: {error}; expected one such as train[:80%]") from None


def columns(
    known: Any,
    features: Mapping[str, Any],
    x: Columns | None,
    y: str | None,
    clients: str | None,
    where: Path,
) -> tuple[Columns, str]:
    """The columns to learn from and to predict: those that are given, else the only ones of their kind.

    Raises:
        InputError: there is no column of a name, or not exactly one of a kind; the line lists the columns.
    """
    given = [name for name in (*several(x), y, clients) if name is not None]
    for name in given:
        if name not in features:
            raise unknown(f"column of {where}:", name, features)
    lists = (known.List, known.LargeList, known.Array2D, known.Array3D, known.Array4D, known.Array5D)
    kinds = {"x": ((known.Image,), lists), "y": ((known.ClassLabel,),)}
    found: dict[str, Any] = {"x": x, "y": y}
    for option in (option for option, name in found.items() if name is None):
        choices = (
            [name for name, feature in features.items() if isinstance(feature, kind) and name not in given]
            for kind in kinds[option]
        )
        meant = next((names for names in choices if names), [])
        if len(meant) != 1:
            kind = " or ".join(one[0].__name__ for one in kinds[option])
            there = ", ".join(f"{name} ({kind_of(feature)})" for name, feature in features.items())
            more = as_list(features, given) if option == "x" else ""
            raise InputError(f"{where}: {len(meant)} columns of the kind {kind}; give {option}, one of {there}{more}")
        found[option] = meant[0]
    if not isinstance(x, str) and found["y"] in several(x):
        raise InputError(f"{where}: column {found['y']!r} is both y and one of x; leave it out of x")
    return found["x"], found["y"]


def several(x: Columns | None) -> tuple[str, ...]:
    """The columns that `x` names."""
    return () if x is None else (x,) if isinstance(x, str) else x


def kind_of(feature: Any) -> str:
    """The kind of a column: that of its values where it holds one for each example."""
    name = type(feature).__name__
    return str(feature.dtype) if name == "Value" else name


def as_list(features: Mapping[str, Any], others: Sequence[str]) -> str:
    """How to give columns of numbers, with the first of those that are not `others`; empty where there are none."""
    numbers = re.compile("u?int|float|double|bool|decimal")
    names = [name for name in features if numbers.match(kind_of(features[name])) and name not in others]
    some = ", ".join([*names[:2], *(["…"] if len(names) > 2 else [])])
    return f", or columns of numbers as a list, x: [{some}]" if names else ""


def examples(
    known: Any,
    table: Any,
    features: Mapping[str, Any],
    x: Columns,
    y: str,
    size: int | None,
    where: Path,
) -> np.ndarray:
    """The column to learn from, or the columns of numbers, as one array. [n, ...]

    Raises:
        InputError: a column of another kind, or examples of several sizes.
    """
    if not isinstance(x, str):
        return side_by_side({name: table[name] for name in x}, where)
    if isinstance(features[x], known.Image):
        return pictures(table[x], x, features[x].mode, size, where)
    if isinstance(features[x], known.Value):
        how = as_list(features, [y])
        raise InputError(f"{where}: column {x!r} holds {kind_of(features[x])}; expected images or lists{how}")
    return lists(table[x], x, where)


def taken(
    splits: Mapping[str, Split],
    some: Sequence[Any],
    features: Mapping[str, Any],
    wanted: Sequence[str | None],
    where: Path,
) -> Any:
    """The columns that are wanted of some parts of splits, as a pyarrow.Table.

    Raises:
        InputError: the splits have other columns, a row has no value, or there is more than memory allows.
    """
    import pyarrow as pa

    names = tuple(dict.fromkeys(name for name in wanted if name is not None))
    for one in some:
        for name in names:
            found = splits[one.splitname].features.get(name)
            if found != features[name]:
                raise InputError(f"{where}: column {name!r} of {one.splitname} is {found}; expected {features[name]}")
    read = [splits[one.splitname].read(names) for one in some]
    with reading(where, "splits that go together"):
        whole = [part.slice(one.from_, max(one.to - one.from_, 0)) for part, one in zip(read, some, strict=True)]
        table = pa.concat_tables(whole)
    if not table.num_rows:
        span = " and ".join(f"{one.splitname}[{one.from_}:{one.to}]" for one in some)
        raise InputError(f"{where}: no examples in {span}")
    for name in names:
        if table[name].null_count:
            i = table[name].is_null().index(True).as_py()
            raise InputError(f"{where}: column {name!r} has nothing in row {i}; expected a value in every row")
    return table


def ids_of(column: Any, name: str, feature: Any, where: Path) -> np.ndarray:
    """A column of clients' ids; those of a ClassLabel are its names. [n]"""
    ids = scalars(column, name, where)
    if not hasattr(feature, "int2str"):
        return ids
    with reading(where, "a column of numbered names"):
        return np.array(feature.int2str(ids), object)
