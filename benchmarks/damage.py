"""What damaged folders and killed runs end in: hundreds of each at random, counted by their outcome.

    python benchmarks/damage.py --damages 200 --kills 200 --seed 0

A run, a comparison and a sweep are made once. A copy of one of them is damaged, read, resumed and verified; then runs
in processes of their own are killed and resumed. Every outcome has to be as before, one line, or mended bit for bit.
The status is 1 where one is another: a traceback, a hang, or other figures without a word.
"""

import contextlib
import io
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

sys.path.append(str(Path(__file__).resolve().parent))

from inputs import run_script

from jcfl import results
from jcfl.results.files import CHECKSUMS
from jcfl.results.writer import LOCK

SMALL = ["scenario.clients=8", "model.hidden=4", "method.name=fedavg", "rounds=30", "evaluate_every=1"]
SMALL = ["quickstart", "-q", "--set", *SMALL, "checkpoint_every=0"]
MADE = {
    "run": ["run", *SMALL, "compare=[]"],
    "comparison": ["run", *SMALL, "compare=[majority]"],
    "sweep": ["sweep", *SMALL, "compare=[]", "--over", "train.lr=0.1,0.2"],
}
LIMIT = 120  # seconds that a command may take
BAD = ("traceback", "hang", "other figures", "no line")


def main(
    damages: Annotated[int, typer.Option(min=0, help="Folders to damage.")] = 200,
    kills: Annotated[int, typer.Option(min=0, help="Processes to kill.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the damage and of the moments.")] = 0,
) -> None:
    """Damage folders and kill runs, and print how often each outcome was seen, also where it is cut short."""
    rng, counts = random.Random(seed), Counter()
    try:
        count(rng, counts, damages, kills)
    finally:
        print("\n".join(f"{what:20} {step:8} {end:30} {n:5}" for (what, step, end), n in sorted(counts.items())))
    sys.exit(any(end.startswith(BAD) for _, _, end in counts))


def count(rng: random.Random, counts: Counter, damages: int, kills: int) -> None:
    """Count the outcomes of damaged folders and of killed runs."""
    with tempfile.TemporaryDirectory() as name:
        place, copy = Path(name) / "made", Path(name) / "copy"
        sound = {}
        for kind, words in MADE.items():
            end, said = called([*words, "--out", str(place / kind)])
            assert end == 0, said
            shutil.copytree(place / kind, copy)  # at the same place, so that pages are the same
            sound[kind] = {what: seen(copy, what) for what in ("report", "plot")} | {"figures": figures(copy)}
            shutil.rmtree(copy)
        for case in range(damages):
            kind = rng.choice(list(MADE))
            shutil.copytree(place / kind, copy)
            told, view = damage(rng, copy), rng.choice(["report", "plot"])
            end, said, page = seen(copy, view)
            found = {view: outcome(end, said, page == sound[kind][view][2], told)}
            found["verify"] = outcome(*called(["verify", str(copy)]), True, told)
            found["resume"] = resumed(copy, kind, sound[kind]["figures"], told)
            noted(counts, f"damaged {kind}", found, f"{case}: {told}")
            shutil.rmtree(copy, ignore_errors=True)
        for case in range(kills):
            what = killed(rng, copy)
            noted(counts, what, {"resume": resumed(copy, "run", sound["run"]["figures"])}, str(case))
            shutil.rmtree(copy, ignore_errors=True)


def noted(counts: Counter, what: str, found: dict[str, tuple[str, str]], told: str) -> None:
    """Count the outcomes of one case, and print at once what should not have been."""
    for step, (outcome, said) in found.items():
        counts[what, step, outcome] += 1
        if outcome.startswith(BAD):
            print(f"{what}, {step}: {outcome}; {told}\n{said}", flush=True)


TEXTS = [b"null", b"[]", b'{"files": {"a": 1}}', b'{"a": [1', b'"\\ud800"', b"[" * 100_000]  # JSON, and nearly
TEXTS += [b"a: [", b"- 1", b"&a [*a]", b"\x00", b"!!python/object:os.system {}", b"rounds: nine"]  # the same of YAML


