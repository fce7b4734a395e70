"""Clustering algorithms that group all clients at a time: once, in every round, or in a window of rounds.

`Clustering` is the base class of K-means, linkage, spectral and density-based clustering, which make labels of
descriptions. This module decides when and from which clients descriptions are taken, and where later clients go.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from jcfl import metrics, trees
from jcfl.core import aggregates, chunks, clients, engine, faults, parts, returned, robust, server
from jcfl.core.context import Context
from jcfl.core.method import Aggregate, Answer, Group, Method, Train
from jcfl.core.neutral import Every, grouping_of
from jcfl.core.privacy import once_keys
from jcfl.core.rounds import with_kept
from jcfl.core.streams import Stream, stream
from jcfl.errors import InputError, calling, lacks
from jcfl.grouping.compare import Cosine, Distances, PrincipalAngles, comparison, distances, prepared, representatives
from jcfl.grouping.describe import Accumulated, OfData, OfUpload, Subspace, TrainedModel, of_data, of_uploads
from jcfl.grouping.labels import aligned, first_labels, served, with_undescribed
from jcfl.grouping.losses import least_loss, nearest_of, with_newcomers
from jcfl.grouping.when import Once, Window
from jcfl.types import Array, Clients, Cohort, Federation, Grouping, Key, Model, Models, State

Labels = Callable[..., Array]
"""`(key, points [n, ...], weights [n], present [n], centres [k, d] or None) -> labels [n] int`.

A negative label leaves a client where it is: in its cluster of the round before, or in none. So does the label of a
client that is absent, unless it can be sampled but never was: it has its initial model, and may be grouped by that."""


Nearest = Callable[..., Array]
"""`(key, models, weights [m], present [m], grouped [], clusters [k, ...]) -> labels [m] int32`

It groups models [m, ...] of which it holds some at a time. `grouped` says whether clients have been grouped before."""


class Memory(struct.PyTreeNode):
    """What the server remembers of a clustering."""

    anchor: Any  # the memory of the description, by which newcomers are described as the others were
    centres: Any  # [k, ...] a description for each cluster; empty if newcomers are placed by their losses
    grouped: Array  # [] bool, whether clients have been grouped


@dataclass(frozen=True, kw_only=True)
class Clustering(Group):
    """A clustering algorithm over the descriptions of all clients."""

    covers_data: ClassVar[bool] = True

    def labels(self, method: Method, context: Context, compare: Distances) -> Labels:
        """The algorithm with its options, for descriptions compared by `compare`."""
        raise lacks(self, "labels")

    def continues_from_models(self) -> bool:
        """Whether a later clustering of models begins at the cluster models, which `labels` then gets as `centres`."""
        return False

    def nearest(self, method: Method, context: Context) -> Nearest | None:
        """The algorithm for models that are gone through some at a time, where it can; see `Nearest`."""
        return None

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Clients grouped as `method.when` says."""
        self.check(method, context)
        refuse_private_descriptions(method, context)
        if isinstance(method.when, Once):
            return once(self, method, context)
        return each_round(self, method, context)

    def check(self, method: Method, context: Context) -> None:
        """Refuse descriptions, comparisons and rounds that have no meaning together."""
        describe, when = method.describe, method.when
        if not isinstance(describe, OfData | OfUpload):
            raise InputError(
                f"{method.name}: group {self.name!r} needs a description that can be compared; set method.describe to "
                f"gradient, update, model, …, got {describe.name!r}"
            )
        comparison(method.compare, method.name)
        if isinstance(method.compare, Cosine) and method.compare.corrected:
            raise InputError(
                f"{method.name}: noise is corrected for where clients are merged on arrival; set method.group=merge "
                f"and method.when=arrival, or method.compare=cosine"
            )
        if isinstance(describe, Subspace) and not isinstance(method.compare, PrincipalAngles):
            raise InputError(
                f"{method.name}: compare {method.compare.name!r} compares vectors, and a subspace is no vector; set "
                f"method.compare=principal_angles, or method.describe to gradient, update, model, …"
            )
        if not isinstance(when, Once | Every | Window):
            raise InputError(
                f"{method.name}: group {self.name!r} groups all clients; set method.when=once, every or window"
            )
        if isinstance(describe, OfData) and not isinstance(when, Once):
            raise InputError(
                f"{method.name}: {describe.name} describe data, which do not change, so grouping in {when.name!r} "
                f"rounds would find the same again; set method.when=once"
            )
        if isinstance(describe, Accumulated) and isinstance(when, Once) and when.at == 0:
            raise InputError(
                f"{method.name}: nothing is accumulated before round 0; set method.when={{name: once, at: 10}}"
            )
        if isinstance(when, Once) and when.start == "members" and isinstance(describe, OfData | Accumulated):
            raise InputError(f"{method.name}: when.start=members needs trained models; {describe.name} has none")
        if isinstance(describe, Accumulated) or not isinstance(when, Once):
            refuse_epochs(method, "" if isinstance(describe, Accumulated) else ", or set method.when=once")
        if isinstance(when, Once) and method.train.distinct:
            raise InputError(
                f"{method.name}: clusters that are found once begin with the same model, so train.distinct has no "
                "effect; leave it out"
            )

    def keeps(self, method: Method, context: Context) -> dict[str, Callable[[Any], Any]]:
        """Clients' last models or descriptions, if clients are grouped that do not take part in the round."""
        if isinstance(method.when, Once):
            if not isinstance(method.describe, Accumulated):
                return {}
        elif isinstance(method.describe, TrainedModel):
            return {"model": lambda first: first}
        if isinstance(method.describe, OfUpload) and not isinstance(method.describe, TrainedModel):
            return {"description": lambda first: blank_description(method, context, first)}
        return {}


