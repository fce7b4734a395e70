"""What becomes of answers, add-ons and faults that meet in one method: each holds, or the combination is refused."""

import functools
import warnings
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import jcfl
from jcfl import registry, trees
from jcfl.core.attacks import Gaussian
from jcfl.core.faults import Faults
from jcfl.core.method import Aggregate, Mean, Train
from jcfl.core.neutral import Every, Once
from jcfl.core.rounds import initial
from jcfl.core.stopping import Converged
from jcfl.core.terms import Distillation, LossTerm, Proximal
from jcfl.errors import InputError, Notice, TrainingError
from jcfl.grouping import kmeans
from jcfl.grouping.batch import describing_client, trained_by_all
from jcfl.grouping.compare import Cosine, DecomposedCosine, KullbackLeibler, PrincipalAngles
from jcfl.grouping.describe import Accumulated, LabelCounts, Subspace, Update
from jcfl.grouping.groups import KMeans
from jcfl.methods import cfl, ditto, fedavg, fesem, flhc, ifca, local, oneshot_kmeans, stocfl, wecfl
from jcfl.methods.addons import extended
from jcfl.runs import config
from jcfl.runs.objects import checked_method
from jcfl.runs.plan import config_and_objects, planned
from tests import plain, tiny
from tests.groups import at, paths, run, settings, split_as, two_groups, vectors

TURNS = 3


# Private parameters and loss terms


@dataclass(frozen=True)
class ToItsCluster(LossTerm):
    """A pull to the client's cluster among all clusters' models, which is the model that the client starts from."""

    weight: Any

    def build(self, task):
        def term(model, batch, sent):
            mine = jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf[sent.label]), sent.clusters)
            gaps = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), model["params"], mine["params"])
            return self.weight / 2 * sum(jax.tree.leaves(gaps))

        return term


@functools.cache
def with_private_heads():
    """The states of runs of one cluster whose clients keep their heads, by the loss term that counts, one program."""
    terms = {
        "pull to ω": lambda weight: Proximal(weight, "shared"),
        "pull to the mean": lambda weight: Proximal(weight, "mean"),
        "pull to its cluster": ToItsCluster,
        "pull": lambda weight: Proximal(weight, "start"),
        "distillation from ω": lambda weight: Distillation(weight, 2.0, "shared"),
        "distillation": lambda weight: Distillation(weight, 2.0, "start"),
        "none": lambda weight: Proximal(weight, "start"),
    }

    def made(weights):
        given = tuple(make(weight) for make, weight in zip(terms.values(), weights, strict=True))
        return tiny.built(ifca(clusters=1).with_train(private=("head",), terms=given), tiny.setting(0.5))

    weights = 0.5 * np.eye(len(terms), dtype=np.float32)
    weights[-1] = 0.0
    return dict(zip(terms, tiny.swept(made, weights, TURNS), strict=True))


@pytest.mark.parametrize(
    ("term", "same"),
    [
        ("pull to ω", "pull"),
        ("pull to the mean", "pull"),
        ("pull to its cluster", "pull"),
        ("distillation from ω", "distillation"),
    ],
)
def test_loss_terms_see_every_model_with_the_client_s_own_private_part(term, same):
    """With one cluster, ω, the mean of the clusters' models and the cluster's model are the same model."""
    one, two, without = (with_private_heads()[name] for name in (term, same, "none"))
    tiny.same(one.clients, two.clients, 1e-6)
    tiny.same(one.clusters, two.clusters, 1e-6)
    assert np.abs(plain.vectors(one.clusters, 2) - plain.vectors(without.clusters, 2)).max() > 1e-3


@pytest.mark.parametrize("addon", [{"name": "con_para"}, {"name": "cks", "on": "head"}], ids=lambda one: one["name"])
def test_a_loss_term_on_private_layers_alone_is_refused(addon):
    """These layers are the client's own in every model, so there is nothing to be near to or far from."""
    with pytest.raises(InputError, match=r"head.*private"):
        tiny.built(wecfl(clusters=2).with_train(private=("head",)), tiny.setting(extras=(addon,)))


@pytest.mark.parametrize("when", [Every(), Once()], ids=lambda when: when.name)
def test_models_compared_by_private_layers_alone_are_refused(when):
    """The server never gets these layers."""
    method = replace(wecfl(clusters=2, represent="head").with_train(private=("head",)), when=when)
    with pytest.raises(InputError, match=r"head.*private"):
        tiny.built(method, tiny.setting())


