"""Configurations: YAML in, overrides, refusals, YAML out."""

import numpy as np
import pytest
import yaml

import jcfl
from jcfl.core.method import QUESTIONS
from jcfl.errors import InputError
from jcfl.runs import config
from jcfl.runs.plan import config_and_objects
from jcfl.runs.sweeping.points import points

SMALL = {
    "data": "digits",
    "scenario": {"name": "rotated", "clients": 20},
    "model": {"name": "mlp", "hidden": 8},
    "method": {"name": "stocfl", "tau": 0.4},
    "train": {"lr": 0.1, "epochs": 2},
    "rounds": 3,
}


@pytest.mark.parametrize("name", config.presets())
def test_every_preset_is_valid_and_its_yaml_means_the_same(name):
    first = config.read(name)
    assert config.read(yaml.safe_load(first.text())) == first
    assert config.presets()[name].endswith((".", ":"))


def test_the_papers_setting():
    paper = config.read("stocfl_rotated_mnist")
    assert paper.scenario.options["clients"] == 4800
    assert (paper.rounds, paper.participation, paper.evaluate_every) == (100, 0.1, 10)
    assert (paper.method.options["tau"], paper.method.options["lam"]) == (0.5, 0.05)
    train = paper.train.options
    assert (train["lr"], train["epochs"], train["batch_size"]) == (0.1, 5, "full")
    assert paper.model.options["hidden"] == 2048


def test_every_option_is_spelt_out():
    found = config.read(SMALL)
    assert found.method.options["lam"] == 0.05
    assert found.scenario.options["seed"] == 0
    assert found.scenario.options["held_out"] == 0.0


def test_overrides_reach_every_section():
    words = ["method.tau=0.9", "train.lr=1e-3", "model.hidden=4", "scenario.clients=8", "rounds=7", "participation=.5"]
    found = config.read(SMALL, words)
    assert found.method.options["tau"] == 0.9
    assert found.train.options["lr"] == 0.001
    assert found.model.options["hidden"] == 4
    assert found.scenario.options["clients"] == 8
    assert (found.rounds, found.participation) == (7, 0.5)


def test_another_name_drops_what_only_the_old_piece_had():
    found = config.read(SMALL, ["method.name=ifca", "method.clusters=3"])
    assert found.method.name == "ifca"
    assert found.method.options["clusters"] == 3
    assert config.read(SMALL, ["method.clusters=3", "method.name=ifca"]) == found
    assert "tau" not in found.method.options
    assert config.read(SMALL, ["scenario=iid"]).scenario.options["clients"] == 20


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ({"name": "ifca", "clusters": 6}, "wecfl", {"clusters": 6}),
        ({"name": "stocfl", "lam": 0.5}, "fesem", {"lam": 0.0}),  # where a proximal term is off by default
        ({"name": "stocfl", "tau": 0.7}, "fedadam", {"tau": 0.001}),  # a threshold there, a term of a denominator here
        ({"name": "stocfll", "lam": 0.5}, "fesem", {"lam": 0.0}),  # a mistake in a file
    ],
)
def test_another_method_keeps_only_options_of_the_same_meaning_and_default(old, new, kept):
    found = config.read({**SMALL, "method": old}, [f"method.name={new}"]).method
    assert kept.items() <= found.options.items()


def test_another_name_keeps_the_answers_that_hold_for_every_method():
    method = {"name": "stocfl", "tau": 0.4, "aggregate": {"name": "median", "rate": 0.5}, "addons": ["finetune"]}
    found = config.read({**SMALL, "method": method}, ["method.name=ifca"]).method
    assert found.options["aggregate"] == {"name": "median", "rate": 0.5}
    assert "tau" not in found.options
    assert [addon.name for addon in found.addons] == ["finetune"]
    bare = config.read({**SMALL, "method": method}, ["method=ifca", "method.aggregate=null"]).method
    assert bare.options["aggregate"] is None


def test_another_name_keeps_refusing_what_was_given_with_it():
    with pytest.raises(InputError, match="unknown option of method 'ifca': 'tau'"):
        config.read(SMALL, ["method.name=ifca", "method.tau=0.3"])


