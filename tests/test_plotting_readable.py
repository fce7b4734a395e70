"""Figures that can be read: numbers on axes, names, colours and widths, and which clients are drawn."""

import dataclasses
import inspect
import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch
from matplotlib.text import Text

from jcfl import results
from jcfl.errors import InputError
from jcfl.view import plotting
from jcfl.view.comparing import figures
from jcfl.view.plotting import cosines, lines, style
from jcfl.view.report import clients
from tests import folders


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return folders.run(tmp_path_factory.mktemp("readable") / "one")


def written(axis):
    """The numbers in view on an axis, also those at minor ticks."""
    axis.axes.figure.draw_without_rendering()
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]


@pytest.mark.parametrize(
    ("limits", "across", "upwards"),
    [
        ((1, 8), ["1", "2", "5"], ["1", "2", "5"]),
        ((1, 4), ["1", "2"], ["1", "2", "3", "4"]),
        ((0.3, 20), ["1", "10"], ["0.5", "1", "2", "5", "10", "20"]),
        ((2.1, 4.5), ["3", "4"], ["3", "4"]),
        ((1, 4800), ["1", "10", "100", "1000"], ["1", "10", "100", "1000"]),
    ],
)
def test_numbers_on_logarithmic_axes_are_written_out(limits, across, upwards):
    """Figures set no mathematics; there are at least two numbers, and not more than there is room for."""
    with style.matplotlib.rc_context(style.STYLE):
        _, (axis,) = style.panels(1, None, 2.0)
        axis.set(xlim=limits, ylim=limits)
        for one, expected in ((axis.xaxis, across), (axis.yaxis, upwards)):
            style.decades(one)
            assert sorted(written(one), key=float) == expected


def test_an_option_that_is_a_whole_number_has_whole_numbers_on_its_axis(tmp_path):
    method = lambda clusters: {"method": {"name": "ifca", "clusters": clusters}}
    runs = [folders.run(tmp_path / f"{k}", [0], "ifca", settings=method(k)) for k in (2, 3)]
    assert written(plotting.effect(runs, scores="purity").axes[0].xaxis) == ["2", "3"]


def test_a_decision_about_few_clients_has_numbers(one):
    run = results.load(one)
    decided = folders.DECIDED | {"clusters": [1, 2, 4, 4], "sizes": [8]}
    _, count = plotting.decision(dataclasses.replace(run, summary={"decided": decided})).axes
    assert sorted(written(count.yaxis)) == ["1", "2", "3", "4"]


def coming_and_going(path):
    """One cluster, of which a client is held out, one comes after round 4 and one has left after round 4."""
    held = folders.federation()
    held["arrive"] = np.where(np.arange(folders.CLIENTS) == 1, 5, 0)
    held["depart"] = np.where(np.arange(folders.CLIENTS) == 2, 4, held["depart"])
    return folders.run(path, [0], labels=np.full((4, folders.CLIENTS), 3), held=held)


def test_means_are_over_the_clients_that_tables_count(tmp_path):
    path = coming_and_going(tmp_path / "run")
    accuracy, counted = results.load(path).accuracy_clients[0], np.ones((4, folders.CLIENTS), bool)
    counted[:, 5] = counted[:2, 1] = counted[2:, 2] = False
    clusters, true = plotting.by_cluster(path).axes
    assert [line.get_label() for line in clusters.lines] == ["1"]
    expected = [row[there].mean() for row, there in zip(accuracy, counted, strict=True)]
    np.testing.assert_allclose(clusters.lines[0].get_ydata(), expected, rtol=1e-6)
    lines = {line.get_label(): line.get_ydata() for line in true.lines}
    first = [row[:10][there[:10]].mean() for row, there in zip(accuracy, counted, strict=True)]
    np.testing.assert_allclose(lines["group 0"], first, rtol=1e-6)


def test_who_is_not_there_is_in_no_cluster(tmp_path):
    """Also a client whose departure no label shows."""
    path = coming_and_going(tmp_path / "run")
    names = [text.get_text() for text in plotting.sizes(path).axes[0].get_legend().get_texts()]
    assert names == ["held out (1)", "left (1)", "none yet (0)", "1 (28)"]
    assert plotting.sizes(path).axes[0].collections[0].get_paths()[0].vertices[:, 1].max() == 28
    blocks = [text.get_text() for text in plotting.groups_to_clusters(path).axes[0].texts]
    assert {"1 (28)", "left (1)", "held out (1)"} < set(blocks)
    assert [int(bar.get_height()) for bar in plotting.flow(path, at=[2]).axes[0].patches] == [1, 1, 28]


