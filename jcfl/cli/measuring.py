"""The command that measures jcfl itself: `jcfl bench`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from jcfl.cli.app import app


@app.command()
def bench(
    rows: Annotated[list[str] | None, typer.Argument(metavar="ROW...", help="What to measure; all by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Everything tiny, to see that it works.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the table, the figures as JSON and a chart here.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with mnist/; without it images are made up.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores to keep to.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure what rounds, memory and growth cost here, beside what they should.

    Rows: round, full, whole, grouping, seeds, overhead, start, clients, cohort, parameters, clusters. All of them take
    about half an hour on two cores; each is measured in a process of its own.
    """
    from jcfl.results import writing
    from jcfl.runs import bench

    if out is not None:
        with writing(out):  # half an hour before there is something to write
            out.mkdir(parents=True, exist_ok=True)
    say = lambda result: typer.echo(f"{result['row']} {result['case']}".strip() + " done", err=True)
    found = bench.measured(rows or [], quick, data_dir, threads, say)
    files = write(found, out) if out is not None else []
    print(json.dumps(found, indent=1) if as_json else bench.table(found))
    if files and not as_json:
        print(f"\nWritten to {', '.join(map(str, files))}")


def write(found: dict, folder: Path) -> list[Path]:
    """Write the table, the measurements and the charts into a folder; returns the files."""
    from jcfl.runs import bench
    from jcfl.view.plotting import benchmarks

    files = bench.write(found, folder)
    return [*files, *benchmarks.seconds(found, folder / "bench"), *benchmarks.growth(found, folder / "growth")]
