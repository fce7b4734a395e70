"""Runs matched by federation and by seed; those that do not match are refused by what differs."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jcfl import metrics, results
from jcfl.errors import InputError, as_argument
from jcfl.nested import flat
from jcfl.results import History
from jcfl.view.mistakes import unknown_metric
from jcfl.view.plotting.style import everybody_alone
from jcfl.view.report.numbers import FEDERATION, NEUTRAL, piece_name, spent, state

EXAMPLES, SEED = "fingerprint", "scenario.seed"
"""The keys of the fingerprint of what the clients hold, beside those sections, and of the federation's seed."""

FREE = (*NEUTRAL, "method", "seed", "seeds", "seeds_in_one", "engine", "devices", "checkpoint_every", "track")
"""The keys that may differ between the methods of one federation: they change no score but by the method."""


class Entry(NamedTuple):
    """One method on one federation, over its seeds."""

    method: str
    where: str  # its folder
    title: str  # of the federation
    options: dict[str, Any]  # of the method, flat
    decided: list[str]  # those of them that were `auto`
    federation: dict[str, Any]  # flat, with a fingerprint of what the clients hold
    settings: dict[str, Any]  # all others, flat; FREE ones are left out
    chosen: dict[str, Any]  # the options that a search chose, flat; empty without one
    budget: str  # that search's, in words
    rounds: np.ndarray  # [e], those evaluated
    seeds: list[int]
    scores: dict[str, np.ndarray]  # [seeds, e] each
    clients: np.ndarray  # [seeds, m], the accuracy of each client at the end
    examples: np.ndarray  # [seeds, m], for testing; 0 of a client that is held out, or not there in the last round
    hostile: np.ndarray  # [seeds, m] bool, the attackers
    bytes: np.ndarray  # [seeds, e], exchanged until each evaluation; NaN where it is not known
    passes: np.ndarray  # [seeds, e], computed until then, in client-rounds of FedAvg; NaN where it is not known
    flop: np.ndarray  # [seeds, e], the same in floating-point operations
    alone: bool = False  # whether each client has a cluster of its own


class Block(NamedTuple):
    """The methods of one federation: with the same seeds, settings, clients and evaluations."""

    federation: str
    entries: list[Entry]
    drawn_anew: bool = False  # whether every seed has a federation of its own


def blocks(runs: Sequence[History]) -> list[Block]:
    """Runs by their federation, methods and federations named so that they can be told apart.

    Args:
        runs: read from folders. Those of one method on one federation are put together, if their seeds differ. Runs of
            one seed whose federations were drawn by that seed, and differ in nothing else, are put together too.

    Raises:
        InputError: a run is not complete, or runs do not match; the line says what differs.
    """
    entries = named([entry(run) for run in runs])
    together, anew = by_federation(entries)
    for found in together.values():
        refuse_mismatch(found)
        alone = {one.method for one in found}
        if len(alone) < 2:
            others = [one for one in entries if one.federation != found[0].federation]
            near = min((differences(found[0].federation, one, "federation") for one in others), key=len, default="")
            raise InputError(
                f"{found[0].where}: only {found[0].method} was run on this federation, expected two methods or more"
                + (f"; the nearest other one differs: {near}" if near else "")
            )
    first = [found[0] for found in together.values()]
    drawn = [(EXAMPLES, SEED) if key in anew else (EXAMPLES,) for key in together]
    settings = [without(one.federation, keys) for one, keys in zip(first, drawn, strict=True)]
    titles = told_apart([one.title for one in first], settings)
    titles = told_apart(titles, [{EXAMPLES: one.federation[EXAMPLES]} for one in first])
    return [Block(title, joined(together[key]), key in anew) for title, key in zip(titles, together, strict=True)]


def by_federation(entries: Sequence[Entry]) -> tuple[dict[str, list[Entry]], set[str]]:
    """The entries by a key of their federation, and those keys under which every seed has a federation of its own."""
    follows = [one.seeds == [one.federation.get(SEED)] for one in entries]  # one seed, which drew the federation too
    drawn: dict[str, set[int]] = {}
    for one, own in zip(entries, follows, strict=True):
        if own:
            drawn.setdefault(place(one, EXAMPLES, SEED), set()).update(one.seeds)
    anew = {key for key, seeds in drawn.items() if len(seeds) > 1}
    found: dict[str, list[Entry]] = {}
    for one, own in zip(entries, follows, strict=True):
        key = place(one, EXAMPLES, SEED)
        found.setdefault(key if own and key in anew else place(one), []).append(one)
    return found, anew


