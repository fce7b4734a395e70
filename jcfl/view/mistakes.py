"""The error for a metric that there is not: its title is looked up before the nearest name is offered."""

from collections.abc import Iterable

from jcfl import metrics
from jcfl.errors import InputError, unknown


def unknown_metric(what: str, got: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not one of `known`; where it is the title of a metric, this metric is offered.

    >>> str(unknown_metric("metric", "accuracy", ["accuracy_p5", "accuracy_micro"]))
    "unknown metric 'accuracy'; did you mean 'accuracy_micro'? Known: accuracy_micro, accuracy_p5"
    """
    names = sorted(set(known))
    return unknown(what, got, names, metrics.by_title(got, names))
