"""Rows that stay in the host's memory, or in a file, while programs on a device read and replace some of them."""

import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


class HostTable:
    """Rows of the leaves of a tree, [m, ...] each, which programs read and replace by callbacks.

    All rows begin as one first row, which is kept once. Rows that were not replaced take no room in a file. In memory
    they take none until a program reads them as part of consecutive rows.

    Args:
        count: how many rows there are, m.
        room: rows that take more bytes than this are in a file and not in memory.
    """

    def __init__(self, count: int, room: int):
        self.count, self.room = count, room
        self.like: Any = None  # a row's shapes and types, as a tree
        self.first: list[np.ndarray] = []  # the row that all begin with, by leaf
        self.arrays: list[np.ndarray] = []  # [m, ...] each
        self.written = np.zeros(count, bool)  # [m] whether a row is in the arrays; the others are the first row

    @property
    def bytes(self) -> int:
        """What all rows take."""
        return self.count * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.like))

    def begin(self, first: Any) -> "HostRows":
        """Rows that all are `first` [...]; what the table held before is forgotten."""
        self.like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), first)
        return HostRows(jax.pure_callback(self.forget, TURN, first), self)

    def forget(self, first: Any) -> np.ndarray:
        """Let all rows be `first`."""
        self.first = [np.asarray(leaf) for leaf in jax.tree.leaves(first)]
        self.written[:] = False
        if not self.arrays:
            made = np.zeros if self.bytes <= self.room else InFile
            self.arrays = [made((self.count, *leaf.shape), leaf.dtype) for leaf in self.first]
        return np.zeros((), np.int32)

    def rows(self, who: np.ndarray) -> list[np.ndarray]:
        """Some rows, by leaf. [..., *leaf]"""
        return [self.column(index, who) for index in range(len(self.arrays))]

    def column(self, index: int, who: np.ndarray) -> np.ndarray:
        """Some rows of one leaf; they may be a view of the table. [..., *leaf]"""
        array, places = self.arrays[index], who.ravel()
        if are_consecutive(places) and self.written[places].all():
            rows = array[places[0] : places[-1] + 1]
        else:
            rows = np.empty((places.size, *array.shape[1:]), array.dtype)
            for turn, place in enumerate(places):  # a row at a time is one copy; with a mask it would be two
                # Rows that were not written are not read: a file would give memory to their empty pages.
                rows[turn] = array[place] if self.written[place] else self.first[index]
        return rows.reshape(*who.shape, *array.shape[1:])

    def read(self, turn: Any, who: Any) -> Any:
        """Some rows, as a tree."""
        who = np.asarray(who)
        if are_consecutive(who.ravel()) and not isinstance(self.arrays[0], np.memmap):
            self.write_first(who.ravel())
        return jax.tree.unflatten(jax.tree.structure(self.like), self.rows(who))

    def write_first(self, places: np.ndarray) -> None:
        """Write the first row into the rows `places` [n] that are not written; then all can be read as a view."""
        fresh = places[~self.written[places]]
        for array, first in zip(self.arrays, self.first, strict=True):
            array[fresh] = first
        self.written[fresh] = True

    def write(self, turn: Any, who: Any, rows: Any) -> np.ndarray:
        """Replace the rows `who` [s] by `rows` [s, ...], those with a number of m or more left out."""
        who = np.asarray(who)
        for array, leaf in zip(self.arrays, jax.tree.leaves(rows), strict=True):
            for place, row in zip(who, np.asarray(leaf), strict=True):  # with an array of places it would be two copies
                if place < self.count:
                    put(array, place, row[None])
        self.written[who[who < self.count]] = True
        return np.asarray(turn) + np.int32(1)


class Column:
    """One leaf of a table's rows, as an array [m, ...] that is read and written a block of rows at a time."""

    def __init__(self, table: HostTable, index: int):
        self.table, self.index = table, index
        leaf = jax.tree.leaves(table.like)[index]
        self.shape, self.dtype = (table.count, *leaf.shape), np.dtype(leaf.dtype)

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """All rows, so many at a time. [rows, ...]"""
        for start in range(0, self.table.count, rows):
            yield self.table.column(self.index, np.arange(start, min(start + rows, self.table.count)))

    def fill(self, blocks: Iterable[np.ndarray]) -> None:
        """Replace all rows."""
        start, array = 0, self.table.arrays[self.index]
        for block in blocks:
            put(array, start, block.view(self.dtype))
            start += len(block)
        self.table.written[:] = True


