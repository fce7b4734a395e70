"""Named pieces: methods, scenarios, datasets, models and add-ons, each a function whose keywords are its options."""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError, create_model

from jcfl.errors import InputError, unknown

Function = TypeVar("Function", bound=Callable[..., Any])

KINDS = ("method", "addon", "data", "scenario", "model", "train", "track")
"""Every kind of piece that a configuration can name."""

PIECES = ("jcfl.data.sources", "jcfl.data.federation", "jcfl.models", "jcfl.local", "jcfl.algorithms", "jcfl.trackers")
"""The modules that register this package's own pieces."""

_TABLES: dict[str, dict[str, Callable[..., Any]]] = {}


def register(kind: str, name: str) -> Callable[[Function], Function]:
    """Put the decorated function into the table of its kind under `name`.

    The function's keyword-only parameters are its options: their annotations are what `options` checks, the first
    line of its docstring is what `jcfl list` shows.
    """

    def put(function: Function) -> Function:
        _TABLES.setdefault(kind, {})[name] = function
        return function

    return put


def load() -> None:
    """Import the modules that register this package's own pieces."""
    for module in PIECES:
        importlib.import_module(module)


def names(kind: str) -> list[str]:
    """The names registered under a kind, in the order they were registered."""
    return list(_TABLES.get(kind, {}))


def find(kind: str, name: str) -> Callable[..., Any]:
    """The function registered under a name.

    Raises:
        InputError: no such name; the nearest one is offered.
    """
    table = _TABLES.get(kind, {})
    if name not in table:
        raise unknown(kind, name, table)
    return table[name]


def line(function: Callable[..., Any]) -> str:
    """What a registered function is, in one line: the first of its docstring."""
    return next(iter((inspect.getdoc(function) or "").splitlines()), "")


def options(kind: str, name: str, given: Mapping[str, Any], also: Iterable[Callable[..., Any]] = ()) -> dict[str, Any]:
    """`given` checked and converted to what the named function's options say, defaults filled in.

    Args:
        kind: the kind of piece.
        name: its registered name.
        given: options by name.
        also: further functions whose keyword-only parameters are options of this piece too.

    Raises:
        InputError: an unknown option, a missing one, or a value its annotation refuses.
    """
    known = {item.name: item for function in (*also, find(kind, name)) for item in parameters(function)}
    return check(f"{kind} {name!r}", known, given)


def check(what: str, known: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` checked against parameters and their annotations, defaults filled in.

    Raises:
        InputError: as for `options`.
    """
    for key in given:
        if key not in known:
            raise (
                unknown(f"option of {what}:", key, known)
                if known
                else InputError(f"{what} has no options, got {key!r}")
            )
    fields: dict[str, Any] = {
        f"option_{key}": (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
        for key, parameter in known.items()
    }
    # An option may be called as a method of pydantic's models is ("copy"), so fields carry a prefix, keys do not.
    config = ConfigDict(arbitrary_types_allowed=True, alias_generator=lambda field: field.removeprefix("option_"))
    try:
        checked = create_model("Options", __config__=config, **fields)(**given)
    except ValidationError as error:
        raise InputError(f"{what}: {sentence(error)}") from None
    return {key: getattr(checked, f"option_{key}") for key in known}


def parameters(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """The options of a registered function: its keyword-only parameters, annotations resolved."""
    signature = inspect.signature(function, eval_str=True)
    return (parameter for parameter in signature.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY)


def sentence(error: ValidationError) -> str:
    """The first complaint of a pydantic error, as one line: key, complaint, what was got."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    got = "" if first["type"] == "missing" else f", got {first['input']!r}"
    return f"{key}: {first['msg'][0].lower()}{first['msg'][1:]}{got}{more}"


def schema(function: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Every option of a registered function: its type, bounds, description and default, as JSON schema."""
    return {parameter.name: entry(parameter) for parameter in parameters(function)}


def entry(parameter: inspect.Parameter) -> dict[str, Any]:
    """One option's JSON schema; a type that JSON cannot say is left open."""
    try:
        said = TypeAdapter(parameter.annotation, config=ConfigDict(arbitrary_types_allowed=True)).json_schema()
    except PydanticSchemaGenerationError:
        said = {}
    return said | ({} if parameter.default is parameter.empty else {"default": parameter.default})
