"""Lanes on threads of their own: programs that cannot run beside each other do not hang."""

import subprocess
import sys
import time
import warnings

import pytest

from jcfl.errors import Notice
from jcfl.runs.watchdog import Watchdog
from tests.processes import CALM

CODE = """
import jax
from jcfl import registry
from jcfl.runs import config, plan, programs

registry.load()
answers = {"describe": "subspace", "compare": "principal_angles", "group": {"name": "linkage", "clusters": 4}}
changes = {"method": {"name": "clustered", **answers}, "scenario": {"name": "rotated", "clients": 30}, "compare": []}
planned = plan.planned(config.read(config.unchecked("quickstart") | changes, []))
(algorithm,) = planned.algorithms.values()
algorithm = algorithm._replace(step=lambda state, data: state, evaluate=lambda state, data: {})  # which are not run
compiled = programs.programs(algorithm, planned.federation, 3)
for turn in range(30):
    jax.block_until_ready(compiled.init(programs.keys(range(3)), planned.federation).states)
print("done")
"""


def test_batched_factorisations_on_several_threads_do_not_hang():
    """Three lanes whose first state needs `eigh` and `svd`; without a lock they stop within some turns."""
    done = subprocess.run([sys.executable, "-c", CALM + CODE], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "done\n", done.stderr


def test_a_step_that_gives_no_answer_is_named():
    """The first warning comes after the patience, the next after twice that; a quick step says nothing."""
    watchdog = Watchdog("stocfl", patience=0.05)
    expected = pytest.warns(Notice, match=r"stocfl: no answer for 0 s from rounds 3 to 4; .* --resume")
    with expected as said, watchdog.watching("rounds 3 to 4"):
        time.sleep(0.25)
    assert len(said) in (2, 3)
    watchdog.longest = 0.0
    with warnings.catch_warnings(action="error"), watchdog.watching("rounds 5 to 6"):
        pass
