"""Models: the papers' networks by name, and any Flax module of the user's as a `Task`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from jcfl import registry
from jcfl.errors import InputError, calling, shown
from jcfl.models.adapter import cross_entropy, fitting, task
from jcfl.models.networks import Network
from jcfl.types import Task

__all__ = ["Network", "build", "cross_entropy", "fitting", "task"]


def build(name: str, shape: Sequence[int], classes: int, /, **options: Any) -> Task:
    """A registered model for examples of one shape.

    Args:
        name: a name in the table of models.
        shape: of one example: `(h, w, c)` or `(d,)`.
        classes: how many.
        options: the model's own; checked.

    Raises:
        InputError: an unknown name or option, or data the model cannot take.

    >>> build("linear", (4, 4, 1), 3).head
    ('head',)
    """
    chosen, make = registry.options("model", name, options), registry.find("model", name)
    given = tuple(sorted(chosen.items()))
    with calling(f"model {name!r}"):
        try:
            hash(given)
        except TypeError:  # a user's model may take lists
            return checked(make(tuple(shape), classes, **chosen), make, shape, classes)
        return made(make, tuple(shape), classes, given, jnp.result_type(float))


@functools.lru_cache(maxsize=32)
def made(
    make: Callable[..., Task], shape: tuple[int, ...], classes: int, options: tuple[tuple[str, Any], ...], floats: Any
) -> Task:
    """A model, built and tried out once in a process, because many of its runs have the same one.

    Args:
        floats: the type of Python's floats at present, which a model's parameters may have.
    """
    return checked(make(shape, classes, **dict(options)), make, shape, classes)


def checked(task: Any, make: Callable[..., Task], shape: Sequence[int], classes: int) -> Task:
    """What a model's function returned, if it is a task for these examples and classes.

    Raises:
        InputError: it is another thing, such as a Flax module, or a task for other examples or classes.
    """
    if not isinstance(task, Task):
        raise InputError(
            f"model: {make.__name__} returned {shown(task)}; expected a jcfl.types.Task, which "
            "jcfl.models.task makes of a Flax module"
        )
    return fitting(task, shape, classes)
