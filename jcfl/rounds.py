"""The one round that every method here is a case of."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jcfl import averaging as averages
from jcfl import engine, evaluation, factored, trees
from jcfl.errors import InputError
from jcfl.local import Local
from jcfl.objective import Objective, Term, objective, own
from jcfl.objective import shared as common
from jcfl.setting import Rule, Setting, Shared
from jcfl.types import (
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


def by_size(size: Array) -> Array:
    """A client counts by its examples. [s] -> [s]"""
    return size.astype(float)


def equally(size: Array) -> Array:
    """Every client counts the same. [s] -> [s]"""
    return jnp.ones(size.shape)


class Pieces(NamedTuple):
    """A method's choices, beside its grouping."""

    clusters: int = 1  # k
    distinct: bool = False  # whether cluster models start from different initialisations
    terms: Sequence[Term] = ()  # what a client minimises besides the loss on its examples
    shared: Shared = "mean"  # what the shared model is
    weigh: engine.Weigh = by_size
    averaging: Rule | None = None  # how models are averaged; None: weighted, as they stream in
    rate: Any = 1.0  # how far the server goes towards the average
    tied: tuple[str, ...] = ()  # parameters, by top-level name, averaged over all clients
    stored: bool = False  # whether the clients' last models are kept, so that absent clients count too
    prepare: Callable[[Broadcast, Clients], Any] | None = None  # what a client works out before training
    chained: bool = False  # whether clients train one after another and hand the shared model on
    train: bool = True  # whether anything is trained; if not, rounds only group


def clustered(
    setting: Setting, grouping: Grouping, *, costs: dict[str, float] | None = None, **choices: Any
) -> Algorithm:
    """A method, from its grouping and its other choices of pieces.

    Args:
        grouping: puts clients into clusters.
        costs: of one client-round, in units of FedAvg's.
        **choices: as `Pieces`.
    """
    pieces = extended(setting, Pieces(**choices))
    task = setting.task
    client = trained(setting, pieces)
    way, stream = streaming(setting, pieces, client)
    memories = optimizers(setting, pieces)

    def init(key: Key, federation: Federation) -> State:
        model_key, run_key = jax.random.split(key)
        first = task.init(model_key)
        keys = jax.random.split(model_key, pieces.clusters)
        models = jax.vmap(task.init)(keys) if pieces.distinct else trees.stack(first, pieces.clusters)
        models = tied(pieces, models, first)
        state = initial(run_key, models, first, setting.clients)
        state = state.replace(
            local=trees.stack(first, setting.clients) if pieces.stored else (),
            optimizer=trees.stack((setting.local.blank(first),) * memories, setting.clients),
        )
        return grouping.init(state, federation)

    def step(state: State, federation: Federation) -> State:
        pick_key, group_key, train_key = jax.random.split(jax.random.fold_in(state.key, state.round), 3)
        cohort = sample(pick_key, setting, state.round, federation)
        state = grouping.before(group_key, state, cohort, federation)
        seen = state.seen.at[cohort.who].max(cohort.present)
        if pieces.train:
            state, sums = learnt(setting, pieces, grouping, stream, (train_key, group_key), state, cohort, federation)
            state = averaged(pieces, state, sums)
        return watched(state).replace(seen=seen, round=state.round + 1)

    def predict(state: State, federation: Federation) -> tuple[Array, Array]:
        return evaluation.answered(setting, grouping, pieces.shared == "added", client, state, federation)

    def evaluate(state: State, federation: Federation) -> dict[str, Array]:
        measures = grouping.measures(state, federation)
        k = trees.count(state.clusters)
        return evaluation.figures(setting, state, federation, k, *predict(state, federation)) | measures

    return Algorithm(init, step, predict, evaluate, costs or {}, way)


def extended(setting: Setting, pieces: Pieces) -> Pieces:
    """A method's choices with those of its add-ons."""
    extras = setting.extras
    return pieces._replace(
        terms=[*pieces.terms, *(make(setting.task) for make in extras.terms)],
        shared="added" if extras.added else pieces.shared,
        averaging=extras.averaging or pieces.averaging,
    )


def initial(key: Key, clusters: Models, shared: Model, m: int) -> State:
    """The state before the first round, nobody in a cluster."""
    return State(
        clusters=clusters,
        shared=shared,
        labels=jnp.full(m, -1, jnp.int32),
        seen=jnp.zeros(m, bool),
        memory=(),
        round=jnp.zeros((), jnp.int32),
        key=key,
        failed=jnp.full(2, -1, jnp.int32),
    )


