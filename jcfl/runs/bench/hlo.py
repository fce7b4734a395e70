"""What a compiled program does, read from its text: kernels, loops, products, bytes and collectives.

A kernel is an instruction that XLA starts by itself: a fusion, a library call, a sort, a copy. Loops count as often as
they turn, where XLA or the caller knows that. Only products count as arithmetic, because all else is limited by memory.
"""

import functools
import linecache
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

Turns = Callable[[str], float | None]
"""How often a loop of unknown length turns, by the lines of source that it is from; None if that is not known."""

BITS = {"pred": 8, "bf16": 16, "f8e4m3fn": 8, "f8e5m2": 8}
NO_KERNEL = {
    *("parameter", "constant", "bitcast", "get-tuple-element", "tuple", "after-all", "partition-id", "replica-id"),
    *("opt-barrier", "copy-done", "slice-done", "async-done", "async-update", "all-reduce-done", "all-gather-done"),
    *("collective-permute-done",),
}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
ARRAY = re.compile(r"\b([a-z]+\d*[a-z\d]*)\[([\d,]*)\]")


@dataclass(frozen=True)
class Cost:
    """What a part of a program takes."""

    kernels: float = 0
    trips: float = 0  # times that the device waits for the host to decide what comes next
    bytes: float = 0  # read and written by kernels
    flops: float = 0  # of products at JAX's default precision
    exact: float = 0  # of products in full float32
    collectives: float = 0
    sent: float = 0  # bytes that collectives return on one device
    once: frozenset[str] = field(default_factory=frozenset)  # loops of unknown length, counted as one turn

    def times(self, count: float) -> "Cost":
        """The cost of several turns."""
        numbers = {name: count * getattr(self, name) for name in NUMBERS}
        return replace(self, **numbers)

    def __add__(self, other: "Cost") -> "Cost":
        numbers = {name: getattr(self, name) + getattr(other, name) for name in NUMBERS}
        return Cost(**numbers, once=self.once | other.once)


NUMBERS = ("kernels", "trips", "bytes", "flops", "exact", "collectives", "sent")


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str
    kind: str
    rest: str  # operands and attributes

    @property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return re.findall(r"%([\w.\-]+)", self.rest.split("), ", 1)[0])

    def attribute(self, name: str) -> str:
        """The computation that an attribute names, or an empty string."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return found[1] if found else ""


Program = Mapping[str, dict[str, Instruction]]
"""Instructions by name, in their order, of every computation by name; the entry's name is `ENTRY`."""


def cost(text: str, host_loops: bool, turns: Turns = lambda source: None) -> Cost:
    """What one call of a compiled program takes.

    Args:
        text: the optimized program.
        host_loops: whether the host decides if a loop of unknown length goes on, as on a GPU.
        turns: says it for loops whose length XLA does not know.
    """
    program, frames = computations(text), Frames(text)

    @functools.cache
    def whole(name: str) -> Cost:
        return sum((of(program[name], one) for one in program[name].values()), Cost())

    def of(near: dict[str, Instruction], one: Instruction) -> Cost:
        if one.kind == "while":
            return loop(one)
        if one.kind == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", one.rest)
            names = branches[1].replace("%", "").split(", ") if branches else [one.attribute("true_computation")]
            names += [one.attribute("false_computation")] if not branches else []
            return max(map(whole, names), key=lambda cost: cost.bytes) + Cost(trips=int(host_loops))
        if one.kind in ("call", "async-start") and (one.attribute("to_apply") or one.attribute("calls")):
            return whole(one.attribute("to_apply") or one.attribute("calls"))
        if one.kind in NO_KERNEL:
            return Cost()
        if one.kind.removesuffix("-start") in COLLECTIVES:
            return Cost(kernels=1, collectives=1, sent=received(one))
        usual, exact = products(program, near, one)
        return Cost(1, 0, moved(program, near, one), usual, exact)

    def loop(one: Instruction) -> Cost:
        known, source = known_turns(program, one), frames.source(one)
        count = known if known is not None else turns(source)
        once = frozenset() if count is not None else frozenset([source.partition("\n")[0]])
        count = 1 if count is None else count
        waits = Cost(trips=count + 1 if host_loops and known is None else 0, once=once)
        body, condition = whole(one.attribute("body")), whole(one.attribute("condition"))
        return body.times(count) + condition.times(count + 1) + waits if count else waits + condition

    return whole("ENTRY")


