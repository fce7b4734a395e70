"""Every seam of a method proved by one that stands on it, against a plain loop."""

import functools
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from jcfl import models as networks
from jcfl import registry, trees
from jcfl.core import chunks, engine, parts
from jcfl.core import objective as objectives
from jcfl.core.aggregates import Fair, ServerOptimizer
from jcfl.core.describing import anchor_gradient
from jcfl.core.local import Local
from jcfl.core.method import Aggregate, Group, Method, Phase, Train
from jcfl.core.neutral import Every, Incomparable, Nothing, grouping_of
from jcfl.core.terms import LossTerm
from jcfl.errors import InputError
from jcfl.methods import (
    cfl,
    fedadam,
    fedavg,
    feddane,
    fedem,
    fedprox,
    fedrc,
    fesem,
    flhc,
    ifca,
    oneshot_kmeans,
    scaffold,
    stocfl,
    wecfl,
)
from jcfl.runs.answers import with_answers
from jcfl.runs.plan import config_and_objects, planned
from jcfl.types import Clients, Task, Upload
from tests import groups, plain, plain_seams, tiny
from tests.test_contract import restored
from tests.test_oracles import CLIENTS, TURNS, agree, first_of, setting, several
from tests.test_oracles_addons import answered
from tests.test_stocfl import cohorts

DATA = tiny.federation()


def asked_of(here, states, data=DATA):
    return list(cohorts(here, states, data))


def by_client(rows, turn=slice(None)):
    """What clients keep, a tree of [turns + 1, m, ...], as vectors [turns + 1, m, p]."""
    return plain.vectors({"params": rows}, 2)[turn]


@functools.cache
def half(name):
    """A setting in which half of the clients take part, a method's round as a program, and the states of its run."""
    here, data = setting(0.5), jax.device_put(DATA)
    algorithm = tiny.built(HALVES[name], here)
    step, states = jax.jit(algorithm.step), [jax.jit(algorithm.init)(jax.random.key(0), data)]
    for _ in range(TURNS):
        states.append(step(states[-1], data))
    return here, step, states


def run_of(name):
    """The setting of `half`, and its states as `tiny.run` gives them."""
    here, _, states = half(name)
    return here, jax.tree.map(lambda *leaves: np.stack([tiny.numpy(leaf) for leaf in leaves]), *states)


def differs(one, two, least=1e-3):
    assert np.abs(np.asarray(one) - np.asarray(two)).max() > least


# Soft membership


@pytest.mark.parametrize(("name", "classes"), [("fedem", None), ("fedrc", tiny.CLASSES)])
def test_soft_membership(name, classes):
    here, states = run_of(name)
    asked, models = asked_of(here, states), plain.vectors(states.clusters, 2)[0]
    expected = list(plain_seams.fedem(CLIENTS, asked, models, classes))
    agree(states, expected)
    for turn, (*_, weights) in enumerate(expected, 1):
        np.testing.assert_allclose(states.clients["membership"][turn], weights, rtol=0, atol=1e-5)
    several(states.labels[-1])
    assert not states.seen[2].all()


def test_the_shares_of_classes_change_who_belongs_to_which_model():
    """With shares that are all alike, as in the first round, FedRC is FedEM."""
    one, two = (run_of(name)[1] for name in ("fedem", "fedrc"))
    first, last = (lambda states, turn=turn: states.clients["membership"][turn] for turn in (1, TURNS))
    np.testing.assert_allclose(first(one), first(two), rtol=0, atol=1e-6)
    differs(last(one), last(two))


