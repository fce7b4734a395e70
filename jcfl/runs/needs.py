"""What a run needs before it begins: bytes on the device and on the host, and steps of local training."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from rich.filesize import decimal

from jcfl.core.context import Context
from jcfl.core.memory import free_memory
from jcfl.errors import available_memory, refuse_beyond_memory
from jcfl.results.checkpoints import KEPT
from jcfl.runs.cohorts import client_rounds
from jcfl.runs.config import Config
from jcfl.runs.devices import bytes_of, over_hosts
from jcfl.types import Federation
from jcfl.types.host import OnHost, whole_map
from jcfl.types.target import target

RECORD, CLIENT = 4096, 16
"""Bytes on the host that one evaluation of one seed takes: its scores; and for every client a label and an accuracy,
once in the record and once in the history."""

LINE, KEPT_CLIENT = 400, 8
"""Bytes of a checkpoint that one evaluation of one seed takes: about so many for its scores as text; and for every
client a label and an accuracy."""

ALIGNED = 64
"""XLA's CPU backend takes a NumPy array without a copy if its address is a multiple of this."""

OUTSIDE = {"device": "in a mapped file", "host": "on the host"}
"""Where examples are that take no memory of the device, by the place where programs find them."""


class Needs(NamedTuple):
    """What a run needs, all of its methods and seeds together where they are held together."""

    federation: int  # bytes of the clients' examples on the device, and of who owns them
    outside: int  # bytes of the clients' examples that stay on the host, or in a mapped file that a CPU reads
    place: Literal["device", "host"]  # where programs find the examples
    states: int  # bytes of the models and memories of the seeds that run side by side, of the largest method
    predictions: int  # bytes of the predictions of all test examples at an evaluation
    rows: int  # bytes of the clients' states that stay on the host, of the largest method
    history: int  # bytes on the host of all evaluations of the largest method
    checkpoint: int  # bytes of the largest checkpoint, if the run is written
    checkpoints: int  # bytes of one checkpoint of every method and seed; 0 if none are written
    evaluations: int  # of every seed
    local_steps: int  # steps of local training in all rounds, clients, seeds and methods; 0 where nothing is trained

    def text(self) -> str:
        """The needs in one line."""
        parts = {
            "federation": self.federation,
            "states": self.states,
            "predictions": self.predictions,
            "history": self.history,
        }
        parts |= {f"examples {OUTSIDE[self.place]}": self.outside} if self.outside else {}
        parts |= {"clients' states on the host": self.rows} if self.rows else {}
        sizes = ", ".join(f"{name} {decimal(size)}" for name, size in parts.items())
        disk = f"up to {decimal(KEPT * self.checkpoints)} of disk for checkpoints"
        return f"needs: {sizes} of memory; {disk}; {self.evaluations:,} evaluations, {self.local_steps:,} local steps"


class StateBytes(NamedTuple):
    """The bytes of one seed's state."""

    whole: int  # of all devices together, each number once
    rows: int  # of its clients' states on the host
    device: int  # in the memory of one device


def needs(
    config: Config, federation: Federation, context: Context, sizes: Sequence[StateBytes], steps: Sequence[int | None]
) -> Needs:
    """What a run needs.

    Args:
        config: of the run.
        federation: with NumPy or JAX leaves.
        context: of the run.
        sizes: of each method.
        steps: for each method that trains, the local steps of a client in a round; None: those of the trainer.
    """
    side_by_side = config.seeds if config.seeds_in_one else 1
    states = max(size.device for size in sizes)
    _, usual = context.trainer.rows_and_steps(context.population.width)
    local = sum(own or usual for own in steps)
    predicted = sum(np.size(split.rows) for name, split in federation.splits.items() if name != "train")
    predictions = 4 * federation.classes * predicted * side_by_side
    examples = math.prod(federation.x.shape) * federation.x.dtype.itemsize
    owners = bytes_of(federation.replace(x=()))
    mapped = target().is_cpu and is_shared(federation.x)
    place = config.examples or place_of(
        federation, 0 if mapped else examples, owners + states * side_by_side + predictions
    )
    outside = examples if mapped or place == "host" else 0
    measured = evaluations(config) * (LINE + KEPT_CLIENT * context.population.clients)  # in a seed's checkpoint
    whole = [size.whole + size.rows + measured for size in sizes]
    return Needs(
        federation=owners + examples - outside,
        outside=outside,
        place=place,
        states=states * side_by_side,
        predictions=predictions,
        rows=max(size.rows for size in sizes),
        history=history_bytes(config, context.population.clients),
        checkpoint=max(whole) * side_by_side,
        checkpoints=0 if config.checkpoint_every == "never" else config.seeds * sum(whole),
        evaluations=evaluations(config),
        local_steps=client_rounds(context, federation, config.rounds) * local * config.seeds,
    )


