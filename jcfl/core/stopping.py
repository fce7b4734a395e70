"""When training ends before the last round: the stop conditions of methods that repeat rounds until they converge."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from pydantic import Field

from jcfl import metrics, trees
from jcfl.core import returned
from jcfl.core.method import Piece
from jcfl.core.phases import Votes, own_state
from jcfl.errors import InputError, lacks, named
from jcfl.registry import register
from jcfl.trees.rows import HostRows
from jcfl.types import NEVER, Algorithm, Array, Federation, Key, State


@dataclass(frozen=True, kw_only=True)
class Stop(Piece):
    """When training ends; a subclass says in which rounds nothing changes any more.

    Attributes:
        rounds: training ends after so many rounds in a row without a change; 0: after the run's last round.
    """

    name: ClassVar[str] = "none"
    rounds: int = 0

    def is_unchanged(self, before: State, after: State) -> Array:
        """Whether a round of the method's own changed nothing that counts. [] bool

        Args:
            before: the state before the round.
            after: the state after it.
        """
        raise lacks(self, "is_unchanged")


@dataclass(frozen=True, kw_only=True)
class Converged(Stop):
    """Clients stay in their clusters, and the models no longer change much.

    Attributes:
        moves: the largest share of clients that may change their cluster in a round.
        change: the largest relative change of the models' parameters in a round, ‖Θ_t − Θ_{t−1}‖ / ‖Θ_{t−1}‖.
    """

    name: ClassVar[str] = "converged"
    rounds: int = 5
    moves: float = 0.0
    change: float = 0.001

    def is_unchanged(self, before: State, after: State) -> Array:
        """Whether few clients moved and the parameters of the models changed little. [] bool

        A slot counts if clients are in it, or if its model changed. Running statistics and counters do not count.
        """
        old, new = ({"clusters": one.clusters["params"], "shared": one.shared["params"]} for one in (before, after))
        change = jax.tree.map(jnp.subtract, new, old)
        gaps, lengths = trees.row_squares(change["clusters"]), trees.row_squares(old["clusters"])  # [k]
        used = (metrics.sizes(after.labels, gaps.size) > 0) | (gaps > 0)
        squared = lambda rows, rest: jnp.where(used, rows, 0.0).sum() + trees.row_squares(trees.stack(rest, 1))[0]
        near = squared(gaps, change["shared"]) <= self.change**2 * squared(lengths, old["shared"])
        moved = after.labels != before.labels
        return near & (moved.sum() <= trees.number_of(self.moves, moved.size))  # a mean would be rounded


class Stopping(struct.PyTreeNode):
    """What a stop condition keeps between rounds."""

    unchanged: Array  # [] int32, the last rounds in a row without a change
    round: Array  # [] int32, the round at which training ended; `NEVER` before
    trained: Array | tuple[()] = ()  # [] bool, while a round runs: whether an upload was used in it


def with_stop(algorithm: Algorithm, rule: Stop) -> Algorithm:
    """The algorithm with a stop condition. After the rule has ended training, a round changes only the count of rounds.

    Rounds before the method's own, such as a warm-up, do not count as unchanged, nor do rounds before the last client
    has arrived. A round in which no client's upload was used says nothing, so the count stays as it was. Evaluations
    after the end are those of the last round trained. Each of several seeds ends by itself. Runs that vote together end
    together: a round counts as unchanged if it changed nothing in any of them.

    Raises:
        InputError: when it is traced, if clients' data drift, or if the models are on the host, where no program sees
            all of them.
    """
    if not rule.rounds:
        return algorithm
    kept = lambda unchanged, round: Stopping(jnp.asarray(unchanged, jnp.int32), jnp.asarray(round, jnp.int32))

    def init(key: Key, federation: Federation) -> State:
        state = algorithm.init(key, federation)
        if not isinstance(federation.drift, tuple):
            raise InputError("stop: clients' data change between rounds, so training must go on; leave stop out")
        if isinstance(state.clusters, HostRows):
            raise InputError(f"stop: {rule.name} compares the models of two rounds; set client_states: device")
        return state.replace(stopping=kept(0, NEVER))

    def step(state: State, federation: Federation) -> State:
        return jax.lax.cond(state.round >= state.ended, wait, train, state, federation)

    def train(state: State, federation: Federation) -> State:
        # A round that says nothing of its uploads, as those before the method's own, counts as one that has used some.
        after = algorithm.step(state.replace(stopping=state.stopping.replace(trained=jnp.array(True))), federation)
        to_come = (federation.arrive > state.round) & (federation.arrive < NEVER) & ~federation.held_out
        unchanged = is_unchanged(state, after) & ~to_come.any()
        count = jnp.where(unchanged, state.stopping.unchanged + 1, 0)
        count = jnp.where(after.stopping.trained, count, state.stopping.unchanged)
        return after.replace(stopping=kept(count, jnp.where(count >= rule.rounds, after.round, NEVER)))

    def is_unchanged(before: State, after: State) -> Array:
        """Whether a round was the method's own and changed nothing, in this run and those that vote with it. [] bool"""
        if isinstance(before.memory, Votes):
            others = jax.vmap(is_unchanged)(before.memory.others, after.memory.others)  # [v]
            return is_unchanged(own_state(before), own_state(after)) & others.all()
        name = f"stop {rule.name!r}"
        found = returned.array(named(name, rule.is_unchanged)(before, after), (), [returned.LOGICAL], name)
        return (before.clock >= 0) & found

    def wait(state: State, federation: Federation) -> State:
        return state.replace(round=state.round + 1)

    def after_training(state: State) -> State:
        return state.replace(round=jnp.minimum(state.round, state.ended))

    def predict(state: State, federation: Federation) -> tuple[Array, Array]:
        return algorithm.predict(after_training(state), federation)

    def evaluate(state: State, federation: Federation) -> dict[str, Any]:
        state = after_training(state)
        return algorithm.evaluate(state, federation) | {"trained_rounds": state.round}

    return algorithm._replace(init=init, step=step, predict=predict, evaluate=evaluate)


@register("stop", "none")
def none() -> Stop:
    """Training ends after the last round."""
    return Stop()


@register("stop", "converged")
def converged(
    *,
    rounds: Annotated[int, Field(ge=1, description="rounds in a row in which clusters and models stay")] = 5,
    moves: Annotated[
        float, Field(ge=0, le=1, description="the largest share of clients that may change their cluster in a round")
    ] = 0.0,
    change: Annotated[
        float, Field(ge=0, description="the largest relative change of the models in a round, by their norms")
    ] = 0.001,
) -> Converged:
    """Training ends when clients stay in their clusters and the models hardly change."""
    return Converged(rounds=rounds, moves=moves, change=change)
