"""A comparison of methods that one can publish: paired by seed and by client, with intervals, tests and costs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jcfl import metrics, results
from jcfl.errors import InputError, argument, unknown
from jcfl.results import History
from jcfl.view import statistics
from jcfl.view.comparing import matching
from jcfl.view.comparing.matching import Block, Entry
from jcfl.view.report.numbers import may_be_best

REFERENCES = ("local", "fedavg")
"""The methods, where they were run, than which clients may be worse off."""

SPENT = ("bytes", "passes", "flop")
"""What a run costs."""

WEIGHTS = {"accuracy_micro": lambda examples: examples, "accuracy_macro": np.sign}
"""The metrics that are means over clients, and what clients weigh in them, from their examples for testing."""


def comparison(
    runs: Sequence[History],
    names: Sequence[str] = ("accuracy_micro",),
    baseline: str | None = None,
    target: float | None = None,
) -> dict[str, Any]:
    """All that is found when runs are compared.

    Args:
        runs: read from folders.
        names: the metrics.
        baseline: the method that all others are compared with; by default the first one.
        target: the value of the first metric of which the costs are computed; a share as a number below 1.

    Returns:
        `baseline`, `target`, `level` of the tests, `metrics`: of each its `metric`, `federations` (each with
        `federation`, `seeds`, `clients` and `rows`, see `row`), `ranks` over federations or None, and `without`: the
        methods that do not have this metric.

    Raises:
        InputError: a run is not complete, or runs do not match; a metric or the baseline is not there.
    """
    whole = matching.blocks(runs)
    blocks = {name: matching.having(whole, name) for name in names}
    given, baseline = baseline, baseline or whole[0].entries[0].method
    for name, those in blocks.items():
        for block in those:
            known = [one.method for one in block.entries]
            if baseline not in known and given:
                raise unknown(f"baseline by {name} on {block.federation}:", baseline, known)
            if baseline not in known:
                everywhere = set(known).intersection(*([one.method for one in each.entries] for each in those))
                such = f", such as {argument('baseline', min(everywhere, key=known.index))}" if everywhere else ""
                raise InputError(
                    f"there is no {name} of {baseline!r} on {block.federation}; it is the baseline because it is the "
                    f"first method; give a baseline that is on every federation{such}"
                )
    if target is not None and not math.isfinite(target):
        raise InputError(f"{argument('target')}: expected a finite number, got {target:g}")
    if target is not None and metrics.score(names[0]).unit == "%" and not 0 <= target <= 1:
        raise InputError(f"{argument('target')}: expected a share of {names[0]} such as 0.9, got {target:g}")
    found = [one_metric(blocks[name], name, baseline, target if name == names[0] else None) for name in names]
    for one, those in zip(found, blocks.values(), strict=True):
        one["without"] = sorted(
            {one.method for block in whole for one in block.entries}
            - {one.method for block in those for one in block.entries}
        )
    return {"baseline": baseline, "target": target, "level": statistics.LEVEL, "metrics": found}


def one_metric(blocks: Sequence[Block], name: str, baseline: str, target: float | None) -> dict[str, Any]:
    """All that is found of one metric."""
    federations = [
        {
            "federation": block.federation,
            "seeds": block.entries[0].seeds,
            "clients": round(tested(block).sum(1).mean()),
            "drawn_anew": block.drawn_anew,
            "tuned": {one.method: one.chosen for one in block.entries if one.budget},
            "budget": block.entries[0].budget,
            "rows": rows(block, name, baseline, target),
        }
        for block in blocks
    ]
    return {"metric": name, "federations": federations, "ranks": ranks(federations, sign(name))}


def sign(name: str) -> int:
    """1 for a metric of which higher values are better, else -1."""
    return 1 if metrics.score(name).better == "higher" else -1


def rows(block: Block, name: str, baseline: str, target: float | None) -> list[dict[str, Any]]:
    """What is found of each method of a federation.

    Returns:
        For each `method` its `values` per seed, their `mean`, `std` and `interval`; `competes`, see `may_be_best`;
        `best`: whether it is not worse than the best, see `jcfl.view.statistics.best` (None: one seed cannot tell);
        `difference` from the baseline, see `differences`; `worst_decile`: the accuracy that nine honest clients in ten
        exceed; `worse_off`: the share of honest clients with a lower accuracy than by each reference, both None if no
        client is tested; `bytes`, `passes` and `flop` of a seed's run; `pareto`: whether no method has a better mean
        for as few bytes; `to_target`, see `until`.
    """
    last = {one.method: one.scores[name][:, -1] for one in block.entries}
    means = np.array([values.mean() for values in last.values()])
    competes = np.array([may_be_best(name, one.alone) for one in block.entries])
    equal = statistics.exact(means, float(np.abs(means).max()))  # without rounding errors, which would beat a method
    worth = np.where(competes, sign(name) * equal, -np.inf)
    rivals = {method: values for (method, values), competed in zip(last.items(), competes, strict=True) if competed}
    judged = bool(rivals) and len(block.entries[0].seeds) > 1
    best = statistics.best(rivals, sign(name), len(block.entries) - 1) if judged else set()
    apart = differences(block, name, baseline)
    spent = np.array([one.bytes[:, -1].mean() for one in block.entries])
    pareto = statistics.front(spent, worth) & competes
    held, others = clients(block), references(block)
    return [
        {
            "method": one.method,
            "values": last[one.method].tolist(),
            "mean": float(score),
            "std": known(float(results.deviation(last[one.method]))),
            "interval": statistics.interval(last[one.method]),
            "competes": bool(competed),
            "best": one.method in best if len(one.seeds) > 1 else None,
            "difference": apart.get(one.method),
            "worst_decile": worst_decile(block, held[one.method]),
            "worse_off": {
                other: known(worse_off(block, held[one.method], held[other])) for other in others if other != one.method
            },
            "bytes": known(cost),
            "passes": known(one.passes[:, -1].mean()),
            "flop": known(one.flop[:, -1].mean()),
            "pareto": bool(efficient) if not np.isnan(spent).any() else None,
            "to_target": None if target is None else until(one, name, target),
        }
        for one, score, cost, efficient, competed in zip(block.entries, means, spent, pareto, competes, strict=True)
    ]


def references(block: Block) -> list[str]:
    """The titles of the entries whose method is a reference, whatever its label; with an add-on it is none.

    A method that was passed in Python has no name in a configuration, so its title counts.
    """
    plain = [one for one in block.entries if not any(key.startswith("method.addons.") for key in one.options)]
    named = [(one.method if "method.object" in one.options else one.options.get("method.name"), one) for one in plain]
    return [one.method for reference in REFERENCES for name, one in named if name == reference]


def mean(values: np.ndarray) -> float:
    """The mean, NaN of no values."""
    return float(values.mean()) if values.size else math.nan


def worst_decile(block: Block, accuracies: np.ndarray) -> float | None:
    """The 10th percentile of the honest clients' accuracies [seeds, m], averaged over seeds; None if none is tested."""
    served = [own[mask] for own, mask in zip(accuracies, honest(block), strict=True)]
    return float(np.mean([np.percentile(own, 10) for own in served])) if all(map(len, served)) else None


