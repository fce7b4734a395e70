"""Sweeps: many runs over a grid or a list of options, which are compared in a table and can be resumed."""

import csv
import io
import json
import math
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jcfl import metrics
from jcfl.errors import InputError, TrainingError, unknown
from jcfl.registry import keywords_checked
from jcfl.results import Folder, History, claimed, load_scores
from jcfl.results.files import place_of
from jcfl.results.history import numbers, with_pandas
from jcfl.results.writer import but_holds
from jcfl.runs import bars, loop
from jcfl.runs.config import Config
from jcfl.runs.replicas import OnProgress
from jcfl.runs.sweeping import shared
from jcfl.runs.sweeping.groups import Training
from jcfl.runs.sweeping.points import Over, Point, Points, as_checked, label, points, whole_sections
from jcfl.runs.sweeping.shared import begun
from jcfl.runs.undecided import AUTO
from jcfl.runs.workers import Workers
from jcfl.runs.workers import workers as parsed_workers
from jcfl.types import Federation


@dataclass(repr=False)
class Sweep:
    """Every point of a sweep with its history."""

    points: list[Point]  #: the points; each has a `name`, and its `values` by dotted key
    #: the history of each point, in the same order; that of a point that diverged has `failed` in its `summary`
    histories: list[History]
    by: str  #: the score that decides which point is best
    compilations: int  #: how often a program was compiled

    def __repr__(self) -> str:
        """The sweep in a line: how many points, and the best of them."""
        best = self.best()
        parts = [f"{len(self.points)} points"]
        parts += [] if best is None else [f"{self.chosen}: {self.points[best].name}", repr(self.histories[best])]
        return f"<Sweep: {'; '.join(parts)}>"

    @property
    def over_seeds(self) -> bool:
        """Whether points differ in `seed` or `seeds`: the best one would be a lucky seed, so there is none."""
        return len({(point.config.seed, point.config.seeds) for point in self.points}) > 1

    @property
    def chosen(self) -> str | None:
        """How the best point is chosen, in words; None if there is none. On test examples it is too good to report."""
        if self.best() is None:
            return None
        on = "best on validation" if self.by.startswith(metrics.VALIDATION) else "oracle (chosen on test)"
        return f"{on} by {self.by}"

    def best(self) -> int | None:
        """The number of the point with the best mean score over seeds at the last evaluation.

        Returns:
            Its place in `points` and `histories`, from 0. A point that diverged is never the best. None where no point
            has the score, or where points differ in their seeds.
        """
        if self.over_seeds:
            return None
        sign = -1 if metrics.score(self.by).better == "lower" else 1
        found = [one.summary.get(self.by, {}).get("mean") for one in self.histories]  # None in files: not a number
        means = [math.nan if mean is None else sign * mean for mean in found]
        means = [math.nan if "failed" in one.summary else mean for mean, one in zip(means, self.histories, strict=True)]
        return None if np.isnan(means).all() else int(np.nanargmax(means))

    def rows(self) -> list[dict[str, Any]]:
        """The sweep as a table, with one row for each point.

        Returns:
            Rows with the keys `name`; `best`, whether this is the best point; `values`, by dotted key; every score, as
            `{"mean": …, "std": …}` of its last values over seeds; `seconds` that the point took, compilation included;
            and `failed`, the reason why training stopped, else None.
        """
        best, rows = self.best(), []
        for index, (point, one) in enumerate(zip(self.points, self.histories, strict=True)):
            scores = {score: numbers(one.summary[score]) for score in one.scores}
            more = {"seconds": one.summary.get("wall_s"), "failed": one.summary.get("failed")}
            left = {key: AUTO for key, value in point.values.items() if isinstance(value, str) and value == AUTO}
            values = as_checked(point.values, point.config) | left  # also where the configuration has decided it
            rows.append({"name": point.name, "best": index == best, "values": values, **scores, **more})
        return rows

    def to_dataframe(self, clients: bool = False) -> Any:
        """All scores as a `pandas.DataFrame`: the tables of all points' histories, one below the other.

        Args:
            clients: whether to give the clients' accuracies instead, as `History.to_dataframe` does.

        Returns:
            The table of `History.to_dataframe`, after a column for every key that was swept. Numbers and text are as
            they were given; a piece, a module or a list is text, as in the names of the points.

        Raises:
            InputError: pandas is not installed.
        """
        tables = []
        for point, one in zip(self.points, self.histories, strict=True):
            table = one.to_dataframe(clients)
            swept = {key: value for key, value in point.values.items() if key not in table}  # `seed` is a column there
            for place, (key, value) in enumerate(swept.items()):
                # A mapping or a list in a cell could not be grouped by.
                cell = label(value) if isinstance(value, Mapping | list | tuple) else value
                table.insert(place, key, [cell] * len(table))
            tables.append(table)
        return with_pandas().concat(tables, ignore_index=True)


