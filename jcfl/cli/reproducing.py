"""The command that runs a paper's table and judges it: `jcfl reproduce`."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jcfl.cli.app import PLAIN, AllowVersions, DataDir, Share, app, begin_work, continued
from jcfl.cli.arguments import destination
from jcfl.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table


@app.command()
def reproduce(
    context: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="TABLE|FILE", help="A table from `--list`, or a file.")] = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the tables with their hours.")] = False,
    budget: Annotated[
        str, typer.Option(help="laptop: one night on two cores; gpu: one GPU; full: all runs of the paper.")
    ] = "laptop",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW|COLUMN", help="Run only this row or column; can be given several times."),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(metavar="SEED", help="Train only this seed of the budget; can be given several times."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The folder to write; it has the runs in `runs`.", parser=destination, metavar="PATH")
    ] = Path("reproduction"),
    add: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A TABLE-BUDGET.json whose numbers are shown where there is no run here."),
    ] = None,
    data_dir: DataDir = None,
    workers: Share = None,
    allow_versions: AllowVersions = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as JSON on stdout.")] = False,
) -> None:
    """Run a paper's table, print its numbers beside ours, and judge all claims by a rule fixed before the runs.

    The same command continues where it was stopped; complete runs are not run again. It writes TABLE-BUDGET.md, .tex,
    .json and a figure.
    """
    from jcfl.cli import paper
    from jcfl.results import writable
    from jcfl.results.files import writing
    from jcfl.runs import bars, devices, reproducing
    from jcfl.runs.workers import from_command
    from jcfl.view import reproduction

    console = bars.screen()
    if as_list and table is not None:
        raise InputError(f"--list lists all tables; leave out {table!r}")
    if as_list and as_json:
        print(json.dumps(listed(), indent=2))
        return
    if as_list:
        console.print(listing(), highlight=False)
        return
    if table is None:
        raise InputError("which table? `jcfl reproduce --list` lists all tables")
    if data_dir is not None and not data_dir.is_dir():
        raise InputError(f"--data-dir: expected a folder of datasets, got {str(data_dir)!r}")
    sharing = from_command(workers)
    begin_work()
    devices.split_cores()
    made_by = {"command": shlex.join(context.obj)}
    with bars.watched(bars.screen(stderr=True), quiet) as watch, continued():
        settings = reproducing.Settings(
            out / "runs", data_dir, made_by, allow_versions, watch, sharing, add or (), seeds=seed or ()
        )
        found = reproducing.reproduce(table, budget, only or [], settings)
        with writing(out):
            files = reproduction.write(found, out)
    if as_json:
        print(json.dumps(writable(found), indent=2))
    elif not quiet:
        for part in paper.parts(found, console.width):
            console.print(part, highlight=False)
        console.print(f"Written to {', '.join(map(str, files))}", **PLAIN)


def listed() -> dict[str, dict[str, Any]]:
    """Every table by name: its source, its caption, and its hours by budget."""
    from jcfl.runs.reproducing.reading import shipped

    hours = lambda budgets: {name: budget.hours for name, budget in budgets.items()}
    printed = lambda one: {"source": one.printed.source, "caption": one.printed.caption}
    return {name: printed(one.given) | {"hours": hours(one.given.budgets)} for name, one in shipped().items()}


def listing() -> "Table":
    """Every table with its hours by budget."""
    from rich.table import Table
    from rich.text import Text

    tables = listed()
    table = Table(box=None, header_style="bold", pad_edge=False)
    budgets = list(dict.fromkeys(name for one in tables.values() for name in one["hours"]))
    for title in ("table", "", *(f"{name}, h" for name in budgets)):
        table.add_column(title, justify="right" if title.endswith(", h") else "left")
    for name, one in tables.items():
        hours = [f"{one['hours'][budget]:g}" if budget in one["hours"] else "–" for budget in budgets]
        table.add_row(*map(Text, (name, f"{one['source']}: {one['caption']}", *hours)))
    return table
