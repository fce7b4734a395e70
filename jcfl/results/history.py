"""A run's evaluations: each one with its line of JSON, and all of them in NumPy."""

import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jcfl import metrics
from jcfl.errors import InputError, Notice, optional_package, shown
from jcfl.results.scores import load_scores

TABLE = (
    "<table><tr><th>method</th>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr>"
    "{% for name, row in rows.items() %}<tr><th>{{ name }}</th>"
    "{% for head in heads %}<td>{{ row.get(head, '–') }}</td>{% endfor %}</tr>{% endfor %}</table>"
)
"""A template of a notebook's table."""
ARRAYS = {
    "labels": (np.int32, -1),
    "accuracy_clients": (np.float32, np.nan),
    "clusterability_clusters": (np.float32, np.nan),
}
"""What is kept of every client, or of every cluster: its type, and the value that stands where there is none yet."""


@dataclass
class Record:
    """One evaluation of one seed."""

    seed: int
    round: int
    scores: dict[str, float]
    arrays: dict[str, np.ndarray]  # [m] or [k] each
    models: dict[str, np.ndarray] = field(default_factory=dict)  # of the rounds where models are compared

    @classmethod
    def of(cls, seed: int, round: int, measured: Mapping[str, Any]) -> "Record":
        """The record of what `jcfl.metrics.measured` returned, its scores in the order of the table of scores."""
        arrays = {name: np.asarray(value) for name, value in measured.items()}
        names = dict.fromkeys(name for name in (*metrics.score_names(), *arrays) if name in arrays)
        scores = {name: number(arrays[name]) for name in names if arrays[name].ndim == 0}
        kept, models = ({name: arrays[name] for name in some if name in arrays} for some in (ARRAYS, metrics.MODELS))
        return cls(seed, round, scores, kept, models)

    def line(self) -> str:
        """One line of metrics.jsonl."""
        return json.dumps(writable({"seed": self.seed, "round": self.round, **self.scores})) + "\n"


