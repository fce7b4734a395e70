"""First-layer kernels in coordinates: what a dense layer's training makes of its kernel, never written out.

A dense layer's gradient on examples X [n, d] is Xᵀ D, so SGD, momentum, weight decay and proximal pulls never leave

    W = a₁ W₁ + … + a_r W_r − Xᵀ B,

with the kernels W_j that the server sent, numbers a_j and a matrix B [n, h]. Its product with the examples is
Σ a_j X W_j − (X Xᵀ) B: X W_j is one plain product for all clients of a cluster, X Xᵀ is small, and a step costs n·n·h
instead of n·d·h. The mean over clients needs Σ Xᵀ B, which again is one plain product.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jcfl import trees
from jcfl.types import Array, First, Key, Model, Task


class Kernel(struct.PyTreeNode):
    """A kernel Σ a_j W_j − Xᵀ B by its coordinates; what is linear in kernels is the same in coordinates."""

    a: Array  # [r]
    b: Array  # [n, h]


class Rows:
    """In place of a client's examples: all of them, until some are picked by `rows[index]`."""

    def __getitem__(self, index: Array) -> Array:
        return index


jax.tree_util.register_static(Rows)


def short(task: Task, products: Sequence[Array], gram: Array) -> Task:
    """A task for one client, whose models have their first kernel in coordinates and whose examples are row numbers.

    Args:
        products: X W_j. [n, h] each
        gram: X Xᵀ. [n, n]
    """
    first = lead(task)

    def apply(model: Model, x, *, key: Key | None = None, mask: Array | None = None) -> tuple[Array, Model]:
        at = kernel(first, model)
        pick = (lambda rows: rows) if isinstance(x, Rows) else (lambda rows: rows[x])
        product = sum(share * pick(rows) for share, rows in zip(at.a, products, strict=True)) - pick(gram) @ at.b
        product = through(jax.lax.stop_gradient(product), pick(at.b))
        logits, after = first.rest(replaced(first, model, product[:0]), product, key=key, mask=mask)
        return logits, {**after, "params": model["params"]}

    return task._replace(apply=apply, first=None)


@jax.custom_vjp
def through(product: Array, rows: Array) -> Array:
    """`product` [b, h]; its gradient D makes that of `rows` [b, h] −D: coordinates of the kernel's gradient Xᵀ D."""
    return product


def forth(product: Array, rows: Array) -> tuple[Array, Array]:
    """`through`, and a number of the rows' type."""
    return product, jnp.zeros((), rows.dtype)


def back(like: Array, slope: Array) -> tuple[None, Array]:
    """What the slope [b, h] of the product says of the rows."""
    return None, -slope.astype(like.dtype)


through.defvjp(forth, back)


def folded(first: First, model: Model, j: int, references: int, n: int) -> Model:
    """A model that was sent, its first kernel W_j in coordinates."""
    matrix = kernel(first, model)
    start = Kernel(jax.nn.one_hot(j, references, dtype=matrix.dtype), jnp.zeros((n, matrix.shape[1]), matrix.dtype))
    return replaced(first, model, start)


def mean(first: First, kernels: Sequence[Array], x: Array, weights: Array, rows: Model) -> Model:
    """The sum of `weights` [t] times models with kernels in coordinates [t, ...], its own kernel a matrix."""
    if not jax.tree.leaves(rows):
        return rows
    at = kernel(first, rows)
    rest = jax.tree.map(lambda leaf: leaf[0], trees.mix(weights[None], replaced(first, rows, at.a)))
    sent = sum(share * matrix for share, matrix in zip(kernel(first, rest), kernels, strict=True))
    d, h = x.shape[-1], at.b.shape[-1]
    moved = x.reshape(-1, d).T @ (trees.wide(weights, at.b) * at.b).reshape(-1, h)
    return replaced(first, rest, (sent - moved).astype(at.b.dtype))


def unfolded(first: First, kernels: Sequence[Array], x: Array, rows: Model) -> Model:
    """Models with kernels in coordinates [t, ...] with their kernels as matrices."""
    if not jax.tree.leaves(rows):
        return rows
    at = kernel(first, rows)
    sent = jnp.tensordot(at.a, jnp.stack(kernels), 1)
    return replaced(first, rows, (sent - jnp.einsum("tnd,tnh->tdh", x, at.b)).astype(at.b.dtype))


def lead(task: Task) -> First:
    """The first layer of a task that has been found suited."""
    assert task.first is not None
    return task.first


def kernel(first: First, model: Model):
    """The first layer's kernel."""
    layer = model["params"]
    for name in first.path:
        layer = layer[name]
    return layer["kernel"]


def replaced(first: First, model: Model, new) -> Model:
    """The model with another first kernel."""

    def put(table, names: Sequence[str]):
        return {**table, names[0]: put(table[names[0]], names[1:]) if names[1:] else new}

    return {**model, "params": put(model["params"], (*first.path, "kernel"))}
