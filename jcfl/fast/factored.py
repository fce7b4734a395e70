"""The factored engine: it trains clients without a first-layer kernel of their own, and computes the same.

It is for networks that begin with a dense layer; see `jcfl.fast.coordinates`. Clients are sorted by cluster and trained
in tiles of one cluster. The products of their examples with the cluster's kernel, and the sums over clients, are then
products of large matrices.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jcfl import trees
from jcfl.core import chunks, engine
from jcfl.core.chunks import Tiles
from jcfl.core.context import Context
from jcfl.core.engine import Client, Participants
from jcfl.core.objective import Pull, Term, own, shared
from jcfl.fast.coordinates import (
    RowNumbers,
    example_products,
    first_kernel,
    first_layer,
    first_of,
    model_in_coordinates,
    models_written_out,
    sum_in_coordinates,
    sum_written_out,
    task_in_coordinates,
)
from jcfl.trees.rows import HostRows
from jcfl.types import Array, Broadcast, Clients, Federation, Key, Model, Models, State, Task, Upload
from jcfl.types.target import target

REFERENCES = (own, shared)
"""The models in a broadcast whose first kernels are W₁ and W₂."""

PACE = {"cpu": (0.6, 2.5), "gpu": (1.0, 1.0)}
"""The time of one multiplication by backend: in products of large matrices and of a client's examples, and in the small
products with its coefficients. The unit is the time of one multiplication in the general engine. On a CPU it was
measured on one Intel core, with MLPs of 200 and of 800 units, of the quickstart, and of StoCFL's Table 1."""

SHARED_OUT = 0.6
"""The share of its time that the general engine still takes when the cores of a CPU are devices of their own. Products
of large matrices gain nothing by that, because each of them uses all cores already."""

UPDATE = {"cpu": 2, "gpu": 40}
"""By platform: how many multiplications take the time in which a step of the general engine updates one number of a
kernel. On a CPU the clients of a chunk fit its cache. The number for a GPU was estimated, not measured."""

TILE = 32 * 2**20
"""The most bytes of a tile on a CPU, where larger tiles are not faster."""

EXTRA = {"cpu": (0.5, 0), "gpu": (64, 4)}
"""By platform: how many clients take as long as a tile takes besides its clients, and how many tiles' worth of places
are expected to be empty. On a GPU a tile starts some 200 kernels; this was estimated from programs, not measured."""

PLACES = {"cpu": 2, "gpu": 64}
"""How many places in tiles there may be for each client, by platform. On a CPU an empty one costs as much as a client.
On a GPU a tile of one client takes as long as one with 64 empty places, by the estimate of `EXTRA`."""

EVEN = 4
"""The number of clients in a tile is a multiple of this, so that two or four cores get equally many clients."""


class Factored:
    """The engine that trains in coordinates of the first layer, for networks that begin with a dense layer."""

    name = "factored"

    def obstacle(self, work: engine.Work) -> str:
        """Why clients cannot be trained in coordinates; an empty string if they can."""
        if work.task.first is None:
            return f"the model {work.task.name!r} does not begin with a dense layer that takes the examples as they are"
        if not work.trainer.is_linear or work.trainer.keeps_state:
            return "clients do not train by plain SGD that starts afresh in every round"
        if not all(isinstance(term, Pull) and term.to in REFERENCES and term.is_of_layers for term in work.terms):
            return "a term of the loss is not a pull of whole layers to a model that was sent"
        if work.clips:
            return "clients clip their updates, for which each needs a whole kernel of its own"
        return "" if work.alone else "clients need more than the models that are sent"

    def is_cheaper(self, work: engine.Work, context: Context) -> bool:
        """Whether this engine is expected to take less time for a client, counted in multiplications."""
        if work.task.first is None:
            return False
        plain, small = target().of(PACE)
        n, d, h = sizes(work.task, context)
        batch, steps = work.trainer.rows_and_steps(n)
        general = 2 * steps * batch * d * h + target().of(UPDATE) * steps * d * h
        general *= SHARED_OUT if context.resources.devices > 1 and target().is_cpu else 1
        products = (references(work.terms, work.shared) + 1) * n * d * h + n * n * d
        return plain * products + small * steps * batch * n * h < general

    def training(self, work: engine.Work, context: Context) -> engine.CohortTraining:
        """`train_in_tiles` with the size of tiles that suits the run."""
        count = references(work.terms, work.shared)
        tile = 1 if work.apart else tile_size(work.task, context, count)  # of no cluster a tile would have two clients
        return partial(train_in_tiles, work.make, work.task, count, tile)


