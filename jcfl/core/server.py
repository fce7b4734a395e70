"""What the server does with uploads: averages them, takes a step, and keeps a state for every cluster."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jcfl import trees
from jcfl.core import averaging, faults, onhost, parts, returned
from jcfl.core.aggregates import Bound
from jcfl.core.averaging import Averaging
from jcfl.core.clients import sums_shared
from jcfl.core.engine import Sums, Weigh, weights_of
from jcfl.core.method import Method
from jcfl.core.streams import Stream, stream
from jcfl.errors import named
from jcfl.trees.rows import HostRows
from jcfl.types import Array, Cohort, Federation, Key, Model, Models, State, Task

FOLLOWS = ("optimizer",)
"""What the server keeps for each cluster, `[k, ...]`, and what follows a cluster when clusters merge or split. Control
variates do not: they are the means of their clients', see `with_control_means`."""


def by_size(size: Array) -> Array:
    """A client counts by its examples. [s] -> [s]"""
    return size.astype(float)


def equally(size: Array) -> Array:
    """Every client that has examples counts the same; another one has nothing to train on. [s] -> [s]"""
    return jnp.where(size > 0, 1.0, 0.0)


def all_alike(size: Array) -> Array:
    """Every client counts the same. [s] -> [s]"""
    return jnp.ones(size.shape)


WEIGHTS: dict[str, Weigh] = {"by_size": by_size, "equally": equally}


def counting(method: Method) -> Weigh:
    """How a method's clients count. Under privacy all do, because nobody may learn whether a client has examples."""
    return all_alike if method.aggregate.privacy is not None else WEIGHTS[method.aggregate.weights]


def first_server_state(method: Method, first: Model, k: int) -> dict[str, Any]:
    """What the server keeps beside the models of `k` clusters before the first round."""
    found: dict[str, Any] = {}
    if method.aggregate.server is not None:
        state = optimizer_of(method).init(first["params"])
        if not method.group.alone:
            found["optimizer"] = trees.stack(state, k)
        if sums_shared(method):
            found["shared_optimizer"] = trees.stack(state, 1)
    zeros = jax.tree.map(jnp.zeros_like, first["params"])
    if method.train.control:
        found["control"] = trees.stack(zeros, k)
    if method.train.correction:
        found["gradient"], found["corrected"] = trees.stack(zeros, k), jnp.zeros(k, bool)
    return found


def optimizer_of(method: Method) -> optax.GradientTransformation:
    """The server's optimizer, for the models of one cluster.

    Raises:
        InputError: it is no transformation of optax; or, when it is traced, it returns steps or states of another form.
    """
    name = f"aggregate.server {type(method.aggregate.server).__name__}"
    made = named(name, method.aggregate.server.transformation)()
    own = returned.piece(made, optax.GradientTransformation, f"{name}: transformation")

    def init(params: Any) -> Any:
        return returned.first_state(named(name, own.init)(params), f"{name}: init")

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        found = named(name, own.update)(updates, state, params)
        steps, after = returned.pair(found, "(steps, state)", f"{name}: update")
        steps = returned.next_state(steps, params, f"{name}: update: steps", types=False)
        after = returned.next_state(after, state, f"{name}: update: state", types=False)
        return steps, trees.with_dtypes(jax.tree.map(jnp.asarray, after), state)

    return optax.GradientTransformation(init, update)


def split(server: dict[str, Any], parent: Array) -> dict[str, Any]:
    """What the server keeps after clusters were split: slot j gets the state of the cluster `parent[j]`. [k]"""
    return {name: trees.take(kept, parent) if name in FOLLOWS else kept for name, kept in server.items()}


def merged(server: dict[str, Any], weights: Array, first: Model, method: Method) -> dict[str, Any]:
    """What the server keeps after clusters were merged: the weighted mean of the states of those united.

    Args:
        weights: what each old cluster counts in each slot; a slot that nothing counts in starts afresh. [k, k]
    """
    if not any(name in FOLLOWS for name in server):
        return server
    total = weights.sum(1)
    share = weights / jnp.maximum(total, 1)[:, None]
    begun = first_server_state(method, first, total.size)

    united = lambda name, kept: trees.select(total > 0, trees.mix(share, kept), begun[name])
    return {name: united(name, kept) if name in FOLLOWS else kept for name, kept in server.items()}


