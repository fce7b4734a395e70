"""Dense first layers in coordinates: what training makes of their kernel and bias, never written out.

A dense layer's gradient on examples X [n, d] is Xᵀ D, so SGD, momentum, weight decay and proximal pulls never leave

    W = a₁ W₁ + … + a_r W_r − Xᵀ B,

with the kernels W_j that the server sent, numbers a_j and a matrix B [n, h]. Its product with the examples is
Σ a_j X W_j − (X Xᵀ) B: X W_j is one plain product for all clients of a cluster, X Xᵀ is small, and a step costs n·n·h
instead of n·d·h. The mean over clients needs Σ Xᵀ B, which again is one plain product. A bias is one row more of W, for
a one at the end of every example, so that a and B say what becomes of it as well.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jcfl import trees
from jcfl.types import Array, First, Key, Model, Task


class LayerInCoordinates(struct.PyTreeNode):
    """A layer Σ a_j W_j − Xᵀ B by its coordinates; what is linear in layers is the same in coordinates."""

    a: Array  # [r]
    b: Array  # [n, h]


class LayerSum(struct.PyTreeNode):
    """A weighted sum of such layers, of clients sent the same W_j."""

    a: Array  # [r]
    kernel: Array  # [d, h], Σ Xᵀ B
    bias: Array  # [h], the sum of the rows of B


class RowNumbers:
    """In place of a client's examples: all of them, until some are picked by `rows[index]`."""

    def __getitem__(self, index: Array) -> Array:
        return index


jax.tree_util.register_static(RowNumbers)


def example_products(layers: Sequence[Model], x: Array) -> tuple[list[Array], Array]:
    """What training needs to know of clients' examples x [t, n, d]: X W_j [t, n, h] each, and X Xᵀ [t, n, n].

    With biases, the latter is that of examples with a one at their end; to the former, `task_in_coordinates` adds the biases.
    """
    t, n, d = x.shape
    gram = jnp.einsum("tnd,tmd->tnm", x, x)
    gram = gram + 1 if "bias" in layers[0] else gram
    return [(x.reshape(t * n, d) @ layer["kernel"]).reshape(t, n, -1) for layer in layers], gram


def task_in_coordinates(task: Task, layers: Sequence[Model], products: Sequence[Array], gram: Array) -> Task:
    """A task for one client, whose models have their first layer in coordinates and whose examples are row numbers.

    Args:
        layers: the layers W_j.
        products: X W_j. [n, h] each
        gram: X Xᵀ, as of `example_products`. [n, n]
    """
    first = first_of(task)
    biases = [sent.get("bias", 0.0) for sent in layers]

    def apply(model: Model, x, *, key: Key | None = None, mask: Array | None = None) -> tuple[Array, Model]:
        at = first_layer(first, model)
        pick = (lambda rows: rows) if isinstance(x, RowNumbers) else (lambda rows: rows[x])
        sent = sum(a * (pick(rows) + bias) for a, rows, bias in zip(at.a, products, biases, strict=True))
        product = with_row_gradient(jax.lax.stop_gradient(sent - pick(gram) @ at.b), pick(at.b))
        logits, after = first.rest(with_first_layer(first, model, {}), product, key=key, mask=mask)
        return logits, {**after, "params": model["params"]}

    return task._replace(apply=apply, first=None)


@jax.custom_vjp
def with_row_gradient(product: Array, rows: Array) -> Array:
    """`product` [b, h]; its gradient D makes that of `rows` [b, h] −D: coordinates of the layer's gradient Xᵀ D."""
    return product


def row_gradient_forward(product: Array, rows: Array) -> tuple[Array, Array]:
    """`with_row_gradient`, and a number of the rows' type."""
    return product, jnp.zeros((), rows.dtype)


def row_gradient_backward(like: Array, slope: Array) -> tuple[None, Array]:
    """What the slope [b, h] of the product says of the rows."""
    return None, -slope.astype(like.dtype)


with_row_gradient.defvjp(row_gradient_forward, row_gradient_backward)


def model_in_coordinates(first: First, model: Model, j: int, references: int, n: int) -> Model:
    """A model that was sent, its first layer W_j in coordinates."""
    matrix = first_layer(first, model)["kernel"]
    start = LayerInCoordinates(
        jax.nn.one_hot(j, references, dtype=matrix.dtype), jnp.zeros((n, matrix.shape[1]), matrix.dtype)
    )
    return with_first_layer(first, model, start)


def sum_in_coordinates(first: First, x: Array, weights: Array, rows: Model) -> Model:
    """The sum of `weights` [t] times models with layers in coordinates [t, ...], its own layer a `LayerSum`."""
    if not jax.tree.leaves(rows):
        return rows
    at = first_layer(first, rows)
    rest = jax.tree.map(lambda leaf: leaf[0], trees.mix(weights[None], with_first_layer(first, rows, at.a)))
    b = (trees.wide(weights, at.b) * at.b).reshape(-1, at.b.shape[-1])
    return with_first_layer(first, rest, LayerSum(first_layer(first, rest), x.reshape(-1, x.shape[-1]).T @ b, b.sum(0)))


def sum_written_out(first: First, layers: Sequence[Model], model: Model) -> Model:
    """A sum of models with its own layer as it is."""
    if not jax.tree.leaves(model):
        return model
    at = first_layer(first, model)
    return with_first_layer(first, model, layers_after_training(layers, at.a, {"kernel": at.kernel, "bias": at.bias}))


def models_written_out(first: First, layers: Sequence[Model], x: Array, rows: Model) -> Model:
    """Models with layers in coordinates [t, ...] with their layers as they are."""
    if not jax.tree.leaves(rows):
        return rows
    at = first_layer(first, rows)
    moved = {"kernel": jnp.einsum("tnd,tnh->tdh", x, at.b), "bias": at.b.sum(1)}
    return with_first_layer(first, rows, layers_after_training(layers, at.a, moved))


def layers_after_training(layers: Sequence[Model], a: Array, moved: Model) -> Model:
    """Σ a_j W_j less what training moved, for `a` [r] or [t, r] and `moved` [...] or [t, ...]."""
    shares = lambda leaf: [a[..., j].reshape(a.shape[:-1] + (1,) * leaf.ndim) for j in range(len(layers))]
    sent = lambda *leaves: sum(share * leaf for share, leaf in zip(shares(leaves[0]), leaves, strict=True))
    whole = jax.tree.map(sent, *layers)
    return {name: (leaf - moved[name]).astype(moved[name].dtype) for name, leaf in whole.items()}


def first_of(task: Task) -> First:
    """The first layer of a task that has been found suited."""
    assert task.first is not None
    return task.first


def first_layer(first: First, model: Model):
    """The first layer: its kernel and its bias, if it has one, or its coordinates."""
    found = model["params"]
    for name in first.path:
        found = found[name]
    return found


def first_kernel(first: First, model: Model) -> Array:
    """The first layer's kernel."""
    return first_layer(first, model)["kernel"]


def with_first_layer(first: First, model: Model, new) -> Model:
    """The model with another first layer."""

    def put(table, names: Sequence[str]):
        return {**table, names[0]: put(table[names[0]], names[1:])} if names else new

    return {**model, "params": put(model["params"], first.path)}
