"""Stop conditions: when training ends, what the rounds after it are, and what is refused."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jcfl
from jcfl import trees
from jcfl.core.faults import Faults
from jcfl.core.phases import with_votes
from jcfl.core.reliability import Reliability
from jcfl.core.rounds import initial
from jcfl.core.stopping import Converged, with_stop
from jcfl.errors import InputError
from jcfl.runs import accounting, loop
from jcfl.runs.plan import config_and_objects, planned
from jcfl.types import NEVER, Algorithm, Drift
from tests import tiny
from tests.groups import at, paths, two_groups

TURNS = 30
QUICK = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 4},
    "method": {"name": "ifca", "clusters": 2},
    "rounds": 12,
}
ROTATED = {"scenario": {"name": "rotated", "clients": 6, "angles": [0, 180], "scale": "standard"}}
LIMIT = {"name": "converged", "rounds": 2, "change": 0.02}


def flat(states, round: int) -> np.ndarray:
    """All models after a round, as one vector."""
    return np.concatenate([np.ravel(leaf[round]) for leaf in jax.tree.leaves((states.clusters, states.shared))])


def end_of(states, rule: Converged, first: int = 1) -> int:
    """The round at which a rule ends training, by a plain loop over the states of a run without it."""
    unchanged = 0
    for round in range(first, TURNS + 1):
        new, old = flat(states, round), flat(states, round - 1)
        moved = np.mean(states.labels[round] != states.labels[round - 1])
        near = np.linalg.norm(new - old) <= rule.change * np.linalg.norm(old) and moved <= rule.moves
        unchanged = unchanged + 1 if near else 0
        if unchanged == rule.rounds:
            return round
    return NEVER


@pytest.fixture(scope="module")
def unstopped():
    """IFCA that half of the clients take part in, and its states without a stop condition."""
    algorithm = tiny.built("ifca", tiny.setting(participation=0.5), clusters=2)
    return algorithm, tiny.run(algorithm, TURNS)


@pytest.mark.parametrize(("rounds", "change", "moves"), [(2, 0.08, 0.0), (1, 0.11, 1.0)])
def test_training_ends_where_a_plain_loop_ends_and_nothing_changes_after_it(unstopped, rounds, change, moves):
    rule = Converged(rounds=rounds, change=change, moves=moves)
    algorithm, plain = unstopped
    stopped = tiny.run(with_stop(algorithm, rule), TURNS)
    end = end_of(plain, rule)
    assert 2 < end < TURNS
    assert stopped.ended.tolist() == [NEVER] * end + [end] * (TURNS + 1 - end)
    assert stopped.round.tolist() == list(range(TURNS + 1))
    trained = np.minimum(np.arange(TURNS + 1), end)
    tiny.same(stopped.replace(round=(), stopping=()), jax.tree.map(lambda leaf: leaf[trained], plain.replace(round=())))


def test_a_share_of_clients_that_move_is_compared_exactly():
    """Rounded in single precision, 3 of 30 clients would be more than a tenth, and 9 of 11 more than nine elevenths."""
    still = {"params": {"w": jnp.ones((1, 3))}}
    state = lambda labels: SimpleNamespace(clusters=still, shared=trees.take(still, 0), labels=labels)
    near = jax.jit(lambda old, new, moves: Converged(moves=moves).is_unchanged(state(old), state(new)))
    for moved, clients in ((3, 7), (9, 11), (3, 15), (3, 30)):
        new = (np.arange(clients) < moved).astype(np.int32)
        assert near(np.zeros_like(new), new, moved / clients)
        assert not near(np.zeros_like(new), new, (moved - 0.5) / clients)


@pytest.mark.parametrize(("growth", "is_near"), [(0.0, True), (1.0, False)])
def test_only_parameters_converge(growth, is_near):
    """A counter of training steps grows in every round, and the larger it is, the less a change of parameters shows."""

    def after(counter, size):
        model = {"params": {"w": jnp.full((1, 3), size)}, "state": {"steps": jnp.array([counter])}}
        return SimpleNamespace(clusters=model, shared=trees.take(model, 0), labels=jnp.zeros(4, int))

    before = 10 if is_near else 10**6
    assert Converged().is_unchanged(after(before, 1.0), after(before + 1, 1.0 + growth)) == is_near


def test_a_warm_up_is_no_convergence():
    """In a warm-up the cluster models stay as they are. No change is less than nothing, so one run does not end."""
    rule = Converged(rounds=2, change=0.08, moves=1.0)
    algorithm = tiny.built("ifca", tiny.setting(extras=({"name": "cam", "warmup": 8},)), clusters=2)
    stop_at = lambda moves: with_stop(algorithm, dataclasses.replace(rule, moves=moves))
    plain, stopped = tiny.swept(stop_at, (-1.0, rule.moves), TURNS)
    assert plain.ended[-1] == NEVER
    assert end_of(plain, rule) <= 8 < end_of(plain, rule, first=9) < TURNS
    assert stopped.ended[-1] == end_of(plain, rule, first=9)


def test_runs_that_vote_together_end_when_all_have_converged():
    """One model moves in 2 rounds, that of the other run in 6, the first of which is not yet of the method's own."""

    def moving(rounds, began=0):
        def init(key, federation):
            model = lambda *shape: {"params": {"w": jnp.ones(shape)}}
            return initial(key, model(1, 3), model(3), 8).replace(began=jnp.int32(began))

        def step(state, federation):
            moved = jax.tree.map(lambda leaf: leaf + (state.round < rounds), state.clusters)
            return state.replace(clusters=moved, round=state.round + 1)

        return Algorithm(init, step, None, None, None)

    together = lambda *runs: with_votes(tiny.setting().context, *runs, 1, "logits")
    rule, ended = Converged(rounds=2), lambda algorithm: tiny.run(with_stop(algorithm, rule), 10).ended[-1]
    assert ended(moving(2)) == 4
    assert ended(together(moving(2), moving(6))) == 8
    assert ended(together(moving(6), moving(2))) == 8
    assert ended(together(moving(2), together(moving(2), moving(2, began=5)))) == 7


