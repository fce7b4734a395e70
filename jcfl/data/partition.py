"""The partition of examples among clients, which every scenario returns, and the steps that scenarios share.

In a `Partition` each example has one number, its client. An example can therefore never belong to two clients, and the
storage does not depend on the sizes of the clients. In `Draws` clients have lists of rows, so it can.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from jcfl.data.dataset import CLASSES as LARGEST
from jcfl.data.dataset import Dataset
from jcfl.errors import InputError, refuse_beyond_memory
from jcfl.types import Split

NOBODY = -1
"""The owner of an example without a client, and the group of a client whose true group is not known."""

ITSELF = np.zeros(0, np.int32)
"""The `source` of a pool in which no example is a copy of another."""

TABLE = 8
"""Bytes of a number in the tables by which examples are shared out."""

Count = Annotated[int, Field(ge=1, description="number of clients")]
Sizes = Annotated[
    Literal["equal", "uneven"] | tuple[Annotated[int, Field(ge=1)], ...],
    Field(description="clients per group: equal, uneven (group i in proportion to 1/(i+1)), or the numbers themselves"),
]


def two_counts(value: Any, check: Callable[[Any], Any]) -> Any:
    """The value, checked; an error names both numbers, and not the places that they have in a list."""
    try:
        return check(value)
    except ValidationError:
        told = "expected two whole numbers: of training examples, 1 or more, and of test examples, 0 or more"
        raise PydanticCustomError("two_counts", told) from None


Counts = Annotated[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]], WrapValidator(two_counts)]
"""Numbers of training and of test examples."""

Least = Annotated[Counts, Field(description="smallest number of training and test examples of a client")]


class Pool(NamedTuple):
    """Examples that are to be divided among clients. Each version of the data is a part of the pool."""

    x: np.ndarray  # [N, ...]
    y: np.ndarray  # [N]
    trains: np.ndarray  # [N] bool, for training; the others are for testing
    part: np.ndarray  # [N] int, the version of the data an example belongs to
    source: np.ndarray = ITSELF  # [N] the dataset's example that each is a copy of


class Partition(NamedTuple):
    """The result of a scenario: examples, their owners, and the true group of every client."""

    x: np.ndarray  # [N, ...]
    y: np.ndarray  # [N]
    trains: np.ndarray  # [N] bool
    owner: np.ndarray  # [N] int, the client that owns an example, -1 for nobody
    groups: np.ndarray  # [m] int, -1 where not known
    source: np.ndarray = ITSELF  # [N] the dataset's example that each is a copy of
    ids: np.ndarray = ITSELF  # [m] what the dataset calls the clients; [0] where it does not


class Draws(NamedTuple):
    """The result of a scenario whose clients draw from a shared pool, so that several may have the same example."""

    x: np.ndarray  # [N, ...]
    y: np.ndarray  # [N]
    train: Split
    test: Split
    groups: np.ndarray  # [m] int, -1 where not known
    source: np.ndarray = ITSELF  # [N] the dataset's example that each is a copy of


def packed(rows: np.ndarray, sizes: np.ndarray) -> Split:
    """A split whose `rows` [r] belong to the clients in turn, `sizes` [m] of them to each."""
    if len(rows) > LARGEST:
        raise InputError(f"clients own {len(rows)} examples together; at most {LARGEST} can be numbered")
    leaves: Any = (leaf.astype(np.int32) for leaf in (rows, np.cumsum(sizes) - sizes, sizes))
    return Split(*leaves, width=int(sizes.max()))


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
    need = many * each * (math.prod(dataset.shape) * dataset.train.x.dtype.itemsize + TABLE)
    refuse_beyond_memory(f"{many} copies of {dataset.name}", need, "use fewer groups")
    x = np.empty((many, each, *dataset.shape), dataset.train.x.dtype)  # filled in place: a pool is held only once
    for part, version in enumerate(versions):
        x[part, : len(dataset.train)] = version(dataset.train.x)
        x[part, len(dataset.train) :] = version(dataset.test.x)
    y = np.tile(np.concatenate([half.y for half in halves]), many)
    trains = np.tile(np.arange(each) < len(dataset.train), many)
    source = np.tile(np.arange(each, dtype=np.int32), many)
    return Pool(x.reshape(many * each, *dataset.shape), y, trains, np.repeat(np.arange(many), each), source)


def divided(rng: np.random.Generator, dataset: Dataset, versions: Sequence[Callable[[np.ndarray], np.ndarray]]) -> Pool:
    """One random equal share of the dataset for every version of its inputs; version p is part p."""
    whole = pool(dataset)
    part = random_owners(rng, whole.part, whole.trains, np.ones((1, len(versions))))
    for index, version in enumerate(versions):
        whole.x[part == index] = version(whole.x[part == index])
    return whole._replace(part=part)


def client_groups(clients: int, groups: int, sizes: Literal["equal", "uneven"] | Sequence[int]) -> np.ndarray:
    """The group of every client; the clients of a group are next to each other. `[m]` int

    Uneven sizes are eq. 2 of Bhattacharya and Aridi: ⌊m / ((i+1) Σ_j 1/(j+1))⌋ for group i.

    Deviations:
        The sizes of eq. 2 add up to fewer clients than there are; the others go to the largest group.

    Raises:
        InputError: a group would have no clients, given sizes do not add up to the number of clients, or there are more
            clients than fit the memory.
    """
    if groups > clients and isinstance(sizes, str):
        raise InputError(f"clients: {clients} are too few for {groups} groups of sizes {sizes!r}, one would be empty")
    refuse_beyond_memory(f"{groups} groups of {clients} clients", 2 * TABLE * groups * clients, "use fewer of either")
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
    """Equal shares of part g for every client of group g, as `random_owners` takes them. `[k, m]` float"""
    return (np.arange(groups.max() + 1)[:, None] == groups).astype(float)


def random_owners(rng: np.random.Generator, cell: np.ndarray, trains: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Random owners for the examples of every cell; training and test examples are divided in the same proportions.

    A client gets its exact share of a cell, rounded up or down. Which shares are rounded up is random, so that no
    client loses in all cells.

    Args:
        rng: the random generator.
        cell: the cell (a class, a part) of every example; examples of cell -1 get no owner. [N] int
        trains: whether an example is for training. [N] bool
        shares: each client's share of each cell, up to a factor per cell; a cell whose row is zero gets no owners.
            [cells, m] float

    Returns:
        the owner of every example, -1 for none. [N] int32
    """
    owner, before, drawn = np.full(len(cell), NOBODY, np.int32), 0, shares.sum(1) > 0
    by_cell = [half[np.argsort(cell[half], kind="stable")] for half in map(np.flatnonzero, (trains, ~trains))]
    cells = [cell[half] for half in by_cell]
    for index in np.unique(cell[(cell >= 0) & (cell < len(shares))]):
        rng.random(2 * np.count_nonzero(drawn[before:index]))  # cells without examples also take a number for each half
        before = index + 1
        if not drawn[index]:
            continue
        edges = np.cumsum(shares[index])
        for half, ordered in zip(by_cell, cells, strict=True):
            found = rng.permutation(half[slice(*np.searchsorted(ordered, (index, index + 1)))])
            points = (np.arange(len(found)) + rng.random()) / max(len(found), 1)
            points = np.minimum(points, np.nextafter(1.0, 0.0))  # rounding must not go beyond the last client
            owner[found] = np.searchsorted(edges / edges[-1], points, side="right")
    return owner


def _same(x: np.ndarray) -> np.ndarray:
    return x
