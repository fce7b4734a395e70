"""When a cluster of CFL is ready to be split, by the sizes of its clients."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jcfl.grouping.bipartition import criterion
from tests import tiny

ready = jax.jit(criterion)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_the_criterion_is_the_norm_of_the_weighted_mean_update(seed):
    rng = np.random.default_rng(seed)
    updates, sizes, member = rng.normal(size=(6, 4)), rng.integers(1, 200, 6), rng.random(6) < 0.6
    member[2] = True
    mean, largest = ready((updates @ updates.T).astype(np.float32), member, sizes)
    expected = np.linalg.norm(np.average(updates[member], 0, sizes[member]))
    np.testing.assert_allclose(mean, expected, atol=1e-4)
    np.testing.assert_allclose(largest, np.linalg.norm(updates[member], axis=1).max(), rtol=1e-5)


def test_updates_that_cancel_by_size_have_settled():
    updates = np.array([[1.0, 0], [1, 0], [-5, 0], [-5, 0]])
    sizes = np.array([100, 100, 20, 20])
    mean, largest = ready(updates @ updates.T, np.ones(4, bool), sizes)
    np.testing.assert_allclose([mean, largest], [0, 5], atol=1e-5)
    mean, largest = ready(updates @ updates.T, np.zeros(4, bool), sizes)
    np.testing.assert_array_equal([mean, largest], 0)


def test_cfl_splits_clients_of_unequal_sizes():
    """Those whose labels are reversed hold fewer examples, and are split off all the same."""
    small = np.arange(10) >= 5
    data = tiny.federation(sizes=(60,) * 5 + (15,) * 5, groups=1)
    owner = np.repeat(small, data.train.size + data.test.size)
    data = data.replace(y=np.where(owner, 9 - data.y, data.y), groups=small.astype(np.int32))
    made = tiny.setting(data=data, lr=1.0, batch_size="full")
    states = tiny.run(tiny.built("cfl", made, eps1=0.6, eps2=0.4), 40, data=data)
    first = states.labels[(states.labels.max(1) > 0).argmax()]
    np.testing.assert_array_equal(first == first[-1], small)