def test_a_round_without_an_upload_is_no_convergence():
    """Any change is small enough here, so training ends at the third round in which an upload arrives."""
    unreliable = Faults(reliability=Reliability(dropout=0.8))
    algorithm = tiny.built("fedavg", tiny.setting(participation=0.125).with_context(faults=unreliable))
    stopped = tiny.run(with_stop(algorithm, Converged(rounds=3, change=1e6)), TURNS)
    trained = [turn for turn in range(1, TURNS + 1) if (flat(stopped, turn) != flat(stopped, turn - 1)).any()]
    assert len(trained) == 3 < trained[-1] - 3
    assert stopped.ended[-1] == trained[-1]


@pytest.fixture(scope="module")
def stopping():
    """A run that ends by itself."""
    return jcfl.run({**QUICK, **ROTATED, "stop": LIMIT}, seed=1)


def test_every_seed_ends_by_itself_and_metrics_are_those_of_its_last_round(stopping):
    several = jcfl.run({**QUICK, **ROTATED, "stop": LIMIT}, seed=1, seeds=3)
    ends = several["trained_rounds"][:, -1]
    assert len(set(ends)) > 1
    assert ends.max() < 12
    np.testing.assert_array_equal(stopping["accuracy_micro"][0], several["accuracy_micro"][0])
    free = jcfl.run({**QUICK, **ROTATED}, seed=1, seeds=3)
    for seed, end in enumerate(ends.astype(int)):
        expected = free["loss"][seed, np.minimum(np.arange(12), end - 1)]
        np.testing.assert_array_equal(several["loss"][seed], expected)
    assert several.summary["trained_rounds"]["mean"] == pytest.approx(ends.mean())


def test_a_run_that_ended_is_not_evaluated_again_and_goes_on_as_it_ended(stopping, tmp_path, monkeypatch):
    counted = []
    evaluated = loop.evaluated
    monkeypatch.setattr(loop, "evaluated", lambda *args: counted.append(args[-1]) or evaluated(*args))
    config = {**QUICK, **ROTATED, "stop": LIMIT, "seed": 1}
    end = int(stopping["trained_rounds"][0, -1])
    jcfl.run({**config, "rounds": end + 1}, out=tmp_path / "run")
    assert counted == list(range(1, end + 1))
    resumed = jcfl.run(config, out=tmp_path / "run", resume=True)
    assert counted == [*range(1, end + 1), end + 2], "a run that goes on is evaluated once more"
    assert resumed.rounds.tolist() == stopping.rounds.tolist()
    for name in ("loss", "accuracy_micro", "trained_rounds"):
        np.testing.assert_array_equal(resumed[name], stopping[name])


