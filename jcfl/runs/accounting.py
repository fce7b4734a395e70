"""The ε of client-level differential privacy after each round, by the accountants of Google's dp-accounting.

Neighbouring federations differ in all data of one client, which replaces other data (replace one). What a client sends
then changes by at most two clips, so the noise in units of that change is half of the noise in units of the clip.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jcfl.core.context import Context
from jcfl.core.method import Method
from jcfl.core.releases import Release, releases
from jcfl.errors import optional_package
from jcfl.runs.cohorts import Cohort, cohorts
from jcfl.types import Federation

ORDERS = (1.1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 33), 40, 48, 64, 96, 128)
"""The orders of Rényi divergences that are tried; any of them gives an ε that holds."""

REPLACED = 2.0
"""How many clips a client can change what is released by, when all of its data is replaced."""


def epsilon_after(method: Method, context: Context, federation: Federation, rounds: int) -> float:
    """ε of all that a method's clients have sent after some rounds; infinite where some of it has no noise."""
    sent = releases(method, context)
    if not all(one.noise for one in sent):
        return math.inf
    return epsilon(counts(sent, cohorts(context, federation, rounds)), context.privacy.delta)


def foreseen(methods: Mapping[str, Method], context: Context, federation: Federation, rounds: int) -> dict[str, Any]:
    """What a run's methods will send under noise, and the ε that they end with, before anything is trained.

    Returns:
        by title, `epsilon` (None: infinite), `delta` and `sends`; nothing without privacy.
    """
    found = {}
    for title, method in methods.items() if context.privacy.is_on else ():
        end = epsilon_after(method, context, federation, rounds)
        sends = [one.text() for one in releases(method, context)]
        found[title] = {"epsilon": end if end < math.inf else None, "delta": context.privacy.delta, "sends": sends}
    return found


def refuse_without_accountant(context: Context) -> None:
    """Refuse privacy where dp-accounting is not installed.

    Raises:
        InputError: it is not.
    """
    if context.privacy.is_on:
        optional_package("dp_accounting", 'privacy needs dp-accounting: pip install "jcfl[privacy]"')


def counts(sent: Iterable[Release], cohorts: Mapping[range, Cohort]) -> Counter[tuple[float, Cohort | None]]:
    """How often each release is made: its noise in units of its sensitivity, and its cohort if that is secret.

    A description that is sent once counts from the start, whenever it is sent.
    """
    found: Counter[tuple[float, Cohort | None]] = Counter()
    for one in sent:
        multiplier = one.noise / REPLACED
        found[multiplier, None] += one.once
        for rounds, cohort in cohorts.items() if not one.once else ():
            secret = cohort if one.sampled and cohort.sampled < cohort.available else None
            found[multiplier, secret] += one.times(rounds) if cohort.available else 0
    return +found


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
    total = np.sum([count * divergences(*release) for release, count in counts.items()], 0)
    return float(min(exact, rdp.compute_epsilon(ORDERS, total, delta)[0]))


@functools.cache
def divergences(multiplier: float, cohort: Cohort | None) -> np.ndarray:
    """The Rényi divergence of one release at each of `ORDERS`; those of several releases are added up. [orders]"""
    import dp_accounting
    from dp_accounting import rdp

    event = dp_accounting.GaussianDpEvent(multiplier)
    if cohort is not None:
        event = dp_accounting.SampledWithoutReplacementDpEvent(cohort.available, cohort.sampled, event)
    accountant = rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event)
    return accountant.rdp
