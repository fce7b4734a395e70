"""How fast gradients shrink with rounds, beside the rates of Ma (2023); asked by methods.py.

    python benchmarks/methods.py --data-dir FOLDER --out benchmarks/figures/question-rates.json rates
    python benchmarks/rates.py benchmarks/figures/question-rates.json

The first command trains, and writes the JSON file and the figure beside it; the second one draws the figure again.

The theorems bound means over rounds and local steps, beginning with the initial models. Here the gradient is taken once
in a round, after it, at the server's models; that of the initial models, for which there are no clusters yet, is not in
the mean. The learning rate is fixed. For WeCFL the bound then does not reach 0, and for CAM the thesis takes a rate
that depends on the number of rounds. So the slopes are no test of the theorems.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from inputs import read, run_script
from study import Study, drawing, heading, row

from jcfl.results import History
from jcfl.view.plotting.style import COLOURS, DASHES, PAGE

RATES = {"WeCFL": -1.0, "WeCFL, CAM": -0.5, "IFCA, CAM": -0.5}
"""The power of the number of rounds with which the thesis lets the mean shrink: Remark 3.4.15 and Theorem 7.3.6."""

FROM = 10
"""The first number of rounds of which the slope is taken."""


def answer(study: Study, warmup: int) -> None:
    """Print the mean over rounds of the squared gradient in each theorem, and its slope in both logarithms."""
    cam = {"addons": [{"name": "cam", "warmup": warmup}]}
    rows = {title: {"name": title.split(",")[0].lower(), "clusters": study.groups} for title in RATES}
    rows = study.chosen({title: one | (cam if "CAM" in title else {}) for title, one in rows.items()})
    moments = [t for t in (1, 3, 10, 30, 100, 300) if t <= study.rounds]
    found: dict[str, Any] = {title: [] for title in rows}
    federations = study.federations("grouped_dirichlet", groups=study.groups)
    print(heading(["method", *(f"{t} rounds" for t in moments), "slope", "in the thesis"]), flush=True)
    for title, method in rows.items():
        for seed, federation in enumerate(federations):
            before = warmup if "CAM" in title else 0
            given = {"rounds": before + study.rounds, "evaluate_every": 1, "evaluate_quality": True}
            history, _ = study.run(federation, method=method, seed=seed, **given)
            found[title].append(means(bounded(history), history.rounds > before).tolist())
            study.saved(found)
        mean = np.mean(found[title], 0)
        cells = [f"{mean[t - 1]:.3f}" for t in moments]
        print(row(title, [*cells, f"{slope(mean):.2f}", f"{RATES[title]:g}"]), flush=True)
    if study.out is not None:
        draw(found, study.out.with_suffix(".png"))


def bounded(history: History) -> np.ndarray:
    """The squared gradient of Equation 3.37, or with CAM the sum of both in 7.17, times L, where all clients train. [t]

    A client counts by its training examples; in 7.17 all clients count alike.
    """
    shared = history.scores.get("squared_gradient_shared")
    return history["squared_gradient"][0] + (0 if shared is None else shared[0])


def means(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The mean of the first T values that count, for every T. [t], [t] bool -> [T]"""
    kept = values[counted]
    return kept.cumsum() / np.arange(1, kept.size + 1)


def slope(mean: np.ndarray) -> float:
    """The slope of log(mean) by log(T) from `FROM` rounds on, by least squares."""
    rounds = np.arange(1, mean.size + 1)
    late = rounds >= min(FROM, mean.size - 1)
    return float(np.polyfit(np.log(rounds[late]), np.log(mean[late]), 1)[0])


def draw(found: Mapping[str, Any], file: Path) -> None:
    """Write the figure: the mean of each method by the number of rounds, with both rates beside them."""
    with drawing(file, 1, (PAGE / 2, 2.5), {"text.parse_math": True}) as (axis,):
        for turn, (title, runs) in enumerate(found.items()):
            mean = np.mean(runs, 0)
            look: dict[str, Any] = {"color": COLOURS[turn], "linestyle": DASHES[turn]}
            axis.loglog(np.arange(1, mean.size + 1), mean, label=title.replace(", ", " with "), **look)
        most = max(len(run) for runs in found.values() for run in runs)
        top = max(np.mean(runs, 0)[0] for runs in found.values())
        rounds = np.array([1, most])
        for power, name in ((-0.5, "$T^{-1/2}$"), (-1.0, "$T^{-1}$")):
            axis.loglog(rounds, top * rounds**power, color="#8F8F8F", linewidth=0.7)
            axis.annotate(name, (rounds[1], top * rounds[1] ** power), fontsize=7, color="#5F5F5F")
        axis.set(xlabel="rounds T", ylabel="mean squared gradient")
        axis.legend(loc="upper right")


def main(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What `methods.py rates` wrote.")],
) -> None:
    """Draw the figure of a JSON file beside it."""
    found = read(file, lambda found: len(found) > 0 and found.keys() <= RATES.keys(), "methods.py rates")
    draw(found, file.with_suffix(".png"))


if __name__ == "__main__":
    run_script(main)
