"""Figures of the similarity of clients: clients as points, or the matrix of cosines."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jcfl import results
from jcfl.errors import InputError
from jcfl.errors.words import counted
from jcfl.results import History
from jcfl.view.plotting.style import (
    COLOURS,
    COLUMN,
    Number,
    Picture,
    colour,
    figure,
    marker,
    matched,
    panels,
    ranked,
    refuse_seed,
    remove_space,
    signed,
)

NAMED = 12
"""The most clusters or groups that a legend names."""

FEW = 5
"""So few points have no t-SNE; they are drawn along their principal axes."""


NARROW = 6.0
"""Points of columns that are too narrow, in the mean, for lines between them."""


@figure(single=True)
def embedding(
    run: History,
    at: Sequence[Number] = (),
    by: Literal["tsne", "pca"] = "tsne",
    seed: int | None = None,
    columns: int | None = None,
) -> Figure:
    """Clients as points, which are near each other if gradients at the initial model have similar directions.

    The colour of a point is the client's cluster, at the last round or at several, and its true group.

    Args:
        run: a history or a folder.
        at: rounds whose clusters are shown, each in a panel; the clusters are those of the last evaluation until then,
            and rounds with the same one have one panel.
        by: t-SNE of the cosine distances, or their two principal axes.
        seed: the seed whose clusters are shown; the first by default.
        columns: panels in a row.
    """
    facts = results.federation(run)
    who, cosine = facts["compared"], full_matrix(facts["cosine"], len(facts["compared"]))
    points = places(cosine, by)
    whole = ranked(labels_of(run, seed))
    labels = whole[:, who]
    shots = list(dict.fromkeys(evaluation_index(run, round) for round in at)) or [len(run.rounds) - 1]
    groups = groups_of(labels[-1], run.groups[who])
    truth = bool((groups >= 0).any())
    shown, axes = panels(len(shots) + truth, columns or in_a_row(len(shots) + truth), 2.9)
    for axis, shot in zip(axes, shots, strict=False):
        many = len(np.unique(whole[shot][whole[shot] >= 0]))
        scatter(axis, points, labels[shot], "cluster")
        axis.set_title(f"{counted(many, 'cluster')} after round {run.rounds[shot]}{of_seed(run, seed)}")
    if truth:
        scatter(axes[-1], points, groups, "group", names=run.groups[who])
        many = len(np.unique(run.groups[run.groups >= 0]))
        axes[-1].set_title(counted(many, "true group"))
    if len(who) < whole.shape[1]:
        shown.supxlabel(f"{len(who)} of {whole.shape[1]} clients", fontsize=8)  # below the legends
    return shown


@figure(single=True)
def similarity(run: History, seed: int | None = None) -> Figure:
    """Cosines between clients' gradients at the initial model, clients ordered by cluster and then by true group.

    The strips beside the matrix are the clusters, those above it the true groups.

    Args:
        run: a history or a folder.
        seed: the seed whose clusters are shown; the first by default.
    """
    facts = results.federation(run)
    who = facts["compared"]
    labels = ranked(labels_of(run, seed))[-1, who]
    groups = groups_of(labels, run.groups[who])
    order = np.lexsort((groups, np.where(labels < 0, len(who), labels)))
    cosine = full_matrix(facts["cosine"], len(who))[np.ix_(order, order)]
    shown = Picture(figsize=(COLUMN, COLUMN * 0.9))
    remove_space(shown)
    draw_matrix(shown, cosine, labels[order], groups[order]).set_label(f"cosine similarity{of_seed(run, seed)}")
    return shown


@figure(single=True)
def group_similarity(run: History) -> Figure:
    """Mean cosines between gradients of clients of two true groups, at the initial model (Zeng et al. 2023, Fig. 2).

    If the groups are in the order of a skew, as those of `rotated` with 0, 36, 72, … degrees, the axes are its degree.
    The diagonal has the pairs of different clients of a group; its cell is empty for a group with a single client.

    Args:
        run: a history or a folder.

    Raises:
        InputError: no true group is known, or only that of a single client.
    """
    facts = results.federation(run)
    groups = run.groups[facts["compared"]]
    names = np.unique(groups[groups >= 0])
    if not names.size:
        raise InputError(f"{run.name}: the true groups of its clients are not known")
    member = (groups[:, None] == names).astype(float)
    pairs = np.outer(member.sum(0), member.sum(0)) - np.diag(member.sum(0))
    total = member.T @ full_matrix(facts["cosine"], len(groups), diagonal=0.0) @ member
    mean = np.where(pairs > 0, total / np.maximum(pairs, 1), np.nan)
    if np.isnan(mean).all():
        raise InputError(f"{run.name}: expected cosines of two clients of known true groups or more, got one client")
    shown, (axis,) = panels(1, None, 2.8, COLUMN)
    image = axis.imshow(mean, cmap="viridis")
    axis.grid(visible=False)
    axis.set_xlabel("true group")
    axis.set_ylabel("true group")
    if len(names) <= NAMED:
        for side in (axis.xaxis, axis.yaxis):
            side.set_ticks(range(len(names)), [str(name) for name in names])
        dark = np.asarray(image.norm(mean)) < 0.6
        for row, column in np.argwhere(pairs > 0):
            ink = "white" if dark[row, column] else "black"
            text = signed(f"{mean[row, column]:z.2f}")
            axis.text(column, row, text, ha="center", va="center", fontsize=6, color=ink)
    bar = shown.colorbar(image, ax=axis)
    bar.set_label("mean cosine similarity")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return shown


def draw_matrix(shown: Any, matrix: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> Colorbar:
    """Draw a matrix over ordered clients [n, n] between strips of their clusters and groups; returns the colour bar.

    Args:
        shown: a figure or a part of one.
    """
    truth = (groups >= 0).any()
    grid = shown.add_gridspec(
        2, 3, width_ratios=(0.035, 1, 0.035), height_ratios=(0.035 if truth else 0.001, 1), hspace=0.02, wspace=0.02
    )
    draw_strip(shown.add_subplot(grid[1, 0]), labels[:, None]).set_ylabel(
        f"{counted(len(labels), 'client')} by cluster"
    )
    if truth:
        draw_strip(shown.add_subplot(grid[0, 1]), groups[None]).set_title("true group", fontsize=7, pad=2)
    axis = shown.add_subplot(grid[1, 1])
    aside = matrix[np.triu_indices(len(matrix), 1)]
    low, high = np.percentile(aside, (0.5, 99.5)) if aside.size else (0.0, 1.0)
    image = axis.imshow(matrix, cmap="viridis", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    separate(axis, labels, 0.8 * COLUMN, widest=0.5, both=True)
    remove_axes(axis)
    bar = shown.colorbar(image, cax=shown.add_subplot(grid[1, 2]), extend="both")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return bar


def separate(axis: Axes, labels: np.ndarray, inches: float, widest: float = 1.2, both: bool = False) -> None:
    """Draw white lines between columns of an image that have different labels, unless these are too narrow for lines.

    Args:
        labels: those of the columns, equal ones side by side. [n]
        inches: the width of the image, of which the lines take a tenth at most.
        widest: points of the width of a line.
        both: draw the same lines between rows too.
    """
    edges = np.flatnonzero(np.diff(labels))
    edges = edges if NARROW * len(edges) < 72 * inches else edges[:0]
    look: dict[str, Any] = {"color": "white", "linewidth": min(widest, 7.2 * inches / max(len(edges), 1))}
    for edge in edges + 0.5:
        axis.axvline(edge, **look)
        if both:
            axis.axhline(edge, **look)


def labels_of(run: History, seed: int | None) -> np.ndarray:
    """The clusters of one seed's clients over the rounds. [e, m]

    Raises:
        InputError: nothing has been evaluated yet, or there is no such seed.
    """
    if not run.labels.size:
        raise InputError(f"{run.name}: nothing has been evaluated yet")
    refuse_seed([run], seed)
    return run.labels[0 if seed is None else run.seeds.index(seed)]


def groups_of(labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Numbers for the colours of true groups: those of the clusters that match them best, see `matched`. [m] int

    A cluster's number may be as large as the number of clusters, but colours repeat. So where there are colours for all
    groups, a number beyond them is replaced by a free one.

    Args:
        labels: the clients' clusters, numbered by `ranked`; negative for none. [m] int
        groups: their true groups; -1 where unknown. [m] int
    """
    found = matched(labels, groups)
    kinds = np.unique(found[found >= 0])
    if len(kinds) <= len(COLOURS):
        free = np.setdiff1d(np.arange(len(COLOURS)), kinds)
        for kind, other in zip(kinds[kinds >= len(COLOURS)], free, strict=False):
            found[found == kind] = other
    return found


