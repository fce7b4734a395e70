"""Descriptions Ψ of new clients, and the inner products and sums that merging needs.

The memory never holds the Ψ of all clients at a time.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jcfl import trees
from jcfl.core import chunks, server
from jcfl.core.describing import Description, normalised
from jcfl.core.engine import Weigh
from jcfl.core.privacy import Privacy
from jcfl.core.streams import Stream, stream
from jcfl.fast import slabs
from jcfl.types import Array, Clients, Federation, Key, Model, Models


class MergeMemory(struct.PyTreeNode):
    """What StoCFL's server remembers between rounds."""

    anchor: Model
    first: Model  # the initial model ω₀
    sums: Models  # [k, ...] the sum of Ψ over each cluster's members
    gram: Array  # [k, k] inner products of the sums; the diagonal is corrected for noise
    live: Array  # [k] bool, whether a slot holds a cluster
    key: Key  # from which the halves of clients' examples are drawn
    described: Array  # [m] int32, the round whose examples a client's Ψ in the sums is of
    tau: Array | float = 0.0  # the threshold by which clusters were merged last; it may change by round


class Settings(NamedTuple):
    """The options of merging on arrival, and sizes that depend on the run."""

    describe: Description
    tau: Any
    merge: Callable[[Array, Array, Any], tuple[Array, Array]]
    start: Literal["current", "initial", "nearest"]
    chunk: int  # clients described at a time
    tile: int  # clients whose Ψ are held at a time
    budget: int  # bytes that inner products may take
    departures: bool  # whether clients ever leave
    exclude: Any = None  # the method's `Exclude`: a client that it excludes for good is in no cluster
    renew: int | None = None  # after how many rounds a sampled client is described again; None: never
    follow: Callable[[Any, Array, Model], Any] = lambda server, weights, first: server  # merges the server's states
    parts: int = 16  # parts of the cluster models that are averaged one after another
    privacy: Privacy = Privacy()  # clips and noises Ψ, which is then scaled to length one again
    every_round: bool = False  # whether clusters are merged also if nobody is new; their sums may be similar
    goes_on: bool = False  # whether a run goes on where a client's Ψ is not finite
    weigh: Weigh = server.by_size  # what clients count by their examples; one that counts nothing is in no cluster


def joint_gram(
    settings: Settings, memory: MergeMemory, who: Array, new: Array, federation: Federation
) -> tuple[Array, Any]:
    """Inner products of all clusters' sums and the new clients' Ψ. [k + s, k + s]

    If the description has coordinates, they are used. Else the Ψ of the whole cohort are computed once if they fit into
    one tile. Else each pair of tiles is computed again for its inner products.

    Returns:
        the Gram matrix, and the Ψ [s, ...], or their coordinates, or None if they were not held.
    """
    s, tile = who.size, settings.tile
    if settings.describe.has_coordinates:
        psi = slabs.coordinates(settings.describe, memory.anchor, memory.key, who, new, federation)
        among, across = slabs.products(settings.describe, psi, memory.sums, memory.live, federation, settings.budget)
        among, across, trust = among[:s, :s], across[:s], psi.trust[:s]
    elif tile >= s:
        psi, trust = descriptions(settings, memory, who, new, federation)
        among, across = trees.inner(psi, psi), trees.inner(psi, memory.sums)
    else:
        psi = None
        among, across, trust = tiled_gram(settings, memory, who, new, federation)
    among = jnp.where(jnp.eye(s, dtype=bool), jnp.where(new, trust, 0.0)[:, None], among)
    return jnp.block([[memory.gram, across.T], [across, among]]), psi


