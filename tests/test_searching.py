"""Tuning: search spaces from options' own bounds, samplers, and a search that goes on and never reads test examples."""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import jcfl
from jcfl import cli, registry
from jcfl.core.compile import compile
from jcfl.data.validation import with_validation
from jcfl.errors import InputError, Interrupted, TrainingError
from jcfl.methods import fedavg
from jcfl.results import load
from jcfl.runs import config, experiment, searching, sweeping
from jcfl.runs.plan import config_and_objects
from jcfl.runs.searching.samplers import SAMPLERS
from jcfl.runs.searching.space import Range, Values, spaces
from jcfl.view import plotting
from tests import tiny

TWO = {"scenario": "iid", "method": {"name": "stocfl", "addons": ["con_para"]}, "compare": ["fedavg"]}


def test_a_space_comes_from_the_options_or_from_the_user():
    found = spaces(config.read(TWO), None)
    rate, weight = Range(0.001, 1.0, log=True), Range(0.001, 1.0, log=True)
    assert found["fedavg"] == {"train.lr": rate}
    assert found["stocfl+con_para"] == {
        "method.tau": Range(0, 1), "method.lam": weight, "method.addons.0.mu": weight, "train.lr": rate,
    }  # fmt: skip
    over = {
        "train.momentum": None,
        "train.keep_optimizer_state": None,
        "method.merge": None,
        "train.epochs": [{"low": 0.5, "high": 5.5}],
        "train.lr": np.array([0.1, 0.2]),
    }
    own, other = spaces(config.read(TWO), over).values()
    assert own["train.momentum"] == Range(0, 0.999) and own["train.keep_optimizer_state"] == Values((False, True))
    assert own["method.merge"] == Values(("greedy", "single_pass")) and "method.merge" not in other
    assert own["train.epochs"] == Range(1, 5, whole=True) and own["train.lr"] == Values((0.1, 0.2))


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"train.lrr": None}, "did you mean 'train.lr'"),
        ({"scenario.clients": [2, 3]}, "unknown option to search 'scenario.clients'"),
        ({"train.weight_decay": None}, "no lower and upper bound of its own; give values"),
        ({"train.lr": 0.1}, "expects a list of values"),
        ({"train.lr": [{"low": 0, "high": 1, "log": True}]}, "expected 0 < low < high"),
        ({"train.epochs": [{"low": 1.2, "high": 1.4}]}, "there is no whole number from 1.2 to 1.4"),
        (["train.lr"], "expected {key: values"),
        ({}, "nothing to search for stocfl"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(over, said):
    with pytest.raises(InputError, match=said):
        spaces(config.read(TWO), over)


def test_places_are_numbers_that_can_be_read():
    log, whole = Range(0.001, 1.0, log=True), Range(1, 4, whole=True)
    assert [log.at(place) for place in (0, 0.5, 1)] == [0.001, 0.03162, 1.0]
    assert [whole.at(place) for place in whole.places(9)] == [1, 2, 3, 4]
    assert Range(0, 1).places(1) == [0.5]


def test_whole_numbers_are_drawn_equally_often_and_not_rounded_to_digits():
    """The ends came half as often as the others, and of 123456 to 123460 only the last one came."""
    rng, low = np.random.default_rng(0), 123456
    for whole in (Range(1, 4, whole=True), Range(low, low + 3, whole=True)):
        drawn = [whole.at(whole.drawn(rng)) for _ in range(8000)]
        values, times = np.unique(drawn, return_counts=True)
        assert values.tolist() == list(range(whole.low, whole.high + 1))
        assert abs(times - 2000).max() < 200
        assert type(drawn[0]) is int


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (1, 5, 10, [1, 2, 3, 4, 5]),
        (1, 100, 5, [1, 2, 7, 27, 100]),
        (1, 100, 10, [1, 2, 3, 4, 5, 10, 17, 31, 56, 100]),
        (7, 8, 1, [7]),
    ],
)
def test_equal_factors_come_to_each_whole_number_once(low, high, most, expected):
    whole = Range(low, high, log=True, whole=True)
    found = [whole.at(place) for place in whole.places(most)]
    assert found == expected
    assert len(found) == whole.number(most)


AXES = {"x": Range(0.0, 1.0), "y": Values(("a", "b"))}


