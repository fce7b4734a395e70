import warnings

import numpy as np
import pandas as pd
import pytest
from flax import linen as nn

import jcfl
from jcfl import registry
from jcfl.core import chunks
from jcfl.data import federation, from_arrays, from_clients, label_counts, load, overlaps, place
from jcfl.data.mapped import mapped
from jcfl.data.partition import Partition, pool
from jcfl.errors import InputError, Notice

RNG = np.random.default_rng(4)
X, Y = RNG.integers(0, 256, (30, 4, 4, 3), np.uint8), np.arange(30) % 3
CLIENTS = np.array(["zoe", "ann", "bob"])[np.arange(30) // 10]


def indices(part):
    """Where every example of a part lies in X."""
    return [int(np.flatnonzero((one == X).all((1, 2, 3)))[0]) for one in part.x]


def test_from_arrays_draws_the_test_set_from_every_client():
    data = from_arrays(X, Y, CLIENTS, test=0.3, groups=[5, 6, 7])
    train, test = indices(data.train), indices(data.test)
    assert sorted(train + test) == list(range(30))
    assert np.bincount(data.test.user).tolist() == [3, 3, 3] and data.users == 3 and data.classes == 3
    names = np.array(["ann", "bob", "zoe"])
    assert np.array_equal(names[data.train.user], CLIENTS[train]) and np.array_equal(data.test.y, Y[test])
    assert data.group_of_user.tolist() == [5, 6, 7]
    assert indices(from_arrays(X, Y, CLIENTS, test=0.3, seed=1).test) != test


def test_from_arrays_without_clients_draws_from_every_class():
    data = from_arrays(X.astype(np.float64) / 255, Y, test=0.1)
    assert np.bincount(data.test.y).tolist() == [1, 1, 1] and data.test.user is None and data.users == 0
    assert data.train.x.dtype == np.float32


def test_from_arrays_with_a_test_set_numbers_clients_over_both():
    data = from_arrays(X, Y, [3] * 15 + [9] * 15, test=(X[:4], Y[:4], [9, 1, 3, 9]), classes=5)
    assert len(data.train) == 30 and indices(data.test) == [0, 1, 2, 3] and data.classes == 5
    assert data.test.user.tolist() == [2, 0, 1, 2] and set(data.train.user) == {1, 2} and data.users == 3


def test_images_of_one_channel_gain_their_axis_and_features_none():
    assert from_arrays(X[..., 0], Y).shape == (4, 4, 1)
    assert from_arrays(X[:, 0, :, 0], Y).shape == (4,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y": Y[:-1]}, "30 examples, 29 labels"),
        ({"clients": CLIENTS[:-1]}, "29 clients' ids"),
        ({"test": 1.0}, "between 0 and 1, got 1.0"),
        ({"test": (X[:2], Y[:2])}, "both train and test"),
        ({"test": (X[:2, :1], Y[:2], CLIENTS[:2])}, r"the shape \(4, 4, 3\), those to test on \(1, 4, 3\)"),
        ({"test": (X[:2], Y[:2], CLIENTS[:1])}, "2 examples but 2 labels and 1 clients' ids"),
        ({"groups": [0, 1]}, "2 groups for 3 clients"),
        ({"classes": 2}, r"label 2 .* out of range 0\.\.1"),
        ({"x": X.astype(int)}, "expected uint8"),
        ({"x": np.where(X > 0, X, np.nan)}, "NaN"),
        ({"y": Y - 1}, "label -1"),
        ({"x": 5.0}, "expected"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, said):
    given = {"x": X, "y": Y, "clients": CLIENTS} | change
    with pytest.raises(InputError, match=said):
        from_arrays(**given)


def test_an_npz_and_a_folder_of_npy_give_the_same_as_the_arrays(tmp_path, monkeypatch):
    want = from_arrays(X, Y, CLIENTS, test=0.4, groups=[1, 0, 1])
    np.savez(tmp_path / "mine.npz", x=X, y=Y, users=CLIENTS, groups=[1, 0, 1], other=3)
    (tmp_path / "folder").mkdir()
    for name, array in {"x": X, "y": Y[:, None], "clients": CLIENTS, "groups": np.array([1, 0, 1])}.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    monkeypatch.chdir(tmp_path)
    for folder, path in ((tmp_path, "mine.npz"), (tmp_path / "none", "mine.npz"), (tmp_path, "folder/x.npy")):
        data = load("arrays", folder, path=path, test=0.4)
        assert data.name == path.split("/")[0].removesuffix(".npz")
        assert np.array_equal(data.train.x, want.train.x) and np.array_equal(data.test.user, want.test.user)
        assert np.array_equal(data.train.y, want.train.y) and data.group_of_user.tolist() == [1, 0, 1]


def test_an_npz_with_its_own_test_set(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x_train=X[:20], y_train=Y[:20], x_test=X[20:], y_test=Y[20:])
    data = load("arrays", tmp_path, path="a.npz")
    assert indices(data.train) == list(range(20)) and indices(data.test) == list(range(20, 30))
    np.savez(tmp_path / "b.npz", x=X, y=Y, x_test=X)
    with pytest.raises(InputError, match=r"b\.npz: x_test and y_test go together"):
        load("arrays", tmp_path, path="b.npz")
    np.savez(tmp_path / "c.npz", x=X, labels=Y)
    with pytest.raises(InputError, match=r"c\.npz: no array 'y'; it has x, labels$"):
        load("arrays", tmp_path, path="c.npz")
    np.savez(tmp_path / "d.npz", X=X, Y=Y, clients=CLIENTS)
    with pytest.raises(InputError, match=r"d\.npz: no array 'x'; it has X, Y, clients$"):
        load("arrays", tmp_path, path="d.npz")
    (tmp_path / "folder").mkdir()
    for name in ("Y", "X"):
        np.save(tmp_path / "folder" / f"{name}.npy", Y)
    with pytest.raises(InputError, match=r"folder: no array 'x'; it has X, Y$"):
        load("arrays", tmp_path, path="folder")


def test_a_file_of_another_kind_is_told_what_is_expected(tmp_path):
    (tmp_path / "mine.csv").write_text("x,y\n1,2\n")
    with pytest.raises(
        InputError, match=r"mine\.csv: expected an \.npz file, or a folder of \.npy files, got .* ends in '\.csv'"
    ):
        load("arrays", tmp_path, path="mine.csv")
    np.savez(tmp_path / "mine.npz", x=X, y=Y)
    (tmp_path / "mine.npz").rename(tmp_path / "mine.zip")
    assert len(load("arrays", tmp_path, path="mine.zip").train) == 24


@pytest.mark.parametrize("source", ["arrays", "medmnist"])
@pytest.mark.parametrize("damage", [lambda d: d[: len(d) // 2], lambda d: b"no archive", lambda d: b""])
def test_damaged_archives_are_refused_by_name(tmp_path, source, damage):
    path = tmp_path / "broken.npz"
    np.savez_compressed(path, x=X, y=Y)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"corrupt file .*broken\.npz"):
        load(source, tmp_path, **{"path" if source == "arrays" else "file": "broken.npz"})


def test_damaged_members_and_pickled_objects_are_refused_by_name(tmp_path):
    path = tmp_path / "bits.npz"
    np.savez_compressed(path, x=X, y=Y)
    data = bytearray(path.read_bytes())
    data[300:340] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"corrupt file .*bits\.npz"):
        load("arrays", tmp_path, path="bits.npz")
    np.savez(path, x=X, y=np.array([{}] * 30, dtype=object))
    with pytest.raises(
        InputError, match=r"bits\.npz: array 'y' holds Python objects; save it as .*np\.asarray\(y\.tol"
    ):
        load("arrays", tmp_path, path="bits.npz")


def test_ids_of_pandas_are_told_how_to_be_saved(tmp_path):
    ids = pd.DataFrame({"who": CLIENTS})["who"]
    np.savez(tmp_path / "mine.npz", x=X, y=Y, clients=np.asarray(ids, object))
    with pytest.raises(
        InputError, match=r"'clients' holds Python objects; save it as text: clients=np.asarray\(ids, str"
    ):
        load("arrays", tmp_path, path="mine.npz")
    np.savez(tmp_path / "mine.npz", x=X, y=Y, clients=np.asarray(ids, str))
    assert load("arrays", tmp_path, path="mine.npz").id_of_user.tolist() == ["ann", "bob", "zoe"]


def med(tmp_path, name, channels, classes, **more):
    shape = (28, 28, 3) if channels == 3 else (28, 28)
    given = {}
    for part, n in (("train", 12), ("val", 5), ("test", 9)):
        given[f"{part}_images"] = RNG.integers(0, 256, (n, *shape), np.uint8)
        given[f"{part}_labels"] = (np.arange(n) % classes)[:, None].astype(np.uint8)
    np.savez_compressed(tmp_path / f"{name}.npz", **given | more)
    return given


@pytest.mark.parametrize(("name", "channels", "classes"), [("pathmnist", 3, 9), ("tissuemnist", 1, 8)])
def test_medmnist_with_every_use_of_the_validation_images(tmp_path, name, channels, classes):
    given = med(tmp_path, name, channels, classes)
    train, val, test = (given[f"{part}_images"].reshape(-1, 28, 28, channels) for part in ("train", "val", "test"))
    for validation, want in {
        "drop": (train, test),
        "train": (np.concatenate([train, val]), test),
        "test": (train, np.concatenate([test, val])),
    }.items():
        data = load(name, tmp_path, validation=validation)
        assert np.array_equal(data.train.x, want[0]) and np.array_equal(data.test.x, want[1])
    assert data.classes == classes and data.name == name and data.train.y.tolist()[:3] == [0, 1, 2]


def test_any_medmnist_file_and_what_it_refuses(tmp_path):
    med(tmp_path, "blood", 3, 4)
    assert load("medmnist", tmp_path, file="blood.npz").classes == 4
    med(tmp_path, "chest", 1, 2, train_labels=np.zeros((12, 14), np.uint8))
    with pytest.raises(InputError, match=r"chest\.npz: 14 labels per image"):
        load("medmnist", tmp_path, file="chest.npz")
    med(tmp_path, "pathmnist", 3, 10)
    with pytest.raises(InputError, match=r"pathmnist\.npz: label 9 .* out of range 0\.\.8"):
        load("pathmnist", tmp_path)
    np.savez(tmp_path / "part.npz", train_images=X)
    with pytest.raises(InputError, match=r"part\.npz: no array 'train_labels'"):
        load("medmnist", tmp_path, file="part.npz")
    with pytest.raises(InputError, match=r"tissuemnist\.npz.*curl .*tissuemnist\.npz"):
        load("tissuemnist", tmp_path)


def test_a_medmnist_file_whose_labels_begin_with_one_is_noticed(tmp_path):
    """It has a class without examples; there is no option to say that this is right."""
    ones = {f"{part}_labels": 1 + np.arange(n)[:, None] % 3 for part, n in (("train", 12), ("val", 5), ("test", 9))}
    med(tmp_path, "ones", 1, 3, **ones)
    with pytest.warns(Notice, match=r"ones\.npz: the labels are 1 to 3, so .* label 0; subtract 1 from the labels$"):
        assert load("medmnist", tmp_path, file="ones.npz").classes == 4


def given(**changes):
    """Arrays of three clients with ten examples each, floats, with some values changed: `{"x": {row: value}}`."""
    arrays = {"x": X.reshape(30, -1)[:, :5] / 255.0, "y": Y.astype(float), "clients": CLIENTS.astype(object)}
    for name, change in changes.items():
        for row, value in change.items():
            arrays[name][row] = value
    return arrays


@pytest.mark.parametrize("make", [from_arrays, from_clients])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": {17: np.nan}}, "example 17 of client 'ann' has a NaN or infinite value"),
        ({"x": {29: -np.inf}}, "example 29 of client 'bob' has a NaN or infinite value"),
        ({"x": {3: 1e300}}, "example 3 of client 'zoe' has a value that is too large for float32"),
        ({"y": {12: -5}}, r"label -5 of example 12 of client 'ann' is out of range 0\.\."),
        ({"y": {12: 0.5}}, r"label 0\.5 of example 12 of client 'ann'; expected whole numbers"),
        ({"y": {1: np.nan}}, "label nan of example 1 of client 'zoe'; expected whole numbers"),
        ({"y": {1: np.inf}}, "label inf of example 1 of client 'zoe'; expected whole numbers"),
        ({"y": {25: 2.0**31}}, r"label 2147483648 of example 25 of client 'bob' is out of range"),
        ({"clients": {4: None}}, "clients' ids cannot be sorted"),
        ({"clients": {4: 3}}, "clients' ids cannot be sorted"),
    ],
)
def test_a_value_that_cannot_be_trained_on_is_named_with_its_client(make, change, said):
    with pytest.raises(InputError, match=said):
        make(**given(**change))


@pytest.mark.parametrize("make", [from_arrays, from_clients])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": [[1.0], [1.0, 2.0]] * 15}, "examples are no array"),
        ({"x": "pixels"}, r"examples have the shape \(\)"),
        ({"x": [[None]] * 30}, "examples are object"),
        ({"y": 3}, r"labels have the shape \(\)"),
        ({"y": ["cat", None] * 15}, "labels are of the types NoneType and str; expected whole numbers from 0, or text"),
        ({"y": ["cat", 3.0, "dog"] * 10, "classes": 2}, "labels are of the types float and str"),
        ({"y": ["1", "2", "10"] * 10}, r"numbers as text, such as '1'; expected numbers: np\.asarray\(y, float\)"),
        ({"y": ["cat", "dog", ""] * 10}, "10 labels are empty text"),
        ({"y": ["cat", "dog", "eel"] * 10, "classes": 2}, "labels are 3 different texts; expected at most classes=2"),
        ({"y": [1 << 70] * 30}, "labels are object"),
        ({"clients": 7}, "clients' ids have the shape"),
        ({"clients": [[1]] * 30}, r"clients' ids have the shape \(30, 1\)"),
        ({"clients": [float("nan"), *range(29)]}, "example 0 has no client: its id is nan"),
        ({"x": np.ma.masked_greater(given()["x"], 0.5)}, r"examples have masked values, such as at \(\d+, \d\)"),
        (
            {"y": np.ma.masked_array(given()["y"], [False] * 7 + [True] * 23)},
            r"labels have masked values, such as at 7",
        ),
        ({"clients": np.ma.masked_array(CLIENTS, [True] + [False] * 29)}, "ids have masked values, such as at 0"),
        ({"groups": 3}, "1 groups for 3 clients"),
        ({"groups": [0, 1, 0.5]}, r"group 0\.5 of client 'zoe'"),
        ({"groups": [0, -2, 0]}, "group -2 of client 'bob' is out of range -1"),
        ({"groups": ["a", "b", "c"]}, "groups are <U1"),
        ({"classes": 0}, "classes to be a whole number from 1, got 0"),
        ({"classes": "3"}, "classes to be a whole number"),
        ({"classes": 2}, r"label 2 of example 2 of client 'zoe' is out of range 0\.\.1"),
        ({"seed": -1}, "seed to be a whole number from 0, got -1"),
        ({"seed": "x"}, "seed to be a whole number"),
    ],
)
def test_arguments_of_other_kinds_are_refused(make, change, said):
    with pytest.raises(InputError, match=said):
        make(**given() | change)


