"""Figures of the clients in clusters: sizes and accuracies over rounds, and moves between clusters."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.transforms import offset_copy

from jcfl import results
from jcfl.errors import InputError
from jcfl.errors.words import counted
from jcfl.results import History
from jcfl.view.plotting.cosines import groups_of, labels_of, of_seed, remove_axes
from jcfl.view.plotting.style import (
    COLUMN,
    NOBODY,
    Number,
    colour,
    figure,
    in_per_cent,
    panels,
    ranked,
    whole_numbers,
)

SHOWN = 8
"""The most clusters that are drawn one by one; the others are drawn as one."""

REST = "#8F8F8F"
"""The colour of all other clusters together."""

LEFT, HELD = -2, -3
"""In place of -1: a client that had a cluster before or has left the federation, and one that is held out."""

NOT_THERE = {-1: ("none yet", NOBODY), LEFT: ("left", "#ECECEC"), HELD: ("held out", "#DCCFB8")}
"""The names and the colours of clients that are in no cluster."""

TEXT = 0.062
"""The height of a line of text, as a share of a column's."""

STOPS = 7
"""The most rounds that a figure of flows shows."""


@figure(single=True)
def sizes(run: History, seed: int | None = None) -> Figure:
    """Clients in each cluster against rounds, the largest of the last round at the bottom.

    Args:
        run: a history or a folder.
        seed: the seed whose clusters are shown; the first by default.
    """
    labels = with_rest_merged(followed(run, seed))
    kinds = [kind for kind in (*range(SHOWN + 1), *NOT_THERE) if (labels == kind).any()]
    counts = np.stack([(labels == kind).sum(1) for kind in kinds])  # [kinds, e]
    shown, (axis,) = panels(1, None, 2.3, COLUMN * 1.25)
    rounds, last = run.rounds, counts[:, -1]
    if len(rounds) == 1:
        rounds, counts = np.array([rounds[0] - 0.5, rounds[0] + 0.5]), np.repeat(counts, 2, axis=1)
    axis.stackplot(rounds, counts, colors=[cluster_colour(kind) for kind in kinds], edgecolor="white", linewidth=0.4)
    axis.set(
        xlabel=f"round{of_seed(run, seed)}", ylabel="clients", xlim=(rounds[0], rounds[-1]), ylim=(0, labels.shape[1])
    )
    whole_numbers(axis.xaxis)
    axis.grid(False)
    names = [f"{cluster_name(kind)} ({count})" for kind, count in zip(kinds, last, strict=True)]
    entries = [Patch(color=cluster_colour(kind), label=name) for kind, name in zip(kinds, names, strict=True)]
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "handlelength": 1}
    axis.legend(handles=entries[::-1], title="cluster (clients)", title_fontsize=7, **place)
    return shown


@figure(single=True)
def by_cluster(run: History, seed: int | None = None, columns: int | None = None) -> Figure:
    """The mean accuracy of each cluster's clients against rounds, and that of each true group's (Zeng et al., Fig. 5).

    As in tables, clients that are held out, have not arrived yet or have left do not count.

    Args:
        run: a history or a folder.
        seed: the seed whose clients are shown; the first by default.
        columns: panels in a row.
    """
    own = followed(run, seed)
    if not run.accuracy_clients.size:
        raise InputError(f"{run.name} has no accuracy for each client")
    accuracy = run.accuracy_clients[0 if seed is None else run.seeds.index(seed)]  # [e, m]
    accuracy = np.where(uncounted(run) < 0, np.nan, accuracy)
    groups = with_rest_merged(groups_of(own[-1], run.groups))
    names = {-1: "unknown", SHOWN: "others"}
    named = lambda kind: names.get(kind) or f"group {run.groups[groups == kind][0]}"
    # Where data drift, a client has another true group in earlier rounds.
    numbers = dict(zip(run.groups.tolist(), np.maximum(groups, -1).tolist(), strict=True))
    then = np.array([[numbers.get(group, -1) for group in row] for row in run.true_groups().tolist()])
    shown, axes = panels(1 + bool((groups >= 0).any()), columns, 2.1)
    draw_means(axes[0], run.rounds, accuracy, with_rest_merged(own), cluster_name, "cluster")
    axes[0].set_xlabel(f"round{of_seed(run, seed)}")
    if len(axes) > 1:
        draw_means(axes[1], run.rounds, accuracy, then, named)
    return shown


