"""Any Flax module, linen or NNX, as a `Task`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from jcfl.errors import InputError, raised, unknown
from jcfl.models.first import first_dense
from jcfl.models.linen import linen_runner
from jcfl.models.runner import ROOT, Runner
from jcfl.types import Array, Key, Model, Task
from jcfl.types.target import traced_once

Calls = list[tuple[str, bool]]
"""For every layer called, in the order of the calls: the entry of the parameters it is part of, whether it is dense."""


def cross_entropy(logits: Array, y: Array) -> Array:
    """Softmax cross-entropy of integer labels, [n, c] and [n] -> [n]."""
    # optax's loss of integer labels takes a gather and, for its gradient, a scatter, which compile to twice as much.
    return optax.safe_softmax_cross_entropy(logits, jax.nn.one_hot(y, logits.shape[-1], dtype=logits.dtype))


def task(
    module: nn.Module | Callable[..., Any],
    shape: Sequence[int],
    classes: int,
    *,
    head: str | Sequence[str] | None = None,
    features: str | None = None,
    loss: Callable[[Array, Array], Array] = cross_entropy,
    name: str = "",
) -> Task:
    """The learning task of a Flax module.

    The module is called on `x` [n, *shape] and returns logits [n, c]. If its `__call__` has a parameter `train`,
    `training`, `is_training`, `deterministic` or `use_running_average`, the parameter says whether the module is being
    trained. If it has a parameter `mask`, [n] bool, the mask says which rows are real; the others are padding, copies
    of rows of the same client. `BatchNorm` layers use the real rows alone; their input may have several entries of each
    row next to each other, as `x.reshape(n * t, c)` makes them. Any other layer that mixes rows has to take the mask
    itself. Running statistics and other mutable collections are part of the model. Dropout draws from the key.

    The module itself is never changed. Its convolutions run as `jcfl.models.convolution` says and its dense layers as
    `jcfl.models.products`, unless the user chose another `conv_general_dilated` or `dot_general`. Layers
    that run in this way cannot be differentiated in forward mode (`jax.jvp`).

    Args:
        module: a linen module, or a class or function that makes an NNX module from `rngs` (so that every cluster can
            have a start of its own). An NNX module's parameters are named by the layer that owns them: `blocks.0.conv`.
        shape: of one example.
        classes: how many.
        head: the top-level entry or entries of the parameters that make up the classifier; by default the one that
            holds the last dense layer called, or, without one, the last layer called.
        features: the module's method that gives the representation; by default the head's input, flattened.
        loss: one loss per example, `(logits [n, c], y [n]) -> [n]`.
        name: in messages and tables.

    Raises:
        InputError: the module cannot be called on such data in training and in evaluation, does not give [n, c] logits,
            or has no such head.
    """
    name = name or getattr(module, "__name__", type(module).__name__)
    shape = tuple(shape)
    if not shape or min(shape) < 1 or classes < 1:
        raise InputError(f"model {name!r}: expected sizes and classes of at least 1, got {shape} and {classes} classes")
    with refusal(f"model {name!r} cannot be called on examples of shape {shape}"):
        runner = runner_of(module, shape)
        model, calls = trial(runner, shape, classes)
    entries = classifier(model["params"], calls, head, name)
    first = first_dense(runner, model, shape) if isinstance(module, nn.Module) else None
    with refusal(f"model {name!r} has no usable features or loss"):
        represent = features_function(runner, entries, calls, features)
        result = Task(
            traced_once(runner.init), traced_once(apply_function(runner)), represent, loss, entries, name, first
        )
        check(result, model, shape, classes)
    return result


@contextmanager
def refusal(what: str) -> Iterator[None]:
    """Every error that is raised inside becomes an `InputError` of one line."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    except Exception as error:
        raise InputError(f"{what}: {raised(error)}") from error


