"""Files damaged at random: what is read of them is a sound dataset, or one `InputError`, at once and in little memory.

A tiny valid dataset is written in every format that can be read; bytes of one of its files are then changed, cut,
repeated or put in, or a value of its JSON is replaced. `JCFL_FUZZ=10` tries ten times as many, and others each time.
"""

import copy
import io
import json
import os
import pickle
import signal
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from jcfl import registry
from jcfl.data import Dataset, files, load
from jcfl.data.dataset import examples
from jcfl.data.idx import FILES
from jcfl.errors import InputError
from tests.test_sources_cifar import python2
from tests.test_sources_tfds import drawn, prepare

TIMES = int(os.environ.get("JCFL_FUZZ", "0"))
"""How many times as many cases as in the quick set, which is always the same."""

AVAILABLE = 64 * 2**20
"""Bytes of memory that are said to be free, so that half of them are allowed."""

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 3, 3), np.uint8)
LABELS = np.arange(6, dtype=np.uint8) % 2

Files = dict[str, bytes]


class Format(NamedTuple):
    """A format: a valid dataset's files by their names, those of them that are damaged, and how it is read."""

    written: Callable[[], Files]
    damaged: tuple[str, ...]  # in its names, every file that has one of these
    source: str
    options: dict[str, Any]
    values: bool = False  # whether values of JSON are replaced, and not bytes


def idx() -> Files:
    headers = [struct.pack(">4I", 0x803, 6, 3, 3), struct.pack(">2I", 0x801, 6)] * 2
    contents = [PIXELS.tobytes(), LABELS.tobytes()] * 2
    return {f"mnist/{name}": head + data for name, head, data in zip(FILES, headers, contents, strict=True)}


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def archive() -> Files:
    return {"mine.npz": npz(x=PIXELS, y=LABELS, clients=np.array(list("aabbcc")), groups=np.array([0, 1, 0]))}


def folder() -> Files:
    """NumPy's own format, which no checksum guards."""
    arrays = {"x": PIXELS / np.float32(255), "y": LABELS[:, None], "clients": np.arange(6) // 2}
    made = {}
    for name, array in arrays.items():
        file = io.BytesIO()
        np.save(file, array)
        made[f"mine/{name}.npy"] = file.getvalue()
    return made


def medmnist() -> Files:
    arrays = {f"{part}_{kind}": {"images": PIXELS, "labels": LABELS[:, None]}[kind] for part, kind in PARTS}
    return {"med.npz": npz(**arrays)}


PARTS = [(part, kind) for part in ("train", "val", "test") for kind in ("images", "labels")]


def leaf() -> Files:
    users = {name: {"x": (PIXELS[:2] / 255).reshape(2, 9).tolist(), "y": [0, 1]} for name in ("ann", "bob")}
    content = {"users": [*users], "num_samples": [2, 2], "user_data": users, "hierarchies": ["a", "b"]}
    return {f"mine/{part}/all_data.json": json.dumps(content).encode() for part in ("train", "test")}


def photographs() -> Files:
    made: Files = {}
    for name, kind in (("0.png", "PNG"), ("1.jpg", "JPEG")):
        file = io.BytesIO()
        Image.fromarray(RNG.integers(0, 256, (8, 8, 3), np.uint8)).save(file, kind)
        made[f"celeba/data/raw/img_align_celeba/{name}"] = file.getvalue()
    content = {"users": ["7"], "num_samples": [2], "user_data": {"7": {"x": ["0.png", "1.jpg"], "y": [0, 1]}}}
    return made | {f"celeba/data/{part}/a.json": json.dumps(content).encode() for part in ("train", "test")}


def binary() -> Files:
    records = b"".join(bytes([label]) + bytes(3072) for label in range(2))
    return {f"cifar10/{name}.bin": records for name in BATCHES}


BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def pickled() -> Files:
    batch = {
        b"batch_label": b"a",
        b"labels": [3, 4],
        b"data": np.zeros((2, 3072), np.uint8),
        b"filenames": [b"a", b"b"],
    }
    made = {f"cifar10/{name}": pickle.dumps(batch, protocol=2) for name in BATCHES}
    protocols = {f"cifar10/data_batch_{i}": pickle.dumps(batch, protocol=i) for i in (3, 4, 5)}
    return made | protocols | {"cifar10/data_batch_1": python2(batch)}


def prepared() -> Files:
    x, y = drawn((5, 4, 3), 3)
    place = Path(os.environ["TFDS_DATA_DIR"])
    prepare(place, name="tiny", shape=(5, 4, 3), x=x, y=y, classes=3)
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("tiny/*/*")}


