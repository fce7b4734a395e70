"""The examples of many clients, in arrays of one shape.

A chunk is a number of clients that are worked on at a time; a tile is a number of rows that one model serves. The last
chunk or tile is filled up, so that all have the same shape.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from jcfl.types import Array, Clients, Federation, Key, Split
from jcfl.types.target import target


class Tiles(NamedTuple):
    """Rows sorted by label and cut into tiles, each of which holds rows of one label."""

    label: Array  # [t] int32, the label of every tile
    row: Array  # [t, n] int32, the row in every place of a tile, -1 where there is none
    used: Array  # [] int32, how many tiles hold rows; the others come last


def gather(federation: Federation, split: Split, who: Array) -> Clients:
    """The examples of the clients `who` [s], padded to the split's width by repeating a client's own rows.

    Where nothing needs `x`, the compiled program has no copy of it.
    """
    rows, mask = rows_of(split, who)
    inputs = lambda rows: model_inputs(federation, rows)
    return Clients(inputs(rows), federation.y[rows], mask, rows=rows, inputs=inputs)


def rows_of(split: Split, who: Array) -> tuple[Array, Array]:
    """The rows of the clients `who` [s], padded as in `gather`, and which of them are real. [s, n] int32 and bool"""
    position = jnp.arange(split.width)
    size = split.size[who][:, None]
    return split.rows[split.start[who][:, None] + position % jnp.maximum(size, 1)], position < size


def owners(split: Split) -> Array:
    """The client of every row of a split. [r]"""
    # A running sum of what begins and ends at every row; unlike `repeat` it takes the clients' rows in any order.
    number = jnp.arange(1, split.size.size + 1)
    ends = jnp.zeros(split.rows.size + 1, number.dtype).at[split.start + split.size].add(-number)
    return ends.at[split.start].add(number).cumsum()[:-1] - 1


def class_counts(federation: Federation) -> Array:
    """How many training examples of every class every client has. [m, c] float"""
    split = federation.train
    zeros = jnp.zeros((split.size.size, federation.classes))
    return zeros.at[owners(split), federation.y[split.rows]].add(1.0)


def model_inputs(federation: Federation, rows: Array) -> Array:
    """The examples in some rows as models see them: bytes are scaled to [0, 1], then all is standardised. [..., *x]"""
    x = federation.x[rows]
    real = jnp.result_type(float)
    x = x.astype(real) / 255 if jnp.issubdtype(x.dtype, jnp.integer) else x.astype(real)
    return (x - jnp.asarray(federation.mean, real)) / jnp.asarray(federation.std, real)


def over_clients(function, federation: Federation, who: Array, chunk: int, wanted: Array | None = None) -> Any:
    """`function(id [], data of one client)` for each of the clients `who` [s], a chunk at a time. [s, ...]

    Args:
        wanted: the clients whose results are used, all by default. A chunk without such a client takes no time, and its
            results are zeros. [s] bool
    """
    found = lambda who: jax.vmap(function)(who, gather(federation, federation.train, who))
    if wanted is None:
        return unchunked(jax.lax.map(found, chunked(who, chunk)), who.size)

    def part(args: tuple[Array, Array]) -> Any:
        who, wanted = args
        traced, shapes = jax.make_jaxpr(found, return_shape=True)(who)  # once: tracing takes time
        leaves, tree = jax.tree.flatten(shapes)
        none = lambda who: [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        return jax.tree.unflatten(tree, jax.lax.cond((wanted > 0).any(), jaxpr_as_fun(traced), none, who))

    return unchunked(jax.lax.map(part, (chunked(who, chunk), chunked(wanted.astype(float), chunk))), who.size)


def over_rows(function: Callable[[Any], Array], rows: Any, most: int) -> Array:
    """`function(part)` for all rows of a tree [n, ...], a part of them at a time; parts have the same size. [n, ...]

    So a forward pass over all examples of large clients takes no more memory than one over a part of them.

    Args:
        function: of the rows of a tree [r, ...]; it treats each row by itself. [r, ...]
        most: rows in a part.
    """
    n = jax.tree.leaves(rows)[0].shape[0]
    count = -(-n // most)
    if count <= 1:
        return function(rows)
    parts = jax.tree.map(lambda leaf: chunked_with_zeros(leaf, -(-n // count)), rows)
    return unchunked(jax.lax.map(function, parts), n)


def over_examples(
    function: Callable[[Any, Array], Array], fixed: Any, split: Split, who: Array, most: int, devices: int = 1
) -> tuple[Array, Array]:
    """`function(fixed, rows [r])` for the examples of different clients `who` [s], a part of them at a time.

    The examples of all clients are one after another, so that clients of few examples are not padded to the size of the
    largest client. Devices share the parts among them.

    Args:
        function: of rows of the pool; it treats each row by itself. [r, ...]
        most: rows in a part.

    Returns:
        the results, and the place in them of the first example of each client. [p, ...], [s] int32
    """
    size = split.size[who]
    last = jnp.cumsum(size)
    first = last - size
    examples = min(split.rows.size, who.size * split.width)  # the most that the clients can have, by the shapes
    exactly = who.size == split.size.size or split.is_even
    most = max(1, min(most, -(-examples // devices)))
    rounds = -(-examples // (most * devices))  # parts of one device

    def of_part(fixed: tuple[Any, ...], part: Array) -> Array:
        fixed, split, who, last, first = fixed
        place = part * most + jnp.arange(most)
        client = jnp.minimum(jnp.searchsorted(last, place, side="right"), who.size - 1)
        return function(fixed, split.rows[split.start[who[client]] + place - first[client]])

    def of_device(fixed: Any, parts: Array) -> Array:
        """The results of the parts [rounds] of a device; those without examples come last and take no time."""
        one = jax.eval_shape(of_part, fixed, parts[0])
        _, _, _, last, _ = fixed
        used = rounds if exactly else (parts * most < last[-1]).sum()
        add = lambda i, found: found.at[i].set(of_part(fixed, parts[i]))
        return jax.lax.fori_loop(0, used, add, jnp.zeros((rounds, *one.shape), one.dtype))

    parts = jnp.arange(rounds * devices).reshape(rounds, devices)  # the parts with examples come first
    found = divided_work(of_device, (fixed, split, who, last, first), parts.T.ravel(), devices)
    found = found.reshape(devices, rounds, *found.shape[1:]).swapaxes(0, 1)
    return found.reshape(-1, *found.shape[3:]), first


def chunked(array: Array, chunk: int) -> Array:
    """`array` [s] in chunks; the last is filled with copies of row 0, or with zeros if floats. [s / chunk, chunk]"""
    spare = -array.size % chunk
    filler = jnp.zeros((), array.dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array[0]
    return jnp.concatenate([array, jnp.broadcast_to(filler, (spare,))]).reshape(-1, chunk)


def chunked_with_zeros(rows: Array, chunk: int) -> Array:
    """`rows` [s, ...] in chunks; the last is filled with zeros. [s / chunk, chunk, ...]"""
    return _chunked_rows(rows, chunk, "constant")


def chunked_with_last(rows: Array, chunk: int) -> Array:
    """`rows` [s, ...] in chunks; the last is filled with copies of the last row. [s / chunk, chunk, ...]"""
    return _chunked_rows(rows, chunk, "edge")


def _chunked_rows(rows: Array, chunk: int, fill: str) -> Array:
    """`rows` [s, ...] in chunks; `fill` is the mode of `jnp.pad` that fills the last. [s / chunk, chunk, ...]"""
    spare = [(0, -rows.shape[0] % chunk)] + [(0, 0)] * (rows.ndim - 1)
    return jnp.pad(rows, spare, mode=fill).reshape(-1, chunk, *rows.shape[1:])


def unchunked(chunks: Any, count: int) -> Any:
    """The rows of a tree of chunks [p, chunk, ...], without those that filled the last one. [count, ...]"""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], chunks)


def tiles_of(labels: Array, k: int, tile: int) -> Tiles:
    """Tiles of at most `tile` rows of one label each.

    Args:
        labels: of the rows, in [0, k). [r] int
    """
    r = labels.size
    most = r // tile + min(k, r)
    size = jnp.zeros(k, jnp.int32).at[labels].add(1)
    needed = -(-size // tile)  # [k] tiles of every label
    last = jnp.cumsum(needed)
    order = jnp.argsort(labels, stable=True)
    ordered = labels[order]
    rank = jnp.arange(r) - (jnp.cumsum(size) - size)[ordered]
    place = (last - needed)[ordered] * tile + rank
    row = jnp.full(most * tile, -1, jnp.int32).at[place].set(order.astype(jnp.int32)).reshape(most, tile)
    label = jnp.minimum(jnp.searchsorted(last, jnp.arange(most), side="right"), k - 1)
    return Tiles(label, row, last[-1])


def slots_in_batches(wanted: Array, batch: int) -> Array:
    """The numbers of all k slots, those that are wanted first; k where a batch is filled up. [c, batch] int32

    Args:
        wanted: [k] bool
        batch: the most slots in a batch; there are fewer where k is smaller.
    """
    k = wanted.size
    batch = min(batch, k)
    return jnp.pad(jnp.argsort(~wanted, stable=True), (0, -k % batch), constant_values=k).reshape(-1, batch)


def client_keys(key: Key, who: Array) -> Key:
    """A key for each of the clients `who` [s]. It depends on the client's id alone, not on its cohort or chunk."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, who)


