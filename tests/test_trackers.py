"""Trackers: what they are told, once; event files and stores read back."""

import importlib.util
import json
import sys
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl import registry
from jcfl.core.context import Context
from jcfl.core.rounds import initial
from jcfl.errors import InputError, Notice, TrainingError
from jcfl.runs import config, experiment, hosts, loop, sweeping, trackers
from jcfl.types import Algorithm
from tests import tiny


def walk(*, drift: float = 1.0) -> Callable[[Context], Algorithm]:
    """A model of one number that drifts; beyond 50 it fails in the fourth round."""

    def made(context: Context) -> Algorithm:
        def init(key, federation):
            return initial(key, {"params": jnp.zeros((2, 1))}, {"params": jnp.zeros(1)}, context.population.clients)

        def step(state, federation):
            failed = jnp.where((state.round == 3) & (jnp.asarray(drift) > 50), jnp.array([3, 1]), state.failed)
            model = state.clusters["params"] + drift + jax.random.uniform(state.key)
            return state.replace(clusters={"params": model}, failed=failed.astype(jnp.int32), round=state.round + 1)

        def evaluate(state, federation):
            first = state.clusters["params"][0, 0]
            figures = {"accuracy_micro": first, "purity": jnp.nan, "clusters": jnp.int32(2)}
            return figures | {"labels": state.labels, "accuracy_clients": state.labels * first}

        return Algorithm(init, step, lambda *given: given, evaluate, lambda clusters: {"storage": 1})

    return made


TOLD = []


class Diary:
    """A tracker that writes down what it is told."""

    def __init__(self, title, broken):
        self.title, self.broken = title, broken

    def begin(self, config):
        TOLD.append(("begin", self.title, config["method.drift"]))

    def record(self, round, seed, scores):
        if self.broken:
            raise ConnectionError("no answer")
        TOLD.append((self.title, round, seed, scores["accuracy_micro"]))

    def end(self, summary):
        TOLD.append(("end", self.title, summary.get("failed", "")[:8] if summary else "interrupted"))


@pytest.fixture(autouse=True)
def registered():
    """The walk and the diary, known by name while a test runs."""
    registry.register("method", "walk")(walk)

    def diary(title, folder, *, broken: bool = False):
        """Writes down what it is told."""
        return Diary(title, broken)

    registry.register("track", "diary")(diary)
    TOLD.clear()


def walked(**given):
    given = {"method": "walk", "model": tiny.task(), "rounds": 6, "evaluate_every": 2, "budget": 2**30} | given
    return experiment.run(tiny.federation(), **given)


def test_a_tracker_is_told_what_the_history_holds():
    found = walked(track=["diary"], seeds=2)
    assert TOLD[0] == ("begin", "walk", 1.0)
    assert TOLD[-1] == ("end", "walk", "")
    records = {(round, seed): value for _, round, seed, value in TOLD[1:-1]}
    assert len(records) == len(TOLD) - 2 == 6
    for i, seed in enumerate(found.seeds):
        for j, round in enumerate(found.rounds):
            assert records[round, seed] == found["accuracy_micro"][i, j]


class Silent:
    """A tracker that nobody tells how the run ends."""

    begin = record = print


@pytest.mark.parametrize(
    ("made", "said"),
    [(lambda: None, r"got None, which has no begin and no record and no end"), (Silent, "which has no end")],
)
def test_what_is_no_tracker_is_refused_before_training(made, said):
    registry.register("track", "diary")(lambda title, folder: made())
    with pytest.raises(InputError, match=rf"track 'diary': expected .*begin, record and end .*{said}"):
        walked(track=["diary"])


def test_every_run_has_its_own_and_hears_how_it_ends(tmp_path):
    walked(track=["diary"], compare=[{"name": "walk", "drift": 2.0}])
    assert [told[1] for told in TOLD if told[0] == "begin"] == ["walk", "walk-2"]
    TOLD.clear()
    with pytest.raises(TrainingError):
        walked(track=["diary"], method={"name": "walk", "drift": 60.0})
    assert TOLD[-1] == ("end", "walk", "training")
    TOLD.clear()
    given = {"method": "walk", "model": tiny.task(), "rounds": 6, "evaluate_every": 2, "budget": 2**30}
    sweeping.sweep(tiny.federation(), {"method.drift": [1.0, 60.0]}, track=["diary"], **given)
    assert [told for told in TOLD if told[0] == "end"] == [
        ("end", "drift=1", ""),
        ("end", "drift=60", "training"),
    ]
    assert [told[1] for told in TOLD if told[0] == "drift=60"] == [2]