def asked(name: str, trials: int, batch: int = 4) -> list[dict]:
    """What a sampler tries where `a` is better and x should be 0.3."""
    sampler, found = SAMPLERS[name](AXES, trials, batch, 0), []
    values = next(sampler)
    while values:
        found += values
        scores = [float("nan") if one["x"] > 0.9 else (one["y"] == "a") - (one["x"] - 0.3) ** 2 for one in values]
        try:
            values = sampler.send(scores)
        except StopIteration:
            break
    return found


def test_samplers_keep_to_the_number_of_trials():
    assert asked("grid", 7) == [{"x": x, "y": y} for x in (0.0, 0.5, 1.0) for y in "ab"]
    with pytest.raises(InputError, match="the grid has 2 points; expected at most trials=1"):
        asked("grid", 1)
    assert len(asked("random", 7)) == 7 and asked("random", 9)[:7] == asked("random", 7)
    assert all(0 <= one["x"] <= 1 and one["y"] in "ab" for one in asked("random", 7))


def test_a_sampler_without_its_package_is_refused_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setattr(searching, "config_and_objects", lambda *given: pytest.fail("went on"))
    with pytest.raises(InputError, match="tpe needs Optuna"):
        jcfl.tune(TWO, sampler="tpe")


def test_tpe_learns_and_goes_on():
    pytest.importorskip("optuna", reason="Optuna is not installed")
    found = asked("tpe", 40)
    assert asked("tpe", 24) == found[:24]
    late = [one for one in found[-16:] if one["y"] == "a" and abs(one["x"] - 0.3) < 0.2]
    assert len(late) > 5  # at random it would be 3


@functools.cache
def federation():
    return with_validation(np.random.default_rng(0), tiny.federation(), 0.3)


GIVEN = {"model": {"name": "linear"}, "method": "fedavg", "rounds": 2, "evaluate_every": 2, "budget": 2**30}


def test_a_search_chooses_on_validation_and_goes_on(tmp_path, capsys):
    out, over = tmp_path / "tune", {"train.lr": None}
    found = jcfl.tune(federation(), over, trials=3, out=out, **GIVEN)
    assert found.compilations == 1
    scores = [trial.history.summary["validation_accuracy_micro"]["mean"] for trial in found.trials]
    assert [row["score"] for row in found.rows()] == scores
    best = found.best()["fedavg"]
    assert best is found.trials[int(np.argmax(scores))]
    assert found.test_scores()["fedavg"] == best.history.summary["accuracy_micro"]
    tuned = yaml.safe_load((out / "tuned-fedavg.yaml").read_text())
    assert tuned["train"]["lr"] == tuned["chosen_by"]["values"]["train.lr"] == best.values["train.lr"]
    assert plotting.search(found.rows(), found.by).axes[0].get_lines()[1].get_ydata()[-1] == max(scores)
    again = jcfl.tune(federation(), over, trials=3, out=out, **GIVEN)
    assert again.compilations == 0 and again.rows() == found.rows()
    more = jcfl.tune(federation(), over, trials=5, out=out, progress=True, **GIVEN)
    assert "tune" in capsys.readouterr().err
    assert more.compilations == 1 and [row["score"] for row in more.rows()][:3] == scores
    assert json.loads((out / "tune.json").read_text())["results"] == more.rows()
    assert list(load(out).others) == [f"fedavg-{number:03d}" for number in (2, 3, 4, 5)]
    for changed, said in (
        ({"trials": 2}, "has 5 trials; expected at least as many"),
        ({"trials": 5, "rounds": 3}, "config.rounds was 2, got 3"),
    ):
        with pytest.raises(InputError, match=said):
            jcfl.tune(federation(), over, out=out, **GIVEN | changed)


def test_a_method_may_be_called_as_the_trial_of_another(tmp_path):
    """The first trial of `a` is in the folder `a-001`, which was taken for one of the method with this label."""
    two = {"method": {"name": "fedavg", "label": "a"}, "compare": [{"name": "local", "label": "a-001"}]}
    for _ in range(2):
        found = jcfl.tune(federation(), {"train.lr": [0.1]}, out=tmp_path, sampler="grid", trials=1, **GIVEN | two)
        assert list(found.best()) == ["a", "a-001"]


