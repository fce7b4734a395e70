"""How much of their accuracy honest clients keep, by attack, by share of attackers and by defence, as one sweep.

    python benchmarks/defences.py fedavg
    python benchmarks/defences.py stocfl

40 clients hold scikit-learn's digits, and all of them train in every round. `fedavg` is one model on identically
distributed clients. `stocfl` is on two groups whose images are turned by 0 and 180 degrees, so there are about 20
clients in a cluster; its threshold 0.43 was chosen with true groups in view. Defences are told a
share of 0.3 attackers where they take one; no option of theirs was tuned. The sweep's folder is `runs/defences-NAME`;
started again, it goes on where it stopped. It writes a table and a figure.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from inputs import known, run_script
from study import GRID, drawing, numbers

from jcfl.runs.environment import use_cache
from jcfl.runs.sweeping import Sweep, sweep
from jcfl.view.plotting.style import PAGE

ATTACKS = ("label_flip", "sign_flip", "scaled", "gaussian", "little_is_enough", "inner_product")
OPTIONS: dict[str, dict[str, Any]] = {"gaussian": {"sigma": 0.1}}
SHARES = (0.1, 0.2, 0.3, 0.4)
DEFENCES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "median": [{"name": "robust", "rule": "median"}],
    "trimmed mean": [{"name": "robust", "rule": "trimmed_mean", "beta": 0.3}],
    "median of means": [{"name": "robust", "rule": "median_of_means", "buckets": 10}],
    "Krum": [{"name": "robust", "rule": "krum", "share": 0.3}],
    "multi-Krum": [{"name": "robust", "rule": "multi_krum", "share": 0.3}],
    "geometric median": [{"name": "robust", "rule": "geometric_median"}],
    "norm bound": [{"name": "robust", "rule": "norm_bound"}],
    "exclude": [{"name": "exclude"}],
}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"scenario": {"name": "iid", "clients": 40}, "method": "fedavg"},
    "stocfl": {
        "scenario": {"name": "rotated", "clients": 40, "angles": [0, 180], "copies": False},
        "method": {"name": "stocfl", "tau": 0.43},
    },
}
HERE = Path(__file__).parent


def main(
    name: Annotated[str, typer.Argument(help="fedavg or stocfl")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every point.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every point.")] = 30,
    attacks: Annotated[str, typer.Option(help="Attacks to try, with commas between them.")] = ",".join(ATTACKS),
) -> None:
    """Train every point and write `benchmarks/figures/defences-NAME.{json,png}` and a table."""
    use_cache()
    known("method", [name], METHODS)
    chosen = known("attack", attacks.split(","), ATTACKS)
    base = METHODS[name] | {
        "data": "digits",
        "model": {"name": "mlp", "hidden": 32},
        "train": {"lr": 0.1, "epochs": 3, "batch_size": 10},
        "rounds": rounds,
        "evaluate_every": rounds,
        "seeds": seeds,
        "on_divergence": "drop_client",
    }
    folder = Path("runs") / f"defences-{name}"
    found = sweep(base, list(points(chosen)), out=folder, resume=(folder / "sweep.yaml").exists())
    rows = figures(found)
    (HERE / "figures" / f"defences-{name}.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    draw(rows, HERE / "figures" / f"defences-{name}.png")
    print(table(rows))


def points(attacks: list[str]) -> list[dict[str, Any]]:
    """Every defence without attackers, and against every attack by every share."""
    found: list[dict[str, Any]] = []
    for defence in DEFENCES.values():
        found += [{"attack": {"name": "none"}, "method.addons": defence}]
        for attack in attacks:
            options = OPTIONS.get(attack, {})
            found += [
                {"attack": {"name": attack, "share": share, **options}, "method.addons": defence} for share in SHARES
            ]
    return found


def figures(found: Sweep) -> list[dict[str, Any]]:
    """The accuracy of honest clients at every point, of each seed, and whom the defence left out."""
    names = {json.dumps(addons): name for name, addons in DEFENCES.items()}
    rows = []
    for point, history in zip(found.points, found.histories, strict=True):
        attack = point.values["attack"]
        score = "accuracy_honest" if attack["name"] != "none" else "accuracy_micro"
        rows.append(
            {
                "defence": names[json.dumps(point.values["method.addons"])],
                "attack": attack["name"],
                "share": attack.get("share", 0.0),
                "accuracy": [round(float(value), 4) for value in history[score][:, -1]],
                "clusters": [int(value) for value in history["clusters"][:, -1]],
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard deviation of the honest accuracy over seeds, at the share 0.3, as a Markdown table."""
    attacks = [attack for attack in ATTACKS if any(row["attack"] == attack for row in rows)]
    lines = ["| defence | no attack | " + " | ".join(attacks) + " |", "|---" * (2 + len(attacks)) + "|"]
    for defence in DEFENCES:
        told = []
        for attack, share in (("none", 0.0), *((attack, 0.3) for attack in attacks)):
            values = next(
                100 * np.array(row["accuracy"])
                for row in rows
                if (row["defence"], row["attack"], row["share"]) == (defence, attack, share)
            )
            told.append(f"{values.mean():.1f} ± {values.std(ddof=1) if len(values) > 1 else 0:.1f}")
        lines.append(f"| {defence} | {' | '.join(told)} |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A panel for each attack: the accuracy of honest clients, by defence and by the share of attackers."""
    attacks = [attack for attack in ATTACKS if any(row["attack"] == attack for row in rows)]
    mean = {(row["defence"], row["attack"], row["share"]): 100 * np.mean(row["accuracy"]) for row in rows}
    shares = [0.0, *SHARES]
    columns = min(3, len(attacks))
    with drawing(path, len(attacks), (PAGE, 0.3 + 1.9 * -(-len(attacks) // columns)), GRID, columns) as axes:
        for place, (axis, attack) in enumerate(zip(axes, attacks, strict=True)):
            told = lambda defence, share, attack=attack: mean[defence, attack if share else "none", share]
            grid = np.array([[told(defence, share) for share in shares] for defence in DEFENCES])
            numbers(axis, grid, lambda value: f"{value:.0f}", 0, 100)
            axis.set_title(attack.replace("_", " "))
            axis.set_xticks(range(len(shares)), [f"{100 * share:.0f}" for share in shares])
            axis.set_yticks(range(len(DEFENCES)), list(DEFENCES) if place % columns == 0 else [""] * len(DEFENCES))
        axes[0].figure.supxlabel("attackers, % of the clients")


if __name__ == "__main__":
    run_script(main)
