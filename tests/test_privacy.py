"""Client-level differential privacy: what one client can change, the noise, ε, and what is refused."""

import functools
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import jcfl
from jcfl import registry, trees
from jcfl.core import engine, noising, server
from jcfl.core.attacks import InnerProduct, Scaled
from jcfl.core.engine import Sums
from jcfl.core.faults import Faults
from jcfl.core.method import Group
from jcfl.core.neutral import grouping_of
from jcfl.core.privacy import Privacy, once_keys
from jcfl.core.releases import releases, with_privacy
from jcfl.core.reliability import Reliability
from jcfl.core.rounds import first_state, sample
from jcfl.core.streams import Stream, round_keys, stream
from jcfl.data.drift import with_drift
from jcfl.errors import InputError
from jcfl.grouping.compare import L2
from jcfl.grouping.describe import LabelCounts, Update
from jcfl.grouping.groups import KMeans
from jcfl.grouping.when import Once
from jcfl.methods import fedavg
from jcfl.runs import accounting
from jcfl.runs.cohorts import cohorts
from jcfl.runs.plan import config_and_objects, planned
from jcfl.types import Cohort, Upload
from tests import tiny

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

EQUAL = (8,) * 6
"""Sizes for which clients that count by size count equally."""

FREE = Privacy(clip=1e6, description_clip=1e6)
"""Privacy that clips nothing and adds no noise."""

NOISY = Privacy(clip=0.5, noise=1.0, description_clip=1.0, description_noise=0.5)

SMALL = {
    "data": "digits",
    "scenario": {"name": "rotated", "clients": 8, "angles": [0, 180]},
    "model": {"name": "mlp", "hidden": 4},
    "train": {"lr": 0.1, "epochs": 1, "batch_size": 20},
    "evaluate_every": 1,
    "autotune": False,
}
GIVEN = {"clip": 0.5, "noise": 1.0, "description_clip": 1.0, "description_noise": 0.5}


def setting(privacy, participation=1.0, data=None, **more):
    data = tiny.federation(EQUAL) if data is None else data
    return tiny.setting(participation, data=data, epochs=1).with_context(privacy=privacy, **more)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {}),
        ("stocfl", {"lam": 0.1}),
        ("cfl", {"eps1": 1.0, "eps2": 0.2, "capacity": 3}),
        ("wecfl", {"clusters": 2}),
    ],
)
def test_without_noise_and_clipping_nothing_changes(name, options):
    data = tiny.federation(EQUAL)
    one, two = (
        tiny.run(tiny.built(name, setting(privacy, engine="general"), **options), 3, data=data)
        for privacy in (Privacy(), FREE)
    )
    np.testing.assert_array_equal(one.labels, two.labels)
    tiny.same((one.clusters, one.shared), (two.clusters, two.shared), 2e-6)


@functools.cache
def ground():
    """A method in which clients choose one of three clusters, and sums of uploads over what they are divided by."""
    made = setting(Privacy(clip=0.5))
    method = with_privacy(registry.find("method", "ifca")(clusters=3), made.context)
    state = first_state(method, made.context, (), {}, {}, jax.random.key(0))

    @jax.jit
    def sums(labels, present, updates):
        here = state.replace(labels=labels)
        cohort = Cohort(jnp.arange(6), present)
        sent = trees.take(here.clusters, labels)
        models = jax.tree.map(jnp.add, sent, unraveled(here.shared, updates))
        uploads = noising.clipped_rows(method, here, cohort, Upload(models, ()))
        part, expected = noising.participants_of(
            method, here, cohort, jax.device_put(tiny.federation(EQUAL)), server.equally, jnp.int32(6)
        )
        means, _ = noising.completed(method, here, part, *engine.averages(here, part, uploads))
        moved = jax.tree.map(lambda new, old: (new - old) * trees.wide(expected, new), means, here.clusters)
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(moved)]), expected

    return sums