def runner_of(module: Any, shape: tuple[int, ...]) -> Runner:
    """The runner of a module."""
    if isinstance(module, nn.Module):
        return linen_runner(module, shape)
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise InputError("expected an instance of a linen module, got its class")
    from flax import nnx  # slow to import, and the networks of jcfl are linen's

    from jcfl.models.nnx import nnx_runner

    if isinstance(module, nnx.Module):
        raise InputError("expected the class of an NNX module or a function of rngs, got an instance")
    if not callable(module):
        raise InputError(f"expected a Flax module, got {type(module).__name__}")
    return nnx_runner(module)


def is_dense(layer: Any) -> bool:
    """Whether a layer of linen or NNX is a dense one."""
    if isinstance(layer, nn.Module):
        return isinstance(layer, nn.Dense | nn.DenseGeneral)
    from flax import nnx  # slow to import

    return isinstance(layer, nnx.Linear | nnx.LinearGeneral)


def trial(runner: Runner, shape: tuple[int, ...], classes: int) -> tuple[Model, Calls]:
    """The shapes of a model, and the layers that are called in evaluation mode. Nothing is computed."""
    model = jax.eval_shape(runner.init, jax.random.key(0))
    sizes = [leaf.size for leaf in jax.tree.leaves(model.get("params", {}))]
    if not sizes:
        raise InputError("it has no parameters")
    if min(sizes) == 0:
        raise InputError("the examples are too small: a layer is left without inputs")
    for path, leaf in jax.tree.leaves_with_path(model["params"]):
        refuse_other_than_floats(f"parameter {jax.tree_util.keystr(path, simple=True, separator='.')}", leaf)
    x, key, mask = example(shape)
    calls: Calls = []
    on_call = lambda entry, layer, x: calls.append((entry, is_dense(layer)))
    logits, _ = jax.eval_shape(lambda model, x: runner.run(model, x, None, None, on_call), model, x)
    refuse_other_logits(logits, x.shape[0], classes)
    _, after = jax.eval_shape(runner.run, model, x, key, mask)
    refuse_other_variables(after, model)
    return model, calls


def fitting(given: Task, shape: Sequence[int], classes: int) -> Task:
    """A task that was made elsewhere, after it was tried out on shapes. Nothing is computed.

    Args:
        given: the task.
        shape: of one example of the federation.
        classes: how many the federation has.

    Raises:
        InputError: it takes other examples, or has logits for another number of classes.
    """
    name, shape = given.name or "Task", tuple(shape)
    x, key, mask = example(shape)
    with refusal(f"model {name!r} cannot be called on examples of shape {shape}"):
        model = jax.eval_shape(given.init, jax.random.key(0))
        logits, _ = jax.eval_shape(given.apply, model, x)
        refuse_other_logits(logits, x.shape[0], classes)
        trained = lambda model, x, key, mask: given.apply(model, x, key=key, mask=mask)
        _, after = jax.eval_shape(trained, model, x, key, mask)
        refuse_other_variables(after, model)
    with refusal(f"model {name!r} has no usable features or loss"):
        check(given, model, shape, classes)
    return given


def refuse_other_logits(logits: Any, rows: int, classes: int) -> None:
    """Refuse what a model returned, unless it is [rows, classes] floats.

    Raises:
        InputError: the line has its shape or type. Where it has more classes, the line says how data can have them.
    """
    found = getattr(logits, "shape", None)
    if found != (rows, classes):
        got, hint = type(logits).__name__ if found is None else f"shape {found[1:]} an example", ""
        if found is not None and len(found) == 2 and found[1] > classes:
            hint = f"; if your data have {found[1]} classes, some of them without an example, set classes={found[1]}"
            hint += " in jcfl.data.from_clients, or data.classes in a configuration"
        raise InputError(f"expected logits of {classes} classes an example, got {got}{hint}")
    refuse_other_than_floats("logits", logits)


