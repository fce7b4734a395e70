"""Figures that can be read: numbers on axes, names, colours and widths, and which clients are drawn."""

import dataclasses

import pytest

from jcfl import results
from jcfl.view import plotting
from jcfl.view.plotting import style
from tests import folders


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return folders.run(tmp_path_factory.mktemp("readable") / "one")


def written(axis):
    """The numbers in view on an axis, also those at minor ticks."""
    axis.get_figure(root=True).draw_without_rendering()
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]


@pytest.mark.parametrize(
    ("limits", "across", "upwards"),
    [
        ((1, 8), ["1", "2", "5"], ["1", "2", "5"]),
        ((1, 4), ["1", "2"], ["1", "2", "3", "4"]),
        ((0.3, 20), ["1", "10"], ["0.5", "1", "2", "5", "10", "20"]),
        ((2.1, 4.5), ["3", "4"], ["3", "4"]),
        ((1, 4800), ["1", "10", "100", "1000"], ["1", "10", "100", "1000"]),
    ],
)
def test_numbers_on_logarithmic_axes_are_written_out(limits, across, upwards):
    """Figures set no mathematics; there are at least two numbers, and not more than there is room for."""
    with style.matplotlib.rc_context(style.STYLE):
        _, (axis,) = style.panels(1, None, 2.0)
        axis.set(xlim=limits, ylim=limits)
        for one, expected in ((axis.xaxis, across), (axis.yaxis, upwards)):
            style.decades(one)
            assert sorted(written(one), key=float) == expected


def test_a_decision_about_few_clients_has_numbers(one):
    run = results.load(one)
    decided = folders.DECIDED | {"clusters": [1, 2, 4, 4], "sizes": [8]}
    _, count = plotting.decision(dataclasses.replace(run, summary={"decided": decided})).axes
    assert sorted(written(count.yaxis)) == ["1", "2", "3", "4"]
