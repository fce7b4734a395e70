"""Add-ons: functions from a method to a method. Each changes one answer, or adds a term to what clients minimise."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from jcfl import registry
from jcfl.core import returned
from jcfl.core.aggregates import (
    Beta,
    Bounded,
    Buckets,
    Drawn,
    Fair,
    Fairness,
    GeometricMedian,
    Hostile,
    Krum,
    Median,
    NormBound,
    Smoothness,
    TrimmedMean,
    of_buckets,
)
from jcfl.core.faults import Exclude, ExcludeSparse
from jcfl.core.method import Ballot, Mean, Method, Phase, Rule, Vote
from jcfl.core.terms import Contrastive, ContrastiveFeatures, Distillation, LossTerm, On, Proximal, Sharing
from jcfl.errors import InputError
from jcfl.grouping.describe import TrainedModel
from jcfl.grouping.groups import KMeans
from jcfl.grouping.when import Once
from jcfl.methods.options import SEARCH
from jcfl.registry import register

Averaged = Annotated[
    Literal["all", "shared"], Field(description="models with this average: all, or the global model alone")
]
Weight = Annotated[float, Field(ge=0, description="weight of the term", json_schema_extra=SEARCH)]
Temperature = Annotated[float, Field(gt=0, description="temperature τ of the softmax")]
Parameters = Annotated[
    On,
    Field(
        description="which parameters: all (everything), the classifier (head), or all except the classifier (backbone)"
    ),
]


def of_rules(*rules: str) -> Any:
    """The mark of an option of `robust` that has no effect with other rules."""
    return Field(json_schema_extra={"only_with": {"rule": list(rules)}})


def extended(method: Method, addons: Sequence[Mapping[str, Any]]) -> Method:
    """A method with its add-ons, each `{name, options…}` with its options checked.

    Raises:
        InputError: an add-on has no meaning for the method.
    """
    for addon in addons:
        options = {key: value for key, value in addon.items() if key != "name"}
        found = registry.made("addon", addon["name"], method, **options)
        found = returned.piece(found, Method, f"addon {addon['name']!r}")
        method = replace(found, addons=(*method.addons, addon["name"]))
    return method


@register("addon", "con_para")
def con_para(method: Method, *, mu: Weight = 0.1, temperature: Temperature = 0.5, on: Parameters = "head") -> Method:
    """Contrastive term on parameters: near the own cluster's model, far from the other clusters' (Ma 2023, eq. 4.3).

    Deviations:
        −log of the softmax; the thesis prints it without.
    """
    return with_term(method, Contrastive(mu, temperature, on), "con_para")


@register("addon", "con_rep")
def con_rep(
    method: Method,
    *,
    mu: Weight = 0.1,
    temperature: Temperature = 0.5,
    of: Annotated[Literal["features", "logits"], Field(description="the compared features of an example")] = "features",
) -> Method:
    """Contrastive term on representations of the client's examples (Ma 2023, eq. 4.4).

    Deviations:
        −log of the softmax, taken per example. The thesis's code compares logits: an option.
    """
    return with_term(method, ContrastiveFeatures(mu, temperature, of), "con_rep")


@register("addon", "cks")
def cks(
    method: Method,
    *,
    lam: Weight = 0.01,
    on: Parameters = "everything",
    form: Annotated[
        Literal["shared", "pairwise"],
        Field(description="a pull to the mean of all models (eq. 5.6), or to each of the other clusters' (eq. 5.5)"),
    ] = "shared",
) -> Method:
    """Knowledge sharing: a penalty to the mean of all models, or to the other clusters' (Ma 2023, eqs. 5.6, 5.5).

    If clients also train ω, beside the model of their cluster, the mean is that of the cluster models.
    """
    if form == "pairwise":
        return with_term(method, Sharing(lam, on), "cks")
    mean = "mean" if method.train.shared == "trained" else "shared"
    return with_term(method, Proximal(lam, mean, on, sent_for_it=True), "cks")


@register("addon", "con_cks")
def con_cks(method: Method, *, mu: Weight = 0.1, lam: Weight = 0.01, temperature: Temperature = 0.5) -> Method:
    """Contrastive term on the head, knowledge sharing on the backbone (Ma 2023, Alg. 4)."""
    refuse_without_clusters(method, "con_cks")
    return cks(con_para(method, mu=mu, temperature=temperature, on="head"), lam=lam, on="backbone")


@register("addon", "distill")
def distill(
    method: Method,
    *,
    mu: Weight = 0.1,
    temperature: Temperature = 2.0,
    teacher: Annotated[
        Literal["shared", "start"], Field(description="the global model, or the model that the client starts from")
    ] = "shared",
) -> Method:
    """Knowledge distillation: the teacher's class probabilities are targets beside the labels (Hinton et al. 2015).

    Zeng et al. (2023, section 5) name the transfer of knowledge in local training as future work of StoCFL, and this is
    one way to do it. The choice of the teacher is ours. In a method that does not train the global model by itself, it
    is the mean of all clients' models.
    """
    sent = teacher == "shared" and method.train.shared != "trained"
    return with_term(method, Distillation(mu, temperature, teacher, sent_for_it=sent), "distill")


@register("addon", "cam")
def cam(
    method: Method,
    *,
    warmup: Annotated[int, Field(ge=0, description="rounds of the warm-up, before both are trained")] = 30,
    update: Annotated[
        Literal["simultaneous", "alternating"],
        Field(description="both in every round, or cluster models and global model in turn, a round each"),
    ] = "simultaneous",
) -> Method:
    """Clustered additive modelling: the global model's logits are added to the cluster's (Ma 2023, Alg. 5).

    Both are trained in parallel, each with the other one fixed at its value in the broadcast. With `update:
    alternating`, one round trains the cluster models and the next one the global model (§7.2.1, FedAlt). Methods that
    group clients by data or by loss then group them in every round, and methods that group by trained models only in
    rounds that train the cluster models. Groupings by loss use the loss of the sum (eq. 7.2). The method's own rounds
    begin after the warm-up. If every client has its own model, or layers of its own (`method.train.private`), the
    global model is added to it (§7.1: any structure). If all clients have one model, CAM is refused.
    """
    refuse_without_models(method, "cam")
    if not (method.group.alone or method.train.private):
        refuse_without_clusters(method, "cam")
    keeps_models = isinstance(method.describe, TrainedModel) and not isinstance(method.when, Once)
    by_models = keeps_models and isinstance(method.group, KMeans)
    phases = (Phase(warmup, "alone" if by_models else "shared"),) if warmup else ()
    summed = method.with_answer(model="sum").with_train(in_turn=update == "alternating")
    return replace(summed, before=(*method.before, *phases))


@register("addon", "finetune")
def finetune(method: Method, *, steps: Annotated[int, Field(ge=0, description="local steps")] = 10) -> Method:
    """Local steps before a client is evaluated; they do not change the state (Ma 2023, §7.4.4).

    They follow the client's own gradient, also in methods that correct it in their rounds (`scaffold`, `feddane`).
    """
    refuse_without_models(method, "finetune")
    return method.with_answer(tune=steps)


@register("addon", "voting")
def voting(
    base: Method,
    /,
    *,
    method: Annotated[
        str | None, Field(description="method of the second run; the same method with another seed if not given")
    ] = None,
    options: Annotated[
        dict[str, Any],
        Field(description="options of the second method", json_schema_extra={"only_with": {"method": None}}),
    ] = {},  # noqa: B006
    by: Ballot = "probabilities",
) -> Method:
    """An ensemble with a second, independent run (Ma 2023, §7.4.4).

    Class probabilities are averaged, or logits as in eq. 7.36, which has the sum of the models' outputs.
    """
    refuse_without_models(base, "voting")
    vote = base.answer.vote
    if vote is not None and vote.by != by:
        raise InputError(f"{base.name} votes by {vote.by} already; give the add-on 'voting' by={vote.by} too")
    if vote is not None and vote.method is not None and method is None:
        raise InputError(f"{base.name} votes with {vote.method.name} already, so it takes no second add-on 'voting'")
    if method is None:
        return base.with_answer(vote=Vote(1 + (vote.copies if vote else 0), vote.method if vote else None, by))
    if vote is not None:
        raise InputError(f"{base.name} votes already, so the add-on 'voting' takes no other method")
    other = registry.made("method", method, **registry.options("method", method, options))
    return base.with_answer(vote=Vote(1, other, by))


@register("addon", "robust")
def robust(
    method: Method,
    *,
    rule: Annotated[
        Literal["median", "trimmed_mean", "median_of_means", "krum", "multi_krum", "geometric_median", "norm_bound"],
        Field(description="how models are averaged"),
    ] = "median",
    beta: Annotated[Beta, of_rules("trimmed_mean")] = 0.1,
    buckets: Annotated[Buckets, of_rules("median_of_means")] = 3,
    size: Annotated[Drawn, of_rules("median_of_means")] = None,
    share: Annotated[Hostile, of_rules("krum", "multi_krum")] = 0.2,
    bound: Annotated[Bounded, of_rules("norm_bound")] = None,
    of: Averaged = "all",
) -> Method:
    """Models are averaged by a robust rule instead of the mean, also ω if it is trained (Ma 2023, §2.4)."""
    rules = {
        "median": Median(),
        "trimmed_mean": TrimmedMean(beta=beta),
        "median_of_means": of_buckets(buckets, size),
        "krum": Krum(share=share),
        "multi_krum": Krum(share=share, several=True),
        "geometric_median": GeometricMedian(),
        "norm_bound": NormBound(bound=bound),
    }
    return with_rule(method, rules[rule], of, "robust")


@register("addon", "fair")
def fair(method: Method, *, q: Fairness = 1.0, smoothness: Smoothness = None, of: Averaged = "all") -> Method:
    """Clients that a model serves badly count more in its average (Li et al. 2020, q-FedAvg).

    Zeng et al. (2023, §3.3) leave the objective of StoCFL's global model open. With `of="shared"` it is a fair one, and
    the cluster models are averaged as before. q = 0 gives the mean.
    """
    return with_rule(method, Fair(q=q, smoothness=smoothness), of, "fair")


@register("addon", "exclude")
def exclude(
    method: Method,
    *,
    by: Annotated[
        Literal["distance", "lof"], Field(description="distance to the cluster's median, or local outlier factor")
    ] = "distance",
    limit: Annotated[
        float, Field(gt=0, description="deviations above the cluster's median distance, or the largest factor")
    ] = 3.0,
    neighbours: Annotated[
        int,
        Field(
            ge=1,
            description="number of neighbours of the local outlier factor",
            json_schema_extra={"only_with": {"by": ["lof"]}},
        ),
    ] = 5,
    patience: Annotated[
        int | None,
        Field(ge=1, description="rounds left out after which a client is never sampled again; null: no limit"),
    ] = 3,
) -> Method:
    """Clients whose updates are far from their cluster's are left out before averaging, and before grouping by models.

    Where clients are grouped before they train (StoCFL, IFCA), such a client keeps its cluster, but not its influence
    on the models. When StoCFL samples a client no more, it is in no cluster, and its Ψ is in no cluster's sum. With
    `by="lof"` a client is left out if its local outlier factor is above the limit (Breunig et al. 2000).
    """
    refuse_without_models(method, "exclude")
    rules = {
        "distance": Exclude(limit=limit, patience=patience),
        "lof": ExcludeSparse(limit=limit, patience=patience, neighbours=neighbours),
    }
    return method.with_aggregate(exclude=rules[by])


def with_term(method: Method, term: LossTerm, name: str) -> Method:
    """The method with one more term in what a client minimises."""
    refuse_without_clusters(method, name)
    return method.with_train(terms=(*method.train.terms, term))


def with_rule(method: Method, rule: Rule, of: str, addon: str) -> Method:
    """The method with an averaging rule in place of the mean: of all models, or of the global model alone."""
    refuse_without_models(method, addon)
    field = {"all": "rule", "shared": "shared_rule"}[of]
    if not isinstance(getattr(method.aggregate, field) or Mean(), Mean):
        raise InputError(f"{method.name} averages in a way of its own, so the add-on {addon!r} has nothing to replace")
    return method.with_aggregate(**{field: rule})


def refuse_without_clusters(method: Method, addon: str) -> None:
    """Refuse an add-on that relates clusters to each other where there are none."""
    if not method.group.clustered:
        raise InputError(f"{method.name} has no clusters for the add-on {addon!r} to work on")
    if method.train.models == "all":
        raise InputError(
            f"{method.name} trains all models at once, so the add-on {addon!r} has no single cluster to act on"
        )


def refuse_without_models(method: Method, addon: str) -> None:
    """Refuse an add-on that changes models for a method without models."""
    if method.answer.model == "majority":
        raise InputError(f"{method.name} predicts without a model, so the add-on {addon!r} has nothing to work on")
