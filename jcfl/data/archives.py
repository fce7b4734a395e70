"""NumPy's files, read only as far as what their headers claim agrees with what they hold."""

import math
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from jcfl.data.files import corrupt, exists, fit, is_folder, reading, regular, stream
from jcfl.errors import InputError, Notice

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""What reads the header of an array, by the version of its format; version 3 is for tables, which no dataset is."""


MOST = 5
"""How many arrays that are not read are listed."""


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an `.npz` file, or a folder of `.npy` files, holds.

    Raises:
        InputError: a damaged file, a file of another kind, one that holds Python objects, or one that would take more
            memory than is allowed.
    """
    if is_folder(path):
        files = {name: path / f"{name}.npy" for name in names}
        return {name: _alone(name, file) for name, file in files.items() if exists(file)}
    regular(path)
    with _opened(path) as archive:
        there = {*archive.namelist()}
        held = {name: archive.getinfo(f"{name}.npy") for name in names if f"{name}.npy" in there}
        fit(path, sum(info.file_size for info in held.values()))
        return {name: _member(name, path, archive, info) for name, info in held.items()}


def names_in(path: Path) -> list[str]:
    """The names of all arrays in an `.npz` file, or in a folder of `.npy` files, known or not."""
    if is_folder(path):
        return sorted(file.stem for file in path.glob("*.npy"))
    with _opened(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def tell_of_others(path: Path, known: Iterable[str]) -> None:
    """Say in a notice which arrays of an `.npz` file, or of a folder of `.npy` files, have names that are not known."""
    known = [*known]
    if others := [name for name in names_in(path) if name not in known]:
        told = f"{path}: arrays that are not read: {', '.join(others[:MOST])}{', …' if len(others) > MOST else ''}"
        warnings.warn(f"{told}; the names that are read are {', '.join(known)}", Notice, stacklevel=3)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive, to read from. A damaged `.npz` is told apart from a file of another kind."""
    with reading(path, "an .npz archive"):
        try:
            archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile:
            if path.suffix == ".npz":
                raise
            raise InputError(
                f"{path}: expected an .npz file, or a folder of .npy files, got a file that ends in {path.suffix!r}"
            ) from None
        with archive:
            yield archive


def _alone(name: str, path: Path) -> np.ndarray:
    size = regular(path)
    fit(path, size)
    with stream(path, "an .npy array") as file:
        return _array(name, path, file, size)


def _member(name: str, path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise corrupt(path, f"{info.filename} is encrypted, or compressed in a way that NumPy does not write")
    with reading(path, "an .npz archive"), archive.open(info) as file:
        return _array(name, path, file, info.file_size)


def _array(name: str, path: Path, file: IO[bytes], size: int) -> np.ndarray:
    """The array in a file of `size` bytes; NumPy takes the memory that a header claims before it reads on."""
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise corrupt(
            path, f"an array in version {version} of NumPy's format; expected {' or '.join(map(str, HEADERS))}"
        )
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject:
        ids = name.startswith(("clients", "users"))
        how = f"text: {name}=np.asarray(ids, str)" if ids else f"numbers or text: {name}=np.asarray({name}.tolist())"
        raise InputError(f"{path}: array {name!r} holds Python objects; save it as {how}")
    claimed = file.tell() + dtype.itemsize * math.prod(shape)
    if claimed != size:
        raise corrupt(path, f"an array of {dtype} {shape} takes {claimed} bytes, but the file has {size} for it")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)
