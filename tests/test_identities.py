"""The limits that the papers state, and what must change nothing."""

import jax
import numpy as np
import pytest

from jcfl import methods as methods
from tests import tiny

TURNS = 4
CLOSE = 2e-6


def by_pull(method, option, pulls):
    """The states of a method by the weight of its pull; one program trains all of them."""
    make = lambda pull: tiny.built(method, tiny.setting(), **{option: pull})
    return dict(zip(pulls, tiny.swept(make, pulls, TURNS), strict=True))


@pytest.fixture(scope="module")
def fedavg():
    return tiny.run(tiny.built("fedavg", tiny.setting()), TURNS)


def test_fedavg_trains(fedavg):
    moved = [np.abs(leaf[-1] - leaf[0]).max() for leaf in jax.tree.leaves(fedavg.shared)]
    assert min(moved) > 0.01


@pytest.fixture(scope="module")
def fedprox():
    return by_pull("fedprox", "mu", (0.0, 1.0))


def test_fedprox_without_pull_is_fedavg(fedavg, fedprox):
    tiny.same(fedprox[0.0].shared, fedavg.shared, CLOSE)


def test_fedprox_pulls(fedavg, fedprox):
    pulled = fedprox[1.0]
    gap = [np.abs(a - b)[1:].max() for a, b in zip(*map(jax.tree.leaves, (pulled.shared, fedavg.shared)), strict=True)]
    assert max(gap) > 1e-3


def test_ifca_with_one_cluster_is_fedavg(fedavg):
    start = jax.tree.map(lambda leaf: leaf[0], fedavg.shared)
    one = tiny.run(begun(tiny.built("ifca", tiny.setting(), clusters=1), start), TURNS)
    tiny.same(jax.tree.map(lambda leaf: leaf[:, 0], one.clusters), fedavg.shared, CLOSE)


@pytest.fixture(scope="module")
def stocfl():
    """StoCFL in which clusters merge and the global objective is FedProx's, and one that never merges."""
    values = [{"tau": 0.3, "lam": 0.2, "mu": 1.0}, {"tau": 1.1, "lam": 0.3, "mu": 0.0}]
    return tiny.swept(lambda value: tiny.built("stocfl", tiny.setting(), **value), values, TURNS)


@pytest.fixture(scope="module")
def ditto():
    return by_pull("ditto", "lam", (0.3, 0.0))


def test_stocfl_takes_fedprox_as_its_global_objective(stocfl, fedprox):
    """Zeng et al. 2023, §3: G may be any global method's objective."""
    tiny.same(stocfl[0].shared, fedprox[1.0].shared, CLOSE)


def test_stocfl_that_never_merges_is_ditto(stocfl, ditto):
    assert_alone(stocfl[1], ditto[0.3])


def test_stocfl_that_never_merges_is_ditto_with_clients_that_come_later():
    """A client that has not trained is answered by the global model in both: its own one has its initial values."""
    setting, data = tiny.setting(0.5), tiny.federation()
    both = [
        tiny.built("stocfl", setting, tau=1.1, lam=0.3, start="initial"),
        tiny.built("ditto", setting, lam=0.3),
    ]
    alone, ditto = (tiny.run(algorithm, TURNS) for algorithm in both)
    assert_alone(alone, ditto)
    first = [jax.tree.map(lambda leaf: leaf[1], states) for states in (alone, ditto)]
    (_, one), (_, two) = (jax.jit(algorithm.predict)(state, data) for algorithm, state in zip(both, first, strict=True))
    owner = np.repeat(np.arange(8), data.test.size)  # of each answer
    untrained = first[0].labels[owner] < 0
    assert 0 < untrained.sum() < untrained.size
    np.testing.assert_allclose(one[untrained], two[untrained], atol=1e-5)


def assert_alone(alone, ditto):
    """Every client has a cluster of its own, whose model is Ditto's."""
    tiny.same(alone.shared, ditto.shared, CLOSE)
    for client, label in enumerate(alone.labels[-1]):
        if label >= 0:
            of = lambda states, row: jax.tree.map(lambda leaf: leaf[-1, row], states.clusters)
            tiny.same(of(alone, label), of(ditto, client), CLOSE)
    assert (np.sort(alone.labels[-1][alone.labels[-1] >= 0]) == np.arange((alone.labels[-1] >= 0).sum())).all()


def test_ditto_without_pull_is_local(ditto):
    tiny.same(ditto[0.0].clusters, tiny.run(tiny.built("local", tiny.setting()), TURNS).clusters, CLOSE)


