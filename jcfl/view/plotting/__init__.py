"""Figures of runs, from a run's folder or from the history that `jcfl.run` returned.

>>> list(FIGURES)[:3]
['curves', 'clusters', 'clients']
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_origin

from matplotlib.figure import Figure

from jcfl import registry
from jcfl.errors import InputError, argument, unknown
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
from jcfl.view.plotting.style import FORMATS, has_clusters, histories, refuse_seed, save, titles

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
    runs: Sequence[History], names: Sequence[str] = (), **options: Any
) -> Iterator[tuple[str, Figure | InputError]]:
    """The figures of some runs, each with the name of its file. If a figure cannot be drawn, its error is given.

    Args:
        runs: histories.
        names: the figures to draw; by default all that make sense for these runs.
        options: parameters of the figures by name, such as `at`, `by`, `seed` and `columns`; a figure gets those that
            it has. None stands for the figure's default.

    Raises:
        InputError: there is no figure with one of the names, none of the figures takes an option, or no run has the
            seed.
    """
    for name in names:
        if name not in FIGURES:
            raise unknown("figure", name, FIGURES)
    given = {key: value for key, value in options.items() if value is not None}
    wanted = [name for name in FIGURES if not names or name in names]
    refuse_untaken(wanted, given)
    refuse_seed(runs, given.get("seed"))
    for name in wanted:
        if name in SEVERAL:
            yield name, attempted(name, list(runs), given)
        elif name == "heatmap":
            yield name, attempted(name, runs[0], given)
    chosen = [i for i, run in enumerate(runs) if names or has_clusters(run)]
    for i in chosen if names else chosen[:DETAILED]:
        for name in wanted:
            if name in SINGLE and name != "heatmap":
                stem = f"{name}-{titles(runs)[i].replace('/', '-')}" if len(runs) > 1 else name
                yield stem, attempted(name, runs[i], given)


def attempted(name: str, what: Sequence[History] | History, given: Mapping[str, Any]) -> Figure | InputError:
    """A figure, or the error that says why it cannot be drawn."""
    try:
        return FIGURES[name](what, **taken(name, given))
    except InputError as error:
        return error


def refuse_untaken(names: Sequence[str], given: Mapping[str, Any]) -> None:
    """Refuse an option that none of some figures has, or whose value none of them takes."""
    for key, value in given.items():
        having = [name for name in names if key in parameters(name)]
        if not having:
            every = ", ".join(name for name in FIGURES if key in parameters(name))
            raise InputError(
                f"the option {argument(key)} is for other figures than {', '.join(names)}; it is for {every}"
            )
        refused = []
        for name in having:
            try:
                taken(name, {key: value})
            except InputError as error:
                refused.append(error)
        if len(refused) == len(having):
            raise refused[0]


def taken(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a figure has, of those given; where it takes one value, a list of one is this value.

    >>> taken("distances", {"at": ["5"], "by": "pca"}), taken("embedding", {"at": ["5"], "by": "pca"})
    ({'at': 5}, {'at': [5], 'by': 'pca'})

    Raises:
        InputError: the figure's annotations refuse a value.
    """
    known = {key: parameter for key, parameter in parameters(name).items() if key in given}
    values = {key: given[key] for key in known}
    for key, parameter in known.items():
        single = get_origin(parameter.annotation) not in (Sequence, tuple)
        if single and isinstance(values[key], list):
            if len(values[key]) != 1:
                got = ", ".join(map(str, values[key]))
                raise InputError(f"figure {name!r}: {argument(key)}: expected one value, got {got}")
            (values[key],) = values[key]
    # A value in a list has the list's name and its place, such as at.1.
    return registry.check(f"figure {name!r}", known, values, named=lambda key: argument(key.partition(".")[0]))


def parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """A figure's parameters: what it shows, and its options."""
    return inspect.signature(FIGURES[name]).parameters
