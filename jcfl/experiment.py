"""A run from its configuration to its history: planned, trained, and written down."""

import functools
import resource
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import loop, results, trees
from jcfl.algorithms.options import average, in_bytes
from jcfl.checkpoints import Checkpoints
from jcfl.config import Config, plain, read
from jcfl.errors import InputError, TrainingError
from jcfl.loop import Clock, Progress, Sitting
from jcfl.plan import Plan, described, planned
from jcfl.representation import representation
from jcfl.results import Folder, History, Record
from jcfl.types import Federation

OnProgress = Callable[[Progress], None]


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
        what: a federation, or a configuration: a mapping, a YAML file, a preset's name.
        method: a registered name, a mapping `{"name": …, option: value}`, or a function `(setting) -> Algorithm`.
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
        InputError: something given is wrong; nothing has been trained or written.
        TrainingError: a model stopped being finite.
    """
    given = {"method": method, "model": model, "train": train, "rounds": rounds, "participation": participation}
    given |= {"evaluate_every": evaluate_every, "seed": seed, "seeds": seeds, "compare": compare, **settings}
    config, objects = described(what, {key: value for key, value in given.items() if value is not None})
    folder = Path(out) if out is not None else None
    if resume and folder is not None:
        config = resumed(folder, config)
    plan = planned(config, objects)
    if folder is not None and not resume:
        refuse_taken(folder)
    return execute(plan, folder, on_progress)


def resumed(folder: Path, config: Config | None = None) -> Config:
    """The configuration of the run that a folder holds, so that it goes on as it began.

    Raises:
        InputError: the folder holds no run, or one of another configuration; only `rounds` may differ.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} holds no run to resume: there is no config.yaml in it")
    stored = read(folder / "config.yaml")
    if config is None:
        return stored
    loose = {"rounds", "made_by", "chunk", "budget", "seeds_in_one", "checkpoint_every", "data_dir"}
    for key in Config.model_fields:
        old, new = plain(getattr(stored, key)), plain(getattr(config, key))
        if key not in loose and old != new:
            raise InputError(f"a resumed run keeps its configuration; {key} was {old}, got {new} (rounds may change)")
    return stored.model_copy(update={"rounds": config.rounds, "data_dir": config.data_dir or stored.data_dir})


