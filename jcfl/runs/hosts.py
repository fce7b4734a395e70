"""The hosts of one run: they meet, agree before they train, and end together, each with one line that says why."""

import atexit
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed  # only here JAX gives access to the key-value store that its hosts share

from jcfl.errors import InputError, Interrupted, TrainingError, as_argument, onward
from jcfl.nested import plain
from jcfl.results.folder import Folder
from jcfl.runs.stderr import screened

HEARTBEAT = 10
"""After so many seconds without a sign of life a host counts as dead, and the others stop."""

ARRIVAL = 300
"""So many seconds hosts wait for the others to start."""

PATIENCE = 1800
"""So many seconds hosts wait for each other, for instance while one of them reads its data more slowly."""

LINGER = 5
"""So many seconds the first host, which keeps the store, stays for the others after it has failed."""

Say = Callable[[str, int], Any]
"""What prints a line about the end with an exit status."""

_meetings = itertools.count()
_end = threading.Lock()  # held by the thread that says why this process ends; it is never given back


class Differing(InputError):
    """What the hosts were given is not the same."""


def several() -> bool:
    """Whether this is a run of several hosts; uses no device, because JAX waits for all hosts before it has any."""
    return jax.distributed.is_initialized() and distributed.global_state.num_processes > 1


def is_first() -> bool:
    """Whether this host writes and reports; of one host it is true."""
    return not several() or distributed.global_state.process_id == 0


def client() -> Any:
    """The access of this host to the key-value store that the first host keeps."""
    return distributed.global_state.client


def agree(facts: Mapping[str, Any]) -> None:
    """Wait until every host has called this function, and refuse to go on where they differ.

    Args:
        facts: what has to be the same on all hosts, by name, in values that JSON has.

    Raises:
        Differing: the hosts have other facts; every host raises it. Or a host did not come.
    """
    state, store, meeting = distributed.global_state, client(), f"jcfl/meeting/{next(_meetings)}"
    store.key_value_set(f"{meeting}/{state.process_id}", json.dumps(plain(facts)))
    told = []
    for host in range(state.num_processes):
        try:
            told.append(json.loads(store.blocking_key_value_get(f"{meeting}/{host}", PATIENCE * 1000)))
        except jax.errors.JaxRuntimeError:
            raise InputError(f"host {host} did not come to compare its configuration within {PATIENCE} s") from None
    found = differences(told)
    if found:
        raise Differing(f"hosts differ: {'; '.join(found)}")


