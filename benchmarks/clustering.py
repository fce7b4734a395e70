"""What StoCFL's clustering finds at every threshold, nothing trained (StoCFL, section 4.1, Figures 3 and 8).

    python benchmarks/clustering.py --data-dir FOLDER

A client's Ψ depends neither on the threshold nor on the round. So the gradients are taken once, as the method takes
them, and replaced by coordinates with the same inner products, which are all that merging sees; every threshold then
runs through the method's own rounds on those. A run of `method stocfl` with `clustering_only` finds the same clusters.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer

sys.path.append(str(Path(__file__).resolve().parent))

from inputs import known, new_file, run_script

from jcfl import metrics, trees
from jcfl.core import chunks, describing
from jcfl.core.compile import compile
from jcfl.core.context import Context
from jcfl.core.describing import Description
from jcfl.core.method import Method, Train
from jcfl.grouping.compare import Cosine
from jcfl.grouping.describe import Gradient
from jcfl.grouping.merge import Merge
from jcfl.grouping.when import Arrival
from jcfl.runs import config
from jcfl.runs.environment import use_cache
from jcfl.runs.plan import Plan, planned
from jcfl.types import Array, Federation, Key, Split, Task

SETTINGS = {
    "pathological": ("stocfl_pathological_mnist", []),
    "rotated": ("stocfl_rotated_mnist", ["scenario.clients=400", "rounds=50"]),
    "shifted": ("stocfl_shifted_mnist", []),
    "hybrid": ("stocfl_hybrid_mnist", []),
    "rotated_pathological": ("stocfl_tau", []),
}
"""Every setting's preset, and what is changed in it."""

DESCRIBE = {"plain": describing.gradient, "noise_corrected": describing.halves}
LABEL_SETS = 4  # of `rotated_pathological`: group a * 4 + s holds label set s
MOMENTS = (1, 2, 5, 10, 20, 50)


def main(
    settings: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(SETTINGS)} [default: all].")] = None,
    hidden: Annotated[int, typer.Option(help="Hidden units of the anchor.")] = 2048,
    init: Annotated[str, typer.Option(help="Its initial weights: torch, glorot, lecun, he.")] = "torch",
    seeds: Annotated[int, typer.Option(min=1, help="Federations, anchors and orders of clients.")] = 2,
    low: Annotated[float, typer.Option(help="The lowest threshold.")] = 0.2,
    high: Annotated[float, typer.Option(help="The highest.")] = 0.98,
    step: Annotated[float, typer.Option(help="From one to the next.")] = 0.01,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of datasets [default: JCFL_DATA].")] = None,
    out: Annotated[
        Path | None, typer.Option(parser=new_file, metavar="FILE", help="A JSON file for the figures of every round.")
    ] = None,
) -> None:
    """Print two tables for every setting, and write the figures of every round."""
    known("setting", settings or [], SETTINGS)
    if not (low <= high and step > 0):
        raise typer.BadParameter(
            f"expected --low up to --high, and a --step above 0; got {low:g}, {high:g} and {step:g}"
        )
    taus = np.round(np.arange(low, high + 1e-9, step), 4)
    folder = data_dir or Path(os.environ.get("JCFL_DATA", "data"))
    found = {}
    for name in settings or SETTINGS:
        preset, changes = SETTINGS[name]
        changes = [*changes, "compare=[]", f"model.hidden={hidden}", f"model.init={init}", f"data_dir={folder}"]
        for similarity in DESCRIBE:
            runs = [swept(preset, [*changes, f"seed={seed}"], similarity, taus) for seed in range(seeds)]
            both = {key: np.stack([run[key] for run in runs]) for key in runs[0] if key != "labels"}  # [seeds, τ, t]
            print(f"\n## {name}, {similarity}, mlp {hidden}, init {init}, seeds 0-{seeds - 1}\n")
            print(table(taus, both), rounds_table(taus, both), sep="\n\n", flush=True)
            found[f"{name} {similarity}"] = {figure: values.tolist() for figure, values in both.items()}
            if out is not None:
                told = {"taus": taus.tolist(), "hidden": hidden, "init": init, "found": found}
                out.write_text(json.dumps(told), "utf-8")


def swept(preset: str, changes: list[str], similarity: str, taus: np.ndarray) -> dict[str, np.ndarray]:
    """What every threshold finds after every round: figures [τ, t], `labels` [τ, t, m]."""
    own = [f"method.similarity={similarity}", "method.clustering_only=true", "method.capacity=1"]
    plan = planned(config.read(preset, [*changes, *own]))
    key = jax.random.key(plan.config.seed)
    gram, trust = gradients(plan, similarity, key)
    values, vectors = np.linalg.eigh(np.asarray(gram, np.float64))
    coordinates = vectors * np.sqrt(np.maximum(values, 0))  # [m, m]
    rows = np.concatenate([coordinates, np.asarray(trust)[:, None]], 1).astype(np.float32)
    found = jax.device_get(replayed(plan, rows, key, jnp.asarray(taus, jnp.float32)))
    labels, groups = found["labels"], np.asarray(plan.federation.groups)
    measures = {"clusters": metrics.clusters, "purity": lambda own: metrics.purity(own, groups)}
    measures["ari"] = lambda own: metrics.ari(own, groups)
    if plan.context.population.groups > LABEL_SETS:
        measures["ari_label_sets"] = lambda own: metrics.ari(own, groups % LABEL_SETS)
    return {name: np.apply_along_axis(measure, -1, labels) for name, measure in measures.items()} | found


