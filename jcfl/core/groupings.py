"""The functions by which a method groups its clients, as a round calls them: what each returns is checked.

The shapes and types are checked while a program is traced, which takes no time when it runs. Labels are numbers that
only the program knows. A label of a cluster that there is no model for ends the run.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jcfl import metrics
from jcfl.core import returned
from jcfl.core.context import Context
from jcfl.core.faults import with_failure
from jcfl.core.method import Group, Method
from jcfl.core.releases import keeps_models
from jcfl.errors import InputError, named, shown
from jcfl.types import OVERFLOW, Array, Cohort, Federation, Grouping, Key, Models, State


def grouping(method: Method, context: Context) -> Grouping:
    """The functions of a method's group, each checked.

    Raises:
        InputError: the group gives no functions, or clients are grouped by trained models that the server does not get,
            or that it gets without noise; or, when a function is traced, it returns something of another kind.
    """
    name, k = f"group {method.group.name!r}", method.group.slots(context)
    own = returned.piece(named(name, method.group.grouping)(method, context), Grouping, f"{name}: grouping")
    for part, function in own._asdict().items():
        if not callable(function) and not (part == "after" and function is None):
            raise InputError(f"{name}: {part}: expected a function, got {shown(function)}")
    own = Grouping(*(f and named(f"{name}: {part}", f) for part, f in own._asdict().items()))
    if own.after is not None:
        refuse_unseen_models(method)
    if own.after is not None or keeps_models(method, context):
        refuse_models_without_noise(method, context)
    refuse_data_without_noise(method, context)

    def init(state: State, federation: Federation) -> State:
        return sound_state(own.init(state, federation), state, k, f"{name}: init", begins=True)

    def before(key: Key, state: State, cohort: Cohort, federation: Federation) -> State:
        return sound_state(own.before(key, state, cohort, federation), state, k, f"{name}: before")

    def after(key: Key, state: State, members: Cohort, federation: Federation, models: Models) -> State:
        assert own.after is not None
        return sound_state(own.after(key, state, members, federation, models), state, k, f"{name}: after")

    def place(state: State, who: Array, federation: Federation) -> Array:
        return sound_labels(own.place(state, who, federation), who.size, k, f"{name}: place")

    def serve(state: State, federation: Federation) -> Array:
        found = own.serve(state, federation)
        return found if found is state.labels else sound_labels(found, state.labels.size, k, f"{name}: serve")

    def measures(state: State, federation: Federation) -> dict[str, Array]:
        return sound_measures(own.measures(state, federation), f"{name}: measures")

    return Grouping(init, before, None if own.after is None else after, place, serve, measures)


def refuse_unseen_models(method: Method) -> None:
    """Refuse to group clients by models that they train where the server sees none.

    Raises:
        InputError: the line says why.
    """
    train = method.train
    if train.chained or not train.active:
        what = "train one after another, so the server sees none" if train.chained else "train none"
        raise InputError(f"{method.name}: group {method.group.name!r} groups by trained models, but clients {what}")


def refuse_models_without_noise(method: Method, context: Context) -> None:
    """Refuse privacy where the server looks at, or keeps, models of single clients that do not describe them.

    Raises:
        InputError: the line says what to do.
    """
    if context.privacy.is_on and method.describe.source != "upload":
        raise InputError(
            f"privacy: {method.name} looks at models of single clients (group {method.group.name!r}), and these get "
            "noise only where they describe the clients; set method.describe to update or model, got "
            f"{method.describe.name!r}"
        )


def refuse_data_without_noise(method: Method, context: Context) -> None:
    """Refuse privacy where a group describes clients by their data and does not say that it covers descriptions.

    Raises:
        InputError: the line says what to do.
    """
    group = method.group
    if context.privacy.is_on and method.describe.source == "data" and not says_to_cover(group):
        raise InputError(
            f"privacy: {method.name} describes clients by data, and group {group.name!r} does not say that it adds "
            "noise to descriptions; pass them through context.privacy.descriptions, and set covers_data = True in its "
            "class"
        )


def says_to_cover(group: Group) -> bool:
    """Whether a group says of its own `grouping` that descriptions of data pass through the noise.

    What a class says holds for the `grouping` that it has, and not for one that a subclass puts in its place.
    """
    own = next(one for one in type(group).__mro__ if not {"covers_data", "grouping"}.isdisjoint(vars(one)))
    return "covers_data" in vars(own) and group.covers_data


def sound_state(found: Any, given: State, slots: int, what: str, begins: bool = False) -> State:
    """The state that a function made of a given one; it is marked as failed where a label is of no slot.

    Args:
        begins: whether the function makes the memory, so that it may have any form.

    Raises:
        InputError: when it is traced, if something else was returned, or a part of another form.
    """
    if not isinstance(found, State):
        raise InputError(f"{what}: expected the State that it got, as in state.replace(labels=…), got {shown(found)}")
    for name, part in vars(found).items():
        like = getattr(given, name)
        if name == "labels" or part is like:
            continue
        if name == "memory" and begins:
            returned.arrays({name: part}, what)
            continue
        returned.models({name: part}, {name: like}, what)
        if jax.tree.structure(part) != jax.tree.structure(like):
            raise InputError(f"{what}: expected {name} as {jax.tree.structure(like)}; got {jax.tree.structure(part)}")
    if found.labels is given.labels:
        return found
    labels = returned.array(found.labels, given.labels.shape, [returned.WHOLE], f"{what}: labels").astype(jnp.int32)
    return with_failure(found.replace(labels=jnp.maximum(labels, -1)), labels.max() >= slots, OVERFLOW)


def sound_labels(found: Any, count: int, slots: int, what: str) -> Array:
    """The labels of so many clients: -1 for none, and `OVERFLOW` for a cluster of no slot. [count] int32

    Raises:
        InputError: when it is traced, if they are no whole numbers, one for each client.
    """
    labels = returned.array(found, (count,), [returned.WHOLE], what).astype(jnp.int32)
    return jnp.where(labels < slots, jnp.maximum(labels, -1), OVERFLOW)


def sound_measures(found: Any, what: str) -> dict[str, Array]:
    """The measures of a group by name, each one number.

    Raises:
        InputError: when it is traced, if one is no number, or has the name of something else in an evaluation.
    """
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InputError(f"{what}: expected a dict of numbers by name, got {shown(found)}")
    for name in found:
        if metrics.is_taken(name):
            raise InputError(f"{what}: {name!r} is something else in an evaluation; choose another name")
    kinds = [*returned.NUMBERS, returned.LOGICAL]
    return {name: returned.array(value, (), kinds, f"{what}: {name!r}") for name, value in found.items()}


def with_measures(method: Method, found: dict[str, Array], own: dict[str, Array]) -> dict[str, Array]:
    """What a run measures, and what the method's group does.

    Raises:
        InputError: both measure something under the same name.
    """
    both = sorted(found.keys() & own.keys())
    if both:
        raise InputError(f"group {method.group.name!r}: measures: {both[0]!r} is measured by jcfl; choose another name")
    return found | own
