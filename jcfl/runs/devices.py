"""The devices of a run, and what several hosts do together: agree on numbers, wait, and write one folder."""

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from jcfl import results
from jcfl.core import chunks, onhost
from jcfl.core.memory import memories
from jcfl.errors import InputError, Notice
from jcfl.results import Folder, Record
from jcfl.runs import hosts
from jcfl.types import Federation, State
from jcfl.types.host import OnHost
from jcfl.types.target import at_hand, target

MOST = 256
"""The most devices that a CPU can count as."""


def device_count(wanted: int | None) -> int:
    """How many devices share the clients: as many as wanted, else all devices of all hosts.

    A CPU counts as one device, unless more devices are wanted before JAX has started, or `use_cores` was called. Where
    no number is wanted, one of a CPU's devices is taken; `jcfl.runs.spare` says for which methods all are.

    Raises:
        InputError: there are fewer devices than wanted, or JAX cannot start on those of JAX_PLATFORMS.
    """
    if wanted is not None and 1 < wanted <= MOST and not hosts.several():
        split_cpu(wanted)
    try:
        there = jax.device_count()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a CUDA plug-in is there
        platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
        why = next(iter(str(error).splitlines()), "it is not there")
        where = f"JAX_PLATFORMS={platforms}: " if platforms else ""
        raise InputError(f"{where}JAX cannot start on this device ({why}); try JAX_PLATFORMS=cpu") from None
    if wanted is not None and wanted > there and not hosts.several():
        raise InputError(
            f"devices: expected at most {there}, got {wanted}; a CPU counts as more, up to {MOST}, only before JAX "
            f"has started, for instance by XLA_FLAGS=--xla_force_host_platform_device_count={min(wanted, MOST)}"
        )
    if wanted is None and target().is_cpu and not hosts.several():
        return 1
    return there if wanted is None or hosts.several() else wanted


def use_cores() -> None:
    """Let a CPU count as one device for each core, so that each core trains its own clients if that is faster.

    The command line does this; a Python program calls `jcfl.use_cores()` before JAX creates its first array; later
    calls only warn. A number of devices in XLA_FLAGS or in JAX's own option is kept.
    """
    if not split_cores() and target().is_cpu and cores() > jax.local_device_count():
        told = "use_cores: JAX has started, so all cores stay one device; call it before the first array is made"
        warnings.warn(told, Notice, stacklevel=2)


def split_cores() -> bool:
    """As `use_cores`, without a warning; whether it was possible, or a number was given before."""
    given = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    return given or parts_of_cpu() > 0 or split_cpu(min(cores(), MOST))


def parts_of_cpu() -> int:
    """As how many devices a CPU counts; not positive if this is not set."""
    return jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]


def split_cpu(count: int) -> bool:
    """Let a CPU count as so many devices; whether that was possible, because JAX had not started."""
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return False
    return True


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_devices(tree: Any, devices: int) -> Any:
    """A tree of arrays, copied to all devices. A CPU does not copy examples in a mapped file: it reads them there.

    For a target that is not at hand nothing is copied, because nothing will run.
    """
    if target() is not at_hand():
        return tree
    return jax.device_put(tree, on_every_device(devices)) if devices > 1 else jax.device_put(tree)


def with_examples_on_host(federation: Federation) -> Federation:
    """The federation whose examples stay on the host when it is copied to devices.

    Raises:
        InputError: there are several hosts, or JAX may not use its CPU, so that programs cannot request rows.
    """
    if isinstance(federation.x, OnHost):
        return federation
    if hosts.several():
        raise InputError("examples: 'host' is for one host; several hosts need examples: device")
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError:
        told = f"JAX_PLATFORMS={jax.default_backend()},cpu"
        raise InputError(f"examples: 'host' needs JAX's CPU beside the device; set {told}") from None
    return federation.replace(x=OnHost(np.asarray(federation.x)))


def on_every_device(devices: int) -> jax.sharding.NamedSharding:
    """The sharding by which every device has a whole copy."""
    return jax.NamedSharding(chunks.device_mesh(devices), jax.P())


