"""The quality of a run's clusters, no true group known, from its training data and its last state."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core import chunks
from jcfl.core.objective import mean_loss
from jcfl.metrics.cohesion import (
    clusterability,
    clustering_objective,
    cosine,
    learning_objective,
    least_within,
    sizes,
    within_between,
)
from jcfl.metrics.ratios import weighted_mean
from jcfl.trees.rows import HostRows
from jcfl.types import Array, Clients, Federation, Model, State, Task


def quality(
    task: Task, federation: Federation, state: State, *, added: bool = False, chunk: int = 16
) -> dict[str, Array]:
    """The measures of clusters of Ma (2023) for one seed of a run.

    They are taken over the clients that have taken part and are still in the federation. A client's own model is the
    last one that it trained, where the method keeps it (fesem, wecfl, …), and otherwise its cluster's model. The memory
    holds one gradient per client.

    >>> import jcfl
    >>> from jcfl.runs import config, plan
    >>> given = {"scenario": {"name": "rotated", "clients": 8}, "model": "linear", "rounds": 2, "train": {"steps": 2}}
    >>> given["method"] = {"name": "wecfl", "clusters": 2}
    >>> history, built = jcfl.run(given), plan.planned(config.read(given))
    >>> first = jax.tree.map(lambda leaf: leaf[0], history.state)  # of the only seed
    >>> found = quality(built.context.task, built.federation, first)
    >>> bool(0 < found["clustering_objective"] < 1 and found["cosine_within"] > found["cosine_between"])
    True

    Args:
        task: the task that was trained, such as a plan's `context.task`.
        federation: the federation that it was trained on, such as a plan's `federation`.
        state: the state of one seed: `history.state` without its leading axis.
        added: whether the global model's logits are added to a cluster's, as with the add-on `cam`.
        chunk: the number of clients that are worked on at a time.

    Returns:
        `clusterability`: B of every cluster, from its clients' gradients at their own models. [k]
        `clustering_objective`: 𝒞, between the clients' own models and their clusters' models. `cosine_within`: the mean
        cosine of two own models in one cluster. `cosine_within_least`: the least such cosine. All three are NaN where
        the method keeps no own models on the device.
        `cosine_between`: the mean cosine of two clusters' models.
        `learning_objective`: 𝓕 of the clusters' models.
    """
    federation, state = jax.tree.map(jnp.asarray, (federation, state))
    k, m = trees.count(state.clusters), state.labels.size
    labels, weights = present_labels(state, federation), federation.train.size
    gradients, losses = local_gradients(task, federation, state, added, min(chunk, m))
    rows = jax.vmap(lambda model: trees.vector(model["params"]))
    centres = rows(state.clusters)  # [k, p]
    models = rows(state.clients["model"]) if keeps_models(state) else jnp.full((m, 1), jnp.nan)  # [m, p]
    live, gram = sizes(labels, k) > 0, products(models)
    return {
        "clusterability": clusterability(gradients, labels, weights, k),
        "clustering_objective": clustering_objective(models, centres, labels, weights),
        "cosine_within": within_between(gram, labels, k)[0],
        "cosine_within_least": least_within(gram, labels, k),
        "cosine_between": weighted_mean(cosine(products(centres)), jnp.triu(live[:, None] & live, 1)),
        "learning_objective": learning_objective(losses, labels, weights),
    }


def present_labels(state: State, federation: Federation) -> Array:
    """The clusters of the clients that have taken part and are still in the federation; -1 for others. [m]"""
    here = state.seen & ~federation.held_out & (state.round <= federation.depart)
    return jnp.where(here, state.labels, -1)


def keeps_models(state: State) -> bool:
    """Whether the clients' own last models are part of a state, and on the device."""
    return "model" in state.clients and not isinstance(state.clients["model"], HostRows)


def local_gradients(task: Task, federation: Federation, state: State, added: bool, chunk: int) -> tuple[Array, Array]:
    """Every client's gradient at its own model [m, p], and its loss under its cluster's [m], over its training data."""
    loss = training_loss(task, state, added)

    def one(who: Array, data: Clients) -> tuple[Array, Array]:
        centre = trees.take(state.clusters, state.labels[who])
        own = trees.take(state.clients["model"], who) if keeps_models(state) else centre
        gradient = jax.grad(loss)(own["params"], own, data)
        return trees.vector(gradient), loss(centre["params"], centre, data)

    return chunks.over_clients(one, federation, jnp.arange(state.labels.size), chunk)


def training_loss(task: Task, state: State, added: bool) -> Callable[[Any, Model, Clients], Array]:
    """`(params, model, data of a client) -> []`: its mean loss, the global model's logits added or not."""

    def loss(params: Any, model: Model, data: Clients) -> Array:
        logits = task.apply({**model, "params": params}, data.x)[0]
        beside = task.apply(state.shared, data.x)[0] if added else 0.0
        return mean_loss(task, logits + beside, data)

    return loss


def products(rows: Array) -> Array:
    """Inner products of all pairs of rows. [m, p] -> [m, m]"""
    return jnp.matmul(rows, rows.T, precision=trees.EXACT)
