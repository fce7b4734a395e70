"""Figures that explain clusters: how stable they are, and what sets each of them apart."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jcfl.errors import InputError
from jcfl.errors.words import counted
from jcfl.results import History
from jcfl.view.plotting import explaining
from jcfl.view.plotting.cosines import labels_of, of_seed, remove_axes
from jcfl.view.plotting.explaining import Cluster, explain
from jcfl.view.plotting.membership import SHOWN
from jcfl.view.plotting.style import COLUMN, PAGE, Picture, colour, figure, in_per_cent, line, panels, whole_numbers

STRONG = 2.0
"""Cohen's d of the darkest colours; 0.8 is called a large effect."""


@figure(single=True)
def stability(run: History, columns: int | None = None) -> Figure:
    """The stability of clusters: their agreement between seeds and between evaluations, and the clients that changed.

    Args:
        run: a history or a folder.
        columns: panels in a row.
    """
    labels_of(run, None)
    found = explaining.stability(run)
    if np.isnan(found.seeds).all() and np.isnan(found.before).all():
        raise InputError(f"{run.name}: expected clusters of several evaluated rounds or of several seeds")
    shown, (above, below) = panels(2, columns, 1.9)
    mark: dict[str, Any] = {"marker": "o", "clip_on": False} if len(run.rounds) < 10 else {}
    lines = {"with the evaluation before": known_mean(found.before), "between seeds": found.seeds}
    for index, (name, values) in enumerate(lines.items()):
        if not np.isnan(values).all():
            above.plot(run.rounds, values, label=name, **line(index), **mark)
    above.set(xlabel="round", ylabel="adjusted Rand index")
    above.set_ylim(min(above.get_ylim()[0], -0.03), 1.05)
    above.legend(loc="best")
    below.plot(run.rounds, known_mean(found.churn), **line(0), **mark)
    if len(run.seeds) > 1:
        low, high = (known_mean(found.churn, reduce) for reduce in (np.nanmin, np.nanmax))
        below.fill_between(run.rounds, low, high, color=colour(0), alpha=0.2, linewidth=0)
    below.set(xlabel="round", ylabel="clients that changed")
    below.set_ylim(bottom=0)
    in_per_cent(below.yaxis)
    for axis in (above, below):
        aside = 0.5 if len(run.rounds) == 1 else 0
        axis.set_xlim(run.rounds[0] - aside, run.rounds[-1] + aside)
        whole_numbers(axis.xaxis)
    return shown


def known_mean(values: np.ndarray, reduce: Callable[..., Any] = np.nanmean) -> np.ndarray:
    """The mean over seeds [seeds, e] of what is known; NaN where nothing is. [e]"""
    known = np.asarray(~np.isnan(values).all(0))
    return np.array([reduce(column) if there else np.nan for column, there in zip(values.T, known, strict=True)])


@figure(single=True)
def apart(run: History, seed: int | None = None, columns: int | None = None) -> Figure:
    """The differences of each cluster after the last round: its labels, its mean image and its pixels.

    V is Cramér's, of labels and the cluster. The map on the right is Cohen's d of each pixel against the images of all
    other clients.

    Args:
        run: a history or a folder.
        seed: the seed whose clusters are shown; the first by default.
        columns: 1 for a figure as wide as a paper's column.
    """
    found = explain(run, seed)
    clusters = found.clusters[:SHOWN]
    if not clusters:
        raise InputError(f"{run.name}: no client has a cluster after the last round")
    pictured = any(one.image is not None for one in clusters)
    width = PAGE * 0.8 if columns is None else COLUMN * 1.25
    shown = Picture(figsize=(width, 1.05 * len(clusters) + 0.6))
    ratios = (2.6, *[1] * (pictured + any(one.effect is not None for one in clusters)))
    axes = shown.subplots(len(clusters), len(ratios), squeeze=False, width_ratios=ratios)
    top = 1.1 * max(found.labels.max(), *(one.labels.max() for one in clusters))
    for row, one in zip(axes, clusters, strict=True):
        draw_labels(row[0], one, found.labels, top)
        for axis in row[1:]:
            remove_axes(axis)
        if pictured and one.image is not None:
            draw_image(row[1], one.image)
        if pictured and one.effect is not None:
            drawn = row[2].imshow(one.effect, cmap="PuOr", vmin=-STRONG, vmax=STRONG, interpolation="nearest")
            shown.colorbar(drawn, ax=row[2], extend="both", ticks=(-STRONG, 0, STRONG)).outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    axes[-1, 0].set_xlabel(f"label{of_seed(run, seed)}")
    for axis, title in zip(axes[0, 1:], ("mean image", "Cohen's d"), strict=False):
        axis.set_title(title, fontsize=7)
    shown.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return shown


def draw_labels(axis: Axes, one: Cluster, everybody: np.ndarray, top: float) -> None:
    """Draw the shares of labels of a cluster as bars, and those of all clients as lines across them."""
    places = np.arange(len(everybody))
    axis.bar(places, one.labels, width=0.8, color=colour(one.number - 1), label="cluster")
    axis.hlines(everybody, places - 0.45, places + 0.45, color="black", linewidth=1, label="all clients")
    strength = "" if np.isnan(one.association) else f", V {one.association:.2f}"
    axis.set_title(f"cluster {one.number} ({counted(one.clients, 'client')}){strength}", loc="left", fontsize=7)
    axis.set(xlim=(-0.6, len(everybody) - 0.4), ylim=(0, top))
    axis.grid(False, axis="x")
    whole_numbers(axis.xaxis)
    in_per_cent(axis.yaxis)


def draw_image(axis: Axes, image: np.ndarray) -> None:
    """Draw a mean image [h, w, ch] from its darkest to its brightest value, in grey unless there are three channels."""
    image = (image - image.min()) / max(image.max() - image.min(), 1e-12)
    grey = image.shape[-1] != 3
    axis.imshow(image.mean(-1) if grey else image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