def place_of(federation: Federation, examples: int, others: int) -> Literal["device", "host"]:
    """Where the examples are: on the host if only then all fits the device, or if they are there already.

    Args:
        examples: bytes that the device would hold of them.
        others: bytes that it holds in any case.
    """
    if isinstance(federation.x, jax.Array | OnHost):
        return "host" if isinstance(federation.x, OnHost) else "device"
    room = int(over_hosts(free_memory(), np.min))
    return "host" if others <= room < others + examples else "device"


def is_shared(x: Any) -> bool:
    """Whether a CPU reads examples where they are: in a mapped file, in an order and at an address that XLA takes."""
    return whole_map(x) is not None and x.flags.c_contiguous and x.ctypes.data % ALIGNED == 0


def due(config: Config) -> list[int]:
    """The rounds after which a run is evaluated, ascending; the last round is one of them."""
    return sorted({*regular_turns(config), *last_turns(config), *config.compare_models})


def evaluations(config: Config) -> int:
    """How many rounds are evaluated, counted without a list of them."""
    regular = regular_turns(config)
    return len(regular) + sum(turn not in regular for turn in {*last_turns(config), *config.compare_models})


def last_turns(config: Config) -> range:
    """The rounds at the end that are all evaluated."""
    return range(max(min(config.rounds, 1), config.rounds - config.evaluate_last + 1), config.rounds + 1)


def regular_turns(config: Config) -> range:
    """The evaluated rounds that are multiples of `evaluate_every`."""
    first = 0 if config.evaluate_first or config.rounds == 0 else config.evaluate_every
    return range(first, config.rounds + 1, config.evaluate_every)


def left_out(config: Config, before: int, done: int) -> list[int]:
    """The rounds after which a run needs an evaluation that nobody made, because it was to have more rounds at first.

    Args:
        config: of the run.
        before: the rounds that it was to have when the first `done` of them were trained.
        done: how many have been trained; after the last of these it can still be evaluated.
    """
    then = config.model_copy(update={"rounds": before})
    made = (regular_turns(then), last_turns(then), config.compare_models)
    return [turn for turn in last_turns(config) if turn < done and not any(turn in turns for turns in made)]


def history_bytes(config: Config, clients: int) -> int:
    """Bytes of a method's evaluations on the host."""
    return config.seeds * evaluations(config) * (RECORD + CLIENT * clients)


def refuse_long_history(config: Config, clients: int) -> None:
    """Refuse evaluations that the host cannot hold.

    Raises:
        TooLarge: the line says how much they take.
    """
    count, need = evaluations(config), history_bytes(config, clients)
    room = int(over_hosts(available_memory(), np.min))
    often = math.ceil(need / max(room, 1)) * config.evaluate_every
    advice = f"set evaluate_every to {often} or more" if often <= config.rounds else "use fewer seeds"
    refuse_beyond_memory(f"{count} evaluations of {config.seeds} seeds and {clients} clients", need, advice, room)


def refuse_beyond_device(found: Needs, federation: Federation) -> None:
    """Refuse states and predictions that the device cannot hold beside the federation.

    Raises:
        TooLarge: the line says what takes how much.
    """
    placed = isinstance(federation.x, jax.Array)
    parts = {
        "the federation": 0 if placed else found.federation,
        "states": found.states,
        "predictions": found.predictions,
    }
    largest = max(parts, key=lambda name: parts[name])
    advice = {
        "the federation": "take fewer clients or examples",
        "states": "take a smaller model, fewer clusters or clients, or seeds_in_one=false",
        "predictions": "take fewer test examples or classes",
    }
    shown = ", ".join(f"{name} ({decimal(size)})" for name, size in parts.items())
    refuse_beyond_memory(shown, sum(parts.values()), advice[largest], int(over_hosts(free_memory(), np.min)))
