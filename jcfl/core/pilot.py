"""How many clusters there are, judged by gradients of parts of the clients' data: no true group, no test data.

Every client's training examples are dealt at random into some parts, and the gradient of each part is taken at an
initial model. Clients are merged by all parts but one as StoCFL merges them, down to one cluster. The gradients of the
part that was left out say how good the clusters are: a cluster's mean gradient should be near them. Too few clusters
join clients that differ. With too many, the means are those of few examples, and so they are far from the gradients of
others. Each part is left out in turn, which is cross-validation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jcfl import metrics, trees
from jcfl.core import chunks
from jcfl.core.describing import Description, Dot, anchor_gradient, sketched
from jcfl.types import Array, Clients, Federation, Key, Model, Task

SKETCH = 2**15
"""Longer gradients are folded to so many numbers; inner products then have errors of less than 1 %."""


PARTS = 4
"""How many parts a client's examples are dealt into."""

GRID = np.round(np.arange(-0.5, 1.005, 0.01), 2)
"""The thresholds that are compared."""


class Merges(NamedTuple):
    """Greedy merging of p clients down to one cluster."""

    pairs: np.ndarray  # [p - 1, 2] the rows that unite, the first of which stays
    cosines: np.ndarray  # [p - 1] the cosine at which they do


class Evidence(NamedTuple):
    """What a number of clusters, and a threshold between cosines, are chosen by."""

    tau: float  # the threshold for cosines that are corrected for noise
    plain: float  # the threshold for plain cosines, by which all training data are merged into the same clusters
    labels: np.ndarray  # [p] every client's row, merged at `tau` by all its training data
    grid: np.ndarray  # [t] thresholds that were compared, ascending
    error: np.ndarray  # [t] squared distance of gradients to their cluster's, as a share of their squared length
    counts: np.ndarray  # [t] how many clusters there are at each threshold, merged by all training data
    apart: float  # CFL's ε2 as a share of the longest gradient, see `remainders`
    settled: float  # CFL's ε1 as a share of the mean gradient's length; 0 where there is one cluster

    @property
    def clusters(self) -> int:
        """How many clusters have two clients or more; at least one."""
        return max(1, int((np.bincount(self.labels) > 1).sum()))


def gram_of_parts(
    task: Task, anchor: Model, federation: Federation, who: Array, key: Key, chunk: int
) -> tuple[Array, Array]:
    """Inner products of the gradients of `PARTS` random parts of every client's training examples.

    Args:
        who: the clients. [p] int32
        key: of the parts.
        chunk: how many clients are worked on at a time.

    Returns:
        the products by part and client, twice [f, p, f, p], and the examples in each part [f, p]. A part without
        examples has a gradient of zero.
    """

    def form(task: Task, dot: Dot, anchor: Model, data: Clients, key: Key) -> tuple[Model, Array]:
        return anchor_gradient(task, anchor, data), jnp.ones(())

    describe = Description(task, form, False)
    if trees.parameters(anchor["params"]) > SKETCH:
        describe = sketched(describe, SKETCH, jax.random.key(SKETCH))

    def parts(client: Array, data: Clients) -> tuple[Model, Array]:
        order = jax.random.uniform(jax.random.fold_in(key, client), data.mask.shape)
        part = jnp.where(data.mask, order, jnp.inf).argsort().argsort() % PARTS

        def one(index: Array) -> tuple[Model, Array]:
            mask = data.mask & (part == index)
            count = mask.sum()
            gradient, _ = describe(anchor, data.replace(mask=mask), key)
            return jax.tree.map(lambda leaf: jnp.where(count > 0, leaf, 0.0), gradient), count

        return jax.lax.map(one, jnp.arange(PARTS))

    gradients, counts = chunks.over_clients(parts, federation, who, min(chunk, who.size))  # [p, f, ...]
    rows = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1).reshape(-1, *leaf.shape[2:]), gradients)
    return trees.inner(rows, rows).reshape(PARTS, who.size, PARTS, who.size), counts.T