@pytest.mark.parametrize("method", [fedem(clusters=3), fedrc(clusters=3)], ids=str)
def test_a_mixture_answers_for_those_who_took_part_and_those_who_never_did(method):
    """Clients outside get the weights of one M-step from equal ones; so do those not asked yet."""
    data = tiny.federation(held_out=2)
    algorithm = tiny.built(method, setting(0.5, data=data))

    def whole(key, data):
        state = jax.lax.fori_loop(0, 1, lambda _, state: algorithm.step(state, data), algorithm.init(key, data))
        return state, algorithm.predict(state, data)

    state, (labels, logits) = jax.jit(whole)(jax.random.key(0), jax.device_put(data))
    models, seen = plain.vectors(state.clusters, 1), np.asarray(state.seen)
    assert seen.sum() == 3
    shares = np.asarray(state.memory) if method.name == "fedrc" else None
    fresh = [plain_seams.responsibilities(models, client, np.full(3, 1 / 3), shares).mean(0) for client in CLIENTS]
    weights = np.where(seen[:, None], state.clients["membership"], fresh)
    differs(fresh, 1 / 3)
    owner = np.repeat(np.arange(8), data.test.size)
    x = data.x[data.test.rows].reshape(len(owner), -1)
    chances = np.stack([plain.chances(plain.logits(model, x)) for model in models])  # [k, r, c]
    np.testing.assert_allclose(logits, np.log(np.einsum("krc,rk->rc", chances, weights[owner])), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(labels, weights.argmax(1))


def test_a_mixture_of_one_model_is_fedavg():
    here = setting(0.5, batch_size=4)
    one, two = (
        tiny.run(tiny.built(method, here), 3) for method in (fedem(clusters=1).with_train(distinct=False), fedavg())
    )
    tiny.same((one.clusters, one.shared), (two.clusters, two.shared), 1e-6)


def test_clients_of_a_mixture_that_count_equally_leave_the_shared_model_the_mean():
    method = replace(fedem(clusters=2), aggregate=Aggregate(weights="equally"))
    states = tiny.run(tiny.built(method, setting()), 1)
    np.testing.assert_allclose(
        plain.vectors(states.shared, 1)[1], plain.vectors(states.clusters, 2)[1].mean(0), rtol=0, atol=1e-6
    )


# Parameter split


def test_a_gradient_in_parts_has_the_dtype_of_the_model():
    """A client of more rows than are worked on at a time, so that gradients of half precision are summed."""
    task = networks.task(Half(), (4, 4, 1), tiny.CLASSES)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((100, 4, 4, 1)).astype(np.float32), rng.integers(tiny.CLASSES, size=100)
    data = Clients(jnp.asarray(x), jnp.asarray(y), jnp.ones(100, bool))
    model = task.init(jax.random.key(0))
    found = jax.jit(anchor_gradient, static_argnums=0)(task, model, data)
    wide = {**model, "params": jax.tree.map(lambda leaf: leaf.astype(jnp.float32), model["params"])}
    expected = anchor_gradient(task, wide, data)
    for ours, exact in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_allclose(ours.astype(float), exact, atol=0.02 * np.abs(exact).max())


@pytest.mark.parametrize("layers", [("head",), ("body",)])
def test_tied_layers_are_one_after_a_warm_up_of_clients_alone(layers):
    here = setting(extras=[{"name": "cam", "warmup": 1}])
    states = tiny.run(tiny.built(fesem(clusters=2).with_train(tied=layers), here), 1)
    gap = {name: np.ptp(leaf["kernel"][-1], axis=0).max() for name, leaf in states.clusters["params"].items()}
    assert {name for name, value in gap.items() if value == 0} == set(layers)


@pytest.mark.parametrize("layers", [("head",), ("body",)])
def test_tied_layers_are_one_where_clusters_begin_at_the_means_of_their_members(layers):
    """The tied mean is that of all clients, so a cluster counts by its members, which count equally here."""
    data = jax.device_put(DATA)

    def begun(**train):
        algorithm = tiny.built(oneshot_kmeans(clusters=2, initial_epochs=1).with_train(**train), setting())
        return jax.jit(algorithm.init)(jax.random.key(0), data)

    tied, apart = begun(tied=layers), begun()
    share = np.bincount(several(np.asarray(tied.labels)), minlength=2) / 8
    for name, layer in tied.clusters["params"].items():
        own = apart.clusters["params"][name]["kernel"]
        expected = np.tensordot(share, own, 1)[None] if name in layers else own
        np.testing.assert_allclose(layer["kernel"], np.broadcast_to(expected, own.shape), rtol=0, atol=1e-6)


def private(method, *layers):
    return method.with_train(private=layers)


@pytest.mark.parametrize("layers", ["private", "tied"])
def test_layers_and_a_pull_are_one_answer_in_a_configuration(layers):
    """FeSEM's λ with personal layers (Xie et al. 2020, §3.2)."""
    given = {"train": {"name": layers, "layers": ("head",), "mu": 0.5}}
    assert with_answers(fesem(), given) == fesem(lam=0.5).with_train(**{layers: ("head",)})


@pytest.mark.parametrize(("name", "mu"), [("fedper", 0.0), ("fedper with a pull", 0.5)])
def test_private_parameters(name, mu):
    """FedPer (Arivazhagan et al. 2019), and with a pull to where the client itself begins."""
    here, states = run_of(name)
    asked = asked_of(here, states)
    expected = list(plain_seams.fedper(CLIENTS, asked, first_of(states), plain.HEAD, mu))
    agree(states, expected)
    head = states.clients["private"]["params"]["head"]
    for turn, (*_, own) in enumerate(expected, 1):
        for client in range(8):
            kernel, bias = plain.parts(own[client])[2:]
            np.testing.assert_allclose(head["kernel"][turn, client], kernel, rtol=0, atol=1e-5)
            np.testing.assert_allclose(head["bias"][turn, client], bias, rtol=0, atol=1e-5)
        away = np.setdiff1d(np.arange(8), asked[turn - 1])
        np.testing.assert_array_equal(head["kernel"][turn, away], head["kernel"][turn - 1, away])


def test_private_parameters_answer():
    algorithm = tiny.built(private(fedavg(), "head"), setting())
    _, labels, logits, owner, x = answered(algorithm, 2)
    start = jax.jit(algorithm.init)(jax.random.key(0), jax.device_put(DATA))
    *_, (_, _, _, own) = plain_seams.fedper(CLIENTS, [np.arange(8)] * 2, plain.vectors(start.shared), plain.HEAD)
    expected = [plain.logits(own[i], row[None])[0] for i, row in zip(owner, x, strict=True)]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    assert (labels == 0).all()


class Normalised(nn.Module):
    """A dense layer, batch statistics after it, and a classifier."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(5)(x.reshape(x.shape[0], -1))
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        return nn.Dense(tiny.CLASSES, name="head")(nn.tanh(x))


def test_private_normalisation():
    """FedBN (Li et al. 2021): scale, bias and running statistics stay; all others are one model's, whoever trained."""
    task = networks.task(Normalised(), (4, 4, 1), tiny.CLASSES)
    here = setting(0.5, epochs=1).with_context(task=task)
    states = tiny.run(tiny.built(private(fedavg(), "norm"), here), 3)
    kept = states.clients["private"]
    assert set(kept) == {"params", "batch_stats"}
    for turn, asked in enumerate(asked_of(here, states), 1):
        away = np.setdiff1d(np.arange(8), asked)
        for leaf in jax.tree.leaves(kept):
            np.testing.assert_array_equal(leaf[turn, away], leaf[turn - 1, away])
            assert (leaf[turn, asked] != leaf[turn - 1, asked]).any(1).all()
            differs(leaf[turn, asked[0]], leaf[turn, asked[1]])
    for kind in kept:  # nothing of it is in the model that the server keeps
        tiny.same(*(jax.tree.map(lambda leaf, at=at: leaf[at], states.clusters[kind]["norm"]) for at in (0, 3)))
    # One client's round: the running mean is that of its own layer, from its own start.
    first = jax.tree.map(lambda leaf: leaf[0], states.shared)
    client = asked_of(here, states)[0][0]
    x = CLIENTS[client][0]
    mean = (x @ first["params"]["Dense_0"]["kernel"] + first["params"]["Dense_0"]["bias"]).mean(0)
    np.testing.assert_allclose(kept["batch_stats"]["norm"]["mean"][1, client], 0.1 * mean, rtol=0, atol=1e-6)


class ConvNorm(nn.Module):
    """Layers of which some normalise, in a block whose own name says norm."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train, name="bn")(nn.Dense(5)(x))
        return nn.LayerNorm()(nn.tanh(x))


class Nested(nn.Module):
    """A block, and a classifier."""

    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(tiny.CLASSES, name="head")(ConvNorm(name="block_norm")(x.reshape(x.shape[0], -1), train))


def test_private_normalisation_inside_of_blocks():
    """Normalisation is found at any depth: by its name, or by the batch statistics that it keeps."""
    task = networks.task(Nested(), (4, 4, 1), tiny.CLASSES)
    assert parts.names(task, ["norm"], "private") == ("block_norm/LayerNorm_0", "block_norm/bn")
    assert parts.names(task, ["block_norm", "block_norm/bn"], "private") == ("block_norm", "block_norm/bn")
    here = setting(0.5).with_context(task=task)
    states = tiny.run(tiny.built(private(fedavg(), "norm"), here), 2)
    kept, asked = states.clients["private"], asked_of(here, states)[0]
    scale = {"scale": (3, 8, 5), "bias": (3, 8, 5)}
    assert jax.tree.map(jnp.shape, kept) == {
        "params": {"block_norm": {"bn": scale, "LayerNorm_0": scale}},
        "batch_stats": {"block_norm": {"bn": {"mean": (3, 8, 5), "var": (3, 8, 5)}}},
    }
    for leaf in jax.tree.leaves(kept):
        assert (leaf[1, asked] != leaf[0, asked]).any(1).all()
    block, stats = (states.clusters[kind]["block_norm"] for kind in ("params", "batch_stats"))
    for part in (block["bn"], block["LayerNorm_0"], stats["bn"]):  # the server's are what they began as
        tiny.same(*(jax.tree.map(lambda leaf, at=at: leaf[at], part) for at in (0, 2)))
    differs(block["Dense_0"]["kernel"][0], block["Dense_0"]["kernel"][2])


def test_a_word_that_means_no_layer_is_refused():
    with pytest.raises(InputError, match="private: the model has no norm among its layers body, head"):
        tiny.built(private(fedavg(), "norm"), setting())


def test_clients_choose_a_cluster_with_the_layers_they_keep():
    """IFCA with private heads: every model is judged with the client's own head in it."""
    here = setting(0.5)
    states = tiny.run(tiny.built(private(ifca(clusters=3), "head"), here), TURNS)
    bodies, heads = plain.vectors(states.clusters, 2), states.clients["private"]["params"]["head"]
    for turn, asked in enumerate(asked_of(here, states), 1):
        for i in asked:
            own = bodies[turn - 1].copy()
            own[:, plain.HEAD] = np.concatenate([np.ravel(heads[leaf][turn - 1, i]) for leaf in ("kernel", "bias")])
            assert states.labels[turn, i] == np.argmin([plain.loss(model, CLIENTS[i]) for model in own])
    several(states.labels[-1])


# Per-client state


def test_per_client_state():
    here, states = run_of("scaffold")
    asked = asked_of(here, states)
    expected = list(plain_seams.scaffold(CLIENTS, asked, first_of(states)))
    agree(states, expected)
    own, control = by_client(states.clients["control"]), by_client(states.server["control"])[:, 0]
    for turn, (*_, mine, ours) in enumerate(expected, 1):
        np.testing.assert_allclose(own[turn], mine, rtol=0, atol=2e-5)
        np.testing.assert_allclose(control[turn], ours, rtol=0, atol=2e-5)
        away = np.setdiff1d(np.arange(8), asked[turn - 1])
        np.testing.assert_array_equal(own[turn, away], own[turn - 1, away])
    differs(control[-1], 0)


@pytest.mark.parametrize("method", [scaffold(), feddane(mu=0.0)], ids=lambda method: method.name)
def test_corrections_leave_layers_that_stay_with_a_client_alone(method):
    """With one step on all examples the clients' own heads go as FedAvg's do, and no gradient of them is sent."""
    here = tiny.setting(epochs=1, batch_size="full")
    found, plain_ = (tiny.run(tiny.built(private(one, "head"), here), 3) for one in (method, fedavg()))
    if method.train.control:  # whose bodies are corrected by gradients at other points
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(found.server["control"]["head"]))
        found, plain_ = (jax.tree.map(lambda leaf: leaf[:2], one) for one in (found, plain_))
    tiny.same(found.clients["private"], plain_.clients["private"], 1e-5)


