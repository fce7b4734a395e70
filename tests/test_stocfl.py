"""StoCFL against a plain loop, and what its server remembers."""

import functools

import jax
import numpy as np
import pytest

from jcfl import methods as methods
from jcfl import metrics
from jcfl.core import rounds
from jcfl.errors import TrainingError
from jcfl.types import NEVER
from tests import oracle, tiny
from tests.groups import run, split_as, state, two_groups


def grouping(setting, **options):
    """StoCFL that groups clients and trains nothing, which compiles in half of the time."""
    return tiny.built("stocfl", setting, clustering_only=True, **options)


@functools.cache
def all_asked():
    """The states of a round with all clients, none of them merged, and with τ = 0.3; see `grouping`."""
    return tiny.swept(lambda tau: grouping(tiny.setting(), tau=tau), (1.1, 0.3), 1)


@pytest.fixture
def gram():
    """The inner products of all clients' Ψ. [8, 8]"""
    return all_asked()[0].memory.gram[-1]


def cohorts(algorithm_setting, states, data):
    """The ids that took part in every round, as the run itself drew them."""
    keys = states.key[0]
    run_key = jax.random.wrap_key_data(keys)
    for turn in range(len(states.round) - 1):
        pick, _, _ = jax.random.split(jax.random.fold_in(run_key, turn), 3)
        cohort = rounds.sample(pick, algorithm_setting.context.population, jax.device_put(data).available(turn))
        yield np.asarray(cohort.who)[np.asarray(cohort.present)]


PLAIN = {"batch_size": "full", "epochs": 3}
TAUS = {0.375: (0.35, 0.6), 1.0: (0.2,)}
"""By the share of the clients that take part."""


@functools.cache
def trained(participation):
    """The states of runs with `TAUS`."""
    setting = tiny.setting(participation, **PLAIN)
    runs = tiny.swept(lambda tau: tiny.built("stocfl", setting, tau=tau, lam=0.2), TAUS[participation], 5)
    return dict(zip(TAUS[participation], runs, strict=True))


@pytest.mark.parametrize(("participation", "tau"), [(part, tau) for part, taus in TAUS.items() for tau in taus])
def test_agrees_with_a_plain_loop(participation, tau):
    data, setting, states = tiny.federation(), tiny.setting(participation, **PLAIN), trained(participation)[tau]
    clients = [
        (data.x[rows].reshape(len(rows), -1).astype(float), data.y[rows])
        for rows in (data.train.rows[a : a + n] for a, n in zip(data.train.start, data.train.size, strict=True))
    ]
    first = jax.tree.map(lambda leaf: leaf[0].astype(float), states.shared)
    expected = oracle.stocfl(first, clients, cohorts(setting, states, data), tau, 0.2, 0.5, 3)
    found = set()
    for turn, (clusters, shared) in enumerate(expected, 1):
        labels = states.labels[turn]
        tiny.same(jax.tree.map(lambda leaf: leaf[turn], states.shared), shared, 1e-5)
        for members, model in clusters:
            assert len(set(labels[members])) == 1, (turn, members, labels)
            tiny.same(jax.tree.map(lambda leaf: leaf[turn, labels[members[0]]], states.clusters), model, 1e-5)
        assert len({labels[members[0]] for members, _ in clusters}) == len(clusters)
        assert sorted(i for members, _ in clusters for i in members) == list(np.flatnonzero(labels >= 0))
        found.add(len(clusters))
    assert max(found) > 1 or tau < 0.3


def test_a_global_model_that_is_handed_on_pulls_as_it_was_at_the_beginning_of_the_round():
    """`shared_update: sequential` is the authors' code: cluster models are pulled to the round's ω, then ω goes on."""
    data, lam, lr, epochs = tiny.federation(), 1.0, 0.5, 2
    setting = tiny.setting(batch_size="full", epochs=epochs, lr=lr)
    states = tiny.run(tiny.built("stocfl", setting, tau=-1.0, lam=lam, shared_update="sequential"), 2)
    weights = data.train.size / data.train.size.sum()
    theta = omega = jax.tree.map(lambda leaf: leaf[0].astype(float), states.shared)
    for turn in (1, 2):
        start, pulled, handed = omega, theta, omega
        theta = omega = oracle.blend(np.zeros_like, start)
        add = lambda sum, model, weight: oracle.blend(lambda a, b: a + weight * b, sum, model)
        for rows, weight in zip(np.split(data.train.rows, data.train.start[1:]), weights, strict=True):
            x, y = data.x[rows].reshape(len(rows), -1).astype(float), data.y[rows]
            theta = add(theta, oracle.train(pulled, x, y, lr, epochs, lam, start), weight)
            handed = oracle.train(handed, x, y, lr, epochs)
            omega = add(omega, handed, weight)
        tiny.same(jax.tree.map(lambda leaf: leaf[turn], states.shared), omega, 1e-5)
        tiny.same(jax.tree.map(lambda leaf: leaf[turn, states.labels[turn, 0]], states.clusters), theta, 1e-5)


