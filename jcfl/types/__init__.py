"""The nouns of the simulator: arrays travel in dataclasses, functions in tuples.

Letters in shape comments: `m` clients in all, `s` clients in a round's cohort, `k` clusters, `n` examples,
`d` features, `c` classes.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from jcfl.types.host import OnHost

Array = jax.Array
Key = jax.Array
Model = Any
"""The Flax variables of one network: `{"params": ..., "batch_stats": ...}`."""
Models = Any
"""Models stacked along a leading axis."""

NEVER = 2**31 - 1
"""The round of what never happens, such as the departure of a client that stays."""

OVERFLOW = -2
"""In place of a cluster in `State.failed`: more clusters were found than there are slots."""

UNDESCRIBED = -4
"""In place of a cluster in `State.failed`: the description of a client is not finite, so clients cannot be grouped."""

VOTER = -3
"""In place of a cluster in `State.failed`: the model of a run that votes beside this one is not finite."""

GLOBAL = -5
"""In place of a cluster in `State.failed`: all models of clusters are finite, and the global model is not."""


class Split(struct.PyTreeNode):
    """The examples of every client: client i has `rows[start[i] : start[i] + size[i]]`."""

    rows: Array  #: [r] int32, indices into the pool, the rows of each client next to each other
    start: Array  #: [m] int32, the place in `rows` where the rows of each client begin
    size: Array  #: [m] int32, the number of examples of each client
    width: int = struct.field(pytree_node=False)  #: the largest size

    @property
    def is_even(self) -> bool:
        """Whether all clients have equally many examples, which the shapes say."""
        return self.rows.size == self.size.size * self.width

    def owned(self, client: int) -> Array:
        """The rows of one client; the leaves are NumPy's, because the number of rows differs. [size[client]]"""
        return self.rows[self.start[client] : self.start[client] + self.size[client]]


class Drift(struct.PyTreeNode):
    """Which client's data every client has, by round: before `rounds[p]` those of `holds[p]`, from then on the next."""

    rounds: Array  #: [p] int32, ascending
    #: [p + 1, m] int32, each row a permutation of the clients. In row p, client i has the data of client `holds[p, i]`.
    holds: Array


class Ids:
    """The ids that a user gave the clients.

    They are a static part of a federation, and JAX compiles again if a static part differs. Ids change no computation,
    so two `Ids` are always equal.
    """

    def __init__(self, array: Any = ()):
        self.array = np.asarray(array)  # [m] numbers or text; [0] where clients are called by their numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids)

    def __hash__(self) -> int:
        return hash(Ids)


