"""Tables read from files, and checked before anything is trained."""

import importlib.resources
import math
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jcfl import metrics
from jcfl.core import costs
from jcfl.errors import InputError, sentence, shown, unknown
from jcfl.results import load_scores
from jcfl.runs.reproducing.tables import Definition, Table, title
from jcfl.runs.titles import folder_of
from jcfl.runs.yamltext import parsed

NUMBERS = "printed.yaml"
"""The file of the numbers that the papers print."""

MEASURED = (
    *("rounds", "seeds", "wall_s", "compile_s", "rounds_per_s", "clients_per_s", "peak_memory_bytes", "costs"),
    *("decided", "mean_of_last"),
)
"""The keys of a run's summary under which numbers are, besides those of scores; a table may show them."""


@cache
def shipped() -> dict[str, Table]:
    """The tables that come with the package, by name."""
    folder = importlib.resources.files("jcfl") / "papers"
    numbers = parsed((folder / NUMBERS).read_text("utf-8"), NUMBERS)
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    texts = {file.name.removesuffix(".yaml"): file.read_text("utf-8") for file in files if file.name != NUMBERS}
    found = [table for stem, text in texts.items() for table in tables(stem, text, numbers)]
    return {table.name: table for table in found}


def find(name: str) -> Table:
    """A table that comes with the package, or the one that a file describes.

    Raises:
        InputError: an unknown name; a file with several tables, or one that is wrong.
    """
    if not os.path.isfile(name):
        if name not in shipped():
            raise unknown("table", name, shipped())
        return shipped()[name]
    try:
        text = Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name} cannot be read as text: {error}") from None
    found = list(tables(Path(name).stem, text, {}))
    if len(found) != 1:
        raise InputError(f"{name}: expected one table, got {', '.join(one.name for one in found) or 'none'}")
    return found[0]


def tables(stem: str, text: str, numbers: Mapping[str, Any]) -> Iterator[Table]:
    """The tables of a file.

    Args:
        stem: its name.
        text: what is in it: the keys of a `Definition`, and `tables` with those of each table by its name.
        numbers: what papers print, for the tables that do not have it themselves.
    """
    whole = parsed(text, stem)
    entries = whole.pop("tables", {})
    if not isinstance(entries, Mapping) or not all(isinstance(own, Mapping) for own in entries.values()):
        raise InputError(f"{stem}: expected tables: {{NAME: {{…}}}}, got {shown(entries)}")
    for name, own in entries.items():
        printed = {"printed": numbers[name]} if name in numbers else {}
        try:
            given = Definition.model_validate(joined(joined(printed, whole), own))
        except ValidationError as error:
            raise InputError(f"{stem}, {name}: {sentence(error, Definition)}") from None
        yield sound(Table(name, stem, given))


def joined(below: Mapping[str, Any], above: Mapping[str, Any], depth: int = 2) -> dict[str, Any]:
    """Two mappings as one: nested ones are put together down to a depth, lists follow each other, else `above` counts.

    >>> joined({"a": {"x": 1}, "b": [1]}, {"a": {"y": 2}, "b": [2]})
    {'a': {'x': 1, 'y': 2}, 'b': [1, 2]}
    """
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and depth:
            found[key] = joined(old, value, depth - 1)
        else:
            found[key] = [*old, *value] if isinstance(old, list) and isinstance(value, list) else value
    return found


def is_printed(cell: tuple[float | None, ...]) -> bool:
    """Whether a cell is a mean, or a mean and a standard deviation, either of which may be missing."""
    given = [value for value in cell if value is not None]
    return len(cell) in (1, 2) and all(map(math.isfinite, given)) and (cell[-1] or 0) * (len(cell) - 1) >= 0


def sound(table: Table) -> Table:
    """A table whose labels are all known, and whose cells can be run or say why not.

    Raises:
        InputError: the line names the table and the part of it that is wrong.
    """
    refuse_names(table)
    refuse_numbers(table)
    refuse_unknown_labels(table)
    refuse_unknown_scores(table)
    refuse_cells(table)
    return table


