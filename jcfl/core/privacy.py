"""Client-level differential privacy: how what clients send is clipped, and the Gaussian noise that covers it.

The server adds noise to the sum of the clipped updates of every cluster, in `jcfl.core.noising`. Where the server looks
at single clients, to group them, each client clips and noises its description before it sends it. What a method sends,
and what cannot be covered, stands in `jcfl.core.releases`.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

from jcfl import trees
from jcfl.core.method import Piece
from jcfl.core.streams import Stream, stream
from jcfl.core.terms import number
from jcfl.errors import InputError
from jcfl.registry import register
from jcfl.types import Array, Key, Model, Models

Norm = Annotated[float | None, Field(gt=0)]
Multiplier = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Privacy(Piece):
    """How what clients send is clipped and noised; by itself, not at all.

    Attributes:
        clip: the largest norm of a client's update; None: updates are sent as they are.
        noise: the standard deviation of the noise on a cluster's sum of updates, in units of `clip`.
        description_clip: the largest norm of a description; None: descriptions are sent as they are.
        description_noise: the standard deviation of the noise on each description, in units of `description_clip`.
        delta: the δ for which ε is computed.
    """

    name: ClassVar[str] = "gaussian"
    clip: Any = None
    noise: Any = 0.0
    description_clip: Any = None
    description_noise: Any = 0.0
    delta: float = 1e-5

    def __str__(self) -> str:
        """What is done to updates, in words."""
        return f"updates clipped to {number(self.clip)}, noise {number(self.noise)}"

    @property
    def is_on(self) -> bool:
        """Whether anything is clipped."""
        return self.clip is not None or self.description_clip is not None

    def description(self, key: Key, tree: Any) -> Any:
        """One client's description as the client sends it: clipped and noised. [...]"""
        return noisy(key, shortened(tree, self.description_clip), self.description_noise * self.description_clip)

    def descriptions(self, run: Key, who: Array, rows: Any) -> Any:
        """The descriptions [s, ...] of the clients `who` [s] as they send them; a client always sends the same.

        Args:
            run: the key of the stream RUN.
        """
        if self.description_clip is None:
            return rows
        return jax.vmap(self.description)(once_keys(run, who), rows)

    def models(self, keys: Key, sent: Models, models: Models) -> Models:
        """Trained models [s, ...] as clients send them to be grouped by them: their updates are clipped and noised.

        Args:
            keys: of the clients. [s]
            sent: the models that they were sent. [s, ...]
        """
        if self.description_clip is None:
            return models
        updates = jax.vmap(self.description)(keys, optax.tree.sub(models["params"], sent["params"]))
        return {**models, "params": optax.tree.add(sent["params"], updates)}

    def clipped(self, model: Model, start: Model) -> Model:
        """The model itself where its update is no longer than `clip`, else the start and the update scaled down."""
        update = optax.tree.sub(*map(trees.for_sums, (model["params"], start["params"])))
        cut = jax.tree.map(moved, start["params"], shortened(update, self.clip))
        is_short = optax.tree.norm(update) <= self.clip
        return {**model, "params": jax.tree.map(lambda a, b: jnp.where(is_short, a, b), model["params"], cut)}


def once_keys(run: Key, who: Array) -> Key:
    """The keys of the noise on what the clients `who` [s] send once, from the key of the stream RUN. [s]"""
    anchor = stream(run, Stream.ANCHOR)
    return jax.vmap(lambda client: stream(anchor, Stream.DESCRIPTION, client))(who)


def shortened(tree: Any, limit: Any) -> Any:
    """A tree scaled down to the norm `limit` if it is longer; zero if it is not finite, which no noise could cover."""
    length = optax.tree.norm(trees.for_sums(tree))
    scale = jnp.minimum(1, limit / jnp.maximum(length, 1e-30))
    cut = lambda leaf: jnp.where(jnp.isfinite(length), scale * leaf, 0.0).astype(leaf.dtype)
    return jax.tree.map(cut, tree)


def moved(start: Array, change: Array) -> Array:
    """`start` plus a change, in the dtype of `start`. No number moves by more than its change in half precision.

    Rounded to the nearest numbers, an update could be twice as long as its clip, which the noise is made for.
    """
    end = (start + change).astype(start.dtype)
    if start.dtype == change.dtype:
        return end
    is_longer = jnp.abs(end.astype(change.dtype) - start.astype(change.dtype)) > jnp.abs(change)
    return jnp.where(is_longer, jnp.nextafter(end, start), end)


def noisy(key: Key, tree: Any, deviation: Any) -> Any:
    """A tree with Gaussian noise of a standard deviation on every number."""
    leaves, shape = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    sums = [leaf + deviation * jax.random.normal(one, leaf.shape) for one, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(shape, sums)


@register("privacy", "gaussian")
def gaussian(
    *,
    clip: Annotated[Norm, Field(description="largest norm of a client's update; null: no privacy")] = None,
    noise: Annotated[
        Multiplier, Field(description="deviation of the noise on a cluster's sum of updates, in units of clip")
    ] = 0.0,
    description_clip: Annotated[Norm, Field(description="largest norm of a client's description")] = None,
    description_noise: Annotated[
        Multiplier, Field(description="deviation of the noise on each description, in units of description_clip")
    ] = 0.0,
    delta: Annotated[float, Field(gt=0, lt=1, description="the δ for which ε is computed")] = 1e-5,
) -> Privacy:
    """Updates and descriptions are clipped and get Gaussian noise (McMahan et al. 2018, DP-FedAvg)."""
    for what, limit, deviation in (("", clip, noise), ("description_", description_clip, description_noise)):
        if deviation and limit is None:
            raise InputError(
                f"privacy.{what}noise is in units of privacy.{what}clip, which is not given, so it would have no "
                f"effect; set privacy.{what}clip, or leave privacy.{what}noise out"
            )
    return Privacy(
        clip=clip,
        noise=noise,
        description_clip=description_clip,
        description_noise=description_noise,
        delta=delta,
    )