def test_a_clustering_once_gets_no_layers_that_stay_with_a_client():
    """Clients train them for their descriptions, from their own, and the server sees the others alone."""
    here, data, key = tiny.setting(batch_size="full"), jax.device_put(tiny.federation()), jax.random.key(2)
    (sent, own), method = map(here.task.init, jax.random.split(key)), flhc(at=0, clusters=2)
    head = {"params": {"head": own["params"]["head"]}}
    state = initial(key, trees.stack(sent, 2), sent, 8)
    found, plain = (
        trained_by_all(describing_client(method, here.context, None), key, state, data, 8)["params"]
        for method, state in (
            (method.with_train(private=("head",)), state.replace(clients={"private": trees.stack(head, 8)})),
            (method, state.replace(shared={"params": sent["params"] | head["params"]})),
        )
    )
    tiny.same(found["head"], trees.stack(sent["params"]["head"], 8))
    tiny.same(found["body"], plain["body"], 1e-6)
    assert np.abs(plain["head"]["kernel"] - own["params"]["head"]["kernel"]).max() > 1e-3


# New clusters and the slots that they take


def moves_least(old: np.ndarray, new: np.ndarray, k: int) -> bool:
    """Whether no other numbers of the new clusters would leave more clients with their old number."""
    both = np.zeros((k, k))
    np.add.at(both, (new, old), 1)
    return both.trace() == both[linear_sum_assignment(-both)].sum()


def test_clusters_found_anew_take_the_slots_that_most_of_their_clients_had():
    """The server's states, the count of moves and a stop condition all go by slots."""
    states = tiny.run(tiny.built(wecfl(clusters=3, refit=True), tiny.setting()), 6)
    assert all(moves_least(old, new, 3) for old, new in zip(states.labels[1:], states.labels[2:], strict=False))


def test_directions_of_all_models_are_found_anew_in_each_round():
    """The cluster models are no centres then: their cosines go by the directions of the round before."""
    method = replace(wecfl(clusters=2), compare=DecomposedCosine(rank=2))
    states = tiny.run(tiny.built(method, tiny.setting()), 4)
    assert len(set(states.labels[-1])) == 2
    assert all(moves_least(old, new, 2) for old, new in zip(states.labels[1:], states.labels[2:], strict=False))


class Halved(Cosine):
    """A cosine of the first half of a vector."""

    def metric(self, context, describe):
        """Compare the first halves."""
        half = lambda points: points[:, : points.shape[1] // 2]
        return lambda points, centres: kmeans.cosine(half(points), half(centres))


class Centred(Cosine):
    """A cosine of vectors from which their mean is subtracted."""

    def prepared(self, points, present):
        """Subtract the mean."""
        return points - points.mean(0)


@pytest.mark.parametrize(("own", "named"), [(Halved(), "metric"), (Centred(), "prepared")])
def test_merging_on_arrival_refuses_functions_of_a_cosine_that_it_would_not_call(own, named):
    with pytest.raises(InputError, match=f"so {named} of compare 'cosine' would have no effect"):
        tiny.built(replace(stocfl(), compare=own), tiny.setting())


@pytest.mark.parametrize(
    ("method", "options"), [("cfl", {"train": {"lr": 2.0}, "rounds": 24}), ("stocfl", {"tau": 0.8, "rounds": 24})]
)
def test_slots_without_clients_do_not_change_when_training_stops(method, options):
    """The norm of all models is that of the clusters', however much room there is for more."""
    stop = {"name": "converged", "rounds": 2, "change": 0.05}
    ends = [
        int(at(paths([two_groups()], method, capacity=capacity, stop=stop, **options)[0], 1).ended)
        for capacity in (3, 8)
    ]
    assert ends[0] == ends[1] < 24


def test_a_change_of_one_cluster_s_model_is_one_among_those_with_clients():
    """Three of four slots are empty, and their models are large."""
    init = tiny.built(ifca(clusters=4), tiny.setting()).init
    state = jax.eval_shape(init, jax.random.key(0), tiny.federation())  # all that is looked at is replaced below
    large = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 100.0).at[0].set(1.0), state.clusters)
    before = state.replace(
        clusters=large, labels=jnp.zeros(8, jnp.int32), shared=jax.tree.map(jnp.zeros_like, state.shared)
    )
    after = before.replace(clusters=jax.tree.map(lambda leaf: leaf.at[0].set(1.1), large))
    assert not Converged(change=0.05).is_unchanged(before, after)
    assert Converged(change=0.11).is_unchanged(before, after)


