"""Results of a table that were written before, on this machine or another one, to be shown beside new runs."""

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from jcfl.errors import InputError, Notice, sentence
from jcfl.errors.words import counted
from jcfl.runs.reproducing.judging import BySeed, Judgement, Verdict, defined, since
from jcfl.runs.reproducing.tables import Budget, Cell, Key, Table


def number(value: Any) -> Any:
    """A number of the file, in which None is none."""
    return math.nan if value is None else value


class Printed(BaseModel):
    """The paper's number, as the file has it."""

    mean: float
    std: float | None


class Ours(BaseModel):
    """Our numbers of a cell, one per seed. The file has their mean and interval too."""

    values: tuple[Annotated[float, BeforeValidator(number)], ...]
    seeds: tuple[int, ...] | None = None  # files did not have them before tables could be run seed by seed

    def by_seed(self, where: str, seeds: range) -> BySeed:
        """The numbers by seed, some of a budget's `seeds`."""
        there = seeds if self.seeds is None else self.seeds
        if len(self.values) != len(there):
            raise InputError(f"{where} has numbers of {counted(len(self.values), 'seed')}; expected: {len(there)}")
        for seed in there:
            if seed not in seeds:
                raise InputError(f"{where} has the seed {seed}; expected: {', '.join(map(str, seeds))}")
        return dict(zip(there, self.values, strict=True))


class Entry(BaseModel):
    """A cell of the file."""

    printed: Printed
    ours: Ours | None
    verdict: Verdict
    why: str


class Row(BaseModel):
    """A row of the file, with a cell for every column."""

    row: str
    cells: tuple[Entry | None, ...]


class Beside(BaseModel):
    """A number of a baseline in the file."""

    federation: str
    score: str
    ours: Ours | None


class Baseline(BaseModel):
    """A row or a column of a baseline in the file."""

    method: str
    cells: tuple[Beside | None, ...]


class Made(BaseModel):
    """What made some runs: `runs` are their federations and methods, `settings` the digests of their settings."""

    model_config = ConfigDict(extra="allow")
    runs: tuple[Key, ...]
    seeds: tuple[int, ...]
    settings: tuple[str, ...] = ()  # files had none before there were digests

    @model_validator(mode="after")
    def even(self) -> "Made":
        """Every run has a digest, or none has one."""
        if len(self.settings) not in (0, len(self.runs)):
            raise ValueError(f"{len(self.settings)} settings of {len(self.runs)} runs")
        return self

    def with_digests_of(self, table: Table, budget: Budget) -> "Made":
        """The same runs with the digests that a budget gives them; those that the table does not know keep theirs."""
        pairs = zip(self.runs, self.settings, strict=False)
        settings = tuple(table.digest(run, budget) if table.knows(run) else there for run, there in pairs)
        return self.model_copy(update={"settings": settings}) if settings else self


class File(BaseModel):
    """What is read of a file that `jcfl reproduce` wrote."""

    table: str
    budget: str
    changes: tuple[str, ...]
    departures: tuple[str, ...] | None = None
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    beside: tuple[Baseline, ...] = ()  # files had none before there were baselines
    made: tuple[Made, ...]

    @model_validator(mode="after")
    def even(self) -> "File":
        """Every row has a cell for every column."""
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"{len(row.cells)} cells in the row {row.row!r} of {len(self.columns)} columns")
        return self

    def cells(self) -> Iterator[tuple[Cell, Entry]]:
        """The cells that have been run, or of which it is known why they cannot be."""
        for row in self.rows:
            for column, entry in zip(self.columns, row.cells, strict=True):
                if entry is not None and entry.verdict != "not run":
                    yield (row.row, column), entry

    def baselines(self) -> Iterator[tuple[tuple[str, str, str], Ours]]:
        """The numbers of baselines by method, federation and score."""
        for line in self.beside:
            for cell in line.cells:
                if cell is not None and cell.ours is not None:
                    yield (line.method, cell.federation, cell.score), cell.ours


class Published(NamedTuple):
    """Earlier results of a table."""

    cells: dict[Cell, BySeed | Judgement]  # our numbers, or why there are none
    beside: dict[tuple[str, str, str], BySeed]  # those of baselines, by method, federation and score
    made: tuple[dict[str, Any], ...]  # what made their runs

    def besides(self, runs: Collection[tuple[str, str, int]]) -> list[dict[str, Any]]:
        """What made the runs that are not among these, which are named by federation, method and seed."""
        return latest(self.made, runs)


def latest(made: Sequence[dict[str, Any]], runs: Collection[tuple[str, str, int]] = ()) -> list[dict[str, Any]]:
    """What made runs, without those whose seeds have all been run again later.

    Args:
        made: in the order of time.
        runs: the last runs of all, by federation, method and seed.
    """
    seen, found = {*runs}, []
    for one in reversed(made):
        own = {(federation, method, seed) for federation, method in one["runs"] for seed in one["seeds"]}
        found += [] if own <= seen else [one]
        seen |= own
    return found[::-1]


