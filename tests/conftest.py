"""Fixtures that every test module may use."""

import gc
import importlib.metadata
import os
import pathlib
import zlib

import hypothesis
import pytest

import jcfl
from tests import slow

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports JAX
# Most of a test's time is compilation: without its newest code generator and optimizations XLA takes a third of it. A
# program in one piece takes a seventh less than one cut into 32 for threads: both cores have a test process each. XLA
# aborts on a flag that it does not know, so versions that were not tried get none.
QUICKLY = {
    ("0.10",): "--xla_cpu_use_fusion_emitters=false",
    ("0.10", "0.11", "0.12"): "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1",
}
here = ".".join(importlib.metadata.version("jaxlib").split(".")[:2])
for versions, flags in QUICKLY.items():
    if here in versions:
        os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".strip()
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # 1/20 of a test's time went into naming source lines
gc.set_threshold(50_000, 20, 20)  # JAX makes so many objects while it traces that collecting garbage took 1/4 of it
# An example may take longer than Hypothesis's 200 ms: the first one imports or compiles, and machines differ.
hypothesis.settings.register_profile("jcfl", parent=hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("jcfl")
jcfl.use_cache()  # the test processes share the programs that they compile; a later run finds them too

collect_ignore = ["plugin"]  # a user's package: importing it here would register its pieces for every test


QUICK = {
    "averaging",
    "config",
    "contract",
    "errors",
    "house",
    "layout",
    "merging",
    "metrics",
    "nested",
    "objective",
    "registry",
    "scores",
    "show",
    "sources_arrays",
    "stocfl",
    "streams",
    "terminal",
}
"""The test files of the working day: they compile little. Of `test_contract.py` only one method's cases are taken."""


SLOW = "JCFL_SLOW"
"""Which slow tests run beside the others: `all`, none if it is empty, or the part `I/N` of them, I from 1."""


def pytest_configure(config: pytest.Config) -> None:
    """Let slow tests run where files, tests or marks are asked for by name; only a plain `pytest` leaves them out."""
    asked = config.option.markexpr or config.option.keyword or config.args_source is not config.ArgsSource.TESTPATHS
    if asked and not hasattr(config, "workerinput"):  # the processes of xdist get what their controller has decided
        os.environ[SLOW] = "all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the files in `QUICK` and the slow ones, and leave out slow ones that are not asked for."""
    listed = slow.listed()
    for item in items:
        if item.nodeid in listed:
            item.add_marker(pytest.mark.slow)
        name = item.path.stem.removeprefix("test_")
        if name in QUICK and (name != "contract" or "[ifca-None]" in item.name):
            item.add_marker(pytest.mark.quick)
    out = [item for item in items if item.get_closest_marker("slow") and not runs_now(item.nodeid)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def pytest_terminal_summary(terminalreporter) -> None:
    """Say which slow tests have run."""
    asked = os.environ.get(SLOW, "")
    if asked != "all":
        part = f"part {asked} of the slow tests ran" if asked else "the slow tests were left out"
        terminalreporter.write_line(f"{part}; {SLOW}=all runs all of them")


def runs_now(test: str) -> bool:
    """Whether a slow test is among those that `SLOW` asks for."""
    asked = os.environ.get(SLOW, "")
    if asked in ("", "all"):
        return asked == "all"
    part, parts = map(int, asked.split("/"))
    return zlib.crc32(test.encode()) % parts == part - 1


@pytest.fixture(autouse=True)
def forgotten():
    """What a test registers is forgotten after it, so that no later test of the same process sees it."""
    from jcfl import registry  # here, because importing a piece imports JAX, which reads the flags above
    from jcfl.metrics import table

    registry.load()
    pieces, scores = {kind: dict(known) for kind, known in registry._TABLES.items()}, dict(table._TABLE)
    yield
    for now, before in ((registry._TABLES, pieces), (table._TABLE, scores)):
        now.clear()
        now.update(before)


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of real datasets (MNIST, Fashion-MNIST, CIFAR-10 in their publishers' formats)."""
    folder = pathlib.Path(os.environ.get("JCFL_DATA") or pathlib.Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "mnist").is_dir():
        pytest.skip(f"no real data at {folder}: set JCFL_DATA to a folder that holds mnist/")
    return folder


@pytest.fixture
def source_lines():
    """Programs name the lines of source that they are from; above this is switched off, to save time."""
    import jax  # here, because it reads the flags above

    before = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 10)
    yield
    jax.config.update("jax_traceback_in_locations_limit", before)
