"""`jcfl bench` and the comparison with peers: what they measure, what they say of it, what they refuse."""

import importlib.util
import json
import pathlib
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import compare
from jcfl import cli
from jcfl.errors import InputError
from jcfl.fast import slabs
from jcfl.runs import bench, xla
from jcfl.runs.bench import newcomers, products, rows, work
from jcfl.view.plotting import benchmarks as charts


@pytest.fixture(scope="module")
def found():
    """Two rows, the second of which is measured as the command measures both, and the first in this process."""
    whole = bench.measured(["clusters"], quick=True)
    figures = json.loads(json.dumps(rows.engines("", True, None)))
    whole["cases"].insert(0, whole["cases"][0] | {"row": "round", "case": "", "figures": figures})
    return whole


def test_a_row_is_measured_in_a_process_of_its_own(found):
    """Both engines end at the same models, and memory is that of one process."""
    one, other = found["cases"]
    assert (one["row"], other["row"], other["case"]) == ("round", "clusters", "3")
    figures = one["figures"]
    assert figures["difference"] < 1e-5
    assert figures["times_faster"] == pytest.approx(figures["general_s"] / figures["factored_s"])
    assert min(value for name, value in figures.items() if name.endswith("_s")) > 0
    assert 0.2 < other["figures"]["peak_GiB"] < 4
    assert other["figures"]["parameters"] == 784 * 8 + 8 + 8 * 10 + 10
    assert other["figures"]["cohort"] == 4


