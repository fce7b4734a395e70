"""A method of one's own: the seven answers, each named by its user."""

from jcfl.core.method import Method
from jcfl.core.neutral import Incomparable, Nothing, Together
from jcfl.grouping.when import Once
from jcfl.registry import register


@register("method", "clustered")
def clustered() -> Method:
    """The seven answers given one by one: describe, compare, group, when, train, aggregate, answer.

    What is not given describes nothing, keeps all clients together, groups once and averages by size.
    """
    return Method(name="clustered", describe=Nothing(), compare=Incomparable(), group=Together(), when=Once())
