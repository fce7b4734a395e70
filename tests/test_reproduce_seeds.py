"""Papers' tables seed by seed: what is kept, put together, refused and said where the seeds of a table run apart."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from jcfl.errors import InputError
from jcfl.results import History
from jcfl.runs import reproducing
from jcfl.runs.loop import Progress
from jcfl.runs.reproducing import judging, published, tables
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
    table = tables.find("made.yaml")
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
    table = tables.find("made.yaml")
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
