"""The named methods, each a value of seven answers; importing this package registers them and the add-ons.

A method's keywords are its options. `jcfl.core.compile.compile` makes functions of its value.
"""

from jcfl.core import trainings as trainings
from jcfl.methods import addons as addons

# isort: off
# Lists show methods in the order in which they are registered: first the baselines, then those that group clients.
from jcfl.methods.fedavg import (
    ditto,
    fedadam,
    fedavg,
    fedavg_plus,
    feddane,
    feddist,
    feddws,
    fedprox,
    fedprox_plus,
    fedsgd,
    local,
    majority,
    scaffold,
)
from jcfl.methods.ifca import fedem, fedrc, ifca
from jcfl.methods.fesem import fesem, fesem_ma, oneshot_kmeans, robust_tkm, wecfl
from jcfl.methods.cfl import cfl, flhc
from jcfl.methods.stocfl import stocfl
from jcfl.methods.clustered import clustered
# isort: on

__all__ = [
    "cfl",
    "clustered",
    "ditto",
    "fedadam",
    "fedavg",
    "fedavg_plus",
    "feddane",
    "feddist",
    "feddws",
    "fedem",
    "fedprox",
    "fedprox_plus",
    "fedrc",
    "fedsgd",
    "fesem",
    "fesem_ma",
    "flhc",
    "ifca",
    "local",
    "majority",
    "oneshot_kmeans",
    "robust_tkm",
    "scaffold",
    "stocfl",
    "wecfl",
]
