"""The slow tests, which a plain `pytest` leaves out.

They are listed in `slow.txt`. The list is made anew from the report of a run of all tests:

    JCFL_SLOW=all pytest --junitxml=report.xml && python tests/slow.py report.xml
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

LIST = Path(__file__).with_name("slow.txt")

LONGEST = 5.0
"""The most seconds that a test takes which is not slow, on two cores that both run tests."""

KEPT = (
    "test_contract.py::test_scan_vmap_and_padding_change_nothing[ifca-None]",
    "test_contract.py::test_scan_vmap_and_padding_change_nothing[stocfl-None]",
    "test_notebooks.py::test_runs_from_top_to_bottom_and_shows_pictures[quickstart]",
    "test_pairs.py::test_a_method_keeps_its_promises_with_everything_that_it_takes[fedavg]",
    "test_pairs.py::test_a_method_keeps_its_promises_with_everything_that_it_takes[ifca]",
    "test_pairs.py::test_a_method_keeps_its_promises_with_everything_that_it_takes[stocfl]",
    "test_readme.py::test_python_example_is_short_runs_and_shows_what_it_says",
)
"""Tests that always run: one or some of each large table, and what README shows."""


def listed() -> set[str]:
    """The slow tests, as pytest calls them."""
    return set(LIST.read_text("utf-8").splitlines())


def slow_in(report: Path) -> list[str]:
    """The tests of a report in JUnit's format that are slow, in alphabetical order."""
    cases = ElementTree.parse(report).iter("testcase")
    times = {
        f"{one.attrib['classname'].replace('.', '/')}.py::{one.attrib['name']}": one.attrib["time"] for one in cases
    }
    slow = (name for name, seconds in times.items() if name.startswith("tests/") and float(seconds) > LONGEST)
    return sorted(name for name in slow if name.removeprefix("tests/") not in KEPT)


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in slow_in(Path(sys.argv[1]))), "utf-8")
