"""Scores of plug-ins: a folder has their values, and their titles are known once the package is imported."""

from collections.abc import Iterable

from jcfl import metrics, registry
from jcfl.results import History


def load_scores(runs: Iterable[History]) -> None:
    """Load the plug-ins if one of them may have registered a score of some runs, which nobody has registered so far."""
    if not {metrics.bare_name(name) for run in runs for name in run.scores} <= metrics.scores().keys():
        registry.load()
