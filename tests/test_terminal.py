"""The terminal: pages about pieces, their example commands, completion, and progress where there is no screen."""

import io
import json
import os
import shlex
from types import SimpleNamespace

import pytest
from rich.console import Console

from jcfl import cli, metrics, registry
from jcfl.cli import display
from jcfl.errors import InputError
from jcfl.results import Record
from jcfl.runs import automatic, bars, config, replicas
from jcfl.runs.loop import Progress
from jcfl.runs.plan import planned
from jcfl.view import facts, options

registry.load()
PIECES = [(kind, name) for kind in facts.KINDS for name in registry.names(kind)]
SCORES = [("score", name) for name in facts.names("score")]


@pytest.fixture
def call(capsys, monkeypatch):
    """Run a command, as wide as a line needs: (status, what it printed, what it complained of)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        return cli.status(list(words)), *capsys.readouterr()

    return run


def console(**options):
    return Console(file=io.StringIO(), force_terminal=True, width=100, **options)


@pytest.mark.parametrize(("kind", "name"), PIECES + SCORES)
def test_every_piece_has_a_page_with_all_its_options(call, kind, name):
    status, printed, complaint = call("list", name)
    assert (status, complaint) == (0, "")
    one = facts.facts(kind, name)
    assert f"{name} ({kind})" in printed
    assert one.example in printed
    assert one.line.split()[0] in printed
    for parameter in registry.parameters(registry.find(kind, name)) if kind != "score" else ():
        assert f"  {parameter.name} " in printed


@pytest.mark.parametrize("name", [name for _, name in SCORES])
def test_a_scores_example_measures_it(name):
    """What a run measures only if it is asked to has the keys in its command that ask for it."""
    _, command, preset, *words = shlex.split(facts.example("score", name))
    assert preset == "quickstart"
    one = metrics.scores()[name]
    if one.function is not None and "attacked" not in one.over:
        assert (command, words[-2:]) == ("sweep", ["--by", name]) if one.better else (command, words) == ("run", [])
        return
    found = config.read(preset, [word for word in words if word != "--set"])
    asks = {
        "objective": found.method.name == "stocfl",
        "epsilon": found.privacy.options["clip"] is not None,
        "trained_rounds": found.stop.name == "converged",
        "accuracy_shared": found.evaluate_shared,
        "dropped_clients": found.on_divergence == "drop_client",
        "reset_clusters": found.on_divergence == "drop_cluster",
        "neurons": found.method.options.get("growth") and found.model.options["spare"],
    }
    asks |= dict.fromkeys(("excluded_hostile", "excluded_honest"), "exclude" in found.method.title)
    of_sum = found.evaluate_quality and "cam" in found.method.title
    asks |= dict.fromkeys(("partial_diversity", "squared_gradient_shared"), of_sum)
    usual = found.evaluate_quality if "quality" in one.places else found.attack.name != "none"
    assert command == "run" and asks.get(name, usual), facts.example("score", name)


@pytest.mark.parametrize(("kind", "name"), PIECES)
def test_every_example_is_a_configuration(monkeypatch, capsys, kind, name):
    reached = []
    monkeypatch.setattr(cli.training, "train", lambda config, *rest: reached.append(config))
    monkeypatch.setattr("jcfl.runs.plan.federation_of", lambda config: reached.append(config) or stop())
    status = cli.status(shlex.split(facts.facts(kind, name).example)[1:])
    assert (status, capsys.readouterr().err) in ((0, ""), (2, "jcfl: reached\n"))
    assert name in reached[0].text()


def stop():
    raise InputError("reached")


@pytest.mark.parametrize("name", registry.names("method"))
def test_every_methods_example_can_be_planned(name):
    words = shlex.split(facts.example("method", name))
    plan = planned(config.read("quickstart", [*words[words.index("--set") + 1 :], "compare=[]", "model.hidden=4"]))
    assert list(plan.algorithms) == [name]


def test_kinds_presets_and_mistakes(call):
    _, printed, _ = call("list", "scenarios")
    assert "rotated" in printed and "stocfl " not in printed
    assert call("list", "scenario")[1] == printed
    assert "scenario:" in call("list", "quickstart")[1]
    status, printed, complaint = call("list", "stocfll")
    assert (status, printed) == (2, "")
    assert "did you mean 'stocfl'" in complaint


@pytest.mark.parametrize(
    ("mistake", "meant"), [("quikstart", "quickstart"), ("accuracy_wrst", "accuracy_worst"), ("Stocfl", "stocfl")]
)
def test_a_mistake_is_told_the_nearest_of_all_names_each_said_once(call, mistake, meant):
    complaint = call("list", mistake)[2]
    assert f"did you mean {meant!r}" in complaint
    similar = complaint.strip().partition("Similar: ")[2].split(", ")
    assert similar[0] in (meant, "") and len(set(similar)) == len(similar) <= 3
    names = {name for _, name in PIECES + SCORES} | set(config.presets()) | set(registry.KINDS)
    assert set(similar) <= names | {""}


def test_every_kind_of_piece_is_listed():
    tables = {kind: [function.__module__ for function in table.values()] for kind, table in registry._TABLES.items()}
    ours = {kind for kind, modules in tables.items() if any(module.startswith("jcfl.") for module in modules)}
    assert ours - {"federation"} == set(registry.KINDS) == set(facts.KINDS) - {"score"}


def test_a_score_over_held_out_clients_has_the_page_of_the_score(call):
    assert call("list", "held_out_loss") == call("list", "loss")


def test_a_methods_seven_answers_and_its_costs_are_shown(call):
    printed = call("list", "stocfl")[1]
    for question, said in facts.facts("method", "stocfl").answers.items():
        assert f"  {question} " in printed and said in printed
    assert "proximal term to the global model, weight 0.05; the global model is trained too" in printed
    assert "storage        2" in printed
    assert "linkage(clusters=4)" in call("list", "flhc")[1]  # whose options are those of its example
    assert facts.facts("method", "ifca").costs == {"storage": 4.0, "communication": 4.0, "computation": 4.0}
    assert facts.facts("method", "fedavg_plus").costs["communication"] == 3


def test_answers_are_listed_by_question_and_a_word_that_is_a_kind_too_has_both(call):
    for word, names in (("group", ["merge", "kmeans"]), ("training", ["bilevel"]), ("scores", ["accuracy_micro"])):
        printed = call("list", word)[1]
        assert all(f"  {name} " in printed for name in names)
    assert "how a client is described to the server" in call("list", "describe")[1]
    printed = call("list", "model")[1]
    assert "cnn_fashion" in printed and "model (describe)" in printed
    assert "--by accuracy_macro" in call("list", "accuracy_macro")[1]


def test_json_has_answers_costs_and_scores(call):
    table = json.loads(call("list", "--json")[1])
    assert table["methods"]["stocfl"]["answers"]["group"] == "merge"
    assert table["methods"]["stocfl"]["costs"]["storage"] == 2
    assert "clusters" in table["group"]["linkage"]["options"]
    assert table["scores"]["clusters"]["description"]


ANSWERS = [(kind, name) for kind in facts.MEANINGS for name in registry.names(kind)]
KINDS = ("training", "addon", "model", "train", "attack", "reliability", "privacy", "stop")
ANSWERS += [(kind, name) for kind in KINDS for name in registry.names(kind)]
SHAPES = {"cnn_cifar": (32, 32, 3), "cnn_e": (28, 28, 1), "cnn_path": (28, 28, 3), "cnn_celeba": (84, 84, 3)}
"""Of the examples of datasets that are not here, by model."""


@pytest.mark.parametrize(("kind", "name"), ANSWERS)
def test_every_answers_example_has_a_meaning(kind, name):
    words = shlex.split(facts.example(kind, name))
    assert ("--data-dir" in words) == (name in SHAPES)
    if name in SHAPES:  # the example takes the data of a file
        assert registry.find(kind, name)(SHAPES[name], 10).name == name
        return
    words = words[words.index("--set") + 1 :]
    if kind in KINDS[2:] and not any(word.startswith("method=") for word in words):
        words.append("method=fedavg")
    given = config.read("quickstart", [*words, "compare=[]"])
    plan = planned(automatic.with_stand_ins(given))  # no threshold is chosen, which takes long
    assert len(plan.algorithms) == 1


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "number", "exclusiveMinimum": 0}, "number > 0"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "integer, 1 ≤ · ≤ 9"),
        ({"anyOf": [{"type": "integer", "maximum": 3}, {"const": "x"}, {"type": "null"}]}, "integer ≤ 3 or x or none"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "list of a, b"),
        ({}, "any"),
    ],
)  # fmt: skip
def test_options_in_words(schema, said):
    assert options.values(schema) == said


def test_help_keeps_defaults_and_says_how_to_begin(call):
    assert "[default: (the first free one of runs/NAME-1" in call("run", "--help")[1]
    assert "jcfl run quickstart" in call("--help")[1]
    status, printed, complaint = call()
    assert (status, complaint) == (2, "")
    assert "quickstart" in printed


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("jcfl run stocfl_rotated_c", "stocfl_rotated_cifar"),
        ("jcfl sweep qui", "quickstart"),
        ("jcfl tune qui", "quickstart"),
        ("jcfl show qui", "quickstart"),
        ("jcfl l", "list"),
    ],
)
def test_shells_complete(monkeypatch, capsys, typed, offered):
    words = {"_JCFL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    for name, value in words.items():
        monkeypatch.setitem(os.environ, name, value)
    with pytest.raises(SystemExit):
        cli.status([])
    assert capsys.readouterr().out.split() == [offered]


def test_a_table_of_several_seeds_names_the_deviation():
    for seeds, told in ((2, True), (1, False)):
        there = console()
        there.print(*display.table({"fedavg": {"seeds": seeds, "wall_s": 1.0}}, there.width))
        assert ("sample standard deviation over 2 seeds" in " ".join(there.file.getvalue().split())) == told


@pytest.mark.parametrize("width", [32, 45, 60, 80, 200])
def test_a_table_cuts_no_number_however_narrow_the_terminal(width):
    """It is printed in parts, each of which begins with the same first columns."""
    first = [("", ["*", ""]), ("tau", ["0.5", "0.25"]), ("method", ["stocfl", "a-long-label-without-a-space"])]
    others = [(title, ["12.34 ± 0.56 %", "7.89 ± 0.12 %"]) for title in ("accuracy", "mean over clients", "F1", "F1")]
    there = Console(file=io.StringIO(), width=width)
    for part in display.in_parts(first, others, width, seeds=2):
        there.print(part)
    found = there.file.getvalue()
    assert found.count("12.34 ± 0.56 %") == found.count("7.89 ± 0.12 %") == 4
    assert "…" not in found and max(map(len, found.splitlines())) <= width
    assert found.count("0.25") == {32: 4, 45: 4, 60: 2, 80: 2, 200: 1}[width]
    assert found.endswith("seeds.\n")


def test_a_bar_shows_which_method_comes_next():
    there = console()
    with bars.watched(there, methods=["one", "two"]) as watch:
        watch(Progress("one", 0, 2, 2, 2, {"accuracy_micro": 0.5, "clusters": 1.0}))
    shown = there.file.getvalue()
    assert "accuracy 50.00%, 1 cluster " in shown
    assert shown.index("one") < shown.index("two")


@pytest.mark.parametrize(
    ("progress", "is_seen", "other", "drawn"),
    [(None, True, None, True), (None, False, None, False), (None, True, print, False), (True, False, print, True),
     (False, True, None, False)],
)  # fmt: skip
def test_a_run_in_python_shows_its_progress_where_somebody_sees_it(monkeypatch, progress, is_seen, other, drawn):
    there = console() if is_seen else console(_environ={"TERM": "dumb"})
    monkeypatch.setattr(bars, "screen", lambda stderr: there)
    with bars.shown(progress, other) as watch:
        watch(Progress("one", 0, 2, 2, 2, {}))
    assert ("one" in there.file.getvalue()) == drawn


def test_a_notebook_shows_one_bar_and_draws_it_again(monkeypatch):
    notebook = pytest.importorskip("IPython.display", reason="notebooks need the extra `test`")
    shown = []
    for name in ("display", "update"):
        told = lambda handle, bar, metadata, name=name: shown.append((name, metadata))
        monkeypatch.setattr(notebook.DisplayHandle, name, told)
    monkeypatch.setattr(bars, "screen", lambda stderr: Console(force_jupyter=True))
    with bars.shown(None, None, ["one"]) as watch:
        watch(Progress("one", 0, 1, 1, 2, {}))
    assert shown == [("display", bars.MARK), ("update", bars.MARK)]
    with bars.shown(False, None, ["one"]) as watch:
        watch(Progress("one", 0, 1, 1, 2, {}))
    assert len(shown) == 2


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_a_dumb_terminal_gets_lines(environment):
    there = console(_environ=environment)
    with bars.watched(there) as watch:
        watch(Progress("one", 0, 0, 0, 2, {}))
        watch(Progress("one", 0, 2, 2, 2, {"accuracy_micro": 0.5, "clusters": 0.0}))
    assert there.file.getvalue() == "one: compiling\none: round 2/2, accuracy 50.00%\n"


def test_no_colour_where_none_is_wanted():
    there = console(_environ={"NO_COLOR": "1", "TERM": "xterm-256color"})
    there.print(display.page(facts.facts("method", "stocfl")))
    assert "\x1b[3" not in there.file.getvalue()  # bold may be there, colours not


@pytest.mark.parametrize(
    ("progress", "seeds", "said"),
    [
        (Progress("fedavg", 0, 0, 0, 4, {}), 1, "compiling"),
        (Progress("fedavg", 0, 4, 4, 4, {}), 1, "round 4/4"),
        (Progress("fedavg", 0, 2, 6, 12, {}, 3), 3, "round 2/4, 3 seeds"),
        (Progress("fedavg", 0, 3, 3, 12, {}), 3, "round 3/4 of seed 0, 3/12 in all"),
        (Progress("fedavg", 1, 1, 5, 12, {}), 3, "round 1/4 of seed 1, 5/12 in all"),
        (Progress("fedavg", 1, 2, 6, 12, {}), 3, "round 2/4 of seed 1, 6/12 in all"),
        (Progress("fedavg", 2, 4, 12, 12, {}), 3, "round 4/4 of seed 2, 12/12 in all"),
        (Progress("fedavg", 0, 0, 0, 0, {}, 3), 3, "round 0/0, 3 seeds"),
        (Progress("fedavg", 0, 4, 4, 4, {}), None, "round 4/4"),
        (Progress("fedavg", 0, 4, 12, 12, {}), None, "round 12/12 over all seeds"),
        (Progress("sweep", 0, 3, 3, 9, {}), None, "round 3/9 over all points and seeds"),
        (Progress("tune", 0, 0, 3, 9, {}), None, "round 3/9 over all trials and seeds"),
        (Progress("S1-laptop", 0, 0, 3, 9, {}), None, "3/9 done"),  # runs of workers
    ],
)
def test_progress_says_what_its_rounds_are_counted_over(progress, seeds, said):
    assert bars.where(progress, seeds) == said


def test_progress_has_the_mean_over_the_seeds_that_train_together():
    """Of seeds that train one after another it has the scores of the one that trains, once that was evaluated."""
    told = []
    scores = [{"accuracy_micro": 0.1, "clusters": 2.0}, {"accuracy_micro": 0.4, "clusters": 3.0}]
    records = [Record(seed, round, scores[seed], {}) for round in (1, 2) for seed in (0, 1)]
    run = SimpleNamespace(method="one", records=records)
    for seeds in ([0, 1], [1], [2]):
        replicas.Reporter([run], seeds, told.append, 0, 8)(2)
    assert [progress.seeds for progress in told] == [2, 1, 1]
    assert told[0].scores == {"accuracy_micro": 0.25, "clusters": 2.5}
    assert bars.brief(told[0]) == "accuracy 25.00%, 2.5 clusters"
    assert (told[1].scores, told[2].scores) == (scores[1], {})


def test_a_bar_and_a_line_say_the_same_of_several_seeds():
    bar, lines = console(), console(_environ={"TERM": "dumb"})
    for there in (bar, lines):
        with bars.watched(there, methods=["one"], seeds=3) as watch:
            watch(Progress("one", 0, 4, 12, 12, {}, 3))
    assert "round 4/4, 3 seeds" in bar.file.getvalue()
    assert lines.file.getvalue() == "one: round 4/4, 3 seeds\n"


def test_the_keys_of_a_configuration_are_listed_with_their_defaults(call):
    status, printed, complaint = call("list", "keys")
    assert (status, complaint) == (0, "")
    lines = {line.split()[0]: line for line in printed.splitlines() if line.startswith("  ")}
    for key, field in config.Config.model_fields.items():
        assert (key in lines) == (key not in config.SECTIONS)
        assert field.description is None or " ".join(field.description.split()[:3]) in lines[key]
    assert lines["rounds"].split() == ["rounds", "100", "rounds", "of", "training"]
    assert lines["devices"].split()[1] == "null" and lines["evaluate_first"].split()[1] == "false"
    assert "jcfl list data" in printed and "--set train.lr=0.05" in printed
    assert "  evaluate_every " in call("list")[1]


def test_one_key_is_described_and_a_key_that_is_a_kind_too_has_both(call):
    printed = call("list", "rounds")[1]
    assert "rounds of training" in printed and "evaluate_every" not in printed
    printed = call("list", "compare")[1]
    assert "further methods to compare" in printed and "  cosine " in printed
    assert "did you mean 'rounds'" in call("list", "round")[2]
    assert "did you mean 'accuracy_micro'" in call("list", "accuracy")[2]