def in_a_row(count: int) -> int:
    """How many of some panels with points stand in a row, so that their titles and legends have room."""
    return 2 if count == 4 else 3


def of_seed(run: History, seed: int | None) -> str:
    """Which seed a figure shows, for the end of a label; nothing if the run has one seed."""
    return f", seed {run.seeds[0] if seed is None else seed}" if len(run.seeds) > 1 else ""


def evaluation_index(run: History, round: int) -> int:
    """The index of the last evaluation until a round."""
    return max(0, int(np.searchsorted(run.rounds, round, side="right")) - 1)


def full_matrix(upper: np.ndarray, n: int, diagonal: float = 1.0) -> np.ndarray:
    """A symmetric matrix, such as that of cosines, from its upper triangle. [n, n]"""
    full = np.zeros((n, n))
    full[np.triu_indices(n, 1)] = upper
    return full + full.T + diagonal * np.eye(n)


def principal_axes(cosine: np.ndarray) -> np.ndarray:
    """Coordinates of unit vectors with these cosines along their two principal axes. [n, 2]"""
    centred = cosine - cosine.mean(0) - cosine.mean(1)[:, None] + cosine.mean()
    values, vectors = np.linalg.eigh(centred)
    values, axes = values[::-1][:2], vectors[:, ::-1][:, :2]
    signs = np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # the sign of an axis is arbitrary
    found = axes * signs * np.sqrt(np.maximum(values, 0))
    return np.pad(found, ((0, 0), (0, 2 - found.shape[1])))  # one client has no second axis


