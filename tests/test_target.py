"""Targets that are not at hand: what is planned for them, and what is read from programs compiled for them."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl import cli, models, registry
from jcfl.core import memory
from jcfl.errors import InputError, TooLarge
from jcfl.runs.bench import absent, cases, compiled, hlo
from jcfl.types.target import Target, at_hand, compiling_for, target
from tests import tiny
from tests.test_contract import SIZES, build

GPU, TPU = Target("some GPU", "gpu", 2**34), Target("some TPU", "tpu", 2**33)
NAMED = {"cuda": GPU, "tpu": TPU}


def lower(algorithm, platforms):
    """A round, lowered for platforms by the compiler's front end, which needs no device and no plug-in."""
    data = tiny.federation(SIZES)
    state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
    return jax.jit(algorithm.step).trace(state, data).lower(lowering_platforms=tuple(platforms)).as_text()


@pytest.mark.parametrize("name", registry.names("method"))
def test_every_methods_round_lowers_for_devices_that_are_not_there(name):
    with compiling_for(GPU):
        assert "stablehlo" in lower(build(name)[1], ["cuda", "tpu"])


def test_a_gpu_that_is_not_there_is_compiled_for_with_the_users_flags_and_nothing_measured(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    flags = absent.surroundings(absent.targets()["h200"])["XLA_FLAGS"].split()
    assert flags == ["--xla_gpu_enable_triton_gemm=true", "--xla_gpu_autotune_level=0"]
    assert "XLA_FLAGS" not in absent.surroundings(absent.targets()["v5e-1"])


@pytest.mark.parametrize("module", ["jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"])
def test_the_compiler_of_either_cuda_will_do(module, monkeypatch):
    monkeypatch.setattr(absent, "is_installed", lambda name: name == module)
    assert absent.target_named("h200").target.name == "h200"


@pytest.mark.parametrize("platform", NAMED)
@pytest.mark.parametrize(
    ("method", "model", "engine"), [("stocfl", "mlp", "factored"), ("fedavg", "cnn_fashion", "auto")]
)
def test_paths_that_depend_on_the_target_lower_for_it(method, model, engine, platform):
    with compiling_for(NAMED[platform]):
        text = lower(round_of(method, model, engine), [platform])
    assert ("stablehlo.convolution" in text) == (model == "cnn_fashion" and platform == "tpu")


def round_of(method: str, model: str, engine: str, participation: float = 0.5, data: Any = None, **options):
    """A method on a registered model."""
    task = models.build(model, (4, 4, 1), tiny.CLASSES, **({"hidden": 8} if model == "mlp" else {}))
    data = tiny.federation(SIZES) if data is None else data
    setting = tiny.setting(participation, data=data, epochs=1).with_context(task=task, engine=engine)
    return tiny.built(method, setting, **options)


def test_the_target_is_what_is_at_hand_or_what_was_chosen():
    assert (target(), target().platform) == (at_hand(), "cpu")
    with compiling_for(GPU):
        assert memory.free_memory() == GPU.memory
        assert memory.memory_budget() == GPU.memory // 4
        with compiling_for(TPU):
            assert target() is TPU
        assert target() is GPU
    assert target() is at_hand()


def test_what_is_planned_for_a_gpu_computes_the_same():
    """The GPU's engine and tiles, run here."""
    data, states = tiny.federation(SIZES), []
    for one in (at_hand(), GPU):
        with compiling_for(one):
            made = round_of("ifca", "mlp", "factored", 1.0, clusters=3)
            states.append(tiny.run(made, 2, data=data))
    tiny.same(states[0].labels, states[1].labels)
    tiny.same(states[0].clusters, states[1].clusters, 1e-6)


@pytest.mark.parametrize(
    ("sizes", "participation", "loops"),
    [(SIZES, 1.0, 1), ((12,) * 8, 0.5, 1), (SIZES, 0.5, 2)],
    ids=["all", "equal sizes", "some of different sizes"],
)
def test_a_gpu_reads_the_length_of_few_loops_in_a_factored_round(sizes, participation, loops):
    """The loop over all tiles. One over clusters around it would make the GPU wait for the host at every cluster.

    If some clients of different sizes choose a model, the length of that loop depends on the data too.
    """
    data = tiny.federation(sizes)
    with compiling_for(GPU):
        made = round_of("ifca", "mlp", "factored", participation, data, clusters=3)
        state = jax.eval_shape(made.init, jax.random.key(0), data)
        assert made.engine == "factored"
        assert str(jax.make_jaxpr(made.step)(state, data)).count("while[") == loops


def test_products_and_turns_are_counted(source_lines):
    """Five products of a known loop, and as many as the caller says of one whose length depends on data."""
    new = np.random.default_rng().normal()  # a program from the cache might name lines of another day

    def step(x, count):
        x = jax.lax.fori_loop(0, 5, lambda _, x: x @ x, x * new)
        return jax.lax.fori_loop(0, count, lambda _, x: jnp.matmul(x, x, precision="highest"), x)

    text = jax.jit(step).lower(jnp.ones((64, 64)), 3).compile().as_text() or ""
    found = hlo.cost(text, True, lambda source: 3 if "count, lambda" in source else None)
    assert found.flops + found.exact == 8 * 2 * 64**3
    assert (found.trips, found.once) == (4, frozenset())
    unknown = hlo.cost(text, True)
    assert unknown.flops + unknown.exact == 6 * 2 * 64**3
    assert len(unknown.once) == 1


def test_a_part_of_an_array_counts_as_a_part():
    def step(x, place, row):
        return x.at[place].set(row + 1)

    shapes = jnp.ones((1000, 64)), jnp.int32(3), jnp.ones(64)
    text = jax.jit(step, donate_argnums=0).lower(*shapes).compile().as_text() or ""
    assert hlo.cost(text, True).bytes < 5000


NESTED = """HloModule step

%taken (all: f32[64,8,8], row: s32[]) -> f32[1,8,8] {
  %all = f32[64,8,8]{2,1,0} parameter(0)
  %row = s32[] parameter(1)
  ROOT %slice = f32[1,8,8]{2,1,0} dynamic-slice(%all, %row), dynamic_slice_sizes={1,8,8}
}

%whole (row.1: s32[], all.1: f32[64,8,8]) -> f32[1,8,8] {
  %row.1 = s32[] parameter(0)
  %all.1 = f32[64,8,8]{2,1,0} parameter(1)
  %inner = f32[1,8,8]{2,1,0} fusion(%all.1, %row.1), kind=kLoop, calls=%taken
  ROOT %twice = f32[1,8,8]{2,1,0} add(%inner, %inner)
}

ENTRY %main (rows: f32[64,8,8], place: s32[]) -> f32[1,8,8] {
  %rows = f32[64,8,8]{2,1,0} parameter(0)
  %place = s32[] parameter(1)
  ROOT %out = f32[1,8,8]{2,1,0} fusion(%place, %rows), kind=kOutput, calls=%whole
}
"""
"""As a TPU's compiler writes it: the row is taken in a fusion inside a fusion."""


def test_a_part_that_is_read_inside_another_fusion_counts_as_a_part():
    assert hlo.cost(NESTED, False).bytes == 2 * 8 * 8 * 4 + 4  # the row, read and written, and its number


EXCHANGED = """HloModule exchanged

ENTRY %main (rows: f32[4,8]) -> f32[8,8] {
  %rows = f32[4,8]{1,0} parameter(0)
  %begun = (f32[4,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%rows), dimensions={0}
  %sum = f32[4,8]{1,0} all-reduce-start(%rows), to_apply=%add
  ROOT %done = f32[8,8]{1,0} all-gather-done(%begun)
}
"""


def test_what_a_collective_was_given_is_not_what_it_sends():
    """Its start returns both, so that it can go on beside other work; that of a sum returns the sum alone."""
    found = hlo.cost(EXCHANGED, True)
    assert (found.collectives, found.sent) == (2, 4 * (8 * 8 + 4 * 8))


def test_a_target_that_cannot_be_compiled_for_is_refused_in_one_line(monkeypatch):
    with pytest.raises(InputError, match="did you mean 'v5e-8'"):
        absent.target_named("v5e-2")
    monkeypatch.setattr(absent.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'jax\[tpu\]'"):
        compiled.compiled("v5e-8", [])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--target", "v5e-2"], "did you mean 'v5e-8'"),
        (["--target", "h200", "--threads", "1"], "--threads means nothing"),
    ],
)
def test_the_command_refuses_in_one_line(words, why, capsys):
    assert cli.status(["bench", *words]) == 2
    assert why in capsys.readouterr().err


