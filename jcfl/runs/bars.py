"""The progress of runs: a bar on a terminal and in a notebook, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderHook
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from jcfl.errors import printable
from jcfl.runs import loop

PLAIN_EVERY = 10.0
"""Seconds between plain lines."""

MARK = {"jcfl": "progress"}
"""What tells a bar from the other outputs in a notebook's file."""

Watch = Callable[[loop.Progress], None]

SEVERAL = {"sweep": "points", "tune": "trials"}
"""The names under which several runs train together, and the word for these."""


@contextmanager
def shown(
    progress: bool | None, on_progress: Watch | None, methods: Sequence[str] = (), seeds: int | None = None
) -> Iterator[Watch]:
    """What a run in Python calls with its progress.

    Args:
        progress: whether it is shown on stderr, or under a notebook's cell; None: in a notebook and on a terminal that
            can redraw a line, unless `on_progress` is given.
        on_progress: another function that is called with the progress.
        methods: the methods that will train, in their order.
        seeds: how many seeds each of them trains; None if that is not known here.
    """
    also = on_progress or (lambda progress: None)
    console = screen(stderr=True)
    seen = animated(console) and on_progress is None
    with watched(console, not (seen if progress is None else progress), methods, seeds) as watch:

        def both(progress: loop.Progress) -> None:
            watch(progress)
            also(progress)

        yield both


@contextmanager
def watched(
    console: Console, quiet: bool = False, methods: Sequence[str] = (), seeds: int | None = None
) -> Iterator[Watch]:
    """What to call with a run's progress: a bar on a terminal, lines elsewhere, nothing if `quiet`.

    Args:
        methods: those to come, in their order, so that the next one is seen to be prepared.
        seeds: how many seeds each of them trains; None if that is not known here.
    """
    if quiet:
        yield lambda progress: None
    elif animated(console):
        with bar(console, methods, seeds) as watch:
            yield watch
    else:
        yield Lines(console, seeds)


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
    """Whether what it shows can be drawn again: on a terminal that moves its cursor, and in a notebook."""
    return console.is_jupyter or (console.is_terminal and not console.is_dumb_terminal)


@contextmanager
def bar(console: Console, methods: Sequence[str], seeds: int | None) -> Iterator[Watch]:
    """A progress bar for every method, one below the other; the next one pulses while it is compiled."""
    words = ("description", "fields[where]", "fields[scores]")
    name, at, scores = (TextColumn(f"{{task.{word}}}", markup=False) for word in words)
    shown = Progress(name, BarColumn(24), at, scores, TimeRemainingColumn(elapsed_when_finished=True), console=console)
    with nullcontext() if console.is_jupyter else shown:
        tasks: dict[str, Any] = {}
        coming = iter(methods)

        def prepare(name: str | None) -> None:
            if name is not None and name not in tasks:
                tasks[name] = shown.add_task(name, total=None, start=False, where="compiling", scores="")

        def watch(progress: loop.Progress) -> None:
            prepare(progress.name)
            task = tasks[progress.name]
            shown.start_task(task)
            at, scores = where(progress, seeds), brief(progress)
            shown.update(task, total=progress.total, completed=progress.done, where=at, scores=scores)
            if progress.done == progress.total:
                prepare(next((name for name in coming if name not in tasks), None))
            redraw()

        prepare(next(coming, None))
        redraw = under_cell(shown) if console.is_jupyter else lambda: None
        yield watch


def under_cell(bar: Progress) -> Callable[[], None]:
    """Show a bar under a notebook's cell; returns what draws it again in its place.

    Rich's own redrawing needs ipywidgets in the notebook's server; without them it shows nothing.
    """
    from IPython.display import DisplayHandle

    handle = DisplayHandle()
    handle.display(bar, metadata=MARK)
    return lambda: handle.update(bar, metadata=MARK)


class Lines:
    """Progress in plain lines, at most one every few seconds and one at the end of each method."""

    def __init__(self, console: Console, seeds: int | None):
        self.console, self.seeds = console, seeds
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
        parts = [f"{progress.name}: {where(progress, self.seeds)}", brief(progress), left]
        self.console.print(", ".join(part for part in parts if part), highlight=False, soft_wrap=True)


class Start(NamedTuple):
    """When a method was first heard of, and how far it was."""

    time: float
    done: int


def where(progress: loop.Progress, seeds: int | None) -> str:
    """How far a run has come, in words.

    >>> where(loop.Progress("ifca", 0, 2, 6, 12, {}, seeds=3), seeds=3)
    'round 2/4, 3 seeds'
    >>> where(loop.Progress("ifca", 1, 1, 5, 12, {}), seeds=3)
    'round 1/4 of seed 1, 5/12 in all'

    Args:
        progress: its rounds are counted over all seeds, and over all points or trials.
        seeds: how many seeds the method trains; None if that is not known.
    """
    if not progress.done and progress.total:
        return "compiling"
    share = f"{progress.done}/{progress.total}"
    if progress.name in SEVERAL:
        return f"round {share} over all {SEVERAL[progress.name]} and seeds"
    if progress.done and not progress.round:  # the runs that workers have trained
        return f"{share} done"
    if not seeds:
        return f"round {share}" if progress.done == progress.round else f"round {share} over all seeds"
    own = f"round {progress.round}/{progress.total // seeds}"
    if progress.seeds == seeds:
        return f"{own}, {seeds} seeds" if seeds > 1 else own
    return f"{own} of seed {progress.seed}, {share} in all"


def remaining(seconds: float, done: int, left: int) -> str:
    """The time left, at the speed so far."""
    return f"{seconds / done * left:.0f} s left" if done and left else ""


def brief(progress: loop.Progress) -> str:
    """The latest scores in a few words; none where rounds of several points or trials are counted together.

    >>> scores = {"accuracy_micro": 0.25, "clusters": 1.0}
    >>> brief(loop.Progress("ifca", 0, 2, 2, 4, scores)), brief(loop.Progress("sweep", 0, 2, 2, 4, scores))
    ('accuracy 25.00%, 1 cluster', '')
    """
    parts, scores = [], {} if progress.name in SEVERAL else progress.scores
    if "accuracy_micro" in scores:
        parts.append(f"accuracy {scores['accuracy_micro']:.2%}")
    if scores.get("clusters"):
        clusters = f"{scores['clusters']:.1f}".removesuffix(".0")  # a mean over seeds
        parts.append(f"{clusters} cluster{'s' * (clusters != '1')}")
    return ", ".join(parts)