def test_a_warm_up_sends_no_layers_that_stay_with_a_client():
    """FeSEM with CAM: clients train alone at first; their models are sent when it ends, without their own heads."""
    here = setting(extras=[{"name": "cam", "warmup": 2}])
    states = tiny.run(tiny.built(private(fesem(clusters=2), "head"), here), 3)
    head = lambda models, turn: models["params"]["head"]["kernel"][turn]
    np.testing.assert_allclose(head(states.clusters, 3), head(states.clusters, 0), atol=1e-6)
    np.testing.assert_array_equal(head(states.clients["model"], 2), head(states.clients["model"], 0))
    differs(head(states.clients["private"], 2), head(states.clients["private"], 0))


@pytest.mark.parametrize(
    ("method", "depart"), [("flhc", {}), ("fedavg", {1: 3, 3: 3, 5: 3, 7: 3})], ids=["split", "departed"]
)
def test_control_variates_are_means_of_the_clients_that_are_left(method, depart):
    """With one step on all examples SCAFFOLD is FedAvg, also after clients were divided or have left."""
    data = groups.two_groups(depart=depart)
    options = {"clusters": 2, "at": 3} if method == "flhc" else {}

    def last(train: str) -> Any:
        given = groups.settings(method, rounds=8, **options)
        given["method"]["train"] = train
        (algorithm,) = planned(*config_and_objects(data, given)).algorithms.values()
        return jax.tree.map(lambda leaf: leaf[-1], tiny.run(algorithm, 8, data=data))

    plain, corrected = last("local"), last("scaffold")
    np.testing.assert_array_equal(plain.labels, corrected.labels)
    tiny.same(plain.clusters, corrected.clusters, 1e-5)
    counts = (plain.labels >= 0) & ~np.isin(np.arange(8), [*depart])
    for cluster in {*plain.labels[counts].tolist()}:
        members = counts & (plain.labels == cluster)
        mean = jax.tree.map(lambda leaf: leaf[members].mean(0), corrected.clients["control"])
        tiny.same(jax.tree.map(lambda leaf: leaf[cluster], corrected.server["control"]), mean, 1e-5)


