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


def started(about: str) -> argparse.Namespace:
    """The options of a peer that trains with PyTorch, kept to its threads and with its seed set."""
    asked = work.arguments(about).parse_args()
    work.pin(asked.threads)
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    return asked


def network(name: str) -> nn.Module:
    """784-200-10, or 5×5×16, pool, 5×5×32, pool, dense, with or without batch normalisation; called on [n, 28, 28]."""
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
    with torch.no_grad():
        answers = torch.cat([model(part).argmax(1) for part in torch.from_numpy(x).split(1000)])
    return (answers == torch.from_numpy(y)).float().mean().item()
