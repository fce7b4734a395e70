"""What new clients cost: a round in which all clients are new, and the merging of many clients into clusters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import metrics, registry
from jcfl.fast import slabs
from jcfl.runs.bench.work import (
    compiled_step,
    medians_in_turn,
    next_round,
    seconds_of,
    settled_state,
    table_one,
    tried,
)
from jcfl.runs.plan import Plan
from jcfl.runs.xla import round_options
from jcfl.types import State
from jcfl.types.target import target

TAU = 0.5
"""The threshold of merging: that of Table 1."""


def newcomers(case: str, quick: bool, data_dir: Path | None) -> dict[str, Any]:
    """A round whose clients are all new, a settled one, and the plain inner products of new clients, in turn."""
    plan = tried(table_one(quick, data_dir))
    settled = settled_state(plan)
    step, (products, arguments) = compiled_step(plan, settled), plain_inner_products(plan)
    begun = all_new(plan, step)
    copied = lambda: jax.tree.map(jnp.copy, begun)  # a step takes the state that it is given
    end = step(copied(), plan.federation)
    labels, clusters = np.asarray(end.labels), int(end.memory.live.sum())
    del end

    new, old, plain = medians_in_turn(
        2 if quick else 3,
        lambda: seconds_of(step, copied(), plan.federation)[0],
        next_round(step, settled, plan.federation),
        lambda: seconds_of(products, *arguments)[0],
    )
    return {
        "clients": int((labels >= 0).sum()),
        "new_s": new,
        "settled_s": old,
        "times_settled": new / old,
        "inner_products_s": plain,
        "least_times_settled": (old + plain) / old,
        "clusters": clusters,
        "purity": metrics.purity(labels, plan.federation.groups),
    }


def all_new(plan: Plan, step: Callable[..., State]) -> State:
    """The state after a first round, in which the clients have no cluster again but the clusters are there."""
    (algorithm,) = plan.algorithms.values()
    first = step(jax.jit(algorithm.init)(jax.random.key(0), plan.federation), plan.federation)
    return first.replace(labels=jnp.full_like(first.labels, -1), seen=jnp.zeros_like(first.seen))


def plain_inner_products(plan: Plan) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The products that the inner products of a cohort's gradients need, of numbers that are there already.

    Clients are cut into parts as in `jcfl.fast.slabs`, so that of two parts one product is computed. The columns of one
    slab are used again and again, so that only they take memory.
    """
    population, hidden = plan.context.population, plan.config.model.options["hidden"]
    s, width = population.cohort, min(WIDTH, hidden)
    tile = min(target().of(slabs.TILE), s)
    spans = slabs.part_spans(-(-s // tile) * tile, tile)
    parts = [min(end * tile, s) - begin * tile for begin, end in spans]
    x = jax.random.normal(jax.random.key(0), (s, width * int(np.prod(population.shape))))
    rows = jnp.split(x, np.cumsum(parts)[:-1])

    def passes(rows: list[jax.Array]) -> list[jax.Array]:
        def slab(turn: jax.Array, found: Any):
            rows, sums = jax.lax.optimization_barrier(found)  # else one product is computed for all slabs
            pairs = [(i, j) for i in range(len(rows)) for j in range(i + 1)]
            return rows, [total + rows[i] @ rows[j].T for total, (i, j) in zip(sums, pairs, strict=True)]

        sums = [jnp.zeros((a, b)) for i, a in enumerate(parts) for b in parts[: i + 1]]
        return jax.lax.fori_loop(0, hidden // width, slab, (rows, sums))[1]

    return jax.jit(passes).lower(rows).compile(round_options(plan.context)), (rows,)


WIDTH = 64
"""Hidden units in a slab of the plain inner products."""


def greedy_merging(case: str, quick: bool, data_dir: Path | None) -> dict[str, Any]:
    """Greedy merging of many clients in four groups, from their inner products, and its first search of pairs alone."""
    clients, groups = 300 if quick else 10_000, 4
    group = jnp.arange(clients) % groups
    gram = jax.jit(inner_products)(group)
    alive = jnp.ones(clients, bool)
    group_by = registry.find("group", "merge")
    merge = jax.jit(lambda gram, alive, tau: group_by(tau=tau).merged(gram, alive)).lower(gram, alive, TAU).compile()
    end = merge(gram, alive, TAU)
    target, iterations = np.asarray(end.target), int(end.turn)
    del end
    whole, first = medians_in_turn(
        2 if quick else 3,
        lambda: seconds_of(merge, gram, alive, TAU)[0],
        lambda: seconds_of(merge, gram, alive, 2.0)[0],  # above 1 nothing is merged
    )
    clusters = np.unique(target).size
    return {
        "clients": clients,
        "clusters": clusters,
        "iterations": iterations,
        "merge_s": whole,
        "first_pairs_s": first,
        "times_first_pairs": whole / first,
        "each_merge_ms": 1e3 * (whole - first) / (clients - clusters),
        "purity": metrics.purity(target, np.asarray(group)),
    }


def inner_products(group: jax.Array) -> jax.Array:
    """Inner products of noisy vectors, whose cosine is about 0.67 within a group and 0 between two groups. [m, m]"""
    centre, noise = jax.random.split(jax.random.key(0))
    centres = jax.random.normal(centre, (4, 256))
    vectors = centres[group] + 0.7 * jax.random.normal(noise, (group.size, 256))
    return vectors @ vectors.T
