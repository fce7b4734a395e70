"""`jcfl compare`: the statistics against published numbers, runs matched or refused, and what is written."""

import csv
import json
import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import jcfl
from jcfl import cli, results
from jcfl.data import from_clients
from jcfl.errors import InputError
from jcfl.runs import sections
from jcfl.view import comparing, plotting, statistics
from jcfl.view.comparing import figures, matching, tables
from jcfl.view.pages import tex
from jcfl.view.report import apart, numbers
from jcfl.view.reproduction import texts
from tests import folders

DEMSAR = """.763 .768 .771 .798  .599 .591 .590 .569  .954 .971 .968 .967  .628 .661 .654 .657  .882 .888 .886 .898
.936 .931 .916 .931  .661 .668 .609 .685  .583 .583 .563 .625  .775 .838 .866 .875  1 1 1 1  .940 .962 .965 .962
.619 .666 .614 .669  .972 .981 .9751 .975  .957 .978 .946 .970"""
"""Table 6 of Demšar 2006: four classifiers on 14 data sets; it ranks one .975 before the other, and so do we."""

NOISE = np.random.default_rng(0).normal(0, 0.01, 6)
SEEDS = range(6)


def write(path, level, seeds=SEEDS, **more):
    """A run whose accuracy ends at a level with the noise of its seeds, and a little of its own."""
    name = path.name
    own = 1e-6 * len(name) * np.array([1, -1] * 3)  # so that the differences of two methods are not all equal
    grown = [[level + NOISE[seed] + own[seed] - 0.1 * (3 - j) for j in range(4)] for seed in seeds]
    return folders.run(path, list(seeds), name, accuracy_micro=grown, **more)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Three methods on two federations; one method's name has characters that LaTeX and HTML do not take."""
    top = tmp_path_factory.mktemp("compare")
    for name, ours, local in (("rotated", 0.9, 0.88), ("shifted", 0.8, 0.7)):
        settings = {"scenario": {"name": name}}
        write(top / name / "runs" / "a_b", ours, settings=settings)
        write(top / name / "runs" / "fedavg", ours + 0.0001, settings=settings)
        write(top / name / "runs" / "local", local, settings=settings)
    return top


def found(*places, **options):
    return comparing.comparison(plotting.histories(list(places)), **options)


def test_ranks_are_those_of_the_published_example():
    table = np.array(DEMSAR.split(), float).reshape(14, 4)
    ranks = statistics.ranks(table)
    assert np.allclose(ranks.mean, [3.143, 2.0, 2.893, 1.964], atol=5e-4)
    assert np.isclose(ranks.critical, 1.25, atol=5e-3) and ranks.p < 0.05
    assert np.isclose(ranks.statistic * (1 - 78 / 840), 9.28, atol=5e-3)  # the paper does not correct for ties
    assert statistics.alike(ranks.mean, 1.25) == [(ranks.mean[3], ranks.mean[0])]  # Figure 1a joins all four


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_keeps_the_order_and_lies_between_p_and_bonferroni(p):
    p = np.array(p)
    corrected, order = statistics.holm(p), np.argsort(p)
    assert (corrected >= p).all() and (corrected <= np.minimum(len(p) * p, 1)).all()
    assert (np.diff(corrected[order]) >= 0).all()
    assert np.isclose(corrected.min(), min(len(p) * p.min(), 1))


def test_the_best_method_is_found_without_an_interval(two, monkeypatch):
    """A bootstrap takes seconds with thousands of clients, and the best is found by tests alone."""
    counted, interval = [], statistics.interval
    monkeypatch.setattr(statistics, "interval", lambda *given: counted.append(given) or interval(*given))
    found(two / "rotated", names=["accuracy_micro"])
    assert len(counted) == 3 + 2 * (3 - 1), "of each method, and of each difference over seeds and over clients"


def test_few_pairs_are_tested_by_t_and_many_by_wilcoxon():
    gaps = np.arange(1.0, 7)
    assert statistics.paired_test(gaps, 1) == ("Wilcoxon", 2 / 2**6)
    name, p = statistics.paired_test(np.array([1.0, 2, 3]), 1)
    assert name == "t" and np.isclose(p, 0.0742, atol=1e-4)  # t = 2 sqrt(3) of 2 degrees of freedom
    assert statistics.paired_test(gaps, 2).name == "t"  # 2 x 2 / 2^6 > 0.05
    assert statistics.paired_test(np.zeros(8), 1).p == 1
    few = np.r_[np.zeros(12), np.ones(4)]  # most metrics of clusters are equal with most seeds
    assert statistics.paired_test(few, 1) == ("Wilcoxon", 2 / 2**4)
    # Equal differences of counts are common with few seeds: of a t test they would be p = 0, and so significant.
    assert statistics.paired_test(np.ones(2), 1) == ("Wilcoxon", 0.5)
    assert statistics.paired_test(np.ones(4), 1) == ("Wilcoxon", 2 / 2**4)
    assert statistics.paired_test(gaps[:1], 1) is None and statistics.interval(gaps[:1]) is None


@pytest.mark.parametrize("values", [2, 3, 5, 8])
def test_intervals_cover_as_often_as_they_say(values):
    samples = np.random.default_rng(1).normal(3, 2, (200, values))
    inside = [low <= 3 <= high for low, high in map(statistics.interval, samples)]
    assert 0.9 <= np.mean(inside) <= 0.99


