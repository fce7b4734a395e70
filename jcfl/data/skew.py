"""Scenarios of label skew: the proportions of the classes differ between clients or groups."""

from functools import partial
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from jcfl.data.dataset import Dataset
from jcfl.data.duplicates import (
    Duplicates,
    class_shares,
    dirichlet_shares,
    grouped_with_duplicates,
    with_duplicates,
)
from jcfl.data.partition import (
    NOBODY,
    Count,
    Draws,
    Least,
    Partition,
    Pool,
    Sizes,
    client_groups,
    copied,
    group_shares,
    pool,
    random_owners,
)
from jcfl.data.rotation import rotated_images, tell_of_equal_angles
from jcfl.errors import InputError
from jcfl.registry import register

LabelSets = Annotated[
    tuple[tuple[Annotated[int, Field(ge=0)], ...], ...], Field(min_length=1, description="the labels of every group")
]
Groups = Annotated[int, Field(ge=1, description="number of groups")]
Alpha = Annotated[
    float, Field(gt=0, description="concentration of the Dirichlet distribution; a small value gives uneven shares")
]

FOUR_SETS = ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))
"""The label sets of Pathological MNIST in Zeng et al."""

BLOCK = 2**17
"""How many random numbers are drawn at a time to share out examples among groups."""

DRAWS = 1000
"""How often group shares are drawn before a request is refused."""


@register("scenario", "pathological")
def pathological(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 400,
    label_sets: LabelSets = FOUR_SETS,
    tests: Annotated[
        Literal["own", "all"], Field(description="test examples of the client's own labels, or of all labels")
    ] = "own",
    balanced: Annotated[
        bool, Field(description="equally many examples of every label of every group; the others are left out")
    ] = False,
    sizes: Sizes = "equal",
) -> Partition:
    """Groups with different label sets, by default {0,1,2}, {3,4}, {5,6} and {7,8,9} (Pathological MNIST).

    The examples of a label that is in several sets are distributed to them at random, so that a group has fewer of it
    than of a label that is in no other set. With `balanced` it has equally many of both, so that two groups differ only
    by the labels that they do not share (Zeng et al., Fig. 2a). With `tests="all"` a group's model is also tested on
    labels without training examples (Zeng et al., Table 3).

    Raises:
        InputError: a label that does not exist, or an empty set.
    """
    groups = client_groups(clients, len(label_sets), sizes)
    return _own_labels(rng, pool(dataset), dataset.classes, label_sets, groups, tests == "all", balanced)


@register("scenario", "selected_classes")
def selected_classes(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 10,
    groups: Groups = 2,
    sizes: Sizes = "equal",
    min_examples: Least = (10, 2),
) -> Partition:
    """Groups with contiguous shares of the labels, c/k each (Bhattacharya and Aridi, eq. 5).

    If k does not divide c, the first groups have one label more. Of more groups than labels each has one, and group g
    shares the examples of label g with group g + c.

    Raises:
        InputError: of more groups than labels, those with one label have more clients than it has examples for.
    """
    group = client_groups(clients, groups, sizes)  # first, because it refuses what would take long
    if groups > dataset.classes:
        _refuse_scarce_labels(dataset, group % dataset.classes, min_examples)
    classes = np.resize(np.arange(dataset.classes), max(groups, dataset.classes))
    label_sets = tuple(tuple(labels) for labels in np.array_split(classes, groups))
    return _own_labels(rng, pool(dataset), dataset.classes, label_sets, group)


