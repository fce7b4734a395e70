"""What a run depends on besides its configuration: the cache of compiled programs, and versions."""

import importlib.metadata
import math
import os
import subprocess
import tempfile
from pathlib import Path

import jax
import pytest
import yaml

import jcfl
from jcfl import cli
from jcfl.errors import InputError
from jcfl.runs import disk, environment

SMALL = {"scenario": {"name": "rotated", "clients": 8}, "model": "linear", "method": "majority", "rounds": 0}
SWEEP = {**SMALL, "over": {"train.lr": [0.1, 0.2]}}


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """JAX without a cache folder, JCFL_CACHE naming one, and a function that says which JAX has."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JCFL_CACHE", str(tmp_path / "cache"))
    jax.config.update("jax_compilation_cache_dir", None)
    yield lambda: jax.config.jax_compilation_cache_dir
    for name, value in before.items():
        jax.config.update(name, value)


def test_python_switches_the_cache_on_only_when_asked(cache, tmp_path):
    jcfl.run(SMALL)
    jcfl.sweep(SWEEP)
    assert cache() is None
    assert not (tmp_path / "cache").exists()
    jcfl.use_cache()
    assert cache() == str(tmp_path / "cache")
    assert (tmp_path / "cache").is_dir()


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_the_command_line_switches_it_on(cache, tmp_path, command):
    words = ["quickstart", "--quiet", "--set", "method=majority", "model=linear", "compare=[]", "rounds=0"]
    more = ["--over", "train.lr=0.1,0.2"] if command == "sweep" else []
    assert cli.status([command, *words, "scenario.clients=8", *more]) == 0
    assert cache() == str(tmp_path / "cache")


def test_a_cache_that_was_chosen_is_left_alone(cache, tmp_path, monkeypatch):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    jcfl.use_cache()
    assert cache() == str(tmp_path / "own")
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("JCFL_CACHE", "")
    jcfl.use_cache()
    assert cache() is None


def test_an_account_without_a_home_has_no_cache(cache, monkeypatch):
    """As in a container that runs with a number that no account has."""

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("JCFL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    jcfl.use_cache()
    assert cache() is None


@pytest.mark.parametrize(("lacks", "is_used"), [(os.W_OK, True), (os.R_OK, False)])
def test_nothing_is_stored_in_a_cache_of_another_account(cache, monkeypatch, tmp_path, lacks, is_used):
    """JAX would warn of every program that it cannot store, or read."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & lacks)
    jcfl.use_cache()
    assert cache() == (str(tmp_path / "cache") if is_used else None)
    assert not is_used or jax.config.jax_persistent_cache_min_compile_time_secs == math.inf


def test_a_package_that_is_not_installed_has_this_version(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert environment.version("jcfl") == jcfl.__version__


def test_settings_of_jax_that_change_results_are_noted():
    assert "settings" not in environment.made_by()
    with jax.threefry_partitionable(False), jax.default_prng_impl("rbg"):
        noted = environment.made_by()["settings"]
    assert noted == {"jax_default_prng_impl": "rbg", "jax_threefry_partitionable": False}


def test_settings_that_jax_keeps_otherwise_are_noted_too():
    """No attribute of `jax.config` has this one; it changes the last bits of models."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        assert environment.made_by()["settings"] == {"jax_disable_most_optimizations": True}
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def test_jax_knows_every_setting_that_is_looked_at():
    """One that was renamed would never be noted or refused."""
    assert {*environment.SETTINGS, *environment.NEEDED} <= jax.config.values.keys()


def test_options_of_xla_are_noted_and_those_before(monkeypatch, tmp_path):
    """They may change the last bits of models, and a run can be resumed with others or with none."""
    made_by = lambda: yaml.safe_load((tmp_path / "run" / "config.yaml").read_text("utf-8"))["made_by"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    jcfl.run(SMALL, out=tmp_path / "run")
    assert made_by()["xla_flags"] == "--xla_backend_optimization_level=0" and "earlier" not in made_by()
    monkeypatch.delenv("XLA_FLAGS")
    jcfl.run(SMALL, out=tmp_path / "run", resume=True)
    assert "xla_flags" not in made_by()
    assert [one["xla_flags"] for one in made_by()["earlier"]] == ["--xla_backend_optimization_level=0"]


def test_a_run_from_a_checkout_has_its_commit(monkeypatch, tmp_path):
    """Two commits of one version can give other numbers, and a run can be resumed with another commit."""
    made_by = lambda: yaml.safe_load((tmp_path / "run" / "config.yaml").read_text("utf-8"))["made_by"]
    monkeypatch.setattr(environment, "commit", lambda: "1a2b")
    jcfl.run(SMALL, out=tmp_path / "run")
    assert made_by()["commit"] == "1a2b" and "earlier" not in made_by()
    monkeypatch.setattr(environment, "commit", lambda: "3c4d-dirty")
    jcfl.run(SMALL, out=tmp_path / "run", resume=True)
    assert made_by()["commit"] == "3c4d-dirty" and [one["commit"] for one in made_by()["earlier"]] == ["1a2b"]


def test_the_commit_is_that_of_jcfls_own_checkout(tmp_path):
    """Not that of a project whose virtual environment jcfl is installed in."""
    place = Path(environment.__file__).parent
    found = subprocess.run(
        ["git", "-C", place, "ls-files", "environment.py"], capture_output=True, text=True, check=False
    )
    whole = subprocess.run(["git", "-C", place, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    commit = environment.commit().removesuffix("-dirty")
    assert bool(commit) == bool(found.stdout) and whole.stdout.startswith(commit)


def test_where_no_temporary_file_can_be_made_the_error_says_what_to_set(monkeypatch, tmp_path):
    """Python tries some folders and the current one; on a full disk it finds none of them usable."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    with pytest.raises(InputError, match=r"^No usable temporary directory found in \['.*missing'\], .*; set TMPDIR to"):
        disk.temporary()
