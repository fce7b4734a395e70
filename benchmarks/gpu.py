"""A GPU: public setups beside PyTorch, StoCFL's round of Table 1, convolutions, seeds, and the same results as the CPU.

    python benchmarks/gpu.py --data-dir FOLDER --out benchmarks/figures
    JAX_PLATFORMS=cpu python benchmarks/gpu.py --quick        # only to test that it works

Each row is measured in processes of its own, in the order of `ROWS`, until the time is over. Beside each measured time
is the estimate of `jcfl.runs.bench.compiled` for the program that ran. Prints tables and writes gpu.md and gpu.json.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))
if "JAX_PLATFORMS" not in os.environ and Path("/dev/nvidiactl").exists():
    os.environ["JAX_PLATFORMS"] = "cuda,cpu"  # the GPU first, and a CPU to compare with

import compare
import setups
from inputs import expect_measured, is_measured, known, run_script

from jcfl.errors import InputError
from jcfl.runs.bench import HASTY, heading, load_average, machine

HERE = Path(__file__).resolve().parent

ROWS = {
    "roof": "One product of large matrices, at both precisions.",
    **{name: f"{setup.about} PyTorch trains one client after another." for name, setup in setups.SETUPS.items()},
    "table_one": "StoCFL's settled round of Table 1 (4,800 clients of 50 examples, MLP 2048, 5 full-batch steps).",
    "cnn": "A round of FedAvg with 1,000 clients of 300 images, `cnn_fashion`, batches of 32, by its convolutions.",
    "seeds": "A settled round of StoCFL (10 % of 4,800 clients, MLP 200) for one seed, and for several at once.",
    "choice": "IFCA's choice among ten models by 200 clients of 300 images, `cnn_fashion`, by its convolutions.",
    "equal": "Three rounds of StoCFL on this device and on the CPU, in float32.",
}
"""The rows, the most important ones first."""

FAIR = 2
"""How many times its equal share of the time that is left a row may take."""

HEADINGS = {
    "flops_per_s": "FLOP/s",
    "clients_per_s": "clients/s",
    "times_jcfl": "times jcfl's",
    "bound": "bound by",
    "measured_by_estimate": "measured / estimate",
}
"""Headings of the tables that `jcfl.runs.bench.heading` does not give."""

HIDDEN = ("case", "once", "lines", "flops", "version")
"""Entries of a case that are in gpu.json, and not in the tables."""


def main(
    rows: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(ROWS)}.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Has CIFAR-10; without it images are generated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use tiny sizes, only to test that it works.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Seconds after which nothing more is measured.")] = 540,
    torch: Annotated[Path | None, typer.Option(help="A Python that has PyTorch.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Cores of jcfl and PyTorch.")] = os.cpu_count() or 1,
    commit: Annotated[str | None, typer.Option(help="The commit, for a copy without its repository.")] = None,
    cache: Annotated[Path, typer.Option(help="Folder of PyTorch's environment.")] = compare.CACHE,
    out: Annotated[Path | None, typer.Option(help="Folder of gpu.json and gpu.md.")] = None,
) -> None:
    """Measure what is asked for, or everything, and print it."""
    end, load, names = time.monotonic() + limit, load_average(), rows or [*ROWS]
    known("row", names, ROWS)
    command = shlex.join(["python", *sys.argv]).replace(str(data_dir), "FOLDER")
    found: dict[str, Any] = {"command": command, "quick": quick, "threads": threads, "images": "", "device": {}}
    found |= {"rows": [], "seconds": {}, "torch": ""}
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images.npz"
        if setups.SETUPS.keys() & set(names):
            found["torch"] = setups.python_of_torch(torch, quick, cache, limit)
            try:
                found["images"] = setups.stored_images(images, data_dir, quick)
            except InputError as error:
                raise typer.BadParameter(f"--data-dir: {error}") from None
        os.environ |= {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {HASTY}"} if quick else {"JCFL_CACHE": folder}
        for i, name in enumerate(names):
            left, begun = end - time.monotonic(), time.monotonic()
            measure(found, name, images, min(left, FAIR * left / (len(names) - i)))
            found["seconds"][name] = round(time.monotonic() - begun, 1)
            found["machine"] = machine(load) | ({"commit": commit} if commit else {})
            write(found, out)
    print(tables(found))
    expect_measured(found["rows"])


def measure(found: dict[str, Any], name: str, images: Path, seconds: float) -> None:
    """Add the cases of a row to what was found.

    Args:
        images: the file of `setups.stored_images`.
        seconds: how long the row may take.
    """
    print(f"{name}: at most {seconds:.0f} s", file=sys.stderr, flush=True)
    if name in setups.SETUPS:
        setup = setups.sized(setups.SETUPS[name], found["quick"])
        ends = time.monotonic() + seconds
        cases = setups.beside(setup, images, found["threads"], found["torch"], found["quick"], ends)
    else:
        device, *cases = apart(name, found["quick"], seconds)
        found["device"] = device.get("device", found["device"])
    roofs = {line["case"]: line["flops_per_s"] for line in found["rows"] if "flops_per_s" in line}
    found["rows"] += [{"row": name, **with_ratios(case, roofs)} for case in cases]


def apart(name: str, quick: bool, seconds: float) -> list[dict[str, Any]]:
    """The lines that a row of `gpu_rows.py` printed in a process of its own: the device, then its cases."""
    if seconds <= 0:
        return [{}, {"case": "", "failed": "no time was left"}]
    command = [sys.executable, str(HERE / "gpu_rows.py"), json.dumps([name, quick])]
    failed: list[dict[str, Any]] = []
    try:
        done = subprocess.run(command, timeout=seconds, check=False, capture_output=True, text=True)
        printed = done.stdout
        failed = [{"case": "", "failed": compare.last(done.stderr)}] if done.returncode else []
    except subprocess.TimeoutExpired as error:
        printed = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        failed = [{"case": "the rest", "failed": f"not done after {seconds:.0f} s"}]
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{") and line.endswith("}")]
    return [*(lines or [{}]), *failed]


def with_ratios(case: dict[str, Any], roofs: dict[str, float]) -> dict[str, Any]:
    """A case with its measured time as a multiple of the estimate, and its share of the roofs."""
    seconds, expected, flops = case.get("round_s"), case.get("estimate_s"), case.get("flops")
    more = {"measured_by_estimate": seconds / expected} if seconds and expected else {}
    more |= {f"share_of_{name}": flops / roofs[name] / seconds for name in roofs} if seconds and flops else {}
    return case | more


def write(found: dict[str, Any], out: Path | None) -> None:
    """Write what was found so far into the folder, if there is one; what failed alone replaces no earlier figures."""
    if out is not None and is_measured(found["rows"]):
        out.mkdir(parents=True, exist_ok=True)
        (out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        (out / "gpu.md").write_text(tables(found) + "\n", "utf-8")


def tables(found: dict[str, Any]) -> str:
    """The section of RESULTS.md: what was measured where, and a table for each row."""
    where, device = found["machine"], found["device"]
    kinds = [*dict.fromkeys([device.get("kind"), *(line.get("device") for line in found["rows"])])]
    kinds = [kind for kind in kinds if kind]
    text = "{date}, commit {commit}, ".format(**where) + (" and ".join(kinds) or "an unknown device")
    text += "; {cores} cores ({processor}), Python {python}, JAX {versions[jax]}".format(**where)
    torch = [line["version"] for line in found["rows"] if line["case"] == "PyTorch" and "version" in line]
    text += f", PyTorch {torch[0]}" if torch else ""
    text += "; load average {load_before} before and {load_after} after.".format(**where)
    if found["quick"]:
        text += " **Quick: these numbers only show that it works.**"
    if not any(line.get("estimate_s") for line in found["rows"]):
        text += f" There are no estimates, because the rates of {' and '.join(kinds) or 'the device'} are not known."
    if found["images"]:
        text += f" The public setups have {found['images']}."
    parts = [f"```sh\n{found['command']}\n```", text]
    for name in dict.fromkeys(line["row"] for line in found["rows"]):
        parts += [f"**`{name}`**: {ROWS[name]}", table([line for line in found["rows"] if line["row"] == name])]
    return "\n\n".join(parts)


def table(cases: Sequence[dict[str, Any]]) -> str:
    """The cases of a row as a Markdown table."""
    keys = [key for key in dict.fromkeys(key for case in cases for key in case) if key not in ("row", *HIDDEN)]
    columns = [key for key in keys if key != "failed"]
    head = " | ".join(HEADINGS.get(key, heading(key)) for key in columns)
    lines = [f"| | {head} |", "|" + "---|" * (len(columns) + 1)]
    for case in cases:
        cells = [f"failed: {case['failed']}"] if "failed" in case else [shown(case, key) for key in columns]
        lines.append(f"| {case['case']} | {' | '.join(cells)} {'| ' * (len(columns) - len(cells))}|")
    return "\n".join(lines)


def shown(case: dict[str, Any], key: str) -> str:
    """An entry of a case as text; an estimate that counts a loop of unknown length once is a lower bound."""
    value = case.get(key)
    least = "≥ " if key == "estimate_s" and case.get("once") else ""
    return "" if value is None else least + (f"{value:.3g}" if isinstance(value, float) else str(value))


if __name__ == "__main__":
    run_script(main)
