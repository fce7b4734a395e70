"""How many clients are sampled in the rounds of a run, which follows from who is in the federation when."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from jcfl.core.context import Context, cohort_size
from jcfl.types import Federation


class Cohort(NamedTuple):
    """How many clients are sampled, out of how many: each as likely as any other, and none twice."""

    sampled: int
    available: int


def cohorts(context: Context, federation: Federation, rounds: int) -> dict[range, Cohort]:
    """The cohorts of some rounds, by the rounds between which nobody arrives or leaves; see `core.rounds.sample`."""
    population = context.population
    arrive, depart, out = (np.asarray(leaf) for leaf in (federation.arrive, federation.depart, federation.held_out))
    moments = np.unique(np.concatenate([[0, rounds], arrive, depart]))
    moments = moments[moments <= rounds].tolist()
    # Sorted, because in a large federation somebody may arrive or leave in every round.
    came, gone = np.sort(arrive[~out]), np.sort(np.maximum(arrive, depart)[~out])
    found = {}
    for start, end in pairwise(moments):
        here = int(came.searchsorted(start, side="right") - gone.searchsorted(start, side="right"))
        number = min(int(cohort_size(population.participation, here)), population.cohort, here)
        found[range(start, end)] = Cohort(number, here)
    return found


def client_rounds(context: Context, federation: Federation, rounds: int) -> int:
    """How many clients are sampled in some rounds together; one that is sampled twice counts twice."""
    return sum(len(some) * cohort.sampled for some, cohort in cohorts(context, federation, rounds).items())
