"""Commands and code in README and docs."""

import re
import shlex
from typing import Any

import typer

from jcfl import cli
from jcfl.cli import viewing
from jcfl.cli.arguments import configured, grid, separated
from jcfl.cli.tuning import axes
from jcfl.cli.viewing import kinds
from jcfl.runs import automatic, config, plan
from jcfl.runs.config import Config
from jcfl.runs.objects import Objects
from jcfl.runs.reproducing.reading import find
from jcfl.runs.sweeping.points import points
from jcfl.view import facts, plotting


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """What its shell blocks have jcfl do."""
    joined = "".join(blocks(text, "sh")).replace("\\\n", " ")
    parts = [part.strip() for line in joined.splitlines() for part in line.split("&&")]
    return [part for part in parts if part.startswith("jcfl ")]


def checked(command: str) -> None:
    """Parse a command and plan the run of the configuration it names, if it names one; raises what is wrong with it."""
    _, name, *words = shlex.split(command, comments=True)
    if name == "--install-completion":
        return
    found = typer.main.get_command(cli.app)
    context = found.commands[name].make_context(name, words)  # pyright: ignore[reportAttributeAccessIssue]
    if name in ("run", "show", "sweep", "tune") and context.params.get("resume") is None:
        given = configured(*separated(context.params["words"], context.params["overrides"]))
        over = grid(context.params["over"]) if name == "sweep" else None
        for one in [point.config for point in points(given, over).points] if over else [given]:
            refuse_unplanned(one)
    if name == "reproduce" and not context.params["as_list"]:
        table = find(context.params["table"])
        known = {*table.given.printed.rows, *table.given.printed.columns, *table.given.beside}
        assert {*(context.params["only"] or [])} <= known and table.budget(context.params["budget"])
    if name == "plot":
        refuse_figures(context.params)
    if name == "tune":
        axes(context.params["over"])
    if name == "list" and context.params["what"] not in config.presets():
        assert context.params["what"] in (None, *kinds()) or facts.facts_by_name(context.params["what"])


FEDERATIONS: dict[str, Any] = {}
"""Federations that were made, by their sections; many commands share one."""


def refuse_unplanned(given: Config) -> None:
    """Refuse a configuration whose run would be refused before it trains, if its data are at hand."""
    if getattr(given.data, "name", None) != "digits":
        return
    sections = repr((given.data, given.scenario))
    if sections not in FEDERATIONS:
        FEDERATIONS[sections] = plan.federation_of(given)
    plan.planned(automatic.with_stand_ins(given), Objects(federation=FEDERATIONS[sections]))


def refuse_figures(params: dict[str, Any]) -> None:
    """Refuse figures and options that `jcfl plot` would refuse before it reads a run."""
    names = [name for option in params["names"] or [] for name in option.split(",")]
    viewing.refuse_unknown(names, params["formats"].split(","))
    given = {key: params[key] for key in ("by", "seed", "cluster")} | {"at": params["at"] and params["at"].split(",")}
    chosen = {key: value for key, value in given.items() if value is not None}
    plotting.refuse_untaken(names or list(plotting.FIGURES), chosen)
