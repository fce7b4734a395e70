"""The functions by which a method groups its clients, as a round calls them."""

from jcfl.core.context import Context
from jcfl.core.method import Method
from jcfl.errors import InputError
from jcfl.types import Grouping


def grouping(method: Method, context: Context) -> Grouping:
    """The functions of a method's group.

    Raises:
        InputError: clients are grouped by trained models that the server does not get, or gets without noise.
    """
    found = method.group.grouping(method, context)
    if found.after is not None:
        refuse_unseen_models(method, context)
    return found


def refuse_unseen_models(method: Method, context: Context) -> None:
    """Refuse to group clients by models that they train where the server sees none, or would see them as they are.

    Raises:
        InputError: the line says why, and what to do.
    """
    train, group, describe = method.train, method.group.name, method.describe
    if train.chained or not train.active:
        what = "train one after another, so the server sees none" if train.chained else "train none"
        raise InputError(f"{method.name}: group {group!r} groups by trained models, but clients {what}")
    if context.privacy.is_on and describe.source != "upload":
        raise InputError(
            f"privacy: {method.name} groups clients by the models that they train (group {group!r}), and these get "
            f"noise only where they describe the clients; set method.describe to update or model, got {describe.name!r}"
        )