@pytest.mark.parametrize("values", [2, 3, 5, 8])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_intervals_cover_as_often_as_they_say_with_weights(values, spread):
    """Over few clients that of a bootstrap covered the mean in half of the cases."""
    rng = np.random.default_rng(2)
    samples, weights = rng.normal(3, 2, (400, values)), np.exp(rng.normal(0, spread, (400, values)))
    inside = [low <= 3 <= high for low, high in map(statistics.interval, samples, weights)]
    assert (0.92 if values < statistics.FEW else 0.85) <= np.mean(inside) <= 0.99


def test_few_pairs_of_equal_weight_have_the_interval_of_those_without_weights():
    values = np.array([0.25, 1, 2])
    np.testing.assert_allclose(statistics.interval(values, np.full(3, 7.0)), statistics.interval(values))
    np.testing.assert_allclose(statistics.interval(values), stats.t(2, values.mean(), stats.sem(values)).interval(0.95))


@pytest.mark.parametrize(("clients", "way"), [(5, "5 clients by Student's t"), (6, "6 clients by a bootstrap")])
def test_the_note_says_how_the_interval_over_clients_was_made(clients, way):
    one, block = {"metric": "accuracy_micro"}, {"rows": [], "seeds": [0], "clients": clients, "drawn_anew": False}
    assert way in tables.differences({"baseline": "a"}, one, block | {"federation": "f"}).note


def test_a_probability_that_there_is_not_is_a_dash():
    """Friedman's test has none where all methods tie."""
    with warnings.catch_warnings(action="ignore"):
        found = statistics.ranks(np.full((3, 3), 0.5))
    assert np.isnan(found.p) and tables.p_value(found.p) == "–"
    assert "nan" not in tables.rank_note(found._asdict(), 3)


def test_intervals_weigh():
    low, high = statistics.interval(np.repeat([0.0, 1.0], 50), np.repeat([3.0, 1.0], 50))
    assert low < 0.25 < high < 0.5


def test_all_that_is_not_worse_than_the_best_is_bold(two):
    (one,) = found(two / "rotated", two / "shifted")["metrics"]
    for federation in one["federations"]:
        assert [row["best"] for row in federation["rows"]] == [False, True, False]  # all seeds agree on a hundredth
    noisy = NOISE[::-1, None] + np.full((6, 4), 0.9)
    write(two / "noisy" / "runs" / "a_b", 0.9, settings={"scenario": {"name": "noisy"}})
    scores = {"accuracy_micro": noisy, "loss": np.full((6, 4), 2.0)}
    folders.run(two / "noisy" / "runs" / "other", SEEDS, "other", {"scenario": {"name": "noisy"}}, **scores)
    accuracy, loss = found(two / "noisy", names=["accuracy_micro", "loss"])["metrics"]
    assert [row["best"] for row in accuracy["federations"][0]["rows"]] == [True, True]
    assert [row["best"] for row in loss["federations"][0]["rows"]] == [True, False]


def test_a_method_that_is_worse_by_the_same_difference_with_every_seed_is_not_bold(tmp_path):
    """No test can judge such differences: with three seeds a Wilcoxon test says p = 0.25 at best."""
    for name, ari in (("a_b", 1.0), ("other", 0.0), ("same", 1.0)):
        folders.run(tmp_path / name, SEEDS[:3], name, {}, ari=np.full((3, 4), ari))
    (one,) = found(*(tmp_path / name for name in ("a_b", "other", "same")), names=["ari"])["metrics"]
    assert [row["best"] for row in one["federations"][0]["rows"]] == [True, False, True]


def test_a_method_without_clusters_is_left_out_of_metrics_of_clusters(tmp_path):
    for name, ari in (("a_b", 1.0), ("nobody", np.nan), ("other", 0.5)):
        folders.run(tmp_path / name, SEEDS, name, {}, ari=np.full((6, 4), ari))
    result = found(*(tmp_path / name for name in ("a_b", "nobody", "other")), names=["accuracy_micro", "ari"])
    accuracy, ari = result["metrics"]
    assert [row["method"] for row in accuracy["federations"][0]["rows"]] == ["a_b", "nobody", "other"]
    assert [row["method"] for row in ari["federations"][0]["rows"]] == ["a_b", "other"]
    assert ari["without"] == ["nobody"] and not accuracy["without"]
    assert "Without this metric: nobody." in tables.scores(result, ari).note
    with pytest.raises(InputError, match="baseline by ari on"):
        found(*(tmp_path / name for name in ("a_b", "nobody", "other")), names=["ari"], baseline="nobody")
    with pytest.raises(InputError, match=r"no ari of 'nobody' on .* the first method; .* such as baseline=a_b"):
        found(*(tmp_path / name for name in ("nobody", "a_b", "other")), names=["ari"])


def test_numbers_are_right(two):
    result = found(two / "rotated", two / "shifted", names=["accuracy_micro", "loss"], baseline="local", target=0.8)
    assert result["baseline"] == "local" and [one["metric"] for one in result["metrics"]] == ["accuracy_micro", "loss"]
    one = result["metrics"][0]
    ours, _, local = one["federations"][1]["rows"]
    assert np.isclose(ours["difference"]["mean"], 0.1) and np.allclose(ours["difference"]["seeds"], 0.1, atol=1e-5)
    assert local["difference"] is None and ours["difference"]["clients"][0] < ours["difference"]["clients"][1]
    assert ours["bytes"] == 4000 * 15 * 8 and ours["passes"] == 2 * 15 * 8  # 15 clients in each of 8 rounds
    reached = (0.8 + NOISE >= 0.8).sum()
    assert ours["flop"] == 6000 * 15 * 8
    spent = {key: ours[key] for key in ("bytes", "passes", "flop")}
    assert ours["to_target"] == {"reached": reached, "rounds": 8, **spent}
    assert local["to_target"] == {"reached": 0, "rounds": None, **dict.fromkeys(spent)}
    assert set(ours["worse_off"]) == {"local", "fedavg"} and 0 < ours["worse_off"]["local"] < 1
    assert one["ranks"]["mean"] == [2, 1, 3]
    assert ours["pareto"] is False  # fedavg is better by a hundredth of a point


