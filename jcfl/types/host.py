"""Examples that stay in the host's memory, or in a file that is mapped into it, while programs run on a device."""

import mmap
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_static
class OnHost:
    """An array on the host, from which a program gets the rows that it requests.

    It stands in place of a JAX array: `host[rows]` has the values and the type of `array[rows]`. To JAX it is a part
    of a tree's structure and not a leaf, so it is never copied to a device as a whole.
    """

    def __init__(self, array: np.ndarray):
        self.array = array  # [N, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype:
        """The type of its numbers."""
        return self.array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The array itself, in NumPy."""
        return np.asarray(self.array, dtype)

    def __getitem__(self, rows: Any) -> Any:
        """Some rows: in NumPy where their numbers are, else in JAX, sent to the program when it runs. [..., *x]

        Args:
            rows: numbers of rows in [0, N). [...] int
        """
        if not isinstance(rows, jax.Array):
            return self.array[rows]
        like = jax.ShapeDtypeStruct((*rows.shape, *self.shape[1:]), self.dtype)
        return jax.pure_callback(self.fetched, like, rows, vmap_method="broadcast_all")

    def fetched(self, rows: Any) -> np.ndarray:
        """Some rows, in NumPy. [..., *x]"""
        return self.array[np.asarray(rows)]


def whole_map(array: Any) -> np.memmap | None:
    """The map of a whole file that an array is a part of; None where its memory is no file's."""
    while isinstance(array, np.ndarray) and not isinstance(array.base, mmap.mmap):
        array = array.base
    return array if isinstance(array, np.memmap) else None
