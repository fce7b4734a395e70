"""jcfl: clustered federated learning at scale, in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jcfl import data as data
    from jcfl.errors import InputError as InputError
    from jcfl.errors import TrainingError as TrainingError
    from jcfl.experiment import run as run
    from jcfl.registry import register as register
    from jcfl.results import History as History
    from jcfl.sweeping import sweep as sweep

__version__ = "0.1.0"

_HOMES = {
    "History": "jcfl.results",
    "InputError": "jcfl.errors",
    "TrainingError": "jcfl.errors",
    "register": "jcfl.registry",
    "run": "jcfl.experiment",
    "sweep": "jcfl.sweeping",
}

__all__ = ["History", "InputError", "TrainingError", "data", "register", "run", "sweep"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: `jcfl --version` should not wait for JAX."""
    if name == "data":
        return importlib.import_module("jcfl.data")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'jcfl' has no attribute {name!r}")
