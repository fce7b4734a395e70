"""Training in coordinates is training: the same models as the general engine gives, for every method it serves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jcfl import models, registry, trees
from jcfl.core import chunks
from jcfl.core import describing as anchors
from jcfl.core import engine as engines
from jcfl.core.faults import Faults
from jcfl.core.reliability import Reliability
from jcfl.errors import InputError
from jcfl.fast import factored, slabs
from jcfl.grouping.merging import greedy
from jcfl.grouping.psi import MergeMemory, Settings, joint_gram, sums_with_clients
from jcfl.methods import ifca
from jcfl.types import NEVER
from tests import tiny

SHAPE = (4, 4, 1)
ROUNDS = 4


class Normalised(nn.Module):
    """A dense layer, batch statistics and dropout after it, and a second one."""

    @nn.compact
    def __call__(self, x, train=False):
        kind = jnp.result_type(float)
        x = nn.Dense(7, use_bias=False, param_dtype=kind)(x.reshape(x.shape[0], -1))
        x = nn.BatchNorm(use_running_average=not train, param_dtype=kind)(x)
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(x))
        return nn.Dense(tiny.CLASSES, param_dtype=kind)(x)


@functools.cache
def task(name: str):
    registry.load()
    if name == "normalised":
        return models.task(Normalised(), SHAPE, tiny.CLASSES)
    return registry.find("model", name)(SHAPE, tiny.CLASSES, **({"hidden": (7, 5)} if name == "mlp" else {}))


def built(method, options, model="mlp", extras=(), participation=1.0, data=None, held_out=0, tile=None, **train):
    """The algorithm of the general engine, and that of the factored one."""
    registry.load()
    setting = tiny.setting(participation, extras=extras, data=data, held_out=held_out, **train)
    setting = setting.with_resources(tile=tile)
    for engine in ("general", "factored"):
        algorithm = tiny.built(method, setting.with_context(task=task(model), engine=engine), **options)
        assert algorithm.engine == engine
        yield algorithm


def states(method, options, *given, data=None, taus=(None,), **more):
    """The states of a run by the general engine, and the factored one's of the same rounds; by τ if there are some.

    Each round of the factored engine begins at the general one's state, so one program serves both.

    Returns:
        by τ, the general engine's states, with the first one, [ROUNDS + 1, ...], and the factored one's [ROUNDS, ...]
    """

    @jax.jit
    def whole(key, tau, data):
        chosen = options if tau is None else {**options, "tau": tau}
        general, factored = built(method, chosen, *given, data=federation, **more)

        def step(state, _):
            new = general.step(state, data)
            return new, (new, factored.step(state, data))

        start = general.init(key, data)
        return start, *jax.lax.scan(step, start, length=ROUNDS)[1]

    federation = tiny.federation() if data is None else data
    for tau in taus:
        start, general, short = whole(jax.random.key(0), tau, jax.device_put(federation))
        yield jax.tree.map(tiny.joined, start, general), jax.tree.map(tiny.numpy, short)


def engines_agree(general, short, tolerance=1e-10):
    """Whether both engines took the same steps, in labels, models and all that is remembered; and steps they were."""
    rest = jax.tree.map(lambda leaf: leaf[1:], general)
    np.testing.assert_array_equal(rest.labels, short.labels)
    tiny.same(rest, short, tolerance)
    kernels = [leaf for leaf in jax.tree.leaves(general.clusters["params"]) if leaf.ndim == 4]  # [turns, k, in, out]
    assert all(np.abs(leaf[-1] - leaf[0]).max() > 0.01 for leaf in kernels) and kernels


SGD = {"momentum": 0.5, "weight_decay": 0.1, "lr": 0.2}
CAM = {"name": "cam", "warmup": 1}
METHODS = {
    "fedprox, median": ("fedprox", {"mu": 0.3}, [{"name": "robust"}]),
    "ditto": ("ditto", {"lam": 0.2}, ()),
    "fesem": ("fesem", {"clusters": 2, "lam": 0.2}, ()),
    "cfl": ("cfl", {}, ()),
    "stocfl, handed on": ("stocfl", {"tau": 0.99, "lam": 0.3, "mu": 0.4, "shared_update": "sequential"}, ()),
    "fedavg, handed on": ("fedavg", {"shared_update": "sequential"}, ()),
    "cam, handed on": (ifca(clusters=2).with_train(shared="trained", chained=True), {}, [CAM]),
    "cam": ("ifca", {"clusters": 2}, [CAM]),
    "cks": ("ifca", {"clusters": 2}, [{"name": "cks", "lam": 0.3}]),
}
"""With a pull to each reference and none, one cluster, several and one for each client, with uploads kept and not."""
ONE_EACH = {"stocfl, handed on"}
"""Where each client turns out to have a cluster to itself, so that tiles of several need not be compiled."""


@pytest.mark.parametrize("name", METHODS)
def test_engines_agree(name):
    method, options, extras = METHODS[name]
    with jax.enable_x64(True):
        ((general, short),) = states(method, options, extras=extras, tile=1 if name in ONE_EACH else None, **SGD)
    engines_agree(general, short)


def test_inference_and_departures_in_coordinates():
    """StoCFL: held-out clients are placed, and those that leave forgotten, as with whole gradients.

    With few clusters, and with one for each client.
    """
    data = tiny.federation(held_out=2)
    data = data.replace(depart=np.where(np.arange(8) == 1, 2, NEVER).astype(np.int32))
    options, more = {"lam": 0.3, "mu": 0.4, "similarity": "noise_corrected"}, {"data": data, "held_out": 2, **SGD}
    with jax.enable_x64(True):
        few, many = states("stocfl", options, taus=(0.3, 1.1), **more)
        last = jax.tree.map(lambda leaf: leaf[-1], few[0].replace(key=()))
        last = last.replace(key=jax.random.key(0), memory=last.memory.replace(key=jax.random.key(0)))
        engines = list(built("stocfl", {**options, "tau": 0.3}, **more))
        labels = jax.jit(lambda *given: [one.predict(*given)[0] for one in engines])(last, jax.device_put(data))
    engines_agree(*few)
    engines_agree(*many)
    np.testing.assert_array_equal(*labels)
    assert (np.asarray(labels[0])[6:] >= 0).all()
    assert few[0].labels[-1, 1] == -1
    moved = jax.tree.leaves((few[0].clusters, few[0].shared))
    assert all(np.abs(leaf[-1] - leaf[0]).max() > 0.01 for leaf in moved)
    clusters = [len(set(one.labels[-1]) - {-1}) for one, _ in (few, many)]
    assert clusters[0] < clusters[1] == 5, "all that are there, each its own"


def test_inner_products_in_parts(monkeypatch):
    """Tiles, parts of clients, slabs and batches of slots that do not divide what they cut."""
    for name, size in {"TILE": {"cpu": 3, "gpu": 3}, "PART": 2, "SLOTS": 2}.items():
        monkeypatch.setattr(slabs, name, size)
    context = tiny.setting().with_context(task=task("mlp")).context
    describe = anchors.gradient(context.task)
    who = jnp.array([5, 1, 0, 7, 2, 4, 6, 3])
    live, data = jnp.array([False, True, False, True, True]), jax.device_put(tiny.federation())
    with jax.enable_x64(True):
        model = context.task.init(jax.random.key(0))
        sums = jax.vmap(lambda key: context.task.init(key)["params"])(jax.random.split(jax.random.key(1), 5))
        sums = trees.select(live, sums, jax.tree.map(jnp.zeros_like, sums))
        gram, described = trees.inner(sums, sums), jnp.zeros(8, jnp.int32)
        memory = MergeMemory(model, model, sums, gram, live, jax.random.key(2), described)

        def both(new):
            made = [describe._replace(has_coordinates=shortcut) for shortcut in (True, False)]
            own = (Settings(one, 0.5, greedy, "current", 3, 8, 800, False) for one in made)
            return [joint_gram(one, memory, who, new, data)[0] for one in own]

        program = jax.jit(both)
        for fresh in (0, 2, 7, 8):
            short, whole = program(jnp.arange(8) < fresh)
            assert np.abs(short[5:, :5]).max() > 0.01 or not fresh
            tiny.same(short, whole, 1e-12)


def test_descriptions_that_are_not_finite_are_zero_in_coordinates_too():
    """Inner products of examples of 1e30 are too large for a number."""
    context = tiny.setting().with_context(task=task("mlp")).context
    data = tiny.federation()
    owner = np.repeat(np.arange(8), data.train.size + data.test.size)
    model, who = context.task.init(jax.random.key(0)), jnp.arange(8)
    sums = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), model["params"])
    live = jnp.zeros(2, bool)
    memory = MergeMemory(model, model, sums, jnp.zeros((2, 2)), live, jax.random.key(2), jnp.zeros(8, jnp.int32))
    own = Settings(anchors.gradient(context.task), 0.5, greedy, "current", 3, 8, 800, False)

    @jax.jit
    def both(data):
        gram, psi = joint_gram(own, memory, who, who >= 0, data)
        return gram, sums_with_clients(own, memory, memory.sums, who, jnp.zeros(8, jnp.int32), psi, data)

    scaled = data.x * np.where(owner == 3, 1e30, 1.0).astype(np.float32)[:, None, None, None]
    (gram, total), (whole, _) = both(jax.device_put(data.replace(x=scaled))), both(jax.device_put(data))
    others = np.r_[0:5, 6:10]
    np.testing.assert_array_equal(gram[5], 0.0)
    np.testing.assert_array_equal(gram[others][:, others], whole[others][:, others])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(total))


def test_a_sketch_keeps_inner_products():
    """Unbiased over its signs, with the spread it states; folding is that of a plain loop."""
    rng, size, numbers = np.random.default_rng(0), 3000, 101
    one = rng.standard_normal(size)
    one /= np.linalg.norm(one)
    noise = rng.standard_normal(size)
    noise -= noise @ one * one
    two = 0.8 * one + 0.6 * noise / np.linalg.norm(noise)
    whole = anchors.Description(tiny.task(), lambda task, dot, anchor, data, key: (anchor, jnp.ones(())), False)

    def folded(key, vector):
        return anchors.sketched(whole, numbers, key)(vector, None, key)[0]["sketch"]  # pyright: ignore

    keys = jax.random.split(jax.random.key(0), 400)
    both = jax.vmap(lambda key: (folded(key, jnp.array(one)), folded(key, jnp.array(two))))(keys)
    products = np.einsum("tn,tn->t", *both)
    spread = np.sqrt((1 + 0.8**2) / numbers)
    assert abs(products.mean() - 0.8) < 4 * spread / 20
    assert 0.8 * spread < products.std() < 1.2 * spread
    signs = np.asarray(jax.random.rademacher(keys[0], (size,), float))
    plain = np.zeros(numbers)
    for i in range(size):
        plain[i % numbers] += signs[i] * one[i]
    np.testing.assert_allclose(both[0][0], plain, atol=1e-5)


SINGLE = {"tau": 0.3, "similarity": "noise_corrected"}


@functools.cache
def single():
    """The states of StoCFL in single precision, by both engines; half of the clients take part."""
    ((general, short),) = states("stocfl", SINGLE, participation=0.5)
    return general, short


def test_a_sketch_finds_the_groups():
    setting = tiny.setting(0.5).with_context(task=task("mlp"), engine="general")
    sketched = tiny.run(tiny.built("stocfl", setting, **SINGLE, sketch=150, clustering_only=True), ROUNDS)
    whole, _ = single()
    np.testing.assert_array_equal(whole.labels, sketched.labels)
    assert len(set(whole.labels[-1]) - {-1}) > 1


@pytest.mark.parametrize(
    ("model", "train"),
    [
        ("normalised", {"batch_size": "full"}),
        ("linear", {"steps": 3, "epochs": None}),
        ("normalised", {"batch_size": 5}),
    ],
    ids=str,
)
def test_models_and_schedules(model, train):
    with jax.enable_x64(True):
        ((general, short),) = states("fedprox", {"mu": 0.3}, model, **train)
    engines_agree(general, short)


@pytest.mark.parametrize(("method", "engine"), [("ditto", "factored"), ("stocfl", "factored"), ("stocfl", "general")])
def test_models_in_single_precision_stay_so_if_jax_is_set_to_double_precision(method, engine):
    """As Flax makes them. A client has so many examples that its gradient at the anchor is taken in parts."""
    data = tiny.federation((70, 9))
    with jax.enable_x64(True):
        module = nn.Sequential([lambda x: x.reshape(x.shape[0], -1), nn.Dense(3), nn.tanh, nn.Dense(tiny.CLASSES)])
        setting = tiny.setting(data=data).with_context(task=models.task(module, SHAPE, tiny.CLASSES), engine=engine)
        algorithm = tiny.built(method, setting)
        state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
        after = jax.eval_shape(algorithm.step, state, data)
    kinds = [jax.tree.map(lambda leaf: leaf.dtype, one.clusters) for one in (state, after)]
    assert kinds[0] == kinds[1] and set(jax.tree.leaves(kinds)) == {jnp.dtype("float32")}


def test_single_precision():
    general, short = single()
    tiny.same(jax.tree.map(lambda leaf: leaf[1:], general.clusters), short.clusters, 1e-5)


@pytest.mark.parametrize(
    ("method", "options", "model", "extras", "why"),
    [
        ("fedavg", {}, "cnn", (), "does not begin with a dense layer"),
        ("feddane", {}, "mlp", (), "not a pull"),
        ("scaffold", {}, "mlp", (), "not a pull"),
        ("ifca", {}, "mlp", [{"name": "con_para"}], "not a pull"),
        ("ifca", {}, "mlp", [{"name": "cks", "form": "pairwise"}], "not a pull"),
    ],
)
def test_refused_with_a_reason(method, options, model, extras, why):
    registry.load()
    network = models.task(Convolved(), SHAPE, tiny.CLASSES) if model == "cnn" else task(model)
    setting = tiny.setting(extras=extras).with_context(task=network)
    with pytest.raises(InputError, match=why):
        tiny.built(method, setting.with_context(engine="factored"), **options)
    assert tiny.built(method, setting.with_context(engine="auto"), **options).engine == "general"


class Convolved(nn.Module):
    """A convolution first."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(tiny.CLASSES)(nn.Conv(2, (3, 3))(x).reshape(x.shape[0], -1))


