"""Scores of plug-ins: files have their values; their titles and units are known once their packages are imported."""

from collections.abc import Iterable

from jcfl import metrics, registry


def load_scores(names: Iterable[str]) -> None:
    """Load the plug-ins if one of these scores is not known so far, because it may be a plug-in's."""
    if not set(names) <= set(metrics.score_names()):
        registry.load()
