"""Datasets in Hugging Face's formats, read from tiny files that `datasets` and pyarrow have written here."""

import io

import numpy as np
import pytest
import yaml
from PIL import Image

from jcfl.data import federation, load
from jcfl.errors import InputError, Notice
from jcfl.runs import config

datasets = pytest.importorskip("datasets", reason="datasets is not installed")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (12, 5, 4), np.uint8)
WRITERS = [f"f{i // 4:04d}_07" for i in range(12)]  # three writers, four pictures each


def picture(pixels, mode=None, kind="PNG"):
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(file, kind)
    return {"bytes": file.getvalue(), "path": "0.png"}


@pytest.fixture(scope="module")
def letters():
    """A federated dataset as the hub has FEMNIST: pictures, the writer of each, and its letter."""
    columns = {
        "image": [picture(one) for one in PIXELS],
        "writer_id": WRITERS,
        "character": [i % 3 for i in range(12)],
        "hsf_id": list(range(12)),
    }
    kinds = {
        "image": datasets.Image(),
        "writer_id": datasets.Value("string"),
        "character": datasets.ClassLabel(names=["a", "b", "c"]),
        "hsf_id": datasets.Value("int64"),
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.fixture(scope="module")
def root(letters, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf")
    letters.to_parquet(folder / "letters.parquet")
    parts = datasets.DatasetDict({"train": letters.select(range(8)), "test": letters.select(range(8, 12))})
    parts.save_to_disk(folder / "saved")
    letters.save_to_disk(folder / "alone")
    for name, rows in (("train-00000-of-00002", range(4)), ("train-00001-of-00002", range(4, 8)), ("test-0", [9, 11])):
        (folder / "hub" / "data").mkdir(parents=True, exist_ok=True)
        letters.select(rows).to_parquet(folder / "hub" / "data" / f"{name}.parquet")
    return folder


def flat(path, **columns):
    pq.write_table(pa.table(columns), path)


def test_a_federated_dataset_keeps_its_own_clients(root):
    data = load("huggingface", root, path="letters.parquet", clients="writer_id", share=0.25)
    assert data.shape == (5, 4, 1) and data.classes == 3 and data.train.x.dtype == np.uint8
    assert np.bincount(data.test.user).tolist() == [1, 1, 1] and len(data.train) == 9
    found = federation(data, "natural", min_examples=(3, 1))
    assert found.clients.tolist() == sorted(set(WRITERS))
    for client, writer in enumerate(found.clients):
        own = {one.tobytes() for one, who in zip(PIXELS, WRITERS, strict=True) if who == writer}
        rows = [*found.train.owned(client), *found.test.owned(client)]
        assert {found.x[row, ..., 0].tobytes() for row in rows} == own


@pytest.mark.parametrize(
    ("path", "sizes"), [("saved", (8, 4)), ("alone", (9, 3)), ("hub", (8, 2)), ("saved/test", (3, 1))]
)
def test_folders_have_the_splits_that_their_files_are_named_by(root, path, sizes):
    data = load("huggingface", root, path=path, share=0.25)
    assert (len(data.train), len(data.test)) == sizes
    assert data.train.user is None


def test_splits_may_be_slices_and_sums(root):
    data = load("huggingface", root, path="saved", train="train[:75%]+test[2:]", test="train[75%:]")
    assert np.array_equal(data.train.x[..., 0], PIXELS[[*range(6), 10, 11]])
    assert np.array_equal(data.test.x[..., 0], PIXELS[6:8])
    assert len(load("huggingface", root, path="saved", train="train+test").train) == 9  # a share, not test again


def test_lists_and_text_are_examples_and_labels(tmp_path):
    x = RNG.standard_normal((6, 2, 3)).astype(np.float32)
    lists = pa.array(x.tolist(), pa.list_(pa.list_(pa.float32())))
    labels = pa.array(["dog", "ape", "cat", "dog", "ape", "cat"])
    flat(tmp_path / "train.parquet", x=lists, y=labels, who=pa.array([9, 9, 7, 7, 8, 8]).dictionary_encode())
    flat(tmp_path / "test.parquet", x=lists, y=labels, who=pa.array([7, 7, 8, 8, 9, 9]).dictionary_encode())
    data = load("huggingface", tmp_path, path=".", y="y", clients="who", series=True)
    assert np.array_equal(data.train.x, x) and data.train.y.tolist() == [2, 0, 1, 2, 0, 1] and data.classes == 3
    assert data.id_of_user.tolist() == [7, 8, 9] and data.test.user.tolist() == [0, 0, 1, 1, 2, 2]
    grey = load("huggingface", tmp_path, path="train.parquet", y="who", share=0.5, x="x", classes=10)
    assert grey.shape == (2, 3, 1) and set(grey.train.y) == {7, 8, 9}


def test_columns_of_numbers_are_the_features_of_a_table(tmp_path):
    """As pandas writes them: f0, f1, … beside the label and the client."""
    kinds = {"f0": pa.float64(), "f1": pa.int64(), "f2": pa.bool_(), "f3": pa.decimal128(5, 2)}
    whole = {name: pa.array(np.arange(12) % 2 + 0.0).cast(pa.int8()).cast(kind) for name, kind in kinds.items()}
    whole |= {"label": np.arange(12) % 3, "who": [f"c{i // 4}" for i in range(12)]}
    flat(tmp_path / "a.parquet", **whole)
    given = {"path": "a.parquet", "y": "label", "clients": "who"}
    data = load("huggingface", tmp_path, **given, x=["f0", "f1", "f2", "f3"], share=0.25)
    assert data.shape == (4,) and data.train.x.dtype == np.float32 and data.classes == 3
    rows = np.concatenate([data.train.x, data.test.x])
    assert np.array_equal(rows, np.repeat(rows[:, :1], 4, 1)) and rows[:, 0].sum() == 6
    assert load("huggingface", tmp_path, **given, x=["f1"]).shape == (1,)
    with pytest.raises(
        InputError, match=r"0 columns .* give x, one of f0 \(float64\), .* as a list, x: \[f0, f1, …\]$"
    ):
        load("huggingface", tmp_path, **given)
    flat(tmp_path / "b.parquet", **whole | {"f1": [1e300] + [0.5] * 11})
    with pytest.raises(InputError, match="example 0 of client 'c0' has a NaN or infinite value"):
        load("huggingface", tmp_path, **given | {"path": "b.parquet"}, x=["f0", "f1"])


def test_arrays_and_named_clients(tmp_path):
    kinds = {"a": datasets.Array2D((2, 3), "uint8"), "who": datasets.ClassLabel(names=["ann", "bob"])}
    table = {"a": RNG.integers(0, 9, (4, 2, 3)).tolist(), "who": [0, 1, 0, 1], "y": [0, 1, 1, 0]}
    features = datasets.Features(kinds | {"y": datasets.Value("int32")})
    datasets.Dataset.from_dict(table, features=features).to_parquet(tmp_path / "a.parquet")
    data = load("huggingface", tmp_path, path="a.parquet", y="y", clients="who", share=0.5)
    assert data.shape == (2, 3, 1) and data.train.x.dtype == np.uint8 and data.id_of_user.tolist() == ["ann", "bob"]


def test_images_of_other_modes_and_sizes_are_brought_together(tmp_path):
    several = [picture(PIXELS[0], "P"), picture(np.repeat(PIXELS[1][:3, :, None], 3, 2), kind="JPEG")]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    table = datasets.Dataset.from_dict({"image": several * 2, "label": [0, 1] * 2}, features=kinds)
    table.to_parquet(tmp_path / "a.parquet")
    data = load("huggingface", tmp_path, path="a.parquet", size=3, share=0.5, x="image", train="train")
    assert data.shape == (3, 3, 3)
    with pytest.raises(InputError, match=r"'image' comes in several sizes, \(3, 4, 3\) and \(5, 4, 3\).*data\.size"):
        load("huggingface", tmp_path, path="a.parquet")


def test_arrow_files_of_both_kinds(tmp_path):
    table = pa.table({"x": [[0.5], [1.5]] * 2, "y": [0, 1] * 2})
    for name, new in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        with new(str(tmp_path / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
        data = load("huggingface", tmp_path, path=f"{name}.arrow", y="y", share=0.5)
        assert sorted(data.train.x[:, 0]) == [0.5, 1.5]


def test_a_name_of_the_hub_is_loaded_by_datasets(letters, tmp_path, monkeypatch):
    asked = []
    found = datasets.DatasetDict({"train": letters, "test": letters.select([3])})
    monkeypatch.setattr(datasets, "load_dataset", lambda *name: asked.append(name) or found)
    data = load("huggingface", tmp_path, dataset="somebody/letters", config="upper", clients="writer_id")
    assert asked == [("somebody/letters", "upper")] and data.name == "letters"
    assert len(data.train) == 12 and data.id_of_user.tolist() == sorted(set(WRITERS))
    assert np.array_equal(data.test.x[0, ..., 0], PIXELS[3])

    def unreachable(*name):
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(InputError, match=r"'somebody/letters' not found: the hub gave nothing \(no network\)"):
        load("huggingface", tmp_path, dataset="somebody/letters")
    (tmp_path / "somebody" / "letters").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="'somebody/letters' is a file or folder here; give it as path"):
        load("huggingface", dataset="somebody/letters")


@pytest.mark.parametrize("options", [{}, {"path": "saved", "dataset": "somebody/letters"}])
def test_a_path_or_a_name_is_needed_and_not_both(root, options):
    with pytest.raises(InputError, match="expected path, a file or folder, or else dataset, a name of the hub"):
        load("huggingface", root, **options)


def test_a_path_may_be_beside_the_configuration_and_is_else_said_to_be_missing(root, tmp_path):
    settings = {"data": {"name": "huggingface", "path": "letters.parquet"}, "scenario": {"name": "iid"}}
    settings |= {"model": "mlp", "method": "majority", "rounds": 1}
    (root / "mine.yaml").write_text(yaml.safe_dump(settings))
    assert config.read(root / "mine.yaml").data.options["path"] == root / "letters.parquet"
    with pytest.raises(InputError, match=r"no .*lettres.* or .*lettres; expected a \.parquet or \.arrow file"):
        load("huggingface", tmp_path, path="lettres")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train": "tran"}, "unknown split of .*saved: 'tran'; did you mean 'train'"),
        ({"train": "train[:"}, r"split 'train\[:'.*expected one such as train\[:80%\]"),
        ({"test": "train[5:2]"}, r"no examples in train\[5:2\]"),
        ({"x": "picture"}, "unknown column of .*'picture'.*Known: character, hsf_id, image, writer_id"),
        ({"x": "image", "y": "image"}, "'image' holds struct.*expected numbers or text"),
        ({"y": "hsf_id", "classes": 3}, r"out of range 0\.\.2"),
        (
            {"y": "writer_id", "x": "hsf_id"},
            r"column 'hsf_id' holds int64; expected images or lists, or columns of numbers as a list, x: \[hsf_id\]",
        ),
        ({"x": ["hsf_id", "picture"]}, "unknown column of .*'picture'"),
        ({"x": ["hsf_id", "writer_id"]}, "column 'writer_id' holds string; expected numbers"),
        ({"x": ["hsf_id", "character"], "y": "character"}, "column 'character' is both y and one of x"),
        ({"x": []}, "x: expected 1 or more items, got"),
        ({"x": 3}, "x: "),
        ({"x": "image", "clients": "image"}, "'image' holds struct"),
        (
            {"x": "image", "y": None, "clients": "character"},
            r"0 columns of the kind ClassLabel; give y, one of image \(Image\)",
        ),
    ],
)
def test_what_is_not_there_is_refused_in_a_line(root, options, said):
    with pytest.raises(InputError, match=said) as error:
        load("huggingface", root, path="saved", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": [[1.0], None], "y": [0, 1]}, "column 'x' has nothing in row 1"),
        ({"x": [[1.0], [None]], "y": [0, 1]}, "one of them has no value"),
        ({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}, "different lengths, such as 1 and 2"),
        ({"x": [[1.0], [float("nan")]], "y": [0, 1]}, "NaN or infinite"),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, "examples are object"),
        ({"x": [[1.0], [2.0]], "y": [0, -1]}, "label -1 of example"),
        (
            {"x": [[1.0], [2.0]], "z": [[1.0], [2.0]], "y": [0, 1]},
            r"2 columns of the kind Image or List; give x, one of x",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_a_line(tmp_path, columns, said):
    flat(tmp_path / "a.parquet", **columns)
    with pytest.raises(InputError, match=said) as error:
        load("huggingface", tmp_path, path="a.parquet", y="y", test="train")
    assert "\n" not in str(error.value) and "a.parquet" in str(error.value)


def test_damaged_foreign_and_empty_files_are_refused_by_name(root, tmp_path):
    whole = (root / "letters.parquet").read_bytes()
    for name, content in (("cut.parquet", whole[:-50]), ("text.arrow", b"hello"), ("none.parquet", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"corrupt file .*{name}"):
            load("huggingface", tmp_path, path=name)
    (tmp_path / "bare").mkdir()
    for name in ("bare", "text.txt"):
        (tmp_path / "text.txt").write_text("x,y")
        with pytest.raises(InputError, match=r"expected a file that ends in \.parquet or \.arrow, or a folder"):
            load("huggingface", tmp_path, path=name)
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a"])})
    outside = datasets.Dataset.from_dict({"image": ["/etc/hostname"], "label": [0]}, features=kinds)
    with open(tmp_path / "away.arrow", "wb") as file, pa.ipc.new_stream(file, outside.data.table.schema) as writer:
        writer.write_table(outside.data.table)
    with pytest.raises(InputError, match="'image' of row 0 is in a file of its own, /etc/hostname"):
        load("huggingface", tmp_path, path="away.arrow")


def test_splits_of_other_columns_are_refused(root, tmp_path):
    (tmp_path / "train.parquet").write_bytes((root / "letters.parquet").read_bytes())
    flat(tmp_path / "test.parquet", image=[[1.0]], character=[0])
    with pytest.raises(InputError, match=r"column 'image' of test is .*; expected Image"):
        load("huggingface", tmp_path, path=".")


def test_without_datasets_the_line_says_how_to_install_it(root, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=r'pip install "jcfl\[huggingface\]"'):
        load("huggingface", root, path="saved")


def test_more_than_memory_allows_is_refused_by_what_the_header_claims(tmp_path, monkeypatch):
    zeros = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(400_000, np.float32)), 8)
    flat(tmp_path / "a.parquet", x=zeros.cast(pa.list_(pa.float32())), y=np.arange(50_000) % 2)
    assert (tmp_path / "a.parquet").stat().st_size < 300_000
    monkeypatch.setattr("jcfl.data.files.available_memory", lambda: 2**21)
    with pytest.raises(InputError, match=r"a\.parquet would take 1\.. MB of memory; at most 1\.0 MB is allowed"):
        load("huggingface", tmp_path, path="a.parquet", y="y")


@pytest.mark.parametrize(
    ("labels", "said"),
    [([str(i % 11) for i in range(22)], "numbers as text"), (["", "a"] * 11, "11 labels are empty text")],
)
def test_labels_that_are_text_are_judged_as_in_arrays(tmp_path, labels, said):
    table = {"x": RNG.normal(size=(22, 3)).tolist(), "y": labels}
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=said):
        load("huggingface", tmp_path, path="t.parquet", x="x", y="y")