def test_what_is_written_says_what_was_measured(found, tmp_path):
    """A table, the figures, and a chart that is a picture."""
    text, figures = bench.write(found, tmp_path / "new")
    (chart,) = charts.seconds(found, tmp_path / "new" / "bench")
    assert charts.growth(found, tmp_path / "new" / "growth") == []
    lines = text.read_text("utf-8").splitlines()
    assert "| | general, s | factored, s | times faster |" in "\n".join(lines)
    assert f"| {found['cases'][0]['figures']['factored_s']:.3g} |" in "\n".join(lines)
    assert "only show that it works" in lines[0]
    assert json.loads(figures.read_text("utf-8")) == found
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_a_case_that_fails_says_why(tmp_path, monkeypatch):
    """One that fails ends its row, not the others."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.exit('no memory')\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    failed = bench.measured(["clusters"], quick=True)
    assert "figures" not in failed["cases"][0]
    assert "no memory" in failed["cases"][0]["failed"] in bench.table(failed)
    assert charts.seconds(failed, pathlib.Path("nowhere")) == charts.growth(failed, pathlib.Path("nowhere")) == []


def test_a_row_without_meaning_here_gives_its_reason_without_the_name_of_a_class(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=")
    found = bench.measured_apart("products", "10x784x200", True, None, None)
    assert found["failed"].startswith("products: XLA has one library") and found["meaningless"]


def apart(*failing):
    """A `measured_apart` by which `products` has no meaning, the rows named fail, and all others are measured."""
    done = {"figures": {"round_s": 1.0}, "device": "cpu x 1", "load": [0.0, 0.0]}
    none = {"failed": "one library", "meaningless": True}
    failed = {"failed": "no memory"}
    return lambda row, *case: none if row == "products" else failed if row in failing else done


def test_what_has_no_meaning_here_is_left_out_of_all_rows_with_a_word(monkeypatch):
    monkeypatch.setattr(bench, "measured_apart", apart())
    whole, named = bench.measured([]), bench.measured(["products"])
    assert {case["row"] for case in whole["cases"]} == rows.ROWS.keys() - {"products"}
    assert whole["left_out"] == {"products": "one library"}
    assert bench.table(whole).endswith("\n\nLeft out: `products` (one library).")
    assert len(named["cases"]) == len(products.SHAPES) and not named["left_out"]  # who asks for it is told of each case
    assert "failed: one library" in bench.table(named) and "Left out" not in bench.table(named)


def test_the_command_fails_and_writes_nothing_if_every_case_failed(monkeypatch, tmp_path, capsys):
    """One case that is measured is enough for status 0."""
    monkeypatch.setattr(bench, "measured_apart", apart("round"))
    assert cli.status(["bench", "round", "merging", "--out", str(tmp_path)]) == 0
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert {"bench.md", "bench.json"} <= {file.name for file in before}
    capsys.readouterr()
    for names in (["round"], ["products", "round"]):
        assert cli.status(["bench", *names, "--out", str(tmp_path)]) == 1
        printed = capsys.readouterr()
        assert "failed: no memory" in printed.out and "round failed" in printed.err
        assert "Written" not in printed.out
    assert before == {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert cli.status(["bench", "round", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cases"][0]["failed"] == "no memory"


def test_clients_of_different_sizes_have_as_many_examples_as_equal_ones():
    figures = rows.sizes("ifca", True, None)
    assert figures["largest"] > 2 * 20
    assert figures["times_equal"] == pytest.approx(figures["different_s"] / figures["equal_s"])
    sizes = np.array([3, 1, 7])
    np.testing.assert_array_equal(work.made_up_federation(3, sizes).train.size, sizes)


def test_growth_is_drawn_against_what_grows(tmp_path):
    """Cases of one row with numbers that differ; those with another cohort stand in the table alone."""
    case = lambda size, seconds: {
        "row": "clients",
        "case": size,
        "figures": {"clients": int(size.split("/")[0]), "round_s": seconds, "peak_GiB": 1.0},
    }
    cases = [case("100", 0.1), case("1000", 0.2), case("1000/50", 0.9)]
    assert charts.points(cases, "clients") == [(100, 0.1, 1.0), (1000, 0.2, 1.0)]
    (chart,) = charts.growth({"cases": cases}, tmp_path / "growth")
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert charts.growth({"cases": cases[:1]}, tmp_path / "growth") == []


def test_what_cannot_be_measured_is_refused(tmp_path):
    """An unknown row, a folder without data, each with what was expected."""
    with pytest.raises(InputError, match=r"'rond'.*round"):
        bench.measured(["rond"])
    with pytest.raises(InputError, match="mnist/"):
        bench.measured(["round"], data_dir=tmp_path)
    with pytest.raises(InputError, match=r"--threads: .*, got 100000|cannot keep a process"):
        bench.measured(["round"], threads=100_000)
    assert set(rows.ROWS) == {
        name for line in (cli.measuring.bench.__doc__ or "").split("Rows: ")[1:] for name in words(line)
    }


def test_a_round_of_new_clients_is_beside_a_settled_one():
    """All eight clients of the round were new, and joined the clusters of their groups that were there."""
    figures = json.loads(json.dumps(newcomers.newcomers("", True, None)))
    assert (figures["clients"], figures["clusters"], figures["purity"]) == (8, 4, 1.0)
    assert figures["times_settled"] == figures["new_s"] / figures["settled_s"]
    assert figures["least_times_settled"] == pytest.approx(1 + figures["inner_products_s"] / figures["settled_s"])


def test_plain_inner_products_are_those_of_pairs_of_parts(monkeypatch):
    """Eight clients in tiles of three and parts of one tile: six products instead of nine, for each of four slabs."""
    monkeypatch.setattr(newcomers, "WIDTH", 8)
    monkeypatch.setattr(slabs, "PART", 1)
    monkeypatch.setitem(slabs.TILE, "cpu", 3)
    passes, (rows,) = newcomers.plain_inner_products(work.table_one(True, None))
    x = [np.asarray(part) for part in rows]
    assert [part.shape for part in x] == [(3, 8 * 784), (3, 8 * 784), (2, 8 * 784)]
    expected = [4 * x[i] @ x[j].T for i in range(3) for j in range(i + 1)]
    for found, one in zip(passes(rows), expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=0.5)


def test_both_libraries_of_products_are_measured(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if not xla.products_are_free():
        pytest.skip("this version of XLA has one library of products")
    figures = json.loads(json.dumps(products.products("10x784x200", True, None)))
    rates = figures["as_XLA_chooses_GFLOP_a_second"], figures["Eigen_GFLOP_a_second"]
    assert min(rates) > 0.01 and figures["ratio"] == pytest.approx(rates[1] / rates[0])
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=")
    with pytest.raises(InputError, match="XLA_FLAGS name one"):
        products.products("10x784x200", True, None)


def test_merging_ends_with_the_groups_and_says_how_long_each_merge_takes():
    """Three hundred clients in four groups: 296 merges, in blocks of 64."""
    figures = json.loads(json.dumps(newcomers.greedy_merging("", True, None)))
    assert (figures["clients"], figures["clusters"], figures["purity"]) == (300, 4, 1.0)
    assert figures["iterations"] % 64 == 0 and figures["iterations"] >= 296
    more = figures["merge_s"] - figures["first_pairs_s"]
    assert figures["each_merge_ms"] == pytest.approx(1e3 * more / 296)


def test_what_is_measured_in_turn_leaves_out_the_first_turn():
    called = []
    first, second = iter([9.0, 1.0, 3.0]), iter([9.0, 2.0, 5.0])
    runs = [lambda: called.append("a") or next(first), lambda: called.append("b") or next(second)]
    assert work.medians_in_turn(2, *runs) == [2.0, 3.5]
    assert "".join(called) == "ababab"


def words(text: str) -> list[str]:
    """The names of a sentence that lists them."""
    return text.split(".")[0].replace(",", " ").split()


def test_images_made_up_have_the_federation_s_shape():
    """Every client's examples are its group's, classes alike, and clients' tables are all that grows."""
    few, many = work.made_up_federation(8, 50), work.made_up_federation(3000, 50)
    assert few.x.shape == (480, 28, 28, 1)
    assert few.x.dtype == np.uint8
    assert many.x.shape[0] == work.IMAGES
    for federation in (few, many):
        for split, width in ((federation.train, 50), (federation.test, 10)):
            tables = np.asarray(split.rows).reshape(-1, width)
            assert (tables % 4 == np.asarray(federation.groups)[:, None]).all()
    np.testing.assert_array_equal(np.bincount(np.asarray(few.y)), 48)


