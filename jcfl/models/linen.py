"""Linen modules as runners: linen's interceptors see every call of a layer."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from jcfl.models.products import dense
from jcfl.models.runner import (
    CONVOLUTION,
    ROOT,
    BatchNorm,
    OnCall,
    Runner,
    call_arguments,
    cast_like,
    ignore,
    layer_input,
    normalised,
    prepared,
)
from jcfl.types import Array, Key, Model


def linen_runner(module: nn.Module, shape: tuple[int, ...]) -> Runner:
    """A linen module, made by a call on one example of `shape`."""

    def init(key: Key) -> Model:
        x = jnp.zeros((1, *shape))
        variables = module.init(key, x, **call_arguments(module.__call__, False, None, 1))
        return {**nn.meta.unbox(variables)}

    def run(
        model: Model,
        x: Array,
        key: Key | None = None,
        mask: Array | None = None,
        on_call: OnCall = ignore,
        method: str = "__call__",
    ) -> tuple[Any, Model]:
        mask, arguments = prepared(module, method, key, mask, x.shape[0])
        mutable = False if key is None else [name for name in model if name != "params"]
        rngs = None if key is None else {"params": key}  # every other stream falls back on it
        with nn.intercept_methods(interceptor(on_call, mask)):
            out = module.apply(model, x, **arguments, method=method, mutable=mutable, rngs=rngs)
        if key is None:
            return out, model
        out, changed = out
        return out, {**model, **cast_like(changed, {name: model[name] for name in changed})}

    return Runner(init, run)


def interceptor(on_call: OnCall, mask: Array | None) -> Callable[..., Any]:
    """What linen runs around every call of a method.

    It reports calls of layers to `on_call`, gives `BatchNorm` the mask, and runs convolutions as `CONVOLUTION` and the
    products of dense layers as `dense`.
    """
    copies: list[nn.Module] = []  # of layers, whose calls are not reported again

    def copied(layer: nn.Module, **changes: Any) -> nn.Module:
        """A copy of a bound layer that has the same variables and other options."""
        assert layer.scope is not None
        # The names in the scope are taken once the layer has been called; a rewound scope lets the copy use them again.
        copies.append(layer.clone(parent=layer.scope.rewound(), **changes))
        return copies[-1]

    def around(call: Callable[..., Any], args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext):
        layer = context.module
        if context.method_name != "__call__" or any(layer is copy for copy in copies):
            return call(*args, **kwargs)
        given = layer_input(type(layer), args, kwargs)
        if given is not None:
            on_call(layer.path[0] if layer.path else ROOT, layer, given[0])
            if isinstance(layer, nn.BatchNorm):
                running = lambda x: copied(layer, use_running_average=True)(x)
                return normalised(BatchNorm(layer, call, running, *statistics(layer)), *given, mask)
        if isinstance(layer, nn.Conv) and can_be_lowered(layer):
            return copied(layer, conv_general_dilated=CONVOLUTION)(*args, **kwargs)
        if isinstance(layer, nn.Dense) and can_be_multiplied(layer):
            return copied(layer, dot_general=dense)(*args, **kwargs)
        return call(*args, **kwargs)

    return around


def statistics(layer: nn.BatchNorm) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """How the running mean and variance of a linen layer are read and written."""
    names = "mean", "var"

    def write(values: Any) -> None:
        for name, value in zip(names, values, strict=True):
            layer.put_variable("batch_stats", name, value)

    return lambda: [layer.get_variable("batch_stats", name) for name in names], write


def can_be_multiplied(layer: nn.Dense) -> bool:
    """Whether a dense layer of linen is bound and its user has not chosen how it multiplies."""
    return layer.scope is not None and layer.dot_general is layer.dot_general_cls is None


def can_be_lowered(layer: nn.Conv) -> bool:
    """Whether a linen convolution is bound and its user has not chosen how it runs."""
    return layer.scope is not None and layer.conv_general_dilated is layer.conv_general_dilated_cls is None
