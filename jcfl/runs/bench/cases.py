"""The rounds that are compiled for other devices: cases with names of their own, presets, and users' files."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jcfl.errors import unknown
from jcfl.runs.bench.work import made_up_federation, table_one
from jcfl.runs.config import Config, presets
from jcfl.runs.objects import Objects
from jcfl.runs.plan import Plan, config_and_objects, planned

Maker = Callable[[bool, int], Plan]
"""A case's plan: whether it is tiny, and how many devices share the clients."""


def stocfl(share: float, engine: str) -> Maker:
    """StoCFL's round of Table 1."""
    return lambda quick, devices: table_one(quick, None, participation=share, engine=engine, devices=devices)


def fedavg(model: str, size: int) -> Maker:
    """A round of FedAvg with 1,000 clients of 300 images."""

    def make(quick: bool, devices: int) -> Plan:
        federation = made_up_federation(16 if quick else 1000, 20 if quick else 300)
        train = {"lr": 0.01, "epochs": 1, "batch_size": size}
        given = {"model": model, "method": "fedavg", "train": train, "devices": devices}
        return planned(*config_and_objects(federation, given))

    return make


def own_models(method: str) -> Maker:
    """A round with a model for each of 4,800 clients, which together take 31 GB; a tenth of the clients trains."""

    def make(quick: bool, devices: int) -> Plan:
        federation = made_up_federation(*(16, 20) if quick else (4800, 50))
        model = {"name": "mlp", "hidden": 16 if quick else 2048}
        train = {"lr": 0.1, "epochs": 5, "batch_size": 50}
        given = {"model": model, "method": method, "train": train, "participation": 0.1, "devices": devices}
        return planned(*config_and_objects(federation, given))

    return make


def quickstart(method: Any) -> Maker:
    """A round of one of the quickstart's methods."""
    changed = {"method": method} if method else {}
    return lambda quick, devices: planned(
        *config_and_objects("quickstart", {**changed, "compare": [], "devices": devices})
    )


CASES: dict[str, Maker] = {
    "stocfl-10-factored": stocfl(0.1, "factored"),
    "stocfl-10-general": stocfl(0.1, "general"),
    "stocfl-100-factored": stocfl(1.0, "factored"),
    "stocfl-100-general": stocfl(1.0, "general"),
    "fedavg-cnn": fedavg("cnn_fashion", 32),
    "fedavg-mlp": fedavg("mlp", 20),
    "ditto-4800": own_models("ditto"),
    "fesem-4800": own_models("fesem"),
    "quickstart-stocfl": quickstart(None),
    "quickstart-fedavg": quickstart("fedavg"),
    "quickstart-ifca": quickstart({"name": "ifca", "clusters": 4}),
    "quickstart-majority": quickstart("majority"),
}
"""The cases with a name of their own. A preset or a file is a case as well."""


def planned_for(devices: int, name: str, quick: bool, data_dir: str | None) -> Plan:
    """A case's plan on so many devices of the target."""
    if name in CASES:
        return CASES[name](quick, devices)
    return planned(*configuration(name, devices, Path(data_dir) if data_dir is not None else None))


def configuration(name: str, devices: int, data_dir: Path | None) -> tuple[Config, Objects]:
    """The main method of a preset or of a file, on so many devices.

    Raises:
        InputError: there is no such file or preset, or the configuration has a mistake.
    """
    known = [*CASES, *presets()]
    if name not in known and re.fullmatch(r"[\w-]*", name) and not os.path.exists(name):
        raise unknown("case or preset (and no such file):", name, known)
    given = {"compare": (), "devices": devices, "tuned": None}  # trials of an earlier run were another machine's
    return config_and_objects(name, given | ({"data_dir": str(data_dir)} if data_dir is not None else {}))
