"""What may go wrong with a cohort's uploads between training and averaging, and what the server does about it.

Attackers forge their uploads, models are not finite, and the server may leave out clients that it suspects. All three
need the uploads one by one; a run without them sums uploads as they arrive.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core import averaging
from jcfl.core.attacks import Attack, Crowd, with_forgeries
from jcfl.core.engine import Weigh, weights_of
from jcfl.core.method import Piece
from jcfl.core.reliability import Reliability
from jcfl.core.robust import local_outlier_factors, norms
from jcfl.core.streams import Stream, stream
from jcfl.types import Array, Cohort, Federation, Key, Models, State, Upload

ROUNDING = 1e-5
"""The rounding error of a distance, as a share of the norm of the updates. Sums of thousands of float32 reach it."""

OnDivergence = Literal["stop", "drop_client", "drop_cluster"]
"""What happens when a model is not finite: the run stops; the client's upload is left out; or the client's cluster
keeps the model that its clients were sent in this round."""


class Faults(NamedTuple):
    """What may go wrong in a run."""

    attack: Attack = Attack()
    reliability: Reliability = Reliability()
    on_divergence: OnDivergence = "stop"


@dataclass(frozen=True, kw_only=True)
class Exclude(Piece):
    """Clients whose updates are far from their cluster's are left out, and never sampled again if that happens often.

    The distance of an update to the coordinate-wise median of its cluster's is compared with the median of these
    distances, in units of their median absolute deviation (times 1.4826, the deviation of a normal distribution). This
    deviation is 0 where half of the updates are the same, as those of clients with copies of the same examples. Then
    the unit is the mean absolute deviation (times 1.2533; Iglewicz and Hoaglin 1993). Distances that differ by rounding
    errors alone are the same.

    Attributes:
        limit: how many deviations above the median a distance may be.
        patience: after so many rounds in which it was left out, a client is never sampled again; None: no limit.
    """

    name: ClassVar[str] = "exclude"
    limit: Any = 3.0
    patience: int | None = 3

    def suspects(self, updates: Models, label: Array, present: Array, k: int) -> Array:
        """The clients to leave out. [s] bool

        Args:
            updates: the trained models less those that were sent. [s, ...]
            label: every client's cluster. [s] int
            present: whether its upload arrived. [s] bool
        """
        here = present * 1.0
        centers = averaging.median(label, here, updates, averaging.zeros_for(updates, k))  # [k, ...]
        far = norms(jax.tree.map(jnp.subtract, updates, trees.take(centers, label)))  # [s]
        middle = averaging.median(label, here, far, jnp.zeros(k))[label]
        rounding = ROUNDING * norms(centers)[label]
        apart = jnp.maximum(jnp.abs(far - middle) - rounding, 0.0)
        is_finite = jnp.isfinite(apart)
        half = averaging.median(label, here, apart, jnp.zeros(k))
        mean = averaging.weighted_mean(label, here * is_finite, jnp.where(is_finite, apart, 0.0), jnp.zeros(k))
        spread = jnp.where(half > 0, 1.4826 * half, 1.2533 * mean)[label]
        return present & ~(far - middle <= self.limit * spread + rounding)  # NaN is far as well


@dataclass(frozen=True, kw_only=True)
class ExcludeSparse(Exclude):
    """Clients whose updates lie where those of their cluster are sparse: with a large local outlier factor.

    Attributes:
        limit: the largest factor of a client that is used (Breunig et al. 2000).
        neighbours: how many of the nearest updates a factor looks at.
    """

    name: ClassVar[str] = "exclude_sparse"
    neighbours: Any = 5

    def suspects(self, updates: Models, label: Array, present: Array, k: int) -> Array:
        """The clients to leave out. [s] bool"""
        factors = local_outlier_factors(label, present, updates, neighbours=self.neighbours)
        return present & ~(jnp.isfinite(norms(updates)) & (factors <= self.limit))


def leaves_out(faults: Faults, exclude: Exclude | None) -> bool:
    """Whether a run goes on without what clients send that is not finite, or that is far from what others send."""
    return faults.on_divergence != "stop" or exclude is not None


def looks_at_uploads(faults: Faults, exclude: Exclude | None) -> bool:
    """Whether uploads are looked at one by one."""
    return faults.attack.forges or leaves_out(faults, exclude)


def excluded(exclude: Exclude | None, state: State) -> Array:
    """The clients that were left out in so many rounds that they are never sampled again. [m] bool"""
    if exclude is None or exclude.patience is None or "suspected" not in state.clients:
        return jnp.zeros(state.labels.shape, bool)
    return state.clients["suspected"] >= exclude.patience


def whose_uploads_count(exclude: Exclude | None, state: State, cohort: Cohort, federation: Federation) -> Array:
    """The clients whose last upload counts, once the cohort of this round has sent its own. [m] bool

    Those who have taken part, have not left the federation, and are not left out for good.
    """
    seen = state.seen.at[cohort.who].max(cohort.present)
    return seen & (state.round < federation.depart) & ~excluded(exclude, state)


def after_training(
    faults: Faults,
    exclude: Exclude | None,
    trains_shared: bool,
    alone: bool,
    key: Key,
    state: State,
    cohort: Cohort,
    federation: Federation,
    weigh: Weigh,
    uploads: Upload,
) -> tuple[State, Cohort, Upload]:
    """The uploads that the server receives, and the clients whose uploads it uses.

    Args:
        trains_shared: whether `uploads.shared` are copies of ω that were trained.
        alone: whether `uploads.cluster` are clients' own models, which stay with them.
        key: of the stream TRAIN.
        state: with the models and labels that the cohort was sent.
        weigh: how clients count.

    Returns:
        the state in which those left out are counted; the cohort without them; and the uploads [s, ...].
    """
    labels = jnp.maximum(state.labels[cohort.who], 0)
    sent, shared = trees.take(state.clusters, labels), trees.stack(state.shared, labels.size)
    if faults.attack.forges:
        members = crowd(cohort, labels, trees.count(state.clusters), federation, weigh)
        forge = lambda: with_forgeries(faults.attack, key, sent, uploads.cluster, members)
        cluster = uploads.cluster if alone else forge()  # a client's own model is not sent
        common = uploads.shared
        if trains_shared:
            common = forged_together(
                faults.attack, stream(key, Stream.FORGED), cohort, federation, weigh, shared, uploads.shared
            )
        elif jax.tree.leaves(common):
            common = cluster
        uploads = uploads.replace(cluster=cluster, shared=common)
    if faults.on_divergence != "stop":
        good = trees.finite((uploads.cluster, uploads.shared))
        spoilt = jnp.zeros(trees.count(state.clusters), bool).at[labels].max(cohort.present & ~good)  # [k]
        if faults.on_divergence == "drop_client":
            state, used = counted(state, "dropped", cohort.who, cohort.present & ~good), good
        else:
            state, used = with_resets(state, spoilt), ~spoilt[labels]
        common = trees.select(good, uploads.shared, shared) if jax.tree.leaves(uploads.shared) else ()
        uploads = uploads.replace(cluster=trees.select(good, uploads.cluster, sent), shared=common)
        cohort = Cohort(cohort.who, cohort.present & used)
    if exclude is not None:
        seen, before, clusters, k = uploads.cluster, sent, labels, trees.count(state.clusters)
        if alone:  # a client's own model is not sent
            seen, before, clusters, k = uploads.shared, shared, jnp.zeros_like(labels), 1
        state, cohort = without_suspects(exclude, state, cohort, federation, before, seen, clusters, k)
    return state, cohort, uploads


def forged_together(
    attack: Attack, key: Key, cohort: Cohort, federation: Federation, weigh: Weigh, sent: Models, models: Models
) -> Models:
    """The models [s, ...] that the server gets of a cohort, if attackers look at all its clients as one cluster."""
    everybody = crowd(cohort, jnp.zeros(cohort.who.shape, jnp.int32), 1, federation, weigh)
    return with_forgeries(attack, key, sent, models, everybody)


def without_suspects(
    exclude: Exclude,
    state: State,
    cohort: Cohort,
    federation: Federation,
    sent: Models,
    received: Models,
    labels: Array,
    k: int,
) -> tuple[State, Cohort]:
    """The state in which suspects are counted, and the cohort without them.

    Clients without training examples are no suspects, and their updates, which are zero, are not looked at.

    Args:
        sent, received: the models that clients were sent, and those that the server got. [s, ...] each
        labels: every client's cluster, of k. [s] int
    """
    updates = jax.tree.map(jnp.subtract, received["params"], sent["params"])
    suspected = exclude.suspects(updates, labels, with_examples(cohort, federation).present, k)
    return counted(state, "suspected", cohort.who, suspected), Cohort(cohort.who, cohort.present & ~suspected)


def with_examples(cohort: Cohort, federation: Federation) -> Cohort:
    """The cohort without clients that have no training example."""
    return cohort.replace(present=cohort.present & (federation.train.size[cohort.who] > 0))


def crowd(cohort: Cohort, labels: Array, k: int, federation: Federation, weigh: Weigh) -> Crowd:
    """The attackers and the honest clients among a cohort in k clusters; the federation says who attacks.

    Clients that count nothing in averages are neither: without examples they send what they were sent.
    """
    nobody, counts = jnp.zeros(cohort.who.shape, bool), weights_of(cohort, federation, weigh) > 0
    hostile = federation.hostile[cohort.who] if federation.is_attacked else nobody  # an attack's share may be 0
    return Crowd(cohort.who, labels, counts & hostile, counts & ~hostile, k)


def counted(state: State, name: str, who: Array, which: Array) -> State:
    """The state in which one more round is counted for some of the clients `who`. Phases before a method's own do not.

    Args:
        which: the clients to count. [s] bool
    """
    if name not in state.clients:
        return state
    return state.replace(clients=state.clients | {name: state.clients[name].at[who].add(which)})


def with_resets(state: State, which: Array) -> State:
    """The state in which one more reset is counted for some clusters. [k] bool"""
    if "reset" not in state.server:
        return state
    return state.replace(server=state.server | {"reset": state.server["reset"] + which})


def with_failure(state: State, failed: Array, place: Array | int) -> State:
    """The state, marked as failed in this round where `failed` [] says so; an earlier failure stays.

    Args:
        place: the cluster whose model is not finite, or a constant such as `jcfl.types.OVERFLOW`.
    """
    marked = jnp.stack([state.round, jnp.asarray(place, jnp.int32)])
    return state.replace(failed=jnp.where(failed & (state.failed[0] < 0), marked, state.failed))


def without_divergence(sent: State, state: State) -> State:
    """The state in which models that are not finite are those that the clients were sent.

    Uploads are finite here, so only the server's step can have spoilt a model. Its states go back with the model. A
    cluster without members before the round gets ω.

    Args:
        sent: the state with which the round's clients began to train.
    """
    k = trees.count(state.clusters)
    good = trees.finite(state.clusters)
    used = averaging.sizes(jnp.where(sent.labels >= 0, sent.labels, k), k) > 0
    old = trees.select(used, sent.clusters, trees.stack(sent.shared, k))
    fine = trees.finite(trees.stack(state.shared, 1))[0]
    server = {
        name: trees.select(fine if name == "shared_optimizer" else good, kept, sent.server[name])
        for name, kept in state.server.items()
        if name != "reset"
    }
    clusters, shared = trees.select(good, state.clusters, old), trees.select(fine, state.shared, sent.shared)
    return with_resets(state.replace(clusters=clusters, shared=shared, server=state.server | server), ~good)


def measures(exclude: Exclude | None, state: State, federation: Federation) -> dict[str, Array]:
    """What an evaluation says of clients and clusters that were left out."""
    found = {}
    if "dropped" in state.clients:
        found["dropped_clients"] = (state.clients["dropped"] > 0).sum()
    if "reset" in state.server:
        found["reset_clusters"] = (state.server["reset"] > 0).sum()
    if exclude is not None:
        out = state.clients["suspected"] >= (exclude.patience or 1)
        hostile = jnp.asarray(federation.hostile) if federation.is_attacked else jnp.zeros(out.shape, bool)
        found["excluded_hostile"] = (out & hostile).sum() / jnp.maximum(hostile.sum(), 1)
        honest = ~hostile & ~jnp.asarray(federation.held_out)
        found["excluded_honest"] = (out & honest).sum() / jnp.maximum(honest.sum(), 1)
    return found
