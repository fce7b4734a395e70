"""Labels that are text, as numbers in alphabetical order."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jcfl.data.dataset import array
from jcfl.errors import InputError

KINDS = {"U": "text", "T": "text", "S": "bytes"}
"""What NumPy's kinds of text are called."""


def numbered(parts: Sequence[Any], where: str | Path, classes: int | None = None) -> list[np.ndarray]:
    """The labels of several parts, to train on and to test on; those that are text as numbers in alphabetical order.

    Args:
        parts: what was given. `[n]` or `[n, 1]` each
        where: the file or argument they came from, for the error.
        classes: the number of classes; None where it is not given.

    Raises:
        InputError: some labels are text and others are not; a label is empty; there are more texts than classes; or
            they are numbers, and the alphabetical order gives some of them other numbers ("10" is before "2").

    >>> numbered([["cat", "ant", "cat"], ["bee"]], "labels")
    [array([2, 0, 2]), array([1])]
    """
    arrays = [_as_given(part, where) for part in parts]
    kinds = [_kind(one, where) for one in arrays]
    if not {*kinds} & {*KINDS.values()}:
        return arrays
    if len({*kinds}) > 1:
        raise InputError(
            f"{where}: labels to train on are {kinds[0]}, those to test on are {kinds[1]}; expected one kind"
        )
    texts, index = np.unique(np.concatenate([one.ravel() for one in arrays]), return_inverse=True)
    _refuse_unclear(texts, index, where, classes)
    split = np.split(index.ravel(), np.cumsum([one.size for one in arrays])[:-1])
    return [numbers.reshape(one.shape) for numbers, one in zip(split, arrays, strict=True)]


def _as_given(values: Any, where: str | Path) -> np.ndarray:
    """What was given as an array, in which the numbers in a list with text stay numbers."""
    made = array(values, "labels", where)
    return np.asarray(values, object) if made.dtype.kind in KINDS and isinstance(values, list | tuple) else made


def _kind(values: np.ndarray, where: str | Path) -> str:
    """`text`, `bytes`, or the dtype of values that are neither.

    Raises:
        InputError: text among values of other types, such as None for a label that is missing.
    """
    if values.dtype.kind != "O":
        return KINDS.get(values.dtype.kind, str(values.dtype))
    types = {*map(type, values.flat)}
    for said, kind in (("text", str), ("bytes", bytes)):
        if types and all(issubclass(one, kind) for one in types):
            return said
    if any(issubclass(one, str | bytes) for one in types):
        names = " and ".join(sorted(one.__name__ for one in types))
        raise InputError(f"{where}: labels are of the types {names}; expected whole numbers from 0, or text")
    return str(values.dtype)


def _refuse_unclear(texts: np.ndarray, index: np.ndarray, where: str | Path, classes: int | None) -> None:
    """Refuse texts [c] of which it is not clear which classes they are; `index` [n] are the numbers of examples."""
    if len(texts) and not texts[0]:
        count = int((index == 0).sum())
        raise InputError(f"{where}: {count} labels are empty text; expected a label for every example")
    numbers = [_number(text) for text in texts.tolist()]
    if np.isfinite(numbers).all() and numbers != [*range(len(texts))]:
        wrong = next(text for i, text in enumerate(texts.tolist()) if numbers[i] != i)
        raise InputError(
            f"{where}: labels are numbers as text, such as {wrong!r}; expected numbers: np.asarray(y, float)"
        )
    if classes is not None and len(texts) > classes:
        raise InputError(f"{where}: labels are {len(texts)} different texts; expected at most classes={classes}")


def _number(text: str | bytes) -> float:
    """The number that a text says, or NaN."""
    try:
        return float(text)
    except ValueError:
        return np.nan
