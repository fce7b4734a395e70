"""The parts of pages that come from elsewhere: descriptions from the registry, sections of other files.

A page calls the functions in `SUBSTITUTIONS` by MyST's substitutions, each in a line of its own: `{{ method("ifca") }}`
describes a method, `{{ answers(True) }}` is the table of clustered methods and their answers, `{{ pieces("addon") }}`
describes all pieces of a kind, `{{ table("method") }}` lists a kind, `{{ file("CHANGELOG.md") }}` is a file,
`{{ file("CONTRIBUTING.md", "Extension points") }}` a section of it, `{{ figures() }}` the table of all figures,
`{{ commands() }}` describes the command line, `{{ extras() }}` lists the optional packages.
"""

import json
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import typer

from jcfl import metrics, registry
from jcfl.cli import app
from jcfl.core.context import Context
from jcfl.core.method import QUESTIONS, Method
from jcfl.runs import config
from jcfl.runs.automatic import with_stand_ins
from jcfl.runs.plan import settled, takes
from jcfl.runs.reproducing.reading import shipped
from jcfl.runs.reproducing.tables import Table
from jcfl.view import facts, plotting
from jcfl.view.options import Option
from jcfl.view.options import keys as described_keys
from jcfl.view.reproduction import texts

registry.load()
ROOT = Path(__file__).parents[1]
TINY = ["scenario.clients=20", "model.hidden=4", "compare=[]"]
"""What is built to see which add-ons a method takes, besides the options of its example."""


def refuse_missing(pages: Iterable[str]) -> None:
    """Refuse a site in which a method has no page, or a page no method.

    Raises:
        ValueError: there is one.
    """
    there = {Path(page).stem for page in pages if page.startswith("methods/")} - {"index"}
    if odd := there ^ set(registry.names("method")):
        raise ValueError(f"docs/methods and the registry differ in {', '.join(sorted(odd))}")


def about_method(name: str) -> str:
    """The end of a method's page: what it is, its options, pieces, costs, add-ons and deviations."""
    one = facts.facts("method", name)
    parts = [f"## In short\n\n{prose(one.line)}", prose(one.text), papers(name), f"```sh\n{one.example}\n```"]
    parts += ["## Options", options(one.options) if one.options else "It has none of its own."]
    parts += ["## Seven answers", "[Each can be swapped](../pieces.md).", answers_of(name, one)]
    parts += ["## Deviations", prose(one.deviations)] if one.deviations else []
    return "\n\n".join(filter(None, parts))


def papers(name: str) -> str:
    """The papers of a method or an add-on as links, which are those of README's tables; empty if it has none."""
    readme = (ROOT / "README.md").read_text("utf-8")
    links = dict(re.findall(r"^\[(.+)\]: (https:.+)$", readme, re.MULTILINE))
    row = re.search(rf"^\| (?:`\w+`, )*`{name}`(?:, `\w+`)* \|.*\| (.*\[.*) \|$", readme, re.MULTILINE)
    return re.sub(r"\[([^]]+)\]", lambda found: f"[{found[1]}]({links[found[1]]})", f"Source: {row[1]}.") if row else ""


def all_pieces(kind: str) -> str:
    """All pieces of a kind, each under a heading of its own."""
    return "\n\n".join(section(kind, name) for name in registry.names(kind))


def section(kind: str, name: str) -> str:
    """A piece's facts under a heading of its own."""
    one = facts.facts(kind, name)
    parts = [f"({kind}-{name})=\n\n### `{name}`", prose(one.line), prose(one.text)]
    parts += [papers(name)] if kind == "addon" else []
    parts += [options(one.options)] if one.options else []
    parts += [f"**Deviations.** {prose(one.deviations)}"] if one.deviations else []
    parts += [f"In Python: `{one.python}`"] if one.python else []
    return "\n\n".join([*filter(None, parts), f"```sh\n{one.example}\n```"])


