"""How many clients are sampled in the rounds of a run, which follows from who is in the federation when."""

from itertools import pairwise
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jcfl.core.context import Context
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
    real = np.dtype(jnp.result_type(float)).type  # the program's, because a product may be just above or below a half
    found = {}
    for start, end in pairwise(moments):
        here = int(came.searchsorted(start, side="right") - gone.searchsorted(start, side="right"))
        sampled = np.round(real(population.participation) * real(here))
        found[range(start, end)] = Cohort(min(int(np.clip(sampled, 1, population.cohort)), here), here)
    return found


def client_rounds(context: Context, federation: Federation, rounds: int) -> int:
    """How many clients are sampled in some rounds together; one that is sampled twice counts twice."""
    return sum(len(some) * cohort.sampled for some, cohort in cohorts(context, federation, rounds).items())