def test_clusters_of_different_starts_are_asked_for_where_the_least_loss_decides():
    """From equal starts, all clients would choose the first cluster for ever."""
    with pytest.raises(InputError, match=r"ifca.*distinct: true"):
        tiny.built(ifca(clusters=2).with_train(distinct=False), tiny.setting())
    tiny.built(ifca(clusters=1).with_train(distinct=False), tiny.setting())


@pytest.mark.parametrize("train", [{"name": "proximal", "mu": 0.1}, {"name": "scaffold"}], ids=lambda one: one["name"])
def test_clusters_of_different_starts_train_in_any_way(train):
    """IFCA finds the two groups by them."""
    federation = two_groups()
    given = settings("ifca", rounds=8)
    given["method"] |= {"clusters": 2, "train": {**train, "distinct": True}}
    plan = planned(*config_and_objects(federation, given))
    (algorithm,) = plan.algorithms.values()
    (states,) = tiny.ends(algorithm, 8, 1, [plan.federation])
    assert split_as(at(states, 1).labels, federation.groups)


# Attacks


def with_and_without_attack(method) -> tuple[Any, Any]:
    """The states after a round without attackers, and with two that send noise, by one program."""
    data = replace(tiny.federation(), hostile=np.arange(8) < 2)
    attacked = tiny.setting(data=data).with_context(faults=Faults(attack=Gaussian(share=0.25, sigma=100.0)))
    algorithm = tiny.built(method, attacked)

    def made(hostile):
        given = lambda data: data.replace(hostile=data.hostile & hostile)
        return algorithm._replace(
            init=lambda key, data: algorithm.init(key, given(data)),
            step=lambda state, data: algorithm.step(state, given(data)),
        )

    clean, forged = tiny.swept(made, (False, True), 1, data=data)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves((clean.clusters, clean.shared))) < 10
    return clean, forged


def test_models_that_stay_with_their_clients_are_not_forged():
    """Ditto's personal models are never sent, so an attack on uploads leaves them as they were trained."""
    clean, forged = with_and_without_attack(ditto(lam=0.0))
    tiny.same(clean.clusters, forged.clusters, 1e-6)
    assert np.abs(plain.vectors(forged.shared, 1)[-1]).max() > 10
    tiny.same(*(state.clusters for state in with_and_without_attack(local())), 1e-6)


def test_attackers_send_forged_models_to_be_grouped_by_once():
    """The clusters begin at the means of these models."""
    method = replace(oneshot_kmeans(clusters=2), train=Train(active=False))
    clean, forged = with_and_without_attack(method)
    largest = [max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(one.clusters)) for one in (clean, forged)]
    assert largest[0] < 10 < largest[1]


def test_attackers_send_forged_models_at_the_end_of_a_warm_up():
    """Clients train alone before FeSEM with CAM; the server gets their models when the warm-up ends."""
    clean, forged = with_and_without_attack(extended(fesem(clusters=2), [{"name": "cam", "warmup": 1}]))
    largest = [max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(one.clusters)) for one in (clean, forged)]
    assert largest[0] < 10 < largest[1]


# One grouping for all


def test_clients_that_were_never_sampled_have_accumulated_nothing():
    """They are not grouped by a vector of zeros; each joins a cluster when it first takes part."""
    method = replace(
        wecfl(clusters=2), describe=Accumulated(), group=KMeans(clusters=2), when=Once(at=2), train=Train()
    )
    states = tiny.run(tiny.built(method, tiny.setting(0.25)), 4)
    seen, labels = states.seen[3], states.labels[3]  # after the round in which they were grouped
    assert (~seen).any()
    assert (labels[~seen] == -1).all()
    assert (labels[seen] >= 0).all()


@pytest.mark.parametrize("averaging", ["by_size", "equally"])
def test_clusters_of_one_grouping_start_from_averages_as_all_rounds_take_them(averaging):
    """The weights of clients in the first average of their models are those of every later one."""
    method, here = oneshot_kmeans(clusters=1, averaging=averaging), tiny.setting(epochs=1, batch_size=12)
    start = tiny.built(replace(method, train=Train(active=False)), here).init
    state = jax.jit(start)(jax.random.key(0), jax.device_put(tiny.federation()))
    plainly = tiny.run(tiny.built(replace(fedavg(), aggregate=Aggregate(weights=averaging)), here), 1)
    expected = plain.vectors(plainly.clusters, 2)[1, 0]
    np.testing.assert_allclose(plain.vectors(state.clusters, 1)[0], expected, rtol=0, atol=1e-5)