@pytest.mark.parametrize("name", ["scaffold", "fedem", "fedper", "fedadam"])
def test_kept_states_go_on_bit_for_bit(name):
    _, step, states = half(name)
    back = restored(states[2])
    for _ in range(2, TURNS):
        back = step(back, jax.device_put(DATA))
    tiny.same(*(jax.tree.map(tiny.numpy, one) for one in (states[-1], back)))


# Server optimizer

ADAM = {"lr": 0.05}
HALVES = {
    "fedem": fedem(clusters=3),
    "fedrc": fedrc(clusters=3),
    "fedper": private(fedavg(), "head"),
    "fedper with a pull": private(fedprox(mu=0.5), "head"),
    "scaffold": scaffold(),
    "fedadam": fedadam(**ADAM),
}
"""The methods of `half`."""


def with_adam(method):
    return replace(method, aggregate=Aggregate(server=ServerOptimizer(kind="adam", **ADAM)))


def adam_of(states, name="optimizer"):
    """The server's Adam. count [turns + 1, k], mu and nu [turns + 1, k, p]"""
    state = states.server[name][0]
    return plain_seams.Moments(state.count, by_client(state.mu), by_client(state.nu))


def same_moments(found, turn, expected, rows):
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one[turn][rows], two[rows], rtol=0, atol=2e-5, err_msg=str(turn))