def test_steps_take_the_place_of_epochs():
    train = config.read(SMALL, ["train.steps=4"]).train.options
    assert (train["steps"], train["epochs"]) == (4, None)
    again = config.read(yaml.safe_load(config.read(SMALL, ["train.steps=4"]).text()), ["train.epochs=1"])
    assert (again.train.options["steps"], again.train.options["epochs"]) == (None, 1)


def test_another_seed_moves_the_federation_too():
    spelt = yaml.safe_load(config.read(SMALL).text())
    assert config.read(spelt, ["seed=5"]).scenario.options["seed"] == 5
    assert config.read(spelt, ["seed=5", "scenario.seed=1"]).scenario.options["seed"] == 1
    tuned = {**spelt, "made_by": {}, "chosen_by": {"values": {}, "sampler": "grid", "trials": 1, "by": "loss"}}
    assert config.read(tuned, ["seed=5"]).scenario.options["seed"] == 5
    kept = config.read(SMALL, ["scenario.seed=3"])
    assert config.read(yaml.safe_load(kept.text()), ["seed=5"]).scenario.options["seed"] == 3
    in_python = lambda what: config_and_objects(what, {"seed": 5})[0].scenario.options["seed"]
    assert [in_python(one) for one in (spelt, config.read(SMALL), kept)] == [5, 5, 3]


def test_a_seed_that_was_given_keeps_the_federation(tmp_path):
    """Also where it is the run's own, and in a sweep whose command is noted; what a run wrote does not say either."""
    file = tmp_path / "fix.yaml"
    file.write_text("scenario: {name: rotated, clients: 8, seed: 0}\nmethod: fedavg\n")
    assert config.read(file, ["seed=1"]).scenario.options["seed"] == 0
    seeds = lambda what, **given: [
        point.config.scenario.options["seed"] for point in points(what, {"seed": [0, 1]}, **given).points
    ]
    noted = {"made_by": {"command": "jcfl sweep"}, "decided": None}
    assert seeds(file) == seeds(file, **noted) == [0, 0]
    resumed = tmp_path / "sweep.yaml"
    resumed.write_text(points(file, {"seed": [0, 1]}, **noted).text())
    assert [point.config.scenario.options["seed"] for point in points(resumed, None).points] == [0, 0]
    written = tmp_path / "config.yaml"
    written.write_text(config.read(file).text())
    assert seeds(written, **noted) == seeds(config.read(file)) == [0, 1]
    fixed = {**noted, "scenario.seed": 0}
    assert seeds(written, **fixed) == [0, 0]
    resumed.write_text(points(written, {"seed": [0, 1]}, **fixed).text())
    assert [point.config.scenario.options["seed"] for point in points(resumed, None).points] == [0, 0]


def test_compared_methods_have_titles_of_their_own():
    found = config.read(
        {**SMALL, "compare": ["fedavg", {"name": "stocfl", "tau": 0.6}, {"name": "ifca", "label": "two"}]}
    )
    assert list(found.methods) == ["stocfl", "fedavg", "stocfl-2", "two"]
    assert config.read({**SMALL, "compare": ["fedavg"]}, ["compare=[]"]).compare == ()
    assert config.read({**SMALL, "compare": ["ifca"]}, ["compare.0.clusters=7"]).compare[0].options["clusters"] == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["methd.tau=1"], "did you mean 'method'"),
        (["method.taw=1"], "did you mean 'tau'"),
        (["method.name=stocfll"], "did you mean 'stocfl'"),
        (["data.name=digit"], "did you mean 'digits'"),
        (["scenario.name=rotate"], "did you mean 'rotated'"),
        (["model.name=mlpp"], "did you mean 'mlp'"),
        (["method.tau=-1.5"], "tau: input should be greater than or equal to -1"),
        (["participation=0"], "participation: input should be greater than 0"),
        (["participation=1.01"], "participation: input should be less than or equal to 1"),
        (["rounds=-1"], "rounds: input should be greater than or equal to 0"),
        (["rounds=many"], "rounds: input should be a valid integer"),
        (["seeds=0"], "seeds: input should be"),
        (["rounds"], "expects key=value"),
        (["rounds.x=1"], "rounds is a single value"),
        (["compare=[ifka]"], "did you mean 'ifca'"),
        (["compare.2.clusters=1"], "compare"),
        (["model.hidden=["], "not a YAML value"),
        (["method.label=a/b"], "label"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words, said):
    with pytest.raises(InputError) as error:
        config.read(SMALL, words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["method.describ=gradient"], "describe"),
        (["method.grup=kmeans"], "group"),
        (["method=scaffold", "method.aggregat=median"], "aggregate"),
        (["method.addon=[finetune]"], "addons"),
        (["compare=[{name: fedavg, describ: gradient}]"], "describe"),
    ],
)
def test_a_misspelt_answer_is_told_the_answers_beside_the_options(words, meant):
    with pytest.raises(InputError, match=rf"did you mean '{meant}'\? Known: .*") as error:
        config.read(SMALL, words)
    known = str(error.value).partition("Known: ")[2].split(", ")
    assert {*QUESTIONS, "addons", "label"} <= set(known)


