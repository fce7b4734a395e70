"""What the methods and add-ons do beside each other: one table, and six questions about them.

    python benchmarks/methods.py --data-dir FOLDER table grouped_n_class
    python benchmarks/methods.py --data-dir FOLDER collapse
    python benchmarks/methods.py --data-dir FOLDER starts
    python benchmarks/methods.py --data-dir FOLDER rates
    python benchmarks/methods.py --data-dir FOLDER thresholds
    python benchmarks/methods.py --data-dir FOLDER attacks
    python benchmarks/methods.py choice

Every seed is another federation, another start and another order of examples; `starts` trains several times on each
federation. Seconds are the processor's, compilation included, so that other work on the machine does not count.
`attacks`, `rates`, `starts` and `thresholds` are in files of their names, the figure of `collapse` is in collapse.py,
and what all studies have in common in study.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from collapse import draw
from inputs import known, new_file, run_script, whole_numbers
from study import Study, heading, row

from jcfl.runs import config
from jcfl.runs.choice import choose_k
from jcfl.runs.environment import use_cache

COLUMNS = ("accuracy_micro", "accuracy_macro", "f1_micro", "f1_macro", "purity", "ari", "clusters", "seconds")
Count = Annotated[int | None, typer.Option(min=1)]
app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


@app.callback()
def options(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(help="Of the dataset.")] = None,
    clients: Count = None,
    groups: Count = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Training examples per client, on average.")] = None,
    hidden: Count = None,
    rounds: Count = None,
    seeds: Count = None,
    only: Annotated[list[str] | None, typer.Option(help="Rows.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of datasets [default: JCFL_DATA].")] = None,
    out: Annotated[
        Path | None, typer.Option(parser=new_file, metavar="FILE", help="A JSON file for the figures.")
    ] = None,
) -> None:
    """What the methods and add-ons do beside each other."""
    given = {key: value for key, value in locals().items() if key != "context" and value not in (None, [])}
    context.obj = lambda **usual: Study(**{**usual, **given})


@app.command()
def table(context: typer.Context, scenario: str = typer.Argument("grouped_n_class"), warmup: int = 12) -> None:
    """All methods and add-ons on clients with skewed labels; CAM trains both models after `warmup` rounds."""
    study: Study = context.obj()
    rows, federations = study.chosen(rivals(study.groups, warmup)), study.federations(scenario, groups=study.groups)
    found: dict[str, Any] = {}
    print(heading(["method", *COLUMNS]), flush=True)
    for title, method in rows.items():
        found[title] = []
        for seed, federation in enumerate(federations):
            history, seconds = study.run(federation, method=method, seed=seed, evaluate_every=study.rounds)
            found[title].append({key: float(history[key][0, -1]) for key in COLUMNS[:-1]} | {"seconds": seconds})
        print(row(title, [cell([one[key] for one in found[title]], key) for key in COLUMNS]), flush=True)
        study.saved({"scenario": scenario, "rows": found})


def rivals(k: int, warmup: int) -> dict[str, Any]:
    """The rows of `table`: every method that is told a number of clusters is told `k`."""
    of = lambda name, *addons: {"name": name, "clusters": k, "addons": addons}
    con, cks = (lambda mu: {"name": "con_para", "mu": mu}), (lambda lam: {"name": "cks", "lam": lam})
    cam = {"name": "cam", "warmup": warmup}
    return {
        "majority": "majority",
        "local": "local",
        "FedAvg": "fedavg",
        "FedProx": {"name": "fedprox", "mu": 0.01},
        "IFCA": of("ifca"),
        "FeSEM": of("fesem"),
        "WeCFL": of("wecfl"),
        "CFL": "cfl",
        "StoCFL 0.5": {"name": "stocfl", "tau": 0.5},
        "StoCFL 0.8": {"name": "stocfl", "tau": 0.8},
        "one-shot": of("oneshot_kmeans"),
        "WeCFL-CON 0.1": of("wecfl", con(0.1)),
        "WeCFL-CON 0.5": of("wecfl", con(0.5)),
        "WeCFL-CKS 0.01": of("wecfl", cks(0.01)),
        "WeCFL-CKS 0.1": of("wecfl", cks(0.1)),
        "WeCFL-CON&CKS": of("wecfl", {"name": "con_cks", "mu": 0.1, "lam": 0.1}),
        "IFCA-CAM": of("ifca", cam),
        "FeSEM-CAM": of("fesem", cam),
        "WeCFL-CAM": of("wecfl", cam),
    }


@app.command()
def collapse(
    context: typer.Context,
    scenario: str = typer.Argument("grouped_dirichlet"),
    warmup: int = 8,
    group_sizes: Annotated[
        str, typer.Option(help="Clients of every group, with commas between [default: equal].")
    ] = "",
    method: Annotated[str, typer.Option(help="ifca, or fesem or wecfl whose empty clusters stay empty.")] = "ifca",
) -> None:
    """The sizes of IFCA's clusters after every round, for half as many models as groups, as many and twice as many.

    With `--out FILE.json` it also draws the sizes of IFCA's clusters after the last round as FILE.png.
    """
    known("method", [method], ("ifca", "fesem", "wecfl"))
    study: Study = context.obj(rounds=20)
    uneven = {"sizes": whole_numbers("--group-sizes", group_sizes)} if group_sizes else {}
    federations = study.federations(scenario, groups=study.groups, **uneven)
    found: dict[str, Any] = {}
    for start, one in study.chosen(starters(method, study.groups, warmup)).items():
        for seed, federation in enumerate(federations):
            history, _ = study.run(federation, method=one, seed=seed, evaluate_first=True)
            counts = [sizes(labels, one["clusters"]) for labels in history.labels[0]]
            title = f"{start}, seed {seed}"
            scores = {key: float(history[key][0, -1]) for key in ("accuracy_micro", "purity", "ari")}
            rounds = dict(zip(history.rounds.tolist(), counts, strict=True))
            found[title] = {"sizes": rounds, "groups": sizes(history.groups, study.groups), **scores}
            print(f"\n{title}: {', '.join(f'{key} {value:.3f}' for key, value in scores.items())}")
            print(
                *(f"  round {t:2d}: {size}" for t, size in found[title]["sizes"].items() if size), sep="\n", flush=True
            )
            study.saved(found)
    if study.out is not None and method == "ifca":
        draw(found, study.out.with_suffix(".png"))


def starters(method: str, groups: int, warmup: int) -> dict[str, Any]:
    """The rows of `collapse`."""
    rows: dict[str, Any] = {}
    for k in (groups // 2, groups, 2 * groups):
        rows[f"K = {k}"] = {"name": method, "clusters": k} | ({} if method == "ifca" else {"empty": "keep"})
        rows[f"K = {k}, CAM"] = rows[f"K = {k}"] | {"addons": [{"name": "cam", "warmup": warmup}]}
    return rows


def sizes(labels: np.ndarray, k: int) -> list[int]:
    """How many clients every cluster holds, the largest first; nothing before there are clusters."""
    return np.sort(np.bincount(labels[labels >= 0], minlength=k))[::-1].tolist() if (labels >= 0).any() else []


@app.command()
def starts(context: typer.Context, starts: Annotated[int, typer.Option(min=2)] = 10, warmup: int = 12) -> None:
    """How far runs from different initial models are apart, with CAM and without; `starts` runs of each federation."""
    from starts import answer

    answer(context.obj(), starts, warmup)


@app.command()
def rates(context: typer.Context, warmup: int = 12, by_horizon: bool = False) -> None:
    """How fast the squared gradient shrinks with rounds, beside the thesis's rates; `rounds` begin after a warm-up.

    With `--by-horizon` each number of rounds is a training of its own, with a learning rate in proportion to 1/√rounds.
    """
    from rates import answer, answer_by_horizon

    (answer_by_horizon if by_horizon else answer)(context.obj(rounds=100), warmup)


@app.command()
def thresholds(context: typer.Context) -> None:
    """How CFL's ε1 and ε2 are chosen on Shifted data."""
    from thresholds import answer

    answer(context.obj(name="mnist", clients=20, examples=300, rounds=60))


