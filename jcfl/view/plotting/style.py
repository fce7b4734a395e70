"""The style of all figures: fonts, colours and panels, and how a figure is saved."""

import functools
import io
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator
from pydantic import Field

from jcfl import results
from jcfl.errors import InputError, Notice, unknown
from jcfl.errors import shown as told
from jcfl.results import History

Number = Annotated[int, Field(ge=1)]
"""The number of a round or of a cluster that a figure shows."""

COLUMN, PAGE = 3.4, 7.0
"""Inches: the width of a paper's column, and of its page."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#4D4D4D")
"""Okabe and Ito's colours, which colour-blind readers can distinguish, with a violet in place of the faint yellow."""

MARKERS = "osD^vPX<"
"""Markers besides the colours, for print in grey; a pair of marker and colour repeats only after 64 clusters."""

DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
NOBODY = "#C9C9C9"
"""The colour of clients without a cluster, or of an unknown group."""

LACKING = "not all seeds have a value"
"""What a cross means, the last entry of a legend."""

LINE = 0.15
"""Inches of a line of a legend."""

FORMATS = ("png", "pdf", "svg")

USUAL = "DejaVu Sans"
"""The font of all figures. It comes with matplotlib, so that a figure is the same on every machine."""

OTHERS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Arial Unicode MS",
)
"""Fonts for characters that the usual one does not have, such as Chinese ones."""


def fonts(there: Iterable[Any]) -> list[str]:
    """The usual font, and those of `OTHERS` that a machine has in the usual weight; matplotlib warns of other weights.

    Args:
        there: the machine's fonts, each with a `name` and a `weight`.
    """
    regular = {one.name for one in there if one.weight in (400, "normal", "regular")}
    return [USUAL, *(name for name in OTHERS if name in regular)]


STYLE: dict[Any, Any] = {
    "font.family": fonts(font_manager.fontManager.ttflist),
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # keeps text as text
    "svg.hashsalt": "jcfl",  # writes the same file for the same figure
    "text.parse_math": False,  # prints a $ in a name as it is
}


