"""Figures of runs, from a run's folder or from the history that `jcfl.run` returned.

>>> list(FIGURES)[:3]
['curves', 'clusters', 'clients']
"""

import inspect
from collections.abc import Callable, Iterator, Sequence

from matplotlib.figure import Figure

from jcfl.errors import InputError, unknown
from jcfl.results import History
from jcfl.view.plotting.bars import with_addons
from jcfl.view.plotting.clientwise import clients, heatmap, label_map, samples
from jcfl.view.plotting.cosines import embedding, group_similarity, similarity
from jcfl.view.plotting.decision import decision
from jcfl.view.plotting.explained import apart, stability
from jcfl.view.plotting.lines import clusters, curves, effect, privacy, quality
from jcfl.view.plotting.membership import by_cluster, flow, groups_to_clusters, sizes
from jcfl.view.plotting.models import distances, model_embedding, model_similarity
from jcfl.view.plotting.search import search
from jcfl.view.plotting.style import FORMATS, has_clusters, histories, save, titles

__all__ = [
    "FIGURES",
    "FORMATS",
    "apart",
    "by_cluster",
    "clients",
    "clusters",
    "curves",
    "decision",
    "distances",
    "drawn",
    "effect",
    "embedding",
    "flow",
    "group_similarity",
    "groups_to_clusters",
    "heatmap",
    "histories",
    "label_map",
    "model_embedding",
    "model_similarity",
    "privacy",
    "quality",
    "samples",
    "save",
    "search",
    "similarity",
    "sizes",
    "stability",
    "titles",
    "with_addons",
]

SEVERAL = {
    function.__name__: function for function in (curves, clusters, clients, effect, with_addons, quality, privacy)
}
"""Figures that show several runs together."""

OF_MODELS = (model_embedding, model_similarity, distances)

SINGLE = {
    function.__name__: function
    for function in (
        decision,
        embedding,
        similarity,
        group_similarity,
        *OF_MODELS,
        by_cluster,
        sizes,
        flow,
        groups_to_clusters,
        stability,
        apart,
        samples,
        heatmap,
    )
}
"""Figures that show one run."""

FIGURES: dict[str, Callable[..., Figure]] = SEVERAL | SINGLE
"""All figures by name, in the order in which they are drawn."""

DETAILED = 4
"""The most runs for each of which all figures of one run are drawn, unless figures are named."""


def drawn(
    runs: Sequence[History], names: Sequence[str] = (), columns: int | None = None
) -> Iterator[tuple[str, Figure | InputError]]:
    """The figures of some runs, each with the name of its file. If a figure cannot be drawn, its error is given.

    Args:
        runs: histories.
        names: the figures to draw; by default all that make sense for these runs.
        columns: panels in a row.

    Raises:
        InputError: there is no figure with one of the names.
    """
    for name in names:
        if name not in FIGURES:
            raise unknown("figure", name, FIGURES)
    wanted = [name for name in FIGURES if not names or name in names]
    for name in wanted:
        if name in SEVERAL:
            yield name, attempted(name, list(runs), columns)
        elif name == "heatmap":
            yield name, attempted(name, runs[0], columns)
    chosen = [i for i, run in enumerate(runs) if names or has_clusters(run)]
    for i in chosen if names else chosen[:DETAILED]:
        for name in wanted:
            if name in SINGLE and name != "heatmap":
                stem = f"{name}-{titles(runs)[i].replace('/', '-')}" if len(runs) > 1 else name
                yield stem, attempted(name, runs[i], columns)


def attempted(name: str, what: Sequence[History] | History, columns: int | None) -> Figure | InputError:
    """A figure, or the error that says why it cannot be drawn."""
    parameters = inspect.signature(FIGURES[name]).parameters
    try:
        return FIGURES[name](what, **({"columns": columns} if "columns" in parameters else {}))
    except InputError as error:
        return error
