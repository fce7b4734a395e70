"""The search space of a method: what each of its options may be, by the option's own bounds or by the user's values."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jcfl import registry
from jcfl.errors import InputError, shown, unknown
from jcfl.runs.config import Config
from jcfl.runs.sections import Method, Piece
from jcfl.runs.sweeping.points import is_series, python_number

Space = Mapping[str, Sequence[Any] | None]
"""Values by dotted key, as those of a sweep; `[{"low": 0.01, "high": 1, "log": True}]` for a range; None for the
option's own bounds."""

DIGITS = 4
"""Significant digits of a real number that is drawn from a range, so that it can be read and written."""

EDGE = 1e-3
"""How far from a bound that does not belong to it a range of real numbers keeps, as a share of its length."""


class Range(NamedTuple):
    """All numbers from `low` to `high`.

    A place in [0, 1] stands for a number. Each whole number has all places nearest to it, so that those at the ends are
    drawn as often as the others.
    """

    low: float
    high: float
    log: bool = False  # whether equal steps are equal factors
    whole: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """What the places 0 and 1 stand for, before it is rounded, and as a logarithm if equal steps are factors."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def drawn(self, rng: np.random.Generator) -> float:
        """A random place, in [0, 1)."""
        return float(rng.random())

    def at(self, place: float) -> float | int:
        """The number at a place in [0, 1]."""
        low, high = self.ends
        found = low + place * (high - low)
        found = math.exp(found) if self.log else found
        if self.whole:
            return int(min(max(math.floor(found + 0.5), self.low), self.high))
        return float(np.clip(float(f"{found:.{DIGITS}g}"), self.low, self.high))

    def place(self, number: float) -> float:
        """The place that stands for a number."""
        low, high = self.ends
        return ((math.log(number) if self.log else number) - low) / (high - low)

    def number(self, most: int) -> int:
        """How many places `places` has."""
        return min(most, int(self.high - self.low) + 1) if self.whole else most

    def places(self, most: int) -> list[float]:
        """At most `most` places in equal steps, whole numbers each once.

        Where two steps come to the same whole number, the second comes to the next one.
        """
        number = self.number(most)
        equal = np.linspace(0, 1, number).tolist() if number > 1 else [0.5]
        if not self.whole or number == 1:
            return equal
        found = [int(self.low) - 1]
        for left, place in zip(reversed(range(number)), equal, strict=True):
            found.append(min(max(int(self.at(place)), found[-1] + 1), int(self.high) - left))
        return [self.place(one) for one in found[1:]]


class Values(NamedTuple):
    """Some values, in no order."""

    values: tuple[Any, ...]

    def drawn(self, rng: np.random.Generator) -> int:
        """A random place."""
        return int(rng.integers(len(self.values)))

    def at(self, place: Any) -> Any:
        """The value at a place, counted from 0."""
        return self.values[place]

    def number(self, most: int) -> int:
        """How many places there are."""
        return len(self.values)

    def places(self, most: int) -> list[int]:
        """All places."""
        return list(range(len(self.values)))


Axis = Range | Values


def spaces(config: Config, over: Space | None) -> dict[str, dict[str, Axis]]:
    """The search space of every method of a configuration, by the methods' titles.

    Args:
        config: the main method and those compared with it.
        over: what is searched; each method is given those options that it has. None for all options of method, add-ons,
            trainer and model that say where to search.

    Raises:
        InputError: no method has an option, an option has no bounds of its own, or there is nothing to search.
    """
    if over is not None and not isinstance(over, Mapping):
        raise InputError(f"over: expected {{key: values, or None for the option's own bounds}}, got {shown(over)}")
    known = {title: options(config, method) for title, method in config.methods.items()}
    for key in over or {}:
        if not any(key in own for own in known.values()):
            raise unknown("option to search", key, {name: None for own in known.values() for name in own})
    found = {}
    for title, own in known.items():
        keys = over if over is not None else dict.fromkeys(key for key, entry in own.items() if "search" in entry)
        found[title] = {key: axis(key, values, own[key]) for key, values in keys.items() if key in own}
    empty = [title for title, space in found.items() if not space]
    if empty:
        raise InputError(f"nothing to search for {empty[0]}; give a key and its values, such as train.lr=0.01,0.1,1")
    return found


def options(config: Config, method: Method) -> dict[str, dict[str, Any]]:
    """The JSON schema of every option of a method, its add-ons, the trainer and the model, by dotted key."""
    pieces: dict[str, tuple[str, Piece]] = {"method": ("method", method)}
    pieces |= {f"method.addons.{i}": ("addon", addon) for i, addon in enumerate(method.addons)}
    pieces |= {"train": ("train", config.train), "model": ("model", config.model)}
    return {
        f"{key}.{name}": entry
        for key, (kind, piece) in pieces.items()
        if not piece.is_placeholder
        for name, entry in registry.schema(registry.find(kind, piece.name)).items()
    }


def axis(key: str, values: Any, entry: Mapping[str, Any]) -> Axis:
    """What an option may be.

    Args:
        values: the user's; None for the option's own bounds.
        entry: the option's JSON schema.
    """
    if values is None:
        return bounded(key, entry)
    if not is_series(values):
        raise InputError(f"a search over {key} expects a list of values, or nothing, got {shown(values)}")
    if len(values) == 1 and isinstance(values[0], Mapping) and {"low", "high"} <= values[0].keys():
        return given_range(key, values[0], kind(entry).get("type") == "integer")
    return Values(tuple(map(python_number, values)))


def given_range(key: str, given: Mapping[str, Any], whole: bool) -> Range:
    """The range that a user gives as `{low: 0.01, high: 1, log: true}`."""

    def known(*, low: float, high: float, log: bool = False) -> None: ...

    checks = {one.name: one for one in registry.parameters(known)}
    found = Range(**registry.check(key, checks, given), whole=whole)
    if not found.low < found.high or (found.log and found.low <= 0):
        above = "0 < low < high" if found.log else "low < high"
        raise InputError(f"{key}: expected {above}, got low={found.low:g}, high={found.high:g}")
    if whole:
        low, high = math.ceil(found.low), math.floor(found.high)
        if low > high:
            raise InputError(f"{key}: there is no whole number from {found.low:g} to {found.high:g}")
        return found._replace(low=low, high=high)
    return found


def bounded(key: str, entry: Mapping[str, Any]) -> Axis:
    """What an option may be by its own annotation: where it says to search, else between its bounds, else its names."""
    own = kind(entry)
    whole = own.get("type") == "integer"
    if "search" in entry:
        return Range(*entry["search"], log=entry.get("log", False), whole=whole)
    if "enum" in own or own.get("type") == "boolean":
        return Values(tuple(own.get("enum", (False, True))))
    low, high = (own.get(f"{side}imum", own.get(f"exclusive{side.title()}imum")) for side in ("min", "max"))
    if low is None or high is None:
        raise InputError(
            f"{key} has no lower and upper bound of its own; give values, such as {key}=0.1,1, or a range, "
            f"{key}={{low: 0.1, high: 1}}"
        )
    inside = 1 if whole else EDGE * (high - low)
    return Range(low + inside * ("minimum" not in own), high - inside * ("maximum" not in own), whole=whole)


def kind(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an option's first kind of value that is not null."""
    return next((one for one in entry.get("anyOf", ()) if one.get("type") != "null"), entry)
