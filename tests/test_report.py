"""`jcfl report`: one page that holds everything, escapes every name, and works in a browser."""

import base64
import copy
import html.parser
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from jcfl import cli, results
from jcfl.errors import InputError
from jcfl.view import comparing, plotting
from jcfl.view.report import clients, numbers, page
from tests import folders

EVIL = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\"'&{{7*7}}"
NAME = "<img src=x onerror=window.pwned=1>"


@pytest.fixture
def browser():
    """A headless Chromium: JCFL_BROWSER, or one on the path."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = os.environ.get("JCFL_BROWSER") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is installed, and JCFL_BROWSER names none")
    return found


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Three runs, one of which is named and configured with markup, and one has no clusters and so fewer figures."""
    top, none = tmp_path_factory.mktemp("top"), np.full((len(folders.ROUNDS), folders.CLIENTS), -1)
    folders.run(top / "runs" / "stocfl", settings={"method": {"name": "stocfl", "tau": 0.4}}, labels=none)
    folders.run(top / "runs" / "ifca", seeds=(0, 1), labels=np.tile(folders.GROUPS % 2, (4, 1)))
    folders.run(top / "runs" / NAME, settings={"model": {"name": EVIL}, "made_by": {"command": f"jcfl run {EVIL}"}})
    return plotting.histories(top)


@pytest.fixture(scope="module")
def text(comparison):
    """The page about them."""
    return page(comparison)


class Links(html.parser.HTMLParser):
    """Every address that a page would fetch or follow, its tags, and the text of its tables' cells."""

    def __init__(self, text):
        super().__init__()
        self.links, self.tags, self.rows, self.inside = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "href", "action", "data", "poster")]
        if tag == "tr":
            self.rows.append([])
        self.inside = tag in ("td", "th")
        if self.inside:
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag):
        self.inside = False


def test_nothing_is_fetched_and_names_are_escaped(comparison, text):
    found = Links(text)
    assert len(found.links) > 20
    assert all(
        link.startswith(("data:image/svg+xml;base64,", "data:application/yaml;base64,", "#")) for link in found.links
    )
    assert not re.search(r"@import|url\(|<link|<iframe", text)
    assert found.tags.count("script") == 2  # the data and the table's program
    assert NAME in plotting.titles(comparison)
    assert found.tags.count("img") == found.tags.count("figure")
    assert "<img src=x" not in text
    assert "{{7*7}}" in text


def test_scores_are_means_and_deviations_with_the_best_marked(comparison, text):
    titles = plotting.titles(comparison)
    rows = Links(text).rows
    head = rows[0]
    by_name = {row[0]: row for row in rows[1:4]}
    assert by_name["stocfl"][head.index("accuracy")] == "66.00 ± 1.41 %"
    assert by_name["ifca"][head.index("clusters")] == "2.0 ± 0.0"
    costs = next(row for row in rows if "peak memory" in row)
    line = next(row for row in rows if row and row[0] == "stocfl" and "12.5 s" in row)
    assert line[costs.index("sent, a client-round")] == "4.0 kB"
    assert line[costs.index("sent in all, a seed")] == "480.0 kB"  # 15 clients a round, 8 rounds
    other = copy.deepcopy(comparison)
    other[1].scores["accuracy_micro"][:, -1] += [0.1, 0.1001]  # equal differences in two seeds have p = 0.5
    table = numbers.scores(other, titles)
    column = table["columns"].index("accuracy")
    assert [cells[column][1] for _, cells in table["rows"]] == [title == titles[1] for title in titles]


def test_a_score_that_some_seeds_do_not_have_says_of_how_many_it_is(tmp_path):
    """As accuracy after local steps that diverge: without a word, the other seeds would stand for all of them."""
    place = folders.run(tmp_path / "a", [0, 1, 2], accuracy_micro=[[0.5] * 4, [0.6] * 4, [np.nan] * 4])
    table = numbers.scores([results.load(place)], ["a"])
    ((_, cells),) = table["rows"]
    shown = {title: text for title, (text, _) in zip(table["columns"], cells, strict=True)}
    assert shown["accuracy"] == "55.00 ± 7.07 % (2 of 3 seeds)" and "seeds" not in shown["purity"]
    summary = json.loads((place / "summary.json").read_text())
    assert summary["accuracy_micro"]["seeds"] == 2 and "seeds" not in summary["purity"]


