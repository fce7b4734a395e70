"""Matched averaging: hidden neurons are aligned with a centre's before models are averaged.

A network computes the same whatever the order of its hidden neurons, so two clients may hold the same feature at
different places, and their mean holds it nowhere. F is Xie et al., Multi-Center Federated Learning (§5.1, §8), which
builds on Wang et al. 2020 (FedMA) and Yurochkin et al. 2019 (PFNM).
"""

from collections.abc import Sequence
from typing import Annotated

import chex
import jax
import jax.numpy as jnp
import optax
from optax.assignment import hungarian_algorithm
from pydantic import Field

from jcfl import trees
from jcfl.core.averaging import present_labels, sum_by, weighted_mean
from jcfl.core.chain import Layer, permuted, reordered
from jcfl.core.objective import Part, everything
from jcfl.types import Array, Model, Models

Sigma = Annotated[float, Field(gt=0, description="standard deviation of a client's weights around the centre's")]
SigmaBias = Annotated[float, Field(gt=0, description="standard deviation of its biases and scales")]


def matched_mean(
    labels: Array,
    weights: Array,
    uploads: Models,
    default: Models,
    layers: Sequence[Layer],
    class_counts: Array,
    *,
    sigma: Sigma = 1.0,
    sigma_bias: SigmaBias = 1.0,
    at_once: int = 8,
) -> Models:
    """The mean of a cluster's clients, neurons matched to those of the cluster's present model (Xie et al. 2020, §5.1).

    Hidden layers are averaged by `weights`, the last one class by class, weighted by how many examples of the class a
    client has, so a class is what those who have seen it say. A class none of them has seen keeps what it was.

    An averaging rule once `layers` and `class_counts` are bound.

    Args:
        labels: every client's cluster. [s] int
        weights: what every client counts; 0 for one that is absent. [s]
        uploads: the clients' models. [s, ...]
        default: the clusters' models to match with, which clusters without clients keep. [k, ...]
        layers: the network's, from its input to its output.
        class_counts: every client's training examples of every class. [s, c]
        sigma, sigma_bias: spreads of weights and of biases around the centre's.
        at_once: clients matched at a time; each holds a [width, width] matrix of costs.

    Returns:
        the clusters' models. [k, ...]

    Deviations:
        The width is fixed: every neuron of a client has a partner in the centre, and the centre is the cluster's model,
        not the outcome of matching one client after another. The paper's released code has no clustered version.
    """
    chex.assert_shape(class_counts, (labels.size, None))

    def aligned(client: tuple[Array, Model]) -> Model:
        label, model = client
        centre = trees.take(default, label)
        return permuted(model, matching_orders(model, centre, layers, sigma=sigma, sigma_bias=sigma_bias), layers)

    uploads = jax.lax.map(aligned, (jnp.clip(labels, 0), uploads), batch_size=min(at_once, labels.size))
    means = weighted_mean(labels, weights, uploads, default)
    name = layers[-1].name
    last = class_means(labels, weights, uploads["params"][name], default["params"][name], class_counts)
    return {**means, "params": {**means["params"], name: last}}


def class_means(labels: Array, weights: Array, uploads: Models, default: Models, class_counts: Array) -> Models:
    """The last layer's means, whose leaves have classes as their last axis, weighted by class counts [s, c].

    Returns:
        [k, ..., c]
    """
    k = trees.count(default)
    group = present_labels(labels, weights, k)
    near = jnp.minimum(group, k - 1)
    counts = jnp.where((group < k)[:, None], class_counts, 0).astype(float)
    total = jnp.zeros((k, counts.shape[1])).at[near].add(counts)  # [k, c]
    share = counts / jnp.where(total > 0, total, 1.0)[near]  # [s, c]
    spread = lambda values, like: values.reshape(values.shape[0], *[1] * (like.ndim - 2), values.shape[1])

    def mean(leaf: Array, kept: Array) -> Array:
        parts = jnp.where(spread(share, leaf) > 0, leaf * spread(share, leaf), 0.0)
        sums = sum_by(group, jnp.ones(group.shape), parts, k)
        return jnp.where(spread(total, kept) > 0, sums, kept).astype(kept.dtype)

    return jax.tree.map(mean, uploads, default)


