"""Every method as a plain loop: a model is a vector, clients are visited one after another, scikit-learn clusters.

A loop yields, after every round, `(labels [m], clusters [k, p], shared [p])`. `clients` are pairs (x [n, d], y [n]),
`cohorts` the ids that take part in each round, `first` the models that the run itself began with.
"""

import itertools

import numpy as np
from scipy.stats import trim_mean
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import pairwise_distances, pairwise_distances_argmin

LR, EPOCHS = 0.5, 2
LEAVES = {("body", "kernel"): (16, 6), ("body", "bias"): (6,), ("head", "kernel"): (6, 10), ("head", "bias"): (10,)}
BODY = slice(0, 16 * 6 + 6)
HEAD = slice(BODY.stop, BODY.stop + 6 * 10 + 10)


def vectors(tree, lead=0):
    """Models as vectors, `lead` axes of stacked models kept."""
    leaves = [np.asarray(tree["params"][layer][leaf], float) for layer, leaf in LEAVES]
    return np.concatenate([leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves], -1)


def parts(vector):
    """A vector's four leaves."""
    ends = np.cumsum([np.prod(shape) for shape in LEAVES.values()])
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), LEAVES.values(), strict=True)]


def features(vector, x):
    kernel, bias, *_ = parts(vector)
    return np.tanh(x @ kernel + bias)


def logits(vector, x):
    *_, kernel, bias = parts(vector)
    return features(vector, x) @ kernel + bias


def chances(scores):
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def loss(vector, client, beside=0.0):
    """The mean cross-entropy of a model's logits, those `beside` it added."""
    x, y = client
    return -np.log(chances(logits(vector, x) + beside)[np.arange(len(y)), y]).mean()


def gradient(vector, client, beside=0.0, counts=1.0):
    """The gradient of `loss`, by hand; `counts` [n, 1] is what each example counts in it."""
    x, y = client
    error = counts * (chances(logits(vector, x) + beside) - np.eye(10)[y]) / len(y)
    hidden = features(vector, x)
    back = (error @ parts(vector)[2].T) * (1 - hidden**2)
    return np.concatenate([(x.T @ back).ravel(), back.sum(0), (hidden.T @ error).ravel(), error.sum(0)])


def trained(start, client, extra=lambda vector: 0.0, beside=0.0, epochs=EPOCHS, counts=1.0):
    """Full-batch gradient descent; `extra` is the gradient of the terms beside the loss."""
    vector = start
    for _ in range(epochs):
        vector = vector - LR * (gradient(vector, client, beside, counts) + extra(vector))
    return vector


def pull(weight, to):
    """The gradient of a proximal term."""
    return lambda vector: weight * (vector - to)


def sizes(clients):
    return np.array([len(y) for _, y in clients], float)


def mean(uploads, weights):
    """The weighted mean of uploads {client: vector}."""
    return np.average(list(uploads.values()), axis=0, weights=[weights[i] for i in uploads])


def by_cluster(models, labels, uploads, average):
    """The clusters' models after `average` of each one's uploads; a cluster without keeps its own."""
    models = models.copy()
    for k in range(len(models)):
        here = {i: upload for i, upload in uploads.items() if labels[i] == k}
        if here:
            models[k] = average(here)
    return models


def fedavg(clients, cohorts, first, *, mu=0.0, epsilon=1.0, weights=None, epochs=EPOCHS):
    """FedAvg; with `mu` FedProx, with `epsilon` and `weights` FedDist and FedDWS, with one epoch FedSGD."""
    weights = sizes(clients) if weights is None else weights
    for cohort in cohorts:
        uploads = {i: trained(first, clients[i], pull(mu, first), epochs=epochs) for i in cohort}
        first = first - epsilon * (first - mean(uploads, weights))
        yield np.zeros(len(clients), int), first[None], first


