"""Predictions of a trained run for examples that were not in its federation."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jcfl
from jcfl import registry
from jcfl.core.chunks import over_clients
from jcfl.errors import InputError
from jcfl.methods import fedavg
from jcfl.results import History
from jcfl.runs import predicting
from tests import tiny

ROTATED = {
    "data": "digits",
    "scenario": {"name": "rotated", "clients": 6, "angles": [0, 180], "held_out": 0.2},
    "model": {"name": "mlp", "hidden": 4},
    "train": {"lr": 0.1, "epochs": 2, "batch_size": 20},
    "rounds": 2,
}
PRIVATE = {"name": "ifca", "clusters": 2, "train": {"name": "private", "layers": ["head"], "distinct": True}}


@pytest.mark.parametrize(
    "method",
    ["fedem", PRIVATE, {"name": "stocfl", "tau": "auto", "addons": [{"name": "finetune", "steps": 2}]}],
    ids=["mixture", "private", "finetuned"],
)
def test_clients_predict_new_examples_as_they_predict_their_own(method):
    """Of their test examples, shuffled and given as new ones, as many are right as the run says, for each seed."""
    history, federation = jcfl.run(ROTATED, method=method, seeds=2), jcfl.federation(ROTATED)
    x, y, test = np.asarray(federation.x), np.asarray(federation.y), federation.test
    owner = np.random.default_rng(0).permutation(np.repeat(np.arange(6), test.size))
    rows = np.zeros(len(owner), int)
    for client in range(6):
        rows[owner == client] = test.owned(client)
    for lane, seed in enumerate(history.seeds):
        right = history.predict(x[rows], owner, seed=seed) == y[rows]
        accuracy = [right[owner == client].mean() for client in range(6)]
        np.testing.assert_allclose(accuracy, history.accuracy_clients[lane, -1], atol=1e-6)
    one = test.owned(3)
    np.testing.assert_array_equal(history.predict(x[one], 3), history.logits(x[one], [3] * len(one)).argmax(-1))


def test_clients_never_sampled_are_placed_also_where_they_have_a_cluster():
    """FeSEM groups such clients by the initial model, which says nothing about their data."""
    setting, data = tiny.setting(0.25), jax.device_put(tiny.federation())
    method = registry.find("method", "fesem")(clusters=2)
    given, placed = (tiny.built(method.with_answer(unsampled=how), setting) for how in ("shared", "placed"))

    @jax.jit
    def whole(key):
        state = jax.lax.fori_loop(0, 2, lambda _, state: given.step(state, data), given.init(key, data))
        grouping = method.group.grouping(method, setting.context)
        nearest = grouping.place(state, jnp.arange(8), data)
        return state, nearest, given.predict(state, data)[0], placed.predict(state, data)[0]

    moved = 0
    for seed in range(8):
        state, nearest, left, there = whole(jax.random.key(seed))
        np.testing.assert_array_equal(left, state.labels)
        np.testing.assert_array_equal(there, np.where(state.seen, state.labels, nearest))
        moved += (there != left).sum()
    assert moved > 0


def test_only_chunks_with_clients_whose_results_are_used_take_time():
    federation, seen = jax.device_put(jcfl.federation(ROTATED)), []

    def one(who, data):
        jax.debug.callback(lambda who: seen.append(int(who)), who)
        return who + data.size

    for wanted in ([], [3], [0, 5], range(6)):
        asked = np.isin(np.arange(6), wanted)
        found = over_clients(one, federation, jnp.arange(6), 2, jnp.asarray(asked))
        jax.effects_barrier()
        assert sorted(seen) == [who for who in range(6) if asked[who // 2 * 2 : who // 2 * 2 + 2].any()]
        np.testing.assert_array_equal(found[asked], (np.arange(6) + federation.train.size)[asked])
        seen.clear()


def test_histories_are_pickled_without_clients_data_and_with_any_method():
    """Neither the examples that a user passed nor her functions are in the file; a copy in memory predicts."""
    federation = jcfl.federation(ROTATED)
    alike = {key: ROTATED[key] for key in ("model", "train", "rounds")}  # the programs of other tests
    history = jcfl.run(federation, **alike, method=lambda context: fedavg())
    stored = pickle.dumps(history)
    assert len(stored) < np.asarray(federation.x).nbytes
    one = np.asarray(federation.x)[:1]
    np.testing.assert_array_equal(copy.deepcopy(history).predict(one, 0), history.predict(one, 0))
    with pytest.raises(InputError, match="passed in Python"):
        pickle.loads(stored).predict(one, 0)


def test_an_example_that_is_not_finite_is_named():
    federation = tiny.federation()
    x = np.zeros((3, *federation.x.shape[1:]))
    x[1, 0] = np.nan
    with pytest.raises(InputError, match="expected finite numbers, got NaN or infinity in example 1"):
        predicting.examples(federation, x)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1e300, "expected finite numbers, got NaN or infinity in example 1"),
        (1j, "expected finite numbers, got complex128"),
        (np.ma.masked, "expected finite numbers, got masked values in example 1"),
    ],
)
def test_what_is_not_finite_as_the_federation_has_it_is_named(value, said):
    federation = tiny.federation()
    x = np.ma.zeros((3, *federation.x.shape[1:]), complex if isinstance(value, complex) else float)
    x[1, 0] = value
    with pytest.raises(InputError, match=said):
        predicting.examples(federation, x)


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([0, 1], "one client, or a list with one for each of the 3 examples, got a list of 2"),
        ([0], "got a list of 1"),
        ([], "got a list of 0"),
        ([[0], [1], [2]], r"got an array of shape \[3, 1\]"),
        (
            [[0], [1, 2]],
            r"a client's place, or one for each of the 3 examples, got \[\[0\], \[1, 2\]\]; ids= takes ids",
        ),
        ([0.0, 1.0, 2.0], r"got \[0.0, 1.0, 2.0\]; ids= takes ids"),
        ("ann", "got 'ann'; ids= takes ids"),
    ],
)
def test_clients_that_do_not_fit_the_examples_are_refused(clients, said):
    with pytest.raises(InputError, match=said):
        predicting.owners(tiny.federation(), clients, 3)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["ann", "bob"], "one client, or a list with one for each of the 3 examples, got a list of 2"),
        ([["ann"], ["bob", "ann"]], r"an id, or one for each example, got \[\['ann'\], \['bob', 'ann'\]\]"),
        (["ann", "eve", "bob"], "no client has the id 'eve'"),
    ],
)
def test_ids_that_do_not_fit_the_examples_are_refused_in_words_of_ids(ids, said):
    """The line does not show places: the user has not given any."""
    history = History("a", [0], np.array([1]), {}, *[np.zeros(0)] * 3, clients=np.array(["ann", "bob"]))
    with pytest.raises(InputError, match=said):
        predicting.owners(tiny.federation(), history.places(None, ids), 3)


def test_clients_can_be_named_by_their_ids():
    """Ids that are numbers look like places: without `ids`, client 7 would predict as the client at place 7."""
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(40, 3)).astype(np.float32), np.repeat([11, 2, 7, 5], 10)
    y = (x[:, 0] * np.where(who < 6, 1, -1) > 0).astype(int)
    federation = jcfl.data.from_clients(x, y, who)
    history = jcfl.run(federation, model="linear", method="local", rounds=5, train={"lr": 1.0}, evaluate_every=5)
    assert history.clients.tolist() == [2, 5, 7, 11]
    by_id = history.logits(x[:3], ids=[7, 7, 2])
    np.testing.assert_array_equal(by_id, history.logits(x[:3], [2, 2, 0]))
    np.testing.assert_array_equal(history.predict(x[:3], ids=11), history.predict(x[:3], 3))


def test_what_cannot_be_predicted_is_refused(tmp_path):
    history = jcfl.run(ROTATED, method="fedavg", out=tmp_path / "a")
    pixels = np.zeros((2, 8, 8, 1), np.uint8)
    for given, says in (
        ((pixels[..., :4, :], 0), r"examples of shape \[n, 8, 8, 1\], got \[2, 8, 4, 1\]"),
        ((pixels[..., 0], 0), r"images of shape \[n, 8, 8, 1\], got \[2, 8, 8\]; give x\[\.\.\., None\]"),
        ((pixels[0], 0), r"shape \[n, 8, 8, 1\], got one example; give x\[None\]"),
        ((pixels[:0], 0), r"at least one example of shape \[8, 8, 1\], got none"),
        (([[1], [1, 2]], 0), "got examples of several shapes"),
        (("digits", 0), r"shape \[n, 8, 8, 1\], got 'digits'"),
        ((pixels, [[0], [0, 1]]), "each of the 2 examples"),
        ((pixels / 255.0, 0), "pixels from 0 to 255"),
        ((pixels, 6), "from 0 to 5, got 6"),
        ((pixels, [0, 1, 2]), "each of the 2 examples"),
        ((pixels, "0"), "each of the 2 examples"),
        ((np.ma.masked_equal(pixels, 0), 0), "got masked values in example 0"),
    ):
        with pytest.raises(InputError, match=says):
            history.predict(*given)
    for given, says in (
        ({}, "either clients, which are places from 0, or ids"),
        ({"clients": 0, "ids": 0}, "either clients, which are places from 0, or ids"),
        ({"ids": [0, "ann"]}, "no client has the id '0'; history.clients"),
    ):
        with pytest.raises(InputError, match=says):
            history.predict(pixels, **given)
    for seed in (7, np.array([0, 1])):
        with pytest.raises(InputError, match=r"no seed .*; there are 0"):
            history.predict(pixels, 0, seed=seed)
    with pytest.raises(InputError, match="resume=True"):
        jcfl.results.load(tmp_path / "a").predict(pixels, 0)
    again = jcfl.run(tmp_path / "a" / "config.yaml", out=tmp_path / "a", resume=True)
    np.testing.assert_array_equal(again.logits(pixels, 0), history.logits(pixels, 0))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(history)).logits(pixels, 0), history.logits(pixels, 0))
