"""What determines a run's results: its configuration, federation, versions and device; and how two runs differ."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jcfl.errors import InputError
from jcfl.nested import flat, plain
from jcfl.runs.config import FILLED_IN, Config, read
from jcfl.runs.environment import SETTINGS, of_jax, versions
from jcfl.runs.sections import FITTED
from jcfl.types import Federation

LOOSE = (
    "rounds",
    "data_dir",
    "track",
    "checkpoint_every",
    "devices",
    *FITTED,
    "autotune",
    *FILLED_IN,
)
"""The keys of a configuration that do not change a run's results."""

Provenance = Mapping[str, Any]
"""`config`, with `made_by`; `whole`, the configuration of the comparison that the run is a part of, or None; and a
fingerprint of the `federation`. All in values that JSON has."""


def provenance(config: Config, whole: Config | None, fingerprint: str) -> dict[str, Any]:
    """What determines a run's results.

    Args:
        config: as it was planned, with `made_by` filled in.
        whole: the configuration of the comparison that the run is a part of.
        fingerprint: that of its federation.
    """
    return in_json({"config": config.model_dump(), "whole": whole and whole.model_dump(), "federation": fingerprint})


def in_json(value: Any) -> Any:
    """A value as it is after it was written as JSON and read again."""
    return json.loads(json.dumps(plain(value)))


def completed(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stored configuration; the options that an older jcfl did not have are at their defaults."""
    try:
        return in_json(read(stored).model_dump())
    except InputError:  # it has an option that is no longer known; the comparison with another one names it
        return stored


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that determines the results, under dotted names."""
    return flat({key: value for key, value in config.items() if key not in LOOSE})


def common(config: Config) -> dict[str, Any]:
    """What has to be the same on all hosts before the federation is made: configuration, versions, settings of JAX."""
    settings = {key: value for key, value in config.flat().items() if key != "data_dir"}
    return settings | {f"the version of {name}": number for name, number in versions().items()} | of_jax()


def fingerprint(federation: Federation) -> str:
    """The SHA-256 of all that clients hold, and of who holds what."""
    sha = hashlib.sha256()
    whole = jax.device_get(federation.replace(x=np.asarray(federation.x)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(whole):
        array = np.ascontiguousarray(leaf)
        sha.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What two flat mappings have different values for, in words."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name} was {old.get(name, 'not given')}, got {new.get(name, 'nothing')}" for name in names]


def refuse_other(what: str, old: Provenance, new: Provenance, allow_versions: bool) -> None:
    """Refuse to go on with what something else has made.

    Args:
        what: the name of the folder in messages.
        old: what made it.
        new: what would go on with it.
        allow_versions: whether other versions of packages may go on; Python's own may always.

    Raises:
        InputError: the configuration, the federation, a setting of JAX or a version differs.
    """
    changed = differences(settings(completed(old["config"])), settings(new["config"]))
    if changed:
        raise InputError(f"{what} was made by another configuration: {'; '.join(changed)} (rounds may change)")
    others = differences(jax_settings(old), jax_settings(new))
    if others:
        raise InputError(
            f"{what} was made with other settings of JAX: {'; '.join(others)}; they change random numbers or rounding, "
            "so set them as they were"
        )
    versions = differences(packages(old), packages(new))
    refuse_other_federation(what, old["federation"], new["federation"], versions)
    if versions and not allow_versions:
        raise InputError(
            f"{what} was made by other versions: {'; '.join(versions)}; install those, or continue with "
            "--allow-versions, which config.yaml notes"
        )


def refuse_other_federation(what: str, old: str, new: str, versions: Sequence[str] = ()) -> None:
    """Refuse to go on with another federation than that of a fingerprint, or of its first characters.

    Args:
        versions: the versions of packages that differ, in words, one of which may have drawn the clients otherwise.
    """
    if not new.startswith(old):
        cause = "have the files of the dataset, or the source of jcfl, changed?"
        if versions:
            cause = f"have its files changed, or was it drawn otherwise by other versions: {'; '.join(versions)}?"
        raise InputError(
            f"{what} was made with another federation: the same configuration gave the clients other examples; {cause}"
        )


def jax_settings(made: Provenance) -> dict[str, Any]:
    """The settings of JAX on which results may depend; only those that are not at their defaults are stored."""
    return {**SETTINGS, **made["config"].get("made_by", {}).get("settings", {})}


def packages(made: Provenance) -> dict[str, str]:
    """The versions of the packages on which results may depend."""
    versions = made["config"].get("made_by", {}).get("versions", {})
    return {name: number for name, number in versions.items() if name != "python"}