def worse_off(block: Block, own: np.ndarray, other: np.ndarray) -> float:
    """The share of honest clients with a lower accuracy by one method than by another; NaN if none is tested.

    Accuracies are means over seeds without rounding errors, so that equal counts are no difference.

    Args:
        own, other: the accuracies by the two methods. [seeds, m]
    """
    pair = [of_clients(block, values, honest(block)) for values in (own, other)]
    return mean(statistics.gap(*pair) < 0) if pair[0].size else math.nan


def known(value: float) -> float | None:
    """A number, None where it is not known."""
    return None if math.isnan(value) else float(value)


def tests(block: Block, name: str, baseline: str) -> dict[str, tuple[statistics.Outcome | None, float]]:
    """The tests of all other methods against one over seeds, by method, each with p corrected for their number."""
    last = {one.method: one.scores[name][:, -1] for one in block.entries}
    base = last.pop(baseline)
    outcomes, corrected = statistics.paired_tests([statistics.gap(own, base) for own in last.values()], len(last))
    return {method: (one, p) for method, one, p in zip(last, outcomes, corrected, strict=True)}


def differences(block: Block, name: str, baseline: str) -> dict[str, dict[str, Any]]:
    """The paired differences of all other methods from a baseline.

    Returns:
        By method its `mean`; `seeds`: the interval over seeds; `clients`: that over clients, each client's difference
        averaged over seeds, None for a metric that is not a mean over clients; `test`, `p`, and `p_holm` corrected
        for the number of methods. None where one seed says nothing.
    """
    entries = {one.method: one for one in block.entries}
    held, base = clients(block), entries.pop(baseline)
    gaps = {method: one.scores[name][:, -1] - base.scores[name][:, -1] for method, one in entries.items()}
    weights = of_clients(block, shares(block, name, base.examples)) if name in WEIGHTS else None
    return {
        method: {
            "mean": float(gaps[method].mean()),
            "seeds": statistics.interval(gaps[method]),
            "clients": None
            if weights is None
            else statistics.interval(of_clients(block, held[method] - held[baseline]), weights),
            "test": one and one.name,
            "p": one and one.p,
            "p_holm": one and float(p),
        }
        for method, (one, p) in tests(block, name, baseline).items()
    }


