"""Models: sizes, heads, batch statistics under masks, dropout, stacked models, and modules of the user's."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from jcfl import registry
from jcfl.errors import InputError
from jcfl.models import Network, build, cross_entropy, task

KEY = jax.random.key(0)
COUNTS = [
    ("linear", (784,), 10, {}, 7_850),
    ("mlp", (784,), 10, {}, 159_010),
    ("mlp", (28, 28, 1), 10, {"hidden": 2048}, 1_628_170),
    ("mlp", (4,), 3, {"hidden": [5, 6]}, 25 + 36 + 21),
    ("cnn_fashion", (28, 28, 1), 10, {}, 29_034),
    ("cnn_tissue", (28, 28, 1), 8, {}, 25_896),
    ("cnn_cifar", (32, 32, 3), 10, {}, 62_006),
    ("cnn_cifar", (32, 32, 3), 10, {"dense": [120]}, 52_202),
    ("cnn_celeba", (84, 84, 3), 2, {}, 30_498),
    ("cnn_path", (28, 28, 3), 9, {}, 44_641),
    ("cnn_femnist", (28, 28, 1), 62, {}, 1_206_590),
    ("cnn_e", (28, 28, 1), 10, {}, 85_822),
    ("cnn_e", (28, 28, 1), 10, {"small": True}, 27_562),
    ("cnn_e", (32, 32, 3), 10, {}, 121_182),
    ("cnn_e", (32, 32, 3), 100, {}, 1_388_292),
    ("cnn_e", (32, 32, 3), 100, {"convolutions": 2}, 128_832),
]


class Plain(nn.Module):
    """A user's module: an odd flag, BatchNorm without a mask, dropout, layers after a shared first one."""

    @nn.compact
    def __call__(self, x, deterministic):
        x = nn.Dense(5, name="first")(x)
        x = nn.BatchNorm(name="norm")(x, use_running_average=deterministic)
        x = nn.Dropout(0.5)(nn.relu(x), deterministic=deterministic)
        return nn.Dense(3, name="last")(x)


class Modern(nnx.Module):
    """The same in NNX, without any flag, with a nested list of layers."""

    def __init__(self, rngs: nnx.Rngs):
        self.blocks = nnx.List([nnx.Linear(4, 5, rngs=rngs)])
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(5, 3, rngs=rngs)
        self.shift = nnx.Param(jnp.zeros(3))

    def __call__(self, x):
        return self.last(self.drop(nnx.relu(self.norm(self.blocks[0](x))))) + self.shift


class Told(nnx.Module):
    """An NNX module that takes a mask and a flag and counts its training calls."""

    def __init__(self, rngs: nnx.Rngs):
        self.last = nnx.Linear(4, 3, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x, *, training, mask):
        if training:
            self.calls[...] += 1
        return self.last(x) * mask[:, None]


SMALL = {
    "linear": lambda: build("linear", (4,), 3),
    "mlp": lambda: build("mlp", (2, 2, 1), 3, hidden=(5, 4)),
    "cnn": lambda: task(Network(3, (2,), (), 3, "SAME", (0,), norm=True, dropout=0.5), (4, 4, 1), 3),
    "linen": lambda: task(Plain(), (4,), 3),
    "nnx": lambda: task(Modern, (4,), 3),
}
SHAPES = {"linear": (4,), "mlp": (2, 2, 1), "cnn": (4, 4, 1), "linen": (4,), "nnx": (4,)}
NORMED = ["cnn", "linen", "nnx"]


@pytest.fixture(scope="module")
def small():
    """Every small task with a model and seven examples."""
    found = {}
    for name, make in SMALL.items():
        one = make()
        one = one._replace(init=jax.jit(one.init), apply=jax.jit(one.apply), features=jax.jit(one.features))
        found[name] = one, one.init(KEY), jax.random.normal(jax.random.key(1), (7, *SHAPES[name]))
    return found


def sizes(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def equal(a, b, rtol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), a, b)


def same(a, b) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))


