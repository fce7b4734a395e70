"""A run's folder: one writer, nothing lost without a word, damage found, and always something to go on from."""

import copy
import errno
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from jcfl import results
from jcfl.errors import InputError, Notice, Unwritable
from jcfl.results import checkpoints, npz, writer
from jcfl.results.files import CHECKSUMS, Version
from jcfl.runs import environment, experiment, loop, programs, provenance, sweeping, verifying
from jcfl.runs.config import read as read_config
from jcfl.runs.one_method import with_tuned
from jcfl.runs.plan import config_and_objects, planned
from jcfl.runs.sections import Tuned
from tests import folders, tiny
from tests.test_experiment import files as figures
from tests.test_experiment import same_files, walk

pytestmark = pytest.mark.filterwarnings("ignore::jcfl.errors.Notice")

ROUNDS = 12
PLACEHOLDER = {"method": walk, "model": tiny.task(), "rounds": ROUNDS, "evaluate_every": 5}
SEEDS = {"seeds": 2, "seeds_in_one": False}


@pytest.fixture(autouse=True, scope="module")
def compiled_once():
    """Runs of this file share their programs, and do not compute what figures need of a federation."""
    begun = programs.begun
    shared = functools.cache(lambda lanes: begun(walk(setting()), jax.device_put(tiny.federation()), lanes)())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "BLOCK", 0.0)  # every block is one round,
        patch.setattr(loop.Stopwatch, "due", lambda watch: True)  # and ends with a checkpoint
        patch.setattr(programs, "begun", lambda algorithm, federation, lanes, *how: lambda: shared(lanes))
        patch.setattr(experiment, "representation", lambda plan: folders.federation())
        yield


def setting():
    return tiny.setting().context


def walked(out, federation=None, **given):
    return experiment.run(federation or tiny.federation(), **(PLACEHOLDER | given), out=out)


def stopped(out, blocks, **given):
    """A run that is told to stop after so many blocks of one round."""
    calls = []

    def stop(progress):
        calls.append(progress)
        if len(calls) == blocks:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(loop.Interrupted):
        walked(out, on_progress=stop, **given)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders to copy: of a run that is complete, and of one that was stopped in its second seed."""
    place = tmp_path_factory.mktemp("made")
    walked(place / "whole", **SEEDS)
    stopped(place / "cut", ROUNDS + 9, **SEEDS)
    return place


@pytest.fixture
def whole(made, tmp_path):
    return Path(shutil.copytree(made / "whole", tmp_path / "whole"))


@pytest.fixture
def cut(made, tmp_path):
    return Path(shutil.copytree(made / "cut", tmp_path / "cut"))


def files_in(folder):
    """The bytes of a folder's files, without the lock's."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name not in IGNORED}


def newest(folder):
    return max(folder.glob("checkpoints/seeds-1-1/*.npz"), key=lambda file: int(file.stem))


# One writer


def test_a_folder_has_one_writer(tmp_path):
    """The second one is told who the first is, also where that is another process; a dead one holds nothing."""
    hold = "import sys, time; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire()"
    command = [sys.executable, "-c", f"{hold}; print(1, flush=True); time.sleep(60)", str(tmp_path / writer.LOCK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        (tmp_path / writer.HOLDER).write_text(json.dumps({"pid": other.pid, "host": "far", "since": "noon"}))
        with pytest.raises(InputError, match=f"is being written by process {other.pid} on far since noon; wait"):
            walked(tmp_path)
        other.kill()
    with (
        writer.claimed(tmp_path, new=True),
        pytest.raises(InputError, match=f"written by process {os.getpid()}"),
        writer.claimed(tmp_path, new=False),
    ):
        pass


def test_a_run_holds_its_folder_while_it_trains(tmp_path):
    def again(progress):
        with pytest.raises(InputError, match="is being written by"):
            walked(tmp_path / "run", resume=True)

    walked(tmp_path / "run", on_progress=again, rounds=1)
    assert not (tmp_path / "run" / writer.HOLDER).exists()
    walked(tmp_path / "run", resume=True, rounds=2)


def test_numbered_folders_are_taken_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: writer.numbered("name")[0], range(20)))
    assert sorted(found) == sorted(Path("runs") / f"name-{i}" for i in range(1, 21))