def test_an_array_without_masked_values_is_an_array():
    made = from_arrays(**given() | {"x": np.ma.masked_greater(given()["x"], 2)})
    np.testing.assert_array_equal(made.train.x.sum(), from_arrays(**given()).train.x.sum())


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (["zoe", "bob", "ann"], [2, 1, 0]),  # as `table.drop_duplicates("who").set_index("who")["group"]` has it
        ([0, 1, 2], [0, 1, 2]),  # no ids: one group after another, in the order of the ids
        (["eve", "tom", "sue"], [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("make", [from_clients, from_arrays])
def test_groups_of_pandas_are_found_by_their_ids(make, index, expected):
    made = make(**given(), groups=pd.Series([0, 1, 2], index))
    groups, ids = (made.groups, made.clients) if make is from_clients else (made.group_of_user, made.id_of_user)
    assert ids.tolist() == ["ann", "bob", "zoe"] and groups.tolist() == expected


@pytest.mark.parametrize("make", [from_clients, from_arrays])
@pytest.mark.parametrize("kind", [dict, pd.Series])
def test_a_client_without_a_group_is_named(make, kind):
    """One of three ids is misspelt; taken in their order, the groups would be those of other clients."""
    with pytest.raises(InputError, match="no group for 1 of 3 clients, such as 'ann'"):
        make(**given(), groups=kind({"zoe": 0, "bob": 1, "anne": 2}))


def test_arrays_that_would_be_ignored_are_named(tmp_path):
    x, y = np.zeros((6, 4), np.float32), np.arange(6) % 2
    for more, said in (
        ({"x_train": x}, "x and x_train are names of the same array"),
        ({"clients_test": y}, "clients of a test set, clients_test, and no x_test"),
    ):
        np.savez(tmp_path / "a.npz", x=x, y=y, **more)
        with pytest.raises(InputError, match=said):
            load("arrays", tmp_path, path="a.npz")
    with pytest.raises(InputError, match="resplit has no meaning for from_clients"):
        from_clients(**given(), resplit=0.2)


@pytest.mark.parametrize("folder", [False, True])
def test_arrays_of_other_names_are_told_of(tmp_path, folder):
    held = {"x": np.zeros((6, 4), np.float32), "y": np.arange(6) % 2, "X_test": np.ones((2, 4)), "note": np.ones(1)}
    for name, array in held.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "a.npz", **held)
    with pytest.warns(Notice, match="that are not read: X_test, note; the names that are read are x, x_train, y"):
        assert len(load("arrays", tmp_path, path="." if folder else "a.npz").test) == 2
    np.save(tmp_path / "clients.npy", np.arange(6) // 3)
    with pytest.warns(Notice, match="that are not read: X_test, note; the names that are read are x, y, clients"):
        mapped(tmp_path)


TEXTS = np.array(["dog", "ant", "cat"])[Y]


@pytest.mark.parametrize(
    "kind",
    [
        lambda y: y,
        list,
        lambda y: y.astype(object),
        lambda y: y.astype("S"),
        lambda y: y.astype("S").astype(object),
        lambda y: y[:, None],
        pd.Series,
        pd.Categorical,
        lambda y: pd.Series(y, dtype="string"),
        lambda y: np.array(y, np.dtypes.StringDType()),
    ],
)
def test_labels_that_are_text_are_numbered_in_alphabetical_order(kind):
    want = np.array([2, 0, 1])[Y]
    made = from_clients(X, kind(TEXTS), CLIENTS)
    assert made.classes == 3 and np.array_equal(
        made.y[made.train.rows], from_clients(X, want, CLIENTS).y[made.train.rows]
    )
    data = from_arrays(X, kind(TEXTS), CLIENTS, (X[:4], kind(np.array(["bee", "dog"])[[0, 1, 0, 0]]), CLIENTS[:4]))
    assert data.classes == 4 and data.test.y.tolist() == [1, 3, 1, 1] and set(data.train.y) == {0, 2, 3}


def test_text_in_files_is_numbered_and_numbers_as_text_only_where_nothing_is_in_doubt(tmp_path, monkeypatch):
    np.savez(tmp_path / "mine.npz", x=X, y=TEXTS, clients=CLIENTS)
    assert load("arrays", tmp_path, path="mine.npz").classes == 3
    assert np.array_equal(from_arrays(X, Y.astype(str)).train.y, from_arrays(X, Y).train.y)
    np.save(tmp_path / "x.npy", X / np.float32(255))
    rows = from_clients(np.load(tmp_path / "x.npy", mmap_mode="r"), TEXTS, CLIENTS)
    assert np.array_equal(rows.y, np.array([2, 0, 1])[Y])
    with pytest.raises(InputError, match="labels to train on are text, those to test on are int64; expected one kind"):
        from_arrays(X, TEXTS, test=(X, Y))
    with pytest.raises(InputError, match="are text, those to test on are bytes"):
        from_arrays(X, TEXTS, test=(X, TEXTS.astype("S")))


def test_labels_without_a_zero_are_noticed_unless_the_number_of_classes_is_given():
    with pytest.warns(
        Notice, match=r"^from_arrays: the labels are 1 to 3, so there are 4 classes, and no .* label 0; "
    ):
        assert from_arrays(X, Y + 1).classes == 4
    with warnings.catch_warnings(action="error"):
        from_arrays(X, Y + 1, classes=4)
        from_arrays(X, Y)


def test_a_test_set_that_is_the_training_set_is_told_of_once(tmp_path):
    said = "the test set is the training set"
    apart = {"x_test": X, "y_test": Y, "clients_test": CLIENTS}
    np.savez(tmp_path / "mine.npz", x_train=X, y_train=Y, x_test=X, y_test=Y)
    with pytest.warns(Notice, match=f"^mine: {said}") as caught:
        federation(load("arrays", tmp_path, path="mine.npz"), "iid", clients=2)
    assert len(caught) == 1
    with pytest.warns(Notice, match=f"^arrays: {said}") as caught:
        from_clients(X, Y, CLIENTS, **apart)
    assert len(caught) == 1
    np.save(tmp_path / "x.npy", X)
    with pytest.warns(Notice, match=said):
        from_clients(np.load(tmp_path / "x.npy", mmap_mode="r"), Y, CLIENTS, **apart)
    with warnings.catch_warnings(action="error"):
        from_clients(X, Y, CLIENTS, **apart | {"x_test": X ^ 1})
        from_clients(X, Y, CLIENTS, **apart | {"y_test": (Y + 1) % 3})
        federation(from_arrays(X, Y), "iid", clients=2, min_examples=(1, 0))


@pytest.mark.parametrize(("same", "said"), [(20, "100%.*say nothing"), (10, "50%.*say less"), (1, None)])
def test_test_examples_that_are_trained_on_are_told_of_in_any_order(same, said):
    x = np.random.default_rng(0).integers(256, size=(20, 4, 4), dtype=np.uint8)
    y, clients = np.arange(20) % 2, np.arange(20) % 3
    x_test = np.concatenate([x[:same], 255 - x[same:]])
    given = {"x_test": x_test[::-1], "y_test": y[::-1], "clients_test": clients}
    if said is None:
        with warnings.catch_warnings(action="error"):
            from_clients(x, y, clients, **given)
            from_clients(np.zeros_like(x), y, clients, **given | {"x_test": np.zeros_like(x)[::-1]})  # copies anyway
    else:
        with pytest.warns(Notice, match=f"^arrays: {said} of new data"):
            from_clients(x, y, clients, **given)


def test_examples_are_compared_once(monkeypatch):
    compared = []
    monkeypatch.setattr(overlaps, "_hashes", lambda examples: compared.append(len(examples)) or iter(examples.y))
    from_clients(X, Y, CLIENTS, test_fraction=0.2)
    assert compared == [24]
    compared.clear()
    federation(from_arrays(X, Y, test=0.2), "iid", clients=2, min_examples=(1, 0))
    assert compared == [24]


def test_clients_without_training_or_test_examples_are_named():
    with pytest.raises(
        InputError, match=r"1 without training examples, such as 'eve', 3 without test examples, such as 'ann'"
    ):
        from_clients(X, Y, CLIENTS, x_test=X[:2] ^ 1, y_test=Y[:2], clients_test=["eve"] * 2)
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(InputError, match=r"1 of 4 have .* such as 'eve' \(0 training and 2 test examples\)"),
    ):
        ids = ["ann", "bob", "zoe", "eve", "eve"]
        from_clients(X, Y, CLIENTS, x_test=X[:5] ^ 1, y_test=Y[:5], clients_test=ids)


def test_whole_numbers_are_pixels_only_as_bytes():
    """A cast to bytes would scale ids and counts, so the refusal names the other way."""
    x, clients = np.arange(40).reshape(20, 2), np.repeat([0, 1], 10)
    with pytest.raises(InputError, match=r"examples are int64; .*divided by 255.*other whole numbers as floats"):
        from_clients(x, clients, clients)
    made = from_clients(x.astype(np.uint8), clients, clients)
    np.testing.assert_allclose(chunks.model_inputs(made, made.train.rows), made.x[made.train.rows] / 255, rtol=1e-6)


@pytest.mark.parametrize("share", ["half", None, float("nan"), [1], (1,), (1, 2, 3, 4)])
def test_a_share_to_test_on_of_another_kind_is_refused(share):
    with pytest.raises(InputError):
        from_arrays(**given(), test=share)


def test_test_examples_are_named_too():
    test = {f"{name}_test": value for name, value in given(y={14: -5}).items()}
    with pytest.raises(InputError, match=r"\(test\): label -5 of example 14 of client 'ann' is out of range"):
        from_clients(**given(), **test)
    dates = np.arange(30).astype("datetime64[D]")
    with pytest.raises(InputError, match="to train and to test on are of different kinds"):
        from_clients(**given() | {"clients": np.arange(30)}, **test | {"y_test": Y, "clients_test": dates})
    with pytest.raises(InputError, match=r"\(float32\), those to test on \(5,\) \(uint8\); expected the same"):
        from_clients(**given(), **test | {"y_test": Y, "x_test": X.reshape(30, -1)[:, :5]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": (3, 30)}, r"\(train\): row 30 of client 'ann' is out of range 0\.\.29"),
        ({"rows": (10, -1)}, r"\(train\): row -1 of client 'bob' is out of range"),
        ({"size": (2, 9)}, r"\(train\): client 'zoe' has the rows 16 to 25 of 24; expected at most 8"),
        ({"start": (1, -3)}, "size -3 of client 'bob' is out of range"),
        ({"y": (0, 3)}, r"label 3 of row \d+ of client 'ann' is out of range 0\.\.2"),
        ({"x": (0, np.nan)}, r"row \d+ of client 'ann' has a NaN"),
    ],
)
def test_a_federation_of_arrays_that_do_not_fit_is_refused(change, said):
    """One that a program has made itself; `place` and `label_counts` look at it."""
    made = from_clients(**given())
    ((name, (index, value)),) = change.items()
    owner = made.train if name in ("rows", "size", "start") else made
    array = np.array(getattr(owner, name))
    array[made.train.rows[index] if owner is made else index] = value
    changed = owner.replace(**{name: array})
    made = changed if owner is made else made.replace(train=changed)
    with pytest.raises(InputError, match=said):
        place(made)
    if owner is not made and name not in ("x", "y"):
        with pytest.raises(InputError, match=said):
            label_counts(made)


@pytest.mark.parametrize(
    ("row", "owner", "said"), [(4, 9, "owner 9 of row 4 is out of range -1..2"), (4, -2, "owner -2 of row 4")]
)
def test_a_scenario_that_returns_rows_out_of_range_is_refused(monkeypatch, row, owner, said):
    def scenario(rng, dataset):
        whole = pool(dataset)
        owners = np.arange(30) % 3
        owners[row] = owner
        return Partition(whole.x, whole.y, whole.trains, owners, np.zeros(3, int))

    monkeypatch.setitem(registry._TABLES["scenario"], "wrong", scenario)
    with pytest.raises(InputError, match=said):
        federation(from_arrays(X, Y), "wrong", min_examples=(1, 0))


class Slides(nn.Module):
    """A convolution along the steps of series."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Conv(3, (5,), strides=2)(x)).mean(1))


@pytest.mark.parametrize("in_file", [False, True])
def test_series_keep_their_axes_and_are_convolved_along_their_steps(tmp_path, in_file):
    rng = np.random.default_rng(0)
    x, y, clients = rng.normal(size=(40, 16, 3)).astype(np.float32), np.arange(40) % 2, np.arange(40) // 10
    x += y[:, None, None] * np.sin(np.arange(16))[:, None].astype(np.float32)
    if in_file:
        np.save(tmp_path / "x.npy", x)
        x = np.load(tmp_path / "x.npy", mmap_mode="r")
    federation = from_clients(x, y, clients, series=True)
    assert federation.x.shape == (40, 16, 3) and from_clients(x, y, clients).x.shape == (40, 16, 3, 1)
    found = jcfl.run(federation, method="fedavg", model=Slides(), rounds=1, train={"epochs": 1, "batch_size": 4})
    assert found["accuracy_micro"].shape == (1, 1)
