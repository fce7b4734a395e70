"""Layers that grow: new neurons by an Indian buffet process, inside a fixed width."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import jcfl
from jcfl import models
from jcfl.core import chain, growing
from jcfl.core.chain import Layer
from jcfl.models import Network
from tests import tiny

SHAPE, CLASSES = (4, 4, 1), 3
NETWORKS = {
    "mlp": Network(CLASSES, hidden=(8, 6), spare=0.5),
    "conv": Network(CLASSES, filters=(4,), hidden=(6,), kernel=3, pooled=(0,), norm=True, spare=0.5),
}
CHAINS = {
    "mlp": (Layer("dense_0"), Layer("dense_1"), Layer("head")),
    "conv": (Layer("conv_0", ("norm_0",)), Layer("dense_0"), Layer("head")),
}
USED = {"mlp": (4, 3), "conv": (2, 3)}
CHAIN = pytest.mark.parametrize("kind", NETWORKS)
OPTIONS = {"growth": 1.0, "sigma": 0.1, "sigma_bias": 0.2, "spread": 0.7}


@functools.cache
def task(kind: str):
    return models.task(NETWORKS[kind], SHAPE, CLASSES, name=kind)


def stacked(rows):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def counted(model, kind):
    return tuple(int(growing.used_neurons(model, layer).sum()) for layer in CHAINS[kind][:-1])


def moved(rng, model, kind, scale):
    """The model with noise on what its used neurons have."""
    mask = growing.used_entries(model, CHAINS[kind])
    noise = lambda leaf, there: np.where(there, leaf + scale * rng.normal(size=leaf.shape), leaf).astype(leaf.dtype)
    return jax.tree.map(noise, model, mask)


@functools.cache
def mean(kind: str):
    def found(labels, weights, uploads, default, counts, growth):
        return growing.grown_mean(
            labels, weights, uploads, default, layers=CHAINS[kind], class_counts=counts, **OPTIONS | {"growth": growth}
        )

    return jax.jit(found)


@functools.cache
def federation(kind: str, scale: float = 0.02):
    """Two clusters; the first and the last client of cluster 0 start elsewhere, so that their neurons are new."""
    rng = np.random.default_rng(3)
    starts = [moved(rng, task(kind).init(jax.random.key(seed)), kind, 0.3) for seed in range(3)]
    labels = np.array([0, 1, 0, 0, 1, 0], np.int32)
    weights = np.array([2, 1, 3, 0, 4, 1], np.float32)  # client 3 is absent
    source = [2, 1, 0, 0, 1, 2]
    clients = [moved(rng, starts[i], kind, scale) for i in source]
    counts = rng.integers(0, 5, (6, CLASSES)).astype(np.int32)
    return labels, weights, stacked(clients), stacked(starts[:2]), counts


@CHAIN
def test_unused_neurons_change_neither_answers_nor_training(kind):
    """A network with spare neurons is the smaller network, in its start, its answers and its gradients."""
    whole, (one, two) = NETWORKS[kind], USED[kind]
    small = whole.clone(
        spare=0.0, filters=(one,) if whole.filters else (), hidden=(two,) if whole.filters else (one, two)
    )
    tasks = task(kind), models.task(small, SHAPE, CLASSES)
    big, little = (each.init(jax.random.key(1)) for each in tasks)
    assert counted(big, kind) == USED[kind]

    def reduced(model):
        """The part of the model that the smaller network has."""
        layers, found = CHAINS[kind], jax.tree.map(np.asarray, model)
        orders = [np.argsort(~np.asarray(growing.used_neurons(big, layer)), stable=True) for layer in layers[:-1]]
        found = chain.permuted(found, orders, layers)
        cut = lambda leaf, like: leaf[tuple(slice(size) for size in like.shape)]
        dense = found["params"]["dense_0"]["kernel"]
        if whole.filters:  # after a flattened convolution the channel runs fastest
            dense = dense.reshape(-1, whole.filters[0], dense.shape[-1])[:, :one].reshape(-1, dense.shape[-1])
            found["params"]["dense_0"] = {**found["params"]["dense_0"], "kernel": dense}
        return jax.tree.map(cut, found, jax.tree.map(np.asarray, little))

    jax.tree.map(np.testing.assert_array_equal, reduced(big), jax.tree.map(np.asarray, little))
    x, y = np.random.default_rng(0).normal(size=(5, *SHAPE)).astype(np.float32), np.arange(5) % CLASSES

    def steps(one_task, model):
        def loss(params, model):
            logits, after = one_task.apply({**model, "params": params}, x, key=jax.random.key(0), mask=np.ones(5, bool))
            return one_task.loss(logits, y).mean(), after

        for _ in range(3):
            gradient, after = jax.grad(loss, has_aux=True)(model["params"], model)
            params = jax.tree.map(lambda a, b: a - 0.3 * (b + 0.01 * a), model["params"], gradient)  # weight decay too
            model = {**after, "params": params}
        return model, one_task.apply(model, x)[0]

    (trained, answers), (expected, want) = (
        jax.jit(functools.partial(steps, t))(m) for t, m in zip(tasks, (big, little), strict=True)
    )
    np.testing.assert_allclose(answers, want, atol=1e-5)
    assert counted(trained, kind) == USED[kind]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        reduced(trained)["params"],
        jax.tree.map(np.asarray, expected["params"]),
    )


@CHAIN
def test_new_neurons_are_added_and_those_of_nobody_go(kind):
    labels, weights, uploads, default, counts = federation(kind)
    found = mean(kind)(labels, weights, uploads, default, counts, 1.0)
    per = [counted(jax.tree.map(lambda leaf, k=k: leaf[k], found), kind) for k in range(2)]
    first = tuple(min(2 * used, width) for used, width in zip(USED[kind], NETWORKS[kind].widths, strict=True))
    assert per == [first, USED[kind]]  # clients 0 and 5 share their new neurons

    only = np.where(np.isin(np.arange(6), (0, 5)), weights, 0)
    found = mean(kind)(labels, only, uploads, default, counts, 1.0)
    assert counted(jax.tree.map(lambda leaf: leaf[0], found), kind) == USED[kind]  # the old ones are nobody's
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b[1]), found, default)  # nobody is in cluster 1


def test_a_smaller_rate_adds_fewer_neurons():
    few, many = (
        counted(jax.tree.map(lambda leaf: leaf[0], mean("mlp")(*federation("mlp"), growth)), "mlp")
        for growth in (1e-37, 1.0)
    )
    assert few[0] < many[0]


@CHAIN
def test_the_mean_does_not_depend_on_the_order_of_neurons(kind):
    labels, weights, uploads, default, counts = federation(kind)
    rng = np.random.default_rng(0)
    rows = [jax.tree.map(lambda leaf, i=i: leaf[i], uploads) for i in range(labels.size)]
    orders = lambda: [rng.permutation(width) for width in NETWORKS[kind].widths]
    shuffled = stacked([jax.tree.map(np.asarray, chain.permuted(row, orders(), CHAINS[kind])) for row in rows])
    x = rng.normal(size=(7, *SHAPE)).astype(np.float32)
    answers = lambda found: jax.vmap(lambda model: task(kind).apply(model, x)[0])(found)
    one, two = (mean(kind)(labels, weights, some, default, counts, 1.0) for some in (uploads, shuffled))
    np.testing.assert_allclose(answers(one), answers(two), atol=1e-4)


def by_loops(labels, weights, uploads, default, counts, growth, sigma, sigma_bias, spread):
    """`grown_mean` of a network with one hidden layer, client by client, with SciPy's assignments."""
    params = jax.tree.map(np.array, default)["params"]
    for k in range(2):
        who = [i for i in range(labels.size) if labels[i] == k and weights[i] > 0]
        if not who:
            continue
        kernel, bias = uploads["params"]["dense_0"]["kernel"], uploads["params"]["dense_0"]["bias"]
        out, width = uploads["params"]["head"]["kernel"], bias.shape[1]
        old = default["params"]["dense_0"]
        vector = lambda kernel, bias, j: np.array([*kernel[:, j] / sigma, bias[j] / sigma_bias])
        atoms = [
            [vector(old["kernel"][k], old["bias"][k], j)] * bool(old["kernel"][k][:, j].any()) for j in range(width)
        ]
        has, total, prior = {}, len(who) + 1, (sigma / spread) ** 2
        for i in who:
            mine = [j for j in range(width) if kernel[i][:, j].any()]
            free, gain = [j for j in range(width) if not atoms[j]], np.zeros((len(mine), width))
            for row, j in enumerate(mine):
                v = vector(kernel[i], bias[i], j)
                for place in range(width):
                    n, s = len(atoms[place]), np.sum(atoms[place], axis=0) if atoms[place] else 0 * v
                    gain[row, place] = ((s + v) ** 2).sum() / (prior + n + 1) - (s**2).sum() / (prior + n)
                    rank = free.index(place) + 1 if place in free else 0
                    gain[row, place] += 2 * np.log(n / (total - n)) if n else -2 * np.log(rank * total / growth)
            for row, place in zip(*linear_sum_assignment(-gain), strict=True):
                atoms[place] = [*atoms[place], vector(kernel[i], bias[i], mine[row])]
                has[i, place] = mine[row]
        for place in range(width):
            having = [i for i in who if (i, place) in has]
            share = [weights[i] for i in having]
            average = lambda values, share=share: np.average(values, 0, share) if share else 0
            params["dense_0"]["kernel"][k][:, place] = average([kernel[i][:, has[i, place]] for i in having])
            params["dense_0"]["bias"][k][place] = average([bias[i][has[i, place]] for i in having])
            for label in range(CLASSES):
                seen = [counts[i, label] for i in having]
                kept = params["head"]["kernel"][k][place, label] if having else 0
                values = [out[i][has[i, place], label] for i in having]
                params["head"]["kernel"][k][place, label] = np.average(values, 0, seen) if sum(seen) else kept
        for label in range(CLASSES):
            if sum(counts[i, label] for i in who):
                values = [uploads["params"]["head"]["bias"][i][label] for i in who]
                params["head"]["bias"][k][label] = np.average(values, 0, [counts[i, label] for i in who])
    return {"params": params}


