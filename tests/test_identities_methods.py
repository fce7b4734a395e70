"""The limits in which one method or add-on is another, as the papers state them.

What an identity compares are whole runs; those that several are compared with are shared.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl import trees
from jcfl.core import clients
from jcfl.core.aggregates import ServerOptimizer
from jcfl.core.chain import chain, permuted
from jcfl.core.compile import compile
from jcfl.core.costs import average, costs, operations
from jcfl.core.local import sgd
from jcfl.core.method import Aggregate, Answer, Train
from jcfl.core.streams import Stream, stream
from jcfl.core.terms import Proximal
from jcfl.errors import InputError
from jcfl.methods import ditto, fedavg, fedavg_plus, feddane, fesem, ifca, local, stocfl
from jcfl.methods.addons import cam, cks, con_cks, con_para, robust, voting
from jcfl.types import Broadcast, Clients
from tests import plain, tiny

TURNS = 3
CLOSE = 2e-6


def run(method, *extras, turns=TURNS, participation=1.0, data=None, train=None, **options):
    """A run's states; `extras` are add-ons."""
    setting = tiny.setting(participation, data=data, extras=extras, **train or {})
    return tiny.run(tiny.built(method, setting, **options), turns, data=data)


@functools.cache
def base(method, *options):
    """A run without add-ons that several identities are compared with."""
    return run(method, **dict(options))


@functools.cache
def swept(method, option, values, participation=1.0, train=()):
    """The states of a method's runs with one option at each of its values, by one program."""
    here = tiny.setting(participation, **dict(train))
    return tiny.swept(lambda value: tiny.built(method, here, **{option: value}), values, TURNS)


def alike(one, two):
    """The same clustering and models after every round."""
    np.testing.assert_array_equal(one.labels, two.labels)
    tiny.same((one.clusters, one.shared), (two.clusters, two.shared), CLOSE)


def gap(one, two):
    """The largest difference of any number of two pytrees."""
    return max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True))


def only_cluster(states):
    return jax.tree.map(lambda leaf: leaf[:, 0], states.clusters)


def test_wecfl_with_one_cluster_is_fedavg():
    """Also where clients leave: the last models of those that are gone, which it keeps, count no more."""
    data = tiny.federation()
    leaving = data.replace(depart=np.where(np.arange(8) == 6, 2, np.where(np.arange(8) == 1, 1, data.depart)))

    def runs(method, **options):
        """Its states with all clients, and with two that leave, by one program."""
        algorithm = tiny.built(method, tiny.setting(), **options)
        on = lambda data: algorithm._replace(
            init=lambda key, _: algorithm.init(key, data), step=lambda state, _: algorithm.step(state, data)
        )
        return tiny.swept(on, (data, leaving), 4)

    for one, averaged in zip(runs("wecfl", clusters=1), runs("fedavg"), strict=True):
        tiny.same(only_cluster(one), averaged.shared, CLOSE)
        tiny.same(one.shared, averaged.shared, CLOSE)


def test_fesem_with_one_cluster_is_fedavg_that_counts_equally():
    tiny.same(only_cluster(run("fesem", clusters=1)), base("fedavg", ("averaging", "equally")).shared, CLOSE)


def test_fesem_without_pull_on_clients_of_one_size_is_wecfl():
    data = tiny.federation((9,) * 8)
    options = {"clusters": 3, "data": data}
    one, two = run("fesem", lam=0.0, **options), run("wecfl", **options)
    rename = np.zeros(3, int)  # of several seedings that find the same, rounding says whose names are taken
    rename[one.labels[1]] = two.labels[1]
    np.testing.assert_array_equal(rename[one.labels[1:]], two.labels[1:])
    renamed = jax.tree.map(lambda leaf: leaf[1:, rename], two.clusters)
    tiny.same(jax.tree.map(lambda leaf: leaf[1:], one.clusters), renamed, CLOSE)
    assert sorted(rename) == [0, 1, 2]


