"""Detection of a first dense layer, which lets clients be trained without a kernel of their own each.

The fast path (`jcfl.fast`) needs three things of a `Task`, and reads them from `task.first` alone; it never looks at
the type of the module. A user who writes a `Task` by hand can give a `First` too.

1. `first.path` names a dense layer of `model["params"]`: `kernel` [d, h] and, if it has one, `bias` [h].
2. The layer is called once in every call of the model, on the examples flattened to [n, d] and changed in no other way.
3. `first.rest(model, product [n, h], key=, mask=)` equals `task.apply(model, x, key=, mask=)` if `product` is
   `x @ kernel + bias`. It uses neither the examples nor the layer's parameters: the product is the only way from the
   examples to the logits and to variables that training changes, such as running statistics.

For linen modules `first_dense` finds such a layer and verifies the conditions on the traced program. A module for which
they do not hold has `first = None`, and runs on the general path.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.extend.core import Jaxpr, Var

from jcfl.models.runner import Runner, layer_input
from jcfl.types import Array, First, Key, Model

RESHAPES = {"reshape", "squeeze", "expand_dims", "copy"}


def first_dense(runner: Runner, model: Model, shape: Sequence[int]) -> First | None:
    """The dense layer that takes the flattened examples and through which alone they reach the logits.

    Args:
        runner: of a linen module.
        model: shapes are enough.
        shape: of one example.

    Returns:
        None if there is no such layer, for instance because the first layer is a convolution, or because the examples
        are used a second time.
    """
    layer = candidate(runner, model, shape)
    if layer is None:
        return None
    path = layer.path
    width = layer.features

    def rest(model: Model, product: Array, *, key: Key | None = None, mask: Array | None = None) -> tuple[Array, Model]:
        blank = jnp.zeros((product.shape[0], *shape), product.dtype)
        with nn.intercept_methods(with_product(path, product, [])):
            return runner.run(model, blank, key, mask)

    # With a mask, or when it is evaluated, a module may compute something else than when it trains.
    calls = [(key, mask) for key in (jax.random.key(0), None) for mask in (None, jnp.ones(2, bool))]
    through = (only_through(runner, model, shape, path, width, key, mask) for key, mask in calls)
    return First(path, rest) if all(through) else None


def candidate(runner: Runner, model: Model, shape: Sequence[int]) -> nn.Dense | None:
    """The first dense layer called; None if it does not take whole examples as vectors, or is not computed as usual."""
    called: list[tuple[nn.Dense, Array]] = []
    on_call = lambda entry, layer, x: called.append((layer, x)) if isinstance(layer, nn.Dense) else None
    x = jax.ShapeDtypeStruct((2, *shape), jnp.result_type(float))
    jax.eval_shape(lambda model, x: runner.run(model, x, None, None, on_call)[0], model, x)
    if not called or called[0][1].shape != (2, math.prod(shape)):
        return None
    dense, _ = called[0]
    usual = type(dense).__call__ is nn.Dense.__call__  # a layer that derives from it may compute something else
    return dense if usual and dense.dtype is dense.dot_general is dense.dot_general_cls is None else None


def with_product(path: tuple[str, ...], product: Array, calls: list[Any]) -> Callable[..., Any]:
    """An interceptor by which the layer at `path` returns `product` [n, h]; its input and parameters go to `calls`."""

    def around(call: Callable[..., Any], args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext):
        layer = context.module
        if context.method_name != "__call__" or layer.path != path:
            return call(*args, **kwargs)
        given = layer_input(type(layer), args, kwargs)
        calls.append((None if given is None else given[0], layer.variables.get("params", {})))
        return product

    return around


def only_through(
    runner: Runner,
    model: Model,
    shape: Sequence[int],
    path: tuple[str, ...],
    width: int,
    key: Key | None,
    mask: Array | None,
) -> bool:
    """Whether the layer at `path` is called once, on the flattened examples, with the model's own parameters.

    And whether nothing else uses the examples or these parameters, if the model is called with this key and mask.
    """
    calls: list[Any] = []
    own: list[bool] = []  # of each parameter that the layer has, whether it is the model's

    def run(x: Array, product: Array, model: Model, mask: Array | None):
        calls.clear()
        with nn.intercept_methods(with_product(path, product, calls)):
            found = runner.run(model, x, key, mask)
        own[:] = [held is of_layer(model, path).get(name) for _, params in calls for name, held in params.items()]
        return found, [x for x, _ in calls]

    kind = jnp.result_type(float)
    x, product = jax.ShapeDtypeStruct((2, *shape), kind), jax.ShapeDtypeStruct((2, width), kind)
    if getattr(of_layer(model, path).get("kernel"), "shape", None) != (math.prod(shape), width):
        return False
    jaxpr = jax.make_jaxpr(run)(x, product, model, mask).jaxpr
    if len(calls) != 1 or not all(own):
        return False
    *others, seen = jaxpr.outvars  # the logits and the variables, then the layer's input
    entries = [tuple(step.key for step in place) for place, _ in jax.tree_util.tree_leaves_with_path(model)]
    whole = ("params", *path)
    of_model = jaxpr.invars[2 : 2 + len(entries)]
    parameters = [var for var, entry in zip(of_model, entries, strict=True) if entry[: len(whole)] == whole]
    changed = [out for out in others if out not in parameters]  # a program also returns what it leaves as it is
    return flattened(jaxpr, seen) and not any(depends(jaxpr, out, [jaxpr.invars[0], *parameters]) for out in changed)


def of_layer(model: Model, path: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of the layer at `path`, by name; empty if the model has none there."""
    found: Any = model.get("params", {})
    for name in path:
        found = found.get(name, {}) if hasattr(found, "get") else {}
    return found


def flattened(jaxpr: Jaxpr, out: Any) -> bool:
    """Whether `out` is the program's first argument, reshaped to one vector for each example."""
    made = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
    if out.aval.ndim != 2:
        return False
    while out in made:
        if made[out].primitive.name not in RESHAPES:
            return False
        (out,) = made[out].invars
    return out is jaxpr.invars[0]


def depends(jaxpr: Jaxpr, out: Any, sources: Sequence[Var]) -> bool:
    """Whether `out` may depend on some of the program's variables."""
    if not isinstance(out, Var):  # a constant
        return False
    touched = {*sources}
    for equation in jaxpr.eqns:
        if any(isinstance(var, Var) and var in touched for var in equation.invars):
            touched.update(equation.outvars)
    return out in touched