def table() -> Files:
    """Pictures and labels as `datasets` writes them, in Parquet and as an Arrow stream."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    kinds = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["a", "b"]),
        "x": datasets.List(datasets.Value("float32")),
    }
    pictures = [{"bytes": data, "path": None} for data in photographs().values() if data[:1] != b"{"] * 3
    columns = {"image": pictures, "label": LABELS.tolist(), "x": (PIXELS / 255).reshape(6, 9).tolist()}
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    import pyarrow as pa

    parquet, arrow = io.BytesIO(), io.BytesIO()
    made.to_parquet(parquet)
    with pa.ipc.new_stream(arrow, made.data.table.schema) as writer:
        writer.write_table(made.data.table)
    return {"mine.parquet": parquet.getvalue(), "mine.arrow": arrow.getvalue()}


FORMATS = {
    "idx": Format(idx, ("ubyte",), "mnist", {}),
    "npz": Format(archive, ("npz",), "arrays", {"path": "mine.npz", "test": 0.5}),
    "npy": Format(folder, ("npy",), "arrays", {"path": "mine", "test": 0.5}),
    "medmnist": Format(medmnist, ("npz",), "medmnist", {"file": "med.npz", "validation": "train"}),
    "leaf": Format(leaf, ("json",), "leaf", {"path": "mine", "pixels": True}),
    "leaf values": Format(leaf, ("json",), "leaf", {"path": "mine"}, values=True),
    "images": Format(photographs, ("png", "jpg"), "celeba", {"size": 4}),
    "names of images": Format(photographs, ("json",), "celeba", {"size": 4}, values=True),
    "cifar binary": Format(binary, ("bin",), "cifar10", {}),
    "cifar pickles": Format(pickled, ("data_batch",), "cifar10", {}),
    "parquet": Format(table, ("parquet",), "huggingface", {"path": "mine.parquet", "size": 4}),
    "arrow": Format(table, ("arrow",), "huggingface", {"path": "mine.arrow", "size": 4}),
    "arrow lists": Format(table, ("arrow",), "huggingface", {"path": "mine.arrow", "x": "x", "test": "train[:2]"}),
    "tfds": Format(prepared, ("json", "array_record"), "tfds", {"dataset": "tiny"}),
    "tfds values": Format(prepared, ("json",), "tfds", {"dataset": "tiny"}, values=True),
}

ODD = st.one_of(
    st.sampled_from(
        [None, True, -1, 0, 2**31, 2**63, 10**40, 1e308, float("nan"), float("inf"), -0.5, "", "x", [], {}]
    ),
    st.sampled_from(
        ["../a", "/dev/zero", "\x1b[2J", "\0", "0.png", "-1", "9" * 30, "9" * 5000, [[]], [None], {"a": 1}]
    ),
    st.sampled_from([40, 400]).map(lambda depth: json.loads("[" * depth + "]" * depth)),
    st.recursive(st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=4),
)
"""What a stranger's JSON may hold in place of a value."""

BYTES = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from(
        [b"\xff" * 4, b"\x7f" + b"\xff" * 7, b"\x00" * 8, b"\x80", b"\xff\xff\xff\x7f", b"(", b"[", b'"', b"."]
    ),
)


