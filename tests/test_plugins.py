"""Pieces from installed packages: found by entry point, refused by name where they cannot be had."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml

import jcfl
from jcfl import cli, metrics, registry
from jcfl.errors import InputError
from jcfl.metrics import table
from jcfl.results import History, load_scores
from jcfl.runs import sweeping
from jcfl.view import plotting

SAMPLE = Path(__file__).parent / "plugin"
CONFIG = """
data: {name: har, size: 300}
scenario: {name: placements, clients: 6}
model: {name: narrow, width: 3}
method: {name: pacfl, clusters: 2}
compare: [fedper]
train: {lr: 0.1}
rounds: 2
evaluate_every: 1
"""
SWEEP = """
base: mine.yaml
compare: []
rounds: 1
over: [{method.p: 3, method.clusters: 2}, {method.p: 1, method.clusters: 3}]
"""
PIECES = {"method": "pacfl fedper", "data": "har", "scenario": "placements", "model": "narrow", "score": "accuracy_p10"}


def install(folder: Path, project: dict, code: str) -> None:
    """Write into a folder on Python's path what pip writes there for a package of one module, without a network."""
    (module,) = project["entry-points"]["jcfl.pieces"].values()
    name, version = project["name"], project["version"]
    (folder / f"{module}.py").write_text(code, "utf-8")
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[jcfl.pieces]\npieces = {module}\n", "utf-8")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install packages of one module each, by name and code, and forget them afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_CONTESTED", {})
    monkeypatch.setattr(registry, "_PACKAGES", {})
    registry.plugins.cache_clear()

    def put(**modules: str) -> None:
        for module, code in modules.items():
            entry = {"name": f"the-{module}", "version": "2.1", "entry-points": {"jcfl.pieces": {"pieces": module}}}
            install(tmp_path, entry, code)

    yield put
    registry.plugins.cache_clear()
    for name in [name for name, module in sys.modules.items() if lies_in(module, tmp_path)]:
        del sys.modules[name]


def lies_in(module, folder: Path) -> bool:
    """Whether a module was imported from a folder. A test forgets only such ones: others know each other's classes."""
    return Path(getattr(module, "__file__", None) or "").is_relative_to(folder)