def differences(told: list[dict[str, Any]]) -> list[str]:
    """What hosts have different values for, in words: each time the first host and the first that differs from it.

    >>> differences([{"train.lr": 0.1, "rounds": 5}, {"train.lr": 0.2, "rounds": 5}])
    ['train.lr is 0.1 on host 0 and 0.2 on host 1']
    """
    found = []
    for name in dict.fromkeys(itertools.chain(*told)):
        values = [facts.get(name, "not given") for facts in told]
        other = next((host for host, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            found.append(f"{name} is {values[0]} on host 0 and {values[other]} on host {other}")
    return found


@contextmanager
def together(coordinator: str | None, hosts: int | None, host: int | None, folder: Path, say: Say) -> Iterator[None]:
    """Be one of several hosts while the body runs. A host that fails ends the others, with its reason.

    Where a host fails alone or is lost, this process ends even in the midst of a computation. The first two arguments
    and `host` come from the cluster's scheduler where they are None.

    Args:
        coordinator: HOST:PORT, where the first host listens.
        hosts: how many there are.
        host: which of them this is, from 0.
        folder: the run's, in which it can be resumed.
        say: prints a line about the end with an exit status.

    Raises:
        InputError: an argument is wrong, or the hosts cannot be connected.
    """
    refuse(coordinator, hosts, host)
    joined, over, alone = threading.Event(), threading.Event(), False

    def lost(text: str) -> None:
        # It ends without `leave`: the thread that aborts holds a lock of the store.
        end(say, *((loss(text, folder), 1) if joined.is_set() else (absence(coordinator), 2)), os._exit)

    with screened("JAX distributed service", lost):
        join(coordinator, hosts, host)
        joined.set()
        watcher = threading.Thread(target=watch, args=(client(), say, over), daemon=True)
        watcher.start()
        try:
            yield
        except BaseException as error:
            alone = not agreed(error)
            if alone:
                fail(error)
            raise
        finally:
            if not alone:
                over.set()
                watcher.join()  # Python's end would abort a thread that is inside a compiled function
                jax.distributed.shutdown()


def refuse(coordinator: str | None, hosts: int | None, host: int | None) -> None:
    """Refuse a meeting that cannot be."""
    address = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address is not None:
        named = re.fullmatch(r"(?:\[.+\]|[^:]+):([0-9]{1,5})", address)
        if named is None or not 0 < int(named[1]) < 2**16:
            raise InputError(
                f"--coordinator: expected HOST:PORT with a port from 1 to 65535, such as host0:1234, got {address!r}"
            )
        if host == 0:
            try:
                # Where JAX cannot listen, it may end by a segmentation fault.
                socket.create_server(("", int(named[1]))).close()
            except OSError as error:
                raise InputError(f"--coordinator: this host cannot listen at {address}: {error.strerror}") from None
    if hosts is not None and host is not None and host >= hosts:
        raise InputError(f"--host: of {hosts} hosts the last is --host {hosts - 1}, got {host}")


def join(coordinator: str | None, hosts: int | None, host: int | None) -> None:
    """Connect the hosts. Arguments that are None come from the cluster's scheduler.

    Raises:
        InputError: JAX cannot connect them.
    """
    try:
        jax.distributed.initialize(
            coordinator, hosts, host, initialization_timeout=ARRIVAL, heartbeat_timeout_seconds=HEARTBEAT
        )
    except RuntimeError as error:
        raise InputError(f"--distributed: {next(iter(str(error).splitlines()), error)}") from None
    except ValueError as error:
        raise InputError(
            f"--distributed: {error} Give --coordinator, --hosts and --host where no scheduler starts the hosts"
        ) from None


def watch(store: Any, say: Say, over: threading.Event) -> None:
    """End this process as soon as another host says that it has failed."""
    own = str(distributed.global_state.process_id)
    with suppress(jax.errors.JaxRuntimeError):  # a host is lost, which is noticed elsewhere
        while not over.wait(0.2):
            for key, text in store.key_value_dir_get("jcfl/failed"):
                host, told = key.rpartition("/")[2], json.loads(text)
                if host != own:
                    end(say, f"host {host} has failed: {told['reason']}", told["status"], leave)


def agreed(error: BaseException) -> bool:
    """Whether all hosts end by an error, each by itself and at the same place, so that none has to tell the others."""
    return isinstance(error, Differing | TrainingError) or isinstance(error.__cause__, Interrupted)


def fail(error: BaseException) -> None:
    """Tell the other hosts that this one has failed, and see to it that this process can end without them."""
    status = getattr(error, "status", 130 if isinstance(error, KeyboardInterrupt) else 1)
    if several() and isinstance(error, Exception) and not hasattr(error, "status"):
        # Where a host is lost, a collective fails at once, while its name is known when its heartbeat has failed to
        # come. By then this process has been ended with a line that says so.
        time.sleep(2 * HEARTBEAT)
    _end.acquire()
    state, reason = distributed.global_state, str(error) or type(error).__name__
    with suppress(jax.errors.JaxRuntimeError):
        client().key_value_set(f"jcfl/failed/{state.process_id}", json.dumps({"reason": reason, "status": status}))
    atexit.register(leave, status)


def end(say: Say, message: str, status: int, leave: Callable[[int], Any]) -> None:
    """End this process with a line, from any thread, unless another thread already does so."""
    if _end.acquire(blocking=False):
        say(message, status)
        leave(status)


def leave(status: int) -> None:
    """End this process without JAX's farewell, which waits for all hosts; the first host lets the others go first."""
    sys.stdout.flush()
    state, store = distributed.global_state, client()
    with suppress(jax.errors.JaxRuntimeError):
        store.key_value_set(f"jcfl/left/{state.process_id}", "")
        deadline = time.monotonic() + (LINGER if state.process_id == 0 else 0)
        while time.monotonic() < deadline and len(store.key_value_dir_get("jcfl/left")) < state.num_processes:
            time.sleep(0.05)
    os._exit(status)


def loss(text: str, folder: Path) -> str:
    """That a host was lost, from what JAX writes about it."""
    named = re.findall(r"^(?:/job:.*/task:)?(\d+)$", text, re.MULTILINE)
    keeper = "another host" if is_first() else "host 0"  # who keeps the store is not named
    who = " and ".join(f"host {name}" for name in sorted(set(named))) or keeper
    name, saves = "config.yaml", True
    if not (folder / name).is_file():
        return f"{who} was lost"
    with suppress(OSError, InputError):  # the hosts' file system may be lost too
        saves = Folder(folder).yaml(name).get("checkpoint_every") != "never"
    return f"{who} was lost; {onward(saves)}, on all hosts, with: jcfl run --distributed --resume {as_argument(folder)}"


def absence(coordinator: str | None) -> str:
    """That not all hosts came."""
    return f"--distributed: not all hosts came to {coordinator or 'the first host'} within {ARRIVAL} s"
