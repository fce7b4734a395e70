"""Baselines beside papers' tables: where they stand, what is run for them, and files with and without them."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from jcfl import cli
from jcfl.cli import paper
from jcfl.results import History
from jcfl.runs import reproducing
from jcfl.runs.plan import federation_of
from jcfl.runs.reproducing import beside, outcomes, published, reading
from jcfl.runs.reproducing.judging import Judgement
from jcfl.view import pages, reproduction
from jcfl.view.reproduction import texts
from tests.test_reproduce import MADE, PUBLISHED

TABLES = reading.shipped()
BESIDE = MADE.replace("    methods:", "    beside: {majority: {name: majority}}\n    methods:", 1)
ROTATED, ABSENT = ("rotated", "majority"), ("absent", "majority")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder with a table that has a baseline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JCFL_DATA", raising=False)
    Path("made.yaml").write_text(BESIDE)
    return tmp_path


def run(*words):
    return cli.status(["reproduce", "made.yaml", *words])


def written():
    return json.loads(Path("reproduction/made-up-laptop.json").read_text("utf-8"))


def stands(name):
    """For every row or column of a table's baseline, its kind and its federations, those of empty cells None."""
    return [(one.kind, [place and place.federation for place in one.places]) for one in beside.lines(TABLES[name])]


def test_majority_is_beside_every_table_that_has_a_score_of_predictions():
    assert all(table.given.beside == {"majority": {"name": "majority"}} for table in TABLES.values())
    assert {name for name in TABLES if not stands(name)} == {"E1", "F2", "S-fig7", "S-fig8", "T-text"}
    for name, table in TABLES.items():
        shown = {(place.federation, place.score) for line in beside.lines(table) for place in line.places if place}
        for cell, _ in table.cells():
            part, score = table.part(cell), table.part(cell).score or "accuracy_micro"
            is_plain = part.blocked is None and part.minus is None and part.until is None
            if is_plain and score.split("_")[0] in ("accuracy", "f1"):
                assert ((part.federation, score) in shown) == (score != "accuracy_shared"), (name, cell)


def test_a_baseline_stands_where_its_federations_say():
    """In a row where columns have the federations, in a column where rows have them, in two rows where both do."""
    (kind, federations), *more = stands("S1")
    assert (kind, len(federations), federations[0], more) == ("row", 8, "mnist-4800-10", [])
    assert stands("S3") == [("column", ["Pathological", "Rotated", "Shifted", "Hybrid"])]
    assert stands("S2") == [("row", ["femnist"]), ("row", ["femnist, everybody"])]


def test_a_difference_a_count_and_a_blocked_cell_have_no_baseline(here):
    rows = lambda: [
        [place and place.federation for place in one.places] for one in beside.lines(reading.find("made.yaml"))
    ]
    assert rows() == [["rotated", None, "absent"]]  # the second column is a difference
    for change in ("until: groups", "score: purity", "score: accuracy_shared", "blocked: no data"):
        Path("made.yaml").write_text(
            BESIDE.replace("rotated: {federation: rotated}", f"rotated: {{federation: rotated, {change}}}")
        )
        assert rows() == [[None, None, "absent"]]
    Path("made.yaml").write_text(MADE)
    assert rows() == []


@pytest.mark.parametrize(
    ("budget", "only", "expected"),
    [
        ("laptop", [], [ROTATED, ABSENT]),
        ("laptop", ["rotated"], [ROTATED]),
        ("laptop", ["IFCA, K=2"], [ROTATED]),
        ("laptop", ["FedAvg", "|absent|"], [ABSENT]),
        ("laptop", ["majority"], [ROTATED, ABSENT]),
        ("laptop", ["majority", "|absent|"], [ABSENT]),
        ("gpu", [], [ROTATED, ABSENT]),  # its only method is FedAvg
        ("gpu", ["IFCA, K=2", "rotated"], []),
    ],
)
def test_a_baseline_is_run_on_the_federations_that_are_run(here, monkeypatch, budget, only, expected):
    tried = []
    monkeypatch.setattr(
        reproducing,
        "attempted",
        lambda made, config, place, settings: tried.append((place.parents[1].name, place.name)),
    )
    monkeypatch.setattr(reproducing, "outcome", lambda *all: {})
    reproducing.reproduce("made.yaml", budget, only, reproducing.Settings(here / "runs"))
    assert [one for one in tried if one[1] == "majority"] == expected
    assert "majority" not in only or tried == expected  # named alone, nothing else is run


