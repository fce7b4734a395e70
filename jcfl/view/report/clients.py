"""A report's table of clients: what each holds, the cluster it is in, and how well each run serves it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jcfl import results
from jcfl.results import History
from jcfl.view.plotting.clientwise import last_accuracy, same_clients
from jcfl.view.plotting.style import ranked

MOST = 20_000
"""The most clients that a page lists."""

EXACT = 2**53
"""The least whole number that the page's script would round."""

GROUPED = 4
"""The most runs whose clusters a page lists."""


def table(runs: Sequence[History], titles: Sequence[str]) -> dict[str, Any]:
    """The table in the form that the page's script needs.

    Returns:
        `columns`: {title, kind: id, name, count or share, filter: whether rows can be chosen by it}; `rows`: a list of
        values for each client, with null for a missing value; `clients`: how many clients there are in all.
    """
    first = next((run for run in runs if run.groups.size), runs[0])  # one that was evaluated knows its clients
    alike = [i for i, run in enumerate(runs) if same_clients(run, first)]
    columns = [column("client", "id", first.clients)]
    if (first.groups >= 0).any():
        columns.append(column("group", "name", first.groups, True))
    columns += holding_columns(first)
    grouped = [i for i in alike if runs[i].labels.size and runs[i].labels.max() > 0]
    for i in grouped[:GROUPED]:
        of = f", {titles[i]}" if len(runs) > 1 else ""
        last = ranked(runs[i].labels[0])[-1]
        columns.append(column(f"cluster{of}", "name", np.where(last < 0, -1, last + 1), True))
    for i in alike:
        of = f", {titles[i]}" if len(runs) > 1 else ""
        columns.append(column(f"accuracy{of}", "share", last_accuracy(runs[i])))
    rows = zip(*(one.pop("values") for one in columns), strict=True)
    return {"columns": columns, "rows": [list(row) for row in rows][:MOST], "clients": int(first.groups.size)}


def holding_columns(run: History) -> list[dict[str, Any]]:
    """The columns about clients' examples; none if the run's folder has no federation.npz."""
    facts = results.known_federation(run)
    if facts is None:
        return []
    train, test = facts["train"], facts["test"]
    sizes = test.sum(1)
    right = test[np.arange(len(test)), train.argmax(1)]
    guess = np.where(sizes > 0, right / np.maximum(sizes, 1), np.nan)
    shown = [column("train", "count", train.sum(1)), column("test", "count", sizes)]
    shown += [column("classes", "count", (train > 0).sum(1)), column("guess", "share", guess)]
    marks = {
        "held out": facts["held_out"],
        "left": facts["depart"] < run.rounds.max(initial=0),
        "attacker": facts.get("hostile", np.zeros(len(test), bool)),
    }
    return shown + [column(name, "name", mask.astype(int), True) for name, mask in marks.items() if mask.any()]


def column(title: str, kind: str, values: np.ndarray, filter: bool = False) -> dict[str, Any]:
    """One column; a negative name and a share that is NaN become null."""
    if kind == "id":
        exact = values.dtype.kind != "U" and np.abs(values).max(initial=0) < EXACT
        plain = values.tolist() if exact else values.astype(str).tolist()
    elif kind == "share":
        plain = [None if np.isnan(value) else round(float(value), 5) for value in values]
    else:
        plain = [None if value < 0 else int(value) for value in values]
    return {"title": title, "kind": kind, "filter": filter, "values": plain}
