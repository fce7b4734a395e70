"""The commands that train: `jcfl run` and `jcfl sweep`."""

import json
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jcfl.cli.app import PLAIN, AllowVersions, DataDir, Overrides, Share, Track, app, begin_work, complain, stopping
from jcfl.cli.arguments import (
    assigned,
    configured,
    destination,
    grid,
    option_overrides,
    preset_names,
    resumed_configuration,
    separated,
)
from jcfl.errors import InputError, TrainingError, Unregistered, as_argument

if TYPE_CHECKING:
    from jcfl.runs.config import Config


@app.command()
def run(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|PRESET",
            help="A YAML file, or a preset from `jcfl list presets`.",
            autocompletion=preset_names,
        ),
    ] = None,
    overrides: Overrides = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; metrics are then means and sample standard deviations.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder to write.",
            show_default="the first free one of runs/NAME-1, …",
            parser=destination,
            metavar="PATH",
        ),
    ] = None,
    data_dir: DataDir = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    allow_versions: AllowVersions = False,
    track: Track = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed", help="This is one of several hosts; a scheduler or the next three options say which."
        ),
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address at which the first host listens.")
    ] = None,
    hosts: Annotated[int | None, typer.Option(min=1, help="Number of hosts.")] = None,
    host: Annotated[int | None, typer.Option(min=0, help="Number of this host, from 0.")] = None,
) -> None:
    """Train the methods of a configuration file or a preset, and write their metrics into a folder.

    An unknown name or a value out of bounds is refused before training, with exit status 2. `--resume FOLDER` continues
    a run that was stopped.
    """
    if not distributed and (coordinator, hosts, host) != (None, None, None):
        raise InputError("--coordinator, --hosts and --host go with --distributed")
    with together(coordinator, hosts, host, resume or out) if distributed else nullcontext():
        names, changes = separated(words, overrides)
        changes += option_overrides(seeds, track)
        if resume is not None:
            if names or out is not None:
                raise InputError("--resume DIR takes the configuration and the folder from DIR; give no other")
            stem, config = "", resumed_configuration(resume, changes)
        else:
            stem, config = Path((names or [""])[0]).stem, configured(names, changes)
            config = config.model_copy(update={"made_by": {"command": shlex.join(context.obj)}, "decided": None})
        config = config.model_copy(update={"data_dir": data_dir or config.data_dir})
        train(config, resume or out, stem, resume is None, allow_versions, quiet, as_json)


def together(
    coordinator: str | None, hosts: int | None, host: int | None, folder: Path | None
) -> AbstractContextManager[None]:
    """Be one of the hosts of a distributed run, which all write one folder."""
    from jcfl.runs import hosts as several

    if folder is None:
        raise InputError("--distributed needs --out DIR, or --resume DIR: one folder that all hosts see")
    return several.together(coordinator, hosts, host, folder, complain)


def train(
    config: "Config", out: Path | None, stem: str, is_new: bool, allow_versions: bool, quiet: bool, as_json: bool
) -> None:
    """Plan a run, train it and print its scores.

    Args:
        config: the configuration.
        out: the folder to write, or None for the next of those that begin with
        stem: the name of the configuration.
        is_new: whether the run begins, rather than resumes.
        allow_versions: whether to go on with what other versions have made.
        quiet: whether to print nothing.
        as_json: whether to print the summary as JSON.
    """
    from jcfl.cli import display
    from jcfl.results import writable
    from jcfl.results.writer import refuse_taken
    from jcfl.runs import bars, devices, experiment, hosts
    from jcfl.runs.plan import planned

    begin_work()
    if not hosts.several():
        devices.split_cores()
    if is_new and out is not None:
        refuse_taken(out)
    plan = planned(config, resumes=not is_new)
    quiet = quiet or not hosts.is_first()
    console, progress = bars.screen(), bars.screen(stderr=True)
    with (
        devices.claimed(out, is_new, stem) as folder,
        stopping("run", folder, plan.config.checkpoint_every != "never"),
        bars.watched(progress, quiet, list(plan.config.methods), plan.config.seeds) as watch,
    ):
        history = experiment.execute(plan, folder, watch, keep_state=False, allow_versions=allow_versions)
    summaries = {history.name: history.summary} | {name: item.summary for name, item in history.others.items()}
    if as_json and hosts.is_first():
        print(json.dumps(writable(summaries if history.others else history.summary), indent=2))
    elif not quiet:
        for part in display.table(summaries, console.width):
            console.print(part, highlight=False)
        console.print(f"Written to {folder}; for a page about it: jcfl report {as_argument(folder)}", **PLAIN)
    failed = {name: summary["failed"] for name, summary in summaries.items() if "failed" in summary}
    if failed:
        named = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise TrainingError(f"{len(failed)} of {len(summaries)} methods diverged; {named}")


