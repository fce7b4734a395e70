"""Drift: clients whose data change while they train, because they exchange them with clients of another group."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jcfl.errors import InputError
from jcfl.types import Drift, Federation


def with_drift(rng: np.random.Generator, federation: Federation, shares: Mapping[int, float]) -> Federation:
    """The federation in which a share of all clients exchange their data in some rounds.

    Two clients of different true groups exchange all of their examples, to train, to test and to validate on, and
    their true groups with them. The pool, the clients' sizes as a whole and the number of clients of every group stay.
    A client whose group is not known counts as a group of its own. Clients that are held out, have not arrived or have
    left keep their data, so that nobody trains on the examples of a client that never trains.

    Args:
        rng: chooses the clients, and who exchanges with whom.
        federation: with NumPy leaves.
        shares: the share of all clients by round, rounded to whole pairs.

    Raises:
        InputError: a share is less than a pair, or more than can be paired.
    """
    if not shares:
        return federation
    clients, groups = np.arange(len(federation.groups)), told_apart(np.asarray(federation.groups))
    holds = [clients]
    for round, share in sorted(shares.items()):
        here = np.flatnonzero(federation.available(round))
        one, other = pairs(rng, groups[holds[-1]], here, share, f"drift in round {round}")
        now = holds[-1].copy()
        now[one], now[other] = now[other], now[one]
        holds.append(now)
    leaves: dict[str, Any] = {"drift": Drift(np.array(sorted(shares), np.int32), np.array(holds, np.int32))}  # pyright: ignore[reportArgumentType]
    return replace(federation, **leaves)


def told_apart(groups: np.ndarray) -> np.ndarray:
    """True groups, in which every client whose group is not known (-1) has a group of its own. [m] int"""
    return np.where(groups < 0, -1 - np.arange(len(groups)), groups)


def group_by_group(rng: np.random.Generator, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All clients in random order, those of one group next to each other, and the sizes of the groups in this order.

    The order of the groups is random too: it decides which groups exchange.
    """
    _, kind, size = np.unique(groups, return_inverse=True, return_counts=True)
    place = rng.permutation(len(size))
    order = rng.permutation(len(groups))
    return order[np.argsort(place[kind[order]], kind="stable")], size[np.argsort(place)]


def pairs(
    rng: np.random.Generator, groups: np.ndarray, among: np.ndarray, share: float, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """A share of all clients, drawn among some of them in pairs of two groups. [h] int each

    Args:
        groups: of all clients. [m]
        among: the clients to choose from. [n] int
    """
    half = int(share * len(groups) / 2 + 0.5)
    order, size = group_by_group(rng, groups[among])
    rank = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
    order = among[order[rank < half]]  # no more of a group than there are pairs, so that each has one of another
    if not 1 <= half <= len(order) // 2:
        raise InputError(
            f"{what}: {share:g} of {len(groups)} clients is {half} pairs, and at most {most_pairs(size)} of two true "
            "groups can be made of those that train then; expected a pair at least"
        )
    order = order[np.sort(rng.permutation(len(order))[: 2 * half])]
    return order[:half], order[half:]


def most_pairs(size: np.ndarray) -> int:
    """The most pairs of two groups, by the sizes of the groups."""
    return int(min(size.sum() // 2, size.sum() - size.max(initial=0)))
