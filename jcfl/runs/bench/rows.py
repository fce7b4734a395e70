"""The rows of the benchmark: a row for each promise, its cases, and a function that measures a case."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import metrics, results
from jcfl.runs import programs
from jcfl.runs.bench.growth import GROWTH, growth_figures
from jcfl.runs.bench.newcomers import greedy_merging, newcomers
from jcfl.runs.bench.products import SHAPES, products
from jcfl.runs.bench.work import (
    compiled_step,
    largest_difference,
    made_up_federation,
    medians,
    medians_in_turn,
    next_round,
    seconds_of,
    settled_state,
    table_one,
    timed,
    tried,
)
from jcfl.runs.experiment import execute
from jcfl.runs.plan import Plan, config_and_objects, planned
from jcfl.runs.xla import round_options

Figures = dict[str, Any]


class Row(NamedTuple):
    """A requirement and how it is measured; names of seconds end in `_s`, of gibibytes in `_GiB`."""

    about: str
    figures: Callable[[str, bool, Path | None], Figures]  # (case, quick, data_dir)
    cases: Callable[[bool], Sequence[str]] = lambda quick: ("",)
    must: str = ""
    aim: str = ""


def engines(case: str, quick: bool, data_dir: Path | None) -> Figures:
    """The general and the factored engine in turn from the same state, and the matrix products alone."""
    plans = {name: tried(table_one(quick, data_dir, engine=name)) for name in ("general", "factored")}
    states = {name: settled_state(plan) for name, plan in plans.items()}
    steps = {name: compiled_step(plan, states[name]) for name, plan in plans.items()}
    one, products = plans["factored"], []
    passes, arguments = plain_products(one)
    times: dict[str, list[float]] = {name: [] for name in plans}
    for turn in range(3 if quick else 4):
        for name, plan in plans.items():
            seconds, states[name] = seconds_of(steps[name], states[name], plan.federation)
            times[name] += [seconds] if turn else []
        products.append(seconds_of(passes, *arguments)[0])
    general, factored, plain = medians(times["general"], times["factored"], products[1:])
    return {
        "general_s": general,
        "factored_s": factored,
        "times_faster": general / factored,
        "plain_products_s": plain,
        "times_the_products": factored / plain,
        "difference": largest_difference(states["general"].clusters, states["factored"].clusters),
    }


def plain_products(plan: Plan) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The products with all clients' examples that every round needs: X W and Xᵀ B of two models.

    They are computed in parts, so that no time is spent on allocating memory.
    """
    population = plan.context.population
    d, h = int(np.prod(population.shape)), plan.config.model.options["hidden"]
    parts = max(1, population.cohort // PART)
    x = jax.random.normal(jax.random.key(0), (parts, population.cohort // parts * population.width, d))

    def passes(x, kernels):
        def part(sums, x):
            slopes = jax.lax.optimization_barrier([x @ kernel for kernel in kernels])
            return [total + x.T @ slope for total, slope in zip(sums, slopes, strict=True)], None

        return jax.lax.scan(part, [jnp.zeros_like(kernel) for kernel in kernels], x)[0]

    kernels = list(jax.random.normal(jax.random.key(1), (2, d, h)))
    return jax.jit(passes).lower(x, kernels).compile(round_options(plan.context)), (x, kernels)


PART = 10
"""Clients in a part of the plain products."""


def full(case: str, quick: bool, data_dir: Path | None) -> Figures:
    """All clients at once."""
    plan = tried(table_one(quick, data_dir, participation=1.0))
    state = settled_state(plan)
    times = timed(compiled_step(plan, state), state, plan.federation, 3)
    return {"clients": plan.context.population.cohort, "first_s": times[0], "round_s": medians(times[1:])[0]}


def grouping(case: str, quick: bool, data_dir: Path | None) -> Figures:
    """All clients seen for the first time in one round, nothing trained."""
    method: dict[str, Any] = {"clustering_only": True} | ({"sketch": 4096} if case == "sketch" else {})
    plan = tried(table_one(quick, data_dir, participation=1.0, model={"hidden": 200}, method=method))
    (algorithm,) = plan.algorithms.values()
    init = jax.jit(algorithm.init)
    state = init(jax.random.key(0), plan.federation)
    step, times = compiled_step(plan, state), []
    for seed in range(2):
        seconds, state = seconds_of(step, init(jax.random.key(seed), plan.federation), plan.federation)
        times.append(seconds)
    return {
        "clients": plan.context.population.cohort,
        "first_s": times[0],
        "again_s": times[1],
        "clusters": int(state.memory.live.sum()),
        "purity": metrics.purity(state.labels, plan.federation.groups),
    }


def seeds(case: str, quick: bool, data_dir: Path | None) -> Figures:
    """One seed, five seeds as runs train them, and five seeds as an axis of one program, in turn.

    On a CPU, runs train five seeds by the program of one seed, on a thread for each core. On an accelerator they train
    them as an axis of one program, so that the last two are the same there.
    """
    many, rounds = (2, 2) if quick else (5, 25)
    if case == "fedavg, images":
        rounds, share = min(rounds, 5), 0.5 if quick else 0.01
        plan = table_one(quick, data_dir, model={"hidden": 200}, method="fedavg", participation=share)
    else:
        small = {"scenario": {"name": "rotated", "clients": 20}} if quick else {}
        plan = planned(*config_and_objects("quickstart", {"method": case, "compare": (), **small}))
    (algorithm,) = plan.algorithms.values()
    how = plan.context.resources.devices, round_options(plan.context)
    ways = {
        "one_s": (1, programs.programs),
        "all_s": (many, programs.programs),
        "with_an_axis_s": (many, programs.with_an_axis),
    }
    compiled = {name: make(algorithm, plan.federation, count, *how) for name, (count, make) in ways.items()}
    states = {
        name: program.init(programs.keys(range(ways[name][0])), plan.federation) for name, program in compiled.items()
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(3 if quick else 5):
        for name, program in compiled.items():
            until = jnp.int32(rounds * (turn + 1))
            seconds, states[name] = seconds_of(program.advance, states[name], plan.federation, until)
            times[name] += [seconds] if turn else []
    found = dict(zip(ways, medians(*times.values()), strict=True))
    ratios = {"times_one": found["all_s"] / found["one_s"], "axis_times_one": found["with_an_axis_s"] / found["one_s"]}
    return {"rounds": rounds, "seeds": many, **found, **ratios}


def sizes(case: str, quick: bool, data_dir: Path | None) -> Figures:
    """Clients of different sizes, and as many clients that have the same number of examples in all, in turn."""
    clients, mean = (12, 20) if quick else (200, 300)
    different = np.random.default_rng(0).lognormal(0, 1, clients)
    different = np.maximum(different * mean / different.mean(), 1).astype(int)
    method, train = CASES_OF_SIZES[case]
    given = {
        "model": {"name": "mlp", "hidden": 8 if quick else 200},
        "method": method,
        "train": {"lr": 0.05, "batch_size": 10, **train},
    }
    runs = []
    for size in (mean, different):
        plan = planned(*config_and_objects(made_up_federation(clients, size), given))
        state = settled_state(plan)
        runs.append(next_round(compiled_step(plan, state), state, plan.federation))
    equal, uneven = medians_in_turn(1 if quick else 7, *runs)
    return {"largest": int(different.max()), "equal_s": equal, "different_s": uneven, "times_equal": uneven / equal}


CASES_OF_SIZES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fedavg, an epoch": ("fedavg", {"epochs": 1}),
    "fedavg, 30 steps": ("fedavg", {"steps": 30}),
    "ifca": ({"name": "ifca", "clusters": 4}, {"epochs": 1}),
}
"""The methods of the row `sizes`, and their local training."""


def whole(case: str, quick: bool, data_dir: Path | None) -> Figures:
    """A run of a hundred rounds with an evaluation every ten, from its plan to its files."""
    begin = time.perf_counter()
    plan = table_one(quick, data_dir, rounds=2 if quick else 100, evaluate_every=10, compare=())
    with tempfile.TemporaryDirectory() as folder:
        history = execute(plan, Path(folder) / "run", keep_state=False)
    found = {name: history.summary[name] for name in ("compile_s", "engine")}
    last = {name: float(history[name][0, -1]) for name in ("accuracy_micro", "clusters", "purity")}
    return {"rounds": plan.config.rounds, "command_s": time.perf_counter() - begin, **found, **last}


def overhead(case: str, quick: bool, data_dir: Path | None) -> Figures:
    """A run with files, checkpoints and evaluations, compared with its compiled steps and evaluations alone."""
    rounds = 6 if quick else 60
    changes = {"method": "fedavg", "rounds": rounds, "evaluate_every": 10, "compare": (), "engine": "auto"}
    sizes = {"model": {"hidden": 16 if quick else 200}, "participation": 0.2 if quick else 0.05}
    plan = table_one(quick, data_dir, **changes, **sizes)
    (algorithm,) = plan.algorithms.values()
    state = jax.jit(algorithm.init)(jax.random.key(0), plan.federation)
    step = compiled_step(plan, state)
    evaluate = jax.jit(algorithm.evaluate).lower(state, plan.federation).compile()
    runs, alone = [], []
    for turn in range(2 if quick else 4):
        with tempfile.TemporaryDirectory() as folder:
            summary = execute(plan, Path(folder) / "run").summary
        runs += [summary["wall_s"] - summary["compile_s"]] if turn else []
        state, start = jax.jit(algorithm.init)(jax.random.key(0), plan.federation), time.perf_counter()
        for round in range(1, rounds + 1):
            state = step(state, plan.federation)
            if round % 10 == 0 or round == rounds:
                jax.block_until_ready(evaluate(state, plan.federation))
        jax.block_until_ready(state)
        alone += [time.perf_counter() - start] if turn else []
    run, steps = medians(runs, alone)
    return {"rounds": rounds, "run_s": run, "steps_s": steps, "overhead": f"{run / steps - 1:.1%}"}


def start(case: str, quick: bool, data_dir: Path | None) -> Figures:
    """The quickstart from the shell, first without and then with compiled programs on disk."""
    more = ["rounds=2", "compare=[]", "model.hidden=8", "scenario.clients=8"] if quick else []
    times = []
    with tempfile.TemporaryDirectory() as folder:
        surroundings = {**os.environ, "JCFL_CACHE": str(Path(folder) / "cache")}
        for turn in range(2):
            asked = ["run", "quickstart", "--quiet", "--out", str(Path(folder) / f"run-{turn}")]
            command = [sys.executable, "-c", "from jcfl.cli import main; main()", *asked]
            begin = time.perf_counter()
            subprocess.run([*command, *(["--set", *more] if more else [])], env=surroundings, check=True)
            times.append(time.perf_counter() - begin)
        first = results.load(Path(folder) / "run-0")
        peak = max(one.summary["peak_memory_bytes"] for one in (first, *first.others.values()))
    return {"cold_s": times[0], "warm_s": times[1], "peak_GiB": peak / 2**30}


def growth(name: str, about: str) -> Row:
    """A row of `jcfl.runs.bench.growth`."""
    return Row(about, lambda case, quick, data_dir: growth_figures(name, case, quick), GROWTH[name])


ROWS: dict[str, Row] = {
    "round": Row(
        "StoCFL's round of Table 1 (10 % of 4,800 clients of 50 MNIST images, MLP 2048, 5 full-batch steps), clusters "
        "settled; both engines turn about.",
        engines,
        must="at least 6 times faster than the general engine, the same to 1e-5",
        aim="10 times, and at most 2 times the plain products",
    ),
    "full": Row("The same with all 4,800 clients in every round.", full, must="less than 6 GiB"),
    "whole": Row(
        "The same, 100 rounds from the first with an evaluation every 10 and all files written.",
        whole,
        must="at most 15 min on two cores, less than 4 GiB",
        aim="at most 10 min",
    ),
    "grouping": Row(
        "StoCFL's grouping of 4,800 clients first seen in one round, MLP 200 (159,010 numbers), nothing trained.",
        grouping,
        lambda quick: ("exact", "sketch"),
        must="less than 60 s on two cores",
        aim="less than 15 s",
    ),
    "newcomers": Row(
        "A round of Table 1 as `round` whose 480 clients are all new, a settled one, and the plain products of the new "
        "clients' inner products, in turn. `least times settled` is a settled round with these products.",
        newcomers,
        aim="at most 1.5 times a settled round",
    ),
    "merging": Row(
        "StoCFL's greedy merging of 10,000 clients into 4 clusters, from their inner products, and its first search of "
        "the most similar pairs alone.",
        greedy_merging,
        aim="at most 5 s",
    ),
    "products": Row(
        "Products of matrices m x n x p on a CPU, from the library that XLA chooses and from Eigen, in turn.",
        products,
        lambda quick: SHAPES[:1] if quick else SHAPES,
    ),
    "seeds": Row(
        "Five seeds of a run side by side: of the quickstart's federation with two methods, and of 48 of 4,800 clients "
        "with an MLP 200. `with an axis` is one program with an axis of seeds, as on an accelerator.",
        seeds,
        lambda quick: ("stocfl", "fedavg", "fedavg, images"),
        must="at most 2.5 times one seed",
        aim="1.5 times",
    ),
    "sizes": Row(
        "A round with 200 clients of 300 examples on average (MLP 200, batches of 10): sizes that differ (log-normal, "
        "σ = 1) beside equal ones, in turn.",
        sizes,
        lambda quick: tuple(CASES_OF_SIZES),
        aim="at most 1.5 times equal sizes",
    ),
    "overhead": Row(
        "`jcfl.run` with files, checkpoints and evaluations against its compiled steps and evaluations alone.",
        overhead,
        must="at most 5 %",
    ),
    "start": Row(
        "`jcfl run quickstart` (four methods) from the shell.",
        start,
        must="cold at most 60 s",
        aim="cold at most 25 s, warm at most 10 s",
    ),
    "clients": growth("clients", "A round of IFCA (4 clusters, MLP 64) with 100 clients, as the federation grows."),
    "cohort": growth(
        "cohort", "A round of StoCFL among 4,800 settled clients (MLP 200), by the number of sampled clients."
    ),
    "parameters": growth("parameters", "A round of StoCFL with 100 clients, by the MLP's width."),
    "clusters": growth("clusters", "A round of IFCA (MLP 200) with 100 clients, by the number of clusters."),
}
"""Every row, by name."""
