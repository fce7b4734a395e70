"""The training of a sweep's points in groups: points that differ only in numbers share a program, side by side."""

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import metrics, results
from jcfl.core.memory import most_open_files
from jcfl.errors import InputError, Notice, TooLarge, TrainingError
from jcfl.results import Folder, History, finished_history
from jcfl.runs import automatic, trackers
from jcfl.runs.config import Config
from jcfl.runs.environment import made_by
from jcfl.runs.plan import SMALL, Plan, algorithm_by_options, federation_of, planned, smaller, state_bytes
from jcfl.runs.programs import Family, Scalars, family_begun
from jcfl.runs.provenance import fingerprint
from jcfl.runs.replicas import OnProgress, train
from jcfl.runs.representation import representation
from jcfl.runs.run import Run
from jcfl.runs.sections import FITTED
from jcfl.runs.sweeping.alike import (
    FEDERATION,
    as_given,
    differing_options,
    grouped,
    key_text,
    kind,
    real_options,
)
from jcfl.runs.sweeping.points import Point, Points
from jcfl.runs.xla import round_options
from jcfl.types import Federation

ATTACKED = (*FEDERATION, "attack", "seed")
"""The keys on which a plan's federation depends, with its attackers. They are drawn by `seed` if no other is given."""

CLIENTS = (*ATTACKED, "model")
"""The keys of a configuration on which `representation` depends."""

CHOSEN = (*(key for key in FITTED if key != "seeds_in_one"), "fitted")
"""What the points of a group choose for the machine together."""


