"""Matched averaging: before models are averaged, their hidden neurons are put in the order of a centre's neurons.

The order of its hidden neurons does not change what a network computes. Two clients may therefore have learnt the same
feature in different neurons, and the mean of their models loses it. The method is that of Xie et al. 2020,
"Multi-Center Federated Learning" (§5.1, §8), https://arxiv.org/abs/2005.01026. It builds on Wang et al. 2020 (FedMA),
https://arxiv.org/abs/2002.06440, and Yurochkin et al. 2019 (PFNM), https://arxiv.org/abs/1905.12022.
"""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import optax
from optax.assignment import hungarian_algorithm

from jcfl import trees
from jcfl.core.averaging import mean_by_entry, present_labels, weighted_mean
from jcfl.core.chain import Layer, permuted, reordered
from jcfl.core.objective import Part, everything
from jcfl.types import Array, Model, Models


def matched_mean(
    labels: Array,
    weights: Array,
    uploads: Models,
    default: Models,
    layers: Sequence[Layer],
    class_counts: Array,
    *,
    sigma: float | Array = 1.0,
    sigma_bias: float | Array = 1.0,
    at_once: int = 8,
) -> Models:
    """The mean of a cluster's clients after their neurons were matched to the cluster's model (Xie et al. 2020, §5.1).

    Hidden layers are averaged by `weights`. The last layer is averaged class by class: a client's weight is its number
    of training examples of the class. A class of which no client has examples keeps its old parameters.

    With `layers` and `class_counts` bound, this is an averaging rule; see `jcfl.core.averaging`.

    Args:
        labels: every client's cluster. [s] int
        weights: every client's weight, 0 for one that is absent. [s] float
        uploads: the clients' models. [s, ...]
        default: the clusters' models. Clients are matched to them, and clusters without clients keep them. [k, ...]
        layers: the network's, from its input to its output.
        class_counts: how many training examples of every class each client has. [s, c]
        sigma, sigma_bias: as for `matching_orders`.
        at_once: how many clients are matched at a time; each of them needs a [width, width] matrix of costs.

    Returns:
        the clusters' models. [k, ...]

    Deviations:
        The width of the layers is fixed, so every neuron of a client has a partner in the centre. The centre is the
        cluster's model; the paper grows it by matching one client after another. The paper's released code has no
        clustered version.
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
    """The clusters' means of the last layer, weighted by class counts [s, c].

    The last axis of its leaves is the classes: uploads [s, ..., c] and `default` [k, ..., c] give [k, ..., c].
    """
    group = present_labels(labels, weights, trees.count(default))
    return mean_by_entry(group, jax.tree.map(lambda leaf: by_class(class_counts, leaf), uploads), uploads, default)


def by_class(class_counts: Array, leaf: Array) -> Array:
    """Class counts [s, c] with the axes of a leaf [s, ..., c]. [s, 1, ..., c] float"""
    return class_counts.reshape(class_counts.shape[0], *[1] * (leaf.ndim - 2), -1).astype(float)


def matching_orders(
    model: Model, centre: Model, layers: Sequence[Layer], *, sigma: float | Array = 1.0, sigma_bias: float | Array = 1.0
) -> tuple[Array, ...]:
    """For every hidden layer, which neuron of the model belongs to each of the centre's neurons.

    Xie et al. 2020, §5.1; Wang et al. 2020 (FedMA), eq. 2.

    The layers are matched one by one, beginning at the input. The inputs of a layer are put in the order that was found
    for the layer before. Then its neurons are assigned to the centre's neurons so that the total cost is least. The
    cost of a pair is the negative logarithm of the density of the model's neuron under a Gaussian around the centre's.
    A neuron is the vector of its incoming weights, its bias, and its entries in `Layer.along`. Because both networks
    have equally many neurons, only the ratio of the two sigmas matters.

    Args:
        model, centre: Flax variables of one network, and of the network that it is matched to.
        layers: the network's, from its input to its output.
        sigma: the standard deviation of a client's weights around the centre's.
        sigma_bias: the same for biases, scales and shifts.

    Returns:
        one permutation for every layer but the last, as `permuted` takes them. [width] int32
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
    """Squared distances of models to centres after neurons were matched to the centre's (Xie et al. 2020, §5.1).

    The distance does not depend on the order of a model's hidden neurons. Over all parameters and with sigmas of 1, it
    is twice the cost of the assignments in `matching_orders` plus the squared distance of the last layers.

    Args:
        points, centres: models. [s, ...], [k, ...]
        on: the part of a model whose distance is taken; all neurons are matched before.
        layers, sigma, sigma_bias, at_once: as for `matched_mean`; here each client needs k matrices of costs.

    Returns:
        squared distances; NaN where a model is not finite. [s, k] float
    """

    def to_centre(model: Model, centre: Model) -> Array:
        found = permuted(model, matching_orders(model, centre, layers, sigma=sigma, sigma_bias=sigma_bias), layers)
        return jnp.asarray(optax.tree.norm(optax.tree.sub(on(found), on(centre)), squared=True))

    to_all = lambda model: jax.vmap(to_centre, (None, 0))(model, centres)
    return jax.lax.map(to_all, points, batch_size=min(at_once, trees.count(points)))


def neurons(model: Model, layer: Layer, inputs: Array | None, sigma: float | Array, sigma_bias: float | Array) -> Array:
    """A layer's neurons as vectors: incoming weights over `sigma`, then bias, scale and shift over `sigma_bias`.

    Args:
        inputs: the order in which the layer's inputs are taken, if not their own. [inputs] int

    Returns:
        [width, f] float, in the dtypes of sums: distances of neurons that are much alike need the digits
    """
    params = trees.for_sums(model["params"])
    kernel = params[layer.name]["kernel"]
    width = kernel.shape[-1]
    kernel = kernel if inputs is None else reordered(kernel, inputs, -2)
    own = {name: leaf for name, leaf in params[layer.name].items() if name != "kernel"}
    vectors = jax.tree.leaves((own, {name: params[name] for name in layer.along if name in params}))
    rows = [kernel.reshape(-1, width) / sigma, *[leaf.reshape(-1, width) / sigma_bias for leaf in vectors]]
    return jnp.concatenate(rows).T


def assignment_costs(ours: Array, theirs: Array) -> Array:
    """Half the squared distance of every pair of neurons. [w, f], [w, f] -> [w, w]

    This is -log N(ours; theirs, 1) without its constant. If a number is not finite, all costs are 0, because the search
    for an assignment cannot work with such numbers.
    """
    products = jnp.matmul(ours, theirs.T, precision=trees.EXACT)
    squared = (ours**2).sum(1)[:, None] + (theirs**2).sum(1) - 2 * products
    return jnp.where(jnp.isfinite(squared).all(), 0.5 * squared, 0.0)


def assignment(cost: Array) -> Array:
    """The row assigned to every column so that the sum of costs is least. [w, w] -> [w] int32"""
    rows, columns = hungarian_algorithm(cost)
    return jnp.zeros(cost.shape[1], jnp.int32).at[columns].set(rows.astype(jnp.int32))