def test_who_is_refused_leaves_the_folder_to_who_has_just_begun(tmp_path, monkeypatch):
    """Both found that there is no folder, and the lock has not yet said by whom it is held."""
    place = tmp_path / "run"
    with writer.claimed(place, new=True):
        (place / writer.HOLDER).unlink()
        monkeypatch.setattr(writer, "missing", lambda folder: [folder])
        with pytest.raises(InputError, match="is being written"), writer.claimed(place, new=False):
            pass
        assert [file.name for file in place.iterdir()] == [writer.LOCK]
    assert not place.exists()


def test_what_is_not_written_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), writer.claimed(tmp_path / "a" / "b", new=True):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


# Nothing is lost without a word


@pytest.mark.parametrize(("name", "taken"), [(".lock.json", False), ("notes.txt", True)])
def test_a_comparison_that_was_killed_before_it_wrote_anything_can_begin_again(tmp_path, name, taken):
    """It leaves the locks of its runs, as when memory ran out while it was compiled."""
    (tmp_path / "out" / "runs" / "fedavg").mkdir(parents=True)
    for place in (tmp_path / "out", tmp_path / "out" / "runs" / "fedavg"):
        (place / ".lock").touch()
    (tmp_path / "out" / "runs" / "fedavg" / name).touch()
    if taken:
        with pytest.raises(InputError, match="already holds a run"):
            writer.refuse_taken(tmp_path / "out")
    else:
        with writer.claimed(tmp_path / "out", new=True):
            pass


def test_fewer_rounds_than_done_are_refused(whole, cut):
    before = figures(whole)[0]
    with pytest.raises(InputError, match=rf"{whole} already has 12 rounds, and rounds=5 would delete the last 7"):
        walked(whole, resume=True, rounds=5, **SEEDS)
    with pytest.raises(InputError, match="12 rounds"):
        walked(cut, resume=True, rounds=10, **SEEDS)  # one of the seeds has come farther
    assert figures(whole)[0] == before
    assert yaml.safe_load((whole / "config.yaml").read_text())["rounds"] == ROUNDS


def test_rounds_that_would_leave_out_an_evaluation_are_refused(tmp_path):
    """The last five rounds of ten are 6 to 10, and round 6 was over before anybody wanted its evaluation."""
    given = {"evaluate_last": 5, "evaluate_every": 5}
    stopped(tmp_path / "run", 1 + 7, rounds=20, **given)
    with pytest.raises(InputError, match=r"rounds=10 .* needs evaluations after rounds \[6\], .* give at least 11"):
        walked(tmp_path / "run", resume=True, rounds=10, **given)
    found = walked(tmp_path / "run", resume=True, rounds=11, **given)
    assert found.rounds.tolist() == [5, 7, 8, 9, 10, 11] and found.summary["mean_of_last"]["rounds"] == 5
    walked(tmp_path / "run", resume=True, rounds=12, **given)  # 8 to 12, which were all evaluated


def test_a_complete_run_without_checkpoints_is_not_trained_again(made, tmp_path, monkeypatch):
    given = {"checkpoint_every": "never", **SEEDS}
    walked(tmp_path, **given)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with monkeypatch.context() as patch, pytest.warns(Notice, match=r"history\.state is None"):
        patch.setattr(experiment, "train", None)
        found = walked(tmp_path, resume=True, **given)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert found.summary == json.loads(before["summary.json"]) and found.name == "walk" and found.state is None
    other = tiny.federation()
    with pytest.raises(InputError, match="made with another federation"):
        walked(tmp_path, other.replace(x=other.x + 1), resume=True, **given)
    with pytest.warns(Notice, match=rf"{tmp_path} has no checkpoint to go on from; training begins again"):
        stopped(tmp_path, 4, resume=True, **given | {"rounds": 15})
    walked(tmp_path, resume=True, **given)  # its summary is of rounds that are no longer there
    same_files(tmp_path, made / "whole")