def feddane(clients, cohorts, asked, first, *, mu):
    weights = sizes(clients)
    for cohort, others in zip(cohorts, asked, strict=True):
        common = mean({i: gradient(first, clients[i]) for i in others}, weights)
        uploads = {}
        for i in cohort:
            fixed = common - gradient(first, clients[i])
            uploads[i] = trained(first, clients[i], lambda vector, fixed=fixed: fixed + mu * (vector - first))
        first = mean(uploads, weights)
        yield np.zeros(len(clients), int), first[None], first


def ditto(clients, cohorts, first, *, lam):
    own, shared = np.tile(first, (len(clients), 1)), first
    for cohort in cohorts:
        for i in cohort:
            own[i] = trained(own[i], clients[i], pull(lam, shared))
        shared = mean({i: trained(shared, clients[i]) for i in cohort}, sizes(clients))
        yield np.arange(len(clients)), own.copy(), shared


def ifca(clients, cohorts, models, shared, *, equally=False, tied=None, absent=False):
    labels, weights = np.full(len(clients), -1), np.ones(len(clients)) if equally else sizes(clients)
    for cohort in cohorts:
        for i in cohort:
            labels[i] = np.argmin([loss(model, clients[i]) for model in models])
        uploads = {i: trained(models[labels[i]], clients[i]) for i in cohort}
        new = by_cluster(models, labels, uploads, lambda here: mean(here, weights))
        shared = mean(uploads, sizes(clients))
        if absent:  # Ma 2023, eq. 7.6: a share of the members' weight moves the old model
            counted = np.array([weights[[i for i in cohort if labels[i] == k]].sum() for k in range(len(models))])
            whole = np.array([weights[labels == k].sum() for k in range(len(models))])
            new = models + (counted / np.maximum(whole, 1))[:, None] * (new - models)
            shared = np.average(new, axis=0, weights=counted)
        models = new
        if tied is not None:
            models[:, tied] = mean(uploads, weights)[tied]
        yield labels.copy(), models, shared


def turns(turn, warmup, in_turn):
    """Whether the cluster models are trained in a round, and whether the shared model is."""
    return (True, True) if not in_turn else ((turn - warmup) % 2 == 0, (turn - warmup) % 2 == 1)


def ifca_cam(clients, cohorts, models, shared, *, warmup, in_turn=False):
    """Ma 2023, Alg. 5: FedAvg for the shared model, then both parts in parallel, each with the other's logits fixed.

    Or in turn, a round each (§7.2.1).
    """
    labels, weights = np.full(len(clients), -1), sizes(clients)
    for turn, cohort in enumerate(cohorts):
        uploads, common = {}, {}
        for i in cohort:
            if turn < warmup:
                common[i] = trained(shared, clients[i])
                continue
            beside = logits(shared, clients[i][0])
            labels[i] = np.argmin([loss(model, clients[i], beside) for model in models])
            start = models[labels[i]]
            own, both = turns(turn, warmup, in_turn)
            uploads[i] = trained(start, clients[i], beside=beside) if own else start
            common[i] = trained(shared, clients[i], beside=logits(start, clients[i][0])) if both else shared
        models, shared = by_cluster(models, labels, uploads, lambda here: mean(here, weights)), mean(common, weights)
        yield labels.copy(), models, shared


def e_step(vectors, centres, counted):
    """scikit-learn's nearest centres, an empty cluster then given the farthest client that counts and can be spared."""
    labels = KMeans(len(centres), init=centres, n_init=1, max_iter=1).fit(centres).predict(vectors)
    for k in range(len(centres)):
        size = np.bincount(labels[counted], minlength=len(centres))
        if size[k] == 0:
            away = np.linalg.norm(vectors - centres[labels], axis=1) * counted * (size[labels] > 1)
            labels[away.argmax()] = k
    return labels


def m_step(vectors, labels, weights, centres):
    """The weighted means of the members that count."""
    counted = {i: vectors[i] for i in np.flatnonzero(weights)}
    return by_cluster(centres, labels, counted, lambda here: mean(here, weights))


