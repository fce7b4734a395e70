import io
import json
import os
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from jcfl.data import load
from jcfl.errors import InputError, Notice
from tests.test_untrusted import resized

RNG = np.random.default_rng(2)


def prepare(folder, *, name, shape, x, y, classes=10):
    """Write a dataset with tensorflow-datasets' own builder, as array_record files of PNG images."""
    import tensorflow_datasets as tfds

    with tfds.core.registered.skip_registration():  # so that only the files can tell what it is

        class Written(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("3.0.1")

            def _info(self):
                label = tfds.features.ClassLabel(num_classes=classes)
                image = tfds.features.Image(shape=shape)
                features = {"image": image, "label": label, "size": np.int64}
                return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

            def _split_generators(self, dl_manager):
                return {part: self._generate_examples(part) for part in x}

            def _generate_examples(self, part):
                for i, (image, label) in enumerate(zip(x[part], y[part], strict=True)):
                    file = io.BytesIO(image) if isinstance(image, bytes) else io.BytesIO()
                    if not isinstance(image, bytes):
                        Image.fromarray(image.squeeze()).save(file, "PNG")
                    file.seek(0)
                    yield i, {"image": file, "label": int(label), "size": 1}

        Written.name = name
    Written(data_dir=folder, file_format="array_record").download_and_prepare()


def drawn(shape, classes=10):
    """Examples of two splits, every one different."""
    x = {part: RNG.integers(0, 256, (n, *shape), np.uint8) for part, n in (("train", 12), ("test", 6))}
    return x, {part: np.arange(len(x[part])) % classes for part in x}


def same(part, x, y):
    """Whether a part holds these pictures with these labels, in whatever order."""
    got = sorted((int(label), picture.tobytes()) for picture, label in zip(part.x, part.y, strict=True))
    return got == sorted((int(label), picture.tobytes()) for picture, label in zip(x, y, strict=True))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    content = {"mnist": drawn((28, 28, 1)), "tiny": drawn((5, 4, 3), 3)}
    prepare(folder, name="mnist", shape=(28, 28, 1), x=content["mnist"][0], y=content["mnist"][1])
    prepare(folder, name="tiny", shape=(5, 4, 3), x=content["tiny"][0], y=content["tiny"][1], classes=3)
    return folder, content


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "unprepared"))


def test_a_prepared_mnist_is_read_without_tensorflow(root):
    folder, content = root
    x, y = content["mnist"]
    data = load("mnist", folder)
    assert data.shape == (28, 28, 1) and data.classes == 10 and data.train.x.dtype == np.uint8
    assert same(data.train, x["train"], y["train"]) and same(data.test, x["test"], y["test"])
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("dataset", ["tiny", "tiny:3.0.1"])
def test_any_prepared_dataset_with_images_and_labels(root, dataset):
    folder, content = root
    x, y = content["tiny"]
    data = load("tfds", folder, dataset=dataset)
    assert data.shape == (5, 4, 3) and data.classes == 3
    assert same(data.train, x["train"], y["train"]) and same(data.test, x["test"], y["test"])


def test_splits_may_be_slices(root):
    whole = load("tfds", root[0], dataset="tiny")
    data = load("tfds", root[0], dataset="tiny", train="train[:75%]", test="train[75%:]")
    assert np.array_equal(np.concatenate([data.train.x, data.test.x]), whole.train.x) and len(data.test) == 3


def test_rows_that_are_trained_on_and_tested_on_are_told_of_and_rows_given_twice_are_refused(root):
    def loaded(train, test):
        return load("tfds", root[0], dataset="tiny", train=train, test=test)

    with pytest.warns(Notice, match=r"rows 6 to 8 of tiny-train.* are both trained on and tested on"):
        assert len(loaded("train[:75%]", "train[50%:]").test) == 6
    with pytest.raises(InputError, match=r"rows 0 to 11 of tiny-train.* are given twice"):
        loaded("train+train", "test")
    with pytest.raises(InputError, match=r"rows 2 to 5 of tiny-test.* are given twice"):
        loaded("train", "test[:100%]+test[2:]")


