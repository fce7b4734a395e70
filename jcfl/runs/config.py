"""The configuration of a run: read from YAML, checked before anything trains, and written back as YAML."""

import importlib.resources
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jcfl import registry
from jcfl.core.context import EngineName
from jcfl.core.faults import OnDivergence
from jcfl.core.method import KINDS, QUESTIONS
from jcfl.errors import InputError, as_argument, sentence, shown, unknown
from jcfl.nested import flat, plain
from jcfl.runs import schedules, sections, titles, undecided
from jcfl.runs.sections import OPTIONAL, Attack, Chosen, Method, Piece, Privacy, Reliability, Stop, Trainer, Tuned
from jcfl.runs.yamltext import assignment, parsed, refuse_endless, written

SECTIONS = ("data", "scenario", "model", "method", "train", "attack", "reliability", "privacy", "stop")
"""The sections that name a registered piece and give its options."""

SCHEDULED = ("method", "addon", "train")
"""The pieces whose real numbers may be given by round."""

RIVALS = {"train.steps": ("train", "epochs"), "train.epochs": ("train", "steps")}
"""Pairs of keys of which only one can be set: an override of one removes the other."""

FILLED_IN = ("tuned", "fitted", "decided", "made_by")
"""The keys that a run fills in."""

MARKS = {*FILLED_IN} - {"fitted"}
"""The keys by which a file that jcfl has written out is known; the first versions did not write `fitted`."""


class Config(BaseModel):
    """Everything that defines a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    data: Piece | tuple[Piece, ...] = Piece(name="digits")
    scenario: Piece
    model: Piece = Piece(name="mlp")
    method: Method
    train: Trainer = Trainer()
    attack: Attack = Attack()
    reliability: Reliability = Reliability()
    privacy: Privacy = Privacy()
    stop: Stop = Stop()
    rounds: Annotated[int, Field(ge=0, description="rounds of training")] = 100
    participation: Annotated[
        float, Field(gt=0, le=1, description="share of the available clients that are sampled in each round")
    ] = 1.0
    evaluate_every: Annotated[int, Field(ge=1, description="rounds between evaluations")] = 1
    evaluate_last: Annotated[
        int, Field(ge=1, le=1000, description="rounds at the end that are all evaluated; the summary has their mean")
    ] = 1
    evaluate_shared: Annotated[
        bool, Field(description="whether the global model ω is also tested, if one is trained")
    ] = False
    evaluate_first: Annotated[bool, Field(description="whether to evaluate before the first round")] = False
    evaluate_quality: Annotated[
        bool, Field(description="whether metrics of clusters and gradients are measured: B, U, β, … of Ma 2023")
    ] = False
    compare_models: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        Field(description="rounds after which clients' models are compared, for figures"),
    ] = ()
    seed: Annotated[
        int,
        Field(
            ge=0, lt=2**32, description="first seed of training; also of the federation, unless scenario.seed is given"
        ),
    ] = 0
    seeds: Annotated[int, Field(ge=1, description="number of seeds: seed, seed + 1, …")] = 1
    seeds_in_one: Annotated[
        bool | None, Field(description="all seeds side by side; null: if their states are small")
    ] = None
    compare: Annotated[tuple[Method, ...], Field(description="further methods to compare with the main one")] = ()
    data_dir: Annotated[Path | None, Field(description="folder of datasets; null: JCFL_DATA, else data")] = None
    track: Annotated[tuple[Piece, ...], Field(description="trackers that get the metrics: tensorboard, …")] = ()
    on_divergence: Annotated[
        OnDivergence,
        Field(description="when a model is not finite: stop, drop_client (leave its upload out), drop_cluster"),
    ] = "stop"
    checkpoint_every: Annotated[
        Annotated[float, Field(ge=0)] | Literal["never"],
        Field(description="seconds between checkpoints; never: a stopped run begins again"),
    ] = 60.0
    engine: Annotated[
        EngineName,
        Field(description="use of the exact shortcut: auto (if it is cheaper), general (never), factored (always)"),
    ] = "auto"
    devices: Annotated[int | None, Field(ge=1, description="number of devices that share the clients; null: all")] = (
        None
    )
    examples: Annotated[
        Literal["device", "host"] | None,
        Field(description="where examples are stored: device, host; null: device if they fit"),
    ] = None
    client_states: Annotated[
        Literal["device", "host"] | None,
        Field(description="where clients' kept models are stored: device, host; null: device if they fit"),
    ] = None
    chunk: Annotated[
        int | None,
        Field(
            ge=1,
            description="clients trained at a time; null: on a GPU as many as a quarter of the free memory holds, on a "
            "CPU as many as 4 MiB hold, but at least one",
        ),
    ] = None
    budget: Annotated[
        int | None, Field(ge=1, lt=2**63, description="bytes for a round's clients; null: from the free memory")
    ] = None
    autotune: Annotated[
        bool, Field(description="whether long runs begin with trials of settings; false: default values")
    ] = True
    chosen_by: Annotated[
        Chosen | None, Field(description="the options that jcfl tune chose, and by how many trials; null: none")
    ] = None
    tuned: Annotated[
        dict[str, Tuned] | None, Field(description="how each method trains on this machine, filled in by a run")
    ] = None
    fitted: Annotated[
        sections.Fitted | None,
        Field(description="keys that were chosen for a device, and that device, filled in by a run"),
    ] = None
    decided: Annotated[
        dict[str, Any] | None, Field(description="the data behind the choice of auto, filled in by a run")
    ] = None
    made_by: Annotated[dict[str, Any], Field(description="versions and device, filled in by a run")] = {}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """The schema of all keys, their numbers bounded as those of options are."""
        return registry.Representable().__get_pydantic_core_schema__(source, handler)

    @property
    def methods(self) -> dict[str, Method]:
        """The main method and those compared with it, by titles made unique."""
        methods = (self.method, *self.compare)
        return dict(zip(titles.unique([method.title for method in methods]), methods, strict=True))

    def flat(self) -> dict[str, Any]:
        """Every value under its dotted name, without what a run fills in."""
        return flat(self.model_dump(exclude={*FILLED_IN}))

    def text(self) -> str:
        """The configuration as YAML, with the value of every option."""
        return written(plain(self.model_dump()))


def read(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A checked configuration from a file, a preset or a mapping, with the overrides `key=value` applied.

    Raises:
        InputError: no such file or preset, text that is not YAML, an unknown key, a value out of bounds.
    """
    return checked(overridden(with_open_seed(unchecked(source)), [assignment(text) for text in overrides]))


