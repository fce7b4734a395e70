"""One evaluation of one seed, as a score sees it: NumPy arrays with one row per client."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """The data of the clients from which a score is computed; n is here the number of these clients.

    >>> one = Evaluation(np.array([0]), np.array([-1]), np.array([[[1, 1], [1, 2], [2, 1]]]), np.ones(1), np.ones(1))
    >>> one.size, one.accuracy.round(3), one.f1.round(3)
    (array([3]), array([0.667]), array([0.667]))
    """

    labels: np.ndarray  #: [n] int, the cluster that serves the client; -1 for none yet
    groups: np.ndarray  #: [n] int, the client's true group; -1 where it is not known
    counts: np.ndarray  #: [n, 3, c] int, true positives, labels and predictions of every class among its test examples
    losses: np.ndarray  #: [n] float, the sum of the losses of its test examples
    seen: np.ndarray  #: [n] bool, whether it has taken part in a round
    #: [n] bool, whether it attacks; [0] if that is not known
    hostile: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    #: [n] int, the number of its test examples whose prediction is not finite; [0] if that is not known
    unanswered: np.ndarray = field(default_factory=lambda: np.zeros(0, int))

    @cached_property
    def size(self) -> np.ndarray:
        """The number of test examples of every client. [n]"""
        return self.counts[:, 1].sum(-1)

    @cached_property
    def accuracy(self) -> np.ndarray:
        """The accuracy of every client; NaN without test examples, or if a prediction is not finite. [n]"""
        return self.answered(accuracy(self.counts))

    @cached_property
    def f1(self) -> np.ndarray:
        """The macro-F1 of every client; NaN without test examples, or if a prediction is not finite. [n]"""
        return self.answered(f1(self.counts))

    def answered(self, values: np.ndarray) -> np.ndarray:
        """The clients' values, NaN for those of whom a prediction is not finite. [n] -> [n]"""
        return np.where(self.unanswered > 0, np.nan, values) if self.unanswered.size else values

    @classmethod
    def of(cls, arrays: Mapping[str, Any], kept: np.ndarray) -> "Evaluation":
        """The evaluation of some clients.

        Args:
            arrays: each field, over all clients. [m, ...]
            kept: the clients to look at. [m] bool
        """
        return cls(**{name: np.asarray(arrays[name])[kept] for name in cls.__dataclass_fields__ if name in arrays})


def accuracy(counts: Any) -> np.ndarray:  # [..., 3, c] -> [...]
    """The share of examples that are predicted right.

    Args:
        counts: true positives, labels and predictions of every class, as the function `counts` returns them for every
            client. Sums of counts over clients give the accuracy on their examples together. [..., 3, c]

    Returns:
        A share in [0, 1], NaN without examples. [...] float64
    """
    counts = np.asarray(counts)
    return ratio(counts[..., 0, :].sum(-1), counts[..., 1, :].sum(-1))


def f1(counts: Any) -> np.ndarray:  # [..., 3, c] -> [...]
    """The macro-F1, the mean of F1 over the classes that are among the labels or the predictions.

    F1 of a class is 2 · true positives / (labels + predictions), which is 0 without a true positive.

    Args:
        counts: as for `accuracy`. [..., 3, c]

    Returns:
        A number in [0, 1], NaN without examples. [...] float64
    """
    counts = np.asarray(counts)
    occurrences = counts[..., 1:, :].sum(-2)  # like the products below, in more bits than an int32 of 2^30 examples has
    classes = ratio(2.0 * counts[..., 0, :], occurrences, empty=0.0)
    return ratio(classes.sum(-1), (occurrences > 0).sum(-1))


def ratio(above: Any, below: Any, empty: float = np.nan) -> np.ndarray:
    """A ratio, and `empty` where the denominator is 0."""
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below))
    return np.divide(above, below, out=np.full(above.shape, empty), where=below != 0)


def mean(values: np.ndarray, weights: Any) -> float:
    """The weighted mean of the values that are not NaN, NaN without weight."""
    weights = np.where(np.isnan(values), 0, weights)
    return float(ratio(np.where(weights > 0, values, 0) @ weights, weights.sum()))
