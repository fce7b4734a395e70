"""How much memory there is, how many clients train at a time within it, and what a process takes and gives back."""

import ctypes
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.errors import available_memory
from jcfl.types import Federation, Model, Task
from jcfl.types.target import target

CACHED = 4 * 2**20
"""The most bytes of a chunk on a CPU, whose caches hold no larger ones. On one Intel core, MLPs of 10 to 800 units on
28 × 28 pixels took the least time with one client at a time, and 8 % to 30 % more with four. Models of less than a
megabyte took as long with one client as with five."""


def chunk_size(task: Task, federation: Federation, cohort: int, batch: int, models: int, budget: int) -> int:
    """How many clients train at a time within `budget` bytes: chunks of even sizes, and as few as possible.

    Args:
        cohort: how many clients train in a round.
        batch: rows in one local step.
        models: copies of a model that one client's training holds (itself, its gradient, its update, …).
    """
    one = jax.eval_shape(task.init, jax.random.key(0))
    row = math.prod(federation.x.shape[1:]) * 4
    weights = trees.parameters(one) * 4 * models
    activations = batch * (row + activation_bytes(task, one, federation))
    client = weights + 2 * activations + federation.train.width * row
    budget = min(budget, CACHED) if target().is_cpu else budget
    most = max(1, min(cohort, budget // max(client, 1)))
    return -(-cohort // -(-cohort // most))


WORKED_ON = {"cpu": 32 * 2**20}
"""By platform, the bytes of intermediate results of the examples that go through a model at a time. On two AMD EPYC
cores, 64 to 128 examples at a time took half as long as 1,024 with `cnn_cifar`. With MLPs, 1,024 was fastest."""

MOST_WORKED_ON = 4 * 2**30
"""The same for other platforms, which need more examples to be busy."""


def rows_at_once(task: Task, federation: Federation) -> int:
    """How many examples go through a model at a time, where it is only evaluated: a power of two."""
    one = jax.eval_shape(task.init, jax.random.key(0))
    room = WORKED_ON.get(target().platform, MOST_WORKED_ON)
    rows = room / max(1, activation_bytes(task, one, federation))
    return 2 ** round(min(max(math.log2(rows), 4), 10 if target().is_cpu else 13))


def activation_bytes(task: Task, one: Model, federation: Federation) -> int:
    """Bytes of all intermediate results of one example's forward pass."""
    x = jax.ShapeDtypeStruct((1, *federation.x.shape[1:]), jnp.float32)
    equations = jax.make_jaxpr(lambda model, x: task.apply(model, x)[0])(one, x).jaxpr.eqns
    inside = {leaf.shape for leaf in jax.tree.leaves(one)}
    sizes = [math.prod(v.aval.shape) * 4 for e in equations for v in e.outvars if v.aval.shape not in inside]
    return sum(sizes)


def memory_budget() -> int:
    """How many bytes a round may take for its clients: a quarter of the free memory, and on a CPU at most 2 GiB."""
    room = free_memory() // 4
    return min(room, 2 * 2**30) if target().is_cpu else room


def memories(devices: int) -> int:
    """How many memories hold what devices divide among them: one on a CPU, or on several hosts, which have copies."""
    return 1 if target().is_cpu or jax.process_count() > 1 else devices


def free_memory() -> int:
    """How many bytes the first device has free, or the host where the device does not say.

    A target that is not at hand is taken to be empty.
    """
    if target().memory:
        return target().memory
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return available_memory()


def peak_memory() -> int:
    """The most bytes that this process, or the device that took most, has held so far."""
    devices = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()]
    return max(most_resident(), *devices)


def most_resident() -> int:
    """The most bytes of the host's memory that this process has held so far.

    On Linux `ru_maxrss` of a new program begins at the memory of the process that started it. The peak is therefore
    read from /proc, unless it is not there, as in some containers (gVisor).
    """
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        for line in lines:
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    import resource  # which Windows does not have

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def most_open_files() -> int | None:
    """How many files this process may have open at a time; None where there is no limit."""
    if sys.platform == "win32":
        return 8192  # the limit of Microsoft's C library, by which Python opens files
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files if files != resource.RLIM_INFINITY else None


def return_freed() -> None:
    """Give the system the memory that this process has freed; does nothing where the C library is not glibc.

    XLA compiles on many threads. glibc has a heap for each of them, and keeps what is freed there: hundreds of MiB
    after some programs.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
