"""Runs: what they measure, write, survive, and go on from; on an algorithm so small that nothing waits."""

import copy
import json
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import jcfl
from jcfl import metrics, results
from jcfl.core import local
from jcfl.core.method import Phase
from jcfl.core.rounds import initial
from jcfl.errors import InputError, Notice, TrainingError
from jcfl.methods import fedavg, majority, stocfl
from jcfl.runs import compiled, config, experiment, loop, programs
from jcfl.runs.plan import config_and_objects, planned
from jcfl.types import NEVER, Algorithm
from jcfl.view.report import numbers
from tests import tiny

TRACES = []


def walk(setting) -> Algorithm:
    """A model of one number that takes a random step every round."""

    def init(key, federation):
        return initial(key, {"params": jnp.zeros((2, 1))}, {"params": jnp.zeros(1)}, setting.population.clients)

    def step(state, federation):
        TRACES.append("step")
        noise = jax.random.normal(jax.random.fold_in(state.key, state.round), (2, 1))
        labels = jax.random.randint(jax.random.fold_in(state.key, -state.round), state.labels.shape, 0, 2)
        return state.replace(
            clusters={"params": state.clusters["params"] + noise}, labels=labels, round=state.round + 1
        )

    def evaluate(state, federation):
        first = state.clusters["params"][0, 0]
        figures = {"accuracy_micro": first, "clusters": jnp.int32(2), "purity": jnp.nan, "zebra": first * 2}
        return figures | {"labels": state.labels, "accuracy_clients": state.labels * first}

    return Algorithm(
        init=init, step=step, predict=lambda *given: given, evaluate=evaluate, costs=lambda clusters: {"storage": 1}
    )


def warmed(setting) -> Algorithm:
    """As `walk`, with costs that four rounds of warm-up lower."""
    costs = lambda clusters: {"storage": 3, "communication": 3, "computation": 2}
    return walk(setting)._replace(costs=costs, method=replace(fedavg(), before=(Phase(4, "shared"),)))


def diverging(setting) -> Algorithm:
    """As `walk`, with cluster 1 no longer finite in the fourth round."""
    base = walk(setting)

    def step(state, federation):
        failed = jnp.where(state.round == 3, jnp.array([3, 1], jnp.int32), state.failed)
        return base.step(state, federation).replace(failed=failed)

    return base._replace(step=step)


def walked(**given):
    given = {"method": walk, "model": tiny.task(), "rounds": 12, "evaluate_every": 5} | given
    return experiment.run(tiny.federation(), **given)


def files(folder):
    metrics = (folder / "metrics.jsonl").read_text()
    return metrics, dict(np.load(folder / "clusters.npz").items())


def same_files(one, two):
    (metrics, arrays), (others, other_arrays) = files(one), files(two)
    assert metrics == others
    assert arrays.keys() == other_arrays.keys()
    for key, value in arrays.items():
        np.testing.assert_array_equal(value, other_arrays[key], key)


def test_history_is_numpy_and_follows_the_walk():
    TRACES.clear()
    found = walked(seeds=2, seed=7)
    assert TRACES == ["step"]
    assert found.rounds.tolist() == [5, 10, 12]
    assert found.seeds == [7, 8]
    assert found["accuracy_micro"].shape == (2, 3)
    assert found.labels.shape == (2, 3, 8)
    assert isinstance(found.state.labels, np.ndarray)
    assert found.state.labels.shape == (2, 8)
    for i, seed in enumerate(found.seeds):
        expected = sum(
            float(jax.random.normal(jax.random.fold_in(jax.random.key(seed), round), (2, 1))[0, 0])
            for round in range(12)
        )
        assert found["accuracy_micro"][i, -1] == pytest.approx(expected, abs=1e-5)
        np.testing.assert_array_equal(found.state.labels[i], found.labels[i, -1])
    with pytest.raises(KeyError, match="accuracy_macro"):
        found["accuracy_macro"]


def test_seeds_side_by_side_equal_seeds_one_by_one():
    together, apart = walked(seeds=3, seeds_in_one=True), walked(seeds=3, seeds_in_one=False)
    np.testing.assert_allclose(together["accuracy_micro"], apart["accuracy_micro"], atol=1e-6)
    np.testing.assert_array_equal(together.labels, apart.labels)
    np.testing.assert_array_equal(together.state.key, apart.state.key)


