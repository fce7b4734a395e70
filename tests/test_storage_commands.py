"""What commands say of folders that they cannot write or read, and what `jcfl verify` says of those that they can."""

import functools
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from jcfl import cli, results
from jcfl.cli.app import stopping
from jcfl.errors import InputError, Unwritable
from jcfl.results.files import overwrite
from jcfl.runs import bench, config, experiment, plan, titles, verifying
from jcfl.runs.bench import compiled
from jcfl.runs.sweeping.points import point_names
from jcfl.view import plotting
from tests import folders

SMALL = ["scenario.clients=8", "method.name=majority", "rounds=2", "model=linear", "compare=[]"]
MORE = {
    "run": [],
    "sweep": ["--over", "train.lr=0.1,0.2"],
    "tune": ["--over", "train.lr=0.1,0.2", "--sampler", "grid"],
}


def words(command, out):
    """A command that trains next to nothing."""
    return [command, "quickstart", "-q", "--set", *SMALL, "scenario.validation=0.2", *MORE[command], "--out", str(out)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Copies what a command has written, which is trained once for all tests."""
    place = tmp_path_factory.mktemp("trained")

    @functools.cache
    def original(command):
        assert cli.status(words(command, place / command)) == 0
        return place / command

    return lambda command, out: Path(shutil.copytree(original(command), out))


@pytest.mark.parametrize("name", ["metrics.jsonl", "clusters.npz", "summary.json", "comparison.json", "config.yaml"])
def test_commands_that_read_name_the_file(tmp_path, capsys, name):
    path = folders.run(tmp_path / "both" / "runs" / "one").parents[1]
    folders.run(path / "runs" / "two")
    top = results.Folder(path)
    top.put_json("comparison.json", {"one": {}, "two": {}})
    top.settle()
    file = next(path.rglob(name))
    file.write_bytes(file.read_bytes()[:-5])
    for command in (["report", path], ["plot", path, "--figure", "effect"], ["verify", path]):
        status = cli.status([str(word) for word in command])
        said = capsys.readouterr().err
        if (command[0], name) == ("plot", "comparison.json"):
            assert status in (0, 2)
        assert (status, said.count("\n")) == (2, 1)
        assert str(file) in said


def test_a_page_is_not_made_without_what_is_damaged(tmp_path, capsys):
    file = folders.run(tmp_path / "run") / "federation.npz"
    file.write_bytes(file.read_bytes()[:-5])
    assert cli.status(["report", str(file.parent)]) == 2
    assert f"{file} is damaged" in capsys.readouterr().err
    assert not (file.parent / "report.html").exists()


@pytest.mark.parametrize("name", ["federation.npz", "clusters.npz"])
def test_other_arrays_in_a_file_are_one_line(tmp_path, capsys, name):
    path = folders.run(tmp_path / "run")
    np.savez(path / name, labels=np.zeros(3), accuracy_clients=np.zeros(3), seeds=np.zeros(1), rounds=np.zeros(1))
    (path / "checksums.json").unlink()
    assert cli.status(["plot", str(path), "--figure", "heatmap"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(path) in said


def test_a_sweep_that_goes_on_mends_a_file_that_no_history_is_read_from(tmp_path, trained):
    file = trained("sweep", tmp_path / "sweep") / "runs" / "lr=0.1" / "federation.npz"
    before = file.read_bytes()
    file.write_bytes(before[:-5])
    assert cli.status(["sweep", "-q", "--resume", str(tmp_path / "sweep")]) == 0
    assert cli.status(["verify", str(tmp_path / "sweep")]) == 0


def test_a_full_disk_says_how_to_go_on(tmp_path):
    for ending in ("no$", f"no; once it can be, go on with: jcfl run --resume {tmp_path}$"):
        with pytest.raises(InputError, match=ending), stopping("run", tmp_path):
            raise Unwritable("x cannot be written: no")
        (tmp_path / "config.yaml").touch()


@pytest.fixture
def full():
    """No file can be longer than 64 KiB, as where a disk is full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_figure_and_the_page_that_were_there(tmp_path, monkeypatch, full):
    monkeypatch.setattr("jcfl.view.plotting.histories", lambda folders: {})
    monkeypatch.setattr("jcfl.view.report.page", lambda histories: "new" * 2**16)
    monkeypatch.setattr("jcfl.view.plotting.style.encoded", lambda *given: b"new" * 2**16)
    figure, page = tmp_path / "figure.png", tmp_path / "report.html"
    for file in (figure, page):
        file.write_text("old")
    with pytest.raises(Unwritable, match=r"figure\.png cannot be written: File too large"):
        plotting.save(Figure(), figure)
    assert cli.status(["report", str(tmp_path), "--out", str(page)]) == 2
    assert {file: file.read_text() for file in tmp_path.iterdir()} == {figure: "old", page: "old"}


def test_a_page_goes_where_a_link_leads_and_into_a_pipe(tmp_path):
    (tmp_path / "link").symlink_to("file")
    overwrite(tmp_path / "link", b"page")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"page"
    reading, writing = os.pipe()
    overwrite(Path(f"/dev/fd/{writing}"), b"page")
    os.close(writing)
    assert os.read(reading, 10) == b"page"
    os.close(reading)


def test_two_processes_may_write_one_page_at_a_time(tmp_path, monkeypatch):
    """As two of `jcfl reproduce --only` that end together. One took the other's temporary file for its own."""
    page, move = tmp_path / "page.html", os.replace

    def moved(*names):
        monkeypatch.setattr(os, "replace", move)
        overwrite(page, b"the other's")
        move(*names)

    monkeypatch.setattr(os, "replace", moved)
    overwrite(page, b"one's")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"page.html": b"one's"}


