"""Clusters explained from a run's folder: how stable they are, what sets each apart, and which clients moved."""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jcfl import metrics, results
from jcfl.errors import Damaged, InputError
from jcfl.results import History
from jcfl.view.plotting.cosines import full_matrix, labels_of
from jcfl.view.plotting.style import histories, matched, ranked

MOST_PAIRS = 100
"""The most pairs of seeds whose clusters are compared. If there are more pairs, these are drawn at random."""


class Stability(NamedTuple):
    """The stability of clusters. A value that is not defined is NaN."""

    #: [e] the adjusted Rand index (ARI) between the clusters of two seeds, mean over all pairs of seeds, or over 100
    #: pairs drawn at random if there are more
    seeds: np.ndarray
    before: np.ndarray  #: [seeds, e] the ARI between an evaluation and the one before it; NaN at the first
    #: [seeds, e] the share of clients, in [0, 1], that changed their cluster since the evaluation before; NaN at the
    #: first one
    churn: np.ndarray


class Cluster(NamedTuple):
    """The differences between a cluster and all other clients, after the last round."""

    number: int  #: its number, as in the figures; 1 for the largest cluster
    clients: int  #: how many clients are in it
    labels: np.ndarray  #: [c] the share of its clients' training examples that has a label, in [0, 1]
    rest: np.ndarray  #: [c] the same of all other clients
    #: Cramér's V between an example's label and whether it is the cluster's, in [0, 1]; NaN if all clients are in the
    #: cluster, or if there is only one label
    association: float
    pictures: int  #: how many of its clients have an image in federation.npz
    #: [h, w, ch] float, the mean of these images, in the units of the stored images; None if there are none
    image: np.ndarray | None
    #: [h, w] float, Cohen's d of each pixel against the images of other clients; None if either side has fewer than two
    effect: np.ndarray | None

    @property
    def gaps(self) -> np.ndarray:
        """The difference of shares for each label, the cluster's less that of all other clients. [c]"""
        return self.labels - self.rest


class Move(NamedTuple):
    """A client that changed its cluster, and its last move."""

    client: int  #: its place in the history's arrays, from 0
    id: Any  #: what the user calls it; its place if the user gave no ids
    times: int  #: how often it changed its cluster
    round: int  #: the evaluated round at which it was first seen in its new cluster
    before: int  #: the number of the cluster that it left, from 1
    after: int  #: the number of its new cluster, from 1
    #: the mean cosine of its gradient at the initial model with those of the members of the cluster that it left, in
    #: [-1, 1]; NaN if they were not compared
    cosine_before: float
    cosine_after: float  #: the same with the members of its new cluster


class Explanation(NamedTuple):
    """The result of `explain`."""

    stability: Stability  #: how stable the clusters are, over rounds and over all seeds
    clusters: list[Cluster]  #: the clusters of one seed after the last round, the largest first
    moves: list[Move]  #: the clients that moved most often first, of these the ones that moved last
    labels: np.ndarray  #: [c] the share of all clients' training examples that has a label, in [0, 1]


def explain(run: History | Path | str, seed: int | None = None) -> Explanation:
    """Explain the clusters of a run by the files in its folder; nothing is trained.

    Args:
        run: a history or a folder.
        seed: the seed whose clusters are described; the first by default. Stability is that of all seeds.

    Returns:
        Stability over all seeds; the clusters and the moves of clients of one seed; and the share of each label. Of
        several methods it is the first one that is explained.

    Raises:
        InputError: nothing has been evaluated, there is no such seed, or the run has no folder.
    """
    (found, *_) = histories(run)
    labels, facts = ranked(labels_of(found, seed)), results.federation(found)
    counts = facts["train"]
    kinds = [int(kind) for kind in np.unique(labels[-1]) if kind >= 0]
    clusters = [cluster(kind, labels[-1], facts) for kind in kinds]
    return Explanation(stability(found), clusters, moves(labels, found, facts), share(counts))


def stability(run: History) -> Stability:
    """The stability of a run's clusters, over seeds and over rounds."""
    pairs = list(itertools.combinations(range(len(run.seeds)), 2))
    if len(pairs) > MOST_PAIRS:
        pairs = np.random.default_rng(0).permutation(pairs)[:MOST_PAIRS].tolist()
    between = [agreement(run.labels[one], run.labels[other]) for one, other in pairs]
    before = [agreement(own[:-1], own[1:]) for own in run.labels]
    churn = [[changed_share(*pair) for pair in itertools.pairwise(own)] for own in run.labels]
    seeds = np.array(between).mean(0) if pairs else np.full(len(run.rounds), np.nan)
    first = np.full((len(run.seeds), 1), np.nan)
    later = (len(run.seeds), len(run.rounds) - 1)
    return Stability(seeds, *(np.hstack([first, np.reshape(values, later)]) for values in (before, churn)))


