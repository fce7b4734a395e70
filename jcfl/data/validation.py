"""Validation examples: a share of each client's training examples on which nobody trains."""

from dataclasses import replace
from typing import Any

import numpy as np

from jcfl.data.partition import ITSELF, packed
from jcfl.errors import InputError
from jcfl.types import Federation


def with_validation(
    rng: np.random.Generator, federation: Federation, share: float, source: np.ndarray = ITSELF
) -> Federation:
    """The federation in which a share of each client's training examples is kept for validation.

    From n examples of a client, of all its classes in proportion, share · n are taken: at least one, and never all. An
    example that several clients have, as it is or transformed (`rotated`, `crowd`), is kept by all of them or by none,
    because a model that is trained by one may serve another; those after the first then have about share · n.

    Args:
        rng: chooses among the examples of a class.
        federation: as a scenario has made it, each client's rows after those of the client before.
        share: in [0, 1).
        source: the example that each of the pool is a copy of, [N]; `ITSELF` where each is its own.

    Raises:
        InputError: a client would have nothing to train on.
    """
    if not share:
        return federation
    clients, rows, sizes = len(federation.groups), *map(np.asarray, (federation.train.rows, federation.train.size))
    owner, drawn_from = np.repeat(np.arange(clients), sizes), source[rows] if source.size else rows
    examples, first = np.unique(drawn_from, return_index=True)
    holder, label = owner[first], np.asarray(federation.y)[rows[first]]  # of the first client that has the example
    order = rng.permutation(len(examples))
    order = order[np.lexsort((label[order], holder[order]))]
    examples, holder = examples[order], holder[order]  # by client, then by class
    size = np.bincount(holder, minlength=clients)
    number = np.minimum(np.maximum(np.rint(share * size).astype(int), 1), np.maximum(size - 1, 0))
    rank = np.arange(len(holder)) - (np.cumsum(size) - size)[holder] + rng.integers(np.maximum(size, 1))[holder]
    taken = np.zeros(drawn_from.max() + 1, bool)
    if len(examples) < len(rows):
        # Clients share examples, and many are the first to hold a few only: one of each would be more than the share.
        turn = np.arange(len(examples)) + rng.random()
        taken[examples] = np.floor((turn + 1) * share) > np.floor(turn * share)
    else:
        taken[examples] = (rank + 1) * number[holder] // size[holder] > rank * number[holder] // size[holder]
    kept = taken[drawn_from]
    left = np.bincount(owner[~kept], minlength=clients)
    if not left.all():
        who = federation.called(left.argmin())
        raise InputError(f"validation: {share:g} leaves {who} nothing to train on; take less")
    splits: dict[str, Any] = {
        "train": packed(rows[~kept], left),
        "validation": packed(rows[kept], sizes - left),
    }
    return replace(federation, **splits)
