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
from jcfl.core import batches
from jcfl.core.objective import Objective
from jcfl.errors import InputError, unknown
from jcfl.registry import register
from jcfl.types import Broadcast, Clients, Key, Model

MOST = 2**31 - 64
"""The most local steps in a round; from here on numbers name random streams, see `jcfl.core.streams`."""


@runtime_checkable
class Trainer(Protocol):
    """What local training must offer; `Local` is the one that comes with jcfl.

    Your own trainer needs only `train` if it derives from `Local`. A round calls the other methods. Where clients are
    slow (`reliability.stragglers`), a client should do only the share `sent.own["work"]` of its steps. A class whose
    own `train` does so, or calls `Local.train`, says this by `counts_work = True`; another one is refused there.
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
        """The same trainer for so many full-batch steps; optionally without momentum."""
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
    share: float = 1.0  # of the client's examples; each training draws its own

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what copies, such as that of `for_steps`, would not have: they are made of the fields alone."""
        raise InputError(
            f"trainer {type(self).__name__}: {name!r} would be lost in copies of the trainer; define the class inside "
            "the registered function, whose options its methods then see"
        )

    def train(self, objective: Objective, start: Model, sent: Broadcast, data: Clients, key: Key) -> Model:
        """The model after local training from `start` on one client's examples (`data.x` [n, ...])."""
        return self.resume(objective, start, self.fresh_state(start), sent, data, key)[0]

    def resume(
        self, objective: Objective, start: Model, memory: Any, sent: Broadcast, data: Clients, key: Key
    ) -> tuple[Model, Any]:
        """As `train`, from the optimizer's state of the client's last round; returns the new state too."""
        optimizer = self.optimizer()
        data = batches.drawn(self.share, data, key)
        plan = batches.schedule(self, data, key)
        work = sent.own.get("work") if isinstance(sent, Broadcast) else None  # of its steps that the client does

        def step(done, carry):
            model, memory = carry
            turn = plan.turn(done)
            rows = plan.batch(turn)
            gradient = jax.grad(objective, has_aux=True)
            grads, after = gradient(model["params"], model, rows, sent, jax.random.fold_in(key, turn))
            updates, moments = optimizer.update(grads, memory, model["params"])
            new = {**after, "params": optax.apply_updates(model["params"], updates)}, trees.with_dtypes(moments, memory)
            new = trees.select(rows.mask.any(), new, carry) if plan.skips else new
            if work is None:
                return new
            done, own = batches.steps_done(self, data, turn) if plan.skips else (done, plan.count)
            return trees.select(done < jnp.ceil(work * own), new, carry)

        return jax.lax.fori_loop(0, plan.count, step, (start, memory))

    def fresh_state(self, start: Model) -> Any:
        """The optimizer's state before the first step."""
        return self.optimizer().init(start["params"])

    def rows_and_steps(self, n: int) -> tuple[int, int]:
        """Rows in a step, and steps in a round, of a client with `n` examples."""
        most = batches.taken(self.share, n)
        rows = most if self.batch_size == "full" else min(self.batch_size, most)
        steps = self.steps or (self.epochs or 1) * -(-max(most, 1) // max(rows, 1))
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
        """The same trainer for so many full-batch steps. Without `momentum` it is SGD, which keeps weight decay."""
        found = self._replace(steps=steps, epochs=None, batch_size="full")
        return found if momentum else found._replace(momentum=0.0, other=None)

    @property
    def is_linear(self) -> bool:
        """Whether training only ever adds multiples of gradients and of the models that were sent."""
        return self.other is None and keeps(self, "train", "resume", "optimizer", "fresh_state")

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
        if not (self.is_linear and is_zero(self.momentum) and is_zero(self.weight_decay)):
            raise InputError(
                "control variates need plain SGD: set train.name=sgd, and train.momentum and train.weight_decay to 0"
            )
        n = data.mask.shape[0]
        rows, steps = self.rows_and_steps(n)
        if not self.steps and rows < batches.taken(self.share, n):  # a smaller client's passes have fewer batches
            steps = jnp.maximum((self.epochs or 1) * -(-batches.number(self.share, data) // rows), 1)
        mean = jax.tree.map(lambda a, b: (a - b) / (steps * self.lr), start, after)
        return trees.with_dtypes(mean, start)

    def optimizer(self) -> optax.GradientTransformation:
        """SGD with this trainer's momentum and weight decay (added to the gradient), or the other optimizer."""
        if self.other is not None:
            return self.other()
        decay = optax.identity() if is_zero(self.weight_decay) else optax.add_decayed_weights(self.weight_decay)
        return optax.chain(decay, optax.sgd(self.lr, None if is_zero(self.momentum) else self.momentum))


def counts_work(trainer: Any) -> bool:
    """Whether a slow client does only its share of the steps: by `Local`, or by a class that says so."""
    return keeps(trainer, "train", "resume") or getattr(trainer, "counts_work", False) is True


def keeps(trainer: Any, *methods: str) -> bool:
    """Whether a trainer has these methods of `Local`, and none of its own in their place."""
    return all(getattr(type(trainer), name, None) is getattr(Local, name) for name in methods)


Rate = Annotated[
    float, Field(gt=0, description="learning rate η", json_schema_extra={"search": [0.001, 1.0], "log": True})
]
SmallRate = Annotated[
    float, Field(gt=0, description="learning rate η", json_schema_extra={"search": [0.0001, 0.1], "log": True})
]
Epochs = Annotated[int | None, Field(ge=1, description="passes over the client's examples a round")]
Steps = Annotated[int | None, Field(ge=1, description="mini-batches a round, instead of epochs")]
Batch = Annotated[
    Annotated[int, Field(ge=1)] | Literal["full"], Field(description="examples of a step; full: all of them")
]
Share = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="share of the client's examples to train on, drawn anew in every round",
        json_schema_extra={"fixed": True},
    ),
]
Decay = Annotated[float, Field(ge=0, le=1, description="of the mean of gradients, or of their squares")]


@register("train", "sgd")
def sgd(
    *,
    lr: Rate = 0.1,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: Batch = "full",
    share: Share = 1.0,
    momentum: Annotated[float, Field(ge=0, lt=1, description="share of the last step that is kept")] = 0.0,
    weight_decay: Annotated[float, Field(ge=0, description="times the parameters, added to the gradient")] = 0.0,
    keep_optimizer_state: Annotated[bool, Field(description="a client keeps its momentum between rounds")] = False,
) -> Local:
    """SGD over the client's own examples, by epochs or by steps.

    By default a client takes one step in a round, with the gradient over all of its examples. Most papers train longer:
    set `epochs` or `steps`, and `batch_size`.

    Mini-batches are drawn without replacement within a pass, in a new order in each pass. A client with fewer examples
    than a batch uses all of them; padding is never drawn.

    With a `share`, each local training takes a random share of the client's examples, rounded down, and an epoch is a
    pass over these. Every round and every client has a draw of its own (the code of Zeng et al. 2023 for Shifted MNIST,
    `share=0.8`). Averages are weighted by all of a client's examples, as without it.

    Deviations:
        A client that trains a cluster model and ω takes the same share of its examples for both in a round. The code of
        Zeng et al. draws twice.
        Momentum starts at zero in every round, unless `keep_optimizer_state` is set; released code of the papers
        keeps it for some methods and not for others. With CAM it is kept from the end of the warm-up.
    """
    if keep_optimizer_state and is_zero(momentum):
        raise InputError("train: keep_optimizer_state keeps momentum, which is 0; set momentum, or leave it out")
    pace = *epochs_or_steps(epochs, steps), batch_size
    return Local(lr, *pace, momentum, weight_decay, keep_optimizer_state, None, share)


@register("train", "adam")
def adam(
    *,
    lr: SmallRate = 0.001,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: Batch = "full",
    share: Share = 1.0,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: Annotated[float, Field(ge=0, description="added to the root of the mean of squares")] = 1e-8,
    weight_decay: Annotated[float, Field(ge=0, description="subtracted separately from the gradient (AdamW)")] = 0.0,
    keep_optimizer_state: Annotated[bool, Field(description="a client keeps its moments between rounds")] = False,
) -> Local:
    """Adam over the client's own examples (Kingma and Ba 2015, arXiv:1412.6980); AdamW with a `weight_decay`.

    Epochs, steps, mini-batches and the share are those of `sgd`. The moments are reset in every round, unless
    `keep_optimizer_state` is set.
    """
    other = lambda: optax.adamw(lr, b1, b2, eps, weight_decay=weight_decay)
    return Local(lr, *epochs_or_steps(epochs, steps), batch_size, 0.0, 0.0, keep_optimizer_state, other, share)


@register("train", "optax")
def by_name(
    *,
    optimizer: Annotated[str, Field(description="an optimizer of optax: lion, rmsprop, adagrad, …")] = "rmsprop",
    lr: SmallRate = 0.001,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: Batch = "full",
    share: Share = 1.0,
    options: Annotated[dict[str, Any], Field(description="further arguments of the optimizer")] = {},  # noqa: B006
    keep_optimizer_state: Annotated[
        bool, Field(description="a client keeps the optimizer's state between rounds")
    ] = False,
) -> Local:
    """Any optimizer of optax that takes a `learning_rate` (https://optax.readthedocs.io/en/latest/api/optimizers.html).

    Epochs, steps, mini-batches and the share are those of `sgd`.
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
    return Local(lr, *epochs_or_steps(epochs, steps), batch_size, 0.0, 0.0, keep_optimizer_state, other, share)


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


def is_zero(value: Any) -> bool:
    """Whether a hyperparameter is a plain zero, so that its term can be left out."""
    return isinstance(value, int | float) and value == 0