def test_what_is_complete_without_checkpoints_is_not_joined_by_runs_of_other_settings_or_versions(
    tmp_path, monkeypatch
):
    """A comparison, or a sweep, would put numbers side by side that were drawn otherwise."""
    given = {"model": "linear", "method": "majority", "rounds": 0, "checkpoint_every": "never"}
    compared = given | {"compare": [{"name": "majority", "label": "two"}], "out": tmp_path / "compared"}
    swept = given | {"over": {"train.lr": [0.1, 0.2]}, "out": tmp_path / "swept"}
    for run, more, last in ((experiment.run, compared, "two"), (sweeping.sweep, swept, "lr=0.2")):
        run(tiny.federation(), **more)
        shutil.rmtree(more["out"] / "runs" / last)  # as if it had been stopped before this one
        with jax.threefry_partitionable(False), pytest.raises(InputError, match="other settings of JAX: jax_threefry"):
            run(tiny.federation(), resume=True, **more)
        with monkeypatch.context() as patch:
            now = environment.version
            patch.setattr(environment, "version", lambda package, now=now: "9" if package == "jax" else now(package))
            with pytest.raises(InputError, match=r"by other versions: jax was .*, got 9; "):
                run(tiny.federation(), resume=True, **more)
            run(tiny.federation(), resume=True, allow_versions=True, **more)
        assert (more["out"] / "runs" / last / "summary.json").exists()


def test_a_complete_run_whose_checkpoints_are_older_is_not_trained_again(whole, monkeypatch):
    """It went on without checkpoints. Trained again from the last one and stopped, it would be incomplete."""
    more = {"rounds": 15, "resume": True, **SEEDS}
    walked(whole, checkpoint_every="never", **more)
    before = files_in(whole)
    with monkeypatch.context() as patch, pytest.warns(Notice, match=r"history\.state is None"):
        patch.setattr(experiment, "train", None)
        assert walked(whole, **more).rounds.tolist() == [5, 10, 15]
    assert files_in(whole) == before
    assert walked(whole, resume=True, rounds=16, **SEEDS).rounds.tolist() == [5, 10, 15, 16]  # from the checkpoint


def test_a_run_that_begins_again_writes_anew_what_its_clients_hold(tmp_path, monkeypatch):
    """It has no checkpoint that says of what federation it was, and may have another one now."""
    given = {"checkpoint_every": "never", **SEEDS}
    stopped(tmp_path, 4, **given)
    now = folders.federation(folders.GROUPS[::-1])
    monkeypatch.setattr(experiment, "representation", lambda plan: now)
    found = walked(tmp_path, resume=True, **given)
    np.testing.assert_array_equal(results.federation(found)["groups"], now["groups"])


def test_an_interruption_says_where_a_run_goes_on(tmp_path):
    for every, says in ((0, "goes on where it was"), ("never", "begins again, because checkpoint_every is never")):
        with pytest.raises(loop.Interrupted, match=says):
            walked(
                tmp_path / str(every), checkpoint_every=every, on_progress=lambda _: signal.raise_signal(signal.SIGTERM)
            )


