"""Papers' tables seed by seed: what is kept, put together, refused and said where the seeds of a table run apart."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from jcfl import cli
from jcfl.errors import InputError, Notice, Unwritable
from jcfl.results import History
from jcfl.runs import reproducing
from jcfl.runs.loop import Progress
from jcfl.runs.reproducing import judging, published, reading
from jcfl.runs.workers import Workers
from jcfl.view import reproduction

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
      columns: [rotated, shifted]
      rows: {FedAvg: [[12, 40], [20]], StoCFL: [[99, 1], [null]]}
    federations:
      rotated: {scenario: {name: rotated, clients: 8, groups: 2}}
      shifted: {scenario: {name: shifted, clients: 8}}
    methods: {FedAvg: {name: fedavg}, StoCFL: {name: stocfl, tau: 0.5}}
    columns: {rotated: {federation: rotated}, shifted: {federation: shifted}}
    budgets: {laptop: {seeds: 3, hours: 0.01}}
"""

CELL, KEY = ("FedAvg", "rotated"), ("rotated", "FedAvg")

DIVERGED = judging.Judgement("not reproduced", "training diverged: in round 1 (seed 0) a model stopped being finite")
ABSENT = judging.Judgement("cannot be run here", "data needed: digits")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A made-up table's file in an empty folder."""
    monkeypatch.chdir(tmp_path)
    Path("made.yaml").write_text(MADE)
    return tmp_path


def history(*seeds, **summary):
    """A run of some seeds, whose accuracy is a hundredth of the seed."""
    scores = {"accuracy_micro": np.array([[seed / 100] for seed in seeds])}
    return History("a", [*seeds], np.array([2]), scores, np.zeros(0), np.zeros(0), np.zeros(0), summary=summary)


@pytest.fixture
def trained(made, monkeypatch):
    """What is found in the folders of runs, by their path below that of a federation; and the runs that are begun."""
    there, begun = {}, []
    name = lambda place: "/".join(place.parts[place.parts.index("made-laptop") + 1 :])

    def attempted(made, config, place, settings):
        settings.on_progress(Progress(config.method.title, config.seed, 2, 2, 2, {}))
        begun.append(name(place))
        found = there.get(f"new {name(place)}", history(*reproducing.seeds_of(config)))
        there[name(place)] = None if found == ABSENT else found
        return found

    monkeypatch.setattr(reproducing, "attempted", attempted)
    monkeypatch.setattr(reproducing, "finished", lambda place, config: there.get(name(place)))
    monkeypatch.setattr(reproducing, "begun", lambda place: name(place) in there)
    return there, begun


def reproduced(*only, **settings):
    """All that is known of the made-up table after a command."""
    return reproducing.reproduce("made.yaml", "laptop", only, reproducing.Settings(Path("runs"), **settings))


def first_cell(found):
    """The cell of FedAvg on rotated digits."""
    return found["rows"][0]["cells"][0]


def results_file(name, seeds, verdict="not judged"):
    """A file of results of the made-up table: numbers of one cell with some seeds, or why there are none."""
    ours = {"values": [float(seed) for seed in seeds], "seeds": [*seeds]} if seeds else None
    printed = {"mean": 12.0, "std": 40.0}
    entry = {"printed": printed, "ours": ours, "verdict": verdict, "why": "" if seeds else "training diverged"}
    runs = [{"runs": [list(KEY)], "seeds": [*seeds], "seconds": 1.0}] if seeds else []
    head = {"table": "made-up", "budget": "laptop", "changes": [], "columns": ["rotated", "shifted"]}
    Path(name).write_text(json.dumps({**head, "rows": [{"row": "FedAvg", "cells": [entry, None]}], "made": runs}))
    return Path(name)


