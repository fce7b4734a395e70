"""What the functions of one's own group and of one's own reliability return: checked where they are traced."""

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jcfl
from jcfl import registry
from jcfl.core import groupings, noising
from jcfl.core.averaging import weighted_mean
from jcfl.core.faults import Faults
from jcfl.core.method import Aggregate, Group, Piece
from jcfl.core.neutral import grouping_of
from jcfl.core.privacy import Privacy
from jcfl.core.reliability import Reliability, arrived
from jcfl.core.terms import LossTerm
from jcfl.errors import InputError, TrainingError
from jcfl.grouping.em import Responsibilities
from jcfl.methods import fedavg, fedem
from jcfl.runs import loop
from jcfl.runs.answers import for_room
from jcfl.runs.sections import Method
from jcfl.types import OVERFLOW, Cohort, Grouping
from jcfl.view import facts
from tests import plain, tiny
from tests.test_oracles import CLIENTS, setting

HELD_OUT = 2
DATA = tiny.federation(held_out=HELD_OUT)


@dataclass(frozen=True, kw_only=True)
class Pairs(Group):
    """Two clusters: the clients with even numbers and the others; some of the functions are replaced."""

    name: ClassVar[str] = "pairs"
    functions: Any = ()

    def slots(self, context):
        return 2

    def grouping(self, method, context):
        init = lambda state, federation: state.replace(labels=jnp.arange(8) % 2, memory=jnp.zeros(3))
        place = lambda state, who, federation: who % 2
        return grouping_of(**{"init": init, "place": place} | dict(self.functions))


def own(**functions):
    return replace(fedavg(), name="own", group=Pairs(functions=tuple(functions.items())))


def traced(method, setting=None):
    """A method's functions traced for the tiny federation, two of whose eight clients are held out."""
    algorithm = tiny.built(method, setting or tiny.setting(held_out=HELD_OUT))
    state = jax.eval_shape(algorithm.init, jax.random.key(0), DATA)
    return algorithm.evaluate, jax.eval_shape(algorithm.step, state, DATA)


def in_rounds(change):
    """A function of a group that changes the state before or after clients train."""
    return lambda key, state, *rest: change(state)


WRONG = {
    "labels in floats": (
        {"before": in_rounds(lambda state: state.replace(labels=state.labels * 1.0))},
        r"before: labels: expected whole numbers of shape \[8\]; got float32 \[8\]",
    ),
    "too few labels": (
        {"after": in_rounds(lambda state: state.replace(labels=state.labels[:6]))},
        r"after: labels: expected whole numbers of shape \[8\]; got int32 \[6\]",
    ),
    "a list of labels": (
        {"init": lambda state, federation: state.replace(labels=[0] * 8)},
        r"init: labels: expected whole numbers of shape \[8\]; got \[0, 0",
    ),
    "no state": ({"before": in_rounds(lambda state: None)}, r"before: expected the State .*replace\(.*got None"),
    "labels in place of a state": ({"after": in_rounds(lambda state: state.labels)}, "after: expected the State"),
    "models of fewer clusters": (
        {"before": in_rounds(lambda s: s.replace(clusters=jax.tree.map(lambda leaf: leaf[:1], s.clusters)))},
        r"before: expected clusters.params.body.bias as float32 \[2, 6\]; got float32 \[1, 6\]",
    ),
    "another memory": (
        {"before": in_rounds(lambda state: state.replace(memory=jnp.zeros(2)))},
        r"before: expected memory as float32 \[3\]; got float32 \[2\]",
    ),
    "a memory of text": (
        {"init": lambda state, federation: state.replace(memory={"note": "text"})},
        "init: memory.note: expected an array or a number; got 'text'",
    ),
    "a state with more in it": (
        {"before": in_rounds(lambda state: state.replace(clients={"mine": state.labels}))},
        "before: expected nothing; got clients.mine as well",
    ),
    "too few places": (
        {"place": lambda state, who, federation: who[:1] % 2},
        r"place: expected whole numbers of shape \[2\]; got int32 \[1\]",
    ),
    "one cluster for all": (
        {"serve": lambda state, federation: 0},
        r"serve: expected whole numbers of shape \[8\]; got int32 \[\]",
    ),
    "a measure of every client": (
        {"measures": lambda state, federation: {"mine": state.labels}},
        r"measures: 'mine': expected floats or whole numbers or true or false of shape \[\]; got int32 \[8\]",
    ),
    "a measure instead of a score": (
        {"measures": lambda state, federation: {"loss": 0.0}},
        "measures: 'loss' is something else in an evaluation; choose another name",
    ),
    "a measure instead of what scores are made of": (
        {"measures": lambda state, federation: {"losses": jnp.zeros(8)}},
        "measures: 'losses' is something else in an evaluation",
    ),
    "a measure instead of a score of others": (
        {"measures": lambda state, federation: {"held_out_accuracy_micro": 0.0}},
        "measures: 'held_out_accuracy_micro' is something else in an evaluation",
    ),
    "measures without names": (
        {"measures": lambda state, federation: [0.0]},
        r"measures: expected a dict of numbers by name, got \[0.0\]",
    ),
    "a measure called by a number": (
        {"measures": lambda state, federation: {3: 0.0}},
        "measures: expected a dict of numbers by name, got {3: 0.0}",
    ),
    "no function": ({"place": 3}, "place: expected a function, got 3"),
}


