"""Methods with one model for all clients, or one for each: FedAvg and its relatives."""

from typing import Annotated, Any

from pydantic import Field

from jcfl.core.aggregates import ServerOptimizer
from jcfl.core.method import Aggregate, Answer, Ballot, Method, Train, Vote
from jcfl.core.neutral import Alone, Every, Incomparable, Nothing, Together
from jcfl.core.terms import Proximal
from jcfl.methods.options import Averaging, Lam, Mu, Rate, Runs, SharedUpdate
from jcfl.registry import register

ONE: dict[str, Any] = {"describe": Nothing(), "compare": Incomparable(), "group": Together(), "when": Every()}
"""The first four answers of a method with one model for all clients."""

EACH: dict[str, Any] = ONE | {"group": Alone()}
"""The first four answers of a method with a model for every client."""


@register("method", "majority")
def majority() -> Method:
    """Every client predicts the most frequent class of its own training data (no training)."""
    return Method(name="majority", **ONE, train=Train(active=False), answer=Answer(model="majority"))


@register("method", "local")
def local() -> Method:
    """Every client trains alone and predicts with its own model (NoFed)."""
    return Method(name="local", **EACH)


@register("method", "fedsgd")
def fedsgd() -> Method:
    """One full-batch gradient of the global model per client, and one step of the server (McMahan et al. 2017).

    Deviations:
        The released code of Xie et al. 2020 took the gradient of two examples per client.
    """
    return Method(name="fedsgd", **ONE, train=Train(steps=1))


@register("method", "fedavg")
def fedavg(*, averaging: Averaging = "by_size", shared_update: SharedUpdate = "parallel") -> Method:
    """One model: the size-weighted mean of the clients' local models (McMahan et al. 2017).

    Deviations:
        `shared_update="sequential"` is the FedAvg of StoCFL's released code: every client starts from the model of the
        previous client, and the models are averaged. It is not federated averaging, but it explains that paper's table.
    """
    train = Train(chained=shared_update == "sequential")
    return Method(name="fedavg", **ONE, train=train, aggregate=Aggregate(weights=averaging))


@register("method", "fedprox")
def fedprox(*, mu: Mu = 0.01, averaging: Averaging = "by_size") -> Method:
    """FedAvg with a proximal term to the model that clients received (Li et al. 2020).

    Deviations:
        The term has a gradient; in the released code of Ma 2023 and of Xie et al. 2020 it had none.
    """
    return Method(name="fedprox", **ONE, train=Train(terms=(Proximal(mu),)), aggregate=Aggregate(weights=averaging))


@register("method", "feddist")
def feddist(*, epsilon: Rate = 0.6) -> Method:
    """ω ← ω − ε · mean(ω − θ_i), all clients with equal weights (a baseline of Xie et al. 2020, after Reptile)."""
    return Method(name="feddist", **ONE, aggregate=Aggregate(weights="equally", rate=epsilon))


@register("method", "feddws")
def feddws(*, epsilon: Rate = 0.6) -> Method:
    """FedDist with clients weighted by size (a baseline of Xie et al. 2020)."""
    return Method(name="feddws", **ONE, aggregate=Aggregate(rate=epsilon))


@register("method", "feddane")
def feddane(*, mu: Mu = 0.01) -> Method:
    """Clients correct their gradients by a sampled mean gradient: θ ← θ − η(∇f_i(θ) + g − ∇f_i(ω) + μ(θ − ω)).

    Li et al. 2019. g is the size-weighted mean of full gradients at ω.

    Deviations:
        The clients whose gradients make g are sampled separately from those that train.
    """
    return Method(name="feddane", **ONE, train=Train(terms=(Proximal(mu),), correction=True))


@register("method", "fedadam")
def fedadam(
    *,
    lr: Annotated[float, Field(gt=0, description="learning rate of the server")] = 0.01,
    b1: Annotated[float, Field(ge=0, lt=1, description="decay of the first moment")] = 0.9,
    b2: Annotated[float, Field(ge=0, lt=1, description="decay of the second moment")] = 0.99,
    tau: Annotated[float, Field(gt=0, description="added to the root of the second moment")] = 0.001,
) -> Method:
    """FedAvg with Adam on the server; the mean update is its gradient (Reddi et al. 2021, arXiv:2003.00295).

    Deviations:
        The moments have a bias correction, as in optax; the paper has none.
    """
    server = ServerOptimizer(kind="adam", lr=lr, momentum=b1, b2=b2, eps=tau)
    return Method(name="fedadam", **ONE, aggregate=Aggregate(server=server))


@register("method", "scaffold")
def scaffold() -> Method:
    """FedAvg with control variates that correct the drift of local training (Karimireddy et al. 2020, option II).

    The paper is SCAFFOLD, arXiv:1910.06378. Every client keeps a control variate between rounds.

    Deviations:
        The mean of models is weighted by clients' examples; the paper's mean is unweighted.
    """
    return Method(name="scaffold", **ONE, train=Train(control=True))


@register("method", "ditto")
def ditto(*, lam: Lam = 0.05) -> Method:
    """A personal model per client, with a proximal term to a FedAvg model (Li et al. 2021).

    The global model is trained on its own copies; a client is evaluated on its personal model.
    """
    return Method(name="ditto", **EACH, train=Train(terms=(Proximal(lam, "shared"),), shared="trained"))


@register("method", "fedavg_plus")
def fedavg_plus(*, runs: Runs = 3, by: Ballot = "probabilities") -> Method:
    """An ensemble of independent runs of FedAvg, by their mean class probabilities (Ma 2023, §3.5).

    Deviations:
        The thesis's code averages logits: `by="logits"`.
    """
    return Method(name="fedavg_plus", **ONE, answer=Answer(vote=Vote(runs - 1, None, by)))


@register("method", "fedprox_plus")
def fedprox_plus(*, runs: Runs = 3, mu: Mu = 0.01, by: Ballot = "probabilities") -> Method:
    """An ensemble of independent runs of FedProx, by their mean class probabilities (Ma 2023, §3.5).

    Deviations:
        The thesis's code averages logits: `by="logits"`.
    """
    vote = Answer(vote=Vote(runs - 1, None, by))
    return Method(name="fedprox_plus", **ONE, train=Train(terms=(Proximal(mu),)), answer=vote)
