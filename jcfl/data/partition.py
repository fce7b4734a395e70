"""Who owns which example: the noun every scenario returns, and the few steps they all share.

Ownership is one number per example, its client, so an example can never belong to two clients and storage does not
depend on how uneven the clients are.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from jcfl.data.dataset import Dataset
from jcfl.errors import InputError

NOBODY = -1
"""The owner of an example that no client got, and the group of a client whose true group is not known."""

Count = Annotated[int, Field(ge=1, description="number of clients")]
Sizes = Annotated[
    Literal["equal", "uneven"] | tuple[Annotated[int, Field(ge=1)], ...],
    Field(description="clients per group: equal, uneven (group i in proportion to 1/(i+1)), or the numbers themselves"),
]
Least = Annotated[
    tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]],
    Field(description="the fewest training and test examples a client may have"),
]


class Pool(NamedTuple):
    """Examples to be shared out; a group's own version of the data is a part of it."""

    x: np.ndarray  # [N, ...]
    y: np.ndarray  # [N]
    trains: np.ndarray  # [N] bool, for training; the others are for testing
    part: np.ndarray  # [N] int, the version of the data an example belongs to


class Partition(NamedTuple):
    """What a scenario returns: examples, their owners, and the true group of every client."""

    x: np.ndarray  # [N, ...]
    y: np.ndarray  # [N]
    trains: np.ndarray  # [N] bool
    owner: np.ndarray  # [N] int, the client that owns an example, -1 for nobody
    groups: np.ndarray  # [m] int, -1 where not known


class Draws(NamedTuple):
    """What a scenario returns whose clients draw from a pool they share, so that an example may be several clients'."""

    x: np.ndarray  # [N, ...]
    y: np.ndarray  # [N]
    train: np.ndarray  # [m, n] int32, every client's training examples
    test: np.ndarray  # [m, t] int32
    groups: np.ndarray  # [m] int, -1 where not known


def pool(dataset: Dataset) -> Pool:
    """All examples of a dataset, training examples first, in one part."""
    return copied(dataset, [_same])


def copied(dataset: Dataset, versions: Sequence[Callable[[np.ndarray], np.ndarray]]) -> Pool:
    """One copy of the whole dataset for every version of its inputs; version p is part p.

    Args:
        dataset: the dataset.
        versions: functions of inputs [n, ...] that keep their shape and dtype.
    """
    halves = (dataset.train, dataset.test)
    many, each = len(versions), sum(len(half) for half in halves)
    x = np.empty((many, each, *dataset.shape), dataset.train.x.dtype)  # filled in place: a pool is held only once
    for part, version in enumerate(versions):
        x[part, : len(dataset.train)] = version(dataset.train.x)
        x[part, len(dataset.train) :] = version(dataset.test.x)
    y = np.tile(np.concatenate([half.y for half in halves]), many)
    trains = np.tile(np.arange(each) < len(dataset.train), many)
    return Pool(x.reshape(many * each, *dataset.shape), y, trains, np.repeat(np.arange(many), each))


def shared(rng: np.random.Generator, dataset: Dataset, versions: Sequence[Callable[[np.ndarray], np.ndarray]]) -> Pool:
    """One random equal share of the dataset for every version of its inputs; version p is part p."""
    whole = pool(dataset)
    part = random_owners(rng, whole.part, whole.trains, np.ones((1, len(versions))))
    for index, version in enumerate(versions):
        whole.x[part == index] = version(whole.x[part == index])
    return whole._replace(part=part)


def client_groups(clients: int, groups: int, sizes: Literal["equal", "uneven"] | Sequence[int]) -> np.ndarray:
    """The group of every client, each group's clients side by side, `[m]`.

    Uneven sizes are eq. 2 of Bhattacharya and Aridi: ⌊m / ((i+1) Σ_j 1/(j+1))⌋ for group i.

    Deviations:
        Eq. 2 leaves clients over; they go to the largest group.

    Raises:
        InputError: a group would be without clients, or given sizes do not add up.
    """
    if sizes == "equal":
        numbers = clients // groups + (np.arange(groups) < clients % groups)
    elif sizes == "uneven":
        rank = np.arange(groups) + 1
        numbers = np.floor(clients / (rank * np.sum(1 / rank)) + 1e-9).astype(int)
        numbers[0] += clients - numbers.sum()
    else:
        numbers = np.asarray(sizes, int)
        if len(numbers) != groups or numbers.sum() != clients:
            raise InputError(
                f"sizes: expected {groups} numbers that add up to {clients} clients, "
                f"got {len(numbers)} that add up to {numbers.sum()}"
            )
    if numbers.min() < 1:
        raise InputError(f"clients: {clients} are too few for {groups} groups of sizes {sizes!r}, one would be empty")
    return np.repeat(np.arange(groups), numbers)


def group_shares(groups: np.ndarray) -> np.ndarray:
    """Equal shares of part g for every client of group g, as `random_owners` takes them, `[k, m]`."""
    return (np.arange(groups.max() + 1)[:, None] == groups).astype(float)


def random_owners(rng: np.random.Generator, cell: np.ndarray, trains: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Share out every cell's examples at random, its training and its test examples in the same proportions.

    A client's number of examples is its exact share rounded up or down. What is rounded up is drawn at random, so a
    client that is unlucky in one cell is not in all of them.

    Args:
        rng: the source of chance.
        cell: [N] the cell (a class, a part) of every example; those of cell -1 go to nobody.
        trains: [N] bool, whether an example is for training.
        shares: [cells, m] each client's share of each cell, up to a factor per cell; a row of zeros gives the cell
            to nobody.

    Returns:
        [N] int32, the owner of every example.
    """
    owner = np.full(len(cell), NOBODY, np.int32)
    for index, row in enumerate(shares):
        edges = np.cumsum(row)
        if edges[-1] == 0:
            continue
        for half in (trains, ~trains):
            found = rng.permutation(np.flatnonzero((cell == index) & half))
            points = (np.arange(len(found)) + rng.random()) / max(len(found), 1)
            points = np.minimum(points, np.nextafter(1.0, 0.0))  # rounding must not pass the last client
            owner[found] = np.searchsorted(edges / edges[-1], points, side="right")
    return owner


def _same(x: np.ndarray) -> np.ndarray:
    return x