def sorted_neurons(found):
    """Neurons as rows, sorted, because new ones may change places at equal costs; and the biases of the last layer."""
    first, last = found["params"]["dense_0"], found["params"]["head"]
    rows = np.concatenate([np.swapaxes(first["kernel"], 1, 2), first["bias"][..., None], last["kernel"]], -1)
    return [some[np.argsort(some[:, 0])] for some in rows], np.asarray(last["bias"])


@functools.cache
def shallow():
    network, layers = Network(CLASSES, hidden=(6,), spare=0.5), (Layer("dense_0"), Layer("head"))
    found = lambda *args: growing.grown_mean(
        *args[:4], layers=layers, class_counts=args[4], **dict(zip(OPTIONS, args[5:], strict=True))
    )
    return models.task(network, SHAPE, CLASSES), jax.jit(found)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 1.0, 50.0]), st.sampled_from([0.05, 0.3, 2.0]))
def test_a_plain_loop_finds_the_same_mean(seed, growth, sigma):
    rng, (one, found) = np.random.default_rng(seed), shallow()
    start = jax.tree.map(np.asarray, one.init(jax.random.key(0)))

    def drawn():
        """A model with some neurons, most of them near those of the start."""
        keep = rng.random(6) < 0.6
        near = rng.random(6) < 0.7
        params = jax.tree.map(lambda leaf: np.zeros_like(leaf), start)["params"]
        base = start["params"]["dense_0"]["kernel"][:, [0, 1, 2, 0, 1, 2]]
        kernel = np.where(near, base + 0.1 * rng.normal(size=base.shape), rng.normal(size=base.shape))
        params["dense_0"] = {"kernel": np.where(keep, kernel, 0), "bias": np.where(keep, rng.normal(size=6), 0)}
        out = np.where(keep[:, None], rng.normal(size=(6, CLASSES)), 0)
        params["head"] = {"kernel": out, "bias": rng.normal(size=CLASSES)}
        return {"params": jax.tree.map(lambda leaf: leaf.astype(np.float32), params)}

    labels = rng.integers(-1, 2, 7).astype(np.int32)
    weights = rng.integers(0, 4, 7).astype(np.float32)
    uploads, default = stacked([drawn() for _ in range(7)]), stacked([drawn() for _ in range(2)])
    counts = rng.integers(0, 3, (7, CLASSES)).astype(np.int32)
    given = labels, weights, uploads, default, counts, growth, sigma, 0.5, 0.8
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=2e-4),
        *map(sorted_neurons, (found(*given), by_loops(*given))),
    )


