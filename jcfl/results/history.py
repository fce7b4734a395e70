"""A run's evaluations: each one with its line of JSON, and all of them in NumPy."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jcfl import metrics

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


def text(records: Iterable[Record]) -> str:
    """The lines of metrics.jsonl."""
    return "".join(record.line() for record in records)


def entries(text: str) -> list[dict[str, Any]]:
    """The objects in complete lines of JSON; a last line that was cut off is left out."""
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]


def record(entry: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Record:
    """The record of which a line of metrics.jsonl has the scores. `arrays` are [m] each."""
    scores = {key: math.nan if value is None else value for key, value in entry.items()}
    return Record(int(scores.pop("seed")), int(scores.pop("round")), scores, arrays)


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
