"""The files of one run, read and written in one place."""

import contextlib
import json
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import yaml

from jcfl.errors import Damaged, Notice, as_argument
from jcfl.results.files import CHECKSUMS, Checksums, Version, reading, replace, shortened, writing
from jcfl.results.history import ARRAYS, History, Record, entries, record, text, writable

TIMING = ("wall_s", "compile_s", "rounds_per_s", "clients_per_s", "peak_memory_bytes")

METRICS, TRACKED = "metrics.jsonl", "tracked.json"

NAMES = (
    "config.yaml", METRICS, "clusters.npz", "federation.npz", "summary.json", "comparison.json", "checkpoints", "runs",
    "sweep.yaml", "sweep.json", "tune.json",
)  # fmt: skip
"""What a run, a comparison, a sweep or a search leaves: a folder with one of these is taken."""

AGAIN = (METRICS, "clusters.npz", "federation.npz", "summary.json")
"""The files that a resumed run writes again from its checkpoint."""


CLIENTS = ("train", "test", "groups", "held_out", "arrive", "depart", "compared", "cosine", "pictured", "images")
"""The arrays of federation.npz that figures and comparisons are made from."""


class Folder:
    """The files of one run: config.yaml, metrics.jsonl, federation.npz, clusters.npz, summary.json, checkpoints/.

    Whatever is read back is checked against checksums.json, which is written beside them.
    """

    def __init__(self, path: Path):
        self.path = path
        self.checksums = Checksums(path, grows=[METRICS])
        self.known = False  # whether the checksums of an earlier process have been read

    def begin(self, config: str, measured: bool = True) -> None:
        """Make the folder and write the configuration into it."""
        self.put_text("config.yaml", config)
        if measured:
            with writing(self.path / METRICS):
                (self.path / METRICS).touch()

    def put(self, name: str, write: Callable[[IO[bytes]], Any]) -> None:
        """Write a file whole or not at all, and its checksum.

        Raises:
            Unwritable: the disk is full, or the folder cannot be written.
        """
        self.know()
        replace(self.path / name, write, lambda new: self.checksums.expect(name, Version.of(new)))
        self.checksums.replaced(name)

    def put_text(self, name: str, text: str) -> None:
        """Write a text file."""
        self.put(name, lambda file: file.write(text.encode()))

    def put_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write one JSON object."""
        self.put_text(name, json_text(value))

    def append(self, records: Iterable[Record]) -> None:
        """Add evaluations to metrics.jsonl."""
        with writing(self.path / METRICS), open(self.path / METRICS, "ab") as file:
            file.write(text(records).encode())

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace metrics.jsonl by these evaluations."""
        self.put_text(METRICS, text(records))

    def sent(self) -> set[tuple[int, int]]:
        """The seeds and rounds in metrics.jsonl, also of lines after the last checkpoint; as far as it goes."""
        found = set()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for entry in entries((self.path / METRICS).read_text("utf-8")):
                found.add((entry["seed"], entry["round"]))
        return found

    def tracked(self) -> set[tuple[int, int]]:
        """The seeds and rounds whose scores trackers have had: those of `sent`, and those in tracked.json."""
        found = self.sent()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found |= {(seed, round) for seed, round in json.loads((self.path / TRACKED).read_text("utf-8"))["sent"]}
        return found

    def keep_tracked(self, sent: Collection[tuple[int, int]]) -> None:
        """Write tracked.json: what trackers have had, before lines of metrics.jsonl that a checkpoint lacks are cut."""
        self.put_json(TRACKED, {"sent": sorted(sent)})

    def clusters(self, history: History) -> None:
        """Write clusters.npz: every client's label and accuracy at every evaluation, and B if it is measured."""
        names = (*ARRAYS, "clients", "groups", "rounds", "seeds")
        arrays: dict[str, Any] = {key: getattr(history, key) for key in names}
        if not history.clusterability_clusters.size:
            del arrays["clusterability_clusters"]
        self.put("clusters.npz", lambda file: np.savez_compressed(file, **arrays))
        self.count(METRICS)

    def federation(self, arrays: Callable[[], Mapping[str, np.ndarray]], goes_on: bool = True) -> None:
        """Write federation.npz, what the clients hold and how alike they are, unless an earlier process has.

        Args:
            arrays: makes what it holds.
            goes_on: whether the run goes on with what that process left. Else its clients may hold other data now.
        """
        try:
            sound = goes_on and self.has("federation.npz") and bool(self.clients())
        except Damaged:
            sound = False
        if not sound:
            made: dict[str, Any] = dict(arrays())
            self.put("federation.npz", lambda file: np.savez_compressed(file, **made))

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        self.put_json("summary.json", summary)

    def models(self, record: Record) -> None:
        """Write how alike the clients' models are after a round: models/SEED-ROUND.npz."""
        arrays: dict[str, Any] = dict(record.models)
        self.put(models_file(record.seed, record.round), lambda file: np.savez_compressed(file, **arrays))

    def count(self, name: str) -> None:
        """Write the checksum of what is now in a file that grows."""
        self.know()
        with writing(self.path / name):
            self.checksums.expect(name, Version.of(self.path / name))
        self.checksums.replaced(name)

    def settle(self, gone: Collection[str] = ()) -> None:
        """Write that nothing is under way: every file is what it was last written to be. Delete the files in `gone`."""
        self.know()
        self.checksums.settle(gone)
        for name in gone:
            with writing(self.path / name):
                (self.path / name).unlink(missing_ok=True)

    def know(self) -> None:
        """Read the checksums of an earlier process, once.

        Raises:
            Damaged: checksums.json is.
        """
        if not self.known:
            self.known = True
            self.checksums.load()

    def renew(self, says: bool = True) -> None:
        """As `know`, but where the checksums are damaged or missing, take the files as they are, except broken ones.

        Args:
            says: whether to say so.
        """
        why = f"{shortened(self.path / CHECKSUMS)} is missing"
        try:
            self.know()
        except Damaged as error:
            why = str(error)
        there = self.present() if not self.checksums.table else []
        if there:
            self.checksums.adopt([name for name in there if self.is_whole(name)])
            if says:
                warnings.warn(f"{why}; it is written again", Notice, stacklevel=2)

    def present(self) -> list[str]:
        """The files of runs that are in the folder, apart from those of the runs below it."""
        arrays = [*self.path.glob("checkpoints/*/*.npz"), *self.path.glob("models/*.npz")]
        files = [path for path in (*map(self.path.joinpath, NAMES), *arrays) if path.is_file()]
        return [path.relative_to(self.path).as_posix() for path in files]

    def is_whole(self, name: str) -> bool:
        """Whether an .npz file can be read to its end; of other files it is not known."""
        with contextlib.suppress(OSError, zipfile.BadZipFile):
            if not name.endswith(".npz"):
                return True
            with zipfile.ZipFile(self.path / name) as file:
                return file.testzip() is None
        return False

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Make one line of whatever reading a file raises, see `jcfl.results.files.reading`."""
        return reading(self.path / name, self.hint(name))

    def hint(self, name: str) -> str:
        """What to do about a file that is damaged."""
        return f"; `jcfl run --resume {as_argument(self.path)}` writes it again" if name in AGAIN else ""

    def content(self, name: str) -> bytes:
        """The bytes of a file as they were written.

        Raises:
            Damaged: they are not, or cannot be read.
        """
        self.know()
        with self.reading(name):
            size = self.checksums.size(name)
            return (self.path / name).read_bytes()[:size]

    def text(self, name: str) -> str:
        """A text file."""
        with self.reading(name):
            return self.content(name).decode()

    def json(self, name: str) -> dict[str, Any]:
        """A file of one JSON object; empty where there is no such file."""
        if not self.has(name):
            return {}
        with self.reading(name):
            return mapping(json.loads(self.text(name)))

    def yaml(self, name: str) -> dict[str, Any]:
        """A file of keys and values; empty where there is no such file."""
        if not self.has(name):
            return {}
        with self.reading(name):
            return mapping(yaml.safe_load(self.text(name)) or {})

    def arrays(self, name: str, *beginnings: str) -> dict[str, np.ndarray]:
        """The arrays of an .npz file, or those whose names begin so.

        Raises:
            Damaged: the file is not as it was written, or cannot be read.
        """
        self.know()
        with self.reading(name):
            if self.checksums.size(name) is None and beginnings and not self.is_whole(name):
                raise ValueError("it cannot be read to its end")
            with np.load(self.path / name) as file:  # which also checks the CRC-32 of every array that is read
                return {key: file[key] for key in file if key.startswith(beginnings or "")}

    @contextmanager
    def archive(self, name: str) -> Iterator[zipfile.ZipFile]:
        """An .npz file to read from as `jcfl.results.npz` does.

        Raises:
            Damaged: the file is not as it was written, or cannot be read.
        """
        self.know()
        with self.reading(name):
            self.checksums.size(name)
            with zipfile.ZipFile(self.path / name) as file:
                yield file

    def clients(self) -> dict[str, np.ndarray]:
        """The arrays of federation.npz.

        Raises:
            Damaged: it cannot be read, or one of CLIENTS is not in it.
        """
        found = self.arrays("federation.npz")
        with self.reading("federation.npz"):
            missing = [name for name in CLIENTS if name not in found]
            if missing:
                raise ValueError(f"it has no array {missing[0]!r}")
            return {"clients": np.arange(len(found["groups"]))} | found  # older folders have no ids

    def has(self, name: str) -> bool:
        """Whether a file is there.

        Raises:
            Damaged: it should be.
        """
        if (self.path / name).exists():
            return True
        self.know()
        if None not in self.checksums.table.get(name, [None]):
            raise Damaged(f"{shortened(self.path / name)} is missing{self.hint(name)}")
        return False

    def timing(self) -> dict[str, Any]:
        """What an earlier summary says of the time and memory the run took; nothing if that is lost."""
        try:
            summary = self.json("summary.json")
        except Damaged:
            return {}
        return {key: summary[key] for key in TIMING if key in summary}

    def records(self) -> list[Record]:
        """The evaluations on disk that are whole: those that clusters.npz knows too."""
        if not self.has(METRICS) or not self.has("clusters.npz"):
            return []
        stored = self.arrays("clusters.npz")
        found = []
        with self.reading(METRICS):
            place = tuple({int(value): i for i, value in enumerate(stored[key])} for key in ("seeds", "rounds"))
            for entry in entries(self.text(METRICS)):
                at = place[0].get(entry["seed"]), place[1].get(entry["round"])
                if None not in at:
                    found.append(record(entry, {key: stored[key][at] for key in ARRAYS if key in stored}))
        return found


def json_text(value: Mapping[str, Any]) -> str:
    """One JSON object as a file has it."""
    return json.dumps(writable(value), indent=2) + "\n"


def models_file(seed: int, round: int) -> str:
    """The file with the models of one seed that are compared after a round."""
    return f"models/{seed}-{round}.npz"


def mapping(value: Any) -> dict[str, Any]:
    """The value, if it is keys and values."""
    if not isinstance(value, dict):
        raise ValueError(f"expected keys and values, got {type(value).__name__}")
    return value
