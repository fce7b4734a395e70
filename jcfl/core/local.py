"""Training on one client."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

from jcfl import trees
from jcfl.core.objective import Objective
from jcfl.core.streams import Stream, stream
from jcfl.errors import InputError, unknown
from jcfl.registry import register
from jcfl.types import Array, Broadcast, Clients, Key, Model

MOST = 2**31 - 64
"""The most local steps in a round; from here on numbers name random streams, see `jcfl.core.streams`."""

HELD = 2**18
"""The most numbers that the orders of a client's examples in all passes take."""


@runtime_checkable
class Trainer(Protocol):
    """What local training must offer; `Local` is the one that comes with jcfl.

    Your own trainer needs only `train` if it derives from `Local`. A round calls the other methods.
    """

    def train(self, objective: Objective, start: Model, sent: Broadcast, data: Clients, key: Key) -> Model:
        """The model after local training from `start` on one client's examples (`data.x` [n, ...])."""
        ...

    def resume(
        self, objective: Objective, start: Model, memory: Any, sent: Broadcast, data: Clients, key: Key
    ) -> tuple[Model, Any]:
        """As `train`, from the optimizer's state of the client's last round; returns the new state too."""
        ...

    def fresh_state(self, start: Model) -> Any:
        """The optimizer's state before the first step."""
        ...

    def rows_and_steps(self, n: int) -> tuple[int, int]:
        """Rows in a step, and steps in a round, of a client with `n` examples."""
        ...

    def for_steps(self, steps: int) -> Self:
        """The same trainer for so many steps in a round."""
        ...

    def for_epochs(self, epochs: int) -> Self:
        """The same trainer for so many passes over the client's examples in a round."""
        ...

    def full_batch(self, steps: int, momentum: bool = True) -> Self:
        """The same trainer for so many steps on all of the client's examples; optionally without momentum."""
        ...

    @property
    def is_linear(self) -> bool:
        """Whether training only ever adds multiples of gradients and of the models that were sent.

        It then never leaves the span that `jcfl.fast.coordinates` keeps, and sees the examples through the loss alone.
        """
        ...

    @property
    def keeps_state(self) -> bool:
        """Whether a client keeps the optimizer's state between rounds."""
        ...

    @property
    def can_resume(self) -> bool:
        """Whether `resume` belongs to `train`: it does not where only one of them was overridden."""
        ...

    def mean_gradient(self, start: Any, after: Any, data: Clients) -> Any:
        """(start − after) / (steps · η), of parameters: the mean gradient of plain SGD (SCAFFOLD, option II).

        Raises:
            InputError: the steps were not those of plain SGD.
        """
        ...


