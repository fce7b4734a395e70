"""The command that compares runs for a publication: `jcfl compare`."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jcfl.cli.app import PLAIN, Folders, app
from jcfl.cli.arguments import destination
from jcfl.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from jcfl.view.comparing.tables import Grid


@app.command()
def compare(
    folders: Folders,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", metavar="NAME", help="A metric, or several with commas.", show_default="accuracy_micro"
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="The method with which all others are compared.", show_default="the first one"
        ),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Value of the first metric; prints the cost to reach it: 0.9 is 90 %.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the tables and figures.", parser=destination, metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as JSON on stdout.")] = False,
) -> None:
    """Compare methods over seeds and federations: paired differences, intervals, tests, ranks and costs.

    Refuses runs that do not match, and says what differs. With --out, writes compare.md, .tex, .html and .csv, and
    figures as PDF and PNG.
    """
    from jcfl.results import writable
    from jcfl.runs import bars
    from jcfl.view.comparing import tables
    from jcfl.view.comparing.compared import compare

    if out is not None and os.path.exists(out) and not os.path.isdir(out):
        raise InputError(f"--out expects a folder, got the file {str(out)!r}")
    chosen = [name for option in names or [] for name in option.split(",") if name] or ["accuracy_micro"]
    compared = compare(folders, chosen, baseline, target)
    written = compared.write(out) if out is not None else []
    if as_json:
        print(json.dumps(writable(compared.found), indent=2))
        return
    console = bars.screen()
    for grid in tables.grids(compared.found):
        console.print(f"{grid.title}", **{**PLAIN, "style": "bold"})
        console.print(shown(grid), highlight=False)
        console.print(f"{grid.note}\n", highlight=False, markup=False, style="dim")
    if written:
        console.print(f"Written to {', '.join(map(str, written))}", **PLAIN)


def shown(grid: "Grid") -> "Table":
    """A table on the terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("method", *grid.columns):
        table.add_column(Text(title), justify="left" if title == "method" else "right")
    for row in grid.rows:
        table.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in row))
    return table