def test_the_table_marks_what_failed_and_what_was_counted_once():
    took = hlo.Cost(kernels=10, bytes=2**30, flops=1e12, once=frozenset(["a loop"]))
    least = compiled.roofline(took, absent.targets()["h200"].target)
    assert (least["bound"], round(least["round_ms"], 1)) == ("arithmetic", 2.0)
    sizes = dict.fromkeys(compiled.COLUMNS, 1) | {"kernels": 10, "once": ["a loop"], **least}
    text = compiled.table([{"target": "a", "case": "b", **sizes}, {"target": "a", "case": "c", "failed": "no"}])
    assert "Compiled, not run" in text
    assert "| ≥ 10 |" in text
    assert "| ≥ 2.0 | arithmetic |" in text
    assert "| failed: no |" in text


MINE = """
data: {name: digits}
scenario: {name: rotated, clients: 8}
model: {name: mlp, hidden: 4}
method: {name: ifca, clusters: 3}
compare: [stocfl]
train: {lr: 0.1, epochs: 1, batch_size: 10}
participation: 0.5
rounds: 2
devices: 3
"""


@pytest.fixture
def mine(tmp_path):
    """A user's configuration, for three devices of another machine."""
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    return str(file)


@pytest.fixture
def installed(monkeypatch):
    """Compilers count as installed. What is compiled for a target is compiled for the CPU, and in this process."""

    def run(command, **more):
        return subprocess.CompletedProcess(command, 0, json.dumps(compiled.case(*json.loads(command[-1]))), "")

    monkeypatch.setattr(absent, "target_named", lambda name: absent.targets()[name])
    monkeypatch.setattr(absent, "with_devices", lambda one: replace(one.target, devices=tuple(jax.devices())))
    monkeypatch.setattr(compiled, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))