def sound(state) -> bool:
    """Whether all models are finite, and were in every round."""
    return bool(np.isfinite(vectors(state.clusters)).all() and (state.failed < 0).all())


ONESHOT = {"clusters": 2, "distance": "l2", "restarts": 5, "rounds": 2}


def test_models_that_are_not_finite_group_nobody():
    """One client's examples are so large that its model overflows; the others are grouped without it."""
    federation, train = two_groups(scale={0: 1e30}), {"lr": 1.0, "epochs": 2}
    (path,) = paths([federation], "oneshot_kmeans", train=train, on_divergence="drop_client", **ONESHOT)
    assert sound(at(path, 1))
    assert split_as(at(path, 1).labels[1:], federation.groups[1:])


def test_models_whose_squares_overflow_group_nobody():
    """One step leaves a finite model, to which no distance can be computed."""
    federation = two_groups(scale={0: 1e25})
    (path,) = paths([federation], "oneshot_kmeans", on_divergence="drop_client", **ONESHOT | {"rounds": 1})
    assert split_as(at(path, 1).labels[1:], federation.groups[1:])
    with pytest.raises(TrainingError, match="the description of a client is not finite, or too large"):
        run(federation, "oneshot_kmeans", **ONESHOT)


def test_clients_that_are_left_out_do_not_group():
    """A client whose examples are large would have a cluster of its own, in which it is never suspected.

    Nor does one group whose model overflows.
    """
    federations = [two_groups(scale={3: scale}) for scale in (1e3, 1e30)]
    train = {"lr": 0.1, "epochs": 2}
    for path in paths(federations, "oneshot_kmeans", {"name": "exclude"}, train=train, **ONESHOT):
        last, others = at(path, 1), np.arange(8) != 3
        assert sound(last)
        assert split_as(last.labels[others], federations[0].groups[others])


def test_cfl_splits_though_one_upload_is_not_finite():
    """A client that is left out counts in no cosine."""
    federation = two_groups((12,) * 9, scale={8: 1e30})
    (path,) = paths([federation], "cfl", {"name": "exclude"}, rounds=12, train={"lr": 2.0})
    assert sound(at(path, 1))
    assert split_as(at(path, 1).labels[:8], federation.groups[:8])


def test_medoids_of_subspaces():
    """K-means with medoids needs no mean, so it groups what has none."""
    method = replace(
        wecfl(clusters=2),
        describe=Subspace(p=2),
        compare=PrincipalAngles(),
        group=KMeans(clusters=2, centre="medoid"),
        when=Once(),
        train=Train(),
    )
    states = tiny.run(tiny.built(method, tiny.setting()), 1)
    assert set(states.labels[-1]) == {0, 1}


def test_shares_of_classes_with_noise_are_shares_still():
    """Noise makes some shares negative; the divergence takes them as 0, and no distance is NaN."""
    noisy = np.array([[0.5, 0.6, -0.1], [-0.2, -0.1, 0.0], [0.2, 0.3, 0.5]])
    away = KullbackLeibler().distance(None, LabelCounts())(jnp.asarray(noisy), jnp.asarray(noisy))
    assert np.isfinite(away).all()
    np.testing.assert_allclose(np.diagonal(away), 0, atol=1e-6)
    clean = jnp.asarray([[0.5 / 1.1, 0.6 / 1.1, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.2, 0.3, 0.5]])
    np.testing.assert_allclose(away, KullbackLeibler().distance(None, LabelCounts())(clean, clean), atol=1e-6)


