"""Draw the pictures of README and docs: python docs/pictures.py [clusters] [methods] [scenarios] [figures] …"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import jcfl
from jcfl import data, registry, results
from jcfl.view import plotting
from jcfl.view.plotting.cosines import draw_strip, full_matrix, places, remove_axes, scatter
from jcfl.view.plotting.lines import scale_axis
from jcfl.view.plotting.style import COLOURS, PAGE, STYLE, Picture, encoded, line, matched, ranked

PLACE = Path(__file__).parent / "pictures"
DPI = 160
GREY = "#8F8F8F"

CLIENTS = {
    "data": "digits",
    "scenario": {"name": "rotated", "clients": 40, "angles": [0, 90, 180, 270], "scale": "standard"},
    "model": {"name": "mlp", "hidden": 64, "init": "torch"},
    "train": {"lr": 0.1, "epochs": 2, "batch_size": 20},
    "rounds": 30,
    "evaluate_every": 1,
}
"""The federation of the methods' pictures, and how it is trained on."""

OPTIONS: dict[str, dict[str, Any]] = {
    "stocfl": {"tau": 0.42},
    "flhc": {"clusters": 4, "at": 5},
    "fesem_ma": {"represent": "whole"},
    "clustered": {"describe": "gradient", "compare": "cosine", "group": {"name": "linkage", "clusters": 4}},
}
"""What a method's picture needs besides its defaults."""

EVERYBODY = ("cfl", "fesem", "wecfl", "fesem_ma")
"""Methods whose papers ask all clients each round; the others' pictures ask 30 % of them."""

MATRICES = {
    "iid": {},
    "pathological": {},
    "dirichlet": {"alpha": 0.1},
    "n_class": {},
    "grouped_dirichlet": {"groups": 4},
    "grouped_n_class": {"groups": 4},
}
"""Scenarios whose labels are drawn, and their options."""


def clusters() -> Iterator[tuple[str, Figure]]:
    """Clusters forming, for README: clients as points after some rounds, and four methods' figures over rounds."""
    with tempfile.TemporaryDirectory() as folder:
        history = jcfl.run("quickstart", evaluate_every=1, out=Path(folder) / "run")
        facts = results.federation(history)
    labels = ranked(history.labels[0])[:, facts["compared"]]
    points = places(full_matrix(facts["cosine"], len(facts["compared"])))
    with matplotlib.rc_context(STYLE):
        shown = Picture(figsize=(PAGE, 4.2))
        grid = shown.add_gridspec(2, 12, height_ratios=(1, 1.15))
        for i, round in enumerate((1, 3, 8)):
            now = labels[list(history.rounds).index(round)]
            axis = shown.add_subplot(grid[0, 3 * i : 3 * i + 3])
            scatter(axis, points, now, "cluster")
            unlabelled(axis, f"round {round}: {(now >= 0).sum()} clients sampled")
        axis = shown.add_subplot(grid[0, 9:])
        scatter(axis, points, matched(labels[-1], history.groups[facts["compared"]]), "group")
        unlabelled(axis, "the true groups")
        axis = shown.add_subplot(grid[1, :4])
        for index, run in enumerate((history, *history.others.values())):
            axis.plot(run.rounds, run["accuracy_micro"][0], label=run.name, **line(index))
        scale_axis(axis, "accuracy_micro")
        axis.set(xlabel="round", ylim=(0, 1))
        axis.legend(loc="center right")
        for column, run in zip((4, 8), (history, history.others["ifca"]), strict=True):
            axis = shown.add_subplot(grid[1, column : column + 4])
            membership(axis, run, 20)
            axis.set_title(f"{run.name}: {count(run.labels[0, -1])}", fontsize=7)
    yield "clusters", shown


