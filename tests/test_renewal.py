"""StoCFL's clients described anew, where their data change and where they do not."""

import jax
import numpy as np

from jcfl import metrics
from jcfl.core import attacks
from jcfl.core.faults import Faults
from jcfl.data.drift import with_drift
from tests import tiny


def two_groups():
    """Twelve clients; the first six have labels below 5, the others the rest."""
    data = tiny.federation((30,) * 12, groups=2)
    owner = np.repeat(np.arange(12), 34)  # of the pool
    return data.replace(y=(data.y % 5 + 5 * data.groups[owner]).astype(np.int32))


def labels(*federations, turns=16, **options):
    """StoCFL's labels after every round, and its last state, on each of some federations, by one program."""
    algorithm = tiny.built("stocfl", tiny.setting(0.5, data=federations[0]), tau=0.3, **options)

    @jax.jit
    def whole(key, data):
        def step(state, _):
            state = algorithm.step(state, data.at(state.round))
            return state, state.labels

        return jax.lax.scan(step, algorithm.init(key, data), length=turns)

    runs = (whole(jax.random.key(0), jax.device_put(data)) for data in federations)
    return [(np.asarray(found), last) for last, found in runs]


def test_clusters_recover_from_drift_where_descriptions_are_renewed():
    data = two_groups()
    drifts, still = (with_drift(np.random.default_rng(0), data, {when: 0.34}) for when in (5, 99))  # 99 never comes
    score = lambda found, data: [metrics.ari(row, data.at(turn).groups) for turn, row in enumerate(found)]
    (fixed, never), (renewed, often) = labels(drifts, still), labels(drifts, still, renew=1)
    assert score(fixed[0], drifts)[4] == score(renewed[0], drifts)[4] == 1
    assert max(score(fixed[0], drifts)[5:]) < 0.5
    assert score(renewed[0], drifts)[-1] == 1
    np.testing.assert_array_equal(never[0], often[0])
    used = np.unique(never[0][-1])
    one, other = (jax.tree.map(lambda leaf: leaf[used], state.clusters) for _, state in (never, often))
    tiny.same(one, other, 1e-5)
    tiny.same(never[1].memory.gram, often[1].memory.gram, 1e-4)
    assert (np.asarray(often[1].memory.described) > np.asarray(never[1].memory.described)).any()


def test_sums_are_those_of_what_clients_hold():
    """What renewal and departures leave is what StoCFL makes of the new data at once."""
    still = two_groups()
    drifts = with_drift(np.random.default_rng(0), still.replace(depart=np.where(np.arange(12) == 3, 6, 99)), {5: 0.34})
    ((found, last),) = labels(drifts, turns=12, renew=2, clustering_only=True)
    late = drifts.at(11).replace(drift=(), depart=still.depart, held_out=np.arange(12) == 3)
    ((again, expected),) = labels(late, turns=12, clustering_only=True)
    together = lambda row: row[:, None] == row
    np.testing.assert_array_equal(together(found[-1]), together(again[-1]))
    live, other = np.asarray(last.memory.live), np.asarray(expected.memory.live)
    np.testing.assert_allclose(
        np.sort(np.diag(last.memory.gram)[live]), np.sort(np.diag(expected.memory.gram)[other]), rtol=1e-4
    )


def test_clients_excluded_for_good_are_in_no_cluster_and_in_no_sum():
    """What is left is what StoCFL makes of a federation without them."""
    still = two_groups()
    hostile = np.isin(np.arange(12), (3, 8))
    attacked = still.replace(hostile=hostile)
    setting = tiny.setting(1.0, data=attacked, extras=[{"name": "exclude", "patience": 2}])
    setting = setting.with_context(faults=Faults(attacks.Scaled(share=1 / 6, factor=1e3)))
    found = tiny.run(tiny.built("stocfl", setting, tau=0.3), 4, data=attacked)
    kept = np.asarray(found.labels)
    assert (kept[1:3, hostile] >= 0).all() and (kept[3:, hostile] == -1).all()
    out = np.asarray(found.clients["suspected"])[-1] >= 2
    assert out[hostile].all() and out.sum() < 5
    np.testing.assert_array_equal(kept[-1] < 0, out)
    alone = still.replace(held_out=out)
    again = tiny.run(tiny.built("stocfl", tiny.setting(1.0, data=alone), tau=0.3, clustering_only=True), 1, data=alone)
    sums = lambda states: np.sort(np.diag(np.asarray(states.memory.gram)[-1])[np.asarray(states.memory.live)[-1]])
    np.testing.assert_allclose(sums(found), sums(again), rtol=1e-4)


def test_sketches_are_exchanged_by_the_lengths_that_they_have():
    """Clients whose data stay do not leave their clusters, and clusters are of the clients that are left."""
    data = tiny.federation()
    data = data.replace(depart=np.where(np.arange(8) == 3, 2, data.depart))
    setting = tiny.setting(data=data, epochs=1, batch_size="full")
    made = lambda given: tiny.built("stocfl", setting, sketch=16, tau=given[0], renew=given[1])
    renewed, fixed, together = tiny.swept(made, np.array([(0.9, 1), (0.9, 99), (-1, 1)], np.float32), 3, data=data)
    left = np.flatnonzero(fixed.labels[-1] >= 0)
    assert len(set(fixed.labels[-1, left])) == len(left) == 7
    tiny.same(renewed.clusters, fixed.clusters, 1e-6)
    psi = fixed.memory.sums["sketch"][-1, fixed.labels[-1, left]]
    lengths = (psi**2).sum(1)
    assert np.abs(lengths - 1).max() > 0.3
    np.testing.assert_allclose(together.memory.gram[-1, 0, 0], 7 + (psi.sum(0) ** 2).sum() - lengths.sum(), rtol=1e-4)