# Options without an effect


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"privacy": {"noise": 1.0}}, "privacy.noise.*privacy.clip"),
        ({"privacy": {"clip": 1.0, "description_noise": 1.0}}, "description_noise.*description_clip"),
        ({"method": {"name": "fesem", "shots": [5, 2]}}, r"shots.*\[5, 2\]"),
        ({"method": {"name": "fesem", "shots": [-3, 2]}}, "shots"),
        ({"method": {"name": "clustered", "when": {"name": "window", "first": 4, "last": 4}}}, "window.*first.*last"),
        (
            {"method": {"name": "ifca", "clusters": 3, "group": {"name": "together"}}},
            r"method\.clusters.*method\.group",
        ),
        (
            {"method": {"name": "fesem", "describe": {"name": "model", "epochs": 2}}},
            r"describe\.epochs.*when=once",
        ),
        ({"method": {"name": "fedprox", "mu": {"0": 0.1, "5": None}}}, r"mu.*round 5"),
        (
            {"method": {"name": "local", "train": {"name": "tied", "layers": ["body"]}}},
            "no layers can be averaged over",
        ),
        ({"method": {"name": "cfl", "describe": {"name": "update", "epochs": 2}}}, r"describe\.epochs has no effect"),
        (
            {"method": {"name": "oneshot_kmeans", "train": "distinct"}},
            r"train\.distinct has no effect",
        ),
        (
            {"method": {"name": "cfl", "train": "distinct"}},
            r"leave train\.distinct out",
        ),
        (
            {"method": {"name": "fedavg", "addons": [{"name": "voting", "method": "ifca"}, {"name": "voting"}]}},
            "votes with ifca already",
        ),
        ({"method": {"name": "fedavg_plus", "by": "logits", "addons": ["voting"]}}, "votes by logits already"),
        ({"method": {"name": "ifca", "answer": "majority", "addons": ["cam"]}}, "ifca predicts without a model"),
    ],
    ids=str,
)
def test_an_option_that_would_do_nothing_is_refused(given, says):
    with pytest.raises(InputError, match=says):
        jcfl.run({"data": "digits", "scenario": "iid", "rounds": 1, "method": "fedavg", **given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"reliability": {"window": 0.3}}, "reliability.window has no effect"),
        ({"reliability": {"late": "lost"}}, "reliability.late has no effect"),
        ({"reliability": {"dropout": 1.0}}, "reliability.dropout is 1, so that every upload is lost"),
        ({"reliability": {"stragglers": 1.0, "late": "lost"}}, "stragglers is 1 and reliability.late is lost, so that"),
        (
            {"method": {"name": "stocfl", "clustering_only": True, "addons": ["cks", "voting", "exclude"]}},
            r"stocfl\+cks\+voting\+exclude: nothing is trained, so the add-ons cks, exclude have no effect",
        ),
        (
            {"method": {"name": "ifca", "train": "nothing", "addons": [{"name": "robust", "of": "all"}]}},
            r"ifca\+robust: nothing is trained, so the add-on robust has no effect",
        ),
        ({"method": "local", "attack": "gaussian"}, "local: .* the attack gaussian has no effect"),
        ({"scenario": {"name": "iid", "departures": {3: 0.5}}}, "scenario.departures has no effect in round 3"),
        ({"train": {"name": "sgd", "lr": {0: 0.1, 1: 0.01}}}, "train.lr has no effect in round 1, because .* 1 round"),
        ({"scenario": {"name": "iid", "arrivals": {3: 1.0}}, "rounds": 5}, "no client takes part in rounds 0 to 2:"),
        (
            {"scenario": {"name": "iid", "departures": {2: 0.5, 3: 0.5}}, "rounds": 4},
            "no client takes part in round 3: .* metrics of the last rounds are missing",
        ),
    ],
    ids=str,
)
def test_what_does_nothing_in_a_baseline_is_told(given, says):
    """A sweep over stragglers may begin with none, and local training is a baseline under every attack."""
    with pytest.warns(Notice, match=says):
        planned(config.read({"data": "digits", "scenario": "iid", "rounds": 1, "method": "fedavg", **given}))


@pytest.mark.parametrize("addons", [["cks", "finetune"], ["cam", "robust"], []], ids=str)
def test_add_ons_beside_a_phase_or_steps_in_which_clients_train_are_not_named(addons):
    method = {"name": "ifca", "train": "nothing", "addons": addons}
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        planned(config.read({"data": "digits", "scenario": "iid", "rounds": 1, "method": method}))


def test_a_run_of_no_rounds_has_no_option_without_effect():
    """Only a round that is given, and that the run does not reach, makes an option one of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        planned(config.read({"data": "digits", "scenario": "iid", "rounds": 0, "method": "fedavg"}))


def test_features_of_a_private_backbone_have_nothing_to_contrast():
    """All models have the client's own backbone then, so that their features are equal."""
    with pytest.raises(InputError, match="contrastive term on features"):
        method = extended(wecfl(clusters=2), [{"name": "con_rep"}]).with_train(private=("backbone",))
        tiny.built(method, tiny.setting())