def test_names_stand_beside_the_only_column_of_a_flow(one):
    """Its blocks are as thin as those of several columns, so that no name is written on one."""
    axis = plotting.flow(one, at=[8]).axes[0]
    axis.figure.draw_without_rendering()
    right = max(block.get_window_extent().x1 for block in axis.patches)
    names = [text for text in axis.texts if "(clients)" not in text.get_text()]
    assert names and all(Text.get_window_extent(name).x0 > right for name in names)


@pytest.fixture(scope="module")
def many_clusters(tmp_path_factory):
    """Four true groups in 18 clusters, of which those of the last two groups are not among the first eight."""
    groups = np.repeat(np.arange(4), 16)
    last = np.concatenate([np.arange(48) // 4, 12 + np.arange(16) // 3])
    return folders.run(tmp_path_factory.mktemp("many") / "run", [0], labels=np.stack([last] * 4), groups=groups)


def strip_above(figure):
    """The colours of the strip of true groups."""
    (axis,) = [axis for axis in figure.axes if axis.get_title() == "true group"]
    image = axis.images[0]
    return {to_hex(shade) for shade in image.to_rgba(image.get_array()).reshape(-1, 4)}


def test_few_true_groups_have_a_colour_each(many_clusters):
    """However many clusters there are, and whichever match them."""
    _, true = plotting.by_cluster(many_clusters).axes
    assert sorted(line.get_label() for line in true.lines) == [f"group {g}" for g in range(4)]
    assert len({line.get_color() for line in true.lines}) == 4
    bands = plotting.groups_to_clusters(many_clusters).axes[0]
    assert {f"{g} (16)" for g in range(4)} < {text.get_text() for text in bands.texts}
    assert len({to_hex(band.get_facecolor()) for band in bands.patches if isinstance(band, PathPatch)}) == 4
    for draw in (plotting.similarity, plotting.model_similarity, plotting.distances):
        assert len(strip_above(draw(many_clusters))) == 4
    frames = [axis for axis in plotting.samples(many_clusters).axes if axis.images]
    shades = {to_hex(axis.spines["left"].get_edgecolor()) for axis in frames}
    assert len(shades) == len({*results.load(many_clusters).groups[:32]})  # of the eight largest clusters


@pytest.mark.parametrize(
    ("labels", "groups", "expected"),
    [
        ([8, 8, 0, 1, 2], [0, 0, 1, 2, -1], [2, 2, 0, 1, -1]),
        ([0, 11, 9, 3], [5, 6, 7, 8], [0, 2, 1, 3]),
        (range(10), range(10), range(10)),
        ([0, 0], [-1, -1], [-1, -1]),
    ],
)
def test_groups_have_free_numbers_below_eight(labels, groups, expected):
    assert cosines.groups_of(np.array(labels), np.array(groups)).tolist() == list(expected)


def marked(figure):
    """How many runs have markers in the panel of the worst clients."""
    return len(figure.axes[1].lines)


def test_the_worst_clients_are_beside_themselves_only(tmp_path):
    """Ids number the clients of every federation, so that runs of two federations may have equal ones."""
    first, other = (results.load(folders.run(tmp_path / name)) for name in ("first", "other"))
    assert marked(plotting.clients([first, other])) == 2
    summed = lambda run, text: dataclasses.replace(run, summary=run.summary | {"federation": text})
    assert marked(plotting.clients([summed(first, "a"), summed(other, "a")])) == 2
    assert marked(plotting.clients([summed(first, "a"), other])) == 2  # it may be a run that is not complete
    apart = [summed(first, "a"), summed(other, "b")]
    shown = plotting.clients(apart)
    assert (marked(shown), len(shown.axes[0].lines)) == (1, 2)
    titles = [column["title"] for column in clients.table(apart, ["first", "other"])["columns"]]
    assert "accuracy, first" in titles and "accuracy, other" not in titles
    assert marked(plotting.clients([first, dataclasses.replace(other, groups=other.groups[::-1])])) == 1


def test_long_titles_of_axes_are_inside_their_panels(tmp_path):
    """In a figure of several rows, of one row, and of a column's width."""
    names = ("clusterability", "smoothness", "clustering_objective", "learning_objective", "partial_diversity")
    values = {name: np.ones((2, 4)) for name in (*names, "squared_gradient_shared", "epsilon", "accuracy_macro")}
    run = folders.run(tmp_path / "run", **values)
    quality, curves = plotting.quality(run), plotting.curves(run)
    narrow = plotting.curves(run, ["accuracy_macro", "epsilon"], columns=1)
    addons = [
        folders.run(tmp_path / name, settings={"method": {"name": "ifca", "addons": extra}}, **values)
        for name, extra in (("bare", []), ("cam", [{"name": "cam"}]))
    ]
    for shown in (quality, curves, narrow, plotting.with_addons(addons, ["epsilon"])):
        shown.draw_without_rendering()
        axes = [axis for axis in shown.axes if axis.get_visible()]
        boxes = [axis.yaxis.label.get_window_extent() for axis in axes]
        assert all(box.y0 >= 0 and box.y1 <= shown.bbox.y1 for box in boxes)
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        pitch = shown.bbox.height / axes[0].get_subplotspec().get_gridspec().nrows
        assert all(box.height < 0.9 * pitch for box in boxes)
        assert any("\n" in axis.get_ylabel() for axis in axes)


def test_six_panels_have_two_rows(tmp_path):
    """As curves on validation examples, too; in one row, each was so narrow that a single round had a number."""
    names = ("accuracy_micro", "f1_micro", "loss")
    values = {name: np.ones((2, 4)) for own in names for name in (own, f"validation_{own}")}
    shown = plotting.curves(folders.run(tmp_path / "run", **values))
    assert [axis.get_visible() for axis in shown.axes] == [True] * 6
    assert shown.axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 3)


@pytest.mark.parametrize("name", ["model_similarity", "distances"])
@pytest.mark.parametrize("clusters", [1, 3, 18])
def test_models_have_room_in_a_column_of_a_paper(one, many_clusters, tmp_path, name, clusters):
    """At the width where `jcfl plot --width 3.4` leaves text as large as it is."""
    alone = np.zeros((4, folders.CLIENTS), int)
    run = {3: one, 18: many_clusters}.get(clusters) or folders.run(tmp_path / "run", labels=alone)
    ((_, shown),) = plotting.drawn(plotting.histories(run), [name], columns=1)
    assert shown.get_figwidth() <= style.COLUMN
    shown.draw_without_rendering()
    titles = [text for axis in shown.axes for text in (axis.title, axis.xaxis.label, axis.yaxis.label)]
    boxes = [text.get_window_extent() for text in titles if text.get_text()]
    assert len(boxes) >= 3
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= shown.bbox.x1 and box.y1 <= shown.bbox.y1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


@pytest.mark.parametrize(("clusters", "readable"), [(10, True), (14, False)])
def test_numbers_in_a_matrix_do_not_meet(tmp_path, clusters, readable):
    """They are smaller where there are more clusters, and left out where they would be too small to read."""
    groups = np.repeat(np.arange(clusters), 3)
    run = folders.run(tmp_path / "run", [0], labels=np.stack([groups] * 4), groups=groups)
    for columns in (None, 1):
        shown = plotting.model_similarity(run, columns=columns)
        shown.draw_without_rendering()
        boxes = [text.get_window_extent() for text in shown.axes[0].texts]
        assert len(boxes) == (clusters * (clusters - 1) if readable else 0)
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


@pytest.fixture(scope="module")
def one_round(tmp_path_factory):
    """A run of two seeds that was evaluated once."""
    run = results.load(folders.run(tmp_path_factory.mktemp("once") / "run"))
    last = {name: getattr(run, name)[:, -1:] for name in ("labels", "accuracy_clients")}
    scores = {name: values[:, -1:] for name, values in run.scores.items()}
    return dataclasses.replace(run, rounds=run.rounds[-1:], scores=scores, **last)


def test_one_round_is_one_whole_number(one_round):
    for draw in (plotting.curves, plotting.clusters, plotting.by_cluster, plotting.sizes, plotting.stability):
        for axis in draw(one_round).axes:
            assert written(axis.xaxis) == ["8"]


def test_one_round_of_several_seeds_has_a_bar_of_one_deviation(one_round):
    """A band has no width there."""
    accuracy = plotting.curves(one_round, ["accuracy_micro"]).axes[0]
    (bar,) = accuracy.containers
    (segment,) = bar.lines[2][0].get_segments()
    np.testing.assert_allclose(segment, [[8, 0.66 - 0.01 * 2**0.5], [8, 0.66 + 0.01 * 2**0.5]])
    assert [line.get_xdata().tolist() for line in accuracy.lines if line.get_marker() == "o"] == [[8]]
    alone = dataclasses.replace(one_round, seeds=one_round.seeds[:1], scores={"loss": one_round.scores["loss"][:1]})
    assert not plotting.curves(alone, ["loss"]).axes[0].containers


def test_a_group_of_one_client_has_no_cosine_of_its_own(tmp_path):
    groups = np.array([0, 0, 0, 1, 1, 2])
    run = folders.run(tmp_path / "run", [0], groups=groups, labels=np.stack([groups] * 4))
    axis = plotting.group_similarity(run).axes[0]
    assert len(axis.texts) == 8 and not any("nan" in text.get_text() for text in axis.texts)
    alone = folders.run(tmp_path / "alone", [0], groups=groups[:1], labels=np.zeros((4, 1), int))
    with pytest.raises(InputError, match=r"alone: expected cosines of two clients .*, got one client"):
        plotting.group_similarity(alone)


def test_figures_of_one_of_several_seeds_say_which(one):
    shows = [name for name, draw in plotting.SINGLE.items() if "seed" in inspect.signature(draw).parameters]
    said = {name: [text.get_text() for text in plotting.FIGURES[name](one, seed=1).findobj(Text)] for name in shows}
    assert not [name for name, texts in said.items() if not any("seed 1" in text for text in texts)]


@pytest.mark.parametrize("columns", [None, 1])
def test_distances_of_many_clusters_are_no_taller_than_wide(tmp_path, columns):
    clusters = np.arange(60)
    run = folders.run(tmp_path / "run", [0], groups=clusters, labels=np.stack([clusters] * 4))
    shown = plotting.distances(run, columns=columns)
    shown.draw_without_rendering()
    width, height = shown.get_size_inches()
    assert height <= width
    (axis,) = (axis for axis in shown.axes if axis.get_ylabel() == "model of cluster")
    boxes = [label.get_window_extent() for label in axis.get_yticklabels()]
    assert len(boxes) >= 10
    assert all(above.y0 > below.y1 for above, below in itertools.pairwise(boxes))


def test_a_single_client_is_written_in_the_singular(tmp_path):
    alone = results.load(folders.run(tmp_path / "alone", [0], groups=np.zeros(1, int), labels=np.zeros((4, 1), int)))
    decided = folders.DECIDED | {"sizes": [1]}
    alone = dataclasses.replace(alone, summary=alone.summary | {"decided": decided})
    names = ["flow", "groups_to_clusters", "heatmap", "distances", "decision", "apart", "similarity"]
    figures = [plotting.FIGURES[name](alone) for name in names]
    words = [text.get_text() for shown in figures for text in shown.findobj(Text)]
    assert len([text for text in words if "1 client" in text]) >= 7
    assert not [text for text in words if re.search(r"\b1 (true )?\w+s\b", text)]


def test_legends_of_means_say_what_their_names_are(tmp_path):
    groups = np.where(np.arange(folders.CLIENTS) < 3, -1, folders.GROUPS)
    clusters, true = plotting.by_cluster(folders.run(tmp_path / "run", groups=groups)).axes
    assert clusters.get_legend().get_title().get_text() == "cluster"
    assert [text.get_text() for text in true.get_legend().get_texts()][-1] == "unknown"


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ({"seeds": (-0.02, 0.03), "clients": None}, ["over seeds"]),
        ({"seeds": None, "clients": (-0.02, 0.03)}, ["over clients"]),
        ({"seeds": (-0.02, 0.03), "clients": (-0.01, 0.02)}, ["over seeds", "over clients"]),
        ({"seeds": None, "clients": None}, ["no interval"]),
    ],
)
def test_differences_say_what_their_intervals_are(intervals, expected):
    rows = [{"method": "fedavg", "difference": None}, {"method": "ifca", "difference": {"mean": 0.01, **intervals}}]
    one = {"metric": "accuracy_micro", "federations": [{"federation": "digits", "rows": rows}]}
    with style.matplotlib.rc_context(style.STYLE):
        (legend,) = figures.differences(one, "fedavg").legends
    assert [text.get_text() for text in legend.get_texts()] == expected


