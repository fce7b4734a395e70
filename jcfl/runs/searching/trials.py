"""Trials, which train from rung to rung: by successive halving the best of them go on from their checkpoints."""

import math
import threading
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from jcfl import metrics
from jcfl.errors import InputError, Notice, argument
from jcfl.results import History
from jcfl.runs import experiment
from jcfl.runs.config import Config
from jcfl.runs.needs import last_turns, regular_turns
from jcfl.runs.sweeping import shared
from jcfl.runs.sweeping.groups import Training
from jcfl.runs.sweeping.points import Point, as_checked
from jcfl.runs.workers import Workers


class Trial(NamedTuple):
    """One try of one method."""

    method: str  # its title
    values: dict[str, Any]  # by dotted key
    point: Point  # with all rounds; trials with the same values have the same one
    history: History
    scores: dict[int, float]  # by the rounds after which trials were compared: mean over seeds; NaN if it had diverged

    def checked(self) -> dict[str, Any]:
        """Its values as the configuration has them, plain: a number that YAML reads as text, such as 1e-2, is one."""
        return as_checked(self.values, self.point.config)

    @property
    def rounds(self) -> int:
        """The rounds after which it was compared last: all of them, unless halving stopped it."""
        return max(self.scores)

    @property
    def score(self) -> float:
        """Its score after these rounds."""
        return self.scores[self.rounds]


class Rung(NamedTuple):
    """A number of rounds after which trials are compared."""

    rounds: int
    trials: int  # of one method, how many train so far, at most


def rungs(config: Config, trials: int, halving: int) -> list[Rung]:
    """The rungs of a search, ascending; the last one has all rounds (Jamieson and Talwalkar 2016).

    A rung has a `halving`-th of the next one's rounds, rounded up to an evaluation of the whole run, so that the scores
    of a rung are among those of every run that goes on. There are as many rungs as trials and evaluations allow.

    Args:
        config: of the whole run.
        trials: how many each method has.
        halving: the share of trials that goes on is one of so many; 1 for a search whose trials all have all rounds.

    Raises:
        InputError: there is only one rung although `halving` is above 1, or models would be compared after a round that
            is beyond the first rung.
    """
    rounds, evaluated = [config.rounds], (regular_turns(config), last_turns(config))
    while trials // halving ** len(rounds):
        least = -(-config.rounds // halving ** len(rounds))
        fewer = min(round for turns in evaluated for round in turns[bisect_left(turns, least) :][:1])
        if fewer == rounds[0]:
            break
        rounds.insert(0, fewer)
    if halving > 1 and len(rounds) == 1:
        raise InputError(
            f"{argument('halving', halving)} stops no trial; expected {argument('trials')} of at least {halving}, "
            f"got {trials}, and an evaluation before the last of rounds={config.rounds}, got "
            f"evaluate_every={config.evaluate_every}"
        )
    late = [round for round in config.compare_models if round > rounds[0] and halving > 1]
    if late:
        raise InputError(
            f"{argument('halving')}: expected compare_models within the {rounds[0]} rounds that all trials have, "
            f"got {late[0]}"
        )
    return [Rung(count, trials // halving**place) for place, count in enumerate(rounds)]


def rounds_of(rungs: Sequence[Rung]) -> int:
    """How many rounds all trials of one method have together, at most: the budget of every method."""
    before = (0, *(rung.rounds for rung in rungs))
    return sum(rung.trials * (rung.rounds - start) for rung, start in zip(rungs, before, strict=False))


def climbed(
    points: Sequence[Point],
    rungs: Sequence[Rung],
    halving: int,
    by: str,
    training: Training,
    workers: Workers | None,
    stop: threading.Event,
) -> dict[str, dict[int, float]]:
    """Train points to the first rung, the best of them to the next one, and so on to the last.

    A rung has its share of the points, which may be fewer than trials: a grid ends, and values may be drawn twice.

    Returns:
        the scores of every point by its name and by the rounds of each rung that it came to; NaN where it had diverged.
    """
    scores: dict[str, dict[int, float]] = {point.name: {} for point in points}
    going = list(points)
    for place, rung in enumerate(rungs):
        going = going[: max(1, len(points) // halving**place)]
        for point in going:
            take(training, until(training, point, rung.rounds))
        training.check(is_whole=place == len(rungs) - 1)
        shared.train(training, workers, stop)
        for point in going:
            scores[point.name][rung.rounds] = score_after(training.histories[point.name], by, rung.rounds, point)
        going = [point for point in going if not math.isnan(scores[point.name][rung.rounds])]
        going.sort(key=lambda point: -better(by) * scores[point.name][rung.rounds])
    return scores


def until(training: Training, point: Point, rounds: int) -> Point:
    """A point that trains for so many rounds, or for as many as an earlier process began; at most for all of its own.

    An earlier process may have taken it to a later rung. Its scores at this one are found among its evaluations.
    """
    place = training.folder_of(point)
    with warnings.catch_warnings(category=Notice, action="ignore"):  # `begun` says what is damaged
        far = experiment.configuration(place).rounds if place is not None and shared.has_begun(place) else 0
    config = point.config.model_copy(update={"rounds": min(max(rounds, far), point.config.rounds)})
    return shared.begun(training.folder, point._replace(config=config))


def take(training: Training, point: Point) -> None:
    """Add a point to what is trained; one that is there with fewer rounds is to go on from its checkpoint."""
    points = training.whole.points
    place = next((place for place, other in enumerate(points) if other.name == point.name), None)
    if place is None:
        points.append(point)
    elif points[place].config.rounds < point.config.rounds:
        del training.histories[point.name]
        training.done -= points[place].config.rounds * point.config.seeds
        points[place] = point


def score_after(history: History, by: str, rounds: int, point: Point) -> float:
    """The mean over seeds of a score after some rounds; NaN if a seed had diverged by then."""
    if by not in history.scores or rounds not in history.rounds:
        return math.nan
    if len(history.seeds) < point.config.seeds:  # read from files, a history has no seed that was never evaluated
        return math.nan
    return float(history[by][:, history.rounds == rounds].mean())


def better(by: str) -> int:
    """1 if higher values of a score are better, -1 if lower ones are."""
    return -1 if metrics.score(by).better == "lower" else 1
