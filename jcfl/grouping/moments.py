"""Descriptions of a client's data in a few numbers: moments of features, and shares of labels.

FLUX (Fenoglio et al. 2025, https://arxiv.org/abs/2511.22305) clusters clients by statistics of this kind.
"""

import jax
import jax.numpy as jnp

from jcfl.types import Array


def moments(features: Array, mask: Array) -> Array:
    """The mean of every feature over a client's examples, then every feature's standard deviation.

    Args:
        features: of every example. [n, f] float
        mask: which examples are real. [n] bool

    Returns:
        means and standard deviations (of the examples themselves, divisor n); zeros without examples. [2f] float
    """
    n = jnp.maximum(mask.sum(), 1)
    real = lambda values: jnp.where(mask[:, None], values, 0).sum(0) / n
    mean = real(features)
    return jnp.concatenate([mean, jnp.sqrt(real((features - mean) ** 2))])


def label_counts(y: Array, mask: Array, classes: int) -> Array:
    """The share of each class among a client's examples.

    Args:
        y: classes, from 0. [n] int
        mask: which examples are real. [n] bool
        classes: number of classes.

    Returns:
        shares that add up to 1; zeros without examples. [classes] float
    """
    counts = (jax.nn.one_hot(y, classes) * mask[:, None]).sum(0)
    return counts / jnp.maximum(mask.sum(), 1)


def as_shares(rows: Array) -> Array:
    """Rows [n, c] as shares of classes: none negative, of sum 1. Noise may have made them anything else.

    A row without a positive number says nothing, and becomes equal shares.
    """
    rows = jnp.maximum(rows, 0.0)
    total = rows.sum(1, keepdims=True)
    return jnp.where(total > 0, rows / jnp.where(total > 0, total, 1.0), 1 / rows.shape[1])
