"""Clusters by themselves, no true group known: gradients, models and losses inside them and between."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jcfl import engine, trees
from jcfl.metrics.agreement import sizes
from jcfl.metrics.ratios import ratio, valid, weighted_mean
from jcfl.objective import mean_loss
from jcfl.types import Array, Clients, Federation, Model, State, Task


def quality(
    task: Task, federation: Federation, state: State, *, added: bool = False, chunk: int = 16
) -> dict[str, Array]:
    """How good the clusters of a run are by T's measures, from its training data and its last state.

    They are over the clients that have taken part and are there. A client's own model is the last that it trained,
    where the method keeps it (fesem, wecfl, …), else its cluster's. A gradient per client is held.

    >>> import jcfl
    >>> from jcfl import config, plan
    >>> given = {"scenario": {"name": "rotated", "clients": 8}, "model": {"name": "mlp", "hidden": 8}, "rounds": 2}
    >>> given["method"] = {"name": "wecfl", "clusters": 2}
    >>> history, built = jcfl.run(given), plan.planned(config.read(given))
    >>> first = jax.tree.map(lambda leaf: leaf[0], history.state)  # seed's
    >>> found = quality(built.setting.task, built.federation, first)
    >>> bool(0 < found["clustering_objective"] < 1 and found["cosine_within"] > found["cosine_between"])
    True

    Args:
        task: what was learnt; a plan's `setting.task`.
        federation: what it was learnt on; a plan's `federation`.
        state: of one seed: `history.state` without its leading axis.
        added: whether the shared model's logits are added to a cluster's, as with the add-on `cam`.
        chunk: clients at a time.

    Returns:
        `clusterability`, B of every cluster, by its clients' gradients at their own models [k].
        `clustering_objective`, 𝒞, between clients' own models and their clusters', and `cosine_within`, the mean cosine
        of two own models in one cluster; NaN where the method keeps none.
        `cosine_between`, the mean cosine of two clusters' models.
        `learning_objective`, 𝓕, of the clusters' models.
        Pair purity needs the true groups, and is among the scores of every evaluation.
    """
    federation, state = jax.tree.map(jnp.asarray, (federation, state))
    k, m = trees.count(state.clusters), state.labels.size
    here = state.seen & ~federation.held_out & (state.round <= federation.depart)
    labels, weights = jnp.where(here, state.labels, -1), federation.train.size
    gradients, losses = local_slopes(task, federation, state, added, min(chunk, m))
    centres = jax.vmap(flat)(state.clusters["params"])  # [k, p]
    models = jax.vmap(flat)(state.local["params"]) if kept(state) else jnp.full((m, 1), jnp.nan)  # [m, p]
    live = sizes(labels, k) > 0
    return {
        "clusterability": clusterability(gradients, labels, weights, k),
        "clustering_objective": clustering_objective(models, centres, labels, weights),
        "cosine_within": within_between(products(models), labels, k)[0],
        "cosine_between": weighted_mean(cosine(products(centres)), jnp.triu(live[:, None] & live, 1)),
        "learning_objective": learning_objective(losses, labels, weights),
    }


def kept(state: State) -> bool:
    """Whether the clients' own last models are part of a state."""
    return bool(jax.tree.leaves(state.local))


def local_slopes(task: Task, federation: Federation, state: State, added: bool, chunk: int) -> tuple[Array, Array]:
    """Every client's gradient at its own model [m, p], and its loss under its cluster's [m], over its training data."""

    def loss(params, model: Model, data: Clients) -> Array:
        logits = task.apply({**model, "params": params}, data.x)[0]
        beside = task.apply(state.shared, data.x)[0] if added else 0.0
        return mean_loss(task, logits + beside, data)

    def one(who: Array, data: Clients) -> tuple[Array, Array]:
        centre = trees.take(state.clusters, state.labels[who])
        own = trees.take(state.local, who) if kept(state) else centre
        slope = jax.grad(loss)(own["params"], own, data)
        return flat(slope), loss(centre["params"], centre, data)

    return engine.each(one, federation, jnp.arange(state.labels.size), chunk)