@pytest.mark.parametrize(("name", "shape", "classes", "options", "count"), COUNTS)
def test_parameter_counts_and_shapes(name, shape, classes, options, count):
    one = build(name, shape, classes, **options)
    model = jax.eval_shape(one.init, KEY)
    assert sizes(model["params"]) == count
    assert one.head == ("head",) and one.name == name
    x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    assert jax.eval_shape(one.apply, model, x)[0].shape == (2, classes)
    kernel = model["params"]["head"]["kernel"].shape
    assert jax.eval_shape(one.features, model, x).shape == (2, kernel[0])


def test_every_documented_model_is_registered_and_described():
    assert set(registry.names("model")) >= {case[0] for case in COUNTS}
    for name in registry.names("model"):
        assert registry.schema(registry.find("model", name))["init"]["default"] in {"lecun", "glorot"}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("training", [False, True])
def test_head_of_features_is_logits(small, name, training):
    one, model, x = small[name]
    how = {"key": KEY, "mask": jnp.arange(7) < 5} if training else {}
    layer = model["params"][one.head[0]]
    logits, _ = one.apply(model, x, **how)
    assert logits.shape == (7, 3)
    equal(one.features(model, x, **how) @ layer["kernel"] + layer["bias"], logits)


def test_heads_by_default_are_the_last_dense_layer(small):
    assert {name: small[name][0].head for name in SMALL} == {
        "linear": ("head",), "mlp": ("head",), "cnn": ("head",), "linen": ("last",), "nnx": ("last",),
    }  # fmt: skip
    assert task(nn.Sequential([nn.Dense(5), nn.relu, nn.Dense(3)]), (4,), 3).head == ("layers_2",)
    assert set(task(nn.Dense(3), (4,), 3).head) == {"kernel", "bias"}
    assert task(
        lambda rngs: nnx.Sequential(nnx.Linear(4, 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)), (4,), 3
    ).head == ("layers.1",)


def test_head_and_features_can_be_named():
    one = task(Plain(), (4,), 3, head="first")
    x = jnp.arange(8.0).reshape(2, 4)
    assert one.head == ("first",)
    equal(one.features(one.init(KEY), x), x)
    two = task(Network(3, hidden=(5,)), (4,), 3, head=["dense_0", "head"], features="features")
    assert two.head == ("dense_0", "head")
    assert two.features(two.init(KEY), x).shape == (2, 5)
    alone = task(nn.Dense(3), (4,), 3)
    equal(alone.features(alone.init(KEY), x), x)


@pytest.mark.parametrize("name", NORMED)
@given(real=st.sampled_from([1, 4]), filler=st.floats(-50, 50))
@settings(max_examples=4, deadline=None)
def test_padding_changes_no_batch_statistic(small, name, real, filler):
    one, model, x = small[name]
    padded = x.at[real:].set(filler)
    mask = jnp.arange(7) < real
    before = lambda rows, mask: one.apply(model, rows, key=KEY, mask=mask)[1]["batch_stats"]
    after = before(padded, mask)
    equal(after, before(x[:real], None), rtol=1e-4)
    assert not same(after, model["batch_stats"])


class Masked(nn.Module):
    """Batch normalisation of images, whose mask is the one that its user names, or else the task's."""

    options: dict
    names: bool

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        rows = {"mask": mask.reshape(-1, 1, 1, 1)} if self.names and mask is not None else {"mask": None}
        x = nn.BatchNorm(**self.options, use_running_average=not train)(nn.Dense(3)(x), **rows)
        return nn.Dense(2)(jnp.sin(x).reshape(x.shape[0], -1))


class MaskedModern(nnx.Module):
    """The same in NNX."""

    def __init__(self, rngs: nnx.Rngs, options: dict, names: bool):
        self.first, self.norm = nnx.Linear(2, 3, rngs=rngs), nnx.BatchNorm(3, **options, rngs=rngs)
        self.last, self.names = nnx.Linear(27, 2, rngs=rngs), names

    def __call__(self, x, mask=None):
        rows = {"mask": mask.reshape(-1, 1, 1, 1)} if self.names and mask is not None else {"mask": None}
        x = self.norm(self.first(x), **rows)
        return self.last(jnp.sin(x).reshape(x.shape[0], -1))


