"""Convolutions as matrix products are XLA's own convolutions, and pools are Flax's, with their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from jcfl.models import Network, build, task
from jcfl.models.convolution import convolution, lowering, relu_pool, tile
from jcfl.runs import experiment
from tests import tiny
from tests.odd import called_oddly, gradients

KEY = jax.random.key(0)
PAPERS = [  # each network once, and both precisions
    ("cnn_fashion", (28, 28, 1), 10, True),
    ("cnn_tissue", (28, 28, 1), 8, False),
    ("cnn_cifar", (32, 32, 3), 10, True),
    ("cnn_path", (28, 28, 3), 9, True),
    ("cnn_femnist", (28, 28, 1), 62, True),
    ("cnn_e", (32, 32, 3), 10, False),
]
SHAPES = [  # image, kernel, outputs, padding
    ((8, 8, 2), (5, 5), 3, "SAME"),
    ((9, 7, 2), (5, 5), 3, "VALID"),
    ((7, 9, 1), (3, 4), 2, "SAME"),
    ((6, 5, 17), (3, 3), 40, "SAME"),  # a tile of one pixel
    ((6, 6, 3), (1, 1), 2, "VALID"),
    ((6, 6, 2), (2, 3), 2, ((2, 0), (1, 3))),
    ((5, 5, 1), (5, 5), 2, "VALID"),
]


ERROR = {False: {"rtol": 0, "atol": 1e-5}, True: {"rtol": 0, "atol": 1e-10}}


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def tolerance(request):
    """How far results may be apart, with JAX set to a precision."""
    with jax.enable_x64(request.param):
        yield ERROR[request.param]


def near(a, b, rtol, atol):
    """Leaves of two trees are equal, up to a share of the largest number in each."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        size = np.abs(other).max(initial=0.1)
        np.testing.assert_allclose(one / size, other / size, rtol, atol)


@pytest.mark.parametrize(("shape", "size", "outputs", "padding"), SHAPES)
def test_products_are_convolutions(shape, size, outputs, padding, tolerance):
    draw = lambda seed, *shape: jnp.asarray(np.random.default_rng(seed).standard_normal(shape))
    x, kernels = draw(0, 3, 2, *shape), draw(1, 3, *size, shape[-1], outputs)

    def slopes(how):
        layer = nn.Conv(outputs, size, padding=padding, use_bias=False, conv_general_dilated=convolution(how))
        value = lambda x, kernel: (jnp.sin(y := layer.apply({"params": {"kernel": kernel}}, x)).sum(), y)
        return jax.jit(jax.vmap(jax.grad(value, (0, 1), has_aux=True)))(x, kernels)  # each client its own kernel

    near(slopes("patches"), slopes("native"), **tolerance)


FARTHER = [  # what stands before the channels, kernel, padding, strides, dilation of the kernel
    ((8, 8), (3, 3), "SAME", 2, 1),
    ((9, 7), (3, 2), "VALID", (2, 3), (1, 2)),
    ((4, 4), (3, 3), "VALID", 1, 2),  # the kernel reaches farther than the image
    ((12,), (5,), "SAME", 1, 1),
    ((11,), (4,), "VALID", 3, 2),
    ((7,), (3,), "CAUSAL", 1, 2),
    ((8, 8), (3, 3), ((-1, 0), (0, 1)), 2, 1),  # a row is left out
]


@pytest.mark.parametrize(("shape", "size", "padding", "strides", "dilation"), FARTHER)
def test_strides_dilation_and_series_are_products_too(shape, size, padding, strides, dilation):
    x, kernels = (
        jnp.asarray(np.random.default_rng(i).standard_normal(each))
        for i, each in enumerate([(3, 2, *shape, 2), (3, *size, 2, 3)])
    )

    def slopes(how):
        fixed = {"padding": padding, "strides": strides, "kernel_dilation": dilation, "use_bias": False}
        layer = nn.Conv(3, size, **fixed, conv_general_dilated=convolution(how))
        value = lambda x, kernel: (jnp.sin(y := layer.apply({"params": {"kernel": kernel}}, x)).sum(), y)
        return jax.jit(jax.vmap(jax.grad(value, (0, 1), has_aux=True)))(x, kernels)

    near(slopes("patches"), slopes("native"), **ERROR[False])
    layer = nn.Conv(3, size, padding=padding, strides=strides, kernel_dilation=dilation)
    there = jax.eval_shape(layer.init, KEY, x[0])
    fast = nn.Conv(
        3, size, padding=padding, strides=strides, kernel_dilation=dilation, conv_general_dilated=convolution("patches")
    )
    assert convolutions(fast.apply, there, x[0]) == 0


def test_both_sizes_of_tile_are_tried():
    assert {tile(*size, shape[-1], outputs) for shape, size, outputs, _ in SHAPES} == {1, 2}