def listed(kind: str) -> str:
    """A table of a kind's pieces with one line each; methods with their pages."""
    link = (lambda name: f"[`{name}`]({name}.md)") if kind == "method" else (lambda name: f"[`{name}`](#{kind}-{name})")
    if kind == "preset":
        rows, link = config.presets(), lambda name: f"`{name}`"
    elif kind == "score":
        rows, link = {name: one.meaning for name, one in metrics.scores().items()}, lambda name: f"`{name}`"
    elif kind == "common":
        return options(facts.facts("scenario", "iid").common)
    elif kind == "keys":
        return keys()
    else:
        rows = {name: registry.line(registry.find(kind, name)) for name in registry.names(kind)}
    return "\n".join(["| | |", "|---|---|", *(f"| {link(name)} | {cell(line)} |" for name, line in rows.items())])


def keys() -> str:
    """A table of the keys of a configuration that are no sections."""
    rows = [f"| `{row.name}` | `{row.default}` | {cell(row.text)} |" for row in described_keys(config.Config)]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def options(rows: list[Option]) -> str:
    """A table of options.

    Raises:
        ValueError: one of them has no description.
    """
    if bare := [row.name for row in rows if not row.text.strip()]:
        raise ValueError(f"options without a description: {', '.join(bare)}")
    head = ["| option | values | default | |", "|---|---|---|---|"]
    return "\n".join(
        head + [f"| `{row.name}` | {cell(row.values)} | {cell(row.default)} | {cell(row.text)} |" for row in rows]
    )


def answers_of(name: str, one: facts.Facts) -> str:
    """A method's seven answers with links to them, what it costs, and which add-ons it takes."""
    rows = {question: linked(question, said) for question, said in one.answers.items()}
    rows["costs of one client in one round; FedAvg is 1"] = ", ".join(
        f"{key} {cost:g}" for key, cost in one.costs.items()
    )
    rows["add-ons"] = ", ".join(f"[`{addon}`](#addon-{addon})" for addon in taken(name)) or "none"
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())])


def answers(clustered: bool) -> str:
    """The table of methods and their answers, read from the methods' values; – where there is none.

    Args:
        clustered: whether the table is of the methods that group clients. That of the others has no columns for
            questions to which all of them have no answer.
    """
    names = [name for name in registry.names("method") if facts.method_value(name).group.clustered == clustered]
    found = {name: answer_cells(name) for name in names}
    shown = [question for question in QUESTIONS if any(cells[question] != "–" for cells in found.values())]
    rows = [f"| [{name}]({name}.md) | {' | '.join(cells[key] for key in shown)} |" for name, cells in found.items()]
    return "\n".join([f"| method | {' | '.join(shown)} |", "|---" * (1 + len(shown)) + "|", *rows])


def answer_cells(name: str) -> dict[str, str]:
    """One method's cells in the table of answers, by question."""
    found = dict(facts.facts("method", name).answers)
    if found["describe"] == "nothing":
        found["when"] = "nothing"  # groups that look at nothing never change
    return {key: "–" if said == "nothing" else linked(key, said) for key, said in found.items()}


def linked(question: str, said: str) -> str:
    """One answer; where it begins with a name that is registered, the name leads to its description."""
    kind, name = config.KINDS[question], re.split(r"\W", said)[0]
    if question in ("train", "answer") or name not in registry.names(kind):
        return cell(said)
    rest = cell(said.removeprefix(name))
    return f"[`{name}`](#{kind}-{name}){'<wbr>' if rest.startswith('(') else ''}{rest}"


def needed(name: str) -> list[str]:
    """What a method's example has to set."""
    return [facts.NEEDED[name]] if name in facts.NEEDED else []


@cache
def taken(name: str) -> list[str]:
    """The add-ons that a method takes."""
    found = []
    for addon in registry.names("addon"):
        bare = ("method.lam=0",) if (name, addon) == ("stocfl", "cam") else ()  # a pull to what is added has no meaning
        method, context = built(name, *bare)
        found += [addon] * takes(method, [{"name": addon}], context)
    return found