def em_step(vectors, weights, centres):
    """An E- and an M-step; where no cluster was empty, scikit-learn's from the same centres are the judge."""
    counted = weights > 0
    labels = e_step(vectors, centres, counted)
    new = m_step(vectors, labels, weights, centres)
    if len(set(pairwise_distances_argmin(vectors[counted], centres))) == len(centres):
        judge = KMeans(len(centres), init=centres, n_init=1, max_iter=1)
        judge.fit(vectors[counted], sample_weight=weights[counted])
        np.testing.assert_allclose(judge.cluster_centers_, new, atol=1e-9)
    return labels, new


def placed(labels, centres, cohort, clients, seen, shared=None):
    """Labels with those who come for the first time in the cluster, of those in use, that does best on their data."""
    labels, used = labels.copy(), sorted(set(labels))
    for i in (i for i in cohort if not seen[i]):
        beside = 0.0 if shared is None else logits(shared, clients[i][0])
        labels[i] = used[np.argmin([loss(centres[k], clients[i], beside) for k in used])]
    return labels


def fesem(clients, cohorts, first, *, k, labels_of, lam=0.0, equally=True, refit=False):
    """FeSEM, and WeCFL by size; `labels_of(turn)` are the labels of a clustering from fresh seeds."""
    m = len(clients)
    count = np.ones(m) if equally else sizes(clients)
    own, centres, labels, seen = np.tile(first, (m, 1)), np.tile(first, (k, 1)), np.zeros(m, int), np.zeros(m, bool)
    for turn, cohort in enumerate(cohorts):
        labels = placed(labels, centres, cohort, clients, seen if turn else np.ones(m, bool))
        for i in cohort:
            own[i] = trained(centres[labels[i]], clients[i], pull(lam, centres[labels[i]]))
            seen[i] = True
        if turn == 0 or refit:
            labels = labels_of(turn)
            centres = m_step(own, labels, count * seen, centres)
        else:
            labels, centres = em_step(own, count * seen, centres)
        yield labels, centres, None, own.copy(), seen.copy()


def fesem_cam(clients, cohorts, first, *, k, labels_of, lam, warmup, in_turn=False):
    """Ma 2023, Alg. 5 and eqs. 7.10-7.15: local training alone, one clustering, then both parts in parallel or turn."""
    m = len(clients)
    own, centres, labels, seen = np.tile(first, (m, 1)), np.tile(first, (k, 1)), np.zeros(m, int), np.zeros(m, bool)
    shared = first
    for turn, cohort in enumerate(cohorts):
        common = {}
        if turn >= warmup:
            labels = placed(labels, centres, cohort, clients, seen, shared)
        for i in cohort:
            seen[i] = True
            if turn < warmup:
                own[i] = trained(own[i], clients[i])
                continue
            start, x = centres[labels[i]], clients[i][0]
            clusters, both = turns(turn, warmup, in_turn)
            own[i] = trained(start, clients[i], pull(lam, start), logits(shared, x)) if clusters else own[i]
            common[i] = trained(shared, clients[i], beside=logits(start, x)) if both else shared
        if turn == warmup - 1:
            labels = labels_of(turn)
            centres = m_step(own, labels, seen * 1.0, centres)
        elif turn >= warmup:
            labels, centres = em_step(own, seen * 1.0, centres)
            shared = mean(common, sizes(clients))
        yield labels, centres, shared