@pytest.mark.parametrize("part", [bench, compiled])
def test_a_bench_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch, full, part):
    monkeypatch.setattr(part, "table", lambda found: "")
    part.write({"cases": []}, tmp_path)
    before = {file: file.read_text() for file in tmp_path.iterdir()}
    with pytest.raises(Unwritable):
        part.write({"cases": ["new" * 2**16]}, tmp_path)
    assert {file: file.read_text() for file in tmp_path.iterdir()} == before


LONG = "a" * 300


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder: its status, and its one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("unmounted/disk")

    def run(*words):
        status = cli.status([str(word) for word in words])
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert {item.name for item in tmp_path.iterdir()} == {"file", "link"}
        return status, said

    return run


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("", "expected a path, got an empty text"),
        (LONG, "aaa cannot be written: File name too long"),
        pytest.param(
            "/proc/x",
            "/proc/x cannot be written: No such file",
            marks=pytest.mark.skipif(not Path("/proc").is_dir(), reason="this system has no /proc"),
        ),
        ("file/x", "file/x cannot be written: file is a file, not a folder"),
        ("file", "file is a file"),
        ("link/x", "link/x cannot be written: link is a link to nothing"),
        ("link", "link is a link to nothing"),
    ],
)
def test_folders_that_cannot_be_written_are_refused_before_training(call, out, said):
    small = ["--set", "scenario.clients=8", "method.name=majority", "compare=[]", "rounds=1"]
    status, line = call("run", "quickstart", *small, "--out", out)
    assert (status, said in line) == (2, True), line
    status, line = call("sweep", "quickstart", *small, "--over", "train.lr=0.1,0.2", "--out", out)
    assert (status, said in line) == (2, True), line


@pytest.mark.parametrize("out", ["file/x", "file"])
def test_folders_that_cannot_be_made_are_refused_before_planning(out, call, monkeypatch):
    """Reading the data and choosing options can take minutes."""
    for place in (experiment, plan):
        monkeypatch.setattr(place, "planned", None)
    assert call("run", "quickstart", "--out", out)[0] == 2
    with pytest.raises(InputError, match="file is a file"):
        experiment.run("quickstart", out=out)


@pytest.mark.parametrize(
    ("name", "holds", "other", "how"),
    [
        ("sweep.yaml", "a sweep", "run", "jcfl sweep --resume it"),
        ("tune.json", "a search", "run", "the jcfl tune command that began it"),
        ("config.yaml", "a run", "sweep", "jcfl run --resume it"),
    ],
)
def test_what_a_folder_holds_is_said_with_the_command_that_goes_on(
    tmp_path, monkeypatch, capsys, name, holds, other, how
):
    monkeypatch.chdir(tmp_path)
    Path("it").mkdir()
    Path("it", name).write_text("{}")
    for words, said in (
        (("run", "quickstart", "--out", "it"), f"it already holds {holds}; go on with it by {how}"),
        ((other, "--resume", "it"), f"holds no {other} to resume"),
        ((other, "--resume", "it"), f"it holds {holds}; go on with it by {how}"),
    ):
        assert cli.status([*words]) == 2
        assert said in capsys.readouterr().err


def test_words_may_be_long(call):
    """They are looked for as files, which a name of more than 255 bytes cannot be."""
    labels = ", ".join(f"{{name: fedavg, label: {'x' * 30}{i}}}" for i in range(11))
    assert "unknown key 'rond'" in call("run", "quickstart", "--set", "seed=1", f"compare=[{labels}]", "rond=1")[1]
    assert "unknown preset" in call("run", LONG)[1]


@pytest.mark.parametrize("label", ["..", ".", ".hidden", "x" * 101])
def test_titles_that_are_no_names_of_folders_are_refused(call, label):
    status, line = call("run", "quickstart", "--set", f"compare=[{{name: fedavg, label: {label}}}]")
    assert status == 2
    assert f"{label!r} cannot be the name of a folder" in line