@dataclass(repr=False, eq=False)
class History:
    """All evaluations of a run, in NumPy.

    `history["accuracy_micro"]` has this metric of every seed at every evaluated round, `[seeds, e]`; it is NaN for
    rounds that a seed has not reached. `list(history)` are the names of all metrics. Two histories are equal if they
    are the same object.
    """

    name: str  #: the name of the method or of a sweep's point; of a run that was loaded, the name of its folder
    seeds: list[int]  #: the seeds, in the order of the axis `seeds` of all arrays
    rounds: np.ndarray  #: [e] int, the evaluated rounds, ascending, each the number of rounds trained before
    scores: dict[str, np.ndarray]  #: every metric by its name, each [seeds, e] float64; NaN where there is no value
    labels: np.ndarray  #: [seeds, e, m] int32, the cluster that serves each client; -1 for none yet
    #: [seeds, e, m] float32, the accuracy of each client on its own test examples, in [0, 1]; NaN for a client without
    #: test examples, and for rounds that a seed has not reached
    accuracy_clients: np.ndarray
    groups: np.ndarray  #: [m] int, the true groups, -1 where unknown; where data drift, those at the last evaluation
    #: [seeds, e, k] float32, the clusterability B of each cluster, see `jcfl.metrics.clusterability`; k is 0 in a run
    #: that did not measure it (`evaluate_quality`)
    clusterability_clusters: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0)))
    #: how alike clients' models were, by (seed, round), in a run with `compare_models`; the arrays are described in
    #: `jcfl.core.measuring.comparison`. Empty if the run was loaded
    models: dict[tuple[int, int], dict[str, np.ndarray]] = field(default_factory=dict)
    #: the content of summary.json, such as each metric's last value (mean and standard deviation over seeds) and times
    #: in seconds; where training failed, `failed` is the reason
    summary: dict[str, Any] = field(default_factory=dict)
    #: the final states, one `jcfl.types.State` with NumPy arrays, [seeds, ...] each; None for a run that was loaded or
    #: that failed, for the runs in `others`, and for those of a sweep or a search. With one seed and `client_states:
    #: host`, what clients keep stays where it is, and its `arrays()` reads it
    state: Any = None
    others: dict[str, "History"] = field(default_factory=dict)  #: the methods compared with this one, by their names
    folder: Path | None = None  #: the folder of the run; None if nothing was written
    #: [m] numbers or text, the ids of the clients; 0 .. m-1 where the user gave none
    clients: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    held: Callable[[], Mapping[str, np.ndarray]] = field(default=dict, repr=False)  # arrays of federation.npz on groups
    predictor: Any = field(default=None, repr=False)  # of a run that has its `state`: see `jcfl.runs.predicting`

    def __post_init__(self) -> None:
        """Number the clients, where nobody has given them ids."""
        if not self.clients.size:
            self.clients = np.arange(len(self.groups))

    def __getitem__(self, score: str) -> np.ndarray:
        """One metric of every seed at every evaluated round.

        Args:
            score: its name, one of the keys of `scores`.

        Returns:
            The values, NaN for rounds that a seed has not reached. [seeds, e] float64

        Raises:
            KeyError: there is no metric of this name; the message lists those that there are.
        """
        if score not in self.scores:
            meant = metrics.by_title(score, self.scores) if isinstance(score, str) else None
            hint = f"; did you mean {meant!r}? There" if meant else "; there"
            raise KeyError(f"no score {score!r}{hint} are {', '.join(self.scores)}")
        return self.scores[score]

    def __contains__(self, score: object) -> bool:
        """Whether there is a metric of this name."""
        return score in self.scores

    def __iter__(self) -> Iterator[str]:
        """The names of all metrics."""
        return iter(self.scores)

    def predict(self, x: Any, clients: Any = None, *, ids: Any = None, seed: int | None = None) -> np.ndarray:
        """The classes that clients predict for examples of theirs, as they predict for their test examples at the end.

        Each client predicts with its own model, whatever the method's `answer` is: its cluster's model, its private
        layers, several models that vote, local steps before. The federation is made again for it, so the first call
        takes longer.

        >>> import jcfl
        >>> import numpy as np
        >>> x = np.zeros((3, 8, 8, 1), np.uint8)
        >>> settings = {"data": "digits", "scenario": {"name": "iid", "clients": 5}, "method": "fedavg", "rounds": 1}
        >>> history = jcfl.run(settings)
        >>> history.predict(x, clients=4).shape
        (3,)

        Args:
            x: the examples as the federation has its own, before they are scaled: pixels from 0 to 255, or numbers.
                Nothing is transformed, so give a client of a rotated group images that are rotated as its own. [n, ...]
            clients: the client of every example, or one for all, as places in `history.clients`, from 0. [n] int or an
                int
            ids: the same by the clients' ids, in place of `clients`. [n] or one id
            seed: the seed whose models predict; the first one by default.

        Returns:
            The classes. [n] int. It is -1 where the largest logit is not finite, as after local steps that diverge; a
            notice says how often.

        Raises:
            InputError: the run has no state (one that was loaded, that failed, in `others`, or with more states than
                the host holds), the examples or clients are not those of its federation, or the run had its examples or
                its clients' states on the host.
        """
        logits = self.logits(x, clients, ids=ids, seed=seed)
        lost = ~np.isfinite(logits.max(-1))
        if lost.any():
            told = f"{self.name}: the logits of {lost.sum()} of {lost.size} examples are not finite"
            advice = "so their class is -1; lower train.lr, or the steps of finetune"
            warnings.warn(f"{told}, {advice}", Notice, stacklevel=2)
        return np.where(lost, -1, logits.argmax(-1))

    def logits(self, x: Any, clients: Any = None, *, ids: Any = None, seed: int | None = None) -> np.ndarray:
        """As `predict`, but the logits of all classes. [n, c] float"""
        if self.predictor is None or self.state is None:
            raise InputError(
                f"{self.name}: this history has no models; `jcfl.run('DIR/config.yaml', out='DIR', resume=True)` of a "
                "complete run with checkpoints trains nothing and has them"
            )
        if seed is not None and not (np.ndim(seed) == 0 and seed in self.seeds):
            raise InputError(f"{self.name}: no seed {seed!r}; there are {', '.join(map(str, self.seeds))}")
        lane = 0 if seed is None else self.seeds.index(seed)
        return self.predictor(self.state, lane, x, self.places(clients, ids))

    def places(self, clients: Any, ids: Any) -> Any:
        """The clients' places in the federation, given as such or by ids. [n] or []"""
        if (clients is None) == (ids is None):
            raise InputError("predict: expected either clients, which are places from 0, or ids")
        if ids is None:
            return clients
        known = {one: place for place, one in enumerate(self.clients.tolist())}
        try:
            given = np.asarray(ids)
        except ValueError:  # lists of several lengths
            raise InputError(f"predict: expected an id, or one for each example, got {shown(ids)}") from None
        if missing := [one for one in given.ravel().tolist() if one not in known]:
            raise InputError(f"predict: no client has the id {missing[0]!r}; history.clients has all ids")
        return np.array([known[one] for one in given.ravel().tolist()], int).reshape(given.shape)

    def __repr__(self) -> str:
        """The run in a line: method, seeds, rounds, and the last scores that a terminal shows."""
        seeds = f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        parts = [self.name, seeds, f"round {self.rounds[-1]}" if self.rounds.size else "no evaluation"]
        parts += [f"{title} {value}" for title, value in self.cells().items() if value != "–"]
        parts += [f"compared with {', '.join(self.others)}"] if self.others else []
        return f"<History: {'; '.join(parts)}>"

    def _repr_html_(self) -> str:
        """The last scores of the method and of those compared with it, as a table in a notebook."""
        import jinja2

        rows = {one.name: one.cells() for one in (self, *self.others.values())}
        heads = list(dict.fromkeys(title for row in rows.values() for title in row))
        return jinja2.Template(TABLE, autoescape=True).render(heads=heads, rows=rows)

    def cells(self) -> dict[str, str]:
        """The last scores that a terminal shows, as text, by their short titles."""
        load_scores(self.scores)
        last, known = final(self), metrics.scores("terminal")
        return {one.short: cell(name, last[name], len(self.seeds)) for name, one in known.items() if name in last}

    def to_dataframe(self, clients: bool = False) -> Any:
        """All scores as a `pandas.DataFrame`, a row for each method, seed and evaluated round.

        Args:
            clients: whether to give instead, in a row for each client too, its id, its true group, its cluster and its
                accuracy; -1 is an unknown group, and a client that has no cluster yet. Where data drift, the group is
                that of the evaluation (of the last one, for a folder of an earlier version without federation.npz).

        Returns:
            The table. Its columns are `method`, `seed`, `round` and one for each score; with `clients` they are
            `method`, `seed`, `round`, `client`, `group`, `cluster` and `accuracy`. It has the rows of the methods in
            `others` too.

        Raises:
            InputError: pandas is not installed, or federation.npz is damaged, which has the groups where data drift.
        """
        pandas = with_pandas()
        tables = [one.columns(clients) for one in (self, *self.others.values())]
        return pandas.concat([pandas.DataFrame(table) for table in tables], ignore_index=True)

    def columns(self, clients: bool) -> dict[str, Any]:
        """The columns of `to_dataframe`, without those of other methods."""
        each = self.clients.size if clients else 1  # rows of an evaluation
        evaluations = len(self.seeds) * self.rounds.size
        when = {"seed": np.repeat(self.seeds, self.rounds.size * each)}
        when |= {"round": np.tile(np.repeat(self.rounds, each), len(self.seeds))}
        groups = np.tile(self.true_groups().ravel(), len(self.seeds)) if clients else ()
        what = {"client": np.tile(self.clients, evaluations), "group": groups}
        what |= {"cluster": self.labels.ravel(), "accuracy": self.accuracy_clients.ravel()}
        name = self.summary.get("method", self.name)  # of a run that was loaded, `name` is that of the folder
        return {"method": name} | when | (what if clients else {k: v.ravel() for k, v in self.scores.items()})

    def true_groups(self) -> np.ndarray:
        """The true group of every client at every evaluation; `groups` are those at the last one. [e, m] int"""
        held = self.held()
        if "drift_holds" not in held:
            return np.broadcast_to(self.groups, (self.rounds.size, self.groups.size))
        return held["groups"][holders(held, self.rounds)]


