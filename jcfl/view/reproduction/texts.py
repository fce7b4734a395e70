"""A paper's table in words: its numbers as text, and what stands below them on the page and in the terminal."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from jcfl.errors.words import counted

MARKS = {"reproduced": "✓", "not reproduced": "✗", "not judged": "?", "cannot be run here": "–", "not run": "·"}
"""What stands behind our number for a verdict."""

DOUBT = "†"
"""What stands behind a printed number that the paper itself makes doubtful."""

ORDERS = ("higher", "lower", "at", "paper", "here", "")
"""The heads of the table of orders."""

DIFFERENCES = "Differences of the two, seed by seed; in brackets the 95 % interval of their mean."
"""What the numbers of the table of orders are."""


class Line(NamedTuple):
    """A row of the table, with its numbers by who has them: the paper's, and ours below them."""

    row: str
    numbers: dict[str, list[str]]


def columns(found: Mapping[str, Any]) -> list[str]:
    """The heads of the table: the paper's columns, and those of baselines."""
    return [*found["columns"], *baselines(found, "column")]


def lines(found: Mapping[str, Any]) -> list[Line]:
    """The rows of the table as text: the paper's, and those of baselines, which have our numbers only."""
    more = baselines(found, "column").values()
    empty = [""] * len(more)
    rows = [
        Line(
            one["row"],
            {
                "paper": [*map(printed, one["cells"]), *empty],
                "here": [*map(ours, one["cells"]), *(unjudged(cells[index]) for cells in more)],
            },
        )
        for index, one in enumerate(found["rows"])
    ]
    beside = baselines(found, "row").items()
    return [*rows, *(Line(label, {"here": [*map(unjudged, cells), *empty]}) for label, cells in beside)]


def without_unrun(found: Mapping[str, Any]) -> dict[str, Any]:
    """The table without the rows and columns of which nothing was run, for a page of paper; all where nothing was.

    Its counts of verdicts stay those of the whole table.

    Returns:
        what `found` has, and `left_out`: whether rows or columns are missing.
    """
    was_run = lambda cell: cell is not None and cell["verdict"] != "not run"
    cells = [list(map(was_run, one["cells"])) for one in found["rows"]]
    rows = [index for index, row in enumerate(cells) if any(row)] or list(range(len(cells)))
    columns = [i for i, column in enumerate(zip(*cells, strict=True)) if any(column) or not any(map(any, cells))]
    chosen = lambda line, places: {**line, "cells": [line["cells"][place] for place in places]}
    return {
        **found,
        "columns": [found["columns"][i] for i in columns],
        "rows": [chosen(found["rows"][index], columns) for index in rows],
        "beside": [chosen(line, columns if line["kind"] == "row" else rows) for line in found.get("beside", ())],
        "left_out": (len(rows), len(columns)) != (len(cells), len(found["columns"])),
    }


def baselines(found: Mapping[str, Any], kind: str) -> dict[str, list[Any]]:
    """The cells of the baselines that have a row, or a column, by its label, if there is a number in them.

    Files that were written before there were baselines have none.

    Args:
        found: what `jcfl.runs.reproducing.reproduce` returns.
        kind: `row` or `column`.
    """
    labels: dict[str, list[Any]] = {}
    lines = [line for line in found.get("beside", ()) if line["kind"] == kind]
    often = Counter(line["method"] for line in lines)
    for line in lines:
        federations = "; ".join(dict.fromkeys(cell["federation"] for cell in line["cells"] if cell is not None))
        label = f"{line['method']} (not in the paper)" + f", {federations}" * (often[line["method"]] > 1)
        labels[label] = line["cells"]
    return {label: cells for label, cells in labels.items() if any(map(unjudged, cells))}


def printed(cell: Mapping[str, Any] | None) -> str:
    """The paper's number."""
    return "" if cell is None else number(cell["printed"], cell["digits"]) + DOUBT * bool(cell["doubts"])


def ours(cell: Mapping[str, Any] | None) -> str:
    """Our number, and the mark of its verdict."""
    if cell is None:
        return ""
    mark = MARKS[cell["verdict"]]
    return mark if cell["ours"] is None else f"{number(cell['ours'], max(cell['digits'], 1))} {mark}"