def clusterability(gradients: ArrayLike, labels: ArrayLike, weights: ArrayLike, k: int) -> Array:
    """The clusterability B of every cluster: how far gradients are from their mean (T def. 3.4.7, eq. 3.18).

    Args:
        gradients: the gradient of every client at its own model. [m, p]
        labels: the cluster of every client, -1 for none. [m]
        weights: ψ, the number of training examples; clients with none are left out. [m]
        k: the number of cluster slots.

    Returns:
        B, relative to the mean gradient's norm: 0 for equal gradients, NaN for an empty cluster. [k]
    """
    gradients, labels = jnp.asarray(gradients), jnp.asarray(labels, jnp.int32)
    kept = valid(labels, k) & (jnp.asarray(weights) > 0)
    weights = jnp.where(kept, weights, 0)
    slots = jnp.where(kept, labels, k)  # slot k does not exist, so its rows are dropped
    total = jnp.zeros(k).at[slots].add(weights, mode="drop")
    share = ratio(weights, total[labels])[:, None]
    mean = jnp.zeros((k, gradients.shape[1])).at[slots].add(jnp.where(kept[:, None], share * gradients, 0), mode="drop")
    spread = jnp.full(k, -1.0).at[slots].max(jnp.linalg.norm(mean[labels] - gradients, axis=-1), mode="drop")
    bound = jnp.where(spread == 0, 0.0, spread / jnp.linalg.norm(mean, axis=-1))
    return jnp.where(spread < 0, jnp.nan, bound)


def learning_objective(losses: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> Array:  # [m], [m], [m] -> []
    """The learning objective 𝓕: the mean loss of clients under their cluster's model, weighted by ψ (T eq. 3.3a)."""
    return weighted_mean(jnp.asarray(losses), jnp.where(jnp.asarray(labels) >= 0, weights, 0))


def clustering_objective(vectors: ArrayLike, centres: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> Array:
    """The clustering objective 𝒞: the mean squared distance of clients to their centre (T eqs. 3.3b and 3.4).

    Args:
        vectors: what represents every client, such as its model. [m, p]
        centres: the same of every cluster. [k, p]
        labels: the cluster of every client, -1 for none. [m]
        weights: ψ, the number of training examples. [m]
    """
    labels = jnp.asarray(labels, jnp.int32)
    distances = jnp.square(jnp.asarray(vectors) - jnp.asarray(centres)[labels]).sum(-1)
    return learning_objective(distances, labels, weights)


def cluster_gram(gram: ArrayLike, labels: ArrayLike, k: int) -> Array:  # [m, m], [m] -> [k, k]
    """Inner products of the clusters' sums of vectors, from those of the clients; a label of -1 leaves a client out."""
    labels = jnp.asarray(labels, jnp.int32)
    slots = jnp.where(valid(labels, k), labels, k)  # slot k does not exist, so its rows are dropped
    rows = jnp.zeros((k, labels.size)).at[slots].add(gram, mode="drop")
    return jnp.zeros((k, k)).at[:, slots].add(rows, mode="drop")


def objective(inner: ArrayLike, live: ArrayLike) -> Array:  # [k, k], [k] -> []
    """The sum of cosines over pairs of live clusters, from inner products of their sums or means (S eq. 2)."""
    live = jnp.asarray(live)
    return jnp.where(jnp.triu(live[:, None] & live, 1), cosine(jnp.asarray(inner)), 0).sum()


def within_between(gram: ArrayLike, labels: ArrayLike, k: int) -> tuple[Array, Array]:  # [m, m], [m] -> [], []
    """The mean cosine of two clients of one cluster, and of two clusters' centres (T Fig. 3.4); NaN without a pair."""
    gram, labels = jnp.asarray(gram), jnp.asarray(labels, jnp.int32)
    same = (labels[:, None] == labels) & valid(labels, k)
    within = weighted_mean(cosine(gram), jnp.triu(same, 1))
    live = sizes(labels, k) > 0
    return within, weighted_mean(cosine(cluster_gram(gram, labels, k)), jnp.triu(live[:, None] & live, 1))


def cosine(gram: Array) -> Array:
    """Cosines from inner products; those with a zero vector are 0."""
    length = jnp.sqrt(jnp.maximum(jnp.diagonal(gram), 0))
    return ratio(gram, length[:, None] * length, empty=0.0)


def flat(tree: Model) -> Array:
    """A tree's numbers as one vector. [p]"""
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])


def products(rows: Array) -> Array:
    """Inner products of all pairs of rows. [m, p] -> [m, m]"""
    return jnp.matmul(rows, rows.T, precision=trees.EXACT)
