"""Figures: that they show the numbers of the run, whatever its names and however far it came."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.text import Text
from scipy.spatial.distance import squareform
from sklearn.decomposition import PCA

import jcfl
from jcfl import cli, results
from jcfl.errors import InputError, Notice
from jcfl.runs.config import Config
from jcfl.runs.provenance import LOOSE
from jcfl.view import plotting
from jcfl.view.plotting import cosines, lines, membership, style
from jcfl.view.plotting.membership import told_apart
from tests import folders

EVERY = sorted(plotting.FIGURES)
LARGEST = (2, 0, 1)  # the groups of the clusters in their order: all are of one size, and the first was so for longest


@pytest.fixture
def one(tmp_path):
    return folders.run(tmp_path / "one")


@pytest.fixture
def several(tmp_path):
    """Four runs that differ in tau and lam, as a sweep leaves them."""
    for i, (tau, lam) in enumerate(itertools.product((0.3, 0.6), (0.0, 0.5))):
        method = {"method": {"name": "stocfl", "tau": tau, "lam": lam}}
        accuracy = [[0, 0, 0, 0.1 * i], [0, 0, 0, 0.1 * i + 0.2]]
        folders.run(tmp_path / "sweep" / "runs" / f"run{i}", settings=method, accuracy_micro=accuracy)
    return tmp_path / "sweep"


def largest_image(axes):
    return max((axis for axis in axes if axis.images), key=lambda axis: axis.images[0].get_array().size)


def labels_in(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_curves_are_means_with_bands_of_one_deviation(one):
    accuracy, _, loss = plotting.curves(one).axes
    (line,), (band,) = accuracy.lines, accuracy.collections
    np.testing.assert_array_equal(line.get_xdata(), folders.ROUNDS)
    np.testing.assert_allclose(line.get_ydata(), [0.51, 0.56, 0.61, 0.66])
    edges = band.get_paths()[0].vertices
    np.testing.assert_allclose([edges[:, 1].min(), edges[:, 1].max()], [0.51 - 0.01 * 2**0.5, 0.66 + 0.01 * 2**0.5])
    np.testing.assert_allclose(loss.lines[0].get_ydata(), [1, 1 / 2, 1 / 3, 1 / 4])
    assert accuracy.get_ylabel() == "accuracy"


def test_quality_has_a_panel_for_each_measure(one, tmp_path):
    axes = [axis for axis in plotting.quality(one).axes if axis.get_visible()]
    assert [axis.get_ylabel() for axis in axes] == ["clusterability B", "smoothness β"]
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), [2, 1.75, 1.5, 1.25])
    np.testing.assert_allclose(axes[1].lines[0].get_ydata(), [1.5] * 4)
    nan = np.full((2, 4), np.nan)
    without = folders.run(tmp_path / "without", clusterability=nan, smoothness=nan)
    with pytest.raises(InputError, match="evaluate_quality: true"):
        plotting.quality(without)


def test_one_seed_has_no_band_and_a_cut_off_seed_counts_where_it_is(tmp_path):
    alone = plotting.curves(folders.run(tmp_path / "alone", seeds=(3,)))
    assert not alone.axes[0].collections
    path = folders.run(tmp_path / "cut", seeds=(0, 1))
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    results.Folder(path).put_text("metrics.jsonl", "".join(lines[:-1]))  # seed 1 lacks its last evaluation
    (line,) = plotting.curves(path, scores=["accuracy_micro"]).axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [0.51, 0.56, 0.61, 0.65])


def test_runs_are_laid_over_each_other_and_told_apart(several, tmp_path):
    shown = plotting.curves(several, scores=["accuracy_micro"])
    assert labels_in(shown.legends[0]) == ["run0", "run1", "run2", "run3"]
    looks = {(line.get_color(), line.get_linestyle(), line._unscaled_dash_pattern[1]) for line in shown.axes[0].lines}
    assert len(looks) == 4
    twice = plotting.histories([folders.run(tmp_path / "a" / "run"), folders.run(tmp_path / "b" / "run")])
    assert plotting.titles(twice) == ["a/run", "b/run"]


def test_unknown_scores_figures_and_options_are_refused(one, several):
    with pytest.raises(InputError, match="did you mean 'accuracy_micro'"):
        plotting.curves(one, scores=["acuracy_micro"])
    with pytest.raises(InputError, match="did you mean 'curves'"):
        list(plotting.drawn(plotting.histories(one), ["curve"]))
    with pytest.raises(InputError, match=r"did you mean 'method\.tau'"):
        plotting.effect(several, key="method.taw")
    with pytest.raises(InputError, match="no number in the configurations differs"):
        plotting.effect(one)
    with pytest.raises(InputError, match="has no seed 9; it has 0, 1"):
        plotting.flow(one, seed=9)
    with pytest.raises(InputError, match="shows one run"):
        plotting.embedding([one, one])


def test_one_score_may_be_given_by_its_name_alone(one, several):
    assert [axis.get_ylabel() for axis in plotting.curves(one, "purity").axes] == ["purity"]
    assert [axis.get_ylabel() for axis in plotting.effect(several, scores="purity").axes] == ["purity"]


@pytest.mark.parametrize("runs", [None, 3])
@pytest.mark.parametrize("draw", [plotting.curves, jcfl.explain, lambda runs: plotting.save(runs, "f.png")])
def test_what_is_no_run_and_no_figure_is_refused(draw, runs):
    with pytest.raises(InputError, match=rf"expected (histories or folders|a figure), got {runs}"):
        draw(runs)


def test_a_score_is_offered_by_its_title(tmp_path):
    run = folders.run(tmp_path / "run", accuracy_p5=np.full((2, 4), 0.5))
    with pytest.raises(InputError, match="unknown score 'accuracy'; did you mean 'accuracy_micro'"):
        plotting.curves(run, scores=["accuracy"])


def test_privacy_has_epsilon_on_its_axis_and_a_line_for_each_method(tmp_path):
    """Points are in the order of ε; a run without privacy is a level line."""
    spent = lambda epsilon: [[epsilon / 2] * 3 + [epsilon]] * 2
    paths = [folders.run(tmp_path / f"run{i}", epsilon=spent(x)) for i, x in enumerate((100.0, 1.0))]
    paths += [folders.run(tmp_path / "bare"), folders.run(tmp_path / "ifca", name="ifca", epsilon=spent(10.0))]
    accuracy, ari = plotting.privacy(paths).axes
    assert ari.get_ylabel() == "adjusted Rand index"
    lines = [container.lines[0] for container in accuracy.containers]
    assert [line.get_xdata().tolist() for line in lines] == [[1.0, 100.0], [10.0]]
    assert len(accuracy.lines) == 1 + sum(1 + len(container.lines[1]) for container in accuracy.containers)
    assert accuracy.get_xscale() == "log"
    accuracy.figure.canvas.draw()
    assert not any("$" in label.get_text() for label in accuracy.get_xticklabels())
    with pytest.raises(InputError, match="no run has ε"):
        plotting.privacy(paths[2])


def test_clusters_are_counted_beside_the_true_groups(one):
    counts, ari = plotting.clusters(one).axes
    line, true = counts.lines
    assert line.get_ydata().tolist() == [0, 3, 2, 3]
    assert set(true.get_ydata()) == {3}
    assert ari.get_ylabel() == "adjusted Rand index"


def test_runs_without_clusters_are_left_out(tmp_path):
    none = np.full((4, folders.CLIENTS), -1)
    paths = [folders.run(tmp_path / "own"), folders.run(tmp_path / "majority", labels=none)]
    shown = plotting.clusters(paths)
    assert all(len([line for line in axes.lines if len(line.get_xdata()) > 2]) == 1 for axes in shown.axes)
    with pytest.raises(InputError, match="no run has clusters"):
        plotting.clusters(paths[1])


def test_effect_has_an_option_on_its_axis_and_a_line_for_each_other(several):
    shown = plotting.effect(several, key="method.tau", scores=["accuracy_micro"])
    (axes,) = shown.axes
    assert labels_in(shown.legends[0]) == ["lam = 0", "lam = 0.5"]
    points = [container.lines[0].get_xydata().tolist() for container in axes.containers]
    np.testing.assert_allclose(points, [[[0.3, 0.1], [0.6, 0.3]], [[0.3, 0.2], [0.6, 0.4]]])
    bars = axes.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose([bar[1, 1] - bar[0, 1] for bar in bars], [0.2 * 2**0.5, 0.2 * 2**0.5])
    failed = plotting.histories(several)
    failed[0].summary["failed"] = "training diverged"
    left = plotting.effect(failed, key="method.tau", scores=["accuracy_micro"]).axes[0].containers
    assert sum(len(container.lines[0].get_xydata()) for container in left) == 3


def test_effect_has_a_line_for_each_method(tmp_path):
    """Names, and options that only one method has, tell runs apart too."""
    for i, (name, lr) in enumerate(itertools.product(("stocfl", "local"), (0.01, 0.1))):
        more = {"method": {"name": name} | ({"tau": 0.5} if name == "stocfl" else {}), "train": {"lr": lr}}
        folders.run(tmp_path / f"run{i}", settings=more, accuracy_micro=[[0, 0, 0, 0.1 * i]] * 2)
    shown = plotting.effect([tmp_path / f"run{i}" for i in range(4)], scores=["accuracy_micro"])
    assert labels_in(shown.legends[0]) == ["stocfl", "local"]
    points = [container.lines[0].get_xydata().tolist() for container in shown.axes[0].containers]
    np.testing.assert_allclose(points, [[[0.01, 0], [0.1, 0.1]], [[0.01, 0.2], [0.1, 0.3]]])


def test_embedding_says_which_clients_have_no_cluster(one):
    run = results.load(one)
    run.labels = run.labels.copy()
    run.labels[:, -1, 0] = -1
    run.groups = np.where(np.arange(folders.CLIENTS) == 1, -1, run.groups)
    clusters, truth = plotting.embedding(run).axes
    assert labels_in(clusters.get_legend())[0] == "no cluster"
    assert labels_in(truth.get_legend())[0] == "unknown"


def test_embedding_colours_clusters_and_groups_alike_and_keeps_neighbours(one):
    shown = plotting.embedding(one)
    clusters, truth = shown.axes
    assert (clusters.get_title(), truth.get_title()) == ("3 clusters after round 8, seed 0", "3 true groups")
    places = [np.concatenate([dots.get_offsets() for dots in axes.collections]) for axes in shown.axes]
    assert places[0].shape == (folders.CLIENTS, 2)
    found, true = ({to_hex(d.get_facecolor()[0]): d.get_offsets() for d in a.collections} for a in (clusters, truth))
    assert len(found) == 3
    for shade, dots in true.items():
        np.testing.assert_array_equal(dots, found[shade])
    for dots in truth.collections:  # a client's nearest neighbours are of its own group
        own = dots.get_offsets()
        away = np.linalg.norm(own[:, None] - places[1][None], axis=-1)
        among = np.linalg.norm(own[:, None] - own[None], axis=-1)
        assert (np.sort(away, 1)[:, 1] == np.sort(among, 1)[:, 1]).all()
    again = np.concatenate([dots.get_offsets() for dots in plotting.embedding(one).axes[0].collections])
    np.testing.assert_array_equal(places[0], again)


def test_embedding_at_earlier_rounds(one):
    shown = plotting.embedding(one, at=[3, 6], by="pca")
    assert [axes.get_title()[:10] for axes in shown.axes] == ["0 clusters", "2 clusters", "3 true gro"]


def test_one_vector_has_a_place_too():
    np.testing.assert_array_equal(cosines.principal_axes(np.ones((1, 1))), [[0.0, 0.0]])


def test_principal_axes_are_those_of_the_vectors():
    psi = folders.vectors()
    found, expected = cosines.principal_axes(psi @ psi.T), PCA(2).fit_transform(psi)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-6)


def test_square_is_the_matrix_of_its_upper_triangle():
    upper = np.arange(1.0, 11.0)
    np.testing.assert_array_equal(cosines.full_matrix(upper, 5), squareform(upper) + np.eye(5))


def test_similarity_is_ordered_by_cluster(one):
    shown = plotting.similarity(one)
    (matrix,) = [
        axes.images[0].get_array() for axes in shown.axes if axes.images and axes.images[0].get_array().size == 900
    ]
    psi, last = folders.vectors(), folders.moving()[-1]
    order = np.concatenate([np.flatnonzero(last == label) for label in (12, 7, 3)])  # of one size now; 12 was largest
    np.testing.assert_allclose(matrix, (psi @ psi.T)[np.ix_(order, order)], atol=1e-6)


def test_cosines_of_groups_are_means_over_pairs_of_clients(one, tmp_path):
    axis = plotting.group_similarity(one).axes[0]
    psi, groups = folders.vectors(), results.load(one).groups
    for a, b in itertools.product(range(3), repeat=2):
        who = itertools.product(np.flatnonzero(groups == a), np.flatnonzero(groups == b))
        expected = np.mean([psi[i] @ psi[j] for i, j in who if i != j])
        assert axis.images[0].get_array()[a, b] == pytest.approx(expected, abs=1e-6)
    assert axis.texts[0].get_text() == f"{axis.images[0].get_array()[0, 0]:.2f}"
    with pytest.raises(InputError, match="true groups of its clients are not known"):
        plotting.group_similarity(folders.run(tmp_path / "unknown", groups=np.full(folders.CLIENTS, -1)))


def test_sizes_stack_to_all_clients(one):
    shown = plotting.sizes(one)
    (axes,) = shown.axes
    assert labels_in(axes.get_legend()) == ["held out (1)", "none yet (0)", "3 (10)", "2 (9)", "1 (10)"]
    tops = [layer.get_paths()[0].vertices[:, 1].max() for layer in axes.collections]
    assert tops[-1] == folders.CLIENTS


def test_every_cluster_and_every_group_has_its_accuracy_over_rounds(one):
    """Zeng et al. 2023, Fig. 5."""
    by_cluster, by_group = plotting.by_cluster(one).axes
    found = results.load(one)
    labels, accuracy = folders.moving(), found.accuracy_clients[0]
    counted = ~folders.federation()["held_out"]
    assert labels_in(by_cluster.get_legend()) == ["1", "2", "3", "none yet"]
    lines = {line.get_label(): line for line in by_group.lines}
    assert sorted(lines) == ["group 0", "group 1", "group 2"]
    last = {line.get_label(): line.get_ydata()[-1] for line in by_cluster.lines}
    expected = sorted(accuracy[-1, (labels[-1] == slot) & counted].mean() for slot in (3, 7, 12))
    np.testing.assert_allclose(sorted(value for value in last.values() if not np.isnan(value)), expected, rtol=1e-6)
    np.testing.assert_allclose(lines["group 1"].get_ydata(), accuracy[:, folders.GROUPS == 1].mean(1), rtol=1e-6)
    with pytest.raises(InputError, match="no accuracy for each client"):
        plotting.by_cluster(dataclasses.replace(found, accuracy_clients=np.zeros((2, 0, 0))))


def test_the_accuracy_of_a_true_group_is_that_of_its_clients_at_the_time(one):
    """Before the last evaluated round clients exchanged their data, and with them their groups."""
    found, everybody = results.load(one), np.arange(folders.CLIENTS)
    turned, last = np.roll(everybody, 10), found.rounds[-1]
    holds = {"drift_rounds": np.array([last - 1]), "drift_holds": np.stack([everybody, turned])}
    found = dataclasses.replace(found, groups=folders.GROUPS[turned])
    found.held = functools.partial(dict, groups=folders.GROUPS, **holds)
    lines = {line.get_label(): line.get_ydata() for line in plotting.by_cluster(found).axes[1].lines}
    counted = ~folders.federation()["held_out"]
    for turn, groups in ((0, folders.GROUPS), (-1, folders.GROUPS[turned])):
        mine = found.accuracy_clients[0, turn, (groups == 1) & counted]
        assert lines["group 1"][turn] == pytest.approx(mine.mean())


def test_flow_has_a_band_for_every_move(one):
    shown = plotting.flow(one)
    (axes,) = shown.axes
    labels = np.where(folders.federation()["held_out"], -3, folders.moving())
    bands = sum(len(set(zip(a.tolist(), b.tolist(), strict=True))) for a, b in itertools.pairwise(labels))
    bars = [patch for patch in axes.patches if hasattr(patch, "get_height")]
    assert len(axes.patches) - len(bars) == bands
    for turn, now in enumerate(labels):
        heights = sorted(bar.get_height() for bar in bars if abs(bar.get_x() + bar.get_width() / 2 - turn) < 1e-9)
        assert heights == pytest.approx(sorted(np.unique(now, return_counts=True)[1]))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "4", "6", "8"]


def test_bands_fill_the_blocks_they_leave_and_come_to(one):
    axes = plotting.flow(one).axes[0]
    spans = lambda pairs: sorted((round(low, 6), round(high, 6)) for low, high in pairs)
    bars = [bar for bar in axes.patches if hasattr(bar, "get_height")]
    ends = [patch.get_path().vertices for patch in axes.patches if not hasattr(patch, "get_height")]
    for turn in range(4):
        blocks = spans(
            (b.get_y(), b.get_y() + b.get_height()) for b in bars if round(b.get_x() + b.get_width() / 2) == turn
        )
        for side, (low, high) in ((turn, (0, 7)), (turn - 1, (3, 4))):  # bands that leave, bands that come
            mine = spans((v[low, 1], v[high, 1]) for v in ends if round(v[:, 0].mean() - 0.5) == side)
            for bottom, top in blocks if mine else ():
                inside = [span for span in mine if bottom <= span[0] and span[1] <= top]
                assert [bottom, *(end for _, end in inside)] == [*(start for start, _ in inside), top]


def test_bands_lead_from_groups_to_clusters_in_the_colours_of_groups(tmp_path):
    labels = folders.moving()
    labels[-1, :4] = 3  # of group 0, whose others are in slot 7; slot 3 is group 1's
    axis = plotting.groups_to_clusters(folders.run(tmp_path / "run", labels=labels)).axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert texts == [
        *("1 (10)", "2 (10)", "0 (10)", "true group (clients)"),
        *("1 (14)", "2 (10)", "3 (5)", "held out (1)", "cluster (clients)"),
    ]
    bands = [patch for patch in axis.patches if isinstance(patch, PathPatch)]
    sizes = {(to_hex(band.get_facecolor()), round(np.ptp(band.get_path().vertices[[0, 7], 1]))) for band in bands}
    first, second, third = (style.colour(i).lower() for i in range(3))
    assert sizes == {(first, 10), (second, 10), (third, 5), (third, 4), (third, 1)}
    with pytest.raises(InputError, match="true groups of its clients are not known"):
        plotting.groups_to_clusters(folders.run(tmp_path / "unknown", groups=np.full(folders.CLIENTS, -1)))


def test_bars_stand_beside_each_other_where_add_ons_alone_differ(tmp_path):
    cam, kinds = [{"name": "cam"}], {}
    for k, extras in itertools.product((3, 5), ([], cam)):
        kinds[f"ifca{k}{len(extras)}"] = {"name": "ifca", "clusters": k, "addons": extras}
    kinds |= {"fesem": {"name": "fesem", "clusters": 3, "addons": []}}
    for i, (name, method) in enumerate(kinds.items()):
        accuracy = [[0, 0, 0, 0.1 * i], [0, 0, 0, 0.1 * i + 0.2]]
        folders.run(tmp_path / name, settings={"method": method}, accuracy_micro=accuracy)
    shown = plotting.with_addons([tmp_path / name for name in kinds])
    axis = shown.axes[0]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["ifca\nclusters = 3", "ifca\nclusters = 5"]
    assert labels_in(shown.legends[0]) == ["without", "cam"]
    np.testing.assert_allclose([bar.get_height() for bar in axis.patches], [0.1, 0.3, 0.2, 0.4])  # without, then with
    lengths = [np.ptp(line[:, 1]) for bars in axis.collections for line in bars.get_segments()]
    np.testing.assert_allclose(lengths, 2 * 0.1 * 2**0.5)
    with pytest.raises(InputError, match="differ in their add-ons alone"):
        plotting.with_addons([tmp_path / "fesem", tmp_path / "ifca30"])


def test_flow_chooses_the_rounds_with_most_moves():
    labels = np.zeros((20, 10), int)
    for turn in (3, 5, 6, 11, 12, 17):
        labels[turn:, : turn % 7 + 1] += 1  # as many move as the slice is long
    moved = [(labels[turn] != labels[turn - 1]).sum() for turn in range(1, 20)]
    most = sorted(np.argsort(moved)[::-1][: membership.STOPS - 2] + 1)
    assert membership.chosen_evaluations(labels).tolist() == sorted({0, *most, 19})


def test_clients_are_a_distribution_and_the_worst(one):
    left, right = plotting.clients(one).axes
    accuracy = np.load(one / "clusters.npz")["accuracy_clients"][:, -1].mean(0)
    accuracy[folders.federation()["held_out"]] = np.nan
    line = left.lines[0]
    x, y = line.get_xdata()[1:], line.get_ydata()[1:]
    for value in (0.3, 0.5, 0.7):
        assert y[x <= value].max() == pytest.approx((accuracy <= value).sum() / (folders.CLIENTS - 1))
    worst = np.argsort(accuracy)[:15]
    assert [tick.get_text() for tick in right.get_yticklabels()] == [f"{i} (group {folders.GROUPS[i]})" for i in worst]
    np.testing.assert_allclose(right.lines[0].get_xdata(), accuracy[worst])


def test_heatmap_has_a_column_for_every_client_by_group(one):
    facts = folders.federation()
    (image,) = [axes.images[0] for axes in plotting.heatmap(one).axes if axes.images and axes.get_ylabel() == "label"]
    shares = image.get_array()
    assert shares.shape == (folders.CLASSES, folders.CLIENTS)
    np.testing.assert_allclose(shares.sum(0), 1)
    expected = facts["train"] / facts["train"].sum(1, keepdims=True)
    for group in range(3):
        mine = shares.T[10 * group : 10 * group + 10]
        np.testing.assert_allclose(np.sort(mine, 0), np.sort(expected[group == folders.GROUPS], 0))


def test_samples_are_of_their_cluster_in_frames_of_their_group(one):
    shown = plotting.samples(one)
    facts = folders.federation()
    used = [axes for axes in shown.axes if axes.images]
    assert len(used) == 15
    frames = {}
    for axes in used:
        picture = (np.asarray(axes.images[0].get_array()) * (np.ptp(facts["images"])) + facts["images"].min()).round()
        (index,) = np.flatnonzero((facts["images"][..., 0] == picture).all((1, 2)))
        frames.setdefault(folders.GROUPS[facts["pictured"][index]], set()).add(
            to_hex(axes.spines["left"].get_edgecolor())
        )
    assert sorted(map(len, frames.values())) == [1, 1, 1]
    assert len(set.union(*frames.values())) == 3


def test_no_images_no_samples(tmp_path):
    path = folders.run(tmp_path / "run")
    (path / "federation.npz").unlink()
    with pytest.raises(InputError, match="--resume"):
        plotting.samples(path)
    results.Folder(path).federation(lambda: folders.federation() | {"images": np.zeros((0, 3))})
    with pytest.raises(InputError, match="not images"):
        plotting.samples(path)


@pytest.mark.parametrize("kind", plotting.FORMATS)
def test_files_are_what_their_ending_says_and_the_same_every_time(one, tmp_path, kind):
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind]
    for name in ("a", "b"):
        (file,) = plotting.save(plotting.curves(one), tmp_path / name / "curves", [kind])
        assert file == tmp_path / name / f"curves.{kind}"
        assert file.read_bytes().startswith(start)
    assert (tmp_path / "a" / f"curves.{kind}").read_bytes() == file.read_bytes()


def test_a_known_ending_is_the_format(one, tmp_path):
    shown = plotting.groups_to_clusters(one)
    saved = lambda *given: [file.name for file in plotting.save(shown, *given)]
    assert saved(tmp_path / "x.pdf") == ["x.pdf"]
    assert saved(str(tmp_path / "y.svg"), ["svg"]) == ["y.svg"]
    assert saved(tmp_path / "z") == ["z.png", "z.pdf"]
    assert saved(tmp_path / "lam=0.5") == ["lam=0.5.png", "lam=0.5.pdf"]
    assert saved(tmp_path / "z.pdf", ["png", "pdf"]) == ["z.pdf.png", "z.pdf.pdf"]
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")


def test_names_may_hold_anything(tmp_path):
    paths = [folders.run(tmp_path / name) for name in ("$x_{", "<b>&amp;", "a%b#c")]
    for name in ("curves", "clients"):
        plotting.save(plotting.FIGURES[name](paths), tmp_path / name, ["svg"])


@pytest.mark.parametrize("name", EVERY)
def test_nothing_evaluated_groups_unknown_one_round_and_many_clusters(tmp_path, name):
    if name in ("effect", "with_addons", "privacy"):  # which show how runs differ
        return
    draw = plotting.FIGURES[name]
    unknown = folders.run(tmp_path / "unknown", groups=np.full(folders.CLIENTS, -1))
    many = folders.run(tmp_path / "many", labels=np.tile(np.arange(folders.CLIENTS), (4, 1)))
    written = lambda shown: plotting.save(shown, tmp_path / name, ["png"])
    for path, shows in ((unknown, Figure.draw_without_rendering), (many, written)):  # most of the time goes into pixels
        refused = [("groups_to_clusters", unknown), ("group_similarity", unknown)]
        if (name, path) in [*refused, ("clusters", many)]:  # where every client is alone
            with pytest.raises(InputError):
                draw(path)
            continue
        shows(draw(path))
    short = folders.run(tmp_path / "short")
    lines = (short / "metrics.jsonl").read_text().splitlines(keepends=True)
    results.Folder(short).put_text("metrics.jsonl", lines[0])
    if name not in ("clusters", "distances", "stability", "apart"):  # in its first round this run has none
        draw(short).draw_without_rendering()
    results.Folder(short).put_text("metrics.jsonl", "")
    if name not in ("heatmap", "decision", "group_similarity"):
        with pytest.raises(InputError):
            draw(short)


def test_a_decision_is_drawn_where_there_was_one(one):
    error, count = plotting.decision(one).axes
    assert error.lines[1].get_xdata()[0] == folders.DECIDED["tau"]
    np.testing.assert_array_equal(count.lines[0].get_ydata(), folders.DECIDED["clusters"])
    undecided = dataclasses.replace(results.load(one), summary={})
    with pytest.raises(InputError, match="no option of the method was auto"):
        plotting.decision(undecided)


def test_clients_that_train_alone_are_no_clusters(tmp_path):
    alone = folders.run(tmp_path / "local", name="local", labels=np.tile(np.arange(folders.CLIENTS), (4, 1)))
    names = [name for name, _ in plotting.drawn(plotting.histories([alone]))]
    assert {"curves", "clients", "heatmap"} <= set(names)
    assert not {"sizes", "flow", "embedding"} & set(names)


def test_clients_that_left_are_not_those_to_come(tmp_path):
    labels = folders.moving()
    labels[2:, :4] = -1  # of whom the first two had been in a cluster
    labels[:2, :2], labels[:2, 2:4] = 3, -1
    shown = plotting.sizes(folders.run(tmp_path / "run", [0], labels=labels))
    (axes,) = shown.axes
    assert labels_in(axes.get_legend())[:3] == ["held out (1)", "left (2)", "none yet (2)"]
    assert axes.get_xlabel() == "round"  # of the only seed


def test_a_sample_of_clients_is_said_to_be_one(one):
    held = folders.federation()
    few = np.arange(0, folders.CLIENTS, 2)
    psi = folders.vectors()[few]
    part = held | {"compared": few, "cosine": (psi @ psi.T)[np.triu_indices(len(few), 1)].astype(np.float32)}
    (one / "federation.npz").unlink()
    results.Folder(one).federation(lambda: part)
    shown = plotting.embedding(one)
    clusters, _ = shown.axes
    assert clusters.get_title() == "3 clusters after round 8, seed 0"
    assert shown.get_supxlabel() == f"{len(few)} of {folders.CLIENTS} clients"
    shown.draw_without_rendering()
    (text,) = [text for text in shown.texts if text.get_text() == shown.get_supxlabel()]
    assert 0 <= text.get_window_extent().y0 < text.get_window_extent().y1 < clusters.get_legend().get_window_extent().y0


def test_names_beside_blocks_do_not_meet(tmp_path):
    """Nine clusters, most of them of one client."""
    labels = np.tile(np.minimum(np.arange(folders.CLIENTS), 10), (4, 1))
    shown = plotting.flow(folders.run(tmp_path / "run", [0], labels=labels))
    shown.draw_without_rendering()
    words = [Text.get_window_extent(text) for text in shown.axes[0].texts]  # without the lines to their blocks
    boxes = sorted(words, key=lambda box: box.y0)
    assert len(boxes) > 8
    assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(boxes))


def test_a_slot_that_other_clients_take_is_another_cluster():
    """In StoCFL a merge frees a slot, and a new client can get it."""
    labels = np.array([[0, 0, 1, -1], [0, 0, 0, -1], [0, 0, 0, 1]])
    np.testing.assert_array_equal(told_apart(labels), [[0, 0, 1, -1], [0, 0, 0, -1], [0, 0, 0, 2]])
    again = np.array([[0, 1], [0, 0], [0, 1]])
    np.testing.assert_array_equal(told_apart(again), again)


def test_a_narrow_figure_has_one_panel_in_a_row(one, tmp_path):
    words = ["plot", str(one), "--figure", "curves", "--format", "png", "--width", "3.4", "--out", str(tmp_path)]
    assert cli.status(words) == 0
    with (tmp_path / "curves.png").open("rb") as file:
        file.seek(16)
        width, height = (int.from_bytes(file.read(4), "big") for _ in range(2))
    assert width == round(3.4 * 300) < height


def test_runs_of_several_seeds_are_one_point(tmp_path):
    """Also where each seed has a federation of its own, whose seed is not an option to draw against."""
    runs = []
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            settings = {"scenario": {"name": "rotated", "seed": seed}, "train": {"lr": lr}}
            runs.append(folders.run(tmp_path / f"{lr}-{seed}", [seed], settings=settings))
    (line, *_), *_ = plotting.effect(runs).axes[0].containers
    assert line.get_xdata().tolist() == [0.1, 0.2]
    with pytest.raises(InputError, match="no number in the configurations differs"):
        plotting.effect(runs[:2])


def test_runs_that_train_otherwise_are_no_seeds(tmp_path):
    """Whichever part of the configuration differs; what is only evaluated or fitted to a machine makes no line."""
    attack = lambda share: {"attack": {"name": "label_flip", "share": share}}
    runs = [
        folders.run(tmp_path / f"{lr}-{share}", settings={"train": {"lr": lr}, **attack(share)})
        for lr in (0.1, 1.0)
        for share in (0.25, 0.5)
    ]
    shown = plotting.effect(runs, key="train.lr")
    assert [container.get_label() for container in shown.axes[0].containers] == ["share = 0.25", "share = 0.5"]
    assert plotting.effect(runs[:2]).axes[0].get_xlabel() == "attack.share"
    evaluated = {key for key in Config.model_fields if key.startswith("evaluate_")} | {"compare_models", "compare"}
    neutral = {*LOOSE, *evaluated, "seed", "seeds", "engine", "chosen_by"} - {"rounds"}
    assert set(lines.TRAINED) == set(Config.model_fields) - neutral
    addons = [{"name": "finetune"}]
    pairs = [
        folders.run(tmp_path / f"{len(added)}-{share}", settings={"method": {"name": "ifca", "addons": added}} | more)
        for added in ((), addons)
        for share, more in ((0.25, attack(0.25)), (0.5, attack(0.5)))
    ]
    names = [text.get_text() for text in plotting.with_addons(pairs).axes[0].get_xticklabels()]
    assert names == ["ifca\nshare = 0.25", "ifca\nshare = 0.5"]


def test_a_name_with_an_underscore_is_in_the_legend(one):
    history = results.load(one)
    shown = plotting.curves([dataclasses.replace(history, name=name) for name in ("_mine", "other")])
    assert [text.get_text().lstrip("\u200b") for text in shown.legends[0].get_texts()] == ["_mine", "other"]


def test_what_does_not_fit_is_a_notice(one, tmp_path):
    with pytest.warns(Notice, match="the figure may not look as intended: .*layout"):
        plotting.save(plotting.curves(one), tmp_path / "small", ["png"], width=0.5, font_size=40)


def test_other_fonts_are_those_of_the_machine_in_the_usual_weight():
    there = [("Noto Sans JP", 400), ("Malgun Gothic", "bold"), ("Unknown", 400), ("Noto Sans SC", "normal")]
    found = style.fonts(SimpleNamespace(name=name, weight=weight) for name, weight in there)
    assert found == ["DejaVu Sans", "Noto Sans SC", "Noto Sans JP"]


def test_only_characters_of_the_usual_font_are_text_in_a_pdf(one):
    shown = plotting.curves([dataclasses.replace(results.load(one), name=name) for name in ("one", "two")])
    assert style.is_usual(shown)
    shown.suptitle("\u8054\u90a6")  # "federated" in Chinese
    assert not style.is_usual(shown)


def test_width_and_font_are_those_asked_for(one, tmp_path):
    words = ["plot", str(one), "--figure", "curves", "--format", "png", "--width", "5", "--font-size", "12"]
    assert cli.status([*words, "--out", str(tmp_path)]) == 0
    with (tmp_path / "curves.png").open("rb") as file:
        file.seek(16)
        assert int.from_bytes(file.read(4), "big") == 5 * 300
    shown = plotting.curves(one)
    before = [text.get_fontsize() for text in shown.axes[0].get_xticklabels()]
    plotting.save(shown, tmp_path / "again", ["png"], font_size=12)
    assert [text.get_fontsize() for text in shown.axes[0].get_xticklabels()] == [1.5 * size for size in before]
    low, high = plotting.clients(one).axes[1].get_xlim()
    assert 0 <= low < high <= 1


def test_models_are_ordered_by_cluster(one):
    shown = plotting.model_similarity(one)
    rows = folders.vectors() + 3 * np.eye(6)[folders.GROUPS]
    centres = np.stack([rows[g == folders.GROUPS].mean(0) for g in LARGEST])
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    left, right = (largest_image(part.axes) for part in shown.subfigs)
    expected = unit(centres) @ unit(centres).T
    np.testing.assert_allclose(left.images[0].get_array()[0, 1:], expected[0, 1:], atol=1e-6)
    assert [text.get_text() for text in left.texts][:2] == [
        f"{value:.4f}".replace("-", "−") for value in expected[0, 1:]
    ]
    order = np.concatenate([np.flatnonzero(g == folders.GROUPS) for g in LARGEST])
    np.testing.assert_allclose(
        right.images[0].get_array(), (unit(rows) @ unit(rows).T)[np.ix_(order, order)], atol=1e-6
    )
    (part,) = {
        axis.images[0].get_array().shape for axis in plotting.model_similarity(one, cluster=2).subfigs[1].axes[2:3]
    }
    assert part == (10, 10)
    with pytest.raises(InputError, match="cluster 4 has no clients after round 8"):
        plotting.model_similarity(one, cluster=4)
    with pytest.raises(InputError, match="not compared after round 3; it has those of rounds 2, 4, 6, 8"):
        plotting.model_similarity(one, at=3)


def test_models_are_points_at_each_round(one):
    shown = plotting.model_embedding(one, by="pca")
    assert [axis.get_title() for axis in shown.axes if axis.get_visible()] == [
        *(f"round {round}, seed 0" for round in folders.ROUNDS),
        "true groups, round 8, seed 0",
    ]
    points = np.concatenate([mine.get_offsets() for mine in shown.axes[3].collections])
    rows = folders.vectors() + 3 * np.eye(6)[folders.GROUPS]
    expected = np.abs(PCA(2).fit_transform(rows))
    order = np.concatenate([np.flatnonzero(g == folders.GROUPS) for g in LARGEST])
    np.testing.assert_allclose(np.abs(points), expected[order], atol=1e-4)
    assert len([axis for axis in plotting.model_embedding(one, at=[2, 8]).axes if axis.get_visible()]) == 3


@pytest.mark.parametrize(("distance", "order"), [("euclidean", 2), ("l1", 1)])
def test_distances_are_those_to_the_clusters_models(one, distance, order):
    axes = plotting.distances(one, at=4, distance=distance).axes
    axis = next(axis for axis in axes if axis.get_ylabel() == "model of cluster")
    shown = axis.images[0].get_array()
    rows, labels = folders.vectors() + np.eye(6)[folders.GROUPS], folders.moving()[1]
    centres = np.stack([rows[labels == slot].mean(0) for slot in (12, 7, 3)])
    ranks = np.select([labels == 12, labels == 7, labels == 3], [0, 1, 2], 9)
    rows = rows[np.lexsort((np.array([1, 2, 0])[folders.GROUPS], ranks))]
    expected = np.linalg.norm(rows[:, None] - centres, ord=order, axis=-1).T
    np.testing.assert_allclose(shown, expected, atol=1e-5)


def test_distances_by_l1_need_a_run_that_has_them(tmp_path):
    run = results.load(folders.run(tmp_path / "run"))
    older = {name: rows for name, rows in results.models(run, 0, 8).items() if name != "model_l1"}
    run.models[0, 8] = older
    assert plotting.distances(run, at=8)
    with pytest.raises(InputError, match="older jcfl"):
        plotting.distances(run, at=8, distance="l1")


@pytest.mark.parametrize("name", ["model_similarity", "model_embedding", "distances"])
def test_figures_of_models_say_how_to_compare_them(tmp_path, name):
    for file in (folders.run(tmp_path / "run") / "models").iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"compare_models: \[8\]"):
        plotting.FIGURES[name](tmp_path / "run")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(-1, 6), min_size=5, max_size=5), min_size=1, max_size=4))
def test_ranked_renames_and_nothing_else(rows):
    labels = np.array(rows)
    found = style.ranked(labels)
    assert len(set(zip(labels.flat, found.flat, strict=True))) == len(set(labels.flat)) == len(set(found.flat))
    assert ((labels < 0) == (found < 0)).all()
    sizes = [(found[-1] == i).sum() for i in range(found.max() + 1)]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12))
def test_matched_gives_groups_the_numbers_that_agree_most(pairs):
    labels, groups = np.array(pairs).T
    found = style.matched(labels, groups)
    best = max((np.take(order, groups) == labels).sum() for order in itertools.permutations(range(3)))
    assert (found == labels).sum() == best
    assert len(set(zip(groups.tolist(), found.tolist(), strict=True))) == len(set(groups.tolist()))


def test_a_notebook_shows_a_figure(one):
    assert plotting.sizes(one)._repr_png_().startswith(b"\x89PNG")


def test_plot_draws_what_there_is_and_says_what_there_is_not(one, several, capsys, monkeypatch, tmp_path):
    assert cli.status(["plot", str(one), "--format", "svg"]) == 0  # as PNG other tests have them all
    there = {file.stem for file in (one / "figures").iterdir()}
    assert there == set(plotting.FIGURES) - {"effect", "with_addons", "privacy"}
    printed = capsys.readouterr().out
    assert "effect: not drawn, no number" in printed
    assert "privacy: not drawn, no run has ε" in printed
    monkeypatch.chdir(tmp_path)
    words = ["plot", str(one), str(several), "--figure", "curves,clusters", "--figure", "effect", "--format", "png"]
    assert cli.status(words) == 2  # `one` has no tau
    assert (tmp_path / "figures" / "clusters.png").is_file()
    words = ["plot", str(several), "--figure", "curves,groups_to_clusters", "--out", "here", "--format", "svg,pdf"]
    assert cli.status(words) == 0
    names = {"curves", *(f"groups_to_clusters-run{i}" for i in range(4))}
    assert {file.name for file in (tmp_path / "here").iterdir()} == {
        f"{n}.{kind}" for n in names for kind in ("svg", "pdf")
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "holds no run"),
        (["one", "--figure", "curvs"], "did you mean 'curves'"),
        (["one", "--format", "jpg"], "did you mean 'png'"),
        (["one", "--format", ""], "at least one of png"),
        (["one", "--figure", "effect"], "no number"),
    ],
)
def test_mistakes_are_one_line_and_status_2(one, words, said, capsys, monkeypatch):
    monkeypatch.chdir(one.parent)
    assert cli.status(["plot", *words]) == 2
    printed, complaint = capsys.readouterr()
    assert said in complaint
    assert (printed, complaint.count("\n")) == ("", 1)
    assert not (one / "figures").exists()


def test_legends_of_many_runs_leave_room_and_tell_which_run_is_drawn(tmp_path):
    for i in range(16):
        folders.run(tmp_path / f"ifca with {i} clusters of clients", settings={"method": {"name": "ifca", "i": i}})
    shown = plotting.curves(sorted(tmp_path.iterdir()))
    shown.draw_without_rendering()
    assert all(axis.get_window_extent().height > shown.dpi for axis in shown.axes)
    folders.run(tmp_path / "alone", labels=np.tile(np.arange(folders.CLIENTS), (4, 1)))
    shown = plotting.clusters([tmp_path / "alone", next(tmp_path.glob("ifca*"))])
    (legend,) = shown.legends
    assert len(legend.get_texts()) == 1
    assert shown.axes[0].lines[0].get_color() == style.colour(1)  # as in the other figures of these runs


def test_more_groups_and_clusters_than_colours(tmp_path):
    """Those that are not drawn one by one are drawn as one; numbers beside a matrix can be read."""
    groups = np.repeat(np.arange(60), 2)
    labels = np.stack([np.full(120, -1), groups // 2, groups, groups])
    path = folders.run(tmp_path / "many", groups=groups, labels=labels)
    clusters, true = plotting.by_cluster(path).axes
    for axis in (clusters, true):
        assert len({line.get_color() for line in axis.lines}) == len(axis.lines)
    assert true.get_legend_handles_labels()[1][-1] == "others"
    shown = plotting.distances(path)
    assert shown.get_figheight() < 7
    assert len(shown.axes[1].get_yticks()) <= 25
    assert all(line.get_linewidth() < 0.9 for line in plotting.heatmap(path).axes[1].lines)