ZERO = [
    {"name": "con_para", "mu": 0.0},
    {"name": "con_rep", "mu": 0.0},
    {"name": "cks", "lam": 0.0},
    {"name": "cks", "lam": 0.0, "form": "pairwise"},
    {"name": "con_cks", "mu": 0.0, "lam": 0.0},
    {"name": "distill", "mu": 0.0},
]


def test_addons_of_weight_zero_are_none():
    """All of them at once, so that any that did something would show."""
    alike(run("ifca", *ZERO, clusters=3), base("ifca", ("clusters", 3)))


@functools.cache
def knowledge():
    """StoCFL's runs by its threshold, the weight of CKS, and that of its own pull to ω, by one program."""

    def made(numbers):
        tau, mean, lam = numbers
        return tiny.built(cks(stocfl(tau=tau, lam=lam), lam=mean), tiny.setting(0.75))

    runs = {
        "one cluster": (-1.0, 0.3, 0.0),
        "one cluster, free": (-1.0, 0.0, 0.0),
        "several": (0.4, 0.3, 0.0),
        "several, pulled to ω": (0.4, 0.0, 0.3),
        "several, free": (0.4, 0.0, 0.0),
    }
    return dict(zip(runs, tiny.swept(made, runs.values(), TURNS), strict=True))


def test_cks_on_one_cluster_is_fedprox():
    """The mean of the cluster models is then the model that everybody starts from, however ω is trained beside it."""
    pulled, averaged = swept("fedprox", "mu", (0.3, 0.0), 0.75)
    for found, expected in (("one cluster", pulled), ("one cluster, free", averaged)):
        one = knowledge()[found]
        assert (one.labels[one.seen] == 0).all()
        tiny.same(only_cluster(one), expected.shared, CLOSE)
        tiny.same(one.shared, averaged.shared, CLOSE)
    assert gap(pulled.shared, averaged.shared) > 1e-3


def test_cks_pulls_to_the_mean_of_the_cluster_models_and_not_to_a_trained_shared_one():
    several = knowledge()["several"]
    assert len(set(several.labels[-1])) > 1
    assert gap(several.clusters, knowledge()["several, pulled to ω"].clusters) > 1e-4
    assert gap(several.clusters, knowledge()["several, free"].clusters) > 1e-3


def test_con_cks_is_con_on_the_head_with_cks_on_the_backbone():
    """And both are nothing where their weights are."""

    def made(weights):
        (mu, lam), (head, backbone) = weights
        together = con_cks(ifca(clusters=3), mu=mu, lam=lam)
        return tiny.built(cks(con_para(together, mu=head, on="head"), lam=backbone, on="backbone"), tiny.setting())

    on, off = (0.5, 0.2), (0.0, 0.0)
    both, apart, neither = tiny.swept(made, ((on, off), (off, on), (off, off)), TURNS)
    alike(both, apart)
    alike(neither, base("ifca", ("clusters", 3)))
    assert gap(both.clusters, neither.clusters) > 1e-3


def test_feddist_all_the_way_is_fedavg_that_counts_equally():
    averaged = base("fedavg", ("averaging", "equally"))
    tiny.same(swept("feddist", "epsilon", (1.0, 0.6))[0].shared, averaged.shared, CLOSE)
    assert gap(averaged.shared, base("fedavg").shared) > 1e-3


def test_feddws_all_the_way_is_fedavg():
    tiny.same(swept("feddws", "epsilon", (1.0, 0.6))[0].shared, base("fedavg").shared, CLOSE)


@pytest.mark.parametrize(("method", "options"), [("feddist", (("averaging", "equally"),)), ("feddws", ())])
def test_the_server_goes_a_share_of_the_way(method, options):
    part, whole = swept(method, "epsilon", (1.0, 0.6))[1].shared, base("fedavg", *options).shared
    way = lambda states, turn: jax.tree.map(lambda leaf: leaf[turn] - leaf[0], states)
    tiny.same(way(part, 1), jax.tree.map(lambda leaf: 0.6 * leaf, way(whole, 1)), CLOSE)


ONCE = (("epochs", 1), ("batch_size", "full"))


@functools.cache
def fedsgd():
    """FedSGD by a trainer of other batches, epochs and momentum."""
    return run("fedsgd", train={"epochs": 3, "batch_size": 4, "momentum": 0.9}).shared


