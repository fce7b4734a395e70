"""A federation from a scenario's partition, with mixing, held-out clients, arrivals, departures and drift."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import jax
import numpy as np
from pydantic import Field

from jcfl import registry
from jcfl.data import scenarios as scenarios
from jcfl.data.dataset import Dataset, Examples, channelled, examples, redivided, whole_numbers
from jcfl.data.drift import with_drift
from jcfl.data.mixing import with_mixing
from jcfl.data.overlaps import tell_of_common_examples
from jcfl.data.partition import NOBODY, Draws, Least, Partition, packed
from jcfl.data.soundness import checked, sound
from jcfl.data.topping import topped_up
from jcfl.data.validation import with_validation
from jcfl.errors import InputError, refuse_beyond_memory, shown, unknown
from jcfl.types import NEVER, Federation, Ids, Split

VALIDATION, RESPLIT, DRIFT, MIXING = 6, 7, 8, 9
"""The random streams of validation examples, of a new split, of drift and of mixing, among those of a federation's
seed. The attackers' is before them."""

COUNTS = 24
"""Bytes of the counts of a client's examples of one class: to train on, to test on, and as they are predicted."""

Shares = Annotated[
    Mapping[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0, le=1)]],
    Field(description="{round: share of the clients}"),
]


@registry.register("federation", "options")
def federation(
    dataset: Dataset | Sequence[Dataset],
    scenario: str,
    /,
    *,
    seed: Annotated[
        int,
        Field(
            ge=0,
            lt=2**64,
            description="seed of all that the scenario draws at random; in a configuration, its `seed` by default",
        ),
    ] = 0,
    min_examples: Least = (10, 2),
    validation: Annotated[
        float, Field(ge=0, lt=1, description="share of each client's training examples that is kept for validation")
    ] = 0.0,
    mixing: Annotated[
        float, Field(ge=0, lt=0.5, description="share of each client's examples that go to a client of another group")
    ] = 0.0,
    held_out: Annotated[float, Field(ge=0, lt=1, description="share of clients that never train")] = 0.0,
    arrivals: Annotated[Shares, Field(description="{round: share of clients that arrive in this round}")] = {},  # noqa: B006
    departures: Annotated[Shares, Field(description="{round: share of clients that leave in this round}")] = {},  # noqa: B006
    drift: Annotated[
        Shares, Field(description="{round: share of clients that exchange their data with a client of another group}")
    ] = {},  # noqa: B006
    scale: Annotated[
        Literal["unit", "standard"], Field(description="pixels in [0, 1], or (pixel - 0.5) / 0.5")
    ] = "unit",
    resplit: Annotated[
        float | None,
        Field(gt=0, lt=1, description="share of test examples of every class, in a new split of the dataset"),
    ] = None,
    **options: Any,
) -> Federation:
    """The federation that a scenario makes of a dataset.

    Partition, topping up, mixing, held-out clients, arrivals, departures and drift each have their own random stream,
    so a change of one does not change the others. The same arguments give the same federation bit for bit.

    Args:
        dataset: the dataset, or several for a scenario that takes several (`hybrid`).
        scenario: the scenario's registered name.
        seed: the seed of all random streams, from 0 to 2**64 - 1.
        min_examples: the smallest number of (training, test) examples of a client; see `topped_up`. A client without
            test examples has weight 0 in a mean by size. It has no meaning with a scenario's `duplicates`.
        validation: the share of each client's training examples for validation, in [0, 1); see `with_validation`. It is
            taken last, so `min_examples` counts these examples too.
        mixing: the share of its examples that each client gives to a client of another true group, in [0, 0.5); see
            `with_mixing`. `min_examples` counts the examples before it.
        held_out: the share of clients that never train, drawn from all groups in proportion, in [0, 1).
        arrivals: by round (from 1), the share of clients that arrive in this round, in (0, 1]; all others take part
            from round 0 on. Held-out clients are drawn too, here and for departures.
        departures: by round (from 1), the share of clients that depart in this round, in (0, 1].
        drift: by round (from 1), the share of clients that exchange all their examples in pairs of two true groups, in
            (0, 1]; see `with_drift`.
        scale: `unit` for pixels in [0, 1]; `standard` for (pixel - 0.5) / 0.5 in every channel.
        resplit: training and test examples are combined and split again at random, with this share of every class for
            testing. By default the dataset's own split is used.
        **options: the scenario's own options, `clients` among them.

    Returns:
        The federation with leaves in NumPy, see `place`; shapes and dtypes are those of `jcfl.types.Federation`.

    Raises:
        InputError: an unknown option, a wrong value, or too little data for the request.
    """
    common = {"seed": seed, "min_examples": min_examples, "validation": validation, "resplit": resplit}
    common |= {"mixing": mixing, "held_out": held_out, "arrivals": arrivals, "departures": departures}
    common, own = parted(options | common | {"drift": drift, "scale": scale})
    datasets = [dataset] if isinstance(dataset, Dataset) else dataset
    if not isinstance(datasets, list | tuple) or not all(isinstance(one, Dataset) for one in datasets):
        raise InputError(f"expected a dataset or a list of them, got {shown(dataset)}")
    datasets = [shaped(one) for one in datasets]
    for one in datasets:
        tell_of_common_examples(one)
    return divided(datasets, scenario, common, own)


def parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that all scenarios have, checked, with defaults filled in; and the others."""
    known = {option.name: option for option in registry.parameters(federation)}
    common = {name: value for name, value in options.items() if name in known}
    own = {name: value for name, value in options.items() if name not in known}
    return registry.check("federation", known, common), own


def divided(datasets: Sequence[Dataset], scenario: str, common: dict[str, Any], given: dict[str, Any]) -> Federation:
    """The federation of datasets that `shaped` has checked.

    Args:
        datasets: one, or several for a scenario that takes several.
        scenario: the scenario's registered name.
        common: the options of all scenarios, as `parted` has them.
        given: the scenario's own options, which are checked here.

    Raises:
        InputError: as for `federation`.
    """
    make = registry.find("scenario", scenario)
    own = _own_options(scenario, make, given, common)
    classes = max((one.classes for one in datasets), default=1)
    clients = own.get("clients") or max((one.users for one in datasets), default=1)
    need = COUNTS * clients * classes
    refuse_beyond_memory(f"{clients} clients' counts of {classes} classes", need, "use fewer of either")
    if len(datasets) != 1 and not _takes_several(make):
        raise InputError(f"scenario {scenario!r} takes one dataset, got {len(datasets)}")
    streams = np.random.default_rng(common["seed"]).spawn(MIXING + 1)
    if common["resplit"]:
        datasets = [redivided(streams[RESPLIT], one, common["resplit"]) for one in datasets]
    made = sound(registry.made("scenario", scenario, streams[0], *datasets, **own), f"scenario {scenario!r}")
    name = f"{' and '.join(one.name for one in datasets)}, {scenario}"
    if isinstance(made, Draws):
        whole = assembled(made.x, made.y, made.groups, made.train, made.test, classes, name)
    else:
        whole_numbers(made.owner, "owner", name, (NOBODY, len(made.groups) - 1), "row {}".format)
        made = _owned(topped_up(streams[1], made, common["min_examples"]))
        whole = _from_partition(made, classes, name)
    whole = with_mixing(streams[MIXING], checked(whole), common["mixing"])
    whole = with_validation(streams[VALIDATION], whole, common["validation"], made.source)
    whole = with_drift(streams[DRIFT], _with_attendance(whole, streams[2:5], common), common["drift"])
    return _scaled(whole, common["scale"])


def place(federation: Federation) -> Federation:
    """The federation with its leaves on the default device.

    Args:
        federation: with leaves in NumPy or in JAX.

    Returns:
        The same federation with leaves in JAX; examples that stay on the host stay there.

    Raises:
        InputError: its arrays do not fit each other.
    """
    return jax.device_put(checked(federation))


def shaped(dataset: Dataset) -> Dataset:
    """The dataset with checked arrays, and a channel axis on grey images, which series are not."""
    axes = dataset.train.x.ndim
    if axes not in (2, 3, 4):
        raise InputError(
            f"{dataset.name}: expected images [n, h, w, c] or [n, h, w], series [n, t, c] or features [n, d], got "
            f"{axes} axes"
        )
    train, test = (
        _checked(part, dataset.classes, f"{dataset.name}, {half}", dataset.series)
        for part, half in ((dataset.train, "train"), (dataset.test, "test"))
    )
    if not len(test):  # then its arrays may have any shape
        test = replace(test, x=train.x[:0], y=train.y[:0])
    return replace(dataset, train=train, test=test)


def _checked(part: Examples, classes: int, where: str, series: bool) -> Examples:
    """The examples, checked unless there are none, because the scenario `natural` needs no test set."""
    x = channelled(part.x, series)
    return examples(x, part.y, part.user, classes=classes, where=where) if len(part) else replace(part, x=x)


def _own_options(scenario: str, make: Callable[..., Partition], given: dict[str, Any], common: dict[str, Any]) -> Any:
    """The scenario's options, checked. Those that are passed on are the federation's."""
    registry.refuse_shared("scenario", scenario, make)
    own = {parameter.name for parameter in registry.parameters(make)}
    for key in given:
        if key not in own:
            raise unknown(f"option of scenario {scenario!r}:", key, own | set(common))
    asked = {name: common[name] for name in registry.PASSED_ON["scenario"] if name in own}
    return registry.options("scenario", scenario, given | asked)


def _takes_several(make: Callable[..., Partition]) -> bool:
    return any(one.kind is one.VAR_POSITIONAL for one in inspect.signature(make).parameters.values())


def _owned(partition: Partition) -> Partition:
    """The partition without the examples that have no owner."""
    owned = partition.owner >= 0
    if owned.all():
        return partition
    x, y, trains, owner = (field[owned] for field in partition[:4])
    source = partition.source[owned[: len(partition.source)]]
    return partition._replace(x=x, y=y, trains=trains, owner=owner, source=source)


def _from_partition(partition: Partition, classes: int, name: str) -> Federation:
    """The federation of a partition."""
    clients = len(partition.groups)
    train, test = (_split(partition.owner, half, clients) for half in (partition.trains, ~partition.trains))
    whole = assembled(partition.x, partition.y, partition.groups, train, test, classes, name)
    ids: Any = Ids(partition.ids)
    return replace(whole, ids=ids)


def assembled(
    x: np.ndarray, y: np.ndarray, groups: np.ndarray, train: Split, test: Split, classes: int, name: str
) -> Federation:
    """A federation in which every client trains, from the first round to the last.

    Args:
        x: the pool of examples. [N, ...]
        y: their classes. [N]
        groups: the true group of every client, -1 where it is not known. [m]
    """
    clients = len(groups)
    leaves: dict[str, Any] = {
        "x": x,
        "y": y.astype(np.int32),
        "groups": groups.astype(np.int32),
        "held_out": np.zeros(clients, bool),
        "arrive": np.zeros(clients, np.int32),
        "depart": np.full(clients, NEVER, np.int32),
    }
    return Federation(**leaves, train=train, test=test, classes=classes, name=name)


def _split(owner: np.ndarray, half: np.ndarray, clients: int) -> Split:
    rows = np.flatnonzero(half)
    rows = rows[np.argsort(owner[rows], kind="stable")]
    return packed(rows, np.bincount(owner[rows], minlength=clients))


def _with_attendance(
    federation: Federation, streams: Sequence[np.random.Generator], common: dict[str, Any]
) -> Federation:
    """The federation after held-out clients, arrivals and departures were drawn."""
    holding, coming, leaving = streams
    groups, held_out, arrive, depart = (
        np.array(leaf) for leaf in (federation.groups, federation.held_out, federation.arrive, federation.depart)
    )
    if common["held_out"]:
        held_out = drawn_clients(holding, groups, ~held_out, common["held_out"], "held_out")
    if held_out.all():
        raise InputError(f"held_out: {common['held_out']:g} of {len(groups)} clients leaves none to train")
    for moment, share in sorted(common["arrivals"].items()):
        arrive[drawn_clients(coming, groups, arrive == 0, share, f"arrivals in round {moment}")] = moment
    for moment, share in sorted(common["departures"].items()):
        there = (depart == NEVER) & (arrive < moment)
        depart[drawn_clients(leaving, groups, there, share, f"departures in round {moment}")] = moment
    leaves: dict[str, Any] = {"held_out": held_out, "arrive": arrive, "depart": depart}
    return replace(federation, **leaves)


def drawn_clients(
    rng: np.random.Generator, groups: np.ndarray, among: np.ndarray, share: float, what: str
) -> np.ndarray:
    """A share of all clients, drawn among some of them, and from the groups in proportion. [m] bool"""
    number = round(share * len(groups))
    left = np.flatnonzero(among)
    if not 1 <= number <= len(left):
        raise InputError(f"{what}: {share:g} of {len(groups)} clients is {number}, and {len(left)} can be chosen")
    order = rng.permutation(left)
    order = order[np.argsort(groups[order], kind="stable")]
    places = np.floor((np.arange(number) + rng.random()) * len(order) / number).astype(int)
    drawn = np.zeros(len(groups), bool)
    drawn[order[np.minimum(places, len(order) - 1)]] = True
    return drawn


def _scaled(federation: Federation, scale: str) -> Federation:
    if scale == "unit":
        return federation
    if federation.x.ndim != 4:
        raise InputError("scale 'standard' is for images; features [n, d] are used as they are: expected 'unit'")
    half = (0.5,) * federation.x.shape[-1]
    return replace(federation, mean=half, std=half)
