"""A comparison as a paper has it: five methods, four federations, five seeds, all tuned by the same number of trials.

    python benchmarks/paper.py --data-dir FOLDER --out OUT

It calls `jcfl tune`, `jcfl sweep` over seeds, and `jcfl compare` on `paper.yaml`, as anybody can. The same command goes
on where it was stopped. OUT/comparison has the tables and figures, OUT/seconds.json what each command took.
"""

import json
import subprocess
import time
from pathlib import Path
from typing import Annotated

import typer
from inputs import run_script

FEDERATIONS = {
    "rotated": ["scenario.name=rotated", "scenario.copies=false"],
    "shifted": ["scenario.name=shifted", "scenario.copies=false"],
    "pathological": ["scenario.name=pathological"],
    "dirichlet": ["scenario.name=dirichlet"],
}
"""The settings of each federation. Without copies every client has 300 examples, as in the other federations."""

SEARCHED = ("train.lr={low: 0.01, high: 1, log: true}", "method.tau", "method.lam", "method.clusters=2,3,4,6,8")
"""The options to search. Each method gets those that it has."""

FIRST = 100
"""The first seed of the runs that are compared. The search uses the seed 0, and so another federation."""


def main(
    config: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The configuration.")] = Path(
        __file__
    ).parent
    / "paper.yaml",
    data_dir: Annotated[Path, typer.Option(help="Folder of datasets.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("runs/paper"),
    trials: Annotated[int, typer.Option(min=1, help="How many trials every method has.")] = 20,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds are compared, each with its own federation.")] = 5,
    target: Annotated[float, typer.Option(help="The accuracy whose costs are compared.")] = 0.75,
) -> None:
    """Tune every method on every federation, run what was found with other seeds, and compare."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "seconds.json"
    seconds = json.loads(file.read_text("utf-8")) if file.exists() else {}

    def jcfl(step: str, *words: str | Path | float) -> None:
        """Run one command, unless its step is done, and note how long it took."""
        if step not in seconds:
            start = time.perf_counter()
            subprocess.run(["jcfl", *map(str, words)], check=True)
            seconds[step] = round(time.perf_counter() - start, 1)
            file.write_text(json.dumps(seconds, indent=1) + "\n", "utf-8")

    folder = ["--data-dir", data_dir]
    over = [word for key in SEARCHED for word in ("--over", key)]
    runs = "seed=" + ",".join(str(FIRST + number) for number in range(seeds))
    for name, settings in FEDERATIONS.items():
        tuned = out / name / "tune"
        jcfl(
            f"tune {name}", "tune", config, "--set", *settings, *over, "--trials", trials, "--out", tuned, *folder, "-q"
        )
        for best in sorted(tuned.glob("tuned-*.yaml")):
            method, place = best.stem.removeprefix("tuned-"), out / name / best.stem
            resumed = ["--resume", place] if place.exists() else [best, "--over", runs, "--out", place]
            jcfl(f"{method} {name}", "sweep", *resumed, *folder, "-q")
    found = [place for name in FEDERATIONS for place in sorted((out / name).glob("tuned-*/runs/*"))]
    jcfl("compare", "compare", *found, "--target", target, "--baseline", "fedavg", "--out", out / "comparison")


if __name__ == "__main__":
    run_script(main)
