"""The scores that jcfl registers, and what one evaluation makes of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jcfl.metrics import agreement
from jcfl.metrics.evaluation import Evaluation, accuracy, f1, mean, ratio
from jcfl.metrics.table import (
    EVERYWHERE,
    HELD_OUT,
    VALIDATION,
    Function,
    Over,
    Place,
    Score,
    Unit,
    Unmeasured,
    add,
    register_score,
    scores,
)
from jcfl.types import Federation

FIELDS = ("labels", "counts", "losses", "seen")
"""What the device has to hand over of every client so that scores can be computed."""

ANSWERS = ("counts", "losses", "unanswered")
"""What the device hands over that says what clients predicted for some examples; the last may be left out."""

CLUSTERING: tuple[Over, ...] = ("present", "held out")
"""What a score is taken over that does not depend on the examples predicted."""


def measured(outcome: Mapping[str, Any], federation: Federation, round: int) -> dict[str, Any]:
    """The scores of one evaluation of one seed, on the host.

    Args:
        outcome: what an algorithm's `evaluate` returned, in NumPy.
        federation: the clients' groups, and who takes part when. Where data drift, the groups are those of the last
            round trained.
        round: the number of rounds that were trained before the evaluation.

    Returns:
        Every registered score over the clients that are in the federation in this round; the same with `held_out_`
        before the name over clients that never train, where there are any; with `validation_` on validation examples,
        where `outcome` has their `validation_counts` and `validation_losses`; scores of honest clients, where there are
        attackers; the scalars that the method measured itself; `labels` and `accuracy_clients`, [m] each. An outcome
        without `counts` is returned as it is.
    """
    if any(name not in outcome for name in FIELDS):
        return dict(outcome)
    groups, held_out, arrive, depart = (
        np.asarray(leaf)
        for leaf in (federation.at(round - 1).groups, federation.held_out, federation.arrive, federation.depart)
    )
    arrays = {name: np.asarray(outcome[name]) for name in {*FIELDS, *ANSWERS} & outcome.keys()} | {"groups": groups}
    arrays |= {"hostile": np.asarray(federation.hostile)} if federation.is_attacked else {}
    present = are_scored(held_out, arrive, depart, round)
    validation = {name: np.asarray(outcome[VALIDATION + name]) for name in ANSWERS if VALIDATION + name in outcome}
    known = {*FIELDS, *ANSWERS, *(VALIDATION + name for name in ANSWERS)}
    found = {name: value for name, value in outcome.items() if name not in known}
    found |= taken(Evaluation.of(arrays, present), "present", "")
    if federation.is_attacked:
        found |= taken(Evaluation.of(arrays, present), "attacked", "")
    if held_out.any():
        found |= taken(Evaluation.of(arrays, held_out), "held out", HELD_OUT)
    if validation:
        found |= taken(Evaluation.of(arrays | validation, present), "validation", VALIDATION)
    everybody = Evaluation.of(arrays, np.ones(held_out.shape, bool))
    return found | {"labels": arrays["labels"], "accuracy_clients": everybody.accuracy.astype(np.float32)}


def are_scored(held_out: Any, arrive: Any, depart: Any, round: Any) -> Any:
    """Which clients scores are taken over: those that train and are in the federation after so many rounds. [m] bool

    They were there in the last round, or will come in the next one, so that there are clients before the first round.

    Args:
        held_out, arrive, depart: those of a federation, as NumPy or JAX arrays. [m] each
        round: the number of rounds that were trained.
    """
    return ~held_out & (arrive <= round) & (round <= depart)


def taken(clients: Evaluation, who: str, prefix: str) -> dict[str, Any]:
    """The scores over some clients. A number is kept in float32, so that files print no digit that means nothing.

    Scores of predictions are NaN if some of these are not finite. Over the other clients they would be too high.
    """
    found, lost = {}, clients.unanswered.any()
    for name, one in scores().items():
        if who in one.over and one.function is not None:
            unknown = lost and one.is_of_predictions
            found[prefix + name] = np.float32(np.nan) if unknown else number(name, one.function, clients)
    return found


def number(name: str, function: Function, clients: Evaluation) -> Any:
    """What a score's function returns for some clients: an integer, or a float in single precision; NaN for None.

    True is one, and False is zero.

    Raises:
        Unmeasured: it raises an error, or returns no single number.
    """
    try:
        value = function(clients)
        if np.ndim(value):
            raise TypeError(f"expected a number, got an array of the shape {np.shape(value)}")
        if isinstance(value, complex | np.complexfloating):
            raise TypeError("expected a number, got a complex one")
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return value if whole else np.float32(value)
    except Exception as error:  # another author's function may raise anything
        raise Unmeasured(f"score {name!r}: {type(error).__name__}: {error}") from error


@register_score("accuracy_micro", title="accuracy", unit="%", better="higher", places=EVERYWHERE)
def accuracy_micro(clients: Evaluation) -> float:
    """The accuracy on all test examples together, which is the mean over clients weighted by size."""
    return float(accuracy(clients.counts.sum(0)))


@register_score(
    "accuracy_macro",
    title="accuracy (mean over clients)",
    short="mean over clients",
    unit="%",
    better="higher",
    places=("terminal", "report"),
)
def accuracy_macro(clients: Evaluation) -> float:
    """The mean over clients of their accuracies."""
    return mean(clients.accuracy, 1)


@register_score("f1_micro", title="F1", unit="%", better="higher", places=("terminal", "report", "curves"))
def f1_micro(clients: Evaluation) -> float:
    """The mean over clients of their macro-F1, weighted by their number of test examples."""
    return mean(clients.f1, clients.size)


@register_score("f1_macro", title="F1 (mean over clients)", unit="%", better="higher", places=())
def f1_macro(clients: Evaluation) -> float:
    """The mean over clients of their macro-F1."""
    return mean(clients.f1, 1)


@register_score("loss", better="lower", places=("report", "curves"))
def loss(clients: Evaluation) -> float:
    """The mean of the task's loss over test examples."""
    return float(ratio(clients.losses[clients.size > 0].sum(dtype=float), clients.size.sum()))


