"""Charts of the results of `jcfl bench`: seconds as bars, and the growth of time and memory with the problem's size."""

from pathlib import Path
from typing import Any

import matplotlib

from jcfl.view.plotting import style


def seconds(found: dict[str, Any], stem: Path) -> list[Path]:
    """Draw all measurements in seconds as `stem`.png, on a logarithmic scale, and return the file if there are any."""
    bars = [
        (" ".join(filter(None, (case["row"], case["case"]))) + f": {key.removesuffix('_s').replace('_', ' ')}", value)
        for case in found["cases"]
        for key, value in case.get("figures", {}).items()
        if key.endswith("_s") and isinstance(value, float) and value > 0
    ][::-1]
    if not bars:
        return []
    with matplotlib.rc_context(style.STYLE):
        shown, (axis,) = style.panels(1, 1, 0.5 + 0.13 * len(bars), style.PAGE)
        drawn = axis.barh([name for name, _ in bars], [value for _, value in bars], color=style.colour(0))
        axis.bar_label(drawn, [f"{value:.3g}" for _, value in bars], padding=2, fontsize=5)
        axis.set_xlabel("seconds")
        style.decades(axis.xaxis)
        axis.tick_params("y", labelsize=5)
        axis.margins(x=0.12, y=0.01)
        return style.save(shown, stem, ["png"])


def growth(found: dict[str, Any], stem: Path) -> list[Path]:
    """Draw seconds per round and peak memory against the problem's size, and return the file.

    There is a column for each row that has cases of several sizes. If no row has, nothing is drawn.
    """
    table = {name: points(found["cases"], name) for name in dict.fromkeys(case["row"] for case in found["cases"])}
    table = {name: some for name, some in table.items() if len(some) > 1}
    if not table:
        return []
    with matplotlib.rc_context(style.STYLE):
        shown, axes = style.panels(2 * len(table), len(table), 1.5, style.PAGE)
        for column, (name, some) in enumerate(table.items()):
            x, seconds, memory = zip(*some, strict=True)
            for axis, y in ((axes[column], seconds), (axes[len(table) + column], memory)):
                axis.plot(x, y, marker="o", color=style.colour(0))
                axis.set_ylim(0, 1.15 * max(y))
                style.decades(axis.xaxis)
            axes[len(table) + column].set_xlabel(name)
        axes[0].set_ylabel("seconds a round")
        axes[len(table)].set_ylabel("peak memory, GiB")
        return style.save(shown, stem, ["png"])


def points(cases: list[dict[str, Any]], row: str) -> list[tuple[float, float, float]]:
    """The size, seconds per round and peak memory of a row's cases; a case counts if its name is one number."""
    sized = [case for case in cases if case["row"] == row and case["case"].isdigit() and "figures" in case]
    known = [(case["figures"].get(row) or int(case["case"]), case["figures"]) for case in sized]
    return [(size, figures["round_s"], figures["peak_GiB"]) for size, figures in known]