class Federation(struct.PyTreeNode, eq=False):
    """A pool of examples, and the examples of each client.

    The leaves are NumPy arrays while a federation is built and JAX arrays once it is placed on a device. The examples
    may stay on the host then.
    """

    x: Array | OnHost  #: [N, ...] uint8 pixels (0 to 255) or float32 features, the N examples of the pool
    y: Array  #: [N] int32, the class of every example, from 0 to `classes - 1`
    train: Split  #: the examples that each client trains on
    test: Split  #: the examples that each client is tested on
    groups: Array  #: [m] int32, the true group of every client; -1 where it is not known
    held_out: Array  #: [m] bool, clients that never train
    arrive: Array  #: [m] int32, the first round in which a client can be sampled
    depart: Array  #: [m] int32, the first round in which it no longer can; 2**31 - 1 (`NEVER`) if it stays
    classes: int = struct.field(pytree_node=False)  #: the number of classes
    #: for each channel, what is subtracted from the examples before a model gets them; uint8 pixels are divided by 255
    #: first
    mean: tuple[float, ...] = struct.field(pytree_node=False, default=(0.0,))
    #: for each channel, by what the examples are divided after that
    std: tuple[float, ...] = struct.field(pytree_node=False, default=(1.0,))
    name: str = struct.field(pytree_node=False, default="")  #: what tables and messages call the federation
    hostile: Array | tuple[()] = ()  #: [m] bool, the clients that attack; () where nobody does
    validation: Split | tuple[()] = ()  #: examples on which no client trains, to choose options by; () without any
    drift: Drift | tuple[()] = ()  #: how clients' data change between rounds; () where they do not
    ids: Ids = struct.field(pytree_node=False, default=Ids())  #: the ids that the user gave; see `clients`

    def __repr__(self) -> str:
        """The federation in a line: the shapes of its arrays."""
        arrays = {"examples": self.x, "clients": self.groups}
        arrays |= {name: getattr(split, "rows", ()) for name, split in self.splits.items()}
        shapes = [f"{name} {[*getattr(array, 'shape', ())]}" for name, array in arrays.items()]  # JAX also puts others
        return f"<Federation {self.name}: {', '.join([*shapes, f'{self.classes} classes'])}>"

    @property
    def clients(self) -> np.ndarray:
        """The id of every client, as the user gave it; 0 .. m-1 where she gave none. [m] numbers or text"""
        return self.ids.array if self.ids.array.size else np.arange(len(self.groups))

    def called(self, client: Any) -> str:
        """What an error calls a client: `client 'ann'`, `client 7`."""
        names = self.clients.tolist()
        return f"client {names[client] if client < len(names) else client!r}"

    @property
    def is_attacked(self) -> bool:
        """Whether it is known which clients attack."""
        return not isinstance(self.hostile, tuple)

    @property
    def splits(self) -> dict[str, Split]:
        """Each split by its name; the names are `train`, `test`, and `validation` where there is one."""
        own = {} if isinstance(self.validation, tuple) else {"validation": self.validation}
        return {"train": self.train, "test": self.test} | own

    def available(self, round: Array | int) -> Array:
        """The clients that can be sampled in a round: not held out, arrived, and not departed. [m] bool"""
        return ~self.held_out & (self.arrive <= round) & (round < self.depart)

    def at(self, round: Any) -> "Federation":
        """The federation as it is in a round: every client with the examples and the true group that it has then.

        Only who owns which rows changes, so all shapes stay. `at` of the result is again that of a round of the run.

        Args:
            round: one round, or a round of its own for every client; several clients may then have the same examples,
                and `at` of the result is not defined. [] or [m] int
        """
        if isinstance(self.drift, tuple):
            return self
        rounds, holds = self.drift.rounds, self.drift.holds
        now = holds[rounds.searchsorted(round, side="right"), np.arange(holds.shape[1])]  # [m]
        moved = {
            name: split.replace(start=split.start[now], size=split.size[now]) for name, split in self.splits.items()
        }
        drift = self.drift.replace(holds=now.argsort()[holds])
        return self.replace(groups=self.groups[now], drift=drift, **moved)


class Clients(struct.PyTreeNode):
    """Examples of several clients, padded to one length; the rows under a false mask are never used."""

    x: Any  #: [s, n, ...] float, the examples
    y: Array  #: [s, n] int32, their classes
    mask: Array  #: [s, n] bool, false for padding
    weight: Array | tuple[()] = ()  #: [s, n] what an example counts in the loss, where examples do not count alike
    rows: Array | tuple[()] = ()  #: [s, n] int32, the rows of the pool that the examples are, for `inputs`
    #: `rows [b] -> x [b, ...]`, with which a step reads its examples from the pool; None where it takes them from `x`
    inputs: Callable[[Array], Array] | None = struct.field(pytree_node=False, default=None)

    @property
    def size(self) -> Array:
        """The number of real examples. [s]"""
        return self.mask.sum(-1)

    def picked(self, places: Array, mask: Array) -> "Clients":
        """Some examples of one client.

        Args:
            places: among the client's examples. [b] int
            mask: false where there is no example. [b] bool
        """
        x = self.x[places] if self.inputs is None else self.inputs(self.rows[places])
        weight = () if isinstance(self.weight, tuple) else self.weight[places]
        return Clients(x, self.y[places], mask, weight)


def replaced(self: Clients, **overrides: Any) -> Clients:
    """`Clients.replace`: steps see a new `x`, and no longer the pool."""
    return dataclasses.replace(self, **({"rows": (), "inputs": None} if "x" in overrides else {}) | overrides)