@st.composite
def changed_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes cut, put in, written over, taken out or repeated, in one to three places that are not in a row of zeros."""
    for _ in range(draw(st.integers(1, 3))):
        places = np.flatnonzero(np.frombuffer(data, np.uint8))
        at = int(places[draw(st.integers(0, len(places) - 1))]) if len(places) else 0
        length, new = draw(st.integers(1, 40)), draw(BYTES)
        data = draw(
            st.sampled_from(
                [
                    data[:at],
                    data[:at] + new + data[at:],
                    data[:at] + new + data[at + len(new) :],
                    data[:at] + bytes([data[at] ^ 1 << length % 8] if data else []) + data[at + 1 :],
                    data[:at] + data[at + length :],
                    data[: at + length] + data[at:],
                ]
            )
        )
    return data


def nodes(value: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all values in some JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in nodes(item, (*path, key)))]


@st.composite
def changed_values(draw: st.DrawFn, data: bytes) -> bytes:
    """JSON with one to three of its values replaced or left out, or a key renamed."""
    content = {"": json.loads(data)}
    for _ in range(draw(st.integers(1, 3))):
        paths = nodes(content)[1:]
        depth = draw(st.sampled_from(sorted({len(path) for path in paths})))  # most values are numbers, far below
        *above, key = draw(st.sampled_from([path for path in paths if len(path) == depth]))
        holder = content
        for step in above:
            holder = holder[step]
        kind = draw(st.integers(0, 5))
        if kind == 0 and above:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict) and above:
            holder[draw(st.text(max_size=4))] = holder.pop(key)
        elif kind == 2 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        else:
            holder[key] = copy.deepcopy(draw(ODD))  # Hypothesis gives the same list again
        if not isinstance(content[""], dict | list):
            break
    return json.dumps(content[""]).encode()


def cases(form: Format, whole: Files) -> st.SearchStrategy[tuple[str, bytes]]:
    """A file of a valid dataset, and what it holds when it is damaged."""
    change = changed_values if form.values else changed_bytes
    names = sorted(name for name in whole if any(part in name for part in form.damaged))
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), change(whole[name])))


def write(root: Path, held: Files) -> None:
    for name, data in held.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def try_to_read(form: Format, root: Path) -> str:
    """Read the dataset, and check what comes of it: what it is, in a word."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        data = load(form.source, root, **form.options)
        assert isinstance(data, Dataset)
        for part in (data.train, data.test):
            assert not len(part) or examples(part.x, part.y, part.user, classes=data.classes, where="it") is not None
        return "dataset"
    except InputError as error:
        assert str(error).isprintable() and len(str(error)) < 20_000
        return "refused"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < AVAILABLE
        assert time.perf_counter() - start < 10


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder; while it is used nothing else is looked for elsewhere, little memory is free, and nothing waits."""
    root = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFDS_DATA_DIR", str(tmp_path_factory.mktemp("prepared")))
        patch.setattr(files, "available_memory", lambda: AVAILABLE)
        signal.signal(signal.SIGALRM, late)
        yield root


def late(number: int, frame: Any) -> None:
    raise AssertionError("a reader waits")


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_or_refused(place, name):
    form, root = FORMATS[name], place / name
    whole = form.written()
    write(root, whole)
    assert try_to_read(form, root) == "dataset"

    @settings(
        max_examples=25 * max(TIMES, 1),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(form, whole))
    def check(case):
        file, data = case
        write(root, {file: data})
        try:
            signal.setitimer(signal.ITIMER_REAL, 20)
            try_to_read(form, root)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            write(root, {file: whole[file]})

    check()


def test_every_module_that_reads_files_is_tried():
    found = {name: registry.find("data", name).__module__ for name in registry.names("data")}
    ours = {module for module in found.values() if module.startswith("jcfl.data.")}
    assert {found[form.source] for form in FORMATS.values()} == ours - {"jcfl.data.generated"}
