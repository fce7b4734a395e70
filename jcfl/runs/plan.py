"""From a configuration, and objects that a user passed in Python, to a run that is built and checked."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jcfl import data, models, registry
from jcfl.core import memory, onhost, returned
from jcfl.core.compile import compile
from jcfl.core.context import Context
from jcfl.core.context import context as make_context
from jcfl.core.method import QUESTIONS
from jcfl.core.method import Method as Value
from jcfl.core.stopping import Stop, with_stop
from jcfl.data import soundness
from jcfl.errors import InputError, Notice, TooLarge, named
from jcfl.fast.factored import Factored
from jcfl.methods import addons
from jcfl.runs import accounting, automatic, devices, fitted, hosts, schedules
from jcfl.runs.answers import refuse_replaced, with_answers, without
from jcfl.runs.config import Config, checked, unchecked, with_open_seed
from jcfl.runs.devices import bytes_of
from jcfl.runs.environment import made_by, refuse_settings
from jcfl.runs.faults import attacked, faults_of, without_clients, without_effect
from jcfl.runs.needs import Needs, StateBytes, needs, refuse_beyond_device, refuse_long_history
from jcfl.runs.objects import (
    Objects,
    checked_method,
    checked_trainer,
    config_of_federation,
    made_by_function,
    objects_and_settings,
    refuse_unused,
    registered_name,
)
from jcfl.runs.provenance import common, fingerprint
from jcfl.runs.sections import Method, Piece, Trainer, without_given
from jcfl.types import Algorithm, Federation, Task

SMALL = 2**26
"""The most bytes of state with which several seeds run side by side, unless the configuration says otherwise."""

PieceKind = TypeVar("PieceKind", bound=Piece)

LEAST = 2**20
"""After memory has run out, a run is not tried again with fewer bytes than this."""


class Plan(NamedTuple):
    """A run that is built, but not trained."""

    config: Config  # with the values that depend on this machine
    federation: Federation  # on the device
    context: Context
    algorithms: dict[str, Algorithm]  # by title, the main one first
    needs: Needs
    objects: Objects = Objects()  # those that the user passed in Python
    chunk_is_free: bool = True  # whether the configuration leaves open how many clients train at a time


def config_and_objects(what: Any, given: dict[str, Any]) -> tuple[Config, Objects]:
    """The checked configuration that `what` and further settings describe, and the objects among them.

    Args:
        what: a federation or a configuration, as `jcfl.run` takes them.
        given: keys of a configuration, which replace those of `what`.

    Raises:
        InputError: an unknown key, name or option, or a value out of bounds.
    """
    objects, base = Objects(), {}
    if isinstance(what, Federation):
        objects = objects._replace(federation=soundness.checked(what))
        base = config_of_federation(what)
    elif isinstance(what, Config):
        base = what.model_dump()
    else:
        base = unchecked(what)
    base = with_open_seed(base) if "seed" in given else base
    more, settings = objects_and_settings(without_given({**base, **given}, ([key] for key in given)))
    config, objects = checked(settings), more._replace(federation=objects.federation)
    refuse_unused(config, objects)
    return config, objects


def planned(
    config: Config,
    objects: Objects = Objects(),  # noqa: B008
    lanes: int | None = None,
    resumes: bool = False,
) -> Plan:
    """The plan of a run: its federation, context and algorithms, checked.

    Args:
        lanes: how many runs will share the memory; by default the number of seeds that run side by side.
        resumes: whether an earlier process has begun the run, so that its states keep their shapes.

    Raises:
        InputError: data is missing or corrupt, the federation cannot be made, options exclude each other, or several
            hosts were given different configurations, files or versions.
    """
    config = fitted.reopened(config, fitted.STATES if resumes else ())
    plan = settled(config, objects, lanes) if not automatic.is_open(config) else with_decisions(config, objects, lanes)
    plan = plan._replace(config=fitted.noted(plan.config, config))
    methods = {title: one.method for title, one in plan.algorithms.items()}
    idle = without_clients(plan.federation, plan.config.rounds)
    for line in (*without_effect(plan.config, plan.context.faults, methods), *idle):
        warnings.warn(line, Notice, stacklevel=2)
    return plan


def with_decisions(config: Config, objects: Objects, lanes: int | None) -> Plan:
    """The plan of a configuration with options that are `auto`; see `planned`."""
    federation = objects.federation if objects.federation is not None else federation_of(config)
    made = objects._replace(federation=federation)
    checked = settled(automatic.with_stand_ins(config), made, lanes)  # what cannot run is refused before anything is
    if checked.context.privacy.is_on:
        raise InputError("privacy: auto uses gradients without noise; give a value instead of auto")
    trained = attacked(federation, checked.context.faults.attack, config)  # attackers may describe other data
    config = automatic.decided(config, trained, checked.context.task)
    return settled(config, made, lanes)._replace(objects=objects)


def settled(config: Config, objects: Objects = Objects(), lanes: int | None = None) -> Plan:  # noqa: B008
    """The plan of a configuration that leaves nothing open; see `planned`."""
    refuse_settings()
    if hosts.several():
        hosts.agree(common(config))
    several = fitted.devices_of(config)
    federation = objects.federation if objects.federation is not None else federation_of(config)
    refuse_long_history(config, len(federation.groups))
    faults = faults_of(config)
    federation = attacked(federation, faults.attack, config)
    if hosts.several():
        hosts.agree({"the fingerprint of the clients' data": fingerprint(federation)[:12]})
    shape, classes = shapes(federation)
    build = lambda name, /, **options: models.build(name, shape, classes, **options)
    task = task_of(config, objects, build, shape, classes)
    share = lanes or (config.seeds if config.seeds_in_one is not False else 1)
    room = int(devices.over_hosts(memory.memory_budget(), np.min))
    context_of = lambda share: make_context(
        federation,
        task,
        trainer(schedules.at_most(config.train), objects),
        config.participation,
        chunk=config.chunk,
        budget=config.budget or max(1, room // share),
        room=fitted.room_of(config),
        build=build,
        engine=config.engine,
        engines=(Factored(),),
        devices=several,
        states_on_host=config.client_states == "host",
        faults=faults,
        privacy=registry.made("privacy", config.privacy.name, **config.privacy.options),
        tests_shared=config.evaluate_shared,
        measures_quality=config.evaluate_quality,
        models_at=config.compare_models,
    )
    context = context_of(share)
    accounting.refuse_without_accountant(context)
    plan = measured(config, federation, context, objects)
    if lanes is None and share > 1 and not plan.config.seeds_in_one:  # one seed after another: each has all the memory
        config = config.model_copy(update={"seeds_in_one": False})
        plan = measured(config, federation, context_of(1), objects)
    federation = plan.federation
    if plan.needs.place == "host":
        federation = devices.with_examples_on_host(federation)
    return plan._replace(federation=devices.on_devices(federation, several))


def measured(config: Config, federation: Federation, context: Context, objects: Objects) -> Plan:
    """The plan of a run, with its clients' states on the host if only there they fit and `config` leaves it open.

    Raises:
        TooLarge: the run does not fit the device.
        InputError: a method cannot be had so.
    """
    on_host = context.resources.states_on_host
    try:
        algorithms = algorithms_of(config, context, objects)
        sizes = [state_bytes(item, federation, context.resources.devices) for item in algorithms.values()]
        if on_host and config.seeds_in_one:
            raise InputError("client_states: host keeps one run's states; set seeds_in_one: false")
        if config.seeds_in_one is None:
            small = max(size.whole for size in sizes) * config.seeds <= SMALL and not on_host
            config = config.model_copy(update={"seeds_in_one": config.seeds > 1 and small})
        methods = [item.method for item in algorithms.values()]
        trained = [method.train.steps if method else None for method in methods if not method or method.train.active]
        need = needs(config, federation, context, sizes, trained)
        refuse_beyond_device(need, federation)
    except TooLarge as too_large:
        if on_host or config.client_states is not None:
            raise
        plan = with_states_on_host(config, federation, context, objects)
        if plan is None:
            raise too_large from None
        return plan
    machine = {
        "examples": need.place,
        "client_states": "host" if on_host else config.client_states,  # which may stay open: programs may be too large
        "chunk": context.resources.chunk,
        "budget": context.resources.budget,
        "made_by": made_by(config.made_by),
    }
    free = config.chunk is None
    return Plan(config.model_copy(update=machine), federation, context, algorithms, need, objects, free)


def with_states_on_host(config: Config, federation: Federation, context: Context, objects: Objects) -> Plan | None:
    """The plan of a run with its clients' states on the host; None if they fit no better or cannot be there."""
    context = context._replace(resources=context.resources._replace(states_on_host=True))
    try:
        plan = measured(config, federation, context, objects)
    except InputError:
        return None
    return plan if plan.needs.rows else None


