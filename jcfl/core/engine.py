"""How a cohort is trained: clients vmapped in chunks, their uploads summed as they come; the choice among engines."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from jcfl import metrics, trees
from jcfl.core.chunks import chunked, client_keys, gather, slots_in_batches, unchunked
from jcfl.errors import InputError, unknown
from jcfl.trees.rows import HostRows
from jcfl.types import Array, Broadcast, Clients, Cohort, Federation, Key, Model, Models, State, Task, Upload

Client = Callable[[Broadcast, Clients, Key], Upload]
Weigh = Callable[[Array], Array]


class Sums(NamedTuple):
    """What a round's uploads add up to."""

    clusters: Models  # [k, ...], the clusters' weighted means; the old model of a cluster in which nobody trained
    weight: Array  # [k]
    shared: Model  # the weighted mean over the cohort


class Participants(struct.PyTreeNode):
    """The clients of a cohort, with their clusters and their weights in the means."""

    who: Array  # [s] int32
    row: Array  # [s] int32, the client's row in the states that clients keep
    label: Array  # [s] int32, the cluster
    in_cluster: Array  # [s] the client's weight in its cluster's mean; a cluster's weights add up to 1
    in_cohort: Array  # [s] the client's weight in the mean over the whole cohort, which goes by size


CohortTraining = Callable[[Key, State, Participants, Federation, bool], tuple[Models, Model, Upload]]
"""Trains a cohort: `(round's key, state, cohort, federation, keep) -> (clusters' means, the mean, uploads if kept)`.

The means have the dtypes of sums, see `trees.sum_dtype`, or those of the models. A cluster in which nobody trains keeps
its model. The states that clients keep are returned even if `keep` is false and the models are not."""


class Work(NamedTuple):
    """What the clients of a round do, as an engine needs to know it."""

    make: Callable[[Task], Client]  # makes a client for a task; an engine may give it another form of the run's task
    task: Task
    trainer: Any  # a `jcfl.core.local.Trainer`
    terms: Sequence[Any]  # the loss terms, as functions
    shared: bool  # whether ω is trained on a copy of its own, or its logits are added
    alone: bool  # whether a client needs nothing but its examples and the models that the server sends
    clips: bool = False  # whether a client clips its update, for which it needs the whole of it
    apart: bool = False  # whether each client has a cluster of its own


class Engine(Protocol):
    """A way to train a cohort. All engines compute the same; they differ in time and memory."""

    name: str

    def obstacle(self, work: Work) -> str:
        """Why this engine cannot do the work; an empty string if it can."""
        ...

    def is_cheaper(self, work: Work, context: Any) -> bool:
        """Whether this engine is expected to take less time than the general one."""
        ...

    def training(self, work: Work, context: Any) -> CohortTraining:
        """The function that does the work on one device."""
        ...


SERVER_SIDE = ("model", "description", "dropped", "suspected", "controlled")
"""States of clients that the server keeps for its own use and does not send back to them."""


def train_in_chunks(
    client: Client, chunk: int, key: Key, state: State, participants: Participants, federation: Federation, keep: bool
) -> tuple[Models, Model, Upload]:
    """Train every client of the cohort from what the server sends it, and average the uploads.

    Each chunk is trained and added to the sums before the next one begins, so the memory holds the uploads of one chunk
    at a time, unless `keep` needs all of them.

    Args:
        client: trains one client.
        chunk: how many clients are trained at a time.
        key: the round's key. A client's own key is folded from it and the client's id, so chunks change no number.

    Returns:
        the clusters' means [k, ...], the cohort's mean, and the uploads stacked `[s, ...]` if kept.
    """
    common = common_broadcast(state, federation)
    summed, places = slots_of_sums(participants, state)

    def body(sums, args: tuple[Participants, Array]):
        part, place = args
        data = gather(federation, federation.train, part.who)
        upload = train_chunk(client, broadcast(state, part.label, part.row, common), data, client_keys(key, part.who))
        return sums_with(sums, part, place, upload), upload if keep else Upload((), (), upload.own)

    parts = jax.tree.map(lambda array: chunked(array, chunk), (participants, places))
    (sums, mean), uploads = jax.lax.scan(body, empty_sums(state, summed.size), parts)
    uploads = unchunked(uploads, participants.who.size)
    return with_sums(state, participants, summed, sums), mean, uploads


