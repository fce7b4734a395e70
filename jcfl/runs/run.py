"""One method's run: its metrics are gathered, written and tracked, whatever trains it."""

import functools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import count, pairwise
from typing import Any

import jax
import numpy as np

from jcfl import results, trees
from jcfl.core.clients import trainer as trainer_of
from jcfl.core.costs import average, in_bytes, operations, warmup
from jcfl.core.memory import peak_memory
from jcfl.errors import InputError, Notice, TrainingError
from jcfl.metrics import moves
from jcfl.results import Folder, History, Record, finished_history
from jcfl.results.checkpoints import Checkpoints, Saved
from jcfl.runs import accounting, hosts
from jcfl.runs.cohorts import client_rounds
from jcfl.runs.config import Config
from jcfl.runs.loop import SELDOM, Clock
from jcfl.runs.needs import due, last_turns, left_out
from jcfl.runs.plan import Plan
from jcfl.runs.programs import Parts
from jcfl.runs.provenance import provenance, refuse_other
from jcfl.runs.representation import drift
from jcfl.runs.trackers import Tracking
from jcfl.types import Algorithm

Clients = Callable[[], Mapping[str, np.ndarray]]
"""What makes the arrays of federation.npz."""


class Run:
    """One method's run: its metrics are gathered and written, whatever trains it."""

    def __init__(
        self,
        method: str,
        plan: Plan,
        algorithm: Algorithm,
        folder: Folder | None = None,
        tracking: Tracking | None = None,
        name: str | None = None,
        fingerprint: str = "",
        whole: Config | None = None,
    ):
        config = plan.config
        self.fingerprint, self.whole = fingerprint, whole  # of the federation; the comparison it is a part of
        self.method, self.plan, self.algorithm, self.folder = method, plan, algorithm, folder
        self.tracking = tracking or Tracking()
        self.name = name or method
        self.seeds = list(range(config.seed, config.seed + config.seeds))
        self.due = due(config)
        self.records: list[Record] = []
        self.clock = Clock()
        self.compiling = 0.0
        self.failed: TrainingError | None = None
        self.finished: History | None = None  # of a complete run that has no checkpoint of its last round
        self.state: Any = None
        self.epsilon = functools.cache(self.epsilon)  # of a round, whatever the seed
        self.stores: dict[int, Checkpoints] = {}  # by the first of the seeds trained together
        self.is_written = False  # whether metrics.jsonl has `records` and nothing else
        self.next_save = 0.0  # the time before which the end of some seeds does not write clusters.npz again

    def batches(self) -> list[list[int]]:
        """The seeds that are trained together."""
        size = self.plan.config.seeds if self.plan.config.seeds_in_one else 1
        return [self.seeds[start : start + size] for start in range(0, len(self.seeds), size)]

    def look(self, allow_versions: bool = False) -> bool:
        """Find what earlier processes left, and write nothing; returns whether there is a checkpoint to go on from.

        Raises:
            InputError: something else made it, it has more rounds than are wanted now, it lacks an evaluation that is
                wanted now, or nothing of it can be read.
        """
        if self.folder is None:
            return False
        faults, found = self.faults(), []
        for seeds in self.batches():
            self.stores[seeds[0]] = store = Checkpoints(self.folder, seeds)
            store.look()
            found += list(store.sound.values())[:1]
        for saved in found:
            refuse_other(str(self.folder.path), saved.made, self.made(), allow_versions)
        measured = [round for _, round in self.folder.sent()]
        done, rounds = max([0, *(saved.round for saved in found), *measured]), self.plan.config.rounds
        if done > rounds:
            raise InputError(
                f"{self.folder.path} already has {done} rounds, and rounds={rounds} would delete the last "
                f"{done - rounds}; give at least {done}, or run it in another folder"
            )
        self.refuse_left_out(found)
        for name, fault in faults.items():
            again = "it is written again" if found else "training begins again"
            if found and name.startswith("models/"):  # of rounds that are over
                again = f"it can only be made by training again: delete {self.folder.path / 'checkpoints'}"
            warnings.warn(f"{self.folder.path / name} {fault}; {again}", Notice, stacklevel=2)
        if min(max(store.sound, default=-1) for store in self.stores.values()) < rounds:
            self.finished = self.complete_history(not found, allow_versions)
            if not found and self.finished is None and measured and not faults:
                told = f"{self.folder.path} has no checkpoint to go on from; training begins again"
                warnings.warn(told, Notice, stacklevel=2)
        self.records = [record for saved in found for record in saved.records]
        return bool(found)

    def complete_history(self, diverged: bool, allow_versions: bool) -> History | None:
        """What an earlier process left of the run, if it came to its end.

        Args:
            diverged: whether a run that diverged counts as complete. It does not if there is a checkpoint, from which
                it can be tried again.
            allow_versions: whether other versions may have made it.

        Raises:
            InputError: another configuration, federation, version or setting of JAX made it, so that it cannot be
                compared with what is still to be trained.
        """
        assert self.folder is not None
        found = finished_history(self.folder.path, self.plan.config.rounds)
        if found is not None:
            old = {"config": self.folder.yaml("config.yaml"), "federation": found.summary.get("federation", "")}
            refuse_other(str(self.folder.path), old, self.made(), allow_versions)
            failed = found.summary.get("failed")
            if failed is not None and not diverged:
                return None
            found.name = self.name
            self.failed = self.failed if failed is None else TrainingError(failed)
        return found

    def refuse_left_out(self, found: Sequence[Saved]) -> None:
        """Refuse fewer rounds than planned at first, if some evaluations of `evaluate_last` can no longer be made."""
        config = self.plan.config
        done = {(int(saved.made["config"]["rounds"]), saved.round) for saved in found}
        lacks = lambda one: sorted({turn for before, round in done for turn in left_out(one, before, round)})
        missing = lacks(config)
        if missing and self.folder is not None:
            more = (config.model_copy(update={"rounds": rounds}) for rounds in count(config.rounds + 1))
            least = next(one.rounds for one in more if not lacks(one))  # at most as many as planned at first
            raise InputError(
                f"{self.folder.path}: rounds={config.rounds} with evaluate_last={config.evaluate_last} needs "
                f"evaluations after rounds {missing}, which were trained without them when rounds was {max(done)[0]}; "
                f"give at least {least}"
            )

    def parts(self) -> Parts:
        """The programs that are called from here on: a run that is complete only makes a state to read its own into."""
        rounds = self.plan.config.rounds
        stores = [self.stores.get(seeds[0]) for seeds in self.batches()]
        left = hosts.several() or any(store is None or max(store.sound, default=-1) < rounds for store in stores)
        return Parts(rounds=left and rounds > 0, evaluation=left or self.lacks(self.seeds, rounds))

    def faults(self) -> dict[str, str]:
        """The files that an earlier process left damaged, besides checkpoints, and what is wrong with them."""
        assert self.folder is not None
        self.folder.renew()
        found = self.folder.checksums.faults()
        return {name: fault for name, fault in found.items() if not name.startswith("checkpoints/")}

    def made(self) -> dict[str, Any]:
        """What determines this run's results."""
        return provenance(self.plan.config, self.whole, self.fingerprint)

    def begin(self, clients: Clients) -> None:
        """Make the folder, and take over what an earlier process measured.

        Args:
            clients: makes what federation.npz holds, if that is not there yet or there is no checkpoint to go on from.
        """
        if self.folder is not None:
            self.folder.begin(self.plan.config.text())
            self.folder.federation(clients, goes_on=any(store.sound for store in self.stores.values()))
            kept = {(record.seed, record.round) for record in self.records}
            self.tracking.done = self.folder.tracked() | kept
            if self.tracking.trackers and not self.tracking.done <= kept:
                self.folder.keep_tracked(self.tracking.done)
            due = set(self.due)
            left = sorted({record.round for record in self.records} - due)
            if left:
                told = f"{self.folder.path}: evaluations after rounds {left} are left out, as in a run of"
                warnings.warn(f"{told} {self.plan.config.rounds} rounds from the start", Notice, stacklevel=2)
                self.records = [record for record in self.records if record.round in due]
                self.count_moves()
        self.tracking.begin(self.plan.config)

    def count_moves(self) -> None:
        """Count the moves again, each since the seed's evaluation before, after evaluations have been left out."""
        before: dict[int, np.ndarray] = {}
        for record in self.records:
            if "moves" in record.scores:
                earlier, labels = before.get(record.seed), record.arrays["labels"]
                record.scores["moves"] = math.nan if earlier is None else moves(earlier, labels)
                before[record.seed] = labels

    def replan(self, plan: Plan) -> None:
        """Go on with another plan of the same run, from the newest checkpoint."""
        self.plan, (self.algorithm, *_) = plan, plan.algorithms.values()

    def write_config(self) -> None:
        """Write the configuration again, after the plan has changed."""
        if self.folder is not None:
            self.folder.begin(self.plan.config.text())

    def rewind(self, seeds: Sequence[int], round: int) -> None:
        """Forget what these seeds measured after the round they go on from."""
        kept = [record for record in self.records if record.seed not in seeds or record.round <= round]
        if self.folder is not None and (len(kept) < len(self.records) or not self.is_written):
            self.folder.rewrite(kept)  # at first because a stopped run's file may have lines after its checkpoint
        self.records, self.is_written = kept, True

    def lacks(self, seeds: Sequence[int], round: int) -> bool:
        """Whether these seeds were not evaluated after a round, although the run has not failed."""
        found = {record.seed for record in self.records if record.round == round}
        return self.failed is None and not found.issuperset(seeds)

    def take(self, records: Sequence[Record]) -> None:
        """Keep new evaluations, write and track them; those of a run that has failed are worth nothing."""
        if self.failed is not None:
            return
        for record in records:
            self.complete(record)
        self.records += records
        if self.folder is not None:
            self.folder.append(records)
        for record in records:
            self.tracking.record(record.round, record.seed, record.scores)

    def epsilon(self, round: int) -> float:
        """The ε of what clients have sent until a round."""
        plan = self.plan
        return accounting.epsilon_after(self.algorithm.method, plan.context, plan.federation, round)

    def complete(self, record: Record) -> None:
        """Add the moves since the seed's evaluation before, and ε, where a run has them; write models that matter."""
        config = self.plan.config
        if self.plan.context.privacy.is_on:
            spent = self.epsilon(int(record.scores.get("trained_rounds", record.round)))
            record.scores |= {"epsilon": spent} if spent < math.inf else {}
        if config.evaluate_quality and "labels" in record.arrays:
            before = [other.arrays["labels"] for other in self.records if other.seed == record.seed][-1:]
            record.scores["moves"] = moves(before[0], record.arrays["labels"]) if before else math.nan
        if record.round not in config.compare_models:
            record.models = {}
        if record.models and self.folder is not None:
            self.folder.models(record)

    def save(self, at_end: bool = False) -> None:
        """Write what goes before a checkpoint: clusters.npz, which has the labels of all seeds.

        Args:
            at_end: whether some seeds have ended. With many seeds this happens often, and each time all seeds would be
                written. So it is left out if the last time was not long ago: the checkpoint has the new labels too.
        """
        start = time.perf_counter()
        if self.folder is None or (at_end and start < self.next_save):
            return
        self.folder.clusters(self.history_so_far())
        now = time.perf_counter()
        self.next_save = now + SELDOM * (now - start)

    def history_so_far(self) -> History:
        """The history until now."""
        last = max((record.round for record in self.records), default=0)
        federation = self.plan.federation
        groups = np.asarray(federation.at(last - 1).groups)
        found = results.history(self.name, self.seeds, self.due, self.records, groups, federation.clients)
        found.held = functools.partial(dict, groups=np.asarray(federation.groups), **drift(federation))
        return found

    def write_results(self) -> History:
        """The history until now with its summary, both written."""
        found = self.history_so_far()
        failure = {"failed": str(self.failed)} if self.failed is not None else {}
        config = self.plan.config
        decided = (config.decided or {}).get(config.method.title)
        more = {"decided": decided} if decided else {}
        more |= {"federation": self.fingerprint[:16]} if self.fingerprint else {}
        last = len(last_turns(config))
        if last > 1:
            more["mean_of_last"] = {"rounds": last, **results.final(found, last)}
        found.summary = results.final(found) | self.timing() | more | failure
        if self.folder is not None:
            self.order()
            if not self.clock.rounds:  # the run was complete already, and was timed when it was made
                found.summary |= self.folder.timing()
            self.folder.clusters(found)
            self.folder.summary(found.summary)
            self.folder.settle()
            found.folder = self.folder.path
        self.tracking.end(found.summary)
        found.state = self.state
        return found

    def order(self) -> None:
        """Bring metrics.jsonl into the order of a run that was never stopped: seeds that train together by rounds."""
        batch = {seed: index for index, seeds in enumerate(self.batches()) for seed in seeds}
        place = lambda record: (batch[record.seed], record.round, record.seed)
        if self.folder is not None and any(place(one) > place(other) for one, other in pairwise(self.records)):
            self.records.sort(key=place)
            self.folder.rewrite(self.records)

    def clusters(self) -> float:
        """The clusters that a client may be sent: as many as the method fixes, else those found last, on average."""
        method, last = self.algorithm.method, [record for record in self.records if record.round == self.due[-1]]
        fixed = getattr(method.group, "clusters", None) if method is not None else None
        found = [record.scores.get("clusters", 1.0) for record in last]
        return float(fixed or (np.mean(found) if found else 1.0))

    def timing(self) -> dict[str, Any]:
        """What the run took; of several side by side, its share."""
        clock, model = self.clock, jax.eval_shape(self.plan.context.task.init, jax.random.key(0))
        speed, rounds = clock.rounds / clock.training if clock.training else None, self.plan.config.rounds
        context, method, clusters = self.plan.context, self.algorithm.method, self.clusters()
        costs = average(self.algorithm, clusters, rounds, context.task)
        size = trees.parameters(model) * 4
        trainer = context.trainer if method is None else trainer_of(method, context)
        federation = self.plan.federation
        one = operations(context, trainer, np.asarray(federation.train.size)[~np.asarray(federation.held_out)])
        flop = {"flop": costs["computation"] * one} if "computation" in costs else {}
        warm = warmup(method, rounds)
        sampled = client_rounds(context, federation, rounds) / max(rounds, 1)  # in a round, on average
        early = average(self.algorithm, clusters, warm, context.task)
        phases = {f"warmup_{name}": early[name] for name in ("communication", "computation") if name in early}
        phases = {"warmup_rounds": warm} | phases if warm else {}
        return {
            "method": self.method,
            "engine": self.algorithm.engine,
            "rounds": rounds,
            "seeds": len(self.seeds),
            "wall_s": clock.wall + self.compiling,
            "compile_s": self.compiling,
            "rounds_per_s": speed,
            "clients_per_s": speed and speed * sampled,
            "peak_memory_bytes": peak_memory(),
            "costs": costs | phases | flop | {"model_bytes": size} | in_bytes(costs, size),
        }
