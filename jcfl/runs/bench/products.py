"""How fast a CPU multiplies matrices with each library that XLA can take products from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jcfl.runs.bench.work import Meaningless, medians_in_turn, seconds_of
from jcfl.runs.xla import EIGEN, products_are_free
from jcfl.types import Array

SHAPES = ("10x784x200", "32x784x200", "320x784x200", "32x784x2048", "1024x1024x1024", "2400x20000x2400")
"""m × n × p of products [m, n] [n, p]: a batch of an MLP's first layer, a client's examples, and a Gram matrix."""

OPERATIONS = 2e9
"""About how many operations a measurement has; small products are computed again and again."""


def products(case: str, quick: bool, data_dir: Path | None) -> dict[str, Any]:
    """The rate of one product with the library that XLA chooses and with Eigen, in turn.

    Raises:
        Meaningless: there is no other library.
    """
    if not products_are_free():
        raise Meaningless("products: XLA has one library of products here, or XLA_FLAGS name one")
    m, n, p = map(int, case.split("x"))
    operations = 2 * m * n * p
    times = max(1, round((1e7 if quick else OPERATIONS) / operations))
    a, b = jax.random.normal(jax.random.key(0), (m, n)), jax.random.normal(jax.random.key(1), (n, p))
    chosen, eigen = medians_in_turn(2 if quick else 7, *(again(times, a, b, options) for options in (None, EIGEN)))
    rate = lambda seconds: operations * times / seconds / 1e9
    return {"as_XLA_chooses_GFLOP_a_second": rate(chosen), "Eigen_GFLOP_a_second": rate(eigen), "ratio": chosen / eigen}


def again(times: int, a: Array, b: Array, options: dict[str, Any] | None) -> Callable[[], float]:
    """A function that computes a product so many times and returns the seconds."""

    def loop(a: Array, b: Array) -> Array:
        def step(turn: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            a, total = carry
            product = a @ b
            return a.at[0, 0].add(1e-9 * product[0, 0]), total + product[0, -1]  # else one product would be enough

        return jax.lax.fori_loop(0, times, step, (a, jnp.float32(0)))[1]

    program = jax.jit(loop).lower(a, b).compile(options)
    return lambda: seconds_of(program, a, b)[0]
