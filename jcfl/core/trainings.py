"""The answers to "train" and "answer" that have a name: what clients train, and how they predict."""

from typing import Annotated

from pydantic import Field

from jcfl.core.method import Answer, Ballot, Train, Unsampled, Vote
from jcfl.core.terms import Proximal, To
from jcfl.registry import register

Mu = Annotated[float, Field(ge=0, description="weight of the proximal term")]
Names = Annotated[
    tuple[str, ...],
    Field(min_length=1, description="layers by path (block/Dense_0), or the words head, backbone, dense, norm"),
]


Distinct = Annotated[bool, Field(description="whether cluster models start from different random initialisations")]
Steps = Annotated[int, Field(ge=0, description="local steps before a client predicts")]


def pulls(mu: float) -> tuple[Proximal, ...]:
    """A proximal term to the received model, unless its weight is 0."""
    term = Proximal(mu)
    return () if term.is_off else (term,)


@register("training", "local")
def local(*, distinct: Distinct = False) -> Train:
    """Clients minimise the loss on their own examples."""
    return Train(distinct=distinct)


@register("training", "proximal")
def proximal(
    *,
    mu: Mu = 0.01,
    to: Annotated[To, Field(description="the model of the proximal term")] = "start",
    distinct: Distinct = False,
) -> Train:
    """A proximal term to a model that the client received (Li et al. 2020, FedProx)."""
    return Train(terms=(Proximal(mu, to),), distinct=distinct)


@register("training", "bilevel")
def bilevel(*, lam: Mu = 0.05, distinct: Distinct = False) -> Train:
    """A proximal term of the cluster model to ω (Zeng et al. 2023, eq. 3; Ditto).

    A client also trains a copy of ω, without the term.
    """
    return Train(terms=(Proximal(lam, "shared"),), shared="trained", distinct=distinct)


@register("training", "distinct")
def distinct() -> Train:
    """As `local`; the cluster models start from different random initialisations."""
    return Train(distinct=True)


@register("training", "tied")
def tied(*, layers: Names, mu: Mu = 0.0, distinct: Distinct = False) -> Train:
    """Some layers are averaged over all clients, whatever their cluster (Ghosh et al. 2020, §6).

    `mu` is the weight of a proximal term to the received model, such as FeSEM's λ.
    """
    return Train(tied=layers, terms=pulls(mu), distinct=distinct)


@register("training", "private")
def private(*, layers: Names, mu: Mu = 0.0, distinct: Distinct = False) -> Train:
    """Some layers stay with the client and are never averaged (Arivazhagan et al. 2019, FedPer).

    `mu` is the weight of a proximal term to the received model, such as FeSEM's λ.
    """
    return Train(private=layers, terms=pulls(mu), distinct=distinct)


@register("training", "scaffold")
def scaffold(*, distinct: Distinct = False) -> Train:
    """Clients correct their gradients by control variates (Karimireddy et al. 2020, SCAFFOLD)."""
    return Train(control=True, distinct=distinct)


@register("training", "all_models")
def all_models() -> Train:
    """Every client trains the models of all clusters, examples weighted by responsibility (Marfoq et al. 2021)."""
    return Train(models="all", distinct=True)


@register("training", "nothing")
def nothing() -> Train:
    """Nothing is trained: rounds only group clients (Zeng et al. 2023, Fig. 3)."""
    return Train(active=False)


@register("answer", "cluster")
def cluster(*, tune: Steps = 0, unsampled: Unsampled = "shared") -> Answer:
    """The model of the client's cluster, optionally after local steps."""
    return Answer(tune=tune, unsampled=unsampled)


@register("answer", "sum")
def sum_(*, tune: Steps = 0) -> Answer:
    """The logits of the cluster's model and of ω, added; ω is trained with the cluster models (Ma 2023, eq. 7.2)."""
    return Answer(model="sum", tune=tune)


@register("answer", "mixture")
def mixture() -> Answer:
    """The probabilities of all cluster models, weighted by the client's membership (Marfoq et al. 2021)."""
    return Answer(model="mixture")


@register("answer", "majority")
def majority() -> Answer:
    """The most frequent class of the client's own training data, without a model."""
    return Answer(model="majority")


@register("answer", "vote")
def vote(
    *,
    runs: Annotated[int, Field(ge=2, description="number of independent runs, with this one")] = 3,
    by: Ballot = "probabilities",
) -> Answer:
    """The mean class probabilities, or logits, of independent runs (Ma 2023, §3.5)."""
    return Answer(vote=Vote(runs - 1, None, by))