def damage(rng: random.Random, folder: Path) -> str:
    """Damage one file of a folder or two, and say how."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != LOCK)
    told = []
    for file in rng.sample(files, rng.choice([1, 1, 1, 2])):
        data, other = bytearray(file.read_bytes()), rng.choice(files)
        how = rng.choice(["flip", "cut", "delete", "empty", "swap", "noise", "text", "npz", "folder"])
        told.append(f"{how} {file.relative_to(folder)}" + f" {other.relative_to(folder)}" * (how == "swap"))
        if how == "flip":
            for _ in range(rng.randint(1, 5)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif how == "swap" and other.is_file():
            data = other.read_bytes()
            other.write_bytes(file.read_bytes())
        elif how == "npz":
            stream = io.BytesIO()
            arrays: dict[str, Any] = {
                rng.choice(["labels", "rounds", "made", "x"]): np.zeros(rng.choice([(), (3,), (2, 9)]))
            }
            np.savez(stream, **arrays)
            data = stream.getvalue()
        file.unlink()
        if how == "folder":
            file.mkdir()
        elif how != "delete":
            cut, noise = data[: rng.randrange(len(data) or 1)], rng.randbytes(rng.randint(1, 2000))
            file.write_bytes({"cut": cut, "empty": b"", "noise": noise, "text": rng.choice(TEXTS)}.get(how, data))
    if rng.random() < 0.2:  # other figures are then no fault, because nobody can see them; tracebacks are
        told.append("no checksums")
        for file in folder.rglob(CHECKSUMS):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    return ", ".join(told)


def resumed(folder: Path, kind: str, expected: Any, told: str = "") -> tuple[str, str]:
    """The outcome of going on in a folder, or of a new run where a process was killed before anything was written."""
    new = not told and not (folder / "config.yaml").exists()
    words = [*MADE[kind], "--out", str(folder)] if new else [MADE[kind][0], "--resume", str(folder), "-q"]
    end, said = called(words)
    if end != 0 or "no checksums" in told:
        return outcome(end, said, False, told)
    end, more = called(["verify", str(folder)])
    if end != 0:
        return "other figures: damage is left", more
    return ("begun again" if new else "mended") if figures(folder) == expected else "other figures", said


def outcome(end: int | str, said: str, same: bool, told: str) -> tuple[str, str]:
    """The name of what a command ended in, and what it said."""
    if isinstance(end, str):
        return end, said
    if end != 0:  # after notices of one line each, the last line is why
        lines = said.splitlines() or [""]
        return "refused in one line" if all(line.startswith("jcfl: ") for line in lines) else "no line", said
    differs = "other, no checksums" if "no checksums" in told else "other figures"
    return "as before" if same else "other, and says so" if said else differs, said


def called(words: list[str]) -> tuple[int | str, str]:
    """The exit status of a command in this process, or "traceback" or "hang", and what it said."""
    (command,) = entry_points(group="console_scripts", name="jcfl")  # what is installed as `jcfl`
    said = io.StringIO()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(LIMIT)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            command.load()(words)
    except SystemExit as end:
        return "hang" if end.code == 130 else int(end.code or 0), said.getvalue()  # nobody but the alarm interrupts
    except BaseException:
        return "traceback", f"{said.getvalue()}{words}\n{traceback.format_exc()}"
    finally:
        signal.alarm(0)
    return 0, said.getvalue()


def seen(folder: Path, view: str) -> tuple[int | str, str, Any]:
    """What `jcfl report` or `jcfl plot` ends in, what it says, and what it has written."""
    out = folder.with_name("drawn")
    more = ["--figure", "curves,clusters,sizes", "--format", "svg", "--out"] if view == "plot" else ["--out"]
    end, said = called([view, str(folder), *more, str(out / "page.html" if view == "report" else out)])
    made = {file.name: file.read_bytes() for file in out.glob("*")}
    shutil.rmtree(out, ignore_errors=True)
    return end, said, made


def figures(folder: Path) -> dict[str, Any]:
    """All figures of the runs in a folder, as bytes, and the summaries without what they took."""
    found = {}
    for file in sorted(folder.rglob("metrics.jsonl")):
        one = results.load(file.parent)
        arrays = {**one.scores, "labels": one.labels, "each": one.accuracy_clients, **results.federation(one)}
        scores = {key: value for key, value in one.summary.items() if key in one.scores or key == "costs"}
        found[file.parent.name] = {key: np.asarray(array).tobytes() for key, array in arrays.items()} | scores
    return found


def killed(rng: random.Random, folder: Path) -> str:
    """Start a run in a process of its own, kill it at a random moment after its folder is there; what it was then."""
    command = [str(Path(sys.executable).with_name("jcfl")), *MADE["run"], "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        while not folder.exists() and child.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 3))
        child.kill()
    return "complete run" if (folder / "summary.json").exists() else "killed run"


if __name__ == "__main__":
    run_script(main)
