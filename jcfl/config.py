"""The configuration of a run: YAML in, every key and option checked before anything trains, YAML out."""

import importlib.resources
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_serializer, model_validator

from jcfl import registry
from jcfl.errors import InputError, unknown
from jcfl.setting import Engine

SECTIONS = ("data", "scenario", "model", "method", "train")
"""The sections that name a registered piece and give its options."""

RIVALS = {("train", "steps"): ("train", "epochs"), ("train", "epochs"): ("train", "steps")}
"""Keys of which only one can be given: setting one from the command line takes the place of the other."""

GIVEN = "given"
"""The name of a piece that was handed over in Python and that a file cannot repeat."""


class Piece(BaseModel):
    """A registered name and its options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """What was given beside the name."""
        return dict(self.model_extra or {})

    @property
    def is_given(self) -> bool:
        """Whether this stands for an object that was handed over in Python."""
        return self.name == GIVEN

    @model_serializer
    def _plain(self) -> dict[str, Any]:
        return {key: plain(value) for key, value in dict(self).items() if not (key in OPTIONAL and not value)}


class Method(Piece):
    """A method, its options, and the add-ons that go with it."""

    addons: tuple[Piece, ...] = ()
    label: Annotated[str | None, Field(pattern=r"^[\w.=+-]+$")] = None

    @property
    def title(self) -> str:
        """What the method is called where several are compared: its label, or its name and add-ons."""
        return self.label or "+".join([self.name, *(addon.name for addon in self.addons)])


class Trainer(Piece):
    """How clients train; plain SGD unless another trainer is named."""

    name: str = "sgd"


OPTIONAL = ("addons", "label")


class Config(BaseModel):
    """Everything that defines a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    data: Piece | tuple[Piece, ...] = Piece(name="digits")
    scenario: Piece
    model: Piece = Piece(name="mlp")
    method: Method
    train: Trainer = Trainer()
    rounds: Annotated[int, Field(ge=0, description="rounds of training")] = 100
    participation: Annotated[float, Field(gt=0, le=1, description="share of clients asked each round")] = 1.0
    evaluate_every: Annotated[int, Field(ge=1, description="rounds between evaluations")] = 1
    evaluate_first: Annotated[bool, Field(description="whether to evaluate before the first round")] = False
    seed: Annotated[int, Field(ge=0, lt=2**32, description="seed of the first run, and of the federation")] = 0
    seeds: Annotated[int, Field(ge=1, description="runs, with seeds seed, seed + 1, …")] = 1
    seeds_in_one: Annotated[bool | None, Field(description="all seeds side by side; null: where they are small")] = None
    compare: Annotated[tuple[Method, ...], Field(description="methods run beside the main one")] = ()
    data_dir: Annotated[Path | None, Field(description="folder of datasets")] = None
    track: Annotated[tuple[Piece, ...], Field(description="where figures go besides the folder: tensorboard, …")] = ()
    checkpoint_every: Annotated[float, Field(ge=0, description="seconds between checkpoints")] = 60.0
    engine: Annotated[Engine, Field(description="how clients train: auto, general, or factored (README)")] = "auto"
    devices: Annotated[int | None, Field(ge=1, description="that clients are shared out among; null: all")] = None
    chunk: Annotated[int | None, Field(ge=1, description="clients trained at a time; null: as many as fit")] = None
    budget: Annotated[int | None, Field(ge=1, description="bytes for a round's clients; null: by what is free")] = None
    made_by: Annotated[dict[str, Any], Field(description="versions and device, filled in by a run")] = {}

    @property
    def methods(self) -> dict[str, Method]:
        """The main method and those compared with it, by titles made unique."""
        table: dict[str, Method] = {}
        for method in (self.method, *self.compare):
            count = sum(other.title == method.title for other in table.values())
            table[method.title if not count else f"{method.title}-{count + 1}"] = method
        return table

    def text(self) -> str:
        """The configuration as YAML, every option spelt out."""
        return yaml.safe_dump(plain(self.model_dump()), sort_keys=False, allow_unicode=True, width=120)


def read(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A checked configuration from a file, a preset's name or a mapping, with `key=value` overrides applied.

    Raises:
        InputError: no such file or preset, text that is not YAML, an unknown key, a value out of bounds.
    """
    return checked(overridden(written(source), [assignment(text) for text in overrides]))


def written(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """What a file, a preset or a mapping says, its keys known and its values not checked yet.

    Raises:
        InputError: no such file or preset, text that is not YAML, an unknown key.
    """
    base = dict(source) if isinstance(source, Mapping) else parsed(*located(source))
    for key in base:
        if key not in Config.model_fields:
            raise unknown("key", key, Config.model_fields)
    return base


def presets() -> dict[str, str]:
    """The presets' names, and what each is in one line."""
    folder = importlib.resources.files("jcfl") / "presets"
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".yaml")), key=lambda item: item.name)
    return {item.name.removesuffix(".yaml"): item.read_text("utf-8").split("\n")[0].lstrip("# ") for item in files}


def located(source: str | Path) -> tuple[str, str]:
    """The text of a configuration file or preset, and what to call it in an error."""
    path = Path(source)
    if path.is_file():
        try:
            return path.read_text("utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as text: {error}") from None
    if path.suffix in (".yaml", ".yml") or len(path.parts) != 1:
        raise InputError(f"no configuration file {str(path)!r}; presets: {', '.join(presets())}")
    if path.name not in presets():
        raise unknown("preset (and no such file):", path.name, presets())
    return (importlib.resources.files("jcfl") / "presets" / f"{path.name}.yaml").read_text("utf-8"), path.name


