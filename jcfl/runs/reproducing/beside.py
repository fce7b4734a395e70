"""Baselines beside a table: methods of which the paper prints no number, on every federation that is run of it."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Literal, NamedTuple

from jcfl import metrics
from jcfl.runs.reproducing.tables import Cell, Key, Table

Kind = Literal["row", "column"]
"""Where the numbers of a baseline stand."""


class Place(NamedTuple):
    """What a number of a baseline is: a score on a federation, and how the table shows it."""

    federation: str
    score: str
    scale: float
    digits: int


class Line(NamedTuple):
    """A row more of the table, or a column more, for one baseline."""

    method: str
    kind: Kind
    places: tuple[Place | None, ...]  # by the table's columns in a row, by its rows in a column; None: an empty cell

    def cells(self, table: Table) -> Iterator[tuple[Cell, Place]]:
        """The cells that are not empty, with the method's name for that of the line."""
        printed = table.given.printed
        for label, place in zip(printed.columns if self.kind == "row" else printed.rows, self.places, strict=True):
            if place is not None:
                yield ((self.method, label) if self.kind == "row" else (label, self.method)), place

    def keys(self, table: Table) -> Iterator[tuple[Cell, Key]]:
        """The run behind each of these cells."""
        return ((cell, (place.federation, self.method)) for cell, place in self.cells(table))


def lines(table: Table) -> list[Line]:
    """The rows or columns of a table's baselines.

    A baseline has a row if the columns say what the federation is, as in most tables, and a column if the rows do.
    Where that is mixed, it has the fewest numbers that tell all there is, and several rows or columns if need be.
    """
    shapes: list[tuple[Kind, list[tuple[Place | None, ...]]]] = [
        ("row", stacked(table, 1, table.given.printed.columns)),
        ("column", stacked(table, 0, table.given.printed.rows)),
    ]
    kind, rows = min(shapes, key=lambda one: (sum(place is not None for row in one[1] for place in row), len(one[1])))
    return [Line(method, kind, row) for method in table.given.beside for row in rows]


def stacked(table: Table, axis: int, labels: Iterable[str]) -> list[tuple[Place | None, ...]]:
    """Rows with a place for every label of an axis: the first places of each, then the second ones if they differ."""
    places = [(cell[axis], place_of(table, cell)) for cell, _ in table.cells()]
    stacks = (dict.fromkeys(place for label, place in places if label == one and place) for one in labels)
    return list(zip_longest(*stacks))


def place_of(table: Table, cell: Cell) -> Place | None:
    """What a baseline's number beside a cell is; None where it would have no meaning."""
    part = table.part(cell)
    score = part.metric
    is_plain = part.blocked is None and part.until is None and part.minus is None
    if not is_plain or part.federation is None or not metrics.score(score).is_of_predictions:
        return None
    return Place(part.federation, score, table.scale(cell), table.digits(cell))
