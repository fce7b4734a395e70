"""How clients train on this machine: chosen by short trials where a run is long enough, else by constants.

A trial compiles the training of a part of a cohort and measures it on models of zeros. The candidates are: all cores of
a CPU as devices of their own, another library of matrix products, the other engine, fewer and more clients at a time,
and the other way to compute convolutions. Each is tried from the best one so far. On an accelerator, the memory of the
best program according to XLA says for how many more clients there is room; the constants expect up to twenty times as
much memory as is taken.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict

from jcfl.core import aggregates, rounds
from jcfl.core.context import Context
from jcfl.core.costs import operations_of_a_round
from jcfl.core.engine import General
from jcfl.core.streams import round_keys
from jcfl.errors import InputError
from jcfl.fast.factored import REFERENCES, Factored, tile_size
from jcfl.models.convolution import lowering
from jcfl.results.files import replace
from jcfl.runs import devices, hosts
from jcfl.runs.config import Config
from jcfl.runs.environment import processor, versions
from jcfl.runs.one_method import of_method
from jcfl.runs.plan import Plan
from jcfl.runs.sections import Tuned
from jcfl.runs.spare import spare_devices
from jcfl.runs.xla import no_garbage_collection, products_are_free, round_options, seconds_of
from jcfl.types import Algorithm, Cohort, Federation, State
from jcfl.types.target import target

SHARE = 0.05
"""The largest share of a run's expected time that its trials take."""

LONGEST = {"cpu": 8.0, "gpu": 30.0}
"""The most seconds of all trials. XLA compiles a round of a large model for a GPU in 5 to 15 seconds, so with a CPU's
limit an accelerator would try nothing but the constants."""

SHORTEST = 60.0
"""Runs that are expected to take fewer seconds begin without trials, of which each takes some seconds to compile."""

RATE = {"cpu": 5e10, "gpu": 2e13}
"""Operations a second, of a CPU's core, from which the time of a run is expected before anything is measured. On an
NVIDIA H200, rounds of StoCFL's Table 1 and of 1,000 clients with a CNN had 4e13 and 5e13; smaller rounds have less."""

MORE = 2.0
"""Trials are repeated if a run has more than so many times the seconds that the stored ones had for all candidates."""

PART = 0.25
"""The expected seconds of a trial's clients."""

CLUSTERS, EACH = 4, 8
"""The most clusters among which a trial's clients are, and the fewest clients of each, if the cohort has so many."""

BETTER = 0.95
"""A candidate is taken if it needs at most this share of the best time so far; less may be chance."""


class Measured(NamedTuple):
    """A candidate's seconds for the trial's clients, and its memory."""

    seconds: float  # of `Trial.cohort` clients, whatever number was trained
    temporary: int  # bytes that XLA says it works on