@cache
def built(name: str, *words: str) -> tuple[Method, Context]:
    """A method's value without add-ons, and the context of a small run of it."""
    plan = settled(with_stand_ins(config.read("quickstart", [*TINY, f"method.name={name}", *needed(name), *words])))
    (algorithm,) = plan.algorithms.values()
    if algorithm.method is None:
        raise ValueError(f"{name} is no value, so its add-ons are not known")
    return algorithm.method, plan.context


def prose(text: str) -> str:
    """A docstring's text as Markdown, in which no sign makes a quote, a list or a heading of a line."""
    text = re.sub(r"(?<!`)([<*_])(?!`)", r"\\\1", text) if "`" not in text else text
    return re.sub(r"^( *)(?=[>#]|[+-] )", r"\1\\", text, flags=re.MULTILINE)


def cell(text: str) -> str:
    """A text that can stand in a table."""
    return text.replace("|", "\\|").replace("*", "\\*")


def part(path: str, title: str = "") -> str:
    """A file, or the part of it under a heading, its headings as low as they can be.

    Its pictures, and its links to pages of the docs, lead there from the docs.
    """
    beside = Path("..") / Path(path).parent
    text = (ROOT / path).read_text("utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", lambda found: f"{found[1]}{beside.as_posix()}/", text)
    text = text.replace("](docs/", "](")
    if not title:
        return text.partition("\n")[2] if text.startswith("# ") else text
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{path} has no heading {title!r}")
    return re.sub(r"^##(#+ )", r"#\1", found[2], flags=re.MULTILINE)


def reproductions() -> str:
    """The papers' tables, the hours that each takes by budget, and the pages of those that have been run."""
    head = ["| table | | laptop, h | gpu, h | full, h | here |", "|---|---|---:|---:|---:|---|"]
    return "\n".join([*head, *(reproduction(name, table) for name, table in shipped().items())])


def reproduction(name: str, table: Table) -> str:
    """One of the papers' tables in the list."""
    numbers, budgets = table.given.printed, table.given.budgets
    hours = [f"{budgets[budget].hours:g}" if budget in budgets else "–" for budget in ("laptop", "gpu", "full")]
    pages = [budget for budget in budgets if (ROOT / "docs" / "reproduction" / f"{name}-{budget}.md").is_file()]
    links = ", ".join(f"[{budget}]({name}-{budget}.md)" for budget in pages)
    return f"| `{name}` | {cell(f'{numbers.source}: {numbers.caption}')} | {' | '.join(hours)} | {links or '–'} |"


def commands() -> str:
    """Every command of the command line: what it does, its arguments and its options."""
    found = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    return "\n\n".join(about_command(name, found[name]) for name in sorted(found))


def about_command(name: str, command: Any) -> str:
    """A command's help and a table of its arguments and options."""
    rows = ["| argument or option | what it does | default |", "|---|---|---|"]
    for one in command.params:
        if one.hidden or "--help" in one.opts:
            continue
        argument = not one.opts[0].startswith("-")
        value = one.metavar or ("" if argument or one.is_flag else one.name.upper())
        names = value if argument else f"{', '.join([*one.opts, *one.secondary_opts])} {value}".strip()
        given = (
            ""
            if isinstance(one.default, bool | None) or one.default in ((), [])
            else str(getattr(one.default, "value", one.default))
        )
        default = one.show_default if isinstance(one.show_default, str) else f"`{given}`" if given else ""
        rows.append(f"| `{cell(names)}` | {cell(with_options(one.help or ''))} | {cell(default)} |")
    return "\n\n".join([f"## jcfl {name}", with_options(prose(command.help or "")), "\n".join(rows)])


def with_options(text: str) -> str:
    """A text in which the options of commands are code."""
    return re.sub(r"(?<![`\w])--[a-z-]+", r"`\g<0>`", text)


