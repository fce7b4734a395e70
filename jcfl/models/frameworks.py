"""Flax's two kinds of module, linen and NNX, called alike."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from jcfl.errors import InputError
from jcfl.models.convolution import convolution
from jcfl.types import Array, Key, Model

Listen = Callable[[str, Any, Any], None]
"""Told the entry of the parameters that a layer belongs to, the layer and its input, whenever a layer is called."""

ROOT = ""  # the entry of the module itself
WHEN_TRAINING = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}


class Runner(NamedTuple):
    """How a module is made and called.

    `init(key)` gives a model. `run(model, x, key, mask, listen, method="__call__")` gives what the module's method does
    and the model after it: in training mode with a key, in evaluation mode without.
    """

    init: Callable[[Key], Model]
    run: Callable[..., tuple[Any, Model]]


def silent(entry: str, layer: Any, x: Any) -> None:
    """Hear nothing."""


def linen_runner(module: nn.Module, shape: tuple[int, ...]) -> Runner:
    """A linen module, made by a call on one example of `shape`."""

    def init(key: Key) -> Model:
        x = jnp.zeros((1, *shape))
        variables = module.init(key, x, **flags(module.__call__, False, None, 1))
        return {**nn.meta.unbox(variables)}

    def run(
        model: Model,
        x: Array,
        key: Key | None = None,
        mask: Array | None = None,
        listen: Listen = silent,
        method: str = "__call__",
    ) -> tuple[Any, Model]:
        training = key is not None
        mask = usable(mask) if training else None
        arguments = flags(own_method(module, method), training, mask, x.shape[0])
        mutable = [name for name in model if name != "params"] if training else False
        rngs = {"params": key} if training else None  # every other stream falls back on it
        with nn.intercept_methods(interceptor(listen, mask)):
            out = module.apply(model, x, **arguments, method=method, mutable=mutable, rngs=rngs)
        if not training:
            return out, model
        out, changed = out
        return out, {**model, **alike(changed, {name: model[name] for name in changed})}

    return Runner(init, run)


def own_method(module: Any, name: str) -> Callable[..., Any]:
    """A module's method.

    Raises:
        InputError: it has none of that name.
    """
    if not callable(getattr(module, name, None)):
        raise InputError(f"{type(module).__name__} has no method {name!r}")
    return getattr(module, name)


def flags(function: Callable[..., Any], training: bool, mask: Array | None, n: int) -> dict[str, Any]:
    """The arguments, of those a module may take, that tell it about training and about real rows."""
    known = inspect.signature(function).parameters
    given: dict[str, Any] = {name: training == value for name, value in WHEN_TRAINING.items() if name in known}
    if "mask" in known and (mask is not None or known["mask"].default is inspect.Parameter.empty):
        given["mask"] = jnp.ones(n, bool) if mask is None else mask
    return given


def usable(mask: Array | None) -> Array | None:
    """A mask under which there are rows: all of them where it had none, as the mean of no rows is not a number."""
    return None if mask is None else mask | ~mask.any()


def interceptor(listen: Listen, mask: Array | None) -> Callable[..., Any]:
    """What linen does around every call of a layer: tell `listen`, and give `BatchNorm` the mask."""

    def around(call: Callable[..., Any], args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext):
        layer = context.module
        if context.method_name == "__call__" and args:
            listen(layer.path[0] if layer.path else ROOT, layer, args[0])
            if isinstance(layer, nn.BatchNorm):
                kwargs = masked(args[0], kwargs, mask)
        with fast(layer):
            return call(*args, **kwargs)

    return around


@contextmanager
def fast(layer: nn.Module) -> Iterator[None]:
    """Inside, a convolution that leaves it to Flax how it runs is one of ours."""
    free = isinstance(layer, nn.Conv) and layer.conv_general_dilated is layer.conv_general_dilated_cls is None
    if free:
        object.__setattr__(layer, "conv_general_dilated", convolution())
    try:
        yield
    finally:
        if free:
            object.__setattr__(layer, "conv_general_dilated", None)


def masked(x: Array, kwargs: dict[str, Any], mask: Array | None) -> dict[str, Any]:
    """The keywords of a batch normalisation of `x` [n, ...], with the mask [n] where it has none of its own."""
    if mask is None or kwargs.get("mask") is not None or x.shape[0] != mask.shape[0]:
        return kwargs
    return {**kwargs, "mask": mask.reshape(-1, *[1] * (x.ndim - 1))}


def alike(new: Model, old: Model) -> Model:
    """`new` in the types of `old`, so that a model is of one type for all of a run."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise InputError("a step of training changes the structure of its variables")
    return jax.tree.map(lambda after, before: jnp.asarray(after, before.dtype), new, old)


