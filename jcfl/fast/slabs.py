"""Inner products and sums of clients' gradients at an anchor, without holding a first-layer gradient per client.

The gradient of a dense first layer is Xᵀ D, with a client's examples X [n, d] and a matrix D [n, h]. A slab is some of
the h hidden units. For one slab after another, Xᵀ D[:, slab] is computed for all clients, and its inner products are
added up. Each number of a gradient is thus computed once, and the products are products of large matrices.
"""

import jax
import jax.numpy as jnp
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
from jcfl.types.target import target

TILE = {"cpu": 30, "gpu": 512}
"""How many clients are described at a time, by backend."""

PARTS = 8
"""The most parts clients are cut into for the products of each two of them: 36 products of parts instead of 64."""

PART = 240
"""The fewest clients in a part. Products of smaller parts are slower than what they save."""

SLOTS = 32
"""How many slots' sums are multiplied with clients' Ψ at a time."""

SUMMED = 16
"""How many clients of one slot are added up at a time."""


class Coordinates(struct.PyTreeNode):
    """Ψ of s clients, new clients first. The kernel's part of a client's Ψ is Xᵀ b with its examples X [n, d]."""

    who: Array  # [s] int32
    b: Array  # [s, n, h]
    rest: Models  # [s, ...] Ψ of the other parameters
    trust: Array  # [s] the part of the squared length that is not noise
    used: Array  # [] how many tiles of clients, counted from the first, hold new clients
    tile: int = struct.field(pytree_node=False)  # clients in a tile; it divides s


def coordinates(
    describe: Description, anchor: Model, key: Key, who: Array, new: Array, federation: Federation
) -> Coordinates:
    """Ψ of clients in coordinates; it is zero for clients that are not new, and tiles without new clients take no time.

    Where a client's Ψ is not finite, it is zero, and so is its trust.

    Args:
        anchor: the model at which gradients are taken.
        key: from which clients' own keys are folded.
        who: the clients, new ones first. [s] int32
        new: which of them are new. [s] bool
    """
    first = first_of(describe.task)
    start = first_layer(first, anchor)
    tile = min(target().of(TILE), who.size)
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
        fine = trees.finite((psi, trust))
        psi = {"params": trees.where_weighted(new[turn] & fine, psi)}
        b = -first_layer(first, psi).b
        rest = with_first_layer(first, psi, {"bias": b.sum(1)} if "bias" in start else {})
        return b, rest["params"], jnp.where(fine, trust, 0)

    shapes, used = jax.eval_shape(part, 0), new.any(1).sum()
    whole = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((len(who), *leaf.shape), leaf.dtype), shapes)
    blank = trees.zeros_after(used >= 0, whole)  # rounds without new clients need not write these zeros
    put = lambda turn, out: jax.tree.map(lambda all, tile: all.at[turn].set(tile), out, part(turn))
    found = jax.lax.fori_loop(0, used, put, blank)
    b, rest, trust = jax.tree.map(lambda leaf: leaf.reshape(who.size, *leaf.shape[2:]), found)
    return Coordinates(who.reshape(-1), b, rest, trust, used, tile)


def kernel_and_others(first: First, model: Model) -> tuple[Array, Model]:
    """The first layer's kernel of a model, and all its other parameters."""
    found = first_layer(first, model)
    others = {name: leaf for name, leaf in found.items() if name != "kernel"}
    return found["kernel"], with_first_layer(first, model, others)["params"]


def examples(federation: Federation, who: Array) -> Array:
    """The training examples of the clients `who` [t] as vectors, gathered each time that they are needed. [t, n, d]"""
    x = chunks.gather(federation, federation.train, who).x
    return x.reshape(*x.shape[:2], -1)


def inner_product(first: First, gram: Array, one: Model, two: Model) -> Array:
    """The inner product of one client's two trees of parameters with first layers in coordinates. []"""
    one, two = {"params": one}, {"params": two}
    pairs = first_layer(first, one).b @ first_layer(first, two).b.T  # [n, n]
    return (gram * pairs).sum() + optax.tree.vdot(with_first_layer(first, one, {}), with_first_layer(first, two, {}))


