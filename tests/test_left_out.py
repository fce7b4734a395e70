"""What uploads that are left out, forged, partial or never sent may change, and what they may not."""

import functools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl import registry
from jcfl.core import robust
from jcfl.core.aggregates import ServerOptimizer
from jcfl.core.attacks import InnerProduct, LittleIsEnough
from jcfl.core.faults import Faults
from jcfl.core.local import Local
from jcfl.errors import InputError, TrainingError
from jcfl.methods import addons, fedavg, fesem
from jcfl.runs.plan import config_and_objects, planned
from jcfl.types import Broadcast, Clients
from tests import tiny
from tests.groups import at, paths, run, settings, two_groups, vector, vectors

FEDERATION = two_groups()
SCALED = {"attack": {"name": "scaled", "share": 0.25, "factor": 50.0, "flip_labels": False}}
DIVERGES = {"engine": "general", "train": {"lr": 0.1, "epochs": 3}, "rounds": 3}
"""Clients whose examples are scaled by 1e30 get models that are not finite by this."""


KEPT = {}


def last(*given, **more):
    """The last state of a run on `FEDERATION`, which is trained once for all tests that look at it."""
    key = json.dumps([given, more], sort_keys=True)
    if key not in KEPT:
        KEPT[key] = at(paths([FEDERATION], *given, **more)[0], 1)
    return KEPT[key]


def shared(*given, **more) -> np.ndarray:
    """ω after such a run. [d]"""
    return vector(last(*given, **more).shared)


def test_a_dropped_client_leaves_no_trace_in_control_variates():
    (path,) = paths([two_groups(scale={3: 1e30})], "scaffold", on_divergence="drop_client", **DIVERGES)
    assert (at(path, 1).failed < 0).all()
    assert at(path, 1).clients["dropped"].tolist() == [0, 0, 0, 3, 0, 0, 0, 0]
    assert np.isfinite(vectors(at(path, 1).server["control"])).all()


@pytest.mark.parametrize("engine", ["general", "factored"])
def test_a_client_that_is_not_there_may_diverge(engine):
    """It fills up the cohort and trains with weight 0."""
    gone = two_groups(scale={3: 1e30}, depart={3: 0})
    (path,) = paths([gone], "ifca", clusters=2, **DIVERGES | {"engine": engine})
    assert (at(path, 1).failed < 0).all()
    assert np.isfinite(vectors(at(path, 1).clusters)).all()


@pytest.mark.parametrize("engine", ["general", "factored"])
def test_a_client_that_diverges_spoils_its_own_cluster_alone(engine):
    """The sums are products, in which 0 · NaN is NaN; the run ends and names the first model that is not finite."""
    more = DIVERGES | {"engine": engine, "rounds": 1}
    (path,) = paths([two_groups(scale={3: 1e30})], "ifca", clusters=3, **more)
    found = at(path, 1)
    assert found.failed.tolist() == [0, found.labels[3]]
    assert len(set(found.labels)) > 1
    assert np.isfinite(vectors(found.clusters)).all(1).tolist() == [k != found.labels[3] for k in range(3)]


def test_an_update_that_is_not_finite_is_left_out():
    (path,) = paths([two_groups(scale={3: 1e30})], "fedavg", {"name": "exclude"}, **DIVERGES)
    assert (at(path, 1).failed < 0).all()
    assert at(path, 1).clients["suspected"].tolist() == [0, 0, 0, 3, 0, 0, 0, 0]


def test_clients_that_meet_no_sound_model_end_the_run_also_with_a_geometric_median():
    models = {"w": jnp.array([[jnp.nan, 1.0], [3.0, 3.0]])}
    found = robust.geometric_median(jnp.array([0, 1]), jnp.ones(2), models, {"w": jnp.full((2, 2), 7.0)})
    np.testing.assert_array_equal(found["w"], [[np.nan, np.nan], [3.0, 3.0]])
    with pytest.raises(TrainingError, match="training diverged"):
        run(
            two_groups(scale=dict.fromkeys(range(8), 1e30)),
            *("fedavg", {"name": "robust", "rule": "geometric_median"}),
            **DIVERGES,
        )


