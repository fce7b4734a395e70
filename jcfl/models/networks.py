"""The networks of the papers: convolutions, then dense layers, then a classifier named `head`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from flax.linen import initializers
from pydantic import Field

from jcfl.errors import InputError
from jcfl.models.adapter import task
from jcfl.models.convolution import Chosen, convolution, relu_pool
from jcfl.registry import register
from jcfl.types import Array, Task

INITIAL: dict[str, Callable[..., Any]] = {
    "lecun": initializers.lecun_normal(),
    "glorot": initializers.xavier_uniform(),
    "he": initializers.he_normal(),
    "torch": initializers.variance_scaling(1 / 3, "fan_in", "uniform"),  # U(-1/√fan_in, 1/√fan_in)
}
Width = Annotated[int, Field(ge=1)]
Init = Annotated[
    Literal["lecun", "glorot", "he", "torch"],
    Field(description="initial kernels: lecun is Flax's default, glorot Xavier's, torch PyTorch's; biases are zero"),
]
How = Annotated[
    Chosen,
    Field(description="algorithm of convolutions: matrix products of patches, XLA's, or chosen by the device"),
]
DENSE = (120, 84)
"""The dense layers of LeNet before the classifier."""
Rate = Annotated[float, Field(ge=0, lt=1, description="share of units dropped between convolutions and dense layers")]
Spare = Annotated[
    float,
    Field(ge=0, lt=1, description="share of each hidden layer's neurons that are not used at first, for growth"),
]
"""The weights of such a neuron are zero."""


class Network(nn.Module):
    """Convolutions with ReLU (optionally batch normalisation before it and pooling after it), dense layers, a head.

    Called on `x` [n, h, w, c] or, without convolutions, on any [n, ...]; images without a channel axis get one.
    Parameters take the widest float JAX is set to.
    """

    classes: int
    filters: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    kernel: int = 5
    padding: str = "VALID"
    pooled: tuple[int, ...] = ()  # the convolutions followed by a 2×2 max-pool
    norm: bool = False
    dropout: float = 0.0
    initial: str = "lecun"
    convolution: Chosen = "auto"
    spare: float = 0.0

    def setup(self) -> None:
        """The classifier, apart from the rest."""
        self.head = nn.Dense(self.classes, **self.start(len(self.widths)))

    def __call__(self, x: Array, train: bool = False) -> Array:
        """The logits, [n, ...] -> [n, c]."""
        return self.head(self.features(x, train))

    @nn.compact
    def features(self, x: Array, train: bool = False) -> Array:
        """The representation before the head, [n, ...] -> [n, f]."""
        if self.filters:
            x = images(x)
        for i, width in enumerate(self.filters):
            x = self.convolved(i, width)(x)
            if self.norm:
                scale = nn.BatchNorm(momentum=0.9, param_dtype=jnp.result_type(float), name=f"norm_{i}")
                x = scale(x, use_running_average=not train)
            x = relu_pool(x) if i in self.pooled else nn.relu(x)
        if 0 in x.shape:
            raise InputError("the images are too small for its convolutions")
        x = x.reshape(x.shape[0], -1)
        x = nn.Dropout(self.dropout, deterministic=not train, name="dropout")(x)
        for i, width in enumerate(self.hidden):
            x = nn.relu(nn.Dense(width, name=f"dense_{i}", **self.start(len(self.filters) + i))(x))
        return x

    def convolved(self, i: int, width: int) -> nn.Conv:
        """The convolution after `i` others; before a pool it gives the pool's windows."""
        size, how = (self.kernel, self.kernel), convolution(self.convolution, windows=i in self.pooled)
        return nn.Conv(width, size, padding=self.padding, name=f"conv_{i}", conv_general_dilated=how, **self.start(i))

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of neurons of every hidden layer."""
        return (*self.filters, *self.hidden)

    def start(self, i: int) -> dict[str, Any]:
        """How the parameters of the layer after `i` others begin."""
        initial = INITIAL[self.initial]
        if self.spare:
            used = [width - min(round(self.spare * width), width - 1) for width in self.widths]
            before, own = [*zip(self.widths, used, strict=True)][max(i - 1, 0) : i], used[i] if i < len(used) else None
            initial = thinned(initial, before[0] if before else None, own)
        return {"kernel_init": initial, "param_dtype": jnp.result_type(float)}


def thinned(initial: Callable[..., Any], before: tuple[int, int] | None, own: int | None) -> Callable[..., Any]:
    """An initialiser of kernels [..., inputs, width] in which some neurons are not used: their weights are zero.

    The other weights are drawn as for a network without these neurons.

    Args:
        initial: the initialiser of that network.
        before: the neurons of the layer before, and how many of them are used; None for the first layer.
        own: how many neurons of the layer are used; None for all.
    """

    def start(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        *outer, inputs, width = shape
        block, kept = before or (inputs, inputs)  # flattened convolutions have a block of inputs for each position
        used = width if own is None else own
        values = initial(key, (*outer, inputs // block * kept, used), dtype).reshape(*outer, -1, kept, used)
        room = [(0, 0)] * (len(outer) + 1) + [(0, block - kept), (0, width - used)]
        return jnp.pad(values, room).reshape(*outer, inputs, width)

    return start


def images(x: Array) -> Array:
    """Images with a channel axis, [n, h, w] or [n, h, w, c] -> [n, h, w, c]."""
    if x.ndim not in (3, 4):
        raise InputError(f"a convolution takes images [h, w, c], got examples of shape {x.shape[1:]}")
    return x[..., None] if x.ndim == 3 else x


@register("model", "linear")
def linear(shape: Sequence[int], classes: int, *, init: Init = "lecun") -> Task:
    """Softmax regression: one dense layer.

    784 inputs, 10 classes: 7,850 parameters.
    """
    return task(Network(classes, initial=init), shape, classes, name="linear")


@register("model", "mlp")
def mlp(
    shape: Sequence[int],
    classes: int,
    *,
    hidden: Annotated[Width | tuple[Width, ...], Field(description="width of the hidden layer, or of each")] = 200,
    init: Init = "glorot",
    spare: Spare = 0.0,
) -> Task:
    """Dense layers with ReLU; one hidden layer of 200, as IFCA's, or of 2048, as StoCFL's.

    784 inputs, 10 classes: 159,010 parameters with 200 hidden units, 1,628,170 with 2048.
    """
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    return task(Network(classes, hidden=widths, initial=init, spare=spare), shape, classes, name="mlp")


@register("model", "cnn_fashion")
def cnn_fashion(
    shape: Sequence[int], classes: int, *, init: Init = "lecun", convolution: How = "auto", spare: Spare = 0.0
) -> Task:
    """Two 5×5 convolutions of 16 and 32 with batch normalisation, and a classifier (thesis, Table A.1).

    28×28×1, 10 classes: 29,034 parameters.

    Deviations:
        The second normalisation has 32 channels, as its convolution; the table prints 16.
    """
    return task(normalised(classes, init, convolution, spare), shape, classes, name="cnn_fashion")


@register("model", "cnn_tissue")
def cnn_tissue(
    shape: Sequence[int], classes: int, *, init: Init = "lecun", convolution: How = "auto", spare: Spare = 0.0
) -> Task:
    """Two 5×5 convolutions of 16 and 32 with batch normalisation, for TissueMNIST (thesis, Table A.4).

    28×28×1, 8 classes: 25,896 parameters.

    Deviations:
        Images are padded by 2 before each convolution; otherwise there would not be the 7·7·32 inputs of the table.
    """
    return task(normalised(classes, init, convolution, spare), shape, classes, name="cnn_tissue")


def normalised(classes: int, init: str, how: Chosen, spare: float) -> Network:
    """The network of the thesis' grey images."""
    options: dict[str, Any] = {"initial": init, "convolution": how, "spare": spare}
    return Network(classes, filters=(16, 32), padding="SAME", pooled=(0, 1), norm=True, **options)


