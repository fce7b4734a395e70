"""NNX modules as runners.

NNX has no interceptors. A copy of the module is made for every call, and the classes of the copy's layers report that
they are called.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jcfl.errors import InputError, raised
from jcfl.models.products import dense
from jcfl.models.runner import (
    CONVOLUTION,
    ROOT,
    BatchNorm,
    OnCall,
    Runner,
    cast_like,
    ignore,
    layer_input,
    normalised,
    prepared,
)
from jcfl.types import Array, Key, Model


def nnx_runner(make: Callable[..., Any]) -> Runner:
    """An NNX module, made by a class or a function from `rngs`.

    The model holds its `Param` variables under `params`, its `BatchStat` ones under `batch_stats` and what else it has
    under `other`; the state of its random streams is made from the key of each call.
    """
    kinds = (nnx.Param, nnx.BatchStat, nnx.RngState, ...)
    copy = nnx.eval_shape(lambda: built_module(make, jax.random.key(0)))  # never the user's object: shapes alone
    graph, *empty = observable(copy, *kinds)

    def init(key: Key) -> Model:
        params, stats, _, other = nnx.state(built_module(make, key), *kinds)
        return collections(params, stats, other)

    def run(
        model: Model,
        x: Array,
        key: Key | None = None,
        mask: Array | None = None,
        on_call: OnCall = ignore,
        method: str = "__call__",
    ) -> tuple[Any, Model]:
        parts = [
            from_layers(empty[i], model.get(name, {})) for i, name in ((0, "params"), (1, "batch_stats"), (3, "other"))
        ]
        streams = new_streams(empty[2], jax.random.key(0) if key is None else key)
        module = nnx.merge(graph, parts[0], parts[1], streams, parts[2])
        module.eval() if key is None else module.train()
        mask, arguments = prepared(module, method, key, mask, x.shape[0])
        on_call(ROOT, module, x)
        with observed(on_call, mask):
            out = getattr(module, method)(x, **arguments)
        if key is None:
            return out, model
        _, stats, _, other = nnx.state(module, *kinds)
        changed = {name: part for name, part in collections({}, stats, other).items() if name != "params"}
        return out, {**model, **cast_like(changed, {name: part for name, part in model.items() if name != "params"})}

    return Runner(init, run)


def built_module(make: Callable[..., Any], key: Key) -> nnx.Module:
    """An NNX module from a key."""
    expected = "expected an instance of a linen module, or a class or function that makes an NNX module of rngs"
    named = "rngs" in inspect.signature(make).parameters
    try:
        module = make(rngs=nnx.Rngs(key)) if named else make(nnx.Rngs(key))
    except Exception as error:  # a user's function may raise anything, such as one of examples, which makes no module
        raise InputError(f"{expected}; of rngs, it raised {raised(error)}") from error
    if not isinstance(module, nnx.Module):
        raise InputError(f"{expected}; of rngs, it made {type(module).__name__}")
    return module


def collections(params: Any, stats: Any, other: Any) -> Model:
    """The variables of an NNX module, by kind; kinds it lacks are left out."""
    parts = {"params": by_layer(params), "batch_stats": by_layer(stats), "other": by_layer(other)}
    return {name: part for name, part in parts.items() if part}


def by_layer(state: Any) -> dict[str, Any]:
    """The arrays of an NNX state in a table by layer (its path joined by dots) and by name within the layer."""
    table: dict[str, Any] = {}
    for path, leaf in jax.tree.leaves_with_path(state):
        layer, name = layer_and_name(path)
        if layer == ROOT:
            table[name] = leaf
        else:
            table.setdefault(layer, {})[name] = leaf
    return table


def layer_and_name(path: tuple) -> tuple[str, str]:
    """The layer that an array of an NNX state is part of, and its name in that layer, from its path."""
    keys = [str(getattr(part, "key", part)) for part in path if not isinstance(part, jax.tree_util.GetAttrKey)]
    return ".".join(keys[:-1]), keys[-1]


def from_layers(state: Any, table: dict[str, Any]) -> Any:
    """An NNX state with the arrays of a table that `by_layer` made."""

    def found(path: tuple, _: Any) -> Array:
        layer, name = layer_and_name(path)
        return table[name] if layer == ROOT else table[layer][name]

    return jax.tree.map_with_path(found, state)


def new_streams(state: Any, key: Key) -> Any:
    """The state of an NNX module's random streams, made anew from a key; every stream gets a key of its own."""
    leaves, structure = jax.tree.flatten(state)
    keys = jax.random.split(key, len(leaves) + 1)
    streams = []
    for leaf, own in zip(leaves, keys[1:], strict=True):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        streams.append(jax.random.split(own, leaf.shape) if is_key else jnp.zeros(leaf.shape, leaf.dtype))
    return jax.tree.unflatten(structure, streams)