def test_a_baseline_is_found_by_its_name_whatever_its_label(tmp_path):
    methods = {
        "ours": {"name": "ifca", "label": "ours"},
        "average": {"name": "fedavg", "label": "average"},
        "local": {"name": "given", "label": "local", "object": "Method"},  # passed in Python
        "alone": {"name": "local", "label": "alone"},
        "fedavg": {"name": "stocfl", "label": "fedavg"},  # which is none
        "tuned": {"name": "fedavg", "label": "tuned", "addons": [{"name": "finetune"}]},  # nor is it with an add-on
    }
    for title, method in methods.items():
        write(tmp_path / title, 0.5, settings={"method": method})
    result = found(*(tmp_path / title for title in methods))
    rows = {row["method"]: list(row["worse_off"]) for row in result["metrics"][0]["federations"][0]["rows"]}
    assert rows == {title: [one for one in ("local", "alone", "average") if one != title] for title in methods}
    (costs,) = (grid for grid in tables.grids(result) if grid.title.startswith("Clients and costs"))
    assert {f"worse off than {one}, %" for one in ("local", "alone", "average")} <= {*costs.columns}


def test_the_note_about_costs_explains_the_columns_that_there_are(tmp_path):
    for name in ("ifca", "fesem", "local"):
        write(tmp_path / name, 0.5, settings={"method": {"name": name}})
    for names, explained in ((("ifca", "fesem"), False), (("ifca", "local"), True)):
        costs = list(tables.grids(found(*(tmp_path / name for name in names))))[-1]
        assert any(title.startswith("worse off") for title in costs.columns) == explained
        assert ("Worse off" in costs.note) == ("Neither counts" in costs.note) == explained
        assert ("It does not count attackers" in costs.note) != explained


def test_long_names_of_many_methods_are_inside_their_figures(tmp_path):
    names = [f"stocfl+finetune (tau=0.{i}, lam=0.05)" for i in range(16)]
    for federation in ("rotated", "shifted"):
        for i, name in enumerate(names):
            settings = {"scenario": {"name": federation}}
            write(tmp_path / federation / "runs" / name, 0.5 + 0.01 * i, settings=settings)
    drawn = dict(figures.figures(found(tmp_path / "rotated", tmp_path / "shifted")))
    for kind, one in drawn.items():
        one.draw_without_rendering()
        for axis in one.axes:
            methods = axis.get_yticklabels() if kind.startswith("differences") else []
            for text in (*axis.texts, axis.xaxis.label, *methods):
                box = text.get_window_extent()
                assert box.x0 >= 0 and box.x1 <= one.bbox.width, text
    for axis in drawn["pareto-accuracy_micro"].axes:
        assert axis.get_window_extent().height > drawn["pareto-accuracy_micro"].dpi  # an inch


def test_clients_alone_in_their_clusters_are_not_best_by_clusters(tmp_path):
    """Purity is 1 there. Such a method keeps its score, and is neither bold nor on the front nor in the ranks."""
    alone = np.tile(np.arange(folders.CLIENTS), (4, 1))
    for federation in ("rotated", "shifted"):
        settings = {"scenario": {"name": federation}}
        for i, name in enumerate(("ifca", "stocfl", "fesem", "local")):
            purity = [[0.7 + 0.1 * i + NOISE[seed] * (i + 1)] * 4 for seed in SEEDS]
            labels = alone if name == "local" else None
            place = tmp_path / federation / "runs" / name
            write(place, 0.5, settings=settings, labels=labels, purity=purity)
    one = found(tmp_path / "rotated", tmp_path / "shifted", names=["purity"])
    rows = {row["method"]: row for row in one["metrics"][0]["federations"][0]["rows"]}
    assert rows["local"]["mean"] > rows["fesem"]["mean"]
    assert [name for name, row in rows.items() if row["best"]] == ["fesem"]
    assert [name for name, row in rows.items() if row["pareto"]] == ["fesem"]
    assert set(one["metrics"][0]["ranks"]["methods"]) == {"ifca", "stocfl", "fesem"}
    assert "each client has its own: local." in next(tables.grids(one)).note
    assert {name for name, _ in figures.figures(one)} == {"differences-purity", "ranks-purity", "pareto-purity"}


def test_bold_and_the_dagger_are_of_the_same_test_whoever_competes(tmp_path):
    """A Wilcoxon test of the two that compete would find a difference, the t test of the note finds none."""
    alone, gaps = np.tile(np.arange(folders.CLIENTS), (4, 1)), np.array([0.001, 0.002, 0.003, 0.004, 0.005, 0.2])
    for name, purity in (("ifca", 0.9 + NOISE), ("fesem", 0.9 + NOISE - gaps), ("local", np.ones(6))):
        more = {"labels": alone} if name == "local" else {}
        folders.run(tmp_path / name, SEEDS, name, {}, purity=np.tile(purity[:, None], 4), **more)
    runs = [tmp_path / name for name in ("fesem", "ifca", "local")]
    one = found(*runs, names=["purity"])
    rows = {row["method"]: row for row in one["metrics"][0]["federations"][0]["rows"]}
    assert rows["ifca"]["difference"]["test"] == "t" and rows["ifca"]["difference"]["p_holm"] > 0.05
    assert rows["ifca"]["best"] and rows["fesem"]["best"] and not rows["local"]["best"]
    note = next(tables.grids(one)).note
    assert "corrected by Holm, for bold over the tests against the best method, for † over those against fesem" in note
    histories = plotting.histories(runs)
    assert not numbers.best_of(histories, "purity", numbers.conditions(histories)), "the report's bold is the same"


