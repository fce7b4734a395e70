"""The number of clusters: what it is judged on, how it is chosen, and Rotated digits' four."""

import jax
import numpy as np
import pytest

from jcfl import cli
from jcfl.errors import InputError
from jcfl.runs import choice, experiment
from jcfl.runs.choice import choice_from, choose_k, merits
from tests import tiny


def rows(split, client):
    return split.rows[split.start[client] : split.start[client] + split.size[client]]


def images(federation, split, client):
    """A client's examples as a sorted list, whatever their order."""
    mine = rows(split, client)
    return sorted(zip(federation.x[mine].reshape(len(mine), -1).tolist(), federation.y[mine].tolist(), strict=True))


def test_judged_by_training_examples_held_back_and_by_nothing_else():
    whole = tiny.federation(held_out=2)
    short = choice.sample(np.random.default_rng(0), whole, 100, 0.25)
    assert len(short.groups) == 6 and not short.held_out.any()
    assert short.test.size.tolist() == [3, 2, 2, 3, 2, 1]
    assert (short.train.width, short.test.width) == (9, 3)
    for client in range(6):
        both = images(short, short.train, client) + images(short, short.test, client)
        assert sorted(both) == images(whole, whole.train, client)
    assert len(short.x) == whole.train.size[:6].sum()
    np.testing.assert_array_equal(short.groups, whole.groups[:6])


def test_sample_is_of_different_clients_and_follows_its_seed():
    whole = tiny.federation()
    one, same, other = (choice.sample(np.random.default_rng(seed), whole, 4, 0.2) for seed in (0, 0, 1))
    assert len(one.groups) == 4 and one.train.size.sum() + one.test.size.sum() == len(one.x)
    np.testing.assert_array_equal(one.x, same.x)
    assert one.x.shape != other.x.shape or (one.x != other.x).any()
    assert len(np.unique(one.x.reshape(len(one.x), -1), axis=0)) == len(np.unique(one.x, axis=0))


def figures(means, noise, seeds=3, s=40):
    """Accuracies [k, seeds, s] around their means, the clients' own differences the same for every k."""
    rng = np.random.default_rng(0)
    own = rng.normal(0, 0.2, s)
    return np.asarray(means)[:, None, None] + own + noise * rng.normal(size=(len(means), seeds, s))


def pick(values, ks, criterion="accuracy"):
    return choice_from(np.random.default_rng(0), ks, values, np.ones(values.shape[2]), criterion)


def test_clear_lead_is_sure_and_a_tie_is_not():
    sure = pick(figures([0.6, 0.8, 0.7], noise=0.01), [2, 4, 6])
    assert (sure.k, sure.confidence) == (4, 1.0)
    assert sure.margin == pytest.approx(0.1, abs=0.01)
    assert sure.scores[4][0] == pytest.approx(sure.scores[2][0] + 0.2, abs=0.01)
    torn = pick(figures([0.6, 0.8, 0.8], noise=0.3), [2, 4, 6])
    assert torn.k in (4, 6) and 0.3 < torn.confidence < 0.98
    assert pick(np.full((3, 1, 5), 0.5), [2, 4, 6]).k == 2


def test_deviation_is_over_seeds_and_clients_count_by_what_they_hold():
    values = np.array([[[0.0, 1.0], [1.0, 1.0]]])  # one k, two seeds, two clients
    found = choice_from(np.random.default_rng(0), [3], values, np.array([3.0, 1.0]), "accuracy")
    assert found.scores == {3: pytest.approx((0.625, 0.375 * 2**0.5))}
    assert (found.k, found.confidence) == (3, 1.0)


def test_rounding_errors_do_not_choose_between_equal_accuracies():
    """Accuracies of clients are float32: two right predictions of seven sum to more or less, by the clients' sizes."""
    sizes, right = np.array([3, 4]), np.array([[1, 1], [2, 0]])
    values = (right / sizes).astype(np.float32)[:, None]
    assert values[0, 0] @ sizes < values[1, 0] @ sizes
    found = choice_from(np.random.default_rng(0), [2, 4], values, sizes, "accuracy")
    assert (found.k, found.margin) == (2, 0)


def test_knee_is_where_the_fall_ends_at_any_scale():
    ks, falling = [1, 2, 3, 4, 6, 9], np.array([100.0, 70.0, 40.0, 10.0, 9.0, 7.0])
    for scores in (falling, falling * 1e-6 + 3, falling + 1e4):
        assert ks[merits(scores, ks, "distance").argmax()] == 4
    assert merits(falling, ks, "distance")[[0, -1]] == pytest.approx([0, 0])
    assert merits(np.full(6, 2.0), ks, "distance").argmax() == 0  # nothing falls: the fewest
    values = falling[:, None, None] * (1 + 0.05 * np.random.default_rng(0).normal(size=(6, 2, 30)))
    found = pick(values, ks, "distance")
    assert (found.k, found.confidence) == (4, 1.0)


def test_distance_is_to_the_own_cluster():
    found = experiment.run(
        tiny.federation(),
        method={"name": "wecfl", "clusters": 2},
        model=tiny.task(),
        train={"lr": 0.5},
        rounds=2,
        seeds=2,
    )
    state = found.state
    for seed in range(2):
        for client, label in enumerate(state.labels[seed]):
            pair = zip(jax.tree.leaves(state.clients["model"]), jax.tree.leaves(state.clusters), strict=True)
            expected = sum(((own[seed, client] - centre[seed, label]) ** 2).sum() for own, centre in pair)
            assert choice.distances(found)[seed, client] == pytest.approx(expected, rel=1e-5)