Clients.replace = replaced  # Flax gives each class its own `replace` when it is made


class First(NamedTuple):
    """A network's first layer where that is dense, takes the examples as they are, and alone sees them.

    `rest(model, product [n, h], *, key=None, mask=None)` is `Task.apply` from what the layer makes of the examples on,
    `x [n, d] @ kernel [d, h] + bias [h]`; the layer itself is then not looked at.
    """

    path: tuple[str, ...]  #: the names that lead to the layer among the parameters; it has "kernel" and maybe "bias"
    rest: Callable[..., tuple[Array, Model]]  #: the network without the layer, see above


class Task(NamedTuple):
    """What is learnt: a network and its loss.

    `init(key)` gives a model. `apply(model, x [n, ...], *, key=None, mask=None)` gives `(logits [n, c], model)`: with a
    key it is in training mode (dropout draws from it, batch statistics are those of the rows under `mask [n]` and the
    returned model holds the updated running ones), without one in evaluation mode (running statistics, no dropout) and
    the model comes back as it was. `features(model, x, *, key=None, mask=None)` gives the representation before the
    head, `[n, f]`. `loss(logits [n, c], y [n])` gives one loss per example, `[n]`. `head` names the top-level entry (or
    entries) of `model["params"]` that make up the classifier. With `first`, where there is such a layer, clients can be
    trained without a kernel each.
    """

    init: Callable[[Key], Model]  #: a new model
    apply: Callable[..., tuple[Array, Model]]  #: logits [n, c] float, and the model
    features: Callable[..., Array]  #: the representation before the head, [n, f] float
    loss: Callable[[Array, Array], Array]  #: the loss of every example, [n] float
    head: tuple[str, ...]  #: the entries of `model["params"]` that make up the classifier
    name: str = ""  #: what tables and messages call the model
    first: First | None = None  #: the first layer, if it is dense and takes the examples as they are


class Cohort(struct.PyTreeNode):
    """The sampled clients of one round; if fewer clients are available than s, the rest is not present."""

    who: Array  #: [s] int32, the numbers of the sampled clients
    present: Array  #: [s] bool, whether this client takes part


class Broadcast(struct.PyTreeNode):
    """What the server sends to one client."""

    label: Array  #: [] int32, the client's cluster
    cluster: Model  #: the model of that cluster
    clusters: Models  #: [k, ...] the models of all clusters
    shared: Model  #: the global model ω
    shares: Array  #: [k] float, the share of the examples that each cluster's clients hold
    memory: Any  #: what the grouping remembers
    extra: Any = ()  #: what the client computed from the broadcast before training
    own: Any = struct.field(default_factory=dict)  #: the client's own state from its last round, by name
    live: Array | tuple[()] = ()  #: [k] bool, the clusters that have members; () stands for all of them
    mean: Model = ()  #: the mean of the cluster models, weighted by `shares`, if a loss term needs it
    server: Any = struct.field(default_factory=dict)  #: what the server keeps for the client's cluster, by name
    handed: Model = ()  #: the model of the client before it, where ω goes from one client to the next
    examples: Array | tuple[()] = ()  #: [] int32, the training examples of all clients that are not held out


class Upload(struct.PyTreeNode):
    """What one client sends back: one model to be averaged in its cluster, one over the whole cohort."""

    cluster: Model  #: the model that is averaged in the client's cluster
    shared: Model  #: the model that is averaged over the cohort; () where ω is the mean of the cluster models
    own: Any = struct.field(default_factory=dict)  #: the client's new state, by name


