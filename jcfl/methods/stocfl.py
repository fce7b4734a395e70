"""StoCFL: clients described at an anchor, similar clusters merged."""

from typing import Annotated, Any, Literal

from pydantic import Field

from jcfl.core.method import Answer, Method, Train, Unsampled
from jcfl.core.terms import Proximal
from jcfl.grouping.compare import Cosine, NoiseCorrectedCosine
from jcfl.grouping.describe import Displacement, Gradient
from jcfl.grouping.merge import Merge
from jcfl.grouping.when import Arrival, Renew
from jcfl.methods.options import Lam, SharedUpdate
from jcfl.registry import register


@register("method", "stocfl")
def stocfl(
    *,
    tau: Annotated[
        float,
        Field(
            ge=-1,
            description="merge at this cosine or above; above 1 never merges",
            json_schema_extra={"search": [0.0, 1.0], "auto": "tau", "merges_more": "lower"},
        ),
    ] = 0.5,
    lam: Lam = 0.05,
    mu: Annotated[float, Field(ge=0, description="weight of ω's own proximal term: FedProx as G")] = 0.0,
    similarity: Annotated[Literal["plain", "noise_corrected"], Field(description="how a cosine is formed")] = "plain",
    merge: Annotated[Literal["greedy", "single_pass"], Field(description="how similar clusters are merged")] = "greedy",
    start: Annotated[
        Literal["current", "initial", "nearest"],
        Field(description="first model of a new cluster: ω, the initial one, or a copy of the most similar cluster's"),
    ] = "current",
    anchor: Annotated[dict[str, Any] | None, Field(description="another anchor model: {name, …}")] = None,
    anchor_steps: Annotated[
        int | None, Field(ge=1, description="Ψ is the change of the anchor in so many local steps; none: a gradient")
    ] = None,
    shared_update: SharedUpdate = "parallel",
    clustering_only: Annotated[bool, Field(description="group the clients and train nothing (Fig. 3)")] = False,
    sketch: Annotated[
        int | None, Field(ge=16, description="number of values to which Ψ is folded, for many clients at a time")
    ] = None,
    capacity: Annotated[int | None, Field(ge=1, description="largest number of clusters at a time")] = None,
    renew: Renew = None,
    unsampled: Unsampled = "shared",
) -> Method:
    """Clients are described by a gradient at a fixed anchor and merged by cosine; proximal term to a global model.

    Zeng et al. 2023 (arXiv:2303.00897), Alg. 1 and eqs. 2-3. Clustering (lines 4-13): a client computes Ψ when it first
    takes part (line 6); a cluster's vector is the sum of Ψ over all its members seen so far (line 9); pairs of clusters
    with a cosine of at least τ are merged, the most similar first (lines 11-13). Training (lines 14-23): a sampled
    client trains its cluster's model with the proximal term λ/2 · ‖θ − ω‖² (line 21), and a copy of ω (line 22); the
    server averages both (lines 17-19).

    The global objective G of ω is FedAvg's, or FedProx's with `mu`. A robust rule (`aggregate`, or the add-on `robust`)
    averages ω too. With τ = -1 there is one cluster, and for λ = 0 this is FedAvg. With τ above 1 nothing is merged,
    and this is Ditto if everybody takes part in the first round, or with `start="initial"`.

    Deviations:
        Cluster vectors sum over all members seen so far (Alg. 1 line 9; the authors' code: this round's only). A
        new cluster starts at the current ω (the paper: at ω₀, `start="initial"`). `anchor_steps`,
        `shared_update="sequential"` and, for Shifted MNIST alone, `train.share=0.8` are the authors' code.
        `similarity="noise_corrected"` and `sketch` are ours, and so is `renew`, for data that drift: Ψ is computed
        again, and a client whose cosine with its old Ψ is below τ leaves its cluster and joins one like a new client.
        A client that was never sampled, or has no training example, predicts with ω; with `unsampled="placed"` the
        cluster of one that has examples is inferred as in §4.4.
    """
    gradient = Gradient(anchor=anchor, sketch=sketch)
    pull, chained = Proximal(lam, "shared"), shared_update == "sequential"
    objective = (Proximal(mu, "shared"),)
    return Method(
        name="stocfl",
        describe=Displacement(anchor=anchor, sketch=sketch, steps=anchor_steps) if anchor_steps else gradient,
        compare={"plain": Cosine(), "noise_corrected": NoiseCorrectedCosine()}[similarity],
        group=Merge(tau=tau, order=merge, start=start, capacity=capacity),
        when=Arrival(renew=renew),
        train=Train(
            terms=(pull,), shared="trained", shared_terms=objective, chained=chained, active=not clustering_only
        ),
        answer=Answer(unsampled=unsampled),
    )
