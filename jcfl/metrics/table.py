"""The table of scores: what a score is called, how it is shown, and how it is computed, in one place.

Files, histories, terminal tables, plots, reports and sweeps read this table, so a score that is registered here appears
in all of them.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from jcfl.metrics.evaluation import Evaluation

Better = Literal["higher", "lower"]
"""Which values of a score are better."""

Place = Literal["terminal", "report", "report, held out", "curves", "clusters", "effect", "quality"]
"""Where scores are shown: in the terminal's last table, in a report's table (of the clients that train, and of those
held out), and in four plots: over rounds, over rounds beside the clusters, against a swept option, and the quality of
clusters over rounds."""

NEAR = 0.8
"""How alike a misspelled title and the right one are, by the share of letters that match."""

EVERYWHERE: tuple[Place, ...] = ("terminal", "report", "report, held out", "curves", "effect")

HELD_OUT = "held_out_"
"""The prefix of a score's name where it is taken over the clients that never train."""

VALIDATION = "validation_"
"""The prefix of a score's name where it is taken on validation examples, not on test examples."""

WHERE = {HELD_OUT: "held-out clients", VALIDATION: "validation examples"}
"""What a prefix adds to a score's title."""

Over = Literal["present", "held out", "attacked", "validation"]
"""The clients that a score is taken over, with their test examples or with their validation examples."""

Unit = Literal["", "%", "clients", "clusters", "rounds"]
"""The unit of a score: "%" is a share, which is shown times 100; the words are what a whole number counts."""

OVER: tuple[Over, ...] = ("present", "held out", "validation")
"""What a score is taken over unless it says otherwise."""

MODELS = ("model_clients", "model_clusters", "model_cosine", "model_distance", "model_l1")
"""Arrays of an evaluation that say how alike clients' models are: see `jcfl.core.measuring.comparison`."""

TAKEN = (
    "seed",
    "round",
    "labels",
    "counts",
    "losses",
    "unanswered",
    "accuracy_clients",
    "clusterability_clusters",
    *MODELS,
)
"""Names that `metrics.jsonl` and the arrays of an evaluation use for something else than a score."""

Function = Callable[[Evaluation], float]

_TABLE: dict[str, "Score"] = {}


class Unmeasured(Exception):
    """A score's function returned no number, or raised an error; the line names the score."""


@dataclass(frozen=True)
class Score:
    """One score.

    `over` says which clients it is taken over: those in the federation in the evaluated round ("present"), those that
    never train ("held out"), or both, each on its own; "attacked" is as "present", in federations with attackers only;
    "validation" is as "present" with the clients' validation examples, in federations that have some.
    Without a `function` the method measures the score itself.
    """

    name: str
    title: str = ""  #: in full, as on the axis of a plot
    short: str = ""  #: as the head of a column
    unit: Unit = ""  #: "%": a share, shown times 100; "clients", "clusters", "rounds": a whole number of them
    better: Better | None = None  #: None: neither
    over: tuple[Over, ...] = OVER
    places: tuple[Place, ...] = ()
    function: Function | None = None
    meaning: str = ""  #: in one sentence

    @property
    def scale(self) -> float:
        """What the value is multiplied by where it is shown."""
        return 100 if self.unit == "%" else 1

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole number: of clients, clusters or rounds."""
        return self.unit not in ("", "%")

    @property
    def is_of_predictions(self) -> bool:
        """Whether it is taken on examples that clients predict, so that it has a meaning for every method."""
        return "validation" in self.over

    @property
    def digits(self) -> int:
        """The number of decimals that tables show."""
        return {"": 3, "%": 2}.get(self.unit, 0)

    @property
    def suffix(self) -> str:
        """What tables put behind the value."""
        return " %" if self.unit == "%" else ""


def register_score(
    name: str,
    *,
    title: str = "",
    short: str = "",
    unit: Unit = "",
    better: Better | None = None,
    over: tuple[Over, ...] = OVER,
    places: tuple[Place, ...] = EVERYWHERE,
) -> Callable[[Function], Function]:
    """Put the decorated function into the table of scores under `name`.

    The function gets an `Evaluation` and returns a number, NaN where nothing defines it. The first line of its
    docstring says what the score means.

    >>> @register_score("accuracy_range", unit="%", better="lower")
    ... def spread(clients):
    ...     return float(np.nanmax(clients.accuracy) - np.nanmin(clients.accuracy))
    >>> score("held_out_accuracy_range").title
    'accuracy range, held-out clients'
    >>> del _TABLE["accuracy_range"]

    Args:
        name: the score's key in files, histories and summaries.
        title: its name in full; by default the key with spaces.
        short: the head of its column; by default the title.
        unit: "%" for a share; "clients", "clusters" or "rounds" for a whole number of them.
        better: whether higher or lower values are better; a sweep can choose its best point only by such a score.
        over: the clients it is taken over; over those held out its key begins with `held_out_`, on validation examples
            with `validation_`.
        places: the tables and plots that show it.

    Raises:
        ValueError: the name is no text, stands for something else in files, or another module has registered it;
            another argument has no such value.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"a score's name: expected text, got {name!r}")
    if name in TAKEN:
        raise ValueError(f"score {name!r}: files have something else under this name; choose another one")
    refuse_others(name, "unit", (unit,), get_args(Unit), unit)
    refuse_others(name, "better", (better,), (*get_args(Better), None), better)
    for what, values, known in (("over", over, get_args(Over)), ("places", places, get_args(Place))):
        listed = values if isinstance(values, tuple | list) else (values, "")
        refuse_others(name, what, listed, known, values, "a tuple of ")

    def put(function: Function) -> Function:
        refuse_replacing(name, function)
        add(Score(name, title, short, unit, better, over, places, function, first_line(function)))
        return function

    return put