def draw_means(
    axis: Axes,
    rounds: np.ndarray,
    accuracy: np.ndarray,
    labels: np.ndarray,
    name: Callable[[int], str],
    what: str | None = None,
) -> None:
    """Draw a line for every label [e, m]: the mean accuracy [e, m] of the clients that have it.

    Args:
        name: the name of a label.
        what: the title above the names.
    """
    known = ~np.isnan(accuracy)
    found = np.unique(labels[known])
    for kind in found[np.argsort(found < 0, kind="stable")]:
        there = (labels == kind) & known
        mean = np.where(there, accuracy, 0).sum(1) / np.where(there.any(1), there.sum(1), np.nan)
        some = np.pad(~np.isnan(mean), 1)
        alone = some[1:-1] & ~some[:-2] & ~some[2:]  # a line does not show them
        look: dict[str, Any] = {"marker": "o", "markevery": alone.tolist()} if alone.any() else {}
        look = {"marker": "o"} if len(rounds) < 3 else look
        axis.plot(rounds, mean, color=cluster_colour(kind), label=name(kind), **look)
    axis.set(xlabel="round", ylabel="accuracy")
    whole_numbers(axis.xaxis)
    in_per_cent(axis.yaxis)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1, title=what, title_fontsize=7)


@figure(single=True)
def flow(run: History, at: Sequence[Number] = (), seed: int | None = None) -> Figure:
    """The moves of clients between clusters, at the rounds between which most clients moved.

    A column is a round and a block a cluster. A band is the clients that go from one cluster to another; it has the
    colour of the cluster to which they go.

    Args:
        run: a history or a folder.
        at: the rounds that are shown, each by the last evaluation until then; chosen by default.
        seed: the seed whose clusters are shown; the first by default.
    """
    labels = with_rest_merged(followed(run, seed))
    turns = (
        np.unique([np.searchsorted(run.rounds, r, side="right") - 1 for r in at]).clip(0)
        if at
        else chosen_evaluations(labels)
    )
    labels = labels[turns]
    shown, (axis,) = panels(1, None, 2.6, COLUMN * 1.25)
    width = 0.0117 * max(len(turns) - 1, 1)  # of a block
    gap = labels.shape[1] * 0.02
    for turn, now in enumerate(labels):
        draw_blocks(axis, turn, now, heights(now, now, gap), width)
        if turn:
            draw_bands(axis, turn, labels[turn - 1], now, gap, width)
    remove_axes(axis)
    axis.set_xticks(range(len(turns)), [str(run.rounds[turn]) for turn in turns])
    axis.tick_params(length=0)
    axis.set_xlabel(f"round{of_seed(run, seed)}")
    axis.set_ylabel(counted(labels.shape[1], "client"))
    margin = width if len(turns) > 1 else 0.5  # a single column stands in the middle, its names beside it
    axis.set_xlim(-margin, len(turns) - 1 + margin)
    axis.set_ylim(-gap, max(heights(now, now, gap).max() for now in labels) + 1 + gap)
    draw_names(axis, len(turns) - 1, labels[-1], gap)
    return shown


@figure(single=True)
def groups_to_clusters(run: History, seed: int | None = None) -> Figure:
    """The clusters in which clients of each true group are after the last round (Ma 2023, Fig. 7.7).

    A band is the clients of one group in one cluster, in the group's colour. Each group has the colour of the cluster
    that matches it best, as long as there are clusters for all and these are among the eight that are drawn one by one.

    Args:
        run: a history or a folder.
        seed: the seed whose clusters are shown; the first by default.
    """
    last = followed(run, seed)[-1]
    known = run.groups >= 0
    if not known.any():
        raise InputError(f"{run.name}: the true groups of its clients are not known")
    clusters, groups = with_rest_merged(last), with_rest_merged(groups_of(last, run.groups))
    shown, (axis,) = panels(1, None, 2.6, COLUMN)
    width, gap = 0.03, len(last) * 0.02
    names = {int(group): str(run.groups[groups == group][0]) if group < SHOWN else "others" for group in set(groups)}
    for turn, now in enumerate((groups, clusters)):
        draw_blocks(axis, turn, now, heights(now, now, gap), width)
    draw_bands(axis, 1, groups, clusters, gap, width, by=groups)
    draw_names(axis, 0, groups, gap, lambda kind: "unknown" if kind < 0 else names[kind], "true group", -1)
    draw_names(axis, 1, clusters, gap)
    remove_axes(axis)
    axis.set_xlim(-width, 1 + width)
    axis.set_ylim(-gap, max(heights(now, now, gap).max() for now in (groups, clusters)) + 1 + gap)
    axis.set_xlabel(f"{counted(len(last), 'client')}, round {run.rounds[-1]}{of_seed(run, seed)}")
    return shown


