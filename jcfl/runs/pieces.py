"""The modules that register jcfl's own pieces: importing this module registers them all."""

from jcfl import methods, models
from jcfl.core import local, stopping
from jcfl.data import federation, sources
from jcfl.runs import trackers

PIECES = (sources, federation, models, local, stopping, methods, trackers)
"""Every module whose import registers pieces, or the package that imports such modules."""
