"""The commands that train: `jcfl run` and `jcfl sweep`."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jcfl.cli.app import PLAIN, DataDir, Overrides, Track, app, stopping
from jcfl.cli.arguments import (
    assigned,
    configured,
    free_folder,
    grid,
    option_overrides,
    preset_names,
    resumed_configuration,
    separated,
)
from jcfl.errors import InputError

if TYPE_CHECKING:
    from jcfl.runs.config import Config


@app.command()
def run(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|PRESET",
            help="What to run: a YAML file, or a name that `jcfl list presets` gives.",
            autocompletion=preset_names,
        ),
    ] = None,
    overrides: Overrides = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds to run; figures become means and deviations.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write.", show_default="the first free one of runs/NAME-1, …")
    ] = None,
    data_dir: DataDir = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run that a folder holds.")] = None,
    track: Track = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout, and progress on stderr.")
    ] = False,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Be one of several hosts, as the scheduler says or the next three do.")
    ] = False,
    coordinator: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the first host listens.")] = None,
    hosts: Annotated[int | None, typer.Option(min=1, help="How many hosts there are.")] = None,
    host: Annotated[int | None, typer.Option(min=0, help="Which of them this is, from 0.")] = None,
) -> None:
    """Train the methods of a configuration file or a preset, and write their figures into a folder.

    A name that is unknown and a value out of bounds are refused before anything trains, with exit status 2. A run that
    was stopped goes on with `--resume FOLDER`.
    """
    if distributed:
        join(coordinator, hosts, host, resume or out)
    elif (coordinator, hosts, host) != (None, None, None):
        raise InputError("--coordinator, --hosts and --host go with --distributed")
    names, changes = separated(words, overrides)
    changes += option_overrides(seeds, track)
    if resume is not None:
        if names or out is not None:
            raise InputError("--resume DIR takes the configuration and the folder from DIR; give no other")
        folder, config = resume, resumed_configuration(resume, changes)
    else:
        config = configured(names, changes)
        folder = out or free_folder(Path(names[0]).stem)
    config = config.model_copy(update={"data_dir": data_dir or config.data_dir})
    train(config, folder, resume is None, quiet, as_json, shlex.join(context.obj))


def join(coordinator: str | None, hosts: int | None, host: int | None, folder: Path | None) -> None:
    """Join the hosts of a distributed run, which all write one folder."""
    from jcfl.runs import devices

    if folder is None:
        raise InputError("--distributed needs --out DIR, or --resume DIR: one folder that all hosts see")
    devices.join(coordinator, hosts, host)


def train(config: "Config", folder: Path, is_new: bool, quiet: bool, as_json: bool, command: str) -> None:
    """Plan a run, train it and print its scores.

    Args:
        config: the configuration.
        folder: the folder to write.
        is_new: whether the run begins, rather than resumes.
        quiet: whether to print nothing.
        as_json: whether to print the summary as JSON.
        command: the command line, which a new run stores.
    """
    from jcfl.cli import display
    from jcfl.results import writable
    from jcfl.runs import devices, experiment
    from jcfl.runs.environment import use_cache
    from jcfl.runs.plan import planned

    use_cache()
    if is_new:
        experiment.refuse_taken(folder)
    plan = planned(config)
    devices.wait_for_hosts()  # all hosts, before the first of them writes
    quiet = quiet or not devices.is_first_host()
    made_by = plan.config.made_by | {"command": command if is_new else config.made_by.get("command")}
    plan = plan._replace(config=plan.config.model_copy(update={"made_by": made_by}))
    console = display.screen(stderr=as_json)
    with stopping("run", folder), display.watched(console, quiet, list(plan.config.methods)) as watch:
        history = experiment.execute(plan, folder, watch, keep_state=False)
    summaries = {history.name: history.summary} | {name: item.summary for name, item in history.others.items()}
    if as_json and devices.is_first_host():
        print(json.dumps(writable(summaries if history.others else history.summary), indent=2))
    elif not quiet:
        console.print(display.table(summaries), highlight=False)
        console.print(f"Written to {folder}; for a page about it: jcfl report {folder}", **PLAIN)


@app.command()
def sweep(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="FILE|CONFIG|PRESET", help="What to sweep over, or a sweep's file.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="KEY=VALUE,VALUE...", help="The values of one key: `method.lam=0,0.05,0.5`."),
    ] = None,
    overrides: Overrides = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds to run at every point.")] = None,
    by: Annotated[str, typer.Option(help="The score by which the best point is marked.")] = "accuracy_micro",
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write.", show_default="the first free one of runs/NAME-sweep-1, …"),
    ] = None,
    data_dir: DataDir = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the sweep that a folder holds.")] = None,
    track: Track = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all points as JSON on stdout.")] = False,
) -> None:
    """Train a method at every point of a grid, or of a list, of options, and say which point is best.

    Points that differ only in numbers such as lambda, tau or the learning rate are compiled once and run side by side.
    A sweep's file is a configuration with the keys `grid: {KEY: [VALUE, ...]}` or `list: [{KEY: VALUE}, ...]`, and
    `base:` for what it changes. Each point leaves an ordinary run's folder. The best is best on test examples.
    """
    from jcfl.cli import display
    from jcfl.runs import sweeping
    from jcfl.runs.environment import use_cache

    names, changes = separated(words, overrides)
    changes += option_overrides(seeds, track)
    if resume is not None:
        refuse_more(resume, [*names, *(over or []), *changes, *([str(out)] if out is not None else [])])
        what, folder, settings = resume / "sweep.yaml", resume, {}
    else:
        if not names:
            raise InputError("what to sweep over? Give a configuration, a preset, or a sweep's file")
        what, folder = names[0], out or free_folder(f"{Path(names[0]).stem}-sweep")
        settings = assigned(changes) | {"made_by": {"command": shlex.join(context.obj)}}
    settings |= {"data_dir": str(data_dir)} if data_dir is not None else {}
    use_cache()
    console = display.screen(stderr=as_json)
    with stopping("sweep", folder), display.watched(console, quiet, ["sweep"]) as watch:
        resumes = resume is not None
        found = sweeping.sweep(what, grid(over), by=by, out=folder, resume=resumes, on_progress=watch, **settings)
    drawn = draw_effect(found, folder)
    if as_json:
        print((folder / "sweep.json").read_text("utf-8"), end="")
    elif not quiet:
        console.print(display.sweep_table(found), highlight=False)
        console.print(f"Written to {folder}{drawn}", **PLAIN)


def refuse_more(folder: Path, words: Sequence[str]) -> None:
    """Refuse to resume a sweep with other arguments, or from a folder without one."""
    if words:
        raise InputError(f"--resume DIR takes the sweep and the folder from DIR; leave out {', '.join(words)}")
    if not (folder / "sweep.yaml").is_file():
        raise InputError(f"{folder} holds no sweep to resume: there is no sweep.yaml in it")


def draw_effect(found: Any, folder: Path) -> str:
    """Draw the scores against the swept numbers; returns the files as text, which is empty if no number differs."""
    from jcfl.view import plotting

    try:
        figure = plotting.effect([one for one in found.histories if "failed" not in one.summary])
    except InputError:
        return ""
    files = plotting.save(figure, folder / "figures" / "effect", ["png", "pdf"])
    return f"; {', '.join(str(file) for file in files)}"
