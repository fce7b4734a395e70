"""A run with everything built and checked, and nothing trained: what a configuration, or a user's objects, describe."""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jcfl import addons, data, devices, engine, registry
from jcfl.config import GIVEN, Config, Method, Piece, Trainer, checked, written
from jcfl.errors import InputError
from jcfl.setting import Setting
from jcfl.setting import setting as make_setting
from jcfl.types import Algorithm, Federation, Task

SMALL = 2**26
"""Bytes of state up to which several seeds run side by side, unless told otherwise."""

PieceKind = TypeVar("PieceKind", bound=Piece)

LEAST = 2**20
"""Bytes to work in below which it is no use to try with less."""

PACKAGES = ("jcfl", "jax", "jaxlib", "flax", "optax", "numpy")


class Objects(NamedTuple):
    """What a user handed over in Python, in place of a name."""

    federation: Federation | None = None
    method: Callable[..., Algorithm] | None = None
    model: Any = None  # a Task or a Flax module
    train: Any = None  # as `jcfl.local.Local`


class Plan(NamedTuple):
    """A run with everything built and nothing trained."""

    config: Config  # with what depends on this machine spelt out
    federation: Federation  # on the device
    setting: Setting
    algorithms: dict[str, Algorithm]  # by title, the main one first
    objects: Objects = Objects()  # those that the configuration has no name for


def described(what: Any, given: dict[str, Any]) -> tuple[Config, Objects]:
    """The configuration that was meant, and the objects in it that have no name."""
    objects, base = Objects(), {}
    if isinstance(what, Federation):
        objects = objects._replace(federation=what)
        base = standing_in(what)
    elif isinstance(what, Config):
        base = what.model_dump()
    else:
        base = written(what)
    more, given = handed_over(given)
    return checked({**base, **given}), more._replace(federation=objects.federation)


def standing_in(federation: Federation) -> dict[str, Any]:
    """What a configuration says of a federation that was handed over in Python."""
    return {"data": GIVEN, "scenario": {"name": GIVEN, "federation": federation.name}, "method": "stocfl"}


def handed_over(given: dict[str, Any]) -> tuple[Objects, dict[str, Any]]:
    """The objects without a name among what was given, and what was given with a stand-in for each."""
    objects = Objects()
    for section in ("method", "model", "train"):
        value = given.get(section)
        if value is None or isinstance(value, str | Mapping | Piece):
            continue
        objects = objects._replace(**{section: value})
        given = given | {section: {"name": GIVEN, "object": getattr(value, "__qualname__", type(value).__qualname__)}}
    return objects, given


def planned(config: Config, objects: Objects = Objects(), lanes: int | None = None) -> Plan:  # noqa: B008
    """Everything a run needs, built and checked.

    Args:
        lanes: how many runs will share the memory; by default the configuration's seeds, where they run side by side.

    Raises:
        InputError: data that is missing or corrupt, a federation that cannot be had, options that do not go together.
    """
    use_cache()
    several = devices.granted(config.devices)
    federation = objects.federation if objects.federation is not None else federated(config)
    shape, classes = federation.x.shape[1:], federation.classes
    build = lambda name, **options: registry.find("model", name)(
        shape, classes, **registry.options("model", name, options)
    )
    share = lanes or (config.seeds if config.seeds_in_one is not False else 1)
    setting = make_setting(
        federation,
        tasked(config, objects, build, shape, classes),
        trainer(config.train, objects),
        config.participation,
        chunk=config.chunk,
        budget=config.budget or int(devices.agreed(engine.memory_budget(), np.min)) // share,
        build=build,
        engine=config.engine,
        devices=several,
    )
    federation = devices.placed(federation, setting.devices)
    algorithms = {title: algorithm(method, setting, objects) for title, method in config.methods.items()}
    most = max(state_bytes(item, federation) for item in algorithms.values())
    if config.seeds_in_one is None:
        config = config.model_copy(update={"seeds_in_one": config.seeds > 1 and most * config.seeds <= SMALL})
    machine = {"chunk": setting.chunk, "budget": setting.budget, "made_by": made_by()}
    return Plan(config.model_copy(update=machine), federation, setting, algorithms, objects)


