"""A sweep whose points are trained by workers: what each of them is given, and what it does."""

import functools
import math
import threading
from pathlib import Path

from jcfl.runs import experiment, loop
from jcfl.runs.loop import Progress
from jcfl.runs.sweeping.alike import differing_options, grouped, kind
from jcfl.runs.sweeping.groups import Training, batches
from jcfl.runs.sweeping.points import Point, Points
from jcfl.runs.workers import Workers, remove_logs, share_out


def train(training: Training, workers: Workers | None, stop: threading.Event) -> None:
    """Train every point that is not complete, by workers if there are some.

    The logs of workers are removed when all points are complete, also those of an earlier process that had workers.
    """
    if workers is not None:
        share(training, workers, stop)
    training.train(stop)
    if training.folder is not None:
        remove_logs(training.folder)


def share(training: Training, workers: Workers, stop: threading.Event) -> None:
    """Have workers train every point that is not complete; points that share a program stay together if they are few.

    Raises:
        InputError, TrainingError, Interrupted: see `jcfl.runs.workers.share_out`.
    """
    assert training.folder is not None  # which `jcfl.sweep` and `jcfl.tune` require
    left = training.unfinished()
    most = math.ceil(len(left) / workers.at_once)
    tasks, rounds, options = {}, {}, differing_options(training.whole.points)
    for group in grouped(left):
        names = options[kind(group[0].config)]
        for part in batches(group, most):
            title = part[0].name if len(part) == 1 else f"{part[0].name} to {part[-1].name}"
            given = training.whole._replace(points=part)
            tasks[title] = functools.partial(trained, given, names, training.folder.resolve(), training.allow_versions)
            rounds[title] = sum(point.config.rounds * point.config.seeds for point in part)
    done = training.done

    def report(title: str, compilations: int) -> None:
        nonlocal done
        done += rounds[title]
        training.compilations += compilations
        training.on_progress(Progress(training.name, 0, 0, done, training.total, {}))

    training.on_progress(Progress(training.name, 0, 0, done, training.total, {}))
    share_out(tasks, workers, training.folder, stop, report)


def trained(whole: Points, names: list[str], folder: Path, allow_versions: bool) -> int:
    """Train points that differ only in the options `names`, in a worker; returns how often a program was compiled.

    The metrics of all points are written by the process that distributes them.
    """
    whole = whole._replace(points=[begun(folder, point) for point in whole.points])
    training = Training(whole, folder, lambda progress: None, allow_versions)
    training.files = None
    training.fit()
    stop = threading.Event()
    with loop.interruptible(stop, True):
        left = training.unfinished()
        if left:
            training.train_group(left, names, stop)
    return training.compilations


def begun(folder: Path | None, point: Point) -> Point:
    """A point that goes on as it began, if it has begun in a sweep's folder; else one that nothing has made yet."""
    place = folder / "runs" / point.name if folder is not None else None
    if place is None or not has_begun(place):
        command = {key: value for key, value in point.config.made_by.items() if key == "command"}
        return point._replace(config=point.config.model_copy(update={"made_by": command}))
    stored = experiment.resumed(place, point.config)
    return point._replace(config=stored.model_copy(update={"seeds_in_one": point.config.seeds_in_one}))


def has_begun(place: Path) -> bool:
    """Whether a point's folder holds something to go on with."""
    return (place / "config.yaml").exists() or (place / "checkpoints").exists()