def gradients(plan: Plan, similarity: str, key: Key) -> tuple[Array, Array]:
    """Inner products of all clients' Ψ [m, m], and what their squared lengths are taken for [m]."""
    algorithm, context = next(iter(plan.algorithms.values())), plan.context
    description = DESCRIBE[similarity](context.task)

    def described(key: Key, federation: Federation) -> tuple[Array, Array]:
        memory = algorithm.init(key, federation).memory
        describe = lambda client, data: description(memory.anchor, data, jax.random.fold_in(memory.key, client))
        everyone = jnp.arange(context.population.clients)
        psi, trust = chunks.over_clients(describe, federation, everyone, context.resources.chunk)
        return trees.inner(psi, psi), trust

    return jax.jit(described)(key, plan.federation)


@dataclass(frozen=True, kw_only=True)
class Coordinates(Gradient):
    """The method's description, taken before: a client's only example is its Ψ in coordinates, and its trust."""

    def description(self, context: Context, halves: bool = False) -> Description:
        """The example."""
        return Description(context.task, lambda task, dot, anchor, data, key: (data.x[0, :-1], data.x[0, -1]), False)


def replayed(plan: Plan, rows: np.ndarray, key: Key, taus: Array) -> dict[str, Array]:
    """The method's rounds, each client's Ψ given by its coordinates and trust in `rows` [m, m + 1]."""
    m = plan.context.population.clients
    federation = reduced(plan.federation, rows)
    context = plan.context._replace(task=Task(lambda key: {"params": {"psi": jnp.zeros(m)}}, *[None] * 3, ()))  # pyright: ignore

    def figures(state) -> dict[str, Array]:
        objective = metrics.objective(state.memory.gram, state.memory.live)
        return {"labels": state.labels, "objective": objective}

    def run(tau: Array) -> dict[str, Array]:
        group, train = Merge(tau=tau, capacity=m), Train(shared="trained", active=False)  # pyright: ignore
        method = Method(describe=Coordinates(), compare=Cosine(), group=group, when=Arrival(), train=train)
        algorithm = compile(method, context)

        def turn(state, _):
            state = algorithm.step(state, federation)
            return state, figures(state)

        return jax.lax.scan(turn, algorithm.init(key, federation), length=plan.config.rounds)[1]

    return jax.jit(lambda taus: jax.lax.map(run, taus))(taus)


def reduced(federation: Federation, rows: np.ndarray) -> Federation:
    """The same clients with one example each: its row."""
    m = len(rows)
    count = jnp.arange(m, dtype=jnp.int32)
    split = Split(count, count, jnp.ones(m, jnp.int32), 1)
    plain = federation.replace(x=jnp.asarray(rows), y=jnp.zeros(m, jnp.int32), train=split, test=split)  # pyright: ignore
    return plain.replace(mean=(0.0,), std=(1.0,))


def table(taus: np.ndarray, found: dict[str, np.ndarray]) -> str:
    """After the last round, one figure per seed, for every threshold that changes one."""
    columns = [key for key in ("clusters", "purity", "ari", "ari_label_sets") if key in found]
    lines = ["| τ | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    rows = [" | ".join(cells(found[key][:, i, -1]) for key in columns) for i in range(taus.size)]
    lines += [f"| {taus[i]:.2f} | {row} |" for i, row in enumerate(rows) if i == 0 or row != rows[i - 1]]
    exact = taus[(found["ari"][:, :, -1] == 1).all(0)]
    return "\n".join([*lines, "", f"The true groups exactly, every seed: τ in {stretches(taus, exact)}"])


def cells(values: np.ndarray) -> str:
    """One figure of several seeds."""
    return ", ".join(f"{value:.4g}" for value in values)


def stretches(taus: np.ndarray, exact: np.ndarray) -> str:
    """Thresholds as stretches of the grid."""
    places = np.flatnonzero(np.isin(taus, exact))
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if places.size else []
    return ", ".join(f"{taus[run[0]]:.2f}-{taus[run[-1]]:.2f}" for run in runs) or "none"


def rounds_table(taus: np.ndarray, found: dict[str, np.ndarray]) -> str:
    """After some rounds, at the threshold nearest 0.5, seed 0."""
    i, most = int(np.abs(taus - 0.5).argmin()), found["ari"].shape[-1]
    lines = [f"| round (τ {taus[i]:.2f}, seed 0) | clusters | purity | ari | objective |", "|---" * 5 + "|"]
    for round in [moment for moment in MOMENTS if moment <= most]:
        figures = [found[key][0, i, round - 1] for key in ("clusters", "purity", "ari", "objective")]
        lines.append(f"| {round} | " + " | ".join(f"{value:.4g}" for value in figures) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    use_cache()
    run_script(main)