class Kept(BaseModel):
    """What trials found, as it is stored."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    choice: Tuned
    each_round: float  # seconds of a round by the first choice
    limit: float  # seconds that the trials had
    complete: bool  # whether there was time to try every candidate

    def holds(self, rounds_in_all: int) -> bool:
        """Whether trials of a run of so many rounds would hardly try more."""
        return self.complete or limit_of(self.each_round * rounds_in_all) <= MORE * self.limit


class TimeOver(Exception):
    """A trial was given up because tracing or compiling took the time of all trials."""


def limit_of(seconds: float) -> float:
    """The most seconds of the trials of a run that takes so many seconds."""
    return min(SHARE * seconds, target().of(LONGEST))


def tuned(plan: Plan) -> Plan:
    """The plan with `config.tuned` filled in: how every method trains, as stored, as tried or by constants.

    A plan whose configuration has it already, because the run is resumed or repeated, is returned as it is.
    """
    if plan.config.tuned is not None:
        return plan
    found = {}
    if not hosts.several() and not plan.context.resources.states_on_host:  # a trial would replace the clients' rows
        work = operations_of_a_round(plan.context)
        found = {title: choice(plan, title, work) for title in plan.algorithms}
    found = {title: one for title, one in found.items() if one != Tuned()}
    return plan._replace(config=plan.config.model_copy(update={"tuned": found}))


def choice(plan: Plan, title: str, work: float) -> Tuned:
    """How one method's clients train, whose training takes so many operations a round."""
    method = plan.algorithms[title].method
    if method is None or not method.train.active or method.train.chained or method.answer.vote is not None:
        return Tuned()
    cores = spare_devices(plan, title, work)
    first = Tuned(devices=cores) if cores > 1 else Tuned()
    if engine(as_tuned(plan, title, first)) != General.name:
        first = Tuned()
    rate = target().of(RATE) * (devices.cores() if target().is_cpu else 1)
    rounds_in_all = plan.config.rounds * plan.config.seeds
    if not plan.config.autotune or work / rate * rounds_in_all < SHORTEST:
        return first
    begin = time.perf_counter()
    trial = Trial(plan, title, work / rate, cores)
    trial.end = begin + limit_of(work / rate * rounds_in_all)
    file = stored(trial.key())
    if file is not None:
        with suppress(OSError, ValueError):  # there is none, or it is damaged
            kept = Kept.model_validate_json(file.read_text("utf-8"))
            if kept.holds(rounds_in_all):
                return kept.choice
    found = searched(trial, first, rounds_in_all, begin)
    if file is not None and found is not None:
        with suppress(OSError, InputError):  # it cannot be kept, so the next run has trials of its own
            replace(file, lambda out: out.write(found.model_dump_json().encode()))
    return first if found is None else found.choice


def as_tuned(plan: Plan, title: str, tuned: Tuned) -> Plan:
    """The part of a plan that is one method's run, as `tuned` says."""
    return of_method(plan._replace(config=plan.config.model_copy(update={"tuned": {title: tuned}})), title)


def engine(plan: Plan) -> str:
    """The engine that trains the clients of a plan's main method."""
    return next(iter(plan.algorithms.values())).engine


