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
    given = {folder_of(name) for name in names}
    found: dict[str, str] = {}
    for name in names:
        title, number = name, 1
        while folder_of(title) in found or (number > 1 and folder_of(title) in given):
            number += 1
            title = f"{name}-{number}"
        found[folder_of(title)] = title
    return list(found.values())


def folder_of(name: str) -> str:
    """A text that is the same for all names that some system takes for one folder.

    Windows and macOS do not tell capitals from small letters, and Windows leaves out dots at the end.

    >>> folder_of("FedAvg."), folder_of("fedavg")
    ('fedavg', 'fedavg')
    """
    return name.lower().rstrip(".")


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