@register_score("clusters", unit="clusters", over=CLUSTERING, places=("terminal", "report", "clusters", "effect"))
def clusters(clients: Evaluation) -> int:
    """The number of clusters with at least one client."""
    return agreement.clusters(clients.labels)


@register_score("purity", better="higher", over=CLUSTERING, places=("terminal", "report", "effect"))
def purity(clients: Evaluation) -> float:
    """The share of clients that belong to the largest group of their cluster."""
    return agreement.purity(clients.labels, clients.groups)


@register_score(
    "ari",
    title="adjusted Rand index",
    short="ARI",
    better="higher",
    over=CLUSTERING,
    places=("terminal", "report", "clusters"),
)
def ari(clients: Evaluation) -> float:
    """The adjusted Rand index of clusters and true groups."""
    return agreement.ari(clients.labels, clients.groups)


@register_score(
    "nmi",
    title="normalised mutual information",
    short="NMI",
    better="higher",
    over=CLUSTERING,
    places=("report",),
)
def nmi(clients: Evaluation) -> float:
    """The normalised mutual information of clusters and true groups."""
    return agreement.nmi(clients.labels, clients.groups)


def add_percentile(share: int, title: str, places: tuple[Place, ...], meaning: str) -> None:
    """Register a percentile of the accuracy over clients that have test examples."""

    def percentile(clients: Evaluation) -> float:
        there = clients.accuracy[clients.size > 0]
        return float(np.percentile(there, share)) if there.size else np.nan

    percentile.__doc__ = meaning
    register_score(f"accuracy_p{share}", title=f"accuracy, {title}", unit="%", better="higher", places=places)(
        percentile
    )


add_percentile(
    5,
    "5th percentile",
    ("report",),
    "The 5th percentile of the clients' accuracies: 5 % of the clients have a lower one.",
)
add_percentile(50, "median client", (), "The median of the clients' accuracies: half of the clients have a lower one.")
add_percentile(
    95, "95th percentile", (), "The 95th percentile of the clients' accuracies: 5 % of the clients have a higher one."
)


@register_score("accuracy_worst", title="accuracy, worst client", unit="%", better="higher", places=("report",))
def accuracy_worst(clients: Evaluation) -> float:
    """The lowest accuracy of a client."""
    return float(np.min(clients.accuracy, where=clients.size > 0, initial=np.inf)) if clients.size.any() else np.nan


@register_score("f1_pooled", title="F1, pooled", unit="%", better="higher", places=())
def f1_pooled(clients: Evaluation) -> float:
    """The macro-F1 of all test examples together."""
    return float(f1(clients.counts.sum(0)))


@register_score("pair_purity", title="pair purity", better="higher", over=CLUSTERING, places=())
def pair_purity(clients: Evaluation) -> float:
    """The share of same-group pairs inside a cluster, in the mean over clusters."""
    return agreement.pair_purity(clients.labels, clients.groups)


@register_score("seen", title="clients that have taken part", unit="%", over=("present",), places=())
def seen(clients: Evaluation) -> float:
    """The share of clients that have taken part in a round; a warm-up that trains one model for all does not count."""
    return clients.seen.sum() / max(clients.seen.size, 1)


@register_score(
    "accuracy_honest",
    title="accuracy, honest clients",
    unit="%",
    better="higher",
    over=("attacked",),
    places=("terminal", "report", "effect"),
)
def accuracy_honest(clients: Evaluation) -> float:
    """The accuracy on all test examples of the clients that do not attack."""
    lost = clients.unanswered.size and clients.unanswered[~clients.hostile].any()
    return np.nan if lost else float(accuracy(clients.counts[~clients.hostile].sum(0)))


