"""The command line: what it prints, its exit status, and what it leaves on disk."""

import gzip
import hashlib
import inspect
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jcfl
from jcfl import cli
from jcfl.cli import arguments, tuning
from tests.processes import CALM

SMALL = [
    "quickstart",
    "--set",
    "scenario.clients=16",
    "model.hidden=4",
    "compare=[]",
    "train.epochs=1",
    "participation=0.5",
]


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder: (status, what it printed, what it complained of)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        status = cli.status([str(word) for word in words])
        return status, *capsys.readouterr()

    return run


def test_version_and_help(call):
    assert call("--version")[:2] == (0, f"jcfl {jcfl.__version__}\n")
    status, printed, _ = call("run", "--help")
    assert status == 0
    assert "--resume" in printed


def test_list_names_everything(call):
    status, printed, _ = call("list")
    assert status == 0
    for name in ("stocfl", "rotated", "digits", "cnn_cifar", "quickstart"):
        assert name in printed


def test_list_as_json_takes_no_name(call):
    status, printed, said = call("list", "foo", "--json")
    assert (status, printed) == (2, "")
    assert "--json lists everything; expected no name beside it, got 'foo'" in said


def test_list_as_json_has_every_option(call):
    status, printed, _ = call("list", "--json")
    table = json.loads(printed)
    assert status == 0
    assert table["methods"]["stocfl"]["options"]["tau"]["minimum"] == -1
    assert table["scenarios"]["rotated"]["options"]["held_out"]["default"] == 0.0
    assert table["scenarios"]["rotated"]["options"]["clients"]["minimum"] == 1
    assert table["local training"]["sgd"]["options"]["lr"]["default"] == 0.1
    assert "participation" in table["keys"]
    assert "stocfl_rotated_mnist" in table["presets"]


def test_words_after_set_are_overrides():
    names, overrides = arguments.separated(["quickstart", "b=2", "c=3"], ["a=1"])
    assert (names, overrides) == (["quickstart"], ["a=1", "b=2", "c=3"])


def test_run_writes_a_folder_that_runs_again(call, tmp_path):
    words = ["train.lr=0.2", "rounds=2", "method.name=majority"]
    status, printed, complaint = call("run", *SMALL, *words)
    assert status == 0
    assert "majority: round 2/2, accuracy" in complaint
    assert "round 2/2" not in printed
    assert "Written to runs/quickstart-1" in printed
    status, printed, _ = call("run", tmp_path / "runs" / "quickstart-1" / "config.yaml", "--out", "again", "--json")
    assert status == 0
    summary = json.loads(printed)
    first = json.loads((tmp_path / "runs" / "quickstart-1" / "summary.json").read_text())
    assert summary["accuracy_micro"] == first["accuracy_micro"]
    assert call("run", "--resume", "again", "--quiet") == (0, "", "")
    assert call("run", *SMALL, *words, "--out", "again")[0] == 2
    (tmp_path / "again").rename(tmp_path / "two words")
    assert "go on with it by jcfl run --resume 'two words' (" in call("run", *SMALL, *words, "--out", "two words")[2]
    (tmp_path / "two words").rename(tmp_path / "again")
    assert call("run", "--resume", "again", "--set", "method.name=fedavg")[0] == 2
    assert "majority: round 2/2, 2 seeds, accuracy" in call("run", *SMALL, *words, "--seeds", 2)[2]
    summary = json.loads((tmp_path / "runs" / "quickstart-2" / "summary.json").read_text())
    assert summary["seeds"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quikstart"], "did you mean 'quickstart'"),
        ([], "what to run?"),
        ([""], "expected a file or a preset's name, got an empty text"),
        (["quickstart", "another"], "expected one"),
        (["quickstart", "--set", "methd.tau=1"], "did you mean 'method'"),
        (["quickstart", "--set", "method.name=stocfll"], "did you mean 'stocfl'"),
        (["quickstart", "--set", "method.taw=1"], "did you mean 'tau'"),
        (["quickstart", "--set", "method.tau=-1.01"], "tau"),
        (["quickstart", "--set", "participation=0"], "participation"),
        (["quickstart", "--set", "participation=1.1"], "participation"),
        (["quickstart", "--set", "scenario.clients=100000"], "25000 clients"),
        (["quickstart", "--set", "train.steps=1", "train.epochs=1"], "not both"),
        (["quickstart", "--sett", "a=1"], "--sett"),
        (["quickstart", "--rounds", "3"], "it is a key of the configuration: --set rounds=3\n"),
        (["quickstart", "--rounds=3"], "No such option: --rounds; it is a key of the configuration: --set rounds=3\n"),
        (["quickstart", "--evaluate-every", "--quiet"], "--set evaluate_every=VALUE\n"),
        (["quickstart", "--train.lr", "0.1"], "--set train.lr=0.1\n"),
        (["quickstart", "--compare", "[ifca, local]"], "--set 'compare=[ifca, local]'\n"),
        (["quickstart", "--raunds", "3"], "No such option: --raunds"),
        (["--seeds"], "--seeds"),
        (["quickstart", "--seeds", "0"], "--seeds"),
        (["stocfl_rotated_mnist", "--data-dir", "nowhere"], "nowhere"),
        (["--resume", "nowhere"], "no run to resume"),
        (["quickstart", "--resume", "nowhere"], "takes the configuration"),
    ],
)
def test_mistakes_are_one_line_status_2_and_nothing_on_disk(call, tmp_path, words, said):
    status, printed, complaint = call("run", *words)
    assert (status, printed) == (2, "")
    assert said in complaint
    assert complaint.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reproduce", "--list", "S1"], "--list lists all tables; leave out 'S1'"),
        (["reproduce", "S1", "--data-dir", "nowhere"], "expected a folder of datasets, got 'nowhere'"),
        (["bench", "nope", "--out", "new/figures"], "unknown row 'nope'"),
    ],
)
def test_mistakes_with_other_commands_leave_nothing_on_disk(call, tmp_path, words, said):
    status, printed, complaint = call(*words)
    assert (status, printed, complaint.count("\n")) == (2, "", 1) and said in complaint
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_should_be_is_named(call, tmp_path):
    (tmp_path / "file").write_text("")
    assert call("bench", "--out", "file/new")[2] == "jcfl: file/new cannot be written: file is a file, not a folder\n"


