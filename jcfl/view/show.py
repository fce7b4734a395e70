"""A federation before training: the sizes of its clients, their labels, and the accuracy of guessing."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from jcfl.data.summary import describe, guess_note, label_counts, percent, shared
from jcfl.errors.words import counted
from jcfl.types import NEVER, Federation

MOST = 20
"""The largest number of groups, and of labels, that the table shows one by one."""

BARS = "▁▂▃▄▅▆▇█"


def facts(federation: Federation) -> dict[str, Any]:
    """The numbers that describe a federation: those of `jcfl.data.summary.describe`, and some more.

    Returns:
        the result of `describe`, and: `arrivals`, `departures` and `drift`, the number of clients that arrive, leave or
        exchange their data, by round; `shared`, the result of `jcfl.data.summary.shared`; `guess_one`, the accuracy if
        every client predicts the class that is most frequent in all training data; NaN without test examples. Clients
        that are held out count in no guess.
    """
    trains = ~np.asarray(federation.held_out)
    test = label_counts(federation, "test")[trains].sum(0)
    top = int(label_counts(federation)[trains].sum(0).argmax())
    moments = {"arrivals": np.asarray(federation.arrive), "departures": np.asarray(federation.depart)}
    turnover = {
        name: {int(round): int((when == round).sum()) for round in np.unique(when[(when > 0) & (when < NEVER)])}
        for name, when in moments.items()
    }
    turnover["drift"] = moved(federation)
    more = {"shared": shared(federation), "guess_one": float(test[top] / test.sum()) if test.any() else math.nan}
    return describe(federation) | turnover | more


def moved(federation: Federation) -> dict[int, int]:
    """How many clients exchange their data, by round."""
    if isinstance(federation.drift, tuple):
        return {}
    holds = np.asarray(federation.drift.holds)
    numbers = (holds[1:] != holds[:-1]).sum(1)
    return {int(round): int(number) for round, number in zip(federation.drift.rounds, numbers, strict=True)}


def table(federation: Federation) -> Group:
    """A federation as a table for a terminal: one row for each group, one for all clients, and notes below."""
    found = facts(federation)
    groups = found["groups"][:MOST]
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("group", "clients", "held out", "train", "test", "classes", "guess"):
        shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column(f"labels 0–{found['classes'] - 1}")
    members, counts = np.asarray(federation.groups), label_counts(federation)
    for group in groups:
        shown.add_row(*cells(group, counts[members == group["group"]].sum(0)))
    if len(found["groups"]) > MOST:
        shown.add_row("…", counted(len(found["groups"]) - MOST, "more group"))
    if len(found["groups"]) > 1:
        shown.add_row(*cells(found["all"], counts.sum(0)), style="bold")
    shape = " x ".join(str(length) for length in found["shape"])
    title = f"{found['name']}: {found['examples']} examples of {shape}, {found['classes']} classes"
    return Group(Text(title, style="bold"), Text(), shown, Text(), *(Text(line) for line in remarks(found)))


def cells(group: Mapping[str, Any], counts: np.ndarray) -> Iterator[str]:
    """The cells of one row of the table."""
    yield {None: "all", -1: "unknown"}.get(group["group"], str(group["group"]))
    yield str(group["clients"])
    yield str(group["held_out"])
    for key in ("train", "test", "classes_per_client"):
        spread = group[key]
        yield "{min}–{max}".format_map(spread) if spread["min"] < spread["max"] else str(spread["min"])
    yield percent(group["guess_micro"])
    yield bars(counts) if len(counts) <= MOST else f"{len(group['labels'])} of {len(counts)}"


def bars(counts: np.ndarray) -> str:
    """The number of examples of every class as a bar, one character each; a blank is a class without examples.

    >>> bars(np.array([8, 0, 4, 1]))
    '█ ▄▁'
    """
    height = np.ceil(len(BARS) * counts / max(counts.max(), 1)).astype(int)
    return "".join(" " if not level else BARS[level - 1] for level in height)


def remarks(found: Mapping[str, Any]) -> Iterator[str]:
    """The notes below the table: its columns, when clients arrive and leave, and the accuracy of guessing."""
    yield "train, test, classes: from the smallest to the largest client; labels: training examples of every class"
    for name, verb in (("arrivals", "arrive"), ("departures", "leave"), ("drift", "exchange their data")):
        if found[name]:
            moments = ", ".join(f"{count} in round {round}" for round, count in found[name].items())
            yield f"clients that {verb}: {moments}"
    train, test, copies = (found["shared"][name] for name in ("train", "test", "copies"))
    if train or test:
        yield f"examples that several clients have: {train} to train on, {test} to test on"
        yield f"clients that are exact copies of another one: {copies} of {found['all']['clients']}"
    micro, macro, one = (percent(share) for share in guesses(found))
    yield f"{guess_note(found)}; {micro} by size, {macro} mean over clients"
    yield f"accuracy if all clients predict the same class: {one}"


def guesses(found: Mapping[str, Any]) -> tuple[float, float, float]:
    """The accuracy of each client's most frequent class, by size and as mean over clients, and of one class for all."""
    return found["all"]["guess_micro"], found["all"]["guess_macro"], found["guess_one"]


def picture(federation: Federation, path: Path) -> Path:
    """Draw the heat map of labels and clients into a file, whose ending chooses the format.

    Raises:
        InputError: the ending is not png, pdf or svg.
    """
    from jcfl.view import plotting

    shown = plotting.label_map(label_counts(federation), np.asarray(federation.groups))
    (file,) = plotting.save(shown, path.with_suffix(""), [path.suffix.lstrip(".") or "png"])
    return file
