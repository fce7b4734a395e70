"""How XLA compiles the programs of a run: with which options, whether they fit, and what is freed afterwards."""

import functools
import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import jax
import numpy as np

from jcfl.core.context import Context
from jcfl.core.costs import operations_of_a_round
from jcfl.core.memory import free_memory, return_freed
from jcfl.errors import refuse_beyond_memory
from jcfl.runs.devices import over_hosts
from jcfl.types.target import target


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's garbage collector switched off: looking through all that a trace makes took a quarter of its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def compiled_at(program: jax.stages.Lowered, options: Mapping[str, Any] | None) -> tuple[jax.stages.Compiled, float]:
    """A program compiled with XLA's `options`, and the time at which it was."""
    return program.compile(dict(options) if options else None), perf_counter()


def seconds_of(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """The seconds that a compiled function takes, and its result."""
    jax.block_until_ready(arguments)
    start = perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return perf_counter() - start, result


CHEAP = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_llvm_disable_expensive_passes": True,
}
"""XLA's options with which a CPU's program compiles in about half of the time, and may run a little slower."""

LIGHT = {"xla_cpu_use_fusion_emitters": False}
"""XLA's options with which a CPU's rounds of little work compile in two thirds of the time, and run as fast. Rounds of
convolutions are about 6 % slower with them."""

LITTLE = 4e9
"""The fewest operations of a round that a CPU's program is compiled for with XLA's usual options."""

EIGEN = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""XLA's options with which a CPU's matrix products come from Eigen. By default XLA takes most of them from YNNPACK. Two
Intel Xeon cores computed large products up to 1.5 times as fast with Eigen, and rounds of an MLP in 0.9 of the time."""

LIBRARY = {"xla_gpu_enable_triton_gemm": False}
"""XLA's options with which a GPU's program takes all matrix products from the vendor's library. By default, XLA writes
many kernels for each product, and measures them. StoCFL's round of Table 1 compiled in 4.7 seconds with the library and
in 37.9 without on an NVIDIA H200, and took 21.8 ms and 17.5 ms: 7,700 rounds make up for the compilation."""


def cheap_options() -> dict[str, Any] | None:
    """XLA's options for programs that run once in a while; what the user's XLA_FLAGS say goes before."""
    return taken(CHEAP)


def round_options(context: Context) -> dict[str, Any] | None:
    """XLA's options for rounds, by their work: the same for any number of rounds, so that a longer run agrees."""
    light = LIGHT if operations_of_a_round(context) < LITTLE else {}
    return taken({**light, **(EIGEN if context.resources.products == "eigen" else {})})


def products_are_free() -> bool:
    """Whether there is another library of products than XLA's choice, which the user's XLA_FLAGS leave open."""
    return target().is_cpu and taken(EIGEN) is not None


def taken(of_cpu: Mapping[str, Any]) -> dict[str, Any] | None:
    """XLA's options for a program on the target: `of_cpu` on a CPU, `LIBRARY` on a GPU, and none on other devices.

    An option is left out if the user's XLA_FLAGS name it, or if the installed version of XLA does not know it.
    """
    options = of_cpu if target().is_cpu else LIBRARY if target().platform == "gpu" else {}
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if name not in flags and is_known(name, value)} or None


@functools.cache
def is_known(name: str, value: Any) -> bool:
    """Whether XLA takes an option."""
    try:
        jax.jit(lambda: 0).lower().compile({name: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True


def refuse_too_large(
    init: jax.stages.Compiled, advance: jax.stages.Compiled | None = None, evaluate: jax.stages.Compiled | None = None
) -> None:
    """Refuse programs that take more than the device has free, which XLA knows before they run.

    Rounds write the new state in place of the old one, and an evaluation has the state beside what it makes.

    Args:
        init, advance, evaluate: the programs of a run, of which some may not be called.

    Raises:
        TooLarge: the line says how much that is.
    """
    sizes = [program and program.memory_analysis() for program in (init, advance, evaluate)]
    if sizes[0] is None:  # not every backend says it
        return
    state = sizes[0].output_size_in_bytes
    made = lambda size: size.temp_size_in_bytes + size.output_size_in_bytes if size else 0
    first, each_round, evaluation = map(made, sizes)
    need = max(first, each_round, evaluation + state)
    advice = "take fewer clients, clusters or classes, or a smaller model"
    refuse_beyond_memory("a round or an evaluation", need, advice, int(over_hosts(free_memory(), np.min)))


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
