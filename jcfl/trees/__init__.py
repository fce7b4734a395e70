"""Arithmetic on models, one or many stacked along a leading axis."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jcfl.trees.rows import HostRows

Array = jax.Array
Model = Any  # a tree of arrays
Models = Any  # models stacked along a leading axis, or `HostRows` in place of them where `take` and `count` will do

EXACT = jax.lax.Precision.HIGHEST  # an average of models must not be rounded as training's products may be


def take(tree: Models, index: Array | int) -> Models:
    """The rows of stacked models at `index`."""
    if isinstance(tree, HostRows):
        return tree.take(index)  # pyright: ignore[reportArgumentType]
    return jax.tree.map(lambda leaf: leaf[index], tree)


def stack(tree: Model, count: int) -> Models:
    """`count` copies of one model. [count, ...]"""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), tree)


def select(flag: Array, yes: Model, no: Model) -> Model:
    """One of two models, by a scalar flag, or row by row where the flag is `[k]` and models are stacked."""
    return jax.tree.map(lambda a, b: jnp.where(wide(flag, a), a, b), yes, no)


def count(stacked: Models) -> int:
    """How many models are stacked."""
    if isinstance(stacked, HostRows):
        return stacked.count
    return jax.tree.leaves(stacked)[0].shape[0]


def parameters(model: Model) -> int:
    """How many numbers a model holds; works on shapes alone."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model))  # np.prod would overflow


def inner(a: Models, b: Models) -> Array:
    """Inner products of every row of `a` [p, ...] with every row of `b` [q, ...]. [p, q]"""
    rows = lambda leaf: leaf.reshape(leaf.shape[0], -1).astype(sum_dtype(leaf))
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jnp.stack([jnp.matmul(rows(x), rows(y).T, precision=EXACT) for x, y in pairs]).sum(0)


def sums(weights: Array, stacked: Models) -> Models:
    """Every row of `weights` [p, k] times the k models, in the dtypes of sums. [p, ...]"""
    one = lambda leaf: jnp.tensordot(weights, leaf, 1, precision=EXACT).astype(sum_dtype(leaf))
    return jax.tree.map(one, stacked)


def mix(weights: Array, stacked: Models) -> Models:
    """Every row of `weights` [p, k] times the k models, in their dtypes. [p, ...]"""
    return jax.tree.map(rounded, sums(weights, stacked), stacked)


def sum_dtype(leaf: Any) -> jnp.dtype:
    """The dtype in which a leaf is summed: half precision would lose digits, and a weighted integer is no integer."""
    real = leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.result_type(float)
    return jnp.promote_types(real, jnp.float32)


def for_sums(tree: Any) -> Any:
    """A tree in the dtypes in which its leaves are summed."""
    return jax.tree.map(lambda leaf: leaf.astype(sum_dtype(leaf)), tree)


def plus(total: Any, more: Any) -> Any:
    """The sum of two trees in the dtypes of `total`, which a loop has to keep; `more` may have wider ones."""
    return jax.tree.map(lambda one, other: (one + other).astype(one.dtype), total, more)


def vector(tree: Any) -> Array:
    """All numbers of a tree in the dtypes of sums: the square of a small one may be zero in half precision. [d]"""
    return ravel_pytree(for_sums(tree))[0]


def with_dtypes(tree: Any, like: Any) -> Any:
    """A tree in the dtypes of another one; an option that JAX traces would make half precision single."""
    return jax.tree.map(lambda leaf, old: leaf if leaf.dtype == old.dtype else leaf.astype(old.dtype), tree, like)


def rounded(value: Array, kept: Any) -> Array:
    """A mean in the dtype of the leaf `kept`; it is rounded if that dtype is not a float's."""
    whole = not jnp.issubdtype(kept.dtype, jnp.floating)
    return (jnp.rint(value) if whole else value).astype(kept.dtype)


def mean(weights: Array, stacked: Models) -> Model:
    """The sum of k models by `weights` [k]: their mean, if the weights add up to 1."""
    return take(mix(weights[None], stacked), 0)


def row_squares(rows: Models) -> Array:
    """The sum of the squares of every row. [s, ...] -> [s]

    It has the dtypes of sums, because a square may overflow in half precision.
    """
    leaves = jax.tree.leaves(for_sums(rows))
    return jnp.stack([(leaf**2).reshape(leaf.shape[0], -1).sum(1) for leaf in leaves]).sum(0)


