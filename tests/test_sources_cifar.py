import io
import pickle
import struct
import tracemalloc
from typing import ClassVar

import numpy as np
import pytest

from jcfl.data import load
from jcfl.data.pickled import values
from jcfl.errors import InputError

RNG = np.random.default_rng(1)
TEN = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def pictures(n):
    return RNG.integers(0, 256, (n, 32, 32, 3), np.uint8)


def rows(x):
    """Every picture as 1024 red, 1024 green, 1024 blue bytes."""
    return np.stack([np.concatenate([one[..., channel].ravel() for channel in range(3)]) for one in x])


def write_ten(folder, kind):
    folder.mkdir(parents=True)
    batches = [(pictures(4), RNG.integers(0, 10, 4)) for _ in TEN]
    for file, (x, y) in zip(TEN, batches, strict=True):
        if kind == "binary":
            data = b"".join(bytes([label]) + row.tobytes() for label, row in zip(y, rows(x), strict=True))
            (folder / f"{file}.bin").write_bytes(data)
        else:
            (folder / file).write_bytes(pickle.dumps({b"data": rows(x), b"labels": y.tolist()}, protocol=2))
    return batches


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("binary", "cifar10/cifar-10-batches-bin"),
        ("binary", "cifar10"),
        ("binary", "cifar-10-batches-bin"),
        ("binary", "."),
        ("python", "cifar-10-batches-py"),
        ("python", "cifar10"),
    ],
)
def test_cifar10_in_both_formats_and_every_folder(tmp_path, kind, place):
    batches = write_ten(tmp_path / "in" / place if place != "." else tmp_path / "in", kind)
    data = load("cifar10", tmp_path / "in")
    assert data.shape == (32, 32, 3) and data.classes == 10
    assert np.array_equal(data.train.x, np.concatenate([x for x, _ in batches[:5]]))
    assert np.array_equal(data.train.y, np.concatenate([y for _, y in batches[:5]]))
    assert np.array_equal(data.test.x, batches[5][0]) and np.array_equal(data.test.y, batches[5][1])


@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize(("labels", "classes"), [("fine", 100), ("coarse", 20)])
def test_cifar100_has_two_sets_of_labels(tmp_path, kind, labels, classes):
    folder = tmp_path / ("cifar-100-binary" if kind == "binary" else "cifar100/cifar-100-python")
    folder.mkdir(parents=True)
    want = {}
    for part in ("train", "test"):
        x, coarse, fine = pictures(5), RNG.integers(0, 20, 5), RNG.integers(0, 100, 5)
        want[part] = x, fine if labels == "fine" else coarse
        if kind == "binary":
            records = zip(coarse, fine, rows(x), strict=True)
            (folder / f"{part}.bin").write_bytes(b"".join(bytes([c, f]) + row.tobytes() for c, f, row in records))
        else:
            batch = {b"data": rows(x), b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist()}
            (folder / part).write_bytes(pickle.dumps(batch))
            (folder / "meta").write_bytes(pickle.dumps({}))
    data = load("cifar100", tmp_path, labels=labels)
    assert data.classes == classes
    assert np.array_equal(data.train.x, want["train"][0]) and np.array_equal(data.train.y, want["train"][1])
    assert np.array_equal(data.test.x, want["test"][0]) and np.array_equal(data.test.y, want["test"][1])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-1], "12291 bytes; expected a multiple of 3073"),
        (lambda data: b"", "0 bytes"),
        (lambda data: b"\x0a" + data[1:], "label 10 of example 0"),
    ],
)
def test_a_corrupt_binary_file_is_refused_by_name(tmp_path, damage, said):
    write_ten(tmp_path / "cifar10", "binary")
    path = tmp_path / "cifar10" / "data_batch_3.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as error:
        load("cifar10", tmp_path)
    assert said in str(error.value) and str(path) in str(error.value)


class Harm:
    def __reduce__(self):
        return (print, ("code of whoever wrote the file",))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8)}), "no entry b'labels'"),
        (pickle.dumps({b"data": np.zeros((1, 3071), np.uint8), b"labels": [0]}), "expected uint8"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [0]})[:-20], "not a pickled CIFAR batch"),
        (pickle.dumps({b"data": Harm(), b"labels": [0]}), "builtins.print is not allowed"),
        (pickle.dumps([1, 2]), "not a pickled CIFAR batch"),
    ],
)
def test_a_corrupt_or_harmful_pickle_is_refused_by_name(tmp_path, capsys, content, said):
    write_ten(tmp_path / "cifar10", "python")
    path = tmp_path / "cifar10" / "data_batch_2"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load("cifar10", tmp_path)
    assert said in str(error.value) and str(path) in str(error.value) and not capsys.readouterr().out


