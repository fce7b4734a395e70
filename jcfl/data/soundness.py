"""Whether a federation's arrays fit each other, for those that a scenario of one's own or a program has made."""

from typing import Any

import numpy as np

from jcfl.data.dataset import CLASSES, array, features, labels, whole_numbers
from jcfl.data.partition import Draws, Partition
from jcfl.errors import InputError, shown, unknown
from jcfl.types import Drift, Federation, Ids, Split

PARTITIONED = {"x": "", "y": "iu", "trains": "b", "owner": "iu", "groups": "iu"}
"""The arrays of a partition and their kinds of numbers, as NumPy calls them; "" for any."""


def checked(federation: Federation) -> Federation:
    """The federation as it is, if all of its arrays fit each other.

    Raises:
        InputError: a value that is NaN or infinite, a label out of range, rows that are not in the pool, or arrays of
            different lengths; the line names the client and the row.
    """

    def named(row: int) -> str:
        return f"row {row}{_whose(federation, row)}"

    _refuse_other(federation)
    if not isinstance(federation.name, str):
        raise InputError(f"federation: expected a name, got {shown(federation.name)}")
    where = _where(federation)
    _whole(federation.classes, "classes", where, 1)
    x = features(federation.x, where, named)
    y = labels(federation.y, where, federation.classes, named)
    if len(x) != len(y):
        raise InputError(f"{where}: {len(x)} examples but {len(y)} labels")
    _refuse_kind(federation.y, "labels", where, "iu")
    if np.ndim(federation.groups) != 1 or not len(federation.groups):
        raise InputError(f"{where}: no clients; expected the group of each, -1 where it is not known")
    clients = len(np.asarray(federation.groups))
    if not isinstance(federation.ids, Ids):
        raise InputError(f"{where}: expected ids to be jcfl.types.Ids, got {shown(federation.ids)}")
    if federation.clients.shape != (clients,):
        raise InputError(f"{where}: {len(federation.clients)} ids for {clients} clients; expected one for each")
    for what, least, kind in (("groups", -1, "iu"), ("held_out", 0, "b"), ("arrive", 0, "iu"), ("depart", 0, "iu")):
        if np.shape(getattr(federation, what)) != (clients,):
            raise InputError(f"{where}: {what} is not one value for each of {clients} clients")
        _refuse_kind(getattr(federation, what), what, where, kind)
        whole_numbers(getattr(federation, what), what, where, (least, CLASSES), federation.called)
    if not (isinstance(federation.hostile, tuple) and not federation.hostile):
        if np.shape(federation.hostile) != (clients,):
            raise InputError(f"{where}: hostile is not one value for each of {clients} clients")
        _refuse_kind(federation.hostile, "hostile", where, "b")
    if not (isinstance(federation.drift, tuple) and not federation.drift):
        _refuse_drift(federation.drift, clients, where)
    for what in ("mean", "std"):
        _refuse_scale(getattr(federation, what), what, where, x.shape[-1])
    for name in federation.splits:
        rows(federation, name)
    return federation


def sound(made: Any, where: str) -> Partition | Draws:
    """What a scenario returned, unchanged, if its arrays have the types and lengths that the next steps rely on.

    With 0 and 1 in `trains`, `~trains` would select training examples too. Labels that are not whole would be rounded.

    Raises:
        InputError: it is neither a `Partition` nor `Draws`, or one of its arrays has another type or length.
    """
    if not isinstance(made, Partition | Draws):
        raise InputError(f"{where}: expected a jcfl.data.partition.Partition, got {shown(made)}")
    for what, kinds in PARTITIONED.items():
        values = getattr(made, what, None)  # clients that draw have no `trains` and no `owner`
        if values is None and isinstance(made, Draws):
            continue
        if not isinstance(values, np.ndarray):
            raise InputError(f"{where}: expected {what} to be an array of NumPy, got {shown(values)}")
        if kinds:
            _refuse_kind(values, what, where, kinds)
        if what == "groups" and (values.ndim != 1 or not len(values)):
            raise InputError(f"{where}: groups has the shape {values.shape}; expected one for each client")
        if what != "groups" and len(values) != len(made.x):
            raise InputError(f"{where}: {len(made.x)} examples, but {what} has {len(values)}; expected one for each")
    return made


def _refuse_other(federation: Any) -> None:
    """Refuse what is no federation."""
    if not isinstance(federation, Federation):
        raise InputError(f"expected a federation, as jcfl.data.from_clients makes, got {shown(federation)}")


