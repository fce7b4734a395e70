"""What a run needs is said, and what cannot be had is refused, before anything is allocated."""

import re
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jcfl import InputError, cli, errors, registry
from jcfl.core.batches import HELD, schedule
from jcfl.core.local import Local
from jcfl.data import load
from jcfl.data.federation import federation
from jcfl.grouping import kmeans
from jcfl.runs import config, experiment, needs, plan, xla
from jcfl.runs.loop import Interrupted
from jcfl.runs.objects import Objects, config_of_federation
from jcfl.runs.run import Run
from jcfl.types import Clients
from tests import tiny

MANY = 2**31 - 1
BASE = {
    "scenario": {"name": "iid", "clients": 8},
    "method": "fedavg",
    "model": {"name": "mlp", "hidden": 4},
    "rounds": 1,
}


def planned(**changes):
    """The plan of a run on the tiny federation."""
    federation = tiny.federation()
    settings = {
        **config_of_federation(federation),
        "method": "fedavg",
        "model": "linear",
        "rounds": 1,
        **changes,
    }
    return plan.planned(config.read(settings), Objects(federation=federation))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": 2**31}, "rounds: input should be less than or equal to 2147483647"),
        ({"seed": 2**32 - 1, "seeds": 2}, "seeds: 2 from 4294967295 on go beyond 4294967295"),
        ({"train": {"epochs": 10**30}}, "epochs: input should be less than or equal to 2147483647"),
        ({"train": {"lr": float("inf")}}, "lr: input should be a finite number"),
        ({"train": {"lr": 1e300}}, "lr: input should be less than or equal to 340282"),
        ({"rounds": True}, "rounds: input should be a number, got True"),
        ({"scenario": {"name": "rotated", "angles": [float("nan"), 0.0]}}, "angles.0: input should be a finite number"),
        ({"scenario": {"name": "shifted", "shifts": [0, -(2**40)]}}, "shifts.1: input should be greater than or equal"),
        ({"scenario": {"name": "iid", "arrivals": {2**40: 0.5}}}, "less than or equal to 2147483647"),
        ({"budget": 2**63}, "budget: input should be less than"),
    ],
)
def test_a_number_that_arrays_cannot_hold_is_refused_by_its_type(changes, said):
    with pytest.raises(InputError, match=re.escape(said)):
        config.read({**BASE, **changes})


def test_bounds_of_an_option_s_own_stay():
    assert config.read({**BASE, "budget": 2**62, "seed": 2**32 - 1}).budget == 2**62
    assert config.read({**BASE, "scenario": {"name": "iid", "seed": 2**40}}).scenario.options["seed"] == 2**40


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("iid", {"clients": MANY}),
        ("rotated", {"clients": MANY}),
        ("rotated", {"groups": MANY}),
        ("crowd", {"clients": MANY}),
        ("crowd", {"clients": 2, "sizes": (1, 1), "angles": (0.0, 90.0), "examples": (MANY, 1)}),
        ("dirichlet", {"clients": MANY}),
        ("n_class", {"clients": MANY}),
    ],
)
def test_a_federation_that_does_not_fit_is_refused_before_it_is_made(name, options, monkeypatch):
    monkeypatch.setattr(errors, "available_memory", lambda: 2**28)
    with pytest.raises(InputError, match=r"of memory|are too few for"):
        federation(load("digits"), name, **options)


def test_generated_examples_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(errors, "available_memory", lambda: 2**28)
    for option in ("users", "train", "test", "features", "classes"):
        with pytest.raises(InputError, match="the examples of"):
            load("gaussian", **{option: MANY})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": MANY}, "evaluations of 1 seeds and 8 clients would take .*; set evaluate_every to"),
        ({"seeds": MANY}, "evaluations of 2147483647 seeds and 8 clients .* use fewer seeds"),
        ({"model": {"name": "mlp", "hidden": MANY}}, "states .* take a smaller model"),
        ({"model": {"name": "mlp", "hidden": [MANY, MANY]}}, "states .* take a smaller model"),
        ({"method": {"name": "fedavg_plus", "runs": MANY}}, "states .* take a smaller model"),
        ({"train": {"epochs": MANY, "batch_size": 1}}, "expected at most 2147483584 local steps"),
        ({"method": {"name": "oneshot_kmeans", "initial_epochs": MANY}}, "expected at most 2147483584 local steps"),
        ({"devices": MANY}, "got 2147483647; a CPU counts as more"),
        ({"method": {"name": "fesem_ma"}, "model": {"name": "mlp", "hidden": MANY}}, "take .*a smaller model"),
    ],
)
def test_a_run_that_cannot_be_had_is_refused_when_it_is_planned(changes, said):
    with pytest.raises(InputError, match=said):
        planned(**changes)


def test_the_least_spacing_of_evaluations_that_is_named_is_enough(monkeypatch):
    monkeypatch.setattr(needs, "available_memory", lambda: 2**20)
    with pytest.raises(InputError, match="set evaluate_every to") as error:
        planned(rounds=10_000)
    every = int(re.findall(r"evaluate_every to (\d+)", str(error.value))[0])
    monkeypatch.setattr(errors, "available_memory", lambda: 2**20)
    assert needs.refuse_long_history(config.read({**BASE, "rounds": 10_000, "evaluate_every": every}), 8) is None


