"""The one round that every method is a case of."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core import (
    aggregates,
    clients,
    engine,
    evaluation,
    faults,
    groupings,
    measuring,
    noising,
    onhost,
    parts,
    reliability,
    server,
    sharded,
)
from jcfl.core.aggregates import Bounds
from jcfl.core.context import Context, Population, cohort_size
from jcfl.core.costs import costs
from jcfl.core.describing import anchor_gradient
from jcfl.core.engine import Sums
from jcfl.core.method import Method
from jcfl.core.streams import RoundKeys, Stream, round_keys, stream
from jcfl.trees.rows import HostTable
from jcfl.types import (
    GLOBAL,
    Algorithm,
    Array,
    Broadcast,
    Clients,
    Cohort,
    Federation,
    Grouping,
    Key,
    Model,
    Models,
    State,
    Upload,
)
from jcfl.types.target import traced_once


def algorithm(method: Method, context: Context) -> Algorithm:
    """A method as functions: its first state, one round, its predictions and its scores."""
    kept = clients.kept_states(method, context)
    tables = onhost.tables(method, context, kept)  # a grouping that needs all models says so only after this
    grouping = groupings.grouping(method, context)
    bounds = aggregates.bounds(method, context)
    way, train = training(method, context, needs_uploads(grouping, bounds))
    tied = parts.names(context.task, method.train.tied, "shared_layers")
    private = parts.names(context.task, method.train.private, "private")
    client = clients.client(method, context)

    @traced_once
    def init(key: Key, federation: Federation) -> State:
        return grouping.init(first_state(method, context, tied, kept, tables, key), federation)

    def sampled(state: State, federation: Federation) -> Cohort:
        return sampled_by(round_keys(state.key, state.round).pick, state, federation)

    def sampled_by(pick: Key, state: State, federation: Federation) -> Cohort:
        return sample(pick, context.population, available(method, context, state, federation))

    def step(state: State, federation: Federation) -> State:
        keys = round_keys(state.key, state.round)
        cohort = sampled_by(keys.pick, state, federation)
        state = grouping.before(keys.group, state, cohort, federation)
        state = sent = server.with_control_means(method, state, federation) if method.train.control else state
        number = cohort.present.sum()
        cohort = reliability.arrived(context.faults.reliability, keys.fail, cohort, context.population.clients)
        if method.train.active:
            state, cohort, uploads, sums = train(keys, state, cohort, federation, number)
            uploads, sums = in_turn(state, cohort, uploads, sums) if method.train.in_turn else (uploads, sums)
            state = with_training(state, cohort, federation)
            before, given = state, sums
            state, sums = grouped(method, bounds, grouping, keys, state, cohort, federation, uploads, sums)
            if method.train.in_turn:
                state, sums, cohort = in_rounds_of_clusters(before, given, state, sums, cohort)
            sums = noising.noised(method, context, keys.noise, sums, number)
            state = server.after_server_step(method, tied, private, state, sums, federation)
        return finished(context, sent, state, cohort, apart=method.group.alone)

    predict = evaluation.predictor(method, context, grouping, client)

    def measure(state: State, federation: Federation) -> dict[str, Array]:
        found = faults.measures(method.aggregate.exclude, state, federation)
        if context.tests_shared and method.trains_shared:
            found["accuracy_shared"] = evaluation.shared_accuracy(context, state, federation)
        found |= measuring.measures(method, context, client, state, federation)
        found |= aggregates.measures(method, context, state, federation)
        return groupings.with_measures(method, found, grouping.measures(state, federation))

    evaluate = evaluation.evaluation(context.task, predict, measure)
    price = partial(costs, method, task=context.task)
    return Algorithm(init, step, predict, evaluate, price, way, method, sampled, measure)


def needs_uploads(grouping: Grouping, bounds: Bounds) -> bool:
    """Whether the grouping or an averaging rule needs uploads one by one; else they are summed as they come."""
    return grouping.after is not None or any(bound is not None for bound in bounds)


def first_state(
    method: Method,
    context: Context,
    tied: tuple[str, ...],
    kept: clients.KeptStates,
    tables: dict[str, HostTable],
    key: Key,
) -> State:
    """The state before the first round, nobody in a cluster.

    Args:
        tables: for states that are on the host, by name.
    """
    task, m = context.task, context.population.clients
    model_key, run_key = stream(key, Stream.MODEL), stream(key, Stream.RUN)
    first, k = task.init(model_key), method.group.slots(context)
    distinct = method.train.distinct
    alike = lambda: onhost.begun(tables.get(onhost.OWN), first, k)
    models = jax.vmap(task.init)(jax.random.split(model_key, k)) if distinct else alike()
    if tied:
        models = parts.with_part(models, trees.stack(parts.part_of(first, tied), k))
    is_mean = distinct and not method.trains_shared
    shared = jax.tree.map(lambda leaf: trees.rounded(leaf.mean(0), leaf), models) if is_mean else first
    own = {name: onhost.begun(tables.get(name), begin(first), m) for name, begin in kept.items()}
    beside = server.first_server_state(method, first, k)
    if context.faults.on_divergence == "drop_cluster":
        beside["reset"] = jnp.zeros(k, jnp.int32)
    return initial(run_key, models, shared, m).replace(clients=own, server=beside)


def initial(key: Key, clusters: Models, shared: Model, m: int) -> State:
    """A state at round 0 with nobody in a cluster."""
    zero = jnp.zeros((), jnp.int32)
    return State(
        clusters=clusters,
        shared=shared,
        labels=jnp.full(m, -1, jnp.int32),
        seen=jnp.zeros(m, bool),
        memory=(),
        round=zero,
        key=key,
        failed=jnp.full(2, -1, jnp.int32),
        began=zero,
    )


def available(method: Method, context: Context, state: State, federation: Federation) -> Array:
    """The clients that can be sampled in this round: in the federation, reachable, and not excluded. [m] bool"""
    here = federation.available(state.round)
    here &= reliability.available(context.faults.reliability, state.key, state.round, here.size)
    return here & ~faults.excluded(method.aggregate.exclude, state)


def sample(key: Key, population: Population, available: Array) -> Cohort:
    """A uniform sample, without replacement, of the clients available in this round, in the order of their ids.

    Args:
        available: the clients that can be sampled. [m] bool
    """
    number = jnp.minimum(cohort_size(population.participation, available.sum(), jnp), population.cohort)
    _, who = jax.lax.top_k(jnp.where(available, jax.random.uniform(key, available.shape), -1.0), population.cohort)
    present = available[who] & (jnp.arange(population.cohort) < number)
    order = jnp.argsort(who)
    return Cohort(who[order].astype(jnp.int32), present[order])


def training(method: Method, context: Context, keep: bool):
    """How the cohort trains: the engine's name, and a function of a round.

    The function is `(keys, state, cohort, federation, sampled) -> (state, cohort, uploads, sums)`, with the number of
    clients that were sampled. The cohort that it returns are the clients whose uploads the server uses.

    Args:
        keep: whether the grouping or the averaging rule needs uploads one by one; else they are summed as they come.
    """
    way, train_cohort = engine_of(method, context)
    weigh = server.counting(method)
    exclude, reliable = method.aggregate.exclude, context.faults.reliability
    looks = faults.looks_at_uploads(context.faults, exclude)

    def train(keys: RoundKeys, state: State, cohort: Cohort, federation: Federation, sampled: Array):
        if method.train.correction:
            state = with_mean_gradient(method, context, keys.correction, state, federation)
        if reliable.is_partial:
            shares = reliability.shares(reliable, keys.fail, context.population.clients)
            state = state.replace(clients=state.clients | {"work": shares})
        view = as_one_cluster(state) if method.train.models == "all" else state
        participants, weight = noising.participants_of(method, view, cohort, federation, weigh, sampled)
        models, common, uploads = train_cohort(keys.train, view, participants, federation, keep or looks)
        if looks:
            view, cohort, uploads = faults.after_training(
                context.faults,
                exclude,
                method.trains_shared,
                method.group.alone,
                *(keys.train, view, cohort, federation, weigh, uploads),
            )
            uploads = noising.clipped_rows(method, view, cohort, uploads)
            participants, weight = noising.participants_of(method, view, cohort, federation, weigh, sampled)
            models, common = engine.averages(view, participants, uploads)
            state = state.replace(clients=view.clients, server=view.server)
            uploads = uploads if keep else Upload((), (), uploads.own)
        models, common = engine.rounded(view, *noising.completed(method, view, participants, models, common))
        if method.train.models == "all":
            models = trees.take(models, 0)
            weight = jnp.broadcast_to(weight[0], (trees.count(state.clusters),))
        return state, cohort, uploads, Sums(models, weight, common)

    return way, train


def as_one_cluster(state: State) -> State:
    """The state as clients see it that train all models: one cluster, whose model is the stack of all. [1, k, ...]"""
    return state.replace(clusters=trees.stack(state.clusters, 1), labels=jnp.zeros_like(state.labels))


def engine_of(method: Method, context: Context) -> tuple[str, engine.CohortTraining]:
    """The name of the engine that trains a method's clients, and the function by which it does.

    Raises:
        InputError: the model or the method does not allow the engine that was given.
    """
    train = method.train
    if train.chained and not method.trains_shared:
        name, stream = chain_engine(method, context)
        return name, partial(engine.train_in_turn, engine.link_by(stream, follows=True))
    work = work_of(method, context, "cluster" if train.chained else "both")
    name, stream = engine.chosen_engine(work, context)
    stream = sharded.shared_out(stream, work, context.resources.devices)
    return name, partial(engine.train_shared_in_turn, shared_link(method, context), stream) if train.chained else stream


def work_of(method: Method, context: Context, trains: clients.Trains) -> engine.Work:
    """What clients do, as an engine needs to know it."""
    train = method.train
    return engine.Work(
        make=lambda task: noising.clipped_client(method, clients.client(method, context, task, trains)),
        task=context.task,
        trainer=clients.trainer(method, context),
        terms=clients.terms(method, context.task) + clients.shared_terms(method, context.task),
        shared=method.trains_shared,
        alone=not (train.correction or train.control or train.private or train.by_share or train.models == "all")
        and not context.faults.reliability.is_partial,
        clips=method.aggregate.privacy is not None,
        apart=method.group.alone,
    )


def chain_engine(method: Method, context: Context) -> tuple[str, engine.CohortTraining]:
    """The engine that trains the one model of a method, one client at a time."""
    population, resources = context.population._replace(cohort=1), context.resources._replace(chunk=1, devices=1)
    context = context._replace(population=population, resources=resources)
    return engine.chosen_engine(work_of(method, context, "cluster"), context)


def shared_link(method: Method, context: Context) -> engine.Link:
    """How a client goes on with the ω that it was handed: by an engine, if it needs no other model than ω."""
    train = method.train
    if not clients.needs_shared_alone(method, context.task):
        return engine.link_beside_clusters(clients.client(method, context, trains="shared"))
    terms = tuple(term for term in train.shared_terms if not term.is_off)
    lone = method.with_train(terms=terms, shared="mean", shared_terms=(), chained=False, by_share=False)
    return engine.link_by(chain_engine(lone, context)[1], follows=False)


def with_mean_gradient(method: Method, context: Context, key: Key, state: State, federation: Federation) -> State:
    """The mean gradient of a cohort of its own at the cluster models, for clients to correct theirs (FedDANE).

    A client that is in no cluster yet sends no gradient if there is more than one; `corrected` [k] says which clusters
    have clients in the cohort. Layers that stay with a client are its own in the model, and zero in the gradient.
    """
    private = parts.names(context.task, method.train.private, "private")

    def slope(sent: Broadcast, data: Clients, key: Key) -> Upload:
        model = clients.with_private(sent, method.trains_shared).cluster
        return Upload({**model, "params": clients.without(anchor_gradient(context.task, model, data), private)}, ())

    sampled = sample(key, context.population, available(method, context, state, federation))
    if trees.count(state.clusters) > 1:
        sampled = sampled.replace(present=sampled.present & (state.labels[sampled.who] >= 0))
    view = state.replace(clients={name: kept for name, kept in state.clients.items() if name == "private"})
    participants, _ = engine.participants_of(view, sampled, federation, server.by_size)
    sums = engine.train_in_chunks(slope, context.resources.chunk, key, view, participants, federation, False)
    found, _ = engine.rounded(view, *sums[:2])
    corrected = engine.trained_clusters(participants, state)
    return state.replace(server=state.server | {"gradient": found["params"], "corrected": corrected})


def grouped(
    method: Method,
    bounds: Bounds,
    grouping: Grouping,
    keys: RoundKeys,
    state: State,
    cohort: Cohort,
    federation: Federation,
    uploads: Upload,
    sums: Sums,
) -> tuple[State, Sums]:
    """The state after clients were grouped by what they trained, and the aggregates of the clusters they are in now."""
    own = dict(uploads.own)
    trained = faults.with_examples(cohort, federation)  # others change by weight decay alone
    if clients.CHANGE in own:
        state = server.with_new_controls(method, state, trained, federation, own.pop(clients.CHANGE))
    state = with_kept(state, trained, own)
    if "membership" in own:
        label = own["membership"].argmax(-1).astype(jnp.int32)
        state = state.replace(labels=onhost.with_rows(state.labels, cohort, label))
    if not jax.tree.leaves(uploads.cluster):
        return state, sums
    members, models, bound = cohort, uploads.cluster, bounds.clusters
    if bounds.shared is not None:
        sums = sums._replace(shared=server.shared_by_rule(bounds.shared, state, cohort, federation, uploads.shared))
    seen = noising.described_models(method, keys.noise, state, cohort, models)
    if "model" in state.clients:
        state = with_kept(state, trained, {"model": seen})
        present = faults.whose_uploads_count(method.aggregate.exclude, state, cohort, federation)
        members = Cohort(jnp.arange(state.labels.size), present)
        models = seen = state.clients["model"]
    if grouping.after is not None:
        state = grouping.after(keys.group, state, members, federation, seen)
    if "model" in state.clients and bound is None:
        clusters, weight, mean = server.means_of_kept(method, state, members, federation, models)
        return state, Sums(clusters, weight, sums.shared if method.trains_shared else mean)
    clusters, weight = server.aggregate(method, bound, state, members, federation, models)
    return state, sums._replace(clusters=clusters, weight=weight)


def with_training(state: State, cohort: Cohort, federation: Federation) -> State:
    """The state in which a stop condition, if there is one, is told whether a client that has examples was used."""
    if isinstance(state.stopping, tuple):
        return state
    used = faults.with_examples(cohort, federation)
    return state.replace(stopping=state.stopping.replace(trained=used.present.any()))


def in_turn(state: State, cohort: Cohort, uploads: Upload, sums: Sums) -> tuple[Upload, Sums]:
    """The uploads and sums of a round that trains either the cluster models or ω; the other one is as it was sent.

    The cluster models come first. Clients train both in every round, because every round is the same compiled program.
    """
    clusters = state.clock % 2 == 0
    either = lambda new, old: jax.tree.map(partial(jnp.where, clusters), new, old)
    if jax.tree.leaves(uploads.cluster):
        kept = state.clients.get("model")
        rows = (state.clusters, state.labels[cohort.who]) if kept is None else (kept, cohort.who)
        shared = trees.stack(state.shared, cohort.who.size)
        uploads = uploads.replace(
            cluster=either(uploads.cluster, trees.take(*rows)), shared=either(shared, uploads.shared)
        )
    return uploads, Sums(either(sums.clusters, state.clusters), sums.weight, either(state.shared, sums.shared))


def in_rounds_of_clusters(
    before: State, given: Sums, state: State, sums: Sums, cohort: Cohort
) -> tuple[State, Sums, Cohort]:
    """What grouping has made in a round that trains the cluster models; in a round of ω nobody is grouped.

    Args:
        before, given: the state and the sums before the grouping.
        state, sums: those after it.
        cohort: the clients of the round. In a round of ω none of them has trained a cluster model.
    """
    clusters = before.clock % 2 == 0
    either = lambda new, old: jax.tree.map(partial(jnp.where, clusters), new, old)
    sums = Sums(either(sums.clusters, given.clusters), either(sums.weight, given.weight), sums.shared)
    return either(state, before), sums, cohort.replace(present=cohort.present & clusters)


def with_kept(state: State, cohort: Cohort, rows: dict[str, Any]) -> State:
    """The state with the cohort's rows [s, ...] in place of what was kept of these clients before."""
    new = {name: onhost.with_rows(state.clients[name], cohort, rows[name]) for name in rows}
    return state.replace(clients=state.clients | new)


def finished(context: Context, sent: State, state: State, cohort: Cohort, apart: bool) -> State:
    """The state at the end of a round: who took part, and the first model that is not finite.

    Args:
        apart: whether each client has a cluster of its own, which only its training changes.
    """
    if context.faults.on_divergence == "drop_cluster":
        state = faults.without_divergence(sent, state)
    good, fine = onhost.finite_clusters(state, cohort, apart), trees.finite(trees.stack(state.shared, 1))[0]
    state = faults.with_failure(state, ~(good.all() & fine), jnp.where(good.all(), GLOBAL, jnp.argmin(good)))
    return state.replace(seen=state.seen.at[cohort.who].max(cohort.present), round=state.round + 1)
