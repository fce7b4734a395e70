"""Gradients at an anchor in coordinates: inner products and sums without a first-layer gradient per client.

The gradient of a first dense layer is Xᵀ D, with X [n, d] a client's examples and D [n, h]. Inner products of clients
are added up over slabs of hidden units, Xᵀ D[:, slab] for all clients at a time, so that each element of a gradient is
worked out once and the products are plain ones.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from jcfl import trees
from jcfl.core import chunks
from jcfl.core.describing import Description
from jcfl.fast.coordinates import (
    RowNumbers,
    example_products,
    first_layer,
    first_of,
    model_in_coordinates,
    task_in_coordinates,
    with_first_layer,
)
from jcfl.types import Array, Clients, Federation, First, Key, Model, Models

TILE = {"cpu": 30, "gpu": 512}
"""Clients that are described at a time, by backend."""


SUMMED = 16
"""Clients of one slot that are added up at a time."""


class Coordinates(struct.PyTreeNode):
    """Ψ of s clients, those that count first: the first layer's is xᵀ b with their examples x, the rest as it is."""

    who: Array  # [s]
    b: Array  # [s, n, h]
    rest: Models  # [s, ...] the other parameters'
    trust: Array  # [s] the part of the squared length that is not noise
    used: Array  # [] tiles of clients, counted from the first, that hold any that count
    tile: int = struct.field(pytree_node=False)  # clients in a tile; it divides s


def coordinates(
    describe: Description, anchor: Model, key: Key, who: Array, new: Array, federation: Federation
) -> Coordinates:
    """Ψ of the clients `who` [s] under `new` [s], those first; zero for the rest, which take no time."""
    first = first_of(describe.task)
    start = first_layer(first, anchor)
    tile = min(TILE.get(jax.default_backend(), TILE["gpu"]), who.size)
    who, new = chunks.chunked(who, tile), chunks.chunked_with_zeros(new, tile)

    def part(turn: Array):
        data = chunks.gather(federation, federation.train, who[turn])
        x = examples(federation, who[turn])
        keys = chunks.client_keys(key, who[turn])

        def one(rows: list[Array], gram: Array, y: Array, mask: Array, key: Key):
            task, model = (
                task_in_coordinates(describe.task, [start], rows, gram),
                model_in_coordinates(first, anchor, 0, 1, len(y)),
            )
            dot = lambda one, two: inner_product(first, gram, one, two)
            return describe.form(task, dot, model, Clients(RowNumbers(), y, mask), key)

        psi, trust = jax.vmap(one)(*example_products([start], x), data.y, data.mask, keys)
        psi = {"params": jax.tree.map(lambda leaf: jnp.where(trees.wide(new[turn], leaf), leaf, 0), psi)}
        b = -first_layer(first, psi).b
        rest = with_first_layer(first, psi, {"bias": b.sum(1)} if "bias" in start else {})
        return b, rest["params"], trust

    shapes, used = jax.eval_shape(part, 0), new.any(1).sum()
    whole = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((len(who), *leaf.shape), leaf.dtype), shapes)
    blank = trees.zeros_after(used >= 0, whole)  # so that rounds without newcomers do not write them
    put = lambda turn, out: jax.tree.map(lambda all, tile: all.at[turn].set(tile), out, part(turn))
    found = jax.lax.fori_loop(0, used, put, blank)
    b, rest, trust = jax.tree.map(lambda leaf: leaf.reshape(who.size, *leaf.shape[2:]), found)
    return Coordinates(who.reshape(-1), b, rest, trust, used, tile)


def kernel_and_others(first: First, model: Model) -> tuple[Array, Model]:
    """The first layer's kernel, and all other parameters."""
    found = first_layer(first, model)
    others = {name: leaf for name, leaf in found.items() if name != "kernel"}
    return found["kernel"], with_first_layer(first, model, others)["params"]


def examples(federation: Federation, who: Array) -> Array:
    """The training examples of the clients `who` [t] as rows, taken anew where they are needed. [t, n, d]"""
    x = chunks.gather(federation, federation.train, who).x
    return x.reshape(*x.shape[:2], -1)


def inner_product(first: First, gram: Array, one: Model, two: Model) -> Array:
    """The inner product of two trees of parameters with their first layers in coordinates. []"""
    one, two = {"params": one}, {"params": two}
    pairs = first_layer(first, one).b @ first_layer(first, two).b.T  # [n, n]
    return (gram * pairs).sum() + optax.tree.vdot(with_first_layer(first, one, {}), with_first_layer(first, two, {}))


