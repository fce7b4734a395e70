"""Every scenario against its definition."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from jcfl import registry
from jcfl.data.dataset import Dataset, Examples
from jcfl.data.federation import federation
from jcfl.data.partition import client_groups
from jcfl.data.rotation import rotated_images
from jcfl.errors import InputError, Notice


def numbered(train, test, classes=10, name="numbered", shape=(4, 4)):
    """Images whose first two pixels are the example's own number, the third whether it is for testing."""

    def half(number, tests):
        x = np.random.default_rng(tests).integers(0, 256, (number, *shape), dtype=np.uint8)
        x[:, 0, 0], x[:, 0, 1], x[:, 0, 2] = np.arange(number) // 256, np.arange(number) % 256, tests
        return Examples(x, (np.arange(number) % classes).astype(np.int32), (np.arange(number) % 7).astype(np.int32))

    return Dataset(name, half(train, 0), half(test, 1), classes)


def labelled(per_class, classes, tests_per_class=5):
    """Features that hardly matter, with as many examples of every class."""

    def half(number):
        y = np.repeat(np.arange(classes), number).astype(np.int32)
        return Examples(np.arange(len(y), dtype=np.float32)[:, None], y)

    return Dataset("labelled", half(per_class), half(tests_per_class), classes)


def owned(split):
    """The rows of every client."""
    return [split.rows[start : start + size] for start, size in zip(split.start, split.size, strict=True)]


DATA = numbered(600, 200)
SMALL = {
    "iid": {"clients": 12},
    "rotated": {"clients": 12},
    "shifted": {"clients": 12},
    "pathological": {"clients": 12},
    "selected_classes": {"clients": 12, "groups": 3},
    "hybrid": {"clients": 12},
    "rotated_pathological": {"clients": 16},
    "dirichlet": {"clients": 12, "alpha": 0.3},
    "grouped_dirichlet": {"clients": 12, "groups": 3, "alpha_group": 0.5},
    "n_class": {"clients": 12},
    "grouped_n_class": {"clients": 12, "groups": 3},
    "natural": {},
}
SHARED = {"crowd"}
"""Scenarios whose clients share examples, which have tests of their own."""


def small(scenario, **options):
    data = (DATA, numbered(400, 100, name="other")) if scenario == "hybrid" else DATA
    return federation(data, scenario, **(SMALL[scenario] | options))


def test_every_scenario_is_in_the_table_of_small_ones():
    assert set(registry.names("scenario")) == set(SMALL) | SHARED


@pytest.mark.parametrize("scenario", SMALL)
def test_options_have_a_schema_and_a_line(scenario):
    make = registry.find("scenario", scenario)
    table = registry.schema(make)
    assert "clients" in table
    assert all("description" in entry for entry in table.values())
    assert make.__doc__.splitlines()[0].endswith(".")


@pytest.mark.parametrize("scenario", SMALL)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_example_has_one_owner_and_every_client_enough(scenario, seed):
    made = small(scenario, seed=seed)
    rows = np.concatenate([made.train.rows, made.test.rows])
    assert len(np.unique(rows)) == len(rows) == len(made.y) == len(made.x)
    assert rows.max() == len(rows) - 1
    for split, least in ((made.train, 10), (made.test, 2)):
        assert split.size.min() >= least
        assert split.size.max() == split.width
        assert split.size.sum() == len(split.rows)
        np.testing.assert_array_equal(split.start, np.cumsum(split.size) - split.size)
    leaves = (made.y, made.groups, made.train.rows, made.test.start, made.arrive, made.depart)
    assert all(leaf.dtype == np.int32 for leaf in leaves)
    assert made.x.dtype == np.uint8
    assert made.x.shape[1:] == (4, 4, 1)


