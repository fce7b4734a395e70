"""`jcfl show`: a federation before anything trains."""

import json

import numpy as np
import pytest

import jcfl
from jcfl import cli
from jcfl.data import describe, label_counts, summary
from jcfl.runs import config, plan
from jcfl.view import show
from tests import tiny

SMALL = ["quickstart", "--set", "scenario.clients=12"]


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        status = cli.status(["show", *map(str, words)])
        return status, *capsys.readouterr()

    return run


def test_a_table_with_a_line_for_each_group_and_one_for_all(call, tmp_path):
    status, printed, complaint = call(*SMALL)
    assert status == 0
    assert complaint == "jcfl: stocfl: auto is tau = 0.64 (4 clusters among 12 clients)\n"
    head, _, titles, *lines = printed.splitlines()
    assert head == "digits, rotated: 7188 examples of 8 x 8 x 1, 10 classes"
    assert titles.split() == ["group", "clients", "held", "out", "train", "test", "classes", "guess", "labels", "0–9"]
    assert [line.split()[:2] for line in lines[:5]] == [["0", "3"], ["1", "3"], ["2", "3"], ["3", "3"], ["all", "12"]]
    assert list(tmp_path.iterdir()) == []


def test_who_comes_goes_and_is_held_out(call):
    more = ["scenario.held_out=0.25", "scenario.arrivals={5: 0.5}", "scenario.departures={7: 0.25}"]
    more.append("scenario.drift={2: 0.35}")
    _, printed, _ = call(*SMALL, *more)
    assert "clients that exchange their data: 4 in round 2" in printed
    assert "clients that arrive: 6 in round 5" in printed
    assert "clients that leave: 3 in round 7" in printed
    facts = json.loads(call(*SMALL, *more, "--json")[1])
    assert (facts["arrivals"], facts["departures"], facts["all"]["held_out"]) == ({"5": 6}, {"7": 3}, 3)
    assert facts["drift"] == {"2": 4}


def test_guesses_are_counted(call):
    federation = plan.federation_of(config.read("quickstart", ["scenario={name: n_class, clients: 10, n: 2}"]))
    facts = show.facts(federation)
    assert {key: facts[key] for key in describe(federation)} == describe(federation)
    mine = lambda split, i: federation.y[split.rows[split.start[i] : split.start[i] + split.size[i]]]
    modes = [np.bincount(mine(federation.train, i)).argmax() for i in range(10)]
    rights = [(mine(federation.test, i) == mode) for i, mode in enumerate(modes)]
    assert facts["all"]["guess_micro"] == pytest.approx(np.concatenate(rights).mean())
    assert facts["all"]["guess_macro"] == pytest.approx(np.mean([right.mean() for right in rights]))
    top = np.bincount(federation.y[federation.train.rows]).argmax()
    assert facts["guess_one"] == pytest.approx((federation.y[federation.test.rows] == top).mean())
    assert facts["guess_one"] < facts["all"]["guess_micro"]


def test_guesses_are_those_of_the_method_majority_where_clients_are_held_out(call):
    """A client that never trains is in none of the accuracies of a run, so it is in no guess either."""
    words = "{name: dirichlet, clients: 10, alpha: 0.5, held_out: 0.4}"
    federation = plan.federation_of(config.read("quickstart", [f"scenario={words}"]))
    run, facts, out = jcfl.run(federation, method="majority", rounds=0), show.facts(federation), federation.held_out
    assert facts["all"]["guess_micro"] == pytest.approx(run["accuracy_micro"][0, -1])
    assert facts["all"]["guess_macro"] == pytest.approx(run["accuracy_macro"][0, -1])
    counts, test = (label_counts(federation, split)[~out].sum(0) for split in ("train", "test"))
    assert facts["guess_one"] == pytest.approx(test[counts.argmax()] / test.sum())
    assert facts["all"]["test"]["total"] > test.sum()
    assert any("trains" in line for line in show.remarks(facts)) and "trains" in summary(federation)
    assert not any("trains" in line for line in show.remarks(show.facts(tiny.federation())))


def test_groups_beyond_the_most_are_counted():
    many = tiny.federation().replace(groups=np.arange(8, dtype=np.int32))
    show_most, show.MOST = show.MOST, 5
    try:
        rows = show.table(many).renderables[2]
    finally:
        show.MOST = show_most
    assert rows.row_count == 5 + 1 + 1
    assert list(rows.columns[1].cells)[5] == "3 more groups"


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_heat_map_is_written(call, tmp_path, ending, start):
    status, printed, _ = call(*SMALL, "--out", f"labels.{ending}")
    assert status == 0
    assert f"Written to labels.{ending}" in printed
    assert (tmp_path / f"labels.{ending}").read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quikstart"], "did you mean 'quickstart'"),
        ([], "what to"),
        ([*SMALL, "--out", "labels.jpg"], ".png, .pdf or .svg"),
        (["quickstart", "--set", "scenario.clients=100000"], "25000 clients"),
        (["stocfl_rotated_mnist", "--data-dir", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_line_status_2_and_nothing_on_disk(call, tmp_path, words, said):
    status, printed, complaint = call(*words)
    assert (status, printed) == (2, "")
    assert said in complaint
    assert complaint.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_where_nobody_is_tested_there_is_no_guess(call, tmp_path):
    """A group without test examples has no accuracy, which is not an accuracy of 0."""
    data = tiny.federation()
    tested = [data.test.owned(client)[: 4 * (group == 0)] for client, group in enumerate(data.groups)]
    some, none = (data.replace(test=tiny.split(rows)) for rows in (tested, [rows[:0] for rows in tested]))
    other, empty = show.facts(some)["groups"][1], show.facts(none)
    assert np.isfinite(show.facts(some)["all"]["guess_micro"])
    guesses = [other["guess_micro"], other["guess_macro"], empty["all"]["guess_micro"], empty["guess_one"]]
    assert np.isnan(guesses).all()
    assert [line.split()[6] for line in summary(some).splitlines() if line.lstrip().startswith("1 ")] == ["–"]
    assert [*show.cells(other, np.zeros(10))][6] == "–"
    assert [*show.remarks(empty)][-1].endswith(": –")

    x, clients, late = np.zeros((8, 4), np.float32), np.repeat([0, 1], 4), slice(2)
    arrays = {"x": x, "y": clients, "clients": clients, "groups": [0, 1]}
    np.savez("mine.npz", **arrays, x_test=x[late], y_test=clients[late], clients_test=clients[late])
    words = ["--set", "data={name: arrays, path: mine.npz}", "scenario={name: natural, min_examples: [1, 0]}"]
    found = json.loads(call("quickstart", *words, "model=linear", "--json")[1], parse_constant=pytest.fail)
    assert [group["guess_micro"] for group in found["groups"]] == [1.0, None]