def products(
    describe: Description, psi: Coordinates, sums: Models, federation: Federation, budget: int, pairs: bool = True
) -> tuple[Array, Array]:
    """Inner products among the clients [s, s], if `pairs` is set, and with every slot's sum [s, k]."""
    first, k, s, t = first_of(describe.task), trees.count(sums), psi.trust.size, psi.tile
    sums = {"params": sums}
    matrix, rest = kernel_and_others(first, sums)
    width = slab_width(matrix, s, budget)

    sizes = sorted({min(t * -(-s // (t * share)), s) for share in (1, 2, 4, 16)})
    enough = jnp.searchsorted(jnp.array(sizes), psi.used * t)  # the fewest rows that hold all that count

    def slab(turn: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        rows = slab_of_gradients(psi, federation, turn, width).reshape(s, -1)  # [s, d w]
        far = jax.lax.dynamic_slice_in_dim(matrix, turn * width, width, 2).reshape(k, -1)
        return jax.lax.switch(enough, [partial(add, size) for size in sizes], found, rows, far)

    def add(size: int, found: tuple[Array, Array], rows: Array, far: Array) -> tuple[Array, Array]:
        among, across = found
        rows = rows[:size]
        among = among.at[:size, :size].add(row_products(rows, rows)) if pairs else among
        return among, across.at[:size].add(row_products(rows, far))

    start = jnp.zeros((s, s), matrix.dtype), jnp.zeros((s, k), matrix.dtype)
    among, across = jax.lax.fori_loop(0, matrix.shape[2] // width, slab, start)
    return among + trees.inner(psi.rest, psi.rest), across + trees.inner(psi.rest, rest)


def sums_with_clients(
    describe: Description, psi: Coordinates, slot: Array, sums: Models, federation: Federation
) -> Models:
    """The k slots' `sums` with the clients' Ψ added; `slot` [s] is -1 for those in none. [k, ...]

    Clients are taken in tiles of one slot, so that the first layer's sum is one product.
    """
    first, total, k = first_of(describe.task), {"params": sums}, trees.count(sums)
    matrix, others = kernel_and_others(first, total)
    _, d, h = matrix.shape
    tiles = chunks.tiles_of(jnp.where(slot < 0, k, slot), k + 1, min(SUMMED, slot.size))
    members = jax.nn.one_hot(slot, k, axis=0)  # [k, s]
    rest = trees.mix(members, jax.tree.map(lambda leaf: leaf[: slot.size], psi.rest))

    def add(turn: Array, total: Array) -> Array:
        row = tiles.row[turn]
        real = jnp.where(row < 0, 0.0, 1.0)[:, None, None]
        x, b = examples(federation, psi.who[row]).reshape(-1, d), (real * psi.b[row]).reshape(-1, h)
        return total.at[tiles.label[turn]].add(jnp.matmul(x.T, b, precision=trees.EXACT), mode="drop")

    used = tiles.used - -(-(slot < 0).sum() // tiles.row.shape[1])  # the last tiles are of those in no slot
    matrix = jax.lax.fori_loop(0, used, add, matrix)
    total = {"params": optax.tree.add(others, rest)}
    return with_first_layer(first, total, {**first_layer(first, total), "kernel": matrix})["params"]


def slab_of_gradients(psi: Coordinates, federation: Federation, turn: Array, width: int) -> Array:
    """The slab's part of every client's first-layer gradient, tile by tile. [s / t, t, d w]"""
    (s, n, h), d = psi.b.shape, int(np.prod(federation.x.shape[1:]))
    who, b = psi.who.reshape(-1, psi.tile), psi.b.reshape(-1, psi.tile, n, h)
    blank = jnp.zeros((s // psi.tile, psi.tile, d * width), psi.b.dtype)

    def put(i: Array, out: Array) -> Array:
        part = jax.lax.dynamic_slice_in_dim(b[i], turn * width, width, 2)
        return out.at[i].set(jnp.einsum("tnd,tnw->tdw", examples(federation, who[i]), part).reshape(psi.tile, -1))

    return jax.lax.fori_loop(0, psi.used, put, blank)


def slab_width(matrix: Array, s: int, budget: int) -> int:
    """Hidden units in a slab of s clients' first layers, like those of `matrix` [k, d, h], within the budget."""
    _, d, h = matrix.shape
    return max(width for width in range(1, h + 1) if h % width == 0 and (width == 1 or s * d * width * 4 <= budget))


def row_products(one: Array, two: Array) -> Array:
    """Inner products of rows with rows. [p, d], [q, d] -> [p, q]"""
    return jnp.matmul(one, two.T, precision=trees.EXACT)