def test_rounds_zero_and_the_round_before_the_first():
    assert walked(rounds=0).rounds.tolist() == [0]
    assert walked(evaluate_first=True).rounds.tolist() == [0, 5, 10, 12]


@pytest.mark.parametrize(("rounds", "evaluated"), [(12, [5, 10, 11, 12]), (2, [0, 1, 2])])
def test_the_summary_has_the_mean_of_the_last_rounds(rounds, evaluated):
    found = walked(rounds=rounds, seeds=2, evaluate_last=3, evaluate_first=rounds == 2)
    assert found.rounds.tolist() == evaluated
    mean = found.summary["mean_of_last"]
    last = min(3, rounds)
    each = found["accuracy_micro"][:, -last:].mean(1)
    assert mean["rounds"] == last
    assert mean["accuracy_micro"] == pytest.approx({"mean": each.mean(), "std": each.std(ddof=1)})
    assert found.summary["accuracy_micro"]["mean"] == pytest.approx(found["accuracy_micro"][:, -1].mean())
    assert "mean_of_last" not in walked().summary


@pytest.mark.parametrize(("rounds", "communication", "computation"), [(12, 7 / 3, 5 / 3), (3, 1, 1), (0, 3, 2)])
def test_costs_are_averages_over_the_run_and_in_bytes(rounds, communication, computation):
    """Twelve rounds of which four cost 1: (4 + 8 · 3) / 12 and (4 + 8 · 2) / 12; three that all are warm-up; none."""
    numbers = 16 * 6 + 6 + 6 * 10 + 10
    size, examples = 4 * numbers, tiny.federation().train.size.mean()
    found = walked(method=warmed, rounds=rounds).summary["costs"]
    assert found.pop("flop") == pytest.approx(computation * 3 * 2 * numbers * examples, rel=0.05)  # one full batch
    assert found == pytest.approx(
        {
            "storage": 3,
            "communication": communication,
            "computation": computation,
            "model_bytes": size,
            "storage_bytes": 3 * size,
            "download_bytes": round(communication * size),
            "communication_bytes": round(2 * communication * size),
        }
        | ({"warmup_rounds": min(4, rounds), "warmup_communication": 1, "warmup_computation": 1} if rounds else {})
    )


def test_folder(tmp_path):
    out = tmp_path / "run"
    found = walked(seeds=2, out=out)
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {(entry["seed"], entry["round"]) for entry in entries} == {(s, r) for s in (0, 1) for r in (5, 10, 12)}
    assert list(entries[0]) == ["seed", "round", "accuracy_micro", "clusters", "purity", "zebra"]
    assert entries[0]["purity"] is None
    summary = json.loads((out / "summary.json").read_text())
    last = found["accuracy_micro"][:, -1]
    assert summary["accuracy_micro"] == pytest.approx({"mean": last.mean(), "std": last.std(ddof=1)})
    assert summary["purity"] == {"mean": None, "std": None}
    for key in ("wall_s", "compile_s", "rounds_per_s", "clients_per_s", "peak_memory_bytes"):
        assert summary[key] > 0
    size = 4 * (16 * 6 + 6 + 6 * 10 + 10)  # the tiny task's
    assert summary["costs"] == {"storage": 1, "model_bytes": size, "storage_bytes": size}  # no more than `walk` names
    arrays = files(out)[1]
    assert arrays["labels"].shape == (2, 3, 8)
    np.testing.assert_array_equal(arrays["groups"], tiny.federation().groups)
    stored = yaml.safe_load((out / "config.yaml").read_text())
    assert stored["made_by"]["device"]["platform"] == jax.default_backend()
    assert stored["rounds"] == 12
    read = results.load(out)
    np.testing.assert_array_equal(read["accuracy_micro"], found["accuracy_micro"])
    np.testing.assert_array_equal(read.labels, found.labels)


