"""How a round's time and memory grow with the federation, the cohort, the model and the clusters."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jcfl.runs.bench.work import compiled_step, made_up_federation, medians, settled_state, timed
from jcfl.runs.plan import config_and_objects, planned
from jcfl.trees import parameters

SGD = {"lr": 0.1, "epochs": 5, "batch_size": "full"}

GROWTH: dict[str, Callable[[bool], Sequence[str]]] = {
    "clients": lambda quick: ("100",) if quick else ("100", "1000", "10000", "100000", "1000000", "1000000/1000"),
    "cohort": lambda quick: ("8",) if quick else ("10", "100", "1000", "4800"),
    "parameters": lambda quick: ("16",) if quick else ("32", "128", "512", "2048", "4096"),
    "clusters": lambda quick: ("3",) if quick else ("1", "4", "16", "64"),
}
"""The cases of each row: clients (and after a stroke the cohort), cohort, width, clusters."""


def growth_figures(row: str, case: str, quick: bool) -> dict[str, Any]:
    """The sizes of one case and its seconds per round, those of the first round separately."""
    first, _, second = case.partition("/")
    value, cohort = int(first), 4 if quick else int(second or 100)
    clients = {"clients": value, "cohort": 80 if quick else 4800}.get(row, 100 if quick else 1000)
    cohort = value if row == "cohort" else cohort
    hidden = {"clients": 64, "parameters": value}.get(row, 8 if quick else 200)
    ifca = {"name": "ifca", "clusters": value if row == "clusters" else 4}
    method = ifca if row in ("clients", "clusters") else {"name": "stocfl", "capacity": 64}
    given = {"model": {"name": "mlp", "hidden": hidden}, "method": method, "train": SGD}
    plan = planned(*config_and_objects(made_up_federation(clients, 50), {**given, "participation": cohort / clients}))
    state = settled_state(plan)
    times = timed(compiled_step(plan, state), state, plan.federation, 2 if quick else 4)
    (algorithm,) = plan.algorithms.values()
    size = parameters(jax.eval_shape(plan.context.task.init, jax.random.key(0)))
    counts = {
        "clients": clients,
        "cohort": plan.context.population.cohort,
        "parameters": size,
        "engine": algorithm.engine,
    }
    return counts | {"first_s": times[0], "round_s": medians(times[1:])[0]}
