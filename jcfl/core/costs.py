"""What a client-round costs, in models, in bytes and in operations, from a method's value."""

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import trees
from jcfl.core import batches, parts
from jcfl.core.context import Context
from jcfl.core.local import Trainer
from jcfl.core.method import Method
from jcfl.types import Algorithm, Task

NAMES = (
    *("storage", "communication", "computation", "flop"),
    *("warmup_rounds", "warmup_communication", "warmup_computation"),
    *("model_bytes", "storage_bytes", "download_bytes", "communication_bytes"),
)
"""The names of all costs in a run's summary, which has those that are known of its method."""


def costs(method: Method, clusters: float, task: Task | None = None) -> dict[str, float]:
    """Costs of one client-round in units of FedAvg's (Ma 2023, Table 7.6), those of the runs that vote included.

    Args:
        clusters: the number of clusters whose models a client may be sent.
        task: whose model says how large private layers are. Without it they count as if they were sent.

    Returns:
        `storage`, `communication` and `computation`.
    """
    found, vote = without_votes(method, clusters), method.answer.vote
    if task is not None:
        whole = float(method.trains_shared)  # ω has no private layers
        found["communication"] = whole + (found["communication"] - whole) * sent_part(method, task)
    if vote is None:
        return found
    more = found if vote.method is None else costs(vote.method, clusters, task)
    return {name: cost + vote.copies * more[name] for name, cost in found.items()}


def sent_part(method: Method, task: Task) -> float:
    """The part of a model's parameters that leaves a client: all but its private layers."""
    model = jax.eval_shape(task.init, jax.random.key(0))
    private = parts.part_of(model, parts.names(task, method.train.private, "private"))
    return 1 - trees.parameters(private) / trees.parameters(model)


def without_votes(method: Method, clusters: float) -> dict[str, float]:
    """The costs of one run alone, as if private layers were sent too.

    A client stores and receives the models it trains or chooses from, and computes a pass for each model it trains.
    Loss terms add the models that are sent for them, and a pass for each of these models that the client's data go
    through. A model that several terms need is sent once, and so is ω where it is trained or its logits are added.
    Descriptions are not counted; a client sends them once, or some numbers for each layer.
    """
    train = method.train
    if method.answer.model == "majority" or not train.active:
        return {"storage": 0.0, "communication": 0.0, "computation": 0.0}
    trained = clusters if method.describe.source == "losses" or train.models == "all" else 1.0
    models = clusters if any(term.sends == "all" for term in train.terms) else trained
    for_terms = {term.to or "shared" for term in train.terms if term.sends == "shared"}
    common = len(for_terms | ({"shared"} if method.trains_shared else set()))
    passes = sum(clusters - 1 if term.sends == "all" else 1.0 for term in train.terms if term.passes)
    return {
        "storage": models + common + 2 * train.correction + train.control,
        "communication": (models - trained * method.group.alone) + common + train.correction + train.control,
        "computation": trained + method.trains_shared + train.correction + passes,
    }


def average(algorithm: Algorithm, clusters: float, rounds: int, task: Task | None = None) -> dict[str, float]:
    """A client-round's costs averaged over rounds, of which those of a warm-up cost as FedAvg's (Ma 2023, Table 7.6).

    Of runs that vote together each has its own warm-up. What is stored does not shrink: a client needs room for the
    dearest round.

    Args:
        clusters: the clusters that a client may be sent the models of.
        rounds: the rounds from the first one on.
        task: as for `costs`.
    """
    found = algorithm.costs(clusters)
    less = spared(found, algorithm.method, clusters, rounds, task) if algorithm.method is not None and rounds else {}
    return {name: cost - less.get(name, 0.0) for name, cost in found.items()}


def spared(
    found: dict[str, float], method: Method, clusters: float, rounds: int, task: Task | None
) -> dict[str, float]:
    """By how much warm-up lowers the costs `found` of a method's client-round, averaged over `rounds` rounds."""
    mixed = [name for name in ("communication", "computation") if name in found]
    vote = method.answer.vote
    if vote is None:
        share = warmup(method, rounds) / rounds
        return {name: share * (found[name] - 1) for name in mixed}
    alone = method.with_answer(vote=None)
    other = alone if vote.method is None else vote.method
    more = costs(other, clusters, task)
    own = {name: found[name] - vote.copies * more[name] for name in mixed}
    ours, theirs = spared(own, alone, clusters, rounds, task), spared(more, other, clusters, rounds, task)
    return {name: ours[name] + vote.copies * theirs[name] for name in mixed}


def warmup(method: Method | None, rounds: int) -> int:
    """How many of a run's rounds are those before the method's own, which cost as FedAvg's."""
    phases = method.before if method is not None else ()
    return min(sum(phase.rounds for phase in phases), rounds)


def in_bytes(costs: dict[str, float], model_bytes: int) -> dict[str, int]:
    """What a client stores and moves in one round, of the costs named (Ma 2023, Table 7.6).

    The thesis counts in FedAvg's units, and FedAvg moves its model down and up: a method that sends K models to a
    client counts as K times that. `download_bytes` are what such a client receives; `communication_bytes` are the
    thesis's, both ways, and so the most that it can come to: a client of IFCA sends one model back, not K.

    >>> in_bytes({"storage": 4, "communication": 4}, model_bytes=100)
    {'storage_bytes': 400, 'download_bytes': 400, 'communication_bytes': 800}

    Args:
        costs: of one client-round, in units of FedAvg's.
        model_bytes: of one model.
    """
    models = (("storage", "storage", 1), ("download", "communication", 1), ("communication", "communication", 2))
    return {f"{name}_bytes": round(costs[cost] * each * model_bytes) for name, cost, each in models if cost in costs}


def operations_of_a_round(context: Context) -> float:
    """About how many operations a device computes for local training in a round, if all clients are the largest one.

    Rows that fill up batches count, because they are computed.
    """
    population = context.population
    rows, steps = context.trainer.rows_and_steps(population.width)
    return population.cohort * rows * steps * operations_of_a_gradient(context)


def operations(context: Context, trainer: Trainer, sizes: np.ndarray) -> float:
    """About how many floating-point operations a client's local training of one model takes in a round.

    Rows that fill up batches do not count, so that batches of any size cost the same in an epoch.

    Args:
        context: of the run.
        trainer: of the method, which may not be the run's.
        sizes: the training examples of every client that trains, over whom the mean is taken. [m] int32
    """
    distinct, clients = np.unique(sizes, return_counts=True)
    each = [batches.examples(trainer, int(size)) for size in distinct]
    return operations_of_a_gradient(context) * float(np.average(each, weights=clients))


def operations_of_a_gradient(context: Context) -> float:
    """About how many floating-point operations the gradient of one example takes.

    It counts as three predictions: the prediction itself, and as much again for the examples and for the weights. XLA
    counts those of a prediction.
    """
    task = context.task
    model = jax.eval_shape(task.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, *context.population.shape), jnp.float32)
    one = (jax.jit(lambda model, x: task.apply(model, x)[0]).lower(model, x).cost_analysis() or {}).get("flops", 0.0)
    return 3 * one
