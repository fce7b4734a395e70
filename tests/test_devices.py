"""Clients shared out among devices: the same labels and parameters as on one."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jcfl.core import rounds
from jcfl.core.local import Local, adam
from jcfl.core.sharded import dealt, needs_few_models
from jcfl.methods.stocfl import stocfl
from tests import tiny
from tests.processes import CALM

PROGRAM = """
import jax, numpy as np
from jcfl import registry, trees
from jcfl.core import sharded
from jcfl.core.privacy import Privacy
from jcfl.runs.bench import hlo
from jcfl.runs.devices import on_devices, on_every_device, placed_shapes, state_on_devices
from tests import tiny

registry.load()
sharded.EXCHANGED = 2  # of one, three and eight slots
held_out = tiny.federation(held_out=1)

def found(name, options, engine, devices, privacy=Privacy()):
    setting = tiny.setting(0.8, held_out=1).with_resources(devices=devices).with_context(
        task=registry.find("model", "mlp")((4, 4, 1), tiny.CLASSES, hidden=8), engine=engine, privacy=privacy
    )
    algorithm = tiny.built(name, setting, **options)

    @jax.jit
    def whole(key, data):
        def step(state, _):
            new = algorithm.step(state, data)
            if devices > 1:  # as the programs of a run do
                new = jax.lax.with_sharding_constraint(new, state_on_devices(new, devices))
            return new, (new.labels, new.clusters, new.shared, new.clients)

        last, states = jax.lax.scan(step, algorithm.init(key, data), length=3)
        return states, dict(algorithm.evaluate(last, data))

    return jax.tree.map(np.asarray, whole(jax.random.key(0), jax.device_put(held_out)))

METHODS = [  # ifca shares losses out, whatever the engine
    ("stocfl", {"tau": 0.3}, "factored"),
    ("fesem", {"clusters": 2, "lam": 0.2}, "general"), ("ditto", {}, "factored"),
    ("ditto", {}, "general", Privacy(clip=0.5, noise=1.0)),
    ("ifca", {"clusters": 3}, "auto", Privacy(clip=0.5, noise=1.0)),
]
for name, options, engine, *privacy in METHODS:
    one, eight = (found(name, options, engine, devices, *privacy) for devices in (1, 8))
    np.testing.assert_array_equal(one[0][0], eight[0][0])
    tiny.same(one, eight, 1e-5)
    print(name, engine, "agree")

many = tiny.federation((9,) * 64)  # a quarter of them trains, two on each device
data = on_devices(many, 8)
small = tiny.setting(0.25, data=many, epochs=1).with_resources(devices=8).with_context(task=tiny.task(256))
for name, options in {"fedavg": {}, "ifca": {"clusters": 8}, "ditto": {}, "fesem": {}}.items():
    algorithm = tiny.built(name, small, **options)
    state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
    places = state_on_devices(state, 8)
    there = placed_shapes(state, places)
    program = lambda function, out: jax.jit(function, out_shardings=out).lower(there, data).compile()
    step, one = program(algorithm.step, places), 4 * trees.parameters(state.shared)
    print(name, "sends", hlo.cost(step.as_text(), True).sent / one)
    print(name, "keeps", step.memory_analysis().output_size_in_bytes / one)
    if name == "ditto":
        judged = program(algorithm.evaluate, on_every_device(8))
        print("its-evaluation", "sends", hlo.cost(judged.as_text(), True).sent / one)
"""


@settings(deadline=None)
@given(st.data(), st.sampled_from([(1, 1), (1, 4), (5, 3), (12, 2)]))  # few shapes, because each is compiled
def test_devices_get_clients_with_about_as_many_examples(data, shape):
    each, devices = shape
    sizes = data.draw(st.lists(st.integers(0, 1000), min_size=each, max_size=each))
    size = np.array(sizes * devices)
    order = np.asarray(dealt(jnp.asarray(size), devices))
    assert sorted(order.tolist()) == list(range(size.size))
    work = size[order].reshape(devices, -1).sum(1)
    assert np.ptp(work) <= size.max()


class ToTheMean(Local):
    """Local steps, and then half of the way to the mean of the clusters' models."""

    def train(self, objective, start, sent, data, key):
        """The model in the middle."""
        after = Local.train(self, objective, start, sent, data, key)
        return {**after, "params": optax.tree.scale(0.5, optax.tree.add(after["params"], sent.mean["params"]))}


class Backwards(Local):
    """Gradient ascent."""

    is_linear = True

    def train(self, objective, start, sent, data, key):
        """The model after steps uphill."""
        return Local.train(self._replace(lr=-self.lr), objective, start, sent, data, key)


@pytest.mark.parametrize(
    ("trainer", "few"),
    [
        (Local(0.1, 1, None, 4, 0.0, 0.0), True),
        (adam(), True),
        (Backwards(0.1, 1, None, 4, 0.0, 0.0), True),
        (ToTheMean(0.1, 1, None, 4, 0.0, 0.0), False),
    ],
    ids=lambda given: type(given).__name__,
)
def test_devices_get_the_models_of_all_clusters_where_a_trainer_may_look_at_them(trainer, few):
    context = tiny.setting().with_context(trainer=trainer).context
    state = jax.eval_shape(tiny.built("stocfl", tiny.Setting(context)).init, jax.random.key(0), tiny.federation())
    assert needs_few_models(rounds.work_of(stocfl(), context, "both"), state) == few


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """The lines that the program prints where a CPU counts as eight devices."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {os.environ.get('XLA_FLAGS', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", CALM + PROGRAM],
        env=os.environ | flags,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_eight_devices_agree_with_one(printed):
    agreed = [line.split()[0] for line in printed if line.endswith("agree")]
    assert agreed == ["stocfl", "fesem", "ditto", "ditto", "ifca"]


def numbers(printed: list[str], what: str) -> dict[str, float]:
    """What the program printed of each method, in models of one client."""
    return {name: float(number) for name, says, number in map(str.split, printed) if says == what}


def test_devices_send_each_other_the_means_and_nothing_else(printed):
    """Drawing the cohort and weighing it are small: every device does that by itself."""
    sent = numbers(printed, "sends")
    assert sent["fedavg"] == 1
    assert 2 <= sent["ifca"] <= 3, "two of eight models at a time, and perhaps the mean of all"


def test_devices_divide_what_64_clients_keep(printed):
    """Each device holds an eighth, and all biases of the last layer, which cannot be divided. A copy is 64 models."""
    kept, sent = numbers(printed, "keeps"), numbers(printed, "sends")
    assert max(kept["ditto"], kept["fesem"]) < 64 / 4
    assert sent["ditto"] < 6, "the models of two clients to each device and back, and the means"
    assert max(sent["fesem"], sent["its-evaluation"]) < 64 / 2, "they are not put together to be used either"