def evidence(grams: np.ndarray, counts: np.ndarray) -> Evidence:
    """The number of clusters and the threshold, chosen by the errors of several divisions into parts.

    A threshold is good if its error is at most one standard error over clients above the smallest error. Of the good
    thresholds around the best one, without gaps, the middle one is taken: the number of clusters is the one that it
    gives when all training data are merged. The threshold is the middle of those that give this number.

    Args:
        grams, counts: of each division, see `gram_of_parts`. [r, f, p, f, p], [r, f, p]
    """
    grams, counts = grams.astype(float), counts.astype(float)
    folds = [held_out(gram, count, part) for gram, count in zip(grams, counts, strict=True) for part in range(PARTS)]
    errors = np.mean(folds, 0)  # [t, p]
    own = np.mean([np.einsum("fp,fpfp->", one, gram) / one.sum() for gram, one in zip(grams, counts, strict=True)])
    mean = errors.mean(1)
    best = int(mean.argmin())
    excess = errors - errors[best]
    good = excess.mean(1) <= excess.std(1, ddof=1) / np.sqrt(errors.shape[1])
    place = middle(good, best)
    whole, sizes, trust = joined(grams[0], counts[0])
    merges = merged(unit(whole, trust))
    found = np.array([clusters_at(merges, tau) for tau in GRID])
    tau = float(GRID[middle(found == found[place], place)])
    labels = labels_at(merges, found[place])
    plain = like(merged(unit(whole)), labels)
    return Evidence(tau, plain, labels, GRID, mean / own, found, *remainders(whole, sizes, labels))


