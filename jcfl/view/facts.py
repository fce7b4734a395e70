"""The description of a registered piece: its text, its options, an example command. For `jcfl list` and the docs."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from jcfl import metrics, registry
from jcfl.core.costs import costs
from jcfl.core.method import KINDS as ANSWERS
from jcfl.core.soft import SoftGroup
from jcfl.errors.words import docstring
from jcfl.view.mistakes import unknown_metric
from jcfl.view.options import Option, options

KINDS = {
    "method": "methods",
    "addon": "add-ons",
    "describe": "describe",
    "compare": "compare",
    "group": "group",
    "when": "when",
    "training": "what clients train",
    "aggregate": "aggregate",
    "answer": "answer",
    "data": "data",
    "scenario": "scenarios",
    "model": "models",
    "train": "local training",
    "attack": "attacks",
    "reliability": "reliability",
    "privacy": "privacy",
    "stop": "stop conditions",
    "track": "trackers",
    "score": "scores",
}
"""Every kind of piece, and its title."""

MEANINGS = {
    "describe": "how a client is described to the server",
    "compare": "how similar two descriptions are",
    "group": "how descriptions become clusters",
    "when": "the rounds in which clients are grouped",
    "what clients train": "method.train: loss terms, and which models",
    "aggregate": "how uploads become models",
    "answer": "how a client predicts",
    "attacks": "what hostile clients do",
    "reliability": "when clients are available, and which uploads arrive",
    "privacy": "clipping of and noise on what clients send",
    "stop conditions": "when training ends before the last round",
}
"""Explanations for the titles that do not explain themselves."""

NEEDED = {
    "arrays": "data.path=mine.npz",
    "tfds": "data.dataset=kmnist",
    "leaf": "data.path=leaf/data/femnist/data",
    "huggingface": "data.dataset=flwrlabs/femnist data.clients=writer_id",
    "medmnist": "data.file=bloodmnist.npz",
    "cfl": "participation=1",
    "flhc": "method.clusters=4",
    "local": "scenario.clients=20",
    "hybrid": "'data=[mnist, fashion_mnist]'",
    "natural": "data.name=gaussian",
    "cam": "method.lam=0",
    "cnn_cifar": "data.name=cifar10 --data-dir data",
    "cnn_e": "data.name=mnist --data-dir data",
    "cnn_path": "data.name=pathmnist --data-dir data",
    "cnn_celeba": "data.name=celeba scenario.name=natural --data-dir data",
}
"""The override that a piece's example command needs besides the name."""

LINKAGE = "'method.group={name: linkage, clusters: 4}'"
LOSSES = "method=clustered method.describe=losses method.compare=itself method.when=every"
LEAST = f"{LOSSES} method.group=least method.train=distinct"
SETTLED = "method=clustered method.describe=update method.compare=cosine method.group=bipartition method.when=settled"
MIXTURE = f"{LOSSES} method.group=em method.train=all_models method.answer=mixture"

EXAMPLES = {
    "describe": f"method=clustered method.describe=NAME method.compare=cosine {LINKAGE}",
    "describe nothing": "method=clustered method.describe=nothing",
    "describe losses": LEAST,
    "describe subspace": f"method=clustered method.describe=subspace method.compare=principal_angles {LINKAGE}",
    "describe accumulated": "method=clustered method.describe=accumulated method.compare=cosine "
    f"{LINKAGE} 'method.when={{name: once, at: 10}}'",
    "compare": f"method=clustered method.describe=gradient method.compare=NAME {LINKAGE}",
    "compare nothing": "method=clustered method.compare=nothing",
    "compare itself": LEAST,
    "compare noise_corrected": "method=clustered method.describe=gradient method.compare=noise_corrected "
    "'method.group={name: merge, tau: 0.5}' method.when=arrival",
    "compare kl": f"method=clustered method.describe=labels method.compare=kl {LINKAGE}",
    "compare principal_angles": f"method=clustered method.describe=subspace method.compare=principal_angles {LINKAGE}",
    "compare layer": "model.name=cnn_fashion method=clustered 'method.describe={name: model, part: kernels}' "
    f"method.compare=layer {LINKAGE}",
    "compare matched": "method=clustered method.describe=model method.compare=matched method.group=kmeans",
    "group": "method=clustered method.describe=gradient method.compare=cosine method.group=NAME",
    "soft group": MIXTURE.replace("group=em", "group=NAME"),
    "group without descriptions": "method=clustered method.group=NAME",
    "group merge": "method=clustered method.describe=gradient method.compare=cosine method.group=merge",
    "group together": "method=clustered method.group=together",
    "group alone": "scenario.clients=20 method=clustered method.group=alone",
    "group linkage": f"method=clustered method.describe=gradient method.compare=cosine {LINKAGE}",
    "group least": LEAST,
    "group em": MIXTURE,
    "group rc": MIXTURE.replace("group=em", "group=rc"),
    "group bipartition": f"{SETTLED} participation=1",
    "when": "method=wecfl method.when=NAME",
    "when arrival": "method=stocfl method.when=arrival",
    "when settled": f"{SETTLED} participation=1",
    "training": "method=ifca 'method.train={name: NAME, distinct: true}'",
    "training distinct": "method=ifca method.train=distinct",
    "training tied": "method=ifca 'method.train={name: tied, layers: [backbone], distinct: true}'",
    "training private": "method=fedavg 'method.train={name: private, layers: [head]}'",
    "training all_models": MIXTURE,
    "training nothing": "method=stocfl method.train=nothing",
    "aggregate": "method=ifca method.aggregate=NAME",
    "aggregate mean": "method=ifca 'method.aggregate={name: mean, server: adam, server_lr: 0.01}'",
    "answer": "method=ifca method.answer=NAME",
    "answer cluster": "method=ifca 'method.answer={name: cluster, tune: 5}'",
    "answer mixture": MIXTURE,
    "answer majority": "method=fedavg method.answer=majority",
    "attack": "attack=NAME",
    "reliability": "reliability.dropout=0.5",
    "privacy": "method=fedavg 'compare=[]' privacy.clip=1 privacy.noise=1",
    "stop": "stop=NAME",
}
"""The overrides in the example command of an answer, by kind, or by kind and name if a piece needs other ones."""

