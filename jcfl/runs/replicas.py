"""Runs that train side by side: their evaluations are kept, written and tracked, each run in a folder of its own."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import results, trees
from jcfl.core.costs import average, in_bytes
from jcfl.core.memory import peak_memory
from jcfl.errors import TrainingError
from jcfl.results import Folder, History, Record
from jcfl.results.checkpoints import Checkpoints
from jcfl.runs import loop
from jcfl.runs.loop import Clock, LoopSettings, Progress
from jcfl.runs.plan import Plan
from jcfl.runs.programs import Programs, Running
from jcfl.runs.trackers import Tracking
from jcfl.types import Algorithm, State

OnProgress = Callable[[Progress], None]


class Run:
    """One method's run: it keeps, writes and tracks its evaluations, and does not train by itself."""

    def __init__(
        self,
        method: str,
        plan: Plan,
        algorithm: Algorithm,
        folder: Folder | None = None,
        tracking: Tracking | None = None,
        name: str | None = None,
    ):
        config = plan.config
        self.method, self.plan, self.algorithm, self.folder = method, plan, algorithm, folder
        self.tracking = tracking or Tracking()
        self.name = name or method
        self.seeds = list(range(config.seed, config.seed + config.seeds))
        first = () if config.evaluate_first or config.rounds == 0 else (0,)
        self.due = sorted({*range(0, config.rounds + 1, config.evaluate_every), config.rounds} - set(first))
        self.records: list[Record] = []
        self.clock = Clock()
        self.compiling = 0.0
        self.failed: TrainingError | None = None
        self.state: Any = None

    def begin(self) -> None:
        """Make the folder, and read the evaluations from before the run was resumed."""
        if self.folder is not None:
            self.folder.begin(self.plan.config.text())
            there = results.lines(self.folder.path / "metrics.jsonl")
            self.tracking.done = {(line["seed"], line["round"]) for line in there}
            self.records = [record for record in self.folder.records() if record.round in self.due]
        self.tracking.begin(self.plan.config)

    def replan(self, plan: Plan) -> None:
        """Go on with another plan of the same run, from the newest checkpoint."""
        self.plan, (self.algorithm, *_) = plan, plan.algorithms.values()
        if self.folder is not None:
            self.folder.begin(plan.config.text())

    def checkpoints(self, seeds: Sequence[int]) -> Checkpoints | None:
        """The store of the states of some seeds; None for a run without a folder."""
        return Checkpoints(self.folder.checkpoints / f"seeds-{seeds[0]}-{seeds[-1]}") if self.folder else None

    def rewind(self, seeds: Sequence[int], round: int) -> None:
        """Remove the evaluations of some seeds after the round from which they go on."""
        self.records = [record for record in self.records if record.seed not in seeds or record.round <= round]
        if self.folder is not None:
            self.folder.rewrite(self.records)

    def take(self, records: Sequence[Record]) -> None:
        """Keep, write and track new evaluations, unless the run has failed."""
        if self.failed is not None:
            return
        self.records += records
        if self.folder is not None:
            self.folder.append(records)
        for record in records:
            self.tracking.record(record.round, record.seed, record.scores)

    def save(self) -> None:
        """Write the files that must be on disk before a checkpoint is."""
        if self.folder is not None:
            self.folder.clusters(self.history_so_far())

    def history_so_far(self) -> History:
        """The history until now."""
        return results.history(self.name, self.seeds, self.due, self.records, np.asarray(self.plan.federation.groups))

    def write_results(self) -> History:
        """Write the history until now and its summary, and return the history."""
        found = self.history_so_far()
        failure = {"failed": str(self.failed)} if self.failed is not None else {}
        found.summary = results.final(found) | self.timing() | failure
        if self.folder is not None:
            if not self.clock.rounds:  # the run was complete before, so its first timing stays
                found.summary |= self.folder.timing()
            self.folder.clusters(found)
            self.folder.summary(found.summary)
            found.folder = self.folder.path
        self.tracking.end(found.summary)
        found.state = self.state
        return found

    def clusters(self) -> float:
        """How many clusters' models a client may be sent: the method's number, else the mean number found last."""
        method, last = self.algorithm.method, [record for record in self.records if record.round == self.due[-1]]
        fixed = getattr(method.group, "clusters", None) if method is not None else None
        found = [record.scores.get("clusters", 1.0) for record in last]
        return float(fixed or (np.mean(found) if found else 1.0))

    def timing(self) -> dict[str, Any]:
        """The time, memory and costs of the run; of several that train side by side, its share of the time."""
        clock, model = self.clock, jax.eval_shape(self.plan.context.task.init, jax.random.key(0))
        speed = clock.rounds / clock.training if clock.training else None
        costs = average(self.algorithm, self.clusters(), self.plan.config.rounds)
        size = trees.parameters(model) * 4
        return {
            "method": self.method,
            "engine": self.algorithm.engine,
            "rounds": self.plan.config.rounds,
            "seeds": len(self.seeds),
            "wall_s": clock.wall + self.compiling,
            "compile_s": self.compiling,
            "rounds_per_s": speed,
            "clients_per_s": speed and speed * self.plan.context.population.cohort,
            "peak_memory_bytes": peak_memory(),
            "costs": costs | {"model_bytes": size} | in_bytes(costs, size),
        }


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
    batch = config.seeds if config.seeds_in_one else 1
    for start in range(0, config.seeds, batch):
        seeds = first.seeds[start : start + batch]
        done = before + start * config.rounds * len(runs)
        watch = Reporter(runs, seeds, on_progress, done, total or config.rounds * config.seeds * len(runs))
        state = train_batch(runs, programs, seeds, watch, stop)
        states.append(in_numpy(programs.joined(state), len(runs) * batch == 1) if keep else None)
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
        scores = last.records[-1].scores if last.records else {}
        self.on_progress(Progress(last.method, self.seeds[0], round, done, self.total, scores))


