"""Successive halving: the best trials go on from their checkpoints, to the figures of runs that were never stopped."""

import functools
import json
import pickle
import shutil
import signal
import warnings

import numpy as np
import pytest

import jcfl
from jcfl import cli
from jcfl.data.validation import with_validation
from jcfl.errors import InputError, Notice
from jcfl.runs import config, experiment, loop, verifying
from jcfl.runs.searching.trials import rounds_of, rungs
from jcfl.runs.sweeping import groups
from jcfl.view import plotting
from tests import tiny


@functools.cache
def federation():
    return with_validation(np.random.default_rng(0), tiny.federation(), 0.3)


@pytest.fixture(autouse=True, scope="module")
def compiled_once():
    """Searches on one federation share their programs, which take the learning rate as an argument."""
    begun, made = groups.family_begun, {}

    def shared(make, like, federation, lanes, *how):
        key = (*like, lanes, federation.x.shape)
        if key not in made:
            made[key] = begun(make, like, federation, lanes, *how)()
        return lambda: made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "family_begun", shared)
        yield


OVER = {"train.lr": [0.001, 0.9, 0.1, 0.3, 3e38]}
GIVEN = {"model": {"name": "linear"}, "method": "fedavg", "rounds": 9, "evaluate_every": 2, "budget": 2**30}
GIVEN |= {"train": {"epochs": 9}}
HALVED = GIVEN | {"sampler": "grid", "trials": 5, "halving": 2, "by": "validation_loss"}


@pytest.mark.parametrize(
    ("settings", "trials", "halving", "expected"),
    [
        ({"rounds": 27}, 9, 3, [(3, 9), (9, 3), (27, 1)]),
        ({"rounds": 27}, 24, 3, [(3, 24), (9, 8), (27, 2)]),
        ({"rounds": 27}, 24, 1, [(27, 24)]),
        ({"rounds": 100, "evaluate_every": 5}, 27, 3, [(5, 27), (15, 9), (35, 3), (100, 1)]),
        ({"rounds": 10, "evaluate_every": 5}, 9, 3, [(5, 9), (10, 3)]),
        ({"rounds": 4, "evaluate_last": 2}, 100, 2, [(1, 100), (2, 50), (4, 25)]),
        ({"rounds": 8, "evaluate_every": 9, "evaluate_last": 5}, 9, 2, [(4, 9), (8, 4)]),
        ({"rounds": 2**30}, 2, 2, [(2**29, 2), (2**30, 1)]),
    ],
)
def test_rungs_end_at_evaluations(settings, trials, halving, expected):
    assert rungs(config.read({"scenario": "iid", "method": "fedavg", **settings}), trials, halving) == expected


def test_the_budget_is_the_rounds_of_all_trials():
    found = rungs(config.read({"scenario": "iid", "method": "fedavg", "rounds": 27}), 9, 3)
    assert rounds_of(found) == 9 * 3 + 3 * (9 - 3) + 1 * (27 - 9) == 63


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"halving": 0}, "halving: input should be greater than or equal to 1"),
        ({"sampler": "tpe"}, "sampler tpe chooses them one batch after another; expected sampler random or grid"),
        ({"halving": 6}, "expected trials of at least 6, got 5"),
        ({"evaluate_every": 9}, "an evaluation before the last of rounds=9, got evaluate_every=9"),
        ({"rounds": 0}, "halving=2 stops no trial"),
        ({"compare_models": [2, 9]}, "compare_models within the 4 rounds that all trials have, got 9"),
        ({"out": None}, "halving needs out="),
        ({"checkpoint_every": "never"}, "halving needs checkpoints, from which trials go on"),
        ({"out": None, "halving": 1, "workers": 2}, "workers need out="),
    ],
)
def test_what_cannot_be_halved_is_refused(tmp_path, changed, said):
    if "workers" in changed:
        pytest.importorskip("submitit", reason="submitit is not installed")
    with pytest.raises(InputError, match=said):
        jcfl.tune(federation(), OVER, **{"out": tmp_path / "tune", **HALVED, **changed})
    assert not (tmp_path / "tune").exists()


@pytest.fixture(scope="module")
def halved(tmp_path_factory):
    """A search by halving, and its folder."""
    out = tmp_path_factory.mktemp("halved") / "tune"
    return jcfl.tune(federation(), OVER, out=out, **HALVED), out


def test_the_best_half_goes_on_and_the_winner_is_an_ordinary_run(halved, tmp_path):
    found, out = halved
    assert [sorted(trial.scores) for trial in found.trials] == [[4], [4, 6, 9], [4], [4, 6], [4]]
    assert found.rounds() == {"fedavg": 4 + 9 + 4 + 6 + 4}
    first = [trial.scores[4] for trial in found.trials]
    assert np.argsort(first)[:2].tolist() == [1, 3] and np.isnan(first[4])
    best = found.best()["fedavg"]
    assert best is found.trials[1] and best.score == best.history.summary["validation_loss"]["mean"]
    tuned = config.read(out / "tuned-fedavg.yaml")
    assert (tuned.rounds, dict(tuned.train)["lr"]) == (9, 0.9)
    experiment.run(federation(), **GIVEN | {"train": {"epochs": 9, "lr": 0.9}}, out=tmp_path / "alone")
    whole, stopped = (out / "runs" / name / "metrics.jsonl" for name in ("fedavg-002", "fedavg-004"))
    assert whole.read_bytes() == (tmp_path / "alone" / "metrics.jsonl").read_bytes()
    assert json.loads(stopped.read_text().splitlines()[-1])["round"] == 6


