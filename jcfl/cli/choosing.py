"""The command that chooses a number of clusters: `jcfl choose-k`."""

import json
from typing import Annotated

import typer

from jcfl.cli.app import DataDir, Overrides, app, begin_work
from jcfl.cli.arguments import assigned, configured, preset_names, separated


@app.command()
def choose_k(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|PRESET [KEY=VALUE]...",
            help="The configuration with the clients.",
            autocompletion=preset_names,
        ),
    ] = None,
    ks: Annotated[str, typer.Option("--k", metavar="K,K...", help="The numbers to choose from.")] = "2,3,4,5,6,8,10",
    method: Annotated[
        str, typer.Option(metavar="NAME|{name: NAME, ...}", help="A method with the option clusters, and its options.")
    ] = "wecfl",
    criterion: Annotated[
        str, typer.Option(help="accuracy (on training examples held back) or distance (of clients' models).")
    ] = "accuracy",
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of each short run.")] = 3,
    clients: Annotated[int, typer.Option(min=1, help="Clients sampled at random.")] = 100,
    held_back: Annotated[float, typer.Option(help="Share of a client's training examples that is held back.")] = 0.2,
    seeds: Annotated[int, typer.Option(min=1, help="Runs for every number.")] = 3,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the choice as JSON.")] = False,
) -> None:
    """Choose a number of clusters by short runs on a sample of clients (Xie et al. 2020, §5.2).

    It uses no test examples and no true groups. Data, scenario, model and trainer are those of the configuration.
    """
    from rich.table import Table

    from jcfl.results import writable
    from jcfl.runs import bars, choice
    from jcfl.runs.yamltext import value_of

    begin_work()
    names, given = separated(words, overrides)
    choice.refuse_others(key.partition(".")[0] for key in assigned(given) if key != "seed")
    config = configured(names, given, choice.STAND_IN)
    config = config.model_copy(update={"data_dir": data_dir or config.data_dir})
    found = choice.choose_k(
        config,
        value_of(f"[{ks}]", f"--k: expected numbers with commas between them, got {ks!r}"),
        method=value_of(method, f"--method: expected a name or {{name: NAME, ...}}, got {method!r}"),
        criterion=criterion,  # pyright: ignore[reportArgumentType]  (checked there)
        rounds=rounds,
        clients=clients,
        held_back=held_back,
        seed=config.seed,
        seeds=seeds,
    )
    if as_json:
        print(json.dumps(writable(found._asdict()), indent=2))
        return
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("", "k", criterion, "± over seeds"):
        shown.add_column(title, justify="right")
    for k, (mean, spread) in found.scores.items():
        shown.add_row("*" * (k == found.k), str(k), f"{mean:.4g}", f"{spread:.2g}" if seeds > 1 else "–")
    console = bars.screen()
    console.print(shown, highlight=False)
    sure = f"{100 * found.confidence:.0f} % of resamples of clients and seeds choose it"
    console.print(f"k = {found.k}; {sure}", highlight=False)
