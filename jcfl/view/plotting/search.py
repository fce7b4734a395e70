"""The figure of a search: the score of every trial, and the best so far or how far each trial came."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jcfl import metrics
from jcfl.errors import InputError
from jcfl.view.plotting.lines import scale_axis
from jcfl.view.plotting.style import STYLE, entry, legend_above, line, marker, panels, whole_numbers


def search(rows: Sequence[Mapping[str, Any]], by: str) -> Figure:
    """Scores against trials: a point for each trial, and a line for the best so far, with one colour for each method.

    Where successive halving stopped trials, scores against rounds: a line for each trial, pale if it was stopped.

    Args:
        rows: of each trial, `method`, `trial` (from 1), `score` (NaN or None if it diverged) and, after successive
            halving, `rungs` (`rounds` and `score` of each), as the rows of `jcfl.tune` and tune.json have them.
        by: the score.

    Raises:
        InputError: there are no trials.
    """
    if not rows:
        raise InputError("expected at least one trial, got none")
    rounds = sorted({rung["rounds"] for row in rows for rung in row.get("rungs", ())})
    with matplotlib.rc_context(STYLE):
        shown, (axis,) = panels(1, None, 2.4)
        for index, title in enumerate(dict.fromkeys(row["method"] for row in rows)):
            own = [row for row in rows if row["method"] == title]
            if len(rounds) > 1:
                draw_rungs(axis, own, index, rounds[-1])
            else:
                draw_trials(axis, own, index, by)
        scale_axis(axis, by)
        if len(rounds) > 1:
            axis.set_xscale("log")
            axis.set_xlabel("round")
            axis.set_xticks(rounds, list(map(str, rounds)))
            axis.minorticks_off()
        else:
            axis.set_xlabel("trial")
            whole_numbers(axis.xaxis)
        legend_above(shown, [axis])
    return shown


def draw_trials(axis: Axes, rows: Sequence[Mapping[str, Any]], index: int, by: str) -> None:
    """Draw the trials of one method as points, and the best so far as a line."""
    best = np.fmin if metrics.score(by).better == "lower" else np.fmax
    trials, scores = [row["trial"] for row in rows], np.array([row["score"] for row in rows], float)
    look = line(index)
    axis.plot(trials, scores, marker(index), color=look["color"], alpha=0.45, markeredgewidth=0)
    axis.step(trials, best.accumulate(scores), where="post", label=entry(rows[0]["method"]), **look)


def draw_rungs(axis: Axes, rows: Sequence[Mapping[str, Any]], index: int, last: int) -> None:
    """Draw the trials of one method as lines over rounds; those that came to the last rung stand out."""
    for row in rows:
        rounds = [rung["rounds"] for rung in row["rungs"]]
        scores = np.array([rung["score"] for rung in row["rungs"]], float)
        look = line(index) | ({} if rounds[-1] == last else {"alpha": 0.3, "linewidth": 0.8, "markeredgewidth": 0})
        axis.plot(rounds, scores, marker=marker(index), label=entry(row["method"]) if row["best"] else None, **look)
