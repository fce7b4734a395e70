"""Attacks: what hostile clients send in place of the models that they trained.

The attackers are `Federation.hostile` [m]. An attack changes the parameters of their uploads; running statistics and
counters are sent as they are. Attackers that know the honest clients' updates know those of their own cluster.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from pydantic import Field

from jcfl import trees
from jcfl.core import averaging, returned
from jcfl.core.method import Piece
from jcfl.core.streams import Stream, stream
from jcfl.errors import named
from jcfl.registry import register
from jcfl.types import Array, Key, Models

Share = Annotated[float, Field(gt=0, lt=1, description="share of the training clients that attack")]
Factor = Annotated[float, Field(gt=0, description="what the update is multiplied by")]


class Crowd(NamedTuple):
    """The clients of a cohort as attackers see them."""

    who: Array  # [s] int32
    cluster: Array  # [s] int32
    hostile: Array  # [s] bool, attackers whose upload arrives and counts
    honest: Array  # [s] bool, honest clients whose upload arrives and counts
    k: int  # clusters


@dataclass(frozen=True, kw_only=True)
class Attack(Piece):
    """What attackers do; by itself they do nothing.

    Attributes:
        share: the share of the training clients that attack.
        flips: whether the attackers' training labels are flipped; see `jcfl.data.hostile`.
    """

    name: ClassVar[str] = "none"
    watches: ClassVar[bool] = False  # whether attackers know what honest clients send
    share: float = 0.0
    flips: bool = False

    @property
    def forges(self) -> bool:
        """Whether attackers send something else than what they trained."""
        return type(self).forged is not Attack.forged

    def forged(self, key: Key, updates: Models, crowd: Crowd) -> Models:
        """What attackers send as their updates; the rows of others are not looked at.

        Args:
            key: of the stream TRAIN.
            updates: the trained parameters less those that were sent. [s, ...]

        Returns:
            updates of the same shapes and types, a row for each client. [s, ...]
        """
        return updates


@dataclass(frozen=True, kw_only=True)
class Scaled(Attack):
    """The update times a factor, which is negative where its sign is flipped."""

    name: ClassVar[str] = "scaled"
    factor: Any = 10.0

    def forged(self, key: Key, updates: Models, crowd: Crowd) -> Models:
        """See `Attack.forged`."""
        return jax.tree.map(lambda leaf: trees.rounded(self.factor * leaf, leaf), updates)


@dataclass(frozen=True, kw_only=True)
class Gaussian(Attack):
    """Noise in place of the update."""

    name: ClassVar[str] = "gaussian"
    sigma: Any = 1.0

    def forged(self, key: Key, updates: Models, crowd: Crowd) -> Models:
        """See `Attack.forged`."""
        leaves, shape = jax.tree.flatten(updates)

        def noise(key: Key) -> list[Array]:
            keys = jax.random.split(key, len(leaves))
            return [jax.random.normal(one, leaf.shape[1:], leaf.dtype) for one, leaf in zip(keys, leaves, strict=True)]

        drawn = jax.vmap(lambda client: noise(stream(key, Stream.ATTACK, client)))(crowd.who)
        return jax.tree.unflatten(shape, [trees.rounded(self.sigma * leaf, leaf) for leaf in drawn])


@dataclass(frozen=True, kw_only=True)
class LittleIsEnough(Attack):
    """The honest mean less z deviations in every coordinate (Baruch et al. 2019, https://arxiv.org/abs/1902.06156)."""

    name: ClassVar[str] = "little_is_enough"
    watches: ClassVar[bool] = True
    z: Any = None

    def forged(self, key: Key, updates: Models, crowd: Crowd) -> Models:
        """See `Attack.forged`; without `z`, the z of the paper's Algorithm 3 for the clients of each cluster."""
        mean = honest_mean(updates, crowd)
        apart = jax.tree.map(lambda leaf, center: (leaf - center[crowd.cluster]) ** 2, updates, mean)
        spread = jax.tree.map(jnp.sqrt, honest_mean(apart, crowd))
        z = most_deviation(crowd) if self.z is None else jnp.full(crowd.k, self.z)
        sent = jax.tree.map(lambda m, sd: trees.rounded(m - trees.wide(z, sd) * sd, m), mean, spread)
        return trees.take(sent, crowd.cluster)


@dataclass(frozen=True, kw_only=True)
class InnerProduct(Attack):
    """The honest mean times −ε (Xie et al. 2020, https://arxiv.org/abs/1903.03936)."""

    name: ClassVar[str] = "inner_product"
    watches: ClassVar[bool] = True
    epsilon: Any = 0.5

    def forged(self, key: Key, updates: Models, crowd: Crowd) -> Models:
        """See `Attack.forged`."""
        scaled = lambda leaf: trees.rounded(-self.epsilon * leaf[crowd.cluster], leaf)
        return jax.tree.map(scaled, honest_mean(updates, crowd))


def honest_mean(rows: Models, crowd: Crowd) -> Models:
    """The mean of the honest clients' rows in every cluster; zero for a cluster without them. [k, ...]"""
    label = jnp.where(crowd.honest, crowd.cluster, crowd.k)
    return averaging.mean_by(label, crowd.honest * 1.0, rows, averaging.zeros_for(rows, crowd.k))


def most_deviation(crowd: Crowd) -> Array:
    """The z of Baruch et al. 2019 (Alg. 3), the largest with which forged updates have a majority on their side. [k]

    With n clients and a attackers in a cluster, the attackers need ⌊n/2 + 1⌋ − a honest clients whose updates lie
    farther from the mean than the forged ones. z is the quantile of the normal distribution at the share of the other
    honest clients.
    """
    count = lambda rows: averaging.sizes(jnp.where(rows, crowd.cluster, crowd.k), crowd.k)
    bad, good = count(crowd.hostile), count(crowd.honest)
    needed = jnp.maximum((bad + good) // 2 + 1 - bad, 0)
    share = (good - needed) / jnp.maximum(good, 1)
    return jax.scipy.special.ndtri(jnp.clip(share, 0.5, 0.999))


def with_forgeries(attack: Attack, key: Key, sent: Models, uploads: Models, crowd: Crowd) -> Models:
    """The uploads [s, ...] with the parameters that attackers send in place of theirs.

    Args:
        key: of the stream TRAIN.
        sent: the models that the clients were sent. [s, ...]
    """
    start, trained = sent["params"], uploads["params"]
    updates = jax.tree.map(jnp.subtract, trained, start)
    name = f"attack {attack.name!r}"
    sent_instead = returned.models(named(name, attack.forged)(key, updates, crowd), updates, name)
    forged = jax.tree.map(jnp.add, start, sent_instead)
    return {**uploads, "params": trees.select(crowd.hostile, forged, trained)}


@register("attack", "none")
def none() -> Attack:
    """All clients are honest."""
    return Attack()


@register("attack", "label_flip")
def label_flip(*, share: Share = 0.2) -> Attack:
    """Attackers train on labels c − 1 − y instead of y (Fang et al. 2020)."""
    return Attack(share=share, flips=True)


@register("attack", "sign_flip")
def sign_flip(
    *,
    share: Share = 0.2,
    factor: Annotated[float, Field(gt=0, description="the update is multiplied by minus this")] = 1.0,
) -> Attack:
    """Attackers send their update times a negative factor."""
    return Scaled(share=share, factor=-factor)


@register("attack", "scaled")
def scaled(
    *,
    share: Share = 0.2,
    factor: Factor = 10.0,
    flip_labels: Annotated[bool, Field(description="whether they train on flipped labels")] = True,
) -> Attack:
    """Attackers send a multiple of their update, so that it outweighs the others (Bagdasaryan et al. 2020)."""
    return Scaled(share=share, factor=factor, flips=flip_labels)


@register("attack", "gaussian")
def gaussian(
    *, share: Share = 0.2, sigma: Annotated[float, Field(gt=0, description="deviation of every parameter")] = 1.0
) -> Attack:
    """Attackers send noise instead of their update (Blanchard et al. 2017)."""
    return Gaussian(share=share, sigma=sigma)


@register("attack", "little_is_enough")
def little_is_enough(
    *,
    share: Share = 0.2,
    z: Annotated[
        float | None, Field(gt=0, description="standard deviations below the honest mean; null: as in Alg. 3")
    ] = None,
) -> Attack:
    """Attackers send the honest mean minus a few deviations, similar to honest updates (Baruch et al. 2019)."""
    return LittleIsEnough(share=share, z=z)


@register("attack", "inner_product")
def inner_product(
    *,
    share: Share = 0.2,
    epsilon: Annotated[float, Field(gt=0, description="the honest mean is multiplied by minus this")] = 0.5,
) -> Attack:
    """Attackers send a negative multiple of the honest mean (Xie et al. 2020)."""
    return InnerProduct(share=share, epsilon=epsilon)
