"""How CFL's thresholds are chosen: the norms they are held against, and what every pair finds; asked by methods.py."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from study import Study, heading, row

from jcfl import metrics, trees
from jcfl.core.compile import compile
from jcfl.core.context import Context
from jcfl.core.method import Method
from jcfl.core.neutral import Together, grouping_of
from jcfl.grouping.describe import updates
from jcfl.methods.cfl import cfl
from jcfl.methods.fedavg import fedavg
from jcfl.runs.plan import Plan, config_and_objects, planned
from jcfl.types import Federation, Grouping

EPS1, EPS2 = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8), (0.2, 0.4, 0.6, 0.8)
TRAIN = {"lr": 0.1, "steps": 10, "batch_size": 50}


def answer(study: Study) -> None:
    """Print norms of updates with nobody split, and the clusters that every pair of thresholds ends with."""
    federations = study.federations("shifted", copies=False)
    found: dict[str, Any] = {"norms": {}, "pairs": {}}
    for seed, federation in enumerate(federations):
        history, _ = study.run(federation, method=UNSPLIT, train=TRAIN, seed=seed)
        norms = {key: values[0].round(4).tolist() for key, values in history.scores.items() if key.startswith(KINDS)}
        found["norms"][seed] = norms
        moments = [t for t in (1, 2, 3, 5, 10, 20, 30, 40, 60) if t <= study.rounds]
        print("\n" + heading([f"seed {seed}, after round", *map(str, moments)]))
        for key, values in norms.items():
            print(row(key, [f"{values[t - 1]:.2f}" for t in moments]))
        study.saved(found)
    common = {"model": {"name": "mlp", "hidden": study.hidden}, "train": TRAIN, "rounds": study.rounds}
    plan = planned(*config_and_objects(federations[0], {"method": "cfl", **common}))
    pairs = jax.jit(partial(split, plan))
    print("\n" + heading(["eps1 \\ eps2", *map(str, EPS2)]))
    for eps1 in EPS1:
        cells = []
        for eps2 in EPS2:
            runs = [pairs(eps1, eps2, jax.random.key(seed), one) for seed, one in enumerate(federations)]
            found["pairs"][f"{eps1} {eps2}"] = figures = [
                summed(clusters, outcome, one)
                for (clusters, outcome), one in zip(jax.device_get(runs), federations, strict=True)
            ]
            cells.append(
                "; ".join("{clusters} ({purity:.2f}) {rounds} {accuracy:.3f}".format(**one) for one in figures)
            )
        print(row(str(eps1), cells), flush=True)
        study.saved(found)


KINDS = ("mean_", "largest_")


@dataclass(frozen=True, kw_only=True)
class Measured(Together):
    """All clients together, and what CFL looks at: ‖mean Δ‖ and max ‖Δ_i‖ of everybody and inside every true group.

    Both are fractions of everybody's in the first round.
    """

    name: ClassVar[str] = "measured"

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Labels of zero, and norms of updates after every round."""
        groups = context.population.groups
        names = ["all", *(f"group_{group}" for group in range(groups))]

        def after(key, state, members, federation, models):
            inside = jnp.concatenate([jnp.ones((1, members.who.size)), jax.nn.one_hot(federation.groups, groups).T])
            delta = updates(models, trees.take(state.clusters, state.labels))
            inner = trees.inner(delta, delta)
            means = jnp.sqrt(jnp.einsum("gi,ij,gj->g", inside, inner, inside)) / inside.sum(1)
            largest = (inside * jnp.sqrt(jnp.diagonal(inner))).max(1)
            first = jnp.where(state.round == 0, jnp.stack([means[0], largest[0]]), state.memory[0])
            return state.replace(memory=(first, jnp.stack([means, largest]) / first[:, None]))

        def measures(state, federation):
            norms = dict(zip(KINDS, state.memory[1], strict=True))
            return {f"{kind}{name}": norms[kind][g] for kind in KINDS for g, name in enumerate(names)}

        def init(state, federation):
            memory = jnp.zeros(2), jnp.zeros((2, len(names)))
            return state.replace(labels=jnp.zeros_like(state.labels), memory=memory)

        return grouping_of(init=init, after=after, measures=measures)


UNSPLIT = replace(fedavg(), name="unsplit", group=Measured())


def split(plan: Plan, eps1, eps2, key, federation):
    """A whole run of CFL: the number of clusters after every round, and the figures at the end.

    Thresholds are numbers of the program's input, so that one program serves all pairs.
    """
    algorithm = compile(cfl(eps1=eps1, eps2=eps2), plan.context)

    def step(state, _):
        state = algorithm.step(state, federation)
        return state, state.labels.max() + 1

    state, clusters = jax.lax.scan(step, algorithm.init(key, federation), length=plan.config.rounds)
    return clusters, algorithm.evaluate(state, federation)


def summed(clusters: np.ndarray, outcome: dict[str, Any], federation: Federation) -> dict[str, Any]:
    """Clusters at the end, their purity, the round in which each but the first came to be, and the accuracy."""
    rounds = np.repeat(1 + np.arange(len(clusters)), np.diff(clusters, prepend=1)).tolist()
    found = metrics.measured(outcome, federation, len(clusters))
    scores = {key: float(found[key]) for key in ("purity", "ari", "accuracy_micro")}
    return {"clusters": int(clusters[-1]), "rounds": rounds, "accuracy": scores.pop("accuracy_micro"), **scores}