@pytest.mark.parametrize("which", WRONG)
def test_what_a_function_of_a_group_returns_is_checked(which):
    functions, said = WRONG[which]
    with pytest.raises(InputError, match=f"^group 'pairs': {said}"):
        evaluate, state = traced(own(**functions))
        jax.eval_shape(evaluate, state, DATA)


def test_a_group_without_functions_is_refused():
    class Bare(Pairs):
        def grouping(self, method, context) -> Any:
            return None

    with pytest.raises(InputError, match=r"^group 'pairs': grouping: expected Grouping\(…\).*got None"):
        tiny.built(replace(fedavg(), group=Bare()), tiny.setting())


def functions(**given) -> tuple[Grouping, Any]:
    """The functions of a group, and a state for them."""
    setting = tiny.setting()
    algorithm = tiny.built(own(), setting)
    state = jax.eval_shape(algorithm.init, jax.random.key(0), DATA)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state.replace(key=()))
    state = state.replace(key=jax.random.key(0), failed=jnp.full(2, -1, jnp.int32), labels=jnp.arange(8) % 2)
    return groupings.grouping(own(**given), setting.context), state


def test_labels_of_no_slot_end_the_run():
    """As those of a clustering do: more clusters than there are models. What is below 0 is no cluster."""
    labels = jnp.array([0, 1, 2, 3, -1, -5, 0, 1], jnp.int16)
    change = lambda state: state.replace(labels=labels)
    for name in ("before", "after"):
        made, state = functions(**{name: in_rounds(change)})
        after = getattr(made, name)(
            jax.random.key(0), state.replace(round=jnp.int32(4)), (), DATA, *[()] * (name == "after")
        )
        assert after.failed.tolist() == [4, OVERFLOW]
    made, state = functions(init=lambda state, federation: change(state))
    assert made.init(state, DATA).failed.tolist() == [0, OVERFLOW]
    made, state = functions(init=lambda state, federation: state.replace(labels=jnp.minimum(labels, 1)))
    sound = made.init(state, DATA)
    assert sound.failed.tolist() == [-1, -1] and sound.labels.dtype == jnp.int32
    assert sound.labels.tolist() == [0, 1, 1, 1, -1, -1, 0, 1]


@pytest.mark.parametrize("name", ["serve", "place"])
def test_a_model_that_is_not_there_serves_nobody(name):
    given = {"serve": lambda state, federation: jnp.arange(8), "place": lambda state, who, federation: who}
    with pytest.raises(TrainingError, match="more clusters were found than the method has room for"):
        jcfl.run(DATA, method=own(**{name: given[name]}), model="linear", rounds=1)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("stocfl", "raise method.capacity, or merge more readily, by a lower method.tau"),
        ({"name": "flhc", "clusters": 2}, "raise method.capacity, or merge more readily, by a larger method.dist.*"),
        ("cfl", "raise method.capacity"),
        ({"name": "clustered", "group": "density"}, "raise method.group.capacity, or .* a larger method.group.eps"),
        ({"name": "clustered", "group": "linkage"}, "raise method.group.capacity, or .* larger method.group.threshold"),
        ({"name": "stocfl", "group": "merge"}, "raise method.group.capacity, or .* by a lower method.group.tau"),
        ({"name": "given"}, "its group needs more slots"),
        ({"name": "cfl", "group": {"name": "bipartition"}}, "raise method.group.capacity"),
    ],
)
def test_what_helps_against_too_many_clusters_is_named_by_its_key(method, said):
    """As a group's own options, where a configuration gives a group."""
    found = Method.model_validate(method)
    group = {"group": {"name": found.options["group"]}} if isinstance(found.options.get("group"), str) else {}
    advice = for_room(found.model_copy(update=group))
    assert re.fullmatch(said, advice), advice
    assert str(loop.failure(0, 2, OVERFLOW, advice)).endswith(f"than the method has room for; {advice}")


