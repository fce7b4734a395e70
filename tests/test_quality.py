"""The measures of a run's last state against NumPy, which visits client after client."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jcfl
from jcfl import results
from jcfl.core import measuring
from jcfl.core.quality import quality
from jcfl.core.streams import Stream, stream
from jcfl.errors import InputError, Notice
from jcfl.methods.fesem import wecfl
from jcfl.types import Clients, State
from tests import plain, tiny

K = 4
LABELS = np.array([0, 0, 1, 1, 1, 0, 3, 3], np.int32)
SEEN = np.array([1, 1, 1, 1, 1, 0, 1, 1], bool)  # client 5 has never taken part, 7 is held out, 2 has gone
DEPART = np.where(np.arange(8) == 2, 4, 9).astype(np.int32)
HERE = np.array([0, 1, 3, 4, 6])


@pytest.fixture(scope="module")
def federation():
    leaves = {"depart": DEPART}
    return dataclasses.replace(tiny.federation(held_out=1), **leaves)


def state_of(keeps: bool) -> State:
    """A state after round 5 whose models are random; cluster 2 is empty."""
    models = jax.jit(jax.vmap(tiny.task().init))(jax.random.split(jax.random.key(3), K + 9))
    take = lambda rows: jax.tree.map(lambda leaf: np.asarray(leaf[rows]), models)
    return State(
        clusters=take(slice(0, K)),
        shared=take(K),
        labels=LABELS,
        seen=SEEN,
        memory=(),
        round=np.int32(5),
        key=np.zeros(2, np.uint32),
        failed=np.full(2, -1, np.int32),
        began=np.int32(0),
        clients={"model": take(slice(K + 1, None))} if keeps else {},
    )


def clients_of(federation):
    split = federation.train
    rows = [split.rows[start : start + size] for start, size in zip(split.start, split.size, strict=True)]
    return [(np.asarray(federation.x[mine], float).reshape(len(mine), -1), federation.y[mine]) for mine in rows]


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def oracle(federation, state, added):
    clients, centres = clients_of(federation), plain.vectors(state.clusters, 1)
    own = plain.vectors(state.clients["model"], 1) if state.clients else centres[LABELS]
    beside = [plain.logits(plain.vectors(state.shared), x) if added else 0.0 for x, _ in clients]
    share = plain.sizes(clients)[HERE] / plain.sizes(clients)[HERE].sum()
    found = {
        "learning_objective": share @ [plain.loss(centres[LABELS[i]], clients[i], beside[i]) for i in HERE],
        "clustering_objective": share @ [((own[i] - centres[LABELS[i]]) ** 2).sum() for i in HERE],
        "cosine_within": np.mean([cosine(own[i], own[j]) for i, j in ((0, 1), (3, 4))]),
        "cosine_within_least": min(cosine(own[i], own[j]) for i, j in ((0, 1), (3, 4))),
        "cosine_between": np.mean([cosine(*pair) for pair in itertools.combinations(centres[[0, 1, 3]], 2)]),
        "clusterability": np.full(K, np.nan),
    }
    for k in (0, 1, 3):
        members = [i for i in HERE if LABELS[i] == k]
        slopes = np.array([plain.gradient(own[i], clients[i], beside[i]) for i in members])
        mean = np.average(slopes, axis=0, weights=plain.sizes(clients)[members])
        found["clusterability"][k] = np.linalg.norm(mean - slopes, axis=1).max() / np.linalg.norm(mean)
    unknown = ("clustering_objective", "cosine_within", "cosine_within_least")
    return found if state.clients else found | dict.fromkeys(unknown, np.nan)


@pytest.mark.parametrize(("keeps", "added"), [(True, False), (False, False), (True, True)])
def test_quality_is_that_of_a_loop_over_clients(federation, keeps, added):
    state = state_of(keeps)
    found = jax.jit(lambda *given: quality(tiny.task(), *given, added=added, chunk=3))(federation, state)
    expected = oracle(federation, state, added)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=1e-6, err_msg=name)


def test_quality_is_the_same_inside_a_program(federation):
    state = jax.tree.map(jnp.asarray, state_of(True))
    inside = jax.jit(lambda *given: quality(tiny.task(), *given))(jax.device_put(federation), state)
    tiny.same(inside, quality(tiny.task(), federation, state), 1e-5)


def squared(vector):
    return (vector**2).sum()


def constants_of(federation, state, rows):
    """The constants by a loop; the mini-batches are those that the program draws."""
    clients, centres, own = (
        clients_of(federation),
        plain.vectors(state.clusters, 1),
        plain.vectors(state.clients["model"], 1),
    )
    here = {i: plain.gradient(centres[LABELS[i]], clients[i]) for i in HERE}
    size, width = plain.sizes(clients), federation.train.width
    found = {"gradient_bound": [], "gradient_variance": [], "smoothness": [], "distances": np.full(8, np.nan)}
    for i in HERE:
        x, y = clients[i]
        key = stream(state.key, Stream.DRAW, state.round, i)
        padded = Clients(jnp.arange(width), jnp.arange(width), jnp.arange(width) < len(y))
        drawn = [measuring.mini_batch(jax.random.fold_in(key, turn), padded, rows) for turn in range(measuring.DRAWS)]
        slopes = [plain.gradient(centres[LABELS[i]], (x[b.x[b.mask]], y[b.x[b.mask]])) for b in drawn]
        there, gap = plain.gradient(own[i], clients[i]), np.linalg.norm(own[i] - centres[LABELS[i]])
        found["gradient_bound"].append(max(np.mean([*map(np.linalg.norm, slopes)]), np.linalg.norm(there)))
        found["gradient_variance"].append(np.mean([squared(slope - here[i]) for slope in slopes]))
        found["smoothness"].append(np.linalg.norm(there - here[i]) / gap)
        found["distances"][i] = gap
    diversity = []
    for k in (0, 1, 3):
        members = [i for i in HERE if LABELS[i] == k]
        mean = np.average([here[i] for i in members], axis=0, weights=size[members])
        diversity.append(np.average([squared(here[i] - mean) for i in members], weights=size[members]))
    return {name: value if name == "distances" else max(value) for name, value in found.items()} | {
        "gradient_diversity": max(diversity),
        "squared_gradient": np.average([squared(here[i]) for i in HERE], weights=size[HERE]),
    }


def test_constants_are_those_of_a_loop_over_clients(federation):
    state = jax.tree.map(jnp.asarray, state_of(True).replace(key=jax.random.key(1)))
    context = tiny.setting(batch_size=3, chunk=3, data=federation).context
    found = jax.jit(lambda *given: measuring.constants(wecfl(clusters=K), context, *given))(state, federation)
    expected = constants_of(federation, state, rows=3)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, err_msg=name)


def test_measures_of_cam_are_those_of_a_loop_over_clients(federation):
    """Ma (2023), Assumption 7.3.3: one of the two models is the client's own copy; equation 7.17: the mean gradient."""
    built = tiny.built("fesem", tiny.setting(data=federation, extras=[{"name": "cam"}]), clusters=K)
    context, client = built_with(federation, built.method)
    state = jax.tree.map(jnp.asarray, state_of(True).replace(key=jax.random.key(1)))

    @jax.jit
    def measured(state, federation):
        again = measuring.trained_again(client, state, federation)
        copy = lambda who, data: again(who, data).shared
        copies = measuring.chunks.over_clients(copy, federation, jnp.arange(8), 3)
        found = measuring.partial_diversities(context, client, state, federation)
        return found, measuring.squared_gradient_shared(context, state, federation), copies

    found, squared_mean, copies = measured(state, jax.device_put(federation))
    copies, clients, centres = plain.vectors(copies, 1), clients_of(federation), plain.vectors(state.clusters, 1)
    own, shared, size = plain.vectors(state.clients["model"], 1), plain.vectors(state.shared), plain.sizes(clients)
    by_shared, by_cluster, slopes = {}, {}, []
    for i in HERE:
        x, _ = clients[i]
        centre = centres[LABELS[i]]
        slope = lambda model, beside, i=i, x=x: plain.gradient(model, clients[i], plain.logits(beside, x))
        slopes.append(slope(shared, centre))
        by_shared[i] = squared(slope(shared, own[i]) - slopes[-1])
        by_cluster[i] = squared(slope(centre, copies[i]) - slope(centre, shared))
    mean = lambda values, who: np.average([values[i] for i in who], weights=size[who])
    inside = [mean(by_cluster, [i for i in HERE if LABELS[i] == k]) for k in (0, 1, 3)]
    np.testing.assert_allclose(found, [mean(by_shared, HERE), max(inside)], rtol=2e-4)
    np.testing.assert_allclose(squared_mean, squared(np.average(slopes, axis=0, weights=size[HERE])), rtol=2e-4)


