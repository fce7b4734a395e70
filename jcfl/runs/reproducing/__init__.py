"""Papers' tables, run and judged: what is printed beside what is found here, with a verdict on every claim."""

import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.filesize import decimal

from jcfl.errors import Absent, Diverged, InputError, Interrupted, Notice, TooLarge, TrainingError, unknown
from jcfl.results import History, checkpoints, finished_history
from jcfl.runs import automatic, devices, disk, experiment, loop
from jcfl.runs.config import Config
from jcfl.runs.loop import Progress
from jcfl.runs.plan import Objects, Plan, federation_of, planned
from jcfl.runs.replicas import OnProgress
from jcfl.runs.reproducing import beside, published
from jcfl.runs.reproducing.judging import Judgement
from jcfl.runs.reproducing.outcomes import Runs, outcome
from jcfl.runs.reproducing.reading import find
from jcfl.runs.reproducing.tables import Budget, Key, Table, title
from jcfl.runs.sweeping.alike import key_text
from jcfl.runs.sweeping.groups import ATTACKED
from jcfl.runs.workers import Workers, share_out
from jcfl.types import Federation

Found = dict[Key, Runs | Judgement]
"""The runs of a table by federation and method, or why there are none."""


class Settings(NamedTuple):
    """How a table is run here."""

    runs: Path  # the folder of the runs, which several tables share
    data_dir: Path | None = None
    made_by: Mapping[str, str] = {}  # the command
    allow_versions: bool = False
    on_progress: OnProgress = lambda progress: None
    workers: Workers | None = None  # who trains; None: this process
    add: Collection[Path] = ()  # files with results that were written before
    stop: threading.Event | None = None  # is set when no other run is to begin
    seeds: Collection[int] = ()  # the only ones of the budget to train, each in a run of its own; all by default


def reproduce(name: str, budget: str, only: Collection[str], settings: Settings) -> dict[str, Any]:
    """Run what a budget runs of a table, unless it has been run already, and judge every claim.

    Args:
        name: the table's, or a file with one.
        budget: laptop, gpu or full.
        only: the rows and columns to run, those of baselines among them: where there are both, the cells where they
            meet; all if there are none. Of the others, what has been run already is shown.
        settings: how.

    Raises:
        InputError: an unknown table, budget, row, column or seed; a folder whose runs have other configurations; a
            file of `settings.add` that has no results of this table.
        Interrupted: Ctrl-C or SIGTERM; the same call goes on.

    Returns:
        all that is known of the table, as JSON has it, see `jcfl.runs.reproducing.outcomes.outcome`.
    """
    table = find(name)
    chosen = table.budget(budget)
    wanted = set(wanted_keys(table, chosen, only))
    earlier = published.read(settings.add, table, budget, chosen)
    found: Found = {}
    configs = {key: table.config(key, chosen, settings.data_dir) for key in every_key(table)}  # all checked first
    for key, config in configs.items():
        if key in wanted and not table.left_out(key, chosen):
            refuse_seeds(f"{table.name}, {key[0]} with budget {budget}", config, settings.seeds)
    for key in configs:
        if table.left_out(key, chosen):
            found[key] = Judgement("not run", f"left out by the budget {budget}")
        elif key not in wanted:
            found[key] = Judgement("not run", "left out by --only")
    folder = settings.runs / runs_folder(table, budget)
    settings = settings._replace(stop=threading.Event())
    if settings.workers is not None:
        found |= by_workers({key: one for key, one in configs.items() if key not in found}, folder, settings)
    names = dict.fromkeys(federation for federation, _ in configs)
    together = {name: {key: config for key, config in configs.items() if key[0] == name} for name in names}
    for name, mine in together.items():
        found |= on_one_federation(mine, found, folder / title(name), settings)
    for name, mine in together.items():  # other processes may have trained seeds of these runs meanwhile
        lacking = {key: config for key, config in mine.items() if lacks_seeds(found.get(key, ()), config)}
        left_out: Found = dict.fromkeys(lacking, Judgement("not run"))
        found |= on_one_federation(lacking, left_out, folder / title(name), settings)
        tell_of_other_data({key: found[key] for key in mine if key in found}, mine, folder / title(name))
    return outcome(table, budget, chosen, found, earlier)


