"""What the methods' options have in common."""

from typing import Annotated, Literal

import jax
from pydantic import Field

from jcfl import engine, trees
from jcfl.errors import InputError
from jcfl.rounds import by_size, equally
from jcfl.setting import Setting

Mu = Annotated[float, Field(ge=0, description="weight of the proximal term to the round's start")]
Lam = Annotated[float, Field(ge=0, description="weight of the proximal term")]
Clusters = Annotated[int, Field(ge=1, description="number of clusters K")]
Averaging = Annotated[Literal["by_size", "equally"], Field(description="how clients count in an average")]
SharedUpdate = Annotated[
    Literal["parallel", "sequential"],
    Field(description="clients start from the same shared model, or each from the previous one's"),
]
Represent = Annotated[Literal["whole", "head"], Field(description="what of a model is compared")]
WEIGHTS = {"by_size": by_size, "equally": equally}


def costs(storage: float = 1, communication: float = 1, computation: float = 1) -> dict[str, float]:
    """Costs of one client-round in units of FedAvg's (T Table 7.6)."""
    return {"storage": storage, "communication": communication, "computation": computation}


def average(costs: dict[str, float], rounds: int) -> dict[str, float]:
    """A client-round's costs averaged over a run whose rounds of warm-up cost as FedAvg's (T Table 7.6).

    What is stored does not shrink: a client needs room for the dearest round. Costs that a method does not name stay
    unnamed, and those that are not among FedAvg's stay as they are.

    Args:
        costs: of a round after warm-up, and `warmup`, the rounds of it.
        rounds: of the whole run.
    """
    warm = min(costs.get("warmup", 0), rounds)
    share = warm / rounds if rounds else 0.0
    mixed = ("communication", "computation")
    found = {name: share + (1 - share) * cost if name in mixed else cost for name, cost in costs.items()}
    return {name: cost for name, cost in found.items() if name != "warmup"}


def in_bytes(costs: dict[str, float], model_bytes: int) -> dict[str, int]:
    """What a client stores and moves in one round, of the costs named (T Table 7.6).

    T counts in FedAvg's units, and FedAvg moves its model down and up: a method that sends K models to a client counts
    as K times that. `download_bytes` are what such a client receives; `communication_bytes` are T's, both ways, and so
    the most that it can come to: a client of IFCA sends one model back, not K.

    >>> in_bytes({"storage": 4, "communication": 4}, model_bytes=100)
    {'storage_bytes': 400, 'download_bytes': 400, 'communication_bytes': 800}

    Args:
        costs: of one client-round, in units of FedAvg's.
        model_bytes: of one model.
    """
    models = (("storage", "storage", 1), ("download", "communication", 1), ("communication", "communication", 2))
    return {f"{name}_bytes": round(costs[cost] * each * model_bytes) for name, cost, each in models if cost in costs}


def enough_clients(method: str, setting: Setting, clusters: int) -> None:
    """Refuse more clusters than clients."""
    eligible = setting.clients - setting.held_out.size
    if clusters > eligible:
        raise InputError(
            f"{method}: clusters must be at most the number of training clients, {eligible}, got {clusters}"
        )


def everybody(method: str, setting: Setting) -> None:
    """Refuse partial participation."""
    if setting.participation < 1:
        raise InputError(
            f"{method} compares all clients' updates in each round: participation must be 1, "
            f"got {setting.participation:g}"
        )


def only(method: str, setting: Setting, *allowed: str) -> None:
    """Refuse add-ons that mean nothing to a method."""
    for name in setting.extras.names:
        if name not in allowed:
            raise InputError(
                f"{method} has no clusters for the add-on {name!r} to work on; it takes {', '.join(allowed) or 'none'}"
            )


def own_average(method: str, setting: Setting) -> None:
    """Refuse a robust average where the method's own way of averaging would be lost, or would not use it."""
    if "robust" in setting.extras.names:
        raise InputError(f"{method} averages in a way of its own, so the add-on 'robust' has nothing to replace")


def storable(method: str, setting: Setting) -> None:
    """Refuse to keep a model per client where that cannot fit."""
    size = trees.parameters(jax.eval_shape(setting.task.init, jax.random.key(0))) * 4
    need, room = setting.clients * size, engine.free_memory() // 4  # a step may hold the old ones and the new
    if need > room:
        raise InputError(
            f"{method} keeps the last model of each of {setting.clients} clients: {need / 2**30:.1f} GiB, and there is "
            f"room for {room / 2**30:.1f} GiB; take fewer clients or a smaller model"
        )
