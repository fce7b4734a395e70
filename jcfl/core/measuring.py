"""Optional metrics of models and gradients at an evaluation: the quality of clusters, distances."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import metrics, trees
from jcfl.core import chunks, clients, engine
from jcfl.core.context import Context, model_bytes, refuse_too_large
from jcfl.core.engine import Client
from jcfl.core.local import Local
from jcfl.core.method import Method
from jcfl.core.objective import mean_loss
from jcfl.core.quality import present_labels, products, quality, training_loss
from jcfl.core.streams import Stream, stream
from jcfl.errors import InputError
from jcfl.metrics.cohesion import cosine
from jcfl.metrics.ratios import ratio, weighted_mean
from jcfl.types import Array, Clients, Federation, Key, Models, State, Upload

DRAWS = 8
"""Mini-batches of each client of which the gradients are measured."""

COMPARED, CENTRES = 400, 32
"""The most clients, and the most clusters, whose models are compared with each other."""

COPIES = 5
"""Gradients or models of every client that an evaluation holds at a time."""


def refuse(method: Method, context: Context) -> None:
    """Refuse measures of models and gradients where a method or the memory does not allow them.

    Raises:
        InputError: clients have no model of one cluster, or their models are on the host.
        TooLarge: the line says how much memory the measures take.
    """
    key = "evaluate_quality" if context.measures_quality else "compare_models"
    if method.train.models == "all":
        raise InputError(
            f"{key}: a client of {method.name} trains all cluster models, and has none of its own to measure; leave "
            "it out, or choose a method that gives a client one cluster"
        )
    if method.train.private:
        raise InputError(
            f"{key}: clients of {method.name} keep {', '.join(method.train.private)} private, so a cluster's model is "
            "not whole; leave it out, or train without private layers"
        )
    if context.resources.states_on_host:
        raise InputError(f"{key} needs the clients' models on the device; set client_states: device, or leave it out")
    count = context.population.clients if context.measures_quality else compared_clients(context).size
    advice = f"leave out {key}, or take fewer clients or a smaller model"
    refuse_too_large(f"{key} holds {COPIES} models or gradients", count, COPIES * model_bytes(context.task), advice)


def measures(
    method: Method, context: Context, client: Client, state: State, federation: Federation
) -> dict[str, Array]:
    """The optional metrics that a run measures besides those of predictions; nothing where no model is trained."""
    if not method.train.active:
        return {}
    found = {}
    if context.measures_quality:
        everyone = jnp.arange(context.population.clients)
        own = own_models(method, context, client, state, federation, everyone)
        known = state.replace(clients=state.clients | {"model": own})
        found |= cohesion(method, context, known, federation) | constants(method, context, known, federation)
        found |= bounds(method, context, found, found.pop("distances"))
        if method.is_summed:
            found["partial_diversity"] = jnp.max(partial_diversities(context, client, known, federation))
            found["squared_gradient_shared"] = squared_gradient_shared(context, known, federation)
    if context.models_at:
        # After a stop condition has ended training, the models of the last round trained stand for those of later ones.
        inside = jnp.isin(state.round, jnp.minimum(jnp.array(context.models_at), state.ended))
        compare = lambda: comparison(method, context, client, state, federation)
        empty = lambda: jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(compare))
        found |= jax.lax.cond(inside, compare, empty)
    return found


def own_models(
    method: Method, context: Context, client: Client, state: State, federation: Federation, who: Array
) -> Models:
    """The models of the clients `who` [s]: the last ones they trained, where the method keeps them. [s, ...]

    Where it does not, a client trains its cluster's model once more, as in a round, and the result is forgotten.
    """
    if method.group.alone:
        return trees.take(state.clusters, who)
    if "model" in state.clients:
        return trees.take(state.clients["model"], who)
    again = trained_again(client, state, federation)
    own = lambda who, data: again(who, data).cluster
    return chunks.over_clients(own, federation, who, min(context.resources.chunk, who.size))


def trained_again(client: Client, state: State, federation: Federation) -> Callable[[Array, Clients], Upload]:
    """`(id [], data of one client) -> upload`: what a client trains from a state, as in a round."""
    common = engine.common_broadcast(state, federation)

    def again(who: Array, data: Clients) -> Upload:
        sent = engine.broadcast(state, jnp.maximum(state.labels[who], 0), who, common)
        sent = sent.replace(own={name: kept for name, kept in sent.own.items() if name != "work"})
        return client(sent, data, stream(state.key, Stream.OWN, state.round, who))

    return again


def partial_diversities(context: Context, client: Client, state: State, federation: Federation) -> Array:
    """Both sides of Ma's Assumption 7.3.3 as it is printed, for a method with CAM; δ² bounds both. [2]

    One side changes the cluster's model Θ_k to the client's own θ_i, and takes the change of the gradient by the global
    model, in the mean over all clients. The other one changes the global model to the client's own copy of it, and
    takes the change of the gradient by Θ_k, in the mean over a cluster, the largest of all clusters. A client's own
    copies are what it trains from the server's models; θ_i is the last one where the method keeps it.

    Args:
        state: with the clients' own models, `clients["model"]`.
    """
    labels, again = present_labels(state, federation), trained_again(client, state, federation)
    loss = summed_loss(context, state)

    def one(who: Array, data: Clients) -> tuple[Array, Array]:
        label = jnp.maximum(labels[who], 0)
        centre, own = trees.take(state.clusters, label)["params"], trees.take(state.clients["model"], who)["params"]
        shared, copy = state.shared["params"], again(who, data).shared["params"]
        slope = jax.grad(loss, (0, 1))
        by_cluster, by_shared = slope(centre, shared, label, data)
        apart = lambda one, other: jnp.square(trees.vector(one) - trees.vector(other)).sum()
        return (
            apart(slope(own, shared, label, data)[1], by_shared),
            apart(slope(centre, copy, label, data)[0], by_cluster),
        )

    m, k = labels.size, trees.count(state.clusters)
    of_cluster, of_copy = chunks.over_clients(one, federation, jnp.arange(m), min(context.resources.chunk, m))
    weights = jnp.where(labels >= 0, federation.train.size, 0).astype(of_copy.dtype)
    total = lambda values: jnp.zeros(k).at[jnp.maximum(labels, 0)].add(values)
    inside = ratio(total(jnp.where(weights > 0, weights * of_copy, 0)), total(weights))  # [k]
    return jnp.stack([weighted_mean(of_cluster, weights), jnp.nanmax(inside)])


def squared_gradient_shared(context: Context, state: State, federation: Federation) -> Array:
    """‖∇ℒ‖² by the global model of a method with CAM; ℒ is the mean loss of clients (Ma 2023, eqs. 7.17, 7.27). []

    Deviations: as in the other measures, a client counts by its training examples; the thesis prints a plain mean.
    """
    labels, loss = present_labels(state, federation), summed_loss(context, state)

    def one(who: Array, data: Clients) -> Array:
        label = jnp.maximum(labels[who], 0)
        centre = trees.take(state.clusters, label)["params"]
        return trees.vector(jax.grad(loss, 1)(centre, state.shared["params"], label, data))

    each = chunks.over_clients(one, federation, jnp.arange(labels.size), min(context.resources.chunk, labels.size))
    weights = jnp.where(labels >= 0, federation.train.size, 0).astype(each.dtype)
    return jnp.square(trees.mean(ratio(weights, weights.sum()), trees.where_weighted(weights, each))).sum()


def summed_loss(context: Context, state: State) -> Callable[[Any, Any, Array, Clients], Array]:
    """The loss of the sum: `(params of a cluster's model, params of the global one, label [], data) -> []`."""

    def loss(cluster: Any, shared: Any, label: Array, data: Clients) -> Array:
        logits = lambda model, params: context.task.apply({**model, "params": params}, data.x)[0]
        both = logits(trees.take(state.clusters, label), cluster) + logits(state.shared, shared)
        return mean_loss(context.task, both, data)

    return loss


def cohesion(method: Method, context: Context, state: State, federation: Federation) -> dict[str, Array]:
    """The measures of `jcfl.core.quality.quality`, B both for each cluster and as the largest of them."""
    chunk = context.resources.chunk
    found = quality(context.task, federation, state, added=method.is_summed, chunk=chunk)
    each = found["clusterability"]
    return found | {"clusterability": jnp.nanmax(each), "clusterability_clusters": each}


def constants(method: Method, context: Context, state: State, federation: Federation) -> dict[str, Array]:
    """The constants of Ma's assumptions, as far as the present models show them.

    Returns:
        `gradient_bound`: U (Assumption 3.4.1). `gradient_variance`: σ² (3.4.10). `smoothness`: β (3.4.9). Each is the
        largest over clients, [], and a lower bound: other models or mini-batches may show a larger one.
        `gradient_diversity`: δ² (7.3.3) as Pillutla et al. have it, the largest over clusters. []
        `squared_gradient`: E‖∇𝓕‖² at the clusters' models, as in Equation 3.34. []
        `distances`: ‖θ_i − Θ_k‖ of every client, NaN for one without a cluster. [m]
    """
    loss, labels = training_loss(context.task, state, method.is_summed), present_labels(state, federation)
    rows = min(clients.trainer(method, context).rows_and_steps(context.population.width)[0], context.population.width)
    draws = DRAWS if rows < context.population.width else 1
    flat = lambda model: trees.vector(model["params"])
    slope = lambda model, data: trees.vector(jax.grad(loss)(model["params"], model, data))

    def one(who: Array, data: Clients) -> dict[str, Array]:
        centre, own = trees.take(state.clusters, labels[who]), trees.take(state.clients["model"], who)
        here, there, key = slope(centre, data), slope(own, data), stream(state.key, Stream.DRAW, state.round, who)
        gap = jnp.linalg.norm(flat(own) - flat(centre))

        def drawn(turn: Array) -> tuple[Array, Array]:
            found = slope(centre, mini_batch(jax.random.fold_in(key, turn), data, rows))
            return jnp.linalg.norm(found), jnp.square(found - here).sum()

        norms, squares = jax.lax.map(drawn, jnp.arange(draws))
        return {
            "slope": here,
            "squared_gradient": jnp.square(here).sum(),
            "gradient_bound": jnp.maximum(norms.mean(), jnp.linalg.norm(there)),
            "gradient_variance": squares.mean(),
            "smoothness": ratio(jnp.linalg.norm(there - here), gap),
            "distances": gap,
        }

    everyone = jnp.arange(labels.size)
    each = chunks.over_clients(one, federation, everyone, min(context.resources.chunk, labels.size))
    weights, k = jnp.where(labels >= 0, federation.train.size, 0), trees.count(state.clusters)
    diversity = metrics.gradient_diversity(each.pop("slope"), labels, weights, k)
    mean = weighted_mean(each.pop("squared_gradient"), weights)
    each = {name: jnp.where(weights > 0, value, jnp.nan) for name, value in each.items()}
    largest = {name: jnp.nanmax(value) for name, value in each.items() if name != "distances"}
    return largest | {
        "gradient_diversity": jnp.nanmax(diversity),
        "squared_gradient": mean,
        "distances": each["distances"],
    }


def mini_batch(key: Key, data: Clients, rows: int) -> Clients:
    """So many examples of one client, drawn without replacement; all of them where it has no more."""
    noise = jnp.where(data.mask, jax.random.uniform(key, data.mask.shape), jnp.inf)
    drawn = jnp.argsort(noise)[:rows]
    return data.picked(drawn, data.mask[drawn])


def bounds(method: Method, context: Context, found: dict[str, Array], distances: Array) -> dict[str, Array]:
    """The bounds of Equations 3.35 and 3.36 from what was measured. [] each

    The round bound is that of halving the mean squared gradient by plain SGD, with 𝓕* = 0: Δ is the present 𝓕.
    """
    local = clients.trainer(method, context)
    _, steps = local.rows_and_steps(context.population.width)
    rate = local.lr if isinstance(local, Local) and local.other is None else jnp.nan
    constants = [found[name] for name in ("clusterability", "gradient_bound", "gradient_variance", "smoothness")]
    squared = found["squared_gradient"]
    return {
        "step_bound": metrics.step_bound(distances, steps, squared, *constants),
        "round_bound": metrics.round_bound(squared / 2, found["learning_objective"], rate, steps, *constants),
    }


def compared_clients(context: Context) -> np.ndarray:
    """The clients whose models are compared: all, or so many that they are spread evenly over the ids. [n]"""
    m = context.population.clients
    return np.linspace(0, m - 1, min(m, COMPARED)).round().astype(np.int32)


def comparison(
    method: Method, context: Context, client: Client, state: State, federation: Federation
) -> dict[str, Any]:
    """How alike the models of clients and clusters are, for figures.

    Returns:
        `model_clients` [n]: the clients that are compared. `model_clusters` [c]: the clusters with most clients, -1 in
        places that are left. `model_cosine`, `model_distance` [(n + c) (n + c - 1) / 2]: the upper triangles, row by
        row, of the cosines and of the Euclidean distances between the clients' own models and then the clusters'.
        `model_l1` [n, c]: the sums of absolute differences of each client's model and each cluster's.
    """
    who, k = compared_clients(context), trees.count(state.clusters)
    size, clusters = jax.lax.top_k(metrics.sizes(present_labels(state, federation), k), min(k, CENTRES))
    own = own_models(method, context, client, state, federation, jnp.asarray(who))
    flat = jax.vmap(lambda model: trees.vector(model["params"]))
    models, centres = flat(own), flat(trees.take(state.clusters, clusters))
    rows = jnp.concatenate([models, centres])
    upper = np.triu_indices(len(rows), 1)
    middle = trees.steady_mean(rows, jnp.isfinite(rows).all(1))
    centred = products(rows - middle)  # so that small distances of long vectors keep their digits
    square = jnp.diagonal(centred)
    distance = jnp.sqrt(jnp.maximum(square[:, None] + square - 2 * centred, 0))
    return {
        "model_clients": jnp.asarray(who),
        "model_clusters": jnp.where(size > 0, clusters, -1),
        "model_cosine": cosine(products(rows))[upper],
        "model_distance": distance[upper],
        "model_l1": jax.lax.map(lambda centre: jnp.abs(models - centre).sum(1), centres).T,
    }
