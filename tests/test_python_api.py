"""What Python programs pass: wrong types end in one `InputError`; a fault of a user's own function shows as it is."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest

import jcfl
from jcfl import InputError, cli, data, registry, results
from jcfl.errors import Interrupted
from jcfl.methods import fedavg
from jcfl.runs import choice
from tests import folders, tiny

RUN = {"method": "fedavg", "model": "linear", "rounds": 1}
QUICK = {**RUN, "data": "digits", "scenario": {"name": "rotated", "clients": 4}, "train": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": fedavg}, "method: expected a name, a mapping, a Method such as fedavg"),
        ({"method": object()}, "method: expected a name, a mapping, a Method"),
        ({"method": lambda context: 3}, "to return a Method or an Algorithm, got 3"),
        ({"train": object()}, "train: expected a mapping of options, or a trainer"),
        ({"train": np.zeros(2)}, "train: expected a mapping of options, or a trainer"),
        ({"method": {"name": []}}, "method"),
        ({"method": {"name": "ifca", "describe": {"name": 3}}}, "expected the name of a describe, got 3"),
        (
            {"method": {"name": "stocfl", "anchor": {"name": "mlp", "shape": 3}}},
            "unknown option of model 'mlp': 'shape'",
        ),
        ({"on_progress": 3}, "on_progress: input should be callable"),
        ({"out": 3}, "out: "),
        ({"out": "a\0b"}, "no name of a folder has the character 0"),
        ({"rounds": 10**5000}, "rounds: input should be less than or equal to 2147483647, got a value of the type int"),
    ],
)
def test_a_run_refuses_what_it_cannot_use(given, said):
    with pytest.raises(InputError, match=said):
        jcfl.run(tiny.federation(), **{**RUN, **given})


@pytest.mark.parametrize("what", [None, 3, b"quickstart", [1]])
def test_what_is_no_run_is_refused(what):
    with pytest.raises(InputError, match="expected a federation, a mapping, a file or a preset's name"):
        jcfl.run(what)
    with pytest.raises(InputError, match="expected a federation, a mapping, a file or a preset's name"):
        jcfl.sweep(what, {"rounds": [1]})


@pytest.mark.parametrize("over", [5, "rounds", {"rounds": 5}, {"rounds": iter([1])}, {"rounds": np.array(3)}, {3: [1]}])
def test_a_sweep_refuses_what_is_no_grid(over):
    with pytest.raises(InputError, match=r"over|expects a list of values|a sweep goes over keys"):
        jcfl.sweep("quickstart", over)


@pytest.mark.parametrize(
    "given",
    [{"ks": 5}, {"ks": ["a"]}, {"ks": [2.5]}, {"seed": -1}, {"clients": "many"}, {"held_back": "x"}, {"method": 5}],
)
def test_a_choice_refuses_what_it_cannot_use(given):
    with pytest.raises(InputError, match=next(iter(given))):
        choice.choose_k(tiny.federation(), **{"ks": [1, 2], "model": "linear", **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"classes": 2.0}, "classes"),
        ({"name": 3}, "expected a name, got 3"),
        ({"groups": np.zeros(0, np.int32)}, "no clients"),
        ({"held_out": np.zeros(8, np.int32)}, "held_out are int32; expected true or false"),
        ({"arrive": np.zeros(8)}, "arrive are float64; expected whole numbers"),
        ({"y": np.zeros(95)}, "labels"),
        ({"mean": [0.5]}, "mean is .*; expected a tuple"),
        ({"std": (0.0,)}, "std is .*; expected a tuple"),
        ({"train": None}, "expected rows, start, size and width"),
    ],
)
def test_a_federation_whose_parts_are_of_other_types_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        jcfl.run(dataclasses.replace(tiny.federation(), **given), **RUN)


def test_arrays_of_a_user_s_own():
    x, y, clients = np.zeros((8, 2), np.float32), np.arange(8) % 2, np.arange(8) // 4
    for given, said in (
        ({"name": 3}, "name: expected text"),
        ({"scenario": "iid"}, "unknown option"),
        ({"dataset": 3}, "option"),
    ):
        with pytest.raises(InputError, match=said):
            data.from_clients(x, y, clients, **given)


@pytest.mark.parametrize("call", [data.describe, data.label_counts, data.summary, data.place])
def test_what_is_no_federation_is_refused(call):
    with pytest.raises(InputError, match="expected a federation"):
        call(3)


def test_folders_and_datasets_that_are_none():
    for folder, said in ((3, "expected the folder of a run"), ("9" * 5000, "holds no run"), ("\0", "holds no run")):
        with pytest.raises(InputError, match=said):
            results.load(folder)
    with pytest.raises(InputError, match="data_dir: expected a folder"):
        data.load("digits", 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="expected a dataset or a list of them"):
        data.federation(3, "iid")  # pyright: ignore[reportArgumentType]


def test_a_fault_of_a_user_s_own_function_shows_as_it_is():
    def broken(context):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        jcfl.run(tiny.federation(), **{**RUN, "method": broken})


def test_packages_are_reached_by_their_names_and_what_takes_long_to_import_is_imported_late():
    """jcfl does not wait for JAX, nor a run for matplotlib.

    Each name is the first thing that is asked of jcfl: before it, all modules of jcfl are forgotten.
    """
    names = ["core", "methods", "metrics", "models", "types", "plotting", "results"]
    code = f"""
