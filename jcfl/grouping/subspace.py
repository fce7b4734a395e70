"""Subspaces of the clients' data and the angles between them, as PACFL compares clients.

Vahidian et al. 2023, "Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal
Angles Between Client Data Subspaces", https://arxiv.org/abs/2209.10526.
"""

from typing import Literal

import jax.numpy as jnp

from jcfl.trees import EXACT
from jcfl.types import Array

Angle = Literal["smallest", "sum", "trace", "pair"]


def left_singular(x: Array, mask: Array, p: int) -> Array:
    """The first p left singular vectors of one client's data matrix, whose columns are the examples.

    They are computed from the eigenvectors of the smaller of the two Gram matrices, XᵀX [n, n] or XXᵀ [d, d]. The sign
    of a singular vector is arbitrary; here its entry of largest absolute value is positive.

    Args:
        x: examples, one in a row. [n, d] float
        mask: which rows are real; the others count as zeros. [n] bool
        p: number of vectors.

    Returns:
        orthonormal columns by falling singular value; columns beyond the rank of the data are zero. [d, p] float
    """
    n, d = x.shape
    x = jnp.where(mask[:, None], x, 0)
    if n < d:
        values, vectors = jnp.linalg.eigh(jnp.matmul(x, x.T, precision=EXACT))
        vectors = jnp.matmul(x.T, vectors, precision=EXACT)  # [d, n], each as long as its singular value
    else:
        values, vectors = jnp.linalg.eigh(jnp.matmul(x.T, x, precision=EXACT))
    values, vectors = values[::-1][:p], vectors[:, ::-1][:, :p]
    rounding = jnp.maximum(mask.sum(), d) * jnp.finfo(x.dtype).eps  # rows of padding add none
    kept = values > jnp.maximum(values[0], 0) * rounding
    length = jnp.linalg.norm(vectors, axis=0)
    vectors = jnp.where(kept, vectors / jnp.where(kept, length, 1), 0)
    return jnp.pad(with_fixed_signs(vectors), ((0, 0), (0, p - vectors.shape[1])))


def with_fixed_signs(vectors: Array) -> Array:
    """The columns [d, p], each with the sign for which its entry of largest absolute value is positive."""
    peak = jnp.take_along_axis(vectors, jnp.abs(vectors).argmax(0)[None], 0)
    return vectors * jnp.where(peak < 0, -1, 1).astype(vectors.dtype)


def principal_angles(u: Array, v: Array, kind: Angle = "smallest") -> Array:
    """Angles in degrees between subspaces, each given by orthonormal columns (Björck and Golub 1973).

    A zero column has an angle of 90° to everything. Angles are computed from cosines, so in float32 an angle below
    about 0.03° cannot be distinguished from zero.

    Args:
        u: [a, d, p] float
        v: [b, d, p] float
        kind: `smallest` is the smallest principal angle, from 0 to 90 (the paper's first measure); `sum` adds up all p
            principal angles, from 0 to 90·p; `trace` adds up the angles between the j-th vector of one and the j-th of
            the other (the paper's second measure, tr arccos(UᵀV)); `pair` is the smallest angle between any vector of
            one and any of the other (the released code).

    Returns:
        degrees; symmetric, and 0 between a subspace and itself where it has full rank. [a, b] float

    Deviations:
        `trace` and `pair` use the absolute value of a cosine. The paper and its code use the cosine with its sign, but
        the sign of a singular vector is arbitrary, so their result depends on the linear algebra library.
    """
    products = jnp.einsum("adp,bdq->abpq", u, v, precision=EXACT)
    if kind in ("trace", "pair"):
        between = degrees(jnp.abs(products))
        return jnp.trace(between, axis1=2, axis2=3) if kind == "trace" else between.min((2, 3))
    angles = degrees(jnp.linalg.svd(products, compute_uv=False))  # [a, b, p], rising
    return angles[..., 0] if kind == "smallest" else angles.sum(-1)


def degrees(cosine: Array) -> Array:
    """The angle in degrees of a cosine, which rounding may have made larger than 1."""
    return jnp.rad2deg(jnp.arccos(jnp.clip(cosine, 0, 1)))