Link = Callable[[Key, State, Participants, Federation, Model], Model]
"""Trains one client of a chain: `(round's key, state, the client, federation, the model handed on) -> the model`."""


def train_in_turn(
    link: Link, key: Key, state: State, participants: Participants, federation: Federation, keep: bool
) -> tuple[Models, Model, Upload]:
    """As `train_in_chunks`, but one client after another: each goes on with the one model of the client before it.

    Args:
        keep: is not looked at, because the models of a chain cannot be kept one by one.
    """
    mean = mean_of_chain(link, participants.in_cluster, key, state, participants, federation)
    models = trees.select(trained_clusters(participants, state), trees.stack(mean, 1), state.clusters)
    return models, empty_mean(state), Upload((), ())


def train_shared_in_turn(
    link: Link,
    clusters: CohortTraining,
    key: Key,
    state: State,
    participants: Participants,
    federation: Federation,
    keep: bool,
) -> tuple[Models, Model, Upload]:
    """ω is trained by one client after another, and the clusters' models by all clients at a time.

    The two do not depend on each other, because the clusters' models are pulled to the ω of the round's beginning, as
    in the code of Zeng et al. (2023).

    Args:
        clusters: trains the clusters' models alone.
    """
    mean = mean_of_chain(link, participants.in_cohort, key, state, participants, federation)
    models, _, uploads = clusters(key, state, participants, federation, keep)
    return models, mean, uploads


def mean_of_chain(
    link: Link, weights: Array, key: Key, state: State, participants: Participants, federation: Federation
) -> Model:
    """The mean, by weights [s], of the models of clients that hand one on. Absent clients hand it on as it is."""

    def body(carry, args: tuple[Participants, Array]):
        (handed, mean), (part, weight) = carry, args
        model = link(key, state, part, handed, federation)
        handed = trees.select(part.in_cohort > 0, model, handed)
        add = lambda total, leaf: jnp.where(weight > 0, total + weight * leaf, total).astype(total.dtype)
        return (handed, jax.tree.map(add, mean, model)), None

    return jax.lax.scan(body, (state.shared, empty_mean(state)), (participants, weights))[0][1]


def link_by(stream: CohortTraining, follows: bool) -> Link:
    """A client goes on with the model that it was handed by an engine, for which this is the model of one cluster.

    Args:
        follows: whether loss terms about ω mean the model that was handed on, instead of the ω of the round.
    """

    def link(key: Key, state: State, part: Participants, handed: Model, federation: Federation) -> Model:
        one = jax.tree.map(lambda leaf: leaf[None], part)
        zero = jnp.zeros_like(one.label)
        one = one.replace(row=zero, label=zero, in_cluster=jnp.ones_like(one.in_cluster))
        view = state.replace(
            clusters=trees.stack(handed, 1),
            shared=handed if follows else state.shared,
            labels=jnp.zeros_like(state.labels),
            clients={},
        )
        models, _, _ = stream(key, view, one, federation, False)
        return jax.tree.map(trees.rounded, trees.take(models, 0), handed)

    return link


def link_beside_clusters(client: Client) -> Link:
    """A client goes on with the ω that it was handed, and may look at all models that the server sends.

    Args:
        client: trains ω alone.
    """

    def link(key: Key, state: State, part: Participants, handed: Model, federation: Federation) -> Model:
        data = trees.take(gather(federation, federation.train, part.who[None]), 0)
        sent = broadcast(state, part.label, part.row, common_broadcast(state, federation)).replace(handed=handed)
        return client(sent, data, jax.random.fold_in(key, part.who)).shared

    return link


def common_broadcast(state: State, federation: Federation) -> Broadcast:
    """What the server sends to all clients; the label, the cluster's model and the client's own state are empty.

    Cluster models that are on the host are sent to their clients alone.
    """
    shares = cluster_shares(state, federation)
    live = metrics.sizes(state.labels, shares.size) > 0
    others: dict[str, Any] = {"live": live, "examples": jnp.where(federation.held_out, 0, federation.train.size).sum()}
    if isinstance(state.clusters, HostRows):
        return Broadcast(jnp.int32(0), (), (), state.shared, shares, state.memory, **others)
    mean = trees.mean(shares / jnp.maximum(shares.sum(), 1e-30), state.clusters)
    mean = trees.select(shares.sum() > 0, mean, state.shared)
    return Broadcast(jnp.int32(0), (), state.clusters, state.shared, shares, state.memory, mean=mean, **others)


