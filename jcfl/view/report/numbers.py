"""A report's numbers as text: the configuration, scores, costs, and differences between runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jcfl import metrics, results
from jcfl.nested import flat
from jcfl.results import History
from jcfl.view import statistics
from jcfl.view.plotting.style import everybody_alone


def facts(
    runs: Sequence[History], settings: Sequence[Mapping[str, Any]], titles: Sequence[str]
) -> list[tuple[str, str]]:
    """The most important facts of some runs, as pairs of a name and a text; what differs between runs, one by one."""
    told = [facts_of_one(run, one) for run, one in zip(runs, settings, strict=True)]
    names = dict.fromkeys(name for table in told for name in table)
    shown = method_or_runs(titles, settings[0]) | {name: each(table.get(name, "") for table in told) for name in names}
    return [(name, text) for name, text in shown.items() if text]


def facts_of_one(run: History, settings: Mapping[str, Any]) -> dict[str, str]:
    """The facts of one run by name, empty where one is not known."""
    pieces = {section: piece_name(settings.get(section)) for section in ("data", "scenario", "model", "train")}
    count, groups = run.groups.size, np.unique(run.groups[run.groups >= 0]).size
    clients = f"{count} in {groups} groups" if groups > 1 else str(count or "")
    return pieces | {
        "clients": clients,
        "rounds": f"{settings.get('rounds', run.rounds.max(initial=0))}",
        "sampled each round": f"{100 * settings['participation']:g} %" if "participation" in settings else "",
        "seeds": f"{len(run.seeds)}",
    }


def each(texts: Iterable[str]) -> str:
    """Different texts one after another, or how many there are.

    >>> each(["digits", "", "digits"]), each(["10", "20"]), each("abcde")
    ('digits', '10 or 20', '5 different ones')
    """
    found = [text for text in dict.fromkeys(texts) if text]
    return " or ".join(found) if len(found) <= 4 else f"{len(found)} different ones"


def method_or_runs(titles: Sequence[str], settings: Mapping[str, Any]) -> dict[str, str]:
    """The method of one run, or which runs there are, or how many."""
    if len(titles) == 1:
        return {"method": piece_name(settings.get("method"))}
    return {"runs": ", ".join(titles) if len(titles) <= 8 else str(len(titles))}


def piece_name(piece: Any) -> str:
    """A piece of the configuration by its name, several of them one after another."""
    if isinstance(piece, list):
        return " and ".join(piece_name(one) for one in piece)
    return str(piece["name"]) if isinstance(piece, Mapping) and "name" in piece else str(piece or "")


def state(run: History) -> tuple[str, str] | None:
    """Why a run is not complete, as a word and a sentence; None if it is complete."""
    if "failed" in run.summary:
        return "failed", str(run.summary["failed"])
    settings, last = results.settings(run), run.rounds.max(initial=0)
    rounds, seeds = settings.get("rounds", run.summary.get("rounds")), settings.get("seeds", len(run.seeds))
    if len(run.seeds) < seeds:
        return "unfinished", f"{len(run.seeds)} of {seeds} seeds, metrics up to round {last}"
    if not run.summary:
        return "unfinished", f"metrics up to round {last}"
    # It was continued for more rounds, and stopped; or a part of its metrics was lost.
    if run.summary.get("rounds", rounds) != rounds or last < (rounds or 0):
        return "unfinished", f"metrics up to round {last} of {rounds}"
    for i, seed in enumerate(run.seeds):
        if all(np.isnan(values[i, -1:]).all() for values in run.scores.values()):
            return "unfinished", f"no metrics of seed {seed} after round {last}"
    return None


def scores(runs: Sequence[History], titles: Sequence[str]) -> dict[str, Any]:
    """The table of last scores: mean ± sample standard deviation over seeds, the best of several runs in bold.

    Returns:
        `columns`: titles of the scores; `rows`: (run, [(text, whether it is bold)]).
    """
    last = [results.final(run) for run in runs]
    held_out = [metrics.HELD_OUT + name for name in metrics.scores("report, held out")]
    names = [name for name in (*metrics.scores("report"), *held_out) if any(is_number(one.get(name)) for one in last)]
    complete = conditions(runs)
    best = {name: best_of(runs, name, complete) for name in names}
    rows = [
        (label, [(results.cell(name, one.get(name), len(run.seeds)), index in best[name]) for name in names])
        for index, (label, run, one) in enumerate(zip(titles, runs, last, strict=True))
    ]
    return {"columns": [metrics.score(name).title for name in names], "rows": rows}


def is_number(value: Mapping[str, float] | None) -> bool:
    """Whether a score is known."""
    return value is not None and not math.isnan(value["mean"])


def best_of(runs: Sequence[History], name: str, complete: Mapping[int, tuple[Any, ...]]) -> set[int]:
    """The indices of the runs with the best score or one that is not worse; none where no run is worse.

    Which runs are worse is said by `jcfl.view.statistics.best`, as in `jcfl compare`. One seed, or different seeds,
    allow no test, nor do runs of different federations.

    Args:
        complete: the runs that are tested, and what must be the same of them: see `conditions`.
    """
    one = metrics.score(name)
    have = {i: runs[i][name][:, -1] for i in complete if name in runs[i].scores}
    have = {i: values for i, values in have.items() if not np.isnan(values).any()}
    last = {i: values for i, values in have.items() if may_be_best(name, everybody_alone(runs[i]))}
    alike = len({complete[i] for i in last}) == 1
    if one.better is None or len(last) < 2 or not alike or next(iter(last.values())).size < 2:
        return set()
    best = statistics.best(last, -1 if one.better == "lower" else 1, len(have) - 1)
    return best if len(best) < len(last) else set()


def conditions(runs: Sequence[History]) -> dict[int, tuple[Any, ...]]:
    """By the index of each complete run: the federation, the seeds and the rounds that a test needs to be the same."""
    complete = {i: run for i, run in enumerate(runs) if run.rounds.size and state(run) is None}
    return {i: (federation(run), tuple(run.seeds), run.rounds[-1]) for i, run in complete.items()}


def may_be_best(name: str, alone: bool) -> bool:
    """Whether a run can be the best by a score: not by one of clusters if each client is alone in its cluster.

    Purity is 1 there, whatever the method.
    """
    return not (alone and metrics.score(name).over == metrics.CLUSTERING)


FEDERATION = ("data", "scenario", "attack", "reliability")
"""The sections that make a federation: its clients, and what happens to them."""


def federation(run: History) -> str:
    """What a run's federation was made from, and its true groups, as a key."""
    settings = results.settings(run)
    made = [{key: settings.get(key) for key in FEDERATION}, run.summary.get("federation"), run.groups.tolist()]
    return str(made)