@register("model", "cnn_cifar")
def cnn_cifar(
    shape: Sequence[int],
    classes: int,
    *,
    dense: Annotated[tuple[Width, ...], Field(description="widths of the dense layers before the classifier")] = DENSE,
    init: Init = "glorot",
    convolution: How = "auto",
    spare: Spare = 0.0,
) -> Task:
    """LeNet for CIFAR: 5×5 convolutions of 6 and 16, dense layers of 120 and 84 (thesis, Table A.2).

    Zeng et al. (2023) write of two dense layers, which is `dense: [120]` with the classifier.

    32×32×3, 10 classes: 62,006 parameters; 52,202 with one hidden layer of 120.
    """
    return task(lenet(classes, init, convolution, spare, tuple(dense)), shape, classes, name="cnn_cifar")


@register("model", "cnn_path")
def cnn_path(
    shape: Sequence[int], classes: int, *, init: Init = "lecun", convolution: How = "auto", spare: Spare = 0.0
) -> Task:
    """LeNet for PathMNIST's 28×28 images (thesis, Table A.3).

    28×28×3, 9 classes: 44,641 parameters.

    Deviations:
        The first dense layer has the 256 inputs that 28×28 images give; the table prints CIFAR's 400.
    """
    return task(lenet(classes, init, convolution, spare), shape, classes, name="cnn_path")


