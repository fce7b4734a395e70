"""Numbers with the nouns that they count, and the docstrings that authors wrote."""

import dataclasses
import inspect
from typing import Any


def counted(number: int, noun: str) -> str:
    """A number with what it counts, in the singular for one.

    >>> counted(1, "client"), counted(2, "true group")
    ('1 client', '2 true groups')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def docstring(thing: Any) -> str:
    """What a function or a class says of itself; empty if it says nothing.

    Python gives a dataclass without a docstring its signature as one, which is not for readers.
    """
    found = inspect.getdoc(thing) or ""
    is_signature = dataclasses.is_dataclass(thing) and found.startswith(f"{getattr(thing, '__name__', '')}(")
    return "" if is_signature else found
