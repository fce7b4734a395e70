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
from jcfl.core import sharded
from jcfl.errors import InputError, TooLarge
from jcfl.fast import factored
from jcfl.results import overwrite
from jcfl.runs.bench import absent, hlo, machine
from jcfl.runs.bench.cases import CASES, configuration, planned_for
from jcfl.runs.devices import on_every_device, placed_shapes, state_on_devices
from jcfl.runs.plan import Plan
from jcfl.runs.xla import round_options
from jcfl.types import Federation, State
from jcfl.types.target import Target, at_hand, compiling_for

GIB = 2**30
TRIP = 2e-5
"""Seconds in which a GPU waits for the host's next decision: taken from what is usual, not measured here."""

LIMIT = 1800
"""The most seconds that one program may compile."""


def compiled(
    target: str,
    cases: Sequence[str],
    quick: bool = False,
    data_dir: Path | None = None,
    on_result: Callable[[dict[str, Any]], None] = lambda one: None,
) -> dict[str, Any]:
    """Compile cases for a target, each in a process of its own.

    Args:
        target: a name of `absent.targets()`.
        cases: names of `CASES`, presets, or configuration files; all of `CASES` where none is given.
        quick: whether the cases of `CASES` are tiny.
        data_dir: the folder of datasets for presets and files.
        on_result: called with each case when it is complete.

    Raises:
        InputError: an unknown name, a configuration with a mistake, or the target's compiler is not installed; or no
            case can be planned, for instance because data is missing.
    """
    aimed = absent.target_named(target)
    own = [name for name in cases if name not in CASES]
    for name in own:
        configuration(name, aimed.devices, data_dir)
    if data_dir is not None and not own:
        raise InputError("--data-dir: only a preset or a file reads data here; leave it out, or name one")
    if quick and own:
        raise InputError(
            f"--quick: {own[0]!r} is planned as it is; leave --quick out, or name cases of {', '.join(CASES)}"
        )
    found = []
    for name in cases or CASES:
        found.append({"target": target, "case": name, **apart(aimed, target, name, quick, data_dir)})
        on_result(found[-1])
    if all(one.get("refused") for one in found):  # else a mistake in one case would hide what the others took
        raise InputError(f"{found[0]['case']}: {found[0]['failed']}")
    return {"about": "compiled, not run", "machine": machine(0.0), "quick": quick, "cases": found}