def test_clients_a_second_are_those_that_were_sampled(tmp_path):
    """One of eight clients is held out, two arrive in round 4, six are gone from round 6 on: 5, 7 and 1 are there."""
    data = tiny.federation(held_out=1)
    arrive, depart = np.zeros(8, np.int32), np.full(8, 6, np.int32)
    arrive[:2], depart[[0, 7]] = 4, NEVER
    data = data.replace(arrive=arrive, depart=depart)
    for participation, sampled in ((1.0, 4 * 5 + 2 * 7 + 6 * 1), (0.4, 4 * 2 + 2 * 3 + 6 * 1)):
        given = {"method": walk, "model": tiny.task(), "rounds": 12, "evaluate_every": 6, "seeds": 2}
        given |= {"participation": participation}
        found = experiment.run(data, **given, out=tmp_path / str(participation))
        speed = found.summary["clients_per_s"] / found.summary["rounds_per_s"]
        assert speed == pytest.approx(sampled / 12)
        found.summary["costs"] = {"communication": 1, "model_bytes": 10, "communication_bytes": 20}
        np.testing.assert_allclose(numbers.spent(found, "communication_bytes"), [[10 * sampled, 20 * sampled]] * 2)
        given |= {"method": "fedavg", "train": {"steps": 3, "batch_size": 2}}
        assert planned(*config_and_objects(data, given)).needs.local_steps == 2 * 3 * sampled


@pytest.mark.parametrize(("seeds_in_one", "stops"), [(True, (1, 7, 12)), (False, (1, 7, 12, 17))])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, monkeypatch, seeds_in_one, stops):
    """Two seeds side by side take twelve blocks, and one after the other more."""
    monkeypatch.setattr(loop, "BLOCK", 0.0)  # every block is one round
    given = {"seeds": 2, "seeds_in_one": seeds_in_one, "evaluate_first": True}
    walked(**given, out=tmp_path / "whole")
    for when in stops:
        out, calls = tmp_path / f"cut-{when}", []

        def stop(progress, when=when, calls=calls):
            calls.append(progress)
            if len(calls) == when:
                signal.raise_signal(signal.SIGTERM)

        before = signal.getsignal(signal.SIGTERM)
        try:
            walked(**given, out=out, on_progress=stop)
        except loop.Interrupted:
            assert not (out / "summary.json").exists()
        assert signal.getsignal(signal.SIGTERM) == before
        with open(out / "metrics.jsonl", "a") as file:
            file.write('{"seed": 0, "round": 99, "accura')  # what a kill in the middle of a write may leave
        resumed = walked(**given, out=out, resume=True)
        same_files(tmp_path / "whole", out)
        assert resumed.rounds.tolist() == [0, 5, 10, 12]


def test_what_all_seeds_wrote_is_not_written_again_by_each(tmp_path, monkeypatch):
    """With seeds one after another; clusters.npz takes long here, as with thousands of clients."""
    written = {"rewrite": 0, "clusters": 0}

    def counted(name, seconds):
        write = getattr(results.Folder, name)

        def slowly(self, given):
            written[name] += 1
            time.sleep(seconds)
            write(self, given)

        monkeypatch.setattr(results.Folder, name, slowly)

    counted("rewrite", 0)
    counted("clusters", 0.2)
    walked(seeds=6, seeds_in_one=False, out=tmp_path / "run")
    assert written["rewrite"] == 1 and written["clusters"] <= 3
    monkeypatch.undo()
    walked(seeds=6, out=tmp_path / "together")
    one, other = (results.load(tmp_path / name) for name in ("run", "together"))
    np.testing.assert_array_equal(one.labels, other.labels)


def test_a_finished_run_can_be_prolonged(tmp_path):
    walked(rounds=20, out=tmp_path / "long")
    walked(rounds=10, out=tmp_path / "short")
    timing = json.loads((tmp_path / "short" / "summary.json").read_text())["rounds_per_s"]
    walked(rounds=10, out=tmp_path / "short", resume=True)
    assert json.loads((tmp_path / "short" / "summary.json").read_text())["rounds_per_s"] == timing
    walked(rounds=20, out=tmp_path / "short", resume=True, checkpoint_every="never")
    same_files(tmp_path / "long", tmp_path / "short")
    assert [file.name for file in tmp_path.glob("short/checkpoints/*/*.npz")] == ["10.npz"]


def test_moves_are_counted_since_the_last_evaluation_that_stays(tmp_path):
    given = {"evaluate_every": 4, "evaluate_last": 3, "evaluate_quality": True}
    walked(**given, rounds=8, out=tmp_path / "whole")
    walked(**given, rounds=4, out=tmp_path / "longer")
    with pytest.warns(Notice, match=r"evaluations after rounds \[2, 3\] are left out"):
        walked(**given, rounds=8, out=tmp_path / "longer", resume=True)
    same_files(tmp_path / "whole", tmp_path / "longer")


