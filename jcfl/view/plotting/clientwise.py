"""Figures of single clients: their accuracies, their labels and their images."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jcfl import results
from jcfl.errors import InputError, printable
from jcfl.errors.words import counted
from jcfl.results import History
from jcfl.view.plotting.cosines import draw_strip, groups_of, labels_of, of_seed, remove_axes, separate
from jcfl.view.plotting.style import (
    COLUMN,
    PAGE,
    STYLE,
    Picture,
    colour,
    entry,
    figure,
    in_per_cent,
    legend_above,
    line,
    marker,
    panels,
    ranked,
    remove_space,
    shortened,
    titles,
)

WORST = 15
"""How many of the worst clients are named."""

LONGEST = 24
"""Characters of a client's id that are shown."""

ROWS, IMAGES = 8, 10
"""The most clusters whose images are shown, and the most images of each."""


@figure(single=False)
def clients(runs: Sequence[History], columns: int | None = None) -> Figure:
    """The distribution of accuracy over clients after the last round, and the worst clients of the first run.

    Accuracies are means over seeds. Clients are left out that are held out, have not arrived yet or have left, because
    the accuracy in tables leaves them out, too. The worst clients also have the accuracies of other runs of the same
    federation.

    Args:
        runs: histories or folders, laid over each other.
        columns: panels in a row.
    """
    last = [counted_accuracy(run) for run in runs]
    if all(np.isnan(values).all() for values in last):
        raise InputError("no run has an accuracy for each client")
    shown, (left, right) = panels(2, columns, 2.6)
    for index, (values, name) in enumerate(zip(last, titles(runs), strict=True)):
        ascending = np.sort(values[~np.isnan(values)])
        if not ascending.size:  # not evaluated yet
            continue
        x, y = np.r_[ascending[:1], ascending], np.linspace(0, 1, len(ascending) + 1)
        left.plot(x, y, drawstyle="steps-post", label=entry(name), **line(index))
    left.set(xlabel="accuracy", ylabel="clients with at most this accuracy", ylim=(0, 1))
    worst = [i for i in np.argsort(last[0]) if not np.isnan(last[0][i])][:WORST]
    for index, values in enumerate(last):
        if same_clients(runs[index], runs[0]):
            look = {"linestyle": "", "marker": marker(index), "color": colour(index), "zorder": 99 - index}
            look |= {"clip_on": False}  # a marker at 0 is whole
            right.plot(values[worst], range(len(worst)), **look)
    groups, ids = runs[0].groups, [printable(str(name)) for name in runs[0].clients]
    ids = [shortened(name, LONGEST) for name in ids]
    names = [f"{ids[i]} (group {groups[i]})" if groups[i] >= 0 else ids[i] for i in worst]
    right.set_yticks(range(len(worst)), names, fontsize=6, parse_math=False)
    right.invert_yaxis()
    of = f" of {shortened(titles(runs)[0], LONGEST)}" if len(runs) > 1 else ""
    right.set(xlabel="accuracy", ylabel="client", title=f"worst clients{of}")
    low, high = right.get_xlim()
    right.set_xlim(max(low, 0), min(high, 1))
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        in_per_cent(axis)
    legend_above(shown, [left], several=len(runs) > 1)
    return shown


@figure(single=True)
def heatmap(run: History, columns: int | None = None) -> Figure:
    """The share of each label in each client's training examples, with clients ordered by true group.

    Args:
        run: a history or a folder.
        columns: 1 for a figure as wide as a paper's column.
    """
    facts = results.federation(run)
    return label_map(facts["train"], facts["groups"], PAGE if columns is None else COLUMN)


@figure(single=True)
def samples(run: History, seed: int | None = None, columns: int | None = None) -> Figure:
    """Images of clients in each cluster, one image per client, in a frame with the colour of its true group.

    Args:
        run: a history or a folder.
        seed: the seed whose clusters are shown; the first by default.
        columns: 1 for a figure as wide as a paper's column.
    """
    facts = results.federation(run)
    if not len(facts["images"]):
        raise InputError(f"{run.name}: its examples are not images")
    whole = ranked(labels_of(run, seed))[-1]
    labels, groups = whole[facts["pictured"]], groups_of(whole, run.groups)[facts["pictured"]]
    kinds = [kind for kind in np.unique(labels) if kind >= 0][:ROWS] or [-1]
    width = PAGE * 0.8 if columns is None else COLUMN
    shown = Picture(figsize=(width, width / (IMAGES + 1.5) * len(kinds) * 1.1 + 0.1))
    axes = shown.subplots(len(kinds), IMAGES, squeeze=False)
    low, high = facts["images"].min(), facts["images"].max()
    for row, kind in zip(axes, kinds, strict=True):
        mine = np.flatnonzero(labels == kind)
        mine = mine[np.linspace(0, len(mine) - 1, min(IMAGES, len(mine))).round().astype(int)]
        for axis in row:
            remove_axes(axis)
        for axis, i in zip(row, mine, strict=False):
            draw_thumbnail(axis, (facts["images"][i] - low) / max(high - low, 1e-12), int(groups[i]))
        name = "no cluster" if kind < 0 else f"cluster {kind + 1}"
        text = f"{name}\n{counted(int((whole == kind).sum()), 'client')}"
        row[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=7)
    if len(run.seeds) > 1:
        shown.supxlabel(of_seed(run, seed).removeprefix(", "), fontsize=7)
    return shown


