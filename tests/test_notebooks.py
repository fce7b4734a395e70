"""The notebooks run from top to bottom, show pictures, and are kept as GitHub and Colab need them."""

import base64
import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra `test`")
pytest.importorskip("ipykernel", reason="notebooks need the extra `test`")

FOLDER = Path(__file__).parents[1] / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
LOCAL = re.compile(r"(?<![\w.:/])/(tmp|home|root|opt|usr|var|work|mnt|Users)/|site-packages|\bat 0x[0-9a-f]{6,}")
"""What only one machine has: folders and addresses."""


def pictures(notebook) -> list[bytes]:
    """The PNG files among a notebook's outputs."""
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    return [base64.b64decode(data["image/png"]) for data in shown if "image/png" in data]


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A function that gives a notebook as it comes out of a run from top to bottom, each in a kernel of its own.

    Only notebooks whose tests run are executed. Their kernels collect less garbage, as `conftest` has it, share their
    compiled programs, and take no user's settings.
    """
    folder, refresh = tmp_path_factory.mktemp("fresh"), runpy.run_path(str(FOLDER / "refresh.py"))
    first = folder / "profile_default" / "startup" / "first.py"
    first.parent.mkdir(parents=True)
    first.write_text("import gc, jcfl\ngc.set_threshold(50_000, 20, 20)\njcfl.use_cache()\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder))
        yield lambda path: refresh["kept"](refresh["executed"](path))


def test_there_are_six():
    expected = "new_method newcomers own_data_and_model quickstart thousands_of_clients which_method"
    assert [path.stem for path in PATHS] == expected.split()


@pytest.mark.skipif(sys.platform == "win32", reason="kernels are started as on POSIX")
def test_runs_from_top_to_bottom_and_shows_pictures(path, fresh):
    stored, now = nbformat.read(path, as_version=4), fresh(path)
    nbformat.validate(now)
    assert len(pictures(now)) == len(pictures(stored)) > 0
    for cell, again in zip(stored.cells, now.cells, strict=True):
        kinds = [[output.output_type for output in each.get("outputs", ())] for each in (cell, again)]
        assert kinds[0] == kinds[1], f"outputs are not those of this cell; python notebooks/refresh.py: {again.source}"


def test_stored_as_a_reader_on_github_needs_it(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert pictures(notebook) and all(picture.startswith(b"\x89PNG") for picture in pictures(notebook))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for output in (output for cell in code for output in cell.outputs):
        text = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
        assert output.output_type != "error" and output.get("name") != "stderr"
        assert not LOCAL.search(text), text


def test_opens_in_colab_and_installs_only_where_jcfl_is_not_there(path):
    notebook = nbformat.read(path, as_version=4)
    refresh = runpy.run_path(str(FOLDER / "refresh.py"))
    assert notebook.cells[0].source.startswith("# ") and refresh["BADGE"].format(path.name) in notebook.cells[0].source
    assert notebook.cells[1].source == refresh["INSTALL"]
    assert not any("%pip" in cell.source for cell in notebook.cells)


@pytest.mark.parametrize(("wheel", "gpu"), [(True, True), (False, True), (False, False)])
def test_install_takes_a_wheel_or_the_repository_and_stops_where_neither_is(wheel, gpu, tmp_path, monkeypatch):
    asked = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/nvidia-smi" if gpu else None)
    monkeypatch.setattr(subprocess, "run", lambda words: asked.append(words) or subprocess.CompletedProcess(words, 1))
    if wheel:
        (tmp_path / "jcfl-0.1.0-py3-none-any.whl").touch()
    extra = "[cuda]" if gpu else ""
    repository = f"jcfl{extra} @ git+https://github.com/jcfl-authors/jcfl"  # main, as the notebook that Colab opens
    expected = f"jcfl-0.1.0-py3-none-any.whl{extra}" if wheel else repository
    with pytest.raises(RuntimeError, match="upload it beside this notebook"):
        exec(runpy.run_path(str(FOLDER / "refresh.py"))["INSTALL"], {})
    assert asked[0][1:] == ["-m", "pip", "install", "--quiet", expected]


def test_together_small_enough_to_be_looked_at_anywhere():
    assert sum(path.stat().st_size for path in PATHS) < 1.5 * 2**20