@pytest.mark.parametrize("addons", [(), ("cam",)])
def test_measures_of_cam_need_cam(federation, addons):
    here = tiny.setting(data=federation, extras=[{"name": name} for name in addons]).with_context(measures_quality=True)
    built = tiny.built("ifca", here, clusters=K)
    state = jax.eval_shape(built.init, jax.random.key(0), federation)
    found = jax.eval_shape(built.evaluate, state, federation)
    names = {"partial_diversity", "squared_gradient_shared"}
    assert names & set(found) == (names if addons else set())


def built_with(federation, method):
    """The context of a run on a federation, and what a client does in it."""
    context = tiny.setting(data=federation, chunk=3).context
    return context, measuring.clients.client(method, context)


def test_models_are_compared_as_numpy_compares_them(federation):
    state = jax.tree.map(jnp.asarray, state_of(True))
    context = tiny.setting(data=federation).context
    found = measuring.comparison(wecfl(clusters=K), context, None, state, federation)  # pyright: ignore[reportArgumentType]
    assert found["model_clusters"].tolist() == [0, 1, 3, -1]
    centres, own = plain.vectors(state.clusters, 1), plain.vectors(state.clients["model"], 1)
    rows = np.concatenate([own, centres[[0, 1, 3, 2]]])
    pairs = list(itertools.combinations(rows, 2))
    np.testing.assert_allclose(found["model_cosine"], [cosine(*pair) for pair in pairs], atol=1e-5)
    np.testing.assert_allclose(found["model_distance"], [np.linalg.norm(a - b) for a, b in pairs], rtol=1e-4)
    np.testing.assert_allclose(found["model_l1"], np.abs(own[:, None] - rows[len(own) :]).sum(-1), rtol=1e-4)


