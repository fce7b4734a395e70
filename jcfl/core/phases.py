"""Phases before a method's own rounds, and runs that predict together."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jcfl import trees
from jcfl.core import aggregates, evaluation, faults, groupings, parts, server
from jcfl.core.context import Context
from jcfl.core.method import Method, Phase
from jcfl.core.streams import Stream, round_keys, stream
from jcfl.types import VOTER, Algorithm, Array, Cohort, Federation, Key, State


def after_phase(phase: Phase, end: int, first: Algorithm, context: Context, algorithm: Algorithm) -> Algorithm:
    """`algorithm` after a phase in which `first` trains what the phase says.

    The method's own clock, `State.clock`, begins when the last phase before it ends.

    Args:
        end: the round after the phase's last.
        first: trains one model for all (`shared`), or one for every client (`alone`).
    """
    warm = shared_warm_up(first) if phase.train == "shared" else alone_warm_up(end, first, context, algorithm)
    if not phase.rounds:
        return algorithm

    def init(key: Key, federation: Federation) -> State:
        state = algorithm.init(key, federation)
        return state.replace(began=jnp.maximum(state.began, end))

    def step(state: State, federation: Federation) -> State:
        return jax.lax.cond(state.round < end, warm, algorithm.step, state, federation)

    return algorithm._replace(init=init, step=step)


def shared_warm_up(first: Algorithm):
    """Rounds of FedAvg for ω, cluster models untouched (Ma 2023, Alg. 5, as for IFCA with CAM)."""

    def warm(state: State, federation: Federation) -> State:
        view = state.replace(
            clusters=trees.stack(state.shared, 1), labels=jnp.zeros_like(state.labels), memory=(), clients={}, server={}
        )
        after = first.step(view, federation)
        return state.replace(shared=after.shared, round=after.round, failed=after.failed)

    return warm


def alone_warm_up(end: int, first: Algorithm, context: Context, algorithm: Algorithm):
    """Rounds in which every client trains by itself, and one grouping (Ma 2023, Alg. 5, as for FeSEM with CAM).

    The server sends the initial model before the first round, and gets the clients' models after the last one. An
    update is the whole way between the two, for attackers who forge it and for a server that looks for suspects.
    """
    method: Method = algorithm.method
    grouping = groupings.grouping(method, context)
    everyone, bound = jnp.arange(context.population.clients), aggregates.bound(method.aggregate.rule, context)
    private = parts.names(context.task, method.train.private, "private")
    tied = parts.names(context.task, method.train.tied, "shared_layers")

    def warm(state: State, federation: Federation) -> State:
        own, labels = state.clients["model"], everyone.astype(jnp.int32)
        after = first.step(state.replace(clusters=own, labels=labels, memory=(), clients={}, server={}), federation)
        clients = state.clients | {"model": after.clusters}
        state = state.replace(clients=clients, round=after.round, failed=after.failed, seen=after.seen)
        return jax.lax.cond(state.round == end, lambda: cluster(state, federation), lambda: state)

    def cluster(state: State, federation: Federation) -> State:
        members = Cohort(everyone, state.seen & (state.round <= federation.depart))
        assert grouping.after is not None
        models, sent = state.clients["model"], trees.stack(state.shared, everyone.size)  # ω is as it began
        if private:  # what stays with a client is not sent
            state = state.replace(clients=state.clients | {"private": parts.part_of(models, private)})
            unsent = parts.part_of(trees.take(state.clusters, jnp.zeros_like(everyone)), private)
            models, sent = parts.with_part(models, unsent), parts.with_part(sent, unsent)
            state = state.replace(clients=state.clients | {"model": models})
        if context.faults.attack.forges:
            # The server gets the clients' models only now. Nobody has a cluster yet, so attackers look at all clients.
            key = round_keys(state.key, state.round - 1).train
            attack, weigh = context.faults.attack, server.counting(method)
            models = faults.forged_together(attack, key, members, federation, weigh, sent, models)
        if method.aggregate.exclude is not None:
            nobodys = jnp.zeros_like(everyone)
            state, members = faults.without_suspects(
                method.aggregate.exclude, state, members, federation, sent, models, nobodys, 1
            )
        grouped = grouping.after(stream(state.key, Stream.WARMUP), state, members, federation, models)
        clusters, total = server.aggregate(method, bound, grouped, members, federation, models)
        clusters = trees.select(total > 0, clusters, grouped.clusters)
        if tied:
            clusters = server.with_tied_mean(clusters, total, tied)
        return grouped.replace(clusters=clusters)

    return warm


class Votes(struct.PyTreeNode):
    """The memory of runs that vote."""

    own: Any  # the main run's
    others: State  # [v, ...] the other runs


def with_votes(context: Context, main: Algorithm, other: Algorithm, copies: int, by: str) -> Algorithm:
    """`main` and `copies` independent runs of `other`, which predict together.

    Clusters and labels are those of `main`, whose start and cohorts are those it has without votes.

    Args:
        by: `probabilities`: the mean of the class probabilities decides; `logits`: that of the logits, which is the sum
            of the models' outputs (Ma 2023, eq. 7.36).
    """

    def init(key: Key, federation: Federation) -> State:
        keys = jax.vmap(lambda copy: stream(key, Stream.VOTE, copy))(jnp.arange(copies))
        state = main.init(key, federation)
        return state.replace(memory=Votes(state.memory, jax.vmap(other.init, (0, None))(keys, federation)))

    def step(state: State, federation: Federation) -> State:
        own = main.step(own_state(state), federation)
        others = jax.vmap(other.step, (0, None))(state.memory.others, federation)
        return own.replace(memory=Votes(own.memory, others), failed=first_failure(own.failed, others.failed))

    def predict(state: State, federation: Federation) -> tuple[Array, Array]:
        labels, logits = main.predict(own_state(state), federation)
        _, more = jax.vmap(other.predict, (0, None))(state.memory.others, federation)  # [v, r, c]
        everybody = jnp.concatenate([logits[None], more])
        if by == "logits":
            return labels, everybody.mean(0)
        chances = jax.nn.softmax(everybody).mean(0)
        return labels, jnp.log(jnp.maximum(chances, jnp.finfo(chances.dtype).tiny))

    measure = lambda state, federation: main.measure(own_state(state), federation)
    evaluate = evaluation.evaluation(context.task, predict, measure)
    return main._replace(init=init, step=step, predict=predict, evaluate=evaluate, measure=measure)


def first_failure(own: Array, others: Array) -> Array:
    """Round and cluster of the main run's failure, else the round of the first vote that failed, and `VOTER`. [2]"""
    failed = others[:, 0] >= 0
    earliest = jnp.where(failed, others[:, 0], jnp.iinfo(others.dtype).max).min()
    return jnp.where((own[0] >= 0) | ~failed.any(), own, jnp.stack([earliest, jnp.asarray(VOTER, others.dtype)]))


def own_state(state: State) -> State:
    """The main run's state, without the others'."""
    return state.replace(memory=state.memory.own)