def refuse_epochs(method: Method, advice: str = "") -> None:
    """Refuse epochs of a description by what clients train in a round.

    Args:
        advice: what else the user can do.
    """
    if getattr(method.describe, "epochs", None) is not None:
        raise InputError(
            f"{method.name}: clients are described by what they train in a round, so describe.epochs has no effect; "
            f"leave it out{advice}"
        )


def blank_description(method: Method, context: Context, first: Model) -> Array:
    """Zeros in the form of one client's description, before it has sent any. [d, ...]"""
    found = jax.eval_shape(lambda one: of_uploads(method.describe, context, one, one), trees.stack(first, 1))
    return jnp.zeros(found.shape[1:], found.dtype)


def sound_labels(found: Any, count: int, group: Clustering) -> Array:
    """The labels of so many clients, checked; -1 for each client without a label. [n] int32

    Raises:
        InputError: when it is traced, if the group does not return one whole number for each client.
    """
    found = returned.array(found, (count,), [returned.WHOLE], f"group {group.name!r}")
    return jnp.maximum(found, -1).astype(jnp.int32)


def once(group: Clustering, method: Method, context: Context) -> Grouping:
    """All clients are grouped in one round; clients that come later join the cluster that fits them best.

    If the description is made of trained models, all clients train from ω for it. Clients that are not available
    (`Federation.available`), or are excluded for good, are not grouped. Where fewer than two are left, the grouping
    waits for a later round; where descriptions are accumulated, until as many clients have taken part as there are
    clusters.
    """
    when, describe, compare = method.when, method.describe, comparison(method.compare, method.name)
    assert isinstance(when, Once)
    labels_of = group.labels(method, context, compare)
    k, m = group.slots(context), context.population.clients
    bound, privacy = aggregates.bound(method.aggregate.rule, context), context.privacy
    describe_clients = of_data(describe, context) if isinstance(describe, OfData) else None
    probe = describing_client(method, context, getattr(describe, "epochs", None))
    weigh = server.counting(method)
    fewest, after_phase = min(2, context.population.eligible), bool(method.before)
    accumulates = isinstance(describe, Accumulated)
    if accumulates:
        fewest = min(max(2, getattr(group, "clusters", None) or 2), context.population.eligible)
    waits = context.population.changes or after_phase
    attack, exclude = context.faults.attack, method.aggregate.exclude
    leaves_out = faults.leaves_out(context.faults, exclude)

    def init(state: State, federation: Federation) -> State:
        key = stream(state.key, Stream.ANCHOR)
        with calling(f"describe {describe.name!r}: begin"):
            anchor = describe.begin(context, key, state) if isinstance(describe, OfData) else ()
        blank: Any = ()
        if describe_clients is not None:
            one = jax.eval_shape(describe_clients, anchor, federation, jnp.zeros(1, jnp.int32))
            blank = jnp.zeros((k, *one.shape[1:]))
        labels = first_labels(state, federation)
        state = state.replace(memory=Memory(anchor, blank, jnp.array(False)), labels=labels)
        if when.at == 0 and not after_phase:
            train_key, group_key = (
                stream(stream(state.key, Stream.ONESHOT), part) for part in (Stream.SOLO, Stream.FIT)
            )
            due = lambda: regrouped(train_key, group_key, state, federation)
            return jax.lax.cond(enough(state, federation), due, lambda: state) if waits else due()
        return state

    def described(state: State, federation: Federation) -> Array:
        here = federation.available(state.round) & ~faults.excluded(exclude, state)
        here &= weigh(federation.train.size) > 0  # a client without examples would be unlike all others
        return here & state.seen if accumulates else here  # those not seen have accumulated nothing

    def enough(state: State, federation: Federation) -> Array:
        return described(state, federation).sum() >= fewest

    def regrouped(key: Key, group_key: Key, state: State, federation: Federation) -> State:
        here, everyone = described(state, federation), jnp.arange(m)
        models = None
        if describe_clients is not None:
            points = describe_clients(state.memory.anchor, federation, everyone)
            state = with_undescribed(state, points, here)
            points = privacy.descriptions(state.key, everyone, points)
        elif accumulates:
            points = state.clients["description"]
        else:
            models = trained_by_all(probe, key, state, federation, context.resources.chunk)
            to_all, sent = trees.stack(state.shared, m), trees.stack(state.shared, 1)
            if attack.forges:
                members = Cohort(everyone, here)
                models = faults.forged_together(attack, key, members, federation, weigh, to_all, models)
            if leaves_out:
                here &= robust.is_sound(models)
            models = trees.select(here, models, to_all)  # which may not be finite elsewhere
            models = privacy.models(once_keys(state.key, everyone), sent, models)
            if exclude is not None:  # nobody has a cluster yet
                together = jnp.zeros(m, jnp.int32)
                members = Cohort(everyone, here)
                state, members = faults.without_suspects(exclude, state, members, federation, sent, models, together, 1)
                here = members.present
            points = of_uploads(describe, context, sent, models)
            state = with_undescribed(state, points, here & trees.finite(models))
        points = trees.where_weighted(here, points)
        found = labels_of(group_key, prepared(compare, points, here), here.astype(float), here, None)
        found = jnp.where(here, sound_labels(found, m, group), -1)
        clusters = trees.stack(state.shared, k)
        if models is not None and when.start == "members":
            first, members = state.replace(labels=found, clusters=clusters), Cohort(everyone, here)
            clusters = server.means_of_members(method, context.task, bound, first, members, federation, models)
        centres = representatives(compare, points, found, k) if describe_clients is not None else state.memory.centres
        memory = Memory(state.memory.anchor, centres, jnp.array(True))
        kept = server.split(state.server, jnp.zeros(k, jnp.int32))
        return state.replace(labels=found, clusters=clusters, memory=memory, server=kept)

    def near_centres(state: State, who: Array, federation: Federation) -> Array:
        assert describe_clients is not None
        points = describe_clients(state.memory.anchor, federation, who)
        points = privacy.descriptions(state.key, who, points)
        away = distances(compare, context, describe)(points, state.memory.centres)  # [h, k]
        used = metrics.sizes(state.labels, k) > 0
        return nearest_of(jnp.where(used | ~used.any(), away, jnp.inf))

    by_centres = describe_clients is not None and compare.compares_as_they_are
    place = near_centres if by_centres else least_loss(method, context)

    def before(key: Key, state: State, cohort: Cohort, federation: Federation) -> State:
        if when.at > 0 or waits:
            due = lambda: regrouped(stream(key, Stream.SOLO), stream(key, Stream.FIT), state, federation)
            is_due = ~state.memory.grouped & (state.clock >= when.at) & enough(state, federation)
            state = jax.lax.cond(is_due, due, lambda: state)
        return with_newcomers(place, state, cohort, federation)

    def after(key: Key, state: State, members: Cohort, federation: Federation, models: Models) -> State:
        return with_descriptions(method, context, state, members, models)

    return grouping_of(init=init, before=before, after=after if accumulates else None, place=place)


