"""A federation larger than the memory, and what examples in a file or on the host cost where they would fit.

    python benchmarks/large.py whole --dir FOLDER --gb 20      # writes 20 GB, trains on them, and deletes them
    python benchmarks/large.py beside --dir FOLDER --gb 2      # the same rounds with examples in three places
    python benchmarks/large.py states --dir FOLDER --gb 31     # clients' models that do not fit, kept on the host
    python benchmarks/large.py states --dir FOLDER --gb 1 --beside    # the same rounds with models in two places

Examples are made up; the folder is for files that are deleted at the end. Prints a table and a line of JSON.
"""

import json
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

sys.path.append(str(Path(__file__).resolve().parent))

from inputs import run_script

from jcfl.core.memory import peak_memory
from jcfl.data import from_clients, mapped, write_gaussian
from jcfl.errors import available_memory
from jcfl.runs.bench import load_average, machine
from jcfl.runs.experiment import run
from jcfl.types import Federation

FEATURES, EXAMPLES, CLASSES, GROUPS = 784, 300, 10, 4
PAUSE = 0.05
"""Seconds between two looks at the memory."""

SPACE = "Where there is space; what is written there is deleted at the end."
Dir = Annotated[Path, typer.Option("--dir", exists=True, file_okay=False, help=SPACE)]
Size = Annotated[float, typer.Option("--gb", help="Size of the examples in GB.")]
Rounds = Annotated[int, typer.Option(min=2, help="Rounds that are trained, each with an evaluation.")]
Hidden = Annotated[int, typer.Option(help="Width of the MLP.")]
Share = Annotated[float, typer.Option(help="Share of the clients in a round.")]
Method = Annotated[str, typer.Option(help="fedavg, ifca, …")]
Epochs = Annotated[int, typer.Option(help="Epochs of local training, in batches of 32.")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def whole(
    place: Dir, gb: Size = 20.0, rounds: Rounds = 5, hidden: Hidden = 200, share: Share = 0.1, method: Method = "fedavg"
) -> None:
    """Train on a federation in a mapped file, and print the time of a round and the memory at its peak."""
    with written(place, gb) as (folder, seconds):
        federation = mapped(folder)
        size = (folder / "x.npy").stat().st_size
        told(f"{size / 1e9:.1f} GB of {len(federation.groups)} clients, written in {seconds:.0f} s; ")
        told(f"{available_memory() / 1e9:.1f} GB of memory are free\n")
        found = measured(federation, rounds, hidden, share, method)
        show({"mapped file": found}, load_average())


@app.command()
def beside(
    place: Dir, gb: Size = 2.0, rounds: Rounds = 5, hidden: Hidden = 200, share: Share = 0.1, method: Method = "fedavg"
) -> None:
    """Train on the same examples in memory, in a mapped file, and on the host; print the times of rounds as ratios."""
    load = load_average()
    with written(place, gb) as (folder, _):
        y, clients, groups = (np.load(folder / f"{name}.npy") for name in ("y", "clients", "groups"))
        copy = from_clients(np.array(np.load(folder / "x.npy", mmap_mode="r")), y, clients, groups=groups)
        found = {"in memory": measured(copy, rounds, hidden, share, method, examples="device")}
        del copy
        found["mapped file"] = measured(mapped(folder), rounds, hidden, share, method, examples="device")
        found["on the host"] = measured(mapped(folder), rounds, hidden, share, method, examples="host")
    show(compared(found), load)


@app.command()
def states(
    place: Dir,
    gb: Annotated[float, typer.Option("--gb", help="Size of all clients' models in GB.")] = 31.0,
    rounds: Rounds = 3,
    hidden: Hidden = 2048,
    share: Share = 0.1,
    method: Method = "fesem",
    epochs: Epochs = 1,
    both: Annotated[bool, typer.Option("--beside", help="Also with the models in memory.")] = False,
) -> None:
    """Train a method whose clients each keep a model, the models on the host: in memory, or in a file if too large."""
    load, size = load_average(), 4 * ((FEATURES + 1) * hidden + (hidden + 1) * CLASSES)
    users = clients(gb, size)
    told(f"{users} clients, {users * size / 1e9:.1f} GB of models; {available_memory() / 1e9:.1f} GB of memory free\n")
    rng, client = np.random.default_rng(0), np.repeat(np.arange(users), 40)
    y, centres = rng.integers(0, CLASSES, client.size), rng.normal(size=(GROUPS, CLASSES, FEATURES))
    x = (centres[client % GROUPS, y] + rng.normal(size=(client.size, FEATURES))).astype(np.float32)
    federation = from_clients(x, y, client, groups=np.arange(users) % GROUPS)
    tempfile.tempdir = str(place)
    places = ("device", "host") if both else ("host",)
    kinds = {"in memory" if kind == "device" else "on the host": kind for kind in places}
    found = {
        name: measured(federation, rounds, hidden, share, method, epochs, engine="general", client_states=kind)
        for name, kind in kinds.items()
    }
    show(compared(found), load)


def clients(gb: float, size: int) -> int:
    """How many clients of `size` bytes have `gb` GB together, which has to be enough for a client of each group.

    Raises:
        typer.BadParameter: it is less, or no number of clients.
    """
    if not GROUPS * size <= gb * 1e9 < 2**31 * size:
        least = f"{math.ceil(GROUPS * size / 1e5) / 1e4:g}"
        raise typer.BadParameter(f"--gb: expected at least {least}, the size of {GROUPS} clients, got {gb:g}")
    return round(gb * 1e9 / size)


def compared(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The measurements with ratios of times to the first one's, and whether the accuracy is the same."""
    first = next(iter(found.values()))
    for one in found.values():
        one["ratio"] = one["round_s"] / first["round_s"]
        one["same_figures"] = one["accuracy"] == first["accuracy"]
    return found


@contextmanager
def written(place: Path, gb: float) -> Iterator[tuple[Path, float]]:
    """A folder with a generated federation, which is deleted, and the seconds that it took to write."""
    users = clients(gb, 4 * FEATURES * EXAMPLES)
    own, begun = Path(tempfile.mkdtemp(prefix="large-", dir=place)), time.perf_counter()
    try:
        made = write_gaussian(own / "made", users=users, examples=EXAMPLES, features=FEATURES, classes=CLASSES)
        yield made, time.perf_counter() - begun
    finally:
        shutil.rmtree(own)


def measured(
    federation: Federation, rounds: int, hidden: int, share: float, method: str, epochs: int = 1, **settings: Any
) -> dict[str, Any]:
    """The mean time of a round, the median with its evaluation, the accuracy at last, and the memory of a run."""
    ends: list[float] = []
    model, train = {"name": "mlp", "hidden": hidden}, {"lr": 0.1, "epochs": epochs, "batch_size": 32}
    given = {"method": method, "model": model, "train": train, "participation": share}
    with own_memory() as peak:
        found = run(
            federation,
            **given,
            **settings,
            rounds=rounds,
            evaluate_every=1,
            on_progress=lambda progress: ends.append(time.perf_counter()),
        )
    speed = found.summary["rounds_per_s"]
    gaps = np.diff(ends)  # without the first state and the compilation
    return {
        "round_s": 1 / speed,
        "round_and_evaluation_s": float(np.median(gaps)),
        "accuracy": float(found.summary["accuracy_micro"]["mean"]),
        "own_peak_bytes": peak[0],
        "peak_bytes": peak_memory(),
    }


@contextmanager
def own_memory() -> Iterator[list[int]]:
    """The most memory that a process holds besides mapped files, which the system takes back when it needs to."""
    peak, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(PAUSE):
            lines = Path("/proc/self/status").read_text().splitlines()
            peak[0] = max(peak[0], 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")))

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield peak
    finally:
        stop.set()
        watch.join()


def show(found: dict[str, dict[str, Any]], load: float) -> None:
    """Print a table, and all of it as JSON."""
    told("| place | a round | with its evaluation | ratio | accuracy | memory of its own | with mapped pages |\n")
    for place, one in found.items():
        times = f"{one['round_s']:.2f} s | {one['round_and_evaluation_s']:.2f} s | {one.get('ratio', 1):.2f}"
        sizes = f"{one['own_peak_bytes'] / 1e9:.2f} GB | {one['peak_bytes'] / 1e9:.2f} GB"
        told(f"| {place} | {times} | {one['accuracy']:.4f} | {sizes} |\n")
    told(json.dumps({"found": found, "machine": machine(load)}) + "\n")


def told(text: str) -> None:
    """Print now: a run takes minutes."""
    print(text, end="", flush=True)


if __name__ == "__main__":
    run_script(app)