@register("scenario", "rotated_pathological")
def rotated_pathological(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 400,
    angles: Annotated[tuple[float, ...], Field(min_length=1, description="degrees, anticlockwise")] = (0, 180),
    label_sets: LabelSets = FOUR_SETS,
    sizes: Sizes = "equal",
) -> Partition:
    """Every angle with every label set: 2 x 4 = 8 groups (Zeng et al., Fig. 8).

    Group a * len(label_sets) + s holds label set s of a copy of the data rotated by angle a.

    Raises:
        InputError: a label that does not exist, or an empty set; images that cannot be rotated.
    """
    tell_of_equal_angles("rotated_pathological", angles)
    turned = copied(dataset, [partial(rotated_images, angle=angle) for angle in angles])
    groups = client_groups(clients, len(angles) * len(label_sets), sizes)
    return _own_labels(rng, turned, dataset.classes, label_sets, groups)


@register("scenario", "dirichlet")
def dirichlet(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 200,
    alpha: Alpha = 0.1,
    per: Annotated[
        Literal["class", "client"],
        Field(description="class: each is spread over the clients by Dir(α); client: each draws classes by Dir(αp)"),
    ] = "class",
    duplicates: Duplicates = False,
) -> Partition | Draws:
    """Each class spread over the clients by proportions drawn from Dir(α) (Ma, A.2, client-wise, α = 0.1).

    With `per="client"`, each client draws class proportions from Dir(αp), where p are those of the dataset, and all
    clients have equally many examples (Hsu et al. 2019, whom Ma cites). If a class has no examples left, clients draw
    from the other classes.

    Raises:
        InputError: `duplicates` together with `per="client"`, or too few clients of that partition get enough examples.
    """
    if duplicates and per == "client":
        raise InputError("duplicates: the code of Ma spreads each class over the clients; leave per='client' out")
    if duplicates:
        return with_duplicates(rng, dataset, clients, dirichlet_shares(alpha))
    if per == "class":
        shares = rng.dirichlet(np.full(clients, alpha), dataset.classes)  # [c, m]
    else:
        shares = _own_draws(rng, np.bincount(dataset.train.y, minlength=dataset.classes), clients, alpha)
    return _by_class(rng, dataset, shares, np.full(clients, NOBODY))


@register("scenario", "grouped_dirichlet")
def grouped_dirichlet(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 200,
    groups: Groups = 10,
    alpha_group: Alpha = 0.1,
    alpha_client: Alpha = 10.0,
    sizes: Sizes = "equal",
    duplicates: Duplicates = False,
    min_examples: Least = (10, 2),
) -> Partition | Draws:
    """Classes spread over groups by Dir(0.1), then over a group's clients by Dir(10) (Ma, A.2, cluster-wise).

    Group shares are drawn again if a group would have fewer than `min_examples` for each of its clients.

    Raises:
        InputError: none of many draws gave every group enough examples.
    """
    group = client_groups(clients, groups, sizes)
    if duplicates:
        return grouped_with_duplicates(
            rng, dataset, group, dirichlet_shares(alpha_group), dirichlet_shares(alpha_client)
        )
    need = np.bincount(group)[:, None] * np.asarray(min_examples)  # [k, 2]
    of_group = _workable_shares(rng, dataset, need, alpha_group)  # [c, k]
    shares = np.empty((dataset.classes, clients))
    for index in range(groups):
        inside = rng.dirichlet(np.full(np.sum(group == index), alpha_client), dataset.classes)
        shares[:, group == index] = of_group[:, index, None] * inside
    return _by_class(rng, dataset, shares, group)


@register("scenario", "n_class")
def n_class(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 200,
    n: Annotated[int, Field(ge=1, description="classes of a client")] = 2,
    duplicates: Duplicates = False,
) -> Partition | Draws:
    """N random classes per client, every class split equally among its holders (Ma, A.2, client-wise, n = 2).

    Raises:
        InputError: more classes per client than exist.
    """
    if n > dataset.classes:
        raise InputError(f"n: {n} classes per client, but {dataset.name} has {dataset.classes}")
    if duplicates:
        return with_duplicates(rng, dataset, clients, class_shares(n))
    holds = _chosen(rng, np.ones((clients, dataset.classes), bool), n)
    return _by_class(rng, dataset, holds.T.astype(float), np.full(clients, NOBODY))


