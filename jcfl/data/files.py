"""Where the files of a dataset lie, and the one door through which their content comes in.

A file may be from a stranger. Whatever goes wrong while others' code opens, decompresses, parses or converts it becomes
one `InputError` here, in `reading`; and no more memory is taken for it than `allowed` says, whatever it claims to hold.
"""

import gzip
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from jcfl.errors import Absent, InputError, available_memory, shown

PIECE = 2**20
"""Bytes that are read at a time, so that memory follows what a file holds and not what it claims."""

OBJECTS = {b",": 44, b"[": 104, b"{": 450, b":": 120, b'"': 32}
"""Bytes of Python's objects for each of these characters in JSON, at most: number, list, object, entry, text."""


ELSEWHERE = "(a folder elsewhere: --data-dir, or, where data_dir is not set, the environment variable JCFL_DATA)"
"""How to name another folder: a configuration may have a relative one, of another working directory."""


def data_folder(data_dir: Path | str | None = None) -> Path:
    """The folder of datasets: `data_dir`, else what the environment variable JCFL_DATA names, else ./data."""
    if not isinstance(data_dir, str | Path | None):
        raise InputError(f"data_dir: expected a folder, got {shown(data_dir)}")
    folder = Path(data_dir or os.environ.get("JCFL_DATA") or "data")
    try:
        return folder.expanduser().absolute()
    except RuntimeError as error:  # there is no such user, or no home
        raise InputError(f"data_dir: {folder}: {error}; expected a folder") from error
    except FileNotFoundError:
        raise InputError(f"data_dir: {folder}: the current folder has been deleted; change to another one") from None


def located(folders: Sequence[Path], files: Sequence[str]) -> list[Path] | None:
    """The paths of `files`, plain or with `.gz` added, in the first folder that holds them all; None if there is none.

    Raises:
        InputError: a folder holds some of the files, and no folder all of them.
    """
    partial = None
    for folder in folders:
        paths = [existing_file(folder, file) for file in files]
        present = [path for path in paths if path is not None]
        if len(present) == len(files):
            return present
        if present and partial is None:
            absent = [file for file, path in zip(files, paths, strict=True) if path is None]
            partial = InputError(f"{folder}: {', '.join(absent)} missing beside {present[0].name}")
    if partial is not None:
        raise partial
    return None


def existing_file(folder: Path, file: str) -> Path | None:
    """The path of a file in a folder, plain or with `.gz` added; None where there is neither."""
    both = (folder / file, folder / f"{file}.gz")
    return next((path for path in both if exists(path) and not is_folder(path)), None)


def exists(path: Path) -> bool:
    """Whether there is a file or folder.

    Raises:
        InputError: the system does not say so, for instance in a folder that may not be read.
    """
    with reading(path, "a path"):
        return path.exists()


def is_folder(path: Path) -> bool:
    """Whether there is a folder. Raises as `exists`."""
    with reading(path, "a path"):
        return path.is_dir()


def inside(folder: Path, name: str) -> Path:
    """The path of a file that is named by another file, and lies in `folder` after links are followed.

    Raises:
        InputError: a name that is absolute or leads out of the folder.
    """
    path = folder / name
    with reading(path, "a name of a file"):
        leaves = Path(name).is_absolute() or not path.resolve().is_relative_to(folder.resolve())
    if leaves:
        raise InputError(f"the name {name!r} leads out of {folder}; expected a file inside it")
    return path


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn whatever goes wrong inside into one error that names the file.

    Others' code that gets the content of the file belongs inside: parsers fail in every way there is. What jcfl does
    with the values stands outside, for a fault of its own is to show as it is.

    Args:
        path: the file.
        what: what it should have been, such as "a LEAF file".

    Raises:
        InputError: for every exception but those that end the program.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror is not None:
            raise InputError(f"cannot read {error.filename or path}: {error.strerror}") from error
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise corrupt(path, f"not {what} ({reason[:300]})") from error


