"""Agreement of clusters with the true groups, in NumPy and scikit-learn.

Clients without a cluster or without a known group (-1) are left out. A measure of no clients is NaN. scikit-learn takes
a second to import, so it is imported only when a measure is computed.
"""

from typing import Any

import numpy as np

from jcfl.metrics.evaluation import mean, ratio


def clustering(labels: Any, groups: Any) -> dict[str, float]:  # [m], [m]
    """The number of clusters with at least one client, and every measure of their agreement with the true groups.

    Args:
        labels: the cluster of every client, -1 for none. [m] int
        groups: the true group of every client, -1 for unknown. [m] int

    Returns:
        `clusters`, see the function of this name, and `purity`, `pair_purity`, `ari` and `nmi`; these four leave out
        clients with a -1 in either, and are NaN if no client is left.

    >>> clustering([2, 2, 0, -1], [0, 0, 1, 1])
    {'clusters': 2, 'purity': 1.0, 'pair_purity': 1.0, 'ari': 1.0, 'nmi': 1.0}
    """
    measures = {"purity": purity, "pair_purity": pair_purity, "ari": ari, "nmi": nmi}
    return {"clusters": clusters(labels)} | {name: measure(labels, groups) for name, measure in measures.items()}


def clusters(labels: Any) -> int:  # [m]
    """The number of clusters with at least one client.

    Args:
        labels: the cluster of every client, -1 for none. [m] int

    Returns:
        How many different labels there are from 0 on; 0 if no client has a cluster.
    """
    labels = np.asarray(labels)
    return np.unique(labels[labels >= 0]).size


def purity(labels: Any, groups: Any) -> float:  # [m], [m]
    """The share of clients that belong to the largest group of their cluster (Manning et al. 2008, §16.3).

    Clients with a -1 in either are left out. Every client in a cluster of its own has purity 1 too.

    Args:
        labels: the cluster of every client, -1 for none. [m] int
        groups: the true group of every client, -1 for unknown. [m] int

    Returns:
        A share in (0, 1], 1 if no cluster has clients of two groups; NaN if no client has both.
    """
    table = contingency(labels, groups)  # [k, g]
    return float(ratio(table.max(-1, initial=0).sum(), table.sum()))


def pair_purity(labels: Any, groups: Any) -> float:  # [m], [m]
    """The share of same-group pairs inside a cluster, in the mean over clusters (Bhattacharya and Aridi 2024, eq. 10).

    A cluster of one client has no pairs and counts as pure, as in the authors' code. Clients with a -1 in either are
    left out. All clusters count equally, whatever their size.

    Args:
        labels: the cluster of every client, -1 for none. [m] int
        groups: the true group of every client, -1 for unknown. [m] int

    Returns:
        A share in [0, 1], 1 if no cluster has clients of two groups; NaN if no client has both.

    Deviations:
        The mean is Σ IC(C_i)/K over the K clusters, as in the authors' code. Equation 11 prints Σ IC(C_i)/|C_i|, which
        cannot reach the 1.0 that the paper reports. Clusters without clients are left out; the code counts them as 0.
    """
    table = contingency(labels, groups)  # [k, g]
    size = table.sum(-1)  # [k]
    same = (table * (table - 1.0)).sum(-1)
    return mean(ratio(same, size * (size - 1.0), empty=1.0), np.ones_like(size))


def ari(labels: Any, groups: Any) -> float:  # [m], [m]
    """The adjusted Rand index, by scikit-learn (Hubert and Arabie 1985, https://doi.org/10.1007/BF01908075).

    It compares two partitions by their pairs of clients; the numbers of clusters and groups do not matter. Clients with
    a -1 in either are left out.

    Args:
        labels: the cluster of every client, -1 for none. [m] int
        groups: the true group of every client, -1 for unknown. [m] int

    Returns:
        1 for equal partitions, about 0 for random ones, and at least -0.5; NaN if no client has both.
    """
    from sklearn.metrics import adjusted_rand_score

    labels, groups = known(labels, groups)
    return float(adjusted_rand_score(groups, labels)) if labels.size else np.nan


def nmi(labels: Any, groups: Any) -> float:  # [m], [m]
    """The mutual information, normalised by the arithmetic mean of the two entropies, by scikit-learn.

    Clients with a -1 in either are left out. Unlike `ari`, it is not corrected for chance: random partitions with many
    clusters are above 0.

    Args:
        labels: the cluster of every client, -1 for none. [m] int
        groups: the true group of every client, -1 for unknown. [m] int

    Returns:
        A number in [0, 1], 1 for equal partitions; NaN if no client has both.
    """
    from sklearn.metrics import normalized_mutual_info_score

    labels, groups = known(labels, groups)
    return float(normalized_mutual_info_score(groups, labels)) if labels.size else np.nan


def moves(before: Any, after: Any) -> int:  # [m], [m]
    """The number of clients that left one cluster for another (Ma 2023, Figure 7.5).

    Clients that had no cluster before, or have none after, are not counted. Clusters are compared by their numbers.

    Args:
        before: the cluster of every client at one evaluation, -1 for none. [m] int
        after: the same at a later evaluation. [m] int

    Returns:
        How many clients have different numbers in the two, from 0 to m.
    """
    before, after = np.asarray(before), np.asarray(after)
    return int(((before != after) & (before >= 0) & (after >= 0)).sum())


def contingency(labels: Any, groups: Any) -> np.ndarray:  # [m], [m] -> [k, g]
    """The number of clients of every group in every cluster, for the clusters and groups that occur."""
    from sklearn.metrics.cluster import contingency_matrix

    labels, groups = known(labels, groups)
    return np.asarray(contingency_matrix(labels, groups)) if labels.size else np.zeros((0, 0), int)


def known(labels: Any, groups: Any) -> tuple[np.ndarray, np.ndarray]:
    """The labels and groups of the clients that have both."""
    labels, groups = np.asarray(labels), np.asarray(groups)
    kept = (labels >= 0) & (groups >= 0)
    return labels[kept], groups[kept]
