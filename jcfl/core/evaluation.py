"""Evaluation: every client predicts its own test examples with the model that serves it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import metrics, trees
from jcfl.core import chunks, clients, engine, parts, soft
from jcfl.core.context import Context
from jcfl.core.method import Method
from jcfl.core.streams import Stream, stream
from jcfl.types import Array, Federation, Grouping, Model, Models, State, Task, Upload

LogitsFunction = Callable[[Model, Model, Array], Array]
Predict = Callable[[State, Federation], tuple[Array, Array]]
Evaluate = Callable[[State, Federation], dict[str, Array]]


def outcome(task: Task, state: State, federation: Federation, labels: Array, logits: Array) -> dict[str, Array]:
    """What the scores of one evaluation are computed from, on the host, by `jcfl.metrics.measured`.

    Args:
        labels: the cluster that serves each client; -1: the global model. [m]
        logits: of every test row. [r, c]

    Returns:
        `labels` [m]; `counts` [m, 3, c], as `metrics.counts` gives them; `losses` [m], the sum of the task's loss over
        each client's test rows; `seen` [m], whether a client has taken part; `unanswered` [m], the number of its test
        rows whose largest logit is not finite. The argmax of such logits is a class without a meaning.
    """
    owner, targets = chunks.owners(federation.test), federation.y[federation.test.rows]
    m = federation.groups.shape[0]
    return {
        "labels": labels,
        "counts": metrics.counts(owner, targets, logits.argmax(-1), m, federation.classes),
        "losses": jnp.zeros(m).at[owner].add(task.loss(logits, targets)),
        "seen": state.seen,
        "unanswered": jnp.zeros(m, jnp.int32).at[owner].add(~jnp.isfinite(logits.max(-1))),
    }


def evaluation(task: Task, predict: Predict, measure: Evaluate) -> Evaluate:
    """The evaluation of a method: the `outcome` of its predictions, and what it measures besides them."""

    def evaluate(state: State, federation: Federation) -> dict[str, Array]:
        return outcome(task, state, federation, *predict(state, federation)) | measure(state, federation)

    return evaluate


def with_validation(evaluate: Evaluate) -> Evaluate:
    """An evaluation that has the clients' predictions of validation examples too, where a federation has some.

    They are added as `validation_counts`, `validation_losses` and `validation_unanswered`, as `outcome` gives those of
    test examples.
    """

    def both(state: State, federation: Federation) -> dict[str, Array]:
        found = evaluate(state, federation)
        if "validation" not in federation.splits:
            return found
        again = evaluate(state, federation.replace(test=federation.validation, validation=()))
        return found | {metrics.VALIDATION + name: again[name] for name in metrics.ANSWERS if name in again}

    return both


def shared_accuracy(context: Context, state: State, federation: Federation) -> Array:
    """The accuracy of ω alone on the test examples of all clients that train and are in the federation. [] float"""
    owner, targets = chunks.owners(federation.test), federation.y[federation.test.rows]
    answer, one = logits_function(context.task, False), trees.stack(state.shared, 1)
    everybody = jnp.zeros(context.population.clients, jnp.int32)
    logits = predictions(context, answer, one, state.shared, state.shared, federation, everybody)
    here = metrics.are_scored(federation.held_out, federation.arrive, federation.depart, state.round)[owner]
    return ((logits.argmax(-1) == targets) & here).sum() / jnp.maximum(here.sum(), 1)


def predictor(method: Method, context: Context, grouping: Grouping, client: Callable[..., Upload]) -> Predict:
    """`(state, federation) -> (labels [m], logits [r, c])`: which cluster serves each client, and the predictions.

    ω predicts for clients in no cluster (-1). With `answer: sum` it predicts for them alone, without a cluster's model.
    """
    answer = logits_function(context.task, method.is_summed)
    private = method.train.private

    def majority(state: State, federation: Federation) -> tuple[Array, Array]:
        return jnp.full(context.population.clients, -1), most_frequent(federation)[chunks.owners(federation.test)]

    def mixture(state: State, federation: Federation) -> tuple[Array, Array]:
        weights = memberships(method, context, state, federation)
        return soft.hard(weights), mixture_logits(context, state, federation, weights)

    def by_models(state: State, federation: Federation) -> tuple[Array, Array]:
        labels = serving_clusters(method, context, grouping, state, federation)
        alone = jax.tree.map(jnp.zeros_like, state.shared) if method.is_summed else state.shared
        if method.answer.tune or private:
            return labels, individual_predictions(method, context, answer, client, state, alone, federation, labels)
        return labels, predictions(context, answer, state.clusters, state.shared, alone, federation, labels)

    return {"majority": majority, "mixture": mixture}.get(method.answer.model, by_models)


def serving_clusters(
    method: Method, context: Context, grouping: Grouping, state: State, federation: Federation
) -> Array:
    """The cluster that serves each client, those outside the training placed by the grouping; -1 for none. [m]

    `OVERFLOW` stands in place of a cluster that there is no model for.

    A client that was never sampled has none in most methods; FeSEM's has that of the initial model. With the answer
    `placed`, the grouping places it. Before the method's own phase begins, nobody is in a cluster.
    """
    labels, held_out = grouping.serve(state, federation), context.population.held_out
    if held_out.size:
        labels = labels.at[held_out].set(grouping.place(state, jnp.asarray(held_out), federation))
    if method.answer.unsampled == "placed":
        everyone = jnp.arange(labels.size)
        placed = lambda: jnp.where(labels == -1, grouping.place(state, everyone, federation), labels)
        labels = jax.lax.cond((labels == -1).any(), placed, lambda: labels)
    return jnp.where(state.round >= sum(phase.rounds for phase in method.before), labels, -1)


def logits_function(task: Task, added: bool) -> LogitsFunction:
    """How a client predicts `x` [n, ...] from its cluster's model and ω: logits [n, c]."""

    def answer(cluster: Model, shared: Model, x: Array) -> Array:
        logits = task.apply(cluster, x)[0]
        return logits + task.apply(shared, x)[0] if added else logits

    return answer


