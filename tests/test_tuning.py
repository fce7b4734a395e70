"""Ways to train are tried before long runs: the fastest is taken, written down, kept, and computes the same."""

import itertools
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import yaml

from jcfl.fast import factored
from jcfl.methods import fedavg, ifca
from jcfl.runs import config, experiment, tuning
from jcfl.runs.plan import config_and_objects, planned
from jcfl.runs.sections import Tuned
from jcfl.types.target import Target, compiling_for
from tests import tiny
from tests.processes import CALM

MLP = {"model": {"name": "mlp", "hidden": 5}, "train": {"lr": 0.1, "steps": 2}, "rounds": 4}
FULL = {"lr": 0.1, "epochs": 5, "batch_size": "full"}
"""Training for which the constants of `seconds` choose the factored engine."""
CNN = MLP | {"model": {"name": "cnn_fashion"}}


def plan(**settings):
    return planned(*config_and_objects(tiny.federation(), MLP | {"method": "ifca"} | settings))


@pytest.fixture
def seconds(monkeypatch, tmp_path):
    """Every run is long; a trial takes no time and finds the seconds of this mapping, by what is not the constants'."""
    monkeypatch.setattr(tuning, "SHORTEST", 0.0)
    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr(tuning, "stored", lambda key: tmp_path / f"{key}.json")
    monkeypatch.setattr(tuning, "spare_devices", lambda *_: 1)  # whatever other tests made of this process
    monkeypatch.setattr(tuning, "products_are_free", lambda: False)  # whatever this version of XLA knows
    monkeypatch.setitem(factored.PACE, "cpu", (0.35, 1.0))  # on which the meaning of FULL rests
    found = {}

    def measure(trial, tuned):
        found.setdefault("tried", []).append(tuned.model_dump())
        return tuning.Measured(found.get(str(tuned.model_dump()), 10.0), 0)

    monkeypatch.setattr(tuning.Trial, "measure", measure)
    return found


def test_the_fastest_candidate_is_taken_and_the_next_ones_start_from_it(seconds):
    seconds |= {"{'engine': 'general'}": 5.0, "{'engine': 'general', 'chunk': 4}": 4.0}
    found = tuning.tuned(plan(engine="auto", train=FULL))
    assert found.config.tuned == {"ifca": Tuned(engine="general", chunk=4)}


def test_another_library_of_products_is_tried_where_there_is_one(seconds, monkeypatch):
    monkeypatch.setattr(tuning, "products_are_free", lambda: True)
    seconds |= {"{'products': 'eigen'}": 5.0, "{'engine': 'general', 'products': 'eigen'}": 4.0}
    found = tuning.tuned(plan(engine="auto", train=FULL))
    assert found.config.tuned == {"ifca": Tuned(engine="general", products="eigen")}


def test_what_is_little_faster_may_be_chance(seconds):
    seconds |= {"{'engine': 'general'}": 9.8}
    assert tuning.tuned(plan(train=FULL)).config.tuned == {}


def test_an_outcome_is_kept_for_the_same_program_alone(seconds):
    for batch_size, again in [(2, 1), (2, 1), (3, 2)]:
        tuning.tuned(plan(train={"lr": 0.1, "steps": 2, "batch_size": batch_size}))
        assert seconds["tried"].count({}) == again


def test_an_outcome_of_others_choices_is_not_taken(seconds):
    """With engine 'auto' the general one is faster; who asks for the factored one gets that."""
    seconds |= {"{'engine': 'general'}": 5.0}
    assert tuning.tuned(plan(train=FULL)).config.tuned == {"ifca": Tuned(engine="general")}
    assert tuning.tuned(plan(train=FULL, engine="factored")).config.tuned == {}


def test_a_damaged_outcome_is_found_anew_and_one_that_cannot_be_kept_is_not(seconds, tmp_path, monkeypatch):
    tuning.tuned(plan())
    (file,) = tmp_path.glob("*.json")
    file.write_text('{"engine": 3')
    tuning.tuned(plan())
    assert seconds["tried"].count({}) == 2
    monkeypatch.setattr(tuning, "stored", lambda key: tmp_path / "gone" / "file.json")
    assert tuning.tuned(plan()).config.tuned == {}


