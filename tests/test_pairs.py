"""Every method with every add-on, every option's other values, and clients that come, go, stay outside or differ.

The runs are generated from what is registered, so a method is tried as soon as there is one. Many features share a run;
`tests.covering` finds which can.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import jcfl
from jcfl import registry
from jcfl.errors import InputError
from jcfl.runs.plan import config_and_objects, planned
from jcfl.types import NEVER
from tests import groups
from tests.covering import Feature, covering

registry.load()

ROUNDS = 4
BASE: dict[str, dict[str, Any]] = {"flhc": {"clusters": 2, "at": 1}}
"""Options without which a method cannot be had, or does nothing in so few rounds."""
SET: dict[str, Any] = {
    "capacity": 6,
    "clusters": 3,
    "at": 2,
    "runs": 2,
    "shots": [0, 2],
    "anchor": {"name": "linear"},
    "shared_layers": ["head"],
    "warmup": 1,
    "steps": 1,
    "method": "fedavg",
    "distance_threshold": None,  # goes in place of clusters
    "options": None,  # those of the method that votes
}
"""Values of options that their schema does not tell how to choose; None: not tried."""
OUTSIDE, NEVER_COMES, LEFT_BEFORE, LEAVES, COMES = 0, 1, 2, 3, 4
LARGE = 1e4
"""What the features of those who never train are multiplied by: whatever learns from them is seen to."""


def values(option: str, schema: dict[str, Any]) -> list[Any]:
    """The values that an option is tried with, none of them its default."""
    if option in SET:
        return [] if SET[option] is None else [SET[option]]
    kinds = schema.get("anyOf", [schema])
    return [value for kind in kinds for value in of_kind(kind, schema.get("default"))]


def of_kind(kind: dict[str, Any], default: Any) -> list[Any]:
    """Other values of one JSON type: all of a list, the least integer, a half of a number."""
    if "enum" in kind:
        return [value for value in kind["enum"] if value != default]
    if kind.get("type") == "boolean":
        return [not default]
    if kind.get("type") == "integer":
        least = kind.get("minimum", 1)
        return [least if default != least else least + 1]
    if kind.get("type") == "number":
        return [default / 2 if default else 0.25]
    return []


def options(kind: str, name: str) -> list[tuple[str, Any]]:
    """Every option of a piece with every value that it is tried with."""
    schemas = registry.schema(registry.find(kind, name))
    return [(option, value) for option, schema in schemas.items() for value in values(option, schema)]


def features(method: str) -> list[Feature]:
    """What a method is tried with: its options, then the circumstances, then the add-ons, whose options take turns.

    Numbers that can be 0 are tried with 0 too, in rows after the others: it silences what they weigh.
    """
    turn = registry.names("method").index(method)
    schemas = registry.schema(registry.find("method", method))
    zeros = [(name, 0.0) for name, kind in schemas.items() if kind.get("minimum") == 0 and kind.get("type") == "number"]
    found: list[Feature] = [
        *options("method", method),
        *((name, zero) for name, zero in zeros if schemas[name]["default"]),
    ]
    found += [("participation", 0.5), ("nobody in round 0", True)]
    found.append(("stop", {"name": "converged", "rounds": 3, "moves": 1.0, "change": 10.0}))
    found.append(("train", {"lr": 0.5, "epochs": 2, "batch_size": 4, "momentum": 0.5, "keep_optimizer_state": True}))
    for addon in registry.names("addon"):
        ways = [{option: value} for option, value in options("addon", addon)] or [{}]
        always = {option: SET[option] for option in registry.schema(registry.find("addon", addon)) if SET.get(option)}
        found.append((addon, {"name": addon, **always, **ways[turn % len(ways)]}))
    return found


@functools.cache
def federation(nobody_first: bool):
    """Clients of different sizes: one never trains, one never comes, one left before; one leaves, one comes late."""
    strange = dict.fromkeys((OUTSIDE, NEVER_COMES, LEFT_BEFORE), LARGE)
    first = dict.fromkeys(range(8), 1) if nobody_first else {}
    arrive = first | {NEVER_COMES: NEVER, COMES: 2}
    depart = {LEFT_BEFORE: 0, LEAVES: 2}
    sizes = (8, 8, 8, 12, 8, 4, 12, 1)
    return groups.two_groups(sizes, scale=strange, arrive=arrive, depart=depart, held_out=(OUTSIDE,))


@functools.cache
def linear():
    """Softmax regression."""
    return registry.find("model", "linear")((2,), 4)


def asked(method: str, row: Sequence[Feature]) -> tuple[Any, dict[str, Any]]:
    """The federation and the configuration of a run of a method with some features."""
    given, addons = dict(row), set(registry.names("addon"))
    keys = {key: given.pop(key) for key in ("participation", "train", "stop") if key in given}
    data = federation(given.pop("nobody in round 0", False))
    keys["model"] = linear()  # found out about once, not by each of hundreds of runs that are refused
    extras = [value for key, value in given.items() if key in addons]
    own = BASE.get(method, {}) | {key: value for key, value in given.items() if key not in addons}
    return data, groups.settings(method, *extras, rounds=ROUNDS, evaluate_every=1, **keys, **own)


def refusal(method: str, row: Sequence[Feature]) -> str | None:
    """Why a combination is refused when it is planned; None if it is not."""
    if dict(row).get("clustering_only") and len(row) > 1 and {slot for slot, _ in row} & set(registry.names("addon")):
        return "what trains nothing would hide what add-ons do"
    try:
        planned(*config_and_objects(*asked(method, row)))
    except InputError as error:
        assert "unknown" not in str(error), error
        return str(error)
    return None


def broken(method: str, row: Sequence[Feature]) -> list[str]:
    """The promises that a run does not keep."""
    data, settings = asked(method, row)
    found = jcfl.run(data, **settings)
    last = groups.state(found)
    models, labels = groups.vectors(last.clusters), np.asarray(last.labels)
    k, all_ = len(models), np.concatenate([models.ravel(), groups.vector(last.shared)])
    apart = labels.size == k and (labels == np.arange(k)).all()  # every client has a cluster of its own
    strange = [OUTSIDE, NEVER_COMES, LEFT_BEFORE]
    here = [client for client in range(labels.size) if client not in strange]
    served = found.labels[0]  # [evaluations, m]
    plain = (served[-1, here] == labels[here]).all()  # who serves a client is not found anew at each evaluation
    gone, before = served[2:, LEAVES], served[1, LEAVES]
    promises = {
        "models are finite": np.isfinite(all_).all(),
        "loss is finite": np.isfinite(found["loss"]).all(),
        "nothing is learnt from those who are never there": apart or method == "majority" or np.abs(all_).max() < 100,
        "labels are clusters": labels.min() >= -1 and labels.max() < k,
        "answers come from clusters": served.min() >= -1 and served.max() < k,
        "those never there take no part": not last.seen[strange].any(),
        "those never there have no cluster": k == 1 or apart or (labels[strange] == -1).all(),
        "who has left keeps the label, or has none": not plain or np.isin(gone, [before, -1]).all(),
    }
    return [f"{promise}: {row}, labels {served.tolist()}" for promise, kept in promises.items() if not kept]


@pytest.mark.parametrize("method", registry.names("method"))
def test_a_method_keeps_its_promises_with_everything_that_it_takes(method):
    """And refuses the rest in one line that says why."""
    rows, refused = covering(features(method), functools.partial(refusal, method))
    assert [line for row in rows for line in broken(method, row)] == []
    assert any(rows)
    assert all(reason.strip() and "\n" not in reason for reason in refused.values())


def test_every_option_is_tried():
    """Of methods and of add-ons, but for those named in `SET` as not to be."""
    for kind in ("method", "addon"):
        for name in registry.names(kind):
            known = registry.schema(registry.find(kind, name))
            tried = {option for option, _ in options(kind, name)}
            assert set(known) - tried <= {option for option, value in SET.items() if value is None}


def test_a_covering_holds_every_feature_that_goes():
    """Values of one slot lie in rows of their own, so do rivals; one that needs another goes with it."""
    given = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3), ("c", 1), ("d", 1), ("e", 1)]

    def refusal(row):
        held = set(row)
        if ("c", 1) in held and ("a", 1) not in held:
            return "c needs a=1"
        if {("d", 1), ("b", 2)} <= held or ("e", 1) in held:
            return "d and b=2 are rivals, and e is never taken"
        return None

    rows, refused = covering(given, refusal)
    assert {feature for row in rows for feature in row} == set(given) - {("e", 1)}
    assert list(refused) == [7]
    assert all(len({slot for slot, _ in row}) == len(row) and refusal(row) is None for row in rows)
    assert len(rows) == 3
