import importlib.metadata

import pytest

from jcfl import cli, errors, registry
from jcfl.errors import InputError, printable
from jcfl.runs import bars

HOSTILE = "a\x1b]0;owned\x07\u202eb\x9b2J\r\udcff.npz"
SHOWN = r"a\x1b]0;owned\x07\u202eb\x9b2J\r\udcff.npz"


def test_what_a_terminal_obeys_is_written_out():
    assert printable(HOSTILE) == SHOWN
    assert printable("Zürich, 東京, 100 %") == "Zürich, 東京, 100 %"
    assert str(InputError(f"no file {HOSTILE}")) == f"no file {SHOWN}"
    assert str(InputError("one\nline")) == "one line" and len(str(InputError("a" * 10**6))) < 10_010


def test_no_command_prints_what_a_terminal_obeys(capsys):
    assert cli.complain(str(InputError(f"no file {HOSTILE}")), 2) == 2
    assert capsys.readouterr().err == f"jcfl: no file {SHOWN}\n"
    assert cli.status(["list", HOSTILE]) == 2
    assert capsys.readouterr().err.rstrip("\n").isprintable()
    bars.screen().print(f"Written to {HOSTILE}\nand more", highlight=False, markup=False)
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 3 and r"a\x1b]0;owned" in lines[0] and all(map(str.isprintable, lines))


def test_a_line_keeps_the_spaces_of_a_path(capsys):
    cli.complain("go on:\n  jcfl run --resume 'a  b'", 130)
    assert capsys.readouterr().err == "jcfl: go on: jcfl run --resume 'a  b'\n"


@pytest.mark.parametrize(
    ("line", "files", "left"),
    [
        (
            "0::/app/run",
            {"app/memory.max": "1000", "app/memory.current": "900", "app/memory.stat": "inactive_file 50"},
            150,
        ),
        ("0::/app", {"app/memory.max": "max", "app/memory.current": "900", "app/memory.stat": "x 1"}, None),
        ("0::/elsewhere", {"memory.max": "10", "memory.current": "30", "memory.stat": "x 1"}, 0),
        (
            "4:cpu,memory:/app",
            {
                "memory/app/memory.limit_in_bytes": "1000",
                "memory/app/memory.usage_in_bytes": "900",
                "memory/app/memory.stat": "total_inactive_file 300\ninactive_file 7",
            },
            400,
        ),
        ("3:cpu:/", {"memory.max": "10"}, None),
    ],
)
def test_memory_that_a_control_group_leaves(tmp_path, line, files, left):
    """The limit of any group around the process counts, and what caches files can be had back."""
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(content + "\n")
    (tmp_path / "own").write_text(line + "\n")
    found = list(errors._left_by_groups(tmp_path / "groups", tmp_path / "own"))
    assert found == ([] if left is None else [left])


def test_available_memory_is_at_most_the_machine_s(monkeypatch):
    assert 0 < errors.available_memory() < 2**50
    monkeypatch.setattr(errors, "_left_by_groups", lambda: iter([12]))
    assert errors.available_memory() == 12


def test_the_place_in_an_installed_plug_in_is_named(tmp_path, monkeypatch):
    """A plug-in is its user's program, although it is where other packages are."""
    monkeypatch.setattr(errors.sysconfig, "get_path", lambda name: str(tmp_path))
    entry = importlib.metadata.EntryPoint("har", "jcfl_har.pieces", registry.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    for package, place in (("jcfl_har", " (pieces.py, line 1)"), ("other", "")):
        file = tmp_path / package / "pieces.py"
        with pytest.raises(KeyError) as caught:
            exec(compile("{}['size']", str(file), "exec"))
        caught.value.__traceback__ = caught.value.__traceback__.tb_next
        assert errors.raised(caught.value) == f"KeyError: 'size'{place}"


def test_the_first_letters_of_a_names_words_are_what_is_meant():
    line = str(errors.unknown("option", "learning_rate", ["lr", "weight_decay"]))
    assert line == "unknown option 'learning_rate'; did you mean 'lr'? Known: lr, weight_decay"
    assert "did you mean 'part'" in str(errors.unknown("option", "parrt", ["p", "part"]))