@pytest.mark.parametrize("modern", [False, True], ids=["linen", "nnx"])
@pytest.mark.parametrize(
    "options",
    [{"axis": 3, "momentum": 0.5, "use_scale": False}, {"axis": 1}, {"use_fast_variance": False}],
    ids=str,
)
def test_batch_normalisation_with_a_mask_is_that_of_flax(options, modern):
    def outcome(names):
        module = (lambda rngs: MaskedModern(rngs, options, names)) if modern else Masked(options, names)
        one = task(module, (3, 3, 2), 2)
        model = one.init(KEY)
        x, mask = 3 + jax.random.normal(KEY, (5, 3, 3, 2)), jnp.array([1, 1, 0, 1, 0], bool)

        def loss(params):
            logits, after = one.apply({**model, "params": params}, x, key=KEY, mask=mask)
            return jnp.where(mask[:, None], logits**2, 0).sum(), (logits[:2], after)

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(model["params"])

    found, expected = outcome(False), outcome(True)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, expected)


class Named(nn.Module):
    """Layers that take their input by name, and batch normalisation of all steps of a series [n, t, c]."""

    flat: bool

    @nn.compact
    def __call__(self, x, train=False):
        norm = nn.BatchNorm(use_running_average=not train, momentum=0.0, name="norm")
        x = nn.Dense(4, name="first")(inputs=x)
        x = norm(x=x.reshape(-1, 4)).reshape(x.shape) if self.flat else norm(x=x)
        return nn.Dense(3, name="last")(inputs=jnp.sin(x).mean(1))


class NamedModern(nnx.Module):
    """The same in NNX."""

    def __init__(self, rngs: nnx.Rngs, flat: bool):
        self.first, self.norm = nnx.Linear(2, 4, rngs=rngs), nnx.BatchNorm(4, momentum=0.0, rngs=rngs)
        self.last, self.flat = nnx.Linear(4, 3, rngs=rngs), flat

    def __call__(self, x):
        x = self.first(inputs=x)
        x = self.norm(x=x.reshape(-1, 4)).reshape(x.shape) if self.flat else self.norm(x=x)
        return self.last(inputs=jnp.sin(x).mean(1))


@pytest.mark.parametrize("flat", [False, True], ids=["whole", "flat"])
@pytest.mark.parametrize("modern", [False, True], ids=["linen", "nnx"])
def test_layers_whose_input_is_named_are_seen(modern, flat):
    one = task((lambda rngs: NamedModern(rngs, flat)) if modern else Named(flat), (5, 2), 3)
    assert one.head == ("last",)
    model, x = one.init(KEY), jax.random.normal(KEY, (4, 5, 2))
    assert one.features(model, x).shape == (4, 4)
    _, after = one.apply(model, x.at[2:].set(100), key=KEY, mask=jnp.arange(4) < 2)
    first = model["params"]["first"]
    equal(after["batch_stats"]["norm"]["mean"], (x[:2] @ first["kernel"] + first["bias"]).mean((0, 1)), rtol=1e-4)


def test_padding_changes_no_answer_for_real_rows():
    one = task(Network(3, (2,), (), 3, "SAME", (0,), norm=True), (4, 4, 1), 3)
    model, x = jax.jit(one.init)(KEY), jax.random.normal(KEY, (6, 4, 4, 1))
    answers = jax.jit(lambda x, mask: one.apply(model, x, key=KEY, mask=mask)[0])
    equal(answers(x.at[4:].set(9.0), jnp.arange(6) < 4)[:4], answers(x[:4], None), rtol=1e-4)


def test_batch_statistics_are_those_of_the_rows():
    one = task(Plain(), (4,), 3)
    model, x = one.init(KEY), jax.random.normal(KEY, (7, 4))
    first = model["params"]["first"]
    inside = np.asarray(x[:5] @ first["kernel"] + first["bias"])
    _, after = one.apply(model, x, key=KEY, mask=jnp.arange(7) < 5)
    equal(after["batch_stats"]["norm"]["mean"], 0.01 * inside.mean(0))
    equal(after["batch_stats"]["norm"]["var"], 0.99 + 0.01 * inside.var(0))


