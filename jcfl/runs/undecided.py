"""Options that a configuration leaves open: `auto` in place of a value, which is decided before training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jcfl import registry
from jcfl.core.method import QUESTIONS
from jcfl.runs.sections import Method

AUTO = "auto"

Path = tuple[str, ...]
"""Where an option stands in a method: `("tau",)`, or `("group", "tau")` for one of an answer."""


def options(check: Callable[..., dict[str, Any]], kind: str, name: str, given: Mapping[str, Any], *more: Any) -> Any:
    """The options that `check(kind, name, given, …)` gives; those that say how they are decided may be `auto`."""
    left = [key for key in rules(kind, name) if given.get(key) == AUTO]
    rest = {key: value for key, value in given.items() if key not in left}
    return check(kind, name, rest, *more) | dict.fromkeys(left, AUTO)


def rules(kind: str, name: str) -> dict[str, str]:
    """The options of a piece that may be `auto`, with the rule that decides each."""
    said = registry.schema(registry.find(kind, name))
    return {key: entry[AUTO] for key, entry in said.items() if AUTO in entry}


def left_open(method: Method, kinds: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """The options of a method, and of its answers, that are `auto`, with their rules.

    Args:
        kinds: the kind of piece that answers each question.
    """
    if method.is_placeholder:
        return
    answers = {question: method.options[question] for question in QUESTIONS if method.options.get(question)}
    for key, rule in rules("method", method.name).items():
        if method.options.get(key) == AUTO:
            yield (key,), rule
    for question, answer in answers.items():
        for key, rule in rules(kinds[question], answer["name"]).items():
            if answer.get(key) == AUTO:
                yield (question, key), rule


def with_values(method: Method, values: Mapping[Path, Any]) -> Method:
    """A method with some of its options replaced."""
    changes: dict[str, Any] = {}
    for (first, *rest), value in values.items():
        inner = {**changes.get(first, method.options.get(first) or {}), rest[0]: value} if rest else value
        changes[first] = inner
    return method.model_copy(update=changes)


def stored_values(
    method: Method, stored: Method, kinds: Mapping[str, str], beside: Mapping[str, Sequence[str]]
) -> Method:
    """A method whose open options have the values that a stored one was run with.

    Args:
        kinds: the kind of piece that answers each question.
        beside: the other options that a rule decides. They are stored beside the open option, which is null then.
    """
    values: dict[Path, Any] = {}
    for path, rule in left_open(method, kinds):
        found = {(*path[:-1], name): value_at(stored.options, (*path[:-1], name)) for name in beside.get(rule, ())}
        found = {other: value for other, value in found.items() if value is not None}
        own = value_at(stored.options, path)
        values |= found | ({path: own} if found or own is not None else {})
    return with_values(method, values)


def value_at(options: Mapping[str, Any], path: Path) -> Any:
    """The value at a path; None where there is none."""
    first, *rest = path
    found = options.get(first)
    return found.get(rest[0]) if rest and isinstance(found, Mapping) else None if rest else found
