"""Clients' vectors in the few directions in which they differ most, as FedGroup compares clients.

Duan et al. 2021, "FedGroup: Efficient Federated Learning via Decomposed Similarity-Based Clustering",
https://arxiv.org/abs/2010.06870.
"""

import jax.numpy as jnp

from jcfl.grouping.merging import inverse_norm
from jcfl.grouping.subspace import with_fixed_signs
from jcfl.trees import EXACT
from jcfl.types import Array


def decomposed(points: Array, present: Array, rank: int) -> Array:
    """The cosines of clients' vectors with the leading right singular directions of all (Duan et al. 2021, EDC).

    K-means on the result by squared Euclidean distance clusters the clients by the Euclidean distance of decomposed
    cosine similarity. With the eigenvectors w_j and the eigenvalues λ_j of the inner products, the product of client
    i's vector with direction j is w_ij √λ_j. The sign of a direction is arbitrary; here the product of largest absolute
    value is positive.

    Args:
        points: one vector per client, often its update. [n, d] float
        present: which clients there are; the absent influence nothing. [n] bool
        rank: number of directions.

    Returns:
        cosines; zero for the absent and where the rank of the vectors is smaller than `rank`. [n, rank] float
    """
    points = jnp.where(present[:, None], points, 0)
    gram = jnp.matmul(points, points.T, precision=EXACT)
    values, vectors = jnp.linalg.eigh(gram)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    kept = values > jnp.maximum(values[0], 0) * present.sum() * jnp.finfo(gram.dtype).eps
    products = with_fixed_signs(jnp.where(kept & present[:, None], vectors * jnp.sqrt(jnp.where(kept, values, 0)), 0))
    found = products * inverse_norm(jnp.diagonal(gram))[:, None]
    return jnp.pad(found, ((0, 0), (0, rank - found.shape[1])))
