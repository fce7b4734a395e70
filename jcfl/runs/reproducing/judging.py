"""The rule that judges a printed number, or a printed order of two; docs/reproduction/index.md has it in words."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

Verdict = Literal["reproduced", "not reproduced", "not judged", "cannot be run here", "not run"]
"""What is said of a claim, the order's as the number's."""

VERDICTS: tuple[Verdict, ...] = ("reproduced", "not reproduced", "not judged", "cannot be run here", "not run")

CERTAINTY = 0.95
"""Of the intervals."""

WIDEST = 0.05
"""Half of the widest interval that a number is judged by, as a share; 5 points of a percentage."""

WIDEST_COUNT = 0.5
"""The same for a count, such as that of clusters or rounds, in units of the printed count."""


BySeed = dict[int, float]
"""Our number of a claim by seed, in the unit of the table."""


class Printed(NamedTuple):
    """A number in a paper's table, in the unit of the table."""

    mean: float
    std: float | None  # over seeds; None where the paper prints none
    half: float  # half a unit of the last digit printed


class Judgement(NamedTuple):
    """A verdict, and why where the verdict itself does not say it."""

    verdict: Verdict
    why: str = ""


def defined(values: BySeed) -> "BySeed | Judgement":
    """The numbers of all seeds; or why they are not judged, where some of them are not finite."""
    lost = sum(not math.isfinite(value) for value in values.values())
    return Judgement("not judged", f"the score is not defined with {lost} of {len(values)} seeds") if lost else values


def since(before: Judgement, values: BySeed, seeds: int) -> "BySeed | Judgement":
    """What counts of an earlier judgement and the numbers found since.

    That a method failed with some seed, for example, counts until there are numbers of all `seeds`. That it could not
    be run on one machine says nothing about numbers of another one.
    """
    if len(values) >= seeds or (values and before.verdict == "cannot be run here"):
        return defined(values)
    return before


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t; None for fewer than two values.

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    n = len(values)
    if n < 2:
        return None
    from scipy.special import stdtrit

    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    reach = float(stdtrit(n - 1, (1 + CERTAINTY) / 2)) * spread / math.sqrt(n)
    return mean - reach, mean + reach


def number(values: Sequence[float], printed: Printed, widest: float) -> Judgement:
    """Whether a printed number is reproduced: our interval meets the printed mean ± its standard deviation.

    Args:
        values: ours, one per seed, in the unit of the table.
        printed: the paper's.
        widest: half of the widest interval that says anything.
    """
    found = interval(values)
    if found is None:
        return Judgement("not judged", "one seed has no interval")
    room = (printed.std or 0.0) + printed.half
    if found[1] < printed.mean - room or printed.mean + room < found[0]:
        return Judgement("not reproduced")
    if (found[1] - found[0]) / 2 > widest:
        return Judgement("not judged", f"our interval is wider than ± {widest:g} and would meet nearly anything")
    return Judgement("reproduced")


def order(gaps: Sequence[float], printed: float) -> Judgement:
    """Whether a printed order of two numbers is reproduced, by their paired differences.

    Args:
        gaps: the number that is printed as the higher one, less the other one, one per seed.
        printed: the same difference in the paper, above 0.
    """
    found = interval(gaps)
    if found is None:
        return Judgement("not judged", "one seed has no interval")
    if found[0] > 0:
        return Judgement("reproduced")
    if found[1] < printed:
        return Judgement("not reproduced")
    return Judgement("not judged", "our interval holds both 0 and the printed difference; more seeds would tell")
