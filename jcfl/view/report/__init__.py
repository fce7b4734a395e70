"""One HTML page about a run, or about several runs, which needs no network and no other file."""

import base64
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from jcfl import results
from jcfl.errors import Damaged, InputError
from jcfl.results import Folder, History
from jcfl.version import __version__
from jcfl.view import plotting
from jcfl.view.plotting.style import encoded
from jcfl.view.report import apart, clients, numbers

CAPTIONS = {
    "curves": (
        "Metrics over rounds",
        "Each client is tested on its own test examples, and clients are weighted by size. The band, or the bar of a "
        "single round, is one sample standard deviation over seeds.",
    ),
    "clusters": (
        "Clusters over rounds",
        "The number of clusters, the clustering objective if the method has one, and the agreement of the clusters "
        "with the true groups (1: equal, 0: random).",
    ),
    "clients": (
        "Accuracy of the clients",
        "The share of clients with at most this accuracy, and the clients with the lowest accuracy in the first run. "
        "Runs of other federations have other clients, and are left out there.",
    ),
    "effect": (
        "Effect of an option",
        "Metrics after the last round. Bars are one sample standard deviation over seeds.",
    ),
    "with_addons": (
        "With and without add-ons",
        "Metrics after the last round. Lines are one sample standard deviation.",
    ),
    "quality": (
        "Quality of the clusters",
        "Distances, gradients and the constants of Ma's analysis (2023); the constants are lower bounds.",
    ),
    "privacy": (
        "Metrics against ε",
        "Metrics after the last round against the ε of client-level differential privacy. Bars are one sample standard "
        "deviation over seeds; dashed lines are runs without privacy.",
    ),
    "heatmap": ("Labels", "The share of each client's training examples that has a label."),
    "decision": (
        "Choice of auto",
        "The distance of gradients of one part of the clients' training data from the mean gradient of their cluster "
        "in the other parts, by the threshold. The dashed line is the threshold that was chosen.",
    ),
    "embedding": (
        "Similarity of clients as points",
        "t-SNE of the cosine distances between clients' gradients at the initial model.",
    ),
    "similarity": (
        "Cosine similarity of clients",
        "Cosines of gradients at the initial model. Clients are ordered by cluster, with the colours on the left.",
    ),
    "group_similarity": (
        "Cosine similarity of true groups",
        "Mean cosines of gradients at the initial model, between clients of two true groups.",
    ),
    "model_embedding": (
        "Clients by their models",
        "t-SNE of the Euclidean distances between clients' own models, after the rounds of `compare_models`.",
    ),
    "model_similarity": (
        "Cosine similarity of models",
        "Cosines between clusters' models, and between clients' own models ordered by cluster.",
    ),
    "distances": (
        "Distances to the clusters",
        "Distances between each client's own model and each cluster's. Clients are ordered by cluster.",
    ),
    "by_cluster": (
        "Accuracy by cluster",
        "The mean over the clients of a cluster after the round, or of a true group. Clients that are held out, have "
        "not arrived yet or have left do not count, as in the metrics above.",
    ),
    "sizes": (
        "Cluster sizes",
        "The number of clients in each cluster after each evaluated round. Clients that are held out, have not arrived "
        "yet or have left are in no cluster here.",
    ),
    "flow": ("Moves between clusters", "The rounds shown are those between which most clients moved."),
    "groups_to_clusters": (
        "From true groups to clusters",
        "Clients of each true group by their cluster after the last round.",
    ),
    "stability": (
        "Stability of the clusters",
        "The adjusted Rand index between the clusters of two seeds, and between those of two successive evaluations; "
        "and the share of clients that changed their cluster. Bands are the minimum and the maximum over seeds.",
    ),
    "apart": (
        "Differences of the clusters",
        "Labels of each cluster's training examples, and of all clients' (black). V is Cramér's: 0 if the other "
        "clients have the same labels, 1 if they have none of them. The mean of the clients' images, and the "
        "difference of each pixel from other clients' (Cohen's d; 0.8 is large).",
    ),
    "samples": ("Images by cluster", "One training image of each client. The colour of its frame is its true group."),
}
"""The title and the caption of every figure."""


