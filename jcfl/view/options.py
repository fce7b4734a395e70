"""The options of a registered piece, and the keys of a configuration, as text."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from jcfl import registry
from jcfl.nested import plain


class Option(NamedTuple):
    """One option of a piece, as text."""

    name: str
    values: str
    default: str
    text: str


def options(function: Callable[..., Any]) -> list[Option]:
    """The options of a registered function, as text."""
    return [
        Option(name, values(schema), default(schema), schema.get("description", ""))
        for name, schema in registry.schema(function).items()
    ]


def keys(model: type[BaseModel]) -> list[Option]:
    """The keys of a model that have a description, as text; their values are in it. A default is as YAML writes it."""
    fields = {name: field for name, field in model.model_fields.items() if field.description}
    written = lambda value: "null" if value is None else default({"default": value})
    return [Option(name, "", written(field.default), field.description or "") for name, field in fields.items()]


def values(schema: Mapping[str, Any]) -> str:
    """The values that an option accepts, as text, from its JSON schema.

    >>> values({"type": "number", "minimum": 0, "exclusiveMaximum": 0.5})
    'number, 0 ≤ · < 0.5'
    >>> values({"type": "integer", "minimum": 1, "auto": "clusters"})
    'integer ≥ 1 or auto'
    """
    found = [*alternatives(schema), *(["auto"] if "auto" in schema else [])]
    return " or ".join(dict.fromkeys(found)) or "any"


def alternatives(schema: Mapping[str, Any]) -> Iterator[str]:
    """Each alternative that a JSON schema accepts, as text."""
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from alternatives(one)
    elif "enum" in schema:
        yield ", ".join(str(value) for value in schema["enum"])
    elif "const" in schema:
        yield str(schema["const"])
    elif schema.get("type") == "array":
        each = schema.get("items") or next(iter(schema.get("prefixItems", ())), {})
        yield f"list of {values(each)}" if each else "list"
    elif "type" in schema:
        words = {"boolean": "true or false", "string": "text", "object": "mapping", "null": "none"}
        yield str(words.get(schema["type"], schema["type"])) + bounds(schema)


def bounds(schema: Mapping[str, Any]) -> str:
    """The bounds of a number, as an inequality."""
    low = next((f"{schema[key]:g} {sign} " for key, sign in LOWER.items() if key in schema), "")
    high = next((f" {sign} {schema[key]:g}" for key, sign in UPPER.items() if key in schema), "")
    if low and not high:
        return f" {SWAPPED[low.split()[1]]} {low.split()[0]}"
    return f", {low}·{high}" if low else high


LOWER = {"minimum": "≤", "exclusiveMinimum": "<"}
UPPER = {"maximum": "≤", "exclusiveMaximum": "<"}
SWAPPED = {"≤": "≥", "<": ">"}


def default(schema: Mapping[str, Any]) -> str:
    """An option's default, as a configuration file writes it."""
    if "default" not in schema:
        return "required"
    value = plain(schema["default"])
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
