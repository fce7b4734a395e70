"""NumPy's files, read only as far as what their headers claim agrees with what they hold."""

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

from jcfl.data.files import corrupt, fit, reading, regular, stream

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""What reads the header of an array, by the version of its format; version 3 is for tables, which no dataset is."""


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an `.npz` file, or a folder of `.npy` files, holds.

    Raises:
        InputError: a damaged file, one that holds Python objects, or one that would take more memory than is allowed.
    """
    if path.is_dir():
        files = {name: path / f"{name}.npy" for name in names}
        return {name: _alone(file) for name, file in files.items() if file.exists()}
    regular(path)
    with reading(path, "an .npz archive"), zipfile.ZipFile(path) as archive:
        there = {*archive.namelist()}
        held = {name: archive.getinfo(f"{name}.npy") for name in names if f"{name}.npy" in there}
        fit(path, sum(info.file_size for info in held.values()))
        return {name: _member(path, archive, info) for name, info in held.items()}


def _alone(path: Path) -> np.ndarray:
    size = regular(path)
    fit(path, size)
    with stream(path, "an .npy array") as file:
        return _array(path, file, size)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise corrupt(path, f"{info.filename} is encrypted, or compressed in a way that NumPy does not write")
    with reading(path, "an .npz archive"), archive.open(info) as file:
        return _array(path, file, info.file_size)


def _array(path: Path, file: IO[bytes], size: int) -> np.ndarray:
    """The array in a file of `size` bytes; NumPy takes the memory that a header claims before it reads on."""
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise corrupt(
            path, f"an array in version {version} of NumPy's format; expected {' or '.join(map(str, HEADERS))}"
        )
    shape, _, dtype = HEADERS[version](file)
    claimed = file.tell() + dtype.itemsize * math.prod(shape)
    if claimed != size and not dtype.hasobject:
        raise corrupt(path, f"an array of {dtype} {shape} takes {claimed} bytes, but the file has {size} for it")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)
