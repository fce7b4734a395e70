"""A GPU against the CPU beside it: the same results, StoCFL's round of Table 1, convolutions, seeds, the roofline.

    python benchmarks/gpu.py --out FOLDER
    JAX_PLATFORMS=cpu python benchmarks/gpu.py --quick        # a smoke test where there is none

Prints a table and writes gpu.json. Images are made up in MNIST's shapes; the time does not depend on what they show.
"""

import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))
if "JAX_PLATFORMS" not in os.environ and Path("/dev/nvidiactl").exists():
    os.environ["JAX_PLATFORMS"] = "cuda,cpu"  # the GPU first, and a CPU to compare with

import jax
import jax.numpy as jnp
import numpy as np

from jcfl.runs import programs
from jcfl.runs.bench import load_average, machine
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

ROUNDS = 6
LOWERINGS = ("native", "patches", "auto")


def main(
    rows: Annotated[list[str] | None, typer.Argument(help="Any of equal, table_one, cnn, seeds.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use tiny sizes, only to test that it works.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for gpu.json.")] = None,
) -> None:
    """Measure what is asked for, or everything, and print it."""
    load = load_average()
    peaks = {name: peak(quick, name) for name in ("float32", "tensorfloat32")}
    found: dict[str, Any] = {"device": described_device(), "products_flops": peaks, "rows": []}
    for name in rows or ROWS:
        for case, figures in ROWS[name](quick, peaks).items():
            found["rows"].append({"row": name, "case": case, **figures})
            print(
                f"| {name} | {case} | {', '.join(f'{key} {shown(value)}' for key, value in figures.items())} |",
                flush=True,
            )
    found["machine"] = machine(load)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(json.dumps(found))


def peak(quick: bool, precision: str) -> float:
    """Multiplications and additions a second of one large product: the roof of all that follows."""
    size = 256 if quick else 8192
    with jax.default_matmul_precision(precision):
        product = jax.jit(lambda a, b: a @ b)
        a = jax.random.normal(jax.random.key(0), (size, size))
        product(a, a).block_until_ready()
        seconds = medians([seconds_of(product, a, a)[0] for _ in range(5)])[0]
    return 2 * size**3 / seconds


def equal(quick: bool, peaks: dict[str, float]) -> dict[str, dict[str, Any]]:
    """The same three rounds on this device and on the CPU: labels, and the largest difference of parameters."""
    found = {}
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
        found[engine] = {"labels_equal": bool((labels == others).all()), "difference": largest_difference(models, same)}
    return found


def rounds_of_table_one(quick: bool, peaks: dict[str, float]) -> dict[str, dict[str, Any]]:
    """StoCFL's round at a tenth and at all of 4,800 clients, beside the time of its matrix products at the peak."""
    found = {}
    for share in (0.1, 1.0):
        for engine in ("factored", "general"):
            plan = table_one(quick, None, participation=share, engine=engine)
            seconds, first = steady(plan, settled_state(plan))
            flops = products(plan, engine)
            bound = {f"roof_{name}": flops / peaks[name] / seconds for name in peaks}
            found[f"{share:.0%} {engine}"] = {"round_s": seconds, "first_s": first, "flops": flops, **bound}
    return found


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


def convolutions(quick: bool, peaks: dict[str, float]) -> dict[str, dict[str, Any]]:
    """A round of FedAvg with 1,000 clients of 300 and the CNN, by how convolutions are computed."""
    found, cohort = {}, 4 if quick else 1000
    federation = made_up_federation(cohort, 20 if quick else 300)
    for lowering in LOWERINGS:
        given = {"model": {"name": "cnn_fashion", "convolution": lowering}, "method": "fedavg"}
        plan = planned(*config_and_objects(federation, given | {"train": {"lr": 0.01, "epochs": 1, "batch_size": 32}}))
        (algorithm,) = plan.algorithms.values()
        state = jax.jit(algorithm.init)(jax.random.key(0), plan.federation)
        try:
            seconds, first = steady(plan, state)
        except Exception as error:  # out of memory ends a row, not the others
            found[lowering] = {"failed": str(error).splitlines()[0][:120]}
            continue
        found[lowering] = {"round_s": seconds, "first_s": first, "clients_per_s": cohort / seconds}
    return found


def seeds(quick: bool, peaks: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Ten rounds of five seeds at once beside those of one."""
    count, times = 2 if quick else 5, {}
    plan = table_one(quick, None, model={"hidden": 16 if quick else 200})
    (algorithm,) = plan.algorithms.values()
    for lanes in (1, count):
        compiled = programs.programs(algorithm, plan.federation, lanes)
        states, seconds = compiled.init(programs.keys(range(lanes)), plan.federation), []
        for turn in range(1, 4):
            one, states = seconds_of(compiled.advance, states, plan.federation, jnp.int32(10 * turn))
            seconds.append(one)
        times[lanes] = medians(seconds[1:])[0]
    return {f"{count} seeds": {"one_s": times[1], "all_s": times[count], "times_one": times[count] / times[1]}}


def steady(plan: Plan, state: Any) -> tuple[float, float]:
    """The median of some rounds, and the seconds of the first with compilation."""
    compiling, step = seconds_of(lambda: compiled_step(plan, state))
    first, *later = timed(step, state, plan.federation, 2 if plan.context.population.cohort < 50 else ROUNDS)
    return medians(later)[0], compiling + first


def described_device() -> dict[str, Any]:
    """The device and its memory."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return {"platform": device.platform, "kind": device.device_kind, "bytes": memory, "host": platform.machine()}


def shown(value: Any) -> str:
    """A figure as text."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


ROWS: dict[str, Callable[[bool, dict[str, float]], dict[str, dict[str, Any]]]] = {
    "equal": equal,
    "table_one": rounds_of_table_one,
    "cnn": convolutions,
    "seeds": seeds,
}

if __name__ == "__main__":
    use_cache()
    typer.run(main)
