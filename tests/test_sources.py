import gzip
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from jcfl.data import load
from jcfl.data.dataset import examples, random_share
from jcfl.data.generated import true_parameters
from jcfl.data.idx import EMNIST_CLASSES, FILES
from jcfl.errors import InputError
from jcfl.registry import find, names, schema

RNG = np.random.default_rng(0)


def write_idx(path, array):
    """The IDX format, written from its description: two zeros, the type (8: byte), the rank, big-endian sizes."""
    data = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_four(folder, files=FILES, suffix="", highest=9, first=0):
    arrays = []
    for file, n in zip(files, (20, 20, 10, 10), strict=True):
        array = RNG.integers(0, 256, (n, 4, 3), np.uint8)
        if "labels" in file:
            array = (np.arange(n) % (highest + 1 - first) + first).astype(np.uint8)
        write_idx(folder / (file + suffix), array)
        arrays.append(array)
    return arrays


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "unprepared"))


def test_every_source_says_in_a_line_what_it_is_and_has_a_schema():
    expected = {"digits", "mnist", "fashion_mnist", "emnist", "cifar10", "cifar100", "pathmnist", "tissuemnist"}
    expected |= {"medmnist", "femnist", "celeba", "leaf", "arrays", "gaussian", "tfds"}
    assert expected <= set(names("data"))
    for name in expected:
        assert find("data", name).__doc__.splitlines()[0].endswith(".")
        assert all("description" in option for option in schema(find("data", name)).values())


def test_digits_are_sklearns_with_the_full_range_of_bytes():
    data = load("digits")
    bunch = load_digits()
    assert data.shape == (8, 8, 1) and data.classes == 10 and data.users == 0
    assert data.train.x.dtype == np.uint8 and data.train.y.dtype == np.int32
    assert data.train.x.max() == 255 and data.train.x.min() == 0
    both = np.concatenate([data.train.x, data.test.x]).reshape(1797, 64)
    levels = np.rint(both / 255 * 16).astype(int)
    assert sorted(map(tuple, levels)) == sorted(map(tuple, bunch.images.reshape(-1, 64).astype(int)))
    share = np.bincount(data.test.y) / np.bincount(bunch.target)
    assert np.all(abs(share - 0.2) < 0.003)
    again = load("digits")
    assert np.array_equal(again.test.x, data.test.x) and np.array_equal(again.test.y, data.test.y)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_real_idx_files_are_read_whole_and_fast(data_dir, name):
    start = time.process_time()
    data = load(name, data_dir)
    assert time.process_time() - start < 2  # a loop over the images would take longer
    assert data.train.x.shape == (60_000, 28, 28, 1) and data.test.x.shape == (10_000, 28, 28, 1)
    assert data.train.x.dtype == np.uint8 and set(np.unique(data.test.y)) == set(range(10))
    if name == "mnist":
        assert data.train.y[:5].tolist() == [5, 0, 4, 1, 9]
        assert np.isclose(data.train.x.mean() / 255, 0.1307, atol=1e-4)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
def test_idx_plain_or_compressed_in_every_folder(tmp_path, suffix, place):
    x, y, x_test, y_test = write_four(tmp_path / place, suffix=suffix)
    data = load("mnist", tmp_path)
    assert np.array_equal(data.train.x[..., 0], x) and np.array_equal(data.train.y, y)
    assert np.array_equal(data.test.x[..., 0], x_test) and np.array_equal(data.test.y, y_test)


def test_files_of_mnist_are_never_taken_for_fashion_mnist(tmp_path):
    write_four(tmp_path)
    with pytest.raises(InputError, match="'fashion_mnist' not found"):
        load("fashion_mnist", tmp_path)
    write_four(tmp_path / "Fashion")
    assert len(load("fashion_mnist", tmp_path / "Fashion").train) == 20
    with pytest.raises(InputError, match="'mnist' not found"):
        load("mnist", tmp_path / "Fashion")


