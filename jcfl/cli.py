"""The command line: `jcfl run`, `jcfl list`, and the commands of `jcfl.commands`."""

import importlib.resources
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import jcfl
from jcfl import commands
from jcfl.errors import InputError, TrainingError

app = typer.Typer(name="jcfl", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown")

PLAIN: dict[str, Any] = {"highlight": False, "markup": False}


class Stopped(Exception):
    """A run that Ctrl-C or SIGTERM ended; not a KeyboardInterrupt, which Typer would end without a word."""


def main(arguments: list[str] | None = None) -> None:
    """The console script: exit status 0, 2 for the user's mistake (said in one line), 1 for anything else."""
    sys.exit(status(arguments))


def status(arguments: list[str] | None = None) -> int:
    """Run a command and say how it ended."""
    command = typer.main.get_command(app)
    try:
        words = ["jcfl", *(sys.argv[1:] if arguments is None else arguments)]
        return command.main(arguments, prog_name="jcfl", standalone_mode=False, obj=words) or 0
    except InputError as error:
        return complain(str(error), 2)
    except TrainingError as error:
        return complain(str(error), 1)
    except Stopped as error:
        return complain(str(error), 130)
    except KeyboardInterrupt:
        return complain("interrupted", 130)
    except Exception as error:
        # Typer's own exceptions: which package defines them depends on its version, what they offer does not.
        if hasattr(error, "format_message"):
            said = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
            return complain(said, 2) if said else 2  # nothing to say: the help has been printed
        if type(error).__name__ == "Abort":
            return complain("interrupted", 130)
        raise


def complain(message: str, code: int) -> int:
    """Say what is wrong in one line, and return the exit status."""
    print(f"jcfl: {' '.join(message.split())}", file=sys.stderr)
    return code


def print_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        print(f"jcfl {jcfl.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Version.")] = False,
) -> None:
    """Clustered federated learning at scale, in JAX.

    Begin with `jcfl run quickstart`: a minute, no download. `jcfl list` says what there is to run, `jcfl list stocfl`
    what one method does and which options it has, `jcfl report DIR` makes a page of what a run left.
    """


def preset_names() -> list[str]:
    """What a shell completes a run's name with, besides files."""
    folder = importlib.resources.files("jcfl") / "presets"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


@app.command("run")
def run_command(
    context: typer.Context,
    tokens: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|PRESET",
            help="What to run: a YAML file, or a name that `jcfl list presets` gives.",
            autocompletion=preset_names,
        ),
    ] = None,
    settings: commands.Settings = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds to run; figures become means and deviations.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write.", show_default="the first free one of runs/NAME-1, …")
    ] = None,
    data_dir: commands.DataDir = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run that a folder holds.")] = None,
    track: commands.Track = None,
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
        together(coordinator, hosts, host, resume or out)
    elif (coordinator, hosts, host) != (None, None, None):
        raise InputError("--coordinator, --hosts and --host go with --distributed")
    names, overrides = sorted_out(tokens or [], settings or [])
    overrides += [f"seeds={seeds}"] if seeds is not None else []
    overrides += commands.tracked(track)
    if resume is not None:
        if names or out is not None:
            raise InputError("--resume DIR takes the configuration and the folder from DIR; give no other")
        folder, config = resume, resumed_config(resume, overrides)
    else:
        folder, config = out or free_folder(names), configured(names, overrides)
    config = config.model_copy(update={"data_dir": data_dir or config.data_dir})
    train(config, folder, resume is None, quiet, as_json, shlex.join(context.obj))


def together(coordinator: str | None, hosts: int | None, host: int | None, folder: Path | None) -> None:
    """Take part in a run of several hosts, all of which see its folder."""
    from jcfl import devices

    if folder is None:
        raise InputError("--distributed needs --out DIR, or --resume DIR: one folder that all hosts see")
    devices.join(coordinator, hosts, host)


LISTED = ("methods", "add-ons", "data", "scenarios", "models", "trackers", "presets")


