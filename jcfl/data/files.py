"""The search for a dataset's files, and the errors about missing and corrupt files."""

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from jcfl.errors import InputError


def data_folder(data_dir: Path | str | None = None) -> Path:
    """The folder of datasets: `data_dir`, else what the environment variable JCFL_DATA names, else ./data."""
    return Path(data_dir or os.environ.get("JCFL_DATA") or "data").expanduser().absolute()


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
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)


def content(path: Path) -> bytes:
    """The bytes of a file, decompressed where its name ends in `.gz`.

    Raises:
        InputError: the file is no gzip file or is cut short.
    """
    data = path.read_bytes()
    if path.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise corrupt(path, f"truncated or damaged gzip ({error})") from None


def corrupt(path: Path, why: str) -> InputError:
    """The error for a file with wrong content."""
    return InputError(f"corrupt file {path}: {why}")


def missing(name: str, folders: Sequence[Path], files: Sequence[str], commands: Sequence[str]) -> InputError:
    """The error for a dataset that was not found.

    Args:
        folders: those that were searched.
        files: those that were expected.
        commands: each of them fetches the dataset.
    """
    return InputError(
        f"dataset {name!r} not found: searched {', '.join(map(str, dict.fromkeys(folders)))} for {', '.join(files)}. "
        f"Fetch it with: {'  or: '.join(commands)}  "
        "(a folder elsewhere: --data-dir, or the environment variable JCFL_DATA)"
    )
