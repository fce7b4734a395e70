"""What `jcfl.core.compile` is told of the run that a method is compiled for."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import trees
from jcfl.core.engine import Engine
from jcfl.core.faults import Faults
from jcfl.core.local import Trainer
from jcfl.core.memory import chunk_size, free_memory, memory_budget, rows_at_once
from jcfl.core.privacy import Privacy
from jcfl.errors import InputError, TooLarge
from jcfl.types import NEVER, Federation, Task

EngineName = Literal["auto", "general", "factored"]
"""How clients train: in general, or factored where the model allows it; by default whichever takes less time."""


class Population(NamedTuple):
    """The clients of a run: the numbers that fix its shapes."""

    clients: int  #: m, the number of clients
    groups: int  #: the number of true groups; 0 if no client's group is known
    held_out: np.ndarray  #: [h] int, the numbers of the clients that never train
    changes: bool  #: whether clients arrive after the first round
    departures: bool  #: whether any client leaves the federation
    drifts: bool  #: whether the data of clients change
    participation: float  #: the share of the available clients that are sampled in a round, in (0, 1]
    cohort: int  #: s, the number of sampled clients of a round
    shape: tuple[int, ...]  #: the shape of one example
    width: int  #: the number of training examples of the largest client
    classes: int  #: c, the number of classes

    @property
    def eligible(self) -> int:
        """The clients that can train."""
        return self.clients - self.held_out.size


class Resources(NamedTuple):
    """The memory and the devices of a run."""

    chunk: int  #: how many clients are trained at a time
    budget: int  #: bytes that a round may take for its clients
    room: int  #: bytes of it for what is worked on at a time; less after memory has run out
    rows: int  #: how many examples go through a model at a time, where models are only evaluated
    devices: int = 1  #: the number of devices among which clients are distributed
    tile: int | None = None  #: clients of a cluster that the factored engine trains at a time; None for its own choice
    states_on_host: bool = False  #: whether models that clients keep are on the host, and rounds fetch the cohort's
    products: Literal["eigen"] | None = None  #: the library of a CPU's products of matrices; None for XLA's own choice


class Context(NamedTuple):
    """A run, as far as compiling a method depends on it."""

    task: Task  #: the model and its loss
    trainer: Trainer  #: how a client trains locally
    population: Population  #: the clients
    resources: Resources  #: memory and devices
    engine: EngineName = "auto"  #: how clients train; by default whichever engine takes less time
    engines: Sequence[Engine] = ()  #: engines to choose from besides the general one, the preferred ones first
    build: Callable[..., Task] | None = None  #: makes another model for the same data, from a name and options
    faults: Faults = Faults()  #: attackers, unreliable clients, and what is done with models that are not finite
    privacy: Privacy = Privacy()  #: what is clipped, and how much noise is added
    tests_shared: bool = False  #: whether evaluations test ω as well, for methods that train it
    measures_quality: bool = False  #: whether evaluations measure the quality of clusters, see `jcfl.core.measuring`
    models_at: tuple[int, ...] = ()  #: the rounds after which the clients' models are compared with each other


def context(
    federation: Federation,
    task: Task,
    trainer: Trainer,
    participation: float = 1.0,
    *,
    chunk: int | None = None,
    budget: int | None = None,
    room: int | None = None,
    devices: int = 1,
    states_on_host: bool = False,
    **rest: Any,
) -> Context:
    """The context of a run.

    Args:
        federation: with NumPy or JAX leaves.
        participation: the share of the available clients that are sampled in a round, in (0, 1].
        chunk: clients trained at a time; chosen from the memory at hand if not given.
        budget: bytes that a round may take for its clients; a quarter of what is free if not given.
        room: bytes of these for what is worked on at a time; all unless given.
        devices: devices among which clients are distributed.
        states_on_host: whether models that clients keep are on the host.
        **rest: further fields of `Context`.

    Raises:
        InputError: the participation is out of range, or nobody can train.
    """
    held_out = np.asarray(federation.held_out)
    eligible = int((~held_out).sum())
    if not 0 < participation <= 1:
        raise InputError(f"participation must be above 0 and at most 1, got {participation}")
    if eligible == 0:
        raise InputError(f"no client can train: all {held_out.size} are held out")
    cohort = int(cohort_size(participation, eligible))
    budget = memory_budget() if budget is None else budget
    width = federation.train.width
    batch, _ = trainer.rows_and_steps(width)
    population = Population(
        clients=held_out.size,
        groups=int(np.max(federation.groups, initial=-1)) + 1,
        held_out=np.flatnonzero(held_out),
        changes=bool((np.asarray(federation.arrive) > 0).any()),
        departures=bool((np.asarray(federation.depart) < NEVER).any()),
        drifts=not isinstance(federation.drift, tuple),
        participation=participation,
        cohort=cohort,
        shape=tuple(federation.x.shape[1:]),
        width=width,
        classes=federation.classes,
    )
    chunk = min(chunk, cohort) if chunk else chunk_size(task, federation, -(-cohort // devices), batch, 8, budget)
    rows = rows_at_once(task, federation)
    resources = Resources(chunk, budget, min(budget, room or budget), rows, devices, states_on_host=states_on_host)
    return Context(task, trainer, population, resources, **rest)


def cohort_size(participation: float, available: Any, xp: Any = np) -> Any:
    """How many of the available clients a round samples: at least one.

    NumPy rounds it in the precision of the compiled program too, because the product may be just above or below a half.

    Args:
        participation: the share of the available clients.
        available: their number.
        xp: `numpy`, or `jax.numpy` for a number inside of a compiled program.
    """
    real = jnp.result_type(float)
    return xp.maximum(xp.round(xp.asarray(participation, real) * xp.asarray(available, real)), 1)


def model_bytes(task: Task) -> int:
    """Bytes of one model in float32."""
    return trees.parameters(jax.eval_shape(task.init, jax.random.key(0))) * 4


def refuse_too_large(what: str, clients: int, each: int, instead: str, parts: int = 1) -> None:
    """Refuse a state per client that does not fit the memory.

    Args:
        what: the piece that keeps it, and what it keeps, for the message.
        clients: how many states are held at once.
        each: bytes of one client.
        instead: what the user can do.
        parts: how many devices hold a part of each state.

    Raises:
        TooLarge: the line says how much it takes, and how much there is.
    """
    need, room = clients * each, parts * free_memory() // 2  # the other half is for rounds and for reading checkpoints
    if need > room:
        raise TooLarge(
            f"{what} of each of {clients} clients: {need / 2**30:.1f} GiB, and there is room for "
            f"{room / 2**30:.1f} GiB; {instead}",
            need,
        )
