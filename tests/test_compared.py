"""Comparisons and sweeps as objects in Python: tables for notebooks and pandas, figures and files."""

from types import SimpleNamespace

import pytest

import jcfl
from jcfl import cli, results
from jcfl.errors import InputError
from jcfl.runs.sweeping import Sweep
from tests import folders

LEVELS = {"fedavg": 0.8, "<b>own": 0.9}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of a comparison of two methods over three seeds, which were evaluated four times."""
    top = tmp_path_factory.mktemp("compared")
    for name, level in LEVELS.items():
        scores = [[level - 0.1 * (3 - j) + 0.001 * seed**2 * (1 + level) for j in range(4)] for seed in range(3)]
        folders.run(top / "runs" / name, [0, 1, 2], name, accuracy_micro=scores)
    return top


def test_a_comparison_is_shown_tabulated_drawn_and_written(place, tmp_path):
    made = jcfl.compare(place, baseline="fedavg")
    assert repr(made) == "<Comparison with fedavg by accuracy_micro>"
    assert "| fedavg |" in str(made) and "differences from fedavg" in str(made)
    assert "<table>" in made._repr_html_() and "&lt;b&gt;own" in made._repr_html_() and "<b>" not in made._repr_html_()
    table = made.to_dataframe().set_index("method")
    assert set(table.index) == {*LEVELS} and set(table["seeds"]) == {3}
    assert table.loc["<b>own", "difference.mean"] == pytest.approx(0.1, abs=0.02)
    assert "differences-accuracy_micro" in made.figures()
    assert {"compare.md", "compare.tex", "compare.html", "compare.csv"} <= {file.name for file in made.write(tmp_path)}
    assert cli.status(["compare", str(place), "--baseline", "fedavg", "--out", str(tmp_path / "by command")]) == 0
    assert (tmp_path / "compare.md").read_text() == (tmp_path / "by command" / "compare.md").read_text()


def test_histories_are_compared_as_their_folders(place):
    runs = [results.load(place / "runs" / name) for name in LEVELS]
    assert str(jcfl.compare(runs)) == str(jcfl.compare([str(place / "runs" / name) for name in LEVELS]))
    with pytest.raises(InputError, match=r"unknown baseline by accuracy_micro on .*: 'ifca'"):
        jcfl.compare(runs, baseline="ifca")
    runs[0].folder = None
    with pytest.raises(InputError, match="give the run a folder with out="):
        jcfl.compare(runs)


def test_a_sweep_is_one_table(place):
    points = [SimpleNamespace(values={"train.lr": lr, "seed": 0}) for lr in (0.1, 0.2)]
    table = Sweep(points, [results.load(place / "runs" / name) for name in LEVELS], "accuracy_micro", 1).to_dataframe()
    assert list(table)[:4] == ["train.lr", "method", "seed", "round"]
    assert table.groupby("train.lr")["seed"].nunique().to_dict() == {0.1: 3, 0.2: 3}


def test_pieces_and_lists_that_were_swept_can_be_grouped_by(place):
    """A module stands there as in the names of points, and not as the mapping that stands for it in files."""
    own = {"name": "given", "object": "Net-2", "value": {"width": "3"}}
    points = [SimpleNamespace(values={"model": model, "scenario.angles": [0, 90]}) for model in ("linear", own)]
    table = Sweep(points, [results.load(place / "runs" / name) for name in LEVELS], "accuracy_micro", 1).to_dataframe()
    sizes = table.groupby(["model", "scenario.angles"])["seed"].nunique().to_dict()
    assert sizes == {("linear", "0_90"): 3, ("Net-2", "0_90"): 3}
