"""The simplest answers: nothing is described or compared, all clients are together or each is alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from jcfl.core.context import Context
from jcfl.core.method import Compare, Describe, Group, Method, When
from jcfl.errors import InputError
from jcfl.registry import register
from jcfl.types import Array, Grouping


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
    """The server knows nothing about a client."""

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


def refuse_descriptions(method: Method) -> None:
    """Refuse descriptions and comparisons that a group never looks at.

    Raises:
        InputError: the method describes or compares clients, and its group makes nothing of it.
    """
    described = method.describe.source != "nothing"
    if described or not isinstance(method.compare, Incomparable):
        ignored = f"describe={method.describe.name}" if described else f"compare={method.compare.name}"
        raise InputError(
            f"{method.name}: group {method.group.name!r} looks at no description, so {ignored} has no meaning; "
            f"set method.describe=nothing and method.compare=nothing, or choose another group"
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
        refuse_descriptions(method)
        return grouping_of(
            init=lambda state, federation: state.replace(labels=jnp.zeros_like(state.labels)),
            place=lambda state, who, federation: jnp.zeros(who.shape, jnp.int32),
        )


@register("group", "alone")
@dataclass(frozen=True, kw_only=True)
class Alone(Group):
    """Every client is a cluster of its own; clients that never train use ω."""

    name: ClassVar[str] = "alone"
    clustered: ClassVar[bool] = False
    alone: ClassVar[bool] = True

    def slots(self, context: Context) -> int:
        """As many as clients."""
        return context.population.clients

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Every client's label is its id."""
        refuse_descriptions(method)
        number = lambda state: jnp.arange(state.labels.size, dtype=jnp.int32)
        return grouping_of(init=lambda state, federation: state.replace(labels=number(state)))