def test_a_run_that_ends_at_its_checkpoint_is_evaluated_there(tmp_path, monkeypatch):
    """No evaluation was due when it was stopped."""
    monkeypatch.setattr(loop, "BLOCK", 0.0)  # every block is one round
    stop = lambda progress: signal.raise_signal(signal.SIGTERM) if progress.round == 3 else None
    with pytest.raises(loop.Interrupted):
        walked(evaluate_every=12, out=tmp_path / "cut", on_progress=stop)
    for _ in range(2):  # the second time it is in the checkpoint
        walked(evaluate_every=12, rounds=3, out=tmp_path / "cut", resume=True)
    walked(evaluate_every=12, rounds=3, out=tmp_path / "whole")
    same_files(tmp_path / "whole", tmp_path / "cut")


def test_only_what_a_run_calls_is_compiled(tmp_path, monkeypatch):
    """A complete run makes a state to read its own into; one of no rounds trains nothing."""
    compiled, compile = [], programs.compiled_at
    monkeypatch.setattr(programs, "compiled_at", lambda *given: compiled.append(given) or compile(*given))

    def programs_of(**given):
        compiled.clear()
        return walked(**given), len(compiled)

    run, count = programs_of(rounds=2, out=tmp_path / "run", evaluate_every=1)
    again, after = programs_of(rounds=2, out=tmp_path / "run", evaluate_every=1, resume=True)
    assert (count, after) == (3, 1)
    np.testing.assert_array_equal(run["accuracy_micro"], again["accuracy_micro"])
    jax.tree.map(np.testing.assert_array_equal, run.state, again.state)
    assert programs_of(rounds=3, out=tmp_path / "run", evaluate_every=1, resume=True)[1] == 3
    assert programs_of(rounds=0)[1] == 2


