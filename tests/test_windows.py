"""What Windows and other systems do not have, as far as this one can tell."""

import ast
import os
import subprocess
import sys
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from jcfl.cli import expanded
from jcfl.core import memory
from jcfl.data import huggingface, tfds
from jcfl.errors import InputError, Unwritable, as_argument
from jcfl.nested import plain
from jcfl.results import claimed, files, writer
from jcfl.runs import stderr, titles, workers
from jcfl.trees.rows import InFile

IMPORTED = """
import builtins, pkgutil, sys
import jax, flax.nnx, matplotlib.pyplot, optax, orbax.checkpoint, psutil, sklearn.manifold, tensorflow_datasets, typer
import jcfl

real = builtins.__import__

def on_windows(name, globals=None, *rest, **more):
    ours = (globals or {}).get("__name__", "").startswith("jcfl")
    if ours and name in ("fcntl", "grp", "pwd", "resource", "termios"):
        raise ModuleNotFoundError(name)
    return real(name, globals, *rest, **more)

sys.platform, builtins.__import__ = "win32", on_windows
for module in pkgutil.walk_packages(jcfl.__path__, "jcfl."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
print(len([name for name in sys.modules if name.startswith("jcfl.")]))
"""
"""Imports all modules of jcfl without those of Python that only POSIX systems have. Other packages know the system."""


def test_every_module_is_imported_without_the_modules_that_windows_lacks():
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150


def test_memory_and_files_of_a_process_are_known_on_windows(monkeypatch):
    monkeypatch.setattr(memory, "sys", SimpleNamespace(platform="win32"))
    held = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=12345))
    monkeypatch.setattr("psutil.Process", lambda: held)
    assert memory.most_resident() == 12345
    assert memory.most_open_files() == 8192


def test_memory_of_a_process_is_known_where_proc_does_not_have_its_peak(monkeypatch):
    """As in gVisor, in which some services run containers."""
    text = SimpleNamespace(read_text=lambda encoding: "VmSize: 10 kB\nVmRSS: 5 kB\n")
    monkeypatch.setattr(memory, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(memory, "Path", lambda name: text)
    assert memory.most_resident() > 2**20


def test_a_pattern_becomes_the_folders_it_matches(tmp_path, monkeypatch):
    for name in ("b", "a"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "model.hidden=8").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["compare", "runs/*", "--set", "model.hidden=[8, 4]", "no*where", "", "runs/a"]
    found = expanded(words)
    assert [word.replace("\\", "/") for word in found] == ["compare", "runs/a", "runs/b", *words[2:]]


def test_a_proposed_command_has_a_path_that_no_shell_changes():
    assert as_argument(PureWindowsPath(r"C:\runs\one")) == "C:/runs/one"


def test_a_proposed_program_has_a_path_that_python_reads():
    """In a text of Python, as in "C:\\Users", `\\U` begins the number of a character."""
    command = tfds.preparation("mnist", cast(Path, PureWindowsPath(r"C:\Users\one")))
    program = command.partition('python -c "')[2].removesuffix('"')
    assert [one.value for one in ast.walk(ast.parse(program)) if isinstance(one, ast.Constant)][-1] == "C:/Users/one"


def test_a_path_in_a_configuration_can_be_read_on_another_system():
    assert plain({"data": {"path": PureWindowsPath(r"own\x.parquet")}}) == {"data": {"path": "own/x.parquet"}}


def test_a_name_of_the_hub_is_no_path(monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface, "exists", lambda place: False)
    known = SimpleNamespace(load_dataset=lambda *given: asked.append(given) or {})
    huggingface.of_hub(known, cast(Path, PureWindowsPath("ylecun/mnist")), None)
    assert asked == [("ylecun/mnist", None)]


def test_names_that_windows_takes_for_one_folder():
    assert titles.unique(["FedAvg", "fedavg", "fedavg."]) == ["FedAvg", "fedavg-2", "fedavg.-2"]


def test_rows_are_written_where_files_are_not_written_at_a_place(monkeypatch):
    monkeypatch.delattr(os, "pwrite")
    rows = InFile((5, 2), np.dtype(np.float32))
    rows.replace_rows(1, np.arange(4.0).reshape(2, 2))
    assert np.asarray(rows).tolist() == [[0, 0], [0, 1], [2, 3], [0, 0], [0, 0]]


def test_text_of_compiled_code_is_not_held_back_where_pipes_cannot_be_waited_for(monkeypatch, capfd):
    used = SimpleNamespace(name="nt", write=os.write)  # nothing else of `os` is called
    monkeypatch.setattr(stderr, "os", used)
    with stderr.screened("sign", lambda text: None):
        os.write(2, b"a sign\n")
    assert capfd.readouterr().err == "a sign\n"


@pytest.mark.parametrize("lasting", [False, True])
def test_a_file_that_another_process_reads_is_replaced_after_a_while(lasting, tmp_path, monkeypatch):
    tries, replace = [], os.replace

    def busy(old: Any, new: Any) -> None:
        tries.append(new)
        if lasting or len(tries) < 3:
            raise PermissionError(13, "Access is denied")
        replace(old, new)

    monkeypatch.setattr(files, "PATIENCE", 0.2 if lasting else 60.0)
    monkeypatch.setattr(files.os, "replace", busy)
    (tmp_path / "one").write_text("old", "utf-8")
    write = lambda: files.replace(tmp_path / "one", lambda file: file.write(b"new"))
    with pytest.raises(Unwritable, match="Access is denied"):
        write()  # other systems mean it
    assert len(tries) == 1
    tries.clear()
    monkeypatch.setattr(files, "os", SimpleNamespace(name="nt", replace=busy, path=os.path))
    if lasting:
        with pytest.raises(Unwritable, match="Access is denied"):
            write()
    else:
        write()
    assert len(tries) > 2
    assert [*tmp_path.iterdir()] == [tmp_path / "one"]
    assert (tmp_path / "one").read_text("utf-8") == ("old" if lasting else "new")


def test_a_refused_run_leaves_nothing_where_a_file_that_is_open_cannot_be_deleted(tmp_path, monkeypatch):
    unlink, held = Path.unlink, []

    class Lock:
        def __init__(self, path: Path):
            self.path = path

        def acquire(self, timeout: float) -> None:
            self.path.touch()
            held.append(self.path)

        def release(self) -> None:
            held.remove(self.path)
            self.path.unlink()

    def only_closed(path: Path, missing_ok: bool = False) -> None:
        if path in held:
            raise PermissionError(13, "it is open")
        unlink(path, missing_ok)

    monkeypatch.setattr(writer, "FileLock", Lock)
    monkeypatch.setattr(Path, "unlink", only_closed)
    with pytest.raises(InputError, match="refused"), claimed(tmp_path / "runs" / "one", new=True):
        raise InputError("refused")
    assert [*tmp_path.iterdir()] == []


def test_workers_are_refused_where_they_cannot_begin(monkeypatch):
    monkeypatch.setattr(workers, "os", SimpleNamespace(name="nt"))
    with pytest.raises(InputError, match="workers: submitit does not begin processes on Windows"):
        workers.workers(2)
