"""Complete states of a run on disk, written whole or not at all."""

from pathlib import Path
from typing import Any

import jax

State = Any


class Checkpoints:
    """The newest complete state of some seeds of a run, with the seconds it took to get there."""

    def __init__(self, folder: Path):
        import orbax.checkpoint as orbax  # takes half a second, which a run without a folder need not spend

        self._orbax = orbax
        options = orbax.CheckpointManagerOptions(max_to_keep=1, create=True, enable_async_checkpointing=False)
        self._manager = orbax.CheckpointManager(folder.resolve(), options=options)

    def save(self, round: int, state: State, seconds: float) -> None:
        """Write the state after `round` rounds; the one before is deleted once this one is complete."""
        if self._manager.latest_step() != round:
            self._manager.save(round, args=self._orbax.args.StandardSave({"state": state, "seconds": seconds}))

    def newest(self, like: State) -> tuple[State, float] | None:
        """The newest complete state and its seconds, with shapes and types `like` gives them; None if there is none."""
        round = self._manager.latest_step()
        if round is None:
            return None
        target = {"state": jax.eval_shape(lambda: like), "seconds": 0.0}
        found = self._manager.restore(round, args=self._orbax.args.StandardRestore(target))
        return found["state"], found["seconds"]

    def close(self) -> None:
        """Let go of the folder."""
        self._manager.close()
