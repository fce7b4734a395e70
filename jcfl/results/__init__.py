"""A run's results: as NumPy arrays in memory, and as files that can be read at every instant."""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from jcfl import metrics
from jcfl.errors import InputError

TIMING = ("wall_s", "compile_s", "rounds_per_s", "clients_per_s", "peak_memory_bytes")
ARRAYS = {"labels": (np.int32, -1), "accuracy_clients": (np.float32, np.nan)}
"""What is kept of every client: its type, and the value that stands where there is none yet."""


@dataclass
class Record:
    """One evaluation of one seed."""

    seed: int
    round: int
    scores: dict[str, float]
    arrays: dict[str, np.ndarray]  # [m] each

    @classmethod
    def of(cls, seed: int, round: int, measured: Mapping[str, Any]) -> "Record":
        """The record of what `jcfl.metrics.measured` returned, its scores in the order of the table of scores."""
        arrays = {name: np.asarray(value) for name, value in measured.items()}
        names = dict.fromkeys(name for name in (*metrics.score_names(), *arrays) if name in arrays)
        scores = {name: number(arrays[name]) for name in names if arrays[name].ndim == 0}
        return cls(seed, round, scores, {name: arrays[name] for name in ARRAYS if name in arrays})

    def line(self) -> str:
        """One line of metrics.jsonl."""
        return json.dumps(writable({"seed": self.seed, "round": self.round, **self.scores})) + "\n"


@dataclass
class History:
    """All evaluations of a run, in NumPy.

    `history["accuracy_micro"]` is that score of every seed at every evaluated round, `[seeds, e]`, NaN where a seed has
    not come so far.
    """

    name: str  # of the method
    seeds: list[int]
    rounds: np.ndarray  # [e], the rounds evaluated
    scores: dict[str, np.ndarray]  # [seeds, e] each
    labels: np.ndarray  # [seeds, e, m], the cluster that serves each client; -1: none yet
    accuracy_clients: np.ndarray  # [seeds, e, m]
    groups: np.ndarray  # [m], -1 where unknown
    summary: dict[str, Any] = field(default_factory=dict)  # as in summary.json
    state: Any = None  # the final states, [seeds, ...]; None for a history read from files
    others: dict[str, "History"] = field(default_factory=dict)  # of the methods compared with this one
    folder: Path | None = None

    def __getitem__(self, score: str) -> np.ndarray:
        if score not in self.scores:
            raise KeyError(f"no score {score!r}; there are {', '.join(self.scores)}")
        return self.scores[score]


def history(name: str, seeds: list[int], rounds: Iterable[int], records: Iterable[Record], groups: Any) -> History:
    """A history from records in any order."""
    table = {(record.seed, record.round): record for record in records}
    kept = [round for round in rounds if any((seed, round) in table for seed in seeds)]
    names = dict.fromkeys(score for record in table.values() for score in record.scores)
    scores = {score: np.full((len(seeds), len(kept)), np.nan) for score in names}
    groups = np.asarray(groups)
    arrays = {key: np.full((len(seeds), len(kept), groups.size), none, kind) for key, (kind, none) in ARRAYS.items()}
    for i, seed in enumerate(seeds):
        for j, round in enumerate(kept):
            record = table.get((seed, round))
            for score, value in (record.scores if record else {}).items():
                scores[score][i, j] = value
            for key in ARRAYS:
                if record and key in record.arrays:
                    arrays[key][i, j] = record.arrays[key]
    return History(name, seeds, np.array(kept, int), scores, arrays["labels"], arrays["accuracy_clients"], groups)


def final(history: History) -> dict[str, Any]:
    """Every score at each seed's last evaluation, as mean and standard deviation over the seeds that have it."""
    table: dict[str, Any] = {}
    for score, values in history.scores.items():
        last = values[:, -1] if values.shape[1] else np.full(len(values), np.nan)
        known = last[~np.isnan(last)]
        mean, std = (float(known.mean()), float(known.std())) if known.size else (math.nan, math.nan)
        table[score] = {"mean": mean, "std": std}
    return table


def cell(name: str, value: Mapping[str, float | None] | None, seeds: int) -> str:
    """A score's mean as text, with its standard deviation where there are several seeds.

    >>> cell("accuracy_micro", {"mean": 0.5, "std": 0.01}, 3), cell("clusters", {"mean": 4.0, "std": 0.0}, 1)
    ('50.00 ± 1.00 %', '4')
    """
    one, mean = metrics.score(name), None if value is None else value["mean"]
    if value is None or mean is None or math.isnan(mean):
        return "–"
    digits = one.digits + (seeds > 1 and one.digits == 0)
    spread = f" ± {(value['std'] or 0) * one.scale:.{digits}f}" if seeds > 1 else ""
    return f"{mean * one.scale:.{digits}f}{spread}{one.suffix}"


