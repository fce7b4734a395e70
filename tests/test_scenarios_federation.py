"""What all federations have in common: topping up, attendance, description, one's own arrays."""

import json

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.dummy import DummyClassifier

from jcfl import registry
from jcfl.data.clients import from_clients
from jcfl.data.dataset import Dataset, Examples
from jcfl.data.federation import federation, place
from jcfl.data.partition import Partition
from jcfl.data.summary import describe, label_counts, summary
from jcfl.data.topping import levelled_sizes, topped_up
from jcfl.errors import InputError
from jcfl.types import NEVER


def half(number, seed):
    rng = np.random.default_rng(seed)
    return Examples(rng.normal(size=(number, 3)), rng.integers(0, 5, number).astype(np.int32))


TABLE = Dataset("table", half(900, 0), half(300, 1), 5)


def owned(split):
    return [split.rows[start : start + size] for start, size in zip(split.start, split.size, strict=True)]


# --- topping up ---


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=12), data=st.data())
def test_levelled_takes_one_at_a_time_from_the_largest(sizes, data):
    amount = data.draw(st.integers(0, sum(sizes)))
    left = list(sizes)
    for _ in range(amount):
        left[left.index(max(left))] -= 1
    result = levelled_sizes(np.array(sizes), amount)
    assert sorted(result) == sorted(left)
    assert np.all(result <= sizes)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), least=st.integers(1, 6))
def test_topping_up_stays_within_the_group_and_takes_from_the_large(seed, least):
    rng = np.random.default_rng(seed)
    groups = np.array([0, 0, 0, 0, 1, 1, 1])
    owner = rng.choice(7, 300, p=[0.3, 0.15, 0.03, 0.02, 0.4, 0.09, 0.01])
    trains = np.arange(300) < 200
    before = Partition(np.zeros((300, 1)), np.zeros(300, int), trains, owner, groups)
    after = topped_up(rng, before, (least, least))
    np.testing.assert_array_equal(groups[after.owner], groups[before.owner])
    for side in (trains, ~trains):
        old, new = (np.bincount(part.owner[side], minlength=7) for part in (before, after))
        assert new.min() >= least
        assert np.all(new[old < least] == least)
        for group in (0, 1):
            gave = (new < old) & (groups == group)
            others = ~gave & (groups == group) & (old >= least)
            if gave.any() and others.any():  # whoever gave nothing was not larger than those that gave are now
                assert old[others].max() <= new[gave].min() + 1


def test_nothing_moves_where_all_have_enough():
    owner = np.arange(100) % 5
    part = Partition(np.zeros((100, 1)), np.zeros(100, int), np.arange(100) < 50, owner, np.zeros(5, int))
    np.testing.assert_array_equal(topped_up(np.random.default_rng(0), part, (10, 10)).owner, owner)
    with pytest.raises(InputError, match=r"group 0 has 5 clients and 50 training examples, fewer than 11 each \(55\)"):
        topped_up(np.random.default_rng(0), part, (11, 1))


def test_what_is_given_away_is_drawn_at_random():
    owner = np.repeat([0, 1], [195, 5])
    part = Partition(np.zeros((200, 1)), np.zeros(200, int), np.ones(200, bool), owner, np.zeros(2, int))
    moved = [np.flatnonzero(topped_up(np.random.default_rng(seed), part, (50, 0)).owner != owner) for seed in (0, 1)]
    assert [len(rows) for rows in moved] == [45, 45]
    assert not np.array_equal(*moved)
    assert all(np.ptp(rows) > 100 for rows in moved)


# --- who is there when ---


def test_held_out_clients_are_spread_over_the_groups():
    made = federation(TABLE, "selected_classes", clients=30, groups=3, held_out=0.3)
    assert [int(made.held_out[made.groups == group].sum()) for group in range(3)] == [3, 3, 3]
    without = federation(TABLE, "selected_classes", clients=30, groups=3)
    assert not without.held_out.any()
    np.testing.assert_array_equal(made.train.rows, without.train.rows)


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0.05, 0.9), seed=st.integers(0, 1000))
def test_held_out_numbers(share, seed):
    made = federation(TABLE, "selected_classes", clients=20, sizes="uneven", groups=3, held_out=share, seed=seed)
    assert made.held_out.sum() == round(20 * share)
    for group in range(3):
        mine = made.groups == group
        assert abs(made.held_out[mine].sum() - mine.sum() * round(20 * share) / 20) < 1


