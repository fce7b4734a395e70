"""A paper's table beside what was found here: as Markdown, LaTeX, JSON and a figure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jcfl.results import writable
from jcfl.version import __version__
from jcfl.view import pages
from jcfl.view.plotting import style

MARKS = {"reproduced": "✓", "not reproduced": "✗", "not judged": "?", "cannot be run here": "–", "not run": "·"}
"""What stands behind our number for a verdict."""

DOUBT = "†"
"""What stands behind a printed number that the paper itself makes doubtful."""

COLUMNS, ROW = 4, 0.17
"""Of the figure: panels side by side, and inches of a row."""

ROOM = 0.25
"""How far a panel goes beyond its numbers at most, as a share of their span."""


class Line(NamedTuple):
    """A row of the table: the paper's numbers, and ours below them."""

    row: str
    printed: list[str]
    ours: list[str]


def write(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write all there is to see of a table, and return the files.

    Args:
        found: what `jcfl.runs.reproducing.reproduce` returns.
        folder: where to; files are called after the table and the budget.
    """
    stem = folder / f"{found['table']}-{found['budget']}"
    drawn = figure(found)
    pictures = style.save(drawn, stem, ["png", "pdf"]) if drawn is not None else []
    texts = {"json": json.dumps(writable(found), indent=1, ensure_ascii=False) + "\n"}
    texts |= {kind: page(found, kind, stem.name if pictures else None) for kind in ("md", "tex")}
    return [*pages.write(stem, texts), *pictures]


def page(found: Mapping[str, Any], kind: str, picture: str | None = None) -> str:
    """A table as a page of Markdown (`md`), or as a float of LaTeX (`tex`).

    Args:
        found: what `jcfl.runs.reproducing.reproduce` returns.
        kind: `md` or `tex`.
        picture: the figure's file beside the page, without its ending.
    """
    template = pages.environment().get_template(f"reproduction/page.{kind}")
    more = {"lines": lines(found), "reasons": reasons(found), "doubts": doubts(found), "gap": gap, "tally": tally}
    signs = {"marks": MARKS, "doubt": DOUBT, "version": __version__}
    return template.render(found=found, made=made(found), picture=picture, **signs, **more)


def lines(found: Mapping[str, Any]) -> list[Line]:
    """The rows of the table as text."""
    return [
        Line(one["row"], [printed(cell) for cell in one["cells"]], [ours(cell) for cell in one["cells"]])
        for one in found["rows"]
    ]


def printed(cell: Mapping[str, Any] | None) -> str:
    """The paper's number."""
    return "" if cell is None else number(cell["printed"], cell["digits"]) + DOUBT * bool(cell["doubts"])


def ours(cell: Mapping[str, Any] | None) -> str:
    """Our number, and the mark of its verdict."""
    if cell is None:
        return ""
    mark = MARKS[cell["verdict"]]
    return mark if cell["ours"] is None else f"{number(cell['ours'], max(cell['digits'], 1))} {mark}"


def number(value: Mapping[str, float | None], digits: int) -> str:
    """A mean with its standard deviation.

    >>> number({"mean": 95.716, "std": 0.131}, 2), number({"mean": 5.0, "std": None}, 0)
    ('95.72 ± 0.13', '5')
    """
    std = value["std"]
    return f"{value['mean']:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def made(found: Mapping[str, Any]) -> dict[str, Any]:
    """What made all runs together: each command, commit, device, version and seed once, and the sum of the seconds.

    >>> found = made({"made": [{"seeds": [0], "seconds": 1.5}, {"seeds": [0, 1], "seconds": 2.0}]})
    >>> found["seeds"], found["seconds"]
    ([0, 1], 3.5)
    """
    names = ("runs", "commands", "commits", "devices", "versions", "seeds")
    once = lambda values: [value for i, value in enumerate(values) if value not in values[:i]]
    lists = {name: once([value for one in found["made"] for value in one.get(name, [])]) for name in names}
    return {**lists, "seconds": sum(one["seconds"] for one in found["made"])}


def gap(order: Mapping[str, Any]) -> str:
    """Our paired difference with the interval of its mean, if there is one."""
    value = order["ours"]
    if value is None:
        return "–"
    digits = max(order["digits"], 1)
    low, high = value["interval"] or (None, None)
    return f"{value['mean']:.{digits}f}" + (f" ({low:.{digits}f} to {high:.{digits}f})" if value["interval"] else "")


def tally(found: Mapping[str, Any], what: str) -> str:
    """How often each verdict was given on the numbers, or on the orders.

    >>> tally({"counts": {"numbers": {"reproduced": 3, "not run": 1}}}, "numbers")
    '4 numbers: 3 reproduced, 1 not run'
    """
    counts = found["counts"][what]
    parts = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    total = sum(counts.values())
    return f"{total} {what[:-1] if total == 1 else what}" + (f": {parts}" if parts else "")


def reasons(found: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Why numbers have their verdicts, where there is a reason: verdict, reason, how many numbers it is that of."""
    cells = [cell for one in found["rows"] for cell in one["cells"] if cell is not None and cell["why"]]
    pairs = [(cell["verdict"], cell["why"]) for cell in cells]
    return [(*pair, pairs.count(pair)) for pair in dict.fromkeys(pairs)]


def doubts(found: Mapping[str, Any]) -> dict[str, str]:
    """What makes printed numbers doubtful, with the rows it is about."""
    rows: dict[str, dict[str, None]] = {}
    for one in found["rows"]:
        for why in (why for cell in one["cells"] if cell is not None for why in cell["doubts"]):
            rows.setdefault(why, {})[one["row"]] = None
    return {why: "; ".join(names) for why, names in rows.items()}


def figure(found: Mapping[str, Any]) -> Figure | None:
    """Printed numbers with their deviations beside ours with their intervals, a panel per column; None without ours."""
    columns = {
        column: {one["row"]: one["cells"][i] for one in found["rows"] if one["cells"][i] is not None}
        for i, column in enumerate(found["columns"])
    }
    columns = {name: cells for name, cells in columns.items() if any(cell["ours"] for cell in cells.values())}
    if not columns:
        return None
    most = max(len(cells) for cells in columns.values())
    with matplotlib.rc_context(style.STYLE):
        shown, axes = style.panels(len(columns), min(COLUMNS, len(columns)), 0.6 + ROW * most, style.PAGE)
        for index, (axis, (name, cells)) in enumerate(zip(axes, columns.items(), strict=True)):
            draw(axis, cells)
            axis.set_title(name, fontsize=6)
            axis.set_yticks(range(len(cells)), list(cells) if index % COLUMNS == 0 else [""] * len(cells), fontsize=6)
        style.legend_above(shown, axes)
    return shown


def draw(axis: Axes, cells: Mapping[str, Any]) -> None:
    """One column: a row per method, the first on top, the paper's number above ours."""
    looks: dict[str, Any] = {"paper": {"color": style.colour(7), "mfc": "white"}, "ours": {"color": style.colour(0)}}
    points: dict[str, list[tuple[float, float, float]]] = {name: [] for name in looks}
    for place, cell in enumerate(cells.values()):
        points["paper"].append((place - 0.15, cell["printed"]["mean"], cell["printed"]["std"] or 0.0))
        if cell["ours"] is not None:
            low, high = cell["ours"]["interval"] or (cell["ours"]["mean"],) * 2
            points["ours"].append((place + 0.15, cell["ours"]["mean"], (high - low) / 2))
    for name, found in points.items():
        y, x, reach = zip(*found, strict=True)
        axis.errorbar(x, y, xerr=reach, linestyle="none", marker="o", ms=3, elinewidth=0.8, label=name, **looks[name])
    # The interval of two seeds can be many times longer than the numbers are apart: it is cut at the panel's edge.
    numbers = [*(x - reach for _, x, reach in points["paper"]), *(x + reach for _, x, reach in points["paper"])]
    numbers += [x for _, x, _ in points["ours"]]
    room = ROOM * (max(numbers) - min(numbers))
    if room > 0:
        low, high = axis.get_xlim()
        axis.set_xlim(max(low, min(numbers) - room), min(high, max(numbers) + room))
    axis.set_ylim(len(cells) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
