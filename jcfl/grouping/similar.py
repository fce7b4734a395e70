"""Merging on arrival: clients described at an anchor, similar clusters merged (Zeng et al. 2023, Alg. 1, eqs. 2-3)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from jcfl import metrics, trees
from jcfl.core import chunks, engine, faults
from jcfl.core.neutral import grouping_of
from jcfl.core.streams import Stream, stream
from jcfl.grouping import merging
from jcfl.grouping.labels import with_overflow
from jcfl.grouping.psi import MergeMemory, Settings, descriptions, joint_gram, projections, sums_with_clients
from jcfl.types import UNDESCRIBED, Array, Cohort, Federation, Grouping, Key, Model, Models, State

Anew = Callable[[Array, Models, Array], tuple[Array, Models, Array]]
"""What takes the place of clients' Ψ in their clusters' sums; see `exchanged`."""


def merge_similar(settings: Settings, anchor: Callable[[Key, State], Model]) -> Grouping:
    """A client is a cluster of its own when it first takes part; clusters with similar directions of Ψ are merged.

    A client without training examples is in no cluster.

    Args:
        anchor: the function `(key, state) -> model` that makes the anchor model.
    """

    def init(state: State, federation: Federation) -> State:
        key = stream(state.key, Stream.ANCHOR)
        model, k = anchor(key, state), trees.count(state.clusters)
        data = trees.take(chunks.gather(federation, federation.train, jnp.zeros(1, jnp.int32)), 0)
        psi, _ = jax.eval_shape(settings.describe.__call__, model, data, key)
        sums = jax.tree.map(lambda leaf: jnp.zeros((k, *leaf.shape), trees.sum_dtype(leaf)), psi)
        described = jnp.zeros_like(state.labels)
        memory = MergeMemory(model, state.shared, sums, jnp.zeros((k, k)), jnp.zeros(k, bool), key, described)
        memory = memory.replace(tau=jnp.float32(settings.tau))
        return state.replace(memory=memory)

    def before(key: Key, state: State, cohort: Cohort, federation: Federation) -> State:
        changed = jnp.array(False)
        if settings.departures:
            state, changed = after_departures(settings, state, federation)
        if settings.renew is not None:
            state, renewed = after_renewal(settings, state, cohort, federation)
            changed |= renewed
        weights = engine.weights_of(cohort, federation, settings.weigh)
        new = (weights > 0) & (state.labels[cohort.who] < 0)  # a Ψ of no examples is zero, and similar to none
        changed |= new.any() | (settings.tau != state.memory.tau) | settings.every_round
        state = state.replace(memory=state.memory.replace(tau=jnp.float32(settings.tau)))
        order = jnp.argsort(~new, stable=True)  # new clients first, so that chunks without any can be skipped

        def arrive(turn: Array, state: State) -> State:
            # The barrier keeps XLA from computing anything before it is known whether there are new clients.
            who, fresh, _ = jax.lax.optimization_barrier((cohort.who[order], new[order], turn))
            return admit(settings, state, who, fresh, federation)

        return jax.lax.fori_loop(0, changed.astype(int), arrive, state)  # unlike `cond`, a loop copies no models

    def place(state: State, who: Array, federation: Federation) -> Array:
        memory = state.memory
        near = projections(settings, memory, who, federation) * merging.inverse_norm(jnp.diagonal(memory.gram))
        nearest = jnp.where(memory.live, near, -jnp.inf).argmax(-1)  # [h]
        # A Ψ of no examples is zero, and so is one that is not finite: neither is near to any cluster.
        known = (settings.weigh(federation.train.size[who]) > 0) & (near != 0).any(-1)
        return jnp.where(known & memory.live.any(), nearest, -1).astype(jnp.int32)

    def measures(state: State, federation: Federation) -> dict[str, Array]:
        return {"objective": metrics.objective(state.memory.gram, state.memory.live)}

    return grouping_of(init=init, before=before, place=place, measures=measures)


def admit(settings: Settings, state: State, who: Array, new: Array, federation: Federation) -> State:
    """The state after new clients became clusters and similar clusters were merged, with new labels and models.

    A client whose description is not finite cannot be compared: it stays in a cluster of its own.

    Args:
        who: the cohort. [s] int32
        new: which of them are new. [s] bool
    """
    memory, k = state.memory, trees.count(state.clusters)
    gram, psi = joint_gram(settings, memory, who, new, federation)  # [k + s, k + s]
    alive = jnp.concatenate([memory.live, new])
    lone = jnp.concatenate([metrics.sizes(state.labels, k) == 1, new])
    undescribed = alive & lone & (jnp.diagonal(gram) == 0)  # a client's trust, see `descriptions`
    if not settings.goes_on:
        state = faults.with_failure(state, undescribed.any(), UNDESCRIBED)
    target, gram = settings.merge(gram, alive & ~undescribed, settings.tau)

    root = alive & (target == jnp.arange(target.size))
    slot, overflow = assigned_slots(root, k)  # [k + s], only those of roots are used
    to = slot[target]
    source = (
        jnp.full(k, -1, jnp.int32)
        .at[jnp.where(root, slot, k)]
        .set(jnp.arange(target.size, dtype=jnp.int32), mode="drop")
    )
    live = source >= 0  # [k]

    moved = jax.nn.one_hot(jnp.where(memory.live, to[:k], -1), k, axis=0)  # [k, k] old clusters -> slots
    came = jnp.where(new, to[k:], -1)  # [s] new clients -> slots
    sums = sums_with_clients(
        settings, memory, remixed_if_moved(settings, moved, memory.sums), who, came, psi, federation
    )
    gram = jnp.where(live[:, None] & live, gram[source][:, source], 0.0)
    labels = jnp.where(state.labels >= 0, to[jnp.maximum(state.labels, 0)], -1)
    arrived = jnp.where(new, who, labels.size)
    labels = labels.at[arrived].set(to[k:], mode="drop").astype(jnp.int32)
    described = memory.described.at[arrived].set(state.round, mode="drop")
    return with_overflow(state, overflow).replace(
        clusters=merged_models(settings, state, moved, gram),
        server=settings.follow(state.server, moved * trained_members(state, k), memory.first),
        labels=labels,
        memory=memory.replace(sums=sums, gram=gram, live=live, described=described),
    )


def assigned_slots(root: Array, k: int) -> tuple[Array, Array]:
    """A slot for every cluster after merging: old clusters keep their slots, new ones get the free slots in order.

    Args:
        root: which of the k old clusters and s new clients are a cluster after merging. [k + s] bool

    Returns:
        the slots [k + s] int32, and whether there were too few of them.
    """
    kept, fresh = root[:k], root[k:]
    free = jnp.argsort(kept, stable=True)  # free slots first, ascending
    rank = jnp.cumsum(fresh) - 1
    spots = free[jnp.clip(rank, 0, k - 1)]
    return jnp.concatenate([jnp.arange(k), spots]).astype(jnp.int32), fresh.sum() > k - kept.sum()


def merged_models(settings: Settings, state: State, moved: Array, gram: Array) -> Models:
    """Cluster models after merging: means of the old clusters' models, weighted by their members that have trained.

    A cluster in which nobody has trained gets the model of `fresh_start`.

    Args:
        moved: 1 where an old cluster (column) went into a slot (row). [k, k]
        gram: inner products of the new clusters' sums. [k, k]
    """
    weights = moved * trained_members(state, moved.shape[0])
    total = weights.sum(1, keepdims=True)
    mixed = remixed_if_moved(settings, weights / jnp.maximum(total, 1), state.clusters)
    return trees.select(total[:, 0] > 0, mixed, fresh_start(settings, state, mixed, total[:, 0] > 0, gram))


def remixed_if_moved(settings: Settings, weights: Array, stacked: Models) -> Models:
    """`trees.remixed`, but all models stay as they are if no weight [k, k] would add one to another."""
    moves = (weights * (1 - jnp.eye(weights.shape[0])) != 0).any()
    remix = lambda _, stacked: trees.remixed(weights, stacked, settings.parts)
    return jax.lax.fori_loop(0, moves.astype(int), remix, stacked)


def trained_members(state: State, k: int) -> Array:
    """How many members of every cluster have trained. [k] float"""
    return jnp.zeros(k).at[jnp.maximum(state.labels, 0)].add(state.seen & (state.labels >= 0))


def fresh_start(settings: Settings, state: State, mixed: Models, trained: Array, gram: Array) -> Models:
    """The first model of a cluster: the present ω, the initial ω₀, or a copy of the nearest trained cluster's model."""
    k = trained.size
    if settings.start == "initial":
        return trees.stack(state.memory.first, k)
    now = trees.stack(state.shared, k)
    if settings.start == "current":
        return now
    near = jnp.where(trained, gram * merging.inverse_norm(jnp.diagonal(gram)), -jnp.inf)
    return trees.select(trained.any(), trees.take(mixed, near.argmax(1)), now)


