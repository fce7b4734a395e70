"""What a client minimises: the loss on its examples, plus terms that tie it to what the server sent."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jcfl import trees
from jcfl.core import returned
from jcfl.errors import named
from jcfl.types import Array, Broadcast, Clients, Key, Model, Task

Reference = Callable[[Broadcast], Model]
Part = Callable[[Model], Any]
Term = Callable[[Model, Clients, Broadcast], Array]
Objective = Callable[..., tuple[Array, Model]]

SHORT = 1e-3
"""A vector of this length or less has no direction: its cosine with any other is 0, and so is the gradient."""


def objective(
    task: Task,
    terms: Sequence[Term] = (),
    partner: Reference | None = None,
    scale: Callable[[Broadcast], Array] | None = None,
) -> Objective:
    """The loss of a client's predictions plus `terms`, as a function to differentiate by its first argument.

    With a `partner`, the partner's logits, which are held fixed, are added to the model's. With a `scale` the loss of
    the predictions is multiplied by it; the terms are not.

    Returns:
        `value(params, model, batch, sent, key) -> (loss [], model)`; the model comes back with updated statistics.
    """

    def value(params, model: Model, batch: Clients, sent: Broadcast, key: Key) -> tuple[Array, Model]:
        model = {**model, "params": params}
        logits, after = task.apply(model, batch.x, key=key, mask=batch.mask)
        if partner is not None:
            logits = logits + jax.lax.stop_gradient(task.apply(partner(sent), batch.x)[0])
        penalty = sum((value_of(term, model, batch, sent) for term in terms), 0.0)
        loss = mean_loss(task, logits, batch)
        return (loss if scale is None else scale(sent) * loss) + penalty, after

    return value


def value_of(term: Term, model: Model, batch: Clients, sent: Broadcast) -> Array:
    """The value of a loss term, checked. []

    Raises:
        InputError: when it is traced, if the term returns no number.
    """
    name = f"loss term {getattr(term, '__qualname__', type(term).__name__).partition('.<locals>')[0]}"
    return returned.array(named(name, term)(model, batch, sent), (), returned.NUMBERS, name)


def mean_loss(task: Task, logits: Array, batch: Clients) -> Array:
    """The mean loss over a batch's real rows. [n, c] -> []"""
    return mean_of_rows(task.loss(logits, batch.y), batch.mask)


def mean_of_rows(losses: Array, mask: Array) -> Array:
    """The mean of `losses` [n] over the real rows of `mask` [n], in the dtype of sums. []"""
    return jnp.where(mask, trees.for_sums(losses), 0.0).sum() / jnp.maximum(mask.sum(), 1)


class Pull(NamedTuple):
    """(weight / 2) · ‖θ − reference‖², the reference held fixed during the local steps: a `Term` that is quadratic."""

    to: Reference  #: what the model is pulled to
    weight: Array | float  #: how strongly, at least 0
    on: Part  #: the parameters that are pulled

    @property
    def is_of_layers(self) -> bool:
        """Whether whole layers are pulled as they are, and not what a function makes of them."""
        return self.on is everything or isinstance(self.on, Layers)

    def __call__(self, model: Model, batch: Clients, sent: Broadcast) -> Array:
        """The term's value. []"""
        gap = optax.tree.sub(self.on(model), jax.lax.stop_gradient(self.on(self.to(sent))))
        return self.weight / 2 * optax.tree.norm(gap, squared=True)


def proximal(to: Reference, weight: Array | float, on: Part | None = None) -> Pull:
    """(weight / 2) · ‖θ − reference‖², the reference held fixed during the local steps."""
    return Pull(to, weight, on or everything)


def distant(to: Reference, weight: Array | float, by: Literal["l1", "cosine"]) -> Term:
    """Dist(θ, reference) by its weight, the reference held fixed during the local steps (Xie et al. 2020, eq. 5).

    Args:
        by: the sum of absolute differences, whose gradient where both are equal is 0, or one minus the cosine.
    """

    def term(model: Model, batch: Clients, sent: Broadcast) -> Array:
        mine, other = everything(model), jax.lax.stop_gradient(everything(to(sent)))
        if by == "cosine":
            return weight * (1 - cosine(mine, other))
        gap = optax.tree.sub(mine, other)  # abs has the slope 1 at 0 in JAX, and clients start at their reference
        return jnp.asarray(weight * optax.tree.vdot(gap, jax.lax.stop_gradient(jax.tree.map(jnp.sign, gap))))

    return term


def contrastive(weight: Array | float, temperature: Array | float, on: Part) -> Term:
    """−μ log of the softmax of cos(θ, Θ_k)/τ at the client's own cluster: near it, far from others (Ma 2023, eq. 4.3).

    The softmax is taken over the slots that hold a cluster, which `sent.live` tells, and the client's own. A client
    without a cluster (label -1), which may be fine-tuned, has nothing to be near to: its term is 0.

    Deviations:
        The thesis prints the softmax without −log; its minimum would be far from the client's own cluster.
    """

    def term(model: Model, batch: Clients, sent: Broadcast) -> Array:
        mine = on(model)
        near = jax.vmap(lambda other: cosine(mine, on(other)))(jax.lax.stop_gradient(sent.clusters))  # [k]
        return weight * attraction(near / temperature, rivals(sent, near.size), sent)

    return term