def test_a_run_that_goes_on_tells_what_is_new(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "BLOCK", 0.0)

    def stop(progress):
        if progress.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walked(track=["diary"], out=tmp_path / "run", checkpoint_every=0, on_progress=stop)
    assert [told[1] for told in TOLD] == ["walk", 2, 4, "walk"]
    assert TOLD[-1] == ("end", "walk", "interrupted")
    TOLD.clear()
    walked(track=["diary"], out=tmp_path / "run", resume=True)
    assert [told[1] for told in TOLD] == ["walk", 6, "walk"]


def test_a_tracker_that_breaks_does_not_end_the_run():
    with pytest.warns(
        Notice, match=r"Diary tracks no more: .*: no answer \(test_trackers.py, line \d+\); the run goes on"
    ):
        found = walked(track=[{"name": "diary", "broken": True}, "diary"])
    assert found.rounds.tolist() == [2, 4, 6]
    assert [told[1] for told in TOLD] == ["walk", "walk", 2, 4, 6, "walk"]


def test_of_several_hosts_the_first_one_tracks(monkeypatch):
    pieces = config.read({"scenario": "iid", "method": "walk", "track": ["diary"]}).track
    assert len(trackers.tracking(pieces, "walk", None).trackers) == 1
    monkeypatch.setattr(hosts, "is_first", lambda: False)
    assert not trackers.tracking(pieces, "walk", None).trackers


class BrokenOff(Exception):
    """What ends a run that should have gone on."""


def test_a_tracker_hears_the_end_whatever_ends_a_run(monkeypatch):
    """A full disk, or a score of the user's that raises, besides divergence and Ctrl-C."""

    def broken(*given):
        raise BrokenOff

    monkeypatch.setattr(loop, "records", broken)
    with pytest.raises(BrokenOff):
        walked(track=["diary"])
    given = {"method": "walk", "model": tiny.task(), "rounds": 6, "evaluate_every": 2, "budget": 2**30}
    with pytest.raises(BrokenOff):
        sweeping.sweep(tiny.federation(), {"method.drift": [1.0, 2.0]}, track=["diary"], **given)
    ends = [told for told in TOLD if told[0] == "end"]
    assert sorted(ends) == [("end", name, "interrupted") for name in ("drift=1", "drift=2", "walk")]


def test_what_was_sent_stays_known_after_two_stops(tmp_path, monkeypatch):
    """The first stop left evaluations that no checkpoint has; the second one comes before they are made again."""
    monkeypatch.setattr(loop, "BLOCK", 0.0)
    given = {"track": ["diary"], "evaluate_every": 1, "checkpoint_every": 3600, "out": tmp_path / "run"}

    def cut(at):
        def stop(progress):
            if progress.round == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            walked(on_progress=stop, resume=(tmp_path / "run").exists(), **given)

    cut(3)
    cut(1)
    TOLD.clear()
    walked(resume=True, **given)
    assert [told[1] for told in TOLD if told[0] == "walk"] == [4, 5, 6]