@pytest.mark.parametrize("name", NORMED)
def test_a_batch_of_padding_alone_stays_finite(small, name):
    one, model, x = small[name]
    value = lambda params: one.apply({**model, "params": params}, x, key=KEY, mask=jnp.zeros(7, bool))[0].sum()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jit(jax.grad(value))(model["params"])))


@pytest.mark.parametrize("name", NORMED)
def test_evaluation_uses_running_statistics_and_keeps_the_model(small, name):
    one, model, x = small[name]
    logits, after = one.apply(model, x)
    assert same(after, model)
    equal(one.apply(model, x[:2])[0], logits[:2])  # no row's answer depends on the others
    moved = {**model, "batch_stats": jax.tree.map(lambda leaf: leaf + 1, model["batch_stats"])}
    assert not np.allclose(one.apply(moved, x)[0], logits)


@pytest.mark.parametrize("name", NORMED)
def test_dropout_needs_a_key_and_follows_it(small, name):
    one, model, x = small[name]
    drawn = [one.features(model, x, key=jax.random.key(seed)) for seed in (1, 1, 2)]
    assert same(drawn[0], drawn[1])
    assert not same(drawn[0], drawn[2])
    assert same(one.apply(model, x)[0], one.apply(model, x)[0])


@pytest.mark.parametrize("name", ["linear", *NORMED])
def test_models_stacked_answer_as_one_by_one(small, name):
    one, _, x = small[name]
    keys = jax.random.split(KEY, 2)
    models = jax.vmap(one.init)(keys)
    step = lambda model, key: one.apply(model, x, key=key, mask=jnp.arange(7) < 4)
    logits, after = jax.jit(jax.vmap(step))(models, keys)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, models)
    for i in range(2):
        model = one.init(keys[i])
        equal(jax.tree.map(lambda leaf, i=i: leaf[i], models), model)
        alone, changed = step(model, keys[i])
        equal((logits[i], jax.tree.map(lambda leaf, i=i: leaf[i], after)), (alone, changed), rtol=1e-4)
    assert not same(*(jax.tree.map(lambda leaf, i=i: leaf[i], models["params"]) for i in range(2)))


@pytest.mark.parametrize("name", ["cnn", "linen"])
def test_training_scans_in_either_precision(name):
    for wide in (False, True):
        with jax.enable_x64(wide):
            one = SMALL[name]()
            model = jax.eval_shape(one.init, KEY)
            x = jnp.ones((3, *SHAPES[name]), jnp.result_type(float))
            turn = lambda model, key: one.apply(model, x, key=key)[::-1]
            after, logits = jax.eval_shape(lambda start: jax.lax.scan(turn, start, jax.random.split(KEY, 2)), model)
            assert logits.dtype == (jnp.float64 if wide else jnp.float32)
            assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, model)
            if wide and name == "cnn":
                assert model["params"]["head"]["kernel"].dtype == jnp.float64


@pytest.mark.parametrize(("init", "bound"), [("glorot", (6 / 600) ** 0.5), ("torch", 400**-0.5)])
def test_initial_kernels_fill_their_interval(init, bound):
    kernel = build("mlp", (400,), 3, init=init).init(KEY)["params"]["dense_0"]["kernel"]  # [400, 200]
    assert 0.99 * bound < jnp.abs(kernel).max() <= bound
    np.testing.assert_allclose(kernel.std(), bound / 3**0.5, rtol=0.02)


def test_modules_are_told_of_training_and_masks():
    one = task(Told, (4,), 3)
    model, x = one.init(KEY), jnp.ones((3, 4))
    mask = jnp.array([True, False, True])
    logits, after = one.apply(model, x, key=KEY, mask=mask)
    assert (logits[1] == 0).all() and (logits[0] != 0).any()
    assert after["other"]["calls"] == 1 and after["other"]["calls"].dtype == jnp.int32
    assert (one.apply(after, x)[0] != 0).any(1).all()