# Methods made in Python


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ifca(clusters=-2), "ifca: clusters: input should be greater than or equal to 1, got -2"),
        (lambda: stocfl(tau="auto"), "stocfl: tau: input should be a valid number, .*got 'auto'"),
        (lambda: replace(cfl(), when="once"), r"method\.when: expected When\(…\).*got 'once'"),
        (lambda: replace(wecfl(), group=KMeans(clusters=0)), "wecfl: group 'kmeans': clusters: .* got 0"),
        (lambda: replace(fedavg(), train=Train(models="both")), "fedavg: train 'local': models: .*got 'both'"),
        (lambda: lambda context: replace(cfl(), when="once"), r"method\.when: expected When\(…\).*got 'once'"),
        (lambda: stocfl(lamb=1), "stocfl: .*'lamb'.* 'lam'"),
    ],
)
def test_a_method_made_in_python_is_checked(make, says):
    with pytest.raises(InputError, match=says):
        jcfl.run({"data": "digits", "scenario": "iid", "rounds": 1}, method=make())


def test_a_method_can_be_made_inside_of_jit():
    """A tracer has no value to check yet, also where an option has no default."""

    @registry.register("method", "required")
    def required(*, lam: float):
        return replace(fedavg(), train=Train(terms=(Proximal(lam, "start"),)))

    assert jax.eval_shape(lambda lam: jnp.asarray(required(lam=lam).train.terms[0].weight), 0.5).dtype == jnp.float32
    shapes = jax.eval_shape(lambda tau: jnp.asarray(stocfl(tau=tau).group.tau), 0.5)
    assert shapes.dtype == jnp.float32


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            {"name": "stocfl", "similarity": "noise_corrected", "compare": "cosine"},
            r"similarity=noise_corrected has no effect, because method\.compare .*: method\.similarity=plain$",
        ),
        (  # the answer has an option of this name
            {"name": "ifca", "clusters": 3, "group": "kmeans", "describe": "update", "compare": "cosine"},
            r"clusters=3 .* belongs to; set method\.group\.clusters instead, or give its default: method\.clusters=4$",
        ),
        (  # and here not
            {"name": "feddist", "epsilon": 0.5, "aggregate": "median"},
            r"epsilon=0.5 .* belongs to; leave it out, or give its default: method\.epsilon=0.6$",
        ),
    ],
)
def test_an_option_beside_its_answer_is_told_how_to_leave_it_out(method, said):
    with pytest.raises(InputError, match=rf"^method\.{said}"):
        jcfl.run("quickstart", method=method)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (fedavg().with_train(steps=0), "train 'local': steps: input should be greater than or equal to 1, got 0"),
        (fedavg().with_answer(tune=-1), "answer 'answer': tune: input should be greater than or equal to 0, got -1"),
        (fedavg().with_aggregate(rule="median"), "aggregate.rule: expected an object, .* got 'median'"),
        (fedavg().with_aggregate(rule=None), "aggregate.rule: expected an object, .* got None"),
        (fedavg().with_aggregate(server={"name": "adam"}), "aggregate.server: expected an object, .* got {'name'"),
        (fedavg().with_aggregate(rate=0.0), "aggregate 'aggregate': rate: input should be greater than 0, got 0"),
        (
            fedavg().with_aggregate(rate=2),
            "aggregate 'aggregate': rate: input should be less than or equal to 1, got 2",
        ),
        (fedavg().with_aggregate(rate="half"), "aggregate 'aggregate': rate: .* got 'half'"),
    ],
    ids=["steps", "tune", "rule", "no rule", "server", "no rate", "large rate", "rate in words"],
)
def test_a_method_that_is_built_by_hand_is_checked(method, said):
    with pytest.raises(InputError, match=f"^fedavg: {said}"):
        checked_method(method)


def test_a_user_s_own_pieces_pass():
    """With fields that only JAX knows, or of any type."""

    @dataclass(frozen=True, kw_only=True)
    class Mine(Mean):
        table: Any = None
        rates: jax.Array | None = None

    method = replace(fedavg(), aggregate=Aggregate(rule=Mine(table={1: 2}, rates=jnp.ones(3))))
    assert checked_method(method) is method


