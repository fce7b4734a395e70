"""The papers' tables as experiments: which federation and which method stand behind every printed number."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from jcfl import metrics
from jcfl.errors import InputError, unknown
from jcfl.nested import flat
from jcfl.runs.config import Config, checked, overridden
from jcfl.runs.provenance import LOOSE
from jcfl.runs.reproducing.judging import WIDEST, WIDEST_COUNT, Printed

NEUTRAL = {*LOOSE} - {"rounds"}
"""The keys of a configuration that do not change the results of a run that is complete."""

Cell = tuple[str, str]
"""A row's and a column's label."""

Key = tuple[str, str]
"""A federation's and a method's name: one run."""


class Part(BaseModel):
    """What a row or a column says of its cells. Where both say something, the column counts."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    federation: str | None = None
    method: str | None = None  # by default the row's label
    score: str | None = None  # of a history, or a dotted name in a run's summary
    until: Literal["groups", "still"] | None = None  # the rounds until clusters are the groups, or no longer change
    minus: str | None = None  # the method whose score is taken off
    scale: float | None = None  # from a share to the unit of the table
    digits: Annotated[int | None, Field(ge=0)] = None  # decimals that the paper prints
    blocked: str | None = None  # why it cannot be run

    @property
    def metric(self) -> str:
        """The score of a cell: the accuracy over examples unless another one is given."""
        return self.score or "accuracy_micro"


class Order(BaseModel):
    """Two rows, or two columns, of which the paper's text says that the first is better; where the numbers say so.

    Of a score of which lower values are better, such as a loss, the first is the lower one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    above: str
    below: str
    at: tuple[str, ...] = ()  # the columns, or rows, of which the text says it; all by default


class Budget(BaseModel):
    """What a smaller or larger budget runs of a table."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    seeds: Annotated[int, Field(ge=1)]
    hours: Annotated[float, Field(ge=0)]  # expected, see docs/reproduction/index.md
    last: Annotated[int | None, Field(ge=1)] = None  # evaluations whose mean counts
    set: dict[str, Any] = {}  # keys of the configurations
    federations: tuple[str, ...] | None = None  # the only ones that are run
    methods: tuple[str, ...] | None = None
    changes: tuple[str, ...] = ()  # what that changes, in words

    @property
    def altered(self) -> tuple[str, ...]:
        """The keys of `set` that change what is trained, and so also the numbers."""
        return tuple(key for key in self.set if key != "evaluate_every")


class Suspect(BaseModel):
    """Cells that the paper itself makes doubtful."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    why: str
    cells: dict[str, tuple[str, ...]]  # columns by row


class Numbers(BaseModel):
    """A table as it is printed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str
    caption: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[tuple[float | None, ...], ...]]  # for every column [mean, std] or [mean]
    suspect: tuple[Suspect, ...] = ()