def unraveled(model, updates):
    """Updates [s, 2] as trees: the first number is everybody's in one leaf, the second in all others."""
    leaves, shape = jax.tree.flatten(model)
    rows = [
        jnp.broadcast_to(trees.wide(updates[:, min(i, 1)], leaf[None]), (6, *leaf.shape))
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(shape, rows)


sizes = st.lists(
    st.tuples(*[st.sampled_from([0.0, 1e-3, 0.3, 5.0, -40.0, 1e30, np.inf, np.nan])] * 2), min_size=6, max_size=6
)
clusters = st.lists(st.integers(0, 2), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None)
@given(sizes, clusters, st.tuples(sizes, clusters), st.integers(0, 5))
def test_one_client_changes_all_sums_together_by_its_clip_at_most(updates, labels, others, who):
    sums = ground()
    updates, labels = np.array(updates, np.float32), np.array(labels, np.int32)
    there = np.ones(6, bool)
    whole, divided = sums(labels, there, updates)
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(divided, 2.0)  # by a number that neither data nor choices change
    without, _ = sums(labels, np.arange(6) != who, updates)
    assert np.linalg.norm(whole - without) <= 0.5 + 1e-3
    replaced, moved = updates.copy(), labels.copy()
    replaced[who], moved[who] = others[0][who], others[1][who]
    instead, _ = sums(moved, there, replaced)
    assert np.linalg.norm(whole - instead) <= 1.0 + 2e-3


def test_noise_has_the_deviation_that_is_said():
    made = setting(Privacy(clip=0.5, noise=3.0))
    method = with_privacy(registry.find("method", "stocfl")(), made.context)
    like = {"params": {"w": jnp.ones((4, 20000))}}
    shared = {"params": {"w": jnp.ones(20000)}}
    sums = Sums(like, jnp.array([4.0, 1.0, 0.0, 0.5]), shared)
    key = round_keys(jax.random.key(0), 1).noise
    found = noising.noised(method, made.context, key, sums, jnp.int32(6))
    spread = np.std(found.clusters["params"]["w"], 1)
    np.testing.assert_allclose(spread, 3 * 0.5 / np.array([4, 1, np.inf, 1]), rtol=0.03)
    np.testing.assert_allclose(np.std(found.shared["params"]["w"]), 3 * 0.5 / 6, rtol=0.03)
    np.testing.assert_array_equal(found.clusters["params"]["w"][2], 1.0)
    np.testing.assert_array_equal(
        noising.noised(method, made.context, key, sums, jnp.int32(0)).shared["params"]["w"], 1
    )
    again = noising.noised(method, made.context, round_keys(jax.random.key(0), 2).noise, sums, jnp.int32(6))
    apart = np.corrcoef(found.shared["params"]["w"], again.shared["params"]["w"])[0, 1]
    assert abs(apart) < 0.03, "every round has noise of its own"
    apart = np.corrcoef(found.clusters["params"]["w"][0], found.clusters["params"]["w"][1])[0, 1]
    assert abs(apart) < 0.03


def test_a_round_in_which_nobody_is_available_gets_no_noise():
    """Who is available does not depend on data, so this costs no privacy."""
    data = tiny.federation(EQUAL).replace(arrive=np.full(6, 2, np.int32))
    states = tiny.run(tiny.built("fedavg", setting(Privacy(clip=0.5, noise=1.0), data=data)), 3, data=data)
    at = lambda round: jax.tree.map(lambda leaf: leaf[round], (states.clusters, states.shared))
    tiny.same(at(2), at(0))
    assert all((new != old).all() for new, old in zip(*map(jax.tree.leaves, (at(3), at(2))), strict=True))


def test_a_long_update_in_half_precision_is_scaled_down():
    """The squares of its numbers add up to more than float16 has."""
    start = {"params": {"w": jnp.zeros(20_000, jnp.float16)}}
    model = {"params": {"w": jnp.asarray(np.random.default_rng(0).normal(0, 3, 20_000), jnp.float16)}}
    cut = Privacy(clip=1.0).clipped(model, start)["params"]["w"]
    assert cut.dtype == jnp.float16 and np.linalg.norm(np.asarray(cut, np.float64)) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_update_in_half_precision_is_rounded_to_more_than_its_clip(dtype, sign):
    """0.51 steps of the numbers near 1 would be rounded to a whole one: an update nearly twice as long as the clip."""
    step = float(jnp.finfo(dtype).eps)
    start = {"params": {"w": sign * jnp.ones(100, dtype)}}
    model = {"params": {"w": start["params"]["w"] + jnp.asarray(4 * sign * step, dtype)}}
    clip = 0.51 * step * 10
    whole = [np.asarray(one["params"]["w"], np.float64) for one in (Privacy(clip=clip).clipped(model, start), start)]
    assert np.linalg.norm(whole[0] - whole[1]) <= clip


def test_descriptions_are_clipped_and_noised_and_a_client_always_sends_the_same():
    privacy = Privacy(description_clip=2.0, description_noise=0.25)
    rows = jnp.zeros((3, 20000)).at[1].set(1.0)
    who = jnp.array([4, 2, 7])
    sent = privacy.descriptions(jax.random.key(0), who, rows)
    np.testing.assert_allclose(np.std(sent, 1), 0.5, rtol=0.03)
    tiny.same(sent[2], privacy.descriptions(jax.random.key(0), who[2:], rows[2:])[0])
    quiet = Privacy(description_clip=2.0).descriptions(jax.random.key(0), who, rows)
    np.testing.assert_allclose(np.linalg.norm(quiet, axis=1), [0, 2, 0], rtol=1e-5)
    models = {"params": rows}
    start = {"params": jnp.full((1, 20000), 3.0)}
    moved = Privacy(description_clip=2.0).models(once_keys(jax.random.key(0), who), start, models)
    np.testing.assert_allclose(np.linalg.norm(moved["params"] - 3.0, axis=1), 2.0, rtol=1e-4)


def test_forged_uploads_are_clipped_too():
    data = tiny.federation(EQUAL).replace(hostile=np.arange(6) < 2)
    faults = Faults(attack=Scaled(share=0.3, factor=1e6))
    algorithm = tiny.built("fedavg", setting(Privacy(clip=0.5), faults=faults, data=data))
    states = tiny.run(algorithm, 2, data=data)
    moved = [leaf[2] - leaf[0] for leaf in jax.tree.leaves(states.clusters)]
    assert np.sqrt(sum((leaf**2).sum() for leaf in moved)) <= 2 * 0.5 + 1e-4


def balle_wang(multiplier: float, epsilon: float) -> float:
    """δ of a Gaussian release (Balle and Wang 2018, Theorem 8)."""
    a, b = 1 / (2 * multiplier), epsilon * multiplier
    return stats.norm.cdf(a - b) - np.exp(epsilon) * stats.norm.cdf(-a - b)


def test_epsilon_without_sampling_is_that_of_one_gaussian():
    """Ten rounds of noise 4: a client is replaced, so the sum moves by two clips, and the multiplier is 2 / √10."""
    made = setting(Privacy(clip=1.0, noise=4.0))
    method = tiny.built("fedavg", made).method
    found = {done: accounting.epsilon_after(method, made.context, tiny.federation(EQUAL), done) for done in (0, 1, 10)}
    assert found[0] == 0
    for rounds in (1, 10):
        assert balle_wang(2 / np.sqrt(rounds), found[rounds]) == pytest.approx(1e-5, rel=1e-4)
    silent = made.with_context(privacy=Privacy(clip=1.0))
    assert accounting.epsilon_after(method, silent.context, tiny.federation(EQUAL), 10) == np.inf


def test_epsilon_with_secret_cohorts_is_the_accountants():
    import dp_accounting as dp

    made = setting(Privacy(clip=1.0, noise=2.0, delta=1e-3), participation=0.34)
    data = tiny.federation(EQUAL).replace(arrive=np.array([0, 0, 0, 0, 2, 2], np.int32))
    assert accounting.cohorts(made.context, data, 3) == {range(2): (1, 4), range(2, 3): (2, 6)}
    found = accounting.epsilon_after(tiny.built("ifca", made, clusters=2).method, made.context, data, 3)
    accountant = dp.rdp.RdpAccountant(accounting.ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    for asked, available, count in ((1, 4, 2), (2, 6, 1)):
        event = dp.SampledWithoutReplacementDpEvent(available, asked, dp.GaussianDpEvent(1.0))
        accountant.compose(event, count)
    assert found == pytest.approx(accountant.get_epsilon(1e-3))
    assert found < accounting.epsilon({(1.0, None): 3}, 1e-3), "the secret helps"


def test_the_divergence_of_a_release_is_computed_once(monkeypatch):
    """Whatever the round: sampling without replacement takes a tenth of a second."""
    import dp_accounting
    from dp_accounting import rdp

    counted, compose = [], rdp.RdpAccountant.compose
    monkeypatch.setattr(rdp.RdpAccountant, "compose", lambda *given: counted.append(given) or compose(*given))
    releases = {(0.71, accounting.Cohort(3, 11)): 1, (0.7, None): 2}
    found = [accounting.epsilon({key: turn * count for key, count in releases.items()}, 1e-3) for turn in (1, 2, 50)]
    assert len(counted) == 2
    accountant = rdp.RdpAccountant(accounting.ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(0.7)
    accountant.compose(gaussian, 100)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(11, 3, dp_accounting.GaussianDpEvent(0.71)), 50)
    assert found[2] == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-12) and found[0] < found[1] < found[2]


def sent(name, participation=1.0, addons=(), **options):
    made = setting(NOISY, participation)
    made = made._replace(addons=tuple({"name": one["name"], **tiny.rest(one)} for one in addons))
    return releases(tiny.built(name, made, **options).method, made.context)


def test_what_is_sent_is_composed():
    """Voters are further releases; descriptions count once, or with every upload."""
    counted = lambda found, rounds: sum(
        accounting.counts(
            found, {range(1): accounting.Cohort(3, 6), range(1, rounds): accounting.Cohort(2, 6)}
        ).values()
    )
    assert counted(sent("fedavg", 0.5), 5) == 5
    assert counted(sent("stocfl", 0.5), 5) == 6
    assert counted(sent("stocfl", clustering_only=True), 5) == 1
    assert counted(sent("ditto", 0.5), 5) == 5
    assert counted(sent("fedavg_plus", 0.5, runs=3), 5) == 15
    assert counted(sent("cfl"), 5) == 10
    assert counted(sent("fesem", clusters=2), 5) == 5
    assert counted(sent("flhc", 0.5, clusters=2), 5) == 6
    assert counted(sent("ifca", 0.5, clusters=2, addons=[{"name": "cam", "warmup": 2}]), 5) == 5


@pytest.mark.parametrize("wide", [False, True], ids=["single precision", "double precision"])
def test_as_many_clients_are_counted_as_are_sampled(wide):
    """0.14 · 75 is 10.5 in single precision, which is rounded to 10, and above it in double precision."""
    data = tiny.federation((1,) * 75)
    with jax.enable_x64(wide):
        context = tiny.setting(0.14, data=data).context
        cohort = sample(jax.random.key(0), context.population, jnp.ones(75, bool))
        assert cohort.present.sum() == context.population.cohort == (11 if wide else 10)
        assert cohorts(context, data, 2) == {range(2): accounting.Cohort(int(cohort.present.sum()), 75)}


def test_omega_is_a_second_release_of_the_same_cohort():
    """Two Gaussian releases of noise 1 are one of noise 1 / √2; a secret cohort hides both at once, not each anew."""
    (updates,) = sent("ifca", 0.5, clusters=2, addons=[{"name": "cam", "warmup": 0}])
    assert updates.sampled
    assert updates.noise == pytest.approx(1 / np.sqrt(2))
    assert [one.noise for one in sent("stocfl")] == pytest.approx([0.5, 1 / np.sqrt(2)])
    assert [one.noise for one in sent("ditto")] == [1.0]


def test_attackers_who_send_what_they_see_of_others_are_refused():
    with pytest.raises(InputError, match="attackers who send what they see of others"):
        tiny.built("fedavg", setting(NOISY, faults=Faults(attack=InnerProduct(share=0.3))))


def test_a_cohort_is_secret_only_where_nothing_shows_it():
    secret = lambda *given, **more: {one.what: one.sampled for one in sent(*given, **more)}
    assert all(secret("fedavg", 0.5).values())
    assert all(secret("ifca", 0.5, clusters=2).values())
    assert not any(secret("stocfl", 0.5).values()), "who is described takes part"
    assert not any(secret("fedem", 0.5).values()), "a client's membership tells that it took part before"
    away = setting(NOISY, 0.5).with_context(faults=Faults(reliability=Reliability(period=4)))
    assert not releases(tiny.built("fedavg", away).method, away.context)[0].sampled


@dataclass(frozen=True, kw_only=True)
class Early(Reliability):
    """Three clients alone can be sampled."""

    name: ClassVar[str] = "early"

    def available(self, run, turn, clients):
        return jnp.arange(clients) < 3


def test_a_cohort_of_clients_that_are_available_in_a_way_of_their_own_is_no_secret():
    """Three of six clients are sampled each time, whatever is drawn: sampling hides nothing."""
    early = setting(NOISY, 0.5, faults=Faults(reliability=Early()))
    method = tiny.built("fedavg", early).method
    found = accounting.epsilon_after(method, early.context, tiny.federation(EQUAL), 5)
    assert found == accounting.epsilon({(0.5, None): 5}, 1e-5)
    assert [one.text() for one in releases(method, early.context)] == ["updates of cluster models, each round"]
    with pytest.raises(InputError, match="come late choose a cluster by their losses"):
        tiny.built("wecfl", setting(NOISY, faults=Faults(reliability=Early())), clusters=2)


@dataclass(frozen=True, kw_only=True)
class Looks(Group):
    """One cluster, and a look at the models that clients trained."""

    name: ClassVar[str] = "looks"

    def slots(self, context):
        return 1

    def grouping(self, method, context):
        after = lambda key, state, members, federation, models: state
        return grouping_of(init=lambda state, federation: state.replace(labels=0 * state.labels), after=after)


def test_models_that_a_group_of_ones_own_looks_at_are_covered_or_refused():
    looking = replace(fedavg(), name="own", group=Looks())
    tiny.built(looking, setting(Privacy()))
    with pytest.raises(InputError, match=r"privacy: own .*group 'looks'.*set method.describe to update or model"):
        tiny.built(looking, setting(NOISY))
    tiny.built(replace(looking, describe=Update()), setting(NOISY))


class Keeps(Looks):
    """One cluster, whose model is the mean of the last models of all clients."""

    def grouping(self, method, context):
        return super().grouping(method, context)._replace(after=None)

    def keeps(self, method, context):
        return {"model": lambda first: first}


def test_models_that_a_group_of_ones_own_keeps_are_covered_or_refused():
    """The sums of ω are covered, those of the cluster's model would not be."""
    with pytest.raises(InputError, match=r"privacy: ditto .*group 'looks'.*set method.describe to update or model"):
        tiny.built(replace(fedavg(), name="ditto", group=Keeps()).with_train(shared="trained"), setting(NOISY))


class Describes(Keeps):
    """One cluster, in which clients keep a number that they get back."""

    def keeps(self, method, context):
        return {"mine": lambda first: jnp.zeros(())}


def test_data_that_a_group_of_ones_own_looks_at_are_covered_or_refused():
    """Only the group itself can add noise to them; those of jcfl that group all clients do."""

    class Covers(Describes):
        covers_data: ClassVar[bool] = True

    own = lambda group: tiny.built(replace(fedavg(), name="own", group=group, describe=LabelCounts()), setting(NOISY))
    with pytest.raises(InputError, match=r"privacy: own .*group 'looks'.*context.privacy.descriptions.*covers_data"):
        own(Describes())
    own(Covers())


def test_a_group_that_looks_at_data_in_its_own_way_says_itself_that_it_covers_them():
    """A group of jcfl's covers what its own `grouping` looks at, and knows nothing of that of a subclass."""

    class Narrower(KMeans):
        def labels(self, method, context, compare):
            return super().labels(method, context, compare)

    class Looking(KMeans):
        def grouping(self, method, context):
            return super().grouping(method, context)

    class Covering(Looking):
        covers_data: ClassVar[bool] = True

    method = replace(fedavg(), name="own", describe=LabelCounts(), compare=L2(), when=Once())
    own = lambda kind: tiny.built(replace(method, group=kind(clusters=2)), setting(NOISY))
    own(Narrower)
    with pytest.raises(
        InputError, match=r"privacy: own .*context.privacy.descriptions.*covers_data = True in its class"
    ):
        own(Looking)
    own(Covering)


def test_a_state_that_clients_keep_for_their_group_shows_who_took_part():
    """What they send then differs from what they would send had they not been sampled before."""
    secret = lambda group: releases(replace(fedavg(), group=group), setting(NOISY, 0.5).context)[0].sampled
    assert secret(Looks()) and not secret(Describes())


@pytest.mark.parametrize(
    ("name", "given", "privacy", "reason"),
    [
        ("local", {}, NOISY, "sends nothing, its models stay with the clients"),
        ("fedavg", {"shared_update": "sequential"}, NOISY, "hands models from one client to the next"),
        ("stocfl", {"similarity": "noise_corrected"}, NOISY, "how far each description can be trusted"),
        ("stocfl", {}, Privacy(clip=1.0), "set privacy.description_clip and privacy.description_noise"),
        ("fedavg", {}, Privacy(description_clip=1.0), "set privacy.clip and privacy.noise"),
        ("ifca", {"clusters": 2, "addons": [{"name": "cks", "form": "pairwise"}]}, NOISY, "the sizes of clusters"),
        ("ifca", {"clusters": 2, "addons": [{"name": "robust"}]}, NOISY, "aggregates by median"),
        ("ifca", {"clusters": 2, "addons": [{"name": "exclude"}]}, NOISY, "because of what others sent"),
        ("wecfl", {"clusters": 2, "addons": [{"name": "cam"}]}, NOISY, "by the models of a warm-up"),
    ],
)
def test_what_is_not_covered_is_refused_by_what_it_is(name, given, privacy, reason):
    given = dict(given)
    made = setting(privacy)
    extras = (
        {"name": one["name"], **registry.options("addon", one["name"], tiny.rest(one))}
        for one in given.pop("addons", ())
    )
    with pytest.raises(InputError, match=reason):
        tiny.built(name, made._replace(addons=tuple(extras)), **given)


def test_running_statistics_are_refused():
    """Batch normalisation sends means and variances that nothing clips."""
    task = tiny.task()
    init = lambda key: task.init(key) | {"batch_stats": jnp.zeros(2)}
    with pytest.raises(InputError, match="sends batch_stats of the model 'tiny' without noise"):
        tiny.built("fedavg", setting(NOISY, task=task._replace(init=init)))


def test_clients_that_come_late_are_refused_where_they_choose_by_losses():
    with pytest.raises(InputError, match="come late choose a cluster by their losses"):
        tiny.built("wecfl", setting(NOISY, 0.5), clusters=2)


def test_clients_whose_data_drift_are_not_described_again_with_the_same_noise():
    """StoCFL describes clients once, but at each evaluation those that it places without having sampled them."""
    data = with_drift(np.random.default_rng(0), tiny.federation(), {2: 0.5})
    made = setting(NOISY, 0.5, data=data)
    tiny.built("stocfl", made)
    with pytest.raises(InputError, match="whose data have drifted, with the noise of the first time"):
        tiny.built("stocfl", made, unsampled="placed")
    tiny.built("stocfl", setting(NOISY, 0.5), unsampled="placed")


def test_perfectly_reliable_clients_of_a_configuration_are_reliable():
    """Its window of availability has no meaning without a period."""
    assert Reliability(window=0.5).is_perfect
    assert not Reliability(dropout=0.1).is_perfect and not Reliability(period=4).is_perfect
    given = {"clip": 1.0, "noise": 1.0, "description_clip": 1.0, "description_noise": 1.0}
    options = {"method": {"name": "wecfl", "clusters": 2}, "participation": 1, "rounds": 1, "compare": [], "seeds": 1}
    scenario = {"name": "rotated", "clients": 8}
    plan = planned(*config_and_objects("quickstart", {"scenario": scenario, "privacy": given, **options}))
    (algorithm,) = plan.algorithms.values()
    assert accounting.epsilon_after(algorithm.method, plan.context, plan.federation, 1) > 0


def test_figures_do_not_depend_on_chunks_and_a_resumed_run_is_the_same(tmp_path):
    base = SMALL | {"method": {"name": "stocfl", "tau": 0.2}, "privacy": GIVEN, "participation": 0.5}
    whole = jcfl.run(base, rounds=4, chunk=4, out=tmp_path / "whole")
    jcfl.run(base, rounds=2, chunk=4, out=tmp_path / "parts")
    again = jcfl.run(base, rounds=4, chunk=4, out=tmp_path / "parts", resume=True)
    for name in ("accuracy_micro", "loss", "ari", "epsilon"):
        np.testing.assert_array_equal(whole[name], again[name])
    assert (tmp_path / "whole/metrics.jsonl").read_bytes() == (tmp_path / "parts/metrics.jsonl").read_bytes()
    assert (np.diff(whole["epsilon"][0]) > 0).all()
    single = jcfl.run(base, rounds=4, chunk=1)
    np.testing.assert_array_equal(whole.labels, single.labels)
    np.testing.assert_allclose(whole["loss"], single["loss"], rtol=1e-4)


def test_mistakes_end_with_one_line_and_status_2(tmp_path):
    for words, said in (
        (["privacy.clip=0"], "greater than 0"),
        (["privacy.clip=1", "privacy.noise=-1"], "greater than or equal to 0"),
        (["privacy.clip=1", "privacy.delta=1"], "less than 1"),
        (["privacy.clp=1"], "clip"),
        (["privacy.clip=1", "engine=factored"], "clip their updates"),
    ):
        with pytest.raises(InputError, match=said) as error:
            jcfl.run(SMALL | {"method": "fedavg"} | nested(words), rounds=1, out=tmp_path / "run")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def nested(words):
    found: dict = {}
    for word in words:
        key, value = word.split("=")
        section, _, option = key.partition(".")
        value = float(value) if option else value
        found[section] = {**found.get(section, {}), option: value} if option else value
    return found


def test_privacy_without_its_accountant_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r'pip install "jcfl\[privacy\]"'):
        jcfl.run(SMALL | {"method": "fedavg", "privacy": {"clip": 1.0, "noise": 1.0}}, rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_streams_of_noise_are_named():
    key = jax.random.key(3)
    assert stream(stream(key, Stream.ROUND, 5), Stream.NOISE) == round_keys(key, 5).noise