def test_server_optimizer():
    here, states = run_of("fedadam")
    agree(states, plain_seams.fedadam(CLIENTS, asked_of(here, states), first_of(states), **ADAM), tolerance=3e-5)


def test_moments_of_merged_clusters_are_their_mean():
    here, turns = setting(0.5), 5
    states = tiny.run(tiny.built(with_adam(stocfl(tau=0.35, lam=0.2)), here), turns)
    asked, found = asked_of(here, states), adam_of(states)
    loop = plain_seams.stocfl_adam(CLIENTS, asked, first_of(states), states.labels, lam=0.2, **ADAM)
    merged = 0
    for turn, (expected, shared, moments) in enumerate(loop, 1):
        used = sorted(set(states.labels[turn]) - {-1})
        np.testing.assert_allclose(plain.vectors(states.clusters, 2)[turn][used], expected[used], rtol=0, atol=5e-5)
        np.testing.assert_allclose(plain.vectors(states.shared, 1)[turn], shared, rtol=0, atol=5e-5)
        same_moments(found, turn, moments, used)
        before, after = states.labels[turn - 1 : turn + 1]
        merged += sum(len(set(before[after == k]) - {-1}) > 1 for k in used)
    assert merged, "no two clusters that had trained were united"


def test_moments_of_a_divided_cluster_are_its_parents():
    turns = 5
    method = with_adam(cfl(eps1=0.95, eps2=0.3, min_round=1))
    states = tiny.run(tiny.built(method, setting()), turns)
    parents = []
    for before, after in zip(states.labels, states.labels[1:], strict=False):
        parent = np.arange(8)
        for k in set(after) - set(before):
            (parent[k],) = set(before[after == k])
        parents.append(parent)
    loop = plain_seams.divided_adam(CLIENTS, first_of(states), states.labels, 8, parents, **ADAM)
    for turn, (expected, moments) in enumerate(loop, 1):
        used = sorted(set(states.labels[turn]))
        np.testing.assert_allclose(plain.vectors(states.clusters, 2)[turn][used], expected[used], rtol=0, atol=5e-5)
        same_moments(adam_of(states), turn, moments, used)
    several(states.labels[-1])
    assert (adam_of(states).count[-1][sorted(set(states.labels[-1]))] == turns).all()


# Phases with clocks of their own


@dataclass(frozen=True, kw_only=True)
class Watched(Group):
    """One cluster, and a note of the last round of the method's own: its clock, and who was asked."""

    name: ClassVar[str] = "watched"

    def slots(self, context: Any) -> int:
        return 1

    def grouping(self, method: Method, context: Any):
        blank = -jnp.ones(context.population.cohort, jnp.int32)

        def init(state, federation):
            return state.replace(memory=(jnp.int32(-1), blank), labels=jnp.zeros_like(state.labels))

        def before(key, state, cohort, federation):
            return state.replace(memory=(state.clock, jnp.where(cohort.present, cohort.who, -1)))

        return grouping_of(init=init, before=before)


def watched(*phases: Phase, **answers: Any) -> Method:
    return Method(
        name="watched",
        describe=Nothing(),
        compare=Incomparable(),
        group=Watched(),
        when=Every(),
        before=tuple(phases),
        **answers,
    )


def test_a_phase_has_a_clock_of_its_own():
    """Two rounds before the method's own; who is asked, and who is there, goes by the rounds of the run."""
    data = DATA.replace(arrive=np.where(np.arange(8) == 3, 3, 0).astype(np.int32))
    here = setting(0.75, data, extras=[{"name": "cam", "warmup": 2}])
    states = tiny.run(tiny.built(watched(), here), TURNS + 1, data=data)
    clock, asked = states.memory
    np.testing.assert_array_equal(clock, [-1, -1, -1, 0, 1, 2])
    np.testing.assert_array_equal(states.round - states.began, np.arange(-2, 4))
    for turn, who in enumerate(asked_of(here, states, data)):
        if turn >= 2:
            np.testing.assert_array_equal([i for i in asked[turn + 1] if i >= 0], who)
    bare = tiny.run(tiny.built(watched(), setting(0.75, data)), TURNS + 1, data=data)
    np.testing.assert_array_equal(asked[3:], bare.memory[1][3:])
    assert 3 not in asked[:4]


