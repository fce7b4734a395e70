"""Whether a federation's arrays fit each other, for those that a scenario of one's own or a program has made."""

from typing import Literal

import numpy as np

from jcfl.data.dataset import features, labels, whole_numbers
from jcfl.errors import InputError
from jcfl.types import Federation, Split


def checked(federation: Federation) -> Federation:
    """The federation as it is, if all of its arrays fit each other.

    Raises:
        InputError: a value that is NaN or infinite, a label out of range, rows that are not in the pool, or arrays of
            different lengths; the line names the client and the row.
    """

    def named(row: int) -> str:
        return f"row {row}{_whose(federation, row)}"

    x = features(federation.x, _where(federation), named)
    y = labels(federation.y, _where(federation), federation.classes, named)
    if len(x) != len(y):
        raise InputError(f"{_where(federation)}: {len(x)} examples but {len(y)} labels")
    clients = len(np.asarray(federation.groups))
    for what in ("held_out", "arrive", "depart"):
        if np.shape(getattr(federation, what)) != (clients,):
            raise InputError(f"{_where(federation)}: {what} is not one value for each of {clients} clients")
    for half in ("train", "test"):
        rows(federation, half)
    return federation


def rows(federation: Federation, half: Literal["train", "test"]) -> tuple[np.ndarray, np.ndarray]:
    """The rows that clients own, in the clients' order `[r]`, and how many each of them owns `[m]`.

    Raises:
        InputError: a client's rows are not in the pool, or are not where the client's start and size say.
    """
    split: Split = getattr(federation, half)
    clients, where = len(np.asarray(federation.groups)), f"{_where(federation)} ({half})"
    start, size = (
        whole_numbers(part, "size", where, (0, 2**31 - 1), "client {}".format) for part in (split.start, split.size)
    )
    if start.shape != (clients,) or size.shape != (clients,):
        raise InputError(f"{where}: rows of {len(size)} clients; expected those of {clients}")
    owned = np.asarray(split.rows)
    beyond = np.flatnonzero((start + size > len(owned)) | (size > split.width))
    if len(beyond):
        i = beyond[0]
        span = f"{start[i]} to {start[i] + size[i]} of {len(owned)}"
        raise InputError(f"{where}: client {i} has the rows {span}; expected at most {split.width}, all of them there")
    place = np.repeat(start - np.cumsum(size) + size, size) + np.arange(size.sum())  # of every client's rows in turn
    client = np.repeat(np.arange(clients), size)
    last = len(np.asarray(federation.y)) - 1
    return whole_numbers(owned[place], "row", where, (0, last), lambda i: f"client {client[i]}"), size


def _where(federation: Federation) -> str:
    return f"federation {federation.name!r}"


def _whose(federation: Federation, row: int) -> str:
    """The client that owns a row, in words; nothing where no client does."""
    for split in (federation.train, federation.test):
        start, size = np.asarray(split.start), np.asarray(split.size)
        for place in np.flatnonzero(np.asarray(split.rows) == row):
            for client in np.flatnonzero((start <= place) & (place < start + size)):
                return f" of client {client}"
    return ""