def allowed() -> int:
    """The bytes that a file's content may take: half of what is free, for what is made of the content comes on top."""
    return available_memory() // 2


def fit(path: Path, size: int, limit: int | None = None) -> None:
    """Refuse content that would take more memory than a file may.

    Args:
        path: the file.
        size: the bytes that its content would take.
        limit: the bytes that it may take, `allowed()` unless given.

    Raises:
        InputError: the content would take more; the line says how much, and how much is allowed.
    """
    limit = allowed() if limit is None else limit
    if size > limit:
        raise too_large(path, size, limit)


def regular(path: Path) -> int:
    """The size of a file in bytes.

    Raises:
        InputError: no file, or something else in its place: a folder, a pipe (which could block for ever), a device.
    """
    with reading(path, "a file"):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file; expected one, and no folder, pipe or device")
    return status.st_size


@contextmanager
def stream(path: Path, what: str) -> Iterator[IO[bytes]]:
    """A file to read from, decompressed where its name ends in `.gz`; what goes wrong meanwhile is as in `reading`."""
    regular(path)
    zipped = path.suffix == ".gz"
    with reading(path, "undamaged gzip" if zipped else what), (gzip.open if zipped else open)(path, "rb") as file:
        yield file  # type: ignore[misc]


def taken(file: IO[bytes], most: int) -> bytearray:
    """The next bytes of a file, `most` of them or as many as there are."""
    data = bytearray()
    while piece := file.read(min(PIECE, most - len(data))):
        data += piece
    return data


def content(path: Path, what: str, limit: int | None = None) -> bytearray:
    """The bytes of a file, decompressed where its name ends in `.gz`.

    Args:
        path: the file.
        what: what it should be, for the error.
        limit: how many bytes there may be, `allowed()` unless given.

    Raises:
        InputError: no file, a damaged one, or more bytes than are allowed.
    """
    limit = allowed() if limit is None else limit
    fit(path, regular(path), limit)
    with stream(path, what) as file:
        data = taken(file, limit + 1)
    if len(data) > limit:  # compressed, so that its size is only known by reading it to the end
        raise too_large(path, limit, limit, "more than ")
    return data


def parsed(path: Path, what: str) -> Any:
    """The value in a file of JSON.

    Raises:
        InputError: text that is not JSON, an object with two entries of one name, or more than memory allows.
    """
    data = content(path, what)
    text = len(data) * (3 if data.isascii() else 10)
    fit(path, text + sum(size * data.count(character) for character, size in OBJECTS.items()))
    with reading(path, what):
        return json.loads(data, object_pairs_hook=_distinct)


def entry(path: Path, table: Any, key: str) -> Any:
    """One entry of an object in a file of JSON.

    Raises:
        InputError: no object, or no such entry.
    """
    if not isinstance(table, dict) or key not in table:
        raise corrupt(path, f"no entry {key!r}")
    return table[key]


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("an object has two entries of one name")
    return table


def too_large(path: Path, size: int, limit: int, more: str = "") -> InputError:
    """The error for content that would take more memory than a file may."""
    from rich.filesize import decimal

    return InputError(
        f"{path} would take {more}{decimal(size)} of memory; at most {decimal(limit)} is allowed: half of what is "
        "free, shared by the files that are read at once"
    )


def corrupt(path: Path, why: str) -> InputError:
    """The error for a file with wrong content."""
    return InputError(f"corrupt file {path}: {why}")


def missing(name: str, folders: Sequence[Path], files: Sequence[str], commands: Sequence[str]) -> Absent:
    """The error for a dataset that was not found.

    Args:
        folders: those that were searched.
        files: those that were expected.
        commands: each of them fetches the dataset.
    """
    return Absent(
        f"dataset {name!r} not found: searched {', '.join(map(str, dict.fromkeys(folders)))} for {', '.join(files)}. "
        f"Fetch it with: {'  or: '.join(commands)}  "
        f"{ELSEWHERE}"
    )