def test_clients_weigh_what_they_hold_in_the_last_round(tmp_path):
    """Where data drift, that is not what they hold at first; who has left then weighs nothing.

    The last seed ends training before that.
    """
    turned = np.roll(np.arange(folders.CLIENTS), 1)
    held = folders.federation() | {"drift_rounds": np.array([7]), "drift_holds": np.stack([np.sort(turned), turned])}
    held["depart"][3] = 7
    held["test"][:, 0] = np.arange(folders.CLIENTS)
    trained = [[2, 4, 6, 8]] * 5 + [[2, 4, 6, 6]]
    (one,) = plotting.histories(write(tmp_path / "fedavg", 0.5, held=held, trained_rounds=trained))
    expected = held["test"].sum(1)[turned]
    expected[[3, 5]] = 0  # 5 is held out
    examples = matching.entry(one).examples
    np.testing.assert_array_equal(examples[0], expected)
    np.testing.assert_array_equal(examples[5], np.where(np.arange(folders.CLIENTS) == 5, 0, held["test"].sum(1)))


def test_seeds_of_one_method_may_be_in_several_folders(two, tmp_path):
    for part in ([0, 1, 2], [3, 4, 5]):
        for name, level in (("a_b", 0.9), ("local", 0.88)):
            write(tmp_path / str(part[0]) / "runs" / name, level, part, settings={"seed": part[0]})
    rows = found(tmp_path / "3", tmp_path / "0")["metrics"][0]["federations"][0]["rows"]
    whole = found(two / "rotated")["metrics"][0]["federations"][0]["rows"]
    assert [row["values"] for row in rows] == [whole[0]["values"], whole[2]["values"]]
    write(tmp_path / "ifca", 0.8, settings={"method": {"name": "ifca", "clusters": 2}})
    write(tmp_path / "more" / "ifca", 0.8, settings={"method": {"name": "ifca", "clusters": 4}})
    rows = found(tmp_path / "ifca", tmp_path / "more" / "ifca")["metrics"][0]["federations"][0]["rows"]
    assert [row["method"] for row in rows] == ["ifca (clusters=2)", "ifca (clusters=4)"]
    for name, clusters in (("rotated", 2), ("shifted", 4)):  # of several federations, each has its own number
        settings = {"scenario": {"name": name}, "method": {"name": "ifca", "clusters": clusters}}
        write(tmp_path / name / "ifca", 0.8, settings=settings)
    runs = [top / name for name in ("rotated", "shifted") for top in (two, tmp_path)]
    runs = [run / "ifca" if run.parent == tmp_path else run for run in runs]
    assert found(*runs)["metrics"][0]["ranks"]["methods"] == ["a_b", "fedavg", "local", "ifca"]


def drawn(path, level, seed, more=0, settings=None, **changes):
    """A run of one seed, which drew the federation too: every client holds an example more for each seed."""
    held = folders.federation() | {"test": folders.federation()["test"] + seed + more} | changes
    scenario = {"scenario": {"name": "rotated", "seed": seed}, "seed": seed}
    return write(path, level, [seed], settings=scenario | (settings or {}), held=held)


def test_seeds_may_have_a_federation_each(tmp_path):
    for seed in SEEDS:
        for name, level in (("a_b", 0.9), ("local", 0.88)):
            drawn(tmp_path / f"{name}-{seed}" / name, level, seed)
    places = [tmp_path / f"{name}-{seed}" / name for seed in SEEDS for name in ("a_b", "local")]
    result = found(*places)
    (metric, *_), (block,) = result["metrics"], matching.blocks(plotting.histories(places))
    (federation,) = metric["federations"]
    assert federation["seeds"] == list(SEEDS) and federation["drawn_anew"]
    assert federation["federation"] == "made up, rotated"
    rows = {row["method"]: row for row in federation["rows"]}
    assert np.allclose(rows["a_b"]["values"], 0.9 + NOISE)
    clients = comparing.clients(block)
    ours, local = (comparing.of_clients(block, clients[name]) for name in ("a_b", "local"))
    assert ours.shape == (len(SEEDS) * (folders.CLIENTS - 1),)  # one is held out
    assert rows["a_b"]["worse_off"]["local"] == np.mean(ours < local)
    assert "of each of 6 federations, one a seed" in "".join(grid.note for grid in tables.grids(result))
    drawn(tmp_path / "other" / "local", 0.8, 0, more=1)
    with pytest.raises(InputError, match="their clients hold other examples, though both were drawn by the seed 0"):
        found(places[0], places[2], tmp_path / "other" / "local", places[3])
    with pytest.raises(InputError, match="a_b has the seeds 0, 1, local the seeds 0"):
        found(places[0], places[2], places[1])


def tuned(lr, **more):
    """The settings of a run whose learning rate was searched."""
    search = {"values": {"train.lr": lr}, "sampler": "random", "trials": 8, "by": "validation_accuracy_micro"}
    return {"train": {"lr": lr}, "chosen_by": search | more}


