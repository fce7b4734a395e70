"""FedAvg with fluke: its algorithm object, its loader of tensors, and clients that keep their models.

pip install -r requirements.txt
python fedavg.py --data-dir FOLDER --model mlp --threads 2
"""

import itertools
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
import work
from networks_torch import network, right, started  # declares what torchvision needs

# isort: split
import fluke
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver


def main() -> None:
    asked = started(__doc__)
    settings = fluke.FlukeENV()
    settings.set_seed(asked.seed)
    settings.set_device("cpu")
    settings.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    parts = (
        map(torch.from_numpy, part) for part in work.shares(asked.data_dir, asked.seed, asked.clients, asked.examples)
    )
    loaders = [FastDataLoader(*part, num_labels=10, batch_size=asked.batch, shuffle=True) for part in parts]
    splitter = DataSplitter(DummyDataContainer(loaders, [None] * len(loaders), None, num_classes=10))
    client = {"batch_size": asked.batch, "local_epochs": 1, "loss": "CrossEntropyLoss", "persistency": True}
    client |= {"optimizer": {"lr": asked.lr}, "scheduler": {"gamma": 1, "step_size": 1}}
    options = {"client": client, "server": {"weighted": True}, "model": network(asked.model)}
    algorithm, timed = FedAVG(asked.clients, splitter, fluke.DDict(options)), Timed()
    algorithm.set_callbacks(timed)
    algorithm.run(asked.rounds, asked.cohort / asked.clients)
    seconds = [end - start for start, end in itertools.pairwise(timed.ends)]
    accuracy = right(algorithm.server.model, *work.images(asked.data_dir, "t10k"))
    work.told(asked, "fluke", fluke.__version__, seconds, accuracy)


class Timed(FederationObserver):
    """When the run began, and when each of its rounds ended."""

    def __init__(self):
        self.ends = []

    def start_round(self, round, global_model):
        if not self.ends:
            self.ends.append(time.perf_counter())

    def end_round(self, round):
        self.ends.append(time.perf_counter())


if __name__ == "__main__":
    main()