def test_single_pass_unites_connected_parts_once_in_every_round():
    """The sums of two clusters may be similar although their clients are not, so that a second pass merges them."""
    from scipy.sparse.csgraph import connected_components

    data, tau = tiny.federation((4,) * 40, groups=2), 0.68
    setting = tiny.setting(data=data)
    apart = tiny.run(grouping(setting, tau=1.1), 1, data=data)
    gram, parts, numbers = apart.memory.gram[-1], np.arange(40), []
    states = tiny.run(grouping(setting, tau=tau, merge="single_pass"), 3, data=data)
    for labels in states.labels[1:]:
        size = np.sqrt(np.diagonal(gram))
        _, joined = connected_components(gram / size / size[:, None] >= tau)
        parts, members = joined[parts], np.eye(joined.max() + 1)[:, joined]
        gram = members @ gram @ members.T
        assert ((labels[:, None] == labels) == (parts[:, None] == parts)).all()
        numbers.append(len(gram))
    assert numbers == [22, 21, 20]


def test_a_client_that_leaves_is_forgotten():
    data, away = tiny.federation(), np.isin(np.arange(8), [1, 6])
    leaving = data.replace(depart=np.where(away, 2, NEVER).astype(np.int32))
    without = data.replace(arrive=np.where(away, NEVER, 0).astype(np.int32))
    algorithm = grouping(tiny.setting(data=leaving), tau=0.4, similarity="noise_corrected")
    init, step = jax.jit(algorithm.init), jax.jit(algorithm.step)

    def after(turns, data):
        state = init(jax.random.key(0), data)
        for _ in range(turns):
            state = step(state, data)
        return jax.device_get(state.replace(key=(), memory=state.memory.replace(key=())))

    before, left, never = (after(turns, some) for turns, some in ((2, leaving), (3, leaving), (3, without)))
    assert (before.labels[away] >= 0).all()
    assert (left.labels[away] == -1).all() and (never.labels[away] == -1).all()
    same = lambda labels: labels[~away][:, None] == labels[~away]
    assert (same(left.labels) == same(never.labels)).all()
    live, other = left.memory.live, never.memory.live
    np.testing.assert_allclose(left.memory.gram[live][:, live], never.memory.gram[other][:, other], atol=1e-4)


def test_clients_arrive_and_are_placed():
    data = tiny.federation()
    arrive = np.where(np.arange(8) == 3, 2, 0).astype(np.int32)
    late = data.replace(arrive=arrive)
    states = tiny.run(grouping(tiny.setting(data=late), tau=0.3), 3, data=late)
    assert (states.labels[1:3, 3] == -1).all()
    assert states.labels[3, 3] >= 0
    assert (states.labels[1][[0, 1, 2, 4, 5, 6, 7]] >= 0).all()


def test_a_newcomer_unlike_all_starts_from_the_nearest_model():
    data = tiny.federation()
    late = data.replace(arrive=np.where(np.arange(8) == 1, 2, 0).astype(np.int32))
    setting = tiny.setting(data=late, batch_size="full", epochs=3)
    states = tiny.run(tiny.built("stocfl", setting, tau=0.45, lam=0.0, start="nearest"), 3, data=late)
    slot = states.labels[3, 1]
    assert slot >= 0
    assert (states.labels[3] == slot).sum() == 1, "the newcomer is meant to found a cluster here"
    gram, live = states.memory.gram[3], states.memory.live[2]
    cosine = gram[slot] / np.sqrt(np.maximum(np.diag(gram), 1e-12))
    nearest = np.where(live, cosine, -np.inf).argmax()
    rows = data.train.rows[data.train.start[1] :][: data.train.size[1]]
    before = jax.tree.map(lambda leaf: leaf[2, nearest].astype(float), states.clusters)
    expected = oracle.train(before, data.x[rows].reshape(len(rows), -1), data.y[rows], 0.5, 3)
    tiny.same(jax.tree.map(lambda leaf: leaf[3, slot], states.clusters), expected, 1e-5)


def test_held_out_clients_go_to_the_nearest_cluster():
    data = tiny.federation(held_out=2)
    setting = tiny.setting(held_out=2)
    algorithm = grouping(setting, tau=0.3)
    placed_data = jax.device_put(data)
    step, state = jax.jit(algorithm.step), jax.jit(algorithm.init)(jax.random.key(0), placed_data)
    for _ in range(2):
        state = step(state, placed_data)
    assert (np.asarray(state.labels)[-2:] == -1).all()
    outcome = jax.device_get(jax.jit(algorithm.evaluate)(state, placed_data))
    found = metrics.measured(outcome, data, 2)
    labels, joined = found["labels"], all_asked()[1].labels[-1]
    assert (labels[-2:] >= 0).all()
    assert 0 <= found["held_out_accuracy_micro"] <= 1
    assert (labels[-1] == labels[np.flatnonzero(joined[:-2] == joined[-1])]).all()