def broadcast(state: State, label: Array, row: Array, common: Broadcast) -> Broadcast:
    """What the server sends to clients with the labels `label` [c], or to one client. [c, ...]

    Args:
        row: the clients' rows in the states that clients keep. [c] int
    """
    own = {name: trees.take(kept, row) for name, kept in state.clients.items() if name not in SERVER_SIDE}
    server = trees.take({name: kept for name, kept in state.server.items() if name in SENT}, label)
    return common.replace(label=label, cluster=trees.take(state.clusters, label), own=own, server=server)


SENT = ("control", "gradient", "corrected")
"""What the server keeps for a cluster and sends to its clients."""


def participants_of(state: State, cohort: Cohort, federation: Federation, weigh: Weigh) -> tuple[Participants, Array]:
    """A cohort's clients with their weights, and the weight of every cluster [k]. Absent clients have weight 0.

    A client without a cluster trains the model of cluster 0, and counts in no cluster.
    """
    size = jnp.where(cohort.present, federation.train.size[cohort.who], 0).astype(float)
    label = state.labels[cohort.who]
    weights = jnp.where(label >= 0, weights_of(cohort, federation, weigh), 0.0)
    labels = jnp.maximum(label, 0)
    total = jnp.zeros(trees.count(state.clusters)).at[labels].add(weights)
    near = weights / jnp.where(total > 0, total, 1.0)[labels]
    return Participants(cohort.who, cohort.who, labels, near, size / jnp.maximum(size.sum(), 1.0)), total


def weights_of(cohort: Cohort, federation: Federation, weigh: Weigh) -> Array:
    """The weights of a cohort's clients; zero for those that are absent. [s]"""
    return jnp.where(cohort.present, weigh(federation.train.size[cohort.who]), 0.0)


def trained_clusters(participants: Participants, state: State) -> Array:
    """Whether a cluster has clients of nonzero weight in the cohort. [k] bool"""
    return jnp.zeros(trees.count(state.clusters)).at[participants.label].add(participants.in_cluster) > 0


def cluster_shares(state: State, federation: Federation) -> Array:
    """The share of the training examples that each cluster's clients hold. [k] float

    Clients that have no label, are held out or have left the federation are not counted.
    """
    here = (state.labels >= 0) & ~federation.held_out & (state.round < federation.depart)
    size = jnp.where(here, federation.train.size, 0).astype(float)
    held = jnp.zeros(trees.count(state.clusters)).at[state.labels].add(size)
    return held / jnp.maximum(size.sum(), 1)


def slots_of_sums(participants: Participants, state: State) -> tuple[Array, Array]:
    """The clusters whose uploads are summed, and the place of every client's cluster among them. [q] and [s] int32

    These are all k clusters, or as many as there are clients in the cohort where that is fewer. So a method in which
    every client has a model of its own holds no sums for clients outside the cohort.
    """
    k, s = trees.count(state.clusters), participants.label.size
    if k <= s or isinstance(state.clusters, HostRows):
        return jnp.arange(k), participants.label
    slots = slots_in_batches(jnp.zeros(k, bool).at[participants.label].set(True), s)[0]
    return slots, jnp.zeros(k, jnp.int32).at[slots].set(jnp.arange(s, dtype=jnp.int32))[participants.label]


def empty_sums(state: State, slots: int) -> tuple[Models, Model]:
    """Sums of zero, for every slot and for the cohort; models on the host are replaced, as each has one client."""
    if isinstance(state.clusters, HostRows):
        return state.clusters, empty_mean(state)
    one = trees.for_sums(trees.take(state.clusters, 0))
    return trees.zeros_after(state.labels[0] >= -1, trees.stack(one, slots)), empty_mean(state)


def empty_mean(state: State) -> Model:
    """A sum of zero for the cohort's mean, in the dtypes of sums."""
    return trees.zeros_after(state.labels[0] >= -1, trees.for_sums(state.shared))