def unknown_key(key: str, settings: Mapping[str, Any]) -> InputError:
    """The error for an unknown key; an option of one of the pieces is offered with its section."""
    registry.load()
    section, dot, option = str(key).partition(".")
    if dot and section in SECTIONS:  # as in --set, but in a file or in Python
        return InputError(f"unknown key {key!r}; expected the section as a mapping: {section}: {{{option}: …}}")
    if key in (*KINDS, *OPTIONAL):
        return InputError(f"unknown key {key!r}; did you mean 'method.{key}'?")
    having = {
        section: [name for name in registry.names(section) if key in registry.schema(registry.find(section, name))]
        for section in SECTIONS
    }
    for section, names in having.items():
        piece, default = settings.get(section, {}), Config.model_fields[section].default
        if (piece.get("name", getattr(default, "name", None)) if isinstance(piece, Mapping) else piece) in names:
            return InputError(f"unknown key {key!r}; did you mean '{section}.{key}'?")
    if having["method"]:
        names = ", ".join(having["method"])
        return InputError(f"unknown key {key!r}: as method.{key} it is an option of {names}, but not of this method")
    return unknown("key", key, Config.model_fields)


def unchecked(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file, a preset or a mapping; the paths of data in a file are relative to its folder.

    Raises:
        InputError: no such file or preset, or text that is not YAML.
    """
    settings = dict(source) if isinstance(source, Mapping) else parsed(*source_text(source))
    if isinstance(source, str | Path) and os.path.isfile(source) and "data" in settings:
        settings["data"] = beside(Path(source).parent, settings["data"])
    return settings


def with_open_seed(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings; if jcfl has written out all of them, without a federation's seed that equals the run's.

    There nobody can tell whether it was given or is the default. Left out, it is the default, which follows an override
    of `seed`. A file that was written by hand lacks the keys that a run fills in; a seed in it was given, and stays.
    """
    scenario = settings.get("scenario")
    if not (isinstance(scenario, Mapping) and settings.keys() >= MARKS):
        return settings
    if scenario.get("seed") != settings.get("seed", 0):
        return settings
    return settings | {"scenario": {key: value for key, value in scenario.items() if key != "seed"}}


def beside(folder: Path, data: Any) -> Any:
    """The section `data` of a file in a folder: a relative path of it is taken from there, if there is such a file."""
    if isinstance(data, list | tuple):
        return [beside(folder, one) for one in data]
    registry.load()
    if not isinstance(data, Mapping) or data.get("name") not in registry.names("data"):
        return data
    paths = {item.name for item in registry.parameters(registry.find("data", data["name"])) if is_path(item.annotation)}
    found = {key: folder / data[key] for key in paths & data.keys() if isinstance(data[key], str)}
    return {**data, **{key: path.as_posix() for key, path in found.items() if path.exists()}}


def is_path(annotation: Any) -> bool:
    """Whether an option is a path, or may be none."""
    kinds = {annotation, *get_args(annotation)}
    return Path in kinds or any(is_path(kind) for kind in get_args(annotation) if get_args(kind))


def presets() -> dict[str, str]:
    """Every preset's name, with the line that describes it."""
    folder = importlib.resources.files("jcfl") / "presets"
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".yaml")), key=lambda item: item.name)
    return {item.name.removesuffix(".yaml"): item.read_text("utf-8").split("\n")[0].lstrip("# ") for item in files}