def test_what_was_tuned_by_equal_effort_may_differ(tmp_path):
    write(tmp_path / "a_b", 0.9, settings=tuned(0.1))
    write(tmp_path / "other", 0.8, settings=tuned(0.5))
    result = found(tmp_path / "a_b", tmp_path / "other")
    assert result["metrics"][0]["federations"][0]["tuned"] == {"a_b": {"train.lr": 0.1}, "other": {"train.lr": 0.5}}
    note = next(iter(tables.grids(result))).note
    assert "Tuned for every method: train.lr; 8 random trials by validation_accuracy_micro." in note
    write(tmp_path / "late" / "other", 0.8, [5], settings=tuned(0.2))
    with pytest.raises(InputError, match="other values than the same method elsewhere: train"):
        found(tmp_path / "a_b", tmp_path / "other", tmp_path / "late" / "other")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (tuned(0.5, trials=16), r"unequal effort, a_b with 8 random .* other with 16 random trials"),
        ({"train": {"lr": 0.1}}, "unequal effort, .* other with no search"),
        (tuned(0.5) | {"participation": 1}, r"participation is 0\.5 here, 1 in"),
        (tuned(0.5) | {"train": {"lr": 1}}, r"chose train\.lr = 0\.5, and the run has 1;"),
    ],
)
def test_tuning_that_does_not_match_is_refused(settings, said, tmp_path):
    write(tmp_path / "a_b", 0.9, settings=tuned(0.1))
    write(tmp_path / "other", 0.8, settings=settings)
    with pytest.raises(InputError, match=said):
        found(tmp_path / "a_b", tmp_path / "other")


def test_a_run_whose_last_evaluations_are_lost_is_not_complete(tmp_path):
    write(tmp_path / "a_b", 0.9)
    lines = (tmp_path / "a_b" / "metrics.jsonl").read_text("utf-8").splitlines(keepends=True)
    rounds = [json.loads(line)["round"] for line in lines]
    seed = json.loads(lines[-1])["seed"]
    (tmp_path / "a_b" / "checksums.json").unlink()  # which would say it, too
    for kept, said in (
        ([line for line, round in zip(lines, rounds, strict=True) if round < 8], "metrics up to round 6 of 8"),
        (lines[:-1], f"no metrics of seed {seed} after round 8"),
    ):
        (tmp_path / "a_b" / "metrics.jsonl").write_text("".join(kept), "utf-8")
        (run,) = plotting.histories([tmp_path / "a_b"])
        assert numbers.state(run) == ("unfinished", said)


