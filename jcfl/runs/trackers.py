"""Trackers: services to which a run sends its scores, besides its folder."""

import json
import math
import secrets
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from jcfl import registry
from jcfl.errors import InputError, Notice, optional_package, raised, shown
from jcfl.registry import register
from jcfl.results.files import replace
from jcfl.runs import hosts
from jcfl.runs.config import Config, Piece


class Tracker(Protocol):
    """The receiver of one run's scores; `register("track", name)`: `f(title, folder, *, options) -> Tracker`.

    A resumed run sends only new scores. If a tracker raises an exception while the run trains, the tracking ends, and
    the run goes on.
    """

    def begin(self, config: Mapping[str, Any]) -> None:
        """Receive the configuration, under dotted names, when the run begins or resumes."""

    def record(self, round: int, seed: int, scores: Mapping[str, float]) -> None:
        """Receive the scores of one seed after `round` rounds; a score may be NaN."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Receive the summary of the run: with the key `failed` if it diverged, empty if it was broken off."""


class Tracking:
    """All trackers of one run."""

    def __init__(self, trackers: Sequence[Tracker] = ()):
        self.trackers = list(trackers)
        self.done: set[tuple[int, int]] = set()  # seeds and rounds sent before the run was resumed

    def begin(self, config: Config) -> None:
        """Send the run's configuration."""
        self.send("begin", config.flat())

    def record(self, round: int, seed: int, scores: Mapping[str, float]) -> None:
        """Send the scores of an evaluation, unless they have been sent before."""
        if (seed, round) not in self.done:
            self.send("record", round, seed, scores)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Send the summary, after which nothing follows."""
        self.send("end", summary)
        self.trackers = []

    def __enter__(self) -> None:
        """The run has begun."""

    def __exit__(self, kind: type[BaseException] | None, *given: Any) -> None:
        """End the tracking of a run that an exception breaks off, so that no service shows it as running for ever."""
        if kind is not None:
            self.end({})

    def send(self, method: str, *values: Any) -> None:
        """Call a method of every tracker; a tracker that raises an exception is not called again."""
        for tracker in list(self.trackers):
            try:
                getattr(tracker, method)(*values)
            except Exception as error:  # whatever a server or a disk can do must not end hours of training
                self.trackers.remove(tracker)
                told = f"{type(tracker).__name__} tracks no more: {raised(error)}; the run goes on"
                warnings.warn(told, Notice, stacklevel=2)


def tracking(pieces: Sequence[Piece], title: str, folder: Path | None) -> Tracking:
    """The trackers that a configuration names, opened; none on hosts besides the first, which measure the same scores.

    Args:
        pieces: the configuration's `track`.
        title: the run's name.
        folder: the run's folder, if it has one.

    Raises:
        InputError: a package is missing, a server does not answer, or a user's function returned no tracker.
    """
    if not hosts.is_first():
        return Tracking()
    return Tracking([opened(piece, title, folder) for piece in pieces])


def opened(piece: Piece, title: str, folder: Path | None) -> Tracker:
    """One tracker; what it lacks would be noticed only after the training."""
    found = registry.made("track", piece.name, title, folder, **piece.options)
    lacking = [name for name in ("begin", "record", "end") if not callable(getattr(found, name, None))]
    if lacking:
        raise InputError(
            f"track {piece.name!r}: expected an object with the functions begin, record and end "
            f"(jcfl.runs.trackers.Tracker), got {shown(found)}, which has no {' and no '.join(lacking)}"
        )
    return found


@register("track", "tensorboard")
def tensorboard(
    title: str,
    folder: Path | None,
    *,
    path: Annotated[Path | None, Field(description="folder of event files; null: tensorboard in the run's")] = None,
) -> Tracker:
    """TensorBoard event files, one folder a seed; needs no TensorFlow."""
    package = package_of("tensorboard", "tensorboardX")
    if path is None and folder is None:
        raise InputError("track: tensorboard writes into the run's folder; give out=…, or its option path")
    return TensorBoard(package, path / title if path is not None else Path(folder or ".") / "tensorboard")


@register("track", "mlflow")
def mlflow(
    title: str,
    folder: Path | None,
    *,
    uri: Annotated[
        str | None, Field(description="server, or sqlite:///file.db; null: MLFLOW_TRACKING_URI, else its default")
    ] = None,
    experiment: Annotated[str, Field(description="MLflow's experiment, which is made if it is not there")] = "jcfl",
) -> Tracker:
    """MLflow, one run a seed: options, scores by round, and how it ended."""
    package = package_of("mlflow", "mlflow")
    try:
        client = package.MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        place = found.experiment_id if found is not None else client.create_experiment(experiment)
    except Exception as error:
        raise InputError(f"track: mlflow cannot open {uri or 'its default store'}: {first_line(error)}") from None
    return MLflow(client, package.entities, place, title, Ids(folder, "mlflow.json"))


@register("track", "wandb")
def wandb(
    title: str,
    folder: Path | None,
    *,
    project: Annotated[str, Field(description="W&B's project")] = "jcfl",
    entity: Annotated[str | None, Field(description="user or team; null: the one logged in")] = None,
    mode: Annotated[Literal["online", "offline", "disabled"], Field(description="where metrics go")] = "online",
) -> Tracker:
    """Weights & Biases, one run a seed, grouped by the run's name."""
    package = package_of("wandb", "wandb")
    options = {"project": project, "entity": entity, "mode": mode, "group": title, "dir": folder}
    return WandB(package, title, options, Ids(folder, "wandb.json"))


