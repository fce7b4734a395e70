"""Models: the papers' networks by name, and any Flax module of the user's as a `Task`."""

from collections.abc import Sequence
from typing import Any

from jcfl import registry
from jcfl.models.adapter import cross_entropy, task
from jcfl.models.networks import Network
from jcfl.types import Task

__all__ = ["Network", "build", "cross_entropy", "task"]


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
    chosen = registry.options("model", name, options)
    return registry.find("model", name)(tuple(shape), classes, **chosen)
