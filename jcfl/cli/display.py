"""What runs, sweeps and pieces look like on a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from jcfl.metrics.table import score, scores
from jcfl.results import cell
from jcfl.view.facts import Facts
from jcfl.view.options import Option

GAP = 2
"""Spaces between two columns."""


def table(summaries: Mapping[str, Mapping[str, Any]], width: int) -> Iterator[Table | Text]:
    """The last scores of several methods side by side, and mean ± sample standard deviation of several seeds.

    Args:
        summaries: by the methods' names.
        width: of the terminal; several tables where one would be too wide.
    """
    heads = columns(summaries.values())
    rows = []
    for summary in summaries.values():
        cells = [cell(one, summary.get(one), summary["seeds"]) for one in heads]
        cells = ["diverged", *("" for _ in cells[1:])] if "failed" in summary else cells
        rows.append([*cells, f"{summary['wall_s']:.1f}"])
    shown = zip([*heads.values(), "seconds"], zip(*rows, strict=True), strict=True)
    seeds = max(summary["seeds"] for summary in summaries.values())
    yield from in_parts([("method", [*summaries])], list(shown), width, seeds)


Columns = Sequence[tuple[str, Sequence[str]]]
"""Titles with their cells; two columns may have the same title."""


def in_parts(
    first: Columns, others: Columns, width: int, seeds: int = 1, looks: Sequence[str] = ()
) -> Iterator[Table | Text]:
    """Tables that fit a terminal, each with the first columns and as many of the others as have room beside them.

    Only a title and a cell of a first column are broken into lines, so that no number is cut.

    Args:
        seeds: of several seeds a line below says what stands behind ±.
        looks: how each row is printed; as usual where none is given.
    """
    needed = {place: widest([*title.split(), *cells]) for place, (title, cells) in enumerate(others)}
    most = min(width // 3, (width - max(needed.values()) - GAP * len(first)) // len(first))
    wide = [min(widest([title, *cells]), max(most, widest([title]))) for title, cells in first]
    room = width - sum(wide) - GAP * (len(wide) - 1)
    for group in groups(needed, room):
        spare = room - sum(GAP + needed[place] for place in group)
        shown = Table(box=None, header_style="bold", pad_edge=False)
        for (title, _), own in zip(first, wide, strict=True):
            shown.add_column(Text(title), width=own, overflow="fold")
        for place in group:
            title, least = others[place][0], needed[place]
            shown.add_column(Text(title), justify="right", width=min(max(least, cell_len(title)), least + spare))
            spare -= max(0, min(cell_len(title) - least, spare))
        own = [*(cells for _, cells in first), *(others[place][1] for place in group)]
        for index, row in enumerate(zip(*own, strict=True)):
            shown.add_row(*map(Text, row), style=looks[index] if looks else "")
        yield shown
    if seeds > 1:
        yield Text(f"Mean ± sample standard deviation over {seeds} seeds.")


def widest(found: Iterable[str]) -> int:
    """The cells of a terminal that the widest text takes."""
    return max(map(cell_len, found), default=0)


def groups(needed: Mapping[Any, int], room: int) -> list[list[Any]]:
    """Columns, by what they need, in groups that fit side by side; a column that is too wide is alone.

    >>> groups({"a": 3, "b": 4, "c": 30}, 12)
    [['a', 'b'], ['c']]
    """
    found: list[list[Any]] = []
    left = 0
    for title, width in needed.items():
        if not found or left < GAP + width:
            found.append([])
            left = room
        found[-1].append(title)
        left -= GAP + width
    return found


def columns(found: Iterable[Mapping[str, Any]], first: str = "accuracy_micro") -> dict[str, str]:
    """The scores that a table on the terminal shows, with their column heads.

    Args:
        found: the rows; a score that none of them has gets no column.
        first: the score that stands before the others.
    """
    known = {name for row in found for name in row}
    shown = {name: one for name, one in scores("terminal").items() if name in known or name == first}
    return ({} if first in shown else {first: score(first).short}) | {name: one.short for name, one in shown.items()}


def sweep_table(found: Any, width: int) -> Iterator[Table | Text]:
    """Every point's values and last scores, mean ± sample standard deviation over seeds, with the best point marked."""
    rows, best = found.rows(), found.best()
    heads = columns(rows, found.by)
    keys = list(dict.fromkeys(key for row in rows for key in row["values"]))
    values = [(key, [str(row["values"].get(key, "–")) for row in rows]) for key in keys]
    lines = []
    for row, point in zip(rows, found.points, strict=True):
        cells = [cell(one, row.get(one), point.config.seeds) for one in heads]
        cells = ["diverged", *("" for _ in cells[1:])] if row["failed"] else cells
        lines.append([*cells, f"{row['seconds']:.1f}"])
    marks = ("", ["*" if index == best else "" for index in range(len(rows))])
    shown = list(zip([*heads.values(), "seconds"], zip(*lines, strict=True), strict=True))
    looks = ["bold" if mark else "" for mark in marks[1]]
    yield from in_parts([marks, *values], shown, width, max(point.config.seeds for point in found.points), looks)


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
    parts += [Text(f"In Python: {facts.python}")] if facts.python else []
    parts += [Text(), Text(paragraphs(facts.text))] if facts.text else []
    for title, rows in (("Options", facts.options), ("Options of all scenarios", facts.common)):
        parts += [Text(), Text(title, "bold"), options(rows)] if rows else []
    if facts.answers:
        parts += [Text(), Text("Seven answers; method.QUESTION=… swaps one", "bold"), pairs(facts.answers)]
    if facts.costs:
        costs = {name: f"{value:g}" for name, value in facts.costs.items()}
        parts += [Text(), Text("Costs of one client in one round; FedAvg is 1", "bold"), pairs(costs)]
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
