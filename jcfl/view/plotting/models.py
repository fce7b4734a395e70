"""Figures of the models that clients and clusters have: how alike they are after the rounds of `compare_models`."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jcfl import results
from jcfl.errors import InputError
from jcfl.errors.words import counted
from jcfl.results import History
from jcfl.view.plotting.cosines import (
    FEW,
    draw_matrix,
    draw_strip,
    evaluation_index,
    full_matrix,
    groups_of,
    in_a_row,
    labels_of,
    of_seed,
    principal_axes,
    remove_axes,
    scatter,
    separate,
    tsne,
)
from jcfl.view.plotting.style import (
    COLUMN,
    PAGE,
    Number,
    Picture,
    figure,
    panels,
    ranked,
    remove_space,
    signed,
)

SHOTS = 4
"""The most rounds that are shown unless they are chosen."""

ROW, TALLEST = 0.2, 0.7
"""Inches of a row of distances, or of a name beside rows, and the height of all rows as a share of a figure's width."""

WRITTEN = 12
"""The most clusters that are named below a matrix."""

ROOM, SMALLEST = 2.0, 4.0
"""Inches of a matrix of clusters, and points of the smallest text that is written into it."""


class Compared(NamedTuple):
    """The models of one seed after one round."""

    round: int
    labels: np.ndarray  # [n] the clusters of the clients that are compared, numbered by size in the last round
    groups: np.ndarray  # [n] their true groups, by the numbers that `groups_of` gives them
    named: np.ndarray  # [n] their true groups, as the federation numbers them; -1 where unknown
    clusters: np.ndarray  # [c] the clusters, ascending
    cosine: np.ndarray  # [n + c, n + c] between the models of clients, then of clusters
    distance: np.ndarray  # [n + c, n + c]
    l1: np.ndarray | None  # [n, c] from clients to clusters; None in runs of older versions


@figure(single=True)
def model_similarity(
    run: History,
    at: Number | None = None,
    cluster: Number | None = None,
    seed: int | None = None,
    columns: int | None = None,
) -> Figure:
    """Cosines between the clusters' models, and between the clients' own models ordered by cluster (Ma 2023, Fig. 3.4).

    Args:
        run: a history or a folder of a run with `compare_models`.
        at: the round, one of those in which models were compared; the last of them by default.
        cluster: the one whose clients are shown, by its number in the figures, 1 for the largest; all by default.
        seed: the seed that is shown; the first by default.
        columns: 1 for a figure as wide as a paper's column, with the clients' models below the clusters'.
    """
    one = compared(run, at, seed)
    mine = np.flatnonzero((one.labels == cluster - 1) if cluster is not None else (one.labels > -2))
    if not mine.size:
        raise InputError(f"{run.name}: cluster {cluster} has no clients after round {one.round}")
    mine = mine[np.lexsort((one.groups[mine], np.where(one.labels < 0, len(one.labels), one.labels)[mine]))]
    n, several = len(one.labels), len(one.clusters) > 1
    if several and columns == 1:
        shown = Picture(figsize=(COLUMN, 1.6 * COLUMN))
        parts: Any = shown.subfigures(2, 1, hspace=0.03, height_ratios=(0.7, 0.9))
    elif several:
        shown = Picture(figsize=(PAGE, 0.45 * PAGE))
        parts = shown.subfigures(1, 2, wspace=0.03, width_ratios=(1, 1.1))
    else:
        shown = Picture(figsize=(COLUMN, 0.9 * COLUMN))
        parts = (shown,)
    remove_space(shown)
    if several:
        draw_centres(parts[0].add_subplot(), one.cosine[n:, n:], one.clusters)
    cosine = one.cosine[np.ix_(mine, mine)]
    bar = draw_matrix(parts[-1], cosine, one.labels[mine], one.groups[mine])
    bar.set_label(f"cosine of clients’ models, round {one.round}{of_seed(run, seed)}")
    return shown


