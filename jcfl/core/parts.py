"""Parts of a model by layer: those that are shared by all clients, by a cluster, or stay with a client.

A part is a model with some layers only. What a layer keeps beside its parameters goes with them: batch normalisation
that stays with a client keeps its running statistics there too (Li et al. 2021, FedBN).
"""

from collections.abc import Sequence
from typing import Any

import jax

from jcfl.errors import InputError, unknown
from jcfl.types import Model, Task

WORDS = ("head", "backbone", "norm")
"""What can stand for the names of layers: the classifier, everything else, the normalisation layers."""


def names(task: Task, selection: Sequence[str], what: str) -> tuple[str, ...]:
    """The top-level names of the parameters that a selection means.

    Args:
        selection: names of layers, or the words head, backbone and norm.
        what: the option that holds it, for the message.

    Raises:
        InputError: a name is no layer of the model, and the nearest one is offered; or a word means none of its layers.
    """
    params = jax.eval_shape(task.init, jax.random.key(0))["params"]
    meant = {
        "head": tuple(name for name in params if name in task.head),
        "backbone": tuple(name for name in params if name not in task.head),
        "norm": tuple(name for name in params if "norm" in name.lower()),
    }
    found: list[str] = []
    for word in selection:
        if word not in params and word not in meant:
            raise unknown(f"layer in {what}:", word, [*params, *WORDS])
        if word not in params and not meant[word]:
            raise InputError(f"{what}: the model has no {word} among its layers {', '.join(params)}")
        found += [name for name in ((word,) if word in params else meant[word]) if name not in found]
    return tuple(found)


def taken(model: Model, selection: Sequence[str]) -> Any:
    """The part of a model under some top-level names: parameters, and what else the layers keep."""
    return {kind: {name: tree[name] for name in selection if name in tree} for kind, tree in model.items()}


def placed(model: Model, part: Any) -> Model:
    """The model with a part in place of its own."""
    return {kind: {**tree, **part.get(kind, {})} for kind, tree in model.items()} if part else model
