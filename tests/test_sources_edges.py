"""Odd arrays, files and folders: what is refused, with which line, and what is taken as it is."""

import os
import stat
import warnings

import numpy as np
import pytest

from jcfl.data import federation, from_arrays, from_clients, load
from jcfl.data.dataset import Dataset, Examples, examples
from jcfl.data.files import data_folder, exists
from jcfl.data.generated import true_parameters
from jcfl.data.mapped import mapped, write_gaussian
from jcfl.data.partition import random_owners
from jcfl.errors import Absent, InputError, Notice

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read(tmp_path):
    (tmp_path / "locked").mkdir(mode=0)
    with pytest.raises(InputError, match=r"cannot read .*Permission denied"):
        load("mnist", tmp_path / "locked")


@pytest.mark.parametrize(("name", "path"), [("arrays", "mine.npz"), ("leaf", "mine"), ("huggingface", "mine.parquet")])
def test_files_that_are_not_there_are_looked_for_in_whole_paths_and_an_option_names_another_folder(
    tmp_path, monkeypatch, name, path
):
    if name == "huggingface":
        pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Absent) as error:
        load(name, "data", path=path)
    said = str(error.value)
    assert f"{tmp_path / 'data'}" in said and f" {tmp_path}" in said and "a folder elsewhere: --data-dir" in said


def test_names_that_the_system_does_not_take():
    with pytest.raises(InputError, match="File name too long"):
        load("arrays", path="a" * 300)
    with pytest.raises(InputError, match="expected a folder"):
        data_folder("~no_such_user_here/x")
    assert not exists(data_folder("nowhere"))


def test_a_current_folder_that_was_deleted(tmp_path, monkeypatch):
    monkeypatch.delenv("JCFL_DATA", raising=False)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert data_folder(tmp_path) == tmp_path
    with pytest.raises(InputError, match="data: the current folder has been deleted; change to another one"):
        data_folder()
    monkeypatch.chdir(tmp_path)


