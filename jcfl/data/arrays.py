"""A user's own arrays, from memory or from NumPy files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from jcfl.data.archives import names_in, read_arrays, tell_of_others
from jcfl.data.dataset import (
    CLASSES,
    Dataset,
    array,
    channelled,
    counted,
    examples,
    features,
    joined,
    labels,
    of_clients,
    owners,
    plain,
    random_share,
    whole_numbers,
)
from jcfl.data.files import ELSEWHERE, exists
from jcfl.data.texts import numbered
from jcfl.errors import Absent, InputError, shown
from jcfl.registry import register

NAMES = {  # the names an array may have in a file, by its argument in `from_arrays`
    "x": ("x", "x_train"),
    "y": ("y", "y_train"),
    "clients": ("clients", "users", "clients_train"),
    "x_test": ("x_test",),
    "y_test": ("y_test",),
    "clients_test": ("clients_test", "users_test"),
    "groups": ("groups",),
}


@register("data", "arrays")
def arrays(
    data_dir: Path,
    *,
    path: Annotated[Path, Field(description=".npz file, or folder of .npy files: x, y, clients, x_test, y_test, …")],
    test: Annotated[float, Field(gt=0, lt=1, description="share of test examples, if there is no x_test")] = 0.2,
    classes: Annotated[
        int | None, Field(ge=2, description="number of classes; by default counted in the labels")
    ] = None,
    seed: Annotated[int, Field(ge=0, lt=2**64, description="of the draw of the test set")] = 0,
    series: Annotated[bool, Field(description="x [n, t, c] are series of t steps, not grey images")] = False,
) -> Dataset:
    """Your own arrays: x, y and, optionally, clients (also called users), groups, x_test, y_test, clients_test.

    `groups` holds the true group of every client, in the sorted order of their ids.
    """
    place = next((place for place in (data_dir / path, Path.cwd() / path) if exists(place)), None)
    if place is None:
        raise Absent(
            f"no file {path} in {data_dir} or {Path.cwd()}; expected an .npz file or a folder of .npy files {ELSEWHERE}"
        )
    if place.suffix == ".npy":
        place = place.parent
    readable = [name for known in NAMES.values() for name in known]
    given = read_arrays(place, readable)
    for known in NAMES.values():
        if len(twice := [name for name in known if name in given]) > 1:
            raise InputError(f"{place}: {' and '.join(twice)} are names of the same array; expected one of them")
    named = {key: given[name] for key, known in NAMES.items() for name in known if name in given}
    for key in ("x", "y"):
        if key not in named:
            raise InputError(f"{place}: no array {key!r}; it has {', '.join(names_in(place)) or 'no arrays'}")
    if ("x_test" in named) != ("y_test" in named):
        raise InputError(f"{place}: x_test and y_test go together; only one is there")
    if "clients_test" in named and "x_test" not in named:
        raise InputError(f"{place}: there are clients of a test set, clients_test, and no x_test and y_test")
    tell_of_others(place, readable)
    x, y, clients, groups = (named.get(key) for key in ("x", "y", "clients", "groups"))
    apart = tuple(named[key] for key in ("x_test", "y_test", "clients_test") if key in named)
    assert x is not None and y is not None
    more: dict[str, Any] = {"seed": seed, "name": place.stem, "where": place, "series": series}
    return from_arrays(x, y, clients, test=apart or test, classes=classes, groups=groups, **more)


def from_arrays(
    x: Any,
    y: Any,
    clients: Any = None,
    test: float | tuple[Any, ...] = 0.2,
    *,
    classes: int | None = None,
    groups: Any = None,
    seed: int = 0,
    name: str = "arrays",
    where: str | Path = "from_arrays",
    series: bool = False,
) -> Dataset:
    """A dataset from arrays, with natural clients if their ids are given.

    Args:
        x: uint8 pixels (0..255), which are divided by 255, or floats; images of one channel may come without its axis,
            so `[n, h, w]` are images unless `series` is set. `[n, ...]`
        y: whole numbers from 0; or text, which is numbered in alphabetical order. `[n]`
        clients: the owner of every example, any ids that can be sorted. `[n]`
        test: the share to test on, drawn from every client, or from every class if there are no clients; or the arrays
            `(x, y)` or `(x, y, clients)` of a test set.
        classes: the number of classes; None counts them in the labels.
        groups: the true group of every client: a mapping or a pandas Series by its id, or in the sorted order of the
            ids. `[users]`
        seed: of the draw of the test set.
        name: what the dataset is called.
        where: the name of the arrays in errors.
        series: whether `x` [n, t, c] holds series of t steps of c numbers; `nn.Conv(features, (5,))` slides along t.

    Raises:
        InputError: arrays that do not fit together, NaN or infinite values, labels out of range.

    >>> from_arrays(np.zeros((10, 4)), np.arange(10) % 2, clients=["ann"] * 5 + ["bob"] * 5).train.user
    array([0, 0, 0, 0, 1, 1, 1, 1], dtype=int32)
    """
    for what, value, least in (("classes", classes, 1), ("seed", seed, 0)):
        if value is not None and not (isinstance(value, int | np.integer) and value >= least):
            raise InputError(f"{where}: expected {what} to be a whole number from {least}, got {shown(value)}")
    users = None if clients is None else owners(clients, where)
    named = of_clients(users)
    y, test = _numbered(y, test, where, classes)
    x, y = features(x, where, named), labels(y, where, classes, named)
    if len(x) != len(y) or (users is not None and len(users) != len(y)):
        raise InputError(f"{where}: {len(x)} examples, {len(y)} labels, {_count(users)} clients' ids; expected equal")
    apart = isinstance(test, tuple)
    parts = (
        _with_test_set(x, y, users, test, classes, where) if apart else _split_by_share(x, y, users, test, seed, where)
    )
    return _dataset(parts, classes, groups, name, where, series, apart)


def _numbered(y: Any, test: Any, where: str | Path, classes: int | None) -> tuple[Any, Any]:
    """The labels, and the test set with its own, in which text is numbered over both."""
    apart = test[1:2] if isinstance(test, tuple) else ()
    y, *own = numbered([y, *apart], where, classes)
    return y, (test[0], *own, *test[2:]) if own else test


def _with_test_set(
    x: np.ndarray,
    y: np.ndarray,
    users: np.ndarray | None,
    test: tuple[Any, ...],
    classes: int | None,
    where: str | Path,
) -> list:
    """The training arrays, and the given ones to test on."""
    if len(test) != (2 if users is None else 3):
        raise InputError(f"{where}: clients' ids are needed for both train and test, or for neither")
    there = f"{where} (test)"
    who = None if users is None else owners(test[2], there)
    named = of_clients(who)
    return [(x, y, users), (features(test[0], there, named), labels(test[1], there, classes, named), who)]


def _split_by_share(
    x: np.ndarray, y: np.ndarray, users: np.ndarray | None, test: Any, seed: int, where: str | Path
) -> list:
    """The arrays split in two, a share of every client's (or class's) examples in the second."""
    if not isinstance(test, int | float | np.floating) or not 0 < test < 1:
        raise InputError(
            f"{where}: the share to test on (test, test_fraction): expected a number between 0 and 1, got {shown(test)}"
        )
    mask = random_share(y if users is None else np.unique(users, return_inverse=True)[1].ravel(), float(test), seed)
    return [(x[side], y[side], None if users is None else users[side]) for side in (~mask, mask)]


def _dataset(
    parts: list, classes: int | None, groups: Any, name: str, where: str | Path, series: bool, apart: bool
) -> Dataset:
    """The dataset of two parts; only a test set that was given `apart` has to have examples."""
    shapes = [part[0].shape[1:] for part in parts]
    if shapes[0] != shapes[1]:
        raise InputError(f"{where}: examples to train on have the shape {shapes[0]}, those to test on {shapes[1]}")
    classes = classes or counted((y for _, y, _ in parts), where)
    ids, users = np.empty(0), [None, None]
    if parts[0][2] is not None:
        ids, index = np.unique(joined([part[2] for part in parts], where), return_inverse=True)
        users = np.split(index.ravel(), [len(parts[0][2])])
    if groups is not None:
        groups = array(in_order(ids.tolist(), groups), "groups", where)
        if groups.shape != (len(ids),):
            raise InputError(f"{where}: {groups.size} groups for {len(ids)} clients; expected one for each")
        groups = whole_numbers(groups, "group", where, (-1, CLASSES), lambda i: f"client {ids.tolist()[i]!r}")
    train, test = (
        examples(
            channelled(x, series),
            y,
            user,
            classes=classes,
            where=f"{where} ({side})",
            may_be_none=side == "test" and not apart,
        )
        for (x, y, _), user, side in zip(parts, users, ("train", "test"), strict=True)
    )
    called = None if users[0] is None else plain(ids, where)
    return Dataset(name, train, test, classes, None if groups is None else groups.astype(np.int32), series, called)


def in_order(ids: list[Any], groups: Any) -> Any:
    """The groups in the order of the clients' `ids`, where they are given by id; else as they are.

    A pandas Series has them by id, unless its index is none of its own (0, 1, …) or has none of the clients.

    Raises:
        InputError: some clients have no group.
    """
    if callable(getattr(groups, "to_dict", None)) and getattr(groups, "ndim", 0) == 1:
        by_id = groups.to_dict()
        numbered = [*by_id] == [*range(len(groups))] and not by_id.keys() >= {*ids}
        groups = groups if numbered or by_id.keys().isdisjoint(ids) else by_id
    if not isinstance(groups, Mapping):
        return groups
    missing = [one for one in ids if one not in groups]
    if missing:
        raise InputError(f"groups: no group for {len(missing)} of {len(ids)} clients, such as {missing[0]!r}")
    return [groups[one] for one in ids]


def _count(ids: Any) -> int:
    return 0 if ids is None else len(ids)
