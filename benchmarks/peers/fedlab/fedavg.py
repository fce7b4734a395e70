"""FedAvg with FedLab: its standalone pipeline and serial trainer.

pip install -r requirements.txt
python fedavg.py --data-dir FOLDER --model mlp --threads 2
"""

import itertools
import random
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
import work
from networks_torch import network, right, started  # declares what torchvision needs

# isort: split
import fedlab
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    asked = started(__doc__)
    random.seed(asked.seed)
    model, quiet = network(asked.model), Quiet()
    trainer = SGDSerialClientTrainer(model, asked.clients, logger=quiet)
    trainer.setup_dataset(Shares(*work.images(asked.data_dir, "train"), work.owned(asked)))
    trainer.setup_optim(epochs=1, batch_size=asked.batch, lr=asked.lr)
    handler = SyncServerHandler(model, asked.rounds, asked.cohort / asked.clients, logger=quiet)
    pipeline = Timed(handler, trainer)
    pipeline.main()
    accuracy = right(handler.model, *work.images(asked.data_dir, "t10k"))
    work.told(asked, "FedLab", fedlab.__version__, pipeline.seconds(), accuracy)


class Shares(FedDataset):
    """Every client's examples, shuffled by PyTorch's loader."""

    def __init__(self, x, y, owner):
        self.parts = [TensorDataset(torch.from_numpy(x[rows]), torch.from_numpy(y[rows])) for rows in owner]

    def get_dataloader(self, id, batch_size, type="train"):
        return DataLoader(self.parts[id], batch_size, shuffle=True)


class Timed(StandalonePipeline):
    """The pipeline, and when each of its rounds ended."""

    def main(self):
        self.ends = [time.perf_counter()]
        super().main()

    def evaluate(self):
        self.ends.append(time.perf_counter())

    def seconds(self):
        return [end - start for start, end in itertools.pairwise(self.ends)]


class Quiet:
    """A logger that says nothing."""

    def info(self, text):
        pass


if __name__ == "__main__":
    main()