def test_a_first_trial_beyond_the_memory_leaves_the_run_as_it_is(seconds, monkeypatch):
    def exhausted(trial, tuned):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(tuning.Trial, "measure", exhausted)
    assert tuning.tuned(plan()).config.tuned == {}


def test_what_the_user_chose_is_not_tried(seconds):
    tuning.tuned(plan(engine="general", chunk=2))
    assert seconds["tried"] == [{}]
    tuning.tuned(plan(autotune=False))
    assert seconds["tried"] == [{}]


def test_trials_end_when_their_share_of_the_run_is_spent(seconds):
    """Four rounds of ten seconds: 5 % are two seconds. The first trial took one, so the second would end too late."""
    clock = iter(range(1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning.time, "perf_counter", lambda: next(clock))
        tuning.tuned(plan())
    assert len(seconds["tried"]) == 1


GPU = Target("some GPU", "gpu", 2**30)
ROOM = 40_000
"""Bytes for which the constants let less than ten of 64 clients train at a time."""


def on_a_gpu(monkeypatch, seconds_of, each, fixed=0, **settings):
    """The sizes of the chunks that are tried on an accelerator, and what is chosen.

    Args:
        seconds_of: the seconds of a round, by the size of the chunks.
        each: bytes of one client of a chunk.
        fixed: bytes beside those.
    """
    tried = []

    def measure(trial, tuned):
        resources = trial.context_of(tuned).resources
        tried.append(resources.chunk)
        return tuning.Measured(seconds_of(resources.chunk), fixed + each * resources.chunk)

    monkeypatch.setattr(tuning.Trial, "measure", measure)
    given = {"method": "fedavg", "engine": "general", "budget": ROOM, "rounds": 1000, "devices": 1} | settings
    with compiling_for(GPU):
        whole = planned(*config_and_objects(tiny.federation((4,) * 64), MLP | given))
        return tried, tuning.tuned(whole).config.tuned


@pytest.mark.usefixtures("seconds")
def test_an_accelerator_tries_the_largest_chunk_that_fits(monkeypatch):
    """64 clients would take more than the room, and the next smaller even size is 32."""
    tried, found = on_a_gpu(monkeypatch, lambda chunk: 10 / chunk, each=600, fixed=2_000)
    assert tried[0] < 10
    assert tried[1] == max(tried) == 32
    assert found["fedavg"].chunk > 3 * tried[0]


@pytest.mark.usefixtures("seconds")
def test_an_accelerator_tries_a_chunk_between_if_the_largest_is_not_faster(monkeypatch):
    tried, found = on_a_gpu(monkeypatch, lambda chunk: 1 + abs(chunk - 16), each=600)
    first, largest, between = tried[:3]
    assert (largest, between) == (64, 16)
    assert first < 16
    assert -(-64 // found["fedavg"].chunk) == 64 // 16


@pytest.mark.usefixtures("seconds")
def test_an_accelerator_takes_no_more_than_fits(monkeypatch):
    """The constants' chunk fills the room, so none is larger; where XLA does not say its memory, twice is tried."""
    tried, found = on_a_gpu(monkeypatch, lambda chunk: 10 / chunk, each=0, fixed=ROOM)
    assert (max(tried), found) == (tried[0], {})
    assert len(tried) > 1
    tried, _ = on_a_gpu(monkeypatch, lambda chunk: chunk, each=0, train={"lr": 0.1, "steps": 3})
    assert tried[0] < tried[1] <= 2 * tried[0]


@pytest.mark.usefixtures("seconds")
@pytest.mark.parametrize(("each", "trials"), [(10, 2), (40, 1)])
def test_an_accelerators_trials_end_when_their_time_is_spent(monkeypatch, each, trials):
    """There are 30 seconds for all: time for a second of 10 seconds, and for none if the first takes 40."""
    clock = iter(range(0, 10_000, each))
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: next(clock))
    tried, found = on_a_gpu(monkeypatch, lambda chunk: 10 / chunk, each=4_500)
    assert len(tried) == trials
    assert (found == {}) == (trials == 1)


def test_a_trial_on_an_accelerator_trains_whole_chunks_and_counts_seconds_by_client(monkeypatch):
    """Two clients are wanted; a chunk of eight trains eight, of which two would take a quarter of the time."""
    monkeypatch.setattr(tuning, "seconds_of", lambda program, *arguments: (1.0, None))
    with compiling_for(GPU):
        trial = tuning.Trial(plan(method="fedavg", engine="general", chunk=2), "fedavg", 1.0)
        trial.cohort = 2
        found = {chunk: trial.measure(Tuned(chunk=chunk)).seconds for chunk in (1, 8)}
        assert found == {1: 1.0, 8: 0.25}
        assert trial.clients(trial.context_of(Tuned(chunk=8))) == 8
    assert trial.clients(trial.context_of(Tuned(chunk=8))) == 2  # on a CPU


def test_what_is_chosen_for_the_second_method_of_a_name_is_its_own():
    choices = {"ifca-2": Tuned(engine="general")}
    both = {"compare": [{"name": "ifca", "clusters": 3}], "tuned": {"ifca-2": {"engine": "general"}}}
    whole = plan(**both)
    parts = {title: tuning.of_method(whole, title) for title in whole.config.methods}
    assert [part.algorithms.keys() for part in parts.values()] == [{"ifca"}, {"ifca-2"}]
    assert parts["ifca-2"].algorithms["ifca-2"].engine == "general" and whole.config.tuned == choices


def test_what_is_chosen_for_a_compared_object_leaves_it_what_it_is():
    """It was built from the main method's object: a run with `compare=[ifca_object]` trained FedAvg as IFCA."""
    main, other = fedavg(), ifca(clusters=3)
    choices = {"fedavg": {"engine": "general"}, "ifca": {"engine": "general"}}
    setting, objects = config_and_objects("quickstart", {"method": main, "compare": [other], "tuned": choices})
    whole = planned(setting, objects)
    parts = {title: tuning.of_method(whole, title) for title in whole.config.methods}
    assert {title: part.algorithms[title].method for title, part in parts.items()} == {"fedavg": main, "ifca": other}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"engine": "general"}, {"chunk": 2, "convolution": "native"}),
        ({"chunk": 3}, {"engine": "factored", "convolution": "native"}),
        ({"model": "linear"}, None),
        ({"privacy": {"clip": 0.3}}, None),
        ({"train": {"lr": 0.2}}, None),
        ({"method": {"name": "ifca", "clusters": 3}}, None),
        ({"compare": ["fedavg"]}, None),
        ({"compare": []}, {"engine": "factored", "chunk": 2, "convolution": "native"}),
        ({"rounds": 5}, {"engine": "factored", "chunk": 2, "convolution": "native"}),
        ({"autotune": False}, None),
        ({"tuned": {}}, None),
    ],
)
def test_what_the_user_gives_is_not_replaced_by_what_was_tuned(given, left):
    tuned = {"ifca": {"engine": "factored", "chunk": 2, "convolution": "native"}}
    stored = MLP | {"scenario": "rotated", "method": "ifca", "tuned": tuned}
    made, _ = config_and_objects(stored, given)
    assert (made.tuned or {}).get("ifca") == (left and Tuned(**left))
    assert config.read(stored, [f"{key}={json.dumps(value)}" for key, value in given.items()]).tuned == made.tuned


