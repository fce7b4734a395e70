"""A method of one's own: the seven answers, each named by its user."""

from jcfl.core.method import Method
from jcfl.core.neutral import Incomparable, Nothing, Together
from jcfl.grouping.when import Once
from jcfl.registry import register


@register("method", "clustered")
def clustered() -> Method:
    """A method made of seven given answers: describe, compare, group, when, train, aggregate, answer.

    By default clients have no description and stay in one cluster, clients are grouped once, and models are averaged by
    size.
    """
    return Method(name="clustered", describe=Nothing(), compare=Incomparable(), group=Together(), when=Once())
