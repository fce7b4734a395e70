"""The docs are true: every method has a page, substitutions give text, code runs, and messages are real."""

import itertools
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jinja2
import numpy as np
import pytest
import yaml

import jcfl
from jcfl import cli, metrics, registry
from jcfl.core.local import Local
from jcfl.core.method import QUESTIONS
from jcfl.runs import config
from jcfl.runs.reproducing import every_key
from jcfl.runs.reproducing.reading import tables
from jcfl.runs.sweeping.points import points
from jcfl.view import facts, plotting
from tests.commands import blocks, checked, commands

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))}
registry.load()
METHODS = registry.names("method")
ANSWERS = [(kind, "pieces") for kind in ("describe", "compare", "group", "when", "training", "aggregate", "answer")]


@pytest.fixture(scope="module")
def parts():
    """The functions that pages call."""
    sys.path.insert(0, str(DOCS))
    try:
        import parts  # pyright: ignore[reportMissingImports]

        yield parts
    finally:
        sys.path.remove(str(DOCS))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_all_parts(name):
    page = PAGES[f"methods/{name}.md"]
    assert page.startswith("# ")
    assert "$$" in page and "\n## When to use it\n" in page and page.rstrip().endswith(f'{{{{ method("{name}") }}}}')
    assert f"(../pictures/methods/{name}.png)" in page
    assert re.search(rf"^{name}$", PAGES["methods/index.md"], re.MULTILINE), "not in the table of contents"


def test_no_page_is_of_no_method(parts):
    parts.refuse_missing([f"methods/{name}" for name in METHODS])
    with pytest.raises(ValueError, match="stocfl"):
        parts.refuse_missing([f"methods/{name}" for name in METHODS if name != "stocfl"])


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("methods/") or "index" in page])
def test_every_substitution_gives_text(parts, page):
    for mark in re.findall(r"^\{\{.*\}\}$", PAGES[page], re.MULTILINE):
        template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(mark)
        assert len(template.render(parts.SUBSTITUTIONS)) > 100


def test_pages_link_to_the_papers_of_readme_s_tables(parts):
    assert "[Ghosh et al. 2020](https://arxiv.org/abs/2006.04088)" in parts.about_method("ifca")
    assert "[Wang et al. 2020](https://arxiv.org/abs/2002.06440)" in parts.papers("fesem_ma")
    assert "q-FedAvg)](https://arxiv.org/abs/1905.10497)" in parts.section("addon", "fair")
    assert not parts.papers("majority")


def test_facts_of_a_method_are_those_of_its_function(parts):
    text = parts.about_method("stocfl")
    for option in registry.parameters(registry.find("method", "stocfl")):
        assert f"| `{option.name}` |" in text
    assert "| group | [`merge`](#group-merge) |" in text
    assert "| train | proximal term to the global model, weight 0.05; the global model is trained too |" in text
    assert "storage 2, communication 2, computation 2" in text
    assert "Cluster vectors sum over all members" in text
    assert "[`cam`](#addon-cam)" in text
    text = parts.about_method("fedavg")
    assert "[`robust`](#addon-robust)" in text and "addon-cam" not in text


def test_the_tables_of_answers_have_all_methods_and_are_read_from_their_values(parts):
    assert "{{ answers(True) }}" in PAGES["methods/index.md"] and "{{ answers(False) }}" in PAGES["methods/index.md"]
    rows = {}
    for clustered, questions in ((True, QUESTIONS), (False, ("group", "train", "aggregate", "answer"))):
        head, _, *found = parts.answers(clustered).splitlines()
        assert [cell.strip() for cell in head.strip("|").split("|")] == ["method", *questions]
        assert all(row.count("|") == len(questions) + 2 for row in found)
        rows |= {re.match(r"\| \[(\w+)\]", row)[1]: row for row in found}
    assert sorted(rows) == sorted(METHODS)
    assert rows["fedavg"].startswith("| [fedavg](fedavg.md) | [`together`](#group-together) | local |")
    assert "[`linkage`](#group-linkage)<wbr>(clusters=4)" in rows["flhc"]
    assert "[`once`](#when-once)<wbr>(at=10)" in rows["flhc"]


def test_a_line_of_prose_is_no_quote_and_an_option_is_code(parts):
    """Sphinx would make a quotation of the second line, and a dash of two hyphens."""
    text = parts.with_options(parts.prose("the most similar first. τ\n> 1 gives `Ditto`; see --out"))
    assert text == "the most similar first. τ\n\\> 1 gives `Ditto`; see `--out`"
    assert re.search(r"`--halving HALVING` \|.*\| `1` \|", parts.commands()), "1 is no True"


