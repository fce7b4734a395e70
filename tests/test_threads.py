"""Lanes on threads of their own: programs that cannot run beside each other do not hang."""

import subprocess
import sys

CODE = """
import jax
from jcfl import registry
from jcfl.runs import config, plan, programs

registry.load()
answers = {"describe": "subspace", "compare": "principal_angles", "group": {"name": "linkage", "clusters": 4}}
changes = {"method": {"name": "clustered", **answers}, "scenario": {"name": "rotated", "clients": 30}, "compare": []}
planned = plan.planned(config.read(config.loaded("quickstart") | changes, []))
(algorithm,) = planned.algorithms.values()
compiled = programs.programs(algorithm, planned.federation, 3)
for turn in range(30):
    jax.block_until_ready(compiled.init(programs.keys(range(3)), planned.federation).states)
print("done")
"""


def test_batched_factorisations_on_several_threads_do_not_hang():
    """Three lanes whose first state needs `eigh` and `svd`; without a lock they stop within some turns."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "done\n", done.stderr
