"""Datasets, and how they are shared out among clients."""

from jcfl.data.arrays import from_arrays
from jcfl.data.clients import from_clients
from jcfl.data.dataset import Dataset, Examples
from jcfl.data.federation import federation, place
from jcfl.data.mapped import mapped, write_gaussian
from jcfl.data.sources import load
from jcfl.data.summary import describe, label_counts, summary

__all__ = [
    "Dataset",
    "Examples",
    "describe",
    "federation",
    "from_arrays",
    "from_clients",
    "label_counts",
    "load",
    "mapped",
    "place",
    "summary",
    "write_gaussian",
]