@pytest.mark.parametrize("place", [0, 1])
def test_feddane_of_everybody_in_one_full_step_is_fedsgd(place):
    """θ = ω − η(∇f_i(ω) + g − ∇f_i(ω)) = ω − ηg, and where nobody has moved yet no pull is felt."""
    one = swept("feddane", "mu", (0.0, 0.5), train=ONCE)[place].shared
    tiny.same(one, fedsgd(), CLOSE)
    assert gap(*(jax.tree.map(lambda leaf, turn=turn: leaf[turn], one) for turn in (0, -1))) > 1e-2


def test_fedsgd_is_fedavg_of_one_full_step():
    """Whatever the trainer's own batches, epochs and momentum."""
    tiny.same(fedsgd(), run("fedavg", train=dict(ONCE)).shared, CLOSE)


EQUALLY = (("averaging", "equally"), ("clusters", 3), ("participation", 0.5))


def test_a_trimmed_mean_that_drops_nobody_is_the_mean():
    """Of those present: half of the clients take part. One that drops somebody is not the mean."""

    def made(beta):
        method = ifca(clusters=3, averaging="equally")
        return tiny.built(robust(method, rule="trimmed_mean", beta=beta), tiny.setting(0.5))

    (one, trimmed), equally = tiny.swept(made, (0.0, 0.4), TURNS), base("ifca", *EQUALLY)
    np.testing.assert_array_equal(one.labels, equally.labels)
    tiny.same(one.clusters, equally.clusters, CLOSE)
    assert gap(trimmed.clusters, equally.clusters) > 1e-3


def test_a_median_of_the_mean_of_one_bucket_is_the_mean():
    one = run("ifca", {"name": "robust", "rule": "median_of_means", "buckets": 1}, **dict(EQUALLY))
    equally = base("ifca", *EQUALLY)
    np.testing.assert_array_equal(one.labels, equally.labels)
    tiny.same(one.clusters, equally.clusters, CLOSE)


def test_robust_tkm_that_trims_nobody_is_oneshot_kmeans():
    plain_kmeans = {"distance": "l2", "seeding": "plus_plus", "restarts": 20, "clusters": 3}
    one, two = run("robust_tkm", clusters=3, beta=0.0), run("oneshot_kmeans", **plain_kmeans)
    np.testing.assert_array_equal(one.labels, two.labels)
    tiny.same(one.clusters, two.clusters, CLOSE)
    assert len(set(one.labels[-1])) == 3


def test_flhc_of_one_cluster_is_fedavg():
    """Also in the rounds after the clustering."""
    one = run("flhc", clusters=1, at=1)
    tiny.same(only_cluster(one), base("fedavg").shared, CLOSE)


def test_cfl_that_never_splits_is_fedavg():
    never = run("cfl", eps1=0.0)
    assert (never.labels == 0).all()
    tiny.same(only_cluster(never), base("fedavg").shared, CLOSE)


@functools.cache
def with_cam():
    """IFCA with CAM: two rounds of warm-up and one of its own."""
    return run("ifca", {"name": "cam", "warmup": 2}, clusters=3)


@pytest.mark.parametrize(
    ("rule", "options"),
    [((), {}), (({"name": "robust"},), {}), ((), {"averaging": "equally"})],
    ids=["mean", "median", "equally"],
)
def test_cam_warms_up_with_fedavg(rule, options):
    """And leaves the cluster models alone; a rule that averages the global model alone does so in the warm-up too.

    The global model counts clients by size, as it does after the warm-up, also where clusters count them equally.
    """
    if rule or options:
        extras = ({**one, "of": "shared"} for one in rule)
        warm = run("ifca", {"name": "cam", "warmup": TURNS}, *extras, clusters=3, **options)
    else:
        warm = jax.tree.map(lambda leaf: leaf[:3], with_cam())
    turns = len(warm.labels) - 1
    start = jax.tree.map(lambda leaf: leaf[0], warm.shared)

    def begun(setting):
        algorithm = tiny.built("fedavg", setting)

        def init(key, federation):
            state = algorithm.init(key, federation)
            return state.replace(shared=start, clusters=jax.tree.map(lambda leaf: leaf[None], start))

        return algorithm._replace(init=init)

    tiny.same(warm.shared, tiny.run(begun(tiny.setting(extras=rule)), turns).shared, CLOSE)
    tiny.same(*(jax.tree.map(lambda leaf, turn=turn: leaf[turn], warm.clusters) for turn in (0, -1)))


