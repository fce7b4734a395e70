"""Papers' tables: the verdict's rule, the tables that come with the package, and a made-up one from end to end."""

import contextlib
import copy
import io
import json
import re
import shutil
import signal
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from jcfl import cli, metrics, results
from jcfl.cli import paper
from jcfl.core import costs
from jcfl.errors import InputError, Notice, TooLarge, Unwritable
from jcfl.results import History
from jcfl.runs import loop, reproducing
from jcfl.runs.plan import Objects, federation_of, planned
from jcfl.runs.reproducing import judging, outcomes, published, reading, tables
from jcfl.runs.reproducing.judging import Printed
from jcfl.view import pages, reproduction
from jcfl.view.plotting import style
from jcfl.view.reproduction import texts

TABLES = reading.shipped()

PUBLISHED = Path(__file__).parents[1] / "docs" / "reproduction"

RUNS = "runs/made-laptop/rotated/runs"
"""The folder of the made-up table's runs."""

MADE = """
base:
  data: {name: digits}
  model: {name: mlp, hidden: 4}
  rounds: 2
tables:
  made-up:
    printed:
      source: Nobody 2026, Table 1
      caption: Digits
      columns: [rotated, gain, "|absent|"]
      rows: {FedAvg: [[12, 40], [null], [20]], "IFCA, K=2": [[99.0, 0.1], [0, 50], [null]]}
      suspect: [{why: it was made up, cells: {FedAvg: [rotated]}}]
    federations:
      rotated: {scenario: {name: rotated, clients: 8, groups: 2}}
      absent: {data: {name: cifar100}, scenario: {name: iid, clients: 8}}
    methods: {FedAvg: {name: fedavg}, "IFCA, K=2": {name: ifca, clusters: 2}}
    columns:
      rotated: {federation: rotated}
      gain: {federation: rotated, minus: FedAvg}
      "|absent|": {federation: absent}
    orders: [{above: "IFCA, K=2", below: FedAvg}]
    departures: [The table was made up.]
    budgets:
      laptop: {seeds: 2, hours: 0.01, changes: [Two seeds.]}
      gpu: {seeds: 2, hours: 0.01, methods: [FedAvg], last: 2, set: {train.lr: 0.05}}
"""

values = st.lists(st.floats(-100, 100), min_size=2, max_size=6)
printed = st.builds(Printed, st.floats(-100, 100), st.none() | st.floats(0, 10), st.just(0.005))


def test_intervals_are_student_s():
    low, high = judging.interval([1.0, 2.0, 3.0])
    assert np.isclose((low + high) / 2, 2) and np.isclose((high - low) / 2, 4.302653 / np.sqrt(3))
    assert judging.interval([1.0]) is None


@pytest.mark.parametrize(
    ("ours", "paper", "verdict"),
    [
        ([91.7, 91.8], Printed(91.74, 0.02, 0.005), "reproduced"),
        ([91.6, 91.6], Printed(91.74, 0.2, 0.005), "reproduced"),  # only the paper's deviation reaches it
        ([91.6, 91.6], Printed(91.74, 0.02, 0.005), "not reproduced"),
        ([1.0, 1.0], Printed(1.0, None, 0.005), "reproduced"),
        ([5.4, 5.4], Printed(5, None, 0.5), "reproduced"),  # rounded
        ([80.0, 90.0], Printed(85.0, 1.0, 0.005), "not judged"),  # ± 63.5
        ([20.0, 21.0], Printed(85.0, 1.0, 0.005), "not reproduced"),  # wide, but far off
        ([91.74], Printed(91.74, 0.02, 0.005), "not judged"),
    ],
)
def test_numbers_are_judged_by_the_rule(ours, paper, verdict):
    assert judging.number(ours, paper, 5.0).verdict == verdict


@given(values, printed)
def test_a_wider_printed_deviation_never_loses_a_number(ours, paper):
    wide = paper._replace(std=(paper.std or 0) + 1)
    if judging.number(ours, paper, 5.0).verdict == "reproduced":
        assert judging.number(ours, wide, 5.0).verdict == "reproduced"
    assert judging.number([paper.mean] * 2, paper, 5.0).verdict == "reproduced"


@given(values, st.floats(0.1, 50))
def test_orders_are_judged_by_their_paired_differences(gaps, paper):
    verdict = judging.order(gaps, paper).verdict
    low, high = judging.interval(gaps)
    assert (verdict == "reproduced") == (low > 0)
    assert not (verdict == "not judged" and high < paper)
    if verdict == "reproduced":
        assert judging.order([-gap for gap in gaps], paper).verdict == "not reproduced"
    assert judging.order(gaps[:1], paper).verdict == "not judged"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_run_or_a_reason_behind_every_number(name):
    table = TABLES[name]
    assert {*table.given.rows} <= {*table.given.printed.rows} and {"laptop", "full"} <= {*table.given.budgets}
    for cell, _ in table.cells():
        assert table.part(cell).blocked or table.keys(cell)
        assert table.scale(cell) in (1, 100)


def test_every_federation_and_every_method_can_be_configured():
    every = [(table, key) for table in TABLES.values() for key in reproducing.every_key(table)]
    once = {(table.stem, name): (table, key) for table, key in every for name in key}
    for table, key in once.values():
        assert table.config(key, table.budget("laptop")).methods.keys() == {tables.title(key[1])}


def test_printed_numbers_are_all_used_and_agree_where_tables_repeat_them():
    whole = yaml.safe_load((Path(tables.__file__).parents[2] / "papers" / reading.NUMBERS).read_text("utf-8"))
    assert set(whole) == set(TABLES)
    for row in TABLES["T3.1"].given.printed.rows.keys() & TABLES["T4.1"].given.printed.rows.keys():
        assert TABLES["T3.1"].given.printed.rows[row] == TABLES["T4.1"].given.printed.rows[row]
    runs = TABLES["E1-runs"].given.printed.rows
    for row, (change, _) in TABLES["E1"].given.printed.rows.items():
        (before,), (after,) = runs[row]
        assert abs(100 * (after - before) - change[0]) < 1


@pytest.mark.parametrize("name", ["E1", "S1", "T7.1"])
def test_tables_are_planned_where_their_data_is(name, data_dir):
    """The first federation of a table, with all methods that it takes on this machine's memory."""
    table = TABLES[name]
    budget, keys = table.budget("laptop"), reproducing.every_key(table)
    federation = federation_of(table.config(keys[0], budget, data_dir))
    for key in keys:
        if key[0] == keys[0][0]:
            try:
                planned(table.config(key, budget, data_dir), Objects(federation=federation))
            except TooLarge:
                assert key[1] == "Ditto"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A made-up table's file in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JCFL_DATA", raising=False)
    Path("made.yaml").write_text(MADE)
    return tmp_path