def holders(held: Mapping[str, np.ndarray], round: Any) -> np.ndarray:
    """The client whose data each client holds after some number of rounds.

    Args:
        held: `drift_rounds` and `drift_holds` of federation.npz.
        round: how many rounds were trained. [] or [e] int

    Returns:
        Places of clients: before the first round, these clients held the data. [m] or [e, m] int
    """
    return held["drift_holds"][np.searchsorted(held["drift_rounds"], np.asarray(round) - 1, side="right")]


def with_pandas() -> Any:
    """The package pandas, which only `to_dataframe` needs.

    Raises:
        InputError: it is not installed.
    """
    return optional_package("pandas", "to_dataframe needs pandas: pip install pandas")


def history(
    name: str,
    seeds: list[int],
    rounds: Iterable[int],
    records: Iterable[Record],
    groups: Any,
    clients: Any = (),
) -> History:
    """A history from records in any order.

    Args:
        groups: the true group of every client, -1 where unknown. [m]
        clients: their ids; without any they are numbered. [m] or [0]
    """
    table = {(record.seed, record.round): record for record in records}
    kept = [round for round in rounds if any((seed, round) in table for seed in seeds)]
    names = dict.fromkeys(score for record in table.values() for score in record.scores)
    scores = {score: np.full((len(seeds), len(kept)), np.nan) for score in names}
    groups = np.asarray(groups)
    shapes = {"labels": groups.shape, "accuracy_clients": groups.shape, "clusterability_clusters": (0,)}
    shapes |= {key: value.shape for record in table.values() for key, value in record.arrays.items()}
    arrays = {key: np.full((len(seeds), len(kept), *shapes[key]), *ARRAYS[key][::-1]) for key in ARRAYS}
    models = {place: record.models for place, record in table.items() if record.models}
    for i, seed in enumerate(seeds):
        for j, round in enumerate(kept):
            record = table.get((seed, round))
            for score, value in (record.scores if record else {}).items():
                scores[score][i, j] = value
            for key in ARRAYS:
                if record and key in record.arrays:
                    arrays[key][i, j] = record.arrays[key]
    each = arrays["labels"], arrays["accuracy_clients"], groups, arrays["clusterability_clusters"]
    return History(name, seeds, np.array(kept, int), scores, *each, models, clients=np.array(clients))


