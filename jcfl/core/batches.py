"""Which of a client's examples each local step sees."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jcfl.core.streams import Stream, stream
from jcfl.types import Array, Clients, Key
from jcfl.types.target import target

HELD = 2**18
"""The most numbers that the orders of a client's examples in all passes take."""


class Pace(Protocol):
    """What a schedule needs to know of a trainer."""

    @property
    def steps(self) -> int | None:
        """Steps in a round, where they are counted and not passes over the examples."""
        ...

    @property
    def share(self) -> float:
        """The share of a client's examples that one training takes."""
        ...

    def rows_and_steps(self, n: int) -> tuple[int, int]:
        """Rows in a step, and steps in a round, of a client with `n` examples."""
        ...


class Schedule(NamedTuple):
    """Which rows each step of one client sees.

    A turn is a step of the largest client. In epochs, a smaller client has no step in some turns, because its pass ends
    before the longest one's.
    """

    count: Any  #: how many steps are computed: an int, or [] int32
    turn: Callable[[Array], Array]  #: (number of a step) -> its turn. [] int32
    batch: Callable[[Array], Clients]  #: (turn) -> the rows [b, ...]
    skips: bool = False  #: whether some of the steps are those of turns without rows, and change nothing


def taken(share: float, size: Any) -> Any:
    """How many of `size` examples one training takes: their share, rounded down, and at least one of any.

    Args:
        size: a number, or an array of numbers; not a traced one.
    """
    found = np.maximum(np.floor(share * np.asarray(size)), np.minimum(size, 1)).astype(np.int32)
    return found if found.ndim else int(found)


def number(share: float, data: Clients) -> Array:
    """How many of one client's examples one training takes. [] int"""
    if share == 1:
        return data.size
    return jnp.asarray(taken(share, np.arange(data.mask.shape[0] + 1)))[data.size]  # as exact as on the host


def examples(pace: Any, size: int) -> int:
    """How many examples a client goes through in a round, those of each pass again; padding does not count.

    Args:
        pace: a trainer, see `jcfl.core.local.Trainer`. One without a `share` is taken to use all examples.
        size: the client's examples.
    """
    own, (rows, steps) = taken(getattr(pace, "share", 1.0), size), pace.rows_and_steps(size)
    one_pass = max(1, -(-own // max(rows, 1)))  # steps, of which the last may be smaller
    return steps // one_pass * own + steps % one_pass * rows


def drawn(share: float, data: Clients, key: Key) -> Clients:
    """One client's examples, of which a random share is left; the others count as padding.

    Args:
        share: above 0 and at most 1.
        key: of the client in this round.
    """
    if share == 1:
        return data
    noise = jax.random.uniform(stream(key, Stream.SHARE), data.mask.shape)
    rank = jnp.where(data.mask, noise, jnp.inf).argsort().argsort()
    return data.replace(mask=data.mask & (rank < number(share, data)))


def schedule(pace: Pace, data: Clients, key: Key) -> Schedule:
    """The steps of one client.

    On a CPU only turns with rows are computed. On other devices all are, because there a loop whose number of steps
    depends on the data waits for the host before every step.

    Args:
        pace: the trainer.
        data: one client's examples, as `drawn` gives them for the trainer's share.
    """
    every = lambda step: step
    n = data.mask.shape[0]
    b, total = pace.rows_and_steps(n)
    largest = taken(pace.share, n)
    if b == largest:
        whole = compact(data, largest)
        return Schedule(total, every, lambda turn: whole)
    real = jnp.maximum(data.size, 1)
    own_pass = (real + b - 1) // b  # batches in one pass over this client's examples
    longest = -(-largest // b)
    turns = own_pass if pace.steps else longest

    def order(turn: Array) -> Array:
        """The rows in the order of one pass, the padding last. [n]"""
        noise = jax.random.uniform(stream(key, Stream.ORDER, turn), (n,))
        return jnp.argsort(jnp.where(data.mask, noise, jnp.inf))

    most = total if pace.steps else total // longest  # passes
    orders: Array | None = None  # where there are too many, each step computes its own again
    if most * n <= HELD and not pace.steps:
        orders = jax.vmap(order)(jnp.arange(most))
    elif most * n <= HELD and target().is_cpu:
        add = lambda turn, found: found.at[turn].set(order(turn))
        orders = jax.lax.fori_loop(0, -(-total // own_pass), add, jnp.zeros((most, n), int))

    def batch(turn: Array) -> Clients:
        position = (turn % turns) * b + jnp.arange(b)
        in_order = order(turn // turns) if orders is None else orders[turn // turns]
        return data.picked(in_order[position % real], position < data.size)

    if pace.steps or not target().is_cpu:
        return Schedule(total, every, batch, skips=not pace.steps)
    turn = lambda step: step // own_pass * longest + step % own_pass
    return Schedule(jnp.where(data.size > 0, total // longest * own_pass, 0), turn, batch)


def compact(data: Clients, most: int) -> Clients:
    """The same examples in `most` rows, which are enough for them; the data themselves if they have no more."""
    if data.mask.shape[0] == most:
        return data
    rows = jnp.argsort(~data.mask, stable=True)[:most]
    return data.picked(rows, data.mask[rows])


def steps_done(pace: Pace, data: Clients, turn: Array) -> tuple[Array, Array]:
    """How many steps a client has done before a turn of a round, and how many it does in the whole round.

    In epochs, a smaller client has no step in some turns, because its pass ends before the longest one's.

    Args:
        data: as for `schedule`.
    """
    n = data.mask.shape[0]
    b, total = pace.rows_and_steps(n)
    own, longest = (data.size + b - 1) // b, -(-taken(pace.share, n) // b)  # batches of one pass
    return turn // longest * own + jnp.minimum(turn % longest, own), total // longest * own