def after_departures(settings: Settings, state: State, federation: Federation) -> tuple[State, Array]:
    """The state without departed clients, whose Ψ is subtracted from their cluster's sum (Zeng et al. 2023, §5).

    Clients that are excluded for good leave as if they had departed.

    Returns:
        the state, and whether anybody left. [] bool
    """
    left = lambda state: (federation.depart <= state.round) | faults.excluded(settings.exclude, state)
    gone = lambda state: left(state) & (state.labels >= 0)
    nobody = lambda who, psi, trust: (jnp.zeros(who.size, bool), psi, trust)

    def forget(state: State) -> State:
        after = exchanged(settings, state, gone(state), federation, nobody)
        return after.replace(seen=after.seen & ~(gone(state) & (after.labels < 0)))

    return jax.lax.while_loop(lambda state: gone(state).any(), forget, state), gone(state).any()


def after_renewal(settings: Settings, state: State, cohort: Cohort, federation: Federation) -> tuple[State, Array]:
    """The state after clients of the cohort were described anew whose Ψ is `settings.renew` rounds old or older.

    A client whose new Ψ has a cosine of at least τ with its old one stays in its cluster. Another leaves it, and is
    in no cluster then.

    Returns:
        the state, and whether anybody was described anew. [] bool
    """
    asked = jnp.zeros_like(state.seen).at[cohort.who].max(cohort.present)
    old = lambda state: state.round - state.memory.described >= settings.renew
    due = lambda state: asked & (state.labels >= 0) & old(state)
    least = jnp.minimum(settings.tau, 1 - 1e-5)  # the cosine of a Ψ with itself may be rounded

    def anew(state: State) -> State:
        def alike(who: Array, before: Models, trust: Array) -> tuple[Array, Models, Array]:
            psi, fresh = descriptions(settings, state.memory, who, due(state)[who], federation)
            had, has = trust * trees.row_squares(before), fresh * trees.row_squares(psi)
            near = jnp.greater_equal(jax.vmap(optax.tree.vdot)(before, psi), least * jnp.sqrt(had * has))
            return jnp.where(had * has > 0, near, had == has), psi, fresh  # without a Ψ to compare: if as before

        return exchanged(settings, state, due(state), federation, alike)

    return jax.lax.while_loop(lambda state: due(state).any(), anew, state), due(state).any()


