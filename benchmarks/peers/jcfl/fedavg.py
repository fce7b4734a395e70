"""FedAvg with jcfl: the first rounds of a long run as `jcfl.run` runs them, one at a time, after the run's trials.

python fedavg.py --data-dir FOLDER --model mlp --threads 2 --engine auto
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
import work

LONG = 2000
"""The rounds of the run, of which the first ones are measured. With so many, it begins with trials of settings."""


def main() -> None:
    parser = work.arguments(__doc__, colour=True)
    parser.add_argument("--engine", choices=("auto", "general", "factored"), default="auto")
    parser.add_argument("--chunk", type=int, help="clients trained at a time")
    parser.add_argument("--devices", type=int, help="parts of the CPU that clients are shared out among")
    asked = parser.parse_args()
    work.pin(asked.threads)
    import jax

    from jcfl import metrics
    from jcfl.runs import devices, loop, programs
    from jcfl.runs.bench.compiled import estimate
    from jcfl.runs.bench.work import tried
    from jcfl.runs.environment import use_cache
    from jcfl.runs.plan import config_and_objects, planned
    from jcfl.runs.xla import round_options
    from jcfl.version import __version__

    use_cache()
    devices.use_cores()
    plan = tried(planned(*config_and_objects(federation(asked), configured(asked))))
    count, algorithm = plan.context.resources.devices, plan.algorithms["fedavg"]
    plan = plan._replace(federation=devices.on_devices(plan.federation, count))
    seconds, start = [], time.perf_counter()
    family = programs.begun(algorithm, plan.federation, 1, count, round_options(plan.context))()
    compiled = family.with_values({})
    state = compiled.init(programs.keys([asked.seed], count), plan.federation)
    for turn in range(asked.rounds):
        state, _ = loop.advanced(compiled, plan.federation, state, turn + 1)
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
    if (np.asarray(state.failed) >= 0).any():  # its later rounds did nothing
        sys.exit("training diverged")
    outcome = jax.device_get(compiled.evaluate(state, plan.federation))
    accuracy = float(metrics.accuracy(outcome["counts"].sum(0)))
    more = {"jax": jax.__version__, "engine": algorithm.engine, "devices": count}
    more |= {"device": jax.local_devices()[0].device_kind, "chunk": plan.context.resources.chunk}
    work.told(asked, "jcfl", __version__, seconds, accuracy, **more, **estimate(family.advance, plan))


def federation(asked: argparse.Namespace):
    """The shares as a federation; every client is tested on as large a share of the test images."""
    from jcfl import data
    from jcfl.types import NEVER, Federation, Split

    if asked.images:
        train, test = (data.Examples(*part) for part in work.stored(asked.images))
        whole, mean, std = data.Dataset("colour images", train, test, 10), work.COLOUR_MEAN, work.COLOUR_STD
    else:
        whole, mean, std = data.load("fashion_mnist", asked.data_dir), work.MEAN, work.STD
    m, size, tests = asked.clients, len(whole.train.y), len(whole.test.y) // asked.clients
    share = lambda rows, width: Split(rows.ravel().astype(np.int32), np.arange(m) * width, np.full(m, width), width)
    return Federation(
        x=np.concatenate([whole.train.x, whole.test.x]),
        y=np.concatenate([whole.train.y, whole.test.y]).astype(np.int32),
        train=share(work.owned(asked, size), asked.examples),
        test=share(size + np.arange(tests * m), tests),
        groups=np.zeros(m, np.int32),
        held_out=np.zeros(m, bool),
        arrive=np.zeros(m, np.int32),
        depart=np.full(m, NEVER),
        classes=10,
        mean=(float(mean),),
        std=(float(std),),
        name=whole.name,
    )


def configured(asked: argparse.Namespace) -> dict:
    """The run's configuration, but for its federation."""
    from jcfl.models.networks import Network

    padded: dict = {"filters": (16, 32), "padding": "SAME", "pooled": (0, 1)}
    networks: dict[str, dict] = {
        "cnn": padded,
        "cnn_norm": padded | {"norm": True},
        "lenet": {"filters": (6, 16), "pooled": (0, 1), "hidden": (120, 84)},
        "cnn_wide": {"filters": (32, 64), "kernel": 3, "pooled": (1,), "hidden": (128,)},
    }
    mlp = {"name": "mlp", "hidden": 200, "init": "torch"}
    return {
        "model": mlp if asked.model == "mlp" else Network(10, initial="torch", **networks[asked.model]),
        "method": "fedavg",
        "train": {"lr": asked.lr, "epochs": asked.epochs, "batch_size": asked.batch},
        "participation": asked.cohort / asked.clients,
        "rounds": LONG,
        "engine": asked.engine,
        "chunk": asked.chunk,
        "devices": asked.devices,
    }


if __name__ == "__main__":
    main()
