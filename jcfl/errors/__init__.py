"""The user's mistakes, told apart from ours; text that is safe to print; the limit of memory."""

import difflib
import importlib
import importlib.metadata
import inspect
import shlex
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path, PurePath
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

Function = TypeVar("Function", bound=Callable[..., Any])

LONGEST = 10_000
"""Characters of an error that are shown; of a longer one the middle is left out."""

MOST_SHOWN = 200
"""Characters of a value in an error."""

CONTROL_GROUPS = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Where Linux says what a control group may take: by controller (version 2 names none), the folder, the limit, the use,
and the part of the use that is a cache of files, which the kernel gives back."""


PLAIN = {
    "tuple_type": "expected a list, such as [{listed}]",
    "model_type": "expected a name, or keys and values",
    "dict_type": "expected keys and values",
    "too_short": "expected {min_length} or more items",
    "too_long": "expected {max_length} or fewer items",
    "bool_parsing": "expected true or false",
    "int_parsing": "input should be a valid integer",
    "int_from_float": "input should be a valid integer",
    "int_parsing_size": "input should be an integer that fits into 64 bits",
    "float_parsing": "input should be a valid number",
}
"""By the type of a complaint of pydantic's, what is said in place of its text, which speaks of tuples and parsing."""


class InputError(ValueError):
    """An error in the input: one line with what was given, what was expected, and the nearest valid choice."""

    status = 2  # with which a command exits

    def __str__(self) -> str:
        """The line. Names in it may be from a stranger's files, so it is made safe for a terminal, and not too long."""
        text = super().__str__().replace("\n", " ")
        return printable(text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}")


class TrainingError(RuntimeError):
    """Training cannot go on: a model or a description is not finite, clusters have no room, or workers failed."""

    status = 1


class Diverged(TrainingError):
    """A model stopped being finite."""

    BEGINNING = "training diverged"  # of its text, by which a summary too tells it from other errors


class Interrupted(KeyboardInterrupt):
    """The run was told to stop, and has written all that it needs to go on, or to begin again without checkpoints."""

    def __init__(self, *, begins_again: bool = False) -> None:
        how = "begins again, because checkpoint_every is never" if begins_again else "goes on where it was"
        super().__init__(f"stopped; with a folder, out=…, the run {how}: call again with resume=True")


class TooLarge(InputError):
    """What was requested does not fit into memory; nothing has been allocated."""

    def __init__(self, line: str, need: int = 0):
        super().__init__(line)
        self.need = need  # bytes


class Absent(InputError):
    """A dataset that is not there."""


class Unregistered(InputError):
    """A name by which no piece is registered here."""

    def hint(self, what: str, call: str) -> str:
        """Where the piece may be known: in the program that registers it, which can go on by this call."""
        own = "a piece of your own is known in the program that registers it, which can resume"
        return f"; {own} {what}: {call}"


class Unwritable(InputError):
    """A file or a folder that cannot be written: the disk is full, or may not be written to."""


class Damaged(InputError):
    """A file of a run that is not as it was written, or cannot be read."""


