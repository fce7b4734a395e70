"""Hostile and unreliable clients, and models that are not finite."""

import functools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.neighbors import LocalOutlierFactor

import jcfl
from jcfl.cli import display
from jcfl.core import attacks, faults, local, robust, rounds, server
from jcfl.core.chunks import gather
from jcfl.core.faults import Exclude, ExcludeSparse, Faults
from jcfl.core.objective import objective
from jcfl.core.reliability import Reliability
from jcfl.data import hostile
from jcfl.errors import InputError, TrainingError
from jcfl.runs import loop
from jcfl.types import GLOBAL, Broadcast, Cohort
from tests import tiny

LABELS = np.array([0, 0, 0, 0, 0, 1, 1, 1, -1, 2])
WEIGHTS = np.array([3.0, 1, 2, 4, 0, 1, 2, 1, 5, 0])  # the fifth and the last are absent
K = 3


@functools.cache
def uploads() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = {"params": {"a": rng.normal(size=(10, 2, 3)), "b": rng.normal(size=(10, 4))}}
    rows["params"]["a"][1] += 10
    return jax.tree.map(lambda leaf: leaf.astype(np.float32), rows)


def default():
    return jax.tree.map(lambda leaf: np.full((K, *leaf.shape[1:]), 7.0, np.float32), uploads())


def flat(tree) -> np.ndarray:
    """Every row as one vector. [s, d]"""
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)], 1)


def of_cluster(cluster: int) -> np.ndarray:
    return np.flatnonzero((cluster == LABELS) & (WEIGHTS > 0))


def krum_by_loops(rows: np.ndarray, share: float, several: bool) -> np.ndarray:
    n, f = len(rows), int(share * len(rows) + 1e-9)
    scores = []
    for i in range(n):
        apart = sorted(((rows[i] - rows[j]) ** 2).sum() for j in range(n) if j != i)
        scores.append(sum(apart[: max(n - f - 2, 1)]))
    best = np.argsort(scores, kind="stable")[: n - f if several else 1]
    return rows[best].mean(0)


FAR = 1e7
"""How far away a row is beside which single precision knows no distances between the others."""


@pytest.mark.parametrize("far", [0, FAR])
@pytest.mark.parametrize("several", [False, True])
def test_krum_is_its_loops(several, far):
    """Also if an upload that is absent and one that is hostile are far away from all others."""
    rows = jax.tree.map(lambda leaf: leaf[[3, 1, 2, 0, 4, 7, 6, 5, 8, 9]], uploads())  # the first is not the nearest
    rows["params"]["a"][[1, 4]] += far
    found = flat(
        jax.jit(lambda *given: robust.krum(*given, share=0.3, several=several))(LABELS, WEIGHTS, rows, default())
    )
    for cluster in (0, 1):
        own = flat(rows)[of_cluster(cluster)].astype(float)
        np.testing.assert_allclose(found[cluster], krum_by_loops(own, 0.3, several), rtol=1e-5)
    assert (found[2] == 7).all(), "a cluster without clients keeps its model"


def test_the_geometric_median_has_the_least_sum_of_distances():
    """At a minimum of the sum of distances, which is convex, the unit vectors to the uploads add up to nothing."""
    found = flat(robust.geometric_median(LABELS, WEIGHTS, uploads(), default(), iterations=200))
    for cluster in (0, 1):
        apart = flat(uploads())[of_cluster(cluster)] - found[cluster]
        units = apart / np.linalg.norm(apart, axis=1, keepdims=True)
        assert np.linalg.norm(units.sum(0)) < 1e-3
    assert (found[2] == 7).all()


@pytest.mark.parametrize("bound", [None, 2.5])
def test_the_norm_bound_is_its_loops(bound):
    found = flat(robust.norm_bound(LABELS, WEIGHTS, uploads(), default(), bound=bound))
    for cluster in (0, 1):
        who = of_cluster(cluster)
        updates = flat(uploads())[who] - 7
        norms = np.linalg.norm(updates, axis=1)
        limit = np.median(norms) if bound is None else bound
        clipped = 7 + updates * np.minimum(1, limit / norms)[:, None]
        np.testing.assert_allclose(found[cluster], np.average(clipped, 0, WEIGHTS[who]), rtol=1e-4)


