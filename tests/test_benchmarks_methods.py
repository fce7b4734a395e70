"""The scripts behind the tables of methods, on digits and for a round or two."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from jcfl.data import federation, load
from jcfl.runs import config

FOLDER = Path(__file__).parents[1] / "benchmarks"
SMALL = ["--name", "digits", "--clients", "8", "--groups", "4", "--examples", "30", "--hidden", "4", "--rounds", "2"]


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """`ask(*arguments)`: what methods.py printed, and the figures it wrote."""
    monkeypatch.syspath_prepend(FOLDER)
    import methods

    def asked(*arguments):
        result = CliRunner().invoke(
            methods.app, [*SMALL, "--out", str(tmp_path / "out.json"), *arguments], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output, json.loads((tmp_path / "out.json").read_text("utf-8"))

    return asked


def test_table_has_a_row_for_every_method_asked_for(ask):
    text, found = ask("--only", "majority", "--only", "FedAvg", "table", "grouped_n_class")
    assert [line.split(" | ")[0] for line in text.splitlines()] == [
        "| method",
        "|---|---|---|---|---|---|---|---|---|",
        "| majority",
        "| FedAvg",
    ]
    assert found["rows"].keys() == {"majority", "FedAvg"}
    assert len(found["rows"]["FedAvg"]) == 2
    assert found["rows"]["FedAvg"][0]["accuracy_micro"] != found["rows"]["FedAvg"][1]["accuracy_micro"]


def test_every_row_is_a_method_that_can_be_run(ask):
    import attacks
    import methods

    for method in (*methods.rivals(3, 1).values(), *attacks.defences(0.8).values()):
        config.read({"scenario": "rotated", "method": method})


def test_marks_and_flips_reach_the_hostile_and_nobody_else(ask):
    import attacks

    whole = federation(load("digits"), "rotated", clients=6, groups=2, copies=False)
    found = attacks.marked(whole, [0, 5], True)
    rows = [whole.train.rows[whole.train.start[i] : whole.train.start[i] + whole.train.size[i]] for i in range(6)]
    bad, good = np.concatenate([rows[0], rows[5]]), np.concatenate([*rows[1:5], whole.test.rows])
    np.testing.assert_array_equal(found.y[bad], 9 - whole.y[bad])
    np.testing.assert_array_equal(found.y[good], whole.y[good])
    assert found.x[bad, 0, 0, 0].min() > 0 and not found.x[good, 0, 0, 0].any()
    np.testing.assert_array_equal(found.x[..., 1:, :, :], whole.x[..., 1:, :, :])


def test_scaled_updates_reach_the_average(ask):
    text, found = ask("--only", "FedAvg mean", "--seeds", "1", "attacks")
    told = found["FedAvg mean"]
    assert told.keys() == {"none", "flip", "scale", "flip and scale"}
    assert len({run[0]["accuracy"] for run in told.values()}) > 1
    assert told["none"][0]["beside"] == 6
    assert text.splitlines()[-1].startswith("| FedAvg mean | ")


def test_thresholds_say_when_clusters_split(ask):
    found = ask("--seeds", "1", "thresholds")[1]
    norms = found["norms"]["0"]
    assert norms["mean_all"][0] == norms["largest_all"][0] == 1
    assert {len(values) for values in norms.values()} == {2}
    assert all(one[0]["clusters"] == 1 + len(one[0]["rounds"]) for one in found["pairs"].values())


def test_sizes_are_sorted_and_empty_before_there_are_clusters(ask):
    import methods

    assert methods.sizes(np.array([2, 0, 2, -1]), 4) == [2, 1, 0, 0]
    assert methods.sizes(np.array([-1, -1]), 4) == []


def test_collapse_tells_the_sizes_after_every_round(ask, tmp_path):
    import methods

    assert list(methods.starters("wecfl", 10, 8)) == [f"K = {k}{cam}" for k in (5, 10, 20) for cam in ("", ", CAM")]
    text, found = ask("--seeds", "1", "--only", "K = 4, CAM", "collapse", "--warmup", "1")
    assert list(found) == ["K = 4, CAM, seed 0"]
    before, *after = found["K = 4, CAM, seed 0"]["sizes"].values()
    assert before == []  # in warm-up there are no clusters
    assert [(sum(sizes), len(sizes)) for sizes in after] == [(8, 4), (8, 4)]
    assert [line.split(":")[0] for line in text.splitlines()[2:]] == ["  round  1", "  round  2"]
    assert found["K = 4, CAM, seed 0"]["groups"] == [2, 2, 2, 2]
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"


def test_the_figure_of_collapse_has_a_point_for_each_seed_s_cluster(ask):
    import collapse

    rows = {"": [[5, 3, 0], [4, 4, 0]], ", CAM": [[4, 3, 1]]}
    found = {
        f"K = 3{kind}, seed {seed}": {"sizes": {"1": [8, 0, 0], "2": row}, "groups": [6, 2]}
        for kind, some in rows.items()
        for seed, row in enumerate(some)
    }
    axis = Figure().subplots()
    collapse.panel(axis, found, 3)
    assert [line.get_ydata().tolist() for line in axis.lines] == [[5, 3, 0], [4, 4, 0], [4, 3, 1]]
    assert axis.get_legend_handles_labels()[1] == ["true groups", "IFCA", "IFCA with CAM"]
    assert axis.patches[0].get_data().values.tolist() == [6, 2, 0]


def test_the_drawn_sizes_are_those_of_the_published_table():
    section = (FOLDER / "RESULTS.md").read_text("utf-8").split("### Does IFCA collapse?")[1].partition("Of K = 20")[0]
    drawn, title, seen = json.loads((FOLDER / "figures" / "question-collapse.json").read_text("utf-8")), "", 0
    for name, seed, last in re.findall(r"^\| (K.*?)? ?\| (\d) \|.*\| (.*?) \|$", section, re.MULTILINE):
        title, seen = name or title, seen + 1
        pairs = (part.partition(" × ") for part in last.split(", "))
        sizes = [int(size) for size, _, times in pairs for _ in range(int(times or 1))]
        found = drawn[f"{title}, seed {seed}"]["sizes"]["20"]
        assert sizes + [0] * (len(found) - len(sizes)) == found and sum(found) == 200
    assert seen == len(drawn) == 18


def test_starts_compares_the_deviations_inside_a_federation(ask, tmp_path):
    import starts

    only = ["--seeds", "1", "--only", "IFCA", "--only", "IFCA, CAM"]
    text, found = ask(*only, "starts", "--starts", "3", "--warmup", "1")
    plain, cam = found["accuracy_micro"]["IFCA"], found["accuracy_micro"]["IFCA, CAM"]
    assert np.shape(plain) == np.shape(cam) == (1, 3)
    means, deviations = zip(
        *((np.mean(one), np.sqrt(np.var(one, 1, ddof=1).mean())) for one in (plain, cam)), strict=True
    )
    cells = [f"{100 * mean:.2f} ± {100 * by:.2f}" for mean, by in zip(means, deviations, strict=True)]
    assert f"| IFCA | {cells[0]} | {cells[1]} | {deviations[1] / deviations[0]:.2f} |" in text
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"
    assert np.isfinite(starts.compared(plain, cam)).all()
    runs = np.random.default_rng(0).normal([[0.0], [5.0]], 1.0, (2, 40))  # federations differ in their means, too
    assert starts.told(runs.tolist(), 10) == f"{10 * runs.mean():.2f} ± {10 * np.sqrt(runs.var(1, ddof=1).mean()):.2f}"
    ratio, low, high, p = starts.compared(runs.tolist(), (3 * runs).tolist())
    assert (ratio, low, high) == pytest.approx((3, 3, 3)) and p < 1e-6


def test_rates_are_of_the_mean_over_the_method_s_own_rounds(ask, tmp_path):
    import rates

    text, found = ask("--only", "IFCA, CAM", "--seeds", "1", "--rounds", "3", "rates", "--warmup", "1")
    (mean,) = found["IFCA, CAM"]
    assert len(mean) == 3 and np.isfinite(mean).all()
    assert text.splitlines()[-1].startswith(f"| IFCA, CAM | {mean[0]:.3f} | {mean[2]:.3f} | ")
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"
    rounds = np.arange(1, 101)
    assert rates.slope(3 / np.sqrt(rounds)) == pytest.approx(-0.5)
    counted = rounds > 20
    assert rates.means(1.0 * rounds, counted)[:3].tolist() == [21, 21.5, 22]


def test_rates_by_horizon_have_a_training_for_each_number_of_rounds(ask, monkeypatch):
    import rates

    monkeypatch.setattr(rates, "FROM", 1)
    asked = ("--only", "WeCFL", "--seeds", "1", "--rounds", "3", "rates")
    text, found = ask(*asked, "--by-horizon")
    (means,) = found["WeCFL"]
    assert list(means) == ["1", "3"] and np.isfinite(list(means.values())).all()
    assert text.splitlines()[-1].startswith(f"| WeCFL | {means['1']:.3f} | {means['3']:.3f} | ")
    _, fixed = ask(*asked)
    (curve,) = fixed["WeCFL"]
    assert means["3"] == pytest.approx(curve[2], rel=1e-5)  # the longest training has the learning rate of the others
    assert means["1"] != pytest.approx(curve[0], rel=1e-3)


def test_grids_of_numbers_show_those_of_the_file(monkeypatch, tmp_path):
    """Of the combinations, a NaN is a combination that was refused; of the defences, a panel is an attack."""
    monkeypatch.syspath_prepend(FOLDER)
    import ablation
    import defences
    import study

    shown, numbers = [], study.numbers
    keep = lambda axis, grid, text, *range: shown.append((grid, text)) or numbers(axis, grid, text, *range)
    for module, name in ((ablation, "ablation-mnist"), (defences, "defences-fedavg")):
        rows = json.loads((FOLDER / "figures" / f"{name}.json").read_text("utf-8"))
        monkeypatch.setattr(module, "numbers", keep)
        module.draw(rows, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    (ari, text), *others = shown
    assert ari.shape == (16, 4) and np.isnan(ari).sum() == 1 and text(-1e-9) == "0.00" and text(-0.12) == "-0.12"
    assert len(others) == 1 + 6
    scaled, text = others[3]
    (krum,) = (row for row in rows if (row["defence"], row["attack"], row["share"]) == ("Krum", "scaled", 0.4))
    assert scaled.shape == (9, 5) and text(scaled[4, 4]) == f"{100 * np.mean(krum['accuracy']):.0f}"
    assert np.ptp([grid[:, 0] for grid, _ in others[1:]], 0).max() == 0, "without attackers all panels say the same"


def test_choice_says_what_and_how_sure(ask):
    text, found = ask("--seeds", "1", "--only", "ifca, accuracy", "choice", "--largest", "2")
    told = found["ifca, accuracy"]
    assert told["scores"].keys() == {"1", "2"}
    assert told["k"] == max((1, 2), key=lambda k: told["scores"][str(k)][0])
    assert 0 < told["confidence"] <= 1
    assert text.startswith(f"ifca, accuracy: k = {told['k']}, confidence {told['confidence']:.2f}")


def test_a_figure_that_is_not_there_is_a_dash(ask):
    import methods

    assert methods.cell([float("nan")] * 2, "purity") == "–"
    assert methods.cell([1.0, 3.0], "accuracy_micro") == "2.000 ± 1.414"
    assert methods.cell([1.0], "seconds") == "1"
