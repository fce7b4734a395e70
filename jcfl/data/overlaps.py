"""Rows of a dataset's files that are given twice, because parts of its splits overlap."""

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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
    """Say in a notice that rows are both in the part to train on and in the part to test on."""
    for one in first:
        for two in second:
            if common := common_rows(one, two):
                told = f"{where}: {common} are both trained on and tested on"
                warnings.warn(f"{told}; give splits that do not overlap", Notice, stacklevel=3)


def common_rows(one: Span, two: Span) -> str:
    """The rows that two spans have in common, in words; empty if there are none."""
    start, end = max(one.start, two.start), min(one.end, two.end)
    return f"rows {start} to {end - 1} of {one.name}" if one.name == two.name and start < end else ""
