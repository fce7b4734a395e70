"""All that is known of a table after its runs: printed numbers, ours, and a verdict on every claim, as JSON has it."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jcfl import metrics, results
from jcfl.errors import InputError
from jcfl.nested import flat
from jcfl.results import History
from jcfl.runs.reproducing import beside, judging
from jcfl.runs.reproducing.judging import VERDICTS, BySeed, Judgement, Printed
from jcfl.runs.reproducing.published import Published
from jcfl.runs.reproducing.tables import Budget, Cell, Key, Table

Runs = tuple[History, ...]
"""The runs of a federation and a method: one of all seeds, or several that have no seed in common."""

NO_PAIR = "no seed has been run of both methods"
"""Why there is no difference of two methods, each of which was run."""


def outcome(
    table: Table, name: str, budget: Budget, found: Mapping[Key, Runs | Judgement], earlier: Published
) -> dict[str, Any]:
    """All that is known of a table.

    Args:
        table: the table.
        name: the budget's.
        budget: what was run of it.
        found: the runs, or why there are none.
        earlier: results that were written before, for the cells and seeds that are not run.

    Returns:
        `table`, `source`, `caption`, `columns`; `rows`: for every row its `cells`, each with `printed` (`mean`, `std`),
        `ours` (`mean`, `std`, `interval`, `values` of `seeds`) or None, `verdict`, `why`, `doubts`; `beside`: for every
        row or column (`kind`) of a baseline its `method` and its `cells`, each with `federation`, `score` and `ours`;
        `orders`, each with
        `above`, `below`, `at`, `printed` and `ours` of the difference, `verdict`, `why`; `counts` of verdicts of
        `numbers` and `orders`; `budget`, `changes`, `departures`, `hours` expected; `made`: for each run, or several
        together, their federations and methods (`runs`), digests of their settings (see `Table.digest`), commands,
        commits, devices, versions, options of JAX and XLA that are not their defaults, seeds and seconds.
    """
    printed = dict(table.cells())
    ours = {cell: values(table, cell, budget, found) for cell in printed}
    ours |= {cell: joined(table, cell, budget, one, ours[cell]) for cell, one in earlier.cells.items()}
    entries = {cell: entry(table, cell, one, ours[cell], budget) for cell, one in printed.items()}
    numbers, rows = table.given.printed, table.given.printed.rows
    orders = list(judged_orders(table, printed, ours, budget))
    runs = [(key, run) for key, one in found.items() if not isinstance(one, Judgement) for run in one]
    new = {(*key, seed) for key, run in runs for seed in run.seeds}
    return {
        "table": table.name,
        "source": numbers.source,
        "caption": numbers.caption,
        "columns": list(numbers.columns),
        "rows": [{"row": row, "cells": [entries.get((row, column)) for column in numbers.columns]} for row in rows],
        "beside": [baseline(table, line, budget, found, earlier) for line in beside.lines(table)],
        "orders": orders,
        "counts": {"numbers": counts(entries.values()), "orders": counts(orders)},
        "budget": name,
        "changes": list(budget.changes),
        "departures": list(table.given.departures),
        "hours": budget.hours,
        "made": [*earlier.besides(new), *(made(key, run, table.digest(key, budget)) for key, run in runs)],
    }


def joined(
    table: Table, cell: Cell, budget: Budget, earlier: BySeed | Judgement, found: BySeed | Judgement
) -> BySeed | Judgement:
    """What is known of a cell by earlier results and by runs here, which count where both have a seed.

    An earlier judgement counts until all seeds have been run here.
    """
    if table.part(cell).blocked is not None:
        return found
    if isinstance(found, Judgement):  # left out, or its data are missing here
        return earlier if found.verdict in ("not run", "cannot be run here") else found
    if isinstance(earlier, Judgement):
        return judging.since(earlier, found, budget.seeds)
    return {**earlier, **found}


def values(table: Table, cell: Cell, budget: Budget, found: Mapping[Key, Runs | Judgement]) -> BySeed | Judgement:
    """Our numbers of a cell in the unit of the table; or why there are none."""
    part = table.part(cell)
    if part.blocked is not None:
        return Judgement("cannot be run here", part.blocked)
    sides: list[Runs] = []
    for side in (found[key] for key in table.keys(cell)):
        if isinstance(side, Judgement):
            return side
        sides.append(side)
    if part.until is not None:
        return rounds_until(sides[0], part.until)
    name = part.metric
    if any(not has_score(run, name) for side in sides for run in side):
        return Judgement("not judged", f"there is no score {name!r} in this run")
    first, *others = [by_seed(side, lambda run: score(run, name, budget.last or table.given.last)) for side in sides]
    there = [seed for seed in first if all(seed in other for other in others)]
    apart = {seed: table.scale(cell) * (first[seed] - sum(other[seed] for other in others)) for seed in there}
    return judging.defined(apart) if apart else Judgement("not run", NO_PAIR)


def by_seed(runs: Runs, measured: Callable[[History], np.ndarray]) -> BySeed:
    """What is measured of each run, [seeds], by seed."""
    return {seed: float(value) for run in runs for seed, value in zip(run.seeds, measured(run), strict=True)}


def has_score(run: Any, name: str) -> bool:
    """Whether a run has a score, or a number in its summary; those of held-out clients need such clients."""
    return name in {*run.scores, *flat(run.summary)}


def score(run: Any, name: str, last: int) -> np.ndarray:
    """The mean of a score over a run's last evaluations, or a number of its summary, which all seeds share. [seeds]"""
    if name in run.scores:
        return np.asarray(run.scores[name][:, -last:], float).mean(1)
    value = flat(run.summary)[name]
    if isinstance(value, str | bool) or not isinstance(value, int | float | None):
        raise InputError(f"score {name!r}: expected a number, got {value!r}")
    return np.full(len(run.seeds), np.nan if value is None else float(value))


