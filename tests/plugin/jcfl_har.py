"""A package of a user's own: PACFL and FedPer, a score, a dataset, a scenario and a model for jcfl."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from flax import linen as nn
from pydantic import Field

from jcfl import models
from jcfl.core.method import Method, Train
from jcfl.data import Dataset, Examples
from jcfl.data.partition import Count, Partition, pool, random_owners
from jcfl.grouping.compare import PrincipalAngles
from jcfl.grouping.describe import Subspace
from jcfl.grouping.groups import Linkage
from jcfl.grouping.when import Once
from jcfl.methods.fedavg import fedavg
from jcfl.metrics import Evaluation, register_score
from jcfl.registry import register
from jcfl.types import Task


@register("method", "pacfl")
def pacfl(
    *,
    p: Annotated[int, Field(ge=1, description="singular vectors of a client")] = 3,
    clusters: Annotated[int | None, Field(ge=1, description="number of clusters, or")] = None,
    beta: Annotated[float | None, Field(ge=0, description="degrees at which merging stops")] = None,
) -> Method:
    """Clients clustered once by principal angles between subspaces of their data (Vahidian et al. 2023)."""
    group = Linkage(clusters=clusters, threshold=beta)
    return Method(name="pacfl", describe=Subspace(p=p), compare=PrincipalAngles(), group=group, when=Once())


@register("method", "fedper")
def fedper() -> Method:
    """FedAvg for the body of the network and a private head for every client (Arivazhagan et al. 2019)."""
    return replace(fedavg(), name="fedper", train=Train(private=("head",)))


@register_score("accuracy_p10", title="accuracy, worst decile", unit="%", better="higher")
def worst_decile(clients: Evaluation) -> float:
    """The accuracy that nine clients in ten exceed."""
    return float(np.nanpercentile(clients.accuracy, 10))


@register("data", "har")
def har(data_dir: Path, *, size: Annotated[int, Field(ge=10, description="examples")] = 600) -> Dataset:
    """A made-up accelerometer set with 9 features and 6 activities."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, size).astype(np.int32)
    x = (2 * rng.standard_normal((6, 9))[y] + rng.standard_normal((size, 9))).astype(np.float32)
    train = size * 4 // 5
    return Dataset("har", Examples(x[:train], y[:train]), Examples(x[train:], y[train:]), classes=6)


@register("scenario", "placements")
def placements(rng: np.random.Generator, dataset: Dataset, *, clients: Count = 6, places: Count = 2) -> Partition:
    """Random equal shares; every placement of the sensor mixes the features in a way of its own."""
    whole, groups = pool(dataset), np.arange(clients) % places
    owner = random_owners(rng, whole.part, whole.trains, np.ones((1, clients)))
    turns = np.stack([np.linalg.qr(rng.standard_normal((whole.x.shape[1],) * 2))[0] for _ in range(places)])
    x = np.einsum("nd,nde->ne", whole.x, turns[groups[owner]]).astype(np.float32)
    return Partition(x, whole.y, whole.trains, owner, groups)


@register("model", "narrow")
def narrow(shape: Sequence[int], classes: int, *, width: Annotated[int, Field(ge=1, description="units")] = 4) -> Task:
    """One hidden layer of a few units."""
    return models.task(nn.Sequential([nn.Dense(width), nn.relu, nn.Dense(classes)]), shape, classes, name="narrow")