def test_short_runs_begin_without_trials():
    assert tuning.tuned(plan()).config.tuned == {}


@pytest.mark.parametrize(
    ("settings", "choices"),
    [
        (MLP, (Tuned(engine="general"), Tuned(engine="factored", tile=2))),
        (CNN, (Tuned(chunk=2, convolution="native"),)),
    ],
)
def test_a_trial_trains_what_the_run_would(settings, choices):
    """The first client's part of the training takes some time and some memory, in the engine that was asked for."""
    trial = tuning.Trial(plan(**settings), "ifca", 1.0)
    for tuned in choices:
        assert trial.engine(tuned) == (tuned.engine or "general")
        assert trial.measure(tuned).seconds > 0
    assert trial.key() == tuning.Trial(plan(**settings), "ifca", 1.0).key()


def test_choices_change_no_more_than_rounding_errors_and_are_kept_in_the_folder(tmp_path):
    given = MLP | {"method": "ifca", "compare": ["ifca"], "evaluate_every": 2}
    first = {"engine": "general", "chunk": 2, "products": "eigen"}
    tuned = {"ifca": first, "ifca-2": {"engine": "factored", "tile": 2}}
    run = experiment.run(tiny.federation(), **given, tuned=tuned, out=tmp_path / "run")
    assert [run.summary["engine"], run.others["ifca-2"].summary["engine"]] == ["general", "factored"]
    one, two = (np.load(tmp_path / "run" / "runs" / name / "checkpoints" / "seeds-0-0" / "4.npz") for name in tuned)
    np.testing.assert_array_equal(one["labels"], two["labels"])
    leaves = [leaf for leaf in one.files if leaf.startswith("state.clusters")]
    assert len(leaves) == 4
    tiny.same([one[leaf] for leaf in leaves], [two[leaf] for leaf in leaves], 1e-5)
    for file, kept in [("config.yaml", tuned), ("runs/ifca-2/config.yaml", {"ifca": tuned["ifca-2"]})]:
        assert yaml.safe_load((tmp_path / "run" / file).read_text())["tuned"] == kept
    more = experiment.run(tiny.federation(), **(given | {"rounds": 6}), out=tmp_path / "run", resume=True)
    alone = given | {"rounds": 6, "compare": [], "tuned": {"ifca": first}}
    tiny.same(more.state.clusters, experiment.run(tiny.federation(), **alone).state.clusters, 0)


