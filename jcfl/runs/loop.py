"""The loop of one method's run: compiled once, in blocks, evaluated, checkpointed, and stopped when asked to."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jcfl import metrics
from jcfl.errors import TrainingError
from jcfl.results import Record
from jcfl.runs.devices import over_hosts
from jcfl.runs.programs import Programs, Running, keys
from jcfl.types import OVERFLOW, VOTER, Federation, State

BLOCK = 1.0
"""Seconds after which a block of rounds should come back, so that progress is seen to move."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and has written all it needs to go on."""


class Progress(NamedTuple):
    """Where a run is."""

    name: str  # of the method
    seed: int  # the first of those run together
    round: int  # of these seeds
    done: int  # rounds, over all seeds
    total: int  # rounds, over all seeds
    scores: dict[str, float]  # of the last evaluation; empty before the first


class Store(Protocol):
    """Where complete states are, as `jcfl.results.checkpoints.Checkpoints`."""

    def save(self, round: int, state: State, seconds: float) -> None:
        """Write the state after `round` rounds."""

    def newest(self, like: State) -> tuple[State, float] | None:
        """The newest complete state and its seconds."""


@dataclass
class Clock:
    """Where the seconds went."""

    wall: float = 0.0  # of the run, earlier sittings included
    training: float = 0.0
    rounds: int = 0  # trained in `training` seconds, counted once per seed

    def add(self, rounds: int, seconds: float) -> None:
        """Count a block of rounds."""
        self.rounds += rounds
        self.training += seconds


@dataclass
class LoopSettings:
    """What lanes trained side by side need besides their programs."""

    seeds: Sequence[int]  # of every lane
    rounds: int
    evaluated: Sequence[int]  # rounds after which to evaluate, ascending, the last round among them
    clock: Clock
    on_start: Callable[[int], None] = lambda round: None  # with the round gone on from; -1 at the very beginning
    on_records: Callable[[list[Record]], None] = lambda records: None
    on_block: Callable[[int], None] = lambda round: None
    on_failed: Callable[[dict[int, TrainingError]], None] = lambda failed: stop_at(failed)  # by lane
    before_saving: Callable[[], None] = lambda: None
    checkpoints: Store | None = None
    checkpoint_every: float = 60.0  # seconds
    stop: threading.Event = field(default_factory=threading.Event)


def train(programs: Programs, federation: Federation, sitting: LoopSettings) -> Running:
    """Train to the last round, evaluating, reporting and checkpointing on the way; goes on from a checkpoint if any.

    Raises:
        TrainingError: a model is no longer finite; round and cluster are named, unless `sitting.on_failed` bears it.
        Interrupted: `sitting.stop` was set; the state is on disk.
    """
    state = programs.init(keys(sitting.seeds, programs.devices), federation)
    found = sitting.checkpoints.newest(programs.joined(state)) if sitting.checkpoints else None
    state, earlier = (programs.parted(found[0]), found[1]) if found else (state, 0.0)
    watch = Stopwatch(sitting, programs.joined, earlier)
    round, size = rounds_done(state), 1
    sitting.on_start(round if found else -1)
    try:
        if not found and 0 in sitting.evaluated:
            sitting.on_records(evaluated(programs, federation, sitting, state, 0))
        sitting.on_block(round)
        while round < sitting.rounds:
            if over_hosts(sitting.stop.is_set()):
                watch.save(round, state)
                raise Interrupted
            until = min(round + size, next(due for due in sitting.evaluated if due > round))
            state, seconds = advanced(programs, federation, state, until)
            failed = failures(state, sitting.seeds)
            if failed:
                sitting.on_failed(failed)
            sitting.clock.add((until - round) * len(sitting.seeds), seconds)
            size = max(1, min(2 * size, int(BLOCK * (until - round) / max(over_hosts(seconds), 1e-6))))
            round = until
            if round in sitting.evaluated:
                sitting.on_records(evaluated(programs, federation, sitting, state, round))
            sitting.on_block(round)
            if round < sitting.rounds and over_hosts(watch.due()):
                watch.save(round, state)
        watch.save(round, state)
    finally:
        sitting.clock.wall += watch.seconds()
    return state


class Stopwatch:
    """When to write the next checkpoint, and how long a batch has taken."""

    def __init__(self, sitting: LoopSettings, joined: Callable[[Any], State], earlier: float):
        self.sitting, self.joined, self.earlier = sitting, joined, earlier
        self.began = self.saved = time.perf_counter()
        self.cost = 0.0

    def seconds(self) -> float:
        """Seconds that these seeds have taken, earlier sittings included."""
        return self.earlier + time.perf_counter() - self.began

    def due(self) -> bool:
        """Whether it is time; a state of gigabytes never takes more than a twentieth of the run's."""
        return time.perf_counter() - self.saved > max(self.sitting.checkpoint_every, 20 * self.cost)

    def save(self, round: int, state: Running) -> None:
        """Write the state, after the figures that lead up to it."""
        if self.sitting.checkpoints is None:
            return
        start = time.perf_counter()
        self.sitting.before_saving()
        self.sitting.checkpoints.save(round, self.joined(state), self.seconds())
        self.saved = time.perf_counter()
        self.cost = self.saved - start


def advanced(programs: Programs, federation: Federation, state: Running, until: int) -> tuple[Running, float]:
    """The state after `until` rounds, and the seconds it took."""
    start = time.perf_counter()
    state = jax.block_until_ready(programs.advance(state, federation, np.int32(until)))
    return state, time.perf_counter() - start


def rounds_done(state: Running) -> int:
    """The number of rounds that a state, or every one of several, has behind it."""
    return int(np.min(state.round))


def evaluated(
    programs: Programs, federation: Federation, sitting: LoopSettings, state: Running, round: int
) -> list[Record]:
    """The records of one evaluation, one per seed; the scores are computed here, on the host."""
    found = jax.device_get(programs.evaluate(state, federation))
    if len(sitting.seeds) == 1:
        found = {name: value[None] for name, value in found.items()}
    outcomes = ({name: value[i] for name, value in found.items()} for i in range(len(sitting.seeds)))
    measured = (metrics.measured(outcome, federation, round) for outcome in outcomes)
    return [Record.of(seed, round, part) for seed, part in zip(sitting.seeds, measured, strict=True)]


def failures(state: Running, seeds: Sequence[int]) -> dict[int, TrainingError]:
    """The lanes that cannot go on, and why."""
    places = np.asarray(state.failed).reshape(-1, 2)
    return {lane: failure(seeds[lane], *places[lane]) for lane in range(len(seeds)) if places[lane][0] >= 0}


def failure(seed: int, round: int, cluster: int) -> TrainingError:
    """Why a seed cannot go on."""
    if cluster == OVERFLOW:
        return TrainingError(
            f"in round {round + 1} (seed {seed}) more clusters were found than the method has room for; raise "
            "method.capacity, or merge more readily (a lower tau, a larger distance_threshold)"
        )
    model = "a model of a run that votes beside it" if cluster == VOTER else f"the model of cluster {cluster}"
    return TrainingError(
        f"training diverged: in round {round + 1} (seed {seed}) {model} stopped being finite; lower train.lr"
    )


def stop_at(failed: Mapping[int, TrainingError]) -> None:
    """Raise the first lane's failure."""
    raise next(iter(failed.values()))


@contextmanager
def interruptible(stop: threading.Event, saving: bool) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM sets `stop`, so that a run ends between two blocks; a second one ends it at once.

    A run that saves nothing is left to end at once.
    """
    if not saving or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