def test_no_baseline_is_run_where_a_budget_runs_nothing():
    table = TABLES["S2"]  # whose budget leaves out the only method of its second federation
    for only in ([], ["majority"]):
        wanted = set(reproducing.wanted_keys(table, table.budget("laptop"), only))
        assert ("femnist", "majority") in wanted and ("femnist, everybody", "majority") not in wanted


def plain_majority(federation):
    """The accuracy, in %, of the most frequent class of each client's training examples, by a loop over clients."""
    right = total = 0
    for client in range(len(federation.train.size)):
        train, test = (
            np.asarray(federation.y)[np.asarray(part.rows)[part.start[client] : part.start[client] + part.size[client]]]
            for part in (federation.train, federation.test)
        )
        counts = [int((train == label).sum()) for label in range(federation.classes)]
        right += int((test == counts.index(max(counts))).sum())
        total += len(test)
    return 100 * right / total


def test_a_baseline_is_shown_without_a_verdict_and_added_from_a_file(here, capsys):
    assert run("--only", "majority") == 0
    said, found = capsys.readouterr().out, written()
    table = reading.find("made.yaml")
    expected = plain_majority(federation_of(table.config(ROTATED, table.budget("laptop"))))
    (line,) = found["beside"]
    assert (line["method"], line["kind"]) == ("majority", "row")
    rotated, gain, absent = line["cells"]
    assert rotated["ours"]["values"] == pytest.approx([expected] * 2, abs=1e-4)
    assert gain is None and absent["ours"] is None and not {"verdict", "printed"} & rotated.keys()
    assert found["counts"] == {"numbers": {"not run": 4}, "orders": {"not run": 1}}
    assert [one["runs"] for one in found["made"]] == [[["rotated", "majority"]]]
    number = f"{expected:.2f} ± 0.00"
    page, latex = (Path(f"reproduction/made-up-laptop.{kind}").read_text("utf-8") for kind in ("md", "tex"))
    assert f"| majority (not in the paper) | here | {number} |  |  |\n" in page
    assert f"majority (not in the paper) & here & {pages.tex(number)} &  &  \\\\\n" in latex
    assert any("majority" in shown and number in shown for shown in said.splitlines())

    Path("reproduction").rename("before")
    assert run("--only", "|absent|", "--add", "before/made-up-laptop.json", "-q") == 0
    assert written()["beside"] == found["beside"] and written()["made"] == found["made"]
    found["beside"][0]["cells"][0]["ours"]["values"].pop()
    Path("other.json").write_text(json.dumps(found))
    assert run("--only", "|absent|", "--add", "other.json", "-q") == 2
    assert "other.json: majority, rotated has numbers of 1 seed; expected: 2" in capsys.readouterr().err


def test_files_from_before_there_were_baselines_are_read(here):
    assert run("--only", "|absent|", "-q") == 0
    old = written()
    assert [cell and cell["ours"] for cell in old.pop("beside")[0]["cells"]] == [None, None, None]
    Path("old.json").write_text(json.dumps(old))
    page = reproduction.page(old, "md")
    assert "majority" not in page and page == reproduction.page(written(), "md")  # a row without numbers is not shown
    assert run("--only", "|absent|", "--add", "old.json", "-q") == 0


@pytest.mark.parametrize("file", sorted(PUBLISHED.glob("*.json")), ids=lambda file: file.stem)
def test_published_results_are_read_beside_their_tables(file):
    name, _, budget = file.stem.rpartition("-")
    table = TABLES[name]
    assert published.read([file], table, budget, table.budget(budget)).cells


def number(mean, **more):
    return {"ours": {"mean": mean, "std": 0.5, "interval": [mean - 1, mean + 1], "values": [mean] * 2}, **more}


def result(kind, *cells):
    """A result of two rows and two columns with baselines, each with these cells."""
    paper = {"printed": {"mean": 0.5, "std": 0.1}, "digits": 2, "verdict": "reproduced", "why": "", "doubts": []}
    return {
        "columns": ["left", "right"],
        "rows": [{"row": "first", "cells": [number(0.5, **paper), None]}, {"row": "second", "cells": [None, None]}],
        "beside": [{"method": "majority", "kind": kind, "cells": list(one)} for one in cells],
    }


def place(federation, mean=0.25):
    return number(mean, federation=federation, score="accuracy_micro", digits=2)


