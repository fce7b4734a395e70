"""Numbers for clusters that do not depend on how the clusters were found."""

import jax.numpy as jnp

from jcfl.types import Array


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
