"""The compiled parts of a run: for one lane, or for several that train side by side."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jcfl.core.evaluation import with_validation
from jcfl.runs.devices import cores, keys_on_devices, on_every_device, placed_shapes, state_on_devices
from jcfl.runs.xla import cheap_options, compiled_at, no_garbage_collection, one_at_a_time, refuse_too_large, tidy
from jcfl.types import Algorithm, Array, Federation, State
from jcfl.types.target import target

Scalars = Mapping[str, Array]
"""Values of options by dotted name; `[lanes]` each where several lanes run side by side."""

Options = Mapping[str, Any] | None
"""XLA's options of a compilation."""


class Lanes(struct.PyTreeNode):
    """The states of lanes, each of which runs by itself."""

    states: list[State]

    @property
    def round(self) -> np.ndarray:
        """How many rounds every lane has trained. [lanes]"""
        return np.stack([state.round for state in self.states])

    @property
    def failed(self) -> np.ndarray:
        """The round and the cluster in which every lane failed, -1 if it has not. [lanes, 2]"""
        return np.stack([state.failed for state in self.states])

    @property
    def ended(self) -> np.ndarray:
        """The round at which a stop condition ended every lane's training; `NEVER` before. [lanes]"""
        return np.stack([state.ended for state in self.states])


Running = State | Lanes
"""The state of one lane, or the states of several, along a leading axis or in a list, as the programs need them."""


class Programs(NamedTuple):
    """The three compiled parts of a run."""

    init: Callable[..., Running]  # (keys, federation)
    advance: Callable[..., Running]  # (state, federation, until); the state passed to it cannot be used again
    evaluate: Callable[..., dict[str, Array]]  # (state, federation); `[lanes, ...]` each where there are several
    seconds: float  # spent compiling
    devices: int = 1  # that share the clients
    parted: Callable[[State], Running] = lambda state: state  # makes a running state of one with an axis of lanes
    joined: Callable[[Any], State] = lambda state: state  # makes a state with an axis of lanes of a running one


class Family(NamedTuple):
    """Programs that were compiled once, and run for any values of some options."""

    init: Callable[..., Running]  # (keys, scalars, federation)
    advance: Callable[..., Running]  # (state, scalars, federation, until)
    evaluate: Callable[..., dict[str, Array]]  # (state, scalars, federation)
    seconds: float  # spent compiling
    devices: int = 1
    places: Any = None  # the shardings of a state, if there are several devices
    parted: Callable[[State], Running] = lambda state: state
    joined: Callable[[Any], State] = lambda state: state

    def with_values(self, scalars: Scalars) -> Programs:
        """The programs for some values of the options, `[lanes]` each."""
        return Programs(
            lambda keys, federation: self.init(keys, scalars, federation),
            lambda state, federation, until: self.advance(state, scalars, federation, until),
            lambda state, federation: self.evaluate(state, scalars, federation),
            self.seconds,
            self.devices,
            self.parted,
            self.joined,
        )


Compiling = Callable[[], Family]
"""Programs that other threads compile; the call waits for them, and raises what their compilation raised."""


def programs(
    algorithm: Algorithm, federation: Federation, seeds: int, devices: int = 1, options: Options = None
) -> Programs:
    """An algorithm compiled for a federation, for one seed or for several side by side; see `begun`."""
    return begun(algorithm, federation, seeds, devices, options)().with_values({})


def with_an_axis(
    algorithm: Algorithm, federation: Federation, seeds: int, devices: int = 1, options: Options = None
) -> Programs:
    """As `programs`, but several seeds are an axis of one program also on a CPU, where `programs` uses threads."""
    return compiling(lambda scalars: algorithm, {}, federation, seeds, devices, options)().with_values({})


class Parts(NamedTuple):
    """Which programs a run calls besides the one that makes its first state."""

    rounds: bool = True
    evaluation: bool = True


ALL = Parts()
"""What a run that trains calls."""


