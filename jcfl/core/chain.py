"""Networks that are a chain of layers, and the order of the neurons in them."""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jcfl.core.calls import called_parameters
from jcfl.errors import InputError
from jcfl.registry import Same
from jcfl.types import Array, Model, Task


class Layer(NamedTuple):
    """One dense or convolutional layer of a chain, by the names of its entries in a model.

    The last axis of the layer's kernel is its neurons, the axis before it its inputs. There are as many inputs as
    neurons in the layer before; after flattened convolutions, inputs are positions × channels, and the channel runs
    fastest.
    """

    name: str  # of the entry with the kernel
    along: tuple[str, ...] = ()  # of the entries that hold one number per neuron, such as a batch normalisation's


def chain(task: Task, shape: Sequence[int]) -> tuple[Layer, ...]:
    """The layers of a model that is a chain of dense and convolutional layers, in the order in which it calls them.

    That the model is a chain is tried out: after its hidden neurons were shuffled, it has to give the same logits.

    Args:
        task: the model.
        shape: of one example.

    Raises:
        InputError: the model is not such a chain.
    """
    return known_chain(Same(task), tuple(shape))


@lru_cache(maxsize=8)  # trying out a model takes as long as making a method, and several methods ask for the same model
def known_chain(same: Same, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    """The layers of `chain`, found once for each model."""
    task: Task = same.thing
    rng = np.random.default_rng(0)
    model = arbitrary_model(rng, jax.eval_shape(task.init, jax.random.key(0)))
    x = rng.standard_normal((4, *shape)).astype(jnp.result_type(float))
    layers = called_layers(task, model, x)
    reason = why_no_chain(rng, task, model, x, layers)
    if reason:
        name = task.name or "the model"
        raise InputError(f"{name} is not a chain of dense and convolutional layers to match neurons in: {reason}")
    return layers


def why_no_chain(rng: np.random.Generator, task: Task, model: Model, x: np.ndarray, layers: Sequence[Layer]) -> str:
    """Why these layers are no chain; an empty string if they are one."""
    if not layers:
        return "its parameters are not all layers with a kernel, each in an entry of its own"
    kernels = {layer.name: model["params"][layer.name]["kernel"] for layer in layers}
    for one, two in itertools.pairwise(kernels):
        inputs, width = kernels[two].shape[-2], kernels[one].shape[-1]
        if inputs % width:
            return f"{two!r} has {inputs} inputs after the {width} neurons of {one!r}"
    orders = [rng.permutation(kernel.shape[-1]) for kernel in kernels.values()][:-1]
    answers = jax.jit(lambda orders: [task.apply(m, x)[0] for m in (model, permuted(model, orders, layers))])
    try:
        with jax.ensure_compile_time_eval():  # a method may be compiled while JAX traces its options
            before, after = map(np.asarray, answers(orders))
    except TypeError:
        return "not every number beside a kernel belongs to one neuron"
    same = np.allclose(before, after, rtol=1e-3, atol=1e-3 * np.abs(before).max())
    return "" if same else "with its hidden neurons shuffled it predicts something else"


def arbitrary_model(rng: np.random.Generator, shapes: Model) -> Model:
    """A model of these shapes with random vectors, so that a vector which a permutation forgets changes the logits."""

    def drawn(leaf: Any) -> np.ndarray:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return np.zeros(leaf.shape, leaf.dtype)
        kernel = leaf.ndim > 1
        values = rng.standard_normal(leaf.shape) if kernel else rng.uniform(0.5, 1.5, leaf.shape)
        return (values * ((leaf.shape[-1] / leaf.size) ** 0.5 if kernel else 1.0)).astype(leaf.dtype)

    return jax.tree.map(drawn, shapes)


def called_layers(task: Task, model: Model, x: np.ndarray) -> tuple[Layer, ...]:
    """The layers of a model in the order in which a call uses them; none if an entry cannot be part of a chain.

    Entries without a kernel belong to the layer before them.
    """
    used = list(dict.fromkeys(path[1] for path in called_parameters(task, model, x) if len(path) == 3))
    known = {name for group in model.values() for name in group}
    if set(used) != known or any(len(path) != 3 for path, _ in jax.tree.leaves_with_path(model)):
        return ()
    layers: list[Layer] = []
    for name in used:
        if np.ndim(model["params"].get(name, {}).get("kernel", 0)) > 1:
            layers.append(Layer(name))
        elif layers:
            layers[-1] = Layer(layers[-1].name, (*layers[-1].along, name))
        else:
            return ()
    return tuple(layers)


def permuted(model: Model, permutations: Sequence[Array], layers: Sequence[Layer]) -> Model:
    """The same network with its hidden neurons in another order.

    Args:
        model: Flax variables: `params`, and `batch_stats` where there are any.
        permutations: for each of `layers` but the last, the old place of the neuron in each new place. [width] int
        layers: the network's, from its input to its output.
    """
    groups = {group: dict(entries) for group, entries in model.items()}
    for layer, following, order in zip(layers[:-1], layers[1:], permutations, strict=True):
        for entries in groups.values():
            for name in {layer.name, *layer.along} & entries.keys():
                entries[name] = jax.tree.map(lambda leaf: reordered(leaf, order, -1), entries[name])
        next_layer = groups["params"][following.name]
        groups["params"][following.name] = {**next_layer, "kernel": reordered(next_layer["kernel"], order, -2)}
    return groups


def reordered(leaf: Array, order: Array, axis: int) -> Array:
    """A leaf with one axis reordered. If the axis is longer than `order` [w], each block of w entries is reordered."""
    moved = jnp.moveaxis(leaf, axis, -1)
    blocks = moved.reshape(*moved.shape[:-1], -1, order.size)[..., order]
    return jnp.moveaxis(blocks.reshape(moved.shape), -1, axis)
