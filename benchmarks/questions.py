"""Questions about the papers' claims, each with a table and a figure: paired seeds, and intervals of differences.

    python benchmarks/questions.py addons --data-dir FOLDER
    python benchmarks/questions.py distillation --data-dir FOLDER
    python benchmarks/questions.py participation --data-dir FOLDER
    python benchmarks/questions.py tau --data-dir FOLDER

Every seed has its own federation, initial model and order of examples, and all variants share them. The same command
continues where it was stopped: runs are in `--out`, and the finished parts of `tau` in the JSON file. Each command
writes `benchmarks/figures/question-NAME.json` and `.png`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import clustering
import numpy as np
import typer
from inputs import run_script
from matplotlib.axes import Axes
from study import drawing, heading, row

from jcfl.runs.environment import use_cache
from jcfl.runs.reproducing.judging import interval
from jcfl.runs.sweeping import sweep
from jcfl.view.plotting.style import COLOURS, MARKERS, PAGE

FIGURES = Path(__file__).parent / "figures"
BASE: dict[str, Any] = {
    "data": {"name": "fashion_mnist"},
    "model": {"name": "mlp", "hidden": 64},
    "train": {"lr": 0.1, "steps": 5, "batch_size": 32},
}
SEEDS = 5

CAM = {"name": "cam", "warmup": 12}
CON = {"mu": 0.1, "temperature": 1.0}
PAIRS: dict[str, list[dict[str, Any]]] = {
    "wecfl": [
        {"name": "con_rep", **CON},
        {"name": "con_para", **CON},
        {"name": "cks", "lam": 0.01},
        {"name": "con_cks", "mu": 0.1, "lam": 0.01, "temperature": 1.0},
        CAM,
    ],
    "fesem": [CAM],
    "ifca": [{"name": "con_para", **CON}, {"name": "cks", "lam": 0.01}, CAM],
}
"""Methods and the add-ons that each has, with the weights of the tables in jcfl/papers. None was tuned."""

ROTATED = {"name": "rotated", "clients": 200, "copies": False, "scale": "standard"}
SPLITS = {
    "groups": {"name": "grouped_dirichlet", "clients": 100, "groups": 10, "scale": "standard"},
    "clients": {"name": "dirichlet", "clients": 100, "scale": "standard"},
}
"""Dir(0.1) over groups and Dir(10) within a group; Dir(0.1) over clients (Ma 2023, A.2)."""

WEIGHTS = (0.05, 0.5)
"""Of the pull and of distillation; 0.05 is the λ of StoCFL's tables."""

SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
EXAMPLES = (10, 25, 50, 100, 200, 600)

DataDir = Annotated[Path, typer.Option(help="Folder of datasets.")]
Out = Annotated[Path, typer.Option(help="Folder of the runs.")]
app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