def runs_folder(table: Table, budget: str) -> str:
    """The name of the folder of a table's runs: tables of a file share it, but not where a budget changes settings."""
    return f"{table.name if table.budget(budget).set else table.stem}-{budget}"


def wanted_keys(table: Table, budget: Budget, only: Collection[str]) -> Iterator[Key]:
    """The runs of some rows and columns, all if none are named, and the baselines on the federations of these runs.

    A baseline that is named itself is run on every federation of which the budget runs anything.

    Raises:
        InputError: an unknown row or column.
    """
    lines, numbers = beside.lines(table), table.given.printed
    rows = {*numbers.rows, *(line.method for line in lines if line.kind == "row")}.intersection(only)
    columns = {*numbers.columns, *(line.method for line in lines if line.kind == "column")}.intersection(only)
    for one in set(only) - rows - columns:
        known = dict.fromkeys([*numbers.rows, *numbers.columns, *(line.method for line in lines)])
        raise unknown(f"row or column of {table.name}", one, known)
    meet = lambda row, column: (not rows or row in rows) and (not columns or column in columns)
    printed = [(key, meet(*cell)) for cell, _ in table.cells() for key in table.keys(cell)]
    yield from (key for key, is_wanted in printed if is_wanted)
    possible = {key[0] for key, _ in printed if not table.left_out(key, budget)}
    trained = {key[0] for key, is_wanted in printed if is_wanted and not table.left_out(key, budget)}
    for cell, key in (one for line in lines for one in line.keys(table)):
        if key[0] in trained or (key[1] in only and key[0] in possible and meet(*cell)):
            yield key


def every_key(table: Table) -> list[Key]:
    """The runs behind a table, each once, those on a federation together; baselines first, which take least time."""
    printed = [key for cell, _ in table.cells() for key in table.keys(cell)]
    keys = dict.fromkeys([*(key for line in beside.lines(table) for _, key in line.keys(table)), *printed])
    order = list(dict.fromkeys(federation for federation, _ in printed))
    return sorted(keys, key=lambda key: order.index(key[0]))


def seeds_of(config: Config) -> range:
    """The seeds of a configuration."""
    return range(config.seed, config.seed + config.seeds)


def refuse_seeds(what: str, config: Config, seeds: Collection[int]) -> None:
    """Refuse seeds that a run does not have, and some of those that have values in common.

    Args:
        what: the run's federation, in words.
        config: the configuration with all seeds.
        seeds: those that are wanted; all if there are none.

    Raises:
        InputError: a seed is not the run's; or there is an option that is `auto`, which the first seed decides.
    """
    for seed in sorted({*seeds}.difference(seeds_of(config))):
        raise InputError(f"seed {seed}: {what} has the seeds {', '.join(map(str, seeds_of(config)))}")
    if seeds and automatic.is_open(config):
        told = f"{what}: the first seed decides for all seeds what auto is in {config.method.title}"
        raise InputError(f"{told}; give a value, or train all seeds together")


class SeedRun(NamedTuple):
    """A run to train: all seeds of a federation and a method side by side, or one of them."""

    name: str  # for progress
    place: Path  # its folder
    config: Config
    is_wanted: bool = True  # whether it is trained if it is not complete


def seed_runs(config: Config, method: str, folder: Path, seeds: Collection[int]) -> list[SeedRun]:
    """The runs that a federation and a method are trained in: one of all seeds, or one for each.

    They are trained seed by seed if the user has asked for some seeds, now or before, unless all have been run. The
    federation is the same in all of them, because its seed is that of the scenario.

    Args:
        config: the configuration with all seeds.
        method: the method's name.
        folder: the federation's.
        seeds: those that are wanted; all if there are none.
    """
    name = f"{folder.name}, {title(method)}"
    whole = SeedRun(name, folder / "runs" / title(method), config)
    apart = [
        SeedRun(
            f"{name}, seed {seed}",
            folder / f"seed-{seed}" / "runs" / title(method),
            config.model_copy(update={"seed": seed, "seeds": 1}),
            not seeds or seed in seeds,
        )
        for seed in seeds_of(config)
    ]
    by_seed = config.seeds > 1 and (seeds or any(begun(one.place) for one in apart))
    if not by_seed or finished(whole.place, config) is not None:
        return [whole]
    if begun(whole.place):
        told = f"{whole.place} has a run of all seeds side by side, which was stopped and does not go on, because seeds"
        again = f"to go on with it, delete {folder / 'seed-*' / 'runs' / title(method)} and do not use --seed"
        warnings.warn(f"{told} are trained one by one; delete it, or, {again}", Notice, stacklevel=2)
    return apart


