"""Predictions of a trained run for examples that were not in its federation."""

import pickle
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jcfl.errors import InputError, shown
from jcfl.runs import devices
from jcfl.runs.config import Config
from jcfl.runs.objects import Objects
from jcfl.runs.plan import Plan, planned
from jcfl.types import Array, Federation, Split, State
from jcfl.types.host import OnHost


class Predictor:
    """Predicts as the clients of a run do at its end; the federation is made again when it is first used."""

    def __init__(self, config: Config, objects: Objects):
        self.config = config.model_copy(update={"compare": (), "seeds": 1})
        self.objects = objects

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: no programs, no federation, and of the user's objects those that can be."""
        own = {name: value for name, value in self.objects._asdict().items() if name != "federation"}
        return {
            "config": self.config,
            "objects": Objects(**{name: value for name, value in own.items() if kept(value)}),
        }

    def __copy__(self) -> "Predictor":
        return self

    def __deepcopy__(self, memo: Any) -> "Predictor":
        """Itself, because nothing changes it; a copy made by `__getstate__` would lack the federation."""
        return self

    @cached_property
    def plan(self) -> Plan:
        """The run's plan.

        Raises:
            InputError: its examples or its clients' states do not fit the device.
        """
        found = planned(self.config, self.objects)
        if found.context.resources.states_on_host or isinstance(found.federation.x, OnHost):
            raise InputError("predict: the run's examples or its clients' states are on the host; not possible yet")
        return found

    @cached_property
    def compiled(self) -> Any:
        """The method's `predict`, compiled once for each number of examples: `(state, federation) -> logits [r, c]`."""
        (algorithm,) = self.plan.algorithms.values()
        return jax.jit(lambda state, federation: algorithm.predict(state, federation)[1])

    def __call__(self, states: State, lane: int, x: Any, clients: Any) -> np.ndarray:
        """The logits of some clients' examples. [n, c]

        Args:
            states: the final states of all seeds, in NumPy. [seeds, ...]
            lane: the place of the seed whose models predict.
            x: the examples as the federation has its own, before they are scaled. [n, ...]
            clients: whose each is, by their places in the federation, or one client's. [n] or []

        Raises:
            InputError: the examples have another shape or type than the federation's, or there is no such client.
        """
        federation = self.plan.federation
        x = examples(federation, x)
        owner = owners(federation, clients, len(x))
        state = self.typed(jax.tree.map(lambda leaf: leaf[lane], states))
        own = federation.at(state.round - 1).replace(drift=(), validation=())
        order = owner.argsort(kind="stable")
        wider = jnp.concatenate([jnp.asarray(own.x), jnp.asarray(x[order])])
        size = np.bincount(owner, minlength=len(federation.groups))
        leaves = np.arange(len(own.y), len(own.y) + len(x)), size.cumsum() - size, size
        test = Split(*(jnp.asarray(leaf, jnp.int32) for leaf in leaves), width=int(size.max()))
        whole = own.replace(x=wider, y=jnp.concatenate([own.y, jnp.zeros(len(x), own.y.dtype)]), test=test)
        whole = devices.on_devices(whole, self.plan.context.resources.devices)
        logits = np.asarray(self.compiled(state, whole))
        return logits[order.argsort()]

    def typed(self, state: State) -> State:
        """The state with JAX's keys in place of their integers."""
        (algorithm,) = self.plan.algorithms.values()
        like = jax.eval_shape(algorithm.init, jax.random.key(0), self.plan.federation)

        def leaf(shape: Any, value: Any) -> Array:
            is_key = jnp.issubdtype(shape.dtype, jax.dtypes.prng_key)
            return jax.random.wrap_key_data(jnp.asarray(value)) if is_key else jnp.asarray(value)

        return jax.tree.map(leaf, like, state)


def kept(value: Any) -> bool:
    """Whether an object can be pickled."""
    try:
        pickle.dumps(value)
    except Exception:  # an object's own code may raise anything
        return False
    return True


def examples(federation: Federation, x: Any) -> np.ndarray:
    """New examples, if they are like the federation's own. [n, ...]"""
    own, form = federation.x, ", ".join(map(str, federation.x.shape[1:]))
    try:
        mask, x = np.ma.getmask(x), np.asarray(x)
    except ValueError:
        raise InputError(f"predict: expected examples of shape [n, {form}], got examples of several shapes") from None
    if not x.size:
        raise InputError(f"predict: expected at least one example of shape [{form}], got none")
    if x.shape == own.shape[1:]:
        raise InputError(f"predict: expected examples of shape [n, {form}], got one example; give x[None]")
    if (*x.shape[1:], 1) == own.shape[1:]:
        raise InputError(f"predict: expected images of shape [n, {form}], got {[*x.shape]}; give x[..., None]")
    if x.ndim != own.ndim or x.shape[1:] != own.shape[1:]:
        got = [*x.shape] if x.ndim else shown(x.item())
        raise InputError(f"predict: expected examples of shape [n, {form}], got {got}")
    refuse(mask, "masked values")
    are_pixels = np.issubdtype(own.dtype, np.integer)
    if are_pixels and not (np.issubdtype(x.dtype, np.integer) and x.min() >= 0 and x.max() <= 255):
        raise InputError(f"predict: the federation's examples are pixels from 0 to 255 (uint8), got {x.dtype}")
    if not are_pixels and x.dtype.kind not in "iuf":
        raise InputError(f"predict: expected finite numbers, got {x.dtype}")
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        x = x.astype(own.dtype)
    refuse(~np.isfinite(x), "NaN or infinity")
    return x


def refuse(wrong: np.ndarray, what: str) -> None:
    """Refuse new examples with a wrong value.

    Args:
        wrong: which values are. [n, ...] bool
        what: what they are, for the error.

    Raises:
        InputError: the line names the first such example.
    """
    if wrong.any():
        worst = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
        raise InputError(f"predict: expected finite numbers, got {what} in example {worst}")


def owners(federation: Federation, clients: Any, n: int) -> np.ndarray:
    """The client of every example. [n] int"""
    m = len(federation.groups)
    try:
        found = np.asarray(clients)
    except ValueError:
        found = np.zeros(())  # a list of lists of several lengths, which is refused like any other that is no place
    if found.size and not np.issubdtype(found.dtype, np.integer):
        got = f"got {shown(clients)}; ids= takes ids"
        raise InputError(f"predict: expected a client's place, or one for each of the {n} examples, {got}")
    if found.ndim and found.shape != (n,):  # whether places or ids were given
        got = f"a list of {len(found)}" if found.ndim == 1 else f"an array of shape {[*found.shape]}"
        raise InputError(f"predict: expected one client, or a list with one for each of the {n} examples, got {got}")
    if found.size and not (found.min() >= 0 and found.max() < m):
        raise InputError(f"predict: clients are places from 0 to {m - 1}, got {clients!r}; ids= takes ids")
    return np.broadcast_to(found, (n,))
