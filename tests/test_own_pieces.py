"""What pieces of other authors return: a wrong shape, type or number ends in one clear line, and never in silence."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jcfl
from jcfl import InputError, registry
from jcfl.core.attacks import Attack
from jcfl.core.averaging import weighted_mean
from jcfl.core.faults import Faults
from jcfl.core.local import Local
from jcfl.core.method import Aggregate, Answer, Method, Piece, Train
from jcfl.core.neutral import Every
from jcfl.core.reliability import Reliability
from jcfl.core.stopping import Stop
from jcfl.core.terms import LossTerm
from jcfl.data import Dataset, Examples, federation, load
from jcfl.data.partition import Partition, pool, random_owners
from jcfl.errors import Notice, TrainingError
from jcfl.grouping.batch import Clustering
from jcfl.grouping.compare import L2, Distances
from jcfl.grouping.describe import OfData, OfUpload, TrainedModel
from jcfl.grouping.groups import KMeans, Linkage
from jcfl.grouping.when import Once, Window
from jcfl.methods import fedavg, wecfl
from jcfl.metrics import register_score
from jcfl.models import Network, task
from jcfl.registry import register
from jcfl.runs.answers import refuse_replaced
from jcfl.runs.config import read
from jcfl.runs.plan import config_and_objects, planned
from tests import tiny

RUN = {"model": "linear", "rounds": 2, "train": {"lr": 0.1, "epochs": 1}}

Change = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Means(OfData):
    """The mean of a client's examples, changed."""

    name: ClassVar[str] = "means"
    change: Any = lambda mean: mean

    def for_one_client(self, context):
        def described(memory, client, data):
            rows = data.x.reshape(data.x.shape[0], -1) * data.mask[:, None]
            return self.change(rows.sum(0) / jnp.maximum(data.mask.sum(), 1))

        return described


@dataclass(frozen=True, kw_only=True)
class HeadBias(OfUpload):
    """The update of the classifier's bias, which is neither a whole update nor a model."""

    name: ClassVar[str] = "head_bias"
    change: Any = lambda update: update

    def vectors(self, context, sent, models):
        bias = lambda model: model["params"]["head"]["bias"]
        return self.change(bias(models) - bias(sent))


@dataclass(frozen=True, kw_only=True)
class Far(Distances):
    """The distance of the first numbers, changed."""

    name: ClassVar[str] = "far"
    change: Any = lambda distance: distance

    def metric(self, context, describe):
        return lambda points, centres: self.change(jnp.abs(points[:, None, 0] - centres[None, :, 0]))


@dataclass(frozen=True, kw_only=True)
class Halves(Clustering):
    """The clients with even numbers and the others, changed."""

    name: ClassVar[str] = "halves"
    change: Any = lambda labels: labels

    def slots(self, context):
        return 2

    def labels(self, method, context, compare):
        return lambda key, points, weights, present, centres: self.change(jnp.arange(present.size) % 2)


@dataclass(frozen=True, kw_only=True)
class Averaged(Piece):
    """The weighted mean, changed."""

    name: ClassVar[str] = "averaged"
    change: Any = lambda models: models

    def bind(self, context):
        return lambda key, federation, who: lambda *args: self.change(weighted_mean(*args))


@dataclass(frozen=True)
class Constant(LossTerm):
    """A term that returns what it was given."""

    value: Any

    def build(self, task):
        return lambda model, batch, sent: self.value(batch)


def each(change: Change) -> Change:
    """The change of every array of a tree."""
    return lambda tree: jax.tree.map(change, tree)


ONCE = Method(describe=Means(), compare=L2(), group=KMeans(clusters=2), when=Once(), name="own")

