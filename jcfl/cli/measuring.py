"""The command that measures jcfl itself: `jcfl bench`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from jcfl.cli.app import app
from jcfl.cli.arguments import destination
from jcfl.errors import InputError


@app.command()
def bench(
    rows: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROW...",
            help="The rows to measure; all by default. With --target also presets and YAML files.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use tiny sizes, only to test that it works.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the table, the numbers as JSON and a chart into this folder.",
            parser=destination,
            metavar="PATH",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder with mnist/; without it images are generated. With --target: folder of a preset's datasets.",
            show_default="JCFL_DATA for presets and files",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of cores to use.", show_default="all")] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Compile for this device (h200, t4, v5e-8, ...) and run nothing."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Measure the time of rounds, the memory and their growth on this machine, and compare them with requirements.

    Rows: round, full, whole, grouping, newcomers, merging, products, seeds, sizes, overhead, start, clients, cohort,
    parameters, clusters. All of them take about half an hour on two cores; each is measured in a process of its own.

    With `--target`, rounds are compiled for a device that this machine does not have, and what they would take is read
    from the compiled programs. Rows are then those of `jcfl.runs.bench.cases.CASES`, for instance stocfl-10-factored,
    or presets and configuration files, of which the main method is compiled.

    A row that has no meaning on this machine is left out, unless it is named. If every case failed, the exit status is
    1, and no file is written.
    """
    from jcfl.results.writer import prepared
    from jcfl.runs import bench
    from jcfl.runs.bench import compiled

    with prepared(out):  # half an hour before there is something to write
        if target is not None:
            if threads is not None:
                raise InputError("--target runs nothing, so --threads means nothing with it; leave it out")
            say = lambda result: typer.echo(
                f"{result['target']} {result['case']} {ended(result, 'compiled')}", err=True
            )
            found = compiled.compiled(target, rows or [], quick, data_dir, say)
            show(found, compiled.table(found["cases"]), compiled.write, out, as_json)
        else:
            say = lambda result: typer.echo(f"{result['row']} {result['case']}".strip() + f" {ended(result)}", err=True)
            found = bench.measured(rows or [], quick, data_dir, threads, say)
            show(found, bench.table(found), write, out, as_json)


def ended(result: dict, well: str = "done") -> str:
    """The word for how a case ended."""
    return "failed" if "failed" in result else well


def show(found: dict, table: str, write: Callable[[dict, Path], list[Path]], out: Path | None, as_json: bool) -> None:
    """Write the numbers into a folder, if there is one, and print them as a table or as JSON, and where they are.

    Raises:
        typer.Exit: every case failed. Nothing is written then, so that earlier numbers stay.
    """
    failed = all("failed" in case for case in found["cases"])
    files = write(found, out) if out is not None and not failed else []
    print(json.dumps(found, indent=1) if as_json else table)
    if files and not as_json:
        print(f"\nWritten to {', '.join(map(str, files))}")
    if failed:
        raise typer.Exit(1)


def write(found: dict, folder: Path) -> list[Path]:
    """Write the table, the measurements and the charts into a folder; returns the files."""
    from jcfl.runs import bench
    from jcfl.view.plotting import benchmarks

    files = bench.write(found, folder)
    return [*files, *benchmarks.seconds(found, folder / "bench"), *benchmarks.growth(found, folder / "growth")]