def agreement(one: np.ndarray, other: np.ndarray) -> list[float]:
    """The ARI of two rows of labels at each evaluation, measured anew only where a label has changed. [e, m] each."""
    found: list[float] = []
    for turn, pair in enumerate(zip(one, other, strict=True)):
        same = turn > 0 and np.array_equal(pair, (one[turn - 1], other[turn - 1]))
        found.append(found[-1] if same else metrics.ari(*pair))
    return found


def changed(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Which clients left one cluster for another, not counting that clusters got other numbers. [m]

    >>> changed(np.array([0, 0, 0, 1, 1, -1]), np.array([1, 1, 0, 0, 0, 0])).tolist()
    [False, False, True, False, False, False]
    """
    return (before >= 0) & (after >= 0) & (matched(before, after) != before)


def changed_share(before: np.ndarray, after: np.ndarray) -> float:
    """The share of the clients with a cluster at both evaluations that changed it; NaN if there is no such client."""
    both = int(((before >= 0) & (after >= 0)).sum())
    return float(changed(before, after).sum() / both) if both else np.nan


def cluster(kind: int, labels: np.ndarray, facts: dict[str, np.ndarray]) -> Cluster:
    """What sets one cluster apart.

    Args:
        kind: its number in `labels`.
        labels: the clusters of all clients. [m]
        facts: the arrays of federation.npz.
    """
    mine, images = labels == kind, facts["images"].astype(float)
    pictured = mine[facts["pictured"]]
    own, rest = facts["train"][mine], facts["train"][~mine]
    there = len(images) > 0 and pictured.any()
    return Cluster(
        number=kind + 1,
        clients=int(mine.sum()),
        labels=share(own),
        rest=share(rest),
        association=association(own.sum(0), rest.sum(0)),
        pictures=int(pictured.sum()) if len(images) else 0,
        image=images[pictured].mean(0) if there else None,
        effect=effect(images[pictured].mean(-1), images[~pictured].mean(-1)) if there else None,
    )


def share(counts: np.ndarray) -> np.ndarray:
    """The share of examples that has each label, from the counts of some clients [n, c]; 0 where there is none. [c]"""
    return np.asarray(counts.sum(0)) / max(counts.sum(), 1)


def association(own: np.ndarray, rest: np.ndarray) -> float:
    """Cramér's V of two histograms of labels [c]; NaN where one is empty or there is one label only."""
    from scipy.stats.contingency import association as measure

    table = np.stack([own, rest]).astype(int)
    table = table[:, table.any(0)]
    return float(measure(table, method="cramer")) if table.shape[1] > 1 and table.any(1).all() else np.nan


def effect(own: np.ndarray, rest: np.ndarray) -> np.ndarray | None:
    """Cohen's d of each pixel: the difference of the means [h, w] by the pooled standard deviation.

    A pixel that varies in neither of them is 0. None where there are fewer than two images [n, h, w] of either.
    """
    if min(len(own), len(rest)) < 2:
        return None
    squares = [((part - part.mean(0)) ** 2).sum(0) for part in (own, rest)]
    pooled = np.sqrt(sum(squares) / (len(own) + len(rest) - 2))
    gap = own.mean(0) - rest.mean(0)
    return np.divide(gap, pooled, out=np.zeros_like(gap), where=pooled > 0)


def moves(labels: np.ndarray, run: History, facts: dict[str, np.ndarray]) -> list[Move]:
    """The clients that changed their cluster.

    Args:
        labels: the clusters after each evaluated round. [e, m]
        run: has the evaluated rounds [e], and the clients' ids [m].
        facts: the arrays of federation.npz.
    """
    went = np.stack([np.zeros(labels.shape[1], bool), *(changed(*pair) for pair in itertools.pairwise(labels))])
    place = np.full(labels.shape[1], -1)
    place[facts["compared"]] = np.arange(len(facts["compared"]))
    cosine = full_matrix(facts["cosine"], len(facts["compared"]))

    def nearness(client: int, members: np.ndarray) -> float:
        others = place[members & (np.arange(len(members)) != client)]
        others = others[others >= 0]
        return float(cosine[place[client], others].mean()) if place[client] >= 0 and others.size else np.nan

    found, ids = [], run.clients.tolist()
    for client in map(int, np.flatnonzero(went.any(0))):
        turn = int(np.flatnonzero(went[:, client])[-1])
        old, new = int(labels[turn - 1, client]), int(labels[turn, client])
        near = nearness(client, labels[turn - 1] == old), nearness(client, labels[turn] == new)
        times, round = int(went[:, client].sum()), int(run.rounds[turn])
        found.append(Move(client, ids[client], times, round, old + 1, new + 1, *near))
    return sorted(found, key=lambda move: (-move.times, -move.round, move.client))


def explained(run: History, seed: int | None = None) -> Explanation | None:
    """As `explain`; None where there is nothing to explain: no clusters yet, or no federation.npz."""
    try:
        found = explain(run, seed)
    except Damaged:
        raise
    except InputError:
        return None
    return found if found.clusters else None
