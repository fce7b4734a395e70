"""The loop of one method's run: it trains blocks of rounds, evaluates, writes checkpoints, and can be stopped."""

import signal
import threading
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

from jcfl import metrics
from jcfl.errors import Diverged, InputError, Interrupted, Notice, TrainingError
from jcfl.results import Record
from jcfl.runs.ahead import Ahead
from jcfl.runs.devices import over_hosts
from jcfl.runs.programs import Programs, Running, keys
from jcfl.runs.watchdog import Watchdog
from jcfl.types import GLOBAL, OVERFLOW, UNDESCRIBED, VOTER, Federation, State

BLOCK = 1.0
"""How many seconds a block of rounds should take, so that progress can be shown after each."""


SELDOM = 20
"""Between two writes of a file there is at least so many times the time of a write: it takes a twentieth at most."""


class Progress(NamedTuple):
    """How far a run has come."""

    name: str  #: the name of the method; in a sweep or a search it is `sweep` or `tune`
    seed: int  #: the first of the seeds that run together; 0 where `workers` train
    round: int  #: the number of rounds that these seeds have been trained; 0 where `workers` train
    done: int  #: the rounds that have been trained, over all seeds and all points of a sweep
    total: int  #: the rounds that are to be trained, counted in the same way
    #: each metric at the last evaluation, as mean over the seeds that run together; empty before the first one, in a
    #: search, and where `workers` train
    scores: dict[str, float]
    seeds: int = 1  #: how many seeds run together


class Store(Protocol):
    """A store of complete states, such as `jcfl.results.checkpoints.Checkpoints`."""

    def save(self, round: int, state: State, seconds: float) -> None:
        """Write the state after `round` rounds."""

    def newest(self, like: State) -> tuple[State, float] | None:
        """The newest complete state and its seconds."""


@dataclass
class Clock:
    """How many seconds a run has taken."""

    wall: float = 0.0  # in all, with the time before it was resumed
    training: float = 0.0
    rounds: int = 0  # trained in `training` seconds, counted once per seed

    def add(self, rounds: int, seconds: float) -> None:
        """Count a block of rounds."""
        self.rounds += rounds
        self.training += seconds


@dataclass
class LoopSettings:
    """What the loop needs besides the programs: seeds, rounds, functions to call, and checkpoints."""

    seeds: Sequence[int]  # of every lane
    rounds: int
    evaluated: Sequence[int]  # rounds after which to evaluate, ascending; the last round is one of them
    clock: Clock
    on_start: Callable[[int], None] = lambda round: None  # gets the round of the checkpoint, or -1 without one
    lacks: Callable[[int], bool] = lambda round: True  # whether an evaluation after so many rounds has not been kept
    on_records: Callable[[list[Record]], None] = lambda records: None
    on_block: Callable[[int], None] = lambda round: None
    on_failed: Callable[[dict[int, TrainingError]], None] = lambda failed: stop_at(failed)  # by lane
    before_saving: Callable[[bool], None] = lambda at_end: None  # gets whether training has come to its end
    checkpoints: Store | None = None
    checkpoint_every: float | Literal["never"] = 60.0  # seconds
    stop: threading.Event = field(default_factory=threading.Event)
    ahead: Ahead = lambda state, rounds: None  # reads what the rounds after a block need
    watchdog: Watchdog = field(default_factory=lambda: Watchdog("training"))
    has_noticed: bool = False  # whether it has been said that predictions are not finite
    for_room: str = ""  # what to do if more clusters are found than there is room for


