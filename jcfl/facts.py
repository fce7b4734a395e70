"""What can be said of a registered piece: its text, its options, a command to try. For `jcfl list` and the docs."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jcfl import config, registry
from jcfl.errors import unknown

KINDS = {
    "method": "methods",
    "addon": "add-ons",
    "data": "data",
    "scenario": "scenarios",
    "model": "models",
    "train": "local training",
    "track": "trackers",
}
"""Every kind of piece, and its title."""

PRESETS = "presets"

NEEDED = {
    "arrays": "data.path=mine.npz",
    "tfds": "data.dataset=kmnist",
    "leaf": "data.path=leaf/data/femnist/data",
    "medmnist": "data.file=bloodmnist.npz",
    "cfl": "participation=1",
    "flhc": "method.clusters=4",
    "local": "scenario.clients=20",
    "hybrid": "'data=[mnist, fashion_mnist]'",
    "natural": "data.name=gaussian",
}
"""What a piece's example has to say besides its name, where it has to."""


PAPERS = {
    "S": "Zeng et al., Stochastic Clustered Federated Learning",
    "T": "Ma's thesis, Clustered Federated Learning",
    "F": "Xie et al., Multi-Center Federated Learning",
    "E": "Bhattacharya and Aridi, Empirical Exploration of Clustered Federated Learning",
}
"""The papers that docstrings call by a letter."""


class Option(NamedTuple):
    """One option of a piece, in words."""

    name: str
    values: str
    default: str
    text: str


class Facts(NamedTuple):
    """One piece, in words."""

    kind: str
    name: str
    line: str
    text: str  # the rest of its docstring, without what follows
    deviations: str
    options: list[Option]
    common: list[Option]  # options that every piece of the kind has
    example: str  # a command


def facts(kind: str, name: str) -> Facts:
    """All that is said of one registered piece.

    >>> registry.load()
    >>> [option.name for option in facts("method", "fedprox").options]
    ['mu', 'averaging']
    """
    function = registry.find(kind, name)
    _, text, deviations = sections(function)
    shared = [row for other in config.also(kind) for row in options(other)]
    return Facts(kind, name, registry.line(function), text, deviations, options(function), shared, example(kind, name))


def found(word: str) -> list[Facts]:
    """The pieces of that name, of every kind that has one.

    Raises:
        InputError: no piece has it.
    """
    kinds = [kind for kind in KINDS if word in registry.names(kind)]
    if not kinds:
        raise unknown("kind or name", word, [*titles(), *(name for kind in KINDS for name in registry.names(kind))])
    return [facts(kind, word) for kind in kinds]


def lines(title: str) -> dict[str, str]:
    """The names under a kind's title, with one line each."""
    if title == PRESETS:
        return config.presets()
    kind = next(kind for kind, known in KINDS.items() if known == title)
    return {name: registry.line(registry.find(kind, name)) for name in registry.names(kind)}


def titles() -> dict[str, str]:
    """What a kind can be called on the command line, and its title."""
    told = {word: title for kind, title in KINDS.items() for word in (title, kind)}
    return told | {"addons": KINDS["addon"], "preset": PRESETS, PRESETS: PRESETS}


def papers(text: str) -> str:
    """What the letters in a text stand for.

    >>> papers("K-means on local models (F eq. 9); T's code differs.")
    "T: Ma's thesis, Clustered Federated Learning; F: Xie et al., Multi-Center Federated Learning"
    """
    used = re.findall(r"\b([STFE])(?= (?:Alg|eq|§|Table|Fig)|'s )", text)
    return "; ".join(f"{letter}: {paper}" for letter, paper in PAPERS.items() if letter in used)


def sections(function: Callable[..., Any]) -> tuple[str, str, str]:
    """The first line of a docstring, what follows it, and its Deviations."""
    whole = inspect.getdoc(function) or ""
    head, *parts = re.split(r"^(Deviations|Args|Returns|Raises):\n", whole, flags=re.MULTILINE)
    named = dict(zip(parts[::2], parts[1::2], strict=True))
    line, _, text = head.partition("\n")
    return line, text.strip(), inspect.cleandoc(named.get("Deviations", ""))


def options(function: Callable[..., Any]) -> list[Option]:
    """The options of a function, in words."""
    return [
        Option(name, values(said), default(said), said.get("description", ""))
        for name, said in registry.schema(function).items()
    ]


def values(said: Mapping[str, Any]) -> str:
    """What an option can be, in words, from its JSON schema.

    >>> values({"type": "number", "minimum": 0, "exclusiveMaximum": 0.5})
    'number, 0 ≤ · < 0.5'
    """
    return " or ".join(dict.fromkeys(alternatives(said))) or "any"


def alternatives(said: Mapping[str, Any]) -> Iterator[str]:
    """The kinds of value that a JSON schema allows."""
    if "anyOf" in said:
        for one in said["anyOf"]:
            yield from alternatives(one)
    elif "enum" in said:
        yield ", ".join(str(value) for value in said["enum"])
    elif "const" in said:
        yield str(said["const"])
    elif said.get("type") == "array":
        each = said.get("items") or next(iter(said.get("prefixItems", ())), {})
        yield f"list of {values(each)}" if each else "list"
    elif "type" in said:
        words = {"boolean": "true or false", "string": "text", "object": "mapping", "null": "none"}
        yield str(words.get(said["type"], said["type"])) + bounds(said)


def bounds(said: Mapping[str, Any]) -> str:
    """The bounds of a number, in signs."""
    low = next((f"{said[key]:g} {sign} " for key, sign in LOWER.items() if key in said), "")
    high = next((f" {sign} {said[key]:g}" for key, sign in UPPER.items() if key in said), "")
    if low and not high:
        return f" {SWAPPED[low.split()[1]]} {low.split()[0]}"
    return f", {low}·{high}" if low else high


LOWER = {"minimum": "≤", "exclusiveMinimum": "<"}
UPPER = {"maximum": "≤", "exclusiveMaximum": "<"}
SWAPPED = {"≤": "≥", "<": ">"}


def default(said: Mapping[str, Any]) -> str:
    """An option's default, as it is written in a configuration."""
    if "default" not in said:
        return "required"
    value = config.plain(said["default"])
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def example(kind: str, name: str) -> str:
    """A command that uses a piece."""
    more = f" {NEEDED[name]}" if name in NEEDED else ""
    if kind == "track":
        return f"jcfl run quickstart --set 'track=[{name}]'"
    if kind == "addon":
        return f"jcfl run quickstart --set 'method.addons=[{name}]'"
    if kind == "data":
        whose = " scenario.name=natural" if name in NATURAL else " scenario.name=iid"
        files = "" if name in ("digits", "gaussian", "arrays") else " --data-dir data"
        return f"jcfl show quickstart --set data.name={name}{more}{whose}{files}"
    if kind == "scenario":
        return f"jcfl show quickstart --set scenario.name={name}{more}" + (" --data-dir data" * (name == "hybrid"))
    shown = [option for option in options(registry.find(kind, name)) if re.fullmatch(r"[\d.]+", option.default)]
    more = more or (f" {kind}.{shown[0].name}={shown[0].default}" if shown else "")
    return f"jcfl run quickstart --set {kind}.name={name}{more}"


NATURAL = ("arrays", "gaussian", "femnist", "celeba", "leaf")
"""Data that knows whose each example is."""
