"""Workers, which a sweep or a table is shared out over: processes of this machine, or jobs of a Slurm cluster."""

import contextlib
import os
import shutil
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import psutil

from jcfl.errors import InputError, Interrupted, TrainingError, Unregistered, argument, optional_package, shown, unknown
from jcfl.results.files import writing
from jcfl.runs.environment import of_jax, use_cache
from jcfl.runs.loop import unheard
from jcfl.runs.yamltext import value_of

TRIES = 3
"""How often a task is begun before it is given up, if its workers are killed."""

POLL = 0.2
"""Seconds between two looks at the workers."""

PATIENCE = 10.0
"""Seconds that a worker of this machine has for its last checkpoint when it is ended."""

DEAF = "trap '' INT"
"""Lets Ctrl-C end the process that shares out, which then ends its workers."""

YEAR = 60 * 24 * 365
"""The minutes after which a process of this machine is ended."""

KNOWN = "workers know your own pieces only if they come from an installed package (entry points jcfl.pieces)"
"""Why a worker does not find a piece that the user's program has registered."""

EXPECTED = (
    "expected a number of processes of this machine, such as 2, or of Slurm's jobs, such as slurm:8,partition=gpu"
)


class Workers(NamedTuple):
    """How many workers there are at a time, and where."""

    at_once: int
    slurm: Mapping[str, Any] | None = None  # options of sbatch; None for processes of this machine


