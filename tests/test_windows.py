"""What Windows does not have, as far as another system can tell."""

import subprocess
import sys
from pathlib import PureWindowsPath
from types import SimpleNamespace

import pytest

from jcfl.cli import expanded
from jcfl.core import memory
from jcfl.errors import InputError, as_argument
from jcfl.runs import workers

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
    monkeypatch.setattr(memory.psutil, "Process", lambda: held)
    assert memory.most_resident() == 12345
    assert memory.most_open_files() == 8192


def test_a_pattern_becomes_the_folders_it_matches(tmp_path, monkeypatch):
    for name in ("b", "a"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    words = ["compare", "runs/*", "--set", "model.hidden=[8, 4]", "no*where"]
    found = expanded(words)
    assert [word.replace("\\", "/") for word in found] == ["compare", "runs/a", "runs/b", *words[2:]]


def test_a_proposed_command_has_a_path_that_no_shell_changes():
    assert as_argument(PureWindowsPath(r"C:\runs\one")) == "C:/runs/one"


def test_workers_are_refused_where_they_cannot_begin(monkeypatch):
    monkeypatch.setattr(workers, "os", SimpleNamespace(name="nt"))
    with pytest.raises(InputError, match="workers: submitit does not begin processes on Windows"):
        workers.workers(2)
