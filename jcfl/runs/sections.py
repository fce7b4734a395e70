"""The sections of a configuration: each names a registered piece and gives its options."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator

from jcfl.nested import plain

PLACEHOLDER = "given"
"""The name in place of an object that a user passed in Python, because a configuration file cannot describe it."""

OPTIONAL = ("addons", "label")
"""The keys that are written only where they say something."""


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
        """The options beside the name."""
        return dict(self.model_extra or {})

    @property
    def is_placeholder(self) -> bool:
        """Whether this piece is in place of an object that a user passed in Python."""
        return self.name == PLACEHOLDER

    @model_serializer
    def _plain(self) -> dict[str, Any]:
        return {key: plain(value) for key, value in dict(self).items() if not (key in OPTIONAL and not value)}


class Method(Piece):
    """A method, its options, and the add-ons that go with it."""

    addons: tuple[Piece, ...] = ()
    label: Annotated[str | None, Field(pattern=r"^[\w.=+-]+$")] = None

    @property
    def title(self) -> str:
        """The method's name in comparisons: its label, or its name and add-ons."""
        return self.label or "+".join([self.name, *(addon.name for addon in self.addons)])


class Noted(BaseModel):
    """What a run notes about its machine. A key without a value is not written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer
    def _known(self) -> dict[str, Any]:
        # Not dict(self), which would call a field that is named `keys`.
        return {key: value for key, value in vars(self).items() if value is not None}


class Tuned(Noted):
    """How the clients of a method train on this machine, which changes the time and no more than rounding errors.

    A field that is None is as the configuration and the constants have it.
    """

    engine: Literal["general", "factored"] | None = None
    chunk: Annotated[int, Field(ge=1)] | None = None  # clients trained at a time by the general engine
    tile: Annotated[int, Field(ge=1)] | None = None  # clients of a cluster trained at a time by the factored engine
    devices: Annotated[int, Field(ge=1)] | None = None
    convolution: Literal["patches", "native"] | None = None
    products: Literal["eigen"] | None = None  # the library of a CPU's products of matrices


FITTED = ("examples", "client_states", "chunk", "budget", "seeds_in_one")
"""The keys of a configuration that fit a run to the machine's memory."""


class Fitted(Noted):
    """The keys of a configuration that the user left open, and the device for which a run chose their values."""

    platform: str  # cpu, gpu, tpu
    kind: str  # the device's name
    keys: tuple[str, ...] = ()
    room: Annotated[int, Field(ge=1)] | None = None  # bytes for what is worked on at a time, if memory has run out


TUNED = ("engine", "chunk", "devices")
"""The keys of a configuration whose values a field of `Tuned` replaces."""

TRAINED = ("data", "scenario", "model", "method", "train", "attack", "reliability", "privacy")
"""The keys that say what is trained. What was chosen for another value of them may be slow, or not possible at all."""


def without_given(settings: dict[str, Any], paths: Iterable[Sequence[str]]) -> dict[str, Any]:
    """Settings, not checked, whose `tuned` and `fitted` say nothing of what the user gives; else they would replace it.

    Args:
        settings: with the user's values in place already.
        paths: the keys that the user gives beside a file or a mapping. With a key that says what is trained, all is
            chosen anew, and with `autotune` what trials chose.
    """
    given = {".".join(path) for path in paths}
    settings = with_fitted(settings, given)
    heads = {key.partition(".")[0] for key in given}
    others = "compare" in heads and bool(settings.get("compare"))  # without them, the main method is as it was
    trains_otherwise = others or bool(heads.intersection(TRAINED))
    if trains_otherwise:
        settings = settings | dict.fromkeys(key for key in FITTED if key in fitted_keys(settings.get("fitted")))
    if "tuned" in given or not isinstance(settings.get("tuned"), Mapping):
        return settings
    if "autotune" in given or trains_otherwise:
        return settings | {"tuned": None}
    kept = lambda one: {key: value for key, value in dict(one).items() if not (key in TUNED and key in given)}
    tuned = {title: kept(one) if isinstance(one, Mapping | Tuned) else one for title, one in settings["tuned"].items()}
    return settings | {"tuned": tuned}


def with_fitted(settings: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Settings, not checked, whose `fitted` names no key that the user gives.

    Files of the first versions have the device under `made_by` alone. Nobody can tell which of their keys were given,
    so all of them count as chosen for the device.
    """
    fitted, made_by = settings.get("fitted"), settings.get("made_by")
    device = made_by.get("device") if isinstance(made_by, Mapping) else None
    if fitted is None and isinstance(device, Mapping) and device.keys() >= {"platform", "kind"}:
        fitted = {"platform": device["platform"], "kind": device["kind"], "keys": [*FITTED, "tuned"]}
    keys = fitted_keys(fitted)
    if not (isinstance(fitted, Mapping) and keys):
        return settings  # what is wrong is refused where settings are checked
    return settings | {"fitted": {**fitted, "keys": [key for key in keys if key not in given]}}


def fitted_keys(fitted: Any) -> Sequence[str]:
    """The keys that a value of `fitted`, not checked, names: none where it is wrong, which is refused later."""
    keys = fitted.get("keys") if isinstance(fitted, Mapping) else None
    return keys if isinstance(keys, list | tuple) else ()


class Chosen(BaseModel):
    """What a search chose for a method, and by how much effort, so that a comparison can tell whether it was equal."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    values: dict[str, Any]  # of each option that was searched, by dotted key
    sampler: str
    trials: Annotated[int, Field(ge=1)]
    halving: Annotated[int, Field(ge=1)] = 1
    by: str  # the score on validation examples


class Trainer(Piece):
    """How clients train; plain SGD unless another trainer is named."""

    name: str = "sgd"


class Attack(Piece):
    """What hostile clients do; nothing unless an attack is named."""

    name: str = "none"


class Reliability(Piece):
    """How reliable clients are."""

    name: str = "random"


class Privacy(Piece):
    """How what clients send is clipped and noised; not at all unless a clip is given."""

    name: str = "gaussian"


class Stop(Piece):
    """When training ends before the last round; not at all unless a stop condition is named."""

    name: str = "none"
