"""Merging of clusters by the cosines of their vectors; only inner products of the vectors are needed."""

import jax
import jax.numpy as jnp
from jax import lax

from jcfl.types import Array


def greedy(gram: Array, alive: Array, tau: Array | float) -> tuple[Array, Array]:
    """Merge the most similar pair, again and again, while its cosine is at least `tau`.

    Zeng et al. 2023 (StoCFL), Alg. 1 lines 9-13, https://arxiv.org/abs/2303.00897. The vector of a cluster is the sum
    of its members' vectors, so a merge of a and b adds row and column b to a. The best partner of every row is cached.
    After a merge a cached cosine may be too high, but never too low; it is computed again when it is the largest. The
    merges are therefore those of a search over all pairs, and each takes O(k) instead of O(k²) operations.

    Args:
        gram: inner products of the clusters' vectors. [k, k]
        alive: which rows hold a cluster. [k] bool
        tau: the threshold in [-1, 1]; above 1 nothing is merged, and at -1 everything.

    Returns:
        for every row the smallest row among those it was merged with [k] int32, and the Gram matrix after merging.
    """
    k = gram.shape[0]
    threshold = limit(tau)
    rows = jnp.arange(k)

    def cosines(gram: Array, alive: Array, row: Array) -> Array:
        """Row `row` of the cosine matrix, minus infinity where there is no pair. [k]"""
        inner = lax.dynamic_index_in_dim(gram, row, keepdims=False)
        valid = alive & (rows != row) & alive[row]
        return jnp.where(valid, inner * inverse_norm(jnp.diagonal(gram)) * inverse_norm(gram[row, row]), -jnp.inf)

    def open_(carry):
        _, alive, best, *_ = carry
        return (best.max() >= threshold) & (alive.sum() > 1)

    def refresh(carry, row):
        gram, alive, best, partner, exact, target = carry
        cosine = cosines(gram, alive, row)
        return (
            gram,
            alive,
            best.at[row].set(cosine.max()),
            partner.at[row].set(cosine.argmax().astype(jnp.int32)),
            exact.at[row].set(True),
            target,
        )

    def unite(carry, row):
        gram, alive, best, partner, exact, target = carry
        a, b = jnp.minimum(row, partner[row]), jnp.maximum(row, partner[row])
        merged = gram[a] + gram[b]
        merged = merged.at[a].set(gram[a, a] + gram[b, b] + 2 * gram[a, b])
        gram = gram.at[a].set(merged).at[:, a].set(merged)
        alive = alive.at[b].set(False)
        cosine = cosines(gram, alive, a)
        lost = (partner == a) | (partner == b)
        better = (cosine > best) | ((cosine == best) & (a < partner) & ~lost)
        exact = jnp.where(better, True, exact & ~lost)
        best = jnp.where(better, cosine, best).at[b].set(-jnp.inf).at[a].set(cosine.max())
        partner = jnp.where(better, a, partner).at[a].set(cosine.argmax()).astype(jnp.int32)
        exact = exact.at[a].set(True)
        return gram, alive, best, partner, exact, jnp.where(target == b, a, target).astype(jnp.int32)

    def body(carry):
        row = carry[2].argmax()
        return lax.cond(carry[4][row], unite, refresh, carry, row)

    norms = inverse_norm(jnp.diagonal(gram))
    start = jnp.where(alive[:, None] & alive & ~jnp.eye(k, dtype=bool), gram * norms[:, None] * norms, -jnp.inf)
    carry = (
        gram,
        alive,
        start.max(1),
        start.argmax(1).astype(jnp.int32),
        jnp.ones(k, bool),
        jnp.arange(k, dtype=jnp.int32),
    )
    gram, _, _, _, _, target = lax.while_loop(open_, body, carry)
    return target, gram


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
    return target, members @ gram @ members.T


def limit(tau: Array | float) -> Array:
    """The threshold for a computed cosine, which rounding may carry below -1 or above 1: infinite at these ends."""
    tau = jnp.asarray(tau, float)
    return jnp.where(tau > 1, jnp.inf, jnp.where(tau <= -1, -jnp.finfo(tau.dtype).max, tau))


def inverse_norm(squared: Array) -> Array:
    """1 / ‖v‖ from ‖v‖², zero for the zero vector."""
    return jnp.where(squared > 0, jax.lax.rsqrt(jnp.where(squared > 0, squared, 1.0)), 0.0)
