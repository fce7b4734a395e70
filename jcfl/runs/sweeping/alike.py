"""Points of a sweep that are alike: which share a federation, and which differ only in real numbers."""

import json
import re
from collections.abc import Sequence

from jcfl.nested import flat, plain
from jcfl.runs.config import FILLED_IN, Config
from jcfl.runs.provenance import settings
from jcfl.runs.sweeping.points import Point

FEDERATION = ("data", "scenario", "data_dir")
"""The keys of a configuration on which its federation depends, before any attack."""

OWN = re.compile(r"(method|train)\.(addons\.\d+\.)?\w+")
"""The dotted names of a piece's own options, but not of values inside an option."""

NUMBER = "a number"
"""What stands for a real number where points are compared; an option that is null at one of them is no number there."""


def key_text(config: Config, keys: Sequence[str]) -> str:
    """A part of a configuration as text."""
    return json.dumps({key: plain(getattr(config, key)) for key in keys})


def grouped(points: Sequence[Point]) -> list[list[Point]]:
    """Groups of points that differ only in real numbers; groups with the same federation follow each other."""
    groups: dict[str, dict[str, list[Point]]] = {}
    for point in points:
        rest = point.config.flat() | dict.fromkeys(real_options(point.config), NUMBER)
        federation = groups.setdefault(key_text(point.config, FEDERATION), {})
        federation.setdefault(json.dumps(rest), []).append(point)
    return [group for federation in groups.values() for group in federation.values()]


def real_options(config: Config) -> dict[str, float]:
    """The options of method, add-ons and trainer that are real numbers, by dotted name."""
    options = flat({"method": config.method, "train": config.train})
    return {name: value for name, value in options.items() if isinstance(value, float) and OWN.fullmatch(name)}


def kind(config: Config) -> str:
    """All that decides a point's figures, but for its real numbers and its rounds, as text."""
    return json.dumps(plain(settings(config.model_dump()) | dict.fromkeys(real_options(config), NUMBER)))


def as_given(config: Config) -> str:
    """A configuration as text, without its real numbers and without what a run has chosen for its machine."""
    chosen = (*FILLED_IN, *(config.fitted.keys if config.fitted is not None else ()))
    kept = {key: value for key, value in config.model_dump().items() if value is not None and key not in chosen}
    return json.dumps(plain(flat(kept) | dict.fromkeys(real_options(config), NUMBER)))


def differing_options(points: Sequence[Point]) -> dict[str, list[str]]:
    """The real options that are not the same at all points of a kind, by kind.

    They are found among all points of a sweep, those that are complete too. A point that is left alone is then trained
    by the program that it began with, in which these options are arrays; as constants they are rounded in another way.
    """
    kinds: dict[str, list[dict[str, float]]] = {}
    for point in points:
        kinds.setdefault(kind(point.config), []).append(real_options(point.config))
    return {
        text: [name for name in tables[0] if len({table[name] for table in tables}) > 1]
        for text, tables in kinds.items()
    }
