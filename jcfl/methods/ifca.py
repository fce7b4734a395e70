"""Methods that choose among K models by their losses: IFCA, and FedEM and FedRC, which weigh all of them."""

from typing import Annotated, Any

from pydantic import Field

from jcfl.core.method import Aggregate, Answer, Method, Train
from jcfl.core.neutral import Every
from jcfl.grouping.em import ByLabel, Responsibilities
from jcfl.grouping.losses import Itself, Least, Losses
from jcfl.methods.options import Averaging, Clusters
from jcfl.registry import register

BY_LOSS: dict[str, Any] = {"describe": Losses(), "compare": Itself(), "when": Every()}


@register("method", "ifca")
def ifca(
    *,
    clusters: Clusters = 4,
    averaging: Averaging = "by_size",
    shared_layers: Annotated[tuple[str, ...], Field(description="parameters averaged over all clients, by name")] = (),
) -> Method:
    """K models with different initial values; a client joins the one with the least loss on its data (= HypCluster).

    Ghosh et al. 2020, Alg. 1 with model averaging (option II). Among equal losses the first model is chosen. A cluster
    without clients keeps its model.

    Deviations:
        Averages are weighted by size; those of the authors' code are equal (`averaging="equally"`). Test-time
        assignment uses training data; the authors' code uses test labels.
    """
    train = Train(distinct=True, tied=shared_layers)
    return Method(
        name="ifca", **BY_LOSS, group=Least(clusters=clusters), train=train, aggregate=Aggregate(weights=averaging)
    )


@register("method", "fedem")
def fedem(*, clusters: Clusters = 3) -> Method:
    """K models; every client trains all and mixes them by its own weights (Marfoq et al. 2021, arXiv:2108.10252).

    E-step and M-step are those of a mixture: in the training of model k, an example is weighted by its responsibility,
    and a client's weights are its mean responsibilities. Models are averaged over all clients by size.

    Deviations:
        A client that was never sampled predicts with the weights of one M-step from equal weights.
    """
    train, answer = Train(models="all", distinct=True), Answer(model="mixture")
    return Method(name="fedem", **BY_LOSS, group=Responsibilities(clusters=clusters), train=train, answer=answer)


@register("method", "fedrc")
def fedrc(*, clusters: Clusters = 3) -> Method:
    """As `fedem`, but clients are grouped by how they label examples, not by which classes they hold.

    Guo et al. 2024, https://arxiv.org/abs/2301.12379. In an example's responsibilities, the likelihood of its class is
    divided by the share of this class in the cluster. The server computes the shares before each round from the
    responsibilities that clients reported last.

    Deviations:
        A client that has not taken part does not count in the shares; in the authors' code it counts as one example of
        each cluster. It predicts with the weights of one M-step from equal weights, with the shares of the last round.
    """
    train, answer = Train(models="all", distinct=True), Answer(model="mixture")
    return Method(name="fedrc", **BY_LOSS, group=ByLabel(clusters=clusters), train=train, answer=answer)
