"""How fast gradients shrink with rounds, beside the rates of Ma (2023); asked by methods.py.

    python benchmarks/methods.py --data-dir FOLDER --out benchmarks/figures/question-rates.json rates
    python benchmarks/rates.py benchmarks/figures/question-rates.json

The first command trains, and writes the JSON file and the figure beside it; the second one draws the figure again.
With `--by-horizon` each number of rounds T is a training of its own, with a learning rate in proportion to 1/√T.

The theorems bound means over rounds and local steps, beginning with the initial models. Here the gradient is taken once
in a round, after it, at the server's models; that of the initial models, for which there are no clusters yet, is not in
the mean. Where the learning rate is fixed, WeCFL's bound does not reach 0, and for CAM the thesis takes a rate that
depends on the number of rounds. So the slopes of one training are no test of the theorems.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from inputs import read, run_script
from numpy.typing import ArrayLike
from study import TRAIN, Study, drawing, heading, row

from jcfl.results import History
from jcfl.types import Federation
from jcfl.view.plotting.style import COLOURS, DASHES, PAGE

RATES = {"WeCFL": -1.0, "WeCFL, CAM": -0.5, "IFCA, CAM": -0.5}
"""The power of the number of rounds with which the thesis lets the mean shrink: Remark 3.4.15 and Theorem 7.3.6."""

MOMENTS = (1, 3, 10, 30, 100, 300)
"""The numbers of rounds in a table, up to those of the run."""

FROM = 10
"""The first number of rounds of which the slope is taken."""


def answer(study: Study, warmup: int) -> None:
    """Print the mean over rounds of the squared gradient in each theorem, and its slope in both logarithms."""
    rows, federations = trained(study, warmup), study.federations("grouped_dirichlet", groups=study.groups)
    moments = [t for t in MOMENTS if t <= study.rounds]
    found: dict[str, Any] = {title: [] for title in rows}
    print(heading(["method", *(f"{t} rounds" for t in moments), "slope", "in the thesis"]), flush=True)
    for title, method in rows.items():
        for seed, federation in enumerate(federations):
            found[title].append(measured(study, federation, title, method, warmup, seed, study.rounds).tolist())
            study.saved(found)
        mean = np.mean(found[title], 0)
        cells = [f"{mean[t - 1]:.3f}" for t in moments]
        print(row(title, [*cells, f"{slope(mean):.2f}", f"{RATES[title]:g}"]), flush=True)
    if study.out is not None:
        draw(found, study.out.with_suffix(".png"))


def answer_by_horizon(study: Study, warmup: int) -> None:
    """Print the same means where each number of rounds T is a training of its own, and their slope.

    Its learning rate is that of the other studies times √(rounds/T), so that the longest training has the same one.
    """
    rows, federations = trained(study, warmup), study.federations("grouped_dirichlet", groups=study.groups)
    horizons = [t for t in MOMENTS if FROM <= t <= study.rounds]
    if len(horizons) < 2:
        raise typer.BadParameter(f"a slope needs two numbers of rounds of {MOMENTS}, from {FROM} on: raise --rounds")
    found: dict[str, Any] = {title: [] for title in rows}
    print(heading(["method", *(f"{t} rounds" for t in horizons), "slope", "in the thesis"]), flush=True)
    for title, method in rows.items():
        for seed, federation in enumerate(federations):
            last = {}
            for rounds in horizons:
                train = TRAIN | {"lr": TRAIN["lr"] * (study.rounds / rounds) ** 0.5}
                curve = measured(study, federation, title, method, warmup, seed, rounds, train=train)
                last[rounds] = float(curve[-1])
            found[title].append(last)
            study.saved(found)
        mean = np.mean([list(last.values()) for last in found[title]], 0)
        cells = [f"{value:.3f}" for value in mean]
        print(row(title, [*cells, f"{power(horizons, mean):.2f}", f"{RATES[title]:g}"]), flush=True)


def trained(study: Study, warmup: int) -> dict[str, Any]:
    """The methods that were asked for, by their titles."""
    cam = {"addons": [{"name": "cam", "warmup": warmup}]}
    rows = {title: {"name": title.split(",")[0].lower(), "clusters": study.groups} for title in RATES}
    return study.chosen({title: one | (cam if "CAM" in title else {}) for title, one in rows.items()})


def measured(
    study: Study, federation: Federation, title: str, method: Any, warmup: int, seed: int, rounds: int, **given: Any
) -> np.ndarray:
    """The mean of the squared gradient over the first T rounds after a warm-up, for every T of one run. [rounds]"""
    before = warmup if "CAM" in title else 0
    given |= {"rounds": before + rounds, "evaluate_every": 1, "evaluate_quality": True}
    history, _ = study.run(federation, method=method, seed=seed, **given)
    return means(bounded(history), history.rounds > before)


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
    """The `power` of the rounds from `FROM` on."""
    rounds = np.arange(1, mean.size + 1)
    late = rounds >= min(FROM, mean.size - 1)
    return power(rounds[late], mean[late])


def power(rounds: ArrayLike, mean: np.ndarray) -> float:
    """The slope of log(mean) by log(rounds), by least squares."""
    return float(np.polyfit(np.log(rounds), np.log(mean), 1)[0])


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
