"""What scripts are given: names, numbers and files, checked before anything is measured; and how scripts end."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from jcfl.errors import InputError, TrainingError, printable, shown, unknown
from jcfl.results.files import reading


class Unmeasured(Exception):
    """Nothing was measured, so no file was changed."""

    status = 1


def run_script(script: Callable[..., None] | typer.Typer) -> NoReturn:
    """Run a script and exit: with status 2 for wrong input, with 1 if nothing was measured, both with one line, else 0.

    Args:
        script: the script's function, or its application if it has several commands.
    """
    app = script
    if not isinstance(app, typer.Typer):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(script)
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except (InputError, TrainingError, Unmeasured) as error:
        line, status = str(error), error.status
    except typer.TyperException as error:
        line, status = error.format_message(), 2
    except subprocess.CalledProcessError as error:  # the command has said why
        line, status = f"{shlex.join(map(str, error.cmd))} ended with status {error.returncode}", 1
    except (KeyboardInterrupt, typer.Abort):
        line, status = "interrupted", 130
    if line:  # without a line, Typer has printed the help
        print(f"{Path(sys.argv[0]).name}: {printable(' '.join(line.split()))}", file=sys.stderr)
    sys.exit(status)


def known(what: str, names: Iterable[str], choices: Iterable[str]) -> list[str]:
    """The names, if all of them are choices.

    Args:
        what: what the names are of, for the error.

    Raises:
        typer.BadParameter: one is not; the line has the nearest choice.
    """
    names, choices = list(names), list(choices)
    for name in names:
        if name not in choices:
            raise typer.BadParameter(str(unknown(what, name, choices)))
    return names


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers, from 1 on, of a text with commas between them.

    Raises:
        typer.BadParameter: it is no such text.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"{option}: expected whole numbers from 1 on with commas between them, got {text!r}")
    return [int(part) for part in parts]


def new_file(text: str) -> Path:
    """The file that an option names, whose folder has to be there: a script writes it after minutes or hours.

    Raises:
        typer.BadParameter: the folder is not there, or the text names a folder.
    """
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise typer.BadParameter(f"expected a file in a folder that exists, got {text!r}")
    return path


def read(file: Path, is_ours: Callable[[Mapping[str, Any]], bool], writer: str) -> dict[str, Any]:
    """What a script has written into a JSON file.

    Args:
        is_ours: whether the content is the script's.
        writer: the script, for the error.

    Raises:
        InputError: the file is not JSON, or is not the script's.
    """
    with reading(file):
        found = json.loads(file.read_text("utf-8"))
    if not isinstance(found, dict) or not is_ours(found):
        raise InputError(f"{file}: expected what {writer} writes, got {shown(found, 40)}")
    return found


def is_measured(lines: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one line at least has numbers in place of the reason why there are none, `failed`."""
    return any("failed" not in line for line in lines)


def expect_measured(lines: Iterable[Mapping[str, Any]]) -> None:
    """Refuse to end well where nothing was measured.

    Raises:
        Unmeasured: no line has numbers.
    """
    if not is_measured(lines):
        raise Unmeasured("nothing was measured, so no file was changed")