def crosses(axis):
    return [one.get_offsets().tolist() for one in axis.collections if one.get_label() == style.LACKING]


def test_a_cross_says_that_some_seeds_have_no_value(tmp_path, recwarn):
    """The mean is that of the others, and of no seed there is none; neither was to be seen."""
    diverged = {"accuracy_micro": [[0.5, 0.55, 0.6, 0.65], [0.4, 0.45, np.nan, np.nan]]}
    nothing = {"accuracy_micro": [[0.5, 0.5, 0.5, np.nan]] * 2}
    shown = plotting.curves(folders.run(tmp_path / "one", **diverged))
    assert crosses(shown.axes[0]) == [[[6, 0.6], [8, 0.65]]] and not crosses(shown.axes[1])
    assert [text.get_text() for text in shown.legends[0].get_texts()] == ["one", "not all seeds have a value"]
    tau = lambda value: {"method": {"name": "stocfl", "tau": value}}
    runs = [folders.run(tmp_path / str(x), settings=tau(x), **own) for x, own in ((0.1, diverged), (0.2, nothing))]
    shown = plotting.effect([*runs, folders.run(tmp_path / "whole", settings=tau(0.3))])
    assert crosses(shown.axes[0]) == [[[0.1, 0.65]]] and len(shown.legends) == 1
    addons = lambda count: {"method": {"name": "ifca", "addons": [{"name": "cam"}] * count}}
    runs = [folders.run(tmp_path / f"b{i}", settings=addons(i), **own) for i, own in enumerate((diverged, nothing))]
    (marks,) = crosses(plotting.with_addons(runs, scores=["accuracy_micro"]).axes[0])
    assert [y for _, y in marks] == [0.65]
    spent = [[1.0] * 3 + [2.0]] * 2
    runs = [folders.run(tmp_path / f"p{i}", epsilon=spent, **own) for i, own in enumerate((diverged, nothing))]
    assert crosses(plotting.privacy(runs, scores=["accuracy_micro"]).axes[0]) == [[[2.0, 0.65]]]
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]


