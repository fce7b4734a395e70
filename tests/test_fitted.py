"""What a run chose for its device is chosen anew on a device of another kind, and only there."""

import warnings

import jax
import yaml

from jcfl.errors import Notice
from jcfl.runs import config, experiment, tuning
from jcfl.runs.bench import cases
from jcfl.runs.plan import Objects, config_and_objects, planned, smaller
from jcfl.types.target import Target, compiling_for
from tests import tiny

GPU = Target("some GPU", "gpu", 2**34)
GIVEN = {"model": {"name": "mlp", "hidden": 5}, "method": "fedavg", "engine": "general", "rounds": 4, "devices": 1}


def written(**settings):
    """What a run on this CPU writes into `config.yaml`, after trials that chose two devices."""
    assert jax.device_count()  # JAX starts here, so that it is not split for the other tests of this process
    plan = planned(*config_and_objects(tiny.federation(), GIVEN | {"tuned": {"fedavg": {"devices": 2}}} | settings))
    found = yaml.safe_load(plan.config.text())
    found["fitted"]["keys"].append("tuned")
    return found


def repeated(settings, *overrides, **more):
    """The plan of a run from such a file, and what is told."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", Notice)
        plan = planned(config.read(settings, overrides), Objects(federation=tiny.federation()), **more)
    return plan, [str(one.message) for one in told if issubclass(one.category, Notice)]


def test_another_device_chooses_anew_what_was_chosen_for_this_one():
    """The chunk of a CPU's caches was one client on a GPU too, and two devices of its eight would have been used."""
    file = written()
    with compiling_for(GPU):
        plan, told = repeated(file)
        assert (plan.config.chunk, plan.config.budget, plan.config.tuned) == (8, GPU.memory // 4, None)
        assert tuning.of_method(plan, "fedavg").context.resources.devices == 1
    (line,) = told
    assert (
        line.startswith("examples, chunk, budget, seeds_in_one, tuned: ")
        and "another device (cpu)" in line
        and "this one (some GPU)" in line
    )
    fitted = plan.config.fitted
    assert fitted is not None and fitted.kind == "some GPU" and {"chunk", "tuned"} <= {*fitted.keys}


def test_the_same_device_changes_nothing():
    file = written(chunk=None, budget=2**20)
    plan, told = repeated(file)
    assert not told
    assert yaml.safe_load(plan.config.text()) == file


def test_room_is_kept_after_memory_ran_out_on_a_device_of_this_kind_only():
    small = smaller(planned(*config_and_objects(tiny.federation(), GIVEN | {"budget": 2**20})))
    for resumes in (False, True):
        again = planned(small.config, Objects(federation=tiny.federation()), resumes=resumes)
        assert again.context.resources.room == small.context.resources.room == 2**19
        assert again.config.fitted == small.config.fitted
        with compiling_for(GPU):
            other, _ = repeated(small.config.model_dump(), resumes=resumes)
            assert other.context.resources.room == 2**20 and other.config.fitted.room is None


def test_what_the_user_gave_stays_on_another_device():
    """In the first run, or beside its file."""
    mine, open = written(chunk=2), written()
    with compiling_for(GPU):
        plan, told = repeated(mine)
        assert plan.config.chunk == 2 and "chunk" not in told[0]
        plan, told = repeated(open, "chunk=3", "budget=1000000")
        assert (plan.config.chunk, plan.config.budget) == (3, 1_000_000) and "chunk" not in told[0]
        fitted = plan.config.fitted
        assert fitted is not None and not {"chunk", "budget"} & {*fitted.keys}


def test_what_was_chosen_for_one_model_is_chosen_anew_for_another():
    """A large model trained as few clients at a time as the file's small one, or as many."""
    file = written(chunk=None)
    file |= {"chunk": 3, "budget": 2**20}
    chunk_and_budget = lambda *overrides: (lambda plan: (plan.config.chunk, plan.config.budget))(
        repeated(file, *overrides)[0]
    )
    assert chunk_and_budget() == chunk_and_budget("rounds=5") == (3, 2**20)
    assert not {3, 2**20} & {*chunk_and_budget("model.hidden=6")}
    assert chunk_and_budget("model.hidden=6", "chunk=2")[0] == 2
    given = file | {"fitted": {**file["fitted"], "keys": []}}  # by the user
    assert repeated(given, "model.hidden=6")[0].config.chunk == 3


def test_a_file_of_the_first_versions_is_chosen_anew_too():
    file = written()
    del file["fitted"]
    assert file["made_by"]["device"]["platform"] == "cpu"
    with compiling_for(GPU):
        plan, _ = repeated(file, "chunk=3")
    assert (plan.config.chunk, plan.config.budget, plan.config.tuned) == (3, GPU.memory // 4, None)


def test_a_run_that_goes_on_elsewhere_keeps_the_shapes_of_its_states():
    """StoCFL has room for as many clusters as `budget` says."""
    file = written()
    with compiling_for(GPU):
        plan, told = repeated(file, resumes=True)
    assert plan.config.budget == file["budget"] and plan.config.chunk == 8 and plan.config.tuned is None
    assert told[0].startswith("examples, chunk, tuned: ")


def test_no_more_devices_are_taken_than_there_are():
    """A GPU took as many as a CPU had cores, and ended in a traceback."""
    there = jax.device_count()
    given = GIVEN | {"tuned": {"fedavg": {"devices": 64}}}
    with compiling_for(GPU):
        plan = planned(*config_and_objects(tiny.federation(), given))
        assert tuning.of_method(plan, "fedavg").context.resources.devices == there


def test_the_file_of_a_run_is_compiled_for_a_target_as_it_would_train_there(tmp_path):
    text = "scenario: {name: rotated, clients: 8}\nmethod: fedavg\nrounds: 1\nmodel: linear\n"
    (tmp_path / "mine.yaml").write_text(text)
    file = tmp_path / "config.yaml"
    file.write_text(planned(config.read(tmp_path / "mine.yaml")).config.text())
    with compiling_for(GPU):
        plan = cases.planned_for(1, str(file), False, None)
    assert plan.context.resources.budget == GPU.memory // 4


def test_a_resumed_run_notes_what_it_had_noted(tmp_path):
    run = lambda **more: (
        experiment.run(tiny.federation(), **GIVEN, chunk=2, out=tmp_path / "run", **more)
        and yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    )
    file = run()
    assert file["fitted"]["keys"] == ["examples", "client_states", "budget", "seeds_in_one", "tuned"]
    assert run(resume=True)["fitted"] == file["fitted"]
