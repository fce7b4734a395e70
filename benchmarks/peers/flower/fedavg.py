"""FedAvg with Flower: its simulation on Ray, one actor for every core.

pip install -r requirements.txt
python fedavg.py --data-dir FOLDER --model mlp --threads 2
"""

import argparse
import importlib.metadata
import itertools
import logging
import os
import sys
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

HERE = str(Path(__file__).resolve().parents[1])
sys.path.append(HERE)
import work  # noqa: E402
from networks_torch import network, right  # noqa: E402


def main() -> None:
    asked = work.arguments(__doc__).parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), HERE]))  # for Ray's actors
    work.pin(asked.threads)
    torch.manual_seed(asked.seed)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    ends, final = [], []
    resources = {
        "client_resources": {"num_cpus": 1},
        "init_args": {"num_cpus": asked.threads, "logging_level": "error"},
    }
    run_simulation(server(asked, ends, final), client(asked), asked.clients, backend_config=resources)
    seconds = [end - start for start, end in itertools.pairwise(ends)]
    net = network(asked.model)
    net.load_state_dict(final[0].to_torch_state_dict())
    accuracy = right(net, *work.images(asked.data_dir, "t10k"))
    work.told(asked, "Flower", importlib.metadata.version("flwr"), seconds, accuracy, actors=asked.threads)


def server(asked: argparse.Namespace, ends: list, final: list) -> ServerApp:
    """The server; when it began and ended its rounds goes into `ends`, the last model into `final`."""
    app = ServerApp()

    @app.main()
    def rounds(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=asked.cohort / asked.clients, fraction_evaluate=0.0, min_available_nodes=asked.clients
        )
        start = ArrayRecord(network(asked.model).state_dict())
        clock = lambda turn, arrays: ends.append(time.perf_counter())
        final.append(strategy.start(grid, start, asked.rounds, evaluate_fn=clock).arrays)

    return app


def client(asked: argparse.Namespace) -> ClientApp:
    """The clients."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        parts = work.shares(asked.data_dir, asked.seed, asked.clients, asked.examples)
        x, y = (torch.from_numpy(part) for part in parts[int(context.node_config["partition-id"])])
        net = network(asked.model)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), asked.lr)
        for rows in torch.randperm(len(x)).split(asked.batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        reply = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(content=RecordDict(reply), reply_to=message)

    return app


if __name__ == "__main__":
    main()