def test_the_folder_comes_from_the_argument_then_the_environment_then_data(tmp_path, monkeypatch):
    for name in ("a", "b", "here/data"):
        write_four(tmp_path / name / "mnist")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("JCFL_DATA", raising=False)
    first = {name: load("mnist", tmp_path / name).train.x for name in ("a", "b", "here/data")}
    assert np.array_equal(load("mnist").train.x, first["here/data"])
    monkeypatch.setenv("JCFL_DATA", str(tmp_path / "b"))
    assert np.array_equal(load("mnist").train.x, first["b"])
    assert np.array_equal(load("mnist", tmp_path / "a").train.x, first["a"])
    assert not np.array_equal(first["a"], first["b"])


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "emnist", "cifar10", "cifar100"])
def test_a_missing_dataset_fails_at_once_and_says_what_to_do(tmp_path, name):
    start = time.perf_counter()
    with pytest.raises(InputError) as error:
        load(name, tmp_path)
    assert time.perf_counter() - start < 1
    said = str(error.value)
    assert str(tmp_path) in said and str(tmp_path / "unprepared") in said
    assert "curl" in said and "jcfl[prepare]" in said and "\n" not in said
    assert ("ubyte" if "mnist" in name else "test") in said


def truncated(data):
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("index", "suffix", "damage", "said"),
    [
        (0, "", lambda data: b"\0\0\x08\x01" + data[4:], "magic number 0x00000801; expected 0x00000803"),
        (1, "", lambda data: b"\0\0\x09\x01" + data[4:], "magic number"),
        (0, "", lambda data: data[:-1], "255 bytes; its header 20x4x3 says 256"),
        (2, "", lambda data: data + b"!", "137 bytes; its header 10x4x3 says 136"),
        (3, "", lambda data: data[:6], "6 bytes"),
        (0, ".gz", truncated, "gzip"),
        (1, ".gz", lambda data: b"no gzip", "gzip"),
        (0, ".gz", lambda data: data[:20] + bytes([data[20] ^ 255]) + data[21:], "gzip"),
        (3, "", lambda data: data[:-1] + b"\x0a", "label 10 of example 9 is out of range 0..9"),
        (1, "", lambda data: data[:7] + b"\x13" + data[8:-1], "19 labels for the 20 images"),
    ],
)
def test_a_corrupt_idx_file_is_refused_by_name(tmp_path, index, suffix, damage, said):
    write_four(tmp_path / "mnist", suffix=suffix)
    path = tmp_path / "mnist" / (FILES[index] + suffix)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as error:
        load("mnist", tmp_path)
    assert said in str(error.value) and str(path) in str(error.value)


def test_a_file_missing_beside_others_is_named(tmp_path):
    write_four(tmp_path / "mnist")
    (tmp_path / "mnist" / FILES[1]).unlink()
    with pytest.raises(InputError, match=f"{FILES[1]} missing beside {FILES[0]}"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("split", EMNIST_CLASSES)
def test_emnist_is_upright_and_its_letters_start_at_zero(tmp_path, split):
    files = [f"emnist-{split}-{file.replace('t10k', 'test')}" for file in FILES]
    first, classes = int(split == "letters"), EMNIST_CLASSES[split]
    x, y, _, _ = write_four(tmp_path / "gzip", files, ".gz", highest=classes - 1 + first, first=first)
    data = load("emnist", tmp_path, split=split)
    assert data.classes == classes and data.shape == (3, 4, 1)
    assert np.array_equal(data.train.x[:, 2, 1, 0], x[:, 1, 2]) and np.array_equal(data.train.y, y - first)


def test_emnist_letters_labelled_zero_are_refused(tmp_path):
    files = [f"emnist-letters-{file.replace('t10k', 'test')}" for file in FILES]
    write_four(tmp_path, files, highest=5, first=0)
    with pytest.raises(InputError, match=r"label -1 .* out of range 0\.\.25"):
        load("emnist", tmp_path, split="letters")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("mnits", {}, "did you mean 'mnist'"),
        ("emnist", {"split": "letter"}, "split"),
        ("gaussian", {"separation": 2.0}, "separation"),
        ("gaussian", {"group": 3}, "did you mean 'groups'"),
        ("gaussian", {"groups": 7, "users": 6}, "6 users cannot fill 7 groups"),
    ],
)
def test_wrong_names_and_options_are_refused(name, options, said):
    with pytest.raises(InputError, match=said):
        load(name, **options)