def smaller(plan: Plan) -> Plan | None:
    """The plan with half as many clients at a time, its states as they are; None if there is no less."""
    setting = plan.setting
    if setting.chunk == 1 and setting.room < LEAST:
        return None
    setting = setting._replace(chunk=-(-setting.chunk // 2), room=setting.room // 2)
    algorithms = {title: algorithm(method, setting, plan.objects) for title, method in plan.config.methods.items()}
    config = plan.config.model_copy(update={"chunk": setting.chunk})
    return plan._replace(config=config, setting=setting, algorithms=algorithms)


def federated(config: Config) -> Federation:
    """The federation that a configuration describes."""
    pieces = config.data if isinstance(config.data, tuple) else (config.data,)
    datasets = [data.load(named(piece, "data"), config.data_dir, **piece.options) for piece in pieces]
    name = named(config.scenario, "scenario")
    make = registry.find("federation", "options")
    return make(datasets[0] if len(datasets) == 1 else datasets, name, **config.scenario.options)


def tasked(config: Config, objects: Objects, build: Callable[..., Task], shape, classes: int) -> Task:
    """The task that a configuration, or a model handed over in Python, describes."""
    if objects.model is None:
        return build(named(config.model, "model"), **config.model.options)
    if isinstance(objects.model, Task):
        return objects.model
    from jcfl import models

    return models.task(objects.model, shape, classes)


def algorithm(method: Method, setting: Setting, objects: Objects) -> Algorithm:
    """The algorithm that a method's name and options describe."""
    setting = setting._replace(extras=addons.extras([dict(addon) for addon in method.addons]))
    if method.is_given and objects.method is not None:
        return objects.method(setting)
    return registry.find("method", named(method, "method"))(setting, **method.options)


def trainer(train: Trainer, objects: Objects) -> Any:
    """The local trainer that a section describes, or that was handed over in Python."""
    return objects.train or registry.find("train", named(train, "train"))(**train.options)


def variable(config: Config, setting: Setting, objects: Objects) -> Callable[[Mapping[str, Any]], Algorithm]:
    """The main method's algorithm as a function of some of its and of the trainer's options, by dotted name.

    It can be called while it is traced: nothing is checked, and an option may be an array.
    """

    def make(scalars: Mapping[str, Any]) -> Algorithm:
        method, train = config.method, config.train
        for name, value in scalars.items():
            section, *path = name.split(".")
            method = method if section == "train" else placed(method, path, value)
            train = placed(train, path, value) if section == "train" else train
        local = trainer(train, objects) if any(name.startswith("train.") for name in scalars) else setting.local
        return algorithm(method, setting._replace(local=local), objects)

    return make


def placed(piece: PieceKind, path: Sequence[str], value: Any) -> PieceKind:
    """A piece with one option's value replaced; `addons.0.mu` is an option of its first add-on."""
    if len(path) == 1:
        return piece.model_copy(update={path[0]: value})
    addons = list(getattr(piece, path[0]))
    addons[int(path[1])] = placed(addons[int(path[1])], path[2:], value)
    return piece.model_copy(update={path[0]: tuple(addons)})


def state_bytes(algorithm: Algorithm, federation: Federation) -> int:
    """Bytes of what survives a round."""
    state = jax.eval_shape(algorithm.init, jax.random.key(0), federation)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def named(piece: Piece, section: str) -> str:
    """A piece's name, unless it is a stand-in for an object that only its own program has."""
    if piece.is_given:
        raise InputError(f"{section}: this was a run in Python with a {section} of its own; only Python can repeat it")
    return piece.name


def made_by() -> dict[str, Any]:
    """Versions and device: what the figures of a run may depend on besides its configuration."""
    devices = jax.local_devices()
    versions = {name: version(name) for name in PACKAGES}
    device = {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}
    return {"versions": {"python": platform.python_version(), **versions}, "device": device}


def version(package: str) -> str:
    """The version of an installed package; this one's own where it runs from its sources."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        import jcfl

        return jcfl.__version__


def use_cache() -> None:
    """Keep compiled programs between runs, unless JAX has been told where to or JCFL_CACHE is set to nothing."""
    chosen = os.environ.get("JCFL_CACHE")
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None or chosen == "":
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(chosen) if chosen else home / "jcfl" / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