def try_out(algorithm: Algorithm, federation: Federation, parts: Parts = ALL) -> None:
    """Trace the programs of one lane and compile nothing, so that what they refuse is refused at once."""
    with no_garbage_collection():
        state = jax.eval_shape(algorithm.init, jax.random.key(0), federation)
        if parts.rounds:
            jax.eval_shape(step_of(algorithm), state, federation)
        if parts.evaluation:
            jax.eval_shape(judge_of(algorithm), state, federation)


def step_of(algorithm: Algorithm) -> Callable[[State, Federation], State]:
    """One round of an algorithm, on the data that clients have in this round."""
    return lambda state, federation: algorithm.step(state, federation.at(state.round))


def judge_of(algorithm: Algorithm) -> Callable[[State, Federation], Any]:
    """The evaluation of an algorithm, on the data that clients had in the last round."""
    evaluate = with_validation(algorithm.evaluate)
    return lambda state, federation: evaluate(state, federation.at(state.round - 1))


def begun(
    algorithm: Algorithm,
    federation: Federation,
    seeds: int,
    devices: int = 1,
    options: Options = None,
    parts: Parts = ALL,
) -> Compiling:
    """The programs of `programs`, traced here; they are compiled while the caller goes on."""
    return family_begun(lambda scalars: algorithm, {}, federation, seeds, devices, options, parts)


def family_begun(
    make: Callable[[Scalars], Algorithm],
    like: Scalars,
    federation: Federation,
    lanes: int,
    devices: int = 1,
    options: Options = None,
    parts: Parts = ALL,
) -> Compiling:
    """One program for algorithms that differ in scalar options, traced here and compiled while the caller goes on.

    On a CPU, several threads run the program of one lane. Its results are then those of a run by itself, and it is
    several times faster than a program with an axis of lanes: there `cond` computes both branches for all lanes, and
    loops copy the states that they change.

    Args:
        make: builds the algorithm while it is traced.
        like: options of the shapes that they will have.
        lanes: how many runs, of seeds or of options and seeds, go side by side.
        devices: how many devices share the clients; all of them hold the states and the results.
        options: XLA's options for rounds, such as those of `round_options`.
        parts: what is called; a program that is not is not compiled either.
    """
    several = threaded if lanes > 1 and target().is_cpu else compiling
    return several(make, like, federation, lanes, devices, options, parts)


def compiling(
    make: Callable[[Scalars], Algorithm],
    like: Scalars,
    federation: Federation,
    lanes: int,
    devices: int,
    options: Options,
    parts: Parts = ALL,
    stop_early: bool = True,
) -> Compiling:
    """Programs with an axis of lanes if there are several; see `family_begun`.

    Args:
        stop_early: whether a block of rounds ends when all lanes have failed.
    """
    where = on_every_device(devices) if devices > 1 else None
    several = (lambda function, axes: jax.vmap(function, axes)) if lanes > 1 else (lambda function, axes: function)
    init = jax.jit(several(lambda key, scalars, federation: make(scalars).init(key, federation), (0, 0, None)))
    step = several(lambda state, scalars, federation: step_of(make(scalars))(state, federation), (0, 0, None))
    evaluate = several(lambda state, scalars, federation: judge_of(make(scalars))(state, federation), (0, 0, None))

    def advance(state: State, scalars: Scalars, federation: Federation, until: Array) -> State:
        sound = lambda state: (state.failed < 0).all(-1).any() | (not stop_early)
        going = lambda state: (state.round < until).all() & sound(state)
        return jax.lax.while_loop(going, lambda state: step(state, scalars, federation), state)

    start = time.perf_counter()
    first = keys(range(lanes), devices)
    seldom = cheap_options()  # a run's time is that of its rounds
    pool = ThreadPoolExecutor(3)  # XLA lets other threads run while it compiles
    compiled = lambda lowered, own: pool.submit(compiled_at, lowered, own)
    try:
        with no_garbage_collection():
            state = jax.eval_shape(init, first, like, federation)
            placed = state_on_devices(state, devices, lanes) if devices > 1 else None
            if placed is not None:
                state = placed_shapes(state, placed)
            begin = init if placed is None else jax.jit(init, out_shardings=placed)
            futures = {}
            if parts.rounds:  # first: it takes the longest
                rounds = jax.jit(advance, donate_argnums=0, out_shardings=placed)
                futures["advance"] = compiled(rounds.lower(state, like, federation, np.int32(0)), options)
            futures["init"] = compiled(begin.lower(first, like, federation), seldom)
            if parts.evaluation:
                judged = jax.jit(evaluate, out_shardings=where)
                futures["evaluate"] = compiled(judged.lower(state, like, federation), seldom)
    finally:
        pool.shutdown(wait=False)

    def wait() -> Family:
        found = {name: future.result() for name, future in futures.items()}
        tidy()
        refuse_too_large(**{name: program for name, (program, _) in found.items()})
        called = {name: one_at_a_time(program) for name, (program, _) in found.items()}
        seconds = max(end for _, end in found.values()) - start
        made = {"advance": uncalled, "evaluate": uncalled} | called
        return Family(**made, seconds=seconds, devices=devices, places=placed)

    return wait