class Twice(nn.Module):
    """Looks at its examples a second time, at twice their values, or row by row, or goes through a layer again.

    Or keeps their mean, or names its layer's input. Or changes them only if it has a mask, or is not trained.
    """

    how: str

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        if self.how == "masked" and mask is not None:
            x = x - jnp.mean(x, 0, where=mask.reshape(-1, *[1] * (x.ndim - 1)))
        if self.how == "evaluated" and not train:
            x = 2 * x
        if self.how == "by row":
            x = nn.Dense(3)(x)
        if self.how == "as rows":
            x = nn.Dense(3)(x.reshape(-1, x.shape[-1])).reshape(x.shape[0], -1)
        x = x.reshape(x.shape[0], -1)
        layer = nn.Dense(x.shape[1])
        if self.how == "kept" and self.is_mutable_collection("kept"):
            self.variable("kept", "mean", jnp.zeros, x.shape[1]).value = x.mean(0)
        if self.how == "named":
            return nn.Dense(tiny.CLASSES)(inputs=layer(inputs=x))
        if self.how == "scaled":
            return nn.Dense(tiny.CLASSES)(layer(2 * x))
        if self.how == "skipped":
            return nn.Dense(tiny.CLASSES)(layer(x) + x)
        if self.how == "repeated":
            return nn.Dense(tiny.CLASSES)(layer(layer(x)))
        return nn.Dense(tiny.CLASSES)(nn.relu(layer(x)))