def steady_mean(rows: Models, real: Array) -> Models:
    """A mean of rows [s, ...] that few rows far away cannot move by much, in the dtypes of sums. [1, ...]

    A row that is longer than the median of the real ones counts as if it had this length.

    Args:
        real: the rows that count. [s] bool
    """
    rows = for_sums(jax.tree.map(lambda leaf: jnp.where(wide(real, leaf), leaf, 0), rows))
    lengths, number = jnp.sqrt(row_squares(rows)), real.sum()
    limit = jnp.sort(jnp.where(real, lengths, jnp.inf))[jnp.maximum(number - 1, 0) // 2]
    scale = jnp.where(real, jnp.minimum(1, limit / jnp.maximum(lengths, 1e-30)), 0)
    return sums(scale[None] / jnp.maximum(number, 1), rows)


def remixed(weights: Array, stacked: Models, parts: int) -> Models:
    """`mix` with `weights` [k, k], a part of every model at a time, so that the k models can be changed in place.

    Args:
        parts: how many parts of a matrix are taken one after another.
    """

    def one(leaf: Array) -> Array:
        width = leaf.shape[1] if leaf.ndim > 2 else 0
        if not width or parts == 1:
            return mix(weights, leaf)
        part = max(size for size in range(1, width + 1) if width % size == 0 and size <= max(1, width // parts))

        def put(turn: Array, leaf: Array) -> Array:
            rows = jax.lax.dynamic_slice_in_dim(leaf, turn * part, part, 1)
            return jax.lax.dynamic_update_slice_in_dim(leaf, mix(weights, rows), turn * part, 1)

        return jax.lax.fori_loop(0, width // part, put, leaf)

    return jax.tree.map(one, stacked)


def zeros_after(true: Array, like: Models) -> Models:
    """Zeros like the leaves of a tree, written no sooner than `true` [] is known.

    It always holds, which XLA cannot know: plain zeros it would write ahead, and hold memory meanwhile or in vain.
    """
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, (~true).astype(leaf.dtype)), like)


def add_by(sums: Models, labels: Array, weights: Array, rows: Models) -> Models:
    """`sums` [k, ...] with `weights` [c] times `rows` [c, ...] added at their `labels` [c].

    Where there are few clusters this is one matrix product, whose order of summation no device changes; where every
    client has its own cluster it is a scatter.
    """
    k = count(sums)
    if by_product(k, weights):
        chosen = jax.nn.one_hot(labels, k, axis=0) * weights  # [k, c]
        return jax.tree.map(
            lambda total, row: total + jnp.tensordot(chosen, row, 1, precision=EXACT).astype(total.dtype), sums, rows
        )
    return jax.tree.map(lambda total, row: total.at[labels].add(row * wide(weights, row)), sums, rows)


def by_product(k: int, weights: Array) -> bool:
    """Whether a matrix product adds up clients of these weights [c], because k clusters are few beside them."""
    return k <= 2 * weights.size


def add_apart(sums: Models, labels: Array, weights: Array, rows: Models) -> Models:
    """As `add_by`, but a row that is not finite makes the sum of its own cluster NaN, and no other cluster's.

    It is left out of the matrix product, in which 0 · ∞ would be NaN. Rows of weight 0 need not be finite.
    """
    k, rows = count(sums), where_weighted(weights, rows)
    if k == 1 or not by_product(k, weights):
        return add_by(sums, labels, weights, rows)
    good = finite(rows)
    sums = add_by(sums, labels, weights, where_weighted(good, rows))
    spoilt = jnp.zeros(k, bool).at[labels].max(~good)
    return jax.tree.map(lambda total: jnp.where(wide(spoilt, total), jnp.nan, total), sums)


def where_weighted(weights: Array, rows: Models) -> Models:
    """The rows [c, ...] with zeros in place of those of weight 0, which need not be finite: 0 · ∞ is NaN."""
    return jax.tree.map(lambda row: jnp.where(wide(weights != 0, row), row, jnp.zeros_like(row)), rows)


def finite(stacked: Models) -> Array:
    """Whether every number of each of k models is finite. [k]

    Zero times a number is zero if the number is finite, and otherwise NaN. So a product with zeros says it, and a CPU
    reads models in a product some ten times as fast as in a sum or a test of all numbers.
    """
    leaves = [leaf for leaf in jax.tree.leaves(stacked) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    zeros = lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype)
    flags = [jnp.isfinite(jnp.tensordot(leaf, zeros(leaf), leaf.ndim - 1)) for leaf in leaves]
    return jnp.stack(flags).all(0)


def number_of(share: Array | float, n: Array | int) -> Array:
    """⌊share · n⌋, where rounding may leave the product just below the whole number that it should be. int32"""
    slack = 1 + 4 * jnp.finfo(jnp.result_type(float)).eps
    return jnp.floor(share * n * slack).astype(jnp.int32)


def wide(values: Array, like: Array) -> Array:
    """`values` with trailing axes of length one, to broadcast against `like`."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))
