"""A comparison as tables of text, and these as Markdown, LaTeX, HTML and CSV."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jcfl import metrics
from jcfl.errors.words import counted
from jcfl.nested import flat
from jcfl.version import __version__
from jcfl.view import pages, statistics
from jcfl.view.comparing import WEIGHTS
from jcfl.view.report.numbers import size

MARK = "†"
"""What stands behind a score that differs significantly from the baseline's."""


class Cell(NamedTuple):
    """A text, and whether it is bold."""

    text: str
    bold: bool = False


class Grid(NamedTuple):
    """A table: a row for each method, of which the first cell is the name."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str


def grids(found: Mapping[str, Any]) -> Iterator[Grid]:
    """The tables of a comparison: for each metric scores and differences; of the first one clients and costs too."""
    for one in found["metrics"]:
        yield scores(found, one)
        for federation in one["federations"]:
            yield differences(found, one, federation)
    for federation in found["metrics"][0]["federations"]:
        yield costs(found, federation)


def scores(found: Mapping[str, Any], one: Mapping[str, Any]) -> Grid:
    """The scores of every method on every federation, and its mean rank."""
    tables = [{row["method"]: row for row in federation["rows"]} for federation in one["federations"]]
    methods = list(dict.fromkeys(name for table in tables for name in table))
    rows = [[Cell(name), *(score(one["metric"], table.get(name)) for table in tables)] for name in methods]
    columns = [federation["federation"] for federation in one["federations"]]
    note = f"{test_note(one, found['baseline'])}{tuning_note(one)}"
    alone = dict.fromkeys(name for table in tables for name, row in table.items() if not row["competes"])
    if alone:
        note += f" A method is never the best by a metric of clusters if each client has its own: {', '.join(alone)}."
    if one["without"]:
        note += f" Without this metric: {', '.join(one['without'])}."
    if has_tests(one):
        note = (
            f"Mean ± sample standard deviation over {counts(one)}. Bold: not significantly worse than the best. "
            f"{MARK} differs significantly from {found['baseline']}. {note}"
        )
    if one["ranks"]:
        placed = dict(zip(one["ranks"]["methods"], one["ranks"]["mean"], strict=True))
        columns.append("mean rank")
        rows = [[*row, Cell(f"{placed[row[0].text]:.2f}" if row[0].text in placed else "–")] for row in rows]
        note += rank_note(one["ranks"], len(tables))
    return Grid(capital(heading(one["metric"])), columns, rows, note)


def capital(text: str) -> str:
    """A text as a sentence begins."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text  # Ε for ε would be another sign


def heading(metric: str) -> str:
    """A metric's title with its unit.

    >>> heading("accuracy_micro")
    'accuracy, %'
    """
    one = metrics.score(metric)
    return f"{one.title}, %" if one.unit == "%" else one.title


def score(metric: str, row: Mapping[str, Any] | None) -> Cell:
    """A method's score."""
    if row is None:
        return Cell("–")
    one, apart = metrics.score(metric), row["difference"]
    spread = "" if row["std"] is None else f" ± {one.scale * row['std']:.{one.digits}f}"
    mark = MARK if apart and apart["p"] is not None and apart["p_holm"] < statistics.LEVEL else ""
    return Cell(f"{one.scale * row['mean']:z.{one.digits}f}{spread}{mark}", bool(row["best"]))


def counts(one: Mapping[str, Any]) -> str:
    """How many seeds the federations have.

    >>> counts({"federations": [{"seeds": [0, 1]}, {"seeds": [0]}]})
    '1 to 2 seeds'
    """
    seeds = sorted({len(federation["seeds"]) for federation in one["federations"]})
    return f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seed{'s' * (seeds[-1] > 1)}"


def test_note(one: Mapping[str, Any], baseline: str) -> str:
    """Which tests were made, and why where it was not Wilcoxon's."""
    told = dict.fromkeys(told_test(len(each["seeds"]), len(each["rows"]) - 1) for each in one["federations"])
    level = (
        f"Significant: p < {statistics.LEVEL:g}, corrected by Holm, for bold over the tests against the best method, "
        f"for {MARK} over those against {baseline}. "
    )
    return level * has_tests(one) + " ".join(told)


