"""Which answer matters: describe x compare x group, every combination that has a meaning, as one sweep.

    python benchmarks/ablation.py digits
    python benchmarks/ablation.py mnist --data-dir FOLDER

Every point is the method `clustered` with other answers: all clients are described and grouped once, before the
first round, and then FedAvg trains a model for each cluster. K-means, linkage and spectral clustering are told the true
number of groups, 4; density-based clustering is not told, and takes its radius from the distances. No answer was tuned.
The sweep's folder is `runs/ablation-NAME`; started again, it goes on where it stopped. It writes a table and a figure.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from inputs import known, run_script
from study import GRID, drawing, numbers

from jcfl import registry, trees
from jcfl.errors import InputError
from jcfl.runs import config, plan
from jcfl.runs.environment import use_cache
from jcfl.runs.sweeping import Sweep, sweep
from jcfl.view.plotting.style import PAGE

DESCRIBE = ("gradient", "update", "model", "subspace", "moments", "labels")
COMPARE = ("cosine", "l1", "l2", "principal_angles")
GROUP = ("kmeans", "linkage", "spectral", "density")
FOUND = ("density",)
"""Groups that find the number of clusters."""

FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits": {"base": "quickstart", "rounds": 50, "evaluate_every": 50, "compare": []},
    "mnist": {
        "base": "stocfl_rotated_mnist",
        "scenario": {"name": "rotated", "clients": 400, "angles": [0, 90, 180, 270]},
        "model": {"name": "mlp", "hidden": 64},
        "rounds": 30,
        "evaluate_every": 30,
        "compare": [],
    },
}
HERE = Path(__file__).parent


def main(
    name: Annotated[str, typer.Argument(help="digits or mnist")],
    data_dir: Annotated[Path | None, typer.Option(help="Folder of datasets.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of every point.")] = None,
    only: Annotated[str, typer.Option(help="Descriptions to try, with commas between them.")] = ",".join(DESCRIBE),
) -> None:
    """Train every combination and write `benchmarks/figures/ablation-NAME.{json,png}` and a table."""
    use_cache()
    known("federation", [name], FEDERATIONS)
    descriptions = known("description", only.split(","), DESCRIBE)
    settings: dict[str, Any] = FEDERATIONS[name] | ({"rounds": rounds, "evaluate_every": rounds} if rounds else {})
    base = config.unchecked(settings.pop("base")) | settings | {"method": "clustered", "data_dir": data_dir}
    points = list(meaningful(base, descriptions))
    folder = Path("runs") / f"ablation-{name}"
    found = sweep(base, points, out=folder, resume=(folder / "sweep.yaml").exists())
    rows = figures(found, base)
    (HERE / "figures" / f"ablation-{name}.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    draw(rows, HERE / "figures" / f"ablation-{name}.png")
    print(table(rows))


def meaningful(base: dict[str, Any], descriptions: list[str]) -> Iterator[dict[str, Any]]:
    """The combinations that are not refused, as points of a sweep."""
    registry.load()
    small = plan.planned(config.read(base, ["scenario.clients=8"]))
    for describe in descriptions:
        for compare in COMPARE:
            for group in GROUP:
                known = {} if group in FOUND else {"clusters": 4}
                point = {
                    "method.describe": describe,
                    "method.compare": compare,
                    "method.group": {"name": group, **known},
                }
                chosen = [f"{key}={json.dumps(value)}" for key, value in point.items()]
                try:
                    method = config.read(base, ["scenario.clients=8", *chosen]).method
                    plan.algorithm(method, small.context, plan.Objects())
                except InputError:
                    continue
                yield point


def figures(found: Sweep, base: dict[str, Any]) -> list[dict[str, Any]]:
    """Purity, accuracy, clusters and cost of every point; the cost is the numbers that describe one client."""
    context = plan.planned(config.read(base, ["scenario.clients=8"])).context
    rows = []
    for point, history in zip(found.points, found.histories, strict=True):
        answers = {key.removeprefix("method."): value for key, value in point.values.items()}
        scores = {key: history.summary[key]["mean"] for key in ("purity", "ari", "accuracy_micro", "clusters")}
        group = answers["group"]["name"]
        numbers = described_by(answers["describe"], context)
        rows.append(
            {"describe": answers["describe"], "compare": answers["compare"], "group": group}
            | scores
            | {"numbers": numbers, "seconds": history.summary["wall_s"]}
        )
    return rows


def described_by(describe: str, context: Any) -> int:
    """The numbers that the server holds of one client."""
    task, features = context.task, math.prod(context.population.shape)
    first = jax.eval_shape(task.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, *context.population.shape), np.float32)
    return {
        "subspace": 3 * features,
        "moments": 2 * jax.eval_shape(task.features, first, x).shape[1],
        "labels": context.population.classes,
    }.get(describe, trees.parameters(first["params"]))


def table(rows: list[dict[str, Any]]) -> str:
    """The points as a Markdown table, the purest first."""
    head = "| describe | compare | group | clusters | purity | ARI | accuracy | numbers a client |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (-row["purity"], -row["accuracy_micro"])):
        scores = f"{row['clusters']:.0f} | {row['purity']:.3f} | {row['ari']:.3f} | {100 * row['accuracy_micro']:.2f} %"
        lines.append(f"| {row['describe']} | {row['compare']} | {row['group']} | {scores} | {row['numbers']:,} |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Two grids, ARI and accuracy, of describe and compare against group; the cost beside every description."""
    pairs = list(dict.fromkeys((row["describe"], row["compare"]) for row in rows))
    sizes = {row["describe"]: row["numbers"] for row in rows}
    groups = [group for group in GROUP if any(row["group"] == group for row in rows)]
    written = {
        "ari": lambda value: f"{value:.2f}".replace("-0.00", "0.00"),
        "accuracy_micro": lambda value: f"{value:.1f}",
    }
    with drawing(path, 2, (PAGE, 0.7 + 0.2 * len(pairs)), GRID) as axes:
        for axis, score, title in zip(axes, written, ("ARI", "accuracy, %"), strict=True):
            grid = np.full((len(pairs), len(groups)), np.nan)
            for row in rows:
                value = row[score] * (100 if score == "accuracy_micro" else 1)
                grid[pairs.index((row["describe"], row["compare"])), groups.index(row["group"])] = value
            low, high = (0, 1) if score == "ari" else (np.nanmin(grid), np.nanmax(grid))
            image = numbers(axis, grid, written[score], low, high)
            axis.set_xticks(range(len(groups)), groups)
            axis.set_title(title)
            axis.figure.colorbar(image, ax=axis, fraction=0.04, pad=0.02).outline.set_visible(False)
        names = [f"{describe}, {compare} ({sizes[describe]:,})" for describe, compare in pairs]
        axes[0].set_yticks(range(len(pairs)), names)
        axes[0].set_ylabel("describe, compare (numbers a client)")
        axes[1].set_yticks([])


if __name__ == "__main__":
    run_script(main)