def test_phases_follow_each_other():
    """A phase of one round and one of two are one of three."""
    here, answer = setting(0.5), {"answer": replace(fedavg().answer, model="sum")}
    one, two = (
        tiny.run(tiny.built(watched(*(Phase(length, "shared") for length in lengths), **answer), here), 5)
        for lengths in ((3,), (1, 2))
    )
    tiny.same(one, two, 1e-6)
    np.testing.assert_array_equal(one.memory[0], [-1, -1, -1, -1, 0, 1])


def test_a_grouping_goes_by_the_clock_of_its_phase():
    here = setting(extras=[{"name": "cam", "warmup": 2}])
    states = tiny.run(tiny.built(flhc(at=1, clusters=3), here), TURNS + 1)
    assert [len(set(labels)) for labels in states.labels] == [1, 1, 1, 1, 3, 3]


@pytest.mark.parametrize("method", [flhc(at=2, clusters=3), wecfl(clusters=3, shots=(2, 3))], ids=["flhc", "wecfl"])
def test_clusters_go_on_from_the_one_that_they_were(method):
    """Grouped after two rounds of one cluster: the models and the server's Adam go on in all three alike."""
    states = tiny.run(tiny.built(with_adam(method), setting()), 3)
    several(states.labels[3], 3)
    np.testing.assert_array_equal(adam_of(states).count[3], 3)
    models = plain.vectors(states.clusters, 2)
    assert np.abs(models[3] - models[2, 0]).max() < 2 * ADAM["lr"]  # one step of Adam away
    differs(models[2, 0], models[0, 0], 0.08)


# Trainers


class ShortSteps:
    """Steps of one length along the gradient, by nobody's class: all that a trainer must offer, and no more."""

    def __init__(self, steps, length, linear=False, kept=False):
        self.steps, self.length, self.linear, self.kept = steps, length, linear, kept

    def train(self, objective, start, sent, data, key):
        return self.resume(objective, start, None, sent, data, key)[0]

    def resume(self, objective, start, memory, sent, data, key):
        def step(_, model):
            slope, after = jax.grad(objective, has_aux=True)(model["params"], model, data, sent, key)
            squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(slope)) if not self.linear else 1.0
            size = self.length / jnp.sqrt(squares)
            return {**after, "params": jax.tree.map(lambda a, b: a - size * b, model["params"], slope)}

        return jax.lax.fori_loop(0, self.steps, step, start), memory

    def fresh_state(self, start):
        return ()

    def rows_and_steps(self, n):
        return n, self.steps

    def for_steps(self, steps):
        return ShortSteps(steps, self.length, self.linear)

    for_epochs = for_steps

    def full_batch(self, steps, momentum=True):
        return self.for_steps(steps)

    @property
    def is_linear(self):
        return self.linear

    @property
    def keeps_state(self):
        return self.kept

    @property
    def can_resume(self):
        return True

    def mean_gradient(self, start, after, data):
        raise InputError("control variates need plain SGD")


def with_trainer(here, trainer, **changes):
    return here.with_context(trainer=trainer, **changes)


def test_a_trainer_of_ones_own():
    """With FedAvg against a loop; fine-tuning and FedSGD ask it for other numbers of steps."""
    here = with_trainer(setting(0.5), ShortSteps(3, 0.1))
    states = tiny.run(tiny.built(fedavg(), here), TURNS)

    def trained(vector, client, steps=3):
        for _ in range(steps):
            slope = plain.gradient(vector, client)
            vector = vector - 0.1 * slope / np.linalg.norm(slope)
        return vector

    model = first_of(states)
    for turn, asked in enumerate(asked_of(here, states), 1):
        model = plain.mean({i: trained(model, CLIENTS[i]) for i in asked}, plain.sizes(CLIENTS))
        np.testing.assert_allclose(plain.vectors(states.shared, 1)[turn], model, rtol=0, atol=1e-5)
    tuned = replace(fedavg().with_train(steps=1), answer=replace(fedavg().answer, tune=2))
    state, _, logits, owner, x = answered(tiny.built(tuned, with_trainer(setting(), ShortSteps(3, 0.1))), 1)
    own = [trained(plain.vectors(state.shared), client, 2) for client in CLIENTS]
    expected = [plain.logits(own[i], row[None])[0] for i, row in zip(owner, x, strict=True)]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def dense() -> Task:
    return registry.find("model", "mlp")((4, 4, 1), tiny.CLASSES, hidden=(7,))


def test_the_factored_engine_asks_a_trainer_what_it_needs():
    here = setting(0.5).with_context(task=dense(), engine="factored")
    for trainer in (ShortSteps(2, 0.5), ShortSteps(2, 0.5, linear=True, kept=True)):
        with pytest.raises(InputError, match="engine 'factored' cannot be used: clients do not train by plain SGD"):
            tiny.built(fedavg(), with_trainer(here, trainer))
    linear = ShortSteps(2, 0.5, linear=True)
    factored, general = (tiny.built(fedavg(), with_trainer(here, linear, engine=name)) for name in ("factored", "auto"))
    assert factored.engine == "factored"
    usual = tiny.built(fedavg(), with_trainer(here, setting(epochs=2, lr=0.5).context.trainer, engine="general"))
    one, two = (tiny.run(algorithm, 2) for algorithm in (factored, usual))
    tiny.same(one.shared, two.shared, 1e-5)
    assert general.engine in ("factored", "general")


