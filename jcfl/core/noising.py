"""What a round does for privacy: updates are clipped, counted equally, summed, and noise is added to the sums.

McMahan et al. 2018 (DP-FedAvg), https://arxiv.org/abs/1710.06963, with the sum divided by a number that no client's
data changes. A client is in one cluster. It therefore changes the sums of all clusters together by no more than it
would change one sum, and the same noise covers them all. Without privacy these functions change nothing.
"""

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core import engine
from jcfl.core.context import Context
from jcfl.core.engine import Client, Participants, Sums, Weigh
from jcfl.core.method import Method
from jcfl.core.privacy import noisy
from jcfl.core.releases import sends_updates
from jcfl.core.streams import Stream, stream
from jcfl.types import Array, Broadcast, Clients, Cohort, Federation, Key, Model, Models, State, Upload


def clipped_client(method: Method, client: Client) -> Client:
    """The client, which clips what the server will sum."""
    if method.aggregate.privacy is None:
        return client

    def work(sent: Broadcast, data: Clients, key: Key) -> Upload:
        return clipped(method, client(sent, data, key), sent.cluster, sent.shared)

    return work


def clipped_rows(method: Method, state: State, cohort: Cohort, uploads: Upload) -> Upload:
    """The uploads [s, ...], all clipped, those too that attackers have forged."""
    if method.aggregate.privacy is None:
        return uploads
    sent = trees.take(state.clusters, jnp.maximum(state.labels[cohort.who], 0))
    return jax.vmap(lambda upload, start: clipped(method, upload, start, state.shared))(uploads, sent)


def clipped(method: Method, upload: Upload, cluster: Model, shared: Model) -> Upload:
    """An upload with updates of the models sent, `cluster` and `shared`, that are no longer than the clip.

    A client's own model, which is never sent, stays as it is.
    """
    privacy = method.aggregate.privacy
    if privacy.clip is None:
        return upload
    if not method.group.alone:
        upload = upload.replace(cluster=privacy.clipped(upload.cluster, cluster))
    if method.trains_shared:
        upload = upload.replace(shared=privacy.clipped(upload.shared, shared))
    return upload


def participants_of(
    method: Method, state: State, cohort: Cohort, federation: Federation, weigh: Weigh, sampled: Array
) -> tuple[Participants, Array]:
    """A cohort's clients with their weights in the sums, and how many clients a cluster's sum is divided by. [k]

    With privacy, clients count equally, and a sum is divided by the number of clients expected in the cluster, at least
    1. The sampled clients are expected to be in the clusters in the shares that all clients are in them, or in equal
    shares where clients choose their clusters and the server does not know them. In a round in which no client was
    available nothing is summed, which tells nothing of clients' data.

    Args:
        state: with the labels that the cohort trains by.
        weigh: how clients count without privacy; the second result is then the sum of their weights.
        sampled: how many clients were sampled. []
    """
    if method.aggregate.privacy is None:
        return engine.participants_of(state, cohort, federation, weigh)
    k, label, present = trees.count(state.clusters), state.labels[cohort.who], cohort.present * 1.0
    labels = jnp.maximum(label, 0)
    here = (state.labels >= 0) & ~federation.held_out & (state.round < federation.depart)
    held = jnp.zeros(k).at[jnp.where(here, state.labels, k)].add(1.0, mode="drop")
    held = jnp.ones(k) if method.describe.source == "losses" else held
    counts = (held > 0) & (sampled > 0)
    expected = jnp.where(counts, jnp.maximum(sampled * held / jnp.maximum(held.sum(), 1), 1), 0)
    if method.group.alone:
        expected = jnp.zeros(k).at[labels].add(present)
    near = jnp.where(label >= 0, present, 0.0) / jnp.maximum(expected, 1)[labels]
    return Participants(cohort.who, cohort.who, labels, near, present / jnp.maximum(sampled, 1)), expected


def completed(
    method: Method, state: State, part: Participants, clusters: Models, shared: Model
) -> tuple[Models, Model]:
    """The sums with the models that were sent in place of what their weights lack to 1, or less what is above 1."""
    if method.aggregate.privacy is None:
        return clusters, shared
    if not method.group.alone:
        lack = 1 - jnp.zeros(trees.count(state.clusters)).at[part.label].add(part.in_cluster)
        lack = jnp.where(engine.trained_clusters(part, state), lack, 0.0)  # else the cluster's model is there already
        clusters = jax.tree.map(lambda new, old: new + trees.wide(lack, new) * old, clusters, state.clusters)
    if jax.tree.leaves(shared):
        lack = 1 - part.in_cohort.sum()
        shared = jax.tree.map(lambda new, old: new + lack * old, shared, state.shared)
    return clusters, shared


def described_models(method: Method, key: Key, state: State, cohort: Cohort, models: Models) -> Models:
    """The models [s, ...] that the server groups clients by, as the clients send them.

    Args:
        key: of the stream NOISE.
    """
    privacy = method.aggregate.privacy
    if privacy is None or method.describe.source != "upload":
        return models
    sent = trees.take(state.clusters, jnp.maximum(state.labels[cohort.who], 0))
    keys = jax.vmap(lambda client: stream(key, Stream.UPLOAD, client))(cohort.who)
    return privacy.models(keys, sent, models)


def noised(method: Method, context: Context, key: Key, sums: Sums, sampled: Array) -> Sums:
    """The averages of a round with noise on the sums of updates that they are made of.

    Args:
        key: of the stream NOISE.
        sums: whose weights [k] are the numbers that the clusters' sums were divided by.
        sampled: the number that the sum of ω was divided by; if it is 0, there is no sum to cover. []
    """
    privacy = method.aggregate.privacy
    if privacy is None:
        return sums
    if sends_updates(method, context):
        deviation = jnp.where(sums.weight > 0, privacy.noise * privacy.clip / jnp.maximum(sums.weight, 1), 0.0)
        sums = sums._replace(clusters=with_noise(stream(key, Stream.SUMS), sums.clusters, deviation))
    if method.trains_shared:
        deviation = jnp.where(sampled > 0, privacy.noise * privacy.clip / jnp.maximum(sampled, 1), 0.0)
        one = with_noise(stream(key, Stream.SHARED), trees.stack(sums.shared, 1), deviation[None])
        sums = sums._replace(shared=trees.take(one, 0))
    return sums


def with_noise(key: Key, models: Models, deviation: Array) -> Models:
    """Models [k, ...] with Gaussian noise of the deviations [k] on their parameters."""
    unit = noisy(key, jax.tree.map(jnp.zeros_like, models["params"]), 1.0)
    add = lambda leaf, drawn: trees.rounded(leaf + trees.wide(deviation, leaf) * drawn, leaf)
    plus = jax.tree.map(add, models["params"], unit)
    return {**models, "params": plus}
