"""What holds for every method, and for every add-on on the methods it goes with.

A case is a method with options and add-ons, run on clients of which one has a single example, half of them in a round,
and with more clusters than clients in the cohort. It costs two programs: one round and its answers called in a loop,
by the probability that a client's round is lost, and a whole run scanned, over two seeds at once, on clients padded
further. Their agreement is scan = loop, vmap over seeds = one by one, padding changes nothing, and clients of whom
nothing is lost are those without faults, at once.
"""

import functools
import inspect
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl import registry
from jcfl.core import evaluation, rounds
from jcfl.core.faults import Faults
from jcfl.core.privacy import Privacy
from jcfl.core.releases import releases
from jcfl.core.reliability import Reliability
from jcfl.errors import InputError
from tests import tiny

registry.load()

TURNS = 4
SEEDS = (0, 1)
CLUSTERS = 5  # one more than clients in a round, so one is always empty
CLOSE = 1e-5
SIZES = (12, 9, 1, 12, 10, 5, 12, 8)

OPTIONS: dict[str, dict[str, Any]] = {
    "fesem": {"lam": 0.1},
    "cfl": {"eps1": 1.0, "eps2": 0.2, "capacity": 3},
    "flhc": {"clusters": 3, "at": 1},
    "stocfl": {"tau": 0.5, "lam": 0.1},
    "oneshot_kmeans": {"restarts": 2},
    "fedavg_plus": {"runs": 2},
    "fedprox_plus": {"runs": 2},
}
ADDONS: dict[str, dict[str, Any]] = {
    "con_para": {},
    "con_rep": {},
    "cks": {"lam": 0.1, "form": "pairwise"},
    "con_cks": {},
    "distill": {},
    "cam": {"warmup": 2},
    "finetune": {"steps": 2},
    "voting": {},
    "robust": {"rule": "trimmed_mean", "beta": 0.3},
    "fair": {"q": 2.0},
    "exclude": {"limit": 0.5},  # by a higher limit nobody is far away in clusters of so few clients
}
SINGLE = ("finetune", "voting", "robust", "fair", "exclude")
TAKES = (
    dict.fromkeys(registry.names("method"), tuple(ADDONS))
    | dict.fromkeys(["fedsgd", "fedavg", "fedprox", "feddist", "feddws", "feddane", "ditto"], SINGLE)
    | dict.fromkeys(["clustered", "fedadam", "scaffold"], SINGLE)
    | dict.fromkeys(["fedavg_plus", "fedprox_plus"], SINGLE)
    | {"local": ("cam", "finetune", "voting"), "fedem": ("voting", "exclude"), "fedrc": ("voting", "exclude")}
    | dict.fromkeys(["fesem", "wecfl"], tuple(name for name in ADDONS if name != "fair"))
    | dict.fromkeys(["fesem_ma", "robust_tkm"], tuple(name for name in ADDONS if name not in ("robust", "fair")))
    | {"majority": ()}
)
"""The add-ons that every method takes; the others mean nothing to it, and it refuses them."""

UNCOVERED = {
    **dict.fromkeys(["local", "majority"], "sends nothing"),
    **dict.fromkeys(["fesem_ma", "robust_tkm"], "aggregates by"),
    "feddane": "sends gradients beside updates",
    "scaffold": "sends control variates beside updates",
    "oneshot_kmeans": "begins clusters at the means of trained models",
    "fedrc": "reports label_counts beside updates",
}
"""What methods send that no noise covers; all others train under privacy."""

JOINED = [
    ("ifca", ("con_cks", "con_rep", "finetune", "exclude")),  # con_para is a part of con_cks
    ("ifca", ("cks", "distill", "robust")),
    ("ifca", ("cam", "voting")),
    ("wecfl", ("cam",)),
    ("stocfl", ("cam",)),
]
"""Add-ons that act at different moments, or whose terms are added up, share a case: what one breaks, it breaks."""
CASES: list[tuple[str, tuple[str, ...]]] = [*((name, ()) for name in registry.names("method")), *JOINED]
STORED = ("fesem", "fesem_ma", "wecfl")  # absent clients count by their last models, and are grouped by them


