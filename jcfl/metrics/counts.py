"""Counts of the clients' predictions, from which accuracy and F1 are computed; part of a compiled program."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jcfl.metrics.ratios import valid
from jcfl.types import Array


def counts(
    clients: ArrayLike, labels: ArrayLike, predictions: ArrayLike, m: int, c: int, weights: ArrayLike = 1
) -> Array:
    """The numbers of true positives, labels and predictions of every client and class.

    Counts of several chunks of rows add up.

    Args:
        clients: the owner of every test row, from 0 to m - 1. [r] int
        labels: its true class, from 0 to c - 1. [r] int
        predictions: its predicted class, from 0 to c - 1. [r] int
        m: the number of clients.
        c: the number of classes.
        weights: the weight of every row, such as 1 for real rows and 0 for padding. [r] or a scalar

    Returns:
        The counts [m, 3, c], int32 unless the weights are floats; along the middle axis are true positives, labels and
        predictions. A row whose client or label is out of range, such as a padding of -1, is left out. A prediction
        out of range is wrong: its label counts, and no class has a prediction more.
    """
    clients, labels, predictions, weights = rows(clients, labels, predictions, m, c, weights)
    hits = jnp.where(labels == predictions, weights, 0)
    empty = jnp.zeros((m, 3, c), weights.dtype)
    counts = empty.at[clients, 0, labels].add(hits, mode="drop")
    counts = counts.at[clients, 1, labels].add(weights, mode="drop")
    return counts.at[clients, 2, predictions].add(weights, mode="drop")


def confusion(
    clients: ArrayLike, labels: ArrayLike, predictions: ArrayLike, m: int, c: int, weights: ArrayLike = 1
) -> Array:
    """A confusion matrix of every client.

    Args:
        clients, labels, predictions, m, c, weights: as for `counts`.

    Returns:
        The matrices [m, c, c], with true classes in rows and predicted ones in columns; int32 unless the weights are
        floats. A row with an index out of range is left out.
    """
    clients, labels, predictions, weights = rows(clients, labels, predictions, m, c, weights)
    return jnp.zeros((m, c, c), weights.dtype).at[clients, labels, predictions].add(weights, mode="drop")


def rows(clients: ArrayLike, labels: ArrayLike, predictions: ArrayLike, m: int, c: int, weights: ArrayLike):
    """The rows as int32 indices, and their weights: 0 where a client or label is out of range, int32 at least.

    Predictions out of range become c, which `mode="drop"` drops; a negative index would count from the end.
    """
    clients, labels, predictions = (jnp.asarray(index, jnp.int32) for index in (clients, labels, predictions))
    predictions = jnp.where(valid(predictions, c), predictions, c)
    weights = jnp.where(valid(clients, m) & valid(labels, c), weights, 0)
    return clients, labels, predictions, weights.astype(jnp.promote_types(weights.dtype, jnp.int32))