def page(runs: Sequence[History]) -> str:
    """The page as text.

    Args:
        runs: histories that were read from folders.

    Raises:
        InputError: nothing has been evaluated in any of the runs.
    """
    runs = list(runs)
    if not any(run.rounds.size for run in runs):
        raise InputError(f"{', '.join(plotting.titles(runs))}: nothing has been evaluated yet")
    titles = plotting.titles(runs)
    settings = [results.settings(run) for run in runs]
    return environment().get_template("page.html").render(
        title=page_title(runs),
        version=__version__,
        today=datetime.date.today().isoformat(),
        facts=numbers.facts(runs, settings, titles),
        states=[(title, *state) for title, run in zip(titles, runs, strict=True) if (state := numbers.state(run))],
        scores=numbers.scores(runs, titles),
        costs=numbers.costs(runs, titles),
        seeds=sorted({len(run.seeds) for run in runs}),
        figures=figures(runs),
        explained=apart.tables(runs, titles),
        clients=clients.table(runs, titles),
        differences=numbers.differences(settings, titles),
        made=how_made(runs, titles),
    )  # fmt: skip


def environment() -> jinja2.Environment:
    """The templates of the page. All values are escaped, because names in a run may contain HTML."""
    loader = jinja2.PackageLoader("jcfl.view", "report")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)


def page_title(runs: Sequence[History]) -> str:
    """The title of the page: the name of the runs' folder, or the number of runs."""
    folders = {str(run.folder.resolve()) if run.folder else run.name for run in runs}
    above = {str(results.home(run).resolve().parent.parent) for run in runs if results.home(run).parent.name == "runs"}
    if len(runs) > 1 and len(above) == 1:
        return Path(*above).name
    return Path(*folders).name if len(folders) == 1 else f"{len(runs)} runs"


def figures(runs: Sequence[History]) -> dict[str, list[dict[str, str]]]:
    """The figures of these runs, each as SVG in a data URL, by the title of the run that they show ("" for all)."""
    found: dict[str, list[dict[str, str]]] = {}
    for stem, figure in plotting.drawn(runs, columns=1):
        if isinstance(figure, Damaged):  # a page without it would look like that of a sound run
            raise figure
        if isinstance(figure, InputError):
            continue
        name, _, of = stem.partition("-")
        title, caption = CAPTIONS[name]
        image = base64.b64encode(encoded(figure, "svg")).decode()
        wide, high = (f"{96 * inches:.0f}" for inches in figure.get_size_inches())
        source = f"data:image/svg+xml;base64,{image}"
        entry = {"title": title, "caption": caption, "source": source, "stem": stem, "width": wide, "height": high}
        found.setdefault(of, []).append(entry)
    return found


def how_made(runs: Sequence[History], titles: Sequence[str]) -> list[dict[str, Any]]:
    """How to repeat the runs, and with what they were made: an entry for each configuration that was run."""
    together: dict[Path, list[str]] = {}
    for run, title in zip(runs, titles, strict=True):
        if run.folder is not None:
            together.setdefault(configured_folder(results.home(run)), []).append(title)
    return [{"title": ", ".join(names)} | how_configured(place) for place, names in together.items()]


def configured_folder(home: Path) -> Path:
    """The folder with the configuration that was run: for a part of a comparison, that of the comparison."""
    top = home.parent.parent
    return top if home.parent.name == "runs" and (top / "config.yaml").exists() else home


def how_configured(place: Path) -> dict[str, Any]:
    """What a folder's configuration says of how it was made."""
    folder = Folder(place)
    by = folder.yaml("config.yaml").get("made_by") or {}
    text = folder.text("config.yaml") if folder.has("config.yaml") else ""
    device = by.get("device") or {}
    return {
        "folder": str(place),
        "command": by.get("command"),
        "config": text,
        "download": f"data:application/yaml;base64,{base64.b64encode(text.encode()).decode()}",
        "versions": ", ".join(f"{name} {version}" for name, version in (by.get("versions") or {}).items()),
        "commit": by.get("commit"),
        "device": f"{device['count']} x {device['kind']} ({device['platform']})" if device else "",
    }