@app.command()
def sweep(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|CONFIG|PRESET",
            help="The configuration to sweep over, or a sweep's file.",
            autocompletion=preset_names,
        ),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="KEY=VALUE,VALUE...", help="A key and its values: `method.lam=0,0.05,0.5`."),
    ] = None,
    overrides: Overrides = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds at every point.")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="The score that chooses the best point.",
            show_default="accuracy, on validation examples if there are any",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder to write.",
            show_default="the first free one of runs/NAME-sweep-1, …",
            parser=destination,
            metavar="PATH",
        ),
    ] = None,
    data_dir: DataDir = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the sweep in this folder.")] = None,
    workers: Share = None,
    allow_versions: AllowVersions = False,
    track: Track = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all points as JSON on stdout.")] = False,
) -> None:
    """Train a method at every point of a grid or list of options, and mark the best point.

    Points that differ only in numbers such as lambda, tau or the learning rate are compiled once and run side by side.
    A sweep's file is a configuration with the key `over: {KEY: [VALUE, ...]}` or `over: [{KEY: VALUE}, ...]`. Its key
    `base` is another configuration or preset, whose keys it changes. Each point has an ordinary run's folder. The best
    point is chosen on validation examples. Without any (`scenario.validation`) it is an oracle, chosen on test ones.
    No point is marked if `seed` or `seeds` is swept.
    """
    from jcfl.cli import display
    from jcfl.results import claimed
    from jcfl.runs import bars, sweeping
    from jcfl.runs.workers import from_command

    sharing = from_command(workers)
    names, changes = separated(words, overrides)
    changes += option_overrides(seeds, track)
    if resume is not None:
        refuse_more(resume, [*names, *(over or []), *changes, *([str(out)] if out is not None else [])])
        what, stem, settings = resume / "sweep.yaml", "", {}
    else:
        if not names:
            raise InputError("what to sweep over? Give a configuration, a preset, or a sweep's file")
        what, stem = names[0], f"{Path(names[0]).stem}-sweep"
        settings = assigned(changes) | {"made_by": {"command": shlex.join(context.obj)}, "decided": None}
    settings |= {"data_dir": str(data_dir)} if data_dir is not None else {}
    begin_work()
    if by is not None:
        sweeping.refuse_score(by)
    try:
        whole = sweeping.points(what, grid(over), **settings)
    except Unregistered as error:
        call = f"jcfl.sweep({str(what)!r}, out={str(resume)!r}, resume=True)"
        raise InputError(f"{error}{error.hint('the sweep', call)}" if resume is not None else str(error)) from None
    console, progress = bars.screen(), bars.screen(stderr=True)
    with (
        claimed(resume or out, resume is None, stem) as folder,
        stopping("sweep", folder),
        bars.watched(progress, quiet, ["sweep"]) as watch,
    ):
        found = sweeping.carried_out(whole, by, folder, resume is not None, allow_versions, watch, sharing)
        drawn = draw_effect(found, folder)
    if as_json:
        print((folder / "sweep.json").read_text("utf-8"), end="")
    elif not quiet:
        for part in display.sweep_table(found, console.width):
            console.print(part, highlight=False)
        console.print(said_of_best(found, folder), **PLAIN)
        console.print(f"Written to {folder}{drawn}", **PLAIN)


def said_of_best(found: Any, folder: Path) -> str:
    """A sentence about the point that is marked in a sweep's table, or about why none is."""
    if found.over_seeds:
        several = len({point.config.method.title for point in found.points}) > 1
        how = f"; compare the methods with: jcfl compare {as_argument(folder)}/runs/*" if several else "."
        return f"The points differ in their seeds, so none is marked{how}"
    return f"The point marked * is {found.chosen}." if found.best() is not None else f"No point has {found.by}."


def refuse_more(folder: Path, words: Sequence[str]) -> None:
    """Refuse to resume a sweep with other arguments, or from a folder without one or with a damaged one."""
    from jcfl.results import Folder
    from jcfl.runs.sweeping import refuse_other

    if words:
        raise InputError(f"--resume DIR takes the sweep and the folder from DIR; leave out {', '.join(words)}")
    refuse_other(folder)
    home = Folder(folder)
    home.renew(says=False)  # the sweep says so
    home.content("sweep.yaml")


def draw_effect(found: Any, folder: Path) -> str:
    """Draw the scores against the swept numbers; returns the files as text, which is empty if no number differs."""
    from jcfl.view import plotting

    try:
        figure = plotting.effect(found.histories)
    except InputError:
        return ""
    files = plotting.save(figure, folder / "figures" / "effect", ["png", "pdf"])
    return f"; {', '.join(str(file) for file in files)}"
