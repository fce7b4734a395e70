"""Products of examples and weights whose gradients are computed in the order that takes the least time on a CPU."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jcfl.types import Array

WIDE = 64
"""From so many outputs on, a gradient that is computed transposed costs more to transpose back than it saves."""
FEW = 128
"""With at most so many rows, transposing the gradient takes a large part of the time of its product."""


def dense(x: Array, kernel: Array, dimensions: Any, precision: Any = None, **more: Any) -> Array:
    """What `flax.linen.Dense` and `flax.nnx.Linear` call in place of `jax.lax.dot_general`, with its arguments.

    Args:
        x: [..., i]
        kernel: [i, o]

    Returns:
        [..., o]
    """
    usual = x.ndim > 1 and kernel.ndim == 2 and dimensions == (((x.ndim - 1,), (0,)), ((), ()))
    if not usual or x.dtype != kernel.dtype or any(value is not None for value in more.values()) or 0 in x.shape:
        return lax.dot_general(x, kernel, dimensions, precision=precision, **more)
    rows = x.reshape(math.prod(x.shape[:-1]), -1)
    return multiplied(rows, kernel, precision).reshape(*x.shape[:-1], -1)


def multiply(rows: Array, weights: Array, precision: Any) -> Array:
    """The product of matrices, [n, i] and [i, o] -> [n, o]."""
    return jnp.dot(rows, weights, precision=precision)


def product_and_factors(rows: Array, weights: Array, precision: Any) -> tuple[Array, tuple[Array, Array]]:
    """The product, and what its gradients need."""
    return multiply(rows, weights, precision), (rows, weights)


def gradients(precision: Any, factors: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    """The gradients of rows and weights from that of their product.

    JAX always computes the transposed gradient of the weights, [o, i]. XLA transposes it back while the weights are
    updated, which takes longer than the product of a few rows. For narrow layers and for many rows the transposed
    gradient is still faster. The barrier keeps XLA from transposing the factors of many clients instead.
    """
    rows, weights = factors
    n, (i, o) = len(rows), weights.shape
    of_rows = lax.dot_general(slope, weights, (((1,), (1,)), ((), ())), precision=precision)
    if i < o or (o >= WIDE and n <= FEW):
        return of_rows, over_rows(rows, slope, precision)
    return of_rows, lax.optimization_barrier(over_rows(slope, rows, precision)).T


def over_rows(one: Array, other: Array, precision: Any) -> Array:
    """The product of matrices over their rows, [n, a] and [n, b] -> [a, b]."""
    return lax.dot_general(one, other, (((0,), (0,)), ((), ())), precision=precision)


multiplied = jax.custom_vjp(multiply, nondiff_argnums=(2,))
multiplied.defvjp(product_and_factors, gradients)