def test_a_users_package_is_listed_run_resumed_swept_and_plotted(installed, tmp_path, monkeypatch, capsys):
    """A new process runs it; this one, which has not seen the package before, resumes the run."""
    project = tomllib.loads((SAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    install(tmp_path, project, (SAMPLE / "jcfl_har.py").read_text("utf-8"))
    (tmp_path / "mine.yaml").write_text(CONFIG, "utf-8")
    (tmp_path / "sweep.yaml").write_text(SWEEP, "utf-8")
    lines = (
        *(f"list {name}" for name in ("pacfl", "fedper", "har", "placements", "narrow", "accuracy_p10")),
        "run mine.yaml --out runs/one -q",
        "run mine.yaml --out runs/swapped -q --set 'method.describe={name: subspace, p: 5}' compare=[] rounds=0",
    )
    program = f"""
import gc
gc.set_threshold(50_000, 20, 20)  # as conftest.py has it
from jcfl import cli
for line in {[shlex.split(line) for line in lines]}:
    assert cli.status(line) == 0, line
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(jcfl.__file__).parents[1])])}
    options = {"cwd": tmp_path, "env": environment, "text": True, "timeout": 600}
    words = [sys.executable, "-c", program]
    listed = subprocess.run(words, check=True, stdout=subprocess.PIPE, **options).stdout
    for said in ("by principal angles between subspaces", "degrees at which merging stops", "a private head"):
        assert said in listed
    for said in ("A made-up accelerometer set", "places", "One hidden layer of a few units", "accuracy_p10 (score)"):
        assert said in listed
    monkeypatch.chdir(tmp_path)
    assert "jcfl_har" not in sys.modules
    for line in (
        "run --resume runs/one --set rounds=3 -q",
        "sweep sweep.yaml --out runs/sweep -q",
        "plot runs/one --figure curves --format png",
    ):
        assert cli.status(shlex.split(line)) == 0, capsys.readouterr().err
    runs = tmp_path / "runs"
    for method in ("pacfl", "fedper"):
        (file,) = (runs / "one").rglob(f"*{method}*/metrics.jsonl")
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        assert [line["round"] for line in lines] == [1, 2, 3]
        assert 0 <= lines[-1]["accuracy_p10"] <= lines[-1]["accuracy_macro"] <= 1
    assert (runs / "one" / "figures" / "curves.png").is_file()
    points = json.loads((runs / "sweep" / "sweep.json").read_text("utf-8"))["points"]
    assert [(point["values"]["method.p"], point["clusters"]["mean"]) for point in points] == [(3, 2), (1, 3)]
    stored = yaml.safe_load((runs / "swapped" / "config.yaml").read_text("utf-8"))
    assert stored["method"]["describe"] == {"name": "subspace", "p": 5}
    assert stored["made_by"]["versions"]["jcfl-har"] == "1.0"


GAP = """
from jcfl.metrics import register_score
@register_score("accuracy_gap", title="best less worst", unit="%", better="lower")
def gap(clients):
    return clients.accuracy.max() - clients.accuracy.min()
"""


def test_a_plugins_score_is_known_to_a_sweep_that_chooses_by_it(installed, monkeypatch):
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    installed(gap_of_clients=GAP)
    sweeping.refuse_score("validation_accuracy_gap")
    with pytest.raises(InputError, match="did you mean 'accuracy_gap'"):
        sweeping.refuse_score("acuracy_gap")


def test_a_plugins_score_has_its_title_where_runs_are_read(installed, monkeypatch):
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    installed(gap_of_clients=GAP)
    run = History("a", [0], np.array([1]), {"accuracy_gap": np.ones((1, 1))}, *[np.zeros(0)] * 3)
    plotting.histories(run)
    assert metrics.score("accuracy_gap").title == "best less worst"


def test_a_run_that_was_read_shows_a_plugins_score(installed, monkeypatch):
    """In the line of `print` and in a notebook's table; a process that only reads runs has imported no plug-in."""
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    installed(gap_of_clients=GAP)
    run = History("a", [0], np.array([1]), {"accuracy_gap": np.full((1, 1), 0.25)}, *[np.zeros(0)] * 3)
    assert repr(run) == "<History: a; 1 seed; round 1; best less worst 25.00 %>"


@pytest.mark.parametrize("name", ["accuracy_micro", "held_out_loss", "validation_f1_micro"])
def test_plugins_are_not_imported_for_scores_that_jcfl_knows(name, installed):
    installed(gap_of_clients=GAP)
    load_scores([name])
    assert "gap_of_clients" not in sys.modules


def test_a_plugins_score_is_listed(installed, monkeypatch, capsys):
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    installed(gap_of_clients=GAP)
    assert cli.status(["list", "accuracy_gap"]) == 0
    assert "accuracy_gap (score)" in capsys.readouterr().out


def test_jcfl_itself_has_none_of_the_samples_names():
    registry.load()
    assert not [name for kind, names in PIECES.items() for name in names.split() if name in registry.names(kind)]


PIECE = '''
from jcfl.registry import register
@register("model", "{name}")
def made(shape, classes):
    """A model."""
'''


def test_a_name_that_is_not_known_yet_loads_the_plugins(installed):
    installed(tidy=PIECE.format(name="tidy_model"))
    assert registry.line(registry.find("model", "tidy_model")) == "A model."
    assert registry.origin(registry.find("model", "tidy_model")) == "tidy (the-tidy 2.1)"
    assert registry.origin(registry.find("model", "mlp")) == "jcfl.models.networks (jcfl)"
    assert registry.plugins() == (registry.Plugin("the-tidy 2.1", "tidy"),)


def test_a_plugin_that_fails_to_import_is_named_in_one_line(installed):
    installed(broken="import no_such_module", tidy=PIECE.format(name="tidy_model"))
    with pytest.warns(UserWarning, match=r"^plug-in broken of package the-broken 2\.1 cannot be imported") as caught:
        registry.load()
    assert len(caught) == 1
    with warnings.catch_warnings(action="error"):
        registry.load()  # said once
    registry.find("model", "tidy_model")
    with pytest.raises(InputError, match=r"unknown model 'odd'.* broken .*No module named 'no_such_module'") as error:
        registry.find("model", "odd")
    assert "\n" not in str(error.value)


def test_a_name_that_two_packages_want_is_refused_with_both_named(installed):
    installed(late=PIECE.format(name="mlp"))
    with pytest.warns(UserWarning, match="plug-in late"):
        registry.load()
    assert registry.find("model", "linear")
    with pytest.raises(InputError, match="model 'mlp' is registered twice") as error:
        registry.find("model", "mlp")
    assert "jcfl.models.networks (jcfl)" in str(error.value)
    assert "late (the-late 2.1)" in str(error.value)


def test_a_module_may_register_its_own_function_again(installed):
    for _ in range(2):
        exec(PIECE.format(name="again"), {"__name__": "notebook"})
    with pytest.raises(InputError, match=r"notebook \(notebook\) and script \(script\)"):
        exec(PIECE.format(name="again"), {"__name__": "script"})
