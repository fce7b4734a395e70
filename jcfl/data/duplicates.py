"""The partitions of Ma's released code (2023), in which clients with few test examples are exact copies of others."""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from jcfl.data.dataset import Dataset
from jcfl.data.partition import NOBODY, Draws, packed, pool
from jcfl.errors import InputError

FEWEST = 5
"""A client with so many test examples or fewer is replaced by a copy of another one."""

FLOOR = 0.3
"""Groups are drawn again if one has this share of the test examples of an average group, or less."""

DRAWS = 1000
"""How often a partition is drawn before a request is refused; the code of Ma draws without end."""

Duplicates = Annotated[
    bool,
    Field(description="partition as the code of Ma (2023): some clients are exact copies of others"),
]


ENOUGH = 20
"""After so many draws a request is refused if at twice their pace all draws would not be enough."""


class Lot(NamedTuple):
    """The rows of a client, or of a group."""

    train: np.ndarray  # [n] int
    test: np.ndarray  # [t] int


Shares = Callable[[np.random.Generator, int, int], np.ndarray]
"""`shares(rng, classes, clients)` draws each client's share of each class. [c, m]"""


def dirichlet_shares(alpha: float) -> Shares:
    """Each class is spread by Dir(α), in whole percents that are rounded down; what is left over has no owner."""
    return lambda rng, classes, clients: np.floor(rng.dirichlet(np.full(clients, alpha), classes) * 100) / 100


def class_shares(number: int) -> Shares:
    """Each client has so many random classes, or all of fewer, and each class is divided equally among its holders."""

    def shares(rng: np.random.Generator, classes: int, clients: int) -> np.ndarray:
        holds = np.zeros((classes, clients))
        for client in range(clients):
            holds[rng.choice(classes, min(number, classes), replace=False), client] = 1
        return holds / (holds.sum(1, keepdims=True) + 1e-10)  # as that code divides, so that halves are rounded down

    return shares


def with_duplicates(rng: np.random.Generator, dataset: Dataset, clients: int, shares: Shares) -> Draws:
    """The clients of a client-wise partition, as Ma's code draws them.

    A lot is a client's training and test examples. Each class is cut in the dataset's own order, in proportions that
    are the same for training and test examples, each number rounded to the nearest. Lots with few test examples are
    dropped. If only half of the clients or fewer then have one, further lots are drawn from the whole dataset again.
    Clients without a lot get exact copies of others' lots, drawn at random.

    Deviations:
        The distributions are those of Ma's code, but not its random numbers. A lot without training examples is dropped
        too; the code stops at it. If lots were drawn again, those beyond the number of clients are dropped in each
        group, where the code moves them into the places of the groups that follow. A group with fewer classes than its
        clients ask for gives each client all of them; the code stops.

    Raises:
        InputError: too few clients get enough test examples.
    """
    return _drawn(dataset, _lots(rng, dataset, _whole(dataset), clients, shares), np.full(clients, NOBODY))


def grouped_with_duplicates(
    rng: np.random.Generator, dataset: Dataset, groups: np.ndarray, of_groups: Shares, of_clients: Shares
) -> Draws:
    """The clients of a cluster-wise partition: the dataset is partitioned among groups, then each group's lot.

    Args:
        groups: the group of every client; the clients of a group are next to each other. [m] int

    Raises:
        InputError: no draw gave every group enough test examples, or too few clients of a group get enough.
    """
    sizes, whole = np.bincount(groups), _whole(dataset)
    least = FLOOR * len(whole.test) / len(sizes)
    for _ in range(DRAWS):
        parts = _lots(rng, dataset, whole, len(sizes), of_groups)
        if min(len(part.test) for part in parts) > least:
            break
    else:
        raise InputError(
            f"duplicates: {DRAWS} draws gave no shares where all {len(sizes)} groups of {dataset.name} have more than "
            f"{least:g} test examples: use fewer groups"
        )
    lots = [lot for part, size in zip(parts, sizes, strict=True) for lot in _lots(rng, dataset, part, size, of_clients)]
    return _drawn(dataset, lots, groups)


def _whole(dataset: Dataset) -> Lot:
    """The rows of a dataset's pool, whose training examples come first."""
    number = len(dataset.train)
    return Lot(np.arange(number), np.arange(number, number + len(dataset.test)))


def _lots(rng: np.random.Generator, dataset: Dataset, whole: Lot, clients: int, shares: Shares) -> list[Lot]:
    """The lots that clients get of a whole, see `with_duplicates`."""
    if clients == 1:
        return [whole]
    y = np.concatenate([dataset.train.y, dataset.test.y])
    labels = np.unique(y[whole.train])
    found: list[Lot] = []
    for draw in range(1, DRAWS + 1):
        drawn = shares(rng, len(labels), clients)
        cuts = (_cut(rows, [rows[y[rows] == label] for label in labels], drawn) for rows in whole)
        found += [Lot(*both) for both in zip(*cuts, strict=True) if len(both[1]) > FEWEST and len(both[0])]
        if len(found) > clients // 2:
            break
        if draw == DRAWS or (draw >= ENOUGH and 2 * len(found) * DRAWS <= clients // 2 * draw):
            raise InputError(
                f"duplicates: {draw} draws gave {len(found)} of {clients} clients more than {FEWEST} of "
                f"{len(whole.test)} test examples: use fewer clients"
            )
    found = found[:clients]
    while len(found) < clients:
        found += [found[i] for i in np.unique(rng.integers(len(found), size=clients - len(found)))]
    return found


def _cut(rows: np.ndarray, of_class: Sequence[np.ndarray], shares: np.ndarray) -> list[np.ndarray]:
    """Each client's rows: of every class the rows that follow those of the client before, in the dataset's order."""
    clients = np.arange(shares.shape[1])
    sizes = (np.rint(len(own) * share).astype(int) for own, share in zip(of_class, shares, strict=True))
    owners = [np.repeat(clients, size)[: len(own)] for own, size in zip(of_class, sizes, strict=True)]
    owner = np.concatenate([clients[:0], *owners])
    taken = np.concatenate([rows[:0], *(own[: len(part)] for own, part in zip(of_class, owners, strict=True))])
    ends = np.cumsum(np.bincount(owner, minlength=len(clients)))
    return np.split(taken[owner.argsort(kind="stable")], ends[:-1])


def _drawn(dataset: Dataset, lots: Sequence[Lot], groups: np.ndarray) -> Draws:
    """Clients with these lots of the dataset's pool, of which only the rows that somebody has are kept."""
    examples = pool(dataset)
    halves = [np.concatenate(half) for half in zip(*lots, strict=True)]
    kept, place = np.unique(np.concatenate(halves), return_inverse=True)
    train, test = (
        packed(rows, np.array([len(one) for one in half]))
        for rows, half in zip(np.split(place, [len(halves[0])]), zip(*lots, strict=True), strict=True)
    )
    return Draws(examples.x[kept], examples.y[kept], train, test, groups, examples.source[kept])
