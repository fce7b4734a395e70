"""Run the notebooks and keep their outputs: python notebooks/refresh.py [NAME ...]."""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent

REPOSITORY = "jcfl-authors/jcfl"
"""Where Colab finds the notebooks, as GitHub names it."""

BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    f"(https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{{}})"
)
"""What opens a notebook of some name in Colab."""

INSTALL = f"""\
import glob
import importlib.util
import shutil
import subprocess
import sys

if importlib.util.find_spec("jcfl") is None:  # on Colab: from a wheel beside the notebook, or the notebook's repository
    extra = "[cuda]" if shutil.which("nvidia-smi") else ""
    wheels = glob.glob("jcfl-*.whl")
    source = wheels[0] + extra if wheels else f"jcfl{{extra}} @ git+https://github.com/{REPOSITORY}"
    if subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", source]).returncode:
        raise RuntimeError(
            f"{{source}} cannot be installed. In a checkout, `pip wheel --no-deps .` makes jcfl-*.whl: "
            "upload it beside this notebook, and run this cell again"
        )"""
"""The cell that installs jcfl where it is not there."""

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Where an object lies in memory, which is another place every time."""


def main(names: list[str]) -> None:
    """Refresh the notebooks named, or all."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            start = time.perf_counter()
            path.write_text(nbformat.writes(with_common_cells(kept(executed(path)), path.name)) + "\n", "utf-8")
            print(f"{path.name}: {time.perf_counter() - start:.0f} s, {path.stat().st_size / 1024:.0f} KiB", flush=True)


def executed(path: Path, timeout: float = 300) -> NotebookNode:
    """A notebook run from top to bottom with this checkout's jcfl, in a process and a folder of its own.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    known = [str(FOLDER.resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=timeout,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=40"],  # no warning that the kernel talks to this machine in plain text
        )
        client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(known)})
    return notebook


def kept(notebook: NotebookNode) -> NotebookNode:
    """The notebook without what differs from machine to machine and says nothing."""
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata = {}
        if "outputs" in cell:
            cell.outputs = joined([output for output in cell.outputs if not is_passing(output)])
    return notebook


def is_passing(output: NotebookNode) -> bool:
    """Whether an output is progress or a warning, which tells nothing after the run."""
    return output.get("name") == "stderr" or output.get("metadata", {}).get("jcfl") == "progress"


def with_common_cells(notebook: NotebookNode, name: str) -> NotebookNode:
    """The notebook with the badge and the cell that all of them have."""
    first, second, *_ = notebook.cells
    first.source = re.sub(r"\[!\[Open in Colab\].*", BADGE.format(name), first.source)
    second.source = INSTALL
    return notebook


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs with what was printed in pieces as one, and pictures without the name of their class."""
    whole: list[NotebookNode] = []
    for output in outputs:
        if "image/png" in output.get("data", {}):
            output.data.pop("text/plain", None)
        if output.output_type == "stream":
            output.text = ADDRESS.sub("", output.text)
            if whole and whole[-1].output_type == "stream":
                whole[-1].text += output.text
                continue
        whole.append(output)
    return whole


if __name__ == "__main__":
    main(sys.argv[1:])
