"""Nested settings: as values that YAML and JSON can express, and flat under dotted names."""

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel


def plain(value: Any) -> Any:
    """The value with every part in a type that YAML and JSON can express; other objects become text."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):  # with / on every system, because another one may read it
        return value.as_posix()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def flat(settings: Mapping[Any, Any]) -> dict[str, Any]:
    """Every single value in nested settings, under its dotted name.

    A list counts as a single value unless it holds mappings; those are numbered from 0.

    >>> flat({"rounds": 5, "method": {"name": "ifca", "addons": [{"name": "cks", "lam": 0.5}]}})
    {'rounds': 5, 'method.name': 'ifca', 'method.addons.0.name': 'cks', 'method.addons.0.lam': 0.5}
    """
    return dict(leaves(plain(settings), ""))


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Dotted names and single values in `value`, which has the dotted name `name` itself."""
    has_mappings = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    table = dict(enumerate(value)) if has_mappings else value
    if not isinstance(table, dict):
        yield name, value
        return
    for key, item in table.items():
        yield from leaves(item, f"{name}.{key}" if name else str(key))
