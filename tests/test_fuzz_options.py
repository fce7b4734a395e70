"""Odd values for every option, as YAML and from Python: a run is planned, or there is one `InputError`, at once.

Nothing trains. `JCFL_FUZZ=10` tries ten times as many, and others each time.
"""

import dataclasses
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jcfl
from jcfl import data, errors, registry, results
from jcfl.core import memory
from jcfl.errors import InputError
from jcfl.runs import choice, config, experiment, needs, plan, sweeping
from jcfl.runs.objects import Objects
from jcfl.runs.sweeping.points import key_and_values
from jcfl.types import Federation
from tests import tiny

TIMES = int(os.environ.get("JCFL_FUZZ", "0"))
"""How many times as many cases as in the quick set, which is always the same."""

AVAILABLE = 2**28
"""Bytes of memory that are said to be free."""

registry.load()

BOMB = "{" + ", ".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(12)) + "}"

TEXTS = st.one_of(
    st.sampled_from(["0", "1", "2", "-1", "7", "0.5", "-0.5", "1e-3", "1e400", ".nan", ".inf", "-.inf", "017", "0x10"]),
    st.sampled_from(["yes", "no", "null", "~", "2020-01-01", "1:30", "*x", "1_000"]),
    st.sampled_from([str(number) for number in (10**9, 2**31 - 1, 2**31, 2**63, 10**30, -(2**63))]),
    st.sampled_from(
        [
            "2020-13-45",
            "!!int abc",
            "!!int ''",
            "!!float x",
            "!!bool maybe",
            "!!timestamp z",
            "!!binary '%'",
            "!!null 3",
        ]
    ),
    st.sampled_from(
        ["!!python/name:os.system", "!!python/object/apply:os.getcwd []", "!x y", "!!set {a}", "!!omap [a: 1]"]
    ),
    st.sampled_from(
        ["{a: 1, a: 2}", "{1: 2}", "{[1]: 2}", "{{}: 2}", "&a [*a]", "&a {b: *a}", "{<<: 3}", BOMB, "[1, 2"]
    ),
    st.sampled_from(["[" * 60 + "]" * 60, "[" * 1200, "{a: " * 60 + "}" * 60, "9" * 5000, "0x" + "f" * 5000, "'" * 3]),
    st.sampled_from(
        ["[]", "{}", "[1]", "[.nan]", "[0, 90]", "[[0], [1]]", "{3: .5}", "{name: x}", "{name: [1]}", "''", "\0"]
    ),
    st.text(max_size=6),
    st.recursive(st.integers() | st.floats(), lambda inner: st.lists(inner, max_size=3), max_leaves=4).map(str),
)
"""What may stand after `key=`."""


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    return value | {"name": value.setdefault("name", value)}


def odd_objects() -> list[Any]:
    """What a program may pass in place of anything; new ones each time, for an iterator can be used once."""
    numbers = [True, -1, 0, 3, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), -0.5, 1j, np.float32(2)]
    words = [None, "", "x", "\0", "..", b"x", "9" * 5000, "1e400"]
    lists = [[], [1], [None], (), (1, 2), {1}, range(3), iter([1]), {}, {"a": 1}, {1: 2}, {"name": 3}, {"name": []}]
    arrays = [
        np.array(3),
        np.zeros(3),
        np.zeros((0, 2)),
        np.array([None, "a"], object),
        np.array(["a"]),
        np.zeros(4, bool),
    ]
    rows = [
        np.arange(4) + 2**40,
        -np.arange(4),
        np.full(4, np.nan),
        np.array([0, 1, 2, 2**31 - 1]),
        np.zeros(4, complex),
    ]
    things = [object(), Unprintable(), int, len, lambda context: 3, lambda: 3, endless()]
    return [*numbers, *words, *lists, *arrays, *rows, *things]


OBJECTS = st.integers(0, len(odd_objects()) - 1).map(lambda place: odd_objects()[place])


class Planned(Exception):
    """Raised where training would begin."""


def refuse_to_train(*args: Any, **options: Any) -> Any:
    raise Planned


@pytest.fixture(autouse=True, scope="module")
def nothing_trains():
    with pytest.MonkeyPatch.context() as patch:
        for module in (errors, memory, needs):
            patch.setattr(module, "available_memory", lambda: AVAILABLE)
        patch.setattr(experiment, "execute", refuse_to_train)
        patch.setattr(sweeping, "Training", refuse_to_train)
        signal.signal(signal.SIGALRM, late)
        yield


def late(number: int, frame: Any) -> None:
    raise AssertionError("no answer")


def attempt(work: Callable[[], Any]) -> str:
    """Do it, and check what comes of it: what it is, in a word."""
    before = psutil.Process().memory_info().rss
    try:
        signal.setitimer(signal.ITIMER_REAL, 20)
        work()
        return "done"
    except Planned:
        return "planned"
    except InputError as error:
        assert str(error).isprintable() and len(str(error)) < 20_000
        return "refused"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert psutil.Process().memory_info().rss - before < 2 * AVAILABLE


def tried(count: int) -> Callable[[Any], Any]:
    """So many examples."""
    checks = list(HealthCheck)
    return settings(
        max_examples=count * max(TIMES, 1),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        suppress_health_check=checks,
    )


SECTIONS = {"scenario": "scenario", "model": "model", "method": "method", "train": "train", "data": "data"}

