"""FedAvg as a plain PyTorch loop: one model, one client after another, on a GPU if PyTorch sees one.

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
    asked, device, kind = started(__doc__, colour=True), "cpu", "cpu"
    if torch.cuda.is_available():
        device, kind = "cuda", torch.cuda.get_device_name()
        torch.set_float32_matmul_precision("high")  # TensorFloat-32, which is JAX's default
    if asked.images:
        train_on, test_on = work.colour_images(asked.images)
    else:
        train_on, test_on = (work.images(asked.data_dir, part) for part in ("train", "t10k"))
    (x, y), owner = (torch.from_numpy(part).to(device) for part in train_on), work.owned(asked, len(train_on[1]))
    rows = torch.from_numpy(owner).to(device)
    model, seconds = network(asked.model).to(device), []
    for _ in range(asked.rounds):
        start = time.perf_counter()
        cohort = torch.randperm(asked.clients)[: asked.cohort]
        one_round(model, [(x[rows[i]], y[rows[i]]) for i in cohort], asked.batch, asked.lr, asked.epochs)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    work.told(asked, "PyTorch", torch.__version__, seconds, right(model, *test_on), device=kind)


def one_round(
    model: nn.Module, cohort: list[tuple[torch.Tensor, torch.Tensor]], batch: int, lr: float, epochs: int
) -> None:
    """Train every client from the model it is sent; the model becomes their mean by examples."""
    sent = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    mean = {name: torch.zeros_like(leaf, dtype=torch.float32) for name, leaf in sent.items()}
    total = sum(len(y) for _, y in cohort)
    for x, y in cohort:
        model.load_state_dict(sent)
        train(model, x, y, batch, lr, epochs)
        for name, leaf in model.state_dict().items():
            mean[name] += leaf * (len(y) / total)
    model.load_state_dict(mean)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int, lr: float, epochs: int) -> None:
    """SGD, in a new random order in each epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=x.device).split(batch):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
