"""A report's tables that explain clusters: how stable they are, what sets each apart, and which clients moved."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jcfl.results import History
from jcfl.view.plotting import DETAILED, has_clusters
from jcfl.view.plotting.explaining import Cluster, Explanation, Move, explained

NAMED = 3
"""The most labels that are named for a cluster."""

MOST = 20
"""The most clients that moved which are listed."""


def tables(runs: Sequence[History], titles: Sequence[str]) -> list[dict[str, Any]]:
    """What explains the clusters of each run that has some: its `title`, `stable` in words, `clusters` and `moves`."""
    clustered = [(title, run) for title, run in zip(titles, runs, strict=True) if has_clusters(run)]
    found = [(title, run, explained(run)) for title, run in clustered[:DETAILED]]
    return [
        {
            "title": title if len(runs) > 1 else "",
            "stable": stable(one, run),
            "clusters": clusters_table(one.clusters),
            "moves": moves_table(one.moves[:MOST]),
            "moved": len(one.moves),
        }
        for title, run, one in found
        if one is not None
    ]


def stable(one: Explanation, run: History) -> list[tuple[str, str]]:
    """How stable the clusters are, as pairs of a name and a text."""
    last = one.stability.before[:, -1], one.stability.churn[:, -1]
    shown = {
        "agreement of the last clusters between seeds (ARI)": number(one.stability.seeds[-1]),
        "agreement of the last two evaluations (ARI)": number(mean(last[0])),
        "clients that changed at the last evaluation": per_cent(mean(last[1])),
        "clients that ever changed": f"{len(one.moves)} of {run.groups.size}",
    }
    return [(name, text) for name, text in shown.items() if text != "–"]


def clusters_table(clusters: Sequence[Cluster]) -> dict[str, Any]:
    """What sets each cluster apart, in the form of the page's tables."""
    rows = [
        (
            str(one.number),
            [(text, False) for text in (str(one.clients), labels(one), number(one.association), strongest(one))],
        )
        for one in clusters
    ]
    heads = ["clients", "labels that differ most from those of the others", "Cramér's V", "largest |d| of a pixel"]
    return {"columns": heads, "rows": rows}


def labels(one: Cluster) -> str:
    """The labels whose shares differ most from those of all other clients."""
    order = np.argsort(-np.abs(one.gaps), kind="stable")[:NAMED]
    named = (
        f"{label}: {per_cent(float(one.labels[label]))} (others {per_cent(float(one.rest[label]))})"
        for label in order
        if abs(one.gaps[label]) >= 0.001
    )
    return "; ".join(named) or "–"


def strongest(one: Cluster) -> str:
    """The largest effect of a pixel, and where it is."""
    if one.effect is None:
        return "–"
    row, column = np.unravel_index(np.abs(one.effect).argmax(), one.effect.shape)
    return f"{one.effect[row, column]:+.2f} at row {row + 1}, column {column + 1}; {one.pictures} images"


def moves_table(moves: Sequence[Move]) -> dict[str, Any]:
    """The clients that moved most often, in the form of the page's tables."""
    heads = ["changes", "last at round", "from cluster", "to cluster", "cosine with the former", "cosine with the new"]
    texts = [
        (one.id, (one.times, one.round, one.before, one.after, number(one.cosine_before), number(one.cosine_after)))
        for one in moves
    ]
    return {"columns": heads, "rows": [(str(client), [(str(text), False) for text in row]) for client, row in texts]}


def mean(values: np.ndarray) -> float:
    """The mean of what is known; NaN where nothing is."""
    return float(np.nanmean(values)) if not np.isnan(values).all() else np.nan


def number(value: float) -> str:
    """A number with two digits after the point."""
    return "–" if np.isnan(value) else f"{value:z.2f}"


def per_cent(value: float) -> str:
    """A share as per cent.

    >>> per_cent(0.1234), per_cent(float("nan"))
    ('12.3 %', '–')
    """
    return "–" if np.isnan(value) else f"{100 * value:.1f} %"