def places(cosine: np.ndarray, by: Literal["tsne", "pca"] = "tsne") -> np.ndarray:
    """Points in the plane for clients with these cosines [n, n]; along the principal axes if they are few. [n, 2]"""
    points = principal_axes(cosine)
    return tsne(np.clip(1 - cosine, 0, 2), points) if by == "tsne" and len(cosine) > FEW else points


def tsne(apart: np.ndarray, start: np.ndarray) -> np.ndarray:
    """t-SNE of distances [n, n] from the points `start` [n, 2], so that the result is always the same. [n, 2]"""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    start = 1e-4 * start / max(start[:, 0].std(), 1e-12)
    near = min(30.0, (len(apart) - 1) / 3)
    chart = TSNE(perplexity=near, metric="precomputed", init=start, random_state=0)  # pyright: ignore[reportArgumentType]
    with threadpool_limits(1):  # several threads add in any order, and t-SNE enlarges differences of rounding
        return chart.fit_transform(apart)


def scatter(axis: Axes, points: np.ndarray, labels: np.ndarray, what: str, names: np.ndarray | None = None) -> None:
    """Draw points with the colour and the marker of their cluster or group, and a legend below."""
    handles = []
    size = float(np.clip(1200 / len(points), 4, 16))
    kinds = [int(label) for label in np.unique(labels)]
    for label in kinds if names is None else sorted(kinds, key=lambda kind: names[labels == kind][0]):
        mine = labels == label
        look: dict[str, Any] = {"color": colour(label), "marker": marker(label)}
        axis.scatter(*points[mine].T, s=size, linewidths=0.25, edgecolors="white", **look)
        nobody = "no cluster" if names is None else "unknown"
        name = nobody if label < 0 else str(label + 1 if names is None else names[mine][0])
        handles.append(Line2D([], [], linestyle="", label=name, markersize=4, **look))
    remove_axes(axis)
    if len(handles) <= NAMED:
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 5}
        axis.legend(handles=handles, title=what, title_fontsize=7, columnspacing=0.8, handletextpad=0.1, **place)


def draw_strip(axis: Axes, labels: np.ndarray) -> Axes:
    """Draw a strip with the colours of clusters or groups, and return its axes."""
    shades = [colour(-1), *(colour(i) for i in range(max(int(labels.max()), 0) + 1))]
    look: dict[str, Any] = {"vmin": 0, "vmax": len(shades) - 1, "aspect": "auto", "interpolation": "nearest"}
    axis.imshow(labels + 1, cmap=ListedColormap(shades), **look)
    remove_axes(axis)
    return axis


def remove_axes(axis: Axes) -> None:
    """Remove ticks, grid and frame."""
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    axis.spines[:].set_visible(False)
