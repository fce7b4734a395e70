"""The choice of the number of clusters by short runs (Xie et al. 2020, §5.2, https://arxiv.org/abs/2005.01026)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
from pydantic import Field

from jcfl.core.quality import keeps_models
from jcfl.data.federation import assembled
from jcfl.data.partition import packed
from jcfl.errors import InputError, argument, shown
from jcfl.registry import keywords_checked
from jcfl.results import History, deviation
from jcfl.runs import experiment, fitted
from jcfl.runs.config import Config, unchecked
from jcfl.runs.plan import config_and_objects, federation_of, planned
from jcfl.runs.sections import FITTED
from jcfl.types import Federation

Criterion = Literal["accuracy", "distance"]

KEPT_KEYS = ("engine", "devices", *FITTED)
"""The keys of a configuration, besides model and train, that every short run keeps."""

USED = ("data", "scenario", "data_dir", "model", "train", *KEPT_KEYS)
"""The keys that may be given beside `choose_k`'s own arguments."""

STAND_IN = {"method": "majority"}
"""A method for a configuration that has none. It trains nothing, and no short run uses it."""

MOST = 100_000
"""The longest list of numbers of clusters to choose from."""

DIGITS = 6
"""Decimals of accuracies that are not rounding errors of float32."""

RESAMPLES = 1000
"""How often clients and seeds are drawn again to see whether they lead to the same choice."""


class Choice(NamedTuple):
    """A number of clusters, and how certain the choice is."""

    k: int  #: the number of clusters
    confidence: float  #: the share of resamples of clients and seeds that lead to the same choice, in [0, 1]
    #: how much better k is than the next best number, in accuracy or in the knee's height; infinite without another
    margin: float
    #: mean and sample standard deviation over seeds, by the number of clusters, of the accuracy, in [0, 1], or of the
    #: mean squared distance; the deviation is NaN for one seed
    scores: dict[int, tuple[float, float]]
    criterion: Criterion  #: what the choice was made by, `accuracy` or `distance`


@keywords_checked
def choose_k(
    what: Federation | Config | Mapping[str, Any] | str | Path,
    ks: Sequence[int],
    *,
    method: str | Mapping[str, Any] = "wecfl",
    rounds: Annotated[int, Field(ge=0)] = 3,
    clients: Annotated[int, Field(ge=1)] = 100,
    criterion: Criterion = "accuracy",
    held_back: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0,
    seeds: Annotated[int, Field(ge=1)] = 3,
    **settings: Any,
) -> Choice:
    """The best of several numbers of clusters after a short run of each on a sample of clients (Xie et al. 2020, §5.2).

    A share of every sampled client's training examples is held back for the comparison; test examples are never used.
    By `accuracy`, the k is chosen whose models have the highest accuracy on the examples held back. By `distance`, the
    squared distance between a client's model and its cluster's model decides. Its mean can only fall as k grows, so the
    knee of the curve is chosen: the k that is farthest below the line from the smallest k to the largest. `ks` should
    therefore begin below the plausible numbers and end above them. Of equal k the smaller one is chosen.

    Args:
        what: a federation or a configuration, as `jcfl.run` takes them. Of a configuration, data, scenario, data_dir,
            model, train, engine, devices, examples, client_states, chunk, budget and seeds_in_one are used, and the
            rest is ignored; it needs no method.
        ks: the numbers to choose from; for `distance` three or more.
        method: one with the option `clusters` (ifca, wecfl, fesem, …); for `distance` one that keeps clients' models.
        rounds: of each run; all clients of the sample take part in each.
        clients: how many clients are sampled at random; all if there are fewer.
        held_back: the share of a client's training examples that is held back, in (0, 1); at least one example.
        seed: of the sample, of the examples held back, and of the first run.
        seeds: how many runs there are for every k; with one run, `confidence` does not know how runs differ.
        **settings: the keys of a configuration that are used, as for `jcfl.run`.

    Returns:
        The chosen number `k`, and how certain the choice is.

    Raises:
        InputError: numbers of clusters that cannot be compared, a share out of range, a method without the option
            `clusters`, or a key that short runs cannot keep, such as participation.
    """
    refuse_others(settings)
    if not isinstance(what, Federation | Config):
        what = STAND_IN | unchecked(what)
    config, objects = config_and_objects(what, settings)
    config = fitted.reopened(config)
    federation = objects.federation if objects.federation is not None else federation_of(config)
    short = sample(np.random.default_rng(seed), federation, clients, held_back)
    ks = checked(ks, criterion, len(short.groups))
    piece = {"name": method} if isinstance(method, str) else dict(method)
    given = {
        "model": config.model.model_dump() if objects.model is None else objects.model,
        "train": config.train.model_dump() if objects.train is None else objects.train,
        "rounds": rounds,
        "evaluate_every": max(rounds, 1),
        "seed": seed,
        "seeds": seeds,
        **{key: getattr(config, key) for key in KEPT_KEYS},
    }
    if criterion == "distance":
        refuse_without_models(short, given | {"method": piece | {"clusters": ks[0]}})
    values = []
    for k in ks:
        found = experiment.run(short, **given, method=piece | {"clusters": k}, progress=False)
        values.append(found.accuracy_clients[:, -1] if criterion == "accuracy" else distances(found))
    weights = short.test.size if criterion == "accuracy" else np.ones(len(short.groups))
    return choice_from(np.random.default_rng(seed), ks, np.stack(values), np.asarray(weights), criterion)