def test_a_user_s_annotations_need_not_be_known_here():
    """As those of modules that only type checkers import."""

    @dataclass(frozen=True, kw_only=True)
    class Mine(Mean):
        table: "pandas.DataFrame | None" = None  # noqa: F821  # pyright: ignore

    method = replace(fedavg(), group=replace(fedavg().group), aggregate=Aggregate(rule=Mine()))
    assert checked_method(method) is method

    @dataclass(frozen=True, kw_only=True)
    class Near(KMeans):
        table: "pandas.DataFrame | None" = None  # noqa: F821  # pyright: ignore

    method = replace(wecfl(), group=Near(clusters=2))
    assert checked_method(method) is method


# What does not fit together, and what comes at another time


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ({"name": "fedavg", "shared_update": "sequential", "describe": "truth", "group": "linkage"},
         "hand on one model of all"),
        ({"name": "stocfl", "shared_update": "sequential", "describe": "model", "compare": "l2", "group": "kmeans",
          "when": "every"}, "train one after another"),
        ({"name": "wecfl", "train": "nothing"}, "group 'kmeans' groups by trained models, but clients train none"),
        ({"name": "wecfl", "train": "all_models", "answer": "mixture"}, "another soft group, got 'kmeans'"),
        ({"name": "fedem", "clusters": 2, "aggregate": {"name": "mean", "absent": True}}, "no members of one cluster"),
    ],
)  # fmt: skip
def test_answers_that_would_train_something_else_are_refused(method, says):
    with pytest.raises(InputError, match=says):
        jcfl.run(two_groups(), method=method, model="linear", rounds=1)


def test_groups_that_are_not_known_describe_nobody():
    method = {"name": "clustered", "describe": "truth", "compare": "l2", "group": {"name": "linkage", "clusters": 2}}
    with pytest.raises(InputError, match="no client's true group is known"):
        jcfl.run(two_groups().replace(groups=np.full(8, -1, np.int32)), method=method, model="linear", rounds=1)


def test_quality_is_not_measured_of_models_without_their_private_layers():
    given = {"name": "ifca", "clusters": 2, "train": {"name": "private", "layers": ["head"]}}
    with pytest.raises(InputError, match="ifca keep head private"):
        jcfl.run(two_groups(), method=given, model="linear", rounds=1, evaluate_quality=True)


def test_a_threshold_that_changes_by_round_merges_when_it_changes():
    plan = planned(*config_and_objects(two_groups(), settings("stocfl", tau={0: 0.99, 3: 0.0}, rounds=5)))
    (algorithm,) = plan.algorithms.values()
    states = tiny.run(algorithm, 5, data=plan.federation)
    assert [len(set(labels)) for labels in states.labels[1:]] == [8, 8, 8, 1, 1]


@pytest.mark.parametrize("describe", [Update(), Accumulated()])
def test_cam_warms_up_one_model_where_clients_are_not_grouped_by_their_models(describe):
    """Updates are no models, so no client's own model is kept, with which a warm-up "alone" would end."""
    method = replace(wecfl(clusters=2), describe=describe)
    algorithm = tiny.built(method, tiny.setting(0.5, extras=[{"name": "cam", "warmup": 1}]))
    assert [phase.train for phase in algorithm.method.before] == ["shared"]
    start = jax.eval_shape(algorithm.init, jax.random.key(0), tiny.federation())
    jax.eval_shape(algorithm.step, start, tiny.federation())


def test_clients_in_no_cluster_tune_the_global_model_alone():
    """In CAM's warm-up they predict as FedAvg's do: the model of zeros beside ω takes no steps."""
    tune, data = {"name": "finetune", "steps": 2}, jax.device_put(tiny.federation())

    def logits(method, *extras):
        algorithm = tiny.built(method, tiny.setting(extras=(*extras, tune), batch_size="full"))
        return jax.jit(lambda key: algorithm.predict(algorithm.init(key, data), data)[1])(jax.random.key(0))

    summed, plain = logits(ifca(clusters=1), {"name": "cam", "warmup": 1}), logits(fedavg())
    np.testing.assert_allclose(summed, plain, rtol=0, atol=1e-5)


def test_a_client_without_training_examples_tunes_nothing():
    """Weight decay, and the statistics of rows that are not its own, would change the model with which it predicts."""
    data = jax.device_put(tiny.federation(sizes=(6, 6, 0, 6)))

    def logits(*extras):
        here = tiny.setting(data=data, extras=extras, batch_size="full", weight_decay=0.1)
        algorithm = tiny.built("fedavg", here)
        found = jax.jit(lambda key: algorithm.predict(algorithm.init(key, data), data)[1])(jax.random.key(0))
        return np.asarray(found).reshape(4, 4, -1)  # of the four test examples of each client

    before, after = logits(), logits({"name": "finetune", "steps": 2})
    np.testing.assert_allclose(after[2], before[2], rtol=0, atol=1e-6)
    assert (np.abs(after - before).max((1, 2)) > 1e-3).tolist() == [True, True, False, True]