def is_taken(name: str) -> bool:
    """Whether an evaluation already has something under this name. A method cannot measure anything under it then.

    >>> is_taken("held_out_loss"), is_taken("validation_counts"), is_taken("epsilon"), is_taken("objective")
    (True, True, True, False)
    """
    one = _TABLE.get(bare_name(name))
    return not name or bare_name(name) in TAKEN or (one is not None and (one.function is not None or not one.over))


def refuse_replacing(name: str, function: Function) -> None:
    """Refuse the name of another module's score, which would be replaced; a notebook may run its own cell again.

    Raises:
        ValueError: the line names the module.
    """
    known = _TABLE.get(name)
    owner = __package__ if known is None or known.function is None else known.function.__module__
    if name in score_names() and owner != function.__module__:
        raise ValueError(f"score {name!r}: {owner} has already registered this name; choose another one")


def refuse_others(
    name: str, what: str, values: Iterable[Any], known: tuple[Any, ...], given: Any, of: str = ""
) -> None:
    """Refuse an argument of `register_score` if some of its values are not known.

    Raises:
        ValueError: the line names the values that are.
    """
    if any(value not in known for value in values):
        *rest, last = map(repr, known)
        raise ValueError(f"score {name!r}: {what}: expected {of}{', '.join(rest)} or {last}, got {given!r}")


def add(one: Score) -> None:
    """Put a score into the table."""
    _TABLE[one.name] = filled(one)


def first_line(function: Function) -> str:
    """The first line of a function's docstring."""
    return next(iter((inspect.getdoc(function) or "").splitlines()), "")


def scores(place: Place | None = None) -> dict[str, Score]:
    """The scores of the table by name, or those that one place shows, in the order in which they were registered.

    >>> list(scores("clusters"))
    ['clusters', 'ari', 'objective']
    """
    return {name: one for name, one in _TABLE.items() if place is None or place in one.places}


def score(name: str) -> Score:
    """The score under a key of a history, with or without a prefix; one that nobody registered has no unit.

    >>> score("held_out_loss").better, score("validation_f1_micro").title, score("zebra_stripes").title
    ('lower', 'F1, validation examples', 'zebra stripes')
    """
    bare = bare_name(name)
    one, prefix = scores().get(bare) or filled(Score(bare)), name.removesuffix(bare)
    if not prefix:
        return one
    title, short = (f"{text}, {WHERE[prefix]}" for text in (one.title, one.short))
    return replace(one, name=name, title=title, short=short)


def bare_name(name: str) -> str:
    """A score's name without a prefix; that of a registered score is whole.

    >>> bare_name("validation_loss"), bare_name("loss")
    ('loss', 'loss')
    """
    if name in _TABLE:
        return name
    return name.removeprefix(next((prefix for prefix in WHERE if name.startswith(prefix)), ""))


def by_title(title: str, names: Iterable[str]) -> str | None:
    """The name among `names` of the score with this title or short title; None if there is none.

    A misspelled title counts if no name is nearer to it.

    >>> by_title("accuracy", ["accuracy_p5", "accuracy_micro"]), by_title("held_out_ARI", ["ari", "held_out_ari"])
    ('accuracy_micro', 'held_out_ari')
    >>> by_title("acuracy", ["accuracy_p5", "accuracy_micro"]), by_title("acuracy_p5", ["accuracy_p5"])
    ('accuracy_micro', None)
    """
    bare = bare_name(title)
    prefix, words = title.removesuffix(bare), bare.replace("_", " ").lower()
    own = {name: score(bare_name(name)) for name in names if name == prefix + bare_name(name)}
    near = lambda text: difflib.SequenceMatcher(None, words, text.replace("_", " ").lower()).ratio()
    titles = {name: max(near(one.title), near(one.short)) for name, one in own.items()}
    best = max(titles, key=titles.__getitem__, default=None)
    spelled = max((near(bare_name(name)) for name in own), default=0.0)
    return best if best is not None and (titles[best] == 1 or titles[best] > max(spelled, NEAR)) else None


def score_names() -> list[str]:
    """The names that scores of an evaluation may have, in the order in which files have them."""
    table = scores().values()
    outside, kept = ("held out", HELD_OUT), ("validation", VALIDATION)
    return [one.name for one in table] + [
        prefix + one.name for over, prefix in (outside, kept) for one in table if over in one.over
    ]


def filled(one: Score) -> Score:
    """A score with a title and a short title."""
    title = one.title or one.name.replace("_", " ")
    return replace(one, title=title, short=one.short or title)