@pytest.mark.parametrize(("method", "participation", "chunk"), [("fedavg", 0.5, 3), ("ifca", 0.75, 4)])
def test_chunks_change_nothing(method, participation, chunk):
    """The last chunk is not full; StoCFL's chunks follow below."""
    settings = (tiny.setting(participation, chunk=size) for size in (None, chunk))
    whole, parts = (tiny.run(tiny.built(method, setting), TURNS) for setting in settings)
    np.testing.assert_array_equal(whole.labels, parts.labels)
    tiny.same(whole.shared, parts.shared, CLOSE)
    tiny.same(whole.clusters, parts.clusters, CLOSE)


@pytest.mark.parametrize("options", [{}, {"similarity": "noise_corrected"}])
def test_chunks_and_tiles_of_psi_change_nothing(options):
    whole = tiny.run(tiny.built("stocfl", tiny.setting(0.75), tau=0.4, **options), TURNS)
    few = tiny.setting(0.75, chunk=4).with_resources(budget=4 * 4 * 3 * 172)  # room for three Ψ
    parts = tiny.run(tiny.built("stocfl", few, tau=0.4, capacity=8, **options), TURNS)
    np.testing.assert_array_equal(whole.labels, parts.labels)
    np.testing.assert_allclose(whole.memory.gram, parts.memory.gram, atol=1e-5)
    tiny.same(whole.memory.sums, parts.memory.sums, 1e-5)
    tiny.same(whole.shared, parts.shared, CLOSE)
    tiny.same(whole.clusters, parts.clusters, CLOSE)


@pytest.mark.parametrize("batch_size", [4, "full"])
def test_padding_changes_nothing(batch_size, fedavg):
    """Whatever the batch; `test_contract.py` pads clients for every method."""
    data = tiny.federation()
    wider = data.replace(train=data.train.replace(width=data.train.width + 5), test=data.test.replace(width=9))
    by_batches = batch_size == 4  # as the tiny setting has it
    narrow = fedavg if by_batches else tiny.run(tiny.built("fedavg", tiny.setting(batch_size=batch_size)), TURNS)
    padded = tiny.run(tiny.built("fedavg", tiny.setting(data=wider, batch_size=batch_size)), TURNS, data=wider)
    tiny.same(narrow.shared, padded.shared, CLOSE)
    np.testing.assert_array_equal(narrow.labels, padded.labels)


@pytest.mark.parametrize("method", ["fesem", "oneshot_kmeans"])
def test_the_shared_model_counts_clients_by_size(method):
    """Even where clusters count them equally: it is what CKS pulls to (Ma 2023, eq. 5.6)."""
    data, setting = tiny.federation(), tiny.setting()
    states = tiny.run(tiny.built(method, setting, clusters=2), 2)
    size = data.train.size / data.train.size.sum()
    if method == "fesem":
        mean = jax.tree.map(lambda leaf: np.tensordot(size, leaf[-1], 1), states.clients["model"])
        tiny.same(jax.tree.map(lambda leaf: leaf[-1], states.shared), mean, CLOSE)
    share = np.bincount(states.labels[-1], data.train.size / data.train.size.sum(), minlength=2)
    by_cluster = jax.tree.map(lambda leaf: np.tensordot(share, leaf[-1], 1), states.clusters)
    gaps = jax.tree.map(lambda a, b: np.abs(a[-1] - b).max(), states.shared, by_cluster)
    assert max(jax.tree.leaves(gaps)) > 1e-4, "sizes within a cluster differ, so the two means must"


def test_tied_layers_are_one_from_the_start():
    states = tiny.run(tiny.built("ifca", tiny.setting(0.5), clusters=3, shared_layers=("body",)), 2)
    body, last = (states.clusters["params"][name]["kernel"] for name in ("body", "head"))
    assert np.ptp(body, axis=1).max() == 0
    assert np.ptp(last, axis=1).max() > 0.1


def test_sequential_fedavg_is_a_chain(fedavg):
    """With one client in the cohort there is nobody to hand the model to; with more, the result differs."""
    one = 1 / 8
    chained = tiny.run(tiny.built("fedavg", tiny.setting(one), shared_update="sequential"), TURNS)
    tiny.same(chained.shared, tiny.run(tiny.built("fedavg", tiny.setting(one)), TURNS).shared, CLOSE)
    many = tiny.run(tiny.built("fedavg", tiny.setting(), shared_update="sequential"), 1)
    kernel = many.shared["params"]["head"]["kernel"]
    parallel = fedavg.shared["params"]["head"]["kernel"]
    assert np.linalg.norm(kernel[1] - kernel[0]) > 2 * np.linalg.norm(parallel[1] - parallel[0])


def begun(algorithm, start):
    """The same algorithm, begun at a given model."""

    def init(key, federation):
        state = algorithm.init(key, federation)
        return state.replace(shared=start, clusters=jax.tree.map(lambda leaf: leaf[None], start))

    return algorithm._replace(init=init)