def costs(runs: Sequence[History], titles: Sequence[str]) -> dict[str, Any]:
    """The table of time, memory and costs; a cost of 1 is that of one client in one round of FedAvg."""
    columns = {
        "time": lambda one, _: seconds(one.get("wall_s")),
        "of it compiling": lambda one, _: seconds(one.get("compile_s")),
        "rounds a second": lambda one, _: plain(one.get("rounds_per_s")),
        "clients a second": lambda one, _: plain(one.get("clients_per_s")),
        "peak memory": lambda one, _: size(one.get("peak_memory_bytes")),
        "one model": lambda _, cost: size(cost.get("model_bytes")),
        "sent, a client-round": lambda _, cost: size(cost.get("communication_bytes")),
        "sent in all, a seed": lambda one, _: size(one["sent"]),
        "storage, x FedAvg": lambda _, cost: plain(cost.get("storage")),
        "communication, x FedAvg": lambda _, cost: plain(cost.get("communication")),
        "computation, x FedAvg": lambda _, cost: plain(cost.get("computation")),
    }
    rows = []
    for label, run in zip(titles, runs, strict=True):
        one, cost = run.summary | {"sent": total(run)}, run.summary.get("costs") or {}
        if run.summary:
            rows.append((label, [(text(one, cost), False) for text in columns.values()]))
    return {"columns": list(columns), "rows": rows}


def total(run: History) -> float | None:
    """The bytes that the clients of one seed exchange in the run, as a mean over seeds; None if they are not known."""
    sent = spent(run, "communication_bytes")[:, -1:]
    return None if not sent.size or np.isnan(sent).any() else float(sent.mean())