def test_cam_on_private_layers_is_cam_on_own_models_if_all_layers_are_private():
    """Both add the global model to what a client keeps, so that any number of private layers lies between them.

    A client that has not been sampled keeps initial layers in the first, and predicts by the global model in the other.
    """
    here = tiny.setting(0.5, extras=[{"name": "cam", "warmup": 2}])
    layers = fedavg().with_train(private=("body", "head"))
    both = [tiny.built(method, here) for method in (layers, "local")]
    kept, own = (tiny.run(algorithm, 4) for algorithm in both)
    tiny.same(kept.shared, own.shared)
    tiny.same(kept.clients["private"]["params"], own.clusters["params"])
    for turn in (1, 4):  # in the warm-up, in which the global model answers alone, and after it
        answers = (
            jax.jit(algorithm.predict)(jax.tree.map(lambda leaf, turn=turn: leaf[turn], states), tiny.federation())
            for algorithm, states in zip(both, (kept, own), strict=True)
        )
        (_, one), (_, two) = answers
        sizes = np.asarray(tiny.federation().test.size)
        seen = np.repeat(np.asarray(kept.seen[turn]), sizes)
        np.testing.assert_allclose(one[seen], two[seen], atol=1e-5)
    assert costs(cam(layers), 1, tiny.task()) == costs(cam(local()), 1, tiny.task()) | {"storage": 2.0}
    some = tiny.run(tiny.built(fedavg().with_train(private=("head",)), here), 4)
    assert gap(some.shared, own.shared) > 1e-3


@pytest.mark.parametrize("extras", [(), ({"name": "robust"},)])
def test_models_stay_as_they_were_in_the_others_turn(extras):
    """Simultaneous and alternating CAM differ in the models whose turn it is not, and in nothing else."""
    at = lambda tree, turn: jax.tree.map(lambda leaf: leaf[turn], tree)
    warmup = 0 if extras else 2
    extra = {"name": "cam", "warmup": warmup}
    both = run("ifca", extra, *extras, clusters=3, turns=1) if extras else with_cam()
    turns = run("ifca", extra | {"update": "alternating"}, *extras, clusters=3, turns=warmup + 3)
    turns, both = (jax.tree.map(lambda leaf: leaf[warmup:], states) for states in (turns, both))
    tiny.same(at(turns.clusters, 1), at(both.clusters, 1), CLOSE)
    for models, turn in ((turns.shared, 0), (turns.clusters, 1), (turns.shared, 2)):
        tiny.same(at(models, turn), at(models, turn + 1), CLOSE if extras else 0)
    for models, turn in ((turns.clusters, 0), (turns.shared, 1), (turns.clusters, 2)):
        assert gap(at(models, turn), at(models, turn + 1)) > 1e-3


@pytest.mark.parametrize(
    ("change", "train", "reason"),
    [
        ({}, {"momentum": 0.9, "keep_optimizer_state": True}, "go together with train.keep_optimizer_state"),
        ({"aggregate": Aggregate(server=ServerOptimizer(kind="adam"))}, {}, "go together with a server optimizer"),
        ({"train": Train(in_turn=True, private=("body",))}, {}, "go together with private parameters"),
        ({"answer": Answer()}, {}, "the global model is not trained"),
    ],
)
def test_turns_are_refused_where_something_would_change_in_the_others_turn(change, train, reason):
    method = replace(cam(ifca(clusters=2), warmup=0, update="alternating"), **change)
    with pytest.raises(InputError, match=reason):
        compile(method, tiny.setting(**train).context)


