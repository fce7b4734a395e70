"""Validation examples: nobody trains on them, they are scored beside test examples, and choosing reads them alone."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest

import jcfl
from jcfl import metrics
from jcfl.data import federation as federated
from jcfl.data import sources
from jcfl.data.hostile import with_attackers, with_flipped_labels
from jcfl.data.validation import with_validation
from jcfl.errors import InputError
from jcfl.runs.programs import keys, programs
from jcfl.types import Federation
from jcfl.view import plotting
from tests import tiny


@functools.cache
def made(validation: float, scenario: str = "dirichlet", clients: int = 12, **options) -> Federation:
    return federated(sources.load("digits"), scenario, clients=clients, validation=validation, **options)


def owned(split):
    return [split.rows[start : start + size] for start, size in zip(split.start, split.size, strict=True)]


@pytest.mark.parametrize("scenario", ["dirichlet", "iid", "pathological"])
def test_a_share_of_every_class_of_every_client(scenario):
    whole, apart = made(0.0, scenario), made(0.2, scenario)
    assert whole.validation == () and list(apart.splits) == ["train", "test", "validation"]
    np.testing.assert_array_equal(whole.test.rows, apart.test.rows)
    for before, train, kept in zip(*map(owned, (whole.train, apart.train, apart.splits["validation"])), strict=True):
        assert sorted(before) == sorted([*train, *kept])
        assert len(kept) == max(1, round(0.2 * len(before)))
        share = len(kept) / len(before)
        both = [np.bincount(whole.y[rows], minlength=10) for rows in (before, kept)]
        assert np.abs(both[1] - share * both[0]).max() < 1


GIVEN = {"model": {"name": "mlp", "hidden": 4}, "rounds": 2, "train": {"lr": 0.1, "epochs": 1}, "budget": 2**30}


def test_nobody_trains_or_groups_by_them():
    federation = tiny.federation()
    federation = with_validation(np.random.default_rng(0), federation, 0.3)
    y = federation.y.copy()
    y[federation.splits["validation"].rows] = 0
    compiled = programs(tiny.built("stocfl", tiny.setting(data=federation), tau=0.3), federation, 1)
    found = []
    for data in (federation, federation.replace(y=y)):
        state = compiled.advance(compiled.init(keys([0]), data), data, np.int32(2))
        found.append(metrics.measured(jax.device_get(compiled.evaluate(state, data)), data, 2))
    kept = [name for name in found[0] if name.startswith(metrics.VALIDATION)]
    assert {"validation_accuracy_micro", "validation_loss"} <= set(kept)
    assert not {"validation_purity", "validation_clusters", "validation_seen", "validation_counts"} & set(kept)
    for name in found[0]:
        assert name in kept or np.array_equal(found[0][name], found[1][name]), name
    assert found[0]["validation_loss"] != found[1]["validation_loss"]


def test_no_group_trains_on_a_copy():
    federation = made(0.2, "shifted")  # the inputs of all groups are the same, their labels are not
    kept, trained = (np.unique(federation.x[federation.splits[name].rows], axis=0) for name in ("validation", "train"))
    assert len(np.unique(np.concatenate([kept, trained]), axis=0)) == len(kept) + len(trained)
    share = federation.splits["validation"].size / (federation.splits["validation"].size + federation.train.size)
    assert share.min() > 0.1 and share.max() < 0.3 and share.mean() == pytest.approx(0.2, abs=0.01)


def test_what_several_clients_have_is_kept_by_all_of_them():
    federation = made(0.3, "crowd", examples=(40, 5))
    kept = set(federation.splits["validation"].rows)
    assert kept and not kept & set(federation.train.rows)
    assert federation.train.size.min() > 0
    with pytest.raises(InputError, match=r"leaves client .* nothing to train on"):
        made(0.5, "crowd", 1000, examples=(2, 5))


def test_clients_of_a_crowd_keep_their_share():
    """Most of its clients are the first to hold a few of their examples only, and one of few is more than a tenth."""
    federation = made(0.1, "crowd", 500, examples=(10, 2))
    kept, left = (federation.splits[name].size for name in ("validation", "train"))
    assert kept.sum() / (kept + left).sum() == pytest.approx(0.1, abs=0.02)


def test_attackers_flip_only_what_they_train_on():
    before = with_attackers(made(0.2, "iid"), 0.5, 0)
    after = with_flipped_labels(before)
    trained = np.concatenate([owned(before.train)[i] for i in np.flatnonzero(before.hostile)])
    np.testing.assert_array_equal(np.flatnonzero(before.y != after.y), np.sort(trained))


def test_own_arrays_have_validation_examples_too(tmp_path):
    rng = np.random.default_rng(0)
    x, y, clients = rng.normal(size=(200, 3)).astype(np.float32), rng.integers(0, 3, 200), np.arange(200) % 5
    np.save(tmp_path / "x.npy", x)
    given = {"classes": 3, "validation": 0.25}
    one = jcfl.data.from_clients(x, y, clients, **given)
    other = jcfl.data.from_clients(np.load(tmp_path / "x.npy", mmap_mode="r"), y, clients, **given)
    for name, split in one.splits.items():
        np.testing.assert_array_equal(one.x[split.rows], other.x[other.splits[name].rows])
        np.testing.assert_array_equal(jcfl.data.label_counts(one, name), jcfl.data.label_counts(other, name))


def test_a_sweep_chooses_on_validation_or_says_that_it_is_an_oracle(tmp_path):
    over, given = {"train.lr": [0.001, 0.1]}, GIVEN | {"method": "fedavg"}
    found = jcfl.sweep(made(0.2, "rotated"), over, **given)
    assert found.chosen == "best on validation by validation_accuracy_micro"
    assert replace(found, by="loss").chosen == "oracle (chosen on test) by loss"
    one = found.histories[1]
    assert one.summary["validation_accuracy_micro"]["mean"] == one["validation_accuracy_micro"][0, -1]
    shown = [axes.get_ylabel() for axes in plotting.curves(one).axes]
    assert shown[:2] == ["accuracy", "accuracy, validation examples"]
    with pytest.raises(InputError, match=r"no validation examples; .*scenario.validation=0.1"):
        jcfl.sweep(made(0.0, "rotated"), over, by="validation_loss", out=tmp_path / "sweep", **given)
    assert not (tmp_path / "sweep").exists() or not list((tmp_path / "sweep").glob("*.yaml"))
