"""Methods made of whole methods: one after another, or side by side."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from jcfl import evaluation, registry, trees
from jcfl.grouping.rules import alone, together
from jcfl.rounds import Pieces, clustered, gathered
from jcfl.setting import Extras, Setting
from jcfl.types import Algorithm, Array, Cohort, Federation, Grouping, Key, State


def composed(
    setting: Setting,
    grouping: Grouping,
    *,
    warm: Literal["shared", "alone"] = "shared",
    costs: dict[str, float],
    **choices: Any,
) -> Algorithm:
    """A method from its pieces, with what its add-ons put before it and beside it.

    Args:
        warm: what CAM's rounds of warm-up train: the shared model, or every client by itself.
        costs: of one client-round without add-ons.
        **choices: as `Pieces`.
    """
    extras = setting.extras
    k = choices.get("clusters", 1)
    for dearer in extras.costs:
        costs = dearer(costs, k)
    algorithm = clustered(setting, grouping, costs=costs | {"warmup": extras.warmup}, **choices)
    if extras.warmup and warm == "alone":
        algorithm = warmed_alone(setting, grouping, algorithm, **choices)
    elif extras.warmup:
        algorithm = warmed_shared(setting, algorithm)
    if extras.votes is None:
        return algorithm
    name, options = extras.votes
    beside = setting._replace(extras=Extras(tune=extras.tune))
    other = registry.find("method", name)(beside, **registry.options("method", name, options)) if name else algorithm
    return voted(setting, algorithm, other, 1)


def warmed_shared(setting: Setting, algorithm: Algorithm) -> Algorithm:
    """`algorithm` after rounds of FedAvg for its shared model, cluster models untouched (T Alg. 5, as for IFCA-CAM)."""
    first = clustered(setting._replace(extras=Extras()), together())

    def warm(state: State, federation: Federation) -> State:
        view = state.replace(
            clusters=jax.tree.map(lambda leaf: leaf[None], state.shared), labels=jnp.zeros_like(state.labels)
        )
        after = first.step(view.replace(memory=(), local=(), optimizer=()), federation)
        return state.replace(shared=after.shared, round=after.round, failed=after.failed)

    return then(setting.extras.warmup, warm, algorithm)


def warmed_alone(setting: Setting, grouping: Grouping, algorithm: Algorithm, **choices: Any) -> Algorithm:
    """`algorithm` after rounds in which every client trains by itself, and one clustering (T Alg. 5, as for FeSEM-CAM).

    Args:
        **choices: the method's, as `Pieces`; its clients' models are stored.
    """
    first, pieces, rounds = (
        clustered(setting._replace(extras=Extras()), alone()),
        Pieces(**choices),
        setting.extras.warmup,
    )
    everyone = jnp.arange(setting.clients)

    def warm(state: State, federation: Federation) -> State:
        view = state.replace(clusters=state.local, labels=everyone.astype(jnp.int32), local=(), memory=(), optimizer=())
        after = first.step(view, federation)
        state = state.replace(local=after.clusters, round=after.round, failed=after.failed, seen=after.seen)
        return jax.lax.cond(state.round == rounds, lambda: cluster(state, federation), lambda: state)

    def cluster(state: State, federation: Federation) -> State:
        members = Cohort(everyone, state.seen & (state.round <= federation.depart))
        assert grouping.after is not None
        grouped = grouping.after(jax.random.fold_in(state.key, 2**31 - 4), state, members, federation, state.local)
        clusters, total = gathered(pieces, grouped, members, federation, state.local)
        return grouped.replace(clusters=trees.select(total > 0, clusters, grouped.clusters))

    return then(rounds, warm, algorithm)


def then(rounds: int, warm, algorithm: Algorithm) -> Algorithm:
    """`warm` for some rounds, then the algorithm's own steps."""
    if not rounds:
        return algorithm

    def step(state: State, federation: Federation) -> State:
        return jax.lax.cond(state.round < rounds, warm, algorithm.step, state, federation)

    return algorithm._replace(step=step)


class Votes(struct.PyTreeNode):
    """The memory of runs that vote."""

    own: Any  # the main run's
    others: State  # [v, ...] the other runs


def voted(setting: Setting, main: Algorithm, other: Algorithm, copies: int) -> Algorithm:
    """`main` and `copies` independent runs of `other`, which answer by the mean of their class probabilities.

    Clusters and labels are those of `main`.

    Deviations:
        T's code averages logits.
    """

    def init(key: Key, federation: Federation) -> State:
        keys = jax.random.split(key, copies + 1)
        state = main.init(keys[0], federation)
        return state.replace(memory=Votes(state.memory, jax.vmap(other.init, (0, None))(keys[1:], federation)))

    def step(state: State, federation: Federation) -> State:
        own, others = (
            main.step(own_state(state), federation),
            jax.vmap(other.step, (0, None))(state.memory.others, federation),
        )
        bad = jnp.where((others.failed[:, 0] >= 0).any(), others.failed.max(0), own.failed)
        failed = jnp.where(own.failed[0] >= 0, own.failed, bad)
        return own.replace(memory=Votes(own.memory, others), failed=failed)

    def predict(state: State, federation: Federation) -> tuple[Array, Array]:
        labels, logits = main.predict(own_state(state), federation)
        _, more = jax.vmap(other.predict, (0, None))(state.memory.others, federation)  # [v, r, c]
        chances = jax.nn.softmax(jnp.concatenate([logits[None], more])).mean(0)
        return labels, jnp.log(jnp.maximum(chances, jnp.finfo(chances.dtype).tiny))

    def evaluate(state: State, federation: Federation) -> dict[str, Array]:
        own = main.evaluate(own_state(state), federation)
        k = trees.count(state.clusters)
        return own | evaluation.figures(setting, state, federation, k, *predict(state, federation))

    shares = ("storage", "communication", "computation")
    costs = main.costs | {name: main.costs[name] + copies * other.costs[name] for name in shares}
    return Algorithm(init, step, predict, evaluate, costs, main.engine)


def own_state(state: State) -> State:
    """The main run's state, without the others'."""
    return state.replace(memory=state.memory.own)
