"""What a trainer and a server's optimizer of one's own keep between rounds."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jcfl.core.local import Local
from jcfl.core.method import Aggregate, Piece
from jcfl.errors import InputError
from jcfl.methods import fedavg
from tests import plain, tiny
from tests.test_oracles import CLIENTS, first_of, setting
from tests.test_stocfl import cohorts

DATA = tiny.federation()
ALPHA = 0.4


def zeros(params):
    return jax.tree.map(jnp.zeros_like, params)


def sums(tree):
    return jax.tree.map(jnp.sum, tree)


@dataclass(frozen=True, kw_only=True)
class Server(Piece):
    """A transformation of two functions."""

    name: ClassVar[str] = "own"
    init: Any = zeros
    update: Any = lambda gradient, state, params=None: (gradient, state)

    def transformation(self):
        return optax.GradientTransformation(self.init, self.update)


def with_server(server):
    return replace(fedavg(), aggregate=Aggregate(weights="equally", server=server))


def trainer(fresh=zeros, resume=lambda memory: memory, model=lambda model: model):
    """SGD that keeps what is made of what it kept before."""

    class Own(Local):
        def fresh_state(self, start):
            return fresh(start["params"])

        def resume(self, objective, start, memory, sent, data, key):
            found = Local(*self).train(objective, start, sent, data, key)
            return model((found, resume(memory)))

    return Own(plain.LR, plain.EPOCHS, None, "full", 0.0, 0.0, True)


def traced(method, here):
    algorithm = tiny.built(method, here)
    return jax.eval_shape(algorithm.step, jax.eval_shape(algorithm.init, jax.random.key(0), DATA), DATA)


SERVERS = {
    "no transformation": (type("Own", (), {"transformation": lambda self: None})(), r"Own: transformation: .*got None"),
    "a state of text": (Server(init=lambda params: "text"), "Server: init: expected an array or a number; got 'text'"),
    "a number for a layer": (
        Server(update=lambda gradient, state, params=None: (sums(gradient), state)),
        r"Server: update: steps: expected body.bias as float32 \[6\]; got float32 \[\]",
    ),
    "a state of numbers": (
        Server(update=lambda gradient, state, params=None: (gradient, sums(state))),
        r"Server: update: state: expected body.bias as float32 \[6\]; got float32 \[\]",
    ),
    "a state in another container": (
        Server(init=lambda params: (0.0,), update=lambda gradient, state, params=None: (gradient, [state[0]])),
        "Server: update: state: expected PyTreeDef",
    ),
    "steps alone": (
        Server(update=lambda gradient, state, params=None: gradient),
        r"Server: update: expected \(steps, state\), got {'body'",
    ),
}


@pytest.mark.parametrize("which", SERVERS)
def test_what_a_server_s_optimizer_returns_is_checked(which):
    """A number would be subtracted from a whole layer, and spread over a layer's moments, without a word."""
    server, said = SERVERS[which]
    with pytest.raises(InputError, match=f"^aggregate.server {said}"):
        traced(with_server(server), tiny.setting())


TRAINERS = {
    "a state of text": (trainer(fresh=lambda params: "text"), "fresh_state: expected an array or a number; got 'text'"),
    "a state of numbers": (
        trainer(resume=sums),
        r"resume: state: expected body.bias as float32 \[6\]; got float32 \[\]",
    ),
    "another precision": (
        trainer(resume=lambda memory: jax.tree.map(lambda leaf: leaf.astype(jnp.float16), memory)),
        r"resume: state: expected body.bias as float32 \[6\]; got float16 \[6\]",
    ),
    "a model alone": (trainer(model=lambda found: found[0]), r"resume: expected \(model, state\), got {'params'"),
    "no whole model": (
        trainer(model=lambda found: (found[0]["params"], found[1])),
        r"expected params.body.bias, float32 \[6\]; got body.bias",
    ),
}


@pytest.mark.parametrize("which", TRAINERS)
def test_what_a_trainer_keeps_is_checked(which):
    """Half precision would become single precision, and a number would fill a row, without a word."""
    own, said = TRAINERS[which]
    with pytest.raises(InputError, match=f"^trainer Own: {said}"):
        traced(fedavg(), tiny.setting().with_context(trainer=own))


def test_states_may_be_numbers():
    server = Server(init=lambda params: 0, update=lambda gradient, state, params=None: (gradient, state + 1))
    own = trainer(fresh=lambda params: 0.5, resume=lambda memory: memory / 2)
    state = traced(with_server(server), tiny.setting().with_context(trainer=own))
    assert state.server["optimizer"].shape == (1,) and state.clients["optimizer"][0].shape == (8,)


def feddyn(share):
    """FedDyn (Acar et al. 2021, Alg. 1): clients keep a slope, the server keeps a shift."""

    def update(gradient, shift, params=None):
        shift = jax.tree.map(lambda a, b: a + ALPHA * share * b, shift, gradient)
        return jax.tree.map(lambda a, b: -a - b / ALPHA, gradient, shift), shift

    class Dyn(Local):
        def fresh_state(self, start):
            return zeros(start["params"])

        def resume(self, objective, start, memory, sent, data, key):
            def loss(params, model, batch, sent, key):
                value, after = objective(params, model, batch, sent, key)
                gap = optax.tree.sub(params, start["params"])
                return value - optax.tree.vdot(memory, params) + ALPHA / 2 * optax.tree.norm(gap, squared=True), after

            found = Local(*self).train(loss, start, sent, data, key)
            gap = optax.tree.sub(found["params"], start["params"])
            return found, jax.tree.map(lambda a, b: a - ALPHA * b, memory, gap)

    return with_server(Server(update=update)), Dyn(plain.LR, plain.EPOCHS, None, "full", 0.0, 0.0, True)


def test_states_of_clients_and_of_the_server_are_those_of_a_plain_loop():
    method, own = feddyn(share=0.5)
    here = setting(0.5).with_context(trainer=own)
    states = tiny.run(tiny.built(method, here), 4)
    model = first_of(states)
    slopes, shift = np.zeros((8, model.size)), np.zeros(model.size)
    for turn, who in enumerate(cohorts(here, states, DATA), 1):
        extra = lambda i, start=model: lambda vector: ALPHA * (vector - start) - slopes[i]
        gaps = {i: plain.trained(model, CLIENTS[i], extra(i)) - model for i in who}
        for i in who:
            slopes[i] -= ALPHA * gaps[i]
        shift -= ALPHA / 8 * sum(gaps.values())
        model = model + np.mean([*gaps.values()], 0) - shift / ALPHA
        np.testing.assert_allclose(plain.vectors(states.shared, 1)[turn], model, rtol=0, atol=1e-5)
        kept = plain.vectors({"params": states.clients["optimizer"][0]}, 2)[turn]
        np.testing.assert_allclose(kept, slopes, rtol=0, atol=1e-5)
    assert (slopes != 0).any(1).sum() > 4
