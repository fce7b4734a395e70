"""CONTRIBUTING's samples run, and what it names exists."""

import pkgutil
import re
import sys
import tomllib
import types
from pathlib import Path

import numpy as np
import pytest

from jcfl import data, registry
from jcfl.view import facts

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


@pytest.fixture
def samples(monkeypatch, tmp_path):
    """The names that CONTRIBUTING's Python blocks define, run in their order."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "contributing"}
    monkeypatch.setitem(sys.modules, "contributing", types.ModuleType("contributing"))
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)):
        exec(compile(block, f"CONTRIBUTING.md, block {number}", "exec"), names)
    return names


def test_samples_run_and_do_what_they_say(samples):
    history = samples["history"]
    labels, groups = history.labels[0, -1], history.groups
    assert len(set(zip(labels.tolist(), groups.tolist(), strict=True))) == 2
    assert history["accuracy_micro"][0, -1] > 0.85
    own = {"data": "ring", "scenario": "swapped", "model": "bumps", "addon": "sparse", "train": "halving"}
    own |= {"describe": "radius", "compare": "largest", "group": "farthest_first", "aggregate": "clipped"}
    own |= {"attack": "freeze", "stop": "labels_stay"}
    for kind, name in (own | {"method": "by_radius"}).items():
        assert name in registry.names(kind)
        assert facts.facts(kind, name).line
    assert facts.facts("method", "by_radius").answers["group"] == "farthest_first"
    assert facts.example("group", "cooled").endswith(
        "method.group=cooled method.train=all_models method.answer=mixture"
    )
    cooled = registry.find("group", "cooled")(clusters=2, temperature=2.0)
    assert cooled.costs(np.array([[1.0, 3.0]]), np.array([0]), ()).tolist() == [[0.5, 1.5]]
    assert "jcfl" not in facts.facts("method", "by_radius").package

    federation = data.federation(data.load("ring"), "swapped", clients=6)
    swapped = federation.groups == 1
    inside = np.linalg.norm(federation.x, axis=1) < 0.7
    for client in range(6):
        split = federation.train
        rows = split.rows[split.start[client] : split.start[client] + split.size[client]]
        np.testing.assert_array_equal(federation.y[rows], inside[rows] != swapped[client])

    start, uploads = (
        {"w": np.zeros((1, 2), np.float32)},
        {"w": np.array([[0.6, 0.0], [0.0, 8.0], [50.0, 50.0]], np.float32)},
    )
    found = samples["shortened"](2.0)(np.zeros(3, np.int32), np.array([1.0, 3.0, 0.0], np.float32), uploads, start)
    np.testing.assert_allclose(found["w"], [[0.15, 1.5]], rtol=1e-6)


def test_modules_and_files_named_exist():
    named = set(re.findall(r"`(jcfl(?:\.\w+)+)`", TEXT))
    assert len(named) > 20
    for name in named:
        pkgutil.resolve_name(name)
    for path in set(re.findall(r"`(tests/\w+\.py)`", TEXT)):
        assert (ROOT / path).is_file(), path


def test_every_dependency_is_justified():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    rows = set(re.findall(r"^\| `([^`]+)` \|", TEXT.split("## Dependencies")[1], re.MULTILINE))
    assert rows == {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