ATTACKED = "attack=sign_flip attack.share=0.2"
WITH_CAM = "method=ifca 'method.addons=[{name: cam, warmup: 5}]' evaluate_quality=true"

MEASURED = {
    "dropped_clients": "on_divergence=drop_client",
    "reset_clusters": "on_divergence=drop_cluster",
    "neurons": "participation=1 model.spare=0.5 'method={name: fesem_ma, growth: 1}'",
    "excluded_hostile": f"{ATTACKED} 'method.addons=[exclude]'",
    "excluded_honest": f"{ATTACKED} 'method.addons=[exclude]'",
    "accuracy_shared": "evaluate_shared=true",
    "epsilon": EXAMPLES["privacy"],
    "trained_rounds": EXAMPLES["stop"].replace("NAME", "converged"),
    "partial_diversity": WITH_CAM,
    "squared_gradient_shared": WITH_CAM,
}
"""The overrides with which a run measures a score that the quickstart does not."""


class Facts(NamedTuple):
    """The description of one piece, as text."""

    kind: str
    name: str
    line: str
    text: str  # the rest of its docstring, without its sections
    deviations: str
    options: list[Option]
    common: list[Option]  # the options that every piece of the kind has
    example: str  # a command
    package: str = ""  # the module and the package of the piece, if that is not jcfl
    answers: Mapping[str, str] = {}  # a method's seven answers
    costs: Mapping[str, float] = {}  # of one client in one round of a method; FedAvg is 1
    python: str = ""  # where an answer can be imported from, for a `Method` in Python


def facts(kind: str, name: str) -> Facts:
    """The description of one registered piece.

    >>> registry.load()
    >>> [option.name for option in facts("method", "fedprox").options]
    ['mu', 'averaging']
    >>> facts("method", "ifca").answers["describe"]
    'losses'
    """
    if kind == "score":
        one = metrics.scores()[name]
        return Facts(kind, name, one.meaning, "", "", [], [], example(kind, name), outside_package(one.function))
    function = registry.find(kind, name)
    _, text, deviations = sections(function)
    shared = [row for other in registry.shared(kind) for row in options(other)]
    line, more = registry.line(function), {}
    if kind == "method" and (value := method_value(name)) is not None:
        clusters = getattr(value.group, "clusters", None) or 1  # one where the number is found or not given
        more = {"answers": value.answers(), "costs": costs(value, clusters)}
    if kind in ANSWERS.values() and "<" not in function.__qualname__:  # one inside a function has no path
        more = {"python": f"{function.__module__}.{function.__qualname__}"}
    found = Facts(kind, name, line, text, deviations, options(function), shared, example(kind, name))
    return found._replace(package=outside_package(function), **more)


def method_value(name: str) -> Any:
    """The value of a method with its defaults and the options of its example; None if it needs other options."""
    words = dict(word.split("=", 1) for word in NEEDED.get(name, "").split() if word.startswith("method."))
    given = {key.removeprefix("method."): yaml.safe_load(value) for key, value in words.items()}
    try:
        value = registry.find("method", name)(**given)
    except Exception:  # a user's method may need an option, a context, or a file that is not here
        return None
    return value if hasattr(value, "answers") else None


def outside_package(function: Any) -> str:
    """The module and the package of a function; an empty string for jcfl's own."""
    if function is None or function.__module__.partition(".")[0] == "jcfl":
        return ""
    return registry.origin(function)


