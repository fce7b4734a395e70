"""The answer "em": soft membership by expectation maximisation (Marfoq et al. 2021, FedEM)."""

from dataclasses import dataclass
from typing import ClassVar

from jcfl.core.context import Context
from jcfl.core.method import Group, Method
from jcfl.core.neutral import Every, grouping_of
from jcfl.errors import InputError
from jcfl.grouping.losses import Clusters, Itself, Losses, expect, least_loss, refuse_more_clusters_than_clients
from jcfl.registry import register
from jcfl.types import Grouping


@register("group", "em")
@dataclass(frozen=True, kw_only=True)
class Responsibilities(Group):
    """An example belongs to each cluster by a responsibility; a client's label is its largest membership (FedEM)."""

    name: ClassVar[str] = "em"
    clusters: Clusters = 3

    def slots(self, context: Context) -> int:
        """K."""
        return self.clusters

    def grouping(self, method: Method, context: Context) -> Grouping:
        """Labels come from the membership that clients keep; see `jcfl.core.soft`."""
        expect(method, "describe", (Losses,), "weighs examples by the losses of the cluster models")
        expect(method, "compare", (Itself,), "compares losses as they are")
        expect(method, "when", (Every,), "weighs examples anew in every round")
        refuse_more_clusters_than_clients(method, context, self.clusters)
        if method.train.models != "all":
            raise InputError(
                f"{method.name}: group 'em' needs clients that train all models; set method.train=all_models"
            )
        return grouping_of(place=least_loss(method, context, joined=False))