def test_a_resumed_run_is_not_tried_anew(seconds, tmp_path):
    given = MLP | {"model": "linear", "method": "fedavg", "engine": "auto"}
    experiment.run(tiny.federation(), **given, out=tmp_path / "run")
    tried = len(seconds["tried"])
    assert tried > 1
    experiment.run(tiny.federation(), **(given | {"rounds": 5}), out=tmp_path / "run", resume=True)
    assert len(seconds["tried"]) == tried


CORES = """
import jax, jcfl, numpy as np
from jcfl.runs import devices, spare, tuning
from tests import test_tuning, tiny

devices.cores = tuning.devices.cores = lambda: 2
jcfl.use_cores()
assert jax.device_count() == 2
spare.LEAST = 1
settings = test_tuning.MLP | {"engine": "general"}
expected = [("fedavg", 4, 2), ("ifca", 4, 2), ("stocfl", 4, 1), ("stocfl", 400, 2), ("cfl", 4, 1), ("ditto", 4, 1)]
for method, rounds, devices in expected:
    plan = test_tuning.plan(**settings | {"rounds": rounds}, method=method)
    plan = tuning.of_method(tuning.tuned(plan), method)
    assert plan.context.resources.devices == devices, (method, rounds, plan.context.resources)
shared, alone = (jcfl.run(tiny.federation(), **settings, method="ifca", **more) for more in ({}, {"devices": 1}))
np.testing.assert_array_equal(shared.labels, alone.labels)
tiny.same(shared.state.clusters, alone.state.clusters, 1e-5)
print("agree")
"""

LATE = """
import warnings
import jax.numpy as jnp, jcfl
from jcfl.runs import devices

devices.cores = lambda: 2
jnp.zeros(1)
with warnings.catch_warnings(record=True) as told:
    jcfl.use_cores()
print(told[0].message)
"""


