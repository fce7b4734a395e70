"""StoCFL: clients described at an anchor, similar clusters merged."""

from typing import Annotated, Any, Literal

import jax
from pydantic import Field

from jcfl import factored, trees
from jcfl.algorithms.options import Lam, SharedUpdate, costs, own_average
from jcfl.errors import InputError
from jcfl.grouping import anchors, merging
from jcfl.grouping.similar import Settings, merge_similar
from jcfl.objective import proximal, shared
from jcfl.phases import composed
from jcfl.registry import register
from jcfl.setting import Setting
from jcfl.types import Algorithm, Task


@register("method", "stocfl")
def stocfl(
    setting: Setting,
    *,
    tau: Annotated[float, Field(ge=-1, description="merge at this cosine or above; above 1 never merges")] = 0.5,
    lam: Lam = 0.05,
    similarity: Annotated[Literal["plain", "noise_corrected"], Field(description="how a cosine is formed")] = "plain",
    merge: Annotated[Literal["greedy", "single_pass"], Field(description="how similar clusters unite")] = "greedy",
    start: Annotated[Literal["current", "initial", "nearest"], Field(description="a new cluster's model")] = "current",
    anchor: Annotated[dict[str, Any] | None, Field(description="another anchor model: {name, …}")] = None,
    anchor_steps: Annotated[int | None, Field(ge=1, description="Ψ from local steps, not a gradient")] = None,
    shared_update: SharedUpdate = "parallel",
    clustering_only: Annotated[bool, Field(description="group the clients and train nothing (S Fig. 3)")] = False,
    sketch: Annotated[
        int | None, Field(ge=16, description="Ψ folded to so many numbers, for many clients at a time")
    ] = None,
    capacity: Annotated[int | None, Field(ge=1, description="most clusters at a time")] = None,
) -> Algorithm:
    """Clients described by a gradient at a fixed anchor and merged by cosine; cluster models tied to a shared one.

    S Alg. 1 and eqs. 2-3. Ψ is computed when a client first takes part; a cluster's vector is the sum of Ψ over all its
    members seen so far; pairs with cosine ≥ τ unite, the most similar first. τ > 1 gives Ditto, τ = -1 one cluster:
    FedAvg for λ = 0.

    Deviations:
        Cluster vectors sum over all members seen so far (Alg. 1 line 9; the authors' code: this round's only). A
        cluster first seen starts at the current ω (the paper: at ω₀, `start="initial"`). `anchor_steps` and
        `shared_update="sequential"` are the authors' code. `similarity="noise_corrected"` and `sketch` are ours.
    """
    if setting.extras.added and not (isinstance(lam, int | float) and lam == 0):
        raise InputError(
            f"stocfl: cam adds the shared model, so a pull towards it has no meaning; set lam=0, got {lam}"
        )
    if shared_update == "sequential":
        own_average("stocfl with shared_update 'sequential'", setting)
    task, name = anchor_task(setting, anchor)
    if anchor_steps is not None and similarity == "noise_corrected":
        raise InputError("stocfl: similarity 'noise_corrected' takes gradients; leave anchor_steps out")
    describe = anchors.halves(task) if similarity == "noise_corrected" else anchors.gradient(task)
    if anchor_steps is not None:
        describe = anchors.displacement(task, setting.local, anchor_steps)
    describe = describe._replace(short=describe.short and in_coordinates(setting, task))
    if sketch is not None:
        describe = anchors.sketched(describe, sketch, jax.random.key(sketch))
    slots, tile = sizes(setting, task, tau, capacity, sketch)
    settings = Settings(
        describe=describe,
        tau=tau,
        merge={"greedy": merging.greedy, "single_pass": merging.single_pass}[merge],
        start=start,
        chunk=setting.chunk,
        tile=tile,
        budget=setting.room // 8,
        departures=setting.departures,
    )
    start_of = (lambda key, state: state.shared) if name is None else (lambda key, state: task.init(key))
    return composed(
        setting,
        merge_similar(settings, start_of),
        clusters=slots,
        terms=[proximal(shared, lam)],
        shared="trained",
        chained=shared_update == "sequential",
        train=not clustering_only,
        costs=costs(2, 2, 2),
    )


def anchor_task(setting: Setting, anchor: dict[str, Any] | None):
    """The anchor's own task and its name, or the run's task and None."""
    if anchor is None:
        return setting.task, None
    if setting.build is None or "name" not in anchor:
        raise InputError(f"anchor: expected {{name: a model, …}}, got {anchor!r}")
    return setting.build(**anchor), anchor["name"]


def in_coordinates(setting: Setting, task: Task) -> bool:
    """Whether Ψ are kept in coordinates: where that takes less memory, unless an engine was asked for."""
    if task.first is None or setting.engine != "auto":
        return setting.engine == "factored"
    n, d, h = factored.sizes(setting._replace(task=task))
    return n * (d + h) < d * h


def sizes(setting: Setting, anchor: Task, tau: Any, capacity: int | None, sketch: int | None) -> tuple[int, int]:
    """Cluster slots, and how many Ψ are held at a time.

    As many slots as clients if that fits an eighth of the round's memory; else what does, at least 64.
    """
    of = lambda task: trees.parameters(jax.eval_shape(task.init, jax.random.key(0))) * 4
    psi = of(anchor) if sketch is None else 4 * sketch
    slot = of(setting.task) + psi
    slots = capacity or min(setting.clients, max(64, setting.budget // 8 // slot))
    if isinstance(tau, int | float) and tau > 1 and slots < setting.clients:
        need = setting.clients * slot / 2**30
        raise InputError(
            f"stocfl: tau {tau} never merges and needs a model for each of {setting.clients} clients ({need:.1f} GiB), "
            f"but capacity is {slots}; raise capacity or lower tau to at most 1"
        )
    tiles = -(-setting.cohort * psi // max(1, setting.room // 4))  # Ψ is cheap next to training: rather twice than held
    return min(slots, setting.clients), -(-setting.cohort // tiles)
