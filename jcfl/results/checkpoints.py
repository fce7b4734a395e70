"""Complete states of a run on disk, each one file, written whole or not at all."""

import contextlib
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jcfl.errors import Damaged, InputError, Notice
from jcfl.results import npz
from jcfl.results.files import reading
from jcfl.results.folder import Folder
from jcfl.results.history import ARRAYS, Record, entries, record, text

State = Any

KEPT = 2
"""Checkpoints that are kept, so that one can be damaged."""

LEAF = "state"
"""What the names of the state's arrays begin with."""


class Saved(NamedTuple):
    """What stands beside the state in a checkpoint."""

    round: int
    seconds: float  # that the run took to come this far
    made: dict[str, Any]  # what made it: see `jcfl.runs.provenance`
    records: list[Record]  # of its seeds, up to its round


class Checkpoints:
    """The newest complete states of some seeds of a run, with all that the run had measured until then.

    A checkpoint is one .npz file: the arrays of the state, the evaluations, and what made it.
    """

    def __init__(self, folder: Folder, seeds: Sequence[int]):
        self.folder, self.place = folder, f"checkpoints/seeds-{seeds[0]}-{seeds[-1]}"
        self.sound: dict[int, Saved] = {}  # those of an earlier process, by round, the newest first
        self.current: int | None = None  # the round that was read or written last

    @property
    def path(self) -> Path:
        """The folder of these checkpoints."""
        return self.folder.path / self.place

    def rounds(self) -> list[int]:
        """The rounds there are checkpoints of, the newest first."""
        return sorted((int(file.stem) for file in self.path.glob("*.npz") if file.stem.isdigit()), reverse=True)

    def known(self) -> set[int]:
        """The rounds of which there should be a checkpoint, by the checksums."""
        self.folder.know()
        places = (Path(name) for name in self.folder.checksums.table)
        return {int(place.stem) for place in places if str(place.parent) == self.place}

    def name(self, round: int) -> str:
        """The file of one checkpoint."""
        return f"{self.place}/{round}.npz"

    def look(self) -> None:
        """Find the sound checkpoints of an earlier process; a damaged one is passed over with a warning.

        Raises:
            InputError: there are some, and none can be read.
        """
        damaged, known = [], self.known()
        for round in sorted(known | set(self.rounds()), reverse=True):
            try:
                if self.folder.has(self.name(round)):
                    self.sound[round] = saved(self.folder, self.name(round))
            except Damaged as error:
                damaged.append(error)
        again = f"to train again from the beginning, delete {self.path}"
        if self.rounds() and not self.sound:
            raise InputError(f"{damaged[0]}; no other checkpoint is left; {again}")
        foreign = [item.name for item in self.path.glob("*") if item.suffix not in (".npz", ".partial")]
        if foreign and not self.sound:
            raise InputError(f"{self.path} has no checkpoint that this version reads, but {foreign[0]!r}; {again}")
        then = f"another checkpoint is there, of round {max(self.sound)}" if self.sound else "training begins again"
        for error in damaged:
            warnings.warn(f"{error}; {then}", Notice, stacklevel=2)

    def save(self, saved: Saved, state: State) -> None:
        """Write the state after some rounds, unless all is there; keep the newest sound one before it, delete the rest.

        Raises:
            Unwritable: the disk is full; the others are left as they are.
        """
        if saved.round != self.current or len(saved.records) > len(self.sound[saved.round].records):
            arrays: dict[str, Any] = packed(saved) | {name: on_host(leaf) for name, leaf in named(state)}
            self.folder.put(self.name(saved.round), lambda file: npz.save(file, arrays))
            self.current, self.sound = saved.round, self.sound | {saved.round: saved}
        kept = [round for round in self.rounds() if round <= saved.round and round in self.sound][:KEPT]
        gone = [self.name(round) for round in self.known() | set(self.rounds()) if round not in kept]
        gone += [f"{self.place}/{file.name}" for file in self.path.glob("*.partial")]  # of a process that was killed
        if gone:
            self.folder.settle(gone)

    def state(self, round: int, like: State) -> State:
        """The state after `round` rounds, on the devices where `like` is.

        Raises:
            InputError: the file is damaged, or holds arrays of other names and shapes than `like`.
        """
        expected = dict(named(like))
        columns = {name: leaf for name, leaf in expected.items() if isinstance(leaf, npz.Blocks)}
        with self.folder.archive(self.name(round)) as file:
            names = [name.removesuffix(".npy") for name in file.namelist() if name.startswith(LEAF)]
            there = {name: written(*npz.header(file, name)) for name in names}
        wanted = {name: form(leaf) for name, leaf in expected.items()}
        if there != wanted:
            name = next(name for name in {**wanted, **there} if there.get(name) != wanted.get(name))
            raise InputError(
                f"{self.folder.path / self.name(round)} holds the state of another run: {name.removeprefix(LEAF)} is "
                f"{there.get(name, 'not there')}, expected {wanted.get(name, 'nothing')}"
            )
        arrays = self.folder.arrays(self.name(round), *(expected.keys() - columns.keys()))
        with self.folder.archive(self.name(round)) as file:
            for name, column in columns.items():
                column.fill(npz.blocks(file, name))
        self.current = round

        def read(path: Any, leaf: Any) -> Any:
            return leaf if is_on_host(leaf) else placed(arrays[name_of(path)], leaf)

        return jax.tree_util.tree_map_with_path(read, like, is_leaf=is_on_host)


