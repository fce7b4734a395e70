"""Merging of clusters by the cosines of their vectors; only inner products of the vectors are needed."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jcfl.trees import EXACT
from jcfl.types import Array
from jcfl.types.target import target

ROUNDING = 1e-5
"""How far the computed cosine of two equal vectors may be below 1."""

BLOCK = 64
"""How many merges are done before the host decides whether there is another one."""


class Merging(NamedTuple):
    """The state of greedy merging.

    Each pair of clusters is stored with one of the two: with the one that changed last, and before the first merge with
    the one in the later row. So if a cluster changes, all of its pairs are stored with it, and other clusters only lose
    pairs. The largest cosine stored with a cluster that does not change can therefore only fall. A value that may be
    out of date is computed again when it is the largest of all clusters.
    """

    gram: Array  # [k, k] inner products of the clusters' vectors
    norm: Array  # [k] one divided by the length of each vector
    order: Array  # [k] int32, a cluster that changed later has a greater number; -1 where a row holds none
    best: Array  # [k] the largest cosine of the pairs that are stored with a cluster, or a number above it
    partner: Array  # [k] int32, the other cluster of that pair, the first of several; -1 if it has to be found again
    target: Array  # [k] int32, the row that each of the first clusters is in
    turn: Array  # [] int32, how many pairs were looked at
    pair: Array  # [2] int32, the rows of the next pair; twice the same row if its best pair has to be found again
    rows: Array  # [2, k] their rows of the Gram matrix, the second is zero if there is no pair


def greedy(gram: Array, alive: Array, tau: Array | float) -> tuple[Array, Array]:
    """Merge the most similar pair, again and again, while its cosine is at least `tau`.

    Zeng et al. 2023 (StoCFL), Alg. 1 lines 9-13, https://arxiv.org/abs/2303.00897. The vector of a cluster is the sum
    of its members' vectors, so a merge of a and b adds row and column b to a. The merges are those of a search over all
    pairs, and each takes O(k) instead of O(k²) operations. Of equally similar pairs the one with the smallest row is
    merged, and of several with this row the one with the smallest other row.

    Merges are done one after another, also where two clusters are most similar to each other. Two such pairs could not
    be merged at the same time, because the sum of two vectors can be more similar to a third vector than either of them
    is. Among clients of one group this is common: the largest cluster takes in one client after another. A device does
    up to `BLOCK` merges before the host decides whether there is another one.

    Args:
        gram: inner products of the clusters' vectors. [k, k] float
        alive: which rows hold a cluster. [k] bool
        tau: the threshold in [-1, 1]; above 1 nothing is merged, and at -1 everything. [] float

    Returns:
        for every row the smallest row among those it was merged with [k] int32, and the Gram matrix after merging
        [k, k] float.
    """
    end = merged(gram, alive, tau)
    return end.target, end.gram


def merged(gram: Array, alive: Array, tau: Array | float) -> Merging:
    """The last state of `greedy`."""
    k = gram.shape[0]
    threshold, ids = limit(tau), jnp.arange(k, dtype=jnp.int32)
    norm = inverse_norm(jnp.diagonal(gram))
    own = alive[:, None] & alive & (ids[:, None] > ids)
    cosine = jnp.where(own, gram * (norm[:, None] * norm), -jnp.inf)
    best, partner = cosine.max(1), cosine.argmax(1).astype(jnp.int32)
    start = Merging(gram, norm, jnp.where(alive, ids, -1), best, partner, ids, jnp.int32(0), ids[:2], gram[:2])
    block = lambda state: lax.fori_loop(0, min(BLOCK, k), lambda _, state: merged_once(state, threshold), state)
    return lax.while_loop(lambda state: state.best.max() >= threshold, block, with_next_pair(start, threshold))


def merged_once(state: Merging, threshold: Array) -> Merging:
    """The state after the next pair was merged, or after the best pair of a cluster was found again."""
    gram, norm, order, best, partner, target, turn, (a, b), rows = state
    k, ids, merges = order.size, jnp.arange(order.size, dtype=jnp.int32), a != b
    squared = rows[0, a] + rows[1, b] + 2 * jnp.where(merges, rows[0, b], 0.0)
    is_a, of_a = ids == a, inverse_norm(squared)
    # On a GPU, XLA puts `where` into the same kernel as the operations after it, and `.at[a].set` into one of its own.
    row = jnp.where(is_a, squared, rows[0] + rows[1])
    norm = jnp.where(is_a, of_a, norm)
    order = jnp.where(merges & is_a, k + turn, jnp.where(merges & (ids == b), -1, order))
    cosine = jnp.where((order >= 0) & (order < order[a]), row * (norm * of_a), -jnp.inf)
    largest, other = first_largest(cosine, ids)
    lost = merges & ((partner == a) | (partner == b))
    state = Merging(
        gram=lax.dynamic_update_index_in_dim(lax.dynamic_update_index_in_dim(gram, row, a, 0), row, a, 1),
        norm=norm,
        order=order,
        best=jnp.where(is_a, largest, jnp.where(order >= 0, best, -jnp.inf)),
        partner=jnp.where(is_a, other, jnp.where(lost, -1, partner)),
        target=jnp.where(merges & (target == b), a, target),
        turn=turn + 1,
        pair=state.pair,
        rows=rows,
    )
    return with_next_pair(state, threshold)


def with_next_pair(state: Merging, threshold: Array) -> Merging:
    """The state with its next pair: the first of the most similar. Clusters without a partner come before all pairs."""
    ids = jnp.arange(state.best.size, dtype=jnp.int32)
    top, a, b = first_largest(state.best, jnp.minimum(ids, state.partner), jnp.maximum(ids, state.partner))
    b = jnp.minimum(b, ids.size - 1)
    merges = (a >= 0) & (top >= threshold)
    a = jnp.where(merges, a, b)
    # Rows are read after all writes, because XLA would copy a matrix that is read and then written in one step.
    row = lambda i: lax.dynamic_index_in_dim(state.gram, i, keepdims=False)
    return state._replace(pair=jnp.stack([a, b]), rows=jnp.stack([row(a), jnp.where(merges, row(b), 0.0)]))


def first_largest(values: Array, *numbers: Array) -> tuple[Array, ...]:
    """The largest value with its numbers; of several largest ones, that with the least first number, then the next.

    A CPU takes one fast pass for the value and one for each number. Other devices take all in one kernel.

    Args:
        values: [k]
        numbers: at most k each. [k] int32

    Returns:
        the value [], and its numbers [] int32. If the value is NaN, its numbers have no meaning.
    """
    most = jnp.int32(values.size)
    if target().is_cpu:
        found = [values.max()]
        at = values == found[0]
        for number in numbers:
            found.append(jnp.where(at, number, most).min())
            at &= number == found[-1]
        return tuple(found)

    def earlier(one: tuple[Array, ...], two: tuple[Array, ...]) -> tuple[Array, ...]:
        first = jnp.array(False)
        for mine, its in reversed(list(zip(one[1:], two[1:], strict=True))):
            first = (mine < its) | (mine == its) & first
        first = (one[0] > two[0]) | (one[0] == two[0]) & first | jnp.isnan(one[0])
        return tuple(jnp.where(first, mine, its) for mine, its in zip(one, two, strict=True))

    least = jnp.array(-jnp.inf, values.dtype)
    return tuple(lax.reduce((values, *numbers), (least, *[most] * len(numbers)), earlier, (0,)))


def single_pass(gram: Array, alive: Array, tau: Array | float) -> tuple[Array, Array]:
    """Merge all pairs whose cosine, before any merging, is at least `tau` (Alg. 1 lines 11-13 as printed).

    The order of the pairs does not matter: the result is the connected parts of the graph of similar pairs.

    Args, Returns:
        as `greedy`.
    """
    k = gram.shape[0]
    norms = inverse_norm(jnp.diagonal(gram))
    near = alive[:, None] & alive & (gram * norms[:, None] * norms >= limit(tau)) | jnp.eye(k, dtype=bool)

    def spread(carry):
        target, _ = carry
        new = jnp.where(near, target, k).min(1).astype(jnp.int32)
        return new, (new != target).any()

    target, _ = lax.while_loop(lambda carry: carry[1], spread, (jnp.arange(k, dtype=jnp.int32), jnp.array(True)))
    members = jax.nn.one_hot(target, k, axis=0) * alive  # [k, k]
    product = partial(jnp.matmul, precision=EXACT)
    return target, product(product(members, gram), members.T)


def limit(tau: Array | float) -> Array:
    """The threshold for a computed cosine, which rounding may carry below -1 or above 1.

    Above 1 nothing is merged, at 1 vectors of one direction are, and at -1 all are.
    """
    tau = jnp.asarray(tau, float)
    least = -jnp.finfo(tau.dtype).max
    return jnp.where(tau > 1, jnp.inf, jnp.where(tau <= -1, least, jnp.minimum(tau, 1 - ROUNDING)))


def inverse_norm(squared: Array) -> Array:
    """1 / ‖v‖ from ‖v‖², zero for the zero vector."""
    return jnp.where(squared > 0, jax.lax.rsqrt(jnp.where(squared > 0, squared, 1.0)), 0.0)