def test_the_loss_is_that_of_integer_labels_and_a_class_of_no_probability_leaves_it_finite():
    """One-hot labels times logarithms would be 0 · ∞ where a model rules a class out by a logit of −∞."""
    logits = np.random.default_rng(0).normal(0, 30, (6, 4)).astype(np.float32)
    y = np.array([0, 3, 2, 1, 0, 2])
    for ruled_out in (False, True):
        logits[:, 1] = np.where(ruled_out & (y != 1), -np.inf, logits[:, 1])
        mean = lambda loss, logits: loss(logits, y).mean()
        own, known = (
            jax.value_and_grad(partial(mean, loss))(logits)
            for loss in (cross_entropy, optax.softmax_cross_entropy_with_integer_labels)
        )
        np.testing.assert_allclose(own[0], known[0], rtol=1e-6)
        np.testing.assert_allclose(own[1], known[1], atol=1e-6)
        assert np.isfinite(own[1]).all()


def test_a_loss_of_the_users_own_is_kept():
    squared = lambda logits, y: ((logits - jax.nn.one_hot(y, 3)) ** 2).sum(-1)
    assert task(nn.Dense(3), (4,), 3, loss=squared).loss is squared


class Rounded(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x).astype(int)


class Counted(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x) * self.param("times", lambda key: jnp.ones((), int))


class Growing(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.sow("losses", "seen", x.sum())
        return nn.Dense(3)(x)


BAD = {
    "logits of 3 classes": lambda: task(nn.Dense(4), (4,), 3),
    "logits: expected float32 or another float, got int32": lambda: task(Rounded(), (4,), 3),
    "logits: expected float32 or another float, got complex64": lambda: task(
        nn.Sequential([nn.Dense(3), lambda x: x * 1j]), (4,), 3
    ),
    "parameter times: expected float32 or another float, got int32": lambda: task(Counted(), (4,), 3),
    "got tuple": lambda: task(nn.Sequential([nn.Dense(3), lambda x: (x, x)]), (4,), 3),
    "use_running_average": lambda: task(nn.Sequential([nn.Dense(3), nn.BatchNorm()]), (4,), 3),
    "an instance": lambda: task(Modern(nnx.Rngs(0)), (4,), 3),
    "got its class": lambda: task(Plain, (4,), 3),
    "expected a Flax module": lambda: task(3, (4,), 3),
    "makes an NNX module of rngs; of rngs, it made int": lambda: task(lambda rngs: 3, (4,), 3),
    "of rngs, it raised TypeError: ": lambda: task(lambda x: x + 1, (4,), 3),
    "KeyError: 'size' (test_models.py, line": lambda: task(nn.Sequential([lambda x: {}["size"]]), (4,), 3),
    "cannot be called on examples of shape (5,)": lambda: task(Modern, (5,), 3),
    "did you mean 'last'": lambda: task(Plain(), (4,), 3, head="lasst"),
    "expected first, last, norm, or some of them; got none": lambda: task(Plain(), (4,), 3, head=()),
    "the head shift is no layer that is called": lambda: task(Modern, (4,), 3, head="shift"),
    "no method 'feature'": lambda: task(Plain(), (4,), 3, features="feature"),
    "one number an example": lambda: task(nn.Dense(3), (4,), 3, loss=lambda logits, y: logits.sum()),
    "changes the structure": lambda: task(Growing(), (4,), 3),
    "no parameters": lambda: task(nn.Sequential([lambda x: x]), (3,), 3),
    "at least 1": lambda: task(nn.Dense(3), (0,), 3),
    "too small": lambda: build("cnn_cifar", (8, 8, 1), 10),
    "takes images [h, w, c]": lambda: build("cnn_fashion", (64,), 10),
    "did you mean 'cnn_cifar'": lambda: build("cnn_cifr", (32, 32, 3), 10),
    "did you mean 'hidden'": lambda: build("mlp", (4,), 3, hiden=3),
    "greater than or equal to 1": lambda: build("mlp", (4,), 3, hidden=0),
    "convolutions": lambda: build("cnn_e", (32, 32, 3), 10, convolutions=3),
}


@pytest.mark.parametrize("told", BAD)
def test_bad_modules_are_refused_in_one_line(told):
    with pytest.raises(InputError) as refusal:
        BAD[told]()
    assert told in str(refusal.value) and "\n" not in str(refusal.value)