def build(name: str, *addons: str, data=None, faults=None, **more):
    """A method of the table, ready to run."""
    participation = 1.0 if name == "cfl" else 0.5
    extras = [{"name": addon, **ADDONS[addon]} for addon in addons]
    data = tiny.federation(SIZES) if data is None else data
    setting = tiny.setting(participation, chunk=3, data=data, extras=extras, epochs=1)
    setting = setting if faults is None else setting.with_context(faults=faults)
    given = OPTIONS.get(name, {}) | more
    if "clusters" in inspect.signature(registry.find("method", name)).parameters:
        given = {"clusters": CLUSTERS} | given
    if name == "stocfl" and "cam" in addons:
        given["lam"] = 0.0
    return setting, tiny.built(name, setting, **registry.options("method", name, given))


class Outcome(NamedTuple):
    """What became of a case."""

    loops: list[Any]  # the states of each seed, round after round. [turns + 1, ...]
    answers: list[Any]  # of each seed, at last: which cluster serves each client [m], the logits of test rows [r, c]
    whole: Any  # the states of the scanned runs. [seeds, turns + 1, ...]
    answered: Any  # their last answers. [seeds, ...]
    resumed: Any  # the last state of the first seed, gone on with from NumPy after round 2
    lossy: dict[float, Any]  # the first seed's state after three rounds, and its answers, by the share of lost rounds
    cohorts: list[np.ndarray]  # the ids that took part in each round of the first seed


@functools.cache
def outcome(name: str, addons: tuple[str, ...]) -> Outcome:
    data = tiny.federation(SIZES)
    setting, algorithm = build(name, *addons)
    wide = data.replace(
        train=data.train.replace(width=data.train.width + 5), test=data.test.replace(width=data.test.width + 5)
    )

    def whole(key, data):
        def step(state, _):
            state = algorithm.step(state, data)
            return state, state

        start = algorithm.init(key, data)
        last, states = jax.lax.scan(step, start, length=TURNS)
        return start, states, algorithm.predict(last, data)

    chex.clear_trace_counter()  # it counts by source line, whatever a function closes over

    @chex.assert_max_traces(n=1)
    def turn(state, data, dropout):
        _, algorithm = build(name, *addons, faults=Faults(reliability=Reliability(dropout=dropout)))
        state = algorithm.step(state, data)
        return state, algorithm.predict(state, data)

    keys = jax.vmap(jax.random.key)(np.array(SEEDS))
    together = jax.jit(jax.vmap(whole, (0, None)))
    starts, later, answered = together(keys, jax.device_put(wide))
    join = lambda first, rest: np.concatenate([tiny.numpy(first)[:, None], tiny.numpy(rest)], 1)
    turn, data = jax.jit(turn), jax.device_put(data)
    loops, answers, resumed = [], [], None
    for seed in range(len(SEEDS)):
        states = [restored(starts, seed)]
        for _ in range(TURNS):
            state, said = turn(states[-1], data, 0.0)
            states.append(state)
        loops.append(jax.tree.map(lambda *leaves: np.stack([tiny.numpy(leaf) for leaf in leaves]), *states))
        answers.append(jax.tree.map(np.asarray, said))
        if seed == 0:
            resumed = restored(states[2])
            for _ in range(2, TURNS):
                resumed, _ = turn(resumed, data, 0.0)
            asked = [cohort(setting, state, data) for state in states[:-1]]
    lossy = {}
    for dropout in (0.5, 1.0):
        state = restored(starts, 0)
        for _ in range(3):
            state, said = turn(state, data, dropout)
        lossy[dropout] = jax.tree.map(tiny.numpy, (state, said))
    resumed = jax.tree.map(tiny.numpy, resumed)
    return Outcome(loops, answers, jax.tree.map(join, starts, later), answered, resumed, lossy, asked)


def restored(state, place=()):
    """A state, or the one at a place of several, as it comes back from NumPy; JAX would compile a slice per shape."""
    saved = jax.tree.map(lambda leaf: np.array(tiny.numpy(leaf)[place]), state)
    back = lambda array, leaf: (
        jax.random.wrap_key_data(array) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.asarray(array)
    )
    return jax.tree.map(back, saved, state)


