"""Hostile clients: which clients of a federation are attackers, and attackers whose training labels are wrong."""

from dataclasses import replace
from typing import Any

import numpy as np

from jcfl.data.federation import drawn_clients
from jcfl.errors import InputError
from jcfl.types import Federation

STREAM = 5
"""The attackers' random stream among those of a federation's seed; the federation itself draws from those before it."""


def with_attackers(federation: Federation, share: float, seed: int) -> Federation:
    """The federation with a share of its training clients marked as attackers, drawn from all groups in proportion.

    Args:
        share: of the clients that train, in [0, 1); rounded to whole clients.
        seed: the federation's seed.

    Raises:
        InputError: the share makes no client an attacker, or leaves no honest one.
    """
    groups, trains = np.asarray(federation.groups), ~np.asarray(federation.held_out)
    number = round(share * int(trains.sum()))
    if not 1 <= number < trains.sum():
        raise InputError(
            f"attack.share: {share:g} of {trains.sum()} clients is {number}; expected at least one attacker and at "
            "least one honest client"
        )
    rng = np.random.default_rng(seed).spawn(STREAM + 1)[STREAM]
    leaves: dict[str, Any] = {"hostile": drawn_clients(rng, groups, trains, number / len(groups), "attack.share")}
    return replace(federation, **leaves)


def with_flipped_labels(federation: Federation) -> Federation:
    """The federation in which label y of every training example of an attacker is c − 1 − y (Fang et al. 2020).

    Test and validation examples keep their labels.

    Raises:
        InputError: an attacker shares an example with another client or with a test set, or clients' data drift.
    """
    if not isinstance(federation.drift, tuple):
        raise InputError(
            f"{federation.name}: labels are flipped before training, and drift would hand them to honest clients; take "
            "another attack, or leave scenario.drift out; attack 'scaled' can have flip_labels=false"
        )
    split, y = federation.train, np.array(federation.y)
    rows, size = np.asarray(split.rows), np.asarray(split.size)
    hostile = np.repeat(np.asarray(federation.hostile), size)  # of every row of the clients in turn
    place = np.repeat(np.asarray(split.start) - np.cumsum(size) + size, size) + np.arange(size.sum())
    taken = rows[place][hostile]
    others = np.zeros(len(y), bool)
    others[rows[place][~hostile]] = True
    for name in federation.splits.keys() - {"train"}:
        others[np.asarray(federation.splits[name].rows)] = True
    if others[taken].any():
        raise InputError(
            f"{federation.name}: attackers share examples with other clients, so their labels cannot be flipped alone; "
            "take another attack, or a scenario in which every example has one owner"
        )
    y[taken] = federation.classes - 1 - y[taken]
    leaves: dict[str, Any] = {"y": y}
    return replace(federation, **leaves)
