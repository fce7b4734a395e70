"""Labels of clients: those before any grouping, numbers for clusters, and what ends a run when clients are grouped."""

from collections.abc import Callable

import jax.numpy as jnp
from optax.assignment import hungarian_algorithm

from jcfl import trees
from jcfl.core.faults import with_failure
from jcfl.core.method import Method
from jcfl.types import OVERFLOW, UNDESCRIBED, Array, Federation, State


def first_labels(state: State, federation: Federation) -> Array:
    """Cluster 0 for the clients that are available, -1 for the others. [m] int32"""
    return jnp.where(federation.available(state.round), 0, -1).astype(jnp.int32)


def served(method: Method) -> Callable[[State, Federation], Array] | None:
    """The clusters at evaluation, [m], for groupings that give clients a cluster before they are sampled.

    With the answer `placed`, clients that were never sampled are in none, so that the grouping places them. None: all
    clients keep their clusters.
    """
    if method.answer.unsampled != "placed":
        return None
    return lambda state, federation: jnp.where(state.seen, state.labels, -1)


def numbered(labels: Array, present: Array) -> Array:
    """The same clusters, numbered by their smallest members.

    Args:
        labels: any numbers from 0 to n - 1. [n] int
        present: which clients there are. [n] bool

    Returns:
        numbers without gaps; -1 for the absent. [n] int32
    """
    n = present.size
    ids = jnp.arange(n)
    least = jnp.full(n, n).at[jnp.where(present, labels, n)].min(ids, mode="drop")  # smallest member of each label
    first = jnp.where(present, least[jnp.where(present, labels, 0)], n)
    rank = jnp.cumsum(present & (first == ids)) - 1
    return jnp.where(present, rank[jnp.minimum(first, n - 1)], -1).astype(jnp.int32)


def aligned(new: Array, old: Array, known: Array, k: int) -> Array:
    """New labels renumbered so that as many clients as possible keep their number, and clusters their model.

    The assignment problem is solved by optax's Hungarian algorithm.

    Args:
        new, old: labels; a new label of -1 stays. [n] int32
        known: the clients whose old label counts. [n] bool
        k: the number of slots.
    """
    inside = (new >= 0) & (new < k)
    both = jnp.zeros((k, k)).at[jnp.where(known & inside & (old >= 0), new, k), old].add(1.0, mode="drop")
    rows, columns = hungarian_algorithm(-both)
    number = jnp.zeros(k, jnp.int32).at[rows].set(columns.astype(jnp.int32))
    return jnp.where(inside, number[jnp.clip(new, 0, k - 1)], new).astype(jnp.int32)


def with_overflow(state: State, over: Array) -> State:
    """The state, marked as failed in this round where `over` [] says that there were more clusters than slots."""
    return with_failure(state, over, OVERFLOW)


def with_undescribed(state: State, points: Array, present: Array) -> State:
    """The state, marked as failed in this round if the description of a client, or its square, is not finite.

    Distances to a description whose square overflows are NaN, and then all clients get arbitrary clusters.

    Args:
        points: descriptions. [s, ...]
        present: the clients whose descriptions are used. [s] bool
    """
    return with_failure(state, (present & ~jnp.isfinite(trees.row_squares(points))).any(), UNDESCRIBED)
