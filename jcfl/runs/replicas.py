"""Runs trained side by side, and the states that they leave and go on from."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jcfl.errors import TrainingError
from jcfl.results import Record
from jcfl.results.checkpoints import Saved
from jcfl.runs import loop
from jcfl.runs.ahead import Ahead, reader
from jcfl.runs.answers import for_room
from jcfl.runs.devices import over_hosts
from jcfl.runs.loop import Clock, LoopSettings, Progress
from jcfl.runs.programs import Programs, Running
from jcfl.runs.run import Run
from jcfl.runs.watchdog import Watchdog
from jcfl.trees.rows import HostRows
from jcfl.types import State

OnProgress = Callable[[Progress], None]


def train(
    runs: Sequence[Run],
    programs: Programs,
    on_progress: OnProgress,
    stop: threading.Event,
    keep: bool = False,
    before: int = 0,
    total: int | None = None,
) -> None:
    """Train runs with the same rounds and seeds side by side, one batch of seeds after another.

    Args:
        programs: for as many lanes as runs times seeds of a batch; the seeds of a run are next to each other.
        keep: whether the runs keep their final states, in NumPy and with a leading axis of seeds.
        before: rounds that other runs have trained before, over all seeds; for progress.
        total: rounds in all; for progress.

    Raises:
        TrainingError: no run can go on; each has its own error in `failed`.
        Interrupted: `stop` was set; what is needed to go on is written.
    """
    first = runs[0]
    config, states = first.plan.config, []
    batches, batch = first.batches(), len(first.batches()[0])
    for seeds in batches:
        done = before + (seeds[0] - config.seed) * config.rounds * len(runs)
        watch = Reporter(runs, seeds, on_progress, done, total or config.rounds * config.seeds * len(runs))
        state = train_batch(runs, programs, seeds, watch, stop)
        single = len(runs) * batch == 1
        states.append(numpy(programs.joined(state), single, len(batches) > 1) if keep else None)
    for index, run in enumerate(runs if keep else ()):
        own = [jax.tree.map(lambda leaf: leaf[index * batch : (index + 1) * batch], state) for state in states]
        run.state = own[0] if len(own) == 1 else jax.tree.map(lambda *leaves: np.concatenate(leaves), *own)


class Reporter:
    """Reports how far runs have come."""

    def __init__(self, runs: Sequence[Run], seeds: Sequence[int], on_progress: OnProgress, done: int, total: int):
        self.runs, self.seeds, self.on_progress, self.done, self.total = runs, seeds, on_progress, done, total

    def __call__(self, round: int) -> None:
        """Report after a block of rounds."""
        last = self.runs[-1]
        done = self.done + round * len(self.seeds) * len(self.runs)
        scores = latest(last.records, self.seeds)
        self.on_progress(Progress(last.method, self.seeds[0], round, done, self.total, scores, len(self.seeds)))


def latest(records: Sequence[Record], seeds: Sequence[int]) -> dict[str, float]:
    """The metrics at the last evaluation of seeds that train together, each as mean over those that have it."""
    found = [record.scores for record in records[-len(seeds) :] if record.seed in seeds]
    names = dict.fromkeys(name for scores in found for name in scores)
    return {name: float(np.mean([scores[name] for scores in found if name in scores])) for name in names}


def train_batch(
    runs: Sequence[Run], programs: Programs, seeds: Sequence[int], watch: Callable[[int], None], stop: threading.Event
) -> Running:
    """Train one batch of seeds of all runs, and return their final state."""
    n, clock = len(seeds), Clock()
    stores = JointCheckpoints([run for run in runs if run.folder is not None], seeds, len(runs) * n == 1)

    def rewind(round: int) -> None:
        for run in runs:
            run.rewind(seeds, round)

    def take(records: list[Record]) -> None:
        for index, run in enumerate(runs):
            run.take(records[index * n : (index + 1) * n])

    def save(at_end: bool) -> None:
        for run in runs:
            run.save(at_end)

    def fail(failed: dict[int, TrainingError]) -> None:
        for lane, error in failed.items():
            run = runs[lane // n]
            run.failed = run.failed or error
        if all(run.failed for run in runs):
            loop.stop_at(failed)

    settings = LoopSettings(
        seeds=[*seeds] * len(runs),
        rounds=runs[0].plan.config.rounds,
        evaluated=runs[0].due,
        clock=clock,
        on_start=rewind,
        lacks=lambda round: any(run.lacks(seeds, round) for run in runs),
        on_records=take,
        on_block=watch,
        on_failed=fail,
        before_saving=save,
        checkpoints=stores if stores.runs else None,
        checkpoint_every=runs[0].plan.config.checkpoint_every,
        stop=stop,
        ahead=ahead(runs, n),
        watchdog=Watchdog(", ".join(run.name for run in runs)),
        for_room=for_room(runs[0].plan.config.method),
    )
    try:
        return loop.train(programs, runs[0].plan.federation, settings)
    finally:
        for run in runs:
            run.clock.wall += clock.wall / len(runs)
            run.clock.training += clock.training / len(runs)
            run.clock.rounds += clock.rounds // len(runs)
            run.compiling = programs.seconds / len(runs) if run.compiling == 0 else run.compiling


def ahead(runs: Sequence[Run], seeds: int) -> Ahead:
    """What reads examples ahead for a run of one seed; runs side by side need so many that nothing is gained."""
    given = runs[0].plan.objects.federation
    if given is None or len(runs) * seeds > 1:
        return lambda state, rounds: None
    return reader(runs[0].algorithm, given, runs[0].plan.federation)


class JointCheckpoints:
    """The checkpoints of several runs, whose states are parts of one state."""

    def __init__(self, runs: Sequence[Run], seeds: Sequence[int], single: bool):
        self.runs, self.seeds = runs, seeds  # the seeds are those of each run
        self.parts = [run.stores[seeds[0]] for run in runs]
        self.single = single  # whether the state is of one lane, and has no axis for it

    def save(self, round: int, state: State, seconds: float) -> None:
        """Write each run's part of the state."""
        for index, (run, part) in enumerate(zip(self.runs, self.parts, strict=True)):
            records = [record for record in run.records if record.seed in self.seeds]
            saved = Saved(round, seconds / len(self.parts), run.made(), records)
            part.save(saved, self.part(state, index))

    def newest(self, like: State) -> tuple[State, float] | None:
        """The newest state that every run has, put together, and its seconds; None if there is none."""
        common = set.intersection(*(set(part.sound) for part in self.parts))
        round = int(over_hosts(max(common, default=-1), np.min))
        if round < 0:
            return None
        states = [part.state(round, self.part(like, index)) for index, part in enumerate(self.parts)]
        seconds = sum(part.sound[round].seconds for part in self.parts)
        if len(states) == 1:
            return states[0], seconds
        join = jnp.stack if len(self.seeds) == 1 else jnp.concatenate
        return jax.tree.map(lambda *leaves: join(leaves), *states), seconds

    def part(self, state: State, index: int) -> State:
        """One run's part of a state: of one seed, or `[seeds, ...]`."""
        if self.single or len(self.parts) == 1:
            return state
        n = len(self.seeds)
        pick = index if n == 1 else slice(index * n, (index + 1) * n)
        return jax.tree.map(lambda leaf: leaf[pick], state)


def numpy(state: Any, single: bool, several: bool = False) -> Any:
    """A state in NumPy with a leading axis of lanes, its keys as plain integers.

    Args:
        state: of one lane or of several.
        single: whether it is of one lane, and has no axis for it.
        several: whether seeds train after this one, which replace the rows on the host. These are then copied.
    """

    def leaf(value: Any) -> np.ndarray:
        typed = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(value) if typed else value)
        return array[None] if single else array

    is_rows = lambda part: isinstance(part, HostRows)
    copied = lambda part: part.arrays() if several and is_rows(part) else part
    return jax.tree.map(leaf, jax.tree.map(copied, state, is_leaf=is_rows))
