"""Whether folders hold what their runs wrote, and whether the same runs give the same metrics again."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jcfl import results
from jcfl.errors import Damaged, InputError, TrainingError
from jcfl.nested import flat
from jcfl.results import Folder
from jcfl.results.files import CHECKSUMS
from jcfl.runs import disk, experiment, sweeping
from jcfl.runs.config import read
from jcfl.runs.needs import last_turns
from jcfl.runs.provenance import differences
from jcfl.runs.replicas import OnProgress


class Files(NamedTuple):
    """One folder's files beside their checksums."""

    path: Path
    number: int  # of files that have a checksum
    faults: dict[str, str]  # what is wrong, by file


class Figures(NamedTuple):
    """One run's metrics compared with those of the same run again."""

    name: str
    evaluations: int
    missing: int  # evaluations that the run again does not have
    gaps: dict[str, float]  # the largest absolute difference of each score that is not the same bit for bit
    labels: int  # how often a client is in another cluster, over all evaluations
    changed: list[str]  # versions and devices that differ, in words

    def same(self, tolerance: float) -> bool:
        """Whether no score differs by more than `tolerance`, and no label at all."""
        return not self.missing and not self.labels and all(gap <= tolerance for gap in self.gaps.values())


def files(path: Path) -> list[Files]:
    """The files of a run, of every method of a comparison, or of every point of a sweep, beside their checksums.

    Raises:
        InputError: the folder holds no run that wrote checksums.
    """
    inner = [path / "runs" / name for name in below(path)]
    places = [path, *inner] if not inner or Folder(path).present() else inner  # a table's runs have no files above them
    if not any((place / CHECKSUMS).exists() for place in places):
        raise InputError(f"{path} holds no run with checksums: there is no {CHECKSUMS} in it")
    return [checked(place) for place in places]


def is_swept(path: Path) -> bool:
    """Whether a folder is that of a sweep, or of a point of a sweep or a trial of a search."""
    home = path.resolve()
    return any((place / name).is_file() for place in (home, *home.parents[:2]) for name in ("sweep.yaml", "tune.json"))


def below(path: Path) -> list[str]:
    """The runs in a folder of several."""
    try:
        return results.compared(path)
    except Damaged:  # which shows at the file itself
        return sorted(item.name for item in path.glob("runs/*"))


def checked(place: Path) -> Files:
    """One folder's files beside their checksums."""
    folder = Folder(place)
    if not (place / CHECKSUMS).exists():
        return Files(place, 0, {CHECKSUMS: "is missing"})
    try:
        folder.know()
    except Damaged as error:
        return Files(place, 0, {CHECKSUMS: str(error).partition(CHECKSUMS)[2].strip()})
    table = folder.checksums.table
    unknown = {name: "has no checksum" for name in folder.present() if name.endswith(".npz") and name not in table}
    return Files(place, len(table), folder.checksums.faults() | unknown)


def figures(path: Path, data_dir: Path | None = None, on_progress: OnProgress | None = None) -> list[Figures]:
    """The metrics of every run in a folder compared with those of the same runs, which are trained again for this.

    Args:
        path: a folder of a run, a comparison or a sweep; as far as it has come.
        data_dir: the folder of datasets, where it is not where it was.
        on_progress: called about once a second.

    Raises:
        InputError: the folder holds no metrics, a run that only Python can repeat, or a search, or there is no folder
            for temporary files.
    """
    olds = runs(path)
    if (path / "tune.json").is_file():
        one = path / "runs" / next(iter(olds))
        raise InputError(f"{path} is the folder of a search; expected that of one of its trials, such as {one}")
    last = max((record.round for old in olds.values() for record in old.records()), default=-1)
    if last < 0:
        raise InputError(f"{path}: nothing has been evaluated yet, so there is nothing to compare")
    with tempfile.TemporaryDirectory(prefix="jcfl-", dir=disk.temporary()) as place:
        again = Path(place) / path.resolve().name
        with contextlib.suppress(TrainingError):  # as the first time; else missing metrics show it
            repeat(path, again, last, {"data_dir": data_dir} if data_dir is not None else {}, on_progress)
        place_of = lambda old: again / old.path.relative_to(path)
        return [compared(name, old, Folder(place_of(old))) for name, old in olds.items()]


def runs(path: Path) -> dict[str, Folder]:
    """The folders of a run, of every method of a comparison, or of every point of a sweep, by name."""
    results.load(path)  # which says what is wrong with them
    names = below(path)
    return {name: Folder(path / "runs" / name) for name in names} or {path.resolve().name: Folder(path)}


def repeat(path: Path, again: Path, last: int, moved: dict[str, Any], on_progress: OnProgress | None) -> None:
    """Train what a folder holds, into another folder, without trackers."""
    rest = {"track": [], "checkpoint_every": 1e9, **moved}
    if (path / "sweep.yaml").is_file():
        Folder(path).content("sweep.yaml")
        sweeping.sweep(path / "sweep.yaml", out=again, on_progress=on_progress, **rest)
    else:
        config = read(Folder(path).yaml("config.yaml"))
        rounds = min(config.rounds, last)
        rest["compare_models"] = [round for round in config.compare_models if round <= rounds]
        # A run that was stopped has not come to the rounds at its end that are all evaluated, or not to all of them.
        rest["evaluate_last"] = max(1, rounds - last_turns(config)[0] + 1)
        experiment.run(config, out=again, on_progress=on_progress, rounds=rounds, **rest)


def compared(name: str, old: Folder, new: Folder) -> Figures:
    """The evaluations in two folders of one run side by side."""
    then, now = ({(one.seed, one.round): one for one in folder.records()} for folder in (old, new))
    gaps: dict[str, float] = {}
    labels = 0
    for place in then.keys() & now.keys():
        one, two = then[place], now[place]
        for score in {**one.scores, **two.scores}:
            note(gaps, score, one.scores.get(score, np.nan), two.scores.get(score, np.nan))
        note(gaps, "accuracy_clients", one.arrays["accuracy_clients"], two.arrays["accuracy_clients"])
        labels += int((one.arrays["labels"] != two.arrays["labels"]).sum())
    made = (flat({**folder.yaml("config.yaml").get("made_by", {}), "command": None}) for folder in (old, new))
    return Figures(name, len(then), len(then.keys() - now.keys()), gaps, labels, differences(*made))


def note(gaps: dict[str, float], score: str, one: Any, two: Any) -> None:
    """Note how far two values of a score are apart, if they are: infinitely, if only one of them is a number."""
    if not np.array_equal(one, two, equal_nan=True):
        apart = np.where(np.isnan(one) & np.isnan(two), 0.0, np.abs(np.subtract(one, two)))
        gaps[score] = max(gaps.get(score, 0.0), float(np.where(np.isnan(apart), np.inf, apart).max()))
