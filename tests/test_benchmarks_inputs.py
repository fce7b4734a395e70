"""Scripts of the benchmarks refuse wrong input in one line, before they measure, and keep earlier figures."""

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = [file for file in sorted(FOLDER.glob("*.py")) if "__main__" in file.read_text("utf-8")]
SCRIPTS = [file.stem for file in SCRIPTS if file.stem != "gpu_rows"]  # which gpu.py alone calls


@pytest.fixture
def ask(monkeypatch, capsys):
    """`ask(script, *words)`: the exit status of a script, its last line, and all that it printed."""
    monkeypatch.syspath_prepend(FOLDER)

    def asked(script, *words):
        monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{script}.py"), *map(str, words)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(sys.argv[0], run_name="__main__")
        printed = capsys.readouterr()
        return end.value.code, (printed.err.splitlines() or [""])[-1], printed.out + printed.err

    return asked


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_refuses_an_unknown_option_in_one_line(ask, script):
    status, line, whole = ask(script, "--nonsense")
    assert (status, whole) == (2, f"{line}\n")
    assert line.startswith(f"{script}.py: No such option: --nonsense")


WRONG = [
    ("ablation foo", "unknown federation 'foo'. Known: digits, mnist"),
    ("ablation digits --only gradients", "did you mean 'gradient'?"),
    ("automatic --only foo --data-dir . --out {new}", "unknown federation 'foo'"),
    ("automatic --data-dir /nowhere --out {new}", "dataset 'mnist' not found"),
    ("automatic --data-dir . --out {text}", "is damaged"),
    ("automatic --data-dir . --out {other}", "expected what automatic.py writes"),
    ("clustering foo", "unknown setting 'foo'"),
    ("clustering rotated --low 0.9 --high 0.2", "got 0.9, 0.2 and 0.01"),
    ("clustering rotated --step 0", "--step above 0"),
    ("clustering rotated --data-dir /nowhere", "dataset 'mnist' not found"),
    ("clustering rotated --out /nowhere/one.json", "'--out': expected a file in a folder that exists"),
    ("collapse /nowhere.json", "does not exist"),
    ("collapse {text}", "is damaged"),
    ("collapse {other}", "expected what methods.py collapse writes"),
    ("compare foo", "unknown peer 'foo'"),
    ("compare jcfl --models mlpp", "did you mean 'mlp'?"),
    ("compare jcfl --threads 1,x", "--threads: expected whole numbers from 1 on with commas between them, got '1,x'"),
    ("compare jcfl --threads 0", "got '0'"),
    ("compare FedJAX --models cnn_norm --data-dir {data}", "none of these peers has such a model"),
    ("compare jcfl --data-dir /nowhere", "expected a folder with fashion_mnist/ in it, got '/nowhere'"),
    ("compare jcfl --data-dir {data} --results /nowhere.md", "does not exist"),
    ("compiled h2000", "unknown target 'h2000'; did you mean 'h200'?"),
    ("damage --kills -1", "'--kills'"),
    ("defences foo", "unknown method 'foo'"),
    ("defences fedavg --attacks scaledd", "did you mean 'scaled'?"),
    ("gpu rooof", "did you mean 'roof'?"),
    ("large whole --dir /nowhere", "'/nowhere' does not exist"),
    ("large whole --dir {data} --gb 0", "--gb: expected at least 0.0038, the size of 4 clients, got 0"),
    ("large states --dir {data} --gb 0.001", "--gb: expected at least 0.0261, the size of 4 clients, got 0.001"),
    ("large whole --dir {data} --gb nan", "got nan"),
    ("methods --name digits --data-dir /nowhere table foo", "unknown scenario 'foo'"),
    ("methods --data-dir /nowhere table", "dataset 'fashion_mnist' not found"),
    ("methods --seeds 0 table", "'--seeds'"),
    ("methods --name digits --only foo --clients 8 --groups 4 --examples 30 table", "unknown row 'foo'"),
    ("methods collapse --group-sizes 1,x", "--group-sizes: expected whole numbers"),
    ("methods collapse --method cfl", "unknown method 'cfl'"),
    ("paper /nowhere.yaml", "does not exist"),
    ("privacy foo", "unknown federation 'foo'"),
    ("questions tau --data-dir /nowhere --seeds 0", "'--seeds'"),
    ("rates {other}", "expected what methods.py rates writes"),
    ("starts {other}", "expected what methods.py starts writes"),
]


