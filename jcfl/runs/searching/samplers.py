"""Samplers: what a search tries next. Each yields values for some trials, and is sent their scores."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from jcfl.errors import InputError, argument, optional_package
from jcfl.runs.searching.space import Axis, Range

Asked = list[dict[str, Any]]
"""The values of some trials by dotted key; they train side by side."""

Sampler = Generator[Asked, Sequence[float], None]
"""Yields what to try, and is sent the scores, of which higher ones are better and NaN is a run that diverged."""


def steps_and_points(axes: Mapping[str, Axis], trials: int) -> tuple[int, int]:
    """How many equal steps a grid makes of each range, and how many points it has then."""
    points = lambda steps: math.prod(axis.number(steps) for axis in axes.values())
    steps = max(1, bisect_right(range(1, trials + 1), trials, key=points))
    return steps, points(steps)


def grid(axes: Mapping[str, Axis], trials: int, batch: int, seed: int) -> Sampler:
    """All values, and ranges in as many equal steps as the number of trials allows.

    Raises:
        InputError: there are more points than trials.
    """
    steps, points = steps_and_points(axes, trials)
    if points > trials:
        most = argument("trials", trials)
        raise InputError(f"the grid has {points} points; expected at most {most}; give more, or fewer values")
    yield [at(axes, chosen) for chosen in itertools.product(*(axis.places(steps) for axis in axes.values()))]


def random(axes: Mapping[str, Axis], trials: int, batch: int, seed: int) -> Sampler:
    """Values drawn at random, each by itself."""
    rng = np.random.default_rng(seed)
    yield [at(axes, [axis.drawn(rng) for axis in axes.values()]) for _ in range(trials)]


def tpe(axes: Mapping[str, Axis], trials: int, batch: int, seed: int) -> Sampler:
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011), after one batch at random.

    Raises:
        InputError: Optuna is not installed.
    """
    optuna = with_optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    known = optuna.distributions
    spread: dict[str, Any] = {
        key: known.FloatDistribution(0, 1)
        if isinstance(axis, Range)
        else known.CategoricalDistribution(axis.places(trials))
        for key, axis in axes.items()
    }
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=batch, multivariate=True, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for start in range(0, trials, batch):
        asked = [study.ask(spread) for _ in range(min(batch, trials - start))]
        scores = yield [at(axes, [trial.params[key] for key in axes]) for trial in asked]
        for trial, score in zip(asked, scores, strict=True):
            diverged = optuna.trial.TrialState.FAIL if math.isnan(score) else None
            study.tell(trial, None if diverged else score, diverged)


def with_optuna() -> Any:
    """The package Optuna, which only `tpe` needs.

    Raises:
        InputError: it is not installed.
    """
    needed = 'sampler tpe needs Optuna: pip install "jcfl[tune]"; or take random or grid'
    return optional_package("optuna", needed)


SAMPLERS: dict[str, Callable[[Mapping[str, Axis], int, int, int], Sampler]] = {
    "random": random,
    "grid": grid,
    "tpe": tpe,
}
"""The samplers by name: of the axes by dotted key, the number of trials, of those side by side, and the seed."""

AT_ONCE = ("random", "grid")
"""The samplers that choose all trials at once, and not by scores of others."""


def at(axes: Mapping[str, Axis], places: Sequence[Any]) -> dict[str, Any]:
    """The values at a place of every axis."""
    return {key: axis.at(place) for (key, axis), place in zip(axes.items(), places, strict=True)}
