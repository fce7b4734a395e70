"""Parts of a model by layer: those that are shared by all clients, by a cluster, or stay with a client.

A part is a model with some layers only. What a layer keeps beside its parameters goes with them: batch normalisation
that stays with a client keeps its running statistics there too (Li et al. 2021, FedBN).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from jcfl.errors import InputError, unknown
from jcfl.types import Model, Task

WORDS = ("head", "backbone", "dense", "norm")
"""What can stand for the names of layers: the classifier, everything else, the dense layers, those that normalise."""


def names(task: Task, selection: Sequence[str], what: str) -> tuple[str, ...]:
    """The layers that a selection means, each by its path in the model's variables: `head`, `block/BatchNorm_0`.

    Args:
        selection: layers by their paths, or the words head, backbone, dense and norm.
        what: the option that holds it, for the message.

    Raises:
        InputError: a name is no layer of the model, and the nearest one is offered; or a word means none of its layers.
    """
    if not selection:
        return ()
    model = jax.eval_shape(task.init, jax.random.key(0))
    params = model["params"]
    known = {path for tree in model.values() for leaf in flatten_dict(tree) for path in prefixes(leaf)}
    meant = {
        "head": tuple(name for name in params if name in task.head),
        "backbone": tuple(name for name in params if name not in task.head),
        "dense": dense(params),
        "norm": normalisation(model),
    }
    found: list[str] = []
    for word in selection:
        if word not in known and word not in meant:
            raise unknown(f"layer in {what}:", word, [*params, *WORDS])
        if word not in known and not meant[word]:
            raise InputError(f"{what}: the model has no {word} among its layers {', '.join(params)}")
        found += [name for name in ((word,) if word in known else meant[word]) if name not in found]
    return tuple(found)


def dense(params: Any) -> tuple[str, ...]:
    """The paths of the layers whose kernel is a matrix."""
    leaves: dict[tuple[str, ...], Any] = flatten_dict(params)
    kernels = (leaf for leaf, array in leaves.items() if leaf[-1] == "kernel" and array.ndim == 2)
    return tuple("/".join(leaf[:-1] or leaf) for leaf in kernels)


def normalisation(model: Model) -> tuple[str, ...]:
    """The paths of the layers that normalise: whose name says norm, or which keep batch statistics."""
    layers = {path for tree in model.values() for leaf in flatten_dict(tree) for path in prefixes(leaf[:-1] or leaf)}
    named = {path for path in layers if "norm" in path.rpartition("/")[2].lower()}
    inner = {path for path in named if not any(other.startswith(f"{path}/") for other in named)}  # not a block of them
    return tuple(sorted(inner | {"/".join(leaf[:-1]) for leaf in flatten_dict(model.get("batch_stats", {}))}))


def prefixes(leaf: tuple[str, ...]) -> Iterator[str]:
    """The paths of the layers that an array is part of, from the top-level one on, and its own path."""
    return ("/".join(leaf[: depth + 1]) for depth in range(len(leaf)))


def part_of(model: Model, selection: Sequence[str]) -> Any:
    """The part of a model under some paths: parameters, and what else the layers keep."""
    if not selection:
        return {}
    within = lambda leaf: not {*selection}.isdisjoint(prefixes(leaf))
    flat = {kind: flatten_dict(tree) for kind, tree in model.items()}
    return {kind: unflatten_dict({leaf: tree[leaf] for leaf in tree if within(leaf)}) for kind, tree in flat.items()}


def with_part(model: Model, part: Any) -> Model:
    """The model with a part in place of its own."""
    if not part:
        return model
    flat = {kind: flatten_dict(tree, keep_empty_nodes=True) for kind, tree in model.items()}
    return {kind: unflatten_dict(leaves | flatten_dict(part.get(kind, {}))) for kind, leaves in flat.items()}


def refuse_all_private(what: str, params: Any, task: Task, private: Sequence[str]) -> None:
    """Refuse something that looks at nothing but private parameters, which are the client's own in every model.

    Args:
        what: what looks at them, for the message.
        params: the parameters that it looks at, from a model of names (see `named`).
        private: the private layers, by their paths.

    Raises:
        InputError: all of them are private.
    """
    seen = {*jax.tree.leaves(params)}
    if seen and seen <= {*jax.tree.leaves(part_of(named(task), private).get("params", {}))}:
        raise InputError(
            f"{what} looks at {', '.join(sorted(seen))} alone, which train.private keeps with the client, so no two "
            "models differ in it; leave one of the two out"
        )


def named(task: Task) -> Model:
    """A model that has the path of every parameter in its place."""
    params = jax.eval_shape(task.init, jax.random.key(0))["params"]
    return {"params": unflatten_dict({leaf: "/".join(leaf) for leaf in flatten_dict(params)})}
