"""A run from its configuration to its history: it is planned, trained and written."""

import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jcfl import results
from jcfl.errors import InputError, TrainingError
from jcfl.nested import plain
from jcfl.results import History
from jcfl.runs import devices, loop, programs, trackers
from jcfl.runs.config import Config, read
from jcfl.runs.plan import Plan, config_and_objects, planned, smaller
from jcfl.runs.replicas import OnProgress, Run, train
from jcfl.runs.representation import representation
from jcfl.types import Federation


def run(
    what: Federation | Config | Mapping[str, Any] | str | Path,
    *,
    method: Any = None,
    model: Any = None,
    train: Any = None,
    rounds: int | None = None,
    participation: float | None = None,
    evaluate_every: int | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    compare: Sequence[Any] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> History:
    """Train a method on a federation and return what was measured.

    Args:
        what: a federation, or a configuration: a mapping, whose values may be those of the keywords below; a YAML file;
            a preset's name.
        method: a registered name, a mapping `{"name": …, option: value}`, a `Method`, or a function of the run's
            `Context` that returns a `Method` or an `Algorithm`.
        model: a registered name, a mapping, a Flax module, or a `Task`.
        train: a mapping of the local trainer's options (lr, epochs or steps, batch_size, …), or a trainer.
        rounds: rounds of training.
        participation: the share of clients asked each round, in (0, 1].
        evaluate_every: rounds between evaluations; the last round is always evaluated.
        seed: the first seed.
        seeds: the number of runs, with seeds seed, seed + 1, …
        compare: further methods to run beside the main one, by name or as mappings.
        out: the run's folder; without it nothing is written.
        resume: whether to go on with the run that `out` holds.
        on_progress: called about once a second.
        **settings: the configuration's other keys.

    Raises:
        InputError: an argument is wrong; nothing has been trained or written.
        TrainingError: a model is no longer finite.
    """
    given = {"method": method, "model": model, "train": train, "rounds": rounds, "participation": participation}
    given |= {"evaluate_every": evaluate_every, "seed": seed, "seeds": seeds, "compare": compare, **settings}
    config, objects = config_and_objects(what, {key: value for key, value in given.items() if value is not None})
    folder = Path(out) if out is not None else None
    if resume and folder is not None:
        config = resumed(folder, config)
    plan = planned(config, objects)
    if folder is not None and not resume:
        refuse_taken(folder)
    devices.wait_for_hosts()  # before the first word is written
    return execute(plan, folder, on_progress)


def resumed(folder: Path, config: Config | None = None) -> Config:
    """The configuration with which the run in a folder goes on.

    Raises:
        InputError: the folder holds no run, or one of another configuration; only `rounds` may differ.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} holds no run to resume: there is no config.yaml in it")
    stored = read(folder / "config.yaml")
    if config is None:
        return stored
    loose = {"rounds", "made_by", "devices", "chunk", "budget", "seeds_in_one", "checkpoint_every", "data_dir", "track"}
    for key in Config.model_fields:
        old, new = plain(getattr(stored, key)), plain(getattr(config, key))
        if key not in loose and old != new:
            raise InputError(f"a resumed run keeps its configuration; {key} was {old}, got {new} (rounds may change)")
    moved = {"rounds": config.rounds, "data_dir": config.data_dir or stored.data_dir, "track": config.track}
    return stored.model_copy(update=moved)


def refuse_taken(folder: Path) -> None:
    """Refuse a folder that holds a run already, or is a file.

    Raises:
        InputError: it does, or is one.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --out expects a folder")
    if any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "runs", "sweep.yaml")):
        raise InputError(f"{folder} already holds a run; go on with it by --resume {folder}, or choose another folder")


def execute(plan: Plan, out: Path | None, on_progress: OnProgress | None = None, keep_state: bool = True) -> History:
    """Train every method of a plan, and write the results into the folder `out` if there is one.

    Returns:
        the main method's history; its `others` are those of the other methods.

    Raises:
        InputError: a tracker cannot be opened; nothing is written.
        TrainingError: a model is no longer finite; the evaluations until then are written.
        Interrupted: Ctrl-C or SIGTERM; what is needed to go on is written.
    """
    methods = plan.config.methods
    several = len(methods) > 1
    places = {title: out and (out / "runs" / title if several else out) for title in methods}
    tracking = {title: trackers.tracking(plan.config.track, title, place) for title, place in places.items()}
    if out is not None and several:
        devices.folder(out).begin(plan.config.text(), measured=False)
    here = plan._replace(federation=jax.device_get(plan.federation)) if devices.has_several_hosts() else plan
    clients = functools.cache(lambda: representation(here))  # the same for all methods
    histories: dict[str, History] = {}
    stop = threading.Event()
    with loop.interruptible(stop, out is not None):
        for title, method in methods.items():
            config = plan.config.model_copy(update={"method": method, "compare": ()}) if several else plan.config
            folder = devices.folder(place) if (place := places[title]) else None
            if folder is not None:
                folder.federation(clients)
            one = Run(title, plan._replace(config=config), plan.algorithms[title], folder, tracking[title])
            histories[title] = train_run(
                one, on_progress or (lambda progress: None), stop, keep_state and not histories
            )
            if out is not None and several and devices.is_first_host():
                table = {name: item.summary for name, item in histories.items()}
                results.write_json(out / "comparison.json", table)
    main, *rest = histories.values()
    main.others = {other.name: other for other in rest}
    main.folder = out
    return main


def train_run(run: Run, on_progress: OnProgress, stop: threading.Event, keep: bool) -> History:
    """Train one run, and return its history. If memory runs out, it goes on with fewer clients at a time."""
    run.begin()
    try:
        while True:
            try:
                train_seeds(run, on_progress, stop, keep)
                return run.write_results()
            except jax.errors.JaxRuntimeError as error:
                less = smaller(run.plan) if "RESOURCE_EXHAUSTED" in str(error) else None
                if less is None:
                    raise
                run.replan(less)
    except TrainingError:
        run.write_results()
        raise
    except KeyboardInterrupt:
        run.tracking.end({})
        raise


def train_seeds(run: Run, on_progress: OnProgress, stop: threading.Event, keep: bool) -> None:
    """Compile a run's programs, and train all its seeds to the last round."""
    plan = run.plan
    lanes = plan.config.seeds if plan.config.seeds_in_one else 1
    compiled = programs.programs(run.algorithm, plan.federation, lanes, plan.context.resources.devices)
    train([run], compiled, on_progress, stop, keep)