@pytest.mark.parametrize("before", ["# R\n\nhead\n", "# R\n\n## B\n\nb\n", "# R\n\n## A\n\nold\n\n## B\n\nb\n"])
def test_a_section_takes_the_place_of_its_former_self(before):
    """It stands once, and nothing else moves."""
    once = bench.with_section(before, "A", "new\n")
    assert once.count("## A\n\nnew\n") == 1
    assert "old" not in once
    assert ("## B\n\nb\n" in once) == ("## B" in before)
    assert bench.with_section(once, "A", "new\n") == once


def test_peers_are_summarised_by_their_later_rounds():
    """Medians leave out the first round; an accuracy that is off is said to be; so is a peer that failed."""
    line = lambda name, seconds, accuracy: {
        "name": name,
        "model": "mlp",
        "threads": 2,
        "version": "1",
        "first": 9.0,
        "seconds": seconds,
        "accuracy": accuracy,
    }
    failed = {"name": "pfl", "model": "mlp", "threads": 2, "failed": "cannot be installed: no"}
    runs = [line("jcfl", [1.0, 2.0], 0.7), line("jcfl", [3.0], 0.7), line("vmap", [6.0] * 3, 0.71), failed]
    group = compare.summarised([*runs, line("FedLab", [1.0] * 3, 0.5)])["mlp", 2]
    assert (group["jcfl"]["median"], group["jcfl"]["spread"]) == (2.0, (1.0, 3.0))
    assert [row.get("apart") for row in group.values()] == [False, False, None, True]
    assert "| 3.00 |" in compare.told("vmap", group["vmap"], 2.0)
    assert "not measured: cannot be installed: no" in compare.told("pfl", group["pfl"], 2.0)


def test_a_peer_that_cannot_be_installed_or_prints_nothing_says_so(tmp_path):
    """Its row has the last line of what went wrong."""
    peer = compare.PEERS["jcfl"]
    assert compare.measured(peer, "cannot be installed: no", [], 9) == {"failed": "cannot be installed: no"}
    assert "invalid choice: 'mlpp'" in compare.measured(peer, sys.executable, ["--model", "mlpp"], 60)["failed"]


def test_the_command_prints_a_line_and_ends_with_two():
    """A row there is not."""
    result = CliRunner().invoke(cli.app, ["bench", "rond"])
    assert isinstance(result.exception, InputError)
    assert importlib.util.find_spec("jcfl.runs.bench.__main__")


def test_seeds_are_timed_with_the_options_of_a_run(monkeypatch):
    """They were compiled without, so that a GPU's kernels were others than those of a run."""
    given = []

    def made(algorithm, federation, seeds, devices=1, options=None):
        given.append(options)
        if len(given) == 3:
            raise InterruptedError

    monkeypatch.setattr(rows, "round_options", lambda context: {"one": context.resources.devices})
    for way in ("programs", "with_an_axis"):
        monkeypatch.setattr(rows.programs, way, made)
    with pytest.raises(InterruptedError):
        rows.seeds("fedavg", True, None)
    assert given == 3 * [{"one": 1}]
