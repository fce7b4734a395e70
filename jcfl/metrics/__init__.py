"""What a run is measured by: scores of predictions, clusters against the true groups, and clusters by themselves.

Every function is pure, of fixed shape and free of jit, so it runs inside a jitted evaluation and on NumPy arrays alike.
Float32 is enough throughout: counts stay integers until they are divided, and nothing is formed as a difference of
large sums. A value that nothing defines (no test example, no known group) is NaN. T is Ma, Clustered Federated
Learning; E Bhattacharya and Aridi, Empirical Exploration of Clustered Federated Learning; S Zeng et al., StoCFL.
"""

from jcfl.metrics.agreement import ari, clustering, contingency, moves, nmi, pair_purity, purity, sizes
from jcfl.metrics.quality import (
    cluster_gram,
    clusterability,
    clustering_objective,
    learning_objective,
    objective,
    quality,
    within_between,
)
from jcfl.metrics.scores import accuracy, confusion, counts, f1, scores

__all__ = [
    "accuracy",
    "ari",
    "cluster_gram",
    "clusterability",
    "clustering",
    "clustering_objective",
    "confusion",
    "contingency",
    "counts",
    "f1",
    "learning_objective",
    "moves",
    "nmi",
    "objective",
    "pair_purity",
    "purity",
    "quality",
    "scores",
    "sizes",
    "within_between",
]
