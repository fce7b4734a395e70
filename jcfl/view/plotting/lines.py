"""Figures of scores: against rounds, and against an option that differs between runs."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jcfl import metrics, results
from jcfl.errors import InputError, unknown
from jcfl.nested import flat
from jcfl.results import History
from jcfl.view.mistakes import unknown_metric
from jcfl.view.plotting.style import (
    LACKING,
    decades,
    entry,
    everybody_alone,
    figure,
    in_per_cent,
    legend_above,
    line,
    marker,
    panels,
    signed,
    titles,
    whole_numbers,
)

TRAINED = (
    "rounds",
    "participation",
    "on_divergence",
    "data",
    "scenario",
    "model",
    "method",
    "train",
    "attack",
    "reliability",
    "privacy",
    "stop",
)
"""The keys of a configuration that change training, besides its seeds and its engine."""

LETTER = 0.06
"""Inches of a letter of a title."""

SEEDS = ("scenario.seed",)
"""The options that say which federation is drawn, and not how."""

CROSSES = 10
"""The most crosses on a line, where not all seeds have a value."""


@figure(single=False)
def curves(runs: Sequence[History], scores: Sequence[str] | str | None = None, columns: int | None = None) -> Figure:
    """Scores against rounds: the mean over seeds, and a band of one sample standard deviation around it, or a bar.

    A cross is where not all seeds have a value, for instance because one of them diverged.

    Args:
        runs: histories or folders, laid over each other.
        scores: the scores, one panel each; by default those that the table of scores names for this figure.
        columns: panels in a row.
    """
    return against_rounds(runs, listed(scores) or shown_scores(runs, "curves"), columns)


@figure(single=False)
def clusters(runs: Sequence[History], columns: int | None = None) -> Figure:
    """The number of clusters, the clustering objective and the agreement with the true groups against rounds.

    Args:
        runs: histories or folders, laid over each other.
        columns: panels in a row.
    """
    grouped = [run for run in runs if (run.labels >= 0).any() and not everybody_alone(run)]
    if not grouped:
        raise InputError("no run has clusters of several clients")
    scores = shown_scores(grouped, "clusters")
    shown = against_rounds(grouped, scores, columns, among=runs)
    groups = np.unique(grouped[0].groups[grouped[0].groups >= 0])
    if "clusters" in scores and groups.size:
        axes = shown.axes[scores.index("clusters")]
        axes.set_ylim(top=max(axes.get_ylim()[1], 1.15 * groups.size))
        axes.axhline(groups.size, color="#555555", linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        axes.annotate(
            f"true groups: {groups.size}", (1, groups.size), xycoords=("axes fraction", "data"), xytext=(-2, 2),
            textcoords="offset points", ha="right", va="bottom", fontsize=6.5, color="#555555",
        )  # fmt: skip
    return shown


@figure(single=False)
def quality(runs: Sequence[History], columns: int | None = None) -> Figure:
    """The quality of clusters and the constants of Ma's analysis (2023) against rounds, where runs measured them.

    Args:
        runs: histories or folders, laid over each other, that ran with `evaluate_quality: true`.
        columns: panels in a row.
    """
    measured = [run for run in runs if any(has_score(run, name) for name in metrics.scores("quality"))]
    if not measured:
        raise InputError("no run measured the quality of its clusters; run with evaluate_quality: true")
    return against_rounds(measured, shown_scores(measured, "quality"), columns or 4, 1.75, among=runs)


@figure(single=False)
def effect(
    runs: Sequence[History],
    key: str | None = None,
    scores: Sequence[str] | str | None = None,
    columns: int | None = None,
) -> Figure:
    """Last scores against an option that differs between runs, with one line for each value of a second one.

    Runs that differ in their seeds alone, also in `scenario.seed`, are one point, the mean over all of them.

    Args:
        runs: histories or folders, as a sweep leaves them; those that diverged are left out.
        key: the option on the x-axis, such as `method.tau`; by default the one with the most values.
        scores: the scores, one panel each; by default those that the table of scores names for this figure.
        columns: panels in a row.
    """
    runs = [run for run in runs if "failed" not in run.summary]
    settings = [numbers(results.settings(run)) for run in runs]
    varied = differing(settings)
    if not varied:
        raise InputError("no number in the configurations differs between these runs")
    key = key or max(varied, key=lambda name: len(set(varied[name])))
    if key not in varied:
        raise unknown("option that differs between the runs:", key, varied)
    hues = apart_from(key, [options(results.settings(run)) for run in runs])
    scores = [
        name for name in listed(scores) or shown_scores(runs, "effect") if any(has_score(run, name) for run in runs)
    ]
    shown, axes = panels(len(scores), columns, 2.2)
    for score, axis in zip(scores, axes, strict=True):
        for index, name in enumerate(dict.fromkeys(hues)):
            chosen = [i for i, own in enumerate(hues) if own == name and has_score(runs[i], score)]
            x = sorted({varied[key][i] for i in chosen})
            last = [np.concatenate([runs[i][score][:, -1] for i in chosen if varied[key][i] == value]) for value in x]
            mean, spread = known_means(last), [results.deviation(values) for values in last]
            look = {**line(index), "marker": marker(index), "capsize": 2, "elinewidth": 0.8}
            axis.errorbar(x, mean, spread, label=entry(name) or None, **look)
            mark_lacking(axis, x, mean, last)
        scale_axis(axis, score)
        axis.set_xlabel(key)
        if spans_decades(varied[key]):
            decades(axis.xaxis)
        elif all(isinstance(value, int) for value in varied[key]):
            whole_numbers(axis.xaxis)
    legend_above(shown, axes)
    return shown


@figure(single=False)
def privacy(
    runs: Sequence[History], scores: Sequence[str] = ("accuracy_micro", "ari"), columns: int | None = None
) -> Figure:
    """Last scores against the last ε of client-level differential privacy, with one line for each method.

    Bars are one sample standard deviation over seeds. A run without privacy, which has no ε, is a dashed line.

    Args:
        runs: histories or folders, as a sweep over `privacy.noise` leaves them.
        scores: the scores, one panel each.
        columns: panels in a row.
    """
    if not any(has_score(run, "epsilon") for run in runs):
        raise InputError("no run has ε; set privacy.clip and privacy.noise")
    shown, axes = panels(len(scores), columns, 2.2)
    for score, axis in zip(scores, axes, strict=True):
        for index, name in enumerate(dict.fromkeys(map(method_name, runs))):
            own = [run for run in runs if method_name(run) == name and has_score(run, score)]
            found = [(float(np.nanmax(run["epsilon"])), run) for run in own if has_score(run, "epsilon")]
            found.sort(key=lambda pair: pair[0])
            look = {**line(index), "marker": marker(index), "capsize": 2, "elinewidth": 0.8}
            last = [run[score][:, -1] for _, run in found]
            x, mean, spread = [x for x, _ in found], known_means(last), [results.deviation(values) for values in last]
            axis.errorbar(x, mean, spread, label=entry(name), **look)
            mark_lacking(axis, x, mean, last)
            for run in own:
                if not has_score(run, "epsilon"):
                    axis.axhline(*known_means([run[score][:, -1]]), color=look["color"], linestyle=(0, (4, 2)))
        scale_axis(axis, score)
        axis.set_xlabel(metrics.score("epsilon").title)
        decades(axis.xaxis)
    legend_above(shown, axes)
    return shown


def listed(scores: Sequence[str] | str | None) -> Sequence[str]:
    """The scores asked for, where one may be given by its name alone."""
    return [scores] if isinstance(scores, str) else scores or ()


def against_rounds(
    runs: Sequence[History],
    scores: Sequence[str],
    columns: int | None,
    height: float = 2.1,
    among: Sequence[History] = (),
) -> Figure:
    """Panels of scores against rounds; each is so many inches high.

    Args:
        among: all runs, of which `runs` are those that can be drawn: a run has one name and look in all figures.
    """
    every = list(among or runs)
    named = {id(run): (name, line(index)) for index, (run, name) in enumerate(zip(every, titles(every), strict=True))}
    for score in scores:
        if not any(has_score(run, score) for run in runs):
            raise unknown_metric("score", score, {name for run in runs for name in run.scores})
    shown, axes = panels(len(scores), columns, height)
    for score, axis in zip(scores, axes, strict=True):
        for run in runs:
            if has_score(run, score):
                draw_run(axis, run, score, *named[id(run)])
        for run in runs:
            if has_score(run, score):
                mark_lacking(axis, run.rounds, known_means(run[score].T), run[score].T)
        scale_axis(axis, score)
        axis.set_xlabel("round")
        whole_numbers(axis.xaxis)
    legend_above(shown, axes, several=len(every) > 1)
    return shown


def draw_run(axis: Axes, run: History, score: str, name: str, look: Mapping[str, Any]) -> None:
    """Draw the line of one run, with a band if it has several seeds; a single round has a bar: a band has no width."""
    values = run[score]
    there = ~np.isnan(values).all(0)
    rounds, values = run.rounds[there], values[:, there]
    mean, std = known_means(values.T), results.deviation(values)
    axis.plot(rounds, mean, label=entry(name), marker="o" if len(rounds) < 3 else None, **look)
    if len(run.seeds) > 1 and len(rounds) == 1:
        axis.errorbar(rounds, mean, std, fmt="none", ecolor=look["color"], capsize=2, elinewidth=0.8)
    elif len(run.seeds) > 1:
        axis.fill_between(rounds, mean - std, mean + std, color=look["color"], alpha=0.18, linewidth=0)


def known_means(values: Iterable[np.ndarray]) -> np.ndarray:
    """The mean over the seeds that have a value, for each of several settings or rounds; NaN where none has one."""
    return np.array([np.nan if np.isnan(own).all() else np.nanmean(own) for own in values])


def mark_lacking(axis: Axes, x: Sequence[float] | np.ndarray, mean: np.ndarray, values: Iterable[np.ndarray]) -> None:
    """Draw crosses on means where some seeds have no value, so that the mean is that of the others."""
    places = np.flatnonzero([0 < np.isnan(own).sum() < len(own) for own in values])
    if places.size:
        some = places[np.unique(np.linspace(0, len(places) - 1, min(CROSSES, len(places))).round().astype(int))]
        look: dict[str, Any] = {"marker": "x", "s": 36, "linewidths": 0.9, "color": "#333333", "zorder": 5}
        axis.scatter(np.asarray(x)[some], mean[some], label=LACKING, **look)


def scale_axis(axis: Axes, score: str) -> None:
    """Set the title and the scale of a score's axis."""
    one = metrics.score(score)
    set_y_title(axis, one.title)
    if one.unit == "%":
        in_per_cent(axis.yaxis)
    if one.is_whole:
        whole_numbers(axis.yaxis)
        axis.set_ylim(bottom=0)
    if score == "ari":
        axis.set_ylim(min(axis.get_ylim()[0], -0.03), 1.05)