def test_rotated_digits_are_four():
    found = choose_k(
        {"data": "digits", "scenario": {"name": "rotated", "clients": 48}, "method": "fedavg"},
        [6, 2, 4],
        clients=40,
        seeds=1,
        model={"name": "mlp", "hidden": 32},
        train={"lr": 0.2, "epochs": 10},
    )
    assert found.k == 4
    assert list(found.scores) == [2, 4, 6]
    assert found.confidence > 0.8
    assert found.margin > 0.01


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_an_example_is_left_on_each_side_whatever_share_is_held_back(share):
    found = choice.sample(np.random.default_rng(0), tiny.federation((2, 3, 9)), 3, share)
    assert (found.train.size >= 1).all() and (found.test.size >= 1).all()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"ks": []}, r"ks: expected at least 1"),
        ({"ks": [0, 2]}, "from 1 to 8"),
        ({"ks": [True, 2]}, "expected a list of numbers from 1 to 8"),
        ({"ks": [2, 9]}, "expected numbers from 1 to 8, the clients sampled, got 9$"),
        ({"ks": [2, 2, 3], "criterion": "distance"}, "at least 3 different"),
        ({"criterion": "purity"}, "'accuracy' or 'distance'"),
        ({"held_back": 1.0}, "^choose_k: held_back: "),
        ({"clients": 0}, "clients"),
        ({"method": "fedavg"}, "clusters"),
        ({"participation": 0.5}, "^choose_k makes its own short runs and cannot keep participation"),
    ],
)
def test_mistakes_are_said_in_one_line(given, complaint):
    with pytest.raises(InputError, match=complaint) as error:
        choose_k(tiny.federation(), **({"ks": [1, 2], "model": tiny.task()} | given))
    assert "\n" not in str(error.value)


def test_every_run_is_as_the_configuration_says(monkeypatch):
    """Only what the choice is about is its own: method, rounds, evaluations, seeds, everybody taking part."""
    made, whole = [], experiment.execute
    monkeypatch.setattr(
        experiment, "execute", lambda plan, *more, **how: made.append(plan) or whole(plan, *more, **how)
    )
    given = {"engine": "general", "devices": 1, "chunk": 3, "budget": 2**20, "seeds_in_one": False}
    base = {"data": "digits", "scenario": {"name": "rotated", "clients": 12}, "method": "fedavg", "compare": ["ifca"]}
    base |= {"participation": 0.5, "rounds": 50, "evaluate_first": True, "track": ["tensorboard"]}
    train = {"lr": 0.3, "epochs": 2}
    choose_k(base, [3], rounds=1, seeds=2, seed=3, model={"name": "mlp", "hidden": 4}, train=train, **given)
    (plan,) = made
    config = plan.config
    assert {key: getattr(config, key) for key in given} == given
    assert (plan.context.engine, plan.context.resources.chunk) == ("general", 3)
    assert (config.method.name, config.method.options["clusters"], config.compare) == ("wecfl", 3, ())
    assert (config.rounds, config.seed, config.seeds, config.participation) == (1, 3, 2, 1.0)
    assert (config.track, config.evaluate_first) == ((), False)
    assert (config.train.options["lr"], config.model.options["hidden"]) == (0.3, 4)


@pytest.mark.parametrize("from_file", [False, True])
def test_a_configuration_needs_no_method_of_its_own(from_file, tmp_path, capsys):
    """The first thing refused is the number of clusters, before anything is trained."""
    if from_file:
        file = tmp_path / "mine.yaml"
        file.write_text("data: digits\nscenario: {name: rotated, clients: 8}\n", "utf-8")
        assert cli.status(["choose-k", str(file), "--k", "9"]) == 2
        assert "expected numbers from 1 to 8" in capsys.readouterr().err
    else:
        with pytest.raises(InputError, match="expected numbers from 1 to 8"):
            choose_k({"data": "digits", "scenario": {"name": "rotated", "clients": 8}}, [9])


def test_the_command_prints_what_the_function_finds(capsys):
    words = ["choose-k", "quickstart", "--set", "scenario.clients=8", "model.hidden=4", "train.epochs=1", "--k", "2"]
    assert cli.status([*words, "--rounds", "1", "--seeds", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["k", "accuracy", "±", "over", "seeds"] and printed[1].split()[:2] == ["*", "2"]
    assert printed[2] == "k = 2; 100 % of resamples of clients and seeds choose it"
    assert cli.status([*words[:-1], "2,x"]) == 2
    assert "--k: expected a list of numbers from 1 to 8" in capsys.readouterr().err
    assert cli.status([*words, "--held-back", "2"]) == 2
    assert "choose-k: --held-back: input should be less than 1, got 2.0" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["method.name=ifca", "rounds=3", "compare=[fesem]"])
def test_the_command_refuses_overrides_that_it_cannot_keep(change, capsys):
    assert cli.status(["choose-k", "quickstart", "--set", change, "--k", "2,3"]) == 2
    said = capsys.readouterr().err
    assert f"choose-k makes its own short runs and cannot keep {change.split('=')[0].split('.')[0]}; it takes" in said


def test_the_command_refuses_a_methods_option_where_the_configuration_has_no_method(tmp_path, capsys):
    """The line names what the user wrote, not the method that stands in."""
    file = tmp_path / "mine.yaml"
    file.write_text("data: digits\nscenario: {name: rotated, clients: 8}\n", "utf-8")
    assert cli.status(["choose-k", str(file), "--set", "method.tau=0.1", "--k", "2"]) == 2
    assert "choose-k makes its own short runs and cannot keep method; it takes" in capsys.readouterr().err


def test_distance_needs_the_clients_models(monkeypatch):
    """This is said before anything is trained."""
    monkeypatch.setattr(experiment, "execute", None)
    with pytest.raises(InputError, match="keeps the clients' models"):
        choose_k(tiny.federation(), [1, 2, 3], method="ifca", criterion="distance", seeds=1, model=tiny.task())