def over_devices(
    function: Callable[..., Any], fixed: Any, parts: Any, devices: int, batch_size: int | None = None
) -> Any:
    """`function(fixed, part)` for every part of `parts` [p, ...]; devices share the parts among them. [p, ...]"""

    def inside(fixed: Any, parts: Any) -> Any:
        return jax.lax.map(lambda part: function(fixed, part), parts, batch_size=batch_size)

    count = jax.tree.leaves(parts)[0].shape[0]
    even = lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[:1], -count % devices, axis=0)])
    return jax.tree.map(lambda leaf: leaf[:count], divided_work(inside, fixed, jax.tree.map(even, parts), devices))


def divided_work(function: Callable[[Any, Any], Any], fixed: Any, parts: Any, devices: int) -> Any:
    """`function(fixed, parts)`, each device for its share of the parts [p, ...]; `devices` divides p. [p, ...]"""
    if devices == 1:
        return function(fixed, parts)
    specs = jax.P(), jax.P("clients")
    return jax.shard_map(function, mesh=device_mesh(devices), in_specs=specs, out_specs=specs[1], check_vma=False)(
        fixed, parts
    )


def device_mesh(devices: int) -> jax.sharding.Mesh:
    """The devices that share the clients among them, on all hosts."""
    auto = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((devices,), ("clients",), auto, devices=(target().devices or jax.devices())[:devices])