def set_y_title(axis: Axes, title: str) -> None:
    """Write the title of a y-axis, in lines of about one length that its panel has room for.

    They may be a fifth longer than the panel is high, because nothing else is beside the numbers of the x-axis.
    """
    most = max(1, int(1.2 * axis.bbox.height / axis.figure.dpi / LETTER))
    broken = [textwrap.wrap(title, width, break_long_words=False) for width in range(1, most + 1)]
    axis.set_ylabel("\n".join(next(lines for lines in broken if len(lines) == len(broken[-1]))))


def method_name(run: History) -> str:
    """The name of a run's method, which the run of a sweep has in its summary alone."""
    return run.summary.get("method", run.name)


def shown_scores(runs: Sequence[History], place: metrics.Place) -> list[str]:
    """The scores that a figure shows and that at least one run has, each beside itself on validation examples.

    Raises:
        InputError: no run has any of them.
    """
    names = [prefix + name for name in metrics.scores(place) for prefix in ("", metrics.VALIDATION)]
    found = [name for name in names if any(has_score(run, name) for run in runs)]
    if not found:
        raise InputError(f"no run has a score that this figure shows: {', '.join(metrics.scores(place))}")
    return found


def has_score(run: History, score: str) -> bool:
    """Whether a run has a score at any round."""
    return score in run.scores and bool((~np.isnan(run.scores[score])).any())


