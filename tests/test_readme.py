"""README says what is so: its code runs, its commands parse, its tables name what there is."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

import jcfl
from jcfl import cli, metrics, registry
from jcfl.cli import display
from jcfl.errors import InputError
from jcfl.runs import config
from jcfl.runs.plan import planned
from tests import commands

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BUNDLED = {"digits", "gaussian"}
"""Data that needs no files."""


def blocks(language: str) -> list[str]:
    return commands.blocks(README, language)


def section(title: str) -> str:
    return re.split(rf"^## {title}$", README, flags=re.MULTILINE)[1].split("\n## ")[0]


def first_cells(title: str) -> list[str]:
    """The names in the first column of a section's table."""
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


RUNS = [command for command in commands.commands(README) if command.startswith("jcfl run")]
OTHERS = [command for command in commands.commands(README) if command not in RUNS]


@pytest.fixture
def parsed(tmp_path, monkeypatch, capsys):
    """Parse a command and read its configuration, with nothing trained: (status, configuration, complaint)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(blocks("yaml")[0])
    (tmp_path / "runs" / "quickstart-1").mkdir(parents=True)
    (tmp_path / "runs" / "quickstart-1" / "config.yaml").write_text(config.read("quickstart").text())
    reached = []
    monkeypatch.setattr(cli.training, "train", lambda config, folder, *rest: reached.append(config))

    def parse(command):
        status = cli.status(shlex.split(command, comments=True)[1:])
        return status, reached[-1] if reached else None, capsys.readouterr().err

    return parse


@pytest.mark.parametrize("command", [command for command in dict.fromkeys(RUNS) if "--distributed" not in command])
def test_every_run_parses(parsed, command):
    status, found, complaint = parsed(command)
    assert (status, complaint) == (0, "")
    assert isinstance(found, config.Config)


@pytest.mark.parametrize("command", [*dict.fromkeys(OTHERS), *(run for run in RUNS if "--distributed" in run)])
def test_every_other_command_parses(command):
    commands.checked(command)


def test_overrides_in_the_commands_are_heard(parsed):
    _, found, _ = parsed(next(command for command in RUNS if "method.clusters" in command))
    assert (found.method.name, found.method.options["clusters"]) == ("ifca", 3)
    assert (found.train.options["lr"], found.rounds) == (0.05, 50)
    _, found, _ = parsed(next(command for command in RUNS if "method.addons" in command))
    assert found.method.title == "stocfl+finetune"
    assert found.method.addons[0].options == {"steps": 5}


def test_extras_named_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = re.findall(r'pip install "\.\[(\w+)\]"', README)
    assert {"test", "cuda", "tpu"} <= set(named) <= set(extras)


def test_python_example_is_short_runs_and_shows_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks("python"):
        assert len(block.splitlines()) <= 20
        exec(compile(block, "README.md", "exec"), names)
    history, groups = names["history"], names["clients"][::100] // 20
    assert isinstance(history["accuracy_micro"], np.ndarray)
    accuracy = history["accuracy_micro"][0]
    assert accuracy[0] < 0.7
    assert accuracy[-1] > 0.95
    assert history.others["fedavg"]["accuracy_micro"][0, -1] < 0.6
    assert sorted(zip(*np.unique(history.labels[0, -1] * 2 + groups, return_counts=True), strict=True)) in (
        [(0, 20), (3, 20)],
        [(1, 20), (2, 20)],
    )
    assert capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("title", "kind"), [("Methods", "method"), ("Add-ons", "addon")])
def test_tables_of_methods_and_add_ons_are_complete(title, kind):
    registry.load()
    assert sorted(first_cells(title)) == sorted(registry.names(kind)), f"README's table under {title!r}"


def test_every_paper_named_is_a_link():
    links = set(re.findall(r"^\[(.+)\]: https:", README, re.MULTILINE))
    named = re.sub(r"\s+", " ", section("Methods") + section("Add-ons") + section("Papers"))
    assert set(re.findall(r"\[([^]]+ 20\d\d[^]]*)\](?!:)", named)) == links, "papers with and without an address"
    for title in ("Methods", "Add-ons"):
        cells = [line.split("|")[3] for line in section(title).splitlines() if line.startswith("| `")]
        plain = re.sub(r"\[[^]]+\]", "", " ".join(cells))
        assert not re.search(r"\d{4}", plain), f"a paper without a link under {title!r}"


def test_presets_named_exist():
    named = first_cells("Presets")
    assert "quickstart" in named
    assert set(named) <= set(config.presets())


def test_quickstart_table_has_the_columns_and_rows_of_today():
    head, *rows = blocks("text")[0].splitlines()
    usual = {name for name, one in metrics.scores("terminal").items() if "present" in one.over}
    assert re.split(r" {2,}", head) == ["method", *display.columns([dict.fromkeys(usual)]).values(), "seconds"]
    assert [row.split()[0] for row in rows[:-1]] == list(config.read("quickstart").methods)
    assert rows[-1] == "Written to runs/quickstart-1; for a page about it: jcfl report runs/quickstart-1"


def test_a_run_leaves_what_is_said(tmp_path):
    small = {"scenario": {"name": "rotated", "clients": 8}, "method": "majority", "rounds": 1}
    jcfl.run(small, out=tmp_path / "one")
    assert {item.name for item in (tmp_path / "one").iterdir()} == set(first_cells("What a run leaves"))
    rows = {
        name: line for name in first_cells("What a run leaves") for line in README.splitlines() if f"| `{name}`" in line
    }
    named = {name: set(re.findall(r"`(\w+)`", rows[name].split("|", 2)[2])) for name in rows}
    assert named["metrics.jsonl"] <= set(json.loads((tmp_path / "one" / "metrics.jsonl").read_text()))
    assert named["summary.json"] <= set(json.loads((tmp_path / "one" / "summary.json").read_text()))
    assert named["clusters.npz"] == set(np.load(tmp_path / "one" / "clusters.npz"))


@pytest.mark.parametrize("name", config.presets())
def test_every_preset_can_be_planned(name, request):
    """Everything short of training is built at the preset's own size."""
    found = config.read(name)
    pieces = found.data if isinstance(found.data, tuple) else (found.data,)
    if not {piece.name for piece in pieces} <= BUNDLED:
        found = found.model_copy(update={"data_dir": request.getfixturevalue("data_dir")})
    try:
        plan = planned(found)
    except InputError as error:
        if "not found" not in str(error):
            raise
        pytest.skip(str(error).split(":")[0])
    assert list(plan.algorithms) == list(found.methods)
    assert plan.federation.groups.size == found.scenario.options["clients"]
