"""How many of a CPU's devices can train the clients of a method apart from each other."""

import math

import jax

from jcfl.core.context import Context, model_bytes
from jcfl.core.memory import free_memory
from jcfl.core.method import Method
from jcfl.runs import devices, hosts
from jcfl.runs.plan import Plan
from jcfl.types.target import target

LITTLE = 0.05
"""The most operations besides training, as a share of those of training, with which cores train clients apart from each
other: each core does for itself what is not training."""

LEAST = 5e6
"""The fewest operations of a core in a round, if cores train clients apart from each other: they wait for each other at
its end. With 9e6 (softmax regression on digits) two Intel cores took half the time of both cores in one program."""

COPIED = 2**29
"""The most bytes of examples, states and descriptions that each core holds for itself. All cores take at most half of
the free memory for them."""

COMPARED = "data", "upload"
"""The sources of descriptions that are as long as models, and are compared."""


def spare_devices(plan: Plan, title: str, work: float) -> int:
    """How many devices a method's clients can be shared out among although the configuration names no number.

    All devices compute once more what is not training, and hold the examples, the states and the descriptions. Seeds
    and points that run side by side have a core each already.

    Args:
        work: operations of local training in a round.
    """
    config, method, context = plan.config, plan.algorithms[title].method, plan.context
    asked = config.devices is None and target().is_cpu and not config.seeds_in_one and not hosts.several()
    described = context.population.cohort * model_bytes(context.task) if method.describe.source in COMPARED else 0
    copied = plan.needs.federation + plan.needs.states + described
    little = operations_besides(method, context, work, config.rounds) <= LITTLE * work * config.rounds
    if not (asked and little and copied <= COPIED) or plan.needs.outside or method.group.alone:
        return 1
    most = jax.local_device_count(), devices.cores(), context.population.cohort, work // LEAST
    return max(1, int(min(*most, free_memory() // (2 * copied))))


def operations_besides(method: Method, context: Context, work: float, rounds: int) -> float:
    """About how many operations it takes to describe clients and to compare the descriptions, in all rounds.

    Descriptions of data come from one gradient of each client, and each client meets every other one once. Uploads meet
    each other or the clusters in every round. If the server keeps what clients sent before, all of that meets the
    clusters.

    Args:
        work: operations of local training in a round.
    """
    population, numbers = context.population, model_bytes(context.task) // 4
    if method.describe.source == "data":
        examples = population.cohort * math.prod(context.trainer.rows_and_steps(population.width))
        gradient = work * population.width / examples
        return population.clients * (gradient + 2 * numbers * population.clients)
    if method.describe.source == "upload":
        kept, slots = bool(method.group.keeps(method, context)), method.group.slots(context)
        pairs = population.clients * slots if kept else population.cohort * max(population.cohort, slots)
        return rounds * pairs * 2 * numbers
    return 0.0
