"""The commands that show things: `jcfl show`, `jcfl plot`, `jcfl report`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from jcfl.errors import InputError

Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs; several are compared.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of datasets.", show_default="JCFL_DATA, else data")]


def show(
    tokens: Annotated[
        list[str] | None, typer.Argument(metavar="CONFIG|PRESET [KEY=VALUE]...", help="Whose federation to show.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Draw all clients' labels into this .png, .pdf or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show a federation before anything trains: its clients, their labels, and how far guessing gets."""
    from jcfl import cli, show

    names, overrides = cli.sorted_out(tokens or [], settings or [])
    config = cli.configured(names, overrides)
    if out is not None:
        refuse_ending(out)
    federation = show.federation(config.model_copy(update={"data_dir": data_dir or config.data_dir}))
    file = show.picture(federation, out) if out is not None else None
    if as_json:
        print(json.dumps(show.facts(federation), indent=2))
        return
    console = wide_console()
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
    from jcfl import plotting

    runs = plotting.histories(folders)
    chosen = [name for given in names or [] for name in given.split(",") if name]
    kinds = [kind for kind in formats.split(",") if kind]
    refuse_unknown(chosen, kinds)
    folder = out or (folders[0] / "figures" if len(folders) == 1 else Path("figures"))
    console = wide_console()
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
    from jcfl import plotting
    from jcfl.report import page

    file = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    if file.is_dir():
        raise InputError(f"{file} is a folder; --out expects a file to write, such as {file / 'report.html'}")
    text = page(plotting.histories(folders))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    wide_console().print(f"Written to {file}", highlight=False, soft_wrap=True, markup=False)


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


def wide_console() -> Any:
    """A console that does not break lines where there is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)