@pytest.mark.parametrize("extras", [(), ({"name": "cam", "warmup": 0},)], ids=["alone", "cam"])
def test_fesem_by_share_takes_the_steps_of_the_thesis(extras):
    """θ ← (1 − λ)θ + λΘ − η (n_i/n) ∇ℓ, where the weight of the term is λ/η (Ma 2023, eq. 7.13)."""
    rate, pull, steps, data = 0.5, 0.2, 3, tiny.federation()
    here = tiny.setting(lr=rate, epochs=None, steps=steps, extras=extras, batch_size="full")
    found = tiny.run(tiny.built("fesem", here, clusters=1, lam=pull / rate, by_share=True), 2)
    after = lambda states, turn: jax.tree.map(lambda leaf: leaf[turn], states)
    centre, first = after(only_cluster(found), 1), after(only_cluster(found), 0)

    @jax.jit
    def trained(x, y, start, beside, pull, share):
        def loss(params):
            logits = here.task.apply({"params": params}, x)[0]
            logits = logits + here.task.apply(beside, x)[0] if extras else logits
            return here.task.loss(logits, y).mean()

        params = start["params"]
        for _ in range(steps):
            move = lambda old, to, slope: (1 - pull) * old + pull * to - rate * share * slope
            params = jax.tree.map(move, params, start["params"], jax.grad(loss)(params))
        return params

    copies, gaps, total = [], [], data.train.size.sum()
    for i, size in enumerate(data.train.size):
        rows = data.train.owned(i)
        mine = functools.partial(trained, data.x[rows], data.y[rows])
        want, whole = (mine(centre, after(found.shared, 1), pull, share) for share in (size / total, 1.0))
        kept = after(found.clients["model"]["params"], (2, i))
        tiny.same(kept, want, CLOSE)
        gaps.append(gap(kept, whole))
        copies.append(mine(after(found.shared, 0), first, 0.0, 1.0))
    if extras:  # ω takes whole steps
        mean = jax.tree.map(lambda *leaves: np.tensordot(data.train.size / total, np.stack(leaves), 1), *copies)
        tiny.same(after(found.shared, 1)["params"], mean, CLOSE)
    assert max(gaps) > 0.05


def test_by_share_leaves_the_steps_of_a_chained_global_model_whole():
    chained = ditto().with_train(chained=True)
    whole, scaled = (
        tiny.run(tiny.built(method, tiny.setting()), 1) for method in (chained, chained.with_train(by_share=True))
    )
    tiny.same(whole.shared, scaled.shared)
    assert gap(whole.clusters, scaled.clusters) > 0.01


def test_mean_gradients_correct_only_what_the_client_minimises():
    """The gradients of the sample are those of the model alone, on all of a client's loss."""
    summed = ifca(clusters=2).with_train(correction=True).with_answer(model="sum")
    for method, what in ((feddane().with_train(by_share=True), "by_share"), (summed, "cam")):
        with pytest.raises(InputError, match=f"leave out {what} or correction"):
            tiny.built(method, tiny.setting())


def test_shuffled_clients_have_the_unshuffled_average_in_fesem_ma():
    """Everybody's hidden neurons permuted at random: matched averaging undoes it, positions' averaging does not."""
    data = jax.device_put(tiny.federation())
    setting = tiny.setting(2 / 8)  # the six who are absent count by the models they left
    layers, rng = chain(setting.task, setting.context.population.shape), np.random.default_rng(0)
    shuffle = jax.jit(jax.vmap(lambda model, order: permuted(model, [order], layers)))
    matched, positions = (tiny.built(name, setting, clusters=1) for name in ("fesem_ma", "fesem"))
    step, other, after = jax.jit(matched.step), jax.jit(positions.step), {}
    state = jax.jit(matched.init)(jax.random.key(0), data)
    for _ in range(2):
        state = step(state, data)
    noise = lambda leaf: leaf[0] + 0.02 * rng.standard_normal((8, *leaf.shape[1:])).astype(np.float32)
    left = jax.tree.map(noise, state.clusters)
    shuffled = shuffle(left, np.array([rng.permutation(6) for _ in range(8)]))
    everybody = state.replace(seen=jnp.ones(8, bool))
    for name, turn in {"matched": step, "positions": other}.items():
        after[name] = [turn(everybody.replace(clients={"model": models}), data).clusters for models in (left, shuffled)]
    tiny.same(*after["matched"], CLOSE)
    assert gap(*after["positions"]) > 0.05