def test_pieces_of_every_kind_have_their_facts(parts):
    for kind, page in (("addon", "addons"), ("data", "data"), ("scenario", "data"), ("model", "models"), *ANSWERS):
        assert f'{{{{ pieces("{kind}") }}}}' in PAGES[f"{page}.md"]
        text = parts.all_pieces(kind)
        assert re.findall(r"^### `(\w+)`$", text, re.MULTILINE) == registry.names(kind)
        assert re.findall(rf"^\({kind}-(\w+)\)=$", text, re.MULTILINE) == registry.names(kind)


@pytest.mark.parametrize("kind", [kind for kind, _ in ANSWERS])
def test_an_answer_says_where_it_is_in_python(parts, kind):
    own = [name for name in registry.names(kind) if not facts.facts(kind, name).package]  # other tests register more
    for name in own:
        where = facts.facts(kind, name).python
        assert pkgutil.resolve_name(where) is registry.find(kind, name)
        assert f"In Python: `{where}`" in parts.section(kind, name)


TO_PIECES = rf"\]\([\w./]*#((?:{'|'.join(registry.KINDS)})-\w+)\)"


@pytest.mark.parametrize("target", sorted(set(re.findall(TO_PIECES, "".join(PAGES.values())))))
def test_links_to_pieces_lead_somewhere(target):
    kind, name = target.split("-")
    assert name in registry.names(kind)


def test_a_part_is_a_section_and_no_more(parts):
    text = parts.part("CONTRIBUTING.md", "Extension points")
    assert len(re.findall(r"^## An? ", text, re.MULTILINE)) >= 7 and "Adding a method" not in text
    pictures = re.findall(r"!\[[^]]*\]\((.*?)\)", parts.part("benchmarks/RESULTS.md") + parts.part("README.md"))
    assert len(pictures) >= 2 and all((DOCS / picture).is_file() for picture in pictures)
    with pytest.raises(ValueError, match="no heading"):
        parts.part("CONTRIBUTING.md", "Nowhere")


def test_pictures_are_there_and_small():
    named = {(page, name) for page in PAGES for name in re.findall(r"\]\(([\w/.]+\.png)\)", PAGES[page])}
    assert len(named) > 25
    for page, name in named:
        assert (DOCS / page).parent.joinpath(name).stat().st_size < 150_000, name
    used = {(DOCS / page).parent.joinpath(name).resolve() for page, name in named}
    used |= {(ROOT / name).resolve() for name in re.findall(r"\]\(([\w/.]+\.png)\)", (ROOT / "README.md").read_text())}
    assert {path.stem for path in (DOCS / "pictures" / "methods").iterdir()} == set(METHODS)
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in used)


FILES = {
    re.findall(r"`(\w+\.yaml)`", before)[-1]: after.partition("```")[0]
    for before, after in itertools.pairwise(PAGES["figures.md"].split("```yaml\n"))
}
"""The configurations on the page of figures, by the names that it gives them."""

PAIRS = [(page, command) for page in PAGES for command in dict.fromkeys(commands(PAGES[page]))]


@pytest.mark.parametrize(("page", "command"), PAIRS)
def test_every_command_parses(tmp_path, monkeypatch, page, command):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", "runs/quickstart-tune/tuned-stocfl.yaml", "tuned/rotated/tuned-ifca.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(blocks(PAGES["tutorial.md"], "yaml")[0])
    for name, text in FILES.items():
        Path(name).write_text(text)
    checked(command)


def test_every_figure_of_the_papers_has_its_command(parts):
    """Those that show results; the others are drawings."""
    drawn = parts.paper_figures(PAGES["figures.md"])
    assert set(drawn) <= set(plotting.FIGURES)
    numbers = {}
    for papers in drawn.values():
        for paper, some in papers.items():
            numbers[paper] = sorted({*numbers.get(paper, []), *some})
    assert numbers == {
        "Zeng et al. 2023": ["2", "3a", "3b", "4", "5", "7", "8"],
        "Bhattacharya and Aridi 2024": ["1", "2", "3", "4"],
        "Ma 2023": [
            *("3.2", "3.3", "3.4", "3.5", "3.6", "7.1", "7.2"),
            *("7.3 and 7.4", "7.5", "7.6", "7.7", "A.1 to A.4"),
        ],
        "Xie et al. 2020": ["2", "3", "4"],
    }
    assert all(f"\n| `{name}` |" in parts.figures() for name in plotting.FIGURES)
    assert re.search(
        r"\| `embedding` \|.*\| `--at`, `--by`, `--seed` \| Zeng et al. 2023: 3a, 7, 8 \|", parts.figures()
    )


def test_what_holds_up_is_linked_before_all_other_pages():
    text = PAGES["index.md"]
    assert text.index("](reproduction/what-holds-up.md)") == text.index("](reproduction/") < text.index("\n- [")


