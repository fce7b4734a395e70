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


def layer_input(kind: type, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, tuple, dict[str, Any]] | None:
    """What a layer of a class is called on, by place or by name, and its other arguments; None if it takes no input."""
    if args:
        return args[0], args[1:], kwargs
    first = next(iter([*inspect.signature(kind.__call__).parameters][1:]), None)  # after self
    if first not in kwargs:
        return None
    return kwargs[first], (), {name: value for name, value in kwargs.items() if name != first}


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


class BatchNorm(NamedTuple):
    """A batch normalisation of Flax, linen's or NNX's, and how it is called."""

    layer: Any
    call: Callable[..., Array]  # as its user calls it
    running: Callable[[Array], Array]  # normalises by the running statistics
    read: Callable[[], Any]  # the running mean and variance
    write: Callable[[Any], None]


def normalised(
    norm: BatchNorm, x: Array, arguments: tuple[Any, ...], named: dict[str, Any], mask: Array | None
) -> Array:
    """The output of a batch normalisation, whose statistics are those of the real rows while it is trained.

    Args:
        x, arguments, named: what its user calls it with; a mask that the user names is left as it is. `x` has an entry
            for each row, or a whole number of entries, those of a row next to each other.
        mask: the real rows. [n] bool
    """
    layer = norm.layer
    if mask is None or named.get("mask") is not None or x.shape[0] % mask.shape[0]:
        return norm.call(x, *arguments, **named)
    mask = jnp.repeat(mask, x.shape[0] // mask.shape[0])
    options = dict(zip(["use_running_average"], arguments, strict=False)) | named
    trained = not options.get("use_running_average", layer.use_running_average)
    usual = layer.axis in (-1, x.ndim - 1) and layer.axis_name is None and layer.use_fast_variance
    if not (trained and usual):
        return norm.call(x, *arguments, **{**named, "mask": mask.reshape(-1, *[1] * (x.ndim - 1))})
    before, now = norm.read(), row_statistics(x, mask)
    norm.write(now)
    out = norm.running(x)
    norm.write([layer.momentum * old + (1 - layer.momentum) * new for old, new in zip(before, now, strict=True)])
    return out


def row_statistics(x: Array, mask: Array) -> tuple[Array, Array]:
    """The mean and the variance of each channel over the real rows, as Flax computes them with a mask.

    Flax counts the real rows by a sum over an array as large as `x`, which on a CPU took longer than the other sums.

    Args:
        x: [n, ..., c]
        mask: the real rows, at least one. [n] bool

    Returns:
        mean [c], variance [c]
    """
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    axes = tuple(range(x.ndim - 1))
    count = mask.sum() * (x.size // (x.shape[0] * x.shape[-1]))
    rows = jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, 0)
    mean = rows.sum(axes) / count
    return mean, jnp.maximum((rows * rows).sum(axes) / count - mean * mean, 0)


def cast_like(new: Model, old: Model) -> Model:
    """The variables `new` in the types of `old`, so that a model keeps its types for a whole run."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise InputError("a step of training changes the structure of its variables")
    return jax.tree.map(lambda after, before: jnp.asarray(after, before.dtype), new, old)
