"""Tables of pyarrow: Parquet and Arrow files by their splits, and columns as arrays."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jcfl.data.files import allowed, fit, reading, regular
from jcfl.data.images import decoded
from jcfl.errors import InputError

ENDS = (".parquet", ".arrow")
"""How the names of files end that can be read."""

ROWS = 1024
"""Rows of a Parquet file that are read at a time."""

LEAST = 4
"""The smallest number of bytes of one value of a Parquet file in memory. The file's header has the number of values."""

MODES = {"P": "RGB", "RGBA": "RGB", "CMYK": "RGB", "YCbCr": "RGB", "LA": "L", "1": "L"}
"""The mode to which images of other modes of Pillow are converted: grey (L) or three colours (RGB)."""

Batches = Callable[[list[str]], Iterable[Any]]
"""The columns with these names, as pyarrow.RecordBatch after pyarrow.RecordBatch; there may be others in them."""


class Split(NamedTuple):
    """One split of a dataset."""

    rows: int
    features: dict[str, Any]  # the kind of every column: a feature of `datasets`, or a type of pyarrow
    read: Callable[[tuple[str, ...]], Any]  # the named columns, as a pyarrow.Table


Features = Callable[[Any], Mapping[str, Any]]
"""What says the kind of every column by a pyarrow.Schema, as that of Hugging Face's `datasets` does."""


def local(place: Path, kinds: Features) -> dict[str, Split]:
    """The splits of a file, or of the files in a folder.

    Args:
        place: the file or the folder.
        kinds: says what columns hold.

    Raises:
        InputError: there is no file to read, or it is damaged.
    """
    with reading(place, "a folder of files"):
        every = [place] if place.is_file() else sorted(place.rglob("*"))
    files: dict[str, list[Path]] = {}
    for file in (file for file in every if file.suffix in ENDS):
        files.setdefault("train" if file == place else split_of(file.relative_to(place)), []).append(file)
    if not files:
        raise InputError(f"{place}: expected a file that ends in {' or '.join(ENDS)}, or a folder with such files")
    return {name: split(some, kinds) for name, some in files.items()}


def split_of(file: Path) -> str:
    """The name of the split that a file holds.

    >>> [split_of(Path(file)) for file in ("data/train-00000-of-00002.parquet", "test/data-00000-of-00001.arrow")]
    ['train', 'test']
    >>> split_of(Path("default/train/0000.parquet")), split_of(Path("data-00000-of-00001.arrow"))
    ('train', 'train')
    """
    word = re.sub(r"[\W\d].*", "", file.stem).strip("_")
    return word if word not in ("", "data") else re.sub(r"\W", "_", file.parent.name) or "train"


def split(files: Sequence[Path], kinds: Features) -> Split:
    """The split that some files hold together, with the columns of the first of them."""
    import pyarrow as pa

    rows, schema = 0, None
    for file in files:
        regular(file)
        with reading(file, "a Parquet or Arrow file"), table(file) as (own, count, _):
            rows, schema = rows + count, schema or own
    assert schema is not None
    with reading(files[0], "a file with features"):
        # Of a dictionary, pandas' category, `datasets` knows no kind.
        known = pa.schema([one for one in schema if not pa.types.is_dictionary(one.type)], schema.metadata)
        features = {one.name: one.type for one in schema} | dict(kinds(known))

    @functools.cache
    def read(names: tuple[str, ...]) -> Any:
        held, size = [], 0
        for file in files:
            with reading(file, "a Parquet or Arrow file"), table(file) as (_, _, batches):
                for batch in batches(list(names)):
                    held.append(batch.select(list(names)))
                    held[-1].validate(full=True)
                    size += held[-1].nbytes
                    fit(file, size)
        with reading(files[0], "a file with the same columns as the others of its split"):
            return pa.Table.from_batches(held, pa.schema([schema.field(name) for name in names]))

    return Split(rows, features, read)