FEW = 64
"""Up to this number of cluster models, each device holds all of them. A larger number means one model for each client,
or slots that are kept for new clusters; devices divide these models."""


def are_many(k: int, clients: int) -> bool:
    """Whether devices divide the models of k clusters: if there are as many as clients, or more than `FEW`."""
    return k > min(FEW, clients - 1)


def divided_axis(shape: tuple[int, ...], devices: int, lead: int = 1) -> int | None:
    """The axis of a leaf that devices divide: the first axis of parameters that can be divided evenly, if there is one.

    It is the first, so that the axes after it can be flattened into it. Several hosts have copies of all, because each
    of them reads what it writes to files.

    Args:
        shape: of a leaf of stacked models.
        lead: how many axes come before those of parameters.
    """
    if jax.process_count() > 1:
        return None
    return next((axis for axis in range(lead, len(shape)) if shape[axis] % devices == 0), None)


def divided(shape: tuple[int, ...], devices: int, lead: int = 1) -> jax.sharding.NamedSharding:
    """The sharding by which devices divide stacked models' parameters among them: each holds a part of all models.

    Rows are then read and replaced, and means are taken, without exchanging anything, and any number of models will do.
    Every device holds a copy of a leaf that cannot be divided. The arguments are those of `divided_axis`.
    """
    axis = divided_axis(shape, devices, lead)
    spec = () if axis is None else (None,) * axis + ("clients",)
    return jax.NamedSharding(device_mesh(devices), jax.P(*spec))