def test_files_that_are_not_configurations(tmp_path):
    path = tmp_path / "one.yaml"
    for text, said in (
        ("a: [", "not YAML"),
        ("a: {b: c\nd: 3", r"is not YAML: .* \(line 2, column 2, while .* that begins in line 1\)$"),
        ("a: 1\na: 2", r"the key 'a' is there twice \(line 2, column 1\)$"),
        ("just words", "expected keys and values, got 'just words'"),
        ("", "expected keys and values, got nothing"),
        ("roundz: 1", "did you mean 'rounds'"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            config.read(path)
    with pytest.raises(InputError, match="did you mean 'quickstart'"):
        config.read("quikstart")
    with pytest.raises(InputError, match="no configuration file"):
        config.read(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="is a folder; expected a configuration file; presets: "):
        config.read(tmp_path)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data={}", "data.name: field required"),
        ("data=null", "data: expected a name, or keys and values, got None"),
        ("compare=ifca,fesem", r"compare: expected a list, such as \['ifca', 'fesem'\], got 'ifca,fesem'"),
        ("addons=[cam]", r"unknown key 'addons'; did you mean 'method\.addons'\?"),
        ("describe=gradient", r"unknown key 'describe'; did you mean 'method\.describe'\?"),
        (
            "train.batch_size=-1",
            r"train .sgd.: batch_size: input should be greater than or equal to 1 or 'full', got -1$",
        ),
        ("method=[ifca]", r"method: expected a name, or keys and values, got \['ifca'\]"),
        ("compare=[3]", r"compare\.0: expected a name, or keys and values, got 3"),
    ],
)
def test_what_is_no_piece_is_told_without_the_names_of_classes(word, said):
    with pytest.raises(InputError, match=f"^{said}"):
        config.read("quickstart", [word])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["scenario.sizes=[4,0,2,2]"],
            r"scenario 'rotated': sizes\.1: input should be greater than or equal to 1, got 0",
        ),
        (["model.hidden=[3,0]"], r"model 'mlp': hidden\.1: input should be greater than or equal to 1, got 0"),
        (["model.hidden=[0,x]"], r"model 'mlp': hidden\.0: .* or equal to 1, got 0 \(and 1 more\)"),
        (["model.hidden=x"], r"model 'mlp': hidden: input should be a valid integer, got 'x'"),
        (["data=[1,digits]"], r"data\.0: expected a name, or keys and values, got 1"),
        (["scenario.angles=[]"], r"scenario 'rotated': angles: expected 1 or more items, got \[\]"),
        (["scenario.min_examples=[1,2,3]"], r"scenario .*: min_examples: expected two whole .*, got \[1, 2, 3\]"),
        (["rounds=1.0e+30"], r"rounds: input should be an integer that fits into 64 bits, got 1e\+30"),
        (["train.lr=x"], r"train 'sgd': lr: input should be a valid number, got 'x'"),
    ],
)
def test_the_complaint_is_about_what_was_given(words, said):
    """Of the branches of an option that takes a number, a word or a list, the one for a list speaks about a list."""
    with pytest.raises(InputError, match=f"^{said}$"):
        config.read("quickstart", words)