def test_nothing_is_bold_where_no_run_is_significantly_worse(comparison):
    """Neither a difference with a large p, nor one seed; and clients that train alone win no purity."""
    runs = copy.deepcopy(comparison)
    runs[2].labels = runs[0].labels
    marked = lambda score: numbers.best_of(runs, score, numbers.conditions(runs))
    runs[0].scores["accuracy_micro"][:, -1] = [0.5, 0.9]
    runs[1].scores["accuracy_micro"][:, -1] = [0.8, 0.7]
    runs[2].scores["accuracy_micro"][:, -1] = [0.6, 0.6]
    assert marked("accuracy_micro") == set()
    runs[2].scores["accuracy_micro"][:, -1] = [0.79, 0.69]
    assert marked("accuracy_micro") == {0, 1}  # no test can judge equal differences, and they are worse
    runs[2].scores["accuracy_micro"][:, -1] = [0.79, 0.6901]
    assert marked("accuracy_micro") == {0, 1}  # the first differs by chance, the last by about 0.01 in each seed
    for i, (run, purity) in enumerate(zip(runs, (0.9, 0.8, 1.0), strict=True)):
        run.scores["purity"] = np.full_like(run.scores["accuracy_micro"], purity)
        run.scores["purity"][1, -1] += i * 1e-4
    assert marked("purity") == {2}
    runs[2].labels = np.broadcast_to(np.arange(folders.CLIENTS), runs[2].labels.shape)
    assert marked("purity") == {0}
    runs[1].summary["failed"] = "the loss is not finite"
    runs[0].scores["accuracy_micro"][:, -1] = [0.78, 0.68]
    assert marked("accuracy_micro") == {2}  # of those that are complete
    runs[2].groups = runs[2].groups[::-1]
    assert marked("accuracy_micro") == set()  # of other clients
    for run in runs:
        run.seeds = run.seeds[:1]
        run.scores = {name: values[:1] for name, values in run.scores.items()}
    assert marked("purity") == set()


def test_the_same_runs_are_bold_as_in_a_comparison(tmp_path):
    """Also where a difference is the same with both seeds, so that a test says p = 0.5."""
    for name, last in (("ifca", (0.90, 0.92)), ("fedavg", (0.80, 0.82)), ("stocfl", (0.86, 0.95))):
        grown = [[0.1, 0.2, 0.3, score] for score in last]
        folders.run(tmp_path / "runs" / name, (0, 1), name, {}, accuracy_micro=grown)
    runs = plotting.histories(tmp_path)
    marked = numbers.best_of(runs, "accuracy_micro", numbers.conditions(runs))
    (one,) = comparing.comparison(runs)["metrics"]
    bold = {row["method"] for row in one["federations"][0]["rows"] if row["best"]}
    assert bold == {runs[i].name for i in marked} == {"ifca", "stocfl"}


def test_the_table_of_clients_marks_who_is_held_out_has_left_or_attacks(tmp_path):
    held = folders.federation() | {"hostile": np.arange(folders.CLIENTS) < 2}
    held["depart"][7] = 6
    (run,) = plotting.histories(folders.run(tmp_path / "run", held=held))
    marked = {one["title"]: one["values"] for one in clients.holding_columns(run)}
    for name, who in {"held out": [5], "left": [7], "attacker": [0, 1]}.items():
        assert np.flatnonzero(marked[name]).tolist() == who


