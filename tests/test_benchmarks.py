"""The benchmarks measure the package, not something that looks like it."""

import json
import random
import shutil

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import jcfl.runs.experiment
from benchmarks import clustering, damage, large
from jcfl.runs import config
from tests import folders

SMALL = ["compare=[]", "scenario.clients=24", "participation=0.5", "model.hidden=16", "rounds=3", "evaluate_every=1"]
TAUS = np.array([0.3, 0.6, 0.9])


@pytest.mark.parametrize(("similarity", "chosen"), [("plain", 1), ("noise_corrected", 2)])
def test_replayed_clusters_are_those_of_the_method_itself(similarity, chosen):
    """The benchmark's shortcut changes no label in any round."""
    found = clustering.swept("quickstart", [*SMALL, "seed=3"], similarity, TAUS)
    assert len(set(found["clusters"][:, -1])) > 1  # the thresholds do differ
    options = ["method.clustering_only=true", f"method.similarity={similarity}", f"method.tau={TAUS[chosen]}", "seed=3"]
    whole = jcfl.runs.experiment.run(config.read("quickstart", [*SMALL, *options]))
    np.testing.assert_array_equal(found["labels"][chosen], whole.labels[0])
    for name in ("clusters", "purity", "ari", "objective"):
        np.testing.assert_allclose(found[name][chosen], whole[name][0], rtol=1e-4, atol=1e-4)


def test_stretches_of_a_grid():
    taus = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert clustering.stretches(taus, taus[[0, 1, 3]]) == "0.10-0.20, 0.40-0.40"
    assert clustering.stretches(taus, taus[:0]) == "none"


def test_the_command_prints_its_tables_and_writes_every_round(tmp_path, monkeypatch):
    monkeypatch.setitem(clustering.SETTINGS, "tiny", ("quickstart", SMALL))
    monkeypatch.delitem(clustering.DESCRIBE, "plain")
    app = typer.Typer()
    app.command()(clustering.main)
    out = tmp_path / "figures.json"
    arguments = ["tiny", "--hidden", "16", "--seeds", "1", "--low", "0.3", "--high", "0.9", "--step", "0.3"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out)], catch_exceptions=False)
    assert "## tiny, noise_corrected" in result.output and "exactly, every seed" in result.output
    told = json.loads(out.read_text("utf-8"))
    assert told["taus"] == [0.3, 0.6, 0.9]
    assert np.shape(told["found"]["tiny noise_corrected"]["clusters"]) == (1, 3, 3)


def test_examples_in_three_places_are_measured_and_deleted(tmp_path):
    given = ["beside", "--dir", str(tmp_path), "--gb", "0.004", "--rounds", "2", "--hidden", "2", "--share", "0.5"]
    done = CliRunner().invoke(large.app, given)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])["found"]
    assert [*found] == ["in memory", "mapped file", "on the host"]
    assert all(abs(one["accuracy"] - found["in memory"]["accuracy"]) < 0.01 for one in found.values())
    assert not [*tmp_path.iterdir()]


def test_every_damage_is_one(tmp_path):
    sound = folders.run(tmp_path / "sound")
    content = lambda folder: {
        file.relative_to(folder): file.is_file() and file.read_bytes() for file in folder.rglob("*")
    }
    kinds = set()
    for seed in range(60):
        copy = shutil.copytree(sound, tmp_path / "copy")
        told = damage.damage(random.Random(seed), copy)
        kinds.add(told.split()[0])
        assert content(copy) != content(sound) or told.startswith("swap"), told
        shutil.rmtree(copy)
    assert len(kinds) == 9


@pytest.mark.parametrize(
    ("end", "said", "same", "outcome"),
    [
        ("traceback", "", False, "traceback"),
        (2, "jcfl: x is damaged\n", False, "refused in one line"),
        (2, "", False, "no line"),
        (0, "", True, "as before"),
        (0, "", False, "other figures"),
        (0, "jcfl: x is damaged; it is written again\n", False, "other, and says so"),
    ],
)
def test_outcomes_of_damage(end, said, same, outcome):
    assert damage.outcome(end, said, same, "flip x") == (outcome, said)
