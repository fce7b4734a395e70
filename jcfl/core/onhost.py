"""States of clients that stay on the host: which can, and how rounds go through them."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core import averaging, faults
from jcfl.core.chunks import chunked, unchunked
from jcfl.core.context import Context
from jcfl.core.method import Method, reads
from jcfl.core.terms import Proximal
from jcfl.errors import InputError, available_memory
from jcfl.trees.rows import HostRows, HostTable
from jcfl.types import Array, Cohort, Model, Models, State
from jcfl.types.target import target

OWN = "own models"
"""The name of the models of methods in which every client is a cluster of its own."""

LARGE = ("model", "optimizer", "private", "control")
"""The states of clients that can be on the host. All others are on the device, even descriptions as long as a model."""

SHARE = 2
"""Rows are kept in memory if they take at most one part in so many of what is free, and otherwise in a file."""

AT_A_TIME = {"cpu": 2**24, "gpu": 2**28}
"""Bytes of clients' models that are gone through at a time, by platform: on a CPU so few that they stay in its cache.
A GPU takes more, because it starts kernels for each part; its number is not measured."""


def tables(method: Method, context: Context, kept: Mapping[str, Any]) -> dict[str, HostTable]:
    """An empty table for each state that is to be on the host, by name.

    Args:
        kept: the names of the states that the method's clients keep.

    Raises:
        InputError: the method cannot do with rows of its cohort alone.
    """
    if not context.resources.states_on_host:
        return {}
    names = [OWN] * method.group.alone + [name for name in LARGE if name in kept]
    if names:
        refuse(method, context, "model" in names or OWN in names)
    return {name: HostTable(context.population.clients, room()) for name in names}


def room() -> int:
    """How many bytes of rows are kept in memory at most."""
    return available_memory() // SHARE


def refuse(method: Method, context: Context, whole: bool) -> None:
    """Refuse what would need the states of all clients at once.

    Args:
        whole: whether clients' models are on the host, and not only what clients keep beside the common model.

    Raises:
        InputError: the line names it.
    """
    train, aggregate, alone = method.train, method.aggregate, method.group.alone
    goes_all_the_way = aggregate.goes_all_the_way and not aggregate.absent
    is_mean = not aggregate.other_rules and aggregate.server is None and goes_all_the_way
    looks = faults.looks_at_uploads(context.faults, aggregate.exclude)
    reasons = {
        "it has a phase before its own rounds": bool(method.before),
        "several runs vote": method.answer.vote is not None,
        "the cluster models and the global model are trained in turn": train.in_turn,
        "clients train on several devices": context.resources.devices > 1,
        f"models are aggregated by {aggregate}": whole and not (is_mean and not train.tied),
        "uploads are looked at one by one": alone and looks,
        f"the rule of {aggregate} reads what clients keep": any(map(reads, aggregate.other_rules)),
        "no model is trained by all clients": alone and not method.trains_shared,
        "a loss term compares clusters": alone and not all(isinstance(term, Proximal) for term in train.terms),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason is not None:
        raise InputError(f"client_states: host is not possible for {method.name}: {reason}; set client_states: device")


def row_bytes(state: State) -> int:
    """How many bytes the states of all clients on the host take; shapes are enough."""
    parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, HostRows))
    return sum(part.table.bytes for part in parts if isinstance(part, HostRows))


def begun(table: HostTable | None, row: Model, count: int) -> Models:
    """`count` copies of one row: on the device, or in a table. [count, ...]"""
    return trees.stack(row, count) if table is None else table.begin(row)


def with_rows(kept: Models, cohort: Cohort, rows: Models) -> Models:
    """What clients keep, [m, ...], with the cohort's `rows` [s, ...] in place of those of the clients present."""
    place = lambda m: jnp.where(cohort.present, cohort.who, m)
    if isinstance(kept, HostRows):
        return kept.put(place(kept.count), rows)
    return jax.tree.map(lambda old, new: old.at[place(old.shape[0])].set(new, mode="drop"), kept, rows)


def rows_at_a_time(models: Models, like: Model) -> int:
    """How many of the models [m, ...] are gone through at a time; it depends on their sizes and the platform alone.

    Args:
        like: a model.
    """
    return max(1, min(trees.count(models), target().of(AT_A_TIME) // (4 * trees.parameters(like))))


def over_rows(function: Callable[[Models], Any], models: Models, like: Model) -> Any:
    """`function([c, ...]) -> [c, ...]` of all models [m, ...], some at a time. [m, ...]"""
    m, size = trees.count(models), rows_at_a_time(models, like)
    found = jax.lax.map(lambda who: function(trees.take(models, who)), chunked(jnp.arange(m), size))
    return unchunked(found, m)


def means(group: Array, weights: Array, sizes: Array, models: Models, default: Models) -> tuple[Models, Model]:
    """The clusters' means of all models, and the mean of them all, without holding all of them.

    Args:
        group: every client's cluster, k where it is in none. [m] int
        weights: what a client counts in its cluster. [m] float
        sizes: what it counts in the mean of all. [m] float
        models: [m, ...]
        default: the models that clusters without clients keep. [k, ...]
    """
    k, m = trees.count(default), group.size
    like = jax.tree.map(lambda leaf: leaf[0], default)
    near = averaging.shares(group, weights, k)
    wide = sizes / jnp.maximum(sizes.sum(), 1)

    def add(sums: tuple[Models, Model], part: tuple[Array, ...]) -> tuple[tuple[Models, Model], None]:
        who, label, near, wide = part
        rows = trees.for_sums(trees.take(models, who))
        clusters = trees.plus(sums[0], jax.tree.map(lambda leaf: averaging.sum_by(label, near, leaf, k), rows))
        return (clusters, jax.tree.map(jnp.add, sums[1], trees.mean(wide, rows))), None

    start = jax.tree.map(jnp.zeros_like, trees.for_sums((default, like)))
    size = rows_at_a_time(models, like)
    parts = tuple(chunked(array, size) for array in (jnp.arange(m), group, near, wide))
    (clusters, mean), _ = jax.lax.scan(add, start, parts)
    clusters, mean = jax.tree.map(trees.rounded, (clusters, mean), (default, like))
    return trees.select(averaging.sizes(group, k) > 0, clusters, default), mean


def finite_clusters(state: State, cohort: Cohort, apart: bool) -> Array:
    """Whether every number of each cluster's model is finite. [k] bool

    Args:
        apart: whether each client has a cluster of its own, which only its training changes. Then only the cohort's
            models are looked at, because those of all clients take longer to read than some rounds to train.
    """
    if not apart:
        return trees.finite(state.clusters)
    found = trees.finite(trees.take(state.clusters, cohort.who))
    return jnp.ones(trees.count(state.clusters), bool).at[cohort.who].min(found | ~cohort.present)
