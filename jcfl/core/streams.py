"""Every random stream of a run, named in one table.

A run draws everything from one key, the seed's. A stream is the key of one purpose. It is made from the key of its
parent by `jax.random.fold_in`, first with the stream's number, then with each index that the stream is folded by. A
stream without a number is folded by its index alone. Streams of one parent never meet: their numbers differ, and a
number beside such an index is at least `RESERVED`, which no round, client or step reaches.

The tree of streams, with what each is folded by:

    seed                          jax.random.key(config.seed)
    ├── MODEL                     the initial model; this key itself draws ω₀
    │   └── START[cluster]        one initial model per cluster, if a method needs distinct ones
    ├── PILOT                     how clients' data are divided where options are `auto`
    ├── VOTE[copy]                the seed of one of the runs that vote beside a method
    └── RUN                       `State.key`
        ├── ROUND[round]          one round
        │   ├── PICK              which clients are sampled
        │   ├── GROUP             the grouping rule, before and after training
        │   ├── TRAIN             local training
        │   │   ├── ATTACK[client]    what an attacker draws
        │   │   ├── FORGED            forged updates of ω; ATTACK lies below it as below TRAIN
        │   │   └── CLIENT[client]
        │   │       ├── STEP[step]    what the model draws in one step, such as dropout
        │   │       ├── SHARE         which of the client's examples it trains on, if not on all
        │   │       └── ORDER[epoch]  the order of the client's examples in one pass over them
        │   ├── FAILURE           unreliable clients
        │   │   ├── LOST[client]      whether the client's round is lost
        │   │   └── SLOW[client]      whether the client is slow, and how slow
        │   ├── NOISE             what covers the updates of a round
        │   │   ├── SUMS              the noise on the clusters' sums
        │   │   ├── SHARED            the noise on the sum of ω
        │   │   └── UPLOAD[client]    the noise on a model that the client is grouped by
        │   └── CORRECTION        which clients send a gradient before the others train (FedDANE)
        ├── WINDOWS               when clients' windows of availability begin
        ├── ANCHOR                StoCFL's anchor; this key itself draws the anchor's model
        │   ├── HALVES[client]    how a client's examples are divided for the noise-corrected similarity; with anchor
        │   │                     steps STEP and SHARE lie below it as below CLIENT
        │   └── DESCRIPTION[client]   the noise on the description that a client sends once
        ├── ONESHOT               clustering before the first round
        │   ├── SOLO              local training of everybody; its CLIENT streams are as those of TRAIN
        │   └── FIT               the clustering itself
        ├── WARMUP                clustering at the end of the warm-up
        ├── TUNE[round, client]   fine-tuning at an evaluation; STEP, SHARE and ORDER lie below it as below CLIENT
        ├── OWN[round, client]    local training that an evaluation measures; its streams are as those of TUNE
        ├── DRAW[round, client]   mini-batches of which an evaluation measures the gradients
        └── BUCKETS[round]        which clients are in the buckets of the bootstrap median of means
"""

from enum import Enum
from typing import Any, NamedTuple

import jax

from jcfl.types import Key

RESERVED = 2**31 - 64
"""From here on numbers name streams; a round, a client, a cluster, a step or an epoch has a lower one."""


class Place(NamedTuple):
    """Where a stream stands in the tree."""

    parent: str  # the name of the stream, or the seed, whose key is folded
    number: int | None  # what it is folded with first; nothing where the index stands for itself
    folds: tuple[str, ...] = ()  # the indices that it is folded with then


class Stream(Enum):
    """The random streams of a run."""

    MODEL = Place("seed", 0)
    RUN = Place("seed", 1)
    PILOT = Place("seed", 2**31 - 19)
    VOTE = Place("seed", 2**31 - 6, ("copy",))
    START = Place("MODEL", None, ("cluster",))
    ROUND = Place("RUN", None, ("round",))
    ANCHOR = Place("RUN", 2**31 - 2)
    ONESHOT = Place("RUN", 2**31 - 3)
    WARMUP = Place("RUN", 2**31 - 4)
    TUNE = Place("RUN", 2**31 - 5, ("round", "client"))
    OWN = Place("RUN", 2**31 - 9, ("round", "client"))
    DRAW = Place("RUN", 2**31 - 10, ("round", "client"))
    BUCKETS = Place("RUN", 2**31 - 11, ("round",))
    PICK = Place("ROUND", 0)
    GROUP = Place("ROUND", 1)
    TRAIN = Place("ROUND", 2)
    FAILURE = Place("ROUND", 3)
    NOISE = Place("ROUND", 4)
    CORRECTION = Place("ROUND", 5)
    LOST = Place("FAILURE", 0, ("client",))
    SLOW = Place("FAILURE", 1, ("client",))
    WINDOWS = Place("RUN", 2**31 - 8)
    ATTACK = Place("TRAIN", 2**31 - 7, ("client",))
    FORGED = Place("TRAIN", 2**31 - 20)
    CLIENT = Place("TRAIN", None, ("client",))
    STEP = Place("CLIENT", None, ("step",))
    SHARE = Place("CLIENT", 2**31 - 12)
    ORDER = Place("CLIENT", 2**31 - 1, ("epoch",))
    HALVES = Place("ANCHOR", None, ("client",))
    DESCRIPTION = Place("ANCHOR", 2**31 - 9, ("client",))
    SUMS = Place("NOISE", 0)
    SHARED = Place("NOISE", 1)
    UPLOAD = Place("NOISE", 2, ("client",))
    SOLO = Place("ONESHOT", 0)
    FIT = Place("ONESHOT", 1)


def stream(key: Key, name: Stream, *index: Any) -> Key:
    """The key of a stream.

    Args:
        key: the key of the stream's parent.
        name: which stream.
        index: what the stream is folded by, in the order of the table; integers or traced scalars.

    Raises:
        TypeError: the number of indices is not the table's.

    >>> key = jax.random.key(0)
    >>> run = stream(key, Stream.RUN)
    >>> bool(stream(run, Stream.ROUND, 3) == jax.random.fold_in(run, 3))
    True
    """
    place = name.value
    if len(index) != len(place.folds):
        raise TypeError(f"stream {name.name} is folded by {', '.join(place.folds) or 'nothing'}, got {index}")
    for fold in (*(() if place.number is None else (place.number,)), *index):
        key = jax.random.fold_in(key, fold)
    return key


class RoundKeys(NamedTuple):
    """The keys of one round."""

    pick: Key  # the cohort
    group: Key  # grouping, before and after training
    train: Key  # local training, folded by client
    fail: Key  # unreliable clients
    noise: Key  # what covers updates
    correction: Key  # the clients that send a gradient first


def round_keys(run: Key, round: Any) -> RoundKeys:
    """The keys of a round, from the key of the stream RUN."""
    key = stream(run, Stream.ROUND, round)
    parts = (Stream.PICK, Stream.GROUP, Stream.TRAIN, Stream.FAILURE, Stream.NOISE, Stream.CORRECTION)
    return RoundKeys(*(stream(key, name) for name in parts))