import sys, jcfl
assert "jax" not in sys.modules
import jcfl.cli, jcfl.cli.display, jcfl.runs.experiment
assert "matplotlib" not in sys.modules
for name in {names}:
    for module in [module for module in sys.modules if module.partition(".")[0] == "jcfl"]:
        del sys.modules[module]
    import jcfl
    print(getattr(jcfl, name).__name__)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert [line.replace("jcfl.view.", "jcfl.") for line in found.stdout.split()] == [f"jcfl.{name}" for name in names]


def test_what_is_no_package_is_no_attribute():
    for name in ("modles", "__main__", "_models"):
        with pytest.raises(AttributeError, match=f"module 'jcfl' has no attribute '{name}'; it has History"):
            getattr(jcfl, name)


def test_a_table_has_the_method_not_the_folder(tmp_path):
    pytest.importorskip("pandas", reason="tables need the extra `test`")
    found = results.load(folders.run(tmp_path / "uneqrun", name="ifca"))
    assert found.name == "uneqrun"
    assert set(found.to_dataframe()["method"]) == set(found.to_dataframe(clients=True)["method"]) == {"ifca"}
    unfinished = results.load(folders.run(tmp_path / "cut", name="ifca", complete=False))
    assert set(unfinished.to_dataframe()["method"]) == {"cut"}


def test_a_metric_that_a_history_lacks_is_told_by_its_title(tmp_path):
    found = results.load(folders.run(tmp_path / "run"))
    with pytest.raises(KeyError, match="no score 'accuracy'; did you mean 'accuracy_micro'"):
        found["accuracy"]
    with pytest.raises(KeyError, match="no score 'zebra'; there are accuracy_micro, "):
        found["zebra"]


def test_results_and_federations_print_in_a_line():
    """And so do trees of anything in their place, which JAX makes and shows in its errors."""
    history = jcfl.run(QUICK)
    federation = jcfl.federation(QUICK)
    assert "clients [4]" in repr(federation)
    assert ".labels [1, 4]" in repr(history.state)
    for one in (history, history.state, federation, jax.tree.map(lambda _: None, federation)):
        assert "\n" not in repr(one)
        assert len(repr(one)) < 800
    swept = jcfl.sweep(QUICK, over={"train.lr": [0.1, 1.0]})
    tuned = jcfl.tune({**QUICK, "scenario": {**QUICK["scenario"], "validation": 0.2}}, over={"train.lr": [0.1, 1.0]})
    assert repr(swept).startswith("<Sweep: 2 points; oracle (chosen on test) by accuracy_micro: lr=")
    assert repr(tuned).startswith("<Tuning: ")
    assert "\n" not in repr(swept) + repr(tuned)


def test_a_value_in_place_of_a_list_is_told_how_a_list_looks():
    with pytest.raises(InputError, match=r"^compare: expected a list, such as \['fedavg'\], got 'fedavg'$"):
        jcfl.run({**QUICK, "compare": "fedavg"})
    with pytest.raises(InputError, match=r"angles: expected a list, such as \[90\], got 90$"):
        jcfl.run(QUICK, scenario={"name": "rotated", "angles": 90})


def test_an_interrupted_program_says_how_it_goes_on():
    assert "resume=True" in str(Interrupted())


def test_what_is_to_be_resumed_needs_its_folder():
    """Without a folder there is nothing to go on with, and the run would begin again."""
    for call in (jcfl.run, jcfl.sweep):
        with pytest.raises(InputError, match=r"resume=True needs out=…"):
            call("quickstart", resume=True)


def test_a_run_with_a_piece_of_a_program_is_resumed_there(tmp_path, capsys):
    @registry.register("method", "mine")
    def mine():
        """A method that only this test knows."""
        return fedavg()

    place = str(tmp_path / "run")
    jcfl.run(QUICK, method="mine", out=place)
    assert len(jcfl.run(f"{place}/config.yaml", rounds=2, out=place, resume=True).rounds) == 2
    del registry._TABLES["method"]["mine"]
    assert cli.status(["run", "--resume", place]) == 2
    said = capsys.readouterr().err
    assert "config.yaml: unknown method 'mine'" in said and f"out={place!r}, resume=True)" in said
