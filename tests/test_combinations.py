"""Descriptions, comparisons, groups and rounds of grouping in all combinations: each has a meaning or is refused."""

import functools
import itertools
import re
from dataclasses import replace

import jax
import numpy as np
import pytest

from jcfl import registry
from jcfl.core.compile import compile
from jcfl.core.method import Method
from jcfl.core.soft import SoftGroup
from jcfl.errors import InputError
from tests import tiny
from tests.test_oracles import setting

ANSWERS = ("describe", "compare", "group", "when")
SMALL = {
    **{name: {"clusters": 2} for name in ("linkage", "least", "em")},
    **{name: {"clusters": 2, "restarts": 3} for name in ("kmeans", "spectral")},
    "merge": {"capacity": 8},
    "density": {"min_samples": 2},
    "once": {"at": 1},
    "window": {"first": 0, "last": 2},
    "settled": {"eps1": 2.0, "eps2": 0.0},
}
Names = tuple[str, ...]
RUN: list[Names] = [
    ("gradient", "cosine", "spectral", "once"),
    ("subspace", "principal_angles", "linkage", "once"),
    ("moments", "svd_cosine", "kmeans", "once"),
    ("labels", "l1", "density", "once"),
    ("update", "cosine", "merge", "every"),
    ("update", "l2", "kmeans", "window"),
    ("accumulated", "cosine", "spectral", "every"),
    ("model", "matched", "linkage", "once"),
]
"""Combinations that are run, by a program that takes no state of another shape; the others are only traced."""


def method(names: Names) -> Method:
    """The method of four answers, with what the choice by losses and a soft membership need beside them."""
    found = {
        answer: registry.find(answer, name)(**SMALL.get(name, {})) for answer, name in zip(ANSWERS, names, strict=True)
    }
    made = Method(name="clustered", **found).with_train(distinct=names[2] == "least")
    if not isinstance(found["group"], SoftGroup):
        return made
    return made.with_train(models="all", distinct=True).with_answer(model="mixture")


@functools.cache
def sorted_out() -> tuple[list[Names], dict[Names, str]]:
    """All combinations: those with a meaning, and the reasons of the others."""
    context, taken, refused = setting().context, [], {}
    for names in itertools.product(*(registry.names(answer) for answer in ANSWERS)):
        try:
            compile(method(names), context)
            taken.append(names)
        except InputError as error:
            refused[names] = str(error)
    return taken, refused


def test_a_refusal_names_an_answer_to_set():
    """One that is registered, or in words; and setting it leads on: no refusal asks for what it refuses."""
    taken, refused = sorted_out()
    assert len(taken) > 200
    for names, reason in refused.items():
        advice = re.findall(r"method\.(describe|compare|group|when)(?:=| to )(?:\{name: )?(\w+)", reason)
        assert advice, (names, reason)
        for answer, name in advice:
            assert name in registry.names(answer), (names, reason)
        others = any(names[ANSWERS.index(answer)] != name for answer, name in advice)
        assert others or "{name: " in reason, (names, reason)  # with an option of the answer at hand


def test_what_nobody_looks_at_is_refused():
    """Every answer that is taken has an effect: one that a group would pass over silently is none."""
    taken, _ = sorted_out()
    for describe, compare, group, when in taken:
        if group in ("together", "alone"):
            assert (describe, compare, when) == ("nothing", "nothing", "every")
        if compare == "noise_corrected":
            assert (describe, group, when) == ("gradient", "merge", "arrival")
        if describe == "subspace":
            assert compare == "principal_angles"
        if group == "bipartition":
            assert (describe, compare, when) == ("update", "cosine", "settled")


@pytest.mark.parametrize("group", ["together", "alone"])
def test_a_group_that_never_changes_takes_no_rounds_to_change_in(group):
    plain, context = method(("nothing", "nothing", group, "every")), setting().context
    build = lambda when, **options: compile(replace(plain, when=registry.find("when", when)(**options)), context)
    build("once")
    for when, options in {"once": {"at": 1}, "window": {}, "arrival": {}, "settled": {}}.items():
        with pytest.raises(InputError, match=rf"clustered: group '{group}' .*when={when}.*; set method.when="):
            build(when, **options)


def covered(combinations: list[Names]) -> list[Names]:
    """A few of the combinations in which every two answers that go together meet once, or do in those that are run."""
    pairs = lambda names: set(itertools.combinations(enumerate(names), 2))
    left, found = set().union(*map(pairs, combinations)) - set().union(*map(pairs, RUN)), []
    while left:
        best = max(combinations, key=lambda names: len(pairs(names) & left))
        found.append(best)
        left -= pairs(best)
    return found


def test_every_two_answers_that_go_together_keep_the_shape_of_the_state():
    """Traced, not run."""
    context, data = setting(0.5).context, tiny.federation()
    full = setting().context
    for names in covered(sorted_out()[0]):
        algorithm = compile(method(names), full if names[2] == "bipartition" else context)
        state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
        after = jax.eval_shape(algorithm.step, state, data)
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), state
        ), names


@pytest.mark.parametrize("group", ["linkage", "kmeans", "spectral", "density", "merge"])
def test_true_groups_are_found_exactly(group):
    """By the oracle's description, with one client that comes later and is placed where it belongs."""
    data = tiny.federation()
    data = data.replace(arrive=np.where(np.arange(8) == 6, 2, 0).astype(np.int32))
    compare = "cosine" if group == "merge" else "l2"
    states = tiny.run(tiny.built(method(("truth", compare, group, "once")), setting(data=data)), 3, data=data)
    together = lambda ids: ids[:, None] == ids
    here = np.arange(8) != 6
    np.testing.assert_array_equal(together(states.labels[2][here]), together(data.groups[here]))
    np.testing.assert_array_equal(together(states.labels[3]), together(data.groups))
    assert (states.failed == -1).all()


@pytest.mark.parametrize("names", RUN, ids="-".join)
def test_some_run(names):
    """Everybody seen is in a cluster that exists, models stay finite and move."""
    setting_ = setting(0.75)
    if names[1] == "matched":
        setting_ = setting_.with_context(task=registry.find("model", "mlp")((4, 4, 1), tiny.CLASSES, hidden=(5,)))
    states = tiny.run(tiny.built(method(names), setting_), 3)
    assert (states.failed == -1).all()
    assert (states.labels[-1][states.seen[-1]] >= 0).all()
    leaves = jax.tree.leaves(states.clusters)
    assert states.labels.max() < leaves[0].shape[1]
    assert max(np.abs(leaf[-1] - leaf[0]).max() for leaf in leaves) > 1e-3
    assert len(set(states.labels[-1])) > 1
