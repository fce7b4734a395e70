"""What a paper's table beside ours looks like on a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from textwrap import wrap
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jcfl.cli.display import GAP, groups, widest
from jcfl.view.reproduction import texts

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
        title: [[numbers[index] for numbers in line.numbers.values()] for line in lines]
        for index, title in enumerate(texts.columns(found))
    }
    needed = {
        title: widest([*title.split(), *(text for cell in cells for text in cell)]) for title, cells in columns.items()
    }
    room = width - GAP - widest(WHO)
    label = label_width(lines, width // LABEL, room - sum(GAP + number for number in needed.values()))
    for group in groups(needed, room - label):
        spare = room - label - sum(GAP + needed[title] for title in group)
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(width=label)
        table.add_column(width=widest(WHO))
        for title in group:
            wide = min(max(needed[title], cell_len(title)), needed[title] + spare // len(group))
            table.add_column(Text(title), justify="right", width=max(wide, 1))
        for index, line in enumerate(lines):
            cells = [[*line.numbers], *(columns[title][index] for title in group)]
            table.add_row(Text(line.row), *(stacked(line, cell) for cell in cells))
        yield table
        yield ""


def label_width(lines: Sequence[texts.Line], most: int, left: int) -> int:
    """How wide the rows' labels are: as long as the paper's, or as is needed for two lines of those of baselines.

    Args:
        lines: the rows.
        most: a limit for them.
        left: what the numbers leave, where it is more.
    """
    labels = [line.row for line in lines]
    own = widest([line.row for line in lines if len(line.numbers) == len(WHO)])
    folded = next(width for width in count(1) if all(len(wrap(label, width)) < 3 for label in labels))
    wide = max(own, folded) if widest(labels) > left else widest(labels)
    return max(widest([word for label in labels for word in label.split()]), min(wide, max(most, left)))


def stacked(line: texts.Line, cell: Sequence[str]) -> Text:
    """The paper's number, if the row has one, and ours below it."""
    looks = ["dim" if who == "paper" else "" for who in line.numbers]
    return Text("\n").join(Text(text, look) for text, look in zip(cell, looks, strict=True))


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