def test_one_clustering_waits_for_clients():
    """Where nobody is there at first, and where one client is."""
    come = [{**dict.fromkeys(range(8), 1), **there} for there in ({}, {0: 0})]
    federations = [two_groups(arrive=arrive) for arrive in come]
    for path in paths(federations, "oneshot_kmeans", clusters=2, restarts=5, rounds=8):
        assert split_as(at(path, 1).labels, federations[0].groups)


def test_one_clustering_comes_after_a_warm_up():
    federation = two_groups(arrive={6: 1, 7: 1})
    (path,) = paths([federation], "flhc", {"name": "cam", "warmup": 2}, clusters=2, at=0, rounds=4)
    assert split_as(at(path, 1).labels, federation.groups)


def test_clients_that_never_train_spoil_no_clustering():
    """Their models may not be finite; features of 1e25 make training diverge."""
    federation = two_groups((12,) * 8, held_out=(0,), scale={0: 1e25})
    train = {"lr": 1.0, "epochs": 4}
    (path,) = paths([federation], "oneshot_kmeans", clusters=2, restarts=5, rounds=2, train=train)
    assert sound(at(path, 1))
    assert split_as(at(path, 1).labels[1:], federation.groups[1:])


def test_rounds_of_the_global_model_move_no_cluster_and_count_nobody():
    given = {"clusters": 1, "rounds": 5, "participation": 0.25, "evaluate_every": 1}
    config, objects = config_and_objects(
        two_groups((12,) * 8), settings("fesem", {"name": "cam", "warmup": 1, "update": "alternating"}, **given)
    )
    plan = planned(config, objects)
    (algorithm,) = plan.algorithms.values()
    now, step = jax.jit(algorithm.init)(jax.random.key(0), plan.federation), jax.jit(algorithm.step)
    start = vectors(now.clients["model"]["params"])[0]
    for _ in range(6):
        before, now = now, step(now, plan.federation)
        if before.clock >= 0 and before.clock % 2:
            np.testing.assert_array_equal(vectors(now.clusters), vectors(before.clusters))
            np.testing.assert_array_equal(now.seen, before.seen)
        kept = vectors(now.clients["model"]["params"])
        assert not [i for i in np.flatnonzero(now.seen) if np.array_equal(kept[i], start)]


def test_hostile_clients_are_left_out_of_the_clustering_after_a_warm_up_alone():
    attack = {"name": "gaussian", "share": 0.25, "sigma": 50.0}
    given = {"clusters": 2, "rounds": 2, "attack": attack}
    (path,) = paths([two_groups((12,) * 12)], "wecfl", {"name": "cam", "warmup": 2}, {"name": "exclude"}, **given)
    assert np.linalg.norm(vectors(at(path, 1).clusters), axis=1).max() < 10


def test_a_new_cluster_of_cfl_takes_no_place_of_clients_that_are_absent():
    given = {"eps1": 100.0, "eps2": 0.0, "relative": False, "capacity": 6, "rounds": 3}
    away = {"reliability": {"period": 2, "window": 0.5}}
    federation = two_groups((12,) * 12, held_out=(0, 1))
    plan = planned(*config_and_objects(federation, settings("cfl", **given, **away)))
    (algorithm,) = plan.algorithms.values()
    init, step = jax.jit(algorithm.init), jax.jit(algorithm.step)
    for seed in range(20):
        begun = init(jax.random.key(seed), plan.federation)
        cohort = algorithm.sampled(begun, plan.federation)
        there = np.asarray(cohort.who)[np.asarray(cohort.present)]
        absent = np.setdiff1d(np.arange(2, 12), cohort.who)  # the cohort has no place for them
        if len(absent) and len(there) >= 4:
            break
    begun = begun.replace(labels=begun.labels.at[absent].set(1), seen=jnp.arange(12) >= 2)
    after = np.asarray(step(begun, plan.federation).labels)
    np.testing.assert_array_equal(after[absent], 1)
    assert set(after[there]) == {0, 2}
