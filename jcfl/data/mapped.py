"""Federations in NumPy files that are mapped into memory, so that they may be larger than it."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.lib.format import open_memmap
from pydantic import Field
from rich.filesize import decimal

from jcfl.data.archives import names_in, read_arrays, tell_of_others
from jcfl.data.clients import from_clients
from jcfl.data.files import reading, regular
from jcfl.data.generated import true_parameters
from jcfl.errors import InputError
from jcfl.registry import keywords_checked
from jcfl.types import Federation

Count = Annotated[int, Field(ge=1)]


def mapped(folder: Path | str, **options: Any) -> Federation:
    """The federation in a folder of `x.npy`, `y.npy`, `clients.npy` and, if it is there, `groups.npy`.

    `x.npy` is not read into memory. A run reads the rows that it needs; see `examples` in a run's configuration.

    Args:
        folder: holds the arrays, as `from_clients` takes them; `x.npy` as uint8 or float32.
        **options: those of `from_clients`.

    Raises:
        InputError: a file is not there or is no array, or the arrays do not fit each other.
    """
    folder = Path(folder)
    path = folder / "x.npy"
    regular(path)
    with reading(path, "an .npy array"):
        x = np.load(path, mmap_mode="r", allow_pickle=False)
    read = ("y", "clients", "groups")
    held = read_arrays(folder, read)
    if others := {*names_in(folder)} & {"x_test", "y_test", "clients_test"}:
        raise InputError(
            f"{folder} has {' and '.join(sorted(others))}, and test examples of mapped files are drawn from x; put "
            "them into x, or give the arrays to from_clients"
        )
    for name in ("y", "clients"):
        if name not in held:
            raise InputError(f"cannot read {folder / name}.npy: there is no such file")
    tell_of_others(folder, ("x", *read))
    named = {"name": folder.name, "groups": held.get("groups")}
    return from_clients(x, held["y"], held["clients"], **(named | options))


@keywords_checked
def write_gaussian(
    folder: Path | str,
    *,
    users: Count = 100,
    examples: Count = 100,
    features: Count = 20,
    groups: Count = 4,
    classes: Annotated[int, Field(ge=2)] = 5,
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0,
) -> Path:
    """Write a generated federation for `mapped`, one user at a time: tasks as in the dataset `gaussian`.

    Args:
        folder: a new folder; it takes 4 · users · examples · (features + 2) bytes.
        users: natural clients, equally many in each group.
        examples: training and test examples of a user.
        features: numbers per example, standard normal.
        groups: the number of true clusters of users.
        classes: labels.
        seed: of the tasks and the examples.

    Raises:
        InputError: there are fewer users than groups, the folder is there already, or the disk has too little room.
    """
    if users < groups:
        raise InputError(f"write_gaussian: {users} users cannot fill {groups} groups; expected users >= groups")
    folder, rows = Path(folder), users * examples
    if folder.exists():
        raise InputError(f"{folder} is there already; give a new folder, or delete it")
    partial = folder.with_name(f"{folder.name}.partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    need, free = 4 * rows * (features + 2), shutil.disk_usage(folder.parent).free
    if need > free:
        raise InputError(f"{folder} would take {decimal(need)}, and {decimal(free)} are free; use fewer examples")
    weights = true_parameters(groups, features, classes, 1.0, seed).astype(np.float32)  # [g, c, d]
    group = (np.arange(users) * groups // users).astype(np.int32)
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was stopped
    partial.mkdir()
    try:
        x = open_memmap(partial / "x.npy", "w+", np.float32, (rows, features))
        y = np.empty((users, examples), np.int32)
        for user in range(users):
            own = np.random.default_rng([seed, 1, user]).standard_normal((examples, features), np.float32)
            x[user * examples : (user + 1) * examples] = own
            y[user] = (own @ weights[group[user]].T).argmax(1)
        x.flush()
        del x  # closes the file, because Windows renames no folder with open files
        np.save(partial / "y.npy", y.reshape(-1))
        np.save(partial / "clients.npy", np.repeat(np.arange(users, dtype=np.int32), examples))
        np.save(partial / "groups.npy", group)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return folder
