"""Methods compared from Python, for notebooks: `jcfl.compare`."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from jcfl.results import History
from jcfl.results.history import with_pandas
from jcfl.view import comparing, pages, plotting
from jcfl.view.comparing import figures, files, tables


@dataclass(frozen=True)
class Comparison:
    """What `jcfl.compare` has found; a notebook shows its tables, and `print` gives them as Markdown.

    Attributes:
        found: all numbers, as `jcfl compare --json` prints them.
    """

    found: Mapping[str, Any]

    def __str__(self) -> str:
        """The tables as Markdown."""
        return tables.texts(self.found, {})["md"]

    def __repr__(self) -> str:
        """What is compared, in a line."""
        metrics = ", ".join(one["metric"] for one in self.found["metrics"])
        return f"<Comparison with {self.found['baseline']} by {metrics}>"

    def _repr_html_(self) -> str:
        """The tables, in a notebook."""
        return pages.environment().get_template("comparing/grids.html").render(grids=list(tables.grids(self.found)))

    def to_dataframe(self) -> Any:
        """All numbers as a `pandas.DataFrame`, a row for each metric, federation and method.

        Raises:
            InputError: pandas is not installed.
        """
        return with_pandas().read_csv(io.StringIO(tables.long(self.found)))

    def figures(self) -> dict[str, Figure]:
        """Figures of paired differences, of ranks over federations, and of accuracy against cost, by their names."""
        return dict(figures.figures(self.found))

    def write(self, folder: str | Path) -> list[Path]:
        """Write compare.md, .tex, .html, .csv and the figures as PDF and PNG into a folder, and return the files."""
        return files.write(self.found, Path(folder))


def compare(
    runs: History | str | Path | Sequence[History | str | Path],
    metrics: str | Sequence[str] = "accuracy_micro",
    baseline: str | None = None,
    target: float | None = None,
) -> Comparison:
    """Compare methods over seeds and federations: paired differences, intervals, tests, ranks and costs.

    Args:
        runs: histories that have a folder (`out`), or the folders themselves, one or several. The methods that were
            compared in a run are there too.
        metrics: one or several metrics, such as `accuracy_micro` or `ari`.
        baseline: the method that all others are compared with; by default the first one.
        target: a value of the first metric, of which the costs are computed; a share as a number below 1.

    Returns:
        The comparison. A notebook shows its tables, and `print` gives them as Markdown.

    Raises:
        InputError: a run has no folder or is not complete, runs do not match (the line says what differs), or a metric
            or the baseline is not there.
    """
    names = [metrics] if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    return Comparison(comparing.comparison(plotting.histories(runs), names, baseline, target))
