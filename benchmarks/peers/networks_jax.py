"""The two networks in plain JAX, with PyTorch's initial weights, for every peer that trains with it."""

import jax
import jax.numpy as jnp
import numpy as np

SHAPES = {"mlp": [(784, 200), (200, 10)], "cnn": [(5, 5, 1, 16), (5, 5, 16, 32), (7 * 7 * 32, 10)]}


def initial(name: str, key):
    """Kernels and biases, U(-1/√fan_in, 1/√fan_in)."""
    layers = []
    for one, shape in zip(jax.random.split(key, len(SHAPES[name])), SHAPES[name], strict=True):
        bound = np.prod(shape[:-1]) ** -0.5
        kernel, bias = jax.random.split(one)
        uniform = lambda key, shape, bound=bound: jax.random.uniform(key, shape, minval=-bound, maxval=bound)
        layers.append((uniform(kernel, shape), uniform(bias, shape[-1:])))
    return layers


def logits(model, x):
    """784-200-10, or 5×5×16, pool, 5×5×32, pool, dense, of images [n, 28, 28]."""
    *body, (kernel, bias) = model
    for weights, shift in body:
        if weights.ndim == 2:
            x = jax.nn.relu(x.reshape(len(x), -1) @ weights + shift)
            continue
        x = x[..., None] if x.ndim == 3 else x
        x = jax.lax.conv_general_dilated(x, weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.lax.reduce_window(jax.nn.relu(x + shift), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.reshape(len(x), -1) @ kernel + bias


def loss(model, x, y):
    """The mean cross-entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(model, x)), y[:, None], 1).mean()


@jax.jit
def right(model, x, y):
    """The share of right answers."""
    return (logits(model, x).argmax(-1) == y).mean()
