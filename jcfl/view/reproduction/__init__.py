"""A paper's table beside what was found here: as Markdown, LaTeX, JSON and a figure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jcfl.results import writable
from jcfl.version import __version__
from jcfl.view import pages
from jcfl.view.plotting import style
from jcfl.view.reproduction import texts

COLUMNS, ROW = 4, 0.17
"""Of the figure: panels side by side, and inches of a row."""

ROOM = 0.25
"""How far a panel goes beyond its numbers at most, as a share of their span."""


def write(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write all there is to see of a table, and return the files.

    Args:
        found: what `jcfl.runs.reproducing.reproduce` returns.
        folder: where to; files are called after the table and the budget.
    """
    stem = folder / f"{found['table']}-{found['budget']}"
    drawn = figure(found)
    pictures = style.save(drawn, stem, ["png", "pdf"]) if drawn is not None else []
    written = {"json": json.dumps(writable(found), indent=1, ensure_ascii=False) + "\n"}
    written |= {kind: page(found, kind, stem.name if pictures else None) for kind in ("md", "tex")}
    return [*pages.write(stem, written), *pictures]


def page(found: Mapping[str, Any], kind: str, picture: str | None = None) -> str:
    """A table as a page of Markdown (`md`), or as a float of LaTeX (`tex`).

    Args:
        found: what `jcfl.runs.reproducing.reproduce` returns.
        kind: `md` or `tex`.
        picture: the figure's file beside the page, without its ending.
    """
    template = pages.environment().get_template(f"reproduction/page.{kind}")
    return template.render(found=found, texts=texts, made=texts.made(found), picture=picture, version=__version__)


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