def followed(run: History, seed: int | None) -> np.ndarray:
    """A run's labels over rounds [e, m], clusters numbered by size in the last round, from 0 for the largest.

    Clients that tables do not count are in no cluster. They count for the numbers, which are those of all figures.
    """
    labels, away = ranked(told_apart(labels_of(run, seed))), uncounted(run)
    return np.where(away < -1, away, with_left(np.where(away < 0, -1, labels)))


def uncounted(run: History) -> np.ndarray:
    """Which clients the scores leave out after each evaluated round, and why. [e, m]

    0 is a client that they count, -1 one that has not arrived yet; LEFT and HELD are the others. Without federation.npz
    they count all clients.
    """
    held = results.known_federation(run)
    if held is None:
        return np.zeros(run.labels.shape[1:], int)
    present = np.stack([results.present(held, round) for round in run.rounds])
    reason = np.where(held["held_out"], HELD, np.where(run.rounds[:, None] > held["depart"], LEFT, -1))
    return np.where(present, 0, reason)


def told_apart(labels: np.ndarray) -> np.ndarray:
    """Labels over rounds [e, m] in which a slot that is used again, by other clients, counts as another cluster.

    >>> told_apart(np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]])).tolist()
    [[0, 1, 1], [0, 0, 0], [2, 0, 0]]
    """
    found, free = labels.copy(), int(labels.max(initial=-1)) + 1
    for label in np.unique(labels[labels >= 0]):
        own = labels == label
        used = np.flatnonzero(own.any(1))
        for before, start in pairwise(used):
            if start > before + 1 and not (own[before] & own[start]).any():
                found[start:][own[start:]] = free
                free += 1
    return found


def with_left(labels: np.ndarray) -> np.ndarray:
    """Labels over rounds [e, m] in which clients that have left differ from those that have not been sampled yet.

    >>> with_left(np.array([[-1, 0], [1, -1], [1, 0]])).tolist()
    [[-1, 0], [1, -2], [1, 0]]
    """
    before = np.maximum.accumulate(labels, 0) >= 0
    return np.where((labels < 0) & before, LEFT, labels)


def with_rest_merged(labels: np.ndarray) -> np.ndarray:
    """Labels in which all clusters that are not drawn one by one are a single cluster."""
    return np.where(labels >= SHOWN, SHOWN, labels)


def cluster_name(kind: int) -> str:
    """The name of a cluster in the figure."""
    if kind < 0:
        return NOT_THERE[kind][0]
    return str(kind + 1) if kind < SHOWN else "others"


def cluster_colour(kind: int) -> str:
    """The colour of a cluster, of all others together, or of clients without one."""
    if kind < 0:
        return NOT_THERE[kind][1]
    return colour(kind) if kind < SHOWN else REST


def chosen_evaluations(labels: np.ndarray) -> np.ndarray:
    """The first and the last evaluation, and some between them at which most clients have changed their cluster."""
    last = len(labels) - 1
    moved = (labels[1:] != labels[:-1]).sum(1)  # [e - 1]
    order = [turn + 1 for turn in np.argsort(-moved, kind="stable") if moved[turn] > 0]
    return np.unique([0, *[turn for turn in order if turn < last][: STOPS - 2], last])


