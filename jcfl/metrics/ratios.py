"""Means and ratios that are NaN where nothing defines them."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jcfl.types import Array


def valid(index: Array, size: int) -> Array:
    """Whether an index is one of `size` places."""
    return (index >= 0) & (index < size)


def ratio(above: ArrayLike, below: ArrayLike, empty: float = jnp.nan) -> Array:
    """A ratio, `empty` where it would be of nothing."""
    below = jnp.asarray(below)
    return jnp.where(below == 0, empty, above / jnp.where(below == 0, 1, below))


def weighted_mean(values: Array, weights: Array) -> Array:
    """The weighted mean, NaN without weight; values of weight 0 may be NaN."""
    return ratio((jnp.where(weights > 0, values, 0) * weights).sum(), weights.sum())