def test_measures_of_a_group_are_scores():
    """Not those that jcfl measures in the same run."""
    evaluate, state = traced(own(measures=lambda state, federation: {"ones": state.labels.sum(), "even": True}))
    found = jax.eval_shape(evaluate, state, DATA)
    assert found["ones"].shape == found["even"].shape == ()
    setting = tiny.setting(held_out=HELD_OUT).with_context(faults=Faults(on_divergence="drop_client"))
    evaluate, state = traced(own(measures=lambda state, federation: {"dropped_clients": 0}), setting)
    with pytest.raises(InputError, match="measures: 'dropped_clients' is measured by jcfl"):
        jax.eval_shape(evaluate, state, DATA)


@dataclass(frozen=True, kw_only=True)
class Changed(Reliability):
    """Functions that return what they were given."""

    name: ClassVar[str] = "changed"
    there: Any = lambda clients: jnp.ones(clients, bool)
    come: Any = lambda cohort: cohort
    work: Any = lambda clients: jnp.ones(clients)

    def available(self, run, turn, clients):
        return self.there(clients)

    def arrived(self, key, cohort):
        return self.come(cohort)

    def shares(self, key, clients):
        return self.work(clients)


@dataclass(frozen=True, kw_only=True)
class Keeping(Pairs):
    """`Pairs` whose clients keep something."""

    kept: Any = ()

    def keeps(self, method, context):
        return self.kept if isinstance(self.kept, list) else dict(self.kept)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ((("work", jnp.zeros_like),), "'work' is a state of jcfl's own; choose another name"),
        ((("dropped", jnp.zeros_like),), "'dropped' is a state of jcfl's own"),
        ((("mine", 0.5),), r"'mine': expected a function of the first model, as in lambda first: .*, got 0.5"),
        ([0.5], r"expected a dict of functions by name, got \[0.5\]"),
    ],
)
def test_what_clients_keep_for_a_group_is_no_state_of_jcfl(kept, said):
    """Under the name `work` a zero would be the share of its steps that a client does: nothing would be trained."""
    with pytest.raises(InputError, match=f"^group 'pairs': keeps: {said}"):
        tiny.built(replace(fedavg(), group=Keeping(kept=kept)), tiny.setting(held_out=HELD_OUT))


def test_clients_get_what_their_group_keeps_of_them():
    """A loss term reads the client's own row, which the group has written before the round."""
    who = (("who", lambda first: jnp.int32(-1)),)
    number = in_rounds(lambda state: state.replace(clients=state.clients | {"who": jnp.arange(8, dtype=jnp.int32)}))
    read = []

    @dataclass(frozen=True)
    class Reads(LossTerm):
        """Nothing; it reads what the client was sent."""

        def build(self, task):
            return lambda model, batch, sent: read.append(sent.own["who"]) or 0.0 * sent.own["who"]

    method = replace(fedavg(), group=Keeping(kept=who, functions=(("before", number),)))
    traced(method.with_train(terms=(Reads(),)))
    assert read[0].shape == () and read[0].dtype == jnp.int32


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"there": lambda clients: [True] * clients}, r"available: expected true or false of shape \[8\]; got \[True"),
        ({"there": lambda clients: jnp.ones(3, bool)}, r"available: expected .* \[8\]; got bool \[3\]"),
        ({"there": lambda clients: jnp.ones(clients)}, r"available: expected .* \[8\]; got float32 \[8\]"),
        ({"come": lambda cohort: cohort.present}, r"arrived: expected a Cohort, as in .*replace\(present=…\), got"),
        (
            {"come": lambda cohort: cohort.replace(present=cohort.present[0])},
            r"arrived: present: expected true or false of shape \[6\]; got bool \[\]",
        ),
        ({"work": lambda clients: None}, r"shares: expected floats or whole numbers of shape \[8\]; got None"),
        ({"work": lambda clients: jnp.ones(6)}, r"shares: expected .* \[8\]; got float32 \[6\]"),
    ],
)
def test_what_a_reliability_returns_is_checked(given, said):
    setting = tiny.setting(held_out=HELD_OUT).with_context(faults=Faults(reliability=Changed(**given)))
    with pytest.raises(InputError, match=f"^reliability 'changed': {said}"):
        traced(fedavg(), setting)


