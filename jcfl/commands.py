"""Further commands: `jcfl sweep`, `jcfl show`, `jcfl plot`, `jcfl report`, `jcfl bench`."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from jcfl.errors import InputError

Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs; several are compared.")]
Track = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Where figures go too: tensorboard, mlflow, wandb.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE...",
        help="Override keys of the configuration: `--set rounds=50 method.name=ifca method.clusters=3`.",
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder of datasets.", show_default="JCFL_DATA, else data")]


def sweep(
    context: typer.Context,
    tokens: Annotated[
        list[str] | None, typer.Argument(metavar="FILE|CONFIG|PRESET", help="What to sweep over, or a sweep's file.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="KEY=VALUE,VALUE...", help="The values of one key: `method.lam=0,0.05,0.5`."),
    ] = None,
    settings: Settings = None,
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
    from jcfl import cli, display, sweeping

    names, overrides = cli.sorted_out(tokens or [], settings or [])
    overrides += [f"seeds={seeds}"] if seeds is not None else []
    overrides += tracked(track)
    if resume is not None:
        refuse_more(resume, [*names, *(over or []), *overrides, *([str(out)] if out is not None else [])])
        what, folder, given = resume / "sweep.yaml", resume, {}
    else:
        if not names:
            raise InputError("what to sweep over? Give a configuration, a preset, or a sweep's file")
        what, folder = names[0], out or cli.free_folder([f"{Path(names[0]).stem}-sweep"])
        given = assigned(overrides) | {"made_by": {"command": shlex.join(context.obj)}}
    given |= {"data_dir": str(data_dir)} if data_dir is not None else {}
    console = display.screen(stderr=as_json)
    with cli.ending("sweep", folder), display.watched(console, quiet, ["sweep"]) as watch:
        grid, again = values(over or []), resume is not None
        found = sweeping.sweep(what, grid, by=by, out=folder, resume=again, on_progress=watch, **given)
    drawn = effect(found, folder)
    if as_json:
        print((folder / "sweep.json").read_text("utf-8"), end="")
    elif not quiet:
        console.print(swept_table(found), highlight=False)
        console.print(f"Written to {folder}{drawn}", highlight=False, soft_wrap=True, markup=False)


def tracked(track: list[str] | None) -> list[str]:
    """Names of trackers as an override."""
    return [f"track=[{', '.join(track)}]"] if track else []


def assigned(overrides: Sequence[str]) -> dict[str, Any]:
    """Overrides as dotted keys and their values."""
    from jcfl import config

    return {".".join(path): value for path, value in map(config.assignment, overrides)}


def values(over: Sequence[str]) -> dict[str, list[Any]] | None:
    """What `--over` gave, as a grid; nothing where it was not given."""
    from jcfl.sweeping.points import swept

    return dict(map(swept, over)) or None


def refuse_more(folder: Path, words: Sequence[str]) -> None:
    """Refuse to resume what is not there, or as something else."""
    if words:
        raise InputError(f"--resume DIR takes the sweep and the folder from DIR; leave out {', '.join(words)}")
    if not (folder / "sweep.yaml").is_file():
        raise InputError(f"{folder} holds no sweep to resume: there is no sweep.yaml in it")


def effect(found: Any, folder: Path) -> str:
    """Draw what the swept numbers do, and say where; nothing where no number differs."""
    from jcfl import plotting

    try:
        figure = plotting.effect([one for one in found.histories if "failed" not in one.summary])
    except InputError:
        return ""
    files = plotting.save(figure, folder / "figures" / "effect", ["png", "pdf"])
    return f"; {', '.join(str(file) for file in files)}"


def swept_table(found: Any) -> Any:
    """Every point's values and last figures, mean ± standard deviation over seeds, the best one marked."""
    from rich.table import Table
    from rich.text import Text

    from jcfl.display import COLUMNS, FORMATS
    from jcfl.results import cell

    columns = {found.by: found.by} | COLUMNS if found.by not in COLUMNS else COLUMNS
    rows, best = found.rows(), found.best()
    keys = list(dict.fromkeys(key for row in rows for key in row["values"]))
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for key in ("", *keys):
        shown.add_column(Text(key))
    for title in (*columns.values(), "seconds"):
        shown.add_column(title, justify="right")
    for index, (row, point) in enumerate(zip(rows, found.points, strict=True)):
        values = [Text(str(row["values"].get(key, "–"))) for key in keys]
        cells = [cell(row.get(score), *FORMATS.get(score, (1, 3, "")), point.config.seeds) for score in columns]
        cells = ["diverged", *("" for _ in cells[1:])] if row["failed"] else cells
        mark, look = ("*", "bold") if index == best else ("", "")
        shown.add_row(mark, *values, *cells, f"{row['seconds']:.1f}", style=look)
    return shown


