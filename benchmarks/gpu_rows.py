"""The rows of `gpu.py` that need jcfl alone: `python gpu_rows.py '[row, quick]'` measures one and prints its cases.

Every case is a line of JSON, after a line about the device.
"""

import json
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from jcfl.grouping.losses import least_loss
from jcfl.runs import programs
from jcfl.runs.bench.compiled import estimate
from jcfl.runs.bench.work import (
    compiled_step,
    largest_difference,
    made_up_federation,
    medians,
    seconds_of,
    settled_state,
    table_one,
    timed,
)
from jcfl.runs.environment import use_cache
from jcfl.runs.plan import Plan, config_and_objects, planned
from jcfl.runs.xla import round_options
from jcfl.types import State

Case = dict[str, Any]
"""The name of a case under `case`, and its numbers; names of seconds end in `_s`."""

ROUNDS = 6
LOWERINGS = ("native", "patches", "auto")


def main() -> None:
    """Measure one row."""
    name, quick = json.loads(sys.argv[1])
    use_cache()
    print(json.dumps({"device": described_device()}), flush=True)
    for case in ROWS[name](quick):
        print(json.dumps(case), flush=True)


def described_device() -> dict[str, Any]:
    """The device, its memory and its driver."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    driver = device.client.platform_version
    return {
        "platform": device.platform,
        "kind": device.device_kind,
        "bytes": memory,
        "driver": driver.splitlines()[-1],
        "host": platform.machine(),
    }


def roof(quick: bool) -> Iterator[Case]:
    """Multiplications and additions a second of one large product: the roof of all that follows."""
    size = 256 if quick else 8192
    for precision in ("float32", "tensorfloat32"):
        with jax.default_matmul_precision(precision):
            product = jax.jit(lambda a, b: a @ b)
            a = jax.random.normal(jax.random.key(0), (size, size))
            product(a, a).block_until_ready()
            seconds = medians([seconds_of(product, a, a)[0] for _ in range(5)])[0]
        yield {"case": precision, "product_s": seconds, "flops_per_s": 2 * size**3 / seconds}


def equal(quick: bool) -> Iterator[Case]:
    """The same three rounds on this device and on the CPU: labels, and the largest difference of parameters."""
    for engine in ("factored", "general"):
        results = []
        for device in (jax.devices()[0], jax.devices("cpu")[0]):
            with jax.default_device(device), jax.default_matmul_precision("float32"):
                plan = table_one(True, None, engine=engine, rounds=3, model={"hidden": 32 if quick else 256})
                plan = plan._replace(federation=jax.device_put(plan.federation, device))
                (algorithm,) = plan.algorithms.values()
                state = jax.jit(algorithm.init)(jax.device_put(jax.random.key(0), device), plan.federation)
                step = compiled_step(plan, state)
                for _ in range(3):
                    state = step(state, plan.federation)
                results.append((np.asarray(state.labels), jax.tree.map(np.asarray, (state.clusters, state.shared))))
        (labels, models), (others, same) = results
        yield {
            "case": engine,
            "labels_equal": bool((labels == others).all()),
            "difference": largest_difference(models, same),
        }


def rounds_of_table_one(quick: bool) -> Iterator[Case]:
    """StoCFL's settled round at a tenth and at all of 4,800 clients, with the operations of its matrix products.

    In the rounds with new clients, the first ones of a run, most of the cohort is new.
    """
    for share in (0.1, 1.0):
        for engine in ("factored", "general"):
            make = lambda share=share, engine=engine: table_one(quick, None, participation=share, engine=engine)
            numbers = lambda plan, engine=engine: {"flops": products(plan, engine)}
            yield measured(f"{share:.0%} {engine}", make, settled_state, numbers)
    fewer = lambda: table_one(quick, None, engine="factored")
    yield measured("10% factored, new clients", fewer, first_state, lambda plan: {}, rounds=2)


def first_state(plan: Plan) -> State:
    """The state before the first round, in which all clients are new."""
    (algorithm,) = plan.algorithms.values()
    return jax.jit(algorithm.init)(jax.random.key(0), plan.federation)


def products(plan: Plan, engine: str) -> float:
    """Multiplications and additions of a round's products with the first layer: what a roofline compares with.

    Two models are trained. In general every step multiplies with a kernel forward and back; factored there are X W of
    two kernels, X Xᵀ, Xᵀ B of two models, and n · n · h a step and direction.
    """
    population, h = plan.context.population, plan.config.model.options["hidden"]
    s, n, d = population.cohort, population.width, int(np.prod(population.shape))
    _, steps = plan.context.trainer.rows_and_steps(n)
    if engine == "general":
        return 2.0 * s * 2 * steps * 2 * n * d * h
    return 2.0 * s * (4 * n * d * h + n * n * d + 2 * steps * 2 * n * n * h)


def convolutions(quick: bool) -> Iterator[Case]:
    """A round of FedAvg with 1,000 clients of 300 and the CNN, by how convolutions are computed."""
    cohort = 4 if quick else 1000
    federation = made_up_federation(cohort, 20 if quick else 300)
    train = {"lr": 0.01, "epochs": 1, "batch_size": 32}
    for lowering in LOWERINGS:
        given = {"model": {"name": "cnn_fashion", "convolution": lowering}, "method": "fedavg", "train": train}
        make = lambda given=given: planned(*config_and_objects(federation, given))
        yield measured(lowering, make, settled_state, lambda plan: {})


def choices(quick: bool) -> Iterator[Case]:
    """IFCA's choice among ten models by 200 clients of 300, by how convolutions run, for one seed and for five."""
    federation = made_up_federation(*(8, 20) if quick else (200, 300))
    for lanes in (1, 2 if quick else 5):
        for lowering in ("patches", "native"):
            given = {"model": {"name": "cnn_fashion", "convolution": lowering}}
            given |= {"method": {"name": "ifca", "clusters": 4 if quick else 10}}
            plan = planned(*config_and_objects(federation, given))
            yield {"case": f"{lowering}, {lanes} at once", **choice(plan, lanes)}