def cfl(clients, first, rounds, *, eps1, eps2, gamma=0.0, min_round=0):
    """Clusters split in two, thresholds as fractions of the first round's norms (Sattler et al. 2020)."""
    weights, everybody = sizes(clients), np.arange(len(clients))
    labels, models, scale = np.zeros(len(clients), int), [first], None
    for turn in range(rounds):
        uploads = {i: trained(models[labels[i]], clients[i]) for i in everybody}
        delta = np.array([uploads[i] - models[labels[i]] for i in everybody])
        if scale is None:
            scale = np.linalg.norm(np.average(delta, 0, weights)), np.linalg.norm(delta, axis=1).max()
        for c in range(len(models)):
            ids = np.flatnonzero(labels == c)
            settled = np.linalg.norm(np.average(delta[ids], 0, weights[ids])) < eps1 * scale[0]
            apart = np.linalg.norm(delta[ids], axis=1).max() > eps2 * scale[1]
            if settled and apart and len(ids) > 2 and turn >= min_round:
                away = pairwise_distances(delta[ids], metric="cosine")
                half = agglomerated(away, "complete", clusters=2) == 1
                if gamma == 0 or gamma < np.sqrt(away[half][:, ~half].min() / 2):
                    labels[ids[half]] = len(models)
                    models.append(models[c])
        models = list(by_cluster(np.array(models), labels, uploads, lambda here: mean(here, weights)))
        yield labels.copy(), np.array(models), mean(uploads, weights)


def agglomerated(away, linkage, *, clusters=None, threshold=None):
    """scikit-learn's labels, renamed in the order of clusters' first members."""
    judge = AgglomerativeClustering(clusters, metric="precomputed", linkage=linkage, distance_threshold=threshold)
    _, names = np.unique(judge.fit_predict(away), return_inverse=True)
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.array([order[name] for name in names])


def flhc(clients, cohorts, first, *, at, metric, linkage, clusters=None, threshold=None, k):
    weights = sizes(clients)
    labels, models, shared = np.zeros(len(clients), int), np.tile(first, (k, 1)), first
    for turn, cohort in enumerate(cohorts):
        if turn == at:
            updates = [trained(shared, client) - shared for client in clients]
            away = pairwise_distances(updates, metric=metric)
            labels = agglomerated(away, linkage, clusters=clusters, threshold=threshold)
            models = np.tile(shared, (k, 1))
        uploads = {i: trained(models[labels[i]], clients[i]) for i in cohort}
        models, shared = by_cluster(models, labels, uploads, lambda here: mean(here, weights)), mean(uploads, weights)
        yield labels, models, shared


def k_means(points, k, metric="euclidean", centre=np.mean, trim=0.0):
    """The best labels that K-means reaches from any k of the points; a cluster's farthest share `trim` is dropped."""

    def assigned(centres):
        away = pairwise_distances(points, centres, metric=metric) ** (2 if metric == "euclidean" else 1)
        labels, own = away.argmin(1), away.min(1)
        ranked = [ids[np.argsort(own[ids])] for ids in (np.flatnonzero(labels == c) for c in range(k))]
        return labels, own, [ids[: len(ids) - int(trim * len(ids))] for ids in ranked]

    best = np.inf, ()
    for seeds in itertools.combinations(range(len(points)), k):
        centres = points[list(seeds)]
        for _ in range(20):
            centres = np.array([centre(points[ids], axis=0) for ids in assigned(centres)[2]])
        labels, own, kept = assigned(centres)
        best = min(best, (sum(own[ids].sum() for ids in kept), tuple(labels)))
    return np.array(best[1])


def oneshot(clients, cohorts, first, *, k, initial_epochs, labels_by, average, beginning):
    """Everybody trains once, `labels_by` groups them, and then `average` makes a model of each cluster's uploads.

    A cluster starts at the `beginning` of its clients' first models.
    """
    start = np.array([trained(first, client, epochs=initial_epochs) for client in clients])
    labels = labels_by(start)
    models = np.array([beginning({i: start[i] for i in np.flatnonzero(labels == c)}) for c in range(k)])
    for cohort in cohorts:
        uploads = {i: trained(models[labels[i]], clients[i]) for i in cohort}
        models = by_cluster(models, labels, uploads, average)
        yield labels, models, None


def trimmed_mean(beta):
    return lambda uploads: trim_mean(np.array(list(uploads.values())), beta, axis=0)