def test_files_are_written(two, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["compare", two / "rotated", two / "shifted", "--out", out, "--target", "0.75"]
    assert cli.status([str(word) for word in words]) == 0
    printed = capsys.readouterr().out
    assert "6 seeds" in printed and "Wilcoxon" in printed and "Friedman" in printed and "not reached" in printed
    page, tex, html, lines = ((out / f"compare.{kind}").read_text("utf-8") for kind in ("md", "tex", "html", "csv"))
    assert re.search(r"\| fedavg \| \*\*90\.\d\d ± 0\.\d\d†\*\* \|", page)
    assert all(rule in tex for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\textbf{", r"a\_b & "))
    assert not re.search(r"(?<!\\)[%_#]", tex.split("\n", 1)[1]) and tex.count(r"\begin{table}") == 5
    assert "://" not in html and html.count("data:image/svg+xml") == 3 and "<script" not in html
    table = list(csv.DictReader(lines.splitlines()))
    assert len(table) == 6 and np.isclose(float(table[2]["difference.mean"]), -0.02)
    for name in ("differences", "ranks", "pareto"):
        assert b"/FontFile2" in (out / f"{name}-accuracy_micro.pdf").read_bytes()
        assert (out / f"{name}-accuracy_micro.png").exists()
    assert cli.status(["compare", str(two / "rotated"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"][0]["ranks"] is None


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"settings": {"train": {"lr": 0.5}}}, {}, r"train\.lr is None here, 0\.5 in .*other"),
        ({"seeds": [0, 1]}, {}, "a_b has the seeds 0, 1, 2, 3, 4, 5, other the seeds 0, 1;"),
        ({"complete": False}, {}, "not complete.*--resume"),
        ({"settings": {"scenario": {"name": "iid"}}}, {}, r"only a_b.*scenario\.name is rotated here, iid in"),
        ({"groups": folders.GROUPS[::-1]}, {}, "fingerprint is"),
        ({}, {"names": ["acuracy_micro"]}, "did you mean 'accuracy_micro'"),
        (
            {"accuracy_p5": np.full((6, 4), 0.5)},
            {"names": ["accuracy"]},
            "unknown metric 'accuracy'; did you mean 'accuracy_micro'",
        ),
        ({"ari": np.full((6, 4), np.nan)}, {"names": ["ari"]}, "other has no ari after its last round"),
        ({}, {"names": ["clusters"]}, "clusters has no better values .* expected a metric .* purity"),
        ({}, {"baseline": "fedavgg"}, "Known: a_b, other"),
        ({}, {"target": 90.0}, "expected a share of accuracy_micro such as 0.9, got 90"),
        ({}, {"names": ["loss"], "target": np.nan}, "target: expected a finite number, got nan"),
        ({}, {"names": ["loss"], "target": np.inf}, "target: expected a finite number, got inf"),
    ],
)
def test_what_does_not_match_is_refused(changes, options, said, tmp_path):
    write(tmp_path / "a_b", 0.9)
    write(tmp_path / "other", 0.9, **changes)
    with pytest.raises(InputError, match=said) as error:
        found(tmp_path / "a_b", tmp_path / "other", **options)
    assert "\n" not in str(error.value)


def test_a_run_given_twice_or_alone_is_refused(two, tmp_path, capsys):
    with pytest.raises(InputError, match="a_b has the seed 0 more than once"):
        found(two / "rotated", two / "rotated" / "runs" / "a_b")
    with pytest.raises(InputError, match="only local was run on this federation"):
        found(two / "rotated" / "runs" / "local")
    (tmp_path / "file").touch()
    assert cli.status(["compare", str(two / "rotated"), "--out", str(tmp_path / "file")]) == 2
    assert "expects a folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["compare"], ["plot", "--figure", "curves"], ["report"]], ids=lambda words: words[0])
def test_an_empty_name_of_a_folder_is_refused(two, tmp_path, capsys, monkeypatch, words):
    """It would be the current folder."""
    monkeypatch.chdir(tmp_path)
    name, *more = words
    assert cli.status([name, str(two / "rotated"), *more, "--out", ""]) == 2
    assert "expected a path, got an empty text" in capsys.readouterr().err and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("words", [["show", "quickstart"], ["bench", "nothing"]], ids=lambda words: words[0])
def test_an_empty_name_is_refused_before_all_else(capsys, words):
    assert cli.status([*words, "--out", ""]) == 2
    assert "expected a path, got an empty text" in capsys.readouterr().err


def test_one_seed_says_so(tmp_path):
    for name in ("a_b", "other"):
        write(tmp_path / name, 0.9, [0])
    grids = list(tables.grids(found(tmp_path / "a_b", tmp_path / "other")))
    assert "no test" in grids[0].note and not any(cell.bold for row in grids[0].rows for cell in row)
    assert [cell.text for cell in grids[1].rows[0][1:]][1] == "–" and " to " in grids[1].rows[0][3].text


def test_clients_weigh_as_in_the_metric(tmp_path):
    """Of a run that was trained, where clients are held out and leave: those here are what the metric is a mean of."""
    words = "quickstart --set scenario.clients=12 scenario.held_out=0.2 model=linear method=majority compare=[fedavg]"
    words += f" train.epochs=1 rounds=2 --seeds 2 -q --out {tmp_path / 'run'}"
    assert cli.status(["run", *words.split(), "--set", "scenario.departures={1: 0.4}"]) == 0
    (block,) = matching.blocks(plotting.histories([tmp_path / "run"]))
    for name, weigh in comparing.WEIGHTS.items():
        tested = comparing.tested(block)[0]  # of either seed, which share the federation
        weights = weigh(block.entries[0].examples[0, tested])
        for one in block.entries:
            mean = comparing.clients(block)[one.method][:, tested] @ weights / weights.sum()
            assert np.allclose(mean, one.scores[name][:, -1], atol=1e-6)


def test_options_that_differ_between_the_seeds_of_a_method_are_refused(tmp_path):
    """A federation for every seed: each seed is alone on its own, where a second set of options is not seen."""
    for seed, clusters in ((0, 2), (1, 4)):
        method = {"method": {"name": "ifca", "clusters": clusters, "tau": seed}}
        drawn(tmp_path / f"ifca-{seed}" / "ifca", 0.9, seed, settings=method)
        drawn(tmp_path / f"local-{seed}" / "local", 0.8, seed)
    places = [tmp_path / f"{name}-{seed}" / name for seed in (0, 1) for name in ("ifca", "local")]
    with pytest.raises(
        InputError, match=r"other options than the same method elsewhere: method\.clusters is 2 here, 4"
    ):
        found(*places)
    drawn(tmp_path / "again" / "ifca", 0.9, 1, settings={"method": {"name": "ifca", "clusters": 2, "tau": 1}})
    found(*places[:2], tmp_path / "again" / "ifca", places[3])  # tau was auto: it is decided for each federation


def test_a_run_that_was_continued_and_stopped_is_not_complete(tmp_path):
    write(tmp_path / "a_b", 0.9)
    write(tmp_path / "other", 0.8, settings={"rounds": 600})  # its summary is of the 8 rounds before
    (run,) = plotting.histories([tmp_path / "other"])
    assert numbers.state(run) == ("unfinished", "metrics up to round 8 of 600")
    with pytest.raises(
        InputError, match=r"other: the run is not complete and cannot be compared; go on with `jcfl run"
    ):
        found(tmp_path / "a_b", tmp_path / "other")


def test_each_of_several_federations_has_its_own_tested_clients(tmp_path):
    """Client i of one seed is not client i of another one, and may be held out there."""
    outside = [np.arange(folders.CLIENTS) >= 15, np.arange(folders.CLIENTS) < 15]
    for seed in (0, 1):
        for name, level in (("a_b", 0.9), ("local", 0.8)):
            drawn(tmp_path / f"{name}-{seed}" / name, level, seed, held_out=outside[seed])
    places = [tmp_path / f"{name}-{seed}" / name for seed in (0, 1) for name in ("a_b", "local")]
    (federation,) = found(*places)["metrics"][0]["federations"]
    assert federation["clients"] == 15
    accuracies = {
        name: np.stack(
            [plotting.histories([tmp_path / f"{name}-{seed}" / name])[0].accuracy_clients[0, -1] for seed in (0, 1)]
        )
        for name in ("a_b", "local")
    }
    ours, local = (np.stack([values[0, :15], values[1, 15:]]) for values in accuracies.values())
    row, other = federation["rows"]
    assert np.isclose(row["worst_decile"], np.percentile(ours, 10, axis=1).mean())
    assert np.isclose(row["worse_off"]["local"], (ours < local).mean())
    low, high = other["difference"]["clients"]
    assert low < (local - ours).mean() < high


def test_federations_of_several_sizes_count_equally_in_the_interval_over_clients(tmp_path):
    """As in the difference, which is a mean over seeds; the clients of the larger federation would decide alone."""
    held = folders.federation()
    for seed, examples in ((0, 1), (1, 100)):
        for name, level in (("a_b", 0.9), ("local", 0.8)):
            more = {"test": np.full_like(held["test"], examples), "train": held["train"] + seed}
            drawn(tmp_path / f"{name}-{seed}" / name, level, seed, **more)
    places = [tmp_path / f"{name}-{seed}" / name for seed in (0, 1) for name in ("a_b", "local")]
    runs = plotting.histories(places)
    for run in runs:  # `local` is better in the small federation, and worse by as much in the large one
        run.accuracy_clients[0, -1] = 0.5 + 0.25 * (run.name == "local") * (-1) ** run.seeds[0]
    (federation,) = comparing.comparison(runs)["metrics"][0]["federations"]
    low, high = federation["rows"][1]["difference"]["clients"]
    assert low < 0 < high


def test_no_client_in_all_of_them_is_no_reason_to_fail(tmp_path):
    held = folders.federation() | {"held_out": np.ones(folders.CLIENTS, bool)}
    for name, level in (("a_b", 0.9), ("local", 0.8)):
        write(tmp_path / name, level, held=held)
    result = found(tmp_path / "a_b", tmp_path / "local")
    row, other = result["metrics"][0]["federations"][0]["rows"]
    assert (
        row["worst_decile"] is None and row["worse_off"] == {"local": None} and other["difference"]["clients"] is None
    )
    assert all("nan" not in cell.text for grid in tables.grids(result) for line in grid.rows for cell in line)


@pytest.mark.parametrize("runs", [1, 2])
def test_costs_are_those_of_the_rounds_that_were_trained(runs, tmp_path):
    """Of 8 rounds 4 are a warm-up, which costs as FedAvg's in each run; one seed ended training after round 5."""
    more = {"warmup_rounds": 4} | ({"warmup_communication": runs, "warmup_computation": runs} if runs > 1 else {})
    trained = [[2, 4, 6, 8], [2, 4, 5, 5]]
    write(tmp_path / "a_b", 0.9, [0, 1], costs=more, trained_rounds=trained)
    write(tmp_path / "local", 0.8, [0, 1])
    ours, local = found(tmp_path / "a_b", tmp_path / "local", target=0.65)["metrics"][0]["federations"][0]["rows"]
    early = 4 * runs
    after = (2 * 8 - early) / 4  # computation, after the warm-up, so that the mean over all rounds is 2
    assert ours["passes"] == 15 * np.mean([early + after * 4, early + after]) and local["passes"] == 15 * 2 * 8
    late = (4000 * 8 - 2000 * early) / 4  # bytes; a model has 1000, and goes down and up
    assert ours["bytes"] == 15 * np.mean([2000 * early + late * 4, 2000 * early + late])
    assert ours["to_target"]["rounds"] == 4 and ours["to_target"]["passes"] == 15 * early
    (run,) = plotting.histories([tmp_path / "a_b"])
    assert numbers.total(run) == ours["bytes"]


def test_what_a_search_left_to_be_decided_may_be_any_value(tmp_path):
    settings = tuned(0.1) | {"method": {"name": "a_b", "tau": 0.25}}
    settings["chosen_by"]["values"]["method.tau"] = "auto"
    write(tmp_path / "a_b", 0.9, settings=settings)
    write(tmp_path / "other", 0.8, settings=tuned(0.5))
    assert found(tmp_path / "a_b", tmp_path / "other")["baseline"] == "a_b"


def test_rounding_of_scores_breaks_no_ties():
    """Scores are float32 shares of a test set: equal differences of counts differ in the eighth digit."""
    counts = np.array([1, 6, -2, 3, 4, 6, 2])
    base = np.array([300, 317, 322, 301, 330, 311, 309])
    share = lambda counts: (counts / 360).astype(np.float32).astype(float)
    gaps = statistics.gap(share(base + counts), share(base))
    assert statistics.paired_test(gaps, 1).p == statistics.paired_test(counts.astype(float), 1).p
    assert statistics.paired_test(statistics.gap(share(base + 3), share(base)), 9) == ("Wilcoxon", 2 / 2**7)
    scores = np.float32([[315, 334, 322, 301, 330]]).T / np.float32(360)
    means = [scores[order].astype(float).mean() for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3])]
    assert statistics.ranks(np.array([[*means, 0.5], [*means[::-1], 0.5]])).mean.tolist() == [1.5, 1.5, 3]