def test_clients_never_asked_are_placed_where_they_belong(gram):
    """Zeng et al. infer the cluster of a client that did not take part (§4.4); by default ω answers for it."""
    setting, data = tiny.setting(0.25), jax.device_put(tiny.federation())
    shared, placed = (grouping(setting, tau=0.3, unsampled=who) for who in ("shared", "placed"))
    step, asked, inferred = jax.jit(shared.step), jax.jit(shared.predict), jax.jit(placed.predict)
    start = jax.jit(shared.init)(jax.random.key(0), data)
    assert (np.asarray(inferred(start, data)[0]) == -1).all(), "there is no cluster yet"
    state = step(step(start, data), data)
    labels = np.asarray(state.labels)
    np.testing.assert_array_equal(asked(state, data)[0], labels)
    members = labels[:, None] == np.unique(labels[labels >= 0])  # [m, k]
    cosine = gram @ members / np.sqrt(np.diag(members.T @ gram @ members))
    nearest = np.unique(labels[labels >= 0])[cosine.argmax(1)]
    assert (labels < 0).sum() > 0 and len(set(nearest[labels < 0])) > 1
    np.testing.assert_array_equal(inferred(state, data)[0], np.where(labels < 0, nearest, labels))


def test_a_client_without_examples_is_placed_nowhere():
    """Its Ψ is zero, and so is its cosine with every cluster; a Ψ that is not finite is taken for zero, too."""
    data = tiny.federation(sizes=(6, 6, 0, 6))
    x = data.x.copy()
    x[data.train.rows[data.train.start[3] :]] = np.inf
    data = jax.device_put(data.replace(x=x, arrive=np.array([0, 0, 0, 9], np.int32)))
    algorithm = grouping(tiny.setting(data=data), tau=0.3, unsampled="placed")
    state = jax.jit(algorithm.step)(jax.jit(algorithm.init)(jax.random.key(0), data), data)
    assert state.labels.tolist()[2:] == [-1, -1]
    labels = jax.jit(algorithm.predict)(state, data)[0]
    assert (labels[:2] >= 0).all() and (labels[2:] == -1).all(), "ω predicts for the last two"


def test_too_few_slots_is_written_down():
    states = tiny.run(grouping(tiny.setting(), tau=0.95, capacity=3), 2)
    assert tuple(states.failed[-1]) == (0, -2)


def test_never_merging_needs_a_slot_a_client():
    with pytest.raises(ValueError, match="8 clients"):
        tiny.built("stocfl", tiny.setting(), tau=1.5, capacity=4)


BROKEN = {"tau": 0.3, "anchor_steps": 4, "rounds": 3, "evaluate_every": 1}
"""Four steps from the anchor on features of 1e30 leave no finite model."""


@pytest.mark.parametrize("more", [{"tau": -1.0}, {"merge": "single_pass"}, {"renew": 1}], ids=str)
def test_a_client_without_a_finite_description_is_alone(more):
    federation = two_groups(common=0.1, scale={5: 1e30}, arrive={7: 1}, depart={5: 2} if "merge" in more else None)
    found = run(federation, "stocfl", **BROKEN | more, on_divergence="drop_client")
    last, others = state(found), np.arange(8) != 5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((last.clusters, last.memory.sums, last.memory.gram)))
    labels, there = found.labels[0, -1], found.labels[0, -1] >= 0
    assert labels[5] not in labels[others]
    assert there[others].all() and last.failed[0] == -1
    groups = np.zeros(8, int) if more.get("tau") == -1.0 else federation.groups
    assert split_as(labels[others], groups[others])


def test_a_description_that_is_not_finite_ends_the_run():
    with pytest.raises(TrainingError, match=r"in round 1 .* the description of a client is not finite"):
        run(two_groups(scale={5: 1e30}), "stocfl", **BROKEN, train={"lr": 1.0, "epochs": 4})


def test_clustering_only_trains_nothing():
    only = tiny.run(grouping(tiny.setting(0.375, **PLAIN), tau=0.35), 5)
    whole = trained(0.375)[0.35]
    np.testing.assert_array_equal(only.labels, whole.labels)
    tiny.same(*(jax.tree.map(lambda leaf: leaf[turn], only.shared) for turn in (0, -1)))


def test_noise_corrected_cosine_is_that_of_the_distributions():
    """Two clusters of five clients of one distribution: the corrected cosine is near 1, the plain one below it."""
    data = tiny.federation((30,) * 40, groups=1)
    setting = tiny.setting(data=data)
    cosine = {}
    for similarity in ("plain", "noise_corrected"):
        gram = tiny.run(grouping(setting, tau=1.1, similarity=similarity), 1, data=data).memory.gram[-1]
        fives = np.kron(np.eye(8), np.ones(5))  # [8, 40]
        inner = fives @ gram @ fives.T
        norm = np.sqrt(np.diag(inner))
        cosine[similarity] = (inner / norm[:, None] / norm)[~np.eye(8, dtype=bool)]
    assert cosine["plain"].mean() < 0.9
    assert abs(cosine["noise_corrected"].mean() - 1) < 0.06