class Old(pickle._Pickler):
    """Pickles bytes as Python 2 pickled its strings, and names NumPy's parts as it did."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)

    def save_string(self, text):
        small = len(text) < 256
        self.write((b"U" + struct.pack("<B", len(text)) if small else b"T" + struct.pack("<i", len(text))) + text)
        self.memoize(text)

    dispatch[bytes] = save_string
    dispatch[str] = lambda self, text: self.save_string(text.encode())


def python2(batch):
    """A batch as its publisher pickled it."""
    file = io.BytesIO()
    Old(file, protocol=2).dump(batch)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.mark.parametrize("protocol", ["python 2", 2, 3, 4, 5])
def test_a_batch_is_read_as_unpickling_reads_it(protocol):
    """With the entries of the published files: a name, labels, pixels, the names of the photographs."""
    batch = {b"batch_label": b"training batch 1 of 5", b"labels": RNG.integers(0, 10, 300).tolist()}
    batch |= {
        b"data": RNG.integers(0, 256, (300, 3072), np.uint8),
        b"filenames": [b"cat_%d.png" % i for i in range(300)],
    }
    data = python2(batch) if protocol == "python 2" else pickle.dumps(batch, protocol=protocol)
    if protocol == "python 2":
        assert b"cnumpy.core.multiarray\n_reconstruct" in data and b"U\x0bbatch_label" in data
    got = values(data)
    for want in (batch, pickle.loads(data, encoding="bytes")):
        assert list(got) == list(want) and np.array_equal(got[b"data"], want[b"data"])
        assert all(got[key] == want[key] for key in got if key != b"data")
    by_column = pickle.dumps(np.asfortranarray(batch[b"data"]), protocol=2)
    assert np.array_equal(values(by_column), batch[b"data"])


class Said:
    """Something that pickles as a call with these arguments, and a state."""

    def __init__(self, function, arguments, state=None):
        self.said = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.said


def rows_of(kind, data=bytes(3072), shape=(1, 3072)):
    return Said(np.zeros(1).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, shape, kind, False, data))


POINTER = Said(np.dtype, ("O8", False, True))
FORGED = Said(np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (POINTER, 0)}, 8, 1, 1))
BYTE = Said(np.dtype, ("u1", False, True), (3, "|", None, None, None, -1, -1, 0))


def nested(depth):
    """A value that is small in a pickle and without end where it is compared, hashed or printed."""
    value = ()
    for _ in range(depth):
        value = (value, value)
    return value


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({b"data": rows_of(FORGED, b"A" * 32, (4,)), b"labels": [0]}, "something else than bytes"),
        ({b"data": rows_of(POINTER), b"labels": [0]}, "something else than bytes"),
        ({b"data": rows_of(np.dtype("f4")), b"labels": [0]}, "something else than bytes"),
        ({b"data": rows_of(BYTE, shape=(2, 3072)), b"labels": [0]}, "reshape"),
        ({b"data": rows_of(BYTE, shape=nested(60)), b"labels": [0]}, "not a pickled CIFAR batch"),
        ({b"data": rows_of(BYTE, data=nested(60)), b"labels": [0]}, "not a pickled CIFAR batch"),
        ({b"data": rows_of(Said(np.dtype, (nested(60),))), b"labels": [0]}, "not a pickled CIFAR batch"),
        ({b"data": [[0] * 3072], b"labels": [0]}, "expected uint8 pixels"),
        ({b"data": rows_of(BYTE), b"labels": nested(60)}, "list of whole numbers"),
        ({b"data": rows_of(BYTE), b"labels": [nested(60)]}, "list of whole numbers"),
        ({b"data": rows_of(BYTE), b"labels": [0.0]}, "not a pickled CIFAR batch"),
        ({b"data": rows_of(BYTE), b"labels": ["0"]}, "list of whole numbers"),
        ({b"data": rows_of(BYTE), b"labels": [2**80]}, "labels are object"),
        ({b"data": rows_of(BYTE), b"labels": [-1]}, "label -1 of example 0"),
        ({b"data": rows_of(BYTE), b"labels": []}, "1 examples but 0 labels"),
        ({b"data": Said(eval, ("1",)), b"labels": [0]}, "eval is not allowed"),
        ({b"data": {1}, b"labels": [0]}, "not allowed"),
    ],
)
def test_a_batch_of_other_values_is_refused(tmp_path, protocol, batch, said):
    write_ten(tmp_path / "cifar10", "python")
    (tmp_path / "cifar10" / "data_batch_2").write_bytes(pickle.dumps(batch, protocol=protocol))
    with pytest.raises(InputError, match=said):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x80\x02N" * 2**20, "1,048,576 opcodes"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "not a pickled CIFAR batch"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b".", "not a pickled CIFAR batch"),
        (b"\x80\x02(((.", "holds no dictionary"),
        (b"\x80\x02t.", "not a pickled CIFAR batch"),
        (b"\x80\x02})" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"Ns.", "a key that is no text"),
        (b"\x80\x04)" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"N\x93.", "a name that is no text"),
    ],
)
def test_a_program_in_place_of_a_batch_is_refused(tmp_path, data, said):
    write_ten(tmp_path / "cifar10", "python")
    (tmp_path / "cifar10" / "data_batch_2").write_bytes(data)
    with pytest.raises(InputError, match=said):
        load("cifar10", tmp_path)


def test_text_that_a_pickle_repeats_takes_its_memory_once():
    start = b"\x80\x02(c_codecs\nencode\nq\x00(X\x00\x00\x10\x00" + b"a" * 2**20 + b"X\x06\x00\x00\x00latin1tq\x01"
    tracemalloc.start()
    found = values(start + b"h\x00h\x01R" * 500 + b"t.")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 502 and peak < 20 * 2**20