def on_one_federation(configs: Mapping[Key, Config], left_out: Found, folder: Path, settings: Settings) -> Found:
    """The runs on one federation, which is made once, and only if a run is not complete yet."""
    made = cache(lambda: jax.device_put(federation_of(next(iter(configs.values())))))
    found: Found = {}
    for key, config in configs.items():
        one = runs_of(key, config, made, left_out.get(key), folder, settings)
        found |= {} if one is None else {key: one}
    return found


def runs_of(
    key: Key, config: Config, made: Callable[[], Federation], left_out: Any, folder: Path, settings: Settings
) -> Runs | Judgement | None:
    """The runs of a federation and a method; why there are none; or None where they are left out.

    A run that failed speaks for all seeds. One that cannot be begun here leaves those of other seeds as they are.

    Args:
        key: the federation's and the method's name.
        config: the configuration with all seeds.
        made: makes the federation.
        left_out: why nothing is trained, if that is so.
        folder: the federation's.
        settings: how tables are run here.
    """
    runs: list[History] = []
    why = left_out
    for one in seed_runs(config, key[1], folder, settings.seeds):
        run = finished(one.place, one.config)
        if run is None and why is None and one.is_wanted:
            if settings.stop is not None and settings.stop.is_set():  # too late to end the run before
                raise Interrupted
            run = attempted(made, one.config, one.place, under_name(settings, one.name))
            if isinstance(run, Judgement) and finished(one.place, one.config) is None:
                run, why = None, run
        if isinstance(run, Judgement):
            return run
        runs += [] if run is None else [run]
    if runs and why is not None and why.verdict == "cannot be run here":
        told = f"{', '.join(key)}: seeds are missing, which {why.verdict}: {why.why}"
        warnings.warn(told, Notice, stacklevel=2)
    return tuple(runs) or (None if why is left_out else why)


def lacks_seeds(found: Runs | Judgement, config: Config) -> bool:
    """Whether some seeds of a federation and a method have no result yet."""
    if isinstance(found, Judgement):
        return found.verdict == "not run"
    return sum(len(run.seeds) for run in found) < config.seeds


def under_name(settings: Settings, name: str) -> Settings:
    """The settings of a run whose progress is told under a name."""
    return settings._replace(on_progress=lambda progress: settings.on_progress(progress._replace(name=name)))


def tell_of_other_data(found: Found, configs: Mapping[Key, Config], folder: Path) -> None:
    """Say in a notice which runs had other data than the first one on the same federation.

    Files of the data, or the code that divides them, may have changed between two commands.
    """
    first: dict[str, tuple[str, str]] = {}
    runs = [(key, run) for key, one in found.items() if not isinstance(one, Judgement) for run in one]
    for key, run in ((key, run) for key, run in runs if "federation" in run.summary):
        name, fingerprint = repr(key[1]), run.summary["federation"]
        if len(run.seeds) < configs[key].seeds:
            name += f" with seed {', '.join(map(str, run.seeds))}"
        other, expected = first.setdefault(key_text(configs[key], ATTACKED), (name, fingerprint))
        if fingerprint != expected:
            told = f"{folder}: {name} has other data than {other}, so their numbers cannot be compared"
            warnings.warn(f"{told}; delete the older run and repeat the command", Notice, stacklevel=2)