def package_of(name: str, module: str) -> Any:
    """The imported package of a tracker, which is an optional dependency."""
    return optional_package(module, f'track: {name} needs the package {module}; pip install "jcfl[{name}]"')


class TensorBoard:
    """Writes event files."""

    def __init__(self, package: Any, path: Path):
        self.package, self.path, self.writers, self.text = package, path, {}, ""

    def begin(self, config: Mapping[str, Any]) -> None:
        """Keep the options as a table for the text page."""
        rows = "".join(f"| {key} | {value} |\n" for key, value in config.items())
        self.text = f"| option | value |\n|---|---|\n{rows}"

    def record(self, round: int, seed: int, scores: Mapping[str, float]) -> None:
        """Write one seed's scores."""
        if seed not in self.writers:
            self.writers[seed] = self.package.SummaryWriter(str(self.path / f"seed-{seed}"))
            self.writers[seed].add_text("config", self.text, 0)
        for score, value in finite_scores(scores).items():
            self.writers[seed].add_scalar(score, value, round)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Close the files."""
        for writer in self.writers.values():
            writer.close()


class Ids:
    """The ids of the runs in another service, by seed; a file in the run's folder lets a resumed run find them."""

    def __init__(self, folder: Path | None, name: str):
        self.file = folder / name if folder is not None else None
        self.table: dict[str, str] = {}

    def read(self) -> None:
        """Read the ids from before the run was resumed."""
        if self.file is not None and self.file.exists():
            self.table = json.loads(self.file.read_text("utf-8"))

    def keep(self, seed: int, value: str) -> str:
        """Keep the id of one seed's run."""
        self.table[str(seed)] = value
        if self.file is not None:
            replace(self.file, lambda file: file.write(json.dumps(self.table, indent=2).encode()))
        return value


class MLflow:
    """Logs to an MLflow store."""

    def __init__(self, client: Any, entities: Any, experiment: str, title: str, ids: Ids):
        self.client, self.entities, self.experiment, self.title, self.ids = client, entities, experiment, title, ids
        self.options: list[Any] = []
        self.open: set[str] = set()

    def begin(self, config: Mapping[str, Any]) -> None:
        """Keep the configuration, and find the runs from before this run was resumed."""
        self.options = [self.entities.Param(key, str(value)[:500]) for key, value in config.items()]
        self.ids.read()

    def record(self, round: int, seed: int, scores: Mapping[str, float]) -> None:
        """Log one seed's scores."""
        run, at = self.run(seed), int(time.time() * 1000)
        metrics = [
            self.entities.Metric(score, float(value), at, round) for score, value in finite_scores(scores).items()
        ]
        self.client.log_batch(run, metrics=metrics)

    def run(self, seed: int) -> str:
        """The id of a seed's run, which is made if it is not there."""
        run = self.ids.table.get(str(seed))
        if run is None:
            made = self.client.create_run(
                self.experiment, run_name=f"{self.title} seed {seed}", tags={"seed": str(seed)}
            )
            run = self.ids.keep(seed, made.info.run_id)
            for start in range(0, len(self.options), 100):  # as many as a server takes at a time
                self.client.log_batch(run, params=self.options[start : start + 100])
        elif run not in self.open:
            self.client.update_run(run, status="RUNNING")
        self.open.add(run)
        return run

    def end(self, summary: Mapping[str, Any]) -> None:
        """Close the runs with their status, also those that had all their scores before this run was resumed."""
        status = "FAILED" if "failed" in summary else "FINISHED" if summary else "KILLED"
        for run in self.ids.table.values():
            if self.client.get_run(run).info.status != status:  # else its time of ending would be changed
                self.client.set_terminated(run, status)


class WandB:
    """Logs to Weights & Biases."""

    def __init__(self, package: Any, title: str, options: Mapping[str, Any], ids: Ids):
        self.package, self.title, self.options, self.ids = package, title, options, ids
        self.config: dict[str, Any] = {}
        self.runs: dict[int, Any] = {}

    def begin(self, config: Mapping[str, Any]) -> None:
        """Keep the configuration, and find the runs from before this run was resumed."""
        self.config = dict(config)
        self.ids.read()

    def record(self, round: int, seed: int, scores: Mapping[str, float]) -> None:
        """Log one seed's scores."""
        self.run(seed).log(finite_scores(scores), step=round)

    def run(self, seed: int) -> Any:
        """A seed's run, which is made or opened again if it is not open."""
        if seed not in self.runs:
            id = self.ids.table.get(str(seed)) or self.ids.keep(seed, secrets.token_hex(4))
            about = {"name": f"{self.title} seed {seed}", "config": self.config | {"seed": seed}}
            more = {"id": id, "resume": "allow", "reinit": "create_new"}
            self.runs[seed] = self.package.init(**self.options, **about, **more)
        return self.runs[seed]

    def end(self, summary: Mapping[str, Any]) -> None:
        """Close the runs with their status, also those that had all their scores before this run was resumed."""
        for seed in self.ids.table:
            self.run(int(seed)).finish(exit_code=0 if summary and "failed" not in summary else 1)


def finite_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """The scores that are not NaN."""
    return {score: value for score, value in scores.items() if not math.isnan(value)}


def first_line(error: Exception) -> str:
    """The first line of an exception's message."""
    return next(iter(str(error).splitlines()), type(error).__name__)
