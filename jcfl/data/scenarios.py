"""Scenarios in which all clients have the same proportions of labels, but each group has its own version of the data.

A scenario is `name(rng, dataset, *, options) -> Partition`. If `min_examples` is one of its options, it gets the
federation's. The import of this module also registers the scenarios of `jcfl.data.skew`.
"""

import warnings
from functools import partial
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from jcfl.data import skew as skew
from jcfl.data.dataset import Dataset, random_share
from jcfl.data.partition import (
    NOBODY,
    Count,
    Counts,
    Draws,
    Least,
    Partition,
    Pool,
    Sizes,
    client_groups,
    copied,
    divided,
    group_shares,
    packed,
    pool,
    random_owners,
)
from jcfl.data.rotation import Interpolation, rotated_images, tell_of_equal_angles
from jcfl.errors import InputError, Notice, refuse_beyond_memory
from jcfl.registry import register

FOUR = (0.0, 90.0, 180.0, 270.0)
"""The angles of Zeng et al."""

Copies = Annotated[bool, Field(description="each group has a copy of the whole dataset, not an equal share of it")]
Skew = Annotated[
    float | None,
    Field(gt=0, description="each class is spread over a group's clients by Dir(α); none: equal shares"),
]


@register("scenario", "iid")
def iid(rng: np.random.Generator, dataset: Dataset, *, clients: Count = 100) -> Partition:
    """Random equal shares of the data: one group."""
    return _dealt(rng, pool(dataset), client_groups(clients, 1, "equal"))


@register("scenario", "rotated")
def rotated(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 400,
    groups: Annotated[
        int | None, Field(ge=1, description="number of groups; by default as many as angles, or 4")
    ] = None,
    spacing: Annotated[
        Literal["circle", "printed"],
        Field(description="circle: group g is rotated by 360 g/k; printed: by 360 g/(k+1), eq. 3 of the paper"),
    ] = "circle",
    angles: Annotated[
        tuple[float, ...] | None, Field(min_length=1, description="the groups' angles in degrees, anticlockwise")
    ] = None,
    interpolation: Annotated[
        Interpolation,
        Field(description="of pixels, by angles that are no multiples of 90: of the nearest four, or one"),
    ] = "linear",
    outside: Annotated[
        float, Field(ge=0, le=1, description="grey level of pixels from outside an image: 0 is black, 1 is white")
    ] = 0.0,
    copies: Copies = True,
    sizes: Sizes = "equal",
    alpha: Skew = None,
) -> Partition:
    """Images rotated by a different angle in each group (Rotated MNIST, Rotated CIFAR).

    Zeng et al. rotate copies of the whole dataset by 0, 90, 180 and 270 degrees (the default), CIFAR by 0 and 180
    (`groups=2`). Bhattacharya and Aridi also rotate copies (eq. 4); in their code with the nearest pixel, and grey
    outside (0.5).

    Deviations:
        Bhattacharya and Aridi print 360 g/(k+1) (eq. 3) and use 360 g/k in their code: `spacing` chooses.

    Raises:
        InputError: not images, a quarter turn of images that are not square, or more or fewer groups than angles.
    """
    if angles is not None and groups not in (None, len(angles)):
        raise InputError(f"groups: {groups} groups beside {len(angles)} angles; leave one of the two out")
    k = groups or len(angles or FOUR)
    group = client_groups(clients, k, sizes)
    steps = k if spacing == "circle" else k + 1
    turns = angles if angles is not None else tuple(360 * index / steps for index in range(k))
    tell_of_equal_angles("rotated", turns)
    turned = partial(rotated_images, interpolation=interpolation, outside=outside)
    versions = [partial(turned, angle=angle) for angle in turns]
    parts = copied(dataset, versions) if copies else divided(rng, dataset, versions)
    return _dealt(rng, parts, group, alpha)


