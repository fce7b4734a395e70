"""The figures of a comparison: paired differences, a critical-difference diagram, and accuracy against cost."""

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jcfl import metrics
from jcfl.view import statistics
from jcfl.view.comparing.tables import heading
from jcfl.view.plotting import style
from jcfl.view.plotting.lines import set_y_title

ROW = 0.24
"""Inches of a method's row."""

LONGEST, LETTER = 36, 0.056
"""The most characters of a method's name, and inches of one in a diagram of ranks."""

INTERVALS = {"seeds": ("over seeds", 0, "o", -0.14), "clients": ("over clients", 1, "s", 0.14)}
"""The intervals of a difference: the name, the colour, the marker, and where in the row."""


def figures(found: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """The figures that make sense, each with the name of its file without the ending.

    Args:
        found: what `jcfl.view.comparing.comparison` returns.
    """
    with matplotlib.rc_context(style.STYLE):
        for one in found["metrics"]:
            yield f"differences-{one['metric']}", differences(one, found["baseline"])
            if one["ranks"]:
                yield f"ranks-{one['metric']}", ranks(one["ranks"])
            if all(row["bytes"] is not None for federation in one["federations"] for row in federation["rows"]):
                yield f"pareto-{one['metric']}", pareto(one)


def differences(one: Mapping[str, Any], baseline: str) -> Figure:
    """The difference of each method from the baseline with its intervals, a panel for each federation."""
    most = max(len(federation["rows"]) - 1 for federation in one["federations"])
    less = f"{metrics.score(one['metric']).title} less {style.shortened(baseline, LONGEST)}’s"
    less += ", points" if metrics.score(one["metric"]).unit == "%" else ""
    shown, axes = style.panels(len(one["federations"]), 1, 0.75 + ROW * max(most, 2), width(one))
    scale = metrics.score(one["metric"]).scale
    for axis, federation in zip(axes, one["federations"], strict=True):
        rows = [row for row in federation["rows"] if row["difference"]]
        for over, (label, colour, marker, shift) in INTERVALS.items():
            points = [(i, row["difference"]) for i, row in enumerate(rows) if row["difference"][over]]
            if points:
                x = scale * np.array([apart["mean"] for _, apart in points])
                ends = scale * np.array([apart[over] for _, apart in points]).T
                look: dict[str, Any] = {"color": style.colour(colour), "linewidth": 1}
                y = [i + shift for i, _ in points]
                axis.hlines(y, *ends, **look)
                axis.plot(x, y, linestyle="none", ms=3, marker=marker, color=look["color"], label=label)
        alone = [(i, row["difference"]) for i, row in enumerate(rows) if not any(map(row["difference"].get, INTERVALS))]
        if alone:  # of one seed
            x = [scale * apart["mean"] for _, apart in alone]
            axis.plot(x, [i for i, _ in alone], linestyle="none", ms=3, marker="D", color="black", label="no interval")
        axis.axvline(0, color="black", linewidth=0.6)
        axis.set_yticks(range(len(rows)), style.told_apart([row["method"] for row in rows], LONGEST))
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        axis.set_title(federation["federation"])
        axis.set_xlabel(textwrap.fill(less, 30))
    style.legend_above(shown, axes, several=True)  # a single entry says what all intervals are
    return shown


def width(one: Mapping[str, Any]) -> float:
    """The inches of a figure: those of a paper's column, or of its page where names are long."""
    longest = max(len(row["method"]) for federation in one["federations"] for row in federation["rows"])
    return style.COLUMN if longest <= LONGEST / 2 else style.PAGE


def ranks(found: Mapping[str, Any]) -> Figure:
    """The critical-difference diagram (Demšar 2006, Figure 1): mean ranks; lines join methods that do not differ."""
    order = np.argsort(found["mean"])
    k, half = len(order), -(-len(order) // 2)
    joined = statistics.alike(np.array(found["mean"]), found["critical"])
    lines = 0.35 + 0.28 * len(joined)  # the depth of the joining lines, in rows
    pairs = zip(style.told_apart(found["methods"], LONGEST), found["mean"], strict=True)
    names = [f"{name} ({mean:.2f})" for name, mean in pairs]
    beside = 0.15 + LETTER * max(map(len, names))  # inches on each side
    inches = style.COLUMN if 2 * beside < style.COLUMN / 2 else style.PAGE
    shown, (axis,) = style.panels(1, 1, 0.55 + ROW * (half + lines), inches)
    rank = (inches - 2 * beside) / (k - 1)  # inches from one rank to the next
    axis.axis("off")
    axis.set_xlim(1 - beside / rank, k + beside / rank)
    axis.set_ylim(half + lines + 0.4, -2.3)
    axis.plot([1, k], [0, 0], color="black", linewidth=0.8)
    for place in range(1, k + 1):
        axis.plot([place, place], [0, -0.25], color="black", linewidth=0.8)
        if (place - 1) % math.ceil(0.15 / rank) == 0:
            axis.text(place, -0.35, str(place), ha="center", va="bottom", fontsize=7)
    for i, method in enumerate(order):
        left = i < half
        depth = lines + 0.5 + (i if left else k - 1 - i)
        mean, end = found["mean"][method], 1 - 0.05 / rank if left else k + 0.05 / rank
        axis.plot([mean, mean, end], [0, depth, depth], color="black", linewidth=0.6)
        aside = end + (-0.03 if left else 0.03) / rank
        axis.text(aside, depth, names[method], va="center", fontsize=7, ha="right" if left else "left")
    for i, (low, high) in enumerate(joined):
        axis.plot([low - 0.04, high + 0.04], [0.35 + 0.28 * i] * 2, color=style.colour(0), linewidth=2.4)
    reach = min(found["critical"], k - 1)  # of a longer one the end is left open
    axis.plot([1, 1 + reach], [-1.6, -1.6], color="black", linewidth=0.8)
    for place in (1, 1 + reach)[: 2 if reach == found["critical"] else 1]:
        axis.plot([place, place], [-1.75, -1.45], color="black", linewidth=0.8)
    axis.text(1 + reach / 2, -1.75, f"CD = {found['critical']:.2f}", ha="center", va="bottom", fontsize=7)
    return shown


def pareto(one: Mapping[str, Any]) -> Figure:
    """The metric against what the run of a seed sends, and the front of those that no other method beats."""
    shown, axes = style.panels(len(one["federations"]), 1, 2.1, width(one))
    score = metrics.score(one["metric"])
    names = list(dict.fromkeys(row["method"] for federation in one["federations"] for row in federation["rows"]))
    for axis, federation in zip(axes, one["federations"], strict=True):
        for row in federation["rows"]:
            look: dict[str, Any] = {
                "color": style.colour(names.index(row["method"])),
                "marker": style.marker(names.index(row["method"])),
            }
            spread = None if row["std"] is None else score.scale * row["std"]
            x, y = row["bytes"] / 1e6, score.scale * row["mean"]
            axis.errorbar(x, y, yerr=spread, linestyle="none", ms=5, label=style.entry(row["method"]), **look)
        front(axis, federation, score.scale)
        axis.set_title(federation["federation"])
        axis.set_xlabel("sent in a run, MB")
        set_y_title(axis, heading(one["metric"]))
    style.legend_above(shown, axes)
    return shown


def front(axis: Axes, federation: Mapping[str, Any], scale: float) -> None:
    """The Pareto front as steps, from the cheapest method to the best one."""
    points = sorted((row["bytes"] / 1e6, scale * row["mean"]) for row in federation["rows"] if row["pareto"])
    if points:
        axis.step(*zip(*points, strict=True), where="post", color=style.NOBODY, linewidth=1.2, zorder=0)