NAMES = [
    *((key, "") for key in config.Config.model_fields if key not in ("made_by", "devices")),
    *(
        (f"{section}.{option.name}", f"{section}.name={name}")
        for section, kind in SECTIONS.items()
        for name in registry.names(kind)
        for function in (*registry.shared(kind), registry.find(kind, name))
        for option in registry.parameters(function)
    ),
    *(
        (f"method.{question}.{option.name}", f"method.{question}={name}")
        for question, kind in config.KINDS.items()
        for name in registry.names(kind)
        for option in registry.parameters(registry.find(kind, name))
    ),
]
"""The dotted name of every option, and the override that chooses its piece."""

BASE = {
    "data": {"name": "gaussian", "users": 8, "train": 12, "test": 4},
    "scenario": {"name": "iid", "clients": 8},
    "model": "linear",
    "method": {"name": "ifca", "clusters": 2},
    "rounds": 1,
}


@tried(150)
@given(st.sampled_from(NAMES), TEXTS)
def test_any_text_for_any_option_is_planned_or_refused(which, text):
    name, chosen = which

    def work() -> None:
        found = config.read(BASE, [*filter(None, [chosen]), f"{name}={text}"])
        own = name.split(".")[0] in ("data", "scenario")
        plan.planned(found, Objects(federation=None if own else tiny.federation()))

    attempt(work)


@tried(150)
@given(st.lists(st.sampled_from(["rounds", "method", "train", "name", "a", ".", "0", "²", "9" * 5000, ""])), TEXTS)
def test_any_text_for_any_name_is_read_or_refused(path, text):
    attempt(lambda: config.read({**BASE, "compare": ["fedavg"]}, [f"{'.'.join(path)}={text}"]))
    attempt(lambda: config.read({**BASE, "compare": ["fedavg"]}, [f"compare.{'.'.join(path)}={text}"]))


@tried(100)
@given(
    TEXTS, st.sampled_from(["{}", "rounds: {}", "{}: 1", "method: {}", "method: {{name: fedavg, {}: 1}}", "grid: {}"])
)
def test_any_file_is_read_or_refused(tmp_path_factory, text, form):
    path = tmp_path_factory.getbasetemp() / "odd.yaml"
    path.write_text(form.format(text), "utf-8", errors="replace")
    attempt(lambda: config.read(path))
    attempt(lambda: sweeping.sweep(path))
    attempt(lambda: sweeping.sweep("quickstart", dict([key_and_values(f"rounds={text}")])))


X, Y, CLIENTS = np.random.default_rng(0).random((24, 4), np.float32), np.arange(24) % 3, np.arange(24) // 6
MINE: Federation = data.from_clients(X, Y, CLIENTS)
DIGITS = data.load("digits")
RUN = {"method": "fedavg", "model": "linear", "rounds": 1}
TEST = {"x_test": X, "y_test": Y, "clients_test": CLIENTS}

CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]] = {
    "run": (
        lambda what=MINE, **given: jcfl.run(what, **RUN | given),
        {},
        (
            "what",
            *RUN,
            "train",
            "participation",
            "evaluate_every",
            "seed",
            "seeds",
            "compare",
            "out",
            "resume",
            "on_progress",
        )
        + (
            "data_dir",
            "track",
            "checkpoint_every",
            "engine",
            "chunk",
            "budget",
            "evaluate_first",
            "made_by",
            "nonsense",
        ),
    ),
    "sweep": (
        lambda what="quickstart", over=None, values=(1,), **given: jcfl.sweep(
            what, {"rounds": values} if over is None else over, **given
        ),
        {},
        ("what", "over", "values", "by", "out", "rounds", "method", "train"),
    ),
    "choose_k": (
        lambda ks=(1, 2), **given: choice.choose_k(MINE, ks, model="linear", **given),
        {},
        ("ks", "method", "rounds", "clients", "criterion", "held_back", "seed", "seeds", "train"),
    ),
    "from_clients": (
        lambda **given: jcfl.run(data.from_clients(**given), **RUN),
        {"x": X, "y": Y, "clients": CLIENTS},
        (
            "x",
            "y",
            "clients",
            "test_fraction",
            "groups",
            "classes",
            "name",
            "min_examples",
            "seed",
            "held_out",
            "scenario",
        ),
    ),
    "from_clients, test": (
        lambda **given: jcfl.run(data.from_clients(X, Y, CLIENTS, **given), **RUN),
        TEST,
        tuple(TEST),
    ),
    "Federation": (
        lambda **given: jcfl.run(dataclasses.replace(MINE, **given), **RUN),
        {},
        tuple(field.name for field in dataclasses.fields(MINE)),
    ),
    "Split": (
        lambda **given: jcfl.run(dataclasses.replace(MINE, train=dataclasses.replace(MINE.train, **given)), **RUN),
        {},
        ("rows", "start", "size", "width"),
    ),
    "federation": (
        lambda dataset, scenario="rotated", **given: data.federation(dataset, scenario, **given),
        {"dataset": DIGITS, "clients": 4},
        ("dataset", "scenario", "seed", "min_examples", "held_out", "arrivals", "scale", "clients", "groups", "angles"),
    ),
    "load": (lambda name="gaussian", **given: data.load(name, **given), {}, ("name", "data_dir", "users", "classes")),
    "results": (lambda folder: results.load(folder), {}, ("folder",)),
    "describe": (lambda federation: data.describe(federation), {}, ("federation",)),
    "place": (lambda federation: data.place(federation), {}, ("federation",)),
}
"""What Python programs call: by name, the function of its arguments, those that are given, and those that are odd."""


@pytest.mark.parametrize("name", CALLS)
def test_any_argument_from_python_is_taken_or_refused(name):
    call, usual, odd = CALLS[name]

    @tried(40)
    @given(st.sampled_from(odd), OBJECTS)
    def check(argument, value):
        attempt(lambda: call(**{**usual, argument: value}))

    check()
