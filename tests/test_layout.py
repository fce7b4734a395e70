"""The rooms of the package: which imports there are, and that CONTRIBUTING's table says the same.

A room is a folder of `jcfl/`, a file beside it, `jcfl/__init__.py` itself (the room `jcfl`), or `benchmarks/`. An arrow
is an import from one room to another. An import counts wherever it stands: inside a function, under `TYPE_CHECKING`, or
as a string that is the name of a module. The floor of a room is the length of the longest chain of arrows below it,
counted from 1.

`python tests/test_layout.py [CHECKOUT]` prints rooms, floors, arrows and circles, and `--table` the rows that
CONTRIBUTING's table should have.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

FLOORS, ROOMS, ARROWS = 8, 20, 80
"""How many there may be at most."""

ROOT = Path(__file__).parents[1]


class Import(NamedTuple):
    """One import of one of our modules by another."""

    source: str  # the module that imports
    target: str  # the module that is imported
    line: str  # where: file:line


Graph = Mapping[str, set[str]]
"""What every node points to."""


class Row(NamedTuple):
    """One row of CONTRIBUTING's table."""

    floor: int
    text: str
    imports: set[str]


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package and of the benchmarks, by its dotted name."""
    files = [path for top in ("jcfl", "benchmarks") for path in sorted((root / top).rglob("*.py"))]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


@functools.cache
def imports(root: Path) -> list[Import]:
    """Every import of one of our modules by another one of them."""
    known = modules(root)
    found = []
    for name, path in known.items():
        tree = ast.parse(path.read_text("utf-8"), str(path))
        for number, target in named(tree, name, path.name == "__init__.py", known):
            if target != name:
                found.append(Import(name, target, f"{path.relative_to(root)}:{number}"))
    return found


def named(tree: ast.AST, name: str, package: bool, known: Mapping[str, Path]) -> Iterator[tuple[int, str]]:
    """The line and the name of each of our modules that a syntax tree imports."""
    folder = name if package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((node.lineno, one) for one in [nearest(alias.name, folder, known)] if one)
        elif isinstance(node, ast.ImportFrom):
            above = folder.split(".")[: len(folder.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield from ((node.lineno, one) for one in [nearest(f"{base}.{alias.name}", folder, known)] if one)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known:
            yield from ((node.lineno, node.value) for _ in [0] if "." in node.value)


def nearest(target: str, folder: str, known: Mapping[str, Path]) -> str | None:
    """The module that an imported name is or belongs to; none where it is not one of ours.

    Scripts of the benchmarks import each other by bare names, so such a name is looked up in the script's own folder.
    """
    packages = {".".join(name.split(".")[:length]) for name in known for length in range(1, name.count(".") + 2)}
    for candidate in (f"{folder}.{target}", target) if folder.startswith("benchmarks") else (target,):
        parts = candidate.split(".")
        for length in range(len(parts), 0, -1):
            module = ".".join(parts[:length])
            if module in packages and (module != folder or candidate == target):
                return module
            if candidate != target and length == folder.count(".") + 2:
                break  # the script's own folder has no such file
    return None


def room(module: str) -> str:
    """The room of a module; `jcfl.__main__` only starts the command line, and is of its room."""
    parts = module.split(".")
    if parts[1:] == ["__main__"]:
        return "cli"
    return "benchmarks" if parts[0] == "benchmarks" else parts[1] if len(parts) > 1 else "jcfl"


def rooms(root: Path) -> set[str]:
    """All rooms."""
    return {room(module) for module in modules(root)}


def arrows(root: Path) -> dict[tuple[str, str], list[Import]]:
    """The imports between rooms, by arrow."""
    found: dict[tuple[str, str], list[Import]] = {}
    for one in imports(root):
        pair = room(one.source), room(one.target)
        if pair[0] != pair[1]:
            found.setdefault(pair, []).append(one)
    return found


def graph(nodes: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Nodes and arrows as a graph."""
    found = {node: set() for node in nodes}
    for source, target in pairs:
        found.setdefault(source, set()).add(target)
        found.setdefault(target, set())
    return found