class Training:
    """Trains the points of a sweep, or of a search, group by group. Points may be added after others have trained."""

    def __init__(
        self, whole: Points, folder: Path | None, on_progress: OnProgress, allow_versions: bool, name: str = "sweep"
    ):
        self.whole, self.folder, self.on_progress = whole, folder, on_progress
        self.allow_versions, self.name = allow_versions, name
        self.files = Folder(folder) if folder is not None else None
        self.histories: dict[str, History] = {}
        self.done = 0  # rounds, over all points and seeds
        self.total = sum(point.config.rounds * point.config.seeds for point in whole.points)
        self.compilations = 0
        self.chosen: dict[str, Config] = {}  # a configuration with what was chosen for the machine, by `as_given`
        self.federation = LastMade()
        self.clients = LastMade()
        self.fingerprint = LastMade()

    def left(self) -> list[Point]:
        """The points that this process has not trained yet."""
        return [point for point in self.whole.points if point.name not in self.histories]

    def check(self, by: str | None = None, is_whole: bool = True) -> bool:
        """Build the method of every point that is left, look at what is there of it, and train nothing.

        Args:
            by: a score that the points have to have.
            is_whole: whether the points have all of their rounds; else notices about their plans, such as those of
                options by round, say nothing about the runs that the user wants, and are left out.

        Returns:
            whether the clients of each of them have validation examples.

        Raises:
            InputError: a point cannot be trained, or has no such score.
        """
        self.decide()
        self.fit()
        validated = True
        for group in grouped(self.left()):
            plan = self.plan(group[0]) if is_whole else self.plan_quietly(group[0])
            validated &= "validation" in plan.federation.splits
            if by is not None and (why := without_score(by, plan)):
                raise InputError(f"{by}: {why}")
            for point in group:
                algorithm_by_options(point.config, plan.context, point.objects)({})
                self.run(point, plan).look(self.allow_versions)
        return validated

    @contextmanager
    def recorded(self, name: str, text: str) -> Iterator[None]:
        """Write the file that says what is trained. If it is refused before a point has begun, nothing stays of it.

        Where an earlier process wrote the file, it then has again what it had. Once a point has begun or gone on, the
        file stays as it is, so that the same points go on after a disk was full.
        """
        if self.files is None:
            yield
            return
        earlier = self.begun()
        self.files.renew()
        before = self.files.text(name) if (self.files.path / name).exists() else None
        self.files.put_text(name, text)
        try:
            yield
        except InputError:
            if self.begun() != earlier:
                raise
            if before is not None:
                self.files.put_text(name, before)
            else:
                self.files.settle(gone=[name])
            raise

    def begun(self) -> dict[Path, int]:
        """When each point last began or went on, here or in a worker: it then writes its configuration."""
        files = self.folder.glob("runs/*/config.yaml") if self.folder is not None else ()
        return {file: file.stat().st_mtime_ns for file in files}

    def decide(self) -> None:
        """Put values in place of every option that is `auto`."""
        for index, point in enumerate(self.whole.points):
            if automatic.is_open(point.config):
                self.whole.points[index] = point._replace(config=self.decided(point))

    def decided(self, point: Point) -> Config:
        """A point's configuration as its plan decides it, without what depends on the machine."""
        found = self.plan(point).config
        return point.config.model_copy(update={key: getattr(found, key) for key in ("method", "decided")})

    def fit(self) -> None:
        """Give points that have not begun the memory and the devices that a point of their group began with.

        Another amount of memory may be free when a sweep goes on, and the last bits of a model may depend on it.
        """
        for point in self.whole.points:
            if point.config.fitted is not None:
                self.chosen[as_given(point.config)] = point.config
        for index, point in enumerate(self.whole.points):
            found = self.chosen.get(as_given(point.config)) if point.config.fitted is None else None
            if found is not None:
                update = {key: getattr(found, key) for key in CHOSEN}
                self.whole.points[index] = point._replace(config=point.config.model_copy(update=update))

    def train(self, stop: threading.Event) -> None:
        """Train every point that is not complete."""
        names = differing_options(self.whole.points)
        for group in grouped(self.unfinished()):
            self.train_group(group, names[kind(group[0].config)], stop)
        self.write()

    def unfinished(self) -> list[Point]:
        """The points that are not complete; the histories of those that are complete are read from their folders."""
        for point in self.left():
            found = finished_history(self.folder_of(point), point.config.rounds)
            if found is not None:
                self.histories[point.name] = found
                self.done += point.config.rounds * point.config.seeds
        return self.left()

    def train_group(
        self, group: Sequence[Point], names: Sequence[str], stop: threading.Event, less: Plan | None = None
    ) -> None:
        """Train points that differ only in the options `names`.

        If one of these options cannot be an array, the points are trained again in a group for each of its values. If
        the programs do not fit the memory, the points that are left are trained by a smaller plan.

        Args:
            less: the plan of the first point, made smaller; None if that has not been necessary.
        """
        plan = self.plan_quietly(group[0]) if less is None else less
        seeds = group[0].config.seeds
        make = algorithm_by_options(plan.config, plan.context, plan.objects)
        width = side_by_side(group, plan, state_bytes(make({}), plan.federation).whole)
        batch = seeds if plan.config.seeds_in_one else 1
        if width > 1 and less is None:
            plan = self.plan_quietly(group[0], width * batch)
            make = algorithm_by_options(plan.config, plan.context, plan.objects)
        runs = [self.run(point, plan) for point in group]
        with warnings.catch_warnings(category=Notice, action="ignore"):  # it has all been said by `check`
            for run in runs:
                run.look(self.allow_versions)
        parts = [part for far in grouped_by_progress(runs) for part in batches(far, width)]
        families: dict[int, Family] = {}
        for part in parts:
            lanes, values = len(part) * batch, scalars(plan, part, names, batch)
            if lanes not in families:
                try:
                    devices, options = plan.context.resources.devices, round_options(plan.context)
                    families[lanes] = family_begun(make, values, plan.federation, lanes, devices, options)()
                except TooLarge:
                    less = smaller(plan)
                    if less is None:
                        raise
                    left = [point for point in group if point.name not in self.histories]
                    self.train_group(left, names, stop, less)
                    return
                except (TypeError, InputError):  # the code branches on an option, or an option cannot be an array
                    if not names:
                        raise
                    self.train_apart(group, names, untraceable_options(make, values, plan.federation), stop)
                    return
                self.compilations += 1
            sharing = sum(len(other) * batch == lanes for other in parts)
            shared = families[lanes]._replace(seconds=families[lanes].seconds / sharing)
            self.train_part(part, shared, values, stop)

    def train_apart(
        self, group: Sequence[Point], names: Sequence[str], fixed: Sequence[str], stop: threading.Event
    ) -> None:
        """Train points in a group for each combination of values of the options `fixed`, which cannot be arrays."""
        value = lambda point: tuple(real_options(point.config)[name] for name in fixed)
        for _, alike in itertools.groupby(sorted(group, key=value), key=value):
            self.train_group(list(alike), [name for name in names if name not in fixed], stop)

    def train_part(self, part: Sequence[Run], shared: Family, values: Scalars, stop: threading.Event) -> None:
        """Train runs side by side, and write what is known of the sweep."""
        with ExitStack() as stack:
            for run in part:
                if run.folder is not None:
                    stack.enter_context(results.claimed(run.folder.path, new=False))
                key = key_text(run.plan.config, CLIENTS)
                run.begin(lambda: self.clients(key, lambda: representation(run.plan)))
                self.chosen[as_given(run.plan.config)] = run.plan.config
                stack.enter_context(run.tracking)
            watch = lambda progress: self.on_progress(progress._replace(name=self.name))
            with suppress(TrainingError):  # nobody is left; each run knows its own failure
                train(part, shared.with_values(values), watch, stop, before=self.done, total=self.total)
            self.done += sum(run.plan.config.rounds * len(run.seeds) for run in part)
            self.histories |= {run.name: run.write_results() for run in part}
        self.write()

    def plan(self, point: Point, lanes: int | None = None) -> Plan:
        """A point's plan. Points with the same federation share it."""
        config, objects = point.config, point.objects
        if objects.federation is None:
            place = jax.device_put if config.examples != "host" else lambda federation: federation
            make = lambda: place(federation_of(config))
            objects = objects._replace(federation=self.federation(key_text(config, (*FEDERATION, "examples")), make))
        return planned(config, objects, lanes)

    def plan_quietly(self, point: Point, lanes: int | None = None) -> Plan:
        """As `plan`, without its notices: `check` has said them of the whole run."""
        with warnings.catch_warnings(category=Notice, action="ignore"):
            return self.plan(point, lanes)

    def run(self, point: Point, plan: Plan) -> Run:
        """A point's run, whose `tuned` says that it trains without trials, so that the same run again does so too."""
        machine = {key: getattr(plan.config, key) for key in (*FITTED, "fitted")}
        machine |= {"tuned": {}, "made_by": made_by(point.config.made_by)}
        config = point.config.model_copy(update=machine)
        algorithm = algorithm_by_options(point.config, plan.context, point.objects)(real_options(point.config))
        place = self.folder_of(point)
        tracking = trackers.tracking(config.track, point.name, place)
        if place is None:
            return Run(config.method.title, plan._replace(config=config), algorithm, None, tracking, point.name)
        held = self.fingerprint(key_text(config, ATTACKED), lambda: fingerprint(plan.federation))
        one = plan._replace(config=config)
        return Run(config.method.title, one, algorithm, Folder(place), tracking, point.name, held)

    def folder_of(self, point: Point) -> Path | None:
        """A point's folder."""
        return self.folder / "runs" / point.name if self.folder is not None else None

    def ordered(self) -> list[History]:
        """The histories of the points that are complete, in the order of the points."""
        return [self.histories[point.name] for point in self.whole.points if point.name in self.histories]

    def write(self) -> None:
        """Write the summaries of the points that are complete."""
        if self.files is not None:
            self.files.put_json("comparison.json", {one.name: one.summary for one in self.ordered()})