@register("scenario", "grouped_n_class")
def grouped_n_class(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 200,
    groups: Groups = 10,
    a: Annotated[int, Field(ge=1, description="classes of a group")] = 3,
    b: Annotated[int, Field(ge=1, description="classes of a client, among its group's")] = 2,
    sizes: Sizes = "equal",
    duplicates: Duplicates = False,
) -> Partition | Draws:
    """A random classes per group and b of them per client, every class split equally (Ma, A.2, cluster-wise, 3 and 2).

    Groups' classes are drawn so that every class is in about equally many groups.

    Raises:
        InputError: more classes per group than exist, or per client than per group.
    """
    if not b <= a <= dataset.classes:
        raise InputError(f"a, b: expected b <= a <= {dataset.classes} classes of {dataset.name}, got a = {a}, b = {b}")
    group = client_groups(clients, groups, sizes)
    if duplicates:
        return grouped_with_duplicates(rng, dataset, group, class_shares(a), class_shares(b))
    of_group = np.zeros((groups, dataset.classes), bool)
    for row in of_group:
        row[np.lexsort((rng.random(dataset.classes), of_group.sum(0)))[:a]] = True  # the least used first
    return _by_class(rng, dataset, _chosen(rng, of_group[group], b).T.astype(float), group)


def _refuse_scarce_labels(dataset: Dataset, label: np.ndarray, least: tuple[int, int]) -> None:
    """Refuse clients that have one `label` [m] each if a label has too few examples for those that share it."""
    sharing = np.bincount(label, minlength=dataset.classes)
    for kind, half, number in zip(("training", "test"), (dataset.train, dataset.test), least, strict=True):
        there = np.bincount(half.y, minlength=dataset.classes)
        for scarce in np.flatnonzero(there < number * sharing)[:1]:
            raise InputError(
                f"clients: {sharing[scarce]} clients share label {scarce}, which has {there[scarce]} {kind} examples, "
                f"fewer than {number} each ({number * sharing[scarce]}): use fewer clients or a smaller min_examples"
            )