def is_divided(state: State, lanes: int = 1) -> Any:
    """Which leaves of a state devices divide among them (see `chunks.divided`), as a tree like it.

    These are the models, optimizer states and the like that clients keep; and the models of many clusters, with what a
    grouping remembers in their shapes. All else is small, and every device has a whole copy.

    Args:
        state: shapes are enough.
        lanes: how many runs the state holds along a leading axis.
    """
    none = lambda tree: jax.tree.map(lambda leaf: False, tree)
    every = lambda tree: jax.tree.map(lambda leaf: True, tree)
    found = none(state)
    lead = 1 + (lanes > 1)
    kept = {name: (every if name in onhost.LARGE else none)(tree) for name, tree in state.clients.items()}
    found, models = found.replace(clients=kept), jax.tree.leaves(state.clusters)
    if not chunks.are_many(models[0].shape[lead - 1], state.labels.shape[-1]):
        return found
    like = {leaf.shape for leaf in models}
    memory = jax.tree.map(lambda leaf: leaf.shape in like, state.memory)
    return found.replace(clusters=every(state.clusters), memory=memory)


def state_on_devices(state: State, devices: int, lanes: int = 1) -> Any:
    """The shardings of a state's leaves, as a tree like it; see `is_divided`."""
    whole, lead = on_every_device(devices), 1 + (lanes > 1)
    place = lambda leaf, divided: chunks.divided(leaf.shape, devices, lead) if divided else whole
    return jax.tree.map(place, state, is_divided(state, lanes))


def placed_shapes(tree: Any, places: Any) -> Any:
    """The shapes of a tree's arrays with the shardings `places`, to compile programs before the arrays exist."""
    at = lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
    return jax.tree.map(at, tree, places)


def bytes_on_device(state: State, devices: int) -> int:
    """How many bytes of a state take memory of one device; shapes are enough. A CPU's devices have one memory."""
    if memories(devices) == 1:
        return bytes_of(state)
    has_axis = lambda leaf: chunks.divided_axis(leaf.shape, devices) is not None
    taken = lambda leaf, divided: bytes_of(leaf) // (devices if divided and has_axis(leaf) else 1)
    return sum(jax.tree.leaves(jax.tree.map(taken, state, is_divided(state))))


def bytes_of(tree: Any) -> int:
    """Bytes of all arrays in a tree; shapes are enough."""
    leaves: Iterable[Any] = jax.tree.leaves(tree)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def keys_on_devices(data: np.ndarray, devices: int) -> jax.Array:
    """Random keys on all devices, made from their data."""
    make = jax.jit(jax.random.wrap_key_data, out_shardings=on_every_device(devices) if devices > 1 else None)
    return make(data)


def over_hosts(value: Any, settle: Callable[..., Any] = np.max) -> Any:
    """The same number on all hosts: `settle` of the numbers that they pass, which is the largest by default."""
    if not hosts.several():
        return value
    from jax.experimental import multihost_utils

    return float(settle(multihost_utils.process_allgather(np.float32(value))))


def wait_for_hosts() -> None:
    """Wait until all hosts have called this function."""
    over_hosts(0)


def folder(path: Path) -> Folder:
    """A run's folder. Of several hosts only the first one writes it."""
    if not hosts.several():
        return Folder(path)
    return WritingFolder(path) if hosts.is_first() else ReadingFolder(path)


class WritingFolder(Folder):
    """A run's folder on the host that writes it."""

    def begin(self, config: str, measured: bool = True) -> None:
        """Make the folder, then let the other hosts go on."""
        super().begin(config, measured)
        wait_for_hosts()


class ReadingFolder(Folder):
    """A run's folder on hosts that do not write it."""

    def begin(self, config: str, measured: bool = True) -> None:
        """Wait until the first host has made the folder."""
        wait_for_hosts()

    def put(self, name: str, write: Callable[[IO[bytes]], Any]) -> None:
        """Write nothing."""

    def append(self, records: Iterable[Record]) -> None:
        """Write nothing."""

    def federation(self, arrays: Callable[[], Mapping[str, np.ndarray]], goes_on: bool = True) -> None:
        """Write nothing, and compute nothing to write."""

    def count(self, name: str) -> None:
        """Write nothing."""

    def settle(self, gone: Collection[str] = ()) -> None:
        """Write nothing."""


@contextmanager
def claimed(folder: Path | None, new: bool, stem: str = "") -> Iterator[Path]:
    """As `jcfl.results.claimed`, by the first host, for all of them; first all hosts meet.

    Raises:
        InputError: the folder cannot be had; on the other hosts too.
    """
    wait_for_hosts()
    with ExitStack() as stack:
        refusal = None
        if hosts.is_first():
            try:
                folder = stack.enter_context(results.claimed(folder, new, stem))
            except InputError as error:
                refusal = error
        if over_hosts(float(refusal is not None)):
            raise refusal or InputError("the first host cannot write the folder; it says why")
        assert folder is not None  # where there are several hosts, a folder has to be named
        yield folder