def references(terms: Sequence[Term], apart: bool) -> int:
    """How many of `REFERENCES` training needs: the cluster's model, and ω if it is used too.

    Args:
        apart: whether ω is trained on a copy of its own, or its logits are added.
    """
    return 2 if apart or any(isinstance(term, Pull) and term.to is shared for term in terms) else 1


def tile_size(task: Task, context: Context, references: int) -> int:
    """How many clients of a cluster train at a time."""
    if context.resources.tile is not None:
        return min(context.resources.tile, context.population.cohort)
    n, d, h = sizes(task, context)
    cohort = context.population.cohort
    client = 4 * (2 * n * d + n * n + n * h * (references + 8))
    room = context.resources.room
    most = max(1, min(cohort, (min(room, TILE) if target().is_cpu else room) // client))
    if most <= 2:
        return most
    start, spare = target().of(EXTRA)
    time = lambda tile: (-(-cohort // tile) + spare) * (tile + start)
    return min(cohort, min(range(EVEN, most + EVEN, EVEN), key=time))


def sizes(task: Task, context: Context) -> tuple[int, int, int]:
    """n, d and h: the examples of the largest client, the features, and the width of the first layer."""
    h = first_kernel(first_of(task), jax.eval_shape(task.init, jax.random.key(0))).shape[1]
    return context.population.width, int(np.prod(context.population.shape)), h


def takes_less_memory(task: Task, context: Context) -> bool:
    """Whether gradients are kept in coordinates: if that takes less memory, or as the configuration's engine says."""
    if task.first is None or context.engine != "auto":
        return context.engine == "factored"
    n, d, h = sizes(task, context)
    return n * (d + h) < d * h


def train_in_tiles(
    make: Callable[[Task], Client],
    task: Task,
    references: int,
    tile: int,
    key: Key,
    state: State,
    participants: Participants,
    federation: Federation,
    keep: bool,
) -> tuple[Models, Model, Upload]:
    """As `engine.train_in_chunks`, but in tiles of one cluster, and for clients in coordinates.

    If most places in the tiles would be empty, because there are many small clusters, tiles of one client are used.

    Args:
        make: makes a client for a task in coordinates.
        references: how many of `REFERENCES` training needs.
        tile: how many clients are trained at a time.
    """
    k, s = trees.count(state.clusters), participants.who.size
    tile = min(tile, s)
    train = partial(train_tiles, make, task, references, key, state, participants, federation, keep)
    tiles = chunks.tiles_of(participants.label, k, tile)
    if tile == 1 or are_full(tiles.row.size, s):  # then no round can need tiles of one client
        return train(tiles)
    singly = chunks.tiles_of(participants.label, k, 1)
    packed = are_full(tiles.used * tile, s)
    begun = train(tiles._replace(used=jnp.where(packed, tiles.used, 0)))
    return train(singly._replace(used=jnp.where(packed, 0, singly.used)), begun)


def are_full(places: Any, clients: int) -> Any:
    """Whether so few places in tiles are empty that tiles of one client would take longer."""
    return places <= target().of(PLACES) * clients


def train_tiles(
    make: Callable[[Task], Client],
    task: Task,
    references: int,
    key: Key,
    state: State,
    participants: Participants,
    federation: Federation,
    keep: bool,
    tiles: Tiles,
    begun: tuple[Models, Model, Upload] | None = None,
) -> tuple[Models, Model, Upload]:
    """Train a cohort, one cluster after another and one tile after another.

    Args:
        begun: the results to go on from, if other tiles of the cohort were trained before.

    Returns:
        as `engine.train_in_chunks`; each cluster's mean was written in the place of its model.
    """
    first, s, k = first_of(task), participants.who.size, trees.count(state.clusters)
    held, counted = engine.cluster_shares(state, federation), engine.trained_clusters(participants, state)
    begins, ends = borders(tiles)

    def part(turn: Array, models: Sequence[Model]) -> tuple[Upload, Upload]:
        """The weighted sums of one tile, and its clients' models if they are kept."""
        label, row = tiles.label[turn], tiles.row[turn]
        real, row = row >= 0, jnp.maximum(row, 0)
        who, near, far = (
            participants.who[row],
            jnp.where(real, participants.in_cluster[row], 0),
            jnp.where(real, participants.in_cohort[row], 0),
        )
        layers = [first_layer(first, model) for model in models[:references]]
        data = chunks.gather(federation, federation.train, who)
        x = data.x.reshape(*data.y.shape, -1)  # [t, n, d]
        own_model, common = (
            model_in_coordinates(first, model, min(j, references - 1), references, x.shape[1])
            for j, model in enumerate(models)
        )
        sent = Broadcast(label, own_model, (), common, held, ())
        uploads = train_tile(make, task, sent, layers, x, data, chunks.client_keys(key, who))
        sums = Upload(
            sum_in_coordinates(first, x, near, trees.where_weighted(near, uploads.cluster)),
            sum_in_coordinates(first, x, far, trees.where_weighted(far, uploads.shared)),
        )
        full = Upload(*(models_written_out(first, layers, x, model) for model in (uploads.cluster, uploads.shared)))
        return sums, full if keep else Upload((), ())

    def add(turn: Array, carry):
        """Train one tile and add it to its cluster's sums; after the cluster's last tile, write its mean."""
        clusters, common, kept, sums = carry
        label = tiles.label[turn]
        models = [trees.take(clusters, label), state.shared]
        new, full = part(turn, models)
        place = jnp.where(tiles.row[turn] < 0, s, tiles.row[turn])
        kept = jax.tree.map(lambda out, new: out.at[place].set(new, mode="drop"), kept, full)
        sums = jax.tree.map(lambda sum_, new: jnp.where(begins[turn], new, sum_ + new), sums, new)

        def close(clusters: Models, common: Model, sums: Upload, place: Array, share: Callable[[Model], Model]):
            layers = [first_layer(first, model) for model in models[:references]]
            mean, more = sum_written_out(first, layers, sums.cluster), sum_written_out(first, layers, sums.shared)
            if jax.tree.leaves(more):
                common = trees.plus(common, share(more))
            return with_model(clusters, place, mean), common

        # On a CPU this is a loop of one turn or none, because all else makes XLA copy the models of all clusters there.
        # A GPU would have to get the end of a loop from the host.
        is_last = ends[turn] & counted[label]
        if target().is_cpu:

            def once(i: Array, carry):
                _, complete = jax.lax.optimization_barrier((i, sums))  # else XLA computes the mean for every tile
                return close(carry[0], carry[1], complete, label, lambda more: more)

            clusters, common = jax.lax.fori_loop(0, is_last.astype(int), once, (clusters, common))
        else:
            share = lambda more: trees.select(is_last, more, optax.tree.zeros_like(more))
            clusters, common = close(clusters, common, sums, jnp.where(is_last, label, k), share)
        return clusters, common, kept, sums

    shapes = jax.eval_shape(part, jnp.int32(0), [state.shared] * 2)
    if begun is None:
        kept = jax.tree.map(lambda leaf: jnp.zeros((s, *leaf.shape[1:]), leaf.dtype), shapes[1])
        begun = state.clusters, engine.empty_mean(state), kept
    # One loop over all tiles: a GPU has to get the end of a loop from the host, and would wait for it at every cluster.
    return jax.lax.fori_loop(0, tiles.used, add, (*begun, optax.tree.zeros_like(shapes[0])))[:3]


def with_model(clusters: Models, place: Array, mean: Model) -> Models:
    """The models with `mean`, in the dtypes of sums, in place of the one at `place` []; k leaves all as they are."""
    if isinstance(clusters, HostRows):
        row = jax.tree.map(trees.rounded, mean, clusters.table.like)
        return clusters.put(place[None], trees.stack(row, 1))
    return jax.tree.map(lambda all_, one: all_.at[place].set(trees.rounded(one, all_), mode="drop"), clusters, mean)


def borders(tiles: Tiles) -> tuple[Array, Array]:
    """Whether a tile is the first of its label, and whether it is the last. [t] bool each"""
    turn = jnp.arange(tiles.label.size)
    differs = tiles.label[1:] != tiles.label[:-1]
    begins = jnp.pad(differs, (1, 0), constant_values=True)
    return begins, jnp.pad(differs, (0, 1), constant_values=True) | (turn + 1 == tiles.used)


def train_tile(
    make, task: Task, sent: Broadcast, layers: Sequence[Model], x: Array, data: Clients, keys: Key
) -> Upload:
    """The uploads of one tile of clients, with their first layers in coordinates. [t, ...]"""

    def one(rows: list[Array], gram: Array, y: Array, mask: Array, key: Key) -> Upload:
        return make(task_in_coordinates(task, layers, rows, gram))(sent, Clients(RowNumbers(), y, mask), key)

    return jax.vmap(one)(*example_products(layers, x), data.y, data.mask, keys)