def read(paths: Iterable[Path], table: Table, name: str, budget: Budget) -> Published:
    """Earlier results of a table; of several files that have a number of a cell and a seed, the last one counts.

    A judgement, such as that training diverged with some seed, counts until the files after it have all seeds.

    Args:
        paths: files that `jcfl reproduce` wrote (`TABLE-BUDGET.json`), of this budget or of one that differs from it in
            having fewer seeds alone.
        table: the table.
        name: the budget's name.
        budget: the budget.

    Raises:
        InputError: a file that is none of these, or one of another table, of other printed numbers, of runs with other
            settings, or of a budget with other changes.
    """
    numbers: dict[Cell, BySeed] = {}  # since the last judgement
    judged: dict[Cell, Judgement] = {}
    baselines: dict[tuple[str, str, str], BySeed] = {}
    made: list[dict[str, Any]] = []
    for path in paths:
        file = parsed(path)
        theirs = table.given.budgets.get(file.budget, budget)
        for what, there, expected in (
            ("table", file.table, table.name),
            ("budget", file.budget, name if theirs is budget else file.budget),
            ("changes of the budget", file.changes, theirs.changes),
        ):
            if there != expected:
                raise InputError(f"{path}: its {what}: {there}; expected: {expected}")
        refuse_other_settings(path, file, table, theirs)
        if theirs is not budget:
            refuse_other_budget(path, file, table, name)
        printed = dict(table.cells())
        for (row, column), entry in file.cells():
            there, expected = (entry.printed.mean, entry.printed.std), printed.get((row, column), (None, None))[:2]
            if there != expected:
                raise InputError(
                    f"{path}: {row}, {column}: printed is {' ± '.join(map(str, there))}; "
                    f"expected: {' ± '.join(map(str, expected))}"
                )
            if entry.ours is not None:
                seeds = table.seeds(table.part((row, column)).federation or "", theirs)
                ours = entry.ours.by_seed(f"{path}: {row}, {column}", seeds)
                numbers.setdefault((row, column), {}).update(ours)
            elif entry.verdict != "cannot be run here":
                numbers.pop((row, column), None)
                judged[row, column] = Judgement(entry.verdict, entry.why)
            else:  # on another machine it can
                judged.setdefault((row, column), Judgement(entry.verdict, entry.why))
        for key, ours in file.baselines():
            seeds = table.seeds(key[1], theirs)
            baselines.setdefault(key, {}).update(ours.by_seed(f"{path}: {', '.join(key[:2])}", seeds))
        made += [one.with_digests_of(table, budget).model_dump(mode="json", exclude_unset=True) for one in file.made]
    found: dict[Cell, BySeed | Judgement] = {cell: defined(numbers[cell]) for cell in numbers}
    found |= {cell: since(why, numbers.get(cell, {}), budget.seeds) for cell, why in judged.items()}
    return Published(found, baselines, tuple(latest(made)))


def refuse_other_settings(path: Path, file: File, table: Table, budget: Budget) -> None:
    """Refuse a file of runs that had other settings than they have now; warn where it may be one.

    Raises:
        InputError: a run of the file had other settings.
    """
    for one in file.made:
        for run, there in zip(one.runs, one.settings, strict=False):
            if table.knows(run) and there != (now := table.digest(run, budget)):
                raise InputError(
                    f"{path}: its run {', '.join(run)} had other settings than this table gives it "
                    f"(their digest is {there}; expected: {now}); run it again, or take the table of that file"
                )
    others = {*file.departures} ^ {*table.given.departures} if file.departures is not None else set()
    if others and not all(one.settings for one in file.made):
        said = f"{path}: some of its runs have no digest of their settings, and the table had other departures from the"
        warnings.warn(f"{said} paper, so these settings may differ: {' '.join(sorted(others))}", Notice, stacklevel=2)


def refuse_other_budget(path: Path, file: File, table: Table, name: str) -> None:
    """Refuse a file of another budget if that does not differ from this one in having fewer seeds alone.

    Raises:
        InputError: it does differ.
    """
    theirs, budget = table.given.budgets[file.budget], table.given.budgets[name]
    like = budget.model_copy(update={"seeds": theirs.seeds})
    runs = [run for one in file.made for run in one.runs if table.knows(run)]
    others = [run for run in runs if table.digest(run, theirs) != table.digest(run, like)]
    if theirs.seeds > budget.seeds or (theirs.last or table.given.last) != (budget.last or table.given.last) or others:
        raise InputError(
            f"{path}: its budget: {file.budget}; expected: {name}, or a budget that differs from it in having fewer "
            "seeds alone"
        )


def parsed(path: Path) -> File:
    """A file that `jcfl reproduce` wrote."""
    try:
        return File.model_validate_json(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        raise InputError(f"{path} is no results of `jcfl reproduce` (.json): {sentence(error)}") from None
