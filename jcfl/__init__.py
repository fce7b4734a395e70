"""jcfl: clustered federated learning at scale, in JAX."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from jcfl import registry as registry
from jcfl.errors import InputError as InputError
from jcfl.errors import TrainingError as TrainingError
from jcfl.registry import register as register
from jcfl.version import __version__ as __version__

if TYPE_CHECKING:
    from jcfl import data as data
    from jcfl import results as results
    from jcfl.results import History as History
    from jcfl.runs.choice import choose_k as choose_k
    from jcfl.runs.devices import use_cores as use_cores
    from jcfl.runs.environment import use_cache as use_cache
    from jcfl.runs.experiment import federation as federation
    from jcfl.runs.experiment import run as run
    from jcfl.runs.searching import tune as tune
    from jcfl.runs.sweeping import sweep as sweep
    from jcfl.view import plotting as plotting
    from jcfl.view.comparing.compared import compare as compare
    from jcfl.view.plotting.explaining import explain as explain

_HOMES = {
    "History": "jcfl.results",
    "choose_k": "jcfl.runs.choice",
    "compare": "jcfl.view.comparing.compared",
    "explain": "jcfl.view.plotting.explaining",
    "federation": "jcfl.runs.experiment",
    "run": "jcfl.runs.experiment",
    "sweep": "jcfl.runs.sweeping",
    "tune": "jcfl.runs.searching",
    "use_cache": "jcfl.runs.environment",
    "use_cores": "jcfl.runs.devices",
}

__all__ = [
    "History",
    "InputError",
    "TrainingError",
    "choose_k",
    "compare",
    "data",
    "explain",
    "federation",
    "plotting",
    "register",
    "results",
    "run",
    "sweep",
    "tune",
    "use_cache",
    "use_cores",
]

registry.provide(lambda: importlib.import_module("jcfl.runs.pieces"))


def __getattr__(name: str) -> Any:
    """Import a module or a function at its first use: `jcfl --version` should not wait for JAX."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "plotting":
        return importlib.import_module("jcfl.view.plotting")
    if not name.startswith("_") and importlib.util.find_spec(f"jcfl.{name}") is not None:  # `jcfl.models`
        return importlib.import_module(f"jcfl.{name}")
    raise AttributeError(f"module 'jcfl' has no attribute {name!r}; it has {', '.join(sorted(__all__))}")


def __dir__() -> list[str]:
    """All public names, imported or not: shells and notebooks complete them."""
    return sorted({*globals(), *__all__})