PIECES = {
    "a description that is one number": (
        replace(ONCE, describe=Means(change=jnp.sum)),
        r"describe 'means': expected floats or whole numbers of shape \[1, n, …\]; got float32 \[1\]",
    ),
    "no description": (
        replace(ONCE, describe=Means(change=lambda mean: None)),
        "describe 'means': expected .*got None",
    ),
    "a description that mixes clients": (
        replace(ONCE, describe=HeadBias(change=lambda update: update.mean(0)), when=Every()),
        r"describe 'head_bias': expected .* \[1, n, …\]; got float32 \[10\]",
    ),
    "distances without an axis": (
        replace(ONCE, compare=Far(change=lambda distance: distance[0])),
        r"compare 'far': expected floats of shape \[8, \d\]; got float32 \[\d\]",
    ),
    "labels in floats": (
        replace(ONCE, group=Halves(change=lambda labels: labels * 1.0)),
        r"group 'halves': expected whole numbers of shape \[8\]; got float32 \[8\]",
    ),
    "one label for all": (
        replace(ONCE, group=Halves(change=lambda labels: labels[0])),
        r"group 'halves': expected whole numbers of shape \[8\]; got int32 \[\]",
    ),
    "too few labels, in every round": (
        replace(ONCE, group=Halves(change=lambda labels: labels[:3]), describe=HeadBias(), when=Every()),
        r"group 'halves': expected whole numbers of shape \[8\]; got int32 \[3\]",
    ),
    "models of fewer clusters": (
        replace(ONCE, aggregate=Aggregate(rule=Averaged(change=each(lambda leaf: leaf[:1])))),
        r"aggregate 'averaged.*': expected params.head.bias as float32 \[2, 10\]; got float32 \[1, 10\]",
    ),
    "models in another precision": (
        replace(ONCE, aggregate=Aggregate(rule=Averaged(change=each(lambda leaf: leaf.astype(jnp.float16))))),
        r"expected params.head.bias as float32 \[2, 10\]; got float16 \[2, 10\]",
    ),
    "parameters in place of models": (
        replace(ONCE, aggregate=Aggregate(rule=Averaged(change=lambda models: models["params"]))),
        "expected params.head.bias, float32 .*; got head.bias, head.kernel",
    ),
    "a loss of every example": (
        replace(ONCE, train=Train(terms=(Constant(lambda batch: jnp.ones(batch.y.shape)),))),
        r"loss term Constant.build: expected floats or whole numbers of shape \[\]; got float32",
    ),
    "no loss": (
        replace(ONCE, train=Train(terms=(Constant(lambda batch: None),))),
        "loss term Constant.build: expected .*; got None",
    ),
}