def test_a_seed_that_diverged_counts_whatever_the_order_of_files(made):
    """The numbers of another seed made the verdict "not judged", if their file came later."""
    table = reading.find("made.yaml")
    failed, one, rest = (
        results_file("failed.json", (), "not reproduced"),
        results_file("one.json", [1]),
        results_file("rest.json", [0, 2]),
    )
    known = lambda *files: published.read(files, table, "laptop", table.budget("laptop")).cells[CELL]
    for files in ([failed, one], [one, failed], [one, rest, failed]):
        assert known(*files) == ("not reproduced", "training diverged")
    assert known(failed, one, rest) == {1: 1, 0: 0, 2: 2}  # all have been run again
    elsewhere = results_file("elsewhere.json", (), "cannot be run here")
    assert known(elsewhere, one) == known(one, elsewhere) == {1: 1}


def test_what_was_run_names_no_run_whose_seeds_have_all_been_run_again(made):
    """One that several later runs replace together was named, and its seconds were counted."""
    table = reading.find("made.yaml")
    files = [results_file(f"{seeds}.json", seeds) for seeds in ([0, 1, 2], [2], [0])]
    found = published.read(files, table, "laptop", table.budget("laptop"))
    assert [one["seeds"] for one in found.made] == [[0, 1, 2], [2], [0]]
    assert [one["seeds"] for one in found.besides({(*KEY, 1)})] == [[2], [0]]
    assert published.read([*files, *files[:1]], table, "laptop", table.budget("laptop")).made == found.made[:1]


@pytest.mark.parametrize("add", [False, True])
def test_numbers_of_seeds_whose_runs_are_gone_are_kept(made, trained, add):
    """A later command with another seed wrote over them, because it had a number of the same cell."""
    (made / "out").mkdir()
    one = reproduction.write(reproduced(*CELL, seeds=[0]), made / "out")[0].with_suffix(".json")
    before = one.read_text("utf-8")
    trained[0].clear()
    more = {"add": [one]} if add else {}
    found = reproduced(*CELL, seeds=[2], **more)
    assert first_cell(found)["ours"]["seeds"] == ([0, 2] if add else [2])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        reproduction.write(found, made / "out")
    kept = one.with_name("made-up-laptop-before1.json")
    assert kept.exists() != add and bool(told) != add
    assert add or (
        kept.read_text("utf-8") == before and "numbers of 1 cell whose runs are not in" in str(told[0].message)
    )


@pytest.mark.parametrize("before", ['{"rows": [', '{"rows": {"FedAvg": [1, 2]}, "made": []}', '[{"row": 1}]', "\udcff"])
def test_earlier_results_that_cannot_be_read_are_kept(made, trained, before):
    """They were written over, though a later version may have made them of runs that are gone."""
    file = made / "made-up-laptop.json"
    file.write_text(before, "utf-8", "surrogateescape")
    with pytest.warns(
        Notice, match=r"made-up-laptop\.json has no results that this version can read; it is now .*before1"
    ):
        reproduction.write(reproduced(*CELL, seeds=[2]), made)
    assert file.with_name("made-up-laptop-before1.json").read_text("utf-8", "surrogateescape") == before
    assert json.loads(file.read_text("utf-8"))["table"] == "made-up"


def test_earlier_results_that_may_not_be_read_are_kept(made, trained, monkeypatch):
    """A file may be replaced by one who may not read it."""
    file, read = results_file("made-up-laptop.json", [0]), Path.read_text
    before = file.read_text("utf-8")

    def refused(path, *given):
        if path.name == file.name:
            raise PermissionError(13, "Permission denied")
        return read(path, *given)

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.warns(Notice, match=r"made-up-laptop\.json has no results that this version can read; it is now"):
        reproduction.write(reproduced(*CELL, seeds=[2]), made)
    assert file.with_name("made-up-laptop-before1.json").read_text("utf-8") == before