def rounds_until(runs: Runs, event: str) -> BySeed | Judgement:
    """The first evaluated round from which clusters are the true groups, or stand still, to the end."""
    found = by_seed(runs, lambda run: first_lasting_round(run, event))
    missed = sum(map(math.isnan, found.values()))
    if not missed:
        return found
    return Judgement("not reproduced", f"not within {runs[0].rounds[-1]} rounds with {missed} of {len(found)} seeds")


def first_lasting_round(run: History, event: str) -> np.ndarray:
    """The first evaluated round from which that is so to the end of one run; NaN for seeds without one. [seeds]"""
    labels = np.asarray(run.labels)  # [seeds, e, m]
    if event == "groups":
        groups = run.true_groups()  # [e, m], which change where data drift
        there = np.array([[metrics.ari(*one) == 1 for one in zip(seed, groups, strict=True)] for seed in labels])
        there &= ((labels >= 0) | (groups < 0)).all(-1)  # ARI leaves out clients without a cluster
    else:
        labels = np.apply_along_axis(numbered, -1, labels)
        there = (labels == labels[:, -1:]).all(-1) & (labels >= 0).any(-1)
        there[:, -1] &= there[:, -2:].all(-1)  # clusters that changed in the last round may go on changing
    lasting = np.logical_and.accumulate(there[:, ::-1], axis=1).sum(1)  # evaluations at the end
    return np.where(lasting > 0, np.asarray(run.rounds, float)[-lasting], np.nan)


def numbered(labels: np.ndarray) -> np.ndarray:
    """Labels [m] in which a cluster has the number of its first client, whatever number the method gives it.

    >>> numbered(np.array([7, 3, 7, -1])).tolist()
    [0, 1, 0, -1]
    """
    _, first, cluster = np.unique(labels, return_index=True, return_inverse=True)
    return np.where(labels < 0, -1, first[cluster])


def entry(table: Table, cell: Cell, printed: Printed, found: BySeed | Judgement, budget: Budget) -> dict[str, Any]:
    """All that is known of one cell."""
    if isinstance(found, Judgement):
        ours, judgement = None, found
    elif budget.altered:
        ours = spread(found)
        judgement = Judgement("not judged", f"the budget changes what is trained: {', '.join(budget.altered)}")
    else:
        judgement = incomplete(found, budget) or judging.number([*found.values()], printed, table.widest(cell, printed))
        ours = spread(found)
    return {
        "printed": {"mean": printed.mean, "std": printed.std},
        "ours": ours,
        "digits": table.digits(cell),
        **judgement._asdict(),
        "doubts": table.doubts(cell),
    }


def incomplete(found: BySeed, budget: Budget) -> Judgement | None:
    """Why numbers are not judged yet, where a budget has more seeds."""
    if len(found) == budget.seeds:
        return None
    if not found:
        return Judgement("not run", NO_PAIR)
    have = "has" if len(found) == 1 else "have"
    return Judgement("not judged", f"{len(found)} of the {budget.seeds} seeds {have} been run")