def heights(labels: np.ndarray, then: np.ndarray, gap: float) -> np.ndarray:
    """The height of every client in a column: sorted by cluster, and in it by the cluster in another round. [m]

    >>> heights(np.array([1, 0, 1]), np.array([1, 0, 0]), 0.5).tolist()
    [2.5, 0.0, 1.5]
    """
    first, second = (np.where(one < 0, SHOWN - one, one) for one in (labels, then))
    order = np.lexsort((second, first))
    place = np.empty(len(labels))
    place[order] = np.arange(len(labels)) + gap * np.searchsorted(np.unique(first), first[order])
    return place


def draw_blocks(axis: Axes, turn: int, labels: np.ndarray, place: np.ndarray, width: float) -> None:
    """Draw the clusters of one round as bars."""
    for kind in np.unique(labels):
        mine = place[labels == kind]
        axis.bar(turn, mine.size, width, mine.min(), color=cluster_colour(kind), linewidth=0, zorder=3)


def draw_names(
    axis: Axes,
    turn: int,
    labels: np.ndarray,
    gap: float,
    name: Callable[[int], str] = cluster_name,
    what: str = "cluster",
    side: int = 1,
) -> None:
    """Write names and sizes beside the blocks of a column, with enough room between them.

    Args:
        name: the name of a cluster or group.
        what: the word above the names.
        side: 1 for the right of the column, -1 for the left.
    """
    place = heights(labels, labels, gap)
    kinds = sorted(np.unique(labels), key=lambda kind: place[labels == kind].min())
    top = place.max() + 1
    middles = np.array([place[labels == kind].mean() + 0.5 for kind in kinds])
    line = min(TEXT * top, top / max(len(kinds), 1))
    spots = spread(middles, line, top)
    beside: dict[str, Any] = {"ha": "left" if side > 0 else "right", "va": "center", "annotation_clip": False}
    aside = offset_copy(axis.transData, cast(Figure, axis.figure), 12 * side, units="points")
    for kind, middle, spot in zip(kinds, middles, spots, strict=True):
        text = f"{name(int(kind))} ({(labels == kind).sum()})"
        joined = {"arrowstyle": "-", "linewidth": 0.4, "color": "#777777", "shrinkA": 0, "shrinkB": 3}
        joined["relpos"] = (0 if side > 0 else 1, 0.5)
        axis.annotate(text, (turn, middle), (turn, spot), textcoords=aside, arrowprops=joined, fontsize=7, **beside)
    place_of_title: dict[str, Any] = {"xytext": (2 * side, 11), "textcoords": "offset points", "ha": "center"}
    axis.annotate(f"{what} (clients)", (turn, top), fontsize=6.5, annotation_clip=False, **place_of_title)


def spread(middles: np.ndarray, line: float, top: float) -> np.ndarray:
    """Places for lines of text, each as near its ascending middle as `line` between two of them and the top allow.

    >>> spread(np.array([1.0, 1.5, 9.0, 9.5]), 1.0, 9.6).tolist()
    [1.0, 2.0, 8.6, 9.6]
    """
    found = middles.copy()
    for i in range(1, len(found)):
        found[i] = max(found[i], found[i - 1] + line)
    found[-1] = min(found[-1], max(top, middles[-1]))
    for i in range(len(found) - 2, -1, -1):
        found[i] = min(found[i], found[i + 1] - line)
    return found


def draw_bands(
    axis: Axes,
    turn: int,
    before: np.ndarray,
    now: np.ndarray,
    gap: float,
    width: float,
    by: np.ndarray | None = None,
) -> None:
    """Draw the moves between two columns: a band for each pair of an old and a new cluster.

    Args:
        by: what gives a band its colour; the new cluster by default. [m]
    """
    hues = now if by is None else by
    left, right = turn - 1 + width / 2, turn - width / 2
    middle = (left + right) / 2
    curve = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    leaving, coming = heights(before, now, gap), heights(now, before, gap)
    for old, new in np.unique(np.stack([before, now], 1), axis=0):
        mine = (before == old) & (now == new)
        start, end, size = leaving[mine].min(), coming[mine].min(), mine.sum()
        corners = [
            (left, start), (middle, start), (middle, end), (right, end),
            (right, end + size), (middle, end + size), (middle, start + size), (left, start + size), (left, start),
        ]  # fmt: skip
        alpha = 0.35 if old == new else 0.65
        axis.add_patch(PathPatch(Path(corners, curve), color=cluster_colour(hues[mine][0]), alpha=alpha, linewidth=0))