@pytest.mark.parametrize("scenario", SMALL)
def test_the_seed_settles_everything(scenario):
    first, same, other = (small(scenario, seed=seed, held_out=0.3) for seed in (1, 1, 4))
    for name in ("x", "y", "groups", "held_out"):
        np.testing.assert_array_equal(getattr(first, name), getattr(same, name))
    for half in ("train", "test"):
        for name in ("rows", "start", "size"):
            np.testing.assert_array_equal(getattr(getattr(first, half), name), getattr(getattr(same, half), name))
        if scenario != "natural":  # whose are whose is the dataset's to say
            one, two = getattr(first, half), getattr(other, half)
            assert not any(set(a.tolist()) == set(b.tolist()) for a, b in zip(owned(one), owned(two), strict=True))
    assert not np.array_equal(first.held_out, other.held_out)


@pytest.mark.parametrize("scenario", SMALL)
def test_no_example_changes_sides(scenario):
    made = small(scenario)
    upright = made.x
    if scenario in ("rotated", "rotated_pathological"):  # look at the first group only, it is not turned
        one = np.isin(np.arange(len(made.groups)), np.flatnonzero(made.groups == 0))
        train, test = (
            np.concatenate([r for r, mine in zip(owned(s), one, strict=True) if mine]) for s in (made.train, made.test)
        )
    else:
        train, test = made.train.rows, made.test.rows
    assert np.all(upright[train, 0, 2, 0] == 0)
    assert np.all(upright[test, 0, 2, 0] == 1)


# --- the same data seen differently ---


def test_iid_clients_have_equal_sizes():
    made = federation(numbered(605, 203), "iid", clients=20)
    assert set(made.train.size) == {30, 31}
    assert set(made.test.size) == {10, 11}
    assert set(made.groups) == {0}


@pytest.mark.parametrize("angles", [(0.0, 90.0, 180.0, 270.0), (0.0, 180.0), (30.0,)])
def test_every_rotated_group_holds_the_whole_set_turned(angles):
    made = federation(DATA, "rotated", clients=3 * len(angles), angles=angles)
    for group, angle in enumerate(angles):
        clients = np.flatnonzero(made.groups == group)
        for half, split in (("train", made.train), ("test", made.test)):
            mine = np.sort(np.concatenate([owned(split)[client] for client in clients]))
            expected = [ndimage.rotate(image, angle, reshape=False, order=1) for image in getattr(DATA, half).x]
            np.testing.assert_array_equal(made.x[mine, ..., 0], expected)
            np.testing.assert_array_equal(made.y[mine], getattr(DATA, half).y)


def test_quarter_turns_are_exact_and_anticlockwise():
    x = np.arange(9, dtype=np.uint8).reshape(1, 3, 3, 1)
    np.testing.assert_array_equal(rotated_images(x, 90)[0, ..., 0], [[2, 5, 8], [1, 4, 7], [0, 3, 6]])
    np.testing.assert_array_equal(rotated_images(x, -90), rotated_images(x, 270))
    np.testing.assert_array_equal(rotated_images(rotated_images(x, 90), 270), x)


@pytest.mark.parametrize(("kind", "grey"), [(np.uint8, 128), (np.float32, 0.5)])
def test_pixels_of_turned_images_may_be_the_nearest_and_grey_outside(kind, grey):
    x = np.arange(1, 50).reshape(1, 7, 7, 1).astype(kind)
    turned = rotated_images(x, 45, "nearest", 0.5)
    assert turned.dtype == kind and set(turned.ravel()) <= {*x.ravel(), grey}
    assert turned[0, 0, 0, 0] == turned[0, -1, -1, 0] == grey and turned[0, 3, 3, 0] == x[0, 3, 3, 0]
    np.testing.assert_array_equal(rotated_images(x, 180, "nearest", 0.5), x[:, ::-1, ::-1])


@pytest.mark.parametrize(("spacing", "angles"), [("circle", (0, 180)), ("printed", (0, 120))])
def test_angles_from_the_number_of_groups(spacing, angles):
    made = federation(DATA, "rotated", clients=4, groups=2, spacing=spacing)
    same = federation(DATA, "rotated", clients=4, angles=angles)
    np.testing.assert_array_equal(made.x, same.x)