@pytest.mark.parametrize("sides", [(6, 8), (7, 8), (5, 5)])
def test_windows_are_pooled_as_flax_does(sides, tolerance):
    """Ties are everywhere: values are few, and half of the examples are constant."""
    rng = np.random.default_rng(0)
    x, target = rng.integers(-2, 3, (4, *sides, 3)).astype(float), rng.standard_normal((4, *(np.array(sides) // 2), 3))
    x[2:] = 1.0
    x, target = jnp.asarray(x), jnp.asarray(target)
    pool = lambda x: nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
    slope = lambda function: jax.jit(jax.value_and_grad(lambda x: (function(x) * target).sum()))(x)
    near(slope(relu_pool), slope(pool), **tolerance)


def test_what_is_no_number_is_not_pooled_away():
    x = jnp.zeros((1, 2, 4, 1)).at[0, 1, 2, 0].set(jnp.nan)
    assert np.isnan(relu_pool(x)[0, 0, :, 0]).tolist() == [False, True]


@pytest.mark.parametrize(("name", "shape", "classes", "wide"), PAPERS)
def test_the_papers_networks_are_the_same_either_way(name, shape, classes, wide):
    with jax.enable_x64(wide):
        ways = [build(name, shape, classes, convolution=how) for how in ("patches", "native")]
        model = jax.jit(ways[0].init)(KEY)
        x, y = jnp.asarray(np.random.default_rng(0).standard_normal((3, *shape))), jnp.arange(3)

        def value(params, one):
            logits, after = one.apply({**model, "params": params}, x, key=KEY, mask=jnp.arange(3) < 2)
            return one.loss(logits, y).sum(), (logits, after)

        products, native = (
            jax.jit(jax.grad(value, has_aux=True), static_argnums=1)(model["params"], one) for one in ways
        )
        near(products, native, **ERROR[wide])


class Plain(nn.Module):
    """A user's network: no word of how its convolutions run."""

    strides: int = 1

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3), strides=self.strides)(x))
        x = nn.Conv(4, (3, 3), feature_group_count=2)(x)
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


class Modern(nnx.Module):
    """The same in NNX."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.second = nnx.Conv(4, 4, (3, 3), feature_group_count=2, rngs=rngs)
        self.last = nnx.Linear(100, 3, rngs=rngs)

    def __call__(self, x):
        x = self.second(nnx.relu(self.first(x)))
        return self.last(x.reshape(x.shape[0], -1))


def convolutions(function, *args) -> int:
    """How many convolutions of XLA's a program has."""
    return str(jax.make_jaxpr(function)(*args)).count("conv_general_dilated[")


@pytest.mark.parametrize(("module", "left"), [(Plain(), 1), (Plain(strides=2), 1), (Modern, 1)])
def test_users_convolutions_become_products_where_they_can(module, left):
    one, x = task(module, (5, 5, 1), 3), jax.random.normal(KEY, (2, 5, 5, 1))
    model = jax.jit(one.init)(KEY)
    assert convolutions(lambda model, x: one.apply(model, x, key=KEY)[0], model, x) == left
    if isinstance(module, nn.Module):
        near(one.apply(model, x)[0], module.apply(model, x), 0, 1e-5)


class Standardized(nn.Conv):
    """A user's own convolution, on Flax's."""

    @nn.compact
    def __call__(self, x):
        return 2 * super().__call__(x)


class Odd(nn.Module):
    """Convolutions that are called in unusual ways."""

    @nn.compact
    def __call__(self, x):
        x = called_oddly(nn.Conv, Standardized, {"features": 2, "kernel_size": (3, 3)}, x)
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


def test_convolutions_called_in_unusual_ways_become_products_with_the_same_numbers():
    one, x = task(Odd(), (5, 5, 1), 3), jax.random.normal(KEY, (2, 5, 5, 1))
    assert convolutions(lambda model: one.apply(model, x, key=KEY)[0], jax.eval_shape(one.init, KEY)) == 0
    near(*gradients(one, Odd(), x, KEY), 0, 1e-4)


class Holder(nn.Module):
    """A user's module that holds layers of its own."""

    first: nn.Module
    body: nn.Module
    norm: nn.Module

    @nn.compact
    def __call__(self, x, train=False):
        x = self.norm(self.body(self.first(x)), use_running_average=not train)
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Normed(nnx.Module):
    """A user's NNX module with a convolution, a normalisation and a nested layer."""

    def __init__(self, rngs: nnx.Rngs):
        self.body = nnx.List([nnx.Conv(1, 2, (3, 3), rngs=rngs)])
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.last = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        x = self.norm(self.body[0](x))
        return self.last(x.reshape(x.shape[0], -1))


