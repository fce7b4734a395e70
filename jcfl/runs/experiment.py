"""A run from its configuration to its history: it is planned, trained and written."""

import functools
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import jax
from pydantic import Field
from rich.filesize import decimal

from jcfl.errors import (
    Damaged,
    InputError,
    Notice,
    TrainingError,
    Unregistered,
    available_memory,
)
from jcfl.nested import flat
from jcfl.registry import keywords_checked
from jcfl.results import Folder, History, checkpoints
from jcfl.results.files import place_of
from jcfl.results.writer import but_holds, refuse_taken
from jcfl.runs import automatic, bars, devices, disk, fitted, hosts, loop, programs, trackers, tuning
from jcfl.runs.compiled import begun, compiled_ahead, compiled_to_fit, replan
from jcfl.runs.config import Config, read
from jcfl.runs.plan import Plan, config_and_objects, federation_of, planned, smaller, state_bytes
from jcfl.runs.predicting import Predictor
from jcfl.runs.provenance import differences, fingerprint, settings
from jcfl.runs.replicas import OnProgress, train
from jcfl.runs.representation import representation
from jcfl.runs.run import Clients, Run
from jcfl.types import Federation
from jcfl.types.target import target


@keywords_checked
def run(
    what: Federation | Config | Mapping[str, Any] | str | Path,
    *,
    method: Any = None,
    model: Any = None,
    train: Any = None,
    rounds: int | None = None,
    participation: float | None = None,
    evaluate_every: int | None = None,
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None,
    seeds: int | None = None,
    compare: Sequence[Any] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    allow_versions: bool = False,
    on_progress: OnProgress | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> History:
    """Train a method on a federation and return its metrics.

    Args:
        what: a federation, or a configuration: a mapping with the keywords below as keys, a YAML file, or a preset's
            name.
        method: a registered name, a mapping `{"name": …, option: value}`, a `Method`, or a function of the run's
            `Context` that returns a `Method` or an `Algorithm`.
        model: a registered name, a mapping, a Flax module, or a `Task`.
        train: a mapping of the local trainer's options (lr, epochs or steps, batch_size, …), or a trainer; by default
            SGD with lr 0.1 and one step in a round, on all of a client's examples.
        rounds: rounds of training.
        participation: the share of clients that are sampled in each round, in (0, 1].
        evaluate_every: rounds between evaluations; the last round is always evaluated.
        seed: the first seed of training: of initial models, sampled clients and batches. `scenario.seed` draws the
            federation; it is the same number unless given.
        seeds: the number of seeds: seed, seed + 1, …
        compare: further methods to compare with the main one, each as `method` takes it.
        out: the run's folder; without it nothing is written.
        resume: whether to continue the run in `out`. It trains as it began, to the same bits: `chunk`, `budget` and
            `autotune` have no effect then, and seeds stay side by side or one after another. On another kind of device,
            or with another number of `devices`, its bits differ.
        allow_versions: whether to continue also with other versions of jcfl, JAX or NumPy.
        on_progress: called with a `Progress` about once a second.
        progress: whether a bar is shown, or lines where stderr is neither a terminal nor a notebook; by default a bar
            in notebooks and on terminals, unless `on_progress` is given.
        **settings: the configuration's other keys.

    Returns:
        The history of the first method; its `others` has those of `compare`, by name. `history["accuracy_micro"]` is
        [seeds, evaluations], a share in [0, 1]; NaN at evaluations that a seed has not reached. With `compare`, a
        method that diverged has the reason as `failed` in its `summary`.

    Raises:
        InputError: an argument is wrong; nothing has been trained or written.
        TrainingError: training cannot go on: a model or a description is not finite, or clusters have no room. With
            `compare`, only if this holds for every method.
    """
    given = {"method": method, "model": model, "train": train, "rounds": rounds, "participation": participation}
    given |= {"evaluate_every": evaluate_every, "seed": seed, "seeds": seeds, "compare": compare, **settings}
    config, objects = config_and_objects(what, {key: value for key, value in given.items() if value is not None})
    folder = place_of(out, resume)
    watched = bars.shown(progress, on_progress, list(config.methods), config.seeds)
    if folder is None:
        plan = planned(config, objects)
        with watched as watch:
            return execute(plan, None, watch)
    config = resumed(folder, config) if resume else config.model_copy(update={"made_by": {}, "decided": None})
    if not resume:
        refuse_taken(folder)  # before the data are read and trials choose what they choose
    plan = planned(config, objects, resumes=resume)
    with devices.claimed(folder, new=not resume), watched as watch:
        return execute(plan, folder, watch, allow_versions=allow_versions)


def federation(what: Federation | Config | Mapping[str, Any] | str | Path, **settings: Any) -> Federation:
    """The federation that `jcfl.run` trains on when it is called with the same configuration, before any attack.

    >>> import jcfl
    >>> jcfl.federation("quickstart").groups.shape
    (100,)

    Args:
        what: a configuration, as `jcfl.run` takes it, but a method is not needed; a federation is returned as it is.
        **settings: keys of a configuration, such as data, scenario and data_dir, which replace those of `what`.

    Raises:
        InputError: an argument is wrong, or the data are missing or damaged.
    """
    config, objects = config_and_objects(what, {"method": "majority"} | settings)  # which it does not depend on
    return federation_of(config) if objects.federation is None else objects.federation


def resumed(folder: Path, config: Config | None = None) -> Config:
    """The configuration with which the run in a folder goes on.

    Raises:
        InputError: the folder holds no run, or one of another configuration; only `rounds` may differ, and what does
            not change results; of that, `seeds_in_one` may not.
    """
    stored = configuration(folder)
    stored = stored.model_copy(update={"tuned": stored.tuned or {}})  # not chosen anew in the middle of a run
    if config is None:
        return stored
    config = automatic.as_stored(config, stored)
    changed = differences(settings(stored.model_dump()), settings(config.model_dump()))
    if changed:
        raise InputError(f"a resumed run keeps its configuration; {'; '.join(changed)} (rounds may change)")
    refuse_ignored(stored, config)
    moved = {key: getattr(config, key) for key in ("rounds", "track", "checkpoint_every")}
    moved["data_dir"] = config.data_dir or stored.data_dir
    places = {key: getattr(config, key) for key in ("examples", "client_states", "devices")}  # the machine may differ
    moved |= {key: place for key, place in places.items() if place is not None}
    if config.devices not in (None, stored.devices):
        told = (
            f"devices={config.devices}: the run began with {stored.devices or 'as many as it chose'}, and its results"
        )
        warnings.warn(f"{told} agree with those of a whole run to rounding only", Notice, stacklevel=2)
        moved["tuned"] = {
            title: one.model_copy(update={"devices": None}) for title, one in (stored.tuned or {}).items()
        }
    return stored.model_copy(update=moved)


def refuse_ignored(stored: Config, config: Config) -> None:
    """Refuse, or else name, what is given and cannot be taken over by a run that goes on; None is not given.

    Raises:
        InputError: the seeds would have to be trained in another order than that of their checkpoints.
    """
    given, began = config.seeds_in_one, "side by side" if stored.seeds_in_one else "one after another"
    if None not in (given, stored.seeds_in_one) and given != stored.seeds_in_one:
        told = f"seeds_in_one was {stored.seeds_in_one}, got {given}: the seeds began {began} and stay so"
        raise InputError(f"{told}, because of their checkpoints; leave it out, or begin in another folder")
    if stored.seeds_in_one and config.client_states == "host":
        told = "client_states: host keeps one run's states, but the seeds of this run began side by side and stay so"
        raise InputError(f"{told}; leave it out, or begin with seeds_in_one: false in another folder")
    for key in ("chunk", "budget"):
        value, kept = getattr(config, key), getattr(stored, key)
        if value is not None and kept is not None and value < kept:  # a run lowers, but never raises, what was given
            told = f"{key}={value} has no effect: the run goes on with {key}={kept}, to the same bits"
            warnings.warn(told, Notice, stacklevel=3)


def configuration(folder: Path) -> Config:
    """The configuration in a run's folder; where that is damaged or gone, the one in a checkpoint.

    Raises:
        InputError: the folder holds no run; its configuration was changed; or it is damaged and there is no checkpoint.
    """
    home, file, kept = Folder(folder), folder / "config.yaml", saved(folder)
    if kept is None and not file.exists():
        raise InputError(f"{folder} holds no run to resume: there is no config.yaml in it{but_holds(folder)}")
    try:
        home.content("config.yaml")
    except Damaged as error:
        if kept is None:
            raise
        refuse_edited(file, kept)
        warnings.warn(f"{error}; the configuration in a checkpoint is taken", Notice, stacklevel=2)
        return read(kept)
    try:
        return read(file)
    except InputError as error:
        call = f"jcfl.run({str(file)!r}, out={str(folder)!r}, resume=True)"
        hint = error.hint("the run", call) if isinstance(error, Unregistered) else ""
        raise InputError(f"{file}: {error}{hint}") from None


def saved(folder: Path) -> dict[str, Any] | None:
    """The configuration in the checkpoints of a run, or in those of a comparison's runs; None where there are none."""
    own = checkpoints.made(Folder(folder))
    if own is not None:
        return own["config"]
    parts = [checkpoints.made(Folder(place)) for place in folder.glob("runs/*")]
    found = [part["whole"] for part in parts if part is not None and part["whole"] is not None]
    return max(found, key=lambda whole: whole["rounds"], default=None)


def refuse_edited(file: Path, kept: Mapping[str, Any]) -> None:
    """Refuse a configuration that can be read and is not the one that a run began with."""
    try:
        edited = read(file).model_dump()
    except InputError:
        return
    changed = differences(*(flat({**one, "made_by": None, "fitted": None}) for one in (kept, edited)))
    if changed:
        raise InputError(
            f"{file} was changed after the run had written it: {'; '.join(changed)}; undo that, or delete the file to "
            "go on by the configuration in the checkpoint"
        )


def execute(
    plan: Plan,
    out: Path | None,
    on_progress: OnProgress | None = None,
    keep_state: bool = True,
    allow_versions: bool = False,
    stop: threading.Event | None = None,
) -> History:
    """Train every method of a plan, and write what is to be written.

    Args:
        plan: what to train.
        out: the run's folder, which this process has claimed.
        on_progress: called about once a second.
        keep_state: whether the main method's history has its final state.
        allow_versions: whether to go on with what other versions have made.
        stop: is set by Ctrl-C or SIGTERM, also if that comes too late to end this run.

    Raises:
        InputError: a tracker cannot be had, what the folder holds is another run's, or the disk has no room for the
            checkpoints; nothing is written. Or the disk has become full.
        TrainingError: training of every method could not go on; what was measured until then is written.
        Interrupted: Ctrl-C or SIGTERM; what is needed to go on is written.

    Returns:
        the main method's history; its `others` are those of the other methods. A method of several that diverged has
        the reason as `failed` in its summary.
    """
    disk.check(plan.needs, out)
    plan = tuning.tuned(plan)
    several = len(plan.config.methods) > 1
    here = plan._replace(federation=jax.device_get(plan.federation)) if hosts.several() else plan
    clients = functools.cache(lambda: representation(here))  # the same for all methods
    stop = threading.Event() if stop is None else stop
    runs = separate(plan, out, fingerprint(here.federation) if out is not None else "")
    with ExitStack() as stack:
        for run in runs:
            if several and run.folder is not None:
                stack.enter_context(devices.claimed(run.folder.path, new=False))
            run.look(allow_versions)
        histories = {run.name: run.finished for run in runs if run.finished is not None}
        if keep_state and runs[0].finished is not None:
            told = (
                f"{runs[0].name}: history.state is None, because the run is complete and no checkpoint has its models"
            )
            warnings.warn(told, Notice, stacklevel=2)
        whole = devices.folder(out) if out is not None and several else None
        if whole is not None:
            whole.renew()
            if histories:  # of an earlier process
                whole.begin(plan.config.text(), measured=False)
                write_comparison(whole, runs, histories)
        stack.enter_context(loop.interruptible(stop, out is not None))
        for run, compiling in compiled_ahead([run for run in runs if run.finished is None]):
            keep = keep_state and run is runs[0] and holds_states(run)
            compiled = compiled_to_fit(run, compiling)  # first, because a refusal should leave no file
            if whole is not None and not histories:
                whole.begin(plan.config.text(), measured=False)
            histories[run.name] = alone(run, compiled, clients, on_progress or (lambda progress: None), stop, keep)
            if whole is not None:
                write_comparison(whole, runs, histories)
    failures = [run.failed for run in runs if run.failed is not None]
    if len(failures) == len(runs):
        raise failures[0]
    main, *rest = (histories[run.name] for run in runs)
    main.others = {other.name: other for other in rest}
    main.folder = out
    if main.state is not None:
        main.predictor = Predictor(plan.config, plan.objects)
    return main


def write_comparison(whole: Folder, runs: Sequence[Run], histories: Mapping[str, History]) -> None:
    """Write the summaries of the runs that are complete, in the order of the runs."""
    whole.put_json("comparison.json", {run.name: histories[run.name].summary for run in runs if run.name in histories})
    whole.settle()


def separate(plan: Plan, out: Path | None, fingerprint: str) -> list[Run]:
    """The runs of a plan, one for each method, each with a folder of its own."""
    found, several = [], len(plan.config.methods) > 1
    on = functools.cache(lambda count: devices.on_devices(plan.federation, count))
    for title in plan.config.methods:
        one = tuning.of_method(plan, title)
        count = one.context.resources.devices
        one = one._replace(federation=on(count)) if count != plan.context.resources.devices else one
        place = out and (out / "runs" / title if several else out)
        one = no_larger(one, place) if several and place is not None else one
        tracking = trackers.tracking(plan.config.track, title, place)
        folder = devices.folder(place) if place is not None else None
        whole = plan.config if several else None
        (algorithm,) = one.algorithms.values()
        found.append(Run(title, one, algorithm, folder, tracking, None, fingerprint, whole))
    return found


def no_larger(plan: Plan, place: Path) -> Plan:
    """The plan of a comparison's run, with no more memory than it has left itself where an earlier process ran out.

    The configuration of the comparison, from which this one is made, holds what all its methods began with.
    """
    try:
        room = fitted.room_of(read(place / "config.yaml"))
    except InputError:  # there is none yet, or it is damaged, which is said where the run looks at its files
        return plan
    while room is not None and plan.context.resources.room > room:
        less = smaller(plan)
        if less is None:
            break
        plan = less
    return plan


def alone(
    run: Run,
    compiled: programs.Programs,
    clients: Clients,
    on_progress: OnProgress,
    stop: threading.Event,
    keep: bool,
) -> History:
    """One run trained by itself, a batch of seeds after another; with fewer clients at a time if memory runs out.

    A run that diverged has its error in `failed`, and what was measured until then is written.
    """
    run.begin(clients)
    with run.tracking:
        try:
            while True:
                try:
                    train([run], compiled, on_progress, stop, keep)
                    return run.write_results()
                except jax.errors.JaxRuntimeError as error:
                    replan(run, error)
                    compiled = compiled_to_fit(run, begun(run))
                    run.write_config()
        except TrainingError:  # which is in `run.failed`
            return run.write_results()


def holds_states(run: Run) -> bool:
    """Whether the host can hold the final states of all seeds, also while they are joined; a notice says if it cannot.

    A CPU has the state of a single seed already.
    """
    seeds, room = run.plan.config.seeds, available_memory()
    copies = 2 * seeds if seeds > 1 else int(not target().is_cpu)
    if copies * run.plan.needs.checkpoint <= room:  # a checkpoint holds at least one whole state
        return True
    size = state_bytes(run.algorithm, run.plan.federation)
    need = copies * (size.whole + (size.rows if seeds > 1 else 0))  # one seed's rows stay where they are
    if need <= room:
        return True
    told = f"{run.name}: history.state will be None, because the final states of {seeds} seeds take {decimal(need)} of "
    warnings.warn(f"{told}memory while they are put together, and {decimal(room)} are free", Notice, stacklevel=2)
    return False
