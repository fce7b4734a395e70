"""Examples that are given twice: parts of a dataset's splits that overlap, or test examples that are trained on."""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jcfl.data.dataset import CHECKED, Dataset, Examples
from jcfl.errors import InputError, Notice

HASHED = 2**30
"""The most bytes of examples that are compared one with another, whatever their order; this takes about two seconds."""

COMMON = 0.1
"""The least share of test examples among the training examples that is told of."""


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

    If the two parts are the same, `tell_of_common_examples` says so.
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


def tell_of_common_examples(dataset: Dataset) -> None:
    """Say in a notice that examples of a dataset, with their labels, are there both to train and to test on.

    A test set that is the training set in the same order is found at any size. Apart from that, sets beyond `HASHED`
    bytes are not compared, and less than `COMMON` of the test examples is no news: many datasets repeat a few. Nor are
    sets compared whose training examples are for the most part copies of others, such as rows of a few categories.
    """
    train, test = dataset.train, dataset.test
    if len(test) and np.array_equal(train.y, test.y) and _equal(train.x, test.x):
        share, found = 1.0, "the test set is the training set"
    else:
        share = _common_share(train, test)
        found = f"{share:.0%} of the test examples are training examples"
    if share >= COMMON:
        told = f"{dataset.name}: {found}, so test metrics say {'nothing' if share == 1 else 'less'} of new data"
        warnings.warn(f"{told}; give other examples to test on", Notice, stacklevel=3)


def _common_share(train: Examples, test: Examples) -> float:
    """The share of test examples that are among the training examples; 0 where they are not compared."""
    if not len(test) or train.x.shape[1:] != test.x.shape[1:] or train.x.nbytes + test.x.nbytes > HASHED:
        return 0.0
    known = set(_hashes(train))
    if len(known) <= len(train) / 2:
        return 0.0
    return sum(one in known for one in _hashes(test)) / len(test)


def _hashes(examples: Examples) -> Iterator[int]:
    """A number of 64 bits for every example and its label, which differs between different ones."""
    return (hash((label, row.tobytes())) for label, row in zip(examples.y.tolist(), examples.x, strict=True))


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether arrays are equal; they are compared a part at a time, since either may be mapped from a large file."""
    if one.shape != other.shape:
        return False
    step = max(1, CHECKED * len(one) // max(one.size, 1))
    starts = (0, *range(1, len(one), step))  # the first example alone, which differs in nearly all datasets
    return all(np.array_equal(one[i:j], other[i:j]) for i, j in itertools.pairwise((*starts, len(one))))
