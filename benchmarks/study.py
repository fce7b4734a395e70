"""What the studies of methods.py have in common: a dataset's clients, a run on them, rows of a table, a figure."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from inputs import known
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from jcfl import data
from jcfl.data import Examples
from jcfl.results import History
from jcfl.runs.experiment import run
from jcfl.types import Federation
from jcfl.view.plotting.style import PAGE, STYLE

TRAIN = {"lr": 0.05, "steps": 5, "batch_size": 32}


class Study(NamedTuple):
    """What a question is asked of; every field is an option."""

    name: str = "fashion_mnist"
    clients: int = 200
    groups: int = 10
    examples: int = 100  # for training, per client, on average; a quarter of that for testing
    hidden: int = 64
    rounds: int = 40
    seeds: int = 2
    only: tuple[str, ...] = ()  # rows
    data_dir: Path | None = None
    out: Path | None = None

    def federations(self, scenario: str, **options: Any) -> list[Federation]:
        """A federation for every seed, padded to one width so that they share their compiled programs."""
        whole = data.load(self.name, self.data_dir or Path(os.environ.get("JCFL_DATA", "data")))
        rng, number = np.random.default_rng(0), self.examples * self.clients
        part = replace(whole, train=drawn(rng, whole.train, number), test=drawn(rng, whole.test, number // 4))
        options |= {"clients": self.clients}
        found = [data.federation(part, scenario, seed=seed, **options) for seed in range(self.seeds)]
        for half in ("train", "test"):
            width = max(getattr(one, half).width for one in found)
            found = [replace(one, **{half: replace(getattr(one, half), width=width)}) for one in found]
        return found

    def run(self, federation: Federation, **given: Any) -> tuple[History, float]:
        """A run's history, and the processor's seconds."""
        start = time.process_time()
        common = {"model": {"name": "mlp", "hidden": self.hidden}, "train": TRAIN, "rounds": self.rounds}
        return run(federation, **{**common, **given}), time.process_time() - start

    def chosen(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """The rows asked for; an unknown one is refused."""
        known("row", self.only, rows)
        return {title: row for title, row in rows.items() if not self.only or title in self.only}

    def saved(self, found: Mapping[str, Any]) -> None:
        """The figures so far, on disk."""
        if self.out is not None:
            self.out.write_text(json.dumps(found, indent=1), "utf-8")


def drawn(rng: np.random.Generator, examples: Examples, number: int) -> Examples:
    """A random part of some examples, in their order."""
    rows = np.sort(rng.permutation(len(examples))[:number])
    return Examples(examples.x[rows], examples.y[rows])


@contextmanager
def drawing(
    file: Path,
    panels: int,
    size: tuple[float, float] = (PAGE, 2.5),
    style: Mapping[str, Any] | None = None,
    columns: int | None = None,
) -> Iterator[list[Axes]]:
    """The panels of a figure to draw in; at the end the figure is written.

    Args:
        file: the figure's file.
        panels: how many there are.
        size: inches.
        style: settings of matplotlib that differ from those of jcfl's own figures.
        columns: how many panels are side by side; by default all of them.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    settings: dict[Any, Any] = STYLE | dict(style or {})
    with matplotlib.rc_context(settings):
        columns = columns or panels
        figure, axes = pyplot.subplots(-(-panels // columns), columns, figsize=size, squeeze=False)
        for left in axes.flat[panels:]:
            left.remove()
        yield list(axes.flat[:panels])
        figure.savefig(file, dpi=200)
        pyplot.close(figure)


GRID = {
    "axes.grid": False,
    "axes.spines.left": False,
    "axes.spines.bottom": False,
    "figure.labelsize": 8,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
"""The style of a figure of `numbers`."""


def numbers(axis: Axes, grid: np.ndarray, text: Callable[[float], str], low: float, high: float) -> AxesImage:
    """Draw numbers in coloured cells, and `refused` where a number is NaN.

    Args:
        grid: the numbers. [rows, columns]
        text: how a number is written.
        low: the number of the darkest colour.
        high: the number of the brightest one.
    """
    image = axis.imshow(grid, aspect="auto", cmap="cividis", vmin=low, vmax=high)
    for (i, j), value in np.ndenumerate(grid):
        shade = "0.5" if np.isnan(value) else "white" if value < low + 0.6 * (high - low) else "black"
        written = "refused" if np.isnan(value) else text(value)
        axis.text(j, i, written, ha="center", va="center", fontsize=6.5, color=shade)
    return image


def heading(names: Sequence[str]) -> str:
    """The head of a Markdown table."""
    return f"{row(names[0], names[1:])}\n|{'---|' * len(names)}"


def row(title: str, cells: Sequence[str]) -> str:
    """One row of a Markdown table."""
    return f"| {' | '.join([title, *cells])} |"