@keywords_checked
def sweep(
    what: Federation | Config | Mapping[str, Any] | str | Path,
    over: Over | None = None,
    *,
    by: str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    workers: int | str | None = None,
    allow_versions: bool = False,
    on_progress: OnProgress | None = None,
    progress: bool | None = None,
    **given: Any,
) -> Sweep:
    """Train a method at every point of a grid, or of a list, of options.

    Points that differ only in numbers of the method, its add-ons or the trainer (λ, τ, μ, the learning rate, …) share a
    compiled program and run side by side, seeds included, where their states are small. A point that diverges does not
    stop the others.

    Args:
        what: as for `jcfl.run`, or a sweep's file; methods to compare are ignored.
        over: values by dotted key, `{"method.lam": [0, 0.05], "train.lr": [0.1, 0.2]}`, or a list of points.
        by: the registered score by which the best point is chosen; by default accuracy, on validation examples where
            every point has some (`scenario.validation`), else on test examples: then the best point is an oracle.
        out: the sweep's folder; each point has an ordinary run's folder under `runs`.
        resume: whether to continue the sweep in `out`; complete points are not run again.
        workers: how many processes of this machine train points at a time, or jobs of a Slurm cluster,
            `"slurm:8,partition=gpu,time=60"`; needs `out`. By default this process trains them.
        allow_versions: whether to continue also with other versions of jcfl, JAX or NumPy.
        on_progress: called with a `Progress` about once a second.
        progress: whether a bar is shown, as for `jcfl.run`.
        **given: the configuration's keys, as for `jcfl.run`: method, train, rounds, seeds, …

    Returns:
        All points with their histories; `best()` is the number of the best point. A point that diverged has the reason
        as `failed` in its history's `summary`.

    Raises:
        InputError: a point is wrong; nothing has been trained or written.
        TrainingError: at every point a model is no longer finite.
    """
    if by is not None:
        refuse_score(by)
    sharing = parsed_workers(workers) if workers is not None else None
    if sharing is not None and out is None:
        raise InputError("workers need out=…: a folder in which they all write")
    folder = place_of(out, resume)
    if resume and folder is not None:
        refuse_other(folder)
    with claimed(folder, new=not resume) if folder is not None else nullcontext():
        found = points(what, over, **whole_sections(given))
        with bars.shown(progress, on_progress, ["sweep"]) as watch:
            return carried_out(found, by, folder, resume, allow_versions, watch, sharing)


def refuse_score(by: str) -> None:
    """Refuse a score by which no point can be the best."""
    load_scores([by])
    known = [name for name in metrics.score_names() if metrics.score(name).better is not None]
    if by not in known:
        raise unknown("score to choose by", by, known, metrics.by_title(by, known))


def refuse_other(folder: Path) -> None:
    """Refuse to resume in a folder that holds no sweep."""
    if not (folder / "sweep.yaml").is_file():
        raise InputError(f"{folder} holds no sweep to resume: there is no sweep.yaml in it{but_holds(folder)}")


def carried_out(
    whole: Points,
    by: str | None,
    folder: Path | None,
    resume: bool,
    allow_versions: bool,
    on_progress: OnProgress,
    workers: Workers | None = None,
) -> Sweep:
    """A sweep that has been trained, in a folder that this process has claimed; see `sweep`."""
    whole = whole._replace(points=[begun(folder if resume else None, point) for point in whole.points])
    if by is None and folder is not None and (folder / "sweep.yaml").is_file():  # a resumed sweep
        stored = Folder(folder)
        stored.renew(says=False)
        by = stored.yaml("sweep.yaml").get("by")
    whole = whole._replace(by=by if by is not None else whole.by)
    if whole.by is not None:
        refuse_score(whole.by)
    training = Training(whole, folder, on_progress, allow_versions)
    validated = training.check(whole.by)
    by = whole.by or f"{metrics.VALIDATION if validated else ''}accuracy_micro"
    stop = threading.Event()
    with training.recorded("sweep.yaml", whole.text()), loop.interruptible(stop, folder is not None):
        shared.train(training, workers, stop)
    found = Sweep(whole.points, training.ordered(), by, training.compilations)
    if training.files is not None:
        write(training.files, found)
    if all("failed" in one.summary for one in found.histories):
        raise TrainingError(f"every point failed; the first: {found.histories[0].summary['failed']}")
    return found


def write(files: Folder, sweep: Sweep) -> None:
    """Write sweep.json and sweep.csv: every point's values and last scores."""
    rows = sweep.rows()
    files.put_json(
        "sweep.json", {"by": sweep.by, "chosen": sweep.chosen, "compilations": sweep.compilations, "points": rows}
    )
    keys = list(dict.fromkeys(key for row in rows for key in row["values"]))
    scores = list(dict.fromkeys(score for one in sweep.histories for score in one.scores))
    columns = [f"{score}_{part}" for score in scores for part in ("mean", "std")]
    text = io.StringIO()
    table = csv.DictWriter(text, ["name", "best", *keys, *columns, "seconds", "failed"])
    table.writeheader()
    for row in rows:
        cells = {f"{score}_{part}": row[score][part] for score in scores if score in row for part in ("mean", "std")}
        values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in row["values"].items()}
        table.writerow({key: row[key] for key in ("name", "best", "seconds", "failed")} | values | cells)
    files.put_text("sweep.csv", text.getvalue())
    files.settle()