def run(*words):
    return cli.status(["reproduce", *words])


class Trained(NamedTuple):
    """A made-up table that was run in two steps, what was written after each, and what was said."""

    one: Path  # the folder once FedAvg was run
    printed: str  # of that step
    both: Path  # the folder once FedAvg had gone on and IFCA was run
    out: str  # of that step
    err: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders to copy, of the only runs of the made-up table that have to be trained."""
    place = tmp_path_factory.mktemp("trained")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(place)
        patch.delenv("JCFL_DATA", raising=False)
        Path("made.yaml").write_text(MADE)
        assert run("made.yaml", "--only", "FedAvg", "--json", "-q") == 0
        printed = out.getvalue()
        shutil.copytree("reproduction", "one")
        Path("reproduction", RUNS, "FedAvg", "summary.json").unlink()  # as if it had been stopped
        assert run("made.yaml") == 0
    return Trained(place / "one", printed, place / "reproduction", out.getvalue()[len(printed) :], err.getvalue())


def test_rows_and_columns_are_run_where_they_meet(made, monkeypatch):
    tried = []
    monkeypatch.setattr(reproducing, "attempted", lambda made, config, place, settings: tried.append(place.name))
    monkeypatch.setattr(reproducing, "outcome", lambda *all: {})
    settings = reproducing.Settings(made / "runs")
    reproducing.reproduce("made.yaml", "laptop", ["IFCA, K=2", "rotated"], settings)
    reproducing.reproduce("made.yaml", "laptop", ["rotated"], settings)
    assert tried == ["IFCA_K=2", "FedAvg", "IFCA_K=2"]


def test_a_table_is_run_resumed_and_written(made, trained, capsys, monkeypatch):
    found = json.loads(trained.printed)
    cells = {row["row"]: row["cells"] for row in found["rows"]}
    assert cells["FedAvg"][0]["verdict"] in ("reproduced", "not judged")
    assert len(cells["FedAvg"][0]["ours"]["values"]) == 2 and cells["FedAvg"][0]["doubts"] == ["it was made up"]
    assert cells["FedAvg"][1] is None and cells["FedAvg"][2]["why"] == "data needed: cifar100"
    assert [cell and cell["verdict"] for cell in cells["IFCA, K=2"]] == ["not run", "not run", None]
    assert found["orders"][0]["verdict"] == "not run" and found["made"][0]["seeds"] == [0, 1]
    folder = trained.one / RUNS
    assert [place.name for place in folder.iterdir()] == ["FedAvg"]
    assert not [*folder.rglob("checkpoints/*/*")], "the checkpoints of complete runs would fill the disk"
    assert "cannot be run here (1 number): data needed: cifar100" in trained.out and "IFCA_K=2" in trained.err
    assert trained.err.count("jcfl: dataset 'cifar100' not found: searched ") == 2, "once in each command"
    assert "- Two seeds." in trained.out and "- The table was made up." in trained.out
    shutil.copytree(trained.both, made / "reproduction")
    left = made / "reproduction" / RUNS / "FedAvg" / "checkpoints" / "seeds-0-1" / "1.npz"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()  # as if the process had been killed before it deleted it
    monkeypatch.setattr(reproducing, "planned", lambda *given: pytest.fail("a complete run was run again"))
    monkeypatch.setattr(reproducing, "attempted", lambda *given: judging.Judgement("not run", "not here"))
    assert run("made.yaml", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["rows"][0]["cells"][0] == cells["FedAvg"][0]
    assert not left.exists()
    gain = again["rows"][1]["cells"][1]["ours"]["values"]
    ours = [row["cells"][0]["ours"]["values"] for row in again["rows"]]
    np.testing.assert_allclose(gain, np.subtract(ours[1], ours[0]))
    assert again["orders"][0]["ours"]["values"] == pytest.approx(gain)
    page = (made / "reproduction" / "made-up-laptop.md").read_text("utf-8")
    assert "| FedAvg | paper | 12.00 ± 40.00† |" in page and "\\|absent\\|" in page and "- Two seeds." in page
    paper = (made / "reproduction" / "made-up-laptop.tex").read_text("utf-8")
    assert "absent" not in paper and "left out" in paper and "FedAvg & paper & 12.00 $\\pm$ 40.00$^\\dagger$" in paper
    assert json.loads((made / "reproduction" / "made-up-laptop.json").read_text("utf-8")) == again
    assert (made / "reproduction" / "made-up-laptop.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("name", ["S1", "T-text", "E1-runs"])
def test_the_terminal_says_what_the_page_says(name, width):
    found = json.loads((PUBLISHED / f"{name}-laptop.json").read_text("utf-8"))
    screen = Console(file=io.StringIO(), width=width)
    for part in paper.parts(found, width):
        screen.print(part, highlight=False)
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width and not any("…" in line for line in lines)
    page = reproduction.page(found, "md")
    words = [texts.legend(found), *re.findall(r"^(?:- )(.*)$", page, re.MULTILINE)]
    said = " ".join(screen.file.getvalue().split())
    assert len(words) > 4 and all(" ".join(one.split()) in said for one in words)
    numbers = {text for line in texts.lines(found) for who in line.numbers.values() for text in who}
    assert all(any(text in line for line in lines) for text in numbers)  # none is broken
    for above, _, _, _, gap, verdict in texts.orders(found):
        assert any(above.split()[0] in line and f"{gap}  {verdict}" in line for line in lines) == (gap != "–")


@pytest.mark.parametrize("file", sorted(PUBLISHED.glob("*.json")), ids=lambda file: file.stem)
def test_published_pages_are_those_of_their_numbers(file):
    picture = lambda text: re.sub(r"!\[.*\]", "", text)
    drawn = file.stem if file.with_suffix(".png").exists() else None
    found = json.loads(file.read_text("utf-8"))
    assert picture(reproduction.page(found, "md", drawn)) == picture(file.with_suffix(".md").read_text("utf-8"))
    assert reproduction.page(found, "tex") == file.with_suffix(".tex").read_text("utf-8")


def test_a_page_of_paper_has_what_was_run_alone():
    """Eight columns, of which two were run, were shrunk until nobody could read them."""
    found = json.loads((PUBLISHED / "T3.3-laptop.json").read_text("utf-8"))
    part, page = texts.without_unrun(found), reproduction.page(found, "tex")
    assert part["left_out"] and part["counts"] == found["counts"] and len(found["columns"]) == 8
    assert part["columns"] == found["columns"][:2] and all(len(one["cells"]) == 2 for one in part["beside"])
    run = ["FedAvg", "FedProx", "IFCA, K=5", "FeSEM, K=5", "WeCFL, K=5", "FeSEM, K=10", "WeCFL, K=10"]
    assert [one["row"] for one in part["rows"]] == run
    cells = {cell["verdict"] for one in found["rows"] for cell in one["cells"][2:]}
    assert cells == {"not run"} and "left out" in page and "CIFAR-10 2-class" not in page and "IFCA, K=10" not in page
    heads = page.splitlines()[page.splitlines().index("\\toprule") + 1]
    parts = re.findall(r"\{@\{\}r@\{\}\}(.*?)\\end\{tabular\}", heads)
    assert len(parts) == 2 and max(len(line) for part in parts for line in part.split("\\\\")) <= 16
    whole = json.loads((PUBLISHED / "S3-laptop.json").read_text("utf-8"))
    same = texts.without_unrun(whole)
    assert not same["left_out"] and [same[key] for key in ("rows", "columns")] == [whole["rows"], whole["columns"]]
    for one in whole["rows"]:
        one["cells"] = [{**cell, "verdict": "not run", "ours": None} for cell in one["cells"]]
    assert not texts.without_unrun(whole)["left_out"]  # of a table without any run, all printed numbers


def test_results_of_another_machine_are_shown_where_there_is_no_run(made, trained):
    first = made / "first.json"
    shutil.copytree(trained.one, made / "elsewhere")
    assert run("made.yaml", "--only", "FedAvg", "--only", "rotated", "-q", "--out", "elsewhere") == 0
    (made / "elsewhere" / "made-up-laptop.json").rename(first)
    shutil.copytree(trained.both / RUNS / "IFCA_K=2", made / "reproduction" / RUNS / "IFCA_K=2")
    assert run("made.yaml", "--only", "IFCA, K=2", "--only", "rotated", "--add", str(first), "-q") == 0
    both = json.loads((made / "reproduction" / "made-up-laptop.json").read_text("utf-8"))
    alone = json.loads(first.read_text("utf-8"))
    assert both["rows"][0]["cells"][0] == alone["rows"][0]["cells"][0]
    ours = [row["cells"][0]["ours"]["values"] for row in both["rows"]]
    assert both["orders"][0]["ours"]["values"] == pytest.approx(np.subtract(ours[1], ours[0]))  # seed by seed
    assert [one["runs"] for one in both["made"]] == [[["rotated", "FedAvg"]], [["rotated", "IFCA, K=2"]]]
    assert both["made"][0] == alone["made"][0]
    page = (made / "reproduction" / "made-up-laptop.md").read_text("utf-8")
    assert "| runs | 2 |" in page and "| seeds | 0, 1 |" in page and page.count("<br>") == 1
    (made / "both.json").write_text(json.dumps(both))
    assert run("made.yaml", "--add", str(made / "both.json"), "--only", "|absent|", "-q") == 0
    again = json.loads((made / "reproduction" / "made-up-laptop.json").read_text("utf-8"))
    assert again["rows"][0]["cells"][0] == both["rows"][0]["cells"][0] and len(again["made"]) == 2  # each run once
    assert again["made"] == both["made"]


def test_a_table_is_run_seed_by_seed(made, trained, capsys, monkeypatch):
    """Each seed is a run of its own, on this machine or another one, and the numbers are those of all side by side."""
    only = ("made.yaml", "--only", "FedAvg", "--only", "rotated", "-q")
    file = lambda folder: json.loads((made / folder / "made-up-laptop.json").read_text("utf-8"))
    assert run(*only, "--seed", "1") == 0
    first = file("reproduction")
    cell = first["rows"][0]["cells"][0]
    assert cell["ours"]["seeds"] == [1] and cell["ours"]["std"] is None
    assert (cell["verdict"], cell["why"]) == ("not judged", "1 of the 2 seeds has been run")
    assert [one["seeds"] for one in first["made"]] == [[1]]
    there = json.loads(trained.printed)["rows"][0]["cells"][0]["ours"]["values"]
    np.testing.assert_allclose(cell["ours"]["values"], there[1:], atol=1e-4)
    shutil.copytree(made / "reproduction", made / "elsewhere")
    assert run(*only, "--seed", "0", "--out", "other", "--add", "reproduction/made-up-laptop.json") == 0
    both = file("other")
    assert both["rows"][0]["cells"][0]["ours"]["seeds"] == [0, 1]
    assert [one["seeds"] for one in both["made"]] == [[1], [0]]
    assert both["rows"][0]["cells"][0]["verdict"] == json.loads(trained.printed)["rows"][0]["cells"][0]["verdict"]
    assert run(*only, "--out", "elsewhere") == 0  # without --seed, the seed that is left
    assert file("elsewhere")["rows"][0]["cells"][0]["ours"] == both["rows"][0]["cells"][0]["ours"]
    folders = [place.parent.name for place in sorted((made / "elsewhere").rglob("config.yaml"))]
    assert folders == ["FedAvg", "FedAvg"] and not (made / "elsewhere" / RUNS).exists()
    monkeypatch.setattr(reproducing, "attempted", lambda *given: pytest.fail("a complete run was run again"))
    assert run(*only, "--seed", "0", "--out", "elsewhere") == 0
    shutil.copytree(trained.one, made / "whole")
    assert run(*only, "--seed", "0", "--out", "whole") == 0  # the seed is among those that were run side by side
    assert file("whole")["rows"][0]["cells"][0]["ours"]["seeds"] == [0, 1]
    capsys.readouterr()
    assert run(*only, "--seed", "2") == 2
    assert "seed 2: made-up, rotated with budget laptop has the seeds 0, 1" in capsys.readouterr().err


def test_differences_are_of_the_seeds_that_both_have(made):
    table, budget = reading.find("made.yaml"), reading.find("made.yaml").budget("laptop")
    place = lambda seeds, value: History(
        "a", seeds, np.array([2]), {"accuracy_micro": np.full((len(seeds), 1), value)}, *[np.zeros(0)] * 3
    )
    runs = {("rotated", "FedAvg"): (place([1], 0.5), place([0], 0.25)), ("rotated", "IFCA, K=2"): (place([1], 0.75),)}
    assert outcomes.values(table, ("FedAvg", "rotated"), budget, runs) == {0: 25, 1: 50}
    assert outcomes.values(table, ("IFCA, K=2", "gain"), budget, runs) == {1: 25}
    runs["rotated", "FedAvg"] = (place([0], 0.25),)
    found = outcomes.values(table, ("IFCA, K=2", "gain"), budget, runs)
    assert found == ("not run", "no seed has been run of both methods")
    cells = dict(table.cells())
    ours = {("FedAvg", "rotated"): {0: 25.0}, ("IFCA, K=2", "rotated"): {1: 75.0}}
    (order,) = outcomes.judged_orders(table, cells, ours, budget)
    assert (order["verdict"], order["ours"]) == ("not run", None)


def test_an_earlier_verdict_counts_until_all_seeds_have_been_run(made):
    table, budget = reading.find("made.yaml"), reading.find("made.yaml").budget("laptop")
    diverged = judging.Judgement("not reproduced", "training diverged")
    known = lambda earlier, found: outcomes.joined(table, ("FedAvg", "rotated"), budget, earlier, found)
    assert known(diverged, {0: 1.0}) == diverged and known(diverged, {0: 1.0, 1: 2.0}) == {0: 1.0, 1: 2.0}
    assert known(judging.Judgement("cannot be run here", "data"), {0: 1.0}) == {0: 1.0}
    assert known({0: 3.0, 1: 4.0}, {1: 2.0}) == {0: 3.0, 1: 2.0} and known({0: 3.0}, diverged) == diverged


def published_file(path, values, verdict, device):
    """A file of results of the made-up table, with numbers of one cell."""
    ours = None if values is None else {"values": values}
    entry = {"printed": {"mean": 12.0, "std": 40.0}, "ours": ours, "verdict": verdict, "why": ""}
    by = {"runs": [["rotated", "FedAvg"]], "devices": [device], "seeds": [0, 1], "seconds": 9.0}
    made = [] if values is None else [by]
    head = {
        "table": "made-up",
        "budget": "laptop",
        "changes": ["Two seeds."],
        "columns": ["rotated", "gain", "|absent|"],
    }
    path.write_text(json.dumps({**head, "rows": [{"row": "FedAvg", "cells": [entry, None, None]}], "made": made}))
    return path


def test_seeds_of_a_smaller_budget_count_in_a_larger_one(made):
    Path("made.yaml").write_text(
        MADE + "      full: {seeds: 3, hours: 0.01}\n      more: {seeds: 3, hours: 0.01, last: 2}\n"
    )
    table, cell = reading.find("made.yaml"), ("FedAvg", "rotated")
    file = published_file(Path("a.json"), [1, 2], "reproduced", "A")
    whole = json.loads(file.read_text())
    key = ("rotated", "FedAvg")
    whole["made"][0]["settings"] = [table.digest(key, table.budget("laptop"))]
    file.write_text(json.dumps(whole))
    found = published.read([file], table, "full", table.budget("full"))
    assert found.cells[cell] == {0: 1, 1: 2}
    assert outcomes.entry(table, cell, Printed(12.0, 40.0, 0.5), found.cells[cell], table.budget("full"))["why"] == (
        "2 of the 3 seeds have been run"
    )
    assert found.made[0]["settings"] == [table.digest(key, table.budget("full"))] != whole["made"][0]["settings"]
    for budget in ("gpu", "more"):  # with another learning rate, and with the mean of two evaluations
        with pytest.raises(InputError, match=rf"its budget: laptop; expected: {budget}, or a budget that differs"):
            published.read([file], table, budget, table.budget(budget))
    file.write_text(json.dumps(whole | {"budget": "full", "changes": [], "made": []}))
    with pytest.raises(InputError, match="its budget: full; expected: laptop, or a budget that"):
        published.read([file], table, "laptop", table.budget("laptop"))


def test_a_machine_without_data_does_not_hide_the_numbers_of_another_one(made):
    table, cell = reading.find("made.yaml"), ("FedAvg", "rotated")
    with_data = published_file(Path("b.json"), [1, 2], "reproduced", "B")
    without = published_file(Path("a.json"), None, "cannot be run here", "A")
    for files in ([with_data, without], [without, with_data]):
        found = published.read(files, table, "laptop", table.budget("laptop"))
        assert found.cells[cell] == {0: 1, 1: 2}


def test_what_was_run_names_the_runs_whose_numbers_are_shown(made):
    table = reading.find("made.yaml")
    files = [published_file(Path(f"{name}.json"), [1, 2], "reproduced", name) for name in ("old", "new")]
    found = published.read(files, table, "laptop", table.budget("laptop"))
    assert [one["devices"] for one in found.made] == [["new"]]


def test_options_of_jax_that_change_results_are_on_the_page(made, trained):
    shutil.copytree(trained.one, made / "reproduction")
    folder = made / "reproduction" / RUNS / "FedAvg"
    written = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    written["made_by"] |= {"settings": {"jax_enable_x64": True}, "xla_flags": "--xla_a=1|2"}
    (folder / "config.yaml").write_text(yaml.safe_dump(written), "utf-8")
    (folder / "checksums.json").unlink()
    found = outcomes.made(("rotated", "FedAvg"), results.load(folder), "")
    assert found["options"] == ["jax_enable_x64=True, XLA_FLAGS=--xla_a=1|2"]
    shown = json.loads((made / "reproduction" / "made-up-laptop.json").read_text("utf-8"))
    plain = [one | {"options": []} for one in shown["made"]]
    assert "| settings of JAX and XLA |" not in reproduction.page(shown | {"made": plain}, "md")
    page = reproduction.page(shown | {"made": [*plain, found]}, "md")
    assert "| settings of JAX and XLA | jax_enable_x64=True, XLA_FLAGS=--xla_a=1\\|2 |" in page


def test_earlier_numbers_whose_runs_are_gone_are_kept(made, trained, capsys):
    shutil.copytree(trained.one, made / "reproduction")
    words = ["made.yaml", "--only", "rotated", "-q"]
    assert run(*words, "--only", "FedAvg") == 0
    file = made / "reproduction" / "made-up-laptop.json"
    old = json.loads(file.read_text("utf-8"))
    del old["beside"]  # as in files from before there were baselines
    file.write_text(before := json.dumps(old))
    shutil.rmtree(made / "reproduction" / "runs")
    assert run("made.yaml", "--only", "|absent|", "-q") == 0
    said = capsys.readouterr().err
    assert "had numbers of 1 cell whose runs are not in reproduction/runs" in said
    assert "--add reproduction/made-up-laptop-before1.json shows them" in said
    kept = file.with_name("made-up-laptop-before1.json")
    assert kept.read_text("utf-8") == before != file.read_text("utf-8")
    assert run("made.yaml", "--only", "|absent|", "-q", "--add", str(kept)) == 0
    assert json.loads(file.read_text("utf-8"))["rows"][0]["cells"][0]["ours"] is not None


def test_runs_that_had_other_data_are_told_of(made, trained):
    """Files of the data may have changed between two commands, which train the rows of one table."""
    table = reading.find("made.yaml")
    keys = [("rotated", "FedAvg"), ("rotated", "IFCA, K=2")]
    configs = {key: table.config(key, table.budget("laptop")) for key in keys}
    one = results.load(trained.one / RUNS / "FedAvg")
    other = copy.copy(one)
    other.summary = one.summary | {"federation": "0" * 16}
    with warnings.catch_warnings(action="error"):
        reproducing.tell_of_other_data(dict(zip(keys, [(one,), (one,)], strict=True)), configs, Path("rotated"))
    with pytest.warns(Notice, match=r"^rotated: 'IFCA, K=2' has other data than 'FedAvg', so their numbers"):
        reproducing.tell_of_other_data(dict(zip(keys, [(one,), (other,)], strict=True)), configs, Path("rotated"))


def test_a_full_disk_leaves_earlier_results_as_they_were(tmp_path):
    """The file may have numbers of runs on another machine, which `--add` of this same file has read."""
    resource = pytest.importorskip("resource")
    file = tmp_path / "made-up-laptop.json"
    file.write_text("earlier numbers")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with pytest.raises(Unwritable, match=r"made-up-laptop\.json cannot be written"):
            pages.write(tmp_path / "made-up-laptop", {"json": "new numbers, for which there is no room"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == "earlier numbers"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("table", "S1", "its table: S1; expected: made-up"),
        ("budget", "night", "its budget: night; expected: laptop"),
        ("changes", [], "its changes of the budget: (); expected: ('Two seeds.',)"),
        ("printed", {"mean": 13.0, "std": 40.0}, "add.json: FedAvg, rotated: printed is 13.0 ± 40.0; expected: 12.0"),
        ("ours", {"values": [1]}, "add.json: FedAvg, rotated has numbers of 1 seed; expected: 2"),
        ("ours", {"values": [1, 2], "seeds": [0, 2]}, "add.json: FedAvg, rotated has the seed 2; expected: 0, 1"),
        ("columns", ["rotated"], "3 cells in the row 'FedAvg' of 1 columns"),
        ("rows", 5, "rows: expected a list, such as [5], got 5"),
        (
            "made",
            [{"runs": [["rotated", "FedAvg"]], "settings": ["0" * 12], "seeds": [0, 1]}],
            "its run rotated, FedAvg had other settings",
        ),
        ("made", [{"runs": [["rotated", "FedAvg"]], "settings": ["0", "1"], "seeds": [0]}], "2 settings of 1 runs"),
    ],
)
def test_files_of_other_results_are_refused_before_training(made, capsys, key, value, said):
    entry = {"printed": {"mean": 12.0, "std": 40.0}, "ours": {"values": [1, 2]}, "verdict": "reproduced", "why": ""}
    row = {"row": "FedAvg", "cells": [{**entry, key: value}, None, None]}
    file = {
        "table": "made-up",
        "budget": "laptop",
        "changes": ["Two seeds."],
        "columns": ["rotated", "gain", "|absent|"],
    }
    Path("add.json").write_text(json.dumps({**file, "rows": [row], "made": [], key: value}))
    assert run("made.yaml", "--add", "add.json") == 2
    assert said in capsys.readouterr().err and not (made / "reproduction").exists()


def test_a_digest_changes_with_what_changes_a_run(made):
    def digest(old="", new="", budget="laptop", key=("rotated", "FedAvg")):
        Path("made.yaml").write_text(MADE.replace(old, new, 1))
        table = reading.find("made.yaml")
        return table.digest(key, table.budget(budget))

    same, other = (
        digest(),
        [
            digest("hidden: 4", "hidden: 5"),
            digest("rounds: 2", "rounds: 3"),
            digest("groups: 2", "groups: 4"),
            digest("laptop: {seeds: 2", "laptop: {seeds: 3"),
            digest(budget="gpu"),
            digest(key=("rotated", "IFCA, K=2")),
        ],
    )
    assert re.fullmatch("[0-9a-f]{12}", same) and len({same, *other}) == 7
    assert digest("rounds: 2", "rounds: 2\n  checkpoint_every: never\n  autotune: false") == same


@pytest.mark.parametrize("more", [{}, {"settings": ["digest"]}], ids=["without digest", "with digest"])
def test_files_without_digests_are_taken_with_a_notice_where_departures_differ(made, more):
    table = reading.find("made.yaml")
    budget = table.budget("laptop")
    digest = table.digest(("rotated", "FedAvg"), budget)
    by = {"runs": [["rotated", "FedAvg"]], "seeds": [0, 1], **({"settings": [digest]} if more else {})}
    file = {"table": "made-up", "budget": "laptop", "changes": ["Two seeds."], "columns": [], "rows": [], "made": [by]}
    for departures in (["The table was made up."], ["It was drawn."]):
        Path("add.json").write_text(json.dumps({**file, "departures": departures}))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert published.read([Path("add.json")], table, "laptop", budget).made == (by,)
        assert ["It was drawn." in str(one.message) for one in told] == [True] * (
            departures[0][:2] == "It" and not more
        )


def test_a_budget_leaves_out_and_changes_what_it_says(made):
    table = reading.find("made.yaml")
    budget = table.budget("gpu")
    assert table.config(("rotated", "FedAvg"), budget).train.options["lr"] == 0.05
    assert table.left_out(("rotated", "IFCA, K=2"), budget) and not table.left_out(("rotated", "FedAvg"), budget)
    run = History("a", [0, 1], np.arange(3), {"x": np.array([[1, 2, 4], [0, 0, 2]])}, *[np.zeros(0)] * 3)
    run.summary = {"costs": {"storage": 11.0}}
    assert outcomes.score(run, "x", 2).tolist() == [3.0, 1.0]
    assert outcomes.score(run, "costs.storage", 1).tolist() == [11.0, 11.0]


def test_a_score_that_a_run_does_not_have_is_not_judged(made):
    Path("made.yaml").write_text(MADE.replace("minus: FedAvg}", "score: held_out_accuracy_micro}"))
    table, run = reading.find("made.yaml"), History("a", [0], np.arange(2), {}, *[np.zeros(0)] * 3)
    cell = ("IFCA, K=2", "gain")
    found = outcomes.values(table, cell, table.budget("laptop"), dict.fromkeys(table.keys(cell), (run,)))
    assert found == ("not judged", "there is no score 'held_out_accuracy_micro' in this run")


def test_rounds_are_counted_until_clusters_are_final():
    labels = np.array([[[0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]], [[0, 0, 1, 1]] * 4])  # two seeds
    run = History("a", [0, 1], np.array([1, 2, 3, 4]), {}, labels, np.zeros(0), np.array([0, 0, 1, 1]))
    assert outcomes.rounds_until((run,), "still") == {0: 3, 1: 1}
    assert outcomes.rounds_until((run,), "groups") == {0: 3, 1: 1}
    run.labels, run.rounds = labels[:, :3], run.rounds[:3]  # the first seed's clusters change in the last round
    assert outcomes.rounds_until((run,), "still") == ("not reproduced", "not within 3 rounds with 1 of 2 seeds")
    assert outcomes.rounds_until((run,), "groups") == {0: 3, 1: 1}


def test_clusters_that_get_other_numbers_stand_still():
    """Agglomerative clustering numbers its clusters anew in each round."""
    labels = np.array([[[0, 1, 0, -1], [0, 1, 1, -1], [1, 0, 0, -1], [5, 3, 3, -1]]])
    run = History("a", [0], np.array([1, 2, 3, 4]), {}, labels, np.zeros(0), np.zeros(4, int))
    assert outcomes.rounds_until((run,), "still") == {0: 2}
    run.labels = np.array([[[0, 0, 1, -1], [0, 0, 1, -1], [0, 0, 1, 1]]])  # a client without a cluster is in none
    run.rounds = run.rounds[:3]
    assert outcomes.rounds_until((run,), "still").verdict == "not reproduced"


def test_clusters_are_compared_with_the_groups_of_their_round_where_data_drift():
    run = History(
        "a", [0], np.array([1, 2, 3]), {}, np.array([[[0, 1], [0, 1], [0, 0]]]), np.zeros(0), np.zeros(2, int)
    )
    held = {"drift_rounds": np.array([2]), "drift_holds": np.array([[0, 1], [0, 0]]), "groups": np.array([0, 1])}
    run.held = lambda: held
    assert outcomes.rounds_until((run,), "groups") == {0: 1}


def test_clusters_are_the_groups_only_once_every_client_has_one():
    """ARI leaves out clients without a cluster, so it is 1 as soon as the first few are right."""
    labels = np.array([[[0, -1, -1, -1], [0, 1, -1, -1], [0, 1, 0, 1]]])
    run = History("a", [0], np.array([1, 2, 3]), {}, labels, np.zeros(0), np.array([0, 1, 0, 1]))
    assert outcomes.rounds_until((run,), "groups") == {0: 3}
    run.labels = np.full_like(labels, -1)
    assert outcomes.rounds_until((run,), "still") == ("not reproduced", "not within 3 rounds with 1 of 1 seeds")


def test_a_score_that_is_not_defined_is_not_judged(made):
    table, budget = reading.find("made.yaml"), reading.find("made.yaml").budget("laptop")
    scores = {"accuracy_micro": np.array([[0.12], [np.nan]])}
    run = History("a", [0, 1], np.array([2]), scores, np.zeros((2, 1, 8)), np.zeros(0), np.zeros(8))
    found = outcomes.values(table, ("FedAvg", "rotated"), budget, {("rotated", "FedAvg"): (run,)})
    assert found == ("not judged", "the score is not defined with 1 of 2 seeds")


def test_counts_have_a_limit_of_their_own():
    """Five points of a percentage are 0.05 of a share, and nothing that a number of clusters or rounds has."""
    cells = (("S1", "percent"), ("S-fig8", "clusters"), ("T-text", "rounds"))
    limits = {"percent": 5.0, "clusters": 4.0, "rounds": 4.0}
    for name, kind in cells:
        found = [TABLES[name].widest(cell, Printed(8.0, None, 0.5)) for cell, _ in TABLES[name].cells()]
        assert limits[kind] in found
    assert judging.number([8, 8, 8, 8, 9], Printed(8.0, None, 0.5), 4.0).verdict == "reproduced"
    assert judging.number([2, 11], Printed(8.0, None, 0.5), 4.0).verdict == "not judged"


def test_numbers_of_another_experiment_are_not_judged(made):
    table = reading.find("made.yaml")
    judged = lambda name: outcomes.entry(
        table, ("FedAvg", "rotated"), Printed(12.0, None, 0.5), {0: 12.0, 1: 12.1}, table.budget(name)
    )
    assert judged("laptop")["verdict"] == "reproduced"
    assert (judged("gpu")["verdict"], judged("gpu")["why"]) == (
        "not judged",
        "the budget changes what is trained: train.lr",
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("orders: [{above:", "orders: [{above: IFCA, below: FedAvg}, {above:", "did you mean 'IFCA, K=2'?"),
        (
            "minus: FedAvg}",
            "score: acuracy_micro}",
            "unknown score of made-up 'acuracy_micro'; did you mean 'accuracy_mi",
        ),
        ("minus: FedAvg}", "score: cost.storage}", "unknown score of made-up 'cost'; did you mean 'costs'?"),
        (
            "minus: FedAvg}",
            "score: costs.storag}",
            "unknown score of made-up 'costs.storag'; did you mean 'costs.storage'?",
        ),
        ("minus: FedAvg}", "score: engine}", "unknown score of made-up 'engine'"),
        ("below: FedAvg}]", "below: gain}]", "unknown row in an order of the row 'IFCA, K=2' of made-up: 'gain'"),
        ("below: FedAvg}]", "below: FedAvg, at: [FedAvg]}]", "unknown column in an order of the row 'IFCA, K=2' of"),
        ("orders: [{above:", "orders: [{above: gain, below: rotated, at: [gain]}, {above:", "unknown row in an order"),
        ("rotated: {federation: rotated}", "rotated: {federation: rotatedd}", "did you mean 'rotated'?"),
        ("minus: FedAvg}", "minus: FedAvgg}", "did you mean 'FedAvg'?"),
        ("rotated: {federation: rotated}\n", "rotated: {}\n", "neither a federation nor a reason"),
        ("[20]]", "]", "2 numbers in the row 'FedAvg' of 3 columns"),
        ("hours: 0.01,", "hours: much,", "budgets.laptop.hours"),
        ("name: ifca, clusters: 2", "name: ifca, clusterz: 2", "clusterz"),
        ("minus: FedAvg}", "minu: FedAvg}", "unknown key 'minu'; did you mean 'minus'?"),
        ("hours: 0.01,", "hour: 0.01,", "budgets.laptop: unknown key 'hour'; did you mean 'hours'?"),
        ("tables:\n", "tables: 5\nrows:\n", "expected tables: {NAME: {…}}, got 5"),
        ("  made-up:\n", "  empty: 5\n  made-up:\n", "expected tables: {NAME: {…}}"),
        ("  made-up:\n", "  ../made-up:\n", "table '../made-up': expected a name that can be a file's, such as"),
        ("laptop: {", "../laptop: {", "budget '../laptop': expected a name that can be a file's"),
        (
            "methods: {",
            'methods: {"FedAvg,": {name: fedavg}, FedAvg_: {name: ifca}, ',
            "would share a folder; rename one",
        ),
        ("[12, 40]", "[12, -40]", "expected [mean] or [mean, std] in the row 'FedAvg', got [12.0, -40.0]"),
        ("[12, 40]", "[]", "expected [mean] or [mean, std] in the row 'FedAvg', got []"),
        ("[12, 40]", "[.nan]", "expected [mean] or [mean, std] in the row 'FedAvg', got [nan]"),
    ],
)
def test_mistakes_in_a_file_end_in_one_line(made, capsys, old, new, said):
    Path("made.yaml").write_text(MADE.replace(old, new, 1))
    assert run("made.yaml") == 2
    complaint = capsys.readouterr().err.strip()
    assert said in complaint and "\n" not in complaint and not (made / "reproduction").exists()


def test_a_table_can_show_the_scores_and_the_numbers_of_a_summary(made, trained, monkeypatch):
    monkeypatch.setattr(metrics.table, "_TABLE", {**metrics.table._TABLE})
    metrics.register_score("own")(lambda clients: 1.0)
    for name in ("own", "held_out_own", "validation_loss", "costs.storage", "accuracy_micro.std", "wall_s"):
        Path("made.yaml").write_text(MADE.replace("minus: FedAvg}", f"score: {name}}}"))
        assert reading.find("made.yaml").part(("IFCA, K=2", "gain")).score == name
    summary = json.loads((trained.both / RUNS / "FedAvg" / "summary.json").read_text("utf-8"))
    texts = {name for name, value in summary.items() if isinstance(value, str)}
    assert {*summary} - texts - {*metrics.score_names()} <= {*reading.MEASURED}
    assert {*summary["costs"]} <= {*costs.NAMES}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["S11"], "unknown table 'S11'; did you mean 'S1'?"),
        (["S1", "--budget", "lap-top"], "did you mean 'laptop'?"),
        (["S1", "--only", "StoCFLL"], "did you mean 'StoCFL'?"),
        ([], "which table?"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_one(made, capsys, words, said):
    assert run(*words) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_diverges_is_not_reproduced_and_not_run_again(made, capsys, monkeypatch):
    Path("made.yaml").write_text(MADE.replace("rounds: 2", "rounds: 4\n  train: {lr: 1.0e+30, steps: 4}"))
    for _ in range(2):
        assert run("made.yaml", "--only", "FedAvg", "--json", "-q") == 0
        cell = json.loads(capsys.readouterr().out)["rows"][0]["cells"][0]
        assert cell["verdict"] == "not reproduced" and "training diverged" in cell["why"]
        monkeypatch.setattr(reproducing, "planned", lambda *given: pytest.fail("it was run again"))


def test_a_run_with_too_few_slots_for_clusters_is_no_verdict_against_the_paper(made, capsys, monkeypatch):
    few = "name: flhc, at: 1, distance_threshold: 1.0e-9, capacity: 1"
    Path("made.yaml").write_text(MADE.replace("name: ifca, clusters: 2", few))
    for _ in range(2):
        assert run("made.yaml", "--only", "IFCA, K=2", "--only", "rotated", "--json", "-q") == 0
        cell = json.loads(capsys.readouterr().out)["rows"][1]["cells"][0]
        assert cell["verdict"] == "cannot be run here" and "more clusters were found" in cell["why"]
        monkeypatch.setattr(reproducing, "planned", lambda *given: pytest.fail("it was run again"))


@pytest.mark.parametrize(
    ("row", "verdict", "said"),
    [
        ("FedAvg", "not judged", "the one that the paper prints as lower has no number: training diverged"),
        ("IFCA, K=2", "not reproduced", "training diverged"),  # which is the better one
    ],
)
def test_a_lower_method_that_diverges_does_not_contradict_an_order(made, row, verdict, said):
    table = reading.find("made.yaml")
    cells = dict(table.cells())
    ours = {cell: {0: 12.0, 1: 12.1} for cell in cells}
    ours[row, "rotated"] = judging.Judgement("not reproduced", "training diverged")
    (order,) = outcomes.judged_orders(table, cells, ours, table.budget("laptop"))
    assert (order["verdict"], order["why"], order["ours"]) == (verdict, said, None)


def test_the_better_method_has_the_lower_loss(made):
    """The claim was left out in silence, because the better number is the lower one."""
    Path("made.yaml").write_text(
        MADE.replace("rotated: {federation: rotated}", "rotated: {federation: rotated, score: loss}")
    )
    table = reading.find("made.yaml")
    order = tables.Order(above="FedAvg", below="IFCA, K=2", at=("rotated",))  # printed: 12 and 99
    table = table._replace(given=table.given.model_copy(update={"orders": (order,)}))
    cells, diverged = dict(table.cells()), judging.Judgement("not reproduced", "training diverged")
    ours = {("FedAvg", "rotated"): {0: 12.0, 1: 12.1}, ("IFCA, K=2", "rotated"): {0: 99.0, 1: 99.1}}
    budget = table.budget("laptop")
    (found,) = outcomes.judged_orders(table, cells, ours, budget)
    assert (found["above"], found["below"], found["verdict"]) == ("IFCA, K=2", "FedAvg", "reproduced")
    assert found["printed"] == 87 and found["ours"]["mean"] == 87
    (found,) = outcomes.judged_orders(table, cells, ours | {("IFCA, K=2", "rotated"): diverged}, budget)
    said = "the one that the paper prints as higher has no number: training diverged"
    assert (found["verdict"], found["why"]) == ("not judged", said)
    (found,) = outcomes.judged_orders(table, cells, ours | {("FedAvg", "rotated"): diverged}, budget)
    assert found["verdict"] == "not reproduced"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted;"),
        (Unwritable("x cannot be written: no"), 2, "x cannot be written: no; once it can be,"),
    ],
)
def test_a_table_that_ends_early_says_how_to_go_on(made, capsys, monkeypatch, error, status, said):
    def ended(*given):
        raise error

    monkeypatch.setattr(reproducing, "attempted", ended)
    assert run("made.yaml", "-q") == status
    assert capsys.readouterr().err == f"jcfl: {said} go on with the same command\n"


def test_no_run_begins_after_ctrl_c_in_the_last_rounds_of_another(made, monkeypatch, capsys):
    """That run comes to its end. The next one was trained as if nothing had happened."""
    begun = []

    def execute(plan, place, *given, stop=None, **options):
        begun.append(place.name)
        with loop.interruptible(stop or threading.Event(), True):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("jcfl.runs.experiment.execute", execute)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    try:
        assert run("made.yaml", "--only", "rotated", "-q") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(begun) == 1
    assert capsys.readouterr().err == "jcfl: interrupted; go on with the same command\n"


def test_a_folder_with_other_runs_is_refused(made, trained, capsys):
    shutil.copytree(trained.one, made / "reproduction")
    Path("made.yaml").write_text(MADE.replace("hidden: 4", "hidden: 5"))
    assert run("made.yaml", "-q") == 2
    assert "model.hidden was 4, got 5" in capsys.readouterr().err


def test_all_tables_are_listed(capsys):
    assert run("--list") == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in TABLES)


def test_signs_in_latex_are_escaped():
    assert pages.tex("a_b & 5 % ± |D|") == r"a\_b \& 5 \% $\pm$ \textbar{}D\textbar{}"
    assert pages.tex("[1] IFCA") == "{[}1{]} IFCA"  # which would be an option of the rule before it
    with pytest.raises(InputError):
        reading.find("nowhere.yaml")


@pytest.mark.parametrize(("half", "cut"), [(0.05, False), (5.0, True)])
def test_an_interval_that_dwarfs_the_numbers_is_cut_at_the_panel(half, cut):
    def cell(printed, mean):
        ours = {"mean": mean, "interval": [mean - half, mean + half]}
        return {"printed": {"mean": printed, "std": 0.1}, "ours": ours}

    with matplotlib.rc_context(style.STYLE):
        _, (axis,) = style.panels(1, 1, 1.0, style.PAGE)
        reproduction.draw(axis, {"one": cell(0.5, 0.6), "two": cell(0.9, 0.8)})
    low, high = axis.get_xlim()
    assert low <= 0.4
    assert high >= 1.0
    assert (low > 0.6 - half) == cut
    assert high - low < 1.5 * 0.6 + 1e-9


def test_a_number_of_one_seed_does_not_look_like_one_whose_seeds_agree():
    cell = lambda interval: {
        "printed": {"mean": 0.5, "std": 0.1},
        "ours": {"mean": 0.6, "std": None, "interval": interval, "values": [0.6]},
        "digits": 2,
    }
    with matplotlib.rc_context(style.STYLE):
        _, (axis,) = style.panels(1, 1, 1.0, style.PAGE)
        reproduction.draw(axis, {"alone": cell(None), "equal": cell([0.6, 0.6])})
    assert axis.get_legend_handles_labels()[1] == ["paper", "ours", "ours, one seed"]


def test_a_score_that_is_no_number_is_refused_and_none_is_no_number():
    run = SimpleNamespace(scores={}, summary={"engine": "general", "moves": None}, seeds=[0, 1])
    with pytest.raises(InputError, match="score 'engine': expected a number, got 'general'"):
        outcomes.score(run, "engine", 1)
    np.testing.assert_array_equal(outcomes.score(run, "moves", 1), [np.nan, np.nan])
    np.testing.assert_array_equal(published.Ours(values=(None, 1.0)).values, [np.nan, 1.0])


def test_runs_that_tables_share_have_one_configuration():
    """So that all tables can be run into one folder, in any order."""
    at: dict[tuple[str, ...], tuple[str, Any]] = {}
    for table in TABLES.values():
        for name, budget in table.given.budgets.items():
            for key in reproducing.every_key(table):
                if not table.left_out(key, budget):
                    place = (reproducing.runs_folder(table, name), *map(tables.title, key))
                    found = table.config(key, budget)
                    first, config = at.setdefault(place, (table.name, found))
                    assert found == config, f"{first} and {table.name} have other runs in {'/'.join(place)}"


def test_more_rounds_than_a_run_has_do_not_contradict_that_a_method_needs_more():
    table, slow, fast = (
        TABLES["T-text"],
        "Figure 3.6: rounds until the clusters stand still, K=3",
        "Figure 3.5: rounds until",
    )
    (fast,) = (row for row in table.given.printed.rows if row.startswith(fast))
    order = tables.Order(above=slow, below=fast)
    table = table._replace(given=table.given.model_copy(update={"orders": (order,)}))
    cells = dict(table.cells())
    missed = judging.Judgement("not reproduced", "not within 20 rounds with 1 of 2 seeds")
    ours = {cell: {0: 1.0, 1: 1.0} for cell in cells} | {(slow, "value"): missed}
    (found,) = outcomes.judged_orders(table, cells, ours, table.budget("laptop"))
    said = f"the one that the paper prints as higher has no number: {missed.why}"
    assert (found["verdict"], found["why"]) == ("not judged", said)


def test_an_order_can_be_about_some_columns_alone():
    """T7.6 prints costs beside accuracies, and its text compares accuracies."""
    table = TABLES["T7.6"]
    cells = dict(table.cells())
    printed = {cell: {0: one.mean, 1: one.mean} for cell, one in cells.items()}
    found = list(outcomes.judged_orders(table, cells, printed, table.budget("laptop")))
    assert {order["at"] for order in found} == {"Accuracy", "Macro-F1"}


def test_a_number_of_a_file_that_is_none_is_not_judged():
    assert judging.defined({0: 1.0, 1: np.nan}).verdict == "not judged"
    assert judging.defined({0: 1.0, 1: 1.0}) == {0: 1.0, 1: 1.0}
