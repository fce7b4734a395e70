"""Layers that grow: a neuron of a client that resembles none of its cluster's neurons becomes one of them.

The prior over neurons is an Indian buffet process: clients are its customers, neurons its dishes. A client takes a
neuron that many others have more readily than a rare one, and a new neuron by a rate γ. This is the model of Yurochkin
et al. 2019 (PFNM), https://arxiv.org/abs/1905.12022, which Xie et al. 2020, "Multi-Center Federated Learning" (§5.1),
https://arxiv.org/abs/2005.01026, name for their matching.

The arrays of a run keep their shapes, so a layer grows inside its width: a neuron whose incoming weights are all zero
is *unused*. With ReLU such a neuron gives zero and gets no gradient, so local training leaves it as it is. A model
starts with unused neurons by the option `spare` of networks (`jcfl.models.networks`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core.averaging import mean_by, mean_by_entry, present_labels, sizes, sum_by
from jcfl.core.chain import Layer, permuted
from jcfl.core.matching import assignment, by_class, neurons
from jcfl.types import Array, Model, Models


def grown_mean(
    labels: Array,
    weights: Array,
    uploads: Models,
    default: Models,
    *,
    growth: float | Array,
    spread: float | Array = 1.0,
    sigma: float | Array = 1.0,
    sigma_bias: float | Array = 1.0,
    layers: Sequence[Layer],
    class_counts: Array,
) -> Models:
    """`jcfl.core.matching.matched_mean` with layers that grow, and shrink again (Yurochkin et al. 2019, §3).

    Clients are matched one after another, in their order, each to the neurons of the cluster's model and of the clients
    before it; see `grown_orders`. A neuron's mean is taken over the clients that have it. So is the mean of a weight
    between two neurons, over the clients that have both. A neuron of the cluster that no client has becomes unused.
    The last layer is averaged class by class, as by `matched_mean`.

    Args:
        labels, weights, uploads, default, layers, class_counts, sigma, sigma_bias: as for `matched_mean`.
        growth: γ, the rate of new neurons. Larger than 0.
        spread: σ₀, the standard deviation of a cluster's weights around zero; of its biases, in proportion to
            `sigma_bias`.

    Returns:
        the clusters' models. [k, ...]

    Deviations:
        The cluster's model of the round before counts as the first client, so that its neurons keep their places. With
        no unused neurons left, a client's neurons have to be matched. Clients are matched once, in the order of their
        numbers; the paper repeats this in random orders. Layers are matched from the input on, by incoming weights
        (Wang et al. 2020). Clients train the whole model of their cluster; in the paper a client's network keeps its
        size.
    """
    k, last = trees.count(default), layers[-1].name
    group = present_labels(labels, weights, k)
    orders = grown_orders(
        group, uploads, default, layers, growth=growth, spread=spread, sigma=sigma, sigma_bias=sigma_bias
    )
    uploads = jax.vmap(lambda model, order: permuted(model, order, layers))(uploads, orders)
    used = jax.vmap(lambda model: used_entries(model, layers))(uploads)
    everybody = mean_by(group, weights, uploads, default)  # zero for a neuron that no client has
    means = mean_by_entry(group, jax.tree.map(lambda mask: mask * trees.wide(weights, mask), used), uploads, everybody)
    classes = jax.tree.map(lambda mask: mask * by_class(class_counts, mask), used["params"][last])
    has = lambda mask: sum_by(group, jnp.ones(group.shape), mask * 1.0, k) > 0
    old = jax.tree.map(
        lambda leaf, mask: jnp.where(has(mask), leaf, 0.0), default["params"][last], used["params"][last]
    )
    means["params"][last] = mean_by_entry(group, classes, uploads["params"][last], old)
    return trees.select(sizes(group, k) > 0, means, default)


def grown_orders(
    group: Array,
    uploads: Models,
    default: Models,
    layers: Sequence[Layer],
    *,
    growth: float | Array,
    spread: float | Array = 1.0,
    sigma: float | Array = 1.0,
    sigma_bias: float | Array = 1.0,
) -> tuple[Array, ...]:
    """For every client and hidden layer, which of its neurons comes to each place of the cluster's layer.

    Args:
        group: every client's cluster; k for a client that is absent. [s] int
        uploads, default, layers, growth, spread, sigma, sigma_bias: as for `grown_mean`.

    Returns:
        for every layer but the last, permutations as `jcfl.core.chain.permuted` takes them. [s, width] int32
    """
    k, hidden = trees.count(default), layers[:-1]

    def table(layer: Layer) -> tuple[Array, Array]:
        """The sums of neurons [k, w, f] and how many clients have them [k, w], with the cluster's model as a client."""
        there = jax.vmap(lambda model: used_neurons(model, layer))(default)
        vectors = jax.vmap(lambda model: neurons(model, layer, None, sigma, sigma_bias))(default)
        return jnp.where(there[..., None], vectors, 0.0), there.astype(int)

    def serve(tables: Any, client: tuple[Array, Model]) -> tuple[Any, Any]:
        label, model = client
        near, found, after = jnp.minimum(label, k - 1), [], []
        for (sums, counts), layer in zip(tables, hidden, strict=True):
            ours = neurons(model, layer, found[-1] if found else None, sigma, sigma_bias)
            there = used_neurons(model, layer)
            costs = buffet_costs(
                ours, there, sums[near], counts[near], customers[near], growth=growth, spread=spread / sigma
            )
            order = assignment(costs)
            placed = jnp.where(there[order][:, None], ours[order], 0.0)
            after.append((sums.at[label].add(placed, mode="drop"), counts.at[label].add(there[order], mode="drop")))
            found.append(order)
        return tuple(after), tuple(found)

    customers = sizes(group, k) + 1  # [k], with the cluster's own model
    return jax.lax.scan(serve, tuple(map(table, hidden)), (group, uploads))[1]


