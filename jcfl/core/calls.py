"""Which parameters a model uses in a call, and in which order."""

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from jcfl.types import Model, Task


def called_parameters(task: Task, model: Model, x: Any) -> list[tuple[str, ...]]:
    """The paths of the leaves that a call reads, each once, in the order of their first use.

    Args:
        task: the model's.
        model: Flax variables; shapes are enough.
        x: examples; shapes are enough. [n, ...]
    """
    paths = [tuple(part.key for part in path) for path, _ in jax.tree.leaves_with_path(model)]
    traced = jax.make_jaxpr(lambda model, x: task.apply(model, x)[0])(model, x)
    return list(dict.fromkeys(used_parameters(traced.jaxpr, dict(zip(traced.jaxpr.invars, paths, strict=False)))))


def used_parameters(jaxpr: Jaxpr, of: dict[Any, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The paths of the parameters, in the order equations take them in; calls are looked into."""
    for equation in jaxpr.eqns:
        taken = [None if isinstance(v, Literal) else of.get(v) for v in equation.invars]
        within = [p for p in equation.params.values() if isinstance(p, ClosedJaxpr | Jaxpr)]
        inner = within[0].jaxpr if within and isinstance(within[0], ClosedJaxpr) else next(iter(within), None)
        if isinstance(inner, Jaxpr) and len(inner.invars) == len(taken):
            yield from used_parameters(
                inner, {v: path for v, path in zip(inner.invars, taken, strict=True) if path is not None}
            )
        else:
            yield from (path for path in taken if path is not None)