@app.command()
def attacks(context: typer.Context, tau: float = 0.8) -> None:
    """The accuracy of honest clients beside two hostile ones."""
    from attacks import answer

    answer(context.obj(clients=20, examples=300, rounds=30), tau)


@app.command()
def choice(context: typer.Context, largest: int = 8, federation: int = 0) -> None:
    """`choose_k` on Rotated digits, whose true number of groups is 4."""
    study: Study = context.obj(clients=100, seeds=3)
    judges = {"wecfl, accuracy": ("wecfl", "accuracy"), "wecfl, distance": ("wecfl", "distance")}
    judges |= {"ifca, accuracy": ("ifca", "accuracy")}
    digits = config.read("quickstart", [f"scenario.seed={federation}"])
    found: dict[str, Any] = {}
    for title, (method, criterion) in study.chosen(judges).items():
        ks, given = range(1, largest + 1), {"clients": study.clients, "seeds": study.seeds}
        result = choose_k(digits, ks, method=method, criterion=criterion, **given)
        found[title] = result._asdict()
        scores = ", ".join(f"{k}: {mean:.3f} ± {std:.3f}" for k, (mean, std) in result.scores.items())
        print(f"{title}: k = {result.k}, confidence {result.confidence:.2f}, margin {result.margin:.3f}")
        print(f"  {scores}", flush=True)
        study.saved(found)


def cell(values: Sequence[float], what: str) -> str:
    """Mean ± sample standard deviation over seeds, the mean alone for one; a dash where there is no such figure."""
    if np.isnan(values).any():
        return "–"
    digits = {"seconds": 0, "clusters": 1, "purity": 2, "ari": 2}.get(what, 3)
    return f"{np.mean(values):.{digits}f}" + (f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else "")


if __name__ == "__main__":
    use_cache()
    run_script(app)