def joined(gram: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of some parts together: their products [p, p], the examples [p], and the trust in them [p].

    The trust is the share of a gradient's squared length that is not noise. It is estimated by the products of
    different parts, and clipped to [0.05, 1]; see `jcfl.core.describing.halves`.

    Args:
        gram, counts: of these parts. [f, p, f, p], [f, p]
    """
    sizes = counts.sum(0)
    share = counts / np.maximum(sizes, 1)
    whole = np.einsum("fp,fpgq,gq->pq", share, gram, share)
    pairs = np.einsum("fpgp->fgp", gram)
    weight = np.einsum("fp,gp->fgp", share, share) * (1 - np.eye(len(counts)))[:, :, None]
    signal = (weight * pairs).sum((0, 1)) / np.maximum(weight.sum((0, 1)), 1e-30)
    return whole, sizes, np.clip(signal / np.maximum(np.diagonal(whole), 1e-30), 0.05, 1.0)


def held_out(gram: np.ndarray, counts: np.ndarray, part: int) -> np.ndarray:
    """Every client's error when clusters and means are those of all parts but one, at each threshold. [t, p]

    The error is the squared distance of the gradient of the part left out from the mean gradient of the others of its
    cluster; zero for a client without examples in it.
    """
    rest = np.arange(len(counts)) != part
    inside, weight, trust = joined(gram[rest][:, :, rest], counts[rest])
    across = np.einsum("fp,fpq->pq", counts[rest] / np.maximum(weight, 1), gram[rest][:, :, part])
    own, p = np.diagonal(gram[part][:, part]), len(weight)
    total, products = inside * np.outer(weight, weight), across * weight[:, None]
    merges = merged(unit(inside, trust))
    label, errors = np.arange(p), np.empty((p, p))
    errors[p - 1] = own - 2 * np.diagonal(across) + np.diagonal(inside)
    for step, (a, b) in enumerate(merges.pairs):
        label[label == b] = a
        weight[a] += weight[b]
        total[a] += total[b]
        total[:, a] += total[:, b]
        products[a] += products[b]
        members = np.flatnonzero(label == a)
        errors[p - 2 - step] = errors[p - 1 - step]
        mean = 2 * products[a, members] / weight[a] - total[a, a] / weight[a] ** 2
        errors[p - 2 - step, members] = own[members] - mean
    return np.where(counts[part] > 0, errors[[clusters_at(merges, tau) - 1 for tau in GRID]], 0.0)


def remainders(whole: np.ndarray, sizes: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """`apart` and `settled` of `Evidence`, for Sattler et al. (2020), https://arxiv.org/abs/1910.01991.

    At a model that fits the mean of a cluster, what remains of a client's gradient is its difference from that mean.
    CFL splits where the longest remainder is above ε2 (eq. 5): here the geometric mean of the longest one in clusters
    that should be kept and the longest one of all clients together. ε1 (eq. 4) is a quarter of ε2, as in the authors'
    code.

    Args:
        whole: inner products of the clients' gradients. [p, p]
        labels: the clusters that should be kept. [p]
    """
    lengths = np.sqrt(np.maximum(np.diagonal(whole), 1e-30))
    longest = [remainder(whole, sizes, one).max() for one in (labels, np.zeros_like(labels))]
    apart = np.sqrt(longest[0] * longest[1])
    share = sizes / sizes.sum()
    mean = np.sqrt(max(share @ whole @ share, 1e-30))
    return float(apart / lengths.max()), float(apart / 4 / mean if labels.any() else 0.0)


def remainder(gram: np.ndarray, sizes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How far every client's gradient is from the mean of its cluster. [p]"""
    share = np.where(labels[:, None] == labels, sizes.astype(float), 0.0)
    share /= share.sum(1, keepdims=True)
    squared = np.diagonal(gram) - 2 * (share * gram).sum(1) + np.einsum("ij,jk,ik->i", share, gram, share)
    return np.sqrt(np.maximum(squared, 0))


def labels_at(merges: Merges, clusters: int) -> np.ndarray:
    """Every client's row after merging down to a number of clusters; zero for all where it is one. [p]"""
    label = np.arange(len(merges.pairs) + 1)
    for a, b in merges.pairs[: len(label) - clusters]:
        label[label == b] = a
    return label


def unit(gram: np.ndarray, trust: np.ndarray | None = None) -> np.ndarray:
    """Inner products of vectors scaled to length one, with `trust` [p] as their own squared lengths if given. [p, p]"""
    length = np.sqrt(np.maximum(np.diagonal(gram), 1e-30))
    found = gram / np.outer(length, length)
    np.fill_diagonal(found, 1.0 if trust is None else trust)
    return found


def merged(gram: np.ndarray) -> Merges:
    """Merges of the most similar clusters, whose vectors are sums, down to one cluster (see `merging.greedy`)."""
    gram, p = gram.copy(), len(gram)
    alive = np.ones(p, bool)
    pairs, cosines = np.empty((p - 1, 2), int), np.empty(p - 1)
    for step in range(p - 1):
        length = np.sqrt(np.maximum(np.diagonal(gram), 1e-30))
        cosine = np.where(np.triu(np.outer(alive, alive), 1), gram / np.outer(length, length), -np.inf)
        a, b = np.unravel_index(cosine.argmax(), cosine.shape)
        pairs[step], cosines[step] = (a, b), cosine[a, b]
        gram[a] += gram[b]
        gram[:, a] += gram[:, b]
        alive[b] = False
    return Merges(pairs, cosines)


def clusters_at(merges: Merges, tau: float) -> int:
    """How many clusters there are when merging stops at a cosine below τ."""
    below = np.flatnonzero(merges.cosines < tau)
    return len(merges.cosines) + 1 - int(below[0] if len(below) else len(merges.cosines))


def like(merges: Merges, labels: np.ndarray) -> float:
    """The threshold, in the middle of those that are equally good, at which clusters agree best with `labels` [p]."""
    counts = [clusters_at(merges, tau) for tau in GRID]
    agreement = {count: metrics.ari(labels_at(merges, count), labels) for count in set(counts)}
    score = [agreement[count] for count in counts]
    return float(GRID[middle(np.isclose(score, max(score)), int(np.argmax(score)))])


def middle(good: np.ndarray, place: int) -> int:
    """The middle of the run of true values around a place that is one of them."""
    wrong = np.flatnonzero(~good)
    first = wrong[wrong < place].max(initial=-1) + 1
    last = wrong[wrong > place].min(initial=len(good)) - 1
    return int(first + last) // 2