@app.command()
def addons(
    data_dir: DataDir = Path("data"),
    out: Out = Path("runs/questions"),
    rounds: int = 40,
    over: Annotated[Literal["groups", "clients", "both"], typer.Option(help="What Dir(0.1) is drawn over.")] = "both",
) -> None:
    """Do CON, CKS, their sum and CAM help? Differences to the method alone, seed by seed."""
    found: dict[str, Any] = {}
    for split in SPLITS if over == "both" else (over,):
        variants = [(name, addon) for name, own in PAIRS.items() for addon in (None, *own)]
        points = [
            {"method": {"name": name, "clusters": 10, "addons": [addon] if addon else []}, **seeded(seed)}
            for name, addon in variants
            for seed in range(SEEDS)
        ]
        base = BASE | {"scenario": SPLITS[split], "rounds": rounds, "evaluate_every": rounds // 4, "evaluate_last": 3}
        scores = by_seed(base | {"data_dir": data_dir}, points, out / f"addons-{split}", last=3)
        table = dict(zip([(name, addon and addon["name"]) for name, addon in variants], scores, strict=True))
        found[split] = [
            {"method": name, "addon": addon, "alone": table[name, None], "with": own}
            for (name, addon), own in table.items()
            if addon
        ]
        print(f"\n{split}\n\n" + heading(["method", "alone, %", "add-on", "with it, %", "difference", "95 % interval"]))
        for one in found[split]:
            mean, low, high = difference(one)
            alone, own = (f"{100 * np.mean(one[key]):.2f}" for key in ("alone", "with"))
            print(row(one["method"], [alone, one["addon"], own, f"{mean:+.2f}", f"{low:+.2f} to {high:+.2f}"]))
    draw = lambda axes: [by_addon(axis, *own) for axis, own in zip(axes, found.items(), strict=True)]
    kept("addons", found, draw, len(found))


@app.command()
def distillation(data_dir: DataDir = Path("data"), out: Out = Path("runs/questions"), rounds: int = 60) -> None:
    """Does the global model of StoCFL teach the clusters, by a pull or by distillation? Differences to neither."""
    plain = {"name": "stocfl", "tau": "auto", "lam": 0.0}
    taught = lambda weight: plain | {"addons": [{"name": "distill", "mu": weight}]}
    variants = {
        "neither": plain,
        **{f"pull, λ = {weight:g}": plain | {"lam": weight} for weight in WEIGHTS},
        **{f"distillation, μ = {weight:g}": taught(weight) for weight in WEIGHTS},
    }
    points = [{"method": method, **seeded(seed)} for method in variants.values() for seed in range(SEEDS)]
    settings = {"participation": 0.2, "rounds": rounds, "evaluate_every": rounds // 4, "evaluate_last": 3}
    base = BASE | {"scenario": ROTATED, "data_dir": data_dir} | settings
    found = dict(zip(variants, by_seed(base, points, out / "distillation", last=3), strict=True))
    alone, *others = found.items()
    rows = [{"method": title, "alone": alone[1], "with": own} for title, own in others]
    print(heading(["", "accuracy, %", "difference", "95 % interval"]))
    print(row(alone[0], [spread(np.array(alone[1])), "", ""]))
    for one in rows:
        mean, low, high = difference(one)
        print(row(one["method"], [spread(np.array(one["with"])), f"{mean:+.2f}", f"{low:+.2f} to {high:+.2f}"]))

    def draw(axes: list[Axes]) -> None:
        intervals(axes[0], [(one["method"], COLOURS[i // len(WEIGHTS)], difference(one)) for i, one in enumerate(rows)])
        axes[0].set(xlabel="difference to neither, percentage points")

    kept("distillation", found, draw, 1)


@app.command()
def participation(data_dir: DataDir = Path("data"), out: Out = Path("runs/questions"), rounds: int = 60) -> None:
    """What does it cost to sample few clients? Accuracy by rounds, and by the number of clients trained."""
    methods = {
        "FedAvg": {"name": "fedavg"},
        "IFCA, K = 4": {"name": "ifca", "clusters": 4},
        "StoCFL, τ by auto": {"name": "stocfl", "tau": "auto"},
    }
    points = [
        {"method": method, "participation": share, **seeded(seed)}
        for method in methods.values()
        for share in SHARES
        for seed in range(SEEDS)
    ]
    base = BASE | {"scenario": ROTATED, "rounds": rounds, "evaluate_every": 3, "data_dir": data_dir}
    curves = np.array(by_seed(base, points, out / "participation", last=None))
    curves = curves.reshape(len(methods), len(SHARES), SEEDS, -1)
    turns = np.arange(3, rounds + 1, 3)
    found = {title: own.tolist() for title, own in zip(methods, curves, strict=True)}
    head = heading(["method", *(f"{100 * share:g} %" for share in SHARES)])
    print(head)
    for title, own in zip(methods, curves, strict=True):
        print(row(title, [spread(own[i, :, -1]) for i in range(len(SHARES))]))
    fewest = round(200 * SHARES[0] * rounds)
    print(f"\nAfter {fewest} trained clients in all:\n\n{head}")
    for title, own in zip(methods, curves, strict=True):
        at = [int(np.abs(turns * 200 * share - fewest).argmin()) for share in SHARES]
        print(row(title, [spread(own[i, :, turn]) for i, turn in enumerate(at)]))

    def draw(axes: list[Axes]) -> None:
        for axis, title, own in zip(axes, methods, curves, strict=True):
            for i, share in enumerate(SHARES):
                label = f"{100 * share:g} % a round"
                axis.plot(200 * share * turns, 100 * own[i].mean(0), color=COLOURS[i], label=label)
            axis.set(xscale="log", title=title, xlabel="clients trained so far", ylim=(35, 85))
            axis.set_xticks([100, 1000, 10000], ["100", "1,000", "10,000"])
            axis.minorticks_off()
        axes[0].set_ylabel("accuracy, %")
        axes[-1].legend(loc="lower right")

    kept("participation", {"shares": SHARES, "rounds": turns.tolist(), "accuracy": found}, draw, len(methods))


@app.command()
def tau(data_dir: DataDir = Path("data"), seeds: Annotated[int, typer.Option(min=1)] = 3) -> None:
    """How wide is StoCFL's window of thresholds, by examples per client? Every client is seen in the first round."""
    taus = np.round(np.arange(0.02, 0.99, 0.01), 2)
    file = FIGURES / "question-tau.json"
    found = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for examples in EXAMPLES:
        for similarity in clustering.DESCRIBE:
            for seed in range(seeds):
                title = f"{examples} {similarity} {seed}"
                if title in found:
                    continue
                changes = [
                    "scenario.clients=400",
                    f"scenario.validation={1 - examples / 600:.4f}",  # 600 examples of each client are shared out
                    f"scenario.seed={seed}",
                    f"seed={seed}",
                    *("rounds=1", "participation=1", "compare=[]", "model.hidden=200", "model.init=torch"),
                    f"data_dir={data_dir}",
                ]
                ari = clustering.swept("stocfl_rotated_mnist", changes, similarity, taus)["ari"][:, -1]
                found[title] = [float(value) for value in taus[ari == 1]]
                file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    windows = {
        (examples, similarity): common([found[f"{examples} {similarity} {seed}"] for seed in range(seeds)])
        for examples in EXAMPLES
        for similarity in clustering.DESCRIBE
    }
    print(heading(["examples a client", *clustering.DESCRIBE]))
    for examples in EXAMPLES:
        print(row(str(examples), [clustering.stretches(taus, windows[examples, one]) for one in clustering.DESCRIBE]))

    def draw(axes: list[Axes]) -> None:
        for i, similarity in enumerate(clustering.DESCRIBE):
            wide = [(n, windows[n, similarity]) for n in EXAMPLES if windows[n, similarity].size]
            x, low, high = [n for n, _ in wide], [own.min() for _, own in wide], [own.max() for _, own in wide]
            axes[0].fill_between(x, low, high, color=COLOURS[i], alpha=0.3, label=similarity.replace("_", "-"))
            axes[0].plot(x, low, x, high, color=COLOURS[i], marker=MARKERS[i])
        axes[0].axhline(0.5, color="#4D4D4D", linestyle="--", label="the paper's 0.5")
        axes[0].set(xscale="log", ylim=(0, 1), xlabel="training examples of a client", ylabel="τ with the true groups")
        axes[0].set_xticks(EXAMPLES, [str(n) for n in EXAMPLES])
        axes[0].minorticks_off()
        axes[0].legend()

    kept("tau", found, draw, 1)


def seeded(seed: int) -> dict[str, int]:
    """The settings of a seed with its own federation."""
    return {"seed": seed, "scenario.seed": seed}


def by_seed(base: dict[str, Any], points: list[dict[str, Any]], folder: Path, last: int | None) -> list[Any]:
    """Accuracies of all points, those of a variant's seeds together.

    Args:
        last: the evaluations whose mean counts; None for all of them, one by one.

    Returns:
        For each variant its seeds. [SEEDS], or [SEEDS, e] for all evaluations
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    whole = sweep(base, points, out=folder, resume=(folder / "sweep.yaml").exists())
    curves = [np.asarray(one["accuracy_micro"][0], float) for one in whole.histories]
    values = [curve.tolist() if last is None else float(curve[-last:].mean()) for curve in curves]
    return [values[i : i + SEEDS] for i in range(0, len(values), SEEDS)]


def spread(values: np.ndarray) -> str:
    """Mean ± sample standard deviation in per cent."""
    return f"{100 * values.mean():.2f} ± {100 * values.std(ddof=1):.2f}"


def common(windows: list[list[float]]) -> np.ndarray:
    """The thresholds that every seed's window has."""
    return np.array(sorted(set(windows[0]).intersection(*windows[1:])))


def difference(one: dict[str, Any]) -> tuple[float, float, float]:
    """The mean difference that an add-on makes over the seeds, in percentage points, and the ends of its interval."""
    gaps = 100 * (np.array(one["with"]) - one["alone"])
    low, high = interval(list(gaps)) or (np.nan, np.nan)
    return float(gaps.mean()), low, high


def by_addon(axis: Axes, split: str, rows: list[dict[str, Any]]) -> None:
    """Draw the differences that add-ons make, with their intervals."""
    colour = lambda one: COLOURS[list(PAIRS).index(one["method"])]
    intervals(axis, [(f"{one['method']} + {one['addon']}", colour(one), difference(one)) for one in rows])
    axis.set(title=f"Dirichlet over {split}", xlabel="difference in accuracy, percentage points")


def intervals(axis: Axes, rows: list[tuple[str, str, tuple[float, float, float]]]) -> None:
    """Draw intervals one below another, each with a title, a colour, its mean and its ends."""
    axis.axvline(0, color="#4D4D4D", linewidth=0.8)
    for i, (_, colour, (mean, low, high)) in enumerate(rows):
        axis.plot([low, high], [i, i], color=colour)
        axis.plot(mean, i, color=colour, marker="o")
    axis.set_yticks(range(len(rows)), [title for title, *_ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)  # the first one above


def kept(name: str, found: Any, draw: Callable[[list[Axes]], Any], panels: int) -> None:
    """Write what was found as JSON, and its figure."""
    FIGURES.joinpath(f"question-{name}.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    with drawing(FIGURES / f"question-{name}.png", panels, (PAGE / 2 if panels == 1 else PAGE, 2.6)) as axes:
        draw(axes)


if __name__ == "__main__":
    use_cache()
    run_script(app)