def uncalled(*arguments: Any) -> Any:
    """In place of a program that a run was said not to call."""
    raise AssertionError("this program was not compiled")


def threaded(
    make: Callable[[Scalars], Algorithm],
    like: Scalars,
    federation: Federation,
    lanes: int,
    devices: int,
    options: Options,
    parts: Parts,
) -> Compiling:
    """The programs of one lane, which as many threads as there are cores run for several lanes."""
    where = on_every_device(devices) if devices > 1 else None
    split = jax.jit(lambda tree: [jax.tree.map(lambda leaf: leaf[i], tree) for i in range(lanes)], out_shardings=where)
    join = jax.jit(lambda trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees), out_shardings=where)
    started = compiling(make, split(like)[0], federation, 1, devices, options, parts, stop_early=False)
    return lambda: on_threads(started(), lanes, split, join)


def on_threads(one: Family, lanes: int, split: Callable[[Any], list[Any]], join: Callable[[list[Any]], Any]) -> Family:
    """The programs of one lane for several.

    Args:
        split: makes the lanes' trees of a tree with a leading axis of lanes.
        join: makes a tree with a leading axis of the lanes' trees.
    """
    workers = min(lanes, cores()) if one.devices == 1 else 1  # devices wait for each other: one order of lanes for all
    pool = ThreadPoolExecutor(workers)

    def init(keys: Array, scalars: Scalars, federation: Federation) -> Lanes:
        begin: Callable[..., Any] = lambda key, scalars: one.init(key, scalars, federation)
        return Lanes(list(pool.map(begin, split(keys), split(scalars))))

    def advance(lanes: Lanes, scalars: Scalars, federation: Federation, until: Array) -> Lanes:
        turns = 1 if len(lanes.states) % workers == 0 else workers  # parts of a lane keep all threads equally busy
        stops = np.linspace(np.min(lanes.round), until, turns + 1).astype(np.int32)[1:]
        values, running = split(scalars), [finished_future(state) for state in lanes.states]

        def go(before: Future[State], values: Scalars, stop: np.int32) -> State:
            return jax.block_until_ready(one.advance(before.result(), values, federation, stop))

        for stop in stops:
            running = [pool.submit(go, before, own, stop) for before, own in zip(running, values, strict=True)]
        return Lanes([future.result() for future in running])

    def evaluate(lanes: Lanes, scalars: Scalars, federation: Federation) -> dict[str, Array]:
        judge = lambda state, scalars: jax.block_until_ready(one.evaluate(state, scalars, federation))
        return join(list(pool.map(judge, lanes.states, split(scalars))))

    placed = (lambda state: state) if one.places is None else (lambda state: jax.device_put(state, one.places))
    parted = lambda state: Lanes([placed(lane) for lane in split(state)])
    joined = lambda lanes: join(lanes.states)
    return Family(init, advance, evaluate, one.seconds, one.devices, one.places, parted, joined)


def finished_future(state: State) -> Future[State]:
    """A future whose result is there."""
    future = Future()
    future.set_result(state)
    return future


def keys(seeds: Sequence[int], devices: int = 1) -> Array:
    """The keys of seeds that run together, on all devices: one key, or `[seeds]` keys."""
    made = np.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
    return keys_on_devices(made[0] if len(made) == 1 else made, devices)
