"""Layers of linen that are called in unusual ways, and the gradients of a module with and without jcfl."""

from typing import Any

import jax
from flax import linen as nn

from jcfl.types import Task


def called_oddly(layer: type[nn.Module], own: type[nn.Module], options: dict[str, Any], x: jax.Array) -> jax.Array:
    """The output of layers that are called twice, by a keyword, rematerialised, of a user's class, and scanned.

    Args:
        layer: the class of the layers.
        own: the user's class.
        options: of every layer, whose outputs are as many as the inputs of the next.
    """
    twice = layer(**options)
    x = twice(inputs=twice(layer(**options)(x)))
    x = nn.remat(layer)(**options)(own(**options)(x))
    step = lambda layer, x, _: (layer(x), None)
    axes = {"variable_broadcast": "params", "split_rngs": {"params": False}, "length": 2}
    return nn.scan(step, **axes)(layer(**options, name="scanned"), x, None)[0]


def gradients(one: Task, module: nn.Module, x: jax.Array, key: jax.Array) -> tuple[Any, Any]:
    """The gradients of the summed squares of a module's outputs: by its task, and by Flax."""
    model = jax.jit(one.init)(key)
    assert jax.tree.structure(model) == jax.tree.structure(jax.eval_shape(module.init, key, x))
    value = lambda answer: jax.jit(jax.grad(lambda params: (answer({"params": params}) ** 2).sum()))(model["params"])
    return value(lambda model: one.apply(model, x, key=key)[0]), value(lambda model: module.apply(model, x))
