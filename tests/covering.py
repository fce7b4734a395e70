"""Few runs that try every feature: what they share is a run, what does not go together is kept apart."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Feature = tuple[str, Any]
"""A slot and what is put there; a run has one thing in a slot."""


def covering(
    features: Iterable[Feature], refusal: Callable[[Sequence[Feature]], str | None]
) -> tuple[list[list[Feature]], dict[int, str]]:
    """Rows of features that together hold every one that any row can take.

    Args:
        features: in the order in which they are tried; a feature may need one before it in its row.
        refusal: why a row cannot be had; None where it can.

    Returns:
        the rows, and for every feature that no row takes (its place among `features`) why not.
    """
    rows: list[list[Feature]] = []
    refused: dict[int, str] = {}
    waiting = list(enumerate(features))
    while waiting:
        row, left = _filled(waiting, refusal)
        if not row:
            alone = {place: refusal([feature]) for place, feature in left}
            refused |= {place: reason for place, reason in alone.items() if reason is not None}
            break
        rows.append(row)
        waiting = left
    return rows or [[]], refused


def _filled(waiting: list[tuple[int, Feature]], refusal) -> tuple[list[Feature], list[tuple[int, Feature]]]:
    """One row with as many of the features as go together, and those left over."""
    row: list[Feature] = []
    left = _put(row, waiting, refusal)
    return row, sorted(left)


def _put(row: list[Feature], given: list[tuple[int, Feature]], refusal) -> list[tuple[int, Feature]]:
    """Put what can be had into the row, halves of what is refused one after the other; returns what is left."""
    taken, chosen, left = {slot for slot, _ in row}, [], []
    for place, feature in given:
        (left if feature[0] in taken else chosen).append((place, feature))
        taken.add(feature[0])
    if not chosen:
        return left
    if refusal([*row, *(feature for _, feature in chosen)]) is None:
        row += [feature for _, feature in chosen]
        return left
    if len(chosen) == 1:
        return left + chosen
    middle = len(chosen) // 2
    for half in (chosen[:middle], chosen[middle:]):
        left += _put(row, half, refusal)
    return left