@pytest.mark.parametrize(("words", "why"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_input_is_refused_in_one_line(ask, words, why, tmp_path):
    (tmp_path / "fashion_mnist").mkdir()
    (tmp_path / "text.json").write_text("no JSON", "utf-8")
    (tmp_path / "other.json").write_text('{"other": 1}', "utf-8")
    places = {"data": tmp_path, "new": tmp_path / "new.json"}
    places |= {name: tmp_path / f"{name}.json" for name in ("text", "other")}
    before, figures = sorted(tmp_path.iterdir()), {file: file.stat().st_mtime_ns for file in FOLDER.rglob("figures/*")}
    script, *rest = words.split()
    status, line, whole = ask(script, *(word.format(**places) for word in rest))
    assert (status, whole) == (2, f"{line}\n")
    assert line.startswith(f"{script}.py: ") and why in line
    assert before == sorted(tmp_path.iterdir())
    assert figures == {file: file.stat().st_mtime_ns for file in FOLDER.rglob("figures/*")}


def test_a_comparison_in_which_nothing_was_measured_changes_no_file(monkeypatch, capsys, tmp_path):
    """One peer that is measured is enough to write all rows."""
    monkeypatch.syspath_prepend(FOLDER)
    import compare
    from inputs import run_script

    def compared(found):
        monkeypatch.setattr(compare, "measured", lambda peer, *asked: found)
        monkeypatch.setattr(sys, "argv", ["compare.py", "jcfl", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            run_script(compare.main)
        return end.value.code, capsys.readouterr().err

    (tmp_path / "data" / "fashion_mnist").mkdir(parents=True)
    (tmp_path / "figures").mkdir()
    results, file = tmp_path / "RESULTS.md", tmp_path / "figures" / "peers.json"
    results.write_text("# R\n\n## B\n\nb\n", "utf-8")
    words = ["--data-dir", tmp_path / "data", "--out", file.parent, "--results", results]
    words += ["--models", "mlp", "--threads", "1", "--repeats", "1"]
    numbers = {"seconds": [1.0, 2.0], "first": 9.0, "accuracy": 0.5, "version": "1", "others": 0.0}
    assert compared(numbers) == (0, "")
    before = {path: path.read_bytes() for path in (results, file, file.with_suffix(".png"))}
    assert json.loads(before[file])["runs"][0]["seconds"] == [1.0, 2.0] and b"1.500" in before[results]
    for more in ([], ["--add"]):
        words += more
        status, told = compared({"failed": "no memory"})
        assert (status, told) == (1, "compare.py: nothing was measured, so no file was changed\n")
        assert before == {path: path.read_bytes() for path in before}


def test_what_failed_alone_replaces_no_figures_of_a_gpu_or_of_a_target(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    import compiled
    import gpu
    from inputs import Unmeasured

    figures = {name: tmp_path / f"{name}.json" for name in ("gpu", "compiled")}
    kept = {"about": "compiled, not run", "cases": [{"target": "t4", "case": "a", "failed": "before"}]}
    for file in figures.values():
        file.write_text(json.dumps(kept), "utf-8")
    monkeypatch.setattr(gpu, "apart", lambda *asked: [{}, {"case": "", "failed": "no memory"}])
    with pytest.raises(Unmeasured):
        gpu.main(["roof"], out=tmp_path)
    one = {"target": "t4", "case": "a", "failed": "now"}
    monkeypatch.setattr(compiled.absent, "target_named", lambda name: None)
    monkeypatch.setattr(compiled.compiled, "compiled", lambda *asked, on_result: {"machine": {}, "cases": [one]})
    with pytest.raises(Unmeasured):
        compiled.main(["t4"], out=figures["compiled"])
    assert all(json.loads(file.read_text("utf-8")) == kept for file in figures.values())
    assert not (tmp_path / "gpu.md").exists()
    told = capsys.readouterr().out
    assert "failed: no memory" in told and "failed: now" in told


def test_a_command_that_a_script_calls_ends_it_without_a_traceback(ask, monkeypatch, tmp_path):
    """The command itself has said why."""
    (tmp_path / "jcfl").write_text("#!/bin/sh\nexit 2\n", "utf-8")
    (tmp_path / "jcfl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    status, line, whole = ask("paper", "--out", tmp_path / "out")
    assert (status, whole) == (1, f"{line}\n")
    assert line.startswith("paper.py: jcfl tune ") and line.endswith(" ended with status 2")
