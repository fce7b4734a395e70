"""Density-based clustering of clients, which also finds the number of clusters.

Ester et al. 1996, "A Density-Based Algorithm for Discovering Clusters in Large Spatial Databases with Noise" (DBSCAN),
https://cdn.aaai.org/KDD/1996/KDD96-037.pdf.
"""

import jax.numpy as jnp
from jax import lax

from jcfl.grouping.labels import numbered
from jcfl.types import Array

ROUNDED = 1e-3
"""How far apart equal points may be by rounding, as a share of the largest distance: distances in single precision are
roots of differences of squares, so that their error is the root of the precision."""


def dbscan(distance: Array, present: Array, eps: Array | float, min_samples: Array | int) -> Array:
    """Clusters of clients that have many others near them (Ester et al. 1996).

    A client is a core client if at least `min_samples` clients, itself included, are at most `eps` away. Core clients
    that are at most `eps` apart share a cluster. A client that is not a core client, but has one within `eps`, is a
    border client. It joins the cluster of its nearest core client; of several equally near, that with the smallest id.
    All other clients are noise, and each of them becomes a cluster of its own.

    Args:
        distance: symmetric; the diagonal is not used. [n, n] float
        present: which clients there are. [n] bool
        eps: the radius of a neighbourhood; a distance equal to it is inside.
        min_samples: how many clients the neighbourhood of a core client has at least.

    Returns:
        clusters, numbered by their smallest members; -1 for the absent. [n] int32

    Deviations:
        In the original, a border client between two clusters joins the cluster that is found first. Here it joins the
        nearest, so the order of the clients does not matter.
    """
    n = present.size
    ids = jnp.arange(n, dtype=jnp.int32)
    same = ids[:, None] == ids
    pairs = present[:, None] & present
    near = pairs & ((distance <= eps) | same)
    core = present & (near.sum(1) >= min_samples)
    part = connected(near & core[:, None] & core)
    reach = jnp.where(near & core & ~same, distance, jnp.inf)  # [n, core]
    border = present & ~core & (reach < jnp.inf).any(1)
    part = jnp.where(border, part[reach.argmin(1)], part)
    return numbered(part, present)


def connected(near: Array) -> Array:
    """The smallest id in the connected part of a graph to which each node belongs. [n, n] -> [n] int32

    After each sweep, a node also takes the label of its label, so that a long chain needs few sweeps.
    """
    n = near.shape[0]
    ids = jnp.arange(n, dtype=jnp.int32)

    def sweep(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        old, _ = carry
        new = jnp.minimum(old, jnp.where(near, old, n).min(1)).astype(jnp.int32)
        new = new[new]
        return new, (new != old).any()

    return lax.while_loop(lambda carry: carry[1], sweep, (ids, jnp.array(True)))[0]


def knee(distance: Array, present: Array, min_samples: int) -> Array:
    """A radius for `dbscan`: the point where the sorted distances to the k-th neighbour bend (Ester et al. 1996, §4.2).

    With k = `min_samples` − 1, a client with k neighbours is a core client. The bend is the point that is farthest
    below the straight line from the first to the last of the sorted distances.

    Args:
        distance: symmetric; the diagonal is not used. [n, n] float
        present: which clients there are. [n] bool
        min_samples: clients in the neighbourhood of a core client, itself included; at least 2.

    Returns:
        the radius, above the rounding of distances between equal points; infinite if nobody has that many neighbours.
        [] float
    """
    n = present.size
    pairs = present[:, None] & present & ~jnp.eye(n, dtype=bool)
    away = jnp.sort(jnp.where(pairs, distance, jnp.inf), 1)[:, min(max(min_samples - 2, 0), n - 1)]
    away = jnp.sort(away)
    real = away < jnp.inf
    count = real.sum()
    last = jnp.maximum(count - 1, 1)
    line = away[0] + (away[jnp.maximum(count - 1, 0)] - away[0]) * jnp.arange(n) / last
    below = jnp.where(real, line - jnp.where(real, away, 0), -jnp.inf)
    least = ROUNDED * jnp.where(pairs & (distance < jnp.inf), distance, 0).max()
    return jnp.where(count > 0, jnp.maximum(away[below.argmax()], least), jnp.inf)