def test_a_trainer_says_itself_what_it_cannot_do():
    with pytest.raises(InputError, match="plain SGD"):
        tiny.run(tiny.built(scaffold(), with_trainer(setting(), ShortSteps(1, 0.1))), 1)


class Clipped(Local):
    """SGD whose gradient is clipped, by an optimizer of its own."""

    def optimizer(self):
        return optax.chain(optax.clip(0.001), optax.sgd(self.lr))


class Twice(Local):
    """SGD twice over."""

    def train(self, objective, start, sent, data, key):
        return Local.train(self, objective, Local.train(self, objective, start, sent, data, key), sent, data, key)


@pytest.mark.parametrize("kind", [Clipped, Twice])
def test_a_trainer_that_derives_from_sgd_is_no_plain_sgd(kind):
    """The factored engine, control variates and 1 / learning rate as L would compute something else with it."""
    trainer = kind(0.1, 1, None, "full", 0.0, 0.0)
    here = with_trainer(setting().with_context(task=dense()), trainer)
    with pytest.raises(InputError, match="engine 'factored' cannot be used: clients do not train by plain SGD"):
        tiny.built(fedavg(), here.with_context(engine="factored"))
    with pytest.raises(InputError, match="control variates need plain SGD"):
        tiny.built(scaffold(), here)
    with pytest.raises(InputError, match=r"stands for L with train\.name=sgd only"):
        tiny.built(replace(fedavg(), aggregate=Aggregate(rule=Fair())), here)


def test_a_trainer_takes_no_option_that_its_copies_would_not_have():
    """`for_steps`, by which a client is fine-tuned, makes a copy; the copy would have the class's value."""
    trainer = Twice(0.1, 1, None, "full", 0.0, 0.0)
    with pytest.raises(InputError, match=r"trainer Twice: 'lam' would be lost in copies.*inside the registered"):
        trainer.lam = 2.0


def test_the_factored_engine_refuses_a_pull_of_what_a_function_makes_of_parameters():
    @dataclass(frozen=True)
    class Cubes(LossTerm):
        """A pull of the parameters' cubes."""

        def build(self, task):
            return objectives.proximal(
                objectives.own, 0.1, on=lambda model: jax.tree.map(lambda leaf: leaf**3, model["params"])
            )

    method = replace(fedavg(), train=Train(terms=(Cubes(),)))
    with pytest.raises(InputError, match="not a pull of whole layers"):
        tiny.built(method, setting().with_context(task=dense(), engine="factored"))


# Engines


class OneByOne:
    """One client after another, each added to plain sums."""

    name = "one_by_one"

    def __init__(self, cheap=True):
        self.cheap = cheap

    def obstacle(self, work):
        return "ω is trained as well" if work.shared else ""

    def is_cheaper(self, work, context):
        return self.cheap

    def training(self, work, context):
        client = work.make(work.task)

        def train(key, state, participants, federation, keep):
            common = engine.common_broadcast(state, federation)

            def one(sums, who, label, in_cluster, in_cohort):
                data = jax.tree.map(lambda leaf: leaf[0], chunks.gather(federation, federation.train, who[None]))
                sent = engine.broadcast(state, label, who, common)
                upload = client(sent, data, jax.random.fold_in(key, who))
                models, mean = sums
                models = jax.tree.map(
                    lambda total, leaf: total.at[label].add(in_cluster * leaf), models, upload.cluster
                )
                mean = jax.tree.map(lambda total, leaf: total + in_cohort * leaf, mean, upload.shared or mean)
                return (models, mean), upload if keep else Upload((), (), upload.own)

            start = jax.tree.map(jnp.zeros_like, (state.clusters, state.shared))
            given = participants.who, participants.label, participants.in_cluster, participants.in_cohort
            (models, mean), uploads = jax.lax.scan(lambda sums, part: one(sums, *part), start, given)
            return trees.select(engine.trained_clusters(participants, state), models, state.clusters), mean, uploads

        return train


def two_rounds(method, here, engine, name):
    """The states of a method's run by an engine of this name."""
    algorithm = tiny.built(method, here.with_context(engines=(OneByOne(),), engine=engine))
    assert algorithm.engine == name
    return tiny.run(algorithm, 2)


@pytest.mark.parametrize("name", ["scaffold", "fedem", "cfl"])
def test_an_engine_of_ones_own(name):
    """It trains whatever the general one does: with states of clients, with all models, with uploads kept."""
    if name == "cfl":
        method = cfl(eps1=1.0, eps2=0.2, capacity=4)
        one, two = (two_rounds(method, setting(), *by) for by in (("auto", "one_by_one"), ("general", "general")))
    else:
        assert tiny.built(HALVES[name], setting(0.5)).engine == "general"
        one = two_rounds(HALVES[name], setting(0.5), "auto", "one_by_one")
        two = jax.tree.map(lambda leaf: leaf[:3], run_of(name)[1])
    np.testing.assert_array_equal(one.labels, two.labels)
    tiny.same(one.replace(memory=()), two.replace(memory=()), 2e-6)