def test_half_of_the_uploads_may_be_no_models_with_a_geometric_median():
    """The search begins among the sound ones; with a median of all it could not leave what is far away or NaN."""
    bad = [np.nan, np.inf, 1e30]
    labels, rows = np.repeat(np.arange(3), 2), np.array([row for far in bad for row in ([1.0, 2.0], [far, far])])
    found = robust.geometric_median(jnp.asarray(labels), jnp.ones(6), jnp.asarray(rows, jnp.float32), jnp.zeros((3, 2)))
    np.testing.assert_array_equal(found, [[1.0, 2.0]] * 3)


@pytest.mark.parametrize(
    "defence", [{"name": "robust", "rule": "median"}, {"name": "exclude"}], ids=lambda one: one["name"]
)
def test_defences_hold_in_the_warm_up(defence):
    warm = shared("ifca", {"name": "cam", "warmup": 3}, defence, clusters=2, rounds=3, **SCALED)
    np.testing.assert_allclose(warm, shared("fedavg", defence, rounds=3, **SCALED), atol=1e-5)


def test_the_server_looks_at_whole_updates_after_clients_have_trained_alone():
    """Attackers who were not sampled in the last round of a warm-up forge theirs too, and all of them are found."""
    extras = ({"name": "cam", "warmup": 3}, {"name": "exclude"})
    given = settings("fesem", *extras, clusters=2, rounds=3, participation=0.5, **SCALED)
    plan = planned(*config_and_objects(FEDERATION, given))
    (algorithm,) = plan.algorithms.values()
    found = at(tiny.ends(algorithm, 3, 0, [plan.federation])[0], 1)
    asked = np.asarray(plan.federation.hostile) & found.seen
    assert asked.sum() == 2
    assert found.clients["suspected"].tolist() == asked.astype(int).tolist()


def test_the_global_model_of_clients_with_models_of_their_own_is_defended():
    found = last("ditto", {"name": "exclude"}, rounds=3, **SCALED)
    assert sorted(found.clients["suspected"].tolist()) == [0] * 6 + [3] * 2
    np.testing.assert_allclose(
        vector(found.shared), shared("fedavg", {"name": "exclude"}, rounds=3, **SCALED), atol=1e-5
    )


@functools.cache
def by_the_server(method):
    """The models after a round in which the server takes the mean, half of the way, and a step with momentum."""
    given = {"fedavg": {}, "stocfl": {"lam": 0.0}, "ditto": {"lam": 0.0}, "fesem": {"clusters": 2}}[method]
    value = registry.find("method", method)(**given)

    def made(numbers):
        rate, lr = numbers
        aggregate = {"rate": rate, "server": ServerOptimizer(kind="momentum", lr=lr)}
        return tiny.built(value.with_aggregate(**aggregate), tiny.setting())

    ways = {"whole": (1.0, 1.0), "rate": (0.5, 1.0), "server": (1.0, 0.1)}  # the first step has no momentum yet
    states = tiny.swept(made, ways.values(), 1)
    return {way: at((one.shared, one.clusters), 1) for way, one in zip(ways, states, strict=True)}


@pytest.mark.parametrize("way", ["rate", "server"])
@pytest.mark.parametrize("method", ["stocfl", "ditto", "fesem"])
def test_the_server_goes_its_way_with_the_models_that_it_gets(method, way):
    """The global model goes it too, as FedAvg's does; models that clients keep to themselves do not."""
    (_, whole), (shared, part), (same, _) = (
        by_the_server(method)["whole"],
        by_the_server(method)[way],
        by_the_server("fedavg")[way],
    )
    np.testing.assert_allclose(vector(shared), vector(same), atol=1e-5)
    moved = np.abs(vectors(part) - vectors(whole)).max()
    assert moved == 0 if method == "ditto" else moved > 1e-3


def test_a_rule_does_not_change_models_that_are_not_sent():
    bound = {"name": "robust", "rule": "norm_bound", "bound": 0.01}
    plain, bounded = (last("ditto", *one, lam=0.0, rounds=2) for one in ([], [bound]))
    np.testing.assert_array_equal(vectors(plain.clusters), vectors(bounded.clusters))


