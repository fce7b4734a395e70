"""How much accuracy `auto` costs beside the best threshold, or number of clusters, that test data would have chosen.

    python benchmarks/automatic.py --data-dir FOLDER --out FILE.json

Twelve federations of 100 clients, images of 14 x 14. For each seed, StoCFL runs at every threshold of a grid, at `auto`
and at the paper's 0.5; IFCA and CFL at every value of theirs and at `auto`. The best of a grid is chosen by the
accuracy on test examples: it is an oracle, and the regret of a rule is how far its accuracy is below. FILE keeps what
has been run; the same command goes on, and prints the table at its end.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from inputs import known, new_file, read, run_script
from study import drawn, heading, row

from jcfl import data
from jcfl.data import Dataset, Examples
from jcfl.errors import Notice
from jcfl.runs.environment import use_cache
from jcfl.runs.sweeping import sweep
from jcfl.types import Federation

CLIENTS = 100
TAUS = [-1.0, 0.0, *(round(0.1 * step, 1) for step in range(2, 10)), 0.95]
KS = (1, 2, 4, 8)
EPS = [{"method.eps1": one, "method.eps2": two} for one in (0.2, 0.4, 0.6) for two in (0.4, 0.6)]
COMMON = {
    "model": {"name": "mlp", "hidden": 32},
    "train": {"lr": 0.1, "epochs": 5, "batch_size": "full"},
    "rounds": 20,
    "evaluate_every": 20,
    "progress": False,
}
Make = Callable[[Callable[[str, int], Dataset], int], Federation]


def scenario(name: str, source: str | tuple[str, str], examples: int, per: int = 1, **options: Any) -> Make:
    """The function `(load, seed) -> federation`.

    Args:
        source: a dataset, or several.
        examples: for training, of a client.
        per: how many clients share an example, which is copied for them: the groups that see the whole set.
    """

    def make(load: Callable[[str, int], Dataset], seed: int) -> Federation:
        names = (source,) if isinstance(source, str) else source
        sets = [load(one, CLIENTS * examples // (per * len(names))) for one in names]
        return data.federation(sets[0] if len(sets) == 1 else sets, name, clients=CLIENTS, seed=seed, **options)

    return make


BOTH = ("mnist", "fashion_mnist")
FEDERATIONS: dict[str, Make] = {
    "rotated, n = 35": scenario("rotated", "mnist", 35, 4),
    "rotated, n = 150": scenario("rotated", "mnist", 150, 4),
    "rotated, n = 400": scenario("rotated", "mnist", 400, 4),
    "rotated, sizes 1 : 2 : 3 : 4": scenario("rotated", "fashion_mnist", 150, 4, sizes=(10, 20, 30, 40)),
    "shifted, n = 60": scenario("shifted", "mnist", 60, 4),
    "pathological, n = 35": scenario("pathological", "fashion_mnist", 35),
    "pathological, n = 150": scenario("pathological", "fashion_mnist", 150),
    "hybrid, n = 60": scenario("hybrid", BOTH, 60),
    "5 groups by Dirichlet, n = 150": scenario("grouped_dirichlet", "mnist", 150, groups=5),
    "Dirichlet 0.1, n = 150": scenario("dirichlet", "fashion_mnist", 150, alpha=0.1),
    "2 classes a client, n = 150": scenario("n_class", "mnist", 150, n=2),
    "IID, n = 60": scenario("iid", "mnist", 60),
}


def loader(folder: Path) -> Callable[[str, int], Dataset]:
    """The function `(name, examples) -> dataset` with a random part of its examples, at half the resolution."""

    def halved(part: Examples) -> Examples:
        x = part.x.reshape(len(part), 14, 2, 14, 2, -1).mean((2, 4)).astype(np.uint8)
        return Examples(x, part.y)

    def load(name: str, examples: int) -> Dataset:
        rng, whole = np.random.default_rng(0), data.load(name, folder)
        train = drawn(rng, whole.train, min(examples, len(whole.train)))
        test = drawn(rng, whole.test, min(max(examples // 4, 1000), len(whole.test)))
        return replace(whole, train=halved(train), test=halved(test))

    return load


def scored(federation: Federation, seed: int, method: Mapping[str, Any], over: list[dict[str, Any]]) -> list[float]:
    """The accuracy at each point."""
    found = sweep(federation, over, method=dict(method), seed=seed, **COMMON)
    return [one.summary["accuracy_micro"]["mean"] for one in found.histories]


def measured(federation: Federation, seed: int) -> dict[str, Any]:
    """Every method's accuracies on one federation."""
    found: dict[str, Any] = {}
    for similarity in ("plain", "noise_corrected"):
        taus = [*TAUS, "auto"]
        method = {"name": "stocfl", "similarity": similarity}
        scores = scored(federation, seed, method, [{"method.tau": tau} for tau in taus])
        found[f"StoCFL, {similarity.replace('_', '-')}"] = dict(zip(map(str, taus), scores, strict=True))
    taken = [{"method.clusters": k} for k in (*KS, "auto")]
    found["IFCA"] = dict(zip(map(str, (*KS, "auto")), scored(federation, seed, {"name": "ifca"}, taken), strict=True))
    both = [*EPS, {"method.eps1": "auto", "method.eps2": "auto"}]
    names = [*(f"{one['method.eps1']} {one['method.eps2']}" for one in EPS), "auto"]
    found["CFL"] = dict(zip(names, scored(federation, seed, {"name": "cfl"}, both), strict=True))
    return found


