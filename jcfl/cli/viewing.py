"""The commands that train nothing: `jcfl list`, `jcfl show`, `jcfl plot` and `jcfl report`."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from jcfl.cli.app import PLAIN, DataDir, Folders, Overrides, app
from jcfl.cli.arguments import configured, destination, preset_names, separated
from jcfl.errors import InputError, unknown

PRESETS, KEYS = "presets", "keys"

QUESTIONS = ("describe", "compare", "group", "when", "training", "aggregate", "answer")

NARROW = 5.0
"""Inches: a figure that is less wide has one panel in a row."""

LISTED = (
    *("methods", "add-ons", *QUESTIONS, "data", "scenarios", "models", "attacks", "reliability", "privacy"),
    "stop conditions",
    *("trackers", "scores"),
    PRESETS,
    KEYS,
)


@app.command("list")
def list_command(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND|NAME]",
            help="A kind: methods, add-ons, data, scenarios, models, attacks, reliability, privacy, stop conditions, "
            "trackers, scores, presets, keys (of a configuration), or one of a method's "
            f"seven answers: {', '.join(QUESTIONS)}. Or a name, which is described in full.",
            autocompletion=lambda: list(LISTED),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All names and options, for scripts.")] = False,
) -> None:
    """List what can be run, in one line each, or describe one name: options, bounds, defaults, an example."""
    from jcfl.cli import display
    from jcfl.runs import bars, config
    from jcfl.view import facts, options

    if as_json and what is not None:
        raise InputError(f"--json lists everything; expected no name beside it, got {what!r}")
    if as_json:
        print(json.dumps(everything(), indent=2))
        return
    console, titles, presets = bars.screen(), kinds(), config.presets()
    keys = {row.name: row for row in options.keys(config.Config)}
    if what is not None and what in presets:
        console.print(config.source_text(what)[0].rstrip(), markup=False)
        return
    rows = [row for name, row in keys.items() if what == name or titles.get(what or "") == KEYS]
    if what is None or (what in titles and titles[what] != KEYS):
        wanted = dict.fromkeys(titles.values()) if what is None else [titles[what]]
        tables = {title: lines(title) for title in wanted}
        console.print(display.listing(tables, facts.MEANINGS | {KEYS: "of a configuration"}), highlight=False)
        console.print("\njcfl list NAME describes one of them.", style="dim", highlight=False, markup=False)
    if rows:  # `compare` is a key and a kind
        console.print(display.keys(rows, config.SECTIONS), highlight=False)
    elif what is not None and (what not in titles or what in facts.names("describe")):  # `model` is a kind and a name
        for one in facts.facts_by_name(what, [*presets, KEYS, *keys]):
            console.print(display.page(one), highlight=False)
            console.print(f"  {one.example}", **PLAIN)


def kinds() -> dict[str, str]:
    """Every word that `jcfl list` takes for a kind, and the kind's title."""
    from jcfl.view import facts

    return facts.titles() | {"preset": PRESETS, PRESETS: PRESETS, "key": KEYS, KEYS: KEYS}


def lines(title: str) -> dict[str, str]:
    """What there is of a kind, with one line each."""
    from jcfl.runs import config
    from jcfl.view import facts, options

    if title == PRESETS:
        return config.presets()
    if title == KEYS:
        return {row.name: row.text for row in options.keys(config.Config)}
    return facts.lines(title)


def everything() -> dict[str, Any]:
    """All names and options, as `jcfl list --json` prints them."""
    from jcfl.nested import plain
    from jcfl.results import writable
    from jcfl.runs import config
    from jcfl.view import facts

    table: dict[str, Any] = {}
    for kind, title in facts.KINDS.items():
        table[title] = {name: facts.entry(kind, name) for name in facts.names(kind)}
    fields = config.Config.model_fields.items()
    keys = {key: item.description or "" for key, item in fields if key not in (*config.SECTIONS, *config.FILLED_IN)}
    return writable(plain({**table, "keys": keys, PRESETS: config.presets()}))


@app.command()
def show(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|PRESET [KEY=VALUE]...",
            help="The configuration with the federation.",
            autocompletion=preset_names,
        ),
    ] = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Draw all clients' labels into this .png, .pdf or .svg.", parser=destination, metavar="PATH"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show a run before training: its clients, their labels, the accuracy of majority, and what the run needs."""
    from jcfl.results import writable
    from jcfl.runs import accounting, bars, plan
    from jcfl.view import show

    config = configured(*separated(words, overrides))
    if out is not None:
        refuse_ending(out)
    config = config.model_copy(update={"data_dir": data_dir or config.data_dir})
    federation = plan.federation_of(config)
    try:
        planned = plan.planned(config, plan.Objects(federation=federation))
        methods = {title: item.method for title, item in planned.algorithms.items()}
        private = accounting.foreseen(methods, planned.context, federation, config.rounds)
        told, line = planned.needs._asdict() | {"privacy": private}, planned.needs.text()
        line = "\n".join([line, *(privacy_line(title, one) for title, one in private.items())])
    except InputError as error:  # the federation can be looked at all the same
        told, line = {"refused": str(error)}, f"the run is refused: {error}"
    file = show.picture(federation, out) if out is not None else None
    if as_json:
        print(json.dumps(writable(show.facts(federation) | {"needs": told}), indent=2))
        return
    console = bars.screen()
    console.print(show.table(federation), highlight=False)
    console.print(line, **PLAIN)
    if file is not None:
        console.print(f"Written to {file}", **PLAIN)


