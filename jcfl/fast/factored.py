"""Clients trained without a first-layer kernel each: an exact shortcut for networks that begin with a dense layer.

Clients are sorted by cluster and taken in tiles of one cluster, so that the products of their examples with the kernels
they are sent, and the sums over clients, are plain products of large matrices. See `jcfl.fast.coordinates`.
"""

from collections.abc import Callable, Sequence
from functools import partial

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
from jcfl.types import Array, Broadcast, Clients, Federation, Key, Model, Models, State, Task, Upload

REFERENCES = (own, shared)
"""The models, as a client is sent them, whose first kernels are W₁, W₂."""

PACE = {"cpu": (0.35, 1.0), "gpu": (1.0, 1.0)}
"""What a multiplication takes in a plain product of large matrices, and in the small products of a client's own, by
backend; one in the products batched over clients that training in general is made of takes 1."""

SHARED_OUT = 0.6
"""What training in general takes of its time once a CPU's cores are devices of their own: large products, which make
use of all cores by themselves, gain nothing by that."""

UPDATE = 40
"""Multiplications that one reading and writing of a kernel's element takes the time of, all told in a step."""

TILE = 32 * 2**20
"""Bytes of a tile beyond which a CPU gains nothing."""

EVEN = 4
"""A tile's clients are a multiple of this, so that two or four cores have equally many of them."""


class Factored:
    """Training in coordinates of the first layer, for networks that begin with a dense one."""

    name = "factored"

    def obstacle(self, work: engine.Work) -> str:
        """Why clients cannot be trained this way; an empty string if they can."""
        if work.task.first is None:
            return f"the model {work.task.name!r} does not begin with a dense layer that takes the examples as they are"
        if not work.trainer.is_linear or work.trainer.keeps_state:
            return "clients do not train by plain SGD that starts afresh in every round"
        if not all(isinstance(term, Pull) and term.to in REFERENCES for term in work.terms):
            return "a term of the loss is not a pull to a model that was sent"
        return "" if work.alone else "clients need more than the models that are sent"

    def is_cheaper(self, work: engine.Work, context: Context) -> bool:
        """Whether a client's training takes less time this way, by the products it is made of."""
        if work.task.first is None:
            return False
        plain, small = PACE.get(jax.default_backend(), PACE["gpu"])
        n, d, h = sizes(work.task, context)
        batch, steps = work.trainer.rows_and_steps(n)
        general = 2 * steps * batch * d * h + UPDATE * steps * d * h
        general *= SHARED_OUT if context.resources.devices > 1 and jax.default_backend() == "cpu" else 1
        products = (references(work.terms, work.shared) + 1) * n * d * h
        return plain * products + small * (n * n * d + steps * batch * n * h) < general

    def training(self, work: engine.Work, context: Context) -> engine.CohortTraining:
        """Clients in tiles of one cluster."""
        count = references(work.terms, work.shared)
        return partial(train_in_tiles, work.make, work.task, count, tile_size(work.task, context, count))


def references(terms: Sequence[Term], apart: bool) -> int:
    """How many of `REFERENCES` training refers to.

    Args:
        apart: whether the global model is trained or added.
    """
    return 2 if apart or any(isinstance(term, Pull) and term.to is shared for term in terms) else 1


