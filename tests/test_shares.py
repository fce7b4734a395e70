"""Local training on a random share of a client's examples, drawn anew in every round."""

import functools
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl import registry
from jcfl.core import batches, chunks, describing
from jcfl.core.batches import taken
from jcfl.core.local import Local
from jcfl.core.streams import Stream, stream
from jcfl.errors import InputError
from jcfl.grouping.describe import Displacement
from jcfl.runs import plan, schedules
from jcfl.types import Clients
from jcfl.types.target import Target, compiling_for
from tests import plain, tiny
from tests.test_contract import restored
from tests.test_factored import SGD, engines_agree
from tests.test_factored import states as by_both_engines
from tests.test_oracles import CLIENTS, first_of

SHARE, LR, EPOCHS, TURNS = 0.8, 0.5, 2, 3
WIDTH = tiny.federation().train.width


def client_key(seed_key, turn, client):
    """The key of a client in a round, by hand."""
    train = jax.random.fold_in(jax.random.fold_in(seed_key, turn), 2)
    return jax.random.fold_in(train, client)


def lot(key, size, share=SHARE):
    """The rows that a client trains on, by hand: those with the smallest noise."""
    noise = np.asarray(jax.random.uniform(stream(key, Stream.SHARE), (WIDTH,)))[:size]
    return noise.argsort()[: max(1, int(size * share))]


def trained(start, client, key, batch=None):
    """A client's vector after its epochs on its own draw, one batch after another."""
    x, y = client
    mine = lot(key, len(y))
    for epoch in range(EPOCHS):
        noise = np.asarray(jax.random.uniform(stream(key, Stream.ORDER, epoch), (WIDTH,)))
        ordered = mine[noise[mine].argsort()]
        size = batch or len(ordered)
        for first in range(0, len(ordered), size):
            position = np.arange(first, min(first + size, len(ordered)))
            start = start - LR * plain.gradient(start, (x[ordered[position]], y[ordered[position]]))
    return start


def fedavg(states, one_after_another=False, batch=None):
    """ω after every round, by a plain loop; the clients' weights are the sizes of all of their examples."""
    run, shared = jax.random.wrap_key_data(states.key[0]), first_of(states)
    sizes = np.array([len(y) for _, y in CLIENTS])
    for turn in range(len(states.round) - 1):
        models, handed = [], shared
        for i, client in enumerate(CLIENTS):
            start = handed if one_after_another else shared
            models.append(trained(start, client, client_key(run, turn, i), batch))
            handed = models[-1]
        shared = np.average(models, axis=0, weights=sizes)
        yield shared


@functools.cache
def shared_out(batch, update="parallel", **share):
    """The states of a run of FedAvg."""
    setting = tiny.setting(batch_size=batch, lr=LR, epochs=EPOCHS, **share)
    return tiny.run(tiny.built("fedavg", setting, shared_update=update), TURNS)


@pytest.mark.parametrize("batch", ["full", 3])
@pytest.mark.parametrize("update", ["parallel", "sequential"])
def test_agrees_with_a_plain_loop(update, batch):
    states = shared_out(batch, update, share=SHARE)
    found = plain.vectors(states.shared, 1)
    expected = fedavg(states, update == "sequential", None if batch == "full" else batch)
    for turn, shared in enumerate(expected, 1):
        np.testing.assert_allclose(found[turn], shared, atol=2e-5)


@pytest.mark.parametrize("batch", ["full", 3])
def test_the_whole_share_is_the_training_of_before(batch):
    whole, usual = shared_out(batch, share=1.0), shared_out(batch)
    tiny.same(whole, usual)
    data = clients(9)
    assert batches.drawn(1.0, data, jax.random.key(0)) is data
    assert batches.compact(data, 12) is data
    part = shared_out(batch, share=SHARE)
    assert np.abs(plain.vectors(part.shared, 1)[-1] - plain.vectors(usual.shared, 1)[-1]).max() > 1e-3


@pytest.mark.parametrize(
    ("method", "options", "batch"),
    [("ditto", {"lam": 0.3}, "full"), ("ifca", {"clusters": 3}, 3)],
    ids=["ditto", "ifca"],
)
def test_the_factored_engine_computes_the_same(method, options, batch):
    with jax.enable_x64(True):
        ((general, short),) = by_both_engines(method, options, batch_size=batch, share=SHARE, **SGD)
    engines_agree(general, short)


