"""The start and the networks of every peer that trains with PyTorch."""

import argparse

import numpy as np
import torch
import work
from torch import nn

if "+cpu" in torch.__version__:
    # FedLab and fluke import torchvision for its datasets, which are not used here. Torchvision from PyPI is built for
    # CUDA, and beside PyTorch for CPUs its import ends at these operators unless they are there.
    LIBRARY = torch.library.Library("torchvision", "DEF")
    LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def started(about: str, colour: bool = False) -> argparse.Namespace:
    """The options of a peer that trains with PyTorch, kept to its threads and with its seed set."""
    asked = work.arguments(about, colour).parse_args()
    work.pin(asked.threads)
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    return asked


def network(name: str) -> nn.Module:
    """A network of `work.MODELS`, called on [n, 28, 28], or of `work.COLOUR`, called on [n, 3, 32, 32].

    784-200-10; 5×5×16, pool, 5×5×32, pool, dense, with or without batch normalisation; of colour images without
    padding, 5×5×6, pool, 5×5×16, pool, 120, 84, dense, or 3×3×32, 3×3×64, pool, 128, dense.
    """
    if name == "lenet":
        body = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
        dense = [nn.Linear(5 * 5 * 16, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
        return nn.Sequential(*body, nn.Flatten(), *dense)
    if name == "cnn_wide":
        body = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Linear(128, 10))
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 28))]
    for before, after in ((1, 16), (16, 32)):
        norm = [nn.BatchNorm2d(after)] if name == "cnn_norm" else []
        layers += [nn.Conv2d(before, after, 5, padding=2), *norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(7 * 7 * 32, 10))


def right(model: nn.Module, x: np.ndarray, y: np.ndarray) -> float:
    """The share of right answers."""
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        answers = torch.cat([model(part.to(device)).argmax(1).cpu() for part in torch.from_numpy(x).split(1000)])
    return (answers == torch.from_numpy(y)).float().mean().item()
