"""Methods without clusters."""

from typing import Annotated

import jax
import jax.numpy as jnp
from pydantic import Field

from jcfl import engine, evaluation
from jcfl.algorithms.options import WEIGHTS, Averaging, Lam, Mu, SharedUpdate, costs, only, own_average, storable
from jcfl.grouping.rules import alone, grouping, together
from jcfl.objective import linear, own, proximal, shared
from jcfl.phases import composed, voted
from jcfl.registry import register
from jcfl.rounds import by_size, equally, initial, sample
from jcfl.setting import Setting
from jcfl.types import Algorithm, Array, Broadcast, Clients, Cohort, Federation, Grouping, Key, Model, State, Upload

Rate = Annotated[float, Field(gt=0, le=1, description="how far the server goes towards the mean, ε")]


@register("method", "majority")
def majority(setting: Setting) -> Algorithm:
    """Every client predicts the most frequent class of its own training data (no training)."""
    only("majority", setting)

    def init(key: Key, federation: Federation) -> State:
        split = federation.train
        owner = jnp.repeat(jnp.arange(split.size.size), split.size, total_repeat_length=split.rows.size)
        counts = jnp.zeros((setting.clients, federation.classes)).at[owner, federation.y[split.rows]].add(1.0)
        guesses = jnp.log((counts + 1) / (counts + 1).sum(-1, keepdims=True))
        return initial(key, guesses, jnp.zeros(federation.classes), setting.clients)

    def predict(state: State, federation: Federation) -> tuple[Array, Array]:
        return jnp.full(setting.clients, -1), state.clusters[evaluation.owners(federation)]

    def evaluate(state: State, federation: Federation) -> dict[str, Array]:
        return evaluation.figures(setting, state, federation, setting.clients, *predict(state, federation))

    step = lambda state, federation: state.replace(round=state.round + 1)
    return Algorithm(init, step, predict, evaluate, costs(0, 0, 0))


@register("method", "local")
def local(setting: Setting) -> Algorithm:
    """Every client trains alone and is evaluated on its own model (NoFed)."""
    only("local", setting, "finetune", "voting")
    storable("local", setting)
    return composed(setting, alone(), clusters=setting.clients, costs=costs(1, 0, 1))


@register("method", "fedsgd")
def fedsgd(setting: Setting) -> Algorithm:
    """One full-batch gradient per client at the shared model, size-weighted, one server step (McMahan et al. 2017).

    Deviations:
        F's released code took the gradient of two examples per client.
    """
    only("fedsgd", setting, "finetune", "voting", "robust")
    once = setting.local._replace(epochs=None, steps=1, batch_size="full", momentum=0.0)
    return composed(setting._replace(local=once), together(), costs=costs())


@register("method", "fedavg")
def fedavg(
    setting: Setting, *, averaging: Averaging = "by_size", shared_update: SharedUpdate = "parallel"
) -> Algorithm:
    """One model: the size-weighted mean of the clients' local models (McMahan et al. 2017).

    Deviations:
        `shared_update="sequential"` is what StoCFL's released code does with its FedAvg: every client starts from the
        previous one's result and the chain is averaged. It is not federated averaging; it explains that paper's table.
    """
    only("fedavg", setting, "finetune", "voting", "robust")
    chained = shared_update == "sequential"
    if chained:
        own_average("fedavg with shared_update 'sequential'", setting)
    return composed(setting, together(), weigh=WEIGHTS[averaging], chained=chained, costs=costs())


@register("method", "fedprox")
def fedprox(setting: Setting, *, mu: Mu = 0.01, averaging: Averaging = "by_size") -> Algorithm:
    """FedAvg with a proximal term to the round's start (Li et al. 2020).

    Deviations:
        The term has a gradient; in T's and F's released code it had none.
    """
    only("fedprox", setting, "finetune", "voting", "robust")
    return composed(setting, together(), terms=[proximal(own, mu)], weigh=WEIGHTS[averaging], costs=costs())


@register("method", "feddist")
def feddist(setting: Setting, *, epsilon: Rate = 0.6) -> Algorithm:
    """ω ← ω − ε · mean(ω − θ_i), clients counting equally (F's baseline, after Reptile)."""
    only("feddist", setting, "finetune", "voting", "robust")
    return composed(setting, together(), weigh=equally, rate=epsilon, costs=costs())