@pytest.mark.parametrize("rule", ["krum", "geometric_median", "norm_bound"])
def test_an_upload_that_is_not_finite_moves_nobody_else(rule):
    spoilt = jax.tree.map(np.array, uploads())
    spoilt["params"]["b"][1, 2] = np.nan
    found = getattr(robust, rule)(LABELS, WEIGHTS, spoilt, default())
    assert np.isfinite(flat(found)).all()


def crowd(bad=(1, 6)) -> attacks.Crowd:
    mine = np.isin(np.arange(10), bad)
    here = (WEIGHTS > 0) & (LABELS >= 0)
    return attacks.Crowd(np.arange(10), jnp.asarray(LABELS), here & mine, here & ~mine, K)


def test_colluding_attackers_send_what_the_papers_say():
    crowd_ = crowd()
    rows, honest = flat(uploads()), np.asarray(crowd_.honest)
    mean = np.stack(
        [rows[honest & (c == LABELS)].mean(0) if (honest & (c == LABELS)).any() else 0 * rows[0] for c in range(K)]
    )
    product = flat(attacks.InnerProduct(share=0.2, epsilon=0.5).forged(jax.random.key(0), uploads(), crowd_))
    np.testing.assert_allclose(product[1], -0.5 * mean[0], rtol=1e-4, atol=1e-6)
    little = flat(attacks.LittleIsEnough(share=0.2).forged(jax.random.key(0), uploads(), crowd_))
    for client, cluster in ((1, 0), (6, 1)):
        good = int((honest & (cluster == LABELS)).sum())
        needed = (good + 1) // 2 + 1 - 1
        z = stats.norm.ppf(np.clip((good - needed) / good, 0.5, 0.999))
        spread = rows[honest & (cluster == LABELS)].std(0)
        np.testing.assert_allclose(little[client], mean[cluster] - z * spread, rtol=1e-4, atol=1e-5)


def attacked(method: str, share: float = 0.25, faults: Faults | None = None, extras=(), seed: int = 0, **options):
    data = hostile.with_attackers(tiny.federation(), share, seed)
    setting = tiny.setting(1.0, data=data, extras=extras)
    return tiny.built(method, setting.with_context(faults=faults or Faults()), **options), data


def test_scaling_by_one_changes_nothing():
    plain, data = attacked("stocfl", tau=0.5)
    forged, _ = attacked("stocfl", faults=Faults(attacks.Scaled(share=0.25, factor=1.0)), tau=0.5)
    tiny.same(tiny.run(plain, 3, data=data).clusters, tiny.run(forged, 3, data=data).clusters, 1e-5)


def test_a_flipped_sign_turns_the_round_of_fedavg_round():
    """With everybody's sign flipped, FedAvg's model after a round is its start less its update."""
    plain, data = attacked("fedavg")
    data = data.replace(hostile=np.ones(8, bool))
    forged, _ = attacked("fedavg", faults=Faults(attacks.Scaled(share=0.25, factor=-1.0)))
    one, other = (tiny.run(item, 1, data=data).clusters for item in (plain, forged))
    turned = jax.tree.map(lambda a, b: (b[1] - b[0]) + (a[1] - a[0]), one, other)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(turned)) < 1e-6


@pytest.mark.parametrize("rule", ["median", "multi_krum"])
def test_defences_protect_the_shared_model_too(rule):
    """Huge forged updates move ω of StoCFL, which is trained on a copy of its own, only where nothing defends it."""
    attack = Faults(attacks.Scaled(share=0.25, factor=1e4))
    bare, data = attacked("stocfl", faults=attack, tau=-1.0)
    guarded, _ = attacked("stocfl", faults=attack, tau=-1.0, extras=[{"name": "robust", "rule": rule, "share": 0.3}])
    largest = lambda state: max(np.abs(leaf[-1]).max() for leaf in jax.tree.leaves(state.shared))
    assert largest(tiny.run(bare, 1, data=data)) > 100
    assert largest(tiny.run(guarded, 1, data=data)) < 10