def test_gaussian_users_learn_what_their_group_learns():
    data = load("gaussian", groups=3, users=7, train=60, test=40, features=6, classes=4, seed=5)
    weights = true_parameters(3, 6, 4, seed=5)
    assert data.users == 7 and data.group_of_user.tolist() == [0, 0, 0, 1, 1, 2, 2]
    for part, size in ((data.train, 60), (data.test, 40)):
        assert np.bincount(part.user).tolist() == [size] * 7
        for x, y, user in zip(part.x, part.y, part.user, strict=True):
            assert y == np.argmax(weights[data.group_of_user[user]] @ x)
    group = data.group_of_user[data.train.user]
    own = [LogisticRegression(C=100).fit(data.train.x[group == g], data.train.y[group == g]) for g in range(3)]
    tests = [data.group_of_user[data.test.user] == g for g in range(3)]
    score = [[model.score(data.test.x[t], data.test.y[t]) for t in tests] for model in own]
    assert np.min(np.diag(score)) > 0.85 and np.max(np.array(score)[~np.eye(3, dtype=bool)]) < 0.6


def test_gaussian_seed_separation_and_noise():
    same, other = (load("gaussian", seed=seed, users=8) for seed in (1, 2))
    assert np.array_equal(same.train.x, load("gaussian", seed=1, users=8).train.x)
    assert not np.any(same.train.x == other.train.x)
    assert len(np.unique(same.train.x[:, 0])) == len(same.train) and not np.isin(same.test.x, same.train.x).any()
    together = true_parameters(3, 5, 4, separation=0.0)
    assert np.array_equal(together[0], together[2])
    assert np.allclose(np.linalg.norm(true_parameters(3, 5, 4, separation=0.4), axis=-1), 1)
    noisy = load("gaussian", seed=1, users=8, noise=1.0)
    assert np.array_equal(noisy.train.x, same.train.x)
    assert 0.2 < np.mean(noisy.train.y != same.train.y) < 0.8


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0.05, 0.95), st.integers(0, 9))
def test_the_tested_share_of_every_stratum(strata, fraction, seed):
    strata = np.array(strata)
    mask = random_share(strata, fraction, seed)
    for stratum in np.unique(strata):
        size = np.sum(strata == stratum)
        assert mask[strata == stratum].sum() == min(int(np.floor(fraction * size + 0.5)), size - 1)
    assert np.array_equal(mask, random_share(strata, fraction, seed))


def test_the_draw_moves_with_the_seed():
    strata = np.zeros(100, int)
    assert not np.array_equal(random_share(strata, 0.5, 0), random_share(strata, 0.5, 1))


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.array([[1.0], [np.nan]]), [0, 1], "example 1 has a NaN"),
        (np.array([[np.inf], [1.0]]), [0, 1], "example 0 has a NaN or infinite"),
        (np.array([[1e300], [1.0]]), [0, 1], "example 0"),
        (np.zeros((2, 1), np.int64), [0, 1], "int64; expected uint8"),
        (np.zeros((2, 1)), [0, 2], "label 2 of example 1 is out of range 0..1"),
        (np.zeros((2, 1)), [-1, 0], "label -1 of example 0"),
        (np.zeros((2, 1)), [0.5, 0], "whole numbers"),
        (np.zeros((2, 1)), [np.nan, 0], "whole numbers"),
        (np.zeros((2, 1)), ["a", "b"], "whole numbers"),
        (np.zeros((2, 1)), np.eye(2), "one label per example"),
        (np.zeros((3, 1)), [0, 1], "3 examples but 2 labels"),
        (np.zeros((0, 1)), [], "no examples"),
        (np.zeros(2), [0, 1], r"the shape \(2,\); expected \(n, ...\)"),
    ],
)
def test_examples_that_cannot_be_trained_on_are_refused(x, y, said):
    with pytest.raises(InputError, match=said) as error:
        examples(x, np.array(y), classes=2, where="here.npz")
    assert "here.npz" in str(error.value)