@pytest.mark.parametrize("word", ["represent=[]", "describe={name: model, part: []}"])
def test_no_layers_are_no_part_of_a_model(word):
    with pytest.raises(InputError, match=r"(represent|part): expected 1 or more items, got \[\]"):
        config.read(SMALL, ["method.name=fesem", f"method.{word}"])


def test_what_is_given_by_keyword_may_be_all_that_was_missing():
    """A mapping is checked together with the keywords beside it."""
    found, _ = config_and_objects({"scenario": {"name": "rotated", "clients": 8}, "rounds": 1}, {"method": "majority"})
    assert (found.method.name, found.rounds) == ("majority", 1)
    with pytest.raises(InputError, match="method: field required"):
        config_and_objects({"scenario": {"name": "rotated", "clients": 8}}, {})
    with pytest.raises(InputError, match="rounds"):
        config_and_objects({"round": 1}, {"method": "majority"})


def test_a_path_in_a_file_is_relative_to_that_file(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x.npz").touch()
    file = tmp_path / "there" / "mine.yaml"
    file.write_text(
        "data: [{name: arrays, path: x.npz}, {name: arrays, path: elsewhere.npz}, digits]\nmethod: fedavg\n"
    )
    monkeypatch.chdir(tmp_path)
    found = config.unchecked("there/mine.yaml")["data"]
    assert found == [{"name": "arrays", "path": "there/x.npz"}, {"name": "arrays", "path": "elsewhere.npz"}, "digits"]


def test_the_federation_of_a_configuration_is_the_one_that_a_run_trains_on():
    given = {"data": "digits", "scenario": {"name": "rotated", "clients": 8}}
    made = jcfl.federation(given, scenario={"name": "rotated", "clients": 4, "seed": 5})
    given["scenario"] = {"name": "rotated", "clients": 4, "seed": 5}
    runs = [jcfl.run(what, method="majority", rounds=1) for what in (given, made)]
    assert made.groups.shape == (4,)
    np.testing.assert_array_equal(*[run.accuracy_clients[0, -1] for run in runs])
    assert jcfl.federation(made) is made
    for call in (jcfl.federation, jcfl.run):
        with pytest.raises(InputError, match="unknown key 'sed'; did you mean 'seed'"):
            call(given, method="majority", sed=3)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("epochs", "did you mean 'train.epochs'?"),
        ("lr", "did you mean 'train.lr'?"),
        ("tau", "did you mean 'method.tau'?"),
        ("clients", "did you mean 'scenario.clients'?"),
        ("eps1", "as method.eps1 it is an option of cfl, but not of this method"),
        ("roundz", "did you mean 'rounds'?"),
    ],
)
def test_an_option_without_its_section_is_offered_with_it(key, said):
    for call in (lambda: config.read(SMALL, [f"{key}=1"]), lambda: config.read({**SMALL, key: 1})):
        with pytest.raises(InputError) as error:
            call()
        assert said in str(error.value)


def test_a_dotted_key_is_offered_as_a_section():
    """It is written so after --set, but not in a file or in Python, where it was taken for a misspelt section."""
    with pytest.raises(InputError, match=r"unknown key 'train\.lr'; expected the section as a mapping: train: {lr: …}"):
        config.read({**SMALL, "train.lr": 0.1})
    with pytest.raises(InputError, match="unknown key '3'"):
        config.read({**SMALL, 3: 0.1})


def test_the_folder_of_a_run_is_no_configuration(tmp_path):
    (tmp_path / "config.yaml").touch()
    with pytest.raises(InputError, match=r"is the folder of a run; expected .*config\.yaml, or --resume"):
        config.read(tmp_path)


def test_an_error_shows_the_beginning_of_an_array():
    with pytest.raises(InputError) as error:
        config.read(np.zeros((100, 100)))
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)