def exchanged(settings: Settings, state: State, due: Array, federation: Federation, anew: Anew) -> State:
    """The state after the Ψ of some clients, as many as are described at a time, were exchanged in the clusters' sums.

    Args:
        due: the clients to choose from, each in a cluster. [m] bool
        anew: for clients `who` [c], their Ψ in the sums [c, ...] and its trust [c]: which of them stay [c], and the Ψ
            and the trust with which they do. The others leave their clusters.
    """
    memory, k = state.memory, trees.count(state.clusters)
    due, who = jax.lax.top_k(due, min(settings.chunk, due.size))
    before, trust = descriptions(settings, memory, who, due, federation.at(memory.described))
    stays, psi, fresh = anew(who, before, trust)
    from_ = jax.nn.one_hot(jnp.where(due, state.labels[who], -1), k, axis=0)  # [k, c]
    to = from_ * stays
    change = optax.tree.sub(trees.sums(to, psi), trees.sums(from_, before))
    cross = trees.inner(change, memory.sums)
    # Only `trust` of a square is in the Gram matrix. A sketch is not of length one, and a zero Ψ is not either.
    noise = (from_ * (trees.row_squares(before) - trust) - to * (trees.row_squares(psi) - fresh)).sum(1)
    gram = memory.gram + cross + cross.T + trees.inner(change, change) + jnp.diag(noise)
    labels = state.labels.at[jnp.where(due & ~stays, who, state.labels.size)].set(-1, mode="drop")
    described = memory.described.at[jnp.where(due & stays, who, labels.size)].set(state.round, mode="drop")
    live = metrics.sizes(labels, k) > 0
    sums = trees.select(live, optax.tree.add(memory.sums, change), jax.tree.map(jnp.zeros_like, memory.sums))
    gram = jnp.where(live[:, None] & live, gram, 0.0)
    return state.replace(labels=labels, memory=memory.replace(sums=sums, gram=gram, live=live, described=described))
