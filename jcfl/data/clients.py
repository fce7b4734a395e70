"""A federation from a user's own arrays, in which the client of every example is known."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.filesize import decimal

from jcfl.data.arrays import from_arrays
from jcfl.data.dataset import Dataset, channelled, features, joined, of_clients, owners
from jcfl.data.federation import divided, parted, shaped
from jcfl.data.overlaps import tell_of_common_examples
from jcfl.errors import InputError, Notice, shown
from jcfl.types import Federation
from jcfl.types.host import whole_map


def from_clients(
    x: np.ndarray,
    y: np.ndarray,
    clients: np.ndarray,
    *,
    x_test: np.ndarray | None = None,
    y_test: np.ndarray | None = None,
    clients_test: np.ndarray | None = None,
    test_fraction: float = 0.2,
    groups: Mapping[Any, int] | Sequence[int] | np.ndarray | None = None,
    classes: int | None = None,
    name: str = "arrays",
    min_examples: tuple[int, int] = (1, 1),
    series: bool = False,
    **options: Any,
) -> Federation:
    """A federation of your own arrays.

    Examples in a mapped file (`np.load(file, mmap_mode="r")`) are not copied if they are uint8 or float32 and there is
    no separate test set: the federation refers to rows of the file. The clients have the same examples as with an array
    in memory. Other types of numbers are copied, with a notice.

    Args:
        x: [n, ...] images [n, h, w] or [n, h, w, c], features [n, d], or series [n, t, c] if `series` is set; uint8
            pixels, which are divided by 255, or floats. Give other whole numbers as floats.
        y: [n] labels 0 .. classes-1, or text, which is numbered in alphabetical order.
        clients: [n] the client of every example, numbers or names. Client i of the federation is the i-th of them in
            ascending order.
        x_test: [n', ...] test examples; without them a part of every client's examples becomes test examples.
        y_test: [n'] their labels.
        clients_test: [n'] their clients.
        test_fraction: this part, a share in (0, 1); it is drawn at random by `seed`.
        groups: the true group of every client, whole numbers from 0, or -1 where it is not known: a mapping or a pandas
            Series by the client's name, or in the order of the sorted names. [m]
        classes: the number of classes c; by default the largest label plus one.
        name: the name of the federation.
        min_examples: the smallest number of (training, test) examples of a client.
        series: whether `x` [n, t, c] are time series with t steps and c channels, not grey images.
        **options: those of `federation`: `seed`, `validation`, `mixing`, `held_out`, `arrivals`, `departures`, `drift`,
            `scale`.

    Returns:
        The federation, its leaves in NumPy.

    Raises:
        InputError: arrays that do not fit each other, a value that cannot be trained on (NaN, infinite, a label that is
            not whole or out of range; the line names the example and its client), or clients with too few examples.
    """
    if not isinstance(name, str):
        raise InputError(f"name: expected text, got {shown(name)}")
    if options.get("resplit") is not None:
        raise InputError("resplit has no meaning for from_clients; test_fraction is a share of every client's examples")
    if whole_map(x) is not None and x.dtype not in (np.uint8, np.float32):
        told = f"{name}: the mapped file has {x.dtype}, and a copy as float32 will be in memory"
        warnings.warn(f"{told} ({decimal(4 * x.size)}); write the file as float32 to train from it", Notice, 2)
    if whole_map(x) is not None and x_test is None:
        own = {"x_test": x_test, "y_test": y_test, "clients_test": clients_test, "test_fraction": test_fraction}
        own |= {"groups": groups, "classes": classes, "name": name, "min_examples": min_examples, "series": series}
        return _of_rows(features(x, name, of_clients(owners(clients, name))), y, clients, **own, **options)
    given = [part is not None for part in (x_test, y_test, clients_test)]
    if any(given) != all(given):
        raise InputError("x_test, y_test and clients_test: expected all three or none")
    ids = [owners(part, name) for part in (clients, clients_test)[: 1 + all(given)]]
    names = np.unique(joined(ids, name)).tolist()
    whole = from_arrays(
        x,
        y,
        clients,
        (x_test, y_test, clients_test) if all(given) else test_fraction,
        classes=classes,
        groups=groups,
        seed=options.get("seed", 0),
        name=name,
        where=name,
        series=series,
    )
    common, others = parted(options | {"min_examples": min_examples})
    whole = shaped(whole)
    tell_of_common_examples(whole)
    with warnings.catch_warnings(category=Notice, action="ignore"):  # clients that are left out are an error here
        made = divided([whole], "natural", common, others)
    if len(made.groups) < len(names):
        _refuse_left_out(whole, made, min_examples)
    return made


def _refuse_left_out(whole: Dataset, made: Federation, least: tuple[int, int]) -> None:
    """Refuse the federation, because it lacks clients of the dataset; the line names one of them."""
    ids = np.asarray(whole.id_of_user)
    short = int(np.flatnonzero(~np.isin(ids, made.clients))[0])
    train, test = (int((half.user == short).sum()) for half in (whole.train, whole.test))
    raise InputError(
        f"clients: {len(ids) - len(made.groups)} of {len(ids)} have fewer than {least[0]} training or {least[1]} test "
        f"examples, such as {ids.tolist()[short]!r} ({train} training and {test} test examples): leave them out or "
        "lower min_examples"
    )


def _of_rows(x: np.ndarray, y: np.ndarray, clients: np.ndarray, **options: Any) -> Federation:
    """As `from_clients`, with `x` [n, ...] itself as the pool: numbers of its rows are shared out in place of them."""
    numbers = np.arange(len(x), dtype=np.uint32).view(np.uint8)  # of rows, as examples of four pixels
    as_pixels = numbers.reshape(len(x), *[1] * (x.ndim - 2), 4)  # as many axes as `x`, which are checked
    made = from_clients(as_pixels, y, clients, **options)
    row = np.ascontiguousarray(made.x).reshape(-1, 4).view(np.uint32)[:, 0].astype(np.int32)  # in the pool's order
    labels = np.zeros(len(x), np.int32)  # of rows that nobody owns too
    labels[row] = made.y
    splits = {name: split.replace(rows=row[split.rows]) for name, split in made.splits.items()}
    x = channelled(x, options["series"])
    mean, std = (one if len(one) == 1 else one[:1] * x.shape[-1] for one in (made.mean, made.std))
    return made.replace(x=x, y=labels, mean=mean, std=std, **splits)
