"""Soft membership: every client trains the models of all clusters, each example weighted by its responsibilities.

Marfoq et al. 2021, "Federated Multi-Task Learning under a Mixture of Distributions" (FedEM),
https://arxiv.org/abs/2108.10252.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jcfl.core import chunks, returned
from jcfl.core.engine import Client
from jcfl.core.local import Trainer
from jcfl.core.method import Group
from jcfl.errors import InputError, named, shown
from jcfl.types import Array, Broadcast, Clients, Key, Model, Models, Task, Upload


@dataclass(frozen=True, kw_only=True)
class SoftGroup(Group):
    """A group whose clients train all cluster models; an example counts more for those under which it costs less."""

    def costs(self, losses: Array, y: Array, memory: Any) -> Array:
        """What an example costs under each model; its responsibilities fall exponentially with it.

        Args:
            losses: the loss of every example of a client under every model. [n, k] float
            y: the classes of the examples. [n] int32
            memory: what the grouping remembers, `State.memory`.

        Returns:
            the losses themselves, as in FedEM. [n, k] float
        """
        return losses

    def report(self, q: Array, y: Array, own: Mapping[str, Any]) -> dict[str, Any]:
        """What a client reports beside its models: new values of states that the group `keeps`, by name.

        Args:
            q: the responsibilities of its examples; 0 where a row is no example. [n, k] float
            y: the classes of the examples. [n] int32
            own: what is kept of the client, by name.
        """
        return {}


def weights(group: SoftGroup, losses: Array, data: Clients, memory: Any, before: Array) -> tuple[Array, Array]:
    """The weights of a client's examples after an E-step, [n, k], and its mixture weights after an M-step, [k].

    Args:
        losses: the loss of every example under every model. [n, k] float
        before: the client's mixture weights so far, up to a factor. [k] float
    """
    what = f"group {group.name!r}: costs"
    costs = returned.array(named(what, group.costs)(losses, data.y, memory), losses.shape, (returned.FLOATS,), what)
    q = responsibilities(costs, data.mask, before)
    return q, prior(q, data.mask)


def reported(group: SoftGroup, q: Array, y: Array, own: Mapping[str, Any]) -> dict[str, Any]:
    """What a client of a group reports, checked.

    Raises:
        InputError: it is no new value of what is kept of the client.
    """
    what = f"group {group.name!r}: report"
    found = named(what, group.report)(q, y, own)
    if not isinstance(found, Mapping) or not found.keys() <= own.keys():
        raise InputError(f"{what}: expected new values of what the group keeps, by name, got {shown(found)}")
    return returned.models(dict(found), {name: own[name] for name in found}, what)


def losses(task: Task, models: Models, data: Clients, rows: int) -> Array:
    """The loss of every example of one client under every model, `rows` of them at a time. [n, k]"""
    under = lambda model, data: task.loss(task.apply(model, data.x)[0], data.y)
    return chunks.over_rows(lambda data: jax.vmap(under, (0, None))(models, data).T, data, rows)


def responsibilities(losses: Array, mask: Array, prior: Array) -> Array:
    """How likely each model has made each example of one client: FedEM's E-step (Marfoq et al. 2021).

    An example's row is the softmax of log prior − loss over the models. A model of prior 0 gets nothing.

    Args:
        losses: negative log-likelihood of every example under every model. [n, k] float
        mask: which examples are real. [n] bool
        prior: the client's mixture weights, up to a factor; at least 0, and one of them is not 0. [k] float

    Returns:
        rows that add up to 1 for real examples and are 0 for the others. [n, k] float
    """
    losses = jnp.where(mask[:, None], losses, 0)
    scores = jnp.where(prior > 0, jnp.log(jnp.where(prior > 0, prior, 1)), -jnp.inf) - losses
    return jnp.where(mask[:, None], jax.nn.softmax(scores, axis=-1), 0)


def prior(q: Array, mask: Array) -> Array:
    """A client's mixture weights: the mean of its examples' responsibilities, FedEM's M-step.

    Args:
        q: responsibilities, as `responsibilities` gives them. [n, k] float
        mask: which examples are real. [n] bool

    Returns:
        weights that add up to 1; all alike for a client without examples. [k] float
    """
    n = mask.sum()
    mean = jnp.where(mask[:, None], q, 0).sum(0) / jnp.maximum(n, 1)
    return jnp.where(n > 0, mean, 1 / q.shape[-1])


def hard(weights: Array) -> Array:
    """The cluster with the largest weight, the first where several are equal. [m, k] -> [m] int32"""
    return weights.argmax(-1).astype(jnp.int32)


def client(task: Task, trainer: Trainer, group: SoftGroup, rows: int) -> Client:
    """A client of a soft group: one E-step, then local training of all K models on examples weighted by responsibility.

    `Broadcast.cluster` and `Upload.cluster` hold the models of all clusters, `[k, ...]`. The responsibilities are the
    weights of examples, `Clients.weight`: the loss of a batch is the weighted sum of the losses of its real rows,
    divided by their number.
    """

    def work(sent: Broadcast, data: Clients, key: Key, local: Trainer = trainer) -> Upload:
        before = losses(task, sent.cluster, data, rows)
        q, membership = weights(group, before, data, sent.memory, sent.own["membership"])

        def one(model: Model, weight: Array) -> Model:
            def value(params, model: Model, batch: Clients, sent: Broadcast, key: Key):
                logits, after = task.apply({**model, "params": params}, batch.x, key=key, mask=batch.mask)
                weighted = jnp.where(batch.mask, jnp.asarray(batch.weight) * task.loss(logits, batch.y), 0.0)
                return weighted.sum() / jnp.maximum(batch.mask.sum(), 1), after

            return local.train(value, model, sent, data.replace(weight=weight), key)

        models = jax.vmap(one)(sent.cluster, q.T)
        return Upload(models, (), reported(group, q, data.y, sent.own) | {"membership": membership})

    return work


def mixture(logits: Array, membership: Array) -> Array:
    """The log of the mixture of class probabilities. [k, r, c], [r, k] -> [r, c]"""
    chances = jnp.einsum("krc,rk->rc", jax.nn.softmax(logits), membership)
    return jnp.log(jnp.maximum(chances, jnp.finfo(chances.dtype).tiny))