def test_the_trials_of_an_object_train_it():
    """They trained the main method: that of an object in `compare` was not passed on."""
    given = GIVEN | {"method": "majority", "trials": 2, "sampler": "grid"}
    one, named = (
        jcfl.tune(federation(), {"train.lr": [0.1, 1.0]}, compare=[other], **given)
        for other in (registry.find("method", "ifca")(clusters=3), {"name": "ifca", "clusters": 3})
    )
    assert [row["score"] for row in one.rows()] == [row["score"] for row in named.rows()]
    assert len({row["score"] for row in one.rows()}) > 2
    assert one.configurations()["ifca"].method.is_placeholder


def test_a_grid_that_would_move_is_refused_and_nothing_is_lost(tmp_path):
    """With another number of trials, a range has its values elsewhere: the second of 2 is not the second of 3."""
    given = GIVEN | {"method": "majority", "rounds": 0, "sampler": "grid", "out": tmp_path / "out"}
    over = {"train.lr": [{"low": 0.01, "high": 1, "log": True}], "train.momentum": [0.5]}
    found = jcfl.tune(federation(), over, trials=2, **given)
    stored = (tmp_path / "out" / "tune.json").read_bytes()
    with pytest.raises(InputError, match=r"2 trials.*train\.lr.*other values with 3.*expected trials=2, or another"):
        jcfl.tune(federation(), over, trials=3, **given)
    assert (tmp_path / "out" / "tune.json").read_bytes() == stored
    assert jcfl.tune(federation(), over, trials=2, **given).rows() == found.rows()


def test_a_grid_of_listed_values_goes_on_with_more_trials(tmp_path):
    given = GIVEN | {"method": "majority", "rounds": 0, "sampler": "grid", "out": tmp_path / "out"}
    for over in ({"train.lr": [0.1, 0.2]}, {"train.lr": [0.1, 0.2], "train.epochs": [{"low": 1, "high": 2}]}):
        place = tmp_path / str(len(over))
        few, more = (jcfl.tune(federation(), over, **given | {"trials": n, "out": place}) for n in (4, 9))
        assert few.rows() == more.rows()
        assert json.loads((place / "tune.json").read_text())["trials"] == 9


def test_what_was_found_stays_when_a_trial_is_refused(tmp_path):
    """The search is refused by a file of a trial; the table of all trials was gone by then."""
    given = GIVEN | {"method": "majority", "rounds": 0, "out": tmp_path / "out"}
    jcfl.tune(federation(), {"train.lr": [0.1]}, trials=1, **given)
    stored = (tmp_path / "out" / "tune.json").read_bytes()
    trial = tmp_path / "out" / "runs" / "majority-001" / "config.yaml"
    trial.write_text(trial.read_text().replace("lr: 0.1", "lr: 0.3"))
    with pytest.raises(InputError, match=r"config\.yaml was changed"):
        jcfl.tune(federation(), {"train.lr": [0.1]}, trials=3, **given)
    assert (tmp_path / "out" / "tune.json").read_bytes() == stored


def test_what_was_found_stays_when_a_search_is_given_again_and_stopped(tmp_path, monkeypatch):
    """The table of all trials was gone until the search had come to its end once more."""

    def stopped(*given):
        raise Interrupted

    given = GIVEN | {"method": "majority", "rounds": 0, "out": tmp_path / "out"}
    jcfl.tune(federation(), {"train.lr": [0.1]}, trials=1, **given)
    stored = json.loads((tmp_path / "out" / "tune.json").read_text())
    monkeypatch.setattr(searching, "climbed", stopped)
    with pytest.raises(Interrupted):
        jcfl.tune(federation(), {"train.lr": [0.1]}, trials=3, **given)
    assert json.loads((tmp_path / "out" / "tune.json").read_text()) == stored | {"trials": 3}


def test_what_diverged_and_what_was_tried_before():
    given = GIVEN | {"trials": 6, "train": {"epochs": 9}}
    found = jcfl.tune(federation(), {"train.lr": ["1e-1", "1e-1", 3e38]}, **given)  # YAML reads it as text
    assert {row["values"]["train.lr"]: np.isnan(row["score"]) for row in found.rows()} == {0.1: False, 3e38: True}
    assert len(found.trials) == 6 and len({id(trial.history) for trial in found.trials}) == 2
    assert found.configurations()["fedavg"].chosen_by.values == {"train.lr": 0.1}


