"""Every client's model on its own test examples, and the clusters against the true groups."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jcfl import engine, metrics, trees
from jcfl.setting import Setting
from jcfl.types import Array, Broadcast, Federation, Grouping, Model, Models, State, Task, Upload

Answer = Callable[[Model, Model, Array], Array]


def figures(
    setting: Setting, state: State, federation: Federation, k: int, labels: Array, logits: Array
) -> dict[str, Array]:
    """The figures of one evaluation.

    Args:
        k: cluster slots.
        labels: the cluster that serves each client; -1: the shared model. [m]
        logits: the answer to every test row. [r, c]

    Returns:
        scalars as `metrics.scores` and `metrics.clustering` name them, over the clients in the federation this round;
        the same with `held_out_` before the name for clients that never train; `seen`, the share that has taken part;
        `labels` [m]; `accuracy_clients` [m].
    """
    m, owner = setting.clients, owners(federation)
    targets = federation.y[federation.test.rows]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    counts = metrics.counts(owner, targets, logits.argmax(-1), m, federation.classes)
    loss_sums = jnp.zeros(m).at[owner].add(losses)

    here = ~federation.held_out & (federation.arrive <= state.round) & (state.round <= federation.depart)
    found = metrics.scores(counts, loss_sums, here)
    found |= metrics.clustering(labels, federation.groups, k, setting.groups, here)
    found["seen"] = jnp.where(here, state.seen, False).sum() / jnp.maximum(here.sum(), 1)
    if setting.held_out.size:
        outside = metrics.scores(counts, loss_sums, federation.held_out)
        outside |= metrics.clustering(labels, federation.groups, k, setting.groups, federation.held_out)
        found |= {f"held_out_{name}": value for name, value in outside.items()}
    return found | {"labels": labels, "accuracy_clients": metrics.accuracy(counts)}


def answered(
    setting: Setting,
    grouping: Grouping,
    added: bool,
    client: Callable[..., Upload],
    state: State,
    federation: Federation,
) -> tuple[Array, Array]:
    """Which cluster serves each client [m], and the logits of every test row [r, c], after fine-tuning if asked for."""
    labels = served(setting, grouping, state, federation)
    answer = answers(setting.task, added)
    alone = jax.tree.map(jnp.zeros_like, state.shared) if added else state.shared
    if setting.extras.tune:
        return labels, tuned(setting, answer, client, state, alone, federation, labels)
    return labels, predictions(setting, answer, state.clusters, state.shared, alone, federation, labels)


def served(setting: Setting, grouping: Grouping, state: State, federation: Federation) -> Array:
    """The cluster that serves each client, those outside the training placed by the grouping's rule. [m]"""
    labels = grouping.serve(state, federation)
    if setting.held_out.size:
        labels = labels.at[setting.held_out].set(grouping.place(state, jnp.asarray(setting.held_out), federation))
    return jnp.where(state.round >= setting.extras.warmup, labels, -1)


def answers(task: Task, added: bool) -> Answer:
    """How a client answers `x` [n, ...] from its cluster's model and the shared one: logits [n, c]."""

    def answer(cluster: Model, shared: Model, x: Array) -> Array:
        logits = task.apply(cluster, x)[0]
        return logits + task.apply(shared, x)[0] if added else logits

    return answer


def owners(federation: Federation) -> Array:
    """The client of every test row. [r]"""
    split = federation.test
    return jnp.repeat(jnp.arange(split.size.size), split.size, total_repeat_length=split.rows.size)


def predictions(
    setting: Setting,
    answer: Answer,
    clusters: Models,
    shared: Model,
    alone: Model,
    federation: Federation,
    labels: Array,
) -> Array:
    """The logits of every test row, from the model that serves its client. [r, c]

    Rows of one model are answered together, so a model is read once per tile and not once per client.

    Args:
        alone: in place of a cluster's model for clients that have none.
        labels: the cluster that serves each client, -1 for none. [m]
    """
    k, rows = trees.count(clusters), federation.test.rows
    labels = labels[owners(federation)]
    tile, batch = tile_sizes(rows.size, k, trees.parameters(shared) * 4, setting.room)
    tiles = engine.cut(jnp.where(labels < 0, k, labels), k + 1, tile)

    def part(fixed, args):
        (clusters, shared, alone, federation), (label, row) = fixed, args
        model = trees.select(label < k, trees.take(clusters, jnp.minimum(label, k - 1)), alone)
        return answer(model, shared, engine.pixels(federation, federation.test.rows[row]))

    fixed = clusters, shared, alone, federation
    logits = engine.mapped(part, fixed, (tiles.label, tiles.row), setting.devices, batch)  # [t, n, c]
    place = jnp.where(tiles.row < 0, rows.size, tiles.row)
    return jnp.zeros((rows.size, logits.shape[-1]), logits.dtype).at[place].set(logits, mode="drop")


def tuned(
    setting: Setting,
    answer: Answer,
    client: Callable[..., Upload],
    state: State,
    alone: Model,
    federation: Federation,
    labels: Array,
) -> Array:
    """The logits of every test row, each client's model first trained for some local steps (T §7.4.4). [r, c]

    Args:
        alone, labels: as for `predictions`.
    """
    local = setting.local._replace(steps=setting.extras.tune, epochs=None)
    start = lambda label: trees.select(label >= 0, trees.take(state.clusters, jnp.maximum(label, 0)), alone)
    held, test = engine.cluster_shares(state, federation), federation.test

    def one(who: Array, data) -> Array:
        sent = Broadcast(labels[who], start(labels[who]), state.clusters, state.shared, held, state.memory)
        upload = client(sent, data, jax.random.fold_in(jax.random.fold_in(state.key, state.round), who), local)
        rows = test.rows[test.start[who] + jnp.arange(test.width) % jnp.maximum(test.size[who], 1)]
        return answer(upload.cluster, upload.shared or state.shared, engine.pixels(federation, rows))

    logits = engine.each(one, federation, jnp.arange(setting.clients), setting.chunk)  # [m, n, c]
    spot = jnp.arange(test.rows.size) - test.start[owners(federation)]
    return logits[owners(federation), spot]


def tile_sizes(rows: int, k: int, model_bytes: int, budget: int) -> tuple[int, int]:
    """Rows in a tile, and tiles answered at a time."""
    tile = 2 ** int(np.clip(np.log2(max(rows, 1) / (2 * k)), 3, 10))
    return tile, int(np.clip(budget // max(model_bytes, 1), 1, max(1, 1024 // tile)))
