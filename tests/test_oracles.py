"""Every method against its plain loop: labels exactly, parameters to 1e-5."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import pairwise_distances_argmin

from jcfl import methods as methods
from jcfl.core import rounds
from jcfl.core.aggregates import mean
from tests import plain, tiny
from tests.test_stocfl import cohorts

TURNS = 4


def setting(participation=1.0, data=None, extras=(), **train):
    options = {"lr": plain.LR, "epochs": plain.EPOCHS, "batch_size": "full"} | train
    return tiny.setting(participation, data=data, extras=extras, **options)


def clients_of(data):
    """A pair (x, y) for every client."""
    owned = [data.train.rows[a : a + n] for a, n in zip(data.train.start, data.train.size, strict=True)]
    return [(data.x[rows].reshape(len(rows), -1).astype(float), data.y[rows]) for rows in owned]


CLIENTS = clients_of(tiny.federation())


def agree(states, expected, *, renamed=False, tolerance=1e-5):
    """Whether a run's states are those of a plain loop; `renamed` where clusters' numbers mean nothing."""
    expected = list(expected)
    assert len(expected) == len(states.round) - 1
    for turn, (labels, clusters, shared, *_) in enumerate(expected, 1):
        found, models = states.labels[turn], plain.vectors(states.clusters, 2)[turn]
        if renamed:
            np.testing.assert_array_equal(found[:, None] == found, labels[:, None] == labels, str(turn))
            models, clusters = models[found], clusters[labels]
        else:
            np.testing.assert_array_equal(found, labels, str(turn))
        np.testing.assert_allclose(models, clusters, rtol=0, atol=tolerance, err_msg=str(turn))
        if shared is not None:
            mine = plain.vectors(states.shared, 1)[turn]
            np.testing.assert_allclose(mine, shared, rtol=0, atol=tolerance, err_msg=str(turn))


def first_of(states):
    return plain.vectors(states.shared, 1)[0]


def several(labels, least=2):
    """Labels, known to name at least so many clusters."""
    assert len(set(labels) - {-1}) >= least, labels
    return labels


ONE_MODEL = {
    "fedavg": (lambda s: tiny.built("fedavg", s), {}),
    "fedprox": (lambda s: tiny.built("fedprox", s, mu=0.5), {"mu": 0.5}),
    "fedsgd": (lambda s: tiny.built("fedsgd", s), {"epochs": 1}),
    "feddist": (lambda s: tiny.built("feddist", s, epsilon=0.6), {"epsilon": 0.6, "weights": np.ones(8)}),
    "feddws": (lambda s: tiny.built("feddws", s, epsilon=0.3), {"epsilon": 0.3}),
}


@pytest.mark.parametrize("name", ONE_MODEL)
def test_one_model(name):
    made, options = ONE_MODEL[name]
    here = setting(0.5)
    states = tiny.run(made(here), TURNS)
    asked = list(cohorts(here, states, tiny.federation()))
    assert len({tuple(cohort) for cohort in asked}) > 1
    agree(states, plain.fedavg(CLIENTS, asked, first_of(states), **options))


def test_feddane():
    here = setting(0.5)
    states = tiny.run(tiny.built("feddane", here, mu=0.3), TURNS)
    run_key = jax.random.wrap_key_data(states.key[0])
    asked, others = ([drawn_in(here, run_key, turn, part) for turn in range(TURNS)] for part in (0, 5))
    assert any(set(a) != set(b) for a, b in zip(asked, others, strict=True))
    agree(states, plain.feddane(CLIENTS, asked, others, first_of(states), mu=0.3))


def test_clusters_whose_mean_gradient_nobody_sent_are_not_corrected():
    """In the first round nobody else is in a cluster, so that a cluster's mean is of its own client or of nobody."""
    here, data = setting(0.25), jax.device_put(tiny.federation())
    algorithms = [tiny.built(methods.ifca(clusters=2).with_train(correction=on), here) for on in (1, 0)]
    rounds_of = jax.jit(lambda key: [algorithm.step(algorithm.init(key, data), data) for algorithm in algorithms])
    for seed, common in {5: set(), 2: {3}}.items():
        one, two = rounds_of(jax.random.key(seed))
        asked, others = (set(drawn_in(here, one.key, 0, part)) for part in (0, 5))
        assert common == asked & others
        assert set(np.asarray(one.labels)[list(asked)]) == {0, 1}
        tiny.same(one.clusters, two.clusters, 1e-6)


def drawn_in(here, run_key, turn, part):
    """The ids sampled in a round with one of its keys: 0 for training, 5 for FedDANE's mean gradient."""
    key = jax.random.fold_in(jax.random.fold_in(run_key, turn), part)
    there = jax.device_put(tiny.federation()).available(np.int32(turn))
    cohort = rounds.sample(key, here.context.population, there)
    return np.asarray(cohort.who)[np.asarray(cohort.present)]