def baseline(
    table: Table, line: beside.Line, budget: Budget, found: Mapping[Key, Runs | Judgement], earlier: Published
) -> dict[str, Any]:
    """A row or column of a baseline: our numbers without a verdict."""
    cells = []
    for place in line.places:
        if place is None:
            cells.append(None)
            continue
        run = found[place.federation, line.method]
        ours = beside_values(run, place, budget.last or table.given.last)
        ours = {**earlier.beside.get((line.method, place.federation, place.score), {}), **ours}
        one = {"federation": place.federation, "score": place.score, "digits": place.digits}
        cells.append({**one, "ours": spread(ours) if ours else None})
    return {"method": line.method, "kind": line.kind, "cells": cells}


def beside_values(runs: Runs | Judgement, place: beside.Place, last: int) -> BySeed:
    """A baseline's numbers; none where it is not run or does not have the score."""
    if isinstance(runs, Judgement) or not all(has_score(run, place.score) for run in runs):
        return {}
    ours = by_seed(runs, lambda run: place.scale * score(run, place.score, last))
    return ours if all(map(math.isfinite, ours.values())) else {}


def spread(found: BySeed) -> dict[str, Any]:
    """Numbers of several seeds, with their mean, their sample standard deviation, and the interval of the mean."""
    seeds = sorted(found)
    numbers = [found[seed] for seed in seeds]
    std = float(results.deviation(np.asarray(numbers)))
    interval = judging.interval(numbers)
    return {
        "mean": float(np.mean(numbers)),
        "std": None if math.isnan(std) else std,
        "interval": interval and list(interval),
        "values": numbers,
        "seeds": seeds,
    }


def judged_orders(
    table: Table, printed: Mapping[Cell, Printed], ours: Mapping[Cell, BySeed | Judgement], budget: Budget
) -> Iterator[dict[str, Any]]:
    """The orders that the paper's text claims, wherever its numbers have them, each with a verdict.

    In an order, `above` is the one with the higher number, which is the worse one where lower values are better.
    """
    rows, columns = table.given.printed.rows, table.given.printed.columns
    for order in (*table.given.orders, *table.given.more_orders):
        by_rows = order.above in rows
        for label in order.at or (columns if by_rows else rows):
            pair = [(one, label) if by_rows else (label, one) for one in (order.above, order.below)]
            if any(cell not in printed for cell in pair):
                continue
            higher, lower = (order.above, order.below)[:: table.sign(pair[0])]
            gap = table.sign(pair[0]) * (printed[pair[0]].mean - printed[pair[1]].mean)
            if gap <= 0:
                continue
            above, below = (ours[cell] for cell in pair)
            if isinstance(above, Judgement):  # more rounds than were run are no contradiction
                counts_rounds = table.part(pair[0]).until is not None
                found, judgement = None, without(above, "higher") if counts_rounds else above
            elif isinstance(below, Judgement):
                found, judgement = None, without(below, "lower" if lower == order.below else "higher")
            else:
                apart = {seed: table.sign(pair[0]) * (above[seed] - below[seed]) for seed in above if seed in below}
                judgement = incomplete(apart, budget) or judging.order([*apart.values()], gap)
                found = spread(apart) if apart else None
            yield {
                "above": higher,
                "below": lower,
                "at": label,
                "printed": gap,
                "ours": found,
                "digits": table.digits(pair[0]),
                **judgement._asdict(),
            }


def without(missing: Judgement, which: str) -> Judgement:
    """What is said of an order where one number is missing, and that it is missing does not contradict the order.

    Args:
        missing: why it is missing.
        which: `higher` or `lower`, the one that it is in the paper.
    """
    if missing.verdict != "not reproduced":
        return missing
    return Judgement("not judged", f"the one that the paper prints as {which} has no number: {missing.why}")


def counts(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How often each verdict was given."""
    found = Counter(entry["verdict"] for entry in entries)
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def made(key: Key, run: History, digest: str) -> dict[str, Any]:
    """What made a run: settings, command, commit, device, versions and options, where known, its seeds and seconds."""
    by = results.settings(run).get("made_by") or {}
    device, versions = by.get("device"), by.get("versions") or {}
    options = [f"{name}={value}" for name, value in (by.get("settings") or {}).items()]
    options += [f"XLA_FLAGS={by['xla_flags']}"] if by.get("xla_flags") else []
    commits = [process["commit"] for process in (*by.get("earlier", []), by) if process.get("commit")]
    known = {
        "commands": by.get("command"),
        "devices": device and f"{device['count']} x {device['kind']} ({device['platform']})",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "options": ", ".join(options),
    }
    return {
        "runs": [list(key)],
        "settings": [digest],
        "commits": list(dict.fromkeys(commits)),
        **{name: [value] if value else [] for name, value in known.items()},
        "seeds": list(run.seeds),
        "seconds": run.summary.get("wall_s") or 0.0,
    }
