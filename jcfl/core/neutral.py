"""The simplest answers: nothing is described or compared, clients are grouped always or once, together or alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
from pydantic import Field

from jcfl.core.context import Context
from jcfl.core.method import Compare, Describe, Group, Method, When
from jcfl.errors import InputError
from jcfl.registry import register
from jcfl.types import Array, Grouping

Round = Annotated[int, Field(ge=0, description="the round, counted from 0")]


def grouping_of(
    init: Callable[..., Any] | None = None,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
    place: Callable[..., Array] | None = None,
    serve: Callable[..., Array] | None = None,
    measures: Callable[..., dict[str, Array]] | None = None,
) -> Grouping:
    """A grouping from the functions it has; those left out do nothing. See `jcfl.types.Grouping`."""
    return Grouping(
        init or (lambda state, federation: state),
        before or (lambda key, state, cohort, federation: state),
        after,
        place or (lambda state, who, federation: jnp.full(who.shape, -1)),
        serve or (lambda state, federation: state.labels),
        measures or (lambda state, federation: {}),
    )


@register("describe", "nothing")
@dataclass(frozen=True, kw_only=True)
class Nothing(Describe):
    """Clients have no description."""

    name: ClassVar[str] = "nothing"


@register("compare", "nothing")
@dataclass(frozen=True, kw_only=True)
class Incomparable(Compare):
    """Nothing is compared."""

    name: ClassVar[str] = "nothing"


@register("when", "every")
@dataclass(frozen=True, kw_only=True)
class Every(When):
    """Clients are grouped in every round."""

    name: ClassVar[str] = "every"


@register("when", "once")
@dataclass(frozen=True, kw_only=True)
class Once(When):
    """All clients are grouped once; later clients are assigned to the best cluster."""

    name: ClassVar[str] = "once"
    at: Round = 0
    start: Annotated[
        Literal["current", "members"],
        Field(description="a cluster starts from the global model, or from the mean of its members' models"),
    ] = "current"


def refuse_what_changes(method: Method) -> None:
    """Refuse descriptions, comparisons and rounds of grouping that a group never looks at.

    Raises:
        InputError: the method describes, compares or regroups clients, and its group makes nothing of it.
    """
    fixed = {"describe": (Nothing(),), "compare": (Incomparable(),), "when": (Every(), Once())}
    ignored = {question: known for question, known in fixed.items() if getattr(method, question) not in known}
    if ignored:
        given = ", ".join(f"{question}={getattr(method, question)}" for question in ignored)
        advice = " and ".join(f"method.{question}={known[0]}" for question, known in ignored.items())
        raise InputError(
            f"{method.name}: group {method.group.name!r} looks at no description and never changes, so {given} has no "
            f"meaning; set {advice}, or choose another group"
        )


@register("group", "together")
@dataclass(frozen=True, kw_only=True)
class Together(Group):
    """All clients are in cluster 0."""

    name: ClassVar[str] = "together"
    clustered: ClassVar[bool] = False

    def slots(self, context: Context) -> int:
        """One."""
        return 1

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Labels of zero for everybody."""
        refuse_what_changes(method)
        return grouping_of(
            init=lambda state, federation: state.replace(labels=jnp.zeros_like(state.labels)),
            place=lambda state, who, federation: jnp.zeros(who.shape, jnp.int32),
        )


@register("group", "alone")
@dataclass(frozen=True, kw_only=True)
class Alone(Group):
    """Every client is a cluster of its own; clients that have not trained yet use ω."""

    name: ClassVar[str] = "alone"
    clustered: ClassVar[bool] = False
    alone: ClassVar[bool] = True

    def slots(self, context: Context) -> int:
        """As many as clients."""
        return context.population.clients

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Every client's label is its id."""
        refuse_what_changes(method)
        number = lambda state: jnp.arange(state.labels.size, dtype=jnp.int32)
        trained = lambda state, federation: state.seen & (federation.train.size > 0)  # without examples nobody trains
        return grouping_of(
            init=lambda state, federation: state.replace(labels=number(state)),
            serve=lambda state, federation: jnp.where(trained(state, federation), state.labels, -1),
        )
