"""Add-ons against plain loops: their terms by differences in float64, CAM round by round, tuned and voted answers."""

import jax
import numpy as np
import pytest

from jcfl import methods as methods
from tests import plain, tiny
from tests.test_oracles import CLIENTS, TURNS, agree, cohorts, first_of, setting, several

MU, TAU, LAM, WARM = 0.7, 0.5, 0.4, 3.0


def term_con_para(vector, client, own, models, shared, part=plain.HEAD):
    return MU * contrast(cosine(models[:, part], vector[part]), own, TAU)


def term_con_rep(vector, client, own, models, shared, seen=plain.features):
    near = np.array([cosine(seen(model, client[0]), seen(vector, client[0])) for model in models])
    return MU * contrast(near, own, TAU).mean()


def term_cks(vector, client, own, models, shared, part=slice(None)):
    return LAM / 2 * ((vector - shared)[part] ** 2).sum()


def term_distill(vector, client, own, models, shared):
    chances = lambda model: plain.chances(plain.logits(model, client[0]) / WARM)
    return MU * WARM**2 * (chances(shared) * np.log(chances(shared) / chances(vector))).sum(1).mean()


def term_con_cks(vector, *sent):
    return term_con_para(vector, *sent) + term_cks(vector, *sent, part=plain.BODY)


def term_options(vector, client, own, models, shared, shares):
    """Each of them the other way: CON on everything, on logits, taught by the own model, CKS between pairs."""
    sent = client, own, models, shared
    gaps = ((vector - models)[:, plain.HEAD] ** 2).sum(1)
    contrasts = term_con_para(vector, *sent, part=slice(None)) + term_con_rep(vector, *sent, seen=plain.logits)
    taught = term_distill(vector, client, own, models, models[own])
    pairs = LAM / 2 * np.delete(shares * gaps, own).sum()
    return contrasts + taught + pairs


CON = {"mu": MU, "temperature": TAU}
TERMS = {
    "con_para": ([{"name": "con_para", **CON}], term_con_para),
    "con_rep": ([{"name": "con_rep", **CON}], term_con_rep),
    "cks": ([{"name": "cks", "lam": LAM}], term_cks),
    "con_cks": ([{"name": "con_cks", "lam": LAM, **CON}], term_con_cks),
    "distill": ([{"name": "distill", "mu": MU, "temperature": WARM}], term_distill),
    "options": (
        [
            {"name": "con_para", "on": "everything", **CON},
            {"name": "con_rep", "of": "logits", **CON},
            {"name": "distill", "mu": MU, "temperature": WARM, "teacher": "start"},
            {"name": "cks", "form": "pairwise", "on": "head", "lam": LAM},
        ],
        term_options,
    ),
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_step_by_their_gradient(name):
    """Two local steps in float64, the terms' share of each by central differences."""
    addons, term = TERMS[name]
    with jax.enable_x64(True):
        states = tiny.run(tiny.built("ifca", setting(extras=addons), clusters=3), 1)
    models, shared, labels = plain.vectors(states.clusters, 2)[0], first_of(states), several(states.labels[1])
    weights = plain.sizes(CLIENTS)
    more = (np.bincount(labels, weights, minlength=3) / weights.sum(),) if name == "options" else ()
    uploads = {}
    for i, client in enumerate(CLIENTS):
        sent = (client, labels[i], models, shared, *more)
        extra = lambda vector, sent=sent: slope(lambda at: term(at, *sent), vector)
        uploads[i] = plain.trained(models[labels[i]], client, extra)
    expected = plain.by_cluster(models, labels, uploads, lambda here: plain.mean(here, weights))
    np.testing.assert_allclose(plain.vectors(states.clusters, 2)[1], expected, rtol=0, atol=2e-9)
    bare = {i: plain.trained(models[labels[i]], client) for i, client in enumerate(CLIENTS)}
    assert max(np.abs(uploads[i] - bare[i]).max() for i in bare) > 1e-3


def slope(function, vector, width=1e-5):
    """Central differences."""
    steps = width * np.eye(vector.size)
    return np.array([function(vector + step) - function(vector - step) for step in steps]) / (2 * width)


def cosine(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def contrast(near, own, temperature):
    """−log of the softmax of cosines [k, ...] at the own cluster, Ma 2023, eqs. 4.3 and 4.4."""
    return -np.log(plain.chances(np.moveaxis(near, 0, -1) / temperature)[..., own])


UPDATES = pytest.mark.parametrize("update", ["simultaneous", "alternating"])


@UPDATES
def test_ifca_cam(update):
    here = setting(0.75, extras=[{"name": "cam", "warmup": 2, "update": update}])
    states = tiny.run(tiny.built("ifca", here, clusters=3), TURNS + 1)
    asked, models = cohorts(here, states, tiny.federation()), plain.vectors(states.clusters, 2)[0]
    in_turn = update == "alternating"
    agree(states, plain.ifca_cam(CLIENTS, asked, models, first_of(states), warmup=2, in_turn=in_turn))
    several(states.labels[-1])


@UPDATES
def test_fesem_cam(update):
    here = setting(0.75, extras=[{"name": "cam", "warmup": 2, "update": update}])
    states = tiny.run(tiny.built("fesem", here, clusters=2, lam=0.2), TURNS + 1)
    asked, first = cohorts(here, states, tiny.federation()), first_of(states)
    options = {"k": 2, "labels_of": lambda turn: states.labels[turn + 1], "lam": 0.2, "warmup": 2}
    agree(states, plain.fesem_cam(CLIENTS, asked, first, **options, in_turn=update == "alternating"))
    several(states.labels[2])


def answered(algorithm, turns):
    """The state after some rounds, and its answer to every test row, in one program."""
    data = jax.device_put(tiny.federation())

    def whole(key):
        step = lambda _, state: algorithm.step(state, data)
        state = jax.lax.fori_loop(0, turns, step, algorithm.init(key, data))
        return state, algorithm.predict(state, data)

    state, (labels, logits) = jax.jit(whole)(jax.random.key(0))
    data = tiny.federation()
    owner = np.repeat(np.arange(8), data.test.size)
    return state, np.asarray(labels), np.asarray(logits), owner, data.x[data.test.rows].reshape(len(owner), -1)


def test_finetune():
    state, labels, logits, owner, x = answered(
        tiny.built("ifca", setting(extras=[{"name": "finetune", "steps": 3}]), clusters=3), 2
    )
    models = plain.vectors(state.clusters, 1)
    np.testing.assert_array_equal(labels, [np.argmin([plain.loss(m, client) for m in models]) for client in CLIENTS])
    tuned = [plain.trained(models[k], client, epochs=3) for k, client in zip(labels, CLIENTS, strict=True)]
    expected = [plain.logits(tuned[i], row[None])[0] for i, row in zip(owner, x, strict=True)]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_voting():
    here = setting(extras=[{"name": "voting", "method": "ifca", "options": {"clusters": 2}}])
    state, labels, logits, owner, x = answered(tiny.built("fedavg", here), 2)
    one, models = plain.vectors(state.clusters, 1)[0], plain.vectors(state.memory.others.clusters, 2)[0]
    chosen = [models[np.argmin([plain.loss(m, client) for m in models])] for client in CLIENTS]
    votes = [
        np.mean([plain.chances(plain.logits(model, row[None])[0]) for model in (one, chosen[i])], axis=0)
        for i, row in zip(owner, x, strict=True)
    ]
    assert (labels == 0).all()
    np.testing.assert_allclose(plain.chances(logits), votes, rtol=0, atol=1e-5)
    np.testing.assert_allclose(logits, np.log(votes), rtol=0, atol=1e-4)
