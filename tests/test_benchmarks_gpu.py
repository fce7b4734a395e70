"""The script for a GPU, in tiny sizes on a CPU: its rows, the public setups beside PyTorch, and estimates."""

import importlib.util
import io
import json
import os
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import gpu, gpu_rows
from jcfl.errors import InputError
from jcfl.runs import programs
from jcfl.runs.bench import absent, compiled, hlo, work
from jcfl.runs.plan import config_and_objects, planned

HERE = Path(gpu.__file__).resolve().parent
PARAMETERS = {"pfl": 1_626_442, "blazefl": 62_006}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the command wrote and printed for two rows; PyTorch is the Python named by JCFL_TORCH, if there is one."""
    folder, printed = tmp_path_factory.mktemp("gpu"), io.StringIO()
    torch = os.environ.get("JCFL_TORCH")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # the command adds to it
        gpu.main(["roof", "blazefl"], quick=True, threads=1, torch=torch and Path(torch), out=folder)
    written, text = (folder / "gpu.json").read_text("utf-8"), (folder / "gpu.md").read_text("utf-8")
    return json.loads(written), text, printed.getvalue()


def cases(found, row):
    """The cases of a row by name."""
    return {line["case"]: line for line in found[0]["rows"] if line["row"] == row}


def test_the_cpu_equals_itself_and_multiplies(found):
    equal, roof = json.loads(json.dumps([*gpu_rows.equal(quick=True)])), cases(found, "roof")
    assert {line["case"]: line["labels_equal"] for line in equal} == {"factored": True, "general": True}
    assert roof["float32"]["flops_per_s"] > 1e8 and {*roof} == {"float32", "tensorfloat32"}


def test_what_is_written_says_where_it_was_measured(found):
    written, text, printed = found
    assert printed == text
    assert written["device"]["platform"] == "cpu"
    assert {"commit", "date", "versions", "load_before", "load_after"} <= {*written["machine"]}
    assert written["machine"]["commit"] in text and "load average" in text
    assert "**generated images**" in text and "only show that it works" in text
    assert "There are no estimates, because the rates of cpu are not known." in text
    assert [line for line in text.splitlines() if line.startswith("**`")][1].startswith("**`blazefl`**")


def test_a_public_setup_is_measured(found):
    line = cases(found, "blazefl")["jcfl"]
    assert (line["device"], line["times_jcfl"], line["estimate_s"]) == ("cpu", 1, None)
    assert 0 < line["least_s"] <= line["round_s"] <= line["most_s"] < line["first_s"]
    assert len(line["lines"][0]["seconds"]) == 2  # of three rounds, the first stands apart


def test_pytorch_is_measured_beside_it_or_the_reason_is_given(found):
    line, ours = cases(found, "blazefl")["PyTorch"], cases(found, "blazefl")["jcfl"]
    if not importlib.util.find_spec("torch") and not os.environ.get("JCFL_TORCH"):
        assert line["failed"] in found[1]
        pytest.skip(line["failed"])
    assert line["times_jcfl"] == pytest.approx(line["round_s"] / ours["round_s"])
    assert line["lines"][0]["model"] == ours["lines"][0]["model"] == "lenet"
    assert f", PyTorch {line['version']};" in found[1]


@pytest.mark.parametrize("name", PARAMETERS)
def test_both_sides_have_the_network_that_is_described(name, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(HERE / "peers")
    import work as of_peers

    setup = gpu.setups.SETUPS[name]
    assert f"({PARAMETERS[name]:,} parameters)" in setup.about
    spec = importlib.util.spec_from_file_location("peer", HERE / "peers/jcfl/fedavg.py")
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    gpu.setups.stored_images(tmp_path / "images.npz", None, quick=True)
    words = gpu.setups.sized(setup, quick=True).asked(tmp_path / "images.npz", 1)
    asked = of_peers.arguments("a peer", colour=True).parse_args(words)
    asked.engine, asked.chunk, asked.devices = "auto", None, 1
    federation = peer.federation(asked)
    task = planned(*config_and_objects(federation, peer.configured(asked))).context.task
    assert sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)))) == PARAMETERS[name]
    (x, y), _ = of_peers.colour_images(asked.images)  # PyTorch's images are the same
    ours = (np.asarray(federation.x[: len(y)]) / 255 - federation.mean[0]) / federation.std[0]
    np.testing.assert_allclose(x.transpose(0, 2, 3, 1), ours, atol=1e-5)
    pytest.importorskip("torch", reason="torch is not installed")
    from networks_torch import network

    assert sum(leaf.numel() for leaf in network(setup.model).parameters()) == PARAMETERS[name]


def test_published_images_are_read_and_a_folder_without_them_is_refused(tmp_path):
    records = np.random.default_rng(0).integers(0, 10, (6, 5, 1 + 3072), np.uint8)
    for i, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        (tmp_path / name).write_bytes(records[i].tobytes())
    assert gpu.setups.stored_images(tmp_path / "images.npz", tmp_path, quick=False) == "CIFAR-10"
    with np.load(tmp_path / "images.npz") as parts:
        np.testing.assert_array_equal(parts["y"], records[:5, :, 0].ravel())
        np.testing.assert_array_equal(parts["test_x"][3, :, :, 1], records[5, 3, 1025:2049].reshape(32, 32))
    with pytest.raises(InputError, match="cifar10"):
        gpu.setups.stored_images(tmp_path / "images.npz", tmp_path / "none", quick=False)
    app = gpu.typer.Typer()
    app.command()(gpu.main)
    refused = CliRunner().invoke(app, ["pfl", "--data-dir", str(tmp_path / "none"), "--torch", "python"])
    assert (refused.exit_code, "cifar10" in refused.output) == (2, True)
    assert CliRunner().invoke(app, ["pfll"]).exit_code == 2


def test_a_peer_in_this_python_sees_what_is_installed_in_its_path(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.exit('seen')\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for peer, is_seen in {"jcfl": True, "PyTorch": False}.items():
        found = gpu.compare.once(gpu.compare.PEERS[peer], sys.executable, ["--nonsense"], 60)
        assert ("seen" in found["failed"]) == is_seen


def test_later_rounds_of_all_turns_are_summarised():
    line = {"device": "a GPU", "first": 9.0, "accuracy": 0.5, "version": "1", "estimate_s": 0.1, "bound": "memory"}
    ours = [line | {"seconds": [1.0, 3.0]}, line | {"seconds": [2.0]}]
    theirs = [line | {"seconds": [8.0], "estimate_s": None}, {"failed": "not done after 3 s"}]
    one, other = gpu.setups.cases({"jcfl": ours, "PyTorch": theirs})
    assert (one["round_s"], one["least_s"], one["most_s"], one["times_jcfl"]) == (2.0, 1.0, 3.0, 1.0)
    assert (other["round_s"], other["times_jcfl"]) == (8.0, 4.0)
    alone, failed = gpu.setups.cases({"jcfl": [{"failed": "no memory"}], "PyTorch": theirs})
    assert alone == {"case": "jcfl", "failed": "no memory"} and failed["times_jcfl"] is None


def test_a_row_that_takes_too_long_keeps_what_it_printed(tmp_path, monkeypatch):
    printed = '{"device": {"kind": "a"}}\n{"case": "b"}\n{"ca'
    script = f"import time\nprint({printed!r}, end='', flush=True)\ntime.sleep(60)"
    (tmp_path / "gpu_rows.py").write_text(script, "utf-8")
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    begun = time.monotonic()
    lines = gpu.apart("cnn", True, 2)
    assert time.monotonic() - begun < 20
    assert lines == [{"device": {"kind": "a"}}, {"case": "b"}, {"case": "the rest", "failed": "not done after 2 s"}]
    assert gpu.setups.beside(gpu.setups.SETUPS["pfl"], tmp_path, 1, sys.executable, False, begun)[0]["failed"] == (
        "no time was left"
    )


def test_a_table_has_ratios_and_marks_lower_bounds():
    case = {"case": "a", "round_s": 0.5, "flops": 1e9, "estimate_s": 0.25, "bound": "memory", "once": ["a loop"]}
    line = gpu.with_ratios(case, {"float32": 4e9})
    assert (line["measured_by_estimate"], line["share_of_float32"]) == (2.0, 0.5)
    text = gpu.table([line, {"case": "b", "failed": "no memory"}])
    assert text.splitlines()[0] == "| | round, s | estimate, s | bound by | measured / estimate | share of float32 |"
    assert "| a | 0.5 | ≥ 0.25 | memory | 2 | 0.5 |" in text
    assert "| b | failed: no memory | | | | |" in text
    assert "measured_by_estimate" not in gpu.with_ratios(case | {"estimate_s": None}, {})


def test_the_estimate_is_that_of_the_program_at_hand(monkeypatch, source_lines):
    """A round alone and a block of rounds have the estimate of one round; the device's name says which rates it has."""
    federation = work.made_up_federation(8, 6)
    new = 0.1 + 0.01 * np.random.default_rng().random()  # a program from the cache might not name its lines
    given = {"model": {"name": "mlp", "hidden": 64}, "method": "fedavg", "train": {"lr": new, "epochs": 2}}
    plan = planned(*config_and_objects(federation, given | {"engine": "general"}))
    (algorithm,) = plan.algorithms.values()
    state = jax.jit(algorithm.init)(jax.random.key(0), plan.federation)
    step = work.compiled_step(plan, state)
    assert compiled.estimate(step, plan) == {"estimate_s": None, "bound": "", "once": []}
    monkeypatch.setitem(absent.KINDS, jax.local_devices()[0].device_kind, "t4")
    found, target = compiled.estimate(step, plan), absent.targets()["t4"].target
    took = hlo.cost(step.as_text() or "", True, compiled.settled(plan))
    assert took.kernels * target.launch <= found["estimate_s"] and took.bytes / target.bandwidth <= found["estimate_s"]
    assert found["bound"] in ("launches", "memory") and found["once"] == []
    block = compiled.estimate(programs.begun(algorithm, plan.federation, 1)().advance, plan)
    assert block["once"] == []
    monkeypatch.setattr(hlo, "computations", lambda text: {})
    assert compiled.estimate(step, plan) == {"estimate_s": None, "bound": "not read: KeyError('ENTRY')", "once": []}
    assert found["estimate_s"] <= block["estimate_s"] < 1.5 * found["estimate_s"] + 4 * compiled.TRIP


def test_only_devices_whose_rates_are_known_have_an_estimate():
    known = {absent.rates(kind).name for kind in absent.KINDS}
    assert known == {*absent.GPUS, *absent.TPUS}
    assert [absent.rates(kind) for kind in ("NVIDIA A100-SXM4-40GB", "NVIDIA L40S", "cpu")] == [None] * 3
