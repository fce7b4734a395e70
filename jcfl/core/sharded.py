"""A cohort's training shared out among devices: what each device gets, and how their results come together."""

from typing import Any

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core.chunks import are_many, chunked, device_mesh, divided, divided_axis, slots_in_batches
from jcfl.core.engine import SENT, SERVER_SIDE, CohortTraining, Participants, Work, put_trained, trained_clusters
from jcfl.core.local import keeps
from jcfl.core.objective import Pull, own, shared
from jcfl.types import Array, Federation, Key, Model, Models, State
from jcfl.types.target import target

EXCHANGED = 8
"""How many clusters' models devices exchange at a time. Most slots may be empty, and these are not sent."""


def shared_out(stream: CohortTraining, work: Work, devices: int) -> CohortTraining:
    """The same training on several devices: each trains a part of the cohort, and their sums are added.

    What clients keep, and the models of many clusters, are divided among the devices by their parameters (see
    `chunks.divided`). A device gets the rows of its own clients and the models of their clusters, no others. On a CPU
    it gets clients with about as many examples as the other devices get, because they wait for the last of them.
    """
    if devices == 1:
        return stream
    each, all_ = jax.P("clients"), jax.P()

    def whole(key: Key, state: State, participants: Participants, federation: Federation, keep: bool):
        mesh = device_mesh(devices)  # while it is traced, so that it is that of the target then
        count, s = participants.who.size, -(-participants.who.size // devices)  # clients in all, and of one device
        parts = jax.tree.map(lambda array: chunked(array, devices).reshape(-1), participants)
        split, back = federation.train, slice(count)
        if target().is_cpu and not split.is_even:
            size = jnp.where(jnp.arange(s * devices) < count, split.size[parts.who], -1)
            order = dealt(size, devices)
            parts, back = trees.take(parts, order), jnp.argsort(order)[:count]
        # Without this, XLA would also divide among the devices the operations that made the participants.
        parts = jax.lax.with_sharding_constraint(parts, jax.NamedSharding(mesh, all_))
        place = lambda leaf: divided(leaf.shape, devices)
        across = lambda rows: jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, place(leaf)), rows)
        sent = {name: kept for name, kept in state.clients.items() if name not in SERVER_SIDE}
        kept, parts = across(trees.take(sent, parts.row)), parts.replace(row=jnp.arange(parts.who.size) % s)
        few = needs_few_models(work, state)  # then each device holds a part of every cluster's model
        alone = few and work.apart  # then each client has a cluster of its own, and only it needs that model
        trained, models, specs = trained_clusters(parts, state), state.clusters, all_
        if alone:
            models, specs = across(trees.take(models, parts.label)), each
        elif few:
            specs = jax.tree.map(lambda leaf: place(leaf).spec, models)

        def part(key: Key, view: State, kept: Any, models: Models, part: Participants, trained: Any, data: Federation):
            near, places, label = models, None, part.label
            if alone:
                label = part.row
            elif few:
                near, places = fetched(models, view.shared, part, s, devices)
                label = places[part.label]
            labels = jnp.full_like(view.labels, -1).at[part.who].set(label) if few else view.labels
            view = view.replace(clients=kept, clusters=near, labels=labels)
            found, common, uploads = stream(key, view, part.replace(label=label), data, keep)
            if not alone:
                found = sums_of_devices(found, part, trained, models, places, view.shared, devices)
            return found, jax.lax.psum(common, "clients"), uploads

        inside = all_, all_, each, specs, each, all_, all_
        on_all = jax.shard_map(part, mesh=mesh, in_specs=inside, out_specs=(specs, all_, each), check_vma=False)
        view = state.replace(clients={}, clusters=())
        models, common, uploads = on_all(key, view, kept, models, parts, trained, federation)
        first = lambda rows: jax.tree.map(lambda leaf: leaf[back], across(rows))
        if alone:
            models = put_trained(state, participants, participants.label, first(models))
        return models, common, first(uploads)

    return whole


def dealt(size: Array, devices: int) -> Array:
    """Clients in an order in which equal parts of it, one for each device, have about as many examples.

    The largest clients are dealt to the devices in turn, then the next ones in reverse turn, and so on.

    Args:
        size: the number of examples of each client; the number of clients can be divided by that of devices. [s] int

    Returns:
        the numbers of the clients. [s] int
    """
    turns = jnp.arange(size.size).reshape(-1, devices)
    turns = turns.at[1::2].set(turns[1::2, ::-1])
    return jnp.argsort(-size, stable=True)[turns.T.ravel()]


