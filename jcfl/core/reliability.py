"""Unreliable clients: when they can be sampled, whether their uploads arrive, and how many of their steps they do."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from pydantic import Field

from jcfl.core import returned
from jcfl.core.method import Piece
from jcfl.core.streams import Stream, stream
from jcfl.errors import InputError, named, shown
from jcfl.registry import register
from jcfl.types import Array, Cohort, Key

Share = Annotated[float, Field(ge=0, le=1)]

WINDOW = 0.5
"""The share of a period in which a client is available, if it is not given."""


@dataclass(frozen=True, kw_only=True)
class Reliability(Piece):
    """How reliable clients are.

    A subclass overrides `available`, `arrived` or `shares`, and the properties then say that clients are not reliable
    in this respect, whatever its fields are.

    Attributes:
        dropout: the probability that a client's upload is lost. Neither the server nor the client keeps
            anything of it.
        stragglers: the probability that a client is slow in a round.
        late: what becomes of a slow client's round: it does a random share of its local steps, at least one
            (Li et al. 2020, FedProx), or its round is lost.
        period: after so many rounds a client's availability repeats; 0: clients are always available.
        window: the share of each period in which a client is available. Clients' windows begin at random rounds.
    """

    name: ClassVar[str] = "random"
    dropout: Any = 0.0
    stragglers: Any = 0.0
    late: Literal["partial", "lost"] = "partial"
    period: int = 0
    window: float = 1.0

    @property
    def is_always_available(self) -> bool:
        """Whether all clients can be sampled in every round."""
        return not (self.period or self.overrides("available"))

    @property
    def is_perfect(self) -> bool:
        """Whether clients are always available, lose no upload and do all of their steps."""
        loses = not (never(self.dropout) and never(self.stragglers)) or self.overrides("arrived", "slow")
        return self.is_always_available and not (loses or self.is_partial)

    @property
    def is_partial(self) -> bool:
        """Whether some clients do a part of their steps only."""
        slow = not never(self.stragglers) or self.overrides("slow")
        return self.overrides("shares") or (self.late == "partial" and slow)

    def overrides(self, *functions: str) -> bool:
        """Whether the class has one of these functions of its own."""
        return any(getattr(type(self), name) is not getattr(Reliability, name) for name in functions)

    def available(self, run: Key, turn: Array, clients: int) -> Array:
        """The clients whose window is open. [m] bool

        Args:
            run: the key of the stream RUN.
            turn: the round.
        """
        if not self.period:
            return jnp.ones(clients, bool)
        begins = jax.random.randint(stream(run, Stream.WINDOWS), (clients,), 0, self.period)
        return (turn + begins) % self.period < max(1, round(self.window * self.period))

    def arrived(self, key: Key, cohort: Cohort) -> Cohort:
        """The clients of a cohort whose uploads arrive. Clients outside of the cohort send nothing.

        Args:
            key: of the stream FAILURE, as for `shares`.
        """
        present = cohort.present
        if not never(self.dropout):
            present &= drawn(key, Stream.LOST, cohort.who)[:, 0] >= self.dropout
        if self.late == "lost":
            present &= ~self.slow(drawn(key, Stream.SLOW, cohort.who))
        return Cohort(cohort.who, present)

    def shares(self, key: Key, clients: int) -> Array:
        """The share of its local steps that each client does in this round. [m] float"""
        draws = drawn(key, Stream.SLOW, jnp.arange(clients))
        return jnp.where(self.slow(draws), draws[:, 1], 1.0)

    def slow(self, draws: Array) -> Array:
        """Whether clients are slow in this round, from their `draws` [s, 2]. [s] bool"""
        return draws[:, 0] < self.stragglers


def available(reliability: Reliability, run: Key, turn: Array, clients: int) -> Array:
    """`Reliability.available`, checked when it is traced. [m] bool"""
    what = f"reliability {reliability.name!r}: available"
    found = named(what, reliability.available)(run, turn, clients)
    return returned.array(found, (clients,), [returned.LOGICAL], what)


def arrived(reliability: Reliability, key: Key, cohort: Cohort, clients: int) -> Cohort:
    """`Reliability.arrived`, checked when it is traced, without those who are not in the cohort."""
    what = f"reliability {reliability.name!r}: arrived"
    found = named(what, reliability.arrived)(key, cohort)
    if not isinstance(found, Cohort):
        raise InputError(f"{what}: expected a Cohort, as in cohort.replace(present=…), got {shown(found)}")
    who = returned.array(found.who, cohort.who.shape, [returned.WHOLE], f"{what}: who")
    present = returned.array(found.present, cohort.who.shape, [returned.LOGICAL], f"{what}: present")
    if found.who is not cohort.who:  # in another order, for example
        present = jnp.zeros(clients, bool).at[who].max(present)[cohort.who]
    return cohort.replace(present=cohort.present & present)


def shares(reliability: Reliability, key: Key, clients: int) -> Array:
    """`Reliability.shares`, checked when it is traced. [m] float"""
    what = f"reliability {reliability.name!r}: shares"
    found = named(what, reliability.shares)(key, clients)
    return returned.array(found, (clients,), returned.NUMBERS, what).astype(float)


def drawn(key: Key, purpose: Stream, who: Array) -> Array:
    """Two numbers in [0, 1) for each of the clients `who` [s], from a stream that lies below FAILURE. [s, 2]"""
    return jax.vmap(lambda client: jax.random.uniform(stream(key, purpose, client), (2,)))(who)


def never(probability: Any) -> bool:
    """Whether a probability is a plain zero, so that nothing has to be drawn."""
    return isinstance(probability, int | float) and probability == 0


@register("reliability", "random")
def random(
    *,
    dropout: Annotated[Share, Field(description="probability that a client's upload is lost")] = 0.0,
    stragglers: Annotated[Share, Field(description="probability that a client is slow in a round")] = 0.0,
    late: Annotated[
        Literal["partial", "lost"], Field(description="a slow client does a part of its steps, or its upload is lost")
    ] = "partial",
    period: Annotated[int, Field(ge=0, description="rounds after which availability repeats; 0: always available")] = 0,
    window: Annotated[
        float, Field(gt=0, le=1, description="share of a period in which a client is available")
    ] = WINDOW,
) -> Reliability:
    """Each client is sometimes unavailable or slow, or its upload is lost, independently of others."""
    return Reliability(dropout=dropout, stragglers=stragglers, late=late, period=period, window=window)
