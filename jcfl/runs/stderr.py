"""A filter for what compiled code writes to standard error: an abort with a known cause ends in a line of our own."""

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET = 1.0
"""Messages of compiled code are passed on when so many seconds have passed without another one."""


@contextmanager
def screened(sign: str, found: Callable[[str], None]) -> Iterator[None]:
    """Hold back what compiled code writes to standard error until it is clear that it is not about to abort.

    Where another host is lost, XLA writes pages of text and ends the process by abort(), and it takes no function of
    Python's to call instead. So its text goes through a pipe to a thread, which does not print it if `sign` is in it.
    To give that thread time, a thread that aborts first sleeps: the handler of SIGABRT is C's `sleep`, which takes the
    signal's number, 6, for seconds. Python's own messages are not held back. On Windows nothing is: it cannot wait for
    a pipe.

    Args:
        sign: a part of the text that comes before the abort in question.
        found: gets the whole text, in a thread of its own, and is to end the process.
    """
    if os.name != "posix":
        yield
        return
    library = ctypes.CDLL(None)
    library.signal(signal.SIGABRT, library.sleep)
    sys.stderr.flush()
    own, python = os.dup(2), sys.stderr
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(own, "w", buffering=1, encoding=python.encoding, errors=python.errors, closefd=False)
    pump = threading.Thread(target=pumped, args=(reading, own, sign.encode(), found), daemon=True)
    pump.start()
    try:
        yield
    finally:
        os.dup2(own, 2)  # the pipe has no writer any more, and the thread ends
        pump.join(QUIET)
        sys.stderr = python


def pumped(reading: int, own: int, sign: bytes, found: Callable[[str], None]) -> None:
    """Pass on what comes from a pipe, except what has the sign in it."""
    held = b""
    while True:
        quiet = not select.select([reading], [], [], QUIET if held else None)[0]
        new = b"" if quiet else os.read(reading, 2**16)
        held += new
        if sign in held:
            found(held.decode(errors="replace"))
            return
        if not new:
            os.write(own, held)
            held = b""
            if not quiet:
                return
