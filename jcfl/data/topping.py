"""Clients with too few examples get some from the largest clients of their own group."""

import numpy as np

from jcfl.data.partition import Partition
from jcfl.errors import InputError


def topped_up(rng: np.random.Generator, partition: Partition, least: tuple[int, int]) -> Partition:
    """The partition in which every client has at least `least` (training, test) examples.

    In each group the largest clients are cut to a common size, so that the smallest get enough. The examples that they
    give away are drawn at random. Clients whose group is not known count as one group.

    Deviations:
        The code of Ma (2023) replaces small clients by exact copies of others, see `jcfl.data.duplicates`. Here no
        example has two owners.

    Raises:
        InputError: a group has fewer examples than its clients need together.
    """
    owner = partition.owner.copy()
    for kind, half, number in zip(("training", "test"), (partition.trains, ~partition.trains), least, strict=True):
        owned = np.flatnonzero(half & (owner >= 0))
        size = np.bincount(owner[owned], minlength=len(partition.groups))
        for group in np.unique(partition.groups[size < number]):
            clients = np.flatnonzero(partition.groups == group)
            if size[clients].sum() < number * len(clients):
                raise InputError(_shortage(group, kind, len(clients), int(size[clients].sum()), number))
            wanted = np.maximum(number - size[clients], 0)
            keep = np.full(len(size), np.iinfo(np.int64).max)
            keep[clients] = levelled_sizes(size[clients], int(wanted.sum()))
            owner[_given_rows(rng, owned, owner, keep)] = np.repeat(clients, wanted)
    return partition._replace(owner=owner)


def levelled_sizes(size: np.ndarray, amount: int) -> np.ndarray:
    """Sizes after `amount` examples were taken, each from the client that was the largest then. `[m]` int"""
    low, high = 0, int(size.max())  # bounds of the highest level at which enough examples are freed
    while low < high:
        middle = (low + high + 1) // 2
        if np.maximum(size - middle, 0).sum() >= amount:
            low = middle
        else:
            high = middle - 1
    level = np.minimum(size, low)
    spare = int((size - level).sum()) - amount
    level[np.flatnonzero(size > low)[:spare]] += 1
    return level


def _given_rows(rng: np.random.Generator, rows: np.ndarray, owner: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """The rows that owners give away, chosen at random, if client i keeps `keep[i]` of its own."""
    rows = rng.permutation(rows)
    rows = rows[np.argsort(owner[rows], kind="stable")]
    _, first, size = np.unique(owner[rows], return_index=True, return_counts=True)
    rank = np.arange(len(rows)) - np.repeat(first, size)
    return rows[rank >= keep[owner[rows]]]


def _shortage(group: int, kind: str, clients: int, examples: int, least: int) -> str:
    whose = f"group {group} has" if group >= 0 else "there are"
    return (
        f"clients: {whose} {clients} clients and {examples} {kind} examples, fewer than {least} each "
        f"({clients * least}): use fewer clients or a smaller min_examples"
    )