def _whole(value: Any, what: str, where: str, least: int) -> None:
    """Refuse what is no whole number from `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= CLASSES:
        raise InputError(f"{where}: expected {what} to be a whole number from {least} to {CLASSES}, got {shown(value)}")


def _refuse_kind(values: Any, what: str, where: str, kinds: str) -> None:
    """Refuse arrays of another kind of numbers: JAX would take whole numbers in floats for no indices."""
    if np.asarray(values).dtype.kind not in kinds:
        expected = "true or false" if kinds == "b" else "whole numbers"
        raise InputError(f"{where}: {what} are {np.asarray(values).dtype}; expected {expected}")


def _refuse_drift(drift: Any, clients: int, where: str) -> None:
    """Refuse data that do not change hands from round to round: a client without data, or with those of two."""
    if not isinstance(drift, Drift):
        raise InputError(f"{where}: expected drift to have rounds and holds, got {shown(drift)}")
    rounds, holds = np.asarray(drift.rounds), np.asarray(drift.holds)
    if rounds.ndim != 1 or rounds.dtype.kind not in "iu" or (np.diff(rounds, prepend=0) <= 0).any():
        raise InputError(f"{where}: expected drift in whole, ascending rounds from 1, got {shown(rounds)}")
    every = np.arange(clients)
    fits = holds.shape == (len(rounds) + 1, clients) and holds.dtype.kind in "iu"
    if not fits or (np.sort(holds) != every).any() or (holds[0] != every).any():
        raise InputError(
            f"{where}: expected drift to hold all of {clients} clients once in each of {len(rounds) + 1} rows, and in "
            f"their order in the first, got the shape {holds.shape}"
        )


def _refuse_scale(values: Any, what: str, where: str, channels: int) -> None:
    """Refuse a mean or a deviation of pixels that is not one finite number, or one for each channel."""
    found = array(values, what, where)
    fits = isinstance(values, tuple) and found.dtype.kind in "iuf" and found.shape in ((1,), (channels,))
    sound = fits and np.isfinite(found).all()
    if not sound or (what == "std" and (found <= 0).any()):
        raise InputError(f"{where}: {what} is {shown(values)}; expected a tuple of one number, or of {channels}")


def rows(federation: Federation, half: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows that clients own, in the clients' order `[r]`, and how many each of them owns `[m]`.

    Raises:
        InputError: there is no such split; a client's rows are not in the pool, or are not where the client's start and
            size say.
    """
    _refuse_other(federation)
    if half not in federation.splits:
        raise unknown("split of the federation:", half, federation.splits)
    split: Split = federation.splits[half]
    clients, where = len(np.asarray(federation.groups)), f"{_where(federation)} ({half})"
    if not isinstance(split, Split):
        raise InputError(f"{where}: expected rows, start, size and width, got {shown(split)}")
    _whole(split.width, "width", where, 0)
    start, size = (
        whole_numbers(part, "size", where, (0, 2**31 - 1), federation.called) for part in (split.start, split.size)
    )
    if start.shape != (clients,) or size.shape != (clients,):
        raise InputError(f"{where}: rows of {len(size)} clients; expected those of {clients}")
    owned = array(split.rows, "rows", where)
    for what in ("rows", "start", "size"):
        _refuse_kind(getattr(split, what), what, where, "iu")
    if owned.ndim != 1:
        raise InputError(f"{where}: rows have the shape {owned.shape}; expected those of all clients in turn, (r,)")
    beyond = np.flatnonzero((start + size > len(owned)) | (size > split.width))
    if len(beyond):
        i = beyond[0]
        span = f"{start[i]} to {start[i] + size[i]} of {len(owned)}"
        who = federation.called(i)
        raise InputError(f"{where}: {who} has the rows {span}; expected at most {split.width}, all of them there")
    place = np.repeat(start - np.cumsum(size) + size, size) + np.arange(size.sum())  # of every client's rows in turn
    client = np.repeat(np.arange(clients), size)
    last = len(np.asarray(federation.y)) - 1
    return whole_numbers(owned[place], "row", where, (0, last), lambda i: federation.called(client[i])), size


def _where(federation: Federation) -> str:
    return f"federation {federation.name!r}"


def _whose(federation: Federation, row: int) -> str:
    """The client that owns a row, in words; nothing where no client does."""
    for split in federation.splits.values():
        start, size = np.asarray(split.start), np.asarray(split.size)
        for place in np.flatnonzero(np.asarray(split.rows) == row):
            for client in np.flatnonzero((start <= place) & (place < start + size)):
                return f" of {federation.called(client)}"
    return ""
