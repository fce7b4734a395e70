"""What pages take from elsewhere: facts from the registry, parts of other files.

A page asks for them by lines of their own: `{{ facts }}` on the page of a method, `{{ facts addon }}` for all pieces of
a kind, `{{ table method }}` for a kind's table, `{{ file CHANGELOG.md }}` for a file, and `{{ file CONTRIBUTING.md:
Extension points }}`, in one line, for what stands in it under a heading.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from jcfl import config, facts, phases, registry
from jcfl.algorithms.options import average
from jcfl.errors import InputError
from jcfl.objective import Pull
from jcfl.plan import planned
from jcfl.rounds import Pieces

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"^\{\{ (\w+) ?(.*?) \}\}$", re.MULTILINE)
TINY = ["scenario.clients=20", "model.hidden=4", "compare=[]"]
"""What a method's pieces are looked at on, besides the options of its example."""

WORDS = {
    "distinct": "cluster models start from different initialisations",
    "terms": "loss terms",
    "shared": "shared model",
    "weigh": "clients count",
    "averaging": "averages by a rule of its own",
    "rate": "step towards the average",
    "stored": "clients' last models are kept",
    "prepare": "clients compute something before they train",
    "chained": "clients train one after another",
}
"""What the choices in `jcfl.rounds.Pieces` are called."""


def filled(markdown: str, name: str) -> str:
    """A page with what it asks for put in."""
    return MARK.sub(lambda found: written(found[1], found[2], name), markdown)


def refuse_missing(pages: Iterable[str]) -> None:
    """Refuse a site in which a method has no page, or a page no method.

    Raises:
        ValueError: there is one.
    """
    registry.load()
    there = {Path(page).stem for page in pages if page.startswith("methods/")} - {"index"}
    if odd := there ^ set(registry.names("method")):
        raise ValueError(f"docs/methods and the registry differ in {', '.join(sorted(odd))}")


def written(what: str, name: str, source: str) -> str:
    """What stands in place of a mark.

    Raises:
        ValueError: nothing of that name can.
    """
    registry.load()
    if what == "facts" and not name:
        return about_method(Path(source).stem)
    if what == "facts":
        text = "\n\n".join(section(name, one) for one in registry.names(name))
        return text + letters(text)
    if what == "table":
        return listed(name)
    if what == "file":
        return part(*(word.strip() for word in name.split(":")))
    raise ValueError(f"{source}: nothing is known of {{{{ {what} {name} }}}}")


def about_method(name: str) -> str:
    """The facts on a method's page: options, pieces, costs, add-ons, deviations."""
    one = facts.facts("method", name)
    parts = [f"## In short\n\n{prose(one.line)}", prose(one.text), f"```sh\n{one.example}\n```"]
    parts += ["## Options", options(one.options) if one.options else "It has none of its own."]
    parts += ["## Made of", pieces(name)]
    parts += ["## Deviations", prose(one.deviations)] if one.deviations else []
    return "\n\n".join(parts) + letters(" ".join((*parts, *(row.text for row in one.options))))


def letters(text: str) -> str:
    """What the letters for papers in a text stand for, as a last paragraph."""
    used = facts.papers(text)
    return f"\n\n<small>{used}.</small>" if used else ""


def section(kind: str, name: str) -> str:
    """A piece's facts under a heading of its own."""
    one = facts.facts(kind, name)
    parts = [f"({kind}-{name})=\n\n### `{name}`", prose(one.line), prose(one.text)]
    parts += [options(one.options)] if one.options else []
    parts += [f"**Deviations.** {prose(one.deviations)}"] if one.deviations else []
    return "\n\n".join([*filter(None, parts), f"```sh\n{one.example}\n```"])


def listed(kind: str) -> str:
    """A table of a kind's pieces with one line each; methods with their pages."""
    link = (lambda name: f"[`{name}`]({name}.md)") if kind == "method" else (lambda name: f"[`{name}`](#{kind}-{name})")
    if kind == "preset":
        rows, link = config.presets(), lambda name: f"`{name}`"
    elif kind == "common":
        return options(facts.facts("scenario", "iid").common)
    elif kind == "keys":
        fields = {key: field for key, field in config.Config.model_fields.items() if field.description}
        rows = {
            key: f"{field.description}: {facts.default({'default': field.default})}" for key, field in fields.items()
        }
        link = lambda name: f"`{name}`"
    else:
        rows = {name: registry.line(registry.find(kind, name)) for name in registry.names(kind)}
    return "\n".join(["| | |", "|---|---|", *(f"| {link(name)} | {cell(line)} |" for name, line in rows.items())])


