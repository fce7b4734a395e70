"""The command that searches options: `jcfl tune`."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jcfl.cli.app import PLAIN, AllowVersions, DataDir, Overrides, Share, Track, app, begin_work, continued
from jcfl.cli.arguments import configured, destination, once, option_overrides, preset_names, separated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table
    from rich.text import Text


@app.command()
def tune(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|PRESET",
            help="The configuration to tune, with all methods in `compare`.",
            autocompletion=preset_names,
        ),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY[=VALUE,VALUE...]",
            help="An option to search: values `train.lr=0.01,0.1`, a range `train.lr={low: 0.01, high: 1, log: true}`, "
            "or the option's own bounds `method.tau`.",
            show_default="all options with a default range",
        ),
    ] = None,
    overrides: Overrides = None,
    trials: Annotated[int, typer.Option(min=1, help="Largest number of trials of each method.")] = 24,
    sampler: Annotated[
        str, typer.Option(help="How trials are chosen: random, grid, or tpe (needs Optuna).")
    ] = "random",
    batch: Annotated[int, typer.Option(min=1, help="Number of trials that tpe chooses at a time.")] = 8,
    halving: Annotated[
        int,
        typer.Option(
            min=1,
            help="Successive halving, with random or grid: 3 continues the best third of the trials to three times as "
            "many rounds, until all rounds are done; 1 gives all trials all rounds.",
        ),
    ] = 1,
    by: Annotated[
        str, typer.Option(help="The score that chooses the best trial, on validation examples.")
    ] = "validation_accuracy_micro",
    test: Annotated[
        bool, typer.Option("--test", help="At the end, print the best trials' scores on test examples.")
    ] = (False),
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds of each trial.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write.", show_default="runs/NAME-tune", parser=destination, metavar="PATH"),
    ] = None,
    data_dir: DataDir = None,
    workers: Share = None,
    allow_versions: AllowVersions = False,
    track: Track = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all trials as JSON on stdout.")] = False,
) -> None:
    """Search the options of a method, and of those compared with it, with equal trials and rounds for each.

    The best trial is chosen on validation examples, which `scenario.validation` keeps, and never on test examples. The
    same command continues where it was stopped; complete trials are not run again. It writes tune.json, a figure, and
    tuned-METHOD.yaml for each method, which `jcfl run` takes.
    """
    from jcfl.results import claimed, writable
    from jcfl.runs import bars, searching
    from jcfl.runs.workers import from_command
    from jcfl.view import plotting

    sharing = from_command(workers)
    names, changes = separated(words, overrides)
    config = configured(names, changes + option_overrides(seeds, track))
    config = config.model_copy(update={"data_dir": data_dir or config.data_dir})
    given = {"made_by": {"command": shlex.join(context.obj)}}
    begin_work()
    search = searching.searched(config, given, axes(over), by, trials, batch, sampler, halving, sharing)
    folder = out or Path("runs") / f"{Path(names[0]).stem}-tune"
    console, progress = bars.screen(), bars.screen(stderr=True)
    with claimed(folder, new=False), bars.watched(progress, quiet, ["tune"]) as watch, continued():
        found = searching.carried_out(search, folder, allow_versions, watch)
        files = plotting.save(plotting.search(found.rows(), by), folder / "figures" / "search", ["png", "pdf"])
    tested = found.test_scores() if test else {}
    if as_json:
        print(json.dumps(writable({"by": by, "trials": found.rows(), "test": tested}), indent=2))
    elif not quiet:
        for part in shown(found, tested, console.width):
            console.print(part, highlight=False)
        tuned = [folder / f"tuned-{title}.yaml" for title in found.best()]
        console.print(f"Written to {', '.join(map(str, [*tuned, *files]))}", **PLAIN)


def axes(over: list[str] | None) -> dict[str, Any] | None:
    """What the options `--over` say to search; None without any."""
    from jcfl.runs.sweeping.points import key_and_values

    return once(key_and_values(text) if "=" in text else (text, None) for text in over or []) or None


def shown(found: Any, tested: dict[str, Any], width: int) -> "Iterator[Table | Text]":
    """The best trial of each method: its values, its score, and its score on test examples if `--test` was given.

    If some trials were stopped, the number of rounds of all trials of a method stands beside the number of trials.
    """
    from jcfl.cli.display import in_parts
    from jcfl.metrics import bare_name, score
    from jcfl.results import cell

    best = found.best()
    keys = list(dict.fromkeys(key for trial in best.values() for key in trial.values))
    names = [found.by, *([bare_name(found.by)] if tested else [])]
    halved = any(len(trial.scores) > 1 for trial in found.trials)
    titles = [*keys, "trials", *(["rounds"] if halved else []), *(score(name).title for name in names)]
    rows = []
    for method, trials in found.by_method().items():
        effort = [str(len(trials)), *([str(found.rounds()[method])] if halved else [])]
        if method not in best:
            rows.append([*("–" for _ in keys), *effort, "diverged", *("" for _ in names[1:])])
            continue
        trial = best[method]
        values = [str(trial.values.get(key, "–")) for key in keys]
        scores = [cell(name, trial.history.summary[name], len(trial.history.seeds)) for name in names]
        rows.append([*values, *effort, *scores])
    columns = list(zip(titles, zip(*rows, strict=True), strict=True))
    yield from in_parts([("method", [*found.by_method()])], columns, width)
