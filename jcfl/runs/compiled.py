"""The programs of runs: compiled before any of them trains, and anew for fewer clients at a time if memory runs out."""

import math
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import jax

from jcfl.errors import TooLarge, Unwritable
from jcfl.runs import disk, programs
from jcfl.runs.plan import smaller
from jcfl.runs.run import Run
from jcfl.runs.xla import round_options

AHEAD = 4
"""How many methods of a comparison are compiled side by side."""


def compiled_ahead(runs: Sequence[Run]) -> Iterator[tuple[Run, programs.Compiling]]:
    """Every run with its programs, `AHEAD` runs compiled side by side before the first of them trains.

    Nothing is compiled while a run trains, so that its speed is measured undisturbed. The other runs are traced at the
    beginning, so that a method that cannot be traced is refused before hours of training.
    """
    for run in runs[AHEAD:]:
        try_out(run)
    for start in range(0, len(runs), AHEAD):
        part = runs[start : start + AHEAD]
        started = [begun(run) for run in part]
        complete = [settled(compiling) for compiling in started]
        share = lambda future: lambda: (found := future.result())._replace(seconds=found.seconds / len(part))
        yield from zip(part, map(share, complete), strict=True)


def try_out(run: Run) -> None:
    """Refuse a run whose programs cannot be traced."""
    programs.try_out(run.algorithm, run.plan.federation, run.parts())


def settled(compiling: programs.Compiling) -> Future[programs.Family]:
    """What compiling came to: the programs, or the error, which is raised when the result is read."""
    future: Future[programs.Family] = Future()
    try:
        future.set_result(compiling())
    except Exception as error:
        future.set_exception(error)
    return future


def begun(run: Run) -> programs.Compiling:
    """A run's programs, which are compiled while the caller goes on."""
    context, lanes = run.plan.context, len(run.batches()[0])
    devices, options = context.resources.devices, round_options(context)
    return programs.begun(run.algorithm, run.plan.federation, lanes, devices, options, run.parts())


def compiled_to_fit(run: Run, compiling: programs.Compiling) -> programs.Programs:
    """A run's programs, with fewer clients at a time where memory would run out, as long as that takes less of it."""
    need = math.inf
    while True:
        try:
            return compiling().with_values({})
        except jax.errors.JaxRuntimeError as error:
            replan(run, error)
        except TooLarge as error:
            if error.need >= need:
                raise
            need = error.need
            replan(run, error)
        compiling = begun(run)


def replan(run: Run, error: Exception) -> None:
    """Halve the clients that a run trains at a time, if the error says that memory ran out; else raise the error.

    Of what a callback raised, XLA passes on only the text.

    Raises:
        Unwritable: a callback could not write to a file.
    """
    unwritable = re.search(r"OSError: \[Errno \d+\] (.+)", str(error))
    if unwritable:
        raise Unwritable(unwritable[1]) from None
    short = isinstance(error, TooLarge) or "RESOURCE_EXHAUSTED" in str(error)
    less = smaller(run.plan) if short else None
    if less is None:
        raise error
    if less.needs.rows > run.plan.needs.rows:
        disk.check(less.needs, None if run.folder is None else run.folder.path)
    run.replan(less)