def train(programs: Programs, federation: Federation, settings: LoopSettings) -> Running:
    """Train to the last round, from the newest checkpoint if there is one.

    On the way the lanes are evaluated, progress is reported, and checkpoints are written.

    Raises:
        TrainingError: a model is no longer finite, and `settings.on_failed` raises the error, as it does by default.
        Interrupted: `settings.stop` was set; the state is on disk.
    """
    watching = settings.watchdog.watching
    with watching("the first state"):
        state = jax.block_until_ready(programs.init(keys(settings.seeds, programs.devices), federation))
    found = settings.checkpoints.newest(programs.joined(state)) if settings.checkpoints else None
    state, earlier = (programs.parted(found[0]), found[1]) if found else (state, 0.0)
    watch = Stopwatch(settings, programs.joined, earlier)
    round, size = rounds_done(state), 1
    settings.on_start(round if found else -1)
    trained = rounds_trained(state)
    outcome, judged = {}, -1  # the last evaluation, and the rounds that were trained before it
    try:
        failed = failures(state, settings) if found else {}
        if failed:  # a lane that fails beside others is in their checkpoints to the last round
            settings.on_failed(failed)
        if round in settings.evaluated and over_hosts(settings.lacks(round)):  # rounds may end at a checkpoint
            outcome, judged = evaluated(programs, federation, settings, state, round), trained
            settings.on_records(records(outcome, federation, settings, round))
        settings.on_block(round)
        while round < settings.rounds:
            if over_hosts(settings.stop.is_set()):
                watch.save(round, state)
                raise Interrupted(begins_again=settings.checkpoint_every == "never")
            due = settings.evaluated[bisect_right(settings.evaluated, round)]
            until = min(round + size, due)
            settings.ahead(state, range(until, min(2 * until - round, settings.rounds)))
            with watching(f"rounds {round + 1} to {until}"):
                state, seconds = advanced(programs, federation, state, until)
            failed = failures(state, settings)
            if failed:
                settings.on_failed(failed)
            before, trained = trained, rounds_trained(state)
            settings.clock.add(trained - before, seconds)
            size = max(1, min(2 * size, int(BLOCK * (until - round) / max(over_hosts(seconds), 1e-6))))
            round = until
            if round == due:
                if trained != judged:  # equal if a stop condition ended all lanes before the last evaluation
                    outcome, judged = evaluated(programs, federation, settings, state, round), trained
                settings.on_records(records(outcome, federation, settings, round))
            settings.on_block(round)
            if round < settings.rounds and over_hosts(watch.due()):
                watch.save(round, state)
        watch.save(round, state, at_end=True)
    finally:
        settings.clock.wall += watch.seconds()
    return state


class Stopwatch:
    """Measures how long a batch of seeds takes, and decides when to write the next checkpoint."""

    def __init__(self, settings: LoopSettings, joined: Callable[[Any], State], earlier: float):
        self.settings, self.joined, self.earlier = settings, joined, earlier
        self.began = self.saved = time.perf_counter()
        self.cost = 0.0

    def seconds(self) -> float:
        """How many seconds these seeds have taken, with the time before they were resumed."""
        return self.earlier + time.perf_counter() - self.began

    def due(self) -> bool:
        """Whether a checkpoint is due. Checkpoints take at most a twentieth of the time, however large states are."""
        every = self.settings.checkpoint_every
        return every != "never" and time.perf_counter() - self.saved > max(every, SELDOM * self.cost)

    def save(self, round: int, state: Running, at_end: bool = False) -> None:
        """Write the state, after the evaluations that belong to it."""
        start = time.perf_counter()
        self.settings.before_saving(at_end)
        if self.settings.checkpoints is None or self.settings.checkpoint_every == "never":
            return
        self.settings.checkpoints.save(round, self.joined(state), self.seconds())
        self.saved = time.perf_counter()
        self.cost = self.saved - start


def advanced(programs: Programs, federation: Federation, state: Running, until: int) -> tuple[Running, float]:
    """The state after `until` rounds, and the seconds it took."""
    start = time.perf_counter()
    state = jax.block_until_ready(programs.advance(state, federation, np.int32(until)))
    return state, time.perf_counter() - start


def rounds_done(state: Running) -> int:
    """How many rounds have been trained, in the state of one lane or in all of several."""
    return int(np.min(state.round))


def rounds_trained(state: Running) -> int:
    """How many rounds have been trained, over all lanes; a lane whose training has ended counts no further rounds."""
    return int(np.minimum(state.round, state.ended).sum())


def evaluated(
    programs: Programs, federation: Federation, settings: LoopSettings, state: Running, round: int
) -> dict[str, np.ndarray]:
    """What the device found in one evaluation. [seeds, ...] each"""
    with settings.watchdog.watching(f"the evaluation after round {round}"):
        found = jax.device_get(programs.evaluate(state, federation))
    found = found if len(settings.seeds) > 1 else {name: value[None] for name, value in found.items()}
    over = [lane for lane, labels in enumerate(found.get("labels", ())) if (labels == OVERFLOW).any()]
    if over:
        error = lambda lane: failure(settings.seeds[lane], round - 1, OVERFLOW, settings.for_room)
        settings.on_failed({lane: error(lane) for lane in over})
    notice_unanswered(found.get("unanswered"), np.asarray(state.failed).reshape(-1, 2)[:, 0] < 0, settings, round)
    return found


