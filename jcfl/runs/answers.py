"""The answers that a configuration gives in place of a method's own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from jcfl import registry
from jcfl.core.method import KINDS, QUESTIONS
from jcfl.core.method import Method as Value
from jcfl.errors import InputError
from jcfl.runs import schedules
from jcfl.runs.objects import registered_name
from jcfl.runs.sections import Method

MARK = "merges_more"
"""The mark, in its schema, of an option that sets which clusters are merged: with which of its values more are."""


def with_answers(value: Value, options: Mapping[str, Any]) -> Value:
    """The method with its answers replaced by those of a configuration's options."""
    given = {question: options[question] for question in QUESTIONS if options.get(question) is not None}
    pieces = {question: answer(question, piece) for question, piece in given.items()}
    return replace(value, **pieces)


def answer(question: str, piece: Any) -> Any:
    """The answer that `{name, options…}` describes; the options have been checked before."""
    options = {key: value for key, value in dict(piece).items() if key != "name"}
    return registry.made(KINDS[question], dict(piece)["name"], **options)


def refuse_replaced(method: Method) -> None:
    """Refuse an option of a method whose place an answer takes, as `clusters` of IFCA beside another `group`.

    Raises:
        InputError: the method would be the same without the option.
    """
    options = schedules.at_most(method).options
    answers, own = [one for one in QUESTIONS if options.get(one) is not None], without(options, QUESTIONS)
    if not answers or method.is_placeholder:
        return
    name = registered_name(method, "method")
    found = registry.made("method", name, **own)
    if not isinstance(found, Value):
        return
    for option in registry.parameters(registry.find("method", name)):
        if own.get(option.name, option.default) in (option.default, None):
            continue
        try:
            other = registry.made("method", name, **{**own, option.name: option.default})
        except InputError:  # the method needs it
            continue
        if not alike(other, found) and alike(with_answers(other, options), with_answers(found, options)):
            where = next(one for one in answers if not alike(getattr(other, one), getattr(found, one)))
            there = {one.name for one in registry.parameters(registry.find(KINDS[where], dict(options[where])["name"]))}
            instead = f"set method.{where}.{option.name} instead" if option.name in there else "leave it out"
            raise InputError(
                f"method.{option.name}={written(own[option.name])} has no effect, because method.{where} takes the "
                f"place of the answer that it belongs to; {instead}, or give its default: "
                f"method.{option.name}={written(option.default)}"
            )


def for_room(method: Method) -> str:
    """What to do if more clusters are found than there is room for: the options of the method that help, by their keys.

    Such options are `capacity`, and those that are marked in their schema as `merges_more` with the values that do.
    """
    known, above = {}, "method."
    group = method.options.get("group")
    if group is not None:
        known, above = registry.schema(registry.find("group", group["name"])), "method.group."
    elif not method.is_placeholder:
        known = registry.schema(registry.find("method", method.name))
    ways = [f"raise {above}capacity"] if "capacity" in known else []
    ways += [f"merge more readily, by a {said[MARK]} {above}{name}" for name, said in known.items() if MARK in said]
    return ", or ".join(ways) or "its group needs more slots"


def alike(one: Any, other: Any) -> bool:
    """Whether two values are equal. Options may be arrays; two arrays are equal if all their numbers are."""
    if type(one) is not type(other):
        return one == other if np.isscalar(one) and np.isscalar(other) else False
    if is_dataclass(one):
        return all(alike(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(np.array_equal(one, other)) if hasattr(one, "shape") else one == other


def written(value: Any) -> str:
    """A value as one writes it in YAML: `null`, `true`, `[a]`."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def without(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The options except those with some names."""
    return {key: value for key, value in options.items() if key not in names}
