"""The contrastive terms where cosines have no direction to go by, and where slots hold no cluster."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl import trees
from jcfl.core import objective
from jcfl.types import Broadcast, Clients, Task
from tests import tiny

EXTRA = 1e3  # far from everything: what a stale slot may hold


def silent(hidden: int = 2) -> Task:
    """One hidden layer of ReLU without biases: of some examples all logits are exactly zero."""
    plain = tiny.task(hidden)

    def features(model, x, *, key=None, mask=None):
        return jax.nn.relu((x.reshape(x.shape[0], -1) - 0.5) @ model["params"]["body"]["kernel"] - 0.2)

    def apply(model, x, *, key=None, mask=None):
        return features(model, x) @ model["params"]["head"]["kernel"] + model["params"]["head"]["bias"], model

    return plain._replace(features=features, apply=apply)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-12, 1e-6])
def test_a_cosine_of_next_to_nothing_pulls_nowhere(size):
    ones, small = jnp.ones(3), size * jnp.array([1.0, -2.0, 0.5])
    value, slopes = jax.value_and_grad(objective.cosine, (0, 1))(small, ones)
    assert value == 0
    np.testing.assert_array_equal(slopes, 0)
    slopes = jax.grad(objective.cosine, (0, 1))({"a": small, "b": small}, {"a": small, "b": ones})
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize("by", ["l1", "cosine"])
def test_the_distance_to_a_model_is_that_of_its_formula(by):
    """And its gradient is the direction along which a small step changes it most."""
    mine, other = ({"params": jax.random.normal(key, (7,))} for key in jax.random.split(jax.random.key(0)))
    term = objective.distant(objective.own, 0.3, by)
    sent = Broadcast(jnp.int32(0), other, (), (), (), ())
    value, slope = jax.value_and_grad(lambda model: term(model, None, sent))(mine)
    a, b = (np.asarray(model["params"], float) for model in (mine, other))
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    expected, direction = {
        "l1": (np.abs(a - b).sum(), np.sign(a - b)),
        "cosine": (1 - a @ b / lengths, (a * (a @ b) / (a @ a) - b) / lengths),
    }[by]
    np.testing.assert_allclose(value, 0.3 * expected, rtol=1e-5)
    np.testing.assert_allclose(slope["params"], 0.3 * direction, rtol=1e-4, atol=1e-7)
    at_rest = jax.grad(lambda model: term(model, None, sent))(other)["params"]
    np.testing.assert_allclose(at_rest, 0, atol=1e-7)


@pytest.mark.parametrize("size", [0.01, 1.0, 1e6])
def test_a_cosine_of_anything_longer_is_the_cosine(size):
    a, b = np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.0, 2.0])
    with jax.enable_x64(True):
        value, slope = jax.value_and_grad(objective.cosine)(jnp.asarray(size * a), jnp.asarray(b))
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    np.testing.assert_allclose(value, a @ b / lengths, rtol=1e-12)
    expected = (b - a * (a @ b) / (a @ a)) / lengths / size
    np.testing.assert_allclose(slope, expected, rtol=1e-9)


def test_logits_that_vanish_do_not_blow_up_a_run():
    """20 rounds of IFCA with the contrastive term on logits, of which many are exactly zero at the start."""
    made = tiny.setting(lr=0.1, extras=[{"name": "con_rep", "of": "logits", "mu": 1.0}]).with_context(task=silent())
    states = tiny.run(tiny.built("ifca", made, clusters=3), 20)
    start = trees.take(states.clusters, 0)
    x = tiny.federation().x
    vanish = [(np.abs(silent().apply(trees.take(start, k), x)[0]).max(1) == 0).mean() for k in range(3)]
    assert 0.05 < np.mean(vanish) < 0.95
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(states.clusters)) < 20
    assert (states.failed == -1).all()


@functools.cache
def terms():
    task = tiny.task()
    return {
        "contrastive": objective.contrastive(0.7, 0.5, objective.head(task)),
        "features": objective.contrastive_features(task, 0.7, 0.5),
        "logits": objective.contrastive_features(task, 0.7, 0.5, logits=True),
    }


@functools.partial(jax.jit, static_argnames="slots")
def sent(live, *, label=1, stale=1.0, slots=5):
    """Three clusters and two slots that hold something else."""
    models = jax.vmap(tiny.task().init)(jax.random.split(jax.random.key(0), slots))
    models = jax.tree.map(lambda leaf: leaf.at[3:].multiply(stale).at[3:].add(stale - 1), models)
    own = trees.take(models, label)
    return Broadcast(jnp.int32(label), own, models, own, jnp.ones(slots) / slots, (), live=live)


@functools.partial(jax.jit, static_argnums=0)
def slope(name, message):
    """A term's value and gradient at a model that is none of the clusters'."""
    model = jax.tree.map(lambda leaf: leaf + 0.1, tiny.task().init(jax.random.key(9)))
    data = tiny.federation()
    batch = Clients(jnp.asarray(data.x[:6]), jnp.asarray(data.y[:6]), jnp.arange(6) < 5)
    return jax.value_and_grad(lambda model: terms()[name](model, batch, message))(model)


@pytest.mark.parametrize("name", ["contrastive", "features", "logits"])
def test_slots_that_hold_no_cluster_do_not_repel(name):
    live = jnp.arange(5) < 3
    found = slope(name, sent(live))
    tiny.same(slope(name, sent(live, stale=EXTRA)), found)
    tiny.same(slope(name, sent((), slots=3)), found, 1e-6)
    everybody = slope(name, sent(jnp.ones(5, bool)))
    tiny.same(slope(name, sent(())), everybody)
    assert abs(everybody[0] - found[0]) > 0.01


@pytest.mark.parametrize("name", ["contrastive", "features"])
def test_a_client_whose_own_cluster_is_alone_is_not_moved(name):
    alone = jnp.arange(5) == 1
    for live in (alone, jnp.zeros(5, bool)):  # its own cluster counts whatever the message says
        value, gradient = slope(name, sent(live))
        assert value == 0
        assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("name", ["contrastive", "features", "logits"])
@pytest.mark.parametrize("slots", [3, 5])
def test_a_client_without_a_cluster_is_not_moved(name, slots):
    """It has no cluster to be near to, and index -1 would take the last one, which may hold no cluster."""
    value, gradient = slope(name, sent(jnp.arange(slots) < 3, label=-1, slots=slots))
    assert value == 0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float16], ids=["bfloat16", "float16"])
def test_a_mean_loss_has_more_digits_than_losses_of_half_precision(kind):
    """Clients choose the cluster of the least mean loss; rounded to three digits, many would be equal."""
    losses = jnp.asarray(np.random.default_rng(0).uniform(2.2, 2.4, 40_000), kind)
    found = objective.mean_of_rows(losses, jnp.arange(40_000) < 39_000)
    np.testing.assert_allclose(float(found), np.asarray(losses[:39_000], float).mean(), rtol=1e-5)
