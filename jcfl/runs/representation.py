"""What clients hold and how similar they are, for figures: arrays that are computed once, before training."""

import jax
import numpy as np

from jcfl import trees
from jcfl.core import chunks, memory
from jcfl.core.describing import anchor_gradient, normalised
from jcfl.core.streams import Stream, stream
from jcfl.data.summary import label_counts
from jcfl.runs.plan import Plan
from jcfl.runs.xla import cheap_options
from jcfl.types import Federation, Task

COMPARED = 1000
"""The most clients that are compared with each other."""

TILES = 3
"""The most tiles of clients that are compared if not all gradients fit, because every pair of tiles takes time."""

OF_CLIENTS = ("clients", "groups", "held_out", "arrive", "depart")
"""What federation.npz has of every client as the federation has it."""

PICTURES = 2**20
"""Bytes of images that are kept, before compression."""


def representation(plan: Plan) -> dict[str, np.ndarray]:
    """The arrays of federation.npz.

    Returns:
        `train`, `test`, and `validation` where there is one [m, c]: how many examples of every class each client has.
        `clients`, the ids [m], `groups`, `held_out`, `arrive`, `depart` [m]: as in the federation, and `hostile` [m]
        where clients attack. All of these are as they are before data drift. Where data drift, `drift_rounds` [d] and
        `drift_holds` [d + 1, m] are those of `Drift`.
        `compared` [n]: the clients that are compared, all of them or a sample drawn by the run's seed. `cosine`
        [n (n - 1) / 2] float32: the upper triangle, row by row, of the cosines between their gradients at the first
        seed's initial model, over all their training examples (StoCFL's Ψ at its usual anchor). `pictured` [p]: some of
        these clients. `images` [p, h, w, ch]: one training image of each, as it is stored; p is 0 if examples are not
        images.
    """
    federation, config = plan.federation, plan.config
    task, m = plan.context.task, plan.context.population.clients
    rng = np.random.default_rng(config.seed)
    size = 4 * trees.parameters(jax.eval_shape(task.init, jax.random.key(0)))
    tile = max(2, plan.context.resources.budget // (4 * size))  # two tiles of gradients take half of the budget
    order = rng.permutation(m)[: min(COMPARED, TILES * tile)]
    pictured = np.sort(order[: picture_count(federation)])
    pictured = pictured[np.asarray(federation.train.size)[pictured] > 0]
    compared = np.sort(order)
    images = jax.jit(lambda x, rows: x[rows])  # one program; without jit, each of its operations is compiled by itself
    return {
        **{split: label_counts(federation, split).astype(np.int32) for split in federation.splits},
        **{name: np.asarray(getattr(federation, name)) for name in OF_CLIENTS},
        **({"hostile": np.asarray(federation.hostile)} if federation.is_attacked else {}),
        **drift(federation),
        "compared": compared.astype(np.int32),
        "cosine": cosines(task, config.seed, federation, compared, tile, plan.context.resources.budget // 2),
        "pictured": pictured.astype(np.int32),
        "images": np.asarray(images(federation.x, first_rows(federation, rng, pictured))),
    }


def drift(federation: Federation) -> dict[str, np.ndarray]:
    """When clients exchange their data, and whose examples each then holds; empty where they do not."""
    if isinstance(federation.drift, tuple):
        return {}
    return {"drift_rounds": np.asarray(federation.drift.rounds), "drift_holds": np.asarray(federation.drift.holds)}


def picture_count(federation: Federation) -> int:
    """How many images are kept."""
    if federation.x.ndim != 4:
        return 0
    return max(1, PICTURES // int(np.prod(federation.x.shape[1:]) * federation.x.dtype.itemsize))


def first_rows(federation: Federation, rng: np.random.Generator, who: np.ndarray) -> np.ndarray:
    """A random training example of each client, which has one. [p]"""
    split = federation.train
    size, start = np.asarray(split.size)[who], np.asarray(split.start)[who]
    return np.asarray(split.rows)[start + rng.integers(size)]


def cosines(task: Task, seed: int, federation: Federation, who: np.ndarray, tile: int, budget: int) -> np.ndarray:
    """The upper triangle of the cosines between clients' gradients at the seed's new model. [n (n - 1) / 2]"""
    tile = min(tile, len(who))
    chunk = memory.chunk_size(task, federation, tile, federation.train.width, 2, budget)

    def psi(key, federation, who):
        anchor = task.init(stream(key, Stream.MODEL))
        describe = lambda client, data: normalised(anchor_gradient(task, anchor, data))
        return chunks.over_clients(describe, federation, who, chunk)

    key = jax.random.key(seed)
    parts = np.resize(who, (-(-len(who) // tile), tile))  # the last one filled up with the first clients
    described, inner = jax.jit(psi).lower(key, federation, parts[0]).compile(cheap_options()), jax.jit(trees.inner)
    full = np.zeros((parts.size, parts.size), np.float32)
    for i, part in enumerate(parts):
        row = described(key, federation, part)
        for j in range(i, len(parts)):
            column = row if j == i else described(key, federation, parts[j])
            full[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile] = inner(row, column)
    return full[: len(who), : len(who)][np.triu_indices(len(who), 1)]