def label_map(counts: np.ndarray, groups: np.ndarray, width: float = PAGE) -> Figure:
    """The heat map of a federation's labels, from examples of every class of every client `[m, c]` and groups `[m]`."""
    with matplotlib.rc_context(STYLE):
        return draw_label_map(np.asarray(counts), np.asarray(groups), width)


def draw_label_map(counts: np.ndarray, groups: np.ndarray, width: float) -> Figure:
    """Draw the heat map of `label_map` in the present style."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    order = np.lexsort((share.argmax(1), groups)) if (groups >= 0).any() else np.arange(len(groups))
    shown = Picture(figsize=(width, 2.4))
    remove_space(shown)
    known = bool((groups >= 0).any())
    grid = shown.add_gridspec(2, 1, height_ratios=(0.06 if known else 0.001, 1), hspace=0.01)
    if known:
        top = draw_strip(shown.add_subplot(grid[0]), np.unique(groups, return_inverse=True)[1][order][None])
        draw_group_names(top, groups[order])
    axis = shown.add_subplot(grid[1])
    look: dict[str, Any] = {"vmin": 0, "vmax": max(float(share.max()), 1e-9), "interpolation": "nearest"}
    image = axis.imshow(share[order].T, cmap="Blues", aspect="auto", **look)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    separate(axis, groups[order], width)
    axis.set(xlabel=counted(len(counts), "client"), ylabel="label", xticks=[])
    if counts.shape[1] <= 20:
        axis.set_yticks(range(counts.shape[1]))
    axis.tick_params(length=0)
    bar = shown.colorbar(image, ax=axis, pad=0.01, aspect=25)
    in_per_cent(bar.ax.yaxis)
    bar.set_label("share of the client's examples")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return shown


def draw_group_names(axis: Axes, groups: np.ndarray) -> None:
    """Write the names of groups above their parts of a strip, if there is room."""
    names, start, size = np.unique(groups, return_index=True, return_counts=True)
    if len(names) <= 16:
        for name, first, count in zip(names, start, size, strict=True):
            text = "unknown" if name < 0 else f"group {name}" if len(names) <= 8 else str(name)
            spot = (first + count / 2 - 0.5, -0.6)
            axis.annotate(text, spot, ha="center", va="bottom", fontsize=7, annotation_clip=False)


def draw_thumbnail(axis: Axes, image: np.ndarray, group: int) -> None:
    """Draw one image in a frame with its group's colour."""
    image = image[..., 0] if image.shape[-1] == 1 else image[..., :3]
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axis.spines[:].set_visible(True)
    axis.spines[:].set(color=colour(group), linewidth=1.6)


def last_accuracy(run: History) -> np.ndarray:
    """Every client's accuracy after the last round, as mean over seeds; NaN for a client without accuracy. [m]"""
    if not run.accuracy_clients.size:
        return np.full(len(run.groups), np.nan)
    last = run.accuracy_clients[:, -1]
    known = ~np.isnan(last)
    return np.where(known.any(0), np.where(known, last, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)


def same_clients(one: History, other: History) -> bool:
    """Whether two runs have the same clients, by ids, true groups and the fingerprint of their data.

    A run that is not complete has no fingerprint yet; it counts as a run of the same data.
    """
    prints = {run.summary["federation"] for run in (one, other) if run.summary.get("federation")}
    alike = np.array_equal(one.clients, other.clients) and np.array_equal(one.groups, other.groups)
    return alike and len(prints) < 2


def counted_accuracy(run: History) -> np.ndarray:
    """As `last_accuracy`; NaN also for a client that scores are not taken over, where a file says so. [m]"""
    held, accuracy = results.known_federation(run), last_accuracy(run)
    if held is None or not run.rounds.size:
        return accuracy
    return np.where(results.present(held, run.rounds.max()), accuracy, np.nan)
