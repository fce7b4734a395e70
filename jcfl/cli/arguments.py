"""The meaning of a command's arguments: a configuration, its overrides, and the folder to write."""

import importlib.resources
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from jcfl.errors import InputError

if TYPE_CHECKING:
    from jcfl.runs.config import Config


def preset_names() -> list[str]:
    """The presets' names, for a shell's completion: found without importing JAX, which would take a second."""
    folder = importlib.resources.files("jcfl") / "presets"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def separated(words: Sequence[str] | None, overrides: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The names and the overrides among a command's positional words, the overrides after those of `--set`.

    In `--set a=1 b=2` Typer takes `b=2` for a positional word.
    """
    words = words or []
    names = [word for word in words if "=" not in word or os.path.isfile(word)]
    if len(names) > 1:
        raise InputError(f"expected one configuration or preset, got {', '.join(names)}")
    return names, [*(overrides or []), *(word for word in words if word not in names)]


def option_overrides(seeds: int | None, track: Sequence[str] | None) -> list[str]:
    """The options `--seeds` and `--track` as overrides."""
    return [
        *([f"seeds={seeds}"] if seeds is not None else []),
        *([f"track=[{', '.join(track)}]"] if track else []),
    ]


def as_override(option: str, words: Sequence[str]) -> str | None:
    """The override that an unknown option stands for, if it is a key of the configuration.

    >>> as_override("--evaluate-every", ["run", "quickstart", "--evaluate-every", "5"])
    'evaluate_every=5'

    Args:
        option: with its dashes, without its value.
        words: those of the command.
    """
    from jcfl.runs.config import SECTIONS, Config

    key = option.lstrip("-").replace("-", "_")
    section, dot, _ = key.partition(".")
    if section not in (SECTIONS if dot else Config.model_fields):
        return None
    place = next(i for i, word in enumerate(words) if word.partition("=")[0] == option)
    _, equals, value = words[place].partition("=")
    following = next(iter(words[place + 1 :]), "-")
    return f"{key}={value if equals else 'VALUE' if following.startswith('-') else following}"


def configured(names: Sequence[str], overrides: Sequence[str], lacking: Mapping[str, Any] | None = None) -> "Config":
    """The configuration that a command names, with its overrides; keys that it does not have are those of `lacking`."""
    from jcfl.runs import config

    if not names:
        raise InputError(f"what to run? Give a configuration file or a preset: {', '.join(config.presets())}")
    return config.read({**lacking, **config.unchecked(names[0])} if lacking else names[0], overrides)


def resumed_configuration(folder: Path, overrides: Sequence[str]) -> "Config":
    """The configuration of the run in a folder, with overrides of the keys that a resumed run may change."""
    from jcfl.runs import config, experiment

    stored = experiment.resumed(folder)
    return experiment.resumed(folder, config.read(stored.model_dump(), overrides)) if overrides else stored


def assigned(overrides: Sequence[str]) -> dict[str, Any]:
    """The values of overrides by dotted key."""
    from jcfl.runs.yamltext import assignment

    return {".".join(path): value for path, value in map(assignment, overrides)}


def grid(over: Sequence[str] | None) -> dict[str, list[Any]] | None:
    """The grid that the options `--over` describe; None without any."""
    from jcfl.runs.sweeping.points import key_and_values

    return once(map(key_and_values, over or [])) or None


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """What several options `--over` say, by key, each of which may be given once."""
    found: dict[str, Any] = {}
    for key, values in pairs:
        if key in found:
            raise InputError(f"--over {key} is given twice; give all its values at once: --over {key}=VALUE,VALUE")
        found[key] = values
    return found


def destination(text: str) -> Path:
    """The folder or file that an option names, refused where it is empty: that would be the current folder."""
    if not text:
        raise typer.BadParameter("expected a path, got an empty text; for the current folder give .")
    return Path(text)
