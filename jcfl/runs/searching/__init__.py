"""Tuning: the options of one or several methods, each by the same number of trials, chosen on validation examples."""

import json
import math
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from jcfl import metrics
from jcfl.errors import InputError, TrainingError, argument, refuse_beyond_memory, unknown
from jcfl.nested import flat, plain
from jcfl.registry import keywords_checked
from jcfl.results import Folder, claimed, json_text
from jcfl.results.files import destination
from jcfl.results.history import numbers
from jcfl.results.writer import refuse_taken
from jcfl.runs import bars, loop, sweeping
from jcfl.runs.config import FILLED_IN, Config
from jcfl.runs.loop import Progress
from jcfl.runs.objects import Objects
from jcfl.runs.plan import config_and_objects
from jcfl.runs.provenance import differences
from jcfl.runs.replicas import OnProgress
from jcfl.runs.searching.samplers import AT_ONCE, SAMPLERS, Sampler, steps_and_points, with_optuna
from jcfl.runs.searching.space import Axis, Range, Space, spaces
from jcfl.runs.searching.trials import Rung, Trial, better, climbed, rounds_of, rungs
from jcfl.runs.sections import Chosen
from jcfl.runs.sweeping.groups import ASK, Training
from jcfl.runs.sweeping.points import POINT, Point, Points, points, whole_sections
from jcfl.runs.workers import Workers
from jcfl.runs.workers import workers as parsed_workers
from jcfl.types import Federation

TRIALS, BATCH = 24, 8
"""How many trials every method has, and how many of them train side by side, unless the user says otherwise."""


class Search(NamedTuple):
    """What is searched, and how."""

    what: Any
    given: Mapping[str, Any]
    config: Config
    spaces: dict[str, dict[str, Axis]]
    by: str
    trials: int
    batch: int
    sampler: str
    halving: int = 1
    workers: Workers | None = None
    objects: Objects = Objects()  # those that the user passed in Python

    @property
    def rungs(self) -> list[Rung]:
        """The rounds after which trials are compared, and how many of each method come so far."""
        return rungs(self.config, self.trials, self.halving)

    def record(self) -> dict[str, Any]:
        """All that decides which trials there are, as YAML has it; the number of trials may grow."""
        axes = {title: {key: axis._asdict() for key, axis in space.items()} for title, space in self.spaces.items()}
        how = {key: getattr(self, key) for key in ("by", "trials", "batch", "sampler", "halving")}
        return plain({**how, "spaces": axes, "config": self.config.model_dump(exclude={*FILLED_IN, "data_dir"})})


