"""The K-means family: clients grouped by the models they trained, in every round or once."""

from typing import Annotated, Literal

from pydantic import Field

from jcfl.core.aggregates import Growth, Matched, Sigma, Spread, TrimmedMean
from jcfl.core.method import Aggregate, Method, Train, When
from jcfl.core.neutral import Every
from jcfl.core.terms import Distant, Proximal
from jcfl.errors import InputError
from jcfl.grouping.compare import L1, L2, Cosine, LayerDistance, MatchedDistance
from jcfl.grouping.describe import Part, TrainedModel
from jcfl.grouping.groups import KMeans
from jcfl.grouping.when import Once, Window
from jcfl.methods.options import Averaging, Clusters, Empty, Epochs, Iterations, Lam, Refit, Represent, Shots
from jcfl.registry import register

COMPARISONS = {"l1": L1(), "l2": L2(), "cosine": Cosine(), "layer": LayerDistance()}


@register("method", "fesem")
def fesem(
    *,
    clusters: Clusters = 4,
    lam: Lam = 0.0,
    distance: Annotated[
        Literal["l2", "l1", "cosine"], Field(description="between models, in K-means and in the local term")
    ] = "l2",
    represent: Represent = "whole",
    iterations: Iterations = 1,
    refit: Refit = False,
    shots: Shots = None,
    empty: Empty = "refill",
    by_share: Annotated[
        bool,
        Field(description="a client's loss, without the term, is multiplied by its share of all training examples"),
    ] = False,
) -> Method:
    """K-means on local models: clients join the nearest centre; centres are unweighted means; λ is a proximal term.

    Xie et al. 2020 (arXiv:2005.01026), Alg. 1-2: E-step eq. 9, M-step eq. 10, local update eq. 8. The paper repeats
    these three steps; a round here begins with the local update, because all models are alike before it. Each client is
    represented by its last local model. A client without one is not counted, and starts in the cluster whose model has
    the least loss on its data. The first clustering is the best of 20 seedings by K-means++ (§6.1). An empty cluster
    takes the farthest client, or stays empty with `empty="keep"`. The paper allows other distances than the squared
    Euclidean one (eq. 5): with `distance="l1"` or `"cosine"` clients join the centre that is nearest by it, the local
    term is λ times it, and centres stay means.

    Deviations:
        A client minimises its loss plus λ/2 times the squared distance to its centre (λ times another distance). Eq. 8
        prints the loss times n_i/n plus λ/m times the distance: set `by_share`, and `lam` to 2λ/m (λ/m for another
        distance). With m clients, a step is about m times smaller then. Ma (2023, eq. 7.13, with CAM) prints a step
        that moves a share λ towards the centre, and here it moves a share ηλ: set `by_share`, and `lam` to λ/η, which
        is exact for SGD without momentum.
    """
    return Method(
        name="fesem",
        describe=TrainedModel(part=represent),
        compare=COMPARISONS[distance],
        group=KMeans(clusters=clusters, iterations=iterations, refit=refit, empty=empty),
        when=rounds(shots),
        train=Train(terms=(Proximal(lam) if distance == "l2" else Distant(lam, distance),), by_share=by_share),
        aggregate=Aggregate(weights="equally"),
    )


@register("method", "wecfl")
def wecfl(
    *,
    clusters: Clusters = 4,
    represent: Represent = "whole",
    iterations: Iterations = 1,
    refit: Refit = False,
    shots: Shots = None,
    empty: Empty = "refill",
) -> Method:
    """FeSEM with size-weighted K-means and averages, and no proximal term (Ma 2023, Alg. 1).

    A client counts by its training examples in the choice of first centres, in the M-step (line 5) and in averages; the
    E-step (line 4) joins the nearest centre by the squared Euclidean distance. `refit=False` continues from the current
    centres (Alg. 1), `refit=True` is the thesis's code.

    Deviations:
        The first clustering is as in FeSEM: the best of 20 seedings by K-means++, after the first local training. Alg.
        1 starts from K random models.
    """
    return Method(
        name="wecfl",
        describe=TrainedModel(part=represent),
        compare=L2(),
        group=KMeans(clusters=clusters, iterations=iterations, refit=refit, empty=empty),
        when=rounds(shots),
        train=Train(terms=(Proximal(0.0),)),
    )