def has_tests(one: Mapping[str, Any]) -> bool:
    """Whether a metric was tested on any federation, which takes two seeds."""
    return any(len(each["seeds"]) > 1 for each in one["federations"])


def tuning_note(one: Mapping[str, Any]) -> str:
    """Which options were tuned, and by how much effort, the same for all methods of a federation."""
    efforts = dict.fromkeys(each["budget"] for each in one["federations"] if each["budget"])
    keys = dict.fromkeys(key for each in one["federations"] for values in each["tuned"].values() for key in values)
    return f" Tuned for every method: {', '.join(keys)}; {' or '.join(efforts)}." if efforts else ""


def told_test(seeds: int, tests: int) -> str:
    """The test of so many seeds in words.

    >>> told_test(10, 3)
    'With 10 seeds, p is from a two-sided Wilcoxon signed-rank test of the differences seed by seed.'
    """
    if seeds < 2:
        return "With one seed there is no test and no interval over seeds, and nothing is bold."
    least, test = statistics.least(seeds, tests), "Wilcoxon signed-rank test"
    if least < statistics.LEVEL:
        return f"With {seeds} seeds, p is from a two-sided {test} of the differences seed by seed."
    return (
        f"With {seeds} seeds and {counted(tests, 'test')}, the smallest possible p-value of a {test} is "
        f"{least:.2g} after Holm's correction. Therefore p is from a paired t test, which assumes normal differences. "
        f"Where all differences are equal, they have no deviation: p is from a {test}, and the worse one is not bold."
    )


def rank_note(found: Mapping[str, Any], federations: int) -> str:
    """Friedman's and Nemenyi's tests in words."""
    few = "; with so few federations both tests see large differences only" if federations < 10 else ""
    chi_square = "–" if math.isnan(found["statistic"]) else f"{found['statistic']:.2f}"  # where all methods tie
    friedman = f"Friedman's chi-square {chi_square}, p {p_value(found['p'])}"
    nemenyi = f"Nemenyi's critical difference {found['critical']:.2f}"
    return f" Ranks over {federations} federations: {friedman}; {nemenyi}{few}."


def differences(found: Mapping[str, Any], one: Mapping[str, Any], federation: Mapping[str, Any]) -> Grid:
    """The paired differences from the baseline on one federation."""
    score, seeds, rows = metrics.score(one["metric"]), len(federation["seeds"]), []
    for row in federation["rows"]:
        apart = row["difference"]
        if apart:
            low_high = [ends(one["metric"], apart[over]) for over in ("seeds", "clients")]
            cells = [signed(one["metric"], apart["mean"]), *low_high, p_value(apart["p"]), p_value(apart["p_holm"])]
            rows.append([Cell(row["method"]), *map(Cell, cells)])
    unit = ", in percentage points" if score.unit == "%" else ""
    way = lambda pairs: "Student's t" if pairs < statistics.FEW else "a bootstrap"
    many = federation["clients"]
    served = f"over {many} clients by {way(many)}, paired and averaged over seeds"
    if federation["drawn_anew"]:
        served = f"over {many} clients of each of {seeds} federations, one a seed, by {way(many * seeds)}, paired"
    over = [f"over seeds by {way(seeds)}, paired"] * (seeds > 1) + [served] * (one["metric"] in WEIGHTS)
    intervals = f"; intervals of 95 % {', and '.join(over)}" if over else ""
    note = (
        f"{capital(score.title)} less that of {found['baseline']}{unit}{intervals}. "
        f"{told_test(seeds, len(federation['rows']) - 1)}"
    )
    columns = ["difference", "over seeds", "over clients", "p", "p, Holm"]
    title = f"{capital(score.title)}: differences from {found['baseline']}, {federation['federation']}"
    return Grid(title, columns, rows, note)


def signed(metric: str, value: float) -> str:
    """A difference with its sign, unless it is rounded to zero.

    >>> signed("accuracy_micro", -0.0123), signed("accuracy_micro", -1e-6)
    ('−1.23', '0.00')
    """
    one = metrics.score(metric)
    text = f"{one.scale * value:+z.{one.digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def ends(metric: str, interval: Sequence[float] | None) -> str:
    """The ends of an interval."""
    return "–" if interval is None else f"{signed(metric, interval[0])} to {signed(metric, interval[1])}"


