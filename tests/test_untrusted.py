"""A dataset from a stranger: each fault ends in one `InputError` that names the file, at once and in little memory."""

import ast
import functools
import gzip
import io
import json
import os
import pickle
import signal
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import jcfl
from jcfl.data import files, leaf, load
from jcfl.data.files import parsed, reading
from jcfl.data.idx import FILES
from jcfl.errors import InputError
from tests import tiny

TINY = 2**20
"""How much memory is said to be available where a limit is tested."""


@pytest.fixture(autouse=True)
def quickly(monkeypatch, tmp_path):
    """A reader that waits, on a pipe for example, is a failure and not a test that never ends."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "unprepared"))

    def late(number, frame):
        raise AssertionError("a reader waits")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)


@pytest.fixture
def little(monkeypatch):
    monkeypatch.setattr(files, "available_memory", lambda: 2 * TINY)


def refused(said, source, folder, **options):
    """The message of the one line in which a source refuses what lies in a folder, and that it took little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as error:
            load(source, folder, **options)
        assert tracemalloc.get_traced_memory()[1] < 100 * TINY
    finally:
        tracemalloc.stop()
    message = str(error.value)
    assert said in message and "\n" not in message
    return message


def leaf_file(folder, **changes):
    """A LEAF file of one user with two examples, with some of its entries changed."""
    user = {"x": [[0.5, 1.0], [0.0, 0.25]], "y": [0, 1]} | {
        key: changes.pop(key) for key in ("x", "y") if key in changes
    }
    content = {"users": ["ann"], "num_samples": [2], "user_data": {"ann": user}} | changes
    return written(folder / "mine" / "all_data.json", json.dumps(content).encode())


def written(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": None}, "user 'ann': examples of different shapes or no x and y"),
        ({"y": 5}, "expected two lists"),
        ({"x": [None, None]}, "x is text or a mixture"),
        ({"x": [{}, {}]}, "x is text or a mixture"),
        ({"x": [[10**400], [1]]}, "numbers, of user 'ann'"),
        ({"x": [[1e300], [1]]}, "NaN or infinite"),
        ({"x": [[], []]}, "numbers in every example"),
        ({"y": [None, 1]}, "expected whole numbers"),
        ({"y": [-5, 1]}, "user 'ann': label -5 of example 0 is out of range"),
        ({"y": [2**40, 1]}, "out of range"),
        ({"num_samples": [float("inf")]}, "num_samples inf"),
        ({"num_samples": [-2]}, "num_samples -2"),
        ({"num_samples": [[[]]]}, "num_samples no number"),
        ({"num_samples": 2}, "not a LEAF file"),
        ({"users": 3}, "not a LEAF file"),
        ({"users": [["ann"]]}, "not a LEAF file"),
        ({"users": ["ann", "ann"], "num_samples": [2, 2]}, "user 'ann' is listed 2 times"),
        ({"user_data": [1]}, "no entry 'ann'"),
        ({"user_data": {"ann": 7}}, "expected two lists"),
    ],
)
def test_a_leaf_file_of_other_values(tmp_path, changes, said):
    path = leaf_file(tmp_path, **changes)
    assert str(path.parent) in refused(said, "leaf", tmp_path, path="mine", test=0.5)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[" * 100_000 + b"]" * 100_000, "not a LEAF file"),
        (b'{"users": [], "users": []}', "two entries of one name"),
        (b"\xff\xfe\x00", "not a LEAF file"),
        (b"[]", "no entry 'users'"),
        (b'{"users": ' + b"9" * 5000 + b"}", "not a LEAF file"),
    ],
)
def test_a_leaf_file_that_is_no_json(tmp_path, data, said):
    written(tmp_path / "mine" / "all_data.json", data)
    refused(said, "leaf", tmp_path, path="mine")


def test_a_shape_has_no_negative_lengths(tmp_path):
    leaf_file(tmp_path)
    refused("shape", "leaf", tmp_path, path="mine", shape=(-1, -2))