def test_titles_are_unique():
    compare = ["fedavg", {"name": "majority", "label": "fedavg-2"}, {"name": "local", "label": "FedAvg"}]
    given = {"scenario": "rotated", "method": "fedavg", "compare": compare}
    methods = config.read(given).methods
    assert {title: method.name for title, method in methods.items()} == {
        "fedavg": "fedavg", "fedavg-3": "fedavg", "fedavg-2": "majority", "FedAvg-4": "local",
    }  # fmt: skip
    assert len(set(point_names([{"x": 1}, {"x": 1.0}, {"x": "1-2"}]))) == 3
    assert len(point_names([{"x": "ü" * 300}])[0].encode()) <= titles.LONGEST


def test_verify_says_what_holds(tmp_path, trained, capsys, monkeypatch):
    out = trained("run", tmp_path / "run")
    assert cli.status(["verify", str(out), "--rerun"]) == 0
    said = capsys.readouterr().out
    assert "as written" in said
    assert "the same metrics, bit for bit" in said
    monkeypatch.setattr(verifying, "repeat", lambda path, again, *rest: shutil.copytree(tmp_path / "then", again))
    shutil.copytree(out, tmp_path / "then")
    folder = results.Folder(out)
    for name, old, new in (
        ("metrics.jsonl", 'micro": 0.', 'micro": 0.9'),
        ("config.yaml", "kind: cpu", "kind: abacus"),
    ):
        folder.put_text(name, folder.text(name).replace(old, new))
    assert cli.status(["verify", str(out), "--rerun"]) == 1
    said = capsys.readouterr().out
    assert "accuracy_micro differs by up to 0." in said
    assert "device.kind was abacus, got cpu" in said
    assert cli.status(["verify", str(out), "--rerun", "--tolerance", "1"]) == 0
    text = folder.text("metrics.jsonl")
    folder.put_text("metrics.jsonl", re.sub(r'"loss": [^,}]+', '"loss": null', text))
    assert cli.status(["verify", str(out), "--rerun", "--tolerance", "1"]) == 1  # a number beside none
    assert "loss differs by up to inf" in capsys.readouterr().out
    capsys.readouterr()
    (out / "clusters.npz").unlink()
    assert cli.status(["verify", str(out), "--rerun"]) == 2
    assert f"{out}/clusters.npz is missing" in capsys.readouterr().err
    assert cli.status(["verify", str(tmp_path)]) == 2


def test_verify_evaluates_a_stopped_run_where_it_was_evaluated(tmp_path):
    """The last rounds of a whole run are all evaluated, and `moves` counts since the evaluation before."""
    given = {"scenario": {"name": "iid", "clients": 8}, "method": "majority", "model": "linear", "compare": []}
    given |= {"rounds": 2, "evaluate_every": 2, "evaluate_last": 1, "evaluate_quality": True}
    experiment.run("quickstart", **given, out=tmp_path / "run")
    folder = results.Folder(tmp_path / "run")
    text = folder.text("config.yaml").replace("rounds: 2", "rounds: 12").replace("evaluate_last: 1", "evaluate_last: 3")
    folder.put_text("config.yaml", text)  # as if the run had been stopped after two rounds
    (found,) = verifying.figures(tmp_path / "run")
    assert (found.evaluations, found.missing, found.gaps, found.labels) == (1, 0, {}, 0)


def test_verify_trains_on_the_devices_that_the_command_had(tmp_path, trained, monkeypatch):
    """`jcfl run` makes a device of each core, and commands that train points do not; a point alone got two devices."""
    run, sweep, search = (trained(command, tmp_path / command) for command in ("run", "sweep", "tune"))
    points, split = [next((home / "runs").iterdir()) for home in (sweep, search)], []
    for point in points:
        assert results.Folder(point).yaml("config.yaml")["tuned"] == {}
    monkeypatch.setattr("jcfl.runs.devices.split_cores", lambda: split.append(1))
    monkeypatch.setattr(verifying, "figures", lambda *given: [])
    for place, times in zip((sweep, *points, run), (0, 0, 0, 1), strict=True):
        assert cli.status(["verify", str(place), "--rerun"]) == 0
        assert len(split) == times


def test_verify_goes_into_every_run(tmp_path, capsys):
    for name in ("one", "two"):
        folders.run(tmp_path / "runs" / name)
    results.Folder(tmp_path).put_json("comparison.json", {"one": {}, "two": {}})
    assert cli.status(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("as written") == 3
    shutil.rmtree(tmp_path / "runs" / "two")
    assert cli.status(["verify", str(tmp_path)]) == 2
    assert f"{tmp_path}/runs/two/checksums.json is missing" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "sweep", "tune"])
def test_damaged_checksums_do_not_stop_what_goes_on(tmp_path, trained, capsys, command):
    """They are written again; until then, files are read without a check."""
    out = trained(command, tmp_path / "out")
    (out / "checksums.json").write_text("")
    assert cli.status([command, "--resume", str(out)] if command != "tune" else words(command, out)) == 0
    assert "checksums.json is damaged" in capsys.readouterr().err
    assert cli.status(["verify", str(out)]) == 0
