"""Datasets: labelled examples in NumPy arrays, for training and for testing."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jcfl.errors import InputError


@dataclass(frozen=True)
class Examples:
    """Labelled examples, and their owners if the dataset has natural clients."""

    x: np.ndarray  # [n, ...] uint8 pixels or float32 features
    y: np.ndarray  # [n] int32
    user: np.ndarray | None = None  # [n] int32, indices of natural clients, the same ones in train and test

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A training and a test set of one learning task."""

    name: str
    train: Examples
    test: Examples
    classes: int
    group_of_user: np.ndarray | None = None  # [users] int32, the true group of every natural client, where it is known

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.train.x.shape[1:]

    @property
    def users(self) -> int:
        """The number of natural clients; 0 where the dataset has none."""
        parts = [part.user for part in (self.train, self.test) if part.user is not None and len(part)]
        return 1 + max((int(user.max()) for user in parts), default=-1)


def examples(
    x: np.ndarray, y: np.ndarray, user: np.ndarray | None = None, *, classes: int, where: str | Path
) -> Examples:
    """Examples that were checked, so that one can train on them.

    Args:
        x: uint8 pixels or floats, which become float32. `[n, ...]`
        y: whole numbers from 0 to `classes - 1`. `[n]` or `[n, 1]`
        user: indices of natural clients. `[n]`
        classes: the number of classes.
        where: the file or argument the arrays came from, for the error.

    Raises:
        InputError: no examples, different lengths, numbers that are neither pixels nor floats, NaN or infinite
            values, labels that are not whole numbers or out of range.
    """
    x, y = features(x, where), labels(y, where)
    if not len(x):
        raise InputError(f"{where}: no examples")
    if len(x) != len(y) or (user is not None and len(user) != len(y)):
        owners = "" if user is None else f" and {len(user)} clients' ids"
        raise InputError(f"{where}: {len(x)} examples but {len(y)} labels{owners}")
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    if len(wrong):
        raise InputError(f"{where}: label {y[wrong[0]]} of example {wrong[0]} is out of range 0..{classes - 1}")
    return Examples(x, y.astype(np.int32), None if user is None else user.astype(np.int32))


def features(x: np.ndarray, where: str | Path) -> np.ndarray:
    """`x` in the form in which it is stored: uint8 pixels, or finite float32. `[n, ...]`

    Raises:
        InputError: other numbers, NaN or infinite values, or one axis only.
    """
    x = np.asarray(x)
    if x.ndim < 2:
        raise InputError(f"{where}: examples have the shape {x.shape}; expected (n, ...)")
    if x.dtype == np.uint8:
        return x
    if not np.issubdtype(x.dtype, np.floating):
        raise InputError(f"{where}: examples are {x.dtype}; expected uint8 pixels (0..255) or floats")
    with np.errstate(over="ignore"):
        x = x.astype(np.float32, copy=False)
    finite = np.isfinite(x).all(tuple(range(1, x.ndim)))  # [n]
    if not finite.all():
        raise InputError(f"{where}: example {np.argmin(finite)} has a NaN or infinite value")
    return x


def labels(y: np.ndarray, where: str | Path) -> np.ndarray:
    """`y` as whole numbers. `[n]` int64

    Raises:
        InputError: numbers that are not whole, or several labels per example.
    """
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"{where}: labels have the shape {y.shape}; expected one label per example, ({len(y)},)")
    whole = y.dtype == bool or np.issubdtype(y.dtype, np.integer)
    if not whole and not (np.issubdtype(y.dtype, np.floating) and np.all(np.isfinite(y) & (y == np.floor(y)))):
        raise InputError(f"{where}: labels are {y.dtype}; expected whole numbers from 0")
    return y.astype(np.int64)


def test_mask(strata: np.ndarray, fraction: float, seed: int = 0) -> np.ndarray:
    """A mask that chooses a random share of every stratum for testing. `[n]` bool

    Of a stratum with n examples, round(fraction · n) are chosen, but never all.

    Args:
        strata: the class or the client of every example. `[n]`
        fraction: the share to test on, between 0 and 1.
        seed: the same seed draws the same examples.
    """
    order = np.random.default_rng(seed).permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    _, start, size = np.unique(strata[order], return_index=True, return_counts=True)
    rank = np.arange(len(strata)) - np.repeat(start, size)  # the place of every example within its stratum
    share = np.minimum(np.floor(fraction * size + 0.5), size - 1)
    mask = np.zeros(len(strata), bool)
    mask[order] = rank < np.repeat(share, size)
    return mask
