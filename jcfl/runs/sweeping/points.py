"""The points of a sweep: a grid or a list of values over a configuration, each point a checked configuration."""

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

from jcfl.data import soundness
from jcfl.errors import InputError, Unregistered, refuse_beyond_memory, shown, unknown
from jcfl.nested import flat, plain
from jcfl.runs import config, titles
from jcfl.runs.config import FILLED_IN, SECTIONS, Config, checked, overridden, with_open_seed
from jcfl.runs.objects import OBJECT_SECTIONS, Objects, config_of_federation, objects_and_settings, refuse_unused
from jcfl.runs.sections import OPTIONAL, PLACEHOLDER
from jcfl.runs.titles import LONGEST
from jcfl.runs.yamltext import refuse_endless, value_of, written
from jcfl.types import Federation, Task

Over = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
"""A grid, `{key: values}`, or a list of points, `[{key: value}]`; keys are dotted."""

KEYS = ("base", "over", "by")
"""The keys that a sweep's file has beside a configuration's."""

UNCHANGED = "unchanged"
"""The name of a point that changes nothing, `{}`."""

POINT = 2**15
"""Bytes that a point takes before it is trained, at the least: its configuration, checked and as text."""


class Point(NamedTuple):
    """One run of a sweep."""

    name: str
    values: dict[str, Any]  # by dotted key; an object that the user passed in Python has a placeholder
    config: Config
    objects: Objects  # those that the user passed in Python