def privacy_line(title: str, found: dict[str, Any]) -> str:
    """What a method sends under noise, and the ε it will end with."""
    epsilon = "infinite" if found["epsilon"] is None else f"{found['epsilon']:.3g}"
    return (
        f"privacy of {title}: ε = {epsilon} at the end, for δ = {found['delta']:g}; sends {'; '.join(found['sends'])}"
    )


@app.command()
def plot(
    folders: Folders,
    names: Annotated[list[str] | None, typer.Option("--figure", metavar="NAME", help="Only this figure.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder to draw into.",
            show_default="DIR/figures; of several, figures",
            parser=destination,
            metavar="PATH",
        ),
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="Any of png, pdf and svg.")] = "png,pdf",
    width: Annotated[
        float | None,
        typer.Option(min=1, max=40, help="Width in inches, such as a paper's column.", show_default="3.4 or 7"),
    ] = None,
    font_size: Annotated[
        float | None, typer.Option(min=3, max=40, help="Size of the text in points.", show_default="8")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="ROUND,ROUND", help="The rounds to show, such as 5,10,40.")] = None,
    by: Annotated[str | None, typer.Option(metavar="tsne|pca", help="How points are placed.")] = None,
    distance: Annotated[str | None, typer.Option(metavar="euclidean|l1", help="The distance of models.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed to show.", show_default="the first")] = None,
    cluster: Annotated[int | None, typer.Option(help="The cluster to show, 1 for the largest.")] = None,
) -> None:
    """Draw the figures of runs from their folders.

    Figures: curves, clusters, clients, effect, with_addons, quality and privacy lay runs over each other; decision,
    embedding, similarity, group_similarity, model_embedding, model_similarity, distances, by_cluster, sizes, flow,
    groups_to_clusters, stability, apart, samples and heatmap show one. --figure can be given several times, or be a
    list with commas. --at, --by, --distance, --seed and --cluster are for the figures that have these options.
    """
    from jcfl.runs import bars
    from jcfl.view import plotting

    runs = plotting.histories(folders)
    chosen = [name for option in names or [] for name in option.split(",") if name]
    endings = [ending for ending in formats.split(",") if ending]
    refuse_unknown(chosen, endings)
    folder = out or (folders[0] / "figures" if len(folders) == 1 else Path("figures"))
    console = bars.screen()
    options = {
        "at": None if at is None else at.split(","),
        "by": by,
        "distance": distance,
        "seed": seed,
        "cluster": cluster,
    }
    if (
        width is not None
        and width < NARROW
        and any("columns" in plotting.parameters(name) for name in chosen or plotting.FIGURES)
    ):
        options["columns"] = 1
    for stem, figure in plotting.drawn(runs, chosen, **options):
        if isinstance(figure, InputError) and chosen:
            raise InputError(f"{stem}: {figure}")
        if isinstance(figure, InputError):
            line = f"{stem}: not drawn, {figure}"
        else:
            files = plotting.save(figure, folder / stem, endings, width, font_size)
            line = f"{stem}: {', '.join(map(str, files))}"
        console.print(line, **PLAIN)


@app.command()
def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write.",
            show_default="DIR/report.html; of several, report.html",
            parser=destination,
            metavar="PATH",
        ),
    ] = None,
) -> None:
    """Write one HTML page about a run, or about several side by side. It needs no network and no other file."""
    from jcfl.results import overwrite
    from jcfl.runs import bars
    from jcfl.view import plotting
    from jcfl.view.report import page

    file = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    if os.path.isdir(file):
        raise InputError(f"{file} is a folder; --out expects a file to write, such as {file / 'report.html'}")
    text = page(plotting.histories(folders))
    overwrite(file, text.encode("utf-8", "backslashreplace"))  # a folder's name may be no text
    bars.screen().print(f"Written to {file}", **PLAIN)


def refuse_unknown(figures: list[str], formats: list[str]) -> None:
    """Refuse figures and formats that do not exist."""
    from jcfl.view import plotting

    for what, names, known in (("figure", figures, plotting.FIGURES), ("format", formats, plotting.FORMATS)):
        for name in names:
            if name not in known:
                raise unknown(what, name, known)
    if not formats:
        raise InputError(f"--format expects at least one of {', '.join(plotting.FORMATS)}")


def refuse_ending(file: Path) -> None:
    """Refuse a file whose ending is not that of a picture."""
    if file.suffix not in (".png", ".pdf", ".svg"):
        raise InputError(f"--out expects a file that ends in .png, .pdf or .svg, got {str(file)!r}")
