"""Charts of what was measured: seconds as bars, and how seconds and memory grow."""

from pathlib import Path
from typing import Any

import matplotlib

from jcfl.bench import heading
from jcfl.bench.growth import GROWTH
from jcfl.plotting import style


def seconds(found: dict[str, Any], stem: Path) -> list[Path]:
    """A chart of every figure in seconds, on a logarithmic scale, as `stem`.png; nothing where there is none."""
    bars = [
        (" ".join(filter(None, (case["row"], case["case"]))) + f": {heading(key)[:-3]}", value)
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
        axis.set(xscale="log", xlabel="seconds")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.tick_params("y", labelsize=5)
        axis.margins(x=0.12, y=0.01)
        return style.save(shown, stem, ["png"])


def growth(found: dict[str, Any], stem: Path) -> list[Path]:
    """Seconds a round and memory against what grows, a column for each row with several cases; nothing without them."""
    rows = {name: [case for case in found["cases"] if case["row"] == name and "figures" in case] for name in GROWTH}
    rows = {name: points(name, cases) for name, cases in rows.items()}
    rows = {name: some for name, some in rows.items() if len(some) > 1}
    if not rows:
        return []
    with matplotlib.rc_context(style.STYLE):
        shown, axes = style.panels(2 * len(rows), len(rows), 1.5, style.PAGE)
        for column, (name, some) in enumerate(rows.items()):
            x, seconds, memory = zip(*some, strict=True)
            for axis, y in ((axes[column], seconds), (axes[len(rows) + column], memory)):
                axis.plot(x, y, marker="o", color=style.colour(0))
                axis.set(xscale="log", ylim=(0, 1.15 * max(y)))
                axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes[len(rows) + column].set_xlabel(name)
        axes[0].set_ylabel("seconds a round")
        axes[len(rows)].set_ylabel("peak memory, GiB")
        return style.save(shown, stem, ["png"])


def points(name: str, cases: list[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """What grows, seconds a round and memory; cases that differ in something else as well are left out."""
    plain = [case for case in cases if "/" not in case["case"]]
    known = [(case["figures"].get(name) or int(case["case"]), case["figures"]) for case in plain]
    return [(size, figures["round_s"], figures["peak_GiB"]) for size, figures in known]
