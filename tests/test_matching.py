"""Matched averaging: what a shuffle of hidden neurons must not change, and that it is found and undone."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from scipy.optimize import linear_sum_assignment

from jcfl import models
from jcfl.core import chain, matching
from jcfl.core.chain import Layer
from jcfl.core.objective import everything
from jcfl.errors import InputError
from jcfl.methods.fesem import fesem_ma
from jcfl.models import Network

SHAPE, CLASSES = (5, 5, 2), 3
S, K = 6, 3

NETWORKS = {
    "mlp": Network(CLASSES, hidden=(6, 5)),
    "conv": Network(CLASSES, filters=(4, 6), hidden=(5,), kernel=3, padding="SAME", pooled=(0,), norm=True),
}
CHAINS = {
    "mlp": (Layer("dense_0"), Layer("dense_1"), Layer("head")),
    "conv": (Layer("conv_0", ("norm_0",)), Layer("conv_1", ("norm_1",)), Layer("dense_0"), Layer("head")),
}
AT_ONCE = {"mlp": 4, "conv": 3}  # of six clients: one leaves a rest, the other does not
CHAIN = pytest.mark.parametrize("kind", NETWORKS)
assignment = jax.jit(matching.assignment)


@functools.cache
def task(kind: str):
    return models.task(NETWORKS[kind], SHAPE, CLASSES, name=kind)


@functools.cache
def applied(kind: str):
    return jax.jit(task(kind).apply)


@functools.cache
def shapes(kind: str):
    return jax.eval_shape(task(kind).init, jax.random.key(0))


def drawn(rng: np.random.Generator, kind: str, scale: float = 1.0):
    """A model of random numbers, variances positive."""
    move = lambda path, leaf: np.abs(path) + 0.5 if leaf.ndim == 1 else path
    return jax.tree.map(lambda leaf: move((scale * rng.normal(size=leaf.shape)).astype(np.float32), leaf), shapes(kind))


def orders(rng: np.random.Generator, kind: str):
    params = shapes(kind)["params"]
    return [rng.permutation(params[layer.name]["kernel"].shape[-1]) for layer in CHAINS[kind][:-1]]


def stacked(rows):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def noisy(rng, model, scale):
    return jax.tree.map(lambda leaf: (leaf + scale * rng.normal(size=leaf.shape)).astype(leaf.dtype), model)


@functools.cache
def mean(kind: str):
    return jax.jit(lambda *args: matching.matched_mean(*args[:4], CHAINS[kind], args[4], at_once=AT_ONCE[kind]))


@functools.cache
def federation(kind: str):
    """Clients scattered about their cluster's model: as they are, and with their neurons shuffled."""
    rng = np.random.default_rng(7)
    labels = np.array([0, 2, 0, 2, 0, 0], np.int32)  # nobody in cluster 1
    weights = np.array([3, 1, 2, 5, 0, 4], np.float32)  # client 4 is absent
    centres = [drawn(rng, kind) for _ in range(K)]
    clients = [noisy(rng, centres[label], 0.05) for label in labels]
    shuffled = [chain.permuted(client, orders(rng, kind), CHAINS[kind]) for client in clients]
    counts = rng.integers(1, 9, (S, CLASSES)).astype(np.int32)
    return labels, weights, stacked(clients), stacked(shuffled), stacked(centres), counts


def expected(labels, weights, clients, default, counts):
    """The mean without matching, by a loop: hidden layers by weight, the head by counts of its class."""
    out = jax.tree.map(np.array, default)
    for c in range(K):
        own = (labels == c) & (weights > 0)
        if not own.any():
            continue
        average = lambda rows, own=own: np.average(rows[own], 0, weights[own])
        one = jax.tree.map(average, clients)
        jax.tree.map(lambda total, part, c=c: total.__setitem__(c, part), out, one)
        for leaf in ("kernel", "bias"):
            for label in range(CLASSES):
                seen = counts[own, label]
                rows = clients["params"]["head"][leaf][own][..., label]
                kept = default["params"]["head"][leaf][c][..., label]
                value = np.average(rows, 0, seen) if seen.sum() else kept
                out["params"]["head"][leaf][c][..., label] = value
    return out


