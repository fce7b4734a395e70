"""Random streams: no two of them meet, and the numbers are those that earlier results were made with."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl.core import streams
from jcfl.core.streams import RESERVED, Stream, stream

SIBLINGS = [
    (a, b) for a, b in itertools.combinations(Stream.__members__.values(), 2) if a.value.parent == b.value.parent
]


def data(key) -> tuple[int, ...]:
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_no_two_names_are_one_stream():
    assert len(Stream) == len(Stream.__members__), "an enum makes equal values one"
    assert {place.value.parent for place in Stream} <= {"seed", *Stream.__members__}


@pytest.mark.parametrize(("a", "b"), SIBLINGS)
def test_streams_of_one_parent_have_numbers_of_their_own(a, b):
    first, second = a.value.number, b.value.number
    assert first != second
    if first is None or second is None:
        assert (second if first is None else first) >= RESERVED


def test_every_stream_stands_in_the_docstring_with_its_index():
    for name in Stream:
        index = ", ".join(name.value.folds)
        assert f"── {name.name}{f'[{index}]' if index else ''}" in streams.__doc__, name


def keys(seed: int) -> dict[tuple, tuple[int, ...]]:
    """Every stream of a seed, at the first few of each index."""
    found: dict[tuple, tuple[int, ...]] = {}

    def below(parent: str, path: tuple, key) -> None:
        for name in Stream:
            if name.value.parent == parent:
                for index in itertools.product(range(4), repeat=len(name.value.folds)):
                    own = stream(key, name, *index)
                    found[*path, name.name, *index] = data(own)
                    below(name.name, (*path, name.name, *index), own)

    below("seed", (seed,), jax.random.key(seed))
    return found


def test_all_streams_of_two_seeds_differ():
    """Distinct names, rounds, clients, steps and seeds give distinct keys, wherever in the tree they stand."""
    found = keys(0) | keys(1)
    assert len(found) > 300
    assert len(set(found.values())) == len(found)


def test_an_index_can_be_traced():
    key = jax.random.key(0)
    many = jax.jit(jax.vmap(lambda who: jax.random.key_data(stream(key, Stream.CLIENT, who))))(jnp.arange(5))
    np.testing.assert_array_equal(many, [data(stream(key, Stream.CLIENT, who)) for who in range(5)])


def test_keys_are_those_of_the_results_published_so_far():
    seed = jax.random.key(7)
    model, run = jax.random.split(seed)
    assert data(stream(seed, Stream.MODEL)) == data(model)
    assert data(stream(seed, Stream.RUN)) == data(run)
    assert data(stream(model, Stream.START, 2)) == data(jax.random.split(model, 5)[2])
    round_ = jax.random.fold_in(run, 3)
    assert data(stream(run, Stream.ROUND, 3)) == data(round_)
    for name, key in zip((Stream.PICK, Stream.GROUP, Stream.TRAIN), jax.random.split(round_, 3), strict=True):
        assert data(stream(round_, name)) == data(key)
    oneshot = jax.random.fold_in(run, 2**31 - 3)
    for name, key in zip((Stream.SOLO, Stream.FIT), jax.random.split(oneshot), strict=True):
        assert data(stream(oneshot, name)) == data(key)


def test_a_wrong_number_of_indices_is_refused():
    with pytest.raises(TypeError, match=r"TUNE is folded by round, client, got \(1,\)"):
        stream(jax.random.key(0), Stream.TUNE, 1)
