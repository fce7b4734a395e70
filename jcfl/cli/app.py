"""The Typer application, and the options that several commands share. The other modules add the commands to it."""

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from jcfl.errors import InputError, TrainingError, Unwritable, as_argument, onward
from jcfl.version import __version__

app = typer.Typer(name="jcfl", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown")

PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
"""Rich's options for a line that is printed as it is."""

Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs; several are compared.")]
Track = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Also send metrics to this tracker: tensorboard, mlflow, wandb."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE...",
        help="Override keys of the configuration: `--set rounds=50 method.name=ifca method.clusters=3`.",
    ),
]
AllowVersions = Annotated[
    bool, typer.Option("--allow-versions", help="Also continue a run of other versions of jcfl, JAX or NumPy.")
]
Share = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N|slurm:N[,OPTION=VALUE...]",
        help="Run in N processes of this machine, or in N jobs of a Slurm cluster at a time.",
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder of datasets.", show_default="JCFL_DATA, else data")]


class Stopped(Exception):
    """A run that Ctrl-C or SIGTERM ended; not a KeyboardInterrupt, because Typer ends without a message on one."""

    status = 130


@contextmanager
def stopping(command: str, folder: Path, saves: bool = True) -> Iterator[None]:
    """Add to the message of an early end where the results are and how to resume.

    Args:
        command: the command that is running.
        folder: the folder that it writes.
        saves: whether it writes checkpoints, from which it can go on.
    """
    has_begun = lambda: any((folder / name).is_file() for name in ("config.yaml", "sweep.yaml"))
    go_on = f"{onward(saves)} with: jcfl {command} --resume {as_argument(folder)}"
    try:
        with continued(lambda: go_on if has_begun() else ""):
            yield
    except TrainingError as error:
        raise TrainingError(f"{error} (metrics until then: {folder})") from None


@contextmanager
def continued(how: Callable[[], str] = lambda: "go on with the same command") -> Iterator[None]:
    """Add to the message of Ctrl-C, or of a full disk, how to go on; `how` returns no text if nothing was written."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped("; ".join(filter(None, ("interrupted", how())))) from error
    except Unwritable as error:
        go_on = how()
        raise InputError(f"{error}; once it can be, {go_on}" if go_on else str(error)) from None


freeze_imports = functools.cache(gc.freeze)
"""Tell the garbage collector, once in a process, that the objects of imports stay. Without this, the collector looks
through these objects again and again, which took 8 % of a short run."""


def begin_work() -> None:
    """What a command does after its imports and before it plans or trains."""
    from jcfl.runs.environment import use_cache

    use_cache()
    freeze_imports()


def complain(message: str, code: int) -> int:
    """Print what is wrong in one line, and return the exit status; spaces in it may be those of a path."""
    print(f"jcfl: {' '.join(line.strip() for line in message.splitlines())}", file=sys.stderr)
    return code


def print_version(wanted: bool) -> None:
    """Print the version and end the program."""
    if wanted:
        print(f"jcfl {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Version.")] = False,
) -> None:
    """Clustered federated learning at scale, in JAX.

    Begin with `jcfl run quickstart`: it takes less than a minute and needs no download. `jcfl list` lists what can be
    run, `jcfl list stocfl` describes one method and its options, and `jcfl report DIR` makes a page about a run.
    """
