"""The bounds of Ma's analysis of convergence, from constants that a run measures."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jcfl.types import Array


def step_bound(
    distances: ArrayLike,
    steps: ArrayLike,
    squared_gradient: ArrayLike,
    clusterability: ArrayLike,
    gradient_bound: ArrayLike,
    gradient_variance: ArrayLike,
    smoothness: ArrayLike,
) -> Array:
    """The step size η below which clusters and losses converge (Ma 2023, Theorem 3.4.13, Equation 3.35).

    min{ ‖θ_i − Θ_k‖ / (Q U), (E‖∇𝓕‖² − B U²) / (E‖∇𝓕‖² + σ²) · 2/β }

    Where it is not above 0, which is so as soon as B U² reaches E‖∇𝓕‖², the theorem says nothing about any step size.

    >>> round(float(step_bound([0.5, 0.2], 10, 1.0, 0.25, 1.0, 0.5, 4.0)), 3)  # min(0.2 / 10, 0.75 / 1.5 / 2)
    0.02

    Args:
        distances: ‖θ_i − Θ_k‖ of every client; the smallest counts, NaN ones are left out. [m]
        steps: Q, the local steps of a client in a round.
        squared_gradient: E‖∇𝓕‖², the mean squared norm of the clients' gradients at their cluster's model.
        clusterability: B, see `jcfl.metrics.clusterability`.
        gradient_bound: U.
        gradient_variance: σ².
        smoothness: β.
    """
    clustering = jnp.nanmin(jnp.asarray(distances)) / (jnp.asarray(steps) * gradient_bound)
    room = jnp.asarray(squared_gradient) - jnp.asarray(clusterability) * jnp.square(jnp.asarray(gradient_bound))
    return jnp.minimum(clustering, room / (squared_gradient + jnp.asarray(gradient_variance)) * 2 / smoothness)


def round_bound(
    epsilon: ArrayLike,
    decrease: ArrayLike,
    rate: ArrayLike,
    steps: ArrayLike,
    clusterability: ArrayLike,
    gradient_bound: ArrayLike,
    gradient_variance: ArrayLike,
    smoothness: ArrayLike,
) -> Array:
    """The rounds after which the mean squared gradient is at most ε (Ma 2023, Theorem 3.4.14, Equation 3.36).

    Δ / (Q (ε (η − βη²/2) − βη²σ²/2 − η B U²))

    >>> round(float(round_bound(1.0, 2.0, 0.1, 10, 0.25, 1.0, 0.5, 4.0)), 3)  # 2 / (10 * (0.08 - 0.01 - 0.025))
    4.444

    Args:
        epsilon: ε.
        decrease: Δ = 𝓕₀ − 𝓕*, how far the learning objective can still fall.
        rate: η, the step size of plain SGD.
        steps, clusterability, gradient_bound, gradient_variance, smoothness: as for `step_bound`.

    Returns:
        The number of rounds; NaN where the divisor is not above 0, because then no number is enough.
    """
    rate, curve = jnp.asarray(rate), jnp.asarray(smoothness) * jnp.square(rate) / 2
    pull = rate * clusterability * jnp.square(jnp.asarray(gradient_bound))
    gain = steps * (epsilon * (rate - curve) - curve * gradient_variance - pull)
    return jnp.where(gain > 0, decrease / jnp.where(gain > 0, gain, 1.0), jnp.nan)