@pytest.mark.parametrize("name", ["metrics.jsonl", "clusters.npz", "federation.npz", "summary.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["delete", "empty"])
def test_what_is_lost_is_said_and_made_again(made, whole, cut, name, damage):
    for folder in (whole, cut):
        there = (folder / name).exists()
        (folder / name).write_text("")
        if damage == "delete":
            (folder / name).unlink()
        said = Notice if there else None
        with pytest.warns(said, match=name) if said else nothing():
            walked(folder, resume=True, **SEEDS)
        same_files(folder, made / "whole")
        assert results.federation(results.load(folder))["compared"].size
        assert not verifying.files(folder)[0].faults


class nothing:
    def __enter__(self):
        pass

    def __exit__(self, *given):
        pass


def test_an_evaluation_that_a_longer_run_would_not_have_is_left_out_with_a_word(whole):
    with pytest.warns(Notice, match=r"evaluations after rounds \[12\] are left out"):
        found = walked(whole, resume=True, rounds=15, **SEEDS)
    assert found.rounds.tolist() == [5, 10, 15]


# State is tied to what made it


def edited(folder, old, new):
    text = (folder / "config.yaml").read_text()
    assert old in text
    (folder / "config.yaml").write_text(text.replace(old, new))


def test_an_edited_configuration_is_refused_by_its_keys(whole):
    edited(whole, "lr: 0.1", "lr: 0.5")
    for lr in (0.1, 0.5):
        with pytest.raises(InputError, match=r"config\.yaml was changed.*: train\.lr was 0\.1, got 0\.5"):
            walked(whole, resume=True, train={"lr": lr}, **SEEDS)
    (whole / "checksums.json").unlink()  # nor is the checkpoint taken on by another configuration's run
    with pytest.raises(InputError, match=r"another configuration: train\.lr was 0\.1, got 0\.5"):
        walked(whole, resume=True, train={"lr": 0.5}, **SEEDS)
    for name in ("config.yaml", "metrics.jsonl"):
        (whole / name).unlink()
    with pytest.raises(InputError, match=r"train\.lr was 0\.1, got 0\.5"):
        walked(whole, resume=True, train={"lr": 0.5}, **SEEDS)
    with pytest.raises(InputError, match="already holds a run"):
        walked(whole, train={"lr": 0.5}, **SEEDS)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("name: stocfl", "name: mine", r"unknown method 'mine'.*; a piece of your own .* jcfl\.run\("),
        ("lr: 0.1", "lr: -1", r"config\.yaml: train 'sgd': lr: input should be greater than 0, got -1$"),
    ],
    ids=["name", "option"],
)
def test_only_an_unknown_name_may_be_a_piece_of_the_users(tmp_path, old, new, says):
    (tmp_path / "config.yaml").write_text(read_config("quickstart").text())
    edited(tmp_path, old, new)
    with pytest.raises(InputError, match=says):
        experiment.configuration(tmp_path)


def test_keys_that_a_resumed_run_cannot_take_over_are_not_dropped_silently(tmp_path):
    given = {"scenario": "iid", "method": "fedavg", "seeds": 2, "seeds_in_one": True, "chunk": 4, "budget": 2**20}
    config = read_config(given)
    (tmp_path / "config.yaml").write_text(config.text())
    for same in ({}, {"seeds_in_one": None, "chunk": None, "budget": None}, {"client_states": "device"}, {"chunk": 9}):
        with warnings.catch_warnings(action="error"):
            found = experiment.resumed(tmp_path, config.model_copy(update=same))
        assert (found.seeds_in_one, found.chunk) == (True, 4)
    for key, value, says in (
        ("seeds_in_one", False, "seeds_in_one was True, got False: the seeds began side by side and stay so"),
        ("client_states", "host", "client_states: host .* the seeds of this run began side by side and stay so"),
    ):
        with pytest.raises(InputError, match=says):
            experiment.resumed(tmp_path, config.model_copy(update={key: value}))
    with pytest.warns(Notice, match="chunk=2 has no effect: the run goes on with chunk=4"):
        assert experiment.resumed(tmp_path, config.model_copy(update={"chunk": 2})).chunk == 4
    with pytest.warns(Notice, match="devices=1: the run began with as many as it chose, .* to rounding only"):
        assert experiment.resumed(tmp_path, config.model_copy(update={"devices": 1})).devices == 1


def test_a_run_that_gets_fewer_devices_than_it_had_says_so(monkeypatch):
    plan = planned(*config_and_objects("quickstart", {"compare": [], "method": "fedavg", "devices": 1}))
    monkeypatch.setattr("jax.device_count", lambda: 1)
    with pytest.warns(Notice, match=r"had 4 devices, and 1 are here, .* rounding only; jcfl.use_cores"):
        assert with_tuned(plan, Tuned(devices=4)).context.resources.devices == 1


def test_a_configuration_that_is_gone_is_taken_from_a_checkpoint(made, cut):
    (cut / "config.yaml").unlink()
    with pytest.warns(Notice, match=r"config\.yaml.*in a checkpoint is taken"):
        walked(cut, resume=True, **SEEDS)
    same_files(cut, made / "whole")
    assert yaml.safe_load((cut / "config.yaml").read_text())["train"]["lr"] == 0.1


