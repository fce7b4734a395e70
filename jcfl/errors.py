"""The user's mistakes, told apart from ours."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A mistake in what the user gave: one line that says what, what was expected, and the nearest valid choice."""


class TrainingError(RuntimeError):
    """Training cannot go on: a model stopped being finite, or a limit of the run was passed."""


def unknown(what: str, got: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not one of `known`, with the nearest one offered.

    >>> str(unknown("method", "stocfll", ["ifca", "stocfl"]))
    "unknown method 'stocfll'; did you mean 'stocfl'? Known: ifca, stocfl"
    """
    known = sorted(set(known))
    near = difflib.get_close_matches(str(got), known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return InputError(f"unknown {what} {str(got)!r}{hint} Known: {', '.join(known)}")