def without(table: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """A table without some keys."""
    return {key: value for key, value in table.items() if key not in keys}


def entry(run: History) -> Entry:
    """One run's entry.

    Raises:
        InputError: it failed, or is not complete.
    """
    if state(run) is not None:
        why = run.summary.get("failed", f"go on with `jcfl run --resume {as_argument(run.folder)}`")
        raise InputError(f"{run.folder}: the run is not complete and cannot be compared; {why}")
    held, config = results.federation(run, 0), results.settings(run)
    sha = hashlib.sha256()
    for name in ("train", "test", "groups", "held_out"):
        sha.update(held[name].astype(np.int64).tobytes())
    sha.update(run.summary.get("federation", "").encode())  # of the examples, which the arrays only count
    # After a stop condition has ended training, metrics stay those of the last round trained, which differs by seed.
    tested = np.stack([examples_of_tested(held, int(round)) for round in results.trained_rounds(run)[:, -1]])
    search = config.get("chosen_by") or {}
    return Entry(
        str(run.summary.get("method", run.name)),
        str(results.home(run)),
        federation_name(config),
        flat({"method": config.get("method")}),
        [f"method.{name}" for name in (run.summary.get("decided") or {}).get("values", {})],
        flat({key: config.get(key) for key in FEDERATION}) | {EXAMPLES: sha.hexdigest()[:8]},
        flat({key: value for key, value in config.items() if key not in (*FREE, *FEDERATION)}),
        search.get("values", {}),
        effort(search) if search else "",
        run.rounds,
        run.seeds,
        run.scores,
        run.accuracy_clients[:, -1],
        tested,
        np.tile(held.get("hostile", np.zeros(tested.shape[1], bool)), (len(run.seeds), 1)),
        *(spent(run, cost) for cost in ("communication_bytes", "computation", "flop")),
        alone=everybody_alone(run),
    )


def examples_of_tested(held: Mapping[str, np.ndarray], round: int) -> np.ndarray:
    """Test examples of the clients that metrics are taken over after so many rounds; 0 of the others. [m] int"""
    return np.where(results.present(held, round), results.after_drift(held, round)["test"].sum(1), 0)


def federation_name(config: Mapping[str, Any]) -> str:
    """The name of a run's federation: its own if it was passed in Python, else its dataset and its scenario.

    >>> federation_name({"data": {"name": "given"}, "scenario": {"name": "given", "federation": "hospitals"}})
    'hospitals'
    """
    scenario = config.get("scenario")
    own = scenario.get("federation") if isinstance(scenario, Mapping) else None
    return str(own or ", ".join(piece_name(config.get(key)) for key in FEDERATION[:2]))


def effort(search: Mapping[str, Any]) -> str:
    """How much a search tried, in words.

    >>> effort({"trials": 9, "sampler": "random", "halving": 3, "by": "validation_loss"})
    '9 random trials by validation_loss, halving 3'
    """
    found = "{trials} {sampler} trials by {by}".format(**search)
    return found if search.get("halving", 1) == 1 else f"{found}, halving {search['halving']}"


def named(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, methods that come on one federation with several options called by these too."""
    found = {(place(one), one.method, str(one.options)) for one in entries}
    several = {name for (_, name), number in Counter(key[:2] for key in found).items() if number > 1}
    names = told_apart([one.method for one in entries], [one.options for one in entries])
    return [
        one._replace(method=name) if one.method in several else one for one, name in zip(entries, names, strict=True)
    ]


def place(one: Entry, *left_out: str) -> str:
    """An entry's federation as a key, without the parts that are left out."""
    return str(sorted(without(one.federation, left_out).items()))


def told_apart(names: Sequence[str], options: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names, followed by the options that differ where a name comes several times.

    >>> told_apart(["ifca", "ifca", "local"], [{"method.clusters": 2}, {"method.clusters": 4}, {}])
    ['ifca (clusters=2)', 'ifca (clusters=4)', 'local']
    """
    found = []
    for name, given in zip(names, options, strict=True):
        same = [table for other, table in zip(names, options, strict=True) if other == name]
        keys = [key for key in dict.fromkeys(itertools.chain(*same)) if len({str(one.get(key)) for one in same}) > 1]
        more = ", ".join(f"{key.partition('.')[2] or key}={given[key]}" for key in keys if key in given)
        found.append(f"{name} ({more})" if more else name)
    return found


def differences(first: Mapping[str, Any], other: Entry, what: str) -> str:
    """What another entry has other values for, in words."""
    second = getattr(other, what)
    keys = [key for key in dict.fromkeys((*first, *second)) if first.get(key) != second.get(key)]
    return "; ".join(f"{key} is {first.get(key)} here, {second.get(key)} in {other.where}" for key in keys)


def refuse_mismatch(entries: Sequence[Entry]) -> None:
    """Refuse methods of one federation that were not run alike."""
    for one in entries:
        refuse_changed(one)
    first, *others = entries
    for one in others:
        if first.budget != one.budget:
            tried = " and ".join(f"{each.method} with {each.budget or 'no search'}" for each in (first, one))
            raise InputError(
                f"{first.where} and {one.where} do not match: they were tuned by unequal effort, {tried}; expected the "
                "same search for every method"
            )
        tuned = tuple(first.chosen.keys() & one.chosen.keys())  # each method has the values that suit it
        other = one._replace(settings=without(one.settings, tuned))
        found = differences(without(first.settings, tuned), other, "settings")
        if found:
            raise InputError(f"{first.where} and {one.where} do not match: {found}; expected only the method to differ")
    methods = by_method(entries)
    seeds = {name: sorted(itertools.chain(*(one.seeds for one in several))) for name, several in methods.items()}
    for name, several in methods.items():
        found = next(filter(None, (differences(several[0].chosen, one, "chosen") for one in several)), "")
        if found:
            raise InputError(f"{several[0].where} has other values than the same method elsewhere: {found}")
        decided = list(itertools.chain(*(one.decided for one in several)))  # for the clients of each federation
        fixed = [one._replace(options=without(one.options, decided)) for one in several]
        found = next(filter(None, (differences(fixed[0].options, one, "options") for one in fixed)), "")
        if found:
            raise InputError(f"{several[0].where} has other options than the same method elsewhere: {found}")
        twice = [seed for seed in seeds[name] if seeds[name].count(seed) > 1]
        if twice:
            places = " and ".join(one.where for one in several if twice[0] in one.seeds)
            raise InputError(f"{name} has the seed {twice[0]} more than once, in {places}; expected each seed once")
        if seeds[name] != seeds[entries[0].method]:
            raise InputError(
                f"{entries[0].where} and {several[0].where} do not match: {entries[0].method} has the seeds "
                f"{listed(seeds[entries[0].method])}, {name} the seeds {listed(seeds[name])}; expected the same ones"
            )
    held: dict[int, Entry] = {}
    for one in entries:
        for seed in one.seeds:
            other = held.setdefault(seed, one)
            if other.federation[EXAMPLES] != one.federation[EXAMPLES]:
                raise InputError(
                    f"{other.where} and {one.where} do not match: their clients hold other examples, though both were "
                    f"drawn by the seed {seed}; expected the same data files and version of jcfl"
                )


def refuse_changed(one: Entry) -> None:
    """Refuse an option whose value is not the one that a search chose, though the run says that it was tuned."""
    held = one.settings | one.options
    for key, value in without(one.chosen, one.decided).items():
        if held.get(key, value) != value:
            raise InputError(
                f"{one.where}: the search chose {key} = {value}, and the run has {held[key]}; expected the tuned "
                "configuration, or --set chosen_by=null"
            )


def by_method(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries by method, in the order in which methods come first."""
    found: dict[str, list[Entry]] = {}
    for one in entries:
        found.setdefault(one.method, []).append(one)
    return found


def listed(seeds: Sequence[int]) -> str:
    """Seeds as text."""
    return ", ".join(map(str, seeds))


def joined(entries: Sequence[Entry]) -> list[Entry]:
    """One entry for each method, its seeds in order."""
    found = []
    for several in by_method(entries).values():
        order = np.argsort(list(itertools.chain(*(one.seeds for one in several))))
        stacked = {
            key: np.concatenate([getattr(one, key) for one in several])[order]
            for key in ("seeds", "clients", "examples", "hostile", "bytes", "passes", "flop")
        }
        scores = {
            key: np.concatenate([one.scores[key] for one in several])[order]
            for key in several[0].scores
            if all(key in one.scores for one in several)
        }
        found.append(several[0]._replace(scores=scores, **stacked | {"seeds": stacked["seeds"].tolist()}))
    return found


def having(blocks: Sequence[Block], metric: str) -> list[Block]:
    """The blocks with the methods that have a metric: one of clusters has no value for a method without clusters.

    Raises:
        InputError: it is not known which value is better; a method lacks a value with some seeds only, or a metric of
            predictions; or fewer than two methods of a federation have the metric.
    """
    every = [one for block in blocks for one in block.entries]
    measured = {name for one in every for name in one.scores}
    known = {name for name in measured if metrics.score(name).better}
    if metric in measured - known:
        raise InputError(
            f"{metric} has no better values that methods could be compared by; "
            f"expected a metric of which higher or lower values are better: {', '.join(sorted(known))}"
        )
    if metric not in known:
        raise unknown_metric("metric", metric, known)
    found = []
    for block in blocks:
        has = [metric in one.scores and not np.isnan(one.scores[metric][:, -1]).any() for one in block.entries]
        for one, there in zip(block.entries, has, strict=True):
            never = metric not in one.scores or np.isnan(one.scores[metric]).all()
            if not there and (not never or metrics.score(metric).is_of_predictions or sum(has) < 2):
                raise InputError(
                    f"{one.where}: {one.method} has no {metric} after its last round; compare by another metric"
                )
        found.append(block._replace(entries=[one for one, there in zip(block.entries, has, strict=True) if there]))
    return found