def test_another_federation_is_refused(whole, monkeypatch):
    other = tiny.federation()
    other = other.replace(x=np.where(np.arange(len(other.x))[:, None, None, None] == 7, other.x + 0.5, other.x))
    with pytest.raises(InputError, match=f"{whole} was made with another federation.* files of the dataset"):
        walked(whole, other, resume=True, **SEEDS)
    now = environment.version
    monkeypatch.setattr(environment, "version", lambda package: "9.9" if package == "jcfl" else now(package))
    for given in ({}, {"allow_versions": True}):  # which may have drawn the clients otherwise
        with pytest.raises(InputError, match=r"another federation.* by other versions: jcfl was .*, got 9\.9"):
            walked(whole, other, resume=True, **given, **SEEDS)


def test_other_versions_are_refused_or_noted(whole, monkeypatch):
    then = environment.version("jax")
    now = environment.version
    monkeypatch.setattr(environment, "version", lambda package: "9.9" if package == "jax" else now(package))
    with pytest.raises(InputError, match=rf"other versions: jax was {re.escape(then)}, got 9\.9; .*--allow-versions"):
        walked(whole, resume=True, **SEEDS)
    walked(whole, resume=True, rounds=15, allow_versions=True, **SEEDS)
    stored = yaml.safe_load((whole / "config.yaml").read_text())["made_by"]
    assert stored["versions"]["jax"] == "9.9"
    assert [one["versions"]["jax"] for one in stored["earlier"]] == [then]
    walked(whole, resume=True, rounds=15, **SEEDS)  # what goes on now was made by these versions
    assert len(yaml.safe_load((whole / "config.yaml").read_text())["made_by"]["earlier"]) == 1


def test_other_settings_of_jax_are_refused(whole):
    """They change every random number, so the run would go on with other cohorts and batches."""
    with (
        jax.threefry_partitionable(False),
        pytest.raises(InputError, match=r"other settings of JAX: jax_threefry_partitionable was True, got False"),
    ):
        walked(whole, resume=True, rounds=15, **SEEDS)


def test_fingerprints_tell_federations_apart():
    one = tiny.federation()
    assert provenance.fingerprint(one) == provenance.fingerprint(jax.device_put(one))
    assert provenance.fingerprint(one) != provenance.fingerprint(one.replace(groups=one.groups[::-1]))


def test_a_checkpoint_of_an_older_jcfl_goes_on_with_new_options_at_their_defaults():
    """An option that was added since is not in what the older one stored."""
    config = read_config({"data": "digits", "scenario": {"name": "rotated", "clients": 8}, "method": "fedavg"})
    new = provenance.provenance(config, None, "the same clients")
    old = copy.deepcopy(new)
    del old["config"]["stop"], old["config"]["scenario"]["mixing"]
    provenance.refuse_other("runs/a", old, new, allow_versions=False)
    other = provenance.provenance(read_config({**config.model_dump(), "stop": "converged"}), None, "the same clients")
    with pytest.raises(InputError, match=r"another configuration: stop\.name was none, got converged"):
        provenance.refuse_other("runs/a", old, other, allow_versions=False)
    old["config"]["gone"] = 1
    with pytest.raises(InputError, match=r"gone was 1, got nothing"):
        provenance.refuse_other("runs/a", old, new, allow_versions=False)


# Damage


def test_a_damaged_checkpoint_is_passed_over(made, cut):
    file = newest(cut)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.warns(Notice, match=rf"{file} is damaged: .*its checksum differs; .*of round 6"):
        walked(cut, resume=True, **SEEDS)
    same_files(cut, made / "whole")


def test_without_checksums_files_are_taken_as_they_are_except_broken_ones(made, cut):
    """A checkpoint whose state is broken is found though what stands beside the state can be read."""
    (cut / CHECKSUMS).unlink()
    file = newest(cut)
    data = bytearray(file.read_bytes())
    data[data.index(b"\x93NUMPY", data.index(b"state.clusters")) + 130] ^= 1  # behind the array's header
    file.write_bytes(data)
    with (
        pytest.warns(Notice, match=rf"{file} is damaged: it cannot be read to its end; .*of round 6"),
        pytest.warns(Notice, match=rf"{CHECKSUMS} is missing; it is written again"),
    ):
        walked(cut, resume=True, **SEEDS)
    same_files(cut, made / "whole")
    found = verifying.files(cut)[0]
    assert (found.number, found.faults) == (verifying.files(made / "whole")[0].number, {})
    stranger = newest(cut).with_name("1.npz")
    stranger.write_bytes(b"")
    assert verifying.files(cut)[0].faults == {str(stranger.relative_to(cut)): "has no checksum"}


