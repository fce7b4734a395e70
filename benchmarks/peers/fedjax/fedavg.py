"""FedAvg with FedJAX: its own federated averaging on its compiled backend, clients in turn.

    pip install -r requirements.txt
    python fedavg.py --data-dir FOLDER --model mlp --threads 2

The released version is measured; that of the repository could not be fetched.
"""

import importlib.metadata
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
import work


def main() -> None:
    asked = work.arguments(__doc__).parse_args()
    work.pin(asked.threads)
    import fedjax
    import jax
    from networks_jax import initial, loss, right

    (x, y), owner, key = work.images(asked.data_dir, "train"), work.owned(asked), jax.random.PRNGKey(asked.seed)
    clients = {b"%04d" % i: {"x": x[rows], "y": y[rows].astype(np.int32)} for i, rows in enumerate(owner)}
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(clients), asked.cohort, asked.seed
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(lambda model, batch, key: loss(model, batch["x"], batch["y"])),
        fedjax.optimizers.sgd(asked.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=asked.batch),
    )
    state, seconds = algorithm.init(initial(asked.model, key)), []
    for turn in range(asked.rounds):
        start = time.perf_counter()
        sampler.set_round_num(turn)
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - start)
    accuracy = float(right(state.params, *work.images(asked.data_dir, "t10k")))
    work.told(asked, "FedJAX", importlib.metadata.version("fedjax"), seconds, accuracy, jax=jax.__version__)


if __name__ == "__main__":
    main()