@pytest.mark.parametrize("which", PIECES)
def test_what_a_piece_of_a_method_returns_is_checked_before_training(which, tmp_path):
    method, said = PIECES[which]
    with pytest.raises(InputError, match=said):
        jcfl.run(tiny.federation(), **RUN, method=method, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def fails(*given: Any, **more: Any) -> Any:
    """What any function of a user's may do."""
    raise KeyError("size")


@dataclass(frozen=True)
class Unbuilt(LossTerm):
    """A term that cannot be built."""

    build = fails


class Untrained(Local):
    """A trainer that cannot train."""

    train = fails


RAISING = {
    "describe": (replace(ONCE, describe=Means(change=fails)), ["describe 'means'", "group 'kmeans': init"]),
    "compare": (replace(ONCE, compare=Far(change=fails)), ["compare 'far'", "group 'kmeans': init"]),
    "group": (replace(ONCE, group=Halves(change=fails)), ["group 'halves': init"]),
    "aggregate": (replace(ONCE, aggregate=Aggregate(rule=Averaged(change=fails))), ["aggregate 'averaged"]),
    "train": (
        replace(ONCE, train=Train(terms=(Constant(fails),))),
        ["loss term Constant.build", "trainer Local"],
    ),
    "train, before": (replace(ONCE, train=Train(terms=(Unbuilt(),))), ["loss term Unbuilt: build"]),
}


@pytest.mark.parametrize("which", RAISING)
def test_an_exception_names_the_piece_that_raised_it(which):
    """Below its traceback, from the inside outwards."""
    method, names = RAISING[which]
    with pytest.raises(KeyError, match="size") as error:
        jcfl.run(tiny.federation(), **RUN, method=method)
    notes = [note.removeprefix("jcfl: raised in ") for note in error.value.__notes__ if note.startswith("jcfl")]
    assert len(notes) == len(names) + 1
    assert all(note.startswith(name) for note, name in zip(notes, [*names, "method 'own'"], strict=True))


def test_an_exception_of_a_registered_function_or_a_trainer_names_it():
    kinds = {"data": "data", "scenario": "scenario", "model": "model", "attack": "attack", "stop": "stop"}
    for kind, section in kinds.items():
        register(kind, "failing")(lambda *given: fails())
        with pytest.raises(KeyError) as error:
            jcfl.run({**RUN, **DATA, section: "failing"})
        assert error.value.__notes__[0] == f"jcfl: raised in {kind} 'failing'"
    with pytest.raises(KeyError) as error:
        jcfl.run(tiny.federation(), **RUN | {"train": Untrained(0.1, 1, None, "full", 0.0, 0.0)}, method="fedavg")
    assert error.value.__notes__[0] == "jcfl: raised in trainer Untrained"


def test_a_rule_that_is_no_dataclass_is_called_by_its_name():
    class Bare(Piece):
        name = "bare"
        bind = fails

    with pytest.raises(KeyError) as error:
        tiny.built(replace(ONCE, aggregate=Aggregate(rule=Bare())), tiny.setting())
    assert error.value.__notes__[0] == "jcfl: raised in aggregate 'bare'"


def test_a_trainer_returns_a_whole_model():
    class Short(Local):
        """A trainer that returns parameters only."""

        def train(self, objective, start, sent, data, key):
            return Local.train(self, objective, start, sent, data, key)["params"]

    trainer = Short(0.1, 1, None, "full", 0.0, 0.0)
    with pytest.raises(InputError, match=r"trainer Short: expected params.head.bias, float32 \[10\]; got head.bias"):
        jcfl.run(tiny.federation(), **(RUN | {"train": trainer}), method="fedavg")


DATA = {"data": "digits", "scenario": {"name": "iid", "clients": 8}, "method": "fedavg"}


@pytest.fixture
def forging():
    """Registers the attack `forged`, whose updates are the trained ones, changed."""

    def put(change):
        @dataclass(frozen=True, kw_only=True)
        class Forged(Attack):
            """The updates, changed."""

            name: ClassVar[str] = "forged"

            def forged(self, key, updates, crowd):
                return jax.tree.map(change, updates)

        @register("attack", "forged")
        def forged(*, share: float = 0.25) -> Attack:
            """The updates, changed."""
            return Forged(share=share)

    return put


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda leaf: leaf[0], r"expected head.bias as float32 \[8, 10\]; got float32 \[10\]"),
        (lambda leaf: leaf.astype(jnp.float16), r"expected head.bias as float32 \[8, 10\]; got float16 \[8, 10\]"),
    ],
)
def test_an_attack_returns_a_row_for_every_client(forging, change, said):
    forging(change)
    with pytest.raises(InputError, match=f"attack 'forged': {said}"):
        jcfl.run({**RUN, **DATA, "attack": "forged"})


def test_an_attack_without_attackers_changes_nothing(forging):
    forging(jnp.negative)
    none = jcfl.run({**RUN, **DATA, "attack": {"name": "forged", "share": 0.0}})
    np.testing.assert_allclose(none["loss"], jcfl.run({**RUN, **DATA})["loss"], rtol=1e-6)


