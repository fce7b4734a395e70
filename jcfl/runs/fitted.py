"""What a run chose for its device, and what a device of another kind leaves open again."""

import warnings
from collections.abc import Collection

from jcfl.errors import Notice
from jcfl.runs import devices, hosts
from jcfl.runs.config import Config
from jcfl.runs.sections import FITTED, Fitted
from jcfl.types.target import target

CHOSEN = (*FITTED, "tuned")
"""The keys that a run chooses for its device where the user leaves them open."""

STATES = ("budget", "seeds_in_one")
"""Those of them on which the shapes of states depend. A run that goes on from a checkpoint keeps them."""


def devices_of(config: Config) -> int:
    """How many devices share a run's clients; this starts JAX. A run that is repeated gets a CPU split as it was.

    Raises:
        InputError: there are fewer devices than `config.devices`, or JAX cannot start.
    """
    before = max((one.devices or 1 for one in (config.tuned or {}).values()), default=1)
    if devices.parts_of_cpu() < before > 1 and not hosts.several():
        devices.split_cpu(min(before, devices.MOST))
    return devices.device_count(config.devices)


def reopened(config: Config, kept: Collection[str] = ()) -> Config:
    """The configuration without what a run chose for a device of another kind; a notice names it.

    On a device of the same kind nothing changes, so that a run that is repeated there computes the same bits. What the
    user gave is never left out.

    Args:
        kept: keys that stay as they are.

    Raises:
        InputError: as `devices_of`.
    """
    if config.fitted is None:
        return config
    devices_of(config)
    before, now = config.fitted, target()
    if (before.platform, before.kind) == (now.platform, now.name):
        return config
    chosen = [key for key in CHOSEN if key in before.keys and key not in kept]
    gone = [key for key in chosen if getattr(config, key) is not None]
    if gone:
        told = f"{', '.join(gone)}: chosen for another device ({before.kind}), so chosen anew for this one ({now.name})"
        warnings.warn(told, Notice, stacklevel=2)
    return config.model_copy(update=dict.fromkeys(gone))


def room_of(config: Config) -> int | None:
    """The bytes for what is worked on at a time, if a run's memory has run out on a device of this kind."""
    before, now = config.fitted, target()
    if before is None or (before.platform, before.kind) != (now.platform, now.name):
        return None
    return before.room


def noted(config: Config, given: Config) -> Config:
    """A configuration that a plan has completed, with a note of the keys that were open in `given`."""
    before = given.fitted.keys if given.fitted is not None else ()
    keys = tuple(key for key in CHOSEN if key in before or getattr(given, key) is None)
    now = Fitted(platform=target().platform, kind=target().name, keys=keys, room=room_of(given))
    return config.model_copy(update={"fitted": now})