def test_buckets_are_drawn_anew_in_every_round():
    extras = [{"name": "robust", "rule": "median_of_means", "buckets": 5, "size": 1}]
    algorithm, data = attacked("stocfl", faults=Faults(), extras=extras)
    state = jax.jit(algorithm.init)(jax.random.key(0), data)
    one, two = (jax.jit(server.bucket_key)(state.replace(round=round)) for round in (0, 1))
    assert one != two
    leaves = jax.tree.leaves(jax.jit(algorithm.step)(state, data).clusters)
    assert all(np.isfinite(leaf).all() for leaf in leaves)


@pytest.mark.parametrize("more", [{}, {"by": "lof", "limit": 3.0, "neighbours": 3}])
def test_excluded_clients_are_suspects_and_are_not_asked_again(more):
    attack = Faults(attacks.Scaled(share=0.25, factor=1e3))
    algorithm, data = attacked("fedavg", faults=attack, extras=[{"name": "exclude", "patience": 2, **more}])
    states = tiny.run(algorithm, 4, data=data)
    bad = np.asarray(data.hostile)
    assert (states.clients["suspected"][-1][bad] == 2).all(), "left out twice, then not asked any more"
    assert max(np.abs(leaf[-1]).max() for leaf in jax.tree.leaves(states.clusters)) < 10
    found = jax.jit(algorithm.evaluate)(jax.tree.map(lambda leaf: leaf[-1], wrapped(states)), data)
    assert found["excluded_hostile"] == 1 and found["excluded_honest"] < 0.5


def wrapped(states):
    return states.replace(key=jax.random.wrap_key_data(states.key))


def test_suspects_are_far_from_the_median():
    rows = {"params": jnp.array([[0.0], [0.1], [0.2], [9.0], [5.0]])}
    found = Exclude().suspects(rows, jnp.array([0, 0, 0, 0, 1]), jnp.ones(5, bool), 2)
    assert list(found) == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("values", "suspected"),
    [
        ([1, 1, 1, 1, 1, 1.2, 0.8, 1.1], []),  # half of the updates are the same
        ([1, 1, 1, 1, 1, 1, 1, 9.0], [7]),
        ([1, 1, 1, 1, 1, 1, float("nan"), 1e30], [6, 7]),
        ([1, 1 + 1e-6, 1, 1 - 1e-6, 1, 1 + 4e-6, 1, 1], []),  # they differ by rounding errors
        ([1, 1 + 1e-6, 1, 1 - 1e-6, 1, 1 + 4e-6, 2, 1], [6]),
        ([0, 0, 0, 0, 0, 0, 0, 0], []),
    ],
)
def test_honest_clients_are_no_suspects_where_half_of_the_updates_are_the_same(values, suspected):
    """Their deviation is 0: everybody else was left out, as with clients that have copies of the same examples."""
    found = Exclude().suspects({"params": jnp.array(values)[:, None]}, jnp.zeros(8, int), jnp.ones(8, bool), 1)
    assert np.flatnonzero(found).tolist() == suspected


