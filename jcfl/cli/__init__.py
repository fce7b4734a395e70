"""The command line: `main` is the console script; each other module has some of the commands."""

import _thread
import errno
import glob
import io
import os
import shlex
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from jcfl.cli import choosing, comparing, measuring, reproducing, training, tuning, verifying, viewing
from jcfl.cli.app import Stopped, app, complain
from jcfl.cli.arguments import as_override
from jcfl.errors import InputError, Notice, TrainingError, commanded

COMMANDS = (training, tuning, viewing, comparing, choosing, reproducing, verifying, measuring)
"""The modules that add commands to the application when they are imported."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: with status 0, with 2 for a user's mistake, with 130 when interrupted, else with 1.

    Characters that the terminal's encoding does not have are printed as question marks.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.exit(status(arguments))


INTERRUPTED = 130
"""The exit status after Ctrl-C, which is also what Typer makes of it."""

PATIENCE = 2.0
"""Seconds that a command has to end after Ctrl-C, before it says what it waits for."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a file that can take no more, such as the one that the output goes to."""


def status(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status; an error that the user can mend is printed in one line.

    Args:
        arguments: the words after `jcfl`; by default those of this process.
    """
    if arguments is None:
        arguments = expanded(sys.argv[1:]) if os.name == "nt" else sys.argv[1:]
    command = typer.main.get_command(app)
    try:
        with commanded(), told(), terminable(), interrupted_at_last(), answered():
            code = command.main(arguments, prog_name="jcfl", standalone_mode=False, obj=["jcfl", *arguments]) or 0
        return complain("interrupted", code) if code == INTERRUPTED else code
    except (InputError, TrainingError, Stopped) as error:
        return complain(str(error), error.status)
    except (KeyboardInterrupt, typer.Abort):
        return complain("interrupted", INTERRUPTED)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return complain(f"what is printed cannot be written: {error.strerror}", 2)
    except typer.TyperException as error:
        message = told_override(error, arguments) or error.format_message()
        return complain(message, 2) if message else 2  # without a message, Typer has printed the help


def expanded(words: Sequence[str]) -> list[str]:
    """The words of a command with the files that match in place of each pattern with `*` or `?`.

    Other shells than those of Windows do this themselves. Brackets stay as they are: values of options have them.
    """
    return [name for word in words for name in sorted(glob.glob(word.replace("[", "[[]"))) or [word]]


def told_override(error: Any, arguments: Sequence[str]) -> str | None:
    """What is wrong with an unknown option that is a key of the configuration, where `--set` could set it."""
    context = getattr(error, "ctx", None)
    takes_set = context is not None and any("--set" in one.opts for one in context.command.params)
    if not takes_set or not hasattr(error, "possibilities"):  # only the error about an unknown option has it
        return None
    found = as_override(error.option_name, arguments)
    return found and f"{error.message}; it is a key of the configuration: --set {shlex.quote(found)}"


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, with a line that says how to go on; runs take both while they train."""
    usual = signal.getsignal(signal.SIGTERM)
    if usual != signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


def interrupt() -> None:
    """Interrupt the main thread. A call that waits, such as `time.sleep`, ends at once, except on Windows."""
    if hasattr(signal, "pthread_kill"):  # Windows has no such function
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextmanager
def interrupted_at_last() -> Iterator[None]:
    """Interrupt again if Ctrl-C came at a moment when Python cannot raise, as while garbage is collected."""
    usual = sys.unraisablehook

    def again(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            return usual(lost)
        before = signal.getsignal(signal.SIGINT)
        taken = threading.Event()

        def handler(number: int, frame: Any) -> None:
            taken.set()
            signal.signal(signal.SIGINT, before)
            if callable(before):
                before(number, frame)
            else:  # Ctrl-C is ignored, as in the background, and SIGTERM came
                raise KeyboardInterrupt

        # A signal that comes just before a call begins to wait does not end the wait, so it is sent until it is taken.
        def insist() -> None:
            while not taken.wait(0.05):
                interrupt()

        signal.signal(signal.SIGINT, handler)
        threading.Thread(target=insist, daemon=True).start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = usual


@contextmanager
def answered() -> Iterator[None]:
    """Answer Ctrl-C or SIGTERM in a line if the command does not end soon, as while XLA compiles.

    Python calls the handler of a signal only after the call into a library, but writes its number to a socket at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, number = socket.socketpair()
    number.setblocking(False)  # which Python requires
    over = threading.Event()

    def listen() -> None:
        while found := heard.recv(1):
            if found[0] in (signal.SIGINT, signal.SIGTERM):
                if not over.wait(PATIENCE):
                    complain("the command ends when its present step has ended, such as a compilation", 0)
                return

    before = signal.set_wakeup_fd(number.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        number.close()  # which ends the listener
        listener.join()
        heard.close()


@contextmanager
def told() -> Iterator[None]:
    """Print what a run has to say in one line each, once, without the line of code that says it."""
    printed: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning
        warnings.simplefilter("always", Notice)

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, Notice):
                usual(message, category, *where, **more)
            elif str(message) not in printed:
                printed.add(str(message))
                complain(str(message), 0)

        warnings.showwarning = show
        yield