def sample(key: Key, setting: Setting, round: Array, federation: Federation) -> Cohort:
    """A uniform sample, without replacement, of the clients available in this round, in the order of their ids."""
    available = ~federation.held_out & (federation.arrive <= round) & (round < federation.depart)  # [m]
    asked = jnp.clip(jnp.round(setting.participation * available.sum()), 1, setting.cohort)
    _, who = jax.lax.top_k(jnp.where(available, jax.random.uniform(key, available.shape), -1.0), setting.cohort)
    present = available[who] & (jnp.arange(setting.cohort) < asked)
    order = jnp.argsort(who)
    return Cohort(who[order].astype(jnp.int32), present[order])


def trained(setting: Setting, pieces: Pieces) -> engine.Client:
    """What a client does with what it is sent: its cluster's model trained, and the shared one where it is trained too.

    Both copies see the same mini-batches in the same order.
    """
    task, added = setting.task, pieces.shared == "added"
    cluster_loss = objective(task, pieces.terms, partner=common if added else None)
    shared_loss = objective(task, partner=own if added else None)

    def client(sent: Broadcast, data: Clients, key: Key, local=setting.local) -> Upload:
        if pieces.prepare is not None:
            sent = sent.replace(extra=pieces.prepare(sent, data))
        before = sent.optimizer or (None, None)  # nothing is kept at an evaluation
        model, after = train(local, cluster_loss, sent.cluster, before[0], sent, data, key)
        if pieces.shared == "mean":
            return Upload(model, model if apart(pieces) else (), (after,) if sent.optimizer else ())
        common, beside = train(local, shared_loss, sent.shared, before[1], sent, data, key)
        return Upload(model, common, (after, beside) if sent.optimizer else ())

    def train(local: Local, loss: Objective, start: Model, before: Any, *given) -> tuple[Model, Any]:
        return (
            (local.train(loss, start, *given), None) if before is None else local.resumed(loss, start, before, *given)
        )

    return client


def optimizers(setting: Setting, pieces: Pieces) -> int:
    """How many optimizers' states outlast a client's round: one for every model that it trains, or none.

    Raises:
        InputError: nobody can keep them, or all clients' do not fit the memory.
    """
    if not setting.local.keep_optimizer_state:
        return 0
    if pieces.chained or type(setting.local).train is not Local.train:
        raise InputError(
            "train.keep_optimizer_state: clients that train one after another, or in a way of their own, do "
            "not keep it; leave it out"
        )
    copies = 1 if pieces.shared == "mean" else 2
    need = setting.clients * copies * trees.parameters(jax.eval_shape(setting.task.init, jax.random.key(0))) * 4
    if need > setting.budget:
        raise InputError(
            f"train.keep_optimizer_state: {setting.clients} clients' take {need / 2**30:.1f} GiB, and a round may take "
            f"{setting.budget / 2**30:.1f}; leave it out, or take fewer clients or a smaller model"
        )
    return copies


def streaming(setting: Setting, pieces: Pieces, client: engine.Client) -> tuple[str, engine.Stream]:
    """How the cohort trains: the way's name, and what trains it, client by client.

    Raises:
        InputError: a way was asked for that the model or the method does not allow.
    """
    why_not = factored.obstacle(setting, pieces.terms, alone=pieces.prepare is None and not pieces.chained)
    if setting.engine == "factored" and why_not:
        raise InputError(f"engine 'factored' cannot be used: {why_not}; take engine 'auto' or 'general'")
    if pieces.chained:
        return "chained", partial(engine.chain, client, pieces.shared == "mean")
    references = factored.references(pieces.terms, pieces.shared != "mean")
    general = why_not or setting.engine == "general"
    if general or (setting.engine == "auto" and not factored.cheaper(setting, references)):
        return "general", engine.spread(partial(engine.stream, client, setting.chunk), setting.devices)
    make = lambda task: trained(setting._replace(task=task), pieces)
    tile = factored.tile_size(setting, references)
    stream = partial(factored.stream, make, setting.task, references, tile)
    return "factored", engine.spread(stream, setting.devices)


