"""The methods that stand on a seam as plain loops, in the manner of `tests.plain`: models are vectors."""

from typing import NamedTuple

import numpy as np

from tests import plain


def losses(models, client):
    """The loss of every example under every model. [n, k]"""
    x, y = client
    rows = np.arange(len(y))
    return np.stack([-np.log(plain.chances(plain.logits(model, x))[rows, y]) for model in models], 1)


def responsibilities(models, client, weights, shares=None):
    """FedEM's E-step: q ∝ π exp(−ℓ); FedRC's, with the classes' shares [k, c]: q ∝ π exp(−ℓ) / share. [n, k]"""
    corrected = 0 if shares is None else np.log(shares)[:, client[1]].T
    return plain.chances(np.log(weights) - losses(models, client) - corrected)


def shares_of(counts):
    """The share of each class in a cluster; a class that is not there has 1e-8 examples. [k, c]"""
    counts = np.maximum(counts, 1e-8)
    return counts / counts.sum(1, keepdims=True)


def fedem(clients, cohorts, models, classes=None):
    """Marfoq et al. 2021, Alg. 1: every client trains all models; yields the mixture weights too.

    With a number of `classes` it is FedRC (Guo et al. 2024).
    """
    m, k = len(clients), len(models)
    labels, weights, told = np.full(m, -1), np.full((m, k), 1 / k), np.zeros((m, k, classes or 0))
    for cohort in cohorts:
        uploads, shares = {}, shares_of(told.sum(0)) if classes else None
        for i in cohort:
            q = responsibilities(models, clients[i], weights[i], shares)
            for label in range(classes or 0):
                told[i, :, label] = q[clients[i][1] == label].sum(0)
            parts = zip(models, q.T, strict=True)
            uploads[i] = np.array([plain.trained(model, clients[i], counts=row[:, None]) for model, row in parts])
            weights[i] = q.mean(0)
            labels[i] = weights[i].argmax()
        models = plain.mean(uploads, plain.sizes(clients))
        yield labels.copy(), models, models.mean(0), weights.copy()


def fedper(clients, cohorts, first, part, pull=0.0):
    """FedAvg of all parameters but a `part`, which stays with the client; yields every client's own model too."""
    own, model = np.tile(first, (len(clients), 1)), first.copy()
    for cohort in cohorts:
        uploads = {}
        for i in cohort:
            start = model.copy()
            start[part] = own[i, part]
            uploads[i] = plain.trained(start, clients[i], plain.pull(pull, start))
            own[i, part] = uploads[i][part]
        model = plain.mean(uploads, plain.sizes(clients))
        model[part] = first[part]
        served = np.tile(model, (len(clients), 1))
        served[:, part] = own[:, part]
        yield np.zeros(len(clients), int), model[None], model, served


def scaffold(clients, cohorts, model):
    """Karimireddy et al. 2020, Alg. 1 with option II; yields the control variates too."""
    control, own = np.zeros_like(model), np.zeros((len(clients), model.size))
    for cohort in cohorts:
        uploads, change = {}, np.zeros_like(model)
        for i in cohort:
            uploads[i] = plain.trained(model, clients[i], lambda vector, i=i: control - own[i])
            new = own[i] - control + (model - uploads[i]) / (plain.EPOCHS * plain.LR)
            change += new - own[i]
            own[i] = new
        model, control = plain.mean(uploads, plain.sizes(clients)), control + change / len(clients)
        yield np.zeros(len(clients), int), model[None], model, own.copy(), control.copy()


class Moments(NamedTuple):
    """Adam's state, of one model or of many."""

    count: np.ndarray
    mu: np.ndarray
    nu: np.ndarray


def no_moments(*shape):
    return Moments(np.zeros(shape[:-1], int), np.zeros(shape), np.zeros(shape))


def adam(state, old, new, *, lr, b1=0.9, b2=0.99, eps=1e-3):
    """A model after the server's step from `old` towards the clients' mean `new`, and Adam's state."""
    slope = old - new
    count, mu, nu = state.count + 1, b1 * state.mu + (1 - b1) * slope, b2 * state.nu + (1 - b2) * slope**2
    return old - lr * mu / (1 - b1**count) / (np.sqrt(nu / (1 - b2**count)) + eps), Moments(count, mu, nu)


def fedadam(clients, cohorts, model, **options):
    state = no_moments(model.size)
    for cohort in cohorts:
        mean = plain.mean({i: plain.trained(model, clients[i]) for i in cohort}, plain.sizes(clients))
        model, state = adam(state, model, mean, **options)
        yield np.zeros(len(clients), int), model[None], model


def stepped(models, moments, labels, uploads, weights, **options):
    """Every cluster's model after its own Adam; a cluster in which nobody trained stays as it is."""
    means = plain.by_cluster(models, labels, uploads, lambda here: plain.mean(here, weights))
    models, moments = models.copy(), Moments(*(leaf.copy() for leaf in moments))
    for k in {labels[i] for i in uploads}:
        models[k], new = adam(Moments(*(leaf[k] for leaf in moments)), models[k], means[k], **options)
        for leaf, value in zip(moments, new, strict=True):
            leaf[k] = value
    return models, moments


def stocfl_adam(clients, cohorts, first, labels, *, lam, **options):
    """StoCFL with Adam for every cluster, the clustering given: `labels` [turns + 1, m]. Yields Adam's states too."""
    m, weights = len(clients), plain.sizes(clients)
    seen, shared, models = np.zeros(m, bool), first, np.tile(first, (m, 1))
    moments, common = no_moments(m, first.size), no_moments(first.size)
    for cohort, before, after in zip(cohorts, labels, labels[1:], strict=False):
        new, begun = np.tile(shared, (m, 1)), no_moments(m, first.size)
        for k in set(after) - {-1}:
            united = [c for c in set(before[after == k]) - {-1} if (seen & (before == c)).any()]
            if united:
                share = np.array([(seen & (before == c)).sum() for c in united], float)
                mean = lambda leaf, united=united, share=share: np.average(leaf[united], axis=0, weights=share)
                new[k] = mean(models)
                begun.count[k], begun.mu[k], begun.nu[k] = np.rint(mean(moments.count)), *map(mean, moments[1:])
        beside = plain.mean({i: plain.trained(shared, clients[i]) for i in cohort}, weights)
        pulled = {i: plain.trained(new[after[i]], clients[i], plain.pull(lam, shared)) for i in cohort}
        models, moments = stepped(new, begun, after, pulled, weights, **options)
        shared, common = adam(common, shared, beside, **options)
        seen[cohort] = True
        yield models, shared, moments


def divided_adam(clients, first, labels, k, parents, **options):
    """Clusters that are divided, with Adam for each: `labels` [turns + 1, m] and where each slot comes from."""
    weights = plain.sizes(clients)
    models, moments = np.tile(first, (k, 1)), no_moments(k, first.size)
    for before, after, parent in zip(labels, labels[1:], parents, strict=False):
        uploads = {i: plain.trained(models[before[i]], clients[i]) for i in range(len(clients))}
        models, moments = models[parent], Moments(*(leaf[parent] for leaf in moments))
        models, moments = stepped(models, moments, after, uploads, weights, **options)
        yield models, moments