def cohort(setting, state, data):
    """The ids that take part in the round that follows a state."""
    pick, _, _ = jax.random.split(jax.random.fold_in(state.key, state.round), 3)
    asked = sample(setting)(pick, state.round, data)
    return np.asarray(asked.who)[np.asarray(asked.present)]


@functools.cache
def sampler(participation: float):
    setting = tiny.setting(participation, data=tiny.federation(SIZES))
    return jax.jit(lambda key, round, data: rounds.sample(key, setting.context.population, data.available(round)))


def sample(setting):
    return sampler(setting.context.population.participation)


every_case = pytest.mark.parametrize(
    ("name", "addons"), CASES, ids=["-".join([name, "+".join(addons) or "None"]) for name, addons in CASES]
)


@every_case
def test_scan_vmap_and_padding_change_nothing(name, addons):
    """Every seed of the scanned run is the loop's, and so is every answer."""
    found = outcome(name, addons)
    for seed, (loop, answers) in enumerate(zip(found.loops, found.answers, strict=True)):
        whole = jax.tree.map(lambda leaf, seed=seed: leaf[seed], found.whole)
        np.testing.assert_array_equal(loop.labels, whole.labels)
        np.testing.assert_array_equal(loop.seen, whole.seen)
        tiny.same((loop.clusters, loop.shared), (whole.clusters, whole.shared), CLOSE)
        answered = jax.tree.map(lambda leaf, seed=seed: leaf[seed], found.answered)
        tiny.same(answers, answered, 1e-4)
    one, two = found.loops
    apart = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (one.clusters, two.clusters)), strict=True)]
    assert max(apart) > 1e-3 or name == "majority", "seeds must differ, or their agreement says nothing"


@every_case
def test_one_trace_serves_every_round_and_a_restored_state_goes_on_bit_for_bit(name, addons):
    """One trace: `outcome` asserts it over both seeds and the resumed run."""
    found = outcome(name, addons)
    tiny.same(found.resumed, jax.tree.map(lambda leaf: leaf[-1], found.loops[0]))


@every_case
def test_everything_stays_finite_and_in_range(name, addons):
    """Though one client has a single example and a cluster is empty."""
    found = outcome(name, addons)
    for states, (labels, logits) in zip(found.loops, found.answers, strict=True):
        numbers = [leaf for leaf in jax.tree.leaves((states.clusters, states.shared)) if leaf.dtype.kind == "f"]
        assert all(np.isfinite(leaf).all() for leaf in numbers)
        assert (states.failed == -1).all()
        assert (states.round == np.arange(TURNS + 1)).all()
        k = jax.tree.leaves(states.clusters)[0].shape[1]
        assert states.labels.min() >= -1
        assert states.labels.max() < k
        assert labels.min() >= -1
        assert labels.max() < k
        assert np.isfinite(logits).all()


@every_case
def test_lost_rounds_are_survived(name, addons):
    """With half of the rounds lost all stays finite; with all of them lost nobody has taken part, and ω stays."""
    found = outcome(name, addons)
    end, (_, logits) = found.lossy[0.5]
    floats = [leaf for leaf in jax.tree.leaves((end.clusters, end.shared, logits)) if leaf.dtype.kind == "f"]
    assert all(np.isfinite(leaf).all() for leaf in floats)
    assert end.failed[0] == -1
    assert end.round == 3
    end, (_, logits) = found.lossy[1.0]
    assert not end.seen.any()
    assert end.failed[0] == -1
    assert np.isfinite(logits).all()
    tiny.same(end.shared, jax.tree.map(lambda leaf: leaf[0], found.loops[0].shared), 1e-6)


@every_case
def test_models_move(name, addons):
    states = outcome(name, addons).loops[0]
    moved = [np.abs(leaf[-1] - leaf[0]).max() for leaf in jax.tree.leaves(states.clusters)]
    assert (max(moved) > 1e-3) == (name != "majority")