class Task(NamedTuple):
    """A call that a worker makes. What it has written when its worker is killed is there when it is made again."""

    call: Callable[[], Any]
    settings: Mapping[str, Any] = {}  # of JAX, as they are in the process that shares out

    def __call__(self) -> "Outcome":
        """What the call returned, or what it raised."""
        for name, value in self.settings.items():
            jax.config.update(name, value)
        use_cache()
        try:
            with deaf():
                return Outcome(self.call())
        except Unregistered as error:  # the process that shares out knows it
            return Outcome(refused=f"{error}; {KNOWN}")
        except InputError as error:
            return Outcome(refused=str(error))
        except Exception as error:
            traceback.print_exc()  # into the log
            return Outcome(fault=f"{type(error).__name__}: {error}")

    def checkpoint(self) -> Any:
        """What Slurm is to begin again, when it takes the machine away or the time is up."""
        from submitit.helpers import DelayedSubmission  # pyright: ignore[reportMissingImports]

        return DelayedSubmission(self)


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Keep a worker that began with `DEAF` from answering Ctrl-C; a run answers it in any other process."""
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, unheard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Outcome(NamedTuple):
    """What came of a task."""

    value: Any = None
    refused: str = ""  # the line of an InputError
    fault: str = ""  # any other error


def workers(given: Any) -> Workers:
    """The workers that a text or a number describes.

    Raises:
        InputError: it describes none, there are fewer GPUs than workers, or submitit is not installed or cannot work
            here.

    >>> workers("slurm:8,partition=gpu,time=1:30:00")
    Workers(at_once=8, slurm={'partition': 'gpu', 'time': '1:30:00'})
    """
    where, slurm, rest = str(given).partition("slurm:")
    count, *options = (rest if slurm else where).split(",")
    if (where and slurm) or not count.isdecimal() or int(count) < 1 or (options and not slurm):
        raise InputError(f"{argument('workers')}: {EXPECTED}; got {shown(given)}")
    if os.name == "nt":
        raise InputError(f"{argument('workers')}: submitit does not begin processes on Windows; leave it out")
    submitit = optional_package("submitit", 'workers need submitit: pip install "jcfl[workers]"')
    if not slurm:
        devices_of(0, int(count))
        return Workers(int(count))
    pairs = [option.partition("=") for option in options]
    known = submitit.SlurmExecutor._valid_parameters()
    for key, *_ in pairs:
        if key not in known:
            raise unknown("option of Slurm's jobs", key, known)
    return Workers(
        int(count),
        {key: value_of(value, f"{argument('workers')}: {key}={value} is not YAML") for key, _, value in pairs},
    )


def from_command(given: str | None) -> Workers | None:
    """The workers that an option of a command describes, None without one.

    With workers, this process computes on the CPU, so that accelerators are theirs.
    """
    if given is None:
        return None
    jax.config.update("jax_platforms", "cpu")
    return workers(given)


def share_out(
    tasks: Mapping[str, Callable[[], Any]],
    workers: Workers,
    folder: Path,
    stop: threading.Event,
    on_done: Callable[[str, Any], None] = lambda name, value: None,
) -> None:
    """Have workers make every call, each of them once; one whose worker is killed is made again by another worker.

    Args:
        tasks: the calls by name. They are sent to other processes, so they are functions of installed modules with
            their arguments (`functools.partial`).
        folder: where calls and logs are kept until all is done; all workers see it.
        stop: when it is set, the workers are ended.
        on_done: called with the name of a task and with what its call returned.

    Raises:
        InputError: a call raised one, or Slurm is not there.
        TrainingError: a call has another fault, or was begun `TRIES` times and never ended; the logs stay.
        Interrupted: `stop` was set.
    """
    workers = workers._replace(at_once=min(workers.at_once, len(tasks)))
    waiting, tries = deque(tasks), dict.fromkeys(tasks, 0)
    running: dict[int, tuple[str, Any]] = {}  # by the worker's number
    logs = logs_of(folder)
    try:
        while waiting or running:
            for number in sorted(set(range(workers.at_once)) - running.keys())[: len(waiting)]:
                name = waiting.popleft()
                tries[name] += 1
                try:
                    running[number] = name, started(Task(tasks[name], of_jax()), workers, number, logs)
                except InputError:
                    if sum(tries.values()) == 1:  # nothing has begun, so nothing stays
                        remove_logs(folder)
                    raise
            if stop.wait(POLL):
                raise Interrupted
            for number, (name, job) in list(running.items()):
                if not job.done():
                    continue
                del running[number]
                found = outcome(job, name, logs)
                if found is not None:
                    on_done(name, found.value)
                elif tries[name] < TRIES:
                    waiting.appendleft(name)
                else:
                    raise TrainingError(f"{name}: {TRIES} workers ended before it was done; their logs: {logs}")
    finally:
        end([job for _, job in running.values()], workers)
    remove_logs(folder)


def logs_of(folder: Path) -> Path:
    """Where calls and logs of workers are kept until all is done."""
    return folder.resolve() / "workers"


def remove_logs(folder: Path) -> None:
    """Remove the calls and logs of workers, also those of an earlier process whose workers failed or were killed."""
    shutil.rmtree(logs_of(folder), ignore_errors=True)


def started(task: Task, workers: Workers, number: int, logs: Path) -> Any:
    """The job of a worker that begins a task.

    Raises:
        InputError: Slurm is not there, or refuses the job.
    """
    import submitit  # pyright: ignore[reportMissingImports]
    from submitit.core.utils import FailedJobError  # pyright: ignore[reportMissingImports]

    with writing(logs):
        logs.mkdir(parents=True, exist_ok=True)
    if workers.slurm is not None:
        try:
            executor = submitit.SlurmExecutor(logs)
            executor.update_parameters(**{"job_name": "jcfl", **workers.slurm})
            return executor.submit(task)
        except (RuntimeError, ValueError, FailedJobError) as error:
            raise InputError(f"{argument('workers')}: Slurm cannot be used here: {error}") from None
    executor = submitit.LocalExecutor(logs)
    gpus = devices_of(number, workers.at_once)
    executor.update_parameters(timeout_min=YEAR, gpus_per_node=len(gpus), visible_gpus=gpus, setup=[DEAF])
    with on_cores(number, workers.at_once):
        job = executor.submit(task)
    job._results_timeout_s = 0  # the file system is this machine's: what is not there when a process ends never will be
    return job


def end(jobs: Sequence[Any], workers: Workers) -> None:
    """End workers; those of this machine write first what they need to go on."""
    if workers.slurm is not None:
        for job in jobs:
            job.cancel(check=False)
        return
    processes = []
    for job in jobs:
        with contextlib.suppress(psutil.NoSuchProcess):
            whole = psutil.Process(int(job.job_id))
            processes += [whole, *whole.children(recursive=True)]
    try:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not process.children():  # the others end with it
                    process.terminate()
        psutil.wait_procs(processes, PATIENCE)
    finally:  # also where a second Ctrl-C ends the wait
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def outcome(job: Any, name: str, logs: Path) -> Outcome | None:
    """What came of a job that has ended; None if it was killed.

    Raises:
        InputError: the call raised one.
        TrainingError: the call has another fault.
    """
    from submitit.core.utils import UncompletedJobError  # pyright: ignore[reportMissingImports]

    try:
        found = job.result()
    except UncompletedJobError:
        return None
    if found.refused:
        raise InputError(f"{name}: {found.refused}")
    if found.fault:
        raise TrainingError(f"{name}: a worker failed: {found.fault} (its log is in {logs})")
    return found


@contextlib.contextmanager
def on_cores(number: int, count: int) -> Iterator[None]:
    """Begin processes that use a worker's share of this machine's cores, where the system can say so.

    XLA and jcfl start as many threads as their process has cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    own = sorted(cores)[number::count] or [sorted(cores)[number % len(cores)]]
    os.sched_setaffinity(0, own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def devices_of(number: int, count: int) -> Sequence[int]:
    """The GPUs of this machine that are a worker's; none where there are none, or where JAX is not to use them.

    Raises:
        InputError: there are fewer GPUs than workers.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = range(len(list(Path("/dev").glob("nvidia[0-9]*")))) if named is None else named.split(",")
    gpus = [int(gpu) for gpu in there if str(gpu).isdecimal()] if os.environ.get("JAX_PLATFORMS") != "cpu" else []
    if 0 < len(gpus) < count:
        name = argument("workers")
        raise InputError(f"{name}: expected at most {len(gpus)}, one for each GPU of this machine, got {count}")
    return gpus[number::count]
