"""Nested settings under dotted names, and the places that read them so."""

from pathlib import Path

from jcfl.nested import flat, plain
from jcfl.view.plotting import lines
from jcfl.view.report import numbers

ONE = {
    "method": {"name": "ifca", "addons": [{"name": "cks", "lam": 0.5}]},
    "scenario": {"name": "rotated", "angles": (0, 90), "arrivals": {5: 0.5}},
    "data_dir": Path("data"),
    "rounds": 3,
}


def test_lists_are_single_values_unless_they_hold_mappings():
    assert flat(ONE) == {
        "method.name": "ifca",
        "method.addons.0.name": "cks",
        "method.addons.0.lam": 0.5,
        "scenario.name": "rotated",
        "scenario.angles": [0, 90],
        "scenario.arrivals.5": 0.5,
        "data_dir": "data",
        "rounds": 3,
    }
    assert plain(ONE)["scenario"]["arrivals"] == {5: 0.5}


def test_reports_and_plots_see_the_options_of_add_ons():
    other = {**ONE, "method": {"name": "ifca", "addons": [{"name": "cks", "lam": 0.1}]}, "data_dir": "elsewhere"}
    table = numbers.differences([ONE, other], ["one", "two"])
    assert table["columns"] == ["method.addons.0.lam"]
    assert table["rows"] == [("one", [("0.5", False)]), ("two", [("0.1", False)])]
    assert lines.numbers(ONE) == {"rounds": 3, "method.addons.0.lam": 0.5, "scenario.arrivals.5": 0.5}