def test_an_engine_is_chosen_by_name_by_price_or_not_at_all():
    here = setting().with_context(engines=(OneByOne(cheap=False), *setting().context.engines))
    assert tiny.built(fedavg(), here).engine == "general"
    assert tiny.built(fedavg(), here.with_context(engine="one_by_one")).engine == "one_by_one"
    with pytest.raises(
        InputError, match="engine 'one_by_one' cannot be used: ω is trained as well; take engine 'auto'"
    ):
        tiny.built(stocfl(), here.with_context(engine="one_by_one"))
    one_by_one = here.with_context(engine="one_by_one")
    assert tiny.built(fedavg(shared_update="sequential"), one_by_one).engine == "one_by_one"
    with pytest.raises(InputError, match="unknown engine 'one_by_on'; did you mean 'one_by_one'"):
        tiny.built(fedavg(), here.with_context(engine="one_by_on"))


class Half(nn.Module):
    """Parameters of half precision, and a variable that counts the steps of training."""

    @nn.compact
    def __call__(self, x, train=False):
        steps = self.variable("stats", "steps", lambda: jnp.zeros((), jnp.int32))
        if train:
            steps.value += 1
        layer = lambda width: nn.Dense(width, param_dtype=jnp.bfloat16)
        return layer(tiny.CLASSES)(nn.tanh(layer(5)(x.reshape(x.shape[0], -1))))


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        (fedavg(), "general"),
        (ifca(clusters=2), "general"),
        (fesem(clusters=2), "general"),
        (ifca(clusters=2).with_train(shared="trained"), "factored"),
    ],
    ids=["fedavg", "ifca", "fesem", "factored"],
)
def test_means_of_equal_models_are_these_models_in_every_dtype(method, engine):
    """Forty clients, one at a time: summed in eight bits, or as whole numbers, they would add up to something else."""
    data = tiny.federation((6,) * 40)
    task = networks.task(Half(), (4, 4, 1), tiny.CLASSES)
    here = tiny.setting(chunk=1, data=data, lr=1e-9, epochs=1, batch_size="full")
    states = tiny.run(tiny.built(method, here.with_context(task=task, engine=engine)), 2, data=data)
    trained = np.bincount(states.labels[-1], minlength=trees.count(trees.take(states.clusters, 0))) > 0
    for leaf in jax.tree.leaves(states.clusters["params"]):
        assert leaf.dtype == jnp.bfloat16
        np.testing.assert_allclose(*leaf[[-1, 0]][:, trained].astype(float), rtol=0, atol=1e-6)
    assert (states.clusters["stats"]["steps"][-1, trained] == 2).all()
    assert states.shared["stats"]["steps"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("aggregate", [Aggregate(absent=True), Aggregate(rate=0.5)], ids=str)
def test_the_server_keeps_the_dtypes_of_models(aggregate):
    """A part of the way from the old models to the new ones is no half precision and no whole number by itself."""
    task = networks.task(Half(), (4, 4, 1), tiny.CLASSES)
    here = tiny.setting(participation=0.5).with_context(task=task, engine="general")
    states = tiny.run(tiny.built(replace(fedavg(), aggregate=aggregate), here), 2)
    for leaf in jax.tree.leaves((states.clusters["params"], states.shared["params"])):
        assert leaf.dtype == jnp.bfloat16
    assert states.clusters["stats"]["steps"].dtype == jnp.int32


@pytest.mark.parametrize(
    "made",
    [
        lambda value: (fedavg(), {"momentum": value, "keep_optimizer_state": True}),
        lambda value: (scaffold(), {"lr": value}),
        lambda value: (fedavg().with_aggregate(server=ServerOptimizer(momentum=value)), {}),
    ],
    ids=["momentum", "rate", "server"],
)
@pytest.mark.filterwarnings("error::FutureWarning")
def test_options_that_change_leave_states_of_half_precision(made):
    """Such an option is an array of single precision, and its products with half precision are single too."""
    task = networks.task(Half(), (4, 4, 1), tiny.CLASSES)

    def run(value, key, data):
        method, train = made(value)
        algorithm = tiny.built(method, tiny.setting(**train).with_context(task=task, engine="general"))
        state = algorithm.init(key, data)
        return state, algorithm.step(state, data)

    before, after = jax.eval_shape(run, jnp.float32(0.5), jax.random.key(0), DATA)
    dtypes = lambda state: jax.tree.map(lambda leaf: str(leaf.dtype), state)
    assert dtypes(before) == dtypes(after)