def parsed(text: str, what: str) -> dict[str, Any]:
    """YAML text as a mapping."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{what} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{what}: expected keys and values, got {type(value).__name__}")
    return value


def assignment(text: str) -> tuple[list[str], Any]:
    """`a.b=v` as its path and its value, the value read as YAML."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise InputError(f"--set expects key=value, got {text!r}")
    try:
        return key.strip().split("."), yaml.safe_load(value)
    except yaml.YAMLError:
        raise InputError(f"--set {key}: {value!r} is not a YAML value") from None


def overridden(base: dict[str, Any], assignments: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """`base` with values put in; where a piece's name changes, options that the new piece lacks are dropped."""
    tree = {
        key: {"name": value} if key in SECTIONS and isinstance(value, str) else value for key, value in base.items()
    }
    if isinstance(tree.get("scenario"), dict) and any(path == ["seed"] for path, _ in assignments):
        # A seed spelt out by an earlier run follows the run's, so that another seed moves everything.
        same = tree["scenario"].get("seed") == tree.get("seed", 0)
        tree["scenario"] = {key: value for key, value in tree["scenario"].items() if not (same and key == "seed")}
    renames = [(path[:1], value) for path, value in assignments if path[1:] in (["name"], []) and path[0] in SECTIONS]
    for (section,), name in renames:
        if isinstance(name, str) and isinstance(tree.get(section), dict) and tree[section].get("name") != name:
            tree[section] = {key: value for key, value in tree[section].items() if key in kept(section, name)}
    for path, value in assignments:
        if path[0] not in Config.model_fields:
            raise unknown("key", ".".join(path), Config.model_fields)
        if path[0] in SECTIONS and len(path) == 1 and isinstance(value, str):
            path = [*path, "name"]
        tree = put(tree, path, value, [])
        rival = RIVALS.get(tuple(path[:2])) if value is not None else None  # pyright: ignore[reportArgumentType]
        if rival and list(rival) not in [other for other, _ in assignments] and isinstance(tree[rival[0]], dict):
            tree[rival[0]].pop(rival[1], None)
    return tree


def kept(section: str, name: str) -> set[str]:
    """The keys of a section that still mean something when its piece becomes `name`."""
    registry.load()
    functions = (*also(section), registry.find(section, name))
    return {parameter.name for function in functions for parameter in registry.parameters(function)} | {"addons"}


def put(tree: Any, path: list[str], value: Any, above: list[str]) -> Any:
    """A copy of nested mappings and lists with one value replaced or added."""
    if not path:
        return value
    head, *rest = path
    if isinstance(tree, str) and above[-1].isdigit():  # a piece of a list, by its name alone
        tree = {"name": tree}
    if isinstance(tree, list | tuple):
        if not (head.isdigit() and int(head) < len(tree)):
            raise InputError(f"{'.'.join(above)} has {len(tree)} entries, counted from 0; got {head!r}")
        return [put(item, rest, value, [*above, head]) if i == int(head) else item for i, item in enumerate(tree)]
    if tree is not None and not isinstance(tree, dict):
        raise InputError(f"{'.'.join(above)} is a single value; {'.'.join([*above, *path])} cannot be set")
    return {**(tree or {}), head: put((tree or {}).get(head), rest, value, [*above, head])}


def checked(tree: dict[str, Any]) -> Config:
    """A mapping as a configuration, every piece found and its options checked and filled in."""
    registry.load()
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise InputError(registry.sentence(error)) from None
    return resolved(config)


def resolved(config: Config) -> Config:
    """The configuration with every option of every piece checked, converted and spelt out."""
    seeded = {"seed": config.seed} if not config.scenario.is_given else {}
    scenario = Piece.model_validate({**seeded, **dict(config.scenario)})
    changes = {section: full(section, getattr(config, section)) for section in SECTIONS if section != "scenario"}
    changes |= {"scenario": full("scenario", scenario)}
    changes |= {"compare": full("method", config.compare), "track": full("track", config.track)}
    return config.model_copy(update=changes)


def full(section: str, piece: Any) -> Any:
    """One piece, or each of several, with its options checked and spelt out."""
    if isinstance(piece, tuple):
        return tuple(full(section, item) for item in piece)
    if piece.is_given:
        return piece
    found = registry.options(section, piece.name, piece.options, also(section))
    changes = {"addons": tuple(full("addon", item) for item in piece.addons)} if isinstance(piece, Method) else {}
    return type(piece).model_validate({**dict(piece), **found, **changes})


def also(section: str) -> tuple[Callable[..., Any], ...]:
    """Functions whose keywords are options of every piece of a section."""
    return (registry.find("federation", "options"),) if section == "scenario" else ()


def flat(config: Config) -> dict[str, Any]:
    """Everything a configuration says, under dotted names; what the run filled in is left out."""
    return dict(leaves(plain({key: value for key, value in config.model_dump().items() if key != "made_by"}), ""))


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The single values in nested mappings and lists of mappings, with their dotted names."""
    table = dict(enumerate(value)) if isinstance(value, list) and any(isinstance(v, dict) for v in value) else value
    if not isinstance(table, dict):
        yield name, value
        return
    for key, item in table.items():
        yield from leaves(item, f"{name}.{key}" if name else str(key))


def plain(value: Any) -> Any:
    """A value as YAML and JSON can say it."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