def as_checked(values: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """A point's values as its configuration has them, plain: a number that YAML reads as text, such as 1e-2, is one."""
    known = flat(config.model_dump())
    return {key: known.get(key, plain(value)) for key, value in values.items()}


class Points(NamedTuple):
    """All runs of a sweep, and their common configuration."""

    base: dict[str, Any]  # a configuration, not checked
    points: list[Point]
    by: str | None = None  # the score that chooses the best point, if the user or the file says

    def text(self) -> str:
        """The sweep as a file that repeats it."""
        # Without such a key this is no configuration that jcfl has written out; see `with_open_seed`.
        base = {key: value for key, value in self.base.items() if value is not None or key not in FILLED_IN}
        table = {**base, "over": [point.values for point in self.points]}
        table |= {"by": self.by} if self.by is not None else {}
        return written(plain(table))


def points(what: Federation | Config | Mapping[str, Any] | str | Path, over: Over | None, **settings: Any) -> Points:
    """The points of a sweep.

    Args:
        what: as for `jcfl.run`; a file or mapping may have the keys `base` (another file or a preset, whose keys its
            own replace), `over`, and `by` (the score that chooses the best point).
        over: a grid, which is added to that of `what`, or a list, which replaces that of `what`. If one of the two is a
            grid and the other a list, every entry of the list is combined with the whole grid.
        **settings: the configuration's keys, as for `jcfl.run`.

    Raises:
        InputError: an unknown key, a value out of bounds, no values, the same point twice, or an option of an object
            that the user passed in Python.
    """
    base, own, by = base_and_over(what)
    grid, entries = {}, []
    for axes in (own, over):
        if isinstance(axes, Mapping):
            grid = {**grid, **axes}
        elif isinstance(axes, list | tuple):
            entries = list(axes)
        elif axes is not None:
            raise InputError(f"over: expected {{key: values}} or a list of points, got {shown(axes)}")
    below, base = objects_and_settings(base)
    above, settings = objects_and_settings(settings)
    below, above = (one._asdict() for one in (below, above))
    objects = Objects(**{key: above[key] if above[key] is not None else below[key] for key in OBJECT_SECTIONS})
    if isinstance(what, Federation):
        objects = objects._replace(federation=soundness.checked(what))
    base = overridden(base, [(key.split("."), value) for key, value in settings.items()])
    base.pop("compare", None)
    chosen, own = with_placeholders(all_values(grid, entries), objects)
    names = point_names([plain(values) for values in chosen])
    found = []
    for name, values, others in zip(names, chosen, own, strict=True):
        made = point_config(base, name, values)
        refuse_unused(made, objects)
        found.append(Point(name, values, made, objects_of(made, objects, others)))
    refuse_twins(found)
    return Points(base, found, by)


def whole_sections(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a configuration as `jcfl.run` takes them: a name alone is a section with the options' defaults.

    On the command line, and in a sweep's grid, a name leaves those options as they are that the new piece has too.
    """
    named = lambda key, value: {"name": value} if key in SECTIONS and isinstance(value, str) else value
    return {key: named(key, value) for key, value in given.items()}


def base_and_over(what: Any) -> tuple[dict[str, Any], Any, str | None]:
    """The unchecked configuration in `what`, what it says to sweep over, and the score by which a point is the best."""
    if isinstance(what, Federation):
        return config_of_federation(what), None, None
    if isinstance(what, Config):
        return with_open_seed(what.model_dump()), None, None
    found = config.unchecked(what)
    base, over, by = (found.pop(key, None) for key in KEYS)
    if base is None:
        found = with_open_seed(found)
    else:
        beside = Path(what).parent / str(base) if isinstance(what, str | Path) else Path(str(base))
        under = config.unchecked(beside if os.path.isfile(beside) else str(base))
        if own := [key for key in KEYS if key in under]:
            raise InputError(f"base: expected a configuration, but {base} is a sweep itself: it has the key {own[0]!r}")
        found = {**under, **found} if "scenario" in found else with_open_seed({**under, **found})
    for key in found:
        if key not in Config.model_fields:
            raise unknown("key", key, (*KEYS, *Config.model_fields))
    return found, over, by


def all_values(grid: Mapping[str, Sequence[Any]], entries: Sequence[Any]) -> list[dict[str, Any]]:
    """The values of every point: each entry of the list is combined with each point of the grid."""
    for key, values in grid.items():
        if not is_series(values):
            raise InputError(f"a sweep over {key} expects a list of values, got {shown(values)}")
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise InputError(f"over: expected points of keys and values, got {shown(entry)}")
    for key in (key for table in (grid, *entries) for key in table):
        if not isinstance(key, str):
            raise InputError(f"a sweep goes over keys such as method.tau, got {shown(key)}")
    refuse_endless([grid, *entries], "the values of the sweep")
    if not grid and not entries:
        raise InputError("nothing to sweep over; give a key and its values, such as method.lam=0,0.05,0.5")
    count = math.prod(map(len, grid.values())) * max(len(entries), 1)
    refuse_beyond_memory(f"a sweep of {count} points", count * POINT, "give fewer values")
    crossed = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    whole = [{**entry, **values} for entry in entries or [{}] for values in crossed]
    for key in dict.fromkeys(key for values in whole for key in values):
        if key.split(".")[0] == "compare":
            raise InputError("a sweep varies the main method; compare methods by sweeping over method.name")
    return [{key: python_number(value) for key, value in values.items()} for values in whole]


def is_series(values: Any) -> bool:
    """Whether values are several that have an order, at least one."""
    if isinstance(values, str | bytes | Mapping | Task) or not isinstance(values, Iterable):
        return False
    return isinstance(values, Sized) and getattr(values, "ndim", 1) > 0 and len(values) > 0


def key_and_values(text: str) -> tuple[str, list[Any]]:
    """The key and the values of `key=1,2,3`, each value read as YAML.

    >>> key_and_values("method.lam=0,0.05")
    ('method.lam', [0, 0.05])
    >>> key_and_values("method=[ifca, {name: stocfl, tau: 0.4}]")
    ('method', ['ifca', {'name': 'stocfl', 'tau': 0.4}])
    """
    key, sign, values = text.partition("=")
    found = value_of(f"[{values}]", f"--over {key}: {values!r} are not YAML values with commas between them")
    if not sign or not key.strip() or not found:
        raise InputError(f"--over expects key=value,value,…, got {text!r}")
    return key.strip(), found[0] if len(found) == 1 and isinstance(found[0], list) else found


def python_number(value: Any) -> Any:
    """The value; a NumPy number becomes a Python number."""
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value


def point_config(base: dict[str, Any], name: str, values: Mapping[str, Any]) -> Config:
    """The configuration of the point `name`.

    Raises:
        InputError: a key or a value is wrong; the message names the point.
    """
    try:
        found = checked(overridden(base, [(key.split("."), value) for key, value in values.items()]))
    except InputError as error:
        kind = Unregistered if isinstance(error, Unregistered) else InputError
        raise kind(f"{error} (point {name})") from None
    for key in values:
        section, *path = key.split(".")
        if section in OBJECT_SECTIONS and getattr(found, section).is_placeholder and path and path[0] not in OPTIONAL:
            raise InputError(
                f"{key}: the {section} was handed over in Python and has no options to sweep over; "
                f"hand over several, {{'{section}': [...]}}, as a list"
            )
    return found


def with_placeholders(points: Sequence[Mapping[str, Any]], base: Objects) -> tuple[list[dict[str, Any]], list[Objects]]:
    """The values of every point with placeholders for objects, and each point's objects.

    Different objects get different placeholders: the second object of the class `Net` is `Net-2`. The sweep's own
    objects are numbered first.
    """
    known: dict[str, list[Any]] = {}  # objects by their class's name, in the order in which they first come
    chosen, objects = [], []
    for values in ({key: value for key, value in base._asdict().items() if key in OBJECT_SECTIONS}, *points):
        own, values = objects_and_settings(dict(values))
        for section in OBJECT_SECTIONS:
            thing = getattr(own, section)
            if thing is not None:
                title = values[section]["object"]
                alike = known.setdefault(title, [])
                if not any(thing is other for other in alike):
                    alike.append(thing)
                number = 1 + next(i for i, other in enumerate(alike) if other is thing)
                values[section] = values[section] | {"object": title if number == 1 else f"{title}-{number}"}
        chosen.append(values)
        objects.append(own)
    return chosen[1:], objects[1:]


def objects_of(config: Config, base: Objects, own: Objects) -> Objects:
    """A point's objects, for each placeholder in its configuration: its own object, or else the sweep's."""
    chosen = {
        section: next((thing for thing in (getattr(own, section), getattr(base, section)) if thing is not None), None)
        for section in OBJECT_SECTIONS
        if getattr(config, section).is_placeholder
    }
    return Objects(federation=base.federation, **chosen)


def point_names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each point, made of its values, which can be the name of a folder."""
    keys = list(dict.fromkeys(key for values in points for key in values))
    last = [key.rpartition(".")[2] for key in keys]
    short = {key: own if last.count(own) == 1 else key for key, own in zip(keys, last, strict=True)}
    names = ["+".join(f"{short[key]}={label(value)}" for key, value in values.items()) for values in points]
    names = [re.sub(r"[^\w.=+-]+", "_", name).encode()[:LONGEST].decode(errors="ignore") for name in names]
    return titles.unique([name.strip(".") or UNCHANGED for name in names])


def label(value: Any) -> str:
    """A value as a part of a point's name; a piece is written as its name and its options."""
    if isinstance(value, Mapping) and value.get("name") == PLACEHOLDER:
        return label(value.get("label", value.get("object", PLACEHOLDER)))
    if isinstance(value, Mapping):
        return "_".join(label(item) if key == "name" else f"{key}_{label(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "_".join(label(item) for item in value) or "none"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def refuse_twins(points: Sequence[Point]) -> None:
    """Refuse two points with the same configuration."""
    texts: dict[str, str] = {}
    for point in points:
        twin = texts.setdefault(point.config.text(), point.name)
        if twin != point.name:
            raise InputError(f"the points {twin} and {point.name} are the same run; leave one out")
