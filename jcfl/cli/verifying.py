"""The command that checks what runs have left: `jcfl verify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jcfl.cli.app import DataDir, app, begin_work
from jcfl.errors import InputError
from jcfl.errors.words import counted

if TYPE_CHECKING:
    from jcfl.runs.verifying import Figures

FEW = 3
"""Differences that are named."""


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, a comparison or a sweep.")],
    rerun: Annotated[bool, typer.Option("--rerun", help="Train again, and compare the metrics.")] = False,
    tolerance: Annotated[float, typer.Option(min=0, help="Largest difference of a score that is accepted.")] = 0.0,
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
) -> None:
    """Check every file of a folder by its checksum; with --rerun, train again and compare the metrics.

    The exit status is 0 if nothing differs, 1 if a metric differs, and 2 if a file is damaged or missing.
    """
    from rich.table import Table
    from rich.text import Text

    from jcfl.runs import bars, verifying

    console = bars.screen()
    found = verifying.files(folder)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("folder")
    shown.add_column("files", justify="right")
    shown.add_column("")
    for one in found:
        told = "; ".join(f"{name} {fault}" for name, fault in one.faults.items())
        shown.add_row(Text(str(one.path)), str(one.number), Text(told or "as written"))
    if not quiet:
        console.print(shown, highlight=False)
    faults = [f"{one.path / name} {fault}" for one in found for name, fault in one.faults.items()]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InputError(f"{faults[0]}{more}")
    if rerun:
        compare(folder, tolerance, data_dir, quiet)


def compare(folder: Path, tolerance: float, data_dir: Path | None, quiet: bool) -> None:
    """Train again, print how the metrics differ, and end with status 1 if one differs."""
    from rich.table import Table
    from rich.text import Text

    from jcfl.runs import bars, devices, verifying

    begin_work()
    if not verifying.is_swept(folder):  # points were trained without
        devices.split_cores()
    console = bars.screen()
    with bars.watched(bars.screen(stderr=True), quiet) as watch:
        found = verifying.figures(folder, data_dir, watch)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("run", "evaluations", "again"):
        shown.add_column(title)
    for one in found:
        shown.add_row(Text(one.name), str(one.evaluations), Text(outcome(one)))
    if not quiet:
        console.print(shown, highlight=False)
        for told in dict.fromkeys(told for one in found for told in one.changed):
            console.print(told, highlight=False, markup=False)
    if not all(one.same(tolerance) for one in found):
        raise typer.Exit(1)


def outcome(one: "Figures") -> str:
    """How a run's metrics differ, in words."""
    parts = [f"missing: {counted(one.missing, 'evaluation')}"] if one.missing else []
    worst = sorted(one.gaps, key=one.gaps.__getitem__, reverse=True)
    parts += [f"{score} differs by up to {one.gaps[score]:.2g}" for score in worst[:FEW]]
    parts += [f"different: {counted(len(worst) - FEW, 'more score')}"] if len(worst) > FEW else []
    parts += [f"different: {counted(one.labels, 'label')} of clients"] if one.labels else []
    if parts and not one.changed:
        parts += ["the versions and the device are the same as then"]
    return "; ".join(parts) or "the same metrics, bit for bit"