def test_equal_shares_instead_of_copies():
    made = federation(DATA, "rotated", clients=8, groups=2, copies=False)
    assert len(made.x) == 800
    assert set(made.train.size) == {75}
    for image, turned in zip(made.x[made.train.rows], np.repeat(made.groups, made.train.size), strict=True):
        upright = np.rot90(image[..., 0], 2 * turned)
        original = DATA.train.x[int(upright[0, 0]) * 256 + int(upright[0, 1])]
        np.testing.assert_array_equal(upright, original)


@pytest.mark.parametrize("copies", [True, False])
def test_shifted_labels(copies):
    made = federation(DATA, "shifted", clients=8, copies=copies)
    number = made.x[:, 0, 0, 0].astype(int) * 256 + made.x[:, 0, 1, 0]
    group = np.empty(len(made.y), int)
    for split in (made.train, made.test):
        group[split.rows] = np.repeat(made.groups, split.size)
    np.testing.assert_array_equal(made.y, (number % 10 + np.array([0, 3, 6, 9])[group]) % 10)
    assert len(made.y) == (3200 if copies else 800)


def test_clients_of_a_group_hold_classes_by_dirichlet():
    """A group's clients hold all its examples: about equal numbers of each class with a large α, else not."""
    spread = {}
    for alpha in (1e4, 0.1):
        made = federation(DATA, "shifted", clients=8, shifts=(0, 3), alpha=alpha, min_examples=(1, 0))
        owner = np.repeat(np.arange(8), made.train.size)
        counts = np.zeros((8, 10), int)
        np.add.at(counts, (owner, made.y[made.train.rows]), 1)
        np.testing.assert_array_equal([counts[:4].sum(0), counts[4:].sum(0)], 60)
        number = made.x[made.train.rows][:, 0, 0, 0].astype(int) * 256 + made.x[made.train.rows][:, 0, 1, 0]
        np.testing.assert_array_equal(made.y[made.train.rows], (number + 3 * made.groups[owner]) % 10)
        spread[alpha] = counts.std(0).mean()
    assert spread[1e4] < 1 and spread[0.1] > 15


def test_hybrid_groups_have_a_dataset_each():
    two = numbered(500, 100, name="two")
    two.train.x[:, 3, 3], two.test.x[:, 3, 3] = 7, 7
    one = numbered(600, 200, name="one")
    one.train.x[:, 3, 3], one.test.x[:, 3, 3] = 0, 0
    made = federation((one, two), "hybrid", clients=10)
    for split in (made.train, made.test):
        np.testing.assert_array_equal(made.x[split.rows, 3, 3, 0], 7 * np.repeat(made.groups, split.size))
    assert made.train.size.tolist() == [120] * 5 + [100] * 5


def test_natural_clients_are_the_users():
    made = small("natural")
    for client, rows in enumerate(owned(made.train)):
        number = made.x[rows, 0, 0, 0].astype(int) * 256 + made.x[rows, 0, 1, 0]
        np.testing.assert_array_equal(np.sort(number), np.arange(client, 600, 7))
    assert set(made.groups) == {-1}


def test_natural_leaves_out_small_users_and_draws_among_the_others():
    user = np.repeat(np.arange(5), [4, 30, 30, 30, 30]).astype(np.int32)
    half = Examples(np.arange(len(user), dtype=np.float32)[:, None], np.zeros(len(user), np.int32), user)
    data = Dataset("users", half, half, 1, group_of_user=np.array([0, 1, 1, 2, 2]))
    assert federation(data, "natural").groups.tolist() == [1, 1, 2, 2]
    three = [federation(data, "natural", clients=3, seed=seed) for seed in range(20)]
    assert len({tuple(made.groups) for made in three}) == 2
    assert all(len(made.x) == 180 for made in three)
    with pytest.raises(InputError, match=r"at most 4, got 5: of 5 users .* only 4 "):
        federation(data, "natural", clients=5)


