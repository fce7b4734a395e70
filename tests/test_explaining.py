"""Clusters explained, by made-up runs whose stability, labels, pixels and moves are known."""

import itertools
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jcfl
from jcfl import metrics, results
from jcfl.errors import InputError
from jcfl.view import plotting
from jcfl.view.plotting import explaining
from jcfl.view.plotting.explaining import association, changed, effect
from jcfl.view.report import apart, page
from tests import folders


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Three groups; labels as in `folders.moving`: at the last evaluation group 1 leaves slot 12 for slot 3."""
    held = folders.federation()
    held["train"] = np.eye(folders.CLASSES, dtype=int)[folders.GROUPS] * 40
    held["images"] = np.where(folders.GROUPS[held["pictured"]] == 1, 100, 0)[:, None, None, None] * np.ones(
        (1, 5, 5, 1)
    )
    held["images"][:, 0, 0, 0] += np.arange(15) % 2  # the only pixel that varies inside groups
    return folders.run(tmp_path_factory.mktemp("runs") / "run", held=held)


def test_stability_is_that_of_the_labels(path):
    found = jcfl.explain(path).stability
    np.testing.assert_allclose(found.seeds[1:], 1)  # both seeds have the same clusters
    assert np.isnan(found.seeds[0]) and np.isnan(found.before[:, :2]).all()  # at first nobody had a cluster
    np.testing.assert_allclose(found.churn[:, 2:], [[9 / 27, 1 / 3]] * 2)
    pairs = 10 * 9 / 2  # of a group
    both, expected = 3 * pairs, 3 * pairs * (20 * 19 / 2 + pairs) / (30 * 29 / 2)  # two groups in one cluster before
    ari = (both - expected) / ((3 * pairs + 20 * 19 / 2 + pairs) / 2 - expected)
    np.testing.assert_allclose(found.before[:, 3], ari)


def test_a_new_number_is_no_change():
    before = np.array([5, 5, 5, 2, 2, 2, -1])
    assert not changed(before, np.array([1, 1, 1, 5, 5, 5, 0])).any()
    assert changed(before, np.array([1, 1, 5, 5, 5, 5, 5])).tolist() == [False, False, True, *[False] * 4]
    assert changed(before, np.array([2] * 7)).sum() == 3


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 5)), min_size=1, max_size=12))
def test_no_numbering_makes_fewer_clients_change(pairs):
    before, after = np.array(pairs).T
    found = changed(before, after)
    both = (before >= 0) & (after >= 0)
    assert not found[~both].any()
    least = min(
        (both & (np.array([*numbering, -1])[after] != before)).sum() for numbering in itertools.permutations(range(6))
    )
    assert found.sum() == least


def test_numbers_of_clusters_take_no_memory():
    labels = np.arange(100) * 10_000
    tracemalloc.start()
    try:
        assert changed(labels, np.roll(labels, 1)).tolist() == [False] * 100
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_agreement_of_seeds_is_measured_where_labels_change(monkeypatch):
    """A hundred evaluations of forty seeds, whose clusters change once."""
    labels = np.zeros((40, 100, 6), int)
    labels[:, 50:, ::2] = 1
    labels[7, :, 0] = 1
    run, counted, ari = SimpleNamespace(labels=labels, seeds=[*range(40)], rounds=[*range(100)]), [], metrics.ari
    monkeypatch.setattr(metrics, "ari", lambda *pair: counted.append(pair) or ari(*pair))
    found = explaining.stability(run)
    assert len(counted) <= 2 * explaining.MOST_PAIRS + 3 * 40
    assert found.seeds[0] == pytest.approx(found.seeds[49]) and 0.9 < found.seeds[0] < 1
    np.testing.assert_allclose(found.before[:, 1:].mean(0), [1.0] * 49 + [found.before[:, 50].mean()] + [1.0] * 49)


def test_clients_that_train_alone_have_no_clusters_to_explain(tmp_path):
    alone = np.tile(np.arange(folders.CLIENTS), (len(folders.ROUNDS), 1))
    one = results.load(folders.run(tmp_path / "alone", labels=alone))
    assert apart.tables([one], ["alone"]) == []


def test_clusters_are_told_apart_by_their_labels_and_pixels(path):
    found = jcfl.explain(path)
    assert [(one.number, one.clients) for one in found.clusters] == [(1, 10), (2, 10), (3, 10)]
    np.testing.assert_allclose(found.labels, [1 / 3, 1 / 3, 1 / 3, 0])
    last = results.load(path).labels[0, -1]
    for one in found.clusters:
        own = int(one.labels.argmax())  # each group has a label of its own
        assert one.labels[own] == 1 and one.rest[own] == 0 and one.gaps[own] == 1
        assert one.association == pytest.approx(1)
        assert one.pictures == 5 and one.image is not None and one.effect is not None
        np.testing.assert_allclose(one.image[1:, :, 0], 100 * (own == 1))
    assert set(last) == {3, 7, 12}


def test_effect_sizes_are_cohen_s_and_cramer_s():
    own, rest = (np.array(values, float)[:, None, None] for values in ([2, 4], [1, 3, 5, 3]))
    assert effect(own, rest) == pytest.approx(0)
    pooled = np.sqrt((2 * 1**2 + 8) / 4)
    assert effect(own + 1, rest) == pytest.approx(1 / pooled)
    assert effect(own[:1], rest) is None
    assert effect(np.ones((2, 1, 1)), np.ones((2, 1, 1))) == 0
    table = np.array([[30, 10], [10, 30]])  # phi of a fourfold table
    assert association(*table) == pytest.approx(0.5)
    assert np.isnan(association(np.array([0, 0]), np.array([1, 1])))


def test_moves_say_from_where_to_where_and_how_alike(path):
    found = jcfl.explain(path).moves
    labels = results.load(path).labels[0]
    twice = [move.client for move in found if move.times == 2]
    mine = [client for client in range(10, 20) if labels[1, client] >= 0]
    assert twice == mine and len(found) == 10
    for move in found:
        assert folders.GROUPS[move.client] == 1 and move.round == 8
        assert (move.before, move.after) == (1, 3) and move.cosine_after > 0.9 > 0.7 > move.cosine_before
    assert found[-1].client == 10 and found[-1].times == 1  # it had no cluster at first


def test_the_report_has_a_table_of_them(path):
    run = results.load(path)
    (found,) = apart.tables([run], ["stocfl"])
    assert dict(found["stable"])["clients that changed at the last evaluation"] == "33.3 %"
    assert found["clusters"]["rows"][0][1][2] == ("1.00", False)
    assert found["moved"] == 10 and len(found["moves"]["rows"]) == 10
    assert "Differences of the clusters" in page([run])
    assert apart.tables([results.load(folders.run(path.parent / "one", labels=np.zeros((4, 30), int)))], ["one"]) == []


def test_figures_show_every_cluster_and_refuse_what_has_none(path, tmp_path):
    axes = plotting.apart(path).axes
    assert sum(axis.get_title("left").startswith("cluster") for axis in axes) == 3
    above, below = plotting.stability(path).axes
    assert [line.get_label() for line in above.lines] == ["with the evaluation before", "between seeds"]
    np.testing.assert_allclose(below.lines[0].get_ydata()[2:], [9 / 27, 1 / 3])
    with pytest.raises(InputError, match="no client has a cluster"):
        plotting.apart(folders.run(tmp_path / "none", labels=np.full((4, folders.CLIENTS), -1)))
    alone = folders.run(tmp_path / "alone", seeds=(0,), labels=np.full((4, folders.CLIENTS), -1))
    with pytest.raises(InputError, match="several evaluated rounds or of several seeds"):
        plotting.stability(alone)
    with pytest.raises(InputError, match="has no seed 7"):
        jcfl.explain(path, seed=7)
