"""Whether what a run writes fits the disks that it writes to."""

import shutil
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.filesize import decimal

from jcfl.core import onhost
from jcfl.errors import InputError, Notice
from jcfl.results.checkpoints import KEPT
from jcfl.runs.devices import over_hosts
from jcfl.runs.needs import Needs


def check(need: Needs, out: Path | None) -> None:
    """Refuse a run whose checkpoints cannot fit, and warn of one that may fill a disk before it ends.

    Args:
        need: what the run needs.
        out: the run's folder, which may have checkpoints of an earlier process; None if nothing is written.

    Raises:
        InputError: the folder's disk has no room for one checkpoint of every method and seed, or clients' states need
            temporary files and there is no folder for them.
    """
    most: dict[int, list[tuple[Path, int]]] = defaultdict(list)  # folders with the most bytes in them, by disk
    if need.rows > onhost.room():
        place = temporary()
        most[place.stat().st_dev].append((place, need.rows))
    if out is not None and need.checkpoints:
        room = room_for_checkpoints(out)
        if need.checkpoints > room:
            raise InputError(
                f"checkpoints would take {decimal(need.checkpoints)} in {out}, and {decimal(room)} are free; give "
                "another folder, or set checkpoint_every to never (a stopped run then begins again), or take a smaller "
                "model, or fewer clients, methods or seeds"
            )
        written = KEPT * need.checkpoints + need.checkpoint  # an old checkpoint is deleted after the new one
        most[existing(out).stat().st_dev].append((out, max(written - bytes_of_checkpoints(out), 0)))
    for folders in most.values():
        free = shutil.disk_usage(existing(folders[0][0])).free
        if sum(size for _, size in folders) > free:
            parts = " and ".join(f"{decimal(size)} to {folder}" for folder, size in folders)
            warnings.warn(f"this run may write up to {parts}, and {decimal(free)} are free", Notice, stacklevel=2)


def temporary() -> Path:
    """The folder of temporary files: the one that TMPDIR names, else one of the system's.

    Raises:
        InputError: none of them can be written to.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        why = f"{error.strerror}, because they are not there, are full or may not be written to"
        raise InputError(f"{why}; set TMPDIR to a folder where temporary files can be made") from None


def room_for_checkpoints(out: Path) -> int:
    """The bytes that a run's checkpoints may take: what is free on the disk, and those that are there already."""
    return int(over_hosts(shutil.disk_usage(existing(out)).free + bytes_of_checkpoints(out), np.min))


def bytes_of_checkpoints(out: Path) -> int:
    """The bytes of the checkpoints in a run's folder."""
    return sum(file.stat().st_size for file in out.glob("**/checkpoints/*/*.npz"))


def existing(folder: Path) -> Path:
    """A folder, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
