"""Rounds compiled for devices that are not there: memory, kernels, waits for the host, and what bounds a round.

Nothing is run. What a round would take is an estimate from the compiled program and the device's data sheet.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jcfl import trees
from jcfl.core import engine
from jcfl.errors import unknown
from jcfl.fast import factored
from jcfl.results import writing
from jcfl.runs.bench import absent, hlo, machine
from jcfl.runs.bench.work import made_up_federation, table_one
from jcfl.runs.devices import on_every_device
from jcfl.runs.plan import Plan, config_and_objects, planned
from jcfl.types.target import Target, at_hand, compiling_for

GIB = 2**30
TRIP = 2e-5
"""Seconds in which a GPU waits for the host's next decision: taken from what is usual, not measured here."""

LIMIT = 1800
"""The most seconds that one program may compile."""

Maker = Callable[[bool, int], Plan]
"""A case's plan: whether it is tiny, and how many devices share the clients."""


def stocfl(share: float, engine: str) -> Maker:
    """StoCFL's round of Table 1."""
    return lambda quick, devices: table_one(quick, None, participation=share, engine=engine, devices=devices)


def fedavg(model: str, size: int) -> Maker:
    """A round of FedAvg with 1,000 clients of 300 images."""

    def make(quick: bool, devices: int) -> Plan:
        federation = made_up_federation(16 if quick else 1000, 20 if quick else 300)
        train = {"lr": 0.01, "epochs": 1, "batch_size": size}
        given = {"model": model, "method": "fedavg", "train": train, "devices": devices}
        return planned(*config_and_objects(federation, given))

    return make


def quickstart(method: Any) -> Maker:
    """A round of one of the quickstart's methods."""
    changed = {"method": method} if method else {}
    return lambda quick, devices: planned(
        *config_and_objects("quickstart", {**changed, "compare": [], "devices": devices})
    )


CASES: dict[str, Maker] = {
    "stocfl-10-factored": stocfl(0.1, "factored"),
    "stocfl-10-general": stocfl(0.1, "general"),
    "stocfl-100-factored": stocfl(1.0, "factored"),
    "stocfl-100-general": stocfl(1.0, "general"),
    "fedavg-cnn": fedavg("cnn_fashion", 32),
    "fedavg-mlp": fedavg("mlp", 20),
    "quickstart-stocfl": quickstart(None),
    "quickstart-fedavg": quickstart("fedavg"),
    "quickstart-ifca": quickstart({"name": "ifca", "clusters": 4}),
    "quickstart-majority": quickstart("majority"),
}


def compiled(
    target: str,
    cases: Sequence[str],
    quick: bool = False,
    on_result: Callable[[dict[str, Any]], None] = lambda one: None,
) -> dict[str, Any]:
    """Compile cases for a target, each in a process of its own.

    Args:
        target: a name of `absent.targets()`.
        cases: names of `CASES`; all of them where none is given.
        quick: whether everything is tiny.
        on_result: called with each case when it is complete.

    Raises:
        InputError: an unknown name, or the target's compiler is not installed.
    """
    aimed = absent.target_named(target)
    for name in cases:
        if name not in CASES:
            raise unknown("case", name, CASES)
    found = []
    for name in cases or CASES:
        found.append({"target": target, "case": name, **apart(aimed, target, name, quick)})
        on_result(found[-1])
    return {"about": "compiled, not run", "machine": machine(0.0), "quick": quick, "cases": found}


def apart(aimed: absent.Absent, target: str, name: str, quick: bool) -> dict[str, Any]:
    """A case compiled in a new process, whose environment its compiler needs."""
    command = [sys.executable, "-m", "jcfl.runs.bench.compiled", json.dumps([target, name, quick])]
    around = {**os.environ, **absent.surroundings(aimed)}
    try:
        done = subprocess.run(command, timeout=LIMIT, env=around, check=False, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return {"failed": f"not compiled after {LIMIT} s"}
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
        return {"failed": (errors or [f"exit status {done.returncode}"])[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])


def case(target: str, name: str, quick: bool) -> dict[str, Any]:
    """The numbers of one case."""
    aimed = absent.target_named(target)
    with compiling_for(aimed.target):
        plan = CASES[name](quick, aimed.devices)
    (algorithm,) = plan.algorithms.values()
    state = jax.eval_shape(algorithm.init, jax.random.key(0), plan.federation)
    with compiling_for(absent.with_devices(aimed)) as there:
        alone = jax.sharding.SingleDeviceSharding(there.devices[0])
        on = on_every_device(aimed.devices) if aimed.devices > 1 else alone
        shapes = lambda tree: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=on), tree)
        step = jax.jit(algorithm.step, donate_argnums=0, out_shardings=on)
        lowered = step.lower(shapes(state), shapes(plan.federation))
        begun = time.perf_counter()
        try:
            program = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            return {"failed": str(error).splitlines()[0][:300], "compile_s": time.perf_counter() - begun}
        seconds = time.perf_counter() - begun
        took = hlo.cost(
            program.as_text() or "", aimed.target.platform == "gpu", settled(plan, trees.count(state.clusters))
        )
    sizes: Any = program.memory_analysis()
    largest = max(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if hasattr(leaf.dtype, "itemsize"))
    return {
        "compile_s": seconds,
        "arguments_GiB": sizes.argument_size_in_bytes / GIB,
        "temporaries_GiB": sizes.temp_size_in_bytes / GIB,
        "largest_GiB": largest / GIB,
        "chunk": plan.context.resources.chunk,
        "kernels": took.kernels,
        "host_trips": took.trips,
        "collectives": took.collectives,
        "sent_MiB": took.sent / 2**20,
        "moved_GiB": took.bytes / GIB,
        "products_TFLOP": (took.flops + took.exact) / 1e12,
        **roofline(took, aimed.target),
        "once": sorted(took.once),
    }