@pytest.mark.parametrize("value", [lambda before, after: after.labels == before.labels, lambda before, after: None])
def test_a_stop_condition_returns_true_or_false(value):
    @dataclass(frozen=True, kw_only=True)
    class Ends(Stop):
        name: ClassVar[str] = "ends"

        def is_unchanged(self, before, after):
            return value(before, after)

    @register("stop", "ends")
    def ends(*, rounds: int = 1) -> Stop:
        return Ends(rounds=rounds)

    with pytest.raises(InputError, match=r"stop 'ends': expected true or false of shape \[\]; got"):
        jcfl.run(tiny.federation(), **RUN, method="fedavg", stop="ends")


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("addon", {"method": {"name": "fedavg", "addons": ["nothing"]}}, r"addon 'nothing': expected Method\(…\)"),
        ("attack", {"attack": "nothing"}, r"attack 'nothing': expected Attack\(…\)"),
        ("reliability", {"reliability": "nothing"}, r"reliability 'nothing': expected Reliability\(…\)"),
        ("stop", {"stop": "nothing"}, r"stop 'nothing': expected Stop\(…\)"),
        ("group", {"method": {"name": "ifca", "group": "nothing"}}, r"method.group: expected Group\(…\)"),
        ("train", {"train": {"name": "nothing"}}, "train: expected a mapping of options, or a trainer, got None"),
        ("model", {"model": "nothing"}, "model: nothing returned None; expected a jcfl.types.Task"),
    ],
)
def test_a_registered_function_returns_its_piece(kind, given, said):
    if kind == "addon":

        @register(kind, "nothing")
        def extended(method: Method) -> None:
            """An add-on without a return."""

    else:

        @register(kind, "nothing")
        def nothing(*args: Any) -> None:
            """A piece without a return."""

    with pytest.raises(InputError, match=said):
        jcfl.run(tiny.federation(), **({"method": "fedavg"} | RUN | given))


class NoDescription(OfData):
    """A description whose function has another name."""

    def for_a_client(self, context):
        return lambda memory, client, data: data.x.mean(0)


class NoMetric(Distances):
    """A comparison without a function."""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"describe": NoDescription()},
            r"NoDescription: expected a function for_one_client\(self, context\), as in every subclass of OfData; "
            "did you mean it by 'for_a_client'",
        ),
        (
            {"compare": NoMetric()},
            r"NoMetric: expected a function metric\(self, context, describe\), .* Distances$",
        ),
        (
            {"aggregate": Aggregate(rule=lambda labels, weights, uploads, default: default)},
            r"own: aggregate\.rule: expected an object with a function bind\(context\), .*got <function <lambda>",
        ),
        (
            {"aggregate": Aggregate(rule=Averaged)},
            r"own: aggregate\.rule: expected an object with a function bind\(context\), .*got <class .*Averaged'>",
        ),
        (
            {"aggregate": Aggregate(server=optax.adam(0.1))},
            r"own: aggregate\.server: expected .* function transformation\(\), .*got GradientTransformation",
        ),
    ],
)
def test_a_piece_that_lacks_a_function_is_refused_by_its_name(change, said):
    with pytest.raises(InputError, match=said):
        jcfl.run(tiny.federation(), **RUN, method=replace(ONCE, **change))


@pytest.mark.parametrize(
    ("shape", "classes", "said"),
    [
        ((4, 4, 1), 12, r"expected logits of 10 classes .*got shape \(12,\) an example; .* set classes=12"),
        ((4, 4, 1), 3, r"expected logits of 10 classes an example, got shape \(3,\) an example$"),
        ((16,), 10, r"model 'linear' cannot be called on examples of shape \(4, 4, 1\): "),
    ],
    ids=["more classes", "fewer classes", "other examples"],
)
@pytest.mark.parametrize("own", ["a task", "a registered function"])
def test_a_model_for_other_data_is_refused(own, shape, classes, said):
    """A task that was made elsewhere is tried out on the federation's shapes, as a module is."""
    made = task(Network(classes) if len(shape) > 1 else nn.Dense(classes), shape, classes, name="linear")
    register("model", "of_others")(lambda shape, classes: made)
    with pytest.raises(InputError, match=said) as error:
        model = made if own == "a task" else "of_others"
        jcfl.run(tiny.federation(), **(RUN | {"model": model, "rounds": 0}), method="majority")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("when", "group"), [(Window(first=0, last=2), KMeans(clusters=2)), (Every(), Linkage(clusters=2))]
)
def test_descriptions_of_uploads_are_kept_whatever_they_are(when, group):
    """Half of the clients take part in a round; the others are described by their last upload, or by zeros."""
    method = replace(ONCE, describe=HeadBias(), group=group, when=when)
    history = jcfl.run(tiny.federation(), **RUN, participation=0.5, method=method)
    assert np.isfinite(history["loss"]).all()
    assert set(history.labels[0, -1]) <= {0, 1}