@pytest.mark.parametrize("split", ["train[", "train[:0]", "train[a:]", "nothing"])
def test_a_split_without_meaning_or_examples_is_not_called_a_damaged_file(root, split):
    with pytest.raises(InputError, match=f"split {split!r}".replace("[", r"\[")) as error:
        load("tfds", root[0], dataset="tiny", train=split)
    assert "corrupt" not in str(error.value)


def test_the_default_folder_of_tensorflow_datasets_is_searched_too(root, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(root[0]))
    assert len(load("tfds", tmp_path, dataset="tiny").train) == 12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": "tony"}, "'tony' not found.*dataset_info.json.*jcfl\\[prepare\\]"),
        ({"dataset": "tiny", "test": "validation"}, "validation"),
        ({"dataset": "tiny", "image": "picture"}, "no feature 'picture'; it has"),
        ({"dataset": "tiny", "label": "size"}, "expected a ClassLabel"),
        ({"dataset": "tiny:9.0.0"}, "tiny"),
    ],
)
def test_what_is_not_there_is_refused_in_a_line(root, options, said):
    with pytest.raises(InputError, match=said) as error:
        load("tfds", root[0], **options)
    assert "\n" not in str(error.value)


def test_images_of_several_sizes_are_refused(tmp_path):
    x = {part: [np.zeros((size, 4, 3), np.uint8) for size in (4, 5)] for part in ("train", "test")}
    prepare(tmp_path, name="uneven", shape=(None, None, 3), x=x, y={"train": [0, 1], "test": [0, 1]})
    with pytest.raises(InputError, match="several sizes"):
        load("tfds", tmp_path, dataset="uneven")


def test_a_truncated_file_is_refused_by_its_folder(tmp_path):
    x, y = drawn((5, 4, 3), 3)
    prepare(tmp_path, name="cut", shape=(5, 4, 3), x=x, y=y, classes=3)
    (file,) = tmp_path.rglob("cut-train*")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError) as error:
        load("tfds", tmp_path, dataset="cut")
    assert str(file.parent) in str(error.value)


def test_another_file_format_is_refused_with_the_command_that_helps(tmp_path):
    x, y = drawn((5, 4, 3), 3)
    prepare(tmp_path, name="records", shape=(5, 4, 3), x=x, y=y, classes=3)
    (info,) = tmp_path.rglob("dataset_info.json")
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(InputError, match=r"not in array_record format; .*tfds\.data_source\('records'"):
        load("tfds", tmp_path, dataset="records")


@pytest.fixture
def copy(root, tmp_path):
    """A prepared dataset of one's own to damage: its folder, and a function that changes one of its files of JSON."""
    shutil.copytree(root[0] / "tiny", tmp_path / "tiny")
    (folder,) = (path.parent for path in tmp_path.rglob("features.json"))

    def changed(file, keys, value):
        content = json.loads((folder / file).read_text())
        entry = content
        for key in keys[:-1]:
            entry = entry[key]
        entry[keys[-1]] = value
        (folder / file).write_text(json.dumps(content))

    return folder, changed


def named(name):
    return ["featuresDict", "features", name]


@pytest.mark.parametrize(
    ("file", "keys", "refused"),
    [
        ("features.json", [*named("image"), "pythonClassName"], True),
        ("features.json", [*named("label"), "pythonClassName"], True),
        ("features.json", [*named("size"), "pythonClassName"], False),
        ("features.json", ["pythonClassName"], False),
        ("features.json", ["type"], False),
        ("dataset_info.json", ["moduleName"], False),
        ("dataset_info.json", ["features"], False),
    ],
)
def test_nothing_that_a_folder_names_is_imported(copy, tmp_path, monkeypatch, file, keys, refused):
    changed = copy[1]
    (tmp_path / "harm.py").write_text("raise SystemExit('code of whoever wrote the folder')")
    monkeypatch.syspath_prepend(tmp_path)
    changed(file, keys, {"pythonClassName": "harm.Feature"} if keys == ["features"] else "harm.Feature")
    if refused:
        with pytest.raises(InputError, match=r"is a harm\.Feature; expected one of Image"):
            load("tfds", tmp_path, dataset="tiny")
    else:
        assert len(load("tfds", tmp_path, dataset="tiny").train) == 12
    assert "harm" not in sys.modules