def shares(block: Block, name: str, examples: np.ndarray) -> np.ndarray:
    """What the tested clients weigh in a metric of `WEIGHTS`; 1 together in each seed, as seeds count equally.

    Args:
        examples: for testing. [seeds, m]
    """
    weights = np.where(tested(block), WEIGHTS[name](examples), 0)
    return np.asarray(weights / np.maximum(weights.sum(1, keepdims=True), 1))


def tested(block: Block) -> np.ndarray:
    """The clients that metrics are taken over, and that have an accuracy by every method, of each seed. [seeds, m]

    Where all seeds share the clients, a client counts that is tested in every seed.
    """
    found = np.all([(one.examples > 0) & ~np.isnan(one.clients) for one in block.entries], 0)
    return found if block.drawn_anew else np.tile(found.all(0), (len(found), 1))


def honest(block: Block) -> np.ndarray:
    """The tested clients that do not attack: how a method serves attackers is of no interest. [seeds, m]"""
    return tested(block) & ~np.any([one.hostile for one in block.entries], 0)


def of_clients(block: Block, values: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Values [seeds, m] of some clients: means over seeds, or all of them where each seed has its own clients.

    Args:
        mask: those clients, by default the tested ones. [seeds, m]
    """
    mask = tested(block) if mask is None else mask
    return values[mask] if block.drawn_anew else values[:, mask[0]].mean(0)


def clients(block: Block) -> dict[str, np.ndarray]:
    """The accuracies of all clients, [seeds, m] by method."""
    return {one.method: one.clients.astype(float) for one in block.entries}


def until(one: Entry, name: str, target: float) -> dict[str, Any]:
    """What a method spends until a metric first reaches a target.

    Returns:
        `reached`: by how many of the seeds; `rounds`, `bytes`, `passes` and `flop`: means over these, None without any.
        The round is the first that was evaluated with the target reached.
    """
    there = sign(name) * one.scores[name] >= sign(name) * target  # [seeds, e]
    reached = np.flatnonzero(there.any(1))
    first = there.argmax(1)[reached]
    spent = {key: known(mean(getattr(one, key)[reached, first])) for key in SPENT}
    return {"reached": len(reached), "rounds": known(mean(one.rounds[first])), **spent}


def ranks(federations: Sequence[dict[str, Any]], sign: int) -> dict[str, Any] | None:
    """How the methods that were run on every federation rank; None for fewer than three of them, or one federation.

    Returns:
        `methods` and their mean ranks `mean`; Friedman's `statistic` and `p`; `critical`: Nemenyi's.
    """
    tables = [{row["method"]: sign * row["mean"] for row in one["rows"] if row["competes"]} for one in federations]
    methods = [name for name in tables[0] if all(name in table for table in tables)]
    if len(methods) < 3 or len(tables) < 2:
        return None
    found = statistics.ranks(np.array([[table[name] for name in methods] for table in tables]))
    return {"methods": methods} | found._asdict() | {"mean": found.mean.tolist()}
