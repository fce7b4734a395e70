import json

import numpy as np
import pytest
from PIL import Image

from jcfl.data import load
from jcfl.errors import InputError

RNG = np.random.default_rng(3)


def person(n, d=784, classes=62):
    """The data of one user as LEAF writes it: pixels divided by 255."""
    return {"x": (RNG.integers(0, 256, (n, d)) / 255).tolist(), "y": RNG.integers(0, classes, n).tolist()}


def write(path, people):
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(data["y"]) for data in people.values()]
    path.write_text(json.dumps({"users": list(people), "num_samples": counts, "user_data": people}))


def owned(part, user):
    return part.x[part.user == user], part.y[part.user == user]


@pytest.mark.parametrize("place", ["femnist/data", "femnist", "leaf/data/femnist/data"])
def test_femnist_split_by_leaf_keeps_users_together_over_files(tmp_path, place):
    train = {name: person(n) for name, n in (("w1", 3), ("w0", 2), ("w2", 4))}
    test = {name: person(n) for name, n in (("w2", 1), ("w3", 2), ("w1", 1))}
    root = tmp_path / place
    write(root / "train" / "all_data_0_niid.json", {name: train[name] for name in ("w1", "w0")})
    write(root / "train" / "all_data_1_niid.json", {"w2": train["w2"]})
    write(root / "test" / "all_data_0_niid.json", test)
    data = load("femnist", tmp_path)
    assert data.shape == (28, 28, 1) and data.classes == 62 and data.users == 4 and data.train.x.dtype == np.uint8
    number = {"w1": 0, "w0": 1, "w2": 2, "w3": 3}
    for part, people in ((data.train, train), (data.test, test)):
        for name, given in people.items():
            x, y = owned(part, number[name])
            assert np.array_equal(x.reshape(-1, 784) / 255, given["x"]) and y.tolist() == given["y"]
        assert len(part) == sum(len(given["y"]) for given in people.values())


@pytest.mark.parametrize("place", ["femnist/data/all_data", "femnist/data"])
def test_unsplit_files_give_a_share_of_every_user_to_the_test(tmp_path, place):
    people = {f"w{i}": person(20) for i in range(3)}
    for given in people.values():
        given["x"] = np.round(given["x"], 4).tolist()  # some files are written with fewer digits
    write(tmp_path / place / "all_data_0.json", {"w0": people["w0"], "w1": people["w1"]})
    write(tmp_path / place / "all_data_1.json", {"w2": people["w2"]})
    data = load("femnist", tmp_path, test=0.25)
    assert np.bincount(data.train.user).tolist() == [15] * 3 and np.bincount(data.test.user).tolist() == [5] * 3
    for user, name in enumerate(people):
        both = np.concatenate([owned(part, user)[0] for part in (data.train, data.test)]).reshape(-1, 784)
        want = np.rint(np.array(people[name]["x"]) * 255).astype(int)
        assert sorted(map(tuple, both.astype(int))) == sorted(map(tuple, want))
    assert np.array_equal(load("femnist", tmp_path, test=0.25).test.x, data.test.x)
    with pytest.raises(InputError, match=r"0\.01 of a user's few examples is none to test on"):
        load("femnist", tmp_path, test=0.01)