def circles(given: Graph) -> list[list[str]]:
    """The sets of nodes that reach each other (strongly connected components of more than one node; Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in given[node]:
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            start = stack.index(node)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(given):
        if node not in order:
            visit(node)
    return sorted(found)


def floors(given: Graph) -> dict[str, int]:
    """The floor of every node; nodes of one circle are on one floor."""
    together = {node: frozenset(circle) for circle in circles(given) for node in circle}
    found: dict[frozenset[str], int] = {}

    def floor(block: frozenset[str]) -> int:
        if block not in found:
            below = {together.get(other, frozenset([other])) for node in block for other in given[node]} - {block}
            found[block] = 1 + max(map(floor, below), default=0)
        return found[block]

    return {node: floor(together.get(node, frozenset([node]))) for node in given}


def table(root: Path) -> dict[str, Row]:
    """The rows of the table in CONTRIBUTING's section "Layers", by room."""
    text = (root / "CONTRIBUTING.md").read_text("utf-8").split("\n## Layers\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert header == ["floor", "room", "what it is", "may import"], header
    found: dict[str, Row] = {}
    for floor, name, text, targets in body:
        (module,) = re.findall(r"`([\w.]+)`", name)
        assert module not in found, f"two rows for {module}"
        found[module.removeprefix("jcfl.")] = Row(int(floor), text, set(re.findall(r"\w+", targets)))
    return found


def circles_of_files(root: Path) -> list[list[str]]:
    """Circles of modules, inside rooms too."""
    found = imports(root)
    return circles(graph(modules(root), [(one.source, one.target) for one in found]))


def test_the_table_is_a_layout():
    rows = table(ROOT)
    planned = graph(rows, [(name, target) for name, row in rows.items() for target in row.imports])
    assert set(planned) == set(rows), f"no rows for {sorted(set(planned) - set(rows))}"
    assert len(rows) <= ROOMS
    assert sum(len(targets) for targets in planned.values()) <= ARROWS
    assert not circles(planned)
    assert {name: row.floor for name, row in rows.items()} == floors(planned)
    assert max(row.floor for row in rows.values()) <= FLOORS
    assert [row.floor for row in rows.values()] == sorted((row.floor for row in rows.values()), reverse=True)


def test_rooms_are_those_of_the_table():
    assert rooms(ROOT) == set(table(ROOT))


def test_every_arrow_stands_in_the_table():
    rows = table(ROOT)
    wrong = [
        f"{source} -> {target}: {', '.join(one.line for one in found)}"
        for (source, target), found in sorted(arrows(ROOT).items())
        if target not in rows.get(source, Row(0, "", set())).imports
    ]
    assert not wrong, "imports that CONTRIBUTING's table does not allow:\n" + "\n".join(wrong)


def test_every_arrow_of_the_table_is_used():
    used = arrows(ROOT)
    unused = [f"{name} -> {to}" for name, row in table(ROOT).items() for to in row.imports if (name, to) not in used]
    assert not unused, f"CONTRIBUTING's table allows what nothing imports: {', '.join(sorted(unused))}"


def test_no_arrow_climbs():
    rows = table(ROOT)
    climbing = [
        f"{source} -> {target}: {', '.join(one.line for one in found)}"
        for (source, target), found in sorted(arrows(ROOT).items())
        if source in rows and target in rows and rows[source].floor <= rows[target].floor
    ]
    assert not climbing, "arrows that climb:\n" + "\n".join(climbing)


def test_limits_hold_and_no_room_is_in_a_circle():
    given = graph(rooms(ROOT), arrows(ROOT))
    assert not circles(given)
    assert len(given) <= ROOMS
    assert len(arrows(ROOT)) <= ARROWS
    assert max(floors(given).values()) <= FLOORS


def test_no_file_is_in_a_circle():
    assert not circles_of_files(ROOT)


def test_imports_are_found_wherever_they_stand(tmp_path):
    """Inside functions, under TYPE_CHECKING, by string, relative, and of scripts beside a script."""
    files = {
        "jcfl/__init__.py": "",
        "jcfl/a.py": "def f():\n    from jcfl.b import c\n",
        "jcfl/b/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .. import d\n",
        "jcfl/b/c.py": "HOME = 'jcfl.d'\n",
        "jcfl/d.py": "import jcfl\n",
        "jcfl/e/f.py": "from jcfl import e\nfrom jcfl.e import f\nimport numpy\n",
        "benchmarks/one.py": "import two\nimport jcfl.e.f\n",
        "benchmarks/two.py": "from one import x\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    assert set(arrows(tmp_path)) == {("a", "b"), ("b", "d"), ("d", "jcfl"), ("benchmarks", "e")}
    assert [one.line for one in arrows(tmp_path)["b", "d"]] == ["jcfl/b/__init__.py:3", "jcfl/b/c.py:1"]
    assert circles_of_files(tmp_path) == [["benchmarks.one", "benchmarks.two"]]
    given = graph(rooms(tmp_path), arrows(tmp_path))
    assert floors(given) == {"jcfl": 1, "d": 2, "b": 3, "a": 4, "e": 1, "benchmarks": 2}
    assert circles(graph("xyz", [("x", "y"), ("y", "x"), ("z", "x")])) == [["x", "y"]]


def printed(root: Path) -> None:
    """Print the layout of a checkout."""
    found = arrows(root)
    given = graph(rooms(root), found)
    levels = floors(given)
    for name in sorted(given, key=lambda name: (-levels[name], name)):
        print(f"{levels[name]:2}  {name}: {', '.join(sorted(given[name], key=lambda one: (levels[one], one)))}")
    print(f"\n{max(levels.values())} floors, {len(given)} rooms, {len(found)} arrows between rooms")
    print(f"{len(circles(given))} circles of rooms: {circles(given)}")
    print(f"{len(circles_of_files(root))} circles of files: {circles_of_files(root)}")


def print_table(root: Path) -> None:
    """Print the rows that CONTRIBUTING's table should have for the imports of a checkout."""
    given, rows = graph(rooms(root), arrows(root)), table(root)
    levels = floors(given)
    for name in sorted(given, key=lambda name: (-levels[name], name)):
        module = name if name in ("jcfl", "benchmarks") else f"jcfl.{name}"
        text = rows[name].text if name in rows else "?"
        below = ", ".join(sorted(given[name], key=lambda one: (levels[one], one)))
        print(f"| {levels[name]} | `{module}` | {text} | {below} |")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--table"]
    checkout = Path(words[0]).resolve() if words else ROOT
    print_table(checkout) if "--table" in sys.argv else printed(checkout)
