"""What a run depends on besides its configuration: package versions, the device, the cache of compiled programs."""

import functools
import importlib.metadata
import math
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jcfl import registry
from jcfl.errors import InputError
from jcfl.version import __version__

PACKAGES = ("jcfl", "jax", "jaxlib", "flax", "optax", "numpy")

SHORTEST = 0.2
"""Programs that compile in fewer seconds than this are not kept on disk."""


SETTINGS = {
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_disable_most_optimizations": False,
    "jax_enable_x64": False,
    "jax_high_dynamic_range_gumbel": False,
    "jax_random_seed_offset": 0,
    "jax_threefry_partitionable": True,
}
"""Settings of JAX that change results, such as random numbers or the last bits of sums, with their defaults."""


def made_by(before: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The versions, those of plug-ins too, the commit, the device, and settings of JAX and XLA that may change scores.

    Args:
        before: what an earlier process of the same run said. Its command stays; all else becomes an entry of `earlier`,
            if something of it was another one.
    """
    devices = jax.local_devices()
    device = {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}
    now = {"versions": {"python": platform.python_version(), **versions()}, "device": device}
    changed = {name: value for name, value in of_jax().items() if value != SETTINGS[name]}
    now |= {"settings": changed} if changed else {}
    now |= {"xla_flags": flags} if (flags := os.environ.get("XLA_FLAGS", "").strip()) else {}
    now |= {"commit": commit()} if commit() else {}
    then = {key: value for key, value in before.items() if key not in ("command", "earlier")}
    earlier = [*before.get("earlier", []), *([then] if then not in ({}, now) else [])]
    kept = {"earlier": earlier} if earlier else {}
    command = {"command": before["command"]} if "command" in before else {}
    return now | kept | command


@functools.cache
def commit() -> str:
    """The commit of the checkout that jcfl runs from, with `-dirty` where files differ; empty if it is none."""
    here = Path(__file__)
    git = lambda *words: subprocess.run(["git", "-C", here.parent, *words], capture_output=True, text=True, check=True)
    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def of_jax() -> dict[str, Any]:
    """The settings of JAX that change results, as they are now."""
    return {name: setting(name, default) for name, default in SETTINGS.items()}


def setting(name: str, default: Any) -> Any:
    """A setting of JAX as it is now; the default where this version of JAX does not have it."""
    whole = jax.config.values.get(name, default)  # pyright: ignore[reportAttributeAccessIssue]
    return getattr(jax.config, name, whole)  # a context may have changed it; not all settings are attributes


def versions() -> dict[str, str]:
    """The versions of the packages, plug-ins among them, that a run's scores may depend on."""
    plugins = (plugin.package.partition(" ") for plugin in registry.plugins() if not plugin.error)
    return {name: version(name) for name in PACKAGES} | {name: number for name, _, number in plugins}


@functools.cache  # reading an installed package's description takes a millisecond, and a sweep asks at every point
def version(package: str) -> str:
    """The version of an installed package; jcfl's own version where jcfl runs without being installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return __version__


NAMES = ("model name", "CPU implementer", "CPU part")
"""What /proc/cpuinfo calls a processor: by its name, or on ARM by two numbers."""


@functools.cache
def processor() -> str:
    """The name of this machine's processor; a coarser name where the system is not Linux."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()]
    except OSError:
        lines = []
    names = dict.fromkeys(value.strip() for key, _, value in lines if key.strip() in NAMES)
    return ", ".join(names) or platform.processor() or platform.machine()


NO_GUARD = ("allow", None, "log", "log_explicit")
"""Values of JAX's guards of transfers that refuse none."""

NEEDED: dict[str, tuple[Any, ...]] = {
    "jax_default_prng_impl": ("threefry2x32",),
    "jax_disable_jit": (False,),
    "jax_numpy_dtype_promotion": ("standard",),
    "jax_numpy_rank_promotion": ("allow", "warn"),
    "jax_transfer_guard": NO_GUARD,
    "jax_transfer_guard_device_to_device": NO_GUARD,
    "jax_transfer_guard_device_to_host": NO_GUARD,
    "jax_transfer_guard_host_to_device": NO_GUARD,
}
"""Settings of JAX with the values by which rounds can be compiled and run, and seeds give the same results again."""

HINTS = {
    "jax_default_prng_impl": "; with others a client's random numbers depend on which clients train beside it",
    "jax_disable_jit": "; a piece prints with jax.debug.print, also where it is compiled",
}
"""Why other values are refused, or what to do in their place, by setting."""


def refuse_settings() -> None:
    """Refuse settings of JAX with which no run can be trained.

    Raises:
        InputError: the line names the setting.
    """
    for name, values in NEEDED.items():
        value = setting(name, values[0])
        if value not in values:
            value = getattr(value, "value", value)  # of an enumeration
            raise InputError(f"{name} is {value!r}, and jcfl needs {values[0]!r}{HINTS.get(name, '')}")


def use_cache() -> None:
    """Keep compiled programs on disk, so that later processes need not compile them again.

    This sets JAX's persistent compilation cache for the whole process. The command line calls it; `jcfl.run` and
    `jcfl.sweep` do not, so a program that wants the cache calls `jcfl.use_cache()` first. The folder is the value of
    the environment variable JCFL_CACHE, by default `~/.cache/jcfl/xla`. Nothing changes if JCFL_CACHE is empty, if JAX
    already has a cache folder, or if the folder cannot be created or read, such as that of an account without a home.
    If the folder may not be written to, as where another account made it, only what is in it is used.
    """
    chosen = os.environ.get("JCFL_CACHE")
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None or chosen == "":
        return
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(chosen) if chosen else Path(caches or Path.home() / ".cache") / "jcfl" / "xla"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a RuntimeError where there is no home
        return
    if not os.access(folder, os.R_OK | os.X_OK):
        return
    shortest = SHORTEST if os.access(folder, os.W_OK) else math.inf  # else JAX warns of every program that it compiles
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", shortest)