def numbers(settings: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the options of a configuration."""
    table = options(settings)
    return {key: v for key, v in table.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What changes training in a configuration, under dotted names, without seeds."""
    every = flat({key: settings[key] for key in TRAINED if key in settings})
    return {key: value for key, value in every.items() if key not in SEEDS}


def apart_from(key: str, tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """What runs differ in besides one option, in words; empty for runs that differ in nothing else.

    An option is named only if those before it do not tell the same runs apart: of two methods the names are enough.
    """
    every = dict.fromkeys(name for table in tables for name in table if name != key)
    names = sorted(every, key=lambda name: not name.endswith(".name"))
    found: list[tuple[tuple[str, Any], ...]] = [() for _ in tables]
    for name in names:
        finer = [(*own, (name, table.get(name))) for own, table in zip(found, tables, strict=True)]
        if len(set(map(str, finer))) > len(set(map(str, found))):
            found = finer
    words = [", ".join(said(name, value) for name, value in own if value is not None) for own in found]
    return [name or "without" for name in words] if len(set(words)) > 1 else words


def said(name: str, value: Any) -> str:
    """An option with its value, such as `lr = 0.1`; for the name of a piece, the name alone."""
    if name.endswith(".name"):
        return str(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{option_name(name)} = {signed(f'{value:zg}') if number else value}"


def differing(settings: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The options that all runs have and that are not the same in all of them."""
    common = [key for key in next(iter(settings), ()) if all(key in one for one in settings)]
    table = {key: [one[key] for one in settings] for key in common}
    return {key: values for key, values in table.items() if len(set(values)) > 1}


def option_name(key: str) -> str:
    """An option's name without its section."""
    return key.rpartition(".")[2]


def spans_decades(values: Sequence[float]) -> bool:
    """Whether the largest value is at least 50 times the smallest, so that a logarithmic axis shows them better."""
    return min(values) > 0 and max(values) / min(values) >= 50
