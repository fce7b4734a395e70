"""The fair average (q-FedAvg) against loops over clients, and the objective that it gives StoCFL's global model."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl.core import fair
from jcfl.core.aggregates import Fair, NormBound
from jcfl.core.local import adam
from jcfl.core.neutral import Every, Once
from jcfl.errors import InputError
from jcfl.grouping.describe import Update
from jcfl.methods import fedavg, oneshot_kmeans
from tests import plain, tiny
from tests.test_faults import LABELS, WEIGHTS, default, flat, of_cluster, uploads
from tests.test_oracles import CLIENTS, setting

SIZES = np.array([len(y) for _, y in CLIENTS], float)
LOSSES = np.random.default_rng(2).uniform(0.1, 3, len(LABELS)).astype(np.float32)


def fair_by_loops(start, rows, losses, weights, q, smoothness):
    """Li et al. (2020), Alg. 2, as it is printed, clients weighted."""
    deltas = [smoothness * (start - row) for row in rows]
    above = sum(w * loss**q * delta for w, loss, delta in zip(weights, losses, deltas, strict=True))
    below = sum(
        w * (q * loss ** (q - 1) * (delta**2).sum() + smoothness * loss**q)
        for w, loss, delta in zip(weights, losses, deltas, strict=True)
    )
    return start - above / below


@functools.cache
def rule():
    """The rule as one program, whose q and L are traced."""
    losses = lambda label, models: jnp.asarray(LOSSES)
    return jax.jit(lambda q, smoothness, *rows: fair.fair_mean(*rows, losses=losses, q=q, smoothness=smoothness))


@pytest.mark.parametrize(("q", "smoothness"), [(0.0, 2.0), (0.5, 0.01), (1.0, 2.0), (5.0, 10.0)])
def test_the_rule_is_its_loops(q, smoothness):
    found = flat(rule()(q, smoothness, LABELS, WEIGHTS, uploads(), default()))
    for cluster in (0, 1):
        who = of_cluster(cluster)
        rows = flat(uploads())[who].astype(float)
        expected = fair_by_loops(7.0, rows, LOSSES[who].astype(float), WEIGHTS[who], q, smoothness)
        np.testing.assert_allclose(found[cluster], expected, rtol=1e-4)
        if q == 0:
            np.testing.assert_allclose(found[cluster], np.average(rows, 0, WEIGHTS[who]), rtol=1e-4)
    assert (found[2] == 7).all(), "a cluster without clients keeps its model"


def test_no_power_overflows_and_a_spoilt_upload_stays_in_its_cluster():
    spoilt = jax.tree.map(np.array, uploads())
    spoilt["params"]["b"][6, 2] = np.nan
    found = flat(rule()(300.0, 1.0, LABELS, WEIGHTS, spoilt, default()))
    assert np.isfinite(found[0]).all()
    assert not np.isfinite(found[1]).all()


FAIR = {"name": "fair", "q": 1.5}


@functools.cache
def first_round(name, *extras, **options):
    """The states before and after the first round of a method. [2, ...]"""
    return tiny.run(tiny.built(name, setting(extras=extras), **options), 1)


@functools.cache
def expected(q=1.5):
    """The model after a fair round from the common start, by loops."""
    states = first_round("local")
    start, rows = plain.vectors(states.shared, 1)[0], plain.vectors(states.clusters, 2)[1]
    losses = [plain.loss(start, client) for client in CLIENTS]
    return fair_by_loops(start, rows, losses, SIZES, q, 1 / plain.LR)


def fairly(name, of="all", q=1.5, **options):
    """As `first_round`, with the fair average."""
    return tiny.run(tiny.built(name, setting(extras=[FAIR | {"of": of, "q": q}]), **options), 1)


def test_a_round_of_fair_averaging_is_its_loop():
    states = fairly("fedavg")
    np.testing.assert_allclose(plain.vectors(states.shared, 1)[1], expected(), atol=1e-5)
    assert np.abs(expected() - expected(0)).max() > 1e-3


def test_stocfl_takes_a_fair_objective_for_its_global_model_alone():
    """The free objective G of Zeng et al. (2023), eq. 2: the clusters' models of a first round are as without it."""
    options = {"tau": 0.9, "lam": 0.3, "start": "initial"}
    usual, fairer = tiny.run(tiny.built("stocfl", setting(), **options), 1), fairly("stocfl", "shared", **options)
    tiny.same(usual.clusters, fairer.clusters, 1e-6)
    np.testing.assert_allclose(plain.vectors(fairer.shared, 1)[1], expected(), atol=1e-5)
    assert np.abs(plain.vectors(usual.shared, 1)[1] - expected()).max() > 1e-3