@contextmanager
def table(file: Path) -> Iterator[tuple[Any, int, Batches]]:
    """What a file holds: its schema, the number of its rows, and what reads them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.suffix == ".parquet":
        with pq.ParquetFile(file) as found:

            def batches(names: list[str]) -> Iterable[Any]:
                groups = [found.metadata.row_group(i) for i in range(found.metadata.num_row_groups)]
                chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
                own = [chunk for chunk in chunks if chunk.path_in_schema.startswith(tuple(names))]
                fit(file, sum(max(chunk.total_uncompressed_size, LEAST * chunk.num_values) for chunk in own))
                return found.iter_batches(ROWS, columns=names)

            yield found.schema_arrow, found.metadata.num_rows, batches
    else:
        with pa.memory_map(str(file)) as source:
            is_file = source.read(6) == b"ARROW1"  # and not a stream, which `datasets` writes

            def begun() -> Any:
                source.seek(0)
                return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)

            def every(names: Sequence[str] = ()) -> Iterable[Any]:
                found = begun()
                return (found.get_batch(i) for i in range(found.num_record_batches)) if is_file else found

            yield begun().schema, sum(batch.num_rows for batch in every()), every


def lists(column: Any, name: str, where: Path) -> np.ndarray:
    """A column of lists of one shape as one array. [n, ...]

    Raises:
        InputError: lists of several lengths, a value that is missing, or no numbers.
    """
    with reading(where, f"lists of numbers in column {name!r}"):
        found = [array_of(chunk) for chunk in column.chunks if len(chunk)]
    refuse_several({one.shape[1:] for one in found}, name, where)
    return np.concatenate(found)


def side_by_side(columns: Mapping[str, Any], where: Path) -> np.ndarray:
    """Columns of numbers as the features of a table. [n, d] float32

    Raises:
        InputError: a column of another kind.
    """
    import pyarrow as pa

    rows = len(next(iter(columns.values())))
    fit(where, 4 * rows * len(columns))
    found = np.empty((rows, len(columns)), np.float32)
    for i, (name, column) in enumerate(columns.items()):
        kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
        if not any(kind(column.type) for kind in kinds):
            raise InputError(f"{where}: column {name!r} holds {column.type}; expected numbers")
        with reading(where, f"numbers in column {name!r}"):
            found[:, i] = column.cast(pa.float32(), safe=False).to_numpy()
    return found


def refuse_several(shapes: set[tuple[int, ...]], name: str, where: Path) -> None:
    """Refuse examples of several shapes."""
    if len(shapes) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        if len({shape[:2] for shape in shapes}) == 1:
            raise InputError(f"{where}: {name!r} comes in grey and in colour, {some}; expected one of them")
        raise InputError(f"{where}: {name!r} comes in several sizes, {some}; expected one (data.size scales images)")


def array_of(values: Any) -> np.ndarray:
    """A pyarrow.Array of nested lists as an array; lists of different lengths are refused. [n, ...]"""
    import pyarrow as pa
    import pyarrow.compute as pc

    shape = [len(values)]
    while isinstance(values, pa.ExtensionArray) or pa.types.is_nested(values.type):
        values = values.storage if isinstance(values, pa.ExtensionArray) else values
        lengths = pc.call_function("list_value_length", [values]).unique().to_pylist()  # only lists have any
        if len(lengths) > 1:
            raise ValueError(f"they have different lengths, such as {lengths[0]} and {lengths[1]}")
        shape.append(lengths[0] if lengths else 0)
        values = values.flatten()
    if values.null_count:
        raise ValueError("one of them has no value")
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def pictures(column: Any, name: str, mode: str | None, size: int | None, where: Path) -> np.ndarray:
    """A column of PNG and JPEG images as one array. [n, h, w] or [n, h, w, 3] uint8

    Args:
        column: structures of an image's `bytes` and the `path` that it had.
        name: the column's.
        mode: what Pillow is to make of each image; None keeps grey and colour as they are.
        size: pixels a side, to which images are scaled; None leaves them.
        where: the file or folder, for the error.

    Raises:
        InputError: an image that is not there or cannot be decoded, images of several sizes, or too many of them.
    """
    from PIL import Image

    limit, found = allowed(), np.empty(0)
    for i, one in enumerate(image for chunk in column.chunks for image in chunk):
        data, path = (one.get(key) for key in ("bytes", "path"))
        if data is None or not data.is_valid:
            raise InputError(f"{where}: {name!r} of row {i} is in a file of its own, {path}; expected its bytes")
        image = decoded(Path(f"{where}, row {i}"), data.as_py(), limit)
        image = image.convert(mode or MODES.get(image.mode, image.mode))
        pixels = np.asarray(image if size is None else image.resize((size, size), Image.Resampling.BILINEAR))
        if i == 0:
            fit(where, len(column) * pixels.nbytes)
            found = np.empty((len(column), *pixels.shape), pixels.dtype)
        refuse_several({found.shape[1:], pixels.shape}, name, where)
        found[i] = pixels
    return found


def scalars(column: Any, name: str, where: Path) -> np.ndarray:
    """A column of numbers, or of text as objects. [n]

    Raises:
        InputError: a column of lists or of structures.
    """
    import pyarrow as pa

    if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
        raise InputError(f"{where}: column {name!r} holds {column.type}; expected numbers or text")
    if not pa.types.is_dictionary(column.type):
        return column.to_numpy()
    # Decoded by NumPy, which repeats no text.
    parts = [chunk.dictionary.to_numpy(zero_copy_only=False)[chunk.indices.to_numpy()] for chunk in column.chunks]
    return np.concatenate(parts)
