"""Examples that are given twice: parts of a dataset's splits that overlap, or a test set that is the training set."""

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jcfl.data.dataset import CHECKED, Dataset
from jcfl.errors import InputError, Notice


class Span(NamedTuple):
    """Consecutive rows of a split, or of a file."""

    name: str  # what the rows belong to
    start: int
    end: int  # the row after the last one


def refuse_repeated_rows(spans: Sequence[Span], where: Path) -> None:
    """Refuse rows that are given twice: one copy could be drawn for testing, and the other trained on."""
    for one, two in itertools.combinations(spans, 2):
        if common := common_rows(one, two):
            raise InputError(f"{where}: {common} are given twice; give splits that do not overlap")


def tell_of_common_rows(first: Sequence[Span], second: Sequence[Span], where: Path) -> None:
    """Say in a notice that rows are both in the part to train on and in the part to test on.

    If the two parts are the same, `tell_of_equal_sets` says so.
    """
    if [*first] == [*second]:
        return
    for one in first:
        for two in second:
            if common := common_rows(one, two):
                told = f"{where}: {common} are both trained on and tested on"
                warnings.warn(f"{told}; give splits that do not overlap", Notice, stacklevel=3)


def common_rows(one: Span, two: Span) -> str:
    """The rows that two spans have in common, in words; empty if there are none."""
    start, end = max(one.start, two.start), min(one.end, two.end)
    return f"rows {start} to {end - 1} of {one.name}" if one.name == two.name and start < end else ""


def tell_of_equal_sets(dataset: Dataset) -> None:
    """Say in a notice that a dataset has the same examples to train and to test on, in the same order."""
    train, test = dataset.train, dataset.test
    if len(test) and np.array_equal(train.y, test.y) and _equal(train.x, test.x):
        told = f"{dataset.name}: the test set is the training set, so test metrics say nothing of new data"
        warnings.warn(f"{told}; give other examples to test on", Notice, stacklevel=3)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether arrays are equal; they are compared a part at a time, since either may be mapped from a large file."""
    if one.shape != other.shape:
        return False
    step = max(1, CHECKED * len(one) // max(one.size, 1))
    starts = (0, *range(1, len(one), step))  # the first example alone, which differs in nearly all datasets
    return all(np.array_equal(one[i:j], other[i:j]) for i, j in itertools.pairwise((*starts, len(one))))