def test_the_first_screen_tells_what_differs_between_runs(tmp_path):
    """Other federations and seeds; and a run that was interrupted says which seeds are there."""
    folders.run(tmp_path / "a" / "runs" / "one", settings={"seeds": 2})
    other = {"data": {"name": "digits"}, "seeds": 3}
    folders.run(tmp_path / "b" / "runs" / "two", seeds=(0,), settings=other, complete=False)
    runs = plotting.histories([tmp_path / "a" / "runs" / "one", tmp_path / "b" / "runs" / "two"])
    settings = [results.settings(run) for run in runs]
    facts = dict(numbers.facts(runs, settings, plotting.titles(runs)))
    assert (facts["data"], facts["seeds"], facts["scenario"]) == ("made up or digits", "2 or 1", "rotated")
    assert numbers.state(runs[0]) is None
    assert numbers.state(runs[1]) == ("unfinished", "1 of 3 seeds, metrics up to round 8")


def test_what_differs_is_a_table_and_equal_options_are_not_in_it(text):
    rows = Links(text).rows
    head = next(row for row in rows if "method.tau" in row)
    assert set(head) == {"run", "model.name", "method.tau"}
    assert next(row for row in rows[rows.index(head) :] if row[0] == "stocfl")[head.index("method.tau")] == "0.4"
    two = numbers.differences([{"rounds": 3, "train": {"lr": 1, "b": 2}}, {"train": {"lr": 2, "b": None}}], ["x", "y"])
    assert (two["first"], two["columns"]) == ("option", ["x", "y"])
    assert [(name, [text for text, _ in cells]) for name, cells in two["rows"]] == [
        ("rounds", ["3", "–"]),
        ("train.lr", ["1", "2"]),
        ("train.b", ["2", "–"]),
    ]


def test_clients_are_all_there(comparison, text):
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    titles = [column["title"] for column in data["columns"]]
    assert len(data["rows"]) == folders.CLIENTS
    facts = folders.federation()
    for name, expected in (("train", facts["train"].sum(1)), ("test", facts["test"].sum(1)), ("group", folders.GROUPS)):
        assert [row[titles.index(name)] for row in data["rows"]] == expected.tolist()
    accuracy = np.load(comparison[0].folder / "runs" / comparison[0].name / "clusters.npz")["accuracy_clients"]
    shown = [row[titles.index(f"accuracy, {comparison[0].name}")] for row in data["rows"]]
    np.testing.assert_allclose(shown, accuracy[:, -1].mean(0), atol=1e-5)


def test_a_client_without_a_cluster_has_none_in_the_table(tmp_path):
    labels = folders.moving()
    labels[-1, :3] = -1
    run = plotting.histories([folders.run(tmp_path / "run", labels=labels)])[0]
    found = clients.table([run], ["run"])
    place = [column["title"] for column in found["columns"]].index("cluster")
    shown = [row[place] for row in found["rows"]]
    assert shown[:3] == [None] * 3 and {*shown[3:]} == {1, 2, 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.seconds(179.7), "3 min 0 s"),
        (numbers.seconds(119.97), "2 min 0 s"),
        (numbers.size(999_960), "1.0 MB"),
        (numbers.size(999.7), "1.0 kB"),
        (numbers.plain(999.7), "1000"),
        (numbers.plain(0.0123), "0.0123"),
    ],
)
def test_numbers_are_rounded_before_their_unit_is_chosen(text, expected):
    assert text == expected


@pytest.fixture
def begun(tmp_path):
    """The folder of a run that has begun, and was not evaluated yet."""
    folder = results.Folder(folders.run(tmp_path / "runs" / "begun", complete=False).resolve())
    folder.put_text("metrics.jsonl", "")
    (folder.path / "clusters.npz").unlink()
    folder.checksums.table.pop("clusters.npz")
    folder.settle()
    return folder.path


def test_a_run_that_was_not_evaluated_yet_is_beside_one_that_failed(begun, tmp_path):
    """A comparison whose second method has begun."""
    failed = results.Folder(folders.run(tmp_path / "runs" / "a", complete=False))
    failed.put_json("summary.json", {"failed": "round 3: cluster 1 is not finite", "costs": {}})
    runs = plotting.histories(tmp_path)
    assert [run.rounds.size for run in runs] == [4, 0]
    text = page(runs)
    assert "unfinished" in text
    assert "round 3: cluster 1 is not finite" in text
    with pytest.raises(InputError, match="nothing has been evaluated yet"):
        page(plotting.histories(begun))