@register("scenario", "crowd")
def crowd(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 1_000_000,
    angles: Annotated[tuple[float, ...], Field(min_length=1, description="the groups' angles in degrees")] = FOUR,
    examples: Annotated[
        Counts, Field(description="number of training and test examples of each client; min_examples has no effect")
    ] = (10, 2),
    sizes: Sizes = "equal",
) -> Draws:
    """Any number of clients that draw their examples from a common pool, rotated by the angle of their group.

    It is like Rotated MNIST, but each client draws its examples at random with replacement, and several clients may
    have the same example. So there can be a million clients. Training and test examples are separate.

    Raises:
        InputError: not images, a quarter turn of images that are not square, more draws than fit the memory, or test
            examples asked of a dataset that has none.
    """
    if examples[1] and not len(dataset.test):
        raise InputError(f"examples: {dataset.name} has no test examples to draw from; set examples=[{examples[0]}, 0]")
    refuse_beyond_memory(f"the draws of {clients} clients", 3 * 4 * clients * sum(examples), "use fewer clients")
    groups = client_groups(clients, len(angles), sizes)
    tell_of_equal_angles("crowd", angles)
    parts = copied(dataset, [partial(rotated_images, angle=angle) for angle in angles])
    whole, part = len(dataset.train) + len(dataset.test), len(dataset.train)
    first = groups.astype(np.int32)[:, None] * whole
    train = first + rng.integers(0, part, (clients, examples[0]), np.int32)
    test = first + part + rng.integers(0, max(len(dataset.test), 1), (clients, examples[1]), np.int32)
    own, tests = (packed(table.reshape(-1), np.full(*table.shape)) for table in (train, test))
    return Draws(parts.x, parts.y, own, tests, groups, parts.source)


@register("scenario", "shifted")
def shifted(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Count = 400,
    shifts: Annotated[tuple[int, ...], Field(min_length=1, description="number that each group adds to its labels")] = (
        0,
        3,
        6,
        9,
    ),
    copies: Copies = True,
    sizes: Sizes = "equal",
    alpha: Skew = None,
) -> Partition:
    """Labels (y + s) mod c with a different shift s in each group (Shifted MNIST)."""
    if len({shift % dataset.classes for shift in shifts}) < len(shifts):
        told = f"shifted: with {dataset.classes} classes, some of the shifts {', '.join(map(str, shifts))} are the same"
        warnings.warn(f"{told}, so that groups have the same task; set scenario.shifts", Notice, stacklevel=2)
    versions = [np.asarray] * len(shifts)
    parts = copied(dataset, versions) if copies else divided(rng, dataset, versions)
    labels = (parts.y + np.asarray(shifts)[parts.part]) % dataset.classes
    return _dealt(rng, parts._replace(y=labels), client_groups(clients, len(shifts), sizes), alpha)


@register("scenario", "hybrid")
def hybrid(
    rng: np.random.Generator, *datasets: Dataset, clients: Count = 200, sizes: Sizes = "equal", alpha: Skew = None
) -> Partition:
    """A different dataset for each group with the same label numbers (MNIST and Fashion-MNIST: Hybrid MNIST).

    Raises:
        InputError: fewer than two datasets, or examples of different shapes or kinds.
    """
    if len(datasets) < 2:
        raise InputError(f"scenario 'hybrid' needs two datasets or more, one per group, got {len(datasets)}")
    first = datasets[0]
    for other in datasets[1:]:
        if (other.shape, other.train.x.dtype) != (first.shape, first.train.x.dtype):
            raise InputError(
                f"scenario 'hybrid' needs examples of one shape and kind: {first.name} has {list(first.shape)} "
                f"{first.train.x.dtype}, {other.name} has {list(other.shape)} {other.train.x.dtype}"
            )
    pools = [pool(dataset) for dataset in datasets]
    part = np.repeat(np.arange(len(pools)), [len(one.y) for one in pools])
    x, y, trains = (np.concatenate([getattr(one, field) for one in pools]) for field in ("x", "y", "trains"))
    return _dealt(rng, Pool(x, y, trains, part), client_groups(clients, len(datasets), sizes), alpha)


