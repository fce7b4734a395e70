"""A paper's table beside what was found here: as Markdown, LaTeX, JSON and a figure."""

import itertools
import json
import math
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jcfl.errors import Notice, as_argument
from jcfl.errors.words import counted
from jcfl.results import writable, writing
from jcfl.view import pages
from jcfl.view.plotting import style
from jcfl.view.reproduction import texts

COLUMNS, ROW = 4, 0.17
"""Of the figure: panels side by side, and inches of a row."""

TITLE = 100
"""How many letters the titles of all panels side by side have room for."""

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
    keep_numbers(stem.with_name(f"{stem.name}.json"), found)  # last, so that a full disk leaves the file in its place
    return [*pages.write(stem, written), *pictures]


def keep_numbers(file: Path, found: Mapping[str, Any]) -> None:
    """Rename the file of earlier results if it has numbers that `found` does not have, because their runs are gone.

    A notice says how to show them again. A file in which numbers cannot be found, such as one of a later version or one
    that may not be read, is renamed too.
    """
    if not file.is_file():
        return
    try:
        lost = len({cell[:2] for cell in numbers(json.loads(file.read_text("utf-8"))) - numbers(found)})
        what = f"had numbers of {counted(lost, 'cell')} whose runs are not in {file.parent / 'runs'}; it is now"
        hint = "; --add {} shows them"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        lost, what, hint = 1, "has no results that this version can read; it is now", ""
    if lost:
        names = (file.with_name(f"{file.stem}-before{count}.json") for count in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        with writing(kept):
            file.rename(kept)
        warnings.warn(f"{file} {what} {kept}{hint.format(as_argument(kept))}", Notice, stacklevel=2)


def numbers(found: Mapping[str, Any]) -> set[tuple[str, int, int]]:
    """The row, or the baseline, the place and the seed of every number of ours."""
    lines = [(line["row"], line) for line in found["rows"]]
    lines += [(line["method"], line) for line in found.get("beside", ())]  # files had none before there were baselines
    cells = [(name, i, cell["ours"]) for name, line in lines for i, cell in enumerate(line["cells"]) if cell]
    every = {seed for one in found["made"] for seed in one["seeds"]}  # files have those of cells since there is --seed
    return {(name, i, seed) for name, i, ours in cells if ours for seed in ours.get("seeds", every)}


def page(found: Mapping[str, Any], kind: str, picture: str | None = None) -> str:
    """A table as a page of Markdown (`md`), or as a float of LaTeX (`tex`).

    Args:
        found: what `jcfl.runs.reproducing.reproduce` returns.
        kind: `md` or `tex`.
        picture: the figure's file beside the page, without its ending.
    """
    template = pages.environment().get_template(f"reproduction/page.{kind}")
    return template.render(found=found, texts=texts, made=texts.made(found), picture=picture)


def figure(found: Mapping[str, Any]) -> Figure | None:
    """Printed numbers with their deviations beside ours with their intervals, a panel per column; None without ours.

    Baselines alone are no reason for a panel.
    """
    rows = {one["row"]: one["cells"] for one in found["rows"]} | texts.baselines(found, "row")
    columns = {
        name: {row: cells[i] for row, cells in rows.items()}
        for i, name in enumerate(found["columns"])
        if any(one["cells"][i] and one["cells"][i]["ours"] for one in found["rows"])
    }
    if not columns:
        return None
    columns |= {name: dict(zip(rows, cells, strict=True)) for name, cells in texts.baselines(found, "column").items()}
    with matplotlib.rc_context(style.STYLE):
        shown, axes = style.panels(len(columns), min(COLUMNS, len(columns)), 0.6 + ROW * len(rows), style.PAGE)
        for index, (axis, (name, cells)) in enumerate(zip(axes, columns.items(), strict=True)):
            draw(axis, cells)
            axis.set_title(textwrap.fill(name, TITLE // min(COLUMNS, len(columns))), fontsize=6)
            axis.set_yticks(range(len(cells)), list(cells) if index % COLUMNS == 0 else [""] * len(cells), fontsize=6)
        style.legend_above(shown, axes)
    return shown


def draw(axis: Axes, cells: Mapping[str, Any]) -> None:
    """One column: a row per method, the first on top, the paper's number above ours. A row can have neither."""
    looks: dict[str, Any] = {
        "paper": {"color": style.colour(7), "mfc": "white", "marker": "o"},
        "ours": {"color": style.colour(0), "marker": "o"},
        "ours, one seed": {"color": style.colour(0), "mfc": "white", "marker": "D"},  # without an interval
    }
    points: dict[str, list[tuple[float, float, float]]] = {name: [] for name in looks}
    own = [cell for cell in cells.values() if cell is not None and "printed" in cell] or list(cells.values())
    for place, cell in enumerate(cells.values()):
        if cell is not None and "printed" in cell:
            points["paper"].append((place - 0.15, cell["printed"]["mean"], cell["printed"]["std"] or 0.0))
        if cell in own and cell is not None and cell["ours"] is not None:
            low, high = cell["ours"]["interval"] or (cell["ours"]["mean"],) * 2
            name = "ours" if cell["ours"]["interval"] else "ours, one seed"
            points[name].append((place + 0.15, cell["ours"]["mean"], (high - low) / 2))
    for name in (name for name, found in points.items() if found):
        y, x, reach = zip(*points[name], strict=True)
        axis.errorbar(x, y, xerr=reach, linestyle="none", ms=3, elinewidth=0.8, label=name, **looks[name])
    # The interval of two seeds can be many times longer than the numbers are apart: it is cut at the panel's edge.
    numbers = [*(x - reach for _, x, reach in points["paper"]), *(x + reach for _, x, reach in points["paper"])]
    numbers += [x for name in looks if name != "paper" for _, x, _ in points[name]]
    room = ROOM * (max(numbers) - min(numbers))
    if room > 0:
        low, high = axis.get_xlim()
        axis.set_xlim(max(low, min(numbers) - room), min(high, max(numbers) + room))
    draw_beside(
        axis, {place: cell for place, cell in enumerate(cells.values()) if cell is not None and cell not in own}
    )
    axis.set_ylim(len(cells) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def draw_beside(axis: Axes, cells: Mapping[int, Mapping[str, Any]]) -> None:
    """Baselines in a column of other numbers, which keep the panel to themselves: farther ones are written at the edge.

    Args:
        axis: the panel.
        cells: the baselines by their places from the top.
    """
    low, high = axis.get_xlim()
    colour = style.colour(0)
    for place, cell in cells.items():
        mean, text = cell["ours"]["mean"] if cell["ours"] else math.nan, texts.unjudged(cell)
        if low <= mean <= high:
            axis.plot(mean, place + 0.15, marker="o", ms=3, color=colour)
        elif text:
            words, at, side = (f"← {text}", 0.03, "left") if mean < low else (f"{text} →", 0.97, "right")
            where = axis.get_yaxis_transform()
            axis.text(at, place, words, transform=where, ha=side, va="center", fontsize=5, color=colour)