def tiled_gram(
    settings: Settings, memory: MergeMemory, who: Array, new: Array, federation: Federation
) -> tuple[Array, Array, Array]:
    """The parts of `joint_gram` with at most two tiles of Ψ in memory.

    Returns:
        inner products of clients [s, s], and of clients with sums [s, k], and the clients' trust [s].
    """
    s = who.size
    tiles, valid = chunks.chunked(who, settings.tile), chunks.chunked_with_zeros(new, settings.tile)
    whole = tiles.size

    def row(turn):
        psi, trust = descriptions(settings, memory, tiles[turn], valid[turn], federation)

        def column(other, among):
            other_psi, _ = descriptions(settings, memory, tiles[other], valid[other], federation)
            return jax.lax.dynamic_update_slice(among, trees.inner(psi, other_psi), (0, other * settings.tile))

        among = jax.lax.fori_loop(0, turn, column, jnp.zeros((settings.tile, whole)))
        among = jax.lax.dynamic_update_slice(among, trees.inner(psi, psi), (0, turn * settings.tile))
        return among, trees.inner(psi, memory.sums), trust

    among, across, trust = jax.lax.map(row, jnp.arange(tiles.shape[0]))
    lower = jnp.tril(among.reshape(whole, whole)[:s, :s])
    return lower + jnp.tril(lower, -1).T, across.reshape(whole, -1)[:s], trust.reshape(-1)[:s]


def sums_with_clients(
    settings: Settings, memory: MergeMemory, sums: Models, who: Array, slot: Array, psi: Any, federation: Federation
) -> Models:
    """The slots' `sums` after the new clients' Ψ were added. [k, ...]

    Args:
        slot: of each of the clients `who` [s], -1 for one that is not new. [s] int
        psi: the second result of `joint_gram`; without it, Ψ are computed again.
    """
    k, new = memory.live.size, slot >= 0
    if settings.describe.has_coordinates:
        return slabs.sums_with_clients(settings.describe, psi, slot, sums, federation)
    came = jax.nn.one_hot(slot, k, axis=0)  # [k, s]
    if psi is not None:
        return optax.tree.add(sums, trees.sums(came, psi))
    parts = (
        chunks.chunked(who, settings.tile),
        chunks.chunked_with_zeros(new, settings.tile),
        chunks.chunked_with_zeros(came.T, settings.tile),
    )

    def add(sums, part):
        who, new, came = part
        return optax.tree.add(sums, trees.sums(came.T, descriptions(settings, memory, who, new, federation)[0])), None

    return jax.lax.scan(add, sums, parts)[0]


def projections(settings: Settings, memory: MergeMemory, who: Array, federation: Federation) -> Array:
    """Inner products of clients' Ψ with every cluster's sum, a tile of clients at a time. [h, k]"""

    def part(who: Array) -> Array:
        every = jnp.ones(who.shape, bool)
        if settings.describe.has_coordinates:
            psi = slabs.coordinates(settings.describe, memory.anchor, memory.key, who, every, federation)
            across = slabs.products(
                settings.describe, psi, memory.sums, memory.live, federation, settings.budget, pairs=False
            )[1]
            return across[: who.size]
        psi, _ = descriptions(settings, memory, who, every, federation)
        return trees.inner(psi, memory.sums)

    return chunks.unchunked(jax.lax.map(part, chunks.chunked(who, min(settings.tile, who.size))), who.size)


def descriptions(
    settings: Settings, memory: MergeMemory, who: Array, new: Array, federation: Federation
) -> tuple[Model, Array]:
    """Ψ of the clients `who` [s], which is zero if a client is not `new` [s], and its trust. [s, ...], [s]

    For the trust see `jcfl.core.describing.Description`. Both are zero if they are not finite, because they would spoil
    the sums; no other description has a trust of zero.
    """

    def describe(client: Array, data: Clients) -> tuple[Model, Array]:
        psi, trust = settings.describe(memory.anchor, data, jax.random.fold_in(memory.key, client))
        if settings.privacy.description_clip is not None:
            psi = normalised(settings.privacy.description(stream(memory.key, Stream.DESCRIPTION, client), psi))
        return psi, trust

    def part(args: tuple[Array, Array]):
        who, new = args
        real = lambda: jax.vmap(describe)(who, chunks.gather(federation, federation.train, who))
        zero = lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(real))
        psi, trust = jax.lax.cond(new.any(), real, zero)
        fine = trees.finite((psi, trust))
        return trees.where_weighted(new & fine, psi), jnp.where(fine, trust, 0.0)

    chunk = min(settings.chunk, who.size)
    return chunks.unchunked(
        jax.lax.map(part, (chunks.chunked(who, chunk), chunks.chunked_with_zeros(new, chunk))), who.size
    )