def each_round(group: Clustering, method: Method, context: Context) -> Grouping:
    """After the training of every round, or of the rounds of a window, clients are grouped by what they trained last.

    If a client takes part for the first time after clients were grouped, it begins in the cluster whose model has the
    least loss on its training data.
    """
    describe, compare = method.describe, comparison(method.compare, method.name)
    labels_of = group.labels(method, context, compare)
    k = group.slots(context)
    nearest, weigh = least_loss(method, context), server.counting(method)
    of_models = isinstance(describe, TrainedModel)
    refuse_fair_average(method)
    # Cluster models are no centres among descriptions whose form depends on those of all other clients.
    continues = of_models and group.continues_from_models() and compare.compares_as_they_are
    streamed = group.nearest(method, context)
    if streamed is None and of_models and context.resources.states_on_host:
        raise InputError(
            f"client_states: host is not possible for {method.name}: its grouping needs all models at once, not only "
            "their distances to the cluster models; set client_states: device"
        )

    def init(state: State, federation: Federation) -> State:
        return state.replace(memory=Memory((), (), jnp.array(False)), labels=first_labels(state, federation))

    def before(key: Key, state: State, cohort: Cohort, federation: Federation) -> State:
        return with_newcomers(nearest, state, cohort, federation, state.memory.grouped)

    def labelled(key: Key, state: State, members: Cohort, weights: Array, points: Array) -> Array:
        here = weights > 0
        compared = prepared(compare, points, here)
        sorted_by = lambda centres: labels_of(key, compared, weights, here, centres)
        fresh = lambda: sound_labels(sorted_by(None), weights.size, group)
        if continues:
            centres = of_uploads(describe, context, (), state.clusters)
            go_on = lambda: sound_labels(sorted_by(centres), weights.size, group)
            return jax.lax.cond(state.memory.grouped, go_on, fresh)
        return aligned(fresh(), state.labels[members.who], here & state.memory.grouped, k)

    def regrouped(key: Key, state: State, members: Cohort, federation: Federation, points: Any) -> State:
        weights = engine.weights_of(members, federation, weigh)
        if streamed is None:
            labels = labelled(key, state, members, weights, points)
        else:
            labels = streamed(key, points, weights, members.present, state.memory.grouped, state.clusters)
            labels = sound_labels(labels, weights.size, group)
        before = state.labels[members.who]
        gone = (state.seen | ~federation.available(state.round))[members.who] & ~members.present
        absent = gone | (labels < 0)  # an available client that was never sampled is grouped by its initial model
        labels = jnp.where(absent, before, labels)
        memory = state.memory.replace(grouped=jnp.array(True))
        labels = state.labels.at[members.who].set(labels)
        return from_one(state).replace(labels=labels, memory=memory)

    def from_one(state: State) -> State:
        """The state before the first grouping with all slots as copies of the one cluster; a later state as it is."""
        parent = jnp.where(state.memory.grouped, jnp.arange(k), 0)
        clusters = state.clusters if method.train.distinct else trees.take(state.clusters, parent)
        return state.replace(clusters=clusters, server=server.split(state.server, parent))

    def after(key: Key, state: State, members: Cohort, federation: Federation, models: Models) -> State:
        if streamed is not None:
            points = models
        elif of_models:
            points = of_uploads(describe, context, (), models)
        else:
            state = with_descriptions(method, context, state, members, models)
            points = state.clients["description"]
            here = faults.whose_uploads_count(method.aggregate.exclude, state, members, federation)
            members = Cohort(jnp.arange(context.population.clients), here)
        due = members.present.any()
        if isinstance(method.when, Window):
            due &= (method.when.first <= state.clock) & (state.clock < method.when.last)
        return jax.lax.cond(due, lambda: regrouped(key, state, members, federation, points), lambda: state)

    return grouping_of(init=init, before=before, after=after, place=nearest, serve=served(method))


