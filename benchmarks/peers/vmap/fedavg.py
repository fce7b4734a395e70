"""FedAvg in plain JAX: `vmap` over the clients of a round, or `lax.map`, one compiled round.

pip install -r requirements.txt
python fedavg.py --data-dir FOLDER --model mlp --threads 2 --over map
"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
import work


def main() -> None:
    parser = work.arguments(__doc__)
    parser.add_argument("--over", choices=("vmap", "map"), default="vmap", help="clients side by side, or in turn")
    asked = parser.parse_args()
    work.pin(asked.threads)
    import jax
    from networks_jax import initial, right

    (x, y), owner, rng = work.images(asked.data_dir, "train"), work.owned(asked), np.random.default_rng(asked.seed)
    x, y, key, run = jax.device_put(x), jax.device_put(y.astype(np.int32)), jax.random.key(asked.seed), program(asked)
    model, seconds = initial(asked.model, key), []
    for turn in range(asked.rounds):
        start = time.perf_counter()
        rows = owner[rng.permutation(asked.clients)[: asked.cohort]]
        model = jax.block_until_ready(run(model, x, y, rows, jax.random.fold_in(key, turn)))
        seconds.append(time.perf_counter() - start)
    accuracy = float(right(model, *work.images(asked.data_dir, "t10k")))
    work.told(asked, f"plain JAX, {'lax.map' if asked.over == 'map' else 'vmap'}", jax.__version__, seconds, accuracy)


def program(asked):
    """One round, compiled."""
    import jax
    from networks_jax import loss

    def step(model, batch):
        return jax.tree.map(lambda a, slope: a - asked.lr * slope, model, jax.grad(loss)(model, *batch)), None

    def client(model, x, y, key):
        order = jax.random.permutation(key, len(y))
        whole = len(y) // asked.batch * asked.batch
        cut = lambda a: a[order[:whole]].reshape(-1, asked.batch, *a.shape[1:])
        model, _ = jax.lax.scan(step, model, (cut(x), cut(y)))
        return step(model, (x[order[whole:]], y[order[whole:]]))[0] if whole < len(y) else model

    def one_round(model, x, y, rows, key):
        keys = jax.random.split(key, len(rows))
        one = lambda part: client(model, x[part[0]], y[part[0]], part[1])
        each = jax.vmap(one) if asked.over == "vmap" else lambda parts: jax.lax.map(one, parts)
        return jax.tree.map(lambda leaf: leaf.mean(0), each((rows, keys)))

    return jax.jit(one_round, donate_argnums=0)


if __name__ == "__main__":
    main()
