"""Accuracy, F1 and loss, from counts of the clients' predictions."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jcfl.metrics.ratios import ratio, valid, weighted_mean
from jcfl.types import Array


def counts(
    clients: ArrayLike, labels: ArrayLike, predictions: ArrayLike, m: int, c: int, weights: ArrayLike = 1
) -> Array:
    """True positives, labels and predictions of every client and class: all that accuracy and F1 need.

    Counts of several chunks of rows add up.

    Args:
        clients: the owner of every test row. [r]
        labels: its true class. [r]
        predictions: its predicted class. [r]
        m: the number of clients.
        c: the number of classes.
        weights: what a row counts, such as a mask of the real ones. [r] or a scalar

    Returns:
        The counts [m, 3, c], int32 unless the weights are floats. A row with an index out of range, such as a padding
        of -1, is left out.
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
    """A confusion matrix [m, c, c] of every client, true classes in rows; the arguments are those of `counts`."""
    clients, labels, predictions, weights = rows(clients, labels, predictions, m, c, weights)
    return jnp.zeros((m, c, c), weights.dtype).at[clients, labels, predictions].add(weights, mode="drop")


def accuracy(counts: ArrayLike) -> Array:  # [..., 3, c] -> [...]
    """The share of rows predicted right, NaN without rows."""
    counts = jnp.asarray(counts)
    return ratio(counts[..., 0, :].sum(-1), counts[..., 1, :].sum(-1))


def f1(counts: ArrayLike) -> Array:  # [..., 3, c] -> [...]
    """The macro-F1 over the classes among the labels or the predictions, NaN without rows."""
    counts = jnp.asarray(counts)
    positives, occurrences = counts[..., 0, :], counts[..., 1, :] + counts[..., 2, :]
    return ratio(ratio(2 * positives, occurrences, empty=0.0).sum(-1), (occurrences > 0).sum(-1))


def scores(counts: ArrayLike, loss_sums: ArrayLike = jnp.nan, mask: ArrayLike = True) -> dict[str, Array]:
    """Scores over all clients that have test rows.

    Args:
        counts: as `counts` gives them. [m, 3, c]
        loss_sums: the sum of every client's losses over its test rows. [m]
        mask: the clients to look at. [m] or a scalar

    Returns:
        Scalars. `micro` is the mean over clients by their number of rows, `macro` the plain mean, `f1_pooled` the
        macro-F1 of all rows taken together, `accuracy_p5` a percentile over clients, `loss` the mean over rows.
    """
    counts = jnp.asarray(counts)
    size = counts[:, 1].sum(-1)  # [m]
    kept = (size > 0) & jnp.asarray(mask)
    size = jnp.where(kept, size, 0)
    pooled = jnp.where(kept[:, None, None], counts, 0).sum(0)  # [3, c]
    accuracies, f1s = accuracy(counts), f1(counts)
    known = jnp.where(kept, accuracies, jnp.nan)
    low, middle, high = jnp.nanpercentile(known, jnp.array([5.0, 50.0, 95.0]))
    return {
        "accuracy_micro": accuracy(pooled),
        "accuracy_macro": weighted_mean(accuracies, kept),
        "f1_micro": weighted_mean(f1s, size),
        "f1_macro": weighted_mean(f1s, kept),
        "f1_pooled": f1(pooled),
        "accuracy_p5": low,
        "accuracy_p50": middle,
        "accuracy_p95": high,
        "accuracy_worst": jnp.nanmin(known),
        "loss": ratio(jnp.where(kept, loss_sums, 0).sum(), size.sum()),
    }


def rows(clients: ArrayLike, labels: ArrayLike, predictions: ArrayLike, m: int, c: int, weights: ArrayLike):
    """The rows as int32 indices, and their weights: 0 where an index is out of range, int32 at least."""
    clients, labels, predictions = (jnp.asarray(index, jnp.int32) for index in (clients, labels, predictions))
    kept = valid(clients, m) & valid(labels, c) & valid(predictions, c)
    weights = jnp.where(kept, weights, 0)
    return clients, labels, predictions, weights.astype(jnp.promote_types(weights.dtype, jnp.int32))