def test_a_method_that_keeps_no_models_trains_each_client_once_more():
    """With one cluster and everybody asked, the mean of these models is the model of the next round."""
    setting = tiny.setting(batch_size="full", epochs=1)
    built = tiny.built("fedavg", setting)
    state = jax.jit(built.init)(jax.random.key(0), tiny.federation())
    client = measuring.clients.client(built.method, setting.context)
    inside = lambda *given: measuring.own_models(built.method, setting.context, client, *given, jnp.arange(8))
    own = jax.jit(inside)(state, jax.device_put(tiny.federation()))
    after = jax.jit(built.step)(state, tiny.federation())
    mean = np.average(plain.vectors(own, 1), axis=0, weights=tiny.federation().train.size)
    np.testing.assert_allclose(mean, plain.vectors(after.clusters, 1)[0], atol=1e-5)


GIVEN = {"model": tiny.task(), "train": {"lr": 0.3, "epochs": 1, "batch_size": 4}, "evaluate_quality": True}
MEASURED = ("clusterability", "cosine_within", "gradient_bound", "smoothness", "step_bound", "round_bound", "moves")


def test_a_run_measures_over_rounds_and_goes_on_bit_for_bit(tmp_path):
    given = {**GIVEN, "method": {"name": "ifca", "clusters": 3}, "compare_models": [1, 2]}
    whole = jcfl.run(tiny.federation(), rounds=4, evaluate_every=2, out=tmp_path / "whole", **given)
    jcfl.run(tiny.federation(), rounds=2, evaluate_every=2, out=tmp_path / "part", **given)
    part = jcfl.run(tiny.federation(), rounds=4, evaluate_every=2, out=tmp_path / "part", resume=True, **given)
    read = results.load(tmp_path / "part")
    assert whole.rounds.tolist() == [1, 2, 4]
    for name in (*whole.scores,):
        np.testing.assert_array_equal(whole[name], read[name], err_msg=name)
    assert {*MEASURED} <= {*whole.scores}
    assert np.isfinite([whole[name][0, -1] for name in MEASURED if name != "round_bound"]).all()
    moved = [np.nan, *(((a != b) & (a >= 0) & (b >= 0)).sum() for a, b in itertools.pairwise(whole.labels[0]))]
    np.testing.assert_array_equal(whole["moves"][0], moved)
    each = whole.clusterability_clusters[0]
    np.testing.assert_array_equal(np.nanmax(each, 1), whole["clusterability"][0].astype(np.float32))
    np.testing.assert_array_equal(read.clusterability_clusters, whole.clusterability_clusters)
    assert results.models_rounds(read, 0) == results.models_rounds(part, 0) == [1, 2]
    tiny.same(results.models(read, 0, 2), whole.models[0, 2])
    with pytest.raises(InputError, match="not compared after round 4; it has those of rounds 1, 2"):
        results.models(read, 0, 4)
    (tmp_path / "part" / "models" / "0-1.npz").unlink()
    with pytest.warns(Notice, match=r"0-1.npz is missing; it can only be made by training again: delete .*checkpoints"):
        jcfl.run(tiny.federation(), rounds=4, evaluate_every=2, out=tmp_path / "part", resume=True, **given)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": {"name": "wecfl", "clusters": 2}, "client_states": "host"}, "set client_states: device"),
        ({"method": {"name": "fedem", "clusters": 2}}, "fedem trains all cluster models"),
        ({"compare_models": [3]}, "compare_models: expected rounds from 0 to 1, got 3"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(changes, why):
    with pytest.raises(InputError, match=why):
        jcfl.run(tiny.federation(), rounds=1, **GIVEN | changes)


def test_measures_that_do_not_fit_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr("jcfl.core.context.free_memory", lambda: 4000)
    with pytest.raises(InputError, match="evaluate_quality holds 5 models or gradients of each of 8 clients"):
        jcfl.run(tiny.federation(), rounds=1, method="fedavg", **GIVEN)


def test_models_of_half_precision_are_measured_in_single_precision(federation):
    """In float16 the square of a difference of 0.0001 is zero."""
    half = lambda leaf: leaf.astype(np.float16) if leaf.dtype == np.float32 else leaf
    found = jax.eval_shape(lambda state: quality(tiny.task(), federation, state), jax.tree.map(half, state_of(True)))
    assert {name for name, leaf in found.items() if leaf.dtype != np.float32} == set()
