"""What a client does in a round: it trains what it was sent, and keeps what stays with it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jcfl import trees
from jcfl.core import parts, returned, soft
from jcfl.core.context import Context, model_bytes, refuse_too_large
from jcfl.core.describing import anchor_gradient
from jcfl.core.engine import Client
from jcfl.core.local import Trainer
from jcfl.core.memory import memories
from jcfl.core.method import Mean, Method
from jcfl.core.objective import Objective, Pull, Term, objective, own, own_share, shared
from jcfl.core.terms import Correction, LossTerm
from jcfl.errors import InputError, calling, named, shown
from jcfl.types import Broadcast, Clients, Key, Model, Task, Upload

CHANGE = "change of the control variate"
"""What a client sends beside its model if clients keep control variates; nobody keeps it."""

TAKEN = ("optimizer", "private", "control", "controlled", "work", "share", "dropped", "suspected", "membership")
"""Names by which rounds and clients find states that are declared here, so no group can use them for its own."""

KeptStates = dict[str, Callable[[Model], Any]]
"""The states that clients keep between rounds: by name, what each begins with, from the first model."""


def terms(method: Method, task: Task) -> list[Term]:
    """The loss terms of a method's cluster models as functions."""
    given = [built(term, task) for term in method.train.terms]
    return given + ([Correction().build(task)] if method.train.control or method.train.correction else [])


def shared_terms(method: Method, task: Task) -> list[Term]:
    """The loss terms of ω as functions."""
    return [built(term, task) for term in method.train.shared_terms if not term.is_off]


def built(term: LossTerm, task: Task) -> Term:
    """A loss term as a function."""
    return named(f"loss term {type(term).__name__}: build", term.build)(task)


def needs_shared_alone(method: Method, task: Task) -> bool:
    """Whether a client that trains ω looks at no other model."""
    near = all(isinstance(term, Pull) and term.to is shared for term in shared_terms(method, task))
    return near and not (method.is_summed or method.train.correction)


Trains = Literal["both", "cluster", "shared"]


def client(method: Method, context: Context, task: Task | None = None, trains: Trains = "both") -> Client:
    """One client's part of a round: `(broadcast, data, key) -> upload`.

    The client trains the model of its cluster and, where ω is trained on a copy of its own, ω as well; both see the
    same mini-batches in the same order, of the same share of the client's examples.

    Args:
        task: stands in for the run's, where an engine trains another form of the model.
        trains: which of the two models, where ω is trained on a copy of its own; the other one is `()` in the upload.
    """
    task = task or context.task
    train, added, usual = method.train, method.is_summed, trainer(method, context)
    scale = own_share if train.by_share else None
    cluster_loss = objective(task, terms(method, task), partner=shared if added else None, scale=scale)
    shared_loss = objective(task, shared_terms(method, task), partner=own if added else None)
    if isinstance(method.group, soft.SoftGroup):
        return soft.client(task, usual, method.group, context.resources.rows)
    private = parts.names(context.task, train.private, "private")

    def work(sent: Broadcast, data: Clients, key: Key, local: Trainer = usual) -> Upload:
        # The server never gets these layers, so in its models they are as in the initial model.
        unsent = parts.part_of(sent.cluster, private)
        sent = with_private(sent, method.trains_shared)
        start = sent.cluster
        if train.correction:
            slope = anchor_gradient(task, start, data)
            mean = trees.select(sent.server["corrected"], sent.server["gradient"], slope)
            sent = sent.replace(extra=jax.tree.map(jnp.subtract, mean, slope))
        if train.control:
            sent = sent.replace(extra=jax.tree.map(jnp.subtract, sent.server["control"], sent.own["control"]))
        if private and (train.correction or train.control):
            # The gradients of others say nothing about the layers that stay with a client.
            sent = sent.replace(extra=without(sent.extra, private))
        if train.by_share:
            sent = sent.replace(own=sent.own | {"share": data.size / jnp.asarray(sent.examples)})
        memory = sent.own.get("optimizer", (None, None))
        if trains == "shared":
            return Upload((), trained(local, shared_loss, sent.handed, None, sent, data, key)[0])
        model, after = trained(local, cluster_loss, start, memory[0], sent, data, key)
        kept = {"private": parts.part_of(model, private)} if "private" in sent.own else {}
        if "control" in sent.own:  # Karimireddy et al. 2020, Alg. 1, option II
            mean = local.mean_gradient(start["params"], model["params"], data)
            kept["control"] = without(jax.tree.map(jnp.subtract, mean, sent.extra), private)
            kept[CHANGE] = jax.tree.map(jnp.subtract, kept["control"], sent.own["control"])
        model = parts.with_part(model, unsent)
        if trains == "cluster":
            common, memory = (), (after,)
        elif not method.trains_shared:
            common, memory = model if sums_shared(method) else (), (after,)
        else:
            common, beside = trained(local, shared_loss, sent.shared, memory[-1], sent, data, key)
            memory = after, beside
        return Upload(model, common, kept | ({"optimizer": memory} if "optimizer" in sent.own else {}))

    return work


def without(gradient: Any, private: Sequence[str]) -> Any:
    """A gradient, or a sum of some, with zeros for the parameters that stay with a client."""
    whole = {"params": gradient}
    return parts.with_part(whole, jax.tree.map(jnp.zeros_like, parts.part_of(whole, private)))["params"]


