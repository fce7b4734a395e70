"""The ids that a user gives her clients, found again in histories, files, figures, reports and errors."""

import datetime
import json
import re

import jax
import numpy as np
import pytest

import jcfl
from jcfl import results
from jcfl.data import federation, from_clients, load
from jcfl.errors import InputError
from jcfl.types import Ids
from jcfl.view import plotting
from jcfl.view.report import apart, clients, page
from tests import folders

NAMES = [f"writer-{letter}" for letter in "qwertzuiopasdfghjkly"]
CLASSES = len(NAMES)
CLIENTS = np.repeat(NAMES, 12)
Y = np.repeat(np.arange(CLASSES), 12)  # client NAMES[i] has label i alone, so that its data tell who it is
X = np.random.default_rng(0).standard_normal((len(Y), 2)).astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Eight of twenty natural clients, a quarter of them held out; resumed after two rounds."""
    place = tmp_path_factory.mktemp("ids")
    np.savez(place / "mine.npz", x=X, y=Y, clients=CLIENTS)
    settings = {
        "data": {"name": "arrays", "path": "mine.npz"},
        "scenario": {"name": "natural", "clients": 8, "held_out": 0.25, "min_examples": [2, 1]},
        "method": "majority",
        "data_dir": str(place),
    }
    first = jcfl.run(settings, rounds=1, out=place / "run")
    again = jcfl.run(settings, rounds=2, out=place / "run", resume=True)
    assert np.array_equal(first.clients, again.clients)
    return again


def test_a_sample_of_the_clients_keeps_its_ids_in_all_files(run):
    facts = results.federation(run)
    assert run.clients.dtype.kind == "U" and run.clients.tolist() == sorted(set(run.clients)) and len(run.clients) == 8
    assert [NAMES[label] for label in facts["train"].argmax(1)] == run.clients.tolist()  # each has its own examples
    assert facts["held_out"].sum() == 2
    assert facts["clients"].tolist() == run.clients.tolist()
    assert np.load(run.folder / "clusters.npz")["clients"].tolist() == run.clients.tolist()
    assert results.load(run.folder).clients.tolist() == run.clients.tolist()


def test_a_table_has_a_row_for_each_client(run):
    table = run.to_dataframe(clients=True)
    assert table.columns.tolist() == ["method", "seed", "round", "client", "group", "cluster", "accuracy"]
    assert len(table) == len(run.rounds) * 8
    last = table[table["round"] == run.rounds[-1]].set_index("client")
    np.testing.assert_array_equal(last.loc[run.clients, "accuracy"], run.accuracy_clients[0, -1])


def test_the_report_and_the_figure_of_the_worst_clients_name_them(run):
    table = clients.table([run], ["majority"])
    assert [row[0] for row in table["rows"]] == run.clients.tolist()
    assert run.clients[3] in page([run])
    labels = [tick.get_text() for tick in plotting.clients(run).axes[1].get_yticklabels()]
    assert set(labels) == set(run.clients[~results.federation(run)["held_out"]])


def test_movers_are_named_and_folders_without_ids_count_their_clients(tmp_path):
    names = np.array([f"c{i:02d}" for i in range(folders.CLIENTS)])[::-1]
    run = results.load(folders.run(tmp_path / "named", clients=names))
    moves = jcfl.explain(run).moves
    assert moves and all(move.id == names[move.client] for move in moves)
    ((_, *_), *_) = rows = apart.tables([run], ["stocfl"])[0]["moves"]["rows"]
    assert [name for name, _ in rows] == [move.id for move in moves]
    old = folders.run(tmp_path / "old")
    arrays = dict(np.load(old / "clusters.npz"))
    del arrays["clients"]
    np.savez(old / "clusters.npz", **arrays)
    (old / "checksums.json").unlink()
    found = results.load(old)
    assert found.clients.tolist() == results.federation(found)["clients"].tolist() == list(range(folders.CLIENTS))
    assert all(move.id == move.client for move in jcfl.explain(found).moves)


def test_runs_of_other_clients_are_not_put_into_one_table(tmp_path):
    names = np.array([f"c{i:02d}" for i in range(folders.CLIENTS)])
    runs = [results.load(folders.run(tmp_path / n, clients=own)) for n, own in (("a", names), ("b", names[::-1]))]
    heads = [column["title"] for column in clients.table(runs, ["a", "b"])["columns"]]
    assert "accuracy, a" in heads and "accuracy, b" not in heads
    assert len(plotting.clients(runs).axes[1].lines) == 1


def test_ids_too_long_for_javascript_are_text_in_the_report(tmp_path):
    run = results.load(folders.run(tmp_path / "run", clients=2**60 + np.arange(folders.CLIENTS)))
    assert clients.table([run], ["a"])["rows"][1][0] == str(2**60 + 1)


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        (np.array(["bob", "ann", "eve"], object), ["ann", "bob", "eve"]),
        ([30, 10, 20], [10, 20, 30]),
        (np.array([30, 10, 20], object), [10, 20, 30]),
        ([datetime.date(2026, 1, day) for day in (3, 1, 2)], ["2026-01-01", "2026-01-02", "2026-01-03"]),
        (np.array(["2026-03", "2026-01", "2026-02"], "datetime64[M]"), ["2026-01", "2026-02", "2026-03"]),
        ([10**30, 1, 2], ["1", "2", str(10**30)]),
    ],
)
def test_ids_of_any_kind_are_numbers_or_text_that_files_can_hold(ids, kept):
    found = from_clients(X[:30], Y[:30], np.repeat(np.asarray(ids), 10)).clients
    assert found.tolist() == kept and not found.dtype.hasobject


def test_users_of_leaf_keep_their_names(tmp_path):
    people = {name: {"x": [[0.5, 0.5]] * 4, "y": [i] * 4} for i, name in enumerate(["zoe", "ann"])}
    content = {"users": [*people], "num_samples": [4, 4], "user_data": people}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "all_data.json").write_text(json.dumps(content))
    data = load("leaf", tmp_path, path="mine", test=0.25)
    found = federation(data, "natural", min_examples=(1, 0))
    assert dict(zip(found.clients.tolist(), found.y[found.train.rows[found.train.start]], strict=True)) == {
        "zoe": 0,
        "ann": 1,
    }


def test_users_without_names_keep_their_numbers():
    data = load("gaussian", users=12)
    some = federation(data, "natural", clients=5).clients
    assert len(some) == 5 and some.max() > 4 and set(some) <= set(range(12))
    assert federation(data, "iid", clients=3).clients.tolist() == [0, 1, 2]


def test_errors_name_the_client():
    whole = from_clients(X, Y, CLIENTS)
    row = int(whole.train.owned(7)[0])
    who = repr(whole.clients.tolist()[7])
    x = whole.x.copy()
    x[row] = np.nan
    with pytest.raises(InputError, match=f"row {row} of client {who} has a NaN"):
        jcfl.data.place(whole.replace(x=x))
    start = whole.train.start.copy()
    start[7] = 10_000
    with pytest.raises(InputError, match=f"client {who} has the rows"):
        jcfl.data.place(whole.replace(train=whole.train.replace(start=start)))
    few = np.where(np.arange(len(Y)) == 5, "writer-alone", CLIENTS)
    with pytest.raises(InputError, match=r"1 of 21 .* such as 'writer-alone'"):
        from_clients(X, Y, few)
    two = "expected two whole numbers: of training examples, 1 or more, and of test examples, 0 or more"
    for wrong in ((0, 1), (5,), 5):
        with pytest.raises(InputError, match=rf"^federation: min_examples: {two}, got {re.escape(str(wrong))}$"):
            from_clients(X, Y, CLIENTS, min_examples=wrong)
    with pytest.raises(InputError, match="3 ids for 20 clients"):
        jcfl.data.place(whole.replace(ids=Ids(["a", "b", "c"])))
    with pytest.raises(InputError, match="expected ids"):
        jcfl.data.place(whole.replace(ids=["a"] * 20))


def test_federations_that_differ_in_ids_alone_share_their_programs():
    one, other = (from_clients(X, Y, ids) for ids in (CLIENTS, np.char.upper(CLIENTS)))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.device_put(other).clients[0] == other.clients[0] == one.clients[0].upper()


def test_large_numbers_of_two_dtypes_stay_apart():
    """uint64 beside int64 is float64 to NumPy, which has no odd number beyond 2**53."""
    ids = 2**53 + np.repeat(np.arange(CLASSES), 12)
    found = from_clients(X, Y, ids.astype(np.uint64), x_test=X, y_test=Y, clients_test=ids)
    assert found.clients.tolist() == sorted(set(ids.tolist()))
    assert found.clients.dtype.kind == "i" or found.clients.dtype.kind == "u"
    with pytest.raises(InputError, match="of different kinds: float64 cannot hold all of them"):
        from_clients(X, Y, ids, x_test=X, y_test=Y, clients_test=ids.astype(float))


def test_numbers_beside_text_are_refused():
    """As text, 10 comes before 2, and groups in the order of numbers would go to other clients."""
    ids = np.repeat(np.arange(CLASSES), 12)
    with pytest.raises(InputError, match=r"of different kinds: int64 and text$"):
        from_clients(X, Y, ids, x_test=X, y_test=Y, clients_test=ids.astype(str))


def test_series_have_three_axes():
    with pytest.raises(InputError, match=r"series: expected examples of shape \(n, time, channels\), got 2 axes"):
        from_clients(X, Y, CLIENTS, series=True)
