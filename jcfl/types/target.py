"""The device that programs are made for: the one at hand, or one that is not there and only compiled for."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Target:
    """What is known of a device. A number that is not known is NaN."""

    name: str
    platform: str  # cpu, gpu, tpu, or another name of a JAX backend
    memory: int = 0  # bytes that programs may take; 0 to ask JAX each time
    flops: float = float("nan")  # additions and multiplications a second, in float32
    products: float = float("nan")  # the same in products of float32 matrices, at JAX's default precision
    bandwidth: float = float("nan")  # bytes a second between memory and processor
    launch: float = float("nan")  # seconds to start one kernel
    devices: tuple[Any, ...] = ()  # those of a topology that is compiled for; empty for JAX's own

    @property
    def is_cpu(self) -> bool:
        """Whether the device is a CPU."""
        return self.platform == "cpu"

    def of(self, table: Mapping[str, Entry]) -> Entry:
        """Look up the platform's entry in a table; a GPU's where the platform has none of its own."""
        return table.get(self.platform, table["gpu"])


CHOSEN: ContextVar[Target | None] = ContextVar("target", default=None)


@contextmanager
def compiling_for(target: Target) -> Iterator[Target]:
    """Plan, trace and lower for a target that is not at hand, in this thread, until the block ends.

    Engines, sizes of chunks and tiles, and how convolutions run are then those that the target would get. A run has
    to be planned and its programs traced inside the same block; what was traced before keeps its target.
    """
    before = CHOSEN.set(target)
    try:
        yield target
    finally:
        CHOSEN.reset(before)


def target() -> Target:
    """The target of `compiling_for`, else the device at hand."""
    return CHOSEN.get() or at_hand()


@functools.cache
def at_hand() -> Target:
    """JAX's default device; this starts JAX."""
    return Target(jax.local_devices()[0].device_kind, jax.default_backend())


def traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, traced once for all of a run's programs and for all parts of jcfl that ask for shapes.

    Its operations become a part of the program that calls it, as if it were called directly. Each target has a trace of
    its own, because some operations, such as convolutions, run differently.
    """
    of_target = functools.cache(lambda target: jax.jit(lambda *given, **named: function(*given, **named), inline=True))
    return lambda *given, **named: of_target(target())(*given, **named)