def test_arrivals_and_departures():
    made = federation(TABLE, "iid", clients=20, arrivals={5: 0.25, 9: 0.5}, departures={7: 0.2, 30: 0.6})
    assert [int((made.arrive == moment).sum()) for moment in (0, 5, 9)] == [5, 5, 10]
    assert [int((made.depart == moment).sum()) for moment in (7, 30, NEVER)] == [4, 12, 4]
    assert np.all(made.arrive < made.depart)
    always = federation(TABLE, "iid", clients=20)
    assert np.all(always.arrive == 0)
    assert np.all(always.depart == NEVER)
    with pytest.raises(InputError, match=r"arrivals in round 9: 0.6 of 20 clients is 12, and 10 can be chosen"):
        federation(TABLE, "iid", clients=20, arrivals={5: 0.5, 9: 0.6})


# --- split anew, scale, placing ---


def test_the_whole_dataset_is_split_anew_by_class():
    """Bhattacharya and Aridi split 86 to 14 what its publishers split otherwise."""
    made = federation(TABLE, "iid", clients=6, resplit=0.14, seed=4)
    trains, tests = (np.concatenate(owned(split)) for split in (made.train, made.test))
    every, chosen = np.bincount(made.y), np.bincount(made.y[tests])
    np.testing.assert_array_equal(chosen, np.floor(0.14 * every + 0.5))
    assert set(trains) | set(tests) == set(range(1200)) and not set(trains) & set(tests)
    whole = np.concatenate([TABLE.train.x, TABLE.test.x]).astype(np.float32)
    np.testing.assert_array_equal(np.sort(made.x, 0), np.sort(whole, 0))
    published = TABLE.test.x.astype(np.float32)
    assert 0 < np.isin(made.x[tests], published).all(1).sum() < len(tests)
    again, other = (federation(TABLE, "iid", clients=6, resplit=0.14, seed=seed) for seed in (4, 5))
    np.testing.assert_array_equal(again.x[again.test.rows], made.x[made.test.rows])
    assert not np.isin(other.x[other.test.rows], made.x[made.test.rows]).all()
    with pytest.raises(InputError, match=r"resplit: .*less than 1, got 1"):
        federation(TABLE, "iid", clients=6, resplit=1)


def test_scale():
    images = Examples(np.zeros((60, 2, 2, 3), np.uint8), np.zeros(60, np.int32))
    made = federation(Dataset("colour", images, images, 2), "iid", clients=3, scale="standard")
    assert made.mean == made.std == (0.5, 0.5, 0.5)
    assert federation(TABLE, "iid", clients=3).mean == (0.0,)
    with pytest.raises(InputError, match="for images"):
        federation(TABLE, "iid", clients=3, scale="standard")


def test_placed_leaves_are_on_the_device():
    made = federation(TABLE, "iid", clients=3)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(made))
    there = place(made)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(there))
    np.testing.assert_array_equal(there.train.rows, made.train.rows)
    assert there.train.width == made.train.width
    assert describe(there) == describe(made)


def test_storage_does_not_grow_with_padding():
    images = Examples(np.zeros((5000, 8, 8), np.uint8), (np.arange(5000) % 10).astype(np.int32))
    made = federation(Dataset("grey", images, images, 10), "dirichlet", clients=300, alpha=0.02, min_examples=(1, 0))
    assert made.train.width > 5 * made.train.size.mean()
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(made)) < 10_000 * (64 + 4 + 4) + 300 * 40


def test_real_images_at_the_papers_scale(data_dir):
    from jcfl.data import load

    made = federation(load("mnist", data_dir), "rotated", clients=4800)
    assert set(made.train.size) == {50}
    assert set(made.test.size) == {8, 9}
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(made)) < 300e6


def test_common_options_are_listed():
    table = registry.schema(registry.find("federation", "options"))
    shared = {"seed", "min_examples", "validation", "mixing", "held_out", "arrivals", "departures", "drift", "scale"}
    assert set(table) == shared | {"resplit"}
    assert registry.options("federation", "options", {"arrivals": {"3": 0.2}})["arrivals"] == {3: 0.2}


def test_a_test_set_without_examples_may_have_any_shape():
    none = Examples(np.empty(0, np.float32), np.empty(0, np.int32))
    made = federation(Dataset("table", TABLE.train, none, 5), "iid", clients=3, min_examples=(1, 0))
    assert made.train.size.tolist() == [300] * 3 and made.test.size.tolist() == [0] * 3