def with_sums(state: State, participants: Participants, slots: Array, sums: Models) -> Models:
    """The clusters' means, of the sums over the clusters `slots` [q]; the old models of those that nobody trained.

    They have the dtypes of sums, because devices may add theirs up. [k, ...]
    """
    if isinstance(sums, HostRows):
        return sums
    if slots.size == trees.count(state.clusters):
        return trees.select(trained_clusters(participants, state), sums, state.clusters)
    return put_trained(state, participants, slots, sums)


def put_trained(state: State, participants: Participants, slots: Array, sums: Models) -> Models:
    """The cluster models, in the dtypes of sums, with `sums` [q, ...] in place of those of `slots` [q] that trained."""
    trained = trained_clusters(participants, state)
    place = jnp.where(trained[slots], slots, trained.size)
    put = lambda all_, new: all_.astype(new.dtype).at[place].set(new, mode="drop")
    return jax.tree.map(put, state.clusters, sums)


def sums_with(sums: tuple[Models, Model], part: Participants, place: Array, rows: Upload) -> tuple[Models, Model]:
    """The sums with the uploads `rows` [c, ...] added. A global model that is not uploaded (`()`) adds nothing.

    Args:
        place: the places of the clients' clusters among those that are summed. [c]
    """
    clusters, common = sums
    if isinstance(clusters, HostRows):
        clusters = clusters.put(jnp.where(part.in_cluster > 0, place, clusters.count), rows.cluster)
    else:
        clusters = trees.add_apart(clusters, place, part.in_cluster, rows.cluster)
    if not jax.tree.leaves(rows.shared):
        return clusters, common
    lone = trees.add_apart(trees.stack(common, 1), jnp.zeros_like(part.label), part.in_cohort, rows.shared)
    return clusters, trees.take(lone, 0)


def averages(state: State, participants: Participants, uploads: Upload) -> tuple[Models, Model]:
    """The clusters' means and the cohort's, of uploads that were kept [s, ...], as `CohortTraining` returns them."""
    slots, places = slots_of_sums(participants, state)
    sums, common = sums_with(empty_sums(state, slots.size), participants, places, uploads)
    return with_sums(state, participants, slots, sums), common


def rounded(state: State, clusters: Models, common: Model) -> tuple[Models, Model]:
    """The clusters' means and the cohort's in the dtypes of the models."""
    if not isinstance(clusters, HostRows):
        clusters = jax.tree.map(trees.rounded, clusters, state.clusters)
    return clusters, jax.tree.map(trees.rounded, common, state.shared)


def train_chunk(client: Client, sent: Broadcast, data: Clients, keys: Key) -> Upload:
    """The uploads of one chunk [c, ...]: `client` is vmapped over what differs between clients."""
    axes: Any = Broadcast(0, 0, None, None, None, None, None, 0, None, None, 0, examples=None)  # pyright: ignore
    return jax.vmap(client, (axes, 0, 0))(sent, data, keys)


class General:
    """The general engine: it trains any model with any loss, and vmaps the clients of a chunk."""

    name = "general"

    def obstacle(self, work: Work) -> str:
        """It can do all work."""
        return ""

    def is_cheaper(self, work: Work, context: Any) -> bool:
        """The others are compared with it."""
        return True

    def training(self, work: Work, context: Any) -> CohortTraining:
        """`train_in_chunks`, `context.resources.chunk` clients at a time."""
        return partial(train_in_chunks, work.make(work.task), context.resources.chunk)


def chosen_engine(work: Work, context: Any) -> tuple[str, CohortTraining]:
    """The name and the training of the first engine that can do the work and is cheaper than the general one.

    Raises:
        InputError: the configuration names an engine that is unknown or cannot do the work.
    """
    general = General()
    for engine in context.engines:
        why_not = engine.obstacle(work)
        if context.engine == engine.name and why_not:
            raise InputError(f"engine {engine.name!r} cannot be used: {why_not}; take engine 'auto' or 'general'")
        wanted = context.engine == engine.name or (context.engine == "auto" and engine.is_cheaper(work, context))
        if not why_not and wanted:
            return engine.name, engine.training(work, context)
    if context.engine not in ("auto", general.name):
        names = [general.name, *(engine.name for engine in context.engines)]
        raise unknown("engine", context.engine, names)
    return general.name, general.training(work, context)