def test_celeba_reads_the_pictures_its_files_name(tmp_path):
    folder = tmp_path / "celeba" / "data"
    (folder / "raw" / "img_align_celeba").mkdir(parents=True)
    colours = RNG.integers(0, 256, (6, 3), np.uint8)
    for i, colour in enumerate(colours):
        flat = Image.fromarray(np.broadcast_to(colour, (22, 18, 3)).copy())
        flat.save(folder / "raw" / "img_align_celeba" / f"{i}.png")
    write(folder / "train" / "a.json", {"7": {"x": ["0.png", "1.png"], "y": [0, 1]}, "9": {"x": ["2.png"], "y": [1]}})
    write(folder / "test" / "a.json", {"9": {"x": ["3.png", "4.png"], "y": [1, 0]}, "7": {"x": ["5.png"], "y": [0]}})
    data = load("celeba", tmp_path, size=6)
    assert data.shape == (6, 6, 3) and data.classes == 2 and data.users == 2
    assert np.array_equal(data.train.x, np.broadcast_to(colours[:3, None, None], (3, 6, 6, 3)))
    assert np.array_equal(data.test.x[:, 0, 0], colours[3:]) and data.test.user.tolist() == [1, 1, 0]
    (folder / "raw" / "img_align_celeba" / "2.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"corrupt file .*2\.png"):
        load("celeba", tmp_path)
    (folder / "raw" / "img_align_celeba" / "2.png").unlink()
    with pytest.raises(InputError, match=r"no image .*2\.png"):
        load("celeba", tmp_path)


def test_any_leaf_dataset_of_numbers(tmp_path):
    people = {"a": {"x": [[0.5, -3.0], [7.25, 2.0]], "y": [0.0, 2.0]}, "b": {"x": [[1.0, 1.5]] * 2, "y": [1, 1]}}
    write(tmp_path / "mine" / "all_data.json", people)
    data = load("leaf", tmp_path, path="mine", test=0.5)
    assert data.name == "mine" and data.classes == 3 and data.shape == (2,) and data.train.x.dtype == np.float32
    rows = np.concatenate([data.train.x, data.test.x])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, people["a"]["x"] + people["b"]["x"]))
    assert load("leaf", tmp_path, path="mine", test=0.5, shape=(1, 2, 1)).shape == (1, 2, 1)
    with pytest.raises(InputError, match=r"2 numbers cannot take the shape \(3,\)"):
        load("leaf", tmp_path, path="mine", shape=(3,))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"users": ["a"], "num_samples": [2', "not a LEAF file"),
        ('{"users": ["a"], "num_samples": [1]}', "no entry 'user_data'"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"b": {}}}', "no entry 'a'"),
        ('{"users": ["a"], "num_samples": [], "user_data": {"a": {}}}', "not a LEAF file"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]]}}}', "user 'a': examples of different"),
        ('{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1]], "y": [0]}}}', "num_samples 2"),
        ('{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1], [1, 2]], "y": [0, 1]}}}', "different"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": ["to be"], "y": [0]}}}', "x is text"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": ["b"]}}}', "whole numbers"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[NaN]], "y": [1]}}}', "NaN"),
    ],
)
def test_corrupt_leaf_files_are_refused_by_name(tmp_path, content, said):
    path = tmp_path / "mine" / "all_data.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(InputError) as error:
        load("leaf", tmp_path, path="mine")
    assert said in str(error.value) and str(path.parent) in str(error.value)


def test_femnist_pixels_and_labels_out_of_range_are_refused(tmp_path):
    path = tmp_path / "femnist" / "all_data.json"
    write(path, {"a": {"x": [[1.5] * 784] * 2, "y": [0, 1]}})
    with pytest.raises(InputError, match=r"pixels from 1\.5 to 1\.5; expected 0 to 1"):
        load("femnist", tmp_path)
    write(path, {"a": {"x": [[1.0] * 784] * 2, "y": [62, 62]}})
    with pytest.raises(InputError, match=r"label 62 .* 0\.\.61"):
        load("femnist", tmp_path)


def test_a_missing_leaf_dataset_says_how_to_make_it(tmp_path):
    with pytest.raises(InputError, match=r"train/\*\.json.*git clone.*data/celeba .*preprocess\.sh -s niid"):
        load("celeba", tmp_path)
    write(tmp_path / "femnist" / "train" / "a.json", {"a": person(1)})
    with pytest.raises(InputError, match=r"no \.json files in test/ beside train/"):
        load("femnist", tmp_path)


def test_a_user_of_two_files_is_refused(tmp_path):
    """A copy of a file beside it would bring the same examples into training and test."""
    root = tmp_path / "femnist" / "data"
    write(root / "all_data_0.json", {"ann": person(4), "bob": person(4)})
    write(root / "all_data_1.json", {"ann": person(4)})
    with pytest.raises(InputError, match=r"all_data_1.json: user 'ann' is in all_data_0.json too"):
        load("femnist", tmp_path)
