"""The compiled parts of a run: for one lane, or for several that train side by side."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jcfl.core.memory import free_memory, return_freed
from jcfl.errors import refuse_beyond_memory
from jcfl.runs.devices import keys_on_devices, on_every_device, over_hosts
from jcfl.types import Algorithm, Array, Federation, State
from jcfl.types.target import target

Scalars = Mapping[str, Array]
"""Values of options by dotted name; `[lanes]` each where several lanes run side by side."""


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


def programs(algorithm: Algorithm, federation: Federation, seeds: int, devices: int = 1) -> Programs:
    """An algorithm compiled for a federation, for one seed or for several side by side."""
    return family(lambda scalars: algorithm, {}, federation, seeds, devices).with_values({})


def family(
    make: Callable[[Scalars], Algorithm], like: Scalars, federation: Federation, lanes: int, devices: int = 1
) -> Family:
    """One compiled program for algorithms that differ in scalar options.

    On a CPU, several threads run the program of one lane. Its results are then those of a run by itself, and it is
    several times faster than a program with an axis of lanes: there `cond` computes both branches for all lanes, and
    loops copy the states that they change.

    Args:
        make: builds the algorithm while it is traced.
        like: options of the shapes that they will have.
        lanes: how many runs, of seeds or of options and seeds, go side by side.
        devices: how many devices share the clients; all of them hold the states and the results.
    """
    several = threaded if lanes > 1 and target().is_cpu else compiled
    return several(make, like, federation, lanes, devices)


def compiled(
    make: Callable[[Scalars], Algorithm],
    like: Scalars,
    federation: Federation,
    lanes: int,
    devices: int,
    stop_early: bool = True,
) -> Family:
    """Programs with an axis of lanes if there are several.

    Args:
        stop_early: whether a block of rounds ends when all lanes have failed.
    """
    where = on_every_device(devices) if devices > 1 else None
    several = (lambda function, axes: jax.vmap(function, axes)) if lanes > 1 else (lambda function, axes: function)
    init = several(lambda key, scalars, federation: make(scalars).init(key, federation), (0, 0, None))
    init = jax.jit(init, out_shardings=where)
    step = several(lambda state, scalars, federation: make(scalars).step(state, federation), (0, 0, None))
    evaluate = several(lambda state, scalars, federation: make(scalars).evaluate(state, federation), (0, 0, None))

    def advance(state: State, scalars: Scalars, federation: Federation, until: Array) -> State:
        sound = lambda state: (state.failed < 0).all(-1).any() | (not stop_early)
        going = lambda state: (state.round < until).all() & sound(state)
        return jax.lax.while_loop(going, lambda state: step(state, scalars, federation), state)

    start = time.perf_counter()
    first = keys(range(lanes), devices)
    state = jax.eval_shape(init, first, like, federation)
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), state)
    lowered = (
        init.lower(first, like, federation),
        jax.jit(advance, donate_argnums=0, out_shardings=where).lower(state, like, federation, np.int32(0)),
        jax.jit(evaluate, out_shardings=where).lower(state, like, federation),
    )
    with ThreadPoolExecutor(len(lowered)) as pool:  # XLA lets other threads run while it compiles
        made = list(pool.map(lambda program: program.compile(), lowered))
    del lowered
    tidy()
    refuse_too_large(made)
    begin, block, figures = map(one_at_a_time, made)
    return Family(begin, block, figures, time.perf_counter() - start, devices)


def refuse_too_large(made: Sequence[jax.stages.Compiled]) -> None:
    """Refuse programs that work on more than the device has free, which XLA knows before they run.

    Raises:
        TooLarge: the line says how much that is.
    """
    sizes = [program.memory_analysis() for program in made]
    each = [size.temp_size_in_bytes + size.output_size_in_bytes - size.alias_size_in_bytes for size in sizes if size]
    advice = "take fewer clients, clusters or classes, or a smaller model"
    room = int(over_hosts(free_memory(), np.min))
    refuse_beyond_memory("a round or an evaluation", max(each, default=0), advice, room)


TRACED = 32
"""How many times something is compiled before JAX's caches are cleared."""
COMPILED = itertools.count(1)


def tidy() -> None:
    """Keep the memory of a process that compiles again and again from growing.

    Compiled programs are freed with their `Family`. But JAX keeps what it has traced of its own functions (`jnp.where`,
    ...) for every new shape, without a limit: about 1 MiB for each new model. The only public way to free this is to
    clear all of JAX's caches. Functions that the user has jitted then compile once more when they are called, so this
    is done seldom: that takes far less time than compiling so many runs.
    """
    if next(COMPILED) % TRACED == 0:
        jax.clear_caches()
    return_freed()


ON_ALL_THREADS = ("lapack_", " fft(")
"""Marks of operations, in a CPU program's text, that wait on a thread of XLA for others of its threads."""
ALONE = threading.Lock()


def one_at_a_time(program: jax.stages.Compiled) -> Callable[..., Any]:
    """The program, run by one thread at a time where it has operations that wait for XLA's other threads.

    XLA has one pool of threads for all programs of a process. A batched factorisation (`eigh`, `svd`, `qr`, ...) on a
    CPU hands its matrices to that pool and waits on a thread of the pool. When several programs do so at once, every
    thread waits and no thread works: they hang for ever (seen with jaxlib 0.10.2).
    """
    text = program.as_text() or "" if target().is_cpu else ""
    if not any(mark in text for mark in ON_ALL_THREADS):
        return program

    def run(*arguments: Any) -> Any:
        with ALONE:
            return jax.block_until_ready(program(*arguments))

    return run


def threaded(
    make: Callable[[Scalars], Algorithm], like: Scalars, federation: Federation, lanes: int, devices: int
) -> Family:
    """The programs of one lane, which as many threads as there are cores run for several lanes."""
    where = on_every_device(devices) if devices > 1 else None
    split = jax.jit(lambda tree: [jax.tree.map(lambda leaf: leaf[i], tree) for i in range(lanes)], out_shardings=where)
    join = jax.jit(lambda trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees), out_shardings=where)
    one = compiled(make, split(like)[0], federation, 1, devices, stop_early=False)
    workers = min(lanes, cores()) if devices == 1 else 1  # devices wait for each other, so they need one order of lanes
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

    parted, joined = (lambda state: Lanes(split(state))), (lambda lanes: join(lanes.states))
    return Family(init, advance, evaluate, one.seconds, devices, parted, joined)


def finished_future(state: State) -> Future[State]:
    """A future whose result is there."""
    future = Future()
    future.set_result(state)
    return future


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keys(seeds: Sequence[int], devices: int = 1) -> Array:
    """The keys of seeds that run together, on all devices: one key, or `[seeds]` keys."""
    made = np.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
    return keys_on_devices(made[0] if len(made) == 1 else made, devices)