@functools.cache
def answers(method, extras, **options):
    """What a method answers, jitted."""
    setting = tiny.setting(0.5, extras=[dict(extra) for extra in extras])
    return jax.jit(tiny.built(method, setting, **options).predict)


def with_clients_never_seen():
    """StoCFL's states, as if two clients had never been sampled."""
    states, never = knowledge()["several, free"], np.arange(8) < 2
    return states.replace(labels=np.where(never, -1, states.labels), seen=states.seen & ~never)


CAM = (("name", "cam"), ("warmup", 2))


@pytest.mark.parametrize(
    ("method", "states", "turn", "extras", "options", "steps"),
    [
        ("ifca", lambda: base("ifca", *EQUALLY), 1, (), {"clusters": 3}, 0),
        ("ifca", lambda: base("ifca", *EQUALLY), 1, (), {"clusters": 3}, 3),
        ("ifca", with_cam, 1, (CAM,), {"clusters": 3}, 3),
        ("stocfl", with_clients_never_seen, 2, (CAM,), {"lam": 0.0}, 3),
    ],
    ids=["no-steps", "ifca", "ifca-cam-warming-up", "stocfl-cam-with-clients-never-seen"],
)
def test_fine_tuning_that_goes_nowhere_is_none(method, states, turn, extras, options, steps):
    """No steps, or three that are vanishingly small; also where a client has no cluster's model yet."""
    state = jax.tree.map(lambda leaf: leaf[turn], states()).replace(key=jax.random.key(0))
    addons = [*(dict(extra) for extra in extras), {"name": "finetune", "steps": steps}]
    tuned = jax.jit(tiny.built(method, tiny.setting(0.5, extras=addons, lr=1e-9), **options).predict)
    both = (predict(state, tiny.federation()) for predict in (tuned, answers(method, extras, **options)))
    one, two = (list(map(np.asarray, found)) for found in both)
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_allclose(one[1], two[1], atol=1e-5)
    assert (one[0] < 0).any() == bool(extras)