ASK = "keep a share of the training examples for it: scenario.validation=0.1, or from_clients(…, validation=0.1)"
"""How clients get validation examples."""


def without_score(name: str, plan: Plan) -> str:
    """Why a run has no such score, where its plan tells it already; an empty string where it may have it."""
    federation, score = plan.federation, metrics.score(name)
    reasons = {
        f"there are no validation examples; {ASK}": (
            name.startswith(metrics.VALIDATION) and "validation" not in federation.splits
        ),
        "no client is held out; set scenario.held_out": (
            name.startswith(metrics.HELD_OUT) and not np.asarray(federation.held_out).any()
        ),
        "no client attacks; set attack": score.over == ("attacked",) and not federation.is_attacked,
        "there is no privacy; set privacy.clip and privacy.noise": name == "epsilon" and not plan.context.privacy.is_on,
    }
    return next((why for why, is_so in reasons.items() if is_so), "")


class LastMade:
    """Remembers the last value that was made; the same key gets the same value again."""

    def __init__(self):
        self.key, self.value = "", None

    def __call__(self, key: str, make: Callable[[], Any]) -> Any:
        """The value of a key, which `make` makes if the last key was another."""
        if key != self.key:
            self.value = None  # frees the memory of the last value before the next is made
            self.key, self.value = key, make()
        return self.value


def side_by_side(group: Sequence[Point], plan: Plan, size: int) -> int:
    """How many points of a group run side by side, if one seed's state takes `size` bytes.

    Each of them holds the lock of its folder, which is an open file; half of the files are left for all else.
    """
    config = group[0].config
    apart = config.seeds_in_one is False or plan.context.resources.states_on_host
    if apart or not (plan.config.seeds_in_one or config.seeds == 1):
        return 1
    files = most_open_files()
    most = max(1, min(SMALL // (size * config.seeds), len(group) if files is None else files // 2))
    return -(-len(group) // -(-len(group) // most))


def scalars(plan: Plan, part: Sequence[Run], names: Sequence[str], batch: int) -> Scalars:
    """The values of options at points that run side by side, repeated for every seed, in the models' dtype. [lanes]"""
    model = jax.eval_shape(plan.context.task.init, jax.random.key(0))
    kind = jnp.result_type(*(leaf.dtype for leaf in jax.tree.leaves(model["params"])))
    values = {name: np.repeat([real_options(run.plan.config)[name] for run in part], batch) for name in names}
    return {name: jnp.asarray(value[0] if value.size == 1 else value, kind) for name, value in values.items()}


def untraceable_options(make: Callable[..., Any], values: Scalars, federation: Federation) -> list[str]:
    """The options that cannot be arrays when an algorithm is traced; all options if each of them alone can."""

    def once(value: Scalars, federation: Federation) -> Any:
        algorithm = make(value)
        state = algorithm.step(algorithm.init(jax.random.key(0), federation), federation)
        return algorithm.evaluate(state, federation)

    def is_fixed(name: str) -> bool:
        try:
            jax.eval_shape(once, {name: values[name].ravel()[0]}, federation)
        except (TypeError, InputError):
            return True
        return False

    return [name for name in values if is_fixed(name)] or list(values)


def grouped_by_progress(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of runs whose newest checkpoints are of the same round, because these can go on side by side."""

    def far(run: Run) -> list[tuple[int, int]]:
        return sorted((seed, max(store.sound, default=-1)) for seed, store in run.stores.items())

    return [list(group) for _, group in itertools.groupby(sorted(runs, key=far), key=far)]


def batches(those: Sequence[Any], width: int) -> Iterator[list[Any]]:
    """Runs, or points, in their order, at most `width` at a time."""
    return (list(those[start : start + width]) for start in range(0, len(those), width))