def lenet(classes: int, init: str, how: Chosen, spare: float, dense: tuple[int, ...] = DENSE) -> Network:
    """Two convolutions without padding, and dense layers."""
    options: dict[str, Any] = {"initial": init, "convolution": how, "spare": spare}
    return Network(classes, filters=(6, 16), pooled=(0, 1), hidden=dense, **options)


@register("model", "cnn_celeba")
def cnn_celeba(
    shape: Sequence[int], classes: int, *, init: Init = "glorot", convolution: How = "auto", spare: Spare = 0.0
) -> Task:
    """Four 3×3 convolutions of 32 with batch normalisation and a pool, and a classifier, for FedCelebA.

    The network of LEAF (Caldas et al. 2018, https://arxiv.org/abs/1812.01097), whose data Xie et al. (2020) use; their
    text does not describe a network.

    84×84×3, 2 classes: 30,498 parameters.
    """
    network = Network(
        classes,
        (32,) * 4,
        kernel=3,
        padding="SAME",
        pooled=(0, 1, 2, 3),
        norm=True,
        initial=init,
        convolution=convolution,
        spare=spare,
    )
    return task(network, shape, classes, name="cnn_celeba")


@register("model", "cnn_femnist")
def cnn_femnist(
    shape: Sequence[int],
    classes: int,
    *,
    dropout: Rate = 0.5,
    init: Init = "glorot",
    convolution: How = "auto",
    spare: Spare = 0.0,
) -> Task:
    """Two 3×3 convolutions of 32 and 64, a pool, dropout, a dense layer of 128 (StoCFL, §4 on FEMNIST).

    28×28×1, 62 classes: 1,206,590 parameters.

    Deviations:
        The paper gives no widths; these are from its code. Dropout of 0.5 is between convolutions and dense layers, as
        the paper says; its code drops 0.25 there and 0.5 before the classifier.
    """
    wide = {"filters": (32, 64), "kernel": 3, "pooled": (1,), "hidden": (128,)}
    network = Network(classes, **wide, dropout=dropout, initial=init, convolution=convolution, spare=spare)
    return task(network, shape, classes, name="cnn_femnist")


@register("model", "cnn_e")
def cnn_e(
    shape: Sequence[int],
    classes: int,
    *,
    convolutions: Annotated[
        Literal[2, 6] | None, Field(description="how many; by default 2 for up to ten classes, 6 for more")
    ] = None,
    small: Annotated[bool, Field(description="two 3×3 convolutions of 8 and 16, and a dense layer of 64")] = False,
    init: Init = "glorot",
    convolution: How = "auto",
    spare: Spare = 0.0,
) -> Task:
    """Two convolutions and three dense layers, or six and two for CIFAR-100 (Bhattacharya and Aridi, §4.2).

    The layers are those of the authors' code, to which the paper refers: 5×5 convolutions of 16 and 32 and dense layers
    of 120 and 84, no padding, and a pool after each convolution; or, padded by 1, 3×3 convolutions of 32, 32, 64, 64,
    128 and 128 with batch normalisation before ReLU, a pool after every second one, and a dense layer of 512. For MNIST
    the code has a third network (`small`), which the paper does not name.

    28×28×1, 10 classes: 85,822 parameters, 27,562 if `small`. 32×32×3: 121,182 for 10 classes, 1,388,292 for 100 with
    six convolutions.
    """
    if small and convolutions == 6:
        raise InputError("cnn_e: the small network has two convolutions; leave out small or convolutions")
    if small:
        layers: dict[str, Any] = {"filters": (8, 16), "kernel": 3, "pooled": (0, 1), "hidden": (64,)}
    elif (convolutions or (2 if classes <= 10 else 6)) == 2:
        layers = {"filters": (16, 32), "pooled": (0, 1), "hidden": (120, 84)}
    else:
        layers = {"filters": (32, 32, 64, 64, 128, 128), "kernel": 3, "padding": "SAME", "pooled": (1, 3, 5)}
        layers |= {"norm": True, "hidden": (512,)}
    network = Network(classes, **layers, initial=init, convolution=convolution, spare=spare)
    return task(network, shape, classes, name="cnn_e")