def of_sizes(train, test):
    """A dataset in which user i has `train[i]` training and `test[i]` test examples."""

    def half(sizes):
        user = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
        return Examples(np.zeros((len(user), 1), np.float32), np.zeros(len(user), np.int32), user)

    names = np.array([f"u{i}" for i in range(len(train))])
    return Dataset("users", half(train), half(test), 1, id_of_user=names)


@pytest.mark.parametrize(
    ("train", "test", "least", "said"),
    [
        ([4, 30, 30], [9, 9, 9], (10, 2), "1 of 3 .* fewer than 10 training or 2 test .*=[1, 1] keeps 3"),
        ([4, 30, 30], [9, 1, 9], (10, 2), "2 of 3 .* fewer than 10 training or 2 test .*=[1, 1] keeps 3"),
        ([4, 30, 30], [0, 9, 9], (10, 2), "1 of 3 .* and are left out; scenario.min_examples=[1, 0] keeps 3"),
        ([4, 30, 0], [0, 9, 9], (1, 1), "2 of 3 .* and are left out; scenario.min_examples=[1, 0] keeps 2"),
        (
            [4, 30, 0],
            [0, 9, 9],
            (1, 0),
            "1 of 3 clients have fewer than 1 training or 0 test examples and are left out",
        ),
    ],
)
def test_natural_says_how_many_users_it_leaves_out(train, test, least, said):
    pattern = said.replace("[", r"\[").replace("]", r"\]")
    with pytest.warns(Notice, match=f"^{pattern}$") as caught:
        federation(of_sizes(train, test), "natural", min_examples=least)
    assert len(caught) == 1
    with warnings.catch_warnings(action="error"):
        federation(of_sizes([30, 30], [9, 9]), "natural", min_examples=least)


def test_natural_says_which_users_have_nothing_to_train_or_test_on():
    apart = of_sizes([5, 5, 0], [0, 0, 5])
    with pytest.raises(InputError, match=r"2 without test examples, such as 'u0'") as error:
        federation(apart, "natural", min_examples=(1, 1))
    assert "none of the 3 users" in str(error.value) and "1 without training examples, such as 'u2'" in str(error.value)
    with pytest.raises(InputError, match=r"at most 1, got 2.*1 with fewer than 10 training examples, such as 'u1'"):
        federation(of_sizes([10, 5], [2, 2]), "natural", clients=2)


def test_natural_sets_test_examples_aside():
    data = numbered(700, 0)
    made = federation(data, "natural", test_fraction=0.3)
    assert set(made.train.size) == {70}
    assert set(made.test.size) == {30}


# --- group sizes ---


def test_uneven_sizes_are_the_papers():
    # eq. 2 by hand: 25/(137/60) = 10.9, 5.5, 3.6, 2.7, 2.2; the three left over go to the first
    assert np.bincount(client_groups(25, 5, "uneven")).tolist() == [13, 5, 3, 2, 2]
    assert np.bincount(client_groups(22, 4, "equal")).tolist() == [6, 6, 5, 5]
    assert client_groups(4, 2, (1, 3)).tolist() == [0, 1, 1, 1]


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(30, 500), groups=st.integers(1, 8))
def test_uneven_sizes_fall(clients, groups):
    sizes = np.bincount(client_groups(clients, groups, "uneven"))
    assert sizes.sum() == clients
    assert np.all(np.diff(sizes) <= 0)


# --- refusals ---


