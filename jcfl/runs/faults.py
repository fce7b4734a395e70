"""What may go wrong in a run, from its configuration: attackers in the federation, and unreliable clients."""

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jcfl import registry
from jcfl.core import returned
from jcfl.core.attacks import Attack
from jcfl.core.faults import Faults
from jcfl.core.method import KINDS, Aggregate, Answer, Method, Train
from jcfl.core.reliability import Reliability, never
from jcfl.data import hostile
from jcfl.errors import InputError
from jcfl.methods.addons import extended
from jcfl.runs import schedules
from jcfl.runs.config import FILLED_IN, Config
from jcfl.runs.sections import Piece
from jcfl.runs.unused import unused
from jcfl.types import Federation

ATTENDANCE = ("held_out", "arrive", "depart")
"""What a federation says of which clients take part in a round."""


READ = {"train": Train, "aggregate": Aggregate, "answer": Answer}
"""The answers of which jcfl reads only the fields, by question."""


def faults_of(config: Config) -> Faults:
    """What may go wrong in a run, as its configuration says."""
    attack, reliability = (
        registry.made(section, piece.name, **piece.options)
        for section, piece in (("attack", config.attack), ("reliability", config.reliability))
    )
    attack = returned.piece(attack, Attack, f"attack {config.attack.name!r}")
    reliability = returned.piece(reliability, Reliability, f"reliability {config.reliability.name!r}")
    return Faults(attack, reliability, config.on_divergence)


def without_effect(config: Config, faults: Faults, methods: Mapping[str, Method | None]) -> Iterator[str]:
    """A line for each option of methods, or about attackers, slow or absent clients, and later rounds, without effect.

    So for an attack and a stop condition that are named and do nothing, and for functions that jcfl does not call. Such
    options are allowed: a comparison may have a baseline, and a sweep a point, in which they change nothing, and a run
    can go on to more rounds.
    """
    attack, reliability = faults.attack, faults.reliability
    if config.attack.name != "none" and not attack.share:
        yield f"attack {config.attack.name} has no effect, because its share is 0, so that nobody attacks"
    if attack.share and not (attack.forges or attack.flips):
        yield (
            f"attack {config.attack.name} has no effect, because {type(attack).__name__} has no function forged, and "
            "flips no labels"
        )
    if type(reliability) is not Reliability and reliability.is_perfect:
        yield (
            f"reliability {config.reliability.name} has no effect, because {type(reliability).__name__} has no "
            "function available, arrived, shares or slow, and loses no uploads"
        )
    if config.stop.name != "none" and not registry.made("stop", config.stop.name, **config.stop.options).rounds:
        yield f"stop {config.stop.name} has no effect, because its rounds are 0: training ends after the last round"
    for title, method in methods.items():
        if attack.forges and method is not None and method.group.alone and not method.trains_shared:
            yield f"{title}: every client is alone and sends no model, so the attack {attack.name} has no effect"
        yield from uncalled(title, method)
        yield from idle_addons(title, config.methods[title].addons, method)
    for method in config.methods.values():
        yield from unused(method, KINDS)
    if not reliability.overrides("arrived", "slow"):
        yield from without_uploads(reliability)
    known = registry.schema(registry.find("reliability", config.reliability.name))
    given = {key for key, value in config.reliability.options.items() if value != known[key].get("default")}
    are_slow = not never(reliability.stragglers) or reliability.overrides("arrived", "shares", "slow")
    if "late" in given and reliability.late == "lost" and not are_slow:
        yield "reliability.late has no effect, because reliability.stragglers is 0, so that no client is slow"
    if "window" in given and reliability.is_always_available:
        yield "reliability.window has no effect, because it is a share of reliability.period, which is 0"
    yield from unreached(config.model_dump(exclude={*FILLED_IN}), config.rounds)


