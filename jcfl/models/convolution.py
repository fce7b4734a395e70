"""Convolutions as matrix products, because XLA runs the convolutions of many clients at once as slow grouped ones."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from jcfl.models.products import multiplied
from jcfl.types import Array
from jcfl.types.target import target

Lowering = Literal["patches", "native"]
Chosen = Literal["auto", "patches", "native"]
LAYOUT = ("NHWC", "HWIO", "NHWC")
SERIES = ("NWC", "WIO", "NWC")


def lowering(backend: str) -> Lowering:
    """How convolutions run on a JAX backend: `patches` are matrix products of patches, `native` is XLA's convolution.

    On a CPU, patches were measured to be many times faster inside a scan. On an NVIDIA H200 they train 1,000 clients,
    whose kernels differ, 5.5 times as fast. They were not measured there for kernels that all rows share.
    """
    return "patches" if backend in ("cpu", "gpu") else "native"


def convolution(how: Chosen = "auto", *, windows: bool = False) -> Callable[..., Array]:
    """A function that `flax.linen.Conv` and `flax.nnx.Conv` can call in place of `jax.lax.conv_general_dilated`.

    It computes a convolution of images or of series as one matrix product, with strides and a dilated kernel too. It
    leaves convolutions in groups, transposed ones, and those of other layouts to XLA.

    Args:
        how: `auto` means what `lowering` chooses for the target, see `jcfl.types.target`.
        windows: whether an output with even sides is returned as the windows of `relu_pool`, [n, h / 2, w / 2, 4, o].
    """
    return functools.partial(convolved, how=how, windows=windows)


def convolved(
    x: Array,
    kernel: Array,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    precision: Any = None,
    *,
    how: Chosen,
    windows: bool,
    **more: Any,
) -> Array:
    """The convolution of `x` [n, h, w, c] by a kernel [kh, kw, c, o], with the arguments of `conv_general_dilated`.

    Or of series [n, t, c] by a kernel [k, c, o].

    Returns:
        [n, h', w', o], or the windows of it; [n, t', o].
    """
    how = lowering(target().platform) if how == "auto" else how
    layout = {3: SERIES, 4: LAYOUT}.get(x.ndim)
    usual = layout is not None and dimension_numbers == lax.conv_dimension_numbers(x.shape, kernel.shape, layout)
    plain = usual and x.size and feature_group_count == 1 and set(more.values()) <= {None}
    if how == "patches" and plain and set(lhs_dilation or (1,)) == {1}:
        steps, gaps = (tuple(each or (1,) * (x.ndim - 2)) for each in (window_strides, rhs_dilation))
        reach = [(k - 1) * gap + 1 for k, gap in zip(kernel.shape, gaps, strict=False)]
        named = isinstance(padding, str)
        pads = lax.padtype_to_pads(x.shape[1:-1], reach, steps, padding) if named else padding
        if set(steps + gaps) == {1} and x.ndim == 4:
            return product(x, kernel, pads, precision, windows)
        out = strided(x, kernel, pads, steps, gaps, precision)
        return windowed(out) if windows and even(out) else out
    stretch = {"lhs_dilation": lhs_dilation, "rhs_dilation": rhs_dilation, "dimension_numbers": dimension_numbers}
    more |= stretch | {"feature_group_count": feature_group_count, "precision": precision}
    out = lax.conv_general_dilated(x, kernel, window_strides, padding, **more)
    return windowed(out) if windows and even(out) else out


def product(x: Array, kernel: Array, pads: Sequence[tuple[int, int]], precision: Any, windows: bool) -> Array:
    """The convolution as one matrix product: a row for every tile of t × t pixels of the output.

    The patches of neighbouring pixels overlap. One patch for a tile of four pixels is only a little larger than the
    patch of one pixel, so fewer numbers are copied; in return, some products are with zeros.
    """
    (kh, kw, _, o), t = kernel.shape, tile(*kernel.shape)
    sides = [max(size + sum(pad) - k + 1, 0) for size, pad, k in zip(x.shape[1:3], pads, (kh, kw), strict=True)]
    tiles = tuple(-(-side // t) for side in sides)
    blocks = tuple(-(-(k + t - 1) // t) for k in (kh, kw))  # of t × t pixels, in a patch
    if not math.prod(sides):
        return jnp.zeros((x.shape[0], *sides, o), x.dtype)
    padded = [t * (many + block - 1) for many, block in zip(tiles, blocks, strict=True)]
    edges = [(pad[0], to - size - pad[0], 0) for pad, to, size in zip(pads, padded, x.shape[1:3], strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
    y = multiplied(patches(x, tiles, blocks, t), tiled(kernel, blocks, t), precision)
    if windows and t == 2 and not any(side % 2 for side in sides):
        return y.reshape(-1, *tiles, 4, o)
    y = y.reshape(-1, *tiles, t, t, o).transpose(0, 1, 3, 2, 4, 5)
    y = y.reshape(-1, tiles[0] * t, tiles[1] * t, o)[:, : sides[0], : sides[1]]
    return windowed(y) if windows and even(y) else y


def strided(
    x: Array,
    kernel: Array,
    pads: Sequence[tuple[int, int]],
    steps: Sequence[int],
    gaps: Sequence[int],
    precision: Any,
) -> Array:
    """The convolution of images or series as one matrix product: a row for every place of the output.

    Args:
        steps: how far the places are apart, along each axis.
        gaps: how far the kernel's numbers are apart.
    """
    *sizes, c, o = kernel.shape
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((low, high, 0) for low, high in pads), (0, 0, 0)])
    shape = zip(x.shape[1:-1], sizes, steps, gaps, strict=True)
    sides = [max((size - (k - 1) * gap - 1) // step + 1, 0) for size, k, step, gap in shape]
    if not math.prod(sides):
        return jnp.zeros((x.shape[0], *sides, o), x.dtype)

    def seen(place: Sequence[int]) -> Array:
        """What one number of the kernel meets at all places. [n, *sides, c]"""
        first = [at * gap for at, gap in zip(place, gaps, strict=True)]
        last = [begin + (side - 1) * step + 1 for begin, side, step in zip(first, sides, steps, strict=True)]
        return lax.slice(x, (0, *first, 0), (x.shape[0], *last, c), (1, *steps, 1))

    rows = jnp.concatenate([seen(place) for place in itertools.product(*map(range, sizes))], -1)
    return lax.dot_general(rows, kernel.reshape(-1, o), (((rows.ndim - 1,), (0,)), ((), ())), precision=precision)


def tile(kh: int, kw: int, c: int, o: int) -> int:
    """The side t of the tiles: two if the copies that this saves cost more than the products with zeros, else one.

    In measurements, copying one number took as long as 32 multiplications, and fewer than 16 channels as long as 16.
    """
    one_by_one, together = 4 * kh * kw, 4 * ((kh + 2) // 2) * ((kw + 2) // 2)
    return 2 if (4 * together - one_by_one) * c * o < 32 * (one_by_one - together) * max(c, 16) else 1


def cut_patches(x: Array, tiles: tuple[int, int], blocks: tuple[int, int], t: int) -> Array:
    """The patch of every tile of padded images, [n, h, w, c] -> [n · tiles, pixels of a patch · c].

    The part of an image's row that lies in a patch is copied as a whole: XLA copies long parts faster than short ones.

    Args:
        tiles: their number down and to the right.
        blocks: of t × t pixels in a patch, down and to the right.
    """
    n, h, w, c = x.shape
    x = x.reshape(n, h, w // t, t * c)
    x = jnp.concatenate([x[:, :, j : j + tiles[1]] for j in range(blocks[1])], -1)
    x = x.reshape(n, h // t, t, tiles[1], -1)
    x = jnp.concatenate([x[:, i : i + tiles[0], k] for i in range(blocks[0]) for k in range(t)], -1)
    return x.reshape(n * math.prod(tiles), -1)


def patches_and_shape(x: Array, tiles: tuple[int, int], blocks: tuple[int, int], t: int) -> tuple[Array, Any]:
    """The patches, and what their gradient needs."""
    return cut_patches(x, tiles, blocks, t), x.shape


def from_patches(
    tiles: tuple[int, int], blocks: tuple[int, int], t: int, shape: tuple[int, ...], slope: Array
) -> tuple[Array]:
    """The gradient of the images [n, h, w, c] of a shape from that of their patches.

    It is the sum that JAX would find itself. JAX would pad every part to the size of the sum, and XLA would go through
    all of it for each part.
    """
    n, h, _, c = shape
    slope = slope.reshape(n, *tiles, blocks[0], t, -1).transpose(0, 1, 3, 4, 2, 5)
    rows = overlapping([slope[:, :, i] for i in range(blocks[0])], 1).reshape(n, h, tiles[1], blocks[1], t * c)
    return (overlapping([rows[:, :, :, j] for j in range(blocks[1])], 2).reshape(shape),)


patches = jax.custom_vjp(cut_patches, nondiff_argnums=(1, 2, 3))
patches.defvjp(patches_and_shape, from_patches)


def overlapping(parts: Sequence[Array], axis: int) -> Array:
    """The sum of parts of equal shapes, each of which begins one place after the one before it along an axis."""
    side = parts[0].shape[axis]
    more = [(0, len(parts) - 1) if each == axis else (0, 0) for each in range(parts[0].ndim)]
    total = jnp.pad(parts[0], more)
    for i, part in enumerate(parts[1:], 1):
        there = lax.slice_in_dim(total, i, i + side, axis=axis)
        total = lax.dynamic_update_slice_in_dim(total, there + part, i, axis)
    return total


def tiled(kernel: Array, blocks: Sequence[int], t: int) -> Array:
    """The matrix of a tile's kernels, [kh, kw, c, o] -> [pixels of a patch · c, t² · o].

    Each pixel of the tile has the kernel at its own place in the patch and zeros elsewhere.
    """
    down, right = (t * block - k for block, k in zip(blocks, kernel.shape[:2], strict=True))
    shifted = lambda i, j: jnp.pad(kernel, ((i, down - i), (j, right - j), (0, 0), (0, 0)))
    w = jnp.stack([shifted(i, j) for i in range(t) for j in range(t)], -2)
    return w.reshape(-1, t * t * kernel.shape[-1])


def even(x: Array) -> bool:
    """Whether images [n, h, w, c] have even sides."""
    return x.shape[1] % 2 == x.shape[2] % 2 == 0


def windowed(x: Array) -> Array:
    """The pixels of every 2×2 window side by side, [n, h, w, c] -> [n, h // 2, w // 2, 4, c]; odd ends are dropped."""
    n, h, w, c = x.shape
    x = x[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(n, h // 2, w // 2, 4, c)


def relu_pool(x: Array) -> Array:
    """ReLU and a 2×2 max-pool of images [n, h, w, c] or of their windows [n, h / 2, w / 2, 4, c].

    As with `flax.linen.max_pool`, all of the gradient goes to the first of equal pixels.
    """
    return pool(windowed(x) if x.ndim == 4 else x)


@jax.custom_vjp
def pool(x: Array) -> Array:
    """The largest pixel of every window, or zero if none is above zero, [..., 4, c] -> [..., c]."""
    return largest(x)[0]


def largest(x: Array) -> tuple[Array, Array]:
    """The largest pixel of every window and its index, or zero and -1; NaN counts as the largest. Both [..., c]"""

    def larger(one, other):
        (a, i), (b, j) = one, other
        first = (a > b) | (a != a) | ((a == b) & (i < j))
        return jnp.where(first, a, b), jnp.where(first, i, j)

    axis = x.ndim - 2
    index = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return tuple(lax.reduce((x, index), (jnp.zeros((), x.dtype), jnp.int32(-1)), larger, (axis,)))


def to_largest(index: Array, slope: Array) -> tuple[Array]:
    """The gradient of every window's pixels, [..., c] -> [..., 4, c].

    A product with unit matrices makes the copies, because XLA on a CPU would else compute the slope once for each.
    """
    return (jnp.stack([jnp.where(index == i, slope, 0) for i in range(4)], -2),)


pool.defvjp(largest, to_largest)