def tile_size(task: Task, context: Context, references: int) -> int:
    """How many clients of a cluster train at a time."""
    n, d, h = sizes(task, context)
    cohort = context.population.cohort
    client = 4 * (2 * n * d + n * n + n * h * (references + 8))
    room = context.resources.room
    most = max(1, min(cohort, (min(room, TILE) if jax.default_backend() == "cpu" else room) // client))
    if most <= 2:
        return most
    time = lambda tile: -(-cohort // tile) * (tile + 0.5)  # with what a tile takes of its own
    return min(cohort, min(range(EVEN, most + EVEN, EVEN), key=time))


def sizes(task: Task, context: Context) -> tuple[int, int, int]:
    """Examples of the largest client, features, and width of the first layer."""
    h = first_kernel(first_of(task), jax.eval_shape(task.init, jax.random.key(0))).shape[1]
    return context.population.width, int(np.prod(context.population.shape)), h


def takes_less_memory(task: Task, context: Context) -> bool:
    """Whether gradients are kept in coordinates: where that takes less memory, unless an engine was asked for."""
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
    """As `engine.train_in_chunks`, for clients that `make` makes of a task.

    Clients are sorted by cluster and taken in tiles of one cluster, so that a tile's products are plain ones.

    Args:
        references: how many of `REFERENCES` the clients' training refers to.
        tile: clients trained at a time.
    """
    k, s = trees.count(state.clusters), participants.who.size
    tile = min(tile, s)
    train = partial(train_tiles, make, task, references, key, state, participants, federation, keep)
    tiles = chunks.tiles_of(participants.label, k, tile)
    if k * tile <= s or tile == 1:
        return train(tiles)
    singly = chunks.tiles_of(participants.label, k, 1)  # with many small clusters most of a tile may be empty
    packed = tiles.used * tile <= 2 * s
    begun = train(tiles._replace(used=jnp.where(packed, tiles.used, 0)))
    return train(singly._replace(used=jnp.where(packed, 0, singly.used)), begun)


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
    """A cohort trained, cluster after cluster, tile after tile; a cluster's mean takes the place of its model.

    Args:
        begun: what other tiles have come to.
    """
    first, s = first_of(task), participants.who.size
    held, counted = engine.cluster_shares(state, federation), engine.trained_clusters(participants, state)
    starts, count = label_starts(tiles)

    def part(turn: Array, models: Sequence[Model]) -> tuple[Upload, Upload]:
        """A tile's weighted sums, and the models themselves where they are kept."""
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
            sum_in_coordinates(first, x, near, uploads.cluster), sum_in_coordinates(first, x, far, uploads.shared)
        )
        full = Upload(*(models_written_out(first, layers, x, model) for model in (uploads.cluster, uploads.shared)))
        return sums, full if keep else Upload((), ())

    def cluster(run: Array, carry):
        clusters, common, kept = carry
        label = tiles.label[starts[run]]
        models = [trees.take(clusters, label), state.shared]

        def add(turn: Array, carry):
            sums, kept = carry
            new, full = part(turn, models)
            place = jnp.where(tiles.row[turn] < 0, s, tiles.row[turn])
            put = lambda out, new: out.at[place].set(new, mode="drop")
            return optax.tree.add(sums, new), jax.tree.map(put, kept, full)

        blank = optax.tree.zeros_like(shapes[0])
        sums, kept = jax.lax.fori_loop(starts[run], starts[run + 1], add, (blank, kept))

        def close(_, carry):
            clusters, common = carry
            layers = [first_layer(first, model) for model in models[:references]]
            mean, more = sum_written_out(first, layers, sums.cluster), sum_written_out(first, layers, sums.shared)
            clusters = jax.tree.map(lambda all_, one: all_.at[label].set(one), clusters, mean)
            return clusters, optax.tree.add(common, more) if jax.tree.leaves(more) else common

        # a loop of no or one turn, since XLA would copy all clusters for a choice, or to read and write in one place
        return *jax.lax.fori_loop(0, counted[label].astype(int), close, (clusters, common)), kept

    shapes = jax.eval_shape(part, jnp.int32(0), [state.shared] * 2)
    if begun is None:
        kept = jax.tree.map(lambda leaf: jnp.zeros((s, *leaf.shape[1:]), leaf.dtype), shapes[1])
        begun = state.clusters, trees.zeros_after(state.labels[0] >= -1, state.shared), kept
    return jax.lax.fori_loop(0, count, cluster, begun)


def label_starts(tiles: Tiles) -> tuple[Array, Array]:
    """Where the tiles of every label begin, and at last end, and how many labels there are. [t + 1], []"""
    turn = jnp.arange(tiles.label.size)
    begins = (turn < tiles.used) & ((turn == 0) | (tiles.label != jnp.roll(tiles.label, 1)))
    starts = jnp.flatnonzero(begins, size=turn.size + 1, fill_value=tiles.used)
    return starts, begins.sum()


def train_tile(
    make, task: Task, sent: Broadcast, layers: Sequence[Model], x: Array, data: Clients, keys: Key
) -> Upload:
    """A tile of clients trained, their first layers in coordinates. [t, ...]"""

    def one(rows: list[Array], gram: Array, y: Array, mask: Array, key: Key) -> Upload:
        return make(task_in_coordinates(task, layers, rows, gram))(sent, Clients(RowNumbers(), y, mask), key)

    return jax.vmap(one)(*example_products(layers, x), data.y, data.mask, keys)
