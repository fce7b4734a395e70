"""A watchdog: it says where a run stands when a step gives no answer for long."""

import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from jcfl.errors import Notice

PATIENCE = 300.0
"""Seconds without an answer before the first warning."""

TIMES = 20
"""A step is also given this many times the seconds of the longest step before it."""


class Watchdog:
    """Warns while a step of a run takes far longer than every step before it.

    A program that waits for ever, for a lock or a lost device, raises no error. The run goes on waiting, because the
    step may only be slow; the warning says which step it is and what can be done.
    """

    def __init__(self, name: str, patience: float = PATIENCE):
        self.name, self.patience, self.longest = name, patience, 0.0

    @contextmanager
    def watching(self, step: str) -> Iterator[None]:
        """Warn if the body takes too long, and again whenever the wait has doubled."""
        begin, done = time.perf_counter(), threading.Event()
        limit = max(self.patience, TIMES * self.longest)
        threading.Thread(target=self._wait, args=(step, done, limit), daemon=True).start()
        try:
            yield
        finally:
            done.set()
            self.longest = max(self.longest, time.perf_counter() - begin)

    def _wait(self, step: str, done: threading.Event, limit: float) -> None:
        waited = 0.0
        while not done.wait(limit - waited):
            waited, limit = limit, 2 * limit
            warnings.warn(
                f"{self.name}: no answer for {waited:.0f} s from {step}; the longest step before it took "
                f"{self.longest:.0f} s. The run goes on waiting. `py-spy dump --pid {os.getpid()}` shows where it is; "
                "if you end it, --resume goes on from the last checkpoint",
                Notice,
                stacklevel=2,
            )