def show(
    tokens: Annotated[
        list[str] | None, typer.Argument(metavar="CONFIG|PRESET [KEY=VALUE]...", help="Whose federation to show.")
    ] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Draw all clients' labels into this .png, .pdf or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show a federation before anything trains: its clients, their labels, and how far guessing gets."""
    from jcfl import cli, display, show

    names, overrides = cli.sorted_out(tokens or [], settings or [])
    config = cli.configured(names, overrides)
    if out is not None:
        refuse_ending(out)
    federation = show.federation(config.model_copy(update={"data_dir": data_dir or config.data_dir}))
    file = show.picture(federation, out) if out is not None else None
    if as_json:
        print(json.dumps(show.facts(federation), indent=2))
        return
    console = display.screen()
    console.print(show.table(federation), highlight=False)
    if file is not None:
        console.print(f"Written to {file}", highlight=False, soft_wrap=True, markup=False)


def plot(
    folders: Folders,
    names: Annotated[list[str] | None, typer.Option("--figure", metavar="NAME", help="Only this figure.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to draw into.", show_default="DIR/figures; of several, figures")
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="Any of png, pdf and svg.")] = "png,pdf",
) -> None:
    """Draw the figures of runs, each made from their folders alone.

    Figures: curves, clusters, clients and effect lay runs over each other; embedding, similarity, sizes, flow, samples
    and heatmap show one. --figure can be given several times, or be a list with commas.
    """
    from jcfl import display, plotting

    runs = plotting.histories(folders)
    chosen = [name for given in names or [] for name in given.split(",") if name]
    kinds = [kind for kind in formats.split(",") if kind]
    refuse_unknown(chosen, kinds)
    folder = out or (folders[0] / "figures" if len(folders) == 1 else Path("figures"))
    console = display.screen()
    for stem, figure in plotting.drawn(runs, chosen):
        if isinstance(figure, InputError) and chosen:
            raise InputError(f"{stem}: {figure}")
        if isinstance(figure, InputError):
            line = f"{stem}: not drawn, {figure}"
        else:
            line = f"{stem}: {', '.join(str(file) for file in plotting.save(figure, folder / stem, kinds))}"
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def report(
    folders: Folders,
    out: Annotated[
        Path | None, typer.Option(help="The page to write.", show_default="DIR/report.html; of several, report.html")
    ] = None,
) -> None:
    """Write one HTML page on a run, or on several side by side, that needs no network and no other file."""
    from jcfl import display, plotting
    from jcfl.report import page

    file = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    if file.is_dir():
        raise InputError(f"{file} is a folder; --out expects a file to write, such as {file / 'report.html'}")
    text = page(plotting.histories(folders))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    display.screen().print(f"Written to {file}", highlight=False, soft_wrap=True, markup=False)


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
    from jcfl import bench

    say = lambda result: typer.echo(f"{result['row']} {result['case']}".strip() + " done", err=True)
    found = bench.measured(rows or [], quick, data_dir, threads, say)
    files = bench.write(found, out) if out is not None else []
    print(json.dumps(found, indent=1) if as_json else bench.table(found))
    if files and not as_json:
        print(f"\nWritten to {', '.join(map(str, files))}")


def refuse_unknown(figures: list[str], formats: list[str]) -> None:
    """Refuse figures and formats that there are not."""
    from jcfl import plotting
    from jcfl.errors import unknown

    for what, given, known in (("figure", figures, plotting.FIGURES), ("format", formats, plotting.FORMATS)):
        for name in given:
            if name not in known:
                raise unknown(what, name, known)
    if not formats:
        raise InputError(f"--format expects at least one of {', '.join(plotting.FORMATS)}")


def refuse_ending(file: Path) -> None:
    """Refuse a file whose ending is no figure's."""
    if file.suffix not in (".png", ".pdf", ".svg"):
        raise InputError(f"--out expects a file that ends in .png, .pdf or .svg, got {str(file)!r}")