@pytest.mark.parametrize(
    ("how", "found"),
    [
        *[("once", True), ("scaled", False), ("skipped", False), ("repeated", False), ("by row", False)],
        *[("as rows", False), ("kept", False), ("named", True), ("masked", False), ("evaluated", False)],
    ],
)
def test_a_first_layer_is_found_only_where_it_alone_sees_the_examples(how, found):
    assert (models.task(Twice(how), SHAPE, tiny.CLASSES).first is not None) == found


class Inherited(nn.Dense):
    """The same layer under another name."""


class Rectified(nn.Dense):
    """A layer whose output is not the product of its kernel."""

    def __call__(self, x):
        return nn.relu(super().__call__(x))


def ensemble(features):
    """Three layers, whose kernels are stacked."""
    split = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "in_axes": None, "axis_size": 3}
    return nn.vmap(nn.Dense, **split)(features)


class Begun(nn.Module):
    """A network that begins with a layer like a dense one."""

    begin: str

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        first = {"normalised": lambda h: nn.WeightNorm(nn.Dense(h)), "ensemble": ensemble}
        layer = first.get(self.begin, {"inherited": Inherited, "rectified": Rectified}.get(self.begin, nn.Dense))(5)
        hidden = layer(x)
        if self.begin == "tied":
            return nn.Dense(tiny.CLASSES)(nn.relu(hidden) @ layer.variables["params"]["kernel"].T)
        return nn.Dense(tiny.CLASSES)(hidden.mean(0) if hidden.ndim > 2 else hidden)