def nnx_runner(make: Callable[..., Any]) -> Runner:
    """An NNX module, made by a class or a function from `rngs`.

    The model holds its `Param` variables under `params`, its `BatchStat` ones under `batch_stats` and what else it has
    under `other`; the state of its random streams is made from the key of each call.
    """
    kinds = (nnx.Param, nnx.BatchStat, nnx.RngState, ...)
    graph, *empty = nnx.split(nnx.eval_shape(lambda: built(make, jax.random.key(0))), *kinds)

    def init(key: Key) -> Model:
        params, stats, _, other = nnx.state(built(make, key), *kinds)
        return collections(params, stats, other)

    def run(
        model: Model,
        x: Array,
        key: Key | None = None,
        mask: Array | None = None,
        listen: Listen = silent,
        method: str = "__call__",
    ) -> tuple[Any, Model]:
        training = key is not None
        mask = usable(mask) if training else None
        parts = [filled(empty[i], model.get(name, {})) for i, name in ((0, "params"), (1, "batch_stats"), (3, "other"))]
        streams = seeded(empty[2], jax.random.key(0) if key is None else key)
        module = nnx.merge(graph, parts[0], parts[1], streams, parts[2])
        module.train() if training else module.eval()
        arguments = flags(own_method(module, method), training, mask, x.shape[0])
        overhear(module, listen, mask)
        listen(ROOT, module, x)
        out = own_method(module, method)(x, **arguments)
        if not training:
            return out, model
        _, stats, _, other = nnx.state(module, *kinds)
        changed = {name: part for name, part in collections({}, stats, other).items() if name != "params"}
        return out, {**model, **alike(changed, {name: part for name, part in model.items() if name != "params"})}

    return Runner(init, run)


def built(make: Callable[..., Any], key: Key) -> nnx.Module:
    """An NNX module from a key."""
    named = "rngs" in inspect.signature(make).parameters
    module = make(rngs=nnx.Rngs(key)) if named else make(nnx.Rngs(key))
    if not isinstance(module, nnx.Module):
        raise InputError(f"expected a function of rngs that makes an NNX module, it made {type(module).__name__}")
    return module


def collections(params: Any, stats: Any, other: Any) -> Model:
    """The variables of an NNX module, by kind; kinds it lacks are left out."""
    parts = {"params": by_layer(params), "batch_stats": by_layer(stats), "other": by_layer(other)}
    return {name: part for name, part in parts.items() if part}


def by_layer(state: Any) -> dict[str, Any]:
    """Arrays of an NNX state by the layer that owns them, its path joined by dots, and by their names there."""
    table: dict[str, Any] = {}
    for path, leaf in jax.tree.leaves_with_path(state):
        layer, name = place(path)
        if layer == ROOT:
            table[name] = leaf
        else:
            table.setdefault(layer, {})[name] = leaf
    return table


def place(path: tuple) -> tuple[str, str]:
    """The layer and the name of an array, by its path in an NNX state."""
    keys = [str(getattr(part, "key", part)) for part in path if not isinstance(part, jax.tree_util.GetAttrKey)]
    return ".".join(keys[:-1]), keys[-1]


def filled(state: Any, table: dict[str, Any]) -> Any:
    """An NNX state with the arrays of a table as `by_layer` gives it."""

    def found(path: tuple, _: Any) -> Array:
        layer, name = place(path)
        return table[name] if layer == ROOT else table[layer][name]

    return jax.tree.map_with_path(found, state)


def seeded(state: Any, key: Key) -> Any:
    """The random streams of an NNX module begun anew from a key, each with its own."""
    leaves, structure = jax.tree.flatten(state)
    keys = jax.random.split(key, len(leaves) + 1)
    begun = []
    for leaf, own in zip(leaves, keys[1:], strict=True):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        begun.append(jax.random.split(own, leaf.shape) if is_key else jnp.zeros(leaf.shape, leaf.dtype))
    return jax.tree.unflatten(structure, begun)


def overhear(module: nnx.Module, listen: Listen, mask: Array | None) -> None:
    """Let the layers of a module made for one call tell `listen`, `BatchNorm` have the mask, convolutions be ours."""
    for path, layer in list(nnx.iter_graph(module)):
        if path and isinstance(layer, nnx.Module) and callable(layer):
            entry = ".".join(map(str, path))
            object.__setattr__(layer, "__class__", overheard(type(layer)))
            object.__setattr__(layer, "_overhear", (functools.partial(listen, entry), mask))
        if isinstance(layer, nnx.Conv) and layer.conv_general_dilated is jax.lax.conv_general_dilated:
            object.__setattr__(layer, "conv_general_dilated", convolution())


@functools.cache
def overheard(kind: type) -> type:
    """A kind of NNX layer that tells of its calls."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        listen, mask = vars(self)["_overhear"]
        if args:
            listen(self, args[0])
            if isinstance(self, nnx.BatchNorm):
                kwargs = masked(args[0], kwargs, mask)
        return kind.__call__(self, *args, **kwargs)

    return type(kind)(kind.__name__, (kind,), {"__call__": call})