@register("method", "feddws")
def feddws(setting: Setting, *, epsilon: Rate = 0.6) -> Algorithm:
    """FedDist with clients counting by size (F's baseline)."""
    only("feddws", setting, "finetune", "voting", "robust")
    return composed(setting, together(), weigh=by_size, rate=epsilon, costs=costs())


@register("method", "feddane")
def feddane(setting: Setting, *, mu: Mu = 0.01) -> Algorithm:
    """Clients correct their gradients by a sampled mean gradient: θ ← θ − η(∇f_i(θ) + g − ∇f_i(ω) + μ(θ − ω)).

    Li et al. 2019; F's baseline. g is the size-weighted mean of full gradients at ω.

    Deviations:
        The clients whose gradients make g are sampled apart from those that train.
    """
    only("feddane", setting, "finetune", "voting", "robust")
    gradient = full_gradient(setting)
    return composed(
        setting,
        with_mean_gradient(setting, gradient),
        terms=[linear(lambda sent: jax.tree.map(jnp.subtract, sent.memory, sent.extra)), proximal(own, mu)],
        prepare=lambda sent, data: gradient(sent.cluster, data),
        costs=costs(3, 2, 2),
    )


@register("method", "ditto")
def ditto(setting: Setting, *, lam: Lam = 0.05) -> Algorithm:
    """Personal models tied to a FedAvg model by a proximal term (Li et al. 2021).

    The shared model is trained from copies of its own; a client is evaluated on its personal model.
    """
    only("ditto", setting, "finetune", "voting")
    storable("ditto", setting)
    terms = [proximal(shared, lam)]
    return composed(setting, alone(), clusters=setting.clients, terms=terms, shared="trained", costs=costs(2, 1, 2))


Runs = Annotated[int, Field(ge=2, description="independent runs that vote")]


@register("method", "fedavg_plus")
def fedavg_plus(setting: Setting, *, runs: Runs = 3) -> Algorithm:
    """Independent runs of FedAvg that vote by their mean class probabilities (T §3.5).

    Deviations:
        T's code averages logits.
    """
    only("fedavg_plus", setting, "finetune", "voting", "robust")
    one = fedavg(setting)
    return voted(setting, one, one, runs - 1)


@register("method", "fedprox_plus")
def fedprox_plus(setting: Setting, *, runs: Runs = 3, mu: Mu = 0.01) -> Algorithm:
    """Independent runs of FedProx that vote by their mean class probabilities (T §3.5).

    Deviations:
        T's code averages logits.
    """
    only("fedprox_plus", setting, "finetune", "voting", "robust")
    one = fedprox(setting, mu=mu)
    return voted(setting, one, one, runs - 1)


def full_gradient(setting: Setting):
    """`(model, data of one client) -> ∇f_i`, over all of the client's training data."""
    from jcfl.grouping.anchors import anchor_gradient

    return lambda model, data: anchor_gradient(setting.task, model, data)


def with_mean_gradient(setting: Setting, gradient) -> Grouping:
    """Everybody in one cluster; each round the server first asks a cohort of its own for g, kept as the memory."""

    def slope(sent: Broadcast, data: Clients, key: Key) -> Upload:
        return Upload({**sent.cluster, "params": gradient(sent.cluster, data)}, ())

    def before(key: Key, state: State, cohort: Cohort, federation: Federation) -> State:
        asked = sample(key, setting, state.round, federation)
        view = state.replace(labels=jnp.zeros_like(state.labels))
        visit, _ = engine.visited(view, asked, federation, by_size)
        clusters, _, _ = engine.stream(slope, setting.chunk, key, view, visit, federation, False)
        mean: Model = jax.tree.map(lambda leaf: leaf[0], clusters["params"])
        return state.replace(memory=mean)

    base = together()

    def init(state: State, federation: Federation) -> State:
        return base.init(state, federation).replace(memory=jax.tree.map(jnp.zeros_like, state.shared["params"]))

    return grouping(init=init, before=before, place=base.place)