def test_a_run_is_repeated_and_resumed_with_the_same_draws_and_one_compilation():
    """Repeated in chunks of three clients."""
    algorithm = tiny.built("fedavg", tiny.setting(0.5, share=SHARE))
    chunks_of_three = tiny.built("fedavg", tiny.setting(0.5, chunk=3, share=SHARE))
    data = jax.device_put(tiny.federation())
    step, state = jax.jit(algorithm.step), jax.jit(algorithm.init)(jax.random.key(0), data)
    for _ in range(TURNS):
        state = step(restored(state), data)
    assert step._cache_size() == 1
    once = tiny.run(chunks_of_three, TURNS)
    tiny.same(tiny.numpy(state.shared["params"]["head"]["kernel"]), once.shared["params"]["head"]["kernel"][-1], 1e-6)


def clients(size, width=12):
    """One client's examples, told apart by their x."""
    return Clients(jnp.arange(width)[:, None], jnp.zeros(width, int), jnp.arange(width) < size)


def test_every_round_and_client_has_a_draw_of_its_own():
    drawn = jax.jit(lambda key: batches.drawn(0.5, clients(10), key).mask)
    keys = [client_key(jax.random.key(0), turn, client) for turn in range(3) for client in range(4)]
    sets = {tuple(np.flatnonzero(drawn(key)).tolist()) for key in keys}
    assert len(sets) > 8
    assert all(len(one) == 5 and max(one) < 10 for one in sets)
    often = np.mean([drawn(jax.random.key(seed)) for seed in range(400)], 0)
    np.testing.assert_allclose(often[:10], 0.5, atol=0.1)


