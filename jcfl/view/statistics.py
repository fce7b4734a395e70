"""The statistics of a comparison: arrays in, numbers out. Methods are compared by differences of pairs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.05
"""Of all tests, and of all intervals: these hold the mean with probability 1 - LEVEL."""

RESAMPLES, DRAWS = 9999, 10**8
"""Resamples of a bootstrap, and the numbers that it draws at most; of a million clients there are fewer resamples."""

FEW = 6
"""With fewer values than this, an interval is Student's, because that of a bootstrap is too narrow."""

DIGITS = 6
"""Decimals of scores of at most 1 that are not rounding errors of float32."""


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


class Outcome(NamedTuple):
    """The outcome of a test of paired differences."""

    name: str  # "Wilcoxon" or "t"
    p: float  # two-sided


class Ranks(NamedTuple):
    """How methods rank over several federations."""

    mean: np.ndarray  # [k], the mean rank of each method; 1 is the best
    statistic: float  # Friedman's
    p: float
    critical: float  # Nemenyi's critical difference of two mean ranks at LEVEL


def exact(values: np.ndarray, largest: float) -> np.ndarray:
    """Values without the rounding errors of scores, which are float32, so that equal differences of counts are ties.

    >>> exact(np.array([0.01666671, 0.01666665]), 0.9).tolist()
    [0.016667, 0.016667]

    Args:
        values: scores, or differences of scores.
        largest: the largest score.
    """
    return np.round(values, DIGITS - math.ceil(math.log10(largest)) if largest > 0 else DIGITS)


def gap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Differences of pairs of scores, for a test. [n]"""
    return exact(one - other, float(np.abs([one, other]).max()))


def interval(differences: np.ndarray, weights: np.ndarray | None = None) -> Interval | None:
    """The interval of a mean: of a bootstrap by expanded percentiles (Hesterberg 2015), of few values by Student's t.

    A bootstrap cannot go beyond the most extreme values, so that of 3 normal ones covers the mean in 75 % of cases.

    Student's t has n - 1 degrees of freedom. The standard error of the weighted mean is s / sqrt(n_eff), with the
    effective number of pairs n_eff = (Σw)² / Σw² and the weighted variance s² = Σw(d - mean)² / Σw / (1 - 1 / n_eff).
    With equal weights these are n and the sample variance. Where differences vary less the more a pair weighs, the
    interval is wider than necessary.

    Args:
        differences: of pairs, [n].
        weights: of the pairs, [n]; by default they count equally. A pair and its weight are drawn together.

    Returns:
        The interval; None for fewer than two pairs.
    """
    from scipy import stats

    n = len(differences)
    if n < 2:
        return None
    if n < FEW:
        share = np.full(n, 1 / n) if weights is None else weights / np.sum(weights)
        mean, squares = float(share @ differences), float(share @ share)  # the latter is 1 / n_eff
        variance = float(share @ (differences - mean) ** 2) / (1 - squares)
        reach = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * math.sqrt(variance * squares)
        return Interval(mean - reach, mean + reach)
    tail = float(stats.norm.cdf(math.sqrt(n / (n - 1)) * stats.t.ppf(LEVEL / 2, n - 1)))
    found = stats.bootstrap(
        (differences, np.ones(n) if weights is None else weights),
        lambda values, weight, axis: (values * weight).sum(axis) / weight.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=1 - 2 * tail,
        n_resamples=max(min(RESAMPLES, DRAWS // n), 99),
        batch=max(10**7 // n, 1),
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def least(pairs: int, tests: int) -> float:
    """The least p that a two-sided Wilcoxon test of so many pairs can have, after Holm's correction for several tests.

    >>> least(5, 1), least(6, 1), least(6, 3)
    (0.0625, 0.03125, 0.09375)
    """
    return min(tests * 2.0 ** (1 - pairs), 1.0)


def paired_test(differences: np.ndarray, tests: int) -> Outcome | None:
    """A two-sided test that differences of pairs are 0 on average.

    It is Wilcoxon's signed-rank test, but Student's t test where there are too few pairs for the former to fall below
    LEVEL, whatever the differences. Equal differences have no deviation, so they always have the former.

    Args:
        differences: [n].
        tests: how many tests will be corrected for.

    Returns:
        The outcome; None for fewer than two pairs.
    """
    from scipy import special, stats

    n = len(differences)
    if n < 2:
        return None
    name = "Wilcoxon" if least(n, tests) < LEVEL else "t"
    if not np.any(differences):
        return Outcome(name, 1.0)
    if name == "Wilcoxon":
        # SciPy counts zeros when it decides whether pairs are so many that an approximation is good enough.
        found: Any = stats.wilcoxon(differences[differences != 0])
        return Outcome(name, float(found.pvalue))
    if np.ptp(differences) == 0:  # no deviation: scores are counts, so a few equal differences are no rare chance
        return Outcome("Wilcoxon", least(n, 1))
    t = abs(np.mean(differences)) / (np.std(differences, ddof=1) / math.sqrt(n))
    return Outcome(name, float(2 * special.stdtr(n - 1, -t)))


def holm(p: np.ndarray) -> np.ndarray:
    """The p-values of several tests, corrected by Holm (1979): the chance of any false alarm is that of one test.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p)
    found = np.empty(len(p))
    found[order] = np.minimum(np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)), 1)
    return found