def notice_unanswered(unanswered: np.ndarray | None, going: np.ndarray, settings: LoopSettings, round: int) -> None:
    """Say once that predictions are not finite although the models are, as after local steps before a prediction.

    Args:
        unanswered: the test examples of each client without a finite prediction, if that is known. [seeds, m]
        going: the seeds whose models are finite. [seeds] bool
        settings: in which it is kept that it has been said.
        round: the number of rounds that were trained.
    """
    clients = 0 if unanswered is None else (unanswered > 0).sum(1) * going
    if np.any(clients) and not settings.has_noticed:
        settings.has_noticed, lane = True, int(np.argmax(clients))
        warnings.warn(
            f"after {round} rounds (seed {settings.seeds[lane]}) the predictions of {np.max(clients)} clients are not "
            "finite, so accuracy and F1 are NaN; lower train.lr, or the steps of finetune",
            Notice,
            stacklevel=2,
        )


def records(
    found: Mapping[str, np.ndarray], federation: Federation, settings: LoopSettings, round: int
) -> list[Record]:
    """The records of one evaluation, one per seed; the scores are computed here, on the host.

    Raises:
        InputError: a score that the user has registered cannot be computed.
    """
    outcomes = ({name: value[i] for name, value in found.items()} for i in range(len(settings.seeds)))
    trained = lambda outcome: int(outcome.get("trained_rounds", round))  # fewer if a stop condition ended training
    try:
        measured = [metrics.measured(outcome, federation, trained(outcome)) for outcome in outcomes]
    except metrics.Unmeasured as error:
        raise InputError(str(error)) from error.__cause__
    return [Record.of(seed, round, part) for seed, part in zip(settings.seeds, measured, strict=True)]


def failures(state: Running, settings: LoopSettings) -> dict[int, TrainingError]:
    """The lanes that cannot go on, with their errors."""
    seeds, places = settings.seeds, np.asarray(state.failed).reshape(-1, 2)
    error = lambda lane: failure(seeds[lane], places[lane][0], places[lane][1], settings.for_room)
    return {lane: error(lane) for lane in range(len(seeds)) if places[lane][0] >= 0}


def failure(seed: int, round: int, cluster: int, for_room: str = "") -> TrainingError:
    """The error of a seed that cannot go on.

    Args:
        for_room: as in `LoopSettings`.
    """
    if cluster == OVERFLOW:
        found = f"in round {round + 1} (seed {seed}) more clusters were found than the method has room for"
        return TrainingError(f"{found}; {for_room}" if for_room else found)
    if cluster == UNDESCRIBED:
        return TrainingError(
            f"in round {round + 1} (seed {seed}) the description of a client is not finite, or too large to be "
            "compared, so clients cannot be grouped; lower train.lr, or correct the description if it is your own"
        )
    others = {VOTER: "a model of a run that votes beside it", GLOBAL: "the global model"}
    model = others.get(cluster, f"the model of cluster {cluster}")
    return Diverged(
        f"{Diverged.BEGINNING}: in round {round + 1} (seed {seed}) {model} stopped being finite; lower train.lr"
    )


def stop_at(failed: Mapping[int, TrainingError]) -> None:
    """Raise the first lane's failure."""
    raise next(iter(failed.values()))


def unheard(number: int, frame: Any) -> None:
    """The handler of a signal that a worker leaves to the process that began it."""


@contextmanager
def interruptible(stop: threading.Event, saving: bool) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM sets `stop`, so that a run ends between two blocks; a second one ends it at once.

    A run that saves nothing is left to end at once. A worker does not answer Ctrl-C (`unheard`): it gets SIGTERM next,
    which would be the second signal and leave it no time for its last checkpoint. Handlers of a program that runs
    Python in itself, such as R, are left alone: Python does not know them (None), so it could not put them back.
    """
    if not saving or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if handler not in (unheard, None)}
    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