def close(one, two, tolerance=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance), one, two)


@CHAIN
def test_a_permuted_network_computes_the_same(kind):
    rng = np.random.default_rng(0)
    model, x = drawn(rng, kind), rng.normal(size=(7, *SHAPE)).astype(np.float32)
    moves = orders(rng, kind)
    other = chain.permuted(model, moves, CHAINS[kind])
    for layer in CHAINS[kind]:
        assert not np.allclose(other["params"][layer.name]["kernel"], model["params"][layer.name]["kernel"])
    apply = applied(kind)
    want = apply(model, x)[0]
    assert np.ptp(want, 0).min() > 0.1
    close(apply(other, x)[0], want, 1e-4 * np.abs(want).max())

    # in training too, where it also leaves the permuted statistics behind
    key, mask = jax.random.key(0), np.arange(7) < 5
    want, after = apply(model, x, key=key, mask=mask)
    got, moved = apply(other, x, key=key, mask=mask)
    close(got, want, 1e-3 * np.abs(want).max())
    close(moved, chain.permuted(after, moves, CHAINS[kind]), 1e-3)


@CHAIN
def test_a_layer_left_out_changes_what_a_network_computes(kind):
    """The equality above is not for want of sensitivity."""
    rng = np.random.default_rng(0)
    model, x = drawn(rng, kind), rng.normal(size=(7, *SHAPE)).astype(np.float32)
    other = chain.permuted(model, orders(rng, kind), CHAINS[kind])
    name = CHAINS[kind][1].name
    broken = {**other, "params": {**other["params"], name: model["params"][name]}}
    apply = applied(kind)
    assert np.abs(apply(broken, x)[0] - apply(model, x)[0]).max() > 0.1


@CHAIN
def test_matching_undoes_a_shuffle(kind):
    labels, _, clients, shuffled, centres, _ = federation(kind)
    undo = jax.jit(lambda model, centre: matching.matching_orders(model, centre, CHAINS[kind]))
    for i in range(S):
        take = lambda tree, i=i: jax.tree.map(lambda leaf: leaf[i], tree)
        centre = jax.tree.map(lambda leaf, i=i: leaf[labels[i]], centres)
        found = undo(take(shuffled), centre)
        close(chain.permuted(take(shuffled), found, CHAINS[kind]), take(clients), 0)
        for order in undo(take(clients), centre):
            np.testing.assert_array_equal(order, np.arange(order.size))


@CHAIN
def test_shuffled_clients_have_the_unshuffled_mean(kind):
    labels, weights, clients, shuffled, centres, counts = federation(kind)
    want = expected(labels, weights, clients, centres, counts)
    close(mean(kind)(labels, weights, shuffled, centres, counts), want)
    close(mean(kind)(labels, weights, clients, centres, counts), want)
    plain = expected(labels, weights, shuffled, centres, counts)
    assert np.abs(plain["params"]["head"]["kernel"] - want["params"]["head"]["kernel"]).max() > 0.5


def test_a_class_is_what_those_who_have_seen_it_say():
    labels, weights, clients, shuffled, centres, counts = federation("mlp")
    counts = counts.copy()
    counts[:, 0] = 0  # nobody
    counts[:, 1] = np.arange(S) == 2  # client 2 alone
    counts[4, 2] = 1000  # the absent client
    got = mean("mlp")(labels, weights, shuffled, centres, counts)
    close(got, expected(labels, weights, clients, centres, counts))
    head, before = got["params"]["head"], centres["params"]["head"]
    np.testing.assert_array_equal(head["kernel"][..., 0], before["kernel"][..., 0])
    np.testing.assert_allclose(head["bias"][0, 1], clients["params"]["head"]["bias"][2, 1], rtol=1e-6)


