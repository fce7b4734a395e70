"""A federation and a task so small that what a test waits for is compilation."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from jcfl import registry
from jcfl.core import local
from jcfl.core.context import Context
from jcfl.core.context import context as make_context
from jcfl.core.method import Method
from jcfl.fast.factored import Factored
from jcfl.models import cross_entropy
from jcfl.runs.plan import compiled_with_addons
from jcfl.types import NEVER, Federation, Split, Task

registry.load()

CLASSES = 10


@functools.cache
def federation(sizes: tuple[int, ...] = (12, 9, 7, 12, 10, 5, 12, 8), groups: int = 2, held_out: int = 0) -> Federation:
    """Digits shrunk to 4 x 4; group g sees them rotated by g quarter turns; clients of uneven size."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 4, 2, 4, 2).mean((2, 4))
    group = np.arange(len(sizes)) * groups // len(sizes)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test, pool, targets = [], [], [], []
    for g, size in zip(group, sizes, strict=True):
        mine, order = order[: size + 4], order[size + 4 :]
        start = sum(map(len, pool))
        pool.append(np.rot90(images[mine], g, (1, 2)))
        targets.append(labels[mine])
        train.append(start + np.arange(size))
        test.append(start + size + np.arange(4))
    m = len(sizes)
    outside = np.zeros(m, bool)
    outside[m - held_out :] = True
    return Federation(
        x=(np.concatenate(pool)[..., None] / 16).astype(np.float32),
        y=np.concatenate(targets).astype(np.int32),
        train=split(train),
        test=split(test),
        groups=group.astype(np.int32),
        held_out=outside,
        arrive=np.zeros(m, np.int32),
        depart=np.full(m, NEVER, np.int32),
        classes=CLASSES,
        name="tiny",
    )


def split(parts) -> Split:
    size = np.array([len(part) for part in parts], np.int32)
    return Split(
        np.concatenate(parts).astype(np.int32), (np.cumsum(size) - size).astype(np.int32), size, int(size.max())
    )


@functools.cache
def task(hidden: int = 6) -> Task:
    """One hidden layer of tanh, written without a library so that the oracle's gradient is easy to check."""

    def init(key):
        one, two = jax.random.split(key)
        return {
            "params": {
                "body": {"kernel": jax.random.normal(one, (16, hidden)) / 4, "bias": jnp.zeros(hidden)},
                "head": {"kernel": jax.random.normal(two, (hidden, CLASSES)) / 2, "bias": jnp.zeros(CLASSES)},
            }
        }

    def features(model, x, *, key=None, mask=None):
        body = model["params"]["body"]
        return jnp.tanh(x.reshape(x.shape[0], -1) @ body["kernel"] + body["bias"])

    def apply(model, x, *, key=None, mask=None):
        last = model["params"]["head"]
        return features(model, x) @ last["kernel"] + last["bias"], model

    return Task(init, apply, features, cross_entropy, ("head",), "tiny")


class Setting(NamedTuple):
    """A run to compile methods for, and the add-ons that they get."""

    context: Context
    addons: tuple[Mapping[str, Any], ...] = ()

    @property
    def task(self) -> Task:
        return self.context.task

    def with_resources(self, **changes: Any) -> "Setting":
        """The setting with other memory or devices."""
        return self._replace(context=self.context._replace(resources=self.context.resources._replace(**changes)))

    def with_population(self, **changes: Any) -> "Setting":
        """The setting with other sizes."""
        return self._replace(context=self.context._replace(population=self.context.population._replace(**changes)))

    def with_context(self, **changes: Any) -> "Setting":
        """The setting with another task, trainer or engine."""
        return self._replace(context=self.context._replace(**changes))


def setting(participation: float = 1.0, chunk: int | None = None, held_out: int = 0, data=None, extras=(), **train):
    """The tiny run's setting; `train` are the options of SGD, `extras` add-ons as `{name, options}`."""
    data = federation(held_out=held_out) if data is None else data
    options = {"lr": 0.5, "epochs": 2, "batch_size": 4} | train
    made = make_context(
        data, task(), local.sgd(**options), participation, chunk=chunk, budget=2**30, engines=(Factored(),)
    )
    full = ({"name": one["name"], **registry.options("addon", one["name"], rest(one))} for one in extras)
    return Setting(made, tuple(full))


def rest(addon: Mapping[str, Any]) -> dict[str, Any]:
    """An add-on's options without its name."""
    return {key: value for key, value in addon.items() if key != "name"}


def built(method: Method | str, setting: Setting, **options: Any):
    """The algorithm of a method, by its value or its name and options, with the setting's add-ons."""
    value = registry.find("method", method)(**options) if isinstance(method, str) else method
    return compiled_with_addons(value, setting.addons, setting.context)


def run(algorithm, turns: int, seed: int = 0, data=None):
    """The states of a run, one program. [turns + 1, ...]"""
    return swept(lambda _: algorithm, [0], turns, seed, data)[0]


def swept(make: Callable[[Any], Any], values: Iterable[float], turns: int, seed: int = 0, data=None) -> list[Any]:
    """The states of runs whose algorithms differ in one number, which their one program takes as an argument."""
    data = jax.device_put(federation() if data is None else data)

    @jax.jit
    def whole(key, value, data):
        algorithm = make(value)

        def step(state, _):
            new = algorithm.step(state, data)
            return new, new

        start = algorithm.init(key, data)
        return start, jax.lax.scan(step, start, length=turns)[1]

    runs = (whole(jax.random.key(seed), value, data) for value in values)
    return [jax.tree.map(joined, *states) for states in runs]


def joined(first, rest):
    """What a leaf was at first and after each round. [turns + 1, ...]"""
    return np.concatenate([numpy(first)[None], numpy(rest)])


def ends(algorithm, turns: int, seed: int, federations: Sequence[Federation]) -> list[Any]:
    """The first and the last state of a run on each of some federations of one shape, one program. [2, ...]"""

    @jax.jit
    def whole(key, data):
        start = algorithm.init(key, data)
        return start, jax.lax.fori_loop(0, turns, lambda _, state: algorithm.step(state, data), start)

    found = [whole(jax.random.key(seed), jax.device_put(data)) for data in federations]
    return [jax.tree.map(lambda *both: np.stack([numpy(leaf) for leaf in both]), *both) for both in found]


def numpy(leaf):
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def same(one, two, tolerance: float = 0.0):
    """Whether two pytrees hold the same numbers; raises with the first leaf that does not."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance), one, two)