def methods() -> Iterator[tuple[str, Figure]]:
    """A picture for every method: accuracy over rounds, and which client is in which cluster."""
    registry.load()
    runs: dict[str, results.History] = {}
    sampled = [name for name in registry.names("method") if name not in (*EVERYBODY, "fedavg")]
    for names, participation in ((sampled, 0.3), (EVERYBODY, 1.0)):
        chosen = [{"name": name, **OPTIONS.get(name, {})} for name in dict.fromkeys((*names, "local"))]
        base = jcfl.run(CLIENTS | {"method": "fedavg", "compare": chosen, "participation": participation})
        runs |= {name: run for name, run in base.others.items() if name not in runs}
        runs.setdefault("fedavg", base)
        for name in names:
            yield f"methods/{name}", method(runs[name], base, base.others["local"])
    yield "methods/fedavg", method(runs["fedavg"], runs["fedavg"], runs["local"])


def method(run: results.History, fedavg: results.History, local: results.History) -> Figure:
    """One method beside FedAvg and training alone."""
    with matplotlib.rc_context(STYLE):
        shown = Picture(figsize=(PAGE, 2.3))
        left, right = shown.subplots(1, 2)
        for other, look in ((fedavg, (0, (4, 2))), (local, (0, (1, 1.2)))):
            if other.name != run.name:
                left.plot(other.rounds, other["accuracy_micro"][0], color=GREY, linestyle=look, label=other.name)
        left.plot(run.rounds, run["accuracy_micro"][0], color=COLOURS[0], label=run.name)
        scale_axis(left, "accuracy_micro")
        left.set(xlabel="round", ylim=(0, 1.02))
        left.legend(loc="best")
        labels = run.labels[0]
        if 1 < len(np.unique(labels[labels >= 0])) < labels.shape[1]:
            membership(right, run)
        else:
            spread(right, run, [fedavg, local])
    return shown


def membership(axis: Axes, run: results.History, rounds: int | None = None) -> None:
    """Every client's cluster over the first rounds; clients in the order of their true groups."""
    order = np.argsort(run.groups, kind="stable")
    shown = run.rounds[:rounds]
    draw_strip(axis, ranked(run.labels[0])[:rounds, order].T)
    axis.set(xlabel="round")
    edges = np.flatnonzero(np.diff(run.groups[order]))
    for edge in edges:
        axis.axhline(edge + 0.5, color="white", linewidth=1.5)
    ticks = np.linspace(0, len(shown) - 1, 4).round().astype(int)
    axis.set_xticks(ticks, [str(shown[i]) for i in ticks])
    middles = np.convolve([-0.5, *(edges + 0.5), len(order) - 0.5], [0.5, 0.5], "valid")
    axis.set_yticks(middles, [f"group {name}" for name in np.unique(run.groups)], rotation=90, va="center")
    axis.tick_params(length=0)
    axis.set_title(f"{count(run.labels[0, -1])} at the end", fontsize=7)


def spread(axis: Axes, run: results.History, others: list[results.History]) -> None:
    """How accuracy is spread over clients at the end."""
    looks: dict[str, dict[str, Any]] = {run.name: {"color": COLOURS[0], "linestyle": "-"}}
    dashes = {others[0].name: (0, (4, 2)), others[1].name: (0, (1, 1.2))}
    looks |= {name: {"color": GREY, "linestyle": dash} for name, dash in dashes.items() if name != run.name}
    for one in {other.name: other for other in (*others, run)}.values():
        ascending = np.sort(one.accuracy_clients[0, -1])
        x, y = np.r_[ascending[:1], ascending], np.linspace(0, 1, len(ascending) + 1)
        axis.plot(x, y, drawstyle="steps-post", **looks[one.name])
    axis.set(xlabel="accuracy at the end", ylabel="clients with at most this", ylim=(0, 1))
    axis.set_xlim(right=1)
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(PercentFormatter(1))