def choice(plan: Plan, lanes: int) -> Case:
    """The seconds in which all clients choose a model, for so many seeds at once, and those of the compilation.

    All rows of a chunk of clients meet the same kernels here, so the other way to compute convolutions may be the
    faster one than in training.
    """
    (algorithm,) = plan.algorithms.values()
    choose, everybody = least_loss(algorithm.method, plan.context, joined=False), plan.federation.groups.size
    of_lanes = jax.vmap(lambda state, federation: choose(state, jnp.arange(everybody), federation), (0, None))
    keys = jax.random.split(jax.random.key(0), lanes)
    states = jax.jit(jax.vmap(algorithm.init, (0, None)))(keys, plan.federation)
    lowered = jax.jit(of_lanes).lower(states, plan.federation)
    compiling, program = seconds_of(lambda: lowered.compile(round_options(plan.context)))
    seconds = [seconds_of(program, states, plan.federation)[0] for _ in range(ROUNDS)]
    return {"choice_s": medians(seconds[1:])[0], "compile_s": compiling}


def measured(
    name: str,
    make: Callable[[], Plan],
    begin: Callable[[Plan], Any],
    more: Callable[[Plan], dict[str, Any]],
    rounds: int = ROUNDS,
) -> Case:
    """The median of some rounds, the seconds of the first with compilation, and the estimate of a round.

    A case that fails, for instance because the memory is too small, ends itself and not the others.

    Args:
        rounds: how many rounds are timed, the first one among them.
    """
    try:
        plan = make()
        state = begin(plan)
        compiling, step = seconds_of(lambda: compiled_step(plan, state))
        few = plan.context.population.cohort < 50
        first, *later = timed(step, state, plan.federation, 2 if few else rounds)
    except Exception as error:
        return {"case": name, "failed": (str(error).splitlines() or [type(error).__name__])[0][:120]}
    seconds = medians(later)[0]
    speed = {"clients_per_s": plan.context.population.cohort / seconds}
    found = {"case": name, "round_s": seconds, "first_s": compiling + first, **speed, **more(plan)}
    return found | estimate(step, plan)


def seeds(quick: bool) -> Iterator[Case]:
    """Settled rounds of one seed, and of five seeds at once."""
    count, block, one = 2 if quick else 5, 10, None
    plan = table_one(quick, None, model={"hidden": 16 if quick else 200})
    (algorithm,) = plan.algorithms.values()
    state = settled_state(plan)
    for lanes in (1, count):
        family = programs.begun(algorithm, plan.federation, lanes, options=round_options(plan.context))()
        running, seconds = state, []
        if lanes > 1:
            each = [state.replace(key=key) for key in programs.keys(range(lanes))]
            running = family.parted(jax.tree.map(lambda *leaves: jnp.stack(leaves), *each))
        running = jax.tree.map(jnp.copy, running)  # the program takes the state for itself
        for turn in range(1, 4):
            one_block, running = seconds_of(family.advance, running, {}, plan.federation, np.int32(block * turn))
            seconds.append(one_block)
        median = medians(seconds[1:])[0] / block
        one = one or median
        found = {"case": f"{lanes} at once", "round_s": median, "first_s": family.seconds, "times_one": median / one}
        yield found | estimate(family.advance, plan)


ROWS: dict[str, Callable[[bool], Iterator[Case]]] = {
    "roof": roof,
    "table_one": rounds_of_table_one,
    "cnn": convolutions,
    "seeds": seeds,
    "choice": choices,
    "equal": equal,
}

if __name__ == "__main__":
    main()