def unlucky(context):
    """FedAvg, of which seed 1 fails in the first round."""
    made = compile(fedavg(), context)

    def init(key, federation):
        fails = jax.random.key_data(key)[-1] == 1
        state = made.init(key, federation)
        return state.replace(failed=jnp.where(fails, jnp.zeros(2, jnp.int32), state.failed))

    return made._replace(init=init)


def test_a_trial_with_a_seed_that_diverged_has_no_score_in_files_either(tmp_path):
    given = GIVEN | {"method": unlucky, "seeds": 2, "seeds_in_one": False, "trials": 1, "out": tmp_path}
    for _ in range(2):  # the second search reads the first one's files
        with pytest.raises(TrainingError, match="no trial has a score"):
            jcfl.tune(federation(), {"train.lr": [0.1]}, **given)


def test_mistakes_are_found_before_anything_trains(tmp_path):
    for given, said in (
        ({"by": "accuracy_micro"}, "expected validation_accuracy_micro"),
        ({"by": "validation_purity"}, "unknown score to choose by"),
        ({"sampler": "tpa"}, "did you mean 'tpe'"),
        ({"over": {"train.lr": [0.1, -1]}}, r"greater than 0, got -1 \(point lr=-1\)"),
        ({"trials": 0}, "greater than or equal to 1"),
        ({"trials": 2**31 - 1}, "a search of 2147483647 trials"),
        (
            {"over": {"train.lr": [0.1], "method.clusters": [{"low": 1, "high": 50}]}, "compare": ["ifca"]},
            "ifca: clusters must be at most the number of training clients, 8, got 50",
        ),
    ):
        with pytest.raises(InputError, match=said):
            jcfl.tune(federation(), out=tmp_path / "tune", **GIVEN | given)
    with pytest.raises(InputError, match=r"needs validation examples; .*scenario.validation=0.1"):
        jcfl.tune(tiny.federation(), out=tmp_path / "tune", **GIVEN)
    assert not (tmp_path / "tune").exists()
    experiment.run(tiny.federation(), out=tmp_path / "run", **GIVEN | {"method": "majority", "rounds": 0})
    with pytest.raises(InputError, match="already holds a run"):
        jcfl.tune(federation(), out=tmp_path / "run", **GIVEN)


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["tune", "quickstart", "--set", "method.name=majority", "compare=[]", "model=linear", "rounds=0"]
    words += ["scenario.validation=0.2", "scenario.clients=10", "--over", "train.lr=0.1,0.2", "--sampler", "grid"]
    assert cli.status([*words, "--test"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["method", "train.lr", "trials", "accuracy,", "validation", "examples", "accuracy"]
    assert lines[1].split()[:3] == ["majority", "0.1", "2"]
    folder = tmp_path / "runs" / "quickstart-tune"
    assert (folder / "figures" / "search.pdf").stat().st_size > 1000
    assert cli.status([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["trials"]) == 2 and printed["test"] == {}
    tuned = config.read(folder / "tuned-majority.yaml")
    assert (tuned.method.name, dict(tuned.train)["lr"], tuned.compare) == ("majority", 0.1, ())
    assert cli.status(["tune", "quickstart", "--out", "other"]) == 2
    assert "tune needs validation examples" in capsys.readouterr().err


def test_a_name_means_the_same_section_as_in_a_run(monkeypatch):
    """Its options have their defaults, and not those of the preset."""
    given = {"train": "sgd", "model": "linear", "method": "stocfl", "scenario": {"name": "iid", "validation": 0.2}}
    expected, _ = config_and_objects("quickstart", given)
    found = []
    monkeypatch.setattr(sweeping, "carried_out", lambda whole, *more: found.append(whole.points[0].config))
    jcfl.sweep("quickstart", {"rounds": [100]}, **given)
    search = searching.searched("quickstart", given, {"train.lr": [0.1]}, "validation_loss", 1, 1, "grid", 1, None)
    found.append(searching.points_of(search, "stocfl", [{}])[0].config)
    for one in found:
        for section in ("train", "model", "method"):
            assert getattr(one, section).options == getattr(expected, section).options
