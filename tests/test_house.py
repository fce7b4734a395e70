"""The repository's own files: that they parse, and agree with the package."""

import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from jcfl.version import __version__
from tests import slow

ROOT = Path(__file__).parents[1]
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for folder in ("docs", "benchmarks") for path in sorted((ROOT / folder).rglob("*.md"))),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
    *(path for ending in ("py", "yaml", "html", "md") for path in sorted((ROOT / "jcfl").rglob(f"*.{ending}"))),
]
ODD = re.compile(
    r"\bclients?\b[^.;|\"]{0,40}\basked\b|\basked (?:each|a|in (?:a|each|every)) round|\bunasked\b|\bclients equal\b"
    r"|\b(?:same|last) figures\b|\bfigures (?:until|differ)\b|\bnames its\b|\bit was thought\b"
    r"|\b(?:no|some|every)body (?:is|was) (?:told|asked)\b",
    re.IGNORECASE,
)
"""Words of which CONTRIBUTING, under "Words", says what to write instead."""
TEMPLATES = [ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug_report", "feature_request")]


def read(*parts: str):
    return yaml.safe_load(ROOT.joinpath(*parts).read_text("utf-8"))


def test_slow_tests_are_tests():
    """A name that is left in the list would hide no test, but a reader would look for it."""
    for name in slow.listed() | {f"tests/{kept}" for kept in slow.KEPT}:
        file, _, test = name.partition("::")
        assert re.search(rf"^def {re.escape(test.partition('[')[0])}\(", (ROOT / file).read_text("utf-8"), re.M), name


def test_slow_tests_stay_slow_without_a_report(tmp_path):
    """Those that did not run count with the mean of those that did: here 12 and 5·3 s, of which an eighth is left."""
    seconds = {"long": 6, "listed": 3, "short": 2, "shorter": 1}
    cases = "".join(
        f'<testcase classname="tests.test_a" name="test_{name}" time="{t}"/>' for name, t in seconds.items()
    )
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuite>{cases}</testsuite>", "utf-8")
    unseen = {f"tests/test_b.py::test_{i}" for i in range(5)}
    found = slow.slow_in([report], unseen | {"tests/test_a.py::test_listed"})
    assert found == ["tests/test_a.py::test_listed", "tests/test_a.py::test_long", *sorted(unseen)]
    with pytest.raises(SystemExit, match="no report has a slow test"):
        slow.slow_in([report], unseen)


def test_type_checkers_read_the_annotations():
    """Without this file they take everything of an installed jcfl for Any (PEP 561)."""
    assert (ROOT / "jcfl" / "py.typed").is_file()


def test_version_is_that_of_the_changelog():
    """Between two releases it is a version under development, so that it is not taken for the one before."""
    section = re.findall(r"(?m)^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    unreleased = section[0] == "Unreleased"
    last = Version(section[unreleased])
    assert Version(__version__).is_devrelease == unreleased
    assert Version(__version__) > last if unreleased else Version(__version__) == last
    assert Version(str(read("CITATION.cff")["version"])) == last  # users cite a release


def test_citation_has_what_the_format_needs():
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["authors"] == [{"name": "The jcfl authors"}]
    assert citation["license"] == "Apache-2.0"


@pytest.mark.parametrize(
    "text",
    ["Clients that were never asked", "asked each round", "the same figures", "figures until then", "clients equal"],
)
def test_odd_words_are_found(text):
    assert ODD.search(text)


def test_texts_have_the_words_of_the_field():
    """Clients are sampled and predict, metrics are no figures: see "Words" in CONTRIBUTING."""
    found = [
        f"{path.relative_to(ROOT)}: {' '.join(odd[0].split())}"
        for path in TEXTS
        for odd in ODD.finditer(re.sub(r"(?s)\n## Words\n.*?\n## ", "", path.read_text("utf-8")))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_have_what_github_asks_for(path):
    """A name, a description, and fields with unique ids, of which one at least is no plain text."""
    template = yaml.safe_load(path.read_text("utf-8"))
    assert template["name"]
    assert template["description"]
    fields = [field for field in template["body"] if field["type"] != "markdown"]
    assert fields
    assert len({field["id"] for field in fields}) == len(fields)
    for field in fields:
        assert field["type"] in {"input", "textarea", "dropdown", "checkboxes"}
        assert field["attributes"]["label"]
        options = field["attributes"].get("options", [])
        assert all(isinstance(option, str) for option in options), "YAML makes a boolean of Yes"
    assert read(".github", "ISSUE_TEMPLATE", "config.yml") == {"blank_issues_enabled": True}


def test_workflow_runs_the_one_check_on_the_oldest_and_a_recent_python():
    workflow = read(".github", "workflows", "ci.yml")
    assert {"push", "pull_request"} <= set(workflow[True]), "YAML 1.1 reads the key `on` as true"
    job, oldest = workflow["jobs"]["check"], workflow["jobs"]["oldest"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.13"]
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert any("-c tests/constraints-oldest.txt" in step.get("run", "") for step in oldest["steps"])


def test_both_ends_of_the_dependencies_are_pinned():
    """The oldest versions are the lower bounds, and the newest ones are within them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [Requirement(one) for one in project["dependencies"] + project["optional-dependencies"]["test"]]
    for file in ("tests/constraints-oldest.txt", "constraints.txt"):
        lines = [line for line in (ROOT / file).read_text("utf-8").splitlines() if line and line.lstrip()[0] != "#"]
        pinned = [Requirement(line) for line in lines]
        for one in needed:
            same = [pin for pin in pinned if canonicalize_name(pin.name) == canonicalize_name(one.name)]
            assert same, f"{one.name} is not in {file}"
            for pin in same:
                (version,) = pin.specifier
                assert one.specifier.contains(version.version), f"{pin} in {file}, {one} in pyproject.toml"


def test_documentation_is_built_from_the_files_that_are_there():
    built = read(".readthedocs.yaml")
    assert built["version"] == 2
    assert (ROOT / built["sphinx"]["configuration"]).is_file()
    (installed,) = built["python"]["install"]
    assert installed["path"] == "."
    assert installed["extra_requirements"] == ["docs"]
    assert "\ndocs = [" in (ROOT / "pyproject.toml").read_text("utf-8")
