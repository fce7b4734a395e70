"""Options derived from signatures."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import Field

from jcfl import registry
from jcfl.errors import InputError
from jcfl.view import facts


def shape(
    first: int,
    *,
    copy: Annotated[bool, Field(description="a name that pydantic's models have too")] = True,
    width: Annotated[int, Field(ge=1, description="how wide")],
    kind: Literal["round", "square"] = "round",
    rate: float = 0.5,
    size: int | Literal["full"] = "full",
):
    """A shape, in one line.

    More.
    """


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """A table of a kind that no configuration names."""
    monkeypatch.setitem(registry._TABLES, "toy", {"shape": shape})


def test_defaults_are_filled_in_and_text_is_converted():
    found = registry.options("toy", "shape", {"width": "3", "rate": "1e-3"})
    assert found == {"copy": True, "width": 3, "kind": "round", "rate": 0.001, "size": "full"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"widht": 3}, "'widht'; did you mean 'width'?"),
        ({"width": 0}, "width: input should be greater than or equal to 1, got 0"),
        ({}, "width: field required"),
        ({"width": 1, "kind": "oval"}, "'round' or 'square', got 'oval'"),
        ({"width": 1, "first": 2}, "unknown option"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(given, said):
    with pytest.raises(InputError) as error:
        registry.options("toy", "shape", given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_names_get_the_nearest():
    with pytest.raises(InputError, match="unknown toy 'shap'; did you mean 'shape'"):
        registry.find("toy", "shap")


def test_a_misspelled_kind_is_refused():
    with pytest.raises(InputError, match=r"unknown kind of piece 'metod'; did you mean 'method'\? Known: addon, "):
        registry.register("metod", "q")
    with pytest.raises(InputError, match=r"jcfl\.metrics\.register_score"):
        registry.register("score", "q")


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_name_is_text(name):
    with pytest.raises(InputError, match=f"the name of a model: expected text, got {name!r}"):
        registry.register("model", name)


def test_what_is_registered_can_be_called():
    with pytest.raises(InputError, match="model 'q': expected a function or a class, got 3"):
        registry.register("model", "q")(3)


@pytest.mark.parametrize(
    ("kind", "function", "said"),
    [
        ("data", lambda: None, r"data 'q': expected the arguments \(data_dir\) before its options, got \(\)"),
        ("scenario", lambda dataset: None, r"arguments \(rng, dataset\) before its options, got \(dataset\)"),
        ("model", lambda shape, classes, width: None, r"\(shape, classes\) .*, got \(shape, classes, width\)"),
        ("addon", lambda: None, r"expected the arguments \(method\)"),
        ("track", object, r"expected the arguments \(title, folder\)"),
        ("method", lambda context: None, r"expected the arguments \(\) before its options, got \(context\)"),
    ],
)
def test_arguments_that_jcfl_does_not_give_are_refused(kind, function, said):
    with pytest.raises(InputError, match=said):
        registry.register(kind, "q")(function)
    assert "q" not in registry.names(kind)


def test_a_tracker_may_be_a_class(monkeypatch):
    class Own:
        """Keeps what it is given."""

        def __init__(self, title, folder, *, prefix: str = ""):
            self.title = title

    monkeypatch.setitem(registry._TABLES, "track", {})
    registry.register("track", "own")(Own)
    assert registry.options("track", "own", {}) == {"prefix": ""}


def test_a_name_of_jcfl_stays_jcfls(monkeypatch):
    """In a notebook, where the cell is then run again with another name."""
    registry.load()
    own = registry.find("data", "digits")
    said = r"data 'digits' is registered twice, by jcfl\.data\.generated \(jcfl\) and tests\.test_registry"
    with pytest.raises(InputError, match=said):
        registry.register("data", "digits")(lambda data_dir: None)
    assert registry.find("data", "digits") is own


def test_ones_own_pieces_come_after_jcfls(monkeypatch):
    """Else the import of jcfl's module would fail later, when a run looks for its pieces."""
    calls = []
    monkeypatch.setattr(registry, "_LOADERS", [lambda: calls.append("loaded")])
    monkeypatch.setitem(registry._TABLES, "stop", {})
    registry.register("stop", "q")(lambda: None)
    assert calls == ["loaded"]


@pytest.mark.parametrize(
    ("default", "example"),
    [(2, "k: int = 2"), (0.5, "k: float = 0.5"), ("a", "k: str = 'a'"), (None, "k: int | None = None")],
)
def test_an_option_without_an_annotation_is_refused(default, example):
    def made(*, k=default):
        """A method."""

    with pytest.raises(InputError) as error:
        registry.register("method", "un")(made)
    assert str(error.value) == f"method 'un': option 'k' needs an annotation, such as {example}"
    assert "un" not in registry.names("method")


def test_a_required_option_without_an_annotation_is_refused():
    def made(*, k, **more):
        """A method."""

    with pytest.raises(InputError, match=r"option 'k' needs an annotation, such as k: int$"):
        registry.register("method", "un")(made)


def test_a_type_that_json_cannot_say_is_left_open():
    def made(*, k: Callable[[], int] | None = None, a: np.ndarray | None = None):
        """A method."""

    assert registry.schema(made) == {"k": {"default": None}, "a": {"default": None}}


def test_schema_and_description():
    table = registry.schema(shape)
    assert table["width"] == {"type": "integer", "minimum": 1, "description": "how wide"}
    assert table["kind"]["default"] == "round"
    assert registry.line(shape) == "A shape, in one line."


def test_a_dataclass_without_a_docstring_has_no_line():
    """Python gives it one, which is its signature with all annotations."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own:
        size: Annotated[int, Field(ge=1, description="how large")] = 2

    assert "Annotated" in str(Own.__doc__) and registry.line(Own) == ""
    assert facts.sections(Own) == ("", "", "")


def test_every_piece_is_described_and_its_defaults_pass_their_own_checks():
    registry.load()
    for kind in registry.KINDS:
        for name in registry.names(kind):
            function = registry.find(kind, name)
            assert registry.line(function).endswith((".", ")")), f"{kind} {name} has no one-line description"
            parameters = {item.name: item for item in registry.parameters(function)}
            defaults = {key: item.default for key, item in parameters.items() if item.default is not item.empty}
            required = {key: item for key, item in parameters.items() if key not in defaults}
            known = {key: item for key, item in parameters.items() if key not in required}
            assert set(registry.check(f"{kind} {name}", known, defaults)) == set(defaults)
