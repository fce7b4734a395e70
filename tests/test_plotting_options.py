"""Options of `jcfl plot`: each figure gets those that it has, and mistakes are told in one line."""

import inspect

import pytest

from jcfl import cli
from jcfl.errors import InputError
from jcfl.view import plotting
from tests import folders


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return folders.run(tmp_path_factory.mktemp("plots") / "one")


def titles(figure):
    return [axis.get_title() for axis in figure.axes if axis.get_visible()]


@pytest.mark.parametrize("name", plotting.FIGURES)
def test_every_figure_gets_the_options_that_it_has(name):
    given = {"at": ["5"], "by": "pca", "seed": 1, "cluster": 2, "columns": 3}
    found = plotting.taken(name, given)
    assert set(found) == set(given) & set(inspect.signature(plotting.FIGURES[name]).parameters)
    assert found.get("at", 5) in (5, [5])


def test_the_command_draws_what_its_options_say(one, tmp_path, monkeypatch, capsys):
    drawn = {}
    monkeypatch.setattr(plotting, "save", lambda figure, stem, *_: drawn.setdefault(stem.name, figure) and [])
    words = ["plot", str(one), "--at", "4,6", "--by", "pca", "--seed", "1"]
    assert cli.status([*words, "--figure", "embedding,curves", "--out", str(tmp_path)]) == 0
    shown = plotting.embedding(one, at=[4, 6], by="pca", seed=1)
    assert titles(drawn["embedding"]) == titles(shown)
    assert titles(shown) == ["3 clusters after round 4, seed 1", "2 clusters after round 6, seed 1", "3 true groups"]
    points = [dots.get_offsets().tolist() for dots in drawn["embedding"].axes[0].collections]
    assert points == [dots.get_offsets().tolist() for dots in shown.axes[0].collections]
    assert cli.status([*words, "--out", str(tmp_path)]) == 0  # all figures
    assert {*drawn} == set(plotting.FIGURES) - {"effect", "with_addons", "privacy", "model_similarity", "distances"}
    printed = capsys.readouterr().out
    assert "distances: not drawn, figure 'distances': --at: expected one value, got 4, 6" in printed
    assert titles(drawn["model_embedding"])[:2] == ["round 4, seed 1", "round 6, seed 1"]
    assert [tick.get_text() for tick in drawn["flow"].axes[0].get_xticklabels()] == ["4", "6"]


def test_one_round_and_one_cluster_are_shown(one):
    (_, shown), (_, apart) = plotting.drawn(
        plotting.histories(one), ["model_similarity", "distances"], at=["4"], cluster=2
    )
    labels = [axis.get_ylabel() for part in shown.subfigs for axis in part.axes]
    assert "9 clients by cluster" in labels and "cosine of clients’ models, round 4, seed 0" in labels
    assert any(axis.get_xlabel() == "30 clients by cluster, round 4, seed 0" for axis in apart.axes)


def test_rounds_with_the_same_evaluation_are_one_panel(one):
    assert len(titles(plotting.embedding(one, at=[4, 5, 40, 50]))) == 3


def test_panels_have_room_for_their_titles_and_legends(one):
    """Three rounds and the true groups, as in Fig. 3a of Zeng et al. 2023."""
    shown = plotting.embedding(one, at=[2, 4, 8])
    shown.draw_without_rendering()
    for top in (True, False):
        row = [axis for axis in shown.axes if axis.get_subplotspec().is_first_row() == top]
        for parts in ([axis.title for axis in row], [axis.get_legend() for axis in row]):
            left, right = (part.get_window_extent() for part in parts)
            assert 0 <= left.x0 < left.x1 < right.x0 < right.x1 <= shown.bbox.x1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "5,x"], "'embedding': --at: input should be a valid integer"),
        (["--at", "0"], "greater than or equal to 1, got '0'"),
        (["--at", ""], "got ''"),
        (["--figure", "distances", "--at", "2,4"], "'distances': --at: expected one value, got 2, 4"),
        (["--figure", "distances", "--at", "3"], "not compared after round 3"),
        (["--figure", "curves,sizes", "--at", "4"], "the option --at is for other figures than curves, sizes; it is"),
        (["--by", "umap"], "--by: input should be 'tsne' or 'pca', got 'umap'"),
        (["--seed", "7"], "one has no seed 7; it has 0, 1"),
        (["--seed", "first"], "--seed"),
        (["--figure", "model_similarity", "--cluster", "9"], "cluster 9 has no clients"),
    ],
)
def test_mistakes_are_one_line_and_status_2(one, words, said, capsys, tmp_path):
    assert cli.status(["plot", str(one), "--out", str(tmp_path / "out"), *words]) == 2
    printed, complaint = capsys.readouterr()
    assert said in complaint
    assert (printed, complaint.count("\n")) == ("", 1)
    assert not (tmp_path / "out").exists()


def test_an_option_of_no_figure_is_refused(one):
    with pytest.raises(InputError, match="the option at is for other figures than curves"):
        list(plotting.drawn(plotting.histories(one), ["curves"], at=["4"]))