@pytest.mark.parametrize(
    ("local", "steps"),
    [
        (Local(1.0, 1, None, 2, 0.0, 0.0), [5, 1]),
        (Local(1.0, 3, None, 2, 0.0, 0.0), [15, 3]),
        (Local(1.0, None, 10, 2, 0.0, 0.0), [5, 5]),
        (Local(1.0, 2, None, "full", 0.0, 0.0), [1, 1]),
    ],
    ids=["epoch", "epochs", "steps", "full"],
)
def test_a_share_of_steps_is_a_share_of_the_client_s_own(local, steps):
    """Of 20 and of 4 examples in batches of 2, half of the steps; the gradient counts them."""
    count = lambda params, model, rows, sent, key: (-params["w"].sum(), {})
    for size, expected in zip((20, 4), steps, strict=True):
        data = Clients(jnp.zeros((20, 1)), jnp.zeros(20, int), jnp.arange(20) < size)
        sent = Broadcast(jnp.int32(0), (), (), (), (), (), own={"work": jnp.asarray(0.5)})
        start = {"params": {"w": jnp.zeros(1)}}
        found = local.train(count, start, sent, data, jax.random.key(0))
        assert float(found["params"]["w"][0]) == expected


def test_partial_work_and_hidden_pulls_are_refused():
    late = {"reliability": {"name": "random", "stragglers": 0.9, "late": "partial"}}
    with pytest.raises(InputError, match="training one after another is not defined"):
        run(FEDERATION, "fedavg", shared_update="sequential", **late)
    with pytest.raises(InputError, match=r"cam adds the global model's logits, so the .* has no meaning"):
        run(FEDERATION, "stocfl", {"name": "cam", "warmup": 1}, {"name": "cks", "lam": 0.5}, lam=0.0)
    private = {"clip": 0.5, "noise": 4.0, "description_clip": 1.0, "description_noise": 4.0}
    with pytest.raises(InputError, match="describes clients again after renew rounds with the noise of the first time"):
        run(FEDERATION, "stocfl", renew=1, similarity="plain", privacy={"name": "gaussian", **private})


def test_a_client_without_examples_keeps_what_it_has():
    """It has no gradient, but weight decay would shrink its own layers."""
    data = tiny.federation(sizes=(6, 6, 0, 6))
    setting = tiny.setting(data=data, epochs=2, batch_size="full", lr=0.5, weight_decay=0.1)
    states = tiny.run(tiny.built(fedavg().with_train(private=("head",)), setting), 2, data=data)
    moved = [np.abs(leaf[-1] - leaf[0]) for leaf in jax.tree.leaves(states.clients["private"])]
    assert all(leaf[2].max() == 0 and leaf[[0, 1, 3]].max() > 0 for leaf in moved)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cfl", {"eps1": 100.0, "eps2": 0.0, "relative": False, "capacity": 2}),
        ("flhc", {"at": 0, "clusters": 2, "metric": "cosine"}),
        ("stocfl", {"tau": 0.85, "capacity": 2}),
    ],
)
def test_a_client_without_examples_groups_nobody(method, options):
    """Its update is zero, unlike those of clients with one class: alone in a cluster, it would leave them the other."""
    data = tiny.federation(sizes=(6, 6, 0, 6, 6))
    data = data.replace(y=np.zeros_like(data.y))
    never = data.replace(arrive=np.where(data.train.size == 0, 99, 0).astype(np.int32))
    algorithm = tiny.built(method, tiny.setting(data=never, epochs=1, batch_size="full"), **options)
    with_it, without = tiny.ends(algorithm, 1, 0, [data, never])
    others = data.train.size > 0
    assert len(set(without.labels[-1][others])) == 2
    assert (with_it.failed == -1).all()
    np.testing.assert_array_equal(with_it.labels[-1][others], without.labels[-1][others])
    tiny.same(with_it.clusters, without.clusters)