class Local(NamedTuple):
    """Local training by SGD, or another optimizer, over the client's own examples."""

    lr: Any
    epochs: int | None
    steps: int | None
    batch_size: int | Literal["full"]
    momentum: Any
    weight_decay: Any
    keep_optimizer_state: bool = False
    other: Callable[[], optax.GradientTransformation] | None = None  # makes the optimizer in place of SGD

    def train(self, objective: Objective, start: Model, sent: Broadcast, data: Clients, key: Key) -> Model:
        """The model after local training from `start` on one client's examples (`data.x` [n, ...])."""
        return self.resume(objective, start, self.fresh_state(start), sent, data, key)[0]

    def resume(
        self, objective: Objective, start: Model, memory: Any, sent: Broadcast, data: Clients, key: Key
    ) -> tuple[Model, Any]:
        """As `train`, from the optimizer's state of the client's last round; returns the new state too."""
        optimizer = self.optimizer()
        batch, passes, total = schedule(self, data, key)
        share = sent.own.get("work") if isinstance(sent, Broadcast) else None  # of its steps that the client does

        def step(turn, carry):
            model, memory = carry
            rows = batch(turn)
            gradient = jax.grad(objective, has_aux=True)
            grads, after = gradient(model["params"], model, rows, sent, jax.random.fold_in(key, turn))
            updates, memory = optimizer.update(grads, memory, model["params"])
            new = {**after, "params": optax.apply_updates(model["params"], updates)}, memory
            new = trees.select(rows.mask.any(), new, carry) if passes else new
            if share is None:
                return new
            done, own = steps_done(self, data, turn) if passes else (turn, total)
            return trees.select(done < jnp.ceil(share * own), new, carry)

        return jax.lax.fori_loop(0, total, step, (start, memory))

    def fresh_state(self, start: Model) -> Any:
        """The optimizer's state before the first step."""
        return self.optimizer().init(start["params"])

    def rows_and_steps(self, n: int) -> tuple[int, int]:
        """Rows in a step, and steps in a round, of a client with `n` examples."""
        rows = n if self.batch_size == "full" else min(self.batch_size, n)
        steps = self.steps or (self.epochs or 1) * -(-max(n, 1) // max(rows, 1))
        if steps > MOST:
            raise InputError(f"train: expected at most {MOST} local steps of a client in a round, got {steps}")
        return rows, steps

    def for_steps(self, steps: int) -> "Local":
        """The same trainer for so many steps in a round."""
        return self._replace(steps=steps, epochs=None)

    def for_epochs(self, epochs: int) -> "Local":
        """The same trainer for so many passes over the client's examples in a round."""
        return self._replace(epochs=epochs, steps=None)

    def full_batch(self, steps: int, momentum: bool = True) -> "Local":
        """The same trainer for so many steps on all of the client's examples; as plain SGD if without momentum."""
        found = self._replace(steps=steps, epochs=None, batch_size="full")
        return found if momentum else found._replace(momentum=0.0, other=None)

    @property
    def is_linear(self) -> bool:
        """Whether training only ever adds multiples of gradients and of the models that were sent."""
        return self.can_resume and type(self).resume is Local.resume and self.other is None

    @property
    def keeps_state(self) -> bool:
        """Whether a client keeps the optimizer's state between rounds."""
        return self.keep_optimizer_state

    @property
    def can_resume(self) -> bool:
        """Whether `resume` belongs to `train`."""
        return type(self).train is Local.train or type(self).resume is not Local.resume

    def mean_gradient(self, start: Any, after: Any, data: Clients) -> Any:
        """(start − after) / (steps · η), of parameters: the mean gradient of plain SGD (SCAFFOLD, option II)."""
        if self.other is not None or not (is_zero(self.momentum) and is_zero(self.weight_decay)):
            raise InputError(
                "control variates need plain SGD: set train.name=sgd, and train.momentum and train.weight_decay to 0"
            )
        rows, steps = self.rows_and_steps(data.mask.shape[0])
        if not self.steps and rows < data.mask.shape[0]:  # a smaller client's passes have fewer batches
            steps = jnp.maximum((self.epochs or 1) * -(-data.size // rows), 1)
        return jax.tree.map(lambda a, b: (a - b) / (steps * self.lr), start, after)

    def optimizer(self) -> optax.GradientTransformation:
        """SGD with this trainer's momentum and weight decay (added to the gradient), or the other optimizer."""
        if self.other is not None:
            return self.other()
        decay = optax.identity() if is_zero(self.weight_decay) else optax.add_decayed_weights(self.weight_decay)
        return optax.chain(decay, optax.sgd(self.lr, None if is_zero(self.momentum) else self.momentum))


Rate = Annotated[
    float, Field(gt=0, description="learning rate η", json_schema_extra={"search": [0.001, 1.0], "log": True})
]
SmallRate = Annotated[
    float, Field(gt=0, description="learning rate η", json_schema_extra={"search": [0.0001, 0.1], "log": True})
]
Epochs = Annotated[int | None, Field(ge=1, description="passes over the client's examples a round")]
Steps = Annotated[int | None, Field(ge=1, description="mini-batches a round, instead of epochs")]
Batch = Annotated[int, Field(ge=1)] | Literal["full"]
Decay = Annotated[float, Field(ge=0, le=1, description="of the mean of gradients, or of their squares")]


@register("train", "sgd")
def sgd(
    *,
    lr: Rate = 0.1,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: Batch = "full",
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    weight_decay: Annotated[float, Field(ge=0)] = 0.0,
    keep_optimizer_state: Annotated[bool, Field(description="a client keeps its momentum between rounds")] = False,
) -> Local:
    """SGD over the client's own examples, by epochs or by steps.

    By default a client takes one step in a round, with the gradient over all of its examples. Most papers train longer:
    set `epochs` or `steps`, and `batch_size`.

    Mini-batches are drawn without replacement within a pass, in a new order in each pass. A client with fewer examples
    than a batch uses all of them; padding is never drawn.

    Deviations:
        Momentum starts at zero in every round, unless `keep_optimizer_state` is set; released code of the papers
        keeps it for some methods and not for others. With CAM it is kept from the end of the warm-up.
    """
    if keep_optimizer_state and is_zero(momentum):
        raise InputError("train: keep_optimizer_state keeps momentum, which is 0; set momentum, or leave it out")
    return Local(lr, *epochs_or_steps(epochs, steps), batch_size, momentum, weight_decay, keep_optimizer_state)


@register("train", "adam")
def adam(
    *,
    lr: SmallRate = 0.001,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: Batch = "full",
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: Annotated[float, Field(ge=0, description="added to the root of the mean of squares")] = 1e-8,
    weight_decay: Annotated[float, Field(ge=0, description="subtracted separately from the gradient (AdamW)")] = 0.0,
    keep_optimizer_state: Annotated[bool, Field(description="a client keeps its moments between rounds")] = False,
) -> Local:
    """Adam over the client's own examples (Kingma and Ba 2015, arXiv:1412.6980); AdamW with a `weight_decay`.

    Epochs, steps and mini-batches are those of `sgd`. The moments are reset in every round, unless
    `keep_optimizer_state` is set.
    """
    other = lambda: optax.adamw(lr, b1, b2, eps, weight_decay=weight_decay)
    return Local(lr, *epochs_or_steps(epochs, steps), batch_size, 0.0, 0.0, keep_optimizer_state, other)


@register("train", "optax")
def by_name(
    *,
    optimizer: Annotated[str, Field(description="an optimizer of optax: lion, rmsprop, adagrad, …")] = "rmsprop",
    lr: SmallRate = 0.001,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: Batch = "full",
    options: Annotated[dict[str, Any], Field(description="further arguments of the optimizer")] = {},  # noqa: B006
    keep_optimizer_state: Annotated[
        bool, Field(description="a client keeps the optimizer's state between rounds")
    ] = False,
) -> Local:
    """Any optimizer of optax that takes a `learning_rate` (https://optax.readthedocs.io/en/latest/api/optimizers.html).

    Epochs, steps and mini-batches are those of `sgd`.
    """
    known = optimizers()
    if optimizer not in known:
        raise unknown("optimizer of optax", optimizer, known)
    for option in options:
        if option not in known[optimizer]:
            raise unknown(f"option of {optimizer}", option, known[optimizer])
    other = lambda: getattr(optax, optimizer)(learning_rate=lr, **options)
    try:
        jax.eval_shape(lambda x: other().update(x, other().init(x), x), jnp.zeros(2))
    except Exception as error:  # whatever optax makes of the values
        raise InputError(f"train: optax.{optimizer} refuses {options}: {error}") from None
    return Local(lr, *epochs_or_steps(epochs, steps), batch_size, 0.0, 0.0, keep_optimizer_state, other)


@functools.cache
def optimizers() -> dict[str, list[str]]:
    """The optimizers of optax that take a learning rate, with their other arguments."""
    found = {}
    for name in dir(optax):
        function = getattr(optax, name)
        if name.startswith(("_", "scale_by_")) or not inspect.isfunction(function):
            continue
        if "learning_rate" in inspect.signature(function).parameters:
            found[name] = [key for key in inspect.signature(function).parameters if key != "learning_rate"]
    return found


def epochs_or_steps(epochs: int | None, steps: int | None) -> tuple[int | None, int | None]:
    """The epochs, one where neither is given, and the steps.

    Raises:
        InputError: both are given.
    """
    if epochs is not None and steps is not None:
        raise InputError(f"train: give epochs or steps, not both (got epochs={epochs}, steps={steps})")
    return 1 if epochs is None and steps is None else epochs, steps


def schedule(local: Local, data: Clients, key: Key):
    """Which rows each step sees.

    Returns:
        `batch(turn) -> Clients` with `[b, ...]` rows, whether a step can have none (a smaller client's pass ends before
        the longest one's), and the number of steps.
    """
    n = data.mask.shape[0]
    b, total = local.rows_and_steps(n)
    if b == n:
        return (lambda turn: data), False, total
    real = jnp.maximum(data.size, 1)
    own_pass = (real + b - 1) // b  # batches in one pass over this client's examples
    longest = -(-n // b)
    turns = own_pass if local.steps else longest

    def order(turn: Array) -> Array:
        """The rows in the order of one pass, the padding last. [n]"""
        noise = jax.random.uniform(stream(key, Stream.ORDER, turn), (n,))
        return jnp.argsort(jnp.where(data.mask, noise, jnp.inf))

    passes = total // longest if not local.steps and total // longest * n <= HELD else 0
    orders = jax.vmap(order)(jnp.arange(passes))  # of few passes; of many, each step computes its own again

    def batch(turn: Array) -> Clients:
        position = (turn % turns) * b + jnp.arange(b)
        rows = (orders[turn // turns] if passes else order(turn // turns))[position % real]
        weight = () if isinstance(data.weight, tuple) else data.weight[rows]
        return Clients(data.x[rows], data.y[rows], (position < data.size), weight)

    return batch, not local.steps, total


def steps_done(local: Local, data: Clients, turn: Array) -> tuple[Array, Array]:
    """How many steps a client has done before a turn of a round, and how many it does in the whole round.

    In epochs, a smaller client has no step in some turns, because its pass ends before the longest one's.
    """
    n = data.mask.shape[0]
    b, total = local.rows_and_steps(n)
    own, longest = (data.size + b - 1) // b, -(-n // b)  # batches of one pass
    return turn // longest * own + jnp.minimum(turn % longest, own), total // longest * own


def is_zero(value: Any) -> bool:
    """Whether a hyperparameter is a plain zero, so that its term can be left out."""
    return isinstance(value, int | float) and value == 0
