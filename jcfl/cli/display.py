"""What a run looks like on a terminal, and in plain lines where there is none."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderHook
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from jcfl.errors import printable
from jcfl.metrics.table import score, scores
from jcfl.results import cell
from jcfl.runs import loop
from jcfl.view.facts import Facts
from jcfl.view.options import Option

PLAIN_EVERY = 10.0
"""Seconds between plain lines."""

Watch = Callable[[loop.Progress], None]


@contextmanager
def watched(console: Console, quiet: bool = False, methods: Sequence[str] = ()) -> Iterator[Watch]:
    """What to call with a run's progress: a bar on a terminal, lines elsewhere, nothing if `quiet`.

    Args:
        methods: those to come, in their order, so that the next one is seen to be prepared.
    """
    if quiet:
        yield lambda progress: None
    elif animated(console):
        with bar(console, methods) as watch:
            yield watch
    else:
        yield Lines(console)


def screen(stderr: bool = False) -> Console:
    """The terminal, or in its place one so wide that a line of ours stays a line."""
    console = Console(stderr=stderr)
    console = console if console.is_terminal else Console(stderr=stderr, width=160)
    console.push_render_hook(Harmless())
    return console


class Harmless(RenderHook):
    """Writes out what a terminal would obey in text that is printed, such as a name from a stranger's file."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        """What is printed in place of `renderables`."""
        return [Printable(one) for one in renderables]


class Printable(NamedTuple):
    """Something printed with its text, but not its colours, made harmless."""

    content: Any

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """The pieces of text that Rich prints."""
        for text, style, control in console.render(self.content, options):
            safe = text if control else "\n".join(map(printable, text.split("\n")))
            yield Segment(safe, style, control)


def animated(console: Console) -> bool:
    """Whether the console can move its cursor."""
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def bar(console: Console, methods: Sequence[str]) -> Iterator[Watch]:
    """A progress bar for every method, one below the other; the next one pulses while it is compiled."""
    name, scores = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[scores]}", markup=False)
    columns = name, BarColumn(24), MofNCompleteColumn(), scores, TimeRemainingColumn(elapsed_when_finished=True)
    with Progress(*columns, console=console) as shown:
        tasks: dict[str, Any] = {}
        coming = iter(methods)

        def prepare(name: str | None) -> None:
            if name is not None and name not in tasks:
                tasks[name] = shown.add_task(name, total=None, start=False, scores="compiling")

        def watch(progress: loop.Progress) -> None:
            prepare(progress.name)
            task = tasks[progress.name]
            shown.start_task(task)
            shown.update(task, total=progress.total, completed=progress.done, scores=brief(progress.scores))
            if progress.done == progress.total:
                prepare(next((name for name in coming if name not in tasks), None))

        prepare(next(coming, None))
        yield watch


class Lines:
    """Progress in plain lines, at most one every few seconds and one at the end of each method."""

    def __init__(self, console: Console):
        self.console = console
        self.said = 0.0
        self.starts: dict[str, Start] = {}

    def __call__(self, progress: loop.Progress) -> None:
        """Say where the run is, if it is time to."""
        now = time.monotonic()
        start = self.starts.setdefault(progress.name, Start(now, progress.done))
        if now - self.said < PLAIN_EVERY and progress.done < progress.total:
            return
        self.said = now
        left = remaining(now - start.time, progress.done - start.done, progress.total - progress.done)
        where = f"round {progress.done}/{progress.total}" if progress.done or not progress.total else "compiling"
        parts = [f"{progress.name}: {where}", brief(progress.scores), left]
        self.console.print(", ".join(part for part in parts if part), highlight=False, soft_wrap=True)


class Start(NamedTuple):
    """When a method was first heard of, and how far it was."""

    time: float
    done: int


def remaining(seconds: float, done: int, left: int) -> str:
    """The time left, at the speed so far."""
    return f"{seconds / done * left:.0f} s left" if done and left else ""


def brief(scores: Mapping[str, float]) -> str:
    """The latest scores in a few words."""
    parts = []
    if "accuracy_micro" in scores:
        parts.append(f"accuracy {scores['accuracy_micro']:.2%}")
    if scores.get("clusters"):
        parts.append(f"{scores['clusters']:.0f} cluster{'s' * (scores['clusters'] != 1)}")
    return ", ".join(parts)


def table(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """The last scores of several methods side by side, and mean ± sample standard deviation of several seeds."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
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
    shown = Table(box=None, header_style="bold", pad_edge=False)
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