def test_groups_and_ids_of_users_may_be_lists():
    users = Examples(TABLE.train.x, TABLE.train.y, np.arange(900, dtype=np.int32) // 300)
    whole = Dataset("table", users, TABLE.test, 5, group_of_user=[2, 0, 1], id_of_user=["c", "a", "b"])  # pyright: ignore
    made = federation(whole, "natural", min_examples=(1, 1))
    assert made.groups.tolist() == [2, 0, 1] and made.clients.tolist() == ["c", "a", "b"]
    with pytest.raises(InputError, match="expected at most 3, the users of table, got 5"):
        federation(whole, "natural", min_examples=(1, 1), clients=5)


# --- description ---


def test_label_counts_and_guess_agree_with_a_loop():
    made = federation(TABLE, "dirichlet", clients=9, alpha=0.4)
    right, scores = 0.0, []
    for client, (train, test) in enumerate(zip(owned(made.train), owned(made.test), strict=True)):
        for label in range(5):
            assert label_counts(made)[client, label] == np.sum(made.y[train] == label)
            assert label_counts(made, "test")[client, label] == np.sum(made.y[test] == label)
        guess = DummyClassifier(strategy="prior").fit(made.x[train], made.y[train])
        scores.append(guess.score(made.x[test], made.y[test]))
        right += scores[-1] * len(test)
    facts = describe(made)
    assert facts["all"]["guess_micro"] == pytest.approx(right / 300)
    assert facts["all"]["guess_macro"] == pytest.approx(np.mean(scores))
    assert facts["all"]["train"]["total"] == 900
    assert facts["all"]["train"]["median"] == np.median(made.train.size)
    assert facts["all"]["classes_per_client"]["max"] == (label_counts(made) > 0).sum(1).max()
    with pytest.raises(InputError, match="unknown split of the federation: 'tset'; did you mean 'test'"):
        label_counts(made, "tset")
    assert json.loads(json.dumps(facts)) == facts


def test_description_by_group():
    made = federation(TABLE, "selected_classes", clients=8, groups=2, held_out=0.25)
    facts = describe(made)
    assert [group["labels"] for group in facts["groups"]] == [[0, 1, 2], [3, 4]]
    assert [group["clients"] for group in facts["groups"]] == [4, 4]
    assert [group["held_out"] for group in facts["groups"]] == [1, 1]
    lines = summary(made).splitlines()
    assert lines[0] == "table, selected_classes: 1200 examples of 3, 5 classes"
    assert lines[2].split()[:3] == ["0", "4", "1"]
    assert lines[2].endswith("0-2")
    assert lines[4].split()[:3] == ["all", "8", "2"]


def test_long_summaries_are_cut():
    made = federation(TABLE, "selected_classes", clients=5, groups=5)
    assert "... and 3 more groups" in summary(made, most=2)
    assert "... and 1 more group\n" in summary(made, most=4)


# --- one's own arrays ---

NAMES = np.array(["ada", "bob", "cyd"])


def arrays(number, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(number, 4)), rng.integers(0, 3, number), NAMES[rng.permutation(np.arange(number) % 3)]


def test_own_arrays_with_names():
    x, y, who = arrays(60)
    made = from_clients(x, y, who, groups={"ada": 1, "bob": 0, "cyd": 1}, test_fraction=0.25, seed=3)
    assert made.groups.tolist() == [1, 0, 1]
    assert made.train.size.tolist() == [15] * 3
    assert made.test.size.tolist() == [5] * 3
    for client, (train, test) in enumerate(zip(owned(made.train), owned(made.test), strict=True)):
        mine = np.concatenate([made.x[train], made.x[test]])
        expected = x[who == NAMES[client]].astype(np.float32)
        np.testing.assert_array_equal(mine[np.lexsort(mine.T)], expected[np.lexsort(expected.T)])
    assert made.classes == 3
    assert not np.array_equal(made.train.rows, from_clients(x, y, who, test_fraction=0.25, seed=4).train.rows)


def test_own_arrays_with_a_test_set():
    x, y, who = arrays(60)
    x_test, y_test, who_test = arrays(30, seed=1)
    made = from_clients(x, y, who, x_test=x_test, y_test=y_test, clients_test=who_test)
    assert made.groups.tolist() == [-1] * 3
    for client, test in enumerate(owned(made.test)):
        np.testing.assert_array_equal(made.x[test], x_test[who_test == NAMES[client]].astype(np.float32))
        np.testing.assert_array_equal(made.y[test], y_test[who_test == NAMES[client]])


def test_own_arrays_refused():
    x, y, who = arrays(60)
    with pytest.raises(InputError, match="all three or none"):
        from_clients(x, y, who, x_test=x)
    with pytest.raises(InputError, match=r"60 examples.* 59 labels"):
        from_clients(x, y[:-1], who)
    with pytest.raises(InputError, match="label 3 "):
        from_clients(x, np.r_[y[:-1], 3], who, classes=3)
    with pytest.raises(InputError, match="no group for 1 of 3 clients, such as 'cyd'"):
        from_clients(x, y, who, groups={"ada": 1, "bob": 0})
    with pytest.raises(InputError, match="2 groups for 3 clients"):
        from_clients(x, y, who, groups=np.array([0, 1]))
    with pytest.raises(InputError, match="1 of 4 have fewer than 1 training or 1 test"):
        from_clients(np.r_[x, x[:1]], np.r_[y, 0], np.append(who, "dan"))
