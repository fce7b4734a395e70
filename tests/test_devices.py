"""Clients shared out among devices: the same labels and parameters as on one."""

import os
import subprocess
import sys
from pathlib import Path

COMPARED = """
import jax, numpy as np
from jcfl import models, registry
from jcfl.core import engine as engines
from jcfl.core.privacy import Privacy
from tests import tiny

registry.load()
engines.EXCHANGED = 2  # of three and of eight slots
METHODS = [
    ("fedavg", {}, "general"), ("stocfl", {"tau": 0.3}, "factored"), ("stocfl", {"tau": 0.3}, "general"),
    ("ifca", {"clusters": 3}, "factored"), ("fesem", {"clusters": 2, "lam": 0.2}, "general"), ("ditto", {}, "factored"),
    ("ditto", {}, "general", Privacy(clip=0.5, noise=1.0)),
    ("ifca", {"clusters": 3}, "auto", Privacy(clip=0.5, noise=1.0)),
]
for name, options, engine, *privacy in METHODS:
    found = []
    for devices in (1, 8):
        setting = tiny.setting(0.8, held_out=1).with_resources(devices=devices).with_context(
            task=registry.find("model", "mlp")((4, 4, 1), tiny.CLASSES, hidden=5), engine=engine,
            privacy=privacy[0] if privacy else Privacy(),
        )
        algorithm = tiny.built(name, setting, **options)
        data = tiny.federation(held_out=1)
        states = tiny.run(algorithm, 3, data=data)
        last = jax.tree.map(lambda leaf: leaf[-1], states.replace(key=()))
        key = jax.random.key(0)
        last = last.replace(key=key, memory=last.memory.replace(key=key) if name == "stocfl" else last.memory)
        figures = jax.jit(algorithm.evaluate)(last, jax.device_put(data))
        found.append((states.labels, states.clusters, states.shared, states.clients, dict(figures)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    tiny.same(found[0], found[1], 1e-5)
    print(name, engine, "agree")
"""

SENT = """
import jax
from jcfl import trees
from jcfl.core import engine
from jcfl.runs.bench import hlo
from jcfl.runs.devices import on_devices, on_every_device
from tests import tiny

engine.EXCHANGED = 2
data = on_devices(tiny.federation(), 8)
for name, options in {"fedavg": {}, "ifca": {"clusters": 8}}.items():
    algorithm = tiny.built(name, tiny.setting(0.5, epochs=1).with_resources(devices=8), **options)
    state = on_devices(algorithm.init(jax.random.key(0), data), 8)
    step = jax.jit(algorithm.step, out_shardings=on_every_device(8)).lower(state, data).compile()
    print(hlo.cost(step.as_text(), True).sent / (4 * trees.parameters(state.shared)))
"""


def test_eight_devices_agree_with_one():
    done = on_eight_devices(COMPARED)
    assert done.count("agree") == 8


def test_devices_send_each_other_the_means_and_nothing_else():
    """Drawing the cohort and weighing it are small: every device does that by itself."""
    fedavg, ifca = map(float, on_eight_devices(SENT).split())
    assert fedavg == 1
    assert 2 <= ifca <= 3, "two of eight models at a time, and perhaps the mean of all"


def on_eight_devices(program: str) -> str:
    """What a program prints where a CPU counts as eight devices."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {os.environ.get('XLA_FLAGS', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | flags,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