def test_who_arrives_was_sampled_and_may_be_told_in_another_order():
    """One client in six is sampled: all six in the sums would be more than privacy counts."""
    arriving = lambda come, cohort: arrived(Changed(come=come), jax.random.key(0), cohort, 9)
    cohort = Cohort(jnp.arange(1, 7), jnp.arange(6) != 2)
    everybody = arriving(lambda cohort: cohort.replace(present=jnp.ones(6, bool)), cohort)
    tiny.same(everybody, cohort)
    turned = arriving(lambda cohort: Cohort(cohort.who[::-1], cohort.present[::-1].at[0].set(False)), cohort)
    tiny.same(turned, cohort.replace(present=jnp.array([True, True, False, True, True, False])))


# Soft groups


@dataclass(frozen=True, kw_only=True)
class Told(Responsibilities):
    """As `em`; functions of the losses and of the responsibilities can be given."""

    name: ClassVar[str] = "told"
    cost: Any = None
    told: Any = None

    def costs(self, losses, y, memory):
        return self.cost(losses) if self.cost else losses

    def report(self, q, y, own):
        return self.told(q) if self.told else {"sum": q.sum(0)}

    def keeps(self, method, context):
        return {"sum": lambda first: jnp.zeros(self.clusters)}


def soft(**more):
    return replace(fedem(clusters=2), group=Told(clusters=2, **more))


def test_a_soft_group_weighs_examples_and_keeps_what_clients_report():
    """Of two models the second is the cheapest for every example, so that it gets all of them."""
    algorithm = tiny.built(soft(cost=lambda losses: losses + jnp.array([100.0, 0.0])), tiny.setting())
    state = jax.jit(algorithm.step)(algorithm.init(jax.random.key(0), tiny.federation()), tiny.federation())
    seen = np.asarray(state.seen)
    np.testing.assert_allclose(state.clients["membership"][seen], [[0, 1]] * seen.sum(), atol=1e-6)
    np.testing.assert_allclose(state.clients["sum"][seen, 1], tiny.federation().train.size[seen], rtol=1e-6)
    assert not state.clients["sum"][~seen].any()


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"cost": lambda losses: losses.sum(1)}, "costs: expected floats of shape"),
        ({"told": lambda q: {"other": q.sum(0)}}, "report: expected new values of what the group keeps"),
        ({"told": lambda q: None}, "report: expected new values of what the group keeps"),
        ({"told": lambda q: {"sum": q.sum()}}, "report: expected sum as float32"),
    ],
)
def test_what_a_soft_group_returns_is_checked(more, line):
    with pytest.raises(InputError, match=line):
        traced(soft(**more))


def test_what_clients_report_is_refused_under_privacy():
    setting = tiny.setting().with_context(privacy=Privacy(clip=1.0, noise=1.0))
    with pytest.raises(InputError, match=r"^privacy: fedem reports sum beside updates"):
        tiny.built(soft(), setting)


NONE, LAST = [0, 4], [3, 7]


@dataclass(frozen=True, kw_only=True)
class Some(Group):
    """Two clients are in no cluster, two in the last of three, and the others in the first."""

    name: ClassVar[str] = "some"

    def slots(self, context):
        return 3

    def grouping(self, method, context):
        labels = jnp.zeros(8, jnp.int32).at[jnp.array(NONE)].set(-1).at[jnp.array(LAST)].set(2)
        return grouping_of(init=lambda state, federation: state.replace(labels=labels))


@dataclass(frozen=True, kw_only=True)
class Kept(Piece):
    """The mean, of uploads that are kept."""

    name: ClassVar[str] = "kept"

    def bind(self, context):
        return lambda key, federation, who: weighted_mean