def test_a_folder_of_runs_without_files_of_its_own_is_as_sound_as_they_are(whole, tmp_path):
    """So are the folders below a table's: jcfl reproduce writes runs only."""
    shutil.copytree(whole, tmp_path / "runs" / "one")
    assert [(one.path.name, one.faults) for one in verifying.files(tmp_path)] == [("one", {})]
    (tmp_path / "config.yaml").write_text("")
    assert verifying.files(tmp_path)[0].faults == {CHECKSUMS: "is missing"}


def test_a_file_that_may_not_be_read_is_not_called_damaged(whole, monkeypatch):
    """Resuming would replace it. The superuser may read all files, so the refusal is made here."""
    before = figures(whole)[0]

    def refused(path, *given):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("jcfl.results.files.digest", refused)
    for act in (lambda: walked(whole, resume=True, **SEEDS), lambda: verifying.files(whole)):
        with pytest.raises(InputError, match="cannot be read: Permission denied"):
            act()
    monkeypatch.undo()
    assert figures(whole)[0] == before


def test_no_sound_checkpoint_ends_in_a_line_and_nothing_is_written(cut):
    before = figures(cut)[0]
    for file in cut.glob("checkpoints/seeds-1-1/*.npz"):
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"7\.npz is damaged: it has \d+ of \d+ bytes; no other.*delete .*seeds-1-1"):
        walked(cut, resume=True, **SEEDS)
    assert figures(cut)[0] == before


def test_checkpoints_of_another_format_are_refused(cut):
    for file in cut.glob("checkpoints/seeds-1-1/*.npz"):
        file.unlink()
    (cut / "checkpoints" / "seeds-1-1" / "9").mkdir()
    with pytest.raises(InputError, match="no checkpoint that this version reads, but '9'"):
        walked(cut, resume=True, **SEEDS)


def test_a_state_of_another_form_is_refused(tmp_path):
    store = checkpoints.Checkpoints(results.Folder(tmp_path), [0])
    state = {"a": jax.numpy.ones((2, 3), jax.numpy.bfloat16), "key": jax.random.key(3), "none": ()}
    store.save(checkpoints.Saved(4, 1.5, {}, []), state)
    again = checkpoints.Checkpoints(results.Folder(tmp_path), [0])
    again.look()
    assert again.sound == {4: checkpoints.Saved(4, 1.5, {}, [])}
    tiny.same(jax.tree.map(tiny.numpy, again.state(4, state)), jax.tree.map(tiny.numpy, state))
    with pytest.raises(InputError, match=r"another run: \['a'\] is uint16\[2, 3\], expected float32\[2, 3\]"):
        again.state(4, state | {"a": jax.numpy.ones((2, 3))})


def read(folder):
    """All that commands read of a folder."""
    found = results.load(folder)
    about = {key: value for key, value in results.settings(found).items() if key != "made_by"}
    arrays = {**found.scores, "labels": found.labels, "each": found.accuracy_clients, "groups": found.groups}
    arrays |= {"rounds": found.rounds, "seeds": found.seeds, **results.federation(found)}
    return repr({key: np.asarray(value).tolist() for key, value in arrays.items()}), found.summary, about


def final(folder):
    """What a run has come to, whoever trained it: its summary without the time that it took."""
    arrays, summary, about = read(folder)
    return arrays, {key: value for key, value in summary.items() if isinstance(value, dict)}, about


def damage(rng, file):
    """Flip a bit, cut, delete or empty a file; returns what was done."""
    data = bytearray(file.read_bytes())
    kind = rng.choice(["flip", "cut", "delete", "empty"] if data else ["delete"])
    at = int(rng.integers(max(len(data), 1)))
    if kind == "delete":
        file.unlink()
        return kind
    if kind == "flip":
        data[at] ^= 1 << rng.integers(8)
    file.write_bytes({"flip": data, "cut": data[:at], "empty": b""}[kind])
    return f"{kind} at {at}"


def outcome(call, folder):
    """What a call returns, or the line in which it names the folder; another exception is a fault."""
    with warnings.catch_warnings(category=Notice, action="ignore"):
        try:
            return call()
        except InputError as error:
            assert str(folder) in str(error)
            return None


