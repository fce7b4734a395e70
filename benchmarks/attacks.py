"""Two hostile clients among honest ones: their labels turned, their updates scaled; asked by methods.py."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from study import TRAIN, Study, heading, row

from jcfl.core.local import Local
from jcfl.results import History
from jcfl.types import Federation

FACTOR = 10.0
ATTACKS = {"none": (False, False), "flip": (True, False), "scale": (False, True), "flip and scale": (True, True)}
"""Whether labels y become c - 1 - y, and whether updates are sent `FACTOR` times."""


class Scaling(Local):
    """SGD, after which a client whose images are marked sends `FACTOR` times its update."""

    @classmethod
    def of(cls, options: dict[str, Any]) -> "Scaling":
        """The trainer with a configuration's options."""
        return cls(options["lr"], None, options["steps"], options["batch_size"], 0.0, 0.0)

    def train(self, objective, start, sent, data, key):
        """The start, and the update once or `FACTOR` times."""
        model = Local(*self).train(objective, start, sent, data, key)
        factor = jnp.where(data.x[0, 0, 0, 0] > 0, FACTOR, 1.0)
        return jax.tree.map(lambda before, after: before + factor * (after - before), start, model)


def answer(study: Study, tau: float) -> None:
    """The accuracy of honest clients in two groups turned by 0 and 180 degrees, a hostile client in either."""
    rows, federations = study.chosen(defences(tau)), study.federations("rotated", groups=2, copies=False)
    bad = np.array([0, study.clients - 1])
    found: dict[str, Any] = {}
    print(heading(["method", *ATTACKS]))
    for title, method in rows.items():
        found[title] = {attack: [] for attack in ATTACKS}
        for attack, (flip, scale) in ATTACKS.items():
            given = {"train": Scaling.of(TRAIN), "engine": "general"} if scale else {}  # a factored one sees no pixels
            for seed, federation in enumerate(federations):
                history, _ = study.run(
                    marked(federation, bad, flip), method=method, seed=seed, evaluate_every=study.rounds, **given
                )
                found[title][attack].append(honest(history, bad))
        print(row(title, [told(found[title][attack]) for attack in ATTACKS]), flush=True)
        study.saved(found)


def defences(tau: float) -> dict[str, Any]:
    """Means and robust means in as many clusters as groups or with room for two more, CAM, TKM, and StoCFL."""
    rules: dict[str, Any] = {"mean": [], "trimmed": [{"name": "robust", "rule": "trimmed_mean", "beta": 0.2}]}
    rules |= {"median": [{"name": "robust", "rule": "median"}]}
    rows: dict[str, Any] = {f"FedAvg {rule}": {"name": "fedavg", "addons": addon} for rule, addon in rules.items()}
    for title, method in (("FeSEM", "fesem"), ("WeCFL", "wecfl")):
        for k in (2, 4):
            for rule, addon in rules.items():
                rows[f"{title} K={k} {rule}"] = {"name": method, "clusters": k, "addons": addon}
    cam = [{"name": "cam", "warmup": 9}]
    for title, method in (("IFCA", "ifca"), ("FeSEM", "fesem")):
        rows |= {f"{title} K={k} CAM": {"name": method, "clusters": k, "addons": cam} for k in (2, 4)}
    rows |= {f"IFCA K={k} mean": {"name": "ifca", "clusters": k} for k in (2, 4)}
    rows |= {f"TKM K={k}": {"name": "robust_tkm", "clusters": k, "beta": 0.1} for k in (2, 4)}
    return rows | {f"StoCFL {rule}": {"name": "stocfl", "tau": tau, "addons": addon} for rule, addon in rules.items()}


def marked(federation: Federation, bad: Sequence[int] | np.ndarray, flip: bool) -> Federation:
    """The federation with the hostile clients' images marked, and their labels y turned to c - 1 - y if `flip`.

    The mark is the first pixel, 1 of 255 where everybody else's is 0: too faint to learn from, and all that a trainer
    has to tell a client by.
    """
    x, y, split = np.array(federation.x), np.array(federation.y), federation.train
    x[:, 0, 0, 0] = 0
    for client in bad:
        rows = np.asarray(split.rows)[split.start[client] : split.start[client] + split.size[client]]
        x[rows, 0, 0, 0] = 1
        y[rows] = federation.classes - 1 - y[rows] if flip else y[rows]
    leaves: dict[str, Any] = {"x": x, "y": y}
    return replace(federation, **leaves)


def honest(history: History, bad: Sequence[int] | np.ndarray) -> dict[str, Any]:
    """How honest clients do, on average and at worst, and how many of them share a cluster with a hostile one."""
    good = np.setdiff1d(np.arange(len(history.groups)), bad)
    accuracy, labels = history.accuracy_clients[0, -1], history.labels[0, -1]
    beside = int(np.isin(labels[good], labels[bad]).sum())
    return {"accuracy": float(accuracy[good].mean()), "worst": float(accuracy[good].min()), "beside": beside}


def told(runs: list[dict[str, Any]]) -> str:
    """Mean ± sample standard deviation of the accuracy, and the honest clients beside a hostile one in every run."""
    accuracy = [run["accuracy"] for run in runs]
    spread = f" ± {np.std(accuracy, ddof=1):.3f}" if len(runs) > 1 else ""
    return f"{np.mean(accuracy):.3f}{spread} ({', '.join(str(run['beside']) for run in runs)})"
