"""Scenarios of label skew against their definitions."""

import tracemalloc

import numpy as np
import pytest

from jcfl.data import skew
from jcfl.data.federation import federation
from jcfl.data.summary import label_counts
from jcfl.errors import InputError
from tests.test_scenarios import DATA, labelled


def test_pathological_groups_own_label_sets():
    made = federation(DATA, "pathological", clients=40, min_examples=(5, 1))
    sets = [(0, 1, 2), (3, 4), (5, 6), (7, 8, 9)]
    for group, labels in enumerate(sets):
        for split in ("train", "test"):
            counts = label_counts(made, split)[made.groups == group]
            assert set(np.flatnonzero(counts.sum(0))) == set(labels)
            assert counts.sum() == len(labels) * (60 if split == "train" else 20)
            assert np.ptp(counts.sum(1)) <= 1


def test_labels_in_no_set_are_left_out():
    made = federation(DATA, "pathological", clients=4, label_sets=((0, 1), (2,)))
    assert len(made.x) == 3 * 80
    assert set(made.y) == {0, 1, 2}


def test_a_label_in_two_sets_is_dealt_between_them():
    made = federation(DATA, "pathological", clients=8, label_sets=((0, 1), (1, 2)), min_examples=(5, 1))
    counts = np.stack([label_counts(made)[made.groups == group].sum(0) for group in range(2)])
    assert (counts[0, :3] > 0).tolist() == [True, True, False]
    assert (counts[1, :3] > 0).tolist() == [False, True, True]
    np.testing.assert_array_equal(counts.sum(0)[:3], 60)


def test_groups_with_common_labels_can_have_equally_many_of_each():
    made = federation(DATA, "pathological", clients=8, label_sets=((0, 1), (1, 2)), balanced=True, min_examples=(5, 1))
    for split in ("train", "test"):
        counts = np.stack([label_counts(made, split)[made.groups == group].sum(0) for group in range(2)])
        most = counts[0, 0]
        assert most > 0
        np.testing.assert_array_equal(counts[:, :3], [[most, most, 0], [0, most, most]])
        assert counts.sum() == 4 * most


def test_groups_can_be_tested_on_labels_they_never_saw():
    made = federation(DATA, "pathological", clients=8, tests="all", min_examples=(5, 1))
    train, test = (label_counts(made, split) for split in ("train", "test"))
    same = federation(DATA, "pathological", clients=8, min_examples=(5, 1))
    np.testing.assert_array_equal((train > 0).any(0), True)
    np.testing.assert_array_equal(label_counts(same).sum(0), train.sum(0))
    for group in range(4):
        assert (test[made.groups == group].sum(0) > 0).sum() > (train[made.groups == group].sum(0) > 0).sum()
    np.testing.assert_array_equal(test.sum(0), 20)


def test_selected_classes_are_contiguous_shares():
    made = federation(DATA, "selected_classes", clients=6, groups=3)
    counts = label_counts(made)
    held = [np.flatnonzero(counts[made.groups == group].sum(0)).tolist() for group in range(3)]
    assert held == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_of_more_groups_than_classes_each_has_one_class():
    made = federation(DATA, "selected_classes", clients=12, groups=12, min_examples=(1, 1))
    held = [np.flatnonzero(counts).tolist() for counts in label_counts(made)[np.argsort(made.groups)]]
    assert held == [[label % 10] for label in range(12)]
    np.testing.assert_array_equal(label_counts(made).sum(0), np.bincount(DATA.train.y))