def refuse_fair_average(method: Method) -> None:
    """Refuse to weigh clients by their losses at the model of a cluster that they have joined after they trained.

    Their updates are no gradients of these losses, as q-FedAvg takes them to be (Li et al. 2020, Alg. 2).
    """
    if isinstance(method.aggregate.rule, aggregates.Fair):
        raise InputError(
            f"{method.name}: the rule 'fair' needs clients that have trained the model that their average replaces, "
            "and here their clusters may change after they have trained; set method.when=once"
        )


def refuse_private_descriptions(method: Method, context: Context) -> None:
    """Refuse to compare clients by parameters that the server never gets."""
    describe, private = method.describe, parts.names(context.task, method.train.private, "private")
    if private and isinstance(describe, TrainedModel):
        seen = describe.represent(context)(parts.named(context.task))
        parts.refuse_all_private(f"{method.name}: describe {describe}", seen, context.task, private)


def describing_client(method: Method, context: Context, epochs: int | None) -> engine.Client:
    """A client that trains on its loss alone, for so many `epochs` if given, so that its model describes it.

    Its private layers stay with it: the model that it sends has the values that it received in their place.
    """
    trainer = context.trainer if epochs is None else context.trainer.for_epochs(epochs)
    trainer.rows_and_steps(context.population.width)  # refuses more steps than can be counted
    plain = {"train": Train(private=method.train.private), "aggregate": Aggregate(), "answer": Answer(), "before": ()}
    return clients.client(replace(method, **plain), context._replace(trainer=trainer))


def trained_by_all(client: engine.Client, key: Key, state: State, federation: Federation, chunk: int) -> Models:
    """Every client's model after local training from ω and its own private layers. [m, ...]"""
    common = engine.common_broadcast(state, federation).replace(cluster=state.shared)
    own = {name: kept for name, kept in state.clients.items() if name == "private"}

    def train(who: Array, data: Clients) -> Model:
        return client(common.replace(own=trees.take(own, who)), data, jax.random.fold_in(key, who)).cluster

    return chunks.over_clients(train, federation, jnp.arange(state.labels.size), chunk)


def with_descriptions(method: Method, context: Context, state: State, members: Cohort, models: Models) -> State:
    """The state with the cohort's descriptions in `State.clients`; accumulated ones are added to the earlier."""
    sent = trees.take(state.clusters, jnp.maximum(state.labels[members.who], 0))
    points = of_uploads(method.describe, context, sent, models)
    state = with_undescribed(state, points, members.present & trees.finite(models))
    if isinstance(method.describe, Accumulated):
        points = points + state.clients["description"][members.who]
    return with_kept(state, members, {"description": points})