class Trial:
    """The training of a part of one method's cohort, which can be compiled and timed as every `Tuned` says."""

    def __init__(self, plan: Plan, title: str, expected: float, cores: int = 1):
        """Take the plan's method `title`, whose rounds are expected to take so many seconds.

        Args:
            cores: the devices that a CPU's clients can be shared out among.
        """
        self.plan, self.title, self.context, self.cores = plan, title, plan.context, cores
        self.method = plan.algorithms[title].method
        slots = min(self.method.group.slots(plan.context), CLUSTERS)
        self.state = zeros(jax.eval_shape(partial(first_state, plan.algorithms[title], slots), plan.federation))
        self.state = self.state.replace(labels=jnp.arange(self.state.labels.size, dtype=jnp.int32) % slots)
        cohort = plan.context.population.cohort
        parts = devices.cores() if target().is_cpu else plan.context.resources.devices
        wanted = max(cohort * PART / max(expected, PART), EACH * slots, plan.context.resources.chunk * parts)
        self.cohort = min(cohort, round(wanted))
        self.end = math.inf  # the time at which all trials have to be over
        self.first = self.lower(Tuned())

    def key(self) -> str:
        """What decides a trial's outcome: the program by constants, what is free to change, machine and versions.

        The room for what is worked on counts in steps of 9 %, because the free memory differs a little between runs.
        """
        config, room = self.plan.config, round(8 * math.log2(self.context.resources.room))
        machine = [target().name, target().platform, devices.cores(), target().is_cpu and processor(), room, versions()]
        free = [config.engine, self.plan.chunk_is_free, self.cores, convolution_is_free(config), products_are_free()]
        parts = [machine, free, self.cohort, self.first[0].as_text()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def engine(self, tuned: Tuned) -> str:
        """The engine that trains as `tuned` says."""
        return engine(as_tuned(self.plan, self.title, tuned))

    def context_of(self, tuned: Tuned) -> Context:
        """The context of the run as `tuned` says, with the tiles of its whole cohort."""
        plan = as_tuned(self.plan, self.title, tuned)
        if engine(plan) != Factored.name:
            return plan.context
        tile = tile_size(plan.context.task, plan.context, len(REFERENCES))
        return plan.context._replace(resources=plan.context.resources._replace(tile=tile))

    def with_size(self, tuned: Tuned, factor: float, whole: Callable[[float], int] = round) -> Tuned | None:
        """`tuned` with so many times as many clients at a time; None where that is no other number or not allowed."""
        context = self.context_of(tuned)
        field = "chunk" if context.resources.tile is None else "tile"
        if field == "chunk" and not self.plan.chunk_is_free:
            return None
        size, most = getattr(context.resources, field), -(-context.population.cohort // context.resources.devices)
        new = max(1, min(most, whole(size * factor)))
        return tuned.model_copy(update={field: new}) if new != size else None

    def with_room(self, tuned: Tuned, found: Measured, share: float) -> Tuned | None:
        """`tuned` with as many more clients at a time as the memory has room for; None where that are no more.

        What does not grow with the clients counts as if it did, so that the new chunk takes less than the room. Tiles
        are limited by what they cost and not by memory, so they get twice as many clients at most.

        Args:
            found: what was measured of `tuned`.
            share: of the growth, as an exponent: 1 for the largest chunk, 0.5 for one between.
        """
        before = self.context_of(tuned).resources
        growth = before.room / found.temporary if found.temporary and before.tile is None else 2.0
        new = self.with_size(tuned, growth**share, math.floor) if growth > 1 else None
        if new is None or before.tile is not None:
            return new
        return new if self.context_of(new).resources.chunk > before.chunk else None  # made even, it may be as before

    def clients(self, context: Context) -> int:
        """How many clients a trial trains; on an accelerator whole chunks, since one that is not full takes as long."""
        resources = context.resources
        if target().is_cpu or resources.tile is not None:
            return self.cohort
        together = resources.chunk * resources.devices
        return min(context.population.cohort, -(-self.cohort // together) * together)

    def lower(self, tuned: Tuned) -> tuple[jax.stages.Lowered, tuple[Any, ...]]:
        """The training as `tuned` says, not yet compiled, and its arguments."""
        context = self.context_of(tuned)
        federation = devices.on_devices(self.plan.federation, context.resources.devices)
        state = devices.on_devices(self.state, context.resources.devices)
        count = self.clients(context)
        context = context._replace(population=context.population._replace(cohort=count))
        who = np.linspace(0, self.state.labels.size - 1, count).astype(np.int32)
        cohort = Cohort(jnp.asarray(who), jnp.ones(count, bool))
        grouping = self.method.group.grouping(self.method, context)
        keep = rounds.needs_uploads(grouping, aggregates.bounds(self.method, context))
        _, train = rounds.training(self.method, context, keep)

        def once(state: State, federation: Federation):
            keys = round_keys(state.key, state.round)
            _, _, uploads, sums = train(keys, state, cohort, federation, cohort.present.sum())
            return uploads, sums

        with no_garbage_collection():
            return jax.jit(once).lower(state, federation), (state, federation)

    def go_on(self) -> None:
        """Raise `TimeOver` where the time of all trials is over."""
        if time.perf_counter() > self.end:
            raise TimeOver

    def measure(self, tuned: Tuned) -> Measured:
        """Compile the training and time it: the first time does not count, as memory is taken then.

        Raises:
            TimeOver: the time of all trials was over before the training could be timed.
        """
        self.go_on()
        same = tuned == Tuned(products=tuned.products)  # the library is chosen when a program is compiled
        lowered, arguments = self.first if same else self.lower(tuned)
        self.go_on()
        program = lowered.compile(round_options(self.context_of(tuned)))
        self.go_on()
        run = lambda: seconds_of(program, *arguments)[0]
        run()
        times = [run()]
        while sum(times) < PART and len(times) < 5:
            times.append(run())
        size, each = program.memory_analysis(), self.cohort / self.clients(self.context_of(tuned))
        return Measured(min(times) * each, size.temp_size_in_bytes if size is not None else 0)


def searched(trial: Trial, first: Tuned, rounds_in_all: int, begin: float) -> Kept | None:
    """The best of the candidates that there is time to try, the constants' choice `first` among them.

    The time is that of the run as it was expected, until `first` is measured; then of the run as it was measured.

    Args:
        rounds_in_all: of all seeds, from which the time for trials follows.
        begin: when the trials began, by `time.perf_counter`.

    Returns:
        None if there are candidates and none of them was tried, so that nothing is known.
    """
    try:
        best, least = first, trial.measure(first)
    except (TimeOver, jax.errors.JaxRuntimeError):  # of too little memory, for which the run takes fewer clients
        return None
    took = time.perf_counter() - begin
    each_round = least.seconds * trial.context.population.cohort / trial.cohort
    limit = limit_of(each_round * rounds_in_all)
    trial.end = begin + limit
    tried, complete = 0, True
    for change in changes(trial):
        tuned = change(best, least)
        if tuned is None:
            continue
        if time.perf_counter() + took > trial.end:
            complete = False
            continue
        try:
            found = trial.measure(tuned)
        except TimeOver:
            complete = False
            continue
        except (InputError, jax.errors.JaxRuntimeError):  # it cannot be had, or takes more memory than there is
            continue
        finally:
            tried += 1
        if found.seconds < BETTER * least.seconds and found.temporary <= trial.context.resources.room:
            best, least = tuned, found
    known = complete or tried > 0
    return Kept(choice=best, each_round=each_round, limit=limit, complete=complete) if known else None


Change = Callable[[Tuned, Measured], Tuned | None]
"""A candidate, of the best one so far and what was measured of it; None where the change has no meaning for it."""


def changes(trial: Trial) -> Iterator[Change]:
    """The candidates, each as a change of the best one so far."""
    config, cores = trial.plan.config, trial.cores

    def other_devices(best: Tuned, found: Measured) -> Tuned | None:
        return best.model_copy(update={"devices": 1 if (best.devices or 1) > 1 else cores}) if cores > 1 else None

    def other_products(best: Tuned, found: Measured) -> Tuned | None:
        return best.model_copy(update={"products": "eigen"}) if products_are_free() else None

    def other_engine(best: Tuned, found: Measured) -> Tuned | None:
        other = "general" if trial.engine(best) == Factored.name else Factored.name
        return (
            best.model_copy(update={"engine": other, "chunk": None, "tile": None}) if config.engine == "auto" else None
        )

    def other_convolution(best: Tuned, found: Measured) -> Tuned | None:
        other = "native" if lowering(target().platform) == "patches" else "patches"
        return best.model_copy(update={"convolution": other}) if convolution_is_free(config) else None

    yield other_devices
    yield other_products
    yield other_engine
    if not target().is_cpu:  # larger chunks first: they are what an accelerator most likely wants, and time is limited
        yield lambda best, found: trial.with_room(best, found, 1.0)
        yield lambda best, found: trial.with_room(best, found, 0.5)
    yield lambda best, found: trial.with_size(best, 0.25)
    yield lambda best, found: trial.with_size(best, 0.5)
    if target().is_cpu:
        yield lambda best, found: trial.with_size(best, 2.0)
    yield other_convolution


def convolution_is_free(config: Config) -> bool:
    """Whether the model has convolutions whose way the configuration leaves open."""
    return config.model.options.get("convolution") == "auto"


def first_state(algorithm: Algorithm, slots: int, federation: Federation) -> State:
    """The state before the first round with fewer slots for clusters, which is all that training looks at."""
    state = algorithm.init(jax.random.key(0), federation)
    fewer = lambda tree: jax.tree.map(lambda leaf: leaf[:slots], tree)
    return state.replace(clusters=fewer(state.clusters), server=fewer(state.server))


def zeros(shapes: Any) -> Any:
    """A tree of zeros, and keys where there are keys."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    make = lambda leaf: jax.random.key(0) if is_key(leaf) else jnp.zeros(leaf.shape, leaf.dtype)
    return jax.tree.map(make, shapes)


def stored(key: str) -> Path | None:
    """The file that keeps the outcome of a trial, beside the compiled programs; None where those are not kept."""
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    return Path(folder) / f"tuned-{key}.json" if folder else None
