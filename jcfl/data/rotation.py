"""Images turned about their centre."""

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jcfl.errors import InputError, Notice

Interpolation = Literal["linear", "nearest"]


def rotated_images(
    x: np.ndarray, angle: float, interpolation: Interpolation = "linear", outside: float = 0.0
) -> np.ndarray:
    """Images turned anticlockwise by an angle: exactly by a multiple of 90°, else with interpolated pixels.

    Args:
        x: [n, h, w, c] images: pixels 0..255, or floats 0..1.
        angle: degrees.
        interpolation: between the four nearest pixels, or the nearest pixel.
        outside: the grey level of pixels from outside the image: 0 is black, 1 is white.

    Returns:
        [n, h, w, c] of the same dtype.

    Raises:
        InputError: not images, or a quarter turn of images that are not square.
    """
    if x.ndim != 4:
        raise InputError(f"rotation needs images [n, h, w, c], got examples of shape {list(x.shape[1:])}")
    quarters, rest = divmod(angle % 360, 90)
    if rest:
        from scipy import ndimage  # slow to import

        level = np.rint(255 * outside) if x.dtype == np.uint8 else outside
        order = ("nearest", "linear").index(interpolation)
        return ndimage.rotate(x, angle, axes=(1, 2), reshape=False, order=order, cval=level)
    if quarters % 2 and x.shape[1] != x.shape[2]:
        raise InputError(f"a rotation by {angle:g} degrees needs square images, got {x.shape[1]} by {x.shape[2]}")
    return np.rot90(x, int(quarters), axes=(1, 2))


def tell_of_equal_angles(scenario: str, angles: Sequence[float]) -> None:
    """Say in a notice that a scenario turns several groups by the same angle."""
    if len({angle % 360 for angle in angles}) < len(angles):
        told = f"{scenario}: some of the angles {', '.join(f'{angle:g}' for angle in angles)} are the same"
        warnings.warn(f"{told}, so that groups have the same task; set scenario.angles", Notice, stacklevel=3)