CASES = int(os.environ.get("JCFL_FUZZ", "1"))
"""Damages of every file; JCFL_FUZZ=20 makes hundreds."""


@pytest.mark.parametrize("state", ["whole", "cut"])
def test_damage_is_found_or_mended(made, tmp_path, state):
    """Whatever happens to a file, or to two with sound checksums: the same figures, or a line that names the folder."""
    rng = np.random.default_rng(CASES)
    before, expected = read(made / state), final(made / "whole")
    names = sorted(file.relative_to(made / state) for file in (made / state).rglob("*") if file.name not in IGNORED)
    refused = 0
    for name in [name for name in names if (made / state / name).is_file()] * CASES:
        folder = Path(shutil.copytree(made / state, tmp_path / "copy", dirs_exist_ok=True))
        second = names[rng.integers(len(names))] if rng.random() < 0.2 else name
        both = {name} if CHECKSUMS in (name.name, second.name) else {name, second}
        told = [f"{damage(rng, folder / one)} {one}" for one in both if (folder / one).is_file()]
        found = outcome(lambda: read(folder), folder)
        assert found in (None, before), told
        again = outcome(lambda: walked(folder, resume=True, **SEEDS), folder)
        refused += again is None
        if again is not None:
            assert final(folder) == expected, told
            same_files(folder, made / "whole")
            assert not verifying.files(folder)[0].faults, told
        shutil.rmtree(folder)
    assert refused < CASES * len(names) / 2, "most damage can be mended"


IGNORED = {writer.LOCK}


# Every end leaves something to go on from


class Killed(BaseException):
    """The process is no more: nothing is written after this."""


@pytest.mark.parametrize("moment", [1, 2, 3, 4, 5, 6, 14, 41, 88])
def test_a_run_killed_at_any_write_goes_on_to_the_same_figures(made, tmp_path, monkeypatch, moment):
    """At odd moments before the file takes its place, at even ones just after."""
    replace, count = os.replace, []

    def dying(source, target):
        count.append(target)
        if len(count) < moment or (len(count) == moment and moment % 2 == 0):
            replace(source, target)
        if len(count) >= moment:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", dying)
        walked(tmp_path / "run", **SEEDS)
    walked(tmp_path / "run", resume=(tmp_path / "run" / "config.yaml").exists(), **SEEDS)
    same_files(tmp_path / "run", made / "whole")
    assert not verifying.files(tmp_path / "run")[0].faults


def test_what_a_killed_process_wrote_of_a_checkpoint_is_deleted(cut):
    partial = newest(cut).with_name("7.npz.partial")
    partial.write_bytes(b"half of it")
    walked(cut, resume=True, **SEEDS)
    assert not partial.exists()


@pytest.mark.parametrize("was_there", [True, False])
def test_a_file_that_was_not_replaced_is_sound_after_further_writes(tmp_path, was_there):
    """A process is killed between writing the checksum and replacing the file; the next writes other files first."""
    name, killed, later = "clusters.npz", results.Folder(tmp_path), results.Folder(tmp_path)
    if was_there:
        killed.put_text(name, "old")
    (tmp_path / "new").write_text("new")
    killed.checksums.expect(name, Version.of(tmp_path / "new"))
    for text in ("config", "config again"):
        later.put_text("config.yaml", text)
        reader = results.Folder(tmp_path)
        assert reader.has(name) == was_there
        if was_there:
            assert reader.text(name) == "old"
    later.put_text(name, "newer")
    later.settle()
    assert results.Folder(tmp_path).text(name) == "newer"


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(made, tmp_path, monkeypatch):
    save, folder, count = npz.save, tmp_path / "run", [0]

    def full(file, arrays):
        count[0] += 1
        save(file, arrays)
        if count[0] == 7:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(npz, "save", full)
    with pytest.raises(Unwritable, match=r"7\.npz cannot be written: No space left on device"):
        walked(folder, **SEEDS)
    assert not list(folder.rglob("*.partial"))
    assert sorted(file.stem for file in folder.rglob("*.npz") if file.stem.isdigit()) == ["5", "6"]
    walked(folder, resume=True, **SEEDS)
    same_files(folder, made / "whole")
