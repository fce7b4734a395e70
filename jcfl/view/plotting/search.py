"""The figure of a search: the score of every trial, and the best so far."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from jcfl import metrics
from jcfl.errors import InputError
from jcfl.view.plotting.lines import scale_axis
from jcfl.view.plotting.style import STYLE, line, marker, panels, whole_numbers


def search(rows: Sequence[Mapping[str, Any]], by: str) -> Figure:
    """Scores against trials: a point for each trial, and a line for the best so far, with one colour for each method.

    Args:
        rows: of each trial, `method`, `trial` (from 1) and `score` (NaN or None if it diverged), as the rows of
            `jcfl.tune` and tune.json have them.
        by: the score.

    Raises:
        InputError: there are no trials.
    """
    if not rows:
        raise InputError("expected at least one trial, got none")
    best = np.fmin if metrics.score(by).better == "lower" else np.fmax
    with matplotlib.rc_context(STYLE):
        shown, (axis,) = panels(1, None, 2.4)
        for index, title in enumerate(dict.fromkeys(row["method"] for row in rows)):
            own = [row for row in rows if row["method"] == title]
            trials, scores = [row["trial"] for row in own], np.array([row["score"] for row in own], float)
            look = line(index)
            axis.plot(trials, scores, marker(index), color=look["color"], alpha=0.45, markeredgewidth=0)
            axis.step(trials, best.accumulate(scores), where="post", label=title, **look)
        scale_axis(axis, by)
        axis.set_xlabel("trial")
        whole_numbers(axis.xaxis)
        axis.legend(loc="best")
    return shown