def without_uploads(reliability: Reliability) -> Iterator[str]:
    """A line for each probability by which every upload is lost."""
    lost = "so that every upload is lost and no model changes"
    if is_certain(reliability.dropout):
        yield f"reliability.dropout is 1, {lost}"
    if is_certain(reliability.stragglers) and reliability.late == "lost":
        yield f"reliability.stragglers is 1 and reliability.late is lost, {lost}"


def is_certain(probability: Any) -> bool:
    """Whether a probability is the number 1, and no schedule by rounds."""
    return isinstance(probability, int | float) and probability == 1


def idle_addons(title: str, given: Sequence[Piece], method: Method | None) -> Iterator[str]:
    """A line for add-ons that change only how models are trained or averaged, where a method trains none.

    Nothing is said where clients train nevertheless: before the method's own rounds, before they predict, or to be
    described.

    Args:
        given: the add-ons of the method, as configured.
        method: with all its add-ons.
    """
    if method is None or method.train.active:
        return
    if method.before or method.answer.tune or method.describe.source == "upload":
        return
    without = replace(method, train=Train(active=False), aggregate=Aggregate(), addons=())
    idle = [addon.name for addon in given if trains_only(addon, without)]
    if idle:
        said = f"add-on{'s' * (len(idle) > 1)} {', '.join(idle)} {'have' if len(idle) > 1 else 'has'} no effect"
        yield f"{title}: nothing is trained, so the {said}"


def trains_only(addon: Piece, method: Method) -> bool:
    """Whether an add-on changes nothing of a method but how models are trained and averaged."""
    try:
        found = extended(method, [dict(schedules.at_most(addon))])
    except InputError:  # it needs another part of the method's training
        return False
    return replace(found, train=method.train, aggregate=method.aggregate, addons=()) == method


def uncalled(title: str, method: Method | None) -> Iterator[str]:
    """A line for each answer of a user's own class that has functions, because jcfl reads only its fields."""
    for question, base in READ.items() if method is not None else ():
        kind = type(getattr(method, question))
        found = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
        own = sorted(found - {*dir(base)})
        if own:
            said = f"{title}: jcfl does not call {', '.join(own)} of {kind.__name__}, because it reads only the fields"
            yield f"{said} of {'an' if base.__name__[0] == 'A' else 'a'} {base.__name__}"


def unreached(options: Mapping[Any, Any], rounds: int, above: str = "") -> Iterator[str]:
    """A line for each option that is given by round and has a round that the run does not reach.

    Args:
        rounds: how many rounds the run has.
        above: what stands before the options' names, such as "scenario.".
    """
    for key, value in options.items():
        if not isinstance(value, Mapping):
            continue
        late = max((moment for moment in value if isinstance(moment, int)), default=-1)
        if late >= rounds:
            yield f"{above}{key} has no effect in round {late}, because the run has {rounds} rounds, counted from 0"
        yield from unreached(value, rounds, f"{above}{key}.")


def without_clients(federation: Federation, rounds: int) -> Iterator[str]:
    """A line for each time in which no client takes part: all have left or have not arrived, if they ever train."""
    federation = federation.replace(**{name: np.asarray(getattr(federation, name)) for name in ATTENDANCE})
    moments = np.unique(np.concatenate([[0, rounds], federation.arrive, federation.depart]))
    moments = moments[moments <= rounds]  # nobody arrives or leaves between two of them
    for first, later in itertools.pairwise(moments.tolist()):
        if not federation.available(first).any():
            when = f"round {first}" if later == first + 1 else f"rounds {first} to {later - 1}"
            last = ", so that metrics of the last rounds are missing" if later == rounds else ""
            yield f"no client takes part in {when}: those that train have not arrived, or have left{last}"


def attacked(federation: Federation, attack: Attack, config: Config) -> Federation:
    """The federation with its attackers, drawn by the seed of the federation, and with their labels."""
    if not attack.share:
        return federation
    federation = hostile.with_attackers(federation, attack.share, config.scenario.options.get("seed", config.seed))
    return hostile.with_flipped_labels(federation) if attack.flips else federation
