"""Images turned about their centre."""

import numpy as np

from jcfl.errors import InputError


def rotated_images(x: np.ndarray, angle: float) -> np.ndarray:
    """Images turned anticlockwise by an angle: exactly by a multiple of 90°, else with bilinear interpolation.

    Args:
        x: [n, h, w, c] images.
        angle: degrees.

    Returns:
        [n, h, w, c] of the same dtype; pixels from outside the image are black.

    Raises:
        InputError: not images, or a quarter turn of images that are not square.
    """
    if x.ndim != 4:
        raise InputError(f"rotation needs images [n, h, w, c], got examples of shape {list(x.shape[1:])}")
    quarters, rest = divmod(angle % 360, 90)
    if rest:
        from scipy import ndimage  # slow to import

        return ndimage.rotate(x, angle, axes=(1, 2), reshape=False, order=1)
    if quarters % 2 and x.shape[1] != x.shape[2]:
        raise InputError(f"a rotation by {angle:g} degrees needs square images, got {x.shape[1]} by {x.shape[2]}")
    return np.rot90(x, int(quarters), axes=(1, 2))
