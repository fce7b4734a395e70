"""Clients with examples of two groups: who gives to whom, how many, and what stays as it was."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jcfl
from jcfl.data import federation, from_clients
from jcfl.data.dataset import Dataset, Examples
from jcfl.data.mixing import receivers
from jcfl.errors import InputError

rng = np.random.default_rng(0)
TABLE = Dataset("table", *(Examples(rng.normal(size=(n, 3)), np.arange(n) % 4) for n in (600, 200)), classes=4)


def made(scenario="selected_classes", **options):
    return federation(TABLE, scenario, clients=20, groups=4, **options)


@pytest.mark.parametrize("share", [0.1, 0.37])
def test_every_client_gives_and_gets_a_share(share):
    plain, mixed = made(), made(mixing=share)
    np.testing.assert_array_equal(mixed.groups, plain.groups)
    for name in ("train", "test"):
        before, after = plain.splits[name], mixed.splits[name]
        np.testing.assert_array_equal(np.sort(after.rows), np.sort(before.rows))
        owner = {row: client for client in range(20) for row in before.owned(client).tolist()}
        givers = []
        for client in range(20):
            sources = [owner[row] for row in after.owned(client).tolist()]
            (giver,) = set(sources) - {client}
            givers.append(giver)
            assert plain.groups[giver] != plain.groups[client]
            assert sources.count(giver) == round(share * before.size[giver])
            assert sources.count(client) == before.size[client] - round(share * before.size[client])
        assert sorted(givers) == list(range(20))
    first = plain.train.owned(0)
    assert set(first) - set(mixed.train.owned(0)) != set(first[: round(share * len(first))])  # drawn at random


@pytest.mark.parametrize("share", [0.2, 0.4, 0.49])
def test_the_true_group_has_most_of_the_examples_of_clients_of_any_size(share):
    sizes = [4, 400] * 3 + [3, 2]
    group = np.repeat([0, 1] * 4, sizes)  # of an example: its label too
    clients = np.repeat(np.arange(8), sizes)
    x = np.random.default_rng(1).normal(size=(len(group), 3))
    tests = np.tile(np.arange(8), 5)
    given = {"x_test": np.zeros((40, 3)), "y_test": tests % 2, "clients_test": tests}
    found = from_clients(x, group, clients, groups=[0, 1] * 4, **given, mixing=share)
    for split in found.splits.values():
        for client in range(8):
            owned = found.y[split.owned(client)]
            assert 2 * (owned == client % 2).sum() > len(owned)


def test_mixing_has_a_stream_of_its_own_and_comes_before_validation():
    plain, mixed = made(held_out=0.2, arrivals={2: 0.3}), made(held_out=0.2, arrivals={2: 0.3}, mixing=0.2)
    for name in ("x", "y", "groups", "held_out", "arrive", "depart"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(mixed, name))
    whole = made(mixing=0.2, validation=0.25)
    for client in range(20):
        kept = np.concatenate([whole.train.owned(client), whole.splits["validation"].owned(client)])
        np.testing.assert_array_equal(np.sort(kept), np.sort(made(mixing=0.2).train.owned(client)))
    jax.tree.map(np.testing.assert_array_equal, made(mixing=0.2), made(mixing=0.2))
    assert (made(mixing=0.2, seed=1).train.size != 0).all()


@given(st.lists(st.integers(-1, 4), min_size=2, max_size=40), st.integers(0, 9))
def test_everybody_gives_to_another_group_if_no_group_is_more_than_half(groups, seed):
    labels = np.array(groups)
    own = np.where(labels < 0, -1 - np.arange(len(labels)), labels)
    largest = np.unique(own, return_counts=True)[1].max()
    if 2 * largest > len(labels):
        with pytest.raises(InputError, match=rf"{largest} of {len(labels)} clients are of one true group"):
            receivers(np.random.default_rng(seed), labels)
        return
    found = receivers(np.random.default_rng(seed), labels)
    np.testing.assert_array_equal(np.sort(found), np.arange(len(labels)))
    assert (own[found] != own).all()


def test_one_model_for_all_clients_learns_from_the_same_examples():
    """FedSGD of full participation sees the same sum of gradients, whoever has an example."""
    options = {"method": "fedsgd", "model": "linear", "rounds": 3, "progress": False}
    plain, mixed = (jcfl.run(made(mixing=share), **options) for share in (0.0, 0.3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), plain.state.shared, mixed.state.shared)
    np.testing.assert_allclose(plain["loss"], mixed["loss"], rtol=1e-5)


def test_wrong_shares_are_refused():
    with pytest.raises(InputError, match="mixing: input should be less than"):
        made(mixing=0.5)
    with pytest.raises(InputError, match="20 of 20 clients are of one true group"):
        federation(TABLE, "iid", clients=20, mixing=0.2)
