"""Clients of two groups that see the world differently, small enough for a run of seconds, and such a run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import jcfl
from jcfl.runs.plan import config_and_objects, planned
from jcfl.types import Federation
from tests import tiny


def two_groups(
    sizes: Sequence[int] = (12,) * 8,
    *,
    tests: int = 4,
    seed: int = 0,
    common: float = 1.0,
    scale: dict[int, float] | None = None,
    **when: Any,
) -> Federation:
    """Two features say one of four classes; the first means the opposite in the second group, the second the same.

    Clients belong to the groups in turn.

    Args:
        sizes: every client's training examples.
        tests: every client's test examples.
        seed: of the features.
        common: how large the feature is that says the same in both groups.
        scale: by client, what its features are multiplied by.
        **when: `arrive` and `depart`, rounds by client; `held_out`, the clients that never train.
    """
    rng, m = np.random.default_rng(seed), len(sizes)
    group = np.arange(m) % 2

    def drawn(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        client = np.repeat(np.arange(m), sizes)
        x = (rng.choice([-1.0, 1.0], (len(client), 2)) * rng.uniform(0.5, 1.5, (len(client), 2))).astype(np.float32)
        y = 2 * (x[:, 1] > 0) + ((x[:, 0] > 0) ^ (group[client] == 1))
        x *= np.array([1.0, common], np.float32)
        return x * np.array([(scale or {}).get(i, 1.0) for i in client], np.float32)[:, None], y, client

    (x, y, clients), (x_test, y_test, clients_test) = drawn(sizes), drawn((tests,) * m)
    made = jcfl.data.from_clients(
        x, y, clients, x_test=x_test, y_test=y_test, clients_test=clients_test, groups=group, classes=4
    )
    return attended(made, **when)


def attended(
    federation: Federation,
    arrive: dict[int, int] | None = None,
    depart: dict[int, int] | None = None,
    held_out: Sequence[int] = (),
) -> Federation:
    """The federation with the rounds in which clients come and go, and those that never train."""
    leaves = {"arrive": federation.arrive.copy(), "depart": federation.depart.copy()}
    for name, given in (("arrive", arrive), ("depart", depart)):
        for client, round in (given or {}).items():
            leaves[name][client] = round
    outside = np.isin(np.arange(len(federation.groups)), held_out)
    return replace(federation, **leaves, held_out=outside)


def settings(method: str, *addons: dict[str, Any], **given: Any) -> dict[str, Any]:
    """A run of softmax regression in whole batches, judged at its end; what no run takes is the method's option."""
    keys = {
        "rounds",
        "participation",
        "evaluate_every",
        "seed",
        "seeds",
        "train",
        "model",
        "engine",
        "chunk",
        "out",
        "stop",
        "attack",
        "reliability",
        "on_divergence",
        "privacy",
    }
    options = {key: value for key, value in given.items() if key not in keys}
    rounds = given.get("rounds", 6)
    usual = {"model": "linear", "train": {"lr": 1.0, "epochs": 1}, "rounds": rounds, "evaluate_every": max(rounds, 1)}
    own = {key: value for key, value in given.items() if key in keys}
    return {"method": {"name": method, **options, "addons": list(addons)}} | usual | own


def run(federation: Federation, method: str, *addons: dict[str, Any], **given: Any) -> jcfl.History:
    """Such a run."""
    return jcfl.run(federation, **settings(method, *addons, **given))


def paths(federations: Sequence[Federation], method: str, *addons: dict[str, Any], **given: Any) -> list[Any]:
    """The first and the last state of such a run on each federation of one shape, by one program that judges nothing.

    Returns:
        by federation, states whose leaves are [2, ...]
    """
    whole = settings(method, *addons, **given)
    plans = [planned(*config_and_objects(federation, whole)) for federation in federations]
    (algorithm,) = plans[0].algorithms.values()
    return tiny.ends(algorithm, whole["rounds"], whole.get("seed", 0), [plan.federation for plan in plans])


def state(history: jcfl.History) -> Any:
    """The final state of the first seed."""
    return jax.tree.map(lambda leaf: leaf[0], history.state)


def at(path: Any, row: int) -> Any:
    """One of the states that `paths` gives: 0 is the first, 1 the last."""
    return jax.tree.map(lambda leaf: leaf[row], path)


def vectors(models: Any) -> np.ndarray:
    """Models stacked, as rows. [k, d]"""
    leaves = jax.tree.leaves(models)
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in leaves], 1)


def vector(model: Any) -> np.ndarray:
    """One model as a vector. [d]"""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model)])


def own_models(history: jcfl.History) -> np.ndarray:
    """The cluster model of every client, whatever slot it is in. [m, d]"""
    last = state(history)
    return vectors(last.clusters)[last.labels]


def split_as(labels: np.ndarray, groups: np.ndarray) -> bool:
    """Whether two ways to tell clients apart are the same."""
    labels, groups = np.asarray(labels), np.asarray(groups)
    together = lambda ids: ids[:, None] == ids
    return bool((together(labels) == together(groups)).all()) and bool((labels >= 0).all())