def npz(folder, arrays=None, headers=None, **options):
    """An .npz file as NumPy writes it, but for headers that claim another shape."""
    given = {"x": np.zeros((4, 2), np.float32), "y": np.arange(4)} | (arrays or {})
    with zipfile.ZipFile(folder / "mine.npz", "w", **options) as archive:
        for name, array in given.items():
            file = io.BytesIO()
            np.lib.format.write_array(file, np.asanyarray(array))
            data = file.getvalue()
            if name in (headers or {}):
                head = io.BytesIO()
                np.lib.format.write_array_header_1_0(head, headers[name])
                data = head.getvalue() + bytes(64)
            archive.writestr(f"{name}.npy", data)
    return folder / "mine.npz"


def claimed(shape, descr="<f4"):
    return {"descr": descr, "fortran_order": False, "shape": shape}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"headers": {"x": claimed((2**31,))}}, "takes 8589934"),
        ({"headers": {"x": claimed((2**60, 2**60))}}, "but the file has"),
        ({"headers": {"x": claimed((-2, -2))}}, "mine.npz"),
        ({"headers": {"x": claimed((1,), "V4000000000")}}, "mine.npz"),
        ({"headers": {"y": claimed((2**40,), "|S0")}}, "mine.npz"),
        ({"arrays": {"x": np.float32(3)}}, "expected (n, ...)"),
        ({"arrays": {"y": np.int64(3)}}, "labels have the shape ()"),
        ({"arrays": {"clients": np.int64(3)}}, "clients' ids have the shape ()"),
        ({"arrays": {"clients": np.zeros((4, 1))}}, "clients' ids have the shape (4, 1)"),
        ({"arrays": {"clients": np.array([1, np.nan, 2, 2])}}, "example 1 has no client"),
        ({"arrays": {"clients": np.arange(4), "groups": np.int64(1)}}, "groups"),
        ({"arrays": {"clients": np.arange(4), "groups": np.array([0, 1, -7, 0])}}, "group -7 of client 2"),
        ({"arrays": {"y": np.array([0.0, np.nan, 1, 1])}}, "label nan of example 1"),
        ({"arrays": {"y": np.array([0, 2**40, 1, 1])}}, "label 1099511627776 of example 1"),
        ({"arrays": {"x": np.zeros((4, 0))}}, "numbers in every example"),
        ({"arrays": {"x": np.zeros(4, [("a", "f4")])}}, "expected (n, ...)"),
        ({"compression": zipfile.ZIP_LZMA}, "compressed in a way"),
        ({"compression": zipfile.ZIP_BZIP2}, "compressed in a way"),
    ],
)
def test_an_archive_of_other_values(tmp_path, case, said):
    npz(tmp_path, **case)
    assert "mine.npz" in refused(said, "arrays", tmp_path, path="mine.npz")


def test_an_encrypted_archive(tmp_path):
    path = npz(tmp_path)
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(mark, at + 1)) >= 0:
            data[at + place] |= 1
    path.write_bytes(data)
    refused("encrypted", "arrays", tmp_path, path="mine.npz")


def test_an_npy_file_that_claims_more_than_it_holds(tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, claimed((2**34, 2)))
    written(tmp_path / "folder" / "x.npy", head.getvalue())
    refused("but the file has", "arrays", tmp_path, path="folder")
    written(tmp_path / "folder" / "x.npy", b"\x93NUMPY\x07\x00abc")
    refused("version (7, 0)", "arrays", tmp_path, path="folder")


def med(folder, **changes):
    given = {}
    for part, n in (("train", 6), ("val", 3), ("test", 4)):
        given[f"{part}_images"] = np.zeros((n, 3, 3), np.uint8)
        given[f"{part}_labels"] = np.arange(n)[:, None] % 2
    np.savez(folder / "med.npz", **given | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_labels": np.array([0, np.nan, 1, 0, 1, 0])}, "label nan of example 1 of train_labels"),
        ({"train_labels": np.array(3)}, "labels have the shape ()"),
        ({"val_images": np.zeros((3, 5, 5), np.uint8)}, "images of (3, 3) and (5, 5)"),
        ({"val_images": np.zeros((3, 3, 3), np.float32)}, "uint8 and float32"),
        ({"test_images": np.zeros((4, 5, 5), np.uint8)}, "those to test on (5, 5, 1)"),
        ({"test_images": np.zeros((4, 3, 3))}, "those to test on (3, 3, 1) (float32)"),
        ({"train_images": np.array(None)}, "array 'train_images' holds Python objects"),
    ],
)
def test_a_medmnist_file_of_other_values(tmp_path, changes, said):
    med(tmp_path, **changes)
    assert "med" in refused(said, "medmnist", tmp_path, file="med.npz", validation="train")


