"""Pictures in PNG and JPEG files: their size is checked before they are decoded, and a file that was cut is refused."""

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from jcfl.data.files import allowed, content, exists, fit, inside, reading
from jcfl.errors import InputError

FORMATS = {"PNG": b"IEND\xae\x42\x60\x82", "JPEG": b"\xff\xd9"}
"""The formats that are decoded, and the bytes at which they end. Pillow knows dozens, one of which starts a program."""


def pictures(folder: Path, names: Sequence[str], size: int) -> np.ndarray:
    """Image files as squares of `size` pixels a side, in colour. `[n, size, size, 3]` uint8.

    Raises:
        InputError: an image that is not there, outside of the folder or cannot be decoded, by its name, or more pixels
            than memory allows.
    """
    from PIL import Image  # only needed where images come as files

    fit(folder, len(names) * size * size * 3)
    pool = np.empty((len(names), size, size, 3), np.uint8)
    workers = os.cpu_count() or 1
    limit = allowed() // workers

    def put(i: int) -> None:
        path = inside(folder, names[i])
        if not exists(path):
            raise InputError(f"no image {path}")
        image = decoded(path, content(path, "an image", limit), limit)
        with reading(path, "an image that can be shown in colour"):
            pool[i] = np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(put, range(len(names))))
    return pool


def decoded(path: Path, data: bytes | bytearray, limit: int) -> Any:
    """The Pillow image in the bytes of a PNG or JPEG file.

    Args:
        path: the file, for the error.
        data: its bytes.
        limit: the bytes that its pixels may take.

    Raises:
        InputError: another format, a damaged or cut file, or more pixels than are allowed.
    """
    from PIL import Image

    with reading(path, f"an image ({' or '.join(FORMATS)})"):
        image = Image.open(io.BytesIO(data), formats=tuple(FORMATS))
        fit(path, 8 * image.width * image.height, limit)  # 4 bytes a pixel, twice while it is converted
        image.verify()  # its checksums, which decoding skips; the image cannot be used afterwards
        if FORMATS.get(str(image.format), b"") not in data:
            raise ValueError("it was cut: its end is missing")
        image = Image.open(io.BytesIO(data), formats=tuple(FORMATS))
        image.load()
    return image
