"""Clients with the data of two groups: each gives a share of its examples to a client of another group."""

from dataclasses import replace
from typing import Any

import numpy as np

from jcfl.data.drift import group_by_group, told_apart
from jcfl.data.partition import packed
from jcfl.errors import InputError
from jcfl.types import Federation, Split


def with_mixing(rng: np.random.Generator, federation: Federation, share: float) -> Federation:
    """The federation in which every client gives a share of its examples to a client of another true group.

    Every client also gets such a share, so it has examples of two groups, to train and to test on. Of clients of
    different sizes, the smaller one's share is given, and less than half of its examples. So its true group stays the
    one that most of its examples are of. Without known groups every client counts as a group of its own.

    Args:
        rng: chooses who gives to whom, and which examples.
        federation: with NumPy leaves, each client's rows after those of the client before.
        share: of the training examples of the giver or of the receiver, whichever has fewer, and of their test
            examples, rounded; in [0, 1/2).

    Raises:
        InputError: more than half of the clients are of one group, so some could give to nobody.
    """
    if not share:
        return federation
    receiver = receivers(rng, np.asarray(federation.groups))
    splits: dict[str, Any] = {name: _given(rng, split, receiver, share) for name, split in federation.splits.items()}
    return replace(federation, **splits)


def receivers(rng: np.random.Generator, groups: np.ndarray) -> np.ndarray:
    """A client of another group for every client, each client once. [m] int

    The clients are put in the order of their groups. Each one gives to the client that is as many places after it as
    the largest group has members, so never to one of its own group.
    """
    order, size = group_by_group(rng, told_apart(groups))
    if 2 * size.max() > len(groups):
        raise InputError(
            f"mixing: {size.max()} of {len(groups)} clients are of one true group; expected at most half of them, so "
            "that every client finds one of another group"
        )
    found = np.empty_like(order)
    found[order] = np.roll(order, -size.max())
    return found


def _given(rng: np.random.Generator, split: Split, receiver: np.ndarray, share: float) -> Split:
    """A split after every client gave a share of its rows, drawn at random."""
    rows, size = np.asarray(split.rows), np.asarray(split.size)
    owner = np.repeat(np.arange(len(size)), size)
    rank = np.empty(len(rows), int)  # of a row among its client's, in random order
    rank[np.lexsort((rng.random(len(rows)), owner))] = np.arange(len(rows)) - np.repeat(np.cumsum(size) - size, size)
    least = np.minimum(size, size[receiver])
    given = np.minimum(np.rint(share * least), np.maximum(least - 1, 0) // 2)
    owner = np.where(rank < given[owner], receiver[owner], owner)
    return packed(rows[np.argsort(owner, kind="stable")], np.bincount(owner, minlength=len(size)))