def contrastive_features(task: Task, weight: Array | float, temperature: Array | float, logits: bool = False) -> Term:
    """`contrastive` with cosines of what the models make of each example, meaned over the batch (Ma 2023, eq. 4.4).

    Args:
        logits: whether the representation is the logits (the thesis's code), not the penultimate features.
    """

    def seen(model: Model, x: Array) -> Array:
        return task.apply(model, x)[0] if logits else task.features(model, x)  # [n, f]

    def term(model: Model, batch: Clients, sent: Broadcast) -> Array:
        mine = seen(model, batch.x)
        others = jax.vmap(seen, (0, None))(jax.lax.stop_gradient(sent.clusters), batch.x)  # [k, n, f]
        near = jax.vmap(jax.vmap(cosine), (None, 0))(mine, others)  # [k, n]
        among = rivals(sent, near.shape[0])[:, None]
        return weight * mean_of_rows(attraction(near / temperature, among, sent), batch.mask)

    return term


def distillation(task: Task, teacher: Reference, weight: Array | float, temperature: Array | float) -> Term:
    """μ T² KL(teacher ‖ θ) of the class probabilities at temperature T, meaned over the batch (Hinton et al. 2015).

    With the factor T² the size of the gradient hardly depends on T. The teacher is held fixed.
    """

    def term(model: Model, batch: Clients, sent: Broadcast) -> Array:
        ours = jax.nn.log_softmax(task.apply(model, batch.x)[0] / temperature)  # [n, c]
        theirs = jax.nn.softmax(jax.lax.stop_gradient(task.apply(teacher(sent), batch.x)[0]) / temperature)
        return weight * temperature**2 * mean_of_rows(optax.losses.kl_divergence(ours, theirs), batch.mask)

    return term


def attraction(near: Array, among: Array, sent: Broadcast) -> Array:
    """−log of the softmax of `near` at the client's own cluster; 0 where it has none. [k, ...] -> [...]"""
    own = jnp.maximum(sent.label, 0)  # -1 would take the last slot
    return jnp.where(sent.label >= 0, -jax.nn.log_softmax(near, axis=0, where=among)[own], 0.0)


def rivals(sent: Broadcast, k: int) -> Array:
    """Which slots a contrast is taken over: those that hold a cluster, and always the client's own. [k] bool"""
    every = jnp.ones(k, bool)
    live = every if isinstance(sent.live, tuple) else sent.live
    return live | (jnp.arange(k) == jnp.maximum(sent.label, 0))  # never none, which would make the softmax NaN


def cosine(a: Any, b: Any) -> Array:
    """The cosine of two trees of numbers; zero, with a gradient of zero, where one of them is no longer than `SHORT`.

    The gradient of a cosine grows as a vector becomes short, without bound: one step along it would throw a model whose
    logits vanish out of all measure.
    """
    squares = jnp.stack([optax.tree.norm(a, squared=True), optax.tree.norm(b, squared=True)])
    long = (squares > SHORT**2).all()
    lengths = jnp.where(long, squares, 1.0)
    return jnp.where(long, optax.tree.vdot(a, b), 0.0) * jax.lax.rsqrt(lengths).prod()


def sharing(weight: Array | float, on: Part) -> Term:
    """(λ/2) Σ_k' w_k' ‖θ − Θ_k'‖² over the other clusters (Ma 2023, eq. 5.5).

    w_k' is the cluster's share of the training examples of all clients that have a cluster. It comes with the
    broadcast: `sent.shares` [k].
    """

    def term(model: Model, batch: Clients, sent: Broadcast) -> Array:
        mine = on(model)
        far = lambda other: optax.tree.norm(optax.tree.sub(mine, on(other)), squared=True)
        gaps = jax.vmap(far)(jax.lax.stop_gradient(sent.clusters))  # [k]
        others = jnp.arange(gaps.size) != sent.label
        return weight / 2 * jnp.where(others, sent.shares * gaps, 0.0).sum()

    return term


def linear(slope: Callable[[Broadcast], Any]) -> Term:
    """⟨slope, θ⟩: a constant added to every gradient."""
    fixed = lambda sent: jax.lax.stop_gradient(slope(sent))
    return lambda model, batch, sent: jnp.asarray(optax.tree.vdot(fixed(sent), model["params"]))


def own(sent: Broadcast) -> Model:
    """The model the client starts from: its cluster's."""
    return sent.cluster


def shared(sent: Broadcast) -> Model:
    """The model shared by all clients."""
    return sent.shared


def center(sent: Broadcast) -> Model:
    """The mean of the cluster models, weighted by the examples that their clients hold."""
    return sent.mean


def everything(model: Model) -> Any:
    """All parameters of a model."""
    return model["params"]


def own_share(sent: Broadcast) -> Array:
    """The client's share n_i/n of all training examples, which it finds before it trains. []"""
    return sent.own["share"]


class Layers(NamedTuple):
    """The parameters of some layers, or of all others: a `Part`."""

    names: tuple[str, ...]
    others: bool = False

    def __call__(self, model: Model) -> Any:
        """The parameters, by the names of their layers."""
        return {name: leaf for name, leaf in model["params"].items() if (name in self.names) != self.others}


def head(task: Task) -> Part:
    """The parameters of a model's classifier."""
    return Layers(tuple(task.head))


def backbone(task: Task) -> Part:
    """All parameters but the classifier's."""
    return Layers(tuple(task.head), others=True)