def products(
    describe: Description,
    psi: Coordinates,
    sums: Models,
    live: Array,
    federation: Federation,
    budget: int,
    pairs: bool = True,
) -> tuple[Array, Array]:
    """Inner products of clients' Ψ with each other [s, s] and with every slot's sum [s, k].

    Clients are cut into parts, because of the products of two parts with each other only one is needed.

    Args:
        sums: the slots' sums of Ψ, zero for a slot without a cluster. [k, ...]
        live: the slots that hold a cluster; the others take no time. [k] bool
        budget: bytes that a slab may take.
        pairs: whether the first are computed; else they are those of the other parameters only.
    """
    first, s, t = first_of(describe.task), psi.trust.size, psi.tile
    matrix, rest = kernel_and_others(first, {"params": sums})
    k, d, h = matrix.shape
    width, spans, slots = slab_width(matrix, s, budget), part_spans(s, t), chunks.slots_in_batches(live, SLOTS)

    def slab(turn: Array, found):
        rows, near, far = found
        rows = [slab_of_gradients(psi, federation, turn, width, *each) for each in zip(rows, spans, strict=True)]
        flat = [part.reshape(-1, width * d) for part in rows]
        near = {(i, j): add(total, flat[i], flat[j], spans[i]) for (i, j), total in near.items()}

        def across(c: Array, far: list[Array]) -> list[Array]:
            some = slab_of_sums(matrix, slots[c], turn, width)
            each = zip(far, flat, spans, strict=True)
            return [total.at[c].set(add(total[c], part, some, span)) for total, part, span in each]

        return rows, near, jax.lax.fori_loop(0, -(-live.sum() // slots.shape[1]), across, far)

    def add(total: Array, one: Array, two: Array, span: tuple[int, int]) -> Array:
        more = lambda total: total + row_products(one, two)
        return jax.lax.cond(psi.used > span[0], more, lambda total: total, total)

    blank = lambda *shape: jnp.zeros(shape, matrix.dtype)
    every, size = range(len(spans)), [(end - begin) * t for begin, end in spans]
    start = (
        [blank(end - begin, t, width * d) for begin, end in spans],
        {(i, j): blank(size[i], size[j]) for i in every for j in range(i + 1) if pairs},
        [blank(len(slots), rows, slots.shape[1]) for rows in size],
    )
    _, near, far = jax.lax.fori_loop(0, h // width, slab, start)
    among = [[near[i, j] if j <= i else near[j, i].T for j in every] for i in every] if pairs else [[blank(s, s)]]
    columns = jnp.concatenate(far, 1).swapaxes(0, 1).reshape(s, -1)
    across = blank(s, k).at[:, slots.reshape(-1)].set(columns, mode="drop")
    return jnp.block(among) + trees.inner(psi.rest, psi.rest), across + trees.inner(psi.rest, rest)


def part_spans(s: int, t: int) -> list[tuple[int, int]]:
    """The first tile of each part of s clients, in tiles of t, and the one after its last."""
    tiles = s // t
    size = max(-(-tiles // PARTS), -(-PART // t))
    return [(begin, min(begin + size, tiles)) for begin in range(0, tiles, size)]


def slab_of_sums(matrix: Array, slots: Array, turn: Array, width: int) -> Array:
    """Slab number `turn` of some slots' kernels, in the order of `slab_of_gradients`. [b, w d]

    Args:
        matrix: the kernels of all slots. [k, d, h]
        slots: some of the slots. [b] int32
    """
    size = (1, matrix.shape[1], width)
    cut = lambda slot: jax.lax.dynamic_slice(matrix, (slot, 0, turn * width), size)[0].T
    return jax.vmap(cut)(slots).reshape(slots.size, -1)


def sums_with_clients(
    describe: Description, psi: Coordinates, slot: Array, sums: Models, federation: Federation
) -> Models:
    """The slots' sums [k, ...] after clients' Ψ were added to them. [k, ...]

    Clients are added in tiles of one slot, because the kernel's sum of a tile is then one product.

    Args:
        slot: of each client, -1 for one that is in no slot. [s] int
    """
    first, total, k = first_of(describe.task), {"params": sums}, trees.count(sums)
    matrix, others = kernel_and_others(first, total)
    _, d, h = matrix.shape
    tiles = chunks.tiles_of(jnp.where(slot < 0, k, slot), k + 1, min(SUMMED, slot.size))
    members = jax.nn.one_hot(slot, k, axis=0)  # [k, s]
    rest = trees.sums(members, jax.tree.map(lambda leaf: leaf[: slot.size], psi.rest))

    def add(turn: Array, total: Array) -> Array:
        row = tiles.row[turn]
        real = jnp.where(row < 0, 0.0, 1.0)[:, None, None]
        x, b = examples(federation, psi.who[row]).reshape(-1, d), (real * psi.b[row]).reshape(-1, h)
        product = jnp.matmul(x.T, b, precision=trees.EXACT).astype(total.dtype)
        return total.at[tiles.label[turn]].add(product, mode="drop")

    used = tiles.used - -(-(slot < 0).sum() // tiles.row.shape[1])  # the last tiles hold clients that are in no slot
    matrix = jax.lax.fori_loop(0, used, add, matrix)
    total = {"params": trees.plus(others, rest)}
    return with_first_layer(first, total, {**first_layer(first, total), "kernel": matrix})["params"]


def slab_of_gradients(
    psi: Coordinates, federation: Federation, turn: Array, width: int, out: Array, span: tuple[int, int]
) -> Array:
    """The part of clients' kernel gradients in slab number `turn`, which has `width` units.

    Args:
        out: where they are written; tiles without new clients stay as they are. [p, t, w d]
        span: the first of the p tiles of clients, and the one after the last.
    """
    (_, n, h), (begin, end) = psi.b.shape, span
    who, b = psi.who.reshape(-1, psi.tile), psi.b.reshape(-1, psi.tile, n, h)

    def put(i: Array, out: Array) -> Array:
        part = jax.lax.dynamic_slice_in_dim(b[i], turn * width, width, 2)
        new = jnp.einsum("tnw,tnd->twd", part, examples(federation, who[i]))
        return out.at[i - begin].set(new.reshape(psi.tile, -1).astype(out.dtype))

    return jax.lax.fori_loop(begin, jnp.clip(psi.used, begin, end), put, out)


def slab_width(matrix: Array, s: int, budget: int) -> int:
    """How many hidden units a slab has, so that s clients' gradients of it fit the budget in bytes.

    Args:
        matrix: first-layer kernels. [k, d, h]
    """
    _, d, h = matrix.shape
    return max(width for width in range(1, h + 1) if h % width == 0 and (width == 1 or s * d * width * 4 <= budget))


def row_products(one: Array, two: Array) -> Array:
    """Inner products of rows with rows. [p, d], [q, d] -> [p, q]"""
    return jnp.matmul(one, two.T, precision=trees.EXACT)
