"""The answers to "when": the rounds in which clients are grouped, counted from the beginning of the method's phase."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from jcfl.core.method import When
from jcfl.core.neutral import Once as Once  # answers this question too
from jcfl.core.neutral import Round
from jcfl.errors import InputError
from jcfl.registry import register

Renew = Annotated[int | None, Field(ge=1, description="rounds after which a sampled client is described again")]


@register("when", "window")
@dataclass(frozen=True, kw_only=True)
class Window(When):
    """Clients are grouped in the rounds [first, last) and keep their clusters otherwise (Ma 2023, Alg. 2-4)."""

    name: ClassVar[str] = "window"
    first: Round = 0
    last: Annotated[int, Field(ge=1, description="the first round after the window, counted from 0")] = 10

    def __post_init__(self) -> None:
        """Refuse a window without a round."""
        if self.last <= self.first:
            raise InputError(
                f"when: the window of rounds [first, last) has no round: first must be less than last, got "
                f"[{self.first}, {self.last})"
            )


@register("when", "arrival")
@dataclass(frozen=True, kw_only=True)
class Arrival(When):
    """A client is grouped when it is sampled for the first time (Zeng et al. 2023), and again after `renew` rounds."""

    name: ClassVar[str] = "arrival"
    on_arrival: ClassVar[bool] = True
    renew: Renew = None


@register("when", "settled")
@dataclass(frozen=True, kw_only=True)
class Settled(When):
    """A cluster is divided if its mean update is small and single updates are large (Sattler et al. 2020)."""

    name: ClassVar[str] = "settled"
    eps1: Annotated[float, Field(ge=0, description="norm below which the mean update is small")] = 0.4
    eps2: Annotated[float, Field(ge=0, description="norm above which the largest update is large")] = 0.6
    relative: Annotated[bool, Field(description="eps1, eps2 as fractions of the norms of the first round")] = True
    min_round: Annotated[int, Field(ge=0, description="no division before this round")] = 0