@pytest.mark.parametrize("aggregate", [Aggregate(), Aggregate(rule=Kept())], ids=str)
def test_a_client_in_no_cluster_counts_in_none(aggregate):
    """Neither in the first nor, as the number -1 would have it, in the last."""
    method = replace(fedavg(), group=Some(), aggregate=aggregate)
    states = tiny.run(tiny.built(method, setting()), 1)
    found, sizes = plain.vectors(states.clusters, 2), plain.sizes(CLIENTS)
    first = np.setdiff1d(np.arange(8), NONE + LAST)
    start = found[0, 0]
    means = [plain.mean({i: plain.trained(start, CLIENTS[i]) for i in who}, sizes) for who in (first, LAST)]
    np.testing.assert_allclose(found[1], [means[0], start, means[1]], rtol=0, atol=1e-5)
    expected = np.average(means, 0, [sizes[first].sum(), sizes[LAST].sum()])
    np.testing.assert_allclose(plain.vectors(states.shared, 1)[1], expected, rtol=0, atol=1e-5)


def test_a_client_in_no_cluster_counts_in_none_under_privacy():
    method = replace(fedavg(), group=Some(), aggregate=Aggregate(privacy=Privacy(noise=1.0, clip=1.0)))
    algorithm, data = tiny.built(replace(fedavg(), group=Some()), setting()), jax.device_put(tiny.federation())
    state = jax.jit(algorithm.init)(jax.random.key(0), data)
    cohort = algorithm.sampled(state, data)
    part, _ = noising.participants_of(method, state, cohort, data, lambda size: jnp.ones(size.shape), jnp.int32(8))
    np.testing.assert_array_equal(np.flatnonzero(part.in_cluster == 0), NONE)
    assert (part.in_cohort > 0).all()


def test_a_group_without_descriptions_has_an_example_without_them(monkeypatch):
    """A clustering, which makes labels of descriptions, has one with them."""
    monkeypatch.setitem(registry._TABLES["group"], "some", Some)
    assert facts.example("group", "some") == "jcfl run quickstart --set method=clustered method.group=some"
    assert "method.describe=gradient" in facts.example("group", "kmeans")


@dataclass(frozen=True, kw_only=True)
class Trusted(Piece):
    """The mean of the clients' models, weighted by a number that they keep."""

    name: ClassVar[str] = "trusted"
    reads: ClassVar[tuple[str, ...]] = ("trust",)

    def bind(self, context):
        def rule_for(key, federation, who, kept):
            assert kept["trust"].shape == who.shape
            return lambda labels, weights, uploads, default: weighted_mean(
                labels, weights * kept["trust"], uploads, default
            )

        return rule_for


@dataclass(frozen=True, kw_only=True)
class Renewed(Pairs):
    """Clients keep a number that is renewed in every second round, as FedSoft's weights are with τ = 2."""

    name: ClassVar[str] = "renewed"

    def keeps(self, method, context):
        return {"trust": lambda first: jnp.ones(())}

    def grouping(self, method, context):
        def before(key, state, *rest):
            new = jnp.arange(8) * 1.0 + state.round
            return state.replace(clients={"trust": jnp.where(state.round % 2 == 0, new, state.clients["trust"])})

        init = lambda state, federation: state.replace(labels=jnp.arange(8) % 2)
        return grouping_of(init=init, before=before)


def test_an_averaging_rule_sees_what_clients_keep():
    """The weights of an earlier round cannot be computed anew from the models of this one."""
    method = replace(fedavg(), group=Renewed(), aggregate=Aggregate(rule=Trusted()))
    states = tiny.run(tiny.built(method, setting()), 3)
    found, sizes = plain.vectors(states.clusters, 2), plain.sizes(CLIENTS)
    for round, trust in enumerate((np.arange(8.0), np.arange(8.0), np.arange(8.0) + 2)):
        for cluster, who in enumerate((range(0, 8, 2), range(1, 8, 2))):
            trained = {i: plain.trained(found[round, cluster], CLIENTS[i]) for i in who}
            expected = plain.mean(trained, sizes * trust)
            np.testing.assert_allclose(found[round + 1, cluster], expected, rtol=0, atol=1e-5)


def test_a_rule_that_reads_what_nobody_keeps_is_refused():
    method = own()
    method = replace(method, aggregate=Aggregate(rule=Trusted()))
    with pytest.raises(InputError, match="state that the rule 'trusted' reads, which clients of own keep: 'trust'"):
        tiny.built(method, tiny.setting())