def smaller(plan: Plan) -> Plan | None:
    """The plan of a run that takes less memory; None if it cannot be made smaller.

    Its clients' states are on the host where they take more than a round may, and else half as many clients train at a
    time.
    """
    resources = plan.context.resources
    if plan.config.client_states is None and plan.needs.states > resources.budget:
        found = with_states_on_host(plan.config, plan.federation, plan.context, plan.objects)
        if found is not None:
            return found._replace(chunk_is_free=plan.chunk_is_free)
    if resources.chunk == 1 and resources.room < LEAST:
        return None
    resources = resources._replace(chunk=-(-resources.chunk // 2), room=resources.room // 2, tile=None)
    context = plan.context._replace(resources=resources)
    algorithms = algorithms_of(plan.config, context, plan.objects)
    tuned = plan.config.tuned and {
        title: choice.model_copy(update={"chunk": None, "tile": None}) for title, choice in plan.config.tuned.items()
    }
    noted = plan.config.fitted and plan.config.fitted.model_copy(update={"room": resources.room})
    config = plan.config.model_copy(update={"chunk": resources.chunk, "tuned": tuned, "fitted": noted})
    return plan._replace(config=config, context=context, algorithms=algorithms)


def federation_of(config: Config) -> Federation:
    """The federation that a configuration describes."""
    pieces = config.data if isinstance(config.data, tuple) else (config.data,)
    datasets = [data.load(registered_name(piece, "data"), config.data_dir, **piece.options) for piece in pieces]
    name = registered_name(config.scenario, "scenario")
    make = registry.find("federation", "options")
    return make(datasets[0] if len(datasets) == 1 else datasets, name, **config.scenario.options)


def shapes(federation: Federation) -> tuple[tuple[int, ...], int]:
    """The shape of one example, and the number of classes."""
    return federation.x.shape[1:], federation.classes


def task_of(config: Config, objects: Objects, build: Callable[..., Task], shape, classes: int) -> Task:
    """The task of a configuration's model, or of the model that the user passed in Python."""
    if objects.model is None:
        return build(registered_name(config.model, "model"), **config.model.options)
    if isinstance(objects.model, Task):
        return models.fitting(objects.model, shape, classes)
    return models.task(objects.model, shape, classes)


def algorithm(method: Method, context: Context, objects: Objects) -> Algorithm:
    """The algorithm that a method's name, options, answers and add-ons describe.

    A registered function, or the user's object in its place, is a Method, or a function of the context that returns a
    Method or an Algorithm.

    Raises:
        InputError: answers or add-ons are given for an Algorithm, which cannot be changed.
    """
    if method.is_placeholder and objects.method is not None:
        found = objects.method
    else:
        found = registry.made("method", registered_name(method, "method"), **without(method.options, QUESTIONS))
    if not isinstance(found, Value):
        found = made_by_function(found, context)
    if isinstance(found, Value):
        whole = checked_method(with_answers(checked_method(found), method.options))
        return compiled_with_addons(whole, [dict(addon) for addon in method.addons], context)
    if context.privacy.is_on:
        raise InputError(f"privacy: method {method.name!r} is no Method with answers, so what it sends is not known")
    changed = [*(q for q in QUESTIONS if method.options.get(q) is not None), *(addon.name for addon in method.addons)]
    if changed:
        raise InputError(f"method {method.name!r} is no Method with answers, so {changed[0]!r} cannot change it")
    return found


def compiled_with_addons(method: Value, extras: Sequence[Mapping[str, Any]], context: Context) -> Algorithm:
    """The algorithm of a method with its add-ons, each `{name, options…}` with its options checked.

    Raises:
        InputError: two answers have no meaning together; or an add-on has none for the method, and those that the
            method takes are named.
    """
    try:
        return compile(addons.extended(method, extras), context)
    except InputError as error:
        if not takes(method, [], context):  # no add-on is at fault
            raise
        taken = [name for name in registry.names("addon") if takes(method, [{"name": name}], context)]
        if {addon["name"] for addon in extras} <= {*taken}:
            raise
        raise InputError(f"{error}; as it is, {method.name} takes {', '.join(taken) or 'no add-on'}") from None


def takes(method: Value, extras: Sequence[Mapping[str, Any]], context: Context) -> bool:
    """Whether a method with these add-ons compiles."""
    try:
        compile(addons.extended(method, extras), context)
    except Exception:  # an add-on of a user's may have an option that is required, or raise anything
        return False
    return True


def trainer(train: Trainer, objects: Objects) -> Any:
    """The local trainer that a section describes, or that the user passed in Python."""
    found = objects.train
    if found is None:
        found = registry.made("train", registered_name(train, "train"), **train.options)
    return checked_trainer(found)


def algorithm_by_options(
    config: Config, context: Context, objects: Objects
) -> Callable[[Mapping[str, Any]], Algorithm]:
    """The main method's algorithm as a function of values of options, by dotted name.

    JAX can trace this function: it checks nothing, so a value may be an array. Options with values by round change as
    the algorithm's rounds go on.
    """
    tables = schedules.tables_of(config.method, config.train)

    def make(scalars: Mapping[str, Any]) -> Algorithm:
        method, train = config.method, config.train
        for name, value in scalars.items():
            section, *path = name.split(".")
            method = method if section == "train" else with_option(method, path, value)
            train = with_option(train, path, value) if section == "train" else train
        trained = any(name.startswith("train.") for name in scalars)
        local = trainer(train, objects) if trained else context.trainer
        return algorithm(method, context._replace(trainer=local), objects)

    whole = (lambda scalars: schedules.scheduled(lambda now: make({**scalars, **now}), tables)) if tables else make
    found = registry.made("stop", config.stop.name, **config.stop.options)
    rule = returned.piece(found, Stop, f"stop {config.stop.name!r}")
    method = f"method {config.method.title!r}"
    return named(method, lambda scalars: named_in(method, with_stop(whole(scalars), rule)))


def named_in(method: str, algorithm: Algorithm) -> Algorithm:
    """The algorithm; an exception that one of its functions raises names the method."""
    parts = {part: getattr(algorithm, part) for part in ("init", "step", "predict", "evaluate")}
    return algorithm._replace(**{part: named(method, function) for part, function in parts.items()})


def with_option(piece: PieceKind, path: Sequence[str], value: Any) -> PieceKind:
    """A piece with one option's value replaced; `addons.0.mu` is an option of its first add-on."""
    if len(path) == 1:
        return piece.model_copy(update={path[0]: value})
    if path[0] in QUESTIONS:
        return piece.model_copy(update={path[0]: {**dict(piece.options[path[0]]), path[1]: value}})
    addons = list(getattr(piece, path[0]))
    addons[int(path[1])] = with_option(addons[int(path[1])], path[2:], value)
    return piece.model_copy(update={path[0]: tuple(addons)})


def algorithms_of(config: Config, context: Context, objects: Objects) -> dict[str, Algorithm]:
    """The algorithms of a configuration's methods, by title."""
    for method in config.methods.values():
        refuse_replaced(method)
    alone = {title: config.model_copy(update={"method": method}) for title, method in config.methods.items()}
    return {
        title: algorithm_by_options(one, context, objects.of_method(place))({})
        for place, (title, one) in enumerate(alone.items())
    }


def state_bytes(algorithm: Algorithm, federation: Federation, count: int = 1) -> StateBytes:
    """How many bytes an algorithm's state takes where."""
    state = jax.eval_shape(algorithm.init, jax.random.key(0), federation)
    return StateBytes(bytes_of(state), onhost.row_bytes(state), devices.bytes_on_device(state, count))