@pytest.mark.parametrize("begin", ["inherited", "rectified", "normalised", "ensemble", "tied"])
def test_a_layer_that_computes_something_else_is_no_first_layer(begin):
    """Training in coordinates would put the plain product in its place, and train another network."""
    assert (models.task(Begun(begin), SHAPE, tiny.CLASSES).first is not None) == (begin == "inherited")


def test_the_cheaper_engine_is_chosen():
    """Few examples and a wide layer of many inputs: factored; many examples of few inputs, touched once: general."""
    registry.load()
    setting = tiny.setting(epochs=5, batch_size="full")
    wide = registry.find("model", "mlp")((28, 28, 1), 10, hidden=2048)
    narrow = setting.with_population(shape=(28, 28, 1), width=50)
    assert tiny.built("fedavg", narrow.with_context(task=wide)).engine == "factored"
    long = setting.with_population(width=5000)
    assert tiny.built("fedavg", long.with_context(task=task("mlp"))).engine == "general"


@pytest.mark.parametrize("tile", [1, 3, 8])
def test_the_first_and_the_last_tile_of_every_cluster_are_found(tile):
    labels = np.random.default_rng(tile).choice([0, 2, 3, 6], 20)
    tiles = chunks.tiles_of(jnp.asarray(labels), 7, tile)
    used = int(tiles.used)
    of = tiles.label[:used].tolist()
    begins, ends = (flags[:used].tolist() for flags in factored.borders(tiles))
    assert begins == [turn == of.index(label) for turn, label in enumerate(of)]
    assert ends == begins[1:] + [True]