class Folder:
    """The files of one run: config.yaml, metrics.jsonl, federation.npz, clusters.npz, summary.json, checkpoints/."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """Where complete states are."""
        return self.path / "checkpoints"

    def begin(self, config: str, measured: bool = True) -> None:
        """Make the folder and write the configuration into it."""
        self.path.mkdir(parents=True, exist_ok=True)
        write(self.path / "config.yaml", config)
        if measured:
            (self.path / "metrics.jsonl").touch()

    def append(self, records: Iterable[Record]) -> None:
        """Add evaluations to metrics.jsonl."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write("".join(record.line() for record in records))

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace metrics.jsonl by these evaluations."""
        write(self.path / "metrics.jsonl", "".join(record.line() for record in records))

    def clusters(self, history: History) -> None:
        """Write clusters.npz: labels and accuracies of every client at every evaluation."""
        arrays: dict[str, Any] = {key: getattr(history, key) for key in (*ARRAYS, "groups", "rounds", "seeds")}
        write_arrays(self.path / "clusters.npz", arrays)

    def federation(self, arrays: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Write federation.npz, what the clients hold and how alike they are, unless it is there already."""
        if not (self.path / "federation.npz").exists():
            self.path.mkdir(parents=True, exist_ok=True)
            write_arrays(self.path / "federation.npz", arrays())

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_json(self.path / "summary.json", summary)

    def timing(self) -> dict[str, Any]:
        """What an earlier summary says of the time and memory the run took."""
        if not (self.path / "summary.json").exists():
            return {}
        summary = json.loads((self.path / "summary.json").read_text("utf-8"))
        return {key: summary[key] for key in TIMING if key in summary}

    def records(self) -> list[Record]:
        """The evaluations on disk that are whole: those that clusters.npz knows too."""
        if not (self.path / "clusters.npz").exists():
            return []
        with np.load(self.path / "clusters.npz") as file:
            stored = dict(file)
        place = tuple({int(value): i for i, value in enumerate(stored[key])} for key in ("seeds", "rounds"))
        found = []
        for entry in lines(self.path / "metrics.jsonl"):
            seed, round = entry.pop("seed"), entry.pop("round")
            if seed in place[0] and round in place[1]:
                arrays = {key: stored[key][place[0][seed], place[1][round]] for key in ARRAYS}
                scores = {key: math.nan if value is None else value for key, value in entry.items()}
                found.append(Record(seed, round, scores, arrays))
        return found


def load(folder: Path | str) -> History:
    """The history of a run from its folder; of several methods' the first one's, the rest as its `others`.

    Raises:
        InputError: the folder holds no run.
    """
    path = Path(folder)
    if (path / "metrics.jsonl").exists():
        return loaded(path)
    names = compared(path)
    if not names:
        raise InputError(f"{path} holds no run: there is neither a metrics.jsonl nor a runs folder with runs in it")
    main, *others = [loaded(path / "runs" / name) for name in names]
    main.others, main.folder = {other.name: other for other in others}, path
    return main


def compared(path: Path) -> list[str]:
    """The runs in a folder of several, in the order of its comparison.json; those not in there yet at the end."""
    there = sorted(item.parent.name for item in path.glob("runs/*/metrics.jsonl"))
    file = path / "comparison.json"
    order = list(json.loads(file.read_text("utf-8"))) if file.exists() else []
    return [*(name for name in order if name in there), *(name for name in there if name not in order)]


def loaded(path: Path) -> History:
    """The history of the one run in a folder."""
    records = Folder(path).records()
    seeds, rounds = sorted({record.seed for record in records}), sorted({record.round for record in records})
    with_groups = path / "clusters.npz"
    groups = np.load(with_groups)["groups"] if with_groups.exists() else np.zeros(0, int)
    found = history(path.resolve().name, seeds, rounds, records, groups)
    found.folder = path
    if (path / "summary.json").exists():
        found.summary = json.loads((path / "summary.json").read_text("utf-8"))
    return found


def home(history: History) -> Path:
    """The folder of one run's files.

    Raises:
        InputError: the run has none.
    """
    if history.folder is None:
        raise InputError(f"{history.name}: this needs the files of a run; give the run a folder with out=…")
    inner = history.folder / "runs" / history.name
    return inner if inner.is_dir() else history.folder


def federation(history: History) -> dict[str, np.ndarray]:
    """What the clients of a run hold and how alike they are: see `jcfl.runs.representation.representation`.

    Raises:
        InputError: the run has no folder, or was made before runs wrote federation.npz.
    """
    file = home(history) / "federation.npz"
    if not file.exists():
        raise InputError(f"{file} is not there; `jcfl run --resume {history.folder}` writes it")
    with np.load(file) as arrays:
        return dict(arrays)


def settings(history: History) -> dict[str, Any]:
    """The configuration of a run as its file has it; empty for a run without a folder."""
    if history.folder is None or not (home(history) / "config.yaml").exists():
        return {}
    return yaml.safe_load((home(history) / "config.yaml").read_text("utf-8")) or {}


def lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a last one that was cut off is left out."""
    whole, _, _ = path.read_text("utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]


def write(path: Path, text: str) -> None:
    """Write a file so that it is never seen half-written."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a compressed npz file, so that it is never seen half-written."""
    temporary = path.with_name(path.name + ".partial")
    with open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(temporary, path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, so that it is never seen half-written."""
    write(path, json.dumps(writable(value), indent=2) + "\n")


def number(value: np.ndarray) -> float | int:
    """A scalar as a Python number that prints as short as its own precision allows."""
    return int(value) if np.issubdtype(value.dtype, np.integer) else float(str(value[()]))


def writable(value: Any) -> Any:
    """A value as JSON has it: null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [writable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
