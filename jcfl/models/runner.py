"""How a Flax module is initialised and called: what linen and NNX modules have in common.

The user's module is never changed. `jcfl.models.linen` and `jcfl.models.nnx` make a `Runner` of it.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jcfl.errors import InputError
from jcfl.models.convolution import convolution
from jcfl.types import Array, Key, Model

OnCall = Callable[[str, Any, Any], None]
"""A function `(entry, layer, x)` that is called before every call of a layer: the entry of `model["params"]` that the
layer is part of, the layer itself, and its input."""

ROOT = ""  # the entry of the module itself
WHEN_TRAINING = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}
CONVOLUTION = convolution()  # what runs in place of `jax.lax.conv_general_dilated`


class Runner(NamedTuple):
    """How a module is initialised and called.

    `init(key)` returns a model. `run(model, x, key=None, mask=None, on_call=ignore, method="__call__")` returns the
    output of the module's method and the model after the call. With a key the module runs in training mode, without one
    in evaluation mode.
    """

    init: Callable[[Key], Model]
    run: Callable[..., tuple[Any, Model]]


def ignore(entry: str, layer: Any, x: Any) -> None:
    """Do nothing when a layer is called."""


def own_method(module: Any, name: str) -> Callable[..., Any]:
    """A module's method.

    Raises:
        InputError: it has none of that name.
    """
    if not callable(getattr(module, name, None)):
        raise InputError(f"{type(module).__name__} has no method {name!r}")
    return getattr(module, name)


def call_arguments(function: Callable[..., Any], training: bool, mask: Array | None, n: int) -> dict[str, Any]:
    """Those arguments of a function that say whether the module is being trained and which of the `n` rows are real."""
    known = inspect.signature(function).parameters
    given: dict[str, Any] = {name: training == value for name, value in WHEN_TRAINING.items() if name in known}
    if "mask" in known and (mask is not None or known["mask"].default is inspect.Parameter.empty):
        given["mask"] = jnp.ones(n, bool) if mask is None else mask
    return given


def prepared(
    module: Any, method: str, key: Key | None, mask: Array | None, n: int
) -> tuple[Array | None, dict[str, Any]]:
    """The mask that layers get, and the arguments for a call of a module's method on `n` rows; see `Runner.run`."""
    mask = None if key is None else nonempty(mask)
    return mask, call_arguments(own_method(module, method), key is not None, mask, n)


def nonempty(mask: Array | None) -> Array | None:
    """The mask itself if it has a real row, else a mask of all rows, because the mean of no rows is not a number."""
    return None if mask is None else mask | ~mask.any()


def with_mask(x: Array, kwargs: dict[str, Any], mask: Array | None) -> dict[str, Any]:
    """The keywords of a batch normalisation of `x` [n, ...], with the mask [n] unless the caller gave one."""
    if mask is None or kwargs.get("mask") is not None or x.shape[0] != mask.shape[0]:
        return kwargs
    return {**kwargs, "mask": mask.reshape(-1, *[1] * (x.ndim - 1))}


def cast_like(new: Model, old: Model) -> Model:
    """The variables `new` in the types of `old`, so that a model keeps its types for a whole run."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise InputError("a step of training changes the structure of its variables")
    return jax.tree.map(lambda after, before: jnp.asarray(after, before.dtype), new, old)
