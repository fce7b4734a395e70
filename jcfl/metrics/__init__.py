"""Measures of a run: scores of predictions, agreement of clusters with the true groups, and cohesion of clusters.

The table of scores, and what only scores need, works on NumPy arrays on the host. `counts`, `confusion` and the
measures of cohesion work on JAX arrays; they are pure, of fixed shape and free of jit, so they can be part of any
compiled program. A value that nothing defines (no test example, no known group) is NaN.
"""

from jcfl.metrics.agreement import ari, clustering, clusters, moves, nmi, pair_purity, purity
from jcfl.metrics.cohesion import (
    cluster_gram,
    clusterability,
    clustering_objective,
    gradient_diversity,
    learning_objective,
    least_within,
    objective,
    sizes,
    within_between,
)
from jcfl.metrics.convergence import round_bound, step_bound
from jcfl.metrics.counts import confusion, counts
from jcfl.metrics.evaluation import Evaluation, accuracy, f1
from jcfl.metrics.scores import ANSWERS, CLUSTERING, are_scored, measured
from jcfl.metrics.table import (
    HELD_OUT,
    MODELS,
    VALIDATION,
    Place,
    Score,
    Unmeasured,
    bare_name,
    by_title,
    is_taken,
    register_score,
    score,
    score_names,
    scores,
)

__all__ = [
    "ANSWERS",
    "CLUSTERING",
    "HELD_OUT",
    "MODELS",
    "VALIDATION",
    "Evaluation",
    "Place",
    "Score",
    "Unmeasured",
    "accuracy",
    "are_scored",
    "ari",
    "bare_name",
    "by_title",
    "cluster_gram",
    "clusterability",
    "clustering",
    "clustering_objective",
    "clusters",
    "confusion",
    "counts",
    "f1",
    "gradient_diversity",
    "is_taken",
    "learning_objective",
    "least_within",
    "measured",
    "moves",
    "nmi",
    "objective",
    "pair_purity",
    "purity",
    "register_score",
    "round_bound",
    "score",
    "score_names",
    "scores",
    "sizes",
    "step_bound",
    "within_between",
]
