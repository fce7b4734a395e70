"""What a paper's table beside ours looks like on a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jcfl.view.reproduction import texts

GAP = 2
"""Spaces between two columns."""

LABEL = 3
"""Rows' labels have this part of the width at most, or what the numbers leave."""

WHO = ("paper", "here")
"""What stands before the numbers of a row."""


def parts(found: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    """The table for a terminal of this width, and below it what its page says in words.

    Only the page lists the orders of which there is no difference here, and what made the runs.
    """
    yield from numbers(found, width)
    yield Text(texts.legend(found))
    yield Text("\n".join(texts.tally(found, what) for what in found["counts"]))
    for title, items in texts.explanations(found).items():
        yield from listed(title, items)
    if judged := texts.orders(found, only_found=True):
        yield Text.assemble("\n", ("Orders", "bold"), "\n", texts.DIFFERENCES)
        yield orders(judged)
    for lead, items in texts.experiment(found).items():
        yield from listed(lead, items)
    yield ""


def numbers(found: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    """The paper's numbers, and ours below them; several tables where one would be too wide."""
    lines = texts.lines(found)
    columns = {
        title: [(line.printed[index], line.ours[index]) for line in lines]
        for index, title in enumerate(found["columns"])
    }
    needed = {
        title: max(map(cell_len, [title[:1], *title.split(), *(text for pair in pairs for text in pair)]))
        for title, pairs in columns.items()
    }
    room = width - GAP - max(map(cell_len, WHO))
    label = max(width // LABEL, room - sum(GAP + width for width in needed.values()))
    label = min(label, max((cell_len(line.row) for line in lines), default=0))
    for group in groups(needed, room - label):
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(max_width=label)
        table.add_column()
        for title in group:
            table.add_column(Text(title), justify="right", min_width=needed[title])
        for index, line in enumerate(lines):
            pairs = [WHO, *(columns[title][index] for title in group)]
            table.add_row(Text(line.row), *(Text.assemble((above, "dim"), "\n", below) for above, below in pairs))
        yield table
        yield ""


def groups(needed: Mapping[str, int], room: int) -> list[list[str]]:
    """The columns in groups that fit side by side; a column that is too wide is alone.

    >>> groups({"a": 3, "b": 4, "c": 30}, 12)
    [['a', 'b'], ['c']]
    """
    found: list[list[str]] = []
    left = 0
    for title, width in needed.items():
        if not found or left < GAP + width:
            found.append([])
            left = room
        found[-1].append(title)
        left -= GAP + width
    return found


def orders(rows: Sequence[Sequence[str]]) -> Table:
    """The orders with their differences; only names are broken into lines."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, head in enumerate(texts.ORDERS):
        table.add_column(head, justify="right" if head in WHO else "left", no_wrap=place > 2)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def listed(title: str, items: Sequence[str]) -> Iterator[RenderableType]:
    """A list under a title."""
    yield Text.assemble("\n", (title, "bold"))
    table = Table.grid(padding=(0, 1))
    for item in items:
        table.add_row("-", Text(item))
    yield table