@dataclass(repr=False)
class Tuning:
    """Every trial of every method, in their order."""

    #: the trials of the first method, then those of the next. Each has `method` (its title), `values` by dotted key,
    #: `history`, `rounds`, and its last `score`, the mean over seeds, NaN if it diverged
    trials: list[Trial]
    search: Search  #: what was searched, and how
    compilations: int  #: how often a program was compiled

    def __repr__(self) -> str:
        """The search in a line: how many trials, and the best of each method."""
        best = [f"{title} {trial.score:.4f} by {trial.values}" for title, trial in self.best().items()]
        return f"<Tuning: {'; '.join([f'{len(self.trials)} trials', f'best {self.by}', *best])}>"

    @property
    def by(self) -> str:
        """The name of the score, on validation examples, that decides which trial is best."""
        return self.search.by

    def best(self) -> dict[str, Trial]:
        """The best of each method's trials with the most rounds by its title, of equal ones the first.

        Trials that diverged are left out, and so is a method whose trials all diverged.
        """
        rank = lambda trial: (trial.rounds, better(self.by) * trial.score)
        sound = {
            title: [trial for trial in trials if not math.isnan(trial.score)]
            for title, trials in self.by_method().items()
        }
        return {title: max(trials, key=rank) for title, trials in sound.items() if trials}

    def by_method(self) -> dict[str, list[Trial]]:
        """The trials of each method by its title."""
        found: dict[str, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(trial.method, []).append(trial)
        return found

    def configurations(self) -> dict[str, Config]:
        """The tuned configuration of each method by its title, as `jcfl.run` takes it."""
        found = {}
        for title, trial in self.best().items():
            how = {key: getattr(self.search, key) for key in ("sampler", "trials", "halving", "by")}
            chosen = Chosen(values=trial.checked(), **how)
            update = {"made_by": {}, "tuned": None, "decided": None, "chosen_by": chosen}
            found[title] = trial.point.config.model_copy(update=update)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """The search as a table, with one row for each trial.

        Returns:
            Rows with the keys `method`; `trial`, its number among those of the method, from 1; `run`, the name of its
            run; `best`, whether it is the best of the method; `values`, by dotted key; `score`, NaN if it diverged; and
            `rungs`, its `rounds` and `score` each time that trials were compared.
        """
        best, rows = self.best(), []
        for title, trials in self.by_method().items():
            for number, trial in enumerate(trials, 1):
                about = {"method": title, "trial": number, "run": trial.point.name, "best": trial is best.get(title)}
                scores = [{"rounds": rounds, "score": score} for rounds, score in trial.scores.items()]
                rows.append(about | {"values": trial.checked(), "score": trial.score, "rungs": scores})
        return rows

    def rounds(self) -> dict[str, int]:
        """How many rounds the trials of each method have together, those with the same values once, by its title."""
        found = {title: {trial.point.name: trial.rounds for trial in own} for title, own in self.by_method().items()}
        return {title: sum(rounds.values()) for title, rounds in found.items()}

    def test_scores(self) -> dict[str, dict[str, float]]:
        """The same score on test examples, of the best trial of each method.

        Returns:
            For each method's title the mean and the sample standard deviation of the last values over seeds, as
            `{"mean": …, "std": …}`. The deviation is NaN for one seed.
        """
        name = metrics.bare_name(self.by)
        return {title: numbers(trial.history.summary[name]) for title, trial in self.best().items()}


@keywords_checked
def tune(
    what: Federation | Config | Mapping[str, Any] | str | Path,
    over: Space | None = None,
    *,
    trials: Annotated[int, Field(ge=1)] = TRIALS,
    sampler: str = "random",
    batch: Annotated[int, Field(ge=1)] = BATCH,
    halving: Annotated[int, Field(ge=1)] = 1,
    by: str = f"{metrics.VALIDATION}accuracy_micro",
    out: Path | str | None = None,
    workers: int | str | None = None,
    allow_versions: bool = False,
    on_progress: OnProgress | None = None,
    progress: bool | None = None,
    **given: Any,
) -> Tuning:
    """Search the options of a method, and of those compared with it, with the same number of trials for each.

    A trial is a run of all seeds. It is judged by its score on validation examples after all rounds, or after the
    rounds at which `halving` stops it, and never by scores on test examples.

    Args:
        what: as for `jcfl.run`; it has validation examples, see `scenario.validation`.
        over: what is searched, by dotted key: a list of values, `[{"low": 0.01, "high": 1, "log": True}]` for a range,
            or None for the option's own bounds. By default all options with a default range.
        trials: the largest number of trials of each method.
        sampler: `random`, `grid`, or `tpe`, which needs Optuna.
        batch: for `tpe`, the number of trials that are chosen at a time and train side by side.
        halving: for sampler random or grid, successive halving; needs `out`. With 3, all trials begin with a part of
            the rounds; then the best third continues from its checkpoint to three times as many, until all rounds.
        by: the registered score on validation examples that chooses the best trial.
        out: the search's folder; each trial has an ordinary run's folder under `runs`. A search in this folder
            continues, also with more trials; complete trials are not run again.
        workers: the number of processes that train trials at a time, as for `jcfl.sweep`; needs `out`.
        allow_versions: whether to continue also with other versions of jcfl, JAX or NumPy.
        on_progress: called with a `Progress` about once a second; it has no scores.
        progress: whether a bar is shown, as for `jcfl.run`.
        **given: the configuration's keys, as for `jcfl.run`: method, compare, train, rounds, seeds, …

    Returns:
        All trials. `best()` has the best trial of each method by its title, and `configurations()` the configurations
        with its options, which `jcfl.run` takes.

    Raises:
        InputError: an argument is wrong, there are no validation examples, or the folder holds something else; nothing
            has been trained or written.
        TrainingError: every trial diverged.
    """
    sharing = parsed_workers(workers) if workers is not None else None
    search = searched(what, given, over, by, trials, batch, sampler, halving, sharing)
    if sharing is not None and out is None:
        raise InputError("workers need out=…: a folder in which they all write")
    if halving > 1 and out is None:
        raise InputError("halving needs out=…: a folder for the checkpoints from which trials go on")
    folder = destination(out) if out is not None else None
    with (
        claimed(folder, new=False) if folder is not None else nullcontext(),
        bars.shown(progress, on_progress, ["tune"]) as watch,
    ):
        return carried_out(search, folder, allow_versions, watch)


def searched(
    what: Any,
    given: Mapping[str, Any],
    over: Space | None,
    by: str,
    trials: int,
    batch: int,
    sampler: str,
    halving: int,
    workers: Workers | None,
) -> Search:
    """A search, checked; see `tune`."""
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    if halving > 1 and sampler not in AT_ONCE:
        raise InputError(
            f"{argument('halving')} compares trials that begin together, and {argument('sampler')} {sampler} chooses "
            f"them one batch after another; expected {argument('sampler')} {' or '.join(AT_ONCE)}"
        )
    if sampler == "tpe":
        with_optuna()
    sweeping.refuse_score(by)
    if not by.startswith(metrics.VALIDATION):
        got = argument("by", by)
        raise InputError(f"tune chooses on validation examples alone; got {got}, expected {metrics.VALIDATION}{by}")
    config, objects = config_and_objects(what, dict(given))
    if halving > 1 and config.checkpoint_every == "never":
        needs = f"{argument('halving')} needs checkpoints, from which trials go on"
        raise InputError(f"{needs}; expected seconds for checkpoint_every")
    rungs(config, trials, halving)  # which refuses what cannot be halved
    search = Search(what, given, config, spaces(config, over), by, trials, batch, sampler, halving, workers, objects)
    most = [steps_and_points(axes, trials)[1] if sampler == "grid" else trials for axes in search.spaces.values()]
    refuse_beyond_memory(f"a search of {max(most)} trials", sum(most) * POINT, "give fewer trials")
    return search


def ends(search: Search) -> list[Point]:
    """Points at both ends of each range and at each listed value, one option at a time, the others at their defaults.

    By them a wrong value is found before anything trains.
    """
    found = []
    for title, space in search.spaces.items():
        tried = [{key: axis.at(place)} for key, axis in space.items() for place in axis.places(2)]
        made = (points_of(search, title, [values])[0] for values in tried)  # each by itself: two may be equal
        found += [point._replace(name=f"{title}-{number}-end") for number, point in enumerate(made)]
    return found


def points_of(search: Search, title: str, chosen: list[dict[str, Any]]) -> list[Point]:
    """The points at which one method has some values; an object of the user's replaces its placeholder."""
    thing = search.objects.of_method(list(search.config.methods).index(title)).method
    method = search.config.methods[title].model_dump() if thing is None else thing
    return points(search.what, chosen, **whole_sections({**search.given, "method": method})).points


def carried_out(search: Search, folder: Path | None, allow_versions: bool, on_progress: OnProgress) -> Tuning:
    """A search that has come to its end, in a folder that this process has claimed; see `tune`."""
    # Names that no trial has, because those end in a number: a method's label may be the name of another one's trial.
    usual = [points_of(search, title, [{}])[0]._replace(name=f"{title}-usual") for title in search.spaces]
    whole = Points({}, [*usual, *ends(search)])
    earlier = earlier_record(folder, search) if folder is not None else {}

    def quietly(progress: Progress) -> None:
        """Report without scores, which are on test examples too; trials may have gone further in an earlier process."""
        on_progress(progress._replace(scores={}, total=max(progress.total, progress.done)))

    training = Training(whole, folder, quietly, allow_versions, "tune")
    if not training.check():
        raise InputError(f"tune needs validation examples; {ASK}")
    training.whole = Points({}, [])
    training.total = len(search.spaces) * rounds_of(search.rungs) * search.config.seeds
    samplers = {
        title: SAMPLERS[search.sampler](axes, search.trials, search.batch, search.config.seed)
        for title, axes in search.spaces.items()
    }
    asked = {title: next(sampler) for title, sampler in samplers.items()}  # which refuses what cannot be searched
    stop, found = threading.Event(), []
    text = json_text(earlier | search.record())  # with what was found earlier, which is replaced at the end
    with training.recorded("tune.json", text), loop.interruptible(stop, folder is not None):
        for title, sampler in samplers.items():
            found += trials_of(search, title, sampler, asked[title], training, stop)
    tuning = Tuning(found, search, training.compilations)
    if training.files is not None:
        write(training.files, search, tuning)
    if not tuning.best():
        reason = found[0].history.summary.get("failed", f"its {search.by} is not a number")
        raise TrainingError(f"no trial has a score; the first: {reason}")
    return tuning


def earlier_record(folder: Path, search: Search) -> dict[str, Any]:
    """What the tune.json of a search that goes on has; nothing of one that begins.

    Raises:
        InputError: the folder holds something else than the same search; only its trials may become more.
    """
    if not (folder / "tune.json").exists():
        refuse_taken(folder)
        return {}
    home = Folder(folder)
    home.renew(says=False)
    stored = home.json("tune.json")
    record = search.record()
    known = {key: stored.get(key, Search._field_defaults.get(key)) for key in record}
    old, new = (flat({**one, "trials": None}) for one in (known, record))
    changed = differences(old, new)
    if changed:
        raise InputError(
            f"{folder} holds another search: {'; '.join(changed)}; give the same arguments to go on, or another folder"
        )
    if record["trials"] < stored["trials"]:
        raise InputError(f"{folder} has {stored['trials']} trials; expected at least as many, got {record['trials']}")
    if search.sampler == "grid":
        refuse_moved(folder, search, stored["trials"])
    return stored


def refuse_moved(folder: Path, search: Search, before: int) -> None:
    """Refuse a grid whose first points would not be those that it had with `before` trials."""
    for axes in search.spaces.values():
        old, new = (
            [json.dumps(plain(values)) for values in next(SAMPLERS["grid"](axes, trials, 1, 0))]
            for trials in (before, search.trials)
        )
        if new[: len(old)] != old:
            moved = [key for key, axis in axes.items() if isinstance(axis, Range)]
            raise InputError(
                f"{folder} has a grid of {before} trials, and {', '.join(moved)} would have other values with "
                f"{search.trials}; expected {argument('trials', before)}, or another folder; with "
                f"{argument('sampler')} random a search can go on with more trials"
            )


def trials_of(
    search: Search, title: str, sampler: Sampler, asked: list[dict[str, Any]], training: Training, stop: threading.Event
) -> list[Trial]:
    """All trials of one method, a batch after another, the first of which is `asked`."""
    known: dict[str, Point] = {}
    scores: dict[str, dict[int, float]] = {}
    found: list[Trial] = []
    while True:
        texts = [json.dumps(plain(values)) for values in asked]
        new = {text: values for text, values in zip(texts, asked, strict=True) if text not in known}
        made = points_of(search, title, list(new.values())) if new else []
        made = [point._replace(name=f"{title}-{number:03d}") for number, point in enumerate(made, len(known) + 1)]
        known |= zip(new, made, strict=True)
        scores |= climbed(made, search.rungs, search.halving, search.by, training, search.workers, stop)
        for text, values in zip(texts, asked, strict=True):
            name = known[text].name
            found.append(Trial(title, values, known[text], training.histories[name], scores[name]))
        try:
            asked = sampler.send([better(search.by) * trial.score for trial in found[-len(asked) :]])
        except StopIteration:
            return found


def write(files: Folder, search: Search, tuning: Tuning) -> None:
    """Write tune.json, all trials; and tuned-METHOD.yaml, the configuration of each method's best trial."""
    found = {"results": tuning.rows(), "rounds": tuning.rounds(), "compilations": tuning.compilations}
    files.put_json("tune.json", search.record() | found)
    for title, config in tuning.configurations().items():
        files.put_text(f"tuned-{title}.yaml", config.text())
    files.settle()