def learnt(
    setting: Setting,
    pieces: Pieces,
    grouping: Grouping,
    stream: engine.Stream,
    keys,
    state: State,
    cohort: Cohort,
    federation,
) -> tuple[State, engine.Sums]:
    """The cohort trained, grouped by what it trained if the rule asks for that, and its models averaged."""
    train_key, group_key = keys
    kept = state.optimizer != ()
    keep = grouping.after is not None or pieces.averaging is not None
    visit, weight = engine.visited(state, cohort, federation, pieces.weigh)
    clusters, common, uploads = stream(train_key, state, visit, federation, keep)
    sums = engine.Sums(clusters, weight, common)
    if kept:
        state = state.replace(optimizer=put(state.optimizer, cohort, uploads.optimizer))
    if not keep:
        return state, sums
    members, models = cohort, uploads.cluster
    if pieces.stored:
        state = state.replace(local=put(state.local, cohort, models))
        present = state.seen.at[cohort.who].max(cohort.present) & (state.round < federation.depart)
        members, models = Cohort(jnp.arange(setting.clients), present), state.local
    if grouping.after is not None:
        state = grouping.after(group_key, state, members, federation, models)
    clusters, total = gathered(pieces, state, members, federation, models)
    if pieces.stored and pieces.shared == "mean":
        size = jnp.where(members.present, by_size(federation.train.size[members.who]), 0.0)
        mean = trees.mix((size / jnp.maximum(size.sum(), 1))[None], models)
        sums = sums._replace(shared=jax.tree.map(lambda leaf: leaf[0], mean))
    return state, sums._replace(clusters=clusters, weight=total)


def apart(pieces: Pieces) -> bool:
    """Whether the shared model needs sums of its own: it is trained, or clients count by size in it alone."""
    return pieces.shared != "mean" or (pieces.clusters > 1 and pieces.weigh is not by_size and not pieces.averaging)


def put(all_: Any, cohort: Cohort, rows: Any) -> Any:
    """What is kept of all clients [m, ...] with the cohort's rows [s, ...] in place of theirs before."""
    put = lambda old, new: old.at[jnp.where(cohort.present, cohort.who, old.shape[0])].set(new, mode="drop")
    return jax.tree.map(put, all_, rows)


def gathered(
    pieces: Pieces, state: State, members: Cohort, federation: Federation, models: Models
) -> tuple[Models, Array]:
    """The clusters' averages of models that were kept [s, ...], and what weighs in each. [k, ...], [k]"""
    labels = state.labels[members.who]
    weights = jnp.where(members.present, pieces.weigh(federation.train.size[members.who]), 0.0)
    total = jnp.zeros(trees.count(state.clusters)).at[labels].add(weights)
    rule = pieces.averaging(federation, members.who) if pieces.averaging else averages.weighted_mean
    return rule(labels, weights, models, state.clusters), total


def averaged(pieces: Pieces, state: State, sums: engine.Sums) -> State:
    """Every cluster's model goes to the mean of its clients'; one that nobody trained stays as it is."""
    total = sums.weight.sum()
    toward = lambda old, new: jax.tree.map(
        lambda a, b: b if pieces.rate == 1.0 else a + pieces.rate * (b - a), old, new
    )
    clusters = toward(state.clusters, sums.clusters)
    share = sums.weight / jnp.maximum(total, jnp.finfo(total.dtype).tiny)
    mean = jax.tree.map(lambda leaf: leaf[0], trees.mix(share[None], clusters))
    shared = sums.shared if apart(pieces) else mean
    clusters = tied(pieces, clusters, mean)
    return state.replace(clusters=clusters, shared=trees.select(total > 0, shared, state.shared))


def tied(pieces: Pieces, clusters: Models, one: Model) -> Models:
    """Cluster models whose tied parameters are all those of one model."""
    same = {name: trees.stack(one["params"][name], trees.count(clusters)) for name in pieces.tied}
    return {**clusters, "params": {**clusters["params"], **same}} if same else clusters


def watched(state: State) -> State:
    """The state with the first model that is not finite written down."""
    good = trees.finite(state.clusters) & trees.finite(jax.tree.map(lambda leaf: leaf[None], state.shared))
    failed = jnp.stack([state.round, jnp.argmin(good).astype(jnp.int32)])
    return state.replace(failed=jnp.where(good.all() | (state.failed[0] >= 0), state.failed, failed))