def test_earlier_results_stay_in_their_place_where_the_disk_is_full(made, trained, monkeypatch):
    """They were renamed before the figure was written, for which there was no room."""
    file = results_file("made-up-laptop.json", [0])
    before = file.read_text("utf-8")

    def full(*given):
        raise Unwritable("no room")

    monkeypatch.setattr(reproduction.style, "save", full)
    with pytest.raises(Unwritable):
        reproduction.write(reproduced(*CELL, seeds=[2]), made)
    assert file.read_text("utf-8") == before and not [*made.glob("*before*")]


def test_seeds_that_another_process_has_trained_meanwhile_are_shown(made, trained):
    """Several jobs train seeds into one folder; the page of the last one lacked seeds that the others had trained."""
    there, begun = trained
    meanwhile = {"rotated/seed-0/runs/FedAvg": history(0), "rotated/runs/StoCFL": history(0, 1, 2)}
    found = reproduced(*CELL, seeds=[2], on_progress=lambda progress: there.update(meanwhile))
    assert first_cell(found)["ours"]["seeds"] == [0, 2] and begun == ["rotated/seed-2/runs/FedAvg"]
    assert found["rows"][1]["cells"][0]["ours"]["seeds"] == [0, 1, 2]
    there["rotated/seed-1/runs/FedAvg"] = DIVERGED
    assert first_cell(reproduced(*CELL, seeds=[2]))["verdict"] == "not reproduced"


def test_files_of_before_there_were_seeds_have_those_of_their_runs():
    cell = {"printed": {}, "ours": {"values": [1.0, 2.0]}}
    old = {"rows": [{"row": "a", "cells": [cell]}], "made": [{"seeds": [3, 4]}]}
    assert reproduction.numbers(old) == {("a", 0, 3), ("a", 0, 4)}


def test_seeds_are_those_of_the_federations_that_are_run(made, trained):
    """Where another federation of the table had other seeds, no seed was accepted."""
    Path("made.yaml").write_text(MADE.replace("name: shifted, clients: 8}", "name: shifted, clients: 8}, seed: 7"))
    found = reproduced("rotated", seeds=[1])
    assert first_cell(found)["ours"]["seeds"] == [1] and trained[1][0] == "rotated/seed-1/runs/FedAvg"
    with pytest.raises(InputError, match="seed 1: made-up, shifted with budget laptop has the seeds 7, 8, 9"):
        reproduced("shifted", seeds=[1])
    with pytest.raises(InputError, match="seed 1: made-up, shifted"):
        reproduced(seeds=[1])


def test_what_the_first_seed_decides_is_not_decided_by_each(made, trained):
    """Another seed chose another threshold for itself, and its numbers stood beside those of the first seed."""
    Path("made.yaml").write_text(MADE.replace("tau: 0.5", "tau: auto"))
    with pytest.raises(InputError, match=r"rotated with budget laptop: the first seed decides .* auto is in StoCFL"):
        reproduced("rotated", seeds=[1])
    assert not trained[1]
    reproduced("FedAvg", "rotated", seeds=[1])
    reproduced("StoCFL")
    assert trained[1] == ["rotated/seed-1/runs/FedAvg", "rotated/runs/StoCFL"]


def test_progress_names_the_federation_and_the_seed(made, trained):
    """It named the folder of the seed in place of the federation, so the bars of two federations were one."""
    told = []
    reproduced(*CELL, seeds=[2], on_progress=lambda progress: told.append(progress.name))
    reproduced("shifted", on_progress=lambda progress: told.append(progress.name))
    assert told == ["rotated, FedAvg, seed 2", "shifted, FedAvg"]


def test_runs_of_seeds_that_had_other_data_are_told_apart(made):
    """The notice said that 'FedAvg' has other data than 'FedAvg'."""
    config = reading.find("made.yaml").config(KEY, reading.find("made.yaml").budget("laptop"))
    found: reproducing.Found = {KEY: (history(0, federation="a"), history(1, federation="b"))}
    with pytest.warns(Notice, match=r"^rotated: 'FedAvg' with seed 1 has other data than 'FedAvg' with seed 0, so"):
        reproducing.tell_of_other_data(found, {KEY: config}, Path("rotated"))