@pytest.mark.parametrize("far", [20, FAR])
def test_outlier_factors_are_scikit_learns(far):
    """Also if a row that is absent and one that is hostile are far away from all others."""
    rng = np.random.default_rng(2)
    rows = {"a": rng.normal(size=(24, 3, 2)).astype(np.float32), "b": rng.normal(size=(24, 4)).astype(np.float32)}
    rows["b"][17] += 20
    rows["b"][[3, 8]] += far
    labels, present = np.arange(24) % 3, np.arange(24) != 8
    labels[[2, 5, 11]] = 3  # a cluster of three, with fewer neighbours
    found = np.asarray(jax.jit(robust.local_outlier_factors)(labels, present, rows))
    for cluster in range(4):
        own = (labels == cluster) & present
        judge = LocalOutlierFactor(n_neighbors=min(5, own.sum() // 2)).fit(flat(rows)[own])
        np.testing.assert_allclose(found[own], -judge.negative_outlier_factor_, rtol=1e-4)
    assert set(np.flatnonzero(found > 1.5)) == {3, 17} and found[8] == 0


def test_suspects_by_their_surroundings():
    """Two places where updates are dense are no outliers; one that is not finite is, and spoils no other."""
    places = [0.0, 0.1, 0.2, 0.3, 9.0, 9.1, 9.2, 9.3, 5.0, np.nan, 7.0]
    rows, label = {"params": jnp.array(places)[:, None]}, jnp.array([0] * 10 + [1])
    found = ExcludeSparse(limit=1.5, neighbours=3).suspects(rows, label, jnp.ones(11, bool), 2)
    assert list(np.flatnonzero(found)) == [8, 9], "the client that is alone in its cluster has no outlier factor"


def test_label_flips_touch_attackers_training_examples_only():
    before, after = tiny.federation(), hostile.with_flipped_labels(hostile.with_attackers(tiny.federation(), 0.25, 0))
    for client in range(8):
        rows = before.train.rows[before.train.start[client] :][: before.train.size[client]]
        want = 9 - before.y[rows] if after.hostile[client] else before.y[rows]
        np.testing.assert_array_equal(after.y[rows], want)
    np.testing.assert_array_equal(after.y[before.test.rows], before.y[before.test.rows])
    assert after.hostile.sum() == 2 and len(set(before.groups[after.hostile])) == 2


def test_shared_examples_are_not_flipped():
    data = hostile.with_attackers(tiny.federation(), 0.25, 0)
    bad = int(np.flatnonzero(data.hostile)[0])
    rows = data.train.rows.copy()
    rows[data.train.start[(bad + 1) % 8]] = rows[data.train.start[bad]]
    with pytest.raises(InputError, match="share examples"):
        hostile.with_flipped_labels(data.replace(train=data.train.replace(rows=rows)))


MARK = 5.0


class Spoilt(local.Local):
    """SGD whose result is not finite for a client whose first feature is `MARK`."""

    def train(self, objective, start, sent, data, key):
        model = local.Local(*self).train(objective, start, sent, data, key)
        return jax.tree.map(lambda leaf: jnp.where(data.x.ravel()[0] == MARK, jnp.nan, leaf), model)


def diverging(client: int, on_divergence: str):
    """The tiny federation with a client whose training diverges, and a run's setting on it."""
    data = tiny.federation()
    x = data.x.copy()
    x[data.train.rows[data.train.start[client] :][: data.train.size[client]], 0, 0, 0] = MARK
    data = data.replace(x=x)
    setting = tiny.setting(1.0, data=data)
    trainer = Spoilt(*setting.context.trainer)
    return data, setting.with_context(trainer=trainer, faults=Faults(on_divergence=on_divergence))


@pytest.mark.parametrize("method", ["fedavg", "stocfl"])
def test_a_client_that_diverges_is_dropped(method):
    """It counts as if it had not been asked, and is named; without the option the run fails."""
    options = {"tau": -1.0} if method == "stocfl" else {}
    data, setting = diverging(3, "stop")
    assert tiny.run(tiny.built(method, setting, **options), 1, data=data).failed[-1][0] == 0
    data, setting = diverging(3, "drop_client")
    states = tiny.run(tiny.built(method, setting, **options), 2, data=data)
    assert states.failed[-1][0] == -1
    assert list(np.flatnonzero(states.clients["dropped"][-1])) == [3] and states.clients["dropped"][-1][3] == 2
    if method == "fedavg":  # StoCFL knows the client by its description, which is not trained
        away = data.replace(held_out=np.arange(8) == 3)
        others = tiny.run(tiny.built(method, tiny.setting(1.0, data=away)), 2, data=away)
        tiny.same(states.clusters, others.clusters, 1e-5)


def test_a_cluster_that_diverges_keeps_its_model():
    data, setting = diverging(7, "drop_cluster")
    states = tiny.run(tiny.built("ifca", setting, clusters=2), 3, data=data)
    assert states.failed[-1][0] == -1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((states.clusters, states.shared)))
    assert states.server["reset"][-1].sum() == 3, "one of the two, in every round"


@pytest.mark.parametrize(("cluster", "named"), [(1, 1), (None, GLOBAL)])
def test_the_model_that_diverges_is_named(cluster, named):
    """ω is not finite either where it is a mean of the clusters."""
    setting, data = tiny.setting(1.0), jax.device_put(tiny.federation())
    state = jax.jit(tiny.built("ifca", setting, clusters=2).init)(jax.random.key(0), data)
    spoilt = lambda tree, place: jax.tree.map(lambda leaf: leaf.at[place].set(jnp.nan), tree)
    state = state.replace(shared=spoilt(state.shared, ...))
    state = state if cluster is None else state.replace(clusters=spoilt(state.clusters, cluster))
    cohort = Cohort(jnp.arange(8), jnp.ones(8, bool))
    end = rounds.finished(setting.context, state, state, cohort, False)
    assert end.failed.tolist() == [0, named]
    assert "global model" in str(loop.failure(0, 0, GLOBAL)) and "cluster 1" in str(loop.failure(0, 0, 1))


def test_shares_are_of_those_that_can_be_excluded():
    """Of eight clients one is hostile and four are held out; of the other three one is excluded."""
    data = tiny.federation(held_out=4).replace(hostile=np.arange(8) == 0)
    state = SimpleNamespace(clients={"suspected": jnp.asarray([1, 1, 0, 0, 0, 0, 0, 0])}, server={})
    found = faults.measures(Exclude(patience=1), state, data)
    assert (found["excluded_hostile"], found["excluded_honest"]) == (1, pytest.approx(1 / 3))


def test_long_models_in_half_precision_are_told_apart():
    """Their squares add up to more than float16 has."""
    rng = np.random.default_rng(0)
    near = rng.normal(0, 2, 20_000) + rng.normal(0, 0.01, (5, 20_000))
    near[0] += 1
    rows = {"w": jnp.asarray(near, jnp.float16)}
    np.testing.assert_allclose(robust.norms(rows), np.linalg.norm(near, axis=1), rtol=1e-3)
    chosen = robust.krum(jnp.zeros(5, int), jnp.ones(5), rows, jax.tree.map(lambda leaf: leaf[:1], rows))
    assert not (chosen["w"][0] == rows["w"][0]).all(), "the one that is far from the others"


@pytest.mark.parametrize("rule", [robust.krum, robust.geometric_median, functools.partial(robust.norm_bound, bound=1)])
def test_statistics_have_no_part_in_distances(rule):
    """Their scale is another one, so that the honest clients' statistics would hide the update of a hostile client."""
    weights = np.array([[1, 1], [1.1, 1], [0.9, 1], [1, 1.1], [100, 100]], np.float32)
    models = {"params": {"w": weights}, "batch_stats": {"var": np.float32([[0], [1000], [2000], [3000], [1001]])}}
    old = {"params": {"w": np.ones((1, 2), np.float32)}, "batch_stats": {"var": np.zeros((1, 1), np.float32)}}
    labels, counts = jnp.zeros(5, int), jnp.ones(5)
    found = rule(labels, counts, models, old)["params"]
    tiny.same(found, rule(labels, counts, {"params": models["params"]}, {"params": old["params"]})["params"], 1e-6)


@pytest.mark.parametrize("attack", [attacks.Scaled(factor=jnp.float32(2)), attacks.Gaussian(sigma=jnp.float32(2))])
def test_a_traced_strength_keeps_half_precision(attack):
    models = {"params": {"w": jnp.ones((2, 3), jnp.bfloat16)}}
    crowd = attacks.Crowd(jnp.arange(2), jnp.zeros(2, int), jnp.array([True, False]), jnp.array([False, True]), 1)
    found = attacks.with_forgeries(attack, jax.random.key(0), models, models, crowd)
    assert found["params"]["w"].dtype == jnp.bfloat16


def test_windows_open_and_close():
    reliability = Reliability(period=6, window=0.5)
    open_ = np.stack([reliability.available(jax.random.key(0), jnp.int32(t), 200) for t in range(12)])
    assert (open_[:6].sum(0) == 3).all() and (open_[:6] == open_[6:]).all()
    assert len({tuple(column) for column in open_[:6].T}) == 6


def test_a_round_in_which_nobody_is_available_is_empty():
    data = tiny.federation()
    faults = Faults(reliability=Reliability(period=50, window=0.02))
    states = tiny.run(tiny.built("fedavg", tiny.setting(1.0).with_context(faults=faults)), 4, data=data)
    assert states.seen[-1].sum() < 8 and states.failed[-1][0] == -1


def test_stragglers_do_a_part_of_their_steps():
    """A client whose share is 1 does all of them; one with a half does as one with half the steps."""
    data = tiny.federation()
    setting = tiny.setting(1.0, epochs=None, steps=4)
    trainer, key = setting.context.trainer, jax.random.key(1)
    task = setting.task
    model = task.init(jax.random.key(0))
    one = jax.tree.map(lambda leaf: leaf[0], gather(jax.device_put(data), jax.device_put(data.train), jnp.array([0])))
    sent = lambda share: Broadcast(
        0, model, (), model, (), (), own={} if share is None else {"work": jnp.float32(share)}
    )
    trained = lambda how, share: how.train(objective(task), model, sent(share), one, key)
    tiny.same(trained(trainer, 1.0), trained(trainer, None))
    tiny.same(trained(trainer, 0.5), trained(trainer.for_steps(2), None), 1e-6)
    tiny.same(trained(trainer, 0.01), trained(trainer.for_steps(1), None), 1e-6)


def test_what_cannot_be_combined_is_refused():
    forging = Faults(attacks.Scaled(share=0.25))
    chained = tiny.built("fedavg", tiny.setting()).method.with_train(chained=True)
    for refused in (forging, Faults(on_divergence="drop_client")):
        with pytest.raises(InputError, match="one after another"):
            tiny.built(chained, tiny.setting().with_context(faults=refused))
    with pytest.raises(InputError, match=r"reliability\.late=lost"):
        tiny.built("scaffold", tiny.setting().with_context(faults=Faults(reliability=Reliability(stragglers=0.5))))


def test_a_method_that_diverges_does_not_end_a_comparison(tmp_path):
    """Its row says so, the others' figures are those of a run without it, and the report gives the reason."""
    given = {"model": "linear", "rounds": 2, "train": {"lr": 0.1, "epochs": 5}, "out": tmp_path / "run"}
    wild = {"name": "fedprox", "mu": 1e30}
    history = jcfl.run(tiny.federation(), method=wild, compare=["fedavg"], **given)
    assert "round 1" in history.summary["failed"] and "failed" not in history.others["fedavg"].summary
    alone = jcfl.run(tiny.federation(), method="fedavg", **given | {"out": None})
    np.testing.assert_array_equal(history.others["fedavg"]["accuracy_micro"], alone["accuracy_micro"])
    summaries = json.loads((tmp_path / "run" / "comparison.json").read_text("utf-8"))
    assert "diverged" in summaries["fedprox"]["failed"]
    (shown,) = display.table(summaries, 200)
    assert str(next(iter(shown.columns[1].cells))) == "diverged"
    with pytest.raises(TrainingError, match="round 1"):
        jcfl.run(tiny.federation(), method=wild, compare=[{**wild, "label": "again"}], **given | {"out": None})


def test_scores_of_honest_clients_are_theirs():
    given = {"method": "majority", "rounds": 1, "model": "linear", "attack": {"name": "label_flip", "share": 0.25}}
    found = jcfl.run(tiny.federation(), **given)
    honest = ~hostile.with_attackers(tiny.federation(), 0.25, 0).hostile
    np.testing.assert_allclose(found["accuracy_honest"][0, -1], found.accuracy_clients[0, -1][honest].mean(), rtol=1e-6)
    assert "accuracy_honest" not in jcfl.run(tiny.federation(), **given | {"attack": "none"}).scores


def test_an_attack_that_makes_nobody_an_attacker_is_refused():
    with pytest.raises(InputError, match="at least one attacker"):
        jcfl.run(tiny.federation(), method="fedavg", rounds=1, attack={"name": "sign_flip", "share": 0.01})
    with pytest.raises(InputError, match="did you mean 'sign_flip'"):
        jcfl.run(tiny.federation(), method="fedavg", rounds=1, attack="sing_flip")