def refuse_taken(folder: Path) -> None:
    """Refuse a folder that cannot become a run's."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --out expects a folder")
    if any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "runs")):
        raise InputError(f"{folder} already holds a run; go on with it by --resume {folder}, or choose another folder")


def execute(plan: Plan, out: Path | None, on_progress: OnProgress | None = None, keep_state: bool = True) -> History:
    """Train every method of a plan, and write what is to be written.

    Raises:
        TrainingError: a model stopped being finite; what was measured until then is written.
        Interrupted: Ctrl-C or SIGTERM; what is needed to go on is written.

    Returns:
        The main method's history; those of the others are its `others`.
    """
    methods = plan.config.methods
    several = len(methods) > 1
    if out is not None and several:
        Folder(out).begin(plan.config.text(), measured=False)
    clients = functools.cache(lambda: representation(plan))  # the same for all methods
    histories: dict[str, History] = {}
    stop = threading.Event()
    with loop.interruptible(stop, out is not None):
        for title, method in methods.items():
            config = plan.config.model_copy(update={"method": method, "compare": ()}) if several else plan.config
            folder = None if out is None else Folder(out / "runs" / title if several else out)
            if folder is not None:
                folder.federation(clients)
            keep = keep_state and not histories
            one = Run(title, plan._replace(config=config), folder, on_progress or (lambda progress: None), stop, keep)
            histories[title] = one.history()
            if out is not None and several:
                table = {name: item.summary for name, item in histories.items()}
                results.write_json(out / "comparison.json", table)
    main, *rest = histories.values()
    main.others = {other.name: other for other in rest}
    main.folder = out
    return main


class Run:
    """One method's run: its seeds trained in batches, its figures gathered and written."""

    def __init__(
        self, title: str, plan: Plan, folder: Folder | None, on_progress: OnProgress, stop: threading.Event, keep: bool
    ):
        config = plan.config
        self.title, self.plan, self.folder, self.on_progress, self.stop = title, plan, folder, on_progress, stop
        self.keep = keep  # whether the final states are returned
        self.seeds = list(range(config.seed, config.seed + config.seeds))
        first = () if config.evaluate_first or config.rounds == 0 else (0,)
        self.due = sorted({*range(0, config.rounds + 1, config.evaluate_every), config.rounds} - set(first))
        self.records: list[Record] = []
        self.clock = Clock()

    def history(self) -> History:
        """Train what is left to train, and return the whole."""
        config, states = self.plan.config, []
        if self.folder is not None:
            self.folder.begin(config.text())
            self.records = [record for record in self.folder.records() if record.round in self.due]
        batch = config.seeds if config.seeds_in_one else 1
        programs = loop.programs(self.plan.algorithms[self.title], self.plan.federation, batch)
        try:
            for start in range(0, config.seeds, batch):
                states.append(self.trained(programs, self.seeds[start : start + batch]))
        except TrainingError as error:
            self.written(programs.seconds, {"failed": str(error)})
            raise
        found = self.written(programs.seconds, {})
        if self.keep:
            found.state = (
                jax.tree.map(lambda *leaves: np.concatenate(leaves), *states) if len(states) > 1 else states[0]
            )
        return found

    def trained(self, programs: loop.Programs, seeds: list[int]) -> Any:
        """One batch of seeds trained to the end: its final states in NumPy, with a leading axis of seeds."""
        config, folder = self.plan.config, self.folder
        checkpoints = Checkpoints(folder.checkpoints / f"seeds-{seeds[0]}-{seeds[-1]}") if folder else None
        sitting = Sitting(
            seeds=seeds,
            rounds=config.rounds,
            evaluated=self.due,
            clock=self.clock,
            on_start=lambda round: self.rewind(seeds, round),
            on_records=self.take,
            on_block=lambda round: self.report(seeds, round),
            before_saving=lambda: folder.clusters(self.so_far()) if folder else None,
            checkpoints=checkpoints,
            checkpoint_every=config.checkpoint_every,
            stop=self.stop,
        )
        try:
            state = loop.train(programs, self.plan.federation, sitting)
        finally:
            if checkpoints:
                checkpoints.close()
        return numpy(state, len(seeds) == 1) if self.keep else None

    def rewind(self, seeds: list[int], round: int) -> None:
        """Forget what these seeds measured after the round they go on from."""
        self.records = [record for record in self.records if record.seed not in seeds or record.round <= round]
        if self.folder is not None:
            self.folder.rewrite(self.records)

    def take(self, records: list[Record]) -> None:
        """Keep new evaluations, and write them."""
        self.records += records
        if self.folder is not None:
            self.folder.append(records)

    def report(self, seeds: list[int], round: int) -> None:
        """Tell whoever watches where the run is."""
        config, before = self.plan.config, self.seeds.index(seeds[0])
        scores = self.records[-1].scores if self.records else {}
        done = (before * config.rounds) + round * len(seeds)
        self.on_progress(Progress(self.title, seeds[0], round, done, config.rounds * config.seeds, scores))

    def so_far(self) -> History:
        """The history until now."""
        return results.history(self.title, self.seeds, self.due, self.records, np.asarray(self.plan.federation.groups))

    def written(self, compiling: float, more: dict[str, Any]) -> History:
        """The history until now with its summary, both written."""
        found = self.so_far()
        found.summary = results.final(found) | self.timing(compiling) | more
        if self.folder is not None:
            if not self.clock.rounds:  # the run was complete already, and was timed when it was made
                found.summary |= self.folder.timing()
            self.folder.clusters(found)
            self.folder.summary(found.summary)
            found.folder = self.folder.path
        return found

    def timing(self, compiling: float) -> dict[str, Any]:
        """What the run took."""
        clock, model = self.clock, jax.eval_shape(self.plan.setting.task.init, jax.random.key(0))
        speed = clock.rounds / clock.training if clock.training else None
        costs = average(self.plan.algorithms[self.title].costs, self.plan.config.rounds)
        size = trees.parameters(model) * 4
        return {
            "method": self.title,
            "engine": self.plan.algorithms[self.title].engine,
            "rounds": self.plan.config.rounds,
            "seeds": len(self.seeds),
            "wall_s": clock.wall + compiling,
            "compile_s": compiling,
            "rounds_per_s": speed,
            "clients_per_s": speed and speed * self.plan.setting.cohort,
            "peak_memory_bytes": peak_memory(),
            "costs": costs | {"model_bytes": size} | in_bytes(costs, size),
        }


def peak_memory() -> int:
    """The most bytes that this process, or its busiest device, has held so far."""
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    devices = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()]
    return max(host, *devices)


def numpy(state: Any, single: bool) -> Any:
    """A state in NumPy with a leading axis of seeds, its keys as plain integers."""

    def leaf(value: Any) -> np.ndarray:
        typed = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(value) if typed else value)
        return array[None] if single else array

    return jax.tree.map(leaf, state)
