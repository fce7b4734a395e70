"""Measurements of jcfl's time and memory, with every case in its own process; results are a table and JSON."""

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jcfl.errors import InputError, unknown

LIMIT = 1800
"""The most seconds that a case may take."""

HASTY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""XLA's flags for `--quick`: programs compile fast and run slowly, which is enough to see that they work."""

Result = dict[str, Any]
"""One case: `row`, `case`, and either the numbers `figures` or `failed`, the reason of a failure; `meaningless` is True
where the row has no meaning on this machine."""


def measured(
    rows: Sequence[str],
    quick: bool = False,
    data_dir: Path | None = None,
    threads: int | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> dict[str, Any]:
    """Measure rows, one case after another.

    Args:
        rows: names of `jcfl.runs.bench.rows.ROWS`; all of them that have a meaning on this machine where none is given.
        quick: whether everything is so small that only failures are found.
        data_dir: the folder with MNIST; without it images are random, which does not change the time.
        threads: how many cores every case may use.
        on_result: called with each case when it is complete.

    Returns:
        the machine, the arguments, a list of cases, and the reasons of rows without a meaning here that were left out.
    """
    from jcfl.runs.bench.rows import ROWS
    from jcfl.runs.devices import cores

    for name in rows:
        if name not in ROWS:
            raise unknown("row", name, ROWS)
    if threads is not None and (threads > cores() or not hasattr(os, "sched_setaffinity")):
        most = f"expected at most {cores()}, the cores of this machine, got {threads}"
        raise InputError(
            f"--threads: {most if threads > cores() else 'this system cannot keep a process to some cores'}"
        )
    if data_dir is not None and not (data_dir / "mnist").is_dir():
        raise InputError(f"--data-dir: expected a folder with mnist/ in it, got {str(data_dir)!r}")
    results, left_out, load = [], {}, load_average()
    for name in rows or ROWS:
        for case in ROWS[name].cases(quick):
            one = {"row": name, "case": case} | measured_apart(name, case, quick, data_dir, threads)
            if one.get("meaningless") and not rows:  # only a process that has JAX's devices knows it
                left_out[name] = one["failed"]
                break
            results.append(one)
            on_result(one)
    return {
        "machine": machine(load),
        "quick": quick,
        "threads": threads,
        "real": data_dir is not None,
        "cases": results,
        "left_out": left_out,
    }


def measured_apart(row: str, case: str, quick: bool, data_dir: Path | None, threads: int | None) -> Result:
    """A case measured in a new process, so that its memory and compiled programs are its own."""
    asked = json.dumps([row, case, quick, str(data_dir.resolve()) if data_dir else None, threads])
    before = load_average()
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")])
    flags = f"{os.environ.get('XLA_FLAGS', '')} {HASTY if quick else ''}".strip()
    surroundings = {**os.environ, "PYTHONPATH": paths.rstrip(os.pathsep), "XLA_FLAGS": flags}
    command = [sys.executable, "-m", "jcfl.runs.bench", asked]
    try:
        done = subprocess.run(command, timeout=LIMIT, env=surroundings, check=False, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {LIMIT} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1]) | {"load": [before, load_average()]}


def machine(load_before: float) -> dict[str, Any]:
    """The machine, the date and the versions of a measurement."""
    from jcfl.runs.environment import PACKAGES, commit, version

    known = Path("/proc/cpuinfo")
    lines = known.read_text("utf-8").splitlines() if known.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit() or "unknown",
        "cores": os.cpu_count(),
        "processor": names[0] if names else platform.processor(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "load_before": load_before,
        "load_after": load_average(),
    }


def load_average() -> float:
    """The machine's load average over the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def table(found: dict[str, Any]) -> str:
    """The measurements as a Markdown table, with the limit and the aim of each row."""
    from jcfl.runs.bench.rows import ROWS

    where = found["machine"]
    text = "{date}, commit {commit}, {cores} cores ({processor}), Python {python}, ".format(**where)
    text += (
        f"JAX {where['versions']['jax']}; load average {where['load_before']} before and {where['load_after']} after"
    )
    text += f"; kept to {found['threads']} cores." if found["threads"] else "."
    parts = [text + (" **Quick: these numbers only show that it works.**" if found["quick"] else "")]
    for name in dict.fromkeys(case["row"] for case in found["cases"]):
        row, cases = ROWS[name], [case for case in found["cases"] if case["row"] == name]
        parts.append(f"**`{name}`**: {row.about}" + (f" Must: {row.must}. Aim: {row.aim or '-'}." if row.must else ""))
        keys = list(dict.fromkeys(key for case in cases for key in case.get("figures", {})))
        lines = [f"| | {' | '.join(heading(key) for key in keys)} | device | load |", "|" + "---|" * (len(keys) + 3)]
        lines += [f"| {case['case']} | {' | '.join(cells(case, keys))} |" for case in cases]
        parts.append("\n".join(lines))
    if found["left_out"]:
        parts.append(f"Left out: {'; '.join(f'`{name}` ({why})' for name, why in found['left_out'].items())}.")
    return "\n\n".join(parts)


def heading(key: str) -> str:
    """A number's name and unit: `round_s` is `round, s`."""
    name, _, unit = key.rpartition("_")
    return f"{name.replace('_', ' ')}, {unit}" if unit in ("s", "GiB") and name else key.replace("_", " ")


def cells(case: Result, keys: Sequence[str]) -> list[str]:
    """A case's numbers as text."""
    if "failed" in case:
        return [f"failed: {case['failed']}", *[""] * (len(keys) + 1)]
    values = [case["figures"].get(key, "") for key in keys]
    shown = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in values]
    return [*shown, case["device"], " - ".join(map(str, case["load"]))]


def write(found: dict[str, Any], folder: Path) -> list[Path]:
    """Write the table and the measurements into a folder; returns the files."""
    from jcfl.results import overwrite

    text, figures = folder / "bench.md", folder / "bench.json"
    overwrite(figures, (json.dumps(found, indent=1) + "\n").encode())
    overwrite(text, (table(found) + "\n").encode())
    return [text, figures]


def with_section(text: str, title: str, section: str) -> str:
    """A Markdown text in which the section under `## title` is replaced, or is put before the others if it is new."""
    head, *sections = text.split("\n## ")
    titles = [part.split("\n", 1)[0] for part in sections]
    at = titles.index(title) if title in titles else 0
    rest = [part for part, name in zip(sections, titles, strict=True) if name != title]
    new = f"{title}\n\n{section.strip()}\n"
    return "\n## ".join([head.rstrip() + "\n", *rest[:at], new, *rest[at:]])
