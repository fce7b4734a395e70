"""FedAvg with jcfl: the rounds as `jcfl.run` runs them, one at a time.

python fedavg.py --data-dir FOLDER --model mlp --threads 2 --engine auto
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
import work


def main() -> None:
    parser = work.arguments(__doc__)
    parser.add_argument("--engine", choices=("auto", "general", "factored"), default="auto")
    parser.add_argument("--chunk", type=int, help="clients trained at a time")
    parser.add_argument("--devices", type=int, help="parts of the CPU that clients are shared out among")
    asked = parser.parse_args()
    work.pin(asked.threads)
    import jax

    from jcfl import metrics
    from jcfl.runs import devices, loop, programs, tuning
    from jcfl.runs.environment import use_cache
    from jcfl.runs.plan import config_and_objects, planned
    from jcfl.version import __version__

    use_cache()
    devices.use_cores()
    plan = tuning.tuned(planned(*config_and_objects(federation(asked), configured(asked))))
    plan = tuning.of_method(plan, "fedavg")
    count, algorithm = plan.context.resources.devices, plan.algorithms["fedavg"]
    plan = plan._replace(federation=devices.on_devices(plan.federation, count))
    seconds, start = [], time.perf_counter()
    compiled = programs.programs(algorithm, plan.federation, 1, count)
    state = compiled.init(programs.keys([asked.seed], count), plan.federation)
    for turn in range(asked.rounds):
        state, _ = loop.advanced(compiled, plan.federation, state, turn + 1)
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
    outcome = jax.device_get(compiled.evaluate(state, plan.federation))
    accuracy = float(metrics.accuracy(outcome["counts"].sum(0)))
    more = {"jax": jax.__version__, "engine": algorithm.engine, "devices": count}
    work.told(asked, "jcfl", __version__, seconds, accuracy, **more)


def federation(asked: argparse.Namespace):
    """The shares as a federation; every client is tested on as large a share of the test images."""
    from jcfl import data
    from jcfl.types import NEVER, Federation, Split

    whole, m = data.load("fashion_mnist", asked.data_dir), asked.clients
    size, tests = len(whole.train.y), len(whole.test.y) // m
    share = lambda rows, width: Split(rows.ravel().astype(np.int32), np.arange(m) * width, np.full(m, width), width)
    return Federation(
        x=np.concatenate([whole.train.x, whole.test.x]),
        y=np.concatenate([whole.train.y, whole.test.y]).astype(np.int32),
        train=share(work.owned(asked), asked.examples),
        test=share(size + np.arange(tests * m), tests),
        groups=np.zeros(m, np.int32),
        held_out=np.zeros(m, bool),
        arrive=np.zeros(m, np.int32),
        depart=np.full(m, NEVER),
        classes=10,
        mean=(float(work.MEAN),),
        std=(float(work.STD),),
        name="fashion_mnist",
    )


def configured(asked: argparse.Namespace) -> dict:
    """The run's configuration, but for its federation."""
    from jcfl.models.networks import Network

    norm = asked.model == "cnn_norm"
    cnn = Network(10, filters=(16, 32), padding="SAME", pooled=(0, 1), norm=norm, initial="torch")
    return {
        "model": {"name": "mlp", "hidden": 200, "init": "torch"} if asked.model == "mlp" else cnn,
        "method": "fedavg",
        "train": {"lr": asked.lr, "epochs": 1, "batch_size": asked.batch},
        "participation": asked.cohort / asked.clients,
        "rounds": asked.rounds,
        "engine": asked.engine,
        "chunk": asked.chunk,
        "devices": asked.devices,
    }


if __name__ == "__main__":
    main()