class Observer(NamedTuple):
    """Who is told of the calls of NNX layers, and the mask that batch normalisation is given."""

    on_call: OnCall
    mask: Array | None


OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)
ENTRY = "jcfl_entry"
"""The attribute of a layer of our own copy that holds its entry of the parameters."""


def observable(module: nnx.Module, *kinds: Any) -> tuple[Any, ...]:
    """The graph and the states of an NNX module of our own, prepared so that `observed` sees the calls of its layers.

    Every layer below the root knows its entry and has its `reporting` class in the graph: a module that is merged from
    the graph has such layers from the start, and no existing object gets another class. Convolutions whose user has not
    chosen how they run do so as `CONVOLUTION`, and products of dense layers as `dense`.
    """
    for path, layer in list(nnx.iter_graph(module)):
        if path and is_layer(type(layer)):
            setattr(layer, ENTRY, ".".join(map(str, path)))
        if isinstance(layer, nnx.Conv) and layer.conv_general_dilated is jax.lax.conv_general_dilated:
            layer.conv_general_dilated = CONVOLUTION
        if isinstance(layer, nnx.Linear) and layer.dot_general is jax.lax.dot_general:
            layer.dot_general = dense
    graph, *states = nnx.split(module, *kinds)
    root, *rest = graph.nodes
    return dataclasses.replace(graph, nodes=[root, *map(with_reporting_class, rest)]), *states


def is_layer(kind: Any) -> bool:
    """Whether instances of a class are NNX modules that can be called."""
    return (
        isinstance(kind, type) and issubclass(kind, nnx.Module) and any("__call__" in vars(one) for one in kind.mro())
    )


def with_reporting_class(node: Any) -> Any:
    """A node of an NNX graph with its class replaced if it is a layer."""
    kind = getattr(node, "type", None)
    if not is_layer(kind):
        return node
    return dataclasses.replace(node, type=reporting(kind), metadata=reporting(kind))  # `merge` makes what metadata says


@functools.cache
def reporting(kind: type) -> type:
    """A subclass of an NNX layer's class that reports its calls to the current observer."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer = OBSERVER.get()
        given = layer_input(kind, args, kwargs) if observer is not None else None
        if observer is not None and given is not None:
            observer.on_call(getattr(self, ENTRY), self, given[0])
            if isinstance(self, nnx.BatchNorm):
                own = functools.partial(kind.__call__, self)
                running = functools.partial(own, use_running_average=True)
                norm = BatchNorm(self, own, running, *statistics(self))
                return normalised(norm, *given, observer.mask)
        return kind.__call__(self, *args, **kwargs)

    same = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), same)


def statistics(layer: nnx.BatchNorm) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """How the running mean and variance of an NNX layer are read and written."""

    def write(values: Any) -> None:
        layer.mean[...], layer.var[...] = values

    return lambda: (layer.mean[...], layer.var[...]), write


@contextmanager
def observed(on_call: OnCall, mask: Array | None) -> Iterator[None]:
    """Inside, layers of `reporting` classes tell `on_call` of their calls, and `BatchNorm` is given the mask."""
    before = OBSERVER.set(Observer(on_call, mask))
    try:
        yield
    finally:
        OBSERVER.reset(before)
