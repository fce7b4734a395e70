"""The files of a comparison: its tables, and its figures."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jcfl.view import pages
from jcfl.view.comparing import tables
from jcfl.view.comparing.figures import figures
from jcfl.view.plotting import style


def write(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write compare.md, .tex, .html, .csv and the figures as PDF and PNG, and return the files.

    Args:
        found: what `jcfl.view.comparing.comparison` returns.
        folder: where to.
    """
    drawn = dict(figures(found))
    urls = {
        name: f"data:image/svg+xml;base64,{base64.b64encode(style.encoded(one, 'svg')).decode()}"
        for name, one in drawn.items()
    }
    files = pages.write(folder / "compare", tables.texts(found, urls))
    return files + [file for name, one in drawn.items() for file in style.save(one, folder / name, ("pdf", "png"))]
