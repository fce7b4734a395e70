"""The figure of what a threshold or a number of clusters was decided by, where a configuration had `auto`."""

import numpy as np
from matplotlib.figure import Figure

from jcfl.errors import InputError
from jcfl.errors.words import counted
from jcfl.results import History
from jcfl.view.plotting.style import decades, figure, line, panels


@figure(single=True)
def decision(run: History, columns: int | None = None) -> Figure:
    """The error on the parts of the training data left out, and the number of clusters, against the threshold.

    The threshold is for noise-corrected cosines, also if the method compares others.

    Args:
        run: a history or a folder whose configuration had an option that was `auto`.
        columns: panels in a row.

    Raises:
        InputError: no option was `auto`.
    """
    found = run.summary.get("decided")
    if not found:
        raise InputError("no option of the method was auto")
    taus, chosen, clients = np.array(found["thresholds"]), found["tau"], sum(found["sizes"])
    shown, axes = panels(2, columns, 2.2)
    for axis, values, title in zip(
        axes,
        (found["error"], found["clusters"]),
        ("error on the part left out", f"clusters of {counted(clients, 'client')}"),
        strict=True,
    ):
        axis.plot(taus, values, **line(0))
        axis.axvline(chosen, color="#555555", linewidth=0.8, linestyle=(0, (3, 2)))
        axis.set(xlabel="threshold τ (cosine corrected for noise)", ylabel=title, xlim=(taus[0], taus[-1]))
    axes[0].set_ylim(bottom=0)
    decades(axes[1].yaxis)
    said = ", ".join(f"{name} = {value}" for name, value in found["values"].items())
    place = "left" if chosen > taus.mean() else "right"
    axes[0].annotate(
        said, (chosen, 0.04), xycoords=("data", "axes fraction"), xytext=(-3 if place == "left" else 3, 0),
        textcoords="offset points", ha="right" if place == "left" else "left", fontsize=6.5, color="#555555",
    )  # fmt: skip
    return shown
