"""The points of a sweep: a grid or a list of options over a configuration, every point checked."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jcfl import config
from jcfl.config import Config, checked, overridden, plain
from jcfl.errors import InputError
from jcfl.plan import Objects, handed_over, standing_in
from jcfl.types import Federation

Over = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
"""A grid, `{key: values}`, or a list of points, `[{key: value}]`; keys are dotted."""

KEYS = ("base", "grid", "list")
"""The keys that a sweep's file has beside a configuration's."""

LONGEST = 100
"""The most letters of a point's name."""


class Point(NamedTuple):
    """One run of a sweep."""

    name: str
    values: dict[str, Any]  # what was set, by dotted key
    config: Config


class Points(NamedTuple):
    """All runs of a sweep, and what they have in common."""

    base: dict[str, Any]  # a configuration, not checked
    points: list[Point]
    objects: Objects

    def text(self) -> str:
        """The sweep as a file that repeats it."""
        table = {**self.base, "list": [point.values for point in self.points]}
        return yaml.safe_dump(plain(table), sort_keys=False, allow_unicode=True, width=120)


def points(what: Federation | Config | Mapping[str, Any] | str | Path, over: Over | None, **given: Any) -> Points:
    """The points that were meant.

    Args:
        what: as for `jcfl.run`; a file or mapping may have the keys `base` (another file or a preset, whose keys its
            own replace), `grid` and `list`. With both, every entry of the list is combined with the whole grid.
        over: takes the place of the grid or the list, or is added to what is there.
        **given: the configuration's keys, as for `jcfl.run`.

    Raises:
        InputError: an unknown key, a value out of bounds, no values, the same point twice.
    """
    base, grid, entries = tree(what)
    if isinstance(over, Mapping):
        grid = {**grid, **over}
    elif over is not None:
        entries = list(over)
    objects, given = handed_over(given)
    if isinstance(what, Federation):
        objects = objects._replace(federation=what)
    base = overridden(base, [(key.split("."), value) for key, value in given.items()])
    base.pop("compare", None)
    chosen = combined(grid, entries)
    names = named([plain(values) for values in chosen])
    found = [Point(name, values, configured(base, name, values)) for name, values in zip(names, chosen, strict=True)]
    refuse_twins(found)
    return Points(base, found, objects)


def tree(what: Any) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """A configuration as it was written, and the grid and the list beside it."""
    if isinstance(what, Federation):
        return standing_in(what), {}, []
    if isinstance(what, Config):
        return what.model_dump(), {}, []
    found = dict(what) if isinstance(what, Mapping) else config.parsed(*config.located(what))
    base, grid, entries = (found.pop(key, None) for key in KEYS)
    if base is not None:
        beside = Path(what).parent / str(base) if isinstance(what, str | Path) else Path(str(base))
        found = {**config.parsed(*config.located(beside if beside.is_file() else str(base))), **found}
    for key, value, kind in (("grid", grid, Mapping), ("list", entries, list)):
        if value is not None and not isinstance(value, kind):
            expected = "keys and lists of values" if key == "grid" else "a list of points, each keys and values"
            raise InputError(f"{key}: expected {expected}, got {value!r}")
    return found, dict(grid or {}), list(entries or [])


def combined(grid: Mapping[str, Sequence[Any]], entries: Sequence[Any]) -> list[dict[str, Any]]:
    """Every entry with every point of the grid."""
    for key, values in grid.items():
        if isinstance(values, str | Mapping) or not hasattr(values, "__iter__") or not len(values):
            raise InputError(f"a sweep over {key} expects a list of values, got {values!r}")
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise InputError(f"list: expected points of keys and values, got {entry!r}")
    if not grid and not entries:
        raise InputError("nothing to sweep over; give a key and its values, such as --over method.lam=0,0.05,0.5")
    crossed = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    whole = [{**entry, **values} for entry in entries or [{}] for values in crossed]
    for key in dict.fromkeys(key for values in whole for key in values):
        if key.split(".")[0] == "compare":
            raise InputError("a sweep varies the main method; compare methods by sweeping over method.name")
    return [{key: scalar(value) for key, value in values.items()} for values in whole]


def swept(text: str) -> tuple[str, list[Any]]:
    """`key=1,2,3` as the key and its values, each read as YAML.

    >>> swept("method.lam=0,0.05")
    ('method.lam', [0, 0.05])
    >>> swept("method=[ifca, {name: stocfl, tau: 0.4}]")
    ('method', ['ifca', {'name': 'stocfl', 'tau': 0.4}])
    """
    key, sign, values = text.partition("=")
    try:
        found = yaml.safe_load(f"[{values}]")
    except yaml.YAMLError:
        raise InputError(f"--over {key}: {values!r} are not YAML values with commas between them") from None
    if not sign or not key.strip() or not found:
        raise InputError(f"--over expects key=value,value,…, got {text!r}")
    return key.strip(), found[0] if len(found) == 1 and isinstance(found[0], list) else found


def scalar(value: Any) -> Any:
    """A number of NumPy's as Python's."""
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value


def configured(base: dict[str, Any], name: str, values: Mapping[str, Any]) -> Config:
    """A point's configuration."""
    try:
        return checked(overridden(base, [(key.split("."), value) for key, value in values.items()]))
    except InputError as error:
        raise InputError(f"{error} (point {name})") from None


def named(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each point that says what sets it apart and that can be a folder's."""
    keys = list(dict.fromkeys(key for values in points for key in values))
    last = [key.rpartition(".")[2] for key in keys]
    short = {key: own if last.count(own) == 1 else key for key, own in zip(keys, last, strict=True)}
    names = ["+".join(f"{short[key]}={said(value)}" for key, value in values.items()) for values in points]
    names = [re.sub(r"[^\w.=+-]+", "_", name)[:LONGEST].strip(".") for name in names]
    count = [names[:i].count(name) + 1 for i, name in enumerate(names)]
    return [name if n == 1 else f"{name}-{n}" for name, n in zip(names, count, strict=True)]


def said(value: Any) -> str:
    """A value in a few letters; of a piece, its name and what its options are."""
    if isinstance(value, Mapping):
        return "_".join(said(item) if key == "name" else f"{key}_{said(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "_".join(said(item) for item in value) or "none"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def refuse_twins(points: Sequence[Point]) -> None:
    """Refuse two points that are the same run."""
    texts: dict[str, str] = {}
    for point in points:
        twin = texts.setdefault(point.config.text(), point.name)
        if twin != point.name:
            raise InputError(f"the points {twin} and {point.name} are the same run; leave one out")