def test_mistakes(tmp_path, monkeypatch):
    for track, said in (
        (["tensorbord"], "did you mean 'tensorboard'"),
        ([{"name": "mlflow", "url": "x"}], "did you mean 'uri'"),
        ([{"name": "wandb", "mode": "offlin"}], "mode"),
    ):
        with pytest.raises(InputError, match=said):
            walked(track=track, out=tmp_path / "run")
    for name, module in (("tensorboard", "tensorboardX"), ("mlflow", "mlflow"), ("wandb", "wandb")):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
        with pytest.raises(InputError, match=rf'pip install "jcfl\[{name}\]"'):
            walked(track=[name], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_have_dotted_names():
    text = {"data": "digits", "scenario": {"name": "rotated", "angles": [0, 90]}, "method": "ifca"}
    text["method"] = {"name": "ifca", "addons": [{"name": "cks", "lam": 0.5}]}
    table = config.read(text).flat()
    assert table["method.addons.0.lam"] == 0.5
    assert table["scenario.angles"] == [0, 90]
    assert table["rounds"] == 100
    assert not any(key.startswith("made_by") for key in table)


def needs(module):
    """Skip without an optional package."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def test_tensorboard_event_files_hold_every_score(tmp_path):
    needs("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    found = walked(track=["tensorboard"], seeds=2, out=tmp_path / "run")
    with pytest.raises(InputError, match="give out="):
        walked(track=["tensorboard"])
    for i, seed in enumerate(found.seeds):
        (file,) = (tmp_path / "run" / "tensorboard" / f"seed-{seed}").iterdir()
        values, texts = {}, []
        for message in messages(file.read_bytes()):
            event = Event.FromString(message)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    values[value.tag, event.step] = value.simple_value
                else:
                    texts.append(value.tensor.string_val[0].decode())
        assert set(values) == {(name, round) for name in ("accuracy_micro", "clusters") for round in (2, 4, 6)}
        for j, round in enumerate((2, 4, 6)):
            assert values["accuracy_micro", round] == np.float32(found["accuracy_micro"][i, j])
        assert "| method.drift | 1.0 |" in texts[0]


def messages(content: bytes):
    """The records of an event file: length, its checksum, as many bytes, their checksum."""
    at = 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        yield content[at + 12 : at + 12 + size]
        at += size + 16


class Store:
    """MLflow and Weights & Biases in memory: how the runs of each ended, by id."""

    def __init__(self):
        self.ended, self.entities = {}, types.SimpleNamespace(Param=tuple_of, Metric=tuple_of)

    def MlflowClient(self, tracking_uri):
        return self

    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id="1")

    def create_run(self, place, run_name, tags):
        return self.info(self.open(f"run of {run_name}"))

    def get_run(self, run):
        return self.info(run)

    def info(self, run):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run, status=self.ended[run]))

    def log_batch(self, run, **given):
        assert self.ended[run] == "RUNNING"

    def update_run(self, run, status):
        self.ended[run] = status

    def set_terminated(self, run, status):
        self.ended[run] = status

    def init(self, *, id, **given):
        self.open(id)
        finish = lambda exit_code: self.ended.update({id: exit_code})
        return types.SimpleNamespace(log=lambda scores, step: None, finish=finish)

    def open(self, run):
        self.ended[run] = "RUNNING"
        return run


def tuple_of(*given):
    return given


@pytest.mark.parametrize(("name", "broken", "done"), [("mlflow", "KILLED", "FINISHED"), ("wandb", 1, 0)])
def test_seeds_that_had_ended_before_a_stop_are_finished_with_the_run(tmp_path, monkeypatch, name, broken, done):
    """The resumed run has no new score of seed 0, which was all sent before seed 1 was interrupted."""
    monkeypatch.setitem(sys.modules, name, store := Store())
    given = {"track": [name], "seeds": 2, "seeds_in_one": False, "checkpoint_every": 0, "out": tmp_path / "run"}

    def stop(progress):
        if progress.seed == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walked(on_progress=stop, **given)
    assert set(store.ended.values()) == {broken}
    walked(resume=True, **given)
    assert [*store.ended.values()] == [done, done]


def test_mlflow_store_holds_every_score(tmp_path):
    for module in ("mlflow", "sqlalchemy", "alembic"):
        needs(module)
    import mlflow

    uri = f"sqlite:///{tmp_path}/store.db"
    track = [{"name": "mlflow", "uri": uri, "experiment": "walks"}]
    found = walked(track=track, seeds=2, out=tmp_path / "run")
    walked(track=track, seeds=2, rounds=8, out=tmp_path / "run", resume=True)
    with pytest.raises(TrainingError):
        walked(track=track, method={"name": "walk", "drift": 60.0})
    client = mlflow.MlflowClient(tracking_uri=uri)
    place = client.get_experiment_by_name("walks").experiment_id
    runs = {(run.info.run_name, run.info.status): run for run in client.search_runs([place])}
    assert set(runs) == {("walk seed 0", "FINISHED"), ("walk seed 1", "FINISHED"), ("walk seed 0", "FAILED")}
    for i, seed in enumerate(found.seeds):
        run = runs[f"walk seed {seed}", "FINISHED"]
        history = client.get_metric_history(run.info.run_id, "accuracy_micro")
        assert [metric.step for metric in history] == [2, 4, 6, 8]
        np.testing.assert_allclose([m.value for m in history[:3]], found["accuracy_micro"][i])
        assert run.data.params["method.drift"] == "1.0"
        assert run.data.tags["seed"] == str(seed)
        assert "purity" not in run.data.metrics
    with pytest.raises(InputError, match="mlflow cannot open"):
        walked(track=[{"name": "mlflow", "uri": "nonsense://x"}], out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_wandb_is_told_every_score(tmp_path, monkeypatch):
    needs("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    walked(track=[{"name": "wandb", "mode": "offline"}], seeds=2, out=tmp_path / "run")
    ids = json.loads((tmp_path / "run" / "wandb.json").read_text())
    assert set(ids) == {"0", "1"}
    written = sorted(path.name for path in (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert written == sorted(f"run-{id}.wandb" for id in ids.values())
