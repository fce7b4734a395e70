"""The slow tests, which a plain `pytest` leaves out.

They are listed in `slow.txt`. The list is renewed from the report of a run with at least a part of them, such as the
part that `.ci/run` takes, or of several runs:

    JCFL_SLOW=1/16 pytest --junitxml=report.xml; python tests/slow.py report.xml
    pytest --junitxml=others.xml; pytest -m slow --junitxml=slow.xml; python tests/slow.py others.xml slow.xml

A slow test that is in no report stays in the list. If it does not exist any more, take its name out by hand.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Set
from pathlib import Path

LIST = Path(__file__).with_name("slow.txt")

SHARE = 1 / 8
"""The most time that the tests take which are not slow, as a share of the time of all. It does not depend on the speed
of the machine, as a number of seconds would."""

KEPT = (
    "test_contract.py::test_scan_vmap_and_padding_change_nothing[ifca-None]",
    "test_contract.py::test_scan_vmap_and_padding_change_nothing[stocfl-None]",
    "test_experiment.py::test_seeds_side_by_side_equal_seeds_one_by_one",
    "test_identities.py::test_ifca_with_one_cluster_is_fedavg",
    "test_identities.py::test_stocfl_that_never_merges_is_ditto",
    "test_layout.py::test_every_arrow_stands_in_the_table",
    "test_notebooks.py::test_runs_from_top_to_bottom_and_shows_pictures[quickstart]",
    "test_pairs.py::test_a_method_keeps_its_promises_with_everything_that_it_takes[fedavg]",
    "test_pairs.py::test_a_method_keeps_its_promises_with_everything_that_it_takes[ifca]",
    "test_pairs.py::test_a_method_keeps_its_promises_with_everything_that_it_takes[stocfl]",
    "test_readme.py::test_python_example_is_short_runs_and_shows_what_it_says",
)
"""Tests that always run: one or some of each large table and of the papers' identities, the structure, and README."""


def listed() -> set[str]:
    """The slow tests, as pytest calls them."""
    return set(LIST.read_text("utf-8").splitlines())


def slow_in(reports: Iterable[Path], before: Set[str]) -> list[str]:
    """The slow tests, in alphabetical order: the longest of reports in JUnit's format, until the others are few.

    Tests of a file with the same parameters often share what they compile. They are slow together or not at all,
    because the next of them would take the time of the one that is left out.

    Args:
        before: the tests that were slow before. One that is in no report stays slow, and is taken to last as long as
            the mean of those that are in one.
    """
    cases = [case.attrib for report in reports for case in ElementTree.parse(report).iter("testcase")]
    times = {f"{one['classname'].replace('.', '/')}.py::{one['name']}": float(one["time"]) for one in cases}
    together: dict[str, list[str]] = {}
    for name in times:
        together.setdefault(shared_by(name), []).append(name)
    time = lambda names: sum(times[name] for name in names)
    slow, known = sorted(before - times.keys()), before & times.keys()
    if slow and not known:
        raise SystemExit("no report has a slow test; run a part of them too: JCFL_SLOW=1/16")
    left = time(times)
    most = SHARE * (left + len(slow) * (time(known) / len(known) if slow else 0))
    for names in sorted(together.values(), key=time, reverse=True):
        if left <= most:
            break
        if all(name.startswith("tests/") and name.removeprefix("tests/") not in KEPT for name in names):
            slow += names
            left -= time(names)
    return sorted(slow)


def shared_by(name: str) -> str:
    """What the tests have in common that share programs: the file and the parameters; or the one test without any."""
    file, test = name.split("::", 1)
    return f"{file}[{test.split('[', 1)[1]}" if "[" in test else name


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in slow_in(map(Path, sys.argv[1:]), listed())), "utf-8")