@pytest.mark.parametrize(
    ("file", "keys", "value", "said"),
    [
        ("features.json", ["featuresDict"], None, "no entry 'features'"),
        ("features.json", ["featuresDict", "features"], [1], "features.json"),
        ("features.json", named("image"), {"pythonClassName": ["a"]}, "expected one of"),
        ("features.json", [*named("image"), "image"], {"shape": 3}, "dataset_info.json"),
        ("features.json", [*named("image"), "image", "shape", "dimensions"], ["-5", "x"], "dataset_info.json"),
        ("features.json", [*named("label"), "classLabel", "numClasses"], "-1", "expected 1 to"),
        ("features.json", [*named("label"), "classLabel"], {}, "tiny"),
        ("dataset_info.json", ["splits"], 4, "dataset_info.json"),
        ("dataset_info.json", ["splits", 0, "shardLengths"], ["1000000000000"], "of memory; at most"),
        ("dataset_info.json", ["splits", 0, "shardLengths"], ["-3"], "3.0.1"),
        ("dataset_info.json", ["splits", 0, "shardLengths"], ["13"], "record 12 cannot be read"),
        ("dataset_info.json", ["splits", 0, "filepathTemplate"], "../{DATASET}", "outside of it"),
        ("dataset_info.json", ["version"], "x", "3.0.1"),
        ("dataset_info.json", ["fileFormat"], {}, "dataset_info.json"),
        ("dataset_info.json", ["alternativeFileFormats"], 3, "dataset_info.json"),
    ],
)
def test_a_folder_that_says_other_things_is_refused(copy, tmp_path, file, keys, value, said):
    copy[1](file, keys, value)
    with pytest.raises(InputError) as error:
        load("tfds", tmp_path, dataset="tiny")
    assert said in str(error.value) and str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "file", ["features.json", "dataset_info.json", "label.labels.txt", "tiny-train.array_record-00000-of-00001"]
)
def test_a_pipe_in_a_folder_is_refused(copy, tmp_path, file):
    (copy[0] / file).unlink(missing_ok=True)
    os.mkfifo(copy[0] / file)
    with pytest.raises(InputError, match="not a regular file"):
        load("tfds", tmp_path, dataset="tiny")


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"[]", b"\xff", b'{"a": 1, "a": 2}'])
@pytest.mark.parametrize("file", ["features.json", "dataset_info.json"])
def test_a_folder_with_damaged_json_is_refused_by_the_file(copy, tmp_path, file, data):
    (copy[0] / file).write_bytes(data)
    with pytest.raises(InputError, match=file):
        load("tfds", tmp_path, dataset="tiny")


@pytest.mark.parametrize("damage", ["size", "end", "format"])
def test_a_picture_in_a_record_is_checked_as_in_a_file(tmp_path, damage):
    x, y = drawn((5, 4, 3), 3)
    file = io.BytesIO()
    Image.fromarray(x["test"][2]).save(file, "BMP" if damage == "format" else "PNG")
    data = file.getvalue()
    data = {"size": resized(data, 20_000, 20_000), "end": data[:-3], "format": data}[damage]
    x["test"] = [*x["test"][:2], data, *x["test"][3:]]
    prepare(tmp_path, name="bomb", shape=(5, 4, 3), x=x, y=y, classes=3)
    with pytest.raises(InputError, match=r"bomb.*not an image"):
        load("tfds", tmp_path, dataset="bomb")


def test_several_versions_and_those_that_are_not_there(copy, tmp_path):
    shutil.copytree(copy[0], copy[0].parent / "2.0.0")
    (copy[0] / "dataset_info.json").write_text("damaged")
    with pytest.raises(InputError, match=r"no version 4\.\*\.\* of 'tiny:4\.\*\.\*'; there is 2\.0\.0, 3\.0\.1"):
        load("tfds", tmp_path, dataset="tiny:4.*.*")
    with pytest.raises(InputError, match=r"3\.0\.1/dataset_info\.json"):
        load("tfds", tmp_path, dataset="tiny")
