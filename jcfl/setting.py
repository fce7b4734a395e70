"""What a method is told of the run it is for."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from jcfl.averaging import Averaging
from jcfl.engine import chunk_size, memory_budget
from jcfl.errors import InputError
from jcfl.local import Local
from jcfl.objective import Term
from jcfl.types import NEVER, Array, Federation, Task

Engine = Literal["auto", "general", "factored"]
"""How clients train: in general, or factored where the model allows it; by default whichever takes less time."""

Shared = Literal["mean", "trained", "added"]
"""What the shared model is: the mean of the cluster models, a second copy that is trained, or one added to them."""


Rule = Callable[[Federation, Array], Averaging]
"""An averaging rule for the clients `who` [s] of a federation."""


class Extras(NamedTuple):
    """What add-ons bring to a method; the defaults bring nothing."""

    names: tuple[str, ...] = ()
    terms: tuple[Callable[[Task], Term], ...] = ()
    added: bool = False  # whether the shared model's logits are added to the cluster's
    warmup: int = 0  # rounds before the two are trained together
    tune: int = 0  # local steps before a client is evaluated
    averaging: Rule | None = None
    votes: tuple[str | None, dict[str, Any]] | None = None  # the method that votes beside this one (None: itself)
    costs: tuple[
        Callable[[dict[str, float], int], dict[str, float]], ...
    ] = ()  # (a client-round's, k) -> those with it


class Setting(NamedTuple):
    """The facts of a run that fix its shapes, and the pieces that every method takes over."""

    task: Task
    local: Local
    clients: int  # m
    groups: int  # true groups, at least 1
    held_out: np.ndarray  # ids of the clients that never train
    departures: bool
    participation: float
    cohort: int  # s
    chunk: int  # clients trained at a time
    budget: int  # bytes that a round may take for its clients
    room: int  # bytes of it for what is worked on at a time; less after memory has run out
    shape: tuple[int, ...]  # of one example
    width: int  # examples of the largest client
    engine: Engine = "auto"  # how clients train
    devices: int = 1  # that clients are shared out among
    build: Callable[..., Task] | None = None  # another model for the same data, by name and options
    extras: Extras = Extras()


def setting(
    federation: Federation,
    task: Task,
    local: Local,
    participation: float = 1.0,
    *,
    chunk: int | None = None,
    budget: int | None = None,
    build: Callable[..., Task] | None = None,
    engine: Engine = "auto",
    devices: int = 1,
) -> Setting:
    """The setting of a run.

    Args:
        federation: with NumPy or JAX leaves.
        participation: the share of the available clients asked in a round, in (0, 1].
        chunk: clients trained at a time; chosen from the memory at hand if not given.
        budget: bytes that a round may take for its clients; a quarter of what is free if not given.
        engine: how clients train, as `jcfl.config.Config`.
        devices: that clients are shared out among.

    Raises:
        InputError: the participation is out of range, or nobody can train.
    """
    held_out = np.asarray(federation.held_out)
    eligible = int((~held_out).sum())
    if not 0 < participation <= 1:
        raise InputError(f"participation must be above 0 and at most 1, got {participation}")
    if eligible == 0:
        raise InputError(f"no client can train: all {held_out.size} are held out")
    cohort = max(1, round(participation * eligible))
    budget = memory_budget() if budget is None else budget
    width = federation.train.width
    batch = width if local.batch_size == "full" else min(local.batch_size, width)
    return Setting(
        task=task,
        local=local,
        clients=held_out.size,
        groups=int(np.max(federation.groups, initial=0)) + 1,
        held_out=np.flatnonzero(held_out),
        departures=bool((np.asarray(federation.depart) < NEVER).any()),
        participation=participation,
        cohort=cohort,
        chunk=min(chunk, cohort) if chunk else chunk_size(task, federation, -(-cohort // devices), batch, 8, budget),
        budget=budget,
        room=budget,
        shape=tuple(federation.x.shape[1:]),
        width=width,
        engine=engine,
        devices=devices,
        build=build,
    )