def test_a_users_file_is_planned_for_the_target(mine):
    """Its main method alone, with the target's devices and memory; and no example is copied, as nothing will run."""
    with compiling_for(absent.targets()["h200"].target) as there:
        plan = cases.planned_for(1, mine, False, None)
    assert (list(plan.algorithms), plan.config.devices) == (["ifca"], 1)
    assert plan.context.resources.budget == there.memory // 4
    assert isinstance(plan.federation.x, np.ndarray)


def test_devices_hold_a_part_of_every_clients_model_each(mine, monkeypatch):
    """The eight models take 2.5 MB, and such states may take 2 MB of a device."""
    text = MINE.replace("{name: ifca, clusters: 3}", "ditto").replace("hidden: 4", "hidden: 1024")
    Path(mine).write_text(text.replace("compare: [stocfl]", "client_states: device"))
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    with compiling_for(replace(GPU, memory=4 * 2**20)):
        with pytest.raises(TooLarge, match="keeps the last model of each of 8 clients"):
            cases.planned_for(1, mine, False, None)
        four = cases.planned_for(4, mine, False, None)
    assert four.needs.states < four.needs.checkpoint / 2  # a quarter of eight models, and the whole global model


@pytest.mark.usefixtures("installed")
def test_a_users_file_is_compiled_beside_a_case(mine, tmp_path):
    found = compiled.compiled("h200", ["stocfl_tau", "quickstart-majority", mine], data_dir=tmp_path)["cases"]
    assert [one["case"] for one in found] == ["stocfl_tau", "quickstart-majority", mine]
    assert (found[2]["engine"], found[2]["chunk"]) == ("general", 4)
    assert found[2]["products_TFLOP"] > 0
    assert f"| h200 | {mine} |" in compiled.table(found)
    assert "dataset 'mnist' not found" in found[0]["failed"]


def test_seeds_that_run_side_by_side_are_one_round(mine, tmp_path):
    several = tmp_path / "seeds.yaml"
    several.write_text(MINE + "seeds: 3\n")
    shapes = []
    for file in (mine, str(several)):
        with compiling_for(GPU):
            state, step = compiled.round_of(plan := cases.planned_for(1, file, False, None))
            assert jax.eval_shape(step, state, plan.federation).round.shape == state.round.shape
        shapes.append(state.labels.shape)
    assert shapes == [(8,), (3, 8)]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["stocfl_taus"], "unknown case or preset (and no such file): 'stocfl_taus'; did you mean 'stocfl_tau'?"),
        (["fedavg-mpl"], "did you mean 'fedavg-mlp'?"),
        (["gone.yaml"], "no configuration file 'gone.yaml'"),
        (["{mine}", "--quick"], "leave --quick out"),
        (["fedavg-mlp", "--data-dir", "."], "only a preset or a file reads data"),
        (["stocfl_tau", "--data-dir", "{folder}"], "stocfl_tau: dataset 'mnist' not found"),
    ],
)
def test_the_command_refuses_what_cannot_be_planned(words, why, mine, tmp_path, capsys):
    words = [word.format(mine=mine, folder=tmp_path) for word in words]
    assert cli.status(["bench", *words, "--target", "h200"]) == 2
    *progress, told = capsys.readouterr().err.splitlines()
    assert why in told
    assert progress in ([], ["h200 stocfl_tau failed"])


def test_a_mistake_in_a_users_file_is_told_before_anything_is_compiled(installed, mine, tmp_path, monkeypatch):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(MINE.replace("participation", "participations"))
    monkeypatch.setattr(compiled, "apart", lambda *arguments: pytest.fail("compiled"))
    with pytest.raises(InputError, match="did you mean 'participation'"):
        compiled.compiled("h200", [mine, str(wrong)])


def test_what_is_too_large_for_the_target_is_a_row(installed, mine, monkeypatch):
    small = absent.targets()["t4"]._replace(target=Target("t4", "gpu", 2**10))
    monkeypatch.setattr(absent, "target_named", lambda name: small)
    (found,) = compiled.compiled("t4", [mine])["cases"]
    assert "and 1.0 kB are free" in found["failed"]
    assert cli.status(["bench", mine, "--target", "t4"]) == 1  # nothing was compiled


@pytest.mark.usefixtures("installed")
def test_rounds_that_ask_the_host_are_said_not_to_compile(mine, tmp_path):
    """What XLA says of it would be that there is no GPU."""
    asking = tmp_path / "asking.yaml"
    asking.write_text(MINE.replace("name: ifca, clusters: 3", "name: ditto") + "examples: host\nclient_states: host\n")
    (found,) = compiled.compiled("h200", [str(asking)])["cases"]
    assert found["failed"].startswith("examples are and clients' states are on the host")