def most_frequent(federation: Federation) -> Array:
    """The log of each client's class frequencies among its training examples, one added to every count. [m, c]"""
    counts = chunks.class_counts(federation) + 1
    return jnp.log(counts / counts.sum(-1, keepdims=True))


def memberships(method: Method, context: Context, state: State, federation: Federation) -> Array:
    """Every client's weights of the cluster models: those it keeps, or, if it never took part, fresh ones. [m, k]

    Fresh weights are those of one M-step from equal ones, on the client's training examples.
    """
    kept = state.clients["membership"]
    assert isinstance(method.group, soft.SoftGroup)  # a mixture needs one
    weights = partial(soft.weights, method.group, memory=state.memory, before=jnp.ones(kept.shape[1]))

    def fresh(who: Array, data: Any) -> Array:
        return weights(soft.losses(context.task, state.clusters, data, context.resources.rows), data)[1]

    def found() -> Array:
        everybody = chunks.over_clients(fresh, federation, jnp.arange(kept.shape[0]), context.resources.chunk)
        return jnp.where(state.seen[:, None], kept, everybody)

    return jax.lax.cond(state.seen.all(), lambda: kept, found)


def mixture_logits(context: Context, state: State, federation: Federation, weights: Array) -> Array:
    """The logits of every test row: all cluster models by the weights [m, k] of the row's client. [r, c]"""
    rows, owner = federation.test.rows, chunks.owners(federation.test)
    if not rows.size:
        return no_answers(context)
    tile = tile_sizes(rows.size, 1, context.resources.rows, 1, 1)[0]

    def part(rows: Array) -> Array:
        x = chunks.model_inputs(federation, rows)
        return jax.lax.map(lambda model: context.task.apply(model, x)[0], state.clusters)  # [k, n, c]

    logits = jax.lax.map(part, chunks.chunked(rows, tile))  # [t, k, n, c]
    logits = jnp.moveaxis(logits, 1, 0).reshape(logits.shape[1], -1, logits.shape[-1])[:, : rows.size]
    return soft.mixture(logits, weights[owner])