def deviation(values: np.ndarray) -> np.ndarray:
    """The sample standard deviation over seeds, with divisor n - 1 of the n that are not NaN; NaN where n < 2.

    Args:
        values: [seeds, ...].
    """
    known = (~np.isnan(values)).sum(0)
    with np.errstate(invalid="ignore"):  # an infinite loss has no distance from its mean
        centred = values - np.nansum(values, 0) / np.maximum(known, 1)
    return np.where(known > 1, np.sqrt(np.nansum(centred**2, 0) / np.maximum(known - 1, 1)), np.nan)


def final(history: History, evaluations: int = 1) -> dict[str, Any]:
    """Every score at the end, as mean and sample standard deviation over the seeds that have it.

    Args:
        evaluations: a seed's score is the mean of its values at so many last evaluations.

    Returns:
        By score its `mean` and `std`; if some seeds have it and others do not, `seeds` is the number of those that do.
    """
    table: dict[str, Any] = {}
    for score, values in history.scores.items():
        last = values[:, -evaluations:]
        last = last.mean(1) if last.size else np.full(len(values), np.nan)
        known = last[~np.isnan(last)]
        table[score] = {"mean": float(known.mean()) if known.size else math.nan, "std": float(deviation(known))}
        table[score] |= {"seeds": known.size} if 0 < known.size < last.size else {}
    return table


def numbers(entry: Mapping[str, float | None]) -> dict[str, float]:
    """The numbers of an entry of a file, by name, with NaN for what is not a number: JSON has None there."""
    return {key: math.nan if value is None else value for key, value in entry.items()}


def cell(name: str, value: Mapping[str, float | None] | None, seeds: int) -> str:
    """A score's mean as text, with its sample standard deviation where there are several seeds.

    >>> cell("accuracy_micro", {"mean": 0.5, "std": 0.01}, 3), cell("clusters", {"mean": 4.0, "std": 0.0}, 1)
    ('50.00 ± 1.00 %', '4')
    >>> cell("accuracy_micro", {"mean": 0.5, "std": 0.01, "seeds": 2}, 3)  # of one seed it is not defined
    '50.00 ± 1.00 % (2 of 3 seeds)'
    """
    one, mean = metrics.score(name), None if value is None else value["mean"]
    if value is None or mean is None or math.isnan(mean):
        return "–"
    digits, std = one.digits + (seeds > 1 and one.digits == 0), value["std"]
    spread = "" if seeds < 2 or std is None or math.isnan(std) else f" ± {written(std * one.scale, digits)}"
    part = f" ({value['seeds']} of {seeds} seeds)" if "seeds" in value else ""
    return f"{written(mean * one.scale, digits)}{spread}{one.suffix}{part}"


def written(value: float, digits: int) -> str:
    """A number with so many decimals; one that is too large for them, such as a diverging loss, as a power of ten.

    >>> written(2.5, 2), written(-0.001, 2), written(2.7979042e24, 3)
    ('2.50', '0.00', '2.8e+24')
    """
    return f"{value:z.{digits}f}" if abs(value) < 1e7 else f"{value:.3g}"


def text(records: Iterable[Record]) -> str:
    """The lines of metrics.jsonl."""
    return "".join(record.line() for record in records)


def entries(text: str) -> list[dict[str, Any]]:
    """The objects in complete lines of JSON; a last line that was cut off is left out."""
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]


def record(entry: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Record:
    """The record of which a line of metrics.jsonl has the scores. `arrays` are [m] each."""
    scores = numbers(entry)
    return Record(int(scores.pop("seed")), int(scores.pop("round")), scores, arrays)


def number(value: np.ndarray) -> float | int:
    """A scalar as a Python number that prints as short as its own precision allows."""
    return int(value) if np.issubdtype(value.dtype, np.integer) else float(str(value[()]))


def writable(value: Any) -> Any:
    """A value as JSON has it: null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [writable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