def facts_by_name(word: str, beside: Iterable[str] = ()) -> list[Facts]:
    """The descriptions of all pieces with this name, at most one of every kind.

    Raises:
        InputError: no piece has this name; the nearest name, or the nearest word `beside` them, is offered.
    """
    name = metrics.bare_name(word)  # scores are described once, over whatever they are taken
    kinds = [kind for kind in KINDS if name in names(kind)]
    if not kinds:
        pieces = [one for kind in KINDS for one in names(kind)]
        raise unknown_metric("kind or name", word, [*titles(), *beside, *pieces])
    return [facts(kind, name) for kind in kinds]


def entry(kind: str, name: str) -> dict[str, Any]:
    """All about one piece: its line, its options as JSON schema, a method's answers and costs, a plug-in's package."""
    one = facts(kind, name)
    functions = [] if kind == "score" else [*registry.shared(kind), registry.find(kind, name)]
    schema = {key: option for function in functions for key, option in registry.schema(function).items()}
    more = {"answers": one.answers, "costs": one.costs, "package": one.package}
    return {"description": one.line, "options": schema} | {key: value for key, value in more.items() if value}


def names(kind: str) -> list[str]:
    """The names of a kind, those of plug-ins too."""
    registry.load()
    return list(metrics.scores()) if kind == "score" else registry.names(kind)


def lines(title: str) -> dict[str, str]:
    """The pieces of the kind with this title, with one line each."""
    kind = next(kind for kind, known in KINDS.items() if known == title)
    if kind == "score":
        return {name: metrics.scores()[name].meaning for name in names(kind)}
    return {name: registry.line(registry.find(kind, name)) for name in names(kind)}


def titles() -> dict[str, str]:
    """Every word that means a kind on the command line, and the kind's title."""
    return {word: title for kind, title in KINDS.items() for word in (title, kind)} | {"addons": KINDS["addon"]}


def sections(function: Callable[..., Any]) -> tuple[str, str, str]:
    """The first line of a function's docstring, the text below it, and its section Deviations."""
    head, *parts = re.split(r"^(Deviations|Args|Returns|Raises):\n", docstring(function), flags=re.MULTILINE)
    named = dict(zip(parts[::2], parts[1::2], strict=True))
    line, _, text = head.partition("\n")
    return line, text.strip(), inspect.cleandoc(named.get("Deviations", ""))


def example(kind: str, name: str) -> str:
    """An example command that uses the piece."""
    more = f" {NEEDED[name]}" if name in NEEDED else ""
    if kind == "score":
        return example_of_score(name)
    if kind in EXAMPLES:
        words = EXAMPLES.get(f"{kind} {name}") or EXAMPLES[like(kind, name)].replace("NAME", name)
        return f"jcfl run quickstart --set {words}"
    if kind == "track":
        return f"jcfl run quickstart --set 'track=[{name}]'"
    if kind == "addon":
        return f"jcfl run quickstart --set 'method.addons=[{name}]'{more}"
    if kind == "data":
        whose = " scenario.name=natural" if name in NATURAL else " scenario.name=iid"
        files = "" if name in ("digits", "gaussian", "arrays") else " --data-dir data"
        return f"jcfl show quickstart --set data.name={name}{more}{whose}{files}"
    if kind == "scenario":
        return f"jcfl show quickstart --set scenario.name={name}{more}" + (" --data-dir data" * (name == "hybrid"))
    shown = [option for option in options(registry.find(kind, name)) if re.fullmatch(r"[\d.]+", option.default)]
    more = more or (f" {kind}.{shown[0].name}={shown[0].default}" if shown else "")
    return f"jcfl run quickstart --set {kind}.name={name}{more}"


def like(kind: str, name: str) -> str:
    """The key of the example for all pieces like this one: a group that makes no labels may look at no description."""
    function = registry.find(kind, name)
    if kind != "group" or hasattr(function, "labels"):
        return kind
    is_soft = isinstance(function, type) and issubclass(function, SoftGroup)
    return "soft group" if is_soft else "group without descriptions"


def example_of_score(name: str) -> str:
    """An example command that measures the score: a sweep that chooses by it, or a run if it needs other keys."""
    one = metrics.score(name)
    usual = ATTACKED if "attacked" in one.over else "evaluate_quality=true" if "quality" in one.places else ""
    if words := MEASURED.get(name, usual):
        return f"jcfl run quickstart --set {words}"
    if one.better is None:
        return "jcfl run quickstart"
    return f"jcfl sweep quickstart --over train.lr=0.05,0.1 --by {name}"


NATURAL = ("arrays", "gaussian", "femnist", "celeba", "leaf", "huggingface")
"""Datasets that say which client owns each example."""
