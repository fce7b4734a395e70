"""Clusters, and how they agree with the true groups."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jcfl.metrics.ratios import ratio, valid, weighted_mean
from jcfl.types import Array


def clustering(labels: ArrayLike, groups: ArrayLike, k: int, g: int, mask: ArrayLike = True) -> dict[str, Array]:
    """The clusters found, and how they agree with the true groups.

    Args:
        labels: the cluster of every client, -1 for none yet. [m]
        groups: the true group of every client, -1 where unknown. [m]
        k: the number of cluster slots.
        g: the number of groups.
        mask: the clients to look at. [m] or a scalar

    Returns:
        Scalars: `clusters` (non-empty ones, whether or not groups are known), `purity`, `pair_purity`, `ari`, `nmi`.
    """
    table = contingency(labels, groups, k, g, mask)
    return {
        "clusters": (sizes(labels, k, mask) > 0).sum(),
        "purity": purity(table),
        "pair_purity": pair_purity(table),
        "ari": ari(table),
        "nmi": nmi(table),
    }


def sizes(labels: ArrayLike, k: int, mask: ArrayLike = True) -> Array:  # [m] -> [k]
    """The number of clients in every cluster (T Figs. 7.3 and 7.4)."""
    return contingency(labels, jnp.zeros_like(labels), k, 1, mask)[:, 0]


def moves(before: ArrayLike, after: ArrayLike) -> Array:  # [m], [m] -> []
    """The number of clients that left one cluster for another (T Fig. 7.5); -1 is no cluster."""
    before, after = jnp.asarray(before), jnp.asarray(after)
    return ((before != after) & (before >= 0) & (after >= 0)).sum()


def contingency(labels: ArrayLike, groups: ArrayLike, k: int, g: int, mask: ArrayLike = True) -> Array:  # [k, g]
    """How many clients of every group each cluster holds; a label or group of -1 leaves a client out."""
    labels, groups = jnp.asarray(labels, jnp.int32), jnp.asarray(groups, jnp.int32)
    kept = valid(labels, k) & valid(groups, g) & jnp.asarray(mask, bool)
    return jnp.zeros((k, g), jnp.int32).at[labels, groups].add(kept.astype(jnp.int32), mode="drop")


def purity(table: ArrayLike) -> Array:  # [k, g] -> []
    """The share of clients that belong to the largest group of their cluster."""
    table = jnp.asarray(table)
    return ratio(table.max(-1, initial=0).sum(), table.sum())


def pair_purity(table: ArrayLike) -> Array:  # [k, g] -> []
    """The share of same-group pairs inside a cluster, averaged over clusters by size (E eqs. 10, 11).

    Deviations:
        Σ (|C_i|/n) IC(C_i); E's eq. 11 prints Σ IC(C_i)/|C_i|, which cannot reach the 1.0 that E reports. A cluster
        of one client has no pairs and counts as pure.
    """
    table = jnp.asarray(table)
    size = table.sum(-1)  # [k]
    first, second = ratio(table, size[:, None]), ratio(table - 1, size[:, None] - 1)  # draws without replacement
    return weighted_mean(jnp.where(size == 1, 1.0, (first * second).sum(-1)), size)


def ari(table: ArrayLike) -> Array:  # [k, g] -> []
    """The adjusted Rand index, from the four kinds of pairs (Hubert and Arabie, 1985).

    Each kind is summed by itself from exact integers, as a share of all pairs, so the float32 error stays at the
    order of one rounding for any number of clients.
    """
    n, both, label_only, group_only, neither = cells(table)
    share = both / n  # [k, g]
    together = (share * (jnp.maximum(both - 1, 0) / n)).sum()
    same_label = (share * (label_only / n)).sum()
    same_group = (share * (group_only / n)).sum()
    apart = (share * (neither / n)).sum()
    agreement = 2 * (together * apart - same_label * same_group)
    scale = (together + same_group) * (same_group + apart) + (together + same_label) * (same_label + apart)
    return jnp.where(share.sum() > 0, ratio(agreement, scale, empty=1.0), jnp.nan)


def nmi(table: ArrayLike) -> Array:  # [k, g] -> []
    """Mutual information over the arithmetic mean of the two entropies, scikit-learn's default.

    One cluster against one group counts as agreement, 1.
    """
    table = jnp.asarray(table)
    n, both, label_only, group_only, neither = cells(table)
    expected = (both + label_only) * (both + group_only)  # n² p(i) p(j)
    excess = ratio(both * neither - label_only * group_only, expected, empty=0.0)  # p(i, j) / (p(i) p(j)) - 1
    gain = jnp.where(jnp.abs(excess) < 0.5, jnp.log1p(excess), jnp.log(ratio(both * n, expected, empty=1.0)))
    information = jnp.maximum((both / n * jnp.where(both > 0, gain, 0)).sum(), 0)
    entropies = entropy(table.sum(1)) + entropy(table.sum(0))
    return jnp.where(table.sum() > 0, ratio(2 * information, entropies, empty=1.0), jnp.nan)


def cells(table: ArrayLike) -> tuple[Array, Array, Array, Array, Array]:
    """Floats of exact counts: all clients (at least 1), and for every cell those in both, one or neither of the two."""
    table = jnp.asarray(table)
    rows, columns, n = table.sum(1, keepdims=True), table.sum(0, keepdims=True), table.sum()
    cells = jnp.maximum(n, 1), table, rows - table, columns - table, n - rows - columns + table
    n, both, first, second, neither = (count.astype(float) for count in cells)
    return n, both, first, second, neither


def entropy(size: Array) -> Array:  # [k] -> []
    """The entropy of the shares that counts are of their sum."""
    n = jnp.maximum(size.sum(), 1)
    share = size / n
    # close to 1 the logarithm needs the complement, which is exact as an integer
    surprise = -jnp.where(share > 0.5, jnp.log1p((size - n) / n), jnp.log(jnp.where(size > 0, share, 1)))
    return (share * jnp.where(size > 0, surprise, 0)).sum()