def train_batch(
    runs: Sequence[Run], programs: Programs, seeds: Sequence[int], watch: Callable[[int], None], stop: threading.Event
) -> Running:
    """Train one batch of seeds of all runs, and return their final state."""
    n, clock = len(seeds), Clock()
    stores = JointCheckpoints([store for run in runs if (store := run.checkpoints(seeds))], n, len(runs) * n == 1)

    def rewind(round: int) -> None:
        for run in runs:
            run.rewind(seeds, round)

    def take(records: list[Record]) -> None:
        for index, run in enumerate(runs):
            run.take(records[index * n : (index + 1) * n])

    def save() -> None:
        for run in runs:
            run.save()

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
        on_records=take,
        on_block=watch,
        on_failed=fail,
        before_saving=save,
        checkpoints=stores if stores.parts else None,
        checkpoint_every=runs[0].plan.config.checkpoint_every,
        stop=stop,
    )
    try:
        return loop.train(programs, runs[0].plan.federation, settings)
    finally:
        stores.close()
        for run in runs:
            run.clock.wall += clock.wall / len(runs)
            run.clock.training += clock.training / len(runs)
            run.clock.rounds += clock.rounds // len(runs)
            run.compiling = programs.seconds / len(runs) if run.compiling == 0 else run.compiling


class JointCheckpoints:
    """The checkpoints of several runs, whose states are parts of one state."""

    def __init__(self, parts: Sequence[Checkpoints], seeds: int, single: bool):
        self.parts = parts
        self.seeds = seeds  # of each run
        self.single = single  # whether the state is of one lane, and has no axis for it

    def save(self, round: int, state: State, seconds: float) -> None:
        """Write each run's part of the state."""
        for index, part in enumerate(self.parts):
            part.save(round, self.part(state, index), seconds / len(self.parts))

    def newest(self, like: State) -> tuple[State, float] | None:
        """The newest state of all runs together; None if some have no checkpoint or not of the same round."""
        found = [part.newest(self.part(like, index)) for index, part in enumerate(self.parts)]
        states = [item[0] for item in found if item is not None]
        if len(states) < len(found) or len({int(np.min(state.round)) for state in states}) > 1:
            return None
        seconds = sum(item[1] for item in found if item is not None)
        if self.single:
            return states[0], seconds
        join = jnp.stack if self.seeds == 1 else jnp.concatenate
        return (states[0] if len(states) == 1 else jax.tree.map(lambda *leaves: join(leaves), *states)), seconds

    def part(self, state: State, index: int) -> State:
        """One run's part of a state: of one seed, or `[seeds, ...]`."""
        if self.single or len(self.parts) == 1:
            return state
        pick = index if self.seeds == 1 else slice(index * self.seeds, (index + 1) * self.seeds)
        return jax.tree.map(lambda leaf: leaf[pick], state)

    def close(self) -> None:
        """Close the stores."""
        for part in self.parts:
            part.close()


def in_numpy(state: Any, single: bool) -> Any:
    """A state in NumPy with a leading axis of lanes, its keys as plain integers."""

    def leaf(value: Any) -> np.ndarray:
        typed = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(value) if typed else value)
        return array[None] if single else array

    return jax.tree.map(leaf, state)