def test_lines_are_between_clusters_that_have_room_for_them(many_clusters, tmp_path):
    """The lines between 40 clusters hid a fifth of their cosines."""
    matrix = lambda run: max(
        (axis for axis in plotting.similarity(run).axes if axis.images), key=lambda a: len(a.lines)
    )
    groups = np.repeat(np.arange(40), 3)
    assert len(matrix(folders.run(tmp_path / "three")).lines) == 4  # two across and two down
    assert not matrix(folders.run(tmp_path / "forty", groups=groups, labels=np.tile(groups, (4, 1)))).lines


def test_numbers_below_zero_have_one_minus_sign(tmp_path):
    """Cells and per cents had a hyphen beside the minus of axes."""
    shown = plotting.group_similarity(folders.run(tmp_path / "run"))
    texts = [text.get_text() for text in shown.axes[0].texts]
    assert any(text.startswith("−") for text in texts) and not any("-" in text for text in texts)
    loss = plotting.curves(folders.run(tmp_path / "below", accuracy_micro=[[-0.2, 0.0, 0.1, 0.2]] * 2)).axes[0]
    loss.figure.draw_without_rendering()
    assert any(text.get_text().startswith("−") for text in loss.get_yticklabels())
    assert lines.said("method.tau", -0.5) == "tau = −0.5"