def idx_files(folder, **changes):
    """MNIST's four files, each empty but for those given."""
    for name in FILES:
        rank = 3 if "images" in name else 1
        whole = struct.pack(f">{1 + rank}I", 0x800 + rank, *[2] * rank) + bytes(2**rank)
        written(folder / "mnist" / name, changes.get(name.replace("-", "_"), whole))
    return folder / "mnist" / FILES[0]


def test_an_idx_file_that_claims_more_than_there_is_memory(tmp_path):
    idx_files(tmp_path, train_images_idx3_ubyte=struct.pack(">4I", 0x803, 2**20, 2**10, 2**10))
    message = refused("would take 1.1 TB of memory; at most", "mnist", tmp_path)
    assert FILES[0] in message
    idx_files(tmp_path, train_images_idx3_ubyte=struct.pack(">4I", 0x803, 0, 2**32 - 1, 2**32 - 1))
    refused(FILES[0], "mnist", tmp_path)


def test_four_gigabytes_of_zeros_in_a_small_file(tmp_path):
    """They are not decompressed further than the header says."""
    path = idx_files(tmp_path)
    path.unlink()
    begin = gzip.compress(struct.pack(">4I", 0x803, 2, 2, 2))
    written(path.with_name(path.name + ".gz"), begin + gzip.compress(bytes(2**26)) * 64)
    refused("at least 25 bytes; its header 2x2x2 says 24", "mnist", tmp_path)


def cifar(folder, data, name="data_batch_1"):
    """CIFAR-10 in pickled batches, one of which has the given bytes."""
    whole = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}, protocol=2)
    for batch in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        written(folder / "cifar10" / batch, data if batch == name else whole)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("source", ["gzip", "npz", "json", "pickle", "plain"])