@register("scenario", "natural")
def natural(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    clients: Annotated[int | None, Field(ge=1, description="number of users, drawn at random; none: all")] = None,
    test_fraction: Annotated[
        float, Field(gt=0, lt=1, description="share of each user's test examples, if the test set has no users")
    ] = 0.2,
    min_examples: Least = (10, 2),
) -> Partition:
    """The users of the dataset are the clients; users with fewer than `min_examples` are left out, with a notice.

    Raises:
        InputError: the dataset has no users, or fewer of them than `clients` have enough examples.
    """
    examples, users = _user_pool(rng, dataset, test_fraction)
    known, index = np.unique(users, return_inverse=True)
    ids = known if dataset.id_of_user is None else dataset.id_of_user[known]
    sizes = np.stack([np.bincount(index[half], minlength=len(known)) for half in (examples.trains, ~examples.trains)])
    fit = _with_enough(sizes, min_examples)
    if clients and len(fit) == len(known) < clients:
        raise InputError(f"clients: expected at most {len(known)}, the users of {dataset.name}, got {clients}")
    if len(fit) < (clients or 1):
        few = (
            f"expected at most {len(fit)}, got {clients}: of {len(known)} users of {dataset.name} only {len(fit)} have"
        )
        none = f"none of the {len(known)} users of {dataset.name} has"
        enough = f"{min_examples[0]} training and {min_examples[1]} test examples or more"
        raise InputError(f"clients: {few if clients else none} {enough} ({_lacking(sizes, min_examples, ids)})")
    if len(fit) < len(known):
        warnings.warn(_left_out(sizes, min_examples), Notice, stacklevel=2)
    kept = fit if clients is None else np.sort(rng.choice(fit, clients, replace=False))
    client = np.full(len(known), NOBODY, np.int32)
    client[kept] = np.arange(len(kept))
    groups = np.full(len(kept), NOBODY) if dataset.group_of_user is None else dataset.group_of_user[known[kept]]
    return Partition(examples.x, examples.y, examples.trains, client[index], groups, examples.source, ids[kept])


def _dealt(rng: np.random.Generator, parts: Pool, groups: np.ndarray, alpha: float | None = None) -> Partition:
    """The partition in which the clients of group g have random equal shares of part g.

    Args:
        alpha: if given, the group's clients have shares of each class of the part that are drawn from Dir(α).
    """
    cell, shares = parts.part, group_shares(groups)
    if alpha is not None:
        classes = int(parts.y.max()) + 1
        cell, shares = cell * classes + parts.y, np.repeat(shares, classes, axis=0)
        for row in shares:
            row[row > 0] = rng.dirichlet(np.full(np.count_nonzero(row), alpha))
    owner = random_owners(rng, cell, parts.trains, shares)
    return Partition(parts.x, parts.y, parts.trains, owner, groups, parts.source)


def _user_pool(rng: np.random.Generator, dataset: Dataset, test_fraction: float) -> tuple[Pool, np.ndarray]:
    """The examples with a user, and their users [N]. If the test set has no users, test examples are drawn."""
    users = dataset.train.user
    if users is None or len(users) == 0:
        instead = "choose another scenario, or add an array clients (data.clients for the dataset huggingface)"
        raise InputError(f"scenario 'natural' needs users, and {dataset.name} has none: {instead}")
    if dataset.test.user is not None and len(dataset.test.user) > 0:
        return pool(dataset), np.concatenate([users, dataset.test.user])
    tests = random_share(users, test_fraction, seed=int(rng.integers(2**31)))
    return Pool(dataset.train.x, dataset.train.y, ~tests, np.zeros(len(users), int)), users


def _with_enough(sizes: np.ndarray, least: tuple[int, int]) -> np.ndarray:
    """The users with enough training and test examples, of all users with `sizes` [2, users]."""
    return np.flatnonzero((sizes >= np.array(least)[:, None]).all(0))


def _lacking(sizes: np.ndarray, least: tuple[int, int], ids: np.ndarray) -> str:
    """How many users have too few examples of each kind, and the first of them."""
    told = []
    for kind, own, number in zip(("training", "test"), sizes, least, strict=True):
        few = np.flatnonzero(own < number)
        much = f"with fewer than {number}" if own[few].any() else "without"
        told += [f"{len(few)} {much} {kind} examples, such as {ids.tolist()[few[0]]!r}"] if len(few) else []
    return ", ".join(told)


def _left_out(sizes: np.ndarray, least: tuple[int, int]) -> str:
    """How many users are left out, and how to keep more of them, where that is possible."""
    users, fit = sizes.shape[1], len(_with_enough(sizes, least))
    told = f"{users - fit} of {users} clients have fewer than {least[0]} training or {least[1]} test examples"
    choices = ((1, min(1, least[1])), (1, 0))
    kept, choice = max(((len(_with_enough(sizes, one)), one) for one in choices), key=lambda pair: pair[0])
    hint = f"; scenario.min_examples={list(choice)} keeps {kept}" if kept > fit else ""
    return f"{told} and are left out{hint}"