def test_folders_that_are_taken_or_hold_another_run(tmp_path):
    walked(out=tmp_path / "run")
    with pytest.raises(InputError, match="already holds a run"):
        walked(out=tmp_path / "run")
    with pytest.raises(InputError, match=r"participation was 1\.0, got 0\.5"):
        walked(out=tmp_path / "run", resume=True, participation=0.5)
    with pytest.raises(InputError, match="no run to resume"):
        walked(out=tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        walked(out=tmp_path / "file")


def test_divergence_names_round_and_cluster_and_leaves_a_readable_folder(tmp_path):
    with pytest.raises(TrainingError, match=r"round 4 \(seed 0\).*cluster 1"):
        walked(method=diverging, evaluate_every=2, out=tmp_path / "run")
    assert results.load(tmp_path / "run").rounds.tolist() == [2]
    assert "round 4" in json.loads((tmp_path / "run" / "summary.json").read_text())["failed"]


def test_nothing_is_written_when_the_plan_fails(tmp_path):
    with pytest.raises(InputError, match="fewer than"):
        experiment.run("quickstart", out=tmp_path / "run", scenario={"name": "rotated", "clients": 100_000})
    assert not (tmp_path / "run").exists()


def test_a_users_module_and_names_together(tmp_path):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    found = experiment.run(
        tiny.federation(), method="majority", model=Net(), train={"lr": 0.5, "steps": 1}, rounds=2, out=tmp_path / "run"
    )
    assert 0 <= found["accuracy_micro"][0, -1] <= 1
    with pytest.raises(InputError, match="was passed in Python; pass it again"):
        planned(config.read(tmp_path / "run" / "config.yaml"))
    whole = {"scenario": {"name": "iid", "clients": 4}, "method": majority(), "model": Net()}
    whole["train"] = local.sgd(lr=0.5)
    _, objects = config_and_objects(whole, {})
    assert (objects.method, objects.model, objects.train) == (whole["method"], whole["model"], whole["train"])
    made, objects = config_and_objects(whole, {"model": "linear", "method": fedavg()})
    assert (made.model.name, objects.model, objects.method) == ("linear", None, fedavg())
    assert experiment.run(whole, rounds=0).rounds.tolist() == [0]


@pytest.mark.parametrize("given", [{"method": 5}, {"model": [5]}, {"train": 0.5}])
def test_a_plain_value_is_no_object(given):
    with pytest.raises(InputError, match=f"{next(iter(given))}: expected a name, or keys and values, got .*5"):
        experiment.run("quickstart", **given)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two methods with two seeds, and their folder."""
    out = tmp_path_factory.mktemp("compared") / "run"
    return walked(seeds=2, compare=["majority"], out=out), out


def test_compared_methods_have_folders_of_their_own(compared):
    found, out = compared
    table = json.loads((out / "comparison.json").read_text())
    assert list(table) == ["walk", "majority"]
    assert table["majority"] == json.loads((out / "runs" / "majority" / "summary.json").read_text())
    assert found.others["majority"].rounds.tolist() == [5, 10, 12]
    assert not (out / "metrics.jsonl").exists()
    again = walked(seeds=2, compare=["majority"], out=out, resume=True)
    np.testing.assert_array_equal(again.others["majority"].labels, found.others["majority"].labels)


def test_the_page_of_files_names_everything_in_a_runs_folder(compared):
    _, out = compared
    page = (Path(__file__).parents[1] / "docs" / "files.md").read_text("utf-8")
    folder = out / "runs" / "majority"
    names = {*metrics.MODELS, "clusterability_clusters", "hostile", "validation", "drift_rounds", "drift_holds"}
    names |= {path.name + "/" * path.is_dir() for path in folder.iterdir()}
    for file in folder.glob("*.npz"):
        names |= set(np.load(file).files)
    names |= set(json.loads((folder / "summary.json").read_text())) - set(metrics.score_names())
    names |= {"tuned", "decided", *yaml.safe_load((folder / "config.yaml").read_text())["made_by"]}
    assert len(names) > 30
    assert not [name for name in names if f"`{name}`" not in page]


def test_a_history_shows_its_last_scores_and_becomes_a_table(compared, monkeypatch):
    found, _ = compared
    line = repr(found)
    assert len(line) < 400 and line.startswith("<History: walk; 2 seeds; round 12; accuracy ") and "majority" in line
    page = found._repr_html_()
    assert page.count("<tr>") == 3 and "<th>majority</th>" in page and " ± " in page
    table = found.to_dataframe()
    assert len(table) == 2 * 2 * found.rounds.size
    one = table[(table["method"] == "walk") & (table["seed"] == 1)]
    np.testing.assert_array_equal(one["round"], found.rounds)
    np.testing.assert_array_equal(one["accuracy_micro"], found["accuracy_micro"][1])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        found.to_dataframe()


def test_a_history_is_asked_for_its_scores_and_compared_by_identity(compared):
    found, federation = compared[0], tiny.federation()
    assert "accuracy_micro" in found and "accuracy" not in found and list(found) == list(found.scores)
    again = copy.deepcopy(found)
    assert found != again and [again, found].index(found) == 1 and len({found, again}) == 2
    assert federation != replace(federation) and len({federation, replace(federation)}) == 2


def test_a_history_shares_no_memory_with_the_federation():
    made = jcfl.data.from_clients(np.ones((16, 4)), np.arange(16) % 2, np.repeat([*"abcd"], 4))
    history = jcfl.run(made, method="majority", model="linear", rounds=0)
    history.clients[0] = "z"
    assert made.clients.tolist() == [*"abcd"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("jax_default_prng_impl", "rbg"),
        ("jax_disable_jit", True),
        ("jax_numpy_dtype_promotion", "strict"),
        ("jax_numpy_rank_promotion", "raise"),
        ("jax_transfer_guard", "disallow"),
    ],
)
def test_settings_of_jax_that_rounds_cannot_have_are_refused(setting, value):
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        with pytest.raises(InputError, match=rf"{setting} is {value!r}, and jcfl needs"):
            walked(rounds=1)
    finally:
        jax.config.update(setting, before)


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path):
    thread = threading.Thread(target=lambda: walked(out=tmp_path / "run"))
    thread.start()
    thread.join()
    assert (tmp_path / "run" / "summary.json").exists()


def test_handlers_of_a_program_around_python_are_left_alone(monkeypatch):
    """Where R or another program runs Python in itself, `getsignal` has None for a handler of that program."""
    known = signal.getsignal
    before = known(signal.SIGINT), known(signal.SIGTERM)
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGINT else known(number))
    with loop.interruptible(threading.Event(), saving=True):
        assert known(signal.SIGINT) == before[0] and known(signal.SIGTERM) != before[1]
    assert (known(signal.SIGINT), known(signal.SIGTERM)) == before


def test_methods_are_compiled_side_by_side_before_the_first_of_them_trains(monkeypatch):
    family = programs.Family(*[lambda: None] * 3, seconds=8.0)
    order = []
    monkeypatch.setattr(compiled, "begun", lambda run: order.append(f"compile {run}") or (lambda: family))
    monkeypatch.setattr(compiled, "try_out", lambda run: order.append(f"trace {run}"))
    seconds = []
    for run, compiling in compiled.compiled_ahead("abcdef"):
        order.append(f"train {run}")
        seconds.append(compiling().seconds)
    expected = "trace e, trace f, compile a, compile b, compile c, compile d, train a, train b, train c, train d"
    assert ", ".join(order) == f"{expected}, compile e, compile f, train e, train f"
    assert seconds == [2.0] * 4 + [4.0] * 2, "each one's share of the time"


def test_nothing_is_compiled_while_a_method_trains(monkeypatch):
    """All that were begun together are complete before the first trains; one's error is raised when it is its turn."""
    order = []

    def compiling(run):
        order.append(f"compiled {run}")
        if run == "b":
            raise InputError("too large")
        return programs.Family(*[lambda: None] * 3, seconds=1.0)

    monkeypatch.setattr(compiled, "begun", lambda run: lambda: compiling(run))
    ahead = compiled.compiled_ahead("ab")
    _, one = next(ahead)
    assert order == ["compiled a", "compiled b"]
    assert one().seconds == 0.5
    _, two = next(ahead)
    with pytest.raises(InputError, match="too large"):
        two()


def test_a_method_that_cannot_be_traced_is_refused_before_any_trains(tmp_path, monkeypatch):
    """Also one that is compiled after others have trained."""

    def refused(state, federation):
        raise InputError("no such round")

    cannot = lambda context: tiny.built("majority", tiny.setting())._replace(step=refused)
    monkeypatch.setattr(compiled, "AHEAD", 1)
    told = []
    with pytest.raises(InputError, match="no such round"):
        walked(compare=[cannot], out=tmp_path / "run", on_progress=lambda progress: told.append(progress.done))
    assert not any(told) and not (tmp_path / "run").exists()


def test_a_comparison_that_cannot_be_compiled_leaves_no_folder(tmp_path, monkeypatch):
    """The corrected command would find a run in it."""

    def refused():
        raise InputError("too large")

    monkeypatch.setattr(compiled, "begun", lambda run: refused)
    with pytest.raises(InputError, match="too large"):
        walked(compare=["majority"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_shared_model_is_tested_where_one_is_trained():
    """StoCFL with one cluster and λ = 0 trains two copies of one model; held-out clients do not count."""
    data, whole = tiny.federation(held_out=2), {"name": "stocfl", "tau": -1, "lam": 0}
    found = experiment.run(data, method=whole, model="linear", rounds=2, evaluate_shared=True, compare=["fedavg"])
    shared, own = found["accuracy_shared"], found["accuracy_micro"]
    np.testing.assert_allclose(shared, own, atol=1e-6)
    assert "accuracy_shared" not in found.others["fedavg"].scores
    assert "accuracy_shared" not in experiment.run(data, method=whole, model="linear", rounds=2).scores


def with_errors(monkeypatch, errors):
    """Let programs fail to compile, with one of these errors each time as long as there are any."""
    begun = programs.begun

    def tight(*given):
        compiling = begun(*given)

        def wait():
            if errors:
                raise jax.errors.JaxRuntimeError(errors.pop())
            return compiling()

        return wait

    monkeypatch.setattr(programs, "begun", tight)


def test_memory_that_runs_out_halves_the_chunk(tmp_path, monkeypatch):
    """The run goes on with half as many clients at a time, and comes to the same figures; another error ends it."""
    rooms = []

    def walking(context):
        rooms.append(context.resources.room)
        return walk(context)

    calm = experiment.run(tiny.federation(), method=walk, rounds=5, chunk=4, out=tmp_path / "calm")
    errors = ["RESOURCE_EXHAUSTED: Out of memory", "RESOURCE_EXHAUSTED: again"]
    with_errors(monkeypatch, errors)
    given = {"method": walking, "chunk": 4, "out": tmp_path / "tight"}
    found = experiment.run(tiny.federation(), rounds=5, **given)
    assert yaml.safe_load((tmp_path / "tight" / "config.yaml").read_text())["chunk"] == 1
    np.testing.assert_allclose(found["accuracy_micro"], calm["accuracy_micro"], atol=1e-6)
    np.testing.assert_array_equal(found.labels, calm.labels)
    whole, left = rooms[0], rooms[-1]
    assert left == whole // 4
    experiment.run(tiny.federation(), rounds=6, resume=True, **given)
    assert rooms[-1] == left, "a run that goes on has no more memory than it had"
    errors.append("INTERNAL: something else")
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        experiment.run(tiny.federation(), method=walk, rounds=5)


def test_a_comparison_that_goes_on_has_no_more_memory_than_it_had(tmp_path, monkeypatch):
    """Each of its methods has as much as its own folder says."""
    rooms = []

    def walking(context):
        rooms.append((context.resources.room, context.resources.chunk))
        return walk(context)

    with_errors(monkeypatch, ["RESOURCE_EXHAUSTED: Out of memory"])
    given = {"method": walking, "compare": [walk], "chunk": 4, "out": tmp_path / "run"}
    experiment.run(tiny.federation(), rounds=3, **given)
    (whole, four), (half, two) = rooms
    assert (half, four, two) == (whole // 2, 4, 2)
    experiment.run(tiny.federation(), rounds=4, resume=True, **given)
    assert rooms[-1] == (half, two)
    chunk = lambda name: yaml.safe_load((tmp_path / "run" / "runs" / name / "config.yaml").read_text())["chunk"]
    assert (chunk("walking"), chunk("walk")) == (2, 4)


class Other(nn.Module):
    """A module with an option."""

    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.Dense(self.width)(x.reshape(len(x), -1)))


@pytest.mark.parametrize(
    ("section", "before", "after", "said"),
    [
        ("method", stocfl(tau=0.9), stocfl(tau=0.1), r"method\.value\.group was Merge\(tau=0\.9.*got Merge\(tau=0\.1"),
        ("model", Other(3), Other(4), "model.value.width was 3, got 4"),
        ("train", local.sgd(lr=0.1), local.sgd(lr=0.2), "train.value"),
    ],
)
def test_a_run_goes_on_with_the_same_objects_only(tmp_path, section, before, after, said):
    given = {"method": "majority", "model": tiny.task(), "out": tmp_path / "run"}
    found = experiment.run(tiny.federation(), **given | {section: before}, rounds=0)
    assert found.name == ("stocfl" if section == "method" else "majority")
    assert experiment.run(tiny.federation(), **given | {section: before}, rounds=0, resume=True).rounds.tolist() == [0]
    with pytest.raises(InputError, match=said):
        experiment.run(tiny.federation(), **given | {section: after}, rounds=0, resume=True)


def test_methods_to_compare_may_be_objects():
    given = {"model": tiny.task(), "rounds": 1}
    found = experiment.run(tiny.federation(), method="majority", compare=[fedavg(), "majority"], **given)
    alone = experiment.run(tiny.federation(), method="fedavg", **given)
    assert list(found.others) == ["fedavg", "majority-2"]
    np.testing.assert_array_equal(found.others["fedavg"].accuracy_clients, alone.accuracy_clients)


@pytest.mark.parametrize(
    "given", [{"scenario": "dirichlet"}, {"data": "mnist"}, {"scenario": {"name": "given", "held_out": 0.2}}]
)
def test_what_makes_a_federation_is_refused_beside_one(given):
    with pytest.raises(InputError, match=f"{next(iter(given))}.* has no effect beside a federation"):
        experiment.run(tiny.federation(), method="majority", **given)
    with pytest.raises(InputError, match=r"scenario\.held_out has no effect beside a federation"):
        jcfl.sweep(tiny.federation(), {"scenario.held_out": [0, 0.25]}, method="majority")


def test_operations_are_those_of_the_methods_own_training():
    """FedSGD takes one step with all examples, whatever the run's trainer does."""
    given = {"model": tiny.task(), "rounds": 1, "seeds": 1}
    ran = lambda method, train: jcfl.run(tiny.federation(), method=method, train=train, **given)
    flop = lambda method, **train: ran(method, train).summary["costs"]["flop"]
    once = flop("fedavg", epochs=1, batch_size="full")
    assert flop("fedsgd", epochs=5, batch_size=4) == once < flop("fedavg", epochs=5, batch_size=4)


def test_operations_are_those_of_clients_that_train():
    """Two of the eight clients are held out; their examples are never trained on."""
    run = lambda data: jcfl.run(data, method="fedavg", model=tiny.task(), rounds=1, seeds=1)
    whole, part = tiny.federation(), tiny.federation(held_out=2)
    flop = [run(data).summary["costs"]["flop"] for data in (whole, part)]
    sizes = whole.train.size
    assert flop[1] / flop[0] == pytest.approx(sizes[:-2].mean() / sizes.mean())
