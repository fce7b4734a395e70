"""Methods that divide clients by their updates: CFL step by step, FL+HC once."""

from typing import Annotated, Literal

from pydantic import Field

from jcfl.core.method import Method
from jcfl.errors import InputError
from jcfl.grouping.bipartition import Bipartition
from jcfl.grouping.compare import L1, L2, Cosine
from jcfl.grouping.describe import Update
from jcfl.grouping.groups import Count, Linkage, Threshold
from jcfl.grouping.when import Once, Settled
from jcfl.registry import register


@register("method", "cfl")
def cfl(
    *,
    eps1: Annotated[
        float,
        Field(
            ge=0,
            description="split only if the mean update has a norm below this",
            json_schema_extra={"auto": "settled"},
        ),
    ] = 0.4,
    eps2: Annotated[
        float,
        Field(
            ge=0,
            description="split only if the largest update has a norm above this",
            json_schema_extra={"auto": "apart"},
        ),
    ] = 0.6,
    relative: Annotated[bool, Field(description="eps1, eps2 as fractions of the first round's norms")] = True,
    gamma: Annotated[float, Field(ge=0, le=1, description="gap criterion; 0 is off")] = 0.0,
    min_round: Annotated[int, Field(ge=0, description="no split before this round")] = 0,
    linkage: Annotated[Literal["complete", "single"], Field(description="how a cluster is halved")] = "complete",
    capacity: Annotated[int, Field(ge=1, description="largest number of clusters")] = 16,
) -> Method:
    """One cluster; it is split if its mean update is small but single updates are large (= FedCluster).

    Sattler et al. 2020: ‖mean Δ‖ < ε1 and max ‖Δ_i‖ > ε2, optimal bipartition of the cosines of Δ, gap criterion.

    Deviations:
        Thresholds may be relative to the first round, because absolute values depend on the model. Splits refer to
        client ids. Halves are those of complete linkage on −cos, as in the authors' code; `linkage="single"` minimises
        the largest cosine across them, which their paper calls optimal.
    """
    return Method(
        name="cfl",
        describe=Update(),
        compare=Cosine(),
        group=Bipartition(gamma=gamma, kind=linkage, capacity=capacity),
        when=Settled(eps1=eps1, eps2=eps2, relative=relative, min_round=min_round),
    )


@register("method", "flhc")
def flhc(
    *,
    at: Annotated[int, Field(ge=0, description="the round in which clients are grouped")] = 10,
    clusters: Count = None,
    distance_threshold: Threshold = None,
    metric: Annotated[
        Literal["euclidean", "manhattan", "cosine"], Field(description="distance between two clients' updates")
    ] = "euclidean",
    linkage: Annotated[
        Literal["average", "complete", "single"],
        Field(description="distance of two clusters from those of their members"),
    ] = "average",
    capacity: Annotated[
        int,
        Field(
            ge=1,
            description="largest number of clusters with a threshold",
            json_schema_extra={"only_with": {"distance_threshold": None}},
        ),
    ] = 64,
) -> Method:
    """FedAvg for some rounds, one agglomerative clustering of all clients' local updates, then FedAvg in each cluster.

    Briggs et al. 2020 (FL+HC).
    """
    if (clusters is None) == (distance_threshold is None):
        raise InputError(
            f"flhc: give either clusters or distance_threshold (got clusters={clusters}, "
            f"distance_threshold={distance_threshold})"
        )
    return Method(
        name="flhc",
        describe=Update(),
        compare={"euclidean": L2(), "manhattan": L1(), "cosine": Cosine()}[metric],
        group=Linkage(clusters=clusters, threshold=distance_threshold, kind=linkage, capacity=capacity),
        when=Once(at=at),
    )
