"""Clients that are exact copies of others, as in Ma's released code, against a plain loop."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from jcfl.data import duplicates
from jcfl.data.dataset import Dataset, Examples
from jcfl.data.federation import federation
from jcfl.data.hostile import with_attackers, with_flipped_labels
from jcfl.data.summary import shared
from jcfl.errors import InputError
from jcfl.runs.provenance import fingerprint
from jcfl.view import show
from tests.test_scenarios import DATA, SMALL, owned

TRAIN, TEST, CLASSES = 4000, 1000, 5


def mixed():
    """Examples of five classes in random order, that say in x which they are."""
    rng = np.random.default_rng(1)
    halves = (np.arange(TRAIN), TRAIN + np.arange(TEST))
    parts = (
        Examples(at[:, None].astype(np.float32), rng.integers(0, CLASSES, len(at)).astype(np.int32)) for at in halves
    )
    return Dataset("mixed", *parts, CLASSES)


MIXED = mixed()
LABELS = np.concatenate([MIXED.train.y, MIXED.test.y])


def spread(alpha):
    return lambda rng, classes, clients: np.floor(rng.dirichlet(np.full(clients, alpha), classes) * 100) / 100


def by_classes(number):
    def shares(rng, classes, clients):
        holds = np.zeros((classes, clients))
        for client in range(clients):
            holds[rng.choice(classes, number, replace=False), client] = 1
        return holds / (holds.sum(1, keepdims=True) + 1e-10)

    return shares


def clients_of(rng, train, test, clients, shares):
    """The (training, test) examples of every client: class by class, client by client, then the copies."""
    labels, found = sorted(set(LABELS[train].tolist())), []
    while len(found) <= clients // 2:
        share = shares(rng, len(labels), clients)
        lots = [([], []) for _ in range(clients)]
        for half, examples in enumerate((train, test)):
            for j, label in enumerate(labels):
                left = [i for i in examples if LABELS[i] == label]
                number = len(left)
                for client in range(clients):
                    size = round(number * float(share[j, client]))
                    lots[client][half].extend(left[:size])
                    left = left[size:]
        found += [lot for lot in lots if len(lot[1]) > 5]
    found = found[:clients]
    while len(found) < clients:
        chosen = set(rng.integers(len(found), size=clients - len(found)).tolist())
        found = found + [lot for i, lot in enumerate(found) if i in chosen]
    return found


def in_groups(rng, groups, each, of_groups, of_clients):
    train, test = np.arange(TRAIN), np.arange(TRAIN, TRAIN + TEST)
    while True:
        parts = clients_of(rng, train, test, groups, of_groups)
        if min(len(part[1]) for part in parts) > 0.3 * TEST / groups:
            return [lot for part in parts for lot in clients_of(rng, *part, each, of_clients)]


def alone(rng, clients, shares):
    return clients_of(rng, np.arange(TRAIN), np.arange(TRAIN, TRAIN + TEST), clients, shares)


LOOPS = {
    "dirichlet": ({"clients": 30, "alpha": 0.05}, lambda rng: alone(rng, 30, spread(0.05))),
    "drawn again": ({"clients": 60, "alpha": 0.012}, lambda rng: alone(rng, 60, spread(0.012))),
    "n_class": ({"clients": 30, "n": 2}, lambda rng: alone(rng, 30, by_classes(2))),
    "grouped_dirichlet": (
        {"clients": 32, "groups": 4, "alpha_group": 0.5, "alpha_client": 0.3},
        lambda rng: in_groups(rng, 4, 8, spread(0.5), spread(0.3)),
    ),
    "grouped_n_class": (
        {"clients": 16, "groups": 4, "a": 3, "b": 2},
        lambda rng: in_groups(rng, 4, 4, by_classes(3), by_classes(2)),
    ),
}


def made(name="dirichlet", seed=2, **more):
    scenario = "dirichlet" if name == "drawn again" else name
    return federation(MIXED, scenario, seed=seed, duplicates=True, **LOOPS[name][0] | more)


def held(found, half):
    """The examples of every client by their numbers in the dataset."""
    return [np.asarray(found.x)[rows, 0].astype(int).tolist() for rows in owned(getattr(found, half))]


@pytest.mark.parametrize("name", LOOPS)
def test_agrees_with_a_plain_loop(name):
    found, expected = made(name), LOOPS[name][1](np.random.default_rng(2).spawn(1)[0])
    assert held(found, "train") == [lot[0] for lot in expected]
    assert held(found, "test") == [lot[1] for lot in expected]
    np.testing.assert_array_equal(found.y, LABELS[np.asarray(found.x)[:, 0].astype(int)])
    assert (found.groups >= 0).all() == name.startswith("grouped")
    again, other = made(name), made(name, seed=3)
    assert fingerprint(found) == fingerprint(again) != fingerprint(other)


def test_copies_are_of_whole_clients_and_cost_no_memory():
    """A copy has the training and the test examples of the other; nobody tests on what another client trains on."""
    found = made()
    train, test = held(found, "train"), held(found, "test")
    copies = [i for i in range(30) if train[i] in train[:i]]
    assert copies
    assert all(test[i] == test[train.index(train[i])] for i in copies)
    trained, tested = (Counter(itertools.chain(*lots)) for lots in (train, test))
    assert not trained.keys() & tested.keys()
    assert len(found.x) == len(trained) + len(tested) < len(found.train.rows) + len(found.test.rows)
    several = {name: sum(n > 1 for n in often.values()) for name, often in (("train", trained), ("test", tested))}
    assert shared(found) == several | {"copies": len(copies)}


def test_only_the_dirichlet_scenarios_come_to_copies():
    for name in ("n_class", "grouped_n_class"):
        assert shared(made(name)) == {"train": 0, "test": 0, "copies": 0}
    assert shared(made("grouped_dirichlet"))["copies"] > 0


def test_it_is_told_before_training():
    said = list(show.remarks(show.facts(made())))
    copies = shared(made())["copies"]
    assert f"clients that are exact copies of another one: {copies} of 30" in said
    assert any(line.startswith("examples that several clients have: ") for line in said)
    honest = federation(MIXED, "dirichlet", clients=30, alpha=0.3)
    assert not any("several clients" in line for line in show.remarks(show.facts(honest)))


@pytest.mark.parametrize(
    ("scenario", "before"),
    [
        ("dirichlet", "54d3605840da"),
        ("grouped_dirichlet", "cfba2f1c030b"),
        ("n_class", "81a4e6602988"),
        ("grouped_n_class", "34ba3961acf4"),
    ],
)
def test_without_it_the_federations_are_those_of_before(scenario, before):
    assert fingerprint(federation(DATA, scenario, seed=5, **SMALL[scenario]))[:12] == before


def test_a_shared_example_is_kept_for_validation_by_all_or_by_none():
    found = made(validation=0.2)
    assert not set(found.train.rows.tolist()) & set(found.validation.rows.tolist())
    assert found.validation.size.sum() > 0


def test_labels_of_copies_are_not_flipped_with_an_attacker_s():
    with pytest.raises(InputError, match="attackers share examples with other clients"):
        with_flipped_labels(with_attackers(made(), 0.5, 0))


def test_what_that_code_cannot_draw_is_refused(monkeypatch):
    with pytest.raises(InputError, match="leave per='client' out"):
        made(per="client")
    with pytest.raises(InputError, match="20 draws gave 0 of 300 clients more than 5 of 1000 test examples"):
        made(clients=300, alpha=100.0)  # long before the 1000 draws, because they would not be enough either
    monkeypatch.setattr(duplicates, "DRAWS", 20)
    y = np.minimum(np.arange(TEST) // 960 * (np.arange(TEST) % 5), 4).astype(np.int32)  # nearly all of class 0
    uneven = replace(MIXED, test=replace(MIXED.test, y=y))
    with pytest.raises(InputError, match="all 4 groups of mixed have more than 75 test examples"):
        federation(uneven, "grouped_dirichlet", clients=16, groups=4, alpha_group=0.01, duplicates=True)
