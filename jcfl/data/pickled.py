"""The values in a pickled CIFAR batch, without unpickling: bytes, text, numbers, lists, dictionaries, arrays of bytes.

To unpickle is to run a program that someone else wrote, and an allowed class can do harm by the state that it is given.
Here no class is ever called. The opcodes of which the published files are made are interpreted one by one, those of
Python 2 (protocol 2) and what Python 3 makes of the same values (protocols 2 to 5); every other opcode is refused.
"""

import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

MOST = 2**20
"""Opcodes that a file may have; the largest published one has a quarter of them."""

MARK = object()
"""Where on the stack the items of a tuple, a list or a dictionary begin."""

ARRAY, BYTE, EMPTY = object(), object(), object()
"""What stands in for `numpy.ndarray`, for its type of bytes, and for an array that is yet to get its content."""

CONSTANTS = {
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
"""Opcodes whose argument is the value."""

VALUES: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: MARK,
}
"""Opcodes that stand for a value of their own."""


def values(data: bytes | bytearray) -> Any:
    """What the pickle in some bytes holds.

    Raises:
        Exception: anything but plain values and arrays of bytes, or a damaged file; which exception is not defined.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    names = NAMES | {("_codecs", "encode"): _encoder()}
    argument: Any
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if number == MOST:
            raise ValueError(f"more than {MOST:,} opcodes")
        match opcode.name:
            case name if name in CONSTANTS:
                stack.append(argument)
            case name if name in VALUES:
                stack.append(VALUES[name]())
            case "BINSTRING" | "SHORT_BINSTRING":  # the bytes of a Python 2 string, decoded by genops
                stack.append(argument.encode("latin-1"))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_named(names, *argument.split(" ")))
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case name:
                _applied(name, stack, names)
    raise ValueError("it has no end")


def _applied(name: str, stack: list[Any], names: dict[tuple[str, str], Any]) -> None:
    """Replace the uppermost values of the stack by what an opcode makes of them."""
    match name:
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            number = int(name[-1])
            stack[-number:] = [tuple(stack[-number:])]
        case "TUPLE":
            stack.append(tuple(_marked(stack)))
        case "APPEND" | "APPENDS":
            items = _marked(stack) if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(items)
        case "SETITEM" | "SETITEMS":
            items = _marked(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            if not all(isinstance(key, bytes | str) for key in items[::2]):
                raise ValueError("a key that is no text")
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        case "STACK_GLOBAL":
            stack.append(_named(names, stack.pop(-2), stack.pop()))
        case "REDUCE":
            stack.append(stack.pop(-2)(*stack.pop()))
        case "BUILD":
            stack.append(_built(stack.pop(-2), stack.pop()))
        case _:
            raise ValueError(f"the opcode {name} is not allowed")


def _marked(stack: list[Any]) -> list[Any]:
    """The values above the last mark, taken off the stack with it."""
    place = next(place for place in reversed(range(len(stack))) if stack[place] is MARK)
    items = stack[place + 1 :]
    del stack[place:]
    return items


def _named(names: dict[tuple[str, str], Any], module: Any, name: Any) -> Any:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("a name that is no text")
    if (module, name) not in names:
        raise ValueError(f"{module}.{name} is not allowed")
    return names[module, name]


def _byte(name: Any, *flags: Any) -> object:
    if name not in ("u1", b"u1"):  # Python 2 had but one kind of string
        raise ValueError("an array of something else than bytes")
    return BYTE


def _empty(kind: Any, shape: Any, code: Any) -> object:
    if kind is not ARRAY:
        raise ValueError("an array of a class of its own")
    return EMPTY


def _built(target: Any, state: tuple[Any, ...]) -> Any:
    """What an object becomes by the state it is given: a type of bytes stays as it is, an array gets its bytes."""
    if target is BYTE:
        if state[1:] not in ((order, None, None, None, -1, -1, 0) for order in ("|", b"|")):
            raise ValueError("a type of numbers with a state")
        return BYTE
    if target is not EMPTY:
        raise ValueError("a state for what has none")
    _, shape, kind, by_column, data = state
    return _filled(data, kind, shape, "F" if by_column else "C")


def _filled(data: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    if kind is not BYTE or not isinstance(data, bytes | bytearray):
        raise ValueError("an array of something else than bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order=order)


def _encoder() -> Callable[[Any, Any], bytes]:
    """`codecs.encode`, by which Python 3 writes bytes in protocol 2; text that is repeated takes its memory once."""
    known: dict[str, bytes] = {}

    def encoded(text: Any, coding: Any) -> bytes:
        if not isinstance(text, str) or coding != "latin1":
            raise ValueError("bytes in another coding than latin1")
        if text not in known:
            known[text] = text.encode("latin-1")
        return known[text]

    return encoded


NAMES = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _filled for core in ("core", "_core")},
    ("numpy", "ndarray"): ARRAY,
    ("numpy", "dtype"): _byte,
}
"""The names in the published files but for `codecs.encode`, and what stands in for them."""