class Notice(UserWarning):
    """What a user should know of a run that goes on all the same: one line."""


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Name what is called inside, such as a user's piece, in a note below the traceback of an exception that it raises.

    The line of an `InputError` or a `TrainingError` says what is wrong, so these have no note.

    >>> with calling("describe 'means'"):
    ...     raise KeyError("size")
    Traceback (most recent call last):
        ...
    KeyError: 'size'
    jcfl: raised in describe 'means'
    """
    try:
        yield
    except (InputError, TrainingError):
        raise
    except Exception as error:
        error.add_note(f"jcfl: raised in {what}")
        raise


def named(what: str, function: Function) -> Function:
    """The function, whose exceptions have a note of `calling`."""

    @wraps(function)
    def call(*given: Any, **more: Any) -> Any:
        with calling(what):
            return function(*given, **more)

    return call  # pyright: ignore[reportReturnType]


MOST_KNOWN = 60
"""The largest number of names that an error lists. If there are more, it lists only the three most similar ones."""

GROUP = "jcfl.pieces"
"""The group of entry points under which an installed package names the modules that register its pieces."""


def raised(error: Exception) -> str:
    """What an exception says, in one line, with the place in the user's program that raised it, if there is one.

    >>> raised(KeyError("size"))
    "KeyError: 'size'"
    """
    first = next(iter(str(error).splitlines()), "")
    said = f"{type(error).__name__}: {first}" if first else type(error).__name__
    places = [one for one in traceback.extract_tb(error.__traceback__) if not is_of_library(one.filename)]
    return f"{said} ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else said


def is_of_library(file: str) -> bool:
    """Whether a file of code is a part of jcfl, of Python, or of an installed package that is no plug-in of jcfl."""
    if file.startswith("<frozen") or Path(file).is_relative_to(Path(__file__).parents[1]):
        return True
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    parts = [Path(file).relative_to(one).parts[0] for one in folders if Path(file).is_relative_to(one)]
    plugins = {one.module.partition(".")[0] for one in importlib.metadata.entry_points(group=GROUP)}
    return bool(parts) and plugins.isdisjoint(Path(part).stem for part in parts)


def unknown(what: str, got: object, known: Iterable[str], meant: str | None = None) -> InputError:
    """The error for a name that is not one of `known`; it offers the one that is `meant`, or else the nearest one.

    >>> str(unknown("method", "stocfll", ["ifca", "stocfl"]))
    "unknown method 'stocfll'; did you mean 'stocfl'? Known: ifca, stocfl"
    """
    known = sorted(set(known))
    lower = {name.lower(): name for name in known}
    near = [lower[one] for one in difflib.get_close_matches(str(got).lower(), lower, n=3, cutoff=0.4)]
    initials = "".join(word[:1] for word in str(got).lower().split("_"))
    meant = meant or (lower.get(initials) if len(initials) > 1 else None)
    near = [*dict.fromkeys([meant, *near] if meant else near)][:3]
    hint = f"; did you mean {near[0]!r}?" if near else "."
    if len(known) > MOST_KNOWN and near:
        return InputError(f"unknown {what} {str(got)!r}{hint} Similar: {', '.join(near)}")
    return InputError(f"unknown {what} {str(got)!r}{hint} Known: {', '.join(known)}")


def lacks(thing: object, function: str) -> InputError:
    """The error for an object whose class, which a user wrote, does not define a function that it has to define.

    >>> class Shape:
    ...     def area(self, unit): ...
    >>> class Square(Shape):
    ...     def aera(self, unit): ...
    >>> str(lacks(Square(), "area"))
    "Square: expected a function area(self, unit), as in every subclass of Shape; did you mean it by 'aera'?"
    """
    kind = type(thing)
    base = next(one for one in kind.__mro__ if function in vars(one))
    own = [name for one in kind.__mro__[: kind.__mro__.index(base)] for name in vars(one) if not name.startswith("__")]
    near = difflib.get_close_matches(function, own, n=1)
    wanted = f"{function}({', '.join(inspect.signature(getattr(base, function)).parameters)})"
    hint = f"; did you mean it by {near[0]!r}?" if near else ""
    return InputError(f"{kind.__name__}: expected a function {wanted}, as in every subclass of {base.__name__}{hint}")


def optional_package(module: str, needed: str) -> Any:
    """A package that jcfl does not need for most of its work, imported.

    Args:
        module: its name.
        needed: what needs it, and how to install it.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(needed) from None


def printable(text: str) -> str:
    r"""The text with escapes in place of the characters that a terminal obeys or hides: control, bidirectional, ESC.

    >>> printable("a\x1b[2Jb\u202ec")
    'a\\x1b[2Jb\\u202ec'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def as_argument(path: object) -> str:
    """A path as a shell and a command take it, for a command that a message proposes.

    >>> as_argument("runs/one"), as_argument("my runs"), as_argument("-one")
    ('runs/one', "'my runs'", './-one')
    """
    text = path.as_posix() if isinstance(path, PurePath) else str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


_commanded: ContextVar[bool] = ContextVar("_commanded", default=False)


@contextmanager
def commanded() -> Iterator[None]:
    """While the body runs, errors name arguments as options of a command."""
    token = _commanded.set(True)
    try:
        yield
    finally:
        _commanded.reset(token)


def argument(name: str, value: object = None, option: str = "") -> str:
    """An argument as who gave it has written it: in Python `held_back`, in a command `--held-back`.

    Args:
        name: the argument's.
        value: what it is set to; None to name the argument alone.
        option: the name of the command's option, where it is another.
    """
    written = f"--{(option or name).replace('_', '-')}" if _commanded.get() else name
    return written if value is None else f"{written}={value}"


def onward(saves: bool) -> str:
    """What a run that has ended early does if it is resumed, by whether it writes checkpoints."""
    return "go on" if saves else "begin again (checkpoint_every: never)"


def shown(value: object, most: int = MOST_SHOWN) -> str:
    """A value as an error shows it, in one line; of arrays and other long texts the beginning.

    What cannot be written out, such as a number of 5,000 digits, is shown as its type.

    Args:
        value: any object.
        most: the characters that are shown at most.
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a user's class may raise anything
        return f"a value of the type {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}…"