def p_value(value: float | None) -> str:
    """A probability.

    >>> p_value(0.03125), p_value(1e-9), p_value(None), p_value(math.nan)
    ('0.031', '< 0.001', '–', '–')
    """
    return "–" if value is None or math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def costs(found: Mapping[str, Any], federation: Mapping[str, Any]) -> Grid:
    """How clients are served on one federation, and what a run costs, in all and until the target."""
    others = list(dict.fromkeys(name for row in federation["rows"] for name in row["worse_off"]))
    columns = ["worst decile, %", *(f"worse off than {name}, %" for name in others)]
    columns += ["sent", "computed", "on the Pareto front"]
    name, target, seeds = found["metrics"][0]["metric"], found["target"], len(federation["seeds"])
    columns += ["rounds to target", "sent to target", "computed to target"] if target is not None else []
    rows = []
    for row in federation["rows"]:
        worse = (row["worse_off"].get(other) for other in others)
        cells = [percent(row["worst_decile"]), *map(percent, worse), size(row["bytes"]), size(row["flop"], "FLOP")]
        cells.append({True: "yes", False: "no", None: "–"}[row["pareto"]])
        cells += until(row["to_target"], seeds) if target is not None else []
        rows.append([Cell(row["method"]), *map(Cell, cells)])
    title = metrics.score(name).title
    aim = "" if target is None else f" Target: {title} {shown(name, target)}, at an evaluated round."
    return Grid(f"Clients and costs, {federation['federation']}", columns, rows, cost_note(name, bool(others)) + aim)


def cost_note(metric: str, with_others: bool) -> str:
    """The columns of the table of costs in words; `with_others`: whether some say who is worse off."""
    one = metrics.score(metric)
    served = "It does not count attackers."
    if with_others:
        served = "Worse off: the share of clients with a lower accuracy, averaged over seeds. Neither counts attackers."
    return (
        f"Worst decile: the accuracy that nine clients in ten exceed. {served} Sent: models down and up in the run of "
        "a seed. "
        "Computed: the local training of all sampled clients, a gradient counted as three predictions. On the Pareto "
        f"front: no other method with at most as many bytes has a {one.better} {one.title}, and none with fewer bytes "
        "has the same."
    )


def shown(metric: str, value: float) -> str:
    """A value of a metric with its unit."""
    one = metrics.score(metric)
    return f"{one.scale * value:g}{one.suffix}"


def percent(value: float | None) -> str:
    """A share."""
    return "–" if value is None else f"{100 * value:.1f}"


def until(spent: Mapping[str, Any], seeds: int) -> list[str]:
    """What is spent until the target, over the seeds that reach it."""
    if not spent["reached"]:
        return ["not reached", "–", "–"]
    part = "" if spent["reached"] == seeds else f" ({spent['reached']} of {seeds} seeds)"
    return [f"{spent['rounds']:.1f}{part}", size(spent["bytes"]), size(spent["flop"], "FLOP")]


def texts(found: Mapping[str, Any], pictures: Mapping[str, str]) -> dict[str, str]:
    """A comparison as `md`, `tex`, `html` and `csv`.

    Args:
        found: what `jcfl.view.comparing.comparison` returns.
        pictures: the figures as SVG in data URLs, by the names of their files without the ending.
    """
    environment, every = pages.environment(), list(grids(found))
    about = {"grids": every, "pictures": pictures, "version": __version__, "baseline": found["baseline"]}
    made = {kind: environment.get_template(f"comparing/page.{kind}").render(about) for kind in ("md", "tex", "html")}
    return made | {"csv": long(found)}


def long(found: Mapping[str, Any]) -> str:
    """A comparison as CSV: a line for each metric, federation and method, numbers as they are."""
    lines = [
        {"metric": one["metric"], "federation": federation["federation"], "seeds": len(federation["seeds"])}
        | {key: value for key, value in flat(row | pairs(row)).items() if not isinstance(value, list)}
        for one in found["metrics"]
        for federation in one["federations"]
        for row in federation["rows"]
    ]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def pairs(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's intervals with names for their ends."""
    apart = row["difference"]
    named = lambda interval: interval and {"low": interval[0], "high": interval[1]}
    difference = apart and apart | {over: named(apart[over]) for over in ("seeds", "clients")}
    return {"interval": named(row["interval"]), "difference": difference}
