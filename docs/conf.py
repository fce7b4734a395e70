"""How Sphinx builds the documentation: sphinx-build -W docs site."""

import inspect
import re
import shutil
import sys
import typing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import parts  # pyright: ignore[reportMissingImports]

project = "jcfl"
author = "The jcfl authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["*.py", "_build", "__pycache__"]
nb_execution_mode = "off"  # their outputs are kept in them, and the tests run them
copybutton_prompt_text = "$ "
html_theme = "furo"
html_title = "jcfl"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_math_renderer = "mathml"
html_show_copyright = False
smartquotes_action = "qe"  # quotes and dots, but no dashes: --out is an option
html_copy_source = False
default_role = "code"
myst_enable_extensions = ["dollarmath", "substitution"]
myst_substitutions = parts.SUBSTITUTIONS
suppress_warnings = ["config.cache"]  # that Sphinx cannot store these functions between builds
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_custom_sections = ["Deviations"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def with_notebooks() -> None:
    """Put the notebooks where Sphinx finds them; it takes no page from above its folder."""
    place = Path(__file__).parent / "notebooks"
    place.mkdir(exist_ok=True)
    for notebook in (Path(__file__).parents[1] / "notebooks").glob("*.ipynb"):
        shutil.copy(notebook, place)


with_notebooks()


def setup(app: Any) -> None:
    """Escape docstrings that are not reStructuredText, write formulas as MathML, refuse a site with missing pages."""
    app.connect("autodoc-before-process-signature", without_constraints)
    app.connect("autodoc-process-signature", with_constraints)
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("env-before-read-docs", lambda app, env, names: parts.refuse_missing(env.found_docs))


ANNOTATIONS: dict[Any, dict[str, Any]] = {}
"""The annotations of functions whose signatures are being written; the tables of options need them again."""


def without_constraints(app: Any, object: Any, bound: bool) -> None:
    """Show `int` in place of `Annotated[int, FieldInfo(…)]`; the bounds are in the text."""
    if inspect.isfunction(object):
        ANNOTATIONS[object] = object.__annotations__
        object.__annotations__ = typing.get_type_hints(object)


def with_constraints(*given: Any) -> None:
    """Give functions the annotations back that `without_constraints` took away."""
    for function, annotations in ANNOTATIONS.items():
        function.__annotations__ = annotations
    ANNOTATIONS.clear()


def plain(app: Any, what: str, name: str, object: Any, options: Any, lines: list[str]) -> None:
    """Escape the characters of a docstring that reStructuredText would take for markup.

    Napoleon takes what is before a colon in the first line of what is returned for its type, so a dash goes there.
    """
    for i, line in enumerate(lines):
        if i and lines[i - 1].strip() == "Returns:":
            line = lines[i] = line.replace(": ", " – ", 1)
        if not line.lstrip().startswith((">>>", "...")):
            lines[i] = re.sub(r"(?<![`*\w])([*|])(?=\S)|(?<=\S)\|(?![`\w])|(?<=\w)_(?=\W)(?!`)", r"\\\g<0>", line)


def formula(writer: Any, node: Any) -> None:
    """Write a formula as MathML, so that a page needs neither a script nor the network for it."""
    from docutils.nodes import SkipNode  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports]

    writer.body.append(convert(node.astext(), display="inline" if node.tagname == "math" else "block"))
    raise SkipNode