def test_rounding_of_means_keeps_no_method_off_the_pareto_front(tmp_path):
    scores = [0.1, 0.2, 0.3]
    for name, last in (("a_b", scores), ("local", scores[::-1])):
        folders.run(tmp_path / name, range(3), name, accuracy_micro=[[one] * 4 for one in last])
    rows = found(tmp_path / "a_b", tmp_path / "local")["metrics"][0]["federations"][0]["rows"]
    assert rows[0]["mean"] != rows[1]["mean"], "they differ in the last digit"
    assert [row["pareto"] for row in rows] == [True, True]


def test_a_federation_from_python_has_its_own_name(tmp_path):
    settings = {"data": {"name": "given"}, "scenario": {"name": "given", "federation": "hospitals"}}
    for name in ("a_b", "other"):
        write(tmp_path / name, 0.9, settings=settings)
    result = found(tmp_path / "a_b", tmp_path / "other")
    assert result["metrics"][0]["federations"][0]["federation"] == "hospitals"
    assert next(iter(tables.grids(result))).columns == ["hospitals"]


@pytest.mark.parametrize(
    ("seeds", "tests", "said"),
    [
        (1, 1, "With one seed there is no test and no interval over seeds, and nothing is bold."),
        (2, 1, "With 2 seeds and 1 test, the smallest possible p-value of a Wilcoxon signed-rank test is 0.5 after"),
        (2, 2, "With 2 seeds and 2 tests, the smallest possible p-value of a Wilcoxon signed-rank test is 1 after"),
        (2, 2, " Holm's correction. Therefore p is from a paired t test, which assumes normal differences."),
        (10, 3, "With 10 seeds, p is from a two-sided Wilcoxon signed-rank test of the differences seed by seed."),
    ],
)
def test_the_note_says_which_test_it_is(seeds, tests, said):
    assert said in tables.told_test(seeds, tests)


