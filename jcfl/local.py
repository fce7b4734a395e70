"""Training on one client."""

from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

from jcfl import trees
from jcfl.errors import InputError
from jcfl.objective import Objective
from jcfl.registry import register
from jcfl.types import Array, Broadcast, Clients, Key, Model


class Local(NamedTuple):
    """How a client trains: SGD over its own examples."""

    lr: Any
    epochs: int | None
    steps: int | None
    batch_size: int | Literal["full"]
    momentum: Any
    weight_decay: Any
    keep_optimizer_state: bool = False

    def train(self, objective: Objective, start: Model, sent: Broadcast, data: Clients, key: Key) -> Model:
        """The model after local training from `start` on one client's examples (`data.x` [n, ...])."""
        return self.resumed(objective, start, self.blank(start), sent, data, key)[0]

    def resumed(
        self, objective: Objective, start: Model, memory: Any, sent: Broadcast, data: Clients, key: Key
    ) -> tuple[Model, Any]:
        """As `train`, with the optimizer's state from before, and that after."""
        optimizer = self.optimizer()
        batch, passes, total = schedule(self, data, key)

        def step(carry, turn):
            model, memory = carry
            rows = batch(turn)
            slope = jax.grad(objective, has_aux=True)
            grads, after = slope(model["params"], model, rows, sent, jax.random.fold_in(key, turn))
            updates, memory = optimizer.update(grads, memory, model["params"])
            new = {**after, "params": optax.apply_updates(model["params"], updates)}, memory
            return (trees.select(rows.mask.any(), new, carry) if passes else new), None

        return jax.lax.scan(step, (start, memory), jnp.arange(total))[0]

    def blank(self, start: Model) -> Any:
        """The optimizer's state before the first step."""
        return self.optimizer().init(start["params"])

    def turns(self, n: int) -> tuple[int, int]:
        """Rows in a step, and steps in a round, of a client with `n` examples."""
        if self.batch_size == "full" or self.batch_size >= n:
            return n, self.steps or self.epochs or 1
        return self.batch_size, self.steps or (self.epochs or 1) * -(-n // self.batch_size)

    def optimizer(self) -> optax.GradientTransformation:
        """SGD with this trainer's momentum and weight decay (added to the gradient)."""
        decay = optax.identity() if is_zero(self.weight_decay) else optax.add_decayed_weights(self.weight_decay)
        return optax.chain(decay, optax.sgd(self.lr, None if is_zero(self.momentum) else self.momentum))


@register("train", "sgd")
def sgd(
    *,
    lr: Annotated[float, Field(gt=0, description="learning rate η")] = 0.1,
    epochs: Annotated[int | None, Field(ge=1, description="passes over the client's examples a round")] = None,
    steps: Annotated[int | None, Field(ge=1, description="mini-batches a round, instead of epochs")] = None,
    batch_size: Annotated[int, Field(ge=1)] | Literal["full"] = "full",
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    weight_decay: Annotated[float, Field(ge=0)] = 0.0,
    keep_optimizer_state: Annotated[bool, Field(description="a client's momentum outlasts the round")] = False,
) -> Local:
    """SGD over the client's own examples, by epochs or by steps.

    Mini-batches are drawn without replacement within a pass, in a fresh order each pass. A client with fewer examples
    than a batch uses what it has; padding is never drawn.

    Deviations:
        Momentum starts at zero in every round, unless `keep_optimizer_state` is set; released code of the field keeps
        it for some methods and not for others. With CAM it is kept from the end of the warm-up.
    """
    if epochs is not None and steps is not None:
        raise InputError(f"train: give epochs or steps, not both (got epochs={epochs}, steps={steps})")
    if keep_optimizer_state and is_zero(momentum):
        raise InputError("train: keep_optimizer_state keeps momentum, which is 0; set momentum, or leave it out")
    epochs = 1 if epochs is None and steps is None else epochs
    return Local(lr, epochs, steps, batch_size, momentum, weight_decay, keep_optimizer_state)


def schedule(local: Local, data: Clients, key: Key):
    """Which rows each step sees.

    Returns:
        `batch(turn) -> Clients` with `[b, ...]` rows, whether a step can have none (a smaller client's pass ends before
        the longest one's), and the number of steps.
    """
    n = data.mask.shape[0]
    b, total = local.turns(n)
    if b == n:
        return (lambda turn: data), False, total
    real = jnp.maximum(data.size, 1)
    own_pass = (real + b - 1) // b  # batches in one pass over this client's examples
    longest = -(-n // b)
    turns = own_pass if local.steps else longest
    own_key = jax.random.fold_in(key, 2**31 - 1)

    def order(turn: Array) -> Array:
        """The rows in the order of one pass, the padding last. [n]"""
        noise = jax.random.uniform(jax.random.fold_in(own_key, turn), (n,))
        return jnp.argsort(jnp.where(data.mask, noise, jnp.inf))

    passes = total // longest if not local.steps else 0
    orders = jax.vmap(order)(jnp.arange(passes))  # with steps, passes may be as many as they are

    def batch(turn: Array) -> Clients:
        position = (turn % turns) * b + jnp.arange(b)
        rows = (orders[turn // turns] if passes else order(turn // turns))[position % real]
        return Clients(data.x[rows], data.y[rows], (position < data.size))

    return batch, not local.steps, total


def is_zero(value: Any) -> bool:
    """Whether a hyperparameter is a plain zero, so that its term can be left out."""
    return isinstance(value, int | float) and value == 0
