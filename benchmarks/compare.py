"""The same federated averaging with other simulators, each in an environment of its own, one after another beside jcfl.

    python benchmarks/compare.py --data-dir FOLDER --results benchmarks/RESULTS.md
    python benchmarks/compare.py jcfl PyTorch --models mlp --threads 2 --data-dir FOLDER

The work is in `peers/work.py`. Writes every figure as JSON, a chart, and a section of RESULTS.md.
"""

import itertools
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import psutil
import typer

sys.path.append(str(Path(__file__).resolve().parent))

from inputs import expect_measured, is_measured, known, read, run_script, whole_numbers

from jcfl.runs.bench import load_average, machine, with_section

HERE = Path(__file__).resolve().parent
CACHE = Path.home() / ".cache/jcfl/peers"
TITLE = "FedAvg beside other simulators"
CLOSE = 0.03
"""How far an accuracy may be from the median one before the row says so."""

DRAWN = 15
"""How many times the fastest's seconds a bar of the chart may be."""

QUIET, TRIES = 0.1, 2
"""The share of the cores that others may use during a run, and how often a run is tried that was disturbed more."""

Rows = dict[tuple[str, int], dict[str, dict[str, Any]]]
"""By model and threads, then by name, what was found."""

MODELS = ("mlp", "cnn", "cnn_norm")
"""Networks of `peers/work.py`."""


class Peer(NamedTuple):
    """A simulator and how it is asked."""

    folder: str
    environment: str | None  # None: the Python that this command runs in
    options: tuple[str, ...] = ()
    least: int = 1  # threads; with fewer it is another row
    detached: bool = False  # whether it leaves its work to daemons
    slow: tuple[str, ...] = ()  # models of which two rounds take long enough
    normed: bool = False  # whether it has the network with batch normalisation


PEERS = {
    "jcfl": Peer("jcfl", None, normed=True),
    "jcfl, general": Peer("jcfl", None, ("--engine", "general")),
    "jcfl, general, 2 devices": Peer("jcfl", None, ("--engine", "general", "--devices", "2"), least=2, normed=True),
    "plain JAX, vmap": Peer("vmap", "vmap", slow=("cnn",)),
    "plain JAX, lax.map": Peer("vmap", "vmap", ("--over", "map"), slow=("cnn",)),
    "FedJAX": Peer("fedjax", "fedjax"),
    "PyTorch": Peer("pytorch", "pytorch", normed=True),
    "pfl": Peer("pfl", "pfl"),
    "FedLab": Peer("fedlab", "fedlab"),
    "fluke": Peer("fluke", "fluke"),
    "Flower": Peer("flower", "flower", detached=True),
}


