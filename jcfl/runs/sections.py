"""The sections of a configuration: each names a registered piece and gives its options."""

from typing import Annotated, Any

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


class Trainer(Piece):
    """How clients train; plain SGD unless another trainer is named."""

    name: str = "sgd"


class Attack(Piece):
    """What hostile clients do; nothing unless an attack is named."""

    name: str = "none"


class Reliability(Piece):
    """How reliable clients are."""

    name: str = "random"