@pytest.mark.parametrize(
    ("rounds", "every", "first", "last"),
    [(0, 1, False, 3), (10, 3, False, 1), (9, 3, True, 1), (5, 9, True, 1), (10, 3, False, 3), (2, 9, False, 5)],
)
def test_evaluations_are_counted_without_a_list(rounds, every, first, last):
    """At multiples of a number of rounds, and after each of the last rounds."""
    given = {"rounds": rounds, "evaluate_every": every, "evaluate_first": first, "evaluate_last": last}
    found = config.read(BASE | given)
    one_by_one = {*range(0, rounds + 1, every), *range(max(1, rounds - last + 1), rounds + 1), rounds}
    one_by_one -= set() if first or not rounds else {0}
    assert needs.due(found) == sorted(one_by_one)
    assert needs.evaluations(found) == len(one_by_one)


def test_as_many_rounds_as_can_be_counted_begin_and_can_be_interrupted(tmp_path):
    stop = threading.Event()

    def interrupt(progress):
        if progress.round and not stop.is_set():
            stop.set()
            signal.raise_signal(signal.SIGINT)

    whole = {"rounds": MANY, "evaluate_every": MANY, "method": "majority", "model": "linear"}
    with pytest.raises(Interrupted):
        experiment.run(tiny.federation(), **whole, out=tmp_path / "long", on_progress=interrupt)
    assert Run("majority", planned(**whole), None).due == [MANY]  # pyright: ignore[reportArgumentType]


def test_a_program_that_works_on_more_than_is_free_is_refused_and_leaves_no_file(tmp_path, monkeypatch):
    """Twice as many rows and columns as clients do not fit: what a round works on is known before it runs."""
    monkeypatch.setattr(xla, "free_memory", lambda: 1000)
    with pytest.raises(InputError, match="a round or an evaluation would take"):
        experiment.run(tiny.federation(), method="majority", model="linear", rounds=1, out=tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.yaml"))


def test_restarts_take_no_memory_and_draw_as_before():
    """The key of a restart is that of `jax.random.split`, and no list of keys is made."""
    key = jax.random.key(3)
    split = jax.random.key_data(jax.random.split(key, 5))
    folded = jax.random.key_data(jax.vmap(lambda turn: jax.random.fold_in(key, turn))(np.arange(5)))
    np.testing.assert_array_equal(split, folded)
    points = jax.ShapeDtypeStruct((6, 2), float)
    jaxpr = jax.make_jaxpr(lambda p: kmeans.fit(key, p, np.ones(6), 2, iterations=2, restarts=MANY).labels)(points)
    assert str(MANY) in str(jaxpr)
    assert f"[{MANY}" not in str(jaxpr)


def test_orders_of_very_many_passes_are_not_held_and_are_the_same():
    data = Clients(jnp.arange(6)[:, None], jnp.zeros(6, int), jnp.arange(6) < 5)
    batch = lambda epochs: schedule(Local(0.1, epochs, None, 2, 0.0, 0.0), data, jax.random.key(0)).batch
    assert f"[{HELD}" not in str(jax.make_jaxpr(lambda turn: batch(HELD)(turn).x)(0))
    for turn in range(12):
        np.testing.assert_array_equal(batch(4)(turn).x, batch(HELD)(turn).x)


def test_what_a_run_needs_is_shown(capsys):
    words = ["quickstart", "scenario.clients=8", "method=ifca", "method.clusters=2", "compare=[]", "rounds=10"]
    assert cli.status(["show", *words, "participation=1"]) == 0
    assert re.search(r"needs: federation .*, states .*; 2 evaluations, 400 local steps", capsys.readouterr().out)
    fewer = ["quickstart", "scenario.clients=8", "method=fedsgd", "compare=[]", "rounds=10", "participation=1"]
    assert cli.status(["show", *fewer]) == 0
    assert ", 80 local steps" in capsys.readouterr().out  # one full-batch step, whatever the trainer's epochs
    assert cli.status(["show", *words, "method.clusters=9"]) == 0
    assert "the run is refused: ifca: clusters must be at most" in capsys.readouterr().out


def test_groups_beside_another_number_of_angles_are_refused():
    with pytest.raises(InputError, match="groups: 3 groups beside 4 angles; leave one of the two out"):
        federation(load("digits"), "rotated", clients=8, groups=3, angles=(0.0, 90.0, 180.0, 270.0))
    found = federation(load("digits"), "rotated", clients=8, groups=2, angles=(0.0, 90.0))
    assert set(found.groups.tolist()) == {0, 1}


def test_keywords_are_checked_as_options_are():
    @registry.keywords_checked
    def shape(first: int, *, width: int = 3) -> tuple[int, int]:
        return first, width

    assert shape(1) == (1, 3)
    assert shape(1, width="4") == (1, 4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="shape: width: input should be a valid integer"):
        shape(1, width="x")  # pyright: ignore[reportArgumentType]
