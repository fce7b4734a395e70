"""What a method's clients send, how often noise covers it, and what no noise here can cover."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax

from jcfl.core import clients
from jcfl.core.context import Context
from jcfl.core.engine import SERVER_SIDE
from jcfl.core.method import Method
from jcfl.core.soft import SoftGroup
from jcfl.errors import InputError

REMEMBERED = ("optimizer", "private", "membership")
"""States that clients keep and that change what they send in later rounds."""


class Release(NamedTuple):
    """Something that clients send under noise.

    One client, whatever it holds, changes it by at most two clips: its own is taken away, and another one is put there.
    """

    what: str
    noise: float  # standard deviation of the noise / clip; of several sums, that of one sum that costs the same privacy
    first: int = 0  # the round in which it is sent first
    last: int | None = None  # the round after the last; None: until the run ends
    once: bool = False  # whether a client sends it once in all
    sampled: bool = False  # whether nobody learns who is in the cohort that sends it

    def text(self) -> str:
        """What is sent, how often and from whom, in words."""
        often = "once" if self.once else "each round"
        return f"{self.what}, {often}" + ", the cohort is secret" * self.sampled

    def times(self, rounds: range) -> int:
        """In how many of some consecutive rounds it is sent."""
        end = rounds.stop if self.last is None else min(self.last, rounds.stop)
        return max(0, end - max(self.first, rounds.start))


def with_privacy(method: Method, context: Context) -> Method:
    """The method as it averages under the run's privacy: clients count equally, because sizes have no bound."""
    if not context.privacy.is_on:
        return method
    return method.with_aggregate(privacy=context.privacy, weights="equally")


def describes(method: Method) -> bool:
    """Whether the server looks at single clients to group them."""
    return method.describe.source in ("data", "upload")


def keeps_models(method: Method, context: Context) -> bool:
    """Whether clusters are means of models that the server keeps of single clients."""
    return "model" in method.group.keeps(method, context)


def sends_updates(method: Method, context: Context) -> bool:
    """Whether the server sums updates of cluster models."""
    return method.train.active and not method.group.alone and not keeps_models(method, context)


def releases(method: Method, context: Context) -> list[Release]:
    """What the clients of a method send under noise, the runs that vote beside it included.

    A cohort is a secret unless a client that takes part is described in the same round, or keeps a state from the
    rounds that it took part in: the sample then hides nothing. Where clients are not always available, the
    sample is drawn from fewer clients than there are, and hides less than it seems to.
    """
    found, begin = [], 0
    for phase in method.before:
        end, secret = begin + phase.rounds, is_secret(method, context)
        what, noise = "updates before the method's own rounds", context.privacy.noise
        found.append(Release(what, noise, begin, end, sampled=secret))
        begin = end
    found += own(method, context, begin)
    vote = method.answer.vote
    if vote is not None:
        found += vote.copies * (found if vote.method is None else releases(vote.method, context))
    return found


def own(method: Method, context: Context, begin: int) -> Iterator[Release]:
    """What clients send in a method's own rounds."""
    privacy, sampled = context.privacy, is_secret(method, context)
    if describes(method):
        once = not method.describe.is_repeated(method.when)
        yield Release(f"descriptions ({method.describe.name})", privacy.description_noise, begin, once=once)
    models = ["cluster models"] * sends_updates(method, context)
    models += ["the global model"] * (method.train.active and method.trains_shared)
    if models:  # one cohort sends both, so they are one release: of k Gaussian ones with the noise over the root of k
        noise = privacy.noise / math.sqrt(len(models))
        yield Release(f"updates of {' and of '.join(models)}", noise, begin, sampled=sampled)


def is_secret(method: Method, context: Context) -> bool:
    """Whether who takes part in a round is a secret that makes what is sent more private."""
    shown = describes(method) and (method.when.on_arrival or method.describe.is_repeated(method.when))
    remembered = set(REMEMBERED) & set(clients.kept_states(method, context))
    remembered |= set(clients.kept_by_group(method, context)) - set(SERVER_SIDE)  # clients get these back
    return not (shown or remembered) and context.faults.reliability.is_always_available


def refuse_uncovered(method: Method, context: Context) -> None:
    """Refuse a run under privacy of a method that sends what is not covered.

    Raises:
        InputError: the line says what is sent, and what to do.
    """
    reason = next(uncovered(method, context), None) if context.privacy.is_on else None
    if reason is not None:
        raise InputError(f"privacy: {method.name} {reason}")


def uncovered(method: Method, context: Context) -> Iterator[str]:
    """What a method sends or does that is not covered, each with what to do about it."""
    train, privacy, aggregate = method.train, context.privacy, method.aggregate
    updates = sends_updates(method, context) or (train.active and method.trains_shared)
    if not (updates or describes(method)):
        yield "sends nothing, its models stay with the clients; leave privacy out"
    if train.chained:
        yield "hands models from one client to the next; train in parallel"
    if context.faults.attack.watches:
        yield "meets attackers who send what they see of others; take another attack"
    if train.control:
        yield "sends control variates beside updates; take fedavg or fedprox"
    if train.correction:
        yield "sends gradients beside updates; take fedprox"
    reported = clients.kept_by_group(method, context) if isinstance(method.group, SoftGroup) else ()
    if reported:
        yield f"reports {', '.join(reported)} beside updates; take fedem"
    for rule in aggregate.other_rules:
        yield f"aggregates by {rule}, which one client can move by more than its clip; take the mean"
    if method.aggregate.exclude:
        yield "leaves clients out because of what others sent; leave the add-on 'exclude' out"
    for term in train.terms:
        if term.sends == "all" or term.to == "mean":
            yield f"tells clients the sizes of clusters for its {term}; leave the add-on out"
    if any(phase.train == "alone" for phase in method.before):
        yield "groups clients by the models of a warm-up; set the add-on's warmup to 0"
    more = sorted(set(jax.eval_shape(context.task.init, jax.random.key(0))) - {"params"})
    if more and updates:
        yield f"sends {', '.join(more)} of the model {context.task.name!r} without noise; take a model that has none"
    if updates and privacy.clip is None:
        yield "sends updates; set privacy.clip and privacy.noise"
    if describes(method):
        yield from undescribed(method, context)


def undescribed(method: Method, context: Context) -> Iterator[str]:
    """What clients tell of themselves beside a description that takes noise, each with what to do about it."""
    describe, when, population = method.describe, method.when, context.population
    if not describe.takes_noise:
        yield f"sends descriptions ({describe.name}) that are none with noise on them; take another description"
    if method.compare.corrected:
        yield "sends how far each description can be trusted; set method.compare=cosine (of stocfl, similarity=plain)"
    if getattr(when, "start", "") == "members":
        yield "begins clusters at the means of trained models; set 'method.when={name: once}'"
    if getattr(when, "renew", None) is not None:
        yield "describes clients again after renew rounds with the noise of the first time; leave renew out"
    if describe.source == "data" and method.answer.unsampled == "placed" and population.drifts:
        yield (
            "places clients at each evaluation, also those whose data have drifted, with the noise of the first time; "
            "leave unsampled or scenario.drift out"
        )
    missing = population.participation < 1 or not context.faults.reliability.is_perfect
    if not when.on_arrival and (population.changes or (describe.is_repeated(when) and missing)):
        yield (
            "lets clients that come late choose a cluster by their losses; set participation=1, and take no arrivals "
            "and no unreliable clients"
        )
    if context.privacy.description_clip is None:
        yield f"sends descriptions ({describe.name}); set privacy.description_clip and privacy.description_noise"
