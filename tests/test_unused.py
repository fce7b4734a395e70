"""Options that change nothing beside the values of others are named before training."""

import pytest

from jcfl import registry
from jcfl.errors import Notice
from jcfl.runs import config
from jcfl.runs.plan import planned
from jcfl.runs.unused import MARK, of_piece

registry.load()

MARKED = {
    (kind, name, option): entry[MARK]
    for kind in ("method", "addon", "aggregate", "describe", "compare", "group", "when", "training", "answer")
    for name in registry.names(kind)
    for option, entry in registry.schema(registry.find(kind, name)).items()
    if MARK in entry
}


def test_marks_name_options_and_values_that_there_are():
    assert ("addon", "robust", "beta") in MARKED
    for (kind, name, _), others in MARKED.items():
        known = registry.schema(registry.find(kind, name))
        for other, values in others.items():
            assert values is None or set(values) < set(known[other]["enum"]), (kind, name)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (
            {"name": "fedavg", "addons": [{"name": "robust", "beta": 0.2}]},
            r"^fedavg\+robust: addon robust: beta has no effect with rule=median, only with trimmed_mean$",
        ),
        (
            {"name": "fedavg", "aggregate": {"name": "mean", "server_lr": 0.5}},
            "^fedavg: aggregate.server_lr has no effect with server=none, only with sgd or momentum or adam",
        ),
        ({"name": "fesem_ma", "spread": 2.0}, "^fesem_ma: spread has no effect without growth$"),
        ({"name": "flhc", "clusters": 2, "capacity": 3}, "^flhc: capacity has no effect without distance_threshold$"),
        (
            {"name": "oneshot_kmeans", "layers": "first"},
            "^oneshot_kmeans: layers has no effect with distance=l1, only with layer$",
        ),
    ],
    ids=str,
)
def test_a_run_names_them(method, says):
    with pytest.warns(Notice, match=says):
        planned(config.read({"data": "digits", "scenario": "iid", "rounds": 1, "method": method}))


def test_a_capacity_is_of_clusters_that_are_not_counted():
    assert list(of_piece("group", "linkage", {"clusters": 2, "capacity": 3}, ""))
    assert not list(of_piece("group", "linkage", {"threshold": 2.0, "capacity": 3}, ""))


@pytest.mark.parametrize("given", [{}, {"beta": 0.1}, {"rule": "trimmed_mean", "beta": 0.2}], ids=str)
def test_defaults_and_options_that_are_used_are_not_named(given):
    assert not list(of_piece("addon", "robust", given, ""))