def draw_centres(axis: Axes, cosine: np.ndarray, clusters: np.ndarray) -> None:
    """Draw the cosines between the models of two clusters or more, with their values where there is room for them."""
    aside = cosine[np.triu_indices(len(cosine), 1)]
    low, high = aside.min(), aside.max()
    digits = 2 if high - low >= 0.02 else 4
    shades = np.where(np.eye(len(cosine), dtype=bool), np.nan, cosine)
    image = axis.imshow(shades, cmap="viridis", vmin=low, vmax=high)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    names = [str(cluster + 1) for cluster in clusters]
    step = -(-len(names) // WRITTEN)
    ticks, shown = range(0, len(names), step), names[::step]
    axis.set(xticks=ticks, xticklabels=shown, yticks=ticks, yticklabels=shown)
    axis.set(xlabel="cluster", ylabel="cluster")
    texts = {place: signed(f"{value:z.{digits}f}") for place, value in np.ndenumerate(shades) if not np.isnan(value)}
    size = min(6.0, 72 * ROOM / len(names) / (0.65 * max(map(len, texts.values()))))
    for (i, j), text in texts.items() if size >= SMALLEST else ():
        dark = shades[i, j] < (low + high) / 2
        axis.text(j, i, text, color="white" if dark else "black", fontsize=size, ha="center", va="center")
    bar = axis.figure.colorbar(image, ax=axis, shrink=0.8, aspect=25)
    bar.set_label("cosine of clusters’ models")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


@figure(single=True)
def model_embedding(
    run: History,
    at: Sequence[Number] = (),
    by: Literal["tsne", "pca"] = "tsne",
    seed: int | None = None,
    columns: int | None = None,
) -> Figure:
    """Clients as points, which are near each other if their own models are (Ma 2023, Figs. 3.5 and 3.6).

    Each round has its own panel and positions. The colour of a point is the client's cluster, and in a second panel of
    the last round its true group.

    Args:
        run: a history or a folder of a run with `compare_models`.
        at: rounds in which models were compared; by default the first, the last and some between them.
        by: t-SNE of the Euclidean distances between models, or the models' two principal axes.
        seed: the seed that is shown; the first by default.
        columns: panels in a row.
    """
    rounds = results.models_rounds(run, seed_of(run, seed))
    some = np.unique(np.linspace(0, len(rounds) - 1, min(SHOTS, len(rounds))).round().astype(int)) if rounds else [0]
    shots = [compared(run, round, seed) for round in at or [rounds[i] if rounds else None for i in some]]
    truth = bool((shots[-1].groups >= 0).any())
    shown, axes = panels(len(shots) + truth, columns or in_a_row(len(shots) + truth), 2.6)
    points = [positions(shot, by) for shot in shots]
    for axis, spots, shot in zip(axes, points, shots, strict=False):
        scatter(axis, spots, shot.labels, "cluster")
        axis.set_title(f"round {shot.round}{of_seed(run, seed)}")
    if truth:
        scatter(axes[-1], points[-1], shots[-1].groups, "group", names=shots[-1].named)
        axes[-1].set_title(f"true groups, round {shots[-1].round}{of_seed(run, seed)}")
    return shown


def positions(one: Compared, by: str) -> np.ndarray:
    """The clients' models as points. [n, 2]"""
    n = len(one.labels)
    apart = one.distance[:n, :n]
    axes = principal_axes(-(apart**2) / 2)  # inner products, once they are centred
    return tsne(apart, axes) if by == "tsne" and n > FEW else axes


@figure(single=True)
def distances(
    run: History,
    at: Number | None = None,
    distance: Literal["euclidean", "l1"] = "euclidean",
    seed: int | None = None,
    columns: int | None = None,
) -> Figure:
    """The distance from each client's own model to each cluster's (Bhattacharya and Aridi 2024, Fig. 1).

    Clients are ordered by cluster, whose edges are white, and then by true group, whose colours are above.

    Args:
        run: a history or a folder of a run with `compare_models`.
        at: the round, one of those in which models were compared; the last of them by default.
        distance: Euclidean, or the sum of absolute differences, as in the paper (eq. 8).
        seed: the seed that is shown; the first by default.
        columns: 1 for a figure as wide as a paper's column.
    """
    one = compared(run, at, seed)
    n, c = len(one.labels), len(one.clusters)
    apart = one.distance[:n, n:] if distance == "euclidean" else one.l1
    if apart is None:
        raise InputError(f"{run.name} has no L1 distances, because an older jcfl has written it; run it again")
    if not c:
        raise InputError(f"{run.name} has no clusters after round {one.round}")
    order = np.lexsort((one.groups, np.where(one.labels < 0, n, one.labels)))
    truth = bool((one.groups >= 0).any())
    width = PAGE if columns is None else COLUMN
    height = min(ROW * max(c, 3), TALLEST * width)
    shown = Picture(figsize=(width, 0.9 + height))
    remove_space(shown)
    grid = shown.add_gridspec(2, 1, height_ratios=(0.05 if truth else 0.0002, height), hspace=0.01)
    if truth:
        draw_strip(shown.add_subplot(grid[0]), one.groups[order][None]).set_title("true group", fontsize=7, pad=2)
    axis = shown.add_subplot(grid[1])
    look: dict[str, Any] = {"cmap": "viridis", "aspect": "auto", "interpolation": "nearest"}
    image = axis.imshow(apart[order].T, **look)
    remove_axes(axis)
    separate(axis, one.labels[order], width)
    step = -(-c // int(height / ROW))
    axis.set_yticks(range(0, c, step), [str(cluster + 1) for cluster in one.clusters[::step]])
    axis.tick_params(length=0)
    axis.set(
        xlabel=f"{counted(n, 'client')} by cluster, round {one.round}{of_seed(run, seed)}", ylabel="model of cluster"
    )
    bar = shown.colorbar(image, ax=axis, pad=0.01, aspect=12)
    bar.set_label({"euclidean": "Euclidean distance", "l1": "L1 distance"}[distance])
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return shown


def seed_of(run: History, seed: int | None) -> int:
    """The seed that is shown: the first unless one is given."""
    labels_of(run, seed)  # which refuses a run without evaluations, and seeds that it does not have
    return run.seeds[0] if seed is None else seed


def compared(run: History, at: Number | None, seed: int | None) -> Compared:
    """The models of one seed after a round, clusters that serve nobody left out.

    Raises:
        InputError: the run compared no models then.
    """
    number = seed_of(run, seed)
    rounds = results.models_rounds(run, number)
    if not rounds:
        raise InputError(f"{run.name} compared no models; run with compare_models: [{run.rounds[-1]}] or other rounds")
    round = rounds[-1] if at is None else at
    found, raw = results.models(run, number, round), labels_of(run, seed)
    new = ranked(raw)
    index, who = evaluation_index(run, round), found["model_clients"]
    table = dict(zip(raw.ravel().tolist(), new.ravel().tolist(), strict=True))
    numbers = np.array([table.get(int(slot), -1) if slot >= 0 else -1 for slot in found["model_clusters"]], int)
    n, live = len(who), np.flatnonzero(numbers >= 0)
    kept = np.r_[np.arange(n), n + live[np.argsort(numbers[live])]]
    cosine, distance = (
        full_matrix(found[name], n + len(numbers), diagonal)[np.ix_(kept, kept)]
        for name, diagonal in (("model_cosine", 1.0), ("model_distance", 0.0))
    )
    groups = run.groups[who]
    labels, l1 = new[index, who], found.get("model_l1")
    l1 = None if l1 is None else l1[:, kept[n:] - n]
    return Compared(round, labels, groups_of(labels, groups), groups, np.sort(numbers[live]), cosine, distance, l1)