def refuse_other_variables(after: Any, before: Model) -> None:
    """Refuse a step of training that returns other variables than it was given.

    Raises:
        InputError: it does.
    """
    if shapes(after) != shapes(before):
        raise InputError("a step of training changes the structure of its variables")


def refuse_other_than_floats(what: str, found: Any) -> None:
    """Refuse logits or a parameter that gradients cannot be taken of.

    Raises:
        InputError: the line has its type.
    """
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise InputError(f"{what}: expected float32 or another float, got {found.dtype}")


def example(shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """The shapes of three examples, a key and a mask."""
    x = jax.ShapeDtypeStruct((3, *shape), jnp.result_type(float))
    return x, jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((3,), bool)


def shapes(model: Model) -> Any:
    """The shapes and types of a model's arrays."""
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), model)


def classifier(params: dict[str, Any], calls: Calls, head: str | Sequence[str] | None, name: str) -> tuple[str, ...]:
    """The entries of the parameters that form the head: the given ones, or that of the last dense layer called."""
    if head is not None:
        entries = (head,) if isinstance(head, str) else tuple(head)
        if not entries:
            raise InputError(f"head of model {name!r}: expected {', '.join(params)}, or some of them; got none")
        for entry in entries:
            if entry not in params:
                raise unknown(f"head of model {name!r}:", entry, params)
        return entries
    dense = [entry for entry, is_dense in calls if is_dense]
    layers = [entry for entry, _ in calls if entry in params]
    last = (dense or layers or [""])[-1]
    return (last,) if last in params else tuple(params)


def apply_function(runner: Runner) -> Callable[..., tuple[Array, Model]]:
    """The function `Task.apply` of a module."""

    def apply(model: Model, x: Array, *, key: Key | None = None, mask: Array | None = None) -> tuple[Array, Model]:
        return runner.run(model, x, key, mask)

    return apply


def features_function(
    runner: Runner, entries: tuple[str, ...], calls: Calls, method: str | None
) -> Callable[..., Array]:
    """The function `Task.features` of a module: it returns the output of `method`, or else the input of the head.

    Raises:
        InputError: the head is no layer that is called, so that it is not known what goes into it.
    """
    called = {entry for entry, _ in calls}
    wanted = called & set(entries) or called & {ROOT}  # a module that is a single layer is its own head
    if method is None and (not wanted or (ROOT in wanted and called != {ROOT})):
        raise InputError(f"the head {' and '.join(entries)} is no layer that is called; name a method as features")

    def own(model: Model, x: Array, *, key: Key | None = None, mask: Array | None = None) -> Array:
        return flat(runner.run(model, x, key, mask, method=method)[0])

    def before_head(model: Model, x: Array, *, key: Key | None = None, mask: Array | None = None) -> Array:
        inputs: list[Array] = []
        on_call = lambda entry, layer, given: inputs.append(given) if entry in wanted else None
        runner.run(model, x, key, mask, on_call)
        return flat(inputs[0])

    return before_head if method is None else own


def flat(x: Array) -> Array:
    """One vector an example, [n, ...] -> [n, f]."""
    return x.reshape(x.shape[0], -1)


def check(task: Task, model: Model, shape: tuple[int, ...], classes: int) -> None:
    """Try the features and the loss of a task on shapes, without computing anything."""
    x, key, mask = example(shape)
    rows = x.shape[0]
    found = jax.eval_shape(lambda model, x, key, mask: task.features(model, x, key=key, mask=mask), model, x, key, mask)
    if found.shape[0] != rows:
        raise InputError(f"features: expected one vector an example, got shape {found.shape} for {rows} examples")
    logits, y = jax.ShapeDtypeStruct((rows, classes), x.dtype), jax.ShapeDtypeStruct((rows,), jnp.int32)
    losses = jax.eval_shape(task.loss, logits, y)
    if getattr(losses, "shape", None) != (rows,):
        raise InputError(f"loss: expected one number an example, got shape {getattr(losses, 'shape', None)}")