def _own_labels(
    rng: np.random.Generator,
    examples: Pool,
    classes: int,
    label_sets: tuple[tuple[int, ...], ...],
    groups: np.ndarray,
    tests_all: bool = False,
    balanced: bool = False,
) -> Partition:
    """Group p * len(label_sets) + s gets the examples of part p whose labels are in set s.

    Args:
        tests_all: whether test examples of all labels are dealt among all sets.
        balanced: whether all groups have equally many examples of each of their labels.
    """
    labels = [label for labels in label_sets for label in labels]
    if not all(label_sets):
        raise InputError(f"label_sets: expected sets of which none is empty, got {list(label_sets)}")
    if max(labels) >= classes:
        raise InputError(f"label_sets: label {max(labels)} does not exist, the labels are 0 to {classes - 1}")
    sets = np.zeros((classes + 1, len(label_sets)), bool)
    sets[labels, np.repeat(np.arange(len(label_sets)), [len(own) for own in label_sets])] = True
    sets[-1] = True  # of examples that are dealt among all sets
    line = np.where(tests_all & ~examples.trains, classes, examples.y)  # [N]
    mine, number = sets.argmax(1)[line], sets.sum(1)[line]
    several = np.flatnonzero(number > 1)
    for part in np.split(several, range(step := max(1, BLOCK // len(label_sets)), len(several), step)):
        mine[part] = (sets[line[part]] * rng.random((len(part), len(label_sets)))).argmax(1)
    cell = np.where(number > 0, examples.part * len(label_sets) + mine, NOBODY)
    if balanced:
        cell = np.where(_equally_many(rng, cell * classes + examples.y, cell, examples.trains), cell, NOBODY)
    owner = random_owners(rng, cell, examples.trains, group_shares(groups))
    return Partition(examples.x, examples.y, examples.trains, owner, groups, examples.source)


def _equally_many(rng: np.random.Generator, kind: np.ndarray, cell: np.ndarray, trains: np.ndarray) -> np.ndarray:
    """Whether an example is kept if equally many are kept of every kind, to train and to test. [N] bool

    Args:
        kind: the cell and the label of every example as one number. [N] int
        cell: its cell, -1 for none; examples without a cell are not kept. [N] int
        trains: whether it is for training. [N] bool
    """
    kept = np.zeros(len(cell), bool)
    for half in (trains, ~trains):
        there = rng.permutation(np.flatnonzero((cell != NOBODY) & half))
        _, index, counts = np.unique(kind[there], return_inverse=True, return_counts=True)
        turn = np.arange(len(there)) - np.repeat(counts.cumsum() - counts, counts)  # of an example among its kind
        kept[there[index.argsort(kind="stable")][turn < counts.min(initial=len(there))]] = True
    return kept


def _by_class(rng: np.random.Generator, dataset: Dataset, shares: np.ndarray, groups: np.ndarray) -> Partition:
    """Every class shared out by its row of shares [c, m]."""
    examples = pool(dataset)
    owner = random_owners(rng, examples.y, examples.trains, shares)
    return Partition(examples.x, examples.y, examples.trains, owner, groups, examples.source)


def _own_draws(rng: np.random.Generator, left: np.ndarray, clients: int, alpha: float) -> np.ndarray:
    """How many examples of every class each client draws, from `left` [c] that there are. `[c, m]`"""
    sizes = left.sum() // clients + (np.arange(clients) < left.sum() % clients)
    present = np.flatnonzero(left)
    proportions = np.zeros((clients, len(left)))
    proportions[:, present] = rng.dirichlet(alpha * left[present] / left.sum(), clients)
    drawn = np.zeros((clients, len(left)), int)
    for client, size in enumerate(sizes):
        while (need := size - drawn[client].sum()) > 0:
            chances = np.where(left > 0, proportions[client], 0)
            chances = chances if chances.sum() > 0 else left.astype(float)  # all its classes are used up
            taken = np.minimum(rng.multinomial(need, chances / chances.sum()), left)
            drawn[client] += taken
            left = left - taken
    return drawn.T.astype(float)


def _workable_shares(rng: np.random.Generator, dataset: Dataset, need: np.ndarray, alpha: float) -> np.ndarray:
    """The groups' shares of every class from Dir(α), drawn again until every group gets what it needs. `[c, k]`

    Raises:
        InputError: the dataset is too small, or no draw gave every group enough.
    """
    counts = np.stack([np.bincount(half.y, minlength=dataset.classes) for half in (dataset.train, dataset.test)])
    totals = counts.sum(1)
    if np.any(need.sum(0) > totals):
        raise InputError(
            f"clients need {need.sum(0)[0]} training and {need.sum(0)[1]} test examples at least, "
            f"{dataset.name} has {totals[0]} and {totals[1]}"
        )
    for _ in range(DRAWS):
        shares = rng.dirichlet(np.full(len(need), alpha), dataset.classes)  # [c, k]
        at_least = np.floor(counts[:, :, None] * shares).sum(1)  # [2, k], every class rounded down
        if np.all(at_least >= need.T):
            return shares
    raise InputError(
        f"alpha_group: {DRAWS} draws of Dir({alpha:g}) gave no shares where all {len(need)} groups of {dataset.name} "
        f"have {need[:, 0].max()} training and {need[:, 1].max()} test examples: use fewer clients or groups"
    )


def _chosen(rng: np.random.Generator, allowed: np.ndarray, number: int) -> np.ndarray:
    """`number` random columns of every row, among those allowed: [m, c] bool."""
    rank = np.where(allowed, rng.random(allowed.shape), 2.0).argsort(axis=1).argsort(axis=1)
    return rank < number
