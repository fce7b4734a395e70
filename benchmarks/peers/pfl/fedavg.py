"""FedAvg with pfl: its federated averaging on its simulated backend, one process, PyTorch.

pip install -r requirements.txt
python fedavg.py --data-dir FOLDER --model mlp --threads 2
"""

import importlib.metadata
import itertools
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

sys.path.append(str(Path(__file__).resolve().parents[1]))
import work
from networks_torch import network, right, started


def main() -> None:
    asked = started(__doc__)
    np.random.seed(asked.seed)  # noqa: NPY002 - pfl draws from it
    (x, y), owner = (torch.from_numpy(part) for part in work.images(asked.data_dir, "train")), work.owned(asked)
    parts = [(x[rows], y[rows]) for rows in owner]

    def drawn(user) -> Dataset:
        order = torch.randperm(asked.examples)
        return Dataset(tuple(part[order] for part in parts[user]), user_id=str(user))

    net = learnt(network(asked.model))
    users = FederatedDataset(drawn, get_user_sampler("random", range(asked.clients)))
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(asked.rounds, evaluation_frequency=10**9, train_cohort_size=asked.cohort, val_cohort_size=0),
        SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0)),
        NNTrainHyperParams(local_batch_size=asked.batch, local_num_epochs=1, local_learning_rate=asked.lr),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    accuracy = right(net, *work.images(asked.data_dir, "t10k"))
    work.told(asked, "pfl", importlib.metadata.version("pfl"), clock.seconds(), accuracy)


def learnt(net: torch.nn.Module) -> torch.nn.Module:
    """The network with the two methods that pfl asks for."""

    def loss(self, x, y):
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y):
        return {"loss": Weighted(loss(self, x, y).item() * len(y), len(y))}

    net.loss, net.metrics = types.MethodType(loss, net), types.MethodType(metrics, net)
    return net


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def on_train_begin(self, *, model) -> Metrics:
        self.ends = [time.perf_counter()]
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.ends.append(time.perf_counter())
        return False, Metrics()

    def seconds(self) -> list[float]:
        return [end - start for start, end in itertools.pairwise(self.ends)]


if __name__ == "__main__":
    main()