@pytest.mark.parametrize("workers", [None, Workers(2)])
def test_seeds_that_were_run_are_shown_where_another_one_cannot_be_run(made, trained, monkeypatch, workers):
    """The data are gone: the verdict was "cannot be run here", and the numbers of another seed were not shown."""
    there, begun = trained
    there["rotated/seed-1/runs/FedAvg"] = history(1)
    there |= {f"new rotated/seed-{seed}/runs/FedAvg": ABSENT for seed in (0, 2)}
    report = lambda tasks, workers, folder, stop, report: [report(name, ABSENT) for name in tasks]
    monkeypatch.setattr(reproducing, "share_out", report)
    with pytest.warns(
        Notice, match="^rotated, FedAvg: seeds are missing, which cannot be run here: data needed: digits"
    ):
        cell = first_cell(reproduced(*CELL, seeds=[0, 2], workers=workers))
    assert cell["ours"]["values"] == [1.0] and cell["why"] == "1 of the 3 seeds has been run"
    assert begun == ([] if workers else ["rotated/seed-0/runs/FedAvg"])  # what one seed lacks the others lack too
    there.pop("rotated/seed-1/runs/FedAvg")
    cell = first_cell(reproduced(*CELL, seeds=[0, 2], workers=workers))
    assert (cell["ours"], cell["verdict"], cell["why"]) == (None, *ABSENT)


@pytest.mark.parametrize("workers", [None, Workers(2)])
def test_no_seed_is_trained_once_another_one_has_failed(made, trained, monkeypatch, workers):
    """Side by side they end together, too."""
    there, begun = trained
    there["rotated/seed-0/runs/FedAvg"] = DIVERGED
    shared = []
    monkeypatch.setattr(reproducing, "share_out", lambda tasks, *given: shared.extend(tasks))
    cell = first_cell(reproduced(*CELL, seeds=[1, 2], workers=workers))
    assert (cell["ours"], cell["verdict"], cell["why"]) == (None, *DIVERGED)
    assert begun == shared == []


def test_a_stopped_run_of_all_seeds_is_told_of_where_seeds_are_trained_apart(made, trained):
    """It was left there with its checkpoints, and nothing was said."""
    there, begun = trained
    there["rotated/runs/FedAvg"] = None  # begun and not complete
    for seeds in ([0], []):
        with pytest.warns(Notice, match=r"rotated/runs/FedAvg has a run of all seeds side by side, which was stopped"):
            reproduced(*CELL, seeds=seeds)
    assert begun == [f"rotated/seed-{seed}/runs/FedAvg" for seed in range(3)]


def test_seeds_alone_have_the_numbers_of_all_seeds_together(made, capsys):
    """Two seeds of three, one after the other, and the third one without --seed."""
    Path("made.yaml").write_text(MADE.replace("mlp, hidden: 4", "linear"))
    words = ["reproduce", "made.yaml", "--only", "FedAvg", "--only", "rotated", "--json", "-q"]
    cells = []
    for more in (["--seed", "1"], ["--seed", "2", "--seed", "1"], [], ["--out", "together"]):
        assert cli.status([*words, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        cells.append(first_cell(found)["ours"])
    assert [cell["seeds"] for cell in cells] == [[1], [1, 2], [0, 1, 2], [0, 1, 2]]
    np.testing.assert_allclose(cells[2]["values"], cells[3]["values"], atol=1e-3)
    assert len(set(cells[3]["values"])) > 1 and cells[1]["values"] == cells[2]["values"][1:]
    folders = sorted(re.sub(r"\\", "/", str(place)) for place in Path("reproduction/runs").glob("*/*/*/runs/*"))
    assert folders == [f"reproduction/runs/made-laptop/rotated/seed-{seed}/runs/FedAvg" for seed in range(3)]