def matching_orders(
    model: Model, centre: Model, layers: Sequence[Layer], *, sigma: float | Array = 1.0, sigma_bias: float | Array = 1.0
) -> tuple[Array, ...]:
    """For every hidden layer, which neuron of the model takes the place of each of the centre's.

    Xie et al. 2020, §5.1; Wang et al. 2020 (FedMA), eq. 2.

    Layer by layer, from the input: the layer's inputs are put in the order found for the layer before, and its neurons
    assigned to the centre's at the least total cost, the negative logarithm of their posterior density under Gaussians
    around the centre's neurons. A neuron is its incoming weights, its bias and what goes along with it. With as many
    neurons as the centre has, only the ratio of the two sigmas matters.

    Args:
        model, centre: Flax variables of one network, and of the network it is matched to.
        layers: the network's, from its input to its output.
        sigma, sigma_bias: standard deviations of weights, and of biases, scales and shifts.

    Returns:
        one permutation for every layer but the last. [width] int32
    """
    found: list[Array] = []
    for layer in layers[:-1]:
        ours = neurons(model, layer, found[-1] if found else None, sigma, sigma_bias)
        theirs = neurons(centre, layer, None, sigma, sigma_bias)
        found.append(assignment(assignment_costs(ours, theirs)))
    return tuple(found)


def matched_distance(
    points: Models,
    centres: Models,
    layers: Sequence[Layer],
    *,
    on: Part = everything,
    sigma: float | Array = 1.0,
    sigma_bias: float | Array = 1.0,
    at_once: int = 8,
) -> Array:
    """The squared distance of every model to every centre, its neurons matched to the centre's (Xie et al. 2020, §5.1).

    It does not depend on the order of hidden neurons, as what a network computes does not. Over all parameters, with
    sigmas of 1, it is twice the cost of the assignments in `matching_orders` plus the squared distance of the last layers.

    Args:
        points, centres: models. [s, ...], [k, ...]
        on: what of a model counts, after all its neurons were matched.
        layers, sigma, sigma_bias, at_once: as for `matched_mean`; a client holds k matrices of costs.

    Returns:
        squared distances; NaN where a model is not finite. [s, k]
    """

    def to_centre(model: Model, centre: Model) -> Array:
        found = permuted(model, matching_orders(model, centre, layers, sigma=sigma, sigma_bias=sigma_bias), layers)
        return jnp.asarray(optax.tree.norm(optax.tree.sub(on(found), on(centre)), squared=True))

    to_all = lambda model: jax.vmap(to_centre, (None, 0))(model, centres)
    return jax.lax.map(to_all, points, batch_size=min(at_once, trees.count(points)))


def neurons(model: Model, layer: Layer, inputs: Array | None, sigma: float | Array, sigma_bias: float | Array) -> Array:
    """A layer's neurons, each as its incoming weights, bias, scale and shift in units of their deviations.

    Its inputs are taken in the order `inputs`, if there is one. [width, f]
    """
    params = model["params"]
    kernel = params[layer.name]["kernel"]
    width = kernel.shape[-1]
    kernel = kernel if inputs is None else reordered(kernel, inputs, -2)
    own = {name: leaf for name, leaf in params[layer.name].items() if name != "kernel"}
    vectors = jax.tree.leaves((own, {name: params[name] for name in layer.along if name in params}))
    rows = [kernel.reshape(-1, width) / sigma, *[leaf.reshape(-1, width) / sigma_bias for leaf in vectors]]
    return jnp.concatenate(rows).T


def assignment_costs(ours: Array, theirs: Array) -> Array:
    """-log N(ours; theirs, 1) of every pair of neurons, less its constant. [w, f], [w, f] -> [w, w].

    A client whose weights are not finite costs the same everywhere: no search need face such numbers.
    """
    products = jnp.matmul(ours, theirs.T, precision=trees.EXACT)
    squared = (ours**2).sum(1)[:, None] + (theirs**2).sum(1) - 2 * products
    return jnp.where(jnp.isfinite(squared).all(), 0.5 * squared, 0.0)


def assignment(cost: Array) -> Array:
    """The row that is given to every column so that the costs add up to the least. [w, w] -> [w] int32."""
    rows, columns = hungarian_algorithm(cost)
    return jnp.zeros(cost.shape[1], jnp.int32).at[columns].set(rows.astype(jnp.int32))