def test_rows_to_train_and_to_test_on_should_differ(root):
    more = {"path": "letters.parquet", "y": "character"}
    with pytest.warns(Notice, match="rows 6 to 7 of train are both trained on and tested on"):
        load("huggingface", root, train="train[:8]", test="train[6:]", **more)
    with pytest.warns(Notice, match="^letters: the test set is the training set") as caught:
        federation(load("huggingface", root, train="train", test="train", **more), "iid", clients=1)
    assert len(caught) == 1
    assert len(load("huggingface", root, train="train[:6]", test="train[6:]", **more).test) == 6
    with pytest.raises(InputError, match="rows 0 to 11 of train are given twice"):
        load("huggingface", root, train="train+train", share=0.5, **more)
    with pytest.raises(InputError, match="rows 8 to 9 of train are given twice"):
        load("huggingface", root, train="train[:6]", test="train[6:10]+train[8:]", **more)


def test_grey_images_beside_coloured_ones_are_named(tmp_path):
    """No size brings them together."""
    both = [picture(PIXELS[0]), picture(np.repeat(PIXELS[1][:, :, None], 3, 2))]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    table = datasets.Dataset.from_dict({"image": both, "label": [0, 1]}, features=kinds)
    table.to_parquet(tmp_path / "a.parquet")
    for more in ({}, {"size": 3}):
        with pytest.raises(InputError, match="'image' comes in grey and in colour") as error:
            load("huggingface", tmp_path, path="a.parquet", **more)
        assert "data.size" not in str(error.value)
