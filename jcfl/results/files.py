"""Files that are never seen half-written, and whose damage is found when they are read."""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from jcfl.errors import Damaged, InputError, Unwritable, shown

CHECKSUMS = "checksums.json"

BLOCK = 2**20
"""Bytes that are hashed at a time."""

PATIENCE = 2.0
"""Seconds for which Windows is asked again to replace a file."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make one line, with the file and the reason, of what the file system refuses.

    Raises:
        Unwritable: the disk is full, the folder is read-only, the name is too long, …
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):  # of which the system does not say where
            files = [place for place in (path, *path.parents) if os.path.lexists(place) and not place.is_dir()]
            kind = "file, not a folder" if files and files[0].exists() else "link to nothing"
            why = f"{shortened(files[0])} is a {kind}" if files else why
        raise Unwritable(f"{shortened(path)} cannot be written: {why}") from None


@contextmanager
def reading(path: Path, hint: str = "") -> Iterator[None]:
    """Make one line, with the file and the reason, of whatever reading a file raises.

    Args:
        path: the file.
        hint: what to do about it, the end of the line.

    Raises:
        Damaged: nobody can list what damaged bytes make a parser raise, so every exception counts.
        InputError: the file may not be read.
    """
    try:
        yield
    except InputError:
        raise
    except PermissionError as error:
        raise unreadable(path, error) from None
    except Exception as error:
        told = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), "")
        raise Damaged(f"{shortened(path)} is damaged: {told or type(error).__name__}{hint}") from None


def unreadable(path: Path, error: OSError) -> InputError:
    """What is said of a file that may not be read, which need not be damaged."""
    return InputError(f"{shortened(path)} cannot be read: {error.strerror}")


def shortened(path: Path) -> str:
    """A path for a message, without the middle of an endless one."""
    text = str(path)
    return text if len(text) <= 200 else f"{text[:80]}…{text[-80:]}"


def destination(path: str | os.PathLike[str]) -> Path:
    """The folder that the user gave.

    Raises:
        InputError: nothing was; `Path("")` would be the current folder.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"out: expected a folder to write, got {shown(path)}")
    if "\0" in str(path):
        raise InputError(f"out: no name of a folder has the character 0, got {shown(path)}")
    if not os.fspath(path):
        raise InputError("out: expected a folder to write, got an empty text; for the current folder give .")
    return Path(path)


def place_of(out: str | os.PathLike[str] | None, resume: bool) -> Path | None:
    """The folder that the user gave for results; None if nothing is to be written.

    Raises:
        InputError: there is none to resume in, or it is no name of a folder.
    """
    if resume and out is None:
        raise InputError("resume=True needs out=…: the folder of the run that goes on")
    return destination(out) if out is not None else None