def test_a_fair_average_serves_the_worst_clients_better():
    """Of one program with q as its argument: after some rounds the largest loss is smaller with a larger q."""
    made = lambda q: tiny.built(fedavg().with_aggregate(rule=Fair(q=q, smoothness=0.01)), setting())
    runs = tiny.swept(made, [0.0, 2.0], 12)
    largest = [max(plain.loss(plain.vectors(states.shared, 1)[-1], client) for client in CLIENTS) for states in runs]
    assert largest[1] < largest[0] - 0.02, largest


REGROUPED = replace(oneshot_kmeans(clusters=2), describe=Update(), when=Every())


@pytest.mark.parametrize(
    ("name", "extras", "message"),
    [
        ("ifca", ({"name": "cam"}, FAIR), "takes losses of single models"),
        ("wecfl", (FAIR | {"of": "shared"},), "the global model is not trained, so an averaging rule of its own"),
        ("fesem_ma", (FAIR,), "averages in a way of its own, so the add-on 'fair'"),
        ("wecfl", (FAIR,), "the last models of absent clients count too"),
        ("fedavg", (FAIR, {"name": "robust"}), "averages in a way of its own, so the add-on 'robust'"),
        ("local", (FAIR,), "nothing that the rule 'fair.*add-ons robust, fair"),
        (REGROUPED, (FAIR,), "here their clusters may change after they have trained"),
    ],
)
def test_where_it_means_nothing_it_is_refused(name, extras, message):
    with pytest.raises(InputError, match=message):
        tiny.built(name, setting(extras=extras))


def test_without_sgd_its_constant_has_to_be_given():
    here = setting(extras=[FAIR]).with_context(trainer=adam(lr=0.01, epochs=1))
    with pytest.raises(InputError, match="set smoothness"):
        tiny.built("fedavg", here)
    tiny.built("fedavg", here._replace(addons=(FAIR | {"of": "all", "smoothness": 3.0},)))


def test_absent_clients_do_not_count_however_examples_are_divided():
    """In chunks that do not divide the cohort, and with few examples at a time."""
    made = setting(0.5, extras=[FAIR]).with_resources(chunk=3, rows=4)
    states = tiny.run(tiny.built("fedavg", made), 1)
    usual = tiny.run(tiny.built("local", setting(0.5)), 1)
    start, rows = plain.vectors(usual.shared, 1)[0], plain.vectors(usual.clusters, 2)[1]
    who = np.flatnonzero(states.seen[1])
    losses = [plain.loss(start, CLIENTS[i]) for i in who]
    wanted = fair_by_loops(start, rows[who], losses, SIZES[who], 1.5, 1 / plain.LR)
    assert len(who) == 4
    np.testing.assert_allclose(plain.vectors(states.shared, 1)[1], wanted, atol=1e-5)


def test_the_first_average_of_a_late_clustering_begins_at_the_model_that_clients_trained():
    """All trained the global model, and none the initial models that unused slots hold: bounded updates say so."""
    late = replace(oneshot_kmeans(clusters=2), when=Once(at=20, start="members"))
    states = tiny.run(tiny.built(late.with_aggregate(rule=NormBound(bound=0.02)), setting()), 21)
    assert len(set(states.labels[21])) == 2
    shared = plain.vectors(states.shared, 1)
    moved = np.linalg.norm(plain.vectors(states.clusters, 2)[21] - shared[20], axis=1)
    assert moved.max() < 0.041, "one bound for the average, and one for the round after it"
    assert np.linalg.norm(shared[20] - shared[0]) > 0.1


def test_a_rule_can_be_for_the_global_model_alone_beside_another_for_the_clusters():
    extras = [{"name": "robust"}, FAIR | {"of": "shared"}]
    states = tiny.run(tiny.built(fedavg().with_train(shared="trained"), setting(extras=extras)), 1)
    median = tiny.run(tiny.built("fedavg", setting(extras=[{"name": "robust"}])), 1)
    np.testing.assert_allclose(plain.vectors(states.shared, 1)[1], expected(), atol=1e-5)
    mine = plain.vectors(states.clusters, 2)[1][states.labels[1]]
    np.testing.assert_allclose(mine, np.broadcast_to(plain.vectors(median.shared, 1)[1], mine.shape), atol=1e-5)
