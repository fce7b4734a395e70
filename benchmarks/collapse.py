"""The figure of `methods.py collapse`: the sizes of IFCA's clusters after the last round, with CAM and without.

    python benchmarks/methods.py --seeds 3 --data-dir FOLDER --out benchmarks/figures/question-collapse.json collapse
    python benchmarks/collapse.py benchmarks/figures/question-collapse.json

The first command trains, and writes the JSON file and the figure beside it; the second one draws the figure again.
`question-collapse.json` has the sizes after round 20 that RESULTS.md prints.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from inputs import read, run_script
from matplotlib.axes import Axes
from study import drawing

from jcfl.view.plotting.style import COLOURS, MARKERS

LOOKS = {"": ("IFCA", -0.17), ", CAM": ("IFCA with CAM", 0.17)}
"""The name and the place of a row's points, by what its title has after the number of clusters."""

TITLE = re.compile(r"K = (\d+)(?:, CAM)?, seed \d+")


def draw(found: Mapping[str, Any], file: Path) -> None:
    """Write the figure: a panel for each number of clusters, a point for each seed's cluster.

    Args:
        found: what `methods.py collapse` found: by title such as `K = 5, CAM, seed 0` the sizes of the clusters after
            each round, the largest first, and those of the true groups.
        file: the figure's file.
    """
    numbers = sorted({clusters(title) for title in found})
    with drawing(file, len(numbers)) as axes:
        for axis, k in zip(axes, numbers, strict=True):
            panel(axis, {title: one for title, one in found.items() if clusters(title) == k}, k)
        axes[0].set_ylabel("clients in the cluster")
        axes[-1].legend(loc="upper right")


def panel(axis: Axes, found: Mapping[str, Any], k: int) -> None:
    """Draw the sizes of `k` clusters, and those of the true groups as steps."""
    groups = next(iter(found.values()))["groups"]
    both = max(k, len(groups))
    steps = np.pad(np.sort(groups)[::-1], (0, both - len(groups)))
    axis.stairs(steps, np.arange(both + 1) + 0.5, color="#8F8F8F", label="true groups", baseline=None)
    for turn, (kind, (name, aside)) in enumerate(LOOKS.items()):
        rows = [last(one) for title, one in found.items() if re.fullmatch(rf"K = {k}{kind}, seed \d+", title)]
        for i, row in enumerate(rows):
            x = np.arange(1, len(row) + 1) + aside
            look: dict[str, Any] = {"color": COLOURS[turn], "marker": MARKERS[turn], "linestyle": "", "alpha": 0.75}
            axis.plot(x, row, label=name if i == 0 else None, markersize=3, markeredgewidth=0, clip_on=False, **look)
    axis.set(title=f"{k} models, {len(groups)} groups", xlabel="cluster, the largest first", xlim=(0.4, both + 0.6))
    axis.set_ylim(bottom=0)
    axis.set_xticks([i for i in range(1, both + 1) if both <= 10 or i % 5 == 0 or i == 1])


def clusters(title: str) -> int:
    """The number of models in a row's title."""
    return int(TITLE.findall(title)[0])


def last(one: Mapping[str, Any]) -> list[int]:
    """The sizes after the last round."""
    return list(one["sizes"].values())[-1]


def main(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What `methods.py collapse` wrote.")],
) -> None:
    """Draw the figure of a JSON file beside it."""
    found = read(file, lambda found: bool(found) and all(map(TITLE.fullmatch, found)), "methods.py collapse")
    draw(found, file.with_suffix(".png"))


if __name__ == "__main__":
    run_script(main)