@pytest.mark.parametrize("size", [12, 7, 2, 1, 0])
@pytest.mark.parametrize("pace", [(3, None, 2), (None, 9, 2), (1, None, "full")], ids=["epochs", "steps", "full"])
def test_every_pass_is_one_over_the_share(pace, size):
    local = Local(0.1, *pace, 0.0, 0.0, share=0.6)
    data = batches.drawn(0.6, clients(size), jax.random.key(1))
    expected = sorted(np.flatnonzero(data.mask).tolist())
    assert len(expected) == taken(0.6, size)
    plan = batches.schedule(local, data, jax.random.key(1))
    with compiling_for(Target("gpu", "gpu")):
        other = batches.schedule(local, data, jax.random.key(1))
    steps, others = steps_of(plan), steps_of(other)
    assert {len(step.y) for step in steps + others} == {2 if pace[2] == 2 else taken(0.6, 12)}
    seen, on_gpu = ([np.asarray(one.x)[np.asarray(one.mask), 0].tolist() for one in each] for each in (steps, others))
    # In epochs, a pass on a GPU is one over the largest client's share, in which smaller clients pause.
    assert [rows for rows in seen if rows] == [rows for rows in on_gpu if rows]
    assert other.count == local.rows_and_steps(12)[1]
    assert plan.skips is False
    each = max(-(-len(expected) // (2 if pace[2] == 2 else 12)), 1)  # steps of a pass
    assert len(seen) == (pace[1] or pace[0] * each * bool(size or pace[2] == "full"))
    assert batches.examples(local, size) == sum(map(len, seen))
    for first in range(0, len(seen) - each + 1, each):
        assert sorted(itertools.chain(*seen[first : first + each])) == expected


def steps_of(plan):
    """The examples that each step of a schedule sees."""
    return [plan.batch(plan.turn(step)) for step in range(int(plan.count))]


def test_a_small_client_computes_its_own_steps_only():
    """Of 2 epochs with 12 examples for the largest client, a client of 3 computes 2 × 2 steps of 2 and not 2 × 6."""
    times = []

    def loss(params, model, batch, sent, key):
        jax.debug.callback(lambda: times.append(1))
        return (params["w"] * batch.x.mean()).sum(), model

    local, start, key = Local(0.1, 2, None, 2, 0.0, 0.0), {"params": {"w": jnp.ones(())}}, jax.random.key(0)
    jax.block_until_ready(jax.jit(lambda: local.train(loss, start, None, clients(3), key))())
    jax.effects_barrier()
    assert len(times) == 4


def test_the_share_is_rounded_down_as_in_python_and_leaves_one():
    for share in (0.8, 0.7, 0.29, 1 / 3, 0.05, 1.0):
        sizes = np.arange(301)
        expected = [max(int(size * share), min(size, 1)) for size in sizes.tolist()]
        np.testing.assert_array_equal(taken(share, sizes), expected)
        assert [taken(share, size) for size in sizes.tolist()] == expected
        found = [int(batches.number(share, clients(size, 300))) for size in (0, 1, 10, 100, 300)]
        assert found == [expected[size] for size in (0, 1, 10, 100, 300)]


@pytest.mark.parametrize("size", [20, 4])
def test_control_variates_and_partial_work_count_the_steps_of_the_share(size):
    """Of a loss with slope −1 everywhere, the mean gradient is −1, however many steps a client does."""
    local = Local(0.5, 2, None, 2, 0.0, 0.0, share=0.5)
    slope = lambda params, model, rows, sent, key: (-params["w"].sum(), {})
    start = {"params": {"w": jnp.zeros(1)}}
    after = local.train(slope, start, (), clients(size, 20), jax.random.key(0))  # pyright: ignore[reportArgumentType]
    assert float(after["params"]["w"][0]) == 0.5 * 2 * -(-size // 4)
    found = local.mean_gradient(start["params"], after["params"], clients(size, 20))
    np.testing.assert_allclose(found["w"], -1.0)
    done, whole = batches.steps_done(local, batches.drawn(0.5, clients(size, 20), jax.random.key(0)), jnp.int32(9))
    assert (int(done), int(whole)) == ({20: 9, 4: 1 + 1}[size], 2 * -(-size // 4))


@pytest.mark.parametrize("size", [1e-18, 1e-20, 1e-25, 0.0])
def test_a_description_is_of_length_one_or_zero(size):
    """The squares of small numbers are too small for single precision."""
    length = np.linalg.norm(describing.normalised({"w": jnp.full(4, size, jnp.float32)})["w"])
    assert length == pytest.approx(1.0 if size == 1e-18 else 0.0)


def test_a_displacement_from_the_anchor_is_one_on_a_share():
    setting = tiny.setting(batch_size="full", share=0.5)
    describe = describing.displacement(setting.task, setting.context.trainer, 1)
    data = tiny.federation()
    rows = data.train.rows[:12]
    one = Clients(jnp.asarray(data.x[rows]), jnp.asarray(data.y[rows]), jnp.ones(12, bool))
    anchor = setting.task.init(jax.random.key(5))
    for client in range(2):
        key = jax.random.fold_in(jax.random.key(2), client)
        mine = lot(key, 12, 0.5)
        slope = plain.gradient(
            plain.vectors(anchor), (data.x[rows[mine]].reshape(6, -1).astype(float), data.y[rows[mine]])
        )
        found = plain.vectors({"params": describe(anchor, one, key)[0]})
        np.testing.assert_allclose(found, slope / np.linalg.norm(slope), atol=1e-5)
    described, state = Displacement(steps=1), SimpleNamespace(shared=anchor)
    same_data = described.for_one_client(setting.context)
    begun = [described.begin(setting.context, jax.random.key(seed), state) for seed in range(2)]  # pyright: ignore
    first, second, other_seed = (same_data(begun[i], jnp.int32(client), one) for i, client in ((0, 0), (0, 1), (1, 0)))
    assert np.abs(first - second).max() > 1e-3
    assert np.abs(first - other_seed).max() > 1e-3


@pytest.mark.parametrize("name", ["sgd", "adam", "optax"])
def test_what_is_no_share_is_refused(name):
    for wrong in (0, 1.5, -0.2):
        with pytest.raises(InputError, match="share"):
            registry.options("train", name, {"share": wrong})


def test_a_share_cannot_change_during_training():
    """The number of rows that a step works on is fixed when the program is compiled."""
    setting = tiny.setting()

    def make(values):
        trainer = setting.context.trainer._replace(share=values["train.share"])
        return tiny.built("fedavg", setting.with_context(trainer=trainer))

    with pytest.raises(InputError, match=r"train.share: cannot change during training"):
        tiny.run(schedules.scheduled(make, {"train.share": {0: 0.5, 1: 0.8}}), 1)


def test_steps_read_their_examples_from_the_pool_unless_x_was_replaced():
    data = tiny.federation()
    given = jax.tree.map(lambda leaf: leaf[0], chunks.gather(data, data.train, jnp.arange(1)))
    expected = given.x[jnp.array([2, 0])]
    for one, x in ((given, expected), (given.replace(x=given.x + 1), expected + 1)):
        np.testing.assert_array_equal(one.picked(jnp.array([2, 0]), jnp.ones(2, bool)).x, x)
    assert given.replace(y=given.y + 1).inputs is not None


def test_a_round_of_few_steps_makes_no_copy_of_all_examples():
    """A client with all digits trains on 16 of them: the program needs less than they take as floats."""
    given = {"data": "digits", "scenario": {"name": "iid", "clients": 1}, "model": "linear", "engine": "general"}
    made = plan.planned(*plan.config_and_objects(given, {"method": "fedavg", "train": {"steps": 2, "batch_size": 8}}))
    (algorithm,) = made.algorithms.values()
    state = jax.eval_shape(algorithm.init, jax.random.key(0), made.federation)
    needed = jax.jit(algorithm.step).lower(state, made.federation).compile().memory_analysis().temp_size_in_bytes
    assert needed < 4 * made.federation.train.rows.size * 64 / 2