def refuse_names(table: Table) -> None:
    """Refuse names that files and folders cannot have, or that would share a folder."""
    given = table.given
    for kind, names in (("table", [table.name]), ("budget", given.budgets)):
        for name in names:
            if name != title(name):
                raise InputError(f"{kind} {name!r}: expected a name that can be a file's, such as {title(name)!r}")
    for kind, names in (("federation", [*given.federations]), ("method", [*given.methods, *given.beside])):
        folders: dict[str, str] = {}
        for name in names:
            folder = folder_of(title(name))
            if folder in folders:
                other = folders[folder]
                raise InputError(f"{table.name}: the {kind}s {other!r} and {name!r} would share a folder; rename one")
            folders[folder] = name


def refuse_numbers(table: Table) -> None:
    """Refuse rows of printed numbers of another length than the columns, and numbers that are no mean."""
    printed = table.given.printed
    for row, numbers in printed.rows.items():
        if len(numbers) != len(printed.columns):
            raise InputError(
                f"{table.name}: {len(numbers)} numbers in the row {row!r} of {len(printed.columns)} columns"
            )
        for cell in numbers:
            if not is_printed(cell):
                raise InputError(f"{table.name}: expected [mean] or [mean, std] in the row {row!r}, got {list(cell)}")


def refuse_unknown_labels(table: Table) -> None:
    """Refuse orders, suspicious cells and budgets that name what the table does not have."""
    given, printed = table.given, table.given.printed
    known = {"row": printed.rows, "column": printed.columns}
    for order in (*given.orders, *given.more_orders):
        if order.above not in printed.rows and order.above not in printed.columns:
            raise unknown(f"row or column of {table.name}", order.above, [*printed.rows, *printed.columns])
        own, other = ("row", "column") if order.above in printed.rows else ("column", "row")
        for kind, label in ((own, order.below), *((other, label) for label in order.at)):
            if label not in known[kind]:
                raise unknown(f"{kind} in an order of the {own} {order.above!r} of {table.name}:", label, known[kind])
    for one in printed.suspect:
        for row, columns in one.cells.items():
            for kind, label in (("row", row), *(("column", column) for column in columns)):
                if label not in known[kind]:
                    raise unknown(f"{kind} of {table.name}", label, known[kind])
    for budget in given.budgets.values():
        named = (("federation", budget.federations, given.federations), ("method", budget.methods, given.methods))
        for kind, names, there in named:
            for name in names or ():
                if name not in there:
                    raise unknown(f"{kind} of {table.name}", name, there)


def refuse_cells(table: Table) -> None:
    """Refuse cells without a federation or a reason, and those of federations and methods that are not there."""
    given = table.given
    for cell, _ in table.cells():
        part = table.part(cell)
        if part.blocked is None and part.federation is None:
            raise InputError(f"{table.name}: {cell[0]}, {cell[1]} has neither a federation nor a reason (blocked)")
        for federation, method in table.keys(cell):
            for kind, label, there in (
                ("federation", federation, given.federations),
                ("method", method, given.methods),
            ):
                if label not in there:
                    raise unknown(f"{kind} of {table.name}", label, there)


def refuse_unknown_scores(table: Table) -> None:
    """Refuse a score that no run can have, before any is trained.

    Raises:
        InputError: a score that nobody has registered, and that is not in a run's summary.
    """
    parts = (table.given.default, *table.given.rows.values(), *table.given.columns.values())
    named = sorted(part.score for part in parts if part.score is not None)
    first = {name.partition(".")[0] for name in named}
    load_scores(first.difference(MEASURED))
    known = [*metrics.score_names(), *MEASURED]
    for name in sorted(first.difference(known)):
        raise unknown(f"score of {table.name}", name, known)
    dotted = [f"costs.{name}" for name in costs.NAMES]
    for name in named:
        if name.partition(".")[0] == "costs" and name not in dotted:
            raise unknown(f"score of {table.name}", name, dotted)