def everything(thing, seen=()):
    """The classes and the attributes of a module and of all that it holds."""
    if id(thing) in seen:
        return ()
    held = thing if isinstance(thing, list | tuple | dict) else getattr(thing, "__dict__", {})
    items = held.items() if isinstance(held, dict) else enumerate(held)
    inside = [(str(key), everything(item, (*seen, id(thing)))) for key, item in items]
    return (id(thing), type(thing), inside)


def used(module, shape):
    """A module's task, called in every way, and a short run."""
    one, x = task(module, shape, 10), jax.random.normal(KEY, (3, *shape))
    model = jax.jit(one.init)(KEY)
    one.apply(model, x)
    for way in (
        lambda model: one.features(model, x),
        lambda model: one.apply(model, x, key=KEY, mask=jnp.arange(3) < 2),
    ):
        jax.eval_shape(way, model)
    given = {"method": "fedavg", "train": {"lr": 0.1, "batch_size": 4}, "rounds": 1, "budget": 2**30}
    experiment.run(tiny.federation(), model=module, **given)


def test_a_linen_module_is_left_as_it_was():
    """One that holds a convolution itself, and one inside another module."""
    body = nn.Sequential([nn.Conv(2, (3, 3)), nn.relu])
    module, x = Holder(nn.Conv(2, (3, 3)), body, nn.BatchNorm()), jax.random.normal(KEY, (3, 4, 4, 1))
    before, (answer, variables) = everything(module), jax.jit(module.init_with_output)(KEY, x)
    program = str(jax.make_jaxpr(module.apply)(variables, x))
    used(module, (4, 4, 1))
    assert everything(module) == before
    assert str(jax.make_jaxpr(module.apply)(variables, x)) == program
    np.testing.assert_array_equal(module.apply(variables, x), answer)


def test_an_nnx_module_is_left_as_it_was():
    module, x = Normed(nnx.Rngs(0)), jax.random.normal(KEY, (3, 4, 4, 1))
    kinds = {kind: dict(vars(kind)) for kind in (Normed, nnx.Conv, nnx.BatchNorm, nnx.Linear)}
    module.eval()
    before, answer = everything(module), module(x)
    used(lambda rngs: module, (4, 4, 1))  # whoever makes modules may give the same one again and again
    assert everything(module) == before
    assert {kind: dict(vars(kind)) for kind in kinds} == kinds
    np.testing.assert_array_equal(module(x), answer)


class Within(nnx.Module):
    """An NNX module that calls its layers inside a transform of NNX's."""

    def __init__(self, rngs: nnx.Rngs):
        self.body, self.norm = nnx.Conv(1, 2, (3, 3), rngs=rngs), nnx.BatchNorm(2, rngs=rngs)
        self.last = nnx.Linear(32, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.remat(lambda self, x: self.norm(self.body(x)))(self, x)
        return self.last(x.reshape(x.shape[0], -1))


def test_nnx_layers_inside_a_transform_have_products_and_the_mask():
    one, x = task(Within, (4, 4, 1), 3), jax.random.normal(KEY, (4, 4, 4, 1))
    model = jax.jit(one.init)(KEY)
    after = jax.jit(lambda x, mask: one.apply(model, x, key=KEY, mask=mask)[1]["batch_stats"])
    assert one.head == ("last",) and convolutions(lambda x: one.apply(model, x, key=KEY)[0], x) == 0
    near(after(x.at[2:].set(9.0), jnp.arange(4) < 2), after(x[:2], None), 0, 1e-5)


def test_how_convolutions_run_can_be_chosen():
    assert lowering("cpu") == lowering("gpu") == "patches"
    for how, left in (("auto", 0), ("patches", 0), ("native", 2)):
        one = build("cnn_cifar", (16, 16, 3), 10, convolution=how)
        model = jax.eval_shape(one.init, KEY)
        x = jax.ShapeDtypeStruct((2, 16, 16, 3), jnp.float32)
        assert convolutions(lambda model, x, one=one: one.apply(model, x)[0], model, x) == left


def test_odd_images_are_normalised_whole_before_they_are_pooled():
    """Batch statistics are those of all pixels, also of the last row and column, which no window holds."""
    one = task(Network(3, (2,), (), 3, "SAME", (0,), norm=True), (5, 5, 1), 3)
    model, x = jax.jit(one.init)(KEY), jax.random.normal(KEY, (4, 5, 5, 1))
    layer = model["params"]["conv_0"]
    inside = jax.jit(nn.Conv(2, (3, 3)).apply)({"params": layer}, x)
    after = jax.jit(lambda x: one.apply(model, x, key=KEY)[1]["batch_stats"]["norm_0"])(x)
    np.testing.assert_allclose(after["mean"], 0.1 * inside.mean((0, 1, 2)), atol=1e-6)
