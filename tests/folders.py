"""Folders of runs with figures made up for tests, written as a run writes them, with nothing trained."""

from pathlib import Path

import numpy as np
import yaml

from jcfl.results import Folder, Record, final, history

CLIENTS, CLASSES = 30, 4
GROUPS = np.repeat([0, 1, 2], 10)
ROUNDS = (2, 4, 6, 8)


def run(
    path: Path,
    seeds=(0, 1),
    name="stocfl",
    settings=None,
    labels=None,
    complete=True,
    groups=GROUPS,
    held=None,
    clients=(),
    costs=None,
    **scores,
):
    """Write a run: accuracies grow with the round and the seed, labels are given or those of `moving`."""
    rng = np.random.default_rng(len(str(path.name)))
    labels = moving() if labels is None else labels
    records = []
    for i, seed in enumerate(seeds):
        for j, round in enumerate(ROUNDS):
            figures = {
                "accuracy_micro": 0.5 + 0.05 * j + 0.02 * i,
                "f1_micro": 0.4 + 0.05 * j,
                "loss": 1.0 / (j + 1),
                "clusters": len(np.unique(labels[j][labels[j] >= 0])),
                "ari": 0.25 * j,
                "purity": 1.0,
                "clusterability": 2.0 - 0.25 * j,
                "smoothness": 1.0 + i,
            }
            figures |= {key: value[i][j] for key, value in scores.items()}
            arrays = {"labels": labels[j].astype(np.int32), "accuracy_clients": rng.random(len(groups), np.float32)}
            records.append(Record(seed, round, figures, arrays, compared(labels[j], groups, j)))
    folder = Folder(path)
    base = {
        "data": {"name": "made up"},
        "scenario": {"name": "rotated"},
        "method": {"name": name},
        "participation": 0.5,
    }
    folder.begin(yaml.safe_dump(base | {"rounds": ROUNDS[-1]} | (settings or {})))
    folder.rewrite(records)
    found = history(name, list(seeds), ROUNDS, records, groups, clients)
    folder.clusters(found)
    for record in records:
        folder.models(record)
    folder.federation(lambda: held or federation(groups))
    if complete:
        costs = (costs or {}) | {
            "storage": 2,
            "communication": 2,
            "computation": 2,
            "model_bytes": 1000,
            "communication_bytes": 4000,
            "flop": 6000,
        }
        timing = {"wall_s": 12.5, "compile_s": 2.5, "rounds_per_s": 2.0, "clients_per_s": 30.0, "costs": costs}
        folder.summary(
            final(found) | timing | {"decided": DECIDED} | {"method": name, "rounds": ROUNDS[-1], "seeds": len(seeds)}
        )
    return path


def moving() -> np.ndarray:
    """Labels over rounds [e, m]: none, then some, then all by their true group; numbered as slots are."""
    last = np.array([7, 3, 12])[GROUPS]
    half, early = last.copy(), last.copy()
    half[::10] = -1
    early[GROUPS == 1] = 12
    return np.stack([np.full(CLIENTS, -1), half, early, last])


DECIDED = {
    "values": {"tau": 0.25},
    "tau": 0.25,
    "sizes": [CLIENTS // 2, CLIENTS - CLIENTS // 2],
    "thresholds": [-0.5, 0.0, 0.5, 1.0],
    "error": [0.9, 0.5, 0.5, 0.8],
    "clusters": [1, 2, 2, CLIENTS],
}
"""What a summary says of an option that was `auto`."""


def federation(groups=GROUPS) -> dict[str, np.ndarray]:
    """What federation.npz holds: unit vectors that point one way in each group, and labels that follow the group."""
    rng = np.random.default_rng(0)
    m = len(groups)
    psi = vectors(groups)
    train = rng.multinomial(40, np.full(CLASSES, 1 / CLASSES), m)
    train[:, 0] += 20 * (groups == 0)
    return {
        "train": train,
        "test": rng.multinomial(10, np.full(CLASSES, 1 / CLASSES), m),
        "groups": groups,
        "held_out": np.arange(m) == 5,
        "arrive": np.zeros(m, int),
        "depart": np.full(m, 2**31 - 1),
        "compared": np.arange(m),
        "cosine": (psi @ psi.T)[np.triu_indices(m, 1)].astype(np.float32),
        "pictured": np.arange(0, m, 2),
        "images": rng.integers(0, 255, (m // 2, 5, 5, 1)).astype(np.uint8),
    }


def compared(labels, groups, turn) -> dict[str, np.ndarray]:
    """What models/SEED-ROUND.npz holds: own models near those of the groups, and nearer after each evaluation."""
    own = vectors(groups)
    own += np.eye(own.shape[1])[np.maximum(groups, 0)] * turn
    slots = np.unique(labels[labels >= 0])
    rows = np.concatenate([own, *([own[labels == slot].mean(0)] for slot in slots), np.ones((1, own.shape[1]))])
    upper = np.triu_indices(len(rows), 1)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return {
        "model_clients": np.arange(len(groups)),
        "model_clusters": np.array([*slots, -1]),
        "model_cosine": (unit @ unit.T)[upper].astype(np.float32),
        "model_distance": np.linalg.norm(rows[:, None] - rows, axis=-1)[upper].astype(np.float32),
        "model_l1": np.abs(own[:, None] - rows[len(own) :]).sum(-1).astype(np.float32),
    }


def vectors(groups=GROUPS) -> np.ndarray:
    """The unit vectors whose cosines `federation` holds. [m, d]"""
    d = max(6, groups.max() + 1)
    psi = np.eye(d)[np.maximum(groups, 0)] + 0.1 * np.random.default_rng(1).standard_normal((len(groups), d))
    return psi / np.linalg.norm(psi, axis=1, keepdims=True)