@app.command("list")
def list_command(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND|NAME]",
            help="A kind: methods, add-ons, data, scenarios, models, trackers, presets. Or a name: all about it.",
            autocompletion=lambda: list(LISTED),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All names and options, for scripts.")] = False,
) -> None:
    """Say what there is to run, in one line each; or all about one: options, bounds, defaults, an example."""
    from jcfl import config, display, facts, registry

    registry.load()
    if as_json:
        print(json.dumps(everything(), indent=2))
        return
    console, titles = display.screen(), facts.titles()
    if what is not None and what in config.presets():
        console.print(config.located(what)[0].rstrip(), markup=False)
    elif what is not None and what not in titles:
        for one in facts.found(what):
            console.print(display.page(one), highlight=False)
    else:
        wanted = dict.fromkeys(titles.values()) if what is None else [titles[what]]
        kinds = {title: facts.lines(title) for title in wanted}
        named = facts.papers(" ".join(line for lines in kinds.values() for line in lines.values()))
        console.print(display.listing(kinds), highlight=False)
        console.print("\njcfl list NAME says all about one of them." + f" {named}." * bool(named), style="dim", **PLAIN)


for command in (commands.sweep, commands.show, commands.plot, commands.report, commands.bench):
    app.command(command.__name__)(command)


def sorted_out(tokens: list[str], settings: list[str]) -> tuple[list[str], list[str]]:
    """Positional words as what to run and overrides: `--set a=1 b=2` leaves `b=2` among the words."""
    names = [token for token in tokens if "=" not in token or Path(token).is_file()]
    if len(names) > 1:
        raise InputError(f"expected one configuration or preset, got {', '.join(names)}")
    return names, [*settings, *(token for token in tokens if token not in names)]


def configured(names: list[str], overrides: list[str]) -> Any:
    """The configuration that the words on the command line name."""
    from jcfl import config

    if not names:
        raise InputError(f"what to run? Give a configuration file or a preset: {', '.join(config.presets())}")
    return config.read(names[0], overrides)


def resumed_config(folder: Path, overrides: list[str]) -> Any:
    """The configuration of the run in a folder, with what may change changed."""
    from jcfl import config, experiment

    stored = experiment.resumed(folder)
    return experiment.resumed(folder, config.read(stored.model_dump(), overrides)) if overrides else stored


def free_folder(names: list[str]) -> Path:
    """The next folder of that name under runs/ that is not there yet."""
    stem = Path(names[0]).stem if names else "run"
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


def train(config: Any, folder: Path, fresh: bool, quiet: bool, as_json: bool, command: str) -> None:
    """Plan, refuse what is wrong, train, and show the figures; `command` is how a fresh run was asked for."""
    from jcfl import devices, display, experiment
    from jcfl.plan import planned

    if fresh:
        experiment.refuse_taken(folder)
    plan = planned(config)
    devices.meet()  # before the first word is written
    quiet = quiet or not devices.leads()
    made_by = plan.config.made_by | {"command": command if fresh else config.made_by.get("command")}
    plan = plan._replace(config=plan.config.model_copy(update={"made_by": made_by}))
    console = display.screen(stderr=as_json)
    with ending("run", folder), display.watched(console, quiet, list(plan.config.methods)) as watch:
        history = experiment.execute(plan, folder, watch, keep_state=False)
    summaries = {history.name: history.summary} | {name: item.summary for name, item in history.others.items()}
    if as_json and devices.leads():
        from jcfl.results import writable

        print(json.dumps(writable(summaries if history.others else history.summary), indent=2))
    elif not quiet:
        console.print(display.table(summaries), highlight=False)
        console.print(f"Written to {folder}; for a page about it: jcfl report {folder}", soft_wrap=True, **PLAIN)


@contextmanager
def ending(command: str, folder: Path) -> Iterator[None]:
    """What ends training early says where its figures are, and how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"interrupted; go on with: jcfl {command} --resume {folder}") from None
    except TrainingError as error:
        raise TrainingError(f"{error} (figures until then: {folder})") from None


def everything() -> dict[str, Any]:
    """All names and options, as `jcfl list --json` prints them."""
    from jcfl import config, facts, registry
    from jcfl.results import writable

    table: dict[str, Any] = {}
    for kind, title in facts.KINDS.items():
        functions = {name: registry.find(kind, name) for name in registry.names(kind)}
        table[title] = {
            name: {
                "description": registry.line(function),
                "options": {k: v for item in (*config.also(kind), function) for k, v in registry.schema(item).items()},
            }
            for name, function in functions.items()
        }
    fields = config.Config.model_fields.items()
    keys = {key: item.description or "" for key, item in fields if key not in (*config.SECTIONS, "made_by")}
    return writable(config.plain({**table, "keys": keys, "presets": config.presets()}))