def extras() -> str:
    """The optional packages of the project, and what they are for."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    lines = text.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0].splitlines()
    why = {line.partition(" = ")[0]: line.partition("# ")[2] for line in lines if " = [" in line}
    rows = ["| name | packages | what for |", "|---|---|---|"]
    for name, packages in tomllib.loads(text)["project"]["optional-dependencies"].items():
        rows.append(f"| `{name}` | {', '.join(f'`{one}`' for one in packages)} | {cell(why.get(name, ''))} |")
    return "\n".join(rows)


def verdicts() -> str:
    """The verdicts on the claims of the tables that have been run, with a bar for each kind of claim."""
    rows = ["| table | | numbers | orders | seeds |", "|---|---|---|---|---:|"]
    for file in sorted((ROOT / "docs" / "reproduction").glob("*.json")):
        found = json.loads(file.read_text("utf-8"))
        seeds = len({seed for one in found["made"] for seed in one["seeds"]})
        source = re.sub(r" \([^()]*\)$", "", found["source"])
        counts = " | ".join(verdicts_of(found["counts"][kind]) for kind in ("numbers", "orders"))
        rows.append(f"| [{file.stem}]({file.stem}.md) | {cell(source)} | {counts} | {seeds or '–'} |")
    return "\n".join(rows)


def verdicts_of(counts: dict[str, int]) -> str:
    """A bar of the verdicts on the claims that were run, and how many claims have which."""
    there = {verdict: counts[verdict] for verdict in texts.MARKS if verdict in counts and verdict != "not run"}
    parts = [f'<i class="{verdict.replace(" ", "-")}" style="flex: {n}"></i>' for verdict, n in there.items()]
    bar = f'<span class="verdicts" aria-hidden="true">{"".join(parts)}</span>' if parts else ""
    words = [f"{n}&nbsp;{texts.MARKS[verdict]}" for verdict, n in there.items()]
    words += [f"{counts['not run']}&nbsp;not&nbsp;run"] if "not run" in counts else []
    return f"{bar}{', '.join(words)}"


def doubts() -> str:
    """The printed cells that the papers themselves make doubtful, and why."""
    rows = ["| printed in | rows | cells | what is doubtful |", "|---|---|---:|---|"]
    for table in shipped().values():
        for one in table.given.printed.suspect:
            cells = sum(len(columns) for columns in one.cells.values())
            names = "all" if len(one.cells) == len(table.given.printed.rows) else ", ".join(one.cells)
            rows.append(f"| {table.given.printed.source} | {cell(names)} | {cells} | {cell(one.why)} |")
    return "\n".join(rows)


def figures() -> str:
    """The figures of runs, their options in `jcfl plot`, and the figures of papers that the page says how to draw."""
    drawn = paper_figures((ROOT / "docs" / "figures.md").read_text("utf-8"))
    rows = ["| figure | what it shows | options | in papers |", "|---|---|---|---|"]
    for name, draw in plotting.FIGURES.items():
        line = re.sub(r" \([^()]*, Figs?\. [^()]*\)", "", registry.line(draw))  # the last column says it
        options = ", ".join(
            f"`--{key}`" for key in ("at", "by", "distance", "seed", "cluster") if key in plotting.parameters(name)
        )
        papers = [f"{paper}: {', '.join(numbers)}" for paper, numbers in drawn.get(name, {}).items()]
        rows.append(f"| `{name}` | {cell(line)} | {options} | {'; '.join(papers)} |")
    return "\n".join(rows)


def paper_figures(page: str) -> dict[str, dict[str, list[str]]]:
    """The numbers of papers' figures by our figure and by paper, from the commands under the headings of a page."""
    found: dict[str, dict[str, list[str]]] = {}
    for paper in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        for part in re.split(r"^#### Figures? ", paper, flags=re.MULTILINE)[1:]:
            names = [name for some in re.findall(r"--figure (\S+)", part) for name in some.split(",")]
            names += ["heatmap"] * bool(re.search(r"^jcfl show ", part, re.MULTILINE))
            for name in dict.fromkeys(names):
                found.setdefault(name, {}).setdefault(paper.partition("\n")[0], []).append(part.partition("\n")[0])
    return found


SUBSTITUTIONS = {
    **{"method": about_method, "answers": answers, "pieces": all_pieces, "table": listed, "file": part},
    "commands": commands,
    "extras": extras,
    "reproductions": reproductions,
    "verdicts": verdicts,
    "doubts": doubts,
    "figures": figures,
}
"""The functions that pages call."""