def with_private(sent: Broadcast, trains_shared: bool) -> Broadcast:
    """What a client was sent, with its own private parameters in every model whose private parameters nobody trains.

    Args:
        trains_shared: whether ω is trained on a copy of its own, all of it.
    """
    own = sent.own.get("private", {})
    if not own:
        return sent
    fill = lambda model: parts.with_part(model, own) if jax.tree.leaves(model) else model
    found = sent.replace(cluster=fill(sent.cluster), mean=fill(sent.mean))
    found = found if trains_shared else found.replace(shared=fill(sent.shared))
    return found.replace(clusters=jax.vmap(fill)(sent.clusters)) if jax.tree.leaves(sent.clusters) else found


def trained(
    local: Trainer, loss: Objective, start: Model, memory: Any, sent: Broadcast, data: Clients, key: Key
) -> tuple[Model, Any]:
    """The model after local training, and the optimizer's state, from that of the last round where it is kept.

    Raises:
        InputError: when it is traced, if a trainer of one's own returns no model, or no state, of the same form.
    """
    name = f"trainer {type(local).__name__}"
    with calling(name):
        if memory is None:
            return returned.models(local.train(loss, start, sent, data, key), start, name), None
        found = local.resume(loss, start, memory, sent, data, key)
    model, after = returned.pair(found, "(model, state)", f"{name}: resume")
    return returned.models(model, start, name), returned.next_state(after, memory, f"{name}: resume: state")


def trainer(method: Method, context: Context) -> Trainer:
    """The local trainer of a method: the run's, unless the method trains by full-batch steps of its own."""
    steps = method.train.steps
    return context.trainer if steps is None else context.trainer.full_batch(steps, momentum=False)


def sums_shared(method: Method) -> bool:
    """Whether ω needs a sum of its own: it is trained, or clients count by size in it and otherwise in clusters."""
    by_size = method.aggregate.weights == "by_size" or method.aggregate.privacy is not None  # then ω counts equally too
    differs = method.group.clustered and not by_size and method.train.models == "own"
    return method.trains_shared or (differs and isinstance(method.aggregate.rule, Mean))


def kept_states(method: Method, context: Context) -> KeptStates:
    """The states that clients keep between rounds, each by the piece that declares it.

    Raises:
        InputError: nobody can keep them, or all clients' together do not fit the memory.
    """
    train, task = method.train, context.task
    found: KeptStates = {}
    sizes: dict[str, int] = {}
    local = trainer(method, context)
    if local.keeps_state and train.active:
        if train.chained or not local.can_resume or train.models == "all":
            raise InputError(
                "train.keep_optimizer_state: clients that train one after another, or in a way of their own, do "
                "not keep it; leave it out"
            )
        copies = 2 if method.trains_shared else 1
        fresh = begun(f"trainer {type(local).__name__}: fresh_state", local.fresh_state)
        found["optimizer"] = lambda first: (fresh(first),) * copies
        state = jax.eval_shape(lambda key: fresh(task.init(key)), jax.random.key(0))
        sizes["train.keep_optimizer_state"] = copies * 4 * trees.parameters(state)
    if train.private:
        private = parts.names(task, train.private, "private")
        found["private"] = lambda first: parts.part_of(first, private)
        first = jax.eval_shape(task.init, jax.random.key(0))
        sizes["private parameters"] = 4 * trees.parameters(parts.part_of(first, private))
    if train.control:
        found["control"] = lambda first: jax.tree.map(jnp.zeros_like, first["params"])
        found["controlled"] = lambda first: jnp.int32(-1)  # the cluster in whose control variate it counts
        sizes["control variates"] = model_bytes(task)
    if context.faults.reliability.is_partial:
        found["work"] = lambda first: jnp.ones(())
    if context.faults.on_divergence == "drop_client":
        found["dropped"] = lambda first: jnp.zeros((), jnp.int32)
    if method.aggregate.exclude is not None:
        found["suspected"] = lambda first: jnp.zeros((), jnp.int32)
    if train.models == "all":
        k = method.group.slots(context)
        found["membership"] = lambda first: jnp.full(k, 1 / k, jnp.result_type(float))
    if not context.resources.states_on_host:
        advice = "set client_states: host, leave it out, or take fewer clients or a smaller model"
        clients, devices = context.population.clients, context.resources.devices
        refuse_too_large(", ".join(sizes), clients, sum(sizes.values()), advice, memories(devices))
    return found | kept_by_group(method, context)


def kept_by_group(method: Method, context: Context) -> KeptStates:
    """The states of clients that a method's group declares, checked.

    Raises:
        InputError: they are no functions by name, or one has the name of a state that clients use for something else.
    """
    what = f"group {method.group.name!r}: keeps"
    found = named(what, method.group.keeps)(method, context)
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InputError(f"{what}: expected a dict of functions by name, got {shown(found)}")
    for name, begin in found.items():
        if name in TAKEN:
            raise InputError(f"{what}: {name!r} is a state of jcfl's own; choose another name")
        if not callable(begin):
            expected = "a function of the first model, as in lambda first: jnp.zeros(3)"
            raise InputError(f"{what}: {name!r}: expected {expected}, got {shown(begin)}")
    return {name: begun(f"{what}: {name!r}", begin) for name, begin in found.items()}


def begun(what: str, begin: Callable[[Model], Any]) -> Callable[[Model], Any]:
    """The function that makes what a client keeps at first, which is checked when it is traced."""
    return lambda first: returned.first_state(named(what, begin)(first), what)