@every_case
def test_unsampled_clients_keep_their_label(name, addons):
    """Where clusters merge, those that were together stay together; flhc groups everybody once.

    Where absent clients are grouped by their last models, it is these that they keep, and those without any, who stand
    where everybody started, are all in one cluster.
    """
    found = outcome(name, addons)
    states = found.loops[0]
    for turn, asked in enumerate(found.cohorts):
        before, after = states.labels[turn], states.labels[turn + 1]
        away = ~np.isin(np.arange(before.size), asked)
        if name in STORED:
            tiny.same(
                *(jax.tree.map(lambda leaf, at=at: leaf[at, away], states.clients["model"]) for at in (turn, turn + 1))
            )
            assert len(set(after[~states.seen[turn + 1]])) <= 1
        elif name == "stocfl":
            np.testing.assert_array_equal(after[away] < 0, before[away] < 0)
            known = np.flatnonzero(before >= 0)
            together = before[known][:, None] == before[known]
            assert (after[known][:, None] == after[known])[together].all()
        elif name != "flhc" or turn != OPTIONS["flhc"]["at"]:
            np.testing.assert_array_equal(after[away], before[away])
    assert (states.seen[2] < 1).any() or name in ("cfl", "majority")


@every_case
def test_an_empty_cluster_keeps_its_model(name, addons):
    found = outcome(name, addons)
    states, kept = found.loops[0], 0
    k = 1 if name in ("fedem", "fedrc") else jax.tree.leaves(states.clusters)[0].shape[1]  # all models
    for turn, asked in enumerate(found.cohorts):
        before, after = states.labels[turn], states.labels[turn + 1]
        members = np.flatnonzero(states.seen[turn + 1]) if name in STORED else asked
        empty = np.setdiff1d(np.arange(k), after[members])
        if name == "flhc" and turn == OPTIONS["flhc"]["at"]:
            continue
        if name == "stocfl":  # a slot is a cluster's as long as its members are
            empty = [row for row in empty if (after == row).any() and ((after == row) == (before == row)).all()]
        of = lambda turn, empty=empty: jax.tree.map(lambda leaf: leaf[turn, empty], states.clusters)
        tiny.same(of(turn + 1), of(turn))
        kept += len(empty)
    assert kept or k == 1


def test_the_limit_of_exclusion_leaves_a_client_out():
    """Of four clients of one cluster the last one is always beyond it. In the joined case it depends on the machine:
    of two clients, which are equally far from their median, one may be farther by a rounding error."""
    _, algorithm = build("ifca", "finetune", "exclude", clusters=1)
    states = tiny.run(algorithm, TURNS, data=tiny.federation(SIZES))
    assert states.clients["suspected"].any()


@pytest.mark.parametrize("name", ["ifca", "cfl", "stocfl"])
def test_jit_is_eager(name):
    """One round without jit, of every moment that a grouping has: before training, after it, and with merging.

    The other methods are these moments with other choices; op by op each would take several seconds.
    """
    data = tiny.federation((3, 2, 3, 2))
    more = {"clusters": 2} if name == "ifca" else {}
    setting = tiny.setting(1.0, data=data, batch_size="full", epochs=1)
    algorithm, data = tiny.built(name, setting, **OPTIONS.get(name, {}) | more), jax.device_put(data)
    state = jax.jit(algorithm.init)(jax.random.key(0), data)
    compiled = jax.jit(algorithm.step)(state, data)
    with jax.disable_jit():
        eager = algorithm.step(state, data)
    tiny.same(*(jax.tree.map(tiny.numpy, made) for made in (eager, compiled)), CLOSE)


@pytest.mark.parametrize("addon", ADDONS)
@pytest.mark.parametrize("name", TAKES)
def test_an_addon_is_taken_or_refused(name, addon):
    if addon in TAKES[name]:
        _, algorithm = build(name, addon)
        assert all(np.isfinite(value) for value in algorithm.costs(CLUSTERS).values())
    else:
        with pytest.raises(InputError, match=f"^{name}.*{addon}.*; as it is, {name} takes ") as error:
            build(name, addon)
        known = str(error.value).rpartition(" takes ")[2]
        assert set(known.split(", ")) & set(ADDONS) == set(TAKES[name])
        assert TAKES[name] or known == "no add-on"


