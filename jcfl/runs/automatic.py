"""What `auto` becomes: numbers of clusters and thresholds, decided before training from some clients' training data.

Neither a true group nor an example to test or to validate on is looked at; see `jcfl.core.pilot`.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import registry
from jcfl.core import pilot
from jcfl.core.method import KINDS, QUESTIONS
from jcfl.core.method import Method as Value
from jcfl.core.streams import Stream, stream
from jcfl.data.federation import assembled
from jcfl.data.partition import packed
from jcfl.errors import InputError, Notice
from jcfl.runs.config import Config
from jcfl.runs.sections import Method
from jcfl.runs.undecided import left_open, stored_values, value_at, with_values
from jcfl.runs.xla import cheap_options
from jcfl.types import Federation, Task

CLIENTS, DIVISIONS, CHUNK = 200, 2, 16
"""How many clients are looked at, how often their data are divided, and how many clients are worked on at a time."""

DIGITS = 3
"""Decimals of what is decided, so that rounding errors of another machine do not change it."""


class Rule(NamedTuple):
    """How an option is decided."""

    stand_in: Any  # in its place while the method is looked at
    decide: Callable[[pilot.Evidence, bool], Mapping[str | None, Any]]
    """From evidence, and whether cosines are corrected for noise, to its value (under None) and other options."""
    beside: tuple[str, ...] = ()  # the other options
    needs: tuple[tuple[str, Any], ...] = ()  # options beside it without whose values its value means something else


RULES = {
    "tau": Rule(0.5, lambda found, corrected: {None: round(found.tau if corrected else found.plain, DIGITS)}),
    "clusters": Rule(2, lambda found, corrected: {None: found.clusters}),
    "cut": Rule(1.0, lambda found, corrected: {None: None, "clusters": found.clusters}, ("clusters",)),
    "settled": Rule(0.4, lambda found, corrected: {None: round(found.settled, DIGITS)}, needs=(("relative", True),)),
    "apart": Rule(0.6, lambda found, corrected: {None: round(found.apart, DIGITS)}, needs=(("relative", True),)),
}
"""The rules by the names that options give. A `cut` is a distance at which merging stops; it stops at a number."""


def is_open(config: Config) -> bool:
    """Whether a configuration has an option that is `auto`."""
    return any(next(left_open(method, KINDS), None) is not None for method in config.methods.values())


def as_stored(config: Config, stored: Config) -> Config:
    """The configuration with the values of a stored one in place of every `auto`; a run that goes on keeps them."""
    if not is_open(config) or len(config.methods) != len(stored.methods):
        return config
    pairs = zip((config.method, *config.compare), (stored.method, *stored.compare), strict=True)
    beside = {name: rule.beside for name, rule in RULES.items()}
    main, *others = (stored_values(method, own, KINDS, beside) for method, own in pairs)
    return config.model_copy(update={"method": main, "compare": tuple(others)})


def with_stand_ins(config: Config) -> Config:
    """The configuration with some value in place of every `auto`, so that all else can be checked."""
    main, *others = (stood_in(method) for method in config.methods.values())
    return config.model_copy(update={"method": main, "compare": tuple(others)})


def stood_in(method: Method) -> Method:
    """A method with some value in place of every `auto`.

    Raises:
        InputError: another option gives what is chosen another meaning.
    """
    for path, rule in left_open(method, KINDS):
        for name, expected in RULES[rule].needs:
            there = value_at(method.options, (*path[:-1], name))
            if there not in (None, expected):
                raise InputError(f"{'.'.join(path)}: auto needs {name}={expected}, got {there}; give a value, not auto")
    return with_values(method, {path: RULES[rule].stand_in for path, rule in left_open(method, KINDS)})


def decided(config: Config, federation: Federation, task: Task) -> Config:
    """The configuration with a value in place of every `auto`, and with what each was decided by as `decided`."""
    if not is_open(config):
        return config
    said = measured(config.seed, federation, task)
    seen, about = record(said), f"{len(set(said.labels.tolist()))} clusters among {len(said.labels)} clients"
    found, evidence = {}, {}
    for title, method in config.methods.items():
        paths = list(left_open(method, KINDS))
        found[title] = method
        if paths:
            found[title], values = with_decided(method, paths, said)
            evidence[title] = {"values": values, **seen}
            named = ", ".join(f"{name} = {value}" for name, value in values.items())
            warnings.warn(f"{title}: auto is {named} ({about})", Notice, stacklevel=3)
    main, *others = found.values()
    return config.model_copy(update={"method": main, "compare": tuple(others), "decided": evidence})


def measured(seed: int, federation: Federation, task: Task) -> pilot.Evidence:
    """What some clients that train from the first round on say of their number of clusters.

    Raises:
        InputError: there are fewer than two such clients with two training examples each.
    """
    train, held_out, arrive = jax.tree.map(np.asarray, (federation.train, federation.held_out, federation.arrive))
    eligible = np.flatnonzero(~held_out & (train.size >= 2) & (arrive == 0))
    if len(eligible) < 2:
        raise InputError(
            f"auto needs two clients that train from round 0 on, with two examples each, got {len(eligible)}"
        )
    rng = np.random.default_rng(seed)
    who = np.sort(rng.choice(eligible, min(CLIENTS, len(eligible)), replace=False))
    pool = np.concatenate([train.owned(client) for client in who])
    split = packed(np.arange(len(pool)), train.size[who])
    x, y = np.asarray(federation.x[pool]), np.asarray(federation.y[pool])
    few = assembled(x, y, np.zeros(len(who)), split, split, federation.classes, federation.name)
    few = few.replace(mean=federation.mean, std=federation.std)
    key = jax.random.key(seed)

    def products(key, few, division):  # all of it in one program, which compiles faster than its parts one by one
        anchor = task.init(stream(key, Stream.MODEL))
        own = jax.random.split(stream(key, Stream.PILOT), DIVISIONS)[division]
        return pilot.gram_of_parts(task, anchor, few, jnp.arange(who.size), own, CHUNK)

    compiled = jax.jit(products).lower(key, few, np.int32(0)).compile(cheap_options())
    found = [compiled(key, few, np.int32(division)) for division in range(DIVISIONS)]
    return pilot.evidence(*(np.stack(jax.device_get(parts)) for parts in zip(*found, strict=True)))


def is_corrected(method: Method) -> bool:
    """Whether a method compares cosines that are corrected for noise."""
    options = stood_in(method).options
    answer = options.get("compare")
    if answer:
        return answer["name"] == "noise_corrected"
    own = {key: value for key, value in options.items() if key not in QUESTIONS}
    found = registry.made("method", method.name, **own)
    return isinstance(found, Value) and getattr(found.compare, "corrected", False)


def with_decided(
    method: Method, paths: list[tuple[tuple[str, ...], str]], found: pilot.Evidence
) -> tuple[Method, dict[str, Any]]:
    """A method with values in place of `auto`, and these values by dotted name."""
    values: dict[tuple[str, ...], Any] = {}
    corrected = is_corrected(method)
    for path, rule in paths:
        for name, value in RULES[rule].decide(found, corrected).items():
            values[path if name is None else (*path[:-1], name)] = value
    said = {".".join(path): value for path, value in values.items() if value is not None}
    return with_values(method, values), said


def record(found: pilot.Evidence) -> dict[str, Any]:
    """What is written of a decision: the error and the number of clusters by the threshold, and where that was set."""
    return {
        "tau": round(found.tau, DIGITS),
        "sizes": sorted(np.bincount(found.labels)[np.unique(found.labels)].tolist(), reverse=True),
        "thresholds": found.grid.tolist(),
        "error": found.error.round(4).tolist(),
        "clusters": found.counts.tolist(),
    }