def test_no_file_takes_more_memory_than_is_allowed(tmp_path, source):
    large = bytes(8 * TINY)
    options = {}
    if source in ("gzip", "plain"):
        names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
        for name in names:
            path = tmp_path / "cifar10" / name
            written(path, large) if source == "plain" else written(path.with_name(name + ".gz"), gzip.compress(large))
        source = "cifar10"
    elif source == "npz":
        np.savez_compressed(tmp_path / "mine.npz", x=np.zeros((TINY, 8), np.uint8), y=np.zeros(TINY, np.uint8))
        source, options = "arrays", {"path": "mine.npz"}
    elif source == "json":
        leaf_file(tmp_path, x=[[]] * 200_000)
        source, options = "leaf", {"path": "mine"}
    else:
        cifar(tmp_path, pickle.dumps(bytes(TINY // 2)))
        source = "cifar10"
    message = refused("of memory; at most 1.0 MB is allowed: half of what is free", source, tmp_path, **options)
    assert str(tmp_path) in message


@pytest.mark.parametrize(
    "text",
    [
        "[" + ",".join(["0.5"] * 30_000) + "]",
        "[" + ",".join(["999"] * 30_000) + "]",
        "[" + ",".join(["[]"] * 30_000) + "]",
        "[" + ",".join(['{"a":0}'] * 10_000) + "]",
        "[" + ",".join(["[" * 90 + "]" * 90] * 500) + "]",
        "[" + ",".join(['{"a":' * 90 + "0" + "}" * 90] * 100) + "]",
        "{" + ",".join(f'"{i}":0' for i in range(10_000)) + "}",
        '["' + "a" * 200_000 + '\N{GRINNING FACE}"]',
    ],
)
def test_memory_of_json_is_told_before_it_is_parsed(tmp_path, monkeypatch, text):
    asked = []
    path = written(tmp_path / "some.json", text.encode())
    monkeypatch.setattr(files, "fit", lambda path, size, limit=None: asked.append(size))
    tracemalloc.start()
    parsed(path, "JSON")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < max(asked) < 12 * peak


@pytest.mark.parametrize("source", ["mnist", "leaf", "arrays", "npy", "medmnist", "celeba"])
def test_a_pipe_in_place_of_a_file_is_refused(tmp_path, source):
    options = {}
    if source == "mnist":
        path = idx_files(tmp_path)
    elif source == "leaf":
        path, options = leaf_file(tmp_path), {"path": "mine"}
    elif source in ("arrays", "medmnist"):
        path, options = npz(tmp_path), {"path" if source == "arrays" else "file": "mine.npz"}
    elif source == "npy":
        path, options = written(tmp_path / "folder" / "x.npy", b""), {"path": "folder"}
        source = "arrays"
    else:
        path = photographs(tmp_path)[0]
    path.unlink()
    os.mkfifo(path)
    assert str(path) in refused("not a regular file", source, tmp_path, **options)


def test_a_device_in_place_of_a_file_is_refused(tmp_path):
    path = idx_files(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    refused("not a regular file", "mnist", tmp_path)


def photographs(folder, kind="PNG"):
    """CelebA with four pictures."""
    place = folder / "celeba" / "data"
    rng = np.random.default_rng(0)
    paths = [place / "raw" / "img_align_celeba" / f"{i}.png" for i in range(4)]
    for path in paths:
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8)).save(file, kind)
        written(path, file.getvalue())
    for part, names in (("train", ["0.png", "1.png"]), ("test", ["2.png", "3.png"])):
        data = {"users": ["7"], "num_samples": [2], "user_data": {"7": {"x": names, "y": [0, 1]}}}
        written(place / part / "a.json", json.dumps(data).encode())
    return paths


def rename(folder, name):
    """Let the first picture have another name."""
    path = folder / "celeba" / "data" / "train" / "a.json"
    path.write_text(path.read_text().replace('"0.png"', json.dumps(name)))


def resized(png, width, height):
    """A PNG whose header claims another size."""
    header = b"IHDR" + struct.pack(">2I", width, height) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_that_was_cut_is_refused_wherever(tmp_path, kind):
    path, *_ = photographs(tmp_path, kind)
    assert load("celeba", tmp_path, size=4).shape == (4, 4, 3)
    whole = path.read_bytes()
    for length in (*range(0, len(whole), 211), *range(len(whole) - 21, len(whole), 2), len(whole) - 1):
        path.write_bytes(whole[:length])
        assert str(path) in refused("not an image", "celeba", tmp_path, size=4)


def test_a_picture_of_too_many_pixels(tmp_path, little):
    path, *_ = photographs(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(resized(whole, 20_000, 20_000))
    assert str(path) in refused("not an image", "celeba", tmp_path, size=4)
    path.write_bytes(resized(whole, 400, 400))
    assert str(path) in refused("would take 1.3 MB of memory; at most", "celeba", tmp_path, size=4)
    path.write_bytes(whole)
    refused("would take 2.0 MB of memory; at most", "celeba", tmp_path, size=580)


def test_a_picture_in_another_format(tmp_path):
    """Pillow starts Ghostscript for the last one."""
    path, *_ = photographs(tmp_path)
    for data in (b"GIF89a", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"):
        path.write_bytes(data)
        refused("PNG or JPEG", "celeba", tmp_path, size=4)


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "link.png", "linked/secret.png"])
def test_a_name_of_a_picture_stays_in_its_folder(tmp_path, name):
    path, *_ = photographs(tmp_path)
    secret = written(path.parents[1] / "secret.png", path.read_bytes())
    (path.parent / "link.png").symlink_to(secret)
    (path.parent / "linked").symlink_to(secret.parent)
    rename(tmp_path, name)
    refused("leads out of", "celeba", tmp_path, size=4)


@pytest.mark.parametrize(
    ("name", "said"), [("a\0.png", "null"), ("1.png/a", "no image"), ("n" * 999, "too long"), (5, "list of")]
)
def test_a_name_of_a_picture_that_no_file_can_have(tmp_path, name, said):
    photographs(tmp_path)
    rename(tmp_path, name)
    refused(said, "celeba", tmp_path, size=4)


def test_names_are_shown_without_what_a_terminal_obeys(tmp_path):
    photographs(tmp_path)
    rename(tmp_path, "\x1b[2J\u202e.png")
    assert r"\x1b[2J\u202e.png" in refused("no image", "celeba", tmp_path, size=4)
    leaf_file(tmp_path, users=["\x1b[2J"], num_samples=[1], user_data={"\x1b[2J": {}})
    refused(r"\x1b[2J", "leaf", tmp_path, path="mine")


def test_names_of_unequal_length_take_no_more_memory_than_they_have(tmp_path):
    photographs(tmp_path)
    path = tmp_path / "celeba" / "data" / "train" / "a.json"
    names = ["x.png", "n" * 30_000, *["x.png"] * 1_998]
    data = {"users": ["7"], "num_samples": [2_000], "user_data": {"7": {"x": names, "y": [0] * 2_000}}}
    path.write_text(json.dumps(data))
    refused("no image", "celeba", tmp_path, size=4)


@pytest.mark.parametrize(
    "error",
    [
        OSError("a"),
        zlib.error("a"),
        EOFError(),
        struct.error("a"),
        RecursionError("a"),
        OverflowError("a"),
        MemoryError(),
    ],
)
def test_whatever_a_parser_raises_is_one_error(tmp_path, error):
    with (
        pytest.raises(InputError, match=f"corrupt file {tmp_path}: not a thing") as caught,
        reading(tmp_path, "a thing"),
    ):
        raise error
    assert caught.value.__cause__ is error


def test_a_file_that_cannot_be_opened_says_why(tmp_path):
    with pytest.raises(InputError, match=f"cannot read {tmp_path}/gone: No such file"):
        files.content(tmp_path / "gone", "a thing")


PARSERS = {
    "open",
    "read_bytes",
    "read_text",
    "load",
    "loads",
    "fromfile",
    "ZipFile",
    "decompress",
    "genops",
    "ParseDict",
}
"""Calls that read what is in a file."""


@pytest.mark.parametrize("path", sorted(Path(files.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_every_parser_is_called_inside_the_door(path):
    def outside(node, inside):
        inside |= isinstance(node, ast.With) and any("reading(" in ast.unparse(item) for item in node.items)
        if isinstance(node, ast.Call) and not inside and ast.unparse(node.func).split(".")[-1] in PARSERS:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        for child in ast.iter_child_nodes(node):
            yield from outside(child, inside)

    found = list(outside(ast.parse(path.read_text("utf-8")), False))
    assert found == ([] if path.stem != "pickled" else found[:1]), "the interpreter is called inside of it, by cifar"


def test_a_fault_of_ours_shows_as_it_is(tmp_path, monkeypatch):
    leaf_file(tmp_path)
    monkeypatch.setattr(leaf, "labels", lambda y, where: y + "a")
    with pytest.raises(TypeError):
        load("leaf", tmp_path, path="mine")
    with pytest.raises(KeyboardInterrupt), reading(tmp_path, "a thing"):
        raise KeyboardInterrupt


def test_a_federation_that_a_program_made_is_checked_before_a_run(tmp_path):
    """`jcfl.run` and `jcfl.sweep` name the client and the row of a value that is not finite, and write nothing."""
    whole = tiny.federation()
    broken = whole.replace(x=np.where(np.arange(len(whole.x))[:, None, None, None] == 3, np.nan, whole.x))
    for ask in (jcfl.run, functools.partial(jcfl.sweep, over={"rounds": [1, 2]})):
        with pytest.raises(InputError, match=r"row 3 of client \d"):
            ask(broken, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