def choice_from(
    rng: np.random.Generator, ks: Sequence[int], values: np.ndarray, weights: np.ndarray, criterion: Criterion
) -> Choice:
    """The choice from one value for every k, seed and client.

    Args:
        values: accuracies or squared distances. [k, seeds, s]
        weights: of the clients. [s]
    """
    _, seeds, s = values.shape
    each = values @ weights / weights.sum()  # [k, seeds]
    merit = merits(each.mean(1), ks, criterion)
    best = int(merit.argmax())
    drawn = rng.multinomial(s, np.full(s, 1 / s), RESAMPLES) * weights  # [b, s]
    turns = rng.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES) / seeds  # [b, seeds]
    again = np.einsum("bt,ktb->bk", turns, values @ drawn.T) / drawn.sum(1)[:, None]
    confidence = np.mean(merits(again, ks, criterion).argmax(-1) == best)
    margin = merit[best] - np.delete(merit, best).max() if len(ks) > 1 else np.inf
    scores = {k: (float(row.mean()), float(deviation(row))) for k, row in zip(ks, each, strict=True)}
    return Choice(ks[best], float(confidence), float(margin), scores, criterion)


def merits(scores: np.ndarray, ks: Sequence[int], criterion: Criterion) -> np.ndarray:
    """A number for every k, of which the largest is chosen. [..., k]

    For accuracies it is the score itself, without rounding errors, so that equal ones are equal. For distances it is
    how far the score is below the line from the first to the last point, with both axes scaled to [0, 1].
    """
    if criterion == "accuracy":
        return np.round(scores, DIGITS)
    along = (np.asarray(ks) - ks[0]) / (ks[-1] - ks[0])
    drop = scores[..., :1] - scores[..., -1:]
    left = (scores - scores[..., -1:]) / np.where(drop > 0, drop, np.inf)
    return 1 - along - np.where(drop > 0, left, 1 - along)


def distances(found: History) -> np.ndarray:
    """The squared distance of every client's last model to its cluster's. [seeds, s]"""
    state = found.state
    turns = np.arange(len(state.labels))[:, None]
    pairs = zip(
        jax.tree.leaves(state.clients["model"]["params"]), jax.tree.leaves(state.clusters["params"]), strict=True
    )
    gaps = (own - centres[turns, state.labels] for own, centres in pairs)  # [seeds, s, ...] each
    return sum((np.square(gap).reshape(*gap.shape[:2], -1).sum(-1) for gap in gaps), np.zeros(state.labels.shape))