class Picture(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        return encoded(self, "png", dpi=160)


def figure(single: bool) -> Callable[[Callable[..., Figure]], Callable[..., Figure]]:
    """Decorate a function that draws histories: it then takes folders too, and draws in the style of this module.

    Args:
        single: whether the figure shows one run.
    """

    def wrap(draw: Callable[..., Figure]) -> Callable[..., Figure]:
        @functools.wraps(draw)
        def styled(runs: Any, *more: Any, **options: Any) -> Figure:
            if single and not isinstance(runs, History | str | Path):
                raise InputError(
                    f"{draw.__name__} shows one run; expected a history or a folder, got {type(runs).__name__}"
                )
            found = histories(runs)
            with matplotlib.rc_context(STYLE):
                return draw(found[0] if single else found, *more, **options)

        return styled

    return wrap


def histories(runs: Any) -> list[History]:
    """Histories from one or several histories or folders. The runs that were compared with a run follow it."""
    given = [runs] if isinstance(runs, History | str | Path) else runs
    if not isinstance(given, Iterable):
        raise InputError(f"expected histories or folders, got {told(runs)}")
    whole = [item if isinstance(item, History) else results.load(item) for item in given]
    found = {id(one): one for item in whole for one in (item, *item.others.values())}
    if not found:
        raise InputError("expected at least one run, got none")
    results.load_scores(name for one in found.values() for name in one.scores)
    return list(found.values())


def titles(runs: Sequence[History]) -> list[str]:
    """A title for each run: its name, with the folder's name before it if several runs have the same name."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    places = [results.home(run) if run.folder else Path(run.name) for run in runs]
    above = [place.parent.parent if place.parent.name == "runs" else place.parent for place in places]
    long = [f"{folder.name}/{name}".lstrip("/") for folder, name in zip(above, names, strict=True)]
    return [name if long.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(long)]


def refuse_seed(runs: Sequence[History], seed: int | None) -> None:
    """Refuse a seed that none of some runs has."""
    if seed is not None and not any(seed in run.seeds for run in runs):
        raise InputError(f"{runs[0].name} has no seed {seed}; it has {', '.join(map(str, runs[0].seeds))}")


def has_clusters(run: History) -> bool:
    """Whether a run has several clusters, and not one for every client, as clients that train alone have."""
    return run.labels.max(initial=0) > 0 and not everybody_alone(run)


def everybody_alone(run: History) -> bool:
    """Whether each of several clients has a cluster of its own after the last round."""
    if not run.labels.size:
        return False
    last = run.labels[0, -1][run.labels[0, -1] >= 0]
    return len(np.unique(last)) == len(last) > 1


IN_A_ROW = 4
"""Panels that have room for numbers side by side on a page."""


def panels(count: int, columns: int | None, height: float, width: float | None = None) -> tuple[Picture, list[Axes]]:
    """An empty figure of panels in rows.

    Args:
        columns: panels in a row; by default at most `IN_A_ROW`, and as many in every row.
        height: inches of one row.
        width: inches of the figure; by default that of a column for one panel in a row, else that of a page.
    """
    columns = min(count, columns or math.ceil(count / math.ceil(count / IN_A_ROW)))
    rows = math.ceil(count / columns)
    shown = Picture(figsize=(width or (COLUMN if columns == 1 else PAGE), rows * height))
    axes = shown.subplots(rows, columns, squeeze=False).ravel()
    for spare in axes[count:]:
        spare.set_visible(False)
    return shown, list(axes[:count])


def colour(index: int) -> str:
    """The colour of a cluster, group or run."""
    return NOBODY if index < 0 else COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """The marker of a cluster or group."""
    return "." if index < 0 else MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def line(index: int) -> dict[str, Any]:
    """How the line of a run looks."""
    return {"color": colour(index), "linestyle": DASHES[index % len(DASHES)]}


def shortened(name: str, most: int = 40) -> str:
    """A name with at most so many characters.

    >>> shortened("stocfl", 6), shortened("stocfl+finetune", 6)
    ('stocfl', 'stocf…')
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def told_apart(names: Sequence[str], most: int = 40) -> list[str]:
    """Names with at most so many characters; where their beginnings are the same, the middle is left out.

    >>> told_apart(["stocfl (lam=0.1)", "stocfl (lam=0.5)", "fedavg"], 11)
    ['stocf…=0.1)', 'stocf…=0.5)', 'fedavg']
    """
    found, half = [shortened(name, most) for name in names], most // 2
    pairs = zip(names, found, strict=True)
    return [one if found.count(one) == 1 else f"{name[:half]}…{name[half + 1 - most :]}" for name, one in pairs]


def entry(name: str) -> str:
    """A name for a legend. Matplotlib leaves out names that begin with _, so they get a space without width before it.

    >>> entry("stocfl")
    'stocfl'
    """
    return f"\u200b{name}" if name.startswith("_") else name


def legend_above(shown: Figure, axes: Iterable[Axes], several: bool = False) -> None:
    """Draw one legend above all panels, for which the figure grows, if it has more than one entry or says of crosses.

    Args:
        several: draw it for a single entry, too, which says which of several runs or kinds is drawn.
    """
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    entries = {label: handle for handle, label in pairs[::-1]}
    order = sorted(dict.fromkeys(label for _, label in pairs), key=lambda label: label == LACKING)
    if len(order) > 1 or (order and several) or LACKING in order:
        names = told_apart(order)
        room = shown.get_figwidth() / (0.55 + 0.065 * max(map(len, names)))  # inches of an entry
        ncols = min(len(order), max(1, int(room)))
        shown.set_figheight(shown.get_figheight() + LINE * max(math.ceil(len(order) / ncols) - 2, 0))
        shown.legend([entries[label] for label in order], names, loc="outside upper center", ncols=ncols)


def in_per_cent(axis: Axis) -> None:
    """Print shares as per cent, with no more digits than needed."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: signed(f"{100 * value:.4g}%")))


def signed(number: str) -> str:
    """A number with the minus sign that axes have."""
    return number.replace("-", "−")


def whole_numbers(axis: Axis) -> None:
    """Put ticks at round whole numbers, at two or more unless there is one in view, as for a single round."""
    low, high = sorted(axis.get_view_interval())
    least = 2 if math.floor(high) > math.ceil(low) else 1
    axis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=least))


def decades(axis: Axis) -> None:
    """Make an axis logarithmic, its numbers written out: matplotlib's own are mathematics, which figures do not set.

    Numbers stand at powers of ten. If fewer than two of these are in view, they stand at two and five times them, too;
    if these are still fewer than two, at all ticks. On a y-axis there is room for more, and three are wanted.
    """
    name, wanted = ("y", 3) if axis is axis.axes.yaxis else ("x", 2)
    axis.axes.set(**{f"{name}scale": "log"})

    def number(value: float, _: int | None) -> str:
        low, high = sorted(axis.get_view_interval())
        powers = 10.0 ** np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1,), (1, 2, 5)):
            places = np.outer(powers, digits)
            if ((low <= places) & (places <= high)).sum() >= wanted:
                return f"{value:g}" if np.isclose(places, value, atol=0).any() else ""
        return f"{value:g}"

    axis.set_major_formatter(FuncFormatter(number))
    axis.set_minor_formatter(FuncFormatter(number))


def remove_space(shown: Figure) -> None:
    """Remove the space between the parts of a figure."""
    shown.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)  # pyright: ignore


def save(
    shown: Figure,
    path: Path | str,
    formats: Iterable[str] | None = None,
    width: float | None = None,
    font_size: float | None = None,
) -> list[Path]:
    """Write a figure as `path`.png and so on, and return the files.

    Args:
        path: the file, without its ending or with .png, .pdf or .svg.
        formats: any of png, pdf, svg; by default the ending of `path`, or png and pdf if it has none of these.
        width: inches of the figure, such as those of a paper's column; its shape stays.
        font_size: points of most of its text; smaller and larger text is scaled alike.

    Raises:
        InputError: it is no figure, or there is no such format.
    """
    if not isinstance(shown, Figure):
        raise InputError(f"expected a figure, got {told(shown)}")
    if width is not None:
        shown.set_size_inches(shown.get_size_inches() * width / shown.get_size_inches()[0])
    if font_size is not None:
        for text in cast(list[Text], shown.findobj(Text)):
            text.set_fontsize(float(text.get_fontsize()) * font_size / STYLE["font.size"])
    files, path, ending = [], Path(path), Path(path).suffix.removeprefix(".")
    kinds = list(formats) if formats is not None else [ending] if ending in FORMATS else ["png", "pdf"]
    for kind in kinds:
        if kind not in FORMATS:
            raise unknown("format", kind, FORMATS)
        file = path if kinds == [ending] else path.with_name(f"{path.name}.{kind}")
        results.overwrite(file, encoded(shown, kind))
        files.append(file)
    return files


def is_usual(shown: Figure) -> bool:
    """Whether the usual font has every character of a figure."""
    known = font_manager.get_font(font_manager.findfont(USUAL)).get_charmap()
    written = "".join(text.get_text() for text in cast(list[Text], shown.findobj(Text)))
    return all(ord(one) in known for one in set(written) - {"\n"})


def encoded(shown: Figure, kind: str, dpi: float | None = None) -> bytes:
    """A figure as the bytes of a file, the same bytes every time. What matplotlib warns of is a notice of one line."""
    buffer = io.BytesIO()
    dates = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    # With the font type of STYLE, matplotlib embeds a font of PostScript outlines, such as Noto Sans CJK, in a form
    # that some readers refuse.
    outlines: dict[Any, Any] = {"pdf.fonttype": 3} if kind == "pdf" and not is_usual(shown) else {}
    with matplotlib.rc_context(STYLE | outlines), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        shown.savefig(buffer, format=kind, dpi=dpi or STYLE["savefig.dpi"], metadata=dates[kind])
    for one in said:
        if issubclass(one.category, UserWarning):
            text = " ".join(str(one.message).split())
            warnings.warn(f"the figure may not look as intended: {text}", Notice, stacklevel=2)
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return buffer.getvalue()


def ranked(labels: np.ndarray) -> np.ndarray:
    """Labels over rounds [e, m] with clusters numbered by size in the last round, from 0 for the largest.

    >>> ranked(np.array([[7, 7, 3, 9], [3, 7, 3, -1]])).tolist()
    [[1, 1, 0, 2], [0, 1, 0, -1]]
    """
    known, ever = np.unique(labels[labels >= 0], return_counts=True)
    last = np.bincount(labels[-1][labels[-1] >= 0], minlength=int(known.max(initial=0)) + 1)[known]
    order = np.lexsort((known, -ever, -last))
    table = np.full(int(known.max(initial=-1)) + 2, -1)
    table[known[order]] = np.arange(len(known))
    return table[labels]


def matched(labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """True groups [m] with new numbers, so that groups have the numbers of the clusters that match them best."""
    from scipy.optimize import linear_sum_assignment

    names, group = np.unique(groups, return_inverse=True)
    used = np.unique(labels[labels >= 0])
    free = np.setdiff1d(np.arange(len(used) + len(names)), used)[: max(len(names) - len(used), 0)]
    numbers = np.sort(np.concatenate([used, free]))  # unused ones too, if there are more groups than clusters
    table = np.zeros((len(names), len(numbers)))
    np.add.at(table, (group[labels >= 0], np.searchsorted(numbers, labels[labels >= 0])), 1)
    table[names < 0] = 0
    return np.where(groups < 0, -1, numbers[linear_sum_assignment(table, maximize=True)[1]][group])