class State(struct.PyTreeNode):
    """Everything that is kept between rounds."""

    clusters: Models  #: [k, ...] the models of the clusters
    shared: Model  #: the global model ω
    labels: Array  #: [m] int32, the cluster of every client; -1 before it has one
    seen: Array  #: [m] bool, whether it has taken part in a round
    memory: Any  #: whatever the grouping carries
    round: Array  #: [] int32, rounds since the run began
    key: Key  #: the run's key; every random stream is folded from it, see `jcfl.core.streams`
    failed: Array  #: [2] int32, round and cluster of the first model that is not finite; (-1, -1) while all are finite
    began: Array  #: [] int32, the round in which the method's present phase began
    clients: Any = struct.field(default_factory=dict)  #: the states that clients keep, by name, each [m, ...]
    server: Any = struct.field(default_factory=dict)  #: what the server keeps of each cluster, by name, each [k, ...]
    stopping: Any = ()  #: what a stop condition keeps, see `jcfl.core.stopping`; () without one

    def __repr__(self) -> str:
        """The state in a line: the shape of every array, by its path."""
        leaves = jax.tree_util.tree_flatten_with_path(self)[0]
        shapes = [f"{jax.tree_util.keystr(path)} {[*getattr(leaf, 'shape', ())]}" for path, leaf in leaves]
        return f"<State {', '.join(shapes)}>"

    @property
    def ended(self) -> Array | int:
        """The round at which a stop condition ended training; `NEVER` before. [] int32"""
        return getattr(self.stopping, "round", NEVER)

    @property
    def clock(self) -> Array:
        """Rounds since the present phase began. [] int32"""
        return self.round - self.began


class Grouping(NamedTuple):
    """A rule that puts clients into clusters.

    `init(state, federation) -> state` before the first round. `before(key, state, cohort, federation) -> state` sees
    data and cluster models and may change labels, cluster models and memory before training. `after(key, state,
    members, federation, models) -> state` sees the models that clients trained (stacked, `[s, ...]`; of the cohort, or
    of all clients where the method stores them) and changes labels and memory; a rule without it (None) lets the engine
    stream. `place(state, who, federation) -> labels [h]` are the clusters of clients outside the training; it changes
    nothing. `serve(state, federation) -> labels [m]` are the clusters of all clients at evaluation (-1: the global
    model). `measures(state, federation) -> dict` adds metrics to an evaluation, a number each. What they return is
    checked in `jcfl.core.groupings`.
    """

    init: Callable[..., State]  #: the state before the first round
    before: Callable[..., State]  #: the state before the clients of a round train
    after: Callable[..., State] | None  #: the state after they have trained
    place: Callable[..., Array]  #: the clusters of clients outside the training, [h] int32
    serve: Callable[..., Array]  #: the clusters of all clients at evaluation, [m] int32; -1 for the global model
    measures: Callable[..., dict[str, Array]]  #: further metrics by name


class Algorithm(NamedTuple):
    """A federated learning method, ready to run.

    `init(key, federation) -> State`; `step(state, federation) -> State` is one round, pure and of fixed shape;
    `predict(state, federation) -> (labels [m], logits [r, c])` are the cluster of each client and the predictions of
    every test row; `evaluate(state, federation) -> dict` has the arrays from which `jcfl.metrics.measured` computes
    scores, and scalars that the method measures itself, which `measure(state, federation)` has alone; `costs` are those
    of a client-round relative to FedAvg, as a function of the number of clusters; `engine` says how clients train;
    `method` is the value that was compiled.
    `sampled(state, federation) -> Cohort` are the clients that the next round's `step` will sample, as far as they are
    known before it: their examples are read ahead if they are in a file.
    """

    init: Callable[[Key, Federation], State]  #: the state before the first round
    step: Callable[[State, Federation], State]  #: the state after one more round
    predict: Callable[[State, Federation], tuple[Array, Array]]  #: labels [m] int32, and logits [r, c] float
    evaluate: Callable[[State, Federation], dict[str, Array]]  #: what scores are computed from, by name
    costs: Callable[[float], dict[str, float]]  #: costs of a client-round by name; FedAvg's are 1
    engine: str = "general"  #: how clients train, such as `general` or `factored`
    method: Any = None  #: the `Method` that was compiled; None for an algorithm made in another way
    #: the clients of the next round, as far as they are known; by default none
    sampled: Callable[[State, Federation], Cohort] = lambda state, federation: Cohort(state.labels[:0], state.seen[:0])
    #: what a method measures itself, by name; by default nothing
    measure: Callable[[State, Federation], dict[str, Array]] = lambda state, federation: {}