def test_models_that_are_not_finite_spoil_their_own_cluster_only():
    labels, weights, uploads, default, counts = federation("mlp")
    bad = jax.tree.map(np.array, uploads)
    bad["params"]["dense_0"]["kernel"][0, 0, 0] = np.nan
    found = mean("mlp")(labels, weights, bad, default, counts, 1.0)
    sound = mean("mlp")(labels, weights, uploads, default, counts, 1.0)
    assert not np.isfinite(found["params"]["dense_0"]["kernel"][0]).all()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b[1], atol=1e-6), found, sound)


def test_a_run_grows_where_sigma_is_small():
    """Three rounds in which clients' neurons count as the cluster's, and three in which they differ."""
    method = {"name": "fesem_ma", "clusters": 2, "growth": 1.0, "sigma": {0: 10.0, 3: 0.001}}
    network, train = {"name": "mlp", "hidden": 12, "spare": 0.5}, {"lr": 0.5, "steps": 3}
    found = jcfl.run(tiny.federation(), method=method, model=network, train=train, rounds=6, evaluate_every=1)
    neurons = found.scores["neurons"].ravel()
    assert (neurons[:3] == 6.0).all()
    assert neurons[-1] > 6.0


def test_only_layers_that_grow_have_their_neurons_counted():
    setting, data = tiny.setting().with_context(task=task("mlp")), jax.device_put(tiny.federation())
    for options, counted in (({"growth": 1.0}, True), ({}, False)):
        algorithm = tiny.built("fesem_ma", setting, **options)
        outcome = jax.eval_shape(lambda key, a=algorithm: a.evaluate(a.init(key, data), data), jax.random.key(0))
        assert ("neurons" in outcome) == counted