def test_models_are_compared_after_the_rounds_that_figures_show():
    made = {}
    for words in map(shlex.split, commands(PAGES["figures.md"])):
        if "--out" in words:
            made[words[words.index("--out") + 1]] = words
        elif "--at" in words and "model" in words[words.index("--figure") + 1]:
            compared = re.search(r"compare_models=\[(.*?)\]", " ".join(made[words[2]]))[1]
            assert {*words[words.index("--at") + 1].split(",")} <= {*compared.split(",")}
    assert len(made) > 15


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(PAGES[page], "yaml")])
def test_every_configuration_is_one(page):
    for block in blocks(PAGES[page], "yaml"):
        given = yaml.safe_load(block)
        if "over" in given:
            assert len(points(given, None).points) == 2
        elif "tables" in given:
            (table,) = tables(page, block, {})
            assert [table.config(key, table.budget("laptop")).seeds for key in every_key(table)] == [3] * 6
        else:
            config.read(given)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(PAGES[page], "python")])
def test_python_runs(tmp_path, monkeypatch, capsys, page):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "docs"}
    for block in blocks(PAGES[page], "python"):
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out
    if page == "tutorial.md":
        assert names["history"]["accuracy_micro"].shape == (1, 10)
        assert len(np.unique(names["history"].labels[0, -1])) == 2
    elif page == "pieces.md":
        assert names["history"]["purity"][0, -1] == 1.0
    elif page == "tuning.md":
        assert names["config"].train.options["lr"] in (0.01, 0.1, 1.0) and names["figure"].axes
    elif page == "files.md":
        assert [round for round, _ in names["curve"]] == [1, 2] and (names["cosine"].diagonal() == 1).all()
    elif page == "other_papers.md":
        heads = names["histories"][0].state.clients["private"]["params"]["head"]["kernel"][0]
        assert np.ptp(heads, axis=0).min() > 0
        assert registry.made("train", "ahead", alpha=0.5).for_steps(1) == Local(0.5, None, 1, "full", 0.0, 0.0)
    else:
        assert names["federation"].groups.shape == (12,)


def messages() -> list[tuple[str, str]]:
    """The commands on the pages of errors and of pieces, each with the message it is said to give."""
    pages = PAGES["errors.md"] + PAGES["pieces.md"]
    lines = [line for block in dict.fromkeys(blocks(pages, "console")) for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines[::2]) and not any(line.startswith("$ ") for line in lines[1::2])
    return [(command.removeprefix("$ "), said) for command, said in zip(lines[::2], lines[1::2], strict=True)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder with one run in it, and no data anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JCFL_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.yaml").write_text(config.read("quickstart").text())
    return tmp_path


@pytest.mark.parametrize(("command", "said"), messages())
def test_messages_are_real(place, capsys, command, said):
    status = cli.status(shlex.split(command)[1:])
    complaint = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.fullmatch(re.escape(said).replace("…", ".+"), complaint)
    assert status == (1 if "diverged" in said else 2)


def test_api_names_exist():
    page = PAGES["api.md"]
    named = re.findall(r"^\.\. auto\w+:: (\S+)$", page, re.MULTILINE)
    assert len(named) > 15
    for name in named:
        pkgutil.resolve_name(name)
    for module, members in re.findall(r"automodule:: (\S+)\n   :members: (.+)", page):
        assert all(hasattr(pkgutil.resolve_name(module), member.strip()) for member in members.split(","))


def test_names_in_sentences_can_be_reached_after_importing_jcfl_alone():
    """But those of the rooms inside, which are places to import from."""
    texts = [path.read_text("utf-8") for path in (ROOT / "README.md", *DOCS.rglob("*.md"))]
    names = sorted({name for text in texts for name in re.findall(r"`(jcfl(?:\.\w+)+)", text)})
    assert "jcfl.plotting.curves" in names
    inside = {name for name in names if name.startswith(("jcfl.core.", "jcfl.methods", "jcfl.view."))}
    for name in inside:
        pkgutil.resolve_name(name)
    reach = (
        "import functools, sys, jcfl; [functools.reduce(getattr, name.split('.')[1:], jcfl) for name in sys.argv[1:]]"
    )
    words = [sys.executable, "-c", reach, *sorted(set(names) - inside)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_scores_named_are_measured():
    assert '{{ table("score") }}' in PAGES["protocol.md"]
    history = jcfl.run({"scenario": {"name": "rotated", "clients": 8}, "method": "majority", "rounds": 1})
    always = {name for name, one in metrics.scores().items() if one.function and "attacked" not in one.over}
    assert always == set(history.scores)
    assert all(one.meaning for one in metrics.scores().values())
