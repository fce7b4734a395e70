"""Named pieces: methods, scenarios, datasets, models and add-ons, each a function whose keywords are its options.

A piece is registered when its module is imported. Of jcfl this module imports only errors: `load` calls the loaders
that were provided, and imports the plug-ins, which are installed packages with an entry point of `jcfl.pieces`.
"""

import importlib.metadata
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache, wraps
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import PydanticCustomError

from jcfl.errors import GROUP, Function, InputError, Unregistered, argument, calling, sentence, shown, unknown
from jcfl.errors.words import docstring

Result = TypeVar("Result")

KINDS = (
    "method", "addon", "describe", "compare", "group", "when", "training", "aggregate", "answer",
    "data", "scenario", "model", "train", "attack", "reliability", "privacy", "stop", "track",
)  # fmt: skip
"""Every kind of piece that a configuration can name."""

INTERNAL = ("federation",)
"""Kinds that only jcfl registers: the options of all scenarios."""

BESIDE_OPTIONS = {
    "data": "data_dir", "scenario": "rng, dataset", "federation": "dataset, scenario", "model": "shape, classes",
    "addon": "method", "track": "title, folder",
}  # fmt: skip
"""By kind, the arguments with which jcfl calls its functions besides options; functions of other kinds have none."""

PASSED_ON = {"scenario": ("min_examples",)}
"""By kind, the options of all its pieces whose values a piece gets too if it has them."""

RANGES: dict[str, tuple[Any, Any]] = {"int": (-(2**31), 2**31 - 1), "float": (-3.4028234e38, 3.4028234e38)}
"""The least and the largest number that an array can hold, int32 or float32, by the name of pydantic's type."""

_TABLES: dict[str, dict[str, Callable[..., Any]]] = {}
_CONTESTED: dict[tuple[str, str], str] = {}  # names that two modules want, and which modules those are
_LOADERS: list[Callable[[], object]] = []
_PACKAGES: dict[str, str] = {}  # by top-level module of a plug-in: its package and version


class Same:
    """An object that is equal to itself alone, so that one that has no hash can be a key."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def kept(make: Callable[..., Result]) -> Callable[..., Result]:
    """The function, which is called once for the same objects and gives the same result for them afterwards."""
    found = lru_cache(maxsize=4096)(lambda *given: make(*(same.thing for same in given)))
    return wraps(make)(lambda *given: found(*map(Same, given)))


class Plugin(NamedTuple):
    """An entry point of an installed package, after its module has been imported."""

    package: str  # the package and its version
    module: str
    error: str = ""  # why the import failed, where it did


def register(kind: str, name: str) -> Callable[[Function], Function]:
    """Put the decorated function into the table of its kind under `name`.

    The function's keyword-only parameters are its options: their annotations are what `options` checks, the first
    line of its docstring is what `jcfl list` shows. A module can register its own function again, as a notebook does
    when a cell is run twice. A method's function checks its options also where a user's program calls it. jcfl's own
    pieces are registered first, so that their names stay theirs.

    Raises:
        InputError: the kind, the name, the function or an option is wrong, or another module has registered this name.
    """
    if kind == "score":
        raise InputError(f"score {name!r}: expected jcfl.metrics.register_score, which registers scores")
    if kind not in KINDS + INTERNAL:
        raise unknown("kind of piece", kind, KINDS)
    if not isinstance(name, str) or not name:
        raise InputError(f"the name of a {kind}: expected text, got {shown(name)}")

    def put(function: Function) -> Function:
        refuse_bare(kind, name, function)
        if root(function.__module__) != __package__:
            load(with_plugins=False)
        refuse_shared(kind, name, function)
        table = _TABLES.setdefault(kind, {})
        if name in table and table[name].__module__ != function.__module__:
            both = f"{origin(table[name])} and {origin(function)}"
            told = f"{kind} {name!r} is registered twice, by {both}; rename or uninstall one of them"
            if root(function.__module__) in _PACKAGES:  # its import fails, but other runs go on without the plug-in
                _CONTESTED[kind, name] = told
            raise InputError(told)
        table[name] = function
        return keywords_checked(function, str) if kind == "method" else function

    return put


def refuse_bare(kind: str, name: str, function: Callable[..., Any]) -> None:
    """Refuse what jcfl cannot call, an option without an annotation to check its values by, and positional fields.

    Raises:
        InputError: the line has an annotation that may fit, or says how the field becomes an option.
    """
    what = f"{kind} {name!r}"
    if not callable(function):
        raise InputError(f"{what}: expected a function or a class, got {shown(function)}")
    given = inspect.signature(function).parameters.values()
    for option in given:
        if kind not in BESIDE_OPTIONS and inspect.isclass(function) and option.kind is option.POSITIONAL_OR_KEYWORD:
            raise InputError(f"{what}: field {option.name!r} is no option; use @dataclass(frozen=True, kw_only=True)")
        if option.kind is option.POSITIONAL_OR_KEYWORD and option.default is not option.empty:
            raise InputError(f"{what}: {option.name!r} is no option, because it has no * before it: …, *, {option})")
        if option.kind is option.KEYWORD_ONLY and option.annotation is option.empty:
            default = "" if option.default is option.empty else f" = {shown(option.default)}"
            like = {"": "int", " = None": "int | None"}.get(default, type(option.default).__name__)
            told = f"{what}: option {option.name!r} needs an annotation, such as {option.name}: {like}{default}"
            raise InputError(told)
    own = [one.name for one in given if one.kind <= one.POSITIONAL_OR_KEYWORD]
    wanted = BESIDE_OPTIONS.get(kind, "")
    if len(own) != len(wanted.split()) and all(one.kind != one.VAR_POSITIONAL for one in given):
        raise InputError(f"{what}: expected the arguments ({wanted}) before its options, got ({', '.join(own)})")


def refuse_shared(kind: str, name: str, function: Callable[..., Any]) -> None:
    """Refuse an option that all pieces of a kind have, if a piece with one of the same name would not get its value.

    Raises:
        InputError: the line names the option.
    """
    known = _TABLES.get("federation", {}).values() if kind == "scenario" else ()
    taken = {item.name for other in known for item in parameters(other)} - {*PASSED_ON.get(kind, ())}
    for option in inspect.signature(function).parameters.values():
        if option.kind is option.KEYWORD_ONLY and option.name in taken:
            raise InputError(
                f"{kind} {name!r}: option {option.name!r} is an option of all {kind}s, whose value jcfl uses "
                "itself and does not hand on; choose another name"
            )


def provide(loader: Callable[[], object]) -> None:
    """Let `load` call `loader`, which imports modules that register pieces, as `jcfl/__init__.py` does for jcfl's."""
    _LOADERS.append(loader)


