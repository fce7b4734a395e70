"""Programs for several lanes: each lane gives what it gives alone, however lanes and rounds are shared out."""

import ctypes
import gc
import itertools
import resource
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jcfl.core import chunks, memory, onhost
from jcfl.runs import plan, programs, xla
from jcfl.types.target import Target, compiling_for
from tests import tiny


@pytest.mark.parametrize("cores", [1, 2])
def test_lanes_equal_runs_alone_bit_for_bit(monkeypatch, cores):
    monkeypatch.setattr(programs, "cores", lambda: cores)
    data = jax.device_put(tiny.federation())
    algorithm = tiny.built("fedavg", tiny.setting(0.5))
    several, one = (programs.programs(algorithm, data, lanes) for lanes in (3, 1))
    state = several.init(programs.keys([4, 5, 6]), data)
    for until in (1, 6):
        state = several.advance(state, data, np.int32(until))
    assert state.round.tolist() == [6, 6, 6]
    again = several.parted(several.joined(state))
    assert jax.tree.structure(again) == jax.tree.structure(state)
    figures, state = several.evaluate(state, data), several.joined(state)
    for lane, seed in enumerate((4, 5, 6)):
        alone = one.advance(one.init(programs.keys([seed]), data), data, np.int32(6))
        for ours, theirs in zip(jax.tree.leaves(state.clusters), jax.tree.leaves(alone.clusters), strict=True):
            np.testing.assert_array_equal(ours[lane], theirs)
        for name, value in one.evaluate(alone, data).items():
            np.testing.assert_array_equal(figures[name][lane], value, err_msg=name)


def test_a_lane_that_fails_keeps_pace_and_one_alone_stops():
    data = jax.device_put(tiny.federation())
    made = tiny.built("fedavg", tiny.setting(0.5))._replace(evaluate=lambda state, data: {})

    def broken(scalars):
        step = lambda state, federation: made.step(state, federation).replace(
            failed=jax.numpy.where(scalars["limit"] <= state.round, jax.numpy.array([2, 0]), state.failed)
        )
        return made._replace(step=step)

    limits = {"limit": jax.numpy.array([2, 100])}
    both = programs.family_begun(broken, limits, data, 2)().with_values(limits)
    state = both.advance(both.init(programs.keys([0, 1]), data), data, np.int32(5))
    assert state.round.tolist() == [5, 5]
    assert (state.failed[:, 0] >= 0).tolist() == [True, False]
    limit = {"limit": jax.numpy.array(2)}
    alone = programs.family_begun(broken, limit, data, 1)().with_values(limit)
    assert int(alone.advance(alone.init(programs.keys([0]), data), data, np.int32(5)).round) == 3


def test_what_was_compiled_and_traced_is_freed(monkeypatch):
    monkeypatch.setattr(xla, "TRACED", 3)
    monkeypatch.setattr(xla, "COMPILED", itertools.count(1))
    data = jax.device_put(tiny.federation())
    user = jax.jit(lambda x: x + 1)
    made, kept = tiny.built("majority", tiny.setting())._replace(evaluate=lambda state, data: {}), []
    for _ in range(3):
        user(1)
        alive = weakref.ref(programs.family_begun(lambda scalars: made, {}, data, 1)().advance)
        gc.collect()
        assert alive() is None
        kept.append(user._cache_size())
    assert kept == [1, 1, 0]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_rounds_of_little_work_have_options_of_their_own(monkeypatch):
    """Whatever their number: a run that is continued has the same program."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(xla, "is_known", lambda name, value: True)
    small = tiny.setting().context
    large = small._replace(population=small.population._replace(cohort=10**9))
    with compiling_for(Target("cpu", "cpu")):
        assert xla.round_options(large) is None
        assert xla.round_options(small) == xla.LIGHT
    used, compile = [], programs.compiled_at
    monkeypatch.setattr(programs, "cheap_options", lambda: None)
    monkeypatch.setattr(programs, "compiled_at", lambda part, own: used.append(own) or compile(part, None))
    made = tiny.built("majority", tiny.setting())._replace(evaluate=lambda state, data: {})
    programs.programs(made, tiny.federation(), 1)
    assert used == [None] * 3
    programs.begun(made, tiny.federation(), 1, options={"rounds": 1})()
    assert sorted(map(str, used[3:])) == ["None", "None", "{'rounds': 1}"]


def test_a_gpu_takes_products_from_its_library_unless_the_user_says_otherwise(monkeypatch):
    context = tiny.setting().context
    for platform, options in {"gpu": xla.LIBRARY, "tpu": None}.items():
        with compiling_for(Target(platform, platform)):
            assert xla.round_options(context) == xla.cheap_options() == options
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    with compiling_for(Target("gpu", "gpu")):
        assert xla.round_options(context) is None


def test_products_come_from_the_library_that_was_chosen(monkeypatch):
    """Unless the user's flags name one."""
    context = tiny.setting().context
    chosen = context._replace(resources=context.resources._replace(products="eigen"))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(xla, "is_known", lambda name, value: True)
    with compiling_for(Target("cpu", "cpu")):
        assert xla.round_options(chosen) == xla.LIGHT | xla.EIGEN
        assert xla.products_are_free()
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=")
        assert xla.round_options(chosen) == xla.LIGHT
        assert not xla.products_are_free()
    with compiling_for(Target("gpu", "gpu")):
        assert not xla.products_are_free()


