"""Names of methods and of a sweep's points, which are the names of their folders."""

import re
from collections.abc import Sequence

from jcfl.errors import InputError

FOLDER = re.compile(r"[\w=+-][\w.=+-]*")
"""What a title has to be."""

LONGEST = 100
"""Bytes in a title, at most."""


def unique(names: Sequence[str]) -> list[str]:
    """The names, with numbers at the end of those that come again.

    >>> unique(["fedavg", "fedavg", "fedavg-2"])
    ['fedavg', 'fedavg-3', 'fedavg-2']
    """
    given = {name.lower() for name in names}  # some file systems do not tell capitals from small letters
    found: dict[str, str] = {}
    for name in names:
        title, number = name, 1
        while title.lower() in found or (number > 1 and title.lower() in given):
            number += 1
            title = f"{name}-{number}"
        found[title.lower()] = title
    return list(found.values())


def refuse_unsafe(titles: Sequence[str]) -> None:
    """Refuse titles that cannot be the names of folders.

    Raises:
        InputError: one is `..`, too long, or has other characters than letters, digits and ._=+-
    """
    for title in titles:
        if not FOLDER.fullmatch(title) or len(title.encode()) > LONGEST:
            raise InputError(
                f"method: {title!r} cannot be the name of a folder; give the method a label of letters, digits and "
                f"any of _ = + - ., that does not begin with a dot and has at most {LONGEST} bytes"
            )