class Definition(BaseModel):
    """A table's experiment: the keys of its file and its own put together."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    base: dict[str, Any] = {}  # keys of every configuration
    federations: dict[str, dict[str, Any]] = {}  # keys of the configurations on a federation
    methods: dict[str, dict[str, Any]] = {}
    beside: dict[str, dict[str, Any]] = {}  # baselines: methods of which the paper prints no number
    rows: dict[str, Part] = {}
    columns: dict[str, Part] = {}
    default: Part = Part()  # of every cell
    last: Annotated[int, Field(ge=1)] = 1
    orders: tuple[Order, ...] = ()
    more_orders: tuple[Order, ...] = ()  # beside those that several tables have in common
    departures: tuple[str, ...] = ()  # where the runs depart from the paper, or it is silent
    budgets: dict[str, Budget]
    printed: Numbers


class Table(NamedTuple):
    """A table that can be run."""

    name: str
    stem: str  # of its file, whose tables share runs
    given: Definition

    def part(self, cell: Cell) -> Part:
        """All that is said of a cell."""
        row, column = cell
        parts = (Part(method=row), self.given.default, self.given.rows.get(row), self.given.columns.get(column))
        said = [one.model_dump(exclude_none=True) for one in parts if one is not None]
        return Part(**{key: value for one in said for key, value in one.items()})

    def cells(self) -> Iterator[tuple[Cell, Printed]]:
        """Every cell with a printed number."""
        for row, numbers in self.given.printed.rows.items():
            for column, (mean, *std) in zip(self.given.printed.columns, numbers, strict=True):
                if mean is not None:
                    half = 0.5 * 10.0 ** -self.digits((row, column))
                    yield (row, column), Printed(mean, next(iter(std), None), half)

    def digits(self, cell: Cell) -> int:
        """The decimals that the paper prints."""
        found = self.part(cell).digits
        return 2 if found is None else found

    def scale(self, cell: Cell) -> float:
        """What a cell's score is multiplied by to be in the unit of the table."""
        part = self.part(cell)
        return metrics.score(part.metric).scale if part.scale is None else part.scale

    def widest(self, cell: Cell, printed: Printed) -> float:
        """Half of the widest interval by which a cell is judged, in the unit of the table."""
        part = self.part(cell)
        counted = part.until is not None or metrics.score(part.metric).is_whole
        return WIDEST_COUNT * printed.mean if counted else WIDEST * self.scale(cell)

    def sign(self, cell: Cell) -> int:
        """-1 for a score of which lower values are better, else 1."""
        part = self.part(cell)
        return -1 if part.until is None and metrics.score(part.metric).better == "lower" else 1

    def doubts(self, cell: Cell) -> list[str]:
        """Why a cell is suspect; empty for most."""
        return [one.why for one in self.given.printed.suspect if cell[1] in one.cells.get(cell[0], ())]

    def keys(self, cell: Cell) -> list[Key]:
        """The runs behind a cell; none where it is blocked."""
        part = self.part(cell)
        if part.blocked is not None or part.federation is None:
            return []
        return [(part.federation, method) for method in (part.method, part.minus) if method is not None]

    def budget(self, name: str) -> Budget:
        """A budget by its name."""
        if name not in self.given.budgets:
            raise unknown(f"budget of {self.name}", name, self.given.budgets)
        return self.given.budgets[name]

    def left_out(self, key: Key, budget: Budget) -> bool:
        """Whether a budget does not run a federation or a method; it runs every baseline."""
        chosen = (budget.federations, budget.methods if key[1] in self.given.methods else None)
        return any(names is not None and name not in names for name, names in zip(key, chosen, strict=True))

    def knows(self, key: Key) -> bool:
        """Whether the table has a federation and a method."""
        federation, method = key
        return federation in self.given.federations and method in self.given.methods | self.given.beside

    def seeds(self, federation: str, budget: Budget) -> range:
        """The seeds of the runs on a federation."""
        first = {**self.given.base, **self.given.federations.get(federation, {}), **budget.set}.get("seed", 0)
        return range(first, first + budget.seeds)

    def config(self, key: Key, budget: Budget, data_dir: Path | None = None) -> Config:
        """The checked configuration of a run."""
        try:
            return checked(self.settings(key, budget)).model_copy(update={"data_dir": data_dir})
        except InputError as error:
            raise InputError(f"{self.name}, {key[0]}, {key[1]}: {error}") from None

    def settings(self, key: Key, budget: Budget) -> dict[str, Any]:
        """What the table says of a run, before it is checked."""
        federation, method = key
        piece = {**(self.given.beside | self.given.methods)[method], "label": title(method)}
        settings = {**self.given.base, **self.given.federations[federation], "method": piece, "seeds": budget.seeds}
        return overridden(settings, [(name.split("."), value) for name, value in budget.set.items()])

    def digest(self, key: Key, budget: Budget) -> str:
        """A short SHA-256 of what the table says of a run, as far as that changes the run's results.

        Default values have no part in it, so an option that a later jcfl adds does not change it.
        """
        said = flat({name: value for name, value in self.settings(key, budget).items() if name not in NEUTRAL})
        said.pop("method.label", None)
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def title(name: str) -> str:
    """A method's or a federation's name as the name of a folder.

    >>> title("FedAvg+, K=5"), title("IFCA-CON&CKS"), title("..")
    ('FedAvg+_K=5', 'IFCA-CON_CKS', '_')
    """
    return re.sub(r"^\.+|[^\w.=+-]+", "_", name)
