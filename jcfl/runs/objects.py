"""Objects that a user passes in Python, where a configuration has a name."""

from collections.abc import Mapping
from inspect import signature
from typing import Any, NamedTuple

from jcfl.core.context import Context
from jcfl.core.local import Trainer
from jcfl.core.method import Method
from jcfl.errors import InputError, shown
from jcfl.runs.sections import PLACEHOLDER, Piece
from jcfl.types import Algorithm, Federation

OBJECT_SECTIONS = ("method", "model", "train")
"""The sections of a configuration in whose place a user can pass an object in Python."""

PLAIN = (str, int, float, list, Mapping, Piece, type(None))
"""What a configuration's file can have in place of a piece, right or wrong; anything else is an object from Python."""


class Objects(NamedTuple):
    """Objects that a user passed in Python, in place of a name."""

    federation: Federation | None = None
    method: Any = None  # a Method, or a function of the context that returns a Method or an Algorithm
    model: Any = None  # a Task or a Flax module
    train: Any = None  # as `jcfl.core.local.Local`


def objects_and_settings(given: dict[str, Any]) -> tuple[Objects, dict[str, Any]]:
    """The objects among some settings, and the settings with a placeholder for each object."""
    objects = Objects()
    for section in OBJECT_SECTIONS:
        value = given.get(section)
        if isinstance(value, PLAIN):
            continue
        objects = objects._replace(**{section: value})
        given = given | {
            section: {"name": PLACEHOLDER, "object": getattr(value, "__qualname__", type(value).__qualname__)}
        }
    return objects, given


def made_by_function(make: Any, context: Context) -> Method | Algorithm:
    """What a function of the context returns.

    Raises:
        InputError: it is no such function, or returns something else.
    """
    if not takes_context(make, context):
        expected = "a name, a mapping, a Method such as fedavg(), or a function of the run's context"
        raise InputError(f"method: expected {expected}, got {shown(make)}")
    found = make(context)
    if not isinstance(found, Method | Algorithm):
        raise InputError(f"method: expected {shown(make)} to return a Method or an Algorithm, got {shown(found)}")
    return found


def takes_context(make: Any, context: Context) -> bool:
    """Whether this is a function that can be called with the context alone."""
    try:
        return callable(make) and bool(signature(make).bind(context).args)
    except (TypeError, ValueError):  # it takes other arguments, or does not say which
        return False


def checked_trainer(train: Any) -> Any:
    """The trainer, if it is one.

    Raises:
        InputError: it lacks what `jcfl.core.local.Trainer` lists.
    """
    if isinstance(train, type) or not isinstance(train, Trainer):
        raise InputError(f"train: expected a mapping of options, or a trainer, got {shown(train)}")
    return train