def aggregate(
    method: Method, bound: Bound | None, state: State, members: Cohort, federation: Federation, models: Models
) -> tuple[Models, Array]:
    """The clusters' aggregates of models that were kept [s, ...], and the total weight of each. [k, ...], [k]

    Args:
        bound: the averaging rule for the run; None for the weighted mean.
    """
    labels, weights, total = weighed(method, state, members, federation)
    if method.group.alone:  # a client's own model is not sent, and so is not changed by a rule
        bound = None
    rule = rule_of_round(bound, state, federation, members.who)
    return rule(labels, weights, models, state.clusters), total


def rule_of_round(bound: Bound | None, state: State, federation: Federation, who: Array) -> Averaging:
    """The averaging rule of this round for the clients `who` [s]; the weighted mean where the run has no other rule."""
    return averaging.weighted_mean if bound is None else bound(bucket_key(state), state, federation, who)


def bucket_key(state: State) -> Key:
    """The key from which a round's averaging rule draws."""
    return stream(state.key, Stream.BUCKETS, state.round)


def weighed(method: Method, state: State, members: Cohort, federation: Federation) -> tuple[Array, Array, Array]:
    """The cohort's labels [s] and weights [s], and the total weight of each cluster [k]."""
    labels, k = state.labels[members.who], trees.count(state.clusters)
    weights = weights_of(members, federation, counting(method))
    group = averaging.present_labels(labels, weights, k)
    return labels, weights, jnp.zeros(k).at[group].add(weights, mode="drop")


def means_of_kept(
    method: Method, state: State, members: Cohort, federation: Federation, models: Models
) -> tuple[Models, Array, Model]:
    """The clusters' means of all clients' last models [m, ...], the total weights, and the mean of all by size.

    The clients' models are gone through some at a time, as they may be on the host. [k, ...], [k], [...]
    """
    labels, weights, total = weighed(method, state, members, federation)
    group = averaging.present_labels(labels, weights, total.size)
    overall = weights_of(members, federation, by_size if method.aggregate.privacy is None else all_alike)
    clusters, mean = onhost.means(group, weights, overall, models, state.clusters)
    return clusters, total, mean


def shared_by_rule(bound: Bound, state: State, cohort: Cohort, federation: Federation, models: Models) -> Model:
    """ω by its own rule, from the copies of it that the cohort trained."""
    weights = weights_of(cohort, federation, by_size)
    rule, default = rule_of_round(bound, state, federation, cohort.who), trees.stack(state.shared, 1)
    return trees.take(rule(jnp.zeros(cohort.who.shape, jnp.int32), weights, models, default), 0)


def participation(method: Method, state: State, sums: Sums, federation: Federation) -> Array:
    """How much of the weight of each cluster's members took part in a round. [k] float, in [0, 1]"""
    weight = counting(method)(federation.train.size)
    members = (state.labels >= 0) & federation.available(state.round)
    whole = jnp.zeros(sums.weight.size).at[state.labels].add(jnp.where(members, weight, 0.0))
    return jnp.minimum(sums.weight / jnp.maximum(whole, jnp.finfo(whole.dtype).tiny), 1.0)


def after_server_step(
    method: Method, tied: tuple[str, ...], private: tuple[str, ...], state: State, sums: Sums, federation: Federation
) -> State:
    """The cluster models and ω after the server's step; a model that nobody trained stays as it is.

    Models of clients that are alone are those that the clients trained, because the server does not get them.

    Args:
        tied, private: layers that are averaged over all clusters, and layers that are not averaged at all.
    """
    total = sums.weight.sum()
    server = dict(state.server)
    new = sums.clusters
    if method.aggregate.absent:  # Ma 2023, eq. 7.6
        part = participation(method, state, sums, federation)
        new = jax.tree.map(lambda a, b: trees.rounded(a + trees.wide(part, a) * (b - a), a), state.clusters, new)
    clusters = new
    if not method.group.alone:
        clusters, server = stepped(method, state.clusters, new, sums.weight > 0, server, "optimizer")
    if private:
        clusters = parts.with_part(clusters, parts.part_of(state.clusters, private))
    share = sums.weight / jnp.maximum(total, jnp.finfo(total.dtype).tiny)
    shared = mean = () if isinstance(clusters, HostRows) else trees.mean(share, clusters)
    if sums_shared(method):
        old, new = trees.stack(state.shared, 1), trees.stack(sums.shared, 1)
        stack, server = stepped(method, old, new, total[None] > 0, server, "shared_optimizer")
        shared = trees.take(stack, 0)
    if private and not method.trains_shared:
        shared = parts.with_part(shared, parts.part_of(state.shared, private))
    if tied:
        clusters = trees.select(total > 0, with_tied(clusters, mean, tied), clusters)
    return state.replace(clusters=clusters, shared=trees.select(total > 0, shared, state.shared), server=server)