def test_tables_are_listed_as_json(call):
    status, printed, _ = call("reproduce", "--list", "--json")
    assert status == 0 and json.loads(printed)["S1"]["hours"]["laptop"] > 0


def test_characters_that_a_terminal_does_not_have_are_question_marks(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["reproduce", "--list"])
    terminal.flush()
    assert b"?" in terminal.buffer.getvalue()


def test_corrupt_data_is_refused_before_anything_is_written(call, tmp_path, data_dir):
    folder = tmp_path / "data" / "mnist"
    shutil.copytree(data_dir / "mnist", folder)
    file = folder / "train-labels-idx1-ubyte.gz"
    out_of_range = gzip.decompress(file.read_bytes())[:-1] + bytes([77])
    file.write_bytes(gzip.compress(out_of_range, 1))
    status, _, complaint = call("run", "stocfl_rotated_mnist", "--data-dir", tmp_path / "data", "--out", "run")
    assert status == 2
    assert "train-labels-idx1-ubyte" in complaint
    assert complaint.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_pixels_that_are_not_numbers_are_refused(call, tmp_path):
    x = np.zeros((40, 3), np.float32)
    x[7, 1] = np.nan
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(40) % 2)
    (tmp_path / "mine.yaml").write_text(
        f"data: {{name: arrays, path: {tmp_path}/mine.npz}}\nscenario: {{name: iid, clients: 2}}\nmethod: fedavg\n"
    )
    status, _, complaint = call("run", tmp_path / "mine.yaml", "--out", "run")
    assert status == 2
    assert complaint.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_bug_of_ours_is_not_said_to_be_the_users(monkeypatch):
    monkeypatch.setattr(cli.training, "configured", lambda names, overrides: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.status(["run", "quickstart"])


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_an_interruption_before_anything_is_written_says_so_alone(tmp_path, monkeypatch, capsys, command):
    """There is nothing yet to go on with."""
    monkeypatch.chdir(tmp_path)

    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("jcfl.runs.plan.planned", interrupted)
    monkeypatch.setattr("jcfl.runs.sweeping.carried_out", interrupted)
    over = ["--over", "train.lr=0.1,0.2"] if command == "sweep" else []
    assert cli.status([command, *SMALL, *over, "--out", "out", "-q"]) == 130
    assert capsys.readouterr().err == "jcfl: interrupted\n"


@pytest.mark.parametrize(
    ("every", "says"), [("60", "go on with"), ("never", "begin again (checkpoint_every: never) with")]
)
def test_an_interruption_says_how_to_go_on(tmp_path, monkeypatch, capsys, every, says):
    monkeypatch.chdir(tmp_path)

    def interrupted(plan, folder, *given, **options):
        (folder / "config.yaml").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("jcfl.runs.experiment.execute", interrupted)
    assert cli.status(["run", *SMALL, f"checkpoint_every={every}", "--out", "out", "-q"]) == 130
    assert capsys.readouterr().err.endswith(f"jcfl: interrupted; {says}: jcfl run --resume out\n")


def test_sigterm_before_training_ends_a_command_as_ctrl_c_does(tmp_path, monkeypatch, capsys):
    """As by a scheduler, while data are read. It left a folder with a lock, and said nothing."""
    monkeypatch.chdir(tmp_path)

    def ended(*given, **options):
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL  # which would end the process of all tests
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("jcfl.runs.sweeping.carried_out", ended)
    before = signal.getsignal(signal.SIGTERM)
    assert cli.status(["sweep", *SMALL, "--over", "train.lr=0.1,0.2", "--out", "out", "-q"]) == 130
    assert capsys.readouterr().err == "jcfl: interrupted\n"
    assert not Path("out").exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("missed", [0, 2])
def test_ctrl_c_while_garbage_is_collected_is_not_lost(missed):
    """Python ignores what is raised in a callback of the garbage collector, of which JAX has one.

    The first signals sent again may come just before a call begins to wait, which then misses them.
    """
    program = f"""
import gc, signal, sys, time
from jcfl import cli

sent, send = [], cli.interrupt

def interrupt():
    sent.append(1)
    if len(sent) > {missed}:
        send()

cli.interrupt = interrupt

def interrupted(phase, information):
    gc.callbacks.clear()
    raise KeyboardInterrupt

def command():
    gc.callbacks[:] = [interrupted]
    gc.collect()
    time.sleep(20)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
cli.app.command("wait")(command)
began = time.monotonic()
status = cli.status(["wait"])
print(time.monotonic() - began)
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "jcfl: interrupted\n")
    assert float(done.stdout) < 10, "the command waited to its end"


def test_ctrl_c_is_answered_while_python_waits_for_a_library(monkeypatch, capsys):
    """As while XLA compiles: only after that does Python raise KeyboardInterrupt, and nothing was said until then."""

    def command():
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)  # looks for no signal
        time.sleep(60)

    monkeypatch.setattr(cli, "PATIENCE", 0.05)
    monkeypatch.setattr("jcfl.registry.load", command)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    try:
        assert cli.status(["list"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    first, last = capsys.readouterr().err.splitlines()
    assert "ends when" in first
    assert last == "jcfl: interrupted"


def test_a_run_interrupted_and_then_killed_goes_on_to_the_same_figures(tmp_path, monkeypatch):
    # One device: where other tests of this process have started JAX, it cannot take one for each core, as commands do.
    words = [*SMALL, "method.name=fedavg", "rounds=1000", "evaluate_every=10", "devices=1"]
    environment = os.environ | {
        "JCFL_CACHE": jax.config.jax_compilation_cache_dir or str(tmp_path / "cache"),  # has the whole run's programs
        "PYTHONPATH": str(Path(jcfl.__file__).parents[1]),
    }
    command = [sys.executable, "-c", CALM + "from jcfl.cli import main; main()", "run"]
    options = {"cwd": tmp_path, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def stopped(number, arguments, lines):
        """Send a signal once so many evaluations are written: (exit status, what it complained of)."""
        metrics, deadline = tmp_path / "cut" / "metrics.jsonl", time.monotonic() + 60
        with subprocess.Popen([*command, *arguments], **options) as process:
            while time.monotonic() < deadline and not (metrics.exists() and metrics.read_text().count("\n") >= lines):
                time.sleep(0.005)
            process.send_signal(number)
            complaint = process.communicate()[1]
        assert lines <= metrics.read_text().count("\n") < 100, "the run was not stopped in its middle"
        return process.returncode, complaint

    monkeypatch.chdir(tmp_path)
    assert cli.status(["run", *words, "--out", "whole"]) == 0
    status, complaint = stopped(signal.SIGINT, [*words, "checkpoint_every=0.05", "--out", "cut"], 10)
    assert status == 130
    assert "jcfl run --resume cut" in complaint
    assert stopped(signal.SIGKILL, ["--resume", "cut"], 40)[0] == -signal.SIGKILL
    assert json.loads((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()[0])["round"] == 10
    assert cli.status(["run", "--resume", "cut"]) == 0
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()
    one, two = (np.load(tmp_path / name / "clusters.npz") for name in ("whole", "cut"))
    for key in one:
        np.testing.assert_array_equal(one[key], two[key], key)


@pytest.mark.parametrize("method", ["method=wecfl", "method=flhc method.clusters=2 method.at=1"])
def test_a_run_that_groups_by_models_can_be_written_and_resumed(call, method):
    given = [*SMALL, *method.split()]
    assert call("run", *given, "rounds=2", "--out", "one", "-q")[0] == 0
    assert call("run", "--resume", "one", "--set", "rounds=3", "-q")[0] == 0


def test_help_does_not_import_jax():
    """Which takes most of the time of a short command."""
    code = "import sys, jcfl.cli; print(sorted({'jax', 'scipy', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_the_command_chooses_trials_by_the_same_score_as_the_function():
    default = inspect.signature(tuning.tune).parameters["by"].default
    assert default == inspect.signature(jcfl.tune).parameters["by"].default