def test_an_account_without_a_home_has_no_datasets_there(tmp_path, monkeypatch):
    """As in a container that runs with a number that no account has."""

    def unknown(number):
        raise KeyError(number)

    for name in ("HOME", "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(Absent, match="dataset 'mnist' not found"):
        load("mnist", tmp_path)


def test_mapped_reads_regular_files_only_and_names_the_bad_one(tmp_path):
    for name, array in {"x": X, "y": np.arange(40) % 2, "clients": np.arange(40) // 20}.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert len(mapped(tmp_path).groups) == 2
    np.save(tmp_path / "x_test.npy", X)
    with pytest.raises(InputError, match="has x_test, and test examples of mapped files are drawn from x"):
        mapped(tmp_path)
    (tmp_path / "x_test.npy").unlink()
    with pytest.raises(InputError, match=r"y\.npy: there is no such file"):
        (tmp_path / "y.npy").unlink()
        mapped(tmp_path)
    os.mkfifo(tmp_path / "y.npy")
    assert stat.S_ISFIFO((tmp_path / "y.npy").stat().st_mode)
    with pytest.raises(InputError, match=r"y\.npy is not a regular file"):
        mapped(tmp_path)


def test_a_mapped_file_that_is_copied_says_so(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    with pytest.warns(Notice, match="mapped file has float64"):
        from_clients(rows, np.arange(40) % 2, np.arange(40) // 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_clients(X, np.arange(40) % 2, np.arange(40) // 20)


def test_users_are_whole_numbers_with_a_group_and_an_id_each():
    with pytest.raises(InputError, match=r"user 0\.5 of example 0"):
        examples(X, np.zeros(40, int), np.full(40, 0.5), classes=2, where="mine")
    with pytest.raises(InputError, match=r"user -1 of example 0 is out of range"):
        examples(X, np.zeros(40, int), np.full(40, -1), classes=2, where="mine")
    part = Examples(X, np.zeros(40, np.int32), np.arange(40, dtype=np.int32) % 4)
    with pytest.raises(InputError, match="2 true groups for 4 users"):
        Dataset("mine", part, part, 2, np.array([0, 1]))
    with pytest.raises(InputError, match="1 ids for 4 users"):
        Dataset("mine", part, part, 2, id_of_user=np.array(["ann"]))


def test_clients_without_test_examples_can_be_asked_for():
    found = from_clients(X, np.arange(40) % 2, np.arange(40) // 2, min_examples=(1, 0))
    assert found.train.size.tolist() == [2] * 20
    assert not found.test.size.any()
    with pytest.raises(InputError, match="20 without test examples, such as 0"):
        from_clients(X, np.arange(40) % 2, np.arange(40) // 2)


def test_ids_of_bytes_become_text():
    found = from_clients(X, np.arange(40) % 2, np.repeat([b"ann", b"bob"], 20))
    assert found.clients.tolist() == ["ann", "bob"]


def test_crowd_draws_what_is_there():
    with pytest.raises(InputError, match=r"no test examples to draw from; set examples=\[10, 0\]"):
        images = RNG.integers(0, 255, (30, 4, 4, 1), np.uint8)
        none = Examples(images[:0], np.zeros(0, np.int32))
        pixels = Dataset("none", Examples(images, np.zeros(30, np.int32)), none, 2)
        federation(pixels, "crowd", clients=4)
    assert not federation(pixels, "crowd", clients=4, examples=(3, 0)).test.size.any()


def test_shifts_that_are_the_same_are_told():
    with pytest.warns(Notice, match="with 3 classes, some of the shifts 0, 3, 6, 9 are the same"):
        federation(from_arrays(X, np.arange(40) % 3), "shifted", clients=4)


@pytest.mark.parametrize("scenario", ["rotated", "crowd", "rotated_pathological"])
def test_angles_that_are_the_same_are_told_once(scenario):
    images = Examples(RNG.integers(0, 255, (60, 4, 4, 1), np.uint8), np.arange(60) % 10)
    data = Dataset("images", images, Examples(255 - images.x, images.y), 10)
    with pytest.warns(Notice, match=f"^{scenario}: some of the angles 0, 90, -270 are the same") as caught:
        federation(data, scenario, clients=12, angles=[0, 90, -270], min_examples=(1, 0))
    assert len(caught) == 1
    with warnings.catch_warnings(action="error"):
        federation(data, scenario, clients=12, angles=[0, 90, 180], min_examples=(1, 0))


def test_a_large_label_takes_no_time_and_draws_as_many_small_ones_do():
    """Cells that have no examples draw as before, so that federations of datasets without some classes are the same."""
    few, trains = np.arange(60) % 3, RNG.random(60) < 0.8
    shares = RNG.random((9, 4))
    shares[[1, 6]] = 0
    cell = np.array([2, 5, 8])[few]

    def slow(rng):
        owner = np.full(60, -1)
        for index, row in enumerate(shares):
            if not row.any():
                continue
            for half in (trains, ~trains):
                found = rng.permutation(np.flatnonzero((cell == index) & half))
                points = (np.arange(len(found)) + rng.random()) / max(len(found), 1)
                owner[found] = np.searchsorted(np.cumsum(row) / row.sum(), points, side="right")
        return owner

    expected = slow(np.random.default_rng(7))
    np.testing.assert_array_equal(random_owners(np.random.default_rng(7), cell, trains, shares), expected)
    large = federation(from_arrays(X, np.r_[10**5, np.arange(39) % 3]), "dirichlet", clients=2, min_examples=(1, 0))
    assert large.classes == 10**5 + 1


def test_groups_that_are_generated(tmp_path):
    with pytest.raises(InputError, match="2 users cannot fill 4 groups"):
        write_gaussian(tmp_path / "made", users=2, groups=4)
    many = load("gaussian", groups=40000, users=70000, train=1, test=1, features=2, classes=2)
    assert np.bincount(many.group_of_user).tolist() == [2, 2, 2, 1] * 10000
    assert true_parameters(3, 2, 2).shape == (3, 2, 2)