@pytest.mark.parametrize(("metric", "said"), [("accuracy_micro", "higher accuracy"), ("loss", "lower loss")])
def test_the_note_says_what_is_on_the_front(two, metric, said):
    note = list(tables.grids(found(two / "rotated", names=[metric])))[-1].note
    front = f"On the Pareto front: no other method with at most as many bytes has a {said}, and none with fewer bytes"
    assert f"{front} has the same." in note


def test_attackers_are_not_served(tmp_path):
    """The worst decile and the clients worse off are those of honest clients."""
    hostile = np.arange(folders.CLIENTS) % 3 == 0
    held = folders.federation(folders.GROUPS) | {"hostile": hostile}
    for name, level in (("ifca", 0.9), ("fedavg", 0.8)):
        write(tmp_path / "runs" / name, level, held=held)
    rows = found(tmp_path)["metrics"][0]["federations"][0]["rows"]
    found_runs = {one.name: one.accuracy_clients[:, -1] for one in plotting.histories([tmp_path])}
    ours, other = found_runs["ifca"], found_runs["fedavg"]
    hostile |= held["held_out"] | (held["test"].sum(1) == 0)  # neither are these served
    worst = {row["method"]: row["worst_decile"] for row in rows}
    for name, accuracies in (("ifca", ours), ("fedavg", other)):
        assert np.isclose(worst[name], np.percentile(accuracies[:, ~hostile].astype(float), 10, axis=1).mean())
    served = (ours.astype(float).mean(0) < other.astype(float).mean(0))[~hostile].mean()
    assert np.isclose(next(row for row in rows if row["method"] == "ifca")["worse_off"]["fedavg"], served)


def test_equal_means_leave_nobody_worse_off(two):
    """0.1 and 0.9 are 0.49999998 on average in single precision, and no less than 0.5 and 0.5."""
    block = matching.blocks(plotting.histories([two / "rotated"]))[0]
    seeds, clients = block.entries[0].clients.shape
    half = np.where(np.arange(seeds)[:, None] % 2, 0.9, 0.1).astype(np.float32).astype(float) * np.ones(clients)
    assert comparing.worse_off(block, half, np.full((seeds, clients), 0.5)) == 0
    assert comparing.worse_off(block, half - 0.01, np.full((seeds, clients), 0.5)) == 1


def test_a_number_that_is_rounded_to_zero_has_no_sign():
    """The adjusted Rand index of clusters at random is as often below zero as above it."""
    row = {"mean": -1e-5, "std": 0.0, "difference": None, "best": False}
    assert tables.score("ari", row).text == results.cell("ari", row, 2) == "0.000 ± 0.000"
    assert tables.signed("ari", -1e-5) == tables.signed("ari", 1e-5) == "0.000"
    assert (tables.signed("ari", -0.001), tables.signed("ari", 0.001)) == ("−0.001", "+0.001")
    assert texts.number(row, 1) == "0.0 ± 0.0" and apart.number(-1e-5) == "0.00"
    gap = {"ours": {"mean": -0.02, "interval": [-0.04, 0.01]}, "digits": 1}
    assert texts.gap(gap) == "0.0 (0.0 to 0.0)"


def test_one_seed_has_no_deviation_and_no_test(tmp_path):
    for name in ("ifca", "fedavg"):
        write(tmp_path / "runs" / name, 0.9, seeds=[0])
    scores, differences, _ = tables.grids(found(tmp_path))
    assert scores.note == "With one seed there is no test and no interval over seeds, and nothing is bold."
    note = differences.note
    assert "intervals of 95 % over 29 clients by a bootstrap" in note and "Student" not in note


def test_greek_letters_are_latex():
    assert tables.capital("ε of privacy") == "ε of privacy" and tables.capital("accuracy") == "Accuracy"
    assert tex("ε, δ, σ², β, μ") == r"$\varepsilon$, $\delta$, $\sigma$$^2$, $\beta$, $\mu$"


def test_runs_on_other_examples_are_on_another_federation(tmp_path):
    """Though the clients have as many examples of every label."""
    rng = np.random.default_rng(0)
    x, y, who = rng.random((40, 3), np.float32), np.arange(40) % 2, np.repeat(np.arange(4), 10)
    for name, examples in {"one": x, "two": 3 - x}.items():
        given = {"method": "majority", "model": "linear", "rounds": 1, "out": tmp_path / name}
        jcfl.run(from_clients(examples, y, who), **given)
    one, two = (matching.entry(results.load(tmp_path / name)) for name in ("one", "two"))
    assert one.federation != two.federation
    assert numbers.federation(results.load(tmp_path / "one")) != numbers.federation(results.load(tmp_path / "two"))


def test_what_a_run_fills_in_to_fit_the_memory_does_not_matter():
    assert set(sections.FITTED) <= set(matching.FREE)