def spent(run: History, cost: str) -> np.ndarray:
    """What all client-rounds cost together, from the beginning until each evaluation.

    The summary has the mean over all rounds, of which those of a warm-up cost as FedAvg's. It also has the mean number
    of sampled clients, where clients arrive and leave. Rounds after the end of training, where a stop condition ended
    it, cost nothing.

    Args:
        run: the run.
        cost: communication_bytes, computation or flop.

    Returns:
        The costs, NaN where they are not known. [seeds, e]
    """
    trained = np.asarray(results.trained_rounds(run), float)
    costs: Mapping[str, float] = run.summary.get("costs") or {}
    clients, speed = (run.summary.get(f"{what}_per_s") or 0.0 for what in ("clients", "rounds"))
    if not speed or cost not in costs:
        return np.full(trained.shape, np.nan)
    rounds, warm = run.summary["rounds"], costs.get("warmup_rounds", 0)
    # The mean number of clients in a round; of all rounds together, their number is a whole one.
    cohort = round(clients / speed * rounds) / rounds if rounds else 0.0
    if cost == "communication_bytes":
        early = 2 * costs["model_bytes"] * costs.get("warmup_communication", 1)  # in a round of warm-up
    else:
        each = costs[cost] / costs["computation"] if costs["computation"] else 0.0
        early = each * costs.get("warmup_computation", 1)
    late = (costs[cost] * rounds - early * warm) / max(rounds - warm, 1)
    return cohort * (early * np.minimum(trained, warm) + late * np.maximum(trained - warm, 0))


def seconds(value: float | None) -> str:
    """A time.

    >>> seconds(12.34), seconds(754), seconds(None)
    ('12.3 s', '12 min 34 s', '–')
    """
    if value is None:
        return "–"
    minutes, rest = divmod(round(value), 60)
    return f"{value:.1f} s" if round(value, 1) < 120 else f"{minutes} min {rest} s"


def size(value: float | None, unit: str = "B") -> str:
    """A number of bytes, or of another unit.

    >>> size(27_000_000), size(812), size(2.5e15, "FLOP"), size(None)
    ('27.0 MB', '812 B', '2.5 PFLOP', '–')
    """
    if value is None:
        return "–"
    shown = [round(value / 1000**power, min(power, 1)) for power in range(6)]
    power = next((power for power, one in enumerate(shown) if one < 1000), 5)
    return f"{shown[power]:.{min(power, 1)}f} {('', 'k', 'M', 'G', 'T', 'P')[power]}{unit}"


def plain(value: float | None) -> str:
    """A number with three digits."""
    return "–" if value is None else f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


NEUTRAL = (
    "made_by", "compare", "examples", "client_states", "chunk", "budget", "autotune", "tuned", "fitted", "chosen_by",
    "decided", "data_dir",
)  # fmt: skip
"""The keys of a configuration that change no score of its main method."""


def differences(settings: Sequence[Mapping[str, Any]], titles: Sequence[str]) -> dict[str, Any]:
    """The table of options that differ between runs; the longer of the two lists becomes the rows.

    Returns:
        `first`: the title of the first column; `columns`; `rows`: (name, [(value, False)]).
    """
    tables = [options(one) for one in settings]
    names = list(dict.fromkeys(name for table in tables for name in table))
    apart = [name for name in names if len({table.get(name) for table in tables}) > 1]
    values = [[(table.get(name, "–"), False) for name in apart] for table in tables]
    if len(titles) > len(apart):
        return {"first": "run", "columns": apart, "rows": list(zip(titles, values, strict=True)) if apart else []}
    rows = [(name, [row[i] for row in values]) for i, name in enumerate(apart)]
    return {"first": "option", "columns": list(titles), "rows": rows}


def options(settings: Mapping[str, Any]) -> dict[str, str]:
    """The values of a configuration as text under dotted names, without those that change no score."""
    kept = {key: value for key, value in settings.items() if key not in NEUTRAL}
    return {name: str(value) for name, value in flat(kept).items() if value is not None}
