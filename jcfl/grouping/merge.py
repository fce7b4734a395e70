"""The answer "merge": clusters are united while their vectors are similar, as clients arrive or all at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
from pydantic import Field

from jcfl import trees
from jcfl.core import faults, server
from jcfl.core.context import Context, model_bytes
from jcfl.core.memory import memories
from jcfl.core.method import Method
from jcfl.errors import InputError
from jcfl.fast import factored
from jcfl.grouping import merging
from jcfl.grouping.batch import Clustering, Labels
from jcfl.grouping.compare import Cosine, Distances
from jcfl.grouping.describe import Gradient
from jcfl.grouping.labels import numbered
from jcfl.grouping.losses import expect
from jcfl.grouping.psi import Settings
from jcfl.grouping.similar import merge_similar
from jcfl.grouping.when import Arrival
from jcfl.registry import register
from jcfl.types import Array, Grouping, Key, State

MERGES = {"greedy": merging.greedy, "single_pass": merging.single_pass}


@register("group", "merge")
@dataclass(frozen=True, kw_only=True)
class Merge(Clustering):
    """Clusters are merged while the cosine of their sums is at least τ; their number is found (Zeng et al. 2023)."""

    name: ClassVar[str] = "merge"
    covers_data: ClassVar[bool] = True
    tau: Annotated[
        float,
        Field(
            ge=-1,
            description="merge at this cosine or above; above 1 never merges",
            json_schema_extra={"auto": "tau", "merges_more": "lower"},
        ),
    ] = 0.5
    order: Annotated[
        Literal["greedy", "single_pass"],
        Field(description="the most similar pair first, or all similar pairs once in a round"),
    ] = "greedy"
    start: Annotated[
        Literal["current", "initial", "nearest"],
        Field(description="first model of a new cluster: ω, the initial one, or a copy of the most similar cluster's"),
    ] = "current"
    capacity: Annotated[int | None, Field(ge=1, description="largest number of clusters at a time")] = None

    def slots(self, context: Context) -> int:
        """One slot per client if that fits an eighth of the round's memory, else as many as fit, and at least 64.

        Raises:
            InputError: τ never merges, and there are fewer slots than clients.
        """
        m, slot = context.population.clients, 2 * model_bytes(context.task)
        budget = context.resources.budget * memories(context.resources.devices)
        slots = self.capacity or min(m, max(64, budget // 8 // slot))
        if isinstance(self.tau, int | float) and self.tau > 1 and slots < m:
            raise InputError(
                f"merge: tau {self.tau} never merges and needs a model for each of {m} clients "
                f"({m * slot / 2**30:.1f} GiB), but capacity is {slots}; raise capacity or lower tau to at most 1"
            )
        return min(slots, m)

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Merging on arrival, which never holds all descriptions, or of all clients at a time."""
        if not isinstance(method.when, Arrival):
            return super().grouping(method, context)
        expect(method, "describe", (Gradient,), "describes a client once, on arrival, by a gradient at an anchor")
        expect(method, "compare", (Cosine,), "compares sums of vectors by their cosine")
        refuse_own_cosine(method, ("metric", "distance", "prepared"))
        assert isinstance(method.describe, Gradient)
        assert isinstance(method.compare, Cosine)
        description = method.describe.description(context, method.compare.corrected)
        task = method.describe.task(context)
        whole = not description.has_coordinates or context.privacy.is_on  # noise has no coordinates
        in_coordinates = not whole and factored.takes_less_memory(task, context)
        settings = Settings(
            describe=description._replace(has_coordinates=in_coordinates),
            tau=self.tau,
            merge=MERGES[self.order],
            start=self.start,
            chunk=context.resources.chunk,
            tile=self.tile(method.describe, task, context),
            budget=context.resources.room // 8,
            departures=context.population.departures or method.aggregate.exclude is not None,
            exclude=method.aggregate.exclude,
            renew=method.when.renew,
            follow=partial(server.merged, method=method),
            privacy=context.privacy,
            every_round=self.order == "single_pass",
            goes_on=faults.leaves_out(context.faults, method.aggregate.exclude),
            weigh=server.counting(method),
        )
        if context.resources.devices > 1:  # each device holds only a part of every model, which it averages at once
            settings = settings._replace(parts=1)
        begin: Callable[[Key, State], Any] = lambda key, state: method.describe.model(context, key, state)  # pyright: ignore
        return merge_similar(settings, begin)

    def tile(self, describe: Gradient, task: Any, context: Context) -> int:
        """How many descriptions are held at a time; computing others again is cheap compared with training."""
        cohort = context.population.cohort
        psi = model_bytes(task) if describe.sketch is None else 4 * describe.sketch
        return -(-cohort // -(-cohort * psi // max(1, context.resources.room // 4)))

    def check(self, method: Method, context: Context) -> None:
        """Refuse what every clustering refuses, and comparisons other than the cosine."""
        super().check(method, context)
        expect(method, "compare", (Cosine,), "unites clusters by the cosine of sums of vectors")
        refuse_own_cosine(method, ("metric", "distance"))
        if self.start != "current":
            raise InputError(
                f"{method.name}: group.start says how the model of a client that arrives begins; set "
                "method.when=arrival, or leave it out"
            )

    def merged(self, gram: Array, alive: Array) -> merging.Merging:
        """The last state of greedy merging; see `merging.greedy`. It says how many pairs were looked at."""
        return merging.merged(gram, alive, self.tau)

    def labels(self, method: Method, context: Context, compare: Distances) -> Labels:
        """Labels by merging of all descriptions, which are scaled to length one."""

        def fitted(key, points: Array, weights: Array, present: Array, centres: Array | None) -> Array:
            flat = points.reshape(points.shape[0], -1)
            unit = flat * merging.inverse_norm((flat**2).sum(1))[:, None]
            gram = jnp.matmul(unit, unit.T, precision=trees.EXACT)
            target, _ = MERGES[self.order](gram, present, self.tau)
            return numbered(target, present)

        return fitted


def refuse_own_cosine(method: Method, unused: tuple[str, ...]) -> None:
    """Refuse a class derived from `Cosine` with functions of its own that merging would not call.

    Args:
        unused: the functions that merging does not call, because it computes cosines from inner products.

    Raises:
        InputError: the class has one of these functions of its own.
    """
    own = [name for name in unused if getattr(type(method.compare), name) is not getattr(Cosine, name)]
    if own:
        raise InputError(
            f"{method.name}: group {method.group.name!r} computes cosines from inner products, so {own[0]} of compare "
            f"{method.compare.name!r} would have no effect; set method.group=linkage, which calls it, or "
            "method.compare=cosine"
        )