AGAIN = """
from jcfl.runs import tuning
from tests import test_tuning

plan = test_tuning.plan(method="fedavg", tuned={"fedavg": {"devices": 2}})
print(tuning.of_method(plan, "fedavg").context.resources.devices)
"""


EACH = """
import os, sys
from jcfl.runs import experiment
from tests import test_tuning

for name in ("CORES", "AGAIN", "LATE"):
    if os.fork() == 0:
        print(name, end=": ")
        exec(getattr(test_tuning, name))
        sys.exit()
    if os.wait()[1]:
        sys.exit(name)
"""
"""Runs the programs above in processes of their own, which share what takes longest: the imports. JAX starts later."""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """What the programs print, each a line."""
    done = subprocess.run(
        [sys.executable, "-c", CALM + EACH],
        cwd=Path(__file__).parents[1],
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_cores_share_the_clients_of_methods_that_compute_little_besides(printed):
    assert "CORES: agree" in printed


def test_a_run_that_is_repeated_gets_the_devices_that_it_had(printed):
    """In a process that did not ask for the cores, such as one that verifies a run."""
    assert "AGAIN: 2" in printed


def test_using_the_cores_too_late_is_said(printed):
    assert "LATE: use_cores: JAX has started" in printed[2]


def test_a_choice_of_more_devices_than_there_are_takes_those_there_are():
    """A run may go on where there are fewer cores."""
    there = jax.device_count()  # JAX has started then
    few = tuning.of_method(plan(method="fedavg", tuned={"fedavg": {"devices": 64}}), "fedavg")
    assert few.context.resources.devices == there


def kept(folder):
    """The outcomes of trials that are stored."""
    return [json.loads(file.read_text()) for file in folder.glob("*.json")]


def ticking(monkeypatch):
    """Let the trials' clock count how often it is read."""
    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=partial(next, itertools.count())))


@pytest.mark.parametrize(("limit", "compiled"), [(0.5, 0), (1.5, 0), (2.5, 1)])
def test_trials_give_up_where_tracing_or_compiling_took_their_time(limit, compiled, monkeypatch, tmp_path):
    """A run that was expected to take a minute was measured for forty seconds. Each step takes a second here."""
    asked = []
    ticking(monkeypatch)
    monkeypatch.setattr(tuning, "SHORTEST", 0.0)
    monkeypatch.setitem(tuning.RATE, "cpu", 1.0)
    monkeypatch.setitem(tuning.LONGEST, "cpu", limit)
    monkeypatch.setattr(tuning, "stored", lambda key: tmp_path / f"{key}.json")
    monkeypatch.setattr(tuning, "round_options", asked.append)
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda lowered, options: None)
    assert tuning.tuned(plan(method="fedavg")).config.tuned == {}  # nothing that could be timed was compiled
    assert (len(asked), kept(tmp_path)) == (compiled, [])


def test_an_outcome_of_little_time_is_not_kept_for_a_run_with_more(seconds, tmp_path, monkeypatch):
    """Rounds take ten seconds and trials one. With 4 rounds only the constants are timed, with 6 one candidate too."""
    ticking(monkeypatch)
    for rounds, tried, stored in [(4, 1, 0), (6, 2, 1), (8, 0, 1), (400, 4, 1), (800, 0, 1)]:
        before = len(seconds["tried"]) if "tried" in seconds else 0
        tuning.tuned(plan(rounds=rounds))
        assert (len(seconds["tried"]) - before, len(kept(tmp_path))) == (tried, stored), rounds


def test_an_outcome_is_kept_for_the_same_processor_and_room_alone(monkeypatch):
    """Nodes of a cluster share the folder of compiled programs, and a larger chunk needs room."""
    key = lambda **settings: tuning.Trial(plan(method="fedavg", chunk=2, **settings), "fedavg", 1.0).key()
    here = key(budget=2**24)
    assert here == key(budget=2**24 + 1) != key(budget=2**28)
    monkeypatch.setattr(tuning, "processor", lambda: "another")
    assert key(budget=2**24) != here