def by_workers(configs: Mapping[Key, Config], folder: Path, settings: Settings) -> Found:
    """Have workers train the runs that are not complete; returns why there is none of those that cannot be trained."""
    found: Found = {}
    apart = settings._replace(on_progress=lambda progress: None, workers=None, stop=None)
    left: dict[str, Key] = {}
    tasks: dict[str, Callable[[], Judgement | None]] = {}
    for key, config in configs.items():
        there = [
            (one, finished(one.place, one.config))
            for one in seed_runs(config, key[1], folder / title(key[0]), settings.seeds)
        ]
        if any(isinstance(run, Judgement) for _, run in there):  # a seed has failed, which speaks for all seeds
            continue
        for one in (one for one, run in there if run is None and one.is_wanted):
            name = ", ".join(key) + (f", seed {one.config.seed}" if one.config.seeds < config.seeds else "")
            left[name], tasks[name] = key, partial(by_worker, one.config, one.place.resolve(), apart)
    done = 0

    def report(name: str, why: Judgement | None) -> None:
        nonlocal done
        done += 1
        found.update({} if why is None else {left[name]: why})
        settings.on_progress(Progress(folder.name, 0, 0, done, len(tasks), {}))

    stop = threading.Event()
    with loop.interruptible(stop, True):
        share_out(tasks, settings.workers or Workers(1), folder, stop, report)
    return found


def by_worker(config: Config, place: Path, settings: Settings) -> Judgement | None:
    """A run trained in a worker; why there is none, if it cannot be."""
    devices.split_cores()
    found = attempted(lambda: jax.device_put(federation_of(config)), config, place, settings)
    return found if isinstance(found, Judgement) else None


def begun(place: Path) -> bool:
    """Whether a folder holds a run."""
    return (place / "config.yaml").exists() or (place / "checkpoints").exists()


def finished(place: Path, config: Config) -> History | Judgement | None:
    """The run that a folder holds, if it is complete; its checkpoints are deleted, see `attempted`.

    Raises:
        InputError: the run has another configuration.
    """
    if not begun(place):
        return None
    try:
        experiment.resumed(place, config)
    except InputError as error:
        raise InputError(f"{place}: {error}; move that folder away, or choose another --out") from None
    found = finished_history(place, config.rounds)
    if found is None:
        return None
    checkpoints.delete(devices.folder(place))  # there are some if the process was killed before it deleted them
    return ended_early(found.summary["failed"]) if "failed" in found.summary else found


def attempted(made: Callable[[], Federation], config: Config, place: Path, settings: Settings) -> History | Judgement:
    """A run trained to its end, or why it cannot be.

    Its checkpoints are deleted then: those of thousands of models would fill the disk before a table is complete, and
    its numbers are in the other files.
    """
    is_new = not begun(place)
    try:
        config = config.model_copy(update={"made_by": dict(settings.made_by)})
        config = config if is_new else experiment.resumed(place, config)
        plan = with_room(planned(config, Objects(federation=made()), resumes=not is_new), place)
        with devices.claimed(place, new=is_new):
            versions = settings.allow_versions
            watch, stop = settings.on_progress, settings.stop
            run = experiment.execute(plan, place, watch, keep_state=False, allow_versions=versions, stop=stop)
            checkpoints.delete(devices.folder(place))
            return run
    except Absent as error:
        warnings.warn(str(error), Notice, stacklevel=2)
        pieces = config.data if isinstance(config.data, tuple) else (config.data,)
        return Judgement("cannot be run here", f"data needed: {', '.join(piece.name for piece in pieces)}")
    except TooLarge as error:
        return Judgement("cannot be run here", f"memory: {error}")
    except TrainingError as error:
        return ended_early(str(error))


def with_room(plan: Plan, place: Path) -> Plan:
    """The plan, without checkpoints where the disk has no room for them; a table's run needs none to be complete."""
    need, room = plan.needs.checkpoints, disk.room_for_checkpoints(place)
    if need <= room:
        return plan
    told = f"{place} is trained without checkpoints, because they would take {decimal(need)}, and {decimal(room)} are"
    warnings.warn(f"{told} free; if it is stopped, it begins again", Notice, stacklevel=2)
    config = plan.config.model_copy(update={"checkpoint_every": "never"})
    return plan._replace(config=config, needs=plan.needs._replace(checkpoints=0))


def ended_early(why: str) -> Judgement:
    """What is said of a run that did not come to its end, by the text of its error, which its summary has too.

    Only divergence speaks against the paper. Other errors, such as too few slots for clusters, are of our settings.
    """
    return Judgement("not reproduced" if why.startswith(Diverged.BEGINNING) else "cannot be run here", why)
