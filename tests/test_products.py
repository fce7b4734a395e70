"""Products of dense layers are JAX's, with gradients in another order; modules of users get them too."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from jcfl.models import task
from jcfl.models.products import FEW, WIDE, dense, multiplied
from tests.odd import called_oddly, gradients

KEY = jax.random.key(0)
ROWS = [(5, 7, 4), (5, WIDE + 20, WIDE), (2 * FEW, WIDE + 20, WIDE), (5, 4, 9)]  # rows, inputs, outputs


def near(one, other):
    """Trees are equal but for rounding."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n", "i", "o"), ROWS)
def test_gradients_are_those_of_a_plain_product(n, i, o):
    """For one client, and for several side by side."""
    x, kernel, slope = (
        jax.random.normal(jax.random.key(k), (3, *shape)) for k, shape in enumerate([(n, i), (i, o), (n, o)])
    )
    product = lambda x, kernel: multiplied(x, kernel, None)
    for ours in (jax.vmap(product), jax.jit(jax.vmap(product)), partial(jax.lax.map, lambda both: product(*both))):
        given = ((x, kernel),) if isinstance(ours, partial) else (x, kernel)
        value, back = jax.vjp(ours, *given)
        near(value, x @ kernel)
        near(back(slope), jax.vjp(jnp.matmul, x, kernel)[1](slope))


@pytest.mark.parametrize("shape", [(90,), (0, 90), (3, 2, 90), (2, 90)])
def test_a_dense_layers_product_takes_any_examples(shape):
    x, kernel = jax.random.normal(KEY, shape), jax.random.normal(KEY, (90, 70))
    dimensions = (((x.ndim - 1,), (0,)), ((), ()))
    near(*(dot(x, kernel, dimensions, precision="highest") for dot in (dense, jax.lax.dot_general)))
    near(*(jax.grad(lambda k: (dot(x, k, dimensions) ** 2).sum())(kernel) for dot in (dense, jax.lax.dot_general)))
    near(dense(x.astype(int), kernel.astype(int), dimensions), x.astype(int) @ kernel.astype(int))
    half = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    assert dense(*half, dimensions, preferred_element_type=jnp.float32).dtype == jnp.float32


class Linen(nn.Module):
    """A user's module."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(70)(x)))


class Modern(nnx.Module):
    """The same in NNX."""

    def __init__(self, rngs: nnx.Rngs):
        self.first, self.last = nnx.Linear(90, 70, rngs=rngs), nnx.Linear(70, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


@pytest.mark.parametrize("module", [Linen(), Modern], ids=["linen", "nnx"])
def test_users_dense_layers_get_no_transposed_gradient(module):
    one, x = task(module, (90,), 3), jax.random.normal(KEY, (4, 90))
    loss = lambda model: (one.apply(model, x, key=KEY)[0] ** 2).sum()
    text = str(jax.make_jaxpr(jax.grad(loss))(one.init(KEY)))
    assert "f32[90,70] = dot_general" in text and "f32[70,90] = dot_general" not in text


class Doubled(nn.Dense):
    """A user's own dense layer, on Flax's."""

    @nn.compact
    def __call__(self, x):
        return 2 * super().__call__(x)


class Odd(nn.Module):
    """Dense layers that are called in unusual ways, and on tokens."""

    @nn.compact
    def __call__(self, x):
        x = called_oddly(nn.Dense, Doubled, {"features": 6}, x)
        x = nn.WeightNorm(nn.Dense(6))(nn.RNN(nn.SimpleCell(6))(nn.MultiHeadDotProductAttention(2)(x)))
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


def test_dense_layers_called_in_unusual_ways_have_the_same_numbers():
    near(*gradients(task(Odd(), (4, 5), 3), Odd(), jax.random.normal(KEY, (2, 4, 5)), KEY))


def test_a_product_that_the_user_chose_is_left():
    called = []

    def chosen(*args, **named):
        called.append(args[1].shape)
        return jax.lax.dot_general(*args, **named)

    for module in (nn.Dense(3, dot_general=chosen), lambda rngs: nnx.Linear(90, 3, dot_general=chosen, rngs=rngs)):
        one = task(module, (90,), 3)
        called.clear()
        one.apply(one.init(KEY), jnp.zeros((2, 90)))
        assert (90, 3) in called
