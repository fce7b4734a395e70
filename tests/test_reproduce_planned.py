"""The tables whose data are not here are planned on small files in the published formats; nothing is trained."""

import numpy as np
import pytest
from PIL import Image

from jcfl.runs import reproducing
from jcfl.runs.plan import Objects, federation_of, planned
from jcfl.runs.reproducing import reading
from tests.test_sources_leaf import write

SHAPES = {
    "femnist": ((28, 28, 1), 62),
    "celeba": ((84, 84, 3), 2),
    "pathmnist": ((28, 28, 3), 9),
    "tissuemnist": ((28, 28, 1), 8),
    "cifar100": ((32, 32, 3), 100),
}
"""The shape of an image and the number of classes of the data that are not here."""

TABLES = reading.shipped()


def absent(table):
    """The federations of a table whose data are not here, each with its methods."""
    found = {}
    for federation, method in reproducing.every_key(table):
        data = table.given.federations[federation]["data"]
        if isinstance(data, dict) and data["name"] in SHAPES:
            found.setdefault(federation, []).append(method)
    return found


def chosen(turn, methods):
    """Two federations of a table, each with one method; tables take turns with both."""
    some = list(methods)[(turn + turn // 2) % 2 :: 2] if len(methods) > 2 else list(methods)
    return [(name, methods[name][(turn + 5 * i) % len(methods[name])]) for i, name in enumerate(some)]


METHODS = {name: methods for name, table in TABLES.items() if (methods := absent(table))}
RUNS = {name: chosen(turn, methods) for turn, (name, methods) in enumerate(METHODS.items())}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Small files of all five datasets, as their publishers name and write them."""
    root, rng = tmp_path_factory.mktemp("published"), np.random.default_rng(0)
    person = lambda: {"x": rng.integers(0, 2, (24, 784)).tolist(), "y": rng.integers(0, 62, 24).tolist()}
    write(root / "femnist" / "data" / "all_data" / "all_data_0.json", {f"w{i}": person() for i in range(24)})
    images = root / "celeba" / "data" / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    Image.new("RGB", (178, 218)).save(images / "000001.jpg")
    people = {str(i): {"x": ["000001.jpg"] * 6, "y": [0, 1] * 3} for i in range(12)}
    write(root / "celeba" / "data" / "all_data" / "all_data.json", people)
    for name in ("pathmnist", "tissuemnist"):
        shape, classes = SHAPES[name]
        arrays = {}
        for part, n in (("train", 10_000), ("val", 1000), ("test", 5000)):
            arrays[f"{part}_images"] = np.zeros((n, *(shape if shape[-1] == 3 else shape[:2])), np.uint8)
            arrays[f"{part}_labels"] = (np.arange(n) % classes)[:, None].astype(np.uint8)
        np.savez(root / f"{name}.npz", **arrays)
    (root / "cifar-100-binary").mkdir()
    for part, n in (("train", 500), ("test", 300)):
        rows = np.zeros((n, 2 + 3072), np.uint8)
        rows[:, 1] = np.arange(n) % 100
        (root / "cifar-100-binary" / f"{part}.bin").write_bytes(rows.tobytes())
    return root


@pytest.fixture(scope="module")
def made():
    """The federations by what they are made of: several tables have the same."""
    return {}


def test_tables_and_federations_of_every_missing_dataset_are_planned():
    thesis = {f"T{chapter}.{j}" for chapter in (3, 4, 5, 6, 7) for j in (2, 4)}
    assert set(RUNS) == {"E1", "E1-runs", "F1", "S2", "S4", "S-fig7"} | thesis
    planned, every = (
        {(name[0], federation) for name, some in table.items() for federation in some}
        for table in ({name: dict(keys) for name, keys in RUNS.items()}, METHODS)
    )
    assert planned == every


@pytest.mark.parametrize("name", RUNS)
def test_a_table_is_planned_on_files_in_the_published_format(name, root, made):
    for key in RUNS[name]:
        config = TABLES[name].config(key, TABLES[name].budget("full"), root)
        parts = str((config.data, config.scenario))
        made[parts] = made.get(parts) or federation_of(config)
        population = planned(config, Objects(federation=made[parts])).context.population
        assert (population.shape, population.classes) == SHAPES[config.data.name]