def test_clients_without_a_label_stay_where_they_are():
    """-5 is no cluster: the client is in none before, and joins the cluster whose model fits it when it takes part."""
    odd = replace(ONCE, group=Halves(change=lambda labels: jnp.where(labels == 1, -5, labels)), compare=L2())
    history = jcfl.run(tiny.federation(), **RUN, participation=0.5, method=odd)
    assert set(history.labels.ravel().tolist()) <= {-1, 0, 1}
    every = replace(odd, describe=HeadBias(), when=Every())
    labels = jcfl.run(tiny.federation(), **RUN, method=every).labels[0]
    assert set(labels.ravel().tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("describe", "group"),
    [
        (Means(change=lambda mean: jnp.where(mean.mean() < 0.31, jnp.nan, mean)), Linkage(clusters=3)),
        (HeadBias(change=lambda update: update.at[1].set(jnp.nan)), KMeans(clusters=2)),
    ],
)
def test_descriptions_that_are_not_finite_end_the_run(describe, group):
    method = replace(ONCE, describe=describe, group=group, when=Once() if isinstance(describe, Means) else Every())
    with pytest.raises(TrainingError, match=r"in round 1 \(seed 0\) the description of a client is not finite"):
        jcfl.run(tiny.federation(), **RUN, method=method)


def test_a_model_that_diverges_is_still_called_so():
    method = replace(ONCE, describe=HeadBias(), when=Every())
    with pytest.raises(TrainingError, match="training diverged: in round 1 "):
        jcfl.run(tiny.federation(), **(RUN | {"train": {"lr": 3e38, "epochs": 9}}), method=method)


DATASET = Dataset(
    "noise",
    *(Examples(np.random.default_rng(n).random((n, 3), np.float32), np.arange(n) % 3) for n in (120, 60)),
    classes=3,
)


def test_a_dataset_has_examples_in_both_halves():
    with pytest.raises(InputError, match=r"mine: test: expected jcfl\.data\.Examples\(x, y\), got \(array"):
        Dataset("mine", DATASET.train, (DATASET.test.x, DATASET.test.y), classes=3)


def test_a_registered_dataset_is_one():
    register("data", "nothing")(lambda data_dir: None)
    with pytest.raises(InputError, match=r"data 'nothing': expected a jcfl\.data\.Dataset, got None"):
        load("nothing")


