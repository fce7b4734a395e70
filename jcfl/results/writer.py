"""One writer at a time: a folder is locked while it is written."""

import contextlib
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from jcfl.errors import InputError, as_argument
from jcfl.results.files import CHECKSUMS, shortened, writing
from jcfl.results.folder import NAMES

LOCK, HOLDER = ".lock", ".lock.json"
"""The file that is locked, and the one that says by whom; the lock ends with its process, however that ends."""


@contextmanager
def claimed(folder: Path | None, new: bool, stem: str = "") -> Iterator[Path]:
    """Make a folder, and be the only one who writes it.

    Args:
        folder: what is written, or None for the first of runs/STEM-1, runs/STEM-2, … that is not there. If nothing is
            written into it, all is left as it was found.
        new: whether it is to become a run's, and so must not be one.
        stem: the beginning of a numbered folder's name.

    Raises:
        InputError: it cannot be written, another process writes it, or it holds a run and should not.
    """
    if new and folder is not None:
        refuse_taken(folder)  # which says more than that it cannot be made
    folder, made = numbered(stem) if folder is None else (folder, missing(folder))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with held(folder, made):
        if new:
            refuse_taken(folder)  # again: until the lock was ours, another process may have
            (folder / CHECKSUMS).unlink(missing_ok=True)
        yield folder


@contextmanager
def prepared(folder: Path | None) -> Iterator[None]:
    """Make a folder for what is written into it later. If nothing is, all is left as it was found.

    Raises:
        Unwritable: it cannot be made.
    """
    if folder is None:
        yield
        return
    made = missing(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        remove_empty(made)


def remove_empty(folders: Sequence[Path]) -> None:
    """Delete those of some folders that are empty, the innermost first."""
    for folder in folders:
        with contextlib.suppress(OSError):  # it has files
            folder.rmdir()


def missing(folder: Path) -> list[Path]:
    """What has to be made for a folder to be there, the innermost first."""
    with writing(folder):
        return [place for place in (folder, *folder.parents) if not place.exists()]


def numbered(stem: str) -> tuple[Path, list[Path]]:
    """The first of the folders runs/STEM-1, … that is not there, made at once so that it is ours; and what was made."""
    for number in itertools.count(1):
        folder = Path("runs") / f"{stem}-{number}"
        made = missing(folder)
        with writing(folder), contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder, made
    raise AssertionError("numbers end")


@contextmanager
def held(folder: Path, made: Sequence[Path]) -> Iterator[None]:
    """Hold the lock of a folder.

    Args:
        folder: what is locked.
        made: the folders that were made for it. Those in which nothing is at the end are deleted, by who had the lock.

    Raises:
        InputError: another process does, here or on another host that sees the folder.
    """
    lock = FileLock(folder / LOCK)
    with writing(folder / LOCK):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{shortened(folder)} is being written by {holder(folder)}; wait until that has ended, or choose "
                "another folder"
            ) from None
        except OSError:
            remove_empty(made)
            raise
    try:
        with writing(folder / HOLDER):
            about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            (folder / HOLDER).write_text(json.dumps(about), "utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):  # the lock is what counts
            (folder / HOLDER).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else uses it now, or Windows deletes no open file
            if made and {item.name for item in folder.iterdir()} <= {LOCK, CHECKSUMS}:
                (folder / CHECKSUMS).unlink(missing_ok=True)
                (folder / LOCK).unlink(missing_ok=True)
        lock.release()  # on Windows it deletes its file
        remove_empty(made)


def holder(folder: Path) -> str:
    """Who holds the lock of a folder, in words."""
    try:
        about = json.loads((folder / HOLDER).read_text("utf-8"))
        return f"process {about['pid']} on {about['host']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has just taken the lock, or just let go
        return "another process"


def contents(folder: Path) -> str:
    """What a folder holds and how to go on with it, in words; empty if that is not known."""
    resumed = f"--resume {as_argument(folder)} (in Python by resume=True)"
    for name, what, how in (
        ("sweep.yaml", "a sweep", f"jcfl sweep {resumed}"),
        ("tune.json", "a search", "the jcfl tune command that began it"),
        ("config.yaml", "a run", f"jcfl run {resumed}"),
    ):
        if (folder / name).exists():
            return f"{what}; go on with it by {how}"
    return ""


def but_holds(folder: Path) -> str:
    """The end of a line that says what a folder does not hold: what it holds instead."""
    found = contents(folder)
    return f"; it holds {found}" if found else ""


def is_left(place: Path) -> bool:
    """Whether a file is there, or a folder with files in it.

    Locks do not count: a process that was killed before it wrote anything leaves those of a comparison's runs.
    """
    if not place.is_dir():
        return place.exists()
    return any(not item.is_dir() and item.name not in (LOCK, HOLDER) for item in place.rglob("*"))


def refuse_taken(folder: Path) -> None:
    """Refuse a folder that cannot become a run's: it is one already, or it cannot be made."""
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; expected a folder")
        if any(is_left(folder / name) for name in NAMES):
            raise InputError(f"{folder} already holds {contents(folder) or 'a run'}, or choose another folder")
    with prepared(folder):  # only the file system knows whether it can be
        pass