def test_too_many_groups_are_refused_before_they_are_made():
    tracemalloc.start()
    with pytest.raises(InputError, match="clients: 10 are too few for 100000 groups"):
        federation(DATA, "selected_classes", clients=10, groups=100_000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**20, "the labels of 100,000 groups take more"


def test_more_clients_than_labels_have_examples_for_are_refused_before_they_are_shared_out(monkeypatch):
    monkeypatch.setattr(skew, "_own_labels", lambda *given: pytest.fail("shared out"))
    with pytest.raises(InputError, match=r"10 clients share label 0, .* 60 training .* than 10 each \(100\)"):
        federation(DATA, "selected_classes", clients=100, groups=100)
    with pytest.raises(InputError, match=r"11 clients share label 0, .* 20 test .* than 2 each \(22\)"):
        federation(DATA, "selected_classes", clients=101, groups=100, min_examples=(1, 2))


def test_examples_are_shared_out_with_the_same_numbers_in_blocks_of_any_size(monkeypatch):
    sets = {"label_sets": [[0, 1, 2], [2, 3, 4, 5], [0, 2]], "clients": 9, "tests": "all", "min_examples": (1, 1)}
    whole = federation(DATA, "pathological", **sets)
    monkeypatch.setattr(skew, "BLOCK", 7)
    made = federation(DATA, "pathological", **sets)
    assert np.array_equal(whole.train.rows, made.train.rows) and np.array_equal(whole.test.rows, made.test.rows)


def test_rotated_pathological_has_eight_groups():
    made = federation(DATA, "rotated_pathological", clients=40, min_examples=(5, 1))
    assert np.bincount(made.groups).tolist() == [5] * 8
    counts = np.stack([label_counts(made)[made.groups == group].sum(0) for group in range(8)])
    np.testing.assert_array_equal(counts[:4], counts[4:])
    for image, group in zip(made.x[made.train.rows], np.repeat(made.groups, made.train.size), strict=True):
        upright = np.rot90(image[..., 0], 2 * (group // 4))
        np.testing.assert_array_equal(upright, DATA.train.x[int(upright[0, 0]) * 256 + int(upright[0, 1])])


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    clients, alpha, classes, per_class = 20, 0.1, 300, 200
    made = federation(labelled(per_class, classes), "dirichlet", clients=clients, alpha=alpha, min_examples=(1, 0))
    shares = label_counts(made) / per_class  # [m, c]
    np.testing.assert_allclose(shares.sum(0), 1)
    second = (shares**2).sum(0)  # its mean is (α+1)/(mα+1), for every class
    assert abs(second.mean() - (alpha + 1) / (clients * alpha + 1)) < 4 * second.std() / np.sqrt(classes) < 0.06


@pytest.mark.parametrize("scenario", ["dirichlet", "grouped_dirichlet", "n_class", "grouped_n_class"])
def test_train_and_test_have_the_same_proportions(scenario):
    made = federation(labelled(300, 10, 100), scenario, clients=20, min_examples=(1, 0))
    difference = label_counts(made) / 300 - label_counts(made, "test") / 100
    assert np.abs(difference).max() <= 1 / 300 + 1 / 100 + 1e-9


def test_grouped_dirichlet_is_uneven_between_groups_and_even_within():
    groups, clients, classes, per_class = 4, 20, 300, 400
    data = labelled(per_class, classes)
    made = federation(data, "grouped_dirichlet", clients=clients, groups=groups, min_examples=(1, 0))
    counts = label_counts(made)
    of_group = np.stack([counts[made.groups == group].sum(0) for group in range(groups)])  # [k, c]
    second = ((of_group / per_class) ** 2).sum(0)
    assert abs(second.mean() - 1.1 / (groups * 0.1 + 1)) < 4 * second.std() / np.sqrt(classes) < 0.06
    for group in range(groups):
        many = of_group[group] > 200  # enough examples for the shares to be seen
        inside = counts[made.groups == group][:, many] / of_group[group][many]
        assert abs((inside**2).sum(0).mean() - 11 / (5 * 10 + 1)) < 0.02


def test_n_class_clients_hold_n_classes_in_equal_parts():
    made = federation(labelled(600, 10, 100), "n_class", clients=50, n=3)
    for split in ("train", "test"):
        counts = label_counts(made, split)
        assert set((counts > 0).sum(1)) == {3}
        for column in counts.T:
            assert np.ptp(column[column > 0]) <= 1
    holders = (label_counts(made) > 0).sum(0)
    assert np.all(np.abs(holders - 15) < 5 * np.sqrt(50 * 0.3 * 0.7))
    assert np.ptp(holders) > 0


def test_grouped_n_class_groups_hold_a_classes_and_clients_b():
    made = federation(labelled(600, 10, 100), "grouped_n_class", clients=60, groups=6, a=4, b=2)
    counts = label_counts(made)
    assert set((counts > 0).sum(1)) == {2}
    held = np.stack([counts[made.groups == group].sum(0) > 0 for group in range(6)])
    assert held.sum(1).tolist() == [4] * 6
    assert set(held.sum(0)) == {2, 3}  # 24 places for 10 classes
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


def test_rounding_favours_nobody():
    made = federation(labelled(60, 20, 10), "n_class", clients=30, n=20, min_examples=(1, 0))
    assert set(made.train.size) == {40}
    assert made.test.size.sum() == 200
    assert 2 <= made.test.size.min() <= made.test.size.max() <= 13  # a third of an example per class: not all or none


def test_clients_draw_proportions_of_their_own_after_hsu_et_al():
    """Equal numbers of examples; proportions Dir(αp) with p that of the dataset, until a class is used up."""
    made = federation(DATA, "dirichlet", clients=20, alpha=0.5, per="client", min_examples=(1, 0))
    train, test = label_counts(made), label_counts(made, "test")
    np.testing.assert_array_equal(train.sum(1), 30)
    np.testing.assert_array_equal((train.sum(0), test.sum(0)), ([60] * 10, [20] * 10))
    assert np.abs(test - train / 3).max() <= 1, "a client is tested on the classes that it trains on"
    spread = {
        (alpha, per): (label_counts(federation(DATA, "dirichlet", clients=20, alpha=alpha, per=per)) / 30).std()
        for alpha in (0.5, 1000.0)
        for per in ("class", "client")
    }
    assert spread[0.5, "client"] > 3 * spread[1000.0, "client"]
    assert spread[0.5, "client"] > spread[0.5, "class"], "Dir(0.5 p) is Dir(0.05, ..., 0.05) for ten equal classes"
    few = federation(DATA, "dirichlet", clients=7, alpha=1e-4, per="client")
    assert set(label_counts(few).sum(1)) == {85, 86}