def load(with_plugins: bool = True) -> None:
    """Register jcfl's own pieces and those of the installed plug-ins."""
    for loader in _LOADERS:
        loader()
    if with_plugins:
        plugins()


@cache
def plugins() -> tuple[Plugin, ...]:
    """The installed plug-ins, each imported once.

    A plug-in whose import fails is left out with a warning, because most runs do not need it. Where a name is unknown,
    `find` says which plug-ins have failed, because one of them may have that name.
    """
    found = tuple(imported(entry) for entry in importlib.metadata.entry_points(group=GROUP))
    for plugin in found:
        if plugin.error:
            warnings.warn_explicit(failure(plugin), UserWarning, plugin.module, 1)  # no line of ours is printed with it
    return found


def imported(entry: importlib.metadata.EntryPoint) -> Plugin:
    """The plug-in of an entry point, whose module this imports."""
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.name
    _PACKAGES[root(entry.module)] = package
    try:
        entry.load()
    except Exception as error:  # another author's module may raise anything
        return Plugin(package, entry.module, " ".join(f"{type(error).__name__}: {error}".split()))
    return Plugin(package, entry.module)


def failure(plugin: Plugin) -> str:
    """Why a plug-in is missing, in one line."""
    return f"plug-in {plugin.module} of package {plugin.package} cannot be imported ({plugin.error})"


def origin(function: Callable[..., Any]) -> str:
    """Which module defines a registered function, and which package that module belongs to.

    >>> origin(register)
    'jcfl.registry (jcfl)'
    """
    package = root(function.__module__)
    return f"{function.__module__} ({_PACKAGES.get(package, package)})"


def root(module: str) -> str:
    """The top-level package of a module."""
    return module.partition(".")[0]


def names(kind: str) -> list[str]:
    """The names registered under a kind, in the order they were registered."""
    return list(_TABLES.get(kind, {}))


def find(kind: str, name: str) -> Callable[..., Any]:
    """The function registered under a name.

    Raises:
        InputError: no such name: the nearest one is offered, and plug-ins that cannot be imported are named. Or two
            modules want this name.
    """
    if not isinstance(name, str):
        raise InputError(f"expected the name of a {kind}, got {shown(name)}")
    if name not in _TABLES.get(kind, {}):
        load()
    if (kind, name) in _CONTESTED:
        raise InputError(_CONTESTED[kind, name])
    table = _TABLES.get(kind, {})
    if name not in table:
        failed = [failure(plugin) for plugin in plugins() if plugin.error]
        raise Unregistered("; ".join([str(unknown(kind, name, table)), *failed]))
    return table[name]


def made(kind: str, name: str, /, *given: Any, **options: Any) -> Any:
    """What the function registered under a name returns; an exception that it raises names the piece."""
    with calling(f"{kind} {name!r}"):
        return find(kind, name)(*given, **options)


def line(function: Callable[..., Any]) -> str:
    """What a registered function is, in one line: the first of its docstring."""
    return next(iter(docstring(function).splitlines()), "")


def shared(kind: str) -> tuple[Callable[..., Any], ...]:
    """The functions whose keyword-only parameters are options of every piece of a kind."""
    return (find("federation", "options"),) if kind == "scenario" else ()


