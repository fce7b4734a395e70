"""Clients' vectors in the few directions that tell them apart most, as FedGroup compares clients.

Duan et al. 2021, "FedGroup: Efficient Federated Learning via Decomposed Similarity-Based Clustering",
https://arxiv.org/abs/2010.06870.
"""

import jax.numpy as jnp

from jcfl.grouping.merging import inverse_norm
from jcfl.grouping.subspace import upright
from jcfl.trees import EXACT
from jcfl.types import Array


def decomposed(points: Array, present: Array, rank: int, *, cosine: bool = True) -> Array:
    """Clients' coordinates on the leading right singular directions of all their vectors (Duan et al. 2021, EDC).

    K-means on the result by squared Euclidean distance is their clustering by the Euclidean distance of decomposed
    cosine similarity.

    Args:
        points: one vector per client, often its update. [n, d] float
        present: which clients there are; the absent influence nothing. [n] bool
        rank: number of directions.
        cosine: whether coordinates are the cosines of a client's vector with the directions, or products with them.

    Returns:
        coordinates; zero for the absent and where the rank of the vectors is smaller than `rank`. [n, rank] float
    """
    points = jnp.where(present[:, None], points, 0)
    return coordinates(jnp.matmul(points, points.T, precision=EXACT), present, rank, cosine=cosine)


def coordinates(gram: Array, present: Array, rank: int, *, cosine: bool = True) -> Array:
    """`decomposed` from the inner products of the clients' vectors, which `jcfl.trees.inner` gives for models.

    With the eigenvectors w_j and the eigenvalues λ_j of the products, client i's coordinate is w_ij √λ_j, divided by
    the length of its vector for the cosine. A direction has no sign of its own: the coordinate of largest size before
    that division is made positive.

    Args:
        gram: inner products. [n, n] float
        present: as for `decomposed`. [n] bool
        rank: as for `decomposed`.
        cosine: as for `decomposed`.

    Returns:
        as `decomposed`. [n, rank] float
    """
    n = present.size
    gram = jnp.where(present[:, None] & present, gram, 0)
    values, vectors = jnp.linalg.eigh(gram)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    kept = values > jnp.maximum(values[0], 0) * n * jnp.finfo(gram.dtype).eps
    found = upright(jnp.where(kept & present[:, None], vectors * jnp.sqrt(jnp.where(kept, values, 0)), 0))
    found = found * inverse_norm(jnp.diagonal(gram))[:, None] if cosine else found
    return jnp.pad(found, ((0, 0), (0, rank - found.shape[1])))
