"""Devices that need not be there to be compiled for: what is known of them, and their topologies."""

import importlib.util
import os
from dataclasses import replace
from typing import Any, NamedTuple

from jcfl.errors import InputError, unknown
from jcfl.types.target import Target

GIB = 2**30


class Gpu(NamedTuple):
    """What XLA needs to know of an NVIDIA device, from its data sheet and CUDA's table of compute capabilities."""

    capability: tuple[int, int]
    cores: int  # multiprocessors
    fpus: int  # float32 units of a multiprocessor
    threads: int  # that a multiprocessor holds
    shared: int  # bytes of shared memory of a multiprocessor
    cache: int  # bytes of the second level
    clock: float  # GHz
    memory: int  # bytes of the whole device


class Absent(NamedTuple):
    """A target, and how JAX calls its topology."""

    target: Target
    topology: str  # of all devices: `1x1x8`, or as TPUs are named
    devices: int  # that share the clients
    gpu: Gpu | None = None

    @property
    def package(self) -> tuple[tuple[str, ...], str]:
        """The modules that have the compiler, of which one is enough, and what to install for it."""
        cuda = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
        return (cuda, "jax[cuda12]") if self.gpu else (("libtpu",), "jax[tpu]")


GPUS = {
    "h200": (Gpu((9, 0), 132, 128, 2048, 233472, 52428800, 1.98, 151397597184), 4.8e12, 66.9e12, 494.7e12),
    "h100": (Gpu((9, 0), 132, 128, 2048, 233472, 52428800, 1.98, 84942979072), 3.352e12, 66.9e12, 494.7e12),
    "a100": (Gpu((8, 0), 108, 64, 2048, 167936, 41943040, 1.41, 85100068864), 2.039e12, 19.5e12, 156e12),
    "l4": (Gpu((8, 9), 58, 128, 1536, 102400, 50331648, 2.04, 24152899584), 0.3e12, 30.3e12, 60e12),
    "t4": (Gpu((7, 5), 40, 64, 1024, 65536, 4194304, 1.59, 15828320256), 0.32e12, 8.1e12, 8.1e12),
}
"""Facts, bytes a second, and operations a second in float32 and in products: TensorFloat-32, which a T4 lacks."""

TPUS = {
    "v5e": (15.75, 0.819e12, 197e12, {1: "2x2", 4: "2x2", 8: "2x4"}),
    "v5p": (95.0, 2.765e12, 459e12, {1: "2x2x1", 4: "2x2x1"}),
    "v6e": (31.25, 1.64e12, 918e12, {1: "2x2", 4: "2x2", 8: "2x4"}),
}
"""GiB, bytes a second, operations a second in bfloat16, and topologies by the number of chips; products of float32
take one pass of bfloat16 by default, and six passes for full precision."""

KINDS = {
    "NVIDIA H200": "h200",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA L4": "l4",
    "Tesla T4": "t4",
    "TPU v5 lite": "v5e-1",
    "TPU v5": "v5p-1",
    "TPU v5p": "v5p-1",
    "TPU v6 lite": "v6e-1",
}
"""The target of each device, by the name that JAX gives the device. A variant with slower memory, such as an A100 of 40
GB, is not in the table."""

SHARE = 0.75
"""The share of a GPU's memory that JAX takes by default."""

LAUNCH = {"gpu": 2.5e-6, "tpu": 1e-6}
"""Seconds to start a kernel: of an NVIDIA H100, on which a round of 1,930 small kernels took 4.8 ms; of a TPU what is
usual, not measured here."""


def targets() -> dict[str, Absent]:
    """Every target by its name: a GPU alone or eight (`h200-8`), a TPU with the number of its chips (`v5e-8`)."""
    found = {}
    for name, (gpu, bandwidth, flops, products) in GPUS.items():
        target = Target(name, "gpu", int(SHARE * gpu.memory), flops, products, bandwidth, LAUNCH["gpu"])
        found |= {name: Absent(target, "1x1x1", 1, gpu), f"{name}-8": Absent(target, "1x1x8", 8, gpu)}
    for name, (memory, bandwidth, products, shapes) in TPUS.items():
        target = Target(name, "tpu", int(memory * GIB), products / 6, products, bandwidth, LAUNCH["tpu"])
        found |= {f"{name}-{count}": Absent(target, f"{name}:{shape}", count) for count, shape in shapes.items()}
    return found


def rates(kind: str) -> Target | None:
    """The rates of a device at hand, by the name that JAX gives it; None if they are not known."""
    return targets()[KINDS[kind]].target if kind in KINDS else None


def target_named(name: str) -> Absent:
    """A target that this environment can compile for.

    Raises:
        InputError: there is none of this name, or its compiler is not installed; the line says what to install.
    """
    known = targets()
    if name not in known:
        raise unknown("target", name, known)
    modules, package = known[name].package
    if not any(map(is_installed, modules)):
        raise InputError(
            f"target {name!r}: its compiler is not installed; pip install '{package}' of the version of JAX that is "
            "here, in an environment of its own (no such device is needed)"
        )
    return known[name]


def is_installed(module: str) -> bool:
    """Whether a module could be imported. It is only looked for, by its name, such as `parent` or `parent.child`."""
    parent = importlib.util.find_spec(module.partition(".")[0])
    return parent is not None and importlib.util.find_spec(module) is not None


def surroundings(absent: Absent) -> dict[str, str]:
    """The environment of a process that compiles for a target: JAX itself runs on the CPU."""
    tuned = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0" if absent.gpu else ""
    tpu = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5e-4"}
    lines = {"JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "10"}  # by which `hlo` knows a loop
    common = {"JAX_PLATFORMS": "cpu", "JCFL_CACHE": "", **lines}
    return common | ({"XLA_FLAGS": tuned.strip()} if tuned else tpu)


def with_devices(absent: Absent) -> Target:
    """The target with the devices of its topology."""
    from jax.experimental import topologies

    if absent.gpu is None:
        topology = topologies.get_topology_desc(absent.topology, platform="tpu")
    else:
        asked = {"topology_name": absent.target.name, "topology": absent.topology}
        topology = topologies.get_topology_desc(platform="cuda", **asked, target_config=described(absent))
    return replace(absent.target, devices=tuple(topology.devices[: absent.devices]))


def described(absent: Absent) -> str:
    """A GPU as XLA's GpuTargetConfigProto in text."""
    gpu = absent.gpu
    assert gpu is not None
    major, minor = gpu.capability
    facts: dict[str, Any] = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": gpu.shared,
        "threads_per_core_limit": gpu.threads,
        "core_count": gpu.cores,
        "fpus_per_core": gpu.fpus,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": int(absent.target.bandwidth),
        "l2_cache_size": gpu.cache,
        "clock_rate_ghz": gpu.clock,
        "device_memory_size": gpu.memory,
        "shared_memory_per_block_optin": gpu.shared - (1024 if major >= 8 else 0),
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    lines = " ".join(f"{name}: {value}" for name, value in facts.items())
    return (
        f"gpu_device_info {{ {lines} cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
        'platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 } '
        f'device_description_str: "NVIDIA {absent.target.name.upper()}"'
    )
