"""Options with values by round: the rounds are those of the values, and what has no meaning is refused."""

import jax
import numpy as np
import optax
import pytest

from jcfl import registry
from jcfl.errors import InputError
from jcfl.methods.fedavg import fedprox
from jcfl.runs import config, experiment, schedules, sweeping
from tests import tiny

TRAIN = {"epochs": 1, "batch_size": 4}
GIVEN = {"model": tiny.task(), "rounds": 4, "budget": 2**30, "evaluate_every": 4}


def test_each_round_has_its_values():
    """Zeng et al. change λ during training (§4.3)."""
    lam, lr = {"0": 0.0, 2: 0.4}, {0: 0.5, 3: 0.1}
    method = {"name": "stocfl", "tau": 0.2, "lam": lam}
    found = experiment.run(tiny.federation(), method=method, train={"lr": lr, **TRAIN}, **GIVEN)
    data = jax.device_put(tiny.federation())
    made = lambda lam, lr: tiny.built("stocfl", tiny.setting(lr=lr, **TRAIN), tau=0.2, lam=lam)
    step = jax.jit(lambda state, lam, lr: made(lam, lr).step(state, data))
    state = jax.jit(made(0.1, 0.1).init)(jax.random.key(0), data)
    for now in ((0.0, 0.5), (0.0, 0.5), (0.4, 0.5), (0.4, 0.1)):
        state = step(state, *now)
    last = jax.tree.map(lambda leaf: np.asarray(leaf)[0], (found.state.shared, found.state.clusters))
    tiny.same(last, (state.shared, state.clusters), 1e-6)


def test_a_sweep_goes_over_values_and_tables():
    over = {"method.mu": [0.5, {0: 0.0, 1: 0.5}], "train.lr": [0.3]}
    found = sweeping.sweep(tiny.federation(), over, **{**GIVEN, "rounds": 2}, method="fedprox", train=TRAIN)
    assert [point.config.method.options["mu"] for point in found.points] == [0.5, {0: 0.0, 1: 0.5}]
    one, other = (history["loss"][0, -1] for history in found.histories)
    assert one != other


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("method.lam={3: 0.1}", r"lam: values by round begin in round 0, got {3: 0.1}; expected {0: …, …}"),
        ("method.lam={0: 0.1, 3: -1}", r"lam: input should be greater than or equal to 0, got -1"),
        ("method.lam={}", r"lam: expected a number, or values by round from round 0 on such as .*, got {}"),
        ("method.lam={0: 0.1, -1: 0.2}", r"lam: expected a number, or values by round"),
        ("method.lam={0.5: 0.1, 0: 1}", r"lam: expected a number, or values by round"),
        ("method.lam={0: a}", r"lam: input should be a valid number.*got 'a'"),
        ("method.capacity={0: 3}", r"capacity: input should be a valid integer"),
        ("scenario.held_out={0: 0.1}", r"held_out: input should be a valid number"),
        ("method.lam={0: 0, 99999999999: 1}", r"lam: expected at most 1000 rounds of at most 9 digits"),
        (
            "train.share={0: 0.5, 1: 1}",
            r"share: cannot change during training.*expected one number, got {0: 0.5, 1: 1}",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(words, said):
    with pytest.raises(InputError, match=said):
        config.read({"scenario": "iid", "method": "stocfl"}, [words])


def test_a_schedule_of_optax_is_offered_values_by_round():
    with pytest.raises(InputError, match=r"lr: expected a number, or values by round .*{0: 0\.1, .*, got <func"):
        config.read({"scenario": "iid", "method": "fedavg", "train": {"lr": optax.cosine_decay_schedule(0.1, 10)}})


def test_steps_by_which_clients_are_described_stay_the_same():
    """Clients of one group would be described by other steps in another round, and not be found alike."""
    method = {"name": "stocfl", "tau": 0.5, "anchor_steps": 5}
    with pytest.raises(InputError, match=r"train\.lr: cannot change .* described by local steps \(anchor_steps\)"):
        experiment.run(tiny.federation(), method=method, train={"lr": {0: 0.5, 3: 0.1}, **TRAIN}, **GIVEN)


def test_an_option_on_which_code_branches_cannot_change(monkeypatch):
    monkeypatch.setitem(registry._TABLES["method"], "branching", branching)
    with pytest.raises(InputError, match=r"method.mu: cannot change during training"):
        experiment.run(tiny.federation(), method={"name": "branching", "mu": {0: 0.1, 1: 0.2}}, **GIVEN)


def branching(*, mu: float = 0.1):
    """A method that looks at its option."""
    return fedprox(mu=mu if mu < 1 else 1.0)


@pytest.mark.parametrize("where", ["init", "step", "predict", "evaluate"])
def test_whichever_function_of_an_algorithm_branches_the_option_is_refused(where):
    def make(values):
        looks = lambda *given: given[0].round if values["method.mu"] < 1 else None
        return tiny.built("fedavg", tiny.setting())._replace(**{where: looks})

    federation = tiny.federation()
    state = jax.eval_shape(tiny.built("fedavg", tiny.setting()).init, jax.random.key(0), federation)
    tables = {"method.mu": {0: 0.1, 1: 0.2}}
    whole = jax.jit(lambda state, federation: getattr(schedules.scheduled(make, tables), where)(state, federation))
    with pytest.raises(InputError, match=r"method.mu: cannot change during training"):
        whole.trace(state, federation)