@pytest.mark.parametrize("method", ["ditto", "local"])
def test_a_client_without_examples_of_its_own_predicts_with_the_global_model(method):
    """Its own model is the initial one, however many rounds it takes part in."""
    data = jax.device_put(tiny.federation(sizes=(6, 6, 0, 6)))
    algorithm = tiny.built(method, tiny.setting(data=data))
    state = jax.jit(algorithm.init)(jax.random.key(0), data)
    labels, _ = jax.jit(algorithm.predict)(state.replace(seen=jnp.ones_like(state.seen)), data)
    np.testing.assert_array_equal(labels, [0, 1, -1, 3])


def test_clients_without_examples_are_in_no_mean_of_control_variates():
    """With one step on all examples SCAFFOLD is FedAvg; a mean of too many clients would not correct without a bias."""
    data = tiny.federation(sizes=(6, 6, 0, 0, 6))
    setting = tiny.setting(data=data, epochs=1, batch_size="full")
    plain, corrected = (tiny.run(tiny.built(name, setting), 2, data=data) for name in ("fedavg", "scaffold"))
    tiny.same(plain.clusters, corrected.clusters, 1e-6)


def test_clients_without_examples_make_no_other_client_a_suspect():
    """Their updates are zero, from which those of the two others are far."""
    data = tiny.federation(sizes=(6, 6, 0, 0, 0))
    setting = tiny.setting(data=data, epochs=1, batch_size="full", extras=({"name": "exclude"},))
    (states,) = tiny.ends(tiny.built("fedavg", setting), 1, 0, [data])
    np.testing.assert_array_equal(states.clients["suspected"][-1], 0)


@pytest.mark.parametrize("attack", [LittleIsEnough(), InnerProduct()], ids=lambda attack: attack.name)
def test_attackers_see_no_clients_without_examples(attack):
    """Nobody averages what these send, so zero updates are not in the honest mean, nor such attackers in a majority."""
    data = tiny.federation(sizes=(6, 6, 6, 6, 6, 6, 0, 0))
    data = data.replace(hostile=np.isin(np.arange(8), [0, 1, 6]))
    never = data.replace(arrive=np.where(data.train.size == 0, 99, 0).astype(np.int32))
    setting = tiny.setting(data=data, epochs=1, batch_size="full").with_context(faults=Faults(attack=attack))
    with_them, without = tiny.ends(tiny.built("fedavg", setting), 1, 0, [data, never])
    tiny.same(with_them.clusters, without.clusters, 1e-6)


def test_a_client_that_is_excluded_for_good_is_not_grouped():
    data = jax.device_put(tiny.federation())
    setting = tiny.setting(extras=({"name": "exclude", "limit": 1e9, "patience": 1},))
    algorithm = tiny.built("flhc", setting, at=1, clusters=2)
    step = jax.jit(algorithm.step)
    state = step(jax.jit(algorithm.init)(jax.random.key(0), data), data)
    found = step(state.replace(clients=state.clients | {"suspected": jnp.array([1] + [0] * 7)}), data)
    assert found.labels[0] == -1 and (found.labels[1:] >= 0).all()


def test_the_last_model_of_a_client_that_is_excluded_for_good_counts_no_more():
    """In methods that average the models that clients keep."""
    data = jax.device_put(tiny.federation((6,) * 4))
    setting = tiny.setting(data=data, steps=1, epochs=None, batch_size="full")
    method = addons.exclude(fesem(clusters=1), limit=1e9, patience=1)
    algorithm = tiny.built(replace(method, group=replace(method.group, restarts=1)), setting)
    step = jax.jit(algorithm.step)
    state = step(jax.jit(algorithm.init)(jax.random.key(0), data), data)
    sent = jax.tree.map(lambda leaf: leaf.at[0].set(1000.0), state.clients["model"])
    state = state.replace(clients=state.clients | {"suspected": jnp.array([1, 0, 0, 0]), "model": sent})
    state = step(state, data)
    others = jax.tree.map(lambda leaf: leaf[1:].mean(0, keepdims=True), state.clients["model"])
    tiny.same(state.clusters, others, 1e-5)