def main(
    peers: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(PEERS)}.")] = None,
    data_dir: Annotated[Path, typer.Option(help="Holds fashion_mnist/.")] = Path("data"),
    models: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}, with commas.")] = "mlp,cnn",
    threads: Annotated[str, typer.Option(help="Cores each is kept to.")] = "1,2",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds, the first of which stands apart.")] = 7,
    repeats: Annotated[int, typer.Option(min=1, help="How often everything is run, in turn.")] = 2,
    limit: Annotated[int, typer.Option(min=1, help="Seconds after which a run is given up.")] = 300,
    cache: Annotated[Path, typer.Option(help="Folder of the environments.")] = CACHE,
    out: Annotated[Path, typer.Option(help="Folder of the figures and the chart.")] = HERE / "figures",
    results: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The file whose section is replaced.")
    ] = None,
    add: Annotated[bool, typer.Option(help="Keep what an earlier run found of other rows.")] = False,
) -> None:
    """Run the peers and jcfl side by side, and write down what they took."""
    chosen = {name: PEERS[name] for name in known("peer", peers or PEERS, PEERS)}
    kinds = [
        (model, count, name)
        for model in known("model", models.split(","), MODELS)
        for count in whole_numbers("--threads", threads)
        for name, peer in chosen.items()
        if count >= peer.least and (model != "cnn_norm" or peer.normed)
    ]
    if not kinds:
        raise typer.BadParameter("none of these peers has such a model, or so few threads; name other ones")
    if not (data_dir / "fashion_mnist").is_dir():
        raise typer.BadParameter(f"--data-dir: expected a folder with fashion_mnist/ in it, got {str(data_dir)!r}")
    file, load = out / "peers.json", load_average()
    earlier = {"commands": [], "runs": []}
    if add and file.is_file():
        earlier = read(file, lambda found: {*earlier} <= {*found}, "compare.py")
    pythons = {name: made(peer.environment, cache) for name, peer in chosen.items()}
    out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", *sys.argv]).replace(str(data_dir), "FOLDER")
    found, kind = [], lambda line: (line["name"], line["model"], line["threads"])
    for _, (model, count, name) in itertools.product(range(repeats), kinds):
        peer = chosen[name]
        work = ["--model", model, "--threads", str(count), "--data-dir", str(data_dir.resolve())]
        asked = [*work, "--rounds", str(2 if model in peer.slow else rounds), *peer.options]
        line = {"name": name, "model": model, "threads": count}
        found.append(line | measured(peer, pythons[name], asked, limit))
        print(json.dumps(found[-1]), flush=True)
        if is_measured(found):  # else the figures of before stay
            new = {kind(line) for line in found}
            runs = [line for line in earlier["runs"] if kind(line) not in new] + found
            whole = {"machine": machine(load), "commands": [*earlier["commands"], command], "runs": runs}
            file.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    expect_measured(found)
    written = json.loads(file.read_text("utf-8"))
    rows = summarised(written["runs"])
    draw(rows, out / "peers")
    text = section(rows, written, max(line.get("others", 0.0) for line in written["runs"]))
    print(text)
    if results is not None:
        results.write_text(with_section(results.read_text("utf-8"), TITLE, text), "utf-8")


def made(name: str | None, cache: Path, limit: float | None = None) -> str:
    """The Python of a peer's environment, made if it is not there; an explanation where it cannot be made.

    Args:
        limit: the most seconds that its installation may take.
    """
    if name is None:
        return sys.executable
    folder, wanted = cache / name, HERE / "peers" / name / "requirements.txt"
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    if stamp.is_file() and stamp.read_text("utf-8") == wanted.read_text("utf-8"):
        return str(python)
    print(f"installing {name}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    asked = [python, "-m", "pip", "install", "--quiet", "-r", wanted]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"cannot be installed: not done after {limit:.0f} s"
    if done.returncode:
        return f"cannot be installed: {last(done.stderr)}"
    stamp.write_text(wanted.read_text("utf-8"), "utf-8")
    return str(python)


def measured(peer: Peer, python: str, asked: list[str], limit: int) -> dict[str, Any]:
    """What a peer printed in the least disturbed of a few tries, or why it printed nothing."""
    if not Path(python).is_file():
        return {"failed": python}
    tries = []
    for _ in range(TRIES):
        tries.append(once(peer, python, asked, limit))
        if "failed" in tries[-1] or tries[-1]["others"] < QUIET:
            break
    return min(tries, key=lambda line: line.get("others", 0.0))


def once(peer: Peer, python: str, asked: list[str], limit: int) -> dict[str, Any]:
    """What a peer printed, or why it printed nothing."""
    paths = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    sources = {"PYTHONPATH": paths} if peer.environment is None else {"FLWR_TELEMETRY_ENABLED": "0"}
    surroundings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | sources
    command, start = [python, str(HERE / "peers" / peer.folder / "fedavg.py"), *asked], busy(peer)
    options: dict[str, Any] = {"env": surroundings, "cwd": HERE.parent, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, timeout=limit, check=False, **options)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {limit} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"failed": last(done.stderr)}
    wall, others = (end - begin for begin, end in zip(start, busy(peer), strict=True))
    load, share = os.getloadavg()[0], max(0.0, others / wall / (os.cpu_count() or 1))
    return json.loads(lines[-1]) | {"wall": wall, "load": load, "others": share}


def busy(peer: Peer) -> tuple[float, float]:
    """The time, and the seconds that the cores have been busy with others' work."""
    if peer.detached:  # its processes cannot be told from others
        return time.perf_counter(), 0.0
    times, own = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), times.user + times.nice + times.system - own.ru_utime - own.ru_stime