def predictions(
    context: Context,
    answer: LogitsFunction,
    clusters: Models,
    shared: Model,
    alone: Model,
    federation: Federation,
    labels: Array,
) -> Array:
    """The logits of every test row, from the model that serves its client. [r, c]

    Rows of one model are predicted together, so a model is read once per tile and not once per client.

    Args:
        alone: in place of a cluster's model for clients that have none.
        labels: the cluster that serves each client, -1 for none. [m]
    """
    k, rows = trees.count(clusters), federation.test.rows
    labels = labels[chunks.owners(federation.test)]
    resources = context.resources
    tile, batch = tile_sizes(rows.size, k, resources.rows, trees.parameters(shared) * 4, resources.room)
    tiles = chunks.tiles_of(jnp.where(labels < 0, k, labels), k + 1, tile)

    def part(fixed, args):
        (clusters, shared, alone, federation), (label, row) = fixed, args
        model = trees.select(label < k, trees.take(clusters, jnp.minimum(label, k - 1)), alone)
        return answer(model, shared, chunks.model_inputs(federation, federation.test.rows[row]))

    fixed = clusters, shared, alone, federation
    # Many models are divided among the devices by their parameters, and each computes its part of all logits.
    devices = 1 if chunks.are_many(k, context.population.clients) else context.resources.devices
    logits = chunks.over_devices(part, fixed, (tiles.label, tiles.row), devices, batch)  # [t, n, c]
    place = jnp.where(tiles.row < 0, rows.size, tiles.row)
    return jnp.zeros((rows.size, logits.shape[-1]), logits.dtype).at[place].set(logits, mode="drop")


def individual_predictions(
    method: Method,
    context: Context,
    answer: LogitsFunction,
    client: Callable[..., Upload],
    state: State,
    alone: Model,
    federation: Federation,
    labels: Array,
) -> Array:
    """The logits of every test row where each client has a model of its own. [r, c]

    A client's model is that of its cluster with its private parameters, trained for some local steps if the method
    fine-tunes before it predicts (Ma 2023, §7.4.4).

    Args:
        alone, labels: as for `predictions`.
    """
    if not federation.test.rows.size:
        return no_answers(context)
    steps, local, train = method.answer.tune, clients.trainer(method, context), method.train
    if train.control or train.correction or train.by_share:
        # The first two lead to the model of all clients. Shares of all examples would make the client's steps short.
        client = clients.client(method.with_train(control=False, correction=False, by_share=False), context)
    common, test = engine.common_broadcast(state, federation), federation.test
    private = parts.names(context.task, method.train.private, "private")

    def one(who: Array, data: Any) -> Array:
        label = labels[who]
        sent = engine.broadcast(state, jnp.maximum(label, 0), who, common)
        sent = sent.replace(label=label, cluster=trees.select(label >= 0, sent.cluster, alone))
        if private and method.is_summed:  # without a cluster, ω predicts alone
            kept = trees.select(label >= 0, sent.own["private"], parts.part_of(alone, private))
            sent = sent.replace(own=sent.own | {"private": kept})
        model, shared = parts.with_part(sent.cluster, sent.own.get("private", {})), state.shared
        if steps:
            sent = sent.replace(
                own={name: kept for name, kept in sent.own.items() if name not in ("optimizer", "work", "control")}
            )
            upload = client(sent, data, stream(state.key, Stream.TUNE, state.round, who), local.for_steps(steps))
            tuned = parts.with_part(upload.cluster, upload.own.get("private", {}))
            # A client without examples is not tuned. With CAM, for a client in no cluster only ω is: it predicts by ω.
            able = data.mask.any()
            model = trees.select(able & (label >= 0) if method.is_summed else able, tuned, model)
            shared = trees.select(able, upload.shared, shared) if jax.tree.leaves(upload.shared) else shared
        return answer(model, shared, chunks.gather(federation, test, who[None]).x[0])

    asked = test.size > 0  # for new examples of a few clients, nobody else needs a model
    order = jnp.argsort(~asked, stable=True)
    logits = chunks.over_clients(one, federation, order, context.resources.chunk, asked[order])  # [m, n, c]
    owner = chunks.owners(test)
    return logits[order.argsort()[owner], jnp.arange(test.rows.size) - test.start[owner]]


def no_answers(context: Context) -> Array:
    """The logits where no client has a test example; a model need not take a batch of no rows. [0, c]"""
    return jnp.zeros((0, context.population.classes))


def tile_sizes(rows: int, k: int, most: int, model_bytes: int, budget: int) -> tuple[int, int]:
    """Rows in a tile, and tiles predicted at a time; together they have at most `most` rows, a power of two."""
    most = min(most, 1024)
    tile = 2 ** int(np.clip(np.log2(max(rows, 1) / (2 * k)), 3, np.log2(most)))
    return tile, int(np.clip(budget // max(model_bytes, 1), 1, max(1, most // tile)))
