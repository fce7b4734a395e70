"""Scores: the loss is the task's own, and a score that a user registers is shown wherever scores are."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jcfl
from jcfl import metrics, results
from jcfl.cli import display
from jcfl.core import evaluation
from jcfl.core.rounds import initial
from jcfl.errors import InputError, Notice
from jcfl.metrics import table
from jcfl.view import plotting
from jcfl.view.report import numbers, page
from tests import tiny

cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def squared(logits, y):
    """The squared distance between class probabilities and the true class."""
    return jnp.square(jax.nn.softmax(logits) - jax.nn.one_hot(y, logits.shape[-1])).sum(-1)


def run(**given):
    return jcfl.run(tiny.federation(held_out=2), **{"model": tiny.task(), "method": "majority", "rounds": 1} | given)


def test_the_loss_is_that_of_the_task():
    """`majority` trains nothing, so a different loss changes nothing but what is reported."""
    doubled = tiny.task()._replace(loss=lambda logits, y: 2 * cross_entropy(logits, y))
    for name in ("loss", "held_out_loss"):
        np.testing.assert_allclose(run(model=doubled)[name], 2 * run()[name], rtol=1e-6)


@pytest.mark.parametrize("method", ["majority", "fedavg"])
def test_a_squared_loss_is_at_most_two(method):
    history = run(model=tiny.task()._replace(loss=squared), method=method)
    assert 0 < history["loss"][0, -1] <= 2


@pytest.fixture
def decile():
    """The accuracy that nine clients in ten exceed, as a user would register it."""

    @metrics.register_score("accuracy_p10", title="accuracy, worst decile", short="p10", unit="%", better="higher")
    def worst_decile(clients: metrics.Evaluation) -> float:
        """The accuracy that nine clients in ten exceed."""
        return float(np.nanpercentile(clients.accuracy, 10))


def test_a_score_of_ones_own_is_in_files_tables_plots_and_reports(decile, tmp_path):
    history = run(method="fedavg", rounds=2, evaluate_every=1, out=tmp_path / "run")
    own = history["accuracy_p10"]
    for i, accuracies in enumerate(history.accuracy_clients[0]):
        np.testing.assert_allclose(own[0, i], np.percentile(accuracies[:6], 10), rtol=1e-6)
        np.testing.assert_allclose(history["held_out_accuracy_p10"][0, i], np.percentile(accuracies[6:], 10), rtol=1e-6)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [line["accuracy_p10"] for line in lines] == pytest.approx(own[0].tolist())
    assert history.summary["accuracy_p10"]["mean"] == own[0, -1]
    np.testing.assert_array_equal(results.load(tmp_path / "run")["accuracy_p10"], own)

    (table,) = display.table({"fedavg": history.summary}, 200)
    (column,) = (column for column in table.columns if column.header.plain == "p10")
    assert [cell.plain for cell in column.cells] == [f"{100 * own[0, -1]:.2f} %"]
    assert "accuracy, worst decile" in [axes.get_ylabel() for axes in plotting.curves(history).axes]
    shown = numbers.scores([history], ["fedavg"])
    assert {"accuracy, worst decile", "accuracy, worst decile, held-out clients"} <= set(shown["columns"])
    assert "accuracy, worst decile" in page([results.load(tmp_path / "run")])


def test_a_sweep_chooses_by_a_score_of_ones_own(decile, tmp_path):
    given = {"model": tiny.task(), "method": "fedavg", "rounds": 2, "by": "accuracy_p10"}
    found = jcfl.sweep(tiny.federation(), {"train.lr": [0.001, 0.5]}, out=tmp_path / "sweep", **given)
    means = [one.summary["accuracy_p10"]["mean"] for one in found.histories]
    assert found.best() == np.argmax(means)
    assert "accuracy_p10_mean" in (tmp_path / "sweep" / "sweep.csv").read_text()
    (table,) = display.sweep_table(found, 200)
    assert "p10" in [column.header.plain for column in table.columns]
    assert "accuracy, worst decile" in [axes.get_ylabel() for axes in plotting.effect(found.histories).axes]


@pytest.mark.parametrize("by", ["accuracy_p11", "clusters", "held_out_seen"])
def test_a_sweep_refuses_what_has_no_best(by):
    with pytest.raises(InputError, match=f"unknown score to choose by '{by}'"):
        jcfl.sweep(tiny.federation(), {"train.lr": [0.1]}, by=by)


def test_clients_that_are_not_there_are_left_out():
    """Clients 1 has not arrived, 2 has gone, 3 is held out; the rest are one cluster of one group."""
    federation = tiny.federation().replace(
        arrive=np.where(np.arange(8) == 1, 6, 0),
        depart=np.where(np.arange(8) == 2, 4, 9),
        held_out=np.arange(8) == 3,
        groups=np.where(np.isin(np.arange(8), [1, 2, 3]), 1, 0),
    )
    counts = np.asarray(metrics.counts(np.repeat(np.arange(8), 2), np.zeros(16), np.arange(16) // 2 % 2, 8, 2))
    outcome = {"labels": np.zeros(8, int), "counts": counts, "losses": np.arange(8.0), "seen": np.arange(8) < 6}
    found = metrics.measured(outcome | {"norm": np.float32(7)}, federation, 5)
    assert (found["clusters"], found["purity"], found["ari"], found["norm"]) == (1, 1, 1, 7)
    assert found["accuracy_micro"] == np.float32(3 / 5)  # clients 0, 4 and 6 of 0, 4, 5, 6 and 7
    assert found["loss"] == np.float32((0 + 4 + 5 + 6 + 7) / 10) and found["seen"] == np.float32(3 / 5)
    assert (found["held_out_accuracy_micro"], found["held_out_loss"], found["held_out_clusters"]) == (0, 1.5, 1)
    assert "held_out_seen" not in found and "held_out_norm" not in found
    np.testing.assert_array_equal(found["accuracy_clients"], 1 - np.arange(8) % 2)


def test_predictions_that_are_not_finite_are_no_accuracy():
    """Of NaN, argmax makes the class 0: client 1 would be right by chance. A mean without it would be too high."""
    federation = tiny.federation().replace(held_out=np.arange(8) == 7, hostile=np.arange(8) == 1)
    owner, targets = np.repeat(np.arange(8), 4), np.asarray(federation.y)[np.asarray(federation.test.rows)]
    logits = np.eye(10, dtype=np.float32)[targets]
    logits[owner == 2, 3:] = -np.inf  # a probability of 0, which is no other answer
    state = initial(jax.random.key(0), {}, {}, 8)
    good = evaluation.outcome(tiny.task(), state, federation, jnp.zeros(8, int), jnp.asarray(logits))
    logits[owner == 1] = np.nan
    bad = evaluation.outcome(tiny.task(), state, federation, jnp.zeros(8, int), jnp.asarray(logits))
    assert good["unanswered"].tolist() == [0] * 8 and bad["unanswered"].tolist() == [0, 4, 0, 0, 0, 0, 0, 0]
    good, bad = (metrics.measured(jax.device_get(one), federation, 1) for one in (good, bad))
    names = [name for name, one in metrics.scores().items() if one.is_of_predictions and one.function]
    assert "accuracy_p5" in names and np.isnan([bad[name] for name in names]).all()
    np.testing.assert_array_equal(np.isnan(bad["accuracy_clients"]), np.arange(8) == 1)
    for name in ("held_out_accuracy_micro", "accuracy_honest", "clusters", "purity", "seen"):
        assert bad[name] == good[name], name


def test_a_notice_says_whose_predictions_are_not_finite():
    """Models that are finite after training are tuned locally until they are not."""
    given = {"method": {"name": "fedavg", "addons": [{"name": "finetune", "steps": 200}]}, "model": "linear"}
    train = {"lr": 0.9, "weight_decay": 5.0, "steps": 1}
    with pytest.warns(Notice, match="predictions of 8 clients are not finite") as told:
        found = jcfl.run(tiny.federation(), **given, train=train, rounds=2)
    assert len([one for one in told if "not finite" in str(one.message)]) == 1
    assert np.isnan(found["accuracy_micro"]).all() and np.isnan(found.accuracy_clients).all()
    assert "failed" not in found.summary and np.isfinite(found.state.shared["params"]["head"]["kernel"]).all()
    x = np.asarray(tiny.federation().x)[:3]
    with pytest.warns(Notice, match="the logits of 3 of 3 examples are not finite"):
        assert found.predict(x, clients=1).tolist() == [-1] * 3


def test_rounds_are_whole_numbers_under_a_title_of_their_own():
    score = metrics.score("trained_rounds")
    assert (score.title, score.short, score.unit, score.digits) == ("rounds trained", "rounds", "rounds", 0)
    summary = {"seeds": 1, "wall_s": 1.0}
    summary |= {name: {"mean": number, "std": 0.0} for name, number in (("clusters", 4.0), ("trained_rounds", 30.0))}
    (table,) = display.table({"stocfl": summary}, 80)
    cells = {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
    assert cells["clusters"] == ["4"] and cells["rounds"] == ["30"]


@pytest.mark.parametrize("place", ["terminal", "report"])
def test_no_two_columns_of_a_table_have_the_same_head(place):
    heads = [one.short for one in metrics.scores(place).values()]
    assert len(set(heads)) == len(heads)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("accuracy", "accuracy_micro"),
        ("held_out_accuracy", "held_out_accuracy_micro"),
        ("F1", "f1_micro"),
        ("adjusted_rand_index", "ari"),
        ("acuracy", "accuracy_micro"),  # accuracy_p5 was offered, whose name is nearer
        ("acuracy_p5", None),  # a name is nearer than a title
        ("clients", None),
    ],
)
def test_a_metric_is_known_by_its_title(text, meant):
    assert metrics.by_title(text, metrics.score_names()) == meant


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("err", {"better": "min"}, "score 'err': better: expected 'higher', 'lower' or None, got 'min'"),
        ("err", {"unit": "m"}, "score 'err': unit: expected '', '%', 'clients', 'clusters' or 'rounds', got 'm'"),
        ("err", {"places": "terminal"}, r"score 'err': places: expected a tuple of 'terminal', .*, got 'terminal'"),
        ("err", {"over": ("nowhere",)}, r"score 'err': over: expected a tuple of 'present', .*, got \('nowhere',\)"),
        ("err", {"over": 3}, "score 'err': over: expected a tuple of 'present'"),
        ("seed", {}, "score 'seed': files have something else under this name"),
        ("labels", {}, "score 'labels': files have something else under this name"),
        ("model_cosine", {}, "score 'model_cosine': files have something else under this name"),
        ("", {}, "a score's name: expected text, got ''"),
        (3, {}, "a score's name: expected text, got 3"),
    ],
)
def test_a_score_that_files_or_sweeps_could_not_hold_is_refused(name, options, said):
    with pytest.raises(ValueError, match=said):
        metrics.register_score(name, **options)(lambda clients: 0.0)
    assert name not in metrics.scores()


@pytest.mark.parametrize("name", ["accuracy_micro", "held_out_loss", "validation_f1_micro", "moves"])
def test_another_modules_score_is_not_replaced(name):
    """A user's score of this name would stand in all tables as if jcfl had measured it."""
    before = metrics.scores()
    with pytest.raises(ValueError, match=rf"score '{name}': jcfl\.metrics.* has already registered this name"):
        metrics.register_score(name, over=("present",))(lambda clients: 1.0)
    assert metrics.scores() == before
    for value in (0.0, 1.0):  # as a notebook does whose cell runs twice
        metrics.register_score("own_score", over=("present",))(lambda clients, value=value: value)
    assert metrics.score("own_score").name == "own_score"


def test_clients_are_scored_from_their_arrival_to_their_last_round():
    """After 3 rounds, 0 to 2, a client that arrives in round 3 comes next, and one that left in 3 was in round 2."""
    never = 2**31 - 1
    held_out, arrive, depart = np.zeros(5, bool), np.array([0, 2, 3, 0, 0]), np.array([never, never, never, 3, 2])
    assert metrics.are_scored(held_out, arrive, depart, 3).tolist() == [True, True, True, True, False]
    assert metrics.are_scored(held_out, arrive, depart, 0).tolist() == [True, False, False, True, True]


def test_a_name_that_looks_like_a_score_over_other_clients_stays_whole(monkeypatch):
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    metrics.register_score("validation_gap", unit="%", better="lower")(lambda clients: 0.0)
    one = metrics.score("validation_gap")
    assert (one.title, one.unit, one.better) == ("validation gap", "%", "lower")
    assert metrics.score("validation_loss").title.endswith(", validation examples")
