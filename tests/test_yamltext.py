"""Settings in YAML: what PyYAML raises, reads twice or repeats for ever ends in one line."""

import numpy as np
import pytest
import yaml

from jcfl import InputError
from jcfl.runs import config, sweeping
from jcfl.runs.yamltext import value_of, written
from tests.test_fuzz_options import BOMB


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2020-13-45", "it is no YAML: month must be in 1..12"),
        ("!!int abc", "invalid literal for int"),
        ("!!int ''", "it is no YAML: string index out of range"),
        ("!!float x", "could not convert string to float"),
        ("!!bool maybe", "it is no YAML: 'maybe'"),
        ("!!timestamp z", "it is no YAML"),
        ("!!python/name:os.system", "could not determine a constructor"),
        ("{a: 1, b: 2, a: 3}", "the key 'a' is there twice"),
        ("{a: {b: 1, b: 1}}", "the key 'b' is there twice"),
        ("[" * 2000, "nested too deep"),
        ("[" * 60 + "]" * 60, "at most 100000 values in 50 levels"),
        (BOMB, "at most 100000 values in 50 levels"),
        ("&a [*a]", "at most 100000 values in 50 levels"),
        ("0x" + "f" * 5000, "more than 4096 bits"),
    ],
)
def test_text_that_is_no_value_ends_in_one_line(text, said):
    with pytest.raises(InputError) as error:
        value_of(text, "it is no YAML")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_aliases_and_merges_that_end_are_read():
    assert value_of("{a: &a {x: 1, y: 2}, b: {<<: *a, y: 3}, c: [*a, *a]}", "")["b"] == {"x": 1, "y": 3}
    twice = "{a: &a {x: 1}, b: &b {<<: *a, x: 2}, c: {<<: *b, x: 3}, d: {<<: [*a, *b]}}"
    assert value_of(twice, "")["c"] == {"x": 3}
    assert value_of("{1: a, '1': b}", "") == {1: "a", "1": "b"}


@pytest.mark.parametrize("text", ["1:30:00", "1:30", "-2:05", "1:30.5", "+190:20:30.15", "12:30:45"])
def test_no_number_has_the_base_60(text):
    """YAML 1.1 has such numbers, and read half past one as 90; YAML 1.2 has none."""
    assert value_of(text, "") == text
    with pytest.raises(InputError, match="seed"):
        config.read("quickstart", [f"seed={text}"])


@pytest.mark.parametrize("text", ["010", "-010", "+017", "007", "00", "08", "0_10"])
def test_no_number_has_the_base_8_for_its_zeros_in_front(text):
    """YAML 1.1 has such numbers, and 010 rounds were 8. As text, an option that takes a number reads it as decimal."""
    assert value_of(text, "") == text


def test_zeros_in_front_change_no_option():
    words = ["rounds=010", "train.lr=010", "scenario.arrivals={012: 0.5}"]
    found = config.read("quickstart", words)
    assert (found.rounds, found.train.lr, dict(found.scenario.arrivals)) == (10, 10.0, {12: 0.5})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-1_000", -1000), ("0x1F", 31), ("0b11", 3), ("+7", 7), ("0", 0), ("1e-3", "1e-3"),
        ("1.0e-3", 0.001), ("1.5", 1.5), (".5", 0.5), ("-.5", "-.5"), ("1.", 1.0), ("-1.5E+3", -1500.0),
        ("1_0.5", 10.5), (".inf", float("inf")), ("-.inf", -float("inf")), ("true", True), ("null", None),
        ("a:b", "a:b"), ("{1:30: x}", {"1:30": "x"}), ("!!int 1:30", 90), ("!!int 010", 8),
    ],
)  # fmt: skip
def test_other_numbers_are_what_they_were(text, value):
    found = value_of(text, "")
    assert found == value and type(found) is type(value)
    assert np.isnan(value_of(".nan", ""))


@pytest.mark.parametrize("key", ["x", "learning_rate"])
def test_the_first_of_merged_mappings_wins_and_own_keys_before_all(key):
    """As YAML says. In PyYAML 6.0.4 the last one wins."""
    text = f"a: &a {{{key}: 1}}\nb: &b {{{key}: 2, more: 3}}\nc: {{<<: [*a, *b]}}\nd: {{{key}: 4, <<: *b}}\n"
    found = value_of(text, "it is no YAML")
    assert (found["c"], found["d"]) == ({key: 1, "more": 3}, {key: 4, "more": 3})
    with pytest.raises(InputError, match="<< expects a mapping or a list of mappings, got a scalar"):
        value_of("a: {<<: [1]}", "it is no YAML")


def test_merges_that_grow_are_refused():
    base = "a0: &a0 {" + ", ".join(f"k{i}: 0" for i in range(500)) + "}\n"
    more = "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 9))
    with pytest.raises(InputError, match="more than 1000 keys"):
        value_of(base + more, "it is no YAML")


@pytest.mark.parametrize("word", ["rounds=2020-13-45", "train.epochs=!!int abc", "evaluate_first=!!bool maybe"])
def test_overrides_are_read_by_it(word):
    with pytest.raises(InputError, match=r"--set .* is not a YAML value"):
        config.read("quickstart", [word])


def test_files_and_grids_are_read_by_it(tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text("rounds: 1\nrounds: 2\n")
    with pytest.raises(InputError, match=r"odd\.yaml is not YAML: the key 'rounds' is there twice"):
        config.read(path)
    path.write_text("base: quickstart\nover: {1: [2]}\n")
    with pytest.raises(InputError, match=r"a sweep goes over keys such as method\.tau, got 1"):
        sweeping.points(path, None)


@pytest.mark.parametrize("name", ["²", "9" * 5000, "٣"])
def test_an_index_that_is_no_index_is_refused(name):
    with pytest.raises(InputError, match="compare has 1 entries"):
        config.read({"scenario": "iid", "method": "fedavg", "compare": ["ifca"]}, [f"compare.{name}.clusters=1"])


def test_a_sweep_of_too_many_points_is_refused_before_it_is_made():
    grid = {f"method.a{i}": list(range(1000)) for i in range(5)}
    with pytest.raises(InputError, match="a sweep of 1000000000000000 points would take"):
        sweeping.points("quickstart", grid)


def test_numbers_stand_in_a_line():
    """Those behind the choice of `auto` are some hundred, and people read config.yaml."""
    settings = {
        "compare": [{"name": "ifca", "clusters": 2}],
        "error": [i / 100 for i in range(150)],
        "track": ["mlflow"],
    }
    text = written(settings)
    assert yaml.safe_load(text) == settings
    assert text.startswith("compare:\n- name: ifca\n  clusters: 2\nerror: [0.0, 0.01, ") and text.count("\n") < 15