def test_a_grid_of_fewer_points_than_trials_is_halved_too(tmp_path):
    found = jcfl.tune(federation(), {"train.lr": [0.1, 0.9]}, out=tmp_path, **HALVED | {"trials": 4})
    assert [sorted(trial.scores) for trial in found.trials] == [[4], [4, 6, 9]]


def test_notices_are_those_of_the_whole_run(tmp_path):
    """Round 6 is beyond the first two rungs, but not beyond the run; round 12 is."""
    train = {"epochs": 9, "momentum": {0: 0.0, 6: 0.1}, "weight_decay": {0: 0.0, 12: 0.1}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", Notice)
        given = HALVED | {"trials": 4, "train": train}
        found = jcfl.tune(federation(), {"train.lr": [0.1, 0.9]}, out=tmp_path, **given)
    assert [sorted(trial.scores) for trial in found.trials] == [[4], [4, 6, 9]]
    expected = "train.weight_decay has no effect in round 12, because the run has 9 rounds, counted from 0"
    assert {str(one.message) for one in told if issubclass(one.category, Notice)} == {expected}


def test_a_search_is_trained_again_by_its_trials_alone(halved):
    with pytest.raises(InputError, match=r"is the folder of a search; .* such as .*/runs/fedavg-00\d$"):
        verifying.figures(halved[1])


def test_the_figure_shows_how_far_each_trial_came(halved):
    found, _ = halved
    (axis,) = plotting.search(found.rows(), found.by).axes
    assert [len(line.get_xdata()) for line in axis.get_lines()] == [1, 3, 1, 2, 1]
    assert [line.get_alpha() for line in axis.get_lines()] == [0.3, None, 0.3, 0.3, 0.3]
    assert axis.get_legend_handles_labels()[1] == ["fedavg"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["4", "6", "9"]


def test_a_stopped_search_goes_on_bit_for_bit(halved, tmp_path, monkeypatch):
    """Stopped at the third rung, after trials went on to the second; once it is complete nothing trains any more."""
    monkeypatch.setattr(loop, "BLOCK", 0.0)  # every block is one round
    found, out = halved
    calls = []

    def stop(progress):
        calls.append(progress)
        if len(calls) == 11:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(loop.Interrupted):
        jcfl.tune(federation(), OVER, out=tmp_path, on_progress=stop, **HALVED)
    calls.clear()
    again = jcfl.tune(federation(), OVER, out=tmp_path, on_progress=calls.append, **HALVED)
    assert calls[-1].done == calls[-1].total == 5 * 4 + 2 * (6 - 4) + 1 * (9 - 6)
    np.testing.assert_equal(again.rows(), found.rows())
    for trial in found.trials:
        files = [place / "runs" / trial.point.name / "metrics.jsonl" for place in (out, tmp_path)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert jcfl.tune(federation(), OVER, out=tmp_path, **HALVED).compilations == 0


BRIEF = GIVEN | {"halving": 2, "rounds": 4}


@pytest.fixture(scope="module")
def brief(tmp_path_factory):
    """A search of two trials, its table, and its folder."""
    out = tmp_path_factory.mktemp("brief") / "tune"
    return jcfl.tune(federation(), out=out, trials=2, **BRIEF).rows(), out


def test_a_search_with_more_trials_is_that_with_so_many_from_the_start(brief, tmp_path):
    _, begun = brief
    shutil.copytree(begun, tmp_path / "more")
    heard = []
    more = jcfl.tune(federation(), out=tmp_path / "more", trials=4, on_progress=heard.append, **BRIEF)
    assert all(progress.done <= progress.total for progress in heard)  # two of them had gone further already
    whole = jcfl.tune(federation(), out=tmp_path / "whole", trials=4, **BRIEF)
    assert more.rows() == whole.rows()
    with pytest.raises(InputError, match="halving was 2, got 1"):
        jcfl.tune(federation(), out=tmp_path / "more", trials=4, **BRIEF | {"halving": 1})


def test_trials_are_shared_out_over_workers(brief, tmp_path, monkeypatch):
    """Each task comes to the function that a worker calls as it would come to its process, which others test."""
    pytest.importorskip("submitit", reason="submitit is not installed")
    given = []

    def share_out(tasks, workers, folder, stop, on_done):
        given.append(len(tasks))
        for name, task in tasks.items():
            on_done(name, pickle.loads(pickle.dumps(task))())

    monkeypatch.setattr("jcfl.runs.sweeping.shared.share_out", share_out)
    found = jcfl.tune(federation(), out=tmp_path / "shared", trials=2, workers=2, **BRIEF)
    assert found.rows() == brief[0]
    assert given == [2, 1]
    assert found.compilations == 3, "one in each worker of the first rung, and one for the trial that goes on"
    assert not (tmp_path / "shared" / "workers").exists()


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["tune", "quickstart", "--set", "method.name=fedavg", "compare=[]", "model=linear", "rounds=2", "seed=0"]
    words += ["scenario.validation=0.2", "scenario.clients=10", "evaluate_every=1", "train.epochs=1"]
    words += ["--over", "train.lr=0.1,0.2", "--sampler", "grid", "--trials", "2", "--out", "out"]
    assert cli.status([*words, "--halving", "2"]) == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines()[:2])
    assert head[:4] == ["method", "train.lr", "trials", "rounds"] and row[2:4] == ["2", "3"]
    stored = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert stored["rounds"] == {"fedavg": 3} and sorted(len(row["rungs"]) for row in stored["results"]) == [1, 2]
    assert cli.status([*words, "--halving", "3"]) == 2
    assert "--halving=3 stops no trial; expected --trials of at least 3" in capsys.readouterr().err