@pytest.mark.parametrize(
    ("scenario", "options", "complaint"),
    [
        ("iid", {"clients": 601}, r"601 clients and 600 training examples"),
        ("iid", {"clients": 60, "min_examples": (1, 4)}, r"60 clients and 200 test examples.*4 each \(240\)"),
        ("rotated", {"clients": 3}, r"3 are too few for 4 groups"),
        (
            "rotated",
            {"clients": 400},
            r"group 0 has 100 clients and 600 training examples, fewer than 10 each \(1000\)",
        ),
        ("rotated", {"clients": 8, "sizes": (4, 4)}, r"expected 4 numbers that add up to 8 .* got 2"),
        ("rotated", {"clients": 8, "sizes": (1, 2, 3, 4)}, r"add up to 8 clients, got 4 that add up to 10"),
        ("rotated", {"clients": 0}, r"clients: .*greater than or equal to 1, got 0"),
        ("rotated", {"held_ot": 0.3}, r"'held_ot'; did you mean 'held_out'"),
        ("rotatd", {}, r"did you mean 'rotated'"),
        ("pathological", {"label_sets": ((0, 10),)}, r"label 10 does not exist, the labels are 0 to 9"),
        ("pathological", {"label_sets": ((0, 1), ())}, r"of which none is empty"),
        ("n_class", {"n": 11}, r"11 classes per client, but numbered has 10"),
        ("grouped_n_class", {"a": 2, "b": 3}, r"a = 2, b = 3"),
        ("grouped_n_class", {"a": 11}, r"<= 10 classes of numbered, got a = 11"),
        ("dirichlet", {"alpha": 0}, r"alpha: .*greater than 0"),
        ("grouped_dirichlet", {"clients": 100}, r"need 1000 training and 200 test .* numbered has 600 and 200"),
        ("grouped_dirichlet", {"clients": 59}, r"1000 draws of Dir\(0.1\)"),
        ("hybrid", {}, r"two datasets or more, one per group, got 1"),
        ("iid", {"held_out": 1.0}, r"held_out: .*less than 1, got 1.0"),
        ("iid", {"clients": 3, "held_out": 0.1}, r"held_out: 0.1 of 3 clients is 0"),
        ("iid", {"scale": "unitt"}, r"scale: "),
    ],
)
def test_refused_with_the_numbers(scenario, options, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        federation(DATA, scenario, **options)
    assert "\n" not in str(caught.value)


def test_refused_datasets():
    with pytest.raises(InputError, match="takes one dataset, got 2"):
        federation((DATA, DATA), "iid")
    with pytest.raises(InputError, match=r"numbered has \[4, 4, 1\] uint8, labelled has \[1\] float32"):
        federation((DATA, labelled(10, 2)), "hybrid")
    with pytest.raises(InputError, match=r"images .* shape \[1\]"):
        federation(labelled(100, 2), "rotated")
    with pytest.raises(InputError, match="square images, got 4 by 6"):
        federation(numbered(600, 200, shape=(4, 6)), "rotated", clients=8)
    with pytest.raises(InputError, match=r"labelled has none: .* an array clients"):
        federation(labelled(100, 2), "natural")


def test_a_crowd_shares_its_pool():
    """Every client has as many examples, of its own half and its own group's angle; others may have them too."""
    found = federation(DATA, "crowd", seed=3, clients=1000, angles=(0.0, 90.0), examples=(7, 2))
    assert (found.train.size == 7).all()
    assert (found.test.size == 2).all()
    upright = found.groups == 0
    assert upright.sum() == 500
    for split, tests in ((found.train, 0), (found.test, 1)):
        rows = np.stack(owned(split))  # [m, n]
        assert (np.asarray(found.x)[rows[upright]][..., 0, 2, 0] == tests).all()
        assert (rows[upright] < 800).all()
        assert (rows[~upright] >= 800).all()
        assert len(np.unique(rows[upright])) < rows[upright].size
    counts = np.bincount(found.train.rows[found.train.rows < 800], minlength=600)[:600]
    assert 0.5 < counts.var() / counts.mean() < 2  # uniform: Poisson, nearly
    again = federation(DATA, "crowd", seed=3, clients=1000, angles=(0.0, 90.0), examples=(7, 2))
    np.testing.assert_array_equal(found.train.rows, again.train.rows)