def test_clusters_without_clients_keep_their_model_exactly():
    labels, weights, _, shuffled, centres, counts = federation("mlp")
    got = mean("mlp")(labels, weights, shuffled, centres, counts)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b[1]), got, centres)
    nobody = mean("mlp")(labels, np.zeros(S, np.float32), shuffled, centres, counts)
    jax.tree.map(np.testing.assert_array_equal, nobody, centres)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_client_that_diverged_spoils_its_own_cluster_alone(bad):
    labels, weights, _, shuffled, centres, counts = federation("mlp")
    want = mean("mlp")(labels, weights, shuffled, centres, counts)
    spoilt = jax.tree.map(
        lambda leaf: np.where(np.arange(S).reshape(-1, *[1] * (leaf.ndim - 1)) == 1, bad, leaf), shuffled
    )
    spoilt = jax.tree.map(lambda leaf: leaf.astype(np.float32), spoilt)
    got = mean("mlp")(labels, weights, spoilt, centres, counts)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:2], b[:2]), got, want)
    # absent, it spoils nothing; client 3 is left
    got = mean("mlp")(labels, np.where(np.arange(S) == 1, 0, weights), spoilt, centres, counts)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))


def test_one_program_serves_every_cohort():
    traces = []

    def counted(*args):
        traces.append(1)
        return matching.matched_mean(*args[:4], CHAINS["mlp"], args[4])

    labels, weights, clients, shuffled, centres, counts = federation("mlp")
    program = jax.jit(counted)
    one = program(labels, weights, shuffled, centres, counts)
    program(labels[::-1].copy(), weights, clients, centres, counts)
    close(one, mean("mlp")(labels, weights, shuffled, centres, counts))
    assert len(traces) == 1


def test_a_linear_model_has_no_neurons_to_match():
    rng = np.random.default_rng(0)
    uploads = {"params": {"head": {"kernel": rng.normal(size=(2, 4, 3)), "bias": rng.normal(size=(2, 3))}}}
    default = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:])), uploads)
    counts = np.array([[1, 0, 2], [3, 0, 0]])
    whole = jax.jit(lambda *given: matching.matched_mean(*given[:-1], [Layer("head")], given[-1]))
    got = whole(jnp.zeros(2, int), jnp.ones(2), uploads, default, counts)
    bias = uploads["params"]["head"]["bias"]
    want = [bias[0, 0] / 4 + bias[1, 0] * 3 / 4, 0, bias[0, 2]]
    np.testing.assert_allclose(got["params"]["head"]["bias"][0], want, rtol=1e-5)


def test_fesem_ma_matches_by_the_same_sigma_in_the_distance_and_in_the_mean():
    context = types.SimpleNamespace(task=task("mlp"), population=types.SimpleNamespace(shape=SHAPE))
    rng, method = np.random.default_rng(2), fesem_ma(sigma=0.01)
    rows = [jnp.stack([ravel_pytree(drawn(rng, "mlp")["params"])[0] for _ in range(n)]) for n in (S, K)]
    found = jax.jit(method.compare.metric(context, method.describe))(*rows)
    models = [jax.vmap(ravel_pytree(drawn(rng, "mlp")["params"])[1])(some) for some in rows]
    by_sigma = jax.jit(lambda *some, sigma: matching.matched_distance(*some, CHAINS["mlp"], sigma=sigma))
    expected = [
        by_sigma(*({"params": some} for some in models), sigma=sigma) for sigma in (method.aggregate.rule.sigma, 1.0)
    ]
    np.testing.assert_allclose(found, expected[0], rtol=1e-4)
    assert np.abs(found - expected[1]).max() > 1e-2


