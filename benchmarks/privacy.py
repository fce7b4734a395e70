"""What client-level differential privacy costs: accuracy and ARI against ε, for four methods.

    python benchmarks/privacy.py digits
    python benchmarks/privacy.py mnist --data-dir data

Groups see images turned by 0, 90, 180 and 270 degrees, and everybody trains in every round, so ε is exact. Nothing was
tuned: the clip is 0.3, a description's noise is a quarter of an update's, since it is sent once, and StoCFL's threshold
is the paper's 0.5. The descriptions of StoCFL and K-means are gradients folded to 15 numbers, because noise is on every
number. A run that is complete is not repeated. It writes a table and a figure.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from inputs import known, run_script

from jcfl.results import History, cell, load
from jcfl.runs.environment import use_cache
from jcfl.runs.experiment import run
from jcfl.view import plotting

DESCRIBE = {"name": "gradient", "sketch": 16}
METHODS: list[dict[str, Any]] = [
    {"name": "stocfl", "tau": 0.5, "sketch": 16, "capacity": 128},
    {"name": "clustered", "label": "kmeans", "describe": DESCRIBE, "compare": "l2", "group": "kmeans", "when": "once"},
    {"name": "ifca", "clusters": 4},
    {"name": "fedavg"},
]
DATA: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "scenario": {"name": "rotated", "clients": 100, "scale": "standard"}},
    "mnist": {
        "data": "mnist",
        "scenario": {"name": "rotated", "clients": 2400, "copies": False},
        "model": {"name": "mlp", "hidden": 16},
        "train": {"lr": 0.1, "epochs": 2, "batch_size": "full"},
    },
}
COMMON: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": 32},
    "train": {"lr": 0.1, "epochs": 5, "batch_size": "full"},
    "rounds": 20,
    "evaluate_every": 20,
    "method": METHODS[0],
    "compare": METHODS[1:],
}
NOISES = (0.0, 0.5, 2.0, 8.0)
SHOWN = ("epsilon", "accuracy_micro", "ari", "clusters")
HERE = Path(__file__).parent


def main(
    name: Annotated[str, typer.Argument(help=" or ".join(DATA))],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every point.")] = 2,
    data_dir: Annotated[Path | None, typer.Option(help="Where MNIST is.")] = None,
) -> None:
    """Run every noise, print a table, and draw the figure."""
    use_cache()
    known("federation", [name], DATA)
    found: list[History] = []
    for noise in (None, *NOISES):
        folder = Path(f"runs/privacy-{name}-{noise}")
        if not (folder / "comparison.json").exists() or len(load(folder).others) + 1 < len(METHODS):
            run(COMMON | DATA[name], seeds=seeds, data_dir=data_dir, privacy=privacy(noise), out=folder)
        main_one = load(folder)
        found += [main_one, *main_one.others.values()]
    print("| method | noise | ε | accuracy | ARI | clusters |\n|---|---|---|---|---|---|")
    for index, one in enumerate(found):
        noise = (None, *NOISES)[index // len(METHODS)]
        cells = [cell(score, one.summary.get(score), seeds) for score in SHOWN]
        print(f"| {one.name} | {'no privacy' if noise is None else noise} | {' | '.join(cells)} |")
    drawn = [one for index, one in enumerate(found) if (None, *NOISES)[index // len(METHODS)] != 0]
    plotting.save(plotting.privacy(drawn), HERE / "figures" / f"privacy-{name}", ["png"])


def privacy(noise: float | None) -> dict[str, Any]:
    """The section of a configuration; without privacy where there is no noise to be set."""
    described = {"description_clip": 1.0, "description_noise": (noise or 0.0) / 4}
    return {} if noise is None else {"clip": 0.3, "noise": noise, **described}


if __name__ == "__main__":
    run_script(main)