def needs_few_models(work: Work, state: State) -> bool:
    """Whether a device can do with the models of its clients' clusters, of many that devices divide among them.

    It cannot where a loss term, or a trainer's own way to train, may look at all of them, or where the server keeps
    more for every cluster.
    """
    near = all(isinstance(term, Pull) and term.to in (own, shared) for term in work.terms)
    near &= work.trainer.is_linear or keeps(work.trainer, "train", "resume")
    kept = any(name in SENT for name in state.server)
    return near and not kept and are_many(trees.count(state.clusters), state.labels.size)


def fetched(held: Models, like: Model, part: Participants, room: int, devices: int) -> tuple[Models, Array]:
    """The models of the clusters of a device's clients, put together from the parts that all devices have.

    Args:
        held: this device's part of every cluster's model. [k, ...]
        like: a whole model.
        part: this device's clients.
        room: how many clusters they can be in at most.

    Returns:
        the models [q, ...], and every cluster's place among them, q for others and for a cluster k. [k + 1]
    """
    k = trees.count(held)
    mine = jnp.zeros(k, bool).at[part.label].set(True)
    wanted = jax.lax.psum(mine.astype(jnp.int32), "clients") > 0
    slots = slots_in_batches(mine, room)[0]
    q = slots.size
    place = jnp.full(k + 1, q).at[slots].set(jnp.where(mine[slots], jnp.arange(q), q))
    batches = slots_in_batches(wanted, EXCHANGED)

    def fetch(turn: Any, found: Models) -> Models:
        some = batches[turn]
        put = lambda all_, one, axis: all_.at[place[some]].set(joined(one[some], axis), mode="drop")
        return jax.tree.map(put, found, held, divided_axes(like, devices))

    first = jax.tree.map(lambda leaf: jnp.zeros((q, *leaf.shape), leaf.dtype), like)
    return jax.lax.fori_loop(0, -(-wanted.sum() // batches.shape[1]), fetch, first), place


def divided_axes(like: Model, devices: int) -> Any:
    """The axis of stacked models that devices divide, for each array of a model; -1 where each has a copy."""
    axis = lambda leaf: divided_axis((1, *leaf.shape), devices)
    return jax.tree.map(lambda leaf: -1 if axis(leaf) is None else axis(leaf), like)


def joined(rows: Array, axis: int) -> Array:
    """The whole rows, of which every device has a part."""
    return rows if axis < 0 else jax.lax.all_gather(rows, "clients", axis=axis, tiled=True)


def summed(rows: Array, axis: int) -> Array:
    """A device's part of the sum of all devices' rows."""
    if axis < 0:
        return jax.lax.psum(rows, "clients")
    return jax.lax.psum_scatter(rows, "clients", scatter_dimension=axis, tiled=True)


def sums_of_devices(
    found: Models, part: Participants, trained: Array, clusters: Models, places: Array | None, like: Model, devices: int
) -> Models:
    """The sums over all devices of the clusters that were trained, and the old models of the others. [k, ...]

    Args:
        found: this device's sums. [q, ...]
        part: this device's clients; its sums of other clusters do not count.
        trained: the clusters that any device has trained. [k] bool
        clusters: the old models, or this device's part of them. [k, ...]
        places: every cluster's place in `found`, if devices have parts of the models; see `fetched`. [k + 1]
        like: a whole model.
    """
    mine = jnp.zeros(trained.size).at[part.label].add(part.in_cluster) > 0
    slots = slots_in_batches(trained, EXCHANGED)
    axes = jax.tree.map(lambda leaf: -1, like) if places is None else divided_axes(like, devices)

    def exchange(turn: Any, clusters: Models) -> Models:
        some = slots[turn]
        rows = trees.take(found, some if places is None else places[some])
        rows = trees.select(mine[some], rows, jax.tree.map(jnp.zeros_like, rows))
        place = jnp.where(trained[some], some, trained.size)
        put = lambda all_, one, axis: all_.at[place].set(trees.rounded(summed(one, axis), all_), mode="drop")
        return jax.tree.map(put, clusters, rows, axes)

    if len(slots) == 1:
        return exchange(0, clusters)
    turns = -(-trained.sum() // slots.shape[1])
    return jax.lax.fori_loop(0, turns, exchange, clusters)