def test_a_column_of_a_baseline_is_in_the_table_and_the_figure():
    found = result("column", [place("a"), place("b", 0.75)])
    assert texts.columns(found) == ["left", "right", "majority (not in the paper)"]
    first, second = texts.lines(found)
    assert first.numbers["paper"] == ["0.50 ± 0.10", "", ""] and first.numbers["here"][2] == "0.25 ± 0.50"
    assert second.numbers["here"] == ["", "", "0.75 ± 0.50"]
    panels = {axis.get_title(): axis for axis in reproduction.figure(found).axes}
    assert list(panels) == ["left", "majority (not in the paper)"]
    assert [text.get_text() for text in panels["left"].get_yticklabels()] == ["first", "second"]


def test_rows_of_a_baseline_are_named_by_their_federations_if_there_are_several():
    found = result("row", [place("a"), place("a")], [place("b"), None])
    assert [line.row for line in texts.lines(found)][2:] == [
        "majority (not in the paper), a",
        "majority (not in the paper), b",
    ]


def test_a_baseline_far_from_the_numbers_of_a_panel_is_written_at_its_edge():
    found = result("row", [place("a", 0.25), None], [place("b", 0.45), None], [place("c", 9.0), None])
    (axis,) = reproduction.figure(found).axes  # there is none for a column without numbers of the table's rows
    assert [text.get_text() for text in axis.get_yticklabels()] == [line.row for line in texts.lines(found)]
    assert [text.get_text() for text in axis.texts] == ["← 0.25 ± 0.50", "9.00 ± 0.50 →"]
    low, high = axis.get_xlim()
    assert 0.25 < low < 0.45 < high < 9
    points = [line.get_xdata()[0] for line in axis.lines if len(line.get_xdata()) == 1]
    assert points == [0.5, 0.5, 0.45]  # the paper's, ours, and the near baseline
    found["rows"][0]["cells"][0]["ours"] = None
    assert reproduction.figure(found) is None


@pytest.mark.parametrize(("width", "label"), [(50, "majority (not  "), (80, "majority (not in the paper)  ")])
def test_a_baseline_takes_two_lines_of_a_narrow_terminal(width, label):
    found = result("row", [place("a"), place("b")])
    screen = Console(file=io.StringIO(), width=width)
    for part in paper.numbers(found, width):
        screen.print(part)
    (line,) = [line for line in screen.file.getvalue().splitlines() if line.startswith("majority")]
    assert line.startswith(label) and line.split("here")[1].split() == ["0.25", "±", "0.50", "0.25", "±", "0.50"]


def test_no_number_is_broken_whatever_the_width():
    found = json.loads((PUBLISHED / "S1-laptop.json").read_text("utf-8"))
    found["beside"] = result("row", [place("a")] * 8)["beside"]
    said = {text for line in texts.lines(found) for who in line.numbers.values() for text in who}
    for width in range(50, 200, 3):
        screen = Console(file=io.StringIO(), width=width)
        for part in paper.numbers(found, width):
            screen.print(part)
        words = screen.file.getvalue()
        assert all(text in words for text in said), width
        heads = [word for line in words.splitlines() if "±" not in line for word in line.split()]
        assert heads.count("sample") == len(found["columns"]), width


def test_a_score_that_a_baseline_does_not_have_is_an_empty_cell(here):
    history = History("a", [0, 1], np.array([2]), {"x": np.array([[1.0], [np.nan]])}, *[np.zeros(0)] * 3)
    history.summary = {"costs": {"storage": 2.0}}
    at = lambda score: beside.Place("rotated", score, 10, 0)
    assert outcomes.beside_values((history,), at("x"), 1) == {}
    assert outcomes.beside_values((history,), at("nobody"), 1) == {}
    assert outcomes.beside_values(Judgement("not run"), at("x"), 1) == {}
    assert outcomes.beside_values((history,), at("costs.storage"), 1) == {0: 20.0, 1: 20.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{FedAvg: {name: majority}}", "the methods 'FedAvg' and 'FedAvg' would share a folder; rename one"),
        ("{majority: {name: majorty}}", "did you mean 'majority'?"),
        ("{majority: 5}", "beside.majority: expected keys and values, got 5"),
        ("5", "beside: expected keys and values, got 5"),
    ],
)
def test_mistakes_in_a_baseline_end_in_one_line(here, capsys, given, said):
    Path("made.yaml").write_text(BESIDE.replace("{majority: {name: majority}}", given))
    assert run() == 2
    complaint = capsys.readouterr().err.strip()
    assert said in complaint and "\n" not in complaint and not Path("reproduction").exists()


def test_an_unknown_name_is_compared_with_baselines_too(here, capsys):
    assert run("--only", "majorty") == 2
    assert "did you mean 'majority'?" in capsys.readouterr().err