def computations(text: str) -> Program:
    """The computations of a program."""
    program, current = {}, {}
    for line in text.splitlines():
        begins = COMPUTATION.match(line)
        if begins:
            current = program.setdefault("ENTRY" if line.startswith("ENTRY") else begins[1], {})
        found = INSTRUCTION.match(line)
        if found:
            current[found[1]] = Instruction(*found.groups())
    return program


def known_turns(program: Program, one: Instruction) -> int | None:
    """How often a loop turns: as XLA notes it, or as its condition compares a counter with a constant."""
    noted = re.search(r'known_trip_count":\{"n":"(\d+)"', one.rest)
    if noted:
        return int(noted[1])
    condition = program[one.attribute("condition")]
    last = list(condition.values())[-1]
    limits = [condition[name] for name in last.operands if name in condition and condition[name].kind == "constant"]
    if last.kind == "compare" and "direction=LT" in last.rest and limits:
        return int(limits[0].rest.split(")", 1)[0])
    return None


def received(one: Instruction) -> float:
    """The bytes that a collective returns on one device.

    XLA can begin a collective by one instruction (`…-start`) and end it by another. The shape of the first lists the
    operands and then the results; only that of `all-reduce-start` lists the results alone.
    """
    if not one.kind.endswith("-start") or one.kind == "all-reduce-start":
        return size(one.shape)
    arrays = [found[0] for found in ARRAY.finditer(one.shape)]
    return sum(map(size, arrays[len(arrays) // 2 :]))


def size(shape: str) -> int:
    """The bytes of a shape's arrays."""
    return sum(bits(kind) * elements(dims) // 8 for kind, dims in ARRAY.findall(shape))


def bits(kind: str) -> int:
    """The bits of a number of some type."""
    digits = re.search(r"\d+", kind)
    return BITS.get(kind) or (int(digits[0]) if digits else 0)


def elements(dims: str) -> int:
    """How many numbers an array has, from `4,50`."""
    return math.prod(int(dim) for dim in dims.split(",") if dim)


def counted(shape: str) -> int:
    """How many numbers the first array of a shape has."""
    return elements(ARRAY.findall(shape)[0][1])


def moved(program: Program, near: dict[str, Instruction], one: Instruction) -> int:
    """The bytes that a kernel reads and writes; of an array of which it touches a part, that part."""
    inside = program.get(one.attribute("calls"), {})
    if not inside:
        inside = {name: near[name]._replace(kind="parameter") for name in one.operands if name in near}
        inside |= {one.name: one}
    users = users_of(inside)
    read = sum(part_read(program, item, users) for item in inside.values() if item.kind == "parameter")
    return read + written(inside, list(inside.values())[-1])


def users_of(inside: dict[str, Instruction]) -> Mapping[str, list[Instruction]]:
    """The instructions of a computation that have an array as an operand, by the array's name."""
    users: dict[str, list[Instruction]] = {}
    for user in inside.values():
        for name in user.operands if user.kind != "parameter" else ():
            users.setdefault(name, []).append(user)
    return users


def part_read(program: Program, one: Instruction, users: Mapping[str, list[Instruction]]) -> int:
    """The bytes of an array that its users read."""
    total = 0
    for user in users.get(one.name, []):
        if user.kind in ("dynamic-slice", "gather", "slice") and user.operands[0] == one.name:
            total += size(user.shape)
        elif user.kind == "bitcast":
            total += part_read(program, user, users)
        elif user.kind == "fusion" and user.attribute("calls") in program:  # a TPU's have fusions in them
            within = program[user.attribute("calls")]
            known = {item.rest.split(")", 1)[0]: item for item in within.values() if item.kind == "parameter"}
            taken = known[str(user.operands.index(one.name))]
            total += part_read(program, taken, users_of(within))
        elif user.kind in ("dynamic-update-slice", "scatter") and user.operands[0] == one.name:
            continue
        else:
            return size(one.shape)
    return min(total, size(one.shape))


def written(inside: dict[str, Instruction], last: Instruction) -> int:
    """The bytes that a kernel writes."""
    if last.kind == "tuple":
        return sum(written(inside, inside[name]) for name in last.operands if name in inside)
    if last.kind == "bitcast" and last.operands[0] in inside:
        return written(inside, inside[last.operands[0]])
    place = {"dynamic-update-slice": 1, "scatter": 2}.get(last.kind)
    if place is not None and len(last.operands) > place and last.operands[place] in inside:
        return size(inside[last.operands[place]].shape)
    return size(last.shape)


def products(program: Program, near: dict[str, Instruction], one: Instruction) -> tuple[float, float]:
    """Additions and multiplications of a kernel's products: at the default precision, and in full float32."""
    inside = program.get(one.attribute("calls"), {})
    if inside:
        found = [products(program, inside, item) for item in inside.values()]
        return sum(usual for usual, _ in found), sum(exact for _, exact in found)
    library = re.search(r'custom_call_target="__(cublas|cudnn)', one.rest)
    if one.kind not in ("dot", "convolution") and not library:
        return 0.0, 0.0
    flops = 2 * math.sqrt(math.prod(counted(shape) for shape in factors(near, one)) * window(one) / groups(near, one))
    exact = bool(re.search(r'operand_precision(=\{|":\[")highest', one.rest, re.IGNORECASE))
    return (0.0, flops) if exact else (flops, 0.0)


def factors(near: dict[str, Instruction], one: Instruction) -> list[str]:
    """The shapes of a product and of its two factors."""
    return [one.shape, *(near[name].shape for name in one.operands[:2] if name in near)]


def window(one: Instruction) -> int:
    """How many places the kernel of a convolution covers."""
    found = re.search(r"window=\{size=([\dx]+)([^}]*)\}", one.rest)
    if not found or "lhs_dilate" in found[2]:  # a batched product of matrices, as a TPU's compiler writes it
        return 1
    return math.prod(map(int, found[1].split("x")))


def groups(near: dict[str, Instruction], one: Instruction) -> int:
    """How many products are side by side: batches of matrices, or groups of a convolution."""
    batch = re.search(r'lhs_batch_dim(?:ension)?s(?:=\{|":\[)([\d,"]*)', one.rest)
    if batch and batch[1]:
        dims = ARRAY.findall(near[one.operands[0]].shape)[0][1].split(",")
        return math.prod(int(dims[int(axis)]) for axis in batch[1].replace('"', "").split(","))
    found = re.search(r"window=\{size=([\dx]+)([^}]*)\}", one.rest)
    if found and "lhs_dilate" in found[2]:
        return math.prod(map(int, found[1].split("x")))
    count = re.search(r'feature_group_count(?:=|":"?)(\d+)', one.rest)
    return int(count[1]) if count else 1


class Frames:
    """Where in the source the instructions of a program come from."""

    def __init__(self, text: str):
        self.files, self.functions = self.table(text, "FileNames"), self.table(text, "FunctionNames")
        self.locations, self.frames = self.table(text, "FileLocations"), self.table(text, "StackFrames")

    def table(self, text: str, name: str) -> dict[int, str]:
        """One of the tables at the head of a program's text."""
        found = re.search(rf"^{name}\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
        pairs = (line.split(" ", 1) for line in found[1].splitlines()) if found else ()
        return {int(number): rest.strip('"') for number, rest in pairs}

    def source(self, one: Instruction) -> str:
        """`function: line of source` of an instruction and of its callers, the innermost first."""
        number = re.search(r"stack_frame_id=(\d+)", one.rest)
        at, lines = int(number[1]) if number else 0, []
        while at in self.frames:
            place, above = map(int, re.findall(r"=(\d+)", self.frames[at]))
            file, function, line = map(int, re.findall(r"=(\d+)", self.locations[place])[:3])
            code = linecache.getline(self.files[file], line).strip()
            lines.append(f"{self.functions[function].removesuffix('<locals>')}: {code}")
            at = above - 1  # the table counts parents from one, and its own rows from one as well
        return "\n".join(lines) or one.name
