"""FedAvg as a plain PyTorch loop: one model, one client after another.

pip install -r requirements.txt
python fedavg.py --data-dir FOLDER --model cnn --threads 2
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).resolve().parents[1]))
import work
from networks_torch import network, right, started


def main() -> None:
    asked = started(__doc__)
    (x, y), owner = (torch.from_numpy(part) for part in work.images(asked.data_dir, "train")), work.owned(asked)
    model, seconds = network(asked.model), []
    for _ in range(asked.rounds):
        start = time.perf_counter()
        cohort = torch.randperm(asked.clients)[: asked.cohort]
        one_round(model, [(x[owner[i]], y[owner[i]]) for i in cohort], asked.batch, asked.lr)
        seconds.append(time.perf_counter() - start)
    accuracy = right(model, *work.images(asked.data_dir, "t10k"))
    work.told(asked, "PyTorch", torch.__version__, seconds, accuracy)


def one_round(model: nn.Module, cohort: list[tuple[torch.Tensor, torch.Tensor]], batch: int, lr: float) -> None:
    """Train every client from the model it is sent; the model becomes their mean by examples."""
    sent = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    mean = {name: torch.zeros_like(leaf, dtype=torch.float32) for name, leaf in sent.items()}
    total = sum(len(y) for _, y in cohort)
    for x, y in cohort:
        model.load_state_dict(sent)
        train(model, x, y, batch, lr)
        for name, leaf in model.state_dict().items():
            mean[name] += leaf * (len(y) / total)
    model.load_state_dict(mean)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int, lr: float) -> None:
    """One epoch of SGD in a random order."""
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for rows in torch.randperm(len(x)).split(batch):
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
