"""A federation in numbers: sizes, classes per client, and the accuracy of guessing."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jcfl.data.soundness import rows
from jcfl.errors.words import counted
from jcfl.types import Federation


def label_counts(federation: Federation, split: str = "train") -> np.ndarray:
    """The number of examples of every class of every client.

    Args:
        federation: the federation.
        split: `train`, `test`, or `validation` where there are validation examples.

    Returns:
        The numbers. [m, c] int

    Raises:
        InputError: there is no such split, or a client's rows are not in the pool.
    """
    owned, size = rows(federation, split)
    classes = federation.classes
    cell = np.repeat(np.arange(len(size)), size) * classes + np.asarray(federation.y)[owned]
    return np.bincount(cell, minlength=len(size) * classes).reshape(len(size), classes)


def shared(federation: Federation) -> dict[str, int]:
    """What several clients have.

    Returns:
        `train` and `test`, the numbers of examples that several clients have; and `copies`, the number of clients whose
        examples, to train and to test on, are exactly those of a client before them.
    """
    number = len(np.asarray(federation.y))
    found, mark = {}, np.zeros(len(np.asarray(federation.groups)), np.uint64)
    for name, salt in (("train", 0), ("test", 1)):
        owned, size = rows(federation, name)
        owner = np.repeat(np.arange(len(size)), size)
        first, last = np.zeros(number, int), np.zeros(number, int)
        last[owned], first[owned[::-1]] = owner, owner[::-1]  # of rows that are there again, the last value stays
        found[name] = int((first < last).sum())
        weight = np.random.default_rng(salt).integers(2**64, size=number, dtype=np.uint64)
        total, end = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weight[owned])]), np.cumsum(size)
        mark += total[end] - total[end - size]  # random sums: clients with other examples have other ones
    return found | {"copies": len(mark) - len(np.unique(mark))}


def describe(federation: Federation) -> dict[str, Any]:
    """A federation in numbers, all of them plain Python values.

    Returns:
        `name`, `classes`, `shape` of one example, `examples` in the pool, `all`: the facts of all clients, and
        `groups`: the same facts for every group, -1 being the group of clients whose group is not known. The facts:
        `group` (None for all), `clients`, `held_out`, `train` and `test` ({min, median, max, total} of the clients'
        sizes), `classes_per_client` ({min, median, max}), `labels` (those trained on), and `guess_micro` and
        `guess_macro`: the accuracy on test examples if every client that trains predicts the most frequent class of
        its own training data, weighted by size and as mean over clients, as the method `majority` has it; NaN where
        none of these clients has test examples.
    """
    counts = label_counts(federation), label_counts(federation, "test")
    groups = np.asarray(federation.groups)
    held_out = np.asarray(federation.held_out)

    def facts(group: int | None) -> dict[str, Any]:
        who = np.ones(len(groups), bool) if group is None else groups == group
        return {"group": group} | _facts(counts[0][who], counts[1][who], held_out[who])

    return {
        "name": federation.name,
        "classes": federation.classes,
        "shape": [int(length) for length in federation.x.shape[1:]],
        "examples": len(federation.y),
        "all": facts(None),
        "groups": [facts(int(group)) for group in np.unique(groups)],
    }


def summary(federation: Federation, most: int = 20) -> str:
    """A federation as a table of text: one line per group and one for all.

    Args:
        federation: the federation.
        most: how many groups are listed before the rest is left out.
    """
    facts = describe(federation)
    head = ("group", "clients", "held out", "train", "test", "classes", "guess", "labels")
    lines = [head, *(_line(group) for group in facts["groups"][:most]), _line(facts["all"])]
    width = [max(len(line[column]) for line in lines) for column in range(len(head))]
    table = ["  ".join(cell.rjust(wide) for cell, wide in zip(line, width, strict=True)) for line in lines]
    left_out = len(facts["groups"]) - most
    if left_out > 0:
        table.insert(-1, f"... and {counted(left_out, 'more group')}")
    shape = " x ".join(str(length) for length in facts["shape"])
    title = f"{facts['name']}: {facts['examples']} examples of {shape}, {facts['classes']} classes"
    note = f"train, test, classes: smallest/median/largest of the group's clients; {guess_note(facts)}"
    return "\n".join([title, *table, note])


def guess_note(facts: Mapping[str, Any]) -> str:
    """What the column `guess` holds, in words; `facts` are those of `describe`."""
    who = "each client that trains" if facts["all"]["held_out"] else "each client"
    return f"guess: accuracy if {who} predicts its most frequent class"


def percent(share: float) -> str:
    """A share as text.

    >>> percent(0.25), percent(float("nan"))
    ('25.0 %', '–')
    """
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def _facts(train: np.ndarray, test: np.ndarray, held_out: np.ndarray) -> dict[str, Any]:
    sizes = test.sum(1)
    right = test[np.arange(len(test)), train.argmax(1)]  # [m]
    scored = (sizes > 0) & ~held_out  # as in the accuracies of a run, see `jcfl.metrics.are_scored`
    return {
        "clients": len(train),
        "held_out": int(held_out.sum()),
        "train": _spread(train.sum(1)) | {"total": int(train.sum())},
        "test": _spread(sizes) | {"total": int(test.sum())},
        "classes_per_client": _spread((train > 0).sum(1)),
        "labels": np.flatnonzero(train.sum(0)).tolist(),
        "guess_micro": float(right[scored].sum() / sizes[scored].sum()) if scored.any() else math.nan,
        "guess_macro": float((right[scored] / sizes[scored]).mean()) if scored.any() else math.nan,
    }


def _spread(numbers: np.ndarray) -> dict[str, float]:
    return {"min": int(numbers.min()), "median": float(np.median(numbers)), "max": int(numbers.max())}


def _line(facts: dict[str, Any]) -> tuple[str, ...]:
    group = {None: "all", -1: "unknown"}.get(facts["group"], str(facts["group"]))
    spreads = (_short(facts[key]) for key in ("train", "test", "classes_per_client"))
    return (
        group,
        str(facts["clients"]),
        str(facts["held_out"]),
        *spreads,
        percent(facts["guess_micro"]),
        _ranges(facts["labels"]),
    )


def _short(spread: dict[str, float]) -> str:
    return f"{spread['min']}/{spread['median']:g}/{spread['max']}"


def _ranges(labels: list[int]) -> str:
    """Labels in short.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2 5 7-8'
    """
    runs = np.split(labels, np.flatnonzero(np.diff(labels) != 1) + 1) if labels else []
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