def apart(aimed: absent.Absent, target: str, name: str, quick: bool, data_dir: Path | None) -> dict[str, Any]:
    """A case compiled in a new process, whose environment its compiler needs."""
    asked = [target, name, quick, str(data_dir) if data_dir is not None else None]
    command = [sys.executable, "-m", "jcfl.runs.bench.compiled", json.dumps(asked)]
    around = {**os.environ, **absent.surroundings(aimed)}
    try:
        done = subprocess.run(command, timeout=LIMIT, env=around, check=False, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return {"failed": f"not compiled after {LIMIT} s"}
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
        return {"failed": (errors or [f"exit status {done.returncode}"])[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])


def case(target: str, name: str, quick: bool, data_dir: str | None = None) -> dict[str, Any]:
    """The numbers of one case, or why it cannot be planned or compiled."""
    aimed = absent.target_named(target)
    with compiling_for(aimed.target):
        try:
            plan = planned_for(aimed.devices, name, quick, data_dir)
        except InputError as error:  # too little memory on the target is an outcome, and all else a mistake
            return {"failed": str(error), "refused": not isinstance(error, TooLarge)}
        if beside_device(plan):
            return {"failed": f"{beside_device(plan)} on the host, and such rounds compile only where the device is"}
        state, step = round_of(plan)
    with compiling_for(absent.with_devices(aimed)) as there:
        alone = jax.sharding.SingleDeviceSharding(there.devices[0])
        on = on_every_device(aimed.devices) if aimed.devices > 1 else alone
        lanes = plan.config.seeds if plan.config.seeds_in_one else 1
        several = aimed.devices > 1
        places = state_on_devices(state, aimed.devices, lanes) if several else jax.tree.map(lambda leaf: on, state)
        state, data = placed_shapes(state, places), jax.eval_shape(lambda tree: tree, plan.federation)
        federation = placed_shapes(data, jax.tree.map(lambda leaf: on, data))
        lowered = jax.jit(step, donate_argnums=0, out_shardings=places).lower(state, federation)
        begun = time.perf_counter()
        try:
            program = lowered.compile(round_options(plan.context))
        except jax.errors.JaxRuntimeError as error:
            return {"failed": str(error).splitlines()[0][:300], "compile_s": time.perf_counter() - begun}
        seconds = time.perf_counter() - begun
        took = hlo.cost(program.as_text() or "", aimed.target.platform == "gpu", settled(plan))
    sizes: Any = program.memory_analysis()
    largest = max(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if hasattr(leaf.dtype, "itemsize"))
    return {
        "compile_s": seconds,
        "arguments_GiB": sizes.argument_size_in_bytes / GIB,
        "temporaries_GiB": sizes.temp_size_in_bytes / GIB,
        "largest_GiB": largest / GIB,
        "engine": next(iter(plan.algorithms.values())).engine,
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


def beside_device(plan: Plan) -> str:
    """What a plan's rounds ask the host for, in words; an empty text if that is nothing."""
    places = {"examples are": plan.needs.place == "host", "clients' states are": plan.context.resources.states_on_host}
    return " and ".join(what for what, asked in places.items() if asked)


def round_of(plan: Plan) -> tuple[State, Callable[[State, Federation], State]]:
    """The shapes of a plan's state, and its round; of all seeds together where they run side by side."""
    (algorithm,) = plan.algorithms.values()
    init, step, key = algorithm.init, lambda state, data: algorithm.step(state, data.at(state.round)), jax.random.key(0)
    if plan.config.seeds_in_one and plan.config.seeds > 1:
        init, step = jax.vmap(init, (0, None)), jax.vmap(step, (0, None))
        key = jax.random.split(key, plan.config.seeds)
    return jax.eval_shape(init, key, plan.federation), step


def settled(plan: Plan) -> hlo.Turns:
    """How often loops turn in a settled round: no client is new, and clusters of equal size are the groups.

    XLA does not know it, because it depends on the clusters that are found.
    """
    (algorithm,) = plan.algorithms.values()
    most = trees.count(jax.eval_shape(algorithm.init, jax.random.key(0), plan.federation).clusters)  # clusters
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
        if inner.startswith(("fetched:", "sums_of_devices:")):
            return -(-clusters // sharded.EXCHANGED)
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
    try:
        took = hlo.cost(program.as_text() or "", known.platform == "gpu", settled(plan))
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

COUNTED = ("kernels", "host_trips", "collectives", "sent_MiB", "moved_GiB", "products_TFLOP", "round_ms")
"""The columns that grow with the turns of loops."""


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
            [(least if key in COUNTED else "") + f"{one[key]:{form}}" for key, (_, form) in COLUMNS.items()]
            if "failed" not in one
            else []
        )
        rest = shown or [f"failed: {one['failed']}", *[""] * (len(COLUMNS) - 1)]
        lines.append(f"| {one['target']} | {one['case']} | {' | '.join(rest)} |")
    return "\n".join(lines)


def write(found: dict[str, Any], folder: Path) -> list[Path]:
    """Write the numbers and the table into a folder; returns the files."""
    text, figures = folder / "compiled.md", folder / "compiled.json"
    overwrite(figures, (json.dumps(found, indent=1) + "\n").encode())
    overwrite(text, (table(found["cases"]) + "\n").encode())
    return [text, figures]


if __name__ == "__main__":
    print(json.dumps(case(*json.loads(sys.argv[1]))))
