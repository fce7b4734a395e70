"""Whether CAM makes a method less sensitive to its initial models; asked by methods.py.

    python benchmarks/methods.py --seeds 3 --data-dir FOLDER --out benchmarks/figures/question-starts.json starts
    python benchmarks/starts.py benchmarks/figures/question-starts.json

The first command trains, and writes the JSON file and the figure beside it; the second one draws the figure again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from inputs import read, run_script
from matplotlib.axes import Axes
from scipy import stats
from study import Study, drawing, heading, row

from jcfl.view.plotting.style import COLOURS, MARKERS

METHODS = ("IFCA", "FeSEM", "WeCFL")
METRICS = {"accuracy_micro": ("accuracy, %", 100), "ari": ("adjusted Rand index", 1)}
"""The name of each metric in tables and figures, and its unit."""
CAM = ", CAM"


def answer(study: Study, starts: int, warmup: int) -> None:
    """Print how far runs from different initial models are apart, with CAM and without.

    Runs of one federation differ in their seed alone, which draws the initial models and the order of examples.
    """
    rows = {}
    for name in METHODS:
        rows[name] = {"name": name.lower(), "clusters": study.groups}
        rows[name + CAM] = rows[name] | {"addons": [{"name": "cam", "warmup": warmup}]}
    rows = study.chosen(rows)
    found: dict[str, Any] = {metric: {title: [] for title in rows} for metric in METRICS}
    for number, federation in enumerate(study.federations("grouped_dirichlet", groups=study.groups)):
        for title, method in rows.items():
            history, _ = study.run(federation, method=method, seeds=starts, evaluate_every=study.rounds)
            for metric in METRICS:
                found[metric][title].append(history[metric][:, -1].tolist())
            print(f"federation {number}, {title}: {told(found['accuracy_micro'][title][-1:], 100)}", flush=True)
            study.saved(found)
    for metric, (name, unit) in METRICS.items():
        print("\n" + heading([name, "mean ± deviation", "with CAM", "ratio of deviations", "interval", "p"]))
        for title in METHODS:
            if {title, title + CAM} <= set(rows):
                plain, cam = found[metric][title], found[metric][title + CAM]
                ratio, low, high, p = compared(plain, cam)
                cells = [f"{ratio:.2f}", f"{low:.2f} to {high:.2f}", f"{p:.3f}"]
                print(row(title, [told(plain, unit), told(cam, unit), *cells]))
    if study.out is not None:
        draw(found, study.out.with_suffix(".png"))


def told(values: Sequence[Sequence[float]], unit: float) -> str:
    """The mean, and the deviation between initial models of one federation. [federations, starts]"""
    return f"{unit * np.mean(values):.2f} ± {unit * deviation(np.asarray(values)):.2f}"


def deviation(values: np.ndarray) -> np.ndarray:
    """The root of the mean sample variance inside a federation. [..., federations, starts] -> [...]"""
    return np.sqrt(values.var(axis=-1, ddof=1).mean(-1))


def compared(plain: Sequence[Sequence[float]], cam: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    """The ratio of both deviations, its 95 % bootstrap interval, and the p-value of Brown and Forsythe's test.

    Resampling draws initial models, the same ones for both, inside each federation; resamples of equal runs are left
    out. The test takes distances from the federation's median, and does not know that both methods share their seeds.
    """
    both = np.stack([plain, cam])  # [2, federations, starts]
    rng, (_, federations, starts) = np.random.default_rng(0), both.shape
    drawn = rng.integers(starts, size=(4000, 1, federations, starts))
    resampled = deviation(np.take_along_axis(both[None], drawn, -1))  # [4000, 2]
    apart = np.abs(both - np.median(both, -1, keepdims=True)).reshape(2, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.divide(*deviation(both)[::-1])
        low, high = np.nanpercentile(resampled[:, 1] / resampled[:, 0], [2.5, 97.5])
        return float(ratio), float(low), float(high), float(stats.f_oneway(*apart).pvalue)


def draw(found: Mapping[str, Any], file: Path) -> None:
    """Write the figure: a panel for each metric, a point for each run, a column for each method and federation."""
    with drawing(file, len(METRICS)) as axes:
        for axis, (metric, (name, unit)) in zip(axes, METRICS.items(), strict=True):
            panel(axis, found[metric], unit)
            axis.set_ylabel(name)
        axes[-1].legend(loc="best")


def panel(axis: Axes, found: Mapping[str, Sequence[Sequence[float]]], unit: float) -> None:
    """Draw one metric: the runs of a federation in a column, those with CAM beside it, means as lines."""
    methods = [title for title in METHODS if title in found]
    for turn, (kind, name) in enumerate({"": "without CAM", CAM: "with CAM"}.items()):
        look: dict[str, Any] = {"color": COLOURS[turn], "marker": MARKERS[turn], "linestyle": "", "alpha": 0.6}
        for place, title in enumerate(methods):
            columns = found.get(title + kind, ())
            for number, runs in enumerate(columns):
                x = place + 0.4 * turn - 0.36 + 0.3 * (number + 0.5) / len(columns)
                label = name if place == number == 0 else None
                axis.plot([x] * len(runs), unit * np.array(runs), label=label, markersize=3, markeredgewidth=0, **look)
                axis.plot([x - 0.04, x + 0.04], [unit * np.mean(runs)] * 2, color="black", linewidth=0.8)
    axis.set_xticks(range(len(methods)), methods)


def main(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What `methods.py starts` wrote.")],
) -> None:
    """Draw the figure of a JSON file beside it."""
    found = read(file, lambda found: found.keys() == METRICS.keys(), "methods.py starts")
    draw(found, file.with_suffix(".png"))


if __name__ == "__main__":
    run_script(main)