def unjudged(cell: Mapping[str, Any] | None) -> str:
    """A baseline's number, if there is one."""
    return "" if cell is None or cell["ours"] is None else number(cell["ours"], max(cell["digits"], 1))


def number(value: Mapping[str, float | None], digits: int) -> str:
    """A mean with its standard deviation.

    >>> number({"mean": 95.716, "std": 0.131}, 2), number({"mean": 5.0, "std": None}, 0)
    ('95.72 ± 0.13', '5')
    """
    std = value["std"]
    return f"{value['mean']:z.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def made(found: Mapping[str, Any]) -> dict[str, Any]:
    """What made all runs together: each command, commit, device, version and seed once, and the sum of the seconds.

    >>> found = made({"made": [{"seeds": [1], "seconds": 1.5}, {"seeds": [0, 1], "seconds": 2.0}]})
    >>> found["seeds"], found["seconds"]
    ([0, 1], 3.5)
    """
    names = ("runs", "commands", "commits", "devices", "versions", "options", "seeds")
    once = lambda values: [value for i, value in enumerate(values) if value not in values[:i]]
    lists = {name: once([value for one in found["made"] for value in one.get(name, [])]) for name in names}
    return {**lists, "seeds": sorted(lists["seeds"]), "seconds": sum(one["seconds"] for one in found["made"])}


def gap(order: Mapping[str, Any]) -> str:
    """Our paired difference with the interval of its mean, if there is one."""
    value = order["ours"]
    if value is None:
        return "–"
    digits = max(order["digits"], 1)
    mean, *ends = (f"{one:z.{digits}f}" for one in (value["mean"], *(value["interval"] or ())))
    return mean + (f" ({' to '.join(ends)})" if ends else "")


def tally(found: Mapping[str, Any], what: str) -> str:
    """How often each verdict was given on the numbers, or on the orders.

    >>> tally({"counts": {"numbers": {"reproduced": 3, "not run": 1}}}, "numbers")
    '4 numbers: 3 reproduced, 1 not run'
    """
    counts = found["counts"][what]
    parts = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    total = sum(counts.values())
    return counted(total, what.removesuffix("s")) + (f": {parts}" if parts else "")


def legend(found: Mapping[str, Any]) -> str:
    """What the signs in the table mean."""
    marks = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    doubtful = f" {DOUBT} doubtful in the paper itself." if doubts(found) else ""
    return f"Mean ± sample standard deviation over seeds. {marks}.{doubtful}"


def explanations(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Why numbers have their verdicts or are doubtful, under titles; none where there is nothing to say."""
    return filled({"Why": reasons(found), "Doubtful in the paper": doubts(found)})


def experiment(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """How the runs differ from the paper's, under a line that says by what; none where there is nothing to say."""
    return filled(
        {
            f"The budget `{found['budget']}` changes this:": found["changes"],
            "Where the runs depart from the paper, or the paper does not say:": found["departures"],
        }
    )


def filled(lists: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The lists that are not empty."""
    return {title: items for title, items in lists.items() if items}


def orders(found: Mapping[str, Any], only_found: bool = False) -> list[list[str]]:
    """A row of texts under `ORDERS` for every order.

    Args:
        found: what `jcfl.runs.reproducing.reproduce` returns.
        only_found: leave out the orders of which we have no difference.
    """
    return [
        [one["above"], one["below"], one["at"], f"{one['printed']:.{one['digits']}f}", gap(one), one["verdict"]]
        for one in found["orders"]
        if one["ours"] is not None or not only_found
    ]


def reasons(found: Mapping[str, Any]) -> list[str]:
    """Why numbers have their verdicts, where there is a reason, and how many numbers it is the reason of."""
    cells = [cell for one in found["rows"] for cell in one["cells"] if cell is not None and cell["why"]]
    pairs = Counter((cell["verdict"], cell["why"]) for cell in cells)
    return [f"{verdict} ({counted(count, 'number')}): {why}" for (verdict, why), count in pairs.items()]


def doubts(found: Mapping[str, Any]) -> list[str]:
    """What makes printed numbers doubtful, with the rows it is about."""
    rows: dict[str, dict[str, None]] = {}
    for one in found["rows"]:
        for why in (why for cell in one["cells"] if cell is not None for why in cell["doubts"]):
            rows.setdefault(why, {})[one["row"]] = None
    return [f"{'; '.join(names)}: {why}" for why, names in rows.items()]