def buffet_costs(
    ours: Array,
    there: Array,
    sums: Array,
    counts: Array,
    customers: Array,
    *,
    growth: float | Array,
    spread: float | Array = 1.0,
) -> Array:
    """The cost of each of a client's neurons in each place of a layer (Yurochkin et al. 2019, §3.1).

    It is the negative logarithm of the posterior, without constants. A cluster's neurons are drawn from N(0, σ₀²), a
    client's from N(cluster's, 1), and which client has which neuron from an Indian buffet process. An unused neuron of
    the client costs nothing anywhere. If a number is not finite, all costs are 0.

    Args:
        ours: the client's neurons. [w, f]
        there: which of them are used. [w] bool
        sums: for each place, the sum of the neurons that clients before have put there. [v, f]
        counts: for each place, how many clients have put a neuron there; 0 where the place is free. [v] int
        customers: J, how many clients there are, more than each of `counts`. []
        growth: γ. The t-th free place costs log(t·J/γ) more than the neuron alone.
        spread: σ₀, in units of the standard deviation of a client's neurons.

    Returns:
        [w, v] float
    """
    precision, n = 1 / jnp.square(spread), counts.astype(float)
    length, known = jnp.square(ours).sum(1)[:, None], jnp.square(sums).sum(1)  # [w, 1], [v]
    joint = length + known + 2 * jnp.matmul(ours, sums.T, precision=trees.EXACT)
    old = joint / (precision + n + 1) - known / (precision + n) + 2 * jnp.log(n / (customers - n))
    free = counts == 0
    new = length / (precision + 1) - 2 * jnp.log(jnp.cumsum(free) * customers / growth)
    cost = -0.5 * jnp.where(free, new, old)
    return jnp.where(there[:, None] & jnp.isfinite(cost).all(), cost, 0.0)


def used_neurons(model: Model, layer: Layer) -> Array:
    """Which neurons of a layer have an incoming weight that is not zero. [w] bool"""
    kernel = model["params"][layer.name]["kernel"]
    return (kernel != 0).reshape(-1, kernel.shape[-1]).any(0)


def used_entries(model: Model, layers: Sequence[Layer]) -> Models:
    """For every entry of a model whether it belongs to used neurons: in a kernel, at both ends. Leaves are bool."""
    masks = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, bool), model)
    inputs = None
    for layer in layers:
        own = used_neurons(model, layer) if layer is not layers[-1] else jnp.asarray(True)
        for entries in masks.values():
            for name in {layer.name, *layer.along} & entries.keys():
                entries[name] = jax.tree.map(lambda mask, own=own: mask & own, entries[name])
        if inputs is not None:
            kernel = masks["params"][layer.name]["kernel"]
            blocks = jnp.tile(inputs, kernel.shape[-2] // inputs.size)  # flattened convolutions: channels run fastest
            masks["params"][layer.name]["kernel"] = kernel & blocks[:, None]
        inputs = own
    return masks