def options(rows: list[facts.Option]) -> str:
    """A table of options."""
    head = ["| option | values | default | |", "|---|---|---|---|"]
    return "\n".join(
        head + [f"| `{row.name}` | {cell(row.values)} | {cell(row.default)} | {cell(row.text)} |" for row in rows]
    )


def pieces(name: str) -> str:
    """The pieces that a method chooses, what it costs, and which add-ons it takes, found out by building it."""
    algorithm, calls = built(name)
    rows = []
    if calls:
        grouping, choices = calls[0]
        rows.append(("grouping", source(next(rule for rule in grouping if rule and named(rule) != "grouping"))))
        rows += [(WORDS[key], said(key, getattr(choices, key))) for key in WORDS]
    rows.append(("costs of a client-round, FedAvg's being 1", costs(algorithm.costs)))
    rows.append(("add-ons", ", ".join(f"[`{addon}`](#addon-{addon})" for addon in taken(name)) or "none"))
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows if value)])


def built(name: str, *more: str) -> tuple[Any, list[tuple[Any, Pieces]]]:
    """A method's algorithm on a tiny federation, and the pieces it was put together from."""
    calls = []
    whole = phases.clustered

    def clustered(setting: Any, grouping: Any, *, costs: Any = None, **choices: Any) -> Any:
        calls.append((grouping, Pieces(**choices)))
        return whole(setting, grouping, costs=costs, **choices)

    words = [*TINY, f"method.name={name}", *needed(name), *more]
    with mock.patch.object(phases, "clustered", clustered):
        algorithm = planned(config.read("quickstart", words)).algorithms
    return next(iter(algorithm.values())), calls


def needed(name: str) -> list[str]:
    """What a method's example has to set."""
    return [facts.NEEDED[name]] if name in facts.NEEDED else []


@cache
def taken(name: str) -> list[str]:
    """The add-ons that a method takes."""
    return [addon for addon in registry.names("addon") if takes(name, addon)]


def takes(name: str, addon: str) -> bool:
    """Whether a method takes an add-on."""
    bare = ["method.lam=0"] if (name, addon) == ("stocfl", "cam") else []  # a pull to what is added has no meaning
    try:
        built(name, f"method.addons=[{addon}]", *bare)
    except InputError:
        return False
    return True


def said(key: str, value: Any) -> str:
    """One choice in words; nothing where it is the neutral one."""
    if value == Pieces._field_defaults[key] and key not in ("weigh", "shared"):
        return ""
    if key == "terms":
        return ", ".join(pull(term) if isinstance(term, Pull) else source(term) for term in value)
    if key == "weigh":
        return {"by_size": "by their examples", "equally": "equally"}[value.__name__]
    if key == "shared":
        return {"mean": "the mean over all clients", "trained": "trained beside the cluster's", "added": "added"}[value]
    return "yes" if value is True or callable(value) else str(value)


def pull(term: Pull) -> str:
    """A proximal term, and towards what it pulls."""
    return (
        "`jcfl.objective.proximal` to " + {"own": "the cluster's model", "shared": "the shared model"}[term.to.__name__]
    )


def source(function: Callable[..., Any]) -> str:
    """Where a piece is from."""
    return f"`{function.__module__}.{named(function)}`"


def named(function: Callable[..., Any]) -> str:
    """The public function that made a piece."""
    return function.__qualname__.split(".")[0]


def costs(found: dict[str, float]) -> str:
    """Costs in words."""
    known = average(found, 1)
    return ", ".join(f"{key} {known[key]:g}" for key in ("storage", "communication", "computation") if key in known)


def prose(text: str) -> str:
    """A docstring's text as Markdown, with its letters for papers and its signs left alone."""
    return re.sub(r"(?<!`)([<*_])(?!`)", r"\\\1", text) if "`" not in text else text


def cell(text: str) -> str:
    """A text that can stand in a table."""
    return text.replace("|", "\\|").replace("*", "\\*")


def part(path: str, title: str = "") -> str:
    """A file, or the part of it under a heading, its headings as low as they can be, its pictures as docs find them."""
    beside = Path("..") / Path(path).parent
    text = (ROOT / path).read_text("utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", lambda found: f"{found[1]}{beside.as_posix()}/", text)
    if not title:
        return text.partition("\n")[2] if text.startswith("# ") else text
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{path} has no heading {title!r}")
    return re.sub(r"^##(#+ )", r"#\1", found[2], flags=re.MULTILINE)