def scenarios() -> Iterator[tuple[str, Figure]]:
    """What labels clients have in several scenarios."""
    digits = data.load("digits")
    with matplotlib.rc_context(STYLE):
        shown = Picture(figsize=(PAGE, 3.6))
        image = None
        for axis, (name, options) in zip(shown.subplots(2, 3).ravel(), MATRICES.items(), strict=True):
            federation = data.federation(digits, name, clients=24, **options)
            counts = data.label_counts(federation)[np.argsort(federation.groups, kind="stable")]
            image = axis.imshow(counts.T / counts.sum(1), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axis.set(title=name, xlabel="client", ylabel="class", xticks=[], yticks=range(0, 10, 3))
            axis.grid(False)
        assert image is not None
        bar = shown.colorbar(image, ax=shown.axes, shrink=0.6, format=PercentFormatter(1))
        bar.set_label("of the client's examples")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    yield "scenarios", shown


def figures() -> Iterator[tuple[str, Figure]]:
    """What `jcfl plot` draws of the tutorial's run."""
    with tempfile.TemporaryDirectory() as folder:
        history = jcfl.run("quickstart", rounds=40, evaluate_every=2, out=Path(folder) / "run")
        yield "figures/curves", plotting.curves([history], scores=("accuracy_micro", "loss"))
        yield "figures/clusters", plotting.clusters([history])
        yield "figures/clients", plotting.clients([history])
        yield "figures/embedding", plotting.embedding(history)
        for draw in (plotting.similarity, plotting.sizes, plotting.flow, plotting.samples):
            yield f"figures/{draw.__name__}", draw(history)


def sweep() -> Iterator[tuple[str, Figure]]:
    """What the threshold decides, from a sweep."""
    with tempfile.TemporaryDirectory() as folder:
        values = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
        settings = CLIENTS | {"method": "stocfl", "participation": 0.3, "evaluate_every": 30, "seeds": 2}
        found = jcfl.sweep(settings, {"method.tau": values}, out=Path(folder) / "sweep")
        yield "figures/effect", plotting.effect(found.histories)


def decision() -> Iterator[tuple[str, Figure]]:
    """What quickstart's threshold was decided by."""
    history = jcfl.run("quickstart", compare=[], rounds=1, progress=False)
    yield "figures/decision", plotting.decision(history)


def search() -> Iterator[tuple[str, Figure]]:
    """Three methods tuned by the same number of trials, as the page about tuning does."""
    scenario = {"name": "rotated", "clients": 100, "angles": [0, 90, 180, 270], "scale": "standard", "validation": 0.2}
    given = {"scenario": scenario, "compare": ["fedavg", {"name": "ifca", "clusters": 4}], "rounds": 10}
    found = jcfl.tune("quickstart", sampler="tpe", trials=16, **given)
    yield "figures/search", plotting.search(found.rows(), found.by)


def halving() -> Iterator[tuple[str, Figure]]:
    """The same methods tuned by successive halving."""
    scenario = {"name": "rotated", "clients": 100, "angles": [0, 90, 180, 270], "scale": "standard", "validation": 0.2}
    given = {"scenario": scenario, "compare": ["fedavg", {"name": "ifca", "clusters": 4}], "rounds": 27}
    with tempfile.TemporaryDirectory() as folder:
        found = jcfl.tune("quickstart", trials=9, halving=3, evaluate_every=1, out=Path(folder) / "tune", **given)
        yield "figures/halving", plotting.search(found.rows(), found.by)


def unlabelled(axis: Axes, title: str) -> None:
    """A panel of points with a title and nothing else."""
    remove_axes(axis)
    axis.set_title(title, fontsize=7)
    if axis.get_legend():
        axis.get_legend().remove()  # pyright: ignore[reportOptionalMemberAccess]


def count(labels: np.ndarray) -> str:
    """How many clusters there are, in words."""
    many = len(np.unique(labels[labels >= 0]))
    return f"{many} cluster{'s' * (many != 1)}"


DRAWN: dict[str, Callable[[], Iterator[tuple[str, Figure]]]] = {
    function.__name__: function
    for function in (clusters, methods, scenarios, figures, sweep, search, halving, decision)
}


def main(names: list[str]) -> None:
    """Draw what is named, or everything."""
    for name in names or DRAWN:
        for stem, shown in DRAWN[name]():
            file = PLACE / f"{stem}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(shown, "png", DPI))
            print(f"{file.relative_to(PLACE.parent)}: {file.stat().st_size / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    jcfl.use_cache()
    main(sys.argv[1:])