def options(
    kind: str,
    name: str,
    given: Mapping[str, Any],
    also: Iterable[Callable[..., Any]] = (),
    beside: Iterable[str] = (),
) -> dict[str, Any]:
    """`given` checked and converted to what the named function's options say, defaults filled in.

    Args:
        kind: the kind of piece.
        name: its registered name.
        given: options by name.
        also: further functions whose keyword-only parameters are options of this piece too.
        beside: keys that stand beside the options where they are written; a misspelt one is told them too.

    Raises:
        InputError: an unknown option, a missing one, or a value its annotation refuses.
    """
    known = {item.name: item for function in (*also, find(kind, name)) for item in parameters(function)}
    return check(f"{kind} {name!r}", known, given, beside)


def check(
    what: str,
    known: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    beside: Iterable[str] = (),
    named: Callable[[str], str] = str,  # how errors name an option, or a function
) -> dict[str, Any]:
    """`given` checked against parameters and their annotations, defaults filled in.

    Raises:
        InputError: as for `options`.
    """
    valid = [*known, *beside]
    for key in (key for key in given if key not in known):
        none = InputError(f"{what} has no options, got {key!r}")
        raise unknown(f"option of {what}:", key, valid) if valid else none
    try:
        checked = options_model(*known.values())(**given)
    except ValidationError as error:
        raise InputError(f"{named(what).removeprefix('--')}: {sentence(error, named=named)}") from None
    return {key: getattr(checked, f"option_{key}") for key in known}


@kept  # pydantic needs milliseconds for a model, and a run checks the same options many times
def options_model(*known: inspect.Parameter) -> type[BaseModel]:
    """The pydantic model that checks and converts the values of these parameters."""
    fields: dict[str, Any] = {
        f"option_{parameter.name}": (
            Annotated[parameter.annotation, Representable()],
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in known
    }
    # An option may be called as a method of pydantic's models is ("copy"), so fields carry a prefix, keys do not.
    config = ConfigDict(arbitrary_types_allowed=True, alias_generator=lambda field: field.removeprefix("option_"))
    return create_model("Options", __config__=config, **fields)


class Representable:
    """An annotation by which every number is one that arrays can hold, unless its own bounds say otherwise.

    Without it 10**30 rounds, an infinite learning rate or NaN degrees would end in an error of JAX or NumPy. True and
    False, which YAML makes of `yes` and `no`, are no numbers either.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """The annotation's schema, its numbers bounded."""
        found = handler(source)
        bound_numbers(handler.resolve_ref_schema(found) if found["type"] == "definition-ref" else found)
        return found


def bound_numbers(schema: Any) -> None:
    """Bound the numbers in a schema of pydantic's, in place: those in lists, mappings and unions too."""
    if isinstance(schema, list | tuple):
        for part in schema:
            bound_numbers(part)
    if not isinstance(schema, dict):
        return
    for key, part in schema.items():
        if key not in ("default", "metadata"):
            bound_numbers(part)
    if schema.get("type") in RANGES:
        least, most = RANGES[schema["type"]]
        lower = {} if {"ge", "gt"} & schema.keys() else {"ge": least}
        upper = {} if {"le", "lt"} & schema.keys() else {"le": most}
        number = {**schema, **lower, **upper} | ({"allow_inf_nan": False} if schema["type"] == "float" else {})
        schema.clear()
        schema |= {
            "type": "function-before",
            "function": {"type": "no-info", "function": not_boolean},
            "schema": number,
        }


def not_boolean(value: Any) -> Any:
    """The value, refused if it is True or False."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


def keywords_checked(function: Function, named: Callable[[str], str] = argument) -> Function:
    """The function with its keyword-only arguments checked and converted by their annotations, as options are.

    A tracer is not checked, so that a method can be made inside of `jax.jit`, with an option as its argument.
    """
    known = {parameter.name: parameter for parameter in parameters(function)}
    signature = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.values())

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        from jax.core import Tracer  # imports are slow; `jcfl --help` needs the registry without JAX

        traced = {key for key, value in given.items() if isinstance(value, Tracer)}
        misspelt = set() if takes_any else given.keys() - signature.keys()  # `check` refuses these
        own = {key: given[key] for key in given if key in known.keys() - traced | misspelt}
        found = check(function.__name__, {key: known[key] for key in known if key not in traced}, own, (), named)
        return function(*args, **{**given, **{key: found[key] for key in own}})

    return call  # pyright: ignore[reportReturnType]


@kept
def parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """The options of a registered function: its keyword-only parameters, annotations resolved."""
    signature = inspect.signature(function, eval_str=True)
    return tuple(parameter for parameter in signature.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY)


def schema(function: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Every option of a registered function: its type, bounds, description and default, as JSON schema."""
    return {parameter.name: dict(entry(parameter)) for parameter in parameters(function)}


@kept
def entry(parameter: inspect.Parameter) -> dict[str, Any]:
    """One option's JSON schema; a type that JSON cannot say is left open."""
    try:
        said = TypeAdapter(parameter.annotation, config=ConfigDict(arbitrary_types_allowed=True)).json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema):
        said = {}
    return said | ({} if parameter.default is parameter.empty else {"default": parameter.default})