class Version(NamedTuple):
    """What a file should be: so many bytes with this SHA-256."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, file: Path) -> "Version":
        """The version that is on disk."""
        size = file.stat().st_size
        return cls(size, digest(file, size))


Table = dict[str, list[Version | None]]
"""The versions of every file that are sound, oldest first; None: it need not be there."""


class Checksums:
    """checksums.json: what every file of a folder should be.

    The new version of a file is expected before the file is replaced. Until the next file is written both versions are
    sound, so that a process that is killed between the two steps leaves a sound folder; the next process keeps the one
    that is on disk.
    """

    def __init__(self, folder: Path, grows: Collection[str] = ()):
        self.folder, self.file = folder, folder / CHECKSUMS
        self.grows = grows  # the files that may go on after the bytes that were counted
        self.table: Table = {}

    def load(self) -> None:
        """Read what an earlier process expected; nothing where there is no checksums.json.

        Raises:
            Damaged: its own checksum does not hold.
        """
        with reading(self.file):
            found = json.loads(self.file.read_bytes()) if self.file.exists() else {"files": {}}
            if self.file.exists() and found["sha256"] != own_digest(found["files"]):
                raise ValueError("its own checksum does not hold")
            versions = lambda entry: [None if one is None else Version(one["bytes"], one["sha256"]) for one in entry]
            self.table = {name: versions(entry) for name, entry in found["files"].items()}

    def expect(self, name: str, version: Version) -> None:
        """Write that a file is about to be replaced by another version."""
        self.table = self.settled()
        self.table[name] = [*self.table.get(name, [None]), version]
        self.write()

    def replaced(self, name: str) -> None:
        """Keep the new version of a file that has been replaced; the next `expect` or `settle` writes this."""
        self.table[name] = self.table[name][-1:]

    def settle(self, gone: Collection[str] = ()) -> None:
        """Write that no file is about to be replaced, and that those in `gone` may be deleted."""
        self.table = {name: entry for name, entry in self.settled().items() if name not in gone}
        self.write()

    def settled(self) -> Table:
        """The table with one version of every file. An earlier process may have been killed before it replaced one."""
        found = {name: self.on_disk(name, entry) for name, entry in self.table.items()}
        return {name: entry for name, entry in found.items() if entry}

    def on_disk(self, name: str, versions: list[Version | None]) -> list[Version | None]:
        """The version of a file that is there, of several; none where it need not be there and is not.

        The file is damaged where it is none of them; it should then be the last one.
        """
        if len(versions) > 1:
            with suppress(OSError):
                if None in versions and not (self.folder / name).exists():
                    return []
                return [next((one for one in reversed(versions) if one and self.fits(name, one)), versions[-1])]
        return versions[-1:]

    def adopt(self, names: Collection[str]) -> None:
        """Expect files to stay as they are, in place of what was known of them; they are written with the next ones."""
        self.table = {name: [Version.of(self.folder / name)] for name in names}

    def write(self) -> None:
        """Write the table."""
        files = {name: [one and one._asdict() for one in entry] for name, entry in self.table.items()}
        text = json.dumps({"files": files, "sha256": own_digest(files)}, indent=1) + "\n"
        replace(self.file, lambda file: file.write(text.encode()))

    def size(self, name: str) -> int | None:
        """The bytes of a file that were counted; None where nothing is known of it.

        Raises:
            ValueError: the file is not as it was written.
        """
        try:
            return self.sound(name)
        except (OSError, ValueError):  # a run that goes on may have written the file after we read the table
            self.load()
            return self.sound(name)

    def sound(self, name: str) -> int | None:
        """As `size`, by the table in memory."""
        path = self.folder / name
        versions = [one for one in self.table.get(name, ()) if one is not None]
        if not versions:
            return None
        for one in reversed(versions):
            if self.fits(name, one):
                return one.bytes
        there, wrote = path.stat().st_size, versions[-1].bytes
        if there < wrote:
            raise ValueError(f"it has {there} of {wrote} bytes")
        raise ValueError("it is not as it was written: its checksum differs")

    def fits(self, name: str, version: Version) -> bool:
        """Whether a file is of a version, or begins with it if it grows."""
        there = (self.folder / name).stat().st_size
        fits = there >= version.bytes if name in self.grows else there == version.bytes
        return fits and digest(self.folder / name, version.bytes) == version.sha256

    def faults(self) -> dict[str, str]:
        """The files that are damaged or missing, and what is wrong with each.

        Raises:
            InputError: one of them may not be read.
        """
        found = {}
        for name, entry in self.table.items():
            if None in entry and not (self.folder / name).exists():
                continue
            try:
                self.size(name)
            except PermissionError as error:
                raise unreadable(self.folder / name, error) from None
            except FileNotFoundError:
                found[name] = "is missing"
            except (OSError, ValueError) as error:
                found[name] = f"is damaged: {error}"
        return found


def replace(
    path: Path, write: Callable[[IO[bytes]], Any], expected: Callable[[Path], Any] | None = None, partial: str = ""
) -> None:
    """Write a file so that it is never seen half-written; a full disk leaves the old one.

    Args:
        path: the file; its folder is made.
        write: writes the content.
        expected: called with the complete new file, before it takes the old one's place.
        partial: the name of the temporary file. By default it is the same for every writer of the file, so that one
            that a killed process has left is written again.
    """
    temporary = path.with_name(partial or f"{path.name}.partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                write(file)
            if expected is not None:
                expected(temporary)
            put_in_place(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def put_in_place(new: Path, path: Path) -> None:
    """Let a new file take the place of an old one.

    Windows refuses this while another process reads one of the two, such as a report or a virus scanner, so it is asked
    again for a while.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            os.replace(new, path)
            return
        except PermissionError:
            if os.name != "nt" or time.monotonic() > end:
                raise
        time.sleep(0.02)


def overwrite(path: Path, content: bytes) -> None:
    """Write a file in a folder that is not locked, whole or not at all.

    Links are followed; pipes are written to directly. Of several processes that write the file, the last one's stays.
    """
    if path.exists() and not path.is_file():
        with writing(path):
            path.write_bytes(content)
    else:
        place = Path(os.path.realpath(path)) if path.is_symlink() else path
        replace(place, lambda file: file.write(content), partial=f"{place.name[:40]}.{secrets.token_hex(4)}.partial")


def digest(file: Path, size: int) -> str:
    """The SHA-256 of a file's first `size` bytes."""
    sha = hashlib.sha256()
    with open(file, "rb") as opened:
        while size > 0 and (block := opened.read(min(size, BLOCK))):
            sha.update(block)
            size -= len(block)
    return sha.hexdigest()


def own_digest(files: Any) -> str:
    """The checksum of the checksums."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
