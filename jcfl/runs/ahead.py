"""Reading the examples of the next rounds' cohorts from a mapped file, while the device trains."""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jcfl.errors import available_memory
from jcfl.types import Algorithm, Federation, State
from jcfl.types.host import whole_map

Ahead = Callable[[Any, range], None]
"""`(state, rounds)` lets the system read the examples of the cohorts of these rounds, and does not wait."""

SHARE = 4
"""The part of the free memory that is read ahead at most: a quarter."""


def reader(algorithm: Algorithm, federation: Federation, placed: Federation) -> Ahead:
    """What reads ahead for a run by itself; it does nothing where the examples are in no file.

    It changes when the file is read, but no result: the system keeps the pages in memory while there is room.

    Args:
        federation: in NumPy, its examples perhaps mapped from a file.
        placed: the same as programs are given it.
    """
    x: Any = federation.x
    file = whole_map(x)
    if file is None or not hasattr(os, "posix_fadvise"):
        return lambda state, rounds: None
    sampled = jax.jit(lambda state, federation, round: algorithm.sampled(state.replace(round=round), federation))
    first = file.offset + x.ctypes.data - file.ctypes.data
    row, last = x.strides[0], [threading.Thread()]

    def read(held: list[Federation], cohorts: list[np.ndarray]) -> None:
        left = available_memory() // SHARE
        with open(str(file.filename), "rb") as source:
            for begin, end in (span for part in zip(held, cohorts, strict=True) for span in spans(*part)):
                left -= (end - begin) * row
                if left < 0:
                    return
                os.posix_fadvise(source.fileno(), first + begin * row, (end - begin) * row, os.POSIX_FADV_WILLNEED)

    def ahead(state: State, rounds: range) -> None:
        if not last[0].is_alive():
            found = [sampled(state, placed, np.int32(round)) for round in rounds]
            cohorts = [np.asarray(one.who)[np.asarray(one.present)] for one in found]
            held = [federation.at(round) for round in rounds]
            last[0] = threading.Thread(target=read, args=(held, cohorts), daemon=True)
            last[0].start()

    return ahead


def spans(federation: Federation, who: np.ndarray) -> Iterator[tuple[int, int]]:
    """Stretches of rows that the clients `who` [s] train on: the first row, and the one after the last."""
    split = federation.train
    for client in who:
        rows = np.sort(split.owned(client))
        for part in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            if part.size:
                yield int(part[0]), int(part[-1]) + 1