def test_examples_may_be_lists_and_have_an_entry_each():
    lists = Examples([[1.0, 2.0]] * 4, [0, 1] * 2, [0, 0, 1, 1])
    assert Dataset("lists", lists, lists, classes=2).shape == (2,)
    with pytest.raises(InputError, match=r"jcfl\.data\.Examples: labels: expected one for each example, got None"):
        Examples(np.ones((3, 2)), None)
    with pytest.raises(InputError, match=r"jcfl\.data\.Examples: examples are no array"):
        Examples([[1.0], [1.0, 2.0]], [0, 1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made._replace(trains=made.trains.astype(int)), "trains are int64; expected true or false"),
        (lambda made: made._replace(y=made.y + 0.5), "y are float64; expected whole numbers"),
        (lambda made: made._replace(owner=made.owner * 1.0), "owner are float64; expected whole numbers"),
        (lambda made: made._replace(groups=made.groups + 0.5), "groups are float64; expected whole numbers"),
        (lambda made: made._replace(groups=made.groups[:0]), r"groups has the shape \(0,\)"),
        (lambda made: made._replace(x=made.x[:10]), "10 examples, but y has 180"),
        (lambda made: made._replace(trains=made.trains.tolist()), "expected trains to be an array of NumPy, got"),
        (lambda made: tuple(made), "expected a jcfl.data.partition.Partition, got"),
        (lambda made: None, "expected a jcfl.data.partition.Partition, got None"),
    ],
)
def test_a_scenario_returns_a_partition(change, said):
    """With `trains` in numbers, `~trains` would be true everywhere: training examples would be tested on."""

    @register("scenario", "own")
    def own(rng: np.random.Generator, dataset: Dataset) -> Partition:
        """Random equal shares of four clients."""
        whole = pool(dataset)
        owner = random_owners(rng, whole.part, whole.trains, np.ones((1, 4)))
        return change(Partition(whole.x, whole.y, whole.trains, owner, np.zeros(4, int)))

    with pytest.raises(InputError, match=f"scenario 'own': {said}"):
        federation(DATASET, "own")


def test_an_option_of_all_scenarios_is_none_of_ones_own(monkeypatch):
    """jcfl uses the value of `scale` itself; the scenario would get the default, whatever is given."""

    def own(
        rng: np.random.Generator, dataset: Dataset, *, min_examples: Any = (10, 2), scale: float = 2.0
    ) -> Partition:
        """Never made."""
        raise AssertionError

    said = r"scenario 'own': option 'scale' is an option of all scenarios, .*; choose another name"
    with pytest.raises(InputError, match=said):
        register("scenario", "own")(own)
    assert "own" not in registry.names("scenario")
    monkeypatch.setitem(registry._TABLES["scenario"], "own", own)  # as before jcfl's own pieces are registered
    with pytest.raises(InputError, match=said):
        federation(DATASET, "own")
    for name in set(registry.names("scenario")) - {"own"}:
        register("scenario", name)(registry.find("scenario", name))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda clients: np.ones(3), r"TypeError: expected a number, got an array of the shape \(3,\)"),
        (lambda clients: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda clients: "high", "ValueError: could not convert"),
        (lambda clients: np.complex64(1j), "TypeError: expected a number, got a complex one"),
    ],
)
def test_a_score_is_a_number(value, said):
    register_score("own_score", better="higher")(value)
    with pytest.raises(InputError, match=f"score 'own_score': {said}"):
        jcfl.run(tiny.federation(), **RUN, method="fedavg")


def test_a_score_that_is_true_is_one():
    register_score("own_score")(lambda clients: bool(clients.labels.max() < 9))
    assert jcfl.run(tiny.federation(), **RUN, method="fedavg")["own_score"].tolist() == [[1.0, 1.0]]


def test_an_add_on_that_fails_leaves_the_message_of_the_one_asked_for():
    """To name the add-ons that a method takes, every one is tried."""
    register("addon", "own")(lambda method: method.group.nothing)
    with pytest.raises(InputError, match=r"fedavg takes (?!.*\bown\b)"):
        jcfl.run(tiny.federation(), **RUN, method={"name": "fedavg", "addons": ["con_para"]})


@pytest.mark.parametrize(("slots", "said"), [(0, "at least 1"), (2.0, "whole number"), (None, "whole number")])
@pytest.mark.parametrize("when", [Once(), Every()])
def test_slots_of_ones_own_grouping_are_a_number_of_clusters(slots, said, when):
    class Own(Halves):
        def slots(self, context):
            return slots

    method = replace(ONCE, group=Own(), compare=Far(), when=when)
    with pytest.raises(InputError, match=rf"group 'halves': slots: expected a whole number, at least 1, got {slots}"):
        jcfl.run(tiny.federation(), **RUN, method=method)


