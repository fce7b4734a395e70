"""The runs that are measured, and functions that measure time."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jcfl.data.federation import assembled
from jcfl.data.partition import packed
from jcfl.errors import InputError
from jcfl.runs import tuning
from jcfl.runs.plan import Plan, config_and_objects, planned
from jcfl.runs.xla import round_options, seconds_of
from jcfl.types import Federation, Models, Split, State

IMAGES = 60_000


class Meaningless(InputError):
    """A row that has no meaning on this machine, such as a comparison with what is not there."""


def table_one(quick: bool, data_dir: Path | None, **changes: Any) -> Plan:
    """StoCFL on Rotated MNIST as in Table 1 with some options changed; without `data_dir` images are random."""
    preset = {
        "model": {"name": "mlp", "hidden": 32 if quick else 2048},
        "method": {"name": "stocfl", "tau": 0.5, "lam": 0.05},
        "train": {"lr": 0.1, "epochs": 5, "batch_size": "full"},
        "participation": 0.1,
    }
    merged = {
        key: {**preset[key], **value} if isinstance(value, dict) and key in preset else value
        for key, value in changes.items()
    }
    if data_dir is None or quick:
        return planned(*config_and_objects(made_up_federation(80 if quick else 4800, 50), {**preset, **merged}))
    return planned(*config_and_objects("stocfl_rotated_mnist", {**preset, "data_dir": data_dir, **merged}))


def tried(plan: Plan) -> Plan:
    """The plan of one method after the trials of settings with which a long run begins."""
    (title,) = plan.algorithms
    return tuning.of_method(tuning.tuned(plan), title)


def made_up_federation(clients: int, size: int | np.ndarray, groups: int = 4) -> Federation:
    """A federation in MNIST's shapes, in which each group has noisy images of ten prototypes of its own.

    Clients share a pool of images, so that only the tables of indices grow with their number.

    Args:
        size: the number of training examples of each client, one for all of them or [clients] int.
    """
    sizes = np.broadcast_to(size, clients)
    rng, count = np.random.default_rng(0), min(IMAGES, int(sizes.sum()) + 10 * clients)
    count -= count % (10 * groups)
    prototypes = rng.random((groups, 10, 784), np.float32) > 0.8
    group, y = np.arange(count) % groups, np.arange(count) // groups % 10
    x = np.empty((count, 784), np.uint8)
    for rows in np.array_split(np.arange(count), 20):
        bright = 180 * prototypes[group[rows], y[rows]] + 60 * rng.random((len(rows), 784), np.float32)
        x[rows] = bright.astype(np.uint8)
    true = np.arange(clients, dtype=np.int32) % groups

    def share(sizes: np.ndarray) -> Split:
        rows = rng.integers(0, count // groups, sizes.sum(), np.int32) * groups + np.repeat(true, sizes)
        return packed(rows, sizes)

    return assembled(x.reshape(-1, 28, 28, 1), y, true, share(sizes), share(np.full(clients, 10)), 10, "made up")


def settled_state(plan: Plan) -> State:
    """A state in which every client has taken part and is in the cluster of its group."""
    (algorithm,) = plan.algorithms.values()

    def begin(key, federation: Federation) -> State:
        state = algorithm.init(key, federation)
        memory = state.memory
        if hasattr(memory, "live"):
            memory = memory.replace(live=jnp.arange(memory.live.size) <= federation.groups.max())
        return state.replace(labels=federation.groups, seen=jnp.ones_like(state.seen), memory=memory)

    return jax.jit(begin)(jax.random.key(0), plan.federation)


def compiled_step(plan: Plan, state: State) -> Callable[..., State]:
    """One round, compiled as that of a run; the state that is passed to it cannot be used again."""
    (algorithm,) = plan.algorithms.values()
    return jax.jit(algorithm.step, donate_argnums=0).lower(state, plan.federation).compile(round_options(plan.context))


def timed(step: Callable[..., State], state: State, federation: Federation, rounds: int) -> list[float]:
    """The seconds of some rounds, one after another; the state cannot be used again."""
    run = next_round(step, state, federation)
    return [run() for _ in range(rounds)]


def next_round(step: Callable[..., State], state: State, federation: Federation) -> Callable[[], float]:
    """A function that runs one more round each time and returns its seconds; the state cannot be used again."""

    def run() -> float:
        nonlocal state
        seconds, state = seconds_of(step, state, federation)
        return seconds

    return run


def medians_in_turn(turns: int, *runs: Callable[[], float]) -> list[float]:
    """The median of the seconds that each function returns, all called in turn; a first turn does not count."""
    times = [[run() for run in runs] for _ in range(turns + 1)]
    return medians(*zip(*times[1:], strict=True))


def medians(*times: Sequence[float]) -> list[float]:
    """The median of each list."""
    return [statistics.median(some) for some in times]


def largest_difference(one: Models, two: Models) -> float:
    """The largest difference between two trees of parameters."""
    return float(max(jnp.abs(a - b).max() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)))
