"""The distance of two models by their convolution kernels, which does not depend on the order of the kernels.

Bhattacharya and Aridi, "Empirical Exploration of Clustered Federated Learning", §4.4.3.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jcfl.core.calls import called_parameters
from jcfl.core.objective import Part
from jcfl.errors import InputError
from jcfl.grouping.kmeans import Distance, kernel_distance
from jcfl.types import Array, Model, Task


def convolutions(task: Task, shape: Sequence[int], *, only_first: bool = False) -> Part:
    """The function that takes the convolution kernels from a model, in the order in which a call uses them.

    Args:
        task: the model.
        shape: of one example.
        only_first: whether to take the first convolution alone, as the paper does.

    Returns:
        `represent(model) -> [kernels [height, width, in, out], ...]`

    Raises:
        InputError: the model has no convolution.
    """
    model = jax.eval_shape(task.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, *shape), jnp.result_type(float))
    is_kernel = lambda path: path[0] == "params" and leaf_at(model, path).ndim == 4
    found = list(filter(is_kernel, called_parameters(task, model, x)))
    if not found:
        name = task.name or "the model"
        raise InputError(f"{name} has no convolution, and the layer distance compares convolution kernels; use l1")
    chosen = found[:1] if only_first else found
    return lambda model: [leaf_at(model, path) for path in chosen]


def leaf_at(model: Model, path: Sequence[str]) -> Array:
    """The leaf of nested dictionaries at a path."""
    for name in path:
        model = model[name]
    return model


def layer_distance(shapes: Sequence[Sequence[int]]) -> Distance:
    """The layer distance (eq. 9) of models that are given as vectors: their flattened kernels, layer by layer.

    It is the sum, over the kernels of one model, of the L1 distance to the nearest kernel in the same layer of the
    other model. It is not symmetric, because two kernels of one model may have the same nearest kernel.

    Args:
        shapes: of the layers' weights, each (height, width, in, out).

    Returns:
        `distance(points [m, d], centres [k, d]) -> [m, k]`, with d the number of weights in all layers; a `metric` for
        `jcfl.grouping.kmeans`.

    Deviations:
        The paper compares the first convolution alone, which is `convolutions(..., only_first=True)`.
    """
    sizes = [math.prod(shape) for shape in shapes]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]

    def distance(points: Array, centres: Array) -> Array:
        layers = [
            kernel_distance(*(rows[:, end - size : end].reshape(-1, *shape) for rows in (points, centres)))
            for shape, size, end in zip(shapes, sizes, ends, strict=True)
        ]
        return jnp.stack(layers).sum(0)

    return distance
