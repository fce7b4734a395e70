"""A run's results: as NumPy arrays in memory, and as files that can be read at every instant."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jcfl.errors import Damaged, InputError, as_argument, shown
from jcfl.metrics import are_scored
from jcfl.results.files import overwrite as overwrite
from jcfl.results.files import writing as writing
from jcfl.results.folder import METRICS
from jcfl.results.folder import Folder as Folder
from jcfl.results.folder import json_text as json_text
from jcfl.results.folder import models_file as models_file
from jcfl.results.history import History as History
from jcfl.results.history import Record as Record
from jcfl.results.history import cell as cell
from jcfl.results.history import deviation as deviation
from jcfl.results.history import final as final
from jcfl.results.history import history as history
from jcfl.results.history import holders
from jcfl.results.history import writable as writable
from jcfl.results.scores import load_scores as load_scores
from jcfl.results.writer import claimed as claimed


def load(folder: Path | str) -> History:
    """The history of a run from its folder. For several methods it is that of the first one, with the rest as `others`.

    Raises:
        InputError: the folder holds no run, or a file in it is damaged.
    """
    if not isinstance(folder, str | Path):
        raise InputError(f"expected the folder of a run, got {shown(folder)}")
    path = Path(folder)
    there = os.path.isdir(path)  # which is false of a name that no folder can have
    if there and Folder(path).has(METRICS):
        return loaded(path)
    names = compared(path) if there else []
    if not names:
        raise InputError(f"{path} holds no run: there is neither a metrics.jsonl nor a runs folder with runs in it")
    main, *others = [loaded(path / "runs" / name) for name in names]
    main.others, main.folder = {other.name: other for other in others}, path
    return main


def compared(path: Path) -> list[str]:
    """The runs in a folder of several, in the order of its comparison.json; those not in there yet at the end."""
    there = {item.parent.name for name in ("config.yaml", METRICS) for item in path.glob(f"runs/*/{name}")}
    order = Folder(path).json("comparison.json")
    return [*order, *sorted(there - order.keys())]


def loaded(path: Path) -> History:
    """The history of the one run in a folder."""
    if not path.is_dir():
        raise Damaged(f"{path} is missing")
    folder = Folder(path)
    records = folder.records()
    seeds, rounds = sorted({record.seed for record in records}), sorted({record.round for record in records})
    groups, clients = np.zeros(0, int), ()
    if folder.has("clusters.npz"):
        with folder.reading("clusters.npz"):
            stored = folder.arrays("clusters.npz")
            groups, clients = stored["groups"], stored.get("clients", ())  # there are none in older folders
    found = history(path.resolve().name, seeds, rounds, records, groups, clients)
    found.folder, found.summary = path, folder.json("summary.json")
    found.held = partial(group_arrays, path)  # read where it is needed, so that a run can be looked at without the file
    return found


def finished_history(place: Path | None, rounds: int) -> History | None:
    """The history of the run in a folder, if an earlier process has come to its end and all of it is sound."""
    if place is None or not (place / "summary.json").is_file():
        return None
    folder = Folder(place)
    try:
        found = loaded(place)
        folder.know()
        if folder.checksums.faults():  # also in files that no history is read from
            return None
    except Damaged:
        return None
    summary = found.summary
    # A run that began again with more rounds, and was stopped, has the summary of evaluations that are gone.
    is_whole = len(found.seeds) == summary.get("seeds") and found.rounds.max(initial=-1) == rounds
    return found if summary.get("rounds") == rounds and ("failed" in summary or is_whole) else None


def home(history: History) -> Path:
    """The folder of one run's files.

    Raises:
        InputError: the run has none.
    """
    if history.folder is None:
        raise InputError(f"{history.name}: this needs the files of a run; give the run a folder with out=…")
    inner = history.folder / "runs" / history.name
    return inner if inner.is_dir() else history.folder


def federation(history: History, round: int | None = None) -> dict[str, np.ndarray]:
    """What the clients of a run hold and how alike they are: see `jcfl.runs.representation.representation`.

    Args:
        history: the run.
        round: how many rounds were trained, by default those until the last evaluation. Where data drift, examples and
            true groups are those that clients had in the last of these rounds.

    Raises:
        InputError: the run has no folder, or was made before runs wrote federation.npz.
    """
    folder = Folder(home(history))
    if not folder.has("federation.npz"):
        again = f"`jcfl run --resume {as_argument(history.folder)}` writes it"
        raise InputError(f"{folder.path / 'federation.npz'} is not there; {again}")
    return after_drift(folder.clients(), history.rounds.max(initial=0) if round is None else round)


def known_federation(history: History) -> dict[str, np.ndarray] | None:
    """As `federation`; None if the run has no folder, or its folder has no federation.npz."""
    try:
        return federation(history)
    except Damaged:
        raise
    except InputError:
        return None


def group_arrays(path: Path) -> dict[str, np.ndarray]:
    """What a run's federation.npz has of true groups and of drift; nothing where there is no such file."""
    folder, name = Folder(path), "federation.npz"
    return folder.arrays(name, "groups", "drift_") if folder.has(name) else {}


def after_drift(held: Mapping[str, np.ndarray], round: int) -> dict[str, np.ndarray]:
    """The arrays of federation.npz, `held` before the first round, as they are after so many rounds of training."""
    if "drift_holds" not in held:
        return dict(held)
    now = holders(held, round)
    moved = {name: held[name][now] for name in ("train", "test", "validation", "groups") if name in held}
    return {**held, **moved, **{name: now.argsort()[held[name]] for name in ("compared", "pictured")}}


def present(held: Mapping[str, np.ndarray], round: int) -> np.ndarray:
    """`metrics.are_scored` after so many rounds, of the arrays of federation.npz. [m] bool"""
    return are_scored(held["held_out"], held["arrive"], held["depart"], round)


def trained_rounds(history: History) -> np.ndarray:
    """Rounds trained until each evaluation: fewer than its round if a stop condition ended training. [seeds, e]"""
    return history.scores.get("trained_rounds", np.tile(history.rounds, (len(history.seeds), 1)))


def models(history: History, seed: int, round: int) -> dict[str, np.ndarray]:
    """How alike the models of clients and clusters were after a round: see `jcfl.core.measuring.comparison`.

    Raises:
        InputError: they were not compared then.
    """
    if (seed, round) in history.models:
        return history.models[seed, round]
    rounds = models_rounds(history, seed)
    if round not in rounds:
        there = f"it has those of rounds {', '.join(map(str, rounds))}" if rounds else "set compare_models: [rounds]"
        raise InputError(f"{history.name}: models of seed {seed} were not compared after round {round}; {there}")
    return Folder(home(history)).arrays(models_file(seed, round))


def models_rounds(history: History, seed: int) -> list[int]:
    """The evaluated rounds after which the models of a seed were compared, ascending."""
    files = [] if history.folder is None else home(history).glob(f"models/{seed}-*.npz")
    rounds = {int(file.stem.partition("-")[2]) for file in files}
    return sorted((rounds | {turn for own, turn in history.models if own == seed}) & set(history.rounds.tolist()))


def settings(history: History) -> dict[str, Any]:
    """The configuration of a run as its file has it; empty for a run without a folder."""
    return {} if history.folder is None else Folder(home(history)).yaml("config.yaml")
