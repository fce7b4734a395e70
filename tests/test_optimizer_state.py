"""A client's momentum that outlasts the round."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jcfl import registry
from jcfl.core import context, local
from jcfl.core.local import Local
from jcfl.core.objective import objective
from jcfl.errors import InputError, TooLarge
from jcfl.types import Clients
from tests import tiny

TRAIN = {"epochs": 2, "batch_size": "full", "momentum": 0.9, "lr": 0.1}
KEPT = TRAIN | {"keep_optimizer_state": True}
TURNS = 3


def test_a_client_alone_trains_as_if_there_were_no_rounds():
    """Three rounds of two steps are six steps of optax's SGD; afresh in every round they are not."""
    data = tiny.federation((12,))
    setting = tiny.setting(data=data, **KEPT)
    kept = tiny.run(tiny.built("fedavg", setting), TURNS, data=data)
    rows = data.train.rows[:12]
    batch = Clients(jnp.asarray(data.x[rows]), jnp.asarray(data.y[rows]), jnp.ones(12, bool))
    loss, optimizer = objective(setting.task), optax.sgd(0.1, 0.9)
    params = jax.tree.map(lambda leaf: leaf[0], kept.shared)["params"]
    memory = optimizer.init(params)
    for _ in range(2 * TURNS):
        slope = jax.grad(lambda params: loss(params, {"params": params}, batch, None, jax.random.key(0))[0])(params)
        updates, memory = optimizer.update(slope, memory)
        params = optax.apply_updates(params, updates)
    tiny.same(jax.tree.map(lambda leaf: leaf[-1], kept.shared)["params"], params, 1e-5)
    afresh = tiny.run(tiny.built("fedavg", tiny.setting(data=data, **TRAIN)), TURNS, data=data).shared["params"][
        "head"
    ]["kernel"]
    assert np.abs(afresh[-1] - params["head"]["kernel"]).max() > 1e-2


@pytest.mark.parametrize("method", ["ifca", "stocfl"])
def test_those_who_stay_away_keep_theirs(method):
    """In every round exactly the cohort's states change: of one model, or of the two that StoCFL's clients train."""
    options = {"clusters": 2} if method == "ifca" else {}
    states = tiny.run(tiny.built(method, tiny.setting(0.5, chunk=3, **KEPT), **options), TURNS)
    assert len(states.clients["optimizer"]) == (1 if method == "ifca" else 2)
    leaves = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(states.clients["optimizer"])]
    changed = np.concatenate([leaf[1:] != leaf[:-1] for leaf in leaves], -1).any(-1)  # [rounds, m]
    np.testing.assert_array_equal(changed.sum(1), 4)
    np.testing.assert_array_equal(changed[0], states.seen[1])


def test_clusters_of_one_client_are_clients_that_train_alone():
    """The average of one model is that model, whoever else takes part."""
    sizes = (12, 9)
    both = tiny.run(
        tiny.built("local", tiny.setting(data=tiny.federation(sizes), **KEPT)), TURNS, data=tiny.federation(sizes)
    )
    assert np.isfinite(both.clusters["params"]["head"]["kernel"]).all()
    setting = tiny.setting(data=tiny.federation(sizes), **TRAIN | {"epochs": 2 * TURNS})
    once = tiny.run(tiny.built("local", setting), 1, data=tiny.federation(sizes))
    last = lambda states: jax.tree.map(lambda leaf: leaf[-1], states.clusters)
    tiny.same(last(both), last(once), 1e-5)


def test_what_cannot_be_kept_is_refused(monkeypatch):
    with pytest.raises(InputError, match="which is 0; set momentum"):
        tiny.setting(**TRAIN | {"momentum": 0.0, "keep_optimizer_state": True})
    setting = tiny.setting(**KEPT)
    with pytest.raises(InputError, match="train one after another"):
        tiny.built("stocfl", setting, shared_update="sequential")
    with monkeypatch.context() as patch, pytest.raises(TooLarge, match=r"keep_optimizer_state of each of 8 clients"):
        patch.setattr(context, "free_memory", lambda: 1000)
        tiny.built("fedavg", setting)
    registry.load()
    mlp = registry.find("model", "mlp")((4, 4, 1), 10, hidden=3)
    with pytest.raises(InputError, match="'factored' cannot be used: clients do not train by plain SGD"):
        tiny.built("fedavg", setting.with_context(task=mlp, engine="factored"))

    class Own(Local):
        def train(self, *given):
            return super().train(*given)

    with pytest.raises(InputError, match="in a way of their own"):
        tiny.built("fedavg", setting.with_context(trainer=Own(*setting.context.trainer)))


@pytest.mark.parametrize(
    ("trainer", "optimizer"),
    [
        (local.adam(lr=0.1, epochs=2, b1=0.8, weight_decay=0.1), optax.adamw(0.1, 0.8, weight_decay=0.1)),
        (local.by_name(optimizer="lion", lr=0.1, epochs=2, options={"b2": 0.9}), optax.lion(0.1, b2=0.9)),
    ],
    ids=["adam", "lion"],
)
def test_other_optimizers_take_the_steps_of_optax(trainer, optimizer):
    """One client, two full-batch steps a round; the moments begin anew in every round."""
    data = tiny.federation((12,))
    setting = tiny.setting(data=data, **TRAIN)
    setting = setting._replace(context=setting.context._replace(trainer=trainer))
    found = tiny.run(tiny.built("fedavg", setting), 2, data=data).shared["params"]
    rows = data.train.rows[:12]
    batch = Clients(jnp.asarray(data.x[rows]), jnp.asarray(data.y[rows]), jnp.ones(12, bool))
    loss, params = objective(setting.task), jax.tree.map(lambda leaf: leaf[0], found)
    memory = optimizer.init(params)
    for turn in range(4):
        memory = optimizer.init(params) if turn % 2 == 0 else memory
        slope = jax.grad(lambda params: loss(params, {"params": params}, batch, None, jax.random.key(0))[0])(params)
        updates, memory = optimizer.update(slope, memory, params)
        params = optax.apply_updates(params, updates)
    tiny.same(jax.tree.map(lambda leaf: leaf[-1], found), params, 1e-5)


def test_the_factored_engine_is_for_sgd():
    setting = tiny.setting()
    context = setting.context._replace(trainer=local.adam(), engine="factored")
    with pytest.raises(InputError, match="cannot be used"):
        tiny.built("fedavg", setting._replace(context=context))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "loin"}, "did you mean 'lion'"),
        ({"optimizer": "lion", "options": {"b3": 0.9}}, "b1, b2"),
        ({"optimizer": "lion", "options": {"b1": "a"}}, "refuses"),
        ({"optimizer": "lbfgs"}, "refuses"),
        ({"epochs": 1, "steps": 2}, "epochs or steps"),
    ],
)
def test_optimizers_that_optax_does_not_have_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        local.by_name(**options)