@pytest.mark.parametrize(("method", "options"), [("scaffold", {}), ("feddane", {"mu": 0.0})])
def test_fine_tuning_follows_the_clients_own_gradients(method, options):
    """Corrections lead to the model of all clients; with them, fine-tuning hardly changed what a client answers."""
    data, key, tune = jax.device_put(tiny.federation()), jax.random.key(1), (("name", "finetune"), ("steps", 3))
    corrected = tiny.built(method, tiny.setting(0.5, extras=[dict(tune)]), **options)
    state = jax.jit(lambda: corrected.step(corrected.step(corrected.init(key, data), data), data))()
    two = answers("fedavg", (tune,))(state.replace(clients={}, server={}), data)
    for found, expected in zip(jax.jit(corrected.predict)(state, data), two, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_fine_tuning_takes_whole_steps():
    """Not steps of a client's share of all examples, with which a method may train."""
    data, tune = jax.device_put(tiny.federation()), [{"name": "finetune", "steps": 3}]
    method = fesem(clusters=2, lam=0.0)
    whole, shared = (tiny.built(method.with_train(by_share=by), tiny.setting(extras=tune)) for by in (False, True))
    predict = lambda key: [one.predict(whole.init(key, data), data)[1] for one in (whole, shared)]
    one, two = jax.jit(predict)(jax.random.key(0))
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_votes_are_those_of_two_runs_of_their_own():
    """Voting beside itself, which is FedAvg+ of two runs: the main run and the other are what each is alone."""
    data = jax.device_put(tiny.federation())
    assert replace(voting(fedavg()), name="fedavg_plus") == fedavg_plus(runs=2)
    plus, alone = tiny.built("fedavg_plus", tiny.setting(0.5), runs=2), tiny.built("fedavg", tiny.setting(0.5))
    sums = tiny.built("fedavg_plus", tiny.setting(0.5), runs=2, by="logits")

    def whole(algorithm, *others):
        """A program for ω and the logits after two rounds, and the logits of methods that only answer otherwise."""

        def final(key):
            step = lambda state, _: (algorithm.step(state, data), None)
            state = jax.lax.scan(step, algorithm.init(key, data), length=2)[0]
            return state.shared, *(one.predict(state, data)[1] for one in (algorithm, *others))

        return jax.jit(final)

    key = jax.random.key(3)
    shared, voted, summed = whole(plus, sums)(key)
    run_alone = whole(alone)
    main, other = run_alone(key), run_alone(stream(key, Stream.VOTE, 0))
    tiny.same(shared, main[0], CLOSE)
    votes = (jax.nn.softmax(main[1]) + jax.nn.softmax(other[1])) / 2
    np.testing.assert_allclose(np.exp(voted), votes, atol=1e-5)
    assert gap(main[1], other[1]) > 0.1
    np.testing.assert_allclose(summed, (main[1] + other[1]) / 2, atol=1e-5)


def sent(models, row):
    """A broadcast of three clusters to a client of the one at `row`; the shared model is apart from all."""
    return Broadcast(
        jnp.int32(row), trees.take(models, row), models, trees.take(models, 3), jnp.array([0.2, 0.3, 0.5, 0.0]), ()
    )


@pytest.mark.parametrize("name", ["to its own start", "to the shared model", "cam"])
def test_extra_terms_change_the_steps_by_their_gradient(name):
    """FedProx's pull, Ditto's, and CAM's partner, in two full-batch steps against central differences in float64.

    The contrastive and knowledge-sharing terms are checked the same way in `test_oracles_addons`.
    """
    with jax.enable_x64(True):
        setting = tiny.setting(batch_size="full", epochs=2)
        models = jax.vmap(setting.task.init)(jax.random.split(jax.random.key(5), 4))
        rng = np.random.default_rng(1)
        x, y = rng.random((7, 4, 4, 1)), rng.integers(0, 10, 7)
        data = Clients(jnp.asarray(x), jnp.asarray(y), jnp.ones(7, bool))
        pulls = {"to its own start": (Proximal(0.7),), "to the shared model": (Proximal(0.7, "shared"),)}
        answer = Answer(model="sum" if name == "cam" else "cluster")
        method = replace(fedavg(), train=Train(terms=pulls.get(name, ())), answer=answer)
        client = clients.client(method, setting.context)
        upload = jax.jit(client)(sent(models, 1), data, jax.random.key(0))
    vectors, client = plain.vectors(models, 1), (x.reshape(7, -1), y)  # pyright: ignore
    start, common = vectors[1], vectors[3]

    def descended(start, function):
        """Two steps by central differences, at the rate of the tiny run."""
        for _ in range(2):
            steps = 1e-5 * np.eye(start.size)
            start = start - 0.5 * np.array([function(start + step) - function(start - step) for step in steps]) / 2e-5
        return start

    beside = {start_: plain.logits(vectors[start_], client[0]) for start_ in (1, 3)}
    pulled = lambda to: lambda at: plain.loss(at, client) + 0.35 * ((at - to) ** 2).sum()
    functions = {
        "to its own start": pulled(start),
        "to the shared model": pulled(common),
        "cam": lambda at: plain.loss(at, client, beside[3]),
    }
    np.testing.assert_allclose(plain.vectors(upload.cluster), descended(start, functions[name]), rtol=0, atol=2e-8)
    if name == "cam":
        expected = descended(common, lambda at: plain.loss(at, client, beside[1]))
        np.testing.assert_allclose(plain.vectors(upload.shared), expected, rtol=0, atol=2e-8)
    bare = descended(start, lambda at: plain.loss(at, client))
    assert np.abs(bare - descended(start, functions[name])).max() > 1e-3


@pytest.mark.parametrize(("warmup", "communication"), [(0, 11), (10, 10), (20, 9), (30, 8), (40, 7), (50, 6)])
def test_costs_of_ifca_with_cam_are_the_theses(warmup, communication):
    """Ma 2023, Table 7.6: ten clusters, 100 rounds, of which those of warm-up cost as FedAvg's."""
    setting = tiny.setting(data=tiny.federation((6,) * 10), extras=[{"name": "cam", "warmup": warmup}])
    costs = average(tiny.built("ifca", setting, clusters=10), 10, 100)
    assert costs["storage"] == 11
    assert costs["communication"] == pytest.approx(communication, abs=1e-9)


@pytest.mark.parametrize(("other", "more"), [({}, 8), ({"method": "fedavg"}, 1)])
def test_every_run_that_votes_has_its_own_warmup(other, more):
    """Ma 2023, Table 7.6: with 30 of 100 rounds of warm-up IFCA-CAM costs 8, and a round of warm-up 1 for each run."""
    extras = [{"name": "cam", "warmup": 30}, {"name": "voting", **other}]
    algorithm = tiny.built("ifca", tiny.setting(data=tiny.federation((6,) * 10), extras=extras), clusters=10)
    assert average(algorithm, 10, 100)["communication"] == pytest.approx(8 + more, abs=1e-9)
    assert average(algorithm, 10, 30)["communication"] == pytest.approx(2, abs=1e-9)


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_private_layers_are_not_counted_as_sent(name):
    """Collins et al. 2021: the body alone is sent, so that FedAvg's unit shrinks by the head's share of parameters."""
    setting = tiny.setting(data=tiny.federation((6,) * 10))
    whole = tiny.built(name, setting)
    algorithm = tiny.built(whole.method.with_train(private=("head",)), setting)
    params = setting.context.task.init(jax.random.key(0))["params"]
    share = 1 - trees.parameters(params["head"]) / trees.parameters(params)
    assert 0 < share < 1
    assert algorithm.costs(3)["communication"] == pytest.approx(share * whole.costs(3)["communication"], rel=1e-12)
    assert algorithm.costs(3)["computation"] == whole.costs(3)["computation"]


def test_operations_do_not_count_padding():
    """Of the second batch of 50, 7 rows are real: an epoch of 57 examples is an epoch, however it is cut."""
    context = tiny.setting().context
    counted = lambda sizes, **train: operations(context, sgd(**train), np.array(sizes))
    one = counted([1])
    assert counted([57]) == counted([57], batch_size=50) == counted([57], batch_size=4) == 57 * one
    assert counted([57, 3], batch_size=50) == 30 * one
    assert counted([57], steps=5, batch_size=50) == (57 + 57 + 50) * one  # two whole passes, and half of a third
    assert counted([57], share=0.5, epochs=2, batch_size=20) == 2 * 28 * one


def test_costs_of_the_baselines():
    setting = tiny.setting(data=tiny.federation((6,) * 10))
    assert average(tiny.built("fedavg", setting), 1, 100) == {"storage": 1, "communication": 1, "computation": 1}
    assert average(tiny.built("ifca", setting, clusters=10), 10, 100)["communication"] == 10
    assert tiny.built("local", setting).costs(1)["communication"] == 0
    assert tiny.built("majority", setting).costs(1)["computation"] == 0
    assert not any(tiny.built("stocfl", setting, clustering_only=True).costs(1).values())


@pytest.mark.parametrize(
    ("name", "addons", "sent"),
    [
        ("fesem", ["cks", "con_para"], 5),  # four cluster models and their mean
        ("stocfl", ["con_para"], 5),  # four cluster models and ω, which is trained
        ("fesem", ["cks", "distill"], 2),  # both need the mean of all models
        ("stocfl", ["cks", "distill"], 3),  # one needs the mean of the cluster models, the other one ω
    ],
)
def test_a_model_that_several_loss_terms_need_is_sent_once(name, addons, sent):
    for ordered in (addons, addons[::-1]):
        setting = tiny.setting(data=tiny.federation((6,) * 10), extras=[{"name": addon} for addon in ordered])
        costs = tiny.built(name, setting).costs(4)
        assert (costs["storage"], costs["communication"]) == (sent, sent)
