"""Arrays in .npz files that are written and read a block of rows at a time, so that they need not fit the memory."""

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
from numpy.lib import format as npy

BLOCK = 2**26
"""Bytes that are held at a time."""


@runtime_checkable
class Blocks(Protocol):
    """An array whose rows are read and written one block after another."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """All rows, so many at a time. [rows, ...]"""
        ...

    def fill(self, blocks: Iterable[np.ndarray]) -> None:
        """Replace all rows."""
        ...


def save(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Write arrays as `np.savez` does; one that has `blocks` is written block by block."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                if not isinstance(array, Blocks):
                    npy.write_array(out, np.asanyarray(array), allow_pickle=False)
                    continue
                head = {"descr": npy.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
                npy.write_array_header_1_0(out, head)
                for block in array.blocks(rows_of(array.shape, array.dtype)):
                    out.write(np.ascontiguousarray(block).tobytes())


def header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and the type of an array in an .npz file."""
    with archive.open(f"{name}.npy") as file:
        return read_header(file)


def blocks(archive: zipfile.ZipFile, name: str) -> Iterator[np.ndarray]:
    """The rows of an array in an .npz file, a block at a time; after the last one the CRC-32 has been checked."""
    with archive.open(f"{name}.npy") as file:
        (count, *rest), kind = read_header(file)
        size = rows_of((count, *rest), kind)
        for start in range(0, count, size):
            rows = min(size, count - start)
            data = file.read(rows * int(np.prod(rest, dtype=np.int64)) * kind.itemsize)
            yield np.frombuffer(data, kind).reshape(rows, *rest)
        if file.read(1):
            raise ValueError(f"{name} is longer than its header says")


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and the type in the header of a .npy file, in the order of C."""
    if npy.read_magic(file) != (1, 0):
        raise ValueError("not written here")
    shape, is_fortran, kind = npy.read_array_header_1_0(file)
    if is_fortran:
        raise ValueError("not written here")
    return shape, kind


def rows_of(shape: tuple[int, ...], kind: np.dtype) -> int:
    """How many rows of an array are one block."""
    return max(1, BLOCK // max(1, int(np.prod(shape[1:], dtype=np.int64)) * kind.itemsize))