def test_ditto():
    here = setting(0.5)
    states = tiny.run(tiny.built("ditto", here, lam=0.4), TURNS)
    agree(states, plain.ditto(CLIENTS, cohorts(here, states, tiny.federation()), first_of(states), lam=0.4))


@pytest.mark.parametrize("options", [{}, {"averaging": "equally", "shared_layers": ("body",)}], ids=["by_size", "tied"])
def test_ifca(options):
    here = setting(0.75)
    states = tiny.run(tiny.built("ifca", here, clusters=3, **options), TURNS)
    asked, models = cohorts(here, states, tiny.federation()), plain.vectors(states.clusters, 2)[0]
    ours = {"equally": "averaging" in options, "tied": plain.BODY if "shared_layers" in options else None}
    agree(states, plain.ifca(CLIENTS, asked, models, first_of(states), **ours))
    several(states.labels[-1])


def test_old_models_count_for_members_that_are_absent():
    here, method = setting(0.5), replace(methods.ifca(clusters=3), aggregate=mean(absent=True))
    states = tiny.run(tiny.built(method, here), TURNS)
    asked, models = list(cohorts(here, states, tiny.federation())), plain.vectors(states.clusters, 2)[0]
    expected, without = (
        list(plain.ifca(CLIENTS, asked, models, first_of(states), absent=absent)) for absent in (True, False)
    )
    agree(states, expected)
    assert max(np.abs(one[1] - two[1]).max() for one, two in zip(expected, without, strict=True)) > 1e-3


@pytest.mark.parametrize("name", ["fesem", "wecfl"])
def test_centres_go_on(name):
    """From the first clustering on, which is checked to be a good one, every E- and M-step."""
    data = tiny.federation((12, 9, 7, 12, 10, 5, 12, 8, 6, 11, 4, 9))
    here, clients = setting(0.5, data), clients_of(data)
    made = tiny.built("fesem", here, clusters=3, lam=0.3) if name == "fesem" else tiny.built("wecfl", here, clusters=3)
    lam = 0.3 if name == "fesem" else 0.0
    states = tiny.run(made, TURNS + 1, data=data)
    asked, first = list(cohorts(here, states, data)), first_of(states)
    expected = list(
        plain.fesem(
            clients, asked, first, k=3, labels_of=lambda turn: states.labels[turn + 1], lam=lam, equally=name == "fesem"
        )
    )
    agree(states, expected)
    labels, centres, _, own, seen = expected[0]
    weights = np.ones(12) if name == "fesem" else plain.sizes(clients)
    assert 3 < seen.sum() < 12
    assert inertia(own, weights * seen, labels, centres) <= judged(own[seen], weights[seen], 3).inertia_ + 1e-6
    np.testing.assert_array_equal(labels, pairwise_distances_argmin(own, centres))  # newcomers by the shared start
    assert any((a[0] != b[0]).any() for a, b in itertools.pairwise(expected))


def inertia(points, weights, labels, centres):
    return (weights * ((points - centres[labels]) ** 2).sum(1)).sum()


def judged(points, weights, k):
    return KMeans(k, n_init=20, random_state=0).fit(points, sample_weight=weights)


def apart():
    """A federation of two groups that no clustering can mistake: in one, every class goes by another's name."""
    data = tiny.federation((50, 40, 60, 45, 55, 42), groups=1)
    owner = np.repeat(np.arange(6), data.train.size + 4)
    return data.replace(y=np.where(owner >= 3, (data.y + 5) % 10, data.y).astype(np.int32))


SLOPES = {
    "l1": lambda to: lambda vector: np.sign(vector - to),
    "cosine": lambda to: (
        lambda vector: (vector * (vector @ to) / (vector @ vector) - to) / np.linalg.norm(vector) / np.linalg.norm(to)
    ),
}
"""The gradients of distances to a model."""


@pytest.mark.parametrize("distance", SLOPES)
def test_fesem_by_another_distance(distance):
    """In the local term and in K-means (Xie et al. 2020, eq. 5); each round from the state before it."""
    lam, data = 0.02, apart()
    clients = clients_of(data)
    states = tiny.run(tiny.built("fesem", setting(data=data), clusters=2, lam=lam, distance=distance), 3, data=data)
    own, centres = (plain.vectors(models, 2) for models in (states.clients["model"], states.clusters))
    metric = {"l1": "manhattan"}.get(distance, distance)
    for turn in (1, 2):
        begun = centres[turn][states.labels[turn]]
        for i, start in enumerate(begun):
            slope = SLOPES[distance](start)
            expected = plain.trained(start, clients[i], lambda vector, slope=slope: lam * slope(vector))
            np.testing.assert_allclose(own[turn + 1][i], expected, atol=1e-5)
        nearest = pairwise_distances_argmin(own[turn + 1], centres[turn], metric=metric)
        np.testing.assert_array_equal(states.labels[turn + 1], several(nearest))
        means = [own[turn + 1][nearest == k].mean(0) for k in range(2)]
        np.testing.assert_allclose(centres[turn + 1], means, atol=1e-5)