def test_the_command_writes_where_it_is_told(begun, tmp_path, capsys, monkeypatch):
    """A page of a run that was stopped, and one of it and a run that was not evaluated yet, which is the first."""
    none = np.full((len(folders.ROUNDS), folders.CLIENTS), -1)  # without clusters there are few figures to draw
    path = folders.run(tmp_path / "one", complete=False, labels=none)
    monkeypatch.chdir(tmp_path)
    assert cli.status(["report", "one"]) == 0
    assert "Written to one/report.html" in capsys.readouterr().out
    text = (path / "report.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "unfinished" in text
    assert "metrics up to round 8" in text
    assert cli.status(["report", str(begun), "one", "--out", "deep/both.html"]) == 0
    assert (tmp_path / "deep" / "both.html").read_text("utf-8").count("unfinished") > text.count("unfinished")
    assert cli.status(["report", "one", "--out", "deep"]) == 2
    assert cli.status(["report", "nowhere"]) == 2
    assert "holds no run" in capsys.readouterr().err


PROBE = """<script>addEventListener("load", () => {
  const find = (id) => document.getElementById(id), table = find("table"), said = {};
  const cells = (column) => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const click = (column) => table.tHead.rows[0].cells[column].querySelector("button").click();
  const choose = (select, value) => { select.value = value; select.dispatchEvent(new Event("change")); };
  const last = titles.findIndex((title) => title.startsWith("accuracy"));
  said.titles = titles;
  said.first = cells(0);
  find("after").click();
  said.second = cells(0);
  click(last);
  said.up = cells(last);
  said.sorted = table.tHead.rows[0].cells[last].getAttribute("aria-sort");
  click(last);
  said.down = cells(last);
  choose(document.querySelector("select[data-column=group]"), "1");
  said.group = cells(1);
  said.count = find("count").textContent;
  find("search").value = "17";
  find("search").dispatchEvent(new Event("input"));
  said.found = cells(0);
  said.pwned = window.pwned ?? null;
  said.images = [...document.images].map((image) => image.complete && image.naturalWidth > 0);
  said.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const out = document.createElement("pre");
  out.id = "said";
  out.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(said))));
  document.body.append(out);
});</script>"""


def test_in_a_browser_it_sorts_filters_pages_and_runs_nothing_else(browser, comparison, text, tmp_path):
    (tmp_path / "page.html").write_text(text + PROBE, "utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    words += ["--window-size=500,900", "--virtual-time-budget=5000", "--dump-dom", f"file://{tmp_path / 'page.html'}"]
    shown = subprocess.run([browser, *words], capture_output=True, text=True, timeout=120, check=False).stdout
    assert 'id="said"' in shown, "the browser did not run the page"
    said = json.loads(base64.b64decode(re.search(r'id="said">([^<]+)<', shown)[1]))
    assert said["pwned"] is None
    assert said["images"]
    assert all(said["images"])
    assert said["wide"] <= 0  # nothing but tables, in their own frame, is wider than the window
    assert said["first"] == [str(i) for i in range(25)]
    assert said["second"] == [str(i) for i in range(25, 30)]
    up, down = ([float(cell.split()[0]) for cell in said[way]] for way in ("up", "down"))
    first = np.load(comparison[0].folder / "runs" / comparison[0].name / "clusters.npz")["accuracy_clients"][
        :, -1
    ].mean(0)
    assert said["sorted"] == "ascending"
    np.testing.assert_allclose(up, 100 * np.sort(first)[:25], atol=0.06)
    np.testing.assert_allclose(down, 100 * np.sort(first)[::-1][:25], atol=0.06)
    assert set(said["group"]) == {"1"}
    assert said["count"] == "10 of 30 clients"
    assert said["found"] == ["17"]