def paired_tests(differences: Sequence[np.ndarray], tests: int) -> tuple[list[Outcome | None], np.ndarray]:
    """The paired tests of several methods, and their p-values corrected by Holm.

    Args:
        differences: of each method, [n].
        tests: how many tests the table has at most, which says whether they are Wilcoxon's.

    Returns:
        The outcome of each test, see `paired_test`; and the corrected p-values, NaN where there is no test. [methods]
    """
    found = [paired_test(gap, tests) for gap in differences]
    return found, holm(np.array([np.nan if one is None else one.p for one in found]))


def best(scores: Mapping[Any, np.ndarray], sign: int, tests: int) -> set[Any]:
    """The method with the best mean score, and those that are not worse.

    A method is worse if it differs significantly from the best one, or by the same difference with every seed: that has
    no deviation, so no test can judge it.

    Args:
        scores: by method, [seeds] each; two seeds or more.
        sign: 1 if higher scores are better, else -1.
        tests: see `paired_tests`; methods that cannot be the best are among the table's.
    """
    top = max(scores, key=lambda one: sign * scores[one].mean())
    gaps = {one: gap(values, scores[top]) for one, values in scores.items() if one != top}
    _, corrected = paired_tests(list(gaps.values()), tests)
    same = {one for one, values in gaps.items() if np.ptp(values) == 0 and values[0] != 0}
    return scores.keys() - same - {one for one, p in zip(gaps, corrected, strict=True) if p < LEVEL}


def ranks(scores: np.ndarray) -> Ranks:
    """Friedman's test that methods rank alike, and Nemenyi's critical difference (Demšar 2006, section 3.2.2).

    Args:
        scores: [b, k] of k methods on b federations, higher ones better; k is 3 at least.
    """
    from scipy import stats

    b, k = scores.shape
    scores = np.stack([exact(row, float(np.abs(row).max())) for row in scores])
    mean = stats.rankdata(-scores, axis=1).mean(0)
    with np.errstate(invalid="ignore"):  # where all scores are equal
        statistic, p = stats.friedmanchisquare(*scores.T)
    return Ranks(mean, float(statistic), float(p), critical_difference(k, b))


def critical_difference(methods: int, federations: int) -> float:
    """The difference of two mean ranks from which on they differ at LEVEL, by Nemenyi's test.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy import stats

    q = stats.studentized_range.ppf(1 - LEVEL, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * federations)))


def alike(mean: np.ndarray, critical: float) -> list[Interval]:
    """The longest stretches of mean ranks that do not differ, as the lines of a critical-difference diagram.

    >>> alike(np.array([1.0, 1.5, 2.4, 4.0]), 1.0)
    [Interval(low=1.0, high=1.5), Interval(low=1.5, high=2.4)]
    """
    found: list[Interval] = []
    for low in np.sort(mean):
        high = mean[(mean >= low) & (mean <= low + critical)].max()
        if high > low and (not found or high > found[-1].high):
            found.append(Interval(float(low), float(high)))
    return found


def front(cost: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Which points no other point beats: by a lower cost and a value not lower, or by a higher value at no higher cost.

    >>> front(np.array([1.0, 2.0, 2.0, 3.0]), np.array([0.5, 0.7, 0.6, 0.7])).tolist()
    [True, True, False, False]

    Args:
        cost: [k].
        value: [k], higher ones better.
    """
    better = (cost <= cost[:, None]) & (value >= value[:, None])
    strict = (cost < cost[:, None]) | (value > value[:, None])
    return np.logical_not((better & strict).any(1))
