"""The ε of client-level differential privacy after each round, by the accountants of Google's dp-accounting.

Neighbouring federations differ in all data of one client, which replaces other data (replace one). What a client sends
then changes by at most two clips, so the noise in units of that change is half of the noise in units of the clip.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jcfl.core.context import Context
from jcfl.core.method import Method
from jcfl.core.releases import Release, releases
from jcfl.errors import InputError
from jcfl.types import Federation

ORDERS = (1.1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 33), 40, 48, 64, 96, 128)
"""The orders of Rényi divergences that are tried; any of them gives an ε that holds."""

REPLACED = 2.0
"""How many clips a client can change what is released by, when all of its data is replaced."""


class Cohort(NamedTuple):
    """How many clients are asked, out of how many: each as likely as any other, and none twice."""

    asked: int
    available: int


def epsilons(method: Method, context: Context, federation: Federation, rounds: Iterable[int]) -> dict[int, float]:
    """ε after each of the `rounds`; nothing without privacy, and nothing where some release has no noise.

    Raises:
        InputError: dp-accounting is not installed.
    """
    sent = releases(method, context) if context.privacy.is_on else []
    refuse_without_accountant(bool(sent))
    if not all(one.noise for one in sent) or not sent:
        return {}
    cohorts = cohorts_of(context, federation, max(rounds := list(rounds), default=0))
    return {done: epsilon(counts(sent, cohorts, done), context.privacy.delta) for done in rounds}


def foreseen(methods: Mapping[str, Method], context: Context, federation: Federation, rounds: int) -> dict[str, Any]:
    """What a run's methods will send under noise, and the ε that they end with, before anything is trained.

    Returns:
        by title, `epsilon` (None: infinite), `delta` and `sends`; nothing without privacy.
    """
    if not context.privacy.is_on:
        return {}
    return {
        title: {
            "epsilon": epsilons(method, context, federation, [rounds]).get(rounds),
            "delta": context.privacy.delta,
            "sends": [one.text() for one in releases(method, context)],
        }
        for title, method in methods.items()
    }


def refuse_without_accountant(needed: bool) -> None:
    """Refuse privacy where dp-accounting is not installed."""
    if needed:
        try:
            import dp_accounting  # noqa: F401
        except ImportError:
            raise InputError('privacy needs dp-accounting: pip install "jcfl[privacy]"') from None


def cohorts_of(context: Context, federation: Federation, rounds: int) -> list[Cohort]:
    """The cohort of each round; see `jcfl.core.rounds.sample`."""
    population, moments = context.population, np.arange(rounds)[:, None]
    arrive, depart, out = (np.asarray(leaf) for leaf in (federation.arrive, federation.depart, federation.held_out))
    here = ((arrive <= moments) & (moments < depart) & ~out).sum(1)
    asked = np.clip(np.round(np.float32(population.participation) * here.astype(np.float32)), 1, population.cohort)
    return [Cohort(min(int(some), int(all_)), int(all_)) for some, all_ in zip(asked, here, strict=True)]


def counts(sent: Iterable[Release], cohorts: list[Cohort], done: int) -> Counter[tuple[float, Cohort | None]]:
    """How often each release is made in the rounds done: its noise in units of its sensitivity, and its secret cohort.

    A description that is sent once counts from the start, whenever it is sent.
    """
    found: Counter[tuple[float, Cohort | None]] = Counter()
    for one in sent:
        multiplier = one.noise / REPLACED
        if one.once:
            found[multiplier, None] += 1
        for round in [] if one.once else one.rounds(done):
            asked, available = cohorts[round]
            if available:
                found[multiplier, cohorts[round] if one.sampled and asked < available else None] += 1
    return found


def epsilon(counts: Mapping[tuple[float, Cohort | None], int], delta: float) -> float:
    """The least ε that is known to hold for Gaussian releases, by noise multiplier and cohort.

    Several Gaussian releases are as private as one, whose ε is exact (Balle and Wang 2018). Where cohorts are secret,
    Rényi divergences of sampling without replacement are added up (Wang, Balle and Kasiviswanathan 2019).
    """
    import dp_accounting
    from dp_accounting import rdp

    whole = sum(count / multiplier**2 for (multiplier, _), count in counts.items())
    exact = dp_accounting.get_epsilon_gaussian(1 / math.sqrt(whole), delta) if whole else 0.0
    if all(cohort is None for _, cohort in counts):
        return float(exact)
    accountant = rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    for (multiplier, cohort), count in counts.items():
        event = dp_accounting.GaussianDpEvent(multiplier)
        if cohort is not None:
            event = dp_accounting.SampledWithoutReplacementDpEvent(cohort.available, cohort.asked, event)
        accountant.compose(event, count)
    return float(min(exact, accountant.get_epsilon(delta)))