@pytest.mark.parametrize("name", ["fesem", "fesem_ma", "cfl", "flhc", "oneshot_kmeans", "robust_tkm"])
def test_addons_keep_the_shape_of_the_state(name):
    """What a round gives back is what it takes, for all add-ons that a method takes together (traced, not run)."""
    data = tiny.federation(SIZES)
    apart = ("con_cks", "distill", "fair")  # they pull to what cam adds, or it refuses them
    _, algorithm = build(name, *(addon for addon in TAKES[name] if addon not in apart))
    state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
    chex.assert_trees_all_equal_shapes_and_dtypes(jax.eval_shape(algorithm.step, state, data), state)
    jax.eval_shape(algorithm.evaluate, state, data)


@pytest.mark.parametrize(
    ("name", "addons"),
    [*((name, ()) for name in registry.names("method")), ("fedavg", ("finetune", "voting"))],
    ids=lambda case: case if isinstance(case, str) else "+".join(case) or "None",
)
def test_a_federation_without_test_examples_is_evaluated(name, addons):
    """Traced, not run: there are no answers, and everything else is measured."""
    none = tiny.split([np.zeros(0, np.int32)] * len(SIZES))
    data = tiny.federation(SIZES).replace(test=none, validation=none)
    for private in ((), ("head",)) if name == "fedavg" else ((),):
        setting, algorithm = build(name, *addons, data=data)
        algorithm = tiny.built(algorithm.method.with_train(private=private), setting) if private else algorithm
        state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
        labels, logits = jax.eval_shape(algorithm.predict, state, data)
        assert (labels.shape, logits.shape) == ((len(SIZES),), (0, tiny.CLASSES))
        jax.eval_shape(evaluation.with_validation(algorithm.evaluate), state, data)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in registry.names("method")
        if "clusters" in inspect.signature(registry.find("method", name)).parameters
    ],
)
def test_more_clusters_than_clients_are_refused(name):
    with pytest.raises(InputError, match=f"^{name}: clusters must be at most .*8, got 9"):
        build(name, clusters=9)
    held = tiny.federation(SIZES, held_out=3)
    with pytest.raises(InputError, match=f"^{name}: clusters must be at most .*5, got 6"):
        build(name, data=held, clusters=6)


@pytest.mark.parametrize("name", registry.names("method"))
def test_a_method_has_privacy_or_is_refused_by_what_it_sends(name):
    """What a round under privacy gives back is what it takes (traced, not run)."""
    data, privacy = tiny.federation(SIZES), Privacy(clip=1.0, noise=1.0, description_clip=1.0, description_noise=1.0)
    setting = tiny.setting(1.0, data=data, epochs=1).with_context(privacy=privacy)
    make = lambda: tiny.built(name, setting, **registry.options("method", name, OPTIONS.get(name, {})))
    if name in UNCOVERED:
        with pytest.raises(InputError, match=f"^privacy: {name} {UNCOVERED[name]}"):
            make()
        return
    algorithm = make()
    assert releases(algorithm.method, setting.context)
    state = jax.eval_shape(algorithm.init, jax.random.key(0), data)
    chex.assert_trees_all_equal_shapes_and_dtypes(jax.eval_shape(algorithm.step, state, data), state)


def test_cfl_asks_for_everybody():
    with pytest.raises(InputError, match=r"cfl.*participation must be 1, got 0\.5"):
        tiny.built("cfl", tiny.setting(0.5))


@pytest.mark.parametrize("lam", [0.05, 1.0])
def test_stocfl_pulls_or_adds_but_not_both(lam):
    setting = tiny.setting(extras=[{"name": "cam"}])
    with pytest.raises(InputError, match=f"weight {lam:g}, has no meaning; set lam=0"):
        tiny.built("stocfl", setting, lam=lam)


def test_distillation_from_the_global_model_is_refused_beside_cam():
    cam = {"name": "cam"}
    with pytest.raises(InputError, match=r"distillation from the global model, weight 0\.1, has no meaning; set mu=0"):
        tiny.built("ifca", tiny.setting(extras=[cam, {"name": "distill"}]), clusters=2)
    tiny.built("ifca", tiny.setting(extras=[cam, {"name": "distill", "teacher": "start"}]), clusters=2)
