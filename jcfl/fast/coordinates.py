"""Dense first layers in coordinates: small numbers that determine a trained kernel [d, h], which is never written out.

A dense layer's gradient on examples X [n, d] is Xᵀ D with a matrix D [n, h]. After steps of SGD with momentum, weight
decay and proximal terms, the kernel therefore always has the form

    W = a₁ W₁ + … + a_r W_r − Xᵀ B.

The W_j are the kernels that the server sent. The numbers a [r] and the matrix B [n, h] are the layer's coordinates.

The layer's product with the examples is X W = Σ a_j X W_j − (X Xᵀ) B. All clients of a cluster share the product X W_j,
and X Xᵀ is small, so a step takes n·n·h multiplications instead of n·d·h. The mean over clients needs Σ Xᵀ B, which is
one matrix product. A bias is one more row of W that is multiplied by a one at the end of every example, so a and B
determine the bias too.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jcfl import trees
from jcfl.types import Array, First, Key, Model, Task


class LayerInCoordinates(struct.PyTreeNode):
    """The coordinates of a layer Σ a_j W_j − Xᵀ B. Sums and multiples of layers are those of their coordinates."""

    a: Array  # [r]
    b: Array  # [n, h]


class LayerSum(struct.PyTreeNode):
    """The coordinates of a weighted sum of layers whose clients were sent the same W_j."""

    a: Array  # [r]
    kernel: Array  # [d, h], Σ Xᵀ B
    bias: Array  # [h], the sum of the rows of B


class RowNumbers:
    """Stands for a client's examples: it means all rows, and `rows[index]` gives the row numbers `index` [b]."""

    def __getitem__(self, index: Array) -> Array:
        return index


jax.tree_util.register_static(RowNumbers)


def example_products(layers: Sequence[Model], x: Array) -> tuple[list[Array], Array]:
    """The products of clients' examples that training needs: each X W_j [t, n, h], and X Xᵀ [t, n, n].

    Args:
        layers: the layers W_j. If they have biases, X Xᵀ is that of examples with a one at their end, but X W_j is
            without the bias, which `task_in_coordinates` adds.
        x: the examples. [t, n, d]
    """
    t, n, d = x.shape
    gram = jnp.einsum("tnd,tmd->tnm", x, x)
    gram = gram + 1 if "bias" in layers[0] else gram
    return [(x.reshape(t * n, d) @ layer["kernel"]).reshape(t, n, -1) for layer in layers], gram


def task_in_coordinates(task: Task, layers: Sequence[Model], products: Sequence[Array], gram: Array) -> Task:
    """One client's task in coordinates: its models have `LayerInCoordinates`, its examples are row numbers.

    Args:
        layers: the layers W_j.
        products: the X W_j of `example_products`. [n, h] each
        gram: its X Xᵀ. [n, n]
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
    """The `product` [b, h] itself, whose gradient D becomes the gradient −D of `rows` [b, h].

    `rows` are rows of B, so −D are the coordinates of the layer's gradient Xᵀ D.
    """
    return product


def row_gradient_forward(product: Array, rows: Array) -> tuple[Array, Array]:
    """The product, and a number that remembers the dtype of the rows."""
    return product, jnp.zeros((), rows.dtype)


def row_gradient_backward(like: Array, slope: Array) -> tuple[None, Array]:
    """The gradients of product and rows from the gradient [b, h] of the result."""
    return None, -slope.astype(like.dtype)


with_row_gradient.defvjp(row_gradient_forward, row_gradient_backward)


def model_in_coordinates(first: First, model: Model, j: int, references: int, n: int) -> Model:
    """A model that the server sent, with its first layer W_j in coordinates: a is one-hot, and B is zero.

    Args:
        j: the layer's number, in [0, references).
        n: examples of a client.
    """
    matrix = first_layer(first, model)["kernel"]
    start = LayerInCoordinates(
        jax.nn.one_hot(j, references, dtype=matrix.dtype), jnp.zeros((n, matrix.shape[1]), matrix.dtype)
    )
    return with_first_layer(first, model, start)


def sum_in_coordinates(first: First, x: Array, weights: Array, rows: Model) -> Model:
    """The weighted sum of clients' models in coordinates; its first layer is a `LayerSum`.

    Args:
        x: the clients' examples. [t, n, ...]
        weights: of the clients. [t]
        rows: their models. [t, ...]
    """
    if not jax.tree.leaves(rows):
        return rows
    at = first_layer(first, rows)
    rest = trees.take(trees.sums(weights[None], with_first_layer(first, rows, at.a)), 0)
    b = (trees.wide(weights, at.b) * at.b).reshape(-1, at.b.shape[-1])
    return with_first_layer(first, rest, LayerSum(first_layer(first, rest), x.reshape(-1, x.shape[-1]).T @ b, b.sum(0)))


def sum_written_out(first: First, layers: Sequence[Model], model: Model) -> Model:
    """A sum of models with its first layer's kernel and bias written out."""
    if not jax.tree.leaves(model):
        return model
    at = first_layer(first, model)
    return with_first_layer(first, model, layers_after_training(layers, at.a, {"kernel": at.kernel, "bias": at.bias}))


def models_written_out(first: First, layers: Sequence[Model], x: Array, rows: Model) -> Model:
    """Clients' models in coordinates [t, ...] with their first layers' kernels and biases written out. [t, ...]"""
    if not jax.tree.leaves(rows):
        return rows
    at = first_layer(first, rows)
    moved = {"kernel": jnp.einsum("tnd,tnh->tdh", x, at.b), "bias": at.b.sum(1)}
    return with_first_layer(first, rows, layers_after_training(layers, at.a, moved))


def layers_after_training(layers: Sequence[Model], a: Array, moved: Model) -> Model:
    """Σ a_j W_j − moved, of one layer or of t layers.

    Args:
        a: the numbers a_j. [r] or [t, r]
        moved: Xᵀ B as `kernel` and `bias`. [...] or [t, ...] each
    """
    shares = lambda leaf: [a[..., j].reshape(a.shape[:-1] + (1,) * leaf.ndim) for j in range(len(layers))]
    sent = lambda *leaves: sum(share * leaf for share, leaf in zip(shares(leaves[0]), leaves, strict=True))
    whole = jax.tree.map(sent, *layers)
    return {name: (leaf - moved[name]).astype(moved[name].dtype) for name, leaf in whole.items()}


def first_of(task: Task) -> First:
    """The `First` of a task that has one."""
    assert task.first is not None
    return task.first


def first_layer(first: First, model: Model):
    """The first layer of a model: its kernel and its bias, if it has one, or its coordinates."""
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
