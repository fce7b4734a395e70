"""Clients shared out among devices: the same labels and parameters as on one."""

import os
import subprocess
import sys
from pathlib import Path

COMPARED = """
import jax, numpy as np
from jcfl import models, registry
from tests import tiny

registry.load()
METHODS = [
    ("fedavg", {}, "general"), ("stocfl", {"tau": 0.3}, "factored"), ("stocfl", {"tau": 0.3}, "general"),
    ("ifca", {"clusters": 3}, "factored"), ("fesem", {"clusters": 2, "lam": 0.2}, "general"), ("ditto", {}, "factored"),
]
for name, options, engine in METHODS:
    found = []
    for devices in (1, 8):
        setting = tiny.setting(0.8, held_out=1).with_resources(devices=devices).with_context(
            task=registry.find("model", "mlp")((4, 4, 1), tiny.CLASSES, hidden=5), engine=engine
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


def test_eight_devices_agree_with_one():
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {os.environ.get('XLA_FLAGS', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", COMPARED],
        env=os.environ | flags,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("agree") == 6