def settled(plan: Plan, most: int) -> hlo.Turns:
    """How often loops turn in a settled round: no client is new, and clusters of equal size are the groups.

    XLA does not know it, because it depends on the clusters that are found.

    Args:
        most: how many clusters the method can have.
    """
    population, devices = plan.context.population, plan.context.resources.devices
    clusters, cohort = min(population.groups, most), -(-population.cohort // devices)
    tile, each = 1, -(-cohort // clusters)
    if plan.context.task.first is not None:
        tile = min(cohort, factored.tile_size(plan.context.task, plan.context, len(factored.REFERENCES)))
    with_others = factored.are_full(clusters * -(-each // tile) * tile, cohort)

    def turns(source: str) -> float | None:
        inner, alone = source.partition("\n")[0], "train(singly" in source
        if inner.startswith("merge_similar.<locals>.before:"):
            return 0
        if inner.startswith("compiling.<locals>.advance:"):  # the rounds of a block
            return 1
        if inner.startswith("sums_of_devices:"):
            return -(-clusters // engine.EXCHANGED)
        if inner.startswith("train_tiles:"):
            taken = not with_others if alone else with_others or "begun = train(" not in source
            return clusters * (each if alone else -(-each // tile)) * taken
        return None

    return turns


def estimate(program: Any, plan: Plan) -> dict[str, Any]:
    """The estimate of a round, from a program that was compiled for the device at hand.

    Args:
        program: a `jax.stages.Compiled` that trains one round, or a block of rounds.

    Returns:
        the seconds of a settled round, or None if the device's rates are not known; the resource that limits it; and
        the loops of unknown length, which count as one turn, so that the estimate is too low. If the program's text
        cannot be read, the reason is in place of the resource.
    """
    known = absent.rates(at_hand().name)
    if known is None:
        return {"estimate_s": None, "bound": "", "once": []}
    (algorithm,) = plan.algorithms.values()
    state = jax.eval_shape(algorithm.init, jax.random.key(0), plan.federation)
    turns = settled(plan, trees.count(state.clusters))
    try:
        took = hlo.cost(program.as_text() or "", known.platform == "gpu", turns)
    except Exception as error:  # another version of XLA may write what is not known; a measurement goes on
        return {"estimate_s": None, "bound": f"not read: {error!r}"[:120], "once": []}
    least = roofline(took, known)
    return {"estimate_s": least["round_ms"] / 1e3, "bound": least["bound"], "once": sorted(took.once)}


def roofline(took: hlo.Cost, target: Target) -> dict[str, Any]:
    """The least that a round takes by each of its limits, and their estimate together.

    Memory, arithmetic and launches overlap; waiting for the host does not.
    """
    least = {
        "memory": took.bytes / target.bandwidth,
        "arithmetic": took.flops / target.products + took.exact / target.flops,
        "launches": took.kernels * target.launch,
        "host": took.trips * TRIP,
    }
    host = least["host"]
    limits = {f"{name}_ms": 1e3 * seconds for name, seconds in least.items()}
    together = max(seconds for name, seconds in least.items() if name != "host") + host
    return {**limits, "round_ms": 1e3 * together, "bound": max(least, key=lambda name: least[name])}


COLUMNS = {
    "compile_s": ("compiles in, s", ".0f"),
    "chunk": ("chunk", "d"),
    "arguments_GiB": ("arguments, GiB", ".2f"),
    "temporaries_GiB": ("temporaries, GiB", ".2f"),
    "kernels": ("kernels", ".0f"),
    "host_trips": ("waits for the host", ".0f"),
    "collectives": ("collectives", ".0f"),
    "sent_MiB": ("sent, MiB", ".1f"),
    "moved_GiB": ("moved, GiB", ".1f"),
    "products_TFLOP": ("products, TFLOP", ".3f"),
    "round_ms": ("estimate, ms", ".1f"),
    "bound": ("bound by", ""),
}
"""The table's columns: the number, its heading and its format."""


def table(cases: Sequence[dict[str, Any]]) -> str:
    """Cases as a Markdown table."""
    lines = [
        "*Compiled, not run.*",
        "",
        f"| target | case | {' | '.join(heading for heading, _ in COLUMNS.values())} |",
        "|" + "---|" * (len(COLUMNS) + 2),
    ]
    for one in cases:
        least = "≥ " if one.get("once") else ""  # some loops were counted as one turn
        shown = (
            [(least if key == "kernels" else "") + f"{one[key]:{form}}" for key, (_, form) in COLUMNS.items()]
            if "failed" not in one
            else []
        )
        rest = shown or [f"failed: {one['failed']}", *[""] * (len(COLUMNS) - 1)]
        lines.append(f"| {one['target']} | {one['case']} | {' | '.join(rest)} |")
    return "\n".join(lines)


def write(found: dict[str, Any], folder: Path) -> list[Path]:
    """Write the numbers and the table into a folder; returns the files."""
    text, figures = folder / "compiled.md", folder / "compiled.json"
    with writing(folder):
        text.write_text(table(found["cases"]) + "\n", "utf-8")
        figures.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return [text, figures]


if __name__ == "__main__":
    print(json.dumps(case(*json.loads(sys.argv[1]))))
