"""Datasets: labelled examples in NumPy arrays, for training and for testing."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jcfl.errors import InputError, Notice, refuse_beyond_memory, shown

CLASSES = 2**31 - 1
"""How many classes there can be at most: labels are int32."""

CHECKED = 2**24
"""How many numbers of examples are checked at a time, so that a mapped file is not held in memory."""


@dataclass(frozen=True)
class Examples:
    """Labelled examples, and their owners if the dataset has natural clients."""

    x: np.ndarray  #: [n, ...] uint8 pixels (0 to 255) or float32 features
    y: np.ndarray  #: [n] int32, the class of every example, from 0
    user: np.ndarray | None = None  #: [n] int32, the natural client of every example, numbered as in the other half

    def __post_init__(self) -> None:
        """Make arrays of lists, and refuse what has no entry for each example."""
        for field, what in (("x", "examples"), ("y", "labels"), ("user", "natural clients")):
            given = getattr(self, field)
            if not hasattr(given, "dtype") and not (field == "user" and given is None):
                object.__setattr__(self, field, array(given, what, "jcfl.data.Examples"))
            if getattr(self, field) is not None and not np.ndim(getattr(self, field)):
                raise InputError(f"jcfl.data.Examples: {what}: expected one for each example, got {shown(given)}")

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A training and a test set of one learning task."""

    name: str  #: what tables and messages call it
    train: Examples  #: the examples to train on
    test: Examples  #: the examples to test on; there may be none
    classes: int  #: the number of classes
    #: [users] int32, the true group of every natural client; None where groups are not known
    group_of_user: np.ndarray | None = None
    series: bool = False  #: whether examples [n, t, c] are series of t steps with c channels, not grey images [n, h, w]
    #: [users] numbers or text, what natural clients are called; None if they are called by their numbers
    id_of_user: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Refuse halves that are not of one task, and a number of classes that labels cannot have."""
        if not 1 <= self.classes <= CLASSES:
            raise InputError(f"{self.name}: {self.classes} classes; expected 1 to {CLASSES}")
        for half in ("train", "test"):
            if not isinstance(part := getattr(self, half), Examples):
                raise InputError(f"{self.name}: {half}: expected jcfl.data.Examples(x, y), got {shown(part)}")
        one, other = ((part.x.dtype, part.x.shape[1:]) for part in (self.train, self.test))
        if one != other and len(self.train) and len(self.test):
            raise InputError(
                f"{self.name}: examples to train on have the shape {one[1]} ({one[0]}), those to test on {other[1]} "
                f"({other[0]}); expected the same"
            )
        for field, what in (("group_of_user", "true groups"), ("id_of_user", "ids")):
            if (given := getattr(self, field)) is None:
                continue
            object.__setattr__(self, field, array(given, what, self.name))  # it may be a list
            if len(given) < self.users:
                raise InputError(f"{self.name}: {len(given)} {what} for {self.users} users; expected one for each")

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
    x: np.ndarray,
    y: np.ndarray,
    user: np.ndarray | None = None,
    *,
    classes: int,
    where: str | Path,
    may_be_none: bool = False,
) -> Examples:
    """Examples that were checked, so that one can train on them.

    Args:
        x: uint8 pixels or floats, which become float32. `[n, ...]`
        y: whole numbers from 0 to `classes - 1`. `[n]` or `[n, 1]`
        user: indices of natural clients. `[n]`
        classes: the number of classes.
        where: the file or argument the arrays came from, for the error.
        may_be_none: whether there may be no examples.

    Raises:
        InputError: no examples, different lengths, numbers that are neither pixels nor floats, NaN or infinite
            values, labels that are not whole numbers or out of range.
    """
    x, y = features(x, where), labels(y, where, classes)
    if not len(x) and not may_be_none:
        raise InputError(f"{where}: no examples")
    if len(x) != len(y) or (user is not None and len(user) != len(y)):
        owners = "" if user is None else f" and {len(user)} clients' ids"
        raise InputError(f"{where}: {len(x)} examples but {len(y)} labels{owners}")
    if user is not None:
        user = whole_numbers(user, "user", where, (0, CLASSES), "example {}".format).astype(np.int32)
    return Examples(x, y.astype(np.int32), user)


def of_clients(users: np.ndarray | None) -> Callable[[int], str]:
    """What errors call the example of an index: by its number, and by the id of its client where it has one."""

    def named(i: int) -> str:
        whose = [] if users is None else users[i : i + 1].tolist()
        return f"example {i}" + "".join(f" of client {one!r}" for one in whose)

    return named


def features(x: Any, where: str | Path, named: Callable[[int], str] = "example {}".format) -> np.ndarray:
    """`x` as it is stored: uint8 pixels as they are, floats as finite float32. `[n, ...]`.

    Args:
        x: what was given.
        where: the file or argument it came from, for the error.
        named: what errors call the example of an index.

    Raises:
        InputError: no array of examples, neither pixels nor floats, or a value that is NaN or infinite.
    """
    x = array(x, "examples", where)
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise InputError(
            f"{where}: examples have the shape {x.shape}; expected (n, ...), with numbers in every example"
        )
    if x.dtype == np.uint8:
        return x
    if not np.issubdtype(x.dtype, np.floating):
        expected = "expected uint8 pixels (0..255), which are divided by 255, or floats"
        raise InputError(f"{where}: examples are {x.dtype}; {expected}; give other whole numbers as floats")
    if x.dtype != np.float32:
        refuse_beyond_memory(f"{where}: a copy of the examples in float32", 4 * x.size, "give them as float32")
    given = x
    with np.errstate(over="ignore"):
        x = x.astype(np.float32, copy=False)
    axes, step = tuple(range(1, x.ndim)), max(1, CHECKED * len(x) // max(x.size, 1))
    finite = np.concatenate([np.isfinite(x[i : i + step]).all(axes) for i in range(0, max(len(x), 1), step)])  # [n]
    if not finite.all():
        i = int(np.argmin(finite))
        wrong = "a value that is too large for float32" if np.isfinite(given[i]).all() else "a NaN or infinite value"
        raise InputError(f"{where}: {named(i)} has {wrong}")
    return x


def channelled(x: np.ndarray, series: bool) -> np.ndarray:
    """Grey images [n, h, w] with an axis for their channel [n, h, w, 1]; all else, and series [n, t, c], as it is.

    Raises:
        InputError: series with another number of axes.
    """
    if series and x.ndim != 3:
        raise InputError(f"series: expected examples of shape (n, time, channels), got {x.ndim} axes")
    return x[..., None] if x.ndim == 3 and not series else x


def labels(
    y: Any, where: str | Path, classes: int | None = None, named: Callable[[int], str] = "example {}".format
) -> np.ndarray:
    """`y` as whole numbers from 0 to `classes - 1`, int64. `[n]`.

    Args:
        y: what was given. `[n]` or `[n, 1]`
        where: the file or argument it came from, for the error.
        classes: the number of classes; None where it is not known yet.
        named: what errors call the example of an index.

    Raises:
        InputError: no array of one number per example, or a label that is not whole or out of range.
    """
    y = array(y, "labels", where)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return whole_numbers(y, "label", where, (0, (classes or CLASSES) - 1), named)


def counted(parts: Iterable[np.ndarray], where: str | Path, is_option: bool = True) -> int:
    """The number of classes: one more than the largest label of all parts. A notice says so if the label 0 is missing.

    Args:
        parts: labels, as `labels` has them. `[n]` each
        where: the file or argument they came from, for the notice.
        is_option: whether the user can give the number of classes.
    """
    ends = [(int(part.min()), int(part.max())) for part in parts if len(part)] or [(0, 0)]
    least, most = min(low for low, _ in ends), max(high for _, high in ends)
    if least > 0:
        told = f"{where}: the labels are {least} to {most}, so there are {most + 1} classes, and no example has the "
        told += f"label 0; subtract {least} from the labels"
        told += f", or set classes={most + 1} if this is right" if is_option else ""
        warnings.warn(told, Notice, stacklevel=4)
    return most + 1


def whole_numbers(
    values: Any, what: str, where: str | Path, bounds: tuple[int, int], named: Callable[[int], str]
) -> np.ndarray:
    """Values as whole numbers within bounds, int64. `[n]`.

    Args:
        values: what was given, one for each example or client.
        what: what one of them is called.
        where: the file or argument they came from, for the error.
        bounds: the least and the largest that a value may be.
        named: what errors call the example or client of an index.

    Raises:
        InputError: the first value that is not whole or out of range, and whose it is.
    """
    values = array(values, f"{what}s", where)
    if values.ndim != 1:
        raise InputError(
            f"{where}: {what}s have the shape {values.shape}; expected one {what} per {named(0).split()[0]}, (n,)"
        )
    if values.dtype.kind not in "biuf":
        raise InputError(f"{where}: {what}s are {values.dtype}; expected whole numbers from {bounds[0]}")
    values = values.astype(np.float64 if values.dtype.kind == "f" else values.dtype.kind.replace("b", "i") + "8")
    if values.dtype.kind == "f" and not (fine := np.isfinite(values) & (values == np.floor(values))).all():
        i = int(np.argmin(fine))
        raise InputError(f"{where}: {what} {values[i]:.15g} of {named(i)}; expected whole numbers from {bounds[0]}")
    wrong = np.flatnonzero((values < bounds[0]) | (values > bounds[1]))
    if len(wrong):
        i = int(wrong[0])
        raise InputError(f"{where}: {what} {values[i]:.15g} of {named(i)} is out of range {bounds[0]}..{bounds[1]}")
    return values.astype(np.int64)


def owners(ids: Any, where: str | Path) -> np.ndarray:
    """Clients' ids as an array that can be sorted. `[n]`.

    Raises:
        InputError: no array of one id per example, an id that is missing (NaN, None), or ids of kinds that do not mix.
    """
    ids = array(ids, "clients' ids", where)
    if ids.ndim != 1:
        raise InputError(f"{where}: clients' ids have the shape {ids.shape}; expected one id per example, (n,)")
    if ids.dtype.hasobject:
        try:
            np.unique(ids)
        except Exception as error:  # objects compare themselves
            raise InputError(f"{where}: clients' ids cannot be sorted ({error}); expected numbers or text") from error
    nothing = np.flatnonzero(ids != ids)
    if len(nothing):
        raise InputError(f"{where}: example {nothing[0]} has no client: its id is {ids[nothing[0]]}")
    return ids


def joined(parts: Sequence[np.ndarray], where: str | Path) -> np.ndarray:
    """The clients' ids of several parts, one after the other, as `owners` has them. `[n]`.

    Raises:
        InputError: numbers and text, or numbers that have no common dtype without a loss.
    """
    kinds = {part.dtype.kind for part in parts if part.size}
    wrong = f"{where}: clients' ids to train and to test on are of different kinds"
    if kinds & {"U", "S"} and kinds & {*"biuf"}:
        names = {"text" if part.dtype.kind in "US" else part.dtype.name for part in parts}
        raise InputError(f"{wrong}: {' and '.join(sorted(names))}")
    parts = [part.astype(object) for part in parts] if kinds == {"i", "u"} else parts  # float64 has 53 bits
    try:
        ids = np.concatenate(parts)
    except TypeError as error:
        raise InputError(f"{wrong} ({error})") from error
    pieces = np.split(ids, np.cumsum([len(part) for part in parts])[:-1])
    if any((piece.astype(part.dtype) != part).any() for piece, part in zip(pieces, parts, strict=True)):
        raise InputError(f"{wrong}: {ids.dtype} cannot hold all of them; expected one dtype")
    return owners(ids, where)


def plain(ids: np.ndarray, where: str | Path) -> np.ndarray:
    """Clients' ids as files can hold them: numbers stay numbers, all else becomes text. `[m]`.

    Raises:
        InputError: text so long that all of it, padded to the longest, would not fit the memory.
    """
    listed = ids.tolist()
    as_numbers = np.array(listed) if all(isinstance(one, int | float | np.number) for one in listed) else ids
    if as_numbers.dtype.kind in "biufU":
        return as_numbers
    texts = [one.decode(errors="backslashreplace") if isinstance(one, bytes) else str(one) for one in ids]
    longest = max(map(len, texts))
    refuse_beyond_memory(f"{where}: ids of {longest} characters", 4 * longest * len(texts), "give shorter ones")
    return np.array(texts)


def array(values: Any, what: str, where: str | Path) -> np.ndarray:
    """What was given as an array.

    Raises:
        InputError: lists of different lengths, or anything else that is no array; a value that is masked.
    """
    if np.ma.is_masked(values):
        place = ", ".join(map(str, np.argwhere(np.ma.getmaskarray(values))[0]))
        place = place if np.ndim(values) == 1 else f"({place})"
        raise InputError(f"{where}: {what} have masked values, such as at {place}; fill them in, or leave them out")
    try:
        return np.asarray(values)
    except Exception as error:  # what was given may be of any class, which converts itself
        raise InputError(f"{where}: {what} are no array ({next(iter(str(error).splitlines()), '')})") from error


def redivided(rng: np.random.Generator, dataset: Dataset, fraction: float) -> Dataset:
    """The dataset with its examples split at random, a share of every class for testing, whatever its own split is."""
    parts = [part for part in (dataset.train, dataset.test) if len(part)] or [dataset.train]
    need = sum(part.x.nbytes for part in parts)
    refuse_beyond_memory(f"two copies of {dataset.name}, to split it anew,", 2 * need, "leave resplit out")
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    users = [part.user for part in parts if part.user is not None]
    user = np.concatenate(users) if len(users) == len(parts) else None
    tests = random_share(y, fraction, seed=int(rng.integers(2**31)))
    halves = (Examples(x[half], y[half], None if user is None else user[half]) for half in (~tests, tests))
    return replace(dataset, **dict(zip(("train", "test"), halves, strict=True)))


def random_share(strata: np.ndarray, fraction: float, seed: int = 0) -> np.ndarray:
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