def summarised(found: list[dict[str, Any]]) -> Rows:
    """The median and spread of all rounds but the first of each run."""
    rows: Rows = {}
    for line in found:
        row = rows.setdefault((line["model"], line["threads"]), {}).setdefault(line["name"], {"rounds": []})
        row |= {key: line[key] for key in ("failed", "first", "accuracy", "version") if key in line}
        row["rounds"] += line.get("seconds", [])
    for group in rows.values():
        full = [row["accuracy"] for row in group.values() if len(row["rounds"]) > 2]
        for row in group.values():
            if row["rounds"]:
                row |= {"median": statistics.median(row["rounds"]), "spread": (min(row["rounds"]), max(row["rounds"]))}
                row["apart"] = len(row["rounds"]) > 2 and abs(row["accuracy"] - statistics.median(full)) > CLOSE
    return rows


def section(rows: Rows, written: dict[str, Any], others: float) -> str:
    """The section of RESULTS.md."""
    machine = written["machine"]
    lines = [(HERE / "peers" / "README.md").read_text("utf-8").strip(), ""]
    lines += ["```sh", *written["commands"], "```", ""]
    lines += ["{date}, commit {commit}, {cores} cores ({processor}), Python {python};".format(**machine)]
    lines += ["load average {load_before} before and {load_after} after;".format(**machine)]
    lines += [f"others used at most {others:.0%} of the cores during a run."]
    lines += ["", "![seconds a round](figures/peers.png)"]
    for (model, threads), group in rows.items():
        base = group.get("jcfl", {}).get("median")
        lines += ["", f"**{panel(model, threads)}**", ""]
        lines += [
            "| | version | s a round | least - most | rounds | times jcfl's | first | accuracy |",
            "|" + "---|" * 8,
        ]
        lines += [told(name, row, base) for name, row in sorted(group.items(), key=lambda it: it[1].get("median", 1e9))]
    return "\n".join(lines)


def panel(model: str, threads: int) -> str:
    """What a table or a panel of the chart shows."""
    return f"{model.upper()}, {threads} thread{'s' * (threads > 1)}"


def told(name: str, row: dict[str, Any], base: float | None) -> str:
    """A row of a table."""
    if "median" not in row:
        return f"| {name} | | not measured: {row['failed']} | | | | | |"
    ratio = f"{row['median'] / base:.2f}" if base else ""
    accuracy = f"{row['accuracy']:.3f}" if len(row["rounds"]) > 2 else "(few rounds)"
    spread = "{:.3f} - {:.3f}".format(*row["spread"])
    counted = str(len(row["rounds"]))
    cells = [name, row["version"], f"{row['median']:.3f}", spread, counted, ratio, f"{row['first']:.1f}"]
    return f"| {' | '.join(cells)} | {accuracy}{' (apart)' * row['apart']} |"


def draw(rows: Rows, stem: Path) -> None:
    """Bars of seconds a round, a panel for every model and number of threads, without what would dwarf the others."""
    import matplotlib

    from jcfl.view.plotting import style

    with matplotlib.rc_context(style.STYLE):
        shown, axes = style.panels(len(rows), 2, 2.0, style.PAGE)
        for axis, ((model, threads), group) in zip(axes, rows.items(), strict=True):
            known = sorted((row["median"], name) for name, row in group.items() if "median" in row)
            known = [(seconds, name) for seconds, name in known if seconds < DRAWN * known[0][0]][::-1]
            colours = [style.colour(int(name.startswith("jcfl"))) for _, name in known]
            bars = axis.barh([name for _, name in known], [seconds for seconds, _ in known], color=colours)
            axis.bar_label(bars, [f"{seconds:.3g}" for seconds, _ in known], padding=2, fontsize=6)
            axis.set(xlabel="seconds a round", title=panel(model, threads))
            axis.margins(x=0.15)
        style.save(shown, stem, ["png"])


def last(text: str) -> str:
    """The last line of what went wrong."""
    return (text.strip().splitlines() or ["no reason given"])[-1][:200]


if __name__ == "__main__":
    run_script(main)