@pytest.mark.parametrize(("method", "ways"), [("ditto", 1), ("stocfl", 2)])
def test_training_is_traced_for_the_tiles_that_can_occur(method, ways, monkeypatch):
    """Where every client has a model of its own, no tile has two clients; clusters of StoCFL may be small or large."""
    traced, whole = [], factored.train_tiles
    monkeypatch.setattr(factored, "train_tiles", lambda *given: traced.append(given) or whole(*given))
    _, algorithm = built(method, {})
    begin = lambda key, data: algorithm.step(algorithm.init(key, data), data)
    jax.eval_shape(begin, jax.random.key(0), tiny.federation())
    assert len(traced) == ways


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about a CPU's cores")
def test_cores_as_devices_favour_training_in_general():
    """Clients of 300 images, 2 epochs in batches of 32: factored on one device, in general on one for every core."""
    mlp = registry.find("model", "mlp")((28, 28, 1), 10, hidden=800)
    setting = tiny.setting(epochs=2, batch_size=32).with_population(shape=(28, 28, 1), width=300)
    work = engines.Work(lambda task: None, mlp, setting.context.trainer, (), False, True)  # pyright: ignore
    several = [setting.with_resources(devices=devices).context for devices in (1, 2)]
    chosen = [factored.Factored().is_cheaper(work, context) for context in several]
    assert chosen == [True, False]


def test_an_upload_that_is_lost_need_not_be_finite():
    """In the factored engine, whose sums are products with rows of weight 0, as in the general one."""
    data = tiny.federation()
    x = data.x.copy()
    x[data.train.owned(3)] = 1e30
    data = data.replace(x=x)
    setting = tiny.setting(data=data, steps=2, epochs=None).with_context(
        task=registry.find("model", "mlp")(SHAPE, tiny.CLASSES, hidden=4),
        engine="factored",
        faults=Faults(reliability=Reliability(dropout=0.5)),
    )
    algorithm, data = tiny.built("fedavg", setting), jax.device_put(data)
    round_of = jax.jit(lambda key: algorithm.step(algorithm.init(key, data), data))
    ends = [round_of(jax.random.key(seed)) for seed in range(6)]
    assert {bool(end.seen[3]) for end in ends} == {True, False}
    assert [bool(end.failed[0] < 0) for end in ends] == [not end.seen[3] for end in ends]