FIXED = {"StoCFL, plain": "0.5", "StoCFL, noise-corrected": "0.5", "IFCA": "4", "CFL": "0.4 0.6"}
"""What a user has who does not choose: the paper's or jcfl's default."""


def tables(kept: Mapping[str, Mapping[str, Any]]) -> str:
    """The regrets of `auto` and of the default in points, mean over seeds and the largest, by federation and method."""
    lines = [heading(["federation", *(f"{name}: auto; {default}" for name, default in FIXED.items())])]
    regrets: dict[str, list[tuple[float, float]]] = {name: [] for name in FIXED}
    for title, seeds in kept.items():
        cells = []
        for name, default in FIXED.items():
            pairs = []
            for scores in (one[name] for one in seeds.values()):
                best = max(value for key, value in scores.items() if key != "auto")
                pairs.append((100 * (best - scores["auto"]), 100 * (best - scores[default])))
            means = np.mean(pairs, 0)
            regrets[name].append((means[0], means[1]))
            cells.append(f"{means[0]:.1f}; {means[1]:.1f}")
        lines.append(row(title, cells))
    whole = {name: np.array(pairs) for name, pairs in regrets.items()}
    lines.append(row("**mean**", [f"{own.mean(0)[0]:.1f}; {own.mean(0)[1]:.1f}" for own in whole.values()]))
    lines.append(row("**largest**", [f"{own.max(0)[0]:.1f}; {own.max(0)[1]:.1f}" for own in whole.values()]))
    return "\n".join(lines)


def main(
    data_dir: Annotated[Path, typer.Option(help="Folder of datasets.")],
    out: Annotated[Path, typer.Option(parser=new_file, metavar="FILE", help="The JSON file for the figures.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every federation.")] = 3,
    only: Annotated[list[str] | None, typer.Option(help="Federations.")] = None,
) -> None:
    """Run what is left, and print the tables."""
    known("federation", only or [], FEDERATIONS)
    warnings.simplefilter("ignore", Notice)
    use_cache()
    load = loader(data_dir)
    kept = read(out, lambda found: found.keys() <= FEDERATIONS.keys(), "automatic.py") if out.exists() else {}
    for seed in range(seeds):
        for title, make in FEDERATIONS.items():
            if str(seed) in kept.get(title, {}) or (only and title not in only):
                continue
            kept.setdefault(title, {})[str(seed)] = measured(make(load, seed), seed)
            out.write_text(json.dumps(kept, indent=1), "utf-8")
            print(title, seed, flush=True)
    print(tables(kept))


if __name__ == "__main__":
    run_script(main)
