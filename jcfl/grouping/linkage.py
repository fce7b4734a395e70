"""Agglomerative clustering of clients from their distances, and CFL's split of a cluster in two."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import lax

from jcfl.grouping.labels import numbered
from jcfl.types import Array

Linkage = Literal["average", "complete", "single"]


class Rule(NamedTuple):
    """A linkage: what is kept of a pair of clusters adds up over a union's parts, and says how far apart they are."""

    united: Callable[[Array, Array], Array]  # what is kept of a union and all others, from its two parts'. [m]
    distance: Callable[[Array, Array], Array]  # from what is kept, and how many pairs of clients that is. [m]


class Tree(NamedTuple):
    """How far agglomeration has come; a cluster lives in the row of its smallest member."""

    kept: Array  # [m, m] what the linkage keeps of two clusters, infinite where there is no pair
    size: Array  # [m] members, 0 where no cluster lives
    best: Array  # [m] the distance to the nearest other cluster, or less
    partner: Array  # [m] int32, which that is, the first of several
    exact: Array  # [m] bool, whether the two above are true
    target: Array  # [m] int32, the row in which each client's cluster lives
    pair: Array  # [2] int32, the nearest two, in order
    rows: Array  # [2, m] what is kept of them


def agglomerate(
    distance: Array,
    present: Array,
    linkage: Linkage,
    *,
    threshold: Array | float | None = None,
    clusters: Array | int | None = None,
) -> Array:
    """Unite the two nearest clusters while they are nearer than `threshold` and there are more than `clusters`.

    Of an average the sum is kept, so that distances that are equal in whole numbers tie. The nearest partner of every
    row is cached; a cached distance may be too low after a merge (never too high), and is recomputed when it comes to
    the top. Ties go to the pair with the smallest ids.

    Args:
        distance: symmetric, of any sign; the diagonal is not used. [m, m]
        present: which clients there are. [m] bool
        linkage: a cluster's distance to another is that of all their pairs on `average`, of the farthest pair
            (`complete`), of the nearest (`single`).
        threshold: distance at or above which nothing is united; any distance by default.
        clusters: how many to stop at; one by default.

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
    """The tree after the nearest two became one cluster, in the place of the smaller."""
    kept, size, best, partner, exact, target, (a, b), (to_a, to_b) = tree
    ids = jnp.arange(size.size, dtype=jnp.int32)
    others = (size > 0) & (ids != a) & (ids != b)
    row = jnp.where(others, rule.united(to_a, to_b), jnp.inf)  # [m]
    size = size.at[a].add(size[b]).at[b].set(0)
    near = jnp.where(others, rule.distance(row, size[a] * size), jnp.inf)
    # No linkage brings clusters nearer, save by rounding; where the union is as near as anything, the first one counts.
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
    """The tree with rows' partners looked up again until the nearest pair is a true one, and that pair."""

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
    # Rows are read here, after all writes, because XLA copies a matrix that is read and then written in one step.
    return tree._replace(best=best, partner=partner, exact=exact, pair=pair, rows=tree.kept[pair])


LINKAGES: dict[str, Rule] = {
    "average": Rule(jnp.add, jnp.divide),
    "complete": Rule(jnp.maximum, lambda kept, pairs: kept),
    "single": Rule(jnp.minimum, lambda kept, pairs: kept),
}


def bipartition(similarity: Array, member: Array, linkage: Linkage = "complete") -> tuple[Array, Array]:
    """A cluster of CFL in two halves: agglomeration on minus the cosine, down to two (Sattler et al. 2020).

    Args:
        similarity: cosines of the updates of all clients, by client id. [m, m]
        member: who is in the cluster. [m] bool
        linkage: `complete`, as the authors' code has it; `single` minimises `cross` over all bipartitions, which is
            what their paper calls optimal (Algorithm 1 there).

    Returns:
        true for the members of the half without the smallest id [m] bool, all false where there are fewer than two;
        and `cross`, the greatest similarity between a member of one half and one of the other (α_cross^max), minus
        infinity where there is no other half. []
    """
    labels = agglomerate(-similarity, member, linkage, clusters=2)
    half = labels == 1
    between = (labels == 0)[:, None] & half
    return half, jnp.where(between, similarity, -jnp.inf).max()