def refuse_without_models(federation: Federation, given: dict[str, Any]) -> None:
    """Refuse a method whose state does not have the clients' own models, of which distances are; nothing is trained."""
    plan = planned(*config_and_objects(federation, given))
    for name, algorithm in plan.algorithms.items():
        if not keeps_models(jax.eval_shape(algorithm.init, jax.random.key(0), plan.federation)):
            raise InputError(
                f"{argument('criterion', 'distance')} needs a method that keeps the clients' models (wecfl, fesem), "
                f"got {name!r}"
            )


def refuse_others(keys: Iterable[str]) -> None:
    """Refuse keys of a configuration that short runs do not keep."""
    for key in Config.model_fields.keys() & set(keys) - set(USED):
        raise InputError(
            f"{argument('choose_k').removeprefix('--')} makes its own short runs and cannot keep {key}; it takes "
            f"{', '.join(USED)}, and its own options "
            f"{', '.join(map(argument, ('method', 'rounds', 'clients')))} and {argument('seeds')}"
        )


def sample(rng: np.random.Generator, federation: Federation, clients: int, held_back: float) -> Federation:
    """Some clients that train, with a part of their training examples in place of their test examples."""
    if not 0 < held_back < 1:
        raise InputError(f"{argument('held_back')} must be above 0 and below 1, got {held_back}")
    if clients < 1:
        raise InputError(f"{argument('clients')} must be at least 1, got {clients}")
    before = jax.tree.map(np.asarray, federation.train)
    eligible = np.flatnonzero(~np.asarray(federation.held_out) & (before.size >= 2))
    if not eligible.size:
        raise InputError("no client that trains has two training examples, one to train on and one to judge by")
    who = np.sort(rng.choice(eligible, min(clients, eligible.size), replace=False))
    mixed = [rng.permutation(before.owned(client)) for client in who]
    apart = np.array([int(np.clip(round(held_back * len(mine)), 1, len(mine) - 1)) for mine in mixed])
    learnt = [mine[number:] for mine, number in zip(mixed, apart, strict=True)]
    judged = [mine[:number] for mine, number in zip(mixed, apart, strict=True)]
    pool = np.concatenate([*learnt, *judged])
    x, y, groups = np.asarray(federation.x)[pool], np.asarray(federation.y)[pool], np.asarray(federation.groups)[who]
    places = np.split(np.arange(len(pool)), [len(pool) - apart.sum()])
    train, test = packed(places[0], before.size[who] - apart), packed(places[1], apart)
    found = assembled(x, y, groups, train, test, federation.classes, federation.name)
    return replace(found, mean=federation.mean, std=federation.std)


def checked(ks: Sequence[int], criterion: str, clients: int) -> list[int]:
    """Numbers of clusters that can be compared, ascending."""
    if criterion not in ("accuracy", "distance"):
        raise InputError(f"{argument('criterion')}: expected accuracy or distance, got {criterion!r}")
    name = argument("ks", option="k")
    series = isinstance(ks, Sequence | np.ndarray) and getattr(ks, "ndim", 1) == 1 and len(ks) <= MOST
    if not series or not all(isinstance(k, int | np.integer) and not isinstance(k, bool) for k in ks):
        raise InputError(
            f"{name}: expected a list of numbers from 1 to {clients}, the clients sampled, got {shown(ks)}"
        )
    ks = sorted({int(k) for k in ks})
    least = 3 if criterion == "distance" else 1
    if len(ks) < least:
        told = f"{name}: expected at least {least} different numbers for the criterion {criterion}"
        raise InputError(f"{told}, got {shown(ks)}")
    outside = next((k for k in reversed(ks) if not 1 <= k <= clients), None)
    if outside is not None:
        raise InputError(f"{name}: expected numbers from 1 to {clients}, the clients sampled, got {outside}")
    return ks