def test_wecfl_from_fresh_seeds():
    data = apart()
    here, clients = setting(data=data), clients_of(data)
    states = tiny.run(tiny.built("wecfl", here, clusters=2, refit=True), TURNS, data=data)
    asked, first = list(cohorts(here, states, data)), first_of(states)
    options = {"k": 2, "labels_of": lambda turn: states.labels[turn + 1], "equally": False, "refit": True}
    loop = plain.fesem(clients, asked, first, **options)
    expected, weights = list(loop), plain.sizes(clients)
    agree(states, expected)
    for labels, centres, _, own, seen in expected:
        best = judged(own[seen], weights[seen], 2)
        assert inertia(own, weights * seen, labels, centres) <= best.inertia_ * (1 + 1e-5)
        np.testing.assert_array_equal(labels[:, None] == labels, best.labels_[:, None] == best.labels_)
        np.testing.assert_array_equal(labels == labels[0], np.arange(6) < 3)


def test_cfl():
    options = {"eps1": 0.9, "eps2": 0.3, "min_round": 1}
    gammas = (0.0, 0.65)
    runs = tiny.swept(lambda gamma: tiny.built("cfl", setting(), gamma=gamma, **options), gammas, TURNS + 1)
    for gamma, states in zip(gammas, runs, strict=True):
        expected = list(plain.cfl(CLIENTS, first_of(states), TURNS + 1, gamma=gamma, **options))
        agree(states, expected, renamed=True)
        counts = [len(models) for _, models, _ in expected]
        assert len(set(counts)) >= 3  # two rounds with splits at least
        assert counts[:2] == [1, 1] if gamma else counts[:2] == [1, 2]  # so the gap criterion held one back


@pytest.mark.parametrize(
    ("linkage", "metric", "stop"),
    [
        ("average", "euclidean", {"clusters": 3}),
        ("complete", "manhattan", {"clusters": 2}),
        ("single", "cosine", {"distance_threshold": 0.81}),
    ],
)
def test_flhc(linkage, metric, stop):
    here = setting(0.75)
    states = tiny.run(tiny.built("flhc", here, at=2, metric=metric, linkage=linkage, **stop), TURNS)
    options = {"clusters": stop.get("clusters"), "threshold": stop.get("distance_threshold"), "k": 8}
    loop = plain.flhc(
        CLIENTS,
        cohorts(here, states, tiny.federation()),
        first_of(states),
        at=2,
        metric=metric,
        linkage=linkage,
        **options,
    )
    agree(states, loop, renamed=True)
    assert 1 < len(set(states.labels[-1])) < 8


@pytest.mark.parametrize(
    ("distance", "centre", "averaging"),
    [("l1", "median", "equally"), ("l2", "mean", "by_size")],
)
def test_oneshot_kmeans(distance, centre, averaging):
    here = setting(0.5)
    options = {"distance": distance, "centre": centre, "averaging": averaging, "restarts": 20, "initial_epochs": 3}
    states = tiny.run(tiny.built("oneshot_kmeans", here, clusters=2, **options), TURNS)
    metric = {"l1": "manhattan", "l2": "euclidean"}[distance]
    weights = np.ones(8) if averaging == "equally" else plain.sizes(CLIENTS)
    loop = plain.oneshot(
        CLIENTS,
        cohorts(here, states, tiny.federation()),
        first_of(states),
        k=2,
        initial_epochs=3,
        labels_by=lambda points: several(plain.k_means(points, 2, metric, getattr(np, centre))),
        average=lambda here: plain.mean(here, weights),
        beginning=lambda here: plain.mean(here, weights),
    )
    agree(states, loop, renamed=True)


def test_robust_tkm():
    here = setting()
    states = tiny.run(tiny.built("robust_tkm", here, clusters=2, beta=0.25), TURNS)
    loop = plain.oneshot(
        CLIENTS,
        cohorts(here, states, tiny.federation()),
        first_of(states),
        k=2,
        initial_epochs=plain.EPOCHS,
        labels_by=lambda points: several(plain.k_means(points, 2, trim=0.25)),
        average=plain.trimmed_mean(0.25),
        beginning=plain.trimmed_mean(0.25),
    )
    agree(states, loop, renamed=True)
    assert max(np.bincount(states.labels[-1])) >= 4  # so that something is trimmed