def test_models_are_compared_after_a_round_that_comes_after_the_end_of_training():
    """They are those of the last round trained, as the metrics are. Before, all cosines were zero."""
    stopped = with_stop(tiny.built("fedavg", tiny.setting().with_context(models_at=(2, 5))), Converged())
    data = jax.device_put(tiny.federation())

    @jax.jit
    def cosines(round, ended):
        state = stopped.init(jax.random.key(0), data)
        state = state.replace(round=round, stopping=state.stopping.replace(round=ended))
        return stopped.evaluate(state, data)["model_cosine"]

    for round, ended, is_compared in [(5, NEVER, True), (5, 3, True), (5, 1, True), (3, NEVER, False), (3, 5, False)]:
        assert (cosines(round, ended) != 0).all() == is_compared, (round, ended)


@pytest.mark.parametrize(("trained", "accuracy"), [(3, 0.75), (6, 1.0)])
def test_a_client_that_departs_after_the_end_of_training_stays_in_the_metrics(trained, accuracy):
    """All metrics after the end are those of the last round trained. The client that departs has a wrong model."""
    federation, counts = two_groups((3,) * 4, tests=2, depart={0: 4}), np.zeros((1, 4, 3, 4), int)
    counts[..., 1:, 0] = 2
    counts[0, 1:, 0, 0] = 2
    found = {"labels": np.zeros((1, 4), int), "counts": counts, "losses": np.ones((1, 4))}
    found |= {"seen": np.ones((1, 4), bool), "unanswered": np.zeros((1, 4), int), "trained_rounds": np.array([trained])}
    (record,) = loop.records(found, federation, loop.LoopSettings([0], 6, [6], loop.Clock()), 6)
    assert record.round == 6
    assert record.scores["accuracy_micro"] == accuracy


def test_rounds_after_the_end_cost_no_privacy():
    config = {**QUICK, **ROTATED, "method": "fedavg", "privacy": {"clip": 0.001, "noise": 1.0}}
    ended = jcfl.run(config, stop={"name": "converged", "rounds": 2, "change": 0.5})
    assert ended["trained_rounds"][0, -1] == 2
    plan = planned(*config_and_objects(config, {}))
    (algorithm,) = plan.algorithms.values()
    cost = [accounting.epsilon_after(algorithm.method, plan.context, plan.federation, done) for done in (1, 2, 3)]
    assert cost[0] < cost[1] < cost[2]
    np.testing.assert_allclose(ended["epsilon"][0], [cost[0], *[cost[1]] * 11], rtol=1e-6)


def test_what_cannot_converge_is_refused():
    drifting = dataclasses.replace(
        tiny.federation(),
        drift=Drift(jnp.array([2]), jnp.stack([jnp.arange(8), jnp.arange(8)[::-1]])),
    )
    with pytest.raises(InputError, match="data change between rounds"):
        jcfl.run(drifting, method="fedavg", rounds=2, stop="converged")
    with pytest.raises(InputError, match="did you mean 'converged'"):
        jcfl.run({**QUICK, **ROTATED, "stop": "converge"})
    with pytest.raises(InputError, match="change: input should be greater than or equal to 0"):
        jcfl.run({**QUICK, **ROTATED, "stop": {"name": "converged", "change": -1}})
    with pytest.raises(InputError, match="set client_states: device"):
        jcfl.run({**QUICK, **ROTATED, "method": "local", "stop": "converged", "client_states": "host"})


def test_training_goes_on_until_the_last_client_has_arrived():
    """Clients of the second group come late, when the models of the first have not changed for long."""
    federation = two_groups(arrive={1: 20, 3: 20, 5: 20, 7: 20})
    stop = {"name": "converged", "rounds": 3, "change": 0.05}
    (path,) = paths([federation], "fedavg", rounds=30, stop=stop)
    assert at(path, 1).ended > 20
