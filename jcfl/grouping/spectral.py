"""Normalised spectral clustering of clients by their affinities.

Ng, Jordan and Weiss 2001, "On Spectral Clustering: Analysis and an Algorithm",
https://papers.nips.cc/paper/2092-on-spectral-clustering-analysis-and-an-algorithm.
"""

import jax.numpy as jnp

from jcfl.grouping import kmeans
from jcfl.grouping.labels import numbered
from jcfl.grouping.merging import inverse_norm
from jcfl.types import Array, Key

ITERATIONS = 100  # the most updates of the centres in one run of K-means
ABSENT = -2.0  # below every eigenvalue of a normalised affinity, which lie in [-1, 1]


def spectral(key: Key, affinity: Array, present: Array, k: int, restarts: int = 20) -> Array:
    """Clients grouped by K-means on the leading eigenvectors of D^(-1/2) A D^(-1/2) (Ng, Jordan and Weiss 2001).

    They are the eigenvectors of the symmetric normalised Laplacian with the smallest eigenvalues. A present client
    without affinity to others is a connected part of its own.

    Args:
        key: from which the seeds of K-means are drawn.
        affinity: symmetric; a negative affinity counts as 0, and the diagonal is not used. [n, n] float
        present: which clients there are. [n] bool
        k: number of clusters.
        restarts: runs of K-means, of which the best is taken.

    Returns:
        clusters, numbered by their smallest members; -1 for the absent. [n] int32
    """
    weights = present.astype(affinity.dtype)
    rows = embedding(affinity, present, k)
    labels = kmeans.fit(key, rows, weights, k, iterations=ITERATIONS, restarts=restarts).labels
    return numbered(labels, present)


def embedding(affinity: Array, present: Array, k: int) -> Array:
    """The k leading eigenvectors of the normalised affinity as coordinates of clients, scaled to length one. [n, k]

    Rows of absent clients are zero.
    """
    n = present.size
    pairs = present[:, None] & present & ~jnp.eye(n, dtype=bool)
    affinity = jnp.where(pairs, jnp.maximum(affinity, 0), 0)
    degree = affinity.sum(1)
    scale = inverse_norm(degree)  # D^(-1/2)
    lone = jnp.where(present, jnp.where(degree > 0, 0.0, 1.0), ABSENT)
    vectors = jnp.linalg.eigh(affinity * scale[:, None] * scale + jnp.diag(lone.astype(affinity.dtype)))[1]
    rows = jnp.where(present[:, None], vectors[:, ::-1][:, :k], 0)
    return rows * inverse_norm((rows**2).sum(1))[:, None]


def gaussian(distance: Array, width: Array | float) -> Array:
    """An affinity from distances: exp(-d² / (2 · width²)), as Ng, Jordan and Weiss 2001 have it. [n, n] -> [n, n]"""
    return jnp.exp(-(distance**2) / (2 * width**2))
