"""Rounds compiled for devices that are not there; nothing is run. Figures are kept by target and case.

python3 -m venv ~/cuda && ~/cuda/bin/pip install . "jax[cuda12]"
~/cuda/bin/python benchmarks/compiled.py h200 a100 t4
python3 -m venv ~/tpu && ~/tpu/bin/pip install . "jax[tpu]"
~/tpu/bin/python benchmarks/compiled.py v5e-1 v5e-8 --case stocfl-10-factored
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.append(str(Path(__file__).resolve().parent))

from inputs import expect_measured, is_measured, new_file, read, run_script

from jcfl.runs.bench import absent, compiled

FIGURES = Path(__file__).parent / "figures" / "compiled.json"


def main(
    targets: Annotated[list[str], typer.Argument(help="As `jcfl bench --target` takes them.")],
    case: Annotated[list[str] | None, typer.Option(help="Only these cases.")] = None,
    out: Annotated[
        Path,
        typer.Option(
            parser=new_file, metavar="FILE", help="The file of figures, in which these replace those of before."
        ),
    ] = FIGURES,
) -> None:
    """Compile, and print the table of all figures that are kept."""
    for target in targets:
        absent.target_named(target)
    kept = {"about": "compiled, not run", "cases": []}
    if out.is_file():
        kept = read(out, lambda found: isinstance(found.get("cases"), list), "compiled.py")
    new: list[dict[str, Any]] = []
    for target in targets:
        found = compiled.compiled(
            target, case or [], on_result=lambda one: print(one["target"], one["case"], flush=True)
        )
        new += [{**one, "machine": found["machine"]} for one in found["cases"]]
        if is_measured(new):
            out.write_text(json.dumps(kept | {"cases": merged(kept["cases"], new)}, indent=1) + "\n", "utf-8")
    print(compiled.table(merged(kept["cases"], new)))
    expect_measured(new)


def merged(before: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures of before and the new ones, which replace those of the same target and case."""
    by_name = {(one["target"], one["case"]): one for one in [*before, *new]}
    return list(by_name.values())


if __name__ == "__main__":
    run_script(main)