@register_score(
    "beside_hostile",
    title="honest clients in a cluster with attackers",
    short="beside attackers",
    unit="%",
    better="lower",
    over=("attacked",),
    places=("report",),
)
def beside_hostile(clients: Evaluation) -> float:
    """The share of honest clients whose cluster also has an attacker."""
    honest = clients.labels[~clients.hostile]
    shared = (honest >= 0) & np.isin(honest, clients.labels[clients.hostile])
    return float(shared.mean()) if honest.size else np.nan


def add_measured(name: str, meaning: str, unit: Unit, title: str = "") -> None:
    """Register a score that a method measures itself and the report shows."""
    add(Score(name, title, unit=unit, over=("present",), places=("report",), meaning=meaning))


add_measured("dropped_clients", "The number of clients whose upload was not finite and was left out.", "clients")
add_measured(
    "reset_clusters", "The number of clusters reset to the round before, as their model was not finite.", "clusters"
)
add_measured(
    "neurons",
    "The number of hidden neurons that a cluster's model uses, in the mean over clusters; with `growth`.",
    "",
    "neurons in use",
)
add_measured("excluded_hostile", "The share of the attackers that were excluded.", "%", "attackers excluded")
add_measured("excluded_honest", "The share of the honest clients that were excluded.", "%", "honest clients excluded")

add_measured(
    "accuracy_shared",
    "The accuracy of the global model ω alone on the test examples of all clients; with `evaluate_shared`.",
    "%",
    "accuracy of the global model",
)
add(
    Score(
        "epsilon",
        "ε of client-level differential privacy",
        "ε",
        better="lower",
        over=(),
        places=("terminal", "report", "curves"),
        meaning="The ε of client-level differential privacy so far, for the δ of `privacy.delta`.",
    )
)
add(
    Score(
        "trained_rounds",
        "rounds trained",
        "rounds",
        unit="rounds",
        over=(),
        places=("terminal", "report"),
        meaning="The number of rounds that were trained; a stop condition may end training before the last round.",
    )
)
add(
    Score(
        "objective",
        "clustering objective",
        over=("present",),
        places=("clusters",),
        meaning="StoCFL's clustering objective: the sum of cosines between clusters.",
    )
)


def add_quality(name: str, title: str, meaning: str, unit: Unit = "") -> None:
    """Register a score of the figure `quality`, which `evaluate_quality` measures."""
    add(Score(name, title, unit=unit, over=("present",), places=("quality",), meaning=meaning))


add_quality(
    "moves", "clients that moved", "How many clients changed their cluster since the previous evaluation.", "clients"
)
add_quality(
    "learning_objective", "learning objective F", "The mean training loss of the clusters' models (Ma 2023, eq. 3.3a)."
)
add_quality(
    "clustering_objective",
    "clustering objective C",
    "The mean squared distance between clients' own models and their clusters' (Ma 2023, eq. 3.4).",
)
add_quality("cosine_within", "cosine in clusters", "The mean cosine of two clients' own models in one cluster.")
add_quality(
    "cosine_within_least", "least cosine in clusters", "The least cosine of two clients' own models in one cluster."
)
add_quality("cosine_between", "cosine of clusters", "The mean cosine of two clusters' models.")
add_quality(
    "clusterability",
    "clusterability B",
    "The largest clusterability B of a cluster (Ma 2023, eq. 3.18); 0 where its clients have equal gradients.",
)
add_quality(
    "gradient_bound",
    "bound of gradients U",
    "The largest norm of a gradient (Ma 2023, Assumption 3.4.1); at least this.",
)
add_quality(
    "gradient_variance",
    "variance of gradients σ²",
    "The largest variance of a client's mini-batch gradients (Ma 2023, Assumption 3.4.10); at least this.",
)
add_quality(
    "smoothness", "smoothness β", "The largest change of a gradient by distance (Ma 2023, eq. 3.20); at least this."
)
add_quality(
    "gradient_diversity",
    "gradient diversity δ²",
    "The largest mean squared distance of gradients from their cluster's (Ma 2023, Assumption 7.3.3); at least this.",
)
add_quality(
    "partial_diversity",
    "partial diversity δ²",
    "With cam: how much gradients by one model change with a client's copy of the other (Ma 2023, Assumption 7.3.3).",
)
add_quality(
    "squared_gradient", "squared gradient", "The mean squared norm of clients' gradients at their clusters' models."
)
add_quality(
    "squared_gradient_shared",
    "squared gradient by the global model",
    "With cam: the squared norm of the mean gradient by the global model (Ma 2023, eq. 7.17).",
)
add_quality(
    "step_bound", "bound of the step size", "The step size below which WeCFL is shown to converge (Ma 2023, eq. 3.35)."
)
add_quality(
    "round_bound",
    "bound of rounds",
    "The rounds after which the squared gradient is shown to have halved (Ma 2023, eq. 3.36); none where it is not.",
)
