"""Options that a configuration gives and that change nothing beside the values of other options."""

from collections.abc import Iterator, Mapping
from typing import Any

from jcfl import registry
from jcfl.core.method import QUESTIONS
from jcfl.runs.sections import Method

MARK = "only_with"
"""The mark of such an option in its schema: the other option, and the values with which it is used; null: any value."""


def unused(method: Method, kinds: Mapping[str, str]) -> Iterator[str]:
    """A line for each such option of a method, its answers and its add-ons.

    Args:
        kinds: the kind of piece that answers each question.
    """
    if method.is_placeholder:
        return
    yield from of_piece("method", method.name, method.options, f"{method.title}: ")
    for question in QUESTIONS:
        answer = method.options.get(question)
        if answer:
            yield from of_piece(kinds[question], answer["name"], answer, f"{method.title}: {question}.")
    for addon in method.addons:
        yield from of_piece("addon", addon.name, addon.options, f"{method.title}: addon {addon.name}: ")


def of_piece(kind: str, name: str, given: Mapping[str, Any], above: str) -> Iterator[str]:
    """A line for each such option of one piece.

    A default is not meant: the configuration that a run writes names all options.

    Args:
        above: what stands before the option's name.
    """
    known = registry.schema(registry.find(kind, name))
    for option, entry in known.items():
        if given.get(option, entry.get("default")) == entry.get("default"):
            continue
        for other, values in entry.get(MARK, {}).items():
            got = given.get(other, known[other]["default"])
            if got is None if values is None else got not in values:
                only = f"without {other}" if values is None else f"with {other}={got}, only with {' or '.join(values)}"
                yield f"{above}{option} has no effect {only}"