def listed(value: object) -> str:
    """The items of a list that was meant by a value, as messages show them: `a, b` for the text "a,b" too."""
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else [value]
    return ", ".join(map(shown, items))


def sentence(
    error: ValidationError, model: type[BaseModel] | None = None, named: Callable[[str], str] = lambda key: key
) -> str:
    """The first complaint of a pydantic error, as one line: key, complaint, what was got.

    An unknown key comes before all others, because a key that is missing is often the same one, misspelled.

    Args:
        model: what was checked; the nearest of its keys is offered for an unknown one.
        named: how the error names a key.
    """
    first, *rest = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"]]
    branches = {"str", "int", "float", "bool"}  # what stands in a path for a branch of a union, and int[…]
    branches |= {one.__name__ for one in inner_models(model)} if model is not None else set()
    dotted = lambda path: ".".join(part for part in map(str, path) if "[" not in part and part not in branches)
    key = dotted(path)
    if isinstance(first.get("input"), list | tuple):  # the branch for a list says more than the one for a number
        items = [one for one in rest if dotted(one["loc"]).startswith(f"{key}.")]
        length = [one for one in rest if dotted(one["loc"]) == key and one["type"] in ("too_short", "too_long")]
        first = [*items, *length, first][0]
        key = dotted(first["loc"])
    others = {other for other in (dotted(one["loc"]) for one in rest) if not f"{key}.".startswith(f"{other}.")}
    also = [one.get("ctx", {}).get("expected") for one in rest if dotted(one["loc"]) == key]  # words beside a number
    more = f" (and {len(others)} more)" if others else ""
    if model is not None and first["type"] == "extra_forbidden":
        above, _, name = key.rpartition(".")
        return f"{above}{': ' * bool(above)}{unknown('key', name, known_keys(model, path[:-1]))}"
    got = "" if first["type"] == "missing" else f", got {shown(first['input'])}"
    plain = PLAIN.get(first["type"], "").format(listed=listed(first.get("input")), **first.get("ctx", {}))
    said = plain or first["msg"][0].lower() + first["msg"][1:]
    said = " or ".join([said, *filter(None, also)])
    return f"{named(key)}{': ' * bool(key)}{said}{got}{more}"


def known_keys(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys that a model knows at a path: those of the last model on the way, inside of mappings and lists too."""
    for part in path:
        inner = list(inner_models(model.model_fields[part].annotation)) if part in model.model_fields else []
        model = inner[0] if inner else model
    return list(model.model_fields)


def inner_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The pydantic models in a type, such as that of `dict[str, Part]`, and those in the types of their fields."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from inner_models(field.annotation)
    for inner in get_args(annotation):
        yield from inner_models(inner)


def refuse_beyond_memory(what: str, need: int, instead: str, room: int | None = None) -> None:
    """Refuse what would take more memory than there is, before any of it is made.

    Args:
        what: what takes the memory, for the message.
        need: how many bytes.
        instead: what the user can do.
        room: bytes that are free; those of the host unless given.

    Raises:
        TooLarge: the line says how much is needed, and how much is free.
    """
    from rich.filesize import decimal

    room = available_memory() if room is None else room
    if need > room:
        raise TooLarge(f"{what} would take {decimal(need)} of memory, and {decimal(room)} are free; {instead}", need)


def available_memory() -> int:
    """The bytes that this process can still take: what the machine has free, or less where a control group says so."""
    import psutil

    return min([psutil.virtual_memory().available, *_left_by_groups()])


def _left_by_groups(mounted: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """The bytes that each control group around this process leaves; none where the system has no such groups."""
    for line in own.read_text().splitlines() if own.exists() else []:
        _, controllers, name = line.split(":", 2)
        for controller in {*controllers.split(",")} & {*CONTROL_GROUPS}:
            folder, *files = CONTROL_GROUPS[controller]
            root = mounted / folder
            group = root / name.strip("/")
            for place in (group, *(above for above in group.parents if above.is_relative_to(root))):
                yield from _left(place, *files)


def _left(group: Path, limit: str, used: str, cache: str) -> Iterator[int]:
    """The bytes that one group leaves; none where it has no limit, or says nothing."""
    try:
        most = (group / limit).read_text().strip()
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        if most != "max":
            yield max(int(most) - int((group / used).read_text()) + int(counts.get(cache, 0)), 0)
    except OSError:  # a container shows only a part of the tree
        return
