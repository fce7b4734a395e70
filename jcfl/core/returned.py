"""What a piece has returned, checked while a program is traced, so that a wrong one ends in a clear line.

Pieces of other authors may return arrays of another shape or type than the round expects. Without a check JAX would
broadcast some of them in silence, and end others in an error far from their cause.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jcfl.errors import InputError, shown
from jcfl.types import Array, Models

Kind = TypeVar("Kind")

FLOATS, WHOLE, LOGICAL = jnp.floating, jnp.integer, jnp.bool_
"""The kinds of numbers that a piece may have to return."""

NUMBERS = (FLOATS, WHOLE)
"""The kinds of numbers that can be computed with as floats."""

ARRAYS = jax.Array | np.ndarray | np.generic | bool | int | float
"""What can be an array in a program."""

KINDS = {FLOATS: "floats", WHOLE: "whole numbers", LOGICAL: "true or false"}
"""The kinds in words."""


def array(found: Any, shape: Sequence[Any], kinds: Sequence[Any], what: str) -> Array:
    """What a piece returned as an array, if it has one of the kinds and this shape.

    Args:
        shape: the size of every axis, None for any. An Ellipsis at the end stands for any further axes.
        what: who returned what, for the error.

    Raises:
        InputError: it is no array, or has another shape or kind.
    """
    kind = " or ".join(KINDS[one] for one in kinds)
    more = [*shape][-1:] == [...]
    axes = [size for size in shape if size is not ...]
    words = ", ".join(["n" if size is None else str(size) for size in axes] + ["…"] * more)
    expected = f"expected {kind} of shape [{words}]"
    if not isinstance(found, ARRAYS):
        raise InputError(f"{what}: {expected}; got {shown(found)}")
    has = jnp.shape(found)
    fits = len(has) >= len(axes) if more else len(has) == len(axes)
    fits = fits and all(size in (None, got) for size, got in zip(axes, has, strict=False))
    if not fits or not any(jnp.issubdtype(jnp.result_type(found), one) for one in kinds):
        raise InputError(f"{what}: {expected}; got {said(found)}")
    return jnp.asarray(found)


def count(found: Any, what: str) -> int:
    """A number of things that a piece returned.

    Raises:
        InputError: it is no whole number, or less than one.
    """
    if not isinstance(found, int | np.integer) or isinstance(found, bool) or found < 1:
        raise InputError(f"{what}: expected a whole number, at least 1, got {shown(found)}")
    return int(found)


def piece(found: Any, of: type[Kind], what: str) -> Kind:
    """The piece that a registered function returned.

    Args:
        of: the class that its value has to have, or to derive from.

    Raises:
        InputError: it returned another thing, or nothing.
    """
    if not isinstance(found, of):
        raise InputError(f"{what}: expected {of.__name__}(…) or a subclass of it, got {shown(found)}")
    return found


def arrays(tree: Any, what: str) -> None:
    """Refuse a tree with a leaf that is no array and no number.

    Raises:
        InputError: the line names the leaf.
    """
    for path, leaf in leaves(tree).items():
        if not isinstance(leaf, ARRAYS):
            name = f"{what}: {path}" if path else what
            raise InputError(f"{name}: expected an array or a number; got {shown(leaf)}")


def first_state(found: Any, what: str) -> Any:
    """What a piece keeps at first, of arrays and numbers, as arrays.

    Raises:
        InputError: a leaf is something else.
    """
    arrays(found, what)
    return jax.tree.map(jnp.asarray, found)


def pair(found: Any, parts: str, what: str) -> tuple[Any, Any]:
    """The two things that a piece returned.

    Args:
        parts: their names, for the error.

    Raises:
        InputError: it returned something else.
    """
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(f"{what}: expected {parts}, got {shown(found)}")
    return found


def next_state(found: Any, like: Any, what: str, types: bool = True) -> Any:
    """What a piece keeps for the next round, if it has the form of what it kept before.

    Args:
        like: what it kept before.
        types: whether the types of numbers have to be the same too.

    Raises:
        InputError: as for `models`, or a container is of another kind.
    """
    models(found, like, what, types)
    if jax.tree.structure(found) != jax.tree.structure(like):
        raise InputError(f"{what}: expected {jax.tree.structure(like)}; got {jax.tree.structure(found)}")
    return found


def models(found: Any, like: Models, what: str, types: bool = True) -> Models:
    """Models that a piece returned, if they have the leaves, shapes and types of those that it was given.

    Args:
        like: models of the form that is expected.
        what: who returned them, for the error.
        types: whether the types of numbers have to be the same too.

    Raises:
        InputError: a leaf is missing, or is one too many, or has another shape or type; the line names it.
    """
    arrays(found, what)
    wanted, got = leaves(like), leaves(found)
    for path in (path for path in wanted if path not in got):
        raise InputError(f"{what}: expected {path}, {said(wanted[path])}; got {', '.join(got) or shown(found)}")
    for path in (path for path in got if path not in wanted):
        raise InputError(f"{what}: expected {', '.join(wanted) or 'nothing'}; got {path} as well")
    for path, leaf in got.items():
        other = types and jnp.result_type(leaf) != jnp.result_type(wanted[path])
        if other or jnp.shape(leaf) != jnp.shape(wanted[path]):
            raise InputError(f"{what}: expected {path} as {said(wanted[path])}; got {said(leaf)}")
    return found


def leaves(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by their paths in words, such as `params.head.bias`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in jax.tree.leaves_with_path(tree)
    }


def said(value: Any) -> str:
    """The type and the shape of an array, as in float32 [3, 8]."""
    return f"{jnp.result_type(value)} [{', '.join(map(str, jnp.shape(value)))}]"