def test_a_field_that_is_no_option_is_refused():
    """Without `kw_only` a field is a positional parameter, so no configuration could set it."""

    @dataclass(frozen=True)
    class Positional(OfData):
        name: ClassVar[str] = "positional"
        width: int = 3

    with pytest.raises(InputError, match="describe 'positional': field 'width' is no option; use @dataclass"):
        register("describe", "positional")(Positional)


def test_a_parameter_that_looks_like_an_option_is_refused():
    """Only keyword-only parameters are options, so this one could not be set."""

    def sparse(method, weight: float = 0.1):
        return method

    with pytest.raises(InputError, match=r"addon 'sparse': 'weight' is no option, because it has no \* before it"):
        register("addon", "sparse")(sparse)


def test_a_piece_may_hold_an_array():
    """A method is compared with one of another option, to tell whether the option has an effect beside an answer."""

    @dataclass(frozen=True, kw_only=True)
    class Public(OfData):
        """A description by some examples that the server has."""

        name: ClassVar[str] = "public"
        rows: Any = None

    @register("method", "of_public")
    def of_public(*, clusters: int = 2):
        return replace(wecfl(clusters=clusters), describe=Public(rows=np.arange(3.0)))

    given = {"name": "of_public", "clusters": 3, "aggregate": "median"}
    refuse_replaced(read({**DATA, "method": given}).method)
    with pytest.raises(InputError, match=r"method\.clusters=3 has no effect, because method\.group takes the place"):
        refuse_replaced(read({**DATA, "method": given | {"group": "kmeans"}}).method)


def test_an_answer_written_by_its_name_takes_an_option_beside_it():
    config = read({**DATA, "method": {"name": "wecfl", "group": "kmeans"}}, ["method.group.clusters=3"])
    assert config.method.options["group"]["clusters"] == 3


@dataclass(frozen=True, kw_only=True)
class FirstTwo(Far):
    """The distance of descriptions that were cut to two numbers; others are refused."""

    name: ClassVar[str] = "first_two"

    def prepared(self, points, present):
        return points[:, :2]

    def metric(self, context, describe):
        def distance(points, centres):
            assert points.shape[1] == centres.shape[1] == 2
            return jnp.abs(points[:, None] - centres[None]).sum(-1)

        return distance


@pytest.mark.parametrize(
    "changes",
    [
        {"group": Linkage(clusters=2)},
        {"group": KMeans(clusters=2), "describe": TrainedModel(), "when": Every()},
    ],
)
def test_descriptions_are_compared_in_the_form_that_ones_own_comparison_prepares(changes):
    """Also where a client is placed after the grouping, and where a grouping begins with the cluster models."""
    data = tiny.federation(held_out=2)
    algorithm = tiny.built(replace(ONCE, compare=FirstTwo(), **changes), tiny.setting(held_out=2))
    state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
    jax.eval_shape(algorithm.evaluate, jax.eval_shape(algorithm.step, state, data), data)


@dataclass(frozen=True, kw_only=True)
class Halved(Reliability):
    """Every client does half of its steps."""

    name: ClassVar[str] = "halved"

    def shares(self, key, clients):
        return jnp.full(clients, 0.5)


def test_shares_of_steps_of_ones_own_are_done():
    four, two = (tiny.setting(epochs=None, steps=steps) for steps in (4, 2))
    half, whole = (
        tiny.run(tiny.built("fedavg", setting), 1)
        for setting in (four.with_context(faults=Faults(reliability=Halved())), two)
    )
    tiny.same(half.shared, whole.shared, 1e-6)


