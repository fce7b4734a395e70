"""What runs, sweeps and pieces look like on a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from jcfl.metrics.table import score, scores
from jcfl.results import cell
from jcfl.view.facts import Facts
from jcfl.view.options import Option


def table(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """The last scores of several methods side by side, and mean ± sample standard deviation of several seeds."""
    shown = scores_table(max(summary["seeds"] for summary in summaries.values()))
    shown.add_column("method")
    heads = columns(summaries.values())
    for title in heads.values():
        shown.add_column(title, justify="right")
    shown.add_column("seconds", justify="right")
    for name, summary in summaries.items():
        cells = [cell(one, summary.get(one), summary["seeds"]) for one in heads]
        cells = ["diverged", *("" for _ in cells[1:])] if "failed" in summary else cells
        shown.add_row(name, *cells, f"{summary['wall_s']:.1f}")
    return shown


def scores_table(seeds: int) -> Table:
    """An empty table of scores; of several seeds it says what stands behind ±."""
    note = f"Mean ± sample standard deviation over {seeds} seeds." if seeds > 1 else None
    return Table(box=None, header_style="bold", pad_edge=False, caption=note, caption_justify="left", caption_style="")


def columns(found: Iterable[Mapping[str, Any]], first: str = "accuracy_micro") -> dict[str, str]:
    """The scores that a table on the terminal shows, with their column heads.

    Args:
        found: the rows; a score that none of them has gets no column.
        first: the score that stands before the others.
    """
    known = {name for row in found for name in row}
    shown = {name: one for name, one in scores("terminal").items() if name in known or name == first}
    return ({} if first in shown else {first: score(first).short}) | {name: one.short for name, one in shown.items()}


def sweep_table(found: Any) -> Table:
    """Every point's values and last scores, mean ± sample standard deviation over seeds, with the best point marked."""
    rows, best = found.rows(), found.best()
    shown_scores = columns(rows, found.by)
    keys = list(dict.fromkeys(key for row in rows for key in row["values"]))
    shown = scores_table(max(point.config.seeds for point in found.points))
    for key in ("", *keys):
        shown.add_column(Text(key))
    for title in (*shown_scores.values(), "seconds"):
        shown.add_column(title, justify="right")
    for index, (row, point) in enumerate(zip(rows, found.points, strict=True)):
        values = [Text(str(row["values"].get(key, "–"))) for key in keys]
        cells = [cell(one, row.get(one), point.config.seeds) for one in shown_scores]
        cells = ["diverged", *("" for _ in cells[1:])] if row["failed"] else cells
        mark, look = ("*", "bold") if index == best else ("", "")
        shown.add_row(mark, *values, *cells, f"{row['seconds']:.1f}", style=look)
    return shown


def listing(kinds: Mapping[str, Mapping[str, str]], meanings: Mapping[str, str]) -> Table:
    """Names under their kinds, with one line each; beside a kind what it means, where its title does not say."""
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(no_wrap=True)
    shown.add_column()
    for kind, entries in kinds.items():
        shown.add_row(Text(kind, "bold"), Text(meanings.get(kind, ""), "bold"))
        for name, line in entries.items():
            shown.add_row(Text(f"  {name}"), Text(line))
    return shown


def page(facts: Facts) -> Group:
    """All that is said of one piece: what it is, its options, what departs from its paper. An example goes below."""
    parts: list[Any] = [Text.assemble((facts.name, "bold"), f" ({facts.kind})"), Text(facts.line)]
    parts += [Text(f"From {facts.package}")] if facts.package else []
    parts += [Text(), Text(paragraphs(facts.text))] if facts.text else []
    for title, rows in (("Options", facts.options), ("Options of all scenarios", facts.common)):
        parts += [Text(), Text(title, "bold"), options(rows)] if rows else []
    if facts.answers:
        parts += [Text(), Text("Seven answers; method.QUESTION=… swaps one", "bold"), pairs(facts.answers)]
    if facts.costs:
        costs = {name: f"{value:g}" for name, value in facts.costs.items()}
        parts += [Text(), Text("Costs of a client-round, FedAvg's being 1", "bold"), pairs(costs)]
    parts += [Text(), Text("Deviations", "bold"), Text(paragraphs(facts.deviations))] if facts.deviations else []
    return Group(*parts, Text(), Text("Try", "bold"))


def pairs(rows: Mapping[str, str]) -> Table:
    """Names and what they stand for."""
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(no_wrap=True)
    shown.add_column()
    for name, value in rows.items():
        shown.add_row(Text(f"  {name}"), Text(value))
    return shown


def paragraphs(text: str) -> str:
    """A docstring's paragraphs, each in one line, for a terminal of any width."""
    return "\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def options(rows: Sequence[Option]) -> Table:
    """Options with what they can be, their defaults, and what they mean."""
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(no_wrap=True)
    for _ in range(3):
        shown.add_column()
    for row in rows:
        default = "required" if row.default == "required" else f"[{row.default}]"
        shown.add_row(*(Text(cell) for cell in (f"  {row.name}", row.values, default, row.text)))
    return shown


def keys(rows: Sequence[Option], sections: Sequence[str]) -> Group:
    """Keys of a configuration with their defaults and what they mean, and what the other keys are."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("key", "default", "meaning"):
        shown.add_column(title)
    for row in rows:
        shown.add_row(*(Text(cell) for cell in (f"  {row.name}", row.default, row.text)))
    lines = [f"The other keys are sections; each names a piece and its options: {', '.join(sections)}."]
    lines += ["`jcfl list data` lists pieces. `--set rounds=50` sets a key, `--set train.lr=0.05` an option."]
    return Group(shown, Text(), *(Text(line, "dim") for line in lines))