class HostRows(struct.PyTreeNode):
    """A table's rows as a part of a program's state, in place of stacked models `[m, ...]`.

    Programs are sequences of reads and writes for the table, and pure functions for JAX: `turn` says after how many
    writes rows are read. Only the state after the last write can be read.
    """

    turn: jax.Array  # [] int32
    table: HostTable = struct.field(pytree_node=False)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.table.count

    def arrays(self) -> Any:
        """All rows in NumPy, as a tree of copies, which later writes do not change. [m, ...] each"""
        everyone = np.arange(self.count)
        copies = [np.array(self.table.column(index, everyone)) for index in range(len(self.table.arrays))]
        return jax.tree.unflatten(jax.tree.structure(self.table.like), copies)

    def columns(self) -> Iterator[tuple[Any, Column]]:
        """The leaves of all rows, with their paths in a row's tree."""
        for index, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(self.table.like)):
            yield path, Column(self.table, index)

    def take(self, who: jax.Array) -> Any:
        """The rows `who` [...], in [0, m). [..., *leaf]"""
        row = lambda leaf: jax.ShapeDtypeStruct((*jnp.shape(who), *leaf.shape), leaf.dtype)
        like = jax.tree.map(row, self.table.like)
        return jax.pure_callback(self.table.read, like, self.turn, who, vmap_method="broadcast_all")

    def put(self, who: jax.Array, rows: Any) -> "HostRows":
        """The rows with `rows` [s, ...] in place of those of `who` [s]; m in place of a number leaves its row out.

        `rows` have to be made of all rows that are read as they were, so that those are read before.
        """
        return self.replace(turn=jax.pure_callback(self.table.write, TURN, self.turn, who, rows))


TURN = jax.ShapeDtypeStruct((), jnp.int32)


def put(array: np.ndarray, start: int, rows: np.ndarray) -> None:
    """Replace the rows of an array from `start` on by `rows` [n, ...]."""
    if isinstance(array, InFile):
        array.replace_rows(start, rows)
    else:
        array[start : start + len(rows)] = rows


def are_consecutive(places: np.ndarray) -> bool:
    """Whether the numbers of rows [n] follow each other without a gap."""
    return places.size > 0 and bool((np.diff(places) == 1).all())


class InFile(np.memmap):
    """An array in a nameless file where temporary files are (TMPDIR), which takes no room before it is written.

    It is read as memory is, and written as a file is: the system kills a process that writes to memory for which the
    disk has no room, and a write to a file is an error that can be reported. On Windows, where a file has all its room
    from the beginning, it is written as memory is.
    """

    file: Any

    def __new__(cls, shape: tuple[int, ...], kind: np.dtype) -> "InFile":
        """Zeros.

        Raises:
            OSError: the disk is full, or temporary files cannot be made.
        """
        with explained():
            file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the array
            array = cast("InFile", super().__new__(cls, file, kind, "w+", shape=shape))
        array.file = file
        return array

    def replace_rows(self, start: int, rows: np.ndarray) -> None:
        """Replace the rows from `start` on by `rows` [n, ...].

        Raises:
            OSError: the disk is full.
        """
        if not hasattr(os, "pwrite"):  # on Windows
            self[start : start + len(rows)] = rows
            return
        left = np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data
        place = int(start) * math.prod(self.shape[1:]) * self.itemsize
        with explained():
            while left:
                done = os.pwrite(self.file.fileno(), left, place)
                left, place = left[done:], place + done


@contextmanager
def explained() -> Iterator[None]:
    """Errors of the system say what could not be written, and what the user can do."""
    try:
        yield
    except OSError as error:
        where = f"clients' states cannot be written to {tempfile.gettempdir()}"
        raise OSError(error.errno, f"{where}: {error.strerror}; set TMPDIR to a folder with more room") from None