@register("method", "fesem_ma")
def fesem_ma(
    *,
    clusters: Clusters = 4,
    lam: Lam = 0.0,
    distance: Annotated[
        Literal["matched", "l2"], Field(description="between models: after neurons are matched, or by position")
    ] = "matched",
    represent: Represent = "whole",
    iterations: Iterations = 1,
    sigma: Sigma = 1.0,
    growth: Growth = None,
    spread: Spread = 1.0,
) -> Method:
    """FeSEM with matched neurons, in the distance to a centre and in its mean (Xie et al. 2020, §5.1; FedMA).

    The last layer is averaged per class, weighted by class counts. With `growth`, layers get new neurons by the Indian
    buffet process that the paper names as its prior (Yurochkin et al. 2019), and lose neurons that no client has. They
    grow inside their widths: a model needs neurons that are not used at first, such as `mlp` with `spare=0.5`.

    Deviations:
        Without `growth` the number of neurons is fixed; the paper's released code has no clustered version. The first
        clustering averages models by position, because all clients have then trained from the same model and their
        neurons have the same order. With `iterations` above 1, so are the centres between two assignments of a round.
        The distance to a centre has no prior.
    """
    return Method(
        name="fesem_ma",
        describe=TrainedModel(part=represent),
        compare=MatchedDistance(sigma=sigma) if distance == "matched" else L2(),
        group=KMeans(clusters=clusters, iterations=iterations),
        when=Every(),
        train=Train(terms=(Proximal(lam),)),
        aggregate=Aggregate(weights="equally", rule=Matched(sigma=sigma, growth=growth, spread=spread)),
    )


@register("method", "oneshot_kmeans")
def oneshot_kmeans(
    *,
    clusters: Clusters = 4,
    distance: Annotated[Literal["l1", "l2", "cosine", "layer"], Field(description="between models")] = "l1",
    layers: Annotated[
        Literal["all", "first"],
        Field(
            description="convolutions that the layer distance compares",
            json_schema_extra={"only_with": {"distance": ["layer"]}},
        ),
    ] = "all",
    centre: Annotated[Literal["mean", "median", "medoid"], Field(description="of a cluster's models")] = "mean",
    seeding: Annotated[Literal["random", "plus_plus"], Field(description="the first centres")] = "random",
    restarts: Annotated[int, Field(ge=1, description="number of seedings; the best is used")] = 1,
    iterations: Annotated[int, Field(ge=1, description="updates of the centres")] = 10,
    initial_epochs: Epochs = None,
    averaging: Averaging = "equally",
) -> Method:
    """All clients train once, K-means on their weights makes the clusters, then FedAvg in each cluster.

    Bhattacharya and Aridi, §4. `distance="layer"` compares convolution kernels, each with its nearest of the other
    model (eq. 9); the paper compares those of the first layer (`layers="first"`).
    """
    kernels: Part = "kernels" if layers == "all" else "first_kernel"
    part: Part = kernels if distance == "layer" else "whole"
    group = KMeans(clusters=clusters, restarts=restarts, seeding=seeding, centre=centre, iterations=iterations)
    return Method(
        name="oneshot_kmeans",
        describe=TrainedModel(part=part, epochs=initial_epochs),
        compare=COMPARISONS[distance],
        group=group,
        when=Once(start="members"),
        aggregate=Aggregate(weights=averaging),
    )


@register("method", "robust_tkm")
def robust_tkm(
    *,
    clusters: Clusters = 4,
    beta: Annotated[float, Field(ge=0, lt=0.5, description="fraction trimmed")] = 0.1,
    iterations: Annotated[int, Field(ge=1, description="updates of the centres")] = 10,
    initial_epochs: Epochs = None,
) -> Method:
    """Trimmed K-means on local models, once; then a coordinate-wise trimmed mean per cluster (Ghosh et al. 2019).

    Deviations:
        After the clustering, means are of models after local training, as in the other methods; the paper takes them of
        gradients. With one step on all of a client's examples both are the same.
    """
    return Method(
        name="robust_tkm",
        describe=TrainedModel(epochs=initial_epochs),
        compare=L2(),
        group=KMeans(clusters=clusters, trim=beta, iterations=iterations),
        when=Once(start="members"),
        aggregate=Aggregate(weights="equally", rule=TrimmedMean(beta=beta)),
    )


def rounds(shots: tuple[int, int] | None) -> When:
    """Every round, or the rounds [a, b).

    Raises:
        InputError: there is no such round.
    """
    if shots is not None and shots[1] <= shots[0]:
        raise InputError(f"shots: expected the rounds [a, b) with a less than b, got {[*shots]}")
    return Every() if shots is None else Window(first=shots[0], last=shots[1])