def with_tied(clusters: Models, mean: Model, tied: tuple[str, ...]) -> Models:
    """The cluster models with the tied layers of their mean. [k, ...]"""
    return parts.with_part(clusters, trees.stack(parts.part_of(mean, tied), trees.count(clusters)))


def with_tied_mean(clusters: Models, total: Array, tied: tuple[str, ...]) -> Models:
    """The cluster models with the tied layers of their mean by the weights `total` [k], if one is not 0. [k, ...]"""
    share = total / jnp.maximum(total.sum(), jnp.finfo(total.dtype).tiny)
    return trees.select(total.sum() > 0, with_tied(clusters, trees.mean(share, clusters), tied), clusters)


def means_of_members(
    method: Method,
    task: Task,
    bound: Bound | None,
    state: State,
    members: Cohort,
    federation: Federation,
    models: Models,
) -> Models:
    """The models of clusters that begin at the aggregates of their members' models, with tied layers alike. [k, ...]

    Args:
        state: with the new clusters, and the models that clusters without members begin with.
    """
    clusters, total = aggregate(method, bound, state, members, federation, models)
    tied = parts.names(task, method.train.tied, "shared_layers")
    return with_tied_mean(clusters, total, tied) if tied else clusters


def stepped(
    method: Method, old: Models, new: Models, counted: Array, server: dict[str, Any], name: str
) -> tuple[Models, dict[str, Any]]:
    """Models after the server went from the old ones [k, ...] towards the aggregates `new`, and its new states."""
    rate = method.aggregate.rate
    if not method.aggregate.goes_all_the_way:
        new = jax.tree.map(lambda a, b: trees.rounded(a + rate * (b - a), a), old, new)
    if name not in server:
        return new, server
    gradient = optax.tree.sub(old["params"], new["params"])
    steps, states = jax.vmap(optimizer_of(method).update)(gradient, server[name], old["params"])
    moved = {**new, "params": optax.apply_updates(old["params"], steps)}
    states = trees.select(counted, states, server[name])
    return trees.select(counted, moved, old), server | {name: states}


def controlled(method: Method, state: State, federation: Federation) -> Array:
    """The cluster in whose control variate each client's counts; -1 for none. [m] int32

    Clients that arrive in later rounds count too; theirs are still 0. Clients without training examples do not, because
    they take no steps that could be corrected.
    """
    here = ~federation.held_out & (state.round < federation.depart) & (federation.train.size > 0)
    return jnp.where(here & ~faults.excluded(method.aggregate.exclude, state), state.labels, -1)


def with_control_means(method: Method, state: State, federation: Federation) -> State:
    """The clusters' control variates as means of their clients', if clients have changed their cluster or left it.

    A control variate corrects the steps of a cluster's clients without a bias only while it is their mean, and
    `with_new_controls` keeps it so only among the same clients.
    """
    member, everyone = controlled(method, state, federation), jnp.ones(state.labels.shape)
    group = jnp.where(member >= 0, member, trees.count(state.clusters))

    changed = (member != state.clients["controlled"]).any()
    control, own = state.server["control"], state.clients["control"]
    renewed = lambda: onhost.means(group, everyone, everyone, own, control)[0]  # some at a time, wherever they are
    control = jax.lax.cond(changed, renewed, lambda: control)
    return state.replace(server=state.server | {"control": control}, clients=state.clients | {"controlled": member})


def with_new_controls(method: Method, state: State, cohort: Cohort, federation: Federation, change: Models) -> State:
    """The clusters' control variates after a round (Karimireddy et al. 2020, Alg. 1, line 17).

    Args:
        change: how the control variates of the cohort's clients have changed. [s, ...]
    """
    member, k = controlled(method, state, federation), trees.count(state.clusters)
    number = jnp.zeros(k).at[jnp.where(member >= 0, member, k)].add(1.0, mode="drop")
    label = jnp.maximum(member[cohort.who], 0)
    weights = jnp.where(cohort.present & (member[cohort.who] >= 0), 1 / jnp.maximum(number, 1)[label], 0.0)
    control = trees.add_apart(state.server["control"], label, weights, change)
    return state.replace(server=state.server | {"control": control})