def made(folder: Folder) -> dict[str, Any] | None:
    """What made the newest sound checkpoint in a folder; None where there is none."""
    folder.renew(says=False)
    for name in sorted(names(folder), key=lambda name: int(Path(name).stem), reverse=True):
        with contextlib.suppress(Damaged):
            return saved(folder, name).made
    return None


def delete(folder: Folder) -> None:
    """Delete the checkpoints of a run that is complete and will not go on.

    Raises:
        Unwritable: the folder cannot be written.
    """
    there = names(folder)
    if there:
        folder.settle(there)


def names(folder: Folder) -> list[str]:
    """The checkpoints of all seeds that are in a folder, sound or not."""
    files = (file for file in folder.path.glob("checkpoints/*/*.npz") if file.stem.isdigit())
    return [file.relative_to(folder.path).as_posix() for file in files]


def saved(folder: Folder, name: str) -> Saved:
    """A checkpoint without its state."""
    arrays = folder.arrays(name, "about", "metrics", *ARRAYS)
    with reading(folder.path / name):
        about = json.loads(arrays["about"].tobytes())
        lines = entries(arrays["metrics"].tobytes().decode())
        each = [{key: arrays[key][i] for key in ARRAYS if key in arrays} for i in range(len(lines))]
        records = [record(entry, own) for entry, own in zip(lines, each, strict=True)]
        return Saved(int(about["round"]), float(about["seconds"]), dict(about["made"]), records)


def packed(saved: Saved) -> dict[str, np.ndarray]:
    """What stands beside the state, as arrays."""
    about = {"round": saved.round, "seconds": saved.seconds, "made": saved.made}
    kept = [key for key in ARRAYS if saved.records and all(key in record.arrays for record in saved.records)]
    return {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "metrics": np.frombuffer(text(saved.records).encode(), np.uint8),
        **{key: np.stack([record.arrays[key] for record in saved.records]) for key in kept},
    }


def named(state: State) -> Iterator[tuple[str, Any]]:
    """The arrays of a state, under names, which do not say whether they are on the device or on the host."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state, is_leaf=is_on_host):
        if is_on_host(leaf):
            yield from ((name_of((*path, *inner)), column) for inner, column in leaf.columns())
        else:
            yield name_of(path), leaf


def name_of(path: Any) -> str:
    """The name of an array by its place in the state."""
    return LEAF + jax.tree_util.keystr(path)


def is_on_host(leaf: Any) -> bool:
    """Whether a part of a state is rows on the host, see `jcfl.trees.rows`, whose `columns` are its arrays."""
    return hasattr(leaf, "columns")


def is_key(leaf: Any) -> bool:
    """Whether an array holds random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def on_host(leaf: Any) -> Any:
    """An array in NumPy and in a type that NumPy has: keys and small floats as unsigned integers."""
    if isinstance(leaf, npz.Blocks):
        return leaf
    array = np.asarray(jax.device_get(jax.random.key_data(leaf) if is_key(leaf) else leaf))
    return array.view(integers(array.dtype))


def integers(kind: Any) -> np.dtype:
    """The type in which values of a type are written: bfloat16 and the like are not NumPy's own."""
    kind = np.dtype(kind)
    return np.dtype(f"u{kind.itemsize}") if kind.kind == "V" else kind


def form(leaf: Any) -> str:
    """The type and the shape in which an array is written."""
    data = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
    return written(data.shape, integers(data.dtype))


def written(shape: Sequence[int], kind: np.dtype) -> str:
    """A type and a shape as text."""
    return f"{kind}{list(shape)}"


def placed(array: np.ndarray, like: Any) -> jax.Array:
    """A written array in the type and on the devices of another one; a program may use up its memory."""
    if is_key(like):
        wrap = lambda data: jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
        return jax.jit(wrap, out_shardings=like.sharding)(array)
    return jax.device_put(array.view(like.dtype), like.sharding, may_alias=False)