def test_names_of_many_bars_and_of_long_methods_are_told_apart(tmp_path):
    addons = lambda count: [{"name": "cam"}] * count
    names = ["ifca", "fesem", "wecfl", "a_very_long_method_name", "stocfl", "fedavg"]
    runs = [
        folders.run(tmp_path / f"{name}{count}", settings={"method": {"name": name, "addons": addons(count)}})
        for name in names
        for count in (0, 1)
    ]
    shown = plotting.with_addons(runs)
    shown.draw_without_rendering()
    assert {label.get_rotation() for axis in shown.axes for label in axis.get_xticklabels()} == {30}
    few = plotting.with_addons(runs[:4])
    assert {label.get_rotation() for axis in few.axes for label in axis.get_xticklabels()} == {0}
    long = [f"stocfl+finetune+exclude (tau=0.1, lam=0.05, warmup={x})" for x in (3, 5)]
    runs = [folders.run(tmp_path / "long" / name) for name in long]
    names = [text.get_text() for text in plotting.curves(runs).legends[0].get_texts()]
    assert len(set(names)) == 2 and [name[-3:] for name in names] == ["=3)", "=5)"] and max(map(len, names)) == 40


def test_a_narrow_axis_of_rounds_has_two_numbers(tmp_path):
    shown = plotting.curves(folders.run(tmp_path / "run", epsilon=[[1, 2, 3, 4]] * 2))
    shown.draw_without_rendering()
    for axis in shown.axes:
        low, high = axis.get_xlim()
        assert len([tick for tick in axis.get_xticks() if low <= tick <= high]) >= 2


def test_an_accuracy_between_rounds_without_one_is_seen(tmp_path):
    """Clients without a cluster were in the legend, and their only accuracy was a line without a length."""
    labels = np.stack([np.full(folders.CLIENTS, -1), *[folders.GROUPS] * 3])
    drawn = {
        line.get_label(): line
        for line in plotting.by_cluster(folders.run(tmp_path / "run", labels=labels)).axes[0].lines
    }
    assert drawn["none yet"].get_marker() == "o" and drawn["1"].get_marker() in ("None", None)
