"""Options that change during training: `{round: value}` in place of a real number, each value from its round on."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import jax.numpy as jnp

from jcfl import registry
from jcfl.errors import InputError, shown
from jcfl.runs.sections import Method, Piece
from jcfl.types import Algorithm, Array

Result = TypeVar("Result")
Table = Mapping[int, float]
"""Values by the round from which they hold; the first is round 0."""

MARK = "fixed"
"""The mark, in its schema, of an option that cannot change during training, because shapes of arrays depend on it."""

MOST = 1000
"""The most values of an option in a run."""


def options(kind: str, name: str, given: Mapping[str, Any], *more: Any) -> dict[str, Any]:
    """As `jcfl.registry.options`, but an option that is a real number may be a table; every value of it is checked.

    Raises:
        InputError: as `jcfl.registry.options`, or a table that does not begin in round 0, is too long, or is that of an
            option marked as `fixed`.
    """
    real = [one for one in registry.parameters(registry.find(kind, name)) if is_real(one)]
    numbers, fixed = {one.name for one in real}, {one.name for one in real if registry.entry(one).get(MARK)}
    for key in numbers & given.keys():
        if (isinstance(given[key], Mapping) and not is_table(given[key])) or callable(given[key]):
            raise InputError(
                f"{key}: expected a number, or values by round from round 0 on such as {{0: 0.1, 50: 0.01}}, got "
                f"{shown(given[key])}"
            )
    tables = {key: by_round(key, given[key]) for key in given if key in numbers and is_table(given[key])}
    for key in tables.keys() & fixed:
        raise InputError(
            f"{key}: cannot change during training, because it sets how many rows a program works on; expected one "
            f"number, got {shown(given[key])}"
        )
    moments = sorted({0, *(moment for table in tables.values() for moment in table)})
    at = {moment: registry.options(kind, name, {**given, **values_at(tables, moment)}, *more) for moment in moments}
    return at[0] | {key: {moment: at[moment][key] for moment in table} for key, table in tables.items()}


def is_real(parameter: Any) -> bool:
    """Whether an option takes real numbers, and no keys and values of its own."""
    said = registry.entry(parameter)
    types = [one.get("type") for one in (said, *said.get("anyOf", ()))]
    return "number" in types and "object" not in types


def is_table(value: Any) -> bool:
    """Whether a value is a mapping of rounds."""
    return isinstance(value, Mapping) and bool(value) and all(str(key).isdecimal() for key in value)


def by_round(key: str, table: Mapping[Any, Any]) -> dict[int, Any]:
    """A table with its rounds as numbers, in order."""
    if len(table) > MOST or any(len(str(moment)) > 9 for moment in table):
        raise InputError(f"{key}: expected at most {MOST} rounds of at most 9 digits, got {shown(table)}")
    found = dict(sorted((int(moment), value) for moment, value in table.items()))
    missing = next((moment for moment, value in found.items() if value is None), None)
    if missing is not None:
        raise InputError(f"{key}: expected a number from round {missing} on, got null")
    if 0 not in found:
        raise InputError(f"{key}: values by round begin in round 0, got {shown(table)}; expected {{0: …, …}}")
    return found


def values_at(tables: Mapping[str, Mapping[int, Any]], moment: int) -> dict[str, Any]:
    """The value that every table has in a round."""
    return {key: table[max(start for start in table if start <= moment)] for key, table in tables.items()}


def tables_of(method: Method, train: Piece) -> dict[str, Table]:
    """The tables among the options of a method, its add-ons and its trainer, by dotted name."""
    addons = {f"method.addons.{i}": addon for i, addon in enumerate(method.addons)}
    pieces = {"method": method, **addons, "train": train}
    own = {f"{name}.{key}": value for name, piece in pieces.items() for key, value in piece.options.items()}
    return {name: value for name, value in own.items() if is_table(value)}


def at_most(piece: Piece) -> Any:
    """A piece with the largest value in place of each table."""
    return piece.model_copy(
        update={key: max(value.values()) for key, value in piece.options.items() if is_table(value)}
    )


def scheduled(make: Callable[[Mapping[str, Any]], Algorithm], tables: Mapping[str, Table]) -> Algorithm:
    """The algorithm whose options have the values of each round; an evaluation has those of the round before it.

    What is said of it without a round, such as its costs, is said for the largest values.

    Args:
        make: an algorithm with some values of options, by dotted name; JAX traces it.

    Raises:
        InputError: clients are described by local steps, whose options change.
    """
    largest = make({name: max(table.values()) for name, table in tables.items()})
    changing = next((name for name in tables if name.startswith("train.")), None)
    if changing and largest.method is not None and largest.method.describe.trains:
        raise InputError(
            f"{changing}: cannot change during training, because clients are described by local steps (anchor_steps), "
            "and descriptions of several rounds are compared"
        )
    rounds = {name: jnp.asarray(list(table)) for name, table in tables.items()}
    values = {name: jnp.asarray([*table.values()], float) for name, table in tables.items()}

    def at(moment: Array) -> Algorithm:
        place = {name: jnp.searchsorted(begins, moment, side="right") - 1 for name, begins in rounds.items()}
        return make({name: values[name][place[name]] for name in tables})

    def guarded(function: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(function)
        def call(*given: Any) -> Result:
            try:
                return function(*given)
            except TypeError as error:  # JAX's, where code branches on a value
                names = ", ".join(tables)
                raise InputError(f"{names}: cannot change during training ({str(error).splitlines()[0]})") from error

        return call

    before = lambda state: jnp.maximum(state.round - 1, 0)
    return largest._replace(
        init=guarded(at(jnp.asarray(0)).init),
        step=guarded(lambda state, federation: at(state.round).step(state, federation)),
        predict=guarded(lambda state, federation: at(before(state)).predict(state, federation)),
        evaluate=guarded(lambda state, federation: at(before(state)).evaluate(state, federation)),
    )
