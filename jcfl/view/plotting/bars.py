"""Bars of last scores: methods with and without their add-ons."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from jcfl import metrics, results
from jcfl.errors import InputError
from jcfl.results import History
from jcfl.view.plotting.lines import LETTER, has_score, known_means, mark_lacking, options, set_y_title
from jcfl.view.plotting.style import colour, figure, in_per_cent, legend_above, panels

SCORES = ("accuracy_micro", "f1_micro")
"""The scores that are shown unless they are chosen."""


class Variant(NamedTuple):
    """A run by what it is without its add-ons, and by them."""

    base: tuple[tuple[str, str], ...]  # the options of the run without add-ons, under dotted names
    addons: tuple[tuple[str, str], ...]  # the names and the options of the add-ons


@figure(single=False)
def with_addons(runs: Sequence[History], scores: Sequence[str] = SCORES, columns: int | None = None) -> Figure:
    """Last scores of methods with and without add-ons, side by side (Ma 2023, Figs. 7.1 and 7.2).

    A bar is the mean over seeds, its line one sample standard deviation up and down. A cross on it is where not all
    seeds have a value. Runs that differ in their seeds alone are one bar. Methods and settings with only one run are
    left out.

    Args:
        runs: histories or folders, such as those of a comparison or a sweep.
        scores: the scores, one panel each.
        columns: panels in a row.
    """
    variants = [variant(results.settings(run)) for run in runs]
    order = list(dict.fromkeys(dict(one.base).get("method.name") for one in variants))
    bases = sorted(
        dict.fromkeys(one.base for one in variants), key=lambda base: order.index(dict(base).get("method.name"))
    )
    bases = [base for base in bases if len({one.addons for one in variants if one.base == base}) > 1]
    if not bases:
        raise InputError("no two of these runs differ in their add-ons alone")
    chosen = [i for i, one in enumerate(variants) if one.base in bases]
    kinds = sorted({variants[i].addons for i in chosen}, key=lambda addons: (len(addons), addons))
    names, kind_names = base_names(bases), addon_names(kinds)
    scores = [name for name in scores if any(has_score(runs[i], name) for i in chosen)]
    if not scores:
        raise InputError("none of these runs has one of these scores")
    shown, axes = panels(len(scores), columns, 2.3)
    width = 0.8 / len(kinds)
    for score, axis in zip(scores, axes, strict=True):
        one = metrics.score(score)
        for turn, kind in enumerate(kinds):
            mine = [i for i in chosen if variants[i].addons == kind and has_score(runs[i], score)]
            found = [bases.index(variants[i].base) for i in mine]
            places = sorted(set(found))
            last = [  # runs that differ in nothing else are seeds
                np.concatenate([runs[i][score][:, -1] for i, own in zip(mine, found, strict=True) if own == place])
                for place in places
            ]
            x = [place + (turn - (len(kinds) - 1) / 2) * width for place in places]
            mean, spread = known_means(last), [results.deviation(values) for values in last]
            look: dict[str, Any] = {"color": colour(turn), "edgecolor": "white", "hatch": HATCHES[turn % len(HATCHES)]}
            axis.bar(x, mean, width, label=kind_names[turn], linewidth=0.4, **look)
            axis.errorbar(x, mean, spread, fmt="none", ecolor="#333333", capsize=2)
            mark_lacking(axis, x, mean, last)
        axis.set_xticks(range(len(bases)), names)
        longest = max(len(line) for name in names for line in name.split("\n"))
        if longest * LETTER > axis.bbox.width / axis.figure.dpi / len(bases):
            axis.set_xticks(range(len(bases)), names, rotation=30, ha="right", rotation_mode="anchor")
        axis.set_xlim(-0.5, len(bases) - 0.5)  # also where a bar has no value
        axis.tick_params(axis="x", length=0)
        axis.grid(axis="x", visible=False)
        set_y_title(axis, one.title)
        if one.unit == "%":
            in_per_cent(axis.yaxis)
    legend_above(shown, axes)
    return shown


HATCHES = ("", "////", "....", "xxxx")
"""Patterns besides the colours, for print in grey."""


def variant(settings: Mapping[str, Any]) -> Variant:
    """A run's settings, split into its add-ons and the rest."""
    method = dict(settings.get("method", {}))
    addons, _ = method.pop("addons", ()), method.pop("label", None)
    extras = {f"{addon['name']}.{key}": value for addon in addons for key, value in addon.items()}
    return Variant(pairs(options({**settings, "method": method})), pairs(extras))


def pairs(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Keys and values as text, in an order of their own."""
    return tuple(sorted((key, str(value)) for key, value in values.items()))


def base_names(bases: Sequence[tuple[tuple[str, str], ...]]) -> list[str]:
    """A name for each method: its name, and the options by which it differs from others of that name."""
    tables = [dict(base) for base in bases]
    found = []
    for table in tables:
        alike = [other for other in tables if other["method.name"] == table["method.name"]]
        apart = [key for key in table if len({other.get(key) for other in alike}) > 1]
        lines = [table["method.name"], *(f"{key.rpartition('.')[2]} = {table[key]}" for key in apart)]
        found.append("\n".join(lines))
    return found


def addon_names(kinds: Sequence[tuple[tuple[str, str], ...]]) -> list[str]:
    """A name for each set of add-ons: their names, and the options by which sets of the same names differ."""
    tables = [dict(kind) for kind in kinds]
    titles = ["+".join(v for key, v in table.items() if key.endswith(".name")) or "without" for table in tables]
    found = []
    for table, title in zip(tables, titles, strict=True):
        alike = [other for other, own in zip(tables, titles, strict=True) if own == title]
        apart = [key for key in table if len({other.get(key) for other in alike}) > 1]
        found.append(", ".join([title, *(f"{key.rpartition('.')[2]} = {table[key]}" for key in apart)]))
    return found