def test_eigen_replaces_the_library_that_xla_chooses():
    product = jax.jit(lambda x, w: x @ w).lower(np.ones((32, 784), np.float32), np.ones((784, 200), np.float32))
    if "__ynn_fusion" not in product.compile().as_text():
        pytest.skip("XLA does not take products from YNNPACK here")
    assert xla.products_are_free()
    assert "__ynn_fusion" not in product.compile(xla.EIGEN).as_text()


def test_options_that_this_version_of_xla_does_not_know_are_left_out(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(xla, "CHEAP", {"xla_of_another_version": True, "xla_backend_optimization_level": 1})
    with compiling_for(Target("cpu", "cpu")):
        assert xla.cheap_options() == {"xla_backend_optimization_level": 1}


def test_freed_memory_goes_back_to_the_system():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    blocks = [ctypes.create_string_buffer(100_000) for _ in range(1000)]  # each too small for a mapping of its own
    some, most = blocks[::10], resident()  # what is freed lies between blocks that are in use
    blocks.clear()
    memory.return_freed()
    assert most - resident() > 50e6, len(some)


MANY = {
    "data": "digits",
    "scenario": {"name": "iid", "clients": 97},
    "model": {"name": "mlp", "hidden": 100},
    "participation": 0.05,
    "chunk": 1,
}


@pytest.mark.parametrize(
    ("method", "train"),
    [
        ("ditto", {}),
        ("scaffold", {}),
        ("local", {}),
        ("fedavg", {"momentum": 0.9, "keep_optimizer_state": True}),
        ({"name": "ifca", "clusters": 2, "train": {"name": "private", "layers": ["dense_0"], "distinct": True}}, {}),
    ],
    ids=["own models", "control variates", "alone", "optimizer states", "private layers"],
)
def test_a_round_needs_no_copy_of_what_clients_outside_the_cohort_keep(method, train, monkeypatch):
    monkeypatch.setattr(
        onhost, "AT_A_TIME", {"cpu": 2**15, "gpu": 2**15}
    )  # one client; else the few that there are fit at a time
    made = plan.planned(*plan.config_and_objects(MANY, {"method": method, "train": train, "engine": "general"}))
    (algorithm,) = made.algorithms.values()
    state = jax.eval_shape(algorithm.init, jax.random.key(0), made.federation)
    round_ = jax.jit(algorithm.step, donate_argnums=0).lower(state, made.federation).compile()
    kernels = made.context.population.clients * 64 * 100 * 4  # bytes
    assert plan.bytes_of(state) > kernels > 4 * round_.memory_analysis().temp_size_in_bytes


class Waves(nn.Module):
    """A network whose hidden layer XLA cannot make a part of the next product, as it does with ReLU on a CPU."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10, name="head")(jnp.sin(nn.Dense(300)(x.reshape(x.shape[0], -1))))


LARGE = {"data": "digits", "scenario": {"name": "iid", "clients": 2}, "model": Waves()}


@pytest.mark.parametrize(
    "method",
    [{"name": "ifca"}, {"name": "ifca", "train": {"name": "private", "layers": ["head"], "distinct": True}}],
    ids=["common", "private layers"],
)
def test_losses_of_large_clients_are_found_a_part_of_their_examples_at_a_time(monkeypatch, method):
    """The clients join the same clusters with a part of the memory, whatever the number of their examples."""
    given = {"method": method | {"clusters": 2}, "engine": "general", "train": {"steps": 1, "batch_size": 8}}

    def built():
        made = plan.planned(*plan.config_and_objects(LARGE, given))
        return *made.algorithms.values(), made.federation

    algorithm, federation = built()
    state = jax.jit(algorithm.init)(jax.random.key(3), federation)

    def found(room):
        monkeypatch.setattr(memory, "WORKED_ON", {"cpu": room})
        compiled = jax.jit(built()[0].step).lower(state, federation).compile()
        return compiled(state, federation), compiled.memory_analysis().temp_size_in_bytes

    (whole, needed), (parts, less) = found(2**30), found(2**16)
    np.testing.assert_array_equal(whole.labels, parts.labels)
    assert less < 0.6 * needed, (less, needed)


@pytest.mark.parametrize("most", [1, 3, 7, 8])
def test_rows_in_parts_are_the_rows_at_once(most):
    rows = {"a": jnp.arange(7.0), "b": jnp.arange(14).reshape(7, 2)}
    double = lambda part: 2 * part["a"][:, None] + part["b"]
    np.testing.assert_array_equal(chunks.over_rows(double, rows, most), double(rows))


@pytest.mark.parametrize("who", [range(8), [6, 0, 5], [2]], ids=["all", "three", "one"])
@pytest.mark.parametrize("most", [1, 5, 64])
def test_examples_of_uneven_clients_are_worked_on_without_padding(most, who):
    """Each part has rows of different clients, and a client of few examples takes no place for more."""
    split, who, parts = jax.device_put(tiny.federation().train), jnp.array(who), []

    def values(factor, rows):
        jax.debug.callback(parts.append, rows)
        return factor * rows

    found, first = jax.jit(lambda: chunks.over_examples(values, 2, split, who, most))()
    jax.effects_barrier()
    for place, client in zip(first, who, strict=True):
        rows = split.owned(int(client))
        np.testing.assert_array_equal(found[place : place + rows.size], 2 * rows)
    assert sum(map(len, parts)) < int(split.size[who].sum()) + most
