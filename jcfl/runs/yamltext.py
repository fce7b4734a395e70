"""Settings in YAML: plain values, of a size that can be worked with, every key there once."""

import re
from typing import Any

import yaml

from jcfl.errors import InputError, shown

MOST, DEEPEST = 100_000, 50
"""The most values that settings hold, those counted again that an alias repeats, and how deep they are nested."""

LONGEST = 4096
"""The most bits of a whole number: Python refuses to write out one of more than 4300 digits."""

MERGED = 1000
"""The most keys of a mapping after `<<` has merged others into it."""


NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
"""What PyYAML calls a number."""

MERGE = "tag:yaml.org,2002:merge"
"""What PyYAML calls the key `<<`."""

OTHER_BASES = re.compile(r".*:.*|[-+]?0[0-7_]+", re.DOTALL)
"""What only YAML 1.1 reads as a number, of the base 60 or 8: `1:30:00` would be 5400, and `010` would be 8."""


class Loader(yaml.SafeLoader):
    """Reads plain values. A key that is there twice is refused, where YAML would take the last one.

    `1:30:00` and `010` are text, as `08` is in YAML 1.1: nobody means 5400 and 8 by them. An option that takes a number
    reads `010` as 10, and one that takes a name or a path keeps it.
    """

    def __init__(self, text: str):
        super().__init__(text)
        self.flat: set[int] = set()  # the mappings that were looked at

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        """The type of a value that does not say its own."""
        found = super().resolve(kind, value, implicit)
        return self.DEFAULT_SCALAR_TAG if found in NUMBERS and OTHER_BASES.fullmatch(value) else found

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put what `<<` names into a mapping, after a look at the keys of its own.

        The first of several mappings wins, as YAML says (https://yaml.org/type/merge.html). PyYAML also merges, but in
        its version 6.0.4 the last one wins, so that the version would decide what is trained.
        """
        if id(node) in self.flat:
            return
        self.flat.add(id(node))
        own: set[tuple[str, str]] = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if (key.tag, key.value) in own:
                said = f"the key {key.value!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            own.add((key.tag, key.value))
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        rest: list[tuple[yaml.Node, yaml.Node]] = []
        for key, value in node.value:
            if key.tag != MERGE:
                rest.append((key, value))
                continue
            for one in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                if not isinstance(one, yaml.MappingNode):
                    said = f"<< expects a mapping or a list of mappings, got a {one.id}"
                    raise yaml.constructor.ConstructorError(None, None, said, one.start_mark)
                self.flatten_mapping(one)
                merged += one.value  # of equal keys the last one counts, so the first mapping comes last
                if len(merged) + len(rest) > MERGED:
                    raise yaml.constructor.ConstructorError(None, None, f"more than {MERGED} keys", node.start_mark)
        node.value = merged + rest


class Dumper(yaml.SafeDumper):
    """Writes lists of numbers in lines, as people would; all else with one value a line."""


def list_node(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    """A list as `Dumper` writes it."""
    numbers = all(isinstance(one, int | float) for one in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=numbers)


Dumper.add_representer(list, list_node)


def written(settings: dict[str, Any]) -> str:
    """Plain settings as YAML text."""
    return yaml.dump(settings, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def parsed(text: str, what: str) -> dict[str, Any]:
    """The mapping that YAML text contains; `what` names the text in error messages."""
    found = value_of(text, f"{what} is not YAML")
    if not isinstance(found, dict):
        raise InputError(f"{what}: expected keys and values, got {'nothing' if found is None else shown(found)}")
    return found


def assignment(text: str) -> tuple[list[str], Any]:
    """The path and the value of an override `a.b=v`; the value is read as YAML."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise InputError(f"--set expects key=value, got {text!r}")
    return key.strip().split("."), value_of(value, f"--set {key}: {value!r} is not a YAML value")


def value_of(text: str, wrong: str) -> Any:
    """The value that YAML text stands for.

    Args:
        text: the text, of any origin.
        wrong: the beginning of the error.

    Raises:
        InputError: it is not YAML, a value is not of the type that it claims (the date 2020-13-45), a key is there
            twice, or the values are too many or nested too deep.
    """
    try:
        found = yaml.load(text, Loader)
    except RecursionError:
        raise InputError(f"{wrong}: nested too deep; expected at most {DEEPEST} levels") from None
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{wrong}: {error.problem}{placed(error)}") from None
    except Exception as error:  # PyYAML lets through what int(), float() and date() raise, and lists it nowhere
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{wrong}: {reason}") from None
    refuse_endless(found, wrong)
    return found


def placed(error: yaml.MarkedYAMLError) -> str:
    """Where in a text PyYAML found a mistake, and what it was reading there."""
    place, begin = error.problem_mark, error.context_mark
    reading = f", {error.context} that begins in line {begin.line + 1}" if error.context and begin else ""
    return f" (line {place.line + 1}, column {place.column + 1}{reading})" if place else reading


def refuse_endless(value: Any, wrong: str) -> None:
    """Refuse values that are too many or nested too deep: a few lines of aliases can stand for billions, or for ever.

    Raises:
        InputError: there are too many, or they are too deep.
    """
    left: list[tuple[Any, int]] = [(value, 0)]
    count = 0
    while left:
        one, depth = left.pop()
        parts = [*one.values()] if isinstance(one, dict) else one if isinstance(one, list | tuple) else []
        count += 1 + len(parts)
        if isinstance(one, int) and one.bit_length() > LONGEST:
            raise InputError(f"{wrong}: a whole number of more than {LONGEST} bits")
        if count > MOST or depth > DEEPEST:
            raise InputError(f"{wrong}: expected at most {MOST} values in {DEEPEST} levels, aliases (*) followed")
        left += [(part, depth + 1) for part in parts]