def test_a_trainer_of_ones_own_says_that_it_counts_the_work_of_slow_clients():
    """Only `Local.resume` knows which share of its steps a slow client does."""

    class Own(Local):
        def train(self, objective, start, sent, data, key):
            return Local.train(self, objective, start, sent, data, key)

    class Counting(Own):
        counts_work: ClassVar[bool] = True

    class Alone:
        """A trainer of nobody's class."""

        train = Local.train
        full_batch = Local.full_batch

    slow = tiny.setting().with_context(faults=Faults(reliability=Reliability(stragglers=1.0)))
    made = lambda kind: slow.with_context(trainer=kind(0.1, 1, None, "full", 0.0, 0.0))
    with pytest.raises(InputError, match=r"trainer Own .*counts_work = True.* reliability.late=lost"):
        tiny.built("fedavg", made(Own))
    with pytest.raises(InputError, match=r"trainer Alone .*counts_work = True"):
        tiny.built("fedavg", made(lambda *given: Alone()))
    tiny.built("fedavg", made(Counting))
    tiny.built("majority", made(Own))
    lost = Faults(reliability=Reliability(stragglers=1.0, late="lost"))
    tiny.built("fedavg", made(Own).with_context(faults=lost))


@pytest.fixture
def dataclasses_for_pieces():
    """Pieces that are registered as the dataclasses that they are, with the fields that these inherit."""

    @register("stop", "own")
    @dataclass(frozen=True, kw_only=True)
    class Ends(Stop):
        def is_unchanged(self, before, after):
            return jnp.array(True)

    @register("attack", "own")
    @dataclass(frozen=True, kw_only=True)
    class Turned(Attack):
        def forged(self, key, updates, crowd):
            return jax.tree.map(jnp.negative, updates)

    register("reliability", "own")(Halved)

    @register("attack", "misspelt")
    @dataclass(frozen=True, kw_only=True)
    class Misspelt(Attack):
        share: float = 0.5

        def forge(self, key, updates, crowd):
            return updates

    @register("reliability", "misspelt")
    @dataclass(frozen=True, kw_only=True)
    class Unread(Reliability):
        def availible(self, run, turn, clients):
            return jnp.zeros(clients, bool)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stop": "own"}, "^stop own has no effect, because its rounds are 0: training ends after the last round"),
        ({"attack": "own"}, "^attack own has no effect, because its share is 0, so that nobody attacks"),
        ({"attack": "misspelt"}, "^attack misspelt has no effect, because Misspelt has no function forged, and flips"),
        (
            {"reliability": "misspelt"},
            "^reliability misspelt has no effect, because Unread has no function available, ",
        ),
    ],
)
@pytest.mark.usefixtures("dataclasses_for_pieces")
def test_a_piece_that_would_do_nothing_is_told(given, said):
    with pytest.warns(Notice, match=said):
        planned(read({**RUN, **DATA, **given}))


@pytest.mark.parametrize(
    "given", [{"reliability": "own"}, {"stop": {"name": "own", "rounds": 1}}, {"attack": {"name": "own", "share": 0.5}}]
)
@pytest.mark.usefixtures("dataclasses_for_pieces")
def test_a_piece_that_does_something_is_not_told(given):
    """A window of 1 is the default of one's own class, and not something that was given."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        planned(read({**RUN, **DATA, **given}))


def test_a_function_of_an_answer_that_jcfl_does_not_call_is_told():
    """Of what clients train, how uploads become models, and how clients predict, jcfl reads the fields alone."""

    @dataclass(frozen=True, kw_only=True)
    class Vetoed(Answer):
        steps: int = 1

        def predict(self, models, x):
            return x

    given = {**RUN, "rounds": 1}
    with pytest.warns(Notice, match=r"^fedavg: jcfl does not call predict of Vetoed, because .* fields of an Answer"):
        planned(*config_and_objects(tiny.federation(), {**given, "method": replace(fedavg(), answer=Vetoed())}))
    with warnings.catch_warnings(action="error"):
        planned(*config_and_objects(tiny.federation(), {**given, "method": replace(fedavg(), answer=Answer(tune=1))}))


def test_the_method_of_these_tests_runs():
    history = jcfl.run(tiny.federation(), **RUN, method=replace(ONCE, group=Halves(), compare=Far()))
    assert history.labels[0, -1].tolist() == [0, 1] * 4
    assert jcfl.run(tiny.federation(), **RUN, method=fedavg()).labels[0, -1].tolist() == [0] * 8
