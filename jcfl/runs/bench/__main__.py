"""One case of one row, in this process: `python -m jcfl.runs.bench '[row, case, quick, data_dir, threads]'`."""

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Measure the case and print it, or why it is refused, as one line of JSON."""
    row, case, quick, data_dir, threads = json.loads(sys.argv[1])
    if threads and hasattr(os, "sched_setaffinity"):  # before JAX counts the cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import jax

    from jcfl.core.memory import peak_memory
    from jcfl.errors import InputError
    from jcfl.runs.bench.rows import ROWS
    from jcfl.runs.bench.work import Meaningless
    from jcfl.runs.devices import cores, use_cores
    from jcfl.runs.environment import use_cache

    use_cache()
    use_cores()
    try:
        figures = ROWS[row].figures(case, quick, Path(data_dir) if data_dir else None)
    except InputError as error:
        print(json.dumps({"failed": str(error), "meaningless": isinstance(error, Meaningless)}))
        return
    device = jax.local_devices()[0]
    figures = {**figures, "peak_GiB": figures.get("peak_GiB", peak_memory() / 2**30)}
    print(json.dumps({"figures": figures, "device": f"{device.device_kind} x {len(jax.devices())}", "cores": cores()}))


if __name__ == "__main__":
    main()
