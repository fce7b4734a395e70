"""Pages as Markdown, LaTeX and HTML: the templates in this folder, and how their texts are escaped and written."""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

import jinja2

from jcfl.results.files import overwrite

TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}"},
    **{"±": r"$\pm$", "✓": r"$\checkmark$", "✗": r"$\times$", "–": "--", "·": r"$\cdot$", "†": r"$^\dagger$"},
    **{"λ": r"$\lambda$", "τ": r"$\tau$", "ω": r"$\omega$", "η": r"$\eta$", "α": r"$\alpha$", "×": r"$\times$"},
    **{"ε": r"$\varepsilon$", "δ": r"$\delta$", "μ": r"$\mu$", "σ": r"$\sigma$", "β": r"$\beta$", "²": r"$^2$"},
    **{"γ": r"$\gamma$", "κ": r"$\kappa$", "θ": r"$\theta$", "ρ": r"$\rho$", "Δ": r"$\Delta$", "π": r"$\pi$"},
    **{"−": "$-$", "≥": r"$\geq$", "≤": r"$\leq$", "[": "{[}", "]": "{]}"},
}
"""LaTeX for the characters that it does not take as they are. A `[` after a rule or a row would begin an option."""


def environment() -> jinja2.Environment:
    """The templates, by their path in this folder; values are escaped in those of HTML."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("jcfl.view", ""),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"cell": cell, "plain": plain, "tex": tex, "texlines": texlines}
    return found


def cell(text: str) -> str:
    """Markdown, such as a command between backticks, in a cell of a table."""
    return text.replace("|", "\\|")


def plain(text: str) -> str:
    r"""Text as Markdown that shows every sign of it.

    >>> print(plain("*IFCA*, |D|"))
    \*IFCA\*, \|D\|
    """
    return re.sub(r"[\\`*_<|]", r"\\\g<0>", text)


def tex(text: str) -> str:
    r"""Text as LaTeX.

    >>> print(tex("100 % of |D|"))
    100 \% of \textbar{}D\textbar{}
    """
    return "".join(TEX.get(sign, sign) for sign in text)


def texlines(text: str, width: int, row: str, side: str) -> str:
    r"""Text as LaTeX, in lines of at most so many characters where its words allow it.

    >>> print(texlines("CIFAR-10 Macro-F1", 10, "b", "r"))
    \begin{tabular}[b]{@{}r@{}}CIFAR-10\\Macro-F1\end{tabular}

    Args:
        text: what is written.
        width: characters of a line.
        row: `t` or `b`, the line that stands in the row of the table around it: the first or the last.
        side: `l` or `r`, the side on which lines begin or end together.
    """
    lines = [tex(line) for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)]
    whole = "\\\\".join(lines)
    return f"\\begin{{tabular}}[{row}]{{@{{}}{side}@{{}}}}{whole}\\end{{tabular}}" if len(lines) > 1 else whole


def write(stem: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts by their endings, each whole or not at all, and return the files.

    Args:
        stem: the file without its ending.
        texts: by ending, without the dot.
    """
    files = {stem.with_name(f"{stem.name}.{ending}"): text for ending, text in texts.items()}
    for file, text in files.items():
        # A table's file may have numbers of runs that are on another machine only.
        overwrite(file, text.encode())
    return list(files)