def test_sigmas_say_whether_weights_or_biases_decide():
    one = lambda kernel, bias: {
        "params": {
            "a": {"kernel": np.array([kernel], np.float32), "bias": np.array(bias, np.float32)},
            "b": {"kernel": np.ones((2, 3), np.float32), "bias": np.ones(3, np.float32)},
        }
    }
    model, centre = one([1.0, 2.0], [5.0, 4.0]), one([1.0, 2.0], [4.0, 5.0])
    layers = (Layer("a"), Layer("b"))
    orders_of = jax.jit(functools.partial(matching.matching_orders, model, centre, layers))
    np.testing.assert_array_equal(orders_of(sigma=0.1, sigma_bias=10.0)[0], [0, 1])
    np.testing.assert_array_equal(orders_of(sigma=10.0, sigma_bias=0.1)[0], [1, 0])


def test_costs_are_the_negative_log_density():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(2, 4, 7)).astype(np.float32)
    want = [[0.5 * ((a - b) ** 2).sum() for b in theirs] for a in ours]
    np.testing.assert_allclose(matching.assignment_costs(ours, theirs), want, rtol=1e-5)
    ours[1, 2] = np.nan
    np.testing.assert_array_equal(matching.assignment_costs(ours, theirs), np.zeros((4, 4)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_assignment_is_scipys(seed, whole):
    """Where costs tie there are several best assignments, of one total."""
    rng = np.random.default_rng(seed)
    cost = (rng.integers(0, 4, (7, 7)) if whole else rng.normal(size=(7, 7))).astype(np.float32)
    rows = np.asarray(assignment(cost))
    assert sorted(rows) == list(range(7))
    best, columns = linear_sum_assignment(cost)
    np.testing.assert_allclose(cost[rows, np.arange(7)].sum(), cost[best, columns].sum(), atol=1e-5)
    if not whole:
        np.testing.assert_array_equal(rows, best[np.argsort(columns)])


@CHAIN
def test_chain_finds_the_order_of_calls(kind):
    assert chain.chain(task(kind), SHAPE) == CHAINS[kind]


class Backwards(nn.Module):
    """Layers called in the reverse order of their names, all of one width, inside a jitted function."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(3, name="c")(x))
        x = nn.LayerNorm(name="a")(nn.Dense(3, name="b", use_bias=False)(x))
        return nn.Dense(3, name="A")(nn.tanh(x))


class Numbered(nnx.Module):
    """An NNX chain."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Conv(2, 4, (3, 3), rngs=rngs), nnx.Linear(100, 3, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](nnx.relu(self.layers[0](x)).reshape(x.shape[0], -1))


def test_chain_of_other_modules():
    want = (Layer("c"), Layer("b", ("a",)), Layer("A"))
    backwards = models.task(Backwards(), SHAPE, 3)
    assert chain.chain(backwards, SHAPE) == want
    jitted = backwards._replace(apply=jax.jit(backwards.apply))
    assert chain.chain(jitted, SHAPE) == want
    numbered = chain.chain(models.task(Numbered, SHAPE, 3), SHAPE)
    assert numbered == (Layer("layers.0"), Layer("layers.1"))
    linear = chain.chain(models.build("linear", SHAPE, 3), SHAPE)
    assert linear == (Layer("head"),)


class Strange(nn.Module):
    """Networks whose neurons have no order of their own to change."""

    kind: str

    @nn.compact
    def __call__(self, x):
        first = nn.Conv(4, (3, 3), name="first")(x)
        if self.kind == "grouped":
            first = nn.GroupNorm(2, name="norm")(first)
        if self.kind == "residual":
            first = first + nn.relu(nn.Conv(4, (3, 3), name="second")(nn.relu(first)))
        if self.kind == "depthwise":
            first = nn.Conv(4, (3, 3), feature_group_count=4, name="second")(first)
        if self.kind == "channels_first":
            first = jnp.moveaxis(first, -1, 1)
        if self.kind == "nested":
            first = Backwards(name="second")(first)
        if self.kind == "branches":
            return nn.Dense(3, name="one")(first.mean((1, 2))) + nn.Dense(3, name="two")(first.mean((1, 2)))
        return nn.Dense(3, name="head")(nn.relu(first).reshape(x.shape[0], -1))


@pytest.mark.parametrize("kind", ["grouped", "residual", "depthwise", "channels_first", "nested", "branches"])
def test_chain_refuses_what_is_none(kind):
    strange = models.task(Strange(kind), SHAPE, 3, name=kind)
    with pytest.raises(InputError, match=f"^{kind} is not a chain"):
        chain.chain(strange, SHAPE)


def test_chain_refuses_a_layer_that_is_the_whole_module():
    with pytest.raises(InputError, match="not a chain"):
        chain.chain(models.task(nn.Dense(3), (4,), 3), (4,))


@functools.cache
def away(kind: str, head: bool = False):
    on = (lambda model: model["params"]["head"]) if head else everything
    return jax.jit(lambda points, centres: matching.matched_distance(points, centres, CHAINS[kind], on=on, at_once=4))


@pytest.mark.parametrize("head", [False, True])
@CHAIN
def test_the_order_of_neurons_is_no_distance(kind, head):
    """Bug 17: a centre with its neurons shuffled was 9.8 away from itself."""
    _, _, clients, shuffled, centres, _ = federation(kind)
    rng = np.random.default_rng(3)
    take = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)
    moved = stacked([chain.permuted(take(centres, i % K), orders(rng, kind), CHAINS[kind]) for i in range(S)])
    found, own = away(kind, head)(moved, centres), np.arange(S)[:, None] % K == np.arange(K)
    np.testing.assert_array_equal(found[own], 0)
    assert (found[~own] > 1).all()
    close(away(kind, head)(shuffled, centres), away(kind, head)(clients, centres), 1e-4 * np.max(found))


@CHAIN
def test_the_distance_is_that_of_what_is_matched(kind):
    """Against SciPy's assignment, layer by layer."""
    labels, _, _, shuffled, centres, _ = federation(kind)
    found = away(kind)(shuffled, centres)
    assert found.shape == (S, K)
    np.testing.assert_array_equal(found.argmin(1), labels)
    take = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)
    for i, c in ((0, 1), (1, 2), (4, 0)):
        model, centre = take(shuffled, i), take(centres, c)
        order = []
        for layer in CHAINS[kind][:-1]:
            ours = matching.neurons(model, layer, order[-1] if order else None, 1, 1)
            theirs = matching.neurons(centre, layer, None, 1, 1)
            cost = ((np.asarray(ours)[:, None] - np.asarray(theirs)) ** 2).sum(-1)
            rows, columns = linear_sum_assignment(cost)
            order.append(rows[columns.argsort()])
        gap = jax.tree.map(np.subtract, chain.permuted(model, order, CHAINS[kind])["params"], centre["params"])
        total = sum((np.asarray(leaf, float) ** 2).sum() for leaf in jax.tree.leaves(gap))
        np.testing.assert_allclose(found[i, c], total, rtol=1e-5)


def test_the_matched_distance_of_a_spoilt_model_is_not_a_number():
    _, _, clients, _, centres, _ = federation("mlp")
    spoilt = jax.tree.map(lambda leaf: np.concatenate([leaf[:1] * np.nan, leaf[1:]]), clients)
    found = np.asarray(away("mlp")(spoilt, centres))
    assert np.isnan(found[0]).all() and np.isfinite(found[1:]).all()


def test_neurons_of_half_precision_that_are_much_alike_are_matched():
    """Their squared distances are small beside their squared lengths, and three digits of those hide them."""
    rng = np.random.default_rng(0)
    kernel = (1 + 0.05 * rng.normal(size=(40, 16))).astype(np.float32)
    order = rng.permutation(16)
    layers = (Layer("dense"), Layer("head"))
    of = lambda rows: {"params": {"dense": {"kernel": jnp.asarray(kernel[:, rows], jnp.bfloat16)}}}
    found = jax.jit(lambda *both: matching.matching_orders(*both, layers))(of(order), of(np.arange(16)))
    np.testing.assert_array_equal(order[found[0]], np.arange(16))
