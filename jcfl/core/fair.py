"""An average in which clients count more the worse a model serves them: q-FedAvg (Li et al. 2020)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core import chunks
from jcfl.core.averaging import as_floats, present_labels, sizes, sum_by
from jcfl.core.context import Resources
from jcfl.core.objective import mean_of_rows
from jcfl.types import Array, Clients, Federation, Models, Task

LEAST = 1e-10
"""The least loss that counts, because a power of it below 0 is taken."""


def fair_mean(
    labels: Array,
    weights: Array,
    uploads: Models,
    default: Models,
    *,
    losses: Callable[[Array, Models], Array],
    q: Any,
    smoothness: Any,
) -> Models:
    """One step of q-FedAvg, which minimises Σ p_i F_i^(q+1) / (q+1) (Li et al. 2020, https://arxiv.org/abs/1905.10497).

    With the weight p_i of a client, its loss F_i at the model θ that it was sent, and its upload θ_i, Alg. 2 is

        θ + Σ p_i F_i^q (θ_i − θ) / Σ p_i (F_i^q + q F_i^(q−1) L ‖θ_i − θ‖²)

    With q = 0 this is the weighted mean.

    Args:
        labels, weights, uploads, default: as for `jcfl.core.averaging.weighted_mean`; `default` are the models θ.
        losses: `(label [s], models [k, ...]) -> [s]`: the training loss of every client at the model of its label.
        q: how much the loss counts, at least 0.
        smoothness: L, the Lipschitz constant of the gradients of F_i.

    Returns:
        the clusters' models. [k, ...]

    Deviations:
        Clients count by p_i here. The paper samples them by p_i and weighs all alike.
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    near = jnp.minimum(group, k - 1)
    change = jax.tree.map(lambda new, old: as_floats(new) - as_floats(old), uploads, trees.take(default, near))
    loss = jnp.maximum(losses(near, default), LEAST)
    largest = jnp.zeros(k, loss.dtype).at[group].max(loss, mode="drop")  # beside which no power overflows
    counts = weights * (loss / largest[near]) ** q
    steps = counts * (1 + q * smoothness * trees.row_squares(change["params"]) / loss)
    total = jnp.zeros(k, steps.dtype).at[group].add(steps, mode="drop")
    good = jnp.isfinite(total) & (total > 0)  # a product with weights that are not would spoil the other clusters
    share = jnp.where((group < k) & good[near], counts / total[near], 0.0)
    moved = jax.tree.map(
        lambda rows, old: trees.rounded(as_floats(old) + sum_by(group, share, rows, k), old), change, default
    )
    spoilt = lambda leaf: jnp.full_like(leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    moved = trees.select(good, moved, jax.tree.map(spoilt, moved))
    return trees.select(sizes(group, k) > 0, moved, default)


def training_losses(
    task: Task, federation: Federation, who: Array, resources: Resources, label: Array, models: Models
) -> Array:
    """The mean loss of every client `who` [s], all different, on its training data, at the model of its label. [s]"""
    own = jnp.zeros(federation.groups.size, label.dtype).at[who].set(label)

    def one(client: Array, data: Clients) -> Array:
        model = trees.take(models, own[client])
        of_rows = lambda data: task.loss(task.apply(model, data.x)[0], data.y)
        return mean_of_rows(chunks.over_rows(of_rows, data, resources.rows), data.mask)

    return chunks.over_clients(one, federation, who, min(resources.chunk, who.size))