def source_text(source: str | Path) -> tuple[str, str]:
    """The text of a configuration file or preset, and its name for error messages."""
    if not isinstance(source, str | Path):
        raise InputError(f"expected a federation, a mapping, a file or a preset's name, got {shown(source)}")
    if not str(source):
        raise InputError("expected a file or a preset's name, got an empty text")
    path = Path(source)
    if os.path.isfile(path):  # `Path.is_file` raises if the text is too long for a name
        try:
            return path.read_text("utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as text: {error}") from None
    if os.path.isfile(path / "config.yaml"):
        raise InputError(
            f"{path} is the folder of a run; expected {path / 'config.yaml'}, or --resume {as_argument(path)}"
        )
    if os.path.isdir(path):
        raise InputError(f"{str(path)!r} is a folder; expected a configuration file; presets: {', '.join(presets())}")
    if path.suffix in (".yaml", ".yml") or len(path.parts) != 1:
        raise InputError(f"no configuration file {str(path)!r}; presets: {', '.join(presets())}")
    if path.name not in presets():
        raise unknown("preset (and no such file):", path.name, presets())
    return (importlib.resources.files("jcfl") / "presets" / f"{path.name}.yaml").read_text("utf-8"), path.name


def overridden(settings: dict[str, Any], overrides: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """A copy of the settings with the overrides applied in their order.

    An override that changes the name of a piece removes those of its options that the new piece does not have. They
    are removed before any value is set, so that an option for the new piece can come before or after its name.
    """
    overrides = [(named_path(path, value), value) for path, value in overrides]
    paths = [path for path, _ in overrides]
    settings = {key: {"name": v} if key in SECTIONS and isinstance(v, str) else v for key, v in settings.items()}
    for path, value in overrides:
        if path[0] in SECTIONS and path[1:] == ["name"] and isinstance(value, str):
            settings[path[0]] = renamed(path[0], settings.get(path[0]), value)
    for path, value in overrides:
        if path[0] not in Config.model_fields:
            raise unknown_key(".".join(path), settings)
        settings = with_value(settings, path, value)
        section, rival = RIVALS.get(".".join(path[:2]), ("", ""))
        if rival and value is not None and [section, rival] not in paths and isinstance(settings[section], dict):
            settings[section].pop(rival, None)
    return sections.without_given(settings, paths)


def named_path(path: list[str], value: Any) -> list[str]:
    """The path of an override; `method=ifca` means `method.name=ifca`."""
    return [*path, "name"] if len(path) == 1 and path[0] in SECTIONS and isinstance(value, str) else path


def renamed(section: str, piece: Any, name: str) -> Any:
    """A section without those options that the piece called `name` does not have; other values are not changed.

    Of a method, only those options stay that the new method has with the same meaning and default: `lam` weighs a term
    in StoCFL that FeSEM leaves out by default. Add-ons and answers that were given stay: they go with every method.
    """
    if not isinstance(piece, dict) or piece.get("name") == name:
        return piece
    registry.load()
    options = options_of(section, name)
    if section == "method":
        old = options_of(section, piece["name"]) if piece.get("name") in registry.names(section) else []
        options = [option for option in options if option in old]
    known = {option.name for option in options} | ({"addons", *QUESTIONS} if section == "method" else set())
    open_too = undecided.rules(section, name)
    return {key: value for key, value in piece.items() if key in known and (value != undecided.AUTO or key in open_too)}


def options_of(section: str, name: str) -> list[inspect.Parameter]:
    """The options of a piece, and those that all pieces of its section have."""
    functions = (*registry.shared(section), registry.find(section, name))
    return [option for function in functions for option in registry.parameters(function)]


def with_value(tree: Any, path: list[str], value: Any, above: tuple[str, ...] = ()) -> Any:
    """A copy of nested mappings and lists with one value replaced or added.

    Written by hand: OmegaConf's `update` replaces a single value by a mapping without an error (`rounds.x=1`), loses
    the name of a piece in `compare: [ifca]`, and refuses NumPy numbers and objects from Python.
    """
    if not path:
        return value
    head, *rest = path
    if isinstance(tree, str) and (above[-1].isdecimal() or (above[1:] and above[-1] in QUESTIONS)):
        tree = {"name": tree}  # a piece in a list, or an answer of a method, written as its name alone
    if isinstance(tree, list | tuple):
        if not (head.isdecimal() and len(head) < 10 and int(head) < len(tree)):
            raise InputError(f"{'.'.join(above)} has {len(tree)} entries, counted from 0; got {head!r}")
        return [
            with_value(item, rest, value, (*above, head)) if i == int(head) else item for i, item in enumerate(tree)
        ]
    if tree is not None and not isinstance(tree, dict):
        raise InputError(f"{'.'.join(above)} is a single value; {'.'.join([*above, *path])} cannot be set")
    return {**(tree or {}), head: with_value((tree or {}).get(head), rest, value, (*above, head))}


def checked(settings: dict[str, Any]) -> Config:
    """The configuration that the settings describe, every piece found, its options checked and completed.

    Raises:
        InputError: an unknown key, name or option, or a value out of bounds.
    """
    registry.load()
    refuse_endless(settings, "the configuration")
    for key in settings:
        if key not in Config.model_fields:
            raise unknown_key(key, settings)
    try:
        config = Config.model_validate(settings)
    except ValidationError as error:
        raise InputError(sentence(error, Config)) from None
    if config.seed + config.seeds > 2**32:
        raise InputError(f"seeds: {config.seeds} from {config.seed} on go beyond {2**32 - 1}, the largest there is")
    late = [round for round in config.compare_models if round > config.rounds]
    if late:
        raise InputError(f"compare_models: expected rounds from 0 to {config.rounds}, got {late[0]}")
    return resolved(config)


def resolved(config: Config) -> Config:
    """The configuration with every option of every piece checked, converted and written out."""
    seeded = {"seed": config.seed} if not config.scenario.is_placeholder else {}
    scenario = Piece.model_validate({**seeded, **dict(config.scenario)})
    changes = {section: completed(section, getattr(config, section)) for section in SECTIONS if section != "scenario"}
    changes |= {"scenario": completed("scenario", scenario)}
    changes |= {"compare": completed("method", config.compare), "track": completed("track", config.track)}
    titles.refuse_unsafe(list(config.methods))
    return config.model_copy(update=changes)


def completed(section: str, piece: Any) -> Any:
    """A piece, or each of several, with its options checked and its defaults added."""
    if isinstance(piece, tuple):
        return tuple(completed(section, item) for item in piece)
    if piece.is_placeholder:
        return piece
    given = piece.options
    beside = (*QUESTIONS, *OPTIONAL) if section == "method" else ()
    answers = {question: given.pop(question) for question in QUESTIONS if question in beside and question in given}
    checked_options = schedules.options if section in SCHEDULED else registry.options
    found = undecided.options(checked_options, section, piece.name, given, registry.shared(section), beside)
    found |= {question: answer(question, value) for question, value in answers.items() if value is not None}
    changes = {"addons": tuple(completed("addon", item) for item in piece.addons)} if isinstance(piece, Method) else {}
    return type(piece).model_validate({**dict(piece), **found, **changes})


def answer(question: str, value: Any) -> dict[str, Any]:
    """An answer to a method's question as `{name, options…}`, with its options checked and its defaults added."""
    if not isinstance(value, str | Mapping) or (isinstance(value, Mapping) and "name" not in value):
        raise InputError(f"method.{question}: expected a name or {{name: …, options}}, got {value!r}")
    given = {"name": value} if isinstance(value, str) else dict(value)
    name, kind = given.pop("name"), KINDS[question]
    return {"name": name, **undecided.options(registry.options, kind, name, given)}
