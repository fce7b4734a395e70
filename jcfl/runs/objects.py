"""Objects that a user passes in Python, where a configuration has a name."""

import dataclasses
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from inspect import isfunction, signature
from typing import Any, NamedTuple, get_type_hints

from jax.core import Tracer
from pydantic import PydanticUserError

from jcfl import registry
from jcfl.core.context import Context
from jcfl.core.local import Trainer
from jcfl.core.method import QUESTIONS, Method
from jcfl.errors import InputError, shown
from jcfl.runs.sections import PLACEHOLDER, Piece
from jcfl.runs.titles import FOLDER
from jcfl.types import Algorithm, Federation

OBJECT_SECTIONS = ("method", "model", "train")
"""The sections of a configuration in whose place a user can pass an object in Python."""

PLAIN = (str, int, float, list, Mapping, Piece, type(None))
"""What a configuration's file can have in place of a piece, right or wrong; anything else is an object from Python."""

LONGEST = 200
"""Characters of a field that a configuration keeps."""


def config_of_federation(federation: Federation) -> dict[str, Any]:
    """The settings of a run on a federation that a user passed in Python."""
    return {"data": PLACEHOLDER, "scenario": {"name": PLACEHOLDER, "federation": federation.name}, "method": "stocfl"}


class Objects(NamedTuple):
    """Objects that a user passed in Python, in place of a name."""

    federation: Federation | None = None
    method: Any = None  # a Method, or a function of the context that returns a Method or an Algorithm
    model: Any = None  # a Task or a Flax module
    train: Any = None  # as `jcfl.core.local.Local`
    compare: Mapping[int, Any] | None = None  # methods among those to compare, by their place, from 0

    def of_method(self, place: int) -> "Objects":
        """The objects for one of a configuration's methods: 0 is the main one, 1 the first to compare with it."""
        return self if place == 0 else self._replace(method=(self.compare or {}).get(place - 1))


def objects_and_settings(given: dict[str, Any]) -> tuple[Objects, dict[str, Any]]:
    """The objects among some settings, and the settings with a placeholder for each object."""
    objects = Objects()
    for section in OBJECT_SECTIONS:
        value = given.get(section)
        if not isinstance(value, PLAIN):
            objects = objects._replace(**{section: value})
            given = given | {section: placeholder(section, value)}
    others = given.get("compare")
    if isinstance(others, Sequence) and not isinstance(others, str):
        found = {place: value for place, value in enumerate(others) if not isinstance(value, PLAIN)}
        known = [placeholder("method", one) if i in found else one for i, one in enumerate(others)]
        objects, given = objects._replace(compare=found or None), given | {"compare": known}
    return objects, given


def placeholder(section: str, thing: Any) -> dict[str, Any]:
    """What a configuration says of an object, so that a run is not resumed with another one.

    Returns:
        `name`; of a method its own name as `label`; `object`: its class, or the name of a function; `value`: its
        fields, or its representation. The code of a function is not known.
    """
    kind = getattr(thing, "__qualname__", type(thing).__qualname__)
    name = thing.name if isinstance(thing, Method) else getattr(thing, "__name__", "")
    label = {"label": name} if section == "method" and FOLDER.fullmatch(str(name)) else {}
    told = {} if isfunction(thing) or isinstance(thing, type) else {"value": fields(thing)}
    return {"name": PLACEHOLDER, **label, "object": kind, **told}


def fields(thing: Any) -> Any:
    """The fields of a dataclass, such as a Method or a Flax module, as text; of another object its representation."""
    if dataclasses.is_dataclass(thing):
        return {field.name: written(getattr(thing, field.name)) for field in dataclasses.fields(thing) if field.repr}
    return written(thing)


def written(value: Any) -> str:
    """A value as text without memory addresses, which differ between processes; a long text is cut, and has a hash."""
    text = re.sub(r" at 0x[0-9a-f]+", "", shown(value, sys.maxsize))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def refuse_unused(config: Any, objects: Objects) -> None:
    """Refuse data and a scenario beside a federation that a user passed in Python: they would have no effect."""
    if objects.federation is None:
        return
    for section in ("data", "scenario"):
        piece = getattr(config, section)
        alone = isinstance(piece, Piece) and piece.is_placeholder
        more = sorted(piece.options.keys() - {"federation"}) if alone else []
        if more or not alone:
            raise InputError(
                f"{'.'.join([section, *more[:1]])} has no effect beside a federation; leave it out, or give it to the "
                "function that makes the federation, as in jcfl.data.from_clients(…, validation=0.1)"
            )


def checked_method(method: Method) -> Method:
    """A method that was made in Python, if its answers are answers, and their options in bounds.

    Raises:
        InputError: an answer of another kind, such as its name, or an option out of bounds.
    """
    for question in QUESTIONS:
        answer, kind = getattr(method, question), get_type_hints(Method)[question]
        if not isinstance(answer, kind):
            raise InputError(
                f"method.{question}: expected {kind.__name__}(…) or a subclass of it, got {shown(answer)}; a name can "
                f"stand in a mapping, as in method={{'name': 'fedavg', {question!r}: …}}"
            )
        refuse_bad_fields(f"{method.name}: {question} {getattr(answer, 'name', '')!r}", answer)
    for part in ("rule", "server", "exclude", "privacy"):  # of any class, so their annotations refuse nothing
        value = getattr(method.aggregate, part)
        if isinstance(value, PLAIN) and (part == "rule" or value is not None):
            raise InputError(
                f"{method.name}: aggregate.{part}: expected an object, such as one of jcfl.core.aggregates, got "
                f"{shown(value)}"
            )
    for part, function in {
        "rule": "bind(context)",
        "shared_rule": "bind(context)",
        "server": "transformation()",
    }.items():
        value = getattr(method.aggregate, part)
        lacks = isinstance(value, type) or not callable(getattr(value, function.partition("(")[0], None))
        if value is not None and lacks:
            raise InputError(
                f"{method.name}: aggregate.{part}: expected an object with a function {function}, such as one of "
                f"jcfl.core.aggregates, got {shown(value)}"
            )
    return method


def refuse_bad_fields(what: str, answer: Any) -> None:
    """Refuse an answer whose fields are not what their annotations say.

    Nothing is checked if the annotations of a user's class cannot be read here: names that only type checkers import,
    a class inside of a function, a field that only `__init__` has. Traced fields are not checked.
    """
    try:
        known = {option.name: option for option in registry.parameters(type(answer))}
        values = {name: getattr(answer, name) for name in known}
        concrete = {name: value for name, value in values.items() if not isinstance(value, Tracer)}
        registry.check(what, {name: known[name] for name in concrete}, concrete)
    except (NameError, AttributeError, TypeError, PydanticUserError):
        return


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
        raise InputError(
            f"train: expected a mapping of options, or a trainer, got {shown(train)}; for an optimizer of optax, "
            "train={'name': 'optax', 'optimizer': 'adam', 'lr': 0.001}"
        )
    return train


def registered_name(piece: Piece, section: str) -> str:
    """A piece's name.

    Raises:
        InputError: it is the placeholder of an object, which only the user's program has.
    """
    if piece.is_placeholder:
        what = "federation" if section in ("data", "scenario") else section
        raise InputError(
            f"{section}: this run used a {what} that was passed in Python; pass it again, as in "
            "jcfl.run(…, out=DIR, resume=True)"
        )
    return piece.name
