"""Agglomerative clustering of clients by their distances, and the split of a cluster in two for CFL."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import lax

from jcfl.grouping.labels import numbered
from jcfl.types import Array

Linkage = Literal["average", "complete", "single"]


class Rule(NamedTuple):
    """A linkage: the number kept for a pair of clusters, and how their distance follows from it."""

    united: Callable[[Array, Array], Array]  # from the numbers of two clusters [m] to those of their union [m]
    distance: Callable[[Array, Array], Array]  # from the numbers and the counts of pairs of clients to distances. [m]


class Tree(NamedTuple):
    """The state of agglomeration. A cluster has the row of its smallest member."""

    kept: Array  # [m, m] the linkage's number for two clusters, infinite where there is no pair
    size: Array  # [m] the number of members, 0 in a row without a cluster
    best: Array  # [m] the distance to the nearest other cluster, or a lower bound of it
    partner: Array  # [m] int32, the nearest other cluster, the first of several
    exact: Array  # [m] bool, whether `best` and `partner` are up to date
    target: Array  # [m] int32, the row of each client's cluster
    pair: Array  # [2] int32, the two nearest clusters, in ascending order
    rows: Array  # [2, m] their rows of `kept`


def agglomerate(
    distance: Array,
    present: Array,
    linkage: Linkage,
    *,
    threshold: Array | float | None = None,
    clusters: Array | int | None = None,
) -> Array:
    """Clusters after the two nearest were united, again and again.

    This goes on while the two are nearer than `threshold` and there are more than `clusters`. For average linkage sums
    are kept, so that equal averages of whole numbers are equal in floating point too. The nearest partner of every row
    is cached. After a merge a cached distance may be too low, but never too high; it is computed again when it is the
    least. Of equal distances, the pair with the smallest ids is united.

    Args:
        distance: symmetric, of any sign; the diagonal is not used. [m, m]
        present: which clients there are. [m] bool
        linkage: the distance of two clusters is the mean over all pairs of their clients (`average`), that of the
            farthest pair (`complete`), or of the nearest (`single`).
        threshold: clusters at this distance or farther are not united; infinity by default.
        clusters: the number of clusters to stop at; one by default.

    Returns:
        clusters, numbered by their smallest members; -1 for the absent. [m] int32
    """
    limit = jnp.inf if threshold is None else threshold
    least = 1 if clusters is None else clusters
    ids = jnp.arange(present.size, dtype=jnp.int32)
    pairs = present[:, None] & present & (ids[:, None] != ids)
    distance = jnp.where(pairs, distance, jnp.inf)
    rule = LINKAGES[linkage]
    start = Tree(
        kept=distance,
        size=present.astype(distance.dtype),
        best=distance.min(1),
        partner=distance.argmin(1).astype(jnp.int32),
        exact=jnp.ones_like(present),
        target=ids,
        pair=ids[:2],
        rows=distance[:2],
    )

    def ongoing(tree: Tree) -> Array:
        return (tree.best.min() < limit) & ((tree.size > 0).sum() > least)

    unite = lambda tree: refreshed(united(tree, rule), rule)
    target = lax.while_loop(ongoing, unite, refreshed(start, rule)).target
    return numbered(target, present)


def united(tree: Tree, rule: Rule) -> Tree:
    """The tree after the two nearest clusters were united, in the row of the one with the smaller id."""
    kept, size, best, partner, exact, target, (a, b), (to_a, to_b) = tree
    ids = jnp.arange(size.size, dtype=jnp.int32)
    others = (size > 0) & (ids != a) & (ids != b)
    row = jnp.where(others, rule.united(to_a, to_b), jnp.inf)  # [m]
    size = size.at[a].add(size[b]).at[b].set(0)
    near = jnp.where(others, rule.distance(row, size[a] * size), jnp.inf)
    # A union is never nearer than its parts, except by rounding. If it is as near as the partner, the first counts.
    nearer, first = near < best, (near <= best) & (a <= partner)
    exact = nearer | (exact & (first | ((partner != a) & (partner != b))))
    return tree._replace(
        kept=kept.at[b].set(jnp.inf).at[:, b].set(jnp.inf).at[a].set(row).at[:, a].set(row),
        size=size,
        best=jnp.minimum(best, near).at[a].set(near.min()).at[b].set(jnp.inf),
        partner=jnp.where(nearer | first, a, partner).at[a].set(near.argmin().astype(jnp.int32)),
        exact=exact.at[a].set(True),
        target=jnp.where(target == b, a, target).astype(jnp.int32),
    )


def refreshed(tree: Tree, rule: Rule) -> Tree:
    """The tree with its nearest pair, after partners were computed again until the least distance is exact."""

    def look(carry):
        best, partner, exact = carry
        row = best.argmin()
        near = jnp.where(tree.kept[row] < jnp.inf, rule.distance(tree.kept[row], tree.size[row] * tree.size), jnp.inf)
        partner = partner.at[row].set(near.argmin().astype(jnp.int32))
        return best.at[row].set(near.min()), partner, exact.at[row].set(True)

    stale = lambda carry: ~carry[2][carry[0].argmin()]
    best, partner, exact = lax.while_loop(stale, look, (tree.best, tree.partner, tree.exact))
    row = best.argmin().astype(jnp.int32)
    pair = jnp.sort(jnp.stack([row, partner[row]]))
    # Rows are read after all writes, because XLA would copy a matrix that is read and then written in one step.
    return tree._replace(best=best, partner=partner, exact=exact, pair=pair, rows=tree.kept[pair])


LINKAGES: dict[str, Rule] = {
    "average": Rule(jnp.add, jnp.divide),
    "complete": Rule(jnp.maximum, lambda kept, pairs: kept),
    "single": Rule(jnp.minimum, lambda kept, pairs: kept),
}


def bipartition(similarity: Array, member: Array, linkage: Linkage = "complete") -> tuple[Array, Array]:
    """The two halves of a cluster of CFL, by agglomeration on minus the cosine (Sattler et al. 2020).

    Args:
        similarity: cosines of the updates of all clients, by client id. [m, m]
        member: which clients are in the cluster. [m] bool
        linkage: `complete`, as in the authors' code, or `single`, which minimises `cross` over all bipartitions; their
            paper calls that optimal (its Algorithm 1).

    Returns:
        `half`, which is true for members of the half without the smallest id, and false for all if there are fewer than
        two members [m] bool; and `cross`, the largest similarity of a pair with one client in each half (α_cross^max),
        minus infinity if there is no second half [].
    """
    labels = agglomerate(-similarity, member, linkage, clusters=2)
    half = labels == 1
    between = (labels == 0)[:, None] & half
    return half, jnp.where(between, similarity, -jnp.inf).max()
