"""Descriptions of clients by the gradient at an anchor model, Ψ (Zeng et al. 2023, §3.1, arXiv:2303.00897)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jcfl import trees
from jcfl.core.chunks import chunked_with_last, chunked_with_zeros
from jcfl.core.local import Trainer
from jcfl.core.objective import mean_loss, objective
from jcfl.types import Array, Clients, Key, Model, Task
from jcfl.types.target import target

Dot = Callable[[Model, Model], Any]
"""The inner product of two trees of parameters."""
Form = Callable[[Task, Dot, Model, Clients, Key], tuple[Model, Array]]
"""`form(task, dot, anchor, data of one client, key) -> (Ψ, the part of its squared length that is not noise [])`."""


class Description(NamedTuple):
    """How a client is described by a tree of parameters.

    It is called as `describe(anchor, data of one client, key) -> (Ψ, trust [])`. The *trust* is the part of the squared
    length of Ψ that is not noise, in (0, 1]. It takes the place of ‖Ψ‖² = 1 in all cosines. It is 1 unless the method's
    comparison corrects for noise.
    """

    task: Task
    form: Form
    has_coordinates: bool  # whether Ψ is made of gradients alone, so that it can be had in coordinates

    def __call__(self, anchor: Model, data: Clients, key: Key) -> tuple[Model, Array]:
        """Ψ as a tree of parameters, and its trust, see above."""
        return self.form(self.task, optax.tree.vdot, anchor, data, key)


def gradient(task: Task) -> Description:
    """Ψ(D) = ∇ℓ(ψ; D) / ‖·‖ over all of a client's training data; its squared length is one."""

    def form(task: Task, dot: Dot, anchor: Model, data: Clients, key: Key) -> tuple[Model, Array]:
        slope = anchor_gradient(task, anchor, data)
        return normalised(slope, dot), jnp.ones(())

    return Description(task, form, task.first is not None)


def displacement(task: Task, trainer: Trainer, steps: int) -> Description:
    """The normalised way a client's model goes in `steps` full-batch steps from the anchor (the authors' code)."""
    trainer = trainer.full_batch(steps)

    def form(task: Task, dot: Dot, anchor: Model, data: Clients, key: Key) -> tuple[Model, Array]:
        after = trainer.train(objective(task), anchor, None, data, key)  # pyright: ignore
        return normalised(optax.tree.sub(anchor["params"], after["params"]), dot), jnp.ones(())

    return Description(task, form, False)


def halves(task: Task) -> Description:
    """Ψ from the gradients g₁, g₂ of two random halves of the data, which show how much of its length is noise.

    Ψ = (g₁ + g₂) / s with s = ‖g₁ + g₂‖. The trust is 4⟨g₁, g₂⟩ / s², clipped to [0.05, 1]: the share of ‖Ψ‖² on which
    two independent samples of the client's distribution agree. With it in place of ‖Ψ‖², a cosine is an unbiased
    estimate of that between two distributions, but for the clipping, however few examples a client has.
    """

    def form(task: Task, dot: Dot, anchor: Model, data: Clients, key: Key) -> tuple[Model, Array]:
        rank = jnp.where(data.mask, jax.random.uniform(key, data.mask.shape), jnp.inf).argsort().argsort()
        lower = rank < (data.size + 1) // 2
        one = anchor_gradient(task, anchor, data.replace(mask=data.mask & lower))
        two = anchor_gradient(task, anchor, data.replace(mask=data.mask & ~lower))
        total = optax.tree.add(one, two)
        squared = jnp.maximum(dot(total, total), 1e-30)
        return normalised(total, dot), jnp.clip(4 * dot(one, two) / squared, 0.05, 1.0)

    return Description(task, form, task.first is not None)


def sketched(describe: Description, numbers: int, key: Key) -> Description:
    """Ψ folded to `numbers` numbers (one fewer if even): its elements, with random signs, dealt out in turn and added.

    Inner products stay right on average over the signs. Of two vectors of length one, that of the sketches has a
    standard deviation of about √((1 + cos²) / numbers) around their cosine (a count sketch; Charikar et al. 2002).

    Args:
        numbers: an odd number shares no factor with a layer's width, so that a unit's elements do not meet again.
        key: of the signs.
    """
    size = numbers - 1 + numbers % 2

    def form(task: Task, dot: Dot, anchor: Model, data: Clients, own: Key) -> tuple[Model, Array]:
        psi, trust = describe.form(task, dot, anchor, data, own)
        flat, _ = ravel_pytree(psi)
        signed = flat * jax.random.rademacher(key, flat.shape, flat.dtype)
        return {"sketch": jnp.pad(signed, (0, -flat.size % size)).reshape(-1, size).sum(0)}, trust

    return Description(describe.task, form, False)


ROWS = {"cpu": 64}
"""By platform, the rows of a client that `anchor_gradient` works on at a time: few enough for a core's cache."""

MOST_ROWS = 2048
"""The same for other platforms. There a program waits for the host before each part, so parts are few and large."""


def anchor_gradient(task: Task, anchor: Model, data: Clients) -> Model:
    """The gradient of a client's mean loss at the anchor, in evaluation mode.

    A client with many rows is worked on in parts, as many as it has examples for. Clients are padded to the size of the
    largest one, and a pass over all rows of an uneven federation would mostly work on padding.
    """

    def slope(data: Clients) -> Model:
        loss = lambda params: mean_loss(task, task.apply({**anchor, "params": params}, data.x)[0], data)
        return jax.grad(loss)(anchor["params"])

    n, rows = data.mask.size, ROWS.get(target().platform, MOST_ROWS)
    if n <= rows or not isinstance(data.x, jax.Array):  # in coordinates, a gradient has a row for every example
        return slope(data)
    # A model need not take an example of zeros: a masked row that it makes NaN of would be in the gradient.
    parts = jax.tree.map(lambda leaf: chunked_with_last(leaf, rows), data)
    parts = parts.replace(mask=chunked_with_zeros(data.mask, rows))

    def add(i: Array, total: Model) -> Model:
        part = jax.tree.map(lambda leaf: leaf[i], parts)
        share = part.size / jnp.maximum(data.size, 1)
        return trees.plus(total, jax.tree.map(lambda leaf: share * leaf, slope(part)))

    used = jnp.where(data.mask, jnp.arange(n) // rows + 1, 0).max()
    begin = optax.tree.zeros_like(trees.for_sums(anchor["params"]))
    return jax.tree.map(trees.rounded, jax.lax.fori_loop(0, used, add, begin), anchor["params"])


def normalised(tree: Model, dot: Dot = optax.tree.vdot) -> Model:
    """A tree divided by its norm; zero where the numbers are so small that their squares are 0."""
    squared = dot(tree, tree)
    return optax.tree.scale(jnp.where(squared == 0, 0.0, 1 / jnp.sqrt(squared)), tree)
